/* glm52_encode.h - quantising: float32 rows to blocks of a type. The other direction is glm52_quant_decode in
 * glm52_ops.h.
 *
 * Every call may run on several threads at once. Rows are independent of each other, and a block's bytes depend on its
 * own values and importances alone: however rows are shared out, the bytes are the same, on every processor. */
#ifndef GLM52_ENCODE_PUBLIC_H
#define GLM52_ENCODE_PUBLIC_H

#include "glm52.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

/* Number of types that are written. */
GLM52_API uint32_t glm52_encode_count(void);

/* ggml's number of the index-th type that is written, in order of numbers. Errors: ARGUMENT if type_out is NULL or
 * index is not below the count. */
GLM52_API glm52_status glm52_encode_type(uint32_t index, uint32_t *type_out);

/* blocks = row_count rows of row_size values x, quantised so that the sum of importance * error^2 over each block is
 * small. importance [row_size], NULL: all columns alike; it is the mean square of the activations that a column is
 * multiplied with, of any scale. Q8_0, F32, F16 and BF16 do not look at it. blocks is a row_count times what a row of
 * the type takes, and is written only on OK.
 *
 * What types can't hold: F16 rounds magnitudes from 65520 on to infinity; F32, F16 and BF16 keep infinities and NaNs,
 * every other type refuses them, and magnitudes whose scale would be no finite float16. Values far below a block's
 * largest, and blocks of values below about 2^-25, become zeros.
 * Errors: UNSUPPORTED for a type that is not written; ARGUMENT if x or blocks is NULL, a count is 0, row_size is no
 * multiple of the type's block, a value is refused, or an importance is negative or not finite. */
GLM52_API glm52_status glm52_quant_encode(uint32_t type, const float *x, const float *importance, uint64_t row_count,
                                          uint64_t row_size, void *blocks);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
