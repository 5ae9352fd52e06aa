/* policy_lru.c - least recently used. */
#include "policy.h"

static uint64_t rank(const struct glm52_clock *clock, const struct glm52_heat *heat) {
    (void)clock;
    return heat->use;
}

static uint32_t keep(struct glm52_clock *clock, uint32_t rows, bool *rerank) {
    (void)clock, (void)rows, (void)rerank;
    return 0;
}

static uint32_t turn(struct glm52_clock *clock, bool *rerank) {
    return keep(clock, 0, rerank);
}

const struct glm52_policy glm52_policy_lru = {.name = "lru", .rank = rank, .age = keep, .turn = turn};
