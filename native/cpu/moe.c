/* moe.c - the routed experts: every row's own few networks, weighted and added up.
 *
 * Rows are grouped by expert, so that an expert's matrices are read from memory once however many rows
 * chose it. An entry is one row's choice of one expert; entries are ordered by expert, then row, then place
 * in the row's list. Three steps, each on all threads:
 *
 *     h[entry]      = silu(gate x) * (up x)             over rows of gate and up
 *     h encoded                                         over entries, in the default mode
 *     out[row, c]  += weight * (down[c] . h[entry])     over columns c, entries in order
 *
 * So a sum over experts is in ascending order of their numbers, on one thread, in float32. */
#include <string.h>

#include "cpu.h"

struct entry {
    uint32_t row;
    float weight;
};

/* An expert that is at hand and was chosen; its entries are first .. end - 1. */
struct chosen {
    uint32_t expert, first, end;
};

struct job {
    const glm52_moe_args *args;
    float *out;
    const float *x;
    const glm52_expert *experts;
    struct glm52_linear gate, up, down;
    struct glm52_linear_input x_input;   /* row: a row of x; for gate */
    struct glm52_linear_input up_input;  /* the same for up, encoded apart if it has to be */
    struct glm52_linear_input h_input;   /* row: an entry */
    struct entry *entries;
    struct chosen *chosen;
    uint32_t *starts;                    /* [expert_count + 1] */
    size_t entry_count, chosen_count;
    float *h;                            /* [entries, ff_count] */
    uint8_t *space;                      /* per thread */
    size_t gate_space, space_bytes;      /* bytes up to the space of up; bytes of a thread */
};

/* Hands out the scratch; with base NULL it only counts. */
static size_t lay_out(struct job *job, const glm52_moe_args *args, uint32_t threads, uint8_t *base) {
    const size_t entries = (size_t)args->row_count * args->used_count;
    const size_t chosen_max = entries < args->expert_count ? entries : args->expert_count;
    job->args = args;
    job->gate = glm52_linear_of(args->gate_type, args->in_count, args->exact != 0);
    job->up = glm52_linear_of(args->up_type, args->in_count, args->exact != 0);
    job->down = glm52_linear_of(args->down_type, args->ff_count, args->exact != 0);
    const size_t x_q8 = job->gate.is_q8 || job->up.is_q8 ? glm52_q8_bytes(args->in_count) : 0;
    const bool is_apart = !glm52_linear_same_input(&job->gate, &job->up);
    const size_t h_q8 = job->down.is_q8 ? glm52_q8_bytes(args->ff_count) : 0;
    job->gate_space = glm52_linear_space(&job->gate);
    const size_t both = job->gate_space + glm52_linear_space(&job->up), down = glm52_linear_space(&job->down);
    job->space_bytes = both > down ? both : down;

    const size_t sizes[] = {
        entries * sizeof(struct entry), chosen_max * sizeof(struct chosen),
        ((size_t)args->expert_count + 1) * sizeof(uint32_t), args->row_count * x_q8 * (is_apart ? 2 : 1),
        entries * args->ff_count * sizeof(float), entries * h_q8, threads * job->space_bytes};
    enum { PARTS = sizeof(sizes) / sizeof(sizes[0]) };
    size_t at[PARTS + 1] = {0};
    for (size_t i = 0; i < PARTS; i++) at[i + 1] = at[i] + glm52_cpu_line(sizes[i]);
    if (base == NULL) return at[PARTS];

    job->entries = (struct entry *)(void *)(base + at[0]);
    job->chosen = (struct chosen *)(void *)(base + at[1]);
    job->starts = (uint32_t *)(void *)(base + at[2]);
    job->x_input = (struct glm52_linear_input){.x = job->x, .stride = args->x_stride, .q8 = base + at[3],
                                               .q8_stride = x_q8};
    job->up_input = job->x_input;
    if (is_apart) job->up_input.q8 += args->row_count * x_q8;
    job->h = (float *)(void *)(base + at[4]);
    job->h_input = (struct glm52_linear_input){.x = job->h, .stride = args->ff_count, .q8 = base + at[5],
                                               .q8_stride = h_q8};
    job->space = base + at[6];
    return at[PARTS];
}

