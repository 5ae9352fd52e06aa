/* sim_executor.c - kernels on the fake framework run in the simulator, whose library lies beside this one. With it the
 * driver is a backend like any other: libglm52_metal.so. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "fake_metal.h"

#define SPANS_MAX 4096

static const struct glm52_gpu_driver *sim;
static struct glm52_gpu_state *state;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char message[4096];
/* Buffers, and what part of each the simulator was told of: buffers over one mapping overlap. */
static struct {
    const uint8_t *memory, *told;
    size_t bytes, told_bytes;
} spans[SPANS_MAX];
static uint32_t span_count;

static glm52_status keep_message(glm52_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return status;
}

/* Tells the simulator of what it doesn't know yet of a buffer. */
static void tell(uint32_t at) {
    const uint8_t *begin = spans[at].memory, *end = begin + spans[at].bytes;
    for (uint32_t i = 0; i < span_count; i++) {
        if (i == at || spans[i].told == NULL) continue;
        const uint8_t *other = spans[i].told, *other_end = other + spans[i].told_bytes;
        if (other <= begin && other_end > begin) begin = other_end;
        else if (other > begin && other < end) end = other;
    }
    spans[at].told = begin < end && sim->adopt(state, begin, (size_t)(end - begin), false) == GLM52_OK ? begin : NULL;
    spans[at].told_bytes = begin < end ? (size_t)(end - begin) : 0;
}

static void forget(uint32_t at) {
    if (spans[at].told != NULL) sim->disown(state, spans[at].told);
    spans[at].told = NULL;
}

static void mapped(void *memory, size_t bytes) {
    pthread_mutex_lock(&lock);
    if (span_count == SPANS_MAX) abort();
    spans[span_count].memory = memory;
    spans[span_count].told = NULL;
    spans[span_count].bytes = bytes;
    tell(span_count++);
    pthread_mutex_unlock(&lock);
}

/* What others of the same memory left to this buffer is theirs now: a buffer may go when the next one over the same
 * file has come. */
static void unmapped(void *memory, size_t bytes) {
    pthread_mutex_lock(&lock);
    uint32_t at = 0;
    while (at < span_count && (spans[at].memory != memory || spans[at].bytes != bytes)) at++;
    if (at == span_count) abort();
    forget(at);
    const uint8_t *begin = spans[at].memory, *end = begin + bytes;
    spans[at] = spans[--span_count];
    for (uint32_t i = 0; i < span_count; i++) {
        if (spans[i].memory >= end || spans[i].memory + spans[i].bytes <= begin) continue;
        if (spans[i].told == spans[i].memory && spans[i].told_bytes == spans[i].bytes) continue;
        forget(i);
        tell(i);
    }
    pthread_mutex_unlock(&lock);
}

static const void *find(const char *name, const uint32_t constants[FM_CONSTANTS], const char **why_out) {
    struct glm52_gpu_constants own;
    memcpy(&own, constants, sizeof(own));
    struct glm52_gpu_pipeline *pipeline = NULL;
    pthread_mutex_lock(&lock);
    if (sim->pipeline(state, name, &own, &pipeline) != GLM52_OK) *why_out = message;
    pthread_mutex_unlock(&lock);
    return pipeline;
}

static const char *run(const struct fm_run *run) {
    struct glm52_gpu_dispatch dispatch = {
        .threadgroup_bytes = (uint32_t)run->threadgroup_bytes,
        .args = run->buffers[0].memory,
        .args_bytes = (uint32_t)run->buffers[0].bytes,
        .uses = run->resident,
        .use_count = run->resident_count,
    };
    memcpy(dispatch.groups, run->groups, sizeof(dispatch.groups));
    memcpy(dispatch.threads, run->threads, sizeof(dispatch.threads));
    for (uint32_t i = 0; i < GLM52_GPU_OPERANDS_MAX; i++) {
        dispatch.operands[i] = run->buffers[i + 1].memory;
        if (dispatch.operands[i] != NULL) dispatch.operand_count = i + 1;
    }
    pthread_mutex_lock(&lock);
    sim->dispatch(state, run->kernel, &dispatch);
    const glm52_status status = sim->finish(state);
    pthread_mutex_unlock(&lock);
    return status == GLM52_OK ? NULL : message;
}

static const struct fm_executor executor = {.find = find, .run = run, .mapped = mapped, .unmapped = unmapped};

/* The library of this name in the folder of the code that asks. */
static void *open_beside(const char *name) {
    char path[4096 + 64];
    Dl_info info;
    if (dladdr(&span_count, &info) == 0) return NULL;
    const char *slash = strrchr(info.dli_fname, '/');
    snprintf(path, sizeof(path), "%.*s%s", slash == NULL ? 0 : (int)(slash + 1 - info.dli_fname), info.dli_fname, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Before the driver is opened. Without an executor the framework has no device. */
__attribute__((constructor)) static void begin(void) {
    fm_reset();
    fm_device.address_tag = 0;   /* compiled kernels follow the addresses that they are given */
    void *library = open_beside("libglm52_sim.so");
    if (library != NULL) sim = dlsym(library, "glm52_gpu_driver_sim");
    if (sim != NULL && sim->open(keep_message, &state) == GLM52_OK) fm_use(&executor);
}
