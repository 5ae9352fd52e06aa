/* quant_api.c - the public calls on quantised blocks: checks arguments, then asks the table. */
#include "error.h"
#include "quant.h"

uint32_t glm52_quant_count(void) {
    uint32_t count = 0;
    while (glm52_quant_at(count)) count++;
    return count;
}

glm52_status glm52_quant_describe(uint32_t index, glm52_quant_info *info_out) {
    if (!info_out) return glm52_fail(GLM52_ERR_ARGUMENT, "info_out is NULL");
    const struct glm52_quant *format = glm52_quant_at(index);
    if (!format) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "index is %u, there are %u types", index, glm52_quant_count());
    }
    *info_out = (glm52_quant_info){format->name, format->type, format->block_size, format->block_bytes};
    return GLM52_OK;
}

glm52_status glm52_quant_decode(uint32_t type, const void *blocks, float *out, uint64_t count) {
    const struct glm52_quant *format = glm52_quant_find(type);
    if (!format) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "type %u is not read; these are: %s", type, glm52_quant_names());
    }
    if (!blocks) return glm52_fail(GLM52_ERR_ARGUMENT, "blocks is NULL");
    if (!out) return glm52_fail(GLM52_ERR_ARGUMENT, "out is NULL");
    if (count == 0) return glm52_fail(GLM52_ERR_ARGUMENT, "count is 0");
    if (count % format->block_size) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "count %llu is no multiple of the %u values of a %s block",
                          (unsigned long long)count, format->block_size, format->name);
    }
    if (count > SIZE_MAX / sizeof(float)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "count %llu does not fit this machine's memory",
                          (unsigned long long)count);
    }
    format->decode(blocks, out, (size_t)count);
    return GLM52_OK;
}
