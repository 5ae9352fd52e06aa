/* inputs.c - what matrices are multiplied with, shown to an observer: importance matrices are made of it.
 *
 * The forward pass asks one pointer per matrix whether anybody looks. What goes into the down matrices of routed
 * experts is inside one operation (moe), so while somebody looks it is computed once more here, expert by expert, and
 * thrown away: the pass itself stays as it is, and so do its results. */
#include <stdlib.h>
#include <string.h>

#include "batch.h"
#include "error.h"
#include "glm52_encode.h"

struct glm52_inputs_watch {
    glm52_inputs_observer *observer;
    void *user;
    int32_t *experts;    /* [rows] the number of the expert that is shown */
    float *x;            /* [rows, hidden] of the rows that chose it, */
    float *gate, *up;    /* [rows, expert_ff] */
};

void glm52_inputs_end(struct glm52_engine *engine) {
    struct glm52_inputs_watch *watch = engine->inputs;
    if (watch == NULL) return;
    engine->ops->release(engine->backend, watch->x);
    engine->ops->release(engine->backend, watch->gate);
    engine->ops->release(engine->backend, watch->up);
    free(watch->experts);
    free(watch);
    engine->inputs = NULL;
}

static glm52_matmul_args expert_args(const struct glm52_engine *engine, const struct glm52_matrix *matrix,
                                     uint32_t rows) {
    return (glm52_matmul_args){
        .row_count = rows, .in_count = matrix->in_count, .out_count = matrix->out_count, .group_count = 1,
        .type = matrix->type, .exact = engine->options.quality, .x_row_stride = matrix->in_count,
        .x_group_stride = matrix->in_count, .out_row_stride = matrix->out_count, .out_group_stride = matrix->out_count};
}

/* Scratch for the matrices that are multiplied a second time. */
static glm52_status reserve(const struct glm52_engine *engine) {
    const struct glm52_model *model = engine->model;
    const uint32_t rows = engine->options.chunk_rows;
    size_t most = 0;
    for (uint32_t i = 0; i < glm52_blocks(model, &engine->options); i++) {
        const bool is_trunk = i < model->shape.layers;
        const struct glm52_layer *layer = is_trunk ? &model->layers[i] : &model->nextn[i - model->shape.layers].layer;
        if (layer->dense) continue;
        const struct glm52_matrix *matrices[] = {&layer->experts_gate, &layer->experts_up};
        for (int m = 0; m < 2; m++) {
            const glm52_matmul_args args = expert_args(engine, matrices[m], rows);
            const size_t bytes = engine->ops->matmul_scratch(engine->backend, &args);
            most = bytes > most ? bytes : most;
        }
    }
    return most > 0 ? engine->ops->reserve(engine->backend, most) : GLM52_OK;
}

glm52_status glm52_observe_inputs(glm52_engine *engine, glm52_inputs_observer *observer, void *user) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "observe_inputs: NULL pointer");
    glm52_inputs_end(engine);
    if (observer == NULL) return GLM52_OK;
    if (strcmp(engine->ops->name, "cpu") != 0) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "observe_inputs: the %s backend keeps activations to itself; use cpu",
                          engine->ops->name);
    }
    const glm52_shape *s = &engine->model->shape;
    const size_t rows = engine->options.chunk_rows, wide = s->expert_ff > 0 ? s->expert_ff : 1;
    struct glm52_inputs_watch *watch = calloc(1, sizeof(*watch));
    if (watch == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory to observe inputs");
    engine->inputs = watch;
    *watch = (struct glm52_inputs_watch){
        .observer = observer, .user = user, .experts = malloc(rows * sizeof(int32_t)),
        .x = engine->ops->allocate(engine->backend, rows * s->hidden * sizeof(float)),
        .gate = engine->ops->allocate(engine->backend, rows * wide * sizeof(float)),
        .up = engine->ops->allocate(engine->backend, rows * wide * sizeof(float))};
    const bool is_there = watch->experts != NULL && watch->x != NULL && watch->gate != NULL && watch->up != NULL;
    const glm52_status status =
        is_there ? reserve(engine) : glm52_fail(GLM52_ERR_MEMORY, "no memory to observe the inputs of %zu rows", rows);
    if (status != GLM52_OK) glm52_inputs_end(engine);
    return status;
}

