/* rms_norm.metal - each row divided by its root mean square, times a weight per column: a threadgroup a row. */
#include "reduce.h"

kernel void rms_norm(constant glm52_rms_norm_args &args [[buffer(0)]],
                     device float *out [[buffer(1)]],
                     device const float *x [[buffer(2)]],
                     device const float *weight [[buffer(3)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    device const float *from = x + ulong(row) * args.x_stride;
    device float *to = out + ulong(row) * args.out_stride;
    float sum = 0.0f;
    for (uint i = index; i < args.row_size; i += threads) {
        sum += from[i] * from[i];
    }
    sum = sum_of_group(sum, partial, lane, simdgroup, simdgroups);
    const float factor = 1.0f / sqrt(sum / float(args.row_size) + args.epsilon);
    /* A thread writes what it alone has read, so that out may be x. */
    for (uint i = index; i < args.row_size; i += threads) {
        to[i] = from[i] * factor * weight[i];
    }
}
