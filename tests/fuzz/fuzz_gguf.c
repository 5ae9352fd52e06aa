/* fuzz_gguf.c - opens any bytes as a model and, if they are one, touches all that the reader promised: keys,
 * first and last byte of each tensor, shape, bound weights, identity. A broken promise ends the program. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"
#include "model.h"
#include "quant.h"

struct fuzz_counts fuzz_counts;

/* The allocation that fails, counted down; 0: none does. */
static uint64_t allocations_left;

#ifdef __linux__  /* whose linker sends the library's calls here (--wrap) */

/* The reader maps files; here a map is a piece of the heap, so that the sanitizer sees a read of one byte
 * past its end, which within the last page of a real map goes unseen. */
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *address, size_t bytes);

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    (void)address, (void)protection, (void)flags;
    void *map;
    if (posix_memalign(&map, 4096, bytes) != 0) return MAP_FAILED;
    if (pread(file, map, bytes, offset) != (ssize_t)bytes) abort();
    return map;
}

/* The name that the C library gives it where offsets have 64 bits. */
void *__wrap_mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset) {
    return __wrap_mmap(address, bytes, protection, flags, file, offset);
}

int __wrap_munmap(void *address, size_t bytes) {
    (void)bytes;
    free(address);
    return 0;
}

static int allocation_fails(void) {
    return allocations_left > 0 && --allocations_left == 0;
}

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
char *__real_strdup(const char *text);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
char *__wrap_strdup(const char *text);

void *__wrap_malloc(size_t bytes) {
    return allocation_fails() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return allocation_fails() ? NULL : __real_calloc(count, bytes);
}

char *__wrap_strdup(const char *text) {
    return allocation_fails() ? NULL : __real_strdup(text);
}

#endif

/* What was read, so that the reading is not optimised away. */
static volatile uint64_t touched;

static void require(int promise, const char *what) {
    if (promise) return;
    fprintf(stderr, "broken promise: %s\n", what);
    abort();
}

static uint64_t read_u64(const uint8_t *bytes) {
    uint64_t number = 0;
    for (int i = 7; i >= 0; i--) number = number << 8 | bytes[i];
    return number;
}

static void touch(const void *first, uint64_t bytes) {
    const uint8_t *at = first;
    if (bytes > 0) touched += (uint64_t)at[0] + at[bytes - 1];
}

/* ---- keys and tensors ---- */

static void check_name(const char *name) {
    require(name[0] != 0, "a name is not empty");
    for (const char *at = name; *at != 0; at++) {
        require((unsigned char)*at >= 0x20 && *at != 0x7f, "a name has no control characters");
    }
}

static void walk_key(const struct glm52_gguf *gguf, const glm52_value *value) {
    check_name(value->key);
    require(glm52_gguf_key(gguf, value->key) == value, "a key is found by its name");
    touch(value->data, value->data_bytes);
    if (value->element_type == 8) {
        const uint8_t *at = value->data, *end = at + value->data_bytes;
        for (uint64_t i = 0; i < value->count; i++) {
            require((uint64_t)(end - at) >= 8, "a text has a length");
            const uint64_t length = read_u64(at);
            require(length <= (uint64_t)(end - at) - 8, "a text lies in its value");
            touch(at + 8, length);
            at += 8 + length;
        }
        require(at == end, "texts fill their value");
    } else {
        static const uint64_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
        require(value->element_type < 13 && bytes[value->element_type] > 0, "a value has a type");
        require(value->count == value->data_bytes / bytes[value->element_type] &&
                    value->data_bytes % bytes[value->element_type] == 0,
                "numbers fill their value");
    }
    bool found;
    uint64_t number;
    float real;
    if (glm52_gguf_get_u64(gguf, value->key, &found, &number) == GLM52_OK) touched += number;
    if (glm52_gguf_get_f32(gguf, value->key, &found, &real) == GLM52_OK) touched += found;
}

static void walk_tensor(const struct glm52_gguf *gguf, const glm52_tensor_info *tensor) {
    check_name(tensor->name);
    require(tensor->shard < gguf->shard_count, "a tensor is in a shard");
    const struct glm52_gguf_shard *shard = &gguf->shards[tensor->shard];
    const struct glm52_quant *quant = glm52_quant_find(tensor->type);
    require(quant != NULL && strcmp(quant->name, tensor->type_name) == 0, "a tensor's type is known");
    uint64_t elements = 1;
    for (int i = 0; i < 4; i++) {
        require(tensor->size[i] > 0 && tensor->size[i] <= UINT64_MAX / elements, "elements can be counted");
        elements *= tensor->size[i];
    }
    require(elements / quant->block_size * quant->block_bytes == tensor->bytes, "bytes are the blocks'");
    require(tensor->offset >= shard->data_offset && tensor->offset <= shard->bytes &&
                glm52_tensor_span(tensor) <= shard->bytes - tensor->offset,
            "a tensor lies in its file");
    require(glm52_gguf_tensor(gguf, tensor->name) == tensor, "a tensor is found by its name");
    touch(glm52_gguf_data(gguf, tensor), glm52_tensor_span(tensor));
}

