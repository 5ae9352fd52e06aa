/* slots.c - the memory that experts are read into: slots of one size per class, in slabs of whole pages. What is in a
 * slot is cache.c's. */
#include "slots.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "checked.h"
#include "error.h"

static uint64_t round_up(uint64_t bytes, uint64_t to) {
    return bytes > UINT64_MAX - to ? 0 : (bytes + to - 1) / to * to;
}

uint64_t glm52_slot_bytes(const uint64_t slice_bytes[GLM52_SLICES]) {
    uint64_t sum = 0;
    for (int i = 0; i < GLM52_SLICES; i++) {
        const uint64_t bytes = round_up(slice_bytes[i], GLM52_SLICE_ALIGNMENT);
        if (bytes == 0 || !glm52_add_u64(sum, bytes, &sum)) return 0;
    }
    return round_up(sum, GLM52_SLOT_ALIGNMENT);
}

void *glm52_stream_allocate(struct glm52_allocations *allocations, uint64_t count, size_t bytes) {
    allocations->count++;
    if (allocations->count == allocations->fail_at || count > SIZE_MAX / bytes) return NULL;
    return calloc((size_t)count, bytes);
}

/* Pages that nothing was spent on yet. */
static uint8_t *map_slab(uint64_t bytes, struct glm52_allocations *allocations) {
    allocations->count++;
    if (allocations->count == allocations->fail_at || bytes > SIZE_MAX) return NULL;
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static uint64_t slots_per_slab(uint64_t slot_bytes) {
    return slot_bytes >= GLM52_SLAB_BYTES ? 1 : GLM52_SLAB_BYTES / slot_bytes;
}

/* count slots of one class from slot number first on. */
static glm52_status make_class(struct glm52_slots *slots, uint64_t slot_bytes, uint32_t first, uint32_t count,
                               struct glm52_allocations *allocations) {
    for (uint32_t made = 0; made < count;) {
        const uint32_t part = (uint32_t)glm52_min_u64(slots_per_slab(slot_bytes), count - made);
        struct glm52_slab *slab = &slots->slabs[slots->slab_count];
        slab->bytes = part * slot_bytes;
        slab->memory = map_slab(slab->bytes, allocations);
        if (slab->memory == NULL) {
            return glm52_fail(GLM52_ERR_MEMORY, "no memory for slots %u to %u of the expert cache, %llu bytes each",
                              first + made, first + made + part - 1, (unsigned long long)slot_bytes);
        }
        slots->slab_count++;
        for (uint32_t i = 0; i < part; i++) slots->address[first + made + i] = slab->memory + i * slot_bytes;
        made += part;
    }
    return GLM52_OK;
}

glm52_status glm52_slots_make(struct glm52_slots *slots, const uint64_t *bytes, const uint32_t *counts,
                              uint32_t class_count, struct glm52_allocations *allocations) {
    *slots = (struct glm52_slots){0};
    for (uint32_t c = 0; c < class_count; c++) {
        slots->slot_count += counts[c];
        slots->slab_max += (uint32_t)((counts[c] + slots_per_slab(bytes[c]) - 1) / slots_per_slab(bytes[c]));
    }
    slots->slabs = glm52_stream_allocate(allocations, slots->slab_max, sizeof(*slots->slabs));
    slots->address = glm52_stream_allocate(allocations, slots->slot_count, sizeof(*slots->address));
    if (slots->slabs == NULL || slots->address == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "no memory for the addresses of %u slots", slots->slot_count);
    }
    uint32_t first = 0;
    for (uint32_t c = 0; c < class_count; c++) {
        GLM52_TRY(make_class(slots, bytes[c], first, counts[c], allocations));
        first += counts[c];
    }
    return GLM52_OK;
}

void glm52_slots_free(struct glm52_slots *slots) {
    for (uint32_t i = 0; i < slots->slab_count; i++) munmap(slots->slabs[i].memory, (size_t)slots->slabs[i].bytes);
    free(slots->slabs);
    free(slots->address);
    *slots = (struct glm52_slots){0};
}

void glm52_slots_return(const struct glm52_slots *slots, uint32_t slot, uint64_t slot_bytes) {
    munlock(slots->address[slot], (size_t)slot_bytes);
    madvise(slots->address[slot], (size_t)slot_bytes, MADV_DONTNEED);
}

void glm52_slots_wire(struct glm52_slots *slots) {
    for (uint32_t i = 0; i < slots->slab_count; i++) {
        if (mlock(slots->slabs[i].memory, (size_t)slots->slabs[i].bytes) != 0) {
            slots->wire_failed_bytes = slots->slabs[i].bytes;
            return;
        }
        slots->wired_bytes += slots->slabs[i].bytes;
    }
}
