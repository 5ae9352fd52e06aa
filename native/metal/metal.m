/* metal.m - driver: Metal on Apple silicon: opening and closing, kernels, the table. The files *.m are the only
 * Objective-C; manual retain and release. memory.m has memory, commands.m what is run. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysctl.h>
#include <unistd.h>

#include "metal.h"
#include "metal_source.h"

/* ---- kernels ---- */

/* The state of a function, from the archive if that has it; what it lacks is added. */
static id<MTLComputePipelineState> make_pipeline(struct glm52_gpu_state *state, id<MTLFunction> function,
                                                 NSError **error) {
    MTLComputePipelineDescriptor *descriptor = [[MTLComputePipelineDescriptor alloc] init];
    descriptor.computeFunction = function;
    id<MTLComputePipelineState> made = nil;
    if (state->archive != nil) {
        descriptor.binaryArchives = [NSArray arrayWithObject:state->archive];
        made = [state->device newComputePipelineStateWithDescriptor:descriptor
                                                            options:MTLPipelineOptionFailOnBinaryArchiveMiss
                                                         reflection:NULL
                                                              error:error];
        if (made == nil && [state->archive addComputePipelineFunctionsWithDescriptor:descriptor error:error]) {
            state->archive_grew = true;
        }
    }
    if (made == nil) {
        made = [state->device newComputePipelineStateWithDescriptor:descriptor
                                                            options:MTLPipelineOptionNone
                                                         reflection:NULL
                                                              error:error];
    }
    [descriptor release];
    return made;
}

/* The kernel's function with the constants; nil with the reason said in status_out. */
static id<MTLFunction> make_function(struct glm52_gpu_state *state, const char *kernel,
                                     const struct glm52_gpu_constants *constants, glm52_status *status_out) {
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    [values setConstantValues:constants type:MTLDataTypeUInt withRange:NSMakeRange(0, GLM52_GPU_CONSTANT_COUNT)];
    NSError *error = nil;
    id<MTLFunction> function = [state->library newFunctionWithName:[NSString stringWithUTF8String:kernel]
                                                    constantValues:values
                                                             error:&error];
    [values release];
    if (function == nil) {
        *status_out = state->fail(GLM52_ERR_UNSUPPORTED, "metal: kernel %s: %s", kernel, glm52_metal_words(error));
    }
    return function;
}

static glm52_status metal_pipeline(struct glm52_gpu_state *state, const char *kernel,
                                   const struct glm52_gpu_constants *constants,
                                   struct glm52_gpu_pipeline **pipeline_out) {
    @autoreleasepool {
        if (state->is_lost) return glm52_metal_say_fault(state);
        glm52_status status = GLM52_OK;
        id<MTLFunction> function = make_function(state, kernel, constants, &status);
        if (function == nil) return status;
        NSError *error = nil;
        id<MTLComputePipelineState> metal = make_pipeline(state, function, &error);
        [function release];
        if (metal == nil) {
            return state->fail(GLM52_ERR_MEMORY, "metal: kernel %s: %s", kernel, glm52_metal_words(error));
        }
        if (metal.threadExecutionWidth != GLM52_GPU_SIMD_WIDTH) {
            const unsigned long width = metal.threadExecutionWidth;
            [metal release];
            return state->fail(GLM52_ERR_UNSUPPORTED, "metal: kernel %s: simdgroups of %lu threads; they must have %d",
                               kernel, width, GLM52_GPU_SIMD_WIDTH);
        }
        struct glm52_gpu_pipeline *pipeline = calloc(1, sizeof(*pipeline));
        if (pipeline == NULL) {
            [metal release];
            return state->fail(GLM52_ERR_MEMORY, "metal: no memory for a pipeline");
        }
        pipeline->metal = metal;
        pipeline->threads_max = (uint32_t)metal.maxTotalThreadsPerThreadgroup;
        pipeline->threadgroup_bytes_max = state->limits.threadgroup_bytes - metal.staticThreadgroupMemoryLength;
        snprintf(pipeline->kernel, sizeof(pipeline->kernel), "%.63s", kernel);
        pipeline->next = state->pipelines;
        state->pipelines = pipeline;
        *pipeline_out = pipeline;
        return GLM52_OK;
    }
}

