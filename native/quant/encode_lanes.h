/* encode_lanes.h - sixteen sub-blocks side by side: lane l of vector i is value i of sub-block l.
 *
 * A search for scales then runs in every lane at once and never adds across lanes, so its sums are in order of the
 * values, whatever the vector unit. Sub-blocks are whole blocks of 32, or the 16 or 8 parts of super-blocks.
 *
 * Values are multiplied by a power of two first, so that the largest of a block is between 1 and 2: squares neither
 * overflow nor vanish. Scales are rounded to float16 in the block's own units. */
#ifndef GLM52_ENCODE_LANES_H
#define GLM52_ENCODE_LANES_H

#include "blocks.h"
#include "encode.h"

#define LANE_COUNT 16
#define HALF_MAX 65504.0f
#define IMPORTANCE_FLOOR 0x1p-20f

/* The loops of a search, which get their counts at run time: inlined with constant ones they would be unrolled, sixty
 * times the code. */
#if defined(__clang__)
#define OUT_OF_LINE static __attribute__((noinline, unused))
#else
#define OUT_OF_LINE static __attribute__((noinline, noclone, unused))
#endif

typedef float lanes __attribute__((vector_size(64)));
typedef int32_t lane_bits __attribute__((vector_size(64)));

struct lane_group {
    lanes x[32], w[32];
    lanes unit;                     /* what x was multiplied by: a power of two */
};

