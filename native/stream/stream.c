/* stream.c - the experts of an engine that do not fit: joins the books (cache.c), the memory (slots.c) and the threads
 * that read (io_pool.c). All decisions are made here or in cache.c, on the caller's thread, in the order of the
 * routes; threads only fill memory. */
#include "stream.h"

#include <string.h>

#include "error.h"

/* A wide batch takes its experts to the operation so many at a time, since each call encodes the batch's rows anew; a
 * narrow one takes whatever has come in. */
#define STEP_EXPERTS 16u

/* Half of the experts, the same ones each time, spread evenly: the finaliser of splitmix64. */
static bool is_mirrored(const struct glm52_stream *stream, uint32_t layer, uint32_t expert) {
    if (stream->mirror == NULL) return false;
    uint64_t x = (uint64_t)layer * stream->shape->experts + expert + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return ((x ^ (x >> 31)) & 1) != 0;
}

static void make_request(const struct glm52_stream *stream, uint32_t layer, uint32_t expert, uint8_t *out,
                         struct glm52_io_request *request) {
    *request = (struct glm52_io_request){.layer = layer, .expert = expert,
                                         .mirror = is_mirrored(stream, layer, expert)};
    for (uint32_t i = 0; i < GLM52_SLICES; i++) {
        const struct glm52_matrix *matrix = glm52_routed_matrix(stream->model, layer, i);
        request->slices[i] = (struct glm52_io_slice){
            .file = matrix->tensor->shard, .offset = matrix->tensor->offset + expert * matrix->group_bytes,
            .bytes = matrix->slice_bytes, .tensor = matrix->tensor->name};
        request->out[i] = out;
        if (out == NULL) continue;
        out += (matrix->slice_bytes + GLM52_SLICE_ALIGNMENT - 1) / GLM52_SLICE_ALIGNMENT * GLM52_SLICE_ALIGNMENT;
    }
}

static void submit(struct glm52_stream *stream, const glm52_load *load, bool policy) {
    struct glm52_io_request request;
    make_request(stream, load->layer, load->expert, stream->slots.address[load->slot], &request);
    request.policy = policy;
    if (stream->test.poison) {
        for (uint32_t i = 0; i < GLM52_SLICES; i++) memset(request.out[i], 0xff, request.slices[i].bytes);
    }
    stream->states[load->slot] = (struct glm52_slot_state){.generation = load->generation, .reading = true,
                                                              .unpublished = true};
    glm52_io_submit(stream->io, load->slot, &request);
    if (policy) return;
    glm52_stream_layer_stats *layer = &stream->layer_stats[load->layer];
    layer->misses++;
    for (uint32_t i = 0; i < GLM52_SLICES; i++) layer->read_bytes += request.slices[i].bytes;
}

glm52_status glm52_stream_preload(struct glm52_stream *stream, const glm52_load *loads, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) submit(stream, &loads[i], true);
    for (uint32_t i = 0; i < count; i++) {
        GLM52_TRY(glm52_io_wait(stream->io, loads[i].slot));
        stream->states[loads[i].slot].reading = false;
        GLM52_TRY(glm52_cache_loaded(stream->cache, loads[i].slot, loads[i].generation));
    }
    return GLM52_OK;
}

/* Waits for a slot that is being read and books it. */
static glm52_status receive(struct glm52_stream *stream, uint32_t slot) {
    struct glm52_slot_state *state = &stream->states[slot];
    if (!state->reading) return GLM52_OK;
    const uint64_t start = glm52_now_ns();
    const glm52_status status = glm52_io_wait(stream->io, slot);
    stream->wait_ns += glm52_now_ns() - start;
    GLM52_TRY(status);
    state->reading = false;
    stream->loads_done++;
    return glm52_cache_loaded(stream->cache, slot, state->generation);
}

