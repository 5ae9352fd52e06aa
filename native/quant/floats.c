/* floats.c - F32, F16 and BF16: one value per block. Multiplied as floats in both modes, so without dot_q8. */
#include "blocks.h"

static void decode_f32(const void *blocks, float *out, size_t count) {
    memcpy(out, blocks, count * sizeof(float));
}

static void decode_f16(const void *blocks, float *out, size_t count) {
    const uint8_t *in = blocks;
    for (size_t i = 0; i < count; i++) out[i] = load_f16(in + 2 * i);
}

static void decode_bf16(const void *blocks, float *out, size_t count) {
    const uint8_t *in = blocks;
    for (size_t i = 0; i < count; i++) out[i] = float_of_bits((uint32_t)load_u16(in + 2 * i) << 16);
}

GLM52_DEFINE_FORMAT(F32, 0, 1, 4, decode_f32, NULL, NULL, NULL);
GLM52_DEFINE_FORMAT(F16, 1, 1, 2, decode_f16, NULL, NULL, NULL);
GLM52_DEFINE_FORMAT(BF16, 30, 1, 2, decode_bf16, NULL, NULL, NULL);
