/* conversation.c - the memory of a conversation, and sessions: conversations beside the one that an engine holds.
 *
 * All that differs between two conversations of an engine is in one struct, so that parking one is an exchange of
 * structs. Logits are the exception: callers look at the engine's, so their contents are exchanged. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "error.h"

#define COPY_BYTES (1u << 20)

glm52_status glm52_conversation_open(const struct glm52_engine *engine, struct glm52_conversation *held_out) {
    const struct glm52_model *model = engine->model;
    const glm52_engine_options *options = &engine->options;
    struct glm52_conversation held = {0};
    size_t index_bytes = 0;
    const size_t cache_bytes = glm52_caches_lay(model, options, NULL, NULL, &index_bytes);
    const size_t host_bytes = glm52_conversation_lay(model, options, &held, NULL);
    held.host_memory = aligned_alloc(64, host_bytes);
    held.cache_memory = engine->ops->allocate(engine->backend, cache_bytes);
    if (held.host_memory == NULL || held.cache_memory == NULL) {
        glm52_conversation_close(engine, &held);
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for a conversation of context %u: caches %llu, tables %llu "
                          "bytes", glm52_model_path(model, 0), options->context, (unsigned long long)cache_bytes,
                          (unsigned long long)host_bytes);
    }
    memset(held.host_memory, 0, host_bytes);
    glm52_conversation_lay(model, options, &held, held.host_memory);
    glm52_caches_lay(model, options, &held, held.cache_memory, &index_bytes);
    *held_out = held;
    return GLM52_OK;
}

void glm52_conversation_close(const struct glm52_engine *engine, struct glm52_conversation *held) {
    engine->ops->release(engine->backend, held->cache_memory);
    free(held->host_memory);
    *held = (struct glm52_conversation){0};
}

/* ---- sessions ---- */

/* What the plan is when count sessions are open; those that the options reserved are in it anyway. */
static uint64_t sessions_bytes(const struct glm52_engine *engine, uint32_t count) {
    const uint32_t reserved = engine->options.sessions;
    return glm52_plan_session(engine->model, &engine->options) * (count > reserved ? count : reserved);
}

static void count_sessions(struct glm52_engine *engine, uint32_t count) {
    const uint64_t bytes = sessions_bytes(engine, count);
    engine->plan.total = engine->plan.total - engine->plan.sessions + bytes;
    engine->plan.sessions = bytes;
    engine->sessions_open = count;
}

/* Whether the machine has room for one session more. Weights that an engine maps whole are left out: the system can
 * drop and read them again; what a streaming engine maps is meant to stay. */
static glm52_status admit(const struct glm52_engine *engine) {
    const uint64_t bytes = sessions_bytes(engine, engine->sessions_open + 1);
    if (bytes == engine->plan.sessions) return GLM52_OK;
    uint64_t memory = glm52_machine_memory();
    uint64_t total = engine->plan.total - engine->plan.sessions + bytes;
    if (engine->stream == NULL) total -= engine->plan.weights_mapped;
    else if (engine->stream->options.memory_bytes > 0) memory = engine->stream->options.memory_bytes;
    if (total <= memory) return GLM52_OK;
    return glm52_fail(GLM52_ERR_BUDGET, "a session more would make it %u, %llu bytes each: %llu bytes needed with the "
                      "engine's, %llu there", engine->sessions_open + 1,
                      (unsigned long long)glm52_plan_session(engine->model, &engine->options),
                      (unsigned long long)total, (unsigned long long)memory);
}

