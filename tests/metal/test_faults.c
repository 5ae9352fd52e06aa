/* test_faults.c - the Metal driver when things go wrong: each fault is a status with a message, nothing leaks, nothing
 * waits for ever, and what comes after is as if nothing had been. */
#include "fixture.h"

#include <sys/stat.h>
#include <unistd.h>

/* Room for writes under way is twice 1 MiB: three of these don't go in. */
#define STAGE_FLOATS 200000u

/* The device works as before. */
static void check_works(struct glm52_gpu_state *state) {
    float *a = floats(state, 64, 1.0f);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(a[63] == 128.0f);
    METAL->release(state, a);
}

/* Every call says that the device is given up, and none waits. */
static void check_lost(struct glm52_gpu_state *state, const char *why, float *memory,
                       const struct glm52_gpu_pipeline *made) {
    const struct glm52_gpu_constants constants = {0};
    struct glm52_gpu_pipeline *pipeline = NULL;
    const struct glm52_gpu_dispatch small = {.groups = {1, 1, 1}, .threads = {32, 1, 1}};
    float host[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    CHECK_REFUSED(GLM52_ERR_IO, why, METAL->finish(state));
    const int commits = fm_calls("commit"), buffers = fm_calls("command-buffer"), dispatches = fm_calls("dispatch");
    const int waits = fm_calls("event-wait");
    for (int i = 0; i < 2; i++) {
        CHECK_REFUSED(GLM52_ERR_IO, why, METAL->finish(state));
        CHECK_REFUSED(GLM52_ERR_IO, "open the engine anew", METAL->wait_host(state, 1));
        CHECK_REFUSED(GLM52_ERR_IO, why, METAL->adopt(state, host, sizeof(host), false));
        CHECK_REFUSED(GLM52_ERR_IO, why, METAL->pipeline(state, "sum", &constants, &pipeline));
        CHECK_REFUSED(GLM52_ERR_IO, why, METAL->cache(state, "nowhere"));
        CHECK(METAL->allocate(state, 16) == NULL);
        host[3] = 1.0f;
        METAL->read(state, host, memory, sizeof(host));
        CHECK(host[0] == 0.0f && host[3] == 0.0f);
        METAL->write(state, memory, host, sizeof(host));
        METAL->clear(state, memory, sizeof(host));
        if (made != NULL) METAL->dispatch(state, made, &small);
        METAL->flush(state);
        (void)METAL->signal(state);
        METAL->release_hold(state, METAL->hold(state));
    }
    CHECK(fm_calls("event-wait") == waits);
    CHECK(fm_calls("commit") == commits && fm_calls("command-buffer") == buffers && fm_calls("dispatch") == dispatches);
}

void test_dispatches_out_of_bounds_are_refused(void) {
    struct glm52_gpu_state *state = open_driver();
    const struct glm52_gpu_pipeline *pipeline = pipeline_of(state, "sum");
    float *a = floats(state, 64, 1.0f), outside = 0.0f;
    static const uint8_t args[8192];
    const void *unknown[] = {&outside};
    struct glm52_gpu_dispatch good = {.groups = {1, 1, 1}, .threads = {64, 1, 1}, .args = args, .args_bytes = 8,
                                      .operands = {a, a, a}, .operand_count = 3, .threadgroup_bytes = 64};
    static const char *const reasons[] = {"threadgroups of 0 threads", "threadgroups of 48 threads", "of 2048 threads",
                                          "of 4294967296 threads", "a grid of 0", "a grid of 1 x 0", "1 x 1 x 0",
                                          "32769 bytes of threadgroup", "8192 bytes of numbers", "13 operands",
                                          "operand 1, ", "uses "};
    for (int i = 0; i < 12; i++) {
        struct glm52_gpu_dispatch bad = good;
        if (i == 0) bad.threads[2] = 0;
        if (i == 1) bad.threads[0] = 48;
        if (i == 2) bad.threads[1] = 32;
        if (i == 3) bad.threads[0] = bad.threads[1] = 65536;
        if (i >= 4 && i < 7) bad.groups[i - 4] = 0;
        if (i == 7) bad.threadgroup_bytes = 32769;
        if (i == 8) bad.args_bytes = 8192;
        if (i == 9) bad.operand_count = 13;
        if (i == 10) bad.operands[1] = &outside;
        if (i == 11) bad.uses = unknown, bad.use_count = 1;
        METAL->dispatch(state, pipeline, &bad);
        CHECK(fm_calls("dispatch") == 0);
        CHECK_REFUSED(GLM52_ERR_ARGUMENT, reasons[i], METAL->finish(state));
        CHECK_STATUS(GLM52_OK, METAL->finish(state));
    }
    CHECK(outside == 0.0f);
    METAL->close(state);

    fm_device.pipeline_threads = 512;   /* a kernel that takes many registers */
    fm_device.static_threadgroup_bytes = 32000;
    state = open_driver();
    pipeline = pipeline_of(state, "sum");
    good.threads[0] = 1024;
    METAL->dispatch(state, pipeline, &good);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "at most 512", METAL->finish(state));
    good.threads[0] = 64;
    good.threadgroup_bytes = 800;
    METAL->dispatch(state, pipeline, &good);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "at most 768", METAL->finish(state));
    METAL->close(state);
}

