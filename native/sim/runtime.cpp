/* runtime.cpp - runs a dispatch: groups in turn, threads of a group as fibers, waits settled when all have come. */
#include "runtime.hpp"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <algorithm>

#include "fiber.hpp"

#define STACK_BYTES ((size_t)64 << 10)
#define RED_ZONE 64
/* Threadgroup memory before anybody wrote: a NaN as float, -1 as int. */
#define POISON 0xff
#define DEFECTS_MAX 20u
/* Steps between the tops of neighbouring stacks: at equal offsets they would push each other out of the caches. */
#define STAGGER_STEPS 61u
#define STAGGER_BYTES 256u

sim_unit *sim_units = nullptr;
sim_runner *sim_running = nullptr;

static const char *const state_names[] = {"nothing", "a simdgroup operation", "simdgroup_barrier",
                                          "threadgroup_barrier", "its end"};

uint64_t sim_random(sim_runner *runner) {
    uint64_t x = runner->random;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return runner->random = x;
}

void sim_defect(const std::string &key, const char *format, ...) {
    sim_runner *runner = sim_running;
    if (runner->seen.size() >= DEFECTS_MAX || !runner->seen.insert(key).second) return;
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof(text), format, values);
    va_end(values);
    runner->defects += std::string(runner->defects.empty() ? "" : "\n") + "kernel " + runner->job->kernel->name + ": " +
                       text;
}

void sim_leave() {
    sim_runner *runner = sim_running;
    sim_switch(&runner->current->stack, runner->scheduler);
}

void sim_break() {
    sim_running->is_broken = true;
    sim_running->current->state = SIM_DONE;
    sim_leave();
    __builtin_unreachable();
}

static void fiber_entry() {
    sim_fiber_state *self = sim_running->current;
    sim_running->job->kernel->call(&self->self);
    self = sim_running->current;
    self->state = SIM_DONE;
    self->file = nullptr;
    sim_leave();
    __builtin_unreachable();
}

static void resume(sim_runner *runner, sim_fiber_state *fiber) {
    runner->current = fiber;
    sim_switch(&runner->scheduler, fiber->stack);
    runner->current = nullptr;
}

/* ---- called by kernels ---- */

const sim_thread *sim_self() {
    return &sim_running->current->self;
}

static void wait_at(sim_fiber_state *fiber, sim_state state, const char *file, int line) {
    fiber->state = state;
    fiber->file = file;
    fiber->line = line;
    sim_leave();
}

/* Two sets of slots: a lane that is ahead by one exchange writes to the other. */
static char *slots_of(const sim_runner *runner, uint32_t simdgroup, uint32_t exchange) {
    return runner->slots + ((size_t)simdgroup * 2 + (exchange & 1)) * SIM_SLOTS * SIM_SLOT;
}

char *sim_exchange(const void *value, size_t bytes, const char *file, int line, uint32_t *active_out) {
    sim_fiber_state *fiber = sim_running->current;
    char *slots = slots_of(sim_running, fiber->self.simdgroup, fiber->exchanges++);
    memcpy(slots + fiber->self.lane * SIM_SLOT, value, bytes);
    wait_at(fiber, SIM_AT_EXCHANGE, file, line);
    *active_out = fiber->active;
    return slots;
}

static void next_epoch(uint32_t *epoch) {
#ifdef SIM_CHECK
    if (++*epoch < SIM_EPOCHS_MAX) return;
    sim_defect("epochs", "more than %u barriers: too many for the detector", SIM_EPOCHS_MAX);
    sim_break();
#else
    (*epoch)++;
#endif
}

void sim_barrier(bool of_simdgroup, int flags, const char *file, int line) {
    sim_fiber_state *fiber = sim_running->current;
    wait_at(fiber, of_simdgroup ? SIM_AT_SIMD_BARRIER : SIM_AT_BARRIER, file, line);
    if (of_simdgroup) {
        if (flags != 0) next_epoch(&fiber->epoch_simd);
        return;
    }
    if (flags & 2) next_epoch(&fiber->epoch_threadgroup);
    if (flags & 1) next_epoch(&fiber->epoch_device);
}

/* Threadgroup memory between red zones, poisoned. */
static char *take_threadgroup(sim_runner *runner, size_t bytes, size_t alignment, int index) {
    const size_t begin = (runner->arena_used + RED_ZONE + alignment - 1) / alignment * alignment;
    if (begin + bytes + RED_ZONE > SIM_ARENA_BYTES) {
        sim_defect("threadgroup", "threadgroup memory is exhausted");
        if (runner->current != nullptr) sim_break();
        return nullptr;
    }
    memset(runner->arena + runner->arena_used, POISON, begin + bytes + RED_ZONE - runner->arena_used);
    runner->arena_used = begin + bytes;
    char *memory = runner->arena + begin;
#ifdef SIM_CHECK
    sim_check_forget(runner, memory, bytes);
#endif
    runner->ranges.push_back({memory, memory + bytes, false, true, index});
    return memory;
}

