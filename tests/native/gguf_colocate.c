/* gguf_colocate.c - the colocated twin of a file that was built, and ways to get it wrong. Written from docs/FORMAT.md,
 * "Colocated files", without a look at the reader. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_build.h"

#define TYPE_I8 24
#define BLOCK 4096u

/* A record of a directory. */
struct record {
    char name[64];
    uint32_t dimensions, type;
    uint64_t size[4], offset, bytes;
};

static uint64_t take(const uint8_t **at, int bytes) {
    uint64_t number = 0;
    for (int i = bytes - 1; i >= 0; i--) number = number << 8 | (*at)[i];
    *at += bytes;
    return number;
}

static struct record take_record(const uint8_t **at) {
    struct record r = {.size = {1, 1, 1, 1}};
    const uint64_t length = take(at, 8);
    memcpy(r.name, *at, length < sizeof(r.name) ? length : sizeof(r.name) - 1);
    *at += length;
    r.dimensions = (uint32_t)take(at, 4);
    for (uint32_t i = 0; i < r.dimensions; i++) r.size[i] = take(at, 8);
    r.type = (uint32_t)take(at, 4);
    r.offset = take(at, 8);
    const uint64_t elements = r.size[0] * r.size[1] * r.size[2] * r.size[3];
    r.bytes = r.type == BUILD_TYPE_Q8_0 ? elements / 32 * 34 : r.type == BUILD_TYPE_F16 ? 2 * elements : 4 * elements;
    return r;
}

/* gate 0, up 1, down 2; -1: no stack of experts. */
static int slice_of(const struct record *r, unsigned *block) {
    static const char *const kinds[] = {"gate", "up", "down"};
    for (int k = 0; k < 3; k++) {
        char wanted[64];
        if (sscanf(r->name, "blk.%u", block) != 1) return -1;
        snprintf(wanted, sizeof(wanted), "blk.%u.ffn_%s_exps.weight", *block, kinds[k]);
        if (strcmp(wanted, r->name) == 0) return k;
    }
    return -1;
}

static void pad_to(struct build_bytes *bytes, size_t to) {
    static const uint8_t zero;
    while (bytes->used % to != 0) build_append(bytes, &zero, 1);
}

static void add_runs(struct gguf_build *build, const struct gguf_build *plain, const struct record *stacks,
                     unsigned block, enum colocate_fault fault) {
    uint64_t experts = stacks[0].size[2];
    if (fault == COLOCATE_EXPERTS) experts--;
    uint64_t run_bytes = 0;
    for (int k = 0; k < 3; k++) run_bytes += (stacks[k].bytes / stacks[k].size[2] + 63) / 64 * 64;
    run_bytes = (run_bytes + BLOCK - 1) / BLOCK * BLOCK;
    if (fault == COLOCATE_RUN_LONG) run_bytes += BLOCK;
    if (fault == COLOCATE_RUN_SHORT) run_bytes -= 64;
    char name[64];
    snprintf(name, sizeof(name), "blk.%u.ffn_exps.runs", block + (fault == COLOCATE_RUNS_MISSING ? 1000 : 0));
    const uint64_t size[2] = {run_bytes, experts}, at = build->data.used;
    build_tensor_at(build, name, TYPE_I8, 2, size, at);
    for (uint64_t e = 0; e < experts; e++) {
        for (int k = 0; k < 3; k++) {
            const uint64_t bytes = stacks[k].bytes / stacks[k].size[2];
            build_append(&build->data, plain->data.at + stacks[k].offset + e * bytes, bytes);
            pad_to(&build->data, 64);
        }
        while (build->data.used < at + (e + 1) * run_bytes) build_append(&build->data, "", 1);
    }
}

/* A tensor as it is, but for what is to be wrong with it. */
static void add_other(struct gguf_build *build, const struct gguf_build *plain, struct record r,
                      enum colocate_fault fault) {
    const int is_norm = strcmp(r.name, "output_norm.weight") == 0;
    if (is_norm && fault == COLOCATE_TENSOR_MISSING) return;
    if (is_norm && fault == COLOCATE_OTHER_SHAPE) r.size[0] /= 2;
    pad_to(&build->data, 32);
    build_tensor_at(build, r.name, r.type, r.dimensions, r.size, build->data.used);
    build_append(&build->data, plain->data.at + r.offset, r.bytes);
}

