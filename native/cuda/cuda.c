/* cuda.c - driver: CUDA. One stream runs the commands in their order, a second one takes in what the host publishes.
 *
 * Device memory has its own addresses, which are what allocate returns. Adopted memory is mirrored: its operands are
 * the host's addresses, found in a list of spans and put at the same distance into the mirror. Mirrors keep the
 * alignment of the host's address modulo 256 bytes.
 *
 * Dispatches are recorded, and flush hands what was recorded over as one graph: the kernels of a graph follow each
 * other with less between them than launches do. A step that is made of the same kernels as the one before (a decoded
 * token) gives its numbers to the graphs that are there, the first segment to the first and so on.
 *
 * The CUDA runtime is linked in statically and itself looks for the system's libcuda, so that this library loads
 * on a machine without one and open says that there is no device. */
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "launch.h"

#define ALIGNMENT 256u
#define STAGE_BYTES ((size_t)32 << 20)
#define FENCES 64u
#define MESSAGE_BYTES 512
/* Segments of a step whose graphs are kept; those behind take turns. */
#define GRAPHS 64u

struct span {
    const uint8_t *host;
    size_t bytes;
    uint8_t *memory;             /* what was allocated */
    uint8_t *mirror;             /* of host, in memory */
    bool is_registered;          /* pinned: copies run beside the host */
};

struct glm52_gpu_pipeline {
    const struct glm52_cuda_kernel *kernel;
};

struct glm52_gpu_state {
    cudaStream_t stream, copies;
    cudaEvent_t fence[FENCES];   /* of value v: fence[v % FENCES] */
    uint64_t fence_value;
    cudaEvent_t copied, begun, ended;
    bool has_begun;
    uint64_t device_ns;

    bool is_recording;
    bool has_no_graphs;          /* they failed once: launches go straight to the device */
    uint32_t segment;            /* of the step */
    cudaGraphExec_t graphs[GRAPHS];

    struct span *spans;          /* ascending by host */
    uint32_t span_count, span_room;
    struct glm52_gpu_pipeline **pipelines;
    uint32_t pipeline_count, pipeline_room;
    struct glm52_gpu_limits limits;

    glm52_status fault;          /* the first since the last finish */
    bool is_lost;                /* every call fails from here on */
    char message[MESSAGE_BYTES];
};

/* ---- faults ---- */

/* The library that loads this one has the error buffer; open brings its writer, always the same. */
static glm52_gpu_fail *glm52_fail;

/* Errors that leave the device as it was; behind all others the context is dead. */
static bool is_mild(cudaError_t error) {
    return error == cudaErrorMemoryAllocation || error == cudaErrorInvalidValue ||
           error == cudaErrorInvalidConfiguration || error == cudaErrorHostMemoryAlreadyRegistered ||
           error == cudaErrorNotSupported || error == cudaErrorLaunchOutOfResources;
}

static void keep_fault(struct glm52_gpu_state *state, cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    (void)cudaGetLastError();
    if (!is_mild(error)) state->is_lost = true;
    if (state->fault != GLM52_OK) return;
    state->fault = error == cudaErrorMemoryAllocation ? GLM52_ERR_MEMORY : GLM52_ERR_IO;
    snprintf(state->message, sizeof(state->message), "cuda: %s: %s (%s)", what, cudaGetErrorString(error),
             cudaGetErrorName(error));
}

static void keep_misuse(struct glm52_gpu_state *state, const char *kernel, const char *what) {
    if (state->fault != GLM52_OK) return;
    state->fault = GLM52_ERR_ARGUMENT;
    snprintf(state->message, sizeof(state->message), "cuda: kernel %s: %s", kernel, what);
}

static glm52_status take_fault(struct glm52_gpu_state *state) {
    const glm52_status status = state->fault;
    if (status == GLM52_OK) return GLM52_OK;
    if (!state->is_lost) state->fault = GLM52_OK;
    return glm52_fail(status, "%s", state->message);
}

