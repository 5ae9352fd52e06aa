/* test_gguf_refuses.c - files that are refused, each with a message that says what is wrong and where. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf.h"
#include "gguf_build.h"
#include "refused.h"

/* What opening bytes gives; what is opened is closed again. */
static glm52_status open_bytes(const void *bytes, size_t count) {
    const char *folder = build_folder();
    const char *path = build_path(folder, "model.gguf");
    build_save_bytes(path, bytes, count);
    struct glm52_gguf *gguf = NULL;
    const glm52_status status = glm52_gguf_open(path, &gguf);
    CHECK((status == GLM52_OK) == (gguf != NULL));
    if (status != GLM52_OK) CHECK_MESSAGE("/model.gguf: ");
    glm52_gguf_close(gguf);
    build_remove_folder(folder);
    return status;
}

/* Lays the file out, opens it and frees it. */
static glm52_status open_once(struct gguf_build *build) {
    gguf_build_finish(build);
    const glm52_status status = open_bytes(build->file.at, build->file.used);
    gguf_build_free(build);
    gguf_build_begin(build);
    return status;
}

static glm52_status open_text(const char *text) {
    return open_bytes(text, strlen(text));
}

void test_gguf_refuses_what_is_no_gguf(void) {
    CHECK_REFUSED(GLM52_ERR_MODEL, "the file is empty (0 bytes)", open_bytes("", 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "an HTML page", open_text("<!DOCTYPE html><html><head>"));
    CHECK_REFUSED(GLM52_ERR_MODEL, "an HTML page", open_text("\xef\xbb\xbf\r\n <HTML>\n"));
    CHECK_REFUSED(
        GLM52_ERR_MODEL, "a Git LFS pointer",
        open_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 211075856448\n"));
    CHECK_REFUSED(GLM52_ERR_MODEL, "a JSON document", open_text("{\"error\":\"Invalid credentials\"}"));
    CHECK_REFUSED(GLM52_ERR_MODEL, "an XML document", open_text("<?xml version=\"1.0\"?><Error>"));
    CHECK_REFUSED(GLM52_ERR_MODEL, "a zip archive", open_text("PK\x03\x04 and more"));
    CHECK_REFUSED(GLM52_ERR_MODEL, "a safetensors file", open_bytes("\x40\0\0\0\0\0\0\0{\"a\":1}", 15));
    CHECK_REFUSED(GLM52_ERR_MODEL, "before GGUF", open_bytes("lmgg\1\0\0\0", 8));
    CHECK_REFUSED(GLM52_ERR_MODEL, "before GGUF", open_bytes("tjgg\3\0\0\0", 8));
    const uint8_t zeros[600] = {0};
    CHECK_REFUSED(GLM52_ERR_MODEL, "unfinished download", open_bytes(zeros, sizeof(zeros)));
    CHECK_REFUSED(GLM52_ERR_MODEL, "it starts with \"GG\\x01\\xff\", not \"GGUF\" (4 bytes)",
                  open_bytes("GG\x01\xff", 4));
    CHECK_REFUSED(GLM52_ERR_MODEL, "starts with \"Entry no\"", open_text("Entry not found"));

    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "GGUF version 1;", open_bytes("GGUF\1\0\0\0", 8));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "GGUF version 4;", open_bytes("GGUF\4\0\0\0", 8));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "GGUF version 0;", open_bytes("GGUF\0\0\0\0", 8));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "a big-endian GGUF (version 3)", open_bytes("GGUF\0\0\0\3", 8));

    const char *folder = build_folder();
    struct glm52_gguf *gguf = NULL;
    CHECK_REFUSED(GLM52_ERR_IO, "none.gguf: No such file",
                  glm52_gguf_open(build_path(folder, "none.gguf"), &gguf));
    CHECK(mkfifo(build_path(folder, "pipe.gguf"), 0600) == 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "not a regular file",
                  glm52_gguf_open(build_path(folder, "pipe.gguf"), &gguf));
    build_remove_folder(folder);
    CHECK(gguf == NULL);
}

