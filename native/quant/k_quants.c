/* k_quants.c - Q2_K to Q6_K: super-blocks of 256 values with float16 factors d and, in Q2_K, Q4_K and Q5_K, m;
 * sub-blocks of 16 or 32 values have small integer factors f and g of them.
 *
 *     Q2_K  factors 16, codes 64, d 2, m 2                 16s   (d f) code - (m g)     f, g 4 bits
 *     Q3_K  high 32, codes 64, factors 12, d 2             16s   (d f) code             f 6 bits, -32..31
 *     Q4_K  d 2, m 2, factors 12, codes 128                32s   (d f) code - (m g)     f, g 6 bits
 *     Q5_K  d 2, m 2, factors 12, high 32, codes 128       32s   (d f) code - (m g)     f, g 6 bits
 *     Q6_K  codes 128, high 64, factors 16, d 2            16s   (d f) code             f 8 bits, -128..127
 *
 * Integers of dot_q8: n sums f * code * q over 32 values, k sums g * q. Bounds of |n|, with |q| <= 127:
 *     Q2_K 15 * 3 * 127 * 32 = 182,880     Q3_K 32 * 4 * 127 * 32 = 520,192     Q4_K 63 * 15 * 127 * 32 = 3,840,480
 *     Q5_K 63 * 31 * 127 * 32 = 7,936,992  Q6_K 128 * 32 * 127 * 32 = 16,646,144, and |k| <= 63 * 127 * 32 = 256,032
 * all below 2^24; and |f * code| <= 4,096, which is an int16. */
#include "panel.h"
#if defined(__AVX512VBMI__)
#include "few_avx512.h"
#elif defined(FEW_BY_AVX2)
#include "few_avx2.h"
#elif defined(FEW_BY_NEON)
#include "few_neon.h"
#endif

/* Codes of 2 bits, Q2_K's and the low ones of Q3_K: each 32 bytes hold 4 blocks of 32, a pair of bits each. */
static inline void codes_2_bits(const uint8_t *in, int16_t *code) {
    for (int half = 0; half < 2; half++) {
        for (int pair = 0; pair < 4; pair++) {
            for (int i = 0; i < 32; i++) {
                code[128 * half + 32 * pair + i] = (int16_t)(in[32 * half + i] >> 2 * pair & 3);
            }
        }
    }
}

/* Codes of 4 bits: each 32 bytes hold 2 blocks of 32, the low nibbles and the high ones. */
static inline void codes_4_bits(const uint8_t *in, int16_t *code) {
    for (int c = 0; c < 4; c++) {
        for (int i = 0; i < 32; i++) {
            code[64 * c + i] = (int16_t)(in[32 * c + i] & 15);
            code[64 * c + 32 + i] = (int16_t)(in[32 * c + i] >> 4);
        }
    }
}

static inline void codes_q3_k(const uint8_t *high, const uint8_t *low, int16_t *code) {
    codes_2_bits(low, code);
    for (int b = 0; b < 8; b++) {
        for (int i = 0; i < 32; i++) {
            code[32 * b + i] = (int16_t)(code[32 * b + i] + ((high[i] >> b & 1) << 2) - 4);
        }
    }
}

static inline void codes_q5_k(const uint8_t *high, const uint8_t *low, int16_t *code) {
    codes_4_bits(low, code);
    for (int b = 0; b < 8; b++) {
        for (int i = 0; i < 32; i++) {
            code[32 * b + i] = (int16_t)(code[32 * b + i] | (high[i] >> b & 1) << 4);
        }
    }
}

/* Each 64 bytes of low and 32 of high hold 4 blocks of 32: low nibbles of 64 values, then their high nibbles. */
static inline void codes_q6_k(const uint8_t *low, const uint8_t *high, int16_t *code) {
    for (int half = 0; half < 2; half++) {
        for (int b = 0; b < 4; b++) {
            const uint8_t *nibbles = low + 64 * half + 32 * (b & 1);
            for (int i = 0; i < 32; i++) {
                const int four = nibbles[i] >> 4 * (b >> 1) & 15, two = high[32 * half + i] >> 2 * b & 3;
                code[128 * half + 32 * b + i] = (int16_t)((four | two << 4) - 32);
            }
        }
    }
}

