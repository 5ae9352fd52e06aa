/* io_pool.c - threads that read experts: whole slices with pread, at places of a file, into slots.
 *
 * A ticket is a slot's number; while it is under way nobody else touches the slot's memory. Demand comes first in the
 * order it was submitted; hints are served when there is none. Only the mutex guards what threads share, so a waiter
 * that has seen a ticket done has also seen its bytes. */
#include "io_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "checked.h"
#include "error.h"
#include "thread.h"

#define HINTS_MAX 1024

/* How a read went wrong. */
struct fault {
    bool failed;
    int error;                 /* errno; 0: the file ended, or is no longer the same */
    uint32_t slice, file;
    uint64_t offset, wanted, got;
    uint64_t bytes_now;        /* of the file, 0: unknown */
    bool replaced;             /* another file has the path now */
};

struct ticket {
    struct glm52_io_request request;
    bool is_run;               /* slice 0 is all of them */
    uint32_t left;             /* slices not yet read */
    struct fault fault;        /* of the lowest slice that failed */
};

struct job {
    uint32_t ticket, slice;
};

struct glm52_io {
    struct glm52_io_args args;
    struct glm52_io_file *files;
    uint32_t file_slots;

    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    bool stop;
    struct ticket *tickets;
    struct job *jobs;          /* ring of 3 per ticket, which is as many as there can be */
    uint64_t jobs_first, jobs_end, jobs_max;
    uint32_t running;
    struct glm52_io_request *hints; /* ring */
    uint64_t hints_first, hints_end;
    struct glm52_io_stats stats;

    struct worker {
        struct glm52_io *io;
        pthread_t handle;
        uint8_t *bounce;       /* aligned, for direct reads */
        uint8_t *bounce_memory;
    } *workers;
    uint32_t started;
};

/* ---- one slice ---- */

static int64_t read_some(const struct glm52_io *io, int file, void *buffer, uint64_t bytes, uint64_t offset,
                         int *error) {
    const glm52_stream_test *test = io->args.test;
    if (test != NULL && test->read != NULL) {
        int32_t reported = 0;
        const int64_t got = test->read(test->user, file, buffer, bytes, offset, &reported);
        *error = reported;
        return got;
    }
    const ssize_t got = pread(file, buffer, bytes, (off_t)offset);
    *error = errno;
    return got;
}

/* What one read counted, added to the statistics when it is over. */
struct tally {
    uint64_t ops, direct_ops, bytes, short_reads, interrupted;
};

/* Reads at least wanted of the bytes at offset, all of them unless the file ends. */
static bool read_range(const struct glm52_io *io, int file, uint8_t *out, uint64_t offset, uint64_t bytes,
                       uint64_t wanted, struct tally *tally, struct fault *fault) {
    uint64_t done = 0;
    uint32_t interruptions = 0;
    while (done < bytes) {
        int error = 0;
        const int64_t got = read_some(io, file, out + done, bytes - done, offset + done, &error);
        if (got < 0 && error == EINTR && ++interruptions <= GLM52_IO_INTERRUPTIONS_MAX) {
            tally->interrupted++;
            continue;
        }
        if (got <= 0 || (uint64_t)got > bytes - done) {
            if (got == 0 && done >= wanted) break;   /* a direct read reaches beyond the slice, and there it ends */
            fault->failed = true;
            fault->error = got < 0 ? error : 0;
            fault->got = done;
            return false;
        }
        interruptions = 0;
        done += (uint64_t)got;
        tally->ops++;
        tally->bytes += (uint64_t)got;
        if (done < bytes) tally->short_reads++;
    }
    return true;
}

/* A run goes straight to its slot, which ends where a whole number of direct reads does. */
static bool read_run_direct(const struct worker *worker, const struct glm52_io_file *file,
                            const struct glm52_io_slice *slice, uint8_t *out, struct tally *tally,
                            struct fault *fault) {
    const uint64_t length = (slice->bytes + GLM52_DIRECT_ALIGNMENT - 1) / GLM52_DIRECT_ALIGNMENT *
                            GLM52_DIRECT_ALIGNMENT;
    const uint64_t before = tally->ops;
    const bool ok = read_range(worker->io, file->direct, out, slice->offset, length, slice->bytes, tally, fault);
    tally->direct_ops += tally->ops - before;
    return ok;
}