/* The blocks of a tensor of a colocated file lie apart; of any other, the tensor is one block. */
static uint64_t block_count(const glm52_tensor_info *tensor) {
    return tensor->stride == 0 ? 1 : tensor->size[tensor->dimensions - 1];
}

static int lie_apart(const glm52_tensor_info *a, const glm52_tensor_info *b) {
    const uint64_t a_bytes = a->bytes / block_count(a), b_bytes = b->bytes / block_count(b);
    for (uint64_t i = 0; i < block_count(a); i++) {
        for (uint64_t j = 0; j < block_count(b); j++) {
            const uint64_t a_at = a->offset + i * a->stride, b_at = b->offset + j * b->stride;
            if (a_at < b_at + b_bytes && b_at < a_at + a_bytes) return 0;
        }
    }
    return 1;
}

static void check_overlaps(const struct glm52_gguf *gguf) {
    for (uint64_t i = 0; i < gguf->tensor_count; i++) {
        for (uint64_t j = i + 1; j < gguf->tensor_count; j++) {
            const glm52_tensor_info *a = &gguf->tensors[i], *b = &gguf->tensors[j];
            require(a->shard != b->shard || lie_apart(a, b), "tensors lie apart");
            require(strcmp(a->name, b->name) != 0, "names differ");
        }
    }
}

/* ---- shape and weights ---- */

static void walk_vector(const float *vector, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) touched += vector[i] > 0;
}

static void walk_matrix(const struct glm52_matrix *matrix) {
    require(matrix->data != NULL && matrix->tensor != NULL, "a matrix is bound");
    const uint64_t *size = matrix->tensor->size;
    require(size[0] == matrix->in_count && size[1] == matrix->out_count && size[2] == matrix->group_count &&
                size[3] == 1,
            "a matrix has its tensor's dimensions");
    require(matrix->slice_bytes * matrix->group_count == matrix->tensor->bytes, "groups fill a matrix");
    require(matrix->slice_bytes <= matrix->group_bytes, "groups lie apart");
    touch(matrix->data, matrix->group_bytes * (matrix->group_count - 1) + matrix->slice_bytes);
}

static void walk_layer(const struct glm52_layer *layer, const glm52_shape *shape) {
    walk_vector(layer->attn_norm, shape->hidden);
    walk_vector(layer->q_a_norm, shape->q_lora);
    walk_vector(layer->kv_a_norm, shape->kv_lora);
    walk_vector(layer->ffn_norm, shape->hidden);
    const struct glm52_matrix *always[] = {&layer->q_a,  &layer->q_b, &layer->kv_a,
                                           &layer->k_b,  &layer->v_b, &layer->attn_out,
                                           &layer->gate, &layer->up,  &layer->down};
    for (size_t i = 0; i < sizeof(always) / sizeof(always[0]); i++) walk_matrix(always[i]);
    if (layer->index_full) {
        walk_matrix(&layer->index_q);
        walk_matrix(&layer->index_k);
        walk_matrix(&layer->index_w);
        walk_vector(layer->index_norm, shape->index_key);
        walk_vector(layer->index_norm_bias, shape->index_key);
    }
    if (layer->dense) return;
    walk_matrix(&layer->router);
    walk_vector(layer->router_bias, shape->experts);
    walk_matrix(&layer->experts_gate);
    walk_matrix(&layer->experts_up);
    walk_matrix(&layer->experts_down);
}

static void walk_weights(const struct glm52_model *model) {
    const glm52_shape *shape = &model->shape;
    walk_matrix(&model->embed);
    walk_matrix(&model->output);
    walk_vector(model->output_norm, shape->hidden);
    for (uint32_t i = 0; i < shape->layers; i++) walk_layer(&model->layers[i], shape);
    for (uint32_t i = 0; i < shape->nextn_layers; i++) {
        const struct glm52_nextn *nextn = &model->nextn[i];
        walk_layer(&nextn->layer, shape);
        walk_matrix(&nextn->eh_proj);
        walk_matrix(&nextn->embed);
        walk_matrix(&nextn->head);
        walk_vector(nextn->embed_norm, shape->hidden);
        walk_vector(nextn->hidden_norm, shape->hidden);
        walk_vector(nextn->head_norm, shape->hidden);
    }
}

