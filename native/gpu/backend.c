/* backend.c - struct glm52_ops over a driver: opening, memory, pipelines, and when what was encoded is handed over.
 *
 * Faults of the calls that return nothing are kept, the first of them, and finish returns it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "gpu.h"

/* Dispatches that are handed over together: about four layers of decoding, so that the device begins while the rest is
 * encoded. */
#define FLUSH_DISPATCHES 96u

/* Sizes that drivers which compile ahead of time have: GLM-5.2's. */
static const struct glm52_gpu_constants own_sizes = {
    .latent = 512, .rope = 64, .nope = 192, .value = 256, .index_key = 128};

static struct glm52_gpu_backend *gpu_of(glm52_backend *backend) {
    return (struct glm52_gpu_backend *)backend;
}

static void keep_fault(struct glm52_gpu_backend *gpu, glm52_status status, const char *message) {
    if (gpu->fault != GLM52_OK) return;
    gpu->fault = status;
    snprintf(gpu->fault_message, sizeof(gpu->fault_message), "%s", message);
}

/* ---- opening and closing; glm52_gpu_open is at the end ---- */

static void close_gpu(glm52_backend *backend) {
    if (backend == NULL) return;
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    (void)gpu->driver->finish(gpu->state);
    glm52_gpu_expert_tables_free(gpu);
    if (gpu->scratch != NULL) gpu->driver->release(gpu->state, gpu->scratch);
    gpu->driver->close(gpu->state);
    free(gpu);
}

static void expect(glm52_backend *backend, const glm52_shape *shape, size_t operand_max) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    if (gpu->driver->longest_operand != NULL) gpu->driver->longest_operand(gpu->state, operand_max);
    const struct glm52_gpu_constants sizes = {.latent = shape->kv_lora, .rope = shape->rope,
                                              .nope = shape->key_mla - shape->rope, .value = shape->value_mla,
                                              .index_key = shape->index_key};
    gpu->constants = memcmp(&sizes, &own_sizes, sizeof(sizes)) == 0 ? sizes : (struct glm52_gpu_constants){0};
}

/* ---- memory ---- */

static void *allocate(glm52_backend *backend, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    return gpu->driver->allocate(gpu->state, bytes == 0 ? 1 : bytes);
}

/* What is under way may still use it. */
static void release(glm52_backend *backend, void *address) {
    if (address == NULL) return;
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    const glm52_status status = gpu->driver->finish(gpu->state);
    if (status != GLM52_OK) keep_fault(gpu, status, glm52_error_message());
    glm52_gpu_expert_tables_forget(gpu);
    gpu->driver->release(gpu->state, address);
}

static void read_memory(glm52_backend *backend, void *host, const void *address, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    if (bytes > 0) gpu->driver->read(gpu->state, host, address, bytes);
    gpu->encoded = 0;
}

static void write_memory(glm52_backend *backend, void *address, const void *host, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    if (bytes > 0) gpu->driver->write(gpu->state, address, host, bytes);
}

static void clear(glm52_backend *backend, void *address, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    if (bytes > 0) gpu->driver->clear(gpu->state, address, bytes);
}

static glm52_status adopt(glm52_backend *backend, const void *host, size_t bytes, bool will_change) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    return gpu->driver->adopt(gpu->state, host, bytes, will_change);
}

static void disown(glm52_backend *backend, const void *host) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    glm52_gpu_expert_tables_forget(gpu);
    gpu->driver->disown(gpu->state, host);
}

static void publish(glm52_backend *backend, const void *host, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    gpu->driver->publish(gpu->state, host, bytes);
}

static glm52_status reserve(glm52_backend *backend, size_t bytes) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    if (bytes <= gpu->scratch_bytes) return GLM52_OK;
    void *scratch = gpu->driver->allocate(gpu->state, bytes);
    if (scratch == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for %zu bytes of scratch", bytes);
    release(backend, gpu->scratch);
    gpu->scratch = scratch;
    gpu->scratch_bytes = bytes;
    return GLM52_OK;
}

