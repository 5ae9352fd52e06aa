/* linear.c - rows of weights against rows of activations: what matmul and moe have in common.
 *
 * Each product has the bits of one call of dot_q8 or glm52_dot_f32, whose order of summation quant.h states. For
 * several rows of activations, weights are unpacked or decoded once per tile. Which products are taken together, and
 * on which thread, changes no bit: a batch of n rows gives what n batches of one row give. */
#include <string.h>

#include "cpu.h"

_Static_assert(GLM52_LINEAR_ROWS_MAX <= GLM52_PANEL_ROWS, "multiply takes no more");
_Static_assert(GLM52_LINEAR_ROWS_MAX <= GLM52_FEW_ROWS, "dot_few takes no more");

#define TILE_ROWS_Q8 8
#define TILE_ROWS_F32 4
#define TYPE_F32 0
/* Of activations, beside tiles of weights in a second cache of 512 KiB or more. */
#define BLOCK_BYTES ((size_t)320 << 10)

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

size_t glm52_linear_block_rows(const struct glm52_linear *linear) {
    /* Of an encoded row a panel meets a copy of the codes, and the scales and sums. */
    const size_t bytes = linear->is_q8 ? glm52_q8_bytes(linear->in_count) / 3 : linear->in_count * sizeof(float);
    const size_t rows = BLOCK_BYTES / (bytes * GLM52_LINEAR_ROWS_MAX);
    return (rows > 0 ? rows : 1) * GLM52_LINEAR_ROWS_MAX;
}

size_t glm52_linear_space(const struct glm52_linear *linear) {
    if (!linear->is_q8) return TILE_ROWS_F32 * glm52_cpu_line(linear->in_count * sizeof(float));
    if (linear->quant->pack == NULL) return 0;
    return TILE_ROWS_Q8 / GLM52_PANEL_ROWS * glm52_panel_bytes(linear->in_count);
}

static void load_panels(const struct glm52_linear *linear, const uint8_t *weights, size_t count, uint8_t *space) {
    for (size_t i = 0; i < count; i += GLM52_PANEL_ROWS) {
        const size_t rows = count - i < GLM52_PANEL_ROWS ? count - i : GLM52_PANEL_ROWS;
        linear->quant->pack(weights + i * linear->row_bytes, linear->row_bytes, rows, linear->in_count, space);
        space += glm52_panel_bytes(linear->in_count);
    }
}

/* Up to GLM52_FEW_ROWS rows unpacking once more costs less than a panel. */
static bool takes_panels(const struct glm52_linear *linear, size_t uses) {
    return linear->is_q8 && linear->quant->pack != NULL && uses > (linear->quant->dot_few ? GLM52_FEW_ROWS : 1);
}

struct glm52_linear_tile glm52_linear_load(const struct glm52_linear *linear, const uint8_t *weights,
                                           size_t count, size_t uses, uint8_t *space) {
    struct glm52_linear_tile tile = {.count = count};
    if (takes_panels(linear, uses)) {
        load_panels(linear, weights, count, space);
        tile.panels = space;
        return tile;
    }
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

static void multiply_panels(const struct glm52_linear *linear, const struct glm52_linear_tile *tile,
                            const struct glm52_q8 *q8, size_t row_count, float *y) {
    const size_t panel_bytes = glm52_panel_bytes(linear->in_count);
    const uint8_t *panel = tile->panels;
    for (size_t i = 0; i < tile->count; i += GLM52_PANEL_ROWS, panel += panel_bytes) {
        float products[GLM52_LINEAR_ROWS_MAX * GLM52_PANEL_ROWS];
        linear->quant->multiply(panel, q8, row_count, linear->in_count, products);
        for (size_t r = 0; r < row_count; r++) {
            memcpy(y + r * GLM52_LINEAR_TILE_MAX + i, products + r * GLM52_PANEL_ROWS,
                   GLM52_PANEL_ROWS * sizeof(float));
        }
    }
}

void glm52_linear_multiply(const struct glm52_linear *linear, const struct glm52_linear_tile *tile,
                           const struct glm52_linear_input *input, const size_t *rows, size_t row_count, float *y) {
    if (!linear->is_q8) {
        const float *x[GLM52_LINEAR_ROWS_MAX], *w[TILE_ROWS_F32];
        for (size_t r = 0; r < row_count; r++) x[r] = input->x + rows[r] * input->stride;
        for (size_t i = 0; i < tile->count; i++) w[i] = (const float *)(const void *)tile->rows[i];
        glm52_dot_f32_tile(x, row_count, w, tile->count, linear->in_count, y, GLM52_LINEAR_TILE_MAX);
        return;
    }
    /* All rows are laid out alike. */
    const struct glm52_q8 row = glm52_q8_at(input->q8, linear->in_count);
    struct glm52_q8 q8[GLM52_LINEAR_ROWS_MAX];
    for (size_t r = 0; r < row_count; r++) {
        const size_t at = rows[r] * input->q8_stride;
        q8[r] = (struct glm52_q8){row.q + at, row.scale + at / sizeof(*row.scale), row.sum + at / sizeof(*row.sum),
                                  row.arranged + at, row.dealt + at};
    }
    if (tile->panels != NULL) {
        multiply_panels(linear, tile, q8, row_count, y);
        return;
    }
    if (linear->quant->dot_few != NULL) {
        linear->quant->dot_few(tile->rows[0], linear->row_bytes, tile->count, linear->in_count, q8, row_count, y,
                               GLM52_LINEAR_TILE_MAX);
        return;
    }
    for (size_t r = 0; r < row_count; r++) {
        for (size_t i = 0; i < tile->count; i++) {
            y[r * GLM52_LINEAR_TILE_MAX + i] = linear->quant->dot_q8(tile->rows[i], &q8[r], linear->in_count);
        }
    }
}

void glm52_linear_encode(const struct glm52_linear *linear, const struct glm52_linear_input *input,
                         size_t row_begin, size_t row_end) {
    for (size_t row = row_begin; row < row_end; row++) {
        const struct glm52_q8 q8 = glm52_q8_at(input->q8 + row * input->q8_stride, linear->in_count);
        glm52_q8_encode(input->x + row * input->stride, linear->in_count, q8);
        if (linear->quant->arrange) linear->quant->arrange(linear->in_count, q8);
    }
}

bool glm52_linear_same_input(const struct glm52_linear *a, const struct glm52_linear *b) {
    return !a->is_q8 || !b->is_q8 || a->quant->arrange == b->quant->arrange;
}
