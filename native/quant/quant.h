/* quant.h - the block formats of GGUF: what a block means, and its dot product with a row of activations.
 *
 * A format is a row of one table. decode gives the exact float32 values. dot_q8 multiplies blocks as they lie
 * with 8-bit activations. In quality mode rows are decoded and multiplied by glm52_dot_f32.
 *
 * Order of summation, which every implementation of a function keeps to the bit:
 *   glm52_dot_f32   16 partial sums, s[j] over i = j, j + 16, j + 32, ... each product rounded, then added;
 *                   then pairwise: s[j] += s[j + 8]; += s[j + 4]; += s[j + 2]; s[0] + s[1].
 *   dot_q8          (and pack with multiply) integers inside a block of 32, exact; floats in 8 partial sums, block
 *                   b to sum b % 8, then pairwise as above (blocks.h).
 *
 * The functions exist once per instruction set, from the same source, and give the same bits; which set runs is
 * decided once, by what the processor has. */
#ifndef GLM52_QUANT_H
#define GLM52_QUANT_H

#include "glm52.h"

/* A row of activations as 8-bit numbers: value i is about scale[i / 32] * q[i]. */
struct glm52_q8 {
    int8_t *q;       /* [count], -127..127 */
    float *scale;    /* [count / 32] = largest magnitude of the 32 / 127 */
    int16_t *sum;    /* [count / 16], sum of 16 q: formats with an offset need it */
    /* Of whole groups of 256, in an order of a format's own; its arrange writes them. */
    int8_t *arranged;  /* q */
    uint8_t *dealt;    /* q + 128 */
};

#define GLM52_Q8_BLOCK 32
/* Bytes of a glm52_q8 row of count values (count a multiple of 32), kept 64-byte aligned. */
size_t glm52_q8_bytes(size_t count);
/* Lays a row out in memory (64-byte aligned, glm52_q8_bytes(count) long). */
struct glm52_q8 glm52_q8_at(void *memory, size_t count);
/* Quantises x [count], count a multiple of 32: per block of 32, scale = max|x| / 127 and q = x / scale, both in
 * float32, q to the nearest integer (ties to even). A block whose scale would be below 2^-126 is all zero, scale
 * included. A block that holds an infinity or a NaN has scale NaN and q 0, so that whatever is multiplied with it
 * comes out as NaN. scale and sum are 0 behind the end, to a multiple of 256 values. */
void glm52_q8_encode(const float *x, size_t count, struct glm52_q8 row);

/* Rows of weights that are unpacked together, for many rows of activations. */
#define GLM52_PANEL_ROWS 4
#define GLM52_PANEL_GROUP_BYTES 1920   /* of 256 columns */
static inline size_t glm52_panel_bytes(size_t count) {
    return (count + 255) / 256 * GLM52_PANEL_GROUP_BYTES;
}

/* Rows of activations that dot_few takes. */
#define GLM52_FEW_ROWS 4

struct glm52_quant {
    const char *name;
    uint32_t type;         /* ggml's number */
    uint32_t block_size;   /* values per block */
    uint32_t block_bytes;
    /* out [count] = exact values; count a multiple of block_size. blocks need no alignment */
    void (*decode)(const void *blocks, float *out, size_t count);
    /* sum of values * activations; count a multiple of block_size and of 32. NULL for F32, F16 and BF16, which
     * are multiplied exactly in both modes */
    float (*dot_q8)(const void *blocks, const struct glm52_q8 *row, size_t count);
    /* Many rows at once, the same bits. pack unpacks rows (1 .. GLM52_PANEL_ROWS) rows of weights, row_bytes apart,
     * into a panel (64-byte aligned, glm52_panel_bytes(count) long); then multiply gives
     *     y[r * GLM52_PANEL_ROWS + i] = dot_q8(weights i, &rows[r], count)    r < row_count, 1 .. GLM52_PANEL_ROWS
     * and something else for i that was not packed. Both NULL where dot_q8 is NULL, and in sets that gain nothing from
     * it. */
    void (*pack)(const void *blocks, size_t row_bytes, size_t rows, size_t count, void *panel);
    void (*multiply)(const void *panel, const struct glm52_q8 *rows, size_t row_count, size_t count, float *y);
    /* Few rows of activations, x_count (1 .. GLM52_FEW_ROWS), against rows of weights as they lie, row_bytes apart, the
     * same bits:
     *     y[r * y_stride + i] = dot_q8(weights i, &x[r], count)   r < x_count, i < rows
     * NULL in sets where dot_q8 is as fast. */
    void (*dot_few)(const void *blocks, size_t row_bytes, size_t rows, size_t count, const struct glm52_q8 *x,
                    size_t x_count, float *y, size_t y_stride);
    /* Writes x.arranged and x.dealt from x.q, which multiply and dot_few of this format read. NULL if neither does. */
    void (*arrange)(size_t count, struct glm52_q8 x);
};

/* The format of a ggml type number, NULL if it is not read. */
const struct glm52_quant *glm52_quant_find(uint32_t type);
/* Format number index in order of type, NULL past the last. */
const struct glm52_quant *glm52_quant_at(uint32_t index);
/* Names of all formats, comma-separated, for messages. */
const char *glm52_quant_names(void);

float glm52_dot_f32(const float *a, const float *b, size_t count);
/* y[i * y_stride + j] = glm52_dot_f32(a[i], b[j], count), to the bit, for i < a_count and j < b_count. */
void glm52_dot_f32_tile(const float *const *a, size_t a_count, const float *const *b, size_t b_count, size_t count,
                        float *y, size_t y_stride);
/* For o < out_count and i < size: out[o * out_stride + i] += p[o * p_stride + r] * rows[r][i], for r from 0 to
 * count - 1 in this order; products and sums are rounded. */
void glm52_add_rows(float *out, size_t out_stride, const float *p, size_t p_stride, size_t out_count,
                    const float *const *rows, size_t count, size_t size);

uint16_t glm52_f32_to_f16(float value);  /* nearest, ties to even; NaN stays NaN */
float glm52_f16_to_f32(uint16_t bits);
float glm52_bf16_to_f32(uint16_t bits);

struct glm52_encoder;

/* All of the above, and the encoders, for one instruction set. */
struct glm52_quant_set {
    const char *name;                           /* "portable", "avx2" */
    const struct glm52_quant *const *formats;   /* in order of type, NULL behind the last */
    float (*dot_f32)(const float *a, const float *b, size_t count);
    void (*dot_f32_tile)(const float *const *a, size_t a_count, const float *const *b, size_t b_count, size_t count,
                         float *y, size_t y_stride);
    void (*add_rows)(float *out, size_t out_stride, const float *p, size_t p_stride, size_t out_count,
                     const float *const *rows, size_t count, size_t size);
    void (*q8_encode)(const float *x, size_t count, struct glm52_q8 row);
    const struct glm52_encoder *const *encoders; /* in order of type, NULL behind the last (encode.h) */
};

/* The sets that this processor can run: 0 is portable, the last is the one in use, NULL past it. For tests. */
const struct glm52_quant_set *glm52_quant_set_at(uint32_t index);

#endif
