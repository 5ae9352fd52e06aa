/* metal.h - what the files of the Metal driver share: the state of an open device, and the calls between them. */
#ifndef GLM52_METAL_H
#define GLM52_METAL_H

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>

#include "driver.h"

#define MESSAGE_BYTES 512
/* Command buffers that may be on their way. Metal's own limit for a queue is 64, at which it would block. */
#define FLIGHTS_MAX 32u
/* Bytes on their way into memory that the device works on; two halves in turn. */
#define STAGE_HALF ((size_t)1 << 20)

struct glm52_metal_span {
    const uint8_t *host;         /* what the caller calls it */
    size_t bytes;
    const uint8_t *base;         /* of the first buffer */
    size_t step;                 /* from one buffer's beginning to the next one's */
    uint32_t count;
    bool is_adopted;
    id<MTLBuffer> *buffers;
};

struct glm52_metal_flight {
    id<MTLCommandBuffer> commands;
    uint64_t end;                /* the event's value when it is done */
};

struct glm52_gpu_pipeline {
    struct glm52_gpu_pipeline *next;
    id<MTLComputePipelineState> metal;
    uint32_t threads_max;
    size_t threadgroup_bytes_max; /* beside what it has by itself */
    char kernel[64];
};

struct glm52_gpu_state {
    glm52_gpu_fail *fail;
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLLibrary> library;
    id<MTLSharedEvent> done, held;
    id residency;                /* id<MTLResidencySet>; nil before macOS 15 */
    id<MTLBinaryArchive> archive;
    char *archive_path;
    bool archive_grew;
    struct glm52_gpu_limits limits;

    struct glm52_metal_span *spans; /* ascending by host */
    uint32_t span_count, span_room;
    size_t longest_operand;      /* 0: half of the longest buffer */
    id<MTLBuffer> stage;
    size_t stage_used[2];
    uint64_t stage_end[2];       /* the event's value when what is in that half has been taken */
    uint32_t stage_half;
    struct glm52_gpu_pipeline *pipelines;

    id<MTLCommandBuffer> commands; /* being encoded, nil: none */
    id<MTLComputeCommandEncoder> compute; /* at most one of these two is open */
    id<MTLBlitCommandEncoder> blit;
    struct glm52_metal_flight flights[FLIGHTS_MAX]; /* oldest first */
    uint32_t flight_count;
    uint64_t value;              /* the last that done was told to reach */
    uint64_t holds, released;    /* the last that hold gave; the last that the host released */
    uint64_t ns, ns_finished;    /* of the device: so far, and up to the last finish */

    glm52_status fault;          /* the first since the last finish */
    bool is_lost;                /* every call fails from here on */
    char message[MESSAGE_BYTES];
};

/* commands.m: faults. fault keeps the first since the last finish; say_fault is that one as a call's own status; words
 * are Metal's for an error, valid while its pool is. */
void glm52_metal_fault(struct glm52_gpu_state *, glm52_status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
glm52_status glm52_metal_say_fault(const struct glm52_gpu_state *);
const char *glm52_metal_words(NSError *);

/* commands.m: encoding and waiting. A false answer has kept a fault. wait_value: value lies in what was flushed.
 * settle: flushes and waits for everything. */
bool glm52_metal_begin_blit(struct glm52_gpu_state *);
void glm52_metal_flush_commands(struct glm52_gpu_state *);
bool glm52_metal_is_idle(const struct glm52_gpu_state *);
bool glm52_metal_wait_value(struct glm52_gpu_state *, uint64_t value);
bool glm52_metal_settle(struct glm52_gpu_state *);

/* memory.m. find_buffer: the buffer that an address lies in and how far behind its beginning; nil if it is nobody's. */
struct glm52_metal_span *glm52_metal_find_span(const struct glm52_gpu_state *, const void *address);
id<MTLBuffer> glm52_metal_find_buffer(const struct glm52_gpu_state *, const void *address, size_t *offset_out);
void glm52_metal_remove_span(struct glm52_gpu_state *, struct glm52_metal_span *);

/* Entries of the driver's table (driver.h). */
void *glm52_metal_allocate(struct glm52_gpu_state *, size_t bytes);
void glm52_metal_release(struct glm52_gpu_state *, void *address);
glm52_status glm52_metal_adopt(struct glm52_gpu_state *, const void *host, size_t bytes, bool will_change);
void glm52_metal_disown(struct glm52_gpu_state *, const void *host);
void glm52_metal_publish(struct glm52_gpu_state *, const void *host, size_t bytes);
void glm52_metal_read(struct glm52_gpu_state *, void *host, const void *address, size_t bytes);
void glm52_metal_write(struct glm52_gpu_state *, void *address, const void *host, size_t bytes);
void glm52_metal_clear(struct glm52_gpu_state *, void *address, size_t bytes);
uint64_t glm52_metal_device_address(struct glm52_gpu_state *, const void *address);
void glm52_metal_longest_operand(struct glm52_gpu_state *, size_t bytes);
void glm52_metal_dispatch(struct glm52_gpu_state *, const struct glm52_gpu_pipeline *,
                          const struct glm52_gpu_dispatch *);
void glm52_metal_flush(struct glm52_gpu_state *);
uint64_t glm52_metal_signal(struct glm52_gpu_state *);
glm52_status glm52_metal_wait_host(struct glm52_gpu_state *, uint64_t value);
uint64_t glm52_metal_hold(struct glm52_gpu_state *);
void glm52_metal_release_hold(struct glm52_gpu_state *, uint64_t value);
glm52_status glm52_metal_finish(struct glm52_gpu_state *);
uint64_t glm52_metal_device_ns(const struct glm52_gpu_state *);

#endif
