/* embed.c - rows of the embedding table, decoded to their exact values. */
#include "cpu.h"

struct job {
    const glm52_embed_args *args;
    float *out;
    const uint8_t *table;
    const int32_t *ids;
};

static void embed_rows(void *context, size_t begin, size_t end, uint32_t thread) {
    (void)thread;
    const struct job *job = context;
    const size_t hidden = job->args->hidden;
    const struct glm52_quant *quant = glm52_quant_find(job->args->type);
    const size_t row_bytes = hidden / quant->block_size * quant->block_bytes;
    for (size_t r = begin; r < end; r++) {
        quant->decode(job->table + (size_t)job->ids[r] * row_bytes, job->out + r * hidden, hidden);
    }
}

size_t glm52_cpu_embed_scratch(const glm52_backend *backend, const glm52_embed_args *args) {
    (void)backend;
    (void)args;
    return 0;
}

void glm52_cpu_embed(glm52_backend *backend, const glm52_embed_args *args, float *out, const void *table,
                     const int32_t *ids) {
    struct glm52_pool *pool = glm52_cpu_pool(backend);
    struct job job = {args, out, table, ids};
    const size_t grain = glm52_pool_grain(pool, args->row_count, args->hidden);
    glm52_pool_run(pool, args->row_count, grain, embed_rows, &job);
}
