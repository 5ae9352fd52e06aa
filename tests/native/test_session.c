/* test_session.c - conversations beside an engine's and tokens run ahead, from C: bits of plain decoding, rows carried
 * over one by one, and refusals. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "gguf_build.h"

enum { CONTEXT = 32, VOCAB = 40 };

static glm52_model *open_model(void) {
    struct tiny tiny = tiny_default();
    tiny.layers = 4;
    tiny.nextn = 1;
    tiny.vocab = VOCAB;
    tiny.top_k = 8;
    tiny.matrix_type = BUILD_TYPE_F32;
    struct gguf_build build;
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_random_floats(&build, 7);
    gguf_build_finish(&build);
    const char *folder = build_folder(), *path = build_path(folder, "session.gguf");
    build_save(&build, path);
    gguf_build_free(&build);
    glm52_model *model = NULL;
    CHECK_STATUS(GLM52_OK, glm52_model_open(path, &model));
    build_remove_folder(folder);   /* the mapping stays */
    return model;
}

static glm52_engine *open_engine(glm52_model *model, uint32_t drafts) {
    const glm52_engine_options options = {.context = CONTEXT, .threads = 2, .mtp = drafts > 0, .drafts = drafts};
    glm52_engine *engine = NULL;
    CHECK_STATUS(GLM52_OK, glm52_engine_open(model, &options, &engine));
    return engine;
}

static bool same_logits(const glm52_engine *a, const glm52_engine *b) {
    const float *x = glm52_logits(a), *y = glm52_logits(b);
    return x != NULL && y != NULL && memcmp(x, y, VOCAB * sizeof(float)) == 0;
}

/* Feeds drafts or other tokens by chance. */
static void walk(glm52_engine *engine, glm52_engine *plain, uint32_t *seed) {
    while (glm52_position(engine) < CONTEXT && !check_failed) {
        uint32_t count = 0;
        const int32_t *ahead = glm52_ahead_tokens(engine, &count);
        const int32_t other = (int32_t)(next_random(seed) % VOCAB);
        const int32_t id = count > 0 && next_random(seed) % 4 > 0 ? ahead[0] : other;
        CHECK_STATUS(GLM52_OK, glm52_eval_ahead(engine, id, next_random(seed) % 9, NULL, NULL));
        CHECK_STATUS(GLM52_OK, glm52_eval(plain, id, NULL, NULL));
        CHECK(same_logits(engine, plain));
    }
}

void test_session_tokens_ahead_have_the_bits_of_plain_decoding(void) {
    glm52_model *model = open_model();
    glm52_engine *plain = open_engine(model, 0);
    uint32_t seed = 3;
    for (uint32_t drafts = 1; drafts <= GLM52_DRAFTS_MAX; drafts += 2) {
        glm52_engine *engine = open_engine(model, drafts);
        CHECK_STATUS(GLM52_OK, glm52_rewind(plain, 0));
        walk(engine, plain, &seed);
        glm52_stats stats;
        glm52_engine_stats(engine, &stats);
        CHECK(stats.mtp_accepted > 0 && stats.mtp_drafted >= stats.mtp_accepted);
        CHECK_STATUS(GLM52_ERR_CONTEXT, glm52_eval_ahead(engine, 1, 3, NULL, NULL));
        glm52_engine_close(engine);
    }
    glm52_engine_close(plain);
    glm52_model_close(model);
}

