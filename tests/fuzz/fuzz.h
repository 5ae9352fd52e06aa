/* fuzz.h - what the fuzz target and its driver share.
 *
 * An input is a GGUF file as it is, or two shards of one: "SPLIT", u32 bytes of the first, the first, the
 * second. All-zero numbers before the first call. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

#define FUZZ_SPLIT_MAGIC "SPLIT"
#define FUZZ_SPLIT_HEAD 9

/* How far inputs came. */
struct fuzz_counts {
    uint64_t inputs, opened, shaped, bound;
    uint64_t refused[16];    /* by glm52_status */
};
extern struct fuzz_counts fuzz_counts;

/* Entry of a fuzzing engine: handles one input, returns 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Handles an input that is a model, each time with another allocation that fails, and returns how many there are.
 * Every one must end in a refusal that leaks nothing. */
uint64_t fuzz_without_memory(const uint8_t *data, size_t size);

/* A random generator whose whole state is a number that can be printed: splitmix64. */
uint64_t fuzz_random(uint64_t *state);

struct fuzz_input {
    uint8_t *bytes;
    size_t count;
};

/* Changes *input, a copy of a seed, in 1 to 4 places; other is another seed to take pieces from. */
void fuzz_mutate(struct fuzz_input *input, const struct fuzz_input *other, uint64_t *random);

#endif