void test_gguf_refuses_a_cut_file(void) {
    struct gguf_build build;
    struct tiny tiny = tiny_default();
    tiny.expert_ff = 64;  /* so that an expert is longer than 4 KiB */
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_tensor(&build, "short", BUILD_TYPE_F32, 1, 0, 0);
    gguf_build_finish(&build);
    const uint8_t *bytes = build.file.at;
    const size_t whole = build.file.used;
    char wanted[200];
    CHECK_STATUS(GLM52_OK, open_bytes(bytes, whole));

    /* By a byte: only padding is lost, and still said. */
    snprintf(wanted, sizeof(wanted),
             "truncated: tensor short takes bytes %zu to %zu (padded: %zu), but the file ends at byte %zu;",
             whole - 32, whole - 28, whole, whole - 1);
    CHECK_REFUSED(GLM52_ERR_MODEL, wanted, open_bytes(bytes, whole - 1));
    snprintf(wanted, sizeof(wanted), "need a file of %zu bytes, 1 are missing", whole);
    CHECK_MESSAGE(wanted);
    CHECK_REFUSED(GLM52_ERR_MODEL, "29 are missing", open_bytes(bytes, whole - 29));
    CHECK_REFUSED(GLM52_ERR_MODEL, "4096 are missing", open_bytes(bytes, whole - 4096));

    /* In the middle of an expert: which one is said. */
    gguf_build_free(&build);
    gguf_build_begin(&build);
    build_tensor(&build, "before", BUILD_TYPE_F32, 8, 0, 0);
    build_tensor(&build, "blk.7.ffn_up_exps.weight", BUILD_TYPE_F32, 64, 16, 5);
    build_tensor(&build, "behind", BUILD_TYPE_F32, 8, 0, 0);
    gguf_build_finish(&build);
    const size_t expert = 64 * 16 * 4;
    for (size_t cut = 0; cut < 5; cut++) {
        snprintf(wanted, sizeof(wanted), "tensor blk.7.ffn_up_exps.weight takes bytes %zu to %zu",
                 build.data_offset + 32, build.data_offset + 32 + 5 * expert);
        CHECK_REFUSED(GLM52_ERR_MODEL, wanted,
                      open_bytes(build.file.at, build.data_offset + 32 + cut * expert + expert / 2));
        snprintf(wanted, sizeof(wanted), "(in expert %zu of 5)", cut);
        CHECK_MESSAGE(wanted);
    }
    /* Where the data starts, or before. */
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: tensor before takes",
                  open_bytes(build.file.at, build.data_offset));
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: tensor before takes",
                  open_bytes(build.file.at, build.header_bytes));
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: tensor behind needs",
                  open_bytes(build.file.at, build.header_bytes - 1));
    gguf_build_free(&build);
}

void test_gguf_refuses_every_beginning_of_a_file(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build_text(&build, "general.architecture", "glm-dsa");
    build_array(&build, "texts", BUILD_STRING, 2);
    build_append_text(&build.keys, "one");
    build_append_text(&build.keys, "two");
    build_array(&build, "numbers", BUILD_U16, 3);
    build_append(&build.keys, "\1\0\2\0\3\0", 6);
    build_tensor(&build, "a", BUILD_TYPE_F32, 3, 2, 0);
    build_tensor(&build, "b", BUILD_TYPE_Q8_0, 32, 2, 0);
    gguf_build_finish(&build);
    for (size_t count = 0; count < build.file.used; count++) {
        CHECK_STATUS(GLM52_ERR_MODEL, open_bytes(build.file.at, count));
        if (count >= 24) CHECK_MESSAGE("truncated");
    }
    CHECK_STATUS(GLM52_OK, open_bytes(build.file.at, build.file.used));
    gguf_build_free(&build);
}

