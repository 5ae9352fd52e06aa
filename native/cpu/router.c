/* router.c - which experts a row goes to, and how much each counts.
 *
 * Sigmoid and sums are in double: the choice is that of the exact values unless two lie within rounding of
 * float32 logits. The order of experts: higher p + bias, then lower id; a NaN comes behind every number. */
#include <math.h>

#include "cpu.h"

struct job {
    const glm52_router_args *args;
    int32_t *ids;
    float *weights;
    const float *logits;
    const float *bias;
    uint8_t *space;      /* per thread, p and choice */
    size_t space_bytes;
};

static size_t space_bytes(const glm52_router_args *args) {
    return glm52_cpu_line((size_t)2 * args->expert_count * sizeof(double));
}

static bool is_better(double a, double b) {
    return a > b || (isnan(b) && !isnan(a));
}

/* Keeps ids [count] sorted, best first. Experts come in ascending order, so one that is equal stays behind.
 * */
static size_t insert(int32_t *ids, size_t count, size_t count_max, const double *choice, size_t expert) {
    if (count == count_max && !is_better(choice[expert], choice[ids[count - 1]])) return count;
    size_t at = count == count_max ? count - 1 : count;
    for (; at > 0 && is_better(choice[expert], choice[ids[at - 1]]); at--) ids[at] = ids[at - 1];
    ids[at] = (int32_t)expert;
    return count == count_max ? count : count + 1;
}

static void route_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const glm52_router_args *args = job->args;
    double *p = (double *)(void *)(job->space + thread * job->space_bytes);
    double *choice = p + args->expert_count;
    for (size_t r = begin; r < end; r++) {
        const float *logits = job->logits + r * args->logits_stride;
        int32_t *ids = job->ids + r * args->used_count;
        size_t count = 0;
        for (size_t e = 0; e < args->expert_count; e++) {
            p[e] = 1.0 / (1.0 + exp(-(double)logits[e]));
            choice[e] = p[e] + (double)job->bias[e];
            count = insert(ids, count, args->used_count, choice, e);
        }
        double factor = args->scale;
        if (args->normalise) {
            double sum = 0.0;
            for (size_t k = 0; k < count; k++) sum += p[ids[k]];
            factor /= sum + 1e-20;
        }
        float *weights = job->weights + r * args->used_count;
        for (size_t k = 0; k < count; k++) weights[k] = (float)(p[ids[k]] * factor);
    }
}

size_t glm52_cpu_router_scratch(const glm52_backend *backend, const glm52_router_args *args) {
    return glm52_pool_threads(glm52_cpu_pool(backend)) * space_bytes(args);
}

void glm52_cpu_router(glm52_backend *backend, const glm52_router_args *args, int32_t *ids, float *weights,
                      const float *logits, const float *bias) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, ids, weights, logits, bias, glm52_cpu_of(backend)->scratch, space_bytes(args)};
    const size_t cost = (size_t)16 * args->expert_count;   /* an exp is worth about that many products */
    glm52_pool_run(pool, args->row_count, glm52_pool_grain(pool, args->row_count, cost), route_rows, &job);
}
