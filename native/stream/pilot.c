/* pilot.c - predictions of routes against the routes: precision is correct / predicted, recall correct / wanted. */
#include "pilot.h"

#include <string.h>

void glm52_pilot_predicted(struct glm52_pilot_state *pilot, uint32_t layer, const int32_t *ids, uint32_t rows,
                           uint64_t took_ns) {
    glm52_pilot_abandon(pilot);
    if (rows > GLM52_PILOT_ROWS_MAX || pilot->used > GLM52_PILOT_USED_MAX) {
        pilot->skipped_wide++;
        return;
    }
    memcpy(pilot->ids, ids, (size_t)rows * pilot->used * sizeof(*ids));
    pilot->pending = true;
    pilot->layer = layer;
    pilot->rows = rows;
    pilot->made_ns = glm52_now_ns();
    glm52_histogram_add(&pilot->cost, took_ns);
}

void glm52_pilot_observed(struct glm52_pilot_state *pilot, uint32_t layer, const int32_t *ids, uint32_t rows) {
    if (!pilot->pending) return;
    if (pilot->layer != layer || pilot->rows != rows) {
        glm52_pilot_abandon(pilot);
        return;
    }
    pilot->pending = false;
    glm52_histogram_add(&pilot->lead, glm52_now_ns() - pilot->made_ns);
    const uint32_t used = pilot->used;
    for (uint32_t r = 0; r < rows; r++) {
        uint32_t correct = 0;
        for (uint32_t i = 0; i < used; i++) {
            for (uint32_t j = 0; j < used; j++) correct += pilot->ids[r * used + i] == ids[r * used + j];
            pilot->rank_hits += pilot->ids[r * used + i] == ids[r * used + i];
        }
        pilot->correct += correct;
        pilot->exact_rows += correct == used;
        pilot->predicted += used;
        pilot->wanted += used;
        pilot->predictions++;
    }
}

void glm52_pilot_abandon(struct glm52_pilot_state *pilot) {
    pilot->abandoned += pilot->pending;
    pilot->pending = false;
}
