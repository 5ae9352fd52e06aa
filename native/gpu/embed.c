/* embed.c - rows of the embedding table, on a GPU: kernels/embed.metal. */
#include "gpu.h"
#include "typed.h"

#define THREADS 64u
/* Values that a thread decodes. */
#define VALUES 16u

size_t glm52_gpu_embed_scratch(const glm52_backend *backend, const glm52_embed_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_gpu_embed(glm52_backend *backend, const glm52_embed_args *args, float *out, const void *table,
                     const int32_t *ids) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {glm52_gpu_ceil(args->hidden, VALUES * THREADS), args->row_count, 1},
        .threads = {THREADS, 1, 1},
        .args_bytes = sizeof(*args), .args = args,
        .operand_count = 3, .operands = {out, table, ids}};
    glm52_gpu_run((struct glm52_gpu_backend *)backend, glm52_gpu_typed("embed", args->type, 0).text, &dispatch);
}
