/* mutate.c - changes to a GGUF that know its structure: they hit lengths, counts, types, sizes and offsets,
 * and whole records, far more often than random bytes would. Everything follows from one random state. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"

uint64_t fuzz_random(uint64_t *state) {
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static size_t below(uint64_t *random, size_t limit) {
    return limit == 0 ? 0 : (size_t)(fuzz_random(random) % limit);
}

/* ---- the map of a seed ---- */

#define FIELDS_MAX 4096
#define RECORDS_MAX 1024

/* A number of the file, or a record: a key or a tensor. */
struct field {
    size_t at, bytes;
};

struct map {
    size_t field_count, value_count, key_count, tensor_count;
    struct field fields[FIELDS_MAX];
    struct field values[RECORDS_MAX];  /* those fields that are the values of keys */
    struct field keys[RECORDS_MAX], tensors[RECORDS_MAX];
};

/* Walks one file as far as it makes sense; seeds may be broken already. */
struct walk {
    const uint8_t *bytes;
    size_t start, at, end;
    struct map *map;
};

static int number(struct walk *walk, size_t bytes, uint64_t *out) {
    if (walk->end - walk->at < bytes) return 0;
    *out = 0;
    for (size_t i = bytes; i-- > 0;) *out = *out << 8 | walk->bytes[walk->at + i];
    if (walk->map->field_count < FIELDS_MAX)
        walk->map->fields[walk->map->field_count++] = (struct field){walk->at, bytes};
    walk->at += bytes;
    return 1;
}

static int skip(struct walk *walk, uint64_t bytes) {
    if (walk->end - walk->at < bytes) return 0;
    walk->at += (size_t)bytes;
    return 1;
}

static int text(struct walk *walk) {
    uint64_t length;
    return number(walk, 8, &length) && skip(walk, length);
}

static int scalar(struct walk *walk, uint64_t type) {
    static const uint8_t bytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t ignored;
    if (type == 8) return text(walk);
    if (type >= sizeof(bytes) || bytes[type] == 0 || !number(walk, bytes[type], &ignored)) return 0;
    struct map *map = walk->map;
    if (map->value_count < RECORDS_MAX) {
        map->values[map->value_count++] = (struct field){walk->at - bytes[type], bytes[type]};
    }
    return 1;
}

static int key(struct walk *walk) {
    uint64_t type, count = 1;
    if (!text(walk) || !number(walk, 4, &type)) return 0;
    if (type == 9 && !(number(walk, 4, &type) && number(walk, 8, &count))) return 0;
    for (uint64_t i = 0; i < count; i++) {
        if (!scalar(walk, type)) return 0;
    }
    return 1;
}

static int tensor(struct walk *walk) {
    uint64_t dimensions, ignored;
    if (!text(walk) || !number(walk, 4, &dimensions) || dimensions > 8) return 0;
    for (uint64_t i = 0; i < dimensions; i++) {
        if (!number(walk, 8, &ignored)) return 0;
    }
    return number(walk, 4, &ignored) && number(walk, 8, &ignored);
}

/* Finds the numbers and records of the file that lies at start..end. */
static void map_file(const uint8_t *bytes, size_t start, size_t end, struct map *map) {
    struct walk walk = {bytes, start, start, end, map};
    uint64_t version, tensors, keys;
    map->field_count = map->value_count = map->key_count = map->tensor_count = 0;
    if (!skip(&walk, 4) || !number(&walk, 4, &version)) return;
    if (!number(&walk, 8, &tensors) || !number(&walk, 8, &keys)) return;
    for (uint64_t i = 0; i < keys; i++) {
        const size_t first = walk.at;
        if (!key(&walk)) return;
        if (map->key_count < RECORDS_MAX)
            map->keys[map->key_count++] = (struct field){first, walk.at - first};
    }
    for (uint64_t i = 0; i < tensors; i++) {
        const size_t first = walk.at;
        if (!tensor(&walk)) return;
        if (map->tensor_count < RECORDS_MAX)
            map->tensors[map->tensor_count++] = (struct field){first, walk.at - first};
    }
}

