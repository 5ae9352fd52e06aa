/* gguf_read.c - one header: counts, keys with their values, tensor infos. Nothing is copied but names.
 *
 * Header: "GGUF", u32 version, u64 tensors, u64 keys; keys: string, u32 type, value; tensors: string, u32
 * dimensions, u64 size of each, u32 type, u64 offset from the start of the data. All little-endian, nothing
 * aligned; a string is a u64 length and its bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"
#include "quant.h"

#define STRING_LENGTH_BYTES 8
#define VERSION_END 8          /* magic and version, checked before */
#define KEY_BYTES_MIN 14       /* length, one character, type, one byte */
#define TENSOR_BYTES_MIN 33    /* length, one character, count, one dimension, type, offset */
#define TYPE_I8 24

static const uint32_t type_bytes[] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};

uint32_t glm52_gguf_type_bytes(uint32_t type) {
    return type < sizeof(type_bytes) / sizeof(type_bytes[0]) ? type_bytes[type] : 0;
}

uint32_t glm52_le32(const void *bytes) {
    const uint8_t *b = bytes;
    return (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

uint64_t glm52_le64(const void *bytes) {
    return glm52_le32(bytes) | (uint64_t)glm52_le32((const uint8_t *)bytes + 4) << 32;
}

/* Walks the header. item says in messages what is being read. */
struct cursor {
    const struct glm52_gguf_shard *shard;
    const char *path;              /* as shown in messages */
    uint64_t at, end;              /* end: of the file, of the largest header or of the directory */
    bool in_directory;             /* that a colocated file carries */
    char item[160];
};

static glm52_status fail_short(const struct cursor *cursor, uint64_t bytes) {
    if (cursor->in_directory) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key glm52.colocated.directory ends within %s", cursor->path,
                          cursor->item);
    }
    if (cursor->end < cursor->shard->bytes) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: %s ends past byte %u, the largest header that is read",
                          cursor->path, cursor->item, GLM52_GGUF_HEADER_BYTES_MAX);
    }
    return glm52_fail(GLM52_ERR_MODEL,
                      "%s: truncated: %s needs %llu bytes at byte %llu, but the file ends at byte %llu",
                      cursor->path, cursor->item, (unsigned long long)bytes, (unsigned long long)cursor->at,
                      (unsigned long long)cursor->shard->bytes);
}

/* *bytes_out is the next count bytes. */
static glm52_status take(struct cursor *cursor, uint64_t count, const uint8_t **bytes_out) {
    if (count > cursor->end - cursor->at) return fail_short(cursor, count);
    *bytes_out = cursor->shard->map + cursor->at;
    cursor->at += count;
    return GLM52_OK;
}

static glm52_status take_u32(struct cursor *cursor, uint32_t *out) {
    const uint8_t *bytes = NULL;
    GLM52_TRY(take(cursor, 4, &bytes));
    *out = glm52_le32(bytes);
    return GLM52_OK;
}

static glm52_status take_u64(struct cursor *cursor, uint64_t *out) {
    const uint8_t *bytes = NULL;
    GLM52_TRY(take(cursor, 8, &bytes));
    *out = glm52_le64(bytes);
    return GLM52_OK;
}

/* A name that lies in the map; its length stands in the 8 bytes before it. */
static glm52_status take_name(struct cursor *cursor, uint64_t bytes_max, const char **name_out) {
    uint64_t length = 0;
    GLM52_TRY(take_u64(cursor, &length));
    if (length > bytes_max) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: the name of %s is %llu bytes long, at most %llu are read",
                          cursor->path, cursor->item, (unsigned long long)length,
                          (unsigned long long)bytes_max);
    }
    const uint8_t *name = NULL;
    GLM52_TRY(take(cursor, length, &name));
    if (!glm52_name_is_clean(name, length)) {
        struct glm52_shown shown;
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: the name of %s, \"%s\", is empty or not plain UTF-8 (control characters are "
                          "refused, zeros too)",
                          cursor->path, cursor->item, glm52_show(&shown, name, length));
    }
    *name_out = (const char *)name;
    return GLM52_OK;
}

