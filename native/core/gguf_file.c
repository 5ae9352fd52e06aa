/* gguf_file.c - opens and maps one file, and says what a file is that is no GGUF. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "gguf_parts.h"

#define MAGIC "GGUF"
#define MAGIC_BYTES 4
#define VERSION_BYTES 4
#define SNIFFED_BYTES_MAX 512

static bool starts_with(const uint8_t *bytes, uint64_t count, const char *text) {
    const size_t length = strlen(text);
    return count >= length && strncasecmp((const char *)bytes, text, length) == 0;
}

/* What some other file is, NULL if unknown. */
static const char *kind_of_other_file(const uint8_t *bytes, uint64_t count) {
    if (count > SNIFFED_BYTES_MAX) count = SNIFFED_BYTES_MAX;
    if (starts_with(bytes, count, "version https://git-lfs.github.com/spec/")) {
        return "a Git LFS pointer; the model itself was not fetched (git lfs pull)";
    }
    if (starts_with(bytes, count, "PK\x03\x04")) return "a zip archive (a PyTorch checkpoint?)";
    if (starts_with(bytes, count, "lmgg") || starts_with(bytes, count, "fmgg") ||
        starts_with(bytes, count, "tjgg")) {
        return "a GGML file of before GGUF; convert the model again";
    }
    if (count > 9 && bytes[8] == '{' && glm52_le64(bytes) < GLM52_GGUF_HEADER_BYTES_MAX) {
        return "a safetensors file; convert it first (glm52 convert)";
    }
    uint64_t first = count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (first < count && (bytes[first] == ' ' || (bytes[first] >= '\t' && bytes[first] <= '\r'))) first++;
    const uint8_t *text = bytes + first;
    const uint64_t rest = count - first;
    if (starts_with(text, rest, "<!doctype html") || starts_with(text, rest, "<html")) {
        return "an HTML page, probably a download or error page saved under this name";
    }
    if (starts_with(text, rest, "<?xml")) return "an XML document, probably a server's error";
    if (starts_with(text, rest, "{\"")) return "a JSON document";
    uint64_t zeros = 0;
    while (zeros < count && bytes[zeros] == 0) zeros++;
    if (zeros == count) return "zero bytes at its start, probably an unfinished download";
    return NULL;
}

static glm52_status check_magic(const struct glm52_gguf_shard *shard) {
    const char *path = glm52_show_path(shard->path);
    const unsigned long long bytes = shard->bytes;
    if (bytes >= MAGIC_BYTES && memcmp(shard->map, MAGIC, MAGIC_BYTES) == 0) {
        if (bytes >= MAGIC_BYTES + VERSION_BYTES) return GLM52_OK;
        return glm52_fail(GLM52_ERR_MODEL, "%s: truncated: %llu bytes hold no GGUF header", path, bytes);
    }
    const char *kind = kind_of_other_file(shard->map, shard->bytes);
    if (kind != NULL) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: not a GGUF file but %s (%llu bytes)", path, kind, bytes);
    }
    struct glm52_shown shown;
    return glm52_fail(GLM52_ERR_MODEL, "%s: not a GGUF file: it starts with \"%s\", not \"%s\" (%llu bytes)",
                      path, glm52_show(&shown, shard->map, bytes < 8 ? bytes : 8), MAGIC, bytes);
}

static glm52_status check_version(const struct glm52_gguf_shard *shard) {
    const char *path = glm52_show_path(shard->path);
    const uint32_t version = glm52_le32(shard->map + MAGIC_BYTES);
    if (version == 2 || version == 3) return GLM52_OK;
    if (version == 1) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: GGUF version 1; versions 2 and 3 are read", path);
    }
    if (version != 0 && (version & 0x00ffffff) == 0) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED,
                          "%s: a big-endian GGUF (version %u); little-endian ones are read", path,
                          version >> 24);
    }
    return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: GGUF version %u; versions 2 and 3 are read", path, version);
}

static glm52_status map_file(struct glm52_gguf_shard *shard) {
    const char *path = glm52_show_path(shard->path);
    struct stat about;
    if (fstat(shard->file, &about) != 0) {
        return glm52_fail(GLM52_ERR_IO, "%s: %s", path, strerror(errno));
    }
    if (S_ISDIR(about.st_mode)) return glm52_fail(GLM52_ERR_MODEL, "%s: a folder, not a GGUF file", path);
    if (!S_ISREG(about.st_mode)) return glm52_fail(GLM52_ERR_MODEL, "%s: not a regular file", path);
    if (about.st_size == 0) return glm52_fail(GLM52_ERR_MODEL, "%s: the file is empty (0 bytes)", path);
    shard->bytes = (uint64_t)about.st_size;
    if (shard->bytes > SIZE_MAX) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: %llu bytes are more than this machine can address",
                          path, (unsigned long long)shard->bytes);
    }
    void *map = mmap(NULL, (size_t)shard->bytes, PROT_READ, MAP_SHARED, shard->file, 0);
    if (map == MAP_FAILED) {
        return glm52_fail(GLM52_ERR_IO, "%s: can't map %llu bytes: %s", path,
                          (unsigned long long)shard->bytes, strerror(errno));
    }
    shard->map = map;
    GLM52_TRY(check_magic(shard));
    return check_version(shard);
}

glm52_status glm52_shard_map(const char *path, struct glm52_gguf_shard *shard) {
    memset(shard, 0, sizeof(*shard));
    shard->file = -1;
    shard->path = strdup(path);
    if (shard->path == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a path");
    /* Not blocking: a named pipe is refused, not waited for. */
    shard->file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    glm52_status status = GLM52_OK;
    if (shard->file < 0) {
        status = glm52_fail(GLM52_ERR_IO, "%s: %s", glm52_show_path(path), strerror(errno));
    } else {
        status = map_file(shard);
    }
    if (status != GLM52_OK) glm52_shard_unmap(shard);
    return status;
}

void glm52_shard_unmap(struct glm52_gguf_shard *shard) {
    if (shard->map != NULL) munmap((void *)shard->map, (size_t)shard->bytes);
    if (shard->file >= 0) close(shard->file);
    free(shard->path);
    memset(shard, 0, sizeof(*shard));
    shard->file = -1;
}
