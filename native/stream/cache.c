/* cache.c - which expert is in which slot. Bookkeeping alone: no memory for experts, no files, no threads, no clock,
 * so that the same selections give the same hits, victims and counters whatever the disk does.
 *
 * Slots of a class are numbered one after another. A slot is
 *
 *     free -> loading -> leased -> idle -> (victim) loading ...
 *
 * and only idle ones that are not pinned lie in their class's heap, from which victims are taken. An expert that is
 * selected, being loaded or in use is not in a heap, so it can't be chosen. A selection too large for the slots is
 * taken in segments; experts of later segments that are at hand are held out of the heap too, and given up (the last
 * ones first) only if nothing else is left. */
#include <stdlib.h>
#include <string.h>

#include "cache.h"
#include "error.h"

static const struct glm52_policy *const policies[GLM52_POLICY_COUNT] = {
    [GLM52_POLICY_LRU] = &glm52_policy_lru,
    [GLM52_POLICY_HOTNESS] = &glm52_policy_hotness,
    [GLM52_POLICY_LFRU] = &glm52_policy_lfru,
};

const char *glm52_policy_name(uint32_t policy) {
    return policy < GLM52_POLICY_COUNT ? policies[policy]->name : NULL;
}

/* ---- opening ---- */

static glm52_status check_args(const glm52_cache_args *args) {
    if (args->class_of == NULL || args->slots == NULL || args->layers == 0 || args->layers > GLM52_LAYERS_MAX ||
        args->experts == 0 || args->experts > 65536 || args->class_count == 0 ||
        args->class_count > GLM52_CACHE_CLASSES_MAX || (args->pins == NULL && args->pin_count > 0)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache: %u layers of %u experts in %u classes", args->layers,
                          args->experts, args->class_count);
    }
    if (args->policy >= GLM52_POLICY_COUNT) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache: policy %u; there are %d", args->policy, GLM52_POLICY_COUNT);
    }
    uint64_t slots = 0;
    for (uint32_t c = 0; c < args->class_count; c++) slots += args->slots[c];
    if (slots == 0 || slots > INT32_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache: %llu slots", (unsigned long long)slots);
    }
    for (uint32_t i = 0; i < args->layers; i++) {
        const uint8_t c = args->class_of[i];
        if (c == GLM52_CACHE_NO_CLASS) continue;
        if (c >= args->class_count || args->slots[c] == 0) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "cache: layer %u has class %u, which has no slots", i, c);
        }
    }
    return GLM52_OK;
}

static glm52_status allocate(glm52_cache *cache, const glm52_cache_args *args) {
    const size_t entries = (size_t)args->layers * args->experts;
    cache->class_of = malloc(args->layers);
    cache->entries = calloc(entries, sizeof(*cache->entries));
    cache->slots = calloc(cache->slot_count, sizeof(*cache->slots));
    cache->heap = calloc(cache->slot_count, sizeof(*cache->heap));
    cache->free_slots = calloc(cache->slot_count, sizeof(*cache->free_slots));
    cache->items = calloc(args->experts, sizeof(*cache->items));
    cache->segment_experts = calloc(args->experts, sizeof(uint32_t));
    cache->segment_slots = calloc(args->experts, sizeof(uint32_t));
    cache->routes = calloc(args->experts, sizeof(uint32_t));
    if (cache->class_of == NULL || cache->entries == NULL || cache->slots == NULL || cache->heap == NULL ||
        cache->free_slots == NULL || cache->items == NULL || cache->segment_experts == NULL ||
        cache->segment_slots == NULL || cache->routes == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "no memory for the books of %u slots", cache->slot_count);
    }
    memcpy(cache->class_of, args->class_of, args->layers);
    for (size_t i = 0; i < entries; i++) cache->entries[i].slot = NO_SLOT;
    return GLM52_OK;
}