static uint64_t name_length(const char *name_in_map) {
    return glm52_le64(name_in_map - STRING_LENGTH_BYTES);
}

static glm52_status check_bools(const struct cursor *cursor, const uint8_t *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        if (bytes[i] > 1) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: %s: element %llu is %u, a bool is 0 or 1", cursor->path,
                              cursor->item, (unsigned long long)i, bytes[i]);
        }
    }
    return GLM52_OK;
}

/* count values of one type, scalars or strings. */
static glm52_status skip_values(struct cursor *cursor, uint32_t type, uint64_t count) {
    const uint8_t *bytes = NULL;
    if (type == GGUF_STRING) {
        for (uint64_t i = 0; i < count; i++) {
            uint64_t length = 0;
            GLM52_TRY(take_u64(cursor, &length));
            GLM52_TRY(take(cursor, length, &bytes));
        }
        return GLM52_OK;
    }
    const uint32_t size = glm52_gguf_type_bytes(type);
    if (size == 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: %s has value type %u, which is none of GGUF's (0..12)",
                          cursor->path, cursor->item, type);
    }
    if (count > (cursor->end - cursor->at) / size) {
        return fail_short(cursor, count > UINT64_MAX / size ? UINT64_MAX : count * size);
    }
    GLM52_TRY(take(cursor, count * size, &bytes));
    return type == GGUF_BOOL ? check_bools(cursor, bytes, count) : GLM52_OK;
}

static glm52_status read_value(struct cursor *cursor, glm52_value *value) {
    GLM52_TRY(take_u32(cursor, &value->type));
    value->element_type = value->type;
    value->count = 1;
    if (value->type == GGUF_ARRAY) {
        GLM52_TRY(take_u32(cursor, &value->element_type));
        GLM52_TRY(take_u64(cursor, &value->count));
        if (value->element_type == GGUF_ARRAY) {
            return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: %s is an array of arrays, which is not read",
                              cursor->path, cursor->item);
        }
    }
    const uint64_t start = cursor->at;
    value->data = cursor->shard->map + start;
    GLM52_TRY(skip_values(cursor, value->element_type, value->count));
    value->data_bytes = cursor->at - start;
    return GLM52_OK;
}

static glm52_status read_keys(struct cursor *cursor, struct glm52_part *part) {
    for (uint64_t i = 0; i < part->key_count; i++) {
        glm52_value *value = &part->keys[i];
        snprintf(cursor->item, sizeof(cursor->item), "key %llu", (unsigned long long)i);
        GLM52_TRY(take_name(cursor, GLM52_GGUF_KEY_BYTES_MAX, &value->key));
        struct glm52_shown shown;
        snprintf(cursor->item, sizeof(cursor->item), "key %s",
                 glm52_show(&shown, value->key, name_length(value->key)));
        GLM52_TRY(read_value(cursor, value));
    }
    return GLM52_OK;
}

/* ggml types that models may carry and this runtime does not read. */
static const struct {
    uint32_t type;
    const char *name;
} unread_types[] = {{4, "Q4_2"},        {5, "Q4_3"},        {9, "Q8_1"},   {15, "Q8_K"},  {24, "I8"},
                    {25, "I16"},        {26, "I32"},        {27, "I64"},   {28, "F64"},   {31, "Q4_0_4_4"},
                    {32, "Q4_0_4_8"},   {33, "Q4_0_8_8"},   {34, "TQ1_0"}, {35, "TQ2_0"}, {36, "IQ4_NL_4_4"},
                    {37, "IQ4_NL_4_8"}, {38, "IQ4_NL_8_8"}, {40, "NVFP4"}, {41, "Q1_0"}};

