/* glm52_check.c - runs recorded vectors against a model, without Python.
 *
 *     glm52-check MODEL VECTORS...
 *
 * A vector file is text: '#' starts a comment line, the first word of a line says what it is.
 *     case NAME             begins a case
 *     latent_epsilon E      of the engine; 0: the model's
 *     chunk N               rows of a prefill batch; 0: the default
 *     kv_type T             f32 (as without this line) or f16
 *     tokens ID...          the prompt
 *     tolerance R           a logit may be off by R times the root mean square of this position's recorded ones
 *     top POSITION ID LOGIT ID LOGIT ...   the largest logits behind the token at POSITION, largest first
 *     end                   runs the case
 * A file that begins with { is an oracle record (docs/FORMAT.md) and is repeated as check_record.c says.
 *
 * Each position named by top is reached by one prefill of the tokens up to it, in quality mode. Prints a line per
 * case and "N passed, N failed"; exit status 0 if none failed, 1 if some did, 2 if something could not be read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check_record.h"
#include "glm52.h"

#define TOKENS_MAX 65536
#define TOPS_MAX 64
#define PAIRS_MAX 256
#define LINE_MAX_BYTES (1 << 20)

struct top {
    uint32_t position;
    uint32_t count;
    int32_t ids[PAIRS_MAX];
    double logits[PAIRS_MAX];
};

struct vector_case {
    char name[128];
    double latent_epsilon;
    double tolerance;
    uint32_t chunk;
    uint32_t kv_type;
    uint32_t token_count;
    int32_t tokens[TOKENS_MAX];
    uint32_t top_count;
    struct top tops[TOPS_MAX];
};

static double next_number(char **cursor, int *ok) {
    char *end = NULL;
    const double value = strtod(*cursor, &end);
    *ok = end != *cursor;
    *cursor = end;
    return value;
}

/* A whole number from 0 to limit; *ok says whether it was one. */
static uint32_t next_count(char **cursor, double limit, int *ok) {
    const double value = next_number(cursor, ok);
    *ok = *ok && value >= 0 && value <= limit && value == floor(value);
    return *ok ? (uint32_t)value : 0;
}

static int read_tokens(struct vector_case *c, char *text) {
    int ok = 1;
    for (c->token_count = 0; c->token_count < TOKENS_MAX;) {
        text += strspn(text, " ");
        if (*text == 0) return c->token_count > 0;
        c->tokens[c->token_count++] = (int32_t)next_count(&text, INT32_MAX, &ok);
        if (!ok) return 0;
    }
    return 0;
}

static int read_top(struct vector_case *c, char *text) {
    if (c->top_count == TOPS_MAX) return 0;
    struct top *top = &c->tops[c->top_count];
    int ok = 1;
    top->position = next_count(&text, TOKENS_MAX, &ok);
    for (top->count = 0; ok && top->count < PAIRS_MAX; top->count++) {
        text += strspn(text, " ");
        if (*text == 0) break;
        top->ids[top->count] = (int32_t)next_count(&text, INT32_MAX, &ok);
        if (ok) top->logits[top->count] = next_number(&text, &ok);
    }
    c->top_count++;
    return ok && top->count > 0;
}

/* One line of a case; 0 if it is not understood. */
static int read_line(struct vector_case *c, char *line) {
    int ok = 1;
    char *space = strchr(line, ' ');
    char *rest = space == NULL ? line + strlen(line) : space + 1;
    if (space != NULL) *space = 0;
    if (strcmp(line, "case") == 0) {
        memset(c, 0, sizeof(*c));
        c->kv_type = GLM52_KV_F32;
        snprintf(c->name, sizeof(c->name), "%.*s", (int)strcspn(rest, "\n"), rest);
    } else if (strcmp(line, "latent_epsilon") == 0) {
        c->latent_epsilon = next_number(&rest, &ok);
    } else if (strcmp(line, "tolerance") == 0) {
        c->tolerance = next_number(&rest, &ok);
    } else if (strcmp(line, "chunk") == 0) {
        c->chunk = next_count(&rest, GLM52_CHUNK_ROWS_MAX, &ok);
    } else if (strcmp(line, "kv_type") == 0) {
        ok = strncmp(rest, "f32", 3) == 0 || strncmp(rest, "f16", 3) == 0;
        c->kv_type = strncmp(rest, "f16", 3) == 0 ? GLM52_KV_F16 : GLM52_KV_F32;
    } else if (strcmp(line, "tokens") == 0) {
        ok = read_tokens(c, rest);
    } else if (strcmp(line, "top") == 0) {
        ok = read_top(c, rest);
    } else {
        ok = 0;
    }
    return ok;
}

static int is_listed(const struct top *top, int32_t id) {
    for (uint32_t i = 0; i < top->count; i++) {
        if (top->ids[i] == id) return 1;
    }
    return 0;
}

/* Number of tokens that the record does not list although their logits are above its lowest. */
static int count_missing(const struct vector_case *c, const struct top *top, const float *logits, uint32_t vocab,
                         double rms) {
    double lowest = top->logits[0];
    for (uint32_t i = 1; i < top->count; i++) lowest = fmin(lowest, top->logits[i]);
    int missing = 0;
    for (uint32_t id = 0; id < vocab; id++) {
        if (!(logits[id] > lowest + c->tolerance * rms) || is_listed(top, (int32_t)id)) continue;
        missing++;
        printf("%s: position %u: token %u has logit %.9g, above the lowest recorded %.9g, and is not recorded\n",
               c->name, top->position, id, (double)logits[id], lowest);
    }
    return missing;
}

