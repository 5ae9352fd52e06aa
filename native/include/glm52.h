/* glm52.h - the one public header of glm52-rt, a runtime for GLM-5.2 (GGUF architecture glm-dsa).
 *
 * Conventions, stated once:
 *   Names      a count counts elements, a stride is the distance of two rows in elements, _bytes counts bytes,
 *              _max is an upper bound that is never passed, outputs end in _out.
 *   Layout     row-major; shapes are written [rows, columns] beside each pointer.
 *   Ownership  an object made by glm52_*_open belongs to the caller, who frees it with the matching
 *              glm52_*_close; close accepts NULL. Pointers passed to a call are borrowed for that call. What a
 *              call returns by pointer belongs to the object asked and lives as long as it, unless said.
 *   Errors     every call that can fail returns glm52_status and writes its outputs only on GLM52_OK. A call
 *              that fails leaves its objects as they were. The reason, with the file, the tensor, the number
 *              and the limit, is glm52_error_message() on the same thread.
 *   Threads    calls on one object must not overlap; different objects are independent, and a model may be
 *              shared by engines on several threads.
 */
#ifndef GLM52_H
#define GLM52_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(GLM52_BUILD) && defined(__GNUC__)
#define GLM52_API __attribute__((visibility("default")))
#else
#define GLM52_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin
 * Python reads its declarations from here to "cdef: end" (tools/packaging/cffi_shim.py), so this part
 * keeps to plain declarations: no includes, no conditionals, only integer #defines. */

#define GLM52_ABI_VERSION 1
#define GLM52_LAYERS_MAX 512        /* blocks of a model, MTP blocks included */
#define GLM52_IDENTITY_DIGITS 64    /* hexadecimal digits of a model's identity */
#define GLM52_MESSAGE_BYTES_MAX 1024 /* a message, its final zero included; longer ones are cut */

typedef enum glm52_status {
    GLM52_OK = 0,
    GLM52_ERR_ARGUMENT = 1,    /* a pointer is NULL or a number is out of its documented range */
    GLM52_ERR_MEMORY = 2,      /* an allocation failed */
    GLM52_ERR_UNSUPPORTED = 3, /* valid, but not something this build, machine or version does */
    GLM52_ERR_IO = 4,          /* the system refused a file operation, or a file ended early */
    GLM52_ERR_MODEL = 5,       /* the file is not a well-formed GGUF of a GLM model */
    GLM52_ERR_SHAPE = 6,       /* a tensor or a hyperparameter contradicts the others */
    GLM52_ERR_BUDGET = 7,      /* a plan needs more memory than it may use */
    GLM52_ERR_CONTEXT = 8,     /* a position outside the context */
    GLM52_ERR_CHECKPOINT = 9,  /* a checkpoint is damaged or belongs to another model */
    GLM52_ERR_CANCELLED = 10   /* the caller's progress callback said stop */
} glm52_status;

typedef struct glm52_model glm52_model;
typedef struct glm52_engine glm52_engine;
typedef struct glm52_stream_options glm52_stream_options; /* glm52_stream.h */

/* Version of the declarations the library was built from. Compare with GLM52_ABI_VERSION. */
GLM52_API uint32_t glm52_abi_version(void);

/* English name of a status, "unknown" for a number that is none. Static. */
GLM52_API const char *glm52_status_name(glm52_status status);

/* What the last failed call on this thread had to say; "" before any. Valid until the next failure on this
 * thread. */
GLM52_API const char *glm52_error_message(void);

/* What made this library: version, compiler, flags, instruction sets. One line, static. */
GLM52_API const char *glm52_build(void);

/* ---- models -------------------------------------------------------------------------------------------- */

/* Hyperparameters, as validated at open. Real GLM-5.2 values in brackets. */
typedef struct glm52_shape {
    uint64_t context_max;       /* positions the model was made for [1048576] */
    uint32_t layers;            /* trunk layers [78] */
    uint32_t nextn_layers;      /* MTP blocks behind the trunk [1] */
    uint32_t hidden;            /* [6144] */
    uint32_t vocab;             /* [154880] */
    uint32_t heads;             /* [64] */
    uint32_t q_lora;            /* [2048] */
    uint32_t kv_lora;           /* latent values per cache row [512] */
    uint32_t rope;              /* rotated values per head [64] */
    uint32_t key_mla;           /* values of a query head: unrotated, then rotated [256 = 192 + 64] */
    uint32_t value_mla;         /* values of a value head [256] */
    uint32_t dense_layers;      /* leading layers with a dense feed-forward network [3] */
    uint32_t dense_ff;          /* its width [12288] */
    uint32_t experts;           /* routed experts per sparse layer [256] */
    uint32_t experts_used;      /* of them per token [8] */
    uint32_t expert_ff;         /* width of one routed expert [2048] */
    uint32_t shared_ff;         /* width of the shared expert [2048] */
    uint32_t index_heads;       /* [32] */
    uint32_t index_key;         /* [128] */
    uint32_t index_top_k;       /* positions a query may attend to [2048] */
    float rms_epsilon;          /* [1e-5] */
    float rope_base;            /* [8e6] */
    float expert_scale;         /* factor of the routing weights [2.5] */
    uint32_t expert_norm;       /* 1: the routing weights of a token are divided by their sum [1] */
    uint8_t index_full[GLM52_LAYERS_MAX]; /* per trunk layer 1: runs its own indexer, 0: reuses the one before */
} glm52_shape;

