/* test_pool.c - the thread pool: every index once, at the same time, without waiting for sleepers, and idle
 * at no cost. Run under ThreadSanitizer too: results are plain memory, written by threads and read by the
 * caller. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cpu.h"
#include "refused.h"

#define INDICES_MAX 1000

/* What a job leaves behind, in plain memory. */
struct marks {
    uint32_t runs[INDICES_MAX];
    size_t grain, count;
    uint32_t threads;
    atomic_bool busy[16];   /* per thread */
    atomic_bool is_wrong;
};

static void mark(void *context, size_t begin, size_t end, uint32_t thread) {
    struct marks *marks = context;
    const size_t last = begin + marks->grain < marks->count ? begin + marks->grain : marks->count;
    if (begin % marks->grain != 0 || end != last || thread >= marks->threads) atomic_store(&marks->is_wrong,
                                                                                           true);
    if (thread < 16 && atomic_exchange(&marks->busy[thread], true)) atomic_store(&marks->is_wrong, true);
    for (size_t i = begin; i < end; i++) marks->runs[i]++;
    if (thread < 16) atomic_store(&marks->busy[thread], false);
}

static bool each_ran(const struct marks *marks, uint32_t times) {
    for (size_t i = 0; i < INDICES_MAX; i++) {
        if (marks->runs[i] != (i < marks->count ? times : 0)) return false;
    }
    return true;
}

void test_pool_runs_every_index_once(void) {
    const uint32_t threads[] = {1, 2, 3, 5, 8};
    const size_t counts[] = {0, 1, 2, 3, 7, 100, INDICES_MAX}, grains[] = {1, 2, 3, 64, INDICES_MAX,
                                                                           SIZE_MAX / 2};
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        struct glm52_pool *pool;
        CHECK_STATUS(GLM52_OK, glm52_pool_open(threads[t], &pool));
        CHECK(glm52_pool_threads(pool) == threads[t]);
        for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
            for (size_t g = 0; g < sizeof(grains) / sizeof(grains[0]); g++) {
                struct marks marks = {.grain = grains[g], .count = counts[c], .threads = threads[t]};
                glm52_pool_run(pool, counts[c], grains[g], mark, &marks);
                CHECK(!atomic_load(&marks.is_wrong));
                CHECK(each_ran(&marks, 1));
            }
        }
        glm52_pool_close(pool);
    }
}

/* Two pieces that each wait until the other has begun. */
struct meeting {
    atomic_uint begun;
    atomic_bool is_late;
};

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void meet(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)begin;
    (void)end;
    (void)thread;
    struct meeting *meeting = context;
    const double start = seconds();
    atomic_fetch_add(&meeting->begun, 1);
    while (atomic_load(&meeting->begun) < 2) {
        if (seconds() - start > 60) {
            atomic_store(&meeting->is_late, true);
            return;
        }
        sched_yield();
    }
}

static void nap(long milliseconds) {
    const struct timespec time = {.tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
    nanosleep(&time, NULL);
}

void test_pool_runs_pieces_at_the_same_time(void) {
    struct glm52_pool *pool;
    CHECK_STATUS(GLM52_OK, glm52_pool_open(2, &pool));
    /* Awake, and asleep: a job wakes the threads. */
    for (int i = 0; i < 6; i++) {
        struct meeting meeting = {0};
        if (i % 2 == 1) nap(20);
        glm52_pool_run(pool, 2, 1, meet, &meeting);
        CHECK(!atomic_load(&meeting.is_late));
    }
    glm52_pool_close(pool);
}

void test_pool_survives_many_jobs_and_sleep(void) {
    const uint32_t threads[] = {2, 3, 5};
    for (size_t t = 0; t < sizeof(threads) / sizeof(threads[0]); t++) {
        struct glm52_pool *pool;
        CHECK_STATUS(GLM52_OK, glm52_pool_open(threads[t], &pool));
        /* Jobs of different shape back to back; a stale one would write to marks of another. */
        struct marks marks[2] = {{.grain = 1, .count = 7, .threads = threads[t]},
                                 {.grain = 3, .count = 40, .threads = threads[t]}};
        const uint32_t jobs = 2000;
        for (uint32_t i = 0; i < jobs; i++) {
            glm52_pool_run(pool, marks[i % 2].count, marks[i % 2].grain, mark, &marks[i % 2]);
            if (!each_ran(&marks[i % 2], i / 2 + 1)) {
                CHECK(!"every job is complete when run returns");
                break;
            }
            if (i % 100 == 0) nap(1);   /* long enough for threads to fall asleep */
        }
        CHECK(!atomic_load(&marks[0].is_wrong) && !atomic_load(&marks[1].is_wrong));
        glm52_pool_close(pool);
    }
    /* Opened and closed without a job, and right behind one. */
    for (int i = 0; i < 20; i++) {
        struct glm52_pool *pool;
        struct marks marks = {.grain = 1, .count = 4, .threads = 3};
        CHECK_STATUS(GLM52_OK, glm52_pool_open(3, &pool));
        if (i % 2 == 1) glm52_pool_run(pool, 4, 1, mark, &marks);
        glm52_pool_close(pool);
        CHECK(i % 2 == 0 || each_ran(&marks, 1));
    }
    glm52_pool_close(NULL);
}

static void note_thread(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)begin;
    (void)end;
    if (thread == 0 && pthread_equal(pthread_self(), *(pthread_t *)context)) return;
    CHECK(!"the one thread is the caller, number 0");
}

