/* stream_open.c - opening and closing a stream: options checked, memory allocated once, files and their mirror opened,
 * what was learned before taken up again. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "error.h"
#include "stream.h"

void glm52_stream_warn(struct glm52_stream *stream, const char *format, ...) {
    const size_t used = strlen(stream->warnings);
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(stream->warnings + used, sizeof(stream->warnings) - used, format, arguments);
    va_end(arguments);
    const size_t end = used + (length < 0 ? 0 : (size_t)length);
    if (end + 1 < sizeof(stream->warnings)) memcpy(stream->warnings + end, "\n", 2);
}

static glm52_status check_options(const struct glm52_model *model, const glm52_stream_options *o) {
    if (o->policy >= GLM52_POLICY_COUNT) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "policy %u; there are %d", o->policy, GLM52_POLICY_COUNT);
    }
    if (o->workers > GLM52_WORKERS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%u reading threads; at most %d", o->workers, GLM52_WORKERS_MAX);
    }
    if (o->cache_bytes > 0 && o->cache_experts > 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_bytes %llu and cache_experts %u; give one of them",
                          (unsigned long long)o->cache_bytes, o->cache_experts);
    }
    if ((o->advise & ~(uint32_t)(GLM52_ADVISE_WILLNEED | GLM52_ADVISE_DONTNEED)) != 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "advise %u; it is a sum of 1 and 2", o->advise);
    }
    if ((o->auto_pin || o->live_repin) && o->usage_path == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT,
                          "auto_pin and live_repin learn from a usage ledger; usage_path names none");
    }
    if (o->auto_pin && o->pin_count > 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "auto_pin chooses the pins; %u are given", o->pin_count);
    }
    if (o->pilot > GLM52_PILOT_LOAD || o->pilot_k > model->shape.experts_used) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "pilot %u with pilot_k %u; at most %d and %u", o->pilot, o->pilot_k,
                          GLM52_PILOT_LOAD, model->shape.experts_used);
    }
    if (o->pilot == GLM52_PILOT_HINT && o->direct_io) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "hints go to the page cache, which direct I/O passes by; give one");
    }
    if (o->usage_path != NULL && strlen(o->usage_path) >= sizeof(((struct glm52_stream *)NULL)->usage_path)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "usage_path of %zu bytes is too long", strlen(o->usage_path));
    }
    return GLM52_OK;
}

static glm52_status allocate(struct glm52_stream *stream, uint32_t slots, uint32_t chunk_rows) {
    const glm52_shape *s = stream->shape;
    struct glm52_allocations *a = &stream->allocations;
    stream->states = glm52_stream_allocate(a, slots, sizeof(*stream->states));
    stream->loads = glm52_stream_allocate(a, slots, sizeof(*stream->loads));
    stream->table = glm52_stream_allocate(a, s->experts, sizeof(*stream->table));
    stream->ids = glm52_stream_allocate(a, (uint64_t)chunk_rows * s->experts_used, sizeof(*stream->ids));
    stream->layer_stats = glm52_stream_allocate(a, stream->layers, sizeof(*stream->layer_stats));
    stream->before.layer_stats = glm52_stream_allocate(a, stream->layers, sizeof(*stream->layer_stats));
    stream->segment_experts = glm52_stream_allocate(a, s->experts, sizeof(uint32_t));
    stream->segment_slots = glm52_stream_allocate(a, s->experts, sizeof(uint32_t));
    stream->gone = glm52_stream_allocate(a, slots, sizeof(*stream->gone));
    if (stream->gone == NULL || stream->segment_experts == NULL || stream->segment_slots == NULL ||
        stream->states == NULL || stream->loads == NULL || stream->table == NULL || stream->ids == NULL ||
        stream->layer_stats == NULL || stream->before.layer_stats == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "no memory for the tables of %u slots", slots);
    }
    return GLM52_OK;
}

/* ---- files ---- */

