/* plan.c - how much memory an engine needs and where each array of a batch lies in it. One function lays the
 * arrays out; the plan counts with it and the engine places with it, so the two can't differ. */
#include <string.h>

#include "engine.h"
#include "error.h"

#define ALIGNMENT 64u

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static uint32_t smaller(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* The next array of count elements; cursor moves behind it. With base NULL nothing is placed. */
static void *take(uint8_t *base, size_t *cursor, uint64_t count, size_t element_bytes) {
    void *place = base == NULL ? NULL : base + *cursor;
    *cursor += ((size_t)count * element_bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return place;
}

uint32_t glm52_plan_score_rows(const glm52_shape *shape, const glm52_engine_options *options) {
    if (options->context <= shape->index_top_k) return 0;
    const uint64_t rows = GLM52_SCORE_BYTES_MAX / ((uint64_t)options->context * sizeof(float));
    return rows == 0 ? 1 : (uint32_t)(rows < options->chunk_rows ? rows : options->chunk_rows);
}

uint32_t glm52_plan_selected_stride(const glm52_shape *shape, const glm52_engine_options *options) {
    return smaller(shape->index_top_k, options->context);
}

/* Rows whose logits one batch may want. */
static uint32_t logit_rows(const glm52_engine_options *options) {
    return options->mtp ? 1 + GLM52_DRAFTS_MAX : 1;
}

size_t glm52_activations_lay(const struct glm52_model *model, const glm52_engine_options *options,
                             struct glm52_activations *act_out, uint8_t *base) {
    const glm52_shape *s = &model->shape;
    const uint64_t rows = options->chunk_rows;
    const uint32_t widest = larger(s->dense_layers > 0 ? s->dense_ff : 0, s->shared_ff);
    const uint32_t selected = glm52_plan_selected_stride(s, options);
    const bool has_pilot = options->streaming != NULL && options->streaming->pilot != GLM52_PILOT_OFF;
    const uint64_t mtp_rows = options->mtp ? rows : 0, mtp_row = options->mtp ? 1 : 0;
    const uint64_t pilot_rows = has_pilot ? smaller(GLM52_PILOT_ROWS_MAX, options->chunk_rows) : 0;
    size_t at = 0;
    *act_out = (struct glm52_activations){
        .ids = take(base, &at, rows, sizeof(int32_t)),
        .rope_table = take(base, &at, rows * s->rope, sizeof(float)),
        .h = take(base, &at, rows * s->hidden, sizeof(float)),
        .x = take(base, &at, rows * s->hidden, sizeof(float)),
        .y = take(base, &at, rows * s->hidden, sizeof(float)),
        .routed = take(base, &at, rows * s->hidden, sizeof(float)),
        .q_a = take(base, &at, rows * s->q_lora, sizeof(float)),
        .kv_a = take(base, &at, rows * (s->kv_lora + s->rope), sizeof(float)),
        .q = take(base, &at, rows * s->heads * s->key_mla, sizeof(float)),
        .q_latent = take(base, &at, rows * s->heads * s->kv_lora, sizeof(float)),
        .o_latent = take(base, &at, rows * s->heads * s->kv_lora, sizeof(float)),
        .o = take(base, &at, rows * s->heads * s->value_mla, sizeof(float)),
        .index_q = take(base, &at, rows * s->index_heads * s->index_key, sizeof(float)),
        .index_k = take(base, &at, rows * s->index_key, sizeof(float)),
        .index_w = take(base, &at, rows * s->index_heads, sizeof(float)),
        .scores = take(base, &at, (uint64_t)glm52_plan_score_rows(s, options) * options->context, sizeof(float)),
        .selected = take(base, &at, rows * selected, sizeof(int32_t)),
        .gate = take(base, &at, rows * widest, sizeof(float)),
        .up = take(base, &at, rows * widest, sizeof(float)),
        .router_logits = take(base, &at, rows * s->experts, sizeof(float)),
        .route_ids = take(base, &at, rows * s->experts_used, sizeof(int32_t)),
        .route_weights = take(base, &at, rows * s->experts_used, sizeof(float)),
        .logits = take(base, &at, (uint64_t)logit_rows(options) * s->vocab, sizeof(float)),
        .mtp_input = take(base, &at, mtp_rows * 2 * s->hidden, sizeof(float)),
        .mtp_hidden = take(base, &at, mtp_rows * s->hidden, sizeof(float)),
        .mtp_out = take(base, &at, mtp_row * s->hidden, sizeof(float)),
        .mtp_selected = take(base, &at, mtp_row * (selected + GLM52_DRAFTS_MAX), sizeof(int32_t)),
        .expert_out = take(base, &at, options->streaming != NULL ? (uint64_t)s->experts_used * s->hidden : 0,
                           sizeof(float)),
        .pilot_x = take(base, &at, pilot_rows * s->hidden, sizeof(float)),
        .pilot_logits = take(base, &at, pilot_rows * s->experts, sizeof(float)),
        .pilot_ids = take(base, &at, pilot_rows * s->experts_used, sizeof(int32_t)),
        .pilot_weights = take(base, &at, pilot_rows * s->experts_used, sizeof(float)),
    };
    return at;
}

static size_t matrix_scratch(const struct glm52_ops *ops, const glm52_backend *backend,
                             const glm52_engine_options *options, const struct glm52_matrix *matrix) {
    if (matrix->data == NULL) return 0;
    const glm52_matmul_args args = {
        .row_count = options->chunk_rows, .in_count = matrix->in_count, .out_count = matrix->out_count,
        .group_count = matrix->group_count, .type = matrix->type, .exact = options->quality,
        .x_row_stride = matrix->group_count * matrix->in_count, .x_group_stride = matrix->in_count,
        .out_row_stride = matrix->group_count * matrix->out_count, .out_group_stride = matrix->out_count};
    return ops->matmul_scratch(backend, &args);
}

static size_t largest(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t layer_scratch(const struct glm52_model *model, const struct glm52_ops *ops,
                            const glm52_backend *backend, const glm52_engine_options *options,
                            const struct glm52_layer *layer) {
    const struct glm52_matrix *matrices[] = {
        &layer->q_a, &layer->q_b, &layer->kv_a, &layer->k_b, &layer->v_b, &layer->attn_out, &layer->index_q,
        &layer->index_k, &layer->index_w, &layer->gate, &layer->up, &layer->down,
    };
    size_t bytes = 0;
    for (size_t i = 0; i < sizeof(matrices) / sizeof(matrices[0]); i++) {
        bytes = largest(bytes, matrix_scratch(ops, backend, options, matrices[i]));
    }
    if (layer->dense) return bytes;

    bytes = largest(bytes, matrix_scratch(ops, backend, options, &layer->router));
    const glm52_shape *s = &model->shape;
    const glm52_moe_args moe = {
        .row_count = options->chunk_rows, .expert_count = s->experts, .used_count = s->experts_used,
        .in_count = s->hidden, .ff_count = s->expert_ff, .gate_type = layer->experts_gate.type,
        .up_type = layer->experts_up.type, .down_type = layer->experts_down.type,
        .exact = options->quality, .x_stride = s->hidden, .out_stride = s->hidden};
    bytes = largest(bytes, ops->moe_scratch(backend, &moe));
    if (options->streaming == NULL) return bytes;
    glm52_moe_args apart = moe;   /* one token's experts, each in a row of its own */
    apart.row_count = s->experts_used;
    apart.used_count = 1;
    return largest(bytes, ops->moe_scratch(backend, &apart));
}

/* The operations of attention and selection at the context's end, where they need the most. */
static size_t context_scratch(const glm52_shape *s, const struct glm52_ops *ops, const glm52_backend *backend,
                              const glm52_engine_options *options) {
    const uint32_t rows = smaller(options->chunk_rows, options->context);
    const uint32_t position = options->context - rows;
    const uint32_t selected = glm52_plan_selected_stride(s, options);
    const glm52_attention_args attention = {
        .row_count = rows, .head_count = s->heads, .latent = s->kv_lora, .rope_size = s->rope,
        .position = position, .k = s->index_top_k + (options->mtp ? GLM52_DRAFTS_MAX : 0),
        .kv_type = options->kv_type, .selected_stride = selected};
    const glm52_index_score_args score = {
        .row_count = rows, .head_count = s->index_heads, .key_size = s->index_key, .position = position,
        .kv_type = options->kv_type, .score_stride = options->context};
    const glm52_top_k_args top_k = {.row_count = rows, .position = position, .k = s->index_top_k,
                                    .score_stride = options->context, .selected_stride = selected};
    const size_t bytes = largest(ops->attention_scratch(backend, &attention),
                                 ops->index_score_scratch(backend, &score));
    return largest(bytes, ops->top_k_scratch(backend, &top_k));
}

/* Every operation that one batch calls, at its largest. */
static size_t scratch_bytes(const struct glm52_model *model, const struct glm52_ops *ops,
                            const glm52_backend *backend, const glm52_engine_options *options) {
    const glm52_shape *s = &model->shape;
    size_t bytes = context_scratch(s, ops, backend, options);
    for (uint32_t i = 0; i < s->layers; i++) {
        bytes = largest(bytes, layer_scratch(model, ops, backend, options, &model->layers[i]));
    }
    glm52_engine_options few_rows = *options;
    few_rows.chunk_rows = logit_rows(options);
    bytes = largest(bytes, matrix_scratch(ops, backend, &few_rows, &model->output));
    if (options->mtp) {
        const struct glm52_nextn *nextn = &model->nextn[0];
        bytes = largest(bytes, layer_scratch(model, ops, backend, options, &nextn->layer));
        bytes = largest(bytes, matrix_scratch(ops, backend, options, &nextn->eh_proj));
        bytes = largest(bytes, matrix_scratch(ops, backend, &few_rows, &nextn->head));
    }

    const uint32_t rows = options->chunk_rows;
    const glm52_embed_args embed = {.row_count = rows, .hidden = s->hidden, .type = model->embed.type,
                                    .vocab = s->vocab};
    const glm52_rms_norm_args norm = {.row_count = rows, .row_size = s->hidden, .x_stride = s->hidden,
                                      .out_stride = s->hidden};
    const glm52_rope_args rope = {.row_count = rows, .head_count = s->heads, .rope_size = s->rope,
                                  .row_stride = s->heads * s->key_mla, .head_stride = s->key_mla};
    const glm52_kv_store_args kv = {.row_count = rows, .latent = s->kv_lora, .rope_size = s->rope,
                                    .kv_type = options->kv_type, .x_stride = s->kv_lora + s->rope};
    const glm52_index_store_args index = {.row_count = rows, .key_size = s->index_key, .rope_size = s->rope,
                                          .kv_type = options->kv_type, .x_stride = s->index_key};
    const glm52_router_args router = {.row_count = rows, .expert_count = s->experts,
                                      .used_count = s->experts_used, .logits_stride = s->experts};
    const glm52_swiglu_args swiglu = {.row_count = rows, .row_size = larger(s->dense_ff, s->shared_ff)};
    const glm52_add_args add = {.count = (uint64_t)rows * s->hidden};
    const size_t others[] = {
        ops->embed_scratch(backend, &embed), ops->rms_norm_scratch(backend, &norm),
        ops->rope_scratch(backend, &rope), ops->kv_store_scratch(backend, &kv),
        ops->index_store_scratch(backend, &index), ops->router_scratch(backend, &router),
        ops->swiglu_scratch(backend, &swiglu), ops->add_scratch(backend, &add)};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) bytes = largest(bytes, others[i]);
    return bytes;
}

size_t glm52_host_lay(const struct glm52_model *model, const glm52_engine_options *options,
                      struct glm52_host *host_out, uint8_t *base) {
    const glm52_shape *s = &model->shape;
    const uint64_t rows = options->chunk_rows;
    size_t at = 0;
    *host_out = (struct glm52_host){
        .logits = take(base, &at, s->vocab, sizeof(float)),
        .rope_table = take(base, &at, rows * s->rope, sizeof(float)),
        .experts = take(base, &at, (uint64_t)glm52_blocks(model, options) * s->experts, sizeof(glm52_expert)),
        .ahead_logits = take(base, &at, options->mtp ? (uint64_t)logit_rows(options) * s->vocab : 0, sizeof(float)),
        .hidden = take(base, &at, options->mtp ? s->hidden : 0, sizeof(float)),
        .selected = take(base, &at, options->mtp ? glm52_plan_selected_stride(s, options) : 0, sizeof(int32_t)),
        .observed_ids = take(base, &at, rows * s->experts_used, sizeof(int32_t)),
        .observed_weights = take(base, &at, rows * s->experts_used, sizeof(float)),
        .observed_selected = take(base, &at, rows * glm52_plan_selected_stride(s, options), sizeof(int32_t)),
        .observed_hidden = take(base, &at, rows * s->hidden, sizeof(float)),
        .observed_route_margins = take(base, &at, rows, sizeof(float)),
        .observed_select_margins = take(base, &at, rows, sizeof(float)),
        .observed_routes = take(base, &at, s->experts, sizeof(float)),
        .observed_scores = take(base, &at, options->context, sizeof(float)),
    };
    return at;
}

size_t glm52_conversation_lay(const struct glm52_model *model, const glm52_engine_options *options,
                              struct glm52_conversation *held_out, uint8_t *base) {
    size_t at = 0;
    held_out->tokens = take(base, &at, options->context, sizeof(int32_t));
    held_out->kv_cache = take(base, &at, glm52_blocks(model, options), sizeof(void *));
    held_out->index_cache = take(base, &at, glm52_blocks(model, options), sizeof(void *));
    return at;
}

size_t glm52_caches_lay(const struct glm52_model *model, const glm52_engine_options *options,
                        struct glm52_conversation *held, uint8_t *base, size_t *index_bytes_out) {
    const glm52_shape *s = &model->shape;
    const size_t element_bytes = options->kv_type == GLM52_KV_F32 ? 4 : 2;
    size_t at = 0;
    for (uint32_t i = 0; i < s->layers; i++) {
        void *rows = take(base, &at, (uint64_t)options->context * (s->kv_lora + s->rope), element_bytes);
        if (held != NULL) held->kv_cache[i] = rows;
    }
    const size_t kv_bytes = at;
    for (uint32_t i = 0; i < s->layers; i++) {
        if (!s->index_full[i]) continue;
        void *rows = take(base, &at, (uint64_t)options->context * s->index_key, element_bytes);
        if (held != NULL) held->index_cache[i] = rows;
    }
    *index_bytes_out = at - kv_bytes;
    if (!options->mtp) return at;
    void *mtp_rows = take(base, &at, (uint64_t)options->context * (s->kv_lora + s->rope), element_bytes);
    void *mtp_index = take(base, &at, (uint64_t)options->context * s->index_key, element_bytes);
    void *carry = take(base, &at, s->hidden, sizeof(float));
    if (held != NULL) {
        held->kv_cache[s->layers] = mtp_rows;
        held->index_cache[s->layers] = mtp_index;
        held->carry = carry;
    }
    return at;
}

uint64_t glm52_plan_session(const struct glm52_model *model, const glm52_engine_options *options) {
    struct glm52_conversation held;
    size_t index_bytes = 0;
    return glm52_caches_lay(model, options, NULL, NULL, &index_bytes) +
           glm52_conversation_lay(model, options, &held, NULL) + (uint64_t)model->shape.vocab * sizeof(float);
}

/* The streaming part: what an automatic cache may take is what the rest leaves of the share of memory that the rules
 * allow; a plan that does not fit in memory is refused. */
static glm52_status plan_streaming(const struct glm52_model *model, const glm52_engine_options *options,
                                   glm52_plan *plan, glm52_stream_plan *stream_out) {
    glm52_stream_options given = *options->streaming;
    const glm52_stream_options *streaming = &given;
    given.mtp = options->mtp;
    const uint64_t memory = streaming->memory_bytes > 0 ? streaming->memory_bytes : glm52_machine_memory();
    const uint64_t rest = plan->kv_cache + plan->index_cache + plan->activations + plan->backend_scratch + plan->host +
                          plan->mtp + plan->sessions;
    const uint64_t allowed = memory / 100 * GLM52_CACHE_PERCENT_DEFAULT;

    /* Buffers depend on the slots, slots on what the buffers leave: asked twice, first with the most there can be. */
    GLM52_TRY(glm52_stream_plan_make(model, streaming, options->chunk_rows, UINT64_MAX, stream_out));
    const uint64_t nextn_bytes = options->mtp ? stream_out->nextn_bytes : 0;
    const uint64_t fixed = stream_out->other_bytes + nextn_bytes + rest + stream_out->full_bytes +
                           stream_out->buffer_bytes;
    const uint64_t left = allowed > fixed ? allowed - fixed : 0;
    GLM52_TRY(glm52_stream_plan_make(model, streaming, options->chunk_rows, left, stream_out));
    plan->weights_mapped = stream_out->other_bytes + nextn_bytes;
    plan->expert_cache = stream_out->cache_bytes + stream_out->full_bytes;
    plan->stream_buffers = stream_out->buffer_bytes;
    plan->total = rest + plan->weights_mapped + plan->expert_cache + plan->stream_buffers;
    if (plan->total > memory) {
        return glm52_fail(GLM52_ERR_BUDGET,
                          "%s: %llu bytes needed, %llu there: weights %llu, expert cache %llu, caches of the context "
                          "%llu, one batch %llu, the rest %llu",
                          glm52_model_path(model, 0), (unsigned long long)plan->total, (unsigned long long)memory,
                          (unsigned long long)plan->weights_mapped, (unsigned long long)plan->expert_cache,
                          (unsigned long long)(plan->kv_cache + plan->index_cache + plan->mtp +
                                               plan->sessions),
                          (unsigned long long)(plan->activations + plan->backend_scratch),
                          (unsigned long long)(plan->host + plan->stream_buffers));
    }
    return GLM52_OK;
}

glm52_status glm52_plan_make(const struct glm52_model *model, const struct glm52_ops *ops,
                             const glm52_backend *backend, const glm52_engine_options *options,
                             glm52_plan *plan_out, glm52_stream_plan *stream_out) {
    struct glm52_activations act;
    struct glm52_host host;
    struct glm52_conversation held;
    size_t index_bytes = 0;
    glm52_engine_options trunk = *options;
    trunk.mtp = 0;
    const size_t cache_bytes = glm52_caches_lay(model, &trunk, NULL, NULL, &index_bytes);
    glm52_plan plan = {
        .weights_mapped = glm52_model_file_bytes(model),
        .kv_cache = cache_bytes - index_bytes,
        .index_cache = index_bytes,
        .mtp = glm52_caches_lay(model, options, NULL, NULL, &index_bytes) - cache_bytes,
        .activations = glm52_activations_lay(model, options, &act, NULL),
        .backend_scratch = scratch_bytes(model, ops, backend, options),
        .host = glm52_host_lay(model, options, &host, NULL) + glm52_conversation_lay(model, options, &held, NULL),
        .sessions = options->sessions * glm52_plan_session(model, options),
    };
    plan.total = plan.weights_mapped + plan.kv_cache + plan.index_cache + plan.activations +
                 plan.backend_scratch + plan.host + plan.mtp + plan.sessions;
    if (options->streaming != NULL) GLM52_TRY(plan_streaming(model, options, &plan, stream_out));
    *plan_out = plan;
    return GLM52_OK;
}
