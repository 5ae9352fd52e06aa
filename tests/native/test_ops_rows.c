/* test_ops_rows.c - operations on rows: embed, rms_norm, rope, kv_store, index_store, swiglu, add. Known
 * values, and what is refused. */
#include "ops_open.h"

void test_embed_decodes_rows(void) {
    glm52_backend *backend = open_cpu();
    const float table[] = {1, 2, 3, 4, 5, 6};
    const int32_t ids[] = {2, 0, 2};
    float out[6] = {0};
    const glm52_embed_args args = {.row_count = 3, .hidden = 2, .type = TYPE_F32, .vocab = 3};
    CHECK_STATUS(GLM52_OK, glm52_op_embed(backend, &args, out, table, ids));
    const float want[] = {5, 6, 1, 2, 5, 6};
    CHECK(memcmp(out, want, sizeof(want)) == 0);
    glm52_backend_close(backend);
}

void test_embed_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float table[64] = {0};
    int32_t ids[] = {1, 0};
    float out[64] = {0};
    glm52_embed_args args = {.row_count = 2, .hidden = 32, .type = TYPE_F32, .vocab = 2};
#define CALL glm52_op_embed(backend, &args, out, table, ids)
    CHECK_STATUS(GLM52_OK, CALL);
    memset(out, 0, sizeof(out));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: backend is NULL", glm52_op_embed(NULL, &args, out, table, ids));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: args is NULL", glm52_op_embed(backend, NULL, out, table, ids));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: out is NULL", glm52_op_embed(backend, &args, NULL, table, ids));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: table is NULL", glm52_op_embed(backend, &args, out, NULL, ids));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: ids is NULL", glm52_op_embed(backend, &args, out, table, NULL));
    CHECK_NOT_ZERO("embed", row_count, CALL);
    CHECK_NOT_ZERO("embed", hidden, CALL);
    CHECK_NOT_ZERO("embed", vocab, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "embed: type 4 is not read; these are: F32, F16", type, 4,
                       CALL);
    args.type = TYPE_Q8_0;
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rows of 33 values are no multiple of the 32 in a block of Q8_0",
                       hidden, 33, CALL);
    ids[1] = 2;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: ids[1] is 2; it must be from 0 to 1", CALL);
    ids[1] = -1;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "embed: ids[1] is -1", CALL);
#undef CALL
    CHECK_UNTOUCHED(out, 0.0f);
    glm52_backend_close(backend);
}

void test_rms_norm_of_known_rows(void) {
    glm52_backend *backend = open_cpu();
    /* Row 0: mean square 4. Row 1: zero, where epsilon alone keeps the result finite. */
    const float x[] = {2, -2, 2, -2, 99, 0, 0, 0, 0, 99}, weight[] = {1, 2, 3, 4};
    float out[12] = {0};
    const glm52_rms_norm_args args = {.row_count = 2, .row_size = 4, .x_stride = 5, .out_stride = 6,
                                      .epsilon = 1e-30f};
    CHECK_STATUS(GLM52_OK, glm52_op_rms_norm(backend, &args, out, x, weight));
    const float want[] = {1, -2, 3, -4, 0, 0, 0, 0, 0, 0, 0, 0};
    CHECK(memcmp(out, want, sizeof(want)) == 0);
    glm52_backend_close(backend);
}

void test_rms_norm_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float x[8] = {0}, weight[4] = {0};
    float out[8];
    for (size_t i = 0; i < 8; i++) out[i] = 5;
    glm52_rms_norm_args args = {.row_count = 2, .row_size = 4, .x_stride = 4, .out_stride = 4};
#define CALL glm52_op_rms_norm(backend, &args, out, x, weight)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "rms_norm: out is NULL", glm52_op_rms_norm(backend, &args, NULL, x,
                                                                                 weight));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "rms_norm: x is NULL", glm52_op_rms_norm(backend, &args, out, NULL,
                                                                               weight));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "rms_norm: weight is NULL", glm52_op_rms_norm(backend, &args, out, x,
                                                                                    NULL));
    const float *crooked = (const float *)(const void *)((const char *)x + 1);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "is not aligned to 4 bytes",
                  glm52_op_rms_norm(backend, &args, out, crooked, weight));
    CHECK_NOT_ZERO("rms_norm", row_count, CALL);
    CHECK_NOT_ZERO("rms_norm", row_size, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rms_norm: x_stride 3 is below a row's size 4", x_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rms_norm: out_stride 0 is below a row's size 4", out_stride, 0,
                       CALL);
#undef CALL
    CHECK_UNTOUCHED(out, 5.0f);
    args.row_count = 1;
    args.x_stride = args.out_stride = 0;   /* one row has no distance to the next */
    CHECK_STATUS(GLM52_OK, glm52_op_rms_norm(backend, &args, out, x, weight));
    glm52_backend_close(backend);
}