/* Sorts the choices by expert (counting), leaving out experts that are not at hand. */
static void group_by_expert(struct job *job, const int32_t *ids, const float *weights) {
    const glm52_moe_args *args = job->args;
    const size_t choices = (size_t)args->row_count * args->used_count;
    uint32_t *starts = job->starts;
    memset(starts, 0, ((size_t)args->expert_count + 1) * sizeof(*starts));
    for (size_t i = 0; i < choices; i++) {
        if (job->experts[ids[i]].gate != NULL) starts[ids[i] + 1]++;
    }
    job->chosen_count = 0;
    for (uint32_t e = 0; e < args->expert_count; e++) {
        starts[e + 1] += starts[e];
        if (starts[e + 1] == starts[e]) continue;
        job->chosen[job->chosen_count++] = (struct chosen){e, starts[e], starts[e + 1]};
    }
    job->entry_count = starts[args->expert_count];
    for (size_t i = 0; i < choices; i++) {
        if (job->experts[ids[i]].gate == NULL) continue;
        job->entries[starts[ids[i]]++] = (struct entry){.row = (uint32_t)(i / args->used_count),
                                                        .weight = weights[i]};
    }
}

static void encode_x(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    if (job->gate.is_q8) glm52_linear_encode(&job->gate, &job->x_input, begin, end);
    if (job->up.is_q8 && (!job->gate.is_q8 || job->up_input.q8 != job->x_input.q8)) {
        glm52_linear_encode(&job->up, &job->up_input, begin, end);
    }
}

static void encode_h(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    glm52_linear_encode(&job->down, &job->h_input, begin, end);
}

/* Rows of activations that an expert's weights meet. A row that names an expert twice is still a single row, and
 * encoded as one. */
static size_t uses_of(const struct job *job, const struct chosen *chosen) {
    return job->args->row_count > 1 ? chosen->end - chosen->first : 1;
}

/* Rows of x of some entries from e on, end at most. */
static size_t rows_of_entries(const struct job *job, size_t e, size_t end, size_t *rows) {
    size_t count = 0;
    for (; count < GLM52_LINEAR_ROWS_MAX && e + count < end; count++) rows[count] = job->entries[e + count].row;
    return count;
}

/* An index is a row of gate and up: row index % ff_count of chosen expert index / ff_count. */
static void expand(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const size_t ff_count = job->args->ff_count;
    const size_t gate_rows = glm52_linear_tile_rows(&job->gate), up_rows = glm52_linear_tile_rows(&job->up);
    const size_t tile_rows = gate_rows < up_rows ? gate_rows : up_rows;
    uint8_t *space = job->space + thread * job->space_bytes;
    for (size_t i = begin; i < end;) {
        const struct chosen *chosen = &job->chosen[i / ff_count];
        const glm52_expert *expert = &job->experts[chosen->expert];
        const size_t f = i % ff_count;
        size_t count = end - i < ff_count - f ? end - i : ff_count - f;
        if (count > tile_rows) count = tile_rows;
        const size_t uses = uses_of(job, chosen);
        const struct glm52_linear_tile gate = glm52_linear_load(
            &job->gate, (const uint8_t *)expert->gate + f * job->gate.row_bytes, count, uses, space);
        const struct glm52_linear_tile up = glm52_linear_load(
            &job->up, (const uint8_t *)expert->up + f * job->up.row_bytes, count, uses, space + job->gate_space);
        for (size_t e = chosen->first; e < chosen->end; e += GLM52_LINEAR_ROWS_MAX) {
            float g[GLM52_LINEAR_ROWS_MAX * GLM52_LINEAR_TILE_MAX], u[GLM52_LINEAR_ROWS_MAX * GLM52_LINEAR_TILE_MAX];
            size_t rows[GLM52_LINEAR_ROWS_MAX];
            const size_t row_count = rows_of_entries(job, e, chosen->end, rows);
            glm52_linear_multiply(&job->gate, &gate, &job->x_input, rows, row_count, g);
            glm52_linear_multiply(&job->up, &up, &job->up_input, rows, row_count, u);
            for (size_t r = 0; r < row_count; r++) {
                const size_t at = r * GLM52_LINEAR_TILE_MAX;
                glm52_row_swiglu(job->h + (e + r) * ff_count + f, g + at, u + at, count);
            }
        }
        i += count;
    }
}

