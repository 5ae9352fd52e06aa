/* dot_rows.h - rows of weights times up to 8 rows of activations: what matmul and moe have in common for decoding.
 *
 * A row's sum: its 512s are dealt to the parts, one simdgroup each, in turn. A lane adds its values' products to one sum,
 * in the order of its groups and of the values in them, 512 after 512, each by a fused multiply-add; the sums of the
 * lanes are added by simd_sum; those of the parts in ascending order. None of it depends on how many rows of activations
 * there are, so a row's result has the same bits among 1 and among 8. */
#ifndef GLM52_KERNELS_DOT_ROWS_H
#define GLM52_KERNELS_DOT_ROWS_H

#include "quant_lanes.h"

/* Rows of weights of a simdgroup, simdgroups of a threadgroup. */
#define TILE 4
#define SIMDGROUPS 8

static float4 load_x(device const float *x, uint left, bool is_wide) {
    if (left >= 4 && is_wide) return *(device const float4 *)x;
    return float4(left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f, left > 3 ? x[3] : 0.0f);
}

static uint left_of(uint left, uint at) {
    return left > at ? left - at : 0;
}

/* sum [TILE][ROWS] += the lane's share of rows (1 .. TILE) rows of weights, row_bytes apart, times x_rows (1 .. ROWS) rows
 * of x; what is beyond them is something else. */
template <typename T, uint ROWS>
static void dot_rows(T type, device const uchar *weights, uint row_bytes, uint rows, uint in_count,
                     device const float *x, uint x_stride, uint x_rows, bool is_wide, uint part, uint parts, uint lane,
                     thread float *sum) {
    for (uint chunk = part; chunk * CHUNK < in_count; chunk += parts) {
        const uint left = in_count - chunk * CHUNK;
        float4 w[TILE][4];
        for (uint n = 0; n < TILE; n++) {
            decode_lane(type, weights + ulong(min(n, rows - 1)) * row_bytes, chunk, lane, left, w[n]);
        }
        for (uint m = 0; m < ROWS; m++) {
            device const float *x_row = x + ulong(min(m, x_rows - 1)) * x_stride + chunk * CHUNK;
            for (uint j = 0; j < 4; j++) {
                const uint at = lane_group(type, lane, j);
                const float4 v = load_x(x_row + at, left_of(left, at), is_wide);
                for (uint n = 0; n < TILE; n++) {
                    float s = sum[n * ROWS + m];
                    s = fma(w[n][j].x, v.x, s);
                    s = fma(w[n][j].y, v.y, s);
                    s = fma(w[n][j].z, v.z, s);
                    sum[n * ROWS + m] = fma(w[n][j].w, v.w, s);
                }
            }
        }
    }
}

#endif
