/* expert_tables.c - tables of experts' addresses in device memory.
 *
 * A layer whose experts are resident brings the same table at every token: it is written once. One whose experts are
 * streamed brings another each time: it is written each time, in the order of what is encoded, so that kernels that
 * were encoded before still see the one before. */
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "gpu.h"

/* More than the layers of any model; past it the oldest one is taken over. */
#define TABLES_MAX 256u

struct table {
    const glm52_expert *host;
    uint32_t count, use_count;
    bool is_stale;               /* addresses may have changed */
    bool is_aligned;             /* to 16 bytes, all of them */
    glm52_expert *copy;          /* [count] what the device's was made of */
    glm52_expert *addresses;     /* [count] what the device's holds */
    const void **uses;           /* [3 * count] */
    void *device;
};

struct glm52_gpu_tables {
    struct table table[TABLES_MAX];
    uint32_t count, next;
};

static void free_table(struct glm52_gpu_backend *gpu, struct table *table) {
    free(table->copy);
    free(table->addresses);
    free(table->uses);
    if (table->device != NULL) gpu->driver->release(gpu->state, table->device);
    memset(table, 0, sizeof(*table));
}

void glm52_gpu_expert_tables_free(struct glm52_gpu_backend *gpu) {
    if (gpu->tables == NULL) return;
    for (uint32_t i = 0; i < gpu->tables->count; i++) free_table(gpu, &gpu->tables->table[i]);
    free(gpu->tables);
    gpu->tables = NULL;
}

void glm52_gpu_expert_tables_forget(struct glm52_gpu_backend *gpu) {
    if (gpu->tables == NULL) return;
    for (uint32_t i = 0; i < gpu->tables->count; i++) gpu->tables->table[i].is_stale = true;
}

/* The table of host, or an empty one for it; NULL: no memory. */
static struct table *find(struct glm52_gpu_backend *gpu, const glm52_expert *host, uint32_t count) {
    if (gpu->tables == NULL) gpu->tables = calloc(1, sizeof(*gpu->tables));
    struct glm52_gpu_tables *tables = gpu->tables;
    if (tables == NULL) return NULL;
    for (uint32_t i = 0; i < tables->count; i++) {
        if (tables->table[i].host == host && tables->table[i].count == count) return &tables->table[i];
    }
    struct table *table = &tables->table[tables->count < TABLES_MAX ? tables->count++ : tables->next++ % TABLES_MAX];
    if (table->device != NULL) {   /* what is under way may read it */
        (void)gpu->driver->finish(gpu->state);
        free_table(gpu, table);
    }
    const size_t bytes = count * sizeof(glm52_expert);
    table->copy = calloc(1, bytes);
    table->addresses = calloc(1, bytes);
    table->uses = calloc(count, 3 * sizeof(*table->uses));
    table->device = gpu->driver->allocate(gpu->state, bytes);
    if (table->copy == NULL || table->addresses == NULL || table->uses == NULL || table->device == NULL) {
        free_table(gpu, table);
        return NULL;
    }
    table->host = host;
    table->count = count;
    return table;
}

static const void *device_address(struct glm52_gpu_backend *gpu, struct table *table, const void *address) {
    table->uses[table->use_count++] = address;
    if ((uintptr_t)address % 16 != 0) table->is_aligned = false;
    return (const void *)(uintptr_t)gpu->driver->device_address(gpu->state, address);
}

static void make(struct glm52_gpu_backend *gpu, struct table *table) {
    const size_t bytes = table->count * sizeof(glm52_expert);
    memcpy(table->copy, table->host, bytes);
    memset(table->addresses, 0, bytes);
    table->use_count = 0;
    table->is_stale = false;
    table->is_aligned = true;
    for (uint32_t i = 0; i < table->count; i++) {
        const glm52_expert *expert = &table->copy[i];
        if (expert->gate == NULL) continue;
        table->addresses[i].gate = device_address(gpu, table, expert->gate);
        table->addresses[i].up = device_address(gpu, table, expert->up);
        table->addresses[i].down = device_address(gpu, table, expert->down);
    }
    gpu->driver->write(gpu->state, table->device, table->addresses, bytes);
}

const void *glm52_gpu_expert_table(struct glm52_gpu_backend *gpu, const glm52_expert *experts, uint32_t count,
                                   const void *const **uses_out, uint32_t *use_count_out, bool *is_aligned_out) {
    struct table *table = find(gpu, experts, count);
    if (table == NULL) {
        if (gpu->fault == GLM52_OK) {
            gpu->fault = GLM52_ERR_MEMORY;
            strcpy(gpu->fault_message, "no memory for a table of experts");
        }
        return NULL;
    }
    if (table->is_stale || memcmp(table->copy, experts, count * sizeof(*experts)) != 0) make(gpu, table);
    *uses_out = table->uses;
    *use_count_out = table->use_count;
    *is_aligned_out = table->is_aligned;
    return table->device;
}
