/* check_record.c - repeats an oracle record without Python: tokens, logits, and per layer the digests of hidden states
 * and routing weights.
 *
 * Where the arithmetic is the record's, bits must be the same; else logits must be within the record's bounds, and
 * layers are not looked at. Tokens are the record's own. */
#include "check_record.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_json.h"
#include "sha256.h"

#define FORMAT 2.0
#define LAYERS_MAX 512
#define DIGEST_DIGITS 32
#define MARGIN_BOUNDS 2.0   /* two logits may each be off by the bound, in opposite directions */

struct record {
    const char *path;
    const char *head;
    char **lines;               /* of steps, NULL behind the last */
    size_t step_count;
    int exact;
    double bound, floor;        /* of logits, or of log-probabilities, of which those below floor are passed over */
    uint32_t vocab, hidden_size, layers;
    struct glm52_sha256 hidden[LAYERS_MAX], weights[LAYERS_MAX];
};

static int complain(const struct record *r, const char *what) {
    fprintf(stderr, "glm52-check: %s: %s\n", r->path, what);
    return -1;
}

static void hex_of(struct glm52_sha256 *hash, char *out) {
    uint8_t digest[GLM52_SHA256_BYTES];
    glm52_sha256_end(hash, digest);
    for (int i = 0; i < GLM52_SHA256_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
}

/* ---- reading ---- */

static void free_lines(char **lines) {
    for (size_t i = 0; lines != NULL && lines[i] != NULL; i++) free(lines[i]);
    free(lines);
}

/* All lines of a file, each one JSON object; NULL if one is none, or there is no memory. */
static char **read_lines(FILE *file, size_t *count_out) {
    char **lines = calloc(1, sizeof(*lines));
    size_t count = 0, size = 0;
    char *line = NULL;
    while (lines != NULL && getline(&line, &size, file) > 0) {
        const char *end = *line == '{' ? json_end(line) : NULL;
        char **more = end == NULL || strcmp(end, "\n") != 0 ? NULL : realloc(lines, (count + 2) * sizeof(*lines));
        if (more == NULL) {
            free_lines(lines);
            lines = NULL;
            break;
        }
        lines = more;
        lines[count++] = line;
        lines[count] = NULL;
        line = NULL;
        size = 0;
    }
    free(line);
    *count_out = count;
    return lines;
}

/* Whether the last line closes the others: their number and their digest. */
static int is_closed(char **lines, size_t count) {
    struct glm52_sha256 hash;
    glm52_sha256_begin(&hash);
    for (size_t i = 0; i + 1 < count; i++) glm52_sha256_add(&hash, lines[i], strlen(lines[i]));
    char digits[2 * GLM52_SHA256_BYTES + 1];
    hex_of(&hash, digits);
    double end = 0.0;
    const char *last = lines[count - 1];
    return json_number(json_get(last, "end"), &end) && end == (double)(count - 1) &&
           json_is(json_get(last, "sha256"), digits);
}

/* ---- running ---- */

static void observe(void *user, const glm52_observation *seen) {
    struct record *r = user;
    const size_t rows = seen->row_count;
    glm52_sha256_add(&r->hidden[seen->layer], seen->hidden, sizeof(float) * rows * r->hidden_size);
    if (seen->experts_used == 0) return;
    glm52_sha256_add(&r->weights[seen->layer], seen->route_weights, sizeof(float) * rows * seen->experts_used);
}

/* Ids of an array, to be freed; NULL if it is none, or empty. */
static int32_t *ids_of(const char *array, uint32_t *count_out) {
    uint32_t count = 0;
    for (const char *v = json_first(array); v != NULL; v = json_next(v)) count++;
    int32_t *ids = count > 0 ? malloc(count * sizeof(*ids)) : NULL;
    uint32_t i = 0;
    for (const char *v = json_first(array); ids != NULL && v != NULL; v = json_next(v)) {
        if (json_id(v, &ids[i++])) continue;
        free(ids);
        ids = NULL;
    }
    *count_out = count;
    return ids;
}

static glm52_status feed(glm52_engine *engine, const char *array) {
    uint32_t count = 0, completed = 0;
    int32_t *ids = ids_of(array, &count);
    const glm52_status status = ids == NULL ? GLM52_ERR_ARGUMENT
                                            : glm52_prefill(engine, ids, count, NULL, NULL, &completed);
    free(ids);
    return status;
}

/* Number of layers whose digests differ; prints the first. */
static int compare_layers(struct record *r, const char *step, int number) {
    int wrong = 0;
    uint32_t layer = 0;
    for (const char *v = json_first(json_get(step, "layers")); v != NULL && layer < r->layers; v = json_next(v)) {
        struct glm52_sha256 *const hashes[2] = {&r->weights[layer], &r->hidden[layer]};
        static const char *const names[2] = {"weights", "hidden"};
        for (int i = 0; i < 2; i++) {
            char digits[2 * GLM52_SHA256_BYTES + 1];
            hex_of(hashes[i], digits);
            digits[DIGEST_DIGITS] = 0;
            if (json_is(json_get(v, names[i]), digits)) continue;
            if (wrong++ == 0) printf("%s: step %d, layer %u: %s: other bits\n", r->path, number, layer, names[i]);
        }
        layer++;
    }
    return wrong;
}

static double log_sum(const float *logits, uint32_t vocab) {
    double greatest = logits[0], sum = 0.0;
    for (uint32_t i = 1; i < vocab; i++) greatest = fmax(greatest, logits[i]);
    for (uint32_t i = 0; i < vocab; i++) sum += exp(logits[i] - greatest);
    return greatest + log(sum);
}

static uint32_t argmax(const float *logits, uint32_t vocab) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < vocab; i++) best = logits[i] > logits[best] ? i : best;
    return best;
}

