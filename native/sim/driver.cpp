/* driver.cpp - the simulator as a GPU driver.
 *
 * It does nothing before it must: what is encoded waits in a list until somebody waits for it, and memory that the host
 * changes (slots of streamed experts) is a copy that publish brings up to date. So whoever forgets to wait, or to
 * publish, or overwrites what is not yet done with gets wrong numbers, as on the slowest of devices.
 *
 * It is strict: an operand must lie in memory that it knows, every binding of a kernel must be bound and nothing
 * else, numbers must have the size of their struct, limits are the smallest of Metal's devices, memory is not given
 * back while work is under way. What a call did wrong is a fault, and finish returns it.
 *
 * libglm52_sim.so runs kernels; libglm52_simcheck.so, built with SIM_CHECK, looks at every access as well. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <map>
#include <mutex>
#include <set>
#include <string>

#include "driver.h"
#include "runtime.hpp"

#define ALIGNMENT 256
/* In memory that was never published: no number of any type of weights. */
#define UNPUBLISHED 0xff
#define EXPORT __attribute__((visibility("default")))

struct glm52_gpu_pipeline {
    const sim_kernel *kernel;
    struct glm52_gpu_constants constants;
};

struct span {
    size_t bytes;
    bool is_adopted;
    char *copy;          /* of memory that will change; NULL: the memory itself */
};

/* What was encoded. */
struct command {
    enum { DISPATCH, WRITE, CLEAR, PUBLISH } kind;
    const glm52_gpu_pipeline *made;
    glm52_gpu_dispatch dispatch;         /* operands are where kernels find them */
    std::vector<char> bytes;             /* args; what is written */
    std::vector<const void *> uses;
    char *to;
    const char *from;
    size_t count;
    size_t left[GLM52_GPU_OPERANDS_MAX]; /* bytes from an operand to the end of its memory */
};

struct glm52_gpu_state {
    glm52_gpu_fail *fail;
    std::map<const char *, span> spans;      /* by first address */
    std::map<std::string, glm52_gpu_pipeline *> pipelines;
    std::vector<command> waiting;
    std::string fault;
    uint64_t signalled;
};

/* Runs are one at a time in a process: the runner and the kernels' constants are the process's. */
static std::mutex run_lock;
static sim_schedule schedule;
static uint64_t dispatches;

/* For tests, which find it in the library: another order of threads, and in the check build stops at accesses. */
extern "C" EXPORT void glm52_sim_schedule(uint64_t seed, uint32_t yield_ppm) {
    schedule = {seed, yield_ppm};
}
/* Dispatches of this process so far. */
extern "C" EXPORT uint64_t glm52_sim_dispatches(void) {
    return dispatches;
}

static void keep_fault(glm52_gpu_state *state, const std::string &text) {
    if (state->fault.empty()) state->fault = text;
}

static glm52_status open_sim(glm52_gpu_fail *fail, glm52_gpu_state **state_out) {
    glm52_gpu_state *state = new (std::nothrow) glm52_gpu_state();
    if (state == nullptr) return fail(GLM52_ERR_MEMORY, "no memory for a simulated device");
    state->fail = fail;
    *state_out = state;
    return GLM52_OK;
}

static void close_sim(glm52_gpu_state *state) {
    if (state == nullptr) return;
    for (const auto &entry : state->spans) {
        if (!entry.second.is_adopted) free((void *)entry.first);
        free(entry.second.copy);
    }
    for (const auto &entry : state->pipelines) delete entry.second;
    delete state;
}

static void limits(const glm52_gpu_state *, glm52_gpu_limits *out) {
    *out = glm52_gpu_limits();
    snprintf(out->device, sizeof(out->device), "simulated");
    out->buffer_max = UINT64_MAX;
    out->threads_max = SIM_GROUP_THREADS_MAX;
    out->threadgroup_bytes = SIM_THREADGROUP_BYTES_MAX;
    out->unified = true;
}

/* ---- memory ---- */

