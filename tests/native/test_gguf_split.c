/* test_gguf_split.c - models in several files: found by any of them, and refused when one is not theirs. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "gguf.h"
#include "gguf_build.h"
#include "model.h"
#include "refused.h"

#define SHARDS 3

/* What shard index of a model says of itself; the model is a tiny GLM. */
struct shard {
    uint32_t index, count;
    int64_t tensors;          /* split.tensors.count */
    uint64_t first, last;     /* tensors it holds */
    const char *architecture; /* NULL: not said */
};

static void build_shard(struct gguf_build *build, const struct shard *shard) {
    const struct tiny tiny = tiny_default();
    gguf_build_begin(build);
    build_integer(build, "split.no", BUILD_U16, shard->index);
    build_integer(build, "split.count", BUILD_U16, shard->count);
    build_integer(build, "split.tensors.count", BUILD_I32, shard->tensors);
    if (shard->index == 0) build_tiny_keys(build, &tiny);
    else if (shard->architecture != NULL) build_text(build, "general.architecture", shard->architecture);
    build_tiny_tensors_part(build, &tiny, shard->first, shard->last);
    gguf_build_finish(build);
}

static void save_shard(const char *path, struct shard shard) {
    struct gguf_build build;
    build_shard(&build, &shard);
    build_save(&build, path);
    gguf_build_free(&build);
}

#define TINY_TENSORS (3 + 18 + 23 + 18 + 27)

static const char *shard_path(const char *folder, uint32_t index, uint32_t count) {
    char name[64];
    snprintf(name, sizeof(name), "tiny-%05u-of-%05u.gguf", index + 1, count);
    return build_path(folder, name);
}

/* As published: the first shard holds keys only. */
static struct shard good_shard(uint32_t index) {
    const uint64_t bounds[SHARDS + 1] = {0, 0, 40, UINT64_MAX};
    return (struct shard){index, SHARDS, TINY_TENSORS, bounds[index], bounds[index + 1], NULL};
}

static const char *good_model(void) {
    const char *folder = build_folder();
    for (uint32_t i = 0; i < SHARDS; i++) save_shard(shard_path(folder, i, SHARDS), good_shard(i));
    return folder;
}

static glm52_status open_shard(const char *folder, uint32_t index) {
    struct glm52_gguf *gguf = NULL;
    const glm52_status status = glm52_gguf_open(shard_path(folder, index, SHARDS), &gguf);
    CHECK((status == GLM52_OK) == (gguf != NULL));
    glm52_gguf_close(gguf);
    return status;
}

void test_gguf_split_opens_by_any_shard(void) {
    const char *folder = good_model();
    char first_identity[GLM52_IDENTITY_DIGITS + 1] = "";
    for (uint32_t i = 0; i < SHARDS; i++) {
        glm52_model *model = NULL;
        CHECK_STATUS(GLM52_OK, glm52_model_open(shard_path(folder, i, SHARDS), &model));
        if (model == NULL) continue;
        const struct glm52_gguf *gguf = model->gguf;
        CHECK(gguf->shard_count == SHARDS && gguf->tensor_count == TINY_TENSORS);
        CHECK(strstr(gguf->shards[1].path, "tiny-00002-of-00003.gguf") != NULL);
        CHECK(gguf->tensors[0].shard == 1 && gguf->tensors[39].shard == 1 && gguf->tensors[40].shard == 2);
        CHECK(glm52_gguf_tensor(gguf, "blk.3.nextn.hnorm.weight")->shard == 2);
        CHECK(glm52_gguf_key(gguf, "glm-dsa.block_count") != NULL);
        char identity[GLM52_IDENTITY_DIGITS + 1];
        CHECK_STATUS(GLM52_OK, glm52_gguf_identity(gguf, identity));
        if (i == 0) memcpy(first_identity, identity, sizeof(identity));
        CHECK(strcmp(identity, first_identity) == 0);

        /* Every byte of every tensor is the one that was written to its shard. */
        for (uint32_t s = 0; s < SHARDS; s++) {
            struct gguf_build build;
            const struct shard shard = good_shard(s);
            build_shard(&build, &shard);
            CHECK(build.file.used == gguf->shards[s].bytes);
            CHECK(memcmp(build.file.at, gguf->shards[s].map, build.file.used) == 0);
            CHECK(gguf->shards[s].data_offset == build.data_offset);
            gguf_build_free(&build);
        }
        glm52_model_close(model);
    }
    build_remove_folder(folder);
}

