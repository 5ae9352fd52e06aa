/* legacy.c - Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 values with a float16 scale d, and in Q4_1 and Q5_1 a
 * float16 minimum m. Low nibbles are values 0 to 15, high nibbles 16 to 31; bit i of the four bytes "high" is the
 * fifth bit of value i.
 *
 *     Q4_0  d 2, nibbles 16            (code - 8) * d       Q4_1  d 2, m 2, nibbles 16            code * d + m
 *     Q5_0  d 2, high 4, nibbles 16    (code - 16) * d      Q5_1  d 2, m 2, high 4, nibbles 16    code * d + m
 *     Q8_0  d 2, codes 32              code * d
 *
 * Integers of dot_q8: |n| <= 32 * 128 * 127 = 520,192 and |k| <= 32 * 127 = 4,064. */
#include "blocks.h"

/* code [32]: low nibbles, then high ones. */
static inline void nibbles(const uint8_t *in, int16_t offset, int16_t *code) {
    for (int i = 0; i < 16; i++) {
        code[i] = (int16_t)((in[i] & 15) - offset);
        code[16 + i] = (int16_t)((in[i] >> 4) - offset);
    }
}

/* Adds 16 to each code whose bit is set in high. */
static inline void add_fifth_bits(uint32_t high, int16_t *code) {
    for (int i = 0; i < 32; i++) code[i] = (int16_t)(code[i] + (int16_t)((high >> i & 1) << 4));
}

static inline void codes_q4_0(const uint8_t *block, int16_t *code) {
    nibbles(block + 2, 8, code);
}

static inline void codes_q4_1(const uint8_t *block, int16_t *code) {
    nibbles(block + 4, 0, code);
}

static inline void codes_q5_0(const uint8_t *block, int16_t *code) {
    nibbles(block + 6, 16, code);
    add_fifth_bits(load_u32(block + 2), code);
}

static inline void codes_q5_1(const uint8_t *block, int16_t *code) {
    nibbles(block + 8, 0, code);
    add_fifth_bits(load_u32(block + 4), code);
}

static inline void codes_q8_0(const uint8_t *block, int16_t *code) {
    for (int i = 0; i < 32; i++) code[i] = (int8_t)block[2 + i];
}

/* Formats of a scale alone. */
#define DEFINE_SCALED(name, bytes)                                                              \
    static void decode_##name(const void *blocks, float *out, size_t count) {                   \
        const uint8_t *block = blocks;                                                          \
        for (size_t i = 0; i < count; i += 32, block += bytes) {                                \
            const float d = load_f16(block);                                                    \
            int16_t code[32];                                                                   \
            codes_##name(block, code);                                                          \
            for (int j = 0; j < 32; j++) out[i + j] = d * (float)code[j];                       \
        }                                                                                       \
    }                                                                                           \
    static float dot_##name(const void *blocks, const struct glm52_q8 *row, size_t count) {     \
        const uint8_t *block = blocks;                                                          \
        float lane[LANES] = {0};                                                                \
        for (size_t b = 0; b < count / 32; b++, block += bytes) {                               \
            int16_t code[32];                                                                   \
            codes_##name(block, code);                                                          \
            const int32_t n = dot_codes(code, row->q + 32 * b);                                 \
            lane[b % LANES] += (load_f16(block) * row->scale[b]) * (float)n;                    \
        }                                                                                       \
        return sum_lanes(lane);                                                                 \
    }

DEFINE_SCALED(q4_0, 18)
DEFINE_SCALED(q5_0, 22)
DEFINE_SCALED(q8_0, 34)

/* Formats of a scale and a minimum. */
#define DEFINE_OFFSET(name, bytes)                                                              \
    static void decode_##name(const void *blocks, float *out, size_t count) {                   \
        const uint8_t *block = blocks;                                                          \
        for (size_t i = 0; i < count; i += 32, block += bytes) {                                \
            const float d = load_f16(block), m = load_f16(block + 2);                           \
            int16_t code[32];                                                                   \
            codes_##name(block, code);                                                          \
            for (int j = 0; j < 32; j++) out[i + j] = d * (float)code[j] + m;                   \
        }                                                                                       \
    }                                                                                           \
    static float dot_##name(const void *blocks, const struct glm52_q8 *row, size_t count) {     \
        const uint8_t *block = blocks;                                                          \
        float lane[LANES] = {0};                                                                \
        for (size_t b = 0; b < count / 32; b++, block += bytes) {                               \
            int16_t code[32];                                                                   \
            codes_##name(block, code);                                                          \
            const int32_t n = dot_codes(code, row->q + 32 * b);                                 \
            const int32_t k = row->sum[2 * b] + row->sum[2 * b + 1];                            \
            const float scale = row->scale[b];                                                  \
            lane[b % LANES] += (load_f16(block) * scale) * (float)n                             \
                             + (load_f16(block + 2) * scale) * (float)k;                        \
        }                                                                                       \
        return sum_lanes(lane);                                                                 \
    }

DEFINE_OFFSET(q4_1, 20)
DEFINE_OFFSET(q5_1, 24)

GLM52_DEFINE_FORMAT(Q4_0, 2, 32, 18, decode_q4_0, dot_q4_0);
GLM52_DEFINE_FORMAT(Q4_1, 3, 32, 20, decode_q4_1, dot_q4_1);
GLM52_DEFINE_FORMAT(Q5_0, 6, 32, 22, decode_q5_0, dot_q5_0);
GLM52_DEFINE_FORMAT(Q5_1, 7, 32, 24, decode_q5_1, dot_q5_1);
GLM52_DEFINE_FORMAT(Q8_0, 8, 32, 34, decode_q8_0, dot_q8_0);
