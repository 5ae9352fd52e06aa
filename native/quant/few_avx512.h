/* few_avx512.h - few rows of activations against rows of weights as they lie (dot_few of quant.h), by hand for AVX-512
 * with VNNI, VBMI and BITALG: Q8_0, Q2_K, Q4_K, Q6_K. To the bit what dot_q8 gives (blocks.h).
 *
 * Two rows of weights are taken together, 256 columns at a time: lanes 0..7 of a vector are the blocks of the first
 * row, lanes 8..15 those of the second, so that the floats of a block's term are worked on for both at once. What is
 * unpacked serves all rows of activations.
 *
 * A code that lies at bit s of its byte is not moved: it is multiplied as code * 2^s, and sums are moved. */
#ifndef GLM52_FEW_AVX512_H
#define GLM52_FEW_AVX512_H

#include "panel.h"

struct codes {
    __m512i z[4];   /* 256 codes in their order */
};

/* Terms of 256 columns of two rows of weights, w[0] and w[1], added to a lane[r] per row of activations. */
typedef void few_step(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at, __m512 *lane);

ALWAYS_INLINE void few_pair(few_step *step, size_t stride, const uint8_t *const *rows, size_t count,
                            const struct glm52_q8 *x, int x_count, float *y, size_t y_stride, bool is_pair) {
    __m512 lane[GLM52_FEW_ROWS];
    const uint8_t *w[2] = {rows[0], rows[1]};
    for (int r = 0; r < x_count; r++) lane[r] = _mm512_setzero_ps();
    size_t at = 0;
    for (; at + SUPER <= count; at += SUPER) {
        ask_ahead(w[0], stride);
        ask_ahead(w[1], stride);
        step(w, x, x_count, at, lane);
        w[0] += stride;
        w[1] += stride;
    }
    if (at < count) {      /* blocks of 32 alone; behind them codes, scales and factors are 0 */
        const size_t left = stride * (count - at) / SUPER;
        uint8_t part[2][8 * 34] = {{0}};
        memcpy(part[0], w[0], left);
        memcpy(part[1], w[1], left);
        const uint8_t *const parts[2] = {part[0], part[1]};
        step(parts, x, x_count, at, lane);
    }
    for (int r = 0; r < x_count; r++) {
        float both[2];
        sum_pair(lane[r], both);
        y[(size_t)r * y_stride] = both[0];
        if (is_pair) y[(size_t)r * y_stride + 1] = both[1];
    }
}

ALWAYS_INLINE void few_rows(few_step *step, size_t stride, const uint8_t *blocks, size_t row_bytes, size_t rows,
                            size_t count, const struct glm52_q8 *x, size_t x_count, float *y, size_t y_stride) {
    for (size_t i = 0; i < rows; i += 2) {
        const bool is_pair = i + 1 < rows;
        const uint8_t *w[2] = {blocks + i * row_bytes, blocks + (is_pair ? i + 1 : i) * row_bytes};
        if (x_count == 1) few_pair(step, stride, w, count, x, 1, y + i, y_stride, is_pair);
        else if (x_count == 2) few_pair(step, stride, w, count, x, 2, y + i, y_stride, is_pair);
        else if (x_count == 3) few_pair(step, stride, w, count, x, 3, y + i, y_stride, is_pair);
        else few_pair(step, stride, w, count, x, 4, y + i, y_stride, is_pair);
    }
}

#define FEW_FUNCTION(name, step, stride)                                                                             \
    static void few_##name(const void *blocks, size_t row_bytes, size_t rows, size_t count,                          \
                           const struct glm52_q8 *x, size_t x_count, float *y, size_t y_stride) {                    \
        few_rows(step, stride, blocks, row_bytes, rows, count, x, x_count, y, y_stride);                             \
    }

/* ---- what the steps share ---- */

/* 8 floats, twice. */
ALWAYS_INLINE __m512 floats_twice(const float *p) {
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}

/* A float16 of the first row in lanes 0..7, one of the second in lanes 8..15. */
ALWAYS_INLINE __m512 halves_of_two(const uint8_t *a, const uint8_t *b) {
    const __m128i first = _mm_set1_epi16((short)load_u16(a)), second = _mm_set1_epi16((short)load_u16(b));
    return _mm512_cvtph_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
}