static glm52_status use_model(struct glm52_gguf *gguf) {
    for (uint64_t i = 0; i < gguf->key_count; i++) walk_key(gguf, &gguf->keys[i]);
    for (uint64_t i = 0; i < gguf->tensor_count; i++) walk_tensor(gguf, &gguf->tensors[i]);
    check_overlaps(gguf);
    char digits[GLM52_IDENTITY_DIGITS + 1];
    require(glm52_gguf_identity(gguf, digits) == GLM52_OK, "an open model has an identity");
    require(strlen(digits) == GLM52_IDENTITY_DIGITS, "an identity has 64 digits");

    struct glm52_model model = {.gguf = gguf};
    glm52_status status = glm52_shape_read(gguf, &model.shape);
    if (status != GLM52_OK) return status;
    fuzz_counts.shaped++;
    require(model.shape.index_full[0] == 1, "the first layer is full");
    status = glm52_weights_bind(&model);
    if (status != GLM52_OK) return status;
    fuzz_counts.bound++;
    walk_weights(&model);
    free(model.layers);
    free(model.nextn);
    return GLM52_OK;
}

/* ---- files ---- */

static char folder[64];

static void remove_files(void) {
    static const char *const names[] = {"one.gguf", "two-00001-of-00002.gguf", "two-00002-of-00002.gguf"};
    char path[128];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void) {
    if (folder[0] != 0) return;
    /* Memory, where there is a file system of it. */
    snprintf(folder, sizeof(folder), "%s/glm52-fuzz-XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    require(mkdtemp(folder) != NULL, "a folder for files");
    atexit(remove_files);
}

static void save(const char *path, const uint8_t *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    require(file != NULL, path);
    require(count == 0 || fwrite(bytes, count, 1, file) == 1, "a file is written");
    require(fclose(file) == 0, "a file is written");
}

/* Saves the input and returns the file to open. */
static const char *save_input(const uint8_t *data, size_t size) {
    static char paths[2][128];
    const size_t magic = strlen(FUZZ_SPLIT_MAGIC);
    if (size < FUZZ_SPLIT_HEAD || memcmp(data, FUZZ_SPLIT_MAGIC, magic) != 0) {
        snprintf(paths[0], sizeof(paths[0]), "%s/one.gguf", folder);
        save(paths[0], data, size);
        return paths[0];
    }
    size_t first = 0;
    for (int i = 3; i >= 0; i--) first = first << 8 | data[magic + (size_t)i];
    const size_t both = size - FUZZ_SPLIT_HEAD;
    if (first > both) first = both;
    for (int i = 0; i < 2; i++)
        snprintf(paths[i], sizeof(paths[i]), "%s/two-%05d-of-00002.gguf", folder, i + 1);
    save(paths[0], data + FUZZ_SPLIT_HEAD, first);
    save(paths[1], data + FUZZ_SPLIT_HEAD + first, both - first);
    return paths[size % 2];
}

uint64_t fuzz_without_memory(const uint8_t *data, size_t size) {
    make_folder();
    const char *path = save_input(data, size);
    for (uint64_t number = 1;; number++) {
        struct glm52_gguf *gguf = NULL;
        allocations_left = number;
        glm52_status status = glm52_gguf_open(path, &gguf);
        require((status == GLM52_OK) == (gguf != NULL), "an output is written on success only");
        if (status == GLM52_OK) status = use_model(gguf);
        glm52_gguf_close(gguf);
        const uint64_t left = allocations_left;
        allocations_left = 0;
        if (left > 0) return number - 1;
        require(status == GLM52_ERR_MEMORY, "a call without memory says so");
        require(strstr(glm52_error_message(), "no memory") != NULL, "a call without memory says so");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    make_folder();
    const char *path = save_input(data, size);
    struct glm52_gguf *gguf = NULL;
    glm52_status status = glm52_gguf_open(path, &gguf);
    require((status == GLM52_OK) == (gguf != NULL), "an output is written on success only");
    fuzz_counts.inputs++;
    if (status == GLM52_OK) {
        fuzz_counts.opened++;
        status = use_model(gguf);
        glm52_gguf_close(gguf);
    }
    require((unsigned)status < 16 && status != GLM52_ERR_ARGUMENT && status != GLM52_ERR_MEMORY &&
                status != GLM52_ERR_IO,
            "a file is refused for what is in it");
    require(status == GLM52_OK || strlen(glm52_error_message()) > 20, "a refusal says why");
    fuzz_counts.refused[status]++;
    return 0;
}
