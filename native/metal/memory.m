/* memory.m - memory of the Metal driver: which buffer an address lies in, and what moves between host and device.
 *
 * Memory is shared: operands are the host's addresses. allocate makes a buffer; adopt lays buffers over the pages that
 * are there, several where one may not be so long, each overlapping the next by the longest operand, so that an operand
 * lies whole in the last buffer that begins at or before it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "metal.h"

#define ALIGNMENT 256u

/* ---- memory ---- */

/* The number of spans that begin at or before address. */
static uint32_t spans_up_to(const struct glm52_gpu_state *state, const uint8_t *address) {
    uint32_t low = 0, high = state->span_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (state->spans[middle].host <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct glm52_metal_span *glm52_metal_find_span(const struct glm52_gpu_state *state, const void *address) {
    const uint32_t count = spans_up_to(state, address);
    if (count == 0) return NULL;
    struct glm52_metal_span *span = &state->spans[count - 1];
    return (size_t)((const uint8_t *)address - span->host) < span->bytes ? span : NULL;
}

/* The buffer that address lies in and how far behind its beginning; nil if it is nobody's. */
id<MTLBuffer> glm52_metal_find_buffer(const struct glm52_gpu_state *state, const void *address, size_t *offset_out) {
    const struct glm52_metal_span *span = glm52_metal_find_span(state, address);
    if (span == NULL) return nil;
    const size_t distance = (size_t)((const uint8_t *)address - span->base);
    size_t at = distance / span->step;
    if (at >= span->count) at = span->count - 1;
    *offset_out = distance - at * span->step;
    return span->buffers[at];
}

static void set_resident(struct glm52_gpu_state *state, const struct glm52_metal_span *span, bool resident) {
    if (@available(macOS 15.0, *)) {
        id<MTLResidencySet> set = state->residency;
        for (uint32_t i = 0; i < span->count; i++) {
            if (resident) [set addAllocation:span->buffers[i]];
            else [set removeAllocation:span->buffers[i]];
        }
        [set commit];
        [set requestResidency];
    }
}

static void free_buffers(struct glm52_metal_span *span) {
    for (uint32_t i = 0; i < span->count; i++) [span->buffers[i] release];
    free(span->buffers);
}

/* Puts a span with its buffers among the others. On failure the buffers stay the caller's. */
static glm52_status insert_span(struct glm52_gpu_state *state, const struct glm52_metal_span *span) {
    const uint32_t at = spans_up_to(state, span->host + span->bytes - 1);
    if (at > 0 && state->spans[at - 1].host + state->spans[at - 1].bytes > span->host) {
        return state->fail(GLM52_ERR_ARGUMENT, "metal: of the %zu bytes at %p some are known already", span->bytes,
                           (const void *)span->host);
    }
    if (state->span_count == state->span_room) {
        const uint32_t room = state->span_room == 0 ? 16 : 2 * state->span_room;
        struct glm52_metal_span *spans = realloc(state->spans, room * sizeof(*spans));
        if (spans == NULL) return state->fail(GLM52_ERR_MEMORY, "metal: no memory for a list of spans");
        state->spans = spans;
        state->span_room = room;
    }
    memmove(state->spans + at + 1, state->spans + at, (state->span_count - at) * sizeof(*state->spans));
    state->spans[at] = *span;
    state->span_count++;
    set_resident(state, span, true);
    return GLM52_OK;
}

void glm52_metal_remove_span(struct glm52_gpu_state *state, struct glm52_metal_span *span) {
    set_resident(state, span, false);
    free_buffers(span);
    const uint32_t at = (uint32_t)(span - state->spans);
    state->span_count--;
    memmove(span, span + 1, (state->span_count - at) * sizeof(*span));
}

void *glm52_metal_allocate(struct glm52_gpu_state *state, size_t bytes) {
    @autoreleasepool {
        if (state->is_lost) return NULL;
        if (bytes == 0) bytes = 1;
        const uint64_t most = state->limits.buffer_max - ALIGNMENT;
        if (bytes > most) {
            (void)state->fail(GLM52_ERR_MEMORY, "metal: %zu bytes in one piece; at most %llu", bytes,
                              (unsigned long long)most);
            return NULL;
        }
        const size_t length = bytes + ALIGNMENT; /* room to begin at a multiple, which Metal doesn't promise */
        id<MTLBuffer> *buffers = calloc(1, sizeof(id<MTLBuffer>));
        if (buffers == NULL) return NULL;
        buffers[0] = [state->device newBufferWithLength:length options:MTLResourceStorageModeShared];
        if (buffers[0] == nil) {
            free(buffers);
            (void)state->fail(GLM52_ERR_MEMORY, "metal: no buffer of %zu bytes", length);
            return NULL;
        }
        const uint8_t *base = buffers[0].contents;
        const uintptr_t address = ((uintptr_t)base + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        struct glm52_metal_span span = {
            .host = (const uint8_t *)address,
            .bytes = bytes,
            .base = base,
            .step = length,
            .count = 1,
            .buffers = buffers,
        };
        if (insert_span(state, &span) != GLM52_OK) {
            free_buffers(&span);
            return NULL;
        }
        return (void *)address;
    }
}

/* Gives up the span that begins at address, once nothing that was encoded can reach it. */
static void drop(struct glm52_gpu_state *state, const void *address, bool adopted) {
    @autoreleasepool {
        if (address == NULL) return;
        struct glm52_metal_span *span = glm52_metal_find_span(state, address);
        if (span == NULL || span->host != address || span->is_adopted != adopted) {
            glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: %p is not the beginning of memory that was %s",
                              address, adopted ? "adopted" : "allocated");
            return;
        }
        (void)glm52_metal_settle(state);
        glm52_metal_remove_span(state, span);
    }
}

void glm52_metal_release(struct glm52_gpu_state *state, void *address) {
    drop(state, address, false);
}

void glm52_metal_disown(struct glm52_gpu_state *state, const void *host) {
    drop(state, host, true);
}

/* Lays buffers over length bytes of whole pages, each beginning step behind the one before. */
static glm52_status lay_buffers(struct glm52_gpu_state *state, struct glm52_metal_span *span, size_t length,
                                size_t most) {
    for (size_t at = 0; span->count == 0 || at + most - span->step < length; at += span->step) {
        const size_t part = length - at < most ? length - at : most;
        id<MTLBuffer> buffer = [state->device newBufferWithBytesNoCopy:(void *)(uintptr_t)(span->base + at)
                                                                length:part
                                                               options:MTLResourceStorageModeShared
                                                           deallocator:nil];
        if (buffer == nil) {
            return state->fail(GLM52_ERR_MEMORY, "metal: no buffer over %zu bytes at %p", part,
                               (const void *)(span->base + at));
        }
        span->buffers[span->count++] = buffer;
    }
    return GLM52_OK;
}

glm52_status glm52_metal_adopt(struct glm52_gpu_state *state, const void *host, size_t bytes, bool will_change) {
    (void)will_change;           /* shared memory: there is no copy to keep up to date */
    @autoreleasepool {
        if (state->is_lost) return glm52_metal_say_fault(state);
        if (bytes == 0) return state->fail(GLM52_ERR_ARGUMENT, "metal: adopting 0 bytes");
        const size_t page = (size_t)sysconf(_SC_PAGESIZE);
        const size_t before = (uintptr_t)host % page;
        const size_t length = (before + bytes + page - 1) / page * page;
        const size_t most = (size_t)state->limits.buffer_max / page * page;
        size_t overlap = state->longest_operand == 0 ? most / 2 : state->longest_operand;
        overlap = (overlap + page - 1) / page * page;
        if (length > most && overlap >= most) {
            return state->fail(GLM52_ERR_MEMORY, "metal: an operand of %zu bytes; a buffer has at most %zu",
                               state->longest_operand, most);
        }
        struct glm52_metal_span span = {.host = host, .bytes = bytes, .is_adopted = true};
        span.base = (const uint8_t *)host - before;
        span.step = length > most ? most - overlap : length;
        span.buffers = calloc(length / span.step + 1, sizeof(id<MTLBuffer>));
        if (span.buffers == NULL) return state->fail(GLM52_ERR_MEMORY, "metal: no memory for a list of buffers");
        glm52_status status = lay_buffers(state, &span, length, most);
        if (status == GLM52_OK) status = insert_span(state, &span);
        if (status != GLM52_OK) free_buffers(&span);
        return status;
    }
}

/* Kernels read the host's own memory, and what is handed over from now on sees what is in it. */
void glm52_metal_publish(struct glm52_gpu_state *state, const void *host, size_t bytes) {
    (void)state, (void)host, (void)bytes;
}

/* Whether bytes from address on are of one span; a fault if not. */
static bool is_known(struct glm52_gpu_state *state, const void *address, size_t bytes) {
    const struct glm52_metal_span *span = glm52_metal_find_span(state, address);
    if (span != NULL && bytes <= span->bytes - (size_t)((const uint8_t *)address - span->host)) return true;
    glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: %zu bytes at %p are not of one allocation", bytes, address);
    return false;
}

void glm52_metal_read(struct glm52_gpu_state *state, void *host, const void *address, size_t bytes) {
    @autoreleasepool {
        if (is_known(state, address, bytes) && glm52_metal_settle(state)) {
            memcpy(host, address, bytes);
        } else {
            memset(host, 0, bytes);
        }
    }
}

/* Room for bytes that the device will copy from, in stage from offset_out on; false if there is none. */
static bool take_stage(struct glm52_gpu_state *state, size_t bytes, size_t *offset_out) {
    if (state->stage == nil) {
        state->stage = [state->device newBufferWithLength:2 * STAGE_HALF options:MTLResourceStorageModeShared];
    }
    if (state->stage == nil || bytes > STAGE_HALF) return false;
    if (state->stage_used[state->stage_half] + bytes > STAGE_HALF) {
        state->stage_half ^= 1;
        glm52_metal_flush_commands(state);
        if (!glm52_metal_wait_value(state, state->stage_end[state->stage_half])) return false;
        state->stage_used[state->stage_half] = 0;
    }
    *offset_out = state->stage_half * STAGE_HALF + state->stage_used[state->stage_half];
    state->stage_used[state->stage_half] += bytes;
    state->stage_end[state->stage_half] = state->value + 1;
    return true;
}

/* Blits move whole words between multiples of a word. */
static bool is_of_words(size_t offset, size_t bytes) {
    return (offset | bytes) % 4 == 0;
}

void glm52_metal_write(struct glm52_gpu_state *state, void *address, const void *host, size_t bytes) {
    @autoreleasepool {
        if (bytes == 0 || !is_known(state, address, bytes)) return;
        size_t offset, from;
        id<MTLBuffer> buffer = glm52_metal_find_buffer(state, address, &offset);
        if (glm52_metal_is_idle(state)) {
            memcpy(address, host, bytes);
        } else if (is_of_words(offset, bytes) && take_stage(state, bytes, &from)) {
            if (!glm52_metal_begin_blit(state)) return;
            memcpy((uint8_t *)state->stage.contents + from, host, bytes);
            [state->blit copyFromBuffer:state->stage
                           sourceOffset:from
                               toBuffer:buffer
                      destinationOffset:offset
                                   size:bytes];
        } else if (glm52_metal_settle(state)) {
            memcpy(address, host, bytes);
        }
    }
}

void glm52_metal_clear(struct glm52_gpu_state *state, void *address, size_t bytes) {
    @autoreleasepool {
        if (bytes == 0 || !is_known(state, address, bytes)) return;
        size_t offset;
        id<MTLBuffer> buffer = glm52_metal_find_buffer(state, address, &offset);
        if (glm52_metal_is_idle(state)) {
            memset(address, 0, bytes);
        } else if (is_of_words(offset, bytes)) {
            if (glm52_metal_begin_blit(state)) [state->blit fillBuffer:buffer range:NSMakeRange(offset, bytes) value:0];
        } else if (glm52_metal_settle(state)) {
            memset(address, 0, bytes);
        }
    }
}

uint64_t glm52_metal_device_address(struct glm52_gpu_state *state, const void *address) {
    @autoreleasepool {
        size_t offset;
        id<MTLBuffer> buffer = glm52_metal_find_buffer(state, address, &offset);
        if (buffer != nil) return buffer.gpuAddress + offset;
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: %p is in no memory that the device knows", address);
        return 0;
    }
}

void glm52_metal_longest_operand(struct glm52_gpu_state *state, size_t bytes) {
    state->longest_operand = bytes;
}