/* ---- recording ---- */

/* The graph of this segment, with recorded's numbers; made anew where the kernels are not those of the step before. */
static cudaError_t renew_graph(struct glm52_gpu_state *state, cudaGraph_t recorded, cudaGraphExec_t *graph) {
    if (*graph != NULL) {
        cudaGraphExecUpdateResultInfo info;
        if (cudaGraphExecUpdate(*graph, recorded, &info) == cudaSuccess) return cudaSuccess;
        (void)cudaGetLastError();
        keep_fault(state, cudaGraphExecDestroy(*graph), "giving up a graph");
        *graph = NULL;
    }
    return cudaGraphInstantiate(graph, recorded, 0);
}

/* Hands over what was recorded. */
static void hand_over(struct glm52_gpu_state *state) {
    if (!state->is_recording) return;
    state->is_recording = false;
    cudaGraph_t recorded = NULL;
    cudaError_t error = cudaStreamEndCapture(state->stream, &recorded);
    cudaGraphExec_t *graph = &state->graphs[state->segment++ % GRAPHS];
    if (error == cudaSuccess) error = renew_graph(state, recorded, graph);
    if (error == cudaSuccess) error = cudaGraphLaunch(*graph, state->stream);
    if (recorded != NULL) (void)cudaGraphDestroy(recorded);
    if (error != cudaSuccess) state->has_no_graphs = true;
    keep_fault(state, error, "handing over a graph");
}

static void begin_timing(struct glm52_gpu_state *state) {
    if (state->has_begun) return;
    state->has_begun = cudaEventRecord(state->begun, state->stream) == cudaSuccess;
}

static void record(struct glm52_gpu_state *state) {
    if (state->is_recording || state->has_no_graphs) return;
    begin_timing(state);
    const cudaError_t error = cudaStreamBeginCapture(state->stream, cudaStreamCaptureModeRelaxed);
    if (error == cudaSuccess) state->is_recording = true;
    else state->has_no_graphs = true;
    (void)cudaGetLastError();
}

/* ---- opening ---- */

static void describe(struct glm52_gpu_state *state, const struct cudaDeviceProp *about) {
    struct glm52_gpu_limits *limits = &state->limits;
    snprintf(limits->device, sizeof(limits->device), "%.*s", (int)sizeof(limits->device) - 1, about->name);
    limits->working_set = about->totalGlobalMem;
    limits->buffer_max = about->totalGlobalMem;
    limits->threads_max = (uint32_t)about->maxThreadsPerBlock;
    limits->threadgroup_bytes = (uint32_t)about->sharedMemPerBlockOptin;
    limits->unified = false;
}

static cudaError_t make_events(struct glm52_gpu_state *state) {
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < FENCES && error == cudaSuccess; i++) {
        error = cudaEventCreateWithFlags(&state->fence[i], cudaEventDisableTiming);
    }
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&state->copied, cudaEventDisableTiming);
    if (error == cudaSuccess) error = cudaEventCreate(&state->begun);
    if (error == cudaSuccess) error = cudaEventCreate(&state->ended);
    return error;
}

static void driver_close(struct glm52_gpu_state *state) {
    if (state == NULL) return;
    hand_over(state);
    if (state->stream != NULL) (void)cudaStreamSynchronize(state->stream);
    if (state->copies != NULL) (void)cudaStreamSynchronize(state->copies);
    for (uint32_t i = 0; i < state->span_count; i++) {
        if (state->spans[i].is_registered) (void)cudaHostUnregister((void *)(uintptr_t)state->spans[i].host);
        (void)cudaFree(state->spans[i].memory);
    }
    for (uint32_t i = 0; i < FENCES; i++) {
        if (state->fence[i] != NULL) (void)cudaEventDestroy(state->fence[i]);
    }
    for (uint32_t i = 0; i < GRAPHS; i++) {
        if (state->graphs[i] != NULL) (void)cudaGraphExecDestroy(state->graphs[i]);
    }
    if (state->copied != NULL) (void)cudaEventDestroy(state->copied);
    if (state->begun != NULL) (void)cudaEventDestroy(state->begun);
    if (state->ended != NULL) (void)cudaEventDestroy(state->ended);
    if (state->stream != NULL) (void)cudaStreamDestroy(state->stream);
    if (state->copies != NULL) (void)cudaStreamDestroy(state->copies);
    for (uint32_t i = 0; i < state->pipeline_count; i++) free(state->pipelines[i]);
    free(state->pipelines);
    free(state->spans);
    free(state);
}

