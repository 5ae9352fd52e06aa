/* gpu_probe.c - what a GPU driver takes for the things that decoding does between kernels, without Python.
 *
 *     gpu-probe DRIVER [MODEL]
 *
 * DRIVER is metal, cuda or sim; its library, if it is one, lies beside this program. MODEL is a file that is adopted as
 * an engine does it. Each figure is the median of many. Exit status 0, or 1 with the driver's words. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "driver.h"
#include "error.h"
#include "glm52_ops.h"

#define ROUNDS 101
#define SMALL 256u
#define LARGE ((uint64_t)16 << 20)
#define LONGEST ((size_t)2 << 30)
#define GIB (1024.0 * 1024.0 * 1024.0)

struct probe {
    const struct glm52_gpu_driver *driver;
    struct glm52_gpu_state *state;
    struct glm52_gpu_pipeline *add;
    float *a, *b;
};

static void add(struct probe *probe, float *out, const float *a, uint64_t count) {
    const glm52_add_args args = {.count = count};
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {(uint32_t)((count + SMALL - 1) / SMALL), 1, 1},
        .threads = {SMALL, 1, 1},
        .args = &args,
        .args_bytes = sizeof(args),
        .operands = {out, a, probe->b},
        .operand_count = 3,
    };
    probe->driver->dispatch(probe->state, probe->add, &dispatch);
}

static int by_value(const void *left, const void *right) {
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* The median time of a part in microseconds; the part returns when to stop the clock, 0: now. */
static double median_us(struct probe *probe, int rounds, uint64_t (*part)(struct probe *)) {
    uint64_t times[ROUNDS];
    for (int i = 0; i < rounds; i++) {
        const uint64_t begun = glm52_now_ns();
        const uint64_t ended = part(probe);
        times[i] = (ended != 0 ? ended : glm52_now_ns()) - begun;
    }
    qsort(times, (size_t)rounds, sizeof(times[0]), by_value);
    return (double)times[rounds / 2] / 1e3;
}

static uint64_t one_dispatch(struct probe *probe) {
    add(probe, probe->a, probe->a, SMALL);
    (void)probe->driver->finish(probe->state);
    return 0;
}

static uint64_t thousand_dispatches(struct probe *probe) {
    for (int i = 0; i < 1000; i++) add(probe, probe->a, probe->a, SMALL);
    const uint64_t encoded = glm52_now_ns();
    (void)probe->driver->finish(probe->state);
    return encoded;
}

static uint64_t one_fence(struct probe *probe) {
    add(probe, probe->a, probe->a, SMALL);
    const uint64_t value = probe->driver->signal(probe->state);
    add(probe, probe->a, probe->a, SMALL);
    (void)probe->driver->wait_host(probe->state, value);
    const uint64_t reached = glm52_now_ns();
    (void)probe->driver->finish(probe->state);
    return reached;
}

/* The hand-over of a layer with experts to be read: the host learns what was chosen, and lets the device go on. */
static uint64_t one_hold(struct probe *probe) {
    const struct glm52_gpu_driver *driver = probe->driver;
    add(probe, probe->a, probe->a, SMALL);
    const uint64_t chosen = driver->signal(probe->state);
    const uint64_t hold = driver->hold(probe->state);
    add(probe, probe->a, probe->a, SMALL);
    const uint64_t end = driver->signal(probe->state);
    (void)driver->wait_host(probe->state, chosen);
    driver->release_hold(probe->state, hold);
    (void)driver->wait_host(probe->state, end);
    return 0;
}

static uint64_t large_add(struct probe *probe) {
    add(probe, probe->a, probe->a, LARGE);
    (void)probe->driver->finish(probe->state);
    return 0;
}

