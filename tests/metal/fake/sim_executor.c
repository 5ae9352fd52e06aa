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
    size_t bytes;
} spans[SPANS_MAX];
static uint32_t span_count;

static glm52_status keep_message(glm52_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return status;
}

static void mapped(void *memory, size_t bytes) {
    pthread_mutex_lock(&lock);
    const uint8_t *begin = memory, *end = begin + bytes;
    for (uint32_t i = 0; i < span_count; i++) {
        const uint8_t *other_end = spans[i].memory + spans[i].bytes;
        if (spans[i].memory <= begin && other_end > begin) begin = other_end;
    }
    const bool is_told = begin < end && sim->adopt(state, begin, (size_t)(end - begin), true) == GLM52_OK;
    if (span_count == SPANS_MAX) abort();
    spans[span_count].memory = memory;
    spans[span_count].told = is_told ? begin : NULL;
    spans[span_count++].bytes = bytes;
    pthread_mutex_unlock(&lock);
}

static void unmapped(void *memory) {
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < span_count; i++) {
        if (spans[i].memory != memory) continue;
        if (spans[i].told != NULL) sim->disown(state, spans[i].told);
        spans[i] = spans[--span_count];
        break;
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
