/* budget.c - the arithmetic of an expert cache: how many experts fit in how much memory. Pure functions of numbers;
 * what a model's numbers are is plan.c's.
 *
 * Two ways to divide a budget are here. glm52_budget_make follows the rules of the public ds4 executor to the byte,
 * because their results are known and can be compared. glm52_classes_fill is ours: layers whose experts have another
 * size get slots of their own instead of staying in memory whole, and no layers are kept free for prefill, which
 * goes through the slots like everything else. */
#include <stdlib.h>

#include "checked.h"
#include "error.h"
#include "glm52_stream.h"

#define GIB 1073741824.0
#define MEMORY_LEFT_SHARE 16u            /* of the machine's memory, left to the system */
#define MEMORY_LEFT_MIN (2ull << 30)
#define WIRED_LEFT (2ull << 30)          /* below a limit of wired memory that somebody set */
#define DYNAMIC_LAYERS_MIN 1u            /* automatic full layers leave slots for so many layers' experts */

static glm52_status too_large(const char *what) {
    return glm52_fail(GLM52_ERR_BUDGET, "%s does not fit in 64 bits", what);
}

glm52_status glm52_budget_slots(uint64_t total, uint64_t headroom, uint64_t full_bytes, uint64_t expert_bytes,
                                uint32_t slots_max, uint32_t *slots_out) {
    if (slots_out == NULL || expert_bytes == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "budget_slots: NULL pointer or experts of 0 bytes");
    }
    uint64_t reserved = 0;
    if (!glm52_add_u64(headroom, full_bytes, &reserved)) return too_large("what the expert cache must leave free");
    const uint64_t slots = glm52_min_u64(glm52_sub_floor0(total, reserved) / expert_bytes, slots_max);
    if (slots == 0) {
        return glm52_fail(GLM52_ERR_BUDGET,
                          "no memory for an expert cache: of %llu bytes, %llu are kept free and %llu go to whole "
                          "layers; one expert needs %llu",
                          (unsigned long long)total, (unsigned long long)headroom, (unsigned long long)full_bytes,
                          (unsigned long long)expert_bytes);
    }
    *slots_out = (uint32_t)slots;
    return GLM52_OK;
}

/* What the caller allows: an explicit number of bytes, or a share of the working set. */
static glm52_status budget_total(const glm52_budget_args *args, uint64_t expert_bytes, uint64_t slots_max,
                                 uint64_t *total_out) {
    uint64_t total = args->cache_bytes;
    if (total == 0) {
        if (args->working_set == 0) {
            return glm52_fail(GLM52_ERR_BUDGET, "the device reports no working set; give the expert cache a size");
        }
        const bool is_valid = args->percent >= GLM52_CACHE_PERCENT_MIN && args->percent <= GLM52_CACHE_PERCENT_MAX;
        const uint32_t percent = is_valid ? args->percent : GLM52_CACHE_PERCENT_DEFAULT;
        /* Divided first, so that no working set overflows; the remainder is put back. */
        total = args->working_set / 100 * percent + args->working_set % 100 * percent / 100;
        total = glm52_min_u64(glm52_sub_floor0(total, args->other_bytes), GLM52_CACHE_AUTO_BYTES_MAX);
    }
    const uint64_t whole = glm52_min_u64(glm52_max_u64(total / expert_bytes, 1), slots_max);
    *total_out = whole * expert_bytes;   /* at most total, or one expert */
    return GLM52_OK;
}

/* The longest prefix of whole layers that the automatic rules allow, or the one asked for, shortened until slots for
 * one layer's experts are left. */