static glm52_status find_type(const struct cursor *cursor, uint32_t type,
                              const struct glm52_quant **quant_out) {
    *quant_out = glm52_quant_find(type);
    if (*quant_out != NULL) return GLM52_OK;
    const char *name = "unknown to this version";
    for (size_t i = 0; i < sizeof(unread_types) / sizeof(unread_types[0]); i++) {
        if (unread_types[i].type == type) name = unread_types[i].name;
    }
    return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: %s has type %u (%s); types that are read: %s", cursor->path,
                      cursor->item, type, name, glm52_quant_names());
}

/* Sizes of all dimensions; *elements_out is their product. */
static glm52_status read_sizes(struct cursor *cursor, glm52_tensor_info *tensor, uint64_t *elements_out) {
    GLM52_TRY(take_u32(cursor, &tensor->dimensions));
    if (tensor->dimensions == 0 || tensor->dimensions > GLM52_GGUF_DIMENSIONS_MAX) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: %s has %u dimensions, 1 to %u are read", cursor->path,
                          cursor->item, tensor->dimensions, GLM52_GGUF_DIMENSIONS_MAX);
    }
    uint64_t elements = 1;
    for (uint32_t i = 0; i < GLM52_GGUF_DIMENSIONS_MAX; i++) {
        tensor->size[i] = 1;
        if (i >= tensor->dimensions) continue;
        GLM52_TRY(take_u64(cursor, &tensor->size[i]));
        if (tensor->size[i] == 0) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: dimension %u of %s is 0", cursor->path, i, cursor->item);
        }
        if (tensor->size[i] > GLM52_GGUF_ELEMENTS_MAX / elements) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: %s has more than %llu elements (dimension %u is %llu)",
                              cursor->path, cursor->item, (unsigned long long)GLM52_GGUF_ELEMENTS_MAX, i,
                              (unsigned long long)tensor->size[i]);
        }
        elements *= tensor->size[i];
    }
    *elements_out = elements;
    return GLM52_OK;
}

/* Name and bytes of a tensor by its type. Bytes as such (I8) are what runs of a colocated file are made of, and no
 * tensor of a model. */
static glm52_status read_type(const struct cursor *cursor, const struct glm52_part *part, uint64_t elements,
                              glm52_tensor_info *tensor) {
    if (tensor->type == TYPE_I8 && part->colocated.tensor_count > 0 && !cursor->in_directory) {
        tensor->type_name = "I8";
        tensor->bytes = elements;
        return GLM52_OK;
    }
    const struct glm52_quant *quant = NULL;
    GLM52_TRY(find_type(cursor, tensor->type, &quant));
    tensor->type_name = quant->name;
    if (tensor->size[0] % quant->block_size != 0) {
        return glm52_fail(
            GLM52_ERR_MODEL, "%s: %s has rows of %llu values, not a multiple of the %u of a %s block",
            cursor->path, cursor->item, (unsigned long long)tensor->size[0], quant->block_size, quant->name);
    }
    tensor->bytes = elements / quant->block_size * quant->block_bytes;
    return GLM52_OK;
}

static glm52_status read_tensor(struct cursor *cursor, const struct glm52_part *part,
                                glm52_tensor_info *tensor) {
    uint64_t elements = 0;
    GLM52_TRY(read_sizes(cursor, tensor, &elements));
    GLM52_TRY(take_u32(cursor, &tensor->type));
    GLM52_TRY(take_u64(cursor, &tensor->offset));
    GLM52_TRY(read_type(cursor, part, elements, tensor));
    if (tensor->offset > GLM52_GGUF_OFFSET_MAX) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: %s starts at offset %llu of the data, at most %llu are read",
                          cursor->path, cursor->item, (unsigned long long)tensor->offset,
                          (unsigned long long)GLM52_GGUF_OFFSET_MAX);
    }
    if (tensor->offset % part->alignment != 0) {
        return glm52_fail(GLM52_ERR_MODEL,
                          "%s: %s starts at offset %llu of the data, not a multiple of the alignment %u",
                          cursor->path, cursor->item, (unsigned long long)tensor->offset, part->alignment);
    }
    return GLM52_OK;
}

