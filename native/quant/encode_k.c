/* encode_k.c - writes Q2_K to Q6_K. Their bytes are drawn in k_quants.c. */
#include "encode_minimum.h"
#include "encode_scale.h"

/* ---- bytes ---- */

/* Codes of 2 bits: each 32 bytes hold 4 blocks of 32, a pair of bits each. */
static inline void pack_2_bits(const uint8_t *code, uint8_t *out) {
    for (int i = 0; i < 64; i++) {
        const uint8_t *from = code + 128 * (i / 32) + i % 32;
        out[i] = (uint8_t)((from[0] & 3) | (from[32] & 3) << 2 | (from[64] & 3) << 4 | (from[96] & 3) << 6);
    }
}

/* Bit number bit of code 32 b + i becomes bit b of byte i. */
static inline void pack_high_bit(const uint8_t *code, int bit, uint8_t *out) {
    memset(out, 0, 32);
    for (int i = 0; i < SUPER; i++) out[i % 32] = (uint8_t)(out[i % 32] | (code[i] >> bit & 1) << i / 32);
}

/* Codes of 4 bits: each 32 bytes hold 2 blocks of 32, the low nibbles and the high ones. */
static inline void pack_4_bits(const uint8_t *code, uint8_t *out) {
    for (int i = 0; i < 128; i++) {
        const uint8_t *from = code + 64 * (i / 32) + i % 32;
        out[i] = (uint8_t)((from[0] & 15) | (from[32] & 15) << 4);
    }
}

/* f, g [8] of 6 bits, as factors_q4_k reads them. */
static inline void pack_pairs(const lanes *f, const lanes *g, int first, uint8_t *out) {
    for (int i = 0; i < 4; i++) {
        const int f0 = (int)(*f)[first + i], f1 = (int)(*f)[first + 4 + i];
        const int g0 = (int)(*g)[first + i], g1 = (int)(*g)[first + 4 + i];
        out[i] = (uint8_t)(f0 | (f1 >> 4) << 6);
        out[4 + i] = (uint8_t)(g0 | (g1 >> 4) << 6);
        out[8 + i] = (uint8_t)((f1 & 15) | (g1 & 15) << 4);
    }
}

/* ---- Q2_K ---- */

static void encode_q2_k(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct steps steps = {.high = 3, .cut = 0.30f, .cuts = 6};
    static const struct pair_factors factors = {.high = 15, .parts = 16, .tries = 3};
    uint8_t *out = blocks;
    for (size_t b = 0; b < count / SUPER; b++, out += 84) {
        struct lane_group group;
        struct super_line fit;
        lanes q[16];
        uint8_t code[SUPER];
        load_lanes(x, importance, row_size, b, count / SUPER, 16, 16, &group);
        fit_supers_with_minimum(&steps, &factors, &group, 16, &fit, q);
        store_codes_of_lanes(q, 16, 0, code);
        for (int i = 0; i < 16; i++) out[i] = (uint8_t)((int)fit.f[i] | (int)fit.g[i] << 4);
        pack_2_bits(code, out + 16);
        store_u16(out + 80, fit.d[0]);
        store_u16(out + 82, fit.m[0]);
    }
}

/* ---- Q4_K and Q5_K: two super-blocks at a time ---- */

ALWAYS_INLINE void encode_by_32(const struct steps *steps, int bits, const float *x, const float *importance,
                                size_t row_size, size_t count, uint8_t *out) {
    const struct pair_factors factors = {.high = 63, .parts = 8, .tries = 1};
    for (size_t first = 0; first < count / SUPER; first += 2) {
        struct lane_group group;
        struct super_line fit;
        lanes q[32];
        uint8_t code[2 * SUPER];
        load_lanes(x, importance, row_size, first, count / SUPER, 8, 32, &group);
        fit_supers_with_minimum(steps, &factors, &group, 32, &fit, q);
        store_codes_of_lanes(q, 32, 0, code);
        for (size_t s = 0; s < 2 && first + s < count / SUPER; s++) {
            store_u16(out, fit.d[s]);
            store_u16(out + 2, fit.m[s]);
            pack_pairs(&fit.f, &fit.g, 8 * (int)s, out + 4);
            if (bits == 5) pack_high_bit(code + SUPER * s, 4, out + 16);
            pack_4_bits(code + SUPER * s, out + (bits == 5 ? 48 : 16));
            out += bits == 5 ? 176 : 144;
        }
    }
}

