/* iq2.c - IQ2_XXS, IQ2_XS and IQ2_S: super-blocks of 256 values with a float16 factor d; 8 values are one code of a
 * code book of magnitudes 8, 25 and 43, and 8 signs. A sub-block's factor is f = 2 s + 1 with s of 4 bits.
 *
 *     IQ2_XXS  d 2, then per 32 values: codes 4 of 8 bits, 32 bits = signs 4 of 7 bits and s
 *     IQ2_XS   d 2, codes 64 = 32 of 9 bits with 7 bits of signs, s 8 (per 16 values)
 *     IQ2_S    d 2, codes 32, signs 32, upper 2 bits of codes 8, s 8 (per 16 values)
 *
 * A value is (d / 8) f (+-magnitude), an exact product: 11, 5 and 6 bits.
 * Integers of dot_q8: |n| <= 31 * 43 * 127 * 32 = 5,417,312, |f code| <= 1,333. */
#include "grids.h"
#ifdef __AVX512VBMI__
#include "iq2_avx512.h"
#elif defined(FEW_BY_AVX2)
#include "iq2_avx2.h"
#elif defined(FEW_BY_NEON)
#include "iq2_neon.h"
#endif

static inline float unpack_iq2_xxs(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t magnitude[SUPER], mask[SUPER];
    for (int b = 0; b < 8; b++) {
        const uint32_t signs = load_u32(block + 6 + 8 * b);
        for (int g = 0; g < 4; g++) masks_of_7(signs >> 7 * g, mask + 32 * b + 8 * g);
        factor[b] = (int8_t)(2 * (signs >> 28) + 1);
    }
    for (int b = 0; b < 8; b++) {
        const uint8_t *codes = block + 2 + 8 * b;
        for (int g = 0; g < 4; g++) memcpy(magnitude + 32 * b + 8 * g, glm52_grid_iq2_xxs[codes[g]], 8);
    }
    apply_signs(magnitude, mask, code);
    return load_f16(block) * 0.125f;
}

static inline float unpack_iq2_xs(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t magnitude[SUPER], mask[SUPER];
    for (int g = 0; g < 32; g++) masks_of_7(block[3 + 2 * g] >> 1, mask + 8 * g);
    for (int g = 0; g < 32; g++) {
        memcpy(magnitude + 8 * g, glm52_grid_iq2_xs[load_u16(block + 2 + 2 * g) & 511], 8);
    }
    odd_factors_16(block + 66, factor);
    apply_signs(magnitude, mask, code);
    return load_f16(block) * 0.125f;
}

static inline float unpack_iq2_s(const uint8_t *block, int16_t *code, int8_t *factor) {
    int8_t magnitude[SUPER], mask[SUPER];
    for (int g = 0; g < 32; g++) masks_of_8(block[34 + g], mask + 8 * g);
    for (int b = 0; b < 8; b++) {
        const int high = block[66 + b] << 8;
        for (int g = 0; g < 4; g++) {
            memcpy(magnitude + 32 * b + 8 * g, glm52_grid_iq2_s[block[2 + 4 * b + g] | (high >> 2 * g & 0x300)], 8);
        }
    }
    odd_factors_16(block + 74, factor);
    apply_signs(magnitude, mask, code);
    return load_f16(block) * 0.125f;
}

#ifdef __AVX512VBMI__
GLM52_SUPER_FUNCTIONS(iq2_xxs, 66, 8, unpack_iq2_xxs)
PAIR_FUNCTIONS(iq2_xxs, pair_iq2_xxs, 66, {8, false, 43, true})
FEW_FUNCTION(iq2_xxs, step_iq2_xxs, 66)
GLM52_DEFINE_FORMAT(IQ2_XXS, 16, SUPER, 66, decode_iq2_xxs, dot_iq2_xxs, PANEL_AND_FEW_OF(iq2_xxs, arrange_columns));
#elif defined(FEW_BY_AVX2)
GLM52_SUPER_FUNCTIONS(iq2_xxs, 66, 8, unpack_iq2_xxs)
PANEL_OF_SUPER(iq2_xxs, unpack_iq2_xxs)
PANEL_FUNCTIONS(iq2_xxs, group_iq2_xxs, 66, {8, false, 43, false})
FEW_FUNCTION(iq2_xxs, step_iq2_xxs, 66)
GLM52_DEFINE_FORMAT(IQ2_XXS, 16, SUPER, 66, decode_iq2_xxs, dot_iq2_xxs, PANEL_AND_FEW_OF(iq2_xxs, arrange_words));
#elif defined(FEW_BY_NEON)
GLM52_SUPER_FUNCTIONS(iq2_xxs, 66, 8, unpack_iq2_xxs)
FEW_FUNCTION(iq2_xxs, step_iq2_xxs, 66, false)
GLM52_DEFINE_FORMAT(IQ2_XXS, 16, SUPER, 66, decode_iq2_xxs, dot_iq2_xxs, FEW_OF(iq2_xxs));
#else
GLM52_DEFINE_SUPER(IQ2_XXS, 16, 66, 8, 43, unpack_iq2_xxs);
#endif
GLM52_DEFINE_SUPER(IQ2_XS, 17, 74, 16, 43, unpack_iq2_xs);
GLM52_DEFINE_SUPER(IQ2_S, 22, 82, 16, 43, unpack_iq2_s);
