/* test_ops_select.c - what looks at the caches, and what chooses: index_score, top_k, attention, router. */
#include "ops_open.h"

void test_index_score_of_known_heads(void) {
    glm52_backend *backend = open_cpu();
    /* Two heads of two values. Head 1 has a negative weight; a head whose product is negative counts as 0. */
    const float q[] = {1, 0, 0, 1, 1, 0, 0, 1}, weights[] = {1, -1, 1, -1};
    const float cache[] = {2, -3, 2, 3, -2, 3};
    const glm52_index_score_args args = {.row_count = 2, .head_count = 2, .key_size = 2, .position = 1,
                                         .kv_type = GLM52_KV_F32, .score_stride = 4, .q_stride = 4,
                                             .weight_stride = 2,
                                         .scale = 0.5f};
    float scores[8];
    for (size_t i = 0; i < 8; i++) scores[i] = 7;
    CHECK_STATUS(GLM52_OK, glm52_op_index_score(backend, &args, scores, q, weights, cache));
    const float want[] = {1, -0.5f, 7, 7, 1, -0.5f, -1.5f, 7};   /* row 0 sees positions 0 and 1 */
    CHECK(memcmp(scores, want, sizeof(want)) == 0);

    /* A NaN is not taken for a number below 0. */
    const float broken[] = {NAN, 0, 2, 3, -2, 3};
    CHECK_STATUS(GLM52_OK, glm52_op_index_score(backend, &args, scores, q, weights, broken));
    CHECK(isnan(scores[0]) && scores[1] == -0.5f);
    glm52_backend_close(backend);
}

void test_index_score_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float q[8] = {0}, weights[4] = {0}, cache[6] = {0};
    float scores[6];
    for (size_t i = 0; i < 6; i++) scores[i] = 7;
    glm52_index_score_args args = {.row_count = 2, .head_count = 2, .key_size = 2, .position = 1,
                                   .kv_type = GLM52_KV_F32, .score_stride = 3, .q_stride = 4,
                                       .weight_stride = 2};
#define WITH(s, a, w, c) glm52_op_index_score(backend, &args, s, a, w, c)
#define CALL WITH(scores, q, weights, cache)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_score: scores is NULL", WITH(NULL, q, weights, cache));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_score: q is NULL", WITH(scores, NULL, weights, cache));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_score: weights is NULL", WITH(scores, q, NULL, cache));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_score: cache is NULL", WITH(scores, q, weights, NULL));
    CHECK_NOT_ZERO("index_score", row_count, CALL);
    CHECK_NOT_ZERO("index_score", head_count, CALL);
    CHECK_NOT_ZERO("index_score", key_size, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "index_score: kv_type 5", kv_type, 5, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "score_stride 2 is below a row's size 3", score_stride, 2, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "q_stride 3 is below a row's size 4", q_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "weight_stride 1 is below a row's size 2", weight_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "positions end at", position, UINT32_MAX, CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(scores, 7.0f);
    glm52_backend_close(backend);
}

void test_top_k_breaks_ties_by_position(void) {
    glm52_backend *backend = open_cpu();
    const float scores[] = {1, 3, 1, 2, 1, 1, 9};
    const glm52_top_k_args args = {.row_count = 2, .position = 4, .k = 3, .score_stride = 0,
                                   .selected_stride = 3};
    int32_t selected[6] = {0};
    glm52_top_k_args one = args;
    one.row_count = 1;
    CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &one, selected, scores));
    CHECK(selected[0] == 0 && selected[1] == 1 && selected[2] == 3);   /* 3,
        2 and the first 1; 9 is not seen */

    /* As many as there are, and then one more than fits. */
    one.position = 2;
    CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &one, selected, NULL));
    CHECK(selected[0] == 0 && selected[1] == 1 && selected[2] == 2);
    one.position = 3;
    CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &one, selected, scores));
    CHECK(selected[0] == 0 && selected[1] == 1 && selected[2] == 3);

    const float same[] = {5, 5, 5, 5, 5, 5};
    one.position = 5;
    CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &one, selected, same));
    CHECK(selected[0] == 0 && selected[1] == 1 && selected[2] == 2);
    glm52_backend_close(backend);
}

