/* args.h - structs of numbers that only kernels need, shared by C and Metal; those of the operations are in glm52_ops.h.
 *
 * Members are uint32_t, int32_t, uint64_t and float: their layout is the same in both. */
#ifndef GLM52_KERNELS_ARGS_H
#define GLM52_KERNELS_ARGS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* row_count rows, up to the kernel's, against group_count matrices of out_count rows of in_count values, row_bytes
 * each. A row is shared by parts (1, 2, 4 or 8) simdgroups. is_wide: rows of x begin on multiples of 16 bytes. */
typedef struct glm52_matvec_args {
    uint32_t row_count, in_count, out_count, row_bytes, parts, is_wide;
    uint32_t x_row_stride, x_group_stride, out_row_stride, out_group_stride;
} glm52_matvec_args;

#endif
