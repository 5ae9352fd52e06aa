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
    float *logits;            /* [vocab] */

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
    glm52_expert *experts;          /* [layers, experts] where each expert lies */
    int32_t *observed_ids;          /* the observer's copies: [rows, experts_used], */
    float *observed_weights;        /* [rows, experts_used], */
    int32_t *observed_selected;     /* [rows, selected_stride], */
    float *observed_hidden;         /* [rows, hidden] */
};

/* What differs between two conversations of one engine. Rows and tokens from position on mean nothing. */
struct glm52_conversation {
    void *cache_memory;             /* of the backend */
    void *host_memory;
    int32_t *tokens;                /* [context] */
    void **kv_cache;                /* [layers] each [context, kv_lora + rope] */
    void **index_cache;             /* [layers] each [context, index_key], NULL where shared */
    uint32_t position;
    bool has_logits;                /* there are logits of token position - 1 */
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
    uint32_t sessions_open;
    glm52_observer *observer;
    void *observer_user;
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
/* held has the arrays of pointers to fill in, NULL to only count; *index_bytes_out is the indexer's part. */
size_t glm52_caches_lay(const struct glm52_model *model, const glm52_engine_options *options,
                        const struct glm52_conversation *held, uint8_t *base, size_t *index_bytes_out);
/* Bytes of a session. */
uint64_t glm52_plan_session(const struct glm52_model *model, const glm52_engine_options *options);
uint32_t glm52_plan_score_rows(const glm52_shape *shape, const glm52_engine_options *options);
uint32_t glm52_plan_selected_stride(const glm52_shape *shape, const glm52_engine_options *options);

/* conversation.c. held_out gets memory for an empty conversation, or stays as it is. Errors: MEMORY. */
glm52_status glm52_conversation_open(const struct glm52_engine *engine, struct glm52_conversation *held_out);
void glm52_conversation_close(const struct glm52_engine *engine, struct glm52_conversation *held);

/* forward.c: runs row_count tokens from the engine's position on through the model and leaves the last one's
 * logits in act.logits. Writes cache rows from position on, and nothing else of the engine.
 * Errors: CANCELLED; what the backend reports. */
glm52_status glm52_forward(struct glm52_engine *engine, const int32_t *ids, uint32_t row_count,
                           struct glm52_watch watch);

#endif
