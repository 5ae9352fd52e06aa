/* stream_plan.c - what streaming a model's experts takes: which layers have experts of which size, how many slots each
 * size gets, what stays mapped. The arithmetic is budget.c's. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checked.h"
#include "error.h"
#include "stream.h"

const struct glm52_matrix *glm52_routed_matrix(const struct glm52_model *model, uint32_t layer, uint32_t slice) {
    const uint32_t trunk = model->shape.layers;
    const struct glm52_layer *l = layer < trunk ? &model->layers[layer] : &model->nextn[layer - trunk].layer;
    if (l->dense) return NULL;
    return slice == 0 ? &l->experts_gate : slice == 1 ? &l->experts_up : &l->experts_down;
}

int64_t glm52_tensor_layer(const char *name) {
    if (strncmp(name, "blk.", 4) != 0) return -1;
    char *end = NULL;
    const unsigned long layer = strtoul(name + 4, &end, 10);
    return end == name + 4 || *end != '.' || layer >= GLM52_LAYERS_MAX ? -1 : (int64_t)layer;
}

uint64_t glm52_machine_memory(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX;
}

/* Bytes of an expert of a sparse layer, in the file and in a slot. */
static glm52_status expert_size(const struct glm52_model *model, uint32_t layer, glm52_size_class *class_out) {
    uint64_t slices[GLM52_SLICES], bytes = 0;
    for (uint32_t i = 0; i < GLM52_SLICES; i++) {
        slices[i] = glm52_routed_matrix(model, layer, i)->slice_bytes;
        if (!glm52_add_u64(bytes, slices[i], &bytes)) bytes = UINT64_MAX;
    }
    const uint64_t slot = glm52_slot_bytes(slices);
    if (slot == 0) return glm52_fail(GLM52_ERR_BUDGET, "an expert of layer %u does not fit in 64 bits", layer);
    *class_out = (glm52_size_class){.expert_bytes = bytes, .slot_bytes = slot};
    return GLM52_OK;
}

/* Adds a layer to the class of its size; a size is what its slices are together in memory. */
static glm52_status count_layer(glm52_stream_plan *plan, const glm52_size_class *size) {
    for (uint32_t c = 0; c < plan->class_count; c++) {
        if (plan->classes[c].expert_bytes == size->expert_bytes && plan->classes[c].slot_bytes == size->slot_bytes) {
            plan->classes[c].layers++;
            return GLM52_OK;
        }
    }
    if (plan->class_count == GLM52_SIZE_CLASSES_MAX) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "experts of more than %d sizes", GLM52_SIZE_CLASSES_MAX);
    }
    plan->classes[plan->class_count] = *size;
    plan->classes[plan->class_count++].layers = 1;
    return GLM52_OK;
}

/* Sizes of the trunk's layers; the first full_layers sparse ones are counted whole and not cached. */
static glm52_status count_layers(const struct glm52_model *model, uint32_t layers, uint32_t full_layers,
                                 glm52_stream_plan *plan) {
    const glm52_shape *s = &model->shape;
    uint32_t sparse = 0;
    for (uint32_t i = 0; i < layers; i++) {
        if (glm52_routed_matrix(model, i, 0) == NULL) continue;
        glm52_size_class size;
        GLM52_TRY(expert_size(model, i, &size));
        uint64_t layer_bytes = 0;
        if (!glm52_mul_u64(size.expert_bytes, s->experts, &layer_bytes) ||
            !glm52_add_u64(plan->routed_bytes, layer_bytes, &plan->routed_bytes)) {
            return glm52_fail(GLM52_ERR_BUDGET, "the routed experts do not fit in 64 bits");
        }
        if (i < s->layers) plan->token_bytes += size.expert_bytes * s->experts_used;
        else plan->nextn_bytes -= layer_bytes;   /* it was counted as mapped */
        if (sparse++ < full_layers) plan->full_bytes += size.slot_bytes * s->experts;
        else GLM52_TRY(count_layer(plan, &size));
    }
    if (sparse == 0) return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: there are no routed experts to stream",
                                       glm52_model_path(model, 0));
    if (full_layers >= sparse) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "full_layers %u: of %u sparse layers one must be left to stream",
                          full_layers, sparse);
    }
    return GLM52_OK;
}

static uint64_t nextn_bytes(const struct glm52_model *model) {
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < model->gguf->tensor_count; i++) {
        const glm52_tensor_info *tensor = &model->gguf->tensors[i];
        if (glm52_tensor_layer(tensor->name) >= (int64_t)model->shape.layers) bytes += tensor->bytes;
    }
    return bytes;
}

