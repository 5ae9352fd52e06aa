/* runtime.hpp - a dispatch under way: its threads, the memory that it may touch, and what was found wrong.
 *
 * One thread of the system runs one dispatch at a time, group after group; the threads of a group take turns as fibers.
 * In the check build (SIM_CHECK) the compiler calls the detector at every access to memory. */
#pragma once
#include <set>
#include <string>
#include <vector>

#include "sim_kernel.hpp"

#define SIM_GROUP_THREADS_MAX 1024
#define SIM_THREADGROUP_BYTES_MAX 32768
/* Threadgroup memory of a group with its red zones. */
#define SIM_ARENA_BYTES ((size_t)48 << 10)

/* ---- the detector's notes: who touched a byte last ---- */

struct sim_record {
    uint32_t thread;         /* of the dispatch, from 1 on; 0: nobody */
    uint32_t dispatch;
    uint16_t epoch;          /* barriers that ordered this memory before */
    uint16_t simd_epoch : 15;
    uint16_t is_atomic : 1;
};
struct sim_cell {
    sim_record write, read, other_read;
};
#define SIM_EPOCHS_MAX 32767u

/* Memory that a kernel may touch. */
struct sim_range {
    const char *begin, *end;
    bool is_const, is_threadgroup;
    int index;
};

enum sim_state { SIM_READY, SIM_AT_EXCHANGE, SIM_AT_SIMD_BARRIER, SIM_AT_BARRIER, SIM_DONE };

struct sim_fiber_state {
    void *stack;
    char *low, *high;        /* of its stack */
    sim_thread self;
    sim_state state;
    const char *file;        /* of what it waits at */
    int line;
    uint32_t exchanges;
    uint32_t active;         /* lanes that the last exchange had */
    uint32_t epoch_threadgroup, epoch_device, epoch_simd;
};

struct sim_array {
    const void *key;
    char *memory;
};

/* How a dispatch is run. */
struct sim_schedule {
    uint64_t seed;           /* 0: threads in order; else groups and threads in an order made of it */
    uint32_t yield_ppm;      /* check build: chance that a thread stops behind an access */
};

struct sim_job {
    const sim_kernel *kernel;
    uint32_t groups[3], threads[3];
    uint32_t threadgroup_bytes;
    void *buffers[SIM_BUFFERS];
    std::vector<sim_range> ranges;
    sim_schedule schedule;
};

struct sim_runner {
    std::vector<sim_fiber_state> fibers;
    char *stacks = nullptr;
    char *slots = nullptr;
    char *arena = nullptr;
    size_t arena_used = 0;
    sim_cell *arena_cells = nullptr;     /* check build */
    std::vector<sim_array> arrays;
    std::vector<sim_range> ranges;       /* the job's, and the group's threadgroup memory */
    size_t last_range = 0;
    void *threadgroups[SIM_THREADGROUPS] = {};
    void *scheduler = nullptr;
    sim_fiber_state *current = nullptr;
    const sim_job *job = nullptr;
    uint32_t group = 0;
    uint32_t threads = 0;                /* of a group */
    uint32_t dispatch = 0;
    uint64_t random = 0;
    bool is_broken = false;              /* the group can't go on */
    std::set<std::string> seen;          /* keys of defects */
    std::string defects;
};

extern sim_runner *sim_running;

/* Runs all groups. What was found wrong, a line each; empty: nothing. One caller at a time. */
std::string sim_run(const sim_job &job);
/* Notes a defect once per key. */
void sim_defect(const std::string &key, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Back to the scheduler. */
void sim_leave();
/* A kernel did what it can't go on from: ends the dispatch. */
[[noreturn]] void sim_break();
uint64_t sim_random(sim_runner *runner);
/* Words for the reports. */
const char *sim_memory_name(const sim_range &range);

#ifdef SIM_CHECK
/* Forgets the accesses to threadgroup memory from an address on. */
void sim_check_forget(sim_runner *runner, const char *from, size_t bytes);
#endif
