/* test_colocated.c - files in which an expert's slices lie together are the model that they were made from. */
#include <stdlib.h>
#include <string.h>

#include "gguf_build.h"
#include "model.h"
#include "refused.h"

static struct tiny numbers(void) {
    struct tiny tiny = tiny_default();
    tiny.hidden = 64;
    tiny.expert_ff = 3;   /* slices of 204 and 768 bytes: one no multiple of 64 */
    tiny.nextn = 1;
    return tiny;
}

/* Both files, saved. */
static void build_pair(const char *plain_path, const char *path, enum colocate_fault fault) {
    struct tiny tiny = numbers();
    struct gguf_build plain, build;
    gguf_build_begin(&plain);
    build_tiny(&plain, &tiny);
    build_colocated(&build, &plain, fault);
    gguf_build_finish(&plain);
    gguf_build_finish(&build);
    build_save(&plain, plain_path);
    build_save(&build, path);
    gguf_build_free(&plain);
    gguf_build_free(&build);
}

static bool is_same_block(const struct glm52_gguf *a, const glm52_tensor_info *x, const struct glm52_gguf *b,
                          const glm52_tensor_info *y, uint64_t block) {
    const uint64_t bytes = glm52_tensor_block_bytes(x);
    const uint64_t x_step = x->stride > 0 ? x->stride : bytes, y_step = y->stride > 0 ? y->stride : bytes;
    return memcmp((const uint8_t *)glm52_gguf_data(a, x) + block * x_step,
                  (const uint8_t *)glm52_gguf_data(b, y) + block * y_step, (size_t)bytes) == 0;
}

void test_colocated_tensors_are_the_plain_files(void) {
    const char *folder = build_folder();
    const char *plain_path = build_path(folder, "plain.gguf"), *path = build_path(folder, "runs.gguf");
    struct glm52_gguf *plain = NULL, *gguf = NULL;
    build_pair(plain_path, path, COLOCATE_RIGHT);
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(plain_path, &plain));
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(path, &gguf));
    if (plain == NULL || gguf == NULL) return;
    CHECK(!glm52_gguf_is_colocated(plain) && glm52_gguf_is_colocated(gguf));
    CHECK(plain->tensor_count == gguf->tensor_count);
    uint64_t strided = 0;
    for (uint64_t i = 0; i < plain->tensor_count; i++) {
        const glm52_tensor_info *x = &plain->tensors[i], *y = &gguf->tensors[i];
        CHECK(strcmp(x->name, y->name) == 0 && x->type == y->type && x->bytes == y->bytes && x->stride == 0 &&
              memcmp(x->size, y->size, sizeof(x->size)) == 0 && glm52_gguf_tensor(gguf, x->name) == y);
        CHECK((y->stride != 0) == (strstr(y->name, "_exps.weight") != NULL));
        CHECK(y->stride % GLM52_RUN_ALIGNMENT == 0 && glm52_tensor_span(x) == x->bytes);
        for (uint64_t b = 0; b < x->size[x->dimensions - 1]; b++) CHECK(is_same_block(plain, x, gguf, y, b));
        strided += y->stride != 0;
    }
    CHECK(strided == 3 * (numbers().layers - numbers().dense + 1));
    char before[GLM52_IDENTITY_DIGITS + 1], after[GLM52_IDENTITY_DIGITS + 1];
    CHECK_STATUS(GLM52_OK, glm52_gguf_identity(plain, before));
    CHECK_STATUS(GLM52_OK, glm52_gguf_identity(gguf, after));
    CHECK(strcmp(before, after) == 0);
    glm52_gguf_close(plain);
    glm52_gguf_close(gguf);
    build_remove_folder(folder);
}

void test_colocated_models_bind_with_a_stride(void) {
    const char *folder = build_folder();
    const char *path = build_path(folder, "runs.gguf");
    build_pair(build_path(folder, "plain.gguf"), path, COLOCATE_RIGHT);
    glm52_model *model = NULL;
    CHECK_STATUS(GLM52_OK, glm52_model_open(path, &model));
    if (model == NULL) return;
    const glm52_shape *s = &model->shape;
    const struct glm52_layer *layer = &model->layers[s->dense_layers];
    const uint64_t in_bytes = s->hidden / 32 * 34 * s->expert_ff, out_bytes = 4 * s->hidden * s->expert_ff;
    const uint64_t up_at = (in_bytes + 63) / 64 * 64, down_at = 2 * up_at;
    CHECK(layer->experts_gate.slice_bytes == in_bytes && layer->experts_down.slice_bytes == out_bytes);
    CHECK(layer->experts_gate.group_bytes == (down_at + out_bytes + 4095) / 4096 * 4096);
    CHECK(layer->experts_gate.group_bytes == layer->experts_down.group_bytes);
    CHECK((const uint8_t *)layer->experts_up.data - (const uint8_t *)layer->experts_gate.data == (ptrdiff_t)up_at);
    CHECK((const uint8_t *)layer->experts_down.data - (const uint8_t *)layer->experts_gate.data ==
          (ptrdiff_t)down_at);
    CHECK(layer->k_b.slice_bytes == layer->k_b.group_bytes);
    glm52_model_close(model);
    build_remove_folder(folder);
}