/* 16 bytes of each row. */
ALWAYS_INLINE __m256i bytes_of_two(const uint8_t *a, const uint8_t *b) {
    const __m128i first = _mm_loadu_si128((const __m128i *)(const void *)a);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first), _mm_loadu_si128((const __m128i *)(const void *)b), 1);
}

/* (d * scale) * n */
ALWAYS_INLINE __m512 term_of_two(__m512 d, __m512 scale, __m512 n) {
    return _mm512_mul_ps(_mm512_mul_ps(d, scale), n);
}

/* A pattern of 8 lanes of 32 bits, twice. */
#define LANES_TWICE(a, b, c, d, e, f, g, h) _mm512_setr_epi32(a, b, c, d, e, f, g, h, a, b, c, d, e, f, g, h)

/* Sums whose even and odd steps are in the lower and the upper half, of two rows: their sum per block. */
ALWAYS_INLINE __m512i join_halves(__m512i a, __m512i b) {
    return _mm512_add_epi32(_mm512_shuffle_i64x2(a, b, 0x44), _mm512_shuffle_i64x2(a, b, 0xEE));
}

ALWAYS_INLINE __m512i bytes_twice(const void *p) {
    return _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)p));
}

/* ---- what packs share: a pair of rows' 256 columns in a panel are such lanes, too ---- */

/* Puts the codes of a step; returns surplus with 128 times their sums added. */
ALWAYS_INLINE __m512i put_codes(__m512i code, int step, struct panel_pair *pair, __m512i surplus) {
    _mm512_store_si512(pair->code[step], code);
    return _mm512_dpbusd_epi32(surplus, _mm512_set1_epi8(-128), code);
}

ALWAYS_INLINE void put_start(__m512i surplus, int half, struct panel_pair *pair) {
    _mm512_store_si512(pair->start[half], _mm512_sub_epi32(_mm512_setzero_si512(), surplus));
}

ALWAYS_INLINE __m512 negated(__m512 x) {
    return _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
}

/* Products of 256 codes without sign and activations, summed by 4 and then by halves of blocks: lane L, place e of the
 * result is half L % 2 of block 2 e + L / 2. */
ALWAYS_INLINE __m512i sum_products(const struct codes *c, const int8_t *q) {
    __m512i s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c->z[i], _mm512_loadu_si512(q + 64 * i));
    }
    const __m512i a = _mm512_add_epi32(_mm512_unpacklo_epi32(s[0], s[1]), _mm512_unpackhi_epi32(s[0], s[1]));
    const __m512i b = _mm512_add_epi32(_mm512_unpacklo_epi32(s[2], s[3]), _mm512_unpackhi_epi32(s[2], s[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* ---- Q8_0: codes + 128 have no sign; the surplus is 128 times the sum of q ---- */

static inline void narrow_q8_0(const uint8_t *block, struct codes *c) {
    for (int i = 0; i < 4; i++, block += 68) {
        const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)(block + 2));
        const __m256i high = _mm256_loadu_si256((const __m256i *)(const void *)(block + 36));
        c->z[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
}

/* 8 float16s, 34 bytes apart. */
static inline __m256 factors_q8_0(const uint8_t *block) {
    uint16_t half[8];
    for (int b = 0; b < 8; b++) half[b] = load_u16(block + 34 * b);
    return _mm512_castps512_ps256(_mm512_cvtph_ps(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)half))));
}

/* The same of two rows. */
ALWAYS_INLINE __m512 factors_of_two_q8_0(const uint8_t *a, const uint8_t *b) {
    const __m512i low = _mm512_castsi256_si512(_mm256_setr_epi16(
        0, 17, 34, 51, 0, 0, 0, 0, 0, 17, 34, 51, 0, 0, 0, 0));
    const __m512i high = _mm512_castsi256_si512(_mm256_setr_epi16(
        0, 0, 0, 0, 4, 21, 38, 55, 0, 0, 0, 0, 4, 21, 38, 55));
    const __m256i a_low = _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(a), low, _mm512_loadu_si512(a + 64)));
    const __m256i a_high = _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(a + 128), high, _mm512_loadu_si512(a + 192)));
    const __m256i b_low = _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(b), low, _mm512_loadu_si512(b + 64)));
    const __m256i b_high = _mm512_castsi512_si256(
        _mm512_permutex2var_epi16(_mm512_loadu_si512(b + 128), high, _mm512_loadu_si512(b + 192)));
    const __m256i lower = _mm256_blend_epi32(a_low, a_high, 0x0C), upper = _mm256_blend_epi32(b_low, b_high, 0xC0);
    return _mm512_cvtph_ps(_mm256_blend_epi32(lower, upper, 0xF0));
}

