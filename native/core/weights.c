/* weights.c - where each weight lies: tensors bound by name, their type and dimensions checked against the
 * shape.
 *
 * Vectors and the router are used as float32 straight from the mapping; matrices may be of any type that is
 * read. Indexer tensors of a layer that shares its predecessor's selection are not looked at: files have them
 * or not. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"
#include "model.h"
#include "quant.h"

#define TYPE_F32 0

/* Binds the tensors of one block, or (block below 0) the model's own. */
struct binder {
    const struct glm52_gguf *gguf;
    const char *path;           /* as shown in messages */
    int block;
};

/* Dimensions that a tensor must have; 1 where it has none. */
struct wanted {
    uint32_t in, out, groups;
};

static void full_name(const struct binder *binder, char *text, size_t room, const char *suffix) {
    if (binder->block < 0) snprintf(text, room, "%s", suffix);
    else snprintf(text, room, "blk.%d.%s", binder->block, suffix);
}

/* What converters write in place of the tensors that this runtime reads. */
static const char *hint(const struct binder *binder, const char *suffix) {
    static const struct {
        const char *missing, *instead, *text;
    } hints[] = {
        {"attn_k_b.weight", "attn_kv_b.weight", " (the file has attn_kv_b, undivided: convert it again)"},
        {"attn_v_b.weight", "attn_kv_b.weight", " (the file has attn_kv_b, undivided: convert it again)"},
        {"ffn_gate_exps.weight", "ffn_gate_up_exps.weight",
         " (the file has gate and up fused: convert it again)"},
        {"ffn_up_exps.weight", "ffn_gate_up_exps.weight",
         " (the file has gate and up fused: convert it again)"}};
    for (size_t i = 0; i < sizeof(hints) / sizeof(hints[0]); i++) {
        char name[GLM52_GGUF_NAME_BYTES_MAX + 1];
        full_name(binder, name, sizeof(name), hints[i].instead);
        if (strcmp(suffix, hints[i].missing) == 0 && glm52_gguf_tensor(binder->gguf, name) != NULL) {
            return hints[i].text;
        }
    }
    return "";
}

static bool is_there(const struct binder *binder, const char *suffix) {
    char name[GLM52_GGUF_NAME_BYTES_MAX + 1];
    full_name(binder, name, sizeof(name), suffix);
    return glm52_gguf_tensor(binder->gguf, name) != NULL;
}

static glm52_status find(const struct binder *binder, const char *suffix, struct wanted wanted,
                         const glm52_tensor_info **tensor_out) {
    char name[GLM52_GGUF_NAME_BYTES_MAX + 1];
    full_name(binder, name, sizeof(name), suffix);
    const glm52_tensor_info *tensor = glm52_gguf_tensor(binder->gguf, name);
    if (tensor == NULL) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s is missing%s", binder->path, name,
                          hint(binder, suffix));
    }
    const uint64_t *size = tensor->size;
    if (size[0] != wanted.in || size[1] != wanted.out || size[2] != wanted.groups || size[3] != 1) {
        return glm52_fail(GLM52_ERR_SHAPE, "%s: tensor %s is [%llu, %llu, %llu, %llu], not [%u, %u, %u, 1]",
                          binder->path, name, (unsigned long long)size[0], (unsigned long long)size[1],
                          (unsigned long long)size[2], (unsigned long long)size[3], wanted.in, wanted.out,
                          wanted.groups);
    }
    *tensor_out = tensor;
    return GLM52_OK;
}

static glm52_status check_f32(const struct binder *binder, const glm52_tensor_info *tensor) {
    if (tensor->type == TYPE_F32) return GLM52_OK;
    return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: tensor %s is %s; only F32 is read for it", binder->path,
                      tensor->name, tensor->type_name);
}

static glm52_status bind_vector(const struct binder *binder, const char *suffix, uint32_t size,
                                const float **out) {
    const glm52_tensor_info *tensor;
    GLM52_TRY(find(binder, suffix, (struct wanted){size, 1, 1}, &tensor));
    GLM52_TRY(check_f32(binder, tensor));
    *out = glm52_gguf_data(binder->gguf, tensor);
    return GLM52_OK;
}

