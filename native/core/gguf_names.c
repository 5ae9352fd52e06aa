/* gguf_names.c - sorted indexes of names, which names are allowed, and how they look in a message. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_parts.h"

glm52_status glm52_names_allocate(struct glm52_names *names, uint64_t count) {
    names->count = (uint32_t)count;
    names->sorted = calloc(count > 0 ? (size_t)count : 1, sizeof(*names->sorted));
    if (names->sorted == NULL) {
        return glm52_fail(GLM52_ERR_MEMORY, "no memory for an index of %llu names",
                          (unsigned long long)count);
    }
    return GLM52_OK;
}

static int compare_names(const void *left, const void *right) {
    const struct glm52_name *a = left, *b = right;
    const int order = strcmp(a->text, b->text);
    if (order != 0) return order;
    return a->index < b->index ? -1 : a->index > b->index;
}

void glm52_names_sort(struct glm52_names *names, uint32_t *twin_out) {
    qsort(names->sorted, names->count, sizeof(*names->sorted), compare_names);
    *twin_out = GLM52_NAME_NONE;
    for (uint32_t i = 1; i < names->count && *twin_out == GLM52_NAME_NONE; i++) {
        if (strcmp(names->sorted[i - 1].text, names->sorted[i].text) == 0) *twin_out = names->sorted[i].index;
    }
}

uint32_t glm52_names_find(const struct glm52_names *names, const char *text) {
    uint32_t low = 0, high = names->count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp(names->sorted[middle].text, text);
        if (order == 0) return names->sorted[middle].index;
        if (order < 0) low = middle + 1;
        else high = middle;
    }
    return GLM52_NAME_NONE;
}

/* Bytes of the UTF-8 sequence at bytes, 0 if it is malformed (RFC 3629: no surrogates, nothing overlong). */
static uint64_t utf8_length(const uint8_t *bytes, uint64_t count) {
    const uint8_t lead = bytes[0];
    if (lead < 0x80) return 1;
    const uint64_t length = lead >= 0xc2 && lead < 0xe0   ? 2
                            : lead >= 0xe0 && lead < 0xf0 ? 3
                            : lead >= 0xf0 && lead < 0xf5 ? 4
                                                          : 0;
    if (length == 0 || length > count) return 0;
    for (uint64_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xc0) != 0x80) return 0;
    }
    const uint8_t second = bytes[1];
    if (lead == 0xe0 && second < 0xa0) return 0;
    if (lead == 0xed && second > 0x9f) return 0;
    if (lead == 0xf0 && second < 0x90) return 0;
    if (lead == 0xf4 && second > 0x8f) return 0;
    return length;
}

bool glm52_name_is_clean(const uint8_t *bytes, uint64_t count) {
    for (uint64_t i = 0; i < count;) {
        if (bytes[i] < 0x20 || bytes[i] == 0x7f) return false;
        const uint64_t length = utf8_length(bytes + i, count - i);
        if (length == 0) return false;
        i += length;
    }
    return count > 0;
}

const char *glm52_show(struct glm52_shown *shown, const void *bytes, uint64_t count) {
    static const char digits[] = "0123456789abcdef";
    const uint8_t *in = bytes;
    /* The longest piece is an escape of four characters; "..." and the zero follow it. */
    const size_t room = sizeof(shown->text) - 4 - 3 - 1;
    size_t used = 0;
    uint64_t i = 0;
    for (; i < count && used <= room; i++) {
        if (in[i] >= 0x20 && in[i] < 0x7f) {
            shown->text[used++] = (char)in[i];
        } else {
            shown->text[used++] = '\\';
            shown->text[used++] = 'x';
            shown->text[used++] = digits[in[i] >> 4];
            shown->text[used++] = digits[in[i] & 15];
        }
    }
    if (i < count) {
        memcpy(shown->text + used, "...", 3);
        used += 3;
    }
    shown->text[used] = 0;
    return shown->text;
}

#define SHOWN_PATH_BYTES_MAX 400

const char *glm52_show_path(const char *path) {
    const size_t length = strlen(path);
    return length <= SHOWN_PATH_BYTES_MAX ? path : path + length - SHOWN_PATH_BYTES_MAX;
}
