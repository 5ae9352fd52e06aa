/* fixture.c - the runner of the Metal driver's tests. Behind each test no object may be alive and no wrong use of Metal
 * have been seen. */
#include "fixture.h"

#include <sys/mman.h>

int check_failed;

struct glm52_gpu_state *open_driver(void) {
    struct glm52_gpu_state *state = NULL;
    CHECK_STATUS(GLM52_OK, METAL->open(glm52_fail, &state));
    if (state != NULL) return state;
    printf("no driver: %s\n", glm52_error_message());
    exit(1);
}

const struct glm52_gpu_pipeline *pipeline_of(struct glm52_gpu_state *state, const char *kernel) {
    const struct glm52_gpu_constants constants = {0};
    struct glm52_gpu_pipeline *pipeline = NULL;
    CHECK_STATUS(GLM52_OK, METAL->pipeline(state, kernel, &constants, &pipeline));
    if (pipeline != NULL) return pipeline;
    printf("no pipeline: %s\n", glm52_error_message());
    exit(1);
}

float *floats(struct glm52_gpu_state *state, uint32_t count, float value) {
    float *memory = METAL->allocate(state, count * sizeof(float));
    if (memory == NULL) {
        printf("no memory: %s\n", glm52_error_message());
        exit(1);
    }
    for (uint32_t i = 0; i < count; i++) memory[i] = value + (float)i;
    return memory;
}

void dispatch_sum(struct glm52_gpu_state *state, const struct glm52_gpu_pipeline *pipeline, float factor,
                  uint32_t count, const float *a, const float *b, float *out) {
    const struct sum_args args = {factor, count};
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {(count + 63) / 64, 1, 1},
        .threads = {64, 1, 1},
        .threadgroup_bytes = 60,
        .args = &args,
        .args_bytes = sizeof(args),
        .operands = {a, b, out},
        .operand_count = 3,
    };
    METAL->dispatch(state, pipeline, &dispatch);
}

void run_sum(struct glm52_gpu_state *state, const char *kernel, float factor, uint32_t count, const float *a,
             const float *b, float *out) {
    dispatch_sum(state, pipeline_of(state, kernel), factor, count, a, b, out);
}

void run_follow(struct glm52_gpu_state *state, uint32_t count, const void *table, float *out, const void *const *uses,
                uint32_t use_count) {
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {1, 1, 1},
        .threads = {32, 1, 1},
        .args = &count,
        .args_bytes = sizeof(count),
        .operands = {table, out},
        .operand_count = 2,
        .uses = uses,
        .use_count = use_count,
    };
    METAL->dispatch(state, pipeline_of(state, "follow"), &dispatch);
}

/* The linker has calls of these go to __wrap_. */
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);

static int allocations_left = -2;    /* -1: one was refused; below: none is */

static bool refuses(void) {
    return allocations_left >= 0 && allocations_left-- == 0;
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return refuses() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes) {
    return refuses() ? NULL : __real_realloc(memory, bytes);
}

char *__wrap_strdup(const char *text) {
    return refuses() ? NULL : __real_strdup(text);
}

void refuse_memory(int after) {
    allocations_left = after;
}

bool memory_was_refused(void) {
    const bool was = allocations_left == -1;
    allocations_left = -2;
    return was;
}

uint8_t *map_pages(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) exit(1);
    return memory;
}

void unmap_pages(uint8_t *memory, size_t bytes) {
    munmap(memory, bytes);
}

bool misuse_was(const char *text) {
    const bool was = strstr(fm_misuses(), text) != NULL;
    fm_forget_misuses();
    return was;
}

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
#define TEST(name) {#name, test_##name},
#include "driver_tests.def"
#undef TEST
};

static void run(void (*test)(void)) {
    fm_reset();
    fm_use(&test_kernels);
    test();
    if (fm_misuses()[0] != 0) {
        printf("Metal was misused:\n%s", fm_misuses());
        check_failed = 1;
    }
    fm_reset();
    const int live = fm_live();
    if (live != 0) {
        printf("%d objects are alive\n", live);
        check_failed = 1;
    }
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    const bool stops = argc > 1 && strcmp(argv[1], "--first") == 0;  /* at the first that fails */
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]) && !(stops && failed > 0); i++) {
        if (argc > 1 && !stops && strncmp(argv[1], tests[i].name, strlen(argv[1])) != 0) continue;
        check_failed = 0;
        run(tests[i].run);
        printf("%s %s\n", check_failed ? "FAIL" : "ok  ", tests[i].name);
        if (check_failed) failed++;
        else passed++;
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0 || passed == 0;
}
