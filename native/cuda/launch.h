/* launch.h - what stands between cuda.c and the kernels, which nvcc compiles as C++: for each kernel file a table of
 * launchers, written by tools/gpu/emit_cuda.py. */
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
    uint32_t operand_count;      /* one more than the highest index of a binding beside them */
    glm52_cuda_launcher *launch;
};

/* Of each kernel file a table, for all sizes and for GLM-5.2's; NULL behind the last. */
extern const struct glm52_cuda_kernel *const glm52_cuda_units_generic[];
extern const struct glm52_cuda_kernel *const glm52_cuda_units_glm[];

#ifdef __cplusplus
}
#endif

#endif