/* Each class has its slots in one run; its free list gives out the lowest first. */
static void lay_slots(glm52_cache *cache, const glm52_cache_args *args) {
    uint32_t at = 0;
    for (uint32_t c = 0; c < args->class_count; c++) {
        struct glm52_cache_class *class = &cache->classes[c];
        *class = (struct glm52_cache_class){.first = at, .slots = args->slots[c], .dynamic = args->slots[c]};
        for (uint32_t i = 0; i < class->slots; i++) {
            cache->slots[at + i].class = (uint8_t)c;
            cache->free_slots[at + i] = at + class->slots - 1 - i;
        }
        class->free_count = class->slots;
        at += class->slots;
    }
}

static uint32_t pop_free(glm52_cache *cache, struct glm52_cache_class *class) {
    return cache->free_slots[class->first + --class->free_count];
}

static struct glm52_cache_entry *entry_at(const glm52_cache *cache, uint32_t layer, uint32_t expert) {
    return &cache->entries[(size_t)layer * cache->experts + expert];
}

static glm52_status check_id(const glm52_cache *cache, glm52_expert_id id, const char *what) {
    if (id.layer >= cache->layers || id.expert >= cache->experts ||
        cache->class_of[id.layer] == GLM52_CACHE_NO_CLASS) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%s expert %u of layer %u: there is none (%u layers, %u experts)", what,
                          id.expert, id.layer, cache->layers, cache->experts);
    }
    return GLM52_OK;
}

/* A pinned expert owns a slot from the start and is read when it is first wanted. */
static glm52_status pin(glm52_cache *cache, glm52_expert_id id) {
    GLM52_TRY(check_id(cache, id, "pinned"));
    struct glm52_cache_class *class = &cache->classes[cache->class_of[id.layer]];
    struct glm52_cache_entry *entry = entry_at(cache, id.layer, id.expert);
    if (entry->slot != NO_SLOT) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "expert %u of layer %u is pinned twice", id.expert, id.layer);
    }
    if (class->dynamic == 1) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "expert %u of layer %u can't be pinned: of %u slots of its size one "
                          "must stay free", id.expert, id.layer, class->slots);
    }
    class->dynamic--;
    const uint32_t slot = pop_free(cache, class);
    cache->slots[slot] = (struct glm52_cache_slot){.layer = id.layer, .expert = id.expert, .phase = PHASE_EMPTY,
                                                   .pinned = true, .class = cache->class_of[id.layer]};
    entry->slot = (int32_t)slot;
    cache->stats.pinned++;
    return GLM52_OK;
}

glm52_status glm52_cache_open(const glm52_cache_args *args, glm52_cache **cache_out) {
    if (args == NULL || cache_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "cache_open: NULL pointer");
    GLM52_TRY(check_args(args));
    glm52_cache *cache = calloc(1, sizeof(*cache));
    if (cache == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a cache");
    cache->layers = args->layers;
    cache->experts = args->experts;
    cache->class_count = args->class_count;
    cache->policy = policies[args->policy];
    for (uint32_t c = 0; c < args->class_count; c++) cache->slot_count += args->slots[c];
    cache->stats.slots = cache->slot_count;
    glm52_status status = allocate(cache, args);
    if (status == GLM52_OK) lay_slots(cache, args);
    for (uint32_t i = 0; i < args->pin_count && status == GLM52_OK; i++) status = pin(cache, args->pins[i]);
    if (status != GLM52_OK) {
        glm52_cache_close(cache);
        return status;
    }
    *cache_out = cache;
    return GLM52_OK;
}

void glm52_cache_close(glm52_cache *cache) {
    if (cache == NULL) return;
    free(cache->class_of);
    free(cache->entries);
    free(cache->slots);
    free(cache->heap);
    free(cache->free_slots);
    free(cache->items);
    free(cache->segment_experts);
    free(cache->segment_slots);
    free(cache->routes);
    free(cache);
}

/* ---- the heap of a class: who goes first is on top ---- */

static struct glm52_heat *heat_of(const glm52_cache *cache, uint32_t slot) {
    return &entry_at(cache, cache->slots[slot].layer, cache->slots[slot].expert)->heat;
}

static bool goes_before(const glm52_cache *cache, uint32_t a, uint32_t b) {
    const struct glm52_cache_slot *x = &cache->slots[a], *y = &cache->slots[b];
    if (x->rank != y->rank) return x->rank < y->rank;
    return heat_of(cache, a)->use < heat_of(cache, b)->use;   /* no two uses have one number, except none at all */
}

static void put(glm52_cache *cache, const struct glm52_cache_class *class, uint32_t at, uint32_t slot) {
    cache->heap[class->first + at] = slot;
    cache->slots[slot].heap_at = at;
}

static void sift(glm52_cache *cache, const struct glm52_cache_class *class, uint32_t at) {
    uint32_t *heap = cache->heap + class->first;
    const uint32_t slot = heap[at];
    for (; at > 0 && goes_before(cache, slot, heap[(at - 1) / 2]); at = (at - 1) / 2) {
        put(cache, class, at, heap[(at - 1) / 2]);
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= class->heap_count) break;
        if (child + 1 < class->heap_count && goes_before(cache, heap[child + 1], heap[child])) child++;
        if (!goes_before(cache, heap[child], slot)) break;
        put(cache, class, at, heap[child]);
        at = child;
    }
    put(cache, class, at, slot);
}

