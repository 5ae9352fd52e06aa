/* glm52_ops.h - the operations a backend implements: the numbers each takes, and a call per operation for tests.
 *
 * One struct of numbers per operation; the operands follow as pointers. A stride is the distance of two rows (or
 * heads) in elements. Rows of a batch are consecutive positions: row r stands at position + r.
 *
 * Every call returns a status. Errors of every call: ARGUMENT if a pointer is NULL (unless said), a count is 0
 * or a size does not fit its type's blocks; UNSUPPORTED for an unknown type; MEMORY. */
#ifndef GLM52_OPS_PUBLIC_H
#define GLM52_OPS_PUBLIC_H

#include "glm52.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

/* Gathers rows of a quantised table. */
typedef struct glm52_embed_args {
    uint32_t row_count, hidden, type, vocab;
} glm52_embed_args;

/* out[r, i] = x[r, i] * weight[i] / sqrt(mean(x[r, :]^2) + epsilon). In place if out is x. */
typedef struct glm52_rms_norm_args {
    uint32_t row_count, row_size, x_stride, out_stride;
    float epsilon;
} glm52_rms_norm_args;

/* Rotates rope_size values from x[r, h] on, in place, in interleaved pairs: (a, b) becomes
 * (a cos - b sin, b cos + a sin). Row r of the table holds cos and sin of its position, pair after pair. */
typedef struct glm52_rope_args {
    uint32_t row_count, head_count, rope_size, row_stride, head_stride;
} glm52_rope_args;

/* out[r, g, o] = sum over i of w[g, o, i] * x[r, g, i]. The matrix holds group_count blocks of out_count rows of
 * in_count values of a type. exact: float32 activations against exact weights, else 8-bit activations against
 * quantised weights (weights of type F32, F16 and BF16 are always exact). */
typedef struct glm52_matmul_args {
    uint32_t row_count, in_count, out_count, group_count, type, exact;
    uint32_t x_row_stride, x_group_stride, out_row_stride, out_group_stride;
} glm52_matmul_args;

/* Writes cache row position + r = [ rms_norm(x[r, 0:latent]) | rotate(x[r, latent:latent + rope_size]) ]. */
typedef struct glm52_kv_store_args {
    uint32_t row_count, latent, rope_size, position, kv_type, x_stride;
    float epsilon;
} glm52_kv_store_args;

/* Writes cache row position + r = LayerNorm(x[r, :]) with weight and bias, its first rope_size values rotated. */
typedef struct glm52_index_store_args {
    uint32_t row_count, key_size, rope_size, position, kv_type, x_stride;
    float epsilon;
} glm52_index_store_args;

/* scores[r, s] = sum over h of weights[r, h] * max(0, scale * q[r, h] . cache[s]) for s <= position + r. */
typedef struct glm52_index_score_args {
    uint32_t row_count, head_count, key_size, position, kv_type, score_stride, q_stride, weight_stride;
    float scale;
} glm52_index_score_args;

/* selected[r, :] = the min(k, position + r + 1) positions of the largest scores[r, 0 .. position + r]: higher
 * score first, then lower position; written in ascending order. A NaN score counts as the lowest. */
typedef struct glm52_top_k_args {
    uint32_t row_count, position, k, score_stride, selected_stride;
} glm52_top_k_args;

/* For each row and head: softmax over the selected cache rows s of
 * scale * (q_latent . cache[s, 0:latent] + q_rope . cache[s, latent:]), then out[r, h] = sum of p_s *
 * cache[s, 0:latent]. Row r has min(k, position + r + 1) selected rows. */
typedef struct glm52_attention_args {
    uint32_t row_count, head_count, latent, rope_size, position, k, kv_type, selected_stride;
    uint32_t q_latent_row_stride, q_latent_head_stride, q_rope_row_stride, q_rope_head_stride;
    uint32_t out_row_stride, out_head_stride;
    float scale;
} glm52_attention_args;

