/* glm52_stream.h - experts that do not fit: what an engine may be asked to do about them, the arithmetic of the
 * memory it takes, and the cache as an object of its own, for simulation and tests.
 *
 * While an engine streams, routed experts live in slots of a bounded cache and are read from the file when the
 * router asks for them. Which expert is in which slot depends on the routes alone, never on time or threads, and
 * no result depends on it at all: logits are bit for bit those of an engine that does not stream. */
#ifndef GLM52_STREAM_PUBLIC_H
#define GLM52_STREAM_PUBLIC_H

#include "glm52.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

/* ---- plan: checked 64-bit arithmetic, no model needed ---------------------------------------------------- */

#define GLM52_CACHE_PERCENT_DEFAULT 80          /* of the working set, for the automatic budget */
#define GLM52_CACHE_PERCENT_MIN 50
#define GLM52_CACHE_PERCENT_MAX 95
#define GLM52_CACHE_AUTO_BYTES_MAX 12884901888  /* 12 GiB: cap of the automatic budget, and of no other */
#define GLM52_FULL_LAYERS_SHARE 7               /* automatic full layers take at most 1/7 of the budget */
#define GLM52_FULL_LAYERS_BYTES_MAX 10737418240 /* and 10 GiB */
#define GLM52_FULL_LAYERS_AUTO 4294967295
#define GLM52_PREFILL_HEADROOM_LAYERS 2         /* whole routed layers that the published rules keep free */
#define GLM52_SCRATCH_BYTES_MIN 536870912       /* floor of scratch in the published admission, 512 MiB */
#define GLM52_PRELOAD_MAX 4096                  /* experts that are preloaded unless a number is given */

/* What the published rules (ds4's GLM executor) ask for. */
typedef struct glm52_budget_args {
    uint64_t working_set;       /* that the device recommends; 0: unknown */
    uint64_t other_bytes;       /* weights that are not routed experts */
    uint64_t cache_bytes;       /* explicit budget, 0: automatic */
    uint32_t cache_experts;     /* explicit number of slots, 0: none given */
    uint32_t percent;           /* of the working set; outside 50..95: 80 */
    uint32_t experts;           /* per layer */
    uint32_t sparse_count;      /* sparse layers, MTP blocks included */
    uint32_t trunk_count;       /* of them in the trunk */
    uint32_t blocks;            /* all layers of the model, MTP blocks included */
    uint32_t full_layers;       /* leading sparse layers kept whole, or GLM52_FULL_LAYERS_AUTO */
    const uint64_t *layer_bytes; /* [sparse_count] routed bytes of each sparse layer */
} glm52_budget_args;

typedef struct glm52_budget {
    uint64_t expert_bytes;      /* of the first sparse layer: the size of a slot */
    uint64_t total;             /* what cache, full layers and headroom may take */
    uint64_t headroom;          /* kept free for prefill */
    uint64_t full_bytes;
    uint64_t slot_bytes;        /* slots * expert_bytes */
    uint64_t planned;           /* full_bytes + slot_bytes */
    uint32_t full_layers;
    uint32_t slots;
} glm52_budget;

/* The expert cache by the published rules: a slot has the size of the first sparse layer's experts, two whole
 * layers stay free for prefill. Kept for comparison and as a known answer; engines plan by size classes.
 * Errors: ARGUMENT; BUDGET with the numbers. */
GLM52_API glm52_status glm52_budget_make(const glm52_budget_args *args, glm52_budget *budget_out);

/* (total - headroom - full_bytes) / expert_bytes, at most slots_max. Errors: BUDGET if there is none left;
 * ARGUMENT if expert_bytes is 0. */
GLM52_API glm52_status glm52_budget_slots(uint64_t total, uint64_t headroom, uint64_t full_bytes,
                                          uint64_t expert_bytes, uint32_t slots_max, uint32_t *slots_out);

/* One size of expert. */
typedef struct glm52_size_class {
    uint64_t expert_bytes;      /* gate, up and down as they lie in the file */
    uint64_t slot_bytes;        /* the same in memory: each at a multiple of 64, the slot at one of 4096 */
    uint32_t layers;            /* layers of this size that go through the cache */
    uint32_t slots;             /* what the plan gives them */
} glm52_size_class;

