/* commands.m - what the Metal driver has the device do: command buffers, dispatches, fences; waiting; faults.
 *
 * Commands are encoded into one command buffer until flush, whose end raises a shared event. Waiting is asking that
 * event in slices: a command buffer that fails may never raise it, so its status is looked at in between, and a device
 * that doesn't come back within TIMEOUT_MS is given up: every later call fails. A second event is raised by the host
 * (hold, release_hold). */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metal.h"

#define SLICE_MS 10u
/* Longer than any batch: a prefill batch of 4096 rows takes seconds. */
#define TIMEOUT_MS 60000u
#define SET_BYTES_MAX 4096u      /* Metal's, of setBytes */

/* ---- faults ---- */

void glm52_metal_fault(struct glm52_gpu_state *state, glm52_status status, const char *format, ...) {
    if (state->fault != GLM52_OK) return;
    state->fault = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(state->message, sizeof(state->message), format, arguments);
    va_end(arguments);
}

/* The fault that is kept, as a call's own status. */
glm52_status glm52_metal_say_fault(const struct glm52_gpu_state *state) {
    return state->fault == GLM52_OK ? GLM52_OK : state->fail(state->fault, "%s", state->message);
}

/* Gives the device up. The message stands over any fault before: it tells what to do. */
static void lose(struct glm52_gpu_state *state, const char *why) {
    if (state->is_lost) return;      /* the words of the first loss stay */
    char first[MESSAGE_BYTES / 2] = "";
    if (state->fault != GLM52_OK) snprintf(first, sizeof(first), "; before that: %.200s", state->message);
    state->fault = GLM52_OK;
    glm52_metal_fault(state, GLM52_ERR_IO, "metal: %s; the device is given up, open the engine anew%s", why, first);
    state->is_lost = true;
}

const char *glm52_metal_words(NSError *error) {
    const char *text = error.localizedDescription.UTF8String;
    return text == NULL ? "Metal gave no reason" : text;
}

static void keep_commands_error(struct glm52_gpu_state *state, NSError *error) {
    char text[MESSAGE_BYTES - 128];
    snprintf(text, sizeof(text), "a command buffer failed: %.300s (code %ld)", glm52_metal_words(error),
             (long)error.code);
    if (error.code == MTLCommandBufferErrorAccessRevoked || error.code == MTLCommandBufferErrorDeviceRemoved) {
        lose(state, text);
        return;
    }
    glm52_metal_fault(state, error.code == MTLCommandBufferErrorOutOfMemory ? GLM52_ERR_MEMORY : GLM52_ERR_IO,
                      "metal: %s", text);
}

/* ---- waiting ---- */

/* Takes command buffers that are done off the list, oldest first. all: those on the list are known to be done, but
 * their status may say so a moment later. */
static void land(struct glm52_gpu_state *state, bool all) {
    uint32_t landed = 0;
    for (; landed < state->flight_count; landed++) {
        id<MTLCommandBuffer> commands = state->flights[landed].commands;
        if (all) [commands waitUntilCompleted];
        const MTLCommandBufferStatus status = commands.status;
        if (status != MTLCommandBufferStatusCompleted && status != MTLCommandBufferStatusError) break;
        if (status == MTLCommandBufferStatusError) keep_commands_error(state, commands.error);
        const double seconds = commands.GPUEndTime - commands.GPUStartTime;
        if (seconds > 0.0) state->ns += (uint64_t)(seconds * 1e9);
        [commands release];
    }
    state->flight_count -= landed;
    memmove(state->flights, state->flights + landed, state->flight_count * sizeof(state->flights[0]));
}

/* Whether the command buffer that was to reach value has failed: it may never. */
static bool has_failed(const struct glm52_gpu_state *state, uint64_t value) {
    for (uint32_t i = 0; i < state->flight_count; i++) {
        if (state->flights[i].end >= value) return state->flights[i].commands.status == MTLCommandBufferStatusError;
    }
    return true;
}

/* Waits until the device has reached value, which lies in what was flushed. False: it won't, and a fault is kept. */
bool glm52_metal_wait_value(struct glm52_gpu_state *state, uint64_t value) {
    if (state->is_lost) return false;
    for (uint32_t waited = 0; waited < TIMEOUT_MS; waited += SLICE_MS) {
        if ([state->done waitUntilSignaledValue:value timeoutMS:SLICE_MS]) return true;
        if (has_failed(state, value)) {
            land(state, false);
            return false;
        }
    }
    char why[128];
    snprintf(why, sizeof(why), "no answer within %u s (waiting for %llu, at %llu)", TIMEOUT_MS / 1000,
             (unsigned long long)value, (unsigned long long)state->done.signaledValue);
    lose(state, why);
    return false;
}

