/* shape.c - the hyperparameters of a model, from the keys glm-dsa.* of its file, each checked against its
 * range and against the others. Tensors are checked against them in weights.c; which layers run their own
 * indexer is read in shape_index.c.
 *
 * Integers may be of any width and sign. Where a key may differ from layer to layer in GGUF (a list with an
 * element per block) all elements that count must be equal: a GLM has no layer unlike the others. */
#include "shape.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_parts.h"
#include "model.h"
#include "shape_parts.h"

#define ARCHITECTURE "glm-dsa"
#define GATING_NONE 0      /* "not said": llama.cpp takes it for the model's own, sigmoid */
#define GATING_SIGMOID 2

const char *glm52_shape_key(struct glm52_shape_name *name, const char *suffix) {
    snprintf(name->text, sizeof(name->text), ARCHITECTURE ".%s", suffix);
    return name->text;
}

static glm52_status fail_missing(const struct glm52_shape_reader *reader, const char *key) {
    return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is missing", reader->path, key);
}

/* Elements first..last - 1 of value, or the one it has, all the same. */
static glm52_status read_uniform(const struct glm52_shape_reader *reader, const glm52_value *value,
                                 uint32_t first, uint32_t last, uint64_t *out) {
    if (value->type != GGUF_ARRAY) return glm52_value_u64(reader->path, value, out);
    if (value->count != reader->blocks && value->count != reader->layers) {
        return glm52_fail(GLM52_ERR_SHAPE, "%s: key %s has %llu elements, the model has %u blocks",
                          reader->path, value->key, (unsigned long long)value->count, reader->blocks);
    }
    GLM52_TRY(glm52_value_u64_at(reader->path, value, first, out));
    for (uint32_t i = first + 1; i < last; i++) {
        uint64_t other = 0;
        GLM52_TRY(glm52_value_u64_at(reader->path, value, i, &other));
        if (other != *out) {
            return glm52_fail(GLM52_ERR_UNSUPPORTED,
                              "%s: key %s differs between layers (%llu on layer %u, %llu on layer %u)",
                              reader->path, value->key, (unsigned long long)*out, first,
                              (unsigned long long)other, i);
        }
    }
    return GLM52_OK;
}

static glm52_status check_range(const struct glm52_shape_reader *reader, const char *key, uint64_t number,
                                uint64_t min, uint64_t max) {
    if (number >= min && number <= max) return GLM52_OK;
    return glm52_fail(GLM52_ERR_SHAPE, "%s: key %s is %llu; %llu to %llu are read", reader->path, key,
                      (unsigned long long)number, (unsigned long long)min, (unsigned long long)max);
}

glm52_status glm52_shape_optional(const struct glm52_shape_reader *reader, const char *suffix, uint64_t min,
                                  uint64_t max, bool *found_out, uint32_t *out) {
    struct glm52_shape_name name;
    const glm52_value *value = glm52_gguf_key(reader->gguf, glm52_shape_key(&name, suffix));
    *found_out = value != NULL;
    if (value == NULL) return GLM52_OK;
    uint64_t number = 0;
    GLM52_TRY(read_uniform(reader, value, 0, reader->layers, &number));
    GLM52_TRY(check_range(reader, name.text, number, min, max));
    *out = (uint32_t)number;
    return GLM52_OK;
}

static glm52_status required(const struct glm52_shape_reader *reader, const char *suffix, uint64_t min,
                             uint64_t max, uint32_t *out) {
    bool found;
    GLM52_TRY(glm52_shape_optional(reader, suffix, min, max, &found, out));
    struct glm52_shape_name name;
    return found ? GLM52_OK : fail_missing(reader, glm52_shape_key(&name, suffix));
}

/* The width of a feed-forward network, which only the layers first..last - 1 have; 0 if none has. */
static glm52_status required_on(const struct glm52_shape_reader *reader, const char *suffix, uint32_t first,
                                uint32_t last, uint64_t max, uint32_t *out) {
    struct glm52_shape_name name;
    const glm52_value *value = glm52_gguf_key(reader->gguf, glm52_shape_key(&name, suffix));
    if (value == NULL && first == last) return GLM52_OK;
    if (value == NULL) return fail_missing(reader, name.text);
    uint64_t number = 0;
    GLM52_TRY(read_uniform(reader, value, first, last, &number));
    GLM52_TRY(check_range(reader, name.text, number, first < last, max));
    *out = (uint32_t)number;
    return GLM52_OK;
}