/* Number of logits of one position that are off; *worst_out is the largest difference over the rms. */
static int compare_top(const struct vector_case *c, const struct top *top, const float *logits, uint32_t vocab,
                       double *worst_out) {
    double square_sum = 0.0;
    int wrong = 0;
    for (uint32_t i = 0; i < top->count; i++) square_sum += top->logits[i] * top->logits[i];
    const double rms = sqrt(square_sum / top->count);
    for (uint32_t i = 0; i < top->count; i++) {
        if (top->ids[i] < 0 || (uint32_t)top->ids[i] >= vocab) return (int)top->count;
        const double off = fabs(logits[top->ids[i]] - top->logits[i]) / rms;
        if (!(off <= c->tolerance)) {
            wrong++;
            printf("%s: position %u, token %d: logit %.9g, recorded %.9g, off by %.3g of the rms, allowed %.3g\n",
                   c->name, top->position, top->ids[i], (double)logits[top->ids[i]], top->logits[i], off,
                   c->tolerance);
        }
        if (!(off <= *worst_out)) *worst_out = off;
    }
    return wrong + count_missing(c, top, logits, vocab, rms);
}

/* 1 passed, 0 failed. */
static int run_case(glm52_model *model, const struct vector_case *c) {
    const glm52_engine_options options = {
        .context = c->token_count, .quality = 1, .kv_type = c->kv_type, .chunk_rows = c->chunk,
        .latent_epsilon = (float)c->latent_epsilon};
    glm52_engine *engine = NULL;
    glm52_status status = glm52_engine_open(model, &options, &engine);
    double worst = 0.0;
    int wrong = 0;
    for (uint32_t i = 0; i < c->top_count && status == GLM52_OK; i++) {
        uint32_t kept = 0, completed = 0;
        const uint32_t count = c->tops[i].position + 1;
        if (count > c->token_count) {
            printf("%s: position %u is behind the last token\n", c->name, c->tops[i].position);
            wrong++;
            continue;
        }
        status = glm52_align(engine, c->tokens, count, &kept);
        if (status == GLM52_OK) {
            status = glm52_prefill(engine, c->tokens + kept, count - kept, NULL, NULL, &completed);
        }
        if (status == GLM52_OK) {
            wrong += compare_top(c, &c->tops[i], glm52_logits(engine), glm52_model_shape(model)->vocab, &worst);
        }
    }
    if (status != GLM52_OK) printf("%s: %s\n", c->name, glm52_error_message());
    glm52_engine_close(engine);
    const int passed = status == GLM52_OK && wrong == 0 && c->top_count > 0;
    printf("%s %s: %u positions, worst logit off by %.2e of the rms\n", passed ? "ok  " : "FAIL", c->name,
           c->top_count, worst);
    return passed;
}

/* Runs every case of a file; 0 if it can't be read. */
static int run_file(glm52_model *model, const char *path, struct vector_case *c, char *line, int *passed,
                    int *failed) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "glm52-check: %s: can't be opened\n", path);
        return 0;
    }
    const int first = getc(file);
    if (first != EOF) ungetc(first, file);
    if (first == '{') {
        const int found = check_record(model, path, file);
        *passed += found == 1;
        *failed += found == 0;
        fclose(file);
        return found >= 0;
    }
    int number = 0, in_case = 0, understood = 1;
    while (understood && fgets(line, LINE_MAX_BYTES, file) != NULL) {
        number++;
        line[strcspn(line, "\r\n")] = 0;
        if (line[0] == '#' || line[0] == 0) continue;
        if (in_case && strcmp(line, "end") == 0) {
            if (run_case(model, c)) (*passed)++;
            else (*failed)++;
            in_case = 0;
        } else {
            const int begins = strncmp(line, "case ", 5) == 0;
            understood = (begins || in_case) && read_line(c, line);
            in_case = 1;
        }
    }
    fclose(file);
    if (!understood || in_case) {
        fprintf(stderr, "glm52-check: %s:%d: %s\n", path, number,
                understood ? "the last case has no end" : "a line that is not understood");
    }
    return understood && !in_case;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: glm52-check MODEL VECTORS...\n");
        return 2;
    }
    glm52_model *model = NULL;
    if (glm52_model_open(argv[1], &model) != GLM52_OK) {
        fprintf(stderr, "glm52-check: %s\n", glm52_error_message());
        return 2;
    }
    struct vector_case *c = malloc(sizeof(*c));
    char *line = malloc(LINE_MAX_BYTES);
    int passed = 0, failed = 0, readable = c != NULL && line != NULL;
    for (int i = 2; i < argc && readable; i++) readable = run_file(model, argv[i], c, line, &passed, &failed);
    free(line);
    free(c);
    glm52_model_close(model);
    printf("%d passed, %d failed\n", passed, failed);
    return !readable ? 2 : failed != 0 || passed == 0;
}
