/* test_shape.c - hyperparameters: each key, each limit, each contradiction. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf_build.h"
#include "model.h"
#include "refused.h"
#include "shape.h"

/* Reads the shape of what was built, and frees it. */
static glm52_status read_built(struct gguf_build *build, glm52_shape *shape_out) {
    const char *folder = build_folder();
    const char *path = build_path(folder, "model.gguf");
    gguf_build_finish(build);
    build_save(build, path);
    gguf_build_free(build);
    struct glm52_gguf *gguf = NULL;
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(path, &gguf));
    build_remove_folder(folder);
    if (gguf == NULL) return GLM52_ERR_IO;
    const glm52_status status = glm52_shape_read(gguf, shape_out);
    glm52_gguf_close(gguf);
    return status;
}

/* A tiny GLM whose named keys are left out; the caller writes its own. */
static void begin_without(struct gguf_build *build, const struct tiny *tiny, const char *a, const char *b,
                          const char *c) {
    gguf_build_begin(build);
    build->skips[0] = a;
    build->skips[1] = b;
    build->skips[2] = c;
    build_tiny(build, tiny);
    memset(build->skips, 0, sizeof(build->skips));
}

static glm52_status read_with(const char *key, uint32_t type, int64_t number, glm52_shape *shape_out) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, key, NULL, NULL);
    build_integer(&build, key, type, number);
    return read_built(&build, shape_out);
}

static glm52_status read_without(const char *key, glm52_shape *shape_out) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, key, NULL, NULL);
    return read_built(&build, shape_out);
}

void test_shape_is_what_the_keys_say(void) {
    struct gguf_build build;
    const struct tiny t = tiny_default();
    glm52_shape shape;
    begin_without(&build, &t, NULL, NULL, NULL);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    CHECK(shape.context_max == t.context && shape.layers == t.layers && shape.nextn_layers == t.nextn);
    CHECK(shape.hidden == t.hidden && shape.vocab == t.vocab && shape.heads == t.heads);
    CHECK(shape.q_lora == t.q_lora && shape.kv_lora == t.kv_lora && shape.rope == t.rope);
    CHECK(shape.key_mla == t.key_mla && shape.value_mla == t.value_mla);
    CHECK(shape.dense_layers == t.dense && shape.dense_ff == t.dense_ff);
    CHECK(shape.experts == t.experts && shape.experts_used == t.experts_used);
    CHECK(shape.expert_ff == t.expert_ff && shape.shared_ff == t.expert_ff);
    CHECK(shape.index_heads == t.index_heads && shape.index_key == t.index_key &&
          shape.index_top_k == t.top_k);
    CHECK(shape.rms_epsilon == 1e-5f && shape.rope_base == 8e6f && shape.expert_scale == 2.5f);
    CHECK(shape.expert_norm == 1);
    CHECK(shape.index_full[0] == 1 && shape.index_full[1] == 1 && shape.index_full[2] == 0);
}

void test_shape_takes_integers_of_any_width(void) {
    static const uint32_t types[] = {BUILD_U8,  BUILD_I8,  BUILD_U16, BUILD_I16,
                                     BUILD_U32, BUILD_I32, BUILD_U64, BUILD_I64};
    glm52_shape shape;
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        CHECK_STATUS(GLM52_OK, read_with("glm-dsa.context_length", types[i], 77, &shape));
        CHECK(shape.context_max == 77);
        CHECK_STATUS(GLM52_OK, read_with("glm-dsa.expert_weights_norm", types[i], 0, &shape));
        CHECK(shape.expert_norm == 0);
        CHECK_STATUS(GLM52_OK, read_with("glm-dsa.expert_weights_scale", types[i], 3, &shape));
        CHECK(shape.expert_scale == 3.0f);
    }
    CHECK_REFUSED(GLM52_ERR_MODEL, "glm-dsa.context_length is -5",
                  read_with("glm-dsa.context_length", BUILD_I16, -5, &shape));
}