static glm52_status load_all(struct glm52_stream *stream, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) submit(stream, &stream->loads[i], false);
    const uint32_t *experts = NULL, *slots = NULL;
    stream->step_begin = stream->step_end = 0;
    GLM52_TRY(glm52_cache_segment(stream->cache, &experts, &slots, &stream->segment_count));
    memcpy(stream->segment_experts, experts, stream->segment_count * sizeof(*experts));
    memcpy(stream->segment_slots, slots, stream->segment_count * sizeof(*slots));
    return GLM52_OK;
}

/* Waits for what was loaded ahead for layers up to layer and books it. Those that were selected are in by then, or are
 * waited for by who wants them. That one could not be read is counted and no more: nobody asked for it. */
static glm52_status settle_ahead(struct glm52_stream *stream, uint32_t layer) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stream->ahead_count; i++) {
        const glm52_load load = stream->ahead[i];
        struct glm52_slot_state *state = &stream->states[load.slot];
        if (load.layer > layer) {
            stream->ahead[kept++] = load;
            continue;
        }
        if (!state->reading || state->generation != load.generation) continue;
        const glm52_status status = glm52_io_wait(stream->io, load.slot);
        state->reading = false;
        if (status == GLM52_OK) {
            stream->loads_done++;
            GLM52_TRY(glm52_cache_loaded(stream->cache, load.slot, load.generation));
        } else {
            stream->ahead_errors++;
            GLM52_TRY(glm52_cache_dropped(stream->cache, load.slot, load.generation));
        }
    }
    stream->ahead_count = kept;
    return GLM52_OK;
}

/* A selection counts on every slot of its class that is not pinned, unless it is so small that it needs not. */
static glm52_status settle_if_short(struct glm52_stream *stream, uint32_t layer, uint32_t rows) {
    if (stream->ahead_count == 0) return GLM52_OK;
    const uint64_t routes = (uint64_t)rows * stream->shape->experts_used;
    const uint64_t most = routes < stream->shape->experts ? routes : stream->shape->experts;
    const struct glm52_cache_class *class = &stream->cache->classes[stream->cache->class_of[layer]];
    return most + stream->ahead_count <= class->dynamic ? GLM52_OK : settle_ahead(stream, layer);
}

/* The layer's own part of the cache's counters. */
static void count_layer(struct glm52_stream *stream, const glm52_cache_stats *before) {
    glm52_cache_stats now;
    glm52_cache_stats_get(stream->cache, &now);
    glm52_stream_layer_stats *layer = &stream->layer_stats[stream->layer];
    layer->hits += now.hits - before->hits;
}

glm52_status glm52_stream_begin(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows) {
    const uint32_t count = rows * stream->shape->experts_used;
    uint32_t load_count = 0;
    glm52_cache_stats before;
    glm52_cache_stats_get(stream->cache, &before);
    stream->layer = layer;
    stream->rows = rows;
    stream->wait_ns = 0;
    GLM52_TRY(settle_if_short(stream, layer, rows));
    GLM52_TRY(glm52_cache_begin(stream->cache, layer, ids, count, stream->loads, &load_count));
    glm52_usage_add(&stream->usage, layer, ids, count);
    count_layer(stream, &before);
    return load_all(stream, load_count);
}

static bool is_at_hand(const struct glm52_stream *stream, uint32_t slot) {
    return !stream->states[slot].reading || glm52_io_is_done(stream->io, slot);
}

static void exchange(struct glm52_stream *stream, uint32_t a, uint32_t b) {
    const uint32_t expert = stream->segment_experts[a], slot = stream->segment_slots[a];
    stream->segment_experts[a] = stream->segment_experts[b];
    stream->segment_slots[a] = stream->segment_slots[b];
    stream->segment_experts[b] = expert;
    stream->segment_slots[b] = slot;
}

static void clear_step(struct glm52_stream *stream) {
    for (uint32_t i = stream->step_begin; i < stream->step_end; i++) {
        stream->table[stream->segment_experts[i]] = (glm52_expert){0};
    }
}

static void finish_selection(struct glm52_stream *stream) {
    glm52_histogram_add(&stream->wait, stream->wait_ns);
    stream->layer_stats[stream->layer].wait_ns += stream->wait_ns;
    stream->segment_count = 0;
}

