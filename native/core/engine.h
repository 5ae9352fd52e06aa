/* engine.h - an engine: a model, a backend, the memory planned for it, and the conversation it holds. */
#ifndef GLM52_ENGINE_H
#define GLM52_ENGINE_H

#include "model.h"
#include "ops.h"
#include "stream.h"

/* Of the LayerNorm of indexer keys: fixed by the model's code (transformers GlmMoeDsaIndexer), no key in the
 * file. */
#define GLM52_INDEX_NORM_EPSILON 1e-6f
/* Scores of one call of index_score; rows of a batch are scored in slices that fit. */
#define GLM52_SCORE_BYTES_MAX (256u << 20)

/* Memory of one batch, all in one block of the backend. */
struct glm52_activations {
    int32_t *ids;             /* [rows] */
    float *rope_table;        /* [rows, rope] cos and sin of each pair */
    float *h;                 /* [rows, hidden] residual stream */
    float *x;                 /* [rows, hidden] its norm */
    float *y;                 /* [rows, hidden] what a half of a layer adds */
    float *routed;            /* [rows, hidden] sum of the routed experts */
    float *q_a;               /* [rows, q_lora] */
    float *kv_a;              /* [rows, kv_lora + rope] */
    float *q;                 /* [rows, heads, key_mla] */
    float *q_latent;          /* [rows, heads, kv_lora] */
    float *o_latent;          /* [rows, heads, kv_lora] */
    float *o;                 /* [rows, heads, value_mla] */
    float *index_q;           /* [rows, index_heads, index_key] */
    float *index_k;           /* [rows, index_key] */
    float *index_w;           /* [rows, index_heads] */
    float *scores;            /* [score_rows, context] */
    int32_t *selected;        /* [rows, selected_stride] */
    float *gate;              /* [rows, widest feed-forward network] */
    float *up;                /* the same */
    float *router_logits;     /* [rows, experts] */
    int32_t *route_ids;       /* [rows, experts_used] */
    float *route_weights;     /* [rows, experts_used] */
    float *logits;            /* [vocab]; with MTP [1 + GLM52_DRAFTS_MAX, vocab] */

    /* MTP alone. */
    float *mtp_input;         /* [rows, 2 hidden] embedding and hidden state, normed */
    float *mtp_hidden;        /* [rows, hidden] of the trunk's last batch, behind its final norm */
    float *mtp_out;           /* [hidden] behind the block's own norm */
    int32_t *mtp_selected;    /* [selected_stride + GLM52_DRAFTS_MAX] of a chained draft */

    float *expert_out;        /* [experts_used, hidden] of one token while experts are streamed: they come in in any
                                 order and are added in theirs */

    /* Predicting the next layer's experts: [pilot_rows, ...] as x, router_logits, route_ids, route_weights. */
    float *pilot_x;
    float *pilot_logits;
    int32_t *pilot_ids;
    float *pilot_weights;
};

/* What an engine keeps in the host's memory, in one block. */
struct glm52_host {
    float *logits;                  /* [vocab] of the conversation's last token */
    float *rope_table;              /* [rows, rope], written to act.rope_table per batch */
    glm52_expert *experts;          /* [blocks, experts] where each expert lies */
    float *ahead_logits;            /* MTP: [1 + GLM52_DRAFTS_MAX, vocab] of the rows of ahead */
    float *hidden;                  /* MTP: [hidden] on its way between two places of the backend */
    int32_t *selected;              /* MTP: [selected_stride] the same */
    int32_t *observed_ids;          /* the observer's copies: [rows, experts_used], */
    float *observed_weights;        /* [rows, experts_used], */
    int32_t *observed_selected;     /* [rows, selected_stride], */
    float *observed_hidden;         /* [rows, hidden], */
    float *observed_route_margins;  /* [rows], */
    float *observed_select_margins; /* [rows] of the full layer before, */
    float *observed_routes;         /* [experts] router logits of a row, */
    float *observed_scores;         /* [context] an indexer's of a row */
};

/* What differs between two conversations of one engine. Rows and tokens from position on mean nothing. */
struct glm52_conversation {
    void *cache_memory;             /* of the backend */
    void *host_memory;
    int32_t *tokens;                /* [context] */
    void **kv_cache;                /* [blocks] each [context, kv_lora + rope]; the MTP block's behind the trunk's */
    void **index_cache;             /* [blocks] each [context, index_key], NULL where shared */
    uint32_t position;
    bool has_logits;                /* there are logits of token position - 1 */

    /* MTP. Row i of its block's caches is made of token i's hidden state and token i + 1. */
    float *carry;                   /* [hidden] of token position - 1, for the row that the next token completes */
    bool has_carry;
    uint32_t mtp_rows;              /* of the block's caches that hold; position - 1 unless some could not be made */
};

/* Rows that were run before anybody fed their tokens: a token and the drafts behind it, at base .. base + count - 1.
 * Those that are fed are taken one by one; held.tokens has them all. */
struct glm52_ahead {
    uint32_t base, count, taken;
    bool given_up;                  /* nothing is at hand any more; the block's rows of those taken are to be made */
    uint64_t ns;                    /* that drafting and running took */
};

/* A conversation beside the one that its engine holds. */
struct glm52_session {
    struct glm52_engine *engine;
    float *logits;                  /* [vocab] while parked; the engine's are its host.logits */
    struct glm52_conversation held;
};

struct glm52_engine {
    struct glm52_model *model;
    const struct glm52_ops *ops;
    glm52_backend *backend;
    glm52_engine_options options;   /* with every default filled in; streaming is NULL once the engine is open */
    glm52_plan plan;
    glm52_stream_plan stream_plan;
    struct glm52_stream *stream;    /* NULL: every expert is at hand */
    uint32_t score_rows;
    uint32_t selected_stride;       /* min(index_top_k, context) */

