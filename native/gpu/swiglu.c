/* swiglu.c - the gate of a feed-forward network, on a GPU: kernels/swiglu.metal. */
#include "gpu.h"
#include "typed.h"

#define THREADS 256u

size_t glm52_gpu_swiglu_scratch(const glm52_backend *backend, const glm52_swiglu_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_swiglu(glm52_backend *backend, const glm52_swiglu_args *args, float *out, const float *gate,
                      const float *up) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(args->row_size, THREADS), args->row_count, 1}, .threads = {THREADS, 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 3, .operands = {out, gate, up}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend, "swiglu", &dispatch);
}
