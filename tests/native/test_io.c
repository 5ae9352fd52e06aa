/* test_io.c - threads that read experts: bytes, faults below pread, mirrors, direct I/O, cancellation. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache.h"
#include "check.h"
#include "io_pool.h"

#ifndef STRESS_SECONDS
#define STRESS_SECONDS 1
#endif

enum { FILE_BYTES = 300000, EXPERTS = 24, SLICE = 4000, TICKETS = 8 };

static uint8_t content(uint64_t at) {
    return (uint8_t)((at * 2654435761u) >> 13);
}

/* A file of known bytes, a pool that reads it, memory to read into. */
struct rig {
    char path[64], mirror[64];
    struct glm52_io_file files[2];
    struct glm52_io *io;
    struct glm52_allocations allocations;
    glm52_stream_test test;
    uint8_t memory[TICKETS][3 * SLICE];
    /* Faults: the read number fail_at (from 1), and failing after it, answer as told. */
    atomic_uint reads;
    uint32_t fail_at, failing;
    int64_t answer;       /* -errno, or the bytes to read at most */
    int32_t only_file;    /* -1: any */
};

static int64_t faulty_read(void *user, int32_t file, void *buffer, uint64_t bytes, uint64_t offset, int32_t *error) {
    struct rig *rig = user;
    const uint32_t number = atomic_fetch_add(&rig->reads, 1) + 1;
    const bool fails = number >= rig->fail_at && number < rig->fail_at + rig->failing &&
                       (rig->only_file < 0 || rig->only_file == file);
    if (fails && rig->answer < 0) {
        *error = (int32_t)-rig->answer;
        return -1;
    }
    const uint64_t wanted = fails && (uint64_t)rig->answer < bytes ? (uint64_t)rig->answer : bytes;
    const ssize_t got = pread(file, buffer, wanted, (off_t)offset);
    *error = errno;
    return got;
}

static int write_file(char *path, const char *name) {
    snprintf(path, 64, "/tmp/glm52-%s-XXXXXX", name);
    const int file = mkstemp(path);
    uint8_t *bytes = malloc(FILE_BYTES);
    for (uint64_t i = 0; i < FILE_BYTES; i++) bytes[i] = content(i);
    CHECK(write(file, bytes, FILE_BYTES) == FILE_BYTES);
    free(bytes);
    return file;
}

static void describe(struct glm52_io_file *file, const char *path, int descriptor) {
    struct stat now;
    fstat(descriptor, &now);
    *file = (struct glm52_io_file){.path = path, .file = descriptor, .direct = -1, .bytes = (uint64_t)now.st_size,
                                   .device = (uint64_t)now.st_dev, .inode = (uint64_t)now.st_ino};
}

static glm52_status open_rig(struct rig *rig, uint32_t workers, bool has_mirror, bool direct, uint32_t advise) {
    rig->test.read = faulty_read;
    rig->test.user = rig;
    const struct glm52_io_args args = {
        .files = rig->files, .file_count = 1, .has_mirror = has_mirror, .workers = workers, .tickets = TICKETS,
        .direct = direct, .advise = advise, .slice_bytes_max = SLICE, .test = &rig->test,
        .allocations = &rig->allocations};
    return glm52_io_open(&args, &rig->io);
}

static struct rig *make_rig(void) {
    struct rig *rig = calloc(1, sizeof(*rig));
    rig->only_file = -1;
    describe(&rig->files[0], rig->path, write_file(rig->path, "io"));
    describe(&rig->files[1], rig->mirror, write_file(rig->mirror, "mirror"));
    return rig;
}

static void free_rig(struct rig *rig) {
    glm52_io_close(rig->io);
    close(rig->files[0].file);
    close(rig->files[1].file);
    unlink(rig->path);
    unlink(rig->mirror);
    free(rig);
}

/* The three slices of an expert lie apart from each other, at odd places. */
static uint64_t place(uint32_t expert, uint32_t slice) {
    return 17 + slice * 100000ull + expert * (SLICE + 3ull);
}

