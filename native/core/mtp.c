/* mtp.c - multi-token prediction: the block behind the trunk that guesses the token after next.
 *
 * Row i of the block is made of token i's hidden state behind the final norm and of the embedding of token i + 1:
 *
 *     x = eh_proj [ norm(embedding) | norm(hidden) ]      embedding half first
 *     y = layer(x)                                        attention with an indexer and caches of its own, experts
 *     m = norm(y);  head(m)                               predicts token i + 2
 *
 * Rows are made for the whole conversation, prompt included, by the tokens themselves. A draft goes on from the last:
 * the next row takes m for the hidden state and the predicted token for the embedding, and attends to what the first
 * row of the draft selected and to the rows since (the weights were trained with shared selections). Rows of drafts
 * are overwritten by those of the tokens that come. Nothing here changes a result: drafts are guesses.
 *
 * The block's experts are streamed where the trunk's are. */
#include <math.h>

#include "batch.h"
#include "clock.h"
#include "error.h"

/* act.h of rows: from the embeddings of ids and the hidden states others; row 0's is first_hidden, if not NULL. */
static void make_input(const struct glm52_batch *b, const struct glm52_nextn *nextn, const int32_t *ids,
                       const float *first_hidden, const float *others) {
    const uint32_t hidden = b->shape->hidden;
    const struct glm52_activations *act = b->act;
    b->ops->write(b->backend, act->ids, ids, b->rows * sizeof(int32_t));
    const glm52_embed_args embed = {.row_count = b->rows, .hidden = hidden, .type = nextn->embed.type,
                                    .vocab = b->shape->vocab};
    b->ops->embed(b->backend, &embed, act->x, nextn->embed.data, act->ids);

    glm52_rms_norm_args norm = {.row_count = b->rows, .row_size = hidden, .x_stride = hidden, .out_stride = 2 * hidden,
                                .epsilon = b->shape->rms_epsilon};
    b->ops->rms_norm(b->backend, &norm, act->mtp_input, act->x, nextn->embed_norm);
    float *out = act->mtp_input + hidden;
    if (first_hidden != NULL) {
        norm.row_count = 1;
        b->ops->rms_norm(b->backend, &norm, out, first_hidden, nextn->hidden_norm);
        norm.row_count = b->rows - 1;
        out += 2 * (size_t)hidden;
    }
    if (norm.row_count > 0) b->ops->rms_norm(b->backend, &norm, out, others, nextn->hidden_norm);
    glm52_batch_matmul(b, act->h, act->mtp_input, &nextn->eh_proj);
}

/* The block's layer for a batch. Where its experts are streamed and can't be read, nothing is being read behind the
 * failure, and what the call has counted since glm52_stream_mark is taken back. */
static glm52_status run_block(const struct glm52_batch *b, const struct glm52_layer *layer) {
    const glm52_status status = glm52_batch_layer(b, layer, b->shape->layers);
    if (status != GLM52_OK && b->engine->stream != NULL) glm52_stream_fail(b->engine->stream);
    return status;
}

/* The rows position .. position + rows - 1 of the block, made by the tokens behind them. */
static glm52_status make_rows(struct glm52_engine *engine, uint32_t position, uint32_t rows, const float *first_hidden,
                              const float *others) {
    if (rows == 0) return GLM52_OK;
    const uint64_t start = glm52_now_ns();
    const struct glm52_nextn *nextn = &engine->model->nextn[0];
    const struct glm52_batch b = glm52_batch_of(engine, position, rows);
    glm52_batch_rope(&b);
    make_input(&b, nextn, engine->held.tokens + position + 1, first_hidden, others);
    GLM52_TRY(run_block(&b, &nextn->layer));
    const glm52_status status = engine->ops->finish(engine->backend);
    engine->stats.mtp_passes++;
    engine->stats.mtp_ns += glm52_now_ns() - start;
    return status;
}