void test_rope_turns_by_a_quarter(void) {
    glm52_backend *backend = open_cpu();
    /* Two heads of four values, one more value behind each row; the pairs turn by 90 and by 0 degrees. */
    float x[] = {1, 2, 3, 4, 5, 6, 7, 8, 99};
    const float table[] = {0, 1, 1, 0};
    const glm52_rope_args args = {.row_count = 1, .head_count = 2, .rope_size = 4, .row_stride = 9,
                                  .head_stride = 4};
    CHECK_STATUS(GLM52_OK, glm52_op_rope(backend, &args, x, table));
    const float want[] = {-2, 1, 3, 4, -6, 5, 7, 8, 99};
    CHECK(memcmp(x, want, sizeof(want)) == 0);
    glm52_backend_close(backend);
}

void test_rope_refuses(void) {
    glm52_backend *backend = open_cpu();
    float x[16] = {0};
    const float table[8] = {0};
    glm52_rope_args args = {.row_count = 2, .head_count = 2, .rope_size = 4, .row_stride = 8,
                            .head_stride = 4};
#define CALL glm52_op_rope(backend, &args, x, table)
    CHECK_STATUS(GLM52_OK, CALL);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "rope: x is NULL", glm52_op_rope(backend, &args, NULL, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "rope: table is NULL", glm52_op_rope(backend, &args, x, NULL));
    CHECK_NOT_ZERO("rope", row_count, CALL);
    CHECK_NOT_ZERO("rope", head_count, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rope: rope_size 0 must be even", rope_size, 0, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rope: rope_size 3 must be even", rope_size, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "2 rows 7 apart of 2 groups 4 apart of 4 values overlap",
                       row_stride, 7, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rope: x 3 is below a row's size 4", head_stride, 3, CALL);
#undef CALL
    glm52_backend_close(backend);
}

void test_kv_store_writes_its_rows_alone(void) {
    glm52_backend *backend = open_cpu();
    const float x[] = {3, -3, 1, 2}, weight[] = {1, 10}, table[] = {0, 1};
    const glm52_kv_store_args args = {.row_count = 1, .latent = 2, .rope_size = 2, .position = 1,
                                      .kv_type = GLM52_KV_F32, .x_stride = 4};
    float cache[12];
    for (size_t i = 0; i < 12; i++) cache[i] = 7;
    CHECK_STATUS(GLM52_OK, glm52_op_kv_store(backend, &args, cache, x, weight, table));
    const float want[] = {7, 7, 7, 7, 1, -10, -2, 1, 7, 7, 7, 7};
    CHECK(memcmp(cache, want, sizeof(want)) == 0);

    glm52_kv_store_args half = args;
    half.kv_type = GLM52_KV_F16;
    uint16_t cache16[12] = {0};
    CHECK_STATUS(GLM52_OK, glm52_op_kv_store(backend, &half, cache16, x, weight, table));
    const uint16_t want16[] = {0, 0, 0, 0, 0x3c00, 0xc900, 0xc000, 0x3c00, 0, 0, 0, 0};
    CHECK(memcmp(cache16, want16, sizeof(want16)) == 0);
    glm52_backend_close(backend);
}

void test_kv_store_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float x[8] = {0}, weight[2] = {0}, table[4] = {0};
    float cache[8];
    for (size_t i = 0; i < 8; i++) cache[i] = 7;
    glm52_kv_store_args args = {.row_count = 2, .latent = 2, .rope_size = 2, .kv_type = GLM52_KV_F32,
                                .x_stride = 4};
#define CALL glm52_op_kv_store(backend, &args, cache, x, weight, table)
#define WITH(c, a, w, t) glm52_op_kv_store(backend, &args, c, a, w, t)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "kv_store: cache is NULL", WITH(NULL, x, weight, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "kv_store: x is NULL", WITH(cache, NULL, weight, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "kv_store: weight is NULL", WITH(cache, x, NULL, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "kv_store: table is NULL", WITH(cache, x, weight, NULL));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "kv_store: cache at", WITH((char *)cache + 2, x, weight, table));
    CHECK_NOT_ZERO("kv_store", row_count, CALL);
    CHECK_NOT_ZERO("kv_store", latent, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rope_size 1 must be even", rope_size, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "kv_type 2; it must be 0 (f16) or 1 (f32)", kv_type, 2, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "x_stride 3 is below a row's size 4", x_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "2 rows from position 2147483647 on; positions end at 2147483648",
                       position,
                       2147483647, CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(cache, 7.0f);
    glm52_backend_close(backend);
}

void test_index_store_of_known_rows(void) {
    glm52_backend *backend = open_cpu();
    /* Mean 5 and standard deviation 2; the first pair turns by 90 degrees. */
    const float x[] = {3, 7, 3, 7}, weight[] = {1, 1, 2, 2}, bias[] = {0, 0, 1, 1}, table[] = {0, 1};
    const glm52_index_store_args args = {.row_count = 1, .key_size = 4, .rope_size = 2, .position = 1,
                                         .kv_type = GLM52_KV_F32, .x_stride = 4};
    float cache[12] = {0};
    CHECK_STATUS(GLM52_OK, glm52_op_index_store(backend, &args, cache, x, weight, bias, table));
    const float want[] = {0, 0, 0, 0, -1, -1, -1, 3, 0, 0, 0, 0};
    CHECK(memcmp(cache, want, sizeof(want)) == 0);
    glm52_backend_close(backend);
}

void test_index_store_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float x[8] = {0}, weight[4] = {0}, bias[4] = {0}, table[8] = {0};
    float cache[8];
    for (size_t i = 0; i < 8; i++) cache[i] = 7;
    glm52_index_store_args args = {.row_count = 2, .key_size = 4, .rope_size = 2, .kv_type = GLM52_KV_F32,
                                   .x_stride = 4};
#define WITH(c, a, w, b, t) glm52_op_index_store(backend, &args, c, a, w, b, t)
#define CALL WITH(cache, x, weight, bias, table)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_store: cache is NULL", WITH(NULL, x, weight, bias, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_store: x is NULL", WITH(cache, NULL, weight, bias, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_store: weight is NULL", WITH(cache, x, NULL, bias, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_store: bias is NULL", WITH(cache, x, weight, NULL, table));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "index_store: table is NULL", WITH(cache, x, weight, bias, NULL));
    CHECK_NOT_ZERO("index_store", row_count, CALL);
    CHECK_NOT_ZERO("index_store", key_size, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "rope_size 6 must be even, not 0 and at most 4", rope_size, 6,
                       CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_UNSUPPORTED, "index_store: kv_type 2", kv_type, 2, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "x_stride 3 is below a row's size 4", x_stride, 3, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "positions end at 2147483648", position, UINT32_MAX, CALL);
#undef CALL
#undef WITH
    CHECK_UNTOUCHED(cache, 7.0f);
    glm52_backend_close(backend);
}

