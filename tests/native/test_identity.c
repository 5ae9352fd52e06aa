/* test_identity.c - SHA-256, and the identity of a model's content. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include "gguf.h"
#include "gguf_build.h"
#include "refused.h"
#include "sha256.h"

static void check_digest(const char *text, size_t repeat, size_t piece, const char *wanted) {
    struct glm52_sha256 hash;
    glm52_sha256_begin(&hash);
    for (size_t i = 0; i < repeat; i++) {
        for (size_t at = 0; at < strlen(text); at += piece) {
            const size_t left = strlen(text) - at;
            glm52_sha256_add(&hash, text + at, left < piece ? left : piece);
        }
    }
    uint8_t digest[GLM52_SHA256_BYTES];
    glm52_sha256_end(&hash, digest);
    char digits[2 * GLM52_SHA256_BYTES + 1];
    for (int i = 0; i < GLM52_SHA256_BYTES; i++) snprintf(digits + 2 * i, 3, "%02x", digest[i]);
    CHECK(strcmp(digits, wanted) == 0);
}

/* The examples that NIST publishes with FIPS 180-4, in pieces of every size up to a block and a bit. */
void test_sha256_is_the_standards(void) {
    for (size_t piece = 1; piece < 70; piece++) {
        check_digest("", 1, piece, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        check_digest("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check_digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, piece,
                     "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
        check_digest(
            "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnop"
            "qrsmnopqrstnopqrstu",
            1, piece, "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    }
    check_digest("a", 1000000, 1, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

#define LONG_VALUES 20000   /* of a tensor that is sampled: 80,000 bytes */

static void build_sampled(struct gguf_build *build) {
    gguf_build_begin(build);
    build_text(build, "general.name", "sampled");
    build_tensor(build, "short", BUILD_TYPE_F32, 3, 0, 0);
    build_tensor(build, "long", BUILD_TYPE_F32, LONG_VALUES / 2, 2, 0);
    build_tensor(build, "just", BUILD_TYPE_F32, 3 * 1024, 0, 0);      /* 3 blocks of 4096: all of it */
    build_tensor(build, "past", BUILD_TYPE_F32, 3 * 1024 + 1, 0, 0);
    gguf_build_finish(build);
}

static void read_identity(const char *path, char *digits) {
    struct glm52_gguf *gguf = NULL;
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(path, &gguf));
    memset(digits, 0, GLM52_IDENTITY_DIGITS + 1);
    if (gguf != NULL) CHECK_STATUS(GLM52_OK, glm52_gguf_identity(gguf, digits));
    CHECK(strlen(digits) == GLM52_IDENTITY_DIGITS &&
          strspn(digits, "0123456789abcdef") == GLM52_IDENTITY_DIGITS);
    glm52_gguf_close(gguf);
}

void test_identity_is_of_content(void) {
    struct gguf_build build;
    build_sampled(&build);
    const char *folder = build_folder();
    const char *path = build_path(folder, "a.gguf"), *copy = build_path(folder, "copy.gguf");
    char before[GLM52_IDENTITY_DIGITS + 1], now[GLM52_IDENTITY_DIGITS + 1];
    build_save(&build, path);
    read_identity(path, before);
    const struct utimbuf long_ago = {1000, 1000};
    CHECK(utime(path, &long_ago) == 0 && chmod(path, 0444) == 0);
    read_identity(path, now);
    CHECK(strcmp(before, now) == 0);
    build_save(&build, copy);
    read_identity(copy, now);
    CHECK(strcmp(before, now) == 0);
    CHECK(rename(path, build_path(folder, "moved.gguf")) == 0);
    read_identity(build_path(folder, "moved.gguf"), now);
    CHECK(strcmp(before, now) == 0);
    build_remove_folder(folder);
    gguf_build_free(&build);
}

/* Whether changing the byte at place changes the identity. */
static bool matters(const struct gguf_build *build, const char *path, const char *before, size_t place) {
    char now[GLM52_IDENTITY_DIGITS + 1];
    build->file.at[place] ^= 0x20;
    build_save(build, path);
    read_identity(path, now);
    build->file.at[place] ^= 0x20;
    return strcmp(before, now) != 0;
}

void test_identity_changes_with_each_sampled_byte(void) {
    struct gguf_build build;
    build_sampled(&build);
    const char *folder = build_folder();
    const char *path = build_path(folder, "a.gguf");
    char before[GLM52_IDENTITY_DIGITS + 1];
    build_save(&build, path);
    read_identity(path, before);

    /* A letter of the header: the name of the model, of a tensor. */
    const uint8_t *name = memmem(build.file.at, build.header_bytes, "sampled", 7);
    CHECK(matters(&build, path, before, (size_t)(name - build.file.at)));
    const uint8_t *tensor = memmem(build.file.at, build.header_bytes, "short", 5);
    CHECK(matters(&build, path, before, (size_t)(tensor - build.file.at)));

    const size_t start = build.data_offset + 32, bytes = 4 * LONG_VALUES, block = 4096;
    const size_t middle = start + (bytes - block) / 2;
    CHECK(matters(&build, path, before, build.data_offset) &&
          matters(&build, path, before, build.data_offset + 11));
    CHECK(!matters(&build, path, before, build.data_offset + 12));  /* padding */
    CHECK(matters(&build, path, before, start) && matters(&build, path, before, start + block - 1));
    CHECK(!matters(&build, path, before, start + block));
    CHECK(!matters(&build, path, before, middle - 1));
    CHECK(matters(&build, path, before, middle) && matters(&build, path, before, middle + block - 1));
    CHECK(!matters(&build, path, before, middle + block));
    CHECK(!matters(&build, path, before, start + bytes - block - 1));
    CHECK(matters(&build, path, before, start + bytes - block) &&
          matters(&build, path, before, start + bytes - 1));
    const size_t just = start + bytes, past = just + 3 * block;
    for (size_t i = 0; i < 3 * block; i += 511) CHECK(matters(&build, path, before, just + i));
    CHECK(matters(&build, path, before, past) && matters(&build, path, before, past + 3 * block + 3));
    CHECK(!matters(&build, path, before, past + block) && !matters(&build, path, before, past + block + 1));
    build_remove_folder(folder);
    gguf_build_free(&build);
}

void test_identity_fails_if_the_file_shrank(void) {
    struct gguf_build build;
    build_sampled(&build);
    const char *folder = build_folder();
    const char *path = build_path(folder, "a.gguf");
    build_save(&build, path);
    struct glm52_gguf *gguf = NULL;
    CHECK_STATUS(GLM52_OK, glm52_gguf_open(path, &gguf));
    CHECK(truncate(path, (off_t)build.data_offset + 20) == 0);
    char digits[GLM52_IDENTITY_DIGITS + 1] = "untouched";
    CHECK(gguf != NULL);
    if (gguf == NULL) return;
    CHECK_REFUSED(GLM52_ERR_IO, "the file ends there now", glm52_gguf_identity(gguf, digits));
    CHECK(strcmp(digits, "untouched") == 0);
    glm52_gguf_close(gguf);
    build_remove_folder(folder);
    gguf_build_free(&build);
}
