/* blocks.h - what the files of formats share: names per instruction set, loads, and the two loops that a format
 * needs, decode and dot_q8, for blocks of 32 and for super-blocks of 256 values.
 *
 * Every file of native/quant but quant.c is compiled once per instruction set, with GLM52_SET its name. The
 * loops are written for the compiler's vectoriser: codes are unpacked to 16-bit numbers on the stack, all of a
 * block before the first is used, then multiplied in loops of a fixed 32.
 *
 * Order of summation of dot_q8. Blocks of 32 activations are numbered over the whole row; block b adds its term to
 * lane[b % 8], and in the end lane[j] += lane[j + 4]; += lane[j + 2]; lane[0] + lane[1]. The term is
 *     (d * scale[b]) * n                          n: integer, sum of f * code * q over the block
 *     (d * scale[b]) * n +- (m * scale[b]) * k    k: integer, sum of g * q, for formats with an offset
 * with d and m the block's or super-block's floats and f and g the small integer factors of sub-blocks. n and k
 * stay below 2^24, each file says why: exact as int32, in any order, and exact as floats. */
#ifndef GLM52_BLOCKS_H
#define GLM52_BLOCKS_H

#include <string.h>

#include "float_bits.h"
#include "quant.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "blocks are little-endian and read as they lie"
#endif

#ifndef GLM52_SET
#define GLM52_SET portable
#elif defined(__aarch64__)
#define FEW_BY_NEON     /* dot_few is written by hand: few_neon.h; the portable set stays the compiler's */
#endif
#define GLM52_JOIN_(a, b) a##_##b
#define GLM52_JOIN(a, b) GLM52_JOIN_(a, b)
#define GLM52_IN_SET(name) GLM52_JOIN(name, GLM52_SET)

/* A format's row of the table. */
#define GLM52_DEFINE_FORMAT(name, type, block_size, block_bytes, decode, ...)   \
    const struct glm52_quant GLM52_IN_SET(glm52_quant_##name) = {               \
        #name, type, block_size, block_bytes, decode, __VA_ARGS__               \
    }

/* For loops that take what differs between formats as a function. */
#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---- loads: blocks lie unaligned ---- */

