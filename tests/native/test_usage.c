/* test_usage.c - the ledger of routes: what is written is read, what is damaged is not. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "usage.h"

enum { LAYERS = 3, EXPERTS = 5 };

static void fill(char path[64]) {
    snprintf(path, 64, "/tmp/glm52-usage-XXXXXX");
    close(mkstemp(path));
}

static void put(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

void test_usage_ledger_round_trip(void) {
    char path[64], reason[256];
    fill(path);
    uint32_t counts[LAYERS * EXPERTS] = {0}, again[LAYERS * EXPERTS] = {0};
    struct glm52_usage usage = {.layers = LAYERS, .experts = EXPERTS, .counts = counts};
    const int32_t ids[] = {4, 0, 4, 4};
    glm52_usage_add(&usage, 1, ids, 4);
    counts[2] = UINT32_MAX - 1;
    const int32_t twos[] = {2, 2, 2};
    glm52_usage_add(&usage, 0, twos, 3);
    CHECK(counts[5] == 1 && counts[9] == 3 && counts[2] == UINT32_MAX && usage.selections == 7);   /* saturates */
    CHECK(usage.changed);
    CHECK_STATUS(GLM52_OK, glm52_usage_write(&usage, path));
    CHECK(!usage.changed);
    struct stat now;
    CHECK(stat(path, &now) == 0 && (now.st_mode & 0777) == 0600);

    struct glm52_usage read = {.layers = LAYERS, .experts = EXPERTS, .counts = again};
    CHECK(glm52_usage_read(&read, path, reason, sizeof(reason)));
    CHECK(memcmp(counts, again, sizeof(counts)) == 0);
    CHECK(read.selections == (uint64_t)UINT32_MAX + 4);
    unlink(path);
    CHECK(glm52_usage_read(&read, path, reason, sizeof(reason)));   /* none yet is fine */
    CHECK_STATUS(GLM52_ERR_IO, glm52_usage_write(&usage, "/nowhere/at/all"));
}

void test_usage_ledger_refuses_damage(void) {
    static const char *const damaged[] = {
        "", "glm52-usage 2 3 5\nend 0 0\n", "glm52-usage 1 3 5\n", "glm52-usage 1 3 5\n1 1 1\n",
        "glm52-usage 1 3 5\n1 1 1\nend 1 2\n", "glm52-usage 1 3 5\n1 1 1\nend 2 1\n",
        "glm52-usage 1 3 5\n1 1 0\nend 1 0\n", "glm52-usage 1 3 5\n3 1 1\nend 1 1\n",
        "glm52-usage 1 3 5\n1 5 1\nend 1 1\n", "glm52-usage 1 3 5\n1 1 1\n1 1 1\nend 2 2\n",
        "glm52-usage 1 3 5\n1 1 1 1\nend 1 1\n", "glm52-usage 1 3 5\nx\nend 0 0\n",
        "glm52-usage 1 3 5\nend 0 0\nmore", "glm52-usage 1 3 6\nend 0 0\n", "glm52-usage 1 3 5 7\nend 0 0\n",
    };
    char path[64], reason[256];
    fill(path);
    uint32_t counts[LAYERS * EXPERTS];
    for (size_t i = 0; i < sizeof(damaged) / sizeof(damaged[0]); i++) {
        memset(counts, 0, sizeof(counts));
        struct glm52_usage usage = {.layers = LAYERS, .experts = EXPERTS, .counts = counts};
        put(path, damaged[i]);
        reason[0] = 0;
        CHECK(!glm52_usage_read(&usage, path, reason, sizeof(reason)));
        CHECK(reason[0] != 0 && usage.selections == 0);
        for (int k = 0; k < LAYERS * EXPERTS; k++) CHECK(counts[k] == 0);
    }
    memset(counts, 0, sizeof(counts));
    struct glm52_usage usage = {.layers = LAYERS, .experts = EXPERTS, .counts = counts};
    put(path, "glm52-usage 1 3 5\n1 1 7\nend 1 7\n");
    CHECK(glm52_usage_read(&usage, path, reason, sizeof(reason)) && counts[6] == 7);
    unlink(path);
}

void test_usage_hottest_is_sorted(void) {
    uint32_t counts[LAYERS * EXPERTS] = {0, 5, 0, 9, 5, 0, 0, 9, 1};
    const struct glm52_usage usage = {.layers = LAYERS, .experts = EXPERTS, .counts = counts};
    glm52_expert_id out[16];
    CHECK(glm52_usage_hottest(&usage, out, 16) == 5);
    const glm52_expert_id wanted[] = {{0, 3}, {1, 2}, {0, 1}, {0, 4}, {1, 3}};
    CHECK(memcmp(out, wanted, sizeof(wanted)) == 0);
    CHECK(glm52_usage_hottest(&usage, out, 2) == 2 && out[1].layer == 1 && out[1].expert == 2);
    CHECK(glm52_usage_hottest(&usage, out, 0) == 0);
}
