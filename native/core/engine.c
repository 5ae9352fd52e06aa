/* engine.c - opening and closing engines: defaults, plan, one allocation of each kind of memory. */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"

static glm52_status fill_defaults(const glm52_model *model, const glm52_engine_options *given,
                                  glm52_engine_options *options_out) {
    glm52_engine_options options = *given;
    if (options.context == 0 || options.context > model->shape.context_max) {
        return glm52_fail(GLM52_ERR_CONTEXT, "%s: context of %u tokens; it must be between 1 and %llu",
                          glm52_model_path(model, 0), options.context,
                          (unsigned long long)model->shape.context_max);
    }
    if (options.kv_type != GLM52_KV_F16 && options.kv_type != GLM52_KV_F32) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "kv_type %u; it must be %d (f16) or %d (f32)", options.kv_type,
                          GLM52_KV_F16, GLM52_KV_F32);
    }
    if (options.quality > 1) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "quality %u; it must be 0 or 1", options.quality);
    }
    if (options.chunk_rows > GLM52_CHUNK_ROWS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "chunk_rows %u; at most %d", options.chunk_rows,
                          GLM52_CHUNK_ROWS_MAX);
    }
    if (options.sessions > GLM52_SESSIONS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "sessions %u; at most %d", options.sessions, GLM52_SESSIONS_MAX);
    }
    if (!(options.latent_epsilon >= 0.0f && options.latent_epsilon <= 1.0f)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "latent_epsilon %g; it must be between 0 and 1",
                          (double)options.latent_epsilon);
    }
    if (options.mtp > 1 || options.drafts > GLM52_DRAFTS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "mtp %u, drafts %u; mtp must be 0 or 1, drafts at most %d", options.mtp,
                          options.drafts, GLM52_DRAFTS_MAX);
    }
    if (options.mtp && model->shape.nextn_layers == 0) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: mtp: the file has no MTP block", glm52_model_path(model, 0));
    }
    if (options.chunk_rows == 0) options.chunk_rows = GLM52_CHUNK_ROWS_DEFAULT;
    if (options.chunk_rows > options.context) options.chunk_rows = options.context;
    /* A batch must have room for drafts and for a row that is run once more. */
    if (options.mtp && options.chunk_rows < GLM52_DRAFTS_MAX + 1) options.chunk_rows = GLM52_DRAFTS_MAX + 1;
    if (options.latent_epsilon == 0.0f) options.latent_epsilon = model->shape.rms_epsilon;
    *options_out = options;
    return GLM52_OK;
}

/* Model, options, backend and plan: all that is there before memory is asked for. */
static glm52_status prepare(struct glm52_engine *engine, const glm52_engine_options *options) {
    GLM52_TRY(fill_defaults(engine->model, options, &engine->options));
    GLM52_TRY(glm52_backend_open(engine->options.backend, engine->options.threads, &engine->backend));
    engine->ops = engine->backend->ops;
    engine->options.backend = engine->ops->name;
    engine->score_rows = glm52_plan_score_rows(&engine->model->shape, &engine->options);
    engine->selected_stride = glm52_plan_selected_stride(&engine->model->shape, &engine->options);
    return glm52_plan_make(engine->model, engine->ops, engine->backend, &engine->options, &engine->plan,
                           &engine->stream_plan);
}

static void place_experts(struct glm52_engine *engine) {
    const glm52_shape *s = &engine->model->shape;
    for (uint32_t i = s->dense_layers; i < glm52_blocks(engine->model, &engine->options); i++) {
        const struct glm52_layer *layer = i < s->layers ? &engine->model->layers[i] : &engine->model->nextn[0].layer;
        for (uint32_t e = 0; e < s->experts; e++) {
            engine->host.experts[(size_t)i * s->experts + e] = (glm52_expert){
                .gate = (const uint8_t *)layer->experts_gate.data + e * layer->experts_gate.group_bytes,
                .up = (const uint8_t *)layer->experts_up.data + e * layer->experts_up.group_bytes,
                .down = (const uint8_t *)layer->experts_down.data + e * layer->experts_down.group_bytes,
            };
        }
    }
}

static glm52_status allocate(struct glm52_engine *engine) {
    const glm52_plan *plan = &engine->plan;
    GLM52_TRY(glm52_adopt_weights(engine));
    GLM52_TRY(glm52_conversation_open(engine, &engine->held));
    engine->host_memory = aligned_alloc(64, glm52_host_lay(engine->model, &engine->options, &engine->host, NULL));
    engine->activation_memory = engine->ops->allocate(engine->backend, (size_t)plan->activations);
    if (engine->host_memory == NULL || engine->activation_memory == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY,
                          "%s: no memory for an engine of context %u: activations %llu, host %llu bytes",
                          glm52_model_path(engine->model, 0), engine->options.context,
                          (unsigned long long)plan->activations, (unsigned long long)plan->host);
    }
    GLM52_TRY(engine->ops->reserve(engine->backend, (size_t)plan->backend_scratch));

    const size_t host_bytes = glm52_host_lay(engine->model, &engine->options, &engine->host, engine->host_memory);
    memset(engine->host_memory, 0, host_bytes);
    glm52_activations_lay(engine->model, &engine->options, &engine->act, engine->activation_memory);
    glm52_draft_policy_start(&engine->drafts, engine->options.drafts);
    if (engine->options.streaming == NULL) {
        place_experts(engine);
        return GLM52_OK;
    }
    glm52_stream_options streaming = *engine->options.streaming;
    streaming.mtp = engine->options.mtp;
    engine->options.streaming = NULL;   /* the caller's, for this call */
    return glm52_stream_open(engine->model, &streaming, &engine->stream_plan, engine->options.chunk_rows,
                             engine->backend, &engine->stream);
}

