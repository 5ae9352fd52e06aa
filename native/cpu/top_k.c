/* top_k.c - the k positions of highest score, exactly and always the same: higher score, then lower position.
 *
 * A score becomes an unsigned key of the same order. The k-th largest key is found digit by digit (11, 11
 * and 10 bits), counting the keys that share the digits found so far; then one pass takes what lies above
 * it, and of those equal to it the first ones. The time is that of four passes, whatever the scores are. */
#include <string.h>

#include "cpu.h"

#define DIGIT_BITS_MAX 11

struct job {
    const glm52_top_k_args *args;
    int32_t *selected;
    const float *scores;
};

/* Ascending as the scores: NaN, -infinity, ..., -0 and +0 as one, ..., infinity. No branches here and
 * below: signs and choices are as good as random, so every second one would be guessed wrong. */
static inline uint32_t key_of(float score) {
    uint32_t bits;
    const float value = score + 0.0f;    /* -0 becomes +0 */
    memcpy(&bits, &value, sizeof(bits));
    const uint32_t is_negative = 0 - (bits >> 31);
    const uint32_t is_number = 0 - (uint32_t)((bits & 0x7fffffff) <= 0x7f800000);
    return (bits ^ (is_negative | (uint32_t)1 << 31)) & is_number;
}

/* The k-th largest key of scores [count], k from 1 to count. *equal_out is how many keys equal to it are
 * among the k largest. */
static uint32_t find_threshold(const float *scores, size_t count, size_t k, size_t *equal_out) {
    static const uint32_t shifts[] = {21, 10, 0}, widths[] = {11, 11, 10};
    uint32_t threshold = 0, known = 0;   /* digits found, and a mask of them */
    for (size_t pass = 0; pass < 3; pass++) {
        uint32_t counts[1 << DIGIT_BITS_MAX] = {0};
        const uint32_t mask = ((uint32_t)1 << widths[pass]) - 1;
        for (size_t i = 0; i < count; i++) {
            const uint32_t key = key_of(scores[i]);
            counts[key >> shifts[pass] & mask] += (key & known) == threshold;
        }
        uint32_t digit = mask;
        while (counts[digit] < k) k -= counts[digit--];
        threshold |= digit << shifts[pass];
        known |= mask << shifts[pass];
    }
    *equal_out = k;
    return threshold;
}

static void select_row(const float *scores, size_t count, size_t k, int32_t *selected) {
    size_t equal_left = 0, taken = 0;
    const uint32_t threshold = find_threshold(scores, count, k, &equal_left);
    for (size_t i = 0; taken < k; i++) {
        const uint32_t key = key_of(scores[i]);
        const size_t is_equal = (key == threshold) & (equal_left > 0);
        selected[taken] = (int32_t)i;    /* stays if it is taken, else is written over */
        taken += (key > threshold) | is_equal;
        equal_left -= is_equal;
    }
}

static void select_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const glm52_top_k_args *args = job->args;
    for (size_t r = begin; r < end; r++) {
        int32_t *selected = job->selected + r * args->selected_stride;
        const size_t count = (size_t)args->position + r + 1;
        if (count > args->k) {
            select_row(job->scores + r * args->score_stride, count, args->k, selected);
            continue;
        }
        for (size_t i = 0; i < count; i++) selected[i] = (int32_t)i;
    }
}

size_t glm52_cpu_top_k_scratch(const glm52_backend *backend, const glm52_top_k_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_top_k(glm52_backend *backend, const glm52_top_k_args *args, int32_t *selected,
                     const float *scores) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, selected, scores};
    const size_t cost = (size_t)args->position + args->row_count;
    glm52_pool_run(pool, args->row_count, glm52_pool_grain(pool, args->row_count, cost), select_rows, &job);
}
