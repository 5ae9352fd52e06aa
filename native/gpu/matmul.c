/* matmul.c - a matrix, or one per group, times rows of activations, on a GPU: kernels/matmul.metal. */
#include "gpu.h"
#include "kernels/args.h"
#include "typed.h"

/* As in kernels/dot_rows.h. */
#define TILE 4
#define SIMDGROUPS 8
/* As in kernels/tile.h. */
#define TILE_ROWS 64
#define TILE_COLUMNS 128

/* Up to here rows have the order of sums of decoding. */
#define MATVEC_ROWS_MAX 8

static void run(struct glm52_gpu_backend *gpu, const glm52_matmul_args *args, bool is_tiled, float *out,
                const float *x, const void *weights) {
    const uint64_t outs = (uint64_t)args->group_count * args->out_count;
    const size_t row_bytes = glm52_gpu_row_bytes(args->type, args->in_count);
    const glm52_matvec_args numbers = {
        .row_count = args->row_count, .in_count = args->in_count, .out_count = args->out_count,
        .row_bytes = (uint32_t)row_bytes,
        .parts = glm52_gpu_matvec_parts(args->type, outs, args->in_count),
        .is_wide = glm52_gpu_wide(glm52_gpu_is_wide(x, args->x_row_stride, args->x_group_stride),
                                  (uintptr_t)weights % 16 == 0 && row_bytes % 16 == 0),
        .x_row_stride = args->x_row_stride, .x_group_stride = args->x_group_stride,
        .out_row_stride = args->out_row_stride, .out_group_stride = args->out_group_stride};
    struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(args->out_count, TILE * SIMDGROUPS / numbers.parts), args->group_count, 1},
        .threads = {SIMDGROUPS * GLM52_GPU_SIMD_WIDTH, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = 3, .operands = {out, x, weights}};
    if (!is_tiled) {
        const uint32_t rows = glm52_gpu_matvec_rows(args->row_count);
        glm52_gpu_run(gpu, glm52_gpu_typed("matvec", args->type, rows).text, &dispatch);
        return;
    }
    dispatch.groups[0] = glm52_gpu_ceil(args->out_count, TILE_COLUMNS);
    dispatch.groups[2] = glm52_gpu_ceil(args->row_count, TILE_ROWS);
    glm52_gpu_run(gpu, glm52_gpu_typed("matmul", args->type, 0).text, &dispatch);
}

size_t glm52_gpu_matmul_scratch(const glm52_backend *backend, const glm52_matmul_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_matmul(glm52_backend *backend, const glm52_matmul_args *args, float *out, const float *x,
                      const void *weights) {
    run((struct glm52_gpu_backend *)backend, args, args->row_count > MATVEC_ROWS_MAX, out, x, weights);
}