/* groups blocks of out rows of in values. */
static glm52_status bind_stack(const struct binder *binder, const char *suffix, uint32_t in, uint32_t out,
                               uint32_t groups, struct glm52_matrix *matrix_out) {
    const glm52_tensor_info *tensor;
    GLM52_TRY(find(binder, suffix, (struct wanted){in, out, groups}, &tensor));
    *matrix_out = (struct glm52_matrix){.data = glm52_gguf_data(binder->gguf, tensor),
                                        .tensor = tensor,
                                        .type = tensor->type,
                                        .in_count = in,
                                        .out_count = out,
                                        .group_count = groups,
                                        .group_bytes = tensor->stride > 0 ? tensor->stride : tensor->bytes / groups,
                                        .slice_bytes = tensor->bytes / groups};
    return GLM52_OK;
}

static glm52_status bind_matrix(const struct binder *binder, const char *suffix, uint32_t in, uint32_t out,
                                struct glm52_matrix *matrix_out) {
    return bind_stack(binder, suffix, in, out, 1, matrix_out);
}

static glm52_status bind_attention(const struct binder *b, const glm52_shape *s, struct glm52_layer *layer) {
    const uint32_t nope = s->key_mla - s->rope;
    GLM52_TRY(bind_vector(b, "attn_norm.weight", s->hidden, &layer->attn_norm));
    GLM52_TRY(bind_matrix(b, "attn_q_a.weight", s->hidden, s->q_lora, &layer->q_a));
    GLM52_TRY(bind_vector(b, "attn_q_a_norm.weight", s->q_lora, &layer->q_a_norm));
    GLM52_TRY(bind_matrix(b, "attn_q_b.weight", s->q_lora, s->heads * s->key_mla, &layer->q_b));
    GLM52_TRY(bind_matrix(b, "attn_kv_a_mqa.weight", s->hidden, s->kv_lora + s->rope, &layer->kv_a));
    GLM52_TRY(bind_vector(b, "attn_kv_a_norm.weight", s->kv_lora, &layer->kv_a_norm));
    GLM52_TRY(bind_stack(b, "attn_k_b.weight", nope, s->kv_lora, s->heads, &layer->k_b));
    GLM52_TRY(bind_stack(b, "attn_v_b.weight", s->kv_lora, s->value_mla, s->heads, &layer->v_b));
    return bind_matrix(b, "attn_output.weight", s->heads * s->value_mla, s->hidden, &layer->attn_out);
}

static glm52_status bind_indexer(const struct binder *b, const glm52_shape *s, struct glm52_layer *layer) {
    GLM52_TRY(
        bind_matrix(b, "indexer.attn_q_b.weight", s->q_lora, s->index_heads * s->index_key, &layer->index_q));
    GLM52_TRY(bind_matrix(b, "indexer.attn_k.weight", s->hidden, s->index_key, &layer->index_k));
    GLM52_TRY(bind_matrix(b, "indexer.proj.weight", s->hidden, s->index_heads, &layer->index_w));
    GLM52_TRY(bind_vector(b, "indexer.k_norm.weight", s->index_key, &layer->index_norm));
    return bind_vector(b, "indexer.k_norm.bias", s->index_key, &layer->index_norm_bias);
}

static glm52_status bind_dense(const struct binder *b, const glm52_shape *s, struct glm52_layer *layer) {
    GLM52_TRY(bind_matrix(b, "ffn_gate.weight", s->hidden, s->dense_ff, &layer->gate));
    GLM52_TRY(bind_matrix(b, "ffn_up.weight", s->hidden, s->dense_ff, &layer->up));
    return bind_matrix(b, "ffn_down.weight", s->dense_ff, s->hidden, &layer->down);
}

static glm52_status bind_sparse(const struct binder *b, const glm52_shape *s, struct glm52_layer *layer) {
    const uint32_t experts = s->experts;
    GLM52_TRY(bind_matrix(b, "ffn_gate_inp.weight", s->hidden, experts, &layer->router));
    GLM52_TRY(check_f32(b, layer->router.tensor));
    GLM52_TRY(bind_vector(b, "exp_probs_b.bias", experts, &layer->router_bias));
    GLM52_TRY(bind_stack(b, "ffn_gate_exps.weight", s->hidden, s->expert_ff, experts, &layer->experts_gate));
    GLM52_TRY(bind_stack(b, "ffn_up_exps.weight", s->hidden, s->expert_ff, experts, &layer->experts_up));
    GLM52_TRY(bind_stack(b, "ffn_down_exps.weight", s->expert_ff, s->hidden, experts, &layer->experts_down));
    GLM52_TRY(bind_matrix(b, "ffn_gate_shexp.weight", s->hidden, s->shared_ff, &layer->gate));
    GLM52_TRY(bind_matrix(b, "ffn_up_shexp.weight", s->hidden, s->shared_ff, &layer->up));
    return bind_matrix(b, "ffn_down_shexp.weight", s->shared_ff, s->hidden, &layer->down);
}

