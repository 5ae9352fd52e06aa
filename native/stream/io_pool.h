/* io_pool.h - reading experts from files on threads of their own. */
#ifndef GLM52_IO_POOL_H
#define GLM52_IO_POOL_H

#include "clock.h"
#include "slots.h"

#define GLM52_IO_INTERRUPTIONS_MAX 1000  /* in a row, with nothing read between them */
#define GLM52_DIRECT_ALIGNMENT 4096u     /* of offset, length and memory of a direct read */
#define GLM52_LATENCY_OCTAVES 48
#define GLM52_LATENCY_STEPS 8            /* buckets of an octave: a percentile is at most a ninth too high */

/* How long things took: buckets of growing width. */
struct glm52_histogram {
    uint64_t bucket[GLM52_LATENCY_OCTAVES * GLM52_LATENCY_STEPS];
    uint64_t count, total_ns, max_ns;
};
void glm52_histogram_add(struct glm52_histogram *histogram, uint64_t ns);
glm52_latency glm52_histogram_read(const struct glm52_histogram *histogram);

/* A file that experts are read from. */
struct glm52_io_file {
    const char *path;                    /* borrowed */
    int file;                            /* borrowed; buffered reads */
    int direct;                          /* own; -1: none */
    uint64_t bytes;                      /* when it was opened */
    uint64_t device, inode;
};

/* One of the three matrices of an expert, or all of them where they are one run. */
struct glm52_io_slice {
    uint32_t file;                       /* index; its mirror is at index + file_count */
    uint64_t offset, bytes;
    const char *tensor;
};

/* An expert to read. */
struct glm52_io_request {
    struct glm52_io_slice slices[GLM52_SLICES];
    uint8_t *out[GLM52_SLICES];
    uint32_t layer, expert;
    bool mirror;                         /* read from the copy first */
    bool policy;                         /* no selection waits for it: counted apart */
};

struct glm52_io_stats {
    uint64_t read_ops, read_bytes, policy_ops, policy_bytes, direct_ops, short_reads, interrupted, errors;
    uint64_t mirror_ops, mirror_fallbacks, willneed_bytes, dontneed_bytes;
    uint64_t hint_submitted, hint_completed, hint_dropped, hint_errors, hint_bytes, hint_queue_max;
    struct glm52_histogram service;
};

struct glm52_io_args {
    const struct glm52_io_file *files;   /* [file_count], then [file_count] mirrors if has_mirror; copied */
    uint32_t file_count;
    bool has_mirror;
    uint32_t workers, tickets;           /* requests that can be under way at once: one per slot */
    bool direct;
    uint32_t advise;
    uint64_t slice_bytes_max;
    const glm52_stream_test *test;       /* or NULL */
    struct glm52_allocations *allocations;
};

struct glm52_io;
glm52_status glm52_io_open(const struct glm52_io_args *args, struct glm52_io **io_out);
void glm52_io_close(struct glm52_io *io);
/* Memory that glm52_io_open takes for buffers. */
uint64_t glm52_io_bytes(uint32_t workers, uint32_t tickets, uint64_t slice_bytes_max, bool direct);

/* Starts to read into the memory of ticket, which must not be under way. Its three slices are read side by side, or
 * all at once if they lie in the file as they will in memory. */
void glm52_io_submit(struct glm52_io *io, uint32_t ticket, const struct glm52_io_request *request);
bool glm52_io_is_done(struct glm52_io *io, uint32_t ticket);
/* Waits for a ticket. Errors: IO with path, tensor, expert, offset, wanted and got. */
glm52_status glm52_io_wait(struct glm52_io *io, uint32_t ticket);
/* Takes back what has not been started, waits for what has. Afterwards no ticket is under way. */
void glm52_io_drain(struct glm52_io *io);
/* Asks the system to read an expert ahead, when no worker has anything better to do; dropped if many wait. */
void glm52_io_hint(struct glm52_io *io, const struct glm52_io_request *request);
void glm52_io_stats_get(struct glm52_io *io, struct glm52_io_stats *stats_out);
/* Restores what a call that failed has counted; errors and interruptions stay counted. */
void glm52_io_counters_restore(struct glm52_io *io, const struct glm52_io_stats *before);

#endif
