/* quant_lanes_iq.h - quant_lanes.h goes on: IQ2 and IQ3 types, whose code books and signs wait in threadgroup memory.
 *
 * Lane i has values 16 i .. 16 i + 15. Their codes are 192 plus or minus the magnitude, by byte_fractions of 64 plus or
 * minus; the offset takes the 192 out. prepare_lanes fills space with what the comments at each type say. */
#ifndef GLM52_KERNELS_QUANT_LANES_IQ_H
#define GLM52_KERNELS_QUANT_LANES_IQ_H

#include "quant_lanes.h"

template <typename T>
static void prepare_lanes(T type, threadgroup uint *space, uint index, uint threads) {
}

/* ---- IQ2: 8 magnitudes as their numbers among three, 4 bits apart, beside 8 signs as bit 2 of each 4 ---- */

/* 64 plus or minus the magnitudes that 4 times 4 bits stand for. */
static uint signed_magnitudes(uint numbers) {
    const uint plus = glm52_magnitudes_iq2[0], minus = glm52_magnitudes_iq2[1];
#ifdef __CUDA_ARCH__
    return __byte_perm(plus, minus, numbers);
#else
    uint word = 0;
    for (uint i = 0; i < 4; i++) {
        const uint four = numbers >> (4 * i);
        word |= (((four & 4) != 0 ? minus : plus) >> (8 * (four & 3)) & 255) << (8 * i);
    }
    return word;
#endif
}

static void groups_of_numbers(uint numbers, thread float4 *w) {
    w[0] = byte_fractions(signed_magnitudes(numbers & 0xFFFF));
    w[1] = byte_fractions(signed_magnitudes(numbers >> 16));
}

/* Two words of 4 magnitudes 8, 25 or 43 as their numbers 0, 1, 2: bit 4 is 25's (00011001), bit 5 43's (00101011). */
static uint numbers_of(uint low, uint high) {
    uint numbers = 0;
    for (uint i = 0; i < 4; i++) {
        numbers |= ((low >> (8 * i + 4) & 1) | (low >> (8 * i + 5) & 1) << 1) << (4 * i);
        numbers |= ((high >> (8 * i + 4) & 1) | (high >> (8 * i + 5) & 1) << 1) << (4 * i + 16);
    }
    return numbers;
}

/* 8 bits as bit 2 of 4 each. */
static uint spread_signs(uint signs) {
    uint word = 0;
    for (uint i = 0; i < 8; i++) word |= (signs >> i & 1) << (4 * i + 2);
    return word;
}

/* [256] numbers of a code, [128] signs of 7 bits */
static void prepare_lanes(iq2_xxs type, threadgroup uint *space, uint index, uint threads) {
    for (uint i = index; i < 256; i += threads) space[i] = glm52_numbers_iq2_xxs[i];
    for (uint i = index; i < 128; i += threads) space[256 + i] = glm52_nibble_signs_7[i];
}

static void lane_codes(iq2_xxs type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = VALUES * lane < left;
    const uint b = lane / 2 % 8, half_block = lane % 2;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 66;
    const uint codes = load_u16(block + 2 + 8 * b + 2 * half_block), signs = load_u32(block + 6 + 8 * b);
    for (uint g = 0; g < 2; g++) {
        groups_of_numbers(space[codes >> (8 * g) & 255] | space[256 + (signs >> (14 * half_block + 7 * g) & 127)],
                          w + 2 * g);
    }
    const float d = is_there ? load_f16(block) * 0.125f : 0.0f;
    scale[0] = d * float(2 * (signs >> 28) + 1);
    offset[0] = scale[0] * -192.0f;
}

/* [512] numbers of a code, [128] signs of 7 bits */
static void prepare_lanes(iq2_xs type, threadgroup uint *space, uint index, uint threads) {
    for (uint i = index; i < 512; i += threads) {
        space[i] = numbers_of(glm52_grid_iq2_xs[2 * i], glm52_grid_iq2_xs[2 * i + 1]);
    }
    for (uint i = index; i < 128; i += threads) space[512 + i] = glm52_nibble_signs_7[i];
}