static inline void factors_q2_k(const uint8_t *in, int8_t *f, int8_t *g) {
    nibbles_of_8(in, f, g);
    nibbles_of_8(in + 8, f + 8, g + 8);
}

/* 16 factors of 6 bits: low nibbles of 8 bytes, then their high ones; upper pairs of bits from 4 more bytes, the
 * lowest pairs first. */
static inline void factors_q3_k(const uint8_t *in, int8_t *f) {
    for (int i = 0; i < 16; i++) {
        const int low = in[i % 8] >> 4 * (i / 8) & 15, high = in[8 + i % 4] >> 2 * (i / 4) & 3;
        f[i] = (int8_t)((low | high << 4) - 32);
    }
}

/* ---- Q3_K and Q6_K ---- */

static inline float unpack_q3_k(const uint8_t *block, int16_t *code, int8_t *factor) {
    codes_q3_k(block, block + 32, code);
    factors_q3_k(block + 96, factor);
    return load_f16(block + 108);
}

static inline float unpack_q6_k(const uint8_t *block, int16_t *code, int8_t *factor) {
    codes_q6_k(block, block + 128, code);
    memcpy(factor, block + 192, 16);
    return load_f16(block + 208);
}

GLM52_DEFINE_SUPER(Q3_K, 11, 110, 16, 4, unpack_q3_k);
#ifdef __AVX512VBMI__
GLM52_SUPER_FUNCTIONS(q6_k, 210, 16, unpack_q6_k)
PAIR_FUNCTIONS(q6_k, pair_q6_k, 210, {16, false, 32, true})
FEW_FUNCTION(q6_k, step_q6_k, 210)
GLM52_DEFINE_FORMAT(Q6_K, 14, SUPER, 210, decode_q6_k, dot_q6_k, PANEL_AND_FEW_OF(q6_k, arrange_words));
#elif defined(FEW_BY_AVX2)
GLM52_SUPER_FUNCTIONS(q6_k, 210, 16, unpack_q6_k)
PANEL_OF_SUPER(q6_k, unpack_q6_k)
PANEL_FUNCTIONS(q6_k, group_q6_k, 210, {16, false, 32, false})
FEW_FUNCTION(q6_k, step_q6_k, 210)
GLM52_DEFINE_FORMAT(Q6_K, 14, SUPER, 210, decode_q6_k, dot_q6_k, PANEL_AND_FEW_OF(q6_k, arrange_words));
#elif defined(FEW_BY_NEON)
GLM52_SUPER_FUNCTIONS(q6_k, 210, 16, unpack_q6_k)
FEW_FUNCTION(q6_k, step_q6_k, 210, false)
GLM52_DEFINE_FORMAT(Q6_K, 14, SUPER, 210, decode_q6_k, dot_q6_k, FEW_OF(q6_k));
#else
GLM52_DEFINE_SUPER(Q6_K, 14, 210, 16, 32, unpack_q6_k);
#endif

/* ---- Q2_K, Q4_K and Q5_K ---- */

/* out [256] -= m g, a factor for 16 values */
static inline void subtract_minimum_16(float m, const int8_t *g, float *out) {
    for (int b = 0; b < 8; b++) {
        const float m0 = m * (float)g[2 * b], m1 = m * (float)g[2 * b + 1];
        for (int i = 0; i < 32; i++) out[32 * b + i] -= i < 16 ? m0 : m1;
    }
}

static inline void add_terms(float *lane, float d, float m, const float *scale, const int32_t *n, const int32_t *k) {
    for (int b = 0; b < 8; b++) lane[b] += (d * scale[b]) * (float)n[b] - (m * scale[b]) * (float)k[b];
}

