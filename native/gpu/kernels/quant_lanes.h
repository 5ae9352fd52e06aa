/* quant_lanes.h - how the 32 lanes of a simdgroup share 512 values of a row of weights, 16 each, in 4 groups of 4 in a row:
 *
 *     lane_group(tag, lane, j)    where group j of a lane starts, from the first of the 512 on
 *     lane_codes(tag, space, row, chunk, lane, left, is_aligned, w, scale, offset)
 *                                 codes of the 4 groups: a value is scale * code + offset. left: values that the row still
 *                                 has from there on; behind them scale and offset, or codes, are 0. is_aligned: rows
 *                                 begin on multiples of 16 bytes
 *
 * lanes_of<tag>::sets is how many scales a lane has, each for so many of its groups, 0: codes are values;
 * lanes_of<tag>::has_offset whether offsets are used; lanes_of<tag>::space how many words of threadgroup memory
 * prepare_lanes fills for lane_codes. Lanes beside each other read beside each other: that differs between types, and so
 * does the order of a row's sum with it.
 *
 * Codes of few bits are made floats by writing them into the fraction of one (byte_fractions): that gives 128 + code times
 * a power of two, and 128 is taken out again by the offset, which costs the rounding of sums about twice as large. */
#ifndef GLM52_KERNELS_QUANT_LANES_H
#define GLM52_KERNELS_QUANT_LANES_H

#include "quant_types.h"

#define CHUNK 512

