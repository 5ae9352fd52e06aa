/* dot_rows.h - rows of weights times up to 8 rows of activations: what matmul and moe have in common for decoding.
 *
 * A row's sum: its chunks are dealt to the parts, one simdgroup each, in turn. A lane has one sum, to which step after
 * step it adds, for each set of its groups that share a scale, the scale times the sum of codes times activations in
 * their order, and the offset times the sum of activations; where codes are values, their products one by one. Every
 * addition is a fused multiply-add. The sums of the lanes are added by simd_sum; those of the parts in ascending
 * order. None of it depends on how many rows of activations there are, so a row's result has the same bits among 1 and
 * among 8.
 *
 * Of types whose chunk has several steps, one and two rows of activations are first put in threadgroup memory, some
 * chunks at a time, in the order in which lanes take them: a chunk's steps then share what was read of the weights.
 * For the others the wait for the threadgroup costs more than it saves. */
#ifndef GLM52_KERNELS_DOT_ROWS_H
#define GLM52_KERNELS_DOT_ROWS_H

#include "quant_lanes_iq.h"

/* Rows of weights of a simdgroup, simdgroups of a threadgroup. */
#define TILE 4
#define SIMDGROUPS 8
/* Steps that are staged at once: one item a thread. */
#define STAGE_STEPS SIMDGROUPS
/* Rows of activations that are staged. */
#define STAGE_ROWS 2
/* Words of threadgroup memory for them, and for the sums of their sets. */
#define STAGE_WORDS (STAGE_STEPS * SIMD_WIDTH * (16 + 2))

/* args.is_wide of the kernels. */
#define WIDE_X 1
#define WIDE_WEIGHTS 2

/* A thread's place in a threadgroup, and what simdgroups share. */
struct place {
    uint index, lane, simdgroup, part, parts;
};

static float4 load_x(device const float *x, uint left, bool is_wide) {
    if (left >= 4 && is_wide) return *(device const float4 *)x;
    return float4(left > 0 ? x[0] : 0.0f, left > 1 ? x[1] : 0.0f, left > 2 ? x[2] : 0.0f, left > 3 ? x[3] : 0.0f);
}