static glm52_status driver_open(glm52_gpu_fail *fail, struct glm52_gpu_state **state_out) {
    glm52_fail = fail;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        (void)cudaGetLastError();
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "cuda: no device: %s",
                          error == cudaSuccess ? "the system has none" : cudaGetErrorString(error));
    }
    struct cudaDeviceProp about;
    error = cudaGetDeviceProperties(&about, 0);
    if (error == cudaSuccess && about.major < 8) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "cuda: %s has compute capability %d.%d; at least 8.0 is needed",
                          about.name, about.major, about.minor);
    }
    struct glm52_gpu_state *state = calloc(1, sizeof(*state));
    if (state == NULL) return glm52_fail(GLM52_ERR_MEMORY, "cuda: no memory for a driver");
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&state->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&state->copies, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = make_events(state);
    if (error != cudaSuccess) {
        driver_close(state);
        return glm52_fail(error == cudaErrorMemoryAllocation ? GLM52_ERR_MEMORY : GLM52_ERR_UNSUPPORTED,
                          "cuda: can't open the device: %s", cudaGetErrorString(error));
    }
    describe(state, &about);
    *state_out = state;
    return GLM52_OK;
}

static void driver_limits(const struct glm52_gpu_state *state, struct glm52_gpu_limits *limits_out) {
    *limits_out = state->limits;
}

/* ---- memory ---- */

static void *driver_allocate(struct glm52_gpu_state *state, size_t bytes) {
    void *address = NULL;
    hand_over(state);
    cudaError_t error = cudaMalloc(&address, bytes > 0 ? bytes : 1);
    if (error == cudaSuccess) error = cudaMemsetAsync(address, 0, bytes, state->stream);
    if (error == cudaSuccess) return address;
    (void)cudaGetLastError();
    if (address != NULL) (void)cudaFree(address);
    return NULL;
}

static void driver_release(struct glm52_gpu_state *state, void *address) {
    if (address == NULL) return;
    hand_over(state);
    keep_fault(state, cudaStreamSynchronize(state->stream), "waiting before memory is freed");
    keep_fault(state, cudaFree(address), "freeing memory");
}

/* The span that holds an address of the host, NULL if none does. */
static const struct span *find_span(const struct glm52_gpu_state *state, const void *address) {
    const uint8_t *at = address;
    uint32_t low = 0, high = state->span_count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (state->spans[middle].host <= at) low = middle + 1;
        else high = middle;
    }
    if (low == 0) return NULL;
    const struct span *span = &state->spans[low - 1];
    return (size_t)(at - span->host) < span->bytes ? span : NULL;
}

/* What the device knows an address as. */
static void *on_device(const struct glm52_gpu_state *state, const void *address) {
    const struct span *span = address == NULL ? NULL : find_span(state, address);
    if (span == NULL) return (void *)(uintptr_t)address;
    return span->mirror + ((const uint8_t *)address - span->host);
}

static uint64_t driver_device_address(struct glm52_gpu_state *state, const void *address) {
    return (uint64_t)(uintptr_t)on_device(state, address);
}

