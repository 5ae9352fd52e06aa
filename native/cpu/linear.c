/* linear.c - rows of weights against rows of activations: what matmul and moe have in common.
 *
 * Each product is one call of dot_q8 or glm52_dot_f32, whose order of summation quant.h states. Which
 * products are taken together, and on which thread, changes no bit: a batch of n rows gives what n batches
 * of one row give. */
#include "cpu.h"

#define TILE_ROWS_Q8 8
#define TILE_ROWS_F32 4
#define TYPE_F32 0

struct glm52_linear glm52_linear_of(uint32_t type, size_t in_count, bool exact) {
    const struct glm52_quant *quant = glm52_quant_find(type);
    return (struct glm52_linear){
        .quant = quant,
        .in_count = in_count,
        .row_bytes = in_count / quant->block_size * quant->block_bytes,
        .is_q8 = !exact && quant->dot_q8 != NULL,
    };
}

size_t glm52_linear_tile_rows(const struct glm52_linear *linear) {
    return linear->is_q8 ? TILE_ROWS_Q8 : TILE_ROWS_F32;
}

size_t glm52_linear_space(const struct glm52_linear *linear) {
    return linear->is_q8 ? 0 : TILE_ROWS_F32 * glm52_cpu_line(linear->in_count * sizeof(float));
}

struct glm52_linear_tile glm52_linear_load(const struct glm52_linear *linear, const uint8_t *weights,
                                           size_t count, uint8_t *space) {
    struct glm52_linear_tile tile = {.count = count};
    const bool as_it_lies = linear->is_q8 || (linear->quant->type == TYPE_F32 &&
                                              (uintptr_t)weights % _Alignof(float) == 0);
    for (size_t i = 0; i < count; i++) {
        const uint8_t *row = weights + i * linear->row_bytes;
        if (as_it_lies) {
            tile.rows[i] = row;
            continue;
        }
        uint8_t *decoded = space + i * glm52_cpu_line(linear->in_count * sizeof(float));
        linear->quant->decode(row, (float *)decoded, linear->in_count);
        tile.rows[i] = decoded;
    }
    return tile;
}

void glm52_linear_multiply(const struct glm52_linear *linear, const struct glm52_linear_tile *tile,
                           const struct glm52_linear_input *input, size_t row, float *y) {
    if (linear->is_q8) {
        const struct glm52_q8 q8 = glm52_q8_at(input->q8 + row * input->q8_stride, linear->in_count);
        for (size_t i = 0; i < tile->count; i++) {
            y[i] = linear->quant->dot_q8(tile->rows[i], &q8, linear->in_count);
        }
        return;
    }
    const float *x = input->x + row * input->stride;
    for (size_t i = 0; i < tile->count; i++) {
        y[i] = glm52_dot_f32((const float *)(const void *)tile->rows[i], x, linear->in_count);
    }
}

void glm52_linear_encode(const struct glm52_linear *linear, const struct glm52_linear_input *input,
                         size_t row_begin, size_t row_end) {
    for (size_t row = row_begin; row < row_end; row++) {
        glm52_q8_encode(input->x + row * input->stride, linear->in_count,
                        glm52_q8_at(input->q8 + row * input->q8_stride, linear->in_count));
    }
}