#define GLM52_SIZE_CLASSES_MAX 32

/* Divides a budget among size classes: each gets used slots first (one token's selection, without which it can't
 * run), the rest goes by the number of layers, so that an expert of any layer has the same chance to stay; no
 * class gets more than layers * experts. cache_experts, if not 0, is the number of slots of all classes;
 * else cache_bytes is their memory. Writes the slots of each class.
 * Errors: ARGUMENT; BUDGET below the minimum, which the message states. */
GLM52_API glm52_status glm52_classes_fill(glm52_size_class *classes, uint32_t count, uint32_t experts,
                                          uint32_t used, uint64_t cache_bytes, uint64_t cache_experts);

/* Bytes of the machine that a plan may use: of memory_bytes a sixteenth, at least 2 GiB, is left to the system;
 * working_set (0: unknown) and wired_limit - 2 GiB (0: not set) are limits if they are lower.
 * Errors: ARGUMENT if memory_bytes is 0; BUDGET if nothing is left. */
GLM52_API glm52_status glm52_memory_usable(uint64_t memory_bytes, uint64_t working_set, uint64_t wired_limit,
                                           uint64_t *usable_out);

/* What is counted before memory is promised. */
typedef struct glm52_admission {
    uint64_t resident;          /* weights that are used where they are mapped */
    uint64_t kv;                /* caches of all sessions: sessions * context * bytes per token */
    uint64_t mtp;               /* cache and selection of the MTP block, per session */
    uint64_t experts;           /* slots and full layers */
    uint64_t scratch;           /* activations and scratch of one batch, at least GLM52_SCRATCH_BYTES_MIN if asked */
    uint64_t transient;         /* a second state while conversations are swapped, read buffers */
    uint64_t total;             /* the sum */
} glm52_admission;

/* Adds up; total is overwritten. Errors: ARGUMENT; BUDGET if the sum does not fit in 64 bits. */
GLM52_API glm52_status glm52_admission_total(glm52_admission *admission);

/* A range of a file. */
typedef struct glm52_span {
    uint64_t offset, bytes;
} glm52_span;

/* Sorts spans and merges those that touch or overlap, in place; *count is the number before and after. Empty ones
 * vanish. Errors: ARGUMENT if there are none; BUDGET if an end does not fit in 64 bits. */
GLM52_API glm52_status glm52_spans_merge(glm52_span *spans, uint64_t *count);

/* How many experts are preloaded: none if cold; of an explicit number (not 0) as many as there are slots; else
 * GLM52_PRELOAD_MAX at most. */
GLM52_API uint32_t glm52_preload_count(bool cold, uint32_t asked, uint32_t slots);

#define GLM52_TOKEN_PREFILL_MAX 64
#define GLM52_TOKEN_PREFILL_CONTEXT 8192         /* positions up to which prefill may go token by token */
#define GLM52_TOKEN_PREFILL_CONTEXT_LONG 4096    /* the same for a context of at least ... */
#define GLM52_LONG_CONTEXT 65536                 /* ... this */

/* Whether a prompt's rest is fed token by token (through the cache) instead of layer by layer. */
GLM52_API bool glm52_prefill_by_token(uint32_t context, uint32_t position, uint32_t remaining,
                                      uint32_t rows_max);

/* ---- the cache's bookkeeping ------------------------------------------------------------------------------ */

typedef enum glm52_policy_kind {
    GLM52_POLICY_LRU = 0,       /* out goes what was used longest ago */
    GLM52_POLICY_HOTNESS = 1,   /* ... chosen least often, halved every 16 tokens; then longest ago */
    GLM52_POLICY_LFRU = 2       /* ... lowest of heat * 256 + max(0, 255 - age), heat halved every turn */
} glm52_policy_kind;

#define GLM52_POLICY_COUNT 3
#define GLM52_HOTNESS_DECAY_TOKENS 16
#define GLM52_LFRU_AGE_MAX 255
#define GLM52_REPIN_SWAPS_MAX 4                  /* per turn */

/* Names one routed expert. */
typedef struct glm52_expert_id {
    uint32_t layer, expert;
} glm52_expert_id;