void test_shape_takes_what_may_be_missing(void) {
    glm52_shape shape;
    static const char *const optional[] = {"glm-dsa.attention.head_count_kv", "glm-dsa.expert_group_count",
                                           "glm-dsa.expert_gating_func", "glm-dsa.attention.key_length",
                                           "glm-dsa.attention.value_length"};
    for (size_t i = 0; i < sizeof(optional) / sizeof(optional[0]); i++) {
        CHECK_STATUS(GLM52_OK, read_without(optional[i], &shape));
    }
    CHECK_STATUS(GLM52_OK, read_without("glm-dsa.expert_weights_norm", &shape));
    CHECK(shape.expert_norm == 0);
    CHECK_STATUS(GLM52_OK, read_without("glm-dsa.expert_weights_scale", &shape));
    CHECK(shape.expert_scale == 1.0f);
    CHECK_STATUS(GLM52_OK, read_with("glm-dsa.expert_weights_scale", BUILD_U32, 0, &shape));
    CHECK(shape.expert_scale == 1.0f);  /* llama.cpp's "none" */
    CHECK_STATUS(GLM52_OK, read_without("glm-dsa.leading_dense_block_count", &shape));
    CHECK(shape.dense_layers == 0);
    CHECK_STATUS(GLM52_OK, read_without("glm-dsa.vocab_size", &shape));
    CHECK(shape.vocab == tiny_default().vocab);
    CHECK_STATUS(GLM52_OK, read_with("glm-dsa.expert_gating_func", BUILD_U32, 0, &shape));
    CHECK_STATUS(GLM52_OK, read_with("glm-dsa.expert_group_count", BUILD_U32, 0, &shape));

    /* No dense layer: nothing says how wide it would be. */
    struct gguf_build build;
    struct tiny tiny = tiny_default();
    tiny.dense = 0;
    begin_without(&build, &tiny, "glm-dsa.feed_forward_length", NULL, NULL);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    CHECK(shape.dense_ff == 0);

    static const char *const required[] = {"glm-dsa.block_count",
                                           "glm-dsa.context_length",
                                           "glm-dsa.embedding_length",
                                           "glm-dsa.feed_forward_length",
                                           "glm-dsa.attention.head_count",
                                           "glm-dsa.rope.freq_base",
                                           "glm-dsa.attention.layer_norm_rms_epsilon",
                                           "glm-dsa.expert_count",
                                           "glm-dsa.expert_used_count",
                                           "glm-dsa.attention.q_lora_rank",
                                           "glm-dsa.attention.kv_lora_rank",
                                           "glm-dsa.attention.key_length_mla",
                                           "glm-dsa.attention.value_length_mla",
                                           "glm-dsa.expert_feed_forward_length",
                                           "glm-dsa.expert_shared_count",
                                           "glm-dsa.rope.dimension_count",
                                           "glm-dsa.attention.indexer.head_count",
                                           "glm-dsa.attention.indexer.key_length",
                                           "glm-dsa.attention.indexer.top_k",
                                           "general.architecture"};
    for (size_t i = 0; i < sizeof(required) / sizeof(required[0]); i++) {
        char wanted[100];
        snprintf(wanted, sizeof(wanted), "model.gguf: key %s is missing", required[i]);
        CHECK_REFUSED(GLM52_ERR_MODEL, wanted, read_without(required[i], &shape));
    }
}