/* Copies a file's pages through two pinned buffers, so that pages are read while others are on their way. */
static cudaError_t copy_mapping(struct glm52_gpu_state *state, uint8_t *to, const uint8_t *from, size_t bytes) {
    void *stage[2] = {NULL, NULL};
    cudaEvent_t done[2] = {NULL, NULL};
    cudaError_t error = cudaSuccess;
    for (int i = 0; i < 2 && error == cudaSuccess; i++) {
        error = cudaMallocHost(&stage[i], bytes < STAGE_BYTES ? bytes : STAGE_BYTES);
        if (error == cudaSuccess) error = cudaEventCreateWithFlags(&done[i], cudaEventDisableTiming);
    }
    size_t at = 0;
    for (int i = 0; at < bytes && error == cudaSuccess; i ^= 1) {
        const size_t part = bytes - at < STAGE_BYTES ? bytes - at : STAGE_BYTES;
        error = cudaEventSynchronize(done[i]);
        if (error != cudaSuccess) break;
        memcpy(stage[i], from + at, part);
        error = cudaMemcpyAsync(to + at, stage[i], part, cudaMemcpyHostToDevice, state->stream);
        if (error == cudaSuccess) error = cudaEventRecord(done[i], state->stream);
        at += part;
    }
    const cudaError_t last = cudaStreamSynchronize(state->stream);
    for (int i = 0; i < 2; i++) {
        if (stage[i] != NULL) (void)cudaFreeHost(stage[i]);
        if (done[i] != NULL) (void)cudaEventDestroy(done[i]);
    }
    return error != cudaSuccess ? error : last;
}

static bool make_room(struct glm52_gpu_state *state) {
    if (state->span_count < state->span_room) return true;
    const uint32_t room = state->span_room == 0 ? 16 : 2 * state->span_room;
    struct span *spans = realloc(state->spans, room * sizeof(*spans));
    if (spans == NULL) return false;
    state->spans = spans;
    state->span_room = room;
    return true;
}

static glm52_status driver_adopt(struct glm52_gpu_state *state, const void *host, size_t bytes, bool will_change) {
    if (bytes == 0) return glm52_fail(GLM52_ERR_ARGUMENT, "cuda: adopting 0 bytes");
    hand_over(state);
    if (!make_room(state)) return glm52_fail(GLM52_ERR_MEMORY, "cuda: no memory for a list of spans");
    const size_t shift = (uintptr_t)host % ALIGNMENT;
    struct span span = {.host = host, .bytes = bytes};
    void *memory = NULL;
    cudaError_t error = cudaMalloc(&memory, bytes + shift);
    span.memory = memory;
    span.mirror = span.memory + shift;
    if (error == cudaSuccess && !will_change) error = copy_mapping(state, span.mirror, host, bytes);
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        if (span.memory != NULL) (void)cudaFree(span.memory);
        if (error == cudaErrorMemoryAllocation) {
            size_t left = 0, total = 0;
            (void)cudaMemGetInfo(&left, &total);
            return glm52_fail(GLM52_ERR_BUDGET, "cuda: %zu bytes of the host's memory need as many on %s, which has "
                              "%zu of %zu bytes left", bytes, state->limits.device, left, total);
        }
        return glm52_fail(GLM52_ERR_IO, "cuda: copying %zu bytes to %s: %s", bytes, state->limits.device,
                          cudaGetErrorString(error));
    }
    /* Without pinning copies are slower and no less right. */
    if (will_change) {
        span.is_registered = cudaHostRegister((void *)(uintptr_t)host, bytes, cudaHostRegisterDefault) == cudaSuccess;
        (void)cudaGetLastError();
    }
    uint32_t at = state->span_count++;
    for (; at > 0 && state->spans[at - 1].host > span.host; at--) state->spans[at] = state->spans[at - 1];
    state->spans[at] = span;
    return GLM52_OK;
}