ALWAYS_INLINE void step_q8_0(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at, __m512 *lane) {
    const __m512i in_order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);
    struct codes c[2];
    for (int k = 0; k < 2; k++) {
        narrow_q8_0(w[k], &c[k]);
        for (int i = 0; i < 4; i++) c[k].z[i] = _mm512_xor_si512(c[k].z[i], _mm512_set1_epi8(-128));
    }
    const __m512 d = factors_of_two_q8_0(w[0], w[1]);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m512i a = sum_products(&c[0], x[r].q + at), b = sum_products(&c[1], x[r].q + at);
        const __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xDD));
        const __m512i surplus = _mm512_madd_epi16(bytes_twice(x[r].sum + at / 16), _mm512_set1_epi16(128));
        const __m512i n = _mm512_sub_epi32(_mm512_permutexvar_epi32(in_order, sums), surplus);
        const __m512 term = term_of_two(d, floats_twice(x[r].scale + at / 32), _mm512_cvtepi32_ps(n));
        lane[r] = _mm512_add_ps(lane[r], term);
    }
}

/* ---- Q2_K: lane 4 h + p of step i takes the word i of half h, at bit 2 p ---- */

#define Q2_K_SHIFT LANES_TWICE(0, 2, 4, 6, 0, 2, 4, 6)

ALWAYS_INLINE __m512i words_q2_k(__m512i a, __m512i b, int i) {
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 16, 16, 16, 16, 24, 24, 24, 24);
    return _mm512_permutex2var_epi32(a, _mm512_add_epi32(word, _mm512_set1_epi32(i)), b);
}

/* Factors of both halves of a lane's block, 16 bits each. */
ALWAYS_INLINE void factors_of_two_q2_k(const uint8_t *const *w, __m512i *f, __m512i *g) {
    const __m256i factors = bytes_of_two(w[0], w[1]), low = _mm256_set1_epi8(15);
    *f = _mm512_cvtepu8_epi16(_mm256_and_si256(factors, low));
    *g = _mm512_cvtepu8_epi16(_mm256_and_si256(_mm256_srli_epi16(factors, 4), low));
}

ALWAYS_INLINE void step_q2_k(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at, __m512 *lane) {
    const __m512i shift = Q2_K_SHIFT, up = _mm512_sub_epi32(_mm512_set1_epi32(16), shift);
    const __m512i masks = _mm512_sllv_epi32(_mm512_set1_epi32(0x03030303), shift);
    const __m512i a = _mm512_loadu_si512(w[0] + 16), b = _mm512_loadu_si512(w[1] + 16);
    __m512i sum[GLM52_FEW_ROWS][2], f, g;
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) sum[r][0] = sum[r][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m512i code = _mm512_and_si512(words_q2_k(a, b, i), masks);
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) {
            sum[r][i / 4] = _mm512_dpbusd_epi32(sum[r][i / 4], code, bytes_twice(x[r].arranged + at + 32 * (size_t)i));
        }
    }
    factors_of_two_q2_k(w, &f, &g);
    const __m512 d = halves_of_two(w[0] + 80, w[1] + 80), m = halves_of_two(w[0] + 82, w[1] + 82);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        /* Both sums of a block, 16 bits each. */
        const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_srav_epi32(sum[r][0], shift),
                                                     _mm512_sllv_epi32(sum[r][1], up));
        const __m512 n = _mm512_cvtepi32_ps(_mm512_madd_epi16(both, f));
        const __m512 k = _mm512_cvtepi32_ps(_mm512_madd_epi16(bytes_twice(x[r].sum + at / 16), g));
        const __m512 scale = floats_twice(x[r].scale + at / 32);
        lane[r] = _mm512_add_ps(lane[r], _mm512_sub_ps(term_of_two(d, scale, n), term_of_two(m, scale, k)));
    }
}

