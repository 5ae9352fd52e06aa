/* attention.c - softmax over the selected cache rows, and the mean of their latents, for every head.
 *
 * A piece of work is a row and a group of its heads, which share the widening of cache rows; how large the
 * groups are changes no bit. For one head, over the selected rows s in their order:
 *
 *     score_s = scale * (q_latent . latent_s + q_rope . rope_s)    float32, as glm52_dot_f32
 *     p_s     = exp(score_s - max)                                 float32
 *     total   = sum of p_s                                         double, see glm52_row_exp
 *     out_i   = (sum of p_s * latent_s_i) / total                  float32, s ascending; divided in double */
#include <string.h>

#include "cpu.h"

/* Cache rows that are worked on together: few enough for a core's first cache. */
#define TILE_ROWS 8
#define TILE_HEADS 8

struct job {
    const glm52_attention_args *args;
    float *out;
    const float *q_latent;
    const float *q_rope;
    const void *cache;
    const int32_t *selected;
    size_t group_heads, groups;   /* of a row */
    uint8_t *space;
    size_t space_bytes;           /* of one thread */
};

/* What one thread works in. */
struct space {
    float *scores;   /* [heads of the group, selected rows] */
    double *totals;  /* [heads of the group] */
    float *tile;     /* [TILE_ROWS, latent + rope_size] */
};

static size_t selected_max(const glm52_attention_args *args) {
    const size_t visible = (size_t)args->position + args->row_count;
    return visible < args->k ? visible : args->k;
}

static size_t score_bytes(const glm52_attention_args *args) {
    return glm52_cpu_line(args->head_count * selected_max(args) * sizeof(float));
}

static size_t total_bytes(const glm52_attention_args *args) {
    return glm52_cpu_line(args->head_count * sizeof(double));
}

static size_t space_bytes(const glm52_attention_args *args) {
    const size_t row_size = (size_t)args->latent + args->rope_size;
    return score_bytes(args) + total_bytes(args) + glm52_cpu_line(TILE_ROWS * row_size * sizeof(float));
}

static struct space thread_space(const struct job *job, uint32_t thread) {
    uint8_t *at = job->space + thread * job->space_bytes;
    return (struct space){
        .scores = (float *)(void *)at,
        .totals = (double *)(void *)(at + score_bytes(job->args)),
        .tile = (float *)(void *)(at + score_bytes(job->args) + total_bytes(job->args)),
    };
}

/* The cache rows selected[0 .. count - 1]. */
static void load_tile(const struct job *job, const int32_t *selected, size_t count, float *tile,
                      const float **rows) {
    const size_t row_size = (size_t)job->args->latent + job->args->rope_size;
    for (size_t i = 0; i < count; i++) {
        rows[i] = glm52_cache_row(job->cache, job->args->kv_type, row_size, (size_t)selected[i],
                                  tile + i * row_size);
    }
}

/* Scores of some heads, score_stride apart, and count rows. */
static void score_tile(const struct job *job, size_t r, size_t head, size_t heads, const float *const *rows,
                       size_t count, float *scores, size_t score_stride) {
    const glm52_attention_args *args = job->args;
    const float *latent[TILE_HEADS], *rope[TILE_HEADS], *rope_rows[TILE_ROWS];
    float by_latent[TILE_HEADS * TILE_ROWS], by_rope[TILE_HEADS * TILE_ROWS];
    for (size_t h = 0; h < heads; h++) {
        latent[h] = job->q_latent + r * args->q_latent_row_stride + (head + h) * args->q_latent_head_stride;
        rope[h] = job->q_rope + r * args->q_rope_row_stride + (head + h) * args->q_rope_head_stride;
    }
    for (size_t i = 0; i < count; i++) rope_rows[i] = rows[i] + args->latent;
    glm52_dot_f32_tile(latent, heads, rows, count, args->latent, by_latent, TILE_ROWS);
    glm52_dot_f32_tile(rope, heads, rope_rows, count, args->rope_size, by_rope, TILE_ROWS);
    for (size_t h = 0; h < heads; h++) {
        for (size_t i = 0; i < count; i++) {
            const size_t at = h * TILE_ROWS + i;
            scores[h * score_stride + i] = args->scale * (by_latent[at] + by_rope[at]);
        }
    }
}

