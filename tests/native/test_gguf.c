/* test_gguf.c - GGUF files that are read: keys, tensors, limits that are just reached. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf.h"
#include "gguf_build.h"
#include "refused.h"

/* Saves what was built, opens it and removes the file; NULL (reported) if it is refused. */
static struct glm52_gguf *open_built(struct gguf_build *build) {
    const char *folder = build_folder();
    const char *path = build_path(folder, "model.gguf");
    gguf_build_finish(build);
    build_save(build, path);
    struct glm52_gguf *gguf = NULL;
    const glm52_status status = glm52_gguf_open(path, &gguf);
    CHECK(status == GLM52_OK);
    if (status != GLM52_OK) printf("%s\n", glm52_error_message());
    build_remove_folder(folder);  /* an open file outlives its name */
    return gguf;
}

void test_gguf_reads_every_type_of_key(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    for (uint32_t type = BUILD_U8; type <= BUILD_BOOL; type++) {
        char name[16];
        snprintf(name, sizeof(name), "scalar.%u", type);
        if (type == BUILD_F32) build_f32(&build, name, 1.5f);
        else build_integer(&build, name, type, 1);
    }
    build_text(&build, "text", "a \xc3\xa4");
    build_text(&build, "empty", "");
    build_array(&build, "texts", BUILD_STRING, 3);
    build_append_text(&build.keys, "one");
    build_append_text(&build.keys, "");
    build_append_text(&build.keys, "three");
    build_array(&build, "none", BUILD_U64, 0);
    build_array(&build, "u16s", BUILD_U16, 2);
    build_append_u32(&build.keys, 0x00070003);
    struct glm52_gguf *gguf = open_built(&build);
    if (gguf != NULL) {
        CHECK(gguf->key_count == 13);
        CHECK(glm52_gguf_key(gguf, "scalar.4")->type == BUILD_U32);
        CHECK(glm52_gguf_key(gguf, "scalar.4")->data_bytes == 4);
        CHECK(glm52_gguf_key(gguf, "scalar.9") == NULL);
        const glm52_value *text = glm52_gguf_key(gguf, "text");
        CHECK(text->type == BUILD_STRING && text->count == 1 && text->data_bytes == 8 + 4);
        CHECK(memcmp((const char *)text->data + 8, "a \xc3\xa4", 4) == 0);
        CHECK(glm52_gguf_key(gguf, "empty")->data_bytes == 8);
        const glm52_value *texts = glm52_gguf_key(gguf, "texts");
        CHECK(texts->type == BUILD_ARRAY && texts->element_type == BUILD_STRING && texts->count == 3);
        CHECK(texts->data_bytes == 3 * 8 + 3 + 5);
        CHECK(glm52_gguf_key(gguf, "none")->count == 0 && glm52_gguf_key(gguf, "none")->data_bytes == 0);
        CHECK(memcmp(glm52_gguf_key(gguf, "u16s")->data, "\3\0\7\0", 4) == 0);
    }
    glm52_gguf_close(gguf);
    gguf_build_free(&build);
}

