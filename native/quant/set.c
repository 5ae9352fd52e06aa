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

#define QUOTE_(text) #text
#define QUOTE(text) QUOTE_(text)
const struct glm52_quant_set GLM52_IN_SET(glm52_quant_set) = {
    QUOTE(GLM52_SET), formats, dot_f32, q8_encode
};
