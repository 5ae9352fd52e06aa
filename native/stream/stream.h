/* stream.h - the experts of an engine that do not fit: who is where, who is being read, what was measured.
 *
 * For each sparse layer of a batch the executor calls
 *
 *     glm52_stream_begin(stream, layer, ids, rows)     reads start
 *     ... the shared expert is computed ...
 *     while (glm52_stream_next(stream, &table), table != NULL) moe(..., table)
 *
 * Each table holds experts that were in none before, and NULL elsewhere. Of a batch of several rows they come in
 * ascending order of their numbers, so that moe, which adds in that order, gives the bits it gives when all are at
 * hand; of a single row in any order, those at hand first, and forward.c puts their sum in order. What a table names
 * stays in place until the next call: on a device, wait for its work before calling. */
#ifndef GLM52_STREAM_H
#define GLM52_STREAM_H

#include "cache.h"
#include "io_pool.h"
#include "model.h"
#include "ops.h"
#include "pilot.h"
#include "slots.h"
#include "usage.h"

/* Rows of a batch that is narrow: its experts are taken as they come in. In wider ones each step has the same experts
 * whatever the disk does, and progress is told between steps. */
#define GLM52_STREAM_NARROW_ROWS 8u

/* Experts of one layer that are loaded ahead. */
#define GLM52_AHEAD_MAX 64u

/* What is known of a slot beside the cache's books. */
struct glm52_slot_state {
    uint32_t generation;
    bool reading;
    bool unpublished;    /* read since the backend was last told of it */
};

struct glm52_stream {
    const struct glm52_model *model;
    const glm52_shape *shape;
    uint32_t layers;                     /* those of the trunk, and the MTP block if it is streamed */
    glm52_stream_options options;        /* pointers in it are NULL: they were the caller's */
    glm52_stream_test test;
    glm52_stream_plan plan;
    glm52_backend *backend;              /* that computes from the slots */
    struct glm52_allocations allocations;

    glm52_cache *cache;
    struct glm52_slots slots;
    struct glm52_io *io;
    struct glm52_gguf *mirror;
    struct glm52_slot_state *states;     /* [slots] */
    glm52_load *loads;                   /* [slots] */
    uint32_t *gone;                      /* [slots] what shrinking took away */
    glm52_expert *table;                 /* [experts] */
    int32_t *ids;                        /* [chunk_rows, experts_used] the executor's copy of routes */

    uint32_t layer, rows;                /* of the selection under way */
    uint32_t *segment_experts, *segment_slots; /* [experts] of the segment in use, first those already shown */
    uint32_t segment_count, step_begin, step_end;
    uint64_t wait_ns;                    /* in this selection */

    /* Loaded ahead and not settled: of the layer under way and of the next. */
    glm52_load ahead[2 * GLM52_AHEAD_MAX];
    uint32_t ahead_count;
    uint64_t ahead_errors;

    struct glm52_usage usage;
    struct glm52_pilot_state pilot;
    char usage_path[4096];
    char warnings[2048];
    glm52_stream_layer_stats *layer_stats; /* [layers] */
    struct glm52_histogram wait;
    uint64_t loads_done;

    /* As it was when the call under way began. */
    struct {
        glm52_cache_stats cache;
        struct glm52_io_stats io;
        struct glm52_histogram wait;
        glm52_stream_layer_stats *layer_stats; /* [layers] */
        uint64_t loads_done;
    } before;
};

/* plan is what glm52_stream_plan_make gave for these options; backend adopts the slots, and is told of an expert's
 * bytes before the table that shows them first. It is closed before the stream. Errors: ARGUMENT, IO, MEMORY,
 * UNSUPPORTED. */
glm52_status glm52_stream_open(const struct glm52_model *model, const glm52_stream_options *options,
                               const glm52_stream_plan *plan, uint32_t chunk_rows, glm52_backend *backend,
                               struct glm52_stream **stream_out);
void glm52_stream_close(struct glm52_stream *stream);

/* A call begins: what it counts is taken back if it fails. */
void glm52_stream_mark(struct glm52_stream *stream);
/* Behind an error of any kind: no read is under way afterwards, no expert in use. */
void glm52_stream_fail(struct glm52_stream *stream);
/* Behind a cancellation: the same, but what was counted stays. */
void glm52_stream_cancel(struct glm52_stream *stream);

/* ids [rows, experts_used]. Errors: IO; ARGUMENT. */
glm52_status glm52_stream_begin(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows);
/* *table_out NULL: the selection is done. Errors: IO. */
glm52_status glm52_stream_next(struct glm52_stream *stream, const glm52_expert **table_out);
/* rows tokens went through all layers. */
void glm52_stream_tick(struct glm52_stream *stream, uint32_t rows);
/* A turn begins: pins are exchanged, the ledger is written. */
void glm52_stream_turn(struct glm52_stream *stream);
/* The experts that pilot.c predicts for a layer and that are not at hand are hinted at. */
void glm52_stream_hint(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows);
/* Those of them that are likeliest start to be read into slots. layer is the one behind the selection under way. */
glm52_status glm52_stream_load_ahead(struct glm52_stream *stream, uint32_t layer, const int32_t *ids, uint32_t rows);

/* Reads experts that nobody waits for yet; loads as glm52_cache_preload gave them. Errors: IO. */
glm52_status glm52_stream_preload(struct glm52_stream *stream, const glm52_load *loads, uint32_t count);

/* What glm52_engine_shrink_cache and glm52_engine_flush_usage do. */
glm52_status glm52_stream_shrink(struct glm52_stream *stream, uint64_t cache_bytes, uint64_t *now_out);
glm52_status glm52_stream_flush(struct glm52_stream *stream);

void glm52_stream_stats_get(struct glm52_stream *stream, glm52_stream_stats *stats_out);
void glm52_stream_warn(struct glm52_stream *stream, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* stream_plan.c: size class of each of layers, GLM52_CACHE_NO_CLASS where dense; full layers have classes of their
 * own behind the plan's. slots_out and bytes_out take GLM52_CACHE_CLASSES_MAX. Returns the number of classes. */
uint32_t glm52_stream_classes(const struct glm52_model *model, const glm52_stream_plan *plan, uint32_t layers,
                              uint32_t full_layers, uint8_t *class_of, uint32_t *slots_out, uint64_t *bytes_out);
/* Layers that a stream knows: the trunk's, and the first MTP block if it is streamed. */
uint32_t glm52_stream_layers(const struct glm52_model *model, const glm52_stream_options *options);
/* Bytes of memory of this machine. */
uint64_t glm52_machine_memory(void);
/* Layer that a tensor belongs to by its name ("blk.N."), or -1. */
int64_t glm52_tensor_layer(const char *name);
/* gate, up, down of layer number, trunk or MTP; NULL if dense. */
const struct glm52_matrix *glm52_routed_matrix(const struct glm52_model *model, uint32_t layer, uint32_t slice);

#endif