static void decode_q2_k(const void *blocks, float *out, size_t count) {
    const uint8_t *block = blocks;
    for (size_t at = 0; at < count; at += SUPER, block += 84) {
        int16_t code[SUPER];
        int8_t f[16], g[16];
        codes_2_bits(block + 16, code);
        factors_q2_k(block, f, g);
        decode_super(code, load_f16(block + 80), f, 16, out + at);
        subtract_minimum_16(load_f16(block + 82), g, out + at);
    }
}

static float dot_q2_k(const void *blocks, const struct glm52_q8 *row, size_t count) {
    const uint8_t *block = blocks;
    float lane[LANES] = {0};
    for (size_t at = 0; at < count; at += SUPER, block += 84) {
        const int16_t *sum = row->sum + at / 16;
        int16_t code[SUPER];
        int8_t f[16], g[16];
        int32_t n[8], k[8];
        codes_2_bits(block + 16, code);
        factors_q2_k(block, f, g);
        scale_codes_16(code, f);
        dot_super(code, row->q + at, n);
        for (int b = 0; b < 8; b++) k[b] = g[2 * b] * sum[2 * b] + g[2 * b + 1] * sum[2 * b + 1];
        add_terms(lane, load_f16(block + 80), load_f16(block + 82), row->scale + at / 32, n, k);
    }
    return sum_lanes(lane);
}

/* Q4_K and Q5_K differ in their codes alone. */
typedef void unpack_codes(const uint8_t *block, int16_t *code);

static inline void unpack_q4_k(const uint8_t *block, int16_t *code) {
    codes_4_bits(block + 16, code);
}

static inline void unpack_q5_k(const uint8_t *block, int16_t *code) {
    codes_q5_k(block + 16, block + 48, code);
}

ALWAYS_INLINE void decode_by_32(unpack_codes *unpack, size_t bytes, const uint8_t *block, float *out, size_t count) {
    for (; count; count -= SUPER, block += bytes) {
        int16_t code[SUPER];
        int8_t f[8], g[8];
        unpack(block, code);
        put_factors_q4_k(block + 4, f, g);
        const float d = load_f16(block), m = load_f16(block + 2);
        for (int b = 0; b < 8; b++, out += 32) {
            const float df = d * (float)f[b], mg = m * (float)g[b];
            for (int i = 0; i < 32; i++) out[i] = df * (float)code[32 * b + i] - mg;
        }
    }
}

ALWAYS_INLINE float dot_by_32(unpack_codes *unpack, size_t bytes, const uint8_t *block, const struct glm52_q8 *row,
                              size_t count) {
    float lane[LANES] = {0};
    for (size_t at = 0; at < count; at += SUPER, block += bytes) {
        const int16_t *sum = row->sum + at / 16;
        int16_t code[SUPER];
        int8_t f[8], g[8];
        int32_t n[8], k[8];
        unpack(block, code);
        put_factors_q4_k(block + 4, f, g);
        dot_super(code, row->q + at, n);
        for (int b = 0; b < 8; b++) {
            n[b] *= f[b];
            k[b] = g[b] * (sum[2 * b] + sum[2 * b + 1]);
        }
        add_terms(lane, load_f16(block), load_f16(block + 2), row->scale + at / 32, n, k);
    }
    return sum_lanes(lane);
}

static void decode_q4_k(const void *blocks, float *out, size_t count) {
    decode_by_32(unpack_q4_k, 144, blocks, out, count);
}

static float dot_q4_k(const void *blocks, const struct glm52_q8 *row, size_t count) {
    return dot_by_32(unpack_q4_k, 144, blocks, row, count);
}

static void decode_q5_k(const void *blocks, float *out, size_t count) {
    decode_by_32(unpack_q5_k, 176, blocks, out, count);
}

static float dot_q5_k(const void *blocks, const struct glm52_q8 *row, size_t count) {
    return dot_by_32(unpack_q5_k, 176, blocks, row, count);
}

/* ---- the same for many rows and for few ---- */