static void heap_add(glm52_cache *cache, uint32_t slot) {
    struct glm52_cache_class *class = &cache->classes[cache->slots[slot].class];
    cache->slots[slot].rank = cache->policy->rank(&cache->clock, heat_of(cache, slot));
    put(cache, class, class->heap_count++, slot);
    sift(cache, class, class->heap_count - 1);
}

static void heap_remove(glm52_cache *cache, uint32_t slot) {
    struct glm52_cache_class *class = &cache->classes[cache->slots[slot].class];
    const uint32_t at = cache->slots[slot].heap_at;
    const uint32_t last = cache->heap[class->first + --class->heap_count];
    if (last == slot) return;
    put(cache, class, at, last);
    sift(cache, class, at);
}

/* Ranks everything that could go anew. */
static void rerank(glm52_cache *cache) {
    for (uint32_t c = 0; c < cache->class_count; c++) {
        const struct glm52_cache_class *class = &cache->classes[c];
        for (uint32_t i = 0; i < class->heap_count; i++) {
            const uint32_t slot = cache->heap[class->first + i];
            cache->slots[slot].rank = cache->policy->rank(&cache->clock, heat_of(cache, slot));
        }
        for (uint32_t i = class->heap_count / 2; i-- > 0;) sift(cache, class, i);
    }
}

static void halve(glm52_cache *cache, uint32_t times) {
    if (times == 0) return;
    const size_t entries = (size_t)cache->layers * cache->experts;
    for (size_t i = 0; i < entries; i++) cache->entries[i].heat.heat >>= times;
}

/* ---- slots changing hands ---- */

static void touch(glm52_cache *cache, struct glm52_cache_entry *entry, uint32_t routes) {
    entry->heat.use = ++cache->clock.use;
    entry->heat.tick = cache->clock.tick;
    const uint64_t sum = (uint64_t)entry->heat.heat + routes;
    entry->heat.heat = sum > UINT32_MAX ? UINT32_MAX : (uint32_t)sum;
}

/* Takes a slot's expert out. */
static void empty_slot(glm52_cache *cache, uint32_t slot) {
    struct glm52_cache_slot *s = &cache->slots[slot];
    entry_at(cache, s->layer, s->expert)->slot = NO_SLOT;
    s->phase = PHASE_FREE;
    s->generation++;
}

/* The last expert of the selection that is held for a later segment: given up only when all else is taken. */
static uint32_t steal(glm52_cache *cache) {
    for (uint32_t i = cache->item_count; i-- > cache->reserved;) {
        struct glm52_cache_item *item = &cache->items[i];
        if (!item->held) continue;
        item->held = false;
        cache->stats.stolen++;
        return (uint32_t)entry_at(cache, cache->layer, item->expert)->slot;
    }
    return UINT32_MAX;   /* segments are cut so that this is not reached */
}

