/* args.h - structs of numbers that only kernels need, shared by C and Metal; those of the operations are in
 * glm52_ops.h.
 *
 * Members are uint32_t, int32_t, uint64_t and float: their layout is the same in both. */
#ifndef GLM52_KERNELS_ARGS_H
#define GLM52_KERNELS_ARGS_H

#ifndef __METAL_VERSION__
#include <stdint.h>
#endif

/* row_count rows, up to the kernel's, against group_count matrices of out_count rows of in_count values, row_bytes
 * each. A row is shared by parts (1, 2, 4 or 8) simdgroups. is_wide: 1 if rows of x begin on multiples
 * of 16 bytes, and 2 if rows of weights do. */
typedef struct glm52_matvec_args {
    uint32_t row_count, in_count, out_count, row_bytes, parts, is_wide;
    uint32_t x_row_stride, x_group_stride, out_row_stride, out_group_stride;
} glm52_matvec_args;

/* struct glm52_attention_args, and split_groups: 1, or how many threadgroups share the selected rows of a query, one
 * for each of its splits. */
typedef struct glm52_attend_args {
    uint32_t row_count, head_count, latent, rope_size, position, k, selected_stride, split_groups;
    uint32_t q_latent_row_stride, q_latent_head_stride, q_rope_row_stride, q_rope_head_stride;
    uint32_t out_row_stride, out_head_stride;
    float scale;
} glm52_attend_args;

/* What moe_expand and moe_tile do: see there. */
#define MOE_BOTH 0
#define MOE_GATE 1
#define MOE_UP 2
#define MOE_DOWN 3
/* Experts that moe_group comes for. */
#define MOE_GROUP_EXPERTS 4096

/* One row of activations for each of a row's used_count choices, against matrices of out_count rows of in_count values;
 * the rest as in glm52_matvec_args. */
typedef struct glm52_moe_kernel_args {
    uint32_t used_count, in_count, out_count, row_bytes, parts, is_wide, x_stride, what;
} glm52_moe_kernel_args;

typedef struct glm52_moe_group_args {
    uint32_t pair_count, expert_count, tile_max;
} glm52_moe_group_args;

typedef struct glm52_moe_add_args {
    uint32_t used_count, size, out_stride;
} glm52_moe_add_args;

#endif