ALWAYS_INLINE void pair_q2_k(const uint8_t *const *w, struct panel_pair *pair) {
    const __m512i a = _mm512_loadu_si512(w[0] + 16), b = _mm512_loadu_si512(w[1] + 16);
    __m512i surplus[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()}, f, g;
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        const __m512i words = _mm512_srlv_epi32(words_q2_k(a, b, i), Q2_K_SHIFT);
        surplus[i / 4] = put_codes(_mm512_and_si512(words, _mm512_set1_epi8(3)), i, pair, surplus[i / 4]);
    }
    factors_of_two_q2_k(w, &f, &g);
    for (int half = 0; half < 2; half++) put_start(surplus[half], half, pair);
    _mm512_store_ps(pair->f[0], _mm512_cvtepi32_ps(_mm512_and_si512(f, _mm512_set1_epi32(0xFFFF))));
    _mm512_store_ps(pair->f[1], _mm512_cvtepi32_ps(_mm512_srli_epi32(f, 16)));
    _mm512_store_ps(pair->d, halves_of_two(w[0] + 80, w[1] + 80));
    _mm512_store_ps(pair->m, negated(halves_of_two(w[0] + 82, w[1] + 82)));
    _mm512_store_si512(pair->g, g);
}

/* ---- Q4_K: lane 2 c + h of step i takes the word i of chunk c, at bit 4 h ---- */

/* Steps 2 i (lower half) and 2 i + 1 of one row. */
ALWAYS_INLINE __m512i words_q4_k(__m512i low, __m512i high, int i) {
    const __m512i word = _mm512_setr_epi32(0, 0, 8, 8, 16, 16, 24, 24, 1, 1, 9, 9, 17, 17, 25, 25);
    return _mm512_permutex2var_epi32(low, _mm512_add_epi32(word, _mm512_set1_epi32(2 * i)), high);
}

ALWAYS_INLINE void factors_of_two_q4_k(const uint8_t *const *w, __m512i *f_out, __m512i *g_out) {
    uint64_t g[2];
    const uint64_t first = factors_q4_k(w[0] + 4, &g[0]), second = factors_q4_k(w[1] + 4, &g[1]);
    *f_out = _mm512_cvtepu8_epi32(_mm_set_epi64x((long long)second, (long long)first));
    *g_out = _mm512_cvtepu8_epi32(_mm_set_epi64x((long long)g[1], (long long)g[0]));
}

ALWAYS_INLINE void step_q4_k(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at, __m512 *lane) {
    const __m512i masks = _mm512_set1_epi64((long long)0xF0F0F0F00F0F0F0F);
    __m512i sum[2][GLM52_FEW_ROWS], f, g;
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const __m512i low = _mm512_loadu_si512(w[k] + 16), high = _mm512_loadu_si512(w[k] + 80);
#pragma GCC unroll 4
        for (int r = 0; r < x_count; r++) sum[k][r] = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i code = _mm512_and_si512(words_q4_k(low, high, i), masks);
#pragma GCC unroll 4
            for (int r = 0; r < x_count; r++) {
                const __m512i q = _mm512_loadu_si512(x[r].arranged + at + 64 * (size_t)i);
                sum[k][r] = _mm512_dpbusd_epi32(sum[k][r], code, q);
            }
        }
    }
    factors_of_two_q4_k(w, &f, &g);
    const __m512 factor = _mm512_cvtepi32_ps(f), minimum = _mm512_cvtepi32_ps(g);
    const __m512 d = halves_of_two(w[0], w[1]), m = halves_of_two(w[0] + 2, w[1] + 2);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m512i sums = _mm512_srav_epi32(join_halves(sum[0][r], sum[1][r]), LANES_TWICE(0, 4, 0, 4, 0, 4, 0, 4));
        const __m512i q_sum = _mm512_madd_epi16(bytes_twice(x[r].sum + at / 16), _mm512_set1_epi16(1));
        const __m512 n = _mm512_mul_ps(_mm512_cvtepi32_ps(sums), factor);
        const __m512 k = _mm512_mul_ps(_mm512_cvtepi32_ps(q_sum), minimum);
        const __m512 scale = floats_twice(x[r].scale + at / 32);
        lane[r] = _mm512_add_ps(lane[r], _mm512_sub_ps(term_of_two(d, scale, n), term_of_two(m, scale, k)));
    }
}