void test_session_swap_and_copy_keep_each_conversation(void) {
    glm52_model *model = open_model();
    glm52_engine *engine = open_engine(model, 3), *plain = open_engine(model, 0), *other = open_engine(model, 0);
    glm52_session *session = NULL, *copy = NULL;
    uint32_t seed = 5, done = 0;
    const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    CHECK_STATUS(GLM52_OK, glm52_prefill(engine, ids, 12, NULL, NULL, &done));
    CHECK_STATUS(GLM52_OK, glm52_eval_ahead(engine, 13, 3, NULL, NULL));
    CHECK_STATUS(GLM52_OK, glm52_session_open(engine, &session));
    CHECK_STATUS(GLM52_OK, glm52_session_open(engine, &copy));
    CHECK_STATUS(GLM52_OK, glm52_session_copy(engine, copy));
    CHECK_STATUS(GLM52_OK, glm52_session_swap(engine, session));
    CHECK(glm52_position(engine) == 0 && glm52_logits(engine) == NULL && glm52_session_position(session) == 13);
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_session_swap(other, session));
    walk(engine, plain, &seed);

    CHECK_STATUS(GLM52_OK, glm52_rewind(plain, 0));
    CHECK_STATUS(GLM52_OK, glm52_prefill(plain, ids, 12, NULL, NULL, &done));
    CHECK_STATUS(GLM52_OK, glm52_eval(plain, 13, NULL, NULL));
    CHECK_STATUS(GLM52_OK, glm52_session_swap(engine, copy));
    CHECK(same_logits(engine, plain) && glm52_session_position(copy) == CONTEXT);
    walk(engine, plain, &seed);
    glm52_session_close(session);
    glm52_session_close(copy);
    glm52_engine_close(engine);
    glm52_engine_close(plain);
    glm52_engine_close(other);
    glm52_model_close(model);
}

/* One kind of rows of one layer from an engine to a session of another. */
static void carry(glm52_engine *from, glm52_session *to, uint32_t rows, uint32_t layer, uint32_t count) {
    uint64_t bytes = 0;
    CHECK_STATUS(GLM52_OK, glm52_rows_bytes(from, rows, layer, &bytes));
    if (bytes == 0 || count == 0) return;
    uint8_t *data = malloc(bytes * count);
    CHECK(data != NULL);
    CHECK_STATUS(GLM52_OK, glm52_rows_read(from, rows, layer, 0, count, data));
    CHECK_STATUS(GLM52_ERR_CONTEXT, glm52_rows_read(from, rows, layer, 1, count, data));
    CHECK_STATUS(GLM52_OK, glm52_session_rows_write(to, rows, layer, 0, count, data));
    free(data);
}

void test_session_rows_make_the_same_conversation_elsewhere(void) {
    glm52_model *model = open_model();
    glm52_engine *from = open_engine(model, 2), *to = open_engine(model, 2);
    const uint32_t layers = glm52_model_shape(model)->layers;
    glm52_session *session = NULL;
    uint32_t seed = 9, done = 0;
    const int32_t ids[] = {9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 11, 12, 13};
    CHECK_STATUS(GLM52_OK, glm52_prefill(from, ids, 13, NULL, NULL, &done));
    CHECK(glm52_mtp_complete(from));
    CHECK_STATUS(GLM52_OK, glm52_session_open(to, &session));
    for (uint32_t layer = 0; layer <= layers; layer++) {
        carry(from, session, GLM52_ROWS_KV, layer, layer < layers ? 13 : 12);
        carry(from, session, GLM52_ROWS_INDEX, layer, layer < layers ? 13 : 12);
        carry(from, session, GLM52_ROWS_HIDDEN, layer, 1);
    }
    CHECK_STATUS(GLM52_OK, glm52_session_restore(session, ids, 13, glm52_logits(from), true));
    CHECK_STATUS(GLM52_OK, glm52_session_swap(to, session));
    CHECK(glm52_mtp_complete(to) && same_logits(from, to));
    walk(to, from, &seed);

    const int32_t outside = VOCAB;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_session_restore(session, &outside, 1, NULL, false));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_session_restore(session, NULL, 0, glm52_logits(from), false));
    CHECK_STATUS(GLM52_ERR_CONTEXT, glm52_session_restore(session, ids, CONTEXT + 1, NULL, false));
    uint64_t bytes = 0;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_rows_bytes(to, GLM52_ROWS_COUNT, 0, &bytes));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_rows_bytes(to, GLM52_ROWS_KV, layers + 1, &bytes));
    CHECK_STATUS(GLM52_ERR_CONTEXT, glm52_session_rows_write(session, GLM52_ROWS_KV, 0, CONTEXT, 1, &bytes));
    glm52_session_close(session);
    glm52_session_close(NULL);
    glm52_engine_close(from);
    glm52_engine_close(to);
    glm52_model_close(model);
}
