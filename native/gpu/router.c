/* router.c - which experts a row goes to, on a GPU: kernels/router.metal. */
#include "gpu.h"
#include "typed.h"

size_t glm52_gpu_router_scratch(const glm52_backend *backend, const glm52_router_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_router(glm52_backend *backend, const glm52_router_args *args, int32_t *ids, float *weights,
                      const float *logits, const float *bias) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {args->row_count, 1, 1}, .threads = {glm52_gpu_row_threads(args->expert_count), 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 4, .operands = {ids, weights, logits, bias}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend, "router", &dispatch);
}