/* Static. NULL for a number that is no policy. */
GLM52_API const char *glm52_policy_name(uint32_t policy);

typedef struct glm52_cache glm52_cache;

#define GLM52_CACHE_NO_CLASS 255                 /* the layer has no routed experts */

typedef struct glm52_cache_args {
    uint32_t layers, experts;
    const uint8_t *class_of;    /* [layers] size class or GLM52_CACHE_NO_CLASS */
    uint32_t class_count;
    const uint32_t *slots;      /* [class_count] */
    uint32_t policy;            /* glm52_policy_kind */
    const glm52_expert_id *pins; /* [pin_count] never evicted; each takes one slot from the start */
    uint32_t pin_count;
} glm52_cache_args;

/* An expert that has to be read into a slot. A slot's generation changes whenever it is given to another expert,
 * so that news of an older read can be told from news of this one. */
typedef struct glm52_load {
    uint32_t layer, expert, slot, generation;
} glm52_load;

typedef struct glm52_cache_stats {
    uint64_t hits;              /* experts of a selection that were there */
    uint64_t misses;            /* and that were not */
    uint64_t evictions;         /* experts that had to go for another */
    uint64_t routes;            /* choices of rows, before duplicates are taken out */
    uint64_t segments;          /* parts that selections were taken in */
    uint64_t stolen;            /* experts evicted although a later part of the same selection wants them */
    uint64_t preloaded;
    uint64_t ahead;             /* experts given a slot because a selection to come may want them */
    uint64_t ahead_used;        /* of them, selected while they had it: hits as well */
    uint64_t repins;
    uint64_t stale;             /* completions of a generation that is gone */
    uint32_t resident;          /* experts in slots now */
    uint32_t slots, pinned;
} glm52_cache_stats;

/* Makes the bookkeeping of a cache, without memory for experts. Errors: ARGUMENT (no slots in a class that layers
 * use, a pin that is twice there or outside, no slot left beside the pins); MEMORY. */
GLM52_API glm52_status glm52_cache_open(const glm52_cache_args *args, glm52_cache **cache_out);

/* Frees it. */
GLM52_API void glm52_cache_close(glm52_cache *cache);

/* Starts on a selection of one layer: ids [count], duplicates welcome. Its experts, each once and in ascending
 * order, are cut into segments that fit the slots: one if all do, else of half the slots that are not pinned, so
 * that one segment can be read while the other is used. Experts of the first segments that are missing are given
 * slots and listed in loads_out [slots of the class at most], *load_count_out of them. Of the rest, those at hand
 * are kept as long as possible.
 * Errors: ARGUMENT (also if a selection is under way). */
GLM52_API glm52_status glm52_cache_begin(glm52_cache *cache, uint32_t layer, const int32_t *ids, uint32_t count,
                                         glm52_load *loads_out, uint32_t *load_count_out);

/* The experts of the segment in use, ascending, and their slots; *count_out is 0 when no selection is under way.
 * Valid until the next call of this, begin or advance. Errors: ARGUMENT if a pointer is NULL. */
GLM52_API glm52_status glm52_cache_segment(const glm52_cache *cache, const uint32_t **experts_out,
                                           const uint32_t **slots_out, uint32_t *count_out);

/* Says that a load is done. One of another generation is counted and ignored. Errors: ARGUMENT for a slot that
 * does not exist. */
GLM52_API glm52_status glm52_cache_loaded(glm52_cache *cache, uint32_t slot, uint32_t generation);

/* Gives up the segment in use, whose experts must all be loaded, and goes to the next; loads as in begin. Behind
 * the last the selection is over. Errors: ARGUMENT. */
GLM52_API glm52_status glm52_cache_advance(glm52_cache *cache, glm52_load *loads_out, uint32_t *load_count_out);

/* Ends a selection that failed: slots being loaded are empty again, all others as they are. */
GLM52_API void glm52_cache_abort(glm52_cache *cache);

/* Says that rows tokens went through all layers. Policies age by this. */
GLM52_API void glm52_cache_tick(glm52_cache *cache, uint32_t rows);

