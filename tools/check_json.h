/* check_json.h - just enough JSON to read a line of an oracle record. A value is a place in a text that json_end has
 * walked over once, so that everything inside it is known to be well formed. */
#ifndef GLM52_CHECK_JSON_H
#define GLM52_CHECK_JSON_H

#include <stdint.h>

/* Behind the value at text, NULL if there is none: strings, numbers, true, false, null, arrays, objects, at most 32
 * inside one another. */
const char *json_end(const char *text);

/* The value of an object's key, which needs no escapes; NULL if it is no object or has no such key. */
const char *json_get(const char *object, const char *key);

/* The first value of an array, and the one behind value; NULL if there is none. */
const char *json_first(const char *array);
const char *json_next(const char *value);

/* 1 and the number, or 0. json_id: a token, 0 .. 2^31 - 1. */
int json_number(const char *value, double *out);
int json_id(const char *value, int32_t *out);

/* 1 if value is this string, which needs no escapes. */
int json_is(const char *value, const char *string);

/* float32 from eight hexadecimal digits in a string. */
int json_bits(const char *value, double *out);

#endif