void test_top_k_orders_what_is_no_number(void) {
    glm52_backend *backend = open_cpu();
    const float scores[] = {NAN, -INFINITY, -0.0f, -NAN, 0.0f, INFINITY, NAN, 1e-45f};
    const int32_t best_first[] = {5, 7, 2, 4, 1, 0, 3, 6};
    for (uint32_t k = 1; k < 8; k++) {
        const glm52_top_k_args args = {.row_count = 1, .position = 7, .k = k, .selected_stride = k};
        int32_t selected[8];
        CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &args, selected, scores));
        bool is_due[8] = {false};
        for (uint32_t i = 0; i < k; i++) is_due[best_first[i]] = true;
        for (uint32_t i = 0; i < k; i++) {
            CHECK(is_due[selected[i]]);
            CHECK(i == 0 || selected[i] > selected[i - 1]);
        }
    }
    glm52_backend_close(backend);
}

void test_top_k_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float scores[12] = {0};
    int32_t selected[6] = {7, 7, 7, 7, 7, 7};
    glm52_top_k_args args = {.row_count = 2, .position = 4, .k = 3, .score_stride = 6, .selected_stride = 3};
#define CALL glm52_op_top_k(backend, &args, selected, scores)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "top_k: selected is NULL", glm52_op_top_k(backend, &args, NULL,
                                                                                scores));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "top_k: scores is NULL", glm52_op_top_k(backend, &args, selected,
                                                                              NULL));
    CHECK_NOT_ZERO("top_k", row_count, CALL);
    CHECK_NOT_ZERO("top_k", k, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "score_stride 5 is below a row's size 6", score_stride, 5, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "selected_stride 2 is below a row's size 3", selected_stride, 2,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "positions end at", position, 2147483647, CALL);
    CHECK_UNTOUCHED(selected, 7);
    /* Only one of the rows sees more than k positions; it needs scores. */
    args.position = 1;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "top_k: scores is NULL",
                  (args.row_count = 3, glm52_op_top_k(backend, &args, selected, NULL)));
    args.row_count = 2;
    CHECK_STATUS(GLM52_OK, glm52_op_top_k(backend, &args, selected, NULL));
#undef CALL
    glm52_backend_close(backend);
}

void test_attention_is_a_weighted_mean(void) {
    glm52_backend *backend = open_cpu();
    /* Cache rows [latent | rope]; the query looks at the rope part alone: scores log 3 and 0, weights 3/4
     * and 1/4. */
    const float third = logf(3.0f);
    const float cache[] = {8, 1, 1, 0, 99, 99, 99, 99, 16, 2, 0, 1};
    const float q_latent[] = {0, 0}, q_rope[] = {2 * third, 0};
    const int32_t selected[] = {0, 2};
    glm52_attention_args args = {.row_count = 1, .head_count = 1, .latent = 2, .rope_size = 2, .position = 2,
                                 .k = 2,
                                 .kv_type = GLM52_KV_F32, .selected_stride = 2, .scale = 0.5f};
    float out[2] = {0};
    CHECK_STATUS(GLM52_OK, glm52_op_attention(backend, &args, out, q_latent, q_rope, cache, selected));
    CHECK_NEAR(10.0, (double)out[0], 10 * 8 * 0x1p-24);
    CHECK_NEAR(1.25, (double)out[1], 1.25 * 8 * 0x1p-24);

    /* One row selected: itself, whatever the score. */
    args.k = 1;
    CHECK_STATUS(GLM52_OK, glm52_op_attention(backend, &args, out, q_latent, q_rope, cache, selected + 1));
    CHECK(out[0] == 16 && out[1] == 2);

    /* Fewer visible than k: row 0 of a batch at position 0 sees itself alone. */
    args.k = 2;
    args.position = 0;
    CHECK_STATUS(GLM52_OK, glm52_op_attention(backend, &args, out, q_latent, q_rope, cache, selected));
    CHECK(out[0] == 8 && out[1] == 1);
    glm52_backend_close(backend);
}

void test_attention_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float q[16] = {0}, cache[12] = {0};
    int32_t selected[] = {0, 1, 0, 2};
    float out[8];
    for (size_t i = 0; i < 8; i++) out[i] = 7;
    glm52_attention_args args = {.row_count = 2, .head_count = 2, .latent = 2, .rope_size = 2, .position = 1,
                                 .k = 2,
                                 .kv_type = GLM52_KV_F32, .selected_stride = 2, .q_latent_row_stride = 4,
                                 .q_latent_head_stride = 2, .q_rope_row_stride = 4, .q_rope_head_stride = 2,
                                 .out_row_stride = 4, .out_head_stride = 2, .scale = 1};