/* Adds to out, from column c on, what some entries from e on, end at most, get from a tile of down. */
static void add_products(const struct job *job, const struct glm52_linear_tile *tile, size_t e, size_t end, size_t c) {
    float y[GLM52_LINEAR_ROWS_MAX * GLM52_LINEAR_TILE_MAX];
    size_t entries[GLM52_LINEAR_ROWS_MAX], count = 0;
    for (; count < GLM52_LINEAR_ROWS_MAX && e + count < end; count++) entries[count] = e + count;
    glm52_linear_multiply(&job->down, tile, &job->h_input, entries, count, y);
    for (size_t k = 0; k < count; k++) {
        const struct entry *entry = &job->entries[e + k];
        float *out = job->out + (size_t)entry->row * job->args->out_stride + c;
        for (size_t t = 0; t < tile->count; t++) out[t] += entry->weight * y[k * GLM52_LINEAR_TILE_MAX + t];
    }
}

/* An index is a column of out, which is a row of every down. */
static void contract(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const size_t tile_rows = glm52_linear_tile_rows(&job->down);
    uint8_t *space = job->space + thread * job->space_bytes;
    for (size_t i = 0; i < job->chosen_count; i++) {
        const struct chosen *chosen = &job->chosen[i];
        const uint8_t *weights = job->experts[chosen->expert].down;
        for (size_t c = begin; c < end; c += tile_rows) {
            const size_t count = end - c < tile_rows ? end - c : tile_rows;
            const struct glm52_linear_tile tile =
                glm52_linear_load(&job->down, weights + c * job->down.row_bytes, count, uses_of(job, chosen),
                                  space);
            for (size_t e = chosen->first; e < chosen->end; e += GLM52_LINEAR_ROWS_MAX) {
                add_products(job, &tile, e, chosen->end, c);
            }
        }
    }
}

/* Grain for count rows of weights, each against rows activations of size values: whole tiles. */
static size_t row_grain(const struct glm52_pool *pool, size_t count, size_t rows, size_t size) {
    const size_t grain = glm52_pool_grain(pool, count, rows * size);
    return (grain + GLM52_LINEAR_TILE_MAX - 1) / GLM52_LINEAR_TILE_MAX * GLM52_LINEAR_TILE_MAX;
}

size_t glm52_cpu_moe_scratch(const glm52_backend *backend, const glm52_moe_args *args) {
    struct job job = {0};
    return lay_out(&job, args, glm52_pool_threads(glm52_cpu_pool(backend)), NULL);
}

void glm52_cpu_moe(glm52_backend *backend, const glm52_moe_args *args, float *out, const float *x,
                   const int32_t *ids, const float *weights, const glm52_expert *experts) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {.out = out, .x = x, .experts = experts};
    lay_out(&job, args, glm52_pool_threads(pool), glm52_cpu_of(backend)->scratch);
    group_by_expert(&job, ids, weights);
    if (job.chosen_count == 0) return;

    if (job.gate.is_q8 || job.up.is_q8) {
        const size_t grain = glm52_pool_grain(pool, args->row_count, args->in_count);
        glm52_pool_run(pool, args->row_count, grain, encode_x, &job);
    }
    /* Rows of activations that a row of weights meets, on average. */
    const size_t rows = (job.entry_count + job.chosen_count - 1) / job.chosen_count;
    const size_t hidden_rows = job.chosen_count * args->ff_count;
    glm52_pool_run(pool, hidden_rows, row_grain(pool, hidden_rows, 2 * rows, args->in_count), expand, &job);
    if (job.down.is_q8) {
        const size_t grain = glm52_pool_grain(pool, job.entry_count, args->ff_count);
        glm52_pool_run(pool, job.entry_count, grain, encode_h, &job);
    }
    const size_t columns = args->in_count;
    glm52_pool_run(pool, columns, row_grain(pool, columns, job.entry_count, args->ff_count), contract, &job);
}
