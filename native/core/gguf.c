/* gguf.c - a model from its files: opening and closing, shards put together, keys and tensors looked up. */
#include "gguf.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"

glm52_status glm52_part_open(const char *path, struct glm52_part *part) {
    memset(part, 0, sizeof(*part));
    GLM52_TRY(glm52_shard_map(path, &part->shard));
    glm52_status status = glm52_part_read(part);
    if (status == GLM52_OK) status = glm52_part_read_split(part);
    if (status == GLM52_OK) status = glm52_part_check_layout(part);
    if (status == GLM52_OK) status = glm52_part_place_colocated(part);
    if (status != GLM52_OK) glm52_part_close(part);
    return status;
}

void glm52_part_close(struct glm52_part *part) {
    free(part->keys);
    free(part->key_names.sorted);
    free(part->key_text);
    free(part->tensors);
    free(part->tensor_text);
    if (part->shard.path != NULL) glm52_shard_unmap(&part->shard);
    memset(part, 0, sizeof(*part));
}

const glm52_value *glm52_part_key(const struct glm52_part *part, const char *key) {
    const uint32_t index = glm52_names_find(&part->key_names, key);
    return index != GLM52_NAME_NONE ? &part->keys[index] : NULL;
}

/* Lists the tensors of all shards and indexes them; a name may be there once only. */
static glm52_status join_tensors(struct glm52_gguf *gguf, struct glm52_gguf_private *inner) {
    uint64_t count = 0;
    for (uint32_t i = 0; i < gguf->shard_count; i++) count += inner->parts[i].tensor_count;
    const char *path = glm52_show_path(gguf->shards[0].path);
    if (count > GLM52_GGUF_TENSORS_MAX) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: the %u shards hold %llu tensors, at most %u are read", path,
                          gguf->shard_count, (unsigned long long)count, GLM52_GGUF_TENSORS_MAX);
    }
    gguf->tensors = malloc((size_t)(count + 1) * sizeof(*gguf->tensors));
    if (gguf->tensors == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for %llu tensors", path,
                          (unsigned long long)count);
    }
    GLM52_TRY(glm52_names_allocate(&inner->tensor_names, count));
    for (uint32_t i = 0; i < gguf->shard_count; i++) {
        for (uint64_t j = 0; j < inner->parts[i].tensor_count; j++) {
            glm52_tensor_info *tensor = &gguf->tensors[gguf->tensor_count];
            *tensor = inner->parts[i].tensors[j];
            tensor->shard = i;
            inner->tensor_names.sorted[gguf->tensor_count] =
                (struct glm52_name){tensor->name, (uint32_t)gguf->tensor_count};
            gguf->tensor_count++;
        }
    }
    uint32_t twin;
    glm52_names_sort(&inner->tensor_names, &twin);
    if (twin == GLM52_NAME_NONE) return GLM52_OK;
    const glm52_tensor_info *tensor = &gguf->tensors[twin];
    struct glm52_shown shown;
    return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s is there twice (again as tensor %u)",
                      glm52_show_path(gguf->shards[tensor->shard].path),
                      glm52_show(&shown, tensor->name, strlen(tensor->name)), twin);
}

/* Takes over first, if only on success. */
static glm52_status open_parts(struct glm52_gguf *gguf, struct glm52_part *first) {
    struct glm52_gguf_private *inner = gguf->private_data;
    const uint32_t count = first->split_count > 1 ? first->split_count : 1;
    const char *path = glm52_show_path(first->shard.path);
    inner->parts = calloc(count, sizeof(*inner->parts));
    gguf->shards = calloc(count, sizeof(*gguf->shards));
    if (inner->parts == NULL || gguf->shards == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for %u shards", path, count);
    }
    if (count == 1) inner->parts[0] = *first;
    else GLM52_TRY(glm52_split_open(first, inner->parts));
    memset(first, 0, sizeof(*first));
    gguf->shard_count = count;
    for (uint32_t i = 0; i < count; i++) gguf->shards[i] = inner->parts[i].shard;
    gguf->keys = inner->parts[0].keys;
    gguf->key_count = inner->parts[0].key_count;
    return join_tensors(gguf, inner);
}

glm52_status glm52_gguf_open(const char *path, struct glm52_gguf **gguf_out) {
    char *chosen;
    struct glm52_part first;
    GLM52_TRY(glm52_split_choose(path, &chosen));
    glm52_status status = glm52_part_open(chosen, &first);
    free(chosen);
    if (status != GLM52_OK) return status;

    struct glm52_gguf *gguf = calloc(1, sizeof(*gguf));
    struct glm52_gguf_private *inner = calloc(1, sizeof(*inner));
    if (gguf == NULL || inner == NULL) {
        free(gguf);
        free(inner);
        glm52_part_close(&first);
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for a model", glm52_show_path(path));
    }
    gguf->private_data = inner;
    status = open_parts(gguf, &first);
    if (status == GLM52_OK) {
        *gguf_out = gguf;
        return GLM52_OK;
    }
    if (first.shard.path != NULL) glm52_part_close(&first);
    glm52_gguf_close(gguf);
    return status;
}

