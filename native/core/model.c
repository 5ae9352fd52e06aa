/* model.c - opening and describing models. What is in the file is gguf.c's, what it means shape.c's and
 * weights.c's. */
#include "model.h"

#include <stdlib.h>

#include "error.h"

uint32_t glm52_abi_version(void) {
    return GLM52_ABI_VERSION;
}

void glm52_model_retain(struct glm52_model *model) {
    atomic_fetch_add(&model->references, 1);
}

void glm52_model_close(glm52_model *model) {
    if (model == NULL || atomic_fetch_sub(&model->references, 1) != 1) return;
    free(model->layers);
    free(model->nextn);
    glm52_gguf_close(model->gguf);
    free(model);
}

static glm52_status load(struct glm52_model *model, const char *path) {
    GLM52_TRY(glm52_gguf_open(path, &model->gguf));
    GLM52_TRY(glm52_shape_read(model->gguf, &model->shape));
    return glm52_weights_bind(model);
}

glm52_status glm52_model_open(const char *path, glm52_model **model_out) {
    if (path == NULL || model_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "model_open: NULL pointer");
    struct glm52_model *model = calloc(1, sizeof(*model));
    if (model == NULL) return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for a model", path);
    atomic_init(&model->references, 1);

    const glm52_status status = load(model, path);
    if (status != GLM52_OK) {
        glm52_model_close(model);
        return status;
    }
    *model_out = model;
    return GLM52_OK;
}

const glm52_shape *glm52_model_shape(const glm52_model *model) {
    return model == NULL ? NULL : &model->shape;
}

uint32_t glm52_model_shard_count(const glm52_model *model) {
    return model == NULL ? 0 : model->gguf->shard_count;
}

const char *glm52_model_path(const glm52_model *model, uint32_t index) {
    if (model == NULL || index >= model->gguf->shard_count) return "";
    return model->gguf->shards[index].path;
}

uint64_t glm52_model_file_bytes(const glm52_model *model) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < glm52_model_shard_count(model); i++) bytes += model->gguf->shards[i].bytes;
    return bytes;
}

uint64_t glm52_model_tensor_count(const glm52_model *model) {
    return model == NULL ? 0 : model->gguf->tensor_count;
}

glm52_status glm52_model_tensor(const glm52_model *model, uint64_t index, glm52_tensor_info *tensor_out) {
    if (model == NULL || tensor_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "model_tensor: NULL pointer");
    if (index >= model->gguf->tensor_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "model_tensor: tensor %llu of %llu", (unsigned long long)index,
                          (unsigned long long)model->gguf->tensor_count);
    }
    *tensor_out = model->gguf->tensors[index];
    return GLM52_OK;
}

uint64_t glm52_model_key_count(const glm52_model *model) {
    return model == NULL ? 0 : model->gguf->key_count;
}

glm52_status glm52_model_key(const glm52_model *model, uint64_t index, glm52_value *value_out) {
    if (model == NULL || value_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "model_key: NULL pointer");
    if (index >= model->gguf->key_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "model_key: key %llu of %llu", (unsigned long long)index,
                          (unsigned long long)model->gguf->key_count);
    }
    *value_out = model->gguf->keys[index];
    return GLM52_OK;
}

glm52_status glm52_model_find_key(const glm52_model *model, const char *key, bool *found_out,
                                  glm52_value *value_out) {
    if (model == NULL || key == NULL || found_out == NULL || value_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "model_find_key: NULL pointer");
    }
    const glm52_value *value = glm52_gguf_key(model->gguf, key);
    *found_out = value != NULL;
    if (value != NULL) *value_out = *value;
    return GLM52_OK;
}

glm52_status glm52_model_identity(const glm52_model *model, char *identity_out) {
    if (model == NULL || identity_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "model_identity: NULL pointer");
    }
    return glm52_gguf_identity(model->gguf, identity_out);
}