static struct glm52_io_request request_of(struct rig *rig, uint32_t ticket, uint32_t expert) {
    struct glm52_io_request request = {.layer = 5, .expert = expert};
    static const char *const names[] = {"blk.5.ffn_gate_exps.weight", "blk.5.ffn_up_exps.weight",
                                        "blk.5.ffn_down_exps.weight"};
    for (uint32_t i = 0; i < 3; i++) {
        request.slices[i] = (struct glm52_io_slice){.file = 0, .offset = place(expert, i), .bytes = SLICE,
                                                    .tensor = names[i]};
        request.out[i] = rig->memory[ticket] + i * SLICE;
    }
    return request;
}

static void submit(struct rig *rig, uint32_t ticket, uint32_t expert, bool mirror) {
    struct glm52_io_request request = request_of(rig, ticket, expert);
    request.mirror = mirror;
    memset(rig->memory[ticket], 0xff, sizeof(rig->memory[ticket]));
    glm52_io_submit(rig->io, ticket, &request);
}

static bool is_right(const struct rig *rig, uint32_t ticket, uint32_t expert) {
    for (uint32_t i = 0; i < 3; i++) {
        for (uint64_t k = 0; k < SLICE; k++) {
            if (rig->memory[ticket][i * SLICE + k] != content(place(expert, i) + k)) return false;
        }
    }
    return true;
}

void test_io_reads_what_is_in_the_file(void) {
    for (uint32_t workers = 1; workers <= 8; workers *= 2) {
        struct rig *rig = make_rig();
        CHECK_STATUS(GLM52_OK, open_rig(rig, workers, false, false, 0));
        for (uint32_t round = 0; round < 3; round++) {
            for (uint32_t t = 0; t < TICKETS; t++) submit(rig, t, round * TICKETS + t, false);
            for (uint32_t t = TICKETS; t-- > 0;) {
                CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, t));
                CHECK(glm52_io_is_done(rig->io, t));
                CHECK(is_right(rig, t, round * TICKETS + t));
            }
        }
        struct glm52_io_stats stats;
        glm52_io_stats_get(rig->io, &stats);
        CHECK(stats.read_ops == 72 && stats.read_bytes == 72 * SLICE && stats.service.count == 72);
        CHECK(stats.errors == 0 && stats.policy_ops == 0);
        free_rig(rig);
    }
}

void test_io_goes_on_after_short_reads_and_interruptions(void) {
    const struct {
        int64_t answer;
        uint32_t failing;
    } cases[] = {{1, 20}, {1000, 20}, {-EINTR, 20}, {-EINTR, GLM52_IO_INTERRUPTIONS_MAX}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (uint32_t at = 1; at <= 5; at++) {
            struct rig *rig = make_rig();
            rig->fail_at = at;
            rig->failing = cases[i].failing;
            rig->answer = cases[i].answer;
            CHECK_STATUS(GLM52_OK, open_rig(rig, 2, false, false, 0));
            for (uint32_t t = 0; t < 4; t++) submit(rig, t, t, false);
            for (uint32_t t = 0; t < 4; t++) {
                CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, t));
                CHECK(is_right(rig, t, t));
            }
            struct glm52_io_stats stats;
            glm52_io_stats_get(rig->io, &stats);
            /* A read of the last 1000 bytes is whole. */
            if (cases[i].answer > 0) CHECK(stats.short_reads >= 15 && stats.short_reads <= 20);
            else CHECK(stats.interrupted == cases[i].failing);
            CHECK(stats.read_bytes == 12 * SLICE);
            free_rig(rig);
        }
    }
}

static void check_says(const char *words) {
    if (strstr(glm52_error_message(), words) != NULL) return;
    printf("\"%s\" does not say \"%s\"\n", glm52_error_message(), words);
    check_failed = 1;
}