void glm52_inputs_show(const struct glm52_batch *b, const struct glm52_matrix *matrix, const float *x,
                       uint32_t row_stride, uint32_t group_stride) {
    const struct glm52_inputs_watch *watch = b->engine->inputs;
    const glm52_inputs inputs = {
        .tensor = matrix->tensor->name, .x = x, .row_count = b->rows, .group_count = matrix->group_count,
        .column_count = matrix->in_count, .row_stride = row_stride, .group_stride = group_stride};
    watch->observer(watch->user, &inputs);
}

static void show_routed(const struct glm52_batch *b, const struct glm52_matrix *matrix, const float *x, uint32_t rows,
                        const int32_t *experts, uint32_t used_count) {
    const struct glm52_inputs_watch *watch = b->engine->inputs;
    const glm52_inputs inputs = {
        .tensor = matrix->tensor->name, .x = x, .row_count = rows, .group_count = 1,
        .column_count = matrix->in_count, .row_stride = matrix->in_count, .group_stride = matrix->in_count,
        .experts = experts, .used_count = used_count, .expert_count = matrix->group_count};
    watch->observer(watch->user, &inputs);
}

/* Rows of act.x that chose an expert, one behind the other in watch.x. */
static uint32_t gather(const struct glm52_batch *b, uint32_t expert) {
    const struct glm52_inputs_watch *watch = b->engine->inputs;
    const uint32_t hidden = b->shape->hidden, used = b->shape->experts_used;
    uint32_t count = 0;
    for (uint32_t r = 0; r < b->rows; r++) {
        bool is_chosen = false;
        for (uint32_t k = 0; k < used; k++) {
            is_chosen = is_chosen || b->act->route_ids[(size_t)r * used + k] == (int32_t)expert;
        }
        if (!is_chosen) continue;
        memcpy(watch->x + (size_t)count * hidden, b->act->x + (size_t)r * hidden, hidden * sizeof(float));
        watch->experts[count++] = (int32_t)expert;
    }
    return count;
}

void glm52_inputs_show_experts(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const struct glm52_inputs_watch *watch = b->engine->inputs;
    show_routed(b, &layer->experts_gate, b->act->x, b->rows, b->act->route_ids, b->shape->experts_used);
    show_routed(b, &layer->experts_up, b->act->x, b->rows, b->act->route_ids, b->shape->experts_used);
    for (uint32_t e = 0; e < b->shape->experts; e++) {
        const uint32_t rows = gather(b, e);
        if (rows == 0) continue;
        const struct glm52_matrix *gate = &layer->experts_gate, *up = &layer->experts_up;
        const glm52_matmul_args gate_args = expert_args(b->engine, gate, rows);
        const glm52_matmul_args up_args = expert_args(b->engine, up, rows);
        const uint8_t *gate_data = (const uint8_t *)gate->data + e * gate->group_bytes;
        const uint8_t *up_data = (const uint8_t *)up->data + e * up->group_bytes;
        b->ops->matmul(b->backend, &gate_args, watch->gate, watch->x, gate_data);
        b->ops->matmul(b->backend, &up_args, watch->up, watch->x, up_data);
        const glm52_swiglu_args args = {.row_count = rows, .row_size = gate->out_count, .gate_stride = gate->out_count,
                                        .up_stride = gate->out_count, .out_stride = gate->out_count};
        b->ops->swiglu(b->backend, &args, watch->gate, watch->gate, watch->up);
        show_routed(b, &layer->experts_down, watch->gate, rows, watch->experts, 1);
    }
}
