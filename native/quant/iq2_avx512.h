/* iq2_avx512.h - IQ2_XXS by hand (few_avx512.h).
 *
 * 64 codes of two rows of weights are looked up at once, and what comes out is column j of all: value j of each code.
 * The 4 codes of a block lie side by side, so that the multiply-add over columns leaves a block's sum in its lane. The
 * code book has three magnitudes: a byte holds three values of an entry as numbers of 2 bits, four vectors hold that
 * byte of all 256 entries, and one more look-up takes a number's magnitude out. No load but those of the books. */
#ifndef GLM52_IQ2_AVX512_H
#define GLM52_IQ2_AVX512_H

#include "few_avx512.h"
#include "grids.h"

ALWAYS_INLINE __m512i ranks_of(const __m512i *book, __m512i codes, __mmask64 is_upper) {
    return _mm512_mask_blend_epi8(is_upper, _mm512_permutex2var_epi8(book[0], codes, book[1]),
                                  _mm512_permutex2var_epi8(book[2], codes, book[3]));
}

/* Value 8 i + t of block b to place 32 t + 4 b + i: step t takes every eighth value of every block. */
ALWAYS_INLINE void order_columns(const int8_t *q, __m256i *out) {
    _Alignas(64) int8_t part[SUPER];
    const __m256i pairs = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,
                                           0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    for (int b = 0; b < 8; b++) {      /* per half: values t and 8 + t side by side; then those of both halves */
        const __m256i values = _mm256_shuffle_epi8(_mm256_load_si256((const __m256i *)(const void *)q + b), pairs);
        const __m128i low = _mm256_castsi256_si128(values), high = _mm256_extracti128_si256(values, 1);
        _mm_store_si128((__m128i *)(void *)(part + 32 * b), _mm_unpacklo_epi16(low, high));
        _mm_store_si128((__m128i *)(void *)(part + 32 * b + 16), _mm_unpackhi_epi16(low, high));
    }
    transpose_wide(part, out);
}

static void arrange_columns(size_t count, struct glm52_q8 x) {
    arrange_groups(order_columns, count, x);
}

/* Lane 8 k + b, byte g: 7 bits of signs of code g of block b of row k; the eighth, which makes their number even, is
 * the lowest bit of *eighth. */
ALWAYS_INLINE __m512i signs_of(__m512i words, __m512i *eighth) {
    const __m512i places = _mm512_set1_epi64(0x352E2720150E0700);
    const __m512i signs = _mm512_multishift_epi64_epi8(places, words);
    *eighth = _mm512_popcnt_epi8(_mm512_and_si512(signs, _mm512_set1_epi8(127)));
    return signs;
}

/* What the columns of two rows' super-blocks are made of. */
struct columns_iq2_xxs {
    __m512i rank[3], signs, eighth, factor;
};

ALWAYS_INLINE struct columns_iq2_xxs columns_iq2_xxs(const uint8_t *const *w) {
    const uint8_t *ranks = (const uint8_t *)glm52_ranks_by_three_iq2_xxs;
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    const __m512i a = _mm512_loadu_si512(w[0] + 2), b = _mm512_loadu_si512(w[1] + 2);
    const __m512i codes = _mm512_permutex2var_epi32(a, even, b), words = _mm512_permutex2var_epi32(a, odd, b);
    const __mmask64 is_upper = _mm512_movepi8_mask(codes);
    struct columns_iq2_xxs c;
#pragma GCC unroll 3
    for (int part = 0; part < 3; part++) {
        __m512i book[4];
        for (int i = 0; i < 4; i++) book[i] = _mm512_load_si512(ranks + 256 * part + 64 * i);
        c.rank[part] = ranks_of(book, codes, is_upper);
    }
    c.signs = signs_of(words, &c.eighth);
    c.factor = _mm512_or_si512(_mm512_srli_epi32(words, 27), _mm512_set1_epi32(1));   /* 2 s + 1 */
    return c;
}

ALWAYS_INLINE __m512i magnitudes_of(const struct columns_iq2_xxs *c, int j) {
    const uint8_t *magnitudes = (const uint8_t *)glm52_magnitudes_by_three_iq2;
    return _mm512_permutexvar_epi8(c->rank[j / 3], _mm512_load_si512(magnitudes + 64 * (j % 3)));
}

ALWAYS_INLINE __mmask64 negatives_of(const struct columns_iq2_xxs *c, int j) {
    return j < 7 ? _mm512_test_epi8_mask(c->signs, _mm512_set1_epi8((char)(1 << j)))
                 : _mm512_test_epi8_mask(c->eighth, _mm512_set1_epi8(1));
}

ALWAYS_INLINE __m512 factors_of_two_iq2(const uint8_t *const *w) {
    return _mm512_mul_ps(halves_of_two(w[0], w[1]), _mm512_set1_ps(0.125f));
}

ALWAYS_INLINE void step_iq2_xxs(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at,
                                __m512 *lane) {
    const struct columns_iq2_xxs c = columns_iq2_xxs(w);
    __m512i sum[GLM52_FEW_ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) sum[r] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m512i code = magnitudes_of(&c, j);
        const __mmask64 is_negative = negatives_of(&c, j);
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) {
            const __m512i q = bytes_twice(x[r].arranged + at + 32 * (size_t)j);
            const __m512i signed_q = _mm512_mask_sub_epi8(q, is_negative, _mm512_setzero_si512(), q);
            sum[r] = _mm512_dpbusd_epi32(sum[r], code, signed_q);
        }
    }
    const __m512 f = _mm512_cvtepi32_ps(c.factor), d = factors_of_two_iq2(w);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m512 n = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r]), f);
        lane[r] = _mm512_add_ps(lane[r], term_of_two(d, floats_twice(x[r].scale + at / 32), n));
    }
}

ALWAYS_INLINE void pair_iq2_xxs(const uint8_t *const *w, struct panel_pair *pair) {
    const struct columns_iq2_xxs c = columns_iq2_xxs(w);
    __m512i surplus = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        const __m512i code = magnitudes_of(&c, j);
        surplus = put_codes(_mm512_mask_sub_epi8(code, negatives_of(&c, j), _mm512_setzero_si512(), code), j, pair,
                            surplus);
    }
    put_start(surplus, 0, pair);
    _mm512_store_ps(pair->f[0], _mm512_cvtepi32_ps(c.factor));
    _mm512_store_ps(pair->d, factors_of_two_iq2(w));
}

#endif
