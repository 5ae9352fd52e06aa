/* index_score.c - how much each query of the indexer wants each position, on a GPU: kernels/index_score.metal. */
#include "gpu.h"
#include "typed.h"

/* As in kernels/index_score.metal. */
#define POSITIONS 32
#define SIMDGROUPS 8
#define OWN_SIZE 128
#define OWN_THREADS 128

size_t glm52_gpu_index_score_scratch(const glm52_backend *backend, const glm52_index_score_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_index_score(glm52_backend *backend, const glm52_index_score_args *args, float *scores, const float *q,
                           const float *weights, const void *cache) {
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    const bool is_own = args->key_size == OWN_SIZE, is_f16 = args->kv_type == GLM52_KV_F16;
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(visible, is_own ? OWN_THREADS : POSITIONS), args->row_count, 1},
        .threads = {is_own ? OWN_THREADS : SIMDGROUPS * GLM52_GPU_SIMD_WIDTH, 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 4, .operands = {scores, q, weights, cache}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend,
                  is_own ? is_f16 ? "index_score_own_f16" : "index_score_own_f32"
                         : is_f16 ? "index_score_f16" : "index_score_f32", &dispatch);
}