static glm52_status read_float(const struct glm52_shape_reader *reader, const char *suffix, float min,
                               float max, float *out) {
    struct glm52_shape_name name;
    bool found;
    GLM52_TRY(glm52_gguf_get_f32(reader->gguf, glm52_shape_key(&name, suffix), &found, out));
    if (!found) return fail_missing(reader, name.text);
    if (isfinite(*out) && *out >= min && *out <= max) return GLM52_OK;
    return glm52_fail(GLM52_ERR_SHAPE, "%s: key %s is %g; %g to %g are read", reader->path, name.text,
                      (double)*out, (double)min, (double)max);
}

static bool is_text(const glm52_value *value, const char *text) {
    return value->type == GGUF_STRING && value->data_bytes == 8 + strlen(text) &&
           memcmp((const char *)value->data + 8, text, strlen(text)) == 0;
}

static glm52_status check_architecture(const struct glm52_shape_reader *reader) {
    const glm52_value *value = glm52_gguf_key(reader->gguf, "general.architecture");
    if (value == NULL) return fail_missing(reader, "general.architecture");
    if (value->type != GGUF_STRING) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key general.architecture is not a text", reader->path);
    }
    /* A colocated file's architecture was checked with its keys (gguf_colocated.c). */
    if (is_text(value, ARCHITECTURE) || glm52_gguf_is_colocated(reader->gguf)) return GLM52_OK;
    struct glm52_shown shown;
    const bool fork = is_text(value, "glm_moe_dsa");
    return glm52_fail(
        GLM52_ERR_UNSUPPORTED, "%s: the architecture is %s, only %s is read%s", reader->path,
        glm52_show(&shown, (const uint8_t *)value->data + 8, value->data_bytes - 8), ARCHITECTURE,
        fork ? " (another program's layout of the same model: convert it with llama.cpp's converter)" : "");
}

/* Whether the file has any tensor of block number. */
static bool has_block(const struct glm52_gguf *gguf, uint32_t number) {
    char prefix[24];
    const int length = snprintf(prefix, sizeof(prefix), "blk.%u.", number);
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        if (strncmp(gguf->tensors[i].name, prefix, (size_t)length) == 0) return true;
    }
    return false;
}

/* block_count counts the MTP blocks too. A file that lost all tensors of them is a model without. */
static glm52_status read_blocks(struct glm52_shape_reader *reader, glm52_shape *shape) {
    uint32_t blocks = 0, nextn = 0;
    bool found;
    reader->layers = reader->blocks = 1;
    GLM52_TRY(required(reader, "block_count", 1, GLM52_LAYERS_MAX, &blocks));
    GLM52_TRY(glm52_shape_optional(reader, "nextn_predict_layers", 0, GLM52_SHAPE_NEXTN_MAX, &found, &nextn));
    if (nextn >= blocks) {
        return glm52_fail(GLM52_ERR_SHAPE,
                          "%s: nextn_predict_layers is %u, but block_count, which counts them, is %u",
                          reader->path, nextn, blocks);
    }
    reader->blocks = blocks;
    reader->layers = shape->layers = blocks - nextn;
    bool any = false;
    for (uint32_t i = shape->layers; i < blocks; i++) any = any || has_block(reader->gguf, i);
    shape->nextn_layers = any ? nextn : 0;
    return GLM52_OK;
}

static glm52_status read_context(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    uint32_t context = 0;
    GLM52_TRY(required(reader, "context_length", 1, GLM52_SHAPE_CONTEXT_MAX, &context));
    shape->context_max = context;
    return GLM52_OK;
}

static glm52_status read_vocab(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    bool found;
    GLM52_TRY(glm52_shape_optional(reader, "vocab_size", 1, GLM52_SHAPE_VOCAB_MAX, &found, &shape->vocab));
    if (found) return GLM52_OK;
    const glm52_tensor_info *embedding = glm52_gguf_tensor(reader->gguf, "token_embd.weight");
    if (embedding == NULL) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: neither key %s.vocab_size nor tensor token_embd.weight is there", reader->path,
                          ARCHITECTURE);
    }
    GLM52_TRY(check_range(reader, "vocab_size (rows of token_embd.weight)", embedding->size[1], 1,
                          GLM52_SHAPE_VOCAB_MAX));
    shape->vocab = (uint32_t)embedding->size[1];
    return GLM52_OK;
}