/* ---- the archive of pipelines ---- */

/* Keeps what was compiled for the next run: written beside its place and moved there whole. It is a cache: nothing is
 * lost if that can't be done. */
static void store_archive(struct glm52_gpu_state *state) {
    if (!state->archive_grew) return;
    NSString *path = [NSString stringWithUTF8String:state->archive_path];
    NSString *part = [path stringByAppendingFormat:@".%d.part", (int)getpid()];
    if ([state->archive serializeToURL:[NSURL fileURLWithPath:part] error:NULL]) {
        (void)rename(part.fileSystemRepresentation, path.fileSystemRepresentation);
    }
    (void)unlink(part.fileSystemRepresentation);
}

static glm52_status metal_cache(struct glm52_gpu_state *state, const char *path) {
    @autoreleasepool {
        if (state->is_lost) return glm52_metal_say_fault(state);
        if (state->archive != nil) return state->fail(GLM52_ERR_ARGUMENT, "metal: %s: there is a cache already", path);
        NSString *text = [NSString stringWithUTF8String:path];
        if (text == nil) return state->fail(GLM52_ERR_UNSUPPORTED, "metal: %s: no cache: not a path in UTF-8", path);
        char *kept = strdup(path);
        if (kept == NULL) return state->fail(GLM52_ERR_MEMORY, "metal: no memory for a path");
        MTLBinaryArchiveDescriptor *descriptor = [[MTLBinaryArchiveDescriptor alloc] init];
        NSError *error = nil;
        descriptor.url = [NSURL fileURLWithPath:text];
        state->archive = [state->device newBinaryArchiveWithDescriptor:descriptor error:&error];
        if (state->archive == nil) { /* there is none, or one of another system or another version of it */
            descriptor.url = nil;
            state->archive = [state->device newBinaryArchiveWithDescriptor:descriptor error:&error];
        }
        [descriptor release];
        if (state->archive == nil) {
            free(kept);
            return state->fail(GLM52_ERR_UNSUPPORTED, "metal: %s: no cache: %s", path, glm52_metal_words(error));
        }
        state->archive_path = kept;
        return GLM52_OK;
    }
}

/* ---- opening ---- */

static void metal_close(struct glm52_gpu_state *state) {
    if (state == NULL) return;
    @autoreleasepool {
        glm52_metal_release_hold(state, state->holds);
        (void)glm52_metal_settle(state);
        [state->commands release];
        for (uint32_t i = 0; i < state->flight_count; i++) [state->flights[i].commands release];
        while (state->span_count > 0) glm52_metal_remove_span(state, &state->spans[state->span_count - 1]);
        free(state->spans);
        while (state->pipelines != NULL) {
            struct glm52_gpu_pipeline *pipeline = state->pipelines;
            state->pipelines = pipeline->next;
            [pipeline->metal release];
            free(pipeline);
        }
        store_archive(state);
        [state->archive release];
        free(state->archive_path);
        [state->residency release];
        [state->stage release];
        [state->held release];
        [state->done release];
        [state->library release];
        [state->queue release];
        [state->device release];
    }
    free(state);
}

/* The bytes that the system lets a GPU keep, if an administrator has said; else 0. */
static uint64_t wired_limit(void) {
    uint64_t megabytes = 0;      /* the setting has 4 bytes or 8; little-endian */
    size_t bytes = sizeof(megabytes);
    if (sysctlbyname("iogpu.wired_limit_mb", &megabytes, &bytes, NULL, 0) != 0) return 0;
    return megabytes << 20;
}

static void describe(struct glm52_gpu_state *state) {
    struct glm52_gpu_limits *limits = &state->limits;
    const char *name = state->device.name.UTF8String;
    snprintf(limits->device, sizeof(limits->device), "%.127s", name == NULL ? "unnamed" : name);
    const uint64_t wired = wired_limit();
    limits->working_set = state->device.recommendedMaxWorkingSetSize;
    if (wired > 0 && (limits->working_set == 0 || wired < limits->working_set)) limits->working_set = wired;
    limits->buffer_max = state->device.maxBufferLength;
    limits->threads_max = (uint32_t)state->device.maxThreadsPerThreadgroup.width;
    limits->threadgroup_bytes = (uint32_t)state->device.maxThreadgroupMemoryLength;
    limits->unified = true;
}

