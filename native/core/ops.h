/* ops.h - what a backend is: one function per operation, and the memory it works in.
 *
 * Pointers are addresses of the backend: made by allocate, or inside memory of the host's that it adopted (a mapped
 * file, slots of streamed experts). core never dereferences one that allocate gave without read or write, so a backend
 * whose memory is not the host's can hand out its own. A table of glm52_expert is the host's own, and moe copies it.
 *
 * Operations are checked before they are called (ops_api.c for tests, the executor by construction), so they
 * return nothing. A device's fault is kept by the backend and reported by finish. */
#ifndef GLM52_OPS_H
#define GLM52_OPS_H

#include "glm52.h"

struct glm52_backend {
    const struct glm52_ops *ops;
};

typedef void glm52_embed_fn(glm52_backend *, const glm52_embed_args *, float *out, const void *table,
                            const int32_t *ids);
typedef void glm52_rms_norm_fn(glm52_backend *, const glm52_rms_norm_args *, float *out, const float *x,
                               const float *weight);
typedef void glm52_rope_fn(glm52_backend *, const glm52_rope_args *, float *x, const float *table);
typedef void glm52_matmul_fn(glm52_backend *, const glm52_matmul_args *, float *out, const float *x,
                             const void *weights);
typedef void glm52_kv_store_fn(glm52_backend *, const glm52_kv_store_args *, void *cache, const float *x,
                               const float *weight, const float *table);
typedef void glm52_index_store_fn(glm52_backend *, const glm52_index_store_args *, void *cache, const float *x,
                                  const float *weight, const float *bias, const float *table);
typedef void glm52_index_score_fn(glm52_backend *, const glm52_index_score_args *, float *scores,
                                  const float *q, const float *weights, const void *cache);
typedef void glm52_top_k_fn(glm52_backend *, const glm52_top_k_args *, int32_t *selected, const float *scores);
typedef void glm52_attention_fn(glm52_backend *, const glm52_attention_args *, float *out,
                                const float *q_latent, const float *q_rope, const void *cache,
                                const int32_t *selected);
typedef void glm52_router_fn(glm52_backend *, const glm52_router_args *, int32_t *ids, float *weights,
                             const float *logits, const float *bias);
typedef void glm52_swiglu_fn(glm52_backend *, const glm52_swiglu_args *, float *out, const float *gate,
                             const float *up);
typedef void glm52_moe_fn(glm52_backend *, const glm52_moe_args *, float *out, const float *x,
                          const int32_t *ids, const float *weights, const glm52_expert *experts);
typedef void glm52_add_fn(glm52_backend *, const glm52_add_args *, float *out, const float *a, const float *b,
                          const float *c);

/* Beside each operation, <name>_scratch: the bytes it needs of the backend's scratch for these numbers. Never
 * more for fewer rows, so a plan asks once with the largest batch. */
struct glm52_ops {
    const char *name;
    void (*close)(glm52_backend *);                          /* with all that it allocated and adopted */
    /* Told once, before anything else: the model's sizes, and the bytes of its longest operand in a file. */
    void (*expect)(glm52_backend *, const glm52_shape *, size_t operand_max);
    void *(*allocate)(glm52_backend *, size_t bytes);        /* 64-byte aligned and zeroed; NULL if refused */
    void (*release)(glm52_backend *, void *address);         /* accepts NULL */
    void (*read)(glm52_backend *, void *host, const void *address, size_t bytes);
    void (*write)(glm52_backend *, void *address, const void *host, size_t bytes);
    void (*clear)(glm52_backend *, void *address, size_t bytes); /* to zero */
    /* Memory of the host's that operands may lie in; struct glm52_gpu_driver says more. The processor's own backend
     * takes any. */
    glm52_status (*adopt)(glm52_backend *, const void *host, size_t bytes, bool will_change);
    void (*disown)(glm52_backend *, const void *host);
    void (*publish)(glm52_backend *, const void *host, size_t bytes); /* was written since */
    glm52_status (*reserve)(glm52_backend *, size_t bytes);  /* scratch of operations; only ever grows */
    glm52_status (*finish)(glm52_backend *);                 /* waits for all work; the first fault since */
#define GLM52_OP(op)      \
    glm52_##op##_fn *op;  \
    size_t (*op##_scratch)(const glm52_backend *, const glm52_##op##_args *);
#include "ops.def"
#undef GLM52_OP
};

/* Of the processor (native/cpu), and of the GPU driver called name (native/gpu). Errors: ARGUMENT for too many threads;
 * UNSUPPORTED if there is no such driver or no device for it; MEMORY. */
extern const struct glm52_ops glm52_cpu_ops;
glm52_status glm52_cpu_open(uint32_t threads, glm52_backend **backend_out);
glm52_status glm52_gpu_open(const char *name, glm52_backend **backend_out);

#endif
