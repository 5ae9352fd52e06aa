/* gguf_build.h - writes GGUF files for tests: valid ones, and ones broken in a chosen place.
 *
 * Keys and tensors are appended one by one; gguf_build_finish lays the file out. Whatever a file can say
 * wrongly has a field or a raw call. Memory errors end the test program: tests have nothing better to do. */
#ifndef GGUF_BUILD_H
#define GGUF_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    BUILD_U8,
    BUILD_I8,
    BUILD_U16,
    BUILD_I16,
    BUILD_U32,
    BUILD_I32,
    BUILD_F32,
    BUILD_BOOL,
    BUILD_STRING,
    BUILD_ARRAY,
    BUILD_U64,
    BUILD_I64,
    BUILD_F64
};
enum { BUILD_TYPE_F32 = 0, BUILD_TYPE_F16 = 1, BUILD_TYPE_Q8_0 = 8 };

struct build_bytes {
    uint8_t *at;
    size_t used, room;
};

#define BUILD_SKIPS_MAX 8

struct gguf_build {
    struct build_bytes keys, tensors, data, file;
    uint64_t key_count, tensor_count;   /* as written; a test may change them before finish */
    uint32_t version, alignment;        /* of the layout; general.alignment is a key like others */
    size_t header_bytes, data_offset;   /* after finish */
    /* Names that the calls below leave out, so that a test can write them in another way. */
    const char *skips[BUILD_SKIPS_MAX];
};

void gguf_build_begin(struct gguf_build *build);
void gguf_build_free(struct gguf_build *build);
void build_append(struct build_bytes *bytes, const void *data, size_t count);
void build_append_u32(struct build_bytes *bytes, uint32_t number);
void build_append_u64(struct build_bytes *bytes, uint64_t number);
void build_append_text(struct build_bytes *bytes, const char *text);

/* Head of a key; its value is appended to build->keys by the caller. False if the key is skipped. */
bool build_key(struct gguf_build *build, const char *key, uint32_t type);
/* Head of an array of count elements of a type. */
bool build_array(struct gguf_build *build, const char *key, uint32_t type, uint64_t count);
/* A key of any integer type, bool included, little-endian two's complement. */
void build_integer(struct gguf_build *build, const char *key, uint32_t type, int64_t number);
void build_u32(struct gguf_build *build, const char *key, uint32_t number);
void build_f32(struct gguf_build *build, const char *key, float number);
void build_text(struct gguf_build *build, const char *key, const char *text);

/* Head of a tensor that lies at offset of the data; nothing is added to the data. */
void build_tensor_at(struct gguf_build *build, const char *name, uint32_t type, uint32_t dimensions,
                     const uint64_t *size, uint64_t offset);
/* A tensor of [a, b, c] (0 behind the last dimension) with bytes of data behind what is there. */
void build_tensor(struct gguf_build *build, const char *name, uint32_t type, uint64_t a, uint64_t b,
                  uint64_t c);

/* Lays out build->file; call once. */
void gguf_build_finish(struct gguf_build *build);
/* Writes the file to path. */
void build_save(const struct gguf_build *build, const char *path);
void build_save_bytes(const char *path, const void *bytes, size_t count);
/* A new folder for files of a test, under /dev/shm if there is one, else /tmp; removed with all in it. */
const char *build_folder(void);
void build_remove_folder(const char *folder);
/* folder/name, valid until the 8th next call. */
const char *build_path(const char *folder, const char *name);

/* A GLM of the fewest numbers that all the checks accept. */
struct tiny {
    uint32_t layers, nextn, dense, hidden, vocab, heads, q_lora, kv_lora, rope, key_mla, value_mla, dense_ff;
    uint32_t experts, experts_used, expert_ff, index_heads, index_key, top_k, context;
    uint32_t matrix_type;               /* of matrices whose rows are hidden long */
    uint64_t index_types;               /* bit i: layer i is full; 0: the key is not written */
    bool index_on_shared;               /* shared layers have indexer tensors all the same */
    bool tied;                          /* no output.weight */
};
struct tiny tiny_default(void);
void build_tiny_keys(struct gguf_build *build, const struct tiny *tiny);
void build_tiny_tensors(struct gguf_build *build, const struct tiny *tiny);
/* Tensors first..last - 1 of those, in the order of build_tiny_tensors: for shards. */
void build_tiny_tensors_part(struct gguf_build *build, const struct tiny *tiny, uint64_t first,
                             uint64_t last);
/* Both. */
void build_tiny(struct gguf_build *build, const struct tiny *tiny);
/* Ways to make a colocated file that must be refused; COLOCATE_RIGHT is none of them. */
enum colocate_fault {
    COLOCATE_RIGHT,
    COLOCATE_VERSION,            /* another version */
    COLOCATE_VERSION_TYPE,       /* of another integer type */
    COLOCATE_ARCHITECTURE,       /* that of a plain file */
    COLOCATE_ARCHITECTURE_LAST,  /* behind the keys of the layout */
    COLOCATE_KEY_BEHIND,
    COLOCATE_DIRECTORY_TYPE,     /* a list of i8 */
    COLOCATE_DIRECTORY_CUT,
    COLOCATE_DIRECTORY_LONG,
    COLOCATE_NO_TENSORS,
    COLOCATE_MANY_TENSORS,
    COLOCATE_TENSOR_MISSING,     /* in the file */
    COLOCATE_TENSOR_SURPLUS,
    COLOCATE_OTHER_SHAPE,        /* of a tensor in the file */
    COLOCATE_RUNS_MISSING,
    COLOCATE_RUNS_SURPLUS,       /* of a block that has none */
    COLOCATE_RUN_LONG,
    COLOCATE_RUN_SHORT,
    COLOCATE_EXPERTS,            /* one fewer in the runs */
    COLOCATE_MISALIGNED,
    COLOCATE_SHARD,
    COLOCATE_FAULTS
};
/* The colocated twin of plain, which is not finished yet and has only tensors that build_tensor made. */
void build_colocated(struct gguf_build *build, const struct gguf_build *plain, enum colocate_fault fault);
/* Numbers between -0.5 and 0.5 for all data, which must be F32: tensors begin at multiples of four bytes. */
void build_random_floats(struct gguf_build *build, uint32_t seed);
/* A pseudo-random number of 22 bits; seed goes on. */
uint32_t next_random(uint32_t *seed);

#endif
