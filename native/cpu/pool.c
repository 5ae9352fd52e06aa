/* pool.c - the threads that operations run on.
 *
 * A decode step is some thousand short jobs, one after another. So threads stay awake between them: whoever
 * waits spins for about 100 microseconds and only then sleeps. An idle pool sleeps and costs nothing.
 *
 * One atomic word, the gate, says which job there is:
 *
 *     bits 32..63  number of the job
 *     bit  31      the job is open: threads may still join
 *     bits 0..30   threads that have joined and not yet left
 *
 * The caller writes the job, opens the gate, works, closes the gate, and waits for those who joined. A
 * thread joins by adding one to an open gate, which is when it may read the job. So nobody waits for a
 * thread that has not woken up yet, and nobody reads a job that is being replaced. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

#include "cpu.h"
#include "error.h"
#include "thread.h"

#define GATE_OPEN ((uint64_t)1 << 31)
#define GATE_JOB ((uint64_t)1 << 32)
#define GATE_JOINED (GATE_OPEN - 1)

/* Pauses before a waiting thread goes to sleep: 50 to 200 microseconds, depending on the processor. More
 * threads than processors must not spin, since they take the time of those that have work. */
#define SPIN_MAX 4096
#define SPIN_MAX_CROWDED 16

/* A piece of work smaller than this many multiplications costs less than handing it to another thread. */
#define GRAIN_COST_MIN 32768
#define GRAIN_PIECES_PER_THREAD 8

struct glm52_pool {
    /* The job: written by the caller while nobody has joined. */
    glm52_work *work;
    void *context;
    size_t count, grain;

    _Alignas(GLM52_CPU_LINE) atomic_size_t next_piece;
    _Alignas(GLM52_CPU_LINE) atomic_uint_least64_t gate;
    _Alignas(GLM52_CPU_LINE) atomic_uint sleepers;      /* threads waiting for a job on wake */
    atomic_bool caller_sleeps;                          /* waiting for the last thread on done */
    atomic_bool stop;
    pthread_mutex_t mutex;
    pthread_cond_t wake, done;

    uint32_t threads, spin_max;
    uint32_t started;                                   /* threads to join at close */
    struct member {
        struct glm52_pool *pool;
        pthread_t handle;
        uint32_t number;
    } *members;
};

static inline void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

static uint32_t processor_count(void) {
    long count = 0;
#ifdef __linux__
    /* The set is as large as the machine's; ask until it fits. */
    for (size_t size = 1024; count == 0 && size <= (size_t)1 << 20; size *= 2) {
        cpu_set_t *set = CPU_ALLOC(size);
        if (set == NULL) break;
        const size_t bytes = CPU_ALLOC_SIZE(size);
        if (sched_getaffinity(0, bytes, set) == 0) count = CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
    }
#endif
    if (count <= 0) count = sysconf(_SC_NPROCESSORS_ONLN);
    if (count <= 0) return 1;
    return count < GLM52_POOL_THREADS_MAX ? (uint32_t)count : GLM52_POOL_THREADS_MAX;
}

static void run_pieces(struct glm52_pool *pool, uint32_t thread) {
    const size_t count = pool->count, grain = pool->grain;
    const size_t pieces = (count - 1) / grain + 1;
    for (;;) {
        const size_t piece = atomic_fetch_add_explicit(&pool->next_piece, 1, memory_order_relaxed);
        if (piece >= pieces) return;
        const size_t begin = piece * grain;
        pool->work(pool->context, begin, count - begin < grain ? count : begin + grain, thread);
    }
}

/* Whether there is a job beside the one numbered seen; or the end. */
static bool is_called(struct glm52_pool *pool, uint64_t seen) {
    const uint64_t gate = atomic_load(&pool->gate);
    return ((gate & GATE_OPEN) != 0 && gate / GATE_JOB != seen) || atomic_load(&pool->stop);
}

static void wait_for_job(struct glm52_pool *pool, uint64_t seen) {
    for (uint32_t i = 0; i < pool->spin_max; i++) {
        if (is_called(pool, seen)) return;
        pause_briefly();
    }
    /* The caller opens the gate, then looks for sleepers; a thread becomes a sleeper, then looks at the
     * gate. Both sequentially consistent: one of them sees the other. */
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!is_called(pool, seen)) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void leave(struct glm52_pool *pool) {
    const uint64_t before = atomic_fetch_sub(&pool->gate, 1);
    if ((before & GATE_JOINED) != 1 || !atomic_load(&pool->caller_sleeps)) return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->done);
    pthread_mutex_unlock(&pool->mutex);
}

