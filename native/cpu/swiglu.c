/* swiglu.c - the gate of a feed-forward network: silu(gate) * up. */
#include "cpu.h"

#define PIECE 1024

struct job {
    const glm52_swiglu_args *args;
    float *out;
    const float *gate;
    const float *up;
    size_t pieces;   /* of a row */
};

/* An index is a piece of a row. */
static void gate_pieces(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const glm52_swiglu_args *args = job->args;
    for (size_t i = begin; i < end; i++) {
        const size_t r = i / job->pieces, first = i % job->pieces * PIECE;
        const size_t count = args->row_size - first < PIECE ? args->row_size - first : PIECE;
        glm52_row_swiglu(job->out + r * args->out_stride + first, job->gate + r * args->gate_stride + first,
                         job->up + r * args->up_stride + first, count);
    }
}

size_t glm52_cpu_swiglu_scratch(const glm52_backend *backend, const glm52_swiglu_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_swiglu(glm52_backend *backend, const glm52_swiglu_args *args, float *out, const float *gate,
                      const float *up) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, out, gate, up, ((size_t)args->row_size + PIECE - 1) / PIECE};
    const size_t count = args->row_count * job.pieces;
    const size_t size = args->row_size < PIECE ? args->row_size : PIECE;
    glm52_pool_run(pool, count, glm52_pool_grain(pool, count, 8 * size), gate_pieces, &job);
}
