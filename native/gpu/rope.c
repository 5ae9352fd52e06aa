/* rope.c - rotary position embedding, in place, on a GPU: kernels/rope.metal. */
#include "gpu.h"
#include "typed.h"

#define THREADS 256u

size_t glm52_gpu_rope_scratch(const glm52_backend *backend, const glm52_rope_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_rope(glm52_backend *backend, const glm52_rope_args *args, float *x, const float *table) {
    const uint64_t pairs = (uint64_t)args->head_count * (args->rope_size / 2);
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(pairs, THREADS), args->row_count, 1}, .threads = {THREADS, 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 2, .operands = {x, table}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend, "rope", &dispatch);
}
