/* driver.c - runs the fuzz target without a fuzzing engine.
 *
 *   driver CORPUS                  every file of the folder, once; whole models with each allocation failing,
 * too driver CORPUS COUNT SEED FORM  and then COUNT mutations of its files of a form ("single" or "split").
 *
 * Input i is made from SEED + i alone: "driver CORPUS 1 SEED+i FORM" makes it again. A finding (a sanitizer's
 * report, a broken promise, a run of more than 10 s) names its seed and is kept in the working folder. */
#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"
#include "glm52.h"

#define FILES_MAX 4096
#define SECONDS_MAX 10

static struct fuzz_input corpus[FILES_MAX];
static char *names[FILES_MAX];
static size_t corpus_count;

/* What is being run, for the report of a finding. */
static struct fuzz_input current;
static char current_name[300];

static void report(void) {
    FILE *file = fopen("fuzz-finding", "wb");
    if (file != NULL) {
        fwrite(current.bytes, 1, current.count, file);
        fclose(file);
    }
    fprintf(stderr, "finding: %s, %zu bytes, kept in fuzz-finding\n", current_name, current.count);
}

static void on_signal(int number) {
    report();
    signal(number, SIG_DFL);
    raise(number);
}

/* Of the sanitizers, when they are there. */
__attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)(void));

static void run(struct fuzz_input input) {
    current = input;
    alarm(SECONDS_MAX);
    LLVMFuzzerTestOneInput(input.bytes, input.count);
    alarm(0);
    current.count = 0;  /* what is found at the end, a leak, has no input */
}

static void fail(const char *what) {
    perror(what);
    exit(2);
}

static struct fuzz_input read_file(const char *path) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) fail(path);
    struct fuzz_input input = {malloc(1 << 20), 0};
    if (input.bytes == NULL) fail("malloc");
    input.count = fread(input.bytes, 1, 1 << 20, file);
    fclose(file);
    return input;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void read_corpus(const char *folder) {
    DIR *stream = opendir(folder);
    if (stream == NULL) fail(folder);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL && corpus_count < FILES_MAX;) {
        if (entry->d_name[0] != '.') names[corpus_count++] = strdup(entry->d_name);
    }
    closedir(stream);
    qsort(names, corpus_count, sizeof(names[0]), compare_names);
    for (size_t i = 0; i < corpus_count; i++) {
        char path[1000];
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        corpus[i] = read_file(path);
    }
}

static int is_split(const struct fuzz_input *input) {
    return input->count >= FUZZ_SPLIT_HEAD &&
           memcmp(input->bytes, FUZZ_SPLIT_MAGIC, strlen(FUZZ_SPLIT_MAGIC)) == 0;
}

static int is_valid(const char *name) {
    return strncmp(name, "valid-", 6) == 0;
}

/* The seeds of a form: whole models first, named valid-*, which every other input starts from. */
static size_t choose_seeds(int split, const struct fuzz_input **seeds, size_t *valid_out) {
    size_t count = 0;
    for (int valid = 1; valid >= 0; valid--) {
        for (size_t i = 0; i < corpus_count; i++) {
            if (is_split(&corpus[i]) == split && is_valid(names[i]) == valid) seeds[count++] = &corpus[i];
        }
        if (valid) *valid_out = count;
    }
    return count;
}

static void mutate_and_run(uint64_t count, uint64_t seed, const char *form) {
    static const struct fuzz_input *seeds[FILES_MAX];
    size_t valid;
    const size_t seed_count = choose_seeds(strcmp(form, "split") == 0, seeds, &valid);
    if (valid == 0) {
        fprintf(stderr, "no valid-* file of the form %s\n", form);
        exit(2);
    }
    for (uint64_t i = 0; i < count; i++) {
        uint64_t random = seed + i;
        const size_t choice =
            (size_t)(fuzz_random(&random) % (fuzz_random(&random) % 2 ? valid : seed_count));
        const struct fuzz_input *other = seeds[fuzz_random(&random) % seed_count];
        struct fuzz_input input = {malloc(seeds[choice]->count + 1), seeds[choice]->count};
        if (input.bytes == NULL) fail("malloc");
        memcpy(input.bytes, seeds[choice]->bytes, input.count);
        fuzz_mutate(&input, other, &random);
        snprintf(current_name, sizeof(current_name), "seed %" PRIu64 " form %s", seed + i, form);
        run(input);
        free(input.bytes);
    }
}

static void fail_allocations(void) {
    uint64_t allocations = 0;
    for (size_t i = 0; i < corpus_count; i++) {
        if (!is_valid(names[i])) continue;
        snprintf(current_name, sizeof(current_name), "%s without memory", names[i]);
        current = corpus[i];
        alarm(SECONDS_MAX);
        allocations += fuzz_without_memory(corpus[i].bytes, corpus[i].count);
        alarm(0);
    }
    printf("memory: %" PRIu64 " allocations failed one by one\n", allocations);
    memset(&fuzz_counts, 0, sizeof(fuzz_counts));
}

static void print_counts(const char *what, double seconds) {
    const struct fuzz_counts *c = &fuzz_counts;
    printf("%s: %" PRIu64 " inputs, %" PRIu64 " opened, %" PRIu64 " with a shape, %" PRIu64
           " models; refused:",
           what, c->inputs, c->opened, c->shaped, c->bound);
    for (int status = 1; status < 16; status++) {
        if (c->refused[status] == 0) continue;
        printf(" %" PRIu64 " %s,", c->refused[status], glm52_status_name((glm52_status)status));
    }
    printf(" %.1f s\n", seconds);
    fflush(stdout);
    memset(&fuzz_counts, 0, sizeof(fuzz_counts));
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 5) {
        fprintf(stderr, "usage: %s CORPUS [COUNT SEED single|split]\n", argv[0]);
        return 2;
    }
    if (__sanitizer_set_death_callback != NULL) __sanitizer_set_death_callback(report);
    signal(SIGALRM, on_signal);
    signal(SIGABRT, on_signal);
    double start = now();
    read_corpus(argv[1]);
    for (size_t i = 0; i < corpus_count; i++) {
        snprintf(current_name, sizeof(current_name), "%s", names[i]);
        const uint64_t bound = fuzz_counts.bound;
        run(corpus[i]);
        if (is_valid(names[i]) && fuzz_counts.bound == bound) {
            fprintf(stderr, "%s is refused: %s\n", names[i], glm52_error_message());
            return 1;
        }
    }
    print_counts("corpus", now() - start);
    fail_allocations();
    if (argc == 5) {
        start = now();
        const uint64_t count = strtoull(argv[2], NULL, 10), seed = strtoull(argv[3], NULL, 10);
        printf("%s: %" PRIu64 " mutations from seed %" PRIu64 "\n", argv[4], count, seed);
        fflush(stdout);
        mutate_and_run(count, seed, argv[4]);
        print_counts(argv[4], now() - start);
    }
    for (size_t i = 0; i < corpus_count; i++) {
        free(corpus[i].bytes);
        free(names[i]);
    }
    printf("no finding\n");
    return 0;
}