/* A copy on another disk must be the same model to the last sampled block, else experts of another would be read. */
static glm52_status open_mirror(struct glm52_stream *stream, const char *path) {
    const struct glm52_gguf *primary = stream->model->gguf;
    GLM52_TRY(glm52_gguf_open(path, &stream->mirror));
    char ours[GLM52_IDENTITY_DIGITS + 1], theirs[GLM52_IDENTITY_DIGITS + 1];
    GLM52_TRY(glm52_gguf_identity(primary, ours));
    GLM52_TRY(glm52_gguf_identity(stream->mirror, theirs));
    if (stream->mirror->shard_count != primary->shard_count || strcmp(ours, theirs) != 0) {
        return glm52_fail(GLM52_ERR_MODEL, "%s: the mirror is another model than %s: identity %.16s..., not %.16s...",
                          path, primary->shards[0].path, theirs, ours);
    }
    /* A colocated file and the one it was made from are one model, but not one file. */
    for (uint64_t i = 0; i < primary->tensor_count; i++) {
        const glm52_tensor_info *a = &primary->tensors[i], *b = &stream->mirror->tensors[i];
        if (a->offset == b->offset && a->stride == b->stride && a->shard == b->shard) continue;
        return glm52_fail(GLM52_ERR_MODEL, "%s: the mirror has tensor %s at byte %llu, %s at %llu: one of them is "
                          "colocated", path, a->name, (unsigned long long)b->offset, primary->shards[0].path,
                          (unsigned long long)a->offset);
    }
    return GLM52_OK;
}

static glm52_status describe_files(const struct glm52_gguf *gguf, struct glm52_io_file *files) {
    for (uint32_t i = 0; i < gguf->shard_count; i++) {
        struct stat now;
        if (fstat(gguf->shards[i].file, &now) != 0) {
            return glm52_fail(GLM52_ERR_IO, "%s: can't be asked for its size", gguf->shards[i].path);
        }
        files[i] = (struct glm52_io_file){.path = gguf->shards[i].path, .file = gguf->shards[i].file, .direct = -1,
                                          .bytes = gguf->shards[i].bytes, .device = (uint64_t)now.st_dev,
                                          .inode = (uint64_t)now.st_ino};
    }
    return GLM52_OK;
}

static glm52_status open_io(struct glm52_stream *stream, uint32_t slots) {
    const struct glm52_gguf *gguf = stream->model->gguf;
    const uint32_t count = gguf->shard_count;
    struct glm52_io_file *files = glm52_stream_allocate(&stream->allocations, 2ull * count, sizeof(*files));
    if (files == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for %u files", count);
    uint64_t slice_max = 0;
    for (uint32_t i = 0; i < stream->layers; i++) {
        for (uint32_t k = 0; k < GLM52_SLICES && glm52_routed_matrix(stream->model, i, k) != NULL; k++) {
            slice_max = glm52_max_u64(slice_max, glm52_routed_matrix(stream->model, i, k)->slice_bytes);
        }
    }
    const glm52_stream_options *o = &stream->options;
    const struct glm52_io_args args = {
        .files = files, .file_count = count, .has_mirror = stream->mirror != NULL,
        .workers = o->workers == 0 ? GLM52_WORKERS_DEFAULT : o->workers, .tickets = slots,
        .direct = o->direct_io != 0, .advise = o->advise, .slice_bytes_max = slice_max, .test = &stream->test,
        .allocations = &stream->allocations};
    glm52_status status = describe_files(gguf, files);
    if (status == GLM52_OK && stream->mirror != NULL) status = describe_files(stream->mirror, files + count);
    if (status == GLM52_OK) status = glm52_io_open(&args, &stream->io);
    free(files);
    return status;
}

/* For tests: whoever touches a routed expert through the mapping dies. Whole pages alone, since a tensor may share
 * its first and last page with a neighbour. */
static void guard(const struct glm52_stream *stream, int protection) {
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint32_t layer = 0; layer < stream->layers; layer++) {
        for (uint32_t k = 0; k < GLM52_SLICES && glm52_routed_matrix(stream->model, layer, k) != NULL; k++) {
            const glm52_tensor_info *tensor = glm52_routed_matrix(stream->model, layer, k)->tensor;
            const uintptr_t begin = (uintptr_t)glm52_gguf_data(stream->model->gguf, tensor);
            const uintptr_t first = (begin + page - 1) / page * page;
            const uintptr_t end = (begin + glm52_tensor_span(tensor)) / page * page;
            if (first < end) mprotect((void *)first, end - first, protection);
        }
    }
}

/* ---- what is known before the first token ---- */

