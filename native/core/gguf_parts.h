/* gguf_parts.h - what the files of the GGUF reader share: one shard as it is read, and helpers.
 *
 *   gguf.c         open, close, look-ups; puts shards together
 *   gguf_file.c    opens and maps one file; recognises what is not a GGUF
 *   gguf_read.c    one header: keys, values, tensor infos
 *   gguf_layout.c  where tensors lie: inside the file, apart from each other
 *   gguf_colocated.c  a file in which experts lie together: its tensors as they were before
 *   gguf_split.c   names of shards, shards that are missing or foreign
 *   gguf_folder.c  a folder in place of a file
 *   gguf_names.c   sorted indexes of names, and names in messages */
#ifndef GLM52_GGUF_PARTS_H
#define GLM52_GGUF_PARTS_H

#include "error.h"
#include "gguf.h"

enum glm52_gguf_type {
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};

/* Names in ascending order of bytes, each with its place in the list it was made from. Looking up is a binary
 * search: no hostile set of names makes it slow, as it would a hash. */
struct glm52_names {
    struct glm52_name {
        const char *text;
        uint32_t index;
    } *sorted;
    uint32_t count;
};

#define GLM52_NAME_NONE UINT32_MAX

/* What a colocated file says of the one that it was made from; all zeros in any other. Places are of this file. */
struct glm52_colocated {
    uint64_t tensor_count;
    uint64_t directory_at, directory_bytes;
    uint64_t architecture_at, architecture_end; /* the text, its length included */
    uint64_t keys_end;        /* of the keys that were there before */
};
#define GLM52_COLOCATED_KEYS 4

/* One shard. */
struct glm52_part {
    struct glm52_gguf_shard shard;
    glm52_value *keys;
    uint64_t key_count;
    struct glm52_names key_names;
    glm52_tensor_info *tensors;
    uint64_t tensor_count;
    char *key_text, *tensor_text; /* the bytes of all names */
    uint32_t alignment;
    uint32_t split_index;     /* split.no, 0 if absent */
    uint32_t split_count;     /* split.count; 0 and 1: not split */
    bool has_split_tensors;
    uint64_t split_tensors;   /* split.tensors.count */
    struct glm52_colocated colocated;
};

/* Behind struct glm52_gguf: the parts keep maps and names alive. */
struct glm52_gguf_private {
    struct glm52_part *parts; /* [shard_count] */
    struct glm52_names tensor_names;
};

/* Bytes of a scalar of a GGUF type, 0 for strings, arrays and unknown numbers. */
uint32_t glm52_gguf_type_bytes(uint32_t type);
uint32_t glm52_le32(const void *bytes);
uint64_t glm52_le64(const void *bytes);

/* Fills *part from the file at path: opened, mapped, header and layout checked. Empty after a failure. */
glm52_status glm52_part_open(const char *path, struct glm52_part *part);
void glm52_part_close(struct glm52_part *part);

/* gguf_file.c: shard->path, file, map and bytes; a file that holds no GGUF is refused by what it is. */
glm52_status glm52_shard_map(const char *path, struct glm52_gguf_shard *shard);
void glm52_shard_unmap(struct glm52_gguf_shard *shard);

/* gguf_read.c: keys, tensors and names of a mapped shard. */
glm52_status glm52_part_read(struct glm52_part *part);
/* The tensor infos of the directory that a colocated file carries; text_out takes their names. Both are the
 * caller's to free, also behind a failure. */
glm52_status glm52_part_read_directory(const struct glm52_part *part, glm52_tensor_info **tensors_out,
                                       char **text_out);

/* gguf_colocated.c: reads glm52.colocated.* of part, whose keys are indexed. */
glm52_status glm52_part_read_colocated(struct glm52_part *part);
/* Puts the tensors of that directory, with their places in this file, in place of the file's own. */
glm52_status glm52_part_place_colocated(struct glm52_part *part);

/* gguf_layout.c: every tensor lies inside the file and apart from the others. Until then a tensor's offset is
 * the file's, from the start of the data; from then on it is the place in the file. */
glm52_status glm52_part_check_layout(struct glm52_part *part);

/* gguf_split.c: reads split.* of part, whose keys are indexed. */
glm52_status glm52_part_read_split(struct glm52_part *part);
/* Opens the siblings of first, which is any shard; parts [first->split_count] takes first and all others in
 * order. A failure closes what it opened, first excepted. */
glm52_status glm52_split_open(const struct glm52_part *first, struct glm52_part *parts);

/* gguf_folder.c: the file to start with, path itself or, if it is a folder, a shard of its one model.
 * *chosen_out is the caller's to free. */
glm52_status glm52_split_choose(const char *path, char **chosen_out);

/* gguf_names.c */
glm52_status glm52_names_allocate(struct glm52_names *names, uint64_t count);
/* Sorts; *twin_out is the index of a name that is there twice, GLM52_NAME_NONE if none is. */
void glm52_names_sort(struct glm52_names *names, uint32_t *twin_out);
uint32_t glm52_names_find(const struct glm52_names *names, const char *text);
/* Whether bytes are UTF-8 without control characters (so without zeros) and not empty. */
bool glm52_name_is_clean(const uint8_t *bytes, uint64_t count);

/* Room for a name in a message. */
struct glm52_shown {
    char text[100];
};
/* Bytes of unknown content as printable ASCII, shortened with "..." at the end. */
const char *glm52_show(struct glm52_shown *shown, const void *bytes, uint64_t count);
/* The end of a path, short enough to leave the message room for its reason. */
const char *glm52_show_path(const char *path);

/* Key lookup in one part, and its value as a number (rules of glm52_gguf_get_u64). */
const glm52_value *glm52_part_key(const struct glm52_part *part, const char *key);
glm52_status glm52_value_u64(const char *path, const glm52_value *value, uint64_t *out);
/* The same for element index of an array or, at 0, of a scalar. */
glm52_status glm52_value_u64_at(const char *path, const glm52_value *value, uint64_t index, uint64_t *out);

#endif
