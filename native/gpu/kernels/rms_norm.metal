/* rms_norm.metal - each row divided by its root mean square, times a weight per column: a threadgroup a row.
 *
 * A thread has every threads-th value, and reads AT_ONCE of them before it uses the first. */
#include "reduce.h"

#define AT_ONCE 8

/* value[i] = from[first + i * threads]; 0 behind size, which is another thread's. */
static void read_some(device const float *from, uint first, uint threads, uint size, thread float *value) {
    for (uint i = 0; i < AT_ONCE; i++) value[i] = first + i * threads < size ? from[first + i * threads] : 0.0f;
}

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
    for (uint first = index; first < args.row_size; first += AT_ONCE * threads) {
        float value[AT_ONCE];
        read_some(from, first, threads, args.row_size, value);
        for (uint i = 0; i < AT_ONCE; i++) {
            if (first + i * threads < args.row_size) sum += value[i] * value[i];
        }
    }
    sum = sum_of_group(sum, partial, lane, simdgroup, simdgroups);
    const float factor = 1.0f / sqrt(sum / float(args.row_size) + args.epsilon);
    /* A thread writes what it alone has read, so that out may be x. */
    for (uint first = index; first < args.row_size; first += AT_ONCE * threads) {
        float value[AT_ONCE], of_column[AT_ONCE];
        read_some(from, first, threads, args.row_size, value);
        read_some(weight, first, threads, args.row_size, of_column);
        for (uint i = 0; i < AT_ONCE; i++) {
            const uint at = first + i * threads;
            if (at < args.row_size) to[at] = value[i] * factor * of_column[i];
        }
    }
}