void test_io_says_everything_about_a_failed_read(void) {
    const struct {
        int64_t answer;
        uint32_t failing;
        const char *why;
    } cases[] = {{-EIO, 1, "Input/output error"}, {0, 1, "the file ended"}, {-EINTR, 4000, "Interrupted"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct rig *rig = make_rig();
        rig->fail_at = 2;   /* the slice up of expert 3: one worker reads in order */
        rig->failing = cases[i].failing;
        rig->answer = cases[i].answer;
        CHECK_STATUS(GLM52_OK, open_rig(rig, 1, false, false, 0));
        submit(rig, 0, 3, false);
        CHECK_STATUS(GLM52_ERR_IO, glm52_io_wait(rig->io, 0));
        check_says(rig->path);
        check_says("blk.5.ffn_up_exps.weight");
        check_says("expert 3 of layer 5");
        check_says("read 0 of 4000 bytes at 112026");
        check_says(cases[i].why);
        struct glm52_io_stats stats;
        glm52_io_stats_get(rig->io, &stats);
        CHECK(stats.errors == (cases[i].failing > 1001 ? 2 : 1));   /* a storm of 4000 reaches the next slice */

        rig->failing = 0;
        submit(rig, 0, 3, false);
        CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
        CHECK(is_right(rig, 0, 3));
        free_rig(rig);
    }
}

void test_io_sees_that_the_file_changed(void) {
    struct rig *rig = make_rig();
    CHECK_STATUS(GLM52_OK, open_rig(rig, 2, false, false, 0));
    const uint64_t cut = place(7, 2) + 1000;
    CHECK(ftruncate(rig->files[0].file, (off_t)cut) == 0);
    submit(rig, 0, 7, false);
    CHECK_STATUS(GLM52_ERR_IO, glm52_io_wait(rig->io, 0));
    check_says("read 1000 of 4000 bytes at 228038");
    check_says("the file has 229038 bytes; it had 300000");
    CHECK(strstr(glm52_error_message(), "another file") == NULL);

    /* And when the path names another file by now. */
    unlink(rig->path);
    close(open(rig->path, O_CREAT | O_WRONLY, 0600));
    submit(rig, 0, 7, false);
    CHECK_STATUS(GLM52_ERR_IO, glm52_io_wait(rig->io, 0));
    check_says("another file has this path now");
    submit(rig, 0, 6, false);
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));   /* what is still there can be read */
    free_rig(rig);
}

void test_io_mirror_takes_its_half_and_falls_back(void) {
    struct rig *rig = make_rig();
    rig->only_file = rig->files[1].file;
    rig->fail_at = 1;
    rig->failing = 1000;
    rig->answer = -EIO;
    CHECK_STATUS(GLM52_OK, open_rig(rig, 3, true, false, 0));
    submit(rig, 0, 1, true);
    submit(rig, 1, 2, false);
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 1));
    CHECK(is_right(rig, 0, 1) && is_right(rig, 1, 2));
    struct glm52_io_stats stats;
    glm52_io_stats_get(rig->io, &stats);
    CHECK(stats.mirror_fallbacks == 3 && stats.mirror_ops == 0 && stats.errors == 0);

    rig->failing = 0;
    submit(rig, 0, 1, true);
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
    glm52_io_stats_get(rig->io, &stats);
    CHECK(stats.mirror_ops == 3);

    /* Both broken: the primary's fault is told. */
    rig->only_file = -1;
    rig->failing = 100000;
    submit(rig, 0, 1, true);
    CHECK_STATUS(GLM52_ERR_IO, glm52_io_wait(rig->io, 0));
    check_says(rig->path);
    free_rig(rig);
}

void test_io_direct_reads_give_the_same_bytes(void) {
    struct rig *rig = make_rig();
    const glm52_status status = open_rig(rig, 4, false, true, 0);
    if (status == GLM52_ERR_UNSUPPORTED) {
        printf("    (this file system has no direct I/O)\n");
        free_rig(rig);
        return;
    }
    CHECK_STATUS(GLM52_OK, status);
    for (uint32_t e = 0; e < EXPERTS; e++) {
        submit(rig, e % TICKETS, e, false);
        CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, e % TICKETS));
        CHECK(is_right(rig, e % TICKETS, e));
    }
    /* The last bytes of a file whose length is no multiple of the alignment. */
    struct glm52_io_request request = request_of(rig, 0, 1);
    request.slices[2].offset = FILE_BYTES - SLICE;
    glm52_io_submit(rig->io, 0, &request);
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
    for (uint64_t k = 0; k < SLICE; k++) CHECK(rig->memory[0][2 * SLICE + k] == content(FILE_BYTES - SLICE + k));
    request.slices[2].offset++;   /* one byte beyond */
    glm52_io_submit(rig->io, 0, &request);
    CHECK_STATUS(GLM52_ERR_IO, glm52_io_wait(rig->io, 0));
    check_says("read 3999 of 4000 bytes at 296001");
    struct glm52_io_stats stats;
    glm52_io_stats_get(rig->io, &stats);
    CHECK(stats.direct_ops == stats.read_ops && stats.read_bytes > stats.direct_ops * SLICE);
    free_rig(rig);
}

