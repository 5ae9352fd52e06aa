/* sim_kernel.hpp - between a kernel that was made C++ and what executes it: what a thread knows, what a kernel may ask
 * for, and the tables that a kernel file ends with. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum sim_kind {
    SIM_BUFFER,
    SIM_THREADGROUP,
    SIM_THREAD_POSITION_IN_GRID,
    SIM_THREAD_POSITION_IN_THREADGROUP,
    SIM_THREADGROUP_POSITION_IN_GRID,
    SIM_THREADS_PER_GRID,
    SIM_THREADS_PER_THREADGROUP,
    SIM_THREADGROUPS_PER_GRID,
    SIM_THREAD_INDEX_IN_THREADGROUP,
    SIM_THREAD_INDEX_IN_SIMDGROUP,
    SIM_SIMDGROUP_INDEX_IN_THREADGROUP,
    SIM_SIMDGROUPS_PER_THREADGROUP,
    SIM_THREADS_PER_SIMDGROUP
};

#define SIM_LANES 32
/* [[buffer(n)]] and [[threadgroup(n)]]: n is below these. */
#define SIM_BUFFERS 13
#define SIM_THREADGROUPS 1
/* A lane hands at most so many bytes to the others. Behind the lanes' slots lie one for a result that is equal in
 * all of them, and one that says whether it is there. */
#define SIM_SLOT 64
#define SIM_SLOTS (SIM_LANES + 2)

struct sim_thread {
    uint32_t position_in_grid[3], position_in_group[3], group_position[3];
    uint32_t grid_threads[3], group_threads[3], grid_groups[3];
    uint32_t index, lane, simdgroup, simdgroup_count;
    void *const *buffers;
    void *const *threadgroups;
};

struct sim_parameter {
    sim_kind kind;
    int index;
    const char *name;
    size_t size;        /* of what it points or refers to */
    bool is_reference;
    bool is_const;
};

struct sim_kernel {
    const char *name;
    void (*call)(const sim_thread *self);
    const sim_parameter *parameters;
    size_t parameter_count;
};

struct sim_constant {
    int index;
    void *address;      /* of the variable that stands for a function constant */
    size_t size;
};

/* What one kernel file has; files that are linked find the list when they are loaded. */
struct sim_unit {
    const char *name;
    const sim_kernel *kernels;
    size_t kernel_count;
    const sim_constant *constants;
    size_t constant_count;
    sim_unit *next;
};
extern sim_unit *sim_units;

/* ---- called by kernels ---- */

const sim_thread *sim_self();
/* Lays down bytes (at most SIM_SLOT), waits for the simdgroup, and returns its SIM_SLOTS slots; bit n of *active_out is
 * set if lane n is there. */
char *sim_exchange(const void *value, size_t bytes, const char *file, int line, uint32_t *active_out);
/* flags as mem_flags. */
void sim_barrier(bool of_simdgroup, int flags, const char *file, int line);
/* The same address for all threads of a group; key is the declaration. */
void *sim_threadgroup_array(const void *key, size_t bytes, size_t alignment);
