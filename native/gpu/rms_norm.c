/* rms_norm.c - each row divided by its root mean square, on a GPU: kernels/rms_norm.metal. */
#include "gpu.h"
#include "typed.h"

size_t glm52_gpu_rms_norm_scratch(const glm52_backend *backend, const glm52_rms_norm_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_rms_norm(glm52_backend *backend, const glm52_rms_norm_args *args, float *out, const float *x,
                        const float *weight) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {args->row_count, 1, 1}, .threads = {glm52_gpu_row_threads(args->row_size), 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 3, .operands = {out, x, weight}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend, "rms_norm", &dispatch);
}