/* Says that a turn of the conversation begins: LFRU halves its heat, and if repin is set up to
 * GLM52_REPIN_SWAPS_MAX pinned experts change places with hotter ones, those first that gain most. */
GLM52_API void glm52_cache_turn(glm52_cache *cache, bool repin);

/* Gives a free slot to an expert before anybody asks, with this heat; *given_out is false if it is there already
 * or no slot is free. Errors: ARGUMENT. */
GLM52_API glm52_status glm52_cache_preload(glm52_cache *cache, glm52_expert_id id, uint32_t heat, bool *given_out,
                                           glm52_load *load_out);

/* Gives a slot to an expert that the selection of another layer to come may want, now that no part of the selection
 * under way is without its slots; what goes for it is what would go for a miss. *given_out is false if the expert has
 * a slot, or if none can be had without taking one from the selection under way. Errors: ARGUMENT. */
GLM52_API glm52_status glm52_cache_ahead(glm52_cache *cache, glm52_expert_id id, bool *given_out,
                                         glm52_load *load_out);

/* Says that a load which no selection has asked for yet has failed: its slot is free again. One of another
 * generation, or that a selection wants by now, is left alone. Errors: ARGUMENT for a slot that does not exist. */
GLM52_API glm52_status glm52_cache_dropped(glm52_cache *cache, uint32_t slot, uint32_t generation);

/* Takes slots out of use for good until a class has no more than slots of them: empty ones first, then those whose
 * experts would go first. Lists them in gone_out [slots of the class]. What is pinned, being read or in use stays,
 * and so does one slot that is not pinned. Errors: ARGUMENT (also if a selection is under way); BUDGET if it can't
 * come down so far, with the number it can: nothing is changed then. */
GLM52_API glm52_status glm52_cache_shrink(glm52_cache *cache, uint32_t class_index, uint32_t slots,
                                          uint32_t *gone_out, uint32_t *gone_count_out);

/* The slot that holds an expert, loaded or being loaded, or -1. */
GLM52_API int64_t glm52_cache_find(const glm52_cache *cache, uint32_t layer, uint32_t expert);

/* Counters since open. */
GLM52_API void glm52_cache_stats_get(const glm52_cache *cache, glm52_cache_stats *stats_out);

/* ---- what an engine does --------------------------------------------------------------------------------- */

typedef enum glm52_pilot {
    GLM52_PILOT_OFF = 0,
    GLM52_PILOT_MEASURE = 1,    /* predicts the next layer's experts and counts how often it is right */
    GLM52_PILOT_HINT = 2,       /* and tells the system about those that are not there */
    GLM52_PILOT_LOAD = 3        /* or reads the likeliest of them into slots while this layer is computed */
} glm52_pilot;

#define GLM52_AHEAD_DEFAULT 2   /* experts per layer and batch that are loaded ahead */

#define GLM52_PILOT_ROWS_MAX 8  /* wider batches are not predicted */
#define GLM52_WORKERS_DEFAULT 8
#define GLM52_WORKERS_MAX 256
#define GLM52_ADVISE_WILLNEED 1 /* before a read: the range will be needed */
#define GLM52_ADVISE_DONTNEED 2 /* after it: the page cache may drop it */

/* Reads like pread: bytes read, 0 at the end of the file, or -1 with *error_out an errno. */
typedef int64_t glm52_read_hook(void *user, int32_t file, void *buffer, uint64_t bytes, uint64_t offset,
                                int32_t *error_out);

/* For tests alone. */
typedef struct glm52_stream_test {
    glm52_read_hook *read;      /* instead of pread; NULL: pread */
    void *user;
    uint32_t poison;            /* fill a slot with NaN before it is read into */
    uint32_t guard;             /* make the routed tensors' mapping unreadable while the engine is open */
    uint32_t fail_allocation;   /* the how-manieth allocation of the stream fails, from 1; 0: none */
} glm52_stream_test;

