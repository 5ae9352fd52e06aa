/* cpu.h - what the CPU operations share: the thread pool, the scratch, the cache's number type. */
#ifndef GLM52_CPU_H
#define GLM52_CPU_H

#include "ops.h"
#include "quant.h"

struct glm52_pool;

struct glm52_cpu {
    struct glm52_backend base;   /* first: a glm52_backend of this kind is a glm52_cpu */
    struct glm52_pool *pool;
    uint8_t *scratch;
    size_t scratch_bytes;
};

/* ---- pool.c ----
 * glm52_pool_run(pool, count, grain, work, context) equals
 *     for (begin = 0; begin < count; begin += grain) work(context, begin, min(begin + grain, count), thread);
 * in any order and on any thread (0 .. glm52_pool_threads - 1, no two calls at once with one number). work must
 * give the same bits however the range is cut: it may not carry a sum from one index to the next. Returns when
 * all is done. The caller works too. */
typedef void glm52_work(void *context, size_t begin, size_t end, uint32_t thread);
glm52_status glm52_pool_open(uint32_t threads, struct glm52_pool **pool_out);
void glm52_pool_close(struct glm52_pool *pool);
uint32_t glm52_pool_threads(const struct glm52_pool *pool);
void glm52_pool_run(struct glm52_pool *pool, size_t count, size_t grain, glm52_work *work, void *context);

#define GLM52_OP(op)                  \
    glm52_##op##_fn glm52_cpu_##op;   \
    size_t glm52_cpu_##op##_scratch(const glm52_backend *, const glm52_##op##_args *);
#include "ops.def"
#undef GLM52_OP

static inline struct glm52_cpu *glm52_cpu_of(glm52_backend *backend) {
    return (struct glm52_cpu *)backend;
}

/* Rows of the KV and index caches: float32 or float16. */
static inline size_t glm52_kv_bytes(uint32_t kv_type) {
    return kv_type == GLM52_KV_F32 ? 4 : 2;
}

#endif