static void *allocate(glm52_gpu_state *state, size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX - ALIGNMENT) return nullptr;
    void *memory = aligned_alloc(ALIGNMENT, (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    if (memory == nullptr) return nullptr;
    memset(memory, 0, bytes);
    state->spans[(const char *)memory] = {bytes, false, nullptr};
    return memory;
}

/* Memory may go only when nobody is to use it any more. */
static void check_idle(glm52_gpu_state *state, const char *what) {
    if (!state->waiting.empty()) keep_fault(state, std::string(what) + " while work is under way");
}

static void release(glm52_gpu_state *state, void *address) {
    if (address == nullptr) return;
    check_idle(state, "release");
    const auto found = state->spans.find((const char *)address);
    if (found == state->spans.end() || found->second.is_adopted) {
        keep_fault(state, "release of memory that allocate did not give");
        return;
    }
    state->spans.erase(found);
    free(address);
}

/* The span that holds address, or end. */
static std::map<const char *, span>::const_iterator find_span(const glm52_gpu_state *state, const void *address) {
    auto found = state->spans.upper_bound((const char *)address);
    if (found == state->spans.begin()) return state->spans.end();
    --found;
    return (const char *)address < found->first + found->second.bytes ? found : state->spans.end();
}

static glm52_status adopt(glm52_gpu_state *state, const void *host, size_t bytes, bool will_change) {
    const char *begin = (const char *)host;
    const auto next = state->spans.lower_bound(begin);
    if (bytes == 0 || (next != state->spans.end() && next->first < begin + bytes) ||
        find_span(state, begin) != state->spans.end()) {
        return state->fail(GLM52_ERR_ARGUMENT, "adopt: %zu bytes at %p overlap memory that is known already", bytes,
                           host);
    }
    char *copy = will_change ? (char *)malloc(bytes) : nullptr;
    if (will_change && copy == nullptr) return state->fail(GLM52_ERR_MEMORY, "adopt: no memory for %zu bytes", bytes);
    if (copy != nullptr) memset(copy, UNPUBLISHED, bytes);
    state->spans[begin] = {bytes, true, copy};
    return GLM52_OK;
}

static void disown(glm52_gpu_state *state, const void *host) {
    const auto found = state->spans.find((const char *)host);
    if (found == state->spans.end() || !found->second.is_adopted) {
        keep_fault(state, "disown of memory that was not adopted");
        return;
    }
    check_idle(state, "disown");
    free(found->second.copy);
    state->spans.erase(found);
}

static bool is_known(glm52_gpu_state *state, const char *what, const void *address, size_t bytes) {
    const auto found = find_span(state, address);
    if (found != state->spans.end() && bytes <= (size_t)(found->first + found->second.bytes - (const char *)address)) {
        return true;
    }
    char text[160];
    snprintf(text, sizeof(text), "%s: %zu bytes at %p are no memory of this device", what, bytes, address);
    keep_fault(state, text);
    return false;
}

/* Where kernels find an address, which lies in memory that is known. */
static char *seen_at(const glm52_gpu_state *state, const void *address) {
    const auto found = find_span(state, address);
    if (found->second.copy == nullptr) return (char *)address;
    return found->second.copy + ((const char *)address - found->first);
}

static void publish(glm52_gpu_state *state, const void *host, size_t bytes) {
    if (!is_known(state, "publish", host, bytes)) return;
    if (find_span(state, host)->second.copy == nullptr) {
        keep_fault(state, "publish of memory that does not change");
        return;
    }
    command made = {};
    made.kind = command::PUBLISH;
    made.to = seen_at(state, host);
    made.from = (const char *)host;
    made.count = bytes;
    state->waiting.push_back(made);
}

static void run_waiting(glm52_gpu_state *state);

static void read_memory(glm52_gpu_state *state, void *host, const void *address, size_t bytes) {
    run_waiting(state);
    if (bytes > 0 && is_known(state, "read", address, bytes)) memcpy(host, seen_at(state, address), bytes);
}

static void write_memory(glm52_gpu_state *state, void *address, const void *host, size_t bytes) {
    if (bytes == 0 || !is_known(state, "write", address, bytes)) return;
    command made = {};
    made.kind = command::WRITE;
    made.to = seen_at(state, address);
    made.bytes.assign((const char *)host, (const char *)host + bytes);
    state->waiting.push_back(made);
}

static void clear(glm52_gpu_state *state, void *address, size_t bytes) {
    if (bytes == 0 || !is_known(state, "clear", address, bytes)) return;
    command made = {};
    made.kind = command::CLEAR;
    made.to = seen_at(state, address);
    made.count = bytes;
    state->waiting.push_back(made);
}

static uint64_t device_address(glm52_gpu_state *state, const void *address) {
    return is_known(state, "device_address", address, 1) ? (uint64_t)(uintptr_t)seen_at(state, address) : 0;
}

/* ---- kernels ---- */

static const sim_kernel *find_kernel(const char *name) {
    for (const sim_unit *unit = sim_units; unit != nullptr; unit = unit->next) {
        for (size_t i = 0; i < unit->kernel_count; i++) {
            if (strcmp(unit->kernels[i].name, name) == 0) return &unit->kernels[i];
        }
    }
    return nullptr;
}

static glm52_status pipeline(glm52_gpu_state *state, const char *name, const glm52_gpu_constants *constants,
                             glm52_gpu_pipeline **pipeline_out) {
    const sim_kernel *kernel = find_kernel(name);
    if (kernel == nullptr) return state->fail(GLM52_ERR_UNSUPPORTED, "there is no kernel %s", name);
    const std::string key = std::string(name) + std::string((const char *)constants, sizeof(*constants));
    glm52_gpu_pipeline *&made = state->pipelines[key];
    if (made == nullptr) made = new glm52_gpu_pipeline{kernel, *constants};
    *pipeline_out = made;
    return GLM52_OK;
}

static void set_constants(const glm52_gpu_constants &constants) {
    uint32_t values[GLM52_GPU_CONSTANT_COUNT];
    static_assert(sizeof(values) == sizeof(constants), "a constant is a uint32_t");
    memcpy(values, &constants, sizeof(values));
    for (const sim_unit *unit = sim_units; unit != nullptr; unit = unit->next) {
        for (size_t i = 0; i < unit->constant_count; i++) {
            memcpy(unit->constants[i].address, &values[unit->constants[i].index], unit->constants[i].size);
        }
    }
}

/* What is wrong with a dispatch before it runs, or nothing. */
static std::string refuse(const glm52_gpu_state *state, const sim_kernel *kernel, const glm52_gpu_dispatch *d) {
    const uint64_t threads = (uint64_t)d->threads[0] * d->threads[1] * d->threads[2];
    if (threads == 0 || threads > SIM_GROUP_THREADS_MAX || threads % SIM_LANES != 0) {
        return std::to_string(threads) + " threads of a group";
    }
    if (d->groups[0] == 0 || d->groups[1] == 0 || d->groups[2] == 0) return "a grid of no groups";
    if (d->threadgroup_bytes > SIM_THREADGROUP_BYTES_MAX || d->threadgroup_bytes % 16 != 0) {
        return std::to_string(d->threadgroup_bytes) + " bytes of threadgroup memory";
    }
    uint32_t bound = 0;
    bool has_threadgroup = false;
    for (size_t i = 0; i < kernel->parameter_count; i++) {
        const sim_parameter &p = kernel->parameters[i];
        if (p.kind == SIM_THREADGROUP) has_threadgroup = true;
        if (p.kind != SIM_BUFFER) continue;
        if (p.index == 0) {
            if (!p.is_reference || p.size != d->args_bytes) {
                return "args of " + std::to_string(d->args_bytes) + " bytes, not " + std::to_string(p.size);
            }
            continue;
        }
        const void *address = (uint32_t)p.index <= d->operand_count ? d->operands[p.index - 1] : nullptr;
        if (address == nullptr) return std::string(p.name) + " is not bound";
        if (find_span(state, address) == state->spans.end()) {
            return std::string(p.name) + " is no memory of this device";
        }
        bound |= 1u << (p.index - 1);
    }
    for (uint32_t i = 0; i < d->operand_count; i++) {
        if (d->operands[i] != nullptr && !(bound >> i & 1)) {
            return "operand " + std::to_string(i) + " is not the kernel's";
        }
    }
    const bool fits = has_threadgroup == (d->threadgroup_bytes > 0);
    return fits ? "" : "threadgroup memory without a parameter, or none with one";
}

#ifdef SIM_CHECK
static bool overlap(const sim_range &a, const sim_range &b) {
    return a.begin < b.end && b.begin < a.end;
}

/* Each binding reaches to the end of what its address lies in; memory reached through a table is all of its span. */
static void add_ranges(const glm52_gpu_state *state, const command &made, sim_job *job) {
    const glm52_gpu_dispatch *d = &made.dispatch;
    for (size_t i = 0; i < job->kernel->parameter_count; i++) {
        const sim_parameter &p = job->kernel->parameters[i];
        if (p.kind != SIM_BUFFER) continue;
        const char *address = (const char *)job->buffers[p.index];
        const char *end = address + (p.index == 0 ? d->args_bytes : made.left[p.index - 1]);
        job->ranges.push_back({address, end, p.is_const, false, p.index});
    }
    std::set<const char *> used;
    for (uint32_t i = 0; i < d->use_count; i++) {
        const auto span = find_span(state, d->uses[i]);
        if (span == state->spans.end() || !used.insert(span->first).second) continue;
        const char *begin = seen_at(state, span->first);
        job->ranges.push_back({begin, begin + span->second.bytes, true, false, -1});
    }
    for (sim_range &a : job->ranges) {   /* what is written through another binding is no constant */
        for (const sim_range &b : job->ranges) {
            if (!b.is_const && overlap(a, b)) a.is_const = false;
        }
    }
}
#endif

static void dispatch(glm52_gpu_state *state, const glm52_gpu_pipeline *pipeline_made, const glm52_gpu_dispatch *d) {
    if (!state->fault.empty()) return;
    const std::string refused = refuse(state, pipeline_made->kernel, d);
    if (!refused.empty()) {
        keep_fault(state, std::string("kernel ") + pipeline_made->kernel->name + ": " + refused);
        return;
    }
    command made = {};
    made.kind = command::DISPATCH;
    made.made = pipeline_made;
    made.dispatch = *d;
    made.bytes.assign((const char *)d->args, (const char *)d->args + d->args_bytes);
    made.uses.assign(d->uses, d->uses + d->use_count);
    for (uint32_t i = 0; i < d->operand_count; i++) {
        if (d->operands[i] == nullptr) continue;
        const auto span = find_span(state, d->operands[i]);
        made.left[i] = (size_t)(span->first + span->second.bytes - (const char *)d->operands[i]);
        made.dispatch.operands[i] = seen_at(state, d->operands[i]);
    }
    state->waiting.push_back(made);
}

static void run_dispatch(glm52_gpu_state *state, command &made) {
    const std::lock_guard<std::mutex> lock(run_lock);
    alignas(16) char args[GLM52_GPU_ARGS_MAX];
    glm52_gpu_dispatch &d = made.dispatch;
    sim_job job = {};
    job.kernel = made.made->kernel;
    memcpy(job.groups, d.groups, sizeof(job.groups));
    memcpy(job.threads, d.threads, sizeof(job.threads));
    job.threadgroup_bytes = d.threadgroup_bytes;
    job.schedule = schedule;
    memcpy(args, made.bytes.data(), made.bytes.size());
    d.uses = made.uses.data();
    job.buffers[0] = args;
    for (uint32_t i = 0; i < d.operand_count; i++) job.buffers[i + 1] = (void *)d.operands[i];
#ifdef SIM_CHECK
    add_ranges(state, made, &job);
#endif
    set_constants(made.made->constants);
    dispatches++;
    const std::string defects = sim_run(job);
    if (!defects.empty()) keep_fault(state, defects);
}

/* Behind a fault nothing is done any more. */
static void run_waiting(glm52_gpu_state *state) {
    for (command &made : state->waiting) {
        if (!state->fault.empty()) break;
        if (made.kind == command::DISPATCH) run_dispatch(state, made);
        if (made.kind == command::WRITE) memcpy(made.to, made.bytes.data(), made.bytes.size());
        if (made.kind == command::CLEAR) memset(made.to, 0, made.count);
        if (made.kind == command::PUBLISH) memcpy(made.to, made.from, made.count);
    }
    state->waiting.clear();
}

/* ---- order ---- */

static void flush(glm52_gpu_state *) {}

static uint64_t signal_value(glm52_gpu_state *state) {
    return ++state->signalled;
}

static glm52_status wait_host(glm52_gpu_state *state, uint64_t value) {
    run_waiting(state);
    return value <= state->signalled ? GLM52_OK : state->fail(GLM52_ERR_ARGUMENT, "a fence that nothing signals");
}

static glm52_status finish(glm52_gpu_state *state) {
    run_waiting(state);
    if (state->fault.empty()) return GLM52_OK;
    const std::string fault = state->fault;
    state->fault.clear();
    return state->fail(GLM52_ERR_IO, "%s", fault.c_str());
}

static uint64_t device_ns(const glm52_gpu_state *) {
    return 0;
}

#ifdef SIM_CHECK
#define DRIVER glm52_gpu_driver_simcheck
#define NAME "simcheck"
#else
#define DRIVER glm52_gpu_driver_sim
#define NAME "sim"
#endif

extern "C" EXPORT const struct glm52_gpu_driver DRIVER;
const struct glm52_gpu_driver DRIVER = {
    NAME,    open_sim,     close_sim,    limits, allocate,       release,  adopt,    disown,
    publish, read_memory,  write_memory, clear,  device_address, pipeline, dispatch, flush,
    signal_value, wait_host, nullptr, nullptr, finish, device_ns,
    nullptr, nullptr,
};
