/* quant_lanes.h - how the 32 lanes of a simdgroup share a chunk of a row of weights: in steps of 512 values a lane has
 * 16, in 4 groups of 4 in a row:
 *
 *     lane_group(tag, lane, step, j)  where group j of a lane starts, from the first value of the chunk on
 *     lane_codes(tag, space, chunk, lane, step, left, is_aligned, w, scale, offset)
 *                                     codes of the 4 groups: a value is scale * code + offset. chunk: its blocks. left:
 *                                     values that the row still has from there on; behind them scale and offset, or
 *                                     codes, are 0. is_aligned: rows begin on multiples of 16 bytes
 *
 * lanes_of<tag> says how many steps a chunk has; how many sets, each so many of a step's groups with a scale in
 * common, 0: codes are values; whether there are offsets; how many words of threadgroup memory prepare_lanes fills for
 * lane_codes. Lanes beside each other read beside each other: that differs between types, and so does the order of a
 * row's sum with it.
 *
 * Codes of few bits are made floats by writing them into the fraction of one (byte_fractions): that gives 128 + code
 * times a power of two, and 128 is taken out again by the offset, which costs the rounding of sums about twice as
 * large. */
#ifndef GLM52_KERNELS_QUANT_LANES_H
#define GLM52_KERNELS_QUANT_LANES_H

#include "quant_types.h"

/* Values of a step. */
#define STEP 512

