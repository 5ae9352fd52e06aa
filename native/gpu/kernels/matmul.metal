/* matmul.metal - a matrix, or one per group, times rows of activations.
 *
 * matvec: up to 8 rows, the order of sums in dot_rows.h. A threadgroup's simdgroups are tiles of 4 rows of weights
 * times parts of a row.
 * matmul: any number of rows, in tiles of 64 and 128, the order of sums in tile.h. */
#include "dot_rows.h"
#include "tile.h"

template <typename T, uint ROWS>
kernel void matvec(constant glm52_matvec_args &args [[buffer(0)]], device float *out [[buffer(1)]],
                   device const float *x [[buffer(2)]], device const uchar *weights [[buffer(3)]],
                   uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[SIMDGROUPS * TILE * ROWS];
    threadgroup uint space[lanes_of<T>::space + 1];
    threadgroup float4 staged[lanes_of<T>::steps == 1 || ROWS > STAGE_ROWS ? 1 : STAGE_WORDS / 4];
    const uint tiles = SIMDGROUPS / args.parts;
    const uint first = (group.x * tiles + simdgroup / args.parts) * TILE;
    const place at = {index, lane, simdgroup, simdgroup % args.parts, args.parts};
    if (lanes_of<T>::space > 0) {
        prepare_lanes(T(), space, index, SIMDGROUPS * SIMD_WIDTH);
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    float sum[TILE * ROWS];
    dot_rows<T, ROWS>(T(), space, weights + (ulong(group.y) * args.out_count + first) * args.row_bytes, args.row_bytes,
                      first < args.out_count ? min(uint(TILE), args.out_count - first) : 0, args.in_count,
                      x + ulong(group.y) * args.x_group_stride, args.x_row_stride, args.row_count, args.is_wide, at,
                      staged, sum);
    for (uint i = 0; i < TILE * ROWS; i++) {
        const float total = simd_sum(sum[i]);
        if (lane == 0) partial[simdgroup * TILE * ROWS + i] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    const uint tile = index / (TILE * ROWS), place = index % (TILE * ROWS);
    const uint row = place % ROWS, column = (group.x * tiles + tile) * TILE + place / ROWS;
    if (tile < tiles && row < args.row_count && column < args.out_count) {
        float total = partial[tile * args.parts * TILE * ROWS + place];
        for (uint part = 1; part < args.parts; part++) {
            total += partial[(tile * args.parts + part) * TILE * ROWS + place];
        }
        out[ulong(row) * args.out_row_stride + ulong(group.y) * args.out_group_stride + column] = total;
    }
}

/* Group: x is a tile of rows of weights, y a matrix, z a tile of rows of activations. */
template <typename T>
kernel void matmul(constant glm52_matvec_args &args [[buffer(0)]], device float *out [[buffer(1)]],
                   device const float *x [[buffer(2)]], device const uchar *weights [[buffer(3)]],
                   uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float space[TILE_SPACE];
    tile_sums sums;
    const uint first = group.x * TILE_COLUMNS, x_first = group.z * TILE_ROWS;
    const ulong of_weights = ulong(group.y) * args.out_count + min(first + index / 2, args.out_count - 1);
    multiply_tile(T(), weights + of_weights * args.row_bytes,
                  x + ulong(min(x_first + index / 4, args.row_count - 1)) * args.x_row_stride +
                      ulong(group.y) * args.x_group_stride,
                  min(uint(TILE_ROWS), args.row_count - x_first), args.in_count, (args.is_wide & WIDE_X) != 0, index,
                  simdgroup, space, sums);
    for (uint part = 0; part < 2; part++) {
        hand_out_tile(sums, part, simdgroup, space);
        for (uint i = index; i < TILE_ROWS * TILE_HALF; i += TILE_THREADS) {
            const uint r = x_first + i / TILE_HALF, column = first + part * TILE_HALF + i % TILE_HALF;
            if (r < args.row_count && column < args.out_count) {
                out[ulong(r) * args.out_row_stride + ulong(group.y) * args.out_group_stride + column] = space[i];
            }
        }
    }
}

#define MATVEC_PARAMETERS                                                                                       \
    constant glm52_matvec_args &, device float *, device const float *, device const uchar *, uint3, uint, uint, uint
#define MATMUL_PARAMETERS                                                                                       \
    constant glm52_matvec_args &, device float *, device const float *, device const uchar *, uint3, uint, uint

template [[host_name("matvec_f32_1")]] kernel void matvec<f32, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_f32_2")]] kernel void matvec<f32, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_f32_4")]] kernel void matvec<f32, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_f32_8")]] kernel void matvec<f32, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_f16_1")]] kernel void matvec<f16, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_f16_2")]] kernel void matvec<f16, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_f16_4")]] kernel void matvec<f16, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_f16_8")]] kernel void matvec<f16, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_bf16_1")]] kernel void matvec<bf16, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_bf16_2")]] kernel void matvec<bf16, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_bf16_4")]] kernel void matvec<bf16, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_bf16_8")]] kernel void matvec<bf16, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_0_1")]] kernel void matvec<q4_0, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_0_2")]] kernel void matvec<q4_0, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_0_4")]] kernel void matvec<q4_0, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_0_8")]] kernel void matvec<q4_0, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_1_1")]] kernel void matvec<q4_1, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_1_2")]] kernel void matvec<q4_1, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_1_4")]] kernel void matvec<q4_1, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_1_8")]] kernel void matvec<q4_1, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_0_1")]] kernel void matvec<q5_0, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_0_2")]] kernel void matvec<q5_0, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_0_4")]] kernel void matvec<q5_0, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_0_8")]] kernel void matvec<q5_0, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_1_1")]] kernel void matvec<q5_1, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_1_2")]] kernel void matvec<q5_1, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_1_4")]] kernel void matvec<q5_1, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_1_8")]] kernel void matvec<q5_1, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q8_0_1")]] kernel void matvec<q8_0, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q8_0_2")]] kernel void matvec<q8_0, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q8_0_4")]] kernel void matvec<q8_0, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q8_0_8")]] kernel void matvec<q8_0, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q2_k_1")]] kernel void matvec<q2_k, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q2_k_2")]] kernel void matvec<q2_k, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q2_k_4")]] kernel void matvec<q2_k, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q2_k_8")]] kernel void matvec<q2_k, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q3_k_1")]] kernel void matvec<q3_k, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q3_k_2")]] kernel void matvec<q3_k, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q3_k_4")]] kernel void matvec<q3_k, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q3_k_8")]] kernel void matvec<q3_k, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_k_1")]] kernel void matvec<q4_k, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_k_2")]] kernel void matvec<q4_k, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_k_4")]] kernel void matvec<q4_k, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q4_k_8")]] kernel void matvec<q4_k, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_k_1")]] kernel void matvec<q5_k, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_k_2")]] kernel void matvec<q5_k, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_k_4")]] kernel void matvec<q5_k, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q5_k_8")]] kernel void matvec<q5_k, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_q6_k_1")]] kernel void matvec<q6_k, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_q6_k_2")]] kernel void matvec<q6_k, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_q6_k_4")]] kernel void matvec<q6_k, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_q6_k_8")]] kernel void matvec<q6_k, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_s_1")]] kernel void matvec<iq1_s, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_s_2")]] kernel void matvec<iq1_s, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_s_4")]] kernel void matvec<iq1_s, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_s_8")]] kernel void matvec<iq1_s, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_m_1")]] kernel void matvec<iq1_m, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_m_2")]] kernel void matvec<iq1_m, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_m_4")]] kernel void matvec<iq1_m, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq1_m_8")]] kernel void matvec<iq1_m, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xxs_1")]] kernel void matvec<iq2_xxs, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xxs_2")]] kernel void matvec<iq2_xxs, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xxs_4")]] kernel void matvec<iq2_xxs, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xxs_8")]] kernel void matvec<iq2_xxs, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xs_1")]] kernel void matvec<iq2_xs, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xs_2")]] kernel void matvec<iq2_xs, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xs_4")]] kernel void matvec<iq2_xs, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_xs_8")]] kernel void matvec<iq2_xs, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_s_1")]] kernel void matvec<iq2_s, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_s_2")]] kernel void matvec<iq2_s, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_s_4")]] kernel void matvec<iq2_s, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq2_s_8")]] kernel void matvec<iq2_s, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_xxs_1")]] kernel void matvec<iq3_xxs, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_xxs_2")]] kernel void matvec<iq3_xxs, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_xxs_4")]] kernel void matvec<iq3_xxs, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_xxs_8")]] kernel void matvec<iq3_xxs, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_s_1")]] kernel void matvec<iq3_s, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_s_2")]] kernel void matvec<iq3_s, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_s_4")]] kernel void matvec<iq3_s, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq3_s_8")]] kernel void matvec<iq3_s, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_nl_1")]] kernel void matvec<iq4_nl, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_nl_2")]] kernel void matvec<iq4_nl, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_nl_4")]] kernel void matvec<iq4_nl, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_nl_8")]] kernel void matvec<iq4_nl, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_xs_1")]] kernel void matvec<iq4_xs, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_xs_2")]] kernel void matvec<iq4_xs, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_xs_4")]] kernel void matvec<iq4_xs, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_iq4_xs_8")]] kernel void matvec<iq4_xs, 8>(MATVEC_PARAMETERS);
template [[host_name("matvec_mxfp4_1")]] kernel void matvec<mxfp4, 1>(MATVEC_PARAMETERS);
template [[host_name("matvec_mxfp4_2")]] kernel void matvec<mxfp4, 2>(MATVEC_PARAMETERS);
template [[host_name("matvec_mxfp4_4")]] kernel void matvec<mxfp4, 4>(MATVEC_PARAMETERS);
template [[host_name("matvec_mxfp4_8")]] kernel void matvec<mxfp4, 8>(MATVEC_PARAMETERS);
template [[host_name("matmul_f32")]] kernel void matmul<f32>(MATMUL_PARAMETERS);
template [[host_name("matmul_f16")]] kernel void matmul<f16>(MATMUL_PARAMETERS);
template [[host_name("matmul_bf16")]] kernel void matmul<bf16>(MATMUL_PARAMETERS);
template [[host_name("matmul_q4_0")]] kernel void matmul<q4_0>(MATMUL_PARAMETERS);
template [[host_name("matmul_q4_1")]] kernel void matmul<q4_1>(MATMUL_PARAMETERS);
template [[host_name("matmul_q5_0")]] kernel void matmul<q5_0>(MATMUL_PARAMETERS);
template [[host_name("matmul_q5_1")]] kernel void matmul<q5_1>(MATMUL_PARAMETERS);
template [[host_name("matmul_q8_0")]] kernel void matmul<q8_0>(MATMUL_PARAMETERS);
template [[host_name("matmul_q2_k")]] kernel void matmul<q2_k>(MATMUL_PARAMETERS);
template [[host_name("matmul_q3_k")]] kernel void matmul<q3_k>(MATMUL_PARAMETERS);
template [[host_name("matmul_q4_k")]] kernel void matmul<q4_k>(MATMUL_PARAMETERS);
template [[host_name("matmul_q5_k")]] kernel void matmul<q5_k>(MATMUL_PARAMETERS);
template [[host_name("matmul_q6_k")]] kernel void matmul<q6_k>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq1_s")]] kernel void matmul<iq1_s>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq1_m")]] kernel void matmul<iq1_m>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq2_xxs")]] kernel void matmul<iq2_xxs>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq2_xs")]] kernel void matmul<iq2_xs>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq2_s")]] kernel void matmul<iq2_s>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq3_xxs")]] kernel void matmul<iq3_xxs>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq3_s")]] kernel void matmul<iq3_s>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq4_nl")]] kernel void matmul<iq4_nl>(MATMUL_PARAMETERS);
template [[host_name("matmul_iq4_xs")]] kernel void matmul<iq4_xs>(MATMUL_PARAMETERS);
template [[host_name("matmul_mxfp4")]] kernel void matmul<mxfp4>(MATMUL_PARAMETERS);
