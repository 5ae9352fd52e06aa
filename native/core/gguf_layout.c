/* gguf_layout.c - where the tensors of one file lie: all of each inside the file, none on another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"

static int compare_offsets(const void *left, const void *right) {
    const glm52_tensor_info *a = *(const glm52_tensor_info *const *)left;
    const glm52_tensor_info *b = *(const glm52_tensor_info *const *)right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return a < b ? -1 : a > b;
}

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

/* " (in expert E of N)" for a stack of experts that the file's end cuts. */
static void say_expert(char *text, size_t room, const glm52_tensor_info *tensor, uint64_t start,
                       uint64_t file_bytes) {
    text[0] = 0;
    if (!ends_with(tensor->name, "_exps.weight") || tensor->dimensions != 3 || file_bytes <= start) return;
    const uint64_t expert_bytes = tensor->bytes / tensor->size[2];
    snprintf(text, room, " (in expert %llu of %llu)",
             (unsigned long long)((file_bytes - start) / expert_bytes), (unsigned long long)tensor->size[2]);
}

/* Writers pad every tensor, the last too, so a file that lacks even one byte of that padding was cut. */
static uint64_t padded_end(const struct glm52_part *part, const glm52_tensor_info *tensor) {
    const uint64_t end = part->shard.data_offset + tensor->offset + tensor->bytes;
    return (end + part->alignment - 1) / part->alignment * part->alignment;
}

/* tensor is the first whose end is not in the file; needed is the whole file's size. */
static glm52_status fail_truncated(const struct glm52_part *part, const glm52_tensor_info *tensor,
                                   uint64_t needed) {
    const struct glm52_gguf_shard *shard = &part->shard;
    const uint64_t start = shard->data_offset + tensor->offset;
    char expert[64];
    say_expert(expert, sizeof(expert), tensor, start, shard->bytes);
    struct glm52_shown shown;
    return glm52_fail(
        GLM52_ERR_MODEL,
        "%s: truncated: tensor %s takes bytes %llu to %llu (padded: %llu), but the file ends at byte "
        "%llu%s; the tensors need a file of %llu bytes, %llu are missing",
        glm52_show_path(shard->path), glm52_show(&shown, tensor->name, strlen(tensor->name)),
        (unsigned long long)start, (unsigned long long)(start + tensor->bytes),
        (unsigned long long)padded_end(part, tensor), (unsigned long long)shard->bytes, expert,
        (unsigned long long)needed, (unsigned long long)(needed - shard->bytes));
}

static glm52_status fail_overlap(const struct glm52_part *part, const glm52_tensor_info *a,
                                 const glm52_tensor_info *b) {
    struct glm52_shown first, second;
    return glm52_fail(GLM52_ERR_MODEL,
                      "%s: tensor %s (offset %llu, %llu bytes) lies over tensor %s (offset %llu) in the data",
                      glm52_show_path(part->shard.path), glm52_show(&first, a->name, strlen(a->name)),
                      (unsigned long long)a->offset, (unsigned long long)a->bytes,
                      glm52_show(&second, b->name, strlen(b->name)), (unsigned long long)b->offset);
}

static glm52_status check_sorted(const struct glm52_part *part, const glm52_tensor_info *const *sorted) {
    const uint64_t count = part->tensor_count;
    for (uint64_t i = 1; i < count; i++) {
        if (sorted[i]->offset - sorted[i - 1]->offset < sorted[i - 1]->bytes) {
            return fail_overlap(part, sorted[i - 1], sorted[i]);
        }
    }
    const uint64_t needed = padded_end(part, sorted[count - 1]);
    if (needed <= part->shard.bytes) return GLM52_OK;
    for (uint64_t i = 0; i < count; i++) {
        if (padded_end(part, sorted[i]) > part->shard.bytes) return fail_truncated(part, sorted[i], needed);
    }
    return GLM52_OK;
}

/* Offsets become places in the file: the last thing done to them, when their sums can't overflow any more. */
static void move_to_file(struct glm52_part *part) {
    for (uint64_t i = 0; i < part->tensor_count; i++) part->tensors[i].offset += part->shard.data_offset;
}

glm52_status glm52_part_check_layout(struct glm52_part *part) {
    if (part->tensor_count == 0) return GLM52_OK;
    const glm52_tensor_info **sorted = malloc((size_t)part->tensor_count * sizeof(*sorted));
    if (sorted == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "%s: no memory to sort %llu tensors",
                          glm52_show_path(part->shard.path), (unsigned long long)part->tensor_count);
    }
    for (uint64_t i = 0; i < part->tensor_count; i++) sorted[i] = &part->tensors[i];
    qsort(sorted, (size_t)part->tensor_count, sizeof(*sorted), compare_offsets);
    const glm52_status status = check_sorted(part, sorted);
    free(sorted);
    if (status == GLM52_OK) move_to_file(part);
    return status;
}
