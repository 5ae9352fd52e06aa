/* attention.c - indexed attention over the compressed cache, on a GPU: kernels/attention.metal. */
#include "gpu.h"
#include "kernels/args.h"
#include "typed.h"

/* As in kernels/attention.metal. */
#define HEADS 8
#define SPLIT 64
#define THREADS 128
#define VALUES 512

/* Threadgroups from which on a device is busy without splits of its own. */
#define GROUPS_BUSY 512

static uint32_t splits_of(const glm52_attention_args *args) {
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    return glm52_gpu_ceil(visible < args->k ? visible : args->k, SPLIT);
}

static uint32_t groups_of_row(const glm52_attention_args *args) {
    return glm52_gpu_ceil(args->head_count, HEADS) * glm52_gpu_ceil(args->latent, VALUES);
}

/* 1: threadgroups go through all splits of a query. */
static uint32_t split_groups_of(const glm52_attention_args *args) {
    return (uint64_t)groups_of_row(args) * args->row_count < GROUPS_BUSY ? splits_of(args) : 1;
}

/* Partial results of so many queries are kept at most. */
static uint32_t split_rows_max(const glm52_attention_args *args) {
    const uint32_t rows = (GROUPS_BUSY - 1) / groups_of_row(args);
    return rows == 0 ? 1 : rows < args->row_count ? rows : args->row_count;
}

static size_t values_of_query(const glm52_attention_args *args) {
    return (size_t)glm52_gpu_ceil(args->k, SPLIT) * args->head_count;
}

/* [query][split][head] of 2 sums, then of latent values. */
size_t glm52_gpu_attention_scratch(const glm52_backend *backend, const glm52_attention_args *args) {
    (void)backend;
    return split_rows_max(args) * values_of_query(args) * (2 + (size_t)args->latent) * sizeof(float);
}

void glm52_gpu_attention(glm52_backend *backend, const glm52_attention_args *args, float *out, const float *q_latent,
                         const float *q_rope, const void *cache, const int32_t *selected) {
    struct glm52_gpu_backend *gpu = (struct glm52_gpu_backend *)backend;
    const glm52_attend_args numbers = {
        .row_count = args->row_count, .head_count = args->head_count, .latent = args->latent,
        .rope_size = args->rope_size, .position = args->position, .k = args->k,
        .selected_stride = args->selected_stride, .split_groups = split_groups_of(args),
        .q_latent_row_stride = args->q_latent_row_stride, .q_latent_head_stride = args->q_latent_head_stride,
        .q_rope_row_stride = args->q_rope_row_stride, .q_rope_head_stride = args->q_rope_head_stride,
        .out_row_stride = args->out_row_stride, .out_head_stride = args->out_head_stride, .scale = args->scale};
    float *sums = gpu->scratch;
    float *partial = sums + (size_t)args->row_count * numbers.split_groups * args->head_count * 2;
    if (numbers.split_groups == 1) partial = sums;
    struct glm52_gpu_dispatch dispatch = {
        .groups = {groups_of_row(args), numbers.split_groups, args->row_count}, .threads = {THREADS, 1, 1},
        .args_bytes = sizeof(numbers), .args = &numbers,
        .operand_count = 7, .operands = {out, q_latent, q_rope, cache, selected, partial, sums}};
    glm52_gpu_run(gpu, args->kv_type == GLM52_KV_F16 ? "attention_f16" : "attention_f32", &dispatch);
    if (numbers.split_groups == 1) return;

    dispatch.groups[0] = glm52_gpu_ceil(args->latent, THREADS);
    dispatch.groups[1] = args->head_count;
    dispatch.operand_count = 3;
    dispatch.operands[1] = partial;
    dispatch.operands[2] = sums;
    for (uint32_t i = 3; i < 7; i++) dispatch.operands[i] = NULL;
    glm52_gpu_run(gpu, "attention_fold", &dispatch);
}
