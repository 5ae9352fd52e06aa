/* index_store.metal - a row of the indexer's cache: its key, layer-normed, then rotated in its first part. A
 * threadgroup a row. */
#include "reduce.h"
#include "rotate.h"

template <typename T>
kernel void index_store(constant glm52_index_store_args &args [[buffer(0)]],
                        device T *cache [[buffer(1)]],
                        device const float *x [[buffer(2)]],
                        device const float *weight [[buffer(3)]],
                        device const float *bias [[buffer(4)]],
                        device const float *table [[buffer(5)]],
                        uint row [[threadgroup_position_in_grid]],
                        uint index [[thread_index_in_threadgroup]],
                        uint threads [[threads_per_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    const uint size = size_of_either(constant_index_key, args.key_size);
    device const float *from = x + ulong(row) * args.x_stride;
    device T *to = cache + ulong(args.position + row) * size;
    float sum = 0.0f;
    for (uint i = index; i < size; i += threads) {
        sum += from[i];
    }
    const float mean = sum_of_group(sum, partial, lane, simdgroup, simdgroups) / float(size);
    sum = 0.0f;
    for (uint i = index; i < size; i += threads) {
        sum += (from[i] - mean) * (from[i] - mean);
    }
    sum = sum_of_group(sum, partial, lane, simdgroup, simdgroups);
    const float factor = 1.0f / sqrt(sum / float(size) + args.epsilon);

    device const float *turns = table + ulong(row) * args.rope_size;
    for (uint i = 2 * index; i < args.rope_size; i += 2 * threads) {
        const float a = (from[i] - mean) * factor * weight[i] + bias[i];
        const float b = (from[i + 1] - mean) * factor * weight[i + 1] + bias[i + 1];
        const float2 turned = rotate(float2(a, b), float2(turns[i], turns[i + 1]));
        to[i] = T(turned.x);
        to[i + 1] = T(turned.y);
    }
    for (uint i = args.rope_size + index; i < size; i += threads) {
        to[i] = T((from[i] - mean) * factor * weight[i] + bias[i]);
    }
}

#define INDEX_STORE_PARAMETERS(T)                                                                                  \
    constant glm52_index_store_args &, device T *, device const float *, device const float *, device const float *, \
        device const float *, uint, uint, uint, uint, uint, uint
template [[host_name("index_store_f16")]] kernel void index_store<half>(INDEX_STORE_PARAMETERS(half));
template [[host_name("index_store_f32")]] kernel void index_store<float>(INDEX_STORE_PARAMETERS(float));