/* One tensor of the file. */
typedef struct glm52_tensor_info {
    const char *name;
    const char *type_name;      /* "Q8_0" */
    uint32_t type;              /* ggml's number of it */
    uint32_t dimensions;
    uint64_t size[4];           /* elements per dimension, contiguous one first; 1 beyond dimensions */
    uint64_t bytes;
    uint64_t offset;            /* in its shard's file */
    uint32_t shard;             /* from 0 */
    uint64_t stride;            /* 0: the bytes are one run. In a colocated file, of a stack of experts: bytes from
                                   one expert's slice, the first at offset, to the next one's */
} glm52_tensor_info;

/* A key of the file's metadata. GGUF's type numbers: u8 0, i8 1, u16 2, i16 3, u32 4, i32 5, f32 6, bool 7,
 * string 8, array 9, u64 10, i64 11, f64 12. */
typedef struct glm52_value {
    const char *key;
    uint32_t type;
    uint32_t element_type;      /* of an array; else the type itself */
    uint64_t count;             /* elements of an array; else 1 */
    const void *data;           /* the file's bytes, little-endian and unaligned: numbers one after another; each
                                   string a u64 length and its bytes, not terminated */
    uint64_t data_bytes;
} glm52_value;

/* Opens the GGUF at path, which may be any shard of a split file or a folder holding one model. Every shard is
 * mapped read-only and everything the file says is checked: nothing of it is believed later that was not
 * checked here. Reads headers only, so it takes the same time for any size of weights.
 * Errors: ARGUMENT if path or model_out is NULL; IO; MODEL; SHAPE; UNSUPPORTED for another architecture or a
 * quantisation type that is not read; MEMORY. */
GLM52_API glm52_status glm52_model_open(const char *path, glm52_model **model_out);

/* Gives the model up. Engines opened on it keep it alive until they are closed. */
GLM52_API void glm52_model_close(glm52_model *model);

/* Hyperparameters of the model. */
GLM52_API const glm52_shape *glm52_model_shape(const glm52_model *model);

/* Path of shard index, "" past the last. */
GLM52_API const char *glm52_model_path(const glm52_model *model, uint32_t index);

/* Number of files the model is in. */
GLM52_API uint32_t glm52_model_shard_count(const glm52_model *model);

/* Bytes of all shards together. */
GLM52_API uint64_t glm52_model_file_bytes(const glm52_model *model);

/* Number of tensors in all shards. */
GLM52_API uint64_t glm52_model_tensor_count(const glm52_model *model);

/* Describes tensor index (order of the file, shard after shard).
 * Errors: ARGUMENT if a pointer is NULL or index is not below the count. */
GLM52_API glm52_status glm52_model_tensor(const glm52_model *model, uint64_t index,
                                          glm52_tensor_info *tensor_out);

/* Number of metadata keys (of the first shard, which holds the model's). */
GLM52_API uint64_t glm52_model_key_count(const glm52_model *model);

/* Describes key index. Errors: ARGUMENT if a pointer is NULL or index is not below the count. */
GLM52_API glm52_status glm52_model_key(const glm52_model *model, uint64_t index, glm52_value *value_out);

/* Finds a key by name; *found_out says whether there is one, and only then value_out is written.
 * Errors: ARGUMENT if a pointer is NULL. */
GLM52_API glm52_status glm52_model_find_key(const glm52_model *model, const char *key, bool *found_out,
                                            glm52_value *value_out);

/* Writes the model's identity, 64 hexadecimal digits and a zero, to identity_out: SHA-256 over every header
 * byte, the directory of tensors and sampled blocks of each tensor (docs/FORMAT.md). It depends on content
 * only: not on path, time or owner. Reads some megabytes of the file.
 * Errors: ARGUMENT if a pointer is NULL; IO. */
GLM52_API glm52_status glm52_model_identity(const glm52_model *model, char *identity_out);

