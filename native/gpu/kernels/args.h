/* args.h - structs of numbers that only kernels need, shared by C and Metal; those of the operations are in glm52_ops.h.
 *
 * Members are uint32_t, int32_t, uint64_t and float: their layout is the same in both. */
#ifndef GLM52_KERNELS_ARGS_H
#define GLM52_KERNELS_ARGS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

#endif
