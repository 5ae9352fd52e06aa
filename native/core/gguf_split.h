/* gguf_split.h - how shards are named: for the reader's own files. */
#ifndef GLM52_GGUF_SPLIT_H
#define GLM52_GGUF_SPLIT_H

#include "glm52.h"

struct glm52_shard_name {
    size_t prefix_bytes;  /* of the path before -00001-of-00003.gguf */
    uint32_t index;       /* from 0 */
    uint32_t count;
};

/* Whether path ends as a shard's does. */
bool glm52_shard_name_read(const char *path, struct glm52_shard_name *name_out);

#endif
