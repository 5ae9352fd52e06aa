/* test_weights.c - tensors bound to the layers: all of them, each missing, each with a wrong dimension or
 * type. */
#include <stdio.h>
#include <string.h>

#include "gguf_build.h"
#include "model.h"
#include "refused.h"

/* Opens a model that was built, and frees what was built; NULL (reported) if it is refused. */
static glm52_status open_built(struct gguf_build *build, glm52_model **model_out) {
    const char *folder = build_folder();
    const char *path = build_path(folder, "model.gguf");
    gguf_build_finish(build);
    build_save(build, path);
    gguf_build_free(build);
    *model_out = NULL;
    const glm52_status status = glm52_model_open(path, model_out);
    build_remove_folder(folder);
    return status;
}

static glm52_status try_built(struct gguf_build *build) {
    glm52_model *model;
    const glm52_status status = open_built(build, &model);
    CHECK((status == GLM52_OK) == (model != NULL));
    glm52_model_close(model);
    return status;
}

static glm52_model *open_tiny(const struct tiny *tiny) {
    struct gguf_build build;
    glm52_model *model;
    gguf_build_begin(&build);
    build_tiny(&build, tiny);
    const glm52_status status = open_built(&build, &model);
    if (status != GLM52_OK) printf("%s\n", glm52_error_message());
    CHECK(status == GLM52_OK);
    return model;
}

static void check_matrix(const glm52_model *model, const char *name, const struct glm52_matrix *matrix,
                         uint32_t in, uint32_t out, uint32_t groups) {
    const glm52_tensor_info *tensor = glm52_gguf_tensor(model->gguf, name);
    const bool right = tensor != NULL && matrix->tensor == tensor && matrix->type == tensor->type &&
                       matrix->data == glm52_gguf_data(model->gguf, tensor) && matrix->in_count == in &&
                       matrix->out_count == out && matrix->group_count == groups &&
                       matrix->group_bytes * groups == tensor->bytes;
    if (!right) printf("%s is bound wrongly\n", name);
    CHECK(right);
}

static void check_vector(const glm52_model *model, const char *name, const float *vector) {
    const glm52_tensor_info *tensor = glm52_gguf_tensor(model->gguf, name);
    const bool right = tensor != NULL && (const void *)vector == glm52_gguf_data(model->gguf, tensor);
    if (!right) printf("%s is bound wrongly\n", name);
    CHECK(right);
}

static void check_attention(const glm52_model *model, const struct glm52_layer *layer, const struct tiny *t,
                            int i) {
    char n[64];
#define NAME(suffix) (snprintf(n, sizeof(n), "blk.%d.%s", i, suffix), n)
    check_vector(model, NAME("attn_norm.weight"), layer->attn_norm);
    check_matrix(model, NAME("attn_q_a.weight"), &layer->q_a, t->hidden, t->q_lora, 1);
    check_vector(model, NAME("attn_q_a_norm.weight"), layer->q_a_norm);
    check_matrix(model, NAME("attn_q_b.weight"), &layer->q_b, t->q_lora, t->heads * t->key_mla, 1);
    check_matrix(model, NAME("attn_kv_a_mqa.weight"), &layer->kv_a, t->hidden, t->kv_lora + t->rope, 1);
    check_vector(model, NAME("attn_kv_a_norm.weight"), layer->kv_a_norm);
    check_matrix(model, NAME("attn_k_b.weight"), &layer->k_b, t->key_mla - t->rope, t->kv_lora, t->heads);
    check_matrix(model, NAME("attn_v_b.weight"), &layer->v_b, t->kv_lora, t->value_mla, t->heads);
    check_matrix(model, NAME("attn_output.weight"), &layer->attn_out, t->heads * t->value_mla, t->hidden, 1);
    check_vector(model, NAME("ffn_norm.weight"), layer->ffn_norm);
    if (!layer->index_full) return;
    check_matrix(model, NAME("indexer.attn_q_b.weight"), &layer->index_q, t->q_lora,
                 t->index_heads * t->index_key, 1);
    check_matrix(model, NAME("indexer.attn_k.weight"), &layer->index_k, t->hidden, t->index_key, 1);
    check_matrix(model, NAME("indexer.proj.weight"), &layer->index_w, t->hidden, t->index_heads, 1);
    check_vector(model, NAME("indexer.k_norm.weight"), layer->index_norm);
    check_vector(model, NAME("indexer.k_norm.bias"), layer->index_norm_bias);
}

