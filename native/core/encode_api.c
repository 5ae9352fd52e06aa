/* encode_api.c - the public calls that quantise: checks arguments and values, then asks the encoders. */
#include "glm52_encode.h"

#include <math.h>

#include "encode.h"
#include "error.h"

uint32_t glm52_encode_count(void) {
    uint32_t count = 0;
    while (glm52_encoder_at(count)) count++;
    return count;
}

glm52_status glm52_encode_type(uint32_t index, uint32_t *type_out) {
    if (!type_out) return glm52_fail(GLM52_ERR_ARGUMENT, "type_out is NULL");
    const struct glm52_encoder *encoder = glm52_encoder_at(index);
    if (!encoder) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "index is %u, %u types are written", index, glm52_encode_count());
    }
    *type_out = encoder->type;
    return GLM52_OK;
}

static glm52_status check_values(const struct glm52_encoder *encoder, const struct glm52_quant *format, const float *x,
                                 uint64_t row_count, uint64_t row_size) {
    if (format->block_size == 1) return GLM52_OK; /* floats keep what floats have */
    const size_t count = (size_t)(row_count * row_size);
    for (size_t i = 0; i < count; i++) {
        if (fabsf(x[i]) <= encoder->magnitude_max) continue;
        const unsigned long long row = i / row_size, column = i % row_size;
        return glm52_fail(GLM52_ERR_ARGUMENT, "row %llu, column %llu is %g: %s holds magnitudes to %g", row, column,
                          (double)x[i], format->name, (double)encoder->magnitude_max);
    }
    return GLM52_OK;
}

static glm52_status check_importance(const float *importance, uint64_t row_size) {
    for (uint64_t i = 0; importance && i < row_size; i++) {
        if (!(importance[i] >= 0) || isinf(importance[i])) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "importance of column %llu is %g: it must be finite and not negative",
                              (unsigned long long)i, (double)importance[i]);
        }
    }
    return GLM52_OK;
}

glm52_status glm52_quant_encode(uint32_t type, const float *x, const float *importance, uint64_t row_count,
                                uint64_t row_size, void *blocks) {
    const struct glm52_encoder *encoder = glm52_encoder_find(type);
    const struct glm52_quant *format = glm52_quant_find(type);
    if (!encoder || !format) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "type %u (%s) is not written", type,
                          format ? format->name : "unknown");
    }
    if (!x) return glm52_fail(GLM52_ERR_ARGUMENT, "x is NULL");
    if (!blocks) return glm52_fail(GLM52_ERR_ARGUMENT, "blocks is NULL");
    if (row_count == 0 || row_size == 0) return glm52_fail(GLM52_ERR_ARGUMENT, "there are no values to encode");
    if (row_size % format->block_size) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "rows of %llu values are no multiple of the %u of a %s block",
                          (unsigned long long)row_size, format->block_size, format->name);
    }
    if (row_count > SIZE_MAX / sizeof(float) / row_size) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%llu rows of %llu values do not fit this machine's memory",
                          (unsigned long long)row_count, (unsigned long long)row_size);
    }
    GLM52_TRY(check_importance(importance, row_size));
    GLM52_TRY(check_values(encoder, format, x, row_count, row_size));
    encoder->encode(x, importance, (size_t)row_size, (size_t)(row_count * row_size), blocks);
    return GLM52_OK;
}
