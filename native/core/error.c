/* error.c - names of statuses, and the message of the last failure on each thread. */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char message[GLM52_MESSAGE_BYTES_MAX];

glm52_status glm52_fail(glm52_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof(message), format, arguments);
    va_end(arguments);
    return status;
}

const char *glm52_error_message(void) {
    return message;
}

const char *glm52_status_name(glm52_status status) {
    switch (status) {
    case GLM52_OK: return "ok";
    case GLM52_ERR_ARGUMENT: return "invalid argument";
    case GLM52_ERR_MEMORY: return "out of memory";
    case GLM52_ERR_UNSUPPORTED: return "unsupported";
    case GLM52_ERR_IO: return "input/output error";
    case GLM52_ERR_MODEL: return "invalid model file";
    case GLM52_ERR_SHAPE: return "inconsistent shape";
    case GLM52_ERR_BUDGET: return "memory budget exceeded";
    case GLM52_ERR_CONTEXT: return "outside the context";
    case GLM52_ERR_CHECKPOINT: return "invalid checkpoint";
    case GLM52_ERR_CANCELLED: return "cancelled";
    }
    return "unknown";
}