/* Keeps row r of mtp_hidden as the last hidden state. */
static void carry_row(struct glm52_engine *engine, uint32_t r) {
    const uint32_t hidden = engine->model->shape.hidden;
    const size_t bytes = hidden * sizeof(float);
    engine->ops->read(engine->backend, engine->host.hidden, engine->act.mtp_hidden + (size_t)r * hidden, bytes);
    engine->ops->write(engine->backend, engine->held.carry, engine->host.hidden, bytes);
    engine->held.has_carry = true;
}

void glm52_mtp_keep(struct glm52_engine *engine, uint32_t row_count) {
    const struct glm52_batch b = glm52_batch_of(engine, 0, row_count);
    glm52_batch_norm(&b, engine->act.mtp_hidden, engine->act.h, engine->model->output_norm, b.shape->hidden,
                     b.shape->rms_epsilon);
}

glm52_status glm52_mtp_feed(struct glm52_engine *engine, uint32_t position, uint32_t row_count) {
    struct glm52_conversation *held = &engine->held;
    if (!engine->options.mtp) return GLM52_OK;
    /* Row position - 1 waits for this batch's first token; without its hidden state rows begin with the batch. */
    const bool joins = held->has_carry && position == held->position && position > 0;
    const uint32_t first = joins ? position - 1 : position;
    if (held->mtp_rows < first) {   /* rows are missing: there will be no drafts */
        held->has_carry = false;
        return GLM52_OK;
    }
    glm52_mtp_keep(engine, row_count);
    GLM52_TRY(make_rows(engine, first, position + row_count - 1 - first, joins ? held->carry : NULL,
                        engine->act.mtp_hidden));
    held->mtp_rows = position + row_count - 1;
    carry_row(engine, row_count - 1);
    return GLM52_OK;
}

bool glm52_mtp_ready(const struct glm52_engine *engine) {
    const struct glm52_conversation *held = &engine->held;
    if (engine->ahead.count > 0) return true;
    return engine->options.mtp && held->has_carry && held->position > 0 && held->mtp_rows + 1 == held->position;
}

void glm52_mtp_cut(struct glm52_engine *engine) {
    struct glm52_conversation *held = &engine->held;
    const uint32_t rows = held->position > 0 ? held->position - 1 : 0;
    if (held->mtp_rows > rows) held->mtp_rows = rows;
    held->has_carry = false;
}

void glm52_mtp_give_up(struct glm52_engine *engine) {
    struct glm52_ahead *ahead = &engine->ahead;
    if (ahead->count == 0 || ahead->given_up) return;
    glm52_draft_policy_learn(&engine->drafts, ahead->count - 1, ahead->taken - 1, ahead->ns);
    ahead->count = ahead->taken;
    ahead->given_up = true;
}

/* The rows of the tokens taken are there. Row base - 1 was made by the draft's first step. */
static void settled(struct glm52_engine *engine) {
    carry_row(engine, engine->ahead.taken - 1);
    engine->held.mtp_rows = engine->held.position - 1;
    engine->ahead = (struct glm52_ahead){0};
}

void glm52_mtp_settle(struct glm52_engine *engine) {
    glm52_mtp_give_up(engine);
    const struct glm52_ahead ahead = engine->ahead;
    if (ahead.count == 0) return;
    if (engine->stream != NULL) glm52_stream_mark(engine->stream);
    if (make_rows(engine, ahead.base, ahead.taken - 1, NULL, engine->act.mtp_hidden) != GLM52_OK) {
        engine->ahead = (struct glm52_ahead){0};
        engine->held.has_carry = false;   /* a device's fault: the rows are made again, or there are no drafts */
        return;
    }
    settled(engine);
}

uint32_t glm52_argmax(const float *logits, uint32_t count) {
    uint32_t best = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (isnan(logits[i])) return i;
        if (logits[i] > logits[best]) best = i;
    }
    return best;
}

/* ---- drafts ---- */

