/* cpu.h - what the CPU operations share: the thread pool, the scratch, and work on single rows. */
#ifndef GLM52_CPU_H
#define GLM52_CPU_H

#include "ops.h"
#include "quant.h"

struct glm52_pool;

struct glm52_cpu {
    struct glm52_backend base;   /* first: a glm52_backend of this kind is a glm52_cpu */
    struct glm52_pool *pool;
    uint8_t *scratch;            /* 64-byte aligned; what an operation leaves there is gone with the next */
    size_t scratch_bytes;
};

/* ---- pool.c ----
 * glm52_pool_run(pool, count, grain, work, context) equals
 *     for (begin = 0; begin < count; begin += grain) work(context, begin, min(begin + grain, count), thread);
 * in any order and on any thread (0 .. glm52_pool_threads - 1, no two calls at once with one number). work
 * must give the same bits however the range is cut: it may not carry a sum from one index to the next.
 * Returns when all is done. The caller works too. work may not run the pool again. */
#define GLM52_POOL_THREADS_MAX 512
typedef void glm52_work(void *context, size_t begin, size_t end, uint32_t thread);
/* threads 0: one per processor that this process may use, GLM52_POOL_THREADS_MAX at most. Errors: ARGUMENT if
 * threads is above that; MEMORY. */
glm52_status glm52_pool_open(uint32_t threads, struct glm52_pool **pool_out);
void glm52_pool_close(struct glm52_pool *pool);
uint32_t glm52_pool_threads(const struct glm52_pool *pool);
void glm52_pool_run(struct glm52_pool *pool, size_t count, size_t grain, glm52_work *work, void *context);

/* The grain for count indices that cost about cost multiplications each: pieces large enough to be worth
 * handing out (so that a small operation stays on its thread), small enough to even out threads of
 * different speed. */
size_t glm52_pool_grain(const struct glm52_pool *pool, size_t count, size_t cost);

#define GLM52_OP(op)                  \
    glm52_##op##_fn glm52_cpu_##op;   \
    size_t glm52_cpu_##op##_scratch(const glm52_backend *, const glm52_##op##_args *);
#include "ops.def"
#undef GLM52_OP

static inline struct glm52_cpu *glm52_cpu_of(glm52_backend *backend) {
    return (struct glm52_cpu *)backend;
}

static inline struct glm52_pool *glm52_cpu_pool(const glm52_backend *backend) {
    return ((const struct glm52_cpu *)backend)->pool;
}

/* Places in the scratch are a multiple of this, so that no two threads write to one cache line. */
#define GLM52_CPU_LINE 64
static inline size_t glm52_cpu_line(size_t bytes) {
    return (bytes + GLM52_CPU_LINE - 1) / GLM52_CPU_LINE * GLM52_CPU_LINE;
}

/* ---- row.c: one row at a time ---- */

/* out[i] = x[i] * weight[i] / sqrt(mean(x^2) + epsilon); in double until the last rounding. The sum of
 * squares is 8 partial sums s[j] over i = j, j + 8, ..., then s[j] += s[j + 4]; += s[j + 2]; s[0] + s[1]. */
void glm52_row_rms_norm(float *out, const float *x, const float *weight, size_t count, float epsilon);
/* out[i] = (x[i] - mean) / sqrt(variance + epsilon) * weight[i] + bias[i]; both sums as above, in double. */
void glm52_row_layer_norm(float *out, const float *x, const float *weight, const float *bias, size_t count,
                          float epsilon);
/* Rotates the pairs of x [count] by cos, sin, cos, sin, ... of table [count]. out may be x. */
void glm52_row_rotate(float *out, const float *x, const float *table, size_t count);
/* out[i] = silu(gate[i]) * up[i]. out may be gate or up. */
void glm52_row_swiglu(float *out, const float *gate, const float *up, size_t count);
/* x[i] = exp(x[i] - max), where max is the largest of x; returns the sum of them, in the order above. */
double glm52_row_exp(float *x, size_t count, float max);

/* Writes values [row_size] to row index of a cache whose rows hold row_size values of kv_type. */
void glm52_cache_store(void *cache, uint32_t kv_type, size_t row_size, size_t index, const float *values);
/* The values of row index: where they lie if they are float32, else widened into space [row_size]. */
const float *glm52_cache_row(const void *cache, uint32_t kv_type, size_t row_size, size_t index,
                             float *space);

/* ---- linear.c: rows of weights against rows of activations, for matmul and moe ---- */

/* A type of weights met with a mode. */
struct glm52_linear {
    const struct glm52_quant *quant;
    size_t in_count;
    size_t row_bytes;   /* of a row of weights */
    bool is_q8;         /* blocks against 8-bit activations, else float32 against float32 */
};
struct glm52_linear glm52_linear_of(uint32_t type, size_t in_count, bool exact);

/* Rows of activations: as float32, and encoded if they are for a linear with is_q8. */
struct glm52_linear_input {
    const float *x;        /* row i at x + i * stride */
    size_t stride;
    uint8_t *q8;           /* row i at q8 + i * q8_stride */
    size_t q8_stride;      /* bytes */
};

/* Rows of weights that are taken together, so that a row of activations is read once for all of them. */
#define GLM52_LINEAR_TILE_MAX 8
struct glm52_linear_tile {
    const uint8_t *rows[GLM52_LINEAR_TILE_MAX];   /* blocks as they lie if is_q8, else float32; or */
    const uint8_t *panels;                        /* all of them as panels of quant.h, NULL if not */
    size_t count;
};
/* Rows of activations that are taken together. */
#define GLM52_LINEAR_ROWS_MAX 4
/* Rows a tile should have: few enough to stay in a core's cache beside the rows of activations. */
size_t glm52_linear_tile_rows(const struct glm52_linear *linear);
/* Bytes of space that one thread needs for glm52_linear_load. */
size_t glm52_linear_space(const struct glm52_linear *linear);
/* A tile of count rows of weights for uses rows of activations: in place, or unpacked into space. */
struct glm52_linear_tile glm52_linear_load(const struct glm52_linear *linear, const uint8_t *weights,
                                           size_t count, size_t uses, uint8_t *space);
/* y[r * GLM52_LINEAR_TILE_MAX + i] = weights row i . input row rows[r], i < tile->count, r < row_count, at most
 * GLM52_LINEAR_ROWS_MAX. The bits of a product do not depend on what else is asked. */
void glm52_linear_multiply(const struct glm52_linear *linear, const struct glm52_linear_tile *tile,
                           const struct glm52_linear_input *input, const size_t *rows, size_t row_count, float *y);
/* Encodes input->x rows row_begin .. row_end - 1 into input->q8, for linears that take the same input. */
void glm52_linear_encode(const struct glm52_linear *linear, const struct glm52_linear_input *input,
                         size_t row_begin, size_t row_end);
/* Whether both multiply what one encoding gives: formats have orders of their own. */
bool glm52_linear_same_input(const struct glm52_linear *a, const struct glm52_linear *b);
/* How many rows of activations stay in a core's second cache while tiles pass by; a multiple of
 * GLM52_LINEAR_ROWS_MAX. */
size_t glm52_linear_block_rows(const struct glm52_linear *linear);

#endif
