/* super_avx2.h - dot_q8 of Q8_0 by hand for AVX2, to the bit (blocks.h): products of a code's magnitude and the
 * activation with the code's sign, which fit 16 bits in pairs: 2 * 128 * 127 = 32,512. */
#ifndef GLM52_SUPER_AVX2_H
#define GLM52_SUPER_AVX2_H

#include <immintrin.h>

#include "blocks.h"

/* Sums of s[b], 8 numbers each, in order of b. */
static inline __m256i sum_each(const __m256i *s) {
    __m256i a[4], b[2];
    for (int i = 0; i < 4; i++) {
        a[i] = _mm256_add_epi32(_mm256_unpacklo_epi32(s[2 * i], s[2 * i + 1]),
                                _mm256_unpackhi_epi32(s[2 * i], s[2 * i + 1]));
    }
    for (int i = 0; i < 2; i++) {
        b[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(a[2 * i], a[2 * i + 1]),
                                _mm256_unpackhi_epi64(a[2 * i], a[2 * i + 1]));
    }
    return _mm256_add_epi32(_mm256_permute2x128_si256(b[0], b[1], 0x20), _mm256_permute2x128_si256(b[0], b[1], 0x31));
}

/* 32 products summed to 8 numbers. */
static inline __m256i sum_products_32(const uint8_t *codes, const int8_t *q) {
    const __m256i code = _mm256_loadu_si256((const __m256i *)(const void *)codes);
    const __m256i by_sign = _mm256_sign_epi8(_mm256_loadu_si256((const __m256i *)(const void *)q), code);
    return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(code), by_sign), _mm256_set1_epi16(1));
}

static inline float dot_q8_0_avx2(const uint8_t *block, const struct glm52_q8 *row, size_t count) {
    float lane[LANES] = {0};
    __m256 sum = _mm256_setzero_ps();
    size_t at = 0;
    for (; at + SUPER <= count; at += SUPER, block += 8 * 34) {
        __m256i s[8];
        uint16_t half[8];
        for (int b = 0; b < 8; b++) {
            s[b] = sum_products_32(block + 34 * b + 2, row->q + at + 32 * b);
            half[b] = load_u16(block + 34 * b);
        }
        const __m256 d = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)half));
        const __m256 d_scale = _mm256_mul_ps(d, _mm256_loadu_ps(row->scale + at / 32));
        sum = _mm256_add_ps(sum, _mm256_mul_ps(d_scale, _mm256_cvtepi32_ps(sum_each(s))));
    }
    _mm256_storeu_ps(lane, sum);
    for (; at < count; at += 32, block += 34) {
        int16_t code[32];
        for (int i = 0; i < 32; i++) code[i] = (int8_t)block[2 + i];
        const float d_scale = load_f16(block) * row->scale[at / 32];
        lane[at / 32 % LANES] += d_scale * (float)dot_codes(code, row->q + at);
    }
    return sum_lanes(lane);
}

#endif
