/* usage.c - the ledger of routes. A text file:
 *
 *     glm52-usage 1 LAYERS EXPERTS
 *     LAYER EXPERT COUNT          for every expert that was chosen
 *     end ROWS SUM
 *
 * The last line says that all rows are there. Anything else is a damaged ledger, which costs what was learned and
 * nothing more. */
#include "usage.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "error.h"

#define LINE_BYTES_MAX 128
#define PATH_BYTES_MAX 4096

void glm52_usage_add(struct glm52_usage *usage, uint32_t layer, const int32_t *ids, uint32_t count) {
    if (usage->counts == NULL) return;
    uint32_t *counts = usage->counts + (size_t)layer * usage->experts;
    for (uint32_t i = 0; i < count; i++) {
        if (counts[ids[i]] < UINT32_MAX) counts[ids[i]]++;
    }
    usage->selections += count;
    usage->changed = true;
}

static bool read_rows(struct glm52_usage *usage, FILE *file, char *reason, size_t reason_bytes) {
    char line[LINE_BYTES_MAX];
    uint32_t layers = 0, experts = 0;
    char tail = 0;
    if (fgets(line, sizeof(line), file) == NULL ||
        sscanf(line, "glm52-usage 1 %" SCNu32 " %" SCNu32 " %c", &layers, &experts, &tail) != 2) {
        snprintf(reason, reason_bytes, "it does not begin as a ledger");
        return false;
    }
    if (layers != usage->layers || experts != usage->experts) {
        snprintf(reason, reason_bytes, "it is of a model of %u layers and %u experts, this one has %u and %u", layers,
                 experts, usage->layers, usage->experts);
        return false;
    }
    uint64_t sum = 0, rows = 0;
    for (uint64_t number = 2; fgets(line, sizeof(line), file) != NULL; number++) {
        uint32_t layer = 0, expert = 0, count = 0;
        uint64_t end_rows = 0, end_sum = 0;
        if (sscanf(line, "end %" SCNu64 " %" SCNu64 " %c", &end_rows, &end_sum, &tail) == 2) {
            if (end_rows == rows && end_sum == sum && fgetc(file) == EOF) {
                usage->selections = sum;
                return true;
            }
            break;
        }
        if (sscanf(line, "%" SCNu32 " %" SCNu32 " %" SCNu32 " %c", &layer, &expert, &count, &tail) != 3 ||
            layer >= layers || expert >= experts || count == 0 ||
            usage->counts[(size_t)layer * experts + expert] != 0) {
            snprintf(reason, reason_bytes, "line %" PRIu64 " is no row of it", number);
            return false;
        }
        usage->counts[(size_t)layer * experts + expert] = count;
        sum += count;
        rows++;
    }
    snprintf(reason, reason_bytes, "its end is missing or does not fit its %" PRIu64 " rows", rows);
    return false;
}

bool glm52_usage_read(struct glm52_usage *usage, const char *path, char *reason, size_t reason_bytes) {
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        if (errno == ENOENT) return true;
        snprintf(reason, reason_bytes, "%s", strerror(errno));
        return false;
    }
    const bool ok = read_rows(usage, file, reason, reason_bytes);
    fclose(file);
    if (!ok) {
        memset(usage->counts, 0, (size_t)usage->layers * usage->experts * sizeof(uint32_t));
        usage->selections = 0;
    }
    return ok;
}

static bool write_line(FILE *file, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool write_line(FILE *file, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int written = vfprintf(file, format, arguments);
    va_end(arguments);
    return written > 0;
}

static bool write_rows(const struct glm52_usage *usage, FILE *file) {
    uint64_t sum = 0, rows = 0;
    bool ok = write_line(file, "glm52-usage 1 %u %u\n", usage->layers, usage->experts);
    for (uint32_t layer = 0; layer < usage->layers; layer++) {
        for (uint32_t expert = 0; expert < usage->experts && ok; expert++) {
            const uint32_t count = usage->counts[(size_t)layer * usage->experts + expert];
            if (count == 0) continue;
            ok = write_line(file, "%u %u %u\n", layer, expert, count);
            sum += count;
            rows++;
        }
    }
    ok = ok && write_line(file, "end %" PRIu64 " %" PRIu64 "\n", rows, sum);
    return ok && fflush(file) == 0 && fsync(fileno(file)) == 0;
}

/* A name that has just been given to a file is safe only when its folder is on the disk too. */
static void sync_folder(const char *path) {
    char folder[PATH_BYTES_MAX];
    snprintf(folder, sizeof(folder), "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash == NULL) snprintf(folder, sizeof(folder), ".");
    else slash[slash == folder ? 1 : 0] = 0;
    const int file = open(folder, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    fsync(file);
    close(file);
}

glm52_status glm52_usage_write(struct glm52_usage *usage, const char *path) {
    char temporary[PATH_BYTES_MAX];
    const int length = snprintf(temporary, sizeof(temporary), "%s.XXXXXX", path);
    if (length < 0 || (size_t)length >= sizeof(temporary)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "usage ledger: a path of %zu bytes is too long", strlen(path));
    }
    const int descriptor = mkstemp(temporary);   /* mode 0600 */
    if (descriptor < 0) return glm52_fail(GLM52_ERR_IO, "%s: usage ledger: %s", path, strerror(errno));
    fcntl(descriptor, F_SETFD, FD_CLOEXEC);
    FILE *file = fdopen(descriptor, "w");
    bool ok = file != NULL && fchmod(descriptor, S_IRUSR | S_IWUSR) == 0 && write_rows(usage, file);
    int error = errno;
    if (file != NULL && fclose(file) != 0 && ok) {
        ok = false;
        error = errno;
    } else if (file == NULL) {
        close(descriptor);
    }
    if (ok && rename(temporary, path) != 0) {
        ok = false;
        error = errno;
    }
    if (!ok) {
        unlink(temporary);
        return glm52_fail(GLM52_ERR_IO, "%s: usage ledger: %s", path, strerror(error));
    }
    sync_folder(path);
    usage->changed = false;
    return GLM52_OK;
}

uint32_t glm52_usage_hottest(const struct glm52_usage *usage, glm52_expert_id *out, uint32_t count_max) {
    uint32_t count = 0;
    const size_t entries = (size_t)usage->layers * usage->experts;
    for (size_t i = 0; i < entries && count_max > 0; i++) {
        const uint32_t heat = usage->counts[i];
        if (heat == 0) continue;
        const glm52_expert_id id = {(uint32_t)(i / usage->experts), (uint32_t)(i % usage->experts)};
        /* Insertion into a list that stays sorted: lists are short beside the number of experts. */
        uint32_t at = count;
        while (at > 0 && usage->counts[(size_t)out[at - 1].layer * usage->experts + out[at - 1].expert] < heat) at--;
        if (at == count_max) continue;
        const uint32_t kept = count < count_max ? count : count_max - 1;
        memmove(out + at + 1, out + at, (kept - at) * sizeof(*out));
        out[at] = id;
        count = kept + 1;
    }
    return count;
}