#define WITH(o, l, r, c, s) glm52_op_attention(backend, &args, o, l, r, c, s)
#define CALL WITH(out, q, q, cache, selected)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: out is NULL", WITH(NULL, q, q, cache, selected));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: q_latent is NULL", WITH(out, NULL, q, cache, selected));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: q_rope is NULL", WITH(out, q, NULL, cache, selected));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: cache is NULL", WITH(out, q, q, NULL, selected));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: selected is NULL", WITH(out, q, q, cache, NULL));
    CHECK_NOT_ZERO("attention", row_count, CALL);
    CHECK_NOT_ZERO("attention", head_count, CALL);
    CHECK_NOT_ZERO("attention", latent, CALL);
    CHECK_NOT_ZERO("attention", rope_size, CALL);
    CHECK_NOT_ZERO("attention", k, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "attention: kv_type 9", kv_type, 9, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "selected_stride 1 is below a row's size 2", selected_stride, 1,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "q_latent_row_stride 1 is below", q_latent_row_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "q_latent_head_stride 1 is below", q_latent_head_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "q_rope_row_stride 1 is below", q_rope_row_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "q_rope_head_stride 1 is below", q_rope_head_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "overlap", out_row_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "positions end at", position, UINT32_MAX, CALL);
    selected[1] = 2;   /* a position that row 0 does not see */
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: selected[1] is 2; it must be from 0 to 1", CALL);
    selected[1] = -1;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "attention: selected[1] is -1", CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(out, 7.0f);
    glm52_backend_close(backend);
}

void test_router_chooses_with_bias_and_weighs_without(void) {
    glm52_backend *backend = open_cpu();
    /* p = 1/2, 3/4, 1/2, 1/4: by bias the last comes first; 0 and 2 tie and the lower id goes first. */
    const float third = logf(3.0f);
    const float logits[] = {0, third, 0, -third}, bias[] = {0, -1, 0, 1};
    glm52_router_args args = {.row_count = 1, .expert_count = 4, .used_count = 2, .normalise = 1, .scale = 3};
    int32_t ids[4] = {0};
    float weights[4] = {0};
    CHECK_STATUS(GLM52_OK, glm52_op_router(backend, &args, ids, weights, logits, bias));
    CHECK(ids[0] == 3 && ids[1] == 0);
    CHECK_NEAR(1.0, (double)weights[0], 1e-6);   /* 1/4 of 3/4, times 3 */
    CHECK_NEAR(2.0, (double)weights[1], 1e-6);

    args.normalise = 0;
    args.used_count = 4;
    CHECK_STATUS(GLM52_OK, glm52_op_router(backend, &args, ids, weights, logits, bias));
    CHECK(ids[0] == 3 && ids[1] == 0 && ids[2] == 2 && ids[3] == 1);
    CHECK_NEAR(2.25, (double)weights[3], 1e-6);

    /* Nothing to divide by: zero weights, not NaN. */
    const float low[] = {-1000, -1000, -1000, -1000};
    args.normalise = 1;
    CHECK_STATUS(GLM52_OK, glm52_op_router(backend, &args, ids, weights, low, bias));
    CHECK(weights[0] == 0 && weights[3] == 0);
    glm52_backend_close(backend);
}

void test_router_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float logits[8] = {0}, bias[4] = {0};
    int32_t ids[4] = {7, 7, 7, 7};
    float weights[4] = {7, 7, 7, 7};
    glm52_router_args args = {.row_count = 2, .expert_count = 4, .used_count = 2, .logits_stride = 4};
#define WITH(i, w, l, b) glm52_op_router(backend, &args, i, w, l, b)
#define CALL WITH(ids, weights, logits, bias)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "router: ids is NULL", WITH(NULL, weights, logits, bias));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "router: weights is NULL", WITH(ids, NULL, logits, bias));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "router: logits is NULL", WITH(ids, weights, NULL, bias));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "router: bias is NULL", WITH(ids, weights, logits, NULL));
    CHECK_NOT_ZERO("router", row_count, CALL);
    CHECK_NOT_ZERO("router", used_count, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "router: used_count 5 of 4 experts", used_count, 5, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "router: used_count 2 of 0 experts", expert_count, 0, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "logits_stride 3 is below a row's size 4", logits_stride, 3, CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(ids, 7);
    CHECK_UNTOUCHED(weights, 7.0f);
    glm52_backend_close(backend);
}
