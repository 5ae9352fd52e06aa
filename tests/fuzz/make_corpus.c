/* make_corpus.c - writes the inputs that the fuzzer starts from: make_corpus FOLDER.
 *
 * valid-* are whole models; the others each hold one thing that a reader may trip over. Inputs that a fuzzer
 * found lie beside them under names of their own and are not written here. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "gguf_build.h"

static const char *folder;

static void save(const char *name, const void *bytes, size_t count) {
    char path[1000];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    build_save_bytes(path, bytes, count);
}

/* Lays out, saves the first count bytes (all if 0) and starts over. */
static void finish(struct gguf_build *build, const char *name, size_t count) {
    gguf_build_finish(build);
    save(name, build->file.at, count > 0 ? count : build->file.used);
    gguf_build_free(build);
    gguf_build_begin(build);
}

static struct tiny smallest(void) {
    struct tiny tiny = tiny_default();
    tiny.layers = 2;
    tiny.index_types = 1;
    tiny.heads = tiny.index_heads = 1;
    tiny.experts = 2;
    tiny.experts_used = 1;
    tiny.kv_lora = tiny.q_lora = 2;
    tiny.key_mla = 3;
    tiny.value_mla = 2;
    tiny.index_key = 2;
    tiny.dense_ff = 2;
    return tiny;
}

static void valid_models(void) {
    struct gguf_build build;
    struct tiny tiny = smallest();
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    finish(&build, "valid-tiny.gguf", 0);

    /* Everything optional the other way; no type but F32, which leaves rows any length. */
    tiny.nextn = 0;
    tiny.tied = true;
    tiny.index_types = 0;
    tiny.hidden = 4;
    tiny.matrix_type = BUILD_TYPE_F32;
    build.version = 2;
    build.alignment = 8;
    build_u32(&build, "general.alignment", 8);
    build.skips[0] = "glm-dsa.vocab_size";
    build.skips[1] = "glm-dsa.expert_gating_func";
    build.skips[2] = "glm-dsa.expert_weights_norm";
    build_tiny(&build, &tiny);
    build_array(&build, "tokenizer.ggml.tokens", BUILD_STRING, 3);
    build_append_text(&build.keys, "a");
    build_append_text(&build.keys, "");
    build_append_text(&build.keys, "bc");
    finish(&build, "valid-other.gguf", 0);

    build.skips[0] = "glm-dsa.attention.indexer.types";
    tiny = smallest();
    tiny.hidden = 4;
    tiny.matrix_type = BUILD_TYPE_F32;
    tiny.dense = 0;
    tiny.index_on_shared = true;
    build_tiny(&build, &tiny);
    build.skips[0] = NULL;
    build_array(&build, "glm-dsa.attention.indexer.types", BUILD_STRING, 3);
    build_append_text(&build.keys, "full");
    build_append_text(&build.keys, "Shared");
    build_append_text(&build.keys, "full");
    build_tensor(&build, "blk.2.nextn.embed_tokens.weight", BUILD_TYPE_F16, 4, tiny.vocab, 0);
    finish(&build, "valid-words.gguf", 0);
    gguf_build_free(&build);
}

/* The layout in which an expert's slices lie together, right and with some faults in it. */
static void colocated_models(void) {
    static const struct {
        enum colocate_fault fault;
        const char *name;
    } files[] = {{COLOCATE_RIGHT, "valid-colocated.gguf"},
                 {COLOCATE_DIRECTORY_CUT, "colocated-directory-cut.gguf"},
                 {COLOCATE_MANY_TENSORS, "colocated-many-tensors.gguf"},
                 {COLOCATE_OTHER_SHAPE, "colocated-other-shape.gguf"},
                 {COLOCATE_EXPERTS, "colocated-experts.gguf"},
                 {COLOCATE_RUN_SHORT, "colocated-run-short.gguf"}};
    struct tiny tiny = smallest();
    tiny.hidden = 4;
    tiny.nextn = 0;
    tiny.matrix_type = BUILD_TYPE_F32;
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct gguf_build plain, build;
        gguf_build_begin(&plain);
        build_tiny(&plain, &tiny);
        build_colocated(&build, &plain, files[i].fault);
        finish(&build, files[i].name, 0);
        gguf_build_free(&build);
        gguf_build_free(&plain);
    }
}

static void build_shard(struct gguf_build *build, uint32_t index, uint64_t tensors, uint64_t first,
                        uint64_t last) {
    struct tiny tiny = smallest();
    tiny.hidden = 4;
    tiny.matrix_type = BUILD_TYPE_F32;
    gguf_build_begin(build);
    build_integer(build, "split.no", BUILD_U16, index);
    build_integer(build, "split.count", BUILD_U16, 2);
    build_integer(build, "split.tensors.count", BUILD_I32, (int64_t)tensors);
    if (index == 0) build_tiny_keys(build, &tiny);
    build_tiny_tensors_part(build, &tiny, first, last);
    gguf_build_finish(build);
}