void test_gguf_refuses_counts(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build.key_count = 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: the header counts 1 keys", open_once(&build));
    build.tensor_count = 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: the header counts 1 tensors", open_once(&build));
    build.key_count = GLM52_GGUF_KEYS_MAX + 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "counts 16385 keys, at most 16384", open_once(&build));
    build.tensor_count = GLM52_GGUF_TENSORS_MAX + 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "counts 65537 tensors, at most 65536", open_once(&build));
    build.tensor_count = UINT64_MAX;
    CHECK_REFUSED(GLM52_ERR_MODEL, "counts 18446744073709551615 tensors", open_once(&build));
    build.key_count = UINT64_MAX;
    CHECK_REFUSED(GLM52_ERR_MODEL, "counts 18446744073709551615 keys", open_once(&build));
    build_text(&build, "key", "a text of some length, so that the count is possible");
    build.key_count = 2;
    build.alignment = 1;  /* no padding that could be read as a key */
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: key 1 needs", open_once(&build));
    gguf_build_free(&build);
}

/* A name of count bytes, all the same. */
static void add_key_named(struct gguf_build *build, char byte, size_t count) {
    build_append_u64(&build->keys, count);
    for (size_t i = 0; i < count; i++) build_append(&build->keys, &byte, 1);
    build_append_u32(&build->keys, BUILD_U32);
    build_append_u32(&build->keys, 1);
    build->key_count++;
}

static void add_tensor_named(struct gguf_build *build, const char *name, size_t count) {
    build_append_u64(&build->tensors, count);
    build_append(&build->tensors, name, count);
    build_append(&build->tensors, "\1\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24);
    build->tensor_count++;
    build_append(&build->data, "\0\0\0\0", 4);
}

void test_gguf_refuses_names(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    add_key_named(&build, 'k', GLM52_GGUF_KEY_BYTES_MAX + 1);
    CHECK_REFUSED(GLM52_ERR_MODEL, "the name of key 0 is 65536 bytes long, at most 65535", open_once(&build));
    add_key_named(&build, 'k', 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "the name of key 0, \"\", is empty", open_once(&build));
    add_key_named(&build, 0, 3);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key 0, \"\\x00\\x00\\x00\"", open_once(&build));
    add_key_named(&build, '\n', 1);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key 0, \"\\x0a\"", open_once(&build));
    build_append_u64(&build.keys, UINT64_MAX);
    build_append(&build.keys, "some bytes that follow", 22);
    build.key_count = 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "is 18446744073709551615 bytes long", open_once(&build));

    /* A sequence must end inside the name, whatever follows it. */
    build_append_text(&build.keys, "a\xc3");
    build_append(&build.keys, "\xa4\0\0\0", 4);
    build_append_u64(&build.keys, 0);
    build.key_count = 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "key 0, \"a\\xc3\"", open_once(&build));

    char longest[GLM52_GGUF_NAME_BYTES_MAX + 1];
    memset(longest, 't', sizeof(longest));
    add_tensor_named(&build, longest, GLM52_GGUF_NAME_BYTES_MAX);
    CHECK_STATUS(GLM52_OK, open_once(&build));
    add_tensor_named(&build, longest, GLM52_GGUF_NAME_BYTES_MAX + 1);
    CHECK_REFUSED(GLM52_ERR_MODEL, "the name of tensor 0 is 128 bytes long, at most 127", open_once(&build));
    static const char *const refused[] = {"a\0b",
                                          "\x7f",
                                          "\x80",
                                          "\xc3",
                                          "\xc0\xaf",
                                          "\xed\xa0\x80",
                                          "\xf4\x90\x80\x80",
                                          "\xe0\x80\xaf",
                                          "\xf0\x80\x80\xaf",
                                          "\xff"};
    static const size_t lengths[] = {3, 1, 1, 1, 2, 3, 4, 3, 4, 1};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        add_tensor_named(&build, refused[i], lengths[i]);
        CHECK_REFUSED(GLM52_ERR_MODEL, "not plain UTF-8", open_once(&build));
    }
    static const char *const accepted[] = {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf",
                                           "a b"};
    for (size_t i = 0; i < sizeof(accepted) / sizeof(accepted[0]); i++) {
        add_tensor_named(&build, accepted[i], strlen(accepted[i]));
        CHECK_STATUS(GLM52_OK, open_once(&build));
    }
    gguf_build_free(&build);
}

