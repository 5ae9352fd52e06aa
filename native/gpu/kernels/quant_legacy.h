/* quant_legacy.h - Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, IQ4_NL and MXFP4: blocks of 32 values; native/quant/legacy.c, iq4.c
 * and mxfp4.c draw their bytes. */
#ifndef GLM52_KERNELS_QUANT_LEGACY_H
#define GLM52_KERNELS_QUANT_LEGACY_H

#include "quant.h"
#include "quant_tables_kernels.h"

struct q4_0 { enum { block_values = 32, block_bytes = 18 }; };
struct q4_1 { enum { block_values = 32, block_bytes = 20 }; };
struct q5_0 { enum { block_values = 32, block_bytes = 22 }; };
struct q5_1 { enum { block_values = 32, block_bytes = 24 }; };
struct q8_0 { enum { block_values = 32, block_bytes = 34 }; };
struct iq4_nl { enum { block_values = 32, block_bytes = 18 }; };
struct mxfp4 { enum { block_values = 32, block_bytes = 17 }; };

/* Nibbles of a word as numbers: the low ones, or with shift 4 the high ones. */
static float4 nibbles_of(uint word, uint shift) {
    return bytes_of(word >> shift & 0x0F0F0F0F);
}

/* The same with 4 fifth bits, the lowest 4 of high. */
static float4 fives_of(uint word, uint shift, uint high) {
    const uint bits = (high & 1) << 4 | (high & 2) << 11 | (high & 4) << 18 | (high & 8) << 25;
    return bytes_of((word >> shift & 0x0F0F0F0F) | bits);
}

static void decode16(q4_0 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 18;
    const float d = load_f16(block);
    for (uint j = 0; j < 4; j++) w[j] = d * (nibbles_of(load_u32(block + 2 + 4 * j), at % 2 * 4) - 8.0f);
}

static void decode16(q4_1 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 20;
    const float d = load_f16(block), m = load_f16(block + 2);
    for (uint j = 0; j < 4; j++) w[j] = d * nibbles_of(load_u32(block + 4 + 4 * j), at % 2 * 4) + m;
}

static void decode16(q5_0 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 22;
    const float d = load_f16(block);
    const uint high = load_u32(block + 2) >> (at % 2 * 16);
    for (uint j = 0; j < 4; j++) {
        w[j] = d * (fives_of(load_u32(block + 6 + 4 * j), at % 2 * 4, high >> (4 * j)) - 16.0f);
    }
}

static void decode16(q5_1 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 24;
    const float d = load_f16(block), m = load_f16(block + 2);
    const uint high = load_u32(block + 4) >> (at % 2 * 16);
    for (uint j = 0; j < 4; j++) {
        w[j] = d * fives_of(load_u32(block + 8 + 4 * j), at % 2 * 4, high >> (4 * j)) + m;
    }
}

static void decode16(q8_0 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 34;
    const float d = load_f16(block);
    for (uint j = 0; j < 4; j++) w[j] = d * signed_bytes_of(load_u32(block + 2 + at % 2 * 16 + 4 * j));
}

static void decode16(iq4_nl tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 18;
    const float d = load_f16(block);
    for (uint j = 0; j < 4; j++) {
        w[j] = d * look_up_nibbles(glm52_values_iq4, load_u32(block + 2 + 4 * j), at % 2 * 4);
    }
}

/* Half the power of two that e stands for, 2^(e - 128): the table holds twice the values. */
static void decode16(mxfp4 tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 2) * 17;
    const uint e = block[0];
    const float d = as_type<float>(e < 2 ? 0x00200000u << e : (e - 1) << 23);
    for (uint j = 0; j < 4; j++) {
        device const uchar *p = block + 1 + 4 * j;
        const uint word = uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
        w[j] = d * look_up_nibbles(glm52_values_mxfp4, word, at % 2 * 4);
    }
}

#endif
