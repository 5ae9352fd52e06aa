/* test_work.c - the Metal driver at work: kernels, memory, order, fences. */
#include "fixture.h"

#include <unistd.h>

void test_the_table_is_complete(void) {
    CHECK(strcmp(METAL->name, "metal") == 0);
    CHECK(METAL->limits != NULL && METAL->publish != NULL && METAL->device_ns != NULL && METAL->cache != NULL);
    CHECK(METAL->hold != NULL && METAL->release_hold != NULL && METAL->longest_operand != NULL);
}

void test_limits_are_the_devices(void) {
    static const struct {
        uint64_t recommended, wired_mb, expected;
    } cases[] = {{1 << 30, 0, 1 << 30}, {1 << 30, 512, 512 << 20}, {1 << 30, 4096, 1 << 30}, {0, 512, 512 << 20},
                 {0, 0, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fm_device.working_set = cases[i].recommended;
        fm_device.wired_limit_mb = cases[i].wired_mb;
        struct glm52_gpu_state *state = open_driver();
        struct glm52_gpu_limits limits;
        METAL->limits(state, &limits);
        CHECK(limits.working_set == cases[i].expected);
        CHECK(strcmp(limits.device, "Fake Apple GPU") == 0);
        CHECK(limits.buffer_max == fm_device.buffer_max && limits.threads_max == 1024);
        CHECK(limits.threadgroup_bytes == 32768 && limits.unified);
        METAL->close(state);
    }
}

#ifdef OLDER_SYSTEM                /* what is behind @available is not there */
#define HAS_RESIDENCY_SETS false
#define OPTIONS "language 30000 math 2 functions 0 fast 0"
#else
#define HAS_RESIDENCY_SETS true
#define OPTIONS "language 30000 math 0 functions 1 fast 1"
#endif

/* 0x30000 is Metal 3.0; math 0: safe; functions 1: precise (MTLLibrary.h). fast is what math replaces. */
void test_kernels_are_compiled_without_fast_math(void) {
    struct glm52_gpu_state *state = open_driver();
    CHECK(strstr(fm_source(), "#pragma METAL fp contract(off)\n") != NULL);
    CHECK(strstr(fm_source(), "kernel void") != NULL);
    CHECK(strcmp(fm_options(), OPTIONS) == 0);
    METAL->close(state);
}

void test_kernels_run_in_order(void) {
    fm_device.delay_us = 2000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 100, 1.0f), *b = floats(state, 100, 2.0f);
    run_sum(state, "sum", 2.0f, 100, a, b, a);      /* a = 5, 8, ... */
    METAL->flush(state);
    run_sum(state, "late", -1.0f, 100, a, b, b);    /* b = 3, 5, ... */
    run_sum(state, "sum", 1.0f, 100, a, b, a);      /* a = 8, 13, ... */
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    for (int i = 0; i < 100; i++) CHECK(a[i] == 8.0f + 5.0f * (float)i && b[i] == 3.0f + 2.0f * (float)i);
    CHECK(fm_calls("dispatch") == 3 && fm_calls("command-buffer") == 2 && fm_calls("compute-encoder") == 2);
    METAL->close(state);
}

void test_constants_reach_the_kernel(void) {
    struct glm52_gpu_state *state = open_driver();
    const struct glm52_gpu_constants constants = {
        .latent = 512, .rope = 64, .nope = 192, .value = 256, .index_key = 128};
    struct glm52_gpu_pipeline *pipeline = NULL;
    CHECK_STATUS(GLM52_OK, METAL->pipeline(state, "constants", &constants, &pipeline));
    uint32_t *out = METAL->allocate(state, sizeof(constants));
    const struct glm52_gpu_dispatch dispatch = {
        .groups = {1, 1, 1}, .threads = {32, 1, 1}, .operands = {out}, .operand_count = 1};
    METAL->dispatch(state, pipeline, &dispatch);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(memcmp(out, &constants, sizeof(constants)) == 0);
    pipeline = NULL;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "kernel nothing: no function of that name",
                  METAL->pipeline(state, "nothing", &constants, &pipeline));
    CHECK(pipeline == NULL);
    METAL->close(state);
}

void test_operands_may_lie_anywhere_in_memory(void) {
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 1000, 0.0f);
    run_sum(state, "sum", 1.0f, 10, a + 100, a + 500, a + 990);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    for (int i = 0; i < 10; i++) CHECK(a[990 + i] == 600.0f + 2.0f * (float)i);
    const struct sum_args args = {1.0f, 10};         /* one that is not bound behind those that are */
    const struct glm52_gpu_dispatch dispatch = {.groups = {1, 1, 1}, .threads = {64, 1, 1}, .threadgroup_bytes = 64,
                                                .args = &args, .args_bytes = sizeof(args),
                                                .operands = {a, a, a + 20, NULL}, .operand_count = 4};
    METAL->dispatch(state, pipeline_of(state, "sum"), &dispatch);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(a[29] == 18.0f);
    METAL->close(state);
}