static void end_encoding(struct glm52_gpu_state *state) {
    [state->compute endEncoding];
    [state->compute release];
    state->compute = nil;
    [state->blit endEncoding];
    [state->blit release];
    state->blit = nil;
}

void glm52_metal_flush_commands(struct glm52_gpu_state *state) {
    if (state->commands == nil || state->is_lost) return;
    end_encoding(state);
    if (state->flight_count == FLIGHTS_MAX) {
        (void)glm52_metal_wait_value(state, state->flights[0].end);
        if (state->is_lost) return;
        [state->flights[0].commands waitUntilCompleted];
        land(state, false);
    }
    [state->commands encodeSignalEvent:state->done value:++state->value];
    [state->commands commit];
    state->flights[state->flight_count++] = (struct glm52_metal_flight){state->commands, state->value};
    state->commands = nil;
}

bool glm52_metal_is_idle(const struct glm52_gpu_state *state) {
    return state->commands == nil && state->done.signaledValue >= state->value;
}

/* Flushes and waits for everything. False: not everything came to its end, and a fault is kept. */
bool glm52_metal_settle(struct glm52_gpu_state *state) {
    glm52_metal_flush_commands(state);
    if (state->is_lost) return false;
    if (state->flight_count == 0) return true;
    if (state->holds > state->released) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT,
                          "metal: waiting for work that hold %llu keeps, and %llu is released",
                          (unsigned long long)state->holds, (unsigned long long)state->released);
        return false;
    }
    const bool reached = glm52_metal_wait_value(state, state->flights[state->flight_count - 1].end);
    if (state->is_lost) return false;
    land(state, true);
    return reached;
}

/* ---- encoding ---- */

static bool begin_commands(struct glm52_gpu_state *state) {
    if (state->is_lost) return false;
    if (state->commands == nil) state->commands = [[state->queue commandBuffer] retain];
    if (state->commands == nil) glm52_metal_fault(state, GLM52_ERR_MEMORY, "metal: no command buffer");
    return state->commands != nil;
}

static bool begin_compute(struct glm52_gpu_state *state) {
    if (state->compute != nil) return true;
    if (!begin_commands(state)) return false;
    end_encoding(state);
    state->compute = [[state->commands computeCommandEncoder] retain];
    if (state->compute == nil) glm52_metal_fault(state, GLM52_ERR_MEMORY, "metal: no compute encoder");
    return state->compute != nil;
}

bool glm52_metal_begin_blit(struct glm52_gpu_state *state) {
    if (state->blit != nil) return true;
    if (!begin_commands(state)) return false;
    end_encoding(state);
    state->blit = [[state->commands blitCommandEncoder] retain];
    if (state->blit == nil) glm52_metal_fault(state, GLM52_ERR_MEMORY, "metal: no blit encoder");
    return state->blit != nil;
}

/* ---- dispatches ---- */

/* Whether Metal will take a dispatch; what it would not check in a release run is checked here. */
static bool may_dispatch(struct glm52_gpu_state *state, const struct glm52_gpu_pipeline *pipeline,
                         const struct glm52_gpu_dispatch *dispatch) {
    const uint32_t *threads = dispatch->threads, *groups = dispatch->groups;
    const uint64_t count = (uint64_t)threads[0] * threads[1] * threads[2];
    if (count == 0 || count % GLM52_GPU_SIMD_WIDTH != 0 || count > pipeline->threads_max) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT,
                          "metal: kernel %s: threadgroups of %llu threads; a multiple of %d, at most %u",
                          pipeline->kernel, (unsigned long long)count, GLM52_GPU_SIMD_WIDTH, pipeline->threads_max);
        return false;
    }
    if (groups[0] == 0 || groups[1] == 0 || groups[2] == 0) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: kernel %s: a grid of %u x %u x %u threadgroups",
                          pipeline->kernel, groups[0], groups[1], groups[2]);
        return false;
    }
    if (dispatch->threadgroup_bytes > pipeline->threadgroup_bytes_max) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: kernel %s: %u bytes of threadgroup memory; at most %zu",
                          pipeline->kernel, dispatch->threadgroup_bytes, pipeline->threadgroup_bytes_max);
        return false;
    }
    if (dispatch->args_bytes > SET_BYTES_MAX || dispatch->operand_count > GLM52_GPU_OPERANDS_MAX) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT,
                          "metal: kernel %s: %u bytes of numbers, %u operands; at most %u and %d", pipeline->kernel,
                          dispatch->args_bytes, dispatch->operand_count, SET_BYTES_MAX, GLM52_GPU_OPERANDS_MAX);
        return false;
    }
    return true;
}