void test_swiglu_of_known_gates(void) {
    glm52_backend *backend = open_cpu();
    const float gate[] = {0, 1, -1, 100, -100, -200, 3e38f, -3e38f}, up[] = {5, 2, 2, 2, 2, 2, 1, 1};
    float out[8] = {0};
    const glm52_swiglu_args args = {.row_count = 1, .row_size = 8};
    CHECK_STATUS(GLM52_OK, glm52_op_swiglu(backend, &args, out, gate, up));
    for (size_t i = 0; i < 6; i++) {
        const double want = (double)gate[i] / (1 + exp(-(double)gate[i])) * (double)up[i];
        CHECK_NEAR(want, (double)out[i], 6 * 0x1p-24 * fabs(want) + 1e-42);
    }
    CHECK(out[6] == 3e38f && out[7] == 0.0f);
    glm52_backend_close(backend);
}

void test_swiglu_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float gate[4] = {0}, up[4] = {0};
    float out[4] = {5, 5, 5, 5};
    glm52_swiglu_args args = {.row_count = 2, .row_size = 2, .gate_stride = 2, .up_stride = 2,
                              .out_stride = 2};
#define CALL glm52_op_swiglu(backend, &args, out, gate, up)
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "swiglu: out is NULL", glm52_op_swiglu(backend, &args, NULL, gate, up));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "swiglu: gate is NULL", glm52_op_swiglu(backend, &args, out, NULL, up));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "swiglu: up is NULL", glm52_op_swiglu(backend, &args, out, gate, NULL));
    CHECK_NOT_ZERO("swiglu", row_count, CALL);
    CHECK_NOT_ZERO("swiglu", row_size, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "swiglu: gate_stride 1 is below", gate_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "swiglu: up_stride 1 is below", up_stride, 1, CALL);
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "swiglu: out_stride 1 is below", out_stride, 1, CALL);
#undef CALL
    CHECK_UNTOUCHED(out, 5.0f);
    glm52_backend_close(backend);
}

void test_add_of_two_and_three(void) {
    glm52_backend *backend = open_cpu();
    float a[] = {1, 2, 16777216};
    const float b[] = {10, 20, 1}, c[] = {100, 200, 1};
    float out[3] = {0};
    const glm52_add_args args = {.count = 3};
    CHECK_STATUS(GLM52_OK, glm52_op_add(backend, &args, out, a, b, NULL));
    CHECK(out[0] == 11 && out[1] == 22 && out[2] == 16777216);
    CHECK_STATUS(GLM52_OK, glm52_op_add(backend, &args, a, a, b, c));
    CHECK(a[0] == 111 && a[1] == 222 && a[2] == 16777216);   /* (a + b) + c: each 1 is rounded away */
    glm52_backend_close(backend);
}

void test_add_refuses(void) {
    glm52_backend *backend = open_cpu();
    const float a[2] = {0}, b[2] = {0};
    float out[2] = {5, 5};
    glm52_add_args args = {.count = 2};
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "add: out is NULL", glm52_op_add(backend, &args, NULL, a, b, NULL));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "add: a is NULL", glm52_op_add(backend, &args, out, NULL, b, NULL));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "add: b is NULL", glm52_op_add(backend, &args, out, a, NULL, NULL));
    CHECK_NOT_ZERO("add", count, glm52_op_add(backend, &args, out, a, b, NULL));
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, "at most 1099511627776", count, ((uint64_t)1 << 40) + 1,
                       glm52_op_add(backend, &args, out, a, b, NULL));
    CHECK_UNTOUCHED(out, 5.0f);
    glm52_backend_close(backend);
}