void test_memory_is_aligned_and_zeroed(void) {
    static const size_t misalignments[] = {0, 16, 240};
    for (int m = 0; m < 3; m++) {
        fm_device.misalign = misalignments[m];
        struct glm52_gpu_state *state = open_driver();
        for (size_t bytes = 1; bytes < 2000; bytes += 333) {
            uint8_t *memory = METAL->allocate(state, bytes);
            CHECK((uintptr_t)memory % 256 == 0);
            for (size_t i = 0; i < bytes; i++) CHECK(memory[i] == 0);
            memset(memory, 0xFF, bytes);
            if (bytes % 2 == 0) METAL->release(state, memory);
        }
        float *a = floats(state, 10, 1.0f);
        run_sum(state, "sum", 1.0f, 10, a, a, a);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        CHECK(a[9] == 20.0f);
        void *nothing[2] = {METAL->allocate(state, 0), METAL->allocate(state, 0)};
        CHECK(nothing[0] != NULL && nothing[1] != NULL && nothing[0] != nothing[1]);
        METAL->release(state, nothing[0]);
        METAL->release(state, nothing[1]);
        METAL->release(state, NULL);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        METAL->close(state);
    }
}

void test_mappings_are_adopted_in_whole_pages(void) {
    struct glm52_gpu_state *state = open_driver();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pages = map_pages(4 * page);
    float *weights = (float *)(void *)(pages + page - 400);
    for (int i = 0; i < 100; i++) weights[i] = (float)i;
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, weights, 400 + 8, false));
    float *out = floats(state, 100, 0.0f);
    run_sum(state, "sum", 0.5f, 100, weights, weights, out);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    for (int i = 0; i < 100; i++) CHECK(out[i] == 1.5f * (float)i);
    weights[7] = 70.0f;   /* shared: the device sees what the host writes */
    METAL->publish(state, weights + 7, sizeof(float));
    run_sum(state, "sum", 0.5f, 100, weights, weights, out);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(out[7] == 105.0f);
    METAL->disown(state, weights);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    METAL->close(state);
    unmap_pages(pages, 4 * page);
}

/* Every operand as long as was said lies whole in some buffer, wherever it begins. */
static void split(size_t page_count, size_t longest) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fm_device.buffer_max = 5 * page + 100;
    struct glm52_gpu_state *state = open_driver();
    float *out = floats(state, 2048, 0.0f);
    const size_t overlap = longest > 0 ? (longest + page - 1) / page : 3;
    if (longest > 0) METAL->longest_operand(state, longest);
    else longest = 2 * page;
    const size_t bytes = page_count * page - 1000;
    uint8_t *pages = map_pages(page_count * page);
    float *data = (float *)(void *)(pages + 500);
    for (size_t i = 0; i < bytes / 4; i++) data[i] = (float)i;
    const int before = fm_calls("buffer");
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, data, bytes, false));
    /* As few as there can be: the first reaches 5 pages, each further one a step. */
    const size_t step = 5 - overlap;
    CHECK((size_t)(fm_calls("buffer") - before) == (page_count <= 5 ? 1 : 1 + (page_count - 5 + step - 1) / step));
    const uint32_t count = (uint32_t)(longest / 4 < 2048 ? longest / 4 : 2048);
    for (size_t at = 0; at + count <= bytes / 4; at += 509) {
        run_sum(state, "sum", 1.0f, count, data + at, data + at, out);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        CHECK(out[0] == 2.0f * (float)at && out[count - 1] == 2.0f * (float)(at + count - 1));
    }
    METAL->close(state);
    unmap_pages(pages, page_count * page);
}

void test_long_mappings_are_split_with_overlap(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static const size_t longest[] = {4, 1000, 4096, 8192};
    for (int i = 0; i < 4; i++) {
        for (size_t pages = 1; pages <= 23; pages += (pages < 8 ? 1 : 5)) split(pages, longest[i]);
    }
    fm_device.buffer_max = 4 * page;
    struct glm52_gpu_state *state = open_driver();
    uint8_t *memory = map_pages(8 * page);
    METAL->longest_operand(state, 4 * page);
    CHECK_REFUSED(GLM52_ERR_MEMORY, "an operand of", METAL->adopt(state, memory, 8 * page, false));
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, memory, 4 * page, false)); /* one buffer: no need to overlap */
    METAL->close(state);
    unmap_pages(memory, 8 * page);
}

void test_half_a_buffer_overlaps_unless_told(void) {
    split(17, 0);
}