static uint32_t take_slot(glm52_cache *cache, struct glm52_cache_class *class) {
    if (class->free_count > 0) return pop_free(cache, class);
    uint32_t slot;
    if (class->heap_count > 0) {
        slot = cache->heap[class->first];
        heap_remove(cache, slot);
    } else {
        slot = steal(cache);
        if (slot == UINT32_MAX) return slot;
    }
    empty_slot(cache, slot);
    cache->stats.evictions++;
    cache->stats.resident--;
    return slot;
}

/* A slot that was being read is nobody's. */
static void give_up(glm52_cache *cache, uint32_t slot) {
    struct glm52_cache_class *class = &cache->classes[cache->slots[slot].class];
    empty_slot(cache, slot);
    cache->free_slots[class->first + class->free_count++] = slot;
}

static glm52_load start_load(glm52_cache *cache, uint32_t layer, uint32_t expert, uint32_t slot) {
    struct glm52_cache_slot *s = &cache->slots[slot];
    s->layer = layer;
    s->expert = expert;
    s->phase = PHASE_LOADING;
    s->ahead = false;
    s->generation++;
    entry_at(cache, layer, expert)->slot = (int32_t)slot;
    return (glm52_load){.layer = layer, .expert = expert, .slot = slot, .generation = s->generation};
}

/* ---- selections ---- */

/* Leases what is there of items first .. end - 1, then gives slots to what is not: hits come first, so that no miss
 * takes the slot of an expert of its own segment. */
static glm52_status reserve(glm52_cache *cache, uint32_t end, glm52_load *loads, uint32_t *load_count) {
    const uint32_t first = cache->reserved;
    cache->reserved = end;
    for (uint32_t i = first; i < end; i++) {
        struct glm52_cache_item *item = &cache->items[i];
        struct glm52_cache_entry *entry = entry_at(cache, cache->layer, item->expert);
        item->miss = entry->slot == NO_SLOT || cache->slots[entry->slot].phase == PHASE_EMPTY;
        if (item->miss) continue;
        struct glm52_cache_slot *slot = &cache->slots[entry->slot];
        if (slot->phase == PHASE_IDLE && !slot->pinned && !item->held) heap_remove(cache, (uint32_t)entry->slot);
        item->held = false;
        cache->stats.ahead_used += slot->ahead;
        slot->ahead = false;
        /* One that is being preloaded or loaded ahead stays loading and is waited for like a miss, but it is there. */
        if (slot->phase == PHASE_IDLE) slot->phase = PHASE_LEASED;
        cache->stats.hits++;
        touch(cache, entry, item->routes);
    }
    struct glm52_cache_class *class = &cache->classes[cache->class_of[cache->layer]];
    for (uint32_t i = first; i < end; i++) {
        struct glm52_cache_item *item = &cache->items[i];
        if (!item->miss) continue;
        struct glm52_cache_entry *entry = entry_at(cache, cache->layer, item->expert);
        const uint32_t slot = entry->slot != NO_SLOT ? (uint32_t)entry->slot : take_slot(cache, class);
        if (slot == UINT32_MAX) return glm52_fail(GLM52_ERR_ARGUMENT, "cache: no slot for expert %u", item->expert);
        loads[(*load_count)++] = start_load(cache, cache->layer, item->expert, slot);
        cache->stats.misses++;
        touch(cache, entry, item->routes);
    }
    return GLM52_OK;
}

static bool is_pinned(const glm52_cache *cache, uint32_t expert) {
    const int32_t slot = entry_at(cache, cache->layer, expert)->slot;
    return slot != NO_SLOT && cache->slots[slot].pinned;
}

/* Where the segment that begins at item first ends: after part experts that are not pinned. */
static uint32_t segment_end(const glm52_cache *cache, uint32_t first) {
    uint32_t taken = 0, i = first;
    for (; i < cache->item_count; i++) {
        if (is_pinned(cache, cache->items[i].expert)) continue;
        if (taken == cache->part) break;
        taken++;
    }
    return i;
}