void *sim_threadgroup_array(const void *key, size_t bytes, size_t alignment) {
    sim_runner *runner = sim_running;
    for (const sim_array &array : runner->arrays) {
        if (array.key == key) return array.memory;
    }
    const int index = SIM_THREADGROUPS + (int)runner->arrays.size();
    char *memory = take_threadgroup(runner, bytes, std::max(alignment, (size_t)16), index);
    runner->arrays.push_back({key, memory});
    return memory;
}

/* ---- waits ---- */

/* Whether two lanes wait at the same place. */
static bool together(const sim_fiber_state &a, const sim_fiber_state &b) {
    return a.state == b.state && a.line == b.line && (a.file == b.file || strcmp(a.file, b.file) == 0);
}

static void report_divergence(const sim_fiber_state &a, const sim_fiber_state &b) {
    sim_defect("divergent " + std::to_string(a.line) + " " + std::to_string(b.line),
               "DIVERGENT: lane %u of simdgroup %u waits at %s (line %d), lane %u at %s (line %d)", a.self.lane,
               a.self.simdgroup, state_names[a.state], a.line, b.self.lane, state_names[b.state], b.line);
}

/* If all lanes of a simdgroup have come to one simdgroup operation, they go on. */
static bool settle(sim_runner *runner, uint32_t simdgroup) {
    sim_fiber_state *lanes = &runner->fibers[(size_t)simdgroup * SIM_LANES];
    sim_fiber_state *first = nullptr;
    uint32_t active = 0;
    bool has_ended = false;
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        sim_fiber_state &lane = lanes[i];
        if (lane.state == SIM_READY) return false;
        if (lane.state == SIM_DONE) {
            has_ended = true;
            continue;
        }
        if (first == nullptr) first = &lane;
        const bool of_simdgroup = lane.state != SIM_AT_BARRIER || first->state != SIM_AT_BARRIER;
        if (of_simdgroup && !together(*first, lane)) {
            report_divergence(*first, lane);
            runner->is_broken = true;
            return false;
        }
        active |= 1u << i;
    }
    if (first == nullptr || first->state == SIM_AT_BARRIER) return false;
    if (has_ended) {
        sim_defect("early " + std::to_string(first->line),
                   "EARLY RETURN: lanes of simdgroup %u have ended while others wait at %s (line %d)", simdgroup,
                   state_names[first->state], first->line);
        runner->is_broken = true;
        return false;
    }
    if (first->state == SIM_AT_EXCHANGE) {   /* no result yet */
        *(uint32_t *)(void *)(slots_of(runner, simdgroup, first->exchanges - 1) + (SIM_LANES + 1) * SIM_SLOT) = 0;
    }
    for (uint32_t i = 0; i < SIM_LANES; i++) {
        lanes[i].state = SIM_READY;
        lanes[i].active = active;
    }
    return true;
}

static void run_in_order(sim_runner *runner) {
    for (uint32_t simdgroup = 0; simdgroup < runner->threads / SIM_LANES; simdgroup++) {
        do {
            for (uint32_t i = 0; i < SIM_LANES; i++) {
                sim_fiber_state *fiber = &runner->fibers[(size_t)simdgroup * SIM_LANES + i];
                while (fiber->state == SIM_READY) {
                    resume(runner, fiber);
                    if (runner->is_broken) return;
                }
            }
        } while (settle(runner, simdgroup) && !runner->is_broken);
        if (runner->is_broken) return;
    }
}

static void run_at_random(sim_runner *runner) {
    std::vector<uint32_t> ready;
    for (uint32_t i = 0; i < runner->threads; i++) {
        if (runner->fibers[i].state == SIM_READY) ready.push_back(i);
    }
    while (!ready.empty()) {
        const size_t at = sim_random(runner) % ready.size();
        const uint32_t i = ready[at];
        resume(runner, &runner->fibers[i]);
        if (runner->is_broken) return;
        if (runner->fibers[i].state == SIM_READY) continue;
        ready[at] = ready.back();
        ready.pop_back();
        const uint32_t simdgroup = i / SIM_LANES;
        if (settle(runner, simdgroup)) {
            for (uint32_t lane = 0; lane < SIM_LANES; lane++) ready.push_back(simdgroup * SIM_LANES + lane);
        }
        if (runner->is_broken) return;
    }
}

/* Nobody is ready: all have ended, or all wait at one barrier and go on. False if the group is over. */
static bool pass_barrier(sim_runner *runner) {
    sim_fiber_state *first = nullptr;
    uint32_t waiting = 0;
    for (uint32_t i = 0; i < runner->threads; i++) {
        sim_fiber_state &fiber = runner->fibers[i];
        if (fiber.state == SIM_DONE) continue;
        waiting++;
        if (first == nullptr) first = &fiber;
        if (!together(*first, fiber)) {
            sim_defect("barriers", "BARRIER: threads wait at different barriers (lines %d and %d)", first->line,
                       fiber.line);
            return false;
        }
    }
    if (first == nullptr) return false;
    if (waiting < runner->threads) {
        sim_defect("barrier " + std::to_string(first->line),
                   "BARRIER: %u of %u threads wait at the threadgroup_barrier of line %d, the others have ended",
                   waiting, runner->threads, first->line);
        return false;
    }
    for (uint32_t i = 0; i < runner->threads; i++) runner->fibers[i].state = SIM_READY;
    return true;
}