static inline void set_floats(float d, float m, struct unpacked *out) {
    for (int b = 0; b < 8; b++) {
        out->d[b] = d;
        out->m[b] = -m;
    }
}

/* g of 32 values is that of both their halves. */
ALWAYS_INLINE void group_by_32(unpack_codes *unpack, const uint8_t *block, struct unpacked *out) {
    int8_t g[8];
    unpack(block, out->code);
    put_factors_q4_k(block + 4, out->f, g);
    for (int b = 0; b < 8; b++) out->g[2 * b] = out->g[2 * b + 1] = g[b];
    set_floats(load_f16(block), load_f16(block + 2), out);
}

static inline void group_q5_k(const uint8_t *block, int blocks, struct unpacked *out) {
    (void)blocks;
    group_by_32(unpack_q5_k, block, out);
}

PANEL_FUNCTIONS(q5_k, group_q5_k, 176, {8, true, 31, false})
GLM52_DEFINE_FORMAT(Q5_K, 13, SUPER, 176, decode_q5_k, dot_q5_k, PANEL_OF(q5_k));

#ifdef __AVX512VBMI__

PAIR_FUNCTIONS(q2_k, pair_q2_k, 84, {16, true, 3, true})
PAIR_FUNCTIONS(q4_k, pair_q4_k, 144, {8, true, 15, true})
FEW_FUNCTION(q2_k, step_q2_k, 84)
FEW_FUNCTION(q4_k, step_q4_k, 144)
GLM52_DEFINE_FORMAT(Q2_K, 10, SUPER, 84, decode_q2_k, dot_q2_k, PANEL_AND_FEW_OF(q2_k, arrange_words));
GLM52_DEFINE_FORMAT(Q4_K, 12, SUPER, 144, decode_q4_k, dot_q4_k, PANEL_AND_FEW_OF(q4_k, arrange_words));

#else

static inline void group_q2_k(const uint8_t *block, int blocks, struct unpacked *out) {
    (void)blocks;
    codes_2_bits(block + 16, out->code);
    factors_q2_k(block, out->f, out->g);
    set_floats(load_f16(block + 80), load_f16(block + 82), out);
}

static inline void group_q4_k(const uint8_t *block, int blocks, struct unpacked *out) {
    (void)blocks;
    group_by_32(unpack_q4_k, block, out);
}

PANEL_FUNCTIONS(q2_k, group_q2_k, 84, {16, true, 3, false})
PANEL_FUNCTIONS(q4_k, group_q4_k, 144, {8, true, 15, false})
#ifdef FEW_BY_AVX2
FEW_FUNCTION(q2_k, step_q2_k, 84)
FEW_FUNCTION(q4_k, step_q4_k, 144)
GLM52_DEFINE_FORMAT(Q2_K, 10, SUPER, 84, decode_q2_k, dot_q2_k, PANEL_AND_FEW_OF(q2_k, arrange_words));
GLM52_DEFINE_FORMAT(Q4_K, 12, SUPER, 144, decode_q4_k, dot_q4_k, PANEL_AND_FEW_OF(q4_k, arrange_nibbles));
#elif defined(FEW_BY_NEON)
FEW_FUNCTION(q2_k, step_q2_k, 84, true)
FEW_FUNCTION(q4_k, step_q4_k, 144, true)
GLM52_DEFINE_FORMAT(Q2_K, 10, SUPER, 84, decode_q2_k, dot_q2_k, FEW_OF(q2_k));
GLM52_DEFINE_FORMAT(Q4_K, 12, SUPER, 144, decode_q4_k, dot_q4_k, FEW_OF(q4_k));
#else
GLM52_DEFINE_FORMAT(Q2_K, 10, SUPER, 84, decode_q2_k, dot_q2_k, PANEL_OF(q2_k));
GLM52_DEFINE_FORMAT(Q4_K, 12, SUPER, 144, decode_q4_k, dot_q4_k, PANEL_OF(q4_k));
#endif

#endif
