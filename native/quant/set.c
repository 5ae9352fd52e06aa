/* set.c - one instruction set's table of formats, its float dot product and its encoding of activations. */
#include "blocks.h"

static float dot_f32(const float *a, const float *b, size_t count) {
    float s[16] = {0};
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        for (int j = 0; j < 16; j++) s[j] += a[i + j] * b[i + j];
    }
    for (int j = 0; i < count; i++, j++) s[j] += a[i] * b[i];
    for (int j = 0; j < 8; j++) s[j] += s[j + 8];
    for (int j = 0; j < 4; j++) s[j] += s[j + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* ---- many products: a tile of them at a time, each with 16 partial sums, so that a load serves several ---- */

typedef float sums16 __attribute__((vector_size(64)));

#if defined(__AVX512F__)
#define TILE_A 4
#define TILE_B 4
#elif defined(__AVX2__) || defined(__aarch64__)
#define TILE_A 2
#define TILE_B 2
#else
#define TILE_A 1
#define TILE_B 2
#endif

static inline float sum_of(const sums16 *sums) {
    float s[16];
    memcpy(s, sums, sizeof(s));
    for (int j = 0; j < 8; j++) s[j] += s[j + 8];
    for (int j = 0; j < 4; j++) s[j] += s[j + 4];
    return (s[0] + s[2]) + (s[1] + s[3]);
}

/* Adds products of up to 16 columns. Behind a row's end are zeros, which add +0 or -0 to a sum: sums start as +0, so
 * no bit changes. */
ALWAYS_INLINE void add_columns(const float *const *a, int a_count, const float *const *b, int b_count, size_t at,
                               size_t columns, sums16 (*s)[TILE_B]) {
    sums16 x[TILE_A], w = {0};
    for (int i = 0; i < a_count; i++) {
        x[i] = (sums16){0};
        memcpy(&x[i], a[i] + at, columns * sizeof(float));
    }
    for (int j = 0; j < b_count; j++) {
        memcpy(&w, b[j] + at, columns * sizeof(float));
        for (int i = 0; i < a_count; i++) s[i][j] += x[i] * w;
    }
}

ALWAYS_INLINE void dot_tile(const float *const *a, int a_count, const float *const *b, int b_count, size_t count,
                            float *y, size_t y_stride) {
    sums16 s[TILE_A][TILE_B] = {0};
    size_t at = 0;
    for (; at + 16 <= count; at += 16) add_columns(a, a_count, b, b_count, at, 16, s);
    if (at < count) add_columns(a, a_count, b, b_count, at, count - at, s);
    for (int i = 0; i < a_count; i++) {
        for (int j = 0; j < b_count; j++) y[(size_t)i * y_stride + (size_t)j] = sum_of(&s[i][j]);
    }
}

static void dot_f32_tile(const float *const *a, size_t a_count, const float *const *b, size_t b_count, size_t count,
                         float *y, size_t y_stride) {
    for (size_t i = 0; i < a_count; i += TILE_A) {
        for (size_t j = 0; j < b_count; j += TILE_B) {
            float *out = y + i * y_stride + j;
            const bool is_whole = a_count - i >= TILE_A && b_count - j >= TILE_B;
            if (is_whole) {
                dot_tile(a + i, TILE_A, b + j, TILE_B, count, out, y_stride);
                continue;
            }
            for (size_t k = i; k < a_count && k < i + TILE_A; k++, out += y_stride) {
                const size_t left = b_count - j;
                if (left >= TILE_B) dot_tile(a + k, 1, b + j, TILE_B, count, out, y_stride);
                else for (size_t l = 0; l < left; l++) out[l] = dot_f32(a[k], b[j + l], count);
            }
        }
    }
}

/* Some columns of some outs, all rows: a load of a row serves every out. */
ALWAYS_INLINE void add_columns_of_rows(float *out, size_t out_stride, const float *p, size_t p_stride, int out_count,
                                       const float *const *rows, size_t count, size_t at, size_t columns) {
    sums16 sum[TILE_A], x = {0};
    for (int o = 0; o < out_count; o++) {
        sum[o] = (sums16){0};
        memcpy(&sum[o], out + (size_t)o * out_stride + at, columns * sizeof(float));
    }
    for (size_t r = 0; r < count; r++) {
        memcpy(&x, rows[r] + at, columns * sizeof(float));
        for (int o = 0; o < out_count; o++) sum[o] += p[(size_t)o * p_stride + r] * x;
    }
    for (int o = 0; o < out_count; o++) memcpy(out + (size_t)o * out_stride + at, &sum[o], columns * sizeof(float));
}

ALWAYS_INLINE void add_rows_to(float *out, size_t out_stride, const float *p, size_t p_stride, int out_count,
                               const float *const *rows, size_t count, size_t size) {
    size_t at = 0;
    for (; at + 16 <= size; at += 16) {
        add_columns_of_rows(out, out_stride, p, p_stride, out_count, rows, count, at, 16);
    }
    if (at < size) add_columns_of_rows(out, out_stride, p, p_stride, out_count, rows, count, at, size - at);
}

static void add_rows(float *out, size_t out_stride, const float *p, size_t p_stride, size_t out_count,
                     const float *const *rows, size_t count, size_t size) {
    size_t o = 0;
    for (; o + TILE_A <= out_count; o += TILE_A) {
        add_rows_to(out + o * out_stride, out_stride, p + o * p_stride, p_stride, TILE_A, rows, count, size);
    }
    for (; o < out_count; o++) add_rows_to(out + o * out_stride, 0, p + o * p_stride, 0, 1, rows, count, size);
}

/* One block of 32. A magnitude's bits order as the magnitudes do, with infinity and NaN on top. */
static void encode_block(const float *x, int8_t *q, float *scale_out, int16_t *sum) {
    int32_t top = 0;
    for (int i = 0; i < 32; i++) {
        const int32_t bits = (int32_t)(bits_of_float(x[i]) & 0x7FFFFFFF);
        top = bits > top ? bits : top;
    }
    float scale = float_of_bits((uint32_t)top) / 127.0f;
    const bool finite = top < 0x7F800000;
    if (!finite || scale < 0x1p-126f) {
        memset(q, 0, 32);
        memset(sum, 0, 2 * sizeof(*sum));
        *scale_out = finite ? 0.0f : float_of_bits(0x7FC00000);
        return;
    }
    *scale_out = scale;
    int32_t code[32];
    /* Adding 1.5 * 2^23 leaves no bit behind the point: the sum is rounded to the nearest integer, ties to even. */
    for (int i = 0; i < 32; i++) code[i] = (int32_t)((x[i] / scale + 0x1.8p23f) - 0x1.8p23f);
    for (int i = 0; i < 32; i++) q[i] = (int8_t)code[i];
    for (int half = 0; half < 2; half++) {
        int32_t total = 0;
        for (int i = 0; i < 16; i++) total += code[16 * half + i];
        sum[half] = (int16_t)total;
    }
}

static void q8_encode(const float *x, size_t count, struct glm52_q8 row) {
    for (size_t b = 0; b < count / 32; b++) {
        encode_block(x + 32 * b, row.q + 32 * b, row.scale + b, row.sum + 2 * b);
    }
    for (size_t b = count / 32; b % (SUPER / 32) != 0; b++) row.scale[b] = 0, row.sum[2 * b] = row.sum[2 * b + 1] = 0;
}

#define GLM52_FORMAT(name) extern const struct glm52_quant GLM52_IN_SET(glm52_quant_##name);
#include "formats.def"
#undef GLM52_FORMAT

static const struct glm52_quant *const formats[] = {
#define GLM52_FORMAT(name) &GLM52_IN_SET(glm52_quant_##name),
#include "formats.def"
#undef GLM52_FORMAT
    NULL
};

extern const struct glm52_encoder *const GLM52_IN_SET(glm52_encoders)[];

#define QUOTE_(text) #text
#define QUOTE(text) QUOTE_(text)
const struct glm52_quant_set GLM52_IN_SET(glm52_quant_set) = {
    QUOTE(GLM52_SET), formats, dot_f32, dot_f32_tile, add_rows, q8_encode, GLM52_IN_SET(glm52_encoders)
};
