/* gguf.h - a GGUF model, possibly in several files: mapped, checked, and looked up by name.
 *
 * glm52_gguf_open believes nothing it has not checked. Behind it every tensor lies inside its file, overlaps no
 * other, has a known type and a size that fits its dimensions; every string lies inside the header. */
#ifndef GLM52_GGUF_H
#define GLM52_GGUF_H

#include "glm52.h"

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
    glm52_tensor_info *tensors;   /* order of the files; names are zero-terminated copies owned here */
    uint64_t tensor_count;
    glm52_value *keys;            /* of shard 0; key names are copies owned here, data points into the map */
    uint64_t key_count;
    void *private_data;           /* hash indexes and string storage */
};

/* Opens path: a file, any shard of a split model, or a folder that holds exactly one model.
 * Errors: IO, MODEL, UNSUPPORTED (type of a tensor), MEMORY; messages name file, tensor or key, number, limit. */
glm52_status glm52_gguf_open(const char *path, struct glm52_gguf **gguf_out);
void glm52_gguf_close(struct glm52_gguf *gguf);

/* NULL if there is none of that name. */
const glm52_tensor_info *glm52_gguf_tensor(const struct glm52_gguf *gguf, const char *name);
const glm52_value *glm52_gguf_key(const struct glm52_gguf *gguf, const char *key);

/* First byte of a tensor in its mapping. */
const void *glm52_gguf_data(const struct glm52_gguf *gguf, const glm52_tensor_info *tensor);

/* A number of any integer or bool type, widened; fails (MODEL) if the key's type is another or the value is
 * negative. *found_out false leaves *out alone. _f32 takes any float or integer type. */
glm52_status glm52_gguf_get_u64(const struct glm52_gguf *gguf, const char *key, bool *found_out, uint64_t *out);
glm52_status glm52_gguf_get_f32(const struct glm52_gguf *gguf, const char *key, bool *found_out, float *out);

/* Content identity; see glm52_model_identity. digits_out holds 65 bytes. */
glm52_status glm52_gguf_identity(const struct glm52_gguf *gguf, char *digits_out);

#endif