static void check_network(const glm52_model *model, const struct glm52_layer *layer, const struct tiny *t,
                          int i) {
    char n[64];
    if (layer->dense) {
        check_matrix(model, NAME("ffn_gate.weight"), &layer->gate, t->hidden, t->dense_ff, 1);
        check_matrix(model, NAME("ffn_up.weight"), &layer->up, t->hidden, t->dense_ff, 1);
        check_matrix(model, NAME("ffn_down.weight"), &layer->down, t->dense_ff, t->hidden, 1);
        CHECK(layer->router.data == NULL && layer->experts_up.data == NULL);
        return;
    }
    check_matrix(model, NAME("ffn_gate_inp.weight"), &layer->router, t->hidden, t->experts, 1);
    check_vector(model, NAME("exp_probs_b.bias"), layer->router_bias);
    check_matrix(model, NAME("ffn_gate_exps.weight"), &layer->experts_gate, t->hidden, t->expert_ff,
                 t->experts);
    check_matrix(model, NAME("ffn_up_exps.weight"), &layer->experts_up, t->hidden, t->expert_ff, t->experts);
    check_matrix(model, NAME("ffn_down_exps.weight"), &layer->experts_down, t->expert_ff, t->hidden,
                 t->experts);
    check_matrix(model, NAME("ffn_gate_shexp.weight"), &layer->gate, t->hidden, t->expert_ff, 1);
    check_matrix(model, NAME("ffn_up_shexp.weight"), &layer->up, t->hidden, t->expert_ff, 1);
    check_matrix(model, NAME("ffn_down_shexp.weight"), &layer->down, t->expert_ff, t->hidden, 1);
#undef NAME
}

void test_weights_lie_where_the_tensors_are(void) {
    struct tiny t = tiny_default();
    t.nextn = 2;
    glm52_model *model = open_tiny(&t);
    if (model == NULL) return;
    check_matrix(model, "token_embd.weight", &model->embed, t.hidden, t.vocab, 1);
    check_matrix(model, "output.weight", &model->output, t.hidden, t.vocab, 1);
    check_vector(model, "output_norm.weight", model->output_norm);
    for (int i = 0; i < 3; i++) {
        CHECK(model->layers[i].dense == (i == 0) && model->layers[i].index_full == (i < 2));
        check_attention(model, &model->layers[i], &t, i);
        check_network(model, &model->layers[i], &t, i);
    }
    for (int i = 0; i < 2; i++) {
        const struct glm52_nextn *nextn = &model->nextn[i];
        char name[64];
        CHECK(nextn->layer.index_full && !nextn->layer.dense);
        CHECK(nextn->embed.tensor == model->embed.tensor && nextn->head.tensor == model->output.tensor);
        check_attention(model, &nextn->layer, &t, 3 + i);
        check_network(model, &nextn->layer, &t, 3 + i);
        snprintf(name, sizeof(name), "blk.%d.nextn.eh_proj.weight", 3 + i);
        check_matrix(model, name, &nextn->eh_proj, 2 * t.hidden, t.hidden, 1);
        snprintf(name, sizeof(name), "blk.%d.nextn.enorm.weight", 3 + i);
        check_vector(model, name, nextn->embed_norm);
        snprintf(name, sizeof(name), "blk.%d.nextn.hnorm.weight", 3 + i);
        check_vector(model, name, nextn->hidden_norm);
        snprintf(name, sizeof(name), "blk.%d.nextn.shared_head_norm.weight", 3 + i);
        check_vector(model, name, nextn->head_norm);
    }
    glm52_model_close(model);
}

void test_weights_of_shared_layers_need_no_indexer(void) {
    const struct tiny tiny = tiny_default();
    glm52_model *model = open_tiny(&tiny);
    if (model == NULL) return;
    CHECK(glm52_gguf_tensor(model->gguf, "blk.2.indexer.proj.weight") == NULL);
    CHECK(model->layers[2].index_q.data == NULL && model->layers[2].index_norm == NULL);
    glm52_model_close(model);
}

