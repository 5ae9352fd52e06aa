/* adopt.c - tells a backend which memory of the file its operations read, where it lies mapped.
 *
 * A backend of the processor reads any memory. A device reads what it was told of, and may have to copy it: so of an
 * engine that streams the routed experts stay out, and the MTP block of one that has no use for it. */
#include <stdlib.h>
#include <string.h>

#include "engine.h"
#include "error.h"

/* Tensors begin on multiples of the file's alignment; so much between two of them does not part them. */
#define GAP_BYTES 64u

static bool is_routed(const glm52_tensor_info *tensor) {
    return strstr(tensor->name, "_exps.") != NULL;
}

static bool is_read(const struct glm52_engine *engine, const glm52_tensor_info *tensor) {
    if (glm52_tensor_layer(tensor->name) >= (int64_t)glm52_blocks(engine->model, &engine->options)) return false;
    return engine->options.streaming == NULL || !is_routed(tensor);
}

static size_t longest_operand(const struct glm52_engine *engine) {
    const struct glm52_gguf *gguf = engine->model->gguf;
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const glm52_tensor_info *tensor = &gguf->tensors[i];
        if (!is_read(engine, tensor)) continue;
        const uint64_t operand = is_routed(tensor) ? tensor->bytes / tensor->size[2] : tensor->bytes;
        if (operand > bytes) bytes = operand;
    }
    return (size_t)bytes;
}

static glm52_status adopt_shard(const struct glm52_engine *engine, uint32_t shard, glm52_span *spans) {
    const struct glm52_gguf *gguf = engine->model->gguf;
    const struct glm52_gguf_shard *file = &gguf->shards[shard];
    uint64_t count = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const glm52_tensor_info *tensor = &gguf->tensors[i];
        if (tensor->shard != shard || !is_read(engine, tensor)) continue;
        const uint64_t bytes = (glm52_tensor_span(tensor) + GAP_BYTES - 1) / GAP_BYTES * GAP_BYTES;
        const uint64_t left = file->bytes - tensor->offset;
        spans[count++] = (glm52_span){tensor->offset, bytes < left ? bytes : left};
    }
    if (count == 0) return GLM52_OK;
    GLM52_TRY(glm52_spans_merge(spans, &count));
    for (uint64_t i = 0; i < count; i++) {
        GLM52_TRY(engine->ops->adopt(engine->backend, file->map + spans[i].offset, (size_t)spans[i].bytes, false));
    }
    return GLM52_OK;
}

glm52_status glm52_adopt_weights(const struct glm52_engine *engine) {
    const struct glm52_gguf *gguf = engine->model->gguf;
    engine->ops->expect(engine->backend, &engine->model->shape, longest_operand(engine));
    glm52_span *spans = calloc((size_t)gguf->tensor_count, sizeof(*spans));
    if (spans == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory for its spans", glm52_model_path(engine->model, 0));
    }
    glm52_status status = GLM52_OK;
    for (uint32_t i = 0; i < gguf->shard_count && status == GLM52_OK; i++) status = adopt_shard(engine, i, spans);
    free(spans);
    return status;
}
