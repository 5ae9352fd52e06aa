/* legacy.c - Q8_0: blocks of 32 values with one float16 scale.
 *
 * Sums of dot_q8: |n| <= 32 * 128 * 127 = 520,192. */
#include "blocks.h"

static void decode_q8_0(const void *blocks, float *out, size_t count) {
    const uint8_t *block = blocks;
    for (size_t i = 0; i < count; i += 32, block += 34) {
        const float d = load_f16(block);
        const int8_t *codes = (const int8_t *)block + 2;
        for (int j = 0; j < 32; j++) out[i + j] = (float)codes[j] * d;
    }
}

static float dot_q8_0(const void *blocks, const struct glm52_q8 *row, size_t count) {
    const uint8_t *block = blocks;
    float lane[LANES] = {0};
    for (size_t b = 0; b < count / 32; b++, block += 34) {
        const int32_t n = dot_i8((const int8_t *)block + 2, row->q + 32 * b, 32);
        lane[b % LANES] += (load_f16(block) * row->scale[b]) * (float)n;
    }
    return sum_lanes(lane);
}

GLM52_DEFINE_FORMAT(Q8_0, 8, 32, 34, decode_q8_0, dot_q8_0);