void test_memory_out_of_bounds_is_refused(void) {
    struct glm52_gpu_state *state = open_driver();
    float host[16], *a = floats(state, 16, 1.0f);
    for (int i = 0; i < 16; i++) host[i] = -1.0f;
    for (int call = 0; call < 6; call++) {
        void *address = call % 2 == 0 ? (void *)(a + 1) : (void *)host;
        if (call / 2 == 0) METAL->read(state, host, address, 64);
        if (call / 2 == 1) METAL->write(state, address, host, 64);
        if (call / 2 == 2) METAL->clear(state, address, 64);
        CHECK_REFUSED(GLM52_ERR_ARGUMENT, "are not of one allocation", METAL->finish(state));
    }
    CHECK(a[0] == 1.0f && a[15] == 16.0f && host[0] == 0.0f && host[15] == 0.0f);
    fm_device.buffer_max = 1 << 20;
    METAL->close(state);
    state = open_driver();
    CHECK(METAL->allocate(state, 1 << 20) == NULL);
    CHECK_MESSAGE("1048576 bytes in one piece");
    CHECK(METAL->allocate(state, SIZE_MAX) == NULL);
    CHECK(METAL->allocate(state, (1 << 20) - 512) != NULL);
    METAL->close(state);
}

void test_spans_are_known_once(void) {
    struct glm52_gpu_state *state = open_driver();
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *pages = map_pages(8 * page);
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, pages + 2 * page, 2 * page, false));
    static const size_t from[] = {2, 1, 3, 0, 2}, count[] = {2, 2, 1, 8, 1};
    for (int i = 0; i < 5; i++) {
        CHECK_REFUSED(GLM52_ERR_ARGUMENT, "known already",
                      METAL->adopt(state, pages + from[i] * page, count[i] * page, false));
    }
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "0 bytes", METAL->adopt(state, pages, 0, false));
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, pages, 2 * page, false));            /* neighbours are none of it */
    for (size_t i = 0; i < 20; i++) {
        CHECK_STATUS(GLM52_OK, METAL->adopt(state, pages + 4 * page + i * 800, 800, false));
    }
    float *out = floats(state, 64, 0.0f);
    run_sum(state, "sum", 1.0f, 64, (float *)(void *)(pages + 4 * page + 800), (float *)(void *)pages, out);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));

    uint8_t *const wrong[] = {pages + 1, pages + 7 * page + 4000, (uint8_t *)out};
    for (int i = 0; i < 3; i++) {
        METAL->disown(state, wrong[i]);
        CHECK_REFUSED(GLM52_ERR_ARGUMENT, "that was adopted", METAL->finish(state));
    }
    METAL->release(state, pages);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "that was allocated", METAL->finish(state));
    METAL->disown(state, pages + 2 * page);
    CHECK_STATUS(GLM52_OK, METAL->adopt(state, pages + 2 * page, page, false));
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    METAL->close(state);
    unmap_pages(pages, 8 * page);
}

