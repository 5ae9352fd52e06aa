/* identity.c - a digest of what a model is: docs/FORMAT.md, "Identity", has the exact bytes.
 *
 * It takes content alone, never a path, a time or an owner, and few enough bytes that a file of 200 GB takes
 * well under a second. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "gguf_parts.h"
#include "sha256.h"

#define DOMAIN "glm52 identity 1"
#define SAMPLE_BYTES 4096u
#define READ_BYTES_MAX 65536u

#define COUNTS_AT 8u           /* of tensors and keys, behind magic and version */
#define KEYS_AT 24u
#define ARCHITECTURE "glm-dsa" /* of a colocated file, before it was one */

/* Adds bytes of a file as they are on disk: pread, so that a file cut short meanwhile is an error, not a
 * fault. */
static glm52_status add_file(struct glm52_sha256 *hash, const struct glm52_gguf_shard *shard, uint64_t offset,
                             uint64_t count) {
    uint8_t bytes[READ_BYTES_MAX];
    while (count > 0) {
        const size_t wanted = count < sizeof(bytes) ? (size_t)count : sizeof(bytes);
        const ssize_t got = pread(shard->file, bytes, wanted, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) {
            return glm52_fail(GLM52_ERR_IO, "%s: reading %zu bytes at byte %llu: %s",
                              glm52_show_path(shard->path), wanted, (unsigned long long)offset,
                              got < 0 ? strerror(errno) : "the file ends there now");
        }
        glm52_sha256_add(hash, bytes, (size_t)got);
        offset += (uint64_t)got;
        count -= (uint64_t)got;
    }
    return GLM52_OK;
}

static void add_u64(struct glm52_sha256 *hash, uint64_t number) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(number >> (8 * i));
    glm52_sha256_add(hash, bytes, sizeof(bytes));
}

static void add_text(struct glm52_sha256 *hash, const char *text) {
    const size_t length = strlen(text);
    add_u64(hash, length);
    glm52_sha256_add(hash, text, length);
}

/* Adds the header of a shard; of a colocated file, the one that the file had before. */
static glm52_status add_header(struct glm52_sha256 *hash, const struct glm52_part *part) {
    const struct glm52_gguf_shard *shard = &part->shard;
    const struct glm52_colocated *c = &part->colocated;
    if (c->tensor_count == 0) {
        add_u64(hash, shard->header_bytes);
        return add_file(hash, shard, 0, shard->header_bytes);
    }
    const uint64_t name_bytes = 8 + strlen(ARCHITECTURE);
    add_u64(hash, c->keys_end - (c->architecture_end - c->architecture_at) + name_bytes + c->directory_bytes);
    GLM52_TRY(add_file(hash, shard, 0, COUNTS_AT));
    add_u64(hash, c->tensor_count);
    add_u64(hash, part->key_count - GLM52_COLOCATED_KEYS);
    GLM52_TRY(add_file(hash, shard, KEYS_AT, c->architecture_at - KEYS_AT));
    add_text(hash, ARCHITECTURE);
    GLM52_TRY(add_file(hash, shard, c->architecture_end, c->keys_end - c->architecture_end));
    return add_file(hash, shard, c->directory_at, c->directory_bytes);
}

/* Adds bytes of a tensor, block by block where they lie apart. */
static glm52_status add_bytes(struct glm52_sha256 *hash, const struct glm52_gguf_shard *shard,
                              const glm52_tensor_info *tensor, uint64_t begin, uint64_t count) {
    if (tensor->stride == 0) return add_file(hash, shard, tensor->offset + begin, count);
    const uint64_t block_bytes = glm52_tensor_block_bytes(tensor);
    while (count > 0) {
        const uint64_t block = begin / block_bytes, at = begin % block_bytes;
        const uint64_t part = count < block_bytes - at ? count : block_bytes - at;
        GLM52_TRY(add_file(hash, shard, tensor->offset + block * tensor->stride + at, part));
        begin += part;
        count -= part;
    }
    return GLM52_OK;
}

static glm52_status add_tensor(struct glm52_sha256 *hash, const struct glm52_gguf *gguf,
                               const glm52_tensor_info *tensor) {
    const struct glm52_gguf_shard *shard = &gguf->shards[tensor->shard];
    add_text(hash, tensor->name);
    add_u64(hash, tensor->type);
    for (int i = 0; i < 4; i++) add_u64(hash, tensor->size[i]);
    const uint64_t bytes = tensor->bytes;
    if (bytes <= 3 * SAMPLE_BYTES) return add_bytes(hash, shard, tensor, 0, bytes);
    GLM52_TRY(add_bytes(hash, shard, tensor, 0, SAMPLE_BYTES));
    GLM52_TRY(add_bytes(hash, shard, tensor, (bytes - SAMPLE_BYTES) / 2, SAMPLE_BYTES));
    return add_bytes(hash, shard, tensor, bytes - SAMPLE_BYTES, SAMPLE_BYTES);
}

glm52_status glm52_gguf_identity(const struct glm52_gguf *gguf, char *digits_out) {
    struct glm52_sha256 hash;
    glm52_sha256_begin(&hash);
    add_text(&hash, DOMAIN);
    add_u64(&hash, gguf->shard_count);
    const struct glm52_gguf_private *inner = gguf->private_data;
    for (uint32_t i = 0; i < gguf->shard_count; i++) GLM52_TRY(add_header(&hash, &inner->parts[i]));
    add_u64(&hash, gguf->tensor_count);
    for (uint64_t i = 0; i < gguf->tensor_count; i++) GLM52_TRY(add_tensor(&hash, gguf, &gguf->tensors[i]));

    uint8_t digest[GLM52_SHA256_BYTES];
    glm52_sha256_end(&hash, digest);
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < GLM52_SHA256_BYTES; i++) {
        digits_out[2 * i] = digits[digest[i] >> 4];
        digits_out[2 * i + 1] = digits[digest[i] & 15];
    }
    digits_out[GLM52_IDENTITY_DIGITS] = 0;
    return GLM52_OK;
}