/* A key that describes the attention in another way: it must agree with ours. */
static glm52_status check_equal(const struct glm52_shape_reader *reader, const char *suffix, uint32_t wanted,
                                const char *reason) {
    struct glm52_shape_name name;
    bool found;
    uint32_t number = 0;
    GLM52_TRY(glm52_shape_optional(reader, suffix, 0, UINT32_MAX, &found, &number));
    if (!found || number == wanted) return GLM52_OK;
    return glm52_fail(GLM52_ERR_SHAPE, "%s: key %s is %u, not %u: %s", reader->path,
                      glm52_shape_key(&name, suffix), number, wanted, reason);
}

static glm52_status read_attention(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    GLM52_TRY(required(reader, "attention.head_count", 1, GLM52_SHAPE_HEADS_MAX, &shape->heads));
    GLM52_TRY(check_equal(reader, "attention.head_count_kv", 1, "compressed keys and values are one head"));
    GLM52_TRY(required(reader, "attention.q_lora_rank", 1, GLM52_SHAPE_LORA_MAX, &shape->q_lora));
    GLM52_TRY(required(reader, "attention.kv_lora_rank", 1, GLM52_SHAPE_LORA_MAX, &shape->kv_lora));
    GLM52_TRY(required(reader, "rope.dimension_count", 2, GLM52_SHAPE_ROPE_MAX, &shape->rope));
    GLM52_TRY(required(reader, "attention.key_length_mla", 1, GLM52_SHAPE_HEAD_SIZE_MAX, &shape->key_mla));
    GLM52_TRY(
        required(reader, "attention.value_length_mla", 1, GLM52_SHAPE_HEAD_SIZE_MAX, &shape->value_mla));
    if (shape->rope % 2 != 0) {
        return glm52_fail(GLM52_ERR_SHAPE, "%s: rope.dimension_count is %u, but values are rotated in pairs",
                          reader->path, shape->rope);
    }
    if (shape->key_mla <= shape->rope) {
        return glm52_fail(
            GLM52_ERR_SHAPE,
            "%s: attention.key_length_mla is %u, but %u rotated values and at least one other are in it",
            reader->path, shape->key_mla, shape->rope);
    }
    GLM52_TRY(check_equal(reader, "attention.key_length", shape->kv_lora + shape->rope,
                          "a cached row is kv_lora_rank and rope.dimension_count values"));
    return check_equal(reader, "attention.value_length", shape->kv_lora,
                       "a cached value is kv_lora_rank values");
}

static glm52_status read_indexer(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    GLM52_TRY(required(reader, "attention.indexer.head_count", 1, GLM52_SHAPE_INDEX_HEADS_MAX,
                       &shape->index_heads));
    GLM52_TRY(
        required(reader, "attention.indexer.key_length", 1, GLM52_SHAPE_HEAD_SIZE_MAX, &shape->index_key));
    GLM52_TRY(required(reader, "attention.indexer.top_k", 1, GLM52_SHAPE_TOP_K_MAX, &shape->index_top_k));
    if (shape->index_key < shape->rope) {
        return glm52_fail(
            GLM52_ERR_SHAPE,
            "%s: attention.indexer.key_length is %u, but rope.dimension_count, the part of it that is "
            "rotated, is %u",
            reader->path, shape->index_key, shape->rope);
    }
    return glm52_shape_read_index_types(reader, shape);
}

/* Experts are chosen among all: groups, and gates other than sigmoid, are other models'. */
static glm52_status check_routing(const struct glm52_shape_reader *reader) {
    bool found;
    uint32_t groups = 1, gating = GATING_SIGMOID;
    GLM52_TRY(glm52_shape_optional(reader, "expert_group_count", 0, UINT32_MAX, &found, &groups));
    if (groups > 1) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: expert_group_count is %u; only one group is supported",
                          reader->path, groups);
    }
    GLM52_TRY(glm52_shape_optional(reader, "expert_gating_func", 0, UINT32_MAX, &found, &gating));
    if (gating == GATING_SIGMOID || gating == GATING_NONE) return GLM52_OK;
    return glm52_fail(GLM52_ERR_UNSUPPORTED,
                      "%s: expert_gating_func is %u (%s); only %u (sigmoid) is supported", reader->path,
                      gating, gating == 1 ? "softmax" : "another function", GATING_SIGMOID);
}