/* The experts chosen, each once, ascending. */
static void unite(glm52_cache *cache, const int32_t *ids, uint32_t count) {
    memset(cache->routes, 0, cache->experts * sizeof(*cache->routes));
    for (uint32_t i = 0; i < count; i++) cache->routes[ids[i]]++;
    cache->item_count = 0;
    for (uint32_t e = 0; e < cache->experts; e++) {
        if (cache->routes[e] == 0) continue;
        cache->items[cache->item_count++] = (struct glm52_cache_item){.expert = e, .routes = cache->routes[e]};
    }
    cache->stats.routes += count;
}

/* Experts of later segments that are at hand leave the heap, so that they go last. */
static void hold_later(glm52_cache *cache) {
    for (uint32_t i = cache->reserved; i < cache->item_count; i++) {
        const int32_t slot = entry_at(cache, cache->layer, cache->items[i].expert)->slot;
        if (slot == NO_SLOT || cache->slots[slot].pinned || cache->slots[slot].phase != PHASE_IDLE) continue;
        heap_remove(cache, (uint32_t)slot);
        cache->items[i].held = true;
    }
}

/* Reserves up to the segment behind the one in use, if there are slots for two. */
static glm52_status look_ahead(glm52_cache *cache, glm52_load *loads, uint32_t *load_count) {
    if (cache->reserved == cache->first) {
        cache->end = segment_end(cache, cache->first);
        GLM52_TRY(reserve(cache, cache->end, loads, load_count));
    }
    if (cache->ahead && cache->reserved == cache->end && cache->end < cache->item_count) {
        GLM52_TRY(reserve(cache, segment_end(cache, cache->end), loads, load_count));
    }
    return GLM52_OK;
}

glm52_status glm52_cache_begin(glm52_cache *cache, uint32_t layer, const int32_t *ids, uint32_t count,
                               glm52_load *loads_out, uint32_t *load_count_out) {
    if (cache == NULL || ids == NULL || loads_out == NULL || load_count_out == NULL || count == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_begin: NULL pointer or nothing selected");
    }
    if (cache->item_count > 0) return glm52_fail(GLM52_ERR_ARGUMENT, "cache_begin: a selection is under way");
    GLM52_TRY(check_id(cache, (glm52_expert_id){layer, 0}, "selected"));
    for (uint32_t i = 0; i < count; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= cache->experts) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "layer %u: expert %d selected; there are %u", layer, ids[i],
                              cache->experts);
        }
    }
    cache->layer = layer;
    unite(cache, ids, count);
    uint32_t dynamic = 0;
    for (uint32_t i = 0; i < cache->item_count; i++) dynamic += !is_pinned(cache, cache->items[i].expert);
    const struct glm52_cache_class *class = &cache->classes[cache->class_of[layer]];
    cache->ahead = dynamic > class->dynamic && class->dynamic > 1;
    cache->part = dynamic <= class->dynamic ? dynamic : cache->ahead ? class->dynamic / 2 : 1;
    cache->first = cache->end = cache->reserved = 0;
    if (dynamic > class->dynamic) hold_later(cache);
    cache->stats.segments++;
    *load_count_out = 0;
    return look_ahead(cache, loads_out, load_count_out);
}

glm52_status glm52_cache_segment(const glm52_cache *cache, const uint32_t **experts_out, const uint32_t **slots_out,
                                 uint32_t *count_out) {
    if (cache == NULL || experts_out == NULL || slots_out == NULL || count_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_segment: NULL pointer");
    }
    const uint32_t count = cache->item_count == 0 ? 0 : cache->end - cache->first;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t expert = cache->items[cache->first + i].expert;
        cache->segment_experts[i] = expert;
        cache->segment_slots[i] = (uint32_t)entry_at(cache, cache->layer, expert)->slot;
    }
    *experts_out = cache->segment_experts;
    *slots_out = cache->segment_slots;
    *count_out = count;
    return GLM52_OK;
}