static void show(struct glm52_stream *stream, uint32_t at) {
    const uint32_t slot = stream->segment_slots[at];
    const uint8_t *place = stream->slots.address[slot], *const first = place;
    const void *slices[GLM52_SLICES];
    for (uint32_t i = 0; i < GLM52_SLICES; i++) {
        slices[i] = place;
        const uint64_t bytes = glm52_routed_matrix(stream->model, stream->layer, i)->slice_bytes;
        place += (bytes + GLM52_SLICE_ALIGNMENT - 1) / GLM52_SLICE_ALIGNMENT * GLM52_SLICE_ALIGNMENT;
    }
    if (stream->states[slot].unpublished) {
        stream->backend->ops->publish(stream->backend, first, (size_t)(place - first));
        stream->states[slot].unpublished = false;
    }
    stream->table[stream->segment_experts[at]] =
        (glm52_expert){.gate = slices[0], .up = slices[1], .down = slices[2]};
}

/* The next experts in order: as many as have come in, of a wide batch always the same. */
static glm52_status take_in_order(struct glm52_stream *stream) {
    const bool is_wide = stream->rows > GLM52_STREAM_NARROW_ROWS;
    for (uint32_t i = stream->step_begin; i < stream->segment_count; i++) {
        const uint32_t slot = stream->segment_slots[i];
        const bool must_wait = is_wide || i == stream->step_begin;
        if (is_wide && i == stream->step_begin + STEP_EXPERTS) break;
        if (!must_wait && !is_at_hand(stream, slot)) break;
        GLM52_TRY(receive(stream, slot));
        show(stream, i);
        stream->step_end = i + 1;
    }
    return GLM52_OK;
}

/* All that have come in, whatever their order; if none, the first that does. Those taken change places with the
 * segment's first that are not. */
static glm52_status take_any(struct glm52_stream *stream) {
    for (uint32_t pass = 0; pass < 2 && stream->step_end == stream->step_begin; pass++) {
        for (uint32_t i = stream->step_end; i < stream->segment_count; i++) {
            const bool must_wait = pass == 1 && stream->step_end == stream->step_begin;
            if (!must_wait && !is_at_hand(stream, stream->segment_slots[i])) continue;
            GLM52_TRY(receive(stream, stream->segment_slots[i]));
            show(stream, i);
            exchange(stream, i, stream->step_end++);
        }
    }
    return GLM52_OK;
}

glm52_status glm52_stream_next(struct glm52_stream *stream, const glm52_expert **table_out) {
    clear_step(stream);
    stream->step_begin = stream->step_end;
    if (stream->step_begin == stream->segment_count) {
        uint32_t load_count = 0;
        glm52_cache_stats before;
        glm52_cache_stats_get(stream->cache, &before);
        GLM52_TRY(glm52_cache_advance(stream->cache, stream->loads, &load_count));
        count_layer(stream, &before);
        GLM52_TRY(load_all(stream, load_count));
        if (stream->segment_count == 0) {
            GLM52_TRY(settle_ahead(stream, stream->layer));
            finish_selection(stream);
            *table_out = NULL;
            return GLM52_OK;
        }
    }
    if (stream->rows == 1) GLM52_TRY(take_any(stream));
    else GLM52_TRY(take_in_order(stream));
    *table_out = stream->table;
    return GLM52_OK;
}

/* ---- calls ---- */

void glm52_stream_mark(struct glm52_stream *stream) {
    glm52_cache_stats_get(stream->cache, &stream->before.cache);
    glm52_io_stats_get(stream->io, &stream->before.io);
    stream->before.wait = stream->wait;
    stream->before.loads_done = stream->loads_done;
    memcpy(stream->before.layer_stats, stream->layer_stats,
           stream->layers * sizeof(*stream->layer_stats));
}

void glm52_stream_cancel(struct glm52_stream *stream) {
    glm52_io_drain(stream->io);
    for (uint32_t i = 0; i < stream->slots.slot_count; i++) stream->states[i].reading = false;
    memset(stream->table, 0, stream->shape->experts * sizeof(*stream->table));
    stream->segment_count = stream->step_begin = stream->step_end = stream->ahead_count = 0;
    glm52_cache_abort(stream->cache);
    glm52_pilot_abandon(&stream->pilot);
}