uint32_t glm52_stream_layers(const struct glm52_model *model, const glm52_stream_options *options) {
    return model->shape.layers + (options->mtp && model->shape.nextn_layers > 0 ? 1u : 0u);
}

static uint64_t slice_bytes_max(const struct glm52_model *model, uint32_t layers) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < layers; i++) {
        for (uint32_t k = 0; k < GLM52_SLICES && glm52_routed_matrix(model, i, k) != NULL; k++) {
            bytes = glm52_max_u64(bytes, glm52_routed_matrix(model, i, k)->slice_bytes);
        }
    }
    return bytes;
}

/* Books, tables, threads' buffers: all that stream.c allocates beside slots. */
static uint64_t buffer_bytes(const struct glm52_model *model, const glm52_stream_options *options,
                             uint32_t chunk_rows, uint32_t slots) {
    const glm52_shape *s = &model->shape;
    const uint32_t layers = glm52_stream_layers(model, options);
    const uint32_t workers = options->workers == 0 ? GLM52_WORKERS_DEFAULT : options->workers;
    const uint64_t per_slot = sizeof(struct glm52_slot_state) + sizeof(glm52_load) + sizeof(uint8_t *) +
                              sizeof(uint32_t);
    return sizeof(struct glm52_stream) + glm52_cache_bytes(layers, s->experts, slots) + slots * per_slot +
           glm52_io_bytes(workers, slots, slice_bytes_max(model, layers), options->direct_io != 0) +
           s->experts * (sizeof(glm52_expert) + 2 * sizeof(uint32_t)) +
           (uint64_t)chunk_rows * s->experts_used * sizeof(int32_t) +
           2ull * layers * sizeof(glm52_stream_layer_stats) +
           (options->usage_path == NULL ? 0 : (s->layers + (uint64_t)s->nextn_layers) * s->experts * sizeof(uint32_t));
}

/* ---- spans ---- */

typedef bool wanted_fn(const glm52_model *model, const glm52_tensor_info *tensor, uint32_t number);

static bool is_resident(const glm52_model *model, const glm52_tensor_info *tensor, uint32_t full_layers) {
    const int64_t layer = glm52_tensor_layer(tensor->name);
    if (layer >= (int64_t)model->shape.layers) return false;
    if (strstr(tensor->name, "_exps.weight") == NULL) return true;
    uint32_t sparse_before = 0;
    for (int64_t i = 0; i < layer; i++) sparse_before += !model->layers[i].dense;
    return sparse_before < full_layers;
}

static bool is_of_layer(const glm52_model *model, const glm52_tensor_info *tensor, uint32_t layer) {
    (void)model;
    return glm52_tensor_layer(tensor->name) == (int64_t)layer;
}

/* Spans of the tensors of a shard that are wanted, merged. */
static glm52_status make_spans(const glm52_model *model, uint32_t shard, wanted_fn *is_wanted, uint32_t number,
                               glm52_span *spans_out, uint64_t count_max, uint64_t *count_out,
                               uint64_t *tensor_max_out) {
    const struct glm52_gguf *gguf = model->gguf;
    glm52_span *spans = calloc(gguf->tensor_count, sizeof(*spans));
    if (spans == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for the spans of a file");
    uint64_t count = 0, tensor_max = 0;
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        const glm52_tensor_info *tensor = &gguf->tensors[i];
        if (tensor->shard != shard || !is_wanted(model, tensor, number)) continue;
        spans[count++] = (glm52_span){tensor->offset, glm52_tensor_span(tensor)};
        tensor_max = glm52_max_u64(tensor_max, tensor->bytes);
    }
    const glm52_status status = glm52_spans_merge(spans, &count);
    if (status == GLM52_OK) {
        for (uint64_t i = 0; i < count && i < count_max; i++) spans_out[i] = spans[i];
        *count_out = count;
        *tensor_max_out = tensor_max;
    }
    free(spans);
    return status;
}

glm52_status glm52_resident_spans(const glm52_model *model, uint32_t shard, uint32_t full_layers,
                                  glm52_span *spans_out, uint64_t count_max, uint64_t *count_out,
                                  uint64_t *tensor_max_out) {
    if (model == NULL || count_out == NULL || tensor_max_out == NULL || (spans_out == NULL && count_max > 0) ||
        shard >= model->gguf->shard_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "resident_spans: NULL pointer or no shard %u", shard);
    }
    return make_spans(model, shard, is_resident, full_layers, spans_out, count_max, count_out, tensor_max_out);
}