/* Runs first, then the others in their order. */
static void add_tensors(struct gguf_build *build, const struct gguf_build *plain, enum colocate_fault fault) {
    for (int pass = 0; pass < 2; pass++) {
        struct record stacks[3];
        int found = 0;
        unsigned block = 0;
        const uint8_t *at = plain->tensors.at;
        for (uint64_t i = 0; i < plain->tensor_count; i++) {
            const struct record r = take_record(&at);
            const int slice = slice_of(&r, &block);
            if (slice < 0 && pass == 1) add_other(build, plain, r, fault);
            if (slice < 0 || pass == 1) continue;
            stacks[slice] = r;
            if (++found % 3 == 0) add_runs(build, plain, stacks, block, fault);
        }
    }
    if (fault == COLOCATE_TENSOR_SURPLUS) build_tensor(build, "surplus.weight", BUILD_TYPE_F32, 4, 0, 0);
    if (fault == COLOCATE_RUNS_SURPLUS) {
        const uint64_t size[2] = {BLOCK, 1};
        pad_to(&build->data, BLOCK);
        build_tensor_at(build, "blk.0.ffn_exps.runs", TYPE_I8, 2, size, build->data.used);
        for (uint32_t i = 0; i < BLOCK; i++) build_append(&build->data, "", 1);
    }
}

/* The padding that has the data begin at a whole block. */
static void add_padding(struct gguf_build *build, size_t directory_bytes, enum colocate_fault fault) {
    static const char key[] = "glm52.colocated.padding", next[] = "glm52.colocated.directory";
    const size_t array = 8 + 4 + 4 + 8;
    const size_t header = 24 + build->keys.used + build->tensors.used + array + strlen(key) + array + strlen(next) +
                          directory_bytes;
    const size_t count = (BLOCK - (header + 31) / 32 * 32 % BLOCK) % BLOCK + (fault == COLOCATE_MISALIGNED ? 32 : 0);
    build_array(build, key, BUILD_U8, count);
    for (size_t i = 0; i < count; i++) build_append(&build->keys, "", 1);
}

void build_colocated(struct gguf_build *build, const struct gguf_build *plain, enum colocate_fault fault) {
    gguf_build_begin(build);
    add_tensors(build, plain, fault);
    /* The first key is the architecture: a length of 20, that name, type 8, a length of 7 and "glm-dsa". */
    const size_t head = 8 + strlen("general.architecture") + 4 + 8 + strlen("glm-dsa");
    const char *name = fault == COLOCATE_ARCHITECTURE ? "glm-dsa" : "glm-dsa-colocated";
    if (fault != COLOCATE_ARCHITECTURE_LAST) build_text(build, "general.architecture", name);
    build_append(&build->keys, plain->keys.at + head, plain->keys.used - head);
    build->key_count += plain->key_count - 1;
    if (fault == COLOCATE_SHARD) {
        build_u32(build, "split.no", 0);
        build_u32(build, "split.count", 2);
    }
    build_integer(build, "glm52.colocated.version", fault == COLOCATE_VERSION_TYPE ? BUILD_U16 : BUILD_U32,
                  fault == COLOCATE_VERSION ? 2 : 1);
    build_u32(build, "glm52.colocated.tensors", fault == COLOCATE_NO_TENSORS     ? 0
                                                : fault == COLOCATE_MANY_TENSORS ? 60000
                                                                                 : (uint32_t)plain->tensor_count);
    size_t bytes = plain->tensors.used;
    if (fault == COLOCATE_DIRECTORY_CUT) bytes--;
    if (fault == COLOCATE_DIRECTORY_LONG) bytes++;
    add_padding(build, bytes, fault);
    build_array(build, "glm52.colocated.directory", fault == COLOCATE_DIRECTORY_TYPE ? BUILD_I8 : BUILD_U8, bytes);
    build_append(&build->keys, plain->tensors.at, bytes < plain->tensors.used ? bytes : plain->tensors.used);
    if (bytes > plain->tensors.used) build_append(&build->keys, "", 1);
    if (fault == COLOCATE_KEY_BEHIND) build_u32(build, "behind", 1);
    if (fault == COLOCATE_ARCHITECTURE_LAST) build_text(build, "general.architecture", name);
}