void glm52_stream_fail(struct glm52_stream *stream) {
    glm52_stream_cancel(stream);
    glm52_cache_counters_restore(stream->cache, &stream->before.cache);
    glm52_io_counters_restore(stream->io, &stream->before.io);
    stream->wait = stream->before.wait;
    stream->loads_done = stream->before.loads_done;
    memcpy(stream->layer_stats, stream->before.layer_stats,
           stream->layers * sizeof(*stream->layer_stats));
}

void glm52_stream_tick(struct glm52_stream *stream, uint32_t rows) {
    glm52_cache_tick(stream->cache, rows);
}

void glm52_stream_turn(struct glm52_stream *stream) {
    glm52_cache_turn(stream->cache, stream->options.live_repin != 0);
    if (glm52_stream_flush(stream) != GLM52_OK) {
        glm52_stream_warn(stream, "%s", glm52_error_message());
        stream->usage.changed = false;   /* said once, not at every turn */
    }
}

/* How far each class comes down: the same share of what one slot beside its pins leaves it. */
static void share_shrinking(const struct glm52_stream *stream, uint64_t least, uint64_t cache_bytes,
                            uint32_t *targets) {
    const uint64_t above = stream->plan.cache_bytes - least, kept = cache_bytes - least;
    for (uint32_t c = 0; c < stream->plan.class_count; c++) {
        const struct glm52_cache_class *class = &stream->cache->classes[c];
        const uint64_t movable = class->dynamic - 1;
        /* Rounded down, so that the sum stays below; both are far below 2^32 slots of 2^32 bytes. */
        const uint64_t stays = above == 0 ? 0 : (uint64_t)((double)movable * ((double)kept / (double)above));
        targets[c] = class->slots - (uint32_t)(movable - (stays < movable ? stays : movable));
    }
}

glm52_status glm52_stream_shrink(struct glm52_stream *stream, uint64_t cache_bytes, uint64_t *now_out) {
    glm52_stream_plan *plan = &stream->plan;
    *now_out = plan->cache_bytes;
    if (cache_bytes >= plan->cache_bytes) return GLM52_OK;
    uint64_t least = 0;
    for (uint32_t c = 0; c < plan->class_count; c++) {
        const struct glm52_cache_class *class = &stream->cache->classes[c];
        least += (class->slots - class->dynamic + 1) * plan->classes[c].slot_bytes;
    }
    if (cache_bytes < least) {
        return glm52_fail(GLM52_ERR_BUDGET, "the expert cache of %llu bytes can't come down to %llu: pins and one slot "
                          "of each of %u sizes need %llu", (unsigned long long)plan->cache_bytes,
                          (unsigned long long)cache_bytes, plan->class_count, (unsigned long long)least);
    }
    uint32_t targets[GLM52_SIZE_CLASSES_MAX];
    share_shrinking(stream, least, cache_bytes, targets);
    for (uint32_t c = 0; c < plan->class_count; c++) {
        uint32_t count = 0;
        GLM52_TRY(glm52_cache_shrink(stream->cache, c, targets[c], stream->gone, &count));
        for (uint32_t i = 0; i < count; i++) {
            glm52_slots_return(&stream->slots, stream->gone[i], plan->classes[c].slot_bytes);
        }
        plan->classes[c].slots -= count;
        plan->slots -= count;
        plan->cache_bytes -= count * plan->classes[c].slot_bytes;
    }
    *now_out = plan->cache_bytes;
    return GLM52_OK;
}

glm52_status glm52_stream_flush(struct glm52_stream *stream) {
    if (stream->usage.counts == NULL || !stream->usage.changed) return GLM52_OK;
    return glm52_usage_write(&stream->usage, stream->usage_path);
}