glm52_status glm52_engine_plan(const glm52_model *model, const glm52_engine_options *options,
                               glm52_plan *plan_out) {
    if (model == NULL || options == NULL || plan_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "engine_plan: NULL pointer");
    }
    /* Only read from: the model is not kept and its reference count not touched. */
    struct glm52_engine engine = {.model = (struct glm52_model *)(uintptr_t)model};
    const glm52_status status = prepare(&engine, options);
    if (status == GLM52_OK) *plan_out = engine.plan;
    if (engine.backend != NULL) engine.ops->close(engine.backend);
    return status;
}

glm52_status glm52_engine_open(glm52_model *model, const glm52_engine_options *options,
                               glm52_engine **engine_out) {
    if (model == NULL || options == NULL || engine_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "engine_open: NULL pointer");
    }
    struct glm52_engine *engine = calloc(1, sizeof(*engine));
    if (engine == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for an engine");
    engine->model = model;
    glm52_model_retain(model);

    glm52_status status = prepare(engine, options);
    if (status == GLM52_OK) status = allocate(engine);
    if (status != GLM52_OK) {
        glm52_engine_close(engine);
        return status;
    }
    *engine_out = engine;
    return GLM52_OK;
}

void glm52_engine_close(glm52_engine *engine) {
    if (engine == NULL) return;
    if (engine->backend != NULL) {
        glm52_inputs_end(engine);
        engine->ops->release(engine->backend, engine->activation_memory);
        glm52_conversation_close(engine, &engine->held);
        engine->ops->close(engine->backend);
    }
    glm52_stream_close(engine->stream);
    free(engine->host_memory);
    free(engine->observed_logits);
    glm52_model_close(engine->model);
    free(engine);
}

const char *glm52_engine_backend(const glm52_engine *engine) {
    return engine == NULL ? "" : engine->ops->name;
}

const glm52_plan *glm52_engine_plan_used(const glm52_engine *engine) {
    return engine == NULL ? NULL : &engine->plan;
}

glm52_status glm52_observe(glm52_engine *engine, glm52_observer *observer, void *user) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "observe: NULL pointer");
    engine->observer = observer;
    engine->observer_user = user;
    return GLM52_OK;
}

glm52_status glm52_observe_logits(glm52_engine *engine, uint32_t first, glm52_logits_observer *observer, void *user) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "observe_logits: NULL pointer");
    if (observer != NULL && engine->observed_logits == NULL) {
        engine->observed_logits = malloc((size_t)engine->model->shape.vocab * sizeof(float));
        if (engine->observed_logits == NULL) {
            return glm52_fail(GLM52_ERR_MEMORY, "no memory for %u logits", engine->model->shape.vocab);
        }
    }
    if (observer == NULL) {
        free(engine->observed_logits);
        engine->observed_logits = NULL;
    }
    engine->logits_observer = observer;
    engine->logits_observer_user = user;
    engine->logits_observed_from = first;
    return GLM52_OK;
}

void glm52_engine_stats(const glm52_engine *engine, glm52_stats *stats_out) {
    if (engine == NULL || stats_out == NULL) return;
    *stats_out = engine->stats;
    stats_out->mtp_length = engine->options.mtp ? engine->drafts.length : 0;
    stats_out->mtp_off = engine->options.mtp && glm52_draft_policy_off(&engine->drafts);
}

glm52_status glm52_engine_stream_stats(const glm52_engine *engine, glm52_stream_stats *stats_out) {
    if (engine == NULL || stats_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "stream_stats: NULL pointer");
    if (engine->stream == NULL) return glm52_fail(GLM52_ERR_UNSUPPORTED, "this engine does not stream");
    glm52_stream_stats_get(engine->stream, stats_out);
    return GLM52_OK;
}

glm52_status glm52_engine_stream_layer(const glm52_engine *engine, uint32_t layer,
                                       glm52_stream_layer_stats *stats_out) {
    if (engine == NULL || stats_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "stream_layer: NULL pointer");
    if (engine->stream == NULL) return glm52_fail(GLM52_ERR_UNSUPPORTED, "this engine does not stream");
    if (layer >= engine->model->shape.layers) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "stream_layer: layer %u of %u", layer, engine->model->shape.layers);
    }
    *stats_out = engine->stream->layer_stats[layer];
    return GLM52_OK;
}

glm52_status glm52_engine_shrink_cache(glm52_engine *engine, uint64_t cache_bytes, uint64_t *now_out) {
    if (engine == NULL || now_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "shrink_cache: NULL pointer");
    if (engine->stream == NULL) return glm52_fail(GLM52_ERR_UNSUPPORTED, "this engine does not stream");
    return glm52_stream_shrink(engine->stream, cache_bytes, now_out);
}

glm52_status glm52_engine_flush_usage(glm52_engine *engine) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "flush_usage: NULL pointer");
    return engine->stream == NULL ? GLM52_OK : glm52_stream_flush(engine->stream);
}

const char *glm52_engine_stream_warnings(const glm52_engine *engine) {
    return engine == NULL || engine->stream == NULL ? "" : engine->stream->warnings;
}
