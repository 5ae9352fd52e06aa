/* typed.h - what the operations on weights have in common: names of kernels for a type, rows that can be read wide. */
#ifndef GLM52_GPU_TYPED_H
#define GLM52_GPU_TYPED_H

#include <stdio.h>

#include "quant.h"

#define GLM52_GPU_NAME_MAX 64

struct glm52_gpu_name {
    char text[GLM52_GPU_NAME_MAX];
};

/* kernel, the type's name in small letters, and rows if it is not 0: "matvec_q8_0_4". */
static inline struct glm52_gpu_name glm52_gpu_typed(const char *kernel, uint32_t type, uint32_t rows) {
    struct glm52_gpu_name name;
    char small[16] = {0};
    const char *of_type = glm52_quant_find(type)->name;
    for (size_t i = 0; i + 1 < sizeof(small) && of_type[i] != '\0'; i++) {
        small[i] = (char)(of_type[i] >= 'A' && of_type[i] <= 'Z' ? of_type[i] - 'A' + 'a' : of_type[i]);
    }
    if (rows == 0) {
        snprintf(name.text, sizeof(name.text), "%s_%s", kernel, small);
    } else {
        snprintf(name.text, sizeof(name.text), "%s_%s_%u", kernel, small, rows);
    }
    return name;
}

static inline size_t glm52_gpu_row_bytes(uint32_t type, size_t count) {
    const struct glm52_quant *quant = glm52_quant_find(type);
    return count / quant->block_size * quant->block_bytes;
}

/* Whether rows of floats, strides apart, all begin on multiples of 16 bytes. */
static inline bool glm52_gpu_is_wide(const float *x, uint32_t row_stride, uint32_t group_stride) {
    return (uintptr_t)x % 16 == 0 && row_stride % 4 == 0 && group_stride % 4 == 0;
}

static inline uint32_t glm52_gpu_ceil(uint64_t count, uint32_t size) {
    return (uint32_t)((count + size - 1) / size);
}

/* Threads of a group that works on one row of count values; of its size alone, so that its sums have one order. */
static inline uint32_t glm52_gpu_row_threads(uint32_t count) {
    return count >= 2048 ? 512 : count > 128 ? 256 : count > 32 ? 128 : 32;
}

/* is_wide of kernels/args.h. */
static inline uint32_t glm52_gpu_wide(bool x_is, bool weights_are) {
    return (x_is ? 1u : 0u) | (weights_are ? 2u : 0u);
}

/* Rows of activations that matvec kernels come for. */
static inline uint32_t glm52_gpu_matvec_rows(uint32_t row_count) {
    return row_count > 4 ? 8 : row_count > 2 ? 4 : row_count;
}

/* Values of a chunk: kernels/quant_lanes.h. */
static inline uint32_t glm52_gpu_chunk(uint32_t type) {
    const uint32_t q2_k = 10, q3_k = 11;
    return type == q2_k || type == q3_k ? 2048 : 512;
}

/* Simdgroups that share a row of weights (1, 2 or 4), so that the device is busy with out_count rows altogether: as
 * many as have equal shares, or many. Of the matrix alone: a row's bits must not depend on how many rows of
 * activations there are. */
static inline uint32_t glm52_gpu_matvec_parts(uint32_t type, uint64_t out_count, uint32_t in_count) {
    const uint32_t chunks = glm52_gpu_ceil(in_count, glm52_gpu_chunk(type));
    const uint32_t max = glm52_gpu_chunk(type) > 512 ? 2 : 4;
    uint32_t parts = 1;
    while (parts < max && out_count / 4 * parts < 4096 && (chunks % (2 * parts) == 0 || chunks >= 16 * parts)) {
        parts *= 2;
    }
    return parts;
}

#endif
