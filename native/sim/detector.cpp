/* detector.cpp - races, bounds, alignment, threadgroup memory that nobody wrote. Only the check build has it.
 *
 * Kernels are compiled with -fsanitize=thread, which makes the compiler call __tsan_* at every access, and linked with
 * these functions in place of that sanitizer's: order here is a GPU's. Two accesses to a byte by two threads are in
 * order if a barrier that orders that kind of memory lies between them in their group, or a simdgroup barrier in their
 * simdgroup; dispatches are in order with each other. A byte remembers its last write and two reads. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <unordered_map>

#include "runtime.hpp"

#define PAGE_BYTES 4096u

/* Where in this library: tools/gpu/symbols.py turns the offset into a line. */
static std::string where(const void *pc) {
    Dl_info info;
    char text[64];
    if (dladdr(pc, &info) == 0) return "?";
    snprintf(text, sizeof(text), "+0x%lx", (unsigned long)((const char *)pc - (const char *)info.dli_fbase - 1));
    return text;
}

const char *sim_memory_name(const sim_range &range) {
    return range.is_threadgroup ? "threadgroup" : "buffer";
}

void sim_check_forget(sim_runner *runner, const char *from, size_t bytes) {
    memset((void *)(runner->arena_cells + (from - runner->arena)), 0, bytes * sizeof(sim_cell));
}

/* Notes of memory that is no threadgroup's, made page by page. */
static sim_cell *cell_of(const char *address) {
    static std::unordered_map<uintptr_t, sim_cell *> *pages = new std::unordered_map<uintptr_t, sim_cell *>;
    sim_cell *&page = (*pages)[(uintptr_t)address / PAGE_BYTES];
    if (page == nullptr) page = (sim_cell *)calloc(PAGE_BYTES, sizeof(sim_cell));
    return page + (uintptr_t)address % PAGE_BYTES;
}

static bool is_ordered(const sim_record &before, const sim_record &now, uint32_t group_threads) {
    if (before.thread == 0 || before.dispatch != now.dispatch || before.thread == now.thread) return true;
    const uint32_t a = (uint32_t)before.thread - 1, b = (uint32_t)now.thread - 1;
    if (a / group_threads != b / group_threads) return false;
    if (before.epoch != now.epoch) return before.epoch < now.epoch;
    return a % group_threads / SIM_LANES == b % group_threads / SIM_LANES && before.simd_epoch < now.simd_epoch;
}

static bool may_meet(const sim_record &before, const sim_record &now, uint32_t group_threads) {
    return is_ordered(before, now, group_threads) || (before.is_atomic && now.is_atomic);
}

static void report_race(const sim_runner *runner, const sim_range &range, const char *address, const sim_record &before,
                        const char *what_before, const sim_record &now, const char *what, const void *pc) {
    const std::string place = where(pc);
    const uint32_t threads = runner->threads;
    sim_defect("race " + place + what_before,
               "RACE: %s of %s[%d] byte %ld by thread %u of group %u has no order with a %s by thread %u of group %u, "
               "at %s",
               what, sim_memory_name(range), range.index, (long)(address - range.begin),
               (uint32_t)(now.thread - 1) % threads, (uint32_t)(now.thread - 1) / threads, what_before,
               (uint32_t)(before.thread - 1) % threads, (uint32_t)(before.thread - 1) / threads, place.c_str());
}

/* Whether address is a part of the simulator that kernels read: slots, arguments, their own constants. */
static bool is_simulator(const sim_runner *runner, const char *address) {
    const char *const regions[][2] = {
        {runner->slots, runner->slots + (size_t)SIM_GROUP_THREADS_MAX / SIM_LANES * 2 * SIM_SLOTS * SIM_SLOT},
        {(const char *)runner->fibers.data(), (const char *)(runner->fibers.data() + runner->fibers.size())},
        {(const char *)runner->job, (const char *)(runner->job + 1)},
        {(const char *)runner->threadgroups, (const char *)(runner->threadgroups + SIM_THREADGROUPS)},
    };
    for (const auto &region : regions) {
        if (address >= region[0] && address < region[1]) return true;
    }
    Dl_info here, there;
    return dladdr((const void *)&is_simulator, &here) != 0 && dladdr(address, &there) != 0 &&
           here.dli_fbase == there.dli_fbase;
}

