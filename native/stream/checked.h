/* checked.h - sums and products that do not wrap. */
#ifndef GLM52_CHECKED_H
#define GLM52_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

/* True and *out = a + b, or false if that does not fit. */
static inline bool glm52_add_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a > UINT64_MAX - b) return false;
    *out = a + b;
    return true;
}

static inline bool glm52_mul_u64(uint64_t a, uint64_t b, uint64_t *out) {
    if (a != 0 && b > UINT64_MAX / a) return false;
    *out = a * b;
    return true;
}

static inline uint64_t glm52_sub_floor0(uint64_t a, uint64_t b) {
    return a > b ? a - b : 0;
}

static inline uint64_t glm52_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t glm52_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

#endif
