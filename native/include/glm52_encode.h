/* glm52_encode.h - quantising: float32 rows to blocks of a type, and what importance is made of. The other direction
 * is glm52_quant_decode in glm52_ops.h.
 *
 * glm52_quant_encode may run on several threads at once. Rows are independent of each other, and a block's bytes depend
 * on its own values and importances alone: however rows are shared out, the bytes are the same, on every processor. */
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

/* blocks = row_count rows of row_size values x, quantised with the codes that leave the least sum of importance *
 * error^2 in each block, and scales that nearly keep the length of its values. importance [row_size], NULL: all columns
 * alike; it is the mean square of the activations that a column is multiplied with, of any scale. Q8_0, F32, F16 and
 * BF16 do not look at it. blocks is row_count times what a row of the type takes, and is written only on OK.
 *
 * What types can't hold: F16 rounds magnitudes from 65520 on to infinity; F32, F16 and BF16 keep infinities and NaNs,
 * every other type refuses them, and magnitudes whose scale would be no finite float16. Values far below a block's
 * largest, and blocks of values below about 2^-25, become zeros.
 * Errors: UNSUPPORTED for a type that is not written; ARGUMENT if x or blocks is NULL, a count is 0, row_size is no
 * multiple of the type's block, a value is refused, or an importance is negative or not finite. */
GLM52_API glm52_status glm52_quant_encode(uint32_t type, const float *x, const float *importance, uint64_t row_count,
                                          uint64_t row_size, void *blocks);

/* What rows of activations a matrix is multiplied with. Everything is valid during the call. */
typedef struct glm52_inputs {
    const char *tensor;      /* name of the matrix */
    const float *x;          /* [row_count, group_count, column_count], with strides in values */
    uint32_t row_count, group_count, column_count, row_stride, group_stride;
    const int32_t *experts;  /* [row_count, used_count] the experts that a row goes to; NULL: all rows, every group */
    uint32_t used_count, expert_count;
} glm52_inputs;
typedef void glm52_inputs_observer(void *user, const glm52_inputs *inputs);

/* Has observer called with the inputs of every matrix of every batch, on the calling thread: rows of attention heads
 * as groups, rows of routed experts with their experts' numbers. Results of the engine do not change by a bit; a pass
 * takes longer, because what the experts' down matrices get is computed once more. NULL ends it and frees what it took.
 * Errors: ARGUMENT if engine is NULL; UNSUPPORTED on backends other than the CPU's; MEMORY. */
GLM52_API glm52_status glm52_observe_inputs(glm52_engine *engine, glm52_inputs_observer *observer, void *user);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
