/* top_k.metal - the k positions of highest score, exactly and always the same: higher score, then lower position.
 *
 * One threadgroup per row. A score becomes an unsigned key of the same order; the k-th largest key is found digit by
 * digit (11, 11 and 10 bits) from counts of the keys that share the digits found so far. Then positions are taken, EACH
 * in a thread and a threadgroup's width of those at a time: those above the key, and of those equal to it the first
 * ones; simd_prefix_exclusive_sum gives each its place. */
#include "common.h"

#define THREADS 1024
#define EACH 4
#define SIMDGROUPS (THREADS / SIMD_WIDTH)
#define DIGITS 2048

/* Ascending as the scores: NaN, -infinity, ..., -0 and +0 as one, ..., infinity. */
static uint key_of(float score) {
    const uint bits = as_type<uint>(score), magnitude = bits & 0x7FFFFFFF;
    if (magnitude > 0x7F800000) return 0;
    if (magnitude == 0) return 0x80000000;
    return bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

/* counts [DIGITS] = how many keys have each digit, of those whose known bits are threshold's. */
static void count_digits(device const float *scores, uint count, uint known, uint threshold, uint shift,
                         threadgroup atomic_uint *counts, uint index) {
    for (uint i = index; i < DIGITS; i += THREADS) atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint first = 0; first < count; first += EACH * THREADS) {
        float score[EACH];
        for (uint i = 0; i < EACH; i++) score[i] = scores[min(first + i * THREADS + index, count - 1)];
        for (uint i = 0; i < EACH; i++) {
            const uint key = key_of(score[i]);
            if (first + i * THREADS + index < count && (key & known) == threshold) {
                atomic_fetch_add_explicit(&counts[key >> shift & (DIGITS - 1)], 1u, memory_order_relaxed);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/* The largest digit that, with those above it, has at least wanted keys: found[0]; how many of wanted are left for it:
 * found[1]. A thread adds up its digits, from above; sums of the threads before it come from the simdgroups. */
static void find_digit(threadgroup atomic_uint *counts, uint wanted, threadgroup uint *sums, threadgroup uint *found,
                       uint index, uint lane, uint simdgroup) {
    const uint each = DIGITS / THREADS, highest = DIGITS - 1 - index * each;
    uint own = 0;
    for (uint i = 0; i < each; i++) own += atomic_load_explicit(&counts[highest - i], memory_order_relaxed);
    const uint before_lane = simd_prefix_exclusive_sum(own);
    if (lane == SIMD_WIDTH - 1) sums[simdgroup] = before_lane + own;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint before = before_lane;
    for (uint i = 0; i < simdgroup; i++) before += sums[i];
    if (before < wanted && before + own >= wanted) {
        for (uint i = 0; i < each; i++) {
            const uint count = atomic_load_explicit(&counts[highest - i], memory_order_relaxed);
            if (before < wanted && before + count >= wanted) {
                found[0] = highest - i;
                found[1] = wanted - before;
            }
            before += count;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
}

/* Writes the positions, ascending. equal_left of those whose key is threshold are taken. */
static void take(device const float *scores, uint count, uint k, uint threshold, uint equal_left,
                 device int *selected, threadgroup uint *sums, uint index, uint lane, uint simdgroup) {
    uint taken = 0, equal_seen = 0;
    for (uint first = 0; first < count; first += EACH * THREADS) {
        const uint begin = first + EACH * index;
        uint key[EACH];
        uint own = 0;   /* how many are above, and equal: in one word, at most EACH * THREADS each */
        for (uint i = 0; i < EACH; i++) key[i] = key_of(scores[min(begin + i, count - 1)]);
        for (uint i = 0; i < EACH; i++) {
            if (begin + i < count) own += key[i] > threshold ? 1u : key[i] == threshold ? 1u << 16 : 0u;
        }
        const uint before_lane = simd_prefix_exclusive_sum(own);
        if (lane == SIMD_WIDTH - 1) sums[simdgroup] = before_lane + own;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint before = before_lane, all = 0;
        for (uint i = 0; i < SIMDGROUPS; i++) {
            if (i < simdgroup) before += sums[i];
            all += sums[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint equal_before = equal_seen + (before >> 16), above_before = taken + (before & 0xFFFF);
        for (uint i = 0; i < EACH; i++) {
            const bool is_there = begin + i < count;
            const bool is_above = is_there && key[i] > threshold, is_equal = is_there && key[i] == threshold;
            const uint place = above_before + min(equal_before, equal_left);
            if ((is_above || (is_equal && equal_before < equal_left)) && place < k) selected[place] = int(begin + i);
            above_before += is_above ? 1u : 0u;
            equal_before += is_equal ? 1u : 0u;
        }
        taken += all & 0xFFFF;
        equal_seen += all >> 16;
    }
}

kernel void top_k(constant glm52_top_k_args &args [[buffer(0)]], device int *selected [[buffer(1)]],
                  device const float *scores [[buffer(2)]], uint row [[threadgroup_position_in_grid]],
                  uint index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                  uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup atomic_uint counts[DIGITS];
    threadgroup uint sums[SIMDGROUPS];
    threadgroup uint found[2];
    const uint count = args.position + row + 1;
    device int *out = selected + ulong(row) * args.selected_stride;
    if (count <= args.k) {
        for (uint i = index; i < count; i += THREADS) out[i] = int(i);
    } else {
        device const float *of_row = scores + ulong(row) * args.score_stride;
        uint threshold = 0, known = 0, wanted = args.k;
        for (uint pass = 0; pass < 3; pass++) {
            const uint shift = pass == 0 ? 21 : pass == 1 ? 10 : 0, mask = pass == 2 ? 1023 : DIGITS - 1;
            count_digits(of_row, count, known, threshold, shift, counts, index);
            find_digit(counts, wanted, sums, found, index, lane, simdgroup);
            threshold |= (found[0] & mask) << shift;
            wanted = found[1];
            known |= mask << shift;
        }
        take(of_row, count, args.k, threshold, wanted, out, sums, index, lane, simdgroup);
    }
}

/* Every row sees no more than k positions. */
kernel void top_k_all(constant glm52_top_k_args &args [[buffer(0)]], device int *selected [[buffer(1)]],
                      uint2 at [[thread_position_in_grid]]) {
    if (at.x <= args.position + at.y) selected[ulong(at.y) * args.selected_stride + at.x] = int(at.x);
}