glm52_status glm52_session_open(glm52_engine *engine, glm52_session **session_out) {
    if (engine == NULL || session_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "session_open: NULL pointer");
    GLM52_TRY(admit(engine));
    struct glm52_session *session = calloc(1, sizeof(*session));
    if (session == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a session");
    session->engine = engine;
    session->logits = malloc(engine->model->shape.vocab * sizeof(float));
    glm52_status status = session->logits != NULL ? GLM52_OK : glm52_fail(GLM52_ERR_MEMORY, "no memory for logits");
    if (status == GLM52_OK) status = glm52_conversation_open(engine, &session->held);
    if (status != GLM52_OK) {
        free(session->logits);
        free(session);
        return status;
    }
    memset(session->logits, 0, engine->model->shape.vocab * sizeof(float));
    count_sessions(engine, engine->sessions_open + 1);
    *session_out = session;
    return GLM52_OK;
}

void glm52_session_close(glm52_session *session) {
    if (session == NULL) return;
    glm52_conversation_close(session->engine, &session->held);
    count_sessions(session->engine, session->engine->sessions_open - 1);
    free(session->logits);
    free(session);
}

static glm52_status check_pair(const glm52_engine *engine, const glm52_session *session, const char *what) {
    if (engine == NULL || session == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "%s: NULL pointer", what);
    if (session->engine == engine) return GLM52_OK;
    return glm52_fail(GLM52_ERR_ARGUMENT, "%s: the session belongs to another engine", what);
}

glm52_status glm52_session_swap(glm52_engine *engine, glm52_session *session) {
    GLM52_TRY(check_pair(engine, session, "session_swap"));
    glm52_mtp_settle(engine);
    const struct glm52_conversation held = engine->held;
    engine->held = session->held;
    session->held = held;
    for (uint32_t i = 0; i < engine->model->shape.vocab; i++) {
        const float logit = engine->host.logits[i];
        engine->host.logits[i] = session->logits[i];
        session->logits[i] = logit;
    }
    return GLM52_OK;
}

/* Over the host, which every backend can do. */
static void copy_rows(const struct glm52_engine *engine, void *to, const void *from, size_t bytes, uint8_t *buffer) {
    for (size_t at = 0; at < bytes; at += COPY_BYTES) {
        const size_t part = bytes - at < COPY_BYTES ? bytes - at : COPY_BYTES;
        engine->ops->read(engine->backend, buffer, (const uint8_t *)from + at, part);
        engine->ops->write(engine->backend, (uint8_t *)to + at, buffer, part);
    }
}

glm52_status glm52_session_copy(glm52_engine *engine, glm52_session *session) {
    GLM52_TRY(check_pair(engine, session, "session_copy"));
    glm52_mtp_settle(engine);
    struct glm52_conversation *to = &session->held;
    const struct glm52_conversation *from = &engine->held;
    const glm52_shape *s = &engine->model->shape;
    to->position = 0;
    to->has_logits = false;
    uint8_t *buffer = malloc(COPY_BYTES);
    if (buffer == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory to copy a conversation");
    const size_t element_bytes = engine->options.kv_type == GLM52_KV_F32 ? 4 : 2;
    const size_t kv_bytes = (size_t)from->position * (s->kv_lora + s->rope) * element_bytes;
    const size_t index_bytes = (size_t)from->position * s->index_key * element_bytes;
    for (uint32_t i = 0; i < glm52_blocks(engine->model, &engine->options); i++) {
        copy_rows(engine, to->kv_cache[i], from->kv_cache[i], kv_bytes, buffer);
        if (from->index_cache[i] == NULL) continue;
        copy_rows(engine, to->index_cache[i], from->index_cache[i], index_bytes, buffer);
    }
    if (from->carry != NULL) copy_rows(engine, to->carry, from->carry, s->hidden * sizeof(float), buffer);
    free(buffer);
    memcpy(to->tokens, from->tokens, from->position * sizeof(int32_t));
    memcpy(session->logits, engine->host.logits, s->vocab * sizeof(float));
    to->position = from->position;
    to->has_carry = from->has_carry;
    to->mtp_rows = from->mtp_rows;
    to->has_logits = from->has_logits;
    return GLM52_OK;
}

uint32_t glm52_session_position(const glm52_session *session) {
    return session == NULL ? 0 : session->held.position;
}

const int32_t *glm52_session_tokens(const glm52_session *session) {
    return session == NULL ? NULL : session->held.tokens;
}

uint64_t glm52_session_bytes(const glm52_engine *engine) {
    return engine == NULL ? 0 : glm52_plan_session(engine->model, &engine->options);
}
