/* session.c - the conversation an engine holds: feeding tokens, going back, what is known of the last one.
 *
 * The state is the position. Cache rows, tokens and logits beyond it mean nothing, so that going back is a new
 * number, and a batch that fails or is cancelled leaves no trace: the position moves when a batch is done. */
#include <string.h>
#include <time.h>

#include "engine.h"
#include "error.h"

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static glm52_status check_ids(const glm52_engine *engine, const int32_t *ids, uint32_t count) {
    if (ids == NULL || count == 0) return glm52_fail(GLM52_ERR_ARGUMENT, "no tokens to feed");
    const uint32_t vocab = engine->model->shape.vocab;
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "token %d at index %u is outside the vocabulary of %u", ids[i],
                              i, vocab);
        }
    }
    const uint32_t context = engine->options.context;
    if (count > context - engine->held.position) {
        return glm52_fail(GLM52_ERR_CONTEXT, "%u tokens at position %u: the context holds %u tokens", count,
                          engine->held.position, context);
    }
    return GLM52_OK;
}

/* After a fault nothing is being read, and what the call counted is forgotten; after a cancellation it is kept. */
static void settle_stream(struct glm52_stream *stream, glm52_status status, uint32_t rows) {
    if (status == GLM52_OK) glm52_stream_tick(stream, rows);
    else if (status == GLM52_ERR_CANCELLED) glm52_stream_cancel(stream);
    else glm52_stream_fail(stream);
}

/* Rows of the next batch of a prompt of which left tokens are left. A short one may go token by token when experts
 * are streamed: the bits are the same, the reads another. */
static uint32_t batch_rows(const glm52_engine *engine, uint32_t left) {
    const struct glm52_stream *stream = engine->stream;
    if (stream != NULL && !engine->options.quality &&
        glm52_prefill_by_token(engine->options.context, engine->held.position, left,
                               stream->options.token_prefill_max)) {
        return 1;
    }
    return left < engine->options.chunk_rows ? left : engine->options.chunk_rows;
}

/* One batch: on success the engine stands behind it and has its logits, else it is as it was. */
static glm52_status feed(glm52_engine *engine, const int32_t *ids, uint32_t count, struct glm52_watch watch) {
    if (engine->stream != NULL) glm52_stream_mark(engine->stream);
    const glm52_status status = glm52_forward(engine, ids, count, watch);
    if (status == GLM52_ERR_CANCELLED) engine->stats.cancelled++;
    if (engine->stream != NULL) settle_stream(engine->stream, status, count);
    GLM52_TRY(status);
    engine->ops->read(engine->backend, engine->host.logits, engine->act.logits,
                      engine->model->shape.vocab * sizeof(float));
    memcpy(engine->held.tokens + engine->held.position, ids, count * sizeof(int32_t));
    engine->held.position += count;
    engine->held.has_logits = true;
    return GLM52_OK;
}

glm52_status glm52_prefill(glm52_engine *engine, const int32_t *ids, uint32_t count,
                           glm52_progress *progress, void *user, uint32_t *completed_out) {
    if (engine == NULL || completed_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "prefill: NULL pointer");
    }
    *completed_out = 0;
    GLM52_TRY(check_ids(engine, ids, count));
    const struct glm52_watch watch = {.progress = progress, .user = user};
    if (engine->stream != NULL) glm52_stream_turn(engine->stream);
    const uint64_t start = now_ns();
    glm52_status status = GLM52_OK;
    uint32_t done = 0;
    while (done < count && status == GLM52_OK) {
        if (progress != NULL && !progress(user, engine->held.position)) {
            engine->stats.cancelled++;
            status = glm52_fail(GLM52_ERR_CANCELLED, "cancelled at position %u", engine->held.position);
            break;
        }
        const uint32_t left = count - done;
        const uint32_t rows = batch_rows(engine, left);
        status = feed(engine, ids + done, rows, watch);
        if (status == GLM52_OK) done += rows;
    }
    engine->stats.prefill_tokens += done;
    engine->stats.prefill_ns += now_ns() - start;
    *completed_out = done;
    return status;
}

glm52_status glm52_eval(glm52_engine *engine, int32_t id, glm52_progress *progress, void *user) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "eval: NULL pointer");
    GLM52_TRY(check_ids(engine, &id, 1));
    const uint64_t start = now_ns();
    const glm52_status status = feed(engine, &id, 1, (struct glm52_watch){.progress = progress, .user = user});
    engine->stats.eval_tokens += status == GLM52_OK;
    engine->stats.eval_ns += now_ns() - start;
    return status;
}

const float *glm52_logits(const glm52_engine *engine) {
    return engine != NULL && engine->held.has_logits ? engine->host.logits : NULL;
}

uint32_t glm52_position(const glm52_engine *engine) {
    return engine == NULL ? 0 : engine->held.position;
}

uint32_t glm52_context(const glm52_engine *engine) {
    return engine == NULL ? 0 : engine->options.context;
}

const int32_t *glm52_tokens(const glm52_engine *engine) {
    return engine == NULL ? NULL : engine->held.tokens;
}

glm52_status glm52_rewind(glm52_engine *engine, uint32_t position) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "rewind: NULL pointer");
    if (position > engine->held.position) {
        return glm52_fail(GLM52_ERR_CONTEXT, "rewind to %u: the engine stands at %u", position, engine->held.position);
    }
    if (position != engine->held.position) engine->held.has_logits = false;
    engine->held.position = position;
    return GLM52_OK;
}

glm52_status glm52_align(glm52_engine *engine, const int32_t *ids, uint32_t count, uint32_t *kept_out) {
    if (engine == NULL || ids == NULL || kept_out == NULL || count == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "align: NULL pointer or no tokens");
    }
    uint32_t kept = 0;
    while (kept < engine->held.position && kept < count - 1 && engine->held.tokens[kept] == ids[kept]) kept++;
    GLM52_TRY(glm52_rewind(engine, kept));
    *kept_out = kept;
    return GLM52_OK;
}