void test_colocated_files_with_a_fault_are_refused(void) {
    static const struct {
        enum colocate_fault fault;
        glm52_status status;
        const char *message;
    } cases[] = {
        {COLOCATE_VERSION, GLM52_ERR_UNSUPPORTED, "glm52.colocated.version is 2, 1 is read"},
        {COLOCATE_VERSION_TYPE, GLM52_ERR_MODEL, "the last keys must be"},
        {COLOCATE_ARCHITECTURE, GLM52_ERR_MODEL, "the architecture is not glm-dsa-colocated"},
        {COLOCATE_ARCHITECTURE_LAST, GLM52_ERR_MODEL, "the last keys must be"},
        {COLOCATE_KEY_BEHIND, GLM52_ERR_MODEL, "the last keys must be"},
        {COLOCATE_DIRECTORY_TYPE, GLM52_ERR_MODEL, "must be a list of u8"},
        {COLOCATE_DIRECTORY_CUT, GLM52_ERR_MODEL, "glm52.colocated.directory ends within tensor blk.3.nextn"},
        {COLOCATE_DIRECTORY_LONG, GLM52_ERR_MODEL, "goes on for 1 bytes behind"},
        {COLOCATE_NO_TENSORS, GLM52_ERR_MODEL, "glm52.colocated.tensors not 0"},
        {COLOCATE_MANY_TENSORS, GLM52_ERR_MODEL, "glm52.colocated.directory has no room for 60000"},
        {COLOCATE_TENSOR_MISSING, GLM52_ERR_MODEL, "tensor output_norm.weight of key glm52.colocated.directory is not"},
        {COLOCATE_TENSOR_SURPLUS, GLM52_ERR_MODEL, "tensor surplus.weight is not in key glm52.colocated.directory"},
        {COLOCATE_OTHER_SHAPE, GLM52_ERR_MODEL, "tensor output_norm.weight of key glm52.colocated.directory has an"},
        {COLOCATE_RUNS_MISSING, GLM52_ERR_MODEL, "tensor blk.1.ffn_gate_exps.weight of key"},
        {COLOCATE_RUNS_SURPLUS, GLM52_ERR_MODEL, "tensor blk.0.ffn_exps.runs: key glm52.colocated.directory has no"},
        {COLOCATE_RUN_LONG, GLM52_ERR_MODEL, "tensor blk.1.ffn_exps.runs has 2 dimensions and runs of"},
        {COLOCATE_RUN_SHORT, GLM52_ERR_MODEL, "tensor blk.1.ffn_exps.runs has 2 dimensions and runs of"},
        {COLOCATE_EXPERTS, GLM52_ERR_MODEL, "has another number of experts than its runs"},
        {COLOCATE_MISALIGNED, GLM52_ERR_MODEL, "a multiple of 4096"},
        {COLOCATE_SHARD, GLM52_ERR_UNSUPPORTED, "a colocated file in 2 shards"},
    };
    const char *folder = build_folder();
    const char *path = build_path(folder, "runs.gguf");
    CHECK(sizeof(cases) / sizeof(cases[0]) == COLOCATE_FAULTS - 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct glm52_gguf *gguf = NULL;
        build_pair(build_path(folder, "plain.gguf"), path, cases[i].fault);
        CHECK_REFUSED(cases[i].status, cases[i].message, glm52_gguf_open(path, &gguf));
        CHECK(gguf == NULL);
    }
    build_remove_folder(folder);
}

/* Any one byte of the header that is another: opened or refused, and under sanitizers neither reads beyond. */
void test_colocated_files_survive_each_changed_byte_of_their_header(void) {
    struct tiny tiny = tiny_default();
    struct gguf_build plain, build;
    gguf_build_begin(&plain);
    build_tiny(&plain, &tiny);
    build_colocated(&build, &plain, COLOCATE_RIGHT);
    gguf_build_finish(&build);
    const char *folder = build_folder();
    const char *path = build_path(folder, "runs.gguf");
    const uint8_t *own = memmem(build.file.at, build.header_bytes, "glm52.colocated.version", 23);
    CHECK(own != NULL);
    uint32_t seed = 1;
    const size_t first = own != NULL ? (size_t)(own - build.file.at) : 0;
    for (size_t at = first; at < build.header_bytes; at += 1 + next_random(&seed) % 13) {
        struct glm52_gguf *gguf = NULL;
        const uint8_t flip = (uint8_t)(1u << next_random(&seed) % 8);
        build.file.at[at] ^= flip;
        build_save(&build, path);
        if (glm52_gguf_open(path, &gguf) == GLM52_OK) {
            char digits[GLM52_IDENTITY_DIGITS + 1];
            CHECK_STATUS(GLM52_OK, glm52_gguf_identity(gguf, digits));
        }
        glm52_gguf_close(gguf);
        build.file.at[at] ^= flip;
    }
    gguf_build_free(&plain);
    gguf_build_free(&build);
    build_remove_folder(folder);
}
