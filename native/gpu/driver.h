/* driver.h - what a GPU is to this project: memory, pipelines, dispatches, fences. The only file that the drivers
 * (metal.m, the simulator, CUDA) and the shared half (the other files of native/gpu) both know.
 *
 * Addresses. Every operand is an address that allocate gave or that lies in memory that was adopted; a driver finds
 * the buffer that it belongs to. Where host and device share memory they are the host's own, else they only name
 * device memory and are never dereferenced by the host.
 *
 * Order. Everything that is encoded (dispatch, write, clear, publish) takes effect in the order of the calls; read and
 * finish wait for it. One thread at a time calls a driver.
 *
 * Faults. Calls that return nothing keep the first fault; finish returns it, once, and from a device that is lost
 * every finish does. The message is in the error buffer (error.h) when a status is returned. */
#ifndef GLM52_GPU_DRIVER_H
#define GLM52_GPU_DRIVER_H

#include "glm52.h"

/* Operands of a dispatch beside its numbers. */
#define GLM52_GPU_OPERANDS_MAX 12
/* Bytes of the numbers of a dispatch. */
#define GLM52_GPU_ARGS_MAX 256
/* Threads of a simdgroup: kernels are written for this width and no other. */
#define GLM52_GPU_SIMD_WIDTH 32

/* Function constants: the sizes of the model that kernels may be specialised for, 0 where a kernel takes the number
 * from its arguments. The index of a field is that of the constant: [[function_constant(0)]] is latent. A driver that
 * compiles ahead of time has all zero and GLM-5.2's own sizes, and takes zeros for any others. */
struct glm52_gpu_constants {
    uint32_t latent;     /* 512: kv_lora */
    uint32_t rope;       /* 64 */
    uint32_t nope;       /* 192 */
    uint32_t value;      /* 256 */
    uint32_t index_key;  /* 128 */
};
#define GLM52_GPU_CONSTANT_COUNT 5

struct glm52_gpu_limits {
    char device[128];            /* what the system calls it */
    uint64_t working_set;        /* bytes that it recommends to use at most, 0: not known */
    uint64_t buffer_max;         /* bytes of one buffer at most */
    uint32_t threads_max;        /* of a threadgroup */
    uint32_t threadgroup_bytes;  /* memory of a threadgroup at most */
    bool unified;                /* host and device share memory: addresses are the host's */
};

struct glm52_gpu_dispatch {
    uint32_t groups[3];          /* threadgroups; none 0 */
    uint32_t threads[3];         /* of one; their product is a multiple of GLM52_GPU_SIMD_WIDTH */
    uint32_t threadgroup_bytes;  /* of [[threadgroup(0)]]; 0: the kernel has none */
    uint32_t args_bytes;         /* of args, at [[buffer(0)]]; copied by the call */
    const void *args;
    uint32_t operand_count;      /* at [[buffer(1)]] and on */
    const void *operands[GLM52_GPU_OPERANDS_MAX]; /* NULL: not bound */
    /* Memory that the kernel reaches through addresses in an operand (see device_address): each names a whole
     * allocation or span. */
    uint32_t use_count;
    const void *const *uses;
};

struct glm52_gpu_state;          /* of an open driver */
struct glm52_gpu_pipeline;       /* a kernel with its constants; lives as long as the driver */

/* glm52_fail of error.h. A driver that is a library of its own does not see that one (nor its message buffer): open
 * brings it. */
typedef glm52_status glm52_gpu_fail(glm52_status status, const char *format, ...);

struct glm52_gpu_driver {
    const char *name;            /* "metal", "cuda", "sim" */

    /* fail is kept for all calls to come. Errors: UNSUPPORTED if there is no such device; MEMORY. */
    glm52_status (*open)(glm52_gpu_fail *fail, struct glm52_gpu_state **state_out);
    void (*close)(struct glm52_gpu_state *);
    void (*limits)(const struct glm52_gpu_state *, struct glm52_gpu_limits *limits_out);