/* ---- groups ---- */

static void start_fiber(sim_runner *runner, uint32_t i, const uint32_t *group) {
    const sim_job *job = runner->job;
    sim_fiber_state &fiber = runner->fibers[i];
    fiber = sim_fiber_state();
    fiber.low = runner->stacks + (size_t)i * STACK_BYTES;
    fiber.high = fiber.low + STACK_BYTES;
    fiber.stack = sim_fiber(fiber.high - i % STAGGER_STEPS * STAGGER_BYTES, fiber_entry);
    sim_thread &self = fiber.self;
    const uint32_t place[3] = {i % job->threads[0], i / job->threads[0] % job->threads[1],
                               i / (job->threads[0] * job->threads[1])};
    for (int axis = 0; axis < 3; axis++) {
        self.position_in_group[axis] = place[axis];
        self.group_position[axis] = group[axis];
        self.position_in_grid[axis] = group[axis] * job->threads[axis] + place[axis];
        self.group_threads[axis] = job->threads[axis];
        self.grid_groups[axis] = job->groups[axis];
        self.grid_threads[axis] = job->groups[axis] * job->threads[axis];
    }
    self.index = i;
    self.lane = i % SIM_LANES;
    self.simdgroup = i / SIM_LANES;
    self.simdgroup_count = runner->threads / SIM_LANES;
    self.buffers = job->buffers;
    self.threadgroups = runner->threadgroups;
}

/* Bytes between the pieces of threadgroup memory that are no longer what they were: also kernels that the compiler does
 * not watch are caught. */
static void check_red_zones(sim_runner *runner) {
    const char *at = runner->arena;
    const char *const end = at + (runner->arena_used > 0 ? runner->arena_used + RED_ZONE : 0);
    while (at < end) {
        const sim_range *inside = nullptr;
        for (const sim_range &range : runner->ranges) {
            if (range.is_threadgroup && at >= range.begin && at < range.end) inside = &range;
        }
        if (inside != nullptr) {
            at = inside->end;
        } else if ((unsigned char)*at++ != POISON) {
            sim_defect("red zone", "OUT OF BOUNDS: beside threadgroup memory a byte was written");
            return;
        }
    }
}

static void run_group(sim_runner *runner, uint32_t number) {
    const sim_job *job = runner->job;
    const uint32_t group[3] = {number % job->groups[0], number / job->groups[0] % job->groups[1],
                               number / job->groups[0] / job->groups[1]};
    runner->group = number;
    runner->arena_used = 0;
    runner->arrays.clear();
    runner->ranges = job->ranges;
    runner->last_range = 0;
    if (job->threadgroup_bytes > 0) {
        runner->threadgroups[0] = take_threadgroup(runner, job->threadgroup_bytes, 16, 0);
        if (runner->threadgroups[0] == nullptr) return;
    }
    for (uint32_t i = 0; i < runner->threads; i++) start_fiber(runner, i, group);
    do {
        if (job->schedule.seed == 0) run_in_order(runner);
        else run_at_random(runner);
    } while (!runner->is_broken && pass_barrier(runner));
    check_red_zones(runner);
}

static sim_runner *runner_of_process() {
    static sim_runner *runner = new sim_runner;
    if (runner->stacks == nullptr) {
        runner->fibers.resize(SIM_GROUP_THREADS_MAX);
        runner->stacks = (char *)mmap(nullptr, SIM_GROUP_THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        runner->slots = (char *)malloc((size_t)SIM_GROUP_THREADS_MAX / SIM_LANES * 2 * SIM_SLOTS * SIM_SLOT);
        runner->arena = (char *)aligned_alloc(4096, SIM_ARENA_BYTES);
#ifdef SIM_CHECK
        runner->arena_cells = (sim_cell *)calloc(SIM_ARENA_BYTES, sizeof(sim_cell));
#endif
    }
    return runner;
}

std::string sim_run(const sim_job &job) {
    sim_runner *runner = sim_running = runner_of_process();
    runner->job = &job;
    runner->threads = job.threads[0] * job.threads[1] * job.threads[2];
    runner->dispatch++;
    runner->random = job.schedule.seed * 0x9E3779B97F4A7C15ull + 1;
    runner->is_broken = false;
    runner->seen.clear();
    runner->defects.clear();
    const uint32_t groups = job.groups[0] * job.groups[1] * job.groups[2];
    for (uint32_t i = 0; i < groups && runner->defects.empty(); i++) {
        run_group(runner, (uint32_t)((i + job.schedule.seed) % groups));
    }
    return runner->defects;
}