void test_shape_limits_hold_at_the_limit_and_not_past_it(void) {
    static const struct {
        const char *key;
        int64_t min, max;
    } limits[] = {{"context_length", 1, GLM52_SHAPE_CONTEXT_MAX},
                  {"block_count", 2, GLM52_LAYERS_MAX},
                  {"nextn_predict_layers", 0, 3},
                  {"embedding_length", 1, GLM52_SHAPE_HIDDEN_MAX},
                  {"vocab_size", 1, GLM52_SHAPE_VOCAB_MAX},
                  {"attention.head_count", 1, GLM52_SHAPE_HEADS_MAX},
                  {"attention.q_lora_rank", 1, GLM52_SHAPE_LORA_MAX},
                  {"attention.kv_lora_rank", 1, GLM52_SHAPE_LORA_MAX},
                  {"attention.key_length_mla", 3, GLM52_SHAPE_HEAD_SIZE_MAX},
                  {"attention.value_length_mla", 1, GLM52_SHAPE_HEAD_SIZE_MAX},
                  {"attention.indexer.head_count", 1, GLM52_SHAPE_INDEX_HEADS_MAX},
                  {"attention.indexer.key_length", 2, GLM52_SHAPE_HEAD_SIZE_MAX},
                  {"attention.indexer.top_k", 1, GLM52_SHAPE_TOP_K_MAX},
                  {"leading_dense_block_count", 0, 3},
                  {"feed_forward_length", 1, GLM52_SHAPE_DENSE_FF_MAX},
                  {"expert_count", 2, GLM52_SHAPE_EXPERTS_MAX},
                  {"expert_used_count", 1, 3},
                  {"expert_feed_forward_length", 1, GLM52_SHAPE_EXPERT_FF_MAX},
                  {"expert_shared_count", 1, GLM52_SHAPE_SHARED_MAX},
                  {"expert_weights_norm", 0, 1},
                  {"attention.head_count_kv", 1, 1}};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        for (int64_t step = -1; step <= 2; step++) {
            const int64_t number = step < 1 ? limits[i].min + step : limits[i].max + step - 1;
            const bool inside = step == 0 || step == 1;
            if (number < 0) continue;
            struct gguf_build build;
            const struct tiny tiny = tiny_default();
            char key[80];
            glm52_shape shape;
            snprintf(key, sizeof(key), "glm-dsa.%s", limits[i].key);
            gguf_build_begin(&build);
            build.skips[0] = key;
            /* These must agree with others, and do not here. */
            build.skips[1] = "glm-dsa.attention.key_length";
            build.skips[2] = "glm-dsa.attention.value_length";
            build.skips[3] = "glm-dsa.attention.indexer.types";
            build_tiny_keys(&build, &tiny);
            build.skips[0] = NULL;
            build_integer(&build, key, BUILD_I64, number);
            const glm52_status status = read_built(&build, &shape);
            if ((status == GLM52_OK) != inside || (!inside && status != GLM52_ERR_SHAPE)) {
                printf("%s = %lld: %s\n", key, (long long)number, glm52_error_message());
                CHECK(false);
            }
        }
    }
}