    /* 256-byte aligned and zeroed; NULL if refused. */
    void *(*allocate)(struct glm52_gpu_state *, size_t bytes);
    void (*release)(struct glm52_gpu_state *, void *address);
    /* Lets kernels read bytes of the host's from host on, without a copy where memory is shared; with a copy, and room
     * for one, elsewhere. Whole pages of a mapping: what lies before and behind in the first and last page may be
     * taken in. The memory stays the caller's and stays in place until disown. will_change: nothing is in it yet, and
     * publish tells when something is; else it holds what it will ever hold. Errors: MEMORY; BUDGET. */
    glm52_status (*adopt)(struct glm52_gpu_state *, const void *host, size_t bytes, bool will_change);
    void (*disown)(struct glm52_gpu_state *, const void *host);
    /* The host wrote bytes of adopted memory: what is encoded from now on sees them. Where that takes a copy, host must
     * stay as it is until the copy is done (a fence, finish). */
    void (*publish)(struct glm52_gpu_state *, const void *host, size_t bytes);
    void (*read)(struct glm52_gpu_state *, void *host, const void *address, size_t bytes);
    void (*write)(struct glm52_gpu_state *, void *address, const void *host, size_t bytes);
    void (*clear)(struct glm52_gpu_state *, void *address, size_t bytes);
    /* Where a kernel finds address: what the host puts in a table of pointers that a kernel follows. */
    uint64_t (*device_address)(struct glm52_gpu_state *, const void *address);

    /* Errors: UNSUPPORTED if there is no kernel of that name; MEMORY. */
    glm52_status (*pipeline)(struct glm52_gpu_state *, const char *kernel, const struct glm52_gpu_constants *,
                             struct glm52_gpu_pipeline **pipeline_out);
    void (*dispatch)(struct glm52_gpu_state *, const struct glm52_gpu_pipeline *, const struct glm52_gpu_dispatch *);
    /* Hands over what was encoded; does not wait. */
    void (*flush)(struct glm52_gpu_state *);

    /* Fences: values only grow. signal: the device reaches the value that it returns when all encoded before is done.
     * wait_host: the host waits for it (flushes first). hold: what is encoded from now on waits until the host calls
     * release_hold with the value that hold returned. A driver that cannot hold has NULL for both. */
    uint64_t (*signal)(struct glm52_gpu_state *);
    glm52_status (*wait_host)(struct glm52_gpu_state *, uint64_t value);
    uint64_t (*hold)(struct glm52_gpu_state *);
    void (*release_hold)(struct glm52_gpu_state *, uint64_t value);

    /* Flushes and waits. The first fault since the last finish. Errors: IO (the device failed or took too long, with
     * its own words), MEMORY. */
    glm52_status (*finish)(struct glm52_gpu_state *);
    /* Nanoseconds that the device spent on what finish waited for last; 0: not known. */
    uint64_t (*device_ns)(const struct glm52_gpu_state *);

    /* The rest may be NULL: a driver that has no use for it. */

    /* Called before adopt: no operand that lies in adopted memory is longer. A driver that can't have a span in one
     * piece lets its pieces overlap by as much; without this call, by half a piece. */
    void (*longest_operand)(struct glm52_gpu_state *, size_t bytes);
    /* Called before pipeline: a file where what the driver compiles may be kept from one run to the next. Errors:
     * UNSUPPORTED, without harm. */
    glm52_status (*cache)(struct glm52_gpu_state *, const char *path);
};

/* The driver called name: linked in ("metal" on macOS), or from libglm52_<name>.so in the folder of the program or
 * extension that this code is in; NULL if there is none. Such a library exports
 * `const struct glm52_gpu_driver glm52_gpu_driver_<name>`. */
const struct glm52_gpu_driver *glm52_gpu_find(const char *name);

#endif