static glm52_status full_layers(const glm52_budget_args *args, glm52_budget *budget) {
    const uint64_t after = budget->total - budget->headroom;
    const uint64_t limit = glm52_min_u64(after / GLM52_FULL_LAYERS_SHARE, GLM52_FULL_LAYERS_BYTES_MAX);
    const bool is_auto = args->full_layers == GLM52_FULL_LAYERS_AUTO;
    uint64_t bytes = 0, dynamic = 0;
    uint32_t layers = 0;
    const uint32_t wanted = is_auto ? args->trunk_count : (uint32_t)glm52_min_u64(args->full_layers, args->trunk_count);
    while (layers < wanted) {
        uint64_t next = 0;
        if (!glm52_add_u64(bytes, args->layer_bytes[layers], &next)) return too_large("the layers kept whole");
        if (is_auto && next > limit) break;
        bytes = next;
        layers++;
    }
    if (!glm52_mul_u64((uint64_t)args->experts * DYNAMIC_LAYERS_MIN, budget->expert_bytes, &dynamic)) {
        return too_large("one layer of experts");
    }
    while (layers > 0 && glm52_sub_floor0(after, bytes) <= dynamic) bytes -= args->layer_bytes[--layers];
    budget->full_layers = layers;
    budget->full_bytes = bytes;
    return GLM52_OK;
}

static glm52_status prefill_headroom(const glm52_budget_args *args, glm52_budget *budget) {
    uint64_t largest = 0;
    for (uint32_t i = 0; i < args->sparse_count; i++) largest = glm52_max_u64(largest, args->layer_bytes[i]);
    if (!glm52_mul_u64(largest, GLM52_PREFILL_HEADROOM_LAYERS, &budget->headroom)) {
        return too_large("the layers kept free for prefill");
    }
    if (budget->headroom >= budget->total) {
        return glm52_fail(GLM52_ERR_BUDGET,
                          "the expert cache is too small: %llu bytes (%.2f GiB), and %d routed layers kept free for "
                          "prefill need %llu (%.2f GiB)",
                          (unsigned long long)budget->total, (double)budget->total / GIB,
                          GLM52_PREFILL_HEADROOM_LAYERS, (unsigned long long)budget->headroom,
                          (double)budget->headroom / GIB);
    }
    return GLM52_OK;
}

/* An explicit number of slots: exactly that, and nothing kept free. */
static glm52_status explicit_slots(const glm52_budget_args *args, uint64_t slots_max, glm52_budget *budget) {
    budget->slots = (uint32_t)glm52_min_u64(args->cache_experts, slots_max);
    const bool none = args->full_layers == GLM52_FULL_LAYERS_AUTO;
    budget->full_layers = none ? 0 : (uint32_t)glm52_min_u64(args->full_layers, args->trunk_count);
    for (uint32_t i = 0; i < budget->full_layers; i++) {
        if (!glm52_add_u64(budget->full_bytes, args->layer_bytes[i], &budget->full_bytes)) {
            return too_large("the layers kept whole");
        }
    }
    if (!glm52_mul_u64(budget->slots, budget->expert_bytes, &budget->slot_bytes) ||
        !glm52_add_u64(budget->slot_bytes, budget->full_bytes, &budget->planned)) {
        return too_large("the expert cache");
    }
    budget->total = budget->planned;
    return GLM52_OK;
}

glm52_status glm52_budget_make(const glm52_budget_args *args, glm52_budget *budget_out) {
    if (args == NULL || budget_out == NULL || args->layer_bytes == NULL) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "budget_make: NULL pointer");
    }
    if (args->experts == 0 || args->sparse_count == 0 || args->trunk_count > args->sparse_count ||
        args->layer_bytes[0] < args->experts) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "budget_make: no routed experts");
    }
    glm52_budget budget = {.expert_bytes = args->layer_bytes[0] / args->experts};
    const uint64_t slots_max = glm52_min_u64((uint64_t)args->blocks * args->experts, UINT32_MAX);
    if (args->cache_experts > 0) {
        GLM52_TRY(explicit_slots(args, slots_max, &budget));
    } else {
        GLM52_TRY(budget_total(args, budget.expert_bytes, slots_max, &budget.total));
        GLM52_TRY(prefill_headroom(args, &budget));
        GLM52_TRY(full_layers(args, &budget));
        GLM52_TRY(glm52_budget_slots(budget.total, budget.headroom, budget.full_bytes, budget.expert_bytes,
                                     (uint32_t)slots_max, &budget.slots));
        /* Both are parts of total, so neither wraps. */
        budget.slot_bytes = budget.slots * budget.expert_bytes;
        budget.planned = budget.slot_bytes + budget.full_bytes;
    }
    *budget_out = budget;
    return GLM52_OK;
}

/* ---- size classes ---- */

