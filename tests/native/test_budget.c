/* test_budget.c - the arithmetic of the expert cache: known answers, limits at and one past, sums that overflow. */
#include <string.h>

#include "check.h"

#define KIB(n) ((uint64_t)(n) << 10)
#define MIB(n) ((uint64_t)(n) << 20)
#define GIB(n) ((uint64_t)(n) << 30)

/* The published file of 211,075,856,448 bytes: layers 3 to 77 all IQ2_XXS, the MTP block all Q2_K. */
#define PUBLISHED_EXPERT (3u * 3244032u)
#define PUBLISHED_MTP_EXPERT 12386304u
enum { PUBLISHED_SPARSE = 76, PUBLISHED_TRUNK = 75 };

static glm52_budget_args published(uint64_t layers[PUBLISHED_SPARSE]) {
    for (int i = 0; i < PUBLISHED_TRUNK; i++) layers[i] = 256ull * PUBLISHED_EXPERT;
    layers[PUBLISHED_TRUNK] = 256ull * PUBLISHED_MTP_EXPERT;
    return (glm52_budget_args){.working_set = GIB(96), .other_bytes = GIB(23), .percent = 80, .experts = 256,
                               .sparse_count = PUBLISHED_SPARSE, .trunk_count = PUBLISHED_TRUNK, .blocks = 79,
                               .full_layers = GLM52_FULL_LAYERS_AUTO, .layer_bytes = layers};
}

void test_budget_of_the_published_file_gives_671_slots(void) {
    uint64_t layers[PUBLISHED_SPARSE];
    glm52_budget_args args = published(layers);
    glm52_budget budget;
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.expert_bytes == 9732096);
    CHECK(budget.total == 1323ull * 9732096);   /* whole experts of 12 GiB */
    CHECK(budget.headroom == 2ull * 256 * PUBLISHED_MTP_EXPERT);
    CHECK(budget.full_layers == 0);             /* 2.32 GiB a layer, and a seventh is 0.86 GiB */
    CHECK(budget.slots == 671);
    CHECK(budget.planned == 671ull * 9732096);

    /* Asked for in so many bytes it is the same; the cap does not matter. */
    args.cache_bytes = GIB(12);
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.slots == 671);

    /* Size classes: a slot of the second size per 75 of the first, and no headroom. */
    glm52_size_class classes[2] = {{.expert_bytes = 9732096, .slot_bytes = 9732096, .layers = 75},
                                   {.expert_bytes = 12386304, .slot_bytes = 12386304, .layers = 1}};
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(classes, 2, 256, 8, GIB(12), 0));
    /* 8 of each for one token, 17 rounds of 75 and 1, then 9 that still fit. */
    CHECK(classes[0].slots == 8 + 17 * 75 + 9);
    CHECK(classes[1].slots == 8 + 17);
    CHECK(classes[0].slots * classes[0].slot_bytes + classes[1].slots * classes[1].slot_bytes <= GIB(12));
}

void test_budget_slots_have_known_answers(void) {
    uint32_t slots = 0;
    CHECK_STATUS(GLM52_OK, glm52_budget_slots(GIB(12), GIB(6), 0, MIB(10), 20000, &slots));
    CHECK(slots == 614);
    CHECK_STATUS(GLM52_OK, glm52_budget_slots(GIB(12), GIB(6), 0, MIB(10), 600, &slots));
    CHECK(slots == 600);
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_slots(1024, 1024, 0, 1, 100, &slots));
    CHECK_STATUS(GLM52_OK, glm52_budget_slots(1025, 1024, 0, 1, 100, &slots));
    CHECK(slots == 1);
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_slots(UINT64_MAX, UINT64_MAX, 1, 1, 100, &slots));
    CHECK(strstr(glm52_error_message(), "64 bits") != NULL);
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_budget_slots(1, 0, 0, 0, 1, &slots));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_budget_slots(1, 0, 0, 1, 1, NULL));
}