void test_gguf_reads_integers_of_any_width(void) {
    static const uint32_t types[] = {BUILD_U8,  BUILD_I8,  BUILD_U16, BUILD_I16,
                                     BUILD_U32, BUILD_I32, BUILD_U64, BUILD_I64};
    static const int64_t largest[] = {255, 127, 65535, 32767, 4294967295, 2147483647, -1, INT64_MAX};
    struct gguf_build build;
    gguf_build_begin(&build);
    for (size_t i = 0; i < 8; i++) {
        char name[16];
        snprintf(name, sizeof(name), "most.%zu", i);
        build_integer(&build, name, types[i], largest[i]);
        snprintf(name, sizeof(name), "minus.%zu", i);
        build_integer(&build, name, types[i], -1);
    }
    build_text(&build, "text", "7");
    build_f32(&build, "float", 7);
    build_array(&build, "list", BUILD_U8, 0);
    struct glm52_gguf *gguf = open_built(&build);
    for (size_t i = 0; i < 8 && gguf != NULL; i++) {
        char name[16];
        bool found = false;
        uint64_t number = 0;
        snprintf(name, sizeof(name), "most.%zu", i);
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_u64(gguf, name, &found, &number));
        CHECK(found && number == (uint64_t)largest[i]);
        snprintf(name, sizeof(name), "minus.%zu", i);
        if (i % 2 == 0) continue;  /* unsigned: -1 is the largest */
        CHECK_REFUSED(GLM52_ERR_MODEL, "is -1, a number from 0",
                      glm52_gguf_get_u64(gguf, name, &found, &number));
    }
    if (gguf != NULL) {
        bool found = true;
        uint64_t number = 9;
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_u64(gguf, "absent", &found, &number));
        CHECK(!found && number == 9);
        CHECK_REFUSED(GLM52_ERR_MODEL, "text is text", glm52_gguf_get_u64(gguf, "text", &found, &number));
        CHECK_REFUSED(GLM52_ERR_MODEL, "float is f32", glm52_gguf_get_u64(gguf, "float", &found, &number));
        CHECK_REFUSED(GLM52_ERR_MODEL, "is a list", glm52_gguf_get_u64(gguf, "list", &found, &number));
        CHECK(!found && number == 9);
    }
    glm52_gguf_close(gguf);
    gguf_build_free(&build);
}

static void add_double(struct gguf_build *build, const char *key, double number) {
    uint64_t bits;
    memcpy(&bits, &number, sizeof(bits));
    if (build_key(build, key, BUILD_F64)) build_append_u64(&build->keys, bits);
}

void test_gguf_reads_floats(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build_f32(&build, "f32", 0.1f);
    add_double(&build, "f64", 0.1);
    add_double(&build, "infinite", (double)INFINITY);
    add_double(&build, "large", 1e300);
    build_integer(&build, "u64", BUILD_U64, -1);
    build_integer(&build, "i8", BUILD_I8, -3);
    build_text(&build, "text", "1");
    build_array(&build, "list", BUILD_F32, 0);
    struct glm52_gguf *gguf = open_built(&build);
    if (gguf != NULL) {
        bool found = false;
        float number = 0;
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "f32", &found, &number));
        CHECK(found && number == 0.1f);
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "f64", &found, &number));
        CHECK(number == 0.1f);
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "infinite", &found, &number));
        CHECK(isinf(number));
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "u64", &found, &number));
        CHECK(number == 18446744073709551616.0f);
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "i8", &found, &number));
        CHECK(number == -3);
        CHECK_STATUS(GLM52_OK, glm52_gguf_get_f32(gguf, "absent", &found, &number));
        CHECK(!found && number == -3);
        CHECK_REFUSED(GLM52_ERR_MODEL, "1e+300", glm52_gguf_get_f32(gguf, "large", &found, &number));
        CHECK_REFUSED(GLM52_ERR_MODEL, "a number is wanted",
                      glm52_gguf_get_f32(gguf, "text", &found, &number));
        CHECK_REFUSED(GLM52_ERR_MODEL, "a number is wanted",
                      glm52_gguf_get_f32(gguf, "list", &found, &number));
    }
    glm52_gguf_close(gguf);
    gguf_build_free(&build);
}

void test_gguf_reads_versions_2_and_3(void) {
    for (uint32_t version = 2; version <= 3; version++) {
        struct gguf_build build;
        gguf_build_begin(&build);
        build.version = version;
        build_u32(&build, "key", 1);
        build_tensor(&build, "a", BUILD_TYPE_F32, 3, 2, 0);
        struct glm52_gguf *gguf = open_built(&build);
        CHECK(gguf != NULL && gguf->tensor_count == 1);
        glm52_gguf_close(gguf);
        gguf_build_free(&build);
    }
}

