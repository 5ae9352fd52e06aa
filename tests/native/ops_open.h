/* ops_open.h - a backend for a test of operations, and the numbers of ggml's types. */
#ifndef OPS_OPEN_H
#define OPS_OPEN_H

#include <string.h>

#include "check.h"
#include "refused.h"

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q8_0 = 8 };

static inline glm52_backend *open_cpu(void) {
    glm52_backend *backend = NULL;
    CHECK_STATUS(GLM52_OK, glm52_backend_open("cpu", 2, &backend));
    return backend;
}

/* What a call writes to must stay as it was if the call fails. */
#define CHECK_UNTOUCHED(array, fill)                                            \
    do {                                                                        \
        for (size_t i_ = 0; i_ < sizeof(array) / sizeof((array)[0]); i_++) {    \
            CHECK((array)[i_] == (fill));                                       \
        }                                                                       \
    } while (0)

/* The refusal of a call with one number of args changed. call uses args. */
#define CHECK_REFUSED_WITH(status, part, field, value, call)    \
    do {                                                        \
        const __typeof__(args) kept_ = args;                    \
        args.field = (value);                                   \
        CHECK_REFUSED(status, part, call);                      \
        args = kept_;                                           \
    } while (0)
#define CHECK_NOT_ZERO(op, field, call) \
    CHECK_REFUSED_WITH(GLM52_ERR_ARGUMENT, op ": " #field " is 0", field, 0, call)

#endif