/* Largest difference of the listed logits over their size; *margin_out is between the two greatest recorded. Negative
 * if the list is not understood. */
static double distance(const struct record *r, const char *step, const float *logits, double *margin_out) {
    const int is_log = json_is(json_get(step, "values"), "logprobs");
    const double less = is_log ? log_sum(logits, r->vocab) : 0.0;
    double worst = 0.0, square_sum = 0.0, size = 1.0, first = 0.0, second = -INFINITY;
    uint32_t count = 0;
    for (const char *pair = json_first(json_get(step, "top")); pair != NULL; pair = json_next(pair)) {
        int32_t id = 0;
        double value = 0.0;
        const char *at = json_first(pair);
        if (at == NULL || !json_id(at, &id) || !json_bits(json_next(at), &value)) return -1.0;
        if ((uint32_t)id >= r->vocab) return -1.0;
        if (count == 0) first = value;
        else if (count == 1) second = value;
        count++;
        square_sum += value * value;
        if (is_log && value < r->floor) continue;
        const double off = fabs(logits[id] - less - value);
        if (!(off <= worst)) worst = off;
    }
    if (!is_log && !json_bits(json_get(step, "logits_rms"), &size)) size = count > 0 ? sqrt(square_sum / count) : 1.0;
    *margin_out = (first - second) / size;
    return worst / size;
}

/* Number of quantities of one step that differ; -1 if the step is not understood. */
static int compare_step(struct record *r, const char *step, int number, const float *logits) {
    char digits[2 * GLM52_SHA256_BYTES + 1];
    struct glm52_sha256 hash;
    double margin = INFINITY;
    int wrong = r->exact ? compare_layers(r, step, number) : 0;
    glm52_sha256_begin(&hash);
    glm52_sha256_add(&hash, logits, r->vocab * sizeof(float));
    hex_of(&hash, digits);
    digits[DIGEST_DIGITS] = 0;
    const double off = distance(r, step, logits, &margin);
    if (off < 0.0) return -1;
    if (r->exact && !json_is(json_get(step, "logits"), digits)) {
        wrong++;
        printf("%s: step %d: logits: other bits; the greatest are off by %.1e\n", r->path, number, off);
    } else if (!r->exact && !(off <= r->bound)) {
        wrong++;
        printf("%s: step %d: logits: off by %.1e, over %.1e\n", r->path, number, off, r->bound);
    }
    int32_t wanted = 0;
    if (json_get(step, "argmax_bytes") != NULL) return -1;  /* names a token by its bytes, which needs a vocabulary */
    if (!json_id(json_get(step, "argmax"), &wanted)) return wrong;
    const uint32_t got = argmax(logits, r->vocab);
    if (got == (uint32_t)wanted) return wrong;
    const int inside = !r->exact && margin <= MARGIN_BOUNDS * r->bound;
    printf("%s: step %d: token: %u, recorded %d with a margin of %.1e%s\n", r->path, number, got, wanted, margin,
           inside ? " (inside the margin)" : "");
    return wrong + !inside;
}

static int run_steps(struct record *r, glm52_engine *engine) {
    int wrong = 0;
    for (size_t i = 0; i < r->step_count; i++) {
        const char *step = r->lines[i];
        for (uint32_t layer = 0; layer < r->layers; layer++) {
            glm52_sha256_begin(&r->hidden[layer]);
            glm52_sha256_begin(&r->weights[layer]);
        }
        const char *ids = i == 0 ? json_get(json_get(r->head, "prompt"), "ids") : json_get(step, "fed");
        if (feed(engine, ids) != GLM52_OK) return complain(r, "has no token ids, or they can't be fed");
        const int found = compare_step(r, step, (int)i, glm52_logits(engine));
        if (found < 0) return complain(r, "a step that is not understood here");
        wrong += found;
    }
    printf("%s %s: %zu steps, %s\n", wrong == 0 ? "ok  " : "FAIL", r->path, r->step_count,
           r->exact ? "bit for bit" : "within bounds");
    return wrong == 0;
}

