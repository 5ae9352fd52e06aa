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
    const struct glm52_gpu_driver *driver;
    struct glm52_gpu_state *state;
    struct glm52_gpu_limits limits;
    struct glm52_gpu_constants constants; /* all 0 until a model's sizes are known */
    struct {
        const char *kernel;
        struct glm52_gpu_constants constants;
        struct glm52_gpu_pipeline *pipeline;
    } pipelines[GLM52_GPU_PIPELINES_MAX];
    uint32_t pipeline_count;
    void *scratch;                       /* of operations */
    size_t scratch_bytes;
    uint32_t encoded;                    /* dispatches since the last flush */
    glm52_status fault;                  /* the first since the last finish; its message in fault_message */
    char fault_message[512];
};

/* Encodes a kernel over groups of threads. args at [[buffer(0)]], operands from [[buffer(1)]] on. */
void glm52_gpu_run(struct glm52_gpu_backend *backend, const char *kernel, const struct glm52_gpu_dispatch *dispatch);

#define GLM52_OP(op)                \
    glm52_##op##_fn glm52_gpu_##op; \
    size_t glm52_gpu_##op##_scratch(const glm52_backend *, const glm52_##op##_args *);
#include "ops.def"
#undef GLM52_OP

#endif
