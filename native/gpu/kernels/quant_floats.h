/* quant_floats.h - F32, F16 and BF16: one value per block, rows of any length. */
#ifndef GLM52_KERNELS_QUANT_FLOATS_H
#define GLM52_KERNELS_QUANT_FLOATS_H

#include "quant.h"

struct f32 { enum { block_values = 1, block_bytes = 4 }; };
struct f16 { enum { block_values = 1, block_bytes = 2 }; };
struct bf16 { enum { block_values = 1, block_bytes = 2 }; };

static float float_at(f32 tag, device const uchar *row, uint i) {
    return ((device const float *)row)[i];
}

static float float_at(f16 tag, device const uchar *row, uint i) {
    return float(((device const half *)row)[i]);
}

static float float_at(bf16 tag, device const uchar *row, uint i) {
    return as_type<float>(uint(((device const ushort *)row)[i]) << 16);
}

template <typename T>
static void decode16_floats(T tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    for (uint j = 0; j < 4; j++) {
        const uint i = VALUES * at + 4 * j;
        w[j] = float4(0.0f);
        if (4 * j + 0 < left) w[j].x = float_at(tag, row, i);
        if (4 * j + 1 < left) w[j].y = float_at(tag, row, i + 1);
        if (4 * j + 2 < left) w[j].z = float_at(tag, row, i + 2);
        if (4 * j + 3 < left) w[j].w = float_at(tag, row, i + 3);
    }
}

static void decode16(f32 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    decode16_floats(tag, row, at, left, w);
}

static void decode16(f16 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    decode16_floats(tag, row, at, left, w);
}

static void decode16(bf16 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    decode16_floats(tag, row, at, left, w);
}

#endif
