/* matmul.c - a matrix, or one per group, times rows of activations.
 *
 * Rows of weights are taken a tile at a time against all rows of activations, as many of these at once as stay in a
 * core's cache. In the default mode activations are encoded to 8 bits first; in the exact mode weights are
 * decoded. */
#include <string.h>

#include "cpu.h"

struct job {
    const glm52_matmul_args *args;
    struct glm52_linear linear;
    float *out;
    const float *x;
    const uint8_t *weights;
    uint8_t *q8;         /* [row_count, group_count] encoded rows */
    size_t q8_bytes;     /* of one */
    uint8_t *space;      /* per thread, space_bytes */
    size_t space_bytes;
};

static struct glm52_linear_input group_input(const struct job *job, size_t group) {
    const glm52_matmul_args *args = job->args;
    return (struct glm52_linear_input){
        .x = job->x + group * args->x_group_stride,
        .stride = args->x_row_stride,
        .q8 = job->q8 + group * job->q8_bytes,
        .q8_stride = args->group_count * job->q8_bytes,
    };
}

/* An index is a group's row of activations. */
static void encode_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    for (size_t i = begin; i < end; i++) {
        const struct glm52_linear_input input = group_input(job, i % job->args->group_count);
        const size_t row = i / job->args->group_count;
        glm52_linear_encode(&job->linear, &input, row, row + 1);
    }
}

/* An index is a row of weights: row index % out_count of group index / out_count. Rows of activations: first
 * .. last - 1. */
static void multiply_block(const struct job *job, size_t begin, size_t end, size_t first, size_t last,
                           uint8_t *space) {
    const glm52_matmul_args *args = job->args;
    const size_t tile_rows = glm52_linear_tile_rows(&job->linear);
    for (size_t i = begin; i < end;) {
        const size_t group = i / args->out_count, column = i % args->out_count;
        size_t count = end - i < args->out_count - column ? end - i : args->out_count - column;
        if (count > tile_rows) count = tile_rows;
        const struct glm52_linear_tile tile = glm52_linear_load(
            &job->linear, job->weights + i * job->linear.row_bytes, count, args->row_count, space);
        const struct glm52_linear_input input = group_input(job, group);
        float *out = job->out + group * args->out_group_stride + column;
        for (size_t r = first; r < last; r += GLM52_LINEAR_ROWS_MAX) {
            size_t rows[GLM52_LINEAR_ROWS_MAX], row_count = 0;
            float y[GLM52_LINEAR_ROWS_MAX * GLM52_LINEAR_TILE_MAX];
            for (; row_count < GLM52_LINEAR_ROWS_MAX && r + row_count < last; row_count++) {
                rows[row_count] = r + row_count;
            }
            glm52_linear_multiply(&job->linear, &tile, &input, rows, row_count, y);
            for (size_t k = 0; k < row_count; k++) {
                memcpy(out + rows[k] * args->out_row_stride, y + k * GLM52_LINEAR_TILE_MAX, count * sizeof(float));
            }
        }
        i += count;
    }
}

static void multiply_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const size_t row_count = job->args->row_count, block_rows = glm52_linear_block_rows(&job->linear);
    for (size_t first = 0; first < row_count; first += block_rows) {
        const size_t last = row_count - first < block_rows ? row_count : first + block_rows;
        multiply_block(job, begin, end, first, last, job->space + thread * job->space_bytes);
    }
}

static size_t encoded_bytes(const glm52_matmul_args *args, const struct glm52_linear *linear) {
    if (!linear->is_q8) return 0;
    return (size_t)args->row_count * args->group_count * glm52_q8_bytes(args->in_count);
}

size_t glm52_cpu_matmul_scratch(const glm52_backend *backend, const glm52_matmul_args *args) {
    const struct glm52_linear linear = glm52_linear_of(args->type, args->in_count, args->exact != 0);
    return encoded_bytes(args, &linear) +
           glm52_pool_threads(glm52_cpu_pool(backend)) * glm52_linear_space(&linear);
}

void glm52_cpu_matmul(glm52_backend *backend, const glm52_matmul_args *args, float *out, const float *x,
                      const void *weights) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {.args = args, .out = out, .x = x, .weights = weights};
    job.linear = glm52_linear_of(args->type, args->in_count, args->exact != 0);
    job.q8 = glm52_cpu_of(backend)->scratch;
    job.q8_bytes = job.linear.is_q8 ? glm52_q8_bytes(args->in_count) : 0;
    job.space = job.q8 + encoded_bytes(args, &job.linear);
    job.space_bytes = glm52_linear_space(&job.linear);

    if (job.linear.is_q8) {
        const size_t inputs = (size_t)args->row_count * args->group_count;
        glm52_pool_run(pool, inputs, glm52_pool_grain(pool, inputs, args->in_count), encode_rows, &job);
    }
    const size_t rows = (size_t)args->group_count * args->out_count;
    const size_t tile_rows = glm52_linear_tile_rows(&job.linear);
    const size_t grain = glm52_pool_grain(pool, rows, (size_t)args->in_count * args->row_count);
    glm52_pool_run(pool, rows, (grain + tile_rows - 1) / tile_rows * tile_rows, multiply_rows, &job);
}
