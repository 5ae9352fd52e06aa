/* quant_iq.h - IQ1, IQ2 and IQ3 types and IQ4_XS: super-blocks of 256 values; native/quant/iq*.c draw their bytes.
 *
 * 16 values are number p of a super-block: the half s = p % 2 of block b = p / 2 of 32 values. */
#ifndef GLM52_KERNELS_QUANT_IQ_H
#define GLM52_KERNELS_QUANT_IQ_H

#include "quant.h"
#include "quant_tables_kernels.h"

struct iq1_s { enum { block_values = 256, block_bytes = 50 }; };
struct iq1_m { enum { block_values = 256, block_bytes = 56 }; };
struct iq2_xxs { enum { block_values = 256, block_bytes = 66 }; };
struct iq2_xs { enum { block_values = 256, block_bytes = 74 }; };
struct iq2_s { enum { block_values = 256, block_bytes = 82 }; };
struct iq3_xxs { enum { block_values = 256, block_bytes = 98 }; };
struct iq3_s { enum { block_values = 256, block_bytes = 110 }; };
struct iq4_xs { enum { block_values = 256, block_bytes = 136 }; };

static void decode16(iq2_xxs tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 66;
    const uint p = at % 16, b = p / 2;
    const uint signs = load_u32(block + 6 + 8 * b);
    const uint codes = load_u16(block + 2 + 8 * b + 2 * (p % 2));
    const float d = load_f16(block) * 0.125f * float(2 * (signs >> 28) + 1);
    for (uint g = 0; g < 2; g++) {
        const uint code = codes >> (8 * g) & 255;
        const uint eight = glm52_signs_7[signs >> (14 * (p % 2) + 7 * g) & 127];
        w[2 * g] = d * signed_by(glm52_grid_iq2_xxs[2 * code], eight);
        w[2 * g + 1] = d * signed_by(glm52_grid_iq2_xxs[2 * code + 1], eight >> 4);
    }
}

static void decode16(iq2_xs tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 74;
    const uint p = at % 16;
    const float d = load_f16(block) * 0.125f * float(2 * (uint(block[66 + p / 2]) >> (4 * (p % 2)) & 15) + 1);
    for (uint g = 0; g < 2; g++) {
        const uint bits = load_u16(block + 2 + 4 * p + 2 * g), code = bits & 511;
        const uint eight = glm52_signs_7[bits >> 9];
        w[2 * g] = d * signed_by(glm52_grid_iq2_xs[2 * code], eight);
        w[2 * g + 1] = d * signed_by(glm52_grid_iq2_xs[2 * code + 1], eight >> 4);
    }
}

static void decode16(iq2_s tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 82;
    const uint p = at % 16;
    const float d = load_f16(block) * 0.125f * float(2 * (uint(block[74 + p / 2]) >> (4 * (p % 2)) & 15) + 1);
    const uint codes = load_u16(block + 2 + 2 * p), signs = load_u16(block + 34 + 2 * p);
    const uint high = uint(block[66 + p / 2]) >> (4 * (p % 2));
    for (uint g = 0; g < 2; g++) {
        const uint code = (codes >> (8 * g) & 255) | (high >> (2 * g) & 3) << 8, eight = signs >> (8 * g);
        w[2 * g] = d * signed_by(glm52_grid_iq2_s[2 * code], eight);
        w[2 * g + 1] = d * signed_by(glm52_grid_iq2_s[2 * code + 1], eight >> 4);
    }
}

static void decode16(iq3_xxs tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 98;
    const uint p = at % 16;
    const uint signs = load_u32(block + 66 + 4 * (p / 2));
    const uint codes = load_u32(block + 2 + 4 * p);
    const float d = load_f16(block) * 0.25f * float(2 * (signs >> 28) + 1);
    for (uint g = 0; g < 2; g++) {
        const uint eight = glm52_signs_7[signs >> (14 * (p % 2) + 7 * g) & 127];
        w[2 * g] = d * signed_by(glm52_grid_iq3_xxs[codes >> (16 * g) & 255], eight);
        w[2 * g + 1] = d * signed_by(glm52_grid_iq3_xxs[codes >> (16 * g + 8) & 255], eight >> 4);
    }
}

static void decode16(iq3_s tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 110;
    const uint p = at % 16, b = p / 2;
    const uint codes = load_u32(block + 2 + 4 * p), signs = load_u16(block + 74 + 2 * p);
    const uint high = uint(block[66 + b]) >> (4 * (p % 2));
    const float d = load_f16(block) * float(2 * (uint(block[106 + b / 2]) >> (4 * (b % 2)) & 15) + 1);
    for (uint j = 0; j < 4; j++) {
        const uint code = (codes >> (8 * j) & 255) | (high >> j & 1) << 8;
        w[j] = d * signed_by(glm52_grid_iq3_s[code], signs >> (4 * j));
    }
}

/* 8 times the value of 4 values -1, 0 and 1, and an eighth up or down. */
static float4 shifted(uint word, float shift) {
    return signed_bytes_of(word) * 8.0f + shift;
}

static void decode16(iq1_s tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 50;
    const uint p = at % 16;
    const uint bits = load_u16(block + 34 + 2 * (p / 2)), codes = load_u16(block + 2 + 2 * p);
    const float d = load_f16(block) * 0.125f * float(2 * (bits >> 12 & 7) + 1), shift = bits >> 15 != 0 ? -1.0f : 1.0f;
    for (uint g = 0; g < 2; g++) {
        const uint code = (codes >> (8 * g) & 255) | (bits >> (6 * (p % 2) + 3 * g) & 7) << 8;
        w[2 * g] = d * shifted(glm52_grid_iq1[2 * code], shift);
        w[2 * g + 1] = d * shifted(glm52_grid_iq1[2 * code + 1], shift);
    }
}

static void decode16(iq1_m tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 56;
    const uint p = at % 16;
    uint half_bits = 0;
    for (uint i = 0; i < 4; i++) half_bits |= load_u16(block + 48 + 2 * i) >> 12 << (4 * i);
    const uint s = load_u16(block + 48 + 2 * (p / 4)) >> (3 * (p % 4)) & 7;
    const uint codes = load_u16(block + 2 * p), bits = block[32 + p];
    const float d = half_of_bits(half_bits) * 0.125f * float(2 * s + 1);
    for (uint g = 0; g < 2; g++) {
        const uint four = bits >> (4 * g) & 15;
        const uint code = (codes >> (8 * g) & 255) | (four & 7) << 8;
        const float shift = four >> 3 != 0 ? -1.0f : 1.0f;
        w[2 * g] = d * shifted(glm52_grid_iq1[2 * code], shift);
        w[2 * g + 1] = d * shifted(glm52_grid_iq1[2 * code + 1], shift);
    }
}

static void decode16(iq4_xs tag, device const uchar *row, uint at, uint left, thread float4 *w) {
    device const uchar *block = row + (at / 16) * 136;
    const uint p = at % 16, b = p / 2;
    const uint low = uint(block[4 + b / 2]) >> (4 * (b % 2)) & 15, high = load_u16(block + 2) >> (2 * b) & 3;
    const float d = load_f16(block) * (float(low | high << 4) - 32.0f);
    device const uint *codes = (device const uint *)(block + 8 + 16 * b);
    for (uint j = 0; j < 4; j++) w[j] = d * look_up_nibbles(glm52_values_iq4, codes[j], p % 2 * 4);
}

#endif