static const sim_range *find_range(sim_runner *runner, const char *address, size_t bytes) {
    const std::vector<sim_range> &ranges = runner->ranges;
    const auto holds = [&](size_t i) { return address >= ranges[i].begin && address + bytes <= ranges[i].end; };
    if (runner->last_range < ranges.size() && holds(runner->last_range)) return &ranges[runner->last_range];
    for (size_t i = 0; i < ranges.size(); i++) {
        if (!holds(i)) continue;
        runner->last_range = i;
        return &ranges[i];
    }
    return nullptr;
}

[[noreturn]] static void report_bounds(const sim_runner *runner, const char *address, size_t bytes, bool is_write,
                                       const void *pc) {
    const sim_range *near = nullptr;
    long best = 0;
    for (const sim_range &range : runner->ranges) {
        const long distance = address >= range.end ? address - range.end + 1 : range.end - address;
        if (near != nullptr && distance >= best) continue;
        near = &range;
        best = distance;
    }
    const std::string place = where(pc);
    sim_defect("bounds " + place,
               "OUT OF BOUNDS: %zu-byte %s by thread %u of group %u at %s; the nearest is %s[%d] of %ld bytes, from "
               "its byte %ld on",
               bytes, is_write ? "write" : "read", runner->current->self.index, runner->group, place.c_str(),
               near == nullptr ? "nothing" : sim_memory_name(*near), near == nullptr ? -1 : near->index,
               near == nullptr ? 0l : (long)(near->end - near->begin),
               near == nullptr ? 0l : (long)(address - near->begin));
    sim_break();
}

static void note_read(sim_cell *cell, const sim_record &now, uint32_t group_threads) {
    const sim_record &old = cell->read;
    const bool same_group = (old.thread - 1) / group_threads == (now.thread - 1) / group_threads;
    const bool replaces = old.thread == now.thread || old.thread == 0 || old.dispatch != now.dispatch ||
                          (old.epoch < now.epoch && same_group);
    (replaces ? cell->read : cell->other_read) = now;
}

/* One byte; false if it was reported. */
static bool check_byte(sim_runner *runner, const sim_range &range, const char *address, bool is_write,
                       const sim_record &now, const void *pc) {
    sim_cell *cell = range.is_threadgroup ? runner->arena_cells + (address - runner->arena) : cell_of(address);
    const uint32_t threads = runner->threads;
    if (!may_meet(cell->write, now, threads)) {
        report_race(runner, range, address, cell->write, "write", now, is_write ? "a write" : "a read", pc);
        return false;
    }
    if (!is_write) {
        if (range.is_threadgroup && cell->write.thread == 0) {
            const std::string place = where(pc);
            sim_defect("unwritten " + place,
                       "UNWRITTEN: threadgroup[%d] byte %ld is read before any thread of group %u wrote it, at %s",
                       range.index, (long)(address - range.begin), runner->group, place.c_str());
            return false;
        }
        note_read(cell, now, threads);
        return true;
    }
    for (const sim_record *read : {&cell->read, &cell->other_read}) {
        if (may_meet(*read, now, threads)) continue;
        report_race(runner, range, address, *read, "read", now, "a write", pc);
        return false;
    }
    cell->write = now;
    return true;
}

static void access(const char *address, size_t bytes, bool is_write, bool is_atomic, size_t alignment, const void *pc) {
    sim_runner *runner = sim_running;
    if (runner == nullptr || runner->current == nullptr || bytes == 0) return;
    const sim_fiber_state *fiber = runner->current;
    if (address >= fiber->low && address < fiber->high) return;   /* its own */
    const sim_range *range = find_range(runner, address, bytes);
    if (range == nullptr) {
        if (is_simulator(runner, address)) return;
        report_bounds(runner, address, bytes, is_write, pc);
    }
    if ((uintptr_t)address % alignment != 0) {
        const std::string place = where(pc);
        sim_defect("alignment " + place, "MISALIGNED: %zu-byte %s of %s[%d] at its byte %ld, at %s", bytes,
                   is_write ? "write" : "read", sim_memory_name(*range), range->index, (long)(address - range->begin),
                   place.c_str());
        sim_break();
    }
    if (range->is_const && is_write) {
        const std::string place = where(pc);
        sim_defect("const " + place, "WRITE TO CONST: buffer[%d] at %s", range->index, place.c_str());
        sim_break();
    }
    if (!range->is_const) {
        sim_record now = {};
        now.thread = runner->group * runner->threads + fiber->self.index + 1;
        now.epoch = (uint16_t)(range->is_threadgroup ? fiber->epoch_threadgroup : fiber->epoch_device);
        now.simd_epoch = (uint16_t)(fiber->epoch_simd & SIM_EPOCHS_MAX);
        now.is_atomic = is_atomic;
        now.dispatch = runner->dispatch;
        for (size_t i = 0; i < bytes && check_byte(runner, *range, address + i, is_write, now, pc); i++) {
        }
    }
    const uint32_t yield_ppm = runner->job->schedule.yield_ppm;
    if (yield_ppm > 0 && sim_random(runner) % 1000000 < yield_ppm) sim_leave();
}

