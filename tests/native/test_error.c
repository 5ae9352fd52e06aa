/* test_error.c - statuses and messages. */
#include <string.h>

#include "check.h"
#include "error.h"

void test_every_status_has_a_name(void) {
    for (int status = GLM52_OK; status <= GLM52_ERR_CANCELLED; status++) {
        CHECK(strcmp(glm52_status_name((glm52_status)status), "unknown") != 0);
    }
    CHECK(strcmp(glm52_status_name((glm52_status)99), "unknown") == 0);
}

void test_a_message_is_kept_and_cut_at_its_limit(void) {
    CHECK_STATUS(GLM52_ERR_IO, glm52_fail(GLM52_ERR_IO, "%s: byte %d", "file", 7));
    CHECK(strcmp(glm52_error_message(), "file: byte 7") == 0);

    char longer[2 * GLM52_MESSAGE_BYTES_MAX];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = 0;
    CHECK_STATUS(GLM52_ERR_IO, glm52_fail(GLM52_ERR_IO, "%s", longer));
    CHECK(strlen(glm52_error_message()) == GLM52_MESSAGE_BYTES_MAX - 1);
}