enum { RUN_STEP = 4032, RUN_SLOT = 3 * 4096 };  /* of SLICE rounded up to 64; three of them to 4096 */

/* Slices that lie in the file as they shall in memory, from a whole block on. */
static struct glm52_io_request run_of(uint8_t *out, uint32_t block) {
    struct glm52_io_request request = {.layer = 5, .expert = block};
    for (uint32_t i = 0; i < 3; i++) {
        request.slices[i] = (struct glm52_io_slice){.offset = block * 4096ull + i * RUN_STEP, .bytes = SLICE,
                                                    .tensor = "gate"};
        request.out[i] = out + i * RUN_STEP;
    }
    return request;
}

/* Reads a request and returns how many reads that took; 0 if it failed. */
static uint64_t reads_of(struct rig *rig, const struct glm52_io_request *request) {
    struct glm52_io_stats before, after;
    for (uint32_t i = 0; i < 3; i++) memset(request->out[i], 0xff, SLICE);
    glm52_io_stats_get(rig->io, &before);
    glm52_io_submit(rig->io, 0, request);
    if (glm52_io_wait(rig->io, 0) != GLM52_OK) return 0;
    glm52_io_stats_get(rig->io, &after);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint64_t k = 0; k < SLICE; k++) {
            if (request->out[i][k] != content(request->slices[i].offset + k)) return 0;
        }
    }
    return after.read_ops - before.read_ops;
}

static void check_runs(bool direct) {
    struct rig *rig = make_rig();
    const glm52_status status = open_rig(rig, 4, false, direct, 0);
    uint8_t *slot = aligned_alloc(4096, 2 * RUN_SLOT);
    if (status == GLM52_OK) {
        memset(slot, 0x55, 2 * RUN_SLOT);
        struct glm52_io_request request = run_of(slot, 3);
        CHECK(reads_of(rig, &request) == 1);
        for (uint32_t k = RUN_SLOT; k < 2 * RUN_SLOT; k++) CHECK(slot[k] == 0x55);   /* nothing behind the slot */
        request.out[2] += 64;                  /* apart in another way than in the file */
        CHECK(reads_of(rig, &request) == 3);
        request = run_of(slot, 3);
        request.out[2] += 64;                  /* as in the file, but too far to be padding */
        request.slices[2].offset += 64;
        CHECK(reads_of(rig, &request) == 3);
        request = run_of(slot, 3);
        for (uint32_t i = 0; i < 3; i++) request.slices[i].offset += 64;   /* no whole block: matters to direct reads */
        CHECK(reads_of(rig, &request) == (direct ? 3 : 1));
        request = run_of(slot, FILE_BYTES / 4096 - 1);                      /* the file ends in it */
        CHECK(reads_of(rig, &request) == 0);
        check_says("its run: expert 72 of layer 5: read 5088 of 12064 bytes at 294912");
    } else {
        CHECK(direct && status == GLM52_ERR_UNSUPPORTED);
    }
    free(slot);
    free_rig(rig);
}

void test_io_reads_a_run_at_once(void) {
    check_runs(false);
    check_runs(true);
}