glm52_status glm52_cache_loaded(glm52_cache *cache, uint32_t slot, uint32_t generation) {
    if (cache == NULL || slot >= cache->slot_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_loaded: no slot %u", slot);
    }
    struct glm52_cache_slot *s = &cache->slots[slot];
    if (s->generation != generation || s->phase != PHASE_LOADING) {
        cache->stats.stale++;
        return GLM52_OK;
    }
    /* Wanted by the selection under way, or a preload that nobody has asked for yet. */
    bool wanted = false;
    if (cache->item_count > 0 && s->layer == cache->layer) {
        for (uint32_t i = cache->first; i < cache->reserved; i++) wanted |= cache->items[i].expert == s->expert;
    }
    s->phase = wanted ? PHASE_LEASED : PHASE_IDLE;
    cache->stats.resident++;
    if (!wanted && !s->pinned) heap_add(cache, slot);
    return GLM52_OK;
}

static void release(glm52_cache *cache, uint32_t expert) {
    const uint32_t slot = (uint32_t)entry_at(cache, cache->layer, expert)->slot;
    if (cache->slots[slot].phase != PHASE_LEASED) return;
    cache->slots[slot].phase = PHASE_IDLE;
    if (!cache->slots[slot].pinned) heap_add(cache, slot);
}

glm52_status glm52_cache_advance(glm52_cache *cache, glm52_load *loads_out, uint32_t *load_count_out) {
    if (cache == NULL || loads_out == NULL || load_count_out == NULL || cache->item_count == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_advance: NULL pointer or no selection under way");
    }
    for (uint32_t i = cache->first; i < cache->end; i++) {
        const int32_t slot = entry_at(cache, cache->layer, cache->items[i].expert)->slot;
        if (cache->slots[slot].phase != PHASE_LEASED) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "cache_advance: expert %u of layer %u is not loaded",
                              cache->items[i].expert, cache->layer);
        }
    }
    for (uint32_t i = cache->first; i < cache->end; i++) release(cache, cache->items[i].expert);
    *load_count_out = 0;
    cache->first = cache->end;
    if (cache->first == cache->item_count) {
        cache->item_count = cache->first = cache->end = cache->reserved = 0;
        return GLM52_OK;
    }
    cache->stats.segments++;
    cache->end = cache->reserved > cache->first ? cache->reserved : cache->first;
    return look_ahead(cache, loads_out, load_count_out);
}

void glm52_cache_abort(glm52_cache *cache) {
    if (cache == NULL) return;
    for (uint32_t slot = 0; slot < cache->slot_count; slot++) {
        struct glm52_cache_slot *s = &cache->slots[slot];
        if (s->phase != PHASE_LOADING) continue;
        if (s->pinned) {
            s->phase = PHASE_EMPTY;
            s->generation++;
            continue;
        }
        give_up(cache, slot);
    }
    for (uint32_t i = 0; i < cache->item_count; i++) {
        struct glm52_cache_item *item = &cache->items[i];
        const int32_t slot = entry_at(cache, cache->layer, item->expert)->slot;
        if (slot == NO_SLOT) continue;
        if (item->held) heap_add(cache, (uint32_t)slot);
        item->held = false;
        release(cache, item->expert);
    }
    cache->item_count = cache->first = cache->end = cache->reserved = 0;
}

/* ---- time ---- */

void glm52_cache_tick(glm52_cache *cache, uint32_t rows) {
    if (cache == NULL) return;
    bool changed = false;
    cache->clock.tick++;
    halve(cache, cache->policy->age(&cache->clock, rows, &changed));
    if (changed) rerank(cache);
}

/* The coldest pinned and the hottest other expert of a class, among those not yet exchanged this turn. */
struct exchange {
    uint64_t gain;
    uint32_t cold_slot, hot_layer, hot_expert;
};