typedef struct glm52_stream_options {
    uint64_t cache_bytes;       /* memory of the slots; 0: see cache_experts */
    uint32_t cache_experts;     /* slots; 0 with cache_bytes 0: automatic */
    uint64_t memory_bytes;      /* that this process may use, for the automatic size; 0: the machine's */
    uint32_t full_layers;       /* leading sparse layers that get a slot for each expert, beside the budget */
    uint32_t policy;            /* glm52_policy_kind */
    uint32_t workers;           /* threads that read, 0: GLM52_WORKERS_DEFAULT */
    uint32_t direct_io;         /* past the page cache (O_DIRECT, F_NOCACHE) */
    uint32_t advise;            /* GLM52_ADVISE_* */
    uint32_t wired;             /* lock slots in memory, as far as the system lets */
    uint32_t mtp;               /* stream the first MTP block too, which then is the layer behind the trunk; an
                                   engine sets it as its own option says */
    uint32_t token_prefill_max; /* prompts up to this long go token by token where glm52_prefill_by_token says */
    const char *mirror_path;    /* a copy of the model on another disk, for half of the reads; NULL: none */
    const glm52_expert_id *pins; /* [pin_count] */
    uint32_t pin_count;
    const glm52_expert_id *preload; /* [preload_count] hottest first */
    uint32_t preload_count;
    uint32_t preload_max;       /* of them, 0: GLM52_PRELOAD_MAX */
    const char *usage_path;     /* ledger of routes, read at open, written at turns and at close; NULL: none */
    uint32_t auto_pin;          /* pin what the ledger says is hot */
    uint64_t auto_pin_bytes_min; /* fewer bytes are not worth pinning, 0: GLM52_AUTO_PIN_BYTES_MIN */
    uint32_t live_repin;        /* exchange pins at turns */
    uint32_t pilot;             /* glm52_pilot */
    uint32_t pilot_k;           /* experts per row that are hinted at, 0: as many as the router picks; experts per
                                   batch that are loaded, 0: GLM52_AHEAD_DEFAULT */
    uint32_t pilot_two_step;    /* predict with the shared expert's output added */
    const glm52_stream_test *test; /* NULL */
} glm52_stream_options;

#define GLM52_AUTO_PIN_SELECTIONS_MIN 5000
#define GLM52_AUTO_PIN_SELECTIONS_SURE 200000
#define GLM52_AUTO_PIN_BYTES_MIN 500000000

/* Slots that are pinned by a ledger of selections: none below 5000 of them, half of all slots from 200000 on, in
 * proportion between; none if they hold less than bytes_min. */
GLM52_API uint32_t glm52_auto_pin_count(uint64_t selections, uint32_t slots, uint64_t slot_bytes,
                                        uint64_t bytes_min);

typedef struct glm52_latency {
    uint64_t count, total_ns, p50_ns, p95_ns, p99_ns, max_ns; /* percentiles to within a ninth above */
} glm52_latency;

/* Measured since open. Demand is what selections needed; policy is what preloads, pins and hints did. */
typedef struct glm52_stream_stats {
    uint64_t slots, slot_bytes, classes, resident, pinned, wired_bytes;
    uint64_t hits, misses, evictions, routes, segments, stolen;
    uint64_t loads;             /* experts read for a selection */
    uint64_t read_ops;          /* calls of pread, for selections */
    uint64_t read_bytes;        /* what they returned */
    uint64_t direct_ops, short_reads, interrupted, errors;
    uint64_t mirror_ops, mirror_fallbacks;
    uint64_t willneed_bytes, dontneed_bytes;
    glm52_latency service;      /* one slice of an expert on the disk */
    glm52_latency wait;         /* the computing thread in want of experts, one layer of a batch */
    uint64_t preloaded, policy_ops, policy_bytes, repins;
    uint64_t ledger_selections;
    uint64_t pilot_predictions; /* rows of layers predicted and then seen */
    uint64_t pilot_predicted, pilot_correct; /* experts; recall is correct / wanted */
    uint64_t pilot_wanted, pilot_exact_rows, pilot_rank_hits, pilot_skipped_wide, pilot_abandoned;
    glm52_latency pilot_cost;
    glm52_latency pilot_lead;   /* from a prediction to the route it predicted */
    uint64_t hint_candidates, hint_resident_skipped, hint_submitted, hint_completed, hint_dropped, hint_errors;
    uint64_t hint_bytes, hint_queue_max;
    uint64_t ahead, ahead_used, ahead_errors; /* experts loaded ahead, selected while in their slot, not read */
} glm52_stream_stats;

