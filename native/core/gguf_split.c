/* gguf_split.c - a model in several files, NAME-00001-of-00003.gguf: their names, a folder of them, the
 * shards that are missing and those that belong to another model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "gguf_parts.h"
#include "gguf_split.h"

#define DIGITS 5
#define SUFFIX_BYTES 20           /* -00001-of-00003.gguf */
#define MISSING_SHOWN_MAX 3

/* Five digits as a number, false if they are not digits. */
static bool read_digits(const char *text, uint32_t *out) {
    uint32_t number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return false;
        number = number * 10 + (uint32_t)(text[i] - '0');
    }
    *out = number;
    return true;
}

bool glm52_shard_name_read(const char *path, struct glm52_shard_name *name_out) {
    const size_t length = strlen(path);
    if (length < SUFFIX_BYTES) return false;
    const char *suffix = path + length - SUFFIX_BYTES;
    uint32_t number, count;
    if (suffix[0] != '-' || !read_digits(suffix + 1, &number)) return false;
    if (strncmp(suffix + 1 + DIGITS, "-of-", 4) != 0) return false;
    if (!read_digits(suffix + 5 + DIGITS, &count)) return false;
    if (strcmp(suffix + 5 + 2 * DIGITS, ".gguf") != 0) return false;
    if (number == 0 || number > count) return false;
    *name_out = (struct glm52_shard_name){length - SUFFIX_BYTES, number - 1, count};
    return true;
}

static char *shard_path(const char *path, size_t prefix_bytes, uint32_t index, uint32_t count) {
    char suffix[48];  /* room for any two numbers, though theirs have five digits */
    const size_t suffix_bytes =
        (size_t)snprintf(suffix, sizeof(suffix), "-%05u-of-%05u.gguf", index + 1, count);
    char *sibling = malloc(prefix_bytes + suffix_bytes + 1);
    if (sibling == NULL) return NULL;
    memcpy(sibling, path, prefix_bytes);
    memcpy(sibling + prefix_bytes, suffix, suffix_bytes + 1);
    return sibling;
}

/* ---- the split.* keys of one shard ---- */

static glm52_status read_split_key(const struct glm52_part *part, const char *key, uint64_t limit,
                                   bool *found_out, uint64_t *out) {
    const glm52_value *value = glm52_part_key(part, key);
    *found_out = value != NULL;
    if (value == NULL) return GLM52_OK;
    const char *path = glm52_show_path(part->shard.path);
    GLM52_TRY(glm52_value_u64(path, value, out));
    if (*out <= limit) return GLM52_OK;
    return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is %llu, at most %llu is read", path, key,
                      (unsigned long long)*out, (unsigned long long)limit);
}

glm52_status glm52_part_read_split(struct glm52_part *part) {
    uint64_t index = 0, count = 0;
    bool found;
    GLM52_TRY(read_split_key(part, "split.count", GLM52_GGUF_SHARDS_MAX, &found, &count));
    GLM52_TRY(read_split_key(part, "split.no", GLM52_GGUF_SHARDS_MAX - 1, &found, &index));
    const char *path = glm52_show_path(part->shard.path);
    if (count > 1 && !found) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key split.count is %llu, but split.no is missing", path,
                          (unsigned long long)count);
    }
    if (count > 0 && index >= count) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: key split.no is %llu, but split.count is %llu (numbers start at 0)", path,
                          (unsigned long long)index, (unsigned long long)count);
    }
    part->split_index = (uint32_t)index;
    part->split_count = (uint32_t)count;
    return read_split_key(part, "split.tensors.count", GLM52_GGUF_TENSORS_MAX, &part->has_split_tensors,
                          &part->split_tensors);
}

/* ---- the siblings of one shard ---- */

/* One message for all shards that are not there: the paths of the first few, and how many. */
static glm52_status check_missing(const struct glm52_part *first, size_t prefix_bytes) {
    const char *path = first->shard.path;
    const uint32_t count = first->split_count;
    char list[640];
    size_t used = 0;
    uint32_t missing = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *sibling = shard_path(path, prefix_bytes, i, count);
        if (sibling == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a path");
        struct stat about;
        const bool absent = stat(sibling, &about) != 0 && (errno == ENOENT || errno == ENOTDIR);
        if (absent && missing++ < MISSING_SHOWN_MAX && used < sizeof(list)) {
            used += (size_t)snprintf(list + used, sizeof(list) - used, "%s%s", missing > 1 ? ", " : "",
                                     glm52_show_path(sibling));
        }
        free(sibling);
    }
    if (missing == 0) return GLM52_OK;
    return glm52_fail(GLM52_ERR_MODEL, "shards are missing, %u of %u: %s%s", missing, count, list,
                      missing > MISSING_SHOWN_MAX ? ", ..." : "");
}

