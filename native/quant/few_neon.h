/* few_neon.h - few rows of activations against rows of weights as they lie (dot_few of quant.h), by hand for NEON:
 * Q8_0, Q2_K, Q4_K, Q6_K, IQ2_XXS. To the bit what dot_q8 gives (blocks.h).
 *
 * A row of weights is taken 256 columns at a time, its blocks in their order; the codes of 16 columns are unpacked once
 * for all rows of activations. Where the processor has the dot product of bytes, 16 products are one instruction; else
 * two products fit 16 bits: 2 * 128 * 127 = 32,512. */
#ifndef GLM52_FEW_NEON_H
#define GLM52_FEW_NEON_H

#include <arm_neon.h>

#include "panel.h"

/* 256 columns of a row of weights: sum[r][b] += whatever adds up to n of block b for activations r, and with a minimum
 * k[r] for its blocks. */
struct few_sums {
    int32x4_t n[GLM52_FEW_ROWS][8];
    int32x4_t k[GLM52_FEW_ROWS][2];
};

/* Fills sums from a group, d and m: its floats for each block. */
typedef void few_step(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, struct few_sums *sums,
                      float32x4_t *d, float32x4_t *m);

ALWAYS_INLINE int32x4_t dot_16(int32x4_t sum, int8x16_t a, int8x16_t b) {
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(sum, a, b);
#else
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
    return vpadalq_s16(sum, vmlal_s8(low, vget_high_s8(a), vget_high_s8(b)));
#endif
}

/* Sums of four vectors, in their order. */
ALWAYS_INLINE int32x4_t sum_each_of_4(const int32x4_t *s) {
    return vpaddq_s32(vpaddq_s32(s[0], s[1]), vpaddq_s32(s[2], s[3]));
}

ALWAYS_INLINE float32x4_t term_of_4(float32x4_t d, const float *scale, int32x4_t n) {
    return vmulq_f32(vmulq_f32(d, vld1q_f32(scale)), vcvtq_f32_s32(n));
}

ALWAYS_INLINE void few_group(few_step *step, bool has_minimum, const uint8_t *w, const struct glm52_q8 *x, int x_count,
                             size_t at, float32x4_t (*lane)[2]) {
    struct few_sums sums;
    float32x4_t d[2], m[2];
    step(w, x, x_count, at, &sums, d, m);
    for (int r = 0; r < x_count; r++) {
        for (int i = 0; i < 2; i++) {
            const float *scale = x[r].scale + at / 32 + 4 * i;
            float32x4_t term = term_of_4(d[i], scale, sum_each_of_4(sums.n[r] + 4 * i));
            if (has_minimum) term = vsubq_f32(term, term_of_4(m[i], scale, sums.k[r][i]));
            lane[r][i] = vaddq_f32(lane[r][i], term);
        }
    }
}

ALWAYS_INLINE void few_row(few_step *step, bool has_minimum, size_t stride, const uint8_t *w, size_t count,
                           const struct glm52_q8 *x, int x_count, float *y, size_t y_stride) {
    float32x4_t lane[GLM52_FEW_ROWS][2];
    for (int r = 0; r < x_count; r++) lane[r][0] = lane[r][1] = vdupq_n_f32(0);
    size_t at = 0;
    for (; at + SUPER <= count; at += SUPER, w += stride) few_group(step, has_minimum, w, x, x_count, at, lane);
    if (at < count) {      /* blocks of 32 alone; behind them codes, scales and factors are 0 */
        uint8_t part[8 * 34] = {0};
        memcpy(part, w, stride * (count - at) / SUPER);
        few_group(step, has_minimum, part, x, x_count, at, lane);
    }
    for (int r = 0; r < x_count; r++) {
        float lanes[LANES];
        vst1q_f32(lanes, lane[r][0]);
        vst1q_f32(lanes + 4, lane[r][1]);
        y[(size_t)r * y_stride] = sum_lanes(lanes);
    }
}

ALWAYS_INLINE void few_rows(few_step *step, bool has_minimum, size_t stride, const uint8_t *blocks, size_t row_bytes,
                            size_t rows, size_t count, const struct glm52_q8 *x, size_t x_count, float *y,
                            size_t y_stride) {
    for (size_t i = 0; i < rows; i++, blocks += row_bytes) {
        if (x_count == 1) few_row(step, has_minimum, stride, blocks, count, x, 1, y + i, y_stride);
        else if (x_count == 2) few_row(step, has_minimum, stride, blocks, count, x, 2, y + i, y_stride);
        else if (x_count == 3) few_row(step, has_minimum, stride, blocks, count, x, 3, y + i, y_stride);
        else few_row(step, has_minimum, stride, blocks, count, x, 4, y + i, y_stride);
    }
}

#define FEW_FUNCTION(name, step, stride, has_minimum)                                                                \
    static void few_##name(const void *blocks, size_t row_bytes, size_t rows, size_t count,                          \
                           const struct glm52_q8 *x, size_t x_count, float *y, size_t y_stride) {                    \
        few_rows(step, has_minimum, stride, blocks, row_bytes, rows, count, x, x_count, y, y_stride);                \
    }

/* ---- what the steps share ---- */

ALWAYS_INLINE void everywhere(const uint8_t *half, float32x4_t *out) {
    out[0] = out[1] = vdupq_n_f32(load_f16(half));
}