void test_gguf_split_names_missing_shards(void) {
    const char *folder = good_model();
    char wanted[300];
    CHECK(unlink(shard_path(folder, 1, SHARDS)) == 0);
    snprintf(wanted, sizeof(wanted), "shards are missing, 1 of 3: %s", shard_path(folder, 1, SHARDS));
    CHECK_REFUSED(GLM52_ERR_MODEL, wanted, open_shard(folder, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, wanted, open_shard(folder, 2));
    CHECK(unlink(shard_path(folder, 0, SHARDS)) == 0);
    snprintf(wanted, sizeof(wanted), "shards are missing, 2 of 3: %s, %s/tiny-00002-of-00003.gguf",
             shard_path(folder, 0, SHARDS), folder);
    CHECK_REFUSED(GLM52_ERR_MODEL, wanted, open_shard(folder, 2));

    /* A folder with what is left of it says the same. */
    struct glm52_gguf *gguf = NULL;
    CHECK_REFUSED(GLM52_ERR_MODEL, wanted, glm52_gguf_open(folder, &gguf));
    build_remove_folder(folder);

    /* The only file of many. */
    folder = build_folder();
    struct shard lonely = {6, 9, TINY_TENSORS, 0, 5, NULL};
    save_shard(shard_path(folder, 6, 9), lonely);
    CHECK_REFUSED(GLM52_ERR_MODEL, "shards are missing, 8 of 9", glm52_gguf_open(folder, &gguf));
    CHECK_MESSAGE("tiny-00003-of-00009.gguf, ...");
    build_remove_folder(folder);
}

/* Puts wrong in the place of shard 1 and opens by the first. */
static glm52_status open_with(const char *folder, struct shard wrong) {
    save_shard(shard_path(folder, 1, SHARDS), wrong);
    const glm52_status status = open_shard(folder, 0);
    CHECK_STATUS(status, open_shard(folder, 2));
    return status;
}

void test_gguf_split_names_foreign_shards(void) {
    const char *folder = good_model();
    struct shard wrong = good_shard(1);
    CHECK_STATUS(GLM52_OK, open_with(folder, wrong));
    wrong.architecture = "glm-dsa";
    CHECK_STATUS(GLM52_OK, open_with(folder, wrong));

    /* By the architecture: only the first shard says its own. */
    wrong.architecture = "deepseek2";
    save_shard(shard_path(folder, 1, SHARDS), wrong);
    CHECK_REFUSED(GLM52_ERR_MODEL, "its architecture is deepseek2, but in", open_shard(folder, 0));
    CHECK_MESSAGE("tiny-00002-of-00003.gguf: a shard of another model");

    wrong = good_shard(1);
    wrong.index = 2;
    CHECK_REFUSED(GLM52_ERR_MODEL, "split.no is 2, its name says 1", open_with(folder, wrong));
    wrong = good_shard(1);
    wrong.count = 4;
    CHECK_REFUSED(GLM52_ERR_MODEL, "split.count is 4, but in", open_with(folder, wrong));
    CHECK_REFUSED(GLM52_ERR_MODEL, "named as shard 2 of 3, but its keys say 2 of 4", open_shard(folder, 1));
    wrong = good_shard(1);
    wrong.tensors = TINY_TENSORS + 1;
    CHECK_REFUSED(GLM52_ERR_MODEL, "split.tensors.count is 90, but in", open_with(folder, wrong));
    wrong = good_shard(1);
    wrong.last = 39;
    CHECK_REFUSED(GLM52_ERR_MODEL, "hold 88 tensors together, but split.tensors.count is 89",
                  open_with(folder, wrong));
    wrong = good_shard(1);
    wrong.first = 1;
    wrong.last = 41;
    CHECK_REFUSED(GLM52_ERR_MODEL, "is there twice", open_with(folder, wrong));

    /* What is no shard at all, or half of one, is refused as itself. */
    build_save_bytes(shard_path(folder, 1, SHARDS), "<html>", 6);
    CHECK_REFUSED(GLM52_ERR_MODEL, "tiny-00002-of-00003.gguf: not a GGUF file but an HTML page",
                  open_shard(folder, 0));
    struct gguf_build build;
    const struct shard good = good_shard(1);
    build_shard(&build, &good);
    build_save_bytes(shard_path(folder, 1, SHARDS), build.file.at, build.file.used - 1);
    CHECK_REFUSED(GLM52_ERR_MODEL, "tiny-00002-of-00003.gguf: truncated", open_shard(folder, 2));
    gguf_build_free(&build);

    /* A model of its own in a shard's place. */
    const struct tiny tiny = tiny_default();
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    gguf_build_finish(&build);
    build_save(&build, shard_path(folder, 1, SHARDS));
    CHECK_REFUSED(GLM52_ERR_MODEL, "split.count is 0, but in", open_shard(folder, 0));
    CHECK_STATUS(GLM52_OK, open_shard(folder, 1));  /* not split, whatever its name */
    gguf_build_free(&build);
    build_remove_folder(folder);
}

/* A file without tensors whose keys are these; a negative number is left out. */
static glm52_status open_keys(const char *name, int64_t index, int64_t count, int64_t tensors) {
    const char *folder = build_folder();
    struct gguf_build build;
    gguf_build_begin(&build);
    if (index >= 0) build_integer(&build, "split.no", BUILD_U32, index);
    if (count >= 0) build_integer(&build, "split.count", BUILD_U64, count);
    if (tensors >= 0) build_integer(&build, "split.tensors.count", BUILD_I64, tensors);
    gguf_build_finish(&build);
    build_save(&build, build_path(folder, name));
    gguf_build_free(&build);
    struct glm52_gguf *gguf = NULL;
    const glm52_status status = glm52_gguf_open(build_path(folder, name), &gguf);
    glm52_gguf_close(gguf);
    build_remove_folder(folder);
    return status;
}

void test_gguf_split_refuses_keys_that_contradict(void) {
    CHECK_STATUS(GLM52_OK, open_keys("a.gguf", -1, -1, -1));
    CHECK_STATUS(GLM52_OK, open_keys("a.gguf", 0, 0, 0));
    CHECK_STATUS(GLM52_OK, open_keys("a.gguf", 0, 1, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "split.no is missing", open_keys("a-00001-of-00002.gguf", -1, 2, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "key split.no is 2, but split.count is 2",
                  open_keys("a-00001-of-00002.gguf", 2, 2, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "key split.no is 1, but split.count is 1", open_keys("a.gguf", 1, 1, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "at most 512 is read", open_keys("a.gguf", 0, 513, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "at most 511 is read", open_keys("a.gguf", 512, 0, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "at most 65536 is read", open_keys("a.gguf", 0, 1, 65537));
    static const char *const names[] = {"a.gguf",
                                        "a-00001-of-00002.GGUF",
                                        "a-0001-of-00002.gguf",
                                        "a-00000-of-00002.gguf",
                                        "a-00003-of-00002.gguf",
                                        "a-0000x-of-00002.gguf",
                                        "a-00001-0f-00002.gguf",
                                        "a_00001-of-00002.gguf",
                                        "-00001-of-00002.ggu"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        CHECK_REFUSED(GLM52_ERR_MODEL, "it is not named NAME-00001-of-00002.gguf",
                      open_keys(names[i], 0, 2, 0));
    }
    CHECK_REFUSED(GLM52_ERR_MODEL, "shards are missing", open_keys("-00001-of-00002.gguf", 0, 2, 0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "named as shard 2 of 2, but its keys say 1 of 2",
                  open_keys("a-00002-of-00002.gguf", 0, 2, 0));
}

void test_gguf_split_takes_the_most_shards(void) {
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur > GLM52_GGUF_SHARDS_MAX + 50);
    const char *folder = build_folder();
    for (uint32_t i = 0; i < GLM52_GGUF_SHARDS_MAX; i++) {
        struct shard shard = {i, GLM52_GGUF_SHARDS_MAX, 0, 0, 0, NULL};
        save_shard(shard_path(folder, i, GLM52_GGUF_SHARDS_MAX), shard);
    }
    struct glm52_gguf *gguf = NULL;
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(folder, &gguf));
    CHECK(gguf != NULL && gguf->shard_count == GLM52_GGUF_SHARDS_MAX);
    glm52_gguf_close(gguf);
    build_remove_folder(folder);
}

void test_gguf_split_in_a_folder_is_one_model(void) {
    const char *folder = good_model();
    struct glm52_gguf *gguf = NULL;
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(folder, &gguf));
    CHECK(gguf != NULL && gguf->shard_count == SHARDS);
    glm52_gguf_close(gguf);
    /* Another name is another model, of the same length or not. */
    save_shard(build_path(folder, "tinz-00001-of-00003.gguf"), good_shard(0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "holds 2 models; name the one to open: tiny-00001-of-00003.gguf, tinz-",
                  glm52_gguf_open(folder, &gguf));
    CHECK(unlink(build_path(folder, "tinz-00001-of-00003.gguf")) == 0);
    save_shard(build_path(folder, "tiny--00001-of-00003.gguf"), good_shard(0));
    CHECK_REFUSED(GLM52_ERR_MODEL, "holds 2 models; name the one to open: tiny--00001-of-00003.gguf, tiny-0",
                  glm52_gguf_open(folder, &gguf));
    CHECK(unlink(build_path(folder, "tiny--00001-of-00003.gguf")) == 0);
    /* The same name in another number of shards is another model. */
    save_shard(shard_path(folder, 0, 2), good_shard(0));
    CHECK_REFUSED(GLM52_ERR_MODEL,
                  "holds 2 models; name the one to open: tiny-00001-of-00002.gguf, "
                  "tiny-00001-of-00003.gguf",
                  glm52_gguf_open(folder, &gguf));
    build_remove_folder(folder);
}