/* The activations that a lane meets in a step of a chunk whose first one is x[0]; 0 behind left. */
template <typename T>
static void lane_activations(T type, device const float *x, uint lane, uint step, uint left, bool is_wide,
                             thread float4 *v) {
    for (uint j = 0; j < 4; j++) {
        const uint at = lane_group(type, lane, step, j);
        v[j] = at < left ? load_x(x + at, left - at, is_wide) : float4(0.0f);
    }
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

static float add_products(float4 w, float4 v, float sum) {
    return fma(w.w, v.w, fma(w.z, v.z, fma(w.y, v.y, fma(w.x, v.x, sum))));
}

/* sum + a lane's values times v. */
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

/* staged [STAGE_STEPS][4][SIMD_WIDTH] of float4, behind them [STAGE_STEPS][2][SIMD_WIDTH] sums of sets: STAGE_STEPS /
 * ROWS steps of each of x_rows rows from x on, which have left values. */
template <typename T, uint ROWS>
static void stage(T type, device const float *x, uint x_stride, uint x_rows, uint left, bool is_wide, uint index,
                  threadgroup float4 *staged) {
    const uint lane = index % SIMD_WIDTH, item = index / SIMD_WIDTH, steps = lanes_of<T>::steps;
    const uint row = item / (STAGE_STEPS / ROWS), all = item % (STAGE_STEPS / ROWS);
    const uint skipped = all / steps * (STEP * steps);
    float4 v[4];
    float v_sum[4];
    lane_activations(type, x + ulong(min(row, x_rows - 1)) * x_stride + (skipped < left ? skipped : 0), lane,
                     all % steps, left > skipped ? left - skipped : 0, is_wide, v);
    for (uint j = 0; j < 4; j++) staged[(item * 4 + j) * SIMD_WIDTH + lane] = v[j];
    if (lanes_of<T>::has_offset != 0) {
        threadgroup float *sums = (threadgroup float *)(staged + STAGE_STEPS * 4 * SIMD_WIDTH);
        add_activations<lanes_of<T>::sets>(v, v_sum);
        for (uint s = 0; s < lanes_of<T>::sets; s++) sums[(item * 2 + s) * SIMD_WIDTH + lane] = v_sum[s];
    }
}

/* sum [TILE][ROWS] += the lane's share of the chunk at weights (of the first of rows rows) times ROWS staged rows;
 * step is the first of it among those that are staged. */
template <typename T, uint ROWS>
static void dot_staged(T type, threadgroup const uint *space, device const uchar *weights, uint row_bytes, uint rows,
                       uint left, bool is_aligned, threadgroup const float4 *staged, uint first_step, uint lane,
                       thread float *sum) {
    threadgroup const float *sums = (threadgroup const float *)(staged + STAGE_STEPS * 4 * SIMD_WIDTH);
#pragma unroll
    for (uint step = 0; step < lanes_of<T>::steps; step++) {
        float4 v[ROWS][4];
        float v_sum[ROWS][4];
        for (uint m = 0; m < ROWS; m++) {
            const uint item = m * (STAGE_STEPS / ROWS) + first_step + step;
            for (uint j = 0; j < 4; j++) v[m][j] = staged[(item * 4 + j) * SIMD_WIDTH + lane];
            if (lanes_of<T>::has_offset != 0) {
                for (uint s = 0; s < lanes_of<T>::sets; s++) v_sum[m][s] = sums[(item * 2 + s) * SIMD_WIDTH + lane];
            }
        }
        for (uint n = 0; n < TILE; n++) {
            float4 w[4];
            float scale[4], offset[4];
            lane_codes(type, space, weights + ulong(min(n, rows - 1)) * row_bytes, lane, step, left, is_aligned, w,
                       scale, offset);
            for (uint m = 0; m < ROWS; m++) {
                sum[n * ROWS + m] = add_sets<lanes_of<T>::sets, lanes_of<T>::has_offset != 0>(
                    w, scale, offset, v[m], v_sum[m], sum[n * ROWS + m]);
            }
        }
    }
}

/* The same for rows of x in device memory, 1 .. ROWS of them from x on; sum is [TILE][SUMS], theirs are the first.
 * IS_WHOLE: the chunk is, and rows begin on multiples of 16 bytes. */
template <typename T, uint ROWS, uint SUMS, bool IS_WHOLE>
static void dot_direct(T type, threadgroup const uint *space, device const uchar *weights, uint row_bytes, uint rows,
                       uint left, uint is_wide, device const float *x, uint x_stride, uint x_rows, uint lane,
                       thread float *sum) {
#pragma unroll
    for (uint step = 0; step < lanes_of<T>::steps; step++) {
        float4 v[ROWS][4];
        float v_sum[ROWS][4];
        for (uint m = 0; m < ROWS; m++) {
            device const float *x_row = x + ulong(min(m, x_rows - 1)) * x_stride;
            if (IS_WHOLE) {
                for (uint j = 0; j < 4; j++) {
                    v[m][j] = *(device const float4 *)(x_row + lane_group(type, lane, step, j));
                }
            } else {
                lane_activations(type, x_row, lane, step, left, (is_wide & WIDE_X) != 0, v[m]);
            }
            if (lanes_of<T>::has_offset != 0) add_activations<lanes_of<T>::sets>(v[m], v_sum[m]);
        }
        /* One row of x leaves registers for all of the tile's weights, whose reads are then under way together. */
        const uint together = ROWS == 1 ? TILE : 1;
        for (uint first = 0; first < TILE; first += together) {
            float4 w[together][4];
            float scale[together][4], offset[together][4];
            for (uint n = 0; n < together; n++) {
                lane_codes(type, space, weights + ulong(min(first + n, rows - 1)) * row_bytes, lane, step,
                           IS_WHOLE ? STEP * lanes_of<T>::steps : left, IS_WHOLE || (is_wide & WIDE_WEIGHTS) != 0,
                           w[n], scale[n], offset[n]);
            }
            for (uint n = 0; n < together; n++) {
                for (uint m = 0; m < ROWS; m++) {
                    sum[(first + n) * SUMS + m] = add_sets<lanes_of<T>::sets, lanes_of<T>::has_offset != 0>(
                        w[n], scale[n], offset[n], v[m], v_sum[m], sum[(first + n) * SUMS + m]);
                }
            }
        }
    }
}

/* sum [TILE][ROWS] = the lane's share of rows (0 .. TILE) rows of weights, row_bytes apart, times x_rows (1 .. ROWS)
 * rows of x; what is beyond them is something else. All threads of the group come here, with the same x. */
template <typename T, uint ROWS>
static void dot_rows(T type, threadgroup const uint *space, device const uchar *weights, uint row_bytes, uint rows,
                     uint in_count, device const float *x, uint x_stride, uint x_rows, uint is_wide, place at,
                     threadgroup float4 *staged, thread float *sum) {
    const uint fitting = lanes_of<T>::steps > 1 ? 2 : 4;   /* in registers */
    const uint few = ROWS < fitting ? ROWS : fitting;
    const uint size = STEP * lanes_of<T>::steps, chunk_bytes = size / T::block_values * T::block_bytes;
    for (uint i = 0; i < TILE * ROWS; i++) sum[i] = 0.0f;
    if (ROWS > STAGE_ROWS || lanes_of<T>::steps == 1) {
        const uint whole = is_wide == (WIDE_X | WIDE_WEIGHTS) && rows > 0 ? in_count / size : 0;
        uint chunk = at.part;
#pragma unroll 2
        for (; chunk < whole; chunk += at.parts) {
#pragma unroll
            for (uint m = 0; m < ROWS; m += few) {
                if (m == 0 || m < x_rows) {
                    dot_direct<T, few, ROWS, true>(type, space, weights + ulong(chunk) * chunk_bytes, row_bytes, rows,
                                                   size,
                                                   is_wide, x + ulong(m) * x_stride + chunk * size, x_stride,
                                                   x_rows - m, at.lane, sum + m);
                }
            }
        }
#pragma unroll 1
        for (; chunk * size < in_count && rows > 0; chunk += at.parts) {
#pragma unroll
            for (uint m = 0; m < ROWS; m += few) {
                if (m == 0 || m < x_rows) {
                    dot_direct<T, few, ROWS, false>(type, space, weights + ulong(chunk) * chunk_bytes, row_bytes, rows,
                                                    in_count - chunk * size, is_wide,
                                                    x + ulong(m) * x_stride + chunk * size, x_stride, x_rows - m,
                                                    at.lane, sum + m);
                }
            }
        }
    } else {
        const uint chunks = STAGE_STEPS / (ROWS * lanes_of<T>::steps);
        for (uint first = 0; first * size < in_count; first += chunks) {
            threadgroup_barrier(mem_flags::mem_threadgroup);
            stage<T, ROWS>(type, x + first * size, x_stride, x_rows, in_count - first * size, (is_wide & WIDE_X) != 0,
                           at.index, staged);
            threadgroup_barrier(mem_flags::mem_threadgroup);
            const uint before = (first + at.parts - 1 - at.part) / at.parts, end = first + chunks;
            for (uint chunk = before * at.parts + at.part; chunk < end && chunk * size < in_count && rows > 0;
                 chunk += at.parts) {
                dot_staged<T, ROWS>(type, space, weights + ulong(chunk) * chunk_bytes, row_bytes, rows,
                                    in_count - chunk * size, (is_wide & WIDE_WEIGHTS) != 0, staged,
                                    (chunk - first) * lanes_of<T>::steps, at.lane, sum);
            }
        }
    }
}

#endif
