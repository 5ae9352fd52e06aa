/* check_json.c - just enough JSON to read a line of an oracle record. */
#include "check_json.h"

#include <stdlib.h>
#include <string.h>

#define DEPTH_MAX 32

static const char *skip_space(const char *p) {
    return p + strspn(p, " \t\r\n");
}

static const char *string_end(const char *p) {
    for (p++; *p != 0; p++) {
        if (*p == '"') return p + 1;
        if (*p == '\\' && *++p == 0) return NULL;
    }
    return NULL;
}

static const char *value_end(const char *p, int depth);

/* Members of an array, or pairs of an object. */
static const char *members_end(const char *p, int depth, char close) {
    p = skip_space(p + 1);
    if (*p == close) return p + 1;
    for (;;) {
        if (close == '}') {
            p = *p == '"' ? string_end(p) : NULL;
            if (p == NULL) return NULL;
            p = skip_space(p);
            if (*p++ != ':') return NULL;
            p = skip_space(p);
        }
        p = value_end(p, depth + 1);
        if (p == NULL) return NULL;
        p = skip_space(p);
        if (*p == close) return p + 1;
        if (*p != ',') return NULL;
        p = skip_space(p + 1);
    }
}

static const char *value_end(const char *p, int depth) {
    static const char *const words[] = {"true", "false", "null"};
    if (depth > DEPTH_MAX) return NULL;
    if (*p == '"') return string_end(p);
    if (*p == '[') return members_end(p, depth, ']');
    if (*p == '{') return members_end(p, depth, '}');
    for (int i = 0; i < 3; i++) {
        if (strncmp(p, words[i], strlen(words[i])) == 0) return p + strlen(words[i]);
    }
    const size_t length = strspn(p, "+-.0123456789eE");
    return length > 0 ? p + length : NULL;
}

const char *json_end(const char *text) {
    return value_end(skip_space(text), 0);
}

const char *json_get(const char *object, const char *key) {
    if (object == NULL || *object != '{') return NULL;
    const size_t length = strlen(key);
    const char *p = skip_space(object + 1);
    while (*p == '"') {
        const int found = strncmp(p + 1, key, length) == 0 && p[1 + length] == '"';
        p = skip_space(skip_space(string_end(p)) + 1);
        if (found) return p;
        p = skip_space(value_end(p, 0));
        if (*p == ',') p = skip_space(p + 1);
    }
    return NULL;
}

const char *json_first(const char *array) {
    if (array == NULL || *array != '[') return NULL;
    const char *p = skip_space(array + 1);
    return *p == ']' ? NULL : p;
}

const char *json_next(const char *value) {
    const char *p = skip_space(value_end(value, 0));
    return *p == ',' ? skip_space(p + 1) : NULL;
}

int json_number(const char *value, double *out) {
    if (value == NULL || strchr("-0123456789", *value) == NULL || *value == 0) return 0;
    char *end = NULL;
    *out = strtod(value, &end);
    return end != value && *out - *out == 0.0;
}

int json_id(const char *value, int32_t *out) {
    double number = 0.0;
    if (!json_number(value, &number) || !(number >= 0.0 && number <= INT32_MAX)) return 0;
    *out = (int32_t)number;
    return (double)*out == number;
}

int json_is(const char *value, const char *string) {
    const size_t length = strlen(string);
    return value != NULL && *value == '"' && strncmp(value + 1, string, length) == 0 && value[1 + length] == '"';
}

int json_bits(const char *value, double *out) {
    static const char digits[] = "0123456789abcdef";
    uint32_t bits = 0;
    if (value == NULL || *value != '"') return 0;
    for (int i = 1; i <= 8; i++) {
        const char *digit = value[i] == 0 ? NULL : strchr(digits, value[i]);
        if (digit == NULL) return 0;
        bits = bits << 4 | (uint32_t)(digit - digits);
    }
    float number = 0.0f;
    memcpy(&number, &bits, sizeof(number));
    *out = number;
    return value[9] == '"';
}
