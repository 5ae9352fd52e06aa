/* router.metal - which experts a row goes to, and how much each counts: a threadgroup a row.
 *
 * The order of experts: higher p + bias, then lower id; a NaN comes behind every number. p and p + bias are sums of two
 * floats each, so that two logits that differ choose by their difference even where a sigmoid of one float would be 1
 * for both. The used_count best come one by one, each the best of those behind the one before it. A thread has every
 * threads-th expert, and keeps the place of its first one. */
#include "exp.h"

#define NOBODY 0xFFFFFFFF

/* An expert's place in the order: larger upper, then larger lower, then smaller id comes first. */
struct choice {
    uint upper, lower, id;
};

static bool is_before(choice a, choice b) {
    if (a.upper != b.upper) return a.upper > b.upper;
    if (a.lower != b.lower) return a.lower > b.lower;
    return a.id < b.id;
}

/* Ascending as the numbers, -0 and +0 as one, NaN lowest. */
static uint ascending(float x) {
    const uint bits = as_type<uint>(x), magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return 0;
    if (magnitude == 0) return 0x80000000;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

/* a + b = x + y, x the rounded sum. */
static float2 two_sum(float a, float b) {
    const float sum = a + b, of_b = sum - a;
    return float2(sum, (a - (sum - of_b)) + (b - of_b));
}

/* sigmoid(logit) = x + y. The quotient's own rounding is what y holds. */
static float2 sigmoid_of_two(float logit) {
    const float e = exp_minus(logit);
    const float above = (as_type<uint>(logit) >> 31) != 0 ? e : 1.0f;
    const float2 below = two_sum(1.0f, e);
    const float quotient = above / below.x;
    const float rest = fma(-quotient, below.x, above) - quotient * below.y;
    return float2(quotient, rest / below.x);
}

static choice choice_of(float logit, float bias, uint id) {
    const float2 p = sigmoid_of_two(logit);
    const float2 sum = two_sum(p.x, bias);
    const float2 exact = two_sum(sum.x, sum.y + p.y);
    choice made;
    made.upper = ascending(exact.x);
    made.lower = made.upper == 0 || isinf(exact.x) ? 0 : ascending(exact.y);
    made.id = id;
    return made;
}

/* The first of a simdgroup's choices, in every lane. */
static choice first_of_simdgroup(choice own) {
    choice first;
    first.upper = simd_max(own.upper);
    first.lower = simd_max(own.upper == first.upper ? own.lower : 0u);
    first.id = simd_min(own.upper == first.upper && own.lower == first.lower ? own.id : NOBODY);
    return first;
}

kernel void router(constant glm52_router_args &args [[buffer(0)]],
                   device int *ids [[buffer(1)]],
                   device float *weights [[buffer(2)]],
                   device const float *logits [[buffer(3)]],
                   device const float *bias [[buffer(4)]],
                   uint row [[threadgroup_position_in_grid]],
                   uint index [[thread_index_in_threadgroup]],
                   uint threads [[threads_per_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]],
                   uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup uint upper[SIMD_WIDTH];
    threadgroup uint lower[SIMD_WIDTH];
    threadgroup uint id[SIMD_WIDTH];
    threadgroup float chosen_p;
    device const float *from = logits + ulong(row) * args.logits_stride;
    device int *chosen = ids + ulong(row) * args.used_count;
    device float *weight = weights + ulong(row) * args.used_count;
    choice last;
    last.upper = last.lower = last.id = 0;
    choice own_first;
    own_first.upper = own_first.lower = 0;
    own_first.id = NOBODY;
    if (index < args.expert_count) own_first = choice_of(from[index], bias[index], index);
    float sum = 0.0f;
    for (uint k = 0; k < args.used_count; k++) {
        choice best;
        best.upper = best.lower = 0;
        best.id = NOBODY;
        for (uint e = index; e < args.expert_count; e += threads) {
            choice own = own_first;
            if (e != index) own = choice_of(from[e], bias[e], e);
            if ((k == 0 || is_before(last, own)) && is_before(own, best)) best = own;
        }
        best = first_of_simdgroup(best);
        if (lane == 0) {
            upper[simdgroup] = best.upper;
            lower[simdgroup] = best.lower;
            id[simdgroup] = best.id;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        best.upper = lane < simdgroups ? upper[lane] : 0;
        best.lower = lane < simdgroups ? lower[lane] : 0;
        best.id = lane < simdgroups ? id[lane] : NOBODY;
        last = first_of_simdgroup(best);
        if (index == last.id % threads) chosen_p = sigmoid(from[last.id]);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (index == 0) {
            sum += chosen_p;
            chosen[k] = int(last.id);
            weight[k] = chosen_p;
        }
    }
    const float factor = args.normalise != 0 ? args.scale / (sum + 1e-20f) : args.scale;
    if (index == 0) {
        for (uint k = 0; k < args.used_count; k++) weight[k] *= factor;
    }
}
