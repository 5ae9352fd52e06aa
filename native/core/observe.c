/* observe.c - what a layer decided, copied to the host and shown, and how narrow its decisions were.
 *
 * A margin is the distance between the last candidate that was taken and the first that was not: two runs whose numbers
 * differ by less may decide differently and both be right. */
#include <math.h>

#include "batch.h"

/* Of one row's scores: the least of those selected less the greatest of the others, over their root mean square. */
static float select_margin(const float *scores, uint32_t visible, const int32_t *selected, uint32_t k) {
    double lowest = INFINITY, highest = -INFINITY, square_sum = 0.0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < visible; i++) {
        const double score = scores[i];
        square_sum += score * score;
        if (next < k && selected[next] == (int32_t)i) {
            next++;
            lowest = fmin(lowest, score);
        } else {
            highest = fmax(highest, score);
        }
    }
    const double rms = sqrt(square_sum / visible);
    return rms > 0.0 ? (float)((lowest - highest) / rms) : 0.0f;
}

void glm52_observe_all_visible(const struct glm52_batch *b, uint32_t end) {
    if (b->engine->observer == NULL) return;
    for (uint32_t r = 0; r < end; r++) b->engine->host.observed_select_margins[r] = INFINITY;
}

void glm52_observe_selection(const struct glm52_batch *b, uint32_t first, uint32_t end) {
    const struct glm52_engine *engine = b->engine;
    if (engine->observer == NULL) return;
    const struct glm52_host *host = &engine->host;
    const size_t stride = engine->selected_stride, context = engine->options.context;
    for (uint32_t r = first; r < end; r++) {
        const uint32_t visible = b->position + r + 1;
        b->ops->read(b->backend, host->observed_scores, b->act->scores + (r - first) * context,
                     visible * sizeof(float));
        b->ops->read(b->backend, host->observed_selected, b->act->selected + r * stride, stride * sizeof(int32_t));
        host->observed_select_margins[r] = select_margin(host->observed_scores, visible, host->observed_selected,
                                                         b->shape->index_top_k);
    }
}

/* Of one row's experts: the least sigmoid(logit) + bias among those chosen less the greatest among the others. */
static float route_margin(const float *logits, const float *bias, uint32_t experts, const int32_t *ids,
                          uint32_t used) {
    double lowest = INFINITY, highest = -INFINITY;
    for (uint32_t e = 0; e < experts; e++) {
        const double choice = 1.0 / (1.0 + exp(-(double)logits[e])) + bias[e];
        bool chosen = false;
        for (uint32_t i = 0; i < used; i++) chosen = chosen || ids[i] == (int32_t)e;
        if (chosen) lowest = fmin(lowest, choice);
        else highest = fmax(highest, choice);
    }
    return (float)(lowest - highest);
}

static void observe_routes(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t used) {
    const struct glm52_host *host = &b->engine->host;
    const uint32_t experts = b->shape->experts;
    const size_t routes = (size_t)b->rows * used;
    b->ops->read(b->backend, host->observed_ids, b->act->route_ids, routes * sizeof(int32_t));
    b->ops->read(b->backend, host->observed_weights, b->act->route_weights, routes * sizeof(float));
    for (uint32_t r = 0; r < b->rows; r++) {
        host->observed_route_margins[r] = INFINITY;
        if (used == 0) continue;
        b->ops->read(b->backend, host->observed_routes, b->act->router_logits + (size_t)r * experts,
                     experts * sizeof(float));
        host->observed_route_margins[r] = route_margin(host->observed_routes, layer->router_bias, experts,
                                                       host->observed_ids + (size_t)r * used, used);
    }
}

void glm52_observe_layer(const struct glm52_batch *b, const struct glm52_layer *layer, uint32_t number) {
    struct glm52_engine *engine = b->engine;
    if (engine->observer == NULL) return;
    const uint32_t used = layer->dense ? 0 : b->shape->experts_used;
    const size_t selected = (size_t)b->rows * engine->selected_stride;
    const size_t hidden = (size_t)b->rows * b->shape->hidden;
    const struct glm52_host *host = &engine->host;
    observe_routes(b, layer, used);
    b->ops->read(b->backend, host->observed_selected, b->act->selected, selected * sizeof(int32_t));
    b->ops->read(b->backend, host->observed_hidden, b->act->h, hidden * sizeof(float));
    const glm52_observation observation = {
        .layer = number, .position = b->position, .row_count = b->rows, .experts_used = used,
        .route_ids = host->observed_ids, .route_weights = host->observed_weights,
        .route_margins = host->observed_route_margins, .select_margins = host->observed_select_margins,
        .selected_stride = engine->selected_stride, .selected = host->observed_selected,
        .hidden = host->observed_hidden};
    engine->observer(engine->observer_user, &observation);
}
