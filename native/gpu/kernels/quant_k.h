/* quant_k.h - Q2_K to Q6_K: super-blocks of 256 values; native/quant/k_quants.c draws their bytes.
 *
 * 16 values are number p of a super-block: the half s = p % 2 of block b = p / 2 of 32 values. */
#ifndef GLM52_KERNELS_QUANT_K_H
#define GLM52_KERNELS_QUANT_K_H

#include "quant.h"

struct q2_k { enum { block_values = 256, block_bytes = 84 }; };
struct q3_k { enum { block_values = 256, block_bytes = 110 }; };
struct q4_k { enum { block_values = 256, block_bytes = 144 }; };
struct q5_k { enum { block_values = 256, block_bytes = 176 }; };
struct q6_k { enum { block_values = 256, block_bytes = 210 }; };

static void decode16(q2_k tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 84;
    const uint p = at % 16, b = p / 2;
    const uint factors = block[p];
    const float d = load_f16(block + 80) * float(factors & 15), m = load_f16(block + 82) * float(factors >> 4);
    device const uint *codes = (device const uint *)(block + 16 + p / 8 * 32 + p % 2 * 16);
    for (uint j = 0; j < 4; j++) w[j] = d * bytes_of(codes[j] >> (2 * (b % 4)) & 0x03030303) - m;
}

static void decode16(q3_k tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 110;
    const uint p = at % 16, b = p / 2;
    const uint low = uint(block[96 + p % 8]) >> (4 * (p / 8)) & 15;
    const uint high = uint(block[104 + p % 4]) >> (2 * (p / 4)) & 3;
    const float d = load_f16(block + 108) * (float(low | high << 4) - 32.0f);
    for (uint j = 0; j < 4; j++) {
        const uint bits = load_u32(block + p % 2 * 16 + 4 * j) >> b & 0x01010101;
        const uint codes = load_u32(block + 32 + p / 8 * 32 + p % 2 * 16 + 4 * j) >> (2 * (b % 4)) & 0x03030303;
        w[j] = d * (bytes_of(codes | bits << 2) - 4.0f);
    }
}

/* Factors of block b of Q4_K and Q5_K: f in the low, g in the high half. */
static uint factors_of_six_bits(device const uchar *in, uint b) {
    const uint a = in[b % 4], c = in[4 + b % 4], e = in[8 + b % 4];
    const uint f = b < 4 ? a & 63 : (e & 15) | (a >> 6) << 4;
    const uint g = b < 4 ? c & 63 : e >> 4 | (c >> 6) << 4;
    return f | g << 16;
}

static void decode16(q4_k tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 144;
    const uint p = at % 16, b = p / 2;
    const uint factors = factors_of_six_bits(block + 4, b);
    const float d = load_f16(block) * float(factors & 0xFFFF), m = load_f16(block + 2) * float(factors >> 16);
    device const uint *codes = (device const uint *)(block + 16 + b / 2 * 32 + p % 2 * 16);
    for (uint j = 0; j < 4; j++) w[j] = d * bytes_of(codes[j] >> (4 * (b % 2)) & 0x0F0F0F0F) - m;
}

static void decode16(q5_k tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 176;
    const uint p = at % 16, b = p / 2;
    const uint factors = factors_of_six_bits(block + 4, b);
    const float d = load_f16(block) * float(factors & 0xFFFF), m = load_f16(block + 2) * float(factors >> 16);
    device const uint *high = (device const uint *)(block + 16 + p % 2 * 16);
    device const uint *codes = (device const uint *)(block + 48 + b / 2 * 32 + p % 2 * 16);
    for (uint j = 0; j < 4; j++) {
        const uint low = codes[j] >> (4 * (b % 2)) & 0x0F0F0F0F;
        w[j] = d * bytes_of(low | (high[j] >> b & 0x01010101) << 4) - m;
    }
}

static void decode16(q6_k tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 210;
    const uint p = at % 16, b = p / 2 % 4;
    const float d = load_f16(block + 208) * float(as_type<char>(block[192 + p]));
    device const uchar *low = block + p / 8 * 64 + b % 2 * 32 + p % 2 * 16;
    device const uchar *high = block + 128 + p / 8 * 32 + p % 2 * 16;
    for (uint j = 0; j < 4; j++) {
        const uint four = load_u32(low + 4 * j) >> (4 * (b / 2)) & 0x0F0F0F0F;
        const uint two = load_u32(high + 4 * j) >> (2 * b) & 0x03030303;
        w[j] = d * (bytes_of(four | two << 4) - 32.0f);
    }
}

#endif
