/* policy.h - which expert goes when a slot is needed: one small interface, one file per policy.
 *
 * A policy turns what is known of an expert into a rank. The one of lowest rank goes first; equal ranks go by the
 * older use. A rank may change only with what the expert's own use changes, or in age and turn: then the cache
 * ranks everything anew. */
#ifndef GLM52_POLICY_H
#define GLM52_POLICY_H

#include "glm52_stream.h"

/* What is known of an expert, in a slot or not. */
struct glm52_heat {
    uint64_t use;        /* number of its last use, all uses of the cache counted */
    uint32_t heat;       /* choices of rows, as far as the policy remembers them; saturates */
    uint32_t tick;       /* of its last use */
};

/* How far the conversation has come. */
struct glm52_clock {
    uint64_t use;
    uint32_t tick;       /* batches that went through */
    uint32_t tokens;     /* since heat was halved */
};

struct glm52_policy {
    const char *name;
    /* Lowest goes first. */
    uint64_t (*rank)(const struct glm52_clock *clock, const struct glm52_heat *heat);
    /* A batch of rows tokens is through: how many times to halve all heat, 0 or 1. Sets *rerank if ranks changed
     * with time. */
    uint32_t (*age)(struct glm52_clock *clock, uint32_t rows, bool *rerank);
    /* A turn begins: the same. */
    uint32_t (*turn)(struct glm52_clock *clock, bool *rerank);
};

extern const struct glm52_policy glm52_policy_lru, glm52_policy_hotness, glm52_policy_lfru;

/* LFRU's score, by which pins are exchanged whatever the policy is. */
uint64_t glm52_lfru_score(const struct glm52_clock *clock, const struct glm52_heat *heat);

#endif