/* Four addresses: two buffers of one mapping, an allocation at an odd place, and one that is given up meanwhile. */
static void follow(bool has_residency_set) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fm_device.buffer_max = 4 * page;
    if (!has_residency_set) fm_inject("residency", 0);
    struct glm52_gpu_state *state = open_driver();
    float *mapping = (float *)(void *)map_pages(10 * page), *other = floats(state, 100, 7.0f);
    mapping[3] = 30.0f, mapping[10 * page / 4 - 1] = 31.0f;
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, mapping, 10 * page, false));
    const void *uses[] = {mapping, other};
    uint64_t *table = METAL->allocate(state, 3 * sizeof(uint64_t));
    float *out = floats(state, 3, 0.0f);
    table[0] = METAL->device_address(state, mapping + 3);
    table[1] = METAL->device_address(state, mapping + 10 * page / 4 - 1);
    table[2] = METAL->device_address(state, other + 33);
    run_follow(state, 3, table, out, uses, 2);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(out[0] == 30.0f && out[1] == 31.0f && out[2] == 40.0f);
    CHECK((fm_calls("use-resource") > 0) == !has_residency_set);
    CHECK((fm_calls("request-residency") > 0) == has_residency_set);

    METAL->disown(state, mapping);
    run_follow(state, 3, table, out, uses, has_residency_set ? 0 : 2);
    CHECK(METAL->finish(state) != GLM52_OK);         /* the mapping is no longer the device's */
    CHECK(misuse_was("resident") == has_residency_set);
    CHECK(METAL->device_address(state, mapping) == 0);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "in no memory", METAL->finish(state));
    METAL->close(state);
    unmap_pages((uint8_t *)mapping, 10 * page);
}

void test_addresses_in_tables_are_the_devices(void) {
    follow(HAS_RESIDENCY_SETS);
}

void test_older_systems_are_told_what_is_used(void) {
    follow(false);
}

void test_writes_take_effect_in_order(void) {
    fm_device.delay_us = 1000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 0.0f), *out = floats(state, 64, 0.0f), *later = floats(state, 64, 0.0f);
    float ones[64], twos[64];
    for (int i = 0; i < 64; i++) ones[i] = 1.0f, twos[i] = 2.0f;
    METAL->write(state, a, ones, sizeof(ones));      /* nothing is under way */
    CHECK(a[63] == 1.0f);
    for (int at = 0; at < 3; at++) {                 /* words, and bytes that are none */
        METAL->write(state, a, ones, sizeof(ones));
        run_sum(state, "late", 0.0f, 64, a, a, out);
        METAL->write(state, (uint8_t *)a + at, twos, sizeof(twos) - 16);
        memset(twos, 0, sizeof(twos));               /* it was copied by the call */
        run_sum(state, "sum", 0.0f, 64, a, a, later);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        for (int i = 0; i < 64; i++) twos[i] = 2.0f;
        CHECK(out[0] == 1.0f && out[40] == 1.0f && out[63] == 1.0f);
        CHECK(memcmp((uint8_t *)later + at, twos, sizeof(twos) - 16) == 0 && later[63] == 1.0f);
        CHECK(fm_calls("blit-encoder") == 1);        /* whole words go beside the work, others wait for it */
    }
    METAL->close(state);
}

/* More than the room for writes under way, several times over, and more at once than there is. */
void test_many_writes_wait_for_their_room(void) {
    fm_device.delay_us = 20000;
    struct glm52_gpu_state *state = open_driver();
    const uint32_t count = 150000;
    float *a = floats(state, count, 0.0f), *sums = floats(state, count, 0.0f), *host = malloc(count * sizeof(float));
    memset(sums, 0, count * sizeof(float));
    float expected = 0.0f;
    for (int round = 1; round <= 12; round++) {
        for (uint32_t i = 0; i < count; i++) host[i] = (float)round;
        METAL->write(state, a, host, count * sizeof(float));
        run_sum(state, "sum", 1.0f, count, sums, a, sums);
        expected += (float)round;
    }
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    for (uint32_t i = 0; i < count; i++) CHECK(sums[i] == expected);
    CHECK(fm_calls("blit-encoder") == 11);           /* all but the first, which found the device idle */
    free(host);

    const size_t large = (size_t)5 << 19;
    float *big = METAL->allocate(state, large), *from = calloc(1, large);
    from[large / 4 - 1] = 9.0f;
    run_sum(state, "late", 1.0f, 10, sums, a, sums);
    METAL->write(state, big, from, large);
    CHECK(big[large / 4 - 1] == 9.0f);
    free(from);
    METAL->close(state);
}