typedef struct glm52_stream_layer_stats {
    uint64_t hits, misses, read_bytes, wait_ns;
} glm52_stream_layer_stats;

/* Counters since open. Errors: ARGUMENT if a pointer is NULL; UNSUPPORTED if the engine does not stream. */
GLM52_API glm52_status glm52_engine_stream_stats(const glm52_engine *engine, glm52_stream_stats *stats_out);

/* The same of one layer. Errors: as above, ARGUMENT for a layer outside the trunk. */
GLM52_API glm52_status glm52_engine_stream_layer(const glm52_engine *engine, uint32_t layer,
                                                 glm52_stream_layer_stats *stats_out);

/* Gives memory back under pressure, between calls: the expert cache takes no more than cache_bytes afterwards, the
 * coldest experts gone. It does not grow again. *now_out is what it takes then. Errors: ARGUMENT; UNSUPPORTED if
 * the engine does not stream; BUDGET if pins and one slot per size need more: nothing is changed then. */
GLM52_API glm52_status glm52_engine_shrink_cache(glm52_engine *engine, uint64_t cache_bytes, uint64_t *now_out);

/* Writes the usage ledger now, if there is one and it has changed. Close does the same but can't tell of a failure.
 * Errors: ARGUMENT if engine is NULL; IO. */
GLM52_API glm52_status glm52_engine_flush_usage(glm52_engine *engine);

/* What an engine had to say at open beside its status (a damaged ledger, memory that could not be locked), one
 * line each; "" if nothing. Lives as long as the engine. */
GLM52_API const char *glm52_engine_stream_warnings(const glm52_engine *engine);

/* What streaming an engine's model takes; size classes of the layers that go through the cache. */
typedef struct glm52_stream_plan {
    uint64_t routed_bytes;      /* of the layers that are streamed, in the file */
    uint64_t nextn_bytes;       /* of the file that MTP blocks take beside streamed experts */
    uint64_t other_bytes;       /* the rest: stays mapped */
    uint64_t token_bytes;       /* expert bytes that one token chooses in the trunk */
    uint64_t minimum_bytes;     /* of a cache that can start */
    uint32_t minimum_experts;
    uint32_t slots;
    uint64_t cache_bytes;       /* of all slots */
    uint64_t full_bytes;        /* of the layers kept whole */
    uint64_t buffer_bytes;      /* read buffers and tables */
    uint32_t class_count;
    glm52_size_class classes[GLM52_SIZE_CLASSES_MAX];
} glm52_stream_plan;

/* Ranges of shard's file that stay mapped while experts are streamed: every tensor but the routed experts behind
 * the first full_layers sparse layers of the trunk, MTP blocks left out; sorted, touching ones merged. Writes up to
 * count_max of them; *count_out is how many there are, *tensor_max_out the bytes of the largest tensor among them.
 * Errors: ARGUMENT if a pointer is NULL or there is no such shard or no such range; MEMORY. */
GLM52_API glm52_status glm52_resident_spans(const glm52_model *model, uint32_t shard, uint32_t full_layers,
                                            glm52_span *spans_out, uint64_t count_max, uint64_t *count_out,
                                            uint64_t *tensor_max_out);

/* Ranges of shard's file that hold block layer, as above. Errors: as above; MODEL if the block has no tensors. */
GLM52_API glm52_status glm52_layer_spans(const glm52_model *model, uint32_t shard, uint32_t layer,
                                         glm52_span *spans_out, uint64_t count_max, uint64_t *count_out);

/* Works out what streaming takes. left_bytes is what an automatic budget may have (after everything else).
 * Errors: ARGUMENT; BUDGET; UNSUPPORTED for a model without routed experts or with too many sizes. */
GLM52_API glm52_status glm52_stream_plan_make(const glm52_model *model, const glm52_stream_options *options,
                                              uint32_t chunk_rows, uint64_t left_bytes,
                                              glm52_stream_plan *plan_out);

/* cdef: end */

#ifdef __cplusplus
}
#endif

#endif
