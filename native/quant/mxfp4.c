/* mxfp4.c - MXFP4: 32 values with a common power of two, 1 byte, then nibbles 16: floats of 4 bits.
 *
 * The power is 2^(e - 127). The table holds twice the values, 0 to 12, so that they are integers; the factor is half
 * the power, subnormal for e of 0 and 1.
 * Integers of dot_q8: |n| <= 12 * 127 * 32 = 48,768. */
#include "four_bit_values.h"

static inline float half_power(const uint8_t *block) {
    const uint32_t e = block[0];
    return float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

static void decode_mxfp4(const void *blocks, float *out, size_t count) {
    decode_values(glm52_pairs_mxfp4, half_power, 1, blocks, out, count);
}

static float dot_mxfp4(const void *blocks, const struct glm52_q8 *row, size_t count) {
    return dot_values(glm52_pairs_mxfp4, half_power, 1, blocks, row, count);
}

static inline void group_mxfp4(const uint8_t *block, int blocks, struct unpacked *out) {
    unpack_values(glm52_pairs_mxfp4, half_power, 1, block, blocks, out);
}

PANEL_FUNCTIONS(mxfp4, group_mxfp4, 8 * 17, {0, false, 12, false})
GLM52_DEFINE_FORMAT(MXFP4, 39, 32, 17, decode_mxfp4, dot_mxfp4, PANEL_OF(mxfp4));
