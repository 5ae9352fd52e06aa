/* few_avx2.h - few rows of activations against rows of weights as they lie (dot_few of quant.h), by hand for AVX2:
 * Q8_0, Q2_K, Q4_K, Q6_K. To the bit what dot_q8 gives (blocks.h).
 *
 * A row of weights is taken 256 columns at a time; lane b of a vector of 8 is block b. Products are made by the
 * multiply-add of bytes without sign and with sign, which sums pairs to 16 bits: two of the largest codes must fit, and
 * where more do they are added before they are widened. */
#ifndef GLM52_FEW_AVX2_H
#define GLM52_FEW_AVX2_H

#include "panel.h"

/* Terms of 256 columns of a row of weights, added to a lane[r] per row of activations. */
typedef void few_step(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane);

ALWAYS_INLINE void few_row(few_step *step, size_t stride, const uint8_t *w, size_t count, const struct glm52_q8 *x,
                           int x_count, float *y, size_t y_stride) {
    __m256 lane[GLM52_FEW_ROWS];
    for (int r = 0; r < x_count; r++) lane[r] = _mm256_setzero_ps();
    size_t at = 0;
    for (; at + SUPER <= count; at += SUPER, w += stride) {
        ask_ahead(w, stride);
        step(w, x, x_count, at, lane);
    }
    if (at < count) {      /* blocks of 32 alone; behind them codes, scales and factors are 0 */
        uint8_t part[8 * 34] = {0};
        memcpy(part, w, stride * (count - at) / SUPER);
        step(part, x, x_count, at, lane);
    }
    for (int r = 0; r < x_count; r++) {
        float lanes[LANES];
        _mm256_storeu_ps(lanes, lane[r]);
        y[(size_t)r * y_stride] = sum_lanes(lanes);
    }
}

ALWAYS_INLINE void few_rows(few_step *step, size_t stride, const uint8_t *blocks, size_t row_bytes, size_t rows,
                            size_t count, const struct glm52_q8 *x, size_t x_count, float *y, size_t y_stride) {
    for (size_t i = 0; i < rows; i++, blocks += row_bytes) {
        if (x_count == 1) few_row(step, stride, blocks, count, x, 1, y + i, y_stride);
        else if (x_count == 2) few_row(step, stride, blocks, count, x, 2, y + i, y_stride);
        else if (x_count == 3) few_row(step, stride, blocks, count, x, 3, y + i, y_stride);
        else few_row(step, stride, blocks, count, x, 4, y + i, y_stride);
    }
}

#define FEW_FUNCTION(name, step, stride)                                                                             \
    static void few_##name(const void *blocks, size_t row_bytes, size_t rows, size_t count,                          \
                           const struct glm52_q8 *x, size_t x_count, float *y, size_t y_stride) {                    \
        few_rows(step, stride, blocks, row_bytes, rows, count, x, x_count, y, y_stride);                             \
    }

/* ---- what the steps share ---- */

ALWAYS_INLINE __m256i load_32(const void *p) {
    return _mm256_loadu_si256((const __m256i *)p);
}

/* 16 bytes in both halves. */
ALWAYS_INLINE __m256i halves_alike(__m128i x) {
    return _mm256_broadcastsi128_si256(x);
}

ALWAYS_INLINE __m256 floats_of_halves(__m128i halves) {
#ifdef __F16C__
    return _mm256_cvtph_ps(halves);
#else
    return _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(halves)));
#endif
}

ALWAYS_INLINE __m256 half_everywhere(const uint8_t *p) {
    return floats_of_halves(_mm_set1_epi16((short)load_u16(p)));
}

/* (d * scale) * n */
ALWAYS_INLINE __m256 term_of_row(__m256 d, const struct glm52_q8 *x, size_t at, __m256 n) {
    return _mm256_mul_ps(_mm256_mul_ps(d, _mm256_loadu_ps(x->scale + at / 32)), n);
}

/* Sums of s[b], 8 numbers each, in order of b. */
ALWAYS_INLINE __m256i sum_each(const __m256i *s) {
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

/* ---- Q8_0: a code's magnitude times the activation with the code's sign: pairs to 2 * 128 * 127 = 32,512 ---- */

ALWAYS_INLINE void step_q8_0(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane) {
    uint16_t half[8];
    for (int b = 0; b < 8; b++) half[b] = load_u16(w + 34 * b);
    const __m256 d = floats_of_halves(_mm_loadu_si128((const __m128i *)(const void *)half));
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        __m256i s[8];
#pragma GCC unroll 8
        for (int b = 0; b < 8; b++) {
            const __m256i code = load_32(w + 34 * b + 2);
            const __m256i by_sign = _mm256_sign_epi8(load_32(x[r].q + at + 32 * (size_t)b), code);
            s[b] = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(code), by_sign), _mm256_set1_epi16(1));
        }
        lane[r] = _mm256_add_ps(lane[r], term_of_row(d, &x[r], at, _mm256_cvtepi32_ps(sum_each(s))));
    }
}

