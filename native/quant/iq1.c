/* iq1.c - IQ1_S and IQ1_M: super-blocks of 256 values with a float16 factor d; 8 values are one code of 11 bits of a
 * code book of -1, 0 and 1, all moved up or down by an eighth. A factor is f = 2 s + 1 with s of 3 bits.
 *
 *     IQ1_S  d 2, codes 32, then per 32 values 16 bits: upper 3 bits of 4 codes, s, 1 bit: down
 *     IQ1_M  codes 32, per code a nibble 16: upper 3 bits, 1 bit: down; 4 times 16 bits: s of 4 times 16 values, and
 *            a quarter of the bits of d
 *
 * A code is taken as 8 times the value, -9 to 9: value (d / 8) f code, an exact product of 11, 4 and 4 bits.
 * Integers of dot_q8: |n| <= 15 * 9 * 127 * 32 = 548,640. */
#include "grids.h"

/* code [256] = 8 value + shift */
static inline void shift_values(const int8_t *value, const int8_t *shift, int16_t *code) {
    for (int i = 0; i < SUPER; i++) code[i] = (int16_t)(8 * value[i] + shift[i]);
}

static inline float unpack_iq1_s(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t value[SUPER], shift[SUPER];
    for (int b = 0; b < 8; b++) {
        const unsigned bits = load_u16(block + 34 + 2 * b);
        for (int g = 0; g < 4; g++) {
            memcpy(value + 32 * b + 8 * g, glm52_grid_iq1[block[2 + 4 * b + g] | (bits >> 3 * g & 7) << 8], 8);
        }
        memset(shift + 32 * b, bits >> 15 ? -1 : 1, 32);
        factor[b] = (int8_t)(2 * (bits >> 12 & 7) + 1);
    }
    shift_values(value, shift, code);
    return load_f16(block) * 0.125f;
}

static inline float unpack_iq1_m(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t value[SUPER], shift[SUPER];
    for (int g = 0; g < 32; g++) {
        const int bits = block[32 + g / 2] >> 4 * (g % 2);
        memcpy(value + 8 * g, glm52_grid_iq1[block[g] | (bits & 7) << 8], 8);
        const uint64_t shifts = -(uint64_t)(bits >> 3 & 1) | 0x0101010101010101;
        memcpy(shift + 8 * g, &shifts, 8);
    }
    unsigned half = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned bits = load_u16(block + 48 + 2 * i);
        for (int j = 0; j < 4; j++) factor[4 * i + j] = (int8_t)(2 * (bits >> 3 * j & 7) + 1);
        half |= bits >> 12 << 4 * i;
    }
    shift_values(value, shift, code);
    return f16_to_f32((uint16_t)half) * 0.125f;
}

GLM52_DEFINE_SUPER(IQ1_S, 19, 50, 8, 9, unpack_iq1_s);
GLM52_DEFINE_SUPER(IQ1_M, 29, 56, 16, 9, unpack_iq1_m);