void test_gguf_finds_every_tensor_where_it_lies(void) {
    struct gguf_build build;
    const struct tiny tiny = tiny_default();
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    struct glm52_gguf *gguf = open_built(&build);
    CHECK(gguf != NULL && gguf->tensor_count == build.tensor_count &&
          gguf->tensor_count == 3 + 18 + 23 + 18 + 27);
    for (uint64_t i = 0; gguf != NULL && i < gguf->tensor_count; i++) {
        const glm52_tensor_info *tensor = &gguf->tensors[i];
        CHECK(glm52_gguf_tensor(gguf, tensor->name) == tensor);
        CHECK(tensor->offset >= build.data_offset && tensor->offset % 32 == 0);
        CHECK(tensor->offset + tensor->bytes <= build.file.used);
        CHECK(memcmp(glm52_gguf_data(gguf, tensor), build.file.at + tensor->offset, tensor->bytes) == 0);
    }
    if (gguf != NULL) {
        const glm52_tensor_info *experts = glm52_gguf_tensor(gguf, "blk.1.ffn_gate_exps.weight");
        CHECK(experts->dimensions == 3 && strcmp(experts->type_name, "Q8_0") == 0 && experts->type == 8);
        CHECK(experts->size[0] == 32 && experts->size[1] == 2 && experts->size[2] == 3 &&
              experts->size[3] == 1);
        CHECK(experts->bytes == 2 * 3 * 34);
        CHECK(gguf->shards[0].header_bytes == build.header_bytes);
        CHECK(gguf->shards[0].data_offset == build.data_offset && gguf->shards[0].bytes == build.file.used);
        CHECK(glm52_gguf_tensor(gguf, "blk.1.ffn_gate_exps.weigh") == NULL);
        CHECK(glm52_gguf_tensor(gguf, "") == NULL);
    }
    glm52_gguf_close(gguf);
    gguf_build_free(&build);
}

void test_gguf_takes_tensors_in_any_order_and_with_holes(void) {
    struct gguf_build build;
    const uint64_t size[1] = {8};
    gguf_build_begin(&build);
    build_tensor_at(&build, "last", BUILD_TYPE_F32, 1, size, 96);
    build_tensor_at(&build, "first", BUILD_TYPE_F32, 1, size, 0);
    const uint8_t data[128] = {1};
    build_append(&build.data, data, sizeof(data));
    struct glm52_gguf *gguf = open_built(&build);
    CHECK(gguf != NULL && gguf->tensors[0].offset == build.data_offset + 96);
    CHECK(gguf != NULL && *(const uint8_t *)glm52_gguf_data(gguf, &gguf->tensors[1]) == 1);
    glm52_gguf_close(gguf);
    gguf_build_free(&build);
}

void test_gguf_takes_every_alignment(void) {
    for (uint32_t alignment = GLM52_GGUF_ALIGNMENT_MIN; alignment <= GLM52_GGUF_ALIGNMENT_MAX;
         alignment *= 2) {
        struct gguf_build build;
        gguf_build_begin(&build);
        build.alignment = alignment;
        build_integer(&build, "general.alignment", BUILD_U64, alignment);
        build_tensor(&build, "a", BUILD_TYPE_F32, 1, 0, 0);
        build_tensor(&build, "b", BUILD_TYPE_F32, 1, 0, 0);
        struct glm52_gguf *gguf = open_built(&build);
        CHECK(gguf != NULL && gguf->tensors[1].offset == gguf->tensors[0].offset + alignment);
        CHECK(gguf != NULL && gguf->tensors[0].offset % alignment == 0);
        glm52_gguf_close(gguf);
        gguf_build_free(&build);
    }
}