/* The token that the block predicts behind the batch's last row; its hidden state goes to act.mtp_out. */
static glm52_status predict(const struct glm52_batch *b, const struct glm52_nextn *nextn, int32_t *token_out) {
    struct glm52_engine *engine = b->engine;
    const uint32_t vocab = b->shape->vocab;
    const struct glm52_batch one = glm52_batch_of(engine, b->position + b->rows - 1, 1);
    glm52_batch_norm(&one, b->act->mtp_out, b->act->h + (size_t)(b->rows - 1) * b->shape->hidden, nextn->head_norm,
                     b->shape->hidden, b->shape->rms_epsilon);
    glm52_batch_matmul(&one, b->act->logits, b->act->mtp_out, &nextn->head);
    GLM52_TRY(b->ops->finish(b->backend));
    b->ops->read(b->backend, engine->host.ahead_logits, b->act->logits, vocab * sizeof(float));
    *token_out = (int32_t)glm52_argmax(engine->host.ahead_logits, vocab);
    engine->stats.mtp_passes++;
    return GLM52_OK;
}

/* Takes the selection of the batch's last row to where the rows since can be put behind it. */
static uint32_t keep_selection(const struct glm52_batch *b) {
    const uint32_t visible = b->position + b->rows, k = b->shape->index_top_k;
    const uint32_t count = visible < k ? visible : k;
    const int32_t *selected = b->act->selected + (size_t)(b->rows - 1) * b->engine->selected_stride;
    b->ops->read(b->backend, b->engine->host.selected, selected, count * sizeof(int32_t));
    b->ops->write(b->backend, b->act->mtp_selected, b->engine->host.selected, count * sizeof(int32_t));
    return count;
}

/* The first draft: the row of the token before held.tokens[position], and with it those that wait. */
static glm52_status draft_first(struct glm52_engine *engine, int32_t *draft_out, uint32_t *selected_out) {
    const struct glm52_nextn *nextn = &engine->model->nextn[0];
    const uint32_t rows = engine->ahead.count > 0 ? engine->ahead.taken : 1;
    const uint32_t position = engine->held.position - rows;
    const struct glm52_batch b = glm52_batch_of(engine, position, rows);
    glm52_batch_rope(&b);
    const float *hidden = engine->ahead.count > 0 ? engine->act.mtp_hidden : engine->held.carry;
    make_input(&b, nextn, engine->held.tokens + position + 1, NULL, hidden);
    GLM52_TRY(run_block(&b, &nextn->layer));
    GLM52_TRY(predict(&b, nextn, draft_out));
    *selected_out = keep_selection(&b);
    if (engine->ahead.count > 0) settled(engine);
    return GLM52_OK;
}

static glm52_status draft(struct glm52_engine *engine, uint32_t count, struct glm52_watch watch,
                          int32_t *drafts_out) {
    const struct glm52_nextn *nextn = &engine->model->nextn[0];
    struct glm52_layer chained = nextn->layer;
    chained.index_full = false;   /* the selection is made once for all drafts of a cycle */
    uint32_t selected = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (watch.progress != NULL && !watch.progress(watch.user, engine->held.position)) {
            engine->stats.cancelled++;
            return glm52_fail(GLM52_ERR_CANCELLED, "cancelled before draft %u at position %u", i,
                              engine->held.position);
        }
        if (i == 0) {
            GLM52_TRY(draft_first(engine, &drafts_out[0], &selected));
            continue;
        }
        struct glm52_batch b = glm52_batch_of(engine, engine->held.position - 1 + i, 1);
        glm52_batch_rope(&b);
        make_input(&b, nextn, &drafts_out[i - 1], NULL, engine->act.mtp_out);
        const int32_t row = (int32_t)b.position;
        b.ops->write(b.backend, engine->act.mtp_selected + selected++, &row, sizeof(row));
        b.selected = engine->act.mtp_selected;
        b.k = selected;
        GLM52_TRY(run_block(&b, &chained));
        GLM52_TRY(predict(&b, nextn, &drafts_out[i]));
    }
    return GLM52_OK;
}

glm52_status glm52_mtp_draft(struct glm52_engine *engine, uint32_t count, struct glm52_watch watch,
                             int32_t *drafts_out) {
    const uint64_t start = glm52_now_ns();
    if (engine->stream != NULL) glm52_stream_mark(engine->stream);
    const glm52_status status = draft(engine, count, watch, drafts_out);
    engine->stats.mtp_ns += glm52_now_ns() - start;
    return status;
}