void test_clears_take_effect_in_order(void) {
    fm_device.delay_us = 1000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f), *out = floats(state, 64, 0.0f);
    METAL->clear(state, a + 60, 16);
    CHECK(a[59] == 60.0f && a[60] == 0.0f && a[63] == 0.0f);
    for (int at = 0; at < 3; at++) {
        for (int i = 0; i < 64; i++) a[i] = 1.0f;
        run_sum(state, "late", 0.0f, 64, a, a, out);
        METAL->clear(state, (uint8_t *)a + at, 64);
        METAL->clear(state, (uint8_t *)a + at + 64, 64);
        METAL->clear(state, a, 0);
        METAL->write(state, a, out, 0);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        CHECK(fm_calls("blit-encoder") == 1);
        CHECK(out[10] == 1.0f && a[10] == 0.0f && a[33] == 1.0f);
    }
    METAL->close(state);
}

void test_reads_wait(void) {
    fm_device.delay_us = 1000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f), host[64];
    run_sum(state, "late", 1.0f, 64, a, a, a);
    METAL->read(state, host, a, sizeof(host));
    CHECK(host[0] == 2.0f && host[63] == 128.0f);
    METAL->read(state, host, a, 0);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    METAL->close(state);
}

void test_memory_stays_until_its_work_is_done(void) {
    struct glm52_gpu_state *state = open_driver();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    float *a = floats(state, 64, 1.0f), *out = floats(state, 64, 0.0f);
    float *mapping = (float *)(void *)map_pages(page);
    mapping[0] = 5.0f;
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, mapping, page, true));
    run_sum(state, "late", 1.0f, 64, a, mapping, out);
    METAL->release(state, a);
    METAL->disown(state, mapping);
    unmap_pages((uint8_t *)mapping, page);           /* from here on a read by the device would fault */
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(out[0] == 6.0f && out[1] == 2.0f);
    METAL->close(state);
}

void test_fences_reach_the_host(void) {
    fm_device.delay_us = 1000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f), *b = floats(state, 64, 1.0f);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    const uint64_t first = METAL->signal(state), hold = METAL->hold(state);
    run_sum(state, "sum", 1.0f, 64, b, b, b);
    run_sum(state, "sum", 1.0f, 64, b, b, b);
    const uint64_t second = METAL->signal(state);
    CHECK(second > first);
    CHECK_STATUS(GLM52_OK, METAL->wait_host(state, first));
    CHECK(a[0] == 2.0f && b[0] == 1.0f);             /* the rest of the command buffer is still to come */
    METAL->release_hold(state, hold);
    CHECK_STATUS(GLM52_OK, METAL->wait_host(state, second));
    CHECK(b[0] == 4.0f);
    CHECK_STATUS(GLM52_OK, METAL->wait_host(state, first));
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "the last signal is", METAL->wait_host(state, second + 2));
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    METAL->close(state);
}

void test_holds_keep_the_device(void) {
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f), *slot = floats(state, 64, 0.0f), *out = floats(state, 64, 0.0f);
    for (int layer = 1; layer <= 3; layer++) {
        run_sum(state, "sum", 1.0f, 64, a, a, a);
        const uint64_t chosen = METAL->signal(state);
        run_sum(state, "sum", 0.0f, 64, a, a, out);  /* the shared expert */
        const uint64_t hold = METAL->hold(state);
        run_sum(state, "sum", 1.0f, 64, out, slot, out);
        CHECK_STATUS(GLM52_OK, METAL->wait_host(state, chosen));
        usleep(20000);
        CHECK(out[0] <= (float)(1 << layer) || out[0] < (float)(100 * layer)); /* the routed part has not begun */
        slot[0] = (float)(100 * layer);
        METAL->release_hold(state, hold);
        METAL->release_hold(state, hold);            /* once more, or an older one, does no harm */
        METAL->release_hold(state, hold - 1);
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
        CHECK(out[0] == (float)((1 << layer) + 100 * layer));
    }
    METAL->close(state);
}

void test_many_flushes_are_not_too_many(void) {
    fm_device.delay_us = 300;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 8, 0.0f), *one = floats(state, 8, 1.0f);
    for (int i = 0; i < 200; i++) {
        run_sum(state, i < 3 ? "late" : "sum", 1.0f, 8, a, one, a);
        METAL->flush(state);
        METAL->flush(state);                         /* nothing to hand over */
    }
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(a[0] == 200.0f && fm_calls("command-buffer") == 200);
    METAL->close(state);
}

void test_finish_tells_the_devices_time(void) {
    fm_device.delay_us = 3000;
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 8, 0.0f);
    CHECK(METAL->device_ns(state) == 0);
    run_sum(state, "late", 1.0f, 8, a, a, a);
    METAL->flush(state);
    run_sum(state, "late", 1.0f, 8, a, a, a);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    const uint64_t both = METAL->device_ns(state);
    CHECK(both >= 60000000 && both < 60000000000);
    run_sum(state, "sum", 1.0f, 8, a, a, a);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(METAL->device_ns(state) > 0 && METAL->device_ns(state) < both);
    METAL->close(state);
}
