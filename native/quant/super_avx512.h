/* super_avx512.h - Q8_0, Q2_K, Q4_K and IQ2_XXS, the formats of published files, by hand for AVX-512 with VNNI, VBMI
 * and BITALG: 256 codes at a time as bytes in four vectors, blocks 2 i and 2 i + 1 in vector i, as they follow in a
 * row.
 *
 * dot_* are dot_q8 of these formats, to the bit (blocks.h); narrow_* unpack a super-block for a panel (panel.h). The
 * sums of a block's products come out of the multiply-add as 8 numbers of 32 bits; 12 instructions bring those of
 * all 8 blocks into one vector in the order of their lanes. */
#ifndef GLM52_SUPER_AVX512_H
#define GLM52_SUPER_AVX512_H

#include "panel.h"

struct codes {
    __m512i z[4];
};

static inline __m512i load_twice(const void *p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

/* The same 32 bytes shifted right by low in the lower half, high in the upper. */
#define SHIFTS(low, high) _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1)

static inline void store_codes(const struct codes *c, struct unpacked *out) {
    for (int i = 0; i < 4; i++) _mm512_store_si512(out->narrow + 64 * i, c->z[i]);
}

/* Sums of 4 neighbours: lane L, place e of the result is vector e's sum over its lane L, which is half L % 2 of block
 * 2 e + L / 2. */
static inline __m512i sum_lanes_of_4(const __m512i *s) {
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* From there to a sum per block, in order. */
static inline __m256i sum_halves(__m512i w) {
    const __m512i in_order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
    const __m512i sum = _mm512_add_epi32(w, _mm512_shuffle_i32x4(w, w, 0xB1));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(in_order, sum));
}

/* Products of codes without sign and activations. */
static inline __m512i sum_products(const struct codes *c, const int8_t *q) {
    __m512i s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c->z[i], _mm512_loadu_si512(q + 64 * i));
    }
    return sum_lanes_of_4(s);
}

static inline __m256 floats_of_8(__m128i bytes) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
}

/* (d * scale) * n, and with it for formats with a minimum - (m * scale) * k. n and k are exact. */
static inline __m256 terms(__m256 d, const float *scale, __m256 n) {
    return _mm256_mul_ps(_mm256_mul_ps(d, _mm256_loadu_ps(scale)), n);
}

static inline float sum_of_lanes(__m256 lane) {
    float out[LANES];
    _mm256_storeu_ps(out, lane);
    return sum_lanes(out);
}

/* ---- Q8_0 ---- */

static inline void narrow_q8_0(const uint8_t *block, struct codes *c) {
    for (int i = 0; i < 4; i++, block += 68) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(block + 2));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(block + 36));
        c->z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
}

static inline __m256 factors_q8_0(const uint8_t *block) {
    uint16_t half[8];
    for (int b = 0; b < 8; b++) half[b] = load_u16(block + 34 * b);
    __m256i words;
    words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)half));
    return _mm512_castps512_ps256(_mm512_cvtph_ps(_mm512_castsi512_si256(
        _mm512_zextsi256_si512(_mm256_castsi128_si256(_mm256_cvtepi32_epi16(words))))));
}

/* code + 128 has no sign: the surplus is 128 times the sum of q. */
static inline float dot_q8_0_avx512(const uint8_t *block, const struct glm52_q8 *row, size_t count) {
    __m256 lane = _mm256_setzero_ps();
    size_t at = 0;
    for (; at + SUPER <= count; at += SUPER, block += 8 * 34) {
        struct codes c;
        narrow_q8_0(block, &c);
        for (int i = 0; i < 4; i++) c.z[i] = _mm512_xor_si512(c.z[i], _mm512_set1_epi8(-128));
        const __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(row->sum + at / 16));
        const __m256i surplus = _mm256_madd_epi16(sum, _mm256_set1_epi16(128));
        const __m256i n = _mm256_sub_epi32(sum_halves(sum_products(&c, row->q + at)), surplus);
        lane = _mm256_add_ps(lane, terms(factors_q8_0(block), row->scale + at / 32, _mm256_cvtepi32_ps(n)));
    }
    float out[LANES];
    _mm256_storeu_ps(out, lane);
    for (; at < count; at += 32, block += 34) {
        int16_t code[32];   /* of 16 bits: gcc 12 makes a multiply-add without sign of bytes cast to int8_t */
        for (int i = 0; i < 32; i++) code[i] = (int8_t)block[2 + i];
        out[at / 32 % LANES] += (load_f16(block) * row->scale[at / 32]) * (float)dot_codes(code, row->q + at);
    }
    return sum_lanes(out);
}