static void lane_codes(iq2_xs type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = VALUES * lane < left;
    const uint p = lane % 16;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 74;
    const uint both = load_u32(block + 2 + 4 * p);
    for (uint g = 0; g < 2; g++) {
        groups_of_numbers(space[both >> (16 * g) & 511] | space[512 + (both >> (16 * g + 9) & 127)], w + 2 * g);
    }
    const float d = is_there ? load_f16(block) * 0.125f : 0.0f;
    scale[0] = d * float(2 * (uint(block[66 + p / 2]) >> (4 * (p % 2)) & 15) + 1);
    offset[0] = scale[0] * -192.0f;
}

/* [1024] numbers of a code, [256] signs of 8 bits */
static void prepare_lanes(iq2_s type, threadgroup uint *space, uint index, uint threads) {
    for (uint i = index; i < 1024; i += threads) {
        space[i] = numbers_of(glm52_grid_iq2_s[2 * i], glm52_grid_iq2_s[2 * i + 1]);
    }
    for (uint i = index; i < 256; i += threads) space[1024 + i] = spread_signs(i);
}

static void lane_codes(iq2_s type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = VALUES * lane < left;
    const uint p = lane % 16;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 82;
    const uint codes = load_u16(block + 2 + 2 * p), signs = load_u16(block + 34 + 2 * p);
    const uint high = uint(block[66 + p / 2]) >> (4 * (p % 2));
    for (uint g = 0; g < 2; g++) {
        groups_of_numbers(space[(codes >> (8 * g) & 255) | (high >> (2 * g) & 3) << 8] |
                              space[1024 + (signs >> (8 * g) & 255)],
                          w + 2 * g);
    }
    const float d = is_there ? load_f16(block) * 0.125f : 0.0f;
    scale[0] = d * float(2 * (uint(block[74 + p / 2]) >> (4 * (p % 2)) & 15) + 1);
    offset[0] = scale[0] * -192.0f;
}

/* ---- IQ3: 4 magnitudes below 64 of a code, a byte each ---- */

/* 128 + 64 plus or minus the magnitudes; minus where one of the lowest 4 bits of signs is set. Their sums and
 * differences with 64 stay inside a byte. */
static float4 fractions_of(uint magnitudes, uint signs) {
    const uint minus = ((signs & 15) * 0x00204081 & 0x01010101) * 255;
    return byte_fractions(((0x40404040 + magnitudes) & ~minus) | ((0x40404040 - magnitudes) & minus));
}

/* [256] magnitudes of a code, [128] signs of 7 bits as 8 */
static void prepare_lanes(iq3_xxs type, threadgroup uint *space, uint index, uint threads) {
    for (uint i = index; i < 256; i += threads) space[i] = glm52_grid_iq3_xxs[i];
    for (uint i = index; i < 128; i += threads) space[256 + i] = glm52_signs_7[i];
}

static void lane_codes(iq3_xxs type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = VALUES * lane < left;
    const uint p = lane % 16;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 98;
    const uint codes = load_u32(block + 2 + 4 * p), signs = load_u32(block + 66 + 4 * (p / 2));
    for (uint g = 0; g < 2; g++) {
        const uint eight = space[256 + (signs >> (14 * (p % 2) + 7 * g) & 127)];
        w[2 * g] = fractions_of(space[codes >> (16 * g) & 255], eight);
        w[2 * g + 1] = fractions_of(space[codes >> (16 * g + 8) & 255], eight >> 4);
    }
    const float d = is_there ? load_f16(block) * 0.25f : 0.0f;
    scale[0] = d * float(2 * (signs >> 28) + 1);
    offset[0] = scale[0] * -192.0f;
}

/* [512] 4 times the magnitudes of a code, which are below 16 */
static void prepare_lanes(iq3_s type, threadgroup uint *space, uint index, uint threads) {
    for (uint i = index; i < 512; i += threads) space[i] = glm52_grid_iq3_s[i] << 2;
}

static void lane_codes(iq3_s type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = VALUES * lane < left;
    const uint p = lane % 16, b = p / 2;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 110;
    const uint codes = load_u32(block + 2 + 4 * p), signs = load_u16(block + 74 + 2 * p);
    const uint high = uint(block[66 + b]) >> (4 * (p % 2));
    for (uint j = 0; j < 4; j++) {
        w[j] = fractions_of(space[(codes >> (8 * j) & 255) | (high >> j & 1) << 8], signs >> (4 * j));
    }
    const float d = is_there ? load_f16(block) * 0.25f : 0.0f;
    scale[0] = d * float(2 * (uint(block[106 + b / 2]) >> (4 * (b % 2)) & 15) + 1);
    offset[0] = scale[0] * -192.0f;
}

#endif