static bool read_direct(const struct worker *worker, const struct glm52_io_file *file,
                        const struct glm52_io_slice *slice, uint8_t *out, struct tally *tally, struct fault *fault) {
    const uint64_t begin = slice->offset / GLM52_DIRECT_ALIGNMENT * GLM52_DIRECT_ALIGNMENT;
    const uint64_t skip = slice->offset - begin;
    const uint64_t length = (skip + slice->bytes + GLM52_DIRECT_ALIGNMENT - 1) / GLM52_DIRECT_ALIGNMENT *
                            GLM52_DIRECT_ALIGNMENT;
    const uint64_t before = tally->ops;
    const bool ok = read_range(worker->io, file->direct, worker->bounce, begin, length, skip + slice->bytes, tally,
                               fault);
    tally->direct_ops += tally->ops - before;
    if (ok) memcpy(out, worker->bounce + skip, slice->bytes);
    else fault->got = fault->got > skip ? fault->got - skip : 0;
    return ok;
}

/* A file that shrank or was replaced says more than "it ended". */
static void look_again(const struct glm52_io_file *file, struct fault *fault) {
    struct stat now, there;
    if (fstat(file->file, &now) == 0) fault->bytes_now = (uint64_t)now.st_size;
    if (stat(file->path, &there) == 0) {
        fault->replaced = (uint64_t)there.st_ino != file->inode || (uint64_t)there.st_dev != file->device;
    }
}

static void advise(struct glm52_io *io, int file, const struct glm52_io_slice *slice, uint32_t what) {
#ifdef __linux__
    const int advice = what == GLM52_ADVISE_WILLNEED ? POSIX_FADV_WILLNEED : POSIX_FADV_DONTNEED;
    if (posix_fadvise(file, (off_t)slice->offset, (off_t)slice->bytes, advice) != 0) return;
#elif defined(__APPLE__)
    /* There is no way to say that pages of a file are not needed, except by mapping them. */
    if (what != GLM52_ADVISE_WILLNEED) return;
    struct radvisory range = {.ra_offset = (off_t)slice->offset, .ra_count = (int)slice->bytes};
    if (fcntl(file, F_RDADVISE, &range) != 0) return;
#else
    (void)file;
    return;
#endif
    pthread_mutex_lock(&io->mutex);
    *(what == GLM52_ADVISE_WILLNEED ? &io->stats.willneed_bytes : &io->stats.dontneed_bytes) += slice->bytes;
    pthread_mutex_unlock(&io->mutex);
}

static bool read_slice(struct worker *worker, const struct ticket *ticket, uint32_t number, uint32_t file_index,
                       struct tally *tally, struct fault *fault) {
    struct glm52_io *io = worker->io;
    const struct glm52_io_request *request = &ticket->request;
    const struct glm52_io_slice *slice = &request->slices[number];
    const struct glm52_io_file *file = &io->files[file_index];
    *fault = (struct fault){.slice = number, .file = file_index, .offset = slice->offset, .wanted = slice->bytes};
    bool ok;
    if (io->args.direct && file->direct >= 0 && ticket->is_run) {
        ok = read_run_direct(worker, file, slice, request->out[number], tally, fault);
    } else if (io->args.direct && file->direct >= 0) {
        ok = read_direct(worker, file, slice, request->out[number], tally, fault);
    } else {
        ok = read_range(io, file->file, request->out[number], slice->offset, slice->bytes, slice->bytes, tally, fault);
    }
    if (!ok) look_again(file, fault);
    else if ((io->args.advise & GLM52_ADVISE_DONTNEED) != 0) advise(io, file->file, slice, GLM52_ADVISE_DONTNEED);
    return ok;
}

/* ---- threads ---- */