static struct exchange best_exchange(const glm52_cache *cache, uint32_t class) {
    uint64_t cold = UINT64_MAX, hot = 0;
    struct exchange best = {0};
    bool has_cold = false, has_hot = false;
    for (uint32_t layer = 0; layer < cache->layers; layer++) {
        if (cache->class_of[layer] != class) continue;
        for (uint32_t e = 0; e < cache->experts; e++) {
            const struct glm52_cache_entry *entry = entry_at(cache, layer, e);
            const uint64_t score = glm52_lfru_score(&cache->clock, &entry->heat);
            if (entry->slot != NO_SLOT && cache->slots[entry->slot].pinned) {
                if (has_cold && score >= cold) continue;
                cold = score, best.cold_slot = (uint32_t)entry->slot, has_cold = true;
            } else if (entry->slot == NO_SLOT || cache->slots[entry->slot].phase == PHASE_IDLE) {
                if (has_hot && score <= hot) continue;
                hot = score, best.hot_layer = layer, best.hot_expert = e, has_hot = true;
            }
        }
    }
    /* A quarter and four choices hotter, so that pins do not swing to and fro. */
    const uint64_t limit = cold + cold / 4 + 4 * (GLM52_LFRU_AGE_MAX + 1);
    if (has_cold && has_hot && hot > limit) best.gain = (hot - cold) / (GLM52_LFRU_AGE_MAX + 1);
    return best;
}

/* A hot expert that is at hand keeps its slot, which becomes the pinned one. One that is not takes over the slot of
 * the cold one, empty, and is read when it is next wanted. */
static void exchange(glm52_cache *cache, const struct exchange *e) {
    struct glm52_cache_entry *hot = entry_at(cache, e->hot_layer, e->hot_expert);
    struct glm52_cache_slot *cold = &cache->slots[e->cold_slot];
    cache->stats.repins++;
    if (hot->slot != NO_SLOT) {
        struct glm52_cache_class *class = &cache->classes[cold->class];
        heap_remove(cache, (uint32_t)hot->slot);
        cache->slots[hot->slot].pinned = true;
        cold->pinned = false;
        if (cold->phase == PHASE_IDLE) {
            heap_add(cache, e->cold_slot);
        } else {
            empty_slot(cache, e->cold_slot);
            cache->free_slots[class->first + class->free_count++] = e->cold_slot;
        }
        return;
    }
    if (cold->phase == PHASE_IDLE) cache->stats.resident--;
    empty_slot(cache, e->cold_slot);
    cold->layer = e->hot_layer;
    cold->expert = e->hot_expert;
    cold->phase = PHASE_EMPTY;
    hot->slot = (int32_t)e->cold_slot;
}

void glm52_cache_turn(glm52_cache *cache, bool repin) {
    if (cache == NULL || cache->item_count > 0) return;
    for (uint32_t n = 0; repin && n < GLM52_REPIN_SWAPS_MAX; n++) {
        struct exchange best = {0};
        for (uint32_t c = 0; c < cache->class_count; c++) {
            const struct exchange found = best_exchange(cache, c);
            if (found.gain > best.gain) best = found;
        }
        if (best.gain == 0) break;
        exchange(cache, &best);
    }
    bool changed = false;
    halve(cache, cache->policy->turn(&cache->clock, &changed));
    if (changed) rerank(cache);
}

glm52_status glm52_cache_shrink(glm52_cache *cache, uint32_t class_index, uint32_t slots, uint32_t *gone_out,
                                uint32_t *gone_count_out) {
    if (cache == NULL || gone_out == NULL || gone_count_out == NULL || class_index >= cache->class_count ||
        cache->item_count > 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_shrink: NULL pointer, no class %u, or a selection is under way",
                          class_index);
    }
    struct glm52_cache_class *class = &cache->classes[class_index];
    *gone_count_out = 0;
    if (class->slots <= slots) return GLM52_OK;
    const uint32_t pinned = class->slots - class->dynamic, movable = class->free_count + class->heap_count;
    const uint32_t going = class->slots - slots;
    if (going >= class->dynamic || going > movable) {
        return glm52_fail(GLM52_ERR_BUDGET, "an expert cache of %u slots, %u of them pinned, can't come down to %u",
                          class->slots, pinned, slots);
    }
    for (uint32_t i = 0; i < going; i++) {
        const bool is_free = class->free_count > 0;
        const uint32_t slot = is_free ? pop_free(cache, class) : cache->heap[class->first];
        if (!is_free) {
            heap_remove(cache, slot);
            empty_slot(cache, slot);
            cache->stats.evictions++;
            cache->stats.resident--;
        }
        cache->slots[slot].phase = PHASE_DISABLED;
        gone_out[(*gone_count_out)++] = slot;
    }
    class->slots -= going;
    class->dynamic -= going;
    cache->stats.slots -= going;
    return GLM52_OK;
}

