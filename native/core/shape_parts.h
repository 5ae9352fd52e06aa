/* shape_parts.h - what the files that read hyperparameters share. */
#ifndef GLM52_SHAPE_PARTS_H
#define GLM52_SHAPE_PARTS_H

#include "gguf.h"

struct glm52_shape_reader {
    const struct glm52_gguf *gguf;
    const char *path;           /* as shown in messages */
    uint32_t blocks, layers;    /* with and without MTP blocks, once read */
};

/* Room for glm-dsa.SUFFIX. */
struct glm52_shape_name {
    char text[64];
};
const char *glm52_shape_key(struct glm52_shape_name *name, const char *suffix);

/* An integer key of min..max, or a list of equal ones; *found_out false leaves *out alone. */
glm52_status glm52_shape_optional(const struct glm52_shape_reader *reader, const char *suffix, uint64_t min,
                                  uint64_t max, bool *found_out, uint32_t *out);

/* shape_index.c: shape->index_full, from attention.indexer.types or, without it, from the context's size. */
glm52_status glm52_shape_read_index_types(const struct glm52_shape_reader *reader, glm52_shape *shape);

#endif