void test_weights_ignore_indexers_of_shared_layers(void) {
    struct tiny tiny = tiny_default();
    tiny.index_on_shared = true;
    glm52_model *model = open_tiny(&tiny);
    if (model == NULL) return;
    CHECK(glm52_gguf_tensor(model->gguf, "blk.2.indexer.proj.weight") != NULL);
    CHECK(!model->layers[2].index_full);
    CHECK(model->layers[2].index_q.data == NULL && model->layers[2].index_norm == NULL);
    glm52_model_close(model);
}

void test_weights_fall_back_to_the_trunks(void) {
    struct tiny tiny = tiny_default();
    tiny.tied = true;
    glm52_model *model = open_tiny(&tiny);
    if (model == NULL) return;
    CHECK(model->output.data == model->embed.data && model->output.tensor == model->embed.tensor);
    CHECK(model->nextn[0].embed.data == model->embed.data && model->nextn[0].head.data == model->output.data);
    glm52_model_close(model);
}

void test_weights_take_what_an_mtp_block_has_of_its_own(void) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    glm52_model *model;
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_tensor(&build, "blk.3.nextn.embed_tokens.weight", BUILD_TYPE_F16, tiny.hidden, tiny.vocab, 0);
    build_tensor(&build, "blk.3.nextn.shared_head_head.weight", BUILD_TYPE_F32, tiny.hidden, tiny.vocab, 0);
    CHECK_STATUS(GLM52_OK, open_built(&build, &model));
    if (model == NULL) return;
    check_matrix(model, "blk.3.nextn.embed_tokens.weight", &model->nextn[0].embed, tiny.hidden, tiny.vocab,
                 1);
    check_matrix(model, "blk.3.nextn.shared_head_head.weight", &model->nextn[0].head, tiny.hidden, tiny.vocab,
                 1);
    glm52_model_close(model);

    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_tensor(&build, "blk.3.nextn.embed_tokens.weight", BUILD_TYPE_F32, tiny.hidden, tiny.vocab + 1, 0);
    CHECK_REFUSED(GLM52_ERR_SHAPE, "nextn.embed_tokens.weight is [32, 9, 1, 1], not [32, 8, 1, 1]",
                  try_built(&build));
}

/* Names of all tensors of the tiny model, in order. */
#define TENSORS_MAX 128
static uint64_t list_tensors(char names[TENSORS_MAX][64], uint64_t size[TENSORS_MAX][4], uint32_t *types) {
    const struct tiny tiny = tiny_default();
    glm52_model *model = open_tiny(&tiny);
    uint64_t count = 0;
    for (uint64_t i = 0; model != NULL && i < model->gguf->tensor_count; i++, count++) {
        const glm52_tensor_info *tensor = &model->gguf->tensors[i];
        snprintf(names[i], 64, "%s", tensor->name);
        memcpy(size[i], tensor->size, sizeof(tensor->size));
        types[i] = tensor->type;
    }
    glm52_model_close(model);
    return count;
}

void test_weights_name_each_missing_tensor(void) {
    char names[TENSORS_MAX][64];
    uint64_t size[TENSORS_MAX][4];
    uint32_t types[TENSORS_MAX];
    const struct tiny tiny = tiny_default();
    const uint64_t count = list_tensors(names, size, types);
    CHECK(count == 89);
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        build.skips[0] = names[i];
        build_tiny(&build, &tiny);
        const glm52_status status = try_built(&build);
        if (strcmp(names[i], "output.weight") == 0) {
            CHECK(status == GLM52_OK);
            continue;
        }
        char wanted[100];
        snprintf(wanted, sizeof(wanted), "model.gguf: tensor %s is missing", names[i]);
        CHECK_REFUSED(GLM52_ERR_MODEL, wanted, status);
    }
}

