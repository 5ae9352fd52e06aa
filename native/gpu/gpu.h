/* gpu.h - a backend whose operations are kernels: what the files of this folder share. One file per operation picks
 * its kernel, its grid and its scratch, and encodes it; backend.c has the rest of struct glm52_ops. */
#ifndef GLM52_GPU_H
#define GLM52_GPU_H

#include "driver.h"
#include "ops.h"

/* Kernels whose pipelines are made so far, by name; a hash would be no faster for a hundred. */
#define GLM52_GPU_PIPELINES_MAX 256

struct glm52_gpu_backend {
    glm52_backend base;                  /* first: a backend is one of these */
    struct glm52_ops table;              /* what base.ops points to */
    const struct glm52_gpu_driver *driver;
    struct glm52_gpu_state *state;
    struct glm52_gpu_limits limits;
    struct glm52_gpu_constants constants; /* all 0 until a model's sizes are known */
    struct {
        char kernel[64];
        struct glm52_gpu_constants constants;
        struct glm52_gpu_pipeline *pipeline;
    } pipelines[GLM52_GPU_PIPELINES_MAX];
    uint32_t pipeline_count;
    void *scratch;                       /* of operations */
    size_t scratch_bytes;
    struct glm52_gpu_tables *tables;     /* of experts' addresses, NULL before the first: expert_tables.c */
    uint32_t encoded;                    /* dispatches since the last flush */
    glm52_status fault;                  /* the first since the last finish; its message in fault_message */
    char fault_message[512];
};

/* Encodes a kernel over groups of threads: args at [[buffer(0)]], operands from [[buffer(1)]] on. Copies the name. */
void glm52_gpu_run(struct glm52_gpu_backend *backend, const char *kernel, const struct glm52_gpu_dispatch *dispatch);

/* Experts' addresses as kernels see them, [count] of struct glm52_expert in device memory, made of the host's table. It
 * is kept, and made again when the host's has changed. uses: all addresses in it, for a dispatch; is_aligned: they are
 * multiples of 16. NULL: a fault is kept. */
const void *glm52_gpu_expert_table(struct glm52_gpu_backend *backend, const glm52_expert *experts, uint32_t count,
                                   const void *const **uses_out, uint32_t *use_count_out, bool *is_aligned_out);
/* Memory was disowned or released: tables are made again before they are used. */
void glm52_gpu_expert_tables_forget(struct glm52_gpu_backend *backend);
void glm52_gpu_expert_tables_free(struct glm52_gpu_backend *backend);

#define GLM52_OP(op)                \
    glm52_##op##_fn glm52_gpu_##op; \
    size_t glm52_gpu_##op##_scratch(const glm52_backend *, const glm52_##op##_args *);
#include "ops.def"
#undef GLM52_OP

#endif