void test_budget_caps_the_automatic_size_alone(void) {
    uint64_t layers[PUBLISHED_SPARSE];
    glm52_budget_args args = published(layers);
    glm52_budget budget;
    args.working_set = GIB(512);
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.slots == 671);

    /* Who asks for 40 GiB gets them. */
    args.cache_bytes = GIB(40);
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.total == GIB(40) / 9732096 * 9732096);
    CHECK(budget.total > GLM52_CACHE_AUTO_BYTES_MAX);

    /* The share of the working set: 49 and 96 percent are no valid shares, so 80 it is. */
    args = published(layers);
    args.working_set = GIB(40);
    args.other_bytes = GIB(23);
    uint64_t totals[4];
    const uint32_t percents[] = {49, 80, 96, 95};
    for (int i = 0; i < 4; i++) {
        args.percent = percents[i];
        CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
        totals[i] = budget.total;
    }
    CHECK(totals[0] == totals[1] && totals[2] == totals[1] && totals[3] > totals[1]);
    CHECK(totals[1] == (GIB(32) - GIB(23)) / 9732096 * 9732096);
}

void test_budget_refuses_what_does_not_fit(void) {
    uint64_t layers[PUBLISHED_SPARSE];
    glm52_budget_args args = published(layers);
    glm52_budget budget;
    args.working_set = 0;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_make(&args, &budget));
    CHECK(strstr(glm52_error_message(), "working set") != NULL);

    /* Exactly the headroom is too little; one expert more is the least. */
    args.cache_bytes = 2ull * 256 * PUBLISHED_MTP_EXPERT / 9732096 * 9732096;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_make(&args, &budget));
    CHECK(strstr(glm52_error_message(), "5.91 GiB") != NULL);
    args.cache_bytes += 9732096;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_make(&args, &budget));   /* above the headroom, below an expert */
    args.cache_bytes += 9732096;
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.slots == 1);

    layers[5] = UINT64_MAX;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_budget_make(&args, &budget));
    args.experts = 0;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_budget_make(&args, &budget));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_budget_make(NULL, &budget));
}

void test_budget_full_layers_follow_their_limits(void) {
    /* 10 layers of 1 MiB, experts of 4 KiB: a seventh of what is left decides. */
    uint64_t layers[10];
    for (int i = 0; i < 10; i++) layers[i] = MIB(1);
    glm52_budget_args args = {.cache_bytes = MIB(2) + MIB(21), .experts = 256, .sparse_count = 10, .trunk_count = 10,
                              .blocks = 10, .full_layers = GLM52_FULL_LAYERS_AUTO, .layer_bytes = layers};
    glm52_budget budget;
    /* The sparse layers hold 10 MiB in all, so the budget is cut to them. */
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.total == MIB(10) && budget.full_layers == 1);

    args.blocks = 100;   /* more slots than these layers have experts: not cut */
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.total == MIB(23) && budget.full_layers == 3);
    args.cache_bytes = MIB(23) - KIB(4);
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.full_layers == 2);

    /* An explicit number is not held to the seventh, only to one layer's slots: 1 MiB must be more than left. */
    args.cache_bytes = MIB(23);
    args.full_layers = 10;
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.full_layers == 10);
    args.cache_bytes = MIB(13);
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.full_layers == 9);
    CHECK(budget.slots == (MIB(13) - MIB(2) - MIB(9)) / KIB(4));
    CHECK(budget.planned == budget.full_bytes + budget.slot_bytes);
}

void test_budget_explicit_experts_keep_nothing_free(void) {
    uint64_t layers[PUBLISHED_SPARSE];
    glm52_budget_args args = published(layers);
    glm52_budget budget;
    args.cache_experts = 2000;
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.slots == 2000 && budget.headroom == 0 && budget.full_layers == 0);
    CHECK(budget.planned == 2000ull * 9732096);
    args.cache_experts = 79 * 256 + 1;
    args.full_layers = 76;
    CHECK_STATUS(GLM52_OK, glm52_budget_make(&args, &budget));
    CHECK(budget.slots == 79 * 256 && budget.full_layers == 75);
}