static glm52_status read_tensors(struct cursor *cursor, const struct glm52_part *part, uint64_t count,
                                 glm52_tensor_info *tensors) {
    for (uint64_t i = 0; i < count; i++) {
        glm52_tensor_info *tensor = &tensors[i];
        snprintf(cursor->item, sizeof(cursor->item), "tensor %llu", (unsigned long long)i);
        GLM52_TRY(take_name(cursor, GLM52_GGUF_NAME_BYTES_MAX, &tensor->name));
        struct glm52_shown shown;
        snprintf(cursor->item, sizeof(cursor->item), "tensor %s",
                 glm52_show(&shown, tensor->name, name_length(tensor->name)));
        GLM52_TRY(read_tensor(cursor, part, tensor));
    }
    return GLM52_OK;
}

static glm52_status no_memory(const struct cursor *cursor, uint64_t count, const char *what) {
    return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for %llu %s", cursor->path, (unsigned long long)count,
                      what);
}

/* Moves a name out of the map, where nothing ends it. */
static const char *copy_name(char **next, const char *name_in_map) {
    const size_t length = (size_t)name_length(name_in_map);
    char *copy = *next;
    memcpy(copy, name_in_map, length);
    copy[length] = 0;
    *next += length + 1;
    return copy;
}

static glm52_status copy_key_names(const struct cursor *cursor, struct glm52_part *part) {
    size_t bytes = 1;
    for (uint64_t i = 0; i < part->key_count; i++) bytes += (size_t)name_length(part->keys[i].key) + 1;
    char *next = part->key_text = malloc(bytes);
    if (next == NULL) return no_memory(cursor, part->key_count, "names of keys");
    GLM52_TRY(glm52_names_allocate(&part->key_names, part->key_count));
    for (uint32_t i = 0; i < part->key_names.count; i++) {
        part->keys[i].key = copy_name(&next, part->keys[i].key);
        part->key_names.sorted[i] = (struct glm52_name){part->keys[i].key, i};
    }
    uint32_t twin;
    glm52_names_sort(&part->key_names, &twin);
    if (twin == GLM52_NAME_NONE) return GLM52_OK;
    struct glm52_shown shown;
    const char *name = part->keys[twin].key;
    return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is there twice (again as key %u)", cursor->path,
                      glm52_show(&shown, name, strlen(name)), twin);
}

static glm52_status copy_tensor_names(const struct cursor *cursor, uint64_t count, glm52_tensor_info *tensors,
                                      char **text_out) {
    size_t bytes = 1;
    for (uint64_t i = 0; i < count; i++) bytes += (size_t)name_length(tensors[i].name) + 1;
    char *next = *text_out = malloc(bytes);
    if (next == NULL) return no_memory(cursor, count, "names of tensors");
    for (uint64_t i = 0; i < count; i++) tensors[i].name = copy_name(&next, tensors[i].name);
    return GLM52_OK;
}

/* A count is believed, and memory taken for it, only if so many of the shortest records could follow. */
static glm52_status check_count(const struct cursor *cursor, const char *what, uint64_t count,
                                uint64_t count_max, uint64_t record_bytes_min) {
    if (count > count_max) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: the header counts %llu %s, at most %llu are read",
                          cursor->path, (unsigned long long)count, what, (unsigned long long)count_max);
    }
    if (count > (cursor->end - cursor->at) / record_bytes_min) {
        if (cursor->in_directory) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: key glm52.colocated.directory has no room for %llu %s",
                              cursor->path, (unsigned long long)count, what);
        }
        return glm52_fail(
            GLM52_ERR_MODEL, "%s: truncated: the header counts %llu %s, but the file ends at byte %llu",
            cursor->path, (unsigned long long)count, what, (unsigned long long)cursor->shard->bytes);
    }
    return GLM52_OK;
}