template <typename T> struct lanes_of { enum { sets = 0, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q8_0> { enum { sets = 4, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q4_k> { enum { sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q5_k> { enum { sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q6_k> { enum { sets = 4, has_offset = 0, space = 0 }; };

/* ---- bytes as floats without a conversion ---- */

/* Byte i of a word in place of the lowest byte (shift 0) or of the upper byte of the fraction (shift 16) of a float. */
static float put_byte(uint word, uint i, uint shift, uint bits) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(__byte_perm(word, bits, shift == 0 ? 0x7654 - 4 + i : 0x7044 + 0x100 * i));
#else
    return as_type<float>((word >> (8 * i) & 255) << shift | bits);
#endif
}

/* Exact: 2^23 + byte, less 2^23 + bias. */
static float4 biased_bytes(uint word, float bias) {
    const float one = 8388608.0f + bias;
    return float4(put_byte(word, 0, 0, 0x4B000000) - one, put_byte(word, 1, 0, 0x4B000000) - one,
                  put_byte(word, 2, 0, 0x4B000000) - one, put_byte(word, 3, 0, 0x4B000000) - one);
}

/* 128 + byte, for bytes below 128. */
static float4 byte_fractions(uint word) {
    return float4(put_byte(word, 0, 16, 0x43000000), put_byte(word, 1, 16, 0x43000000),
                  put_byte(word, 2, 16, 0x43000000), put_byte(word, 3, 16, 0x43000000));
}

/* ---- types without a way of their own: lane i has values 16 i .. 16 i + 15 ---- */

#define LANES_OF_16(tag)                                                                                       \
    static uint lane_group(tag type, uint lane, uint j) {                                                      \
        return VALUES * lane + 4 * j;                                                                          \
    }                                                                                                          \
    static void lane_codes(tag type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane,      \
                           uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {    \
        if (VALUES * lane < left) {                                                                            \
            decode16(type, row, CHUNK / VALUES * chunk + lane, left - VALUES * lane, w);                       \
        } else {                                                                                               \
            for (uint j = 0; j < 4; j++) w[j] = float4(0.0f);                                                  \
        }                                                                                                      \
    }

LANES_OF_16(q4_0) LANES_OF_16(q4_1) LANES_OF_16(q5_0) LANES_OF_16(q5_1) LANES_OF_16(q2_k) LANES_OF_16(q3_k)
LANES_OF_16(iq1_s) LANES_OF_16(iq1_m) LANES_OF_16(iq2_xxs) LANES_OF_16(iq2_xs) LANES_OF_16(iq2_s)
LANES_OF_16(iq3_xxs) LANES_OF_16(iq3_s) LANES_OF_16(iq4_nl) LANES_OF_16(iq4_xs) LANES_OF_16(mxfp4)

/* ---- F32, F16 and BF16: a group of each 128 ---- */

static float4 wide_floats(f32 type, device const uchar *p) {
    return *(device const float4 *)p;
}

static float4 wide_floats(f16 type, device const uchar *p) {
    return float4(*(device const half4 *)p);
}

static float4 wide_floats(bf16 type, device const uchar *p) {
    const uint2 pair = *(device const uint2 *)p;
    return float4(as_type<float>(pair.x << 16), as_type<float>(pair.x & 0xFFFF0000), as_type<float>(pair.y << 16),
                  as_type<float>(pair.y & 0xFFFF0000));
}

template <typename T>
static void lane_floats(T type, device const uchar *row, uint chunk, uint lane, uint left, bool is_aligned,
                        thread float4 *w) {
    for (uint j = 0; j < 4; j++) {
        const uint at = 128 * j + 4 * lane, i = CHUNK * chunk + at;
        if (is_aligned && at + 4 <= left) {
            w[j] = wide_floats(type, row + T::block_bytes * i);
        } else {
            w[j] = float4(at < left ? float_at(type, row, i) : 0.0f, at + 1 < left ? float_at(type, row, i + 1) : 0.0f,
                          at + 2 < left ? float_at(type, row, i + 2) : 0.0f,
                          at + 3 < left ? float_at(type, row, i + 3) : 0.0f);
        }
    }
}

#define LANES_OF_FLOATS(tag)                                                                                            \
    static uint lane_group(tag type, uint lane, uint j) {                                                               \
        return 128 * j + 4 * lane;                                                                                      \
    }                                                                                                                   \
    static void lane_codes(tag type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane,     \
                           uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {   \
        lane_floats(type, row, chunk, lane, left, is_aligned, w);                                                       \
    }

LANES_OF_FLOATS(f32) LANES_OF_FLOATS(f16) LANES_OF_FLOATS(bf16)

/* ---- Q8_0: 8 lanes to a block, 4 blocks further on for each group ---- */

static uint lane_group(q8_0 type, uint lane, uint j) {
    return 128 * j + 4 * lane;
}

static void lane_codes(q8_0 type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane, uint left,
                       bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint j = 0; j < 4; j++) {
        const bool is_there = 128 * j + 4 * lane < left;
        device const uchar *block = row + (is_there ? 16 * chunk + 4 * j + lane / 8 : 0) * 34;
        w[j] = biased_bytes(load_u32(block + 2 + 4 * (lane % 8)) ^ 0x80808080, 128.0f);
        scale[j] = is_there ? load_f16(block) : 0.0f;
    }
}

/* ---- Q4_K and Q5_K: 16 lanes to a super-block; a lane has 8 bytes of nibbles, 8 values of one block and of the next ---- */

static uint lane_group_of_pair(uint lane, uint j) {
    return 256 * (lane / 16) + 64 * (lane % 16 / 4) + 32 * (j / 2) + 8 * (lane % 4) + 4 * (j % 2);
}

static uint lane_group(q4_k type, uint lane, uint j) {
    return lane_group_of_pair(lane, j);
}

static uint lane_group(q5_k type, uint lane, uint j) {
    return lane_group_of_pair(lane, j);
}

/* d f and m g of the blocks 2 c and 2 c + 1, from the 16 bytes before the codes: d, m, and factors of 6 bits as
 * factors_of_six_bits has them one by one. */
static void factors_of_pair(device const uchar *block, uint c, thread float *scale, thread float *minimum) {
    device const uint *words = (device const uint *)block;
    const float d = half_of_bits(words[0] & 0xFFFF), m = half_of_bits(words[0] >> 16);
    const uint shift = 16 * (c % 2);
    const uint low_f = words[1] >> shift, low_g = words[2] >> shift, high = words[3] >> shift;
    const uint f = c < 2 ? low_f & 0x3F3F : (high & 0x0F0F) | (low_f >> 2 & 0x3030);
    const uint g = c < 2 ? low_g & 0x3F3F : (high >> 4 & 0x0F0F) | (low_g >> 2 & 0x3030);
    scale[0] = d * float(f & 255);
    scale[1] = d * float(f >> 8);
    minimum[0] = m * float(g & 255);
    minimum[1] = m * float(g >> 8);
}

/* Codes are 128 + step * code: the scale takes the step, the offset the 128 and the minimum. */
static void offsets_of_pair(bool is_there, float step, thread float *scale, thread float *offset) {
    for (uint s = 0; s < 2; s++) {
        const float whole = scale[s] * (128.0f / step);
        offset[s] = is_there ? -whole - offset[s] : 0.0f;
        scale[s] = is_there ? scale[s] / step : 0.0f;
    }
}

static void lane_codes(q4_k type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane, uint left,
                       bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = row + (is_there ? 2 * chunk + lane / 16 : 0) * 144;
    const uint c = lane % 16 / 4;
    device const uint *codes = (device const uint *)(block + 16 + 32 * c + 8 * (lane % 4));
    const uint first = codes[0], second = codes[1];
    w[0] = byte_fractions(first << 3 & 0x78787878);
    w[1] = byte_fractions(second << 3 & 0x78787878);
    w[2] = byte_fractions(first >> 1 & 0x78787878);
    w[3] = byte_fractions(second >> 1 & 0x78787878);
    factors_of_pair(block, c, scale, offset);
    offsets_of_pair(is_there, 8.0f, scale, offset);
}

static void lane_codes(q5_k type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane, uint left,
                       bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = row + (is_there ? 2 * chunk + lane / 16 : 0) * 176;
    const uint c = lane % 16 / 4;
    device const uint *codes = (device const uint *)(block + 48 + 32 * c + 8 * (lane % 4));
    device const uint *high = (device const uint *)(block + 16 + 8 * (lane % 4));
    for (uint i = 0; i < 2; i++) {
        const uint low = codes[i], fifth = high[i] >> (2 * c);
        w[i] = byte_fractions((low << 2 & 0x3C3C3C3C) | (fifth << 6 & 0x40404040));
        w[2 + i] = byte_fractions((low >> 2 & 0x3C3C3C3C) | (fifth << 5 & 0x40404040));
    }
    factors_of_pair(block, c, scale, offset);
    offsets_of_pair(is_there, 4.0f, scale, offset);
}

/* ---- Q6_K: 16 lanes to a super-block; a lane has 4 values of each block of a half ---- */

static uint lane_group(q6_k type, uint lane, uint j) {
    return 256 * (lane / 16) + 128 * (lane % 16 / 8) + 32 * j + 4 * (lane % 8);
}

static void lane_codes(q6_k type, threadgroup const uint *space, device const uchar *row, uint chunk, uint lane, uint left,
                       bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = row + (is_there ? 2 * chunk + lane / 16 : 0) * 210;
    const uint half_block = lane % 16 / 8, quad = lane % 8;
    const uint first = load_u32(block + 64 * half_block + 4 * quad);
    const uint second = load_u32(block + 64 * half_block + 32 + 4 * quad);
    const uint high = load_u32(block + 128 + 32 * half_block + 4 * quad);
    w[0] = biased_bytes((first & 0x0F0F0F0F) | (high << 4 & 0x30303030), 32.0f);
    w[1] = biased_bytes((second & 0x0F0F0F0F) | (high << 2 & 0x30303030), 32.0f);
    w[2] = biased_bytes((first >> 4 & 0x0F0F0F0F) | (high & 0x30303030), 32.0f);
    w[3] = biased_bytes((second >> 4 & 0x0F0F0F0F) | (high >> 2 & 0x30303030), 32.0f);
    const float d = is_there ? load_f16(block + 208) : 0.0f;
    for (uint j = 0; j < 4; j++) {
        scale[j] = d * float(as_type<char>(block[192 + 8 * half_block + 2 * j + quad / 4]));
    }
}

/* ---- threadgroup memory that lane_codes reads ---- */

template <typename T>
static void prepare_lanes(T type, threadgroup uint *space, uint index, uint threads) {
}

#endif