/* Whether the model is the record's; prints if not. */
static int is_of(const struct record *r, const glm52_model *model) {
    char identity[GLM52_IDENTITY_DIGITS + 1];
    const char *wanted = json_get(r->head, "model");
    const char *known = json_get(wanted, "identity");
    double bytes = 0.0;
    if (json_number(json_get(wanted, "file_bytes"), &bytes) && bytes != (double)glm52_model_file_bytes(model)) {
        printf("FAIL %s: needs a model of %.0f bytes, this has %.0f\n", r->path, bytes,
               (double)glm52_model_file_bytes(model));
        return 0;
    }
    if (known == NULL || *known != '"') return 1;
    if (glm52_model_identity(model, identity) == GLM52_OK && json_is(known, identity)) return 1;
    printf("FAIL %s: needs a model of other content\n", r->path);
    return 0;
}

static int run(struct record *r, glm52_model *model) {
    const glm52_shape *shape = glm52_model_shape(model);
    const char *options = json_get(r->head, "engine"), *bounds = json_get(r->head, "bounds");
    double context = 0.0, epsilon = 0.0, chunk = 0.0;
    uint32_t tokens = 0;
    free(ids_of(json_get(json_get(r->head, "prompt"), "ids"), &tokens));
    for (size_t i = 1; i < r->step_count; i++) {
        uint32_t count = 0;
        free(ids_of(json_get(r->lines[i], "fed"), &count));
        tokens += count;
    }
    if (!json_number(json_get(options, "context"), &context)) context = tokens;
    json_number(json_get(options, "latent_epsilon"), &epsilon);
    json_number(json_get(options, "chunk_rows"), &chunk);
    const int quality = *json_get(options, "quality") == 't', wide = json_is(json_get(options, "kv_type"), "f32");
    if (!(context >= 1.0 && context <= UINT32_MAX && chunk >= 0.0 && chunk <= GLM52_CHUNK_ROWS_MAX) ||
        shape->layers > LAYERS_MAX) {
        return complain(r, "options that no engine takes");
    }
    const glm52_engine_options wanted = {
        .context = (uint32_t)context, .quality = (uint32_t)quality, .chunk_rows = (uint32_t)chunk,
        .kv_type = wide ? GLM52_KV_F32 : GLM52_KV_F16, .latent_epsilon = (float)epsilon};
    glm52_engine *engine = NULL;
    if (glm52_engine_open(model, &wanted, &engine) != GLM52_OK) return complain(r, glm52_error_message());
    char arithmetic[64];
    snprintf(arithmetic, sizeof(arithmetic), "%s %s %s", glm52_engine_backend(engine), quality ? "quality" : "default",
             wide ? "f32" : "f16");
    r->exact = json_is(json_get(r->head, "arithmetic"), arithmetic);
    r->layers = shape->layers;
    r->hidden_size = shape->hidden;
    r->vocab = shape->vocab;
    r->floor = -INFINITY;
    json_number(json_get(bounds, "logprobs_floor"), &r->floor);
    if (!json_number(json_get(bounds, "logprobs"), &r->bound)) json_number(json_get(bounds, "logits"), &r->bound);
    glm52_status status = r->exact ? glm52_observe(engine, observe, r) : GLM52_OK;
    const int found = status == GLM52_OK ? run_steps(r, engine)
                                         : complain(r, glm52_error_message());
    glm52_engine_close(engine);
    return found;
}

int check_record(glm52_model *model, const char *path, FILE *file) {
    struct record *r = calloc(1, sizeof(*r));
    if (r == NULL) return -1;
    size_t count = 0;
    double format = 0.0;
    int found = -1;
    r->path = path;
    char **lines = read_lines(file, &count);
    if (lines == NULL || count < 3 || !is_closed(lines, count)) {
        complain(r, "is no oracle record, or is damaged or cut");
    } else if (!json_number(json_get(lines[0], "glm52_oracle"), &format) || format != FORMAT) {
        complain(r, "a record of another format");
    } else if (json_get(json_get(lines[0], "engine"), "quality") == NULL) {
        complain(r, "a record without options");
    } else {
        r->head = lines[0];
        r->lines = lines + 1;
        r->step_count = count - 2;
        found = is_of(r, model) ? run(r, model) : 0;
    }
    free_lines(lines);
    free(r);
    return found;
}