void test_shape_refuses_numbers_that_contradict(void) {
    glm52_shape shape;
    shape.layers = 99;
    CHECK_REFUSED(GLM52_ERR_SHAPE, "rope.dimension_count is 3, but values are rotated in pairs",
                  read_with("glm-dsa.rope.dimension_count", BUILD_U32, 3, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "rope.dimension_count is 0; 2 to 4096 are read",
                  read_with("glm-dsa.rope.dimension_count", BUILD_U32, 0, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE,
                  "attention.key_length_mla is 2, but 2 rotated values and at least one other",
                  read_with("glm-dsa.attention.key_length_mla", BUILD_U32, 2, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.attention.key_length is 7, not 6",
                  read_with("glm-dsa.attention.key_length", BUILD_U32, 7, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.attention.value_length is 5, not 4",
                  read_with("glm-dsa.attention.value_length", BUILD_U32, 5, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.attention.head_count_kv is 2, not 1",
                  read_with("glm-dsa.attention.head_count_kv", BUILD_U32, 2, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "attention.indexer.key_length is 1, but rope.dimension_count",
                  read_with("glm-dsa.attention.indexer.key_length", BUILD_U32, 1, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.expert_used_count is 4; 1 to 3 are read",
                  read_with("glm-dsa.expert_used_count", BUILD_U32, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.leading_dense_block_count is 4; 0 to 3 are read",
                  read_with("glm-dsa.leading_dense_block_count", BUILD_U32, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "nextn_predict_layers is 4, but block_count, which counts them, is 4",
                  read_with("glm-dsa.nextn_predict_layers", BUILD_U32, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.nextn_predict_layers is 9; 0 to 8 are read",
                  read_with("glm-dsa.nextn_predict_layers", BUILD_U32, 9, &shape));
    CHECK(shape.layers == 99);  /* written on success only */
}

static glm52_status read_named(const char *architecture) {
    struct gguf_build build;
    glm52_shape shape;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, "general.architecture", NULL, NULL);
    build_text(&build, "general.architecture", architecture);
    return read_built(&build, &shape);
}

void test_shape_refuses_other_models(void) {
    glm52_shape shape;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "the architecture is deepseek2, only glm-dsa is read",
                  read_named("deepseek2"));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "another program's layout of the same model",
                  read_named("glm_moe_dsa"));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "the architecture is glm-dsa2,", read_named("glm-dsa2"));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "the architecture is \\x0a\\xff,", read_named("\n\xff"));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "the architecture is ,", read_named(""));
    CHECK_REFUSED(GLM52_ERR_MODEL, "general.architecture is not a text",
                  read_with("general.architecture", BUILD_U32, 1, &shape));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "expert_gating_func is 1 (softmax)",
                  read_with("glm-dsa.expert_gating_func", BUILD_U32, 1, &shape));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "expert_gating_func is 3",
                  read_with("glm-dsa.expert_gating_func", BUILD_U32, 3, &shape));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "expert_group_count is 8; only one group",
                  read_with("glm-dsa.expert_group_count", BUILD_U32, 8, &shape));
}

/* ---- attention.indexer.types ---- */

#define TYPES "glm-dsa.attention.indexer.types"

/* A model with five layers and the list given: numbers of a type, or words. */
static glm52_status read_types(uint32_t type, const int *numbers, const char *const *words, uint64_t count,
                               glm52_shape *shape_out) {
    struct gguf_build build;
    struct tiny tiny = tiny_default();
    static const size_t bytes[] = {
        [BUILD_U8] = 1,  [BUILD_I8] = 1,   [BUILD_U16] = 2, [BUILD_I16] = 2, [BUILD_U32] = 4,
        [BUILD_I32] = 4, [BUILD_BOOL] = 1, [BUILD_U64] = 8, [BUILD_I64] = 8};
    tiny.layers = 5;
    begin_without(&build, &tiny, TYPES, NULL, NULL);
    build_array(&build, TYPES, type, count);
    for (uint64_t i = 0; i < count; i++) {
        const int64_t number = words == NULL ? numbers[i] : 0;
        if (words != NULL) build_append_text(&build.keys, words[i]);
        else build_append(&build.keys, &number, bytes[type]);
    }
    return read_built(&build, shape_out);
}

static void check_types(const glm52_shape *shape) {
    static const uint8_t wanted[5] = {1, 0, 1, 1, 0};
    CHECK(memcmp(shape->index_full, wanted, 5) == 0);
    for (uint32_t i = 5; i < GLM52_LAYERS_MAX; i++) CHECK(shape->index_full[i] == 0);
}

void test_shape_reads_index_types_of_every_form(void) {
    static const uint32_t types[] = {BUILD_BOOL, BUILD_U8,  BUILD_I8,  BUILD_U16, BUILD_I16,
                                     BUILD_U32,  BUILD_I32, BUILD_U64, BUILD_I64};
    static const int numbers[6] = {1, 0, 1, 1, 0, 1};
    static const char *const words[6] = {"full", "shared", "FULL", "Full", "Shared", "full"};
    for (uint64_t count = 5; count <= 6; count++) {  /* with the MTP block too */
        glm52_shape shape;
        for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
            CHECK_STATUS(GLM52_OK, read_types(types[i], numbers, NULL, count, &shape));
            check_types(&shape);
        }
        CHECK_STATUS(GLM52_OK, read_types(BUILD_STRING, NULL, words, count, &shape));
        check_types(&shape);
    }
}

