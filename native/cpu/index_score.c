/* index_score.c - how much each query of the indexer wants each position.
 *
 * A piece of work is a tile of positions and a block of rows: the tile's keys are widened once for the
 * block. A score is a sum over the heads in ascending order, in float32. It depends on its row and its
 * position only. */
#include "cpu.h"

#define TILE_POSITIONS 32
#define TILE_HEADS 8
#define BLOCK_ROWS 8

struct job {
    const glm52_index_score_args *args;
    float *scores;
    const float *q;
    const float *weights;
    const void *cache;
    size_t tiles;
    uint8_t *space;      /* per thread, a tile of float32 keys */
    size_t space_bytes;
};

static size_t space_bytes(const glm52_index_score_args *args) {
    return glm52_cpu_line((size_t)TILE_POSITIONS * args->key_size * sizeof(float));
}

/* Scores of row r at the positions first .. first + count - 1, whose keys are given. */
static void score_row(const struct job *job, size_t r, size_t first, size_t count, const float *const *keys) {
    const glm52_index_score_args *args = job->args;
    float *scores = job->scores + r * args->score_stride + first;
    float sum[TILE_POSITIONS] = {0};
    for (size_t first_head = 0; first_head < args->head_count; first_head += TILE_HEADS) {
        const float *q[TILE_HEADS];
        float dots[TILE_HEADS * TILE_POSITIONS];
        const size_t left = args->head_count - first_head, heads = left < TILE_HEADS ? left : TILE_HEADS;
        for (size_t h = 0; h < heads; h++) q[h] = job->q + r * args->q_stride + (first_head + h) * args->key_size;
        glm52_dot_f32_tile(q, heads, keys, count, args->key_size, dots, TILE_POSITIONS);
        for (size_t h = 0; h < heads; h++) {
            const float weight = job->weights[r * args->weight_stride + first_head + h];
            for (size_t i = 0; i < count; i++) {
                const float dot = args->scale * dots[h * TILE_POSITIONS + i];
                sum[i] += weight * (dot <= 0.0f ? 0.0f : dot);   /* a NaN goes on */
            }
        }
    }
    for (size_t i = 0; i < count; i++) scores[i] = sum[i];
}

/* An index is a tile of a block of rows. */
static void score_tiles(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const glm52_index_score_args *args = job->args;
    float *space = (float *)(void *)(job->space + thread * job->space_bytes);
    for (size_t i = begin; i < end; i++) {
        const size_t row_first = i / job->tiles * BLOCK_ROWS;
        const size_t rows_left = args->row_count - row_first;
        const size_t row_end = row_first + (rows_left < BLOCK_ROWS ? rows_left : BLOCK_ROWS);
        const size_t first = i % job->tiles * TILE_POSITIONS;
        const size_t visible = args->position + row_end;      /* to the last row of the block */
        if (first >= visible) continue;
        const size_t loaded = visible - first < TILE_POSITIONS ? visible - first : TILE_POSITIONS;
        const float *keys[TILE_POSITIONS];
        for (size_t k = 0; k < loaded; k++) {
            keys[k] = glm52_cache_row(job->cache, args->kv_type, args->key_size, first + k,
                                      space + k * args->key_size);
        }
        for (size_t r = row_first; r < row_end; r++) {
            const size_t seen = args->position + r + 1;
            if (seen <= first) continue;
            score_row(job, r, first, seen - first < loaded ? seen - first : loaded, keys);
        }
    }
}

size_t glm52_cpu_index_score_scratch(const glm52_backend *backend, const glm52_index_score_args *args) {
    return glm52_pool_threads(glm52_cpu_pool(backend)) * space_bytes(args);
}

void glm52_cpu_index_score(glm52_backend *backend, const glm52_index_score_args *args, float *scores,
                           const float *q, const float *weights, const void *cache) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {.args = args, .scores = scores, .q = q, .weights = weights, .cache = cache};
    job.space = glm52_cpu_of(backend)->scratch;
    job.space_bytes = space_bytes(args);
    job.tiles = ((size_t)args->position + args->row_count + TILE_POSITIONS - 1) / TILE_POSITIONS;

    const size_t blocks = ((size_t)args->row_count + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const size_t rows = args->row_count < BLOCK_ROWS ? args->row_count : BLOCK_ROWS;
    const size_t cost = rows * TILE_POSITIONS * args->head_count * args->key_size;
    const size_t pieces = blocks * job.tiles;
    glm52_pool_run(pool, pieces, glm52_pool_grain(pool, pieces, cost), score_tiles, &job);
}