static void driver_disown(struct glm52_gpu_state *state, const void *host) {
    for (uint32_t i = 0; i < state->span_count; i++) {
        if (state->spans[i].host != host) continue;
        hand_over(state);
        keep_fault(state, cudaStreamSynchronize(state->copies), "waiting before a span is given up");
        keep_fault(state, cudaStreamSynchronize(state->stream), "waiting before a span is given up");
        if (state->spans[i].is_registered) (void)cudaHostUnregister((void *)(uintptr_t)host);
        keep_fault(state, cudaFree(state->spans[i].memory), "freeing a span");
        state->span_count--;
        memmove(&state->spans[i], &state->spans[i + 1], (state->span_count - i) * sizeof(state->spans[0]));
        return;
    }
}

static void driver_publish(struct glm52_gpu_state *state, const void *host, size_t bytes) {
    const struct span *span = find_span(state, host);
    if (span == NULL || bytes > span->bytes - (size_t)((const uint8_t *)host - span->host)) {
        keep_misuse(state, "publish", "memory that was not adopted");
        return;
    }
    hand_over(state);
    keep_fault(state, cudaMemcpyAsync(on_device(state, host), host, bytes, cudaMemcpyHostToDevice, state->copies),
               "copying what was published");
    keep_fault(state, cudaEventRecord(state->copied, state->copies), "marking a copy");
    keep_fault(state, cudaStreamWaitEvent(state->stream, state->copied, 0), "waiting for a copy");
}

static void driver_read(struct glm52_gpu_state *state, void *host, const void *address, size_t bytes) {
    hand_over(state);
    state->segment = 0;
    keep_fault(state, cudaMemcpyAsync(host, on_device(state, address), bytes, cudaMemcpyDeviceToHost, state->stream),
               "reading memory");
    keep_fault(state, cudaStreamSynchronize(state->stream), "waiting for what was read");
}

static void driver_write(struct glm52_gpu_state *state, void *address, const void *host, size_t bytes) {
    hand_over(state);
    keep_fault(state, cudaMemcpyAsync(on_device(state, address), host, bytes, cudaMemcpyHostToDevice, state->stream),
               "writing memory");
}

static void driver_clear(struct glm52_gpu_state *state, void *address, size_t bytes) {
    record(state);
    keep_fault(state, cudaMemsetAsync(on_device(state, address), 0, bytes, state->stream), "clearing memory");
}

/* ---- kernels ---- */

static bool is_glm(const struct glm52_gpu_constants *c) {
    return c->latent == 512 && c->rope == 64 && c->nope == 192 && c->value == 256 && c->index_key == 128;
}

static const struct glm52_cuda_kernel *find_kernel(const char *name, const struct glm52_gpu_constants *constants) {
    const struct glm52_cuda_kernel *const *units = is_glm(constants) ? glm52_cuda_units_glm : glm52_cuda_units_generic;
    for (; *units != NULL; units++) {
        for (const struct glm52_cuda_kernel *kernel = *units; kernel->name != NULL; kernel++) {
            if (strcmp(kernel->name, name) == 0) return kernel;
        }
    }
    return NULL;
}

static glm52_status driver_pipeline(struct glm52_gpu_state *state, const char *name,
                                    const struct glm52_gpu_constants *constants,
                                    struct glm52_gpu_pipeline **pipeline_out) {
    const struct glm52_cuda_kernel *kernel = find_kernel(name, constants);
    if (kernel == NULL) return glm52_fail(GLM52_ERR_UNSUPPORTED, "cuda: there is no kernel \"%s\"", name);
    if (state->pipeline_count == state->pipeline_room) {
        const uint32_t room = state->pipeline_room == 0 ? 64 : 2 * state->pipeline_room;
        struct glm52_gpu_pipeline **list = realloc(state->pipelines, room * sizeof(struct glm52_gpu_pipeline *));
        if (list == NULL) return glm52_fail(GLM52_ERR_MEMORY, "cuda: no memory for a list of pipelines");
        state->pipelines = list;
        state->pipeline_room = room;
    }
    struct glm52_gpu_pipeline *pipeline = malloc(sizeof(*pipeline));
    if (pipeline == NULL) return glm52_fail(GLM52_ERR_MEMORY, "cuda: no memory for a pipeline");
    pipeline->kernel = kernel;
    state->pipelines[state->pipeline_count++] = pipeline;
    *pipeline_out = pipeline;
    return GLM52_OK;
}