static void count(struct glm52_io_stats *stats, const struct tally *tally, bool policy) {
    *(policy ? &stats->policy_ops : &stats->read_ops) += tally->ops;
    *(policy ? &stats->policy_bytes : &stats->read_bytes) += tally->bytes;
    stats->direct_ops += tally->direct_ops;
    stats->short_reads += tally->short_reads;
    stats->interrupted += tally->interrupted;
}

/* Runs with the mutex held and gives it up while it reads. */
static void serve_read(struct worker *worker) {
    struct glm52_io *io = worker->io;
    const struct job job = io->jobs[io->jobs_first++ % io->jobs_max];
    struct ticket *ticket = &io->tickets[job.ticket];
    const struct glm52_io_request *request = &ticket->request;   /* nobody writes it while slices are left */
    io->running++;
    pthread_mutex_unlock(&io->mutex);

    struct tally tally = {0};
    struct fault fault;
    const uint32_t primary = request->slices[job.slice].file;
    const bool mirror = request->mirror && io->args.has_mirror;
    const uint64_t start = glm52_now_ns();
    bool ok = read_slice(worker, ticket, job.slice, mirror ? primary + io->args.file_count : primary, &tally, &fault);
    const bool fell_back = mirror && !ok;
    if (fell_back) ok = read_slice(worker, ticket, job.slice, primary, &tally, &fault);
    const uint64_t took = glm52_now_ns() - start;

    pthread_mutex_lock(&io->mutex);
    count(&io->stats, &tally, request->policy);
    io->stats.mirror_ops += mirror && !fell_back;
    io->stats.mirror_fallbacks += fell_back;
    if (ok) glm52_histogram_add(&io->stats.service, took);
    else io->stats.errors++;
    if (!ok && (!ticket->fault.failed || fault.slice < ticket->fault.slice)) ticket->fault = fault;
    ticket->left--;
    io->running--;
    if (ticket->left == 0 || io->running == 0) pthread_cond_broadcast(&io->done);
}

static void serve_hint(struct glm52_io *io) {
    const struct glm52_io_request hint = io->hints[io->hints_first++ % HINTS_MAX];
    pthread_mutex_unlock(&io->mutex);
    uint64_t bytes = 0, errors = 0;
    for (uint32_t i = 0; i < GLM52_SLICES; i++) {
        const struct glm52_io_slice *slice = &hint.slices[i];
        const uint32_t index = slice->file + (hint.mirror && io->args.has_mirror ? io->args.file_count : 0);
#ifdef __linux__
        const int failed = posix_fadvise(io->files[index].file, (off_t)slice->offset, (off_t)slice->bytes,
                                         POSIX_FADV_WILLNEED);
#elif defined(__APPLE__)
        struct radvisory range = {.ra_offset = (off_t)slice->offset, .ra_count = (int)slice->bytes};
        const int failed = fcntl(io->files[index].file, F_RDADVISE, &range);
#else
        const int failed = (int)index + 1;
#endif
        errors += failed != 0;
        bytes += failed != 0 ? 0 : slice->bytes;
    }
    pthread_mutex_lock(&io->mutex);
    io->stats.hint_completed++;
    io->stats.hint_errors += errors;
    io->stats.hint_bytes += bytes;
}

static void *serve(void *argument) {
    struct worker *worker = argument;
    struct glm52_io *io = worker->io;
    pthread_mutex_lock(&io->mutex);
    while (!io->stop) {
        if (io->jobs_first < io->jobs_end) serve_read(worker);
        else if (io->hints_first < io->hints_end) serve_hint(io);
        else pthread_cond_wait(&io->work, &io->mutex);
    }
    pthread_mutex_unlock(&io->mutex);
    return NULL;
}

static int start_threads(struct glm52_io *io) {
    int error = 0;
    while (error == 0 && io->started < io->args.workers) {
        error = glm52_thread_start(&io->workers[io->started].handle, serve, &io->workers[io->started]);
        if (error == 0) io->started++;
    }
    return error;
}

/* ---- opening ---- */

static uint64_t bounce_bytes(uint64_t slice_bytes_max) {
    return (slice_bytes_max / GLM52_DIRECT_ALIGNMENT + 3) * GLM52_DIRECT_ALIGNMENT;
}