void glm52_gguf_close(struct glm52_gguf *gguf) {
    if (gguf == NULL) return;
    struct glm52_gguf_private *inner = gguf->private_data;
    for (uint32_t i = 0; i < gguf->shard_count; i++) glm52_part_close(&inner->parts[i]);
    free(inner->parts);
    free(inner->tensor_names.sorted);
    free(inner);
    free(gguf->shards);
    free(gguf->tensors);
    free(gguf);
}

const glm52_tensor_info *glm52_gguf_tensor(const struct glm52_gguf *gguf, const char *name) {
    const struct glm52_gguf_private *inner = gguf->private_data;
    const uint32_t index = glm52_names_find(&inner->tensor_names, name);
    return index != GLM52_NAME_NONE ? &gguf->tensors[index] : NULL;
}

const glm52_value *glm52_gguf_key(const struct glm52_gguf *gguf, const char *key) {
    const struct glm52_gguf_private *inner = gguf->private_data;
    return glm52_part_key(&inner->parts[0], key);
}

bool glm52_gguf_is_colocated(const struct glm52_gguf *gguf) {
    const struct glm52_gguf_private *inner = gguf->private_data;
    return inner->parts[0].colocated.tensor_count > 0;
}

const void *glm52_gguf_data(const struct glm52_gguf *gguf, const glm52_tensor_info *tensor) {
    return gguf->shards[tensor->shard].map + tensor->offset;
}

static const char *type_name(uint32_t type) {
    static const char *const names[] = {"u8",   "i8",   "u16",    "i16", "u32", "i32", "f32",
                                        "bool", "text", "a list", "u64", "i64", "f64"};
    return type < sizeof(names) / sizeof(names[0]) ? names[type] : "unknown";
}

/* Whether type is an integer or bool; then *out is element index, two's complement. */
static bool read_integer(uint32_t type, const void *data, uint64_t index, int64_t *out) {
    const uint8_t *bytes = (const uint8_t *)data + index * glm52_gguf_type_bytes(type);
    switch (type) {
    case GGUF_U8:
    case GGUF_BOOL: *out = bytes[0]; return true;
    case GGUF_I8: *out = (int8_t)bytes[0]; return true;
    case GGUF_U16: *out = (int64_t)(bytes[0] | (uint32_t)bytes[1] << 8); return true;
    case GGUF_I16: *out = (int16_t)(bytes[0] | (uint32_t)bytes[1] << 8); return true;
    case GGUF_U32: *out = (int64_t)glm52_le32(bytes); return true;
    case GGUF_I32: *out = (int32_t)glm52_le32(bytes); return true;
    case GGUF_U64:
    case GGUF_I64: *out = (int64_t)glm52_le64(bytes); return true;
    default: return false;
    }
}

glm52_status glm52_value_u64_at(const char *path, const glm52_value *value, uint64_t index, uint64_t *out) {
    struct glm52_shown shown;
    int64_t number;
    if (!read_integer(value->element_type, value->data, index, &number)) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is %s, an integer is wanted", path,
                          glm52_show(&shown, value->key, strlen(value->key)), type_name(value->element_type));
    }
    if (number < 0 && value->element_type != GGUF_U64) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is %lld, a number from 0 is wanted", path,
                          glm52_show(&shown, value->key, strlen(value->key)), (long long)number);
    }
    *out = (uint64_t)number;
    return GLM52_OK;
}

glm52_status glm52_value_u64(const char *path, const glm52_value *value, uint64_t *out) {
    if (value->type != GGUF_ARRAY) return glm52_value_u64_at(path, value, 0, out);
    struct glm52_shown shown;
    return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is a list, an integer is wanted", path,
                      glm52_show(&shown, value->key, strlen(value->key)));
}

glm52_status glm52_gguf_get_u64(const struct glm52_gguf *gguf, const char *key, bool *found_out,
                                uint64_t *out) {
    const glm52_value *value = glm52_gguf_key(gguf, key);
    uint64_t number = 0;
    if (value != NULL) GLM52_TRY(glm52_value_u64(glm52_show_path(gguf->shards[0].path), value, &number));
    *found_out = value != NULL;
    if (value != NULL) *out = number;
    return GLM52_OK;
}

/* A float32 key as written, a float64 or integer one rounded; false if value is something else. */
static bool read_number(const glm52_value *value, double *out) {
    if (value->type == GGUF_F32) {
        const uint32_t bits = glm52_le32(value->data);
        float number;
        memcpy(&number, &bits, sizeof(number));
        *out = number;
        return true;
    }
    if (value->type == GGUF_F64) {
        const uint64_t bits = glm52_le64(value->data);
        memcpy(out, &bits, sizeof(*out));
        return true;
    }
    int64_t integer;
    if (!read_integer(value->type, value->data, 0, &integer)) return false;
    *out = value->type == GGUF_U64 ? (double)(uint64_t)integer : (double)integer;
    return true;
}

glm52_status glm52_gguf_get_f32(const struct glm52_gguf *gguf, const char *key, bool *found_out, float *out) {
    const glm52_value *value = glm52_gguf_key(gguf, key);
    *found_out = false;
    if (value == NULL) return GLM52_OK;
    const char *path = glm52_show_path(gguf->shards[0].path);
    double number;
    if (!read_number(value, &number)) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is %s, a number is wanted", path, key,
                          type_name(value->type));
    }
    if (isfinite(number) && fabs(number) > FLT_MAX) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is %g, more than a float32 holds", path, key, number);
    }
    *found_out = true;
    *out = (float)number;
    return GLM52_OK;
}