static void score_heads(const struct job *job, size_t r, size_t head, size_t heads, const int32_t *selected,
                        size_t count, const struct space *space) {
    for (size_t first = 0; first < count; first += TILE_ROWS) {
        const float *rows[TILE_ROWS];
        const size_t loaded = count - first < TILE_ROWS ? count - first : TILE_ROWS;
        load_tile(job, selected + first, loaded, space->tile, rows);
        for (size_t h = 0; h < heads; h += TILE_HEADS) {
            const size_t some = heads - h < TILE_HEADS ? heads - h : TILE_HEADS;
            score_tile(job, r, head + h, some, rows, loaded, space->scores + h * count + first, count);
        }
    }
}

static double softmax(float *scores, size_t count) {
    float max = scores[0];
    for (size_t i = 1; i < count; i++) max = scores[i] > max ? scores[i] : max;
    return glm52_row_exp(scores, count, max);
}

static void attend(const struct job *job, size_t r, size_t head, size_t heads, const struct space *space) {
    const glm52_attention_args *args = job->args;
    const int32_t *selected = job->selected + r * args->selected_stride;
    const size_t visible = (size_t)args->position + r + 1;
    const size_t count = visible < args->k ? visible : args->k;
    float *out = job->out + r * args->out_row_stride + head * args->out_head_stride;

    score_heads(job, r, head, heads, selected, count, space);
    for (size_t h = 0; h < heads; h++) {
        space->totals[h] = softmax(space->scores + h * count, count);
        memset(out + h * args->out_head_stride, 0, args->latent * sizeof(float));
    }
    for (size_t first = 0; first < count; first += TILE_ROWS) {
        const float *rows[TILE_ROWS];
        const size_t loaded = count - first < TILE_ROWS ? count - first : TILE_ROWS;
        load_tile(job, selected + first, loaded, space->tile, rows);
        glm52_add_rows(out, args->out_head_stride, space->scores + first, count, heads, rows, loaded, args->latent);
    }
    for (size_t h = 0; h < heads; h++) {
        float *o = out + h * args->out_head_stride;
        for (size_t i = 0; i < args->latent; i++) o[i] = (float)((double)o[i] / space->totals[h]);
    }
}

/* An index is a group of heads of a row. */
static void attend_groups(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const struct space space = thread_space(job, thread);
    for (size_t i = begin; i < end; i++) {
        const size_t head = i % job->groups * job->group_heads;
        const size_t left = job->args->head_count - head;
        attend(job, i / job->groups, head, left < job->group_heads ? left : job->group_heads, &space);
    }
}

size_t glm52_cpu_attention_scratch(const glm52_backend *backend, const glm52_attention_args *args) {
    return glm52_pool_threads(glm52_cpu_pool(backend)) * space_bytes(args);
}

void glm52_cpu_attention(glm52_backend *backend, const glm52_attention_args *args, float *out,
                         const float *q_latent, const float *q_rope, const void *cache,
                         const int32_t *selected) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {.args = args, .out = out, .q_latent = q_latent, .q_rope = q_rope, .cache = cache,
                      .selected = selected};
    job.space = glm52_cpu_of(backend)->scratch;
    job.space_bytes = space_bytes(args);

    /* A few pieces per thread; with many rows a piece is a whole row. */
    const size_t pieces = (size_t)2 * glm52_pool_threads(pool);
    const size_t wanted = (pieces + args->row_count - 1) / args->row_count;
    job.group_heads = (args->head_count + wanted - 1) / wanted;
    job.groups = (args->head_count + job.group_heads - 1) / job.group_heads;

    const size_t cost = job.group_heads * selected_max(args) * 2 * args->latent;
    const size_t count = args->row_count * job.groups;
    glm52_pool_run(pool, count, glm52_pool_grain(pool, count, cost), attend_groups, &job);
}
