/* session.c - the conversation an engine holds: feeding tokens, going back, what is known of the last one.
 *
 * The state is the position. Cache rows, tokens and logits beyond it mean nothing, so that going back is a new
 * number, and a batch that fails or is cancelled leaves no trace: the position moves when a batch is done. */
#include <string.h>

#include "clock.h"
#include "engine.h"
#include "error.h"

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
        return glm52_fail(GLM52_ERR_CONTEXT, "%u token%s at position %u: the context holds %u", count,
                          count == 1 ? "" : "s", engine->held.position, context);
    }
    return GLM52_OK;
}

/* After a fault nothing is being read, and what the call counted is forgotten; after a cancellation it is kept. */
static void settle_stream(struct glm52_stream *stream, glm52_status status, uint32_t rows) {
    if (status == GLM52_OK) glm52_stream_tick(stream, rows);
    else if (status == GLM52_ERR_CANCELLED) glm52_stream_cancel(stream);
    else glm52_stream_fail(stream);
}

/* 1 if the token before must be run once more: MTP wants its hidden state and a cut has lost it. */
static uint32_t rows_again(const glm52_engine *engine) {
    const struct glm52_conversation *held = &engine->held;
    return engine->options.mtp && !held->has_carry && held->position > 0 && held->mtp_rows + 1 == held->position;
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
    const uint32_t most = engine->options.chunk_rows - rows_again(engine);
    return left < most ? left : most;
}

/* Runs rows of the conversation's tokens through the trunk, and settles what streaming counted. */
static glm52_status run(glm52_engine *engine, uint32_t position, uint32_t rows, uint32_t logit_rows,
                        struct glm52_watch watch) {
    if (engine->stream != NULL) glm52_stream_mark(engine->stream);
    const int32_t *ids = engine->held.tokens + position;
    const glm52_status status = glm52_forward(engine, position, ids, rows, logit_rows, watch);
    if (status == GLM52_ERR_CANCELLED) engine->stats.cancelled++;
    if (engine->stream != NULL) settle_stream(engine->stream, status, rows);
    return status;
}

/* Shows the logits of a batch's rows from row first on. The last is shown last, so that act.logits then has its own. */
static glm52_status show_logits(glm52_engine *engine, uint32_t position, uint32_t first, uint32_t rows) {
    if (engine->logits_observer == NULL) return GLM52_OK;
    for (uint32_t r = first; r < rows; r++) {
        if (position + r < engine->logits_observed_from) continue;
        glm52_row_logits(engine, r);
        GLM52_TRY(engine->ops->finish(engine->backend));
        engine->ops->read(engine->backend, engine->observed_logits, engine->act.logits,
                          engine->model->shape.vocab * sizeof(float));
        engine->logits_observer(engine->logits_observer_user, position + r, engine->observed_logits);
    }
    return GLM52_OK;
}

/* One batch: on success the engine stands behind it and has its logits, else it is as it was. */
static glm52_status feed(glm52_engine *engine, const int32_t *ids, uint32_t count, struct glm52_watch watch) {
    struct glm52_conversation *held = &engine->held;
    const uint32_t again = rows_again(engine), first = held->position - again;
    memcpy(held->tokens + held->position, ids, count * sizeof(int32_t));
    GLM52_TRY(run(engine, first, again + count, 1, watch));
    GLM52_TRY(show_logits(engine, first, again, again + count));
    GLM52_TRY(glm52_mtp_feed(engine, first, again + count));
    engine->ops->read(engine->backend, engine->host.logits, engine->act.logits,
                      engine->model->shape.vocab * sizeof(float));
    held->position += count;
    held->has_logits = true;
    return GLM52_OK;
}

/* Feeds a token that was run ahead. */
static void take(glm52_engine *engine) {
    const uint32_t vocab = engine->model->shape.vocab;
    memcpy(engine->host.logits, engine->host.ahead_logits + (size_t)engine->ahead.taken * vocab, vocab * sizeof(float));
    engine->ahead.taken++;
    engine->held.position++;
    engine->held.has_logits = true;
}

/* The next token at hand, or NULL. */
static const int32_t *next_ahead(const glm52_engine *engine) {
    return engine->ahead.taken < engine->ahead.count ? engine->held.tokens + engine->held.position : NULL;
}