uint64_t glm52_io_bytes(uint32_t workers, uint32_t tickets, uint64_t slice_bytes_max, bool direct) {
    const uint64_t per_ticket = sizeof(struct ticket) + GLM52_SLICES * sizeof(struct job);
    const uint64_t per_worker = sizeof(struct worker) + (direct ? bounce_bytes(slice_bytes_max) : 0);
    return sizeof(struct glm52_io) + tickets * per_ticket + workers * per_worker +
           HINTS_MAX * sizeof(struct glm52_io_request);
}

static void open_direct(struct glm52_io_file *file) {
#ifdef O_DIRECT
    file->direct = open(file->path, O_RDONLY | O_CLOEXEC | O_DIRECT);
#elif defined(F_NOCACHE)
    file->direct = open(file->path, O_RDONLY | O_CLOEXEC);
    if (file->direct >= 0 && fcntl(file->direct, F_NOCACHE, 1) != 0) {
        close(file->direct);
        file->direct = -1;
    }
#else
    file->direct = -1;
    errno = ENOTSUP;
#endif
}

/* The path may name another file by now; reading from that one would give another model's experts. */
static glm52_status open_files(struct glm52_io *io) {
    for (uint32_t i = 0; i < io->file_slots; i++) {
        struct glm52_io_file *file = &io->files[i];
        file->direct = -1;
        if (!io->args.direct) continue;
        open_direct(file);
        if (file->direct < 0) {
            return glm52_fail(GLM52_ERR_UNSUPPORTED, "%s: direct I/O: %s", file->path, strerror(errno));
        }
        struct stat now;
        if (fstat(file->direct, &now) != 0 || (uint64_t)now.st_ino != file->inode ||
            (uint64_t)now.st_dev != file->device || (uint64_t)now.st_size != file->bytes) {
            return glm52_fail(GLM52_ERR_IO, "%s: another file has this path since the model was opened", file->path);
        }
    }
    return GLM52_OK;
}

static glm52_status allocate(struct glm52_io *io) {
    struct glm52_allocations *a = io->args.allocations;
    io->files = glm52_stream_allocate(a, io->file_slots, sizeof(*io->files));
    io->tickets = glm52_stream_allocate(a, io->args.tickets, sizeof(*io->tickets));
    io->jobs = glm52_stream_allocate(a, io->jobs_max, sizeof(*io->jobs));
    io->hints = glm52_stream_allocate(a, HINTS_MAX, sizeof(*io->hints));
    io->workers = glm52_stream_allocate(a, io->args.workers, sizeof(*io->workers));
    bool complete = io->files != NULL && io->tickets != NULL && io->jobs != NULL && io->hints != NULL &&
                    io->workers != NULL;
    for (uint32_t i = 0; complete && i < io->args.workers; i++) {
        struct worker *worker = &io->workers[i];
        worker->io = io;
        if (!io->args.direct) continue;
        worker->bounce_memory = glm52_stream_allocate(a, bounce_bytes(io->args.slice_bytes_max), 1);
        complete = worker->bounce_memory != NULL;
        const uintptr_t past = (uintptr_t)worker->bounce_memory % GLM52_DIRECT_ALIGNMENT;
        if (complete) worker->bounce = worker->bounce_memory + (GLM52_DIRECT_ALIGNMENT - past);
    }
    if (complete) return GLM52_OK;
    return glm52_fail(GLM52_ERR_MEMORY, "no memory for %u threads that read %u experts", io->args.workers,
                      io->args.tickets);
}

