/* test_stream_engine.c - whole engines that stream, from C: bits of the resident run under cancellation at any place,
 * with computing and reading threads at once. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "gguf_build.h"

#ifndef STRESS_SECONDS
#define STRESS_SECONDS 1
#endif

enum { CONTEXT = 24, VOCAB = 40 };

/* All F32, of numbers between -0.5 and 0.5: tensors begin at multiples of four bytes. */
static void save_model(const char *path) {
    struct tiny tiny = tiny_default();
    tiny.layers = 5;
    tiny.vocab = VOCAB;
    tiny.experts = 12;
    tiny.experts_used = 3;
    tiny.top_k = 8;
    tiny.matrix_type = BUILD_TYPE_F32;
    struct gguf_build build;
    gguf_build_begin(&build);
    build_tiny(&build, &tiny);
    build_random_floats(&build, 7);
    gguf_build_finish(&build);
    build_save(&build, path);
    gguf_build_free(&build);
}

static glm52_engine *open_engine(glm52_model *model, const glm52_stream_options *streaming) {
    const glm52_engine_options options = {.context = CONTEXT, .threads = 3, .chunk_rows = 12,
                                          .streaming = streaming};
    glm52_engine *engine = NULL;
    CHECK_STATUS(GLM52_OK, glm52_engine_open(model, &options, &engine));
    return engine;
}

/* Says stop after so many calls. */
static bool count_down(void *user, uint32_t position) {
    (void)position;
    int32_t *left = user;
    return (*left)-- > 0;
}

/* One conversation fed in random pieces, each perhaps cancelled; the resident engine gets what was taken. */
static void converse(glm52_engine *streaming, glm52_engine *resident, uint32_t *seed) {
    int32_t ids[CONTEXT];
    for (int i = 0; i < CONTEXT; i++) ids[i] = (int32_t)(next_random(seed) % VOCAB);
    CHECK_STATUS(GLM52_OK, glm52_rewind(streaming, 0));
    CHECK_STATUS(GLM52_OK, glm52_rewind(resident, 0));
    for (uint32_t at = 0; at < CONTEXT && !check_failed;) {
        const uint32_t count = 1 + next_random(seed) % (CONTEXT - at);
        int32_t left = (int32_t)(next_random(seed) % 60);
        uint32_t done = 0, same = 0;
        const glm52_status status = glm52_prefill(streaming, ids + at, count, count_down, &left, &done);
        CHECK(status == (done == count ? GLM52_OK : GLM52_ERR_CANCELLED));
        CHECK(glm52_position(streaming) == at + done);
        if (done == 0) continue;
        CHECK_STATUS(GLM52_OK, glm52_prefill(resident, ids + at, done, NULL, NULL, &same));
        CHECK(memcmp(glm52_logits(streaming), glm52_logits(resident), VOCAB * sizeof(float)) == 0);
        CHECK(glm52_logits(streaming)[0] == glm52_logits(streaming)[0]);
        at += done;
    }
}

void test_stream_engine_stress_with_random_cancellation(void) {
    const char *folder = build_folder();
    char path[512];
    snprintf(path, sizeof(path), "%s", build_path(folder, "stress.gguf"));
    save_model(path);
    glm52_model *model = NULL;
    CHECK_STATUS(GLM52_OK, glm52_model_open(path, &model));
    glm52_engine *resident = open_engine(model, NULL);
    uint32_t seed = 2024;
    const time_t end = time(NULL) + STRESS_SECONDS;
    for (uint32_t n = 0; !check_failed && (n < 6 || time(NULL) < end); n++) {
        const glm52_stream_test test = {.poison = 1};
        const glm52_stream_options options = {.cache_experts = 3 + next_random(&seed) % 46, .policy = n % 3,
                                              .workers = 8, .pilot = n % 4, .pilot_two_step = n / 4 % 2, .test = &test};
        glm52_engine *streaming = open_engine(model, &options);
        if (streaming == NULL) break;
        for (int i = 0; i < 4; i++) converse(streaming, resident, &seed);
        glm52_stream_stats stats;
        CHECK_STATUS(GLM52_OK, glm52_engine_stream_stats(streaming, &stats));
        CHECK(stats.errors == 0 && stats.hits + stats.misses > 0);
        glm52_engine_close(streaming);
    }
    glm52_engine_close(resident);
    glm52_model_close(model);
    build_remove_folder(folder);
}

void test_stream_engine_counts_what_it_plans(void) {
    const char *folder = build_folder();
    char path[512];
    snprintf(path, sizeof(path), "%s", build_path(folder, "plan.gguf"));
    save_model(path);
    glm52_model *model = NULL;
    CHECK_STATUS(GLM52_OK, glm52_model_open(path, &model));
    glm52_stream_options streaming = {.cache_experts = 3};
    glm52_engine_options options = {.context = CONTEXT, .threads = 1, .streaming = &streaming};
    glm52_plan plan;
    CHECK_STATUS(GLM52_OK, glm52_engine_plan(model, &options, &plan));
    CHECK(plan.total == plan.weights_mapped + plan.kv_cache + plan.index_cache + plan.activations +
                            plan.backend_scratch + plan.host + plan.expert_cache + plan.stream_buffers);
    CHECK(plan.expert_cache == 3 * 4096);   /* 3 matrices of 256 bytes in a page */

    streaming.cache_experts = 2;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_engine_plan(model, &options, &plan));
    CHECK(strstr(glm52_error_message(), "at least 3") != NULL);
    streaming.cache_experts = 3;
    streaming.memory_bytes = plan.total - 1;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_engine_plan(model, &options, &plan));
    streaming.memory_bytes = plan.total;
    CHECK_STATUS(GLM52_OK, glm52_engine_plan(model, &options, &plan));

    glm52_stream_stats stats;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_engine_stream_stats(NULL, &stats));
    CHECK(strcmp(glm52_engine_stream_warnings(NULL), "") == 0);
    CHECK(glm52_policy_name(GLM52_POLICY_COUNT) == NULL);
    glm52_model_close(model);
    build_remove_folder(folder);
}
