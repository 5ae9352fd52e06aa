/* policy_lfru.c - often chosen first, recently used second: heat * 256 + max(0, 255 - age), age in batches. Heat is
 * halved when a turn begins. */
#include "policy.h"

uint64_t glm52_lfru_score(const struct glm52_clock *clock, const struct glm52_heat *heat) {
    const uint32_t age = clock->tick - heat->tick;
    return (uint64_t)heat->heat * (GLM52_LFRU_AGE_MAX + 1) + (age < GLM52_LFRU_AGE_MAX ? GLM52_LFRU_AGE_MAX - age : 0);
}

static uint32_t age(struct glm52_clock *clock, uint32_t rows, bool *rerank) {
    (void)clock, (void)rows;
    *rerank = true;
    return 0;
}

static uint32_t turn(struct glm52_clock *clock, bool *rerank) {
    (void)clock;
    *rerank = true;
    return 1;
}

const struct glm52_policy glm52_policy_lfru = {.name = "lfru", .rank = glm52_lfru_score, .age = age, .turn = turn};
