/* add.c - sums of two or three arrays, on a GPU: kernels/add.metal. */
#include "gpu.h"
#include "typed.h"

#define THREADS 256u
/* A kernel counts in 32 bits. */
#define PIECE ((uint64_t)1 << 30)

size_t glm52_gpu_add_scratch(const glm52_backend *backend, const glm52_add_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_add(glm52_backend *backend, const glm52_add_args *args, float *out, const float *a,
                   const float *b, const float *c) {
    glm52_add_args piece = *args;
    for (uint64_t first = 0; first < args->count; first += PIECE) {
        piece.count = args->count - first < PIECE ? args->count - first : PIECE;
        const struct glm52_gpu_dispatch dispatch = {
            .groups = {glm52_gpu_ceil(piece.count, THREADS), 1, 1}, .threads = {THREADS, 1, 1},
            .args_bytes = sizeof(piece), .args = &piece,
            .operand_count = c == NULL ? 3 : 4,
            .operands = {out + first, a + first, b + first, c == NULL ? NULL : c + first}};
        glm52_gpu_run((struct glm52_gpu_backend *)backend, c == NULL ? "add2" : "add3", &dispatch);
    }
}
