/* four_bit_values.h - codes of 4 bits that stand for values of a table: IQ4_NL, IQ4_XS and MXFP4. A byte is looked
 * up whole, both its values at once. */
#ifndef GLM52_FOUR_BIT_VALUES_H
#define GLM52_FOUR_BIT_VALUES_H

#include "panel.h"
#include "quant_tables.h"

/* code [32 * blocks]: the low nibbles' values of 16 bytes, then the high ones'. Blocks lie stride bytes apart. */
ALWAYS_INLINE void look_up(const int8_t (*pairs)[2], const uint8_t *in, size_t stride, int blocks, int16_t *code) {
    uint16_t pair[SUPER / 2];
    for (int b = 0; b < blocks; b++) {
        for (int half = 0; half < 2; half++) {
            const uint64_t bytes = load_u64(in + (size_t)b * stride + 8 * half);
            for (int i = 0; i < 8; i++) memcpy(&pair[16 * b + 8 * half + i], pairs[bytes >> 8 * i & 255], 2);
        }
    }
    for (int b = 0; b < blocks; b++) {
        for (int i = 0; i < 16; i++) {
            code[32 * b + i] = (int8_t)pair[16 * b + i];
            code[32 * b + 16 + i] = (int8_t)(pair[16 * b + i] >> 8);
        }
    }
}

/* ---- blocks of 32: a factor of header bytes, then 16 bytes of codes; taken 8 at a time ---- */

typedef float load_factor(const uint8_t *block);

ALWAYS_INLINE void decode_values(const int8_t (*pairs)[2], load_factor *factor, size_t header, const uint8_t *block,
                                 float *out, size_t count) {
    const size_t bytes = header + 16;
    while (count) {
        const int blocks = count < SUPER ? (int)(count / 32) : 8;
        int16_t code[SUPER];
        look_up(pairs, block + header, bytes, blocks, code);
        for (int b = 0; b < blocks; b++, block += bytes, out += 32) {
            const float d = factor(block);
            for (int i = 0; i < 32; i++) out[i] = d * (float)code[32 * b + i];
        }
        count -= (size_t)blocks * 32;
    }
}

ALWAYS_INLINE float dot_values(const int8_t (*pairs)[2], load_factor *factor, size_t header, const uint8_t *block,
                               const struct glm52_q8 *row, size_t count) {
    const size_t bytes = header + 16;
    float lane[LANES] = {0};
    for (size_t at = 0; at < count; at += SUPER) {
        const int blocks = count - at < SUPER ? (int)((count - at) / 32) : 8;
        int16_t code[SUPER];
        look_up(pairs, block + header, bytes, blocks, code);
        for (int b = 0; b < blocks; b++, block += bytes) {
            const size_t place = at + 32 * (size_t)b;
            lane[b] += (factor(block) * row->scale[place / 32]) * (float)dot_codes(code + 32 * b, row->q + place);
        }
    }
    return sum_lanes(lane);
}

ALWAYS_INLINE void unpack_values(const int8_t (*pairs)[2], load_factor *factor, size_t header, const uint8_t *block,
                                 int blocks, struct unpacked *out) {
    const size_t bytes = header + 16;
    look_up(pairs, block + header, bytes, blocks, out->code);
    for (int b = 0; b < blocks; b++) out->d[b] = factor(block + (size_t)b * bytes);
}

#endif
