/* ops_api.c - the public calls of single operations: everything is checked here, then a backend's function
 * runs.
 *
 * The executor does not come this way: it calls the table with numbers that it made and checked itself. */
#include <string.h>

#include "error.h"
#include "ops.h"
#include "quant.h"

/* Largest number of values of one operand. It keeps every product of sizes below 2^63. */
#define OP_VALUES_MAX ((uint64_t)1 << 40)
/* Positions and ids are int32_t. */
#define OP_POSITIONS_MAX ((uint64_t)1 << 31)

/* ---- checks ---- */

static glm52_status check_address(const char *op, const char *name, const void *address, size_t alignment) {
    if (address == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s is NULL", op, name);
    if ((uintptr_t)address % alignment != 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s at %p is not aligned to %zu bytes", op, name, address,
                          alignment);
    }
    return GLM52_OK;
}

static glm52_status check_count(const char *op, const char *name, uint64_t count) {
    return count > 0 ? GLM52_OK : glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s is 0", op, name);
}

/* a * b * c values of an operand, each factor below 2^32. */
static glm52_status check_values(const char *op, const char *name, uint64_t a, uint64_t b, uint64_t c) {
    if (c != 0 && a * b > OP_VALUES_MAX / c) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s of %llu * %llu * %llu values; at most %llu", op, name,
                          (unsigned long long)a, (unsigned long long)b, (unsigned long long)c,
                          (unsigned long long)OP_VALUES_MAX);
    }
    return GLM52_OK;
}

/* Rows of size values that lie stride apart. */
static glm52_status check_stride(const char *op, const char *name, uint64_t rows, uint64_t stride,
                                 uint64_t size) {
    if (rows > 1 && stride < size) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s %llu is below a row's size %llu", op, name,
                          (unsigned long long)stride, (unsigned long long)size);
    }
    return check_values(op, name, rows, stride, 1);
}

/* Rows of groups of size values that are written: no two may overlap. */
static glm52_status check_grid(const char *op, const char *name, uint64_t rows, uint64_t row_stride,
                               uint64_t groups, uint64_t group_stride, uint64_t size) {
    GLM52_TRY(check_stride(op, name, rows, row_stride, size));
    GLM52_TRY(check_stride(op, name, groups, group_stride, size));
    if (rows > 1 && groups > 1 && row_stride < (groups - 1) * group_stride + size &&
        group_stride < (rows - 1) * row_stride + size) {
        return glm52_fail(GLM52_ERR_ARGUMENT,
                          "%s: %s: %llu rows %llu apart of %llu groups %llu apart of %llu values overlap", op,
                          name, (unsigned long long)rows, (unsigned long long)row_stride,
                          (unsigned long long)groups, (unsigned long long)group_stride,
                          (unsigned long long)size);
    }
    return GLM52_OK;
}

static glm52_status check_type(const char *op, const char *name, uint32_t type, uint32_t size) {
    const struct glm52_quant *quant = glm52_quant_find(type);
    if (quant == NULL) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: %s %u is not read; these are: %s", op, name, type,
                          glm52_quant_names());
    }
    if (size % quant->block_size != 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT,
                          "%s: rows of %u values are no multiple of the %u in a block of %s", op, size,
                          quant->block_size, quant->name);
    }
    return GLM52_OK;
}

static glm52_status check_cache(const char *op, const void *cache, uint32_t kv_type) {
    if (kv_type != GLM52_KV_F16 && kv_type != GLM52_KV_F32) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: kv_type %u; it must be %d (f16) or %d (f32)", op,
                          kv_type, GLM52_KV_F16, GLM52_KV_F32);
    }
    return check_address(op, "cache", cache, kv_type == GLM52_KV_F32 ? sizeof(float) : sizeof(uint16_t));
}

static glm52_status check_positions(const char *op, uint64_t position, uint64_t row_count) {
    if (position + row_count > OP_POSITIONS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %llu rows from position %llu on; positions end at %llu",
                          op, (unsigned long long)row_count, (unsigned long long)position,
                          (unsigned long long)OP_POSITIONS_MAX);
    }
    return GLM52_OK;
}

static glm52_status check_rotation(const char *op, uint32_t rope_size, uint32_t row_size) {
    if (rope_size == 0 || rope_size % 2 != 0 || rope_size > row_size) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: rope_size %u must be even, not 0 and at most %u", op,
                          rope_size, row_size);
    }
    return GLM52_OK;
}