static void driver_dispatch(struct glm52_gpu_state *state, const struct glm52_gpu_pipeline *pipeline,
                            const struct glm52_gpu_dispatch *dispatch) {
    if (state->is_lost) return;
    const struct glm52_cuda_kernel *kernel = pipeline->kernel;
    if (dispatch->args_bytes < kernel->args_bytes || dispatch->operand_count < kernel->operand_count ||
        dispatch->operand_count >= GLM52_CUDA_OPERANDS) {
        keep_misuse(state, kernel->name, "numbers or operands are missing");
        return;
    }
    struct glm52_cuda_launch launch = {.threadgroup_bytes = dispatch->threadgroup_bytes};
    memcpy(launch.groups, dispatch->groups, sizeof(launch.groups));
    memcpy(launch.threads, dispatch->threads, sizeof(launch.threads));
    launch.operands[0] = dispatch->args;
    for (uint32_t i = 0; i < dispatch->operand_count; i++) {
        launch.operands[i + 1] = on_device(state, dispatch->operands[i]);
    }
    record(state);
    begin_timing(state);
    keep_fault(state, (cudaError_t)kernel->launch(&launch, state->stream), kernel->name);
}

static void driver_flush(struct glm52_gpu_state *state) {
    hand_over(state);
}

/* ---- fences ---- */

static uint64_t driver_signal(struct glm52_gpu_state *state) {
    hand_over(state);
    const uint64_t value = ++state->fence_value;
    keep_fault(state, cudaEventRecord(state->fence[value % FENCES], state->stream), "signalling a fence");
    return value;
}

static glm52_status driver_wait_host(struct glm52_gpu_state *state, uint64_t value) {
    if (value > state->fence_value) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "cuda: waiting for fence %llu; the last is %llu",
                          (unsigned long long)value, (unsigned long long)state->fence_value);
    }
    /* The event of an older fence stands for a later one by now, behind which it was reached. */
    keep_fault(state, cudaEventSynchronize(state->fence[value % FENCES]), "waiting for a fence");
    return take_fault(state);
}

static glm52_status driver_finish(struct glm52_gpu_state *state) {
    hand_over(state);
    state->segment = 0;
    if (state->has_begun) keep_fault(state, cudaEventRecord(state->ended, state->stream), "marking the end");
    keep_fault(state, cudaStreamSynchronize(state->copies), "waiting for copies");
    keep_fault(state, cudaStreamSynchronize(state->stream), "waiting for the device");
    float ms = 0.0f;
    if (state->has_begun && !state->is_lost && cudaEventElapsedTime(&ms, state->begun, state->ended) == cudaSuccess) {
        state->device_ns = (uint64_t)((double)ms * 1e6);
    }
    state->has_begun = false;
    return take_fault(state);
}

static uint64_t driver_device_ns(const struct glm52_gpu_state *state) { return state->device_ns; }

__attribute__((visibility("default"))) extern const struct glm52_gpu_driver glm52_gpu_driver_cuda;
const struct glm52_gpu_driver glm52_gpu_driver_cuda = {
    .name = "cuda",
    .open = driver_open,
    .close = driver_close,
    .limits = driver_limits,
    .allocate = driver_allocate,
    .release = driver_release,
    .adopt = driver_adopt,
    .disown = driver_disown,
    .publish = driver_publish,
    .read = driver_read,
    .write = driver_write,
    .clear = driver_clear,
    .device_address = driver_device_address,
    .pipeline = driver_pipeline,
    .dispatch = driver_dispatch,
    .flush = driver_flush,
    .signal = driver_signal,
    .wait_host = driver_wait_host,
    .hold = NULL,
    .release_hold = NULL,
    .finish = driver_finish,
    .device_ns = driver_device_ns,
};
