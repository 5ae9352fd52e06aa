/* gguf_tiny.c - the smallest GLM that is still one: every tensor and key of the real files, tiny numbers. */
#include <stdio.h>
#include <string.h>

#include "gguf_build.h"

struct tiny tiny_default(void) {
    return (struct tiny){.layers = 3,
                         .nextn = 1,
                         .dense = 1,
                         .hidden = 32,
                         .vocab = 8,
                         .heads = 2,
                         .q_lora = 4,
                         .kv_lora = 4,
                         .rope = 2,
                         .key_mla = 5,
                         .value_mla = 3,
                         .dense_ff = 6,
                         .experts = 3,
                         .experts_used = 2,
                         .expert_ff = 2,
                         .index_heads = 2,
                         .index_key = 4,
                         .top_k = 2,
                         .context = 64,
                         .matrix_type = BUILD_TYPE_Q8_0,
                         .index_types = 3};
}

void build_tiny_keys(struct gguf_build *build, const struct tiny *t) {
    build_text(build, "general.architecture", "glm-dsa");
    build_u32(build, "glm-dsa.block_count", t->layers + t->nextn);
    build_u32(build, "glm-dsa.context_length", t->context);
    build_u32(build, "glm-dsa.embedding_length", t->hidden);
    build_u32(build, "glm-dsa.feed_forward_length", t->dense_ff);
    build_u32(build, "glm-dsa.attention.head_count", t->heads);
    build_u32(build, "glm-dsa.attention.head_count_kv", 1);
    build_f32(build, "glm-dsa.rope.freq_base", 8e6f);
    build_f32(build, "glm-dsa.attention.layer_norm_rms_epsilon", 1e-5f);
    build_u32(build, "glm-dsa.expert_count", t->experts);
    build_u32(build, "glm-dsa.expert_used_count", t->experts_used);
    build_u32(build, "glm-dsa.expert_group_count", 1);
    build_u32(build, "glm-dsa.expert_gating_func", 2);
    build_u32(build, "glm-dsa.attention.key_length", t->kv_lora + t->rope);
    build_u32(build, "glm-dsa.attention.value_length", t->kv_lora);
    build_u32(build, "glm-dsa.leading_dense_block_count", t->dense);
    build_u32(build, "glm-dsa.vocab_size", t->vocab);
    build_u32(build, "glm-dsa.attention.q_lora_rank", t->q_lora);
    build_u32(build, "glm-dsa.attention.kv_lora_rank", t->kv_lora);
    build_u32(build, "glm-dsa.attention.key_length_mla", t->key_mla);
    build_u32(build, "glm-dsa.attention.value_length_mla", t->value_mla);
    build_u32(build, "glm-dsa.expert_feed_forward_length", t->expert_ff);
    build_u32(build, "glm-dsa.expert_shared_count", 1);
    build_f32(build, "glm-dsa.expert_weights_scale", 2.5f);
    build_integer(build, "glm-dsa.expert_weights_norm", BUILD_BOOL, 1);
    build_u32(build, "glm-dsa.rope.dimension_count", t->rope);
    build_u32(build, "glm-dsa.nextn_predict_layers", t->nextn);
    build_u32(build, "glm-dsa.attention.indexer.head_count", t->index_heads);
    build_u32(build, "glm-dsa.attention.indexer.key_length", t->index_key);
    build_u32(build, "glm-dsa.attention.indexer.top_k", t->top_k);
    if (t->index_types == 0) return;
    if (build_array(build, "glm-dsa.attention.indexer.types", BUILD_BOOL, t->layers)) {
        for (uint32_t i = 0; i < t->layers; i++) {
            const uint8_t full = t->index_types >> i & 1;
            build_append(&build->keys, &full, 1);
        }
    }
}

/* Counts tensors and builds those of first..last - 1. */
struct counter {
    struct gguf_build *build;
    uint64_t next, first, last;
};

static void add(struct counter *counter, int block, const char *suffix, uint32_t type, uint64_t a, uint64_t b,
                uint64_t c) {
    const uint64_t index = counter->next++;
    if (index < counter->first || index >= counter->last) return;
    char name[64];
    if (block < 0) snprintf(name, sizeof(name), "%s", suffix);
    else snprintf(name, sizeof(name), "blk.%d.%s", block, suffix);
    build_tensor(counter->build, name, type, a, b, c);
}