/* ---- what the compiler calls ---- */

#define PC __builtin_return_address(0)
#define READ(address, bytes, alignment) access((const char *)(address), bytes, false, false, alignment, PC)
#define WRITE(address, bytes, alignment) access((const char *)(address), bytes, true, false, alignment, PC)
#define SIZED(n)                                                                              \
    void __tsan_read##n(void *p) { READ(p, n, n); }                                           \
    void __tsan_write##n(void *p) { WRITE(p, n, n); }                                         \
    void __tsan_unaligned_read##n(void *p) { READ(p, n, 1); }                                 \
    void __tsan_unaligned_write##n(void *p) { WRITE(p, n, 1); }                               \
    void __tsan_read_write##n(void *p) { READ(p, n, n); WRITE(p, n, n); }                     \
    void __tsan_unaligned_read_write##n(void *p) { READ(p, n, 1); WRITE(p, n, 1); }
#define ATOMIC(p, is_write) access((const char *)(p), sizeof(*(p)), is_write, true, sizeof(*(p)), PC)
#define ATOMICS(bits, T)                                                                                    \
    T __tsan_atomic##bits##_load(const volatile T *p, int) { ATOMIC(p, false); return *p; }                 \
    void __tsan_atomic##bits##_store(volatile T *p, T v, int) { ATOMIC(p, true); *p = v; }                  \
    T __tsan_atomic##bits##_exchange(volatile T *p, T v, int) { ATOMIC(p, true); T o = *p; *p = v; return o; } \
    int __tsan_atomic##bits##_compare_exchange_weak(volatile T *p, T *e, T v, int, int) {                   \
        ATOMIC(p, true);                                                                                    \
        if (*p == *e) { *p = v; return 1; }                                                                 \
        *e = *p;                                                                                            \
        return 0;                                                                                           \
    }                                                                                                       \
    int __tsan_atomic##bits##_compare_exchange_strong(volatile T *p, T *e, T v, int a, int b) {             \
        return __tsan_atomic##bits##_compare_exchange_weak(p, e, v, a, b);                                  \
    }                                                                                                       \
    T __tsan_atomic##bits##_compare_exchange_val(volatile T *p, T e, T v, int, int) {                       \
        ATOMIC(p, true);                                                                                    \
        T o = *p;                                                                                           \
        if (o == e) *p = v;                                                                                 \
        return o;                                                                                           \
    }

#pragma GCC visibility push(hidden)
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit() {}
SIZED(1) SIZED(2) SIZED(4) SIZED(8) SIZED(16)
void __tsan_read_range(void *p, size_t n) { READ(p, n, 1); }
void __tsan_write_range(void *p, size_t n) { WRITE(p, n, 1); }
void *__tsan_memcpy(void *to, const void *from, size_t n) {
    READ(from, n, 1);
    WRITE(to, n, 1);
    return memcpy(to, from, n);
}
void *__tsan_memmove(void *to, const void *from, size_t n) {
    READ(from, n, 1);
    WRITE(to, n, 1);
    return memmove(to, from, n);
}
void *__tsan_memset(void *to, int value, size_t n) {
    WRITE(to, n, 1);
    return memset(to, value, n);
}
ATOMICS(32, uint32_t)
ATOMICS(64, uint64_t)
}
#pragma GCC visibility pop
