/* test_ops_matmul.c - matmul and moe: known values, and what is refused. */
#include "ops_open.h"

void test_matmul_of_known_matrices(void) {
    glm52_backend *backend = open_cpu();
    /* Two groups of a 2 x 3 matrix, two rows; strides leave gaps that must stay. */
    const float weights[] = {1, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, -1};
    const float x[] = {1, 2, 3, 99, 4, 5, 6, 99, 10, 20, 30, 99, 40, 50, 60, 99};
    float out[12];
    for (size_t i = 0; i < 12; i++) out[i] = 7;
    const glm52_matmul_args args = {.row_count = 2, .in_count = 3, .out_count = 2, .group_count = 2,
                                    .type = TYPE_F32,
                                    .x_row_stride = 8, .x_group_stride = 4, .out_row_stride = 6,
                                        .out_group_stride = 3};
    CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &args, out, x, weights));
    const float want[] = {1, 5, 7, 8, -6, 7, 10, 50, 7, 80, -60, 7};
    CHECK(memcmp(out, want, sizeof(want)) == 0);

    /* The same numbers as float16: 1, 2 and -1 are 3c00, 4000 and bc00. */
    const uint16_t halves[] = {0x3c00, 0, 0, 0, 0x3c00, 0x3c00, 0x4000, 0, 0, 0, 0, 0xbc00};
    glm52_matmul_args half = args;
    half.type = TYPE_F16;
    memset(out, 0, sizeof(out));
    CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &half, out, x, halves));
    CHECK(out[0] == 1 && out[1] == 5 && out[3] == 8 && out[4] == -6 && out[9] == 80 && out[10] == -60);

    /* Groups outside, rows inside: the other way of laying out the same. */
    const glm52_matmul_args turned = {.row_count = 2, .in_count = 3, .out_count = 2, .group_count = 2,
                                      .type = TYPE_F32,
                                      .x_row_stride = 8, .x_group_stride = 4, .out_row_stride = 2,
                                          .out_group_stride = 4};
    CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &turned, out, x, weights));
    const float want_turned[] = {1, 5, 10, 50, 8, -6, 80, -60};
    CHECK(memcmp(out, want_turned, sizeof(want_turned)) == 0);
    glm52_backend_close(backend);
}

/* Codes of Q8_0 with scale 1 against activations that 8 bits hold exactly: 127 in a block makes its scale
 * 1. */
void test_matmul_of_q8_0_is_exact_where_it_can_be(void) {
    glm52_backend *backend = open_cpu();
    uint8_t weights[34] = {0x00, 0x3c};
    float x[32] = {0}, out = 0;
    double want = 0;
    for (int i = 0; i < 32; i++) {
        weights[2 + i] = (uint8_t)(i - 16);
        x[i] = (float)(i == 5 ? 127 : 3 * i - 40);
        want += (i - 16) * (double)x[i];
    }
    glm52_matmul_args args = {.row_count = 1, .in_count = 32, .out_count = 1, .group_count = 1,
                              .type = TYPE_Q8_0};
    for (args.exact = 0; args.exact < 2; args.exact++) {
        out = 0;
        CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &args, &out, x, weights));
        CHECK((double)out == want);
    }
    x[0] = 0.3f;   /* which 8 bits of scale 1 round to 0 */
    args.exact = 0;
    CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &args, &out, x, weights));
    CHECK((double)out == want - 16 * 40);
    args.exact = 1;
    CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &args, &out, x, weights));
    CHECK_NEAR(want - 16 * (40 + 0.3), (double)out, 0.01);
    glm52_backend_close(backend);
}

void test_matmul_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float x[256] = {0}, weights[256] = {0};
    float out[16];
    for (size_t i = 0; i < 16; i++) out[i] = 7;
    glm52_matmul_args args = {.row_count = 2, .in_count = 32, .out_count = 2, .group_count = 2,
                              .type = TYPE_F32,
                              .x_row_stride = 64, .x_group_stride = 32, .out_row_stride = 4,
                                  .out_group_stride = 2};
#define CALL glm52_op_matmul(backend, &args, out, x, weights)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "matmul: out is NULL", glm52_op_matmul(backend, &args, NULL, x,
                                                                             weights));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "matmul: x is NULL", glm52_op_matmul(backend, &args, out, NULL,
                                                                           weights));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "matmul: weights is NULL", glm52_op_matmul(backend, &args, out, x,
                                                                                 NULL));
    CHECK_NOT_ZERO("matmul", row_count, CALL);
    CHECK_NOT_ZERO("matmul", in_count, CALL);
    CHECK_NOT_ZERO("matmul", out_count, CALL);
    CHECK_NOT_ZERO("matmul", group_count, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "matmul: type 9 is not read", type, 9, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "x_row_stride 31 is below a row's size 32", x_row_stride, 31,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "x_group_stride 31 is below a row's size 32", x_group_stride, 31,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "2 rows 3 apart of 2 groups 2 apart of 2 values overlap",
                       out_row_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "matmul: out 1 is below a row's size 2", out_group_stride, 1,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "matmul: x of 4294967295 * 2 * 1024 values; at most", row_count,
                       UINT32_MAX,
                       (args.in_count = 1024, CALL));
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "matmul: weights of 32 * 4294967295 * 4294967295 values",
                       out_count, UINT32_MAX,
                       (args.group_count = UINT32_MAX, CALL));
    args.type = TYPE_Q8_0;
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rows of 31 values", in_count, 31, CALL);
#undef CALL
    CHECK_UNTOUCHED(out, 7.0f);
    glm52_backend_close(backend);
}

