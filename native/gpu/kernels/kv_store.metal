/* kv_store.metal - a row of the compact cache: the normed latent, then the rotated part that all heads share. One
 * threadgroup a row does what would be a norm, a rotation and a copy. */
#include "reduce.h"
#include "rotate.h"

template <typename T>
kernel void kv_store(constant glm52_kv_store_args &args [[buffer(0)]],
                     device T *cache [[buffer(1)]],
                     device const float *x [[buffer(2)]],
                     device const float *weight [[buffer(3)]],
                     device const float *table [[buffer(4)]],
                     uint row [[threadgroup_position_in_grid]],
                     uint index [[thread_index_in_threadgroup]],
                     uint threads [[threads_per_threadgroup]],
                     uint lane [[thread_index_in_simdgroup]],
                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                     uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[SIMD_WIDTH];
    const uint latent = size_of_either(constant_latent, args.latent);
    const uint rope_size = size_of_either(constant_rope, args.rope_size);
    device const float *from = x + ulong(row) * args.x_stride;
    device T *to = cache + ulong(args.position + row) * (latent + rope_size);
    float sum = 0.0f;
    for (uint i = index; i < latent; i += threads) {
        sum += from[i] * from[i];
    }
    sum = sum_of_group(sum, partial, lane, simdgroup, simdgroups);
    const float factor = 1.0f / sqrt(sum / float(latent) + args.epsilon);
    for (uint i = index; i < latent; i += threads) {
        to[i] = T(from[i] * factor * weight[i]);
    }
    device const float *turns = table + ulong(row) * rope_size;
    for (uint i = 2 * index; i < rope_size; i += 2 * threads) {
        const float2 pair = float2(from[latent + i], from[latent + i + 1]);
        const float2 turned = rotate(pair, float2(turns[i], turns[i + 1]));
        to[latent + i] = T(turned.x);
        to[latent + i + 1] = T(turned.y);
    }
}

#define KV_STORE_PARAMETERS(T)                                                                                  \
    constant glm52_kv_store_args &, device T *, device const float *, device const float *, device const float *, \
        uint, uint, uint, uint, uint, uint
template [[host_name("kv_store_f16")]] kernel void kv_store<half>(KV_STORE_PARAMETERS(half));
template [[host_name("kv_store_f32")]] kernel void kv_store<float>(KV_STORE_PARAMETERS(float));
