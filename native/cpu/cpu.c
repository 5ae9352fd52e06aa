/* cpu.c - the CPU backend: its table, its memory. The host's memory is its memory, so reading and writing
 * copies, and work is done when an operation returns. */
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "error.h"

glm52_status glm52_cpu_open(uint32_t threads, glm52_backend **backend_out) {
    struct glm52_cpu *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for a backend");
    cpu->base.ops = &glm52_cpu_ops;
    const glm52_status status = glm52_pool_open(threads, &cpu->pool);
    if (status != GLM52_OK) {
        free(cpu);
        return status;
    }
    *backend_out = &cpu->base;
    return GLM52_OK;
}

/* calloc gives large pieces that no page was spent on yet, so a cache costs memory as it fills. It aligns too
 * little, so the start of the piece is kept in front of the address given out. */
static void *allocate(glm52_backend *backend, size_t bytes) {
    (void)backend;
    const size_t head = sizeof(void *) + GLM52_CPU_LINE - 1;
    if (bytes > SIZE_MAX - head) return NULL;
    uint8_t *piece = calloc(1, bytes + head);
    if (piece == NULL) return NULL;
    const uintptr_t first = (uintptr_t)piece + head;
    uint8_t *address = piece + (first - first % GLM52_CPU_LINE - (uintptr_t)piece);
    memcpy(address - sizeof(piece), &piece, sizeof(piece));
    return address;
}

static void release(glm52_backend *backend, void *address) {
    (void)backend;
    if (address == NULL) return;
    void *piece;
    memcpy(&piece, (uint8_t *)address - sizeof(piece), sizeof(piece));
    free(piece);
}

static void close_cpu(glm52_backend *backend) {
    if (backend == NULL) return;
    struct glm52_cpu *cpu = glm52_cpu_of(backend);
    glm52_pool_close(cpu->pool);
    release(backend, cpu->scratch);
    free(cpu);
}

static void read_memory(glm52_backend *backend, void *host, const void *address, size_t bytes) {
    (void)backend;
    if (bytes > 0) memcpy(host, address, bytes);
}

static void write_memory(glm52_backend *backend, void *address, const void *host, size_t bytes) {
    (void)backend;
    if (bytes > 0) memcpy(address, host, bytes);
}

static void clear(glm52_backend *backend, void *address, size_t bytes) {
    (void)backend;
    if (bytes > 0) memset(address, 0, bytes);
}

static void expect(glm52_backend *backend, const glm52_shape *shape, size_t operand_max) {
    (void)backend;
    (void)shape;
    (void)operand_max;
}

static glm52_status adopt(glm52_backend *backend, const void *host, size_t bytes, bool will_change) {
    (void)backend;
    (void)host;
    (void)bytes;
    (void)will_change;
    return GLM52_OK;
}

static void disown(glm52_backend *backend, const void *host) {
    (void)backend;
    (void)host;
}

static void publish(glm52_backend *backend, const void *host, size_t bytes) {
    (void)backend;
    (void)host;
    (void)bytes;
}

static glm52_status reserve(glm52_backend *backend, size_t bytes) {
    struct glm52_cpu *cpu = glm52_cpu_of(backend);
    if (bytes <= cpu->scratch_bytes) return GLM52_OK;
    uint8_t *scratch = allocate(backend, bytes);
    if (scratch == NULL) return glm52_fail(GLM52_ERR_MEMORY, "no memory for %zu bytes of scratch", bytes);
    release(backend, cpu->scratch);
    cpu->scratch = scratch;
    cpu->scratch_bytes = bytes;
    return GLM52_OK;
}

static glm52_status finish(glm52_backend *backend) {
    (void)backend;
    return GLM52_OK;
}

const struct glm52_ops glm52_cpu_ops = {
    .name = "cpu",
    .close = close_cpu,
    .allocate = allocate,
    .release = release,
    .read = read_memory,
    .write = write_memory,
    .clear = clear,
    .expect = expect,
    .adopt = adopt,
    .disown = disown,
    .publish = publish,
    .reserve = reserve,
    .finish = finish,
#define GLM52_OP(op) .op = glm52_cpu_##op, .op##_scratch = glm52_cpu_##op##_scratch,
#include "ops.def"
#undef GLM52_OP
};