#define GLM52_DEFINE_ENCODER(name, type, magnitude_max, encode) \
    const struct glm52_encoder GLM52_IN_SET(glm52_encoder_##name) = {type, magnitude_max, encode}

ALWAYS_INLINE lanes all_lanes(float value) {
    const lanes zero = {0};
    return zero + value;
}

/* a where mask is -1, b where it is 0 */
ALWAYS_INLINE lanes choose(lane_bits mask, lanes a, lanes b) {
    return (lanes)((mask & (lane_bits)a) | (~mask & (lane_bits)b));
}

ALWAYS_INLINE lanes magnitude_of(lanes x) {
    return (lanes)((lane_bits)x & 0x7FFFFFFF);
}

ALWAYS_INLINE lanes smaller(lanes a, lanes b) {
    return choose(a < b, a, b);
}

ALWAYS_INLINE lanes greater(lanes a, lanes b) {
    return choose(a > b, a, b);
}

/* To the nearest integer, ties to even, of magnitudes below 2^22. */
ALWAYS_INLINE lanes round_lanes(lanes x) {
    return (x + 0x1.8p23f) - 0x1.8p23f;
}

ALWAYS_INLINE lanes clamp(lanes x, float low, float high) {
    return greater(smaller(x, all_lanes(high)), all_lanes(low));
}

/* 1 / x, 0 for 0. */
ALWAYS_INLINE lanes inverse(lanes x) {
    const lane_bits is_zero = x == all_lanes(0);
    return choose(is_zero, all_lanes(0), 1.0f / choose(is_zero, all_lanes(1), x));
}

/* a / b, 0 where b is not positive. */
ALWAYS_INLINE lanes ratio(lanes a, lanes b) {
    const lane_bits is_positive = b > all_lanes(0);
    return choose(is_positive, a / choose(is_positive, b, all_lanes(1)), all_lanes(0));
}

/* The power of two that brings the largest of count values to 1 .. 2 (2 .. 4 at the end of the floats); 1 if all are
 * 0 or subnormal: those are below every scale. */
static inline float unit_of(const float *x, int count) {
    uint32_t top = 0;
    for (int i = 0; i < count; i++) {
        const uint32_t bits = bits_of_float(x[i]) & 0x7FFFFFFF;
        top = bits > top ? bits : top;
    }
    const uint32_t exponent = top >> 23;
    if (exponent == 0) return 1;
    return float_of_bits((exponent < 253 ? 254 - exponent : 1) << 23);
}

/* w [count] of importance [count], NULL: all 1. */
static inline void weigh(const float *importance, int count, float *w) {
    float top = 0;
    for (int i = 0; importance && i < count; i++) top = importance[i] > top ? importance[i] : top;
    const bool is_even = !(top > 0);
    for (int i = 0; i < count; i++) w[i] = is_even ? 1 : importance[i] / top + IMPORTANCE_FLOOR;
}

/* What scales of decoded values y are multiplied with. The y that is nearest to x for given codes is shorter than x by
 * the square of its relative error, in every block alike, and that adds up over a model where other errors cancel:
 * three quarters of it are given back (docs/QUANTIZATION.md has what that brings). xx = sum(w x x), xy = sum(w x y). */
#define GIVEN_BACK 0.75f
#define GAIN_MAX 1.25f
static inline float gain_of(float xx, float xy) {
    const float gain = xy > 0 ? 1 + GIVEN_BACK * (xx / xy - 1) : 1;
    return gain > GAIN_MAX ? GAIN_MAX : gain < 1 / GAIN_MAX ? 1 / GAIN_MAX : gain;
}

/* One block's values and weights of a row, brought to unit. */
struct scaled_block {
    float x[SUPER], w[SUPER];
    float unit;
};

static inline void scale_block(const float *x, const float *importance, int count, struct scaled_block *out) {
    out->unit = unit_of(x, count);
    for (int i = 0; i < count; i++) out->x[i] = x[i] * out->unit;
    weigh(importance, count, out->w);
}

/* Blocks first .. of rows of row_size as a group of lanes: parts sub-blocks of n values each. Lanes behind the last
 * block are empty. */
OUT_OF_LINE void load_lanes(const float *x, const float *importance, size_t row_size, size_t first, size_t blocks,
                              int parts, int n, struct lane_group *out) {
    const size_t block_size = (size_t)parts * (size_t)n;
    for (int i = 0; i < n; i++) out->x[i] = out->w[i] = all_lanes(0);
    out->unit = all_lanes(1);
    for (size_t b = 0; b < LANE_COUNT / (size_t)parts && first + b < blocks; b++) {
        const size_t at = (first + b) * block_size;
        struct scaled_block block;
        scale_block(x + at, importance ? importance + at % row_size : NULL, (int)block_size, &block);
        for (int p = 0; p < parts; p++) {
            const int lane = (int)b * parts + p;
            out->unit[lane] = block.unit;
            for (int i = 0; i < n; i++) {
                out->x[i][lane] = block.x[p * n + i];
                out->w[i][lane] = block.w[p * n + i];
            }
        }
    }
}

/* A scale in units as the float16 that will be stored: at most the largest finite one. */
static inline uint16_t half_of(float scale, float unit) {
    const float value = scale / unit;
    return glm52_f32_to_f16(value > HALF_MAX ? HALF_MAX : value < -HALF_MAX ? -HALF_MAX : value);
}

/* Each lane's scale as its float16 gives it. half_out may be NULL. */
OUT_OF_LINE lanes round_scales(lanes scale, lanes unit, uint16_t *half_out) {
    lanes rounded = scale;
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const uint16_t half = half_of(scale[lane], unit[lane]);
        if (half_out) half_out[lane] = half;
        rounded[lane] = f16_to_f32(half) * unit[lane];
    }
    return rounded;
}

/* Each super-block's float16, in its units, in all its lanes. */
OUT_OF_LINE lanes spread_halves(const uint16_t *half, lanes unit, int parts) {
    lanes d = all_lanes(0);
    for (int lane = 0; lane < LANE_COUNT; lane++) d[lane] = f16_to_f32(half[lane / parts]) * unit[lane];
    return d;
}

static inline void store_u16(uint8_t *p, uint16_t value) {
    memcpy(p, &value, sizeof(value));
}

static inline void store_u32(uint8_t *p, uint32_t value) {
    memcpy(p, &value, sizeof(value));
}

/* codes [LANE_COUNT][n] = integers of vectors [n], plus offset */
OUT_OF_LINE void store_codes_of_lanes(const lanes *q, int n, int offset, uint8_t *codes) {
    for (int i = 0; i < n; i++) {
        int32_t code[LANE_COUNT];
        for (int lane = 0; lane < LANE_COUNT; lane++) code[lane] = (int32_t)q[i][lane];
        for (int lane = 0; lane < LANE_COUNT; lane++) codes[lane * n + i] = (uint8_t)(code[lane] + offset);
    }
}

#endif