/* What is to be divided: slots or bytes. A slot costs 1 or its bytes. */
struct division {
    glm52_size_class *classes;
    uint32_t count, experts;
    bool by_slots;
    uint64_t left;
};

static uint64_t cost_of(const struct division *d, uint32_t i) {
    return d->by_slots ? 1 : d->classes[i].slot_bytes;
}

static uint64_t slots_max_of(const struct division *d, uint32_t i) {
    return glm52_min_u64((uint64_t)d->classes[i].layers * d->experts, UINT32_MAX);
}

/* Gives every class that has room the same number of slots per layer, as many as fit. False when there is nothing
 * to give or nobody to take. */
static bool give_share(struct division *d) {
    uint64_t round = 0;   /* what one slot for each layer costs */
    for (uint32_t i = 0; i < d->count; i++) {
        if (d->classes[i].slots < slots_max_of(d, i)) round += d->classes[i].layers * cost_of(d, i);
    }
    if (round == 0 || d->left < round) return false;
    const uint64_t rounds = d->left / round;
    for (uint32_t i = 0; i < d->count; i++) {
        const uint64_t room = slots_max_of(d, i) - d->classes[i].slots;
        const uint64_t given = room / d->classes[i].layers < rounds ? room : rounds * d->classes[i].layers;
        d->classes[i].slots += (uint32_t)given;
        d->left -= given * cost_of(d, i);
    }
    return true;
}

/* Less than one slot per layer is left: one at a time to the class with the fewest per layer, then the first. */
static bool give_one(struct division *d) {
    uint32_t best = d->count;
    for (uint32_t i = 0; i < d->count; i++) {
        const glm52_size_class *c = &d->classes[i];
        if (c->slots >= slots_max_of(d, i) || cost_of(d, i) > d->left) continue;
        if (best == d->count || (uint64_t)c->slots * d->classes[best].layers <
                                    (uint64_t)d->classes[best].slots * c->layers) {
            best = i;
        }
    }
    if (best == d->count) return false;
    d->classes[best].slots++;
    d->left -= cost_of(d, best);
    return true;
}

glm52_status glm52_classes_fill(glm52_size_class *classes, uint32_t count, uint32_t experts, uint32_t used,
                                uint64_t cache_bytes, uint64_t cache_experts) {
    if (classes == NULL || count == 0 || count > GLM52_SIZE_CLASSES_MAX || used == 0 || used > experts ||
        experts > 65536) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "classes_fill: %u classes, %u of %u experts used", count, used, experts);
    }
    struct division d = {.classes = classes, .count = count, .experts = experts, .by_slots = cache_experts > 0,
                         .left = cache_experts > 0 ? cache_experts : cache_bytes};
    uint64_t minimum = 0, whole = 0, bytes = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (classes[i].layers == 0 || classes[i].layers > GLM52_LAYERS_MAX || classes[i].slot_bytes == 0) {
            return glm52_fail(GLM52_ERR_ARGUMENT, "classes_fill: class %u has %u layers and slots of %llu bytes", i,
                              classes[i].layers, (unsigned long long)classes[i].slot_bytes);
        }
        /* Afterwards no cost in this file can wrap: all are at most the sum of whole layers. */
        if (!glm52_mul_u64((uint64_t)classes[i].layers * experts, classes[i].slot_bytes, &bytes) ||
            !glm52_add_u64(whole, bytes, &whole)) {
            return too_large("the experts of all layers");
        }
        minimum += used * cost_of(&d, i);
    }
    if (d.left < minimum) {
        return glm52_fail(GLM52_ERR_BUDGET,
                          "an expert cache of %llu %s can't start: one token's selection, %u experts in each of %u "
                          "sizes, needs at least %llu",
                          (unsigned long long)d.left, d.by_slots ? "experts" : "bytes", used, count,
                          (unsigned long long)minimum);
    }
    d.left -= minimum;
    for (uint32_t i = 0; i < count; i++) classes[i].slots = used;
    while (give_share(&d)) {
    }
    while (give_one(&d)) {
    }
    return GLM52_OK;
}

/* ---- limits and sums ---- */