void test_shape_without_index_types_falls_back(void) {
    for (int below = 0; below <= 1; below++) {
        struct gguf_build build;
        struct tiny tiny = tiny_default();
        glm52_shape shape;
        tiny.index_types = 0;
        tiny.layers = 78;
        tiny.context = 1048576 - (uint32_t)below;
        gguf_build_begin(&build);
        build_tiny_keys(&build, &tiny);
        CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
        /* GLM-5.2's own list of full layers, as its configuration has it. */
        static const uint8_t full[] = {0,  1,  2,  6,  10, 14, 18, 22, 26, 30, 34,
                                       38, 42, 46, 50, 54, 58, 62, 66, 70, 74};
        uint8_t wanted[78] = {0};
        for (size_t i = 0; i < sizeof(full); i++) wanted[full[i]] = 1;
        if (below) memset(wanted, 1, sizeof(wanted));
        CHECK(memcmp(shape.index_full, wanted, sizeof(wanted)) == 0);
    }
}

void test_shape_refuses_index_types(void) {
    glm52_shape shape;
    static const int numbers[7] = {1, 0, 1, 2, 0, 1, 1}, shared_first[5] = {0, 1, 1, 1, 1};
    static const char *const words[5] = {"full", "half", "full", "full", "full"};
    CHECK_REFUSED(GLM52_ERR_SHAPE, "has 4 elements, the model has 5 layers",
                  read_types(BUILD_U8, numbers, NULL, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "has 7 elements, the model has 5 layers",
                  read_types(BUILD_U32, numbers, NULL, 7, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "has 0 elements", read_types(BUILD_U32, numbers, NULL, 0, &shape));
    CHECK_REFUSED(GLM52_ERR_MODEL, "is 2 for layer 3; 0 (shared) and 1 (full) are read",
                  read_types(BUILD_I16, numbers, NULL, 5, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "calls layer 0 shared",
                  read_types(BUILD_BOOL, shared_first, NULL, 5, &shape));
    CHECK_REFUSED(GLM52_ERR_MODEL, "says \"half\" of layer 1",
                  read_types(BUILD_STRING, NULL, words, 5, &shape));
    CHECK_REFUSED(GLM52_ERR_MODEL, "is no list", read_with(TYPES, BUILD_BOOL, 1, &shape));
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, TYPES, NULL, NULL);
    build_array(&build, TYPES, BUILD_F32, 3);
    build_append(&build.keys, "\0\0\x80\x3f\0\0\x80\x3f\0\0\x80\x3f", 12);
    CHECK_REFUSED(GLM52_ERR_MODEL, "is f32, an integer is wanted", read_built(&build, &shape));
}

/* ---- a number per layer ---- */

static glm52_status read_list(const char *key, const uint32_t *numbers, uint32_t count,
                              glm52_shape *shape_out) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, key, NULL, NULL);
    build_array(&build, key, BUILD_U32, count);
    for (uint32_t i = 0; i < count; i++) build_append_u32(&build.keys, numbers[i]);
    return read_built(&build, shape_out);
}

