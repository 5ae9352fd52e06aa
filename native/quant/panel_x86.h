/* panel_x86.h - panels (panel.h) in vectors of 32 bytes (AVX2) and of 64 (AVX-512 with VNNI). */
#ifndef GLM52_PANEL_X86_H
#define GLM52_PANEL_X86_H

#include <immintrin.h>

#include "quant.h"

/* Weights are read once: lines this far ahead are asked for, which the processor's own prefetching, page by page, does
 * not reach in time. */
#define WEIGHTS_AHEAD 8192
ALWAYS_INLINE void ask_ahead(const uint8_t *w, size_t bytes) {
    const uintptr_t from = (uintptr_t)w + WEIGHTS_AHEAD;     /* an address, which need not be anybody's */
    for (size_t line = 0; line < bytes; line += 64) _mm_prefetch((const char *)(from + line), _MM_HINT_T0);
}

/* 2 rows, 256 columns. [row][block] is a vector of 64 bytes everywhere. */
struct panel_pair {
    _Alignas(64) int8_t code[8][2][8][4];   /* [step][row][block][i] */
    int32_t start[2][2][8];                 /* [half][row][block]: -128 * sum of codes; one half unless 16 factors */
    float f[2][2][8];                       /* [half][row][block] */
    float d[2][8], m[2][8];                 /* [row][block] */
    int16_t g[2][8][2];                     /* [row][block][half] */
};
_Static_assert(sizeof(struct panel_pair) == GLM52_PANEL_GROUP_BYTES / 2, "quant.h states the size of a panel");

/* The transpose of 8 x 8 words of 32 bits: where codes of 8 blocks of 32 become 8 steps. */
static inline void transpose(const int8_t *in, __m256i *out) {
    __m256i a[8], b[8];
    for (int i = 0; i < 8; i++) a[i] = _mm256_load_si256((const __m256i *)(const void *)in + i);
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_epi32(a[i], a[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm256_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm256_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm256_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        out[i] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x20);
        out[i + 4] = _mm256_permute2x128_si256(a[i], a[i + 4], 0x31);
    }
}

#ifdef __AVX512VBMI__
/* The same from vectors of 64 bytes. */
static inline void transpose_wide(const int8_t *in, __m256i *out) {
    const __m512i first = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(4));
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11),
                  upper = _mm512_add_epi64(lower, _mm512_set1_epi64(4));
    const __m512i z0 = _mm512_load_si512(in), z1 = _mm512_load_si512(in + 64);
    const __m512i z2 = _mm512_load_si512(in + 128), z3 = _mm512_load_si512(in + 192);
    const __m512i a[2] = {_mm512_permutex2var_epi32(z0, first, z1), _mm512_permutex2var_epi32(z0, last, z1)};
    const __m512i b[2] = {_mm512_permutex2var_epi32(z2, first, z3), _mm512_permutex2var_epi32(z2, last, z3)};
    for (int i = 0; i < 2; i++) {
        const __m512i t0 = _mm512_permutex2var_epi64(a[i], lower, b[i]);
        const __m512i t2 = _mm512_permutex2var_epi64(a[i], upper, b[i]);
        out[4 * i] = _mm512_castsi512_si256(t0);
        out[4 * i + 1] = _mm512_extracti64x4_epi64(t0, 1);
        out[4 * i + 2] = _mm512_castsi512_si256(t2);
        out[4 * i + 3] = _mm512_extracti64x4_epi64(t2, 1);
    }
}
#else
#define transpose_wide transpose
#endif

/* ---- orders of activations ---- */

/* 256 values in their order to 8 steps of 4 values for each of 8 blocks. */
typedef void order_of_group(const int8_t *q, __m256i *steps);

ALWAYS_INLINE void arrange_groups(order_of_group *order, size_t count, struct glm52_q8 x) {
    for (size_t at = 0; at < count; at += SUPER) {
        _Alignas(64) int8_t part[SUPER] = {0};
        __m256i steps[8];
        memcpy(part, x.q + at, count - at < SUPER ? count - at : SUPER);
        order(part, steps);
        for (size_t t = 0; t < 8; t++) {
            _mm256_store_si256((__m256i *)(void *)(x.arranged + at + 32 * t), steps[t]);
            _mm256_store_si256((__m256i *)(void *)(x.dealt + at + 32 * t),
                               _mm256_xor_si256(steps[t], _mm256_set1_epi8(-128)));
        }
    }
}