static glm52_status open_usage(struct glm52_stream *stream, const char *path) {
    struct glm52_usage *usage = &stream->usage;
    usage->layers = stream->shape->layers + stream->shape->nextn_layers;   /* one ledger with and without MTP */
    usage->experts = stream->shape->experts;
    usage->counts = glm52_stream_allocate(&stream->allocations, (uint64_t)usage->layers * usage->experts,
                                          sizeof(uint32_t));
    if (usage->counts == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a usage ledger");
    memcpy(stream->usage_path, path, strlen(path) + 1);
    char reason[256];
    if (!glm52_usage_read(usage, path, reason, sizeof(reason))) {
        glm52_stream_warn(stream, "%s: the usage ledger is not used: %s", path, reason);
    }
    return GLM52_OK;
}

/* Reads the books open and, with auto_pin, the pins from the ledger: the hottest, as far as their class lets one slot
 * free. */
static glm52_status open_cache(struct glm52_stream *stream, glm52_cache_args *args, const uint64_t *slot_bytes) {
    if (!stream->options.auto_pin) return glm52_cache_open(args, &stream->cache);
    uint64_t bytes = 0;
    uint32_t free_slots[GLM52_CACHE_CLASSES_MAX], count = 0, kept = 0;
    for (uint32_t c = 0; c < args->class_count; c++) {
        free_slots[c] = args->slots[c];
        bytes = glm52_max_u64(bytes, slot_bytes[c]);
    }
    const uint32_t wanted = glm52_auto_pin_count(stream->usage.selections, stream->plan.slots, bytes,
                                                 stream->options.auto_pin_bytes_min);
    glm52_expert_id *pins = glm52_stream_allocate(&stream->allocations, wanted + 1ull, sizeof(*pins));
    if (pins == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for %u pins", wanted);
    count = glm52_usage_hottest(&stream->usage, pins, wanted);
    for (uint32_t i = 0; i < count; i++) {
        if (pins[i].layer >= stream->layers) continue;
        const uint8_t c = args->class_of[pins[i].layer];
        /* Full layers stay anyway. */
        if (c >= stream->plan.class_count || free_slots[c] == 1) continue;
        free_slots[c]--;
        pins[kept++] = pins[i];
    }
    args->pins = pins;
    args->pin_count = kept;
    const glm52_status status = glm52_cache_open(args, &stream->cache);
    free(pins);
    return status;
}

/* The list's first experts that have a slot of their size, hottest last, so that they are also the most recent. */
static glm52_status preload(struct glm52_stream *stream, const glm52_expert_id *list, uint32_t count,
                            const uint8_t *class_of) {
    const uint32_t most = glm52_preload_count(false, stream->options.preload_max, stream->plan.slots);
    uint32_t taken = 0, load_count = 0, last = 0;
    for (; last < count && taken < most; last++) {
        const glm52_expert_id id = list[last];
        taken += id.layer < stream->layers && id.expert < stream->shape->experts &&
                 class_of[id.layer] < stream->plan.class_count;
    }
    for (uint32_t i = last, rank = 0; i-- > 0;) {
        const glm52_expert_id id = list[i];
        if (id.layer >= stream->layers || id.expert >= stream->shape->experts ||
            class_of[id.layer] >= stream->plan.class_count) {
            continue;
        }
        bool given = false;
        GLM52_TRY(glm52_cache_preload(stream->cache, id, ++rank, &given, &stream->loads[load_count]));
        load_count += given;
    }
    return glm52_stream_preload(stream, stream->loads, load_count);
}

static glm52_status take_up(struct glm52_stream *stream, const glm52_stream_options *options,
                            const uint8_t *class_of) {
    if (options->preload_count > 0) return preload(stream, options->preload, options->preload_count, class_of);
    if (options->preload_max == 0 || stream->usage.selections == 0) return GLM52_OK;
    const uint32_t most = (uint32_t)glm52_min_u64(options->preload_max, stream->plan.slots);
    glm52_expert_id *list = glm52_stream_allocate(&stream->allocations, most, sizeof(*list));
    if (list == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a list of %u experts", most);
    const uint32_t count = glm52_usage_hottest(&stream->usage, list, most);
    const glm52_status status = preload(stream, list, count, class_of);
    free(list);
    return status;
}

/* ---- open, close ---- */

static glm52_status open_parts(struct glm52_stream *stream, const glm52_stream_options *options,
                               uint32_t chunk_rows) {
    uint8_t class_of[GLM52_LAYERS_MAX];
    uint32_t counts[GLM52_CACHE_CLASSES_MAX];
    uint64_t bytes[GLM52_CACHE_CLASSES_MAX];
    const uint32_t classes = glm52_stream_classes(stream->model, &stream->plan, stream->layers, options->full_layers,
                                                  class_of, counts, bytes);
    uint32_t slots = 0;
    for (uint32_t c = 0; c < classes; c++) slots += counts[c];
    glm52_cache_args args = {.layers = stream->layers, .experts = stream->shape->experts,
                             .class_of = class_of, .class_count = classes, .slots = counts,
                             .policy = options->policy, .pins = options->pins, .pin_count = options->pin_count};
    if (options->usage_path != NULL) GLM52_TRY(open_usage(stream, options->usage_path));
    GLM52_TRY(open_cache(stream, &args, bytes));
    GLM52_TRY(allocate(stream, slots, chunk_rows));
    if (options->mirror_path != NULL) GLM52_TRY(open_mirror(stream, options->mirror_path));
    GLM52_TRY(glm52_slots_make(&stream->slots, bytes, counts, classes, &stream->allocations));
    for (uint32_t i = 0; i < stream->slots.slab_count; i++) {
        const struct glm52_slab *slab = &stream->slots.slabs[i];
        GLM52_TRY(stream->backend->ops->adopt(stream->backend, slab->memory, (size_t)slab->bytes, true));
    }
    GLM52_TRY(open_io(stream, slots));
    if (options->wired) glm52_slots_wire(&stream->slots);
    if (stream->slots.wire_failed_bytes > 0) {
        glm52_stream_warn(stream, "the system let %llu bytes of slots be locked in memory and refused %llu more; the "
                          "rest is not locked", (unsigned long long)stream->slots.wired_bytes,
                          (unsigned long long)stream->slots.wire_failed_bytes);
    }
    stream->pilot.used = stream->shape->experts_used;
    if (stream->test.guard) guard(stream, PROT_NONE);
    return take_up(stream, options, class_of);
}

glm52_status glm52_stream_open(const struct glm52_model *model, const glm52_stream_options *options,
                               const glm52_stream_plan *plan, uint32_t chunk_rows, glm52_backend *backend,
                               struct glm52_stream **stream_out) {
    GLM52_TRY(check_options(model, options));
    struct glm52_stream *stream = calloc(1, sizeof(*stream));
    if (stream == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a stream");
    stream->model = model;
    stream->shape = &model->shape;
    stream->layers = glm52_stream_layers(model, options);
    stream->options = *options;
    stream->options.mirror_path = stream->options.usage_path = NULL;
    stream->options.pins = stream->options.preload = NULL;
    stream->options.test = NULL;
    stream->plan = *plan;
    stream->backend = backend;
    if (options->test != NULL) stream->test = *options->test;
    stream->allocations.fail_at = stream->test.fail_allocation;
    const glm52_status status = open_parts(stream, options, chunk_rows);
    if (status != GLM52_OK) {
        glm52_stream_close(stream);
        return status;
    }
    *stream_out = stream;
    return GLM52_OK;
}

void glm52_stream_close(struct glm52_stream *stream) {
    if (stream == NULL) return;
    if (stream->io != NULL) glm52_io_drain(stream->io);
    glm52_io_close(stream->io);
    if (stream->usage.counts != NULL && stream->usage.changed) {
        glm52_usage_write(&stream->usage, stream->usage_path);   /* nobody is left to hear of a failure */
    }
    if (stream->test.guard) guard(stream, PROT_READ);
    glm52_cache_close(stream->cache);
    glm52_slots_free(&stream->slots);
    glm52_gguf_close(stream->mirror);
    free(stream->usage.counts);
    free(stream->gone);
    free(stream->segment_experts);
    free(stream->segment_slots);
    free(stream->states);
    free(stream->loads);
    free(stream->table);
    free(stream->ids);
    free(stream->layer_stats);
    free(stream->before.layer_stats);
    free(stream);
}