glm52_status glm52_layer_spans(const glm52_model *model, uint32_t shard, uint32_t layer, glm52_span *spans_out,
                               uint64_t count_max, uint64_t *count_out) {
    if (model == NULL || count_out == NULL || (spans_out == NULL && count_max > 0) ||
        shard >= model->gguf->shard_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "layer_spans: NULL pointer or no shard %u", shard);
    }
    uint64_t tensor_max = 0;
    const glm52_status status = make_spans(model, shard, is_of_layer, layer, spans_out, count_max, count_out,
                                           &tensor_max);
    if (status != GLM52_ERR_ARGUMENT) return status;
    return glm52_fail(GLM52_ERR_MODEL, "%s: block %u has no tensors here", glm52_model_path(model, shard), layer);
}

glm52_status glm52_stream_plan_make(const glm52_model *model, const glm52_stream_options *options,
                                    uint32_t chunk_rows, uint64_t left_bytes, glm52_stream_plan *plan_out) {
    if (model == NULL || options == NULL || plan_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "stream_plan_make: NULL pointer");
    }
    const glm52_shape *s = &model->shape;
    glm52_stream_plan plan = {.nextn_bytes = nextn_bytes(model)};
    GLM52_TRY(count_layers(model, glm52_stream_layers(model, options), options->full_layers, &plan));
    plan.other_bytes = glm52_model_file_bytes(model) - plan.routed_bytes - plan.nextn_bytes;
    plan.minimum_experts = s->experts_used * plan.class_count;
    for (uint32_t c = 0; c < plan.class_count; c++) {
        plan.minimum_bytes += plan.classes[c].slot_bytes * s->experts_used;
    }
    /* The cap holds for the automatic size alone: who asks for 40 GiB gets 40 GiB or is told why not. */
    const uint64_t bytes = options->cache_bytes > 0 ? options->cache_bytes
                                                    : glm52_min_u64(left_bytes, GLM52_CACHE_AUTO_BYTES_MAX);
    GLM52_TRY(glm52_classes_fill(plan.classes, plan.class_count, s->experts, s->experts_used, bytes,
                                 options->cache_experts));
    uint32_t slots = options->full_layers * s->experts;
    for (uint32_t c = 0; c < plan.class_count; c++) {
        plan.slots += plan.classes[c].slots;
        plan.cache_bytes += plan.classes[c].slots * plan.classes[c].slot_bytes;
    }
    slots += plan.slots;
    plan.buffer_bytes = buffer_bytes(model, options, chunk_rows, slots);
    *plan_out = plan;
    return GLM52_OK;
}

/* Full layers of one size share a class that has a slot for each of their experts. */
static uint32_t full_class(uint32_t *count, uint32_t first, uint64_t slot_bytes, uint32_t *slots, uint64_t *bytes) {
    for (uint32_t c = first; c < *count; c++) {
        if (bytes[c] == slot_bytes) return c;
    }
    bytes[*count] = slot_bytes;
    slots[*count] = 0;
    return (*count)++;
}

uint32_t glm52_stream_classes(const struct glm52_model *model, const glm52_stream_plan *plan, uint32_t layers,
                              uint32_t full_layers, uint8_t *class_of, uint32_t *slots_out, uint64_t *bytes_out) {
    uint32_t count = plan->class_count, sparse = 0;
    for (uint32_t c = 0; c < count; c++) {
        slots_out[c] = plan->classes[c].slots;
        bytes_out[c] = plan->classes[c].slot_bytes;
    }
    for (uint32_t i = 0; i < layers; i++) {
        class_of[i] = GLM52_CACHE_NO_CLASS;
        glm52_size_class size;
        if (glm52_routed_matrix(model, i, 0) == NULL || expert_size(model, i, &size) != GLM52_OK) continue;
        if (sparse++ < full_layers) {
            const uint32_t c = full_class(&count, plan->class_count, size.slot_bytes, slots_out, bytes_out);
            slots_out[c] += model->shape.experts;
            class_of[i] = (uint8_t)c;
            continue;
        }
        for (uint32_t c = 0; c < plan->class_count; c++) {
            if (plan->classes[c].expert_bytes == size.expert_bytes && plan->classes[c].slot_bytes == size.slot_bytes) {
                class_of[i] = (uint8_t)c;
            }
        }
    }
    return count;
}