/* ids [count] in the backend's memory, each from 0 to limit - 1. */
static glm52_status check_ids(glm52_backend *backend, const char *op, const char *name, const int32_t *ids,
                              uint64_t count, uint64_t limit) {
    int32_t piece[256];
    const uint64_t piece_max = sizeof(piece) / sizeof(piece[0]);
    for (uint64_t first = 0; first < count; first += piece_max) {
        const uint64_t length = count - first < piece_max ? count - first : piece_max;
        backend->ops->read(backend, piece, ids + first, (size_t)length * sizeof(piece[0]));
        for (uint64_t i = 0; i < length; i++) {
            if (piece[i] >= 0 && (uint64_t)piece[i] < limit) continue;
            return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s[%llu] is %d; it must be from 0 to %llu", op, name,
                              (unsigned long long)(first + i), piece[i], (unsigned long long)(limit - 1));
        }
    }
    return GLM52_OK;
}

/* Inside a call, where op is its name and args its numbers. */
#define BEGIN(name)                                                                                          \
    static const char op[] = #name;                                                                          \
    if (backend == NULL || args == NULL) {                                                                   \
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %s is NULL", op, backend == NULL ? "backend" : "args");   \
    }
#define ADDRESS(pointer) GLM52_TRY(check_address(op, #pointer, pointer, _Alignof(float)))
#define COUNT(field) GLM52_TRY(check_count(op, #field, args->field))
#define STRIDE(field, rows, size) GLM52_TRY(check_stride(op, #field, rows, args->field, size))
#define RUN(name, ...)                                                                                       \
    do {                                                                                                     \
        GLM52_TRY(backend->ops->reserve(backend, backend->ops->name##_scratch(backend, args)));              \
        backend->ops->name(backend, args, __VA_ARGS__);                                                      \
        return backend->ops->finish(backend);                                                                \
    } while (0)

/* ---- the calls ---- */

glm52_status glm52_op_embed(glm52_backend *backend, const glm52_embed_args *args, float *out,
                            const void *table, const int32_t *ids) {
    BEGIN(embed);
    ADDRESS(out);
    GLM52_TRY(check_address(op, "table", table, 1));
    ADDRESS(ids);
    COUNT(row_count);
    COUNT(hidden);
    COUNT(vocab);
    GLM52_TRY(check_type(op, "type", args->type, args->hidden));
    GLM52_TRY(check_values(op, "table", args->vocab, args->hidden, 1));
    GLM52_TRY(check_values(op, "out", args->row_count, args->hidden, 1));
    GLM52_TRY(check_ids(backend, op, "ids", ids, args->row_count, args->vocab));
    RUN(embed, out, table, ids);
}

glm52_status glm52_op_rms_norm(glm52_backend *backend, const glm52_rms_norm_args *args, float *out,
                               const float *x, const float *weight) {
    BEGIN(rms_norm);
    ADDRESS(out);
    ADDRESS(x);
    ADDRESS(weight);
    COUNT(row_count);
    COUNT(row_size);
    STRIDE(x_stride, args->row_count, args->row_size);
    STRIDE(out_stride, args->row_count, args->row_size);
    RUN(rms_norm, out, x, weight);
}

glm52_status glm52_op_rope(glm52_backend *backend, const glm52_rope_args *args, float *x,
                           const float *table) {
    BEGIN(rope);
    ADDRESS(x);
    ADDRESS(table);
    COUNT(row_count);
    COUNT(head_count);
    GLM52_TRY(check_rotation(op, args->rope_size, UINT32_MAX));
    GLM52_TRY(check_grid(op, "x", args->row_count, args->row_stride, args->head_count, args->head_stride,
                         args->rope_size));
    RUN(rope, x, table);
}

glm52_status glm52_op_matmul(glm52_backend *backend, const glm52_matmul_args *args, float *out,
                             const float *x, const void *weights) {
    BEGIN(matmul);
    ADDRESS(out);
    ADDRESS(x);
    GLM52_TRY(check_address(op, "weights", weights, 1));
    COUNT(row_count);
    COUNT(in_count);
    COUNT(out_count);
    COUNT(group_count);
    GLM52_TRY(check_type(op, "type", args->type, args->in_count));
    GLM52_TRY(check_values(op, "weights", args->in_count, args->out_count, args->group_count));
    GLM52_TRY(check_values(op, "x", args->row_count, args->group_count, args->in_count));
    STRIDE(x_row_stride, args->row_count, args->in_count);
    STRIDE(x_group_stride, args->group_count, args->in_count);
    GLM52_TRY(check_grid(op, "out", args->row_count, args->out_row_stride, args->group_count,
                         args->out_group_stride, args->out_count));
    RUN(matmul, out, x, weights);
}

glm52_status glm52_op_kv_store(glm52_backend *backend, const glm52_kv_store_args *args, void *cache,
                               const float *x, const float *weight, const float *table) {
    BEGIN(kv_store);
    GLM52_TRY(check_cache(op, cache, args->kv_type));
    ADDRESS(x);
    ADDRESS(weight);
    ADDRESS(table);
    COUNT(row_count);
    COUNT(latent);
    GLM52_TRY(check_rotation(op, args->rope_size, UINT32_MAX));
    const uint64_t row_size = (uint64_t)args->latent + args->rope_size;
    STRIDE(x_stride, args->row_count, row_size);
    GLM52_TRY(check_positions(op, args->position, args->row_count));
    GLM52_TRY(check_values(op, "cache", (uint64_t)args->position + args->row_count, row_size, 1));
    RUN(kv_store, cache, x, weight, table);
}

glm52_status glm52_op_index_store(glm52_backend *backend, const glm52_index_store_args *args, void *cache,
                                  const float *x, const float *weight, const float *bias,
                                  const float *table) {
    BEGIN(index_store);
    GLM52_TRY(check_cache(op, cache, args->kv_type));
    ADDRESS(x);
    ADDRESS(weight);
    ADDRESS(bias);
    ADDRESS(table);
    COUNT(row_count);
    COUNT(key_size);
    GLM52_TRY(check_rotation(op, args->rope_size, args->key_size));
    STRIDE(x_stride, args->row_count, args->key_size);
    GLM52_TRY(check_positions(op, args->position, args->row_count));
    GLM52_TRY(check_values(op, "cache", (uint64_t)args->position + args->row_count, args->key_size, 1));
    RUN(index_store, cache, x, weight, bias, table);
}

glm52_status glm52_op_index_score(glm52_backend *backend, const glm52_index_score_args *args, float *scores,
                                  const float *q, const float *weights, const void *cache) {
    BEGIN(index_score);
    ADDRESS(scores);
    ADDRESS(q);
    ADDRESS(weights);
    GLM52_TRY(check_cache(op, cache, args->kv_type));
    COUNT(row_count);
    COUNT(head_count);
    COUNT(key_size);
    GLM52_TRY(check_positions(op, args->position, args->row_count));
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    GLM52_TRY(check_values(op, "q", args->row_count, args->head_count, args->key_size));
    GLM52_TRY(check_values(op, "cache", visible, args->key_size, 1));
    STRIDE(score_stride, args->row_count, visible);
    STRIDE(q_stride, args->row_count, (uint64_t)args->head_count * args->key_size);
    STRIDE(weight_stride, args->row_count, args->head_count);
    RUN(index_score, scores, q, weights, cache);
}

glm52_status glm52_op_top_k(glm52_backend *backend, const glm52_top_k_args *args, int32_t *selected,
                            const float *scores) {
    BEGIN(top_k);
    ADDRESS(selected);
    COUNT(row_count);
    COUNT(k);
    GLM52_TRY(check_positions(op, args->position, args->row_count));
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    STRIDE(selected_stride, args->row_count, visible < args->k ? visible : args->k);
    if (visible > args->k) {
        ADDRESS(scores);
        STRIDE(score_stride, args->row_count, visible);
    }
    RUN(top_k, selected, scores);
}

static glm52_status check_selected(glm52_backend *backend, const char *op, const glm52_attention_args *args,
                                   const int32_t *selected) {
    for (uint64_t r = 0; r < args->row_count; r++) {
        const uint64_t visible = args->position + r + 1;
        GLM52_TRY(check_ids(backend, op, "selected", selected + r * args->selected_stride,
                            visible < args->k ? visible : args->k, visible));
    }
    return GLM52_OK;
}

glm52_status glm52_op_attention(glm52_backend *backend, const glm52_attention_args *args, float *out,
                                const float *q_latent, const float *q_rope, const void *cache,
                                const int32_t *selected) {
    BEGIN(attention);
    ADDRESS(out);
    ADDRESS(q_latent);
    ADDRESS(q_rope);
    GLM52_TRY(check_cache(op, cache, args->kv_type));
    ADDRESS(selected);
    COUNT(row_count);
    COUNT(head_count);
    COUNT(latent);
    COUNT(rope_size);
    COUNT(k);
    GLM52_TRY(check_positions(op, args->position, args->row_count));
    const uint64_t visible = (uint64_t)args->position + args->row_count;
    GLM52_TRY(check_values(op, "cache", visible, (uint64_t)args->latent + args->rope_size, 1));
    GLM52_TRY(check_values(op, "q_latent", args->row_count, args->head_count, args->latent));
    GLM52_TRY(check_values(op, "q_rope", args->row_count, args->head_count, args->rope_size));
    GLM52_TRY(check_values(op, "scores", args->head_count, visible < args->k ? visible : args->k, 1));
    STRIDE(selected_stride, args->row_count, visible < args->k ? visible : args->k);
    STRIDE(q_latent_row_stride, args->row_count, args->latent);
    STRIDE(q_latent_head_stride, args->head_count, args->latent);
    STRIDE(q_rope_row_stride, args->row_count, args->rope_size);
    STRIDE(q_rope_head_stride, args->head_count, args->rope_size);
    GLM52_TRY(check_grid(op, "out", args->row_count, args->out_row_stride, args->head_count,
                         args->out_head_stride, args->latent));
    GLM52_TRY(check_selected(backend, op, args, selected));
    RUN(attention, out, q_latent, q_rope, cache, selected);
}

glm52_status glm52_op_router(glm52_backend *backend, const glm52_router_args *args, int32_t *ids,
                             float *weights, const float *logits, const float *bias) {
    BEGIN(router);
    ADDRESS(ids);
    ADDRESS(weights);
    ADDRESS(logits);
    ADDRESS(bias);
    COUNT(row_count);
    COUNT(used_count);
    if (args->used_count > args->expert_count || args->expert_count > OP_POSITIONS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: used_count %u of %u experts", op, args->used_count,
                          args->expert_count);
    }
    STRIDE(logits_stride, args->row_count, args->expert_count);
    RUN(router, ids, weights, logits, bias);
}

glm52_status glm52_op_swiglu(glm52_backend *backend, const glm52_swiglu_args *args, float *out,
                             const float *gate, const float *up) {
    BEGIN(swiglu);
    ADDRESS(out);
    ADDRESS(gate);
    ADDRESS(up);
    COUNT(row_count);
    COUNT(row_size);
    STRIDE(gate_stride, args->row_count, args->row_size);
    STRIDE(up_stride, args->row_count, args->row_size);
    STRIDE(out_stride, args->row_count, args->row_size);
    RUN(swiglu, out, gate, up);
}

/* An expert is there with all its matrices or not at all. */
static glm52_status check_experts(const char *op, const glm52_expert *experts, uint32_t count) {
    for (uint32_t e = 0; e < count; e++) {
        const int matrices = (experts[e].gate != NULL) + (experts[e].up != NULL) + (experts[e].down != NULL);
        if (matrices == 0 || matrices == 3) continue;
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: experts[%u] has %d of its 3 matrices", op, e, matrices);
    }
    return GLM52_OK;
}

glm52_status glm52_op_moe(glm52_backend *backend, const glm52_moe_args *args, float *out, const float *x,
                          const int32_t *ids, const float *weights, const glm52_expert *experts) {
    BEGIN(moe);
    ADDRESS(out);
    ADDRESS(x);
    ADDRESS(ids);
    ADDRESS(weights);
    GLM52_TRY(check_address(op, "experts", experts, _Alignof(glm52_expert)));
    COUNT(row_count);
    COUNT(expert_count);
    COUNT(used_count);
    COUNT(in_count);
    COUNT(ff_count);
    GLM52_TRY(check_type(op, "gate_type", args->gate_type, args->in_count));
    GLM52_TRY(check_type(op, "up_type", args->up_type, args->in_count));
    GLM52_TRY(check_type(op, "down_type", args->down_type, args->ff_count));
    const uint64_t choices = (uint64_t)args->row_count * args->used_count;
    if (choices > OP_POSITIONS_MAX || args->expert_count > OP_POSITIONS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %llu choices of %u experts; at most %llu of either", op,
                          (unsigned long long)choices, args->expert_count,
                          (unsigned long long)OP_POSITIONS_MAX);
    }
    GLM52_TRY(check_values(op, "weights of an expert", args->in_count, args->ff_count, 1));
    GLM52_TRY(check_values(op, "hidden rows", choices, args->ff_count, 1));
    GLM52_TRY(check_values(op, "x", args->row_count, args->in_count, 1));
    STRIDE(x_stride, args->row_count, args->in_count);
    STRIDE(out_stride, args->row_count, args->in_count);
    GLM52_TRY(check_ids(backend, op, "ids", ids, choices, args->expert_count));
    GLM52_TRY(check_experts(op, experts, args->expert_count));
    RUN(moe, out, x, ids, weights, experts);
}

glm52_status glm52_op_add(glm52_backend *backend, const glm52_add_args *args, float *out, const float *a,
                          const float *b, const float *c) {
    BEGIN(add);
    ADDRESS(out);
    ADDRESS(a);
    ADDRESS(b);
    if (c != NULL) ADDRESS(c);
    COUNT(count);
    if (args->count > OP_VALUES_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s: %llu values; at most %llu", op,
                          (unsigned long long)args->count, (unsigned long long)OP_VALUES_MAX);
    }
    RUN(add, out, a, b, c);
}