/* Value 4 t + i of block b to place 32 t + 4 b + i: step t takes 4 neighbours of every block. */
static inline void arrange_words(size_t count, struct glm52_q8 x) {
    arrange_groups(transpose_wide, count, x);
}

/* The multiply-add without VNNI goes by way of 16-bit sums of pairs: how many of them fit, at most 255 * 2 *
 * code_max each. 0: not even one; such codes are multiplied by magnitude and sign instead, and start at 0. */
ALWAYS_INLINE int pairs_that_fit(int code_max) {
#ifdef __AVX512VNNI__
    (void)code_max;
    return 1;
#else
    const int fit = 32767 / (510 * code_max);
    return fit >= 4 ? 4 : fit >= 2 ? 2 : fit;
#endif
}

static inline __m256i start_of(const __m256i *code, int steps) {
    __m256i pairs = _mm256_setzero_si256();
    for (int t = 0; t < steps; t++) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(_mm256_set1_epi8(1), code[t]));
    }
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(-128));
}

ALWAYS_INLINE void store_floats(const int8_t *in, float *out) {
    const __m256i words = _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)in));
    _mm256_store_ps(out, _mm256_cvtepi32_ps(words));
}

/* Puts 256 columns of a row into its place. */
ALWAYS_INLINE void place(const struct panel_kind kind, const struct unpacked *u, struct panel_pair *pair, int row) {
    _Alignas(64) int8_t narrow[SUPER];
    __m256i code[8];
    if (kind.is_narrow) {
        transpose_wide(u->narrow, code);
    } else {
        for (int i = 0; i < SUPER; i++) narrow[i] = (int8_t)u->code[i];
        transpose(narrow, code);
    }
    for (int t = 0; t < 8; t++) _mm256_store_si256((__m256i *)pair->code[t][row], code[t]);
    const bool is_shifted = pairs_that_fit(kind.code_max) > 0;
    const int halves = kind.factors == 16 ? 2 : 1;
    for (int half = 0; half < halves; half++) {
        const __m256i start = start_of(code + 4 * half, 8 / halves);
        _mm256_store_si256((__m256i *)pair->start[half][row], is_shifted ? start : _mm256_setzero_si256());
    }
    if (kind.factors == 8) store_floats(u->f, pair->f[0][row]);
    if (kind.factors == 16) {
        const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        _Alignas(16) int8_t f[16];
        _mm_store_si128((__m128i *)f, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)u->f), apart));
        store_floats(f, pair->f[0][row]);
        store_floats(f + 8, pair->f[1][row]);
    }
    memcpy(pair->d[row], u->d, sizeof(u->d));
    if (!kind.has_minimum) return;
    memcpy(pair->m[row], u->m, sizeof(u->m));
    const __m128i g = _mm_loadu_si128((const __m128i *)u->g);
    _mm256_store_si256((__m256i *)pair->g[row], _mm256_cvtepi8_epi16(g));
}

ALWAYS_INLINE void pack_rows(unpack_group *unpack, size_t stride, const struct panel_kind kind, const uint8_t *blocks,
                             size_t row_bytes, size_t rows, size_t count, void *panel) {
    struct panel_pair *pairs = panel;
    for (size_t row = 0; row < GLM52_PANEL_ROWS; row++) {
        struct panel_pair *pair = pairs + row / 2;
        const uint8_t *block = blocks + row * row_bytes;
        for (size_t at = 0; at < count; at += SUPER, pair += 2, block += stride) {
            struct unpacked u;
            const int in_group = count - at < SUPER ? (int)((count - at) / 32) : 8;
            if (row < rows) ask_ahead(block, stride);
            if (row >= rows || in_group < 8) memset(&u, 0, sizeof(u));
            if (row < rows) unpack(block, in_group, &u);
            place(kind, &u, pair, (int)(row % 2));
        }
    }
}

/* A pair of rows at once, for formats of super-blocks: fills a pair's 256 columns from the super-blocks w[0], w[1]. */
typedef void unpack_pair(const uint8_t *const *w, struct panel_pair *pair);

