/* moe.c - the routed experts, on a GPU: kernels/moe.metal. */
#include "gpu.h"
#include "kernels/args.h"
#include "typed.h"

/* As in kernels/dot_rows.h. */
#define TILE 4
#define SIMDGROUPS 8
#define ADD_THREADS 256

/* As in kernels/tile.h. */
#define TILE_ROWS 64
#define TILE_COLUMNS 128
/* Up to here rows have the order of sums of decoding. */
#define PAIR_ROWS_MAX 8

/* Rows that are taken at once: their products wait in scratch to be added up in order. */
#define ROWS_MAX 512

struct job {
    struct glm52_gpu_backend *gpu;
    const glm52_moe_args *args;
    const void *table;
    const void *const *uses;
    uint32_t use_count;
    bool is_aligned;     /* the experts, to 16 bytes */
    float *h;            /* [rows, used_count, ff_count] */
    float *y;            /* [rows, used_count, in_count] */
    uint32_t *pairs;     /* [rows, used_count] */
    void *tiles;         /* [tiles_max] of 4 words */
};

static size_t pairs_max(const glm52_moe_args *args) {
    return (size_t)(args->row_count < ROWS_MAX ? args->row_count : ROWS_MAX) * args->used_count;
}

/* An expert's last tile need not be full. */
static uint32_t tiles_max(const glm52_moe_args *args, size_t pairs) {
    const size_t experts = pairs < args->expert_count ? pairs : args->expert_count;
    return (uint32_t)(pairs / TILE_ROWS + experts);
}

/* Hands out the scratch from base on; each part begins on a multiple of 256 bytes. */
static size_t lay_out(const glm52_moe_args *args, struct job *job, uint8_t *base) {
    const size_t pairs = pairs_max(args);
    const size_t sizes[] = {pairs * args->ff_count * sizeof(float), pairs * args->in_count * sizeof(float),
                            pairs * sizeof(uint32_t), tiles_max(args, pairs) * 4 * sizeof(uint32_t)};
    size_t at[5] = {0};
    for (int i = 0; i < 4; i++) at[i + 1] = at[i] + (sizes[i] + 255) / 256 * 256;
    if (job != NULL) {
        job->h = (float *)(void *)(base + at[0]);
        job->y = (float *)(void *)(base + at[1]);
        job->pairs = (uint32_t *)(void *)(base + at[2]);
        job->tiles = base + at[3];
    }
    return at[4];
}

size_t glm52_gpu_moe_scratch(const glm52_backend *backend, const glm52_moe_args *args) {
    (void)backend;
    return lay_out(args, NULL, NULL);
}

/* A kernel over the pairs of rows rows, against matrices of out_count rows of in_count values. */
static void run_pairs(const struct job *job, const char *kernel, uint32_t type, uint32_t rows, uint32_t in_count,
                      uint32_t out_count, uint32_t x_stride, uint32_t what, const void *const operands[5]) {
    const uint32_t used = job->args->used_count;
    const size_t row_bytes = glm52_gpu_row_bytes(type, in_count);
    const glm52_moe_kernel_args numbers = {
        .used_count = used, .in_count = in_count, .out_count = out_count,
        .row_bytes = (uint32_t)row_bytes,
        .parts = glm52_gpu_matvec_parts(type, (uint64_t)used * out_count, in_count),
        .is_wide = glm52_gpu_wide(glm52_gpu_is_wide(operands[1], x_stride, 0), job->is_aligned && row_bytes % 16 == 0),
        .x_stride = x_stride, .what = what};
    struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(out_count, TILE * SIMDGROUPS / numbers.parts), rows * used, 1},
        .threads = {SIMDGROUPS * GLM52_GPU_SIMD_WIDTH, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = operands[4] != NULL ? 5 : 4,
        .use_count = job->use_count, .uses = job->uses};
    for (uint32_t i = 0; i < dispatch.operand_count; i++) dispatch.operands[i] = operands[i];
    glm52_gpu_run(job->gpu, glm52_gpu_typed(kernel, type, 0).text, &dispatch);
}

/* h and y of a few rows, pair by pair. */
static void multiply_pairs(const struct job *job, uint32_t rows, const float *x, const int32_t *ids,
                           const float *weights) {
    const glm52_moe_args *args = job->args;
    const void *const expand[5] = {job->h, x, ids, job->table, NULL};
    if (args->gate_type == args->up_type) {
        run_pairs(job, "moe_expand", args->gate_type, rows, args->in_count, args->ff_count, args->x_stride, MOE_BOTH,
                  expand);
    } else {
        run_pairs(job, "moe_expand", args->gate_type, rows, args->in_count, args->ff_count, args->x_stride, MOE_GATE,
                  expand);
        run_pairs(job, "moe_expand", args->up_type, rows, args->in_count, args->ff_count, args->x_stride, MOE_UP,
                  expand);
    }
    const void *const contract[5] = {job->y, job->h, ids, job->table, weights};
    run_pairs(job, "moe_contract", args->down_type, rows, args->ff_count, args->in_count, args->ff_count, MOE_BOTH,
              contract);
}