/* ---- engines ------------------------------------------------------------------------------------------- */

typedef enum glm52_kv_type {
    GLM52_KV_F16 = 0,
    GLM52_KV_F32 = 1
} glm52_kv_type;

typedef struct glm52_engine_options {
    const char *backend;        /* "cpu", "metal", "cuda", "sim" (kernels on this processor: slow); "auto" and NULL
                                   take metal or cuda if there is a device, else cpu */
    uint32_t context;           /* positions, 1..context_max of the model */
    uint32_t threads;           /* 0: one per processor this process may use */
    uint32_t quality;           /* 1: float32 activations, exact weights; 0: 8-bit activations against
                                   quantised weights */
    uint32_t kv_type;           /* glm52_kv_type */
    uint32_t chunk_rows;        /* rows of a prefill batch, 0: GLM52_CHUNK_ROWS_DEFAULT. Never changes a bit in
                                   quality mode */
    float latent_epsilon;       /* of the norms of q_a and kv_a; 0: the model's. 1e-6 is what transformers uses */
    const glm52_stream_options *streaming; /* NULL: every expert stays mapped; borrowed for the call that opens */
    uint32_t sessions;          /* conversations that the plan has room for beside the engine's (glm52_session.h) */
    uint32_t mtp;               /* 1: run the file's MTP block beside the trunk, so that drafts can be made */
    uint32_t drafts;            /* of each cycle, 1..GLM52_DRAFTS_MAX; 0: as many as pay */
} glm52_engine_options;

#define GLM52_CHUNK_ROWS_DEFAULT 256
#define GLM52_CHUNK_ROWS_MAX 4096
#define GLM52_SESSIONS_MAX 4096
#define GLM52_DRAFTS_MAX 7

/* Memory of an engine, in bytes; total is the sum of the others. */
typedef struct glm52_plan {
    uint64_t weights_mapped;    /* of the file, shared with the page cache; without what is streamed */
    uint64_t kv_cache;          /* compact keys and values of every layer */
    uint64_t index_cache;       /* indexer keys of the full layers */
    uint64_t activations;       /* rows of one batch */
    uint64_t backend_scratch;   /* what operations need beside their operands */
    uint64_t mtp;               /* caches of the MTP block */
    uint64_t sessions;          /* conversations beside the engine's: those reserved, or those open if more */
    uint64_t host;              /* tokens, logits, tables, what observers see */
    uint64_t expert_cache;      /* slots of streamed experts */
    uint64_t stream_buffers;    /* what streaming needs beside slots */
    uint64_t total;
} glm52_plan;

/* Called before each batch and after each of its layers with the position reached: tokens held, plus of the
 * batch under way the share of its layers that is done. Returning false cancels: after the current layer. While
 * a wide batch streams experts it is also called inside a layer, whenever some of them are done, and then
 * cancels there. */
typedef bool glm52_progress(void *user, uint32_t position);

/* What one layer decided for the rows of one batch; pointers live for the call only. */
typedef struct glm52_observation {
    uint32_t layer;
    uint32_t position;              /* of row 0 */
    uint32_t row_count;
    uint32_t experts_used;          /* 0 on dense layers */
    const int32_t *route_ids;       /* [row_count, experts_used], best first */
    const float *route_weights;     /* [row_count, experts_used] */
    const float *route_margins;     /* [row_count] sigmoid(logit) + bias of the last expert chosen less that of the
                                       first that was not; infinite on dense layers */
    const float *select_margins;    /* [row_count] score of the last position selected less that of the first that was
                                       not, over the root mean square of all; infinite where all are taken. A layer
                                       that shares a selection has the margins of the layer that made it */
    uint32_t selected_stride;
    const int32_t *selected;        /* [row_count, selected_stride]; row r holds min(position + r + 1,
                                       selected_stride) positions, ascending */
    const float *hidden;            /* [row_count, hidden] residual stream behind the layer */
} glm52_observation;
typedef void glm52_observer(void *user, const glm52_observation *observation);

/* Called with the logits [vocab] of one token that was fed, at position; they live for the call only. */
typedef void glm52_logits_observer(void *user, uint32_t position, const float *logits);

typedef struct glm52_stats {
    uint64_t prefill_tokens;
    uint64_t prefill_ns;
    uint64_t eval_tokens;
    uint64_t eval_ns;
    uint64_t cancelled;         /* calls that ended early */
    uint64_t mtp_cycles;        /* batches that ran drafts */
    uint64_t mtp_drafted;       /* tokens predicted in them */
    uint64_t mtp_accepted;      /* of them, those that were then fed */
    uint64_t mtp_passes;        /* of the MTP block, prompts included */
    uint64_t mtp_ns;            /* in the MTP block */
    uint64_t mtp_verify_ns;     /* in the batches that ran drafts */
    uint32_t mtp_length;        /* drafts of the next cycle; 0: none, it may be for a single cycle */
    uint32_t mtp_off;           /* 1: drafts were tried and do not pay at the moment */
} glm52_stats;

