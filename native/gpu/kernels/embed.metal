/* embed.metal - rows of the embedding table, decoded to their exact values: a thread takes 16 of a row. */
#include "quant_types.h"

template <typename T>
kernel void embed(constant glm52_embed_args &args [[buffer(0)]],
                  device float *out [[buffer(1)]],
                  device const uchar *table [[buffer(2)]],
                  device const int *ids [[buffer(3)]],
                  uint3 place [[thread_position_in_grid]]) {
    const uint first = VALUES * place.x, row = place.y;
    if (first < args.hidden) {
        const ulong row_bytes = ulong(args.hidden / T::block_values) * T::block_bytes;
        const uint left = args.hidden - first;
        float4 w[4];
        decode16(T(), table + ulong(ids[row]) * row_bytes, place.x, left, w);
        device float *to = out + ulong(row) * args.hidden + first;
        for (uint i = 0; i < VALUES; i++) {
            if (i < left) {
                to[i] = w[i / 4][i % 4];
            }
        }
    }
}

#define EMBED_PARAMETERS \
    constant glm52_embed_args &, device float *, device const uchar *, device const int *, uint3
template [[host_name("embed_f32")]] kernel void embed<f32>(EMBED_PARAMETERS);
template [[host_name("embed_f16")]] kernel void embed<f16>(EMBED_PARAMETERS);
template [[host_name("embed_bf16")]] kernel void embed<bf16>(EMBED_PARAMETERS);
template [[host_name("embed_q4_0")]] kernel void embed<q4_0>(EMBED_PARAMETERS);
template [[host_name("embed_q4_1")]] kernel void embed<q4_1>(EMBED_PARAMETERS);
template [[host_name("embed_q5_0")]] kernel void embed<q5_0>(EMBED_PARAMETERS);
template [[host_name("embed_q5_1")]] kernel void embed<q5_1>(EMBED_PARAMETERS);
template [[host_name("embed_q8_0")]] kernel void embed<q8_0>(EMBED_PARAMETERS);
template [[host_name("embed_q2_k")]] kernel void embed<q2_k>(EMBED_PARAMETERS);
template [[host_name("embed_q3_k")]] kernel void embed<q3_k>(EMBED_PARAMETERS);
template [[host_name("embed_q4_k")]] kernel void embed<q4_k>(EMBED_PARAMETERS);
template [[host_name("embed_q5_k")]] kernel void embed<q5_k>(EMBED_PARAMETERS);
template [[host_name("embed_q6_k")]] kernel void embed<q6_k>(EMBED_PARAMETERS);
template [[host_name("embed_iq1_s")]] kernel void embed<iq1_s>(EMBED_PARAMETERS);
template [[host_name("embed_iq1_m")]] kernel void embed<iq1_m>(EMBED_PARAMETERS);
template [[host_name("embed_iq2_xxs")]] kernel void embed<iq2_xxs>(EMBED_PARAMETERS);
template [[host_name("embed_iq2_xs")]] kernel void embed<iq2_xs>(EMBED_PARAMETERS);
template [[host_name("embed_iq2_s")]] kernel void embed<iq2_s>(EMBED_PARAMETERS);
template [[host_name("embed_iq3_xxs")]] kernel void embed<iq3_xxs>(EMBED_PARAMETERS);
template [[host_name("embed_iq3_s")]] kernel void embed<iq3_s>(EMBED_PARAMETERS);
template [[host_name("embed_iq4_nl")]] kernel void embed<iq4_nl>(EMBED_PARAMETERS);
template [[host_name("embed_iq4_xs")]] kernel void embed<iq4_xs>(EMBED_PARAMETERS);
template [[host_name("embed_mxfp4")]] kernel void embed<mxfp4>(EMBED_PARAMETERS);
