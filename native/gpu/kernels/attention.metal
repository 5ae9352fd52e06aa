/* attention.metal - indexed attention over the compressed cache: one latent row serves all heads as key and as value.
 *
 * The selected rows of a query are taken SPLIT at a time. Of a split come, for each head, its largest score m, the sum
 * l of exp(score - m) and the sum o of exp(score - m) times the row, rows in their order. Splits are folded in their
 * order into a running m, l and o, all scaled to the larger m; out = o / l. A threadgroup folds the splits of 8 heads
 * itself, or, if there are few queries, each split is a threadgroup's and attention_fold folds what they left: the
 * same numbers in the same order, so a query's bits don't depend on how many there are. */
#include "common.h"

#define HEADS 8
#define SPLIT 64
#define THREADS 128
#define SIMDGROUPS (THREADS / SIMD_WIDTH)
/* Values of a row that a threadgroup adds up: EACH a thread. */
#define EACH 4
#define VALUES (EACH * THREADS)
/* Sizes that have a path of their own. */
#define OWN_LATENT 512
#define OWN_ROPE 64
#define OWN_ROW (OWN_LATENT + OWN_ROPE)
/* Steps of 4 values a lane in which a simdgroup reads a row of them, the last by half of its lanes. */
#define OWN_STEPS 5
/* Rows whose values are read beside each other, before the first is used. */
#define ROWS_AT_ONCE 8

/* What m is subtracted as: where all scores are -infinity, exp(score - m) is to be 0. */
static float shift_of(float m) {
    return m == -INFINITY ? 0.0f : m;
}

/* Lane i gets the sum of all lanes' v[i]: at each step lanes trade the half that is not theirs. v [32] is used up. */
static float sum_across(thread float *v, uint lane) {
    for (uint width = SIMD_WIDTH / 2; width > 0; width /= 2) {
        const bool is_upper = (lane & width) != 0;
        for (uint i = 0; i < width; i++) {
            const float mine = is_upper ? v[i + width] : v[i], theirs = is_upper ? v[i] : v[i + width];
            v[i] = mine + simd_shuffle_xor(theirs, ushort(width));
        }
    }
    return v[0];
}

/* ---- scores [SPLIT][HEADS] of count rows and heads heads ---- */

template <typename T>
static void score_any(constant glm52_attend_args &args, device const float *latent, device const float *rope,
                      device const T *cache, threadgroup const int *selected, uint count, uint heads,
                      threadgroup float *scores, uint lane, uint simdgroup) {
    const uint row_size = args.latent + args.rope_size;
    for (uint i = simdgroup; i < count; i += SIMDGROUPS) {
        device const T *row = cache + ulong(selected[i]) * row_size;
        for (uint h = 0; h < heads; h++) {
            device const float *a = latent + ulong(h) * args.q_latent_head_stride;
            device const float *b = rope + ulong(h) * args.q_rope_head_stride;
            float sum = 0.0f;
            for (uint j = lane; j < args.latent; j += SIMD_WIDTH) sum = fma(a[j], float(row[j]), sum);
            for (uint j = lane; j < args.rope_size; j += SIMD_WIDTH) sum = fma(b[j], float(row[args.latent + j]), sum);
            const float score = args.scale * simd_sum(sum);
            if (lane == 0) scores[i * HEADS + h] = score;
        }
    }
}

/* GLM-5.2's sizes: a simdgroup takes 4 rows at once, lane i values 4 i .. 4 i + 3 of each 128; the queries are in
 * threadgroup memory, [HEADS][OWN_ROW]. All reads of the rows are under way before the first is used. */
template <typename T>
static void score_own(constant glm52_attend_args &args, threadgroup const float *queries, device const T *cache,
                      threadgroup const int *selected, uint count, threadgroup float *scores, uint lane,
                      uint simdgroup) {
    for (uint first = 4 * simdgroup; first < count; first += 4 * SIMDGROUPS) {
        vec<T, 4> key[OWN_STEPS][4];
        for (uint r = 0; r < 4; r++) {
            device const T *row = cache + ulong(selected[min(first + r, count - 1)]) * OWN_ROW + 4 * lane;
            for (uint s = 0; s < OWN_STEPS; s++) {
                key[s][r] = vec<T, 4>(T(0.0f));
                if (4 * (s * SIMD_WIDTH + lane) < OWN_ROW) {
                    key[s][r] = *(device const vec<T, 4> *)(row + 4 * s * SIMD_WIDTH);
                }
            }
        }
        float sum[4 * HEADS];
        for (uint i = 0; i < 4 * HEADS; i++) sum[i] = 0.0f;
        for (uint s = 0; s < OWN_STEPS; s++) {
            float4 of_row[4];
            for (uint r = 0; r < 4; r++) of_row[r] = float4(key[s][r]);
            if (4 * (s * SIMD_WIDTH + lane) < OWN_ROW) {
                for (uint h = 0; h < HEADS; h++) {
                    const float4 query =
                        *(threadgroup const float4 *)(queries + h * OWN_ROW + 4 * (s * SIMD_WIDTH + lane));
                    for (uint r = 0; r < 4; r++) {
                        float product = sum[r * HEADS + h];
                        product = fma(query.x, of_row[r].x, product);
                        product = fma(query.y, of_row[r].y, product);
                        product = fma(query.z, of_row[r].z, product);
                        sum[r * HEADS + h] = fma(query.w, of_row[r].w, product);
                    }
                }
            }
        }
        const float score = args.scale * sum_across(sum, lane);
        if (first + lane / HEADS < count) scores[first * HEADS + lane] = score;
    }
}