/* Both halves of block b: n = f0 * first half + f1 * second half. */
ALWAYS_INLINE void multiply_halves(int8x16_t first, int8x16_t second, int f0, int f1, int b, const struct glm52_q8 *x,
                                   int x_count, size_t at, struct few_sums *sums) {
    const int32x4_t zero = vdupq_n_s32(0);
    for (int r = 0; r < x_count; r++) {
        const int8_t *q = x[r].q + at + 32 * (size_t)b;
        const int32x4_t low = dot_16(zero, first, vld1q_s8(q)), high = dot_16(zero, second, vld1q_s8(q + 16));
        sums->n[r][b] = vmlaq_n_s32(vmulq_n_s32(low, f0), high, f1);
    }
}

/* A whole block, one factor. */
ALWAYS_INLINE void multiply_block(int8x16_t first, int8x16_t second, int f, int b, const struct glm52_q8 *x,
                                  int x_count, size_t at, struct few_sums *sums) {
    for (int r = 0; r < x_count; r++) {
        const int8_t *q = x[r].q + at + 32 * (size_t)b;
        const int32x4_t half = dot_16(vdupq_n_s32(0), first, vld1q_s8(q));
        sums->n[r][b] = vmulq_n_s32(dot_16(half, second, vld1q_s8(q + 16)), f);
    }
}

/* k of 8 blocks from g, a factor for 16 columns each. */
ALWAYS_INLINE void multiply_minimums(const int16_t *g, const struct glm52_q8 *x, int x_count, size_t at,
                                     struct few_sums *sums) {
    for (int r = 0; r < x_count; r++) {
        const int16_t *sum = x[r].sum + at / 16;
        for (int i = 0; i < 2; i++) {
            const int16x8_t a = vld1q_s16(g + 8 * i), b = vld1q_s16(sum + 8 * i);
            sums->k[r][i] = vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)),
                                       vmull_s16(vget_high_s16(a), vget_high_s16(b)));
        }
    }
}

/* (bytes >> shift) & mask */
ALWAYS_INLINE uint8x16_t bits_at(uint8x16_t bytes, int shift, int mask) {
    return vandq_u8(vshlq_u8(bytes, vdupq_n_s8((int8_t)-shift)), vdupq_n_u8((uint8_t)mask));
}

ALWAYS_INLINE int8x16_t codes_at(const uint8_t *p, int shift, int mask) {
    return vreinterpretq_s8_u8(bits_at(vld1q_u8(p), shift, mask));
}

/* ---- the formats ---- */

ALWAYS_INLINE void step_q8_0(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, struct few_sums *sums,
                             float32x4_t *d, float32x4_t *m) {
    float factor[8];
    (void)m;
    for (int b = 0; b < 8; b++) {
        const int8_t *code = (const int8_t *)w + 34 * b + 2;
        factor[b] = load_f16(w + 34 * b);
        multiply_block(vld1q_s8(code), vld1q_s8(code + 16), 1, b, x, x_count, at, sums);
    }
    d[0] = vld1q_f32(factor);
    d[1] = vld1q_f32(factor + 4);
}

ALWAYS_INLINE void step_q2_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, struct few_sums *sums,
                             float32x4_t *d, float32x4_t *m) {
    int16_t g[16];
    for (int b = 0; b < 8; b++) {
        const uint8_t *codes = w + 16 + 32 * (b / 4);
        const int shift = 2 * (b % 4);
        g[2 * b] = w[2 * b] >> 4;
        g[2 * b + 1] = w[2 * b + 1] >> 4;
        multiply_halves(codes_at(codes, shift, 3), codes_at(codes + 16, shift, 3), w[2 * b] & 15, w[2 * b + 1] & 15, b,
                        x, x_count, at, sums);
    }
    multiply_minimums(g, x, x_count, at, sums);
    everywhere(w + 80, d);
    everywhere(w + 82, m);
}

ALWAYS_INLINE void step_q4_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, struct few_sums *sums,
                             float32x4_t *d, float32x4_t *m) {
    int8_t f[8], g8[8];
    int16_t g[16];
    put_factors_q4_k(w + 4, f, g8);
    for (int b = 0; b < 8; b++) {
        const uint8_t *codes = w + 16 + 32 * (b / 2);
        const int shift = 4 * (b % 2);
        g[2 * b] = g[2 * b + 1] = g8[b];
        multiply_block(codes_at(codes, shift, 15), codes_at(codes + 16, shift, 15), f[b], b, x, x_count, at, sums);
    }
    multiply_minimums(g, x, x_count, at, sums);
    everywhere(w, d);
    everywhere(w + 2, m);
}

/* 16 codes: 4 low bits at low_shift of low, 2 upper ones at high_shift of high, less 32. */
ALWAYS_INLINE int8x16_t codes_q6_k_16(const uint8_t *low, int low_shift, const uint8_t *high, int high_shift) {
    const uint8x16_t upper = vshlq_n_u8(bits_at(vld1q_u8(high), high_shift, 3), 4);
    return vsubq_s8(vreinterpretq_s8_u8(vorrq_u8(bits_at(vld1q_u8(low), low_shift, 15), upper)), vdupq_n_s8(32));
}

ALWAYS_INLINE void step_q6_k(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at, struct few_sums *sums,
                             float32x4_t *d, float32x4_t *m) {
    (void)m;
    for (int b = 0; b < 8; b++) {
        const uint8_t *low = w + 64 * (b / 4) + 32 * (b % 2), *high = w + 128 + 32 * (b / 4);
        const int low_shift = 4 * (b % 4 / 2), high_shift = 2 * (b % 4);
        multiply_halves(codes_q6_k_16(low, low_shift, high, high_shift),
                        codes_q6_k_16(low + 16, low_shift, high + 16, high_shift), (int8_t)w[192 + 2 * b],
                        (int8_t)w[193 + 2 * b], b, x, x_count, at, sums);
    }
    everywhere(w + 208, d);
}

#endif