/* p = sigmoid(logits[r, :]); ids[r, :] = the used_count experts of largest p + bias, best first, ties to the
 * lower id; weights[r, :] = p of them, without bias, divided by their sum + 1e-20 if normalise, times scale. A
 * choice that is NaN counts as the lowest. */
typedef struct glm52_router_args {
    uint32_t row_count, expert_count, used_count, normalise, logits_stride;
    float scale;
} glm52_router_args;

/* out[r, i] = gate[r, i] * sigmoid(gate[r, i]) * up[r, i]. In place if out is gate or up. */
typedef struct glm52_swiglu_args {
    uint32_t row_count, row_size, gate_stride, up_stride, out_stride;
} glm52_swiglu_args;

/* Where the three matrices of one expert lie. All NULL: not at hand, and skipped. */
typedef struct glm52_expert {
    const void *gate; /* [ff_count, in_count] */
    const void *up;   /* [ff_count, in_count] */
    const void *down; /* [in_count, ff_count] */
} glm52_expert;

/* out[r, :] += sum over k of weights[r, k] * down(silu(gate x[r]) * up x[r]) of expert ids[r, k], in the order of
 * ascending expert id. Each expert's matrices are read once, for all rows that chose it. */
typedef struct glm52_moe_args {
    uint32_t row_count, expert_count, used_count, in_count, ff_count;
    uint32_t gate_type, up_type, down_type, exact, x_stride, out_stride;
} glm52_moe_args;

/* out[i] = a[i] + b[i] + c[i]; c may be NULL. In place if out is any of them. */
typedef struct glm52_add_args {
    uint64_t count;
} glm52_add_args;

/* The index-th backend at hand: "cpu" first, then those of the GPU drivers whose library is there. NULL behind the
 * last. A driver may still find no device when it is opened. */
GLM52_API const char *glm52_backend_name(uint32_t index);

/* Opens a backend by name for calling operations one by one; "auto" and NULL are the best at hand, and no simulator.
 * threads 0: one per processor. Errors: ARGUMENT; UNSUPPORTED; MEMORY. */
typedef struct glm52_backend glm52_backend;
GLM52_API glm52_status glm52_backend_open(const char *name, uint32_t threads, glm52_backend **backend_out);

/* Frees the backend and its memory. */
GLM52_API void glm52_backend_close(glm52_backend *backend);

/* Memory that operands may lie in, zeroed; any memory of the caller's will do for "cpu", none for others. Errors:
 * ARGUMENT; MEMORY. */
GLM52_API glm52_status glm52_backend_allocate(glm52_backend *backend, size_t bytes, void **address_out);

/* Gives it back; accepts NULL. */
GLM52_API void glm52_backend_release(glm52_backend *backend, void *address);

/* Copies bytes between the caller's memory and the backend's. Errors: ARGUMENT; what the device reports. */
GLM52_API glm52_status glm52_backend_write(glm52_backend *backend, void *address, const void *host, size_t bytes);

/* The other way. Errors: as glm52_backend_write. */
GLM52_API glm52_status glm52_backend_read(glm52_backend *backend, void *host, const void *address, size_t bytes);

/* out [row_count, hidden], table [vocab, hidden] of type, ids [row_count]. Errors: see the top. */
GLM52_API glm52_status glm52_op_embed(glm52_backend *backend, const glm52_embed_args *args, float *out,
                                      const void *table, const int32_t *ids);
/* out, x [row_count, row_size], weight [row_size]. Errors: see the top. */
GLM52_API glm52_status glm52_op_rms_norm(glm52_backend *backend, const glm52_rms_norm_args *args, float *out,
                                         const float *x, const float *weight);
/* x [row_count, head_count, rope_size], table [row_count, rope_size]. Errors: see the top. */
GLM52_API glm52_status glm52_op_rope(glm52_backend *backend, const glm52_rope_args *args, float *x,
                                     const float *table);
/* out [row_count, group_count, out_count], x [row_count, group_count, in_count], weights [group_count,
 * out_count, in_count] of type. Errors: see the top. */
