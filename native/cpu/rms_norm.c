/* rms_norm.c - each row divided by its root mean square, times a weight per column. */
#include "cpu.h"

struct job {
    const glm52_rms_norm_args *args;
    float *out;
    const float *x;
    const float *weight;
};

static void norm_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const glm52_rms_norm_args *args = job->args;
    for (size_t r = begin; r < end; r++) {
        glm52_row_rms_norm(job->out + r * args->out_stride, job->x + r * args->x_stride, job->weight,
                           args->row_size, args->epsilon);
    }
}

size_t glm52_cpu_rms_norm_scratch(const glm52_backend *backend, const glm52_rms_norm_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_rms_norm(glm52_backend *backend, const glm52_rms_norm_args *args, float *out, const float *x,
                        const float *weight) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, out, x, weight};
    const size_t grain = glm52_pool_grain(pool, args->row_count, args->row_size);
    glm52_pool_run(pool, args->row_count, grain, norm_rows, &job);
}
