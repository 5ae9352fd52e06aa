/* panel.h - many rows of activations: weights unpacked once into a panel, which all rows are multiplied with.
 *
 * A panel is 4 rows of weights, as pairs of rows, 256 columns (8 blocks of 32) at a time. Its codes are 8-bit numbers
 * in the order of multiply-add instructions, which sum 4 neighbouring bytes to a 32-bit lane: lane b of step t takes
 * codes 4 t .. 4 t + 3 of block b. So 8 steps leave the integer sum of block b in lane b, which is the lane of floats
 * that its term belongs to (blocks.h): nothing is ever summed across lanes but once at a row's end.
 *
 * The instructions take one operand without sign. That is the activation, as q + 128; the surplus, 128 * sum of the
 * codes, is known when weights are unpacked and starts the sum, negated. All integers are exact, and a factor f is
 * multiplied as a float: f * sum is an integer below 2^24, so every rounding is the one of dot_q8 and so is every bit.
 *
 * Columns behind a row's end have codes, d and m of zero, activations scale 0: they add +-0 to a lane, which starts
 * as +0 and so never is -0: no bit changes. */
#ifndef GLM52_PANEL_H
#define GLM52_PANEL_H

#include "blocks.h"

/* What differs between formats, all of it known to the compiler. */
struct panel_kind {
    int factors;        /* of 256 values: 0 (all 1), 8 or 16 */
    bool has_minimum;
    int code_max;       /* largest magnitude of a code */
    bool is_narrow;     /* codes come as bytes */
};

/* 256 columns of a row, in the order of the row. m is negated where the format subtracts. */
struct unpacked {
    int16_t code[SUPER];
    _Alignas(64) int8_t narrow[SUPER];   /* instead of code, if the kind says so */
    int8_t f[16], g[16];
    float d[8], m[8];
};

/* Unpacks blocks (1..8) blocks of 32: all but what the kind says is not there. */
typedef void unpack_group(const uint8_t *block, int blocks, struct unpacked *out);

/* Where dot_few is written by hand for vectors of 32 bytes: few_avx2.h. */
#if defined(__AVX2__) && (defined(__F16C__) || defined(__AVX512F__)) && !defined(__AVX512VBMI__)
#define FEW_BY_AVX2
#endif

#ifndef __AVX2__
/* Without vectors of 32 bytes unpacking once for many rows does not pay: rows are multiplied one by one. */
#define PANEL_FUNCTIONS(name, unpack, stride, ...)
#define PANEL_OF_SUPER(name, unpack)
#define PANEL_OF(name) NULL, NULL, NULL, NULL
#define FEW_OF(name) NULL, NULL, few_##name, NULL
#else

#include "panel_x86.h"

/* Functions pack_<name> and multiply_<name>; stride: bytes of 256 values. */
#define PANEL_FUNCTIONS(name, unpack, stride, ...)                                                                   \
    static void pack_##name(const void *blocks, size_t row_bytes, size_t rows, size_t count, void *panel) {          \
        pack_rows(unpack, stride, (struct panel_kind)__VA_ARGS__, blocks, row_bytes, rows, count, panel);            \
    }                                                                                                                \
    MULTIPLY_FUNCTION(name, __VA_ARGS__)
/* The same from a function that unpacks a pair of rows. */
#define PAIR_FUNCTIONS(name, unpack, stride, ...)                                                                    \
    static void pack_##name(const void *blocks, size_t row_bytes, size_t rows, size_t count, void *panel) {          \
        pack_pairs(unpack, stride, blocks, row_bytes, rows, count, panel);                                           \
    }                                                                                                                \
    MULTIPLY_FUNCTION(name, __VA_ARGS__)
#define MULTIPLY_FUNCTION(name, ...)                                                                                 \
    static void multiply_##name(const void *panel, const struct glm52_q8 *rows, size_t row_count, size_t count,      \
                                float *y) {                                                                          \
        multiply_rows((struct panel_kind)__VA_ARGS__, panel, rows, row_count, (count + SUPER - 1) / SUPER, y);       \
    }
/* Function group_<name> from one that unpacks a super-block without minimum. */
#define PANEL_OF_SUPER(name, unpack)                                                                                 \
    static inline void group_##name(const uint8_t *block, int blocks, struct unpacked *out) {                        \
        (void)blocks;                                                                                                \
        const float d = unpack(block, out->code, out->f);                                                            \
        for (int b = 0; b < 8; b++) out->d[b] = d;                                                                   \
    }
/* What a format's row says of them: without dot_few, and with it. */
#define PANEL_OF(name) pack_##name, multiply_##name, NULL, arrange_words
#define PANEL_AND_FEW_OF(name, arrange) pack_##name, multiply_##name, few_##name, arrange
#endif

#endif