void test_pool_of_one_thread_is_the_caller(void) {
    struct glm52_pool *pool;
    CHECK_STATUS(GLM52_OK, glm52_pool_open(1, &pool));
    pthread_t self = pthread_self();
    glm52_pool_run(pool, 100, 7, note_thread, &self);
    glm52_pool_close(pool);
}

void test_pool_sleeps_when_idle(void) {
    struct glm52_pool *pool;
    struct marks marks = {.grain = 1, .count = 100, .threads = 4};
    CHECK_STATUS(GLM52_OK, glm52_pool_open(4, &pool));
    glm52_pool_run(pool, 100, 1, mark, &marks);
    nap(50);
    const clock_t before = clock();   /* of all threads */
    nap(200);
    CHECK_NEAR(0.0, (double)(clock() - before) / CLOCKS_PER_SEC, 0.02);
    glm52_pool_close(pool);
}

void test_pool_counts_the_processors_it_may_use(void) {
    struct glm52_pool *pool;
    CHECK_STATUS(GLM52_OK, glm52_pool_open(0, &pool));
    CHECK(glm52_pool_threads(pool) >= 1 && glm52_pool_threads(pool) <= GLM52_POOL_THREADS_MAX);
    glm52_pool_close(pool);
#ifdef __linux__
    cpu_set_t before, one;
    CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
    int first = 0;
    while (!CPU_ISSET(first, &before)) first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
    CHECK_STATUS(GLM52_OK, glm52_pool_open(0, &pool));
    CHECK(glm52_pool_threads(pool) == 1);
    glm52_pool_close(pool);
    CHECK(sched_setaffinity(0, sizeof(before), &before) == 0);
#endif
}

void test_pool_refuses_more_threads_than_its_limit(void) {
    struct glm52_pool *pool = NULL;
    CHECK_REFUSED(GLM52_ERR_ARGUMENT, "513 threads; at most 512",
                  glm52_pool_open(GLM52_POOL_THREADS_MAX + 1, &pool));
    CHECK(pool == NULL);
}

/* In a process of its own, with room for a few stacks only. Sanitizers reserve more than any such limit. */
void test_pool_gives_up_cleanly_when_threads_are_refused(void) {
#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const struct rlimit limit = {.rlim_cur = (rlim_t)256 << 20, .rlim_max = (rlim_t)256 << 20};
        struct glm52_pool *pool = NULL;
        check_failed = 0;
        CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
        for (int i = 0; i < 3; i++) {   /* a failure that kept its threads would leave no room for the next */
            CHECK_REFUSED(GLM52_ERR_MEMORY, "of 200: ", glm52_pool_open(200, &pool));
            CHECK(pool == NULL);
        }
        struct marks marks = {.grain = 1, .count = 50, .threads = 3};
        CHECK_STATUS(GLM52_OK, glm52_pool_open(3, &pool));
        glm52_pool_run(pool, 50, 1, mark, &marks);
        CHECK(each_ran(&marks, 1));
        glm52_pool_close(pool);
        fflush(stdout);
        _exit(check_failed);
    }
    int status = -1;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
#endif
}

void test_pool_grain_is_worth_a_thread(void) {
    struct glm52_pool *pool;
    CHECK_STATUS(GLM52_OK, glm52_pool_open(2, &pool));
    CHECK(glm52_pool_grain(pool, 100, 1) >= 100);        /* too little work to share */
    CHECK(glm52_pool_grain(pool, 100, 1000000) == 6);    /* 100 / (2 threads * 8 pieces) */
    CHECK(glm52_pool_grain(pool, 3, 1000000) == 1);
    CHECK(glm52_pool_grain(pool, 100, 0) >= 100);
    glm52_pool_close(pool);
}

static void *call_often(void *argument) {
    (void)argument;
    struct glm52_pool *pool;
    if (glm52_pool_open(3, &pool) != GLM52_OK) return "open";
    struct marks marks = {.grain = 2, .count = 30, .threads = 3};
    for (uint32_t i = 0; i < 300; i++) glm52_pool_run(pool, 30, 2, mark, &marks);
    glm52_pool_close(pool);
    return each_ran(&marks, 300) && !atomic_load(&marks.is_wrong) ? NULL : "runs";
}

void test_pool_works_for_several_callers_each(void) {
    pthread_t callers[3];
    for (size_t i = 0; i < 3; i++) CHECK(pthread_create(&callers[i], NULL, call_often, NULL) == 0);
    for (size_t i = 0; i < 3; i++) {
        void *fault = NULL;
        CHECK(pthread_join(callers[i], &fault) == 0);
        CHECK(fault == NULL);
    }
}
