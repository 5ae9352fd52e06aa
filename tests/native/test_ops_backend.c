/* test_ops_backend.c - opening a backend, its memory and its scratch; and that all threads come to the
 * same. */
#include <stdlib.h>

#include "cpu.h"
#include "ops_open.h"

void test_backend_is_found_by_name(void) {
    CHECK(strcmp(glm52_backend_name(0), "cpu") == 0);
    uint32_t count = 1;
    while (glm52_backend_name(count) != NULL) count++;
    CHECK(glm52_backend_name(count + 7) == NULL);

    glm52_backend *backend = NULL;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "no backend \"CPU\"", glm52_backend_open("CPU", 1, &backend));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "no backend \"\"", glm52_backend_open("", 1, &backend));
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "no backend \"abacus\"; it has cpu",
                  glm52_backend_open("abacus", 1, &backend));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "backend_out is NULL", glm52_backend_open("cpu", 1, NULL));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "513 threads", glm52_backend_open("cpu", 513, &backend));
    CHECK(backend == NULL);
    CHECK_STATUS(GLM52_OK, glm52_backend_open("cpu", 0, &backend));
    CHECK(strcmp(backend->ops->name, "cpu") == 0);
    glm52_backend_close(backend);
    glm52_backend_close(NULL);
}

void test_backend_memory_is_aligned_and_zero(void) {
    glm52_backend *backend = open_cpu();
    const struct glm52_ops *ops = backend->ops;
    const size_t sizes[] = {0, 1, 63, 64, 1000, 1 << 20};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint8_t *memory = ops->allocate(backend, sizes[i]);
        CHECK(memory != NULL && (uintptr_t)memory % 64 == 0);
        for (size_t b = 0; b < sizes[i]; b++) CHECK(memory[b] == 0);
        if (sizes[i] > 0) memset(memory, 7, sizes[i]);
        uint8_t byte = 9;
        if (sizes[i] > 0) {
            ops->write(backend, memory + sizes[i] - 1, &byte, 1);
            ops->read(backend, &byte, memory + sizes[i] - 1, 1);
            CHECK(byte == 9);
            ops->clear(backend, memory, sizes[i]);
            ops->read(backend, &byte, memory + sizes[i] - 1, 1);
            CHECK(byte == 0);
        }
        ops->release(backend, memory);
    }
    ops->release(backend, NULL);
    CHECK(ops->allocate(backend, SIZE_MAX) == NULL);
    CHECK_STATUS(GLM52_OK, ops->finish(backend));
    glm52_backend_close(backend);
}

void test_backend_scratch_only_grows(void) {
    glm52_backend *backend = open_cpu();
    struct glm52_cpu *cpu = glm52_cpu_of(backend);
    CHECK_STATUS(GLM52_OK, backend->ops->reserve(backend, 1000));
    const uint8_t *first = cpu->scratch;
    CHECK_STATUS(GLM52_OK, backend->ops->reserve(backend, 10));
    CHECK(cpu->scratch == first && cpu->scratch_bytes == 1000);
    CHECK_REFUSED(GLM52_ERR_MEMORY, "bytes of scratch", backend->ops->reserve(backend, SIZE_MAX));
    CHECK(cpu->scratch == first && cpu->scratch_bytes == 1000);   /* as it was */
    CHECK_STATUS(GLM52_OK, backend->ops->reserve(backend, 2000));
    CHECK(cpu->scratch_bytes == 2000 && (uintptr_t)cpu->scratch % 64 == 0);
    glm52_backend_close(backend);
}

/* A plan asks for the largest batch alone. */
void test_scratch_never_shrinks_with_rows(void) {
    glm52_backend *backend = open_cpu();
    const struct glm52_ops *ops = backend->ops;
    size_t before[6] = {0};
    for (uint32_t rows = 1; rows < 70; rows++) {
        const glm52_matmul_args q8 = {.row_count = rows, .in_count = 64, .out_count = 4, .group_count = 3,
                                      .type = TYPE_Q8_0};
        const glm52_matmul_args f16 = {.row_count = rows, .in_count = 64, .out_count = 4, .group_count = 3,
                                       .type = TYPE_F16};
        const glm52_attention_args attention = {.row_count = rows, .head_count = 3, .latent = 8,
                                                .rope_size = 2, .k = 40};
        const glm52_index_score_args score = {.row_count = rows, .head_count = 3, .key_size = 8};
        const glm52_moe_args moe = {.row_count = rows, .expert_count = 9, .used_count = 2, .in_count = 64,
                                    .ff_count = 32, .gate_type = TYPE_Q8_0, .up_type = TYPE_F16,
                                        .down_type = TYPE_Q8_0};
        const glm52_router_args router = {.row_count = rows, .expert_count = 9};
        const size_t now[] = {ops->matmul_scratch(backend, &q8), ops->matmul_scratch(backend, &f16),
                              ops->attention_scratch(backend, &attention), ops->index_score_scratch(backend,
                                                                                                    &score),
                              ops->moe_scratch(backend, &moe), ops->router_scratch(backend, &router)};
        for (size_t i = 0; i < sizeof(now) / sizeof(now[0]); i++) {
            CHECK(now[i] >= before[i] && now[i] > 0);
            before[i] = now[i];
        }
    }
    glm52_backend_close(backend);
}

/* Work of a size that every thread takes part in, with and without company: for ThreadSanitizer above all. */
void test_ops_run_on_threads(void) {
    enum { ROWS = 9, IN = 256, OUT = 200 };
    float *x = calloc(ROWS * IN, sizeof(float)), *out[2];
    float *weights = calloc(OUT * IN, sizeof(float));
    for (size_t i = 0; i < ROWS * IN; i++) x[i] = sinf((float)i);
    for (size_t i = 0; i < OUT * IN; i++) weights[i] = cosf((float)i);
    const glm52_matmul_args args = {.row_count = ROWS, .in_count = IN, .out_count = OUT, .group_count = 1,
                                    .type = TYPE_F32, .x_row_stride = IN, .x_group_stride = IN,
                                    .out_row_stride = OUT, .out_group_stride = OUT};
    for (uint32_t i = 0; i < 2; i++) {
        glm52_backend *backend;
        CHECK_STATUS(GLM52_OK, glm52_backend_open("cpu", i == 0 ? 1 : 4, &backend));
        out[i] = calloc(ROWS * OUT, sizeof(float));
        for (int again = 0; again < 20; again++) {
            CHECK_STATUS(GLM52_OK, glm52_op_matmul(backend, &args, out[i], x, weights));
        }
        glm52_backend_close(backend);
    }
    CHECK(memcmp(out[0], out[1], ROWS * OUT * sizeof(float)) == 0);
    free(x);
    free(weights);
    free(out[0]);
    free(out[1]);
}