void test_weights_refuse_each_wrong_dimension(void) {
    char names[TENSORS_MAX][64];
    uint64_t size[TENSORS_MAX][4];
    uint32_t types[TENSORS_MAX];
    const struct tiny tiny = tiny_default();
    const uint64_t count = list_tensors(names, size, types);
    for (uint64_t i = 0; i < count; i++) {
        for (int d = 0; d < 3; d++) {
            /* In each dimension one block more than right, also where there was none. */
            struct gguf_build build;
            uint64_t s[3] = {size[i][0], size[i][1], size[i][2]};
            s[d] += d == 0 && types[i] == BUILD_TYPE_Q8_0 ? 32 : 1;
            gguf_build_begin(&build);
            build.skips[0] = names[i];
            build_tiny(&build, &tiny);
            build.skips[0] = NULL;
            build_tensor(&build, names[i], types[i], s[0], s[1], s[2]);
            char wanted[200];
            snprintf(wanted, sizeof(wanted), "tensor %s is [%llu, %llu, %llu, 1], not [%llu, %llu, %llu, 1]",
                     names[i], (unsigned long long)s[0], (unsigned long long)s[1], (unsigned long long)s[2],
                     (unsigned long long)size[i][0], (unsigned long long)size[i][1],
                     (unsigned long long)size[i][2]);
            CHECK_REFUSED(GLM52_ERR_SHAPE, wanted, try_built(&build));
        }
    }
}

void test_weights_refuse_a_fourth_dimension(void) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    const uint64_t size[4] = {tiny.hidden, 1, 1, 2};
    gguf_build_begin(&build);
    build.skips[0] = "output_norm.weight";
    build_tiny(&build, &tiny);
    const uint64_t end = (build.data.used + 31) / 32 * 32;
    build_tensor_at(&build, "output_norm.weight", BUILD_TYPE_F32, 4, size, end);
    const uint8_t data[2 * 32 * 4 + 32] = {0};
    build_append(&build.data, data, end - build.data.used + 2 * tiny.hidden * 4);
    CHECK_REFUSED(GLM52_ERR_SHAPE, "output_norm.weight is [32, 1, 1, 2], not [32, 1, 1, 1]",
                  try_built(&build));
}

void test_weights_refuse_vectors_that_are_not_f32(void) {
    char names[TENSORS_MAX][64];
    uint64_t size[TENSORS_MAX][4];
    uint32_t types[TENSORS_MAX];
    const struct tiny tiny = tiny_default();
    const uint64_t count = list_tensors(names, size, types);
    uint64_t vectors = 0;
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_build build;
        const bool router = strstr(names[i], "ffn_gate_inp.weight") != NULL;
        const bool vector = size[i][1] == 1 && size[i][2] == 1;
        gguf_build_begin(&build);
        build.skips[0] = names[i];
        build_tiny(&build, &tiny);
        build.skips[0] = NULL;
        build_tensor(&build, names[i], BUILD_TYPE_F16, size[i][0], size[i][1], size[i][2]);
        if (!router && !vector) {
            CHECK_STATUS(GLM52_OK, try_built(&build));  /* matrices may be of any type */
            continue;
        }
        char wanted[100];
        vectors++;
        snprintf(wanted, sizeof(wanted), "tensor %s is F16; only F32 is read for it", names[i]);
        CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, wanted, try_built(&build));
    }
    /* output_norm; 4 norms per block, 2 vectors per indexer, router and its bias per sparse block, 3 norms of
     * MTP */
    CHECK(vectors == 1 + 4 * 4 + 2 * 3 + 2 * 3 + 3);
}

void test_weights_know_other_layouts(void) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    gguf_build_begin(&build);
    build.skips[0] = "blk.0.attn_k_b.weight";
    build_tiny(&build, &tiny);
    build_tensor(&build, "blk.0.attn_kv_b.weight", BUILD_TYPE_F32, 4, 12, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "blk.0.attn_k_b.weight is missing (the file has attn_kv_b, undivided",
                  try_built(&build));
    gguf_build_begin(&build);
    build.skips[0] = "blk.1.ffn_gate_exps.weight";
    build_tiny(&build, &tiny);
    build_tensor(&build, "blk.1.ffn_gate_up_exps.weight", BUILD_TYPE_F32, 4, 12, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "blk.1.ffn_gate_exps.weight is missing (the file has gate and up fused",
                  try_built(&build));
}

void test_weights_ignore_tensors_they_do_not_know(void) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_tensor(&build, "blk.0.something.weight", BUILD_TYPE_F32, 5, 0, 0);
    CHECK_STATUS(GLM52_OK, try_built(&build));
}
