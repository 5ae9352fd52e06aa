/* forward.c - the way of a token: embedding, layers, final norm, logits. The file to read first.
 *
 * A batch is row_count tokens at consecutive positions; decoding is a batch of one. Rows never meet except in
 * attention, where row r sees the cache rows 0 .. position + r, so any cut of a prompt into batches gives the
 * same result. Formulas: transformers GlmMoeDsa; docs/ARCHITECTURE.md names the arrays. */
#include <math.h>
#include <string.h>

#include "batch.h"
#include "clock.h"
#include "error.h"

void glm52_batch_norm(const struct glm52_batch *b, float *out, const float *x, const float *weight, uint32_t size,
                     float epsilon) {
    const glm52_rms_norm_args args = {
        .row_count = b->rows, .row_size = size, .x_stride = size, .out_stride = size, .epsilon = epsilon};
    b->ops->rms_norm(b->backend, &args, out, x, weight);
}

/* out[r] = matrix * x[r] for a matrix of one group. */
void glm52_batch_matmul(const struct glm52_batch *b, float *out, const float *x, const struct glm52_matrix *matrix) {
    const glm52_matmul_args args = {
        .row_count = b->rows, .in_count = matrix->in_count, .out_count = matrix->out_count, .group_count = 1,
        .type = matrix->type, .exact = b->engine->options.quality,
        .x_row_stride = matrix->in_count, .x_group_stride = matrix->in_count,
        .out_row_stride = matrix->out_count, .out_group_stride = matrix->out_count};
    if (b->engine->inputs != NULL) glm52_inputs_show(b, matrix, x, args.x_row_stride, args.x_group_stride);
    b->ops->matmul(b->backend, &args, out, x, matrix->data);
}

/* out[r, h] = matrix[h] * x[r, h], where a head of x may be part of a wider row. */
static void matmul_heads(const struct glm52_batch *b, float *out, const float *x, const struct glm52_matrix *matrix,
                         uint32_t x_head_stride) {
    const uint32_t heads = matrix->group_count;
    const glm52_matmul_args args = {
        .row_count = b->rows, .in_count = matrix->in_count, .out_count = matrix->out_count,
        .group_count = heads, .type = matrix->type, .exact = b->engine->options.quality,
        .x_row_stride = heads * x_head_stride, .x_group_stride = x_head_stride,
        .out_row_stride = heads * matrix->out_count, .out_group_stride = matrix->out_count};
    if (b->engine->inputs != NULL) glm52_inputs_show(b, matrix, x, args.x_row_stride, args.x_group_stride);
    b->ops->matmul(b->backend, &args, out, x, matrix->data);
}

static void rope(const struct glm52_batch *b, float *x, uint32_t heads, uint32_t head_stride) {
    const glm52_rope_args args = {.row_count = b->rows, .head_count = heads, .rope_size = b->shape->rope,
                                  .row_stride = heads * head_stride, .head_stride = head_stride};
    b->ops->rope(b->backend, &args, x, b->act->rope_table);
}

static void add(const struct glm52_batch *b, float *out, const float *x, const float *y, const float *z) {
    const glm52_add_args args = {.count = (uint64_t)b->rows * b->shape->hidden};
    b->ops->add(b->backend, &args, out, x, y, z);
}

/* Scores the rows first .. end - 1 of the batch against the index cache and picks their positions. */
static void select_slice(const struct glm52_batch *b, void *index_cache, uint32_t first, uint32_t end) {
    const glm52_shape *s = b->shape;
    const uint32_t context = b->engine->options.context;
    const glm52_index_score_args score = {
        .row_count = end - first, .head_count = s->index_heads, .key_size = s->index_key,
        .position = b->position + first, .kv_type = b->engine->options.kv_type, .score_stride = context,
        .q_stride = s->index_heads * s->index_key, .weight_stride = s->index_heads,
        .scale = 1.0f / sqrtf((float)s->index_heads * (float)s->index_key)};
    b->ops->index_score(b->backend, &score, b->act->scores, b->act->index_q + (size_t)first * score.q_stride,
                        b->act->index_w + (size_t)first * s->index_heads, index_cache);

    const glm52_top_k_args top_k = {.row_count = end - first, .position = b->position + first,
                                    .k = s->index_top_k, .score_stride = context,
                                    .selected_stride = b->engine->selected_stride};
    b->ops->top_k(b->backend, &top_k, b->act->selected + (size_t)first * top_k.selected_stride, b->act->scores);
    glm52_observe_selection(b, first, end);
}

