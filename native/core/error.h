/* error.h - how a failure is said: one status, one message, set where the fault is known. */
#ifndef GLM52_ERROR_H
#define GLM52_ERROR_H

#include "glm52.h"

/* Writes the message of this thread (printf format) and returns status, so that a fault is one line:
 * return glm52_fail(GLM52_ERR_MODEL, "%s: ...", path). */
glm52_status glm52_fail(glm52_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Leaves with the status of a call that failed. */
#define GLM52_TRY(call)                                  \
    do {                                                 \
        const glm52_status status_ = (call);             \
        if (status_ != GLM52_OK) return status_;         \
    } while (0)

#endif
