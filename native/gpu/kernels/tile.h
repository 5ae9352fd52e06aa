/* tile.h - rows of weights times many rows of activations: what matmul and moe have in common for batches.
 *
 * A threadgroup has 64 rows of either. Per 32 values, half of its threads decode weights, the other half fetch activations,
 * into threadgroup memory; then simdgroups multiply: 16 rows of activations times 32 of weights each, by matrices of 8 x 8.
 * A product's sum is one of simdgroup_multiply_accumulate, 8 values after 8; it depends on nothing but its two rows, so a
 * row's bits don't depend on which rows it is with. They differ from those of dot_rows.h. */
#ifndef GLM52_KERNELS_TILE_H
#define GLM52_KERNELS_TILE_H

#include "quant_types.h"

#define TILE_ROWS 64
#define TILE_DEPTH 32
#define TILE_THREADS 256
/* Floats between rows of a tile, and of both tiles, where the products go in the end. */
#define TILE_STRIDE 36
#define TILE_SPACE (2 * TILE_ROWS * TILE_STRIDE)

/* 16 activations of a row from at on; 0 behind its end. */
static void fetch16(device const float *x, uint at, uint in_count, bool is_wide, threadgroup float *to) {
    for (uint j = 0; j < VALUES; j += 4) {
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

/* space = the products [TILE_ROWS of activations][TILE_ROWS of weights]. weights and x are the rows of this thread: of tile
 * row index / 2 % TILE_ROWS; only one of them is read. All threads of the group come here. */
template <typename T>
static void multiply_tile(T type, device const uchar *weights, device const float *x, uint in_count, bool is_wide, uint index,
                          uint simdgroup, threadgroup float *space) {
    const uint row = index / 2 % TILE_ROWS, place = row * TILE_STRIDE + index % 2 * VALUES;
    threadgroup float *of_x = space + TILE_ROWS * TILE_STRIDE;
    const uint x_first = simdgroup % 4 * 16, w_first = simdgroup / 4 * 32;
    simdgroup_matrix<float, 8, 8> sum[8];
    for (uint i = 0; i < 8; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint first = 0; first < in_count; first += TILE_DEPTH) {
        const uint at = first + index % 2 * VALUES;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (index < TILE_THREADS / 2) {
            decode_into(type, weights, at, in_count, space + place);
        } else {
            fetch16(x, at, in_count, is_wide, of_x + place);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE_DEPTH; k += 8) {
            simdgroup_matrix<float, 8, 8> a[2];
            simdgroup_matrix<float, 8, 8> b[4];
            for (uint i = 0; i < 2; i++) simdgroup_load(a[i], of_x + (x_first + 8 * i) * TILE_STRIDE + k, TILE_STRIDE);
            for (uint j = 0; j < 4; j++) {
                simdgroup_load(b[j], space + (w_first + 8 * j) * TILE_STRIDE + k, TILE_STRIDE, ulong2(0, 0), true);
            }
            for (uint i = 0; i < 2; i++) {
                for (uint j = 0; j < 4; j++) {
                    simdgroup_multiply_accumulate(sum[4 * i + j], a[i], b[j], sum[4 * i + j]);
                }
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 8; i++) {
        simdgroup_store(sum[i], space + (x_first + 8 * (i / 4)) * TILE_ROWS + w_first + 8 * (i % 4), TILE_ROWS);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

#endif
