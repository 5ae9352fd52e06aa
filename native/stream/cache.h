/* cache.h - the books of the expert cache, for cache.c and those who look into them. */
#ifndef GLM52_CACHE_H
#define GLM52_CACHE_H

#include "policy.h"

#define NO_SLOT (-1)
#define GLM52_CACHE_CLASSES_MAX 250

enum phase {
    PHASE_FREE = 0,   /* nobody's, on the free list */
    PHASE_EMPTY,      /* pinned, not read yet */
    PHASE_LOADING,    /* being read */
    PHASE_IDLE,       /* there */
    PHASE_LEASED,     /* there and in use */
    PHASE_DISABLED    /* out of use for good, its memory given back */
};

struct glm52_cache_slot {
    uint64_t rank;        /* while in the heap */
    uint32_t layer, expert;
    uint32_t generation;
    uint32_t heap_at;
    uint8_t phase, class;
    bool pinned;
    bool ahead;           /* no selection has asked for it yet */
};

struct glm52_cache_entry {
    struct glm52_heat heat;
    int32_t slot;         /* NO_SLOT: in none */
};

/* slots of those from first on (all, until the class shrinks), of which dynamic are not pinned. Heap and free list
 * lie at first of their arrays. */
struct glm52_cache_class {
    uint32_t first, slots, dynamic, heap_count, free_count;
};

/* An expert of the selection under way. */
struct glm52_cache_item {
    uint32_t expert, routes;
    bool held;            /* at hand, for a later segment */
    bool miss;
};

struct glm52_cache {
    uint32_t layers, experts, class_count, slot_count;
    uint8_t *class_of;
    const struct glm52_policy *policy;
    struct glm52_clock clock;
    struct glm52_cache_class classes[GLM52_CACHE_CLASSES_MAX];
    struct glm52_cache_entry *entries;   /* [layers, experts] */
    struct glm52_cache_slot *slots;      /* [slot_count] */
    uint32_t *heap, *free_slots;         /* [slot_count] */

    /* The selection under way: items [item_count], of which first .. end - 1 are in use and those before reserved
     * have slots. */
    uint32_t layer, item_count, first, end, reserved;
    uint32_t part;                       /* experts of a segment that are not pinned */
    bool ahead;                          /* the next segment is read while one is in use */
    struct glm52_cache_item *items;      /* [experts] */
    uint32_t *segment_experts, *segment_slots, *routes; /* [experts] */

    glm52_cache_stats stats;
};

/* What glm52_cache_open allocates. */
uint64_t glm52_cache_bytes(uint32_t layers, uint32_t experts, uint32_t slots);

/* Takes back what a call that failed has counted. What is in the slots can't be taken back. */
void glm52_cache_counters_restore(glm52_cache *cache, const glm52_cache_stats *before);

#endif
