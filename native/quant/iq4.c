/* iq4.c - IQ4_NL and IQ4_XS: codes of 4 bits for values of a table, -127 to 113.
 *
 *     IQ4_NL  32 values: d 2, nibbles 16                                    d value
 *     IQ4_XS  256 values: d 2, upper 2 bits of factors 2, lower 4 bits of factors 4, nibbles 128
 *             f of 32 values is -32 to 31                                   (d f) value
 *
 * Integers of dot_q8: |n| <= 32 * 127 * 127 * 32 = 16,516,096, below 2^24. */
#include "four_bit_values.h"

static void decode_iq4_nl(const void *blocks, float *out, size_t count) {
    decode_values(glm52_pairs_iq4, load_f16, 2, blocks, out, count);
}

static float dot_iq4_nl(const void *blocks, const struct glm52_q8 *row, size_t count) {
    return dot_values(glm52_pairs_iq4, load_f16, 2, blocks, row, count);
}

static inline float unpack_iq4_xs(const uint8_t *block, int16_t *code, int8_t *factor) {
    const int high = load_u16(block + 2);
    for (int b = 0; b < 8; b++) {
        const int low = block[4 + b / 2] >> 4 * (b % 2) & 15;
        factor[b] = (int8_t)((low | (high >> 2 * b & 3) << 4) - 32);
    }
    look_up(glm52_pairs_iq4, block + 8, 16, 8, code);
    return load_f16(block);
}

static inline void group_iq4_nl(const uint8_t *block, int blocks, struct unpacked *out) {
    unpack_values(glm52_pairs_iq4, load_f16, 2, block, blocks, out);
}

PANEL_FUNCTIONS(iq4_nl, group_iq4_nl, 8 * 18, {0, false, 127, false})
GLM52_DEFINE_FORMAT(IQ4_NL, 20, 32, 18, decode_iq4_nl, dot_iq4_nl, PANEL_OF(iq4_nl));
GLM52_DEFINE_SUPER(IQ4_XS, 23, 136, 8, 127, unpack_iq4_xs);