template <typename T> struct lanes_of { enum { steps = 1, sets = 0, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q8_0> { enum { steps = 1, sets = 4, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q2_k> { enum { steps = 4, sets = 1, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q4_k> { enum { steps = 1, sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q5_k> { enum { steps = 1, sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q6_k> { enum { steps = 1, sets = 4, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q3_k> { enum { steps = 4, sets = 1, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q4_0> { enum { steps = 1, sets = 2, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q4_1> { enum { steps = 1, sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<q5_0> { enum { steps = 1, sets = 2, has_offset = 0, space = 0 }; };
template <> struct lanes_of<q5_1> { enum { steps = 1, sets = 2, has_offset = 1, space = 0 }; };
template <> struct lanes_of<iq4_nl> { enum { steps = 1, sets = 2, has_offset = 0, space = 0 }; };
template <> struct lanes_of<iq4_xs> { enum { steps = 1, sets = 1, has_offset = 0, space = 0 }; };
template <> struct lanes_of<iq2_xxs> { enum { steps = 1, sets = 1, has_offset = 1, space = 256 + 128 }; };
template <> struct lanes_of<iq2_xs> { enum { steps = 1, sets = 1, has_offset = 1, space = 512 + 128 }; };
template <> struct lanes_of<iq2_s> { enum { steps = 1, sets = 1, has_offset = 1, space = 1024 + 256 }; };
template <> struct lanes_of<iq3_xxs> { enum { steps = 1, sets = 1, has_offset = 1, space = 256 + 128 }; };
template <> struct lanes_of<iq3_s> { enum { steps = 1, sets = 1, has_offset = 1, space = 512 }; };

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

template <typename T>
static uint lane_group(T type, uint lane, uint step, uint j) {
    return VALUES * lane + 4 * j;
}

template <typename T>
static void lane_codes(T type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    if (VALUES * lane < left) {
        decode16(type, chunk, lane, left - VALUES * lane, w);
    } else {
        for (uint j = 0; j < 4; j++) w[j] = float4(0.0f);
    }
}

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
static void lane_floats(T type, device const uchar *chunk, uint lane, uint left, bool is_aligned, thread float4 *w) {
    if (is_aligned && left >= STEP) {
        for (uint j = 0; j < 4; j++) w[j] = wide_floats(type, chunk + T::block_bytes * (128 * j + 4 * lane));
    } else {
        for (uint j = 0; j < 4; j++) {
            const uint i = 128 * j + 4 * lane;
            w[j] = float4(i < left ? float_at(type, chunk, i) : 0.0f, i + 1 < left ? float_at(type, chunk,
                                                                                              i + 1) : 0.0f,
                          i + 2 < left ? float_at(type, chunk, i + 2) : 0.0f,
                          i + 3 < left ? float_at(type, chunk, i + 3) : 0.0f);
        }
    }
}

static uint lane_group(f32 type, uint lane, uint step, uint j) {
    return 128 * j + 4 * lane;
}

static void lane_codes(f32 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    lane_floats(type, chunk, lane, left, is_aligned, w);
}

static uint lane_group(f16 type, uint lane, uint step, uint j) {
    return 128 * j + 4 * lane;
}

static void lane_codes(f16 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    lane_floats(type, chunk, lane, left, is_aligned, w);
}

static uint lane_group(bf16 type, uint lane, uint step, uint j) {
    return 128 * j + 4 * lane;
}

static void lane_codes(bf16 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    lane_floats(type, chunk, lane, left, is_aligned, w);
}

/* ---- Q8_0: 8 lanes to a block, 4 blocks further on for each group ---- */

static uint lane_group(q8_0 type, uint lane, uint step, uint j) {
    return 128 * j + 4 * lane;
}

static void lane_codes(q8_0 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint j = 0; j < 4; j++) {
        const bool is_there = 128 * j + 4 * lane < left;
        device const uchar *block = chunk + (is_there ? 4 * j + lane / 8 : 0) * 34;
        w[j] = biased_bytes(load_u32(block + 2 + 4 * (lane % 8)) ^ 0x80808080, 128.0f);
        scale[j] = is_there ? load_f16(block) : 0.0f;
    }
}

/* ---- Q4_K and Q5_K: 16 lanes to a super-block; a lane has 8 bytes of nibbles, 8 values of one block and of the next
 * ---- */

static uint lane_group_of_pair(uint lane, uint j) {
    return 256 * (lane / 16) + 64 * (lane % 16 / 4) + 32 * (j / 2) + 8 * (lane % 4) + 4 * (j % 2);
}

static uint lane_group(q4_k type, uint lane, uint step, uint j) {
    return lane_group_of_pair(lane, j);
}

static uint lane_group(q5_k type, uint lane, uint step, uint j) {
    return lane_group_of_pair(lane, j);
}

/* Words that lie on multiples of 4 bytes or, if is_aligned, of their own size. */
static uint2 two_words(device const uchar *p, bool is_aligned) {
    if (is_aligned) return *(device const uint2 *)p;
    device const uint *words = (device const uint *)p;
    return uint2(words[0], words[1]);
}

static uint4 four_words(device const uchar *p, bool is_aligned) {
    if (is_aligned) return *(device const uint4 *)p;
    device const uint *words = (device const uint *)p;
    return uint4(words[0], words[1], words[2], words[3]);
}

/* A float that stands for an integer as byte i of word, times d, rounded once: (2^23 + byte) d - 2^23 d. */
static float byte_times(uint word, uint i, float d) {
    return fma(put_byte(word, i, 0, 0x4B000000), d, -8388608.0f * d);
}

/* Of the blocks 2 c and 2 c + 1, from the 16 bytes before the codes: d, m, and factors of 6 bits as
 * factors_of_six_bits has them one by one. Codes are 128 + step * code: the scale takes the step, the offset the 128
 * and the minimum. */
static void factors_of_pair(uint4 words, uint c, bool is_there, float step, thread float *scale,
                            thread float *offset) {
    const uint both = is_there ? words.x : 0;
    const float d = half_of_bits(both & 0xFFFF) * (1.0f / step), m = -half_of_bits(both >> 16);
    const uint shift = 16 * (c % 2);
    const uint low_f = words.y >> shift, low_g = words.z >> shift, high = words.w >> shift;
    const uint f = c < 2 ? low_f & 0x3F3F : (high & 0x0F0F) | (low_f >> 2 & 0x3030);
    const uint g = c < 2 ? low_g & 0x3F3F : (high >> 4 & 0x0F0F) | (low_g >> 2 & 0x3030);
    for (uint s = 0; s < 2; s++) {
        scale[s] = byte_times(f, s, d);
        offset[s] = fma(scale[s], -128.0f, byte_times(g, s, m));
    }
}

static void lane_codes(q4_k type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 144;
    const uint c = lane % 16 / 4;
    const uint2 codes = two_words(block + 16 + 32 * c + 8 * (lane % 4), is_aligned);
    w[0] = byte_fractions(codes.x << 3 & 0x78787878);
    w[1] = byte_fractions(codes.y << 3 & 0x78787878);
    w[2] = byte_fractions(codes.x >> 1 & 0x78787878);
    w[3] = byte_fractions(codes.y >> 1 & 0x78787878);
    factors_of_pair(four_words(block, is_aligned), c, is_there, 8.0f, scale, offset);
}

static void lane_codes(q5_k type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 176;
    const uint c = lane % 16 / 4;
    const uint2 codes = two_words(block + 48 + 32 * c + 8 * (lane % 4), is_aligned);
    const uint2 high = two_words(block + 16 + 8 * (lane % 4), is_aligned);
    for (uint i = 0; i < 2; i++) {
        const uint low = i == 0 ? codes.x : codes.y, fifth = (i == 0 ? high.x : high.y) >> (2 * c);
        w[i] = byte_fractions((low << 2 & 0x3C3C3C3C) | (fifth << 6 & 0x40404040));
        w[2 + i] = byte_fractions((low >> 2 & 0x3C3C3C3C) | (fifth << 5 & 0x40404040));
    }
    factors_of_pair(four_words(block, is_aligned), c, is_there, 4.0f, scale, offset);
}

/* ---- Q6_K: 16 lanes to a super-block; a lane has 4 values of each block of a half ---- */

static uint lane_group(q6_k type, uint lane, uint step, uint j) {
    return 256 * (lane / 16) + 128 * (lane % 16 / 8) + 32 * j + 4 * (lane % 8);
}

static void lane_codes(q6_k type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 16) < left;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 210;
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

/* ---- Q2_K: 4 lanes to a super-block; a lane's 16 bytes hold 16 values of each block of a half: 4 steps ---- */

static uint lane_group(q2_k type, uint lane, uint step, uint j) {
    return 256 * (lane / 4) + 128 * (lane % 4 / 2) + 32 * step + 16 * (lane % 2) + 4 * j;
}

static void lane_codes(q2_k type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 4) < left;
    device const uchar *block = chunk + (is_there ? lane / 4 : 0) * 84;
    device const uint *codes = (device const uint *)(block + 16 + 16 * (lane % 4));
    device const uint *factors = (device const uint *)(block + 8 * (lane % 4 / 2));
    const uint both = is_there ? *(device const uint *)(block + 80) : 0;
    for (uint j = 0; j < 4; j++) {
        const uint word = codes[j];
        const uint high = step == 0 ? word << 5 : step == 1 ? word << 3 : step == 2 ? word << 1 : word >> 1;
        w[j] = byte_fractions(high & 0x60606060);
    }
    const uint two = factors[step / 2] >> (8 * (lane % 2) + 16 * (step % 2));
    const float d = half_of_bits(both & 0xFFFF) * (1.0f / 32.0f), m = -half_of_bits(both >> 16);
    scale[0] = byte_times(two & 15, 0, d);
    offset[0] = fma(scale[0], -128.0f, byte_times(two >> 4 & 15, 0, m));
}

/* ---- Q3_K: the same; the third bits of 16 values of each block lie in one word of 4 ---- */

static uint lane_group(q3_k type, uint lane, uint step, uint j) {
    return 256 * (lane / 4) + 128 * (lane % 4 / 2) + 32 * step + 16 * (lane % 2) + 4 * j;
}

static void lane_codes(q3_k type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 256 * (lane / 4) < left;
    const uint half_block = lane % 4 / 2, s = lane % 2;
    device const uchar *block = chunk + (is_there ? lane / 4 : 0) * 110;
    for (uint j = 0; j < 4; j++) {
        const uint word = load_u32(block + 32 + 16 * (lane % 4) + 4 * j);
        const uint high = load_u32(block + 16 * s + 4 * j) >> (4 * half_block) << (6 - step);
        const uint low = step == 0 ? word << 4 : step == 1 ? word << 2 : step == 2 ? word : word >> 2;
        w[j] = byte_fractions((low & 0x30303030) | (high & 0x40404040));
    }
    const uint low = uint(block[96 + 2 * step + s]) >> (4 * half_block) & 15;
    const uint high = uint(block[104 + (2 * step + s) % 4]) >> (2 * (2 * half_block + step / 2)) & 3;
    const float d = is_there ? load_f16(block + 108) * (1.0f / 16.0f) : 0.0f;
    scale[0] = byte_times(low | high << 4, 0, d) - 32.0f * d;
    offset[0] = scale[0] * -192.0f;
}

/* ---- Q4_0, Q4_1, Q5_0 and Q5_1: 4 lanes to a block, which have 4 of its first 16 values and 4 of the others, and the
 * same of a block 8 further on ---- */

static uint lane_group_of_halves(uint lane, uint j) {
    return 256 * (j / 2) + 32 * (lane / 4) + 16 * (j % 2) + 4 * (lane % 4);
}

/* Bits 0 .. 3 of a word as bit 4 of its bytes. */
static uint fifth_bits(uint high) {
    return (high & 1) << 4 | (high & 2) << 11 | (high & 4) << 18 | (high & 8) << 25;
}

/* A block's two groups, from its nibbles on: codes less bias. high: its fifth bits. */
static void groups_of_halves(device const uchar *nibbles, uint high, float bias, uint lane, thread float4 *w) {
    const uint word = load_u32(nibbles + 4 * (lane % 4));
    w[0] = biased_bytes((word & 0x0F0F0F0F) | fifth_bits(high >> (4 * (lane % 4))), bias);
    w[1] = biased_bytes((word >> 4 & 0x0F0F0F0F) | fifth_bits(high >> (16 + 4 * (lane % 4))), bias);
}

static uint lane_group(q4_0 type, uint lane, uint step, uint j) {
    return lane_group_of_halves(lane, j);
}

static uint lane_group(q4_1 type, uint lane, uint step, uint j) {
    return lane_group_of_halves(lane, j);
}

static uint lane_group(q5_0 type, uint lane, uint step, uint j) {
    return lane_group_of_halves(lane, j);
}

static uint lane_group(q5_1 type, uint lane, uint step, uint j) {
    return lane_group_of_halves(lane, j);
}

static void lane_codes(q4_0 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint i = 0; i < 2; i++) {
        const bool is_there = 256 * i + 32 * (lane / 4) < left;
        device const uchar *block = chunk + (is_there ? 8 * i + lane / 4 : 0) * 18;
        groups_of_halves(block + 2, 0, 8.0f, lane, w + 2 * i);
        scale[i] = is_there ? load_f16(block) : 0.0f;
    }
}

static void lane_codes(q4_1 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint i = 0; i < 2; i++) {
        const bool is_there = 256 * i + 32 * (lane / 4) < left;
        device const uchar *block = chunk + (is_there ? 8 * i + lane / 4 : 0) * 20;
        groups_of_halves(block + 4, 0, 0.0f, lane, w + 2 * i);
        scale[i] = is_there ? load_f16(block) : 0.0f;
        offset[i] = is_there ? load_f16(block + 2) : 0.0f;
    }
}

static void lane_codes(q5_0 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint i = 0; i < 2; i++) {
        const bool is_there = 256 * i + 32 * (lane / 4) < left;
        device const uchar *block = chunk + (is_there ? 8 * i + lane / 4 : 0) * 22;
        groups_of_halves(block + 6, load_u32(block + 2), 16.0f, lane, w + 2 * i);
        scale[i] = is_there ? load_f16(block) : 0.0f;
    }
}

static void lane_codes(q5_1 type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint i = 0; i < 2; i++) {
        const bool is_there = 256 * i + 32 * (lane / 4) < left;
        device const uchar *block = chunk + (is_there ? 8 * i + lane / 4 : 0) * 24;
        groups_of_halves(block + 8, load_u32(block + 4), 0.0f, lane, w + 2 * i);
        scale[i] = is_there ? load_f16(block) : 0.0f;
        offset[i] = is_there ? load_f16(block + 2) : 0.0f;
    }
}

/* ---- IQ4_NL as Q4_0; IQ4_XS: 2 lanes to a block, 8 bytes of nibbles each ---- */

/* 128 plus the values of a word's low nibbles, and of its high ones, a byte each. */
static uint2 values_of_nibbles(uint word) {
#ifdef __CUDA_ARCH__
    const uint lower = word & 0x77777777, is_upper = word >> 3 & 0x11111111;
    uint both[2];
    for (uint i = 0; i < 2; i++) {   /* in the order of the nibbles; a code of 8 and more is in the upper words */
        const uint mask = __byte_perm(0x0000FF00, 0, is_upper >> (16 * i));
        both[i] = (__byte_perm(glm52_bytes_iq4[0], glm52_bytes_iq4[1], lower >> (16 * i)) & ~mask) |
                  (__byte_perm(glm52_bytes_iq4[2], glm52_bytes_iq4[3], lower >> (16 * i)) & mask);
    }
    return uint2(__byte_perm(both[0], both[1], 0x6420), __byte_perm(both[0], both[1], 0x7531));
#else
    uint2 bytes = uint2(0, 0);
    for (uint i = 0; i < 4; i++) {
        const uint low = word >> (8 * i) & 15, high = word >> (8 * i + 4) & 15;
        bytes.x |= (glm52_bytes_iq4[low / 4] >> (8 * (low % 4)) & 255) << (8 * i);
        bytes.y |= (glm52_bytes_iq4[high / 4] >> (8 * (high % 4)) & 255) << (8 * i);
    }
    return bytes;
#endif
}

static uint lane_group(iq4_nl type, uint lane, uint step, uint j) {
    return lane_group_of_halves(lane, j);
}

static void lane_codes(iq4_nl type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    for (uint i = 0; i < 2; i++) {
        const bool is_there = 256 * i + 32 * (lane / 4) < left;
        device const uchar *block = chunk + (is_there ? 8 * i + lane / 4 : 0) * 18;
        const uint2 values = values_of_nibbles(load_u32(block + 2 + 4 * (lane % 4)));
        w[2 * i] = biased_bytes(values.x, 128.0f);
        w[2 * i + 1] = biased_bytes(values.y, 128.0f);
        scale[i] = is_there ? load_f16(block) : 0.0f;
    }
}

static uint lane_group(iq4_xs type, uint lane, uint step, uint j) {
    return 32 * (lane / 2) + 16 * (j / 2) + 8 * (lane % 2) + 4 * (j % 2);
}

static void lane_codes(iq4_xs type, threadgroup const uint *space, device const uchar *chunk, uint lane, uint step,
                       uint left, bool is_aligned, thread float4 *w, thread float *scale, thread float *offset) {
    const bool is_there = 32 * (lane / 2) < left;
    const uint b = lane / 2 % 8;
    device const uchar *block = chunk + (is_there ? lane / 16 : 0) * 136;
    const uint2 words = two_words(block + 8 + 16 * b + 8 * (lane % 2), is_aligned);
    const uint2 first = values_of_nibbles(words.x), second = values_of_nibbles(words.y);
    w[0] = biased_bytes(first.x, 128.0f);
    w[1] = biased_bytes(second.x, 128.0f);
    w[2] = biased_bytes(first.y, 128.0f);
    w[3] = biased_bytes(second.y, 128.0f);
    const uint both = *(device const uint *)block, low = uint(block[4 + b / 2]) >> (4 * (b % 2)) & 15;
    const float d = is_there ? half_of_bits(both & 0xFFFF) : 0.0f;
    scale[0] = d * (float(low | (both >> (16 + 2 * b) & 3) << 4) - 32.0f);
}

#endif