void test_a_kernel_that_fails_is_a_fault_once(void) {
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f);
    const struct glm52_gpu_dispatch dispatch = {.groups = {1, 1, 1}, .threads = {32, 1, 1}};
    METAL->dispatch(state, pipeline_of(state, "breaks"), &dispatch);
    run_sum(state, "sum", 1.0f, 64, a, a, a);        /* of the same command buffer: it is not run */
    METAL->flush(state);
    METAL->dispatch(state, pipeline_of(state, "breaks"), &dispatch);
    CHECK_REFUSED(GLM52_ERR_IO, "metal: a command buffer failed: kernel breaks (code 3)", METAL->finish(state));
    CHECK(a[0] == 1.0f);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    check_works(state);
    METAL->close(state);
}

void test_a_failed_batch_fails_those_who_wait(void) {
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f), host[4];
    fm_inject("command", 0);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    const uint64_t value = METAL->signal(state);
    CHECK_REFUSED(GLM52_ERR_IO, "injected", METAL->wait_host(state, value));
    CHECK_REFUSED(GLM52_ERR_IO, "injected", METAL->wait_host(state, value));
    CHECK_REFUSED(GLM52_ERR_IO, "injected", METAL->finish(state));
    CHECK_REFUSED(GLM52_ERR_IO, "failed", METAL->wait_host(state, value)); /* it still was not reached */
    CHECK_STATUS(GLM52_ERR_IO, METAL->finish(state));
    METAL->write(state, a, host, 0);
    METAL->read(state, host, a, sizeof(host));
    CHECK(host[0] == 1.0f);
    check_works(state);
    CHECK_STATUS(GLM52_OK, METAL->wait_host(state, value));

    for (int at = 0; at < 3; at++) {                 /* with others before and behind it */
        fm_inject("command", at);
        for (int i = 0; i < 3; i++) {
            run_sum(state, "late", 1.0f, 64, a, a, a);
            METAL->flush(state);
        }
        CHECK_REFUSED(GLM52_ERR_IO, "injected", METAL->finish(state));
        check_works(state);
    }
    METAL->close(state);
}

void test_memory_that_runs_out_is_said(void) {
    fm_command_error = 8;                            /* MTLCommandBufferErrorOutOfMemory */
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f);
    fm_inject("command", 0);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    CHECK_REFUSED(GLM52_ERR_MEMORY, "code 8", METAL->finish(state));
    check_works(state);
    METAL->close(state);
}

void test_a_revoked_device_is_lost(void) {
    for (int how = 0; how < 3; how++) {
        fm_command_error = how == 1 ? 11 : 4;        /* DeviceRemoved, AccessRevoked */
        struct glm52_gpu_state *state = open_driver();
        float *a = floats(state, 64, 1.0f);
        fm_inject("command", 0);
        const struct glm52_gpu_pipeline *sum = pipeline_of(state, "sum");
        for (int i = 0; i < (how == 2 ? 34 : 1); i++) {  /* how 2: found when there are too many to send another */
            dispatch_sum(state, sum, 1.0f, 64, a, a, a);
            if (how == 2) METAL->flush(state);
        }
        check_lost(state, "injected", a, sum);
        METAL->close(state);
    }
}

/* The ways in which a device that hangs is first waited for: a fence, finish, read, release, more command buffers than
 * may be on their way, room for writes; the last two leave a command buffer and an encoder open. */