void test_shape_takes_lists_of_equal_numbers(void) {
    glm52_shape shape;
    /* Layer 0 is dense, 1 and 2 are sparse, 3 is the MTP block. */
    const uint32_t dense[4] = {40, 0, 0, 0}, sparse[4] = {0, 24, 24, 24}, mixed[4] = {0, 24, 25, 24};
    CHECK_STATUS(GLM52_OK, read_list("glm-dsa.feed_forward_length", dense, 4, &shape));
    CHECK(shape.dense_ff == 40);
    CHECK_STATUS(GLM52_OK, read_list("glm-dsa.expert_feed_forward_length", sparse, 4, &shape));
    CHECK(shape.expert_ff == 24 && shape.shared_ff == 24);
    CHECK_STATUS(GLM52_OK, read_list("glm-dsa.expert_feed_forward_length", sparse, 3, &shape));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "differs between layers (24 on layer 1, 25 on layer 2)",
                  read_list("glm-dsa.expert_feed_forward_length", mixed, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "has 2 elements, the model has 4 blocks",
                  read_list("glm-dsa.expert_feed_forward_length", sparse, 2, &shape));
    const uint32_t heads[3] = {2, 2, 2}, zero[4] = {0, 0, 0, 0};
    CHECK_STATUS(GLM52_OK, read_list("glm-dsa.attention.head_count", heads, 3, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "expert_feed_forward_length is 0",
                  read_list("glm-dsa.expert_feed_forward_length", zero, 4, &shape));
    CHECK_REFUSED(GLM52_ERR_SHAPE, "key glm-dsa.feed_forward_length is 0",
                  read_list("glm-dsa.feed_forward_length", zero, 4, &shape));
}

void test_shape_refuses_scaled_positions(void) {
    glm52_shape shape;
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, NULL, NULL, NULL);
    build_text(&build, "glm-dsa.rope.scaling.type", "none");
    build_f32(&build, "glm-dsa.rope.scaling.factor", 4);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    begin_without(&build, &tiny, NULL, NULL, NULL);
    build_f32(&build, "glm-dsa.rope.scaling.factor", 1);
    build_f32(&build, "glm-dsa.rope.scale_linear", 0);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    begin_without(&build, &tiny, NULL, NULL, NULL);
    build_text(&build, "glm-dsa.rope.scaling.type", "yarn");
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "rope.scaling.type is not \"none\"", read_built(&build, &shape));
    begin_without(&build, &tiny, NULL, NULL, NULL);
    build_f32(&build, "glm-dsa.rope.scaling.factor", 4);
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "rope.scaling.factor is 4", read_built(&build, &shape));
    begin_without(&build, &tiny, NULL, NULL, NULL);
    build_f32(&build, "glm-dsa.rope.scale_linear", 2);
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "rope.scale_linear is 2", read_built(&build, &shape));
}

static glm52_status read_float_key(const char *key, float number) {
    struct gguf_build build;
    glm52_shape shape;
    const struct tiny tiny = tiny_default();
    begin_without(&build, &tiny, key, NULL, NULL);
    build_f32(&build, key, number);
    return read_built(&build, &shape);
}

void test_shape_refuses_floats(void) {
    static const struct {
        const char *key;
        float min, max;
    } limits[] = {
        {"glm-dsa.attention.layer_norm_rms_epsilon", GLM52_SHAPE_EPSILON_MIN, GLM52_SHAPE_EPSILON_MAX},
        {"glm-dsa.rope.freq_base", GLM52_SHAPE_ROPE_BASE_MIN, GLM52_SHAPE_ROPE_BASE_MAX},
        {"glm-dsa.expert_weights_scale", 0, GLM52_SHAPE_EXPERT_SCALE_MAX}};
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        const float min = limits[i].min, max = limits[i].max;
        CHECK_STATUS(GLM52_OK, read_float_key(limits[i].key, min));
        CHECK_STATUS(GLM52_OK, read_float_key(limits[i].key, max));
        const float refused[] = {nextafterf(min, -INFINITY), nextafterf(max, INFINITY), NAN, INFINITY,
                                 -INFINITY};
        for (size_t j = 0; j < sizeof(refused) / sizeof(refused[0]); j++) {
            CHECK_REFUSED(GLM52_ERR_SHAPE, limits[i].key, read_float_key(limits[i].key, refused[j]));
        }
    }
}

void test_shape_drops_an_mtp_block_without_tensors(void) {
    struct gguf_build build;
    struct tiny tiny = tiny_default();
    glm52_shape shape;
    gguf_build_begin(&build);
    build_tiny_keys(&build, &tiny);
    tiny.nextn = 0;
    build_tiny_tensors(&build, &tiny);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    CHECK(shape.layers == 3 && shape.nextn_layers == 0);
    begin_without(&build, &tiny, NULL, NULL, NULL);
    CHECK_STATUS(GLM52_OK, read_built(&build, &shape));
    CHECK(shape.layers == 3 && shape.nextn_layers == 0);
}