static void add_attention(struct counter *n, int i, const struct tiny *t) {
    const uint32_t q = t->matrix_type, f = BUILD_TYPE_F32;
    add(n, i, "attn_norm.weight", f, t->hidden, 0, 0);
    add(n, i, "attn_q_a.weight", q, t->hidden, t->q_lora, 0);
    add(n, i, "attn_q_a_norm.weight", f, t->q_lora, 0, 0);
    add(n, i, "attn_q_b.weight", f, t->q_lora, t->heads * t->key_mla, 0);
    add(n, i, "attn_kv_a_mqa.weight", q, t->hidden, t->kv_lora + t->rope, 0);
    add(n, i, "attn_kv_a_norm.weight", f, t->kv_lora, 0, 0);
    add(n, i, "attn_k_b.weight", f, t->key_mla - t->rope, t->kv_lora, t->heads);
    add(n, i, "attn_v_b.weight", f, t->kv_lora, t->value_mla, t->heads);
    add(n, i, "attn_output.weight", f, t->heads * t->value_mla, t->hidden, 0);
    add(n, i, "ffn_norm.weight", f, t->hidden, 0, 0);
}

static void add_indexer(struct counter *n, int i, const struct tiny *t) {
    add(n, i, "indexer.attn_q_b.weight", BUILD_TYPE_F32, t->q_lora, t->index_heads * t->index_key, 0);
    add(n, i, "indexer.attn_k.weight", t->matrix_type, t->hidden, t->index_key, 0);
    add(n, i, "indexer.proj.weight", BUILD_TYPE_F32, t->hidden, t->index_heads, 0);
    add(n, i, "indexer.k_norm.weight", BUILD_TYPE_F32, t->index_key, 0, 0);
    add(n, i, "indexer.k_norm.bias", BUILD_TYPE_F32, t->index_key, 0, 0);
}

static void add_experts(struct counter *n, int i, const struct tiny *t) {
    const uint32_t q = t->matrix_type, f = BUILD_TYPE_F32;
    add(n, i, "ffn_gate_inp.weight", f, t->hidden, t->experts, 0);
    add(n, i, "exp_probs_b.bias", f, t->experts, 0, 0);
    add(n, i, "ffn_gate_exps.weight", q, t->hidden, t->expert_ff, t->experts);
    add(n, i, "ffn_up_exps.weight", q, t->hidden, t->expert_ff, t->experts);
    add(n, i, "ffn_down_exps.weight", f, t->expert_ff, t->hidden, t->experts);
    add(n, i, "ffn_gate_shexp.weight", q, t->hidden, t->expert_ff, 0);
    add(n, i, "ffn_up_shexp.weight", q, t->hidden, t->expert_ff, 0);
    add(n, i, "ffn_down_shexp.weight", f, t->expert_ff, t->hidden, 0);
}

void build_tiny_tensors_part(struct gguf_build *build, const struct tiny *t, uint64_t first, uint64_t last) {
    struct counter counter = {build, 0, first, last}, *n = &counter;
    add(n, -1, "token_embd.weight", t->matrix_type, t->hidden, t->vocab, 0);
    add(n, -1, "output_norm.weight", BUILD_TYPE_F32, t->hidden, 0, 0);
    if (!t->tied) add(n, -1, "output.weight", t->matrix_type, t->hidden, t->vocab, 0);
    for (uint32_t layer = 0; layer < t->layers + t->nextn; layer++) {
        const int i = (int)layer;
        add_attention(n, i, t);
        const bool full = layer >= t->layers || t->index_types == 0 || (t->index_types >> layer & 1) != 0;
        if (full || t->index_on_shared) add_indexer(n, i, t);
        if (layer < t->dense) {
            add(n, i, "ffn_gate.weight", t->matrix_type, t->hidden, t->dense_ff, 0);
            add(n, i, "ffn_up.weight", t->matrix_type, t->hidden, t->dense_ff, 0);
            add(n, i, "ffn_down.weight", BUILD_TYPE_F32, t->dense_ff, t->hidden, 0);
        } else {
            add_experts(n, i, t);
        }
        if (layer < t->layers) continue;
        add(n, i, "nextn.eh_proj.weight", t->matrix_type, 2 * t->hidden, t->hidden, 0);
        add(n, i, "nextn.enorm.weight", BUILD_TYPE_F32, t->hidden, 0, 0);
        add(n, i, "nextn.hnorm.weight", BUILD_TYPE_F32, t->hidden, 0, 0);
        add(n, i, "nextn.shared_head_norm.weight", BUILD_TYPE_F32, t->hidden, 0, 0);
    }
}

void build_tiny_tensors(struct gguf_build *build, const struct tiny *tiny) {
    build_tiny_tensors_part(build, tiny, 0, UINT64_MAX);
}

void build_tiny(struct gguf_build *build, const struct tiny *tiny) {
    build_tiny_keys(build, tiny);
    build_tiny_tensors(build, tiny);
}

uint32_t next_random(uint32_t *seed) {
    return (*seed = *seed * 1664525u + 1013904223u) >> 10;
}

void build_random_floats(struct gguf_build *build, uint32_t seed) {
    for (size_t at = 0; at + 4 <= build->data.used; at += 4) {
        const float value = (float)(next_random(&seed) % 2001) / 2000.0f - 0.5f;
        memcpy(build->data.at + at, &value, 4);
    }
}