glm52_status glm52_io_open(const struct glm52_io_args *args, struct glm52_io **io_out) {
    struct glm52_io *io = glm52_stream_allocate(args->allocations, 1, sizeof(*io));
    if (io == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for threads that read");
    io->args = *args;
    io->file_slots = args->file_count * (args->has_mirror ? 2 : 1);
    io->jobs_max = (uint64_t)args->tickets * GLM52_SLICES;
    pthread_mutex_init(&io->mutex, NULL);
    pthread_cond_init(&io->work, NULL);
    pthread_cond_init(&io->done, NULL);
    glm52_status status = allocate(io);
    if (status == GLM52_OK) {
        memcpy(io->files, args->files, io->file_slots * sizeof(*io->files));
        for (uint32_t i = 0; i < io->file_slots; i++) io->files[i].direct = -1;
        status = open_files(io);
    }
    if (status == GLM52_OK) {
        const int error = start_threads(io);
        if (error != 0) {
            status = glm52_fail(GLM52_ERR_MEMORY, "reading thread %u of %u: %s", io->started + 1, args->workers,
                                strerror(error));
        }
    }
    if (status != GLM52_OK) {
        glm52_io_close(io);
        return status;
    }
    io->args.allocations = NULL;   /* the caller's, and none comes later */
    *io_out = io;
    return GLM52_OK;
}

void glm52_io_close(struct glm52_io *io) {
    if (io == NULL) return;
    pthread_mutex_lock(&io->mutex);
    io->stop = true;
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->mutex);
    for (uint32_t i = 0; i < io->started; i++) pthread_join(io->workers[i].handle, NULL);
    for (uint32_t i = 0; io->workers != NULL && i < io->args.workers; i++) free(io->workers[i].bounce_memory);
    for (uint32_t i = 0; io->files != NULL && i < io->file_slots; i++) {
        if (io->files[i].direct >= 0) close(io->files[i].direct);
    }
    pthread_cond_destroy(&io->work);
    pthread_cond_destroy(&io->done);
    pthread_mutex_destroy(&io->mutex);
    free(io->files);
    free(io->tickets);
    free(io->jobs);
    free(io->hints);
    free(io->workers);
    free(io);
}

/* ---- requests ---- */

/* Whether the slices lie in the file as they will in memory: those of a colocated file do. A direct read of them all
 * needs whole blocks on both sides. */
static bool is_run(const struct glm52_io *io, const struct glm52_io_request *request) {
    for (uint32_t i = 1; i < GLM52_SLICES; i++) {
        const struct glm52_io_slice *before = &request->slices[i - 1], *slice = &request->slices[i];
        const uint64_t apart = (uintptr_t)request->out[i] - (uintptr_t)request->out[i - 1];
        if (slice->file != before->file || slice->offset - before->offset != apart || apart < before->bytes ||
            apart - before->bytes >= GLM52_SLICE_ALIGNMENT) {
            return false;
        }
    }
    return !io->args.direct || (request->slices[0].offset % GLM52_DIRECT_ALIGNMENT == 0 &&
                                (uintptr_t)request->out[0] % GLM52_DIRECT_ALIGNMENT == 0);
}

void glm52_io_submit(struct glm52_io *io, uint32_t number, const struct glm52_io_request *request) {
    if ((io->args.advise & GLM52_ADVISE_WILLNEED) != 0) {
        for (uint32_t i = 0; i < GLM52_SLICES; i++) {
            const struct glm52_io_slice *slice = &request->slices[i];
            const uint32_t index = slice->file + (request->mirror && io->args.has_mirror ? io->args.file_count : 0);
            advise(io, io->files[index].file, slice, GLM52_ADVISE_WILLNEED);
        }
    }
    pthread_mutex_lock(&io->mutex);
    struct ticket *ticket = &io->tickets[number];
    *ticket = (struct ticket){.request = *request, .left = GLM52_SLICES};
    if (is_run(io, request)) {
        const struct glm52_io_slice *last = &request->slices[GLM52_SLICES - 1];
        ticket->is_run = true;
        ticket->left = 1;
        ticket->request.slices[0].bytes = last->offset + last->bytes - request->slices[0].offset;
    }
    for (uint32_t i = 0; i < ticket->left; i++) {
        io->jobs[io->jobs_end++ % io->jobs_max] = (struct job){.ticket = number, .slice = i};
    }
    pthread_cond_broadcast(&io->work);
    pthread_mutex_unlock(&io->mutex);
}

