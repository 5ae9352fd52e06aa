/* iq3.c - IQ3_XXS and IQ3_S: super-blocks of 256 values with a float16 factor d; 4 values are one code of a code
 * book of magnitudes, and signs. The factor of 32 values is f = 2 s + 1 with s of 4 bits.
 *
 *     IQ3_XXS  d 2, codes 64, then per 32 values: 32 bits = signs 4 of 7 bits and s    (d / 4) f (+-magnitude)
 *     IQ3_S    d 2, codes 64, ninth bits of codes 8, signs 32, s 4                     d f (+-magnitude)
 *
 * with magnitudes to 62 and to 15: products of 11, 5 and 6 bits, exact.
 * Integers of dot_q8: |n| <= 31 * 62 * 127 * 32 = 7,811,008. */
#include "grids.h"

static inline float unpack_iq3_xxs(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t magnitude[SUPER], mask[SUPER];
    for (int b = 0; b < 8; b++) {
        const uint32_t signs = load_u32(block + 66 + 4 * b);
        for (int g = 0; g < 4; g++) masks_of_7(signs >> 7 * g, mask + 32 * b + 8 * g);
        factor[b] = (int8_t)(2 * (signs >> 28) + 1);
    }
    for (int g = 0; g < 64; g++) memcpy(magnitude + 4 * g, glm52_grid_iq3_xxs[block[2 + g]], 4);
    apply_signs(magnitude, mask, code);
    return load_f16(block) * 0.25f;
}

static inline float unpack_iq3_s(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t magnitude[SUPER], mask[SUPER];
    for (int g = 0; g < 32; g++) masks_of_8(block[74 + g], mask + 8 * g);
    for (int b = 0; b < 8; b++) {
        const int high = block[66 + b] << 8;
        for (int g = 0; g < 8; g++) {
            memcpy(magnitude + 32 * b + 4 * g, glm52_grid_iq3_s[block[2 + 8 * b + g] | (high >> g & 0x100)], 4);
        }
    }
    for (int b = 0; b < 8; b++) factor[b] = (int8_t)(2 * (block[106 + b / 2] >> 4 * (b % 2) & 15) + 1);
    apply_signs(magnitude, mask, code);
    return load_f16(block);
}

GLM52_DEFINE_SUPER(IQ3_XXS, 18, 98, 8, 62, unpack_iq3_xxs);
GLM52_DEFINE_SUPER(IQ3_S, 21, 110, 8, 15, unpack_iq3_s);