ALWAYS_INLINE void pack_pairs(unpack_pair *unpack, size_t stride, const uint8_t *blocks, size_t row_bytes, size_t rows,
                              size_t count, void *panel) {
    for (size_t row = 0; row < GLM52_PANEL_ROWS; row += 2) {
        struct panel_pair *pair = (struct panel_pair *)panel + row / 2;
        const size_t last = rows - 1;      /* taken again for rows that there are not */
        const uint8_t *w[2] = {blocks + (row < last ? row : last) * row_bytes,
                               blocks + (row + 1 < last ? row + 1 : last) * row_bytes};
        for (size_t at = 0; at < count; at += SUPER, pair += 2, w[0] += stride, w[1] += stride) {
            ask_ahead(w[0], stride);
            ask_ahead(w[1], stride);
            unpack(w, pair);
        }
    }
}

#ifdef __AVX512VNNI__

ALWAYS_INLINE __m512 lanes_twice(const float *p) {
    return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
}

/* y[0], y[1] = sums of the lanes 0..7 and 8..15 in the order of sum_lanes. */
static inline void sum_pair(__m512 lane, float *y) {
    __m512 sum = _mm512_add_ps(lane, _mm512_shuffle_f32x4(lane, lane, 0xB1));
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0x4E));
    sum = _mm512_add_ps(sum, _mm512_permute_ps(sum, 0xB1));
    y[0] = _mm512_cvtss_f32(sum);
    y[1] = _mm_cvtss_f32(_mm512_extractf32x4_ps(sum, 2));
}

/* Adds the terms of 256 columns to lane[pair][row of activations]. */
ALWAYS_INLINE void multiply_group(const struct panel_kind kind, const struct panel_pair *pair,
                                  const struct glm52_q8 *rows, int row_count, size_t group, __m512 (*lane)[4]) {
    const int halves = kind.factors == 16 ? 2 : 1;
    __m512 n[2][4];
#pragma GCC unroll 2
    for (int half = 0; half < halves; half++) {
        __m512i sum[2][4];
#pragma GCC unroll 4
        for (int r = 0; r < row_count; r++) {
            sum[0][r] = _mm512_load_si512(pair[0].start[half]);
            sum[1][r] = _mm512_load_si512(pair[1].start[half]);
        }
#pragma GCC unroll 8
        for (int t = 0; t < 8; t++) {
            if (halves == 2 && t / 4 != half) continue;
            const __m512i w0 = _mm512_load_si512(pair[0].code[t]), w1 = _mm512_load_si512(pair[1].code[t]);
#pragma GCC unroll 4
            for (int r = 0; r < row_count; r++) {
                const __m512i u = _mm512_broadcast_i64x4(
                    _mm256_load_si256((const __m256i *)(rows[r].dealt + SUPER * group) + t));
                sum[0][r] = _mm512_dpbusd_epi32(sum[0][r], u, w0);
                sum[1][r] = _mm512_dpbusd_epi32(sum[1][r], u, w1);
            }
        }
#pragma GCC unroll 4
        for (int r = 0; r < row_count; r++) {
#pragma GCC unroll 2
            for (int p = 0; p < 2; p++) {
                const __m512 s = _mm512_cvtepi32_ps(sum[p][r]), f = _mm512_load_ps(pair[p].f[half]);
                if (kind.factors == 0) n[p][r] = s;
                else if (half == 0) n[p][r] = _mm512_mul_ps(s, f);
                else n[p][r] = _mm512_fmadd_ps(s, f, n[p][r]);   /* nothing to round */
            }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < row_count; r++) {
        const __m512 scale = lanes_twice(rows[r].scale + 8 * group);
#pragma GCC unroll 2
        for (int p = 0; p < 2; p++) {
            __m512 term = _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(pair[p].d), scale), n[p][r]);
            if (kind.has_minimum) {
                const __m512i q_sum = _mm512_broadcast_i64x4(
                    _mm256_load_si256((const __m256i *)(rows[r].sum + 16 * group)));
                const __m512 k = _mm512_cvtepi32_ps(_mm512_madd_epi16(_mm512_load_si512(pair[p].g), q_sum));
                term = _mm512_add_ps(term, _mm512_mul_ps(_mm512_mul_ps(_mm512_load_ps(pair[p].m), scale), k));
            }
            lane[p][r] = _mm512_add_ps(lane[p][r], term);
        }
    }
}

ALWAYS_INLINE void multiply_some(const struct panel_kind kind, const struct panel_pair *pairs,
                                 const struct glm52_q8 *rows, int row_count, size_t groups, float *y) {
    __m512 lane[2][4];
    for (int r = 0; r < row_count; r++) lane[0][r] = lane[1][r] = _mm512_setzero_ps();
    for (size_t group = 0; group < groups; group++) {
        multiply_group(kind, pairs + 2 * group, rows, row_count, group, lane);
    }
    for (int r = 0; r < row_count; r++) {
        sum_pair(lane[0][r], y + GLM52_PANEL_ROWS * r);
        sum_pair(lane[1][r], y + GLM52_PANEL_ROWS * r + 2);
    }
}

