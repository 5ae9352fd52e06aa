/* usage.h - the ledger of routes: how often each expert was chosen, kept from one run to the next. */
#ifndef GLM52_USAGE_H
#define GLM52_USAGE_H

#include "glm52_stream.h"

struct glm52_usage {
    uint32_t layers, experts;
    uint32_t *counts;                    /* [layers, experts], saturating */
    uint64_t selections;                 /* their sum, as far as it was counted */
    bool changed;                        /* since it was read or written */
};

void glm52_usage_add(struct glm52_usage *usage, uint32_t layer, const int32_t *ids, uint32_t count);

/* Reads a ledger. false and a reason [reason_bytes] if the file is damaged or belongs to another shape; then all
 * counts are 0. No file at all is an empty ledger. */
bool glm52_usage_read(struct glm52_usage *usage, const char *path, char *reason, size_t reason_bytes);

/* Writes it to a file of its own beside path, forces it to the disk, and gives it the name: the old ledger or the
 * new one is there, whatever happens. Mode 0600. Errors: IO. */
glm52_status glm52_usage_write(struct glm52_usage *usage, const char *path);

/* The most chosen experts, hottest first, ties to the lower layer and expert; those with no choice are left out.
 * out [count_max]; returns how many. Errors: none. */
uint32_t glm52_usage_hottest(const struct glm52_usage *usage, glm52_expert_id *out, uint32_t count_max);

#endif
