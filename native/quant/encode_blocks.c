/* encode_blocks.c - writes F32, F16, BF16 and the blocks of 32 values with a scale of their own: Q8_0, Q4_0, Q4_1,
 * Q5_0, Q5_1. Their bytes are drawn in floats.c and legacy.c. */
#include <math.h>

#include "encode_minimum.h"
#include "encode_scale.h"

/* ---- roundings ---- */

static void encode_f32(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    (void)importance;
    (void)row_size;
    memcpy(blocks, x, count * sizeof(float));
}

static void encode_f16(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    (void)importance;
    (void)row_size;
    uint8_t *out = blocks;
    for (size_t i = 0; i < count; i++) store_u16(out + 2 * i, glm52_f32_to_f16(x[i]));
}

/* To the nearest, ties to even; a NaN keeps its upper bits and becomes a quiet one. */
static void encode_bf16(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    (void)importance;
    (void)row_size;
    uint8_t *out = blocks;
    for (size_t i = 0; i < count; i++) {
        const uint32_t bits = bits_of_float(x[i]);
        const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
        const uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1);
        store_u16(out + 2 * i, (uint16_t)((is_nan ? bits | 0x400000 : rounded) >> 16));
    }
}

/* d = max|x| / 127; codes are x / d rounded, halves away from zero: as the format's own tools have always done. */
static void encode_q8_0(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    (void)importance;
    (void)row_size;
    uint8_t *out = blocks;
    for (size_t at = 0; at < count; at += 32, out += 34) {
        float top = 0;
        for (int i = 0; i < 32; i++) top = fabsf(x[at + i]) > top ? fabsf(x[at + i]) : top;
        const float d = top / 127, inverse_d = d >= 0x1p-126f ? 1 / d : 0;
        store_u16(out, glm52_f32_to_f16(d));
        for (int i = 0; i < 32; i++) {
            const float code = x[at + i] * inverse_d, size = fabsf(code);
            const int whole = (int)size, rounded = whole + (size - (float)whole >= 0.5f ? 1 : 0);
            out[2 + i] = (uint8_t)(int8_t)(code < 0 ? -rounded : rounded);
        }
    }
}

/* ---- blocks of 32, sixteen at a time ---- */

/* Bytes of nibbles and, into high, the fifth bits of a block of 32 codes. */
static inline uint32_t pack_nibbles(const uint8_t *code, uint8_t *out) {
    uint32_t high = 0;
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)((code[i] & 15) | (code[16 + i] & 15) << 4);
    for (int i = 0; i < 32; i++) high |= (uint32_t)(code[i] >> 4 & 1) << i;
    return high;
}

ALWAYS_INLINE void encode_symmetric(const struct codes *codes, int bits, const float *x, const float *importance,
                                    size_t row_size, size_t count, uint8_t *out) {
    const size_t blocks = count / 32;
    for (size_t first = 0; first < blocks; first += LANE_COUNT) {
        struct lane_group group;
        uint16_t half[LANE_COUNT];
        lanes q[32];
        uint8_t code[LANE_COUNT * 32];
        load_lanes(x, importance, row_size, first, blocks, 1, 32, &group);
        fit_blocks(codes, &group, 32, half, q);
        store_codes_of_lanes(q, 32, (int)-codes->low, code);
        for (size_t b = 0; b < LANE_COUNT && first + b < blocks; b++) {
            store_u16(out, half[b]);
            const uint32_t high = pack_nibbles(code + 32 * b, out + (bits == 5 ? 6 : 2));
            if (bits == 5) store_u32(out + 2, high);
            out += bits == 5 ? 22 : 18;
        }
    }
}

static void encode_q4_0(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct codes codes = {.low = -8, .high = 7, .start = 0.6f, .end = 1.4f, .steps = 32};
    encode_symmetric(&codes, 4, x, importance, row_size, count, blocks);
}

static void encode_q5_0(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct codes codes = {.low = -16, .high = 15, .start = 0.8f, .end = 1.15f, .steps = 20};
    encode_symmetric(&codes, 5, x, importance, row_size, count, blocks);
}

ALWAYS_INLINE void encode_with_minimum(const struct steps *steps, int bits, const float *x, const float *importance,
                                       size_t row_size, size_t count, uint8_t *out) {
    const size_t blocks = count / 32;
    for (size_t first = 0; first < blocks; first += LANE_COUNT) {
        struct lane_group group;
        uint16_t d[LANE_COUNT], m[LANE_COUNT];
        lanes q[32];
        uint8_t code[LANE_COUNT * 32];
        load_lanes(x, importance, row_size, first, blocks, 1, 32, &group);
        fit_blocks_with_minimum(steps, &group, 32, d, m, q);
        store_codes_of_lanes(q, 32, 0, code);
        for (size_t b = 0; b < LANE_COUNT && first + b < blocks; b++) {
            store_u16(out, d[b]);
            store_u16(out + 2, m[b]);
            const uint32_t high = pack_nibbles(code + 32 * b, out + (bits == 5 ? 8 : 4));
            if (bits == 5) store_u32(out + 4, high);
            out += bits == 5 ? 24 : 20;
        }
    }
}

static void encode_q4_1(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct steps steps = {.high = 15, .cut = 0.12f, .cuts = 5};
    encode_with_minimum(&steps, 4, x, importance, row_size, count, blocks);
}

static void encode_q5_1(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct steps steps = {.high = 31, .cut = 0.08f, .cuts = 5};
    encode_with_minimum(&steps, 5, x, importance, row_size, count, blocks);
}

GLM52_DEFINE_ENCODER(F32, 0, INFINITY, encode_f32);
GLM52_DEFINE_ENCODER(F16, 1, INFINITY, encode_f16);
GLM52_DEFINE_ENCODER(BF16, 30, INFINITY, encode_bf16);
GLM52_DEFINE_ENCODER(Q8_0, 8, 127 * HALF_MAX, encode_q8_0);
GLM52_DEFINE_ENCODER(Q4_0, 2, 8 * HALF_MAX, encode_q4_0);
GLM52_DEFINE_ENCODER(Q4_1, 3, HALF_MAX, encode_q4_1);
GLM52_DEFINE_ENCODER(Q5_0, 6, 16 * HALF_MAX, encode_q5_0);
GLM52_DEFINE_ENCODER(Q5_1, 7, HALF_MAX, encode_q5_1);
