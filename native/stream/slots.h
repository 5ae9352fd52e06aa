/* slots.h - the memory that experts are read into. */
#ifndef GLM52_SLOTS_H
#define GLM52_SLOTS_H

#include "gguf.h"

#define GLM52_SLICES 3                   /* gate, up, down */
#define GLM52_SLICE_ALIGNMENT GLM52_RUN_SLICE_ALIGNMENT /* of each in its slot: as in a colocated file */
#define GLM52_SLOT_ALIGNMENT GLM52_RUN_ALIGNMENT        /* of slots: whole pages */
#define GLM52_SLAB_BYTES (256ull << 20)  /* slots are allocated in slabs of about this size */

/* Bytes of a slot for slices of these sizes, 0 if they do not fit in 64 bits. */
uint64_t glm52_slot_bytes(const uint64_t slice_bytes[GLM52_SLICES]);

/* Calls of malloc and its like that a test may let fail. */
struct glm52_allocations {
    uint32_t count, fail_at;             /* the fail_at-th fails; 0: none */
};
/* Zeroed memory, NULL if there is none or the test says so. */
void *glm52_stream_allocate(struct glm52_allocations *allocations, uint64_t count, size_t bytes);

struct glm52_slots {
    struct glm52_slab {
        uint8_t *memory;
        uint64_t bytes;
    } *slabs;
    uint32_t slab_count, slab_max;
    uint8_t **address;                   /* [slot_count] */
    uint32_t slot_count;
    uint64_t wired_bytes;
    uint64_t wire_failed_bytes;          /* of the slab at which the system refused; 0: it did not */
};

/* Allocates slots[c] slots of bytes[c] for each class, numbered through. Errors: MEMORY. What was made is freed by
 * glm52_slots_free, also behind an error. */
glm52_status glm52_slots_make(struct glm52_slots *slots, const uint64_t *bytes, const uint32_t *counts,
                              uint32_t class_count, struct glm52_allocations *allocations);
void glm52_slots_free(struct glm52_slots *slots);

/* Gives the memory of a slot back to the system; the slot may not be used any more. */
void glm52_slots_return(const struct glm52_slots *slots, uint32_t slot, uint64_t slot_bytes);

/* Locks slab after slab in memory until the system refuses one, which is no error: wired_bytes says how far it
 * came. */
void glm52_slots_wire(struct glm52_slots *slots);

#endif