/* Works out what an engine would allocate, without allocating it. Errors: as glm52_engine_open. */
GLM52_API glm52_status glm52_engine_plan(const glm52_model *model, const glm52_engine_options *options,
                                         glm52_plan *plan_out);

/* Opens an engine: plans, then allocates once. Errors: ARGUMENT; CONTEXT if context is 0 or past the model's
 * maximum; UNSUPPORTED for an unknown backend; BUDGET, with the numbers, if a streaming engine needs more memory
 * than there is or its cache can't hold one token's selection; IO; MEMORY. */
GLM52_API glm52_status glm52_engine_open(glm52_model *model, const glm52_engine_options *options,
                                         glm52_engine **engine_out);

/* Frees the engine and all that it holds. */
GLM52_API void glm52_engine_close(glm52_engine *engine);

/* Name of the backend in use ("cpu"); of "auto", what it took. */
GLM52_API const char *glm52_engine_backend(const glm52_engine *engine);

/* The plan that was allocated. */
GLM52_API const glm52_plan *glm52_engine_plan_used(const glm52_engine *engine);

/* Feeds count tokens. *completed_out says how many were taken, also when the call fails: all of them, or after
 * a cancellation those of the batches that were finished. The engine then stands at that position, and feeding
 * the rest gives what one call would have given.
 * Errors: ARGUMENT (a NULL pointer, count 0, an id outside the vocabulary: named, before any work); CONTEXT if
 * the context would overflow, before any work; CANCELLED. */
GLM52_API glm52_status glm52_prefill(glm52_engine *engine, const int32_t *ids, uint32_t count,
                                     glm52_progress *progress, void *user, uint32_t *completed_out);

/* Feeds one token. Errors: as glm52_prefill; after CANCELLED the engine is as it was. */
GLM52_API glm52_status glm52_eval(glm52_engine *engine, int32_t id, glm52_progress *progress, void *user);

/* Logits of the last token fed [vocab], or NULL if there are none: before the first token and after a rewind. */
GLM52_API const float *glm52_logits(const glm52_engine *engine);

/* Number of tokens the engine holds, which is the position of the next one. */
GLM52_API uint32_t glm52_position(const glm52_engine *engine);

/* Positions the engine has room for. */
GLM52_API uint32_t glm52_context(const glm52_engine *engine);

/* The tokens held [position]. */
GLM52_API const int32_t *glm52_tokens(const glm52_engine *engine);

/* Goes back to an earlier position. What follows is bit for bit what it would have been without the tokens
 * taken back. Logits are gone unless position is the current one. Errors: CONTEXT past the current position. */
GLM52_API glm52_status glm52_rewind(glm52_engine *engine, uint32_t position);

/* Keeps the longest common prefix of the tokens held and ids, at most count - 1 so that feeding the rest gives
 * logits; *kept_out is its length. Errors: ARGUMENT if a pointer is NULL or count is 0. */
GLM52_API glm52_status glm52_align(glm52_engine *engine, const int32_t *ids, uint32_t count,
                                   uint32_t *kept_out);

/* Which loops run on this machine, of those that the engine's backend has: the instruction set of the CPU's. Loops of
 * one backend all give the same bits. Static; "" for NULL. */
GLM52_API const char *glm52_engine_kernels(const glm52_engine *engine);

/* Has observer called once per trunk layer of every batch; NULL ends it. Errors: ARGUMENT if engine is NULL;
 * MEMORY. */
GLM52_API glm52_status glm52_observe(glm52_engine *engine, glm52_observer *observer, void *user);

/* Has observer called with the logits of every token fed at position first or behind it, in their order, when its batch
 * has gone through the trunk: what glm52_logits would show if tokens were fed one by one, bit for bit. Tokens run ahead
 * (glm52_eval_ahead) are not shown. NULL ends it. Errors: ARGUMENT if engine is NULL; MEMORY. */
GLM52_API glm52_status glm52_observe_logits(glm52_engine *engine, uint32_t first, glm52_logits_observer *observer,
                                            void *user);

/* Counters since open. */
GLM52_API void glm52_engine_stats(const glm52_engine *engine, glm52_stats *stats_out);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#include "glm52_ops.h"
#include "glm52_session.h"
#include "glm52_stream.h"

#endif
