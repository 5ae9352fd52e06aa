/* legacy.c - Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: blocks of 32 values with a float16 scale d, and in Q4_1 and Q5_1 a
 * float16 minimum m. Low nibbles are values 0 to 15, high nibbles 16 to 31; bit i of the four bytes "high" is the
 * fifth bit of value i.
 *
 *     Q4_0  d 2, nibbles 16            d (code - 8)         Q4_1  d 2, m 2, nibbles 16            d code + m
 *     Q5_0  d 2, high 4, nibbles 16    d (code - 16)        Q5_1  d 2, m 2, high 4, nibbles 16    d code + m
 *     Q8_0  d 2, codes 32              d code
 *
 * Integers of dot_q8: |n| <= 32 * 128 * 127 = 520,192 and |k| <= 32 * 127 = 4,064. */
#include "panel.h"
#if defined(__AVX512VBMI__)
#include "few_avx512.h"
#elif defined(FEW_BY_AVX2)
#include "few_avx2.h"
#elif defined(FEW_BY_NEON)
#include "few_neon.h"
#endif

/* code [32]: low nibbles, then high ones */
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

static inline void unpack_q4_0(const uint8_t *block, int16_t *code) {
    nibbles(block + 2, 8, code);
}

static inline void unpack_q4_1(const uint8_t *block, int16_t *code) {
    nibbles(block + 4, 0, code);
}

static inline void unpack_q5_0(const uint8_t *block, int16_t *code) {
    nibbles(block + 6, 16, code);
    add_fifth_bits(load_u32(block + 2), code);
}

static inline void unpack_q5_1(const uint8_t *block, int16_t *code) {
    nibbles(block + 8, 0, code);
    add_fifth_bits(load_u32(block + 4), code);
}

static inline void unpack_q8_0(const uint8_t *block, int16_t *code) {
    for (int i = 0; i < 32; i++) code[i] = (int8_t)block[2 + i];
}

typedef void unpack_32(const uint8_t *block, int16_t *code);

ALWAYS_INLINE void decode_32s(unpack_32 *unpack, size_t bytes, bool has_minimum, const uint8_t *block, float *out,
                              size_t count) {
    for (; count; count -= 32, block += bytes, out += 32) {
        const float d = load_f16(block), m = has_minimum ? load_f16(block + 2) : 0;
        int16_t code[32];
        unpack(block, code);
        if (has_minimum) {
            for (int i = 0; i < 32; i++) out[i] = d * (float)code[i] + m;
        } else {
            for (int i = 0; i < 32; i++) out[i] = d * (float)code[i];
        }
    }
}

ALWAYS_INLINE float dot_32s(unpack_32 *unpack, size_t bytes, bool has_minimum, const uint8_t *block,
                            const struct glm52_q8 *row, size_t count) {
    float lane[LANES] = {0};
    for (size_t b = 0; b < count / 32; b++, block += bytes) {
        int16_t code[32];
        unpack(block, code);
        const int32_t n = dot_codes(code, row->q + 32 * b);
        float term = (load_f16(block) * row->scale[b]) * (float)n;
        if (has_minimum) {
            const int32_t k = row->sum[2 * b] + row->sum[2 * b + 1];
            term += (load_f16(block + 2) * row->scale[b]) * (float)k;
        }
        lane[b % LANES] += term;
    }
    return sum_lanes(lane);
}

ALWAYS_INLINE void unpack_32s(unpack_32 *unpack, size_t bytes, bool has_minimum, const uint8_t *block, int blocks,
                              struct unpacked *out) {
    for (int b = 0; b < blocks; b++, block += bytes) {
        unpack(block, out->code + 32 * b);
        out->d[b] = load_f16(block);
        if (has_minimum) out->m[b] = load_f16(block + 2);
    }
    if (has_minimum) memset(out->g, 1, sizeof(out->g));
}

#define DEFINE(name, type, bytes, has_minimum, code_max, unpack)                                    \
    static void decode_##name(const void *blocks, float *out, size_t count) {                       \
        decode_32s(unpack, bytes, has_minimum, blocks, out, count);                                 \
    }                                                                                               \
    static float dot_##name(const void *blocks, const struct glm52_q8 *row, size_t count) {         \
        return dot_32s(unpack, bytes, has_minimum, blocks, row, count);                             \
    }                                                                                               \
    static inline void group_##name(const uint8_t *block, int blocks, struct unpacked *out) {       \
        unpack_32s(unpack, bytes, has_minimum, block, blocks, out);                                 \
    }                                                                                               \
    PANEL_FUNCTIONS(name, group_##name, (size_t)8 * bytes, {0, has_minimum, code_max, false})              \
    GLM52_DEFINE_FORMAT(name, type, 32, bytes, decode_##name, dot_##name, PANEL_OF(name))

DEFINE(Q4_0, 2, 18, false, 8, unpack_q4_0);
DEFINE(Q4_1, 3, 20, true, 15, unpack_q4_1);
DEFINE(Q5_0, 6, 22, false, 16, unpack_q5_0);
DEFINE(Q5_1, 7, 24, true, 31, unpack_q5_1);

#if defined(__AVX512VBMI__) || defined(FEW_BY_AVX2) || defined(FEW_BY_NEON)
static void decode_q8_0(const void *blocks, float *out, size_t count) {
    decode_32s(unpack_q8_0, 34, false, blocks, out, count);
}

static float dot_q8_0(const void *blocks, const struct glm52_q8 *row, size_t count) {
    return dot_32s(unpack_q8_0, 34, false, blocks, row, count);
}

#if defined(FEW_BY_NEON)
FEW_FUNCTION(q8_0, step_q8_0, 8 * 34, false)
GLM52_DEFINE_FORMAT(Q8_0, 8, 32, 34, decode_q8_0, dot_q8_0, FEW_OF(q8_0));
#else
#ifdef __AVX512VBMI__
static inline void group_q8_0(const uint8_t *block, int blocks, struct unpacked *out) {
    struct codes c;
    if (blocks == 8) {
        narrow_q8_0(block, &c);
        for (int i = 0; i < 4; i++) _mm512_store_si512(out->narrow + 64 * i, c.z[i]);
        _mm256_storeu_ps(out->d, factors_q8_0(block));
        return;
    }
    for (int b = 0; b < blocks; b++, block += 34) {
        memcpy(out->narrow + 32 * b, block + 2, 32);
        out->d[b] = load_f16(block);
    }
}

PANEL_FUNCTIONS(q8_0, group_q8_0, 8 * 34, {0, false, 128, true})
#else
static inline void group_q8_0(const uint8_t *block, int blocks, struct unpacked *out) {
    unpack_32s(unpack_q8_0, 34, false, block, blocks, out);
}

PANEL_FUNCTIONS(q8_0, group_q8_0, 8 * 34, {0, false, 128, false})
#endif
FEW_FUNCTION(q8_0, step_q8_0, 8 * 34)
GLM52_DEFINE_FORMAT(Q8_0, 8, 32, 34, decode_q8_0, dot_q8_0, PANEL_AND_FEW_OF(q8_0, arrange_words));
#endif
#else
DEFINE(Q8_0, 8, 34, false, 128, unpack_q8_0);
#endif