void test_io_drain_leaves_nothing_under_way(void) {
    struct rig *rig = make_rig();
    CHECK_STATUS(GLM52_OK, open_rig(rig, 2, false, false, 0));
    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t t = 0; t < TICKETS; t++) submit(rig, t, t, false);
        glm52_io_drain(rig->io);
        for (uint32_t t = 0; t < TICKETS; t++) {
            CHECK(glm52_io_is_done(rig->io, t));
            memset(rig->memory[t], 7, sizeof(rig->memory[t]));
        }
        submit(rig, 0, round % EXPERTS, false);
        CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
        CHECK(is_right(rig, 0, round % EXPERTS));
        for (uint32_t t = 1; t < TICKETS; t++) CHECK(rig->memory[t][0] == 7 && rig->memory[t][3 * SLICE - 1] == 7);
    }
    free_rig(rig);
}

void test_io_allocations_fail_one_by_one(void) {
    struct rig *rig = make_rig();
    CHECK_STATUS(GLM52_OK, open_rig(rig, 3, false, false, 0));
    const uint32_t count = rig->allocations.count;
    CHECK(count >= 6);
    glm52_io_close(rig->io);
    for (uint32_t n = 1; n <= count; n++) {
        rig->allocations = (struct glm52_allocations){.fail_at = n};
        rig->io = NULL;
        CHECK_STATUS(GLM52_ERR_MEMORY, open_rig(rig, 3, false, false, 0));
        CHECK(rig->io == NULL);
    }
    free_rig(rig);
}

void test_io_hints_and_advice_are_counted(void) {
    struct rig *rig = make_rig();
    CHECK_STATUS(GLM52_OK, open_rig(rig, 2, false, false, GLM52_ADVISE_WILLNEED | GLM52_ADVISE_DONTNEED));
    submit(rig, 0, 1, false);
    struct glm52_io_request request = request_of(rig, 1, 2);
    glm52_io_hint(rig->io, &request);
    CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, 0));
    struct glm52_io_stats stats = {0};
    for (int i = 0; i < 1000 && stats.hint_completed == 0; i++) {
        usleep(1000);
        glm52_io_stats_get(rig->io, &stats);
    }
    CHECK(stats.willneed_bytes == 3 * SLICE && stats.dontneed_bytes == 3 * SLICE);
    CHECK(stats.hint_submitted == 1 && stats.hint_completed == 1 && stats.hint_bytes == 3 * SLICE);
    CHECK(stats.hint_dropped == 0 && stats.hint_errors == 0 && stats.hint_queue_max >= 1);
    free_rig(rig);
}

/* Selections through books and threads at once, 8 workers, given up at random: what is shown is always right, and the
 * books of a run whose reads never fail are those of one with other timing. */
void test_io_stress_with_random_cancellation(void) {
    struct rig *rig = make_rig();
    rig->test.read = NULL;
    const uint8_t class_of[] = {0};
    const uint32_t slots[] = {TICKETS};
    const glm52_cache_args args = {.layers = 1, .experts = EXPERTS, .class_of = class_of, .class_count = 1,
                                   .slots = slots, .policy = GLM52_POLICY_HOTNESS};
    glm52_cache *cache = NULL;
    CHECK_STATUS(GLM52_OK, glm52_cache_open(&args, &cache));
    const struct glm52_io_args io_args = {.files = rig->files, .file_count = 1, .workers = 8, .tickets = TICKETS,
                                          .slice_bytes_max = SLICE, .allocations = &rig->allocations};
    CHECK_STATUS(GLM52_OK, glm52_io_open(&io_args, &rig->io));
    uint64_t selections = 0, given_up = 0;
    uint32_t seed = 12345;
    const time_t end = time(NULL) + STRESS_SECONDS;
    while (!check_failed && time(NULL) < end) {
        int32_t ids[12];
        glm52_load loads[TICKETS];
        uint32_t generations[TICKETS] = {0}, count = 0, segment_count = 0;
        for (int i = 0; i < 12; i++) ids[i] = (int32_t)(((seed = seed * 1664525u + 1013904223u) >> 10) % EXPERTS);
        CHECK_STATUS(GLM52_OK, glm52_cache_begin(cache, 0, ids, 12, loads, &count));
        selections++;
        bool stop = false;
        for (;;) {
            for (uint32_t i = 0; i < count; i++) {
                generations[loads[i].slot] = loads[i].generation;
                submit(rig, loads[i].slot, loads[i].expert, false);
            }
            const uint32_t *experts = NULL, *places = NULL;
            CHECK_STATUS(GLM52_OK, glm52_cache_segment(cache, &experts, &places, &segment_count));
            if (segment_count == 0) break;
            stop = ((seed = seed * 1664525u + 1013904223u) >> 16) % 5 == 0;
            if (stop) break;
            for (uint32_t i = 0; i < segment_count; i++) {
                CHECK_STATUS(GLM52_OK, glm52_io_wait(rig->io, places[i]));
                if (generations[places[i]] != 0) glm52_cache_loaded(cache, places[i], generations[places[i]]);
                generations[places[i]] = 0;
                CHECK(is_right(rig, places[i], experts[i]));
            }
            CHECK_STATUS(GLM52_OK, glm52_cache_advance(cache, loads, &count));
        }
        if (stop) {
            glm52_io_drain(rig->io);
            glm52_cache_abort(cache);
            given_up++;
        }
        glm52_cache_tick(cache, 1);
    }
    CHECK(selections > 10 && given_up > 1);
    glm52_cache_close(cache);
    free_rig(rig);
}