    void *activation_memory;
    struct glm52_activations act;
    void *host_memory;
    struct glm52_host host;

    struct glm52_conversation held;
    struct glm52_ahead ahead;
    glm52_draft_policy drafts;
    uint32_t sessions_open;
    glm52_observer *observer;
    void *observer_user;
    glm52_logits_observer *logits_observer;
    void *logits_observer_user;
    uint32_t logits_observed_from;
    float *observed_logits;         /* [vocab] while there is a logits_observer, else NULL */
    struct glm52_inputs_watch *inputs; /* who is shown the inputs of matrices (inputs.c); NULL: nobody */
    glm52_stats stats;
};

/* What a running call reports to. */
struct glm52_watch {
    glm52_progress *progress;       /* NULL: nobody */
    void *user;
};

/* plan.c. Options have their defaults filled in. */

/* What an engine with these options needs on this backend; stream_out is written if it streams. Errors: BUDGET,
 * ARGUMENT, UNSUPPORTED, none of them unless it streams. */
glm52_status glm52_plan_make(const struct glm52_model *model, const struct glm52_ops *ops,
                             const glm52_backend *backend, const glm52_engine_options *options,
                             glm52_plan *plan_out, glm52_stream_plan *stream_out);
/* Lay the arrays of a batch, of the host, of the caches out from base on and return the bytes they take; with
 * base NULL they only count. */
size_t glm52_activations_lay(const struct glm52_model *model, const glm52_engine_options *options,
                             struct glm52_activations *act_out, uint8_t *base);
size_t glm52_host_lay(const struct glm52_model *model, const glm52_engine_options *options,
                      struct glm52_host *host_out, uint8_t *base);
/* Tokens and tables of one conversation. */
size_t glm52_conversation_lay(const struct glm52_model *model, const glm52_engine_options *options,
                              struct glm52_conversation *held_out, uint8_t *base);
/* held has the arrays of pointers to fill in, NULL to only count; *index_bytes_out is the trunk's indexers' part. */
size_t glm52_caches_lay(const struct glm52_model *model, const glm52_engine_options *options,
                        struct glm52_conversation *held, uint8_t *base, size_t *index_bytes_out);
/* Bytes of a session. */
uint64_t glm52_plan_session(const struct glm52_model *model, const glm52_engine_options *options);
uint32_t glm52_plan_score_rows(const glm52_shape *shape, const glm52_engine_options *options);
uint32_t glm52_plan_selected_stride(const glm52_shape *shape, const glm52_engine_options *options);

/* inputs.c. Ends glm52_observe_inputs. */
void glm52_inputs_end(struct glm52_engine *engine);

/* adopt.c. Tells the backend of the model's sizes and of the memory that operations read. Errors: what the backend
 * reports. */
glm52_status glm52_adopt_weights(const struct glm52_engine *engine);

/* conversation.c. held_out gets memory for an empty conversation, or stays as it is. Errors: MEMORY. */
glm52_status glm52_conversation_open(const struct glm52_engine *engine, struct glm52_conversation *held_out);
void glm52_conversation_close(const struct glm52_engine *engine, struct glm52_conversation *held);

/* Layers with caches: the trunk's, and with MTP its block. */
static inline uint32_t glm52_blocks(const struct glm52_model *model, const glm52_engine_options *options) {
    return model->shape.layers + (options->mtp ? 1u : 0u);
}

/* forward.c: runs row_count tokens from position on through the model and leaves the logits of the last logit_rows in
 * act.logits and the residual streams in act.h. Writes cache rows from position on, and nothing else of the engine.
 * Errors: CANCELLED; what the backend reports. */
glm52_status glm52_forward(struct glm52_engine *engine, uint32_t position, const int32_t *ids, uint32_t row_count,
                           uint32_t logit_rows, struct glm52_watch watch);
/* Behind glm52_forward, while act.h is its: leaves the logits of one row of the batch in act.logits. */
void glm52_row_logits(struct glm52_engine *engine, uint32_t row);

/* mtp.c. All of these do nothing on an engine without MTP.
 *
 * Behind glm52_forward of tokens [position, row_count]: makes the block's rows that those tokens complete, and keeps
 * the last hidden state. Errors: what the backend reports. */
glm52_status glm52_mtp_feed(struct glm52_engine *engine, uint32_t position, uint32_t row_count);
/* Behind glm52_forward of row_count rows: keeps their hidden states, for those that are taken. */
void glm52_mtp_keep(struct glm52_engine *engine, uint32_t row_count);
/* Whether drafts can be made behind the next token. */
bool glm52_mtp_ready(const struct glm52_engine *engine);
/* Gives up what is at hand, and has the number of drafts learn from what became of them. The rows of the tokens that
 * were taken wait for glm52_mtp_draft, which makes them in one batch with its own, or for glm52_mtp_settle. */
void glm52_mtp_give_up(struct glm52_engine *engine);
/* Predicts count tokens behind the one at held.tokens[position], which is not fed yet. Errors: CANCELLED; what the
 * backend reports; rows that wait go on waiting then, or are made. */
glm52_status glm52_mtp_draft(struct glm52_engine *engine, uint32_t count, struct glm52_watch watch,
                             int32_t *drafts_out);
/* Makes rows and hidden state of the tokens that were taken from ahead, and gives up the others. Called before anything
 * else touches the conversation. */
void glm52_mtp_settle(struct glm52_engine *engine);
/* The conversation was cut at its position. */
void glm52_mtp_cut(struct glm52_engine *engine);
/* The greatest logit's token, of equal ones the lower; NaN counts as greatest. */
uint32_t glm52_argmax(const float *logits, uint32_t count);

#endif
