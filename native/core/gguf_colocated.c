/* gguf_colocated.c - a file in which the three slices of an expert lie together (docs/FORMAT.md, "Colocated files").
 *
 * In place of a block's three stacks of routed experts it has one tensor of bytes, blk.N.ffn_exps.runs: a run per
 * expert, gate, up and down one behind the other. It carries the directory of the file it was made from, and here that
 * directory takes the place of its own. Behind this file nobody sees a difference but in a tensor's stride. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"

#define VERSION 1
#define VERSION_KEY "glm52.colocated.version"
#define TENSORS_KEY "glm52.colocated.tensors"
#define PADDING_KEY "glm52.colocated.padding" /* has the data, which begin with the runs, begin at a whole block */
#define DIRECTORY_KEY "glm52.colocated.directory"
#define ARCHITECTURE "glm-dsa-colocated" /* so that readers that know no runs refuse the file by its name */
#define SLICES 3

static const char *const slice_names[SLICES] = {"gate", "up", "down"};

/* ---- keys ---- */

static uint64_t place_of(const struct glm52_part *part, const void *in_map) {
    return (uint64_t)((const uint8_t *)in_map - part->shard.map);
}

static glm52_status read_architecture(struct glm52_part *part, const char *path) {
    const glm52_value *value = glm52_part_key(part, "general.architecture");
    if (value == NULL || value->type != GGUF_STRING || value->data_bytes != 8 + strlen(ARCHITECTURE) ||
        memcmp((const char *)value->data + 8, ARCHITECTURE, strlen(ARCHITECTURE)) != 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: there is a key %s, but the architecture is not %s", path, VERSION_KEY,
                          ARCHITECTURE);
    }
    part->colocated.architecture_at = place_of(part, value->data);
    part->colocated.architecture_end = part->colocated.architecture_at + value->data_bytes;
    return GLM52_OK;
}

glm52_status glm52_part_read_colocated(struct glm52_part *part) {
    const glm52_value *version = glm52_part_key(part, VERSION_KEY);
    if (version == NULL) return GLM52_OK;
    const char *path = glm52_show_path(part->shard.path);
    uint64_t number = 0, tensors = 0;
    GLM52_TRY(glm52_value_u64(path, version, &number));
    if (number != VERSION) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: key %s is %llu, %d is read", path, VERSION_KEY,
                          (unsigned long long)number, VERSION);
    }
    /* The keys before them are the original file's, which the identity is made of. */
    const glm52_value *last = part->keys + part->key_count - GLM52_COLOCATED_KEYS;
    if (part->key_count <= GLM52_COLOCATED_KEYS || version != last || version->type != GGUF_U32 ||
        strcmp(last[1].key, TENSORS_KEY) != 0 || strcmp(last[2].key, PADDING_KEY) != 0 ||
        strcmp(last[3].key, DIRECTORY_KEY) != 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: the last keys must be %s (u32), %s, %s and %s, in this order", path,
                          VERSION_KEY, TENSORS_KEY, PADDING_KEY, DIRECTORY_KEY);
    }
    GLM52_TRY(glm52_value_u64(path, &last[1], &tensors));
    if (last[3].type != GGUF_ARRAY || last[3].element_type != GGUF_U8 || tensors == 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key %s must be a list of u8, and %s not 0", path, DIRECTORY_KEY,
                          TENSORS_KEY);
    }
    GLM52_TRY(read_architecture(part, path));
    part->colocated.keys_end = place_of(part, version->data) - 4 - strlen(VERSION_KEY) - 8;
    if (part->colocated.architecture_end > part->colocated.keys_end) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: key general.architecture must come before %s", path, VERSION_KEY);
    }
    part->colocated.directory_at = place_of(part, last[3].data);
    part->colocated.directory_bytes = last[3].data_bytes;
    part->colocated.tensor_count = tensors;
    return GLM52_OK;
}

/* ---- places ---- */

/* What a tensor of this file is to the directory's: the one tensor that it is, or the three that its runs hold. */
struct use {
    const glm52_tensor_info *whole;
    glm52_tensor_info *slices[SLICES];
};

struct placing {
    const struct glm52_part *part;
    const char *path;
    struct glm52_names names;      /* of the file's own tensors */
    struct use *uses;              /* [part->tensor_count] */
};

static bool is_same(const glm52_tensor_info *a, const glm52_tensor_info *b) {
    return a->type == b->type && a->dimensions == b->dimensions && memcmp(a->size, b->size, sizeof(a->size)) == 0;
}

static glm52_status fail_directory(const struct placing *placing, const glm52_tensor_info *tensor, const char *what) {
    struct glm52_shown shown;
    return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s of key %s %s", placing->path,
                      glm52_show(&shown, tensor->name, strlen(tensor->name)), DIRECTORY_KEY, what);
}

/* blk.N.ffn_{gate,up,down}_exps.weight: *run_out is the tensor of N's runs, and the result which of the three. */
static int find_run(const struct placing *placing, const char *name, uint32_t *run_out) {
    unsigned block = 0;
    int digits_end = 0;
    if (sscanf(name, "blk.%5u%n", &block, &digits_end) != 1) return -1;
    for (int k = 0; k < SLICES; k++) {
        char wanted[GLM52_GGUF_NAME_BYTES_MAX + 1];
        snprintf(wanted, sizeof(wanted), "blk.%u.ffn_%s_exps.weight", block, slice_names[k]);
        if (strcmp(name, wanted) != 0) continue;
        snprintf(wanted, sizeof(wanted), "blk.%u.ffn_exps.runs", block);
        *run_out = glm52_names_find(&placing->names, wanted);
        return *run_out == GLM52_NAME_NONE ? -1 : k;
    }
    return -1;
}

