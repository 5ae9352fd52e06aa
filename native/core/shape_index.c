/* shape_index.c - which layers run their own indexer ("full") and which reuse the selection of the one before
 * ("shared").
 *
 * The file says so in attention.indexer.types. Files made before that key existed are told apart as llama.cpp
 * does: below 1,048,576 positions of context it is a GLM-5 or 5.1, all layers full; else a GLM-5.2, whose
 * layers 0, 1, 2, 6, 10, 14, ... are. Indexer tensors say nothing: files carry copies of them on shared
 * layers. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "gguf_parts.h"
#include "model.h"
#include "shape.h"
#include "shape_parts.h"

#define KEY "attention.indexer.types"

static void use_default_types(glm52_shape *shape) {
    const bool all = shape->context_max < GLM52_SHAPE_INDEX_SHARE_CONTEXT;
    for (uint32_t i = 0; i < shape->layers; i++) {
        shape->index_full[i] = all || i < 2 || (i - 2) % 4 == 0;
    }
}

static bool is_word(const uint8_t *bytes, uint64_t count, const char *word) {
    return count == strlen(word) && strncasecmp((const char *)bytes, word, (size_t)count) == 0;
}

static glm52_status read_words(const struct glm52_shape_reader *reader, const glm52_value *value,
                               glm52_shape *shape) {
    const uint8_t *at = value->data;
    for (uint32_t i = 0; i < shape->layers; i++) {
        const uint64_t length = glm52_le64(at);
        const uint8_t *word = at + 8;
        const bool full = is_word(word, length, "full");
        if (!full && !is_word(word, length, "shared")) {
            struct glm52_shown shown;
            return glm52_fail(GLM52_ERR_MODEL,
                              "%s: key %s says \"%s\" of layer %u; \"full\" and \"shared\" are read",
                              reader->path, value->key, glm52_show(&shown, word, length), i);
        }
        shape->index_full[i] = full;
        at = word + length;
    }
    return GLM52_OK;
}

static glm52_status read_numbers(const struct glm52_shape_reader *reader, const glm52_value *value,
                                 glm52_shape *shape) {
    for (uint32_t i = 0; i < shape->layers; i++) {
        uint64_t number;
        GLM52_TRY(glm52_value_u64_at(reader->path, value, i, &number));
        if (number > 1) {
            return glm52_fail(GLM52_ERR_MODEL,
                              "%s: key %s is %llu for layer %u; 0 (shared) and 1 (full) are read",
                              reader->path, value->key, (unsigned long long)number, i);
        }
        shape->index_full[i] = (uint8_t)number;
    }
    return GLM52_OK;
}

glm52_status glm52_shape_read_index_types(const struct glm52_shape_reader *reader, glm52_shape *shape) {
    struct glm52_shape_name name;
    const glm52_value *value = glm52_gguf_key(reader->gguf, glm52_shape_key(&name, KEY));
    if (value == NULL) {
        use_default_types(shape);
        return GLM52_OK;
    }
    if (value->type != GGUF_ARRAY) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s is no list; an element per layer is wanted",
                          reader->path, value->key);
    }
    /* Some writers count the MTP blocks, whose indexers are always full. */
    if (value->count != reader->layers && value->count != reader->blocks) {
        return glm52_fail(GLM52_ERR_SHAPE, "%s: key %s has %llu elements, the model has %u layers",
                          reader->path, value->key, (unsigned long long)value->count, reader->layers);
    }
    if (value->element_type == GGUF_STRING) GLM52_TRY(read_words(reader, value, shape));
    else GLM52_TRY(read_numbers(reader, value, shape));
    if (shape->index_full[0] != 1) {
        return glm52_fail(GLM52_ERR_SHAPE,
                          "%s: key %s calls layer 0 shared, but no layer before it can share", reader->path,
                          value->key);
    }
    return GLM52_OK;
}
