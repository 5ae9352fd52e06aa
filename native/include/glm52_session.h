/* glm52_session.h - more than one conversation on one engine, their rows byte by byte for checkpoints, and tokens run
 * ahead of time by multi-token prediction (MTP).
 *
 * An engine holds one conversation at a time. A session is a place for another: it takes the memory of a context's
 * caches, shares the engine's weights, activations and threads, and costs nothing while it is parked. Sessions are
 * closed before their engine is. */
#ifndef GLM52_SESSION_PUBLIC_H
#define GLM52_SESSION_PUBLIC_H

#include "glm52.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

typedef struct glm52_session glm52_session;

/* Makes an empty conversation for engine. Its memory is within the plan if the options' sessions reserved it, else
 * it is added to the plan.
 * Errors: ARGUMENT; BUDGET, with the numbers, if the machine (or a streaming engine's memory_bytes) has no room for
 * another context; MEMORY. */
GLM52_API glm52_status glm52_session_open(glm52_engine *engine, glm52_session **session_out);

/* Frees the session and what it holds. */
GLM52_API void glm52_session_close(glm52_session *session);

/* Exchanges the engine's conversation and the session's: tokens, caches, logits. Moves pointers, not caches.
 * Errors: ARGUMENT if a pointer is NULL or the session was opened on another engine. */
GLM52_API glm52_status glm52_session_swap(glm52_engine *engine, glm52_session *session);

/* Makes the session's conversation a copy of the engine's. Copies the rows up to its position.
 * Errors: ARGUMENT as above; MEMORY, then the session is empty. */
GLM52_API glm52_status glm52_session_copy(glm52_engine *engine, glm52_session *session);

/* Tokens the session holds. */
GLM52_API uint32_t glm52_session_position(const glm52_session *session);

/* The tokens the session holds [position]. */
GLM52_API const int32_t *glm52_session_tokens(const glm52_session *session);

/* Bytes that one session takes. */
GLM52_API uint64_t glm52_session_bytes(const glm52_engine *engine);

/* ---- rows, as they lie in the caches: little-endian float16 or float32 ---- */

typedef enum glm52_rows_kind {
    GLM52_ROWS_KV = 0,          /* [kv_lora + rope]: the normed latent, then the rotated key */
    GLM52_ROWS_INDEX = 1,       /* [index_key] of the indexer, on layers that run one */
    GLM52_ROWS_HIDDEN = 2       /* of the MTP block alone, one row: [hidden] float32, the last token's hidden state */
} glm52_rows_kind;

#define GLM52_ROWS_COUNT 3

/* Bytes of one row of a layer, 0 if the layer has no such rows. Layers are the trunk's; with MTP its block
 * follows them. Errors: ARGUMENT. */
GLM52_API glm52_status glm52_rows_bytes(const glm52_engine *engine, uint32_t rows, uint32_t layer,
                                        uint64_t *bytes_out);

/* Reads rows first .. first + count - 1 of the engine's conversation. The MTP block has rows for all tokens but the
 * last. Errors: ARGUMENT if a pointer is NULL or the layer has no such rows; CONTEXT for rows that are not there. */
GLM52_API glm52_status glm52_rows_read(const glm52_engine *engine, uint32_t rows, uint32_t layer, uint32_t first,
                                       uint32_t count, void *out);

/* Writes rows of a session. They count once glm52_session_restore has said how far they reach.
 * Errors: ARGUMENT as above; CONTEXT for rows outside the context. */
GLM52_API glm52_status glm52_session_rows_write(glm52_session *session, uint32_t rows, uint32_t layer,
                                                uint32_t first, uint32_t count, const void *data);

/* Whether the engine's conversation has all its MTP rows and its hidden state. */
GLM52_API bool glm52_mtp_complete(glm52_engine *engine);

/* Says what the rows written to a session are of: tokens [count], and the logits [vocab] of the last, NULL if there
 * are none; has_mtp: the MTP block's rows and hidden state were written too. Without them an engine with MTP makes no
 * drafts until its conversation is cut to nothing.
 * Errors: ARGUMENT for a token outside the vocabulary, a NULL pointer, logits of no token; CONTEXT if count is past
 * the context. */
GLM52_API glm52_status glm52_session_restore(glm52_session *session, const int32_t *tokens, uint32_t count,
                                             const float *logits, bool has_mtp);

/* ---- tokens run ahead of time ----
 *
 * With MTP, glm52_eval_ahead runs a token and drafts of those behind it in one batch. What the engine holds is the
 * token alone; feeding the next one costs nothing if it was drafted, and gives the logits that it would have had to
 * compute, bit for bit. So nobody has to accept or reject anything: greedy decoding takes drafts that are the greatest
 * logit, and a sampler those that it happens to draw, which is rejection sampling of the exact distribution, since a
 * draft is one token and not a distribution. Any other call gives up what was not fed. */

/* Feeds one token as glm52_eval does, and runs up to ahead drafts with it; fewer at the end of the context, or if they
 * do not pay. Errors: as glm52_eval. progress is also called between drafts. */
GLM52_API glm52_status glm52_eval_ahead(glm52_engine *engine, int32_t id, uint32_t ahead, glm52_progress *progress,
                                        void *user);

/* Feeds id and those tokens behind it that greedy decoding would choose and that are at hand, at most count_max
 * together. tokens_out [count_max] has them, *count_out says how many. Errors: as glm52_eval; ARGUMENT if count_max
 * is 0. */
GLM52_API glm52_status glm52_speculate(glm52_engine *engine, int32_t id, uint32_t count_max, glm52_progress *progress,
                                       void *user, int32_t *tokens_out, uint32_t *count_out);

/* The tokens at hand: feeding them next, in this order, computes nothing. *count_out is their number. */
GLM52_API const int32_t *glm52_ahead_tokens(const glm52_engine *engine, uint32_t *count_out);

/* How many tokens to draft: arithmetic without an engine. Lengths are compared by tokens expected per second, from the
 * time that cycles of each length took and the share of drafts that were accepted. */
typedef struct glm52_draft_policy {
    uint32_t fixed;             /* not 0: always this many */
    uint32_t length;            /* of the next cycle; 0: plain decoding */
    uint32_t cycles;            /* learnt from */
    uint32_t since_probe;
    uint32_t seen[8];           /* cycles of each length, up to what averaging needs to know */
    double ns[8];               /* moving average of a cycle of each length */
    double accept;              /* chance that a draft is accepted if the one before it was */
} glm52_draft_policy;

#define GLM52_DRAFT_PROBE_CYCLES 64 /* a length that does not pay is tried again after so many */

/* Starts anew. fixed 0: adaptive. */
GLM52_API void glm52_draft_policy_start(glm52_draft_policy *policy, uint32_t fixed);

/* Learns from a cycle that drafted tokens, of which accepted were fed, and took ns; sets length for the next. */
GLM52_API void glm52_draft_policy_learn(glm52_draft_policy *policy, uint32_t drafted, uint32_t accepted, uint64_t ns);

/* Whether drafts were tried and do not pay at the moment, so that none are made but to try again. */
GLM52_API bool glm52_draft_policy_off(const glm52_draft_policy *policy);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
