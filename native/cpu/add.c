/* add.c - sums of two or three arrays, (a + b) + c: the residual stream. */
#include "cpu.h"

#define PIECE 4096

struct job {
    uint64_t count;
    float *out;
    const float *a;
    const float *b;
    const float *c;
};

/* An index is a piece of the arrays. */
static void add_pieces(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const size_t first = begin * PIECE;
    const size_t last = job->count < end * PIECE ? (size_t)job->count : end * PIECE;
    if (job->c == NULL) {
        for (size_t i = first; i < last; i++) job->out[i] = job->a[i] + job->b[i];
        return;
    }
    for (size_t i = first; i < last; i++) job->out[i] = (job->a[i] + job->b[i]) + job->c[i];
}

size_t glm52_cpu_add_scratch(const glm52_backend *backend, const glm52_add_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_add(glm52_backend *backend, const glm52_add_args *args, float *out, const float *a,
                   const float *b, const float *c) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args->count, out, a, b, c};
    const size_t pieces = (size_t)(args->count + PIECE - 1) / PIECE;
    glm52_pool_run(pool, pieces, glm52_pool_grain(pool, pieces, PIECE), add_pieces, &job);
}