GLM52_API glm52_status glm52_op_matmul(glm52_backend *backend, const glm52_matmul_args *args, float *out,
                                       const float *x, const void *weights);
/* cache [position + row_count, latent + rope_size] of kv_type, x [row_count, latent + rope_size],
 * weight [latent], table [row_count, rope_size]. Errors: see the top. */
GLM52_API glm52_status glm52_op_kv_store(glm52_backend *backend, const glm52_kv_store_args *args, void *cache,
                                         const float *x, const float *weight, const float *table);
/* cache [position + row_count, key_size] of kv_type, x [row_count, key_size], weight and bias [key_size],
 * table [row_count, rope_size]. Errors: see the top. */
GLM52_API glm52_status glm52_op_index_store(glm52_backend *backend, const glm52_index_store_args *args,
                                            void *cache, const float *x, const float *weight,
                                            const float *bias, const float *table);
/* scores [row_count, score_stride], q [row_count, head_count, key_size], weights [row_count, head_count],
 * cache [position + row_count, key_size] of kv_type. Errors: see the top. */
GLM52_API glm52_status glm52_op_index_score(glm52_backend *backend, const glm52_index_score_args *args,
                                            float *scores, const float *q, const float *weights,
                                            const void *cache);
/* selected [row_count, selected_stride], scores [row_count, score_stride]; scores may be NULL if every row has
 * at most k positions. Errors: see the top. */
GLM52_API glm52_status glm52_op_top_k(glm52_backend *backend, const glm52_top_k_args *args, int32_t *selected,
                                      const float *scores);
/* out [row_count, head_count, latent], q_latent the same, q_rope [row_count, head_count, rope_size],
 * cache [position + row_count, latent + rope_size] of kv_type, selected [row_count, selected_stride].
 * Errors: see the top. */
GLM52_API glm52_status glm52_op_attention(glm52_backend *backend, const glm52_attention_args *args, float *out,
                                          const float *q_latent, const float *q_rope, const void *cache,
                                          const int32_t *selected);
/* ids, weights [row_count, used_count], logits [row_count, expert_count], bias [expert_count].
 * Errors: see the top. */
GLM52_API glm52_status glm52_op_router(glm52_backend *backend, const glm52_router_args *args, int32_t *ids,
                                       float *weights, const float *logits, const float *bias);
/* out, gate, up [row_count, row_size]. Errors: see the top. */
GLM52_API glm52_status glm52_op_swiglu(glm52_backend *backend, const glm52_swiglu_args *args, float *out,
                                       const float *gate, const float *up);
/* out, x [row_count, in_count], ids and weights [row_count, used_count], experts [expert_count].
 * Errors: see the top. */
GLM52_API glm52_status glm52_op_moe(glm52_backend *backend, const glm52_moe_args *args, float *out,
                                    const float *x, const int32_t *ids, const float *weights,
                                    const glm52_expert *experts);
/* out, a, b, c [count]. Errors: see the top. */
GLM52_API glm52_status glm52_op_add(glm52_backend *backend, const glm52_add_args *args, float *out,
                                    const float *a, const float *b, const float *c);

/* ---- quantised blocks, for tests and tools ---- */

typedef struct glm52_quant_info {
    const char *name;       /* "Q2_K" */
    uint32_t type;          /* ggml's number */
    uint32_t block_size;    /* values per block */
    uint32_t block_bytes;
} glm52_quant_info;

/* Number of types that are read. */
GLM52_API uint32_t glm52_quant_count(void);

/* Describes the index-th type. Errors: ARGUMENT if info_out is NULL or index is not below the count. */
GLM52_API glm52_status glm52_quant_describe(uint32_t index, glm52_quant_info *info_out);

/* out [count] = the exact values of count / block_size blocks. Errors: UNSUPPORTED for an unknown type, ARGUMENT
 * if a pointer is NULL or count is no multiple of the block size. */
GLM52_API glm52_status glm52_quant_decode(uint32_t type, const void *blocks, float *out, uint64_t count);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
