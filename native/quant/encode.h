/* encode.h - quantising: float32 rows to blocks of a format, with or without importance of their columns.
 *
 * Codes are those that leave the least sum of importance * (value - decoded)^2 in a block or super-block: importance is
 * the mean square of the activations that a column meets, so this is the expected square of what a product loses, as
 * far as activations are uncorrelated. Then scales grow until decoded values are, along the values, as long as these
 * (gain_of in encode_lanes.h). Q8_0, F16 and BF16 leave nothing to choose and are plain roundings; MXFP4's scales are
 * powers of two and stay.
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