/* ---- Q2_K: lane 4 h + p of step i takes the word i of half h, at bit 2 p; 4 steps sum to 4 * 762 at most ---- */

ALWAYS_INLINE void step_q2_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane) {
    const __m256i half0 = load_32(w + 16), half1 = load_32(w + 48), shift = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
    const __m256i words[2] = {_mm256_permute2x128_si256(half0, half1, 0x20),
                              _mm256_permute2x128_si256(half0, half1, 0x31)};
    __m256i sum[GLM52_FEW_ROWS][2];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m256i part = words[i / 4];
        const __m256i word = i % 4 == 0   ? _mm256_shuffle_epi32(part, 0x00)
                             : i % 4 == 1 ? _mm256_shuffle_epi32(part, 0x55)
                             : i % 4 == 2 ? _mm256_shuffle_epi32(part, 0xAA)
                                          : _mm256_shuffle_epi32(part, 0xFF);
        const __m256i code = _mm256_and_si256(_mm256_srlv_epi32(word, shift), _mm256_set1_epi8(3));
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) {
            const __m256i pairs = _mm256_maddubs_epi16(code, load_32(x[r].arranged + at + 32 * (size_t)i));
            sum[r][i / 4] = i % 4 == 0 ? pairs : _mm256_add_epi16(sum[r][i / 4], pairs);
        }
    }
    const __m128i factors = _mm_loadu_si128((const __m128i *)(const void *)w), low = _mm_set1_epi8(15);
    const __m256i f = halves_alike(_mm_and_si128(factors, low));
    const __m256i g = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(factors, 4), low));
    /* The factor of a lane's first and of its second half, twice 16 bits each. */
    const __m256i even = _mm256_setr_epi8(0, -1, 0, -1, 2, -1, 2, -1, 4, -1, 4, -1, 6, -1, 6, -1,
                                          8, -1, 8, -1, 10, -1, 10, -1, 12, -1, 12, -1, 14, -1, 14, -1);
    const __m256i odd = _mm256_add_epi8(even, _mm256_set1_epi16(1));
    const __m256i f0 = _mm256_shuffle_epi8(f, even), f1 = _mm256_shuffle_epi8(f, odd);
    const __m256 d = half_everywhere(w + 80), m = half_everywhere(w + 82);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m256i n = _mm256_add_epi32(_mm256_madd_epi16(sum[r][0], f0), _mm256_madd_epi16(sum[r][1], f1));
        const __m256i k = _mm256_madd_epi16(load_32(x[r].sum + at / 16), g);
        const __m256 first = term_of_row(d, &x[r], at, _mm256_cvtepi32_ps(n));
        const __m256 second = term_of_row(m, &x[r], at, _mm256_cvtepi32_ps(k));
        lane[r] = _mm256_add_ps(lane[r], _mm256_sub_ps(first, second));
    }
}

/* ---- Q4_K: a vector holds the word s of chunks 0..3, and their word s + 4 in its upper half: low nibbles are blocks
 * 0, 2, 4, 6, high ones blocks 1, 3, 5, 7. 4 vectors sum to 4 * 3,810 at most ---- */

/* Activations in this order: value 4 (s + 4 u) + i of block 2 c + h to place 64 s + 32 h + 16 u + 4 c + i. */
static inline void arrange_nibbles(size_t count, struct glm52_q8 x) {
    arrange_words(count, x);
    for (size_t at = 0; at < count; at += SUPER) {
        int8_t *group = x.arranged + at;
        __m256i step[8];
        for (int t = 0; t < 8; t++) step[t] = load_32(group + 32 * t);
        for (int s = 0; s < 4; s++) {      /* words of even blocks, then of odd ones, in each half */
            const __m256i a = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(step[s], 0xD8), 0xD8);
            const __m256i b = _mm256_permute4x64_epi64(_mm256_shuffle_epi32(step[s + 4], 0xD8), 0xD8);
            _mm256_storeu_si256((__m256i *)(void *)(group + 64 * s), _mm256_permute2x128_si256(a, b, 0x20));
            _mm256_storeu_si256((__m256i *)(void *)(group + 64 * s + 32), _mm256_permute2x128_si256(a, b, 0x31));
        }
    }
}