static glm52_status read_counts(struct cursor *cursor, struct glm52_part *part) {
    snprintf(cursor->item, sizeof(cursor->item), "the header");
    GLM52_TRY(take_u64(cursor, &part->tensor_count));
    GLM52_TRY(take_u64(cursor, &part->key_count));
    GLM52_TRY(check_count(cursor, "tensors", part->tensor_count, GLM52_GGUF_TENSORS_MAX, TENSOR_BYTES_MIN));
    GLM52_TRY(check_count(cursor, "keys", part->key_count, GLM52_GGUF_KEYS_MAX, KEY_BYTES_MIN));
    part->keys = calloc((size_t)part->key_count + 1, sizeof(*part->keys));
    if (part->keys == NULL) return no_memory(cursor, part->key_count, "keys");
    part->tensors = calloc((size_t)part->tensor_count + 1, sizeof(*part->tensors));
    return part->tensors != NULL ? GLM52_OK : no_memory(cursor, part->tensor_count, "tensors");
}

static glm52_status read_alignment(const struct cursor *cursor, struct glm52_part *part) {
    part->alignment = GLM52_GGUF_ALIGNMENT_DEFAULT;
    const glm52_value *value = glm52_part_key(part, "general.alignment");
    if (value == NULL) return GLM52_OK;
    uint64_t alignment = 0;
    GLM52_TRY(glm52_value_u64(cursor->path, value, &alignment));
    if (alignment < GLM52_GGUF_ALIGNMENT_MIN || alignment > GLM52_GGUF_ALIGNMENT_MAX ||
        (alignment & (alignment - 1)) != 0) {
        return glm52_fail(
            GLM52_ERR_MODEL, "%s: key general.alignment is %llu; powers of two from %u to %u are read",
            cursor->path, (unsigned long long)alignment, GLM52_GGUF_ALIGNMENT_MIN, GLM52_GGUF_ALIGNMENT_MAX);
    }
    part->alignment = (uint32_t)alignment;
    return GLM52_OK;
}

glm52_status glm52_part_read(struct glm52_part *part) {
    struct glm52_gguf_shard *shard = &part->shard;
    struct cursor cursor = {.shard = shard, .path = glm52_show_path(shard->path), .at = VERSION_END,
                            .end = shard->bytes};
    if (cursor.end > GLM52_GGUF_HEADER_BYTES_MAX) cursor.end = GLM52_GGUF_HEADER_BYTES_MAX;
    GLM52_TRY(read_counts(&cursor, part));
    GLM52_TRY(read_keys(&cursor, part));
    GLM52_TRY(copy_key_names(&cursor, part));
    GLM52_TRY(read_alignment(&cursor, part));
    GLM52_TRY(glm52_part_read_colocated(part));
    GLM52_TRY(read_tensors(&cursor, part, part->tensor_count, part->tensors));
    GLM52_TRY(copy_tensor_names(&cursor, part->tensor_count, part->tensors, &part->tensor_text));
    shard->header_bytes = cursor.at;
    shard->data_offset = (cursor.at + part->alignment - 1) / part->alignment * part->alignment;
    return GLM52_OK;
}

glm52_status glm52_part_read_directory(const struct glm52_part *part, glm52_tensor_info **tensors_out,
                                       char **text_out) {
    const struct glm52_colocated *c = &part->colocated;
    struct cursor cursor = {.shard = &part->shard, .path = glm52_show_path(part->shard.path), .at = c->directory_at,
                            .end = c->directory_at + c->directory_bytes, .in_directory = true};
    GLM52_TRY(check_count(&cursor, "tensors", c->tensor_count, GLM52_GGUF_TENSORS_MAX, TENSOR_BYTES_MIN));
    glm52_tensor_info *tensors = *tensors_out = calloc((size_t)c->tensor_count, sizeof(*tensors));
    if (tensors == NULL) return no_memory(&cursor, c->tensor_count, "tensors");
    GLM52_TRY(read_tensors(&cursor, part, c->tensor_count, tensors));
    if (cursor.at != cursor.end) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key glm52.colocated.directory goes on for %llu bytes behind its %llu "
                          "tensors", cursor.path, (unsigned long long)(cursor.end - cursor.at),
                          (unsigned long long)c->tensor_count);
    }
    return copy_tensor_names(&cursor, c->tensor_count, tensors, text_out);
}
