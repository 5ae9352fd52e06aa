/* clock.c - the one place that reads a clock. */
#include "clock.h"

#include <time.h>

uint64_t glm52_now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}