static void metal_limits(const struct glm52_gpu_state *state, struct glm52_gpu_limits *limits_out) {
    *limits_out = state->limits;
}

static glm52_status compile(struct glm52_gpu_state *state) {
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    options.languageVersion = MTLLanguageVersion3_0;
    if (@available(macOS 15.0, *)) {
        options.mathMode = MTLMathModeSafe;
        options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
    } else {
        options.fastMathEnabled = NO;
    }
    NSError *error = nil;
    state->library = [state->device newLibraryWithSource:[NSString stringWithUTF8String:glm52_metal_source]
                                                 options:options
                                                   error:&error];
    [options release];
    if (state->library != nil) return GLM52_OK;
    return state->fail(GLM52_ERR_UNSUPPORTED, "metal: the kernels don't compile: %s", glm52_metal_words(error));
}

static void make_residency(struct glm52_gpu_state *state) {
    if (@available(macOS 15.0, *)) {
        MTLResidencySetDescriptor *descriptor = [[MTLResidencySetDescriptor alloc] init];
        /* nil: every dispatch names its memory, as before macOS 15. */
        state->residency = [state->device newResidencySetWithDescriptor:descriptor error:NULL];
        [descriptor release];
        if (state->residency != nil) [state->queue addResidencySet:state->residency];
    }
}

static glm52_status open_device(struct glm52_gpu_state *state) {
    state->device = MTLCreateSystemDefaultDevice();
    if (state->device == nil) return state->fail(GLM52_ERR_UNSUPPORTED, "metal: the system has no Metal device");
    describe(state);
    if (!state->device.hasUnifiedMemory || ![state->device supportsFamily:MTLGPUFamilyApple7]) {
        return state->fail(GLM52_ERR_UNSUPPORTED, "metal: %s is not Apple silicon", state->limits.device);
    }
    state->queue = [state->device newCommandQueue];
    if (state->queue == nil) return state->fail(GLM52_ERR_MEMORY, "metal: %s: no command queue", state->limits.device);
    state->done = [state->device newSharedEvent];
    state->held = [state->device newSharedEvent];
    if (state->done == nil || state->held == nil) {
        return state->fail(GLM52_ERR_MEMORY, "metal: %s: no shared event", state->limits.device);
    }
    make_residency(state);
    return compile(state);
}

static glm52_status metal_open(glm52_gpu_fail *fail, struct glm52_gpu_state **state_out) {
    @autoreleasepool {
        struct glm52_gpu_state *state = calloc(1, sizeof(*state));
        if (state == NULL) return fail(GLM52_ERR_MEMORY, "metal: no memory for a driver");
        state->fail = fail;
        const glm52_status status = open_device(state);
        if (status == GLM52_OK) *state_out = state;
        else metal_close(state);
        return status;
    }
}

__attribute__((visibility("default"))) const struct glm52_gpu_driver glm52_gpu_driver_metal = {
    .name = "metal",
    .open = metal_open,
    .close = metal_close,
    .limits = metal_limits,
    .allocate = glm52_metal_allocate,
    .release = glm52_metal_release,
    .adopt = glm52_metal_adopt,
    .disown = glm52_metal_disown,
    .publish = glm52_metal_publish,
    .read = glm52_metal_read,
    .write = glm52_metal_write,
    .clear = glm52_metal_clear,
    .device_address = glm52_metal_device_address,
    .pipeline = metal_pipeline,
    .dispatch = glm52_metal_dispatch,
    .flush = glm52_metal_flush,
    .signal = glm52_metal_signal,
    .wait_host = glm52_metal_wait_host,
    .hold = glm52_metal_hold,
    .release_hold = glm52_metal_release_hold,
    .finish = glm52_metal_finish,
    .device_ns = glm52_metal_device_ns,
    .longest_operand = glm52_metal_longest_operand,
    .cache = metal_cache,
};