ALWAYS_INLINE void pair_q4_k(const uint8_t *const *w, struct panel_pair *pair) {
    const __m512i shift = LANES_TWICE(0, 4, 0, 4, 0, 4, 0, 4);
    const __m512i a[2] = {_mm512_loadu_si512(w[0] + 16), _mm512_loadu_si512(w[0] + 80)};
    const __m512i b[2] = {_mm512_loadu_si512(w[1] + 16), _mm512_loadu_si512(w[1] + 80)};
    __m512i surplus = _mm512_setzero_si512(), f, g;
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const __m512i first = words_q4_k(a[0], a[1], i), second = words_q4_k(b[0], b[1], i);
        const __m512i words[2] = {_mm512_shuffle_i64x2(first, second, 0x44), _mm512_shuffle_i64x2(first, second, 0xEE)};
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++) {
            const __m512i code = _mm512_and_si512(_mm512_srlv_epi32(words[k], shift), _mm512_set1_epi8(15));
            surplus = put_codes(code, 2 * i + k, pair, surplus);
        }
    }
    factors_of_two_q4_k(w, &f, &g);
    put_start(surplus, 0, pair);
    _mm512_store_ps(pair->f[0], _mm512_cvtepi32_ps(f));
    _mm512_store_ps(pair->d, halves_of_two(w[0], w[1]));
    _mm512_store_ps(pair->m, negated(halves_of_two(w[0] + 2, w[1] + 2)));
    _mm512_store_si512(pair->g, _mm512_or_si512(g, _mm512_slli_epi32(g, 16)));
}

/* ---- Q6_K: lane 4 h + b of step i takes the word i of nibbles 32 (b & 1) of half h at bit 4 (b >> 1), and as upper
 * bits the word i of high bits of half h at bit 2 b; 32 is taken off the sums ---- */

#define Q6_K_LOW_SHIFT LANES_TWICE(0, 0, 4, 4, 0, 0, 4, 4)
#define Q6_K_HIGH_SHIFT LANES_TWICE(0, 2, 4, 6, 0, 2, 4, 6)

/* Steps 2 i (lower half) and 2 i + 1 of one row. */
ALWAYS_INLINE __m512i nibbles_q6_k(__m512i first, __m512i second, int i) {
    const __m512i word = _mm512_setr_epi32(0, 8, 0, 8, 16, 24, 16, 24, 1, 9, 1, 9, 17, 25, 17, 25);
    return _mm512_permutex2var_epi32(first, _mm512_add_epi32(word, _mm512_set1_epi32(2 * i)), second);
}

ALWAYS_INLINE __m512i bits_q6_k(__m512i upper, int i) {
    const __m512i word = _mm512_setr_epi32(0, 0, 0, 0, 8, 8, 8, 8, 1, 1, 1, 1, 9, 9, 9, 9);
    return _mm512_permutexvar_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(2 * i)), upper);
}

ALWAYS_INLINE void step_q6_k(const uint8_t *const *w, const struct glm52_q8 *x, int x_count, size_t at, __m512 *lane) {
    const __m512i low_shift = Q6_K_LOW_SHIFT, high_shift = Q6_K_HIGH_SHIFT;
    const __m512i low_masks = _mm512_sllv_epi32(_mm512_set1_epi32(0x0F0F0F0F), low_shift);
    const __m512i high_masks = _mm512_sllv_epi32(_mm512_set1_epi32(0x03030303), high_shift);
    __m512i low[2][GLM52_FEW_ROWS][2], high[2][GLM52_FEW_ROWS][2];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const __m512i first = _mm512_loadu_si512(w[k]), second = _mm512_loadu_si512(w[k] + 64);
        const __m512i upper = _mm512_loadu_si512(w[k] + 128);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const __m512i c = _mm512_and_si512(nibbles_q6_k(first, second, i), low_masks);
            const __m512i h = _mm512_and_si512(bits_q6_k(upper, i), high_masks);
#pragma GCC unroll 4
            for (int r = 0; r < x_count; r++) {
                const __m512i q = _mm512_loadu_si512(x[r].arranged + at + 64 * (size_t)i);
                const __m512i zero = _mm512_setzero_si512();
                low[k][r][i / 2] = _mm512_dpbusd_epi32(i % 2 ? low[k][r][i / 2] : zero, c, q);
                high[k][r][i / 2] = _mm512_dpbusd_epi32(i % 2 ? high[k][r][i / 2] : zero, h, q);
            }
        }
    }
    const __m512i factors = _mm512_cvtepi8_epi16(bytes_of_two(w[0] + 192, w[1] + 192));
    const __m512 f[2] = {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(factors, 16), 16)),
                         _mm512_cvtepi32_ps(_mm512_srai_epi32(factors, 16))};
    const __m512 d = halves_of_two(w[0] + 208, w[1] + 208);