static glm52_status measure(struct probe *probe) {
    const struct glm52_gpu_driver *driver = probe->driver;
    const bool is_slow = strncmp(driver->name, "sim", 3) == 0; /* a simulator shows that this runs, and no more */
    printf("launch     %9.1f us   one small kernel, from its dispatch to finish\n",
           median_us(probe, ROUNDS, one_dispatch));
    printf("encode     %9.2f us   a dispatch among 1000, until it is encoded\n",
           median_us(probe, is_slow ? 3 : 21, thousand_dispatches) / 1000.0);
    printf("fence      %9.1f us   signal in the middle of a command buffer, until the host knows\n",
           median_us(probe, ROUNDS, one_fence));
    if (driver->hold != NULL) {
        printf("hold       %9.1f us   the host knows, lets go, the device goes on and says so\n",
               median_us(probe, ROUNDS, one_hold));
    }
    if (!is_slow) {
        const double us = median_us(probe, 21, large_add);
        printf("bandwidth  %9.1f GB/s 2 arrays read, 1 written, 64 MiB each, by the host's clock\n",
               3.0 * 4.0 * (double)LARGE / us / 1e3);
        const uint64_t ns = driver->device_ns(probe->state);
        if (ns > 0) printf("bandwidth  %9.1f GB/s by the device's clock\n", 3.0 * 4.0 * (double)LARGE / (double)ns);
    }
    return driver->finish(probe->state);
}

/* A file is adopted; a kernel reads its last page. */
static glm52_status adopt(struct probe *probe, const char *path) {
    struct stat about;
    const int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &about) != 0) return glm52_fail(GLM52_ERR_IO, "%s: can't be opened", path);
    const size_t bytes = (size_t)about.st_size;
    const uint8_t *memory = mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) return glm52_fail(GLM52_ERR_IO, "%s: can't be mapped", path);
    if (probe->driver->longest_operand != NULL) probe->driver->longest_operand(probe->state, LONGEST);
    uint64_t begun = glm52_now_ns();
    glm52_status status = probe->driver->adopt(probe->state, memory, bytes, false);
    if (status == GLM52_OK) {
        printf("adopt      %9.1f ms   %.2f GiB of %s\n", (double)(glm52_now_ns() - begun) / 1e6, (double)bytes / GIB,
               path);
        const float *last = (const float *)(const void *)(memory + (bytes / 4 - SMALL) * 4);
        begun = glm52_now_ns();
        add(probe, probe->a, last, SMALL);
        status = probe->driver->finish(probe->state);
        printf("its end    %9.1f ms   until a kernel has read it\n", (double)(glm52_now_ns() - begun) / 1e6);
        probe->driver->disown(probe->state, memory);
    }
    munmap((void *)(uintptr_t)memory, bytes);
    return status;
}

static glm52_status run(struct probe *probe, const char *model) {
    struct glm52_gpu_limits limits;
    const struct glm52_gpu_constants constants = {0};
    const uint64_t begun = glm52_now_ns();
    GLM52_TRY(probe->driver->open(glm52_fail, &probe->state));
    probe->driver->limits(probe->state, &limits);
    printf("device     %s\n", limits.device);
    printf("open       %9.1f ms   kernels compiled from their text included, where they are\n",
           (double)(glm52_now_ns() - begun) / 1e6);
    printf("memory     %9.2f GiB  recommended at most; one buffer %.2f GiB\n", (double)limits.working_set / GIB,
           (double)limits.buffer_max / GIB);
    printf("groups     %9u      threads at most; %u bytes of threadgroup memory\n", limits.threads_max,
           limits.threadgroup_bytes);
    GLM52_TRY(probe->driver->pipeline(probe->state, "add2", &constants, &probe->add));
    probe->a = probe->driver->allocate(probe->state, (size_t)LARGE * 4);
    probe->b = probe->driver->allocate(probe->state, (size_t)LARGE * 4);
    if (probe->a == NULL || probe->b == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for the measurements");
    GLM52_TRY(measure(probe));
    return model == NULL ? GLM52_OK : adopt(probe, model);
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: gpu-probe DRIVER [MODEL]\n");
        return 2;
    }
    struct probe probe = {.driver = glm52_gpu_find(argv[1])};
    if (probe.driver == NULL) {
        fprintf(stderr, "gpu-probe: there is no driver \"%s\" here\n", argv[1]);
        return 1;
    }
    const glm52_status status = run(&probe, argc == 3 ? argv[2] : NULL);
    if (status != GLM52_OK) fprintf(stderr, "gpu-probe: %s\n", glm52_error_message());
    if (probe.state != NULL) probe.driver->close(probe.state);
    return status != GLM52_OK;
}
