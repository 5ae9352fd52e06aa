/* fixture.h - a driver to test: opening it, and dispatches of the test kernels. */
#ifndef GLM52_METAL_TESTS_FIXTURE_H
#define GLM52_METAL_TESTS_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "../native/refused.h"
#include "driver.h"
#include "error.h"
#include "fake_metal.h"
#include "kernels.h"

#define TEST(name) void test_##name(void);
#include "driver_tests.def"
#undef TEST

extern const struct glm52_gpu_driver glm52_gpu_driver_metal;
#define METAL (&glm52_gpu_driver_metal)

/* An open driver; the test ends where there is none. */
struct glm52_gpu_state *open_driver(void);
const struct glm52_gpu_pipeline *pipeline_of(struct glm52_gpu_state *, const char *kernel);
/* count floats of the device's memory, value, value + 1, ... */
float *floats(struct glm52_gpu_state *, uint32_t count, float value);
/* out = a + factor b by a kernel with that interface ("sum", "late"). */
void run_sum(struct glm52_gpu_state *, const char *kernel, float factor, uint32_t count, const float *a, const float *b,
             float *out);
void dispatch_sum(struct glm52_gpu_state *, const struct glm52_gpu_pipeline *, float factor, uint32_t count,
                  const float *a, const float *b, float *out);
/* out = the floats at the addresses in table; uses as in the dispatch. */
void run_follow(struct glm52_gpu_state *, uint32_t count, const void *table, float *out, const void *const *uses,
                uint32_t use_count);
/* Has the driver's calloc, realloc and strdup fail once, after as many; whether that has come to pass, and no more. */
void refuse_memory(int after);
bool memory_was_refused(void);
/* Whole pages of memory that is no driver's, zeroed; unmap_pages gives them up. */
uint8_t *map_pages(size_t bytes);
void unmap_pages(uint8_t *memory, size_t bytes);
/* Wrong uses of Metal that a test expects: says whether the text is among them, and forgets them all. */
bool misuse_was(const char *text);

#endif
