/* gguf.h - a GGUF model, possibly in several files: mapped, checked, and looked up by name.
 *
 * glm52_gguf_open believes nothing it has not checked. Behind it every tensor lies inside its file, overlaps
 * no other, has a known type and a size that fits its dimensions; every string lies inside the header. */
#ifndef GLM52_GGUF_H
#define GLM52_GGUF_H

#include "glm52.h"

/* Limits. A file that passes one is refused with the limit's number in the message. */
#define GLM52_GGUF_KEYS_MAX 16384u
#define GLM52_GGUF_TENSORS_MAX 65536u           /* of all shards together */
#define GLM52_GGUF_SHARDS_MAX 512u
#define GLM52_GGUF_KEY_BYTES_MAX 65535u         /* the format's own limit */
#define GLM52_GGUF_NAME_BYTES_MAX 127u          /* of a tensor's name; the format promises at most 64 */
#define GLM52_GGUF_HEADER_BYTES_MAX 268435456u  /* magic to end of tensor infos; the real one is 9.5 MB */
#define GLM52_GGUF_DIMENSIONS_MAX 4u
#define GLM52_GGUF_ELEMENTS_MAX 281474976710656u /* of one tensor, 2^48: sizes in bytes can't overflow */
#define GLM52_GGUF_OFFSET_MAX 1152921504606846976u /* of a tensor, 2^60: nor can sums of places */
#define GLM52_GGUF_ALIGNMENT_MIN 8u
#define GLM52_GGUF_ALIGNMENT_MAX 65536u
#define GLM52_GGUF_ALIGNMENT_DEFAULT 32u
#define GLM52_GGUF_FOLDER_FILES_MAX 4096u       /* *.gguf files of one folder */

/* Colocated files: where runs lie in the file, and slices in their run. What a slot of streaming is, so that a run is
 * read into one as it lies. */
#define GLM52_RUN_ALIGNMENT 4096u
#define GLM52_RUN_SLICE_ALIGNMENT 64u

struct glm52_gguf_shard {
    char *path;
    int file;                 /* open for reading; pread goes here */
    const uint8_t *map;       /* the whole file, read-only */
    uint64_t bytes;
    uint64_t header_bytes;    /* magic to end of tensor infos */
    uint64_t data_offset;     /* start of tensor data */
};

struct glm52_gguf {
    struct glm52_gguf_shard *shards;
    uint32_t shard_count;
    glm52_tensor_info *tensors;   /* order of the files; names are zero-terminated copies owned here: UTF-8
                                     without control characters */
    uint64_t tensor_count;
    glm52_value *keys;            /* of shard 0; key names are copies owned here, data points into the map */
    uint64_t key_count;
    void *private_data;           /* name indexes and string storage */
};

/* Opens path: a file, any shard of a split model, or a folder that holds exactly one model.
 * Errors: IO, MODEL, UNSUPPORTED (type of a tensor), MEMORY; messages name file, tensor or key, number and
 * limit. The files must not shrink while they are open: a mapped page that is gone
 * ends the process when it is touched. */
glm52_status glm52_gguf_open(const char *path, struct glm52_gguf **gguf_out);
void glm52_gguf_close(struct glm52_gguf *gguf);

/* NULL if there is none of that name. */
const glm52_tensor_info *glm52_gguf_tensor(const struct glm52_gguf *gguf, const char *name);
const glm52_value *glm52_gguf_key(const struct glm52_gguf *gguf, const char *key);

/* Whether the file is a colocated one: routed experts' slices lie together, and tensors of them have a stride. */
bool glm52_gguf_is_colocated(const struct glm52_gguf *gguf);

/* Bytes of one block of a tensor's slowest dimension. */
static inline uint64_t glm52_tensor_block_bytes(const glm52_tensor_info *tensor) {
    return tensor->bytes / tensor->size[tensor->dimensions - 1];
}

/* Bytes from a tensor's first to its last, with what lies between its blocks. */
static inline uint64_t glm52_tensor_span(const glm52_tensor_info *tensor) {
    const uint64_t blocks = tensor->size[tensor->dimensions - 1];
    return tensor->stride == 0 ? tensor->bytes : tensor->stride * (blocks - 1) + tensor->bytes / blocks;
}

/* First byte of a tensor in its mapping. */
const void *glm52_gguf_data(const struct glm52_gguf *gguf, const glm52_tensor_info *tensor);

/* A number of any integer or bool type, widened; fails (MODEL) if the key's type is another or the value is
 * negative. *found_out false leaves *out alone. _f32 takes any float or integer type. */
glm52_status glm52_gguf_get_u64(const struct glm52_gguf *gguf, const char *key, bool *found_out,
                                uint64_t *out);
glm52_status glm52_gguf_get_f32(const struct glm52_gguf *gguf, const char *key, bool *found_out, float *out);

/* Content identity; see glm52_model_identity. digits_out holds 65 bytes. */
glm52_status glm52_gguf_identity(const struct glm52_gguf *gguf, char *digits_out);

#endif
