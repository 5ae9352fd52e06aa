/* batch.h - a batch of rows on its way through layers: what forward.c and mtp.c share. */
#ifndef GLM52_BATCH_H
#define GLM52_BATCH_H

#include "engine.h"

/* Numbers and places that every step of one batch needs. */
struct glm52_batch {
    struct glm52_engine *engine;
    const struct glm52_ops *ops;
    glm52_backend *backend;
    const glm52_shape *shape;
    const struct glm52_activations *act;
    uint32_t rows;
    uint32_t position;          /* of row 0 */
    struct glm52_watch watch;
    const int32_t *selected;    /* what attention reads: act.selected, where a full layer writes its selection */
    uint32_t k;                 /* positions of a row in it, at most */
};

struct glm52_batch glm52_batch_of(struct glm52_engine *engine, uint32_t position, uint32_t rows);

/* cos and sin of the batch's positions into act.rope_table. */
void glm52_batch_rope(const struct glm52_batch *b);
/* out[r] = x[r] / rms * weight, rows of size. */
void glm52_batch_norm(const struct glm52_batch *b, float *out, const float *x, const float *weight, uint32_t size,
                      float epsilon);
/* out[r] = matrix * x[r] for a matrix of one group. */
void glm52_batch_matmul(const struct glm52_batch *b, float *out, const float *x, const struct glm52_matrix *matrix);
/* observe.c: what is shown to the engine's observer; nothing without one. Behind a layer: all that it decided. Inside
 * an indexer: how narrow the selection of rows first .. end - 1 was, whose scores are at hand; rows 0 .. end - 1 that
 * take every position. */
void glm52_observe_layer(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number);
void glm52_observe_selection(const struct glm52_batch *b, uint32_t first, uint32_t end);
void glm52_observe_all_visible(const struct glm52_batch *b, uint32_t end);
/* inputs.c, while engine.inputs is not NULL: the rows x that a matrix is about to be multiplied with; and those of a
 * layer's routed experts, when act.x and the routes are there. */
void glm52_inputs_show(const struct glm52_batch *b, const struct glm52_matrix *matrix, const float *x,
                       uint32_t row_stride, uint32_t group_stride);
void glm52_inputs_show_experts(const struct glm52_batch *b, const struct glm52_layer *layer);
/* act.h through one layer; number is where its caches are. Errors: as glm52_forward. */
glm52_status glm52_batch_layer(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number);

#endif