#pragma GCC unroll 4
    for (int r = 0; r < x_count; r++) {
        const __m512i q_sum = bytes_twice(x[r].sum + at / 16);
        const __m512i surplus[2] = {_mm512_srai_epi32(_mm512_slli_epi32(q_sum, 16), 11),
                                    _mm512_slli_epi32(_mm512_srai_epi32(q_sum, 16), 5)};
        __m512 product[2];
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            const __m512i l = _mm512_srav_epi32(join_halves(low[0][r][half], low[1][r][half]), low_shift);
            const __m512i h = _mm512_slli_epi32(join_halves(high[0][r][half], high[1][r][half]), 4);
            const __m512i sums = _mm512_add_epi32(l, _mm512_srav_epi32(h, high_shift));
            product[half] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(sums, surplus[half])), f[half]);
        }
        const __m512 n = _mm512_add_ps(product[0], product[1]);   /* integers below 2^24 */
        lane[r] = _mm512_add_ps(lane[r], term_of_two(d, floats_twice(x[r].scale + at / 32), n));
    }
}

ALWAYS_INLINE void pair_q6_k(const uint8_t *const *w, struct panel_pair *pair) {
    __m512i surplus[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    __m512i nibbles[2][4], bits[2][4];
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++) {
        const __m512i first = _mm512_loadu_si512(w[k]), second = _mm512_loadu_si512(w[k] + 64);
        const __m512i upper = _mm512_loadu_si512(w[k] + 128);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            nibbles[k][i] = nibbles_q6_k(first, second, i);
            bits[k][i] = bits_q6_k(upper, i);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < 8; t++) {
        const __m512i n = t % 2 ? _mm512_shuffle_i64x2(nibbles[0][t / 2], nibbles[1][t / 2], 0xEE)
                                : _mm512_shuffle_i64x2(nibbles[0][t / 2], nibbles[1][t / 2], 0x44);
        const __m512i h = t % 2 ? _mm512_shuffle_i64x2(bits[0][t / 2], bits[1][t / 2], 0xEE)
                                : _mm512_shuffle_i64x2(bits[0][t / 2], bits[1][t / 2], 0x44);
        const __m512i low = _mm512_and_si512(_mm512_srlv_epi32(n, Q6_K_LOW_SHIFT), _mm512_set1_epi8(15));
        const __m512i high = _mm512_and_si512(_mm512_srlv_epi32(h, Q6_K_HIGH_SHIFT), _mm512_set1_epi8(3));
        const __m512i code = _mm512_sub_epi8(_mm512_or_si512(low, _mm512_slli_epi16(high, 4)), _mm512_set1_epi8(32));
        surplus[t / 4] = put_codes(code, t, pair, surplus[t / 4]);
    }
    const __m512i f = _mm512_cvtepi8_epi16(bytes_of_two(w[0] + 192, w[1] + 192));
    for (int half = 0; half < 2; half++) put_start(surplus[half], half, pair);
    _mm512_store_ps(pair->f[0], _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(f, 16), 16)));
    _mm512_store_ps(pair->f[1], _mm512_cvtepi32_ps(_mm512_srai_epi32(f, 16)));
    _mm512_store_ps(pair->d, halves_of_two(w[0] + 208, w[1] + 208));
}

#endif
