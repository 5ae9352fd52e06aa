/* gguf_build.c - GGUF files for tests, byte by byte. */
#include "gguf_build.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void must(bool done, const char *what) {
    if (done) return;
    perror(what);
    exit(2);
}

void build_append(struct build_bytes *bytes, const void *data, size_t count) {
    if (bytes->used + count > bytes->room) {
        bytes->room = 2 * (bytes->used + count) + 256;
        bytes->at = realloc(bytes->at, bytes->room);
        must(bytes->at != NULL, "realloc");
    }
    if (count > 0) memcpy(bytes->at + bytes->used, data, count);
    bytes->used += count;
}

static void append_integer(struct build_bytes *bytes, uint64_t number, size_t count) {
    uint8_t little[8];
    for (size_t i = 0; i < count; i++) little[i] = (uint8_t)(number >> (8 * i));
    build_append(bytes, little, count);
}

void build_append_u32(struct build_bytes *bytes, uint32_t number) {
    append_integer(bytes, number, 4);
}

void build_append_u64(struct build_bytes *bytes, uint64_t number) {
    append_integer(bytes, number, 8);
}

void build_append_text(struct build_bytes *bytes, const char *text) {
    build_append_u64(bytes, strlen(text));
    build_append(bytes, text, strlen(text));
}

static void pad(struct build_bytes *bytes, size_t alignment) {
    static const uint8_t zero;
    while (bytes->used % alignment != 0) build_append(bytes, &zero, 1);
}

void gguf_build_begin(struct gguf_build *build) {
    memset(build, 0, sizeof(*build));
    build->version = 3;
    build->alignment = 32;
}

void gguf_build_free(struct gguf_build *build) {
    free(build->keys.at);
    free(build->tensors.at);
    free(build->data.at);
    free(build->file.at);
    memset(build, 0, sizeof(*build));
}

static bool is_skipped(const struct gguf_build *build, const char *name) {
    for (int i = 0; i < BUILD_SKIPS_MAX; i++) {
        if (build->skips[i] != NULL && strcmp(build->skips[i], name) == 0) return true;
    }
    return false;
}

/* ---- keys ---- */

bool build_key(struct gguf_build *build, const char *key, uint32_t type) {
    if (is_skipped(build, key)) return false;
    build_append_text(&build->keys, key);
    build_append_u32(&build->keys, type);
    build->key_count++;
    return true;
}

bool build_array(struct gguf_build *build, const char *key, uint32_t type, uint64_t count) {
    if (!build_key(build, key, BUILD_ARRAY)) return false;
    build_append_u32(&build->keys, type);
    build_append_u64(&build->keys, count);
    return true;
}

void build_integer(struct gguf_build *build, const char *key, uint32_t type, int64_t number) {
    static const size_t bytes[] = {
        [BUILD_U8] = 1,  [BUILD_I8] = 1,   [BUILD_U16] = 2, [BUILD_I16] = 2, [BUILD_U32] = 4,
        [BUILD_I32] = 4, [BUILD_BOOL] = 1, [BUILD_U64] = 8, [BUILD_I64] = 8};
    if (build_key(build, key, type)) append_integer(&build->keys, (uint64_t)number, bytes[type]);
}

void build_u32(struct gguf_build *build, const char *key, uint32_t number) {
    build_integer(build, key, BUILD_U32, number);
}

void build_f32(struct gguf_build *build, const char *key, float number) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof(bits));
    if (build_key(build, key, BUILD_F32)) build_append_u32(&build->keys, bits);
}

void build_text(struct gguf_build *build, const char *key, const char *text) {
    if (build_key(build, key, BUILD_STRING)) build_append_text(&build->keys, text);
}

/* ---- tensors ---- */

void build_tensor_at(struct gguf_build *build, const char *name, uint32_t type, uint32_t dimensions,
                     const uint64_t *size, uint64_t offset) {
    build_append_text(&build->tensors, name);
    build_append_u32(&build->tensors, dimensions);
    for (uint32_t i = 0; i < dimensions; i++) build_append_u64(&build->tensors, size[i]);
    build_append_u32(&build->tensors, type);
    build_append_u64(&build->tensors, offset);
    build->tensor_count++;
}

void build_tensor(struct gguf_build *build, const char *name, uint32_t type, uint64_t a, uint64_t b,
                  uint64_t c) {
    if (is_skipped(build, name)) return;
    const uint64_t size[3] = {a, b, c};
    const uint32_t dimensions = c > 0 ? 3 : b > 0 ? 2 : 1;
    const uint64_t elements = a * (b > 0 ? b : 1) * (c > 0 ? c : 1);
    const uint64_t bytes = type == BUILD_TYPE_Q8_0  ? elements / 32 * 34
                           : type == BUILD_TYPE_F16 ? 2 * elements
                                                    : 4 * elements;
    pad(&build->data, build->alignment);
    build_tensor_at(build, name, type, dimensions, size, build->data.used);
    /* Any bytes will do that tell one place from another. */
    for (uint64_t i = 0; i < bytes; i++) {
        const uint8_t byte = (uint8_t)((build->data.used * 37 + 11) >> 3);
        build_append(&build->data, &byte, 1);
    }
}

void gguf_build_finish(struct gguf_build *build) {
    struct build_bytes *file = &build->file;
    build_append(file, "GGUF", 4);
    build_append_u32(file, build->version);
    build_append_u64(file, build->tensor_count);
    build_append_u64(file, build->key_count);
    build_append(file, build->keys.at, build->keys.used);
    build_append(file, build->tensors.at, build->tensors.used);
    build->header_bytes = file->used;
    pad(file, build->alignment);
    build->data_offset = file->used;
    pad(&build->data, build->alignment);
    build_append(file, build->data.at, build->data.used);
}

/* ---- files ---- */

void build_save_bytes(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    must(file != NULL, path);
    must(count == 0 || fwrite(bytes, count, 1, file) == 1, path);
    must(fclose(file) == 0, path);
}

void build_save(const struct gguf_build *build, const char *path) {
    build_save_bytes(path, build->file.at, build->file.used);
}

const char *build_folder(void) {
    static char folder[64];
    snprintf(folder, sizeof(folder), "%s/glm52-test-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    must(mkdtemp(folder) != NULL, folder);
    return folder;
}

const char *build_path(const char *folder, const char *name) {
    static char paths[8][600];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", folder, name);
    return path;
}

void build_remove_folder(const char *folder) {
    DIR *stream = opendir(folder);
    must(stream != NULL, folder);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        const char *path = build_path(folder, entry->d_name);
        must(unlink(path) == 0 || rmdir(path) == 0, path);
    }
    closedir(stream);
    must(rmdir(folder) == 0, folder);
}