/* The indexer of a full layer: stores this batch's keys, then leaves in act.selected the positions each row
 * attends to. Rows that see no more than index_top_k positions take them all; the keys are stored even then,
 * for the rows to come. x is the layer's normed input. */
static void index_select(const struct glm52_batch *b, const struct glm52_layer *layer, void *index_cache) {
    const glm52_shape *s = b->shape;
    const struct glm52_activations *act = b->act;
    glm52_batch_matmul(b, act->index_k, act->x, &layer->index_k);
    const glm52_index_store_args store = {
        .row_count = b->rows, .key_size = s->index_key, .rope_size = s->rope, .position = b->position,
        .kv_type = b->engine->options.kv_type, .x_stride = s->index_key, .epsilon = GLM52_INDEX_NORM_EPSILON};
    b->ops->index_store(b->backend, &store, index_cache, act->index_k, layer->index_norm,
                        layer->index_norm_bias, act->rope_table);

    const uint32_t all_visible = s->index_top_k > b->position ? s->index_top_k - b->position : 0;
    const uint32_t dense_rows = b->rows < all_visible ? b->rows : all_visible;
    if (dense_rows > 0) {
        const glm52_top_k_args args = {.row_count = dense_rows, .position = b->position, .k = s->index_top_k,
                                       .selected_stride = b->engine->selected_stride};
        b->ops->top_k(b->backend, &args, act->selected, NULL);
        glm52_observe_all_visible(b, dense_rows);
    }
    if (dense_rows == b->rows) return;

    glm52_batch_matmul(b, act->index_q, act->q_a, &layer->index_q);
    rope(b, act->index_q, s->index_heads, s->index_key);
    glm52_batch_matmul(b, act->index_w, act->x, &layer->index_w);
    for (uint32_t first = dense_rows; first < b->rows; first += b->engine->score_rows) {
        const uint32_t left = b->rows - first;
        select_slice(b, index_cache, first, first + (left < b->engine->score_rows ? left : b->engine->score_rows));
    }
}

/* Multi-head latent attention in its absorbed form: queries are taken into the latent space (k_b), so that the
 * cache holds one latent row for all heads, and results are taken out of it (v_b). act.x -> act.y. */
static void attention(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number) {
    const glm52_shape *s = b->shape;
    const struct glm52_activations *act = b->act;
    const struct glm52_engine *engine = b->engine;
    const uint32_t nope = s->key_mla - s->rope;

    glm52_batch_matmul(b, act->q_a, act->x, &layer->q_a);
    glm52_batch_norm(b, act->q_a, act->q_a, layer->q_a_norm, s->q_lora, engine->options.latent_epsilon);
    glm52_batch_matmul(b, act->q, act->q_a, &layer->q_b);
    rope(b, act->q + nope, s->heads, s->key_mla);

    glm52_batch_matmul(b, act->kv_a, act->x, &layer->kv_a);
    const glm52_kv_store_args store = {
        .row_count = b->rows, .latent = s->kv_lora, .rope_size = s->rope, .position = b->position,
        .kv_type = engine->options.kv_type, .x_stride = s->kv_lora + s->rope,
        .epsilon = engine->options.latent_epsilon};
    b->ops->kv_store(b->backend, &store, engine->held.kv_cache[number], act->kv_a, layer->kv_a_norm,
                     act->rope_table);

    /* A shared layer attends to what the full layer before it selected. */
    if (layer->index_full) index_select(b, layer, engine->held.index_cache[number]);

    matmul_heads(b, act->q_latent, act->q, &layer->k_b, s->key_mla);
    const glm52_attention_args args = {
        .row_count = b->rows, .head_count = s->heads, .latent = s->kv_lora, .rope_size = s->rope,
        .position = b->position, .k = b->k, .kv_type = engine->options.kv_type,
        .selected_stride = engine->selected_stride,
        .q_latent_row_stride = s->heads * s->kv_lora, .q_latent_head_stride = s->kv_lora,
        .q_rope_row_stride = s->heads * s->key_mla, .q_rope_head_stride = s->key_mla,
        .out_row_stride = s->heads * s->kv_lora, .out_head_stride = s->kv_lora,
        .scale = 1.0f / sqrtf((float)s->key_mla)};
    b->ops->attention(b->backend, &args, act->o_latent, act->q_latent, act->q + nope,
                      engine->held.kv_cache[number], b->selected);
    matmul_heads(b, act->o, act->o_latent, &layer->v_b, s->kv_lora);
    glm52_batch_matmul(b, act->y, act->o, &layer->attn_out);
}

