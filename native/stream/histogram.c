/* histogram.c - latencies in buckets that grow by a ninth or less. */
#include "io_pool.h"

/* Values below 8 have buckets of their own; above, the three bits behind the leading one choose in its octave. */
static uint32_t bucket_of(uint64_t ns) {
    uint32_t octave = 0;
    while (octave < GLM52_LATENCY_OCTAVES - 1 && ns >> octave >= 2 * GLM52_LATENCY_STEPS) octave++;
    const uint64_t step = ns >> octave;
    if (step < GLM52_LATENCY_STEPS) return (uint32_t)step;
    const uint64_t in_octave = step - GLM52_LATENCY_STEPS;
    const uint64_t at = ((uint64_t)octave + 1) * GLM52_LATENCY_STEPS + in_octave;
    const uint64_t last = GLM52_LATENCY_OCTAVES * GLM52_LATENCY_STEPS - 1;
    return (uint32_t)(at < last ? at : last);
}

/* The largest value of a bucket. */
static uint64_t top_of(uint32_t bucket) {
    if (bucket < 2 * GLM52_LATENCY_STEPS) return bucket;
    const uint32_t octave = bucket / GLM52_LATENCY_STEPS - 1;
    return (((uint64_t)bucket % GLM52_LATENCY_STEPS + GLM52_LATENCY_STEPS + 1) << octave) - 1;
}

void glm52_histogram_add(struct glm52_histogram *histogram, uint64_t ns) {
    histogram->bucket[bucket_of(ns)]++;
    histogram->count++;
    histogram->total_ns += ns;
    if (ns > histogram->max_ns) histogram->max_ns = ns;
}

static uint64_t percentile(const struct glm52_histogram *histogram, uint64_t percent) {
    const uint64_t wanted = (histogram->count * percent + 99) / 100;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < GLM52_LATENCY_OCTAVES * GLM52_LATENCY_STEPS; i++) {
        seen += histogram->bucket[i];
        if (seen >= wanted && seen > 0) return top_of(i) < histogram->max_ns ? top_of(i) : histogram->max_ns;
    }
    return histogram->max_ns;
}

glm52_latency glm52_histogram_read(const struct glm52_histogram *histogram) {
    return (glm52_latency){.count = histogram->count, .total_ns = histogram->total_ns,
                           .p50_ns = percentile(histogram, 50), .p95_ns = percentile(histogram, 95),
                           .p99_ns = percentile(histogram, 99), .max_ns = histogram->max_ns};
}
