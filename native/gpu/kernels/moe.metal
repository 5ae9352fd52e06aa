/* moe.metal - the routed experts: every row's own few networks, weighted and added up.
 *
 * A pair is a row and one of its choices, numbered row * used_count + place. Three kernels:
 *
 *     moe_expand     h[pair] = silu(gate x[row]) * (up x[row])
 *     moe_contract   y[pair] = weight * (down h[pair])
 *     moe_add        out[row] += y of its pairs, in ascending order of the experts' numbers, then of places
 *
 * Products have the order of sums of dot_rows.h, whatever the number of rows. For a batch the first two are moe_tile's:
 * moe_group lists the pairs by expert, in tiles of 64, so that an expert's matrices are read once for a tile; products
 * then have the order of tile.h. A product with a weight is rounded before it
 * is added: sums have the same bits whether experts come at once or in several calls. Experts that are not at hand,
 * whose addresses are NULL, are left out. */
#include "dot_rows.h"
#include "tile.h"

struct expert {
    device const uchar *gate;
    device const uchar *up;
    device const uchar *down;
};

/* Adds up the parts of a tile: place is a row of it. */
static float total_of(threadgroup const float *partial, uint tile, uint parts, uint place) {
    float total = partial[tile * parts * TILE + place];
    for (uint part = 1; part < parts; part++) total += partial[(tile * parts + part) * TILE + place];
    return total;
}

/* partial [SIMDGROUPS][TILE] = the simdgroups' sums. */
static void hand_in(thread const float *sum, threadgroup float *partial, uint lane, uint simdgroup) {
    for (uint i = 0; i < TILE; i++) {
        const float total = simd_sum(sum[i]);
        if (lane == 0) partial[simdgroup * TILE + i] = total;
    }
}

/* A simdgroup's share of the product of a matrix with one row x. */
template <typename T>
static void multiply(T type, threadgroup const uint *space, constant glm52_moe_kernel_args &args,
                     device const uchar *weights, uint first, device const float *x, place at,
                     threadgroup float4 *staged, thread float *sum) {
    dot_rows<T, 1>(type, space, weights + ulong(first) * args.row_bytes, args.row_bytes,
                   first < args.out_count ? min(uint(TILE), args.out_count - first) : 0, args.in_count, x, 0, 1,
                   args.is_wide, at, staged, sum);
}

static float silu(float x) {
    return x / (1.0f + exp(-x));
}

/* args.what: both matrices, or one after the other if they differ in type: the gate's product goes to h, then the up's
 * takes it from there. */
