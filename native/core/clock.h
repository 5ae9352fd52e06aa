/* clock.h - the time, for statistics alone: no result depends on it. */
#ifndef GLM52_CLOCK_H
#define GLM52_CLOCK_H

#include <stdint.h>

/* Nanoseconds since some moment, never going back. */
uint64_t glm52_now_ns(void);

#endif