/* ---- work ---- */

static glm52_status finish(glm52_backend *backend) {
    struct glm52_gpu_backend *gpu = gpu_of(backend);
    gpu->encoded = 0;
    const glm52_status status = gpu->driver->finish(gpu->state);
    if (gpu->fault == GLM52_OK) return status;
    const glm52_status fault = gpu->fault;
    gpu->fault = GLM52_OK;
    return glm52_fail(fault, "%s", gpu->fault_message);
}

/* A kernel's pipeline for this model's sizes, made when it is first asked for; NULL: a fault is kept. */
static const struct glm52_gpu_pipeline *pipeline_of(struct glm52_gpu_backend *gpu, const char *kernel) {
    for (uint32_t i = 0; i < gpu->pipeline_count; i++) {
        if (strcmp(gpu->pipelines[i].kernel, kernel) == 0 &&
            memcmp(&gpu->pipelines[i].constants, &gpu->constants, sizeof(gpu->constants)) == 0) {
            return gpu->pipelines[i].pipeline;
        }
    }
    if (gpu->pipeline_count == GLM52_GPU_PIPELINES_MAX || strlen(kernel) >= sizeof(gpu->pipelines[0].kernel)) {
        keep_fault(gpu, GLM52_ERR_MEMORY, "more kernels than there is room for");
        return NULL;
    }
    struct glm52_gpu_pipeline *pipeline = NULL;
    const glm52_status status = gpu->driver->pipeline(gpu->state, kernel, &gpu->constants, &pipeline);
    if (status != GLM52_OK) {
        keep_fault(gpu, status, glm52_error_message());
        return NULL;
    }
    snprintf(gpu->pipelines[gpu->pipeline_count].kernel, sizeof(gpu->pipelines[0].kernel), "%s", kernel);
    gpu->pipelines[gpu->pipeline_count].constants = gpu->constants;
    gpu->pipelines[gpu->pipeline_count].pipeline = pipeline;
    gpu->pipeline_count++;
    return pipeline;
}

void glm52_gpu_run(struct glm52_gpu_backend *gpu, const char *kernel, const struct glm52_gpu_dispatch *dispatch) {
    if (gpu->fault != GLM52_OK) return;
    const struct glm52_gpu_pipeline *pipeline = pipeline_of(gpu, kernel);
    if (pipeline == NULL) return;
    gpu->driver->dispatch(gpu->state, pipeline, dispatch);
    if (++gpu->encoded < FLUSH_DISPATCHES) return;
    gpu->driver->flush(gpu->state);
    gpu->encoded = 0;
}

/* Each backend has its copy, with its driver's name. */
static const struct glm52_ops table = {
    .close = close_gpu,
    .expect = expect,
    .allocate = allocate,
    .release = release,
    .read = read_memory,
    .write = write_memory,
    .clear = clear,
    .adopt = adopt,
    .disown = disown,
    .publish = publish,
    .reserve = reserve,
    .finish = finish,
#define GLM52_OP(op) .op = glm52_gpu_##op, .op##_scratch = glm52_gpu_##op##_scratch,
#include "ops.def"
#undef GLM52_OP
};

glm52_status glm52_gpu_open(const char *name, glm52_backend **backend_out) {
    const struct glm52_gpu_driver *driver = glm52_gpu_find(name);
    if (driver == NULL) {
        return glm52_fail(GLM52_ERR_UNSUPPORTED, "libglm52_%s.so is not beside this library, or can't be loaded", name);
    }
    struct glm52_gpu_backend *gpu = calloc(1, sizeof(*gpu));
    if (gpu == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a backend");
    const glm52_status status = driver->open(glm52_fail, &gpu->state);
    if (status != GLM52_OK) {
        free(gpu);
        return status;
    }
    gpu->table = table;
    gpu->table.name = driver->name;
    gpu->base.ops = &gpu->table;
    gpu->driver = driver;
    driver->limits(gpu->state, &gpu->limits);
    *backend_out = &gpu->base;
    return GLM52_OK;
}
