/* iq2_neon.h - IQ2_XXS by hand for NEON (few_neon.h): magnitudes and signs are read from their tables, 8 at a time. */
#ifndef GLM52_IQ2_NEON_H
#define GLM52_IQ2_NEON_H

#include "few_neon.h"
#include "grids.h"

ALWAYS_INLINE int8x16_t codes_iq2_xxs_16(const uint8_t *codes, uint32_t signs) {
    const int8_t *first = glm52_grid_iq2_xxs[codes[0]], *second = glm52_grid_iq2_xxs[codes[1]];
    const int8x16_t magnitude = vcombine_s8(vld1_s8(first), vld1_s8(second));
    const int8x16_t mask = vcombine_s8(vld1_s8(glm52_signs_7[signs & 127]), vld1_s8(glm52_signs_7[signs >> 7 & 127]));
    return vsubq_s8(veorq_s8(magnitude, mask), mask);
}

ALWAYS_INLINE void step_iq2_xxs(const uint8_t *w, const struct glm52_q8 *x, int x_count, size_t at,
                                struct few_sums *sums, float32x4_t *d, float32x4_t *m) {
    (void)m;
    for (int b = 0; b < 8; b++) {
        const uint8_t *codes = w + 2 + 8 * b;
        const uint32_t signs = load_u32(codes + 4);
        multiply_block(codes_iq2_xxs_16(codes, signs), codes_iq2_xxs_16(codes + 2, signs >> 14),
                       (int)(2 * (signs >> 28) + 1), b, x, x_count, at, sums);
    }
    d[0] = d[1] = vdupq_n_f32(load_f16(w) * 0.125f);
}

#endif
