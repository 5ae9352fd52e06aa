/* glm52_session.h - more than one conversation on one engine: parking, exchanging and copying them, and their rows
 * byte by byte, for checkpoints.
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
    GLM52_ROWS_INDEX = 1        /* [index_key] of the indexer, on layers that run one */
} glm52_rows_kind;

#define GLM52_ROWS_COUNT 2

/* Bytes of one row of a layer, 0 if the layer has no such rows. Layers are the trunk's. Errors: ARGUMENT. */
GLM52_API glm52_status glm52_rows_bytes(const glm52_engine *engine, uint32_t rows, uint32_t layer,
                                        uint64_t *bytes_out);

/* Reads rows first .. first + count - 1 of the engine's conversation. Errors: ARGUMENT if a pointer is NULL or the
 * layer has no such rows; CONTEXT for rows from the position on. */
GLM52_API glm52_status glm52_rows_read(const glm52_engine *engine, uint32_t rows, uint32_t layer, uint32_t first,
                                       uint32_t count, void *out);

/* Writes rows of a session. They count once glm52_session_restore has said how far they reach.
 * Errors: ARGUMENT as above; CONTEXT for rows outside the context. */
GLM52_API glm52_status glm52_session_rows_write(glm52_session *session, uint32_t rows, uint32_t layer,
                                                uint32_t first, uint32_t count, const void *data);

/* Says what the rows written to a session are of: tokens [count], and the logits [vocab] of the last, NULL if there
 * are none. Errors: ARGUMENT for a token outside the vocabulary, a NULL pointer, logits of no token; CONTEXT if count
 * is past the context. */
GLM52_API glm52_status glm52_session_restore(glm52_session *session, const int32_t *tokens, uint32_t count,
                                             const float *logits);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