/* Turns scores into exp(score - m); a simdgroup takes heads in turn. */
static void exponentials(threadgroup float *scores, uint count, threadgroup float *largest, threadgroup float *sums,
                         uint lane, uint simdgroup) {
    for (uint h = simdgroup; h < HEADS; h += SIMDGROUPS) {
        float m = -INFINITY;
        for (uint i = lane; i < count; i += SIMD_WIDTH) m = max(m, scores[i * HEADS + h]);
        m = simd_max(m);
        float sum = 0.0f;
        for (uint i = lane; i < count; i += SIMD_WIDTH) {
            const float p = exp(scores[i * HEADS + h] - shift_of(m));
            scores[i * HEADS + h] = p;
            sum += p;
        }
        sum = simd_sum(sum);
        if (lane == 0) {
            largest[h] = m;
            sums[h] = sum;
        }
    }
}

/* ---- folding: a running m, l and o, and a split's ---- */

/* The factors that bring the running and the split's numbers to the larger m, which becomes the running one. */
static float2 factors_of(thread float *running, float m) {
    const float larger = max(*running, m);
    const float2 factors = float2(exp(*running - shift_of(larger)), exp(m - shift_of(larger)));
    *running = larger;
    return factors;
}

static float fold(float running, float split, float2 factors) {
    return fma(running, factors.x, split * factors.y);
}

static float4 fold4(float4 running, float4 split, float2 factors) {
    return fma(running, float4(factors.x), split * float4(factors.y));
}

/* Of a row's values those from at on, of which there are left (1 ..); 0 behind them. is_wide: rows are whole fours. */
template <typename T>
static float4 some_values(device const T *row, uint left, bool is_wide) {
    if (is_wide) return float4(*(device const vec<T, 4> *)row);
    return float4(float(row[0]), left > 1 ? float(row[1]) : 0.0f, left > 2 ? float(row[2]) : 0.0f,
                  left > 3 ? float(row[3]) : 0.0f);
}

/* o [HEADS] = sums of p times a row's EACH values from at on */
template <typename T>
static void add_rows(device const T *cache, threadgroup const int *selected, uint row_size, uint count, uint at,
                     uint left, threadgroup const float *p, thread float4 *o) {
    const bool is_wide = row_size % EACH == 0 && left >= EACH;
    for (uint h = 0; h < HEADS; h++) o[h] = float4(0.0f);
    for (uint first = 0; first < count; first += ROWS_AT_ONCE) {
        float4 value[ROWS_AT_ONCE];
        for (uint r = 0; r < ROWS_AT_ONCE; r++) {
            value[r] = some_values(cache + ulong(selected[min(first + r, count - 1)]) * row_size + at, left, is_wide);
        }
        for (uint r = 0; r < ROWS_AT_ONCE; r++) {
            if (first + r < count) {
                for (uint h = 0; h < HEADS; h++) o[h] = fma(float4(p[(first + r) * HEADS + h]), value[r], o[h]);
            }
        }
    }
}

/* to[i] = value[i] for i < left */
static void put(device float *to, float4 value, uint left) {
    if (left > 0) to[0] = value.x;
    if (left > 1) to[1] = value.y;
    if (left > 2) to[2] = value.z;
    if (left > 3) to[3] = value.w;
}

/* GLM-5.2's sizes: the queries [HEADS][OWN_ROW], those of heads that are not there like the last's. */
static void read_queries(constant glm52_attend_args &args, device const float *latent, device const float *rope,
                         uint heads, uint index, threadgroup float *queries) {
#pragma unroll
    for (uint h = 0; h < HEADS; h++) {
        const uint head = min(h, heads - 1);
#pragma unroll
        for (uint j = 0; j < OWN_LATENT; j += THREADS) {
            queries[h * OWN_ROW + j + index] = latent[ulong(head) * args.q_latent_head_stride + j + index];
        }
        if (index < OWN_ROPE) {
            queries[h * OWN_ROW + OWN_LATENT + index] = rope[ulong(head) * args.q_rope_head_stride + index];
        }
    }
}

/* Group: x is a block of 8 heads and one of 512 values, y a split if args.split_groups is not 1, z a query. Partial
 * results: [query][split][head][latent] and, behind them all, [query][split][head] of m and l. */