/* Memory that a kernel reaches through addresses must be made resident by hand where no residency set does it. */
static bool use(struct glm52_gpu_state *state, const struct glm52_gpu_pipeline *pipeline, const void *address) {
    const struct glm52_metal_span *span = glm52_metal_find_span(state, address);
    if (span == NULL) {
        glm52_metal_fault(state, GLM52_ERR_ARGUMENT, "metal: kernel %s: uses %p, which the device does not know",
                          pipeline->kernel, address);
        return false;
    }
    if (state->residency != nil) return true;
    const MTLResourceUsage usage = MTLResourceUsageRead | (span->is_adopted ? 0 : MTLResourceUsageWrite);
    for (uint32_t i = 0; i < span->count; i++) [state->compute useResource:span->buffers[i] usage:usage];
    return true;
}

void glm52_metal_dispatch(struct glm52_gpu_state *state, const struct glm52_gpu_pipeline *pipeline,
                          const struct glm52_gpu_dispatch *dispatch) {
    @autoreleasepool {
        if (!may_dispatch(state, pipeline, dispatch) || !begin_compute(state)) return;
        [state->compute setComputePipelineState:pipeline->metal];
        if (dispatch->args_bytes > 0) [state->compute setBytes:dispatch->args length:dispatch->args_bytes atIndex:0];
        for (uint32_t i = 0; i < dispatch->operand_count; i++) {
            size_t offset = 0;
            id<MTLBuffer> buffer = nil;
            if (dispatch->operands[i] != NULL) {
                buffer = glm52_metal_find_buffer(state, dispatch->operands[i], &offset);
                if (buffer == nil) {
                    glm52_metal_fault(state, GLM52_ERR_ARGUMENT,
                                      "metal: kernel %s: operand %u, %p, is in no memory that the device knows",
                                      pipeline->kernel, i, dispatch->operands[i]);
                    return;
                }
            }
            [state->compute setBuffer:buffer offset:offset atIndex:i + 1];
        }
        for (uint32_t i = 0; i < dispatch->use_count; i++) {
            if (!use(state, pipeline, dispatch->uses[i])) return;
        }
        if (dispatch->threadgroup_bytes > 0) {
            [state->compute setThreadgroupMemoryLength:(dispatch->threadgroup_bytes + 15u) / 16u * 16u atIndex:0];
        }
        const uint32_t *groups = dispatch->groups, *threads = dispatch->threads;
        [state->compute dispatchThreadgroups:MTLSizeMake(groups[0], groups[1], groups[2])
                       threadsPerThreadgroup:MTLSizeMake(threads[0], threads[1], threads[2])];
    }
}

void glm52_metal_flush(struct glm52_gpu_state *state) {
    @autoreleasepool {
        glm52_metal_flush_commands(state);
    }
}

/* ---- fences ---- */

uint64_t glm52_metal_signal(struct glm52_gpu_state *state) {
    @autoreleasepool {
        if (!begin_commands(state)) return state->value;
        end_encoding(state);
        [state->commands encodeSignalEvent:state->done value:++state->value];
        return state->value;
    }
}

glm52_status glm52_metal_wait_host(struct glm52_gpu_state *state, uint64_t value) {
    @autoreleasepool {
        glm52_metal_flush_commands(state);
        if (value > state->value) {
            return state->fail(GLM52_ERR_ARGUMENT, "metal: waiting for %llu; the last signal is %llu",
                               (unsigned long long)value, (unsigned long long)state->value);
        }
        if (glm52_metal_wait_value(state, value)) return GLM52_OK;
        glm52_metal_fault(state, GLM52_ERR_IO, "metal: what was to reach %llu failed", (unsigned long long)value);
        return glm52_metal_say_fault(state);
    }
}

uint64_t glm52_metal_hold(struct glm52_gpu_state *state) {
    @autoreleasepool {
        if (!begin_commands(state)) return state->holds;
        end_encoding(state);
        [state->commands encodeWaitForEvent:state->held value:++state->holds];
        return state->holds;
    }
}

void glm52_metal_release_hold(struct glm52_gpu_state *state, uint64_t value) {
    @autoreleasepool {
        if (value <= state->released) return;
        if (value > state->holds) value = state->holds;
        state->released = value;
        state->held.signaledValue = value;
    }
}

glm52_status glm52_metal_finish(struct glm52_gpu_state *state) {
    @autoreleasepool {
        (void)glm52_metal_settle(state);
        state->ns_finished = state->ns;
        state->ns = 0;
        const glm52_status status = glm52_metal_say_fault(state);
        if (!state->is_lost) state->fault = GLM52_OK;
        return status;
    }
}

uint64_t glm52_metal_device_ns(const struct glm52_gpu_state *state) {
    return state->ns_finished;
}