static void wait_for_hung(struct glm52_gpu_state *state, int how, uint64_t value, float *a,
                          const struct glm52_gpu_pipeline *sum) {
    static float host[STAGE_FLOATS];
    if (how == 0) CHECK_REFUSED(GLM52_ERR_IO, "no answer within 60 s", METAL->wait_host(state, value));
    if (how == 1) CHECK_REFUSED(GLM52_ERR_IO, "no answer within 60 s", METAL->finish(state));
    if (how == 2) METAL->read(state, host, a, 16);
    if (how == 2) CHECK(host[0] == 0.0f);
    if (how == 3) METAL->release(state, floats(state, 4, 0.0f));
    for (int i = 0; how == 4 && i < 40; i++) {
        dispatch_sum(state, sum, 1.0f, 64, a, a, a);
        METAL->flush(state);
    }
    for (int i = 0; how == 5 && i < 3; i++) {
        METAL->write(state, a, host, sizeof(host));
        dispatch_sum(state, sum, 1.0f, 64, a, a, a);
    }
}

void test_a_device_that_hangs_is_given_up(void) {
    for (int how = 0; how < 12; how++) {
        struct glm52_gpu_state *state = open_driver();
        const struct glm52_gpu_pipeline *sum = pipeline_of(state, "sum");
        float *a = floats(state, STAGE_FLOATS, 1.0f);
        fm_inject("hang", 0);
        dispatch_sum(state, sum, 1.0f, 64, a, a, a);
        const uint64_t value = METAL->signal(state);
        METAL->flush(state);
        dispatch_sum(state, sum, 1.0f, 64, a, a, a);
        if (how >= 6) METAL->clear(state, a + STAGE_FLOATS, 4); /* a fault before: it is told as well */
        wait_for_hung(state, how % 6, value, a, sum);
        check_lost(state, "no answer within 60 s", a, sum);
        CHECK((strstr(glm52_error_message(), "before that") != NULL) == (how >= 6));
        METAL->close(state);
        fm_reset();
    }
}

void test_a_hold_that_nobody_releases_is_no_deadlock(void) {
    struct glm52_gpu_state *state = open_driver();
    float *a = floats(state, 64, 1.0f);
    const uint64_t hold = METAL->hold(state);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "hold 1 keeps, and 0 is released", METAL->finish(state));
    METAL->release_hold(state, hold + 100);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    CHECK(a[0] == 2.0f);
    const uint64_t second = METAL->hold(state);      /* what was released before says nothing of it */
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    const uint64_t reached = METAL->signal(state);
    (void)METAL->hold(state);
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "hold 3 keeps", METAL->finish(state));
    CHECK(a[0] == 2.0f);
    METAL->release_hold(state, second);
    CHECK_STATUS(GLM52_OK, METAL->wait_host(state, reached));
    CHECK(a[0] == 4.0f);
    METAL->release_hold(state, second + 1);
    CHECK_STATUS(GLM52_OK, METAL->finish(state));
    (void)METAL->hold(state);                        /* and closing releases it */
    run_sum(state, "sum", 1.0f, 64, a, a, a);
    METAL->flush(state);
    METAL->close(state);
}

void test_closing_with_work_under_way(void) {
    for (int how = 0; how < 4; how++) {
        struct glm52_gpu_state *state = open_driver();
        float *a = floats(state, 64, 1.0f);
        if (how == 3) fm_inject("hang", 0);
        run_sum(state, "late", 1.0f, 64, a, a, a);
        if (how > 0) METAL->flush(state);
        if (how > 1) run_sum(state, "late", 1.0f, 64, a, a, a);
        METAL->close(state);
    }
    METAL->close(NULL);
}

/* ---- the archive ---- */

static char folder[256], path[300];

static void make_folder(void) {
    snprintf(folder, sizeof(folder), "/tmp/glm52_metal_test_%ld", (long)getpid());
    CHECK(mkdir(folder, 0700) == 0);
    snprintf(path, sizeof(path), "%s/kernels", folder);
}

static void drop_folder(void) {
    (void)unlink(path);
    CHECK(rmdir(folder) == 0);                       /* and nothing else is in it */
}