/* Experts of one hidden value, with gates so large that silu(gate) is the gate itself. Row 0 goes to
 * experts 2 and 0, row 1 to 2 and to 1, which is not at hand. */
void test_moe_adds_experts_in_order(void) {
    glm52_backend *backend = open_cpu();
    const float gate[] = {100, 0}, up_0[] = {0, 1}, up_2[] = {0, 2}, down[] = {1, 10};
    const glm52_expert experts[] = {{gate, up_0, down}, {NULL, NULL, NULL}, {gate, up_2, down}};
    const float x[] = {1, 3, 1, 5}, weights[] = {0.5f, 4, 2, 8};
    const int32_t ids[] = {2, 0, 2, 1};
    float out[] = {1, 1, 1, 1};
    const glm52_moe_args args = {.row_count = 2, .expert_count = 3, .used_count = 2, .in_count = 2,
                                 .ff_count = 1,
                                 .x_stride = 2, .out_stride = 2};
    CHECK_STATUS(GLM52_OK, glm52_op_moe(backend, &args, out, x, ids, weights, experts));
    const float row_0 = 4 * 100 * 3 + 0.5f * 100 * 6, row_1 = 2 * 100 * 10;
    CHECK(out[0] == 1 + row_0 && out[1] == 1 + 10 * row_0);
    CHECK(out[2] == 1 + row_1 && out[3] == 1 + 10 * row_1);

    /* The order of the sum: 2^24 from expert 0, then 1 and 1 from 1 and 2, each lost on its own; ids come
     * best first. */
    const float one[] = {1}, big[] = {16777216}, hundred[] = {100};
    const float tiny_up[] = {0.01f};
    const glm52_expert three[] = {{hundred, tiny_up, big}, {hundred, tiny_up, one}, {hundred, tiny_up, one}};
    const int32_t order[] = {2, 1, 0};
    const float unit[] = {1, 1, 1};
    float sum = 0;
    const glm52_moe_args single = {.row_count = 1, .expert_count = 3, .used_count = 3, .in_count = 1,
                                   .ff_count = 1,
                                   .x_stride = 1, .out_stride = 1};
    CHECK_STATUS(GLM52_OK, glm52_op_moe(backend, &single, &sum, one, order, unit, three));
    CHECK(sum == 16777216.0f);
    glm52_backend_close(backend);
}

void test_moe_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float m[64] = {0}, x[64] = {0}, weights[4] = {0};
    glm52_expert experts[] = {{m, m, m}, {m, m, m}};
    int32_t ids[] = {0, 1, 1, 0};
    float out[64];
    for (size_t i = 0; i < 64; i++) out[i] = 7;
    glm52_moe_args args = {.row_count = 2, .expert_count = 2, .used_count = 2, .in_count = 32, .ff_count = 2,
                           .x_stride = 32, .out_stride = 32};
#define WITH(o, a, i, w, e) glm52_op_moe(backend, &args, o, a, i, w, e)
#define CALL WITH(out, x, ids, weights, experts)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: out is NULL", WITH(NULL, x, ids, weights, experts));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: x is NULL", WITH(out, NULL, ids, weights, experts));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: ids is NULL", WITH(out, x, NULL, weights, experts));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: weights is NULL", WITH(out, x, ids, NULL, experts));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: experts is NULL", WITH(out, x, ids, weights, NULL));
    CHECK_NOT_ZERO("moe", row_count, CALL);
    CHECK_NOT_ZERO("moe", expert_count, CALL);
    CHECK_NOT_ZERO("moe", used_count, CALL);
    CHECK_NOT_ZERO("moe", in_count, CALL);
    CHECK_NOT_ZERO("moe", ff_count, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "moe: gate_type 99 is not read", gate_type, 99, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "moe: up_type 99 is not read", up_type, 99, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "moe: down_type 99 is not read", down_type, 99, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rows of 2 values are no multiple of the 32", down_type, TYPE_Q8_0,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "x_stride 31 is below", x_stride, 31, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "out_stride 31 is below", out_stride, 31, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "choices of 2 experts; at most", row_count, UINT32_MAX, CALL);
    ids[3] = 2;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: ids[3] is 2; it must be from 0 to 1", CALL);
    ids[3] = 0;
    experts[1].up = NULL;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "moe: experts[1] has 2 of its 3 matrices", CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(out, 7.0f);
    glm52_backend_close(backend);
}