ALWAYS_INLINE void step_q4_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane) {
    const __m256i c0 = load_32(w + 16), c1 = load_32(w + 48), c2 = load_32(w + 80), c3 = load_32(w + 112);
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i pair[4] = {_mm256_unpacklo_epi32(c0, c1), _mm256_unpacklo_epi32(c2, c3),
                             _mm256_unpackhi_epi32(c0, c1), _mm256_unpackhi_epi32(c2, c3)};
    __m256i sum[GLM52_FEW_ROWS][2];
#pragma GCC unroll 4
    for (int s = 0; s < 4; s++) {
        const __m256i a = pair[s / 2 * 2], b = pair[s / 2 * 2 + 1];
        const __m256i words = s % 2 ? _mm256_unpackhi_epi64(a, b) : _mm256_unpacklo_epi64(a, b);
        const __m256i code[2] = {_mm256_and_si256(words, low), _mm256_and_si256(_mm256_srli_epi16(words, 4), low)};
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; h++) {
                const __m256i q = load_32(x[r].arranged + at + 64 * (size_t)s + 32 * (size_t)h);
                const __m256i pairs = _mm256_maddubs_epi16(code[h], q);
                sum[r][h] = s == 0 ? pairs : _mm256_add_epi16(sum[r][h], pairs);
            }
        }
    }
    uint64_t g;
    const uint64_t f = factors_q4_k(w + 4, &g);
    const __m256 factor = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)f)));
    const __m256i minimum = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)g));
    const __m256i minimums = _mm256_or_si256(minimum, _mm256_slli_epi32(minimum, 16));
    const __m256 d = half_everywhere(w), m = half_everywhere(w + 2);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m256i ones = _mm256_set1_epi16(1);
        const __m256i even = _mm256_madd_epi16(sum[r][0], ones), odd = _mm256_madd_epi16(sum[r][1], ones);
        /* blocks 0, 1, 2, 3 and 4, 5, 6, 7 of both halves */
        const __m256i low4 = _mm256_unpacklo_epi32(even, odd), high4 = _mm256_unpackhi_epi32(even, odd);
        const __m256i sums = _mm256_add_epi32(_mm256_permute2x128_si256(low4, high4, 0x20),
                                              _mm256_permute2x128_si256(low4, high4, 0x31));
        const __m256 n = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), factor);
        const __m256i k = _mm256_madd_epi16(load_32(x[r].sum + at / 16), minimums);
        const __m256 second = term_of_row(m, &x[r], at, _mm256_cvtepi32_ps(k));
        lane[r] = _mm256_add_ps(lane[r], _mm256_sub_ps(term_of_row(d, &x[r], at, n), second));
    }
}

/* ---- Q6_K: codes of a block in their order, 0 to 63: pairs to 2 * 63 * 127 = 16,002; 32 is taken off the sums ---- */

/* The codes of blocks 4 half .. 4 half + 3. */
ALWAYS_INLINE void codes_of_half_q6_k(const uint8_t *w, int half, __m256i *code) {
    const __m256i low = _mm256_set1_epi8(15), upper = _mm256_set1_epi8(0x30);
    const __m256i a = load_32(w + 64 * half), b = load_32(w + 64 * half + 32), bits = load_32(w + 128 + 32 * half);
    const __m256i tops[4] = {_mm256_slli_epi16(bits, 4), _mm256_slli_epi16(bits, 2), bits, _mm256_srli_epi16(bits, 2)};
    const __m256i nibbles[4] = {a, b, _mm256_srli_epi16(a, 4), _mm256_srli_epi16(b, 4)};
    for (int i = 0; i < 4; i++) {
        code[i] = _mm256_or_si256(_mm256_and_si256(nibbles[i], low), _mm256_and_si256(tops[i], upper));
    }
}

ALWAYS_INLINE void step_q6_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, __m256 *lane) {
    const __m256i factors = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(w + 192)));
    /* the two factors of block b of 4, one in each half */
    const __m256i place = _mm256_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1,
                                           2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3, 2, 3);
    __m256i sum[GLM52_FEW_ROWS][8];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        const __m256i of_half = half ? _mm256_permute2x128_si256(factors, factors, 0x11)
                                     : _mm256_permute2x128_si256(factors, factors, 0x00);
        __m256i code[4];
        codes_of_half_q6_k(w, half, code);
#pragma GCC unroll 4
        for (int b = 0; b < 4; b++) {
            const __m256i f = _mm256_shuffle_epi8(of_half, _mm256_add_epi8(place, _mm256_set1_epi8((char)(4 * b))));
#pragma GCC unroll 4
            for (int r = 0; r < x_count; r++) {
                const __m256i q = load_32(x[r].q + at + 32 * (size_t)(4 * half + b));
                sum[r][4 * half + b] = _mm256_madd_epi16(_mm256_maddubs_epi16(code[b], q), f);
            }
        }
    }
    const __m256 d = half_everywhere(w + 208);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m256i surplus = _mm256_slli_epi32(_mm256_madd_epi16(load_32(x[r].sum + at / 16), factors), 5);
        const __m256i n = _mm256_sub_epi32(sum_each(sum[r]), surplus);
        lane[r] = _mm256_add_ps(lane[r], term_of_row(d, &x[r], at, _mm256_cvtepi32_ps(n)));
    }
}

#endif