static void *serve(void *argument) {
    const struct member *member = argument;
    struct glm52_pool *pool = member->pool;
    uint64_t seen = 0;
    for (;;) {
        wait_for_job(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        uint64_t gate = atomic_load(&pool->gate);
        if ((gate & GATE_OPEN) == 0 || gate / GATE_JOB == seen) continue;
        if (!atomic_compare_exchange_weak(&pool->gate, &gate, gate + 1)) continue;
        seen = gate / GATE_JOB;
        run_pieces(pool, member->number);
        leave(pool);
    }
}

static bool all_left(struct glm52_pool *pool) {
    return (atomic_load(&pool->gate) & GATE_JOINED) == 0;
}

static void wait_for_threads(struct glm52_pool *pool) {
    for (uint32_t i = 0; i < pool->spin_max; i++) {
        if (all_left(pool)) return;
        pause_briefly();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_left(pool)) pthread_cond_wait(&pool->done, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

void glm52_pool_run(struct glm52_pool *pool, size_t count, size_t grain, glm52_work *work, void *context) {
    if (count == 0) return;
    if (grain == 0) grain = 1;
    if (pool->threads == 1 || count <= grain) {
        for (size_t begin = 0; begin < count; begin += grain) {
            work(context, begin, count - begin < grain ? count : begin + grain, 0);
            if (count - begin <= grain) break;
        }
        return;
    }
    pool->work = work;
    pool->context = context;
    pool->count = count;
    pool->grain = grain;
    atomic_store_explicit(&pool->next_piece, 0, memory_order_relaxed);
    /* Nobody has joined, so the next job's number and the open bit are all there is to write. */
    const uint64_t job = atomic_load(&pool->gate) / GATE_JOB + 1;
    atomic_store(&pool->gate, job * GATE_JOB | GATE_OPEN);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    run_pieces(pool, 0);
    atomic_fetch_and(&pool->gate, ~GATE_OPEN);
    wait_for_threads(pool);
}

size_t glm52_pool_grain(const struct glm52_pool *pool, size_t count, size_t cost) {
    if (pool->threads == 1) return count;
    const size_t worth = cost >= GRAIN_COST_MIN ? 1 : GRAIN_COST_MIN / (cost > 0 ? cost : 1);
    const size_t even = count / (pool->threads * GRAIN_PIECES_PER_THREAD);
    return worth > even ? worth : even;
}

uint32_t glm52_pool_threads(const struct glm52_pool *pool) {
    return pool->threads;
}

/* Threads 1 .. threads - 1; the caller is number 0. */
static int start_threads(struct glm52_pool *pool) {
    int error = 0;
    while (error == 0 && pool->started < pool->threads - 1) {
        struct member *member = &pool->members[pool->started];
        *member = (struct member){.pool = pool, .number = pool->started + 1};
        error = glm52_thread_start(&member->handle, serve, member);
        if (error == 0) pool->started++;
    }
    return error;
}

glm52_status glm52_pool_open(uint32_t threads, struct glm52_pool **pool_out) {
    if (threads > GLM52_POOL_THREADS_MAX) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "%u threads; at most %d", threads, GLM52_POOL_THREADS_MAX);
    }
    const uint32_t processors = processor_count();
    if (threads == 0) threads = processors;
    struct glm52_pool *pool = aligned_alloc(GLM52_CPU_LINE, sizeof(*pool));
    if (pool == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a pool of %u threads", threads);
    memset(pool, 0, sizeof(*pool));
    pool->threads = threads;
    pool->spin_max = threads <= processors ? SPIN_MAX : SPIN_MAX_CROWDED;
    pool->members = calloc(threads, sizeof(*pool->members));
    if (pool->members == NULL) {
        free(pool);
        return glm52_fail(GLM52_ERR_MEMORY, "no memory for a pool of %u threads", threads);
    }
    atomic_init(&pool->next_piece, 0);
    atomic_init(&pool->gate, 0);
    atomic_init(&pool->sleepers, 0);
    atomic_init(&pool->caller_sleeps, false);
    atomic_init(&pool->stop, false);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    const int error = start_threads(pool);
    if (error != 0) {
        const uint32_t started = pool->started;
        glm52_pool_close(pool);
        return glm52_fail(GLM52_ERR_MEMORY, "thread %u of %u: %s", started + 2, threads, strerror(error));
    }
    *pool_out = pool;
    return GLM52_OK;
}

void glm52_pool_close(struct glm52_pool *pool) {
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stop, true);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->started; i++) pthread_join(pool->members[i].handle, NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->members);
    free(pool);
}
