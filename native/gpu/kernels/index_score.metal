/* index_score.metal - how much each query of the indexer wants each position.
 *
 * A simdgroup takes positions in turn. The product of a head's query with a key: lane i takes values 4 i .. 4 i + 3, then
 * 128 further on and so on, each by a fused multiply-add to one sum; simd_sum adds the lanes. A score adds heads in
 * ascending order. */
#include "common.h"

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

template [[host_name("index_score_f32")]] kernel void index_score<float>(constant glm52_index_score_args &, device float *,
                                                                         device const float *, device const float *,
                                                                         device const float *, uint3, uint, uint);
template [[host_name("index_score_f16")]] kernel void index_score<half>(constant glm52_index_score_args &, device float *,
                                                                        device const float *, device const float *,
                                                                        device const half *, uint3, uint, uint);