static void split_model(const char *name, uint64_t tensors, uint64_t middle, uint64_t second_first) {
    struct gguf_build first, second;
    struct build_bytes input = {0};
    build_shard(&first, 0, tensors, 0, middle);
    build_shard(&second, 1, tensors, second_first, UINT64_MAX);
    build_append(&input, FUZZ_SPLIT_MAGIC, strlen(FUZZ_SPLIT_MAGIC));
    build_append_u32(&input, (uint32_t)first.file.used);
    build_append(&input, first.file.at, first.file.used);
    build_append(&input, second.file.at, second.file.used);
    save(name, input.at, input.used);
    gguf_build_free(&first);
    gguf_build_free(&second);
    free(input.at);
}

#define SPLIT_TENSORS (3 + 18 + 18 + 27)

static void hostile_headers(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    finish(&build, "empty-header.gguf", 0);
    build.tensor_count = UINT64_MAX;
    finish(&build, "tensors-without-number.gguf", 0);
    build.key_count = UINT64_MAX;
    finish(&build, "keys-without-number.gguf", 0);
    build.version = 0x03000000;
    finish(&build, "big-endian.gguf", 0);
    build_append_u64(&build.keys, UINT64_MAX);
    build_append(&build.keys, "fourteen bytes", 14);
    build.key_count = 1;
    finish(&build, "key-name-without-end.gguf", 0);
    build_array(&build, "k", BUILD_ARRAY, 1);
    build_append_u32(&build.keys, BUILD_ARRAY);
    build_append_u64(&build.keys, 1);
    finish(&build, "arrays-in-arrays.gguf", 0);
    build_array(&build, "k", BUILD_U64, UINT64_MAX / 8 + 2);
    build_append_u64(&build.keys, 0);
    finish(&build, "array-that-wraps.gguf", 0);
    build_array(&build, "k", BUILD_STRING, UINT64_MAX);
    build_append_text(&build.keys, "a");
    finish(&build, "texts-without-number.gguf", 0);
    build_array(&build, "k", BUILD_STRING, 2);
    build_append_text(&build.keys, "a");
    build_append_u64(&build.keys, UINT64_MAX - 7);
    finish(&build, "text-that-wraps.gguf", 0);
    build_u32(&build, "k", 1);
    build_u32(&build, "k", 1);
    finish(&build, "key-twice.gguf", 0);
    build_integer(&build, "general.alignment", BUILD_U64, 0);
    build_tensor(&build, "t", BUILD_TYPE_F32, 1, 0, 0);
    finish(&build, "alignment-0.gguf", 0);
    gguf_build_free(&build);
}

static void one_tensor(const char *name, uint32_t type, uint32_t dimensions, const uint64_t *size,
                       uint64_t offset) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build_tensor_at(&build, "t", type, dimensions, size, offset);
    const uint8_t data[64] = {1};
    build_append(&build.data, data, sizeof(data));
    finish(&build, name, 0);
    gguf_build_free(&build);
}

static void hostile_tensors(void) {
    const uint64_t wraps[4] = {1ull << 32, 1ull << 32, 1, 1}, most[4] = {1ull << 48, 1, 1, 1},
                   one[4] = {1, 1, 1, 1};
    const uint64_t zero[4] = {0, 1, 1, 1}, odd[4] = {33, 1, 1, 1};
    one_tensor("elements-that-wrap.gguf", 0, 2, wraps, 0);
    one_tensor("elements-at-the-limit.gguf", 0, 1, most, 0);
    one_tensor("no-element.gguf", 0, 1, zero, 0);
    one_tensor("no-dimension.gguf", 0, 0, one, 0);
    one_tensor("broken-block.gguf", 8, 1, odd, 0);
    one_tensor("offset-that-wraps.gguf", 0, 1, one, UINT64_MAX - 31);
    one_tensor("offset-at-the-limit.gguf", 0, 1, one, 1ull << 60);
    one_tensor("unknown-type.gguf", 40, 1, one, 0);
    struct gguf_build build;
    gguf_build_begin(&build);
    build_tensor_at(&build, "a", 0, 1, odd, 0);
    build_tensor_at(&build, "b", 0, 1, one, 32);
    const uint8_t data[192] = {1};
    build_append(&build.data, data, sizeof(data));
    finish(&build, "tensors-that-overlap.gguf", 0);
    build_tensor(&build, "t", 0, 1, 0, 0);
    build_tensor(&build, "t", 0, 1, 0, 0);
    finish(&build, "tensor-twice.gguf", 0);
    build_tensor(&build, "blk.1.ffn_up_exps.weight", 0, 4, 4, 4);
    finish(&build, "cut-in-an-expert.gguf", 224);
    gguf_build_free(&build);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    valid_models();
    colocated_models();
    split_model("valid-split", SPLIT_TENSORS, 20, 20);
    split_model("valid-split-keys-first", SPLIT_TENSORS, 0, 0);
    split_model("split-with-a-hole", SPLIT_TENSORS, 20, 21);
    split_model("split-tensor-twice", SPLIT_TENSORS + 1, 20, 19);
    hostile_headers();
    hostile_tensors();
    save("page.gguf", "<!DOCTYPE html><html><title>404</title></html>", 46);
    save("pointer.gguf", "version https://git-lfs.github.com/spec/v1\nsize 2\n", 50);
    save("empty.gguf", "", 0);
    save("magic.gguf", "GGUF", 4);
    save("split-of-nothing", FUZZ_SPLIT_MAGIC "\0\0\0\0", FUZZ_SPLIT_HEAD);
    return 0;
}