static void encode_q4_k(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct steps steps = {.high = 15, .cut = 0.12f, .cuts = 5};
    encode_by_32(&steps, 4, x, importance, row_size, count, blocks);
}

static void encode_q5_k(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct steps steps = {.high = 31, .cut = 0.08f, .cuts = 5};
    encode_by_32(&steps, 5, x, importance, row_size, count, blocks);
}

/* ---- Q3_K and Q6_K ---- */

/* 16 factors of 6 bits, as factors_q3_k reads them. */
static inline void pack_factors(const lanes *factor, uint8_t *out) {
    memset(out, 0, 12);
    for (int i = 0; i < 16; i++) {
        const int value = (int)(*factor)[i] + 32;
        out[i % 8] = (uint8_t)(out[i % 8] | (value & 15) << 4 * (i / 8));
        out[8 + i % 4] = (uint8_t)(out[8 + i % 4] | (value >> 4) << 2 * (i / 4));
    }
}

static void encode_q3_k(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct codes codes = {.low = -4, .high = 3, .start = 0.5f, .end = 1.4f, .steps = 20};
    static const struct factors factors = {.low = -32, .high = 31, .parts = 16};
    uint8_t *out = blocks;
    for (size_t b = 0; b < count / SUPER; b++, out += 110) {
        struct lane_group group;
        struct super_fit fit;
        lanes q[16];
        uint8_t code[SUPER];
        load_lanes(x, importance, row_size, b, count / SUPER, 16, 16, &group);
        fit_supers(&codes, &factors, &group, 16, &fit, q);
        store_codes_of_lanes(q, 16, 4, code);
        pack_high_bit(code, 2, out);
        pack_2_bits(code, out + 32);
        pack_factors(&fit.factor, out + 96);
        store_u16(out + 108, fit.half[0]);
    }
}

/* Each 64 bytes of low and 32 of high hold 4 blocks of 32, as codes_q6_k reads them. */
static inline void pack_6_bits(const uint8_t *code, uint8_t *low, uint8_t *high) {
    for (int half = 0; half < 2; half++) {
        const uint8_t *from = code + 128 * half;
        for (int i = 0; i < 32; i++) {
            low[64 * half + i] = (uint8_t)((from[i] & 15) | (from[64 + i] & 15) << 4);
            low[64 * half + 32 + i] = (uint8_t)((from[32 + i] & 15) | (from[96 + i] & 15) << 4);
            high[32 * half + i] = (uint8_t)(from[i] >> 4 | from[32 + i] >> 4 << 2 | from[64 + i] >> 4 << 4 |
                                            from[96 + i] >> 4 << 6);
        }
    }
}

static void encode_q6_k(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct codes codes = {.low = -32, .high = 31, .start = 0.88f, .end = 1.08f, .steps = 16};
    static const struct factors factors = {.low = -128, .high = 127, .parts = 16};
    uint8_t *out = blocks;
    for (size_t b = 0; b < count / SUPER; b++, out += 210) {
        struct lane_group group;
        struct super_fit fit;
        lanes q[16];
        uint8_t code[SUPER];
        load_lanes(x, importance, row_size, b, count / SUPER, 16, 16, &group);
        fit_supers(&codes, &factors, &group, 16, &fit, q);
        store_codes_of_lanes(q, 16, 32, code);
        pack_6_bits(code, out, out + 128);
        for (int i = 0; i < 16; i++) out[192 + i] = (uint8_t)(int8_t)fit.factor[i];
        store_u16(out + 208, fit.half[0]);
    }
}

GLM52_DEFINE_ENCODER(Q2_K, 10, HALF_MAX, encode_q2_k);
GLM52_DEFINE_ENCODER(Q3_K, 11, 4 * 31 * HALF_MAX, encode_q3_k);
GLM52_DEFINE_ENCODER(Q4_K, 12, HALF_MAX, encode_q4_k);
GLM52_DEFINE_ENCODER(Q5_K, 13, HALF_MAX, encode_q5_k);
GLM52_DEFINE_ENCODER(Q6_K, 14, 32 * 127 * HALF_MAX, encode_q6_k);