/* llama.cpp's meaning of a scale that is missing or 0: none. */
static glm52_status read_expert_scale(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    struct glm52_shape_name name;
    shape->expert_scale = 1.0f;
    if (glm52_gguf_key(reader->gguf, glm52_shape_key(&name, "expert_weights_scale")) == NULL) return GLM52_OK;
    GLM52_TRY(
        read_float(reader, "expert_weights_scale", 0.0f, GLM52_SHAPE_EXPERT_SCALE_MAX, &shape->expert_scale));
    if (shape->expert_scale == 0.0f) shape->expert_scale = 1.0f;
    return GLM52_OK;
}

static glm52_status read_experts(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    const uint32_t layers = shape->layers;
    bool found;
    uint32_t shared = 0;
    shape->dense_layers = 0;
    GLM52_TRY(
        glm52_shape_optional(reader, "leading_dense_block_count", 0, layers, &found, &shape->dense_layers));
    GLM52_TRY(required_on(reader, "feed_forward_length", 0, shape->dense_layers, GLM52_SHAPE_DENSE_FF_MAX,
                          &shape->dense_ff));
    GLM52_TRY(required(reader, "expert_count", 1, GLM52_SHAPE_EXPERTS_MAX, &shape->experts));
    GLM52_TRY(required(reader, "expert_used_count", 1, shape->experts, &shape->experts_used));
    /* With a dense trunk the MTP block, which is last in a list of all blocks, is still sparse. */
    const uint32_t sparse = shape->dense_layers < layers ? shape->dense_layers : layers - 1;
    GLM52_TRY(required_on(reader, "expert_feed_forward_length", sparse, layers, GLM52_SHAPE_EXPERT_FF_MAX,
                          &shape->expert_ff));
    GLM52_TRY(required(reader, "expert_shared_count", 1, GLM52_SHAPE_SHARED_MAX, &shared));
    shape->shared_ff = shape->expert_ff * shared;
    shape->expert_norm = 0;
    GLM52_TRY(glm52_shape_optional(reader, "expert_weights_norm", 0, 1, &found, &shape->expert_norm));
    GLM52_TRY(read_expert_scale(reader, shape));
    return check_routing(reader);
}

/* Positions are rotated as they are: files of models with stretched positions are refused, not misread. */
static glm52_status check_rope_scaling(const struct glm52_shape_reader *reader) {
    const glm52_value *type = glm52_gguf_key(reader->gguf, ARCHITECTURE ".rope.scaling.type");
    if (type != NULL && !is_text(type, "none")) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED,
                          "%s: key %s is not \"none\"; scaled positions are not supported", reader->path,
                          type->key);
    }
    static const char *const factors[] = {"rope.scaling.factor", "rope.scale_linear",
                                          "rope.scaling.attn_factor"};
    for (size_t i = 0; type == NULL && i < sizeof(factors) / sizeof(factors[0]); i++) {
        struct glm52_shape_name name;
        bool found;
        float factor = 1.0f;
        GLM52_TRY(glm52_gguf_get_f32(reader->gguf, glm52_shape_key(&name, factors[i]), &found, &factor));
        if (factor != 0.0f && factor != 1.0f) {
            return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: key %s is %g; scaled positions are not supported",
                              reader->path, name.text, (double)factor);
        }
    }
    return GLM52_OK;
}

glm52_status glm52_shape_read(const struct glm52_gguf *gguf, glm52_shape *shape_out) {
    struct glm52_shape_reader reader = {gguf, glm52_show_path(gguf->shards[0].path), 0, 0};
    glm52_shape shape;
    memset(&shape, 0, sizeof(shape));
    GLM52_TRY(check_architecture(&reader));
    GLM52_TRY(read_blocks(&reader, &shape));
    GLM52_TRY(read_context(&reader, &shape));
    GLM52_TRY(required(&reader, "embedding_length", 1, GLM52_SHAPE_HIDDEN_MAX, &shape.hidden));
    GLM52_TRY(read_vocab(&reader, &shape));
    GLM52_TRY(read_attention(&reader, &shape));
    GLM52_TRY(read_indexer(&reader, &shape));
    GLM52_TRY(read_experts(&reader, &shape));
    GLM52_TRY(read_float(&reader, "attention.layer_norm_rms_epsilon", GLM52_SHAPE_EPSILON_MIN,
                         GLM52_SHAPE_EPSILON_MAX, &shape.rms_epsilon));
    GLM52_TRY(read_float(&reader, "rope.freq_base", GLM52_SHAPE_ROPE_BASE_MIN, GLM52_SHAPE_ROPE_BASE_MAX,
                         &shape.rope_base));
    GLM52_TRY(check_rope_scaling(&reader));
    *shape_out = shape;
    return GLM52_OK;
}