/* Runs a token and drafts behind it; nothing is fed yet. */
static glm52_status run_ahead(glm52_engine *engine, int32_t id, uint32_t drafts, struct glm52_watch watch) {
    struct glm52_conversation *held = &engine->held;
    const uint32_t position = held->position, vocab = engine->model->shape.vocab;
    const uint64_t start = glm52_now_ns();
    held->tokens[position] = id;
    GLM52_TRY(glm52_mtp_draft(engine, drafts, watch, held->tokens + position + 1));
    const uint64_t drafted = glm52_now_ns();
    GLM52_TRY(run(engine, position, 1 + drafts, 1 + drafts, watch));
    glm52_mtp_keep(engine, 1 + drafts);
    GLM52_TRY(engine->ops->finish(engine->backend));
    engine->ops->read(engine->backend, engine->host.ahead_logits, engine->act.logits,
                      (size_t)(1 + drafts) * vocab * sizeof(float));
    engine->stats.mtp_cycles++;
    engine->stats.mtp_drafted += drafts;
    engine->stats.mtp_verify_ns += glm52_now_ns() - drafted;
    engine->ahead = (struct glm52_ahead){.base = position, .count = 1 + drafts, .ns = glm52_now_ns() - start};
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
    glm52_mtp_settle(engine);
    if (engine->stream != NULL) glm52_stream_turn(engine->stream);
    const uint64_t start = glm52_now_ns();
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
    engine->stats.prefill_ns += glm52_now_ns() - start;
    *completed_out = done;
    return status;
}

/* Feeds one token: one that is at hand, or else with drafts behind it if that is wanted and can be. */
static glm52_status eval(glm52_engine *engine, int32_t id, uint32_t ahead, struct glm52_watch watch) {
    const int32_t *next = next_ahead(engine);
    if (next != NULL && *next == id) {
        engine->stats.mtp_accepted += engine->ahead.taken > 0;
        take(engine);
        return GLM52_OK;
    }
    glm52_mtp_give_up(engine);
    const uint32_t room = engine->options.context - engine->held.position - 1;
    uint32_t drafts = engine->drafts.length < ahead ? engine->drafts.length : ahead;
    if (drafts > room) drafts = room;
    const bool ready = glm52_mtp_ready(engine);
    if (ready && drafts > 0) {
        GLM52_TRY(run_ahead(engine, id, drafts, watch));
        take(engine);
        return GLM52_OK;
    }
    const uint64_t start = glm52_now_ns();
    glm52_mtp_settle(engine);
    GLM52_TRY(feed(engine, &id, 1, watch));
    if (ready && ahead > 0) glm52_draft_policy_learn(&engine->drafts, 0, 0, glm52_now_ns() - start);
    return GLM52_OK;
}

glm52_status glm52_eval_ahead(glm52_engine *engine, int32_t id, uint32_t ahead, glm52_progress *progress,
                              void *user) {
    if (engine == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "eval: NULL pointer");
    GLM52_TRY(check_ids(engine, &id, 1));
    const uint64_t start = glm52_now_ns();
    const glm52_status status = eval(engine, id, ahead, (struct glm52_watch){.progress = progress, .user = user});
    engine->stats.eval_tokens += status == GLM52_OK;
    engine->stats.eval_ns += glm52_now_ns() - start;
    return status;
}

glm52_status glm52_eval(glm52_engine *engine, int32_t id, glm52_progress *progress, void *user) {
    return glm52_eval_ahead(engine, id, 0, progress, user);
}

glm52_status glm52_speculate(glm52_engine *engine, int32_t id, uint32_t count_max, glm52_progress *progress,
                             void *user, int32_t *tokens_out, uint32_t *count_out) {
    if (engine == NULL || tokens_out == NULL || count_out == NULL || count_max == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "speculate: NULL pointer, or no token wanted");
    }
    GLM52_TRY(glm52_eval_ahead(engine, id, count_max - 1, progress, user));
    uint32_t count = 0;
    tokens_out[count++] = id;
    while (count < count_max) {
        const int32_t *next = next_ahead(engine);
        if (next == NULL || *next != (int32_t)glm52_argmax(engine->host.logits, engine->model->shape.vocab)) break;
        tokens_out[count++] = *next;
        GLM52_TRY(glm52_eval_ahead(engine, *next, 0, NULL, NULL));
    }
    *count_out = count;
    return GLM52_OK;
}

const int32_t *glm52_ahead_tokens(const glm52_engine *engine, uint32_t *count_out) {
    if (engine == NULL || count_out == NULL) return NULL;
    *count_out = engine->ahead.count - engine->ahead.taken;
    return engine->held.tokens + engine->held.position;
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
    glm52_mtp_settle(engine);
    if (position == engine->held.position) return GLM52_OK;
    engine->held.has_logits = false;
    engine->held.position = position;
    glm52_mtp_cut(engine);
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