glm52_status glm52_memory_usable(uint64_t memory_bytes, uint64_t working_set, uint64_t wired_limit,
                                 uint64_t *usable_out) {
    if (usable_out == NULL || memory_bytes == 0) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "memory_usable: NULL pointer or a machine of 0 bytes");
    }
    uint64_t usable = glm52_sub_floor0(memory_bytes, glm52_max_u64(memory_bytes / MEMORY_LEFT_SHARE, MEMORY_LEFT_MIN));
    if (working_set > 0) usable = glm52_min_u64(usable, working_set);
    if (wired_limit > 0) usable = glm52_min_u64(usable, glm52_sub_floor0(wired_limit, WIRED_LEFT));
    if (usable == 0) {
        return glm52_fail(GLM52_ERR_BUDGET,
                          "nothing of %llu bytes of memory may be used (working set %llu, wired limit %llu)",
                          (unsigned long long)memory_bytes, (unsigned long long)working_set,
                          (unsigned long long)wired_limit);
    }
    *usable_out = usable;
    return GLM52_OK;
}

glm52_status glm52_admission_total(glm52_admission *a) {
    if (a == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "admission_total: NULL pointer");
    const uint64_t parts[] = {a->resident, a->kv, a->mtp, a->experts, a->scratch, a->transient};
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        if (!glm52_add_u64(total, parts[i], &total)) return too_large("the memory of all parts");
    }
    a->total = total;
    return GLM52_OK;
}

static int compare_spans(const void *a, const void *b) {
    const uint64_t x = ((const glm52_span *)a)->offset, y = ((const glm52_span *)b)->offset;
    return (x > y) - (x < y);
}

glm52_status glm52_spans_merge(glm52_span *spans, uint64_t *count) {
    if (spans == NULL || count == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "spans_merge: NULL pointer");
    uint64_t end = 0, kept = 0;
    for (uint64_t i = 0; i < *count; i++) {
        if (!glm52_add_u64(spans[i].offset, spans[i].bytes, &end)) return too_large("the end of a span");
    }
    qsort(spans, *count, sizeof(*spans), compare_spans);
    for (uint64_t i = 0; i < *count; i++) {
        if (spans[i].bytes == 0) continue;
        if (kept > 0 && spans[i].offset <= spans[kept - 1].offset + spans[kept - 1].bytes) {
            end = glm52_max_u64(spans[kept - 1].offset + spans[kept - 1].bytes, spans[i].offset + spans[i].bytes);
            spans[kept - 1].bytes = end - spans[kept - 1].offset;
        } else {
            spans[kept++] = spans[i];
        }
    }
    if (kept == 0) return glm52_fail(GLM52_ERR_ARGUMENT, "spans_merge: there is no span");
    *count = kept;
    return GLM52_OK;
}

uint32_t glm52_preload_count(bool cold, uint32_t asked, uint32_t slots) {
    if (cold) return 0;
    const uint32_t wanted = asked > 0 ? asked : GLM52_PRELOAD_MAX;
    return wanted < slots ? wanted : slots;
}

bool glm52_prefill_by_token(uint32_t context, uint32_t position, uint32_t remaining, uint32_t rows_max) {
    const uint32_t cap = context >= GLM52_LONG_CONTEXT ? GLM52_TOKEN_PREFILL_CONTEXT_LONG : GLM52_TOKEN_PREFILL_CONTEXT;
    const uint32_t end = cap < context ? cap : context;
    return remaining > 0 && remaining <= rows_max && position < end && remaining <= end - position;
}

uint32_t glm52_auto_pin_count(uint64_t selections, uint32_t slots, uint64_t slot_bytes, uint64_t bytes_min) {
    if (selections < GLM52_AUTO_PIN_SELECTIONS_MIN) return 0;
    const uint64_t sure = glm52_min_u64(selections, GLM52_AUTO_PIN_SELECTIONS_SURE);
    const uint64_t pins = slots / 2 * sure / GLM52_AUTO_PIN_SELECTIONS_SURE;
    uint64_t bytes = 0;
    if (!glm52_mul_u64(pins, slot_bytes, &bytes)) return 0;
    return bytes < (bytes_min > 0 ? bytes_min : GLM52_AUTO_PIN_BYTES_MIN) ? 0 : (uint32_t)pins;
}