/* GLM52_GGUF_KEYS_MAX keys of one byte, one with the longest name. */
static void add_most_keys(struct gguf_build *build) {
    char name[GLM52_GGUF_KEY_BYTES_MAX + 1];
    for (uint32_t i = 0; i + 1 < GLM52_GGUF_KEYS_MAX; i++) {
        snprintf(name, sizeof(name), "%u", i);
        build_integer(build, name, BUILD_U8, 1);
    }
    memset(name, 'k', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    build_integer(build, name, BUILD_U8, 1);
}

static void add_most_tensors(struct gguf_build *build) {
    char name[GLM52_GGUF_NAME_BYTES_MAX + 1];
    const uint64_t size[4] = {1, 1, 1, 1};
    for (uint32_t i = 0; i + 1 < GLM52_GGUF_TENSORS_MAX; i++) {
        snprintf(name, sizeof(name), "%u", i);
        build_tensor_at(build, name, BUILD_TYPE_F32, GLM52_GGUF_DIMENSIONS_MAX, size, 32 * (uint64_t)i);
    }
    memset(name, 't', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    build_tensor_at(build, name, BUILD_TYPE_F32, 1, size, 32 * (uint64_t)(GLM52_GGUF_TENSORS_MAX - 1));
    const uint8_t zeros[32] = {0};
    for (uint32_t i = 0; i < GLM52_GGUF_TENSORS_MAX; i++) build_append(&build->data, zeros, sizeof(zeros));
}

void test_gguf_takes_the_most_keys_tensors_and_bytes(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    add_most_keys(&build);
    add_most_tensors(&build);
    struct glm52_gguf *gguf = open_built(&build);
    CHECK(gguf != NULL && gguf->key_count == GLM52_GGUF_KEYS_MAX &&
          gguf->tensor_count == GLM52_GGUF_TENSORS_MAX);
    glm52_gguf_close(gguf);
    gguf_build_free(&build);

    /* The largest header: an array that ends with it. One byte more is refused. The file is mostly a hole. */
    for (uint64_t more = 0; more <= 1; more++) {
        const char *folder = build_folder();
        const char *path = build_path(folder, "model.gguf");
        gguf_build_begin(&build);
        const uint64_t head = 4 + 4 + 8 + 8 + 8 + 1 + 4 + 4 + 8;
        build_array(&build, "a", BUILD_U8, GLM52_GGUF_HEADER_BYTES_MAX - head + more);
        gguf_build_finish(&build);
        build_save(&build, path);
        CHECK(truncate(path, (off_t)GLM52_GGUF_HEADER_BYTES_MAX + 100) == 0);
        gguf = NULL;
        if (more == 0) CHECK_STATUS(GLM52_OK, glm52_gguf_open(path, &gguf));
        else CHECK_REFUSED(GLM52_ERR_MODEL, "largest header", glm52_gguf_open(path, &gguf));
        CHECK(more == 1 || (gguf != NULL && gguf->shards[0].header_bytes == GLM52_GGUF_HEADER_BYTES_MAX));
        glm52_gguf_close(gguf);
        gguf_build_free(&build);
        build_remove_folder(folder);
    }
}

void test_gguf_opens_a_folder_with_one_model(void) {
    const char *folder = build_folder();
    struct glm52_gguf *gguf = NULL;
    CHECK_REFUSED(GLM52_ERR_MODEL, "is empty", glm52_gguf_open(folder, &gguf));
    build_save_bytes(build_path(folder, "README.md"), "text", 4);
    build_save_bytes(build_path(folder, ".hidden.gguf"), "text", 4);
    CHECK_REFUSED(GLM52_ERR_MODEL, "no *.gguf file (entries: 2, the first is .hidden.gguf)",
                  glm52_gguf_open(folder, &gguf));

    struct gguf_build build;
    gguf_build_begin(&build);
    build_u32(&build, "key", 1);
    gguf_build_finish(&build);
    build_save(&build, build_path(folder, "b.GGUF"));
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(folder, &gguf));
    CHECK(gguf != NULL && strstr(gguf->shards[0].path, "/b.GGUF") != NULL);
    glm52_gguf_close(gguf);
    gguf = NULL;
    char slash[80];
    snprintf(slash, sizeof(slash), "%s/", folder);
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(slash, &gguf));
    glm52_gguf_close(gguf);

    build_save(&build, build_path(folder, "a.gguf"));
    build_save(&build, build_path(folder, "c-00001-of-00002.gguf"));
    build_save(&build, build_path(folder, "c-00002-of-00002.gguf"));
    CHECK_REFUSED(GLM52_ERR_MODEL,
                  "holds 3 models; name the one to open: a.gguf, b.GGUF, c-00001-of-00002.gguf",
                  glm52_gguf_open(folder, &gguf));
    gguf_build_free(&build);
    build_remove_folder(folder);

    /* A folder where a file is wanted. */
    folder = build_folder();
    CHECK(mkdir(build_path(folder, "x.gguf"), 0700) == 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "x.gguf: a folder, not a GGUF file", glm52_gguf_open(folder, &gguf));
    build_remove_folder(folder);
}
