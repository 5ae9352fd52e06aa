/* rope.c - rotary position embedding, in place. A pair is two neighbours of a head, not one of each half. */
#include "cpu.h"

struct job {
    const glm52_rope_args *args;
    float *x;
    const float *table;
};

/* An index is a head of a row. */
static void rotate_heads(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const glm52_rope_args *args = job->args;
    for (size_t i = begin; i < end; i++) {
        const size_t r = i / args->head_count, h = i % args->head_count;
        float *x = job->x + r * args->row_stride + h * args->head_stride;
        glm52_row_rotate(x, x, job->table + r * args->rope_size, args->rope_size);
    }
}

size_t glm52_cpu_rope_scratch(const glm52_backend *backend, const glm52_rope_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_rope(glm52_backend *backend, const glm52_rope_args *args, float *x, const float *table) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, x, table};
    const size_t heads = (size_t)args->row_count * args->head_count;
    glm52_pool_run(pool, heads, glm52_pool_grain(pool, heads, args->rope_size), rotate_heads, &job);
}
