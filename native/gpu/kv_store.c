/* kv_store.c - a row of the compact cache, on a GPU: kernels/kv_store.metal. */
#include "gpu.h"
#include "typed.h"

size_t glm52_gpu_kv_store_scratch(const glm52_backend *backend, const glm52_kv_store_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_kv_store(glm52_backend *backend, const glm52_kv_store_args *args, void *cache, const float *x,
                        const float *weight, const float *table) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {args->row_count, 1, 1}, .threads = {glm52_gpu_row_threads(args->latent), 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 4, .operands = {cache, x, weight, table}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend,
                  args->kv_type == GLM52_KV_F32 ? "kv_store_f32" : "kv_store_f16", &dispatch);
}
