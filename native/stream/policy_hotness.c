/* policy_hotness.c - least often chosen, where what was chosen long ago counts less: heat is halved every 16 tokens. A
 * batch of more is one step, or a long prompt would forget itself. */
#include "policy.h"

static uint64_t rank(const struct glm52_clock *clock, const struct glm52_heat *heat) {
    (void)clock;
    return heat->heat;
}

static uint32_t age(struct glm52_clock *clock, uint32_t rows, bool *rerank) {
    clock->tokens += rows < GLM52_HOTNESS_DECAY_TOKENS ? rows : GLM52_HOTNESS_DECAY_TOKENS;
    if (clock->tokens < GLM52_HOTNESS_DECAY_TOKENS) return 0;
    clock->tokens -= GLM52_HOTNESS_DECAY_TOKENS;
    *rerank = true;
    return 1;
}

static uint32_t turn(struct glm52_clock *clock, bool *rerank) {
    (void)clock, (void)rerank;
    return 0;
}

const struct glm52_policy glm52_policy_hotness = {.name = "hotness", .rank = rank, .age = age, .turn = turn};
