/* reduce.h - sums over a threadgroup: in each simdgroup first, then over the simdgroups, always in the same order. */
#ifndef GLM52_KERNELS_REDUCE_H
#define GLM52_KERNELS_REDUCE_H

#include "common.h"

/* The sum of value over all threads, in every thread. partial [32] may be used again when this returns. */
static float sum_of_group(float value, threadgroup float *partial, uint lane, uint simdgroup, uint simdgroups) {
    value = simd_sum(value);
    if (lane == 0) {
        partial[simdgroup] = value;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const float sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    return sum;
}

#endif
