/* launch.h - what stands between cuda.c and the kernels, which nvcc compiles as C++: a table of launchers, one for each
 * kernel, written by tools/gpu/emit_cuda.py. */
#ifndef GLM52_CUDA_LAUNCH_H
#define GLM52_CUDA_LAUNCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Operands at [[buffer(0)]] (the numbers; on the host, copied by the launch) and from [[buffer(1)]] on. */
#define GLM52_CUDA_OPERANDS 13

struct glm52_cuda_launch {
    uint32_t groups[3], threads[3];
    uint32_t threadgroup_bytes;
    const void *operands[GLM52_CUDA_OPERANDS];
};

/* stream is a cudaStream_t. Returns a cudaError_t. */
typedef int glm52_cuda_launcher(const struct glm52_cuda_launch *launch, void *stream);

struct glm52_cuda_kernel {
    const char *name;            /* NULL behind the last */
    uint32_t args_bytes;         /* of the numbers it takes */
    uint32_t operand_count;      /* beside them */
    glm52_cuda_launcher *launch;
};

/* Of any sizes, and of GLM-5.2's. */
extern const struct glm52_cuda_kernel glm52_cuda_kernels_any[];
extern const struct glm52_cuda_kernel glm52_cuda_kernels_glm[];

#ifdef __cplusplus
}
#endif

#endif
