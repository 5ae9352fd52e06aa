/* encode.h - quantising: float32 rows to blocks of a format, with or without importance of their columns.
 *
 * What is minimised is the sum of w (value - decoded)^2 over each block or super-block. Without importance w is 1. With
 * it, w = importance * sqrt(value^2 + mean square of the block's values). Importance alone, the mean square of the
 * activations that a column meets, would give the least expected square of a product's error, if activations were
 * uncorrelated and the importance that of the text to come; neither holds, and large weights kept a little better
 * measured better (docs/QUANTIZATION.md). Q8_0, F16 and BF16 leave nothing to choose and are plain roundings.
 *
 * A block's bits depend on its own values and importances alone, and every instruction set gives the same: rows may be
 * shared among threads in any way. docs/QUANTIZATION.md says how each family searches. */
#ifndef GLM52_ENCODE_H
#define GLM52_ENCODE_H

#include "quant.h"

struct glm52_encoder {
    uint32_t type;         /* ggml's number */
    float magnitude_max;   /* of a value: above it the block's scale is no finite float16 */
    /* blocks = count values of rows of row_size, count a multiple of row_size, row_size of the block size. importance
     * [row_size], or NULL: all the same. x is finite and within magnitude_max, importance finite and not negative
     * (F16 and BF16: x is any float). The largest importance of a block is taken as 1, every other gets 2^-20 of it
     * added; a block without any is taken as all the same. */
    void (*encode)(const float *x, const float *importance, size_t row_size, size_t count, void *blocks);
};

/* The encoder of a ggml type number, NULL if the type is not written. */
const struct glm52_encoder *glm52_encoder_find(uint32_t type);
/* Encoder number index in order of type, NULL past the last. */
const struct glm52_encoder *glm52_encoder_at(uint32_t index);

#endif