void test_what_was_compiled_is_kept(void) {
    make_folder();
    for (int run = 0; run < 3; run++) {
        struct glm52_gpu_state *state = open_driver();
        CHECK_STATUS(GLM52_OK, METAL->cache(state, path));
        CHECK_REFUSED(GLM52_ERR_ARGUMENT, "a cache already", METAL->cache(state, path));
        check_works(state);
        if (run == 2) (void)pipeline_of(state, "follow");
        METAL->close(state);
        CHECK(access(path, R_OK) == 0);
        CHECK(fm_calls("archive-hit") == run);
        CHECK(fm_calls("archive-add") == (run == 0 ? 1 : run == 1 ? 1 : 2));
        CHECK(fm_calls("archive-store") == (run < 2 ? 1 : 2));
    }
    struct glm52_gpu_state *state = open_driver();
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "UTF-8", METAL->cache(state, "/tmp/\xff\xfe"));
    fm_inject("archive", 1);                         /* not even an empty one */
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "no cache: not an archive", METAL->cache(state, "/nowhere/to/be/written"));
    CHECK_STATUS(GLM52_OK, METAL->cache(state, "/nowhere/to/be/written"));
    check_works(state);
    METAL->close(state);
    drop_folder();

    make_folder();                                   /* one that can't be stored leaves nothing behind */
    fm_inject("archive-store", 0);
    state = open_driver();
    CHECK_STATUS(GLM52_OK, METAL->cache(state, path));
    check_works(state);
    METAL->close(state);
    CHECK(fm_was_hit());
    drop_folder();
}

void test_an_archive_of_another_system_is_replaced(void) {
    make_folder();
    FILE *file = fopen(path, "w");
    fputs("something else", file);
    fclose(file);
    struct glm52_gpu_state *state = open_driver();
    CHECK_STATUS(GLM52_OK, METAL->cache(state, path));
    check_works(state);
    METAL->close(state);
    char line[32] = "";
    file = fopen(path, "r");
    CHECK(fgets(line, sizeof(line), file) != NULL && strcmp(line, "FMARCHIVE\n") == 0);
    fclose(file);
    drop_folder();
}

void test_other_devices_are_refused(void) {
    struct glm52_gpu_state *state = NULL;
    fm_device.unified = false;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "Fake Apple GPU is not Apple silicon", METAL->open(glm52_fail, &state));
    fm_device.unified = true, fm_device.apple = false;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "not Apple silicon", METAL->open(glm52_fail, &state));
    CHECK(state == NULL);
    fm_device.apple = true, fm_device.simd_width = 64;
    state = open_driver();
    const struct glm52_gpu_constants constants = {0};
    struct glm52_gpu_pipeline *pipeline = NULL;
    CHECK_REFUSED(GLM52_ERR_UNSUPPORTED, "simdgroups of 64", METAL->pipeline(state, "sum", &constants, &pipeline));
    METAL->close(state);
}

/* ---- every call that can fail ---- */

/* What a session does, as far as it gets; the first failure. Memory that is refused is MEMORY. */
static glm52_status session(struct glm52_gpu_state **state_out) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    static uint8_t *pages;
    if (pages == NULL) pages = map_pages(8 * page);
    struct glm52_gpu_state *state;
    GLM52_TRY(METAL->open(glm52_fail, &state));
    *state_out = state;
    (void)METAL->cache(state, path);                 /* a session works without */
    GLM52_TRY(METAL->adopt(state, pages, 8 * page, false));
    float *a = METAL->allocate(state, 256), *b = METAL->allocate(state, 256);
    if (a == NULL || b == NULL) return GLM52_ERR_MEMORY;
    const struct glm52_gpu_constants constants = {0};
    struct glm52_gpu_pipeline *pipeline;
    GLM52_TRY(METAL->pipeline(state, "sum", &constants, &pipeline));
    const struct sum_args args = {1.0f, 64};
    const struct glm52_gpu_dispatch dispatch = {.groups = {1, 1, 1}, .threads = {64, 1, 1}, .args = &args,
                                                .args_bytes = 8, .operands = {a, b, b}, .operand_count = 3,
                                                .threadgroup_bytes = 64};
    float ones[64], host[64];
    for (int i = 0; i < 64; i++) ones[i] = 1.0f;
    METAL->write(state, a, ones, sizeof(ones));
    METAL->dispatch(state, pipeline, &dispatch);
    METAL->write(state, b, ones, sizeof(ones));      /* under way: through the stage */
    METAL->dispatch(state, pipeline, &dispatch);
    GLM52_TRY(METAL->wait_host(state, METAL->signal(state)));
    METAL->clear(state, a, 16);
    METAL->dispatch(state, pipeline, &dispatch);
    GLM52_TRY(METAL->finish(state));
    METAL->read(state, host, b, sizeof(host));
    CHECK(host[0] == (2.0f) && host[63] == 3.0f);
    return METAL->finish(state);
}