#else

static inline float sum_row(__m256 lane) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(lane), _mm256_extractf128_ps(lane, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}

/* Sums of u * code of the steps t .. end - 1, to lanes of 32 bits. */
ALWAYS_INLINE __m256i sum_steps(int code_max, const struct panel_pair *pair, int row, const __m256i *u, int t, int end,
                                __m256i sum) {
    const int fit = pairs_that_fit(code_max), run = fit > 0 ? fit : 1;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (; t < end; t += run) {
        __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int i = 0; i < run; i++) {
            const __m256i code = _mm256_load_si256((const __m256i *)pair->code[t + i][row]);
            const __m256i by_sign = _mm256_sign_epi8(_mm256_xor_si256(u[t + i], _mm256_set1_epi8(-128)), code);
            const __m256i product = fit > 0 ? _mm256_maddubs_epi16(u[t + i], code)
                                            : _mm256_maddubs_epi16(_mm256_abs_epi8(code), by_sign);
            pairs = i == 0 ? product : _mm256_add_epi16(pairs, product);
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

/* The term of 256 columns of one row of weights and one of activations. */
ALWAYS_INLINE __m256 term_of(const struct panel_kind kind, const struct panel_pair *pair, int row,
                             const struct glm52_q8 *q8, size_t group) {
    const int halves = kind.factors == 16 ? 2 : 1;
    const __m256i *u = (const __m256i *)(const void *)(q8->dealt + SUPER * group);
    __m256 n = _mm256_setzero_ps();
#pragma GCC unroll 2
    for (int half = 0; half < halves; half++) {
        const __m256i start = _mm256_load_si256((const __m256i *)pair->start[half][row]);
        const __m256i sum = sum_steps(kind.code_max, pair, row, u, 8 / halves * half, 8 / halves * (half + 1), start);
        const __m256 s = _mm256_cvtepi32_ps(sum), f = _mm256_load_ps(pair->f[half][row]);
        if (kind.factors == 0) n = s;
        else if (half == 0) n = _mm256_mul_ps(s, f);
        else n = _mm256_add_ps(_mm256_mul_ps(s, f), n);
    }
    const __m256 scale = _mm256_loadu_ps(q8->scale + 8 * group);
    __m256 term = _mm256_mul_ps(_mm256_mul_ps(_mm256_load_ps(pair->d[row]), scale), n);
    if (kind.has_minimum) {
        const __m256i q_sum = _mm256_load_si256((const __m256i *)(const void *)(q8->sum + 16 * group));
        const __m256i k = _mm256_madd_epi16(_mm256_load_si256((const __m256i *)pair->g[row]), q_sum);
        const __m256 m_scale = _mm256_mul_ps(_mm256_load_ps(pair->m[row]), scale);
        term = _mm256_add_ps(term, _mm256_mul_ps(m_scale, _mm256_cvtepi32_ps(k)));
    }
    return term;
}

ALWAYS_INLINE void multiply_some(const struct panel_kind kind, const struct panel_pair *pairs,
                                 const struct glm52_q8 *rows, int row_count, size_t groups, float *y) {
    for (int r = 0; r < row_count; r++) {
        __m256 lane[4];
        for (int i = 0; i < 4; i++) lane[i] = _mm256_setzero_ps();
        for (size_t group = 0; group < groups; group++) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                lane[i] = _mm256_add_ps(lane[i], term_of(kind, pairs + 2 * group + i / 2, i % 2, &rows[r], group));
            }
        }
        for (int i = 0; i < 4; i++) y[GLM52_PANEL_ROWS * r + i] = sum_row(lane[i]);
    }
}

#endif

ALWAYS_INLINE void multiply_rows(const struct panel_kind kind, const void *panel, const struct glm52_q8 *rows,
                                 size_t row_count, size_t groups, float *y) {
    if (row_count == 4) multiply_some(kind, panel, rows, 4, groups, y);
    else if (row_count == 3) multiply_some(kind, panel, rows, 3, groups, y);
    else if (row_count == 2) multiply_some(kind, panel, rows, 2, groups, y);
    else multiply_some(kind, panel, rows, 1, groups, y);
}

#endif
