/* gpu_ops.c - how fast a GPU backend's operations are at GLM-5.2's sizes.
 *
 *     gpu_ops BACKEND [REPEATS]     prints one JSON object per line: operation, case, microseconds, bytes, flops;
 *                                   with 0 repeats each case is called twice and not timed, for a profiler
 *
 * Each case is encoded as often as gives some milliseconds of work and timed by the device's own clock, from the first
 * command to the last; the median of REPEATS (default 7) such runs is printed. Operands change from call to call among
 * copies that together are several times any cache's size. Bytes are those that an operation must move: weights, cache
 * rows and scores once. tools/bench/gpu.py sets the figures against what the card reaches. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "glm52_ops.h"
#include "gpu.h"
#include "ops.h"
#include "quant.h"

#define COLD_BYTES ((size_t)512 << 20)
#define COPIES_MAX 256u
#define TARGET_NS 4e6

struct bench {
    const struct glm52_ops *ops;
    glm52_backend *backend;
    uint32_t repeats;
};

/* One call of an operation; copy says which operands. */
typedef void timed_call(struct bench *bench, void *what, uint32_t copy);

static void *allocate(struct bench *b, size_t bytes) {
    void *address = b->ops->allocate(b->backend, bytes);
    if (address == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return address;
}

/* Bytes that make small positive halves and floats, and any codes. */
static void fill(struct bench *b, void *address, size_t bytes, uint32_t seed) {
    static uint8_t piece[1 << 20];
    for (size_t i = 0; i < sizeof(piece); i++) {
        seed = seed * 1664525u + 1013904223u;
        piece[i] = (uint8_t)((seed >> 24) % 0x38);
    }
    for (size_t at = 0; at < bytes; at += sizeof(piece)) {
        const size_t part = bytes - at < sizeof(piece) ? bytes - at : sizeof(piece);
        b->ops->write(b->backend, (uint8_t *)address + at, piece, part);
    }
}

static void *filled(struct bench *b, size_t bytes, uint32_t seed) {
    void *address = allocate(b, bytes);
    fill(b, address, bytes, seed);
    return address;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double run_ns(struct bench *b, timed_call *call, void *what, uint32_t copies, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) call(b, what, i % copies);
    if (b->ops->finish(b->backend) != GLM52_OK) {
        fprintf(stderr, "%s\n", glm52_error_message());
        exit(1);
    }
    const struct glm52_gpu_backend *gpu = (const struct glm52_gpu_backend *)b->backend;
    return (double)gpu->driver->device_ns(gpu->state) / count;
}

static void measure(struct bench *b, const char *op, const char *name, timed_call *call, void *what, uint32_t copies,
                    double bytes, double flops) {
    (void)run_ns(b, call, what, copies, 2);
    if (b->repeats == 0) return;
    const double once = run_ns(b, call, what, copies, 4);
    uint32_t count = once > 0 ? (uint32_t)(TARGET_NS / once) : 100;
    count = count < 4 ? 4 : count > 1000 ? 1000 : count;
    double times[64];
    for (uint32_t i = 0; i < b->repeats; i++) times[i] = run_ns(b, call, what, copies, count);
    qsort(times, b->repeats, sizeof(times[0]), by_size);
    printf("{\"op\": \"%s\", \"case\": \"%s\", \"us\": %.2f, \"us_min\": %.2f, \"us_max\": %.2f, \"bytes\": %.0f, "
           "\"flops\": %.0f}\n", op, name, times[b->repeats / 2] / 1e3, times[0] / 1e3, times[b->repeats - 1] / 1e3,
           bytes, flops);
    fflush(stdout);
}

static uint32_t copies_for(size_t bytes) {
    const size_t copies = COLD_BYTES / bytes + 2;
    return copies > COPIES_MAX ? COPIES_MAX : (uint32_t)copies;
}

/* ---- next to nothing: what a command costs ---- */

struct add {
    glm52_add_args args;
    float *x;
};

static void call_add(struct bench *b, void *what, uint32_t copy) {
    const struct add *a = what;
    (void)copy;
    b->ops->add(b->backend, &a->args, a->x, a->x, a->x, NULL);
}

static void bench_add(struct bench *b) {
    struct add a = {.args = {.count = 6144}};
    a.x = filled(b, 6144 * sizeof(float), 13);
    measure(b, "add", "6144 values", call_add, &a, 1, 3.0 * 6144 * sizeof(float), 6144);
    b->ops->release(b->backend, a.x);
}

/* ---- matrices ---- */

struct matmul {
    glm52_matmul_args args;
    uint8_t *weights;
    size_t bytes;
    float *x, *out;
};

static void call_matmul(struct bench *b, void *what, uint32_t copy) {
    const struct matmul *m = what;
    b->ops->matmul(b->backend, &m->args, m->out, m->x, m->weights + copy * m->bytes);
}

static void bench_matmul(struct bench *b, const struct glm52_quant *quant, uint32_t in, uint32_t out, uint32_t rows) {
    struct matmul m = {.args = {.row_count = rows, .in_count = in, .out_count = out, .group_count = 1,
                                .type = quant->type, .exact = 1, .x_row_stride = in, .x_group_stride = in,
                                .out_row_stride = out, .out_group_stride = out}};
    m.bytes = (size_t)in / quant->block_size * quant->block_bytes * out;
    const uint32_t copies = copies_for(m.bytes);
    m.weights = filled(b, m.bytes * copies, 1);
    m.x = filled(b, (size_t)in * rows * sizeof(float), 2);
    m.out = allocate(b, (size_t)out * rows * sizeof(float));
    if (b->ops->reserve(b->backend, b->ops->matmul_scratch(b->backend, &m.args)) != GLM52_OK) exit(1);
    char name[64];
    snprintf(name, sizeof(name), "%s %ux%u, %u row%s", quant->name, in, out, rows, rows == 1 ? "" : "s");
    measure(b, "matmul", name, call_matmul, &m, copies, (double)m.bytes + 4.0 * rows * (in + out),
            2.0 * rows * in * out);
    b->ops->release(b->backend, m.weights);
    b->ops->release(b->backend, m.x);
    b->ops->release(b->backend, m.out);
}

/* ---- experts ---- */

struct moe {
    glm52_moe_args args;
    glm52_expert experts[256];
    float *x, *out, *weights;
    int32_t *ids;                /* [COPIES_MAX, rows, used] */
};

static void call_moe(struct bench *b, void *what, uint32_t copy) {
    const struct moe *m = what;
    const size_t routes = (size_t)m->args.row_count * m->args.used_count;
    b->ops->moe(b->backend, &m->args, m->out, m->x, m->ids + copy * routes, m->weights, m->experts);
}

static void bench_moe(struct bench *b, const struct glm52_quant *gate, const struct glm52_quant *down, uint32_t rows) {
    const uint32_t in = 6144, ff = 2048, used = 8, copies = 32;
    static struct moe m;
    m.args = (glm52_moe_args){.row_count = rows, .expert_count = 256, .used_count = used, .in_count = in,
                              .ff_count = ff, .gate_type = gate->type, .up_type = gate->type,
                              .down_type = down->type, .exact = 1, .x_stride = in, .out_stride = in};
    const size_t gate_bytes = (size_t)in / gate->block_size * gate->block_bytes * ff;
    const size_t down_bytes = (size_t)ff / down->block_size * down->block_bytes * in;
    uint8_t *memory = filled(b, 256 * (2 * gate_bytes + down_bytes), 3);
    for (uint32_t e = 0; e < 256; e++) {
        uint8_t *at = memory + e * (2 * gate_bytes + down_bytes);
        m.experts[e] = (glm52_expert){.gate = at, .up = at + gate_bytes, .down = at + 2 * gate_bytes};
    }
    m.x = filled(b, (size_t)rows * in * sizeof(float), 4);
    m.out = allocate(b, (size_t)rows * in * sizeof(float));
    m.weights = filled(b, (size_t)rows * used * sizeof(float), 5);
    m.ids = allocate(b, (size_t)copies * rows * used * sizeof(int32_t));
    int32_t *ids = malloc((size_t)copies * rows * used * sizeof(int32_t));
    if (ids == NULL) exit(1);
    /* Eight different ones for each row, others in each copy. */
    for (uint32_t i = 0; i < copies * rows * used; i++) ids[i] = (int32_t)((i % used * 32 + i / used * 5) % 256);
    b->ops->write(b->backend, m.ids, ids, (size_t)copies * rows * used * sizeof(int32_t));
    free(ids);
    if (b->ops->reserve(b->backend, b->ops->moe_scratch(b->backend, &m.args)) != GLM52_OK) exit(1);
    char name[64];
    snprintf(name, sizeof(name), "%s/%s 8 of 256, %u row%s", gate->name, down->name, rows, rows == 1 ? "" : "s");
    const double read = rows * used < 256 ? rows * used : 256;
    measure(b, "moe", name, call_moe, &m, copies, read * (double)(2 * gate_bytes + down_bytes),
            2.0 * 3 * rows * used * in * ff);
    b->ops->release(b->backend, memory);
    b->ops->release(b->backend, m.x);
    b->ops->release(b->backend, m.out);
    b->ops->release(b->backend, m.weights);
    b->ops->release(b->backend, m.ids);
}

/* ---- attention and what selects for it ---- */

struct attention {
    glm52_attention_args args;
    uint8_t *cache;
    size_t cache_bytes;
    float *q_latent, *q_rope, *out;
    int32_t *selected;
};

static void call_attention(struct bench *b, void *what, uint32_t copy) {
    const struct attention *a = what;
    b->ops->attention(b->backend, &a->args, a->out, a->q_latent, a->q_rope, a->cache + copy * a->cache_bytes,
                      a->selected);
}

static void bench_attention(struct bench *b, uint32_t position, uint32_t rows) {
    const uint32_t heads = 64, latent = 512, rope = 64, k = 2048, copies = 4;
    struct attention a = {.args = {.row_count = rows, .head_count = heads, .latent = latent, .rope_size = rope,
                                   .position = position - rows, .k = k, .kv_type = GLM52_KV_F16,
                                   .selected_stride = k, .q_latent_row_stride = heads * latent,
                                   .q_latent_head_stride = latent, .q_rope_row_stride = heads * 256,
                                   .q_rope_head_stride = 256, .out_row_stride = heads * latent,
                                   .out_head_stride = latent, .scale = 0.0625f}};
    a.cache_bytes = (size_t)position * (latent + rope) * 2;
    a.cache = filled(b, copies * a.cache_bytes, 6);
    a.q_latent = filled(b, (size_t)rows * heads * latent * 4, 7);
    a.q_rope = filled(b, (size_t)rows * heads * 256 * 4, 8);
    a.out = allocate(b, (size_t)rows * heads * latent * 4);
    a.selected = allocate(b, (size_t)rows * k * sizeof(int32_t));
    int32_t *selected = malloc((size_t)rows * k * sizeof(int32_t));
    if (selected == NULL) exit(1);
    for (uint32_t i = 0; i < rows * k; i++) selected[i] = (int32_t)((uint64_t)(i % k) * (position - rows) / k);
    b->ops->write(b->backend, a.selected, selected, (size_t)rows * k * sizeof(int32_t));
    free(selected);
    if (b->ops->reserve(b->backend, b->ops->attention_scratch(b->backend, &a.args)) != GLM52_OK) exit(1);
    char name[64];
    snprintf(name, sizeof(name), "64 heads, 2048 of %u rows f16, %u quer%s", position, rows, rows == 1 ? "y" : "ies");
    measure(b, "attention", name, call_attention, &a, copies, (double)rows * k * (latent + rope) * 2,
            2.0 * rows * k * heads * (2 * latent + rope));
    b->ops->release(b->backend, a.cache);
    b->ops->release(b->backend, a.q_latent);
    b->ops->release(b->backend, a.q_rope);
    b->ops->release(b->backend, a.out);
    b->ops->release(b->backend, a.selected);
}

struct indexer {
    glm52_index_score_args score;
    glm52_top_k_args top_k;
    uint8_t *cache;
    size_t cache_bytes;
    float *q, *weights, *scores;
    int32_t *selected;
};

static void call_score(struct bench *b, void *what, uint32_t copy) {
    const struct indexer *x = what;
    b->ops->index_score(b->backend, &x->score, x->scores, x->q, x->weights, x->cache + copy * x->cache_bytes);
}

static void call_top_k(struct bench *b, void *what, uint32_t copy) {
    const struct indexer *x = what;
    (void)copy;
    b->ops->top_k(b->backend, &x->top_k, x->selected, x->scores);
}

static void bench_indexer(struct bench *b, uint32_t keys) {
    const uint32_t heads = 32, size = 128, copies = 20, k = 2048;
    struct indexer x = {
        .score = {.row_count = 1, .head_count = heads, .key_size = size, .position = keys - 1,
                  .kv_type = GLM52_KV_F16, .score_stride = keys, .q_stride = heads * size, .weight_stride = heads,
                  .scale = 0.015625f},
        .top_k = {.row_count = 1, .position = keys - 1, .k = k, .score_stride = keys, .selected_stride = k}};
    x.cache_bytes = (size_t)keys * size * 2;
    x.cache = filled(b, copies * x.cache_bytes, 9);
    x.q = filled(b, heads * size * 4, 10);
    x.weights = filled(b, heads * 4, 11);
    x.scores = filled(b, (size_t)keys * 4, 12);
    x.selected = allocate(b, k * sizeof(int32_t));
    if (b->ops->reserve(b->backend, b->ops->index_score_scratch(b->backend, &x.score)) != GLM52_OK) exit(1);
    if (b->ops->reserve(b->backend, b->ops->top_k_scratch(b->backend, &x.top_k)) != GLM52_OK) exit(1);
    char name[64];
    snprintf(name, sizeof(name), "32 heads, %u keys f16", keys);
    measure(b, "index_score", name, call_score, &x, copies, (double)x.cache_bytes + 4.0 * keys,
            2.0 * keys * heads * size);
    snprintf(name, sizeof(name), "2048 of %u", keys);
    measure(b, "top_k", name, call_top_k, &x, copies, 4.0 * keys, 0);
    b->ops->release(b->backend, x.cache);
    b->ops->release(b->backend, x.q);
    b->ops->release(b->backend, x.weights);
    b->ops->release(b->backend, x.scores);
    b->ops->release(b->backend, x.selected);
}

static const struct glm52_quant *quant(const char *name) {
    for (uint32_t i = 0; glm52_quant_at(i) != NULL; i++) {
        if (strcmp(glm52_quant_at(i)->name, name) == 0) return glm52_quant_at(i);
    }
    fprintf(stderr, "no format %s\n", name);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "usage: gpu_ops BACKEND [REPEATS]\n");
        return 2;
    }
    struct bench b = {.repeats = argc > 2 ? (uint32_t)atoi(argv[2]) : 7};
    if (b.repeats > 64) b.repeats = 7;
    if (strcmp(argv[1], "cpu") == 0 || glm52_backend_open(argv[1], 0, &b.backend) != GLM52_OK) {
        fprintf(stderr, "%s: no such GPU: %s\n", argv[1], glm52_error_message());
        return 1;
    }
    b.ops = b.backend->ops;
    /* So that kernels of these sizes are taken. */
    const glm52_shape shape = {.kv_lora = 512, .rope = 64, .key_mla = 256, .value_mla = 256, .index_key = 128};
    b.ops->expect(b.backend, &shape, 0);
    bench_add(&b);
    static const char *const types[] = {"Q8_0", "Q6_K", "Q5_K", "Q4_K", "Q3_K", "Q2_K", "IQ4_XS", "IQ3_XXS", "IQ2_XXS",
                                        "IQ2_XS", "Q4_0", "F16"};
    static const uint32_t sizes[][2] = {{6144, 2048}, {2048, 16384}, {16384, 6144}, {6144, 154880}};
    for (uint32_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        for (uint32_t s = 0; s < 4; s++) bench_matmul(&b, quant(types[t]), sizes[s][0], sizes[s][1], 1);
    }
    for (uint32_t rows = 2; rows <= 8; rows *= 2) bench_matmul(&b, quant("Q8_0"), 16384, 6144, rows);
    bench_moe(&b, quant("Q8_0"), quant("Q8_0"), 1);
    bench_moe(&b, quant("Q4_K"), quant("Q4_K"), 1);
    bench_moe(&b, quant("Q2_K"), quant("Q2_K"), 1);
    bench_moe(&b, quant("IQ2_XXS"), quant("IQ2_XXS"), 1);
    bench_moe(&b, quant("IQ2_XXS"), quant("Q2_K"), 1);
    bench_attention(&b, 4096, 1);
    bench_attention(&b, 131072, 1);
    bench_indexer(&b, 131072);
    for (uint32_t rows = 512; rows <= 4096; rows *= 8) {
        bench_matmul(&b, quant("Q8_0"), 6144, 2048, rows);
        bench_matmul(&b, quant("Q4_K"), 16384, 6144, rows);
        bench_matmul(&b, quant("Q8_0"), 16384, 6144, rows);
    }
    bench_moe(&b, quant("Q2_K"), quant("Q2_K"), 512);
    glm52_backend_close(b.backend);
    return 0;
}
