/* index_score.metal - how much each query of the indexer wants each position. A score adds heads in ascending order.
 *
 * GLM-5.2's size of 128: a thread has a key of its own in registers and meets every head's query, which the threadgroup
 * reads from its memory; four sums take the values in turn, and are added as (0 + 1) + (2 + 3).
 *
 * Any other size: a simdgroup takes positions in turn. Lane i takes values 4 i .. 4 i + 3, then 128 further on and so
 * on, each by a fused multiply-add to one sum; simd_sum adds the lanes. */
#include "common.h"

#define OWN_SIZE 128
#define OWN_THREADS 128
/* Heads whose queries are in threadgroup memory at once. */
#define OWN_HEADS 32

/* Positions of a threadgroup, and its simdgroups. */
#define POSITIONS 32
#define SIMDGROUPS 8

template <typename T>
kernel void index_score(constant glm52_index_score_args &args [[buffer(0)]], device float *scores [[buffer(1)]],
                        device const float *q [[buffer(2)]], device const float *weights [[buffer(3)]],
                        device const T *cache [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    const uint size = size_of_either(constant_index_key, args.key_size);
    const uint row = group.y, visible = args.position + row + 1;
    for (uint i = simdgroup; i < POSITIONS; i += SIMDGROUPS) {
        const uint at = group.x * POSITIONS + i;
        if (at >= visible) continue;
        device const T *key = cache + ulong(at) * size;
        float score = 0.0f;
        for (uint head = 0; head < args.head_count; head++) {
            device const float *query = q + ulong(row) * args.q_stride + ulong(head) * size;
            float sum = 0.0f;
            for (uint first = 4 * lane; first < size; first += 4 * SIMD_WIDTH) {
                for (uint j = first; j < min(first + 4, size); j++) sum = fma(query[j], float(key[j]), sum);
            }
            const float dot = args.scale * simd_sum(sum);
            score = fma(weights[ulong(row) * args.weight_stride + head], dot <= 0.0f ? 0.0f : dot, score);
        }
        if (lane == 0) scores[ulong(row) * args.score_stride + at] = score;
    }
}

/* The keys of a threadgroup are positions group.x * OWN_THREADS and on. */
template <typename T>
kernel void index_score_own(constant glm52_index_score_args &args [[buffer(0)]], device float *scores [[buffer(1)]],
                            device const float *q [[buffer(2)]], device const float *weights [[buffer(3)]],
                            device const T *cache [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                            uint index [[thread_index_in_threadgroup]]) {
    threadgroup float queries[OWN_HEADS * OWN_SIZE];
    threadgroup float factors[OWN_HEADS];
    const uint row = group.y, visible = args.position + row + 1, at = group.x * OWN_THREADS + index;
    device const vec<T, 4> *source = (device const vec<T, 4> *)(cache + ulong(min(at, visible - 1)) * OWN_SIZE);
    float4 key[OWN_SIZE / 4];
    for (uint j = 0; j < OWN_SIZE / 4; j++) key[j] = float4(source[j]);
    float score = 0.0f;
    for (uint first = 0; first < args.head_count; first += OWN_HEADS) {
        const uint heads = min(uint(OWN_HEADS), args.head_count - first);
        device const float *of_heads = q + ulong(row) * args.q_stride + ulong(first) * OWN_SIZE;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = index; i < heads * OWN_SIZE; i += OWN_THREADS) queries[i] = of_heads[i];
        if (index < heads) factors[index] = weights[ulong(row) * args.weight_stride + first + index];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint h = 0; h < heads; h++) {
            threadgroup const float4 *query = (threadgroup const float4 *)(queries + h * OWN_SIZE);
            float4 sum = float4(0.0f);
            for (uint j = 0; j < OWN_SIZE / 4; j++) sum = fma(query[j], key[j], sum);
            const float dot = args.scale * ((sum.x + sum.y) + (sum.z + sum.w));
            score = fma(factors[h], dot <= 0.0f ? 0.0f : dot, score);
        }
    }
    if (at < visible) scores[ulong(row) * args.score_stride + at] = score;
}

template [[host_name("index_score_own_f32")]] kernel void index_score_own<float>(
    constant glm52_index_score_args &, device float *, device const float *, device const float *, device const float *,
    uint3, uint);
template [[host_name("index_score_own_f16")]] kernel void index_score_own<half>(
    constant glm52_index_score_args &, device float *, device const float *, device const float *, device const half *,
    uint3, uint);

template [[host_name("index_score_f32")]] kernel void index_score<float>(constant glm52_index_score_args &,
                                                                         device float *,
                                                                         device const float *, device const float *,
                                                                         device const float *, uint3, uint, uint);
template [[host_name("index_score_f16")]] kernel void index_score<half>(constant glm52_index_score_args &,
                                                                        device float *,
                                                                        device const float *, device const float *,
                                                                        device const half *, uint3, uint, uint);