/* The router's choice of experts for rows of x. */
static void choose_experts(const struct glm52_batch *b, const struct glm52_layer *layer, const float *x, float *logits,
                           int32_t *ids, float *weights) {
    const glm52_shape *s = b->shape;
    glm52_batch_matmul(b, logits, x, &layer->router);
    const glm52_router_args route = {.row_count = b->rows, .expert_count = s->experts,
                                     .used_count = s->experts_used, .normalise = s->expert_norm,
                                     .logits_stride = s->experts, .scale = s->expert_scale};
    b->ops->router(b->backend, &route, ids, weights, logits, layer->router_bias);
}

static glm52_moe_args moe_args(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const glm52_shape *s = b->shape;
    return (glm52_moe_args){
        .row_count = b->rows, .expert_count = s->experts, .used_count = s->experts_used,
        .in_count = s->hidden, .ff_count = s->expert_ff, .gate_type = layer->experts_gate.type,
        .up_type = layer->experts_up.type, .down_type = layer->experts_down.type,
        .exact = b->engine->options.quality, .x_stride = s->hidden, .out_stride = s->hidden};
}

/* Adds to act.routed what those of the chosen experts give that experts has. */
static void add_experts(const struct glm52_batch *b, const struct glm52_layer *layer, const glm52_expert *experts) {
    const struct glm52_activations *act = b->act;
    const glm52_moe_args args = moe_args(b, layer);
    b->ops->moe(b->backend, &args, act->routed, act->x, act->route_ids, act->route_weights, experts);
}

/* One token's experts: those at hand are computed while the others are read, each into a row of its own (a token with
 * used experts is used rows of x with one expert each). Then the rows are added in ascending order of the experts'
 * numbers. 0 + w y is w y, so the sums have the bits of one call that adds all. */
static glm52_status add_one_tokens_experts(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const struct glm52_activations *act = b->act;
    const uint32_t used = b->shape->experts_used, hidden = b->shape->hidden;
    glm52_moe_args args = moe_args(b, layer);
    args.row_count = used;
    args.used_count = 1;
    args.x_stride = 0;
    b->ops->clear(b->backend, act->expert_out, (size_t)used * hidden * sizeof(float));
    for (;;) {
        const glm52_expert *experts = NULL;
        /* One token's experts all have their slots until the next layer has read its routes: no need to wait. */
        GLM52_TRY(glm52_stream_next(b->engine->stream, &experts));
        if (experts == NULL) break;
        b->ops->moe(b->backend, &args, act->expert_out, act->x, act->route_ids, act->route_weights, experts);
    }
    const int32_t *ids = b->engine->stream->ids;
    int64_t last = -1;
    for (uint32_t n = 0; n < used; n++) {
        uint32_t next = used;
        for (uint32_t i = 0; i < used; i++) {
            if (ids[i] > last && (next == used || ids[i] < ids[next])) next = i;
        }
        last = ids[next];
        add(b, act->routed, act->routed, act->expert_out + (size_t)next * hidden, NULL);
    }
    return GLM52_OK;
}

/* Adds a batch's experts as they come in, in ascending order of their numbers: the order in which one call adds
 * all. */
static glm52_status add_streamed_experts(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const struct glm52_watch watch = b->watch;
    if (b->rows == 1) return add_one_tokens_experts(b, layer);
    for (;;) {
        const glm52_expert *experts = NULL;
        GLM52_TRY(b->ops->finish(b->backend));   /* the experts of the step before may be overwritten now */
        GLM52_TRY(glm52_stream_next(b->engine->stream, &experts));
        if (experts == NULL) return GLM52_OK;
        add_experts(b, layer, experts);
        if (b->rows > GLM52_STREAM_NARROW_ROWS && watch.progress != NULL && !watch.progress(watch.user, b->position)) {
            return glm52_fail(GLM52_ERR_CANCELLED, "cancelled inside a layer at position %u", b->position);
        }
    }
}