static inline uint16_t load_u16(const uint8_t *p) {
    uint16_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static inline uint32_t load_u32(const uint8_t *p) {
    uint32_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

static inline uint64_t load_u64(const uint8_t *p) {
    uint64_t value;
    memcpy(&value, p, sizeof(value));
    return value;
}

/* A half's exponent and fraction, moved to the places of a float's, are its value times 2^-112: the product is
 * exact for normal and subnormal halves alike; infinity and NaN get the float's exponent for them. Without
 * branches, so that a loop of it becomes vector code. */
static inline float f16_to_f32(uint16_t half) {
    const uint32_t magnitude = (uint32_t)(half & 0x7FFF) << 13;
    const uint32_t scaled = bits_of_float(float_of_bits(magnitude) * 0x1p112f);
    const uint32_t special = magnitude >= 0x0F800000 ? 0x7F800000 : 0;
    return float_of_bits(scaled | special | (uint32_t)(half & 0x8000) << 16);
}

static inline float load_f16(const uint8_t *p) {
    return f16_to_f32(load_u16(p));
}

/* low [8], high [8] = nibbles of 8 bytes */
static inline void nibbles_of_8(const uint8_t *p, int8_t *low, int8_t *high) {
    const uint64_t bytes = load_u64(p);
    const uint64_t l = bytes & 0x0F0F0F0F0F0F0F0F, h = bytes >> 4 & 0x0F0F0F0F0F0F0F0F;
    memcpy(low, &l, sizeof(l));
    memcpy(high, &h, sizeof(h));
}

/* Factors of Q4_K and Q5_K, 8 pairs of 6 bits: the first four f, the first four g in the low bits of a byte each; f and
 * g of the last four as nibbles of one byte, their upper pairs of bits in the tops of the first eight bytes. Returns
 * eight bytes f. */
static inline uint64_t factors_q4_k(const uint8_t *in, uint64_t *g) {
    const uint32_t a = load_u32(in), b = load_u32(in + 4), c = load_u32(in + 8);
    const uint32_t low = 0x0F0F0F0F, top = 0x30303030, six = 0x3F3F3F3F;
    *g = (uint64_t)((c >> 4 & low) | (b >> 2 & top)) << 32 | (b & six);
    return (uint64_t)((c & low) | (a >> 2 & top)) << 32 | (a & six);
}

static inline void put_factors_q4_k(const uint8_t *in, int8_t *f, int8_t *g) {
    uint64_t minimums;
    const uint64_t factors = factors_q4_k(in, &minimums);
    memcpy(f, &factors, sizeof(factors));
    memcpy(g, &minimums, sizeof(minimums));
}

/* ---- sums ---- */

#define LANES 8

static inline float sum_lanes(const float *lane) {
    float half[4];
    for (int j = 0; j < 4; j++) half[j] = lane[j] + lane[j + 4];
    return (half[0] + half[2]) + (half[1] + half[3]);
}

/* 32 codes times 32 activations. Codes are 16-bit because compilers then find the multiply-add of pairs that
 * every vector unit has. */
static inline int32_t dot_codes(const int16_t *code, const int8_t *q) {
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) sum += code[i] * q[i];
    return sum;
}

/* ---- super-blocks of 256 values, which are 8 blocks of 32: one for each lane ---- */

#define SUPER 256

/* code [256] *= factor [16], a factor for 16 codes. One loop of 32 with a choice: loops of 16 are unrolled before
 * gcc looks for vectors, and then it finds worse ones. */
static inline void scale_codes_16(int16_t *code, const int8_t *factor) {
    for (int b = 0; b < 8; b++) {
        const int8_t f0 = factor[2 * b], f1 = factor[2 * b + 1];
        for (int i = 0; i < 32; i++) code[32 * b + i] = (int16_t)(code[32 * b + i] * (i < 16 ? f0 : f1));
    }
}

/* out [256] = (d f) code, f [16] or [8] */
static inline void decode_super(const int16_t *code, float d, const int8_t *f, int factors, float *out) {
    for (int b = 0; b < 8; b++) {
        const float d0 = d * (float)(factors == 16 ? f[2 * b] : f[b]);
        const float d1 = d * (float)(factors == 16 ? f[2 * b + 1] : f[b]);
        for (int i = 0; i < 32; i++) out[32 * b + i] = (i < 16 ? d0 : d1) * (float)code[32 * b + i];
    }
}

/* n [8] = integer sums of code [256] and 256 activations */
static inline void dot_super(const int16_t *code, const int8_t *q, int32_t *n) {
    for (int b = 0; b < 8; b++) n[b] = dot_codes(code + 32 * b, q + 32 * b);
}

/* Unpacks a super-block without offset, whose values are (d f) code: code [256], factor [factors]; returns d. */
typedef float unpack_super(const uint8_t *block, int16_t *code, int8_t *factor);

ALWAYS_INLINE void decode_supers(unpack_super *unpack, size_t bytes, int factors, const uint8_t *block, float *out,
                                 size_t count) {
    for (size_t at = 0; at < count; at += SUPER, block += bytes) {
        int16_t code[SUPER];
        int8_t factor[16];
        const float d = unpack(block, code, factor);
        decode_super(code, d, factor, factors, out + at);
    }
}

ALWAYS_INLINE float dot_supers(unpack_super *unpack, size_t bytes, int factors, const uint8_t *block,
                               const struct glm52_q8 *row, size_t count) {
    float lane[LANES] = {0};
    for (size_t at = 0; at < count; at += SUPER, block += bytes) {
        int16_t code[SUPER];
        int8_t factor[16];
        int32_t n[8];
        const float d = unpack(block, code, factor);
        if (factors == 16) scale_codes_16(code, factor);
        dot_super(code, row->q + at, n);
        for (int b = 0; b < 8; b++) {
            if (factors == 8) n[b] *= factor[b];
            lane[b] += (d * row->scale[at / 32 + b]) * (float)n[b];
        }
    }
    return sum_lanes(lane);
}

/* decode_<name> and dot_<name> of a format of such super-blocks. */
#define GLM52_SUPER_FUNCTIONS(name, bytes, factors, unpack)                                         \
    static void decode_##name(const void *blocks, float *out, size_t count) {                       \
        decode_supers(unpack, bytes, factors, blocks, out, count);                                  \
    }                                                                                               \
    static float dot_##name(const void *blocks, const struct glm52_q8 *row, size_t count) {         \
        return dot_supers(unpack, bytes, factors, blocks, row, count);                              \
    }

/* The whole format, its codes of magnitude code_max at most. Needs panel.h. */
#define GLM52_DEFINE_SUPER(name, type, bytes, factors, code_max, unpack)                            \
    GLM52_SUPER_FUNCTIONS(name, bytes, factors, unpack)                                             \
    PANEL_OF_SUPER(name, unpack)                                                                    \
    PANEL_FUNCTIONS(name, group_##name, bytes, {factors, false, code_max, false})                   \
    GLM52_DEFINE_FORMAT(name, type, SUPER, bytes, decode_##name, dot_##name, PANEL_OF(name))

#endif
