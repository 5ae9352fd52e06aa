/* iq2_avx2.h - IQ2_XXS by hand for AVX2 (few_avx2.h). Magnitudes are read from the code book, 8 at a time; signs are
 * made of their bits, all of a super-block's at once up to the parity, and given to the activations. */
#ifndef GLM52_IQ2_AVX2_H
#define GLM52_IQ2_AVX2_H

#include "few_avx2.h"
#include "grids.h"

/* Byte 4 b + g: the 8 signs of code g of block b. *factor: 2 s + 1 of each block. */
ALWAYS_INLINE __m256i sign_bytes(const uint8_t *w, __m256i *factor) {
    const __m256 first = _mm256_loadu_ps((const float *)(const void *)(w + 2));
    const __m256 second = _mm256_loadu_ps((const float *)(const void *)(w + 34));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xDD)), 0xD8);
    *factor = _mm256_or_si256(_mm256_srli_epi32(words, 27), _mm256_set1_epi32(1));
    const __m256i mask = _mm256_set1_epi32(0x7F);
    const __m256i a = _mm256_and_si256(words, mask);
    const __m256i b = _mm256_and_si256(_mm256_slli_epi32(words, 1), _mm256_slli_epi32(mask, 8));
    const __m256i c = _mm256_and_si256(_mm256_slli_epi32(words, 2), _mm256_slli_epi32(mask, 16));
    const __m256i d = _mm256_and_si256(_mm256_slli_epi32(words, 3), _mm256_slli_epi32(mask, 24));
    const __m256i seven = _mm256_or_si256(_mm256_or_si256(a, b), _mm256_or_si256(c, d));
    const __m256i odd = _mm256_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,
                                         0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i parity = _mm256_xor_si256(
        _mm256_shuffle_epi8(odd, _mm256_and_si256(seven, low)),
        _mm256_shuffle_epi8(odd, _mm256_and_si256(_mm256_srli_epi16(seven, 4), low)));
    return _mm256_or_si256(seven, parity);
}

ALWAYS_INLINE __m256i magnitudes_of_block(const uint8_t *codes) {
    __m128 half[2];
    for (int i = 0; i < 2; i++) {
        const int8_t *low = glm52_grid_iq2_xxs[codes[2 * i]], *high = glm52_grid_iq2_xxs[codes[2 * i + 1]];
        const __m128i first = _mm_loadl_epi64((const __m128i *)(const void *)low);
        half[i] = _mm_loadh_pi(_mm_castsi128_ps(first), (const __m64 *)(const void *)high);
    }
    return _mm256_castps_si256(_mm256_insertf128_ps(_mm256_castps128_ps256(half[0]), half[1], 1));
}

ALWAYS_INLINE void step_iq2_xxs(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane) {
    const __m256i bits = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i place = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                           2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    __m256i factor, sum[GLM52_FEW_ROWS][8];
    _Alignas(32) uint32_t signs[8];
    _mm256_store_si256((__m256i *)(void *)signs, sign_bytes(w, &factor));
#pragma GCC unroll 8
    for (int b = 0; b < 8; b++) {
        const __m256i magnitude = magnitudes_of_block(w + 2 + 8 * b);
        const __m256i of_block = _mm256_shuffle_epi8(_mm256_set1_epi32((int)signs[b]), place);
        const __m256i negative = _mm256_cmpeq_epi8(_mm256_and_si256(of_block, bits), bits);
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) {
            const __m256i q = load_32(x[r].q + at + 32 * (size_t)b);
            const __m256i signed_q = _mm256_sub_epi8(_mm256_xor_si256(q, negative), negative);
            sum[r][b] = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, signed_q), _mm256_set1_epi16(1));
        }
    }
    const __m256 f = _mm256_cvtepi32_ps(factor), d = _mm256_mul_ps(half_everywhere(w), _mm256_set1_ps(0.125f));
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m256 n = _mm256_mul_ps(_mm256_cvtepi32_ps(sum_each(sum[r])), f);
        lane[r] = _mm256_add_ps(lane[r], term_of_row(d, &x[r], at, n));
    }
}

#endif