/* ---- changes ---- */

#define INPUT_BYTES_MAX (1u << 20)

/* Takes removed bytes away at a place and puts others there. */
static void replace(struct fuzz_input *input, size_t at, size_t removed, const uint8_t *bytes, size_t count) {
    if (input->count - removed + count > INPUT_BYTES_MAX) return;
    uint8_t *result = malloc(input->count - removed + count + 1);
    if (result == NULL) return;
    memcpy(result, input->bytes, at);
    if (count > 0) memcpy(result + at, bytes, count);
    memcpy(result + at + count, input->bytes + at + removed, input->count - at - removed);
    input->count = input->count - removed + count;
    free(input->bytes);
    input->bytes = result;
}

static void write_number(uint8_t *at, size_t bytes, uint64_t value) {
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t read_number(const uint8_t *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

/* Numbers near which mistakes live; old is what stands there. */
static uint64_t telling_number(uint64_t *random, uint64_t old) {
    const uint64_t r = fuzz_random(random);
    switch (r % 10) {
    case 0: return 0;
    case 1: return old + 1;
    case 2: return old - 1;
    case 3: return UINT64_MAX >> (r >> 8) % 64;
    case 4: return (uint64_t)1 << (r >> 8) % 64;
    case 5: return 0 - ((uint64_t)1 << (r >> 8) % 64);
    case 6: return (r >> 8) % 48;
    case 7: return old * 2;
    case 8: return old ^ ((uint64_t)1 << (r >> 8) % 64);
    default: return old + (r >> 8) % 512 - 256;
    }
}

static void change_field(struct fuzz_input *input, const struct map *map, uint64_t *random) {
    if (map->field_count == 0) return;
    /* Values are few among all the fields, and what they say is only read when nothing else is wrong. */
    const int value = map->value_count > 0 && fuzz_random(random) % 2 == 0;
    const struct field field =
        value ? map->values[below(random, map->value_count)] : map->fields[below(random, map->field_count)];
    uint8_t *at = input->bytes + field.at;
    write_number(at, field.bytes, telling_number(random, read_number(at, field.bytes)));
}

/* One field becomes what another of the same width is: a tensor's size, offset or type that belongs
 * elsewhere. */
static void copy_field(struct fuzz_input *input, const struct map *map, uint64_t *random) {
    if (map->field_count == 0) return;
    const struct field to = map->fields[below(random, map->field_count)];
    for (int tries = 0; tries < 16; tries++) {
        const struct field from = map->fields[below(random, map->field_count)];
        if (from.bytes != to.bytes) continue;
        memcpy(input->bytes + to.at, input->bytes + from.at, to.bytes);
        return;
    }
}

/* A record doubled, dropped or moved; the count follows or not. */
static void change_record(struct fuzz_input *input, const struct map *map, size_t start, uint64_t *random) {
    const int keys = fuzz_random(random) % 2 == 0;
    const size_t count = keys ? map->key_count : map->tensor_count;
    const struct field *records = keys ? map->keys : map->tensors;
    if (count == 0) return;
    const struct field record = records[below(random, count)];
    const size_t place = records[below(random, count)].at;
    uint8_t *counter = input->bytes + start + (keys ? 16 : 8);
    const uint64_t old = read_number(counter, 8);
    const uint64_t action = fuzz_random(random) % 4;
    if (action < 2) {
        if (action == 0) write_number(counter, 8, old + 1);
        uint8_t *copy = malloc(record.bytes);
        if (copy == NULL) return;
        memcpy(copy, input->bytes + record.at, record.bytes);
        replace(input, place, 0, copy, record.bytes);
        free(copy);
    } else {
        if (action == 2) write_number(counter, 8, old - 1);
        replace(input, record.at, record.bytes, NULL, 0);
    }
}

static void change_bytes(struct fuzz_input *input, size_t start, size_t end, uint64_t *random) {
    if (end == start) return;
    const size_t at = start + below(random, end - start);
    const uint64_t r = fuzz_random(random);
    switch (r % 4) {
    case 0: input->bytes[at] ^= (uint8_t)(1u << (r >> 8) % 8); break;
    case 1: input->bytes[at] = (uint8_t)(r >> 8); break;
    case 2: input->bytes[at] = r & 256 ? 0 : 255; break;
    default: {
        const size_t run = below(random, end - at < 64 ? end - at : 64);
        memset(input->bytes + at, (int)(r >> 8 & 255), run);
    }
    }
}

/* Cuts the end, or a run from within, or puts a run of the other seed in. */
static void change_length(struct fuzz_input *input, size_t start, size_t end, const struct fuzz_input *other,
                          uint64_t *random) {
    const size_t at = start + below(random, end - start + 1);
    const uint64_t r = fuzz_random(random);
    if (r % 4 == 0) {
        replace(input, at, end - at, NULL, 0);
    } else if (r % 4 == 1) {
        const size_t run = below(random, end - at + 1);
        replace(input, at, run < 64 ? run : (size_t)(r >> 8) % 64, NULL, 0);
    } else if (r % 4 == 2 && end > start) {
        const size_t run = 1 + (size_t)(r >> 8) % 64;
        replace(input, end - (run < end - start ? run : end - start), run < end - start ? run : end - start,
                NULL, 0);
    } else if (other->count > 0) {
        const size_t from = below(random, other->count);
        const size_t run = below(random, other->count - from + 1);
        replace(input, at, 0, other->bytes + from, run < 256 ? run : 256);
    }
}

/* The file to change: the input, or one shard of it. */
static void choose_file(const struct fuzz_input *input, uint64_t *random, size_t *start, size_t *end) {
    *start = 0;
    *end = input->count;
    const size_t magic = strlen(FUZZ_SPLIT_MAGIC);
    if (input->count < FUZZ_SPLIT_HEAD || memcmp(input->bytes, FUZZ_SPLIT_MAGIC, magic) != 0) return;
    size_t first = (size_t)read_number(input->bytes + magic, 4);
    if (first > input->count - FUZZ_SPLIT_HEAD) first = input->count - FUZZ_SPLIT_HEAD;
    const int second = fuzz_random(random) % 2 == 0;
    *start = FUZZ_SPLIT_HEAD + (second ? first : 0);
    *end = second ? input->count : FUZZ_SPLIT_HEAD + first;
}

/* Keeps the length of the first shard right when it grew or shrank. */
static void note_growth(struct fuzz_input *input, size_t start, size_t before) {
    if (start != FUZZ_SPLIT_HEAD || input->count == before) return;
    uint8_t *length = input->bytes + strlen(FUZZ_SPLIT_MAGIC);
    write_number(length, 4, read_number(length, 4) + input->count - before);
}

void fuzz_mutate(struct fuzz_input *input, const struct fuzz_input *other, uint64_t *random) {
    static struct map map;
    const uint64_t dice = fuzz_random(random) % 8;
    const uint64_t changes = dice < 5 ? 1 : dice - 3;
    for (uint64_t i = 0; i < changes; i++) {
        size_t start, end;
        choose_file(input, random, &start, &end);
        map_file(input->bytes, start, end, &map);
        const size_t before = input->count;
        switch (fuzz_random(random) % 8) {
        case 0:
        case 1:
        case 2: change_field(input, &map, random); break;
        case 3: copy_field(input, &map, random); break;
        case 4:
        case 5: change_record(input, &map, start, random); break;
        case 6: change_bytes(input, start, end, random); break;
        default: change_length(input, start, end, other, random);
        }
        note_growth(input, start, before);
    }
}
