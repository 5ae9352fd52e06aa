/* sha256.h - the SHA-256 digest (FIPS 180-4) of bytes that come in pieces. */
#ifndef GLM52_SHA256_H
#define GLM52_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define GLM52_SHA256_BYTES 32
#define GLM52_SHA256_BLOCK 64

struct glm52_sha256 {
    uint32_t state[8];
    uint64_t bytes;                    /* taken so far */
    uint8_t block[GLM52_SHA256_BLOCK]; /* the last, incomplete one */
};

void glm52_sha256_begin(struct glm52_sha256 *hash);
void glm52_sha256_add(struct glm52_sha256 *hash, const void *data, size_t bytes);
/* digest_out [GLM52_SHA256_BYTES]; hash is used up. */
void glm52_sha256_end(struct glm52_sha256 *hash, uint8_t *digest_out);

#endif