bool glm52_io_is_done(struct glm52_io *io, uint32_t number) {
    pthread_mutex_lock(&io->mutex);
    const bool done = io->tickets[number].left == 0;
    pthread_mutex_unlock(&io->mutex);
    return done;
}

static glm52_status report(const struct glm52_io *io, const struct ticket *ticket) {
    const struct fault *fault = &ticket->fault;
    const struct glm52_io_file *file = &io->files[fault->file];
    const char *tensor = ticket->is_run ? "its run" : ticket->request.slices[fault->slice].tensor;
    const char *replaced = fault->replaced ? "; another file has this path now" : "";
    if (fault->bytes_now != 0 && fault->bytes_now != file->bytes) {
        return glm52_fail(GLM52_ERR_IO,
                          "%s: %s: expert %u of layer %u: read %llu of %llu bytes at %llu: the file has %llu bytes; "
                          "it had %llu when it was opened%s",
                          file->path, tensor, ticket->request.expert, ticket->request.layer,
                          (unsigned long long)fault->got, (unsigned long long)fault->wanted,
                          (unsigned long long)fault->offset, (unsigned long long)fault->bytes_now,
                          (unsigned long long)file->bytes, replaced);
    }
    return glm52_fail(GLM52_ERR_IO, "%s: %s: expert %u of layer %u: read %llu of %llu bytes at %llu: %s%s", file->path,
                      tensor, ticket->request.expert, ticket->request.layer, (unsigned long long)fault->got,
                      (unsigned long long)fault->wanted, (unsigned long long)fault->offset,
                      fault->error != 0 ? strerror(fault->error) : "the file ended", replaced);
}

glm52_status glm52_io_wait(struct glm52_io *io, uint32_t number) {
    pthread_mutex_lock(&io->mutex);
    const struct ticket *ticket = &io->tickets[number];
    while (ticket->left > 0) pthread_cond_wait(&io->done, &io->mutex);
    const glm52_status status = ticket->fault.failed ? report(io, ticket) : GLM52_OK;
    pthread_mutex_unlock(&io->mutex);
    return status;
}

void glm52_io_drain(struct glm52_io *io) {
    pthread_mutex_lock(&io->mutex);
    while (io->jobs_first < io->jobs_end) {
        const struct job job = io->jobs[io->jobs_first++ % io->jobs_max];
        io->tickets[job.ticket].left--;
    }
    while (io->running > 0) pthread_cond_wait(&io->done, &io->mutex);
    pthread_mutex_unlock(&io->mutex);
}

void glm52_io_hint(struct glm52_io *io, const struct glm52_io_request *request) {
    pthread_mutex_lock(&io->mutex);
    if (io->hints_end - io->hints_first == HINTS_MAX) {
        io->stats.hint_dropped++;
    } else {
        io->hints[io->hints_end++ % HINTS_MAX] = *request;
        io->stats.hint_submitted++;
        io->stats.hint_queue_max = glm52_max_u64(io->stats.hint_queue_max, io->hints_end - io->hints_first);
        pthread_cond_signal(&io->work);
    }
    pthread_mutex_unlock(&io->mutex);
}

void glm52_io_stats_get(struct glm52_io *io, struct glm52_io_stats *stats_out) {
    pthread_mutex_lock(&io->mutex);
    *stats_out = io->stats;
    pthread_mutex_unlock(&io->mutex);
}

void glm52_io_counters_restore(struct glm52_io *io, const struct glm52_io_stats *before) {
    pthread_mutex_lock(&io->mutex);
    const struct glm52_io_stats now = io->stats;
    io->stats = *before;
    io->stats.errors = now.errors;
    io->stats.interrupted = now.interrupted;
    io->stats.mirror_fallbacks = now.mirror_fallbacks;
    io->stats.hint_submitted = now.hint_submitted;
    io->stats.hint_completed = now.hint_completed;
    io->stats.hint_dropped = now.hint_dropped;
    io->stats.hint_errors = now.hint_errors;
    io->stats.hint_bytes = now.hint_bytes;
    io->stats.hint_queue_max = now.hint_queue_max;
    pthread_mutex_unlock(&io->mutex);
}
