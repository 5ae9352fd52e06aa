/* backends.c - which backends there are: the processor's, and those of the GPU drivers that are at hand. */
#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "error.h"
#include "ops.h"

/* In the order in which they are listed; "auto" takes the first of those that stand before the simulators. */
static const char *const drivers[] = {
#define GLM52_GPU_DRIVER(driver) #driver,
#include "drivers.def"
#undef GLM52_GPU_DRIVER
};
#define DRIVER_COUNT (sizeof(drivers) / sizeof(drivers[0]))

const char *glm52_backend_name(uint32_t index) {
    if (index == 0) return glm52_cpu_ops.name;
    for (size_t i = 0; i < DRIVER_COUNT; i++) {
        if (glm52_gpu_find(drivers[i]) != NULL && --index == 0) return drivers[i];
    }
    return NULL;
}

static glm52_status refuse(const char *name) {
    char names[128] = "";
    size_t length = 0;
    const char *at;
    for (uint32_t i = 0; (at = glm52_backend_name(i)) != NULL && length < sizeof(names); i++) {
        length += (size_t)snprintf(names + length, sizeof(names) - length, "%s%s", i == 0 ? "" : ", ", at);
    }
    return glm52_fail(GLM52_ERR_UNSUPPORTED, "this build has no backend \"%s\"; it has %s", name, names);
}

glm52_status glm52_backend_open(const char *name, uint32_t threads, glm52_backend **backend_out) {
    if (backend_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "backend_open: backend_out is NULL");
    if (name == NULL || strcmp(name, "auto") == 0) {
        for (size_t i = 0; i < DRIVER_COUNT && strncmp(drivers[i], "sim", 3) != 0; i++) {
            if (glm52_gpu_find(drivers[i]) == NULL) continue;
            if (glm52_gpu_open(drivers[i], backend_out) == GLM52_OK) return GLM52_OK;
        }
        return glm52_cpu_open(threads, backend_out);
    }
    if (strcmp(name, glm52_cpu_ops.name) == 0) return glm52_cpu_open(threads, backend_out);
    for (size_t i = 0; i < DRIVER_COUNT; i++) {
        if (strcmp(name, drivers[i]) == 0 && glm52_gpu_find(name) != NULL) return glm52_gpu_open(name, backend_out);
    }
    return refuse(name);
}

void glm52_backend_close(glm52_backend *backend) {
    if (backend != NULL) backend->ops->close(backend);
}

glm52_status glm52_backend_allocate(glm52_backend *backend, size_t bytes, void **address_out) {
    if (backend == NULL || address_out == NULL) return glm52_fail(GLM52_ERR_ARGUMENT, "backend_allocate: NULL pointer");
    void *address = backend->ops->allocate(backend, bytes);
    if (address == NULL) return glm52_fail(GLM52_ERR_MEMORY, "backend_allocate: no memory for %zu bytes", bytes);
    *address_out = address;
    return GLM52_OK;
}

void glm52_backend_release(glm52_backend *backend, void *address) {
    if (backend != NULL) backend->ops->release(backend, address);
}

glm52_status glm52_backend_write(glm52_backend *backend, void *address, const void *host, size_t bytes) {
    if (backend == NULL || ((address == NULL || host == NULL) && bytes > 0)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "backend_write: NULL pointer");
    }
    backend->ops->write(backend, address, host, bytes);
    return backend->ops->finish(backend);
}

glm52_status glm52_backend_read(glm52_backend *backend, void *host, const void *address, size_t bytes) {
    if (backend == NULL || ((address == NULL || host == NULL) && bytes > 0)) {
        return glm52_fail(GLM52_ERR_ARGUMENT, "backend_read: NULL pointer");
    }
    backend->ops->read(backend, host, address, bytes);
    return backend->ops->finish(backend);
}