void test_classes_share_by_layers(void) {
    glm52_size_class c[3] = {{.slot_bytes = 100, .layers = 6}, {.slot_bytes = 10, .layers = 3},
                             {.slot_bytes = 1000, .layers = 1}};
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 3, 16, 4, 0, 12));
    CHECK(c[0].slots == 4 && c[1].slots == 4 && c[2].slots == 4);
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 3, 16, 4, 0, 13));
    CHECK(c[0].slots == 5 && c[1].slots == 4 && c[2].slots == 4);   /* to the fewest per layer */
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 3, 16, 4, 0, 1000000));
    CHECK(c[0].slots == 96 && c[1].slots == 48 && c[2].slots == 16);   /* all there are */
    /* By bytes: 4440 for one selection, 1630 for each round. */
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 3, 16, 4, 4440 + 2 * 1630, 0));
    CHECK(c[0].slots == 16 && c[1].slots == 10 && c[2].slots == 6);
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 3, 16, 4, 4440 + 99, 0));
    CHECK(c[0].slots == 4 && c[1].slots == 13 && c[2].slots == 4);   /* only the small ones fit */
}

void test_classes_refuse_less_than_one_selection(void) {
    glm52_size_class c[2] = {{.slot_bytes = 100, .layers = 6}, {.slot_bytes = 10, .layers = 3}};
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_classes_fill(c, 2, 16, 4, 0, 7));
    CHECK(strstr(glm52_error_message(), "at least 8") != NULL);
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 2, 16, 4, 0, 8));
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_classes_fill(c, 2, 16, 4, 439, 0));
    CHECK(strstr(glm52_error_message(), "at least 440") != NULL);
    CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 2, 16, 4, 440, 0));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_classes_fill(c, 0, 16, 4, 440, 0));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_classes_fill(c, 2, 16, 17, 440, 0));
    c[0].slot_bytes = UINT64_MAX / 2;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_classes_fill(c, 2, 16, 4, UINT64_MAX, 0));
}

void test_classes_never_give_more_than_there_is(void) {
    uint32_t seed = 1;
    for (int n = 0; n < 2000; n++) {
        glm52_size_class c[4];
        uint64_t least = 0, all = 0;
        for (int i = 0; i < 4; i++) {
            seed = seed * 1664525u + 1013904223u;
            c[i] = (glm52_size_class){.slot_bytes = 1 + (seed >> 8) % 5000, .layers = 1 + (seed >> 4) % 20};
            least += 3 * c[i].slot_bytes;
            all += 8ull * c[i].layers * c[i].slot_bytes;
        }
        const uint64_t bytes = least + (seed >> 3) % (all - least + 1000);
        CHECK_STATUS(GLM52_OK, glm52_classes_fill(c, 4, 8, 3, bytes, 0));
        uint64_t used = 0, smallest = UINT64_MAX;
        for (int i = 0; i < 4; i++) {
            CHECK(c[i].slots >= 3 && c[i].slots <= 8 * c[i].layers);
            used += c[i].slots * c[i].slot_bytes;
            if (c[i].slots < 8 * c[i].layers && c[i].slot_bytes < smallest) smallest = c[i].slot_bytes;
        }
        CHECK(used <= bytes);
        CHECK(smallest == UINT64_MAX || bytes - used < smallest);   /* nothing that fits is left */
        if (check_failed) return;
    }
}

void test_spans_are_sorted_and_merged(void) {
    glm52_span spans[] = {{100, 10}, {0, 10}, {10, 5}, {104, 20}, {50, 0}, {200, 1}};
    uint64_t count = 6;
    CHECK_STATUS(GLM52_OK, glm52_spans_merge(spans, &count));
    CHECK(count == 3);
    CHECK(spans[0].offset == 0 && spans[0].bytes == 15);      /* touching */
    CHECK(spans[1].offset == 100 && spans[1].bytes == 24);    /* overlapping */
    CHECK(spans[2].offset == 200 && spans[2].bytes == 1);
    glm52_span inside[] = {{0, 100}, {10, 5}};
    count = 2;
    CHECK_STATUS(GLM52_OK, glm52_spans_merge(inside, &count));
    CHECK(count == 1 && inside[0].bytes == 100);
    glm52_span empty[] = {{5, 0}};
    count = 1;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_spans_merge(empty, &count));
    glm52_span far[] = {{UINT64_MAX, 1}};
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_spans_merge(far, &count));
}