/* One of the three products, for all tiles of pairs. */
static void run_tiles(const struct job *job, uint32_t tiles, uint32_t what, uint32_t type, float *to, const float *x,
                      const float *weights) {
    const glm52_moe_args *args = job->args;
    const bool is_down = what == MOE_DOWN;
    const uint32_t in_count = is_down ? args->ff_count : args->in_count;
    const uint32_t x_stride = is_down ? args->ff_count : args->x_stride;
    const glm52_moe_kernel_args numbers = {
        .used_count = args->used_count, .in_count = in_count, .out_count = is_down ? args->in_count : args->ff_count,
        .row_bytes = (uint32_t)glm52_gpu_row_bytes(type, in_count), .parts = 1,
        .is_wide = glm52_gpu_wide(glm52_gpu_is_wide(x, x_stride, 0), false), .x_stride = x_stride, .what = what};
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(numbers.out_count, TILE_COLUMNS), tiles, 1},
        .threads = {SIMDGROUPS * GLM52_GPU_SIMD_WIDTH, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = 6, .operands = {to, x, job->pairs, job->tiles, job->table, weights},
        .use_count = job->use_count, .uses = job->uses};
    glm52_gpu_run(job->gpu, glm52_gpu_typed("moe_tile", type, 0).text, &dispatch);
}

/* h and y of many rows, expert by expert. */
static void multiply_tiles(const struct job *job, uint32_t rows, const float *x, const int32_t *ids,
                           const float *weights) {
    const glm52_moe_args *args = job->args;
    const uint32_t pairs = rows * args->used_count, tiles = tiles_max(args, pairs);
    const glm52_moe_group_args numbers = {.pair_count = pairs, .expert_count = args->expert_count, .tile_max = tiles};
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {1, 1, 1}, .threads = {SIMDGROUPS * GLM52_GPU_SIMD_WIDTH, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = 4, .operands = {job->pairs, job->tiles, ids, job->table}};
    glm52_gpu_run(job->gpu, "moe_group", &dispatch);
    run_tiles(job, tiles, MOE_GATE, args->gate_type, job->h, x, weights);
    run_tiles(job, tiles, MOE_UP, args->up_type, job->h, x, weights);
    run_tiles(job, tiles, MOE_DOWN, args->down_type, job->y, job->h, weights);
}

static void run_rows(const struct job *job, uint32_t rows, float *out, const float *x, const int32_t *ids,
                     const float *weights) {
    const glm52_moe_args *args = job->args;
    /* x_stride 0: the choices of one token, which is decoding. */
    if (args->row_count > PAIR_ROWS_MAX && args->x_stride != 0 && args->expert_count <= MOE_GROUP_EXPERTS) {
        multiply_tiles(job, rows, x, ids, weights);
    } else {
        multiply_pairs(job, rows, x, ids, weights);
    }
    const glm52_moe_add_args numbers = {.used_count = args->used_count, .size = args->in_count,
                                        .out_stride = args->out_stride};
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(args->in_count, ADD_THREADS), rows, 1}, .threads = {ADD_THREADS, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = 4, .operands = {out, job->y, ids, job->table}};
    glm52_gpu_run(job->gpu, "moe_add", &dispatch);
}

void glm52_gpu_moe(glm52_backend *backend, const glm52_moe_args *args, float *out, const float *x, const int32_t *ids,
                   const float *weights, const glm52_expert *experts) {
    struct job job = {.gpu = (struct glm52_gpu_backend *)backend, .args = args};
    job.table = glm52_gpu_expert_table(job.gpu, experts, args->expert_count, &job.uses, &job.use_count,
                                       &job.is_aligned);
    if (job.table == NULL) return;
    (void)lay_out(args, &job, job.gpu->scratch);
    for (uint32_t first = 0; first < args->row_count; first += ROWS_MAX) {
        const uint32_t left = args->row_count - first;
        const size_t pair = (size_t)first * args->used_count;
        run_rows(&job, left < ROWS_MAX ? left : ROWS_MAX, out + (size_t)first * args->out_stride,
                 x + (size_t)first * args->x_stride, ids + pair, weights + pair);
    }
}
