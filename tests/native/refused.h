/* refused.h - checks that a call fails, and that its message says why. */
#ifndef REFUSED_H
#define REFUSED_H

#include <string.h>

#include "check.h"

#define CHECK_MESSAGE(part)                                                                     \
    do {                                                                                        \
        if (strstr(glm52_error_message(), (part)) == NULL) {                                    \
            printf("%s:%d: the message is \"%s\", without \"%s\"\n", __FILE__, __LINE__,        \
                   glm52_error_message(), (part));                                              \
            check_failed = 1;                                                                   \
        }                                                                                       \
    } while (0)

#define CHECK_REFUSED(status, part, call)  \
    do {                                   \
        CHECK_STATUS(status, call);        \
        CHECK_MESSAGE(part);               \
    } while (0)

#endif
