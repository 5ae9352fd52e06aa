/* dot_rows.h - rows of weights times up to 8 rows of activations: what matmul and moe have in common for decoding.
 *
 * A row's sum: its 512s are dealt to the parts, one simdgroup each, in turn. A lane has one sum, to which 512 after 512 it
 * adds, for each set of its groups that share a scale, the scale times the sum of codes times activations in their order,
 * and the offset times the sum of activations; where codes are values, their products one by one. Every addition is a
 * fused multiply-add. The sums of the lanes are added by simd_sum; those of the parts in ascending order. None of it
 * depends on how many rows of activations there are, so a row's result has the same bits among 1 and among 8. */
#ifndef GLM52_KERNELS_DOT_ROWS_H
#define GLM52_KERNELS_DOT_ROWS_H

#include "quant_lanes.h"

/* Rows of weights of a simdgroup, simdgroups of a threadgroup. */
#define TILE 4
#define SIMDGROUPS 8

/* args.is_wide of the kernels. */
#define WIDE_X 1
#define WIDE_WEIGHTS 2

static float4 load_x(device const float *x, uint left, bool is_wide) {
    if (left >= 4 && is_wide) return *(device const float4 *)x;
    return float4(left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f, left > 3 ? x[3] : 0.0f);
}

static uint left_of(uint left, uint at) {
    return left > at ? left - at : 0;
}

static float add_products(float4 w, float4 v, float sum) {
    return fma(w.w, v.w, fma(w.z, v.z, fma(w.y, v.y, fma(w.x, v.x, sum))));
}

/* sum + a lane's values times v, SETS scales. */
template <uint SETS, bool HAS_OFFSET>
static float add_sets(thread const float4 *w, thread const float *scale, thread const float *offset,
                      thread const float4 *v, thread const float *v_sum, float sum) {
    if (SETS == 0) {
        for (uint j = 0; j < 4; j++) sum = add_products(w[j], v[j], sum);
        return sum;
    }
    const uint groups = 4 / (SETS + (SETS == 0 ? 1 : 0));
    for (uint s = 0; s < SETS; s++) {
        float set = 0.0f;
        for (uint j = s * groups; j < (s + 1) * groups; j++) set = add_products(w[j], v[j], set);
        sum = fma(scale[s], set, sum);
        if (HAS_OFFSET) sum = fma(offset[s], v_sum[s], sum);
    }
    return sum;
}

/* Sums of the activations that meet each set. */
template <uint SETS>
static void add_activations(thread const float4 *v, thread float *v_sum) {
    const uint groups = 4 / (SETS + (SETS == 0 ? 1 : 0));
    for (uint s = 0; s < SETS; s++) {
        v_sum[s] = 0.0f;
        for (uint j = s * groups; j < (s + 1) * groups; j++) v_sum[s] += (v[j].x + v[j].y) + (v[j].z + v[j].w);
    }
}

/* sum [TILE][ROWS] += the lane's share of rows (1 .. TILE) rows of weights, row_bytes apart, times x_rows (1 .. ROWS) rows
 * of x; what is beyond them is something else. */
template <typename T, uint ROWS>
static void dot_rows(T type, threadgroup const uint *space, device const uchar *weights, uint row_bytes, uint rows,
                     uint in_count, device const float *x, uint x_stride, uint x_rows, uint is_wide, uint part, uint parts,
                     uint lane, thread float *sum) {
    const uint sets = lanes_of<T>::sets;
    const bool has_offset = lanes_of<T>::has_offset != 0;
    for (uint chunk = part; chunk * CHUNK < in_count; chunk += parts) {
        const uint left = in_count - chunk * CHUNK;
        float4 w[TILE][4];
        float scale[TILE][4], offset[TILE][4];
        for (uint n = 0; n < TILE; n++) {
            lane_codes(type, space, weights + ulong(min(n, rows - 1)) * row_bytes, chunk, lane, left,
                       (is_wide & WIDE_WEIGHTS) != 0, w[n], scale[n], offset[n]);
        }
        for (uint m = 0; m < ROWS; m++) {
            device const float *x_row = x + ulong(min(m, x_rows - 1)) * x_stride + chunk * CHUNK;
            float4 v[4];
            float v_sum[4];
            for (uint j = 0; j < 4; j++) {
                const uint at = lane_group(type, lane, j);
                v[j] = load_x(x_row + (at < left ? at : 0), left_of(left, at), (is_wide & WIDE_X) != 0);
            }
            if (has_offset) add_activations<sets>(v, v_sum);
            for (uint n = 0; n < TILE; n++) {
                sum[n * ROWS + m] =
                    add_sets<sets, has_offset>(w[n], scale[n], offset[n], v, v_sum, sum[n * ROWS + m]);
            }
        }
    }
}

#endif
