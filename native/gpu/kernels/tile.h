/* tile.h - rows of weights times many rows of activations: what matmul and moe have in common for batches.
 *
 * A threadgroup has 128 rows of weights and 64 of activations. 32 values of each go to threadgroup memory, weights
 * decoded; then simdgroups multiply: 32 rows of activations times 32 of weights each, by matrices of 8 x 8. A
 * product's sum is one of simdgroup_multiply_accumulate, 8 values after 8; it depends on nothing but its two rows, so
 * a row's bits don't depend on which rows it is with. They differ from those of dot_rows.h. */
#ifndef GLM52_KERNELS_TILE_H
#define GLM52_KERNELS_TILE_H

#include "quant_types.h"

#define TILE_ROWS 64
#define TILE_COLUMNS 128
#define TILE_DEPTH 32
#define TILE_THREADS 256
/* Floats between rows of a tile, and of both tiles, where the products go in the end, half of the columns at a time. */
#define TILE_STRIDE 36
#define TILE_SPACE ((TILE_ROWS + TILE_COLUMNS) * TILE_STRIDE)
#define TILE_HALF 64

/* 8 activations of a row from at on; 0 behind its end. */
static void fetch8(device const float *x, uint at, uint in_count, bool is_wide, threadgroup float *to) {
    for (uint j = 0; j < 8; j += 4) {
        float4 v = float4(0.0f);
        if (is_wide && at + j + 4 <= in_count) {
            v = *(device const float4 *)(x + at + j);
        } else {
            if (at + j < in_count) v.x = x[at + j];
            if (at + j + 1 < in_count) v.y = x[at + j + 1];
            if (at + j + 2 < in_count) v.z = x[at + j + 2];
            if (at + j + 3 < in_count) v.w = x[at + j + 3];
        }
        *(threadgroup float4 *)(to + j) = v;
    }
}

template <typename T>
static void decode_into(T type, device const uchar *row, uint at, uint in_count, threadgroup float *to) {
    float4 w[4];
    if (at < in_count) {
        decode16(type, row, at / VALUES, in_count - at, w);
    } else {
        for (uint j = 0; j < 4; j++) w[j] = float4(0.0f);
    }
    for (uint j = 0; j < 4; j++) *(threadgroup float4 *)(to + 4 * j) = w[j];
}

/* What a simdgroup has of the products: 32 rows of activations, 32 of weights. */
struct tile_sums {
    simdgroup_matrix<float, 8, 8> part[16];
};

/* weights and x are the rows of this thread: of column index / 2 and of row index / 4; what is behind rows (1 ..
 * TILE_ROWS) is not multiplied, 8 rows at a time. All threads of the group come here. */
template <typename T>
static void multiply_tile(T type, device const uchar *weights, device const float *x, uint rows, uint in_count,
                          bool is_wide, uint index, uint simdgroup, threadgroup float *space,
                          thread tile_sums &sums) {
    threadgroup float *of_x = space + TILE_COLUMNS * TILE_STRIDE;
    threadgroup float *w_place = space + index / 2 * TILE_STRIDE + index % 2 * VALUES;
    threadgroup float *x_place = of_x + index / 4 * TILE_STRIDE + index % 4 * 8;
    threadgroup const float *x_first = of_x + simdgroup / 4 * 32 * TILE_STRIDE;
    threadgroup const float *w_first = space + simdgroup % 4 * 32 * TILE_STRIDE;
    const uint before = simdgroup / 4 * 32, blocks = rows > before ? (rows - before + 7) / 8 : 0;
    for (uint i = 0; i < 16; i++) sums.part[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint first = 0; first < in_count; first += TILE_DEPTH) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        decode_into(type, weights, first + index % 2 * VALUES, in_count, w_place);
        fetch8(x, first + index % 4 * 8, in_count, is_wide, x_place);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE_DEPTH; k += 8) {
            simdgroup_matrix<float, 8, 8> a[4];
            simdgroup_matrix<float, 8, 8> b[4];
            if (blocks >= 4) {   /* all reads before the first product, and no question between products */
                for (uint i = 0; i < 4; i++) {
                    simdgroup_load(a[i], x_first + 8 * i * TILE_STRIDE + k, TILE_STRIDE);
                    simdgroup_load(b[i], w_first + 8 * i * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
                }
                for (uint i = 0; i < 4; i++) {
                    for (uint j = 0; j < 4; j++) {
                        simdgroup_multiply_accumulate(sums.part[4 * i + j], a[i], b[j], sums.part[4 * i + j]);
                    }
                }
            } else if (blocks > 0) {
                for (uint i = 0; i < 4; i++) {
                    simdgroup_load(b[i], w_first + 8 * i * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
                }
                for (uint i = 0; i < 3; i++) {
                    if (i < blocks) {
                        simdgroup_load(a[i], x_first + 8 * i * TILE_STRIDE + k, TILE_STRIDE);
                        for (uint j = 0; j < 4; j++) {
                            simdgroup_multiply_accumulate(sums.part[4 * i + j], a[i], b[j], sums.part[4 * i + j]);
                        }
                    }
                }
            }
        }
    }
}

/* space = the products [TILE_ROWS][TILE_HALF] of columns from half_number * TILE_HALF on. */
static void hand_out_tile(thread const tile_sums &sums, uint half_number, uint simdgroup, threadgroup float *space) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup % 4 / 2 == half_number) {
        for (uint i = 0; i < 16; i++) {
            simdgroup_store(sums.part[i], space + (simdgroup / 4 * 32 + 8 * (i / 4)) * TILE_HALF + simdgroup % 2 * 32 +
                                              8 * (i % 4),
                            TILE_HALF);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

#endif