void test_histogram_percentiles_are_a_ninth_too_high_at_most(void) {
    for (uint64_t value = 1; value < (uint64_t)1 << 46; value = value * 9 / 8 + 1) {
        struct glm52_histogram h = {0};
        for (int i = 0; i < 99; i++) glm52_histogram_add(&h, value);
        glm52_histogram_add(&h, value * 4);
        const glm52_latency l = glm52_histogram_read(&h);
        CHECK(l.count == 100 && l.total_ns == 103 * value && l.max_ns == 4 * value);
        CHECK(l.p50_ns >= value && (double)l.p50_ns <= (double)value * (1 + 1.0 / 8));
        CHECK(l.p99_ns == l.p50_ns);
    }
    struct glm52_histogram h = {0};
    for (uint64_t i = 1; i <= 1000; i++) glm52_histogram_add(&h, i * 1000);
    const glm52_latency l = glm52_histogram_read(&h);
    CHECK(l.p50_ns >= 500000 && l.p50_ns <= 562500);
    CHECK(l.p95_ns >= 950000 && l.p99_ns <= 1000000);
    const struct glm52_histogram none = {0};
    CHECK(glm52_histogram_read(&none).p50_ns == 0);
}

void test_slots_are_aligned_and_apart(void) {
    const uint64_t slices[3] = {100, 64, 4000};
    CHECK(glm52_slot_bytes(slices) == 8192);   /* 128 + 64 + 4032, in whole pages */
    const uint64_t vast[3] = {UINT64_MAX - 3, 1, 1};
    CHECK(glm52_slot_bytes(vast) == 0);
    const uint64_t bytes[2] = {8192, GLM52_SLAB_BYTES / 2 + 4096};
    const uint32_t counts[2] = {5, 3};   /* the second class: one slot to a slab */
    struct glm52_allocations allocations = {0};
    struct glm52_slots made;
    CHECK_STATUS(GLM52_OK, glm52_slots_make(&made, bytes, counts, 2, &allocations));
    CHECK(made.slot_count == 8 && made.slab_count == 4);
    for (uint32_t i = 0; i < 8; i++) {
        CHECK((uintptr_t)made.address[i] % GLM52_SLOT_ALIGNMENT == 0);
        made.address[i][0] = made.address[i][bytes[i >= 5] - 1] = (uint8_t)i;
    }
    for (uint32_t i = 0; i < 8; i++) CHECK(made.address[i][0] == i && made.address[i][bytes[i >= 5] - 1] == i);
    glm52_slots_free(&made);
    const uint32_t calls = allocations.count;
    for (uint32_t n = 1; n <= calls; n++) {
        allocations = (struct glm52_allocations){.fail_at = n};
        CHECK_STATUS(GLM52_ERR_MEMORY, glm52_slots_make(&made, bytes, counts, 2, &allocations));
        glm52_slots_free(&made);
    }
}
