/* draft_policy.c - how many tokens to draft. Only time depends on it, so this is the one place that the clock has a say
 * in; the clock itself is read elsewhere.
 *
 * With a chance a that a draft is accepted if the one before it was, a cycle of n drafts gives 1 + a + ... + a^n tokens
 * and takes ns[n], measured, or worked out from the longest cycle measured and from plain decoding. The length of most
 * tokens per second is taken; now and then the neighbouring question is asked again: plain decoding while drafts pay,
 * one draft while they do not. */
#include "engine.h"
#include "error.h"

#define AVERAGE_SHARE 8.0     /* a new value counts for an eighth once as many were seen */
#define PLAIN_CYCLES 2u       /* before the first draft */
#define SINGLE_CYCLES 4u      /* of one draft before longer ones are considered */

/* Of a measured cycle, else a straight line through plain decoding and the longest that was measured. */
static double cycle_ns(const glm52_draft_policy *policy, uint32_t length) {
    if (policy->seen[length] > 0) return policy->ns[length];
    uint32_t known = 1;
    for (uint32_t n = 1; n <= GLM52_DRAFTS_MAX; n++) known = policy->seen[n] > 0 ? n : known;
    const double per_draft = (policy->ns[known] - policy->ns[0]) / known;
    return policy->ns[0] + (per_draft > 0.0 ? per_draft : 0.0) * length;
}

static uint32_t best_length(const glm52_draft_policy *policy) {
    uint32_t best = 0;
    double best_rate = 0.0, tokens = 0.0, power = 1.0;
    for (uint32_t n = 0; n <= GLM52_DRAFTS_MAX; n++) {
        tokens += power;
        power *= policy->accept;
        const double rate = tokens / cycle_ns(policy, n);
        if (rate > best_rate) {
            best = n;
            best_rate = rate;
        }
    }
    return best;
}

bool glm52_draft_policy_off(const glm52_draft_policy *policy) {
    return policy != NULL && policy->fixed == 0 && policy->seen[0] >= PLAIN_CYCLES &&
           policy->seen[1] >= SINGLE_CYCLES && best_length(policy) == 0;
}

void glm52_draft_policy_start(glm52_draft_policy *policy, uint32_t fixed) {
    if (policy == NULL) return;
    *policy = (glm52_draft_policy){.fixed = fixed, .length = fixed};
}

static void average(double *mean, double value, double share) {
    *mean += (value - *mean) / share;
}

void glm52_draft_policy_learn(glm52_draft_policy *policy, uint32_t drafted, uint32_t accepted, uint64_t ns) {
    if (policy == NULL || policy->fixed != 0 || drafted > GLM52_DRAFTS_MAX || accepted > drafted) return;
    const uint32_t seen = ++policy->seen[drafted];
    average(&policy->ns[drafted], (double)ns + 1.0, seen < AVERAGE_SHARE ? seen : AVERAGE_SHARE);
    /* One draft per link of the chain that was tried: accepted ones, and the one that was not. */
    const uint32_t tried = accepted < drafted ? accepted + 1 : accepted;
    for (uint32_t i = 0; i < tried; i++) {
        policy->cycles++;
        const double share = policy->cycles < 4 * AVERAGE_SHARE ? policy->cycles : 4 * AVERAGE_SHARE;
        average(&policy->accept, i < accepted ? 1.0 : 0.0, share);
    }
    policy->since_probe++;
    if (policy->seen[0] < PLAIN_CYCLES) {
        policy->length = 0;
    } else if (policy->seen[1] < SINGLE_CYCLES) {
        policy->length = 1;
    } else if (policy->since_probe >= GLM52_DRAFT_PROBE_CYCLES) {
        policy->since_probe = 0;
        policy->length = policy->length == 0 ? 1 : 0;
    } else {
        policy->length = best_length(policy);
    }
}
