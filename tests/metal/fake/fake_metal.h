/* fake_metal.h - how a test steers the fake Metal framework, and what it is told. The driver never includes it.
 *
 * The framework has one device, whose queues run command buffers in order on threads of their own. Kernels are run by
 * an executor that the test brings. Faults are injected by name; wrong uses of the API are written down. */
#ifndef GLM52_FAKE_METAL_H
#define GLM52_FAKE_METAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FM_BINDINGS 31
#define FM_CONSTANTS 8
/* Of device addresses: a kernel that is handed the host's own instead is found out. */
#define FM_ADDRESS_TAG ((uint64_t)0xA5 << 56)

struct fm_binding {
    uint8_t *memory;      /* NULL: nothing is bound */
    size_t bytes;         /* to the end of the buffer */
};

struct fm_run {
    const void *kernel;   /* of find */
    uint32_t groups[3], threads[3];
    struct fm_binding buffers[FM_BINDINGS]; /* what was bound since the pipeline was set */
    size_t threadgroup_bytes;
    const void **resident; /* beginnings of the buffers that the dispatch may reach */
    uint32_t resident_count;
    void *commands;       /* for fm_resolve */
};

struct fm_executor {
    /* A kernel with its constants, kept for good; NULL with the reason in *why_out. */
    const void *(*find)(const char *name, const uint32_t constants[FM_CONSTANTS], const char **why_out);
    /* NULL, or the words that the command buffer shall fail with. */
    const char *(*run)(const struct fm_run *);
    /* What memory there is; may be NULL. */
    void (*mapped)(void *memory, size_t bytes);
    void (*unmapped)(void *memory, size_t bytes);
};
void fm_use(const struct fm_executor *);

/* The host's address for a device's, if bytes from there on lie in one buffer that is resident for the dispatch that
 * runs; else NULL, and a wrong use is noted. */
void *fm_resolve(const struct fm_run *, uint64_t address, size_t bytes);

/* Fails the call of this name that comes after `after` others: "device" "queue" "event" "library" "function" "pipeline"
 * "buffer" "residency" "archive" "archive-add" "archive-store" "command-buffer" "compute-encoder" "blit-encoder"; or
 * a command buffer: "command" (fails with fm_command_error) "hang" (never ends). */
void fm_inject(const char *name, int after);
extern long fm_command_error;
/* Whether what was injected has come to pass. */
bool fm_was_hit(void);

/* What the device says of itself. fm_reset puts all of this section back. */
struct fm_device {
    bool unified, apple;
    size_t buffer_max;
    uint64_t working_set;
    uint64_t wired_limit_mb;      /* 0: the system has no such setting */
    unsigned long simd_width, pipeline_threads, static_threadgroup_bytes;
    size_t misalign;              /* of new buffers' contents */
    uint64_t address_tag;         /* FM_ADDRESS_TAG: what a device address has beside the host's */
    unsigned delay_us;            /* before a command buffer runs, and between its end and its status */
};
extern struct fm_device fm_device;

void fm_reset(void);
/* Objects of the framework that are alive, once running command buffers have let go of theirs. */
int fm_live(void);
/* Wrong uses since the last reset, one a line; "" if there were none. */
const char *fm_misuses(void);
void fm_forget_misuses(void);
/* Calls of a name since the last reset: those of fm_inject and "dispatch" "use-resource"
 * "archive-hit" "request-residency" "commit" "event-wait". */
int fm_calls(const char *name);
/* The last source that was compiled, and its options as text. */
const char *fm_source(void);
const char *fm_options(void);

#endif