/* ---- Q2_K: factors of 16 values, minimums ---- */

static inline void narrow_q2_k(const uint8_t *in, struct codes *c) {
    const __m512i mask = _mm512_set1_epi8(3);
    for (int half = 0; half < 2; half++) {
        const __m512i bytes = load_twice(in + 32 * half);
        c->z[2 * half] = _mm512_and_si512(_mm512_srlv_epi16(bytes, SHIFTS(0, 2)), mask);
        c->z[2 * half + 1] = _mm512_and_si512(_mm512_srlv_epi16(bytes, SHIFTS(4, 6)), mask);
    }
}

static inline void factors_q2_k_avx512(const uint8_t *in, __m128i *f, __m128i *g) {
    const __m128i both = _mm_loadu_si128((const __m128i *)(const void *)in);
    *f = _mm_and_si128(both, _mm_set1_epi8(15));
    *g = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
}

static inline float dot_q2_k_avx512(const uint8_t *block, const struct glm52_q8 *row, size_t count) {
    const __m128i by_lane = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m256 lane = _mm256_setzero_ps();
    for (size_t at = 0; at < count; at += SUPER, block += 84) {
        struct codes c;
        narrow_q2_k(block + 16, &c);
        __m128i f, g;
        factors_q2_k_avx512(block, &f, &g);
        const __m512i w = _mm512_mullo_epi32(sum_products(&c, row->q + at),
                                             _mm512_cvtepi8_epi32(_mm_shuffle_epi8(f, by_lane)));
        const __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(row->sum + at / 16));
        const __m256i k = _mm256_madd_epi16(_mm256_cvtepi8_epi16(g), sum);
        const float *scale = row->scale + at / 32;
        const __m256 first = terms(_mm256_set1_ps(load_f16(block + 80)), scale, _mm256_cvtepi32_ps(sum_halves(w)));
        const __m256 second = terms(_mm256_set1_ps(load_f16(block + 82)), scale, _mm256_cvtepi32_ps(k));
        lane = _mm256_add_ps(lane, _mm256_sub_ps(first, second));
    }
    return sum_of_lanes(lane);
}

/* ---- Q4_K: factors of 32 values, minimums ---- */

static inline void narrow_q4_k(const uint8_t *in, struct codes *c) {
    for (int i = 0; i < 4; i++) {
        c->z[i] = _mm512_and_si512(_mm512_srlv_epi16(load_twice(in + 32 * i), SHIFTS(0, 4)), _mm512_set1_epi8(15));
    }
}

/* factors_q4_k, all eight at once. */
static inline void factors_q4_k_avx512(const uint8_t *in, __m128i *f, __m128i *g) {
    const uint32_t a = load_u32(in), b = load_u32(in + 4), c = load_u32(in + 8);
    const uint32_t low = 0x0F0F0F0F, top = 0x30303030, six = 0x3F3F3F3F;
    *f = _mm_cvtsi64_si128((long long)((uint64_t)((c & low) | (a >> 2 & top)) << 32 | (a & six)));
    *g = _mm_cvtsi64_si128((long long)((uint64_t)((c >> 4 & low) | (b >> 2 & top)) << 32 | (b & six)));
}

static inline float dot_q4_k_avx512(const uint8_t *block, const struct glm52_q8 *row, size_t count) {
    __m256 lane = _mm256_setzero_ps();
    for (size_t at = 0; at < count; at += SUPER, block += 144) {
        struct codes c;
        __m128i f, g;
        narrow_q4_k(block + 16, &c);
        factors_q4_k_avx512(block + 4, &f, &g);
        const __m256i sum = _mm256_loadu_si256((const __m256i *)(const void *)(row->sum + at / 16));
        const __m256i k = _mm256_madd_epi16(_mm256_cvtepi8_epi16(_mm_unpacklo_epi8(g, g)), sum);
        const __m256 sums = _mm256_cvtepi32_ps(sum_halves(sum_products(&c, row->q + at)));
        const float *scale = row->scale + at / 32;
        const __m256 first = terms(_mm256_set1_ps(load_f16(block)), scale, _mm256_mul_ps(sums, floats_of_8(f)));
        const __m256 second = terms(_mm256_set1_ps(load_f16(block + 2)), scale, _mm256_cvtepi32_ps(k));
        lane = _mm256_add_ps(lane, _mm256_sub_ps(first, second));
    }
    return sum_of_lanes(lane);
}

#endif