/* A tensor of the directory: at its own place in the file, or noted as a slice of runs. */
static glm52_status place_tensor(struct placing *placing, glm52_tensor_info *tensor) {
    uint32_t found = glm52_names_find(&placing->names, tensor->name);
    if (found != GLM52_NAME_NONE) {
        const glm52_tensor_info *own = &placing->part->tensors[found];
        if (!is_same(own, tensor)) return fail_directory(placing, tensor, "has another type or shape in the file");
        placing->uses[found].whole = tensor;
        tensor->offset = own->offset;
        return GLM52_OK;
    }
    const int slice = find_run(placing, tensor->name, &found);
    if (slice < 0) return fail_directory(placing, tensor, "is not in the file");
    placing->uses[found].slices[slice] = tensor;
    return GLM52_OK;
}

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return (bytes + to - 1) / to * to;
}

/* The three stacks whose slices a tensor of runs holds. */
static glm52_status place_slices(const struct placing *placing, const glm52_tensor_info *runs, struct use *use) {
    const uint64_t experts = runs->size[1];
    uint64_t at[SLICES], end = 0;
    for (int k = 0; k < SLICES; k++) {
        if (use->slices[k] == NULL) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s: key %s has no %s stack of its experts", placing->path,
                              runs->name, DIRECTORY_KEY, slice_names[k]);
        }
        if (use->slices[k]->dimensions != 3 || use->slices[k]->size[2] != experts) {
            return fail_directory(placing, use->slices[k], "has another number of experts than its runs");
        }
        at[k] = end;
        end += round_up(glm52_tensor_block_bytes(use->slices[k]), GLM52_RUN_SLICE_ALIGNMENT);
    }
    const uint64_t run_bytes = round_up(end, GLM52_RUN_ALIGNMENT);
    if (runs->dimensions != 2 || runs->size[0] != run_bytes || runs->offset % GLM52_RUN_ALIGNMENT != 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s has %u dimensions and runs of %llu bytes at byte %llu; 2, "
                          "%llu and a multiple of %u are wanted", placing->path, runs->name, runs->dimensions,
                          (unsigned long long)runs->size[0], (unsigned long long)runs->offset,
                          (unsigned long long)run_bytes, GLM52_RUN_ALIGNMENT);
    }
    for (int k = 0; k < SLICES; k++) {
        use->slices[k]->offset = runs->offset + at[k];
        use->slices[k]->stride = run_bytes;
    }
    return GLM52_OK;
}

/* Places the directory's tensors; every tensor of the file must have one there. */
static glm52_status place_all(struct placing *placing, glm52_tensor_info *tensors) {
    const struct glm52_part *part = placing->part;
    GLM52_TRY(glm52_names_allocate(&placing->names, part->tensor_count));
    placing->uses = calloc((size_t)part->tensor_count + 1, sizeof(*placing->uses));
    if (placing->uses == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for %llu tensors", placing->path,
                          (unsigned long long)part->tensor_count);
    }
    for (uint32_t i = 0; i < placing->names.count; i++) {
        placing->names.sorted[i] = (struct glm52_name){part->tensors[i].name, i};
    }
    uint32_t twin;
    glm52_names_sort(&placing->names, &twin);
    if (twin != GLM52_NAME_NONE) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s is there twice", placing->path, part->tensors[twin].name);
    }
    for (uint64_t i = 0; i < part->colocated.tensor_count; i++) GLM52_TRY(place_tensor(placing, &tensors[i]));
    for (uint64_t i = 0; i < part->tensor_count; i++) {
        if (placing->uses[i].whole != NULL) continue;
        if (strcmp(part->tensors[i].type_name, "I8") != 0) {
            return glm52_fail(GLM52_ERR_MODEL, "%s: tensor %s is not in key %s", placing->path, part->tensors[i].name,
                              DIRECTORY_KEY);
        }
        GLM52_TRY(place_slices(placing, &part->tensors[i], &placing->uses[i]));
    }
    return GLM52_OK;
}

glm52_status glm52_part_place_colocated(struct glm52_part *part) {
    if (part->colocated.tensor_count == 0) return GLM52_OK;
    struct placing placing = {.part = part, .path = glm52_show_path(part->shard.path)};
    if (part->split_count > 1) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: a colocated file in %u shards; it must be one file",
                          placing.path, part->split_count);
    }
    glm52_tensor_info *tensors = NULL;
    char *text = NULL;
    glm52_status status = glm52_part_read_directory(part, &tensors, &text);
    if (status == GLM52_OK) status = place_all(&placing, tensors);
    free(placing.names.sorted);
    free(placing.uses);
    if (status != GLM52_OK) {
        free(tensors);
        free(text);
        return status;
    }
    free(part->tensors);
    free(part->tensor_text);
    part->tensors = tensors;
    part->tensor_text = text;
    part->tensor_count = part->colocated.tensor_count;
    return GLM52_OK;
}