template <typename T>
kernel void attention(constant glm52_attend_args &args [[buffer(0)]], device float *out [[buffer(1)]],
                      device const float *q_latent [[buffer(2)]], device const float *q_rope [[buffer(3)]],
                      device const T *cache [[buffer(4)]], device const int *selected [[buffer(5)]],
                      device float *partial [[buffer(6)]], device float2 *partial_sums [[buffer(7)]],
                      uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {
    threadgroup float queries[HEADS * OWN_ROW];
    threadgroup float scores[SPLIT * HEADS];
    threadgroup int some[SPLIT];
    threadgroup float largest[HEADS];
    threadgroup float sums[HEADS];
    const bool is_own = constant_latent == OWN_LATENT && constant_rope == OWN_ROPE;
    const uint blocks = (args.latent + VALUES - 1) / VALUES;
    const uint head = group.x / blocks * HEADS, heads = min(uint(HEADS), args.head_count - head);
    const uint at = group.x % blocks * VALUES + EACH * index, left = at < args.latent ? args.latent - at : 0;
    const uint row_size = args.latent + args.rope_size;
    const uint count = min(args.k, args.position + group.z + 1);
    device const int *list = selected + ulong(group.z) * args.selected_stride;
    device const float *latent =
        q_latent + ulong(group.z) * args.q_latent_row_stride + ulong(head) * args.q_latent_head_stride;
    device const float *rope = q_rope + ulong(group.z) * args.q_rope_row_stride + ulong(head) * args.q_rope_head_stride;
    if (is_own) read_queries(args, latent, rope, heads, index, queries);
    for (uint i = index; i < SPLIT * HEADS; i += THREADS) scores[i] = 0.0f;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float m[HEADS], l[HEADS];
    float4 o[HEADS], folded[HEADS];
    for (uint h = 0; h < HEADS; h++) {
        m[h] = -INFINITY;
        l[h] = 0.0f;
        folded[h] = float4(0.0f);
    }
    for (uint split = group.y; split * SPLIT < count; split += args.split_groups) {
        const uint rows = min(uint(SPLIT), count - split * SPLIT);
        if (index < rows) some[index] = list[split * SPLIT + index];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (is_own) {
            score_own(args, queries, cache, some, rows, scores, lane, simdgroup);
        } else {
            score_any(args, latent, rope, cache, some, rows, heads, scores, lane, simdgroup);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        exponentials(scores, rows, largest, sums, lane, simdgroup);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        if (left > 0) add_rows(cache, some, row_size, rows, at, left, scores, o);
        if (args.split_groups == 1) {
            for (uint h = 0; h < HEADS; h++) {
                const float2 factors = factors_of(&m[h], largest[h]);
                l[h] = fold(l[h], sums[h], factors);
                folded[h] = fold4(folded[h], o[h], factors);
            }
        } else {
            const ulong place = (ulong(group.z) * args.split_groups + split) * args.head_count + head;
            for (uint h = 0; h < HEADS; h++) {
                if (h < heads) put(partial + (place + h) * args.latent + at, o[h], left);
            }
            if (index < heads && group.x % blocks == 0) {
                partial_sums[place + index] = float2(largest[index], sums[index]);
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (args.split_groups == 1) {
        for (uint h = 0; h < HEADS; h++) {
            device float *to = out + ulong(group.z) * args.out_row_stride + ulong(head + h) * args.out_head_stride;
            if (h < heads) put(to + at, folded[h] / float4(l[h]), left);
        }
    }
}

template [[host_name("attention_f32")]] kernel void attention<float>(constant glm52_attend_args &, device float *,
    device const float *, device const float *, device const float *, device const int *, device float *,
    device float2 *, uint3, uint, uint, uint);
template [[host_name("attention_f16")]] kernel void attention<half>(constant glm52_attend_args &, device float *,
    device const float *, device const float *, device const half *, device const int *, device float *,
    device float2 *, uint3, uint, uint, uint);

/* Group: x is a block of values, y a head, z a query. */
kernel void attention_fold(constant glm52_attend_args &args [[buffer(0)]], device float *out [[buffer(1)]],
                           device const float *partial [[buffer(2)]], device const float2 *partial_sums [[buffer(3)]],
                           uint3 group [[threadgroup_position_in_grid]], uint index [[thread_index_in_threadgroup]]) {
    const uint count = min(args.k, args.position + group.z + 1), at = group.x * THREADS + index;
    if (at < args.latent) {
        float m = -INFINITY, l = 0.0f, o = 0.0f;
        const uint splits = (count + SPLIT - 1) / SPLIT;
        for (uint first = 0; first < splits; first += ROWS_AT_ONCE) {
            float2 of_split[ROWS_AT_ONCE];
            float value[ROWS_AT_ONCE];
            for (uint i = 0; i < ROWS_AT_ONCE; i++) {
                const uint split = min(first + i, splits - 1);
                const ulong place = (ulong(group.z) * args.split_groups + split) * args.head_count + group.y;
                of_split[i] = partial_sums[place];
                value[i] = partial[place * args.latent + at];
            }
            for (uint i = 0; i < ROWS_AT_ONCE; i++) {
                if (first + i < splits) {
                    const float2 factors = factors_of(&m, of_split[i].x);
                    l = fold(l, of_split[i].y, factors);
                    o = fold(o, value[i], factors);
                }
            }
        }
        out[ulong(group.z) * args.out_row_stride + ulong(group.y) * args.out_head_stride + at] = o / l;
    }
}