void test_gguf_refuses_values(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build_array(&build, "nested", BUILD_ARRAY, 1);
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "key nested is an array of arrays", open_once(&build));
    build_array(&build, "list", 13, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key list has value type 13", open_once(&build));
    build_key(&build, "scalar", 13);
    build_append_u64(&build.keys, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key scalar has value type 13", open_once(&build));
    build_key(&build, "scalar", UINT32_MAX);
    build_append_u64(&build.keys, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key scalar has value type 4294967295", open_once(&build));
    build_integer(&build, "flag", BUILD_BOOL, 2);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key flag: element 0 is 2, a bool is 0 or 1", open_once(&build));
    build_array(&build, "flags", BUILD_BOOL, 3);
    build_append(&build.keys, "\0\1\xff", 3);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key flags: element 2 is 255", open_once(&build));

    /* Lengths past the end, also such that their product with the size of an element wraps round. */
    build_array(&build, "list", BUILD_U64, UINT64_MAX / 8 + 2);
    build_append_u64(&build.keys, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: key list needs", open_once(&build));
    build_array(&build, "list", BUILD_U16, 33);
    for (int i = 0; i < 8; i++) build_append_u64(&build.keys, 0);
    build.alignment = 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: key list needs 66 bytes", open_once(&build));
    build_array(&build, "texts", BUILD_STRING, UINT64_MAX);
    build_append_text(&build.keys, "one");
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: key texts needs", open_once(&build));
    build_key(&build, "text", BUILD_STRING);
    build_append_u64(&build.keys, UINT64_MAX);
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: key text needs 18446744073709551615 bytes", open_once(&build));
    gguf_build_free(&build);
}

static glm52_status open_sizes(uint32_t type, uint32_t dimensions, uint64_t a, uint64_t b, uint64_t c) {
    struct gguf_build build;
    const uint64_t size[5] = {a, b, c, 1, 1};
    gguf_build_begin(&build);
    build_tensor_at(&build, "t", type, dimensions, size, 0);
    const uint8_t data[64] = {0};
    build_append(&build.data, data, sizeof(data));
    const glm52_status status = open_once(&build);
    gguf_build_free(&build);
    return status;
}

void test_gguf_refuses_dimensions(void) {
    CHECK_REFUSED(GLM52_ERR_MODEL, "tensor t has 0 dimensions, 1 to 4 are read", open_sizes(0, 0, 1, 1, 1));
    CHECK_STATUS(GLM52_OK, open_sizes(0, 4, 1, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "tensor t has 5 dimensions", open_sizes(0, 5, 1, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "dimension 0 of tensor t is 0", open_sizes(0, 1, 0, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "dimension 2 of tensor t is 0", open_sizes(0, 3, 1, 1, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "rows of 33 values, not a multiple of the 32 of a Q8_0 block",
                  open_sizes(8, 1, 33, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "rows of 16 values", open_sizes(8, 2, 16, 2, 1));
    CHECK_STATUS(GLM52_OK, open_sizes(8, 1, 32, 1, 1));

    /* At the limit only the file is too short; past it, or past 64 bits, the size itself is refused. */
    const uint64_t limit = GLM52_GGUF_ELEMENTS_MAX;
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated", open_sizes(0, 1, limit, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated", open_sizes(0, 3, limit / 4, 2, 2));
    CHECK_REFUSED(GLM52_ERR_MODEL, "more than 281474976710656 elements", open_sizes(0, 1, limit + 1, 1, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "more than 281474976710656 elements", open_sizes(0, 3, limit / 4, 2, 3));
    CHECK_REFUSED(GLM52_ERR_MODEL, "more than 281474976710656 elements",
                  open_sizes(0, 2, 1ull << 32, 1ull << 32, 1));
    CHECK_REFUSED(GLM52_ERR_MODEL, "more than 281474976710656 elements", open_sizes(0, 1, UINT64_MAX, 1, 1));
}

void test_gguf_refuses_types_by_name(void) {
    static const struct {
        uint32_t type;
        const char *name;
    } refused[] = {{9, "type 9 (Q8_1)"},    {15, "type 15 (Q8_K)"},   {24, "type 24 (I8)"},
                   {25, "type 25 (I16)"},   {26, "type 26 (I32)"},    {27, "type 27 (I64)"},
                   {28, "type 28 (F64)"},   {34, "type 34 (TQ1_0)"},  {35, "type 35 (TQ2_0)"},
                   {40, "type 40 (NVFP4)"}, {99, "type 99 (unknown"}, {UINT32_MAX, "4294967295"}};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, refused[i].name, open_sizes(refused[i].type, 1, 256, 1, 1));
        CHECK_MESSAGE("tensor t has");
        CHECK_MESSAGE("types that are read: F32, F16, Q4_0");
    }
}

static glm52_status open_offsets(uint32_t alignment, uint64_t first, uint64_t second) {
    struct gguf_build build;
    const uint64_t size[1] = {16};
    gguf_build_begin(&build);
    if (alignment != 32) build_u32(&build, "general.alignment", alignment);
    build_tensor_at(&build, "a", BUILD_TYPE_F32, 1, size, first);
    build_tensor_at(&build, "b", BUILD_TYPE_F32, 1, size, second);
    const uint8_t data[160] = {0};
    build_append(&build.data, data, sizeof(data));
    const glm52_status status = open_once(&build);
    gguf_build_free(&build);
    return status;
}

void test_gguf_refuses_offsets(void) {
    CHECK_STATUS(GLM52_OK, open_offsets(32, 0, 64));
    CHECK_STATUS(GLM52_OK, open_offsets(32, 96, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "tensor a (offset 0, 64 bytes) lies over tensor b (offset 32)",
                  open_offsets(32, 0, 32));
    CHECK_REFUSED(GLM52_ERR_MODEL, "tensor b (offset 32, 64 bytes) lies over tensor a (offset 64)",
                  open_offsets(32, 64, 32));
    CHECK_REFUSED(GLM52_ERR_MODEL, "lies over", open_offsets(32, 0, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL,
                  "tensor b starts at offset 72 of the data, not a multiple of the alignment 32",
                  open_offsets(32, 0, 72));
    CHECK_STATUS(GLM52_OK, open_offsets(8, 0, 72));
    CHECK_REFUSED(GLM52_ERR_MODEL, "truncated: tensor b takes", open_offsets(32, 0, GLM52_GGUF_OFFSET_MAX));
    CHECK_REFUSED(GLM52_ERR_MODEL, "at most 1152921504606846976",
                  open_offsets(32, 0, GLM52_GGUF_OFFSET_MAX + 32));
    CHECK_REFUSED(GLM52_ERR_MODEL, "at most 1152921504606846976", open_offsets(32, 0, UINT64_MAX - 31));
    static const uint32_t refused[] = {0, 1, 4, 7, 24, 33, 131072, 0x80000000u};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        CHECK_REFUSED(GLM52_ERR_MODEL, "powers of two from 8 to 65536 are read",
                      open_offsets(refused[i], 0, 64));
    }
    struct gguf_build build;
    gguf_build_begin(&build);
    build_text(&build, "general.alignment", "32");
    CHECK_REFUSED(GLM52_ERR_MODEL, "key general.alignment is text", open_once(&build));
    gguf_build_free(&build);
}

void test_gguf_refuses_twins(void) {
    struct gguf_build build;
    gguf_build_begin(&build);
    build_u32(&build, "other", 1);
    build_u32(&build, "same", 1);
    build_u32(&build, "between", 1);
    build_u32(&build, "same", 2);
    CHECK_REFUSED(GLM52_ERR_MODEL, "key same is there twice (again as key 3)", open_once(&build));
    build_tensor(&build, "same", BUILD_TYPE_F32, 1, 0, 0);
    build_tensor(&build, "other", BUILD_TYPE_F32, 1, 0, 0);
    build_tensor(&build, "same", BUILD_TYPE_F32, 1, 0, 0);
    CHECK_REFUSED(GLM52_ERR_MODEL, "tensor same is there twice (again as tensor 2)", open_once(&build));
    gguf_build_free(&build);
}
