/* index_store.c - a row of the indexer's cache: its key, layer-normed, then rotated in its first part. */
#include "cpu.h"

struct job {
    const glm52_index_store_args *args;
    void *cache;
    const float *x;
    const float *weight;
    const float *bias;
    const float *table;
    uint8_t *space;      /* per thread, a row of float32 */
    size_t space_bytes;
};

static size_t space_bytes(const glm52_index_store_args *args) {
    return glm52_cpu_line(args->key_size * sizeof(float));
}

static void store_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const glm52_index_store_args *args = job->args;
    float *row = (float *)(void *)(job->space + thread * job->space_bytes);
    for (size_t r = begin; r < end; r++) {
        glm52_row_layer_norm(row, job->x + r * args->x_stride, job->weight, job->bias, args->key_size,
                             args->epsilon);
        glm52_row_rotate(row, row, job->table + r * args->rope_size, args->rope_size);
        glm52_cache_store(job->cache, args->kv_type, args->key_size, args->position + r, row);
    }
}

size_t glm52_cpu_index_store_scratch(const glm52_backend *backend, const glm52_index_store_args *args) {
    return glm52_pool_threads(glm52_cpu_pool(backend)) * space_bytes(args);
}

void glm52_cpu_index_store(glm52_backend *backend, const glm52_index_store_args *args, void *cache,
                           const float *x, const float *weight, const float *bias, const float *table) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, cache, x, weight, bias, table, glm52_cpu_of(backend)->scratch, space_bytes(args)};
    const size_t grain = glm52_pool_grain(pool, args->row_count, args->key_size);
    glm52_pool_run(pool, args->row_count, grain, store_rows, &job);
}
