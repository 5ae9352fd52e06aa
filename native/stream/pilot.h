/* pilot.h - how well the next layer's experts can be told from this layer's state. Measures; loads nothing. */
#ifndef GLM52_PILOT_H
#define GLM52_PILOT_H

#include "io_pool.h"

/* Predictions made for one layer, to be compared with its routes when they come. */
struct glm52_pilot_state {
    uint32_t used;
    bool pending;
    uint32_t layer, rows;
    uint64_t made_ns;
    int32_t ids[GLM52_PILOT_ROWS_MAX * 64];   /* [rows, used] best first */
    uint64_t predictions, predicted, correct, wanted, exact_rows, rank_hits, skipped_wide, abandoned;
    uint64_t hint_candidates, hint_resident_skipped;
    struct glm52_histogram cost, lead;
};

#define GLM52_PILOT_USED_MAX 64

/* ids [rows, used] are what layer will choose, as far as one can tell; it took took_ns to know. */
void glm52_pilot_predicted(struct glm52_pilot_state *pilot, uint32_t layer, const int32_t *ids, uint32_t rows,
                           uint64_t took_ns);
/* A layer chose ids [rows, used]. */
void glm52_pilot_observed(struct glm52_pilot_state *pilot, uint32_t layer, const int32_t *ids, uint32_t rows);
/* The batch ended early: what was predicted is not compared with another batch's routes. */
void glm52_pilot_abandon(struct glm52_pilot_state *pilot);

#endif
