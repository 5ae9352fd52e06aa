/* four_bit_values.h - codes of 4 bits that stand for values of a table: IQ4_NL, IQ4_XS and MXFP4. A byte is looked
 * up whole, both its values at once. */
#ifndef GLM52_FOUR_BIT_VALUES_H
#define GLM52_FOUR_BIT_VALUES_H

#include "blocks.h"
#include "quant_tables.h"

/* code [32 * blocks]: the low nibbles' values of 16 bytes, then the high ones'. Blocks lie stride bytes apart. */
ALWAYS_INLINE void look_up(const int8_t (*pairs)[2], const uint8_t *in, size_t stride, int blocks, int16_t *code) {
    uint16_t pair[SUPER / 2];
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < 16; i++) memcpy(&pair[16 * b + i], pairs[in[(size_t)b * stride + i]], 2);
    }
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < 16; i++) {
            code[32 * b + i] = (int8_t)pair[16 * b + i];
            code[32 * b + 16 + i] = (int8_t)(pair[16 * b + i] >> 8);
        }
    }
}

/* ---- blocks of 32: a factor of header bytes, then 16 bytes of codes. 8 blocks at a time while there are ---- */

typedef float load_factor(const uint8_t *block);

ALWAYS_INLINE void decode_values(const int8_t (*pairs)[2], load_factor *factor, size_t header, const uint8_t *block,
                                 float *out, size_t count) {
    for (; count; count -= 32, block += header + 16, out += 32) {
        const float d = factor(block);
        int16_t code[32];
        look_up(pairs, block + header, 0, 1, code);
        for (int i = 0; i < 32; i++) out[i] = d * (float)code[i];
    }
}

ALWAYS_INLINE float dot_values(const int8_t (*pairs)[2], load_factor *factor, size_t header, const uint8_t *block,
                               const struct glm52_q8 *row, size_t count) {
    const size_t bytes = header + 16, blocks = count / 32;
    float lane[LANES] = {0};
    size_t b = 0;
    for (; b + 8 <= blocks; b += 8, block += 8 * bytes) {
        int16_t code[SUPER];
        int32_t n[8];
        look_up(pairs, block + header, bytes, 8, code);
        dot_super(code, row->q + 32 * b, n);
        for (int j = 0; j < 8; j++) {
            lane[j] += (factor(block + (size_t)j * bytes) * row->scale[b + (size_t)j]) * (float)n[j];
        }
    }
    for (; b < blocks; b++, block += bytes) {
        int16_t code[32];
        look_up(pairs, block + header, bytes, 1, code);
        lane[b % LANES] += (factor(block) * row->scale[b]) * (float)dot_codes(code, row->q + 32 * b);
    }
    return sum_lanes(lane);
}

#endif