static const glm52_value *architecture(const struct glm52_part *part) {
    const glm52_value *value = glm52_part_key(part, "general.architecture");
    return value != NULL && value->type == GGUF_STRING ? value : NULL;
}

/* Whether part can be shard index of the model that first is of. */
static glm52_status check_sibling(const struct glm52_part *first, const struct glm52_part *part,
                                  uint32_t index) {
    const char *path = glm52_show_path(part->shard.path);
    const char *of = glm52_show_path(first->shard.path);
    if (part->split_count != first->split_count) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: a shard of another model: split.count is %u, but in %s it is %u", path,
                          part->split_count, of, first->split_count);
    }
    if (part->split_index != index) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: a shard of another model or place: split.no is %u, its name says %u", path,
                          part->split_index, index);
    }
    if (part->has_split_tensors != first->has_split_tensors || part->split_tensors != first->split_tensors) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: a shard of another model: split.tensors.count is %llu, but in %s it is %llu",
                          path, (unsigned long long)part->split_tensors, of,
                          (unsigned long long)first->split_tensors);
    }
    const glm52_value *a = architecture(first), *b = architecture(part);
    if (a != NULL && b != NULL &&
        (a->data_bytes != b->data_bytes || memcmp(a->data, b->data, (size_t)a->data_bytes) != 0)) {
        struct glm52_shown own, other;
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: a shard of another model: its architecture is %s, but in %s it is %s", path,
                          glm52_show(&own, (const uint8_t *)b->data + 8, b->data_bytes - 8), of,
                          glm52_show(&other, (const uint8_t *)a->data + 8, a->data_bytes - 8));
    }
    return GLM52_OK;
}

static glm52_status open_sibling(const struct glm52_part *first, size_t prefix_bytes, uint32_t index,
                                 struct glm52_part *part) {
    char *path = shard_path(first->shard.path, prefix_bytes, index, first->split_count);
    if (path == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a path");
    const glm52_status status = glm52_part_open(path, part);
    free(path);
    GLM52_TRY(status);
    return check_sibling(first, part, index);
}

static glm52_status check_total(const struct glm52_part *parts, const struct glm52_part *first) {
    uint64_t tensors = 0;
    for (uint32_t i = 0; i < first->split_count; i++) tensors += parts[i].tensor_count;
    if (!first->has_split_tensors || tensors == first->split_tensors) return GLM52_OK;
    return glm52_fail(
        GLM52_ERR_MODEL,
        "%s: the %u shards hold %llu tensors together, but split.tensors.count is %llu: a shard is of "
        "another model",
        glm52_show_path(first->shard.path), first->split_count, (unsigned long long)tensors,
        (unsigned long long)first->split_tensors);
}

static glm52_status check_own_name(const struct glm52_part *first, struct glm52_shard_name *name_out) {
    const char *path = glm52_show_path(first->shard.path);
    if (!glm52_shard_name_read(first->shard.path, name_out)) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: this is shard %u of %u (split.no counts from 0), but it is not named "
                          "NAME-%05u-of-%05u.gguf, so the others can't be found",
                          path, first->split_index + 1, first->split_count, first->split_index + 1,
                          first->split_count);
    }
    if (name_out->index != first->split_index || name_out->count != first->split_count) {
        return glm52_fail(
            GLM52_ERR_MODEL,
            "%s: named as shard %u of %u, but its keys say %u of %u (split.no %u, split.count %u)", path,
            name_out->index + 1, name_out->count, first->split_index + 1, first->split_count,
            first->split_index, first->split_count);
    }
    return GLM52_OK;
}

glm52_status glm52_split_open(const struct glm52_part *first, struct glm52_part *parts) {
    struct glm52_shard_name name;
    GLM52_TRY(check_own_name(first, &name));
    GLM52_TRY(check_missing(first, name.prefix_bytes));
    glm52_status status = GLM52_OK;
    for (uint32_t i = 0; i < first->split_count && status == GLM52_OK; i++) {
        if (i == first->split_index) parts[i] = *first;
        else status = open_sibling(first, name.prefix_bytes, i, &parts[i]);
    }
    if (status == GLM52_OK) status = check_total(parts, first);
    if (status == GLM52_OK) return GLM52_OK;
    for (uint32_t i = 0; i < first->split_count; i++) {
        if (i != first->split_index) glm52_part_close(&parts[i]);
    }
    return status;
}
