/* kernels.c - kernels of the driver's tests. */
#include "kernels.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONSTANTS 5
#define KERNELS_MAX 64

struct kernel {
    const char *(*run)(const struct kernel *, const struct fm_run *);
    uint32_t constants[FM_CONSTANTS];
};

static bool has(const struct fm_run *run, int index, size_t bytes) {
    return run->buffers[index].memory != NULL && run->buffers[index].bytes >= bytes;
}

static const char *sum(const struct kernel *kernel, const struct fm_run *run) {
    (void)kernel;
    struct sum_args args;
    if (!has(run, 0, sizeof(args)) || run->buffers[0].bytes != sizeof(args)) return "sum: args";
    memcpy(&args, run->buffers[0].memory, sizeof(args));
    const size_t bytes = args.count * sizeof(float);
    if (!has(run, 1, bytes) || !has(run, 2, bytes) || !has(run, 3, bytes)) return "sum: an operand is short or missing";
    if (run->buffers[4].memory != NULL) return "sum: more operands than it has";
    if ((uint64_t)run->groups[0] * run->threads[0] < args.count) return "sum: too few threads";
    if (run->threadgroup_bytes != 64) return "sum: threadgroup memory";
    const float *a = (const float *)(const void *)run->buffers[1].memory;
    const float *b = (const float *)(const void *)run->buffers[2].memory;
    float *out = (float *)(void *)run->buffers[3].memory;
    for (uint32_t i = 0; i < args.count; i++) out[i] = a[i] + args.factor * b[i];
    return NULL;
}

static const char *late(const struct kernel *kernel, const struct fm_run *run) {
    usleep(30000);
    return sum(kernel, run);
}

static const char *follow(const struct kernel *kernel, const struct fm_run *run) {
    (void)kernel;
    uint32_t count;
    if (!has(run, 0, sizeof(count))) return "follow: args";
    memcpy(&count, run->buffers[0].memory, sizeof(count));
    if (!has(run, 1, count * sizeof(uint64_t)) || !has(run, 2, count * sizeof(float))) return "follow: operands";
    for (uint32_t i = 0; i < count; i++) {
        uint64_t address;
        memcpy(&address, run->buffers[1].memory + i * sizeof(address), sizeof(address));
        const void *found = fm_resolve(run, address, sizeof(float));
        if (found == NULL) return "follow: an address that is not resident";
        memcpy(run->buffers[2].memory + i * sizeof(float), found, sizeof(float));
    }
    return NULL;
}

static const char *constants(const struct kernel *kernel, const struct fm_run *run) {
    if (!has(run, 1, CONSTANTS * sizeof(uint32_t))) return "constants: operand";
    memcpy(run->buffers[1].memory, kernel->constants, CONSTANTS * sizeof(uint32_t));
    return NULL;
}

static const char *breaks(const struct kernel *kernel, const struct fm_run *run) {
    (void)kernel, (void)run;
    return "kernel breaks";
}

static const void *find(const char *name, const uint32_t values[FM_CONSTANTS], const char **why_out) {
    static struct kernel kernels[KERNELS_MAX];
    static uint32_t next;
    static const struct {
        const char *name;
        const char *(*run)(const struct kernel *, const struct fm_run *);
    } known[] = {{"sum", sum}, {"late", late}, {"follow", follow}, {"constants", constants}, {"breaks", breaks}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        struct kernel *kernel = &kernels[next++ % KERNELS_MAX];
        kernel->run = known[i].run;
        memcpy(kernel->constants, values, sizeof(kernel->constants));
        return kernel;
    }
    *why_out = "no function of that name";
    return NULL;
}

static const char *run(const struct fm_run *given) {
    const struct kernel *kernel = given->kernel;
    return kernel->run(kernel, given);
}

const struct fm_executor test_kernels = {.find = find, .run = run};