void test_admission_adds_up_or_refuses(void) {
    glm52_admission a = {.resident = 1, .kv = 2, .mtp = 4, .experts = 8, .scratch = 16, .transient = 32};
    CHECK_STATUS(GLM52_OK, glm52_admission_total(&a));
    CHECK(a.total == 63);
    a.kv = UINT64_MAX - 61;   /* the other five are 61 */
    CHECK_STATUS(GLM52_OK, glm52_admission_total(&a));
    CHECK(a.total == UINT64_MAX);
    a.kv++;
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_admission_total(&a));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_admission_total(NULL));
}

void test_usable_memory_is_the_lowest_limit(void) {
    uint64_t usable = 0;
    CHECK_STATUS(GLM52_OK, glm52_memory_usable(GIB(128), 0, 0, &usable));
    CHECK(usable == GIB(120));
    CHECK_STATUS(GLM52_OK, glm52_memory_usable(GIB(16), 0, 0, &usable));
    CHECK(usable == GIB(14));   /* 2 GiB are more than a sixteenth */
    CHECK_STATUS(GLM52_OK, glm52_memory_usable(GIB(128), GIB(96), 0, &usable));
    CHECK(usable == GIB(96));
    CHECK_STATUS(GLM52_OK, glm52_memory_usable(GIB(128), GIB(96), GIB(90), &usable));
    CHECK(usable == GIB(88));
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_memory_usable(GIB(2), 0, 0, &usable));
    CHECK_STATUS(GLM52_ERR_BUDGET, glm52_memory_usable(GIB(64), 0, GIB(2), &usable));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_memory_usable(0, 0, 0, &usable));
}

void test_preload_counts(void) {
    CHECK(glm52_preload_count(true, 100, 1000) == 0);
    CHECK(glm52_preload_count(false, 100, 1000) == 100);
    CHECK(glm52_preload_count(false, 2000, 1000) == 1000);
    CHECK(glm52_preload_count(false, 0, 1000) == 1000);
    CHECK(glm52_preload_count(false, 0, 5000) == GLM52_PRELOAD_MAX);
}

void test_prefill_by_token_boundaries(void) {
    CHECK(glm52_prefill_by_token(8192, 0, 64, GLM52_TOKEN_PREFILL_MAX));
    CHECK(!glm52_prefill_by_token(8192, 0, 65, GLM52_TOKEN_PREFILL_MAX));
    CHECK(!glm52_prefill_by_token(8192, 8180, 13, GLM52_TOKEN_PREFILL_MAX));
    CHECK(glm52_prefill_by_token(8192, 8180, 12, GLM52_TOKEN_PREFILL_MAX));
    CHECK(!glm52_prefill_by_token(65536, 4096, 1, GLM52_TOKEN_PREFILL_MAX));
    CHECK(glm52_prefill_by_token(65536, 4095, 1, GLM52_TOKEN_PREFILL_MAX));
    CHECK(glm52_prefill_by_token(65535, 4096, 1, GLM52_TOKEN_PREFILL_MAX));
    CHECK(!glm52_prefill_by_token(8192, 0, 0, GLM52_TOKEN_PREFILL_MAX));
    CHECK(!glm52_prefill_by_token(8192, 0, 1, 0));
}

void test_auto_pins_grow_with_what_is_known(void) {
    CHECK(glm52_auto_pin_count(4999, 1000, 1 << 20, 1) == 0);
    CHECK(glm52_auto_pin_count(5000, 1000, 1 << 20, 1) == 12);      /* 500 * 5000 / 200000 */
    CHECK(glm52_auto_pin_count(100000, 1000, 1 << 20, 1) == 250);
    CHECK(glm52_auto_pin_count(200000, 1000, 1 << 20, 1) == 500);
    CHECK(glm52_auto_pin_count(UINT64_MAX, 1000, 1 << 20, 1) == 500);
    CHECK(glm52_auto_pin_count(200000, 1000, 1 << 20, 0) == 500);   /* 524 MB, over the default of 500 */
    CHECK(glm52_auto_pin_count(200000, 1000, 999999, 0) == 0);      /* 499.9995 MB */
}
