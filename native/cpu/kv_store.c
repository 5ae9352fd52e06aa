/* kv_store.c - a row of the compact cache: the normed latent, then the rotated part that all heads share. */
#include "cpu.h"

struct job {
    const glm52_kv_store_args *args;
    void *cache;
    const float *x;
    const float *weight;
    const float *table;
    uint8_t *space;      /* per thread, a row of float32 */
    size_t space_bytes;
};

static size_t space_bytes(const glm52_kv_store_args *args) {
    return glm52_cpu_line(((size_t)args->latent + args->rope_size) * sizeof(float));
}

static void store_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    const struct job *job = context;
    const glm52_kv_store_args *args = job->args;
    const size_t latent = args->latent, row_size = latent + args->rope_size;
    float *row = (float *)(void *)(job->space + thread * job->space_bytes);
    for (size_t r = begin; r < end; r++) {
        const float *x = job->x + r * args->x_stride;
        glm52_row_rms_norm(row, x, job->weight, latent, args->epsilon);
        glm52_row_rotate(row + latent, x + latent, job->table + r * args->rope_size, args->rope_size);
        glm52_cache_store(job->cache, args->kv_type, row_size, args->position + r, row);
    }
}

size_t glm52_cpu_kv_store_scratch(const glm52_backend *backend, const glm52_kv_store_args *args) {
    return glm52_pool_threads(glm52_cpu_pool(backend)) * space_bytes(args);
}

void glm52_cpu_kv_store(glm52_backend *backend, const glm52_kv_store_args *args, void *cache, const float *x,
                        const float *weight, const float *table) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, cache, x, weight, table, glm52_cpu_of(backend)->scratch, space_bytes(args)};
    const size_t cost = (size_t)args->latent + args->rope_size;
    glm52_pool_run(pool, args->row_count, glm52_pool_grain(pool, args->row_count, cost), store_rows, &job);
}
