/* rows.c - the cache rows of a conversation as bytes, for checkpoints: what one layer keeps of each token. */
#include <string.h>

#include "engine.h"
#include "error.h"

/* Where rows of a kind lie in a conversation; NULL if the layer has none. */
static void *rows_of(const struct glm52_engine *engine, const struct glm52_conversation *held, uint32_t rows,
                     uint32_t layer) {
    if (rows == GLM52_ROWS_KV) return held->kv_cache[layer];
    if (rows == GLM52_ROWS_INDEX) return held->index_cache[layer];
    return layer == engine->model->shape.layers ? held->carry : NULL;
}

/* How many rows of a kind the engine's conversation has. */
static uint32_t rows_held(const struct glm52_engine *engine, uint32_t rows, uint32_t layer) {
    if (rows == GLM52_ROWS_HIDDEN) return engine->held.has_carry;
    return layer == engine->model->shape.layers ? engine->held.mtp_rows : engine->held.position;
}

static glm52_status check_kind(const struct glm52_engine *engine, uint32_t rows, uint32_t layer) {
    if (rows >= GLM52_ROWS_COUNT) return glm52_fail(GLM52_ERR_ARGUMENT, "rows of kind %u: there is none", rows);
    const uint32_t blocks = glm52_blocks(engine->model, &engine->options);
    if (layer >= blocks) return glm52_fail(GLM52_ERR_ARGUMENT, "rows of layer %u of %u", layer, blocks);
    return GLM52_OK;
}

static size_t row_bytes(const struct glm52_engine *engine, uint32_t rows) {
    const glm52_shape *s = &engine->model->shape;
    if (rows == GLM52_ROWS_HIDDEN) return s->hidden * sizeof(float);
    const size_t element_bytes = engine->options.kv_type == GLM52_KV_F32 ? 4 : 2;
    return element_bytes * (rows == GLM52_ROWS_KV ? s->kv_lora + s->rope : s->index_key);
}

/* Rows first .. first + count - 1 of end that there may be. */
static glm52_status check_range(const void *place, uint32_t rows, uint32_t layer, uint32_t first, uint32_t count,
                                uint32_t end) {
    if (place == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "layer %u has no rows of kind %u", layer, rows);
    if (first > end || count > end - first) {
        return glm52_fail(GLM52_ERR_CONTEXT, "%u rows from row %u on: there are %u", count, first, end);
    }
    return GLM52_OK;
}

glm52_status glm52_rows_bytes(const glm52_engine *engine, uint32_t rows, uint32_t layer, uint64_t *bytes_out) {
    if (engine == NULL || bytes_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "rows_bytes: NULL pointer");
    GLM52_TRY(check_kind(engine, rows, layer));
    *bytes_out = rows_of(engine, &engine->held, rows, layer) == NULL ? 0 : row_bytes(engine, rows);
    return GLM52_OK;
}

bool glm52_mtp_complete(glm52_engine *engine) {
    if (engine == NULL || !engine->options.mtp) return false;
    glm52_mtp_settle(engine);
    return glm52_mtp_ready(engine);
}

glm52_status glm52_rows_read(const glm52_engine *engine, uint32_t rows, uint32_t layer, uint32_t first,
                             uint32_t count, void *out) {
    if (engine == NULL || out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "rows_read: NULL pointer");
    GLM52_TRY(check_kind(engine, rows, layer));
    const uint8_t *from = rows_of(engine, &engine->held, rows, layer);
    GLM52_TRY(check_range(from, rows, layer, first, count, rows_held(engine, rows, layer)));
    const size_t bytes = row_bytes(engine, rows);
    engine->ops->read(engine->backend, out, from + first * bytes, count * bytes);
    return GLM52_OK;
}

glm52_status glm52_session_rows_write(glm52_session *session, uint32_t rows, uint32_t layer, uint32_t first,
                                      uint32_t count, const void *data) {
    if (session == NULL || data == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "session_rows_write: NULL pointer");
    const struct glm52_engine *engine = session->engine;
    GLM52_TRY(check_kind(engine, rows, layer));
    uint8_t *to = rows_of(engine, &session->held, rows, layer);
    const uint32_t end = rows == GLM52_ROWS_HIDDEN ? 1 : engine->options.context;
    GLM52_TRY(check_range(to, rows, layer, first, count, end));
    const size_t bytes = row_bytes(engine, rows);
    engine->ops->write(engine->backend, to + first * bytes, data, count * bytes);
    return GLM52_OK;
}

glm52_status glm52_session_restore(glm52_session *session, const int32_t *tokens, uint32_t count,
                                   const float *logits, bool has_mtp) {
    if (session == NULL || (tokens == NULL && count > 0) || (logits != NULL && count == 0)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "session_restore: NULL pointer, or logits of no token");
    }
    const struct glm52_engine *engine = session->engine;
    const uint32_t vocab = engine->model->shape.vocab;
    if (count > engine->options.context) {
        return glm52_fail(GLM52_ERR_CONTEXT, "%u token%s: the context holds %u", count,
                          count == 1 ? "" : "s", engine->options.context);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (tokens[i] >= 0 && (uint32_t)tokens[i] < vocab) continue;
        return glm52_fail(GLM52_ERR_ARGUMENT, "token %d at index %u is outside the vocabulary of %u", tokens[i], i,
                          vocab);
    }
    if (count > 0) memcpy(session->held.tokens, tokens, count * sizeof(int32_t));
    if (logits != NULL) memcpy(session->logits, logits, vocab * sizeof(float));
    session->held.position = count;
    session->held.has_logits = logits != NULL;
    session->held.has_carry = has_mtp && count > 0;
    session->held.mtp_rows = has_mtp && count > 0 ? count - 1 : 0;
    return GLM52_OK;
}
