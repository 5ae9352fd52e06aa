/* row.c - work on single rows: norms, rotation, silu, exp, and rows of the caches.
 *
 * Every function is plain arithmetic in a fixed order, exp included, so its bits are the same on every
 * machine with IEEE floats, whatever vectors the compiler makes of a loop. */
#include <math.h>
#include <string.h>

#include "cpu.h"
#include "float_bits.h"

#define TYPE_F16 1   /* ggml's number */

/* Partial sums of a row, so that additions do not wait for each other. */
#define LANES 8

static double add_lanes(double *lane) {
    for (size_t width = LANES / 2; width > 0; width /= 2) {
        for (size_t j = 0; j < width; j++) lane[j] += lane[j + width];
    }
    return lane[0];
}

static double sum(const float *x, size_t count) {
    double lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t j = 0; j < LANES; j++) lane[j] += (double)x[i + j];
    }
    for (size_t j = 0; i + j < count; j++) lane[j] += (double)x[i + j];
    return add_lanes(lane);
}

/* Sum of (x[i] - centre)^2. */
static double sum_squares(const float *x, size_t count, double centre) {
    double lane[LANES] = {0};
    size_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (size_t j = 0; j < LANES; j++) {
            const double d = (double)x[i + j] - centre;
            lane[j] += d * d;
        }
    }
    for (size_t j = 0; i + j < count; j++) {
        const double d = (double)x[i + j] - centre;
        lane[j] += d * d;
    }
    return add_lanes(lane);
}

void glm52_row_rms_norm(float *out, const float *x, const float *weight, size_t count, float epsilon) {
    const double mean = sum_squares(x, count, 0.0) / (double)count;
    const double factor = 1.0 / sqrt(mean + (double)epsilon);
    for (size_t i = 0; i < count; i++) out[i] = (float)((double)x[i] * factor * (double)weight[i]);
}

void glm52_row_layer_norm(float *out, const float *x, const float *weight, const float *bias, size_t count,
                          float epsilon) {
    const double mean = sum(x, count) / (double)count;
    const double variance = sum_squares(x, count, mean) / (double)count;
    const double factor = 1.0 / sqrt(variance + (double)epsilon);
    for (size_t i = 0; i < count; i++) {
        out[i] = (float)(((double)x[i] - mean) * factor * (double)weight[i] + (double)bias[i]);
    }
}

void glm52_row_rotate(float *out, const float *x, const float *table, size_t count) {
    for (size_t i = 0; i < count; i += 2) {
        const float a = x[i], b = x[i + 1], c = table[i], s = table[i + 1];
        out[i] = a * c - b * s;
        out[i + 1] = b * c + a * s;
    }
}

/* exp(-|x|) within 1.03 units in the last place, as trying every float32 shows: -|x| = n log 2 + r with |r|
 * at most log(2) / 2, the series of exp(r) to r^7 / 7! (what is left out is below 2^-27 of it), times 2^n
 * in two factors, so that results below the smallest normal number are right too. Choices are made by
 * masks, which is what vectors can do. */
static inline float exp_minus(float x) {
    const float log2_upper = 355.0f / 512.0f;       /* few digits, so that n * log2_upper is exact */
    const float log2_lower = (float)(0.69314718055994530942 - 355.0 / 512.0);
    const float to_integer = 0x1.8p23f;             /* adding it leaves an integer in the low bits */
    const uint32_t last = bits_of_float(104.0f);          /* exp(-104) is 0 */
    const uint32_t magnitude = bits_of_float(x) & 0x7fffffff;
    const uint32_t is_beyond = 0 - (uint32_t)(magnitude - last <= 0x7f800000 - last);   /* and no NaN */
    x = -float_of_bits((last & is_beyond) | (magnitude & ~is_beyond));
    const float shifted = x * 1.44269504088896340736f + to_integer;
    const float n = shifted - to_integer;
    const float r = (x - n * log2_upper) - n * log2_lower;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;                   /* small terms first: r itself carries no rounding */
    const uint32_t shifted_n = bits_of_float(shifted) - bits_of_float(to_integer) + 256;   /* n + 256, positive */
    const uint32_t half = shifted_n / 2;
    return p * float_of_bits((half - 1) << 23) * float_of_bits((shifted_n - half - 1) << 23);
}

/* 1 / (1 + exp(-x)), from an exponential that can't overflow. */
static inline float sigmoid(float x) {
    const float e = exp_minus(x);
    const uint32_t is_negative = 0 - (bits_of_float(x) >> 31);
    return float_of_bits((bits_of_float(e) & is_negative) | (bits_of_float(1.0f) & ~is_negative)) / (1.0f + e);
}

void glm52_row_swiglu(float *out, const float *gate, const float *up, size_t count) {
    /* By way of a block of its own, since out may be one of the others. */
    float block[64];
    const size_t block_max = sizeof(block) / sizeof(block[0]);
    for (size_t first = 0; first < count; first += block_max) {
        const size_t length = count - first < block_max ? count - first : block_max;
        const float *g = gate + first, *u = up + first;
        for (size_t i = 0; i < length; i++) block[i] = g[i] * sigmoid(g[i]) * u[i];
        memcpy(out + first, block, length * sizeof(block[0]));
    }
}

double glm52_row_exp(float *x, size_t count, float max) {
    for (size_t i = 0; i < count; i++) x[i] = exp_minus(x[i] - max);
    return sum(x, count);
}

void glm52_cache_store(void *cache, uint32_t kv_type, size_t row_size, size_t index, const float *values) {
    if (kv_type == GLM52_KV_F32) {
        memcpy((float *)cache + index * row_size, values, row_size * sizeof(float));
        return;
    }
    uint16_t *out = (uint16_t *)cache + index * row_size;
    for (size_t i = 0; i < row_size; i++) out[i] = glm52_f32_to_f16(values[i]);
}

const float *glm52_cache_row(const void *cache, uint32_t kv_type, size_t row_size, size_t index,
                             float *space) {
    if (kv_type == GLM52_KV_F32) return (const float *)cache + index * row_size;
    /* The format F16 of weights has the loop for it. */
    glm52_quant_find(TYPE_F16)->decode((const uint16_t *)cache + index * row_size, space, row_size);
    return space;
}
