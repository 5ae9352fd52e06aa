/* top_k.c - the k positions of highest score, on a GPU: kernels/top_k.metal. */
#include "gpu.h"
#include "typed.h"

/* As in kernels/top_k.metal. */
#define THREADS 1024
#define THREADS_ALL 256

size_t glm52_gpu_top_k_scratch(const glm52_backend *backend, const glm52_top_k_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_top_k(glm52_backend *backend, const glm52_top_k_args *args, int32_t *selected, const float *scores) {
    struct glm52_gpu_backend *gpu = (struct glm52_gpu_backend *)backend;
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    struct glm52_gpu_dispatch dispatch = {
        .groups = {args->row_count, 1, 1}, .threads = {THREADS, 1, 1},
        .args_bytes = sizeof(*args), .args = args, .operand_count = 2, .operands = {selected, scores}};
    if (visible > args->k) {
        glm52_gpu_run(gpu, "top_k", &dispatch);
        return;
    }
    dispatch.groups[0] = glm52_gpu_ceil(visible, THREADS_ALL);
    dispatch.groups[1] = args->row_count;
    dispatch.threads[0] = THREADS_ALL;
    dispatch.operand_count = 1;
    glm52_gpu_run(gpu, "top_k_all", &dispatch);
}