template <typename T>
kernel void moe_expand(constant glm52_moe_kernel_args &args [[buffer(0)]], device float *h [[buffer(1)]],
                       device const float *x [[buffer(2)]], device const int *ids [[buffer(3)]],
                       device const expert *experts [[buffer(4)]], uint3 group [[threadgroup_position_in_grid]],
                       uint index [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                       uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float gates[SIMDGROUPS * TILE];
    threadgroup float ups[SIMDGROUPS * TILE];
    threadgroup uint space[lanes_of<T>::space + 1];
    threadgroup float4 staged[lanes_of<T>::steps == 1 ? 1 : STAGE_WORDS / 4];
    device const expert &chosen = experts[ids[group.y]];
    if (chosen.gate != nullptr) {
        if (lanes_of<T>::space > 0) {
            prepare_lanes(T(), space, index, SIMDGROUPS * SIMD_WIDTH);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        const uint tiles = SIMDGROUPS / args.parts;
        const uint first = (group.x * tiles + simdgroup / args.parts) * TILE;
        const place at = {index, lane, simdgroup, simdgroup % args.parts, args.parts};
        device const float *row = x + ulong(group.y / args.used_count) * args.x_stride;
        float sum[TILE];
        if (args.what != MOE_UP) {
            multiply(T(), space, args, chosen.gate, first, row, at, staged, sum);
            hand_in(sum, gates, lane, simdgroup);
        }
        if (args.what != MOE_GATE) {
            multiply(T(), space, args, chosen.up, first, row, at, staged, sum);
            hand_in(sum, ups, lane, simdgroup);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint tile = index / TILE, column = group.x * tiles * TILE + index;
        if (tile < tiles && column < args.out_count) {
            device float *to = h + ulong(group.y) * args.out_count + column;
            const float gate = args.what == MOE_UP ? *to : total_of(gates, tile, args.parts, index % TILE);
            *to = args.what == MOE_GATE ? gate : silu(gate) * total_of(ups, tile, args.parts, index % TILE);
        }
    }
}

template <typename T>
kernel void moe_contract(constant glm52_moe_kernel_args &args [[buffer(0)]], device float *y [[buffer(1)]],
                         device const float *h [[buffer(2)]], device const int *ids [[buffer(3)]],
                         device const expert *experts [[buffer(4)]], device const float *weights [[buffer(5)]],
                         uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                         uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float partial[SIMDGROUPS * TILE];
    threadgroup uint space[lanes_of<T>::space + 1];
    threadgroup float4 staged[lanes_of<T>::steps == 1 ? 1 : STAGE_WORDS / 4];
    device const expert &chosen = experts[ids[group.y]];
    if (chosen.gate != nullptr) {
        if (lanes_of<T>::space > 0) {
            prepare_lanes(T(), space, index, SIMDGROUPS * SIMD_WIDTH);
            threadgroup_barrier(mem_flags::mem_threadgroup);
        }
        const uint tiles = SIMDGROUPS / args.parts;
        const uint first = (group.x * tiles + simdgroup / args.parts) * TILE;
        const place at = {index, lane, simdgroup, simdgroup % args.parts, args.parts};
        float sum[TILE];
        multiply(T(), space, args, chosen.down, first, h + ulong(group.y) * args.in_count, at, staged, sum);
        hand_in(sum, partial, lane, simdgroup);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        const uint tile = index / TILE, column = group.x * tiles * TILE + index;
        if (tile < tiles && column < args.out_count) {
            y[ulong(group.y) * args.out_count + column] =
                weights[group.y] * total_of(partial, tile, args.parts, index % TILE);
        }
    }
}

/* Position: a column, a row. */
kernel void moe_add(constant glm52_moe_add_args &args [[buffer(0)]], device float *out [[buffer(1)]],
                    device const float *y [[buffer(2)]], device const int *ids [[buffer(3)]],
                    device const expert *experts [[buffer(4)]], uint2 at [[thread_position_in_grid]]) {
    if (at.x < args.size) {
        device const int *of_row = ids + ulong(at.y) * args.used_count;
        device float *to = out + ulong(at.y) * args.out_stride + at.x;
        float sum = *to;
        int last = -1;
        uint done = 0;
        while (done < args.used_count) {
            int next = 0x7FFFFFFF;
            for (uint i = 0; i < args.used_count; i++) next = of_row[i] > last ? min(next, of_row[i]) : next;
            const bool is_there = experts[next].gate != nullptr;
            for (uint i = 0; i < args.used_count; i++) {
                if (of_row[i] != next) continue;
                if (is_there) sum += y[(ulong(at.y) * args.used_count + i) * args.size + at.x];
                done++;
            }
            last = next;
        }
        *to = sum;
    }
}

/* ---- batches ---- */

/* pairs [pair_count] = the pairs whose experts are at hand, those of an expert together; tiles [tile_max] = its
 * expert, its first pair and how many, none from some tile on. One threadgroup. */
kernel void moe_group(constant glm52_moe_group_args &args [[buffer(0)]], device uint *pairs [[buffer(1)]],
                      device uint4 *tiles [[buffer(2)]], device const int *ids [[buffer(3)]],
                      device const expert *experts [[buffer(4)]], uint index [[thread_index_in_threadgroup]]) {
    threadgroup atomic_uint counts[MOE_GROUP_EXPERTS];
    for (uint i = index; i < args.expert_count; i += TILE_THREADS) {
        atomic_store_explicit(&counts[i], 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = index; i < args.pair_count; i += TILE_THREADS) {
        if (experts[ids[i]].gate != nullptr) atomic_fetch_add_explicit(&counts[ids[i]], 1u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (index == 0) {   /* counts become firsts */
        uint first = 0, tile = 0;
        for (uint i = 0; i < args.expert_count; i++) {
            const uint count = atomic_load_explicit(&counts[i], memory_order_relaxed);
            atomic_store_explicit(&counts[i], first, memory_order_relaxed);
            for (uint done = 0; done < count; done += TILE_ROWS) {
                tiles[tile++] = uint4(i, first + done, min(uint(TILE_ROWS), count - done), 0);
            }
            first += count;
        }
        while (tile < args.tile_max) tiles[tile++] = uint4(0, 0, 0, 0);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = index; i < args.pair_count; i += TILE_THREADS) {
        if (experts[ids[i]].gate == nullptr) continue;
        pairs[atomic_fetch_add_explicit(&counts[ids[i]], 1u, memory_order_relaxed)] = i;
    }
}

/* Group: x is a tile of rows of weights, y one of pairs. args.what: h = gate x; h = silu(h) * (up x); y = weight *
 * down h, where to is h or y, and x is x or h. */
template <typename T>
kernel void moe_tile(constant glm52_moe_kernel_args &args [[buffer(0)]], device float *to [[buffer(1)]],
                     device const float *x [[buffer(2)]], device const uint *pairs [[buffer(3)]],
                     device const uint4 *tiles [[buffer(4)]], device const expert *experts [[buffer(5)]],
                     device const float *weights [[buffer(6)]], uint3 group [[threadgroup_position_in_grid]],
                     uint index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float space[TILE_SPACE];
    tile_sums sums;
    const uint4 tile = tiles[group.y];
    if (tile.z > 0) {
        device const expert &chosen = experts[tile.x];
        device const uchar *matrix = args.what == MOE_GATE ? chosen.gate
                                     : args.what == MOE_UP ? chosen.up
                                                           : chosen.down;
        const uint first = group.x * TILE_COLUMNS;
        const uint pair = pairs[tile.y + min(index / 4, tile.z - 1)];
        multiply_tile(T(), matrix + ulong(min(first + index / 2, args.out_count - 1)) * args.row_bytes,
                      x + ulong(args.what == MOE_DOWN ? pair : pair / args.used_count) * args.x_stride, tile.z,
                      args.in_count, (args.is_wide & WIDE_X) != 0, index, simdgroup, space, sums);
        for (uint part = 0; part < 2; part++) {
            hand_out_tile(sums, part, simdgroup, space);
            for (uint i = index; i < TILE_ROWS * TILE_HALF; i += TILE_THREADS) {
                const uint column = first + part * TILE_HALF + i % TILE_HALF;
                if (i / TILE_HALF >= tile.z || column >= args.out_count) continue;
                const uint of_row = pairs[tile.y + i / TILE_HALF];
                device float *at = to + ulong(of_row) * args.out_count + column;
                *at = args.what == MOE_GATE ? space[i]
                      : args.what == MOE_UP ? silu(*at) * space[i]
                                            : weights[of_row] * space[i];
            }
        }
    }
}

#define TILE_PARAMETERS                                                                                               \
    constant glm52_moe_kernel_args &, device float *, device const float *, device const uint *, device const uint4 *, \
    device const expert *, device const float *, uint3, uint, uint
#define EXPAND_PARAMETERS                                                                                              \
    constant glm52_moe_kernel_args &, device float *, device const float *, device const int *, device const expert *, \
    uint3, uint, uint, uint
#define CONTRACT_PARAMETERS                                                                                            \
    constant glm52_moe_kernel_args &, device float *, device const float *, device const int *, device const expert *, \
    device const float *, uint3, uint, uint, uint

template [[host_name("moe_expand_f32")]] kernel void moe_expand<f32>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_f16")]] kernel void moe_expand<f16>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_bf16")]] kernel void moe_expand<bf16>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q4_0")]] kernel void moe_expand<q4_0>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q4_1")]] kernel void moe_expand<q4_1>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q5_0")]] kernel void moe_expand<q5_0>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q5_1")]] kernel void moe_expand<q5_1>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q8_0")]] kernel void moe_expand<q8_0>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q2_k")]] kernel void moe_expand<q2_k>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q3_k")]] kernel void moe_expand<q3_k>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q4_k")]] kernel void moe_expand<q4_k>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q5_k")]] kernel void moe_expand<q5_k>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_q6_k")]] kernel void moe_expand<q6_k>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq1_s")]] kernel void moe_expand<iq1_s>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq1_m")]] kernel void moe_expand<iq1_m>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq2_xxs")]] kernel void moe_expand<iq2_xxs>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq2_xs")]] kernel void moe_expand<iq2_xs>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq2_s")]] kernel void moe_expand<iq2_s>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq3_xxs")]] kernel void moe_expand<iq3_xxs>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq3_s")]] kernel void moe_expand<iq3_s>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq4_nl")]] kernel void moe_expand<iq4_nl>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_iq4_xs")]] kernel void moe_expand<iq4_xs>(EXPAND_PARAMETERS);
template [[host_name("moe_expand_mxfp4")]] kernel void moe_expand<mxfp4>(EXPAND_PARAMETERS);
template [[host_name("moe_contract_f32")]] kernel void moe_contract<f32>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_f16")]] kernel void moe_contract<f16>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_bf16")]] kernel void moe_contract<bf16>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q4_0")]] kernel void moe_contract<q4_0>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q4_1")]] kernel void moe_contract<q4_1>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q5_0")]] kernel void moe_contract<q5_0>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q5_1")]] kernel void moe_contract<q5_1>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q8_0")]] kernel void moe_contract<q8_0>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q2_k")]] kernel void moe_contract<q2_k>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q3_k")]] kernel void moe_contract<q3_k>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q4_k")]] kernel void moe_contract<q4_k>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q5_k")]] kernel void moe_contract<q5_k>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_q6_k")]] kernel void moe_contract<q6_k>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq1_s")]] kernel void moe_contract<iq1_s>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq1_m")]] kernel void moe_contract<iq1_m>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq2_xxs")]] kernel void moe_contract<iq2_xxs>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq2_xs")]] kernel void moe_contract<iq2_xs>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq2_s")]] kernel void moe_contract<iq2_s>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq3_xxs")]] kernel void moe_contract<iq3_xxs>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq3_s")]] kernel void moe_contract<iq3_s>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq4_nl")]] kernel void moe_contract<iq4_nl>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_iq4_xs")]] kernel void moe_contract<iq4_xs>(CONTRACT_PARAMETERS);
template [[host_name("moe_contract_mxfp4")]] kernel void moe_contract<mxfp4>(CONTRACT_PARAMETERS);
template [[host_name("moe_tile_f32")]] kernel void moe_tile<f32>(TILE_PARAMETERS);
template [[host_name("moe_tile_f16")]] kernel void moe_tile<f16>(TILE_PARAMETERS);
template [[host_name("moe_tile_bf16")]] kernel void moe_tile<bf16>(TILE_PARAMETERS);
template [[host_name("moe_tile_q4_0")]] kernel void moe_tile<q4_0>(TILE_PARAMETERS);
template [[host_name("moe_tile_q4_1")]] kernel void moe_tile<q4_1>(TILE_PARAMETERS);
template [[host_name("moe_tile_q5_0")]] kernel void moe_tile<q5_0>(TILE_PARAMETERS);
template [[host_name("moe_tile_q5_1")]] kernel void moe_tile<q5_1>(TILE_PARAMETERS);
template [[host_name("moe_tile_q8_0")]] kernel void moe_tile<q8_0>(TILE_PARAMETERS);
template [[host_name("moe_tile_q2_k")]] kernel void moe_tile<q2_k>(TILE_PARAMETERS);
template [[host_name("moe_tile_q3_k")]] kernel void moe_tile<q3_k>(TILE_PARAMETERS);
template [[host_name("moe_tile_q4_k")]] kernel void moe_tile<q4_k>(TILE_PARAMETERS);
template [[host_name("moe_tile_q5_k")]] kernel void moe_tile<q5_k>(TILE_PARAMETERS);
template [[host_name("moe_tile_q6_k")]] kernel void moe_tile<q6_k>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq1_s")]] kernel void moe_tile<iq1_s>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq1_m")]] kernel void moe_tile<iq1_m>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq2_xxs")]] kernel void moe_tile<iq2_xxs>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq2_xs")]] kernel void moe_tile<iq2_xs>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq2_s")]] kernel void moe_tile<iq2_s>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq3_xxs")]] kernel void moe_tile<iq3_xxs>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq3_s")]] kernel void moe_tile<iq3_s>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq4_nl")]] kernel void moe_tile<iq4_nl>(TILE_PARAMETERS);
template [[host_name("moe_tile_iq4_xs")]] kernel void moe_tile<iq4_xs>(TILE_PARAMETERS);
template [[host_name("moe_tile_mxfp4")]] kernel void moe_tile<mxfp4>(TILE_PARAMETERS);