void test_every_call_of_metal_may_fail(void) {
    static const struct {
        const char *name, *words;                    /* NULL: the session works without */
    } calls[] = {
        {"device", "no Metal device"}, {"queue", "no command queue"}, {"event", "no shared event"},
        {"library", "don't compile: injected"}, {"residency", NULL}, {"buffer", "no buffer"}, {"archive", NULL},
        {"archive-add", NULL}, {"archive-store", NULL}, {"function", "sum: injected"}, {"pipeline", "sum: injected"},
        {"command-buffer", "no command buffer"}, {"compute-encoder", "no compute encoder"},
        {"blit-encoder", "no blit encoder"}, {"command", "injected"}, {"hang", "no answer"},
    };
    make_folder();
    int injected = 0;
    for (size_t c = 0; c < sizeof(calls) / sizeof(calls[0]); c++) {
        for (int after = 0;; after++) {
            fm_reset();
            fm_device.buffer_max = (size_t)3 * (size_t)sysconf(_SC_PAGESIZE) + ((size_t)1 << 22);
            (void)unlink(path);
            fm_inject(calls[c].name, after);
            struct glm52_gpu_state *state = NULL;
            const glm52_status status = session(&state);
            const char *message = glm52_error_message();
            METAL->close(state);
            if (!fm_was_hit()) break;
            injected++;
            /* The buffer of the stage is not needed: writes then wait. */
            const bool needed = calls[c].words != NULL && !(strcmp(calls[c].name, "buffer") == 0 && after == 3);
            if ((status != GLM52_OK) != needed || (needed && strstr(message, calls[c].words) == NULL)) {
                printf("%s, call %d fails: %s (%s)\n", calls[c].name, after, glm52_status_name(status), message);
                check_failed = 1;
            }
            CHECK(fm_misuses()[0] == 0);
            fm_reset();
            CHECK(fm_live() == 0);
        }
    }
    printf("     %d failures injected\n", injected);
    CHECK(injected >= 20);
    drop_folder();
}

/* The C library's memory, at each place where a session asks for some. */
void test_memory_of_the_host_may_run_out(void) {
    make_folder();
    int refused = 0;
    for (int after = 0;; after++) {
        fm_reset();
        (void)unlink(path);
        refuse_memory(after);
        struct glm52_gpu_state *state = NULL;
        const glm52_status status = session(&state);
        const bool was_refused = memory_was_refused();
        CHECK(status == GLM52_OK || status == GLM52_ERR_MEMORY);
        METAL->close(state);
        CHECK(fm_misuses()[0] == 0);
        fm_reset();
        CHECK(fm_live() == 0);
        if (!was_refused) break;
        refused++;
    }
    CHECK(refused >= 6);
    drop_folder();

    struct glm52_gpu_state *state = open_driver();   /* the list of spans has to grow at the 17th */
    for (int i = 0; i < 16; i++) CHECK(METAL->allocate(state, 16) != NULL);
    refuse_memory(1);
    CHECK(METAL->allocate(state, 16) == NULL);
    CHECK(memory_was_refused());
    CHECK_MESSAGE("a list of spans");
    CHECK(METAL->allocate(state, 16) != NULL);
    check_works(state);
    METAL->close(state);
}