void glm52_stream_hint(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows) {
    const uint32_t used = stream->shape->experts_used;
    const uint32_t k = stream->options.pilot_k == 0 ? used : stream->options.pilot_k;
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t i = 0; i < k; i++) {
            const uint32_t expert = (uint32_t)ids[r * used + i];
            stream->pilot.hint_candidates++;
            if (glm52_cache_find(stream->cache, layer, expert) >= 0) {
                stream->pilot.hint_resident_skipped++;
                continue;
            }
            struct glm52_io_request request;
            make_request(stream, layer, expert, NULL, &request);
            glm52_io_hint(stream->io, &request);
        }
    }
}

glm52_status glm52_stream_load_ahead(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows) {
    const uint32_t used = stream->shape->experts_used;
    const uint32_t wanted = stream->options.pilot_k == 0 ? GLM52_AHEAD_DEFAULT : stream->options.pilot_k;
    const uint32_t most = wanted < GLM52_AHEAD_MAX ? wanted : GLM52_AHEAD_MAX;
    uint32_t count = 0;
    /* The best of each row, then the second best. */
    for (uint32_t n = 0; n < rows * used && count < most; n++) {
        const int32_t expert = ids[n % rows * used + n / rows];
        bool is_given = false;
        glm52_load load;
        GLM52_TRY(glm52_cache_ahead(stream->cache, (glm52_expert_id){layer, (uint32_t)expert}, &is_given, &load));
        if (!is_given) continue;
        submit(stream, &load, true);
        stream->ahead[stream->ahead_count++] = load;
        count++;
    }
    return GLM52_OK;
}

void glm52_stream_stats_get(struct glm52_stream *stream, glm52_stream_stats *out) {
    glm52_cache_stats cache;
    struct glm52_io_stats io;
    glm52_cache_stats_get(stream->cache, &cache);
    glm52_io_stats_get(stream->io, &io);
    const struct glm52_pilot_state *pilot = &stream->pilot;
    *out = (glm52_stream_stats){
        .slots = cache.slots, .slot_bytes = stream->plan.cache_bytes + stream->plan.full_bytes,
        .classes = stream->plan.class_count, .resident = cache.resident, .pinned = cache.pinned,
        .wired_bytes = stream->slots.wired_bytes,
        .hits = cache.hits, .misses = cache.misses, .evictions = cache.evictions, .routes = cache.routes,
        .segments = cache.segments, .stolen = cache.stolen, .loads = stream->loads_done,
        .read_ops = io.read_ops, .read_bytes = io.read_bytes, .direct_ops = io.direct_ops,
        .short_reads = io.short_reads, .interrupted = io.interrupted, .errors = io.errors,
        .mirror_ops = io.mirror_ops, .mirror_fallbacks = io.mirror_fallbacks,
        .willneed_bytes = io.willneed_bytes, .dontneed_bytes = io.dontneed_bytes,
        .service = glm52_histogram_read(&io.service), .wait = glm52_histogram_read(&stream->wait),
        .preloaded = cache.preloaded, .policy_ops = io.policy_ops, .policy_bytes = io.policy_bytes,
        .repins = cache.repins, .ledger_selections = stream->usage.selections,
        .pilot_predictions = pilot->predictions, .pilot_predicted = pilot->predicted,
        .pilot_correct = pilot->correct, .pilot_wanted = pilot->wanted, .pilot_exact_rows = pilot->exact_rows,
        .pilot_rank_hits = pilot->rank_hits, .pilot_skipped_wide = pilot->skipped_wide,
        .pilot_abandoned = pilot->abandoned, .pilot_cost = glm52_histogram_read(&pilot->cost),
        .pilot_lead = glm52_histogram_read(&pilot->lead),
        .hint_candidates = pilot->hint_candidates, .hint_resident_skipped = pilot->hint_resident_skipped,
        .hint_submitted = io.hint_submitted, .hint_completed = io.hint_completed, .hint_dropped = io.hint_dropped,
        .hint_errors = io.hint_errors, .hint_bytes = io.hint_bytes, .hint_queue_max = io.hint_queue_max,
        .ahead = cache.ahead, .ahead_used = cache.ahead_used, .ahead_errors = stream->ahead_errors,
    };
}