/* What the layer behind this one will choose, going by this layer's residual stream behind attention, with_shared:
 * and what act.y adds to it. */
static glm52_status predict_experts(const struct glm52_batch *b, uint32_t number, bool with_shared) {
    struct glm52_stream *stream = b->engine->stream;
    const uint32_t next = number + 1;
    if (stream == NULL || stream->options.pilot == GLM52_PILOT_OFF || next >= b->shape->layers ||
        b->engine->model->layers[next].dense || (stream->options.pilot_two_step != 0) != with_shared) {
        return GLM52_OK;
    }
    if (b->rows > GLM52_PILOT_ROWS_MAX || b->shape->experts_used > GLM52_PILOT_USED_MAX) {
        stream->pilot.skipped_wide++;
        return GLM52_OK;
    }
    const uint64_t start = glm52_now_ns();
    const struct glm52_activations *act = b->act;
    const struct glm52_layer *layer = &b->engine->model->layers[next];
    if (with_shared) add(b, act->pilot_x, act->h, act->y, NULL);
    glm52_batch_norm(b, act->pilot_x, with_shared ? act->pilot_x : act->h, layer->ffn_norm, b->shape->hidden,
             b->shape->rms_epsilon);
    choose_experts(b, layer, act->pilot_x, act->pilot_logits, act->pilot_ids, act->pilot_weights);
    int32_t ids[GLM52_PILOT_ROWS_MAX * GLM52_PILOT_USED_MAX];
    b->ops->read(b->backend, ids, act->pilot_ids, (size_t)b->rows * b->shape->experts_used * sizeof(*ids));
    glm52_pilot_predicted(&stream->pilot, next, ids, b->rows, glm52_now_ns() - start);
    if (stream->options.pilot == GLM52_PILOT_HINT) glm52_stream_hint(stream, next, ids, b->rows);
    if (stream->options.pilot != GLM52_PILOT_LOAD) return GLM52_OK;
    return glm52_stream_load_ahead(stream, next, ids, b->rows);
}

static glm52_status begin_streaming(const struct glm52_batch *b, uint32_t number) {
    struct glm52_stream *stream = b->engine->stream;
    const size_t routes = (size_t)b->rows * b->shape->experts_used;
    b->ops->read(b->backend, stream->ids, b->act->route_ids, routes * sizeof(int32_t));
    glm52_pilot_observed(&stream->pilot, number, stream->ids, b->rows);
    GLM52_TRY(glm52_stream_begin(stream, number, stream->ids, b->rows));
    return predict_experts(b, number, false);
}

/* The dense network of a layer, or the expert that all tokens share: act.x -> act.y. */
static void dense_network(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const struct glm52_activations *act = b->act;
    const uint32_t width = layer->gate.out_count;
    glm52_batch_matmul(b, act->gate, act->x, &layer->gate);
    glm52_batch_matmul(b, act->up, act->x, &layer->up);
    const glm52_swiglu_args args = {.row_count = b->rows, .row_size = width, .gate_stride = width,
                                    .up_stride = width, .out_stride = width};
    b->ops->swiglu(b->backend, &args, act->gate, act->gate, act->up);
    glm52_batch_matmul(b, act->y, act->gate, &layer->down);
}

/* The dense network, or the experts of a sparse layer: every token's own few and one that all share.
 * act.x -> act.y, and act.routed on sparse layers. Experts that are streamed are read while the shared one works. */
static glm52_status feed_forward(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number) {
    const struct glm52_activations *act = b->act;
    if (layer->dense) {
        GLM52_TRY(predict_experts(b, number, false));
        dense_network(b, layer);
        return predict_experts(b, number, true);
    }
    choose_experts(b, layer, act->x, act->router_logits, act->route_ids, act->route_weights);
    if (b->engine->inputs != NULL) glm52_inputs_show_experts(b, layer);
    b->ops->clear(b->backend, act->routed, (size_t)b->rows * b->shape->hidden * sizeof(float));
    if (b->engine->stream == NULL) {
        dense_network(b, layer);
        add_experts(b, layer, b->engine->host.experts + (size_t)number * b->shape->experts);
        return GLM52_OK;
    }
    GLM52_TRY(begin_streaming(b, number));
    dense_network(b, layer);
    GLM52_TRY(predict_experts(b, number, true));
    return add_streamed_experts(b, layer);
}