static glm52_status bind_layer(const struct binder *b, const glm52_shape *s, struct glm52_layer *layer) {
    GLM52_TRY(bind_attention(b, s, layer));
    if (layer->index_full) GLM52_TRY(bind_indexer(b, s, layer));
    GLM52_TRY(bind_vector(b, "ffn_norm.weight", s->hidden, &layer->ffn_norm));
    return layer->dense ? bind_dense(b, s, layer) : bind_sparse(b, s, layer);
}

/* An MTP block is a full sparse layer with its own indexer. embed and head are the trunk's unless it has its
 * own. */
static glm52_status bind_nextn(const struct binder *b, const struct glm52_model *model,
                               struct glm52_nextn *nextn) {
    const glm52_shape *s = &model->shape;
    nextn->layer.index_full = true;
    nextn->layer.dense = false;
    GLM52_TRY(bind_layer(b, s, &nextn->layer));
    GLM52_TRY(bind_matrix(b, "nextn.eh_proj.weight", 2 * s->hidden, s->hidden, &nextn->eh_proj));
    GLM52_TRY(bind_vector(b, "nextn.enorm.weight", s->hidden, &nextn->embed_norm));
    GLM52_TRY(bind_vector(b, "nextn.hnorm.weight", s->hidden, &nextn->hidden_norm));
    GLM52_TRY(bind_vector(b, "nextn.shared_head_norm.weight", s->hidden, &nextn->head_norm));
    nextn->embed = model->embed;
    nextn->head = model->output;
    if (is_there(b, "nextn.embed_tokens.weight")) {
        GLM52_TRY(bind_matrix(b, "nextn.embed_tokens.weight", s->hidden, s->vocab, &nextn->embed));
    }
    if (is_there(b, "nextn.shared_head_head.weight")) {
        GLM52_TRY(bind_matrix(b, "nextn.shared_head_head.weight", s->hidden, s->vocab, &nextn->head));
    }
    return GLM52_OK;
}

static glm52_status bind_model(struct binder *b, struct glm52_model *model) {
    const glm52_shape *s = &model->shape;
    b->block = -1;
    GLM52_TRY(bind_matrix(b, "token_embd.weight", s->hidden, s->vocab, &model->embed));
    GLM52_TRY(bind_vector(b, "output_norm.weight", s->hidden, &model->output_norm));
    model->output = model->embed;
    if (is_there(b, "output.weight")) {
        GLM52_TRY(bind_matrix(b, "output.weight", s->hidden, s->vocab, &model->output));
    }
    for (uint32_t i = 0; i < s->layers; i++) {
        b->block = (int)i;
        model->layers[i].index_full = s->index_full[i] != 0;
        model->layers[i].dense = i < s->dense_layers;
        GLM52_TRY(bind_layer(b, s, &model->layers[i]));
    }
    for (uint32_t i = 0; i < s->nextn_layers; i++) {
        b->block = (int)(s->layers + i);
        GLM52_TRY(bind_nextn(b, model, &model->nextn[i]));
    }
    return GLM52_OK;
}

glm52_status glm52_weights_bind(struct glm52_model *model) {
    const glm52_shape *s = &model->shape;
    struct binder binder = {model->gguf, glm52_show_path(model->gguf->shards[0].path), -1};
    model->layers = calloc(s->layers, sizeof(*model->layers));
    model->nextn = calloc((size_t)s->nextn_layers + 1, sizeof(*model->nextn));
    glm52_status status = GLM52_OK;
    if (model->layers == NULL || model->nextn == NULL) {
        status = glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for %u layers", binder.path, s->layers);
    } else {
        status = bind_model(&binder, model);
    }
    if (status != GLM52_OK) {
        free(model->layers);
        free(model->nextn);
        model->layers = NULL;
        model->nextn = NULL;
    }
    return status;
}
