/* grids.h - what the IQ1, IQ2 and IQ3 formats share: a code stands for 8 or 4 values of a code book, signs come apart.
 *
 * Values and signs are first gathered for the whole super-block, then put together: reading bytes back as one
 * vector waits for their stores, and this way there is other work meanwhile. */
#ifndef GLM52_GRIDS_H
#define GLM52_GRIDS_H

#include "panel.h"
#include "quant_tables.h"

/* Masks of 8 signs, 0 or -1 each: from 7 bits, where the eighth makes their number even, and from 8. */
static inline void masks_of_7(uint32_t signs, int8_t *mask) {
    memcpy(mask, glm52_signs_7[signs & 127], 8);
}

static inline void masks_of_8(uint8_t signs, int8_t *mask) {
    memcpy(mask, glm52_signs_8[signs], 8);
}

/* code [256] = magnitude, negated where mask is -1 */
static inline void apply_signs(const int8_t *magnitude, const int8_t *mask, int16_t *code) {
    for (int i = 0; i < SUPER; i++) code[i] = (int8_t)((magnitude[i] ^ mask[i]) - mask[i]);
}

/* factor [16] = 2 nibble + 1, the low nibble of a byte first */
static inline void odd_factors_16(const uint8_t *in, int8_t *factor) {
    for (int i = 0; i < 8; i++) {
        factor[2 * i] = (int8_t)(2 * (in[i] & 15) + 1);
        factor[2 * i + 1] = (int8_t)(2 * (in[i] >> 4) + 1);
    }
}

#endif