glm52_status glm52_batch_layer(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number) {
    const glm52_shape *s = b->shape;
    const struct glm52_activations *act = b->act;
    glm52_batch_norm(b, act->x, act->h, layer->attn_norm, s->hidden, s->rms_epsilon);
    attention(b, layer, number);
    add(b, act->h, act->h, act->y, NULL);
    glm52_batch_norm(b, act->x, act->h, layer->ffn_norm, s->hidden, s->rms_epsilon);
    GLM52_TRY(feed_forward(b, layer, number));
    add(b, act->h, act->h, act->y, layer->dense ? NULL : act->routed);
    return GLM52_OK;
}

/* cos and sin of every pair for the batch's positions, in double until the last rounding: at position 10^6 a
 * float angle would be off by 0.03. */
void glm52_batch_rope(const struct glm52_batch *b) {
    const uint32_t pairs = b->shape->rope / 2;
    float *table = b->engine->host.rope_table;
    for (uint32_t j = 0; j < pairs; j++) {
        const double frequency = pow(b->shape->rope_base, -2.0 * j / b->shape->rope);
        for (uint32_t r = 0; r < b->rows; r++) {
            const double angle = (double)(b->position + r) * frequency;
            table[(size_t)r * 2 * pairs + 2 * j] = (float)cos(angle);
            table[(size_t)r * 2 * pairs + 2 * j + 1] = (float)sin(angle);
        }
    }
    b->ops->write(b->backend, b->act->rope_table, table, (size_t)b->rows * b->shape->rope * sizeof(float));
}

/* Logits of count rows from first on. */
static void output_head(const struct glm52_batch *batch, uint32_t first, uint32_t count) {
    struct glm52_batch rows = *batch;
    rows.rows = count;
    const struct glm52_model *model = batch->engine->model;
    const uint32_t hidden = batch->shape->hidden;
    const float *h = batch->act->h + (size_t)first * hidden;
    glm52_batch_norm(&rows, batch->act->x, h, model->output_norm, hidden, batch->shape->rms_epsilon);
    glm52_batch_matmul(&rows, batch->act->logits, batch->act->x, &model->output);
}

void glm52_row_logits(struct glm52_engine *engine, uint32_t row) {
    const struct glm52_batch b = glm52_batch_of(engine, 0, 1);
    output_head(&b, row, 1);
}

struct glm52_batch glm52_batch_of(struct glm52_engine *engine, uint32_t position, uint32_t rows) {
    return (struct glm52_batch){.engine = engine, .ops = engine->ops, .backend = engine->backend,
                                .shape = &engine->model->shape, .act = &engine->act, .rows = rows,
                                .position = position, .selected = engine->act.selected,
                                .k = engine->model->shape.index_top_k};
}

glm52_status glm52_forward(struct glm52_engine *engine, uint32_t position, const int32_t *ids, uint32_t row_count,
                           uint32_t logit_rows, struct glm52_watch watch) {
    const struct glm52_model *model = engine->model;
    struct glm52_batch b = glm52_batch_of(engine, position, row_count);
    b.watch = watch;
    glm52_batch_rope(&b);
    b.ops->write(b.backend, b.act->ids, ids, row_count * sizeof(int32_t));
    const glm52_embed_args embed = {.row_count = row_count, .hidden = model->shape.hidden,
                                    .type = model->embed.type, .vocab = model->shape.vocab};
    b.ops->embed(b.backend, &embed, b.act->h, model->embed.data, b.act->ids);

    for (uint32_t i = 0; i < model->shape.layers; i++) {
        GLM52_TRY(glm52_batch_layer(&b, &model->layers[i], i));
        glm52_observe_layer(&b, &model->layers[i], i);
        const uint32_t done = (uint32_t)((uint64_t)row_count * (i + 1) / model->shape.layers);
        /* A row that is run once more is no progress. */
        const uint32_t reached = b.position + done > engine->held.position ? b.position + done : engine->held.position;
        if (watch.progress != NULL && !watch.progress(watch.user, reached)) {
            GLM52_TRY(b.ops->finish(b.backend));
            return glm52_fail(GLM52_ERR_CANCELLED, "cancelled behind layer %u of %u at position %u", i,
                              model->shape.layers, b.position);
        }
    }
    output_head(&b, row_count - logit_rows, logit_rows);
    return b.ops->finish(b.backend);
}