glm52_status glm52_cache_preload(glm52_cache *cache, glm52_expert_id id, uint32_t heat, bool *given_out,
                                 glm52_load *load_out) {
    if (cache == NULL || given_out == NULL || load_out == NULL || cache->item_count > 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_preload: NULL pointer or a selection is under way");
    }
    GLM52_TRY(check_id(cache, id, "preloaded"));
    struct glm52_cache_class *class = &cache->classes[cache->class_of[id.layer]];
    struct glm52_cache_entry *entry = entry_at(cache, id.layer, id.expert);
    const bool is_empty_pin = entry->slot != NO_SLOT && cache->slots[entry->slot].phase == PHASE_EMPTY;
    *given_out = is_empty_pin || (entry->slot == NO_SLOT && class->free_count > 0);
    if (!*given_out) return GLM52_OK;
    const uint32_t slot = is_empty_pin ? (uint32_t)entry->slot : pop_free(cache, class);
    *load_out = start_load(cache, id.layer, id.expert, slot);
    touch(cache, entry, heat);
    cache->stats.preloaded++;
    return GLM52_OK;
}

glm52_status glm52_cache_ahead(glm52_cache *cache, glm52_expert_id id, bool *given_out, glm52_load *load_out) {
    if (cache == NULL || given_out == NULL || load_out == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_ahead: NULL pointer");
    }
    GLM52_TRY(check_id(cache, id, "loaded ahead:"));
    struct glm52_cache_class *class = &cache->classes[cache->class_of[id.layer]];
    struct glm52_cache_entry *entry = entry_at(cache, id.layer, id.expert);
    const bool has_room = class->free_count > 0 || class->heap_count > 0;
    *given_out = entry->slot == NO_SLOT && has_room && cache->reserved == cache->item_count;
    if (!*given_out) return GLM52_OK;
    const uint32_t slot = take_slot(cache, class);
    *load_out = start_load(cache, id.layer, id.expert, slot);
    cache->slots[slot].ahead = true;
    touch(cache, entry, 0);
    cache->stats.ahead++;
    return GLM52_OK;
}

glm52_status glm52_cache_dropped(glm52_cache *cache, uint32_t slot, uint32_t generation) {
    if (cache == NULL || slot >= cache->slot_count) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cache_dropped: no slot %u", slot);
    }
    const struct glm52_cache_slot *s = &cache->slots[slot];
    if (s->generation == generation && s->phase == PHASE_LOADING && s->ahead) give_up(cache, slot);
    return GLM52_OK;
}

int64_t glm52_cache_find(const glm52_cache *cache, uint32_t layer, uint32_t expert) {
    if (cache == NULL || layer >= cache->layers || expert >= cache->experts) return -1;
    const int32_t slot = entry_at(cache, layer, expert)->slot;
    return slot == NO_SLOT || cache->slots[slot].phase == PHASE_EMPTY ? -1 : slot;
}

void glm52_cache_stats_get(const glm52_cache *cache, glm52_cache_stats *stats_out) {
    if (cache != NULL && stats_out != NULL) *stats_out = cache->stats;
}

uint64_t glm52_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots) {
    const uint64_t per_slot = sizeof(struct glm52_cache_slot) + 2 * sizeof(uint32_t);
    const uint64_t per_expert = sizeof(struct glm52_cache_item) + 3 * sizeof(uint32_t);
    return sizeof(struct glm52_cache) + (uint64_t)layers * experts * sizeof(struct glm52_cache_entry) + layers +
           slots * per_slot + experts * per_expert;
}

void glm52_cache_counters_restore(glm52_cache *cache, const glm52_cache_stats *before) {
    glm52_cache_stats *now = &cache->stats;
    now->hits = before->hits;
    now->misses = before->misses;
    now->evictions = before->evictions;
    now->routes = before->routes;
    now->segments = before->segments;
    now->stolen = before->stolen;
    now->ahead = before->ahead;
    now->ahead_used = before->ahead_used;
}
