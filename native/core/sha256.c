/* sha256.c - SHA-256 as FIPS 180-4 writes it: one block function, padding, and the order of bytes. */
#include "sha256.h"

#include <string.h>

#define ROUNDS 64
#define LENGTH_BYTES 8

/* Fractional parts of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t round_constants[ROUNDS] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate_right(uint32_t x, int bits) {
    return (x >> bits) | (x << (32 - bits));
}

static uint32_t big_endian_32(const uint8_t *p) {
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | (uint32_t)p[3];
}

static void expand_schedule(uint32_t *w, const uint8_t *block) {
    for (int t = 0; t < 16; t++) w[t] = big_endian_32(block + 4 * t);
    for (int t = 16; t < ROUNDS; t++) {
        const uint32_t a = w[t - 15], b = w[t - 2];
        const uint32_t small0 = rotate_right(a, 7) ^ rotate_right(a, 18) ^ (a >> 3);
        const uint32_t small1 = rotate_right(b, 17) ^ rotate_right(b, 19) ^ (b >> 10);
        w[t] = small1 + w[t - 7] + small0 + w[t - 16];
    }
}

static void take_block(uint32_t *state, const uint8_t *block) {
    uint32_t w[ROUNDS];
    expand_schedule(w, block);
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < ROUNDS; t++) {
        const uint32_t big1 = rotate_right(e, 6) ^ rotate_right(e, 11) ^ rotate_right(e, 25);
        const uint32_t choice = (e & f) ^ (~e & g);
        const uint32_t first = h + big1 + choice + round_constants[t] + w[t];
        const uint32_t big0 = rotate_right(a, 2) ^ rotate_right(a, 13) ^ rotate_right(a, 22);
        const uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
        h = g;
        g = f;
        f = e;
        e = d + first;
        d = c;
        c = b;
        b = a;
        a = first + big0 + majority;
    }
    state[0] += a;
    state[1] += b;
    state[2] += c;
    state[3] += d;
    state[4] += e;
    state[5] += f;
    state[6] += g;
    state[7] += h;
}

void glm52_sha256_begin(struct glm52_sha256 *hash) {
    /* Fractional parts of the square roots of the first 8 primes. */
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(hash->state, start, sizeof(start));
    hash->bytes = 0;
}

void glm52_sha256_add(struct glm52_sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *next = data;
    size_t held = (size_t)(hash->bytes % GLM52_SHA256_BLOCK);
    hash->bytes += bytes;
    while (bytes > 0) {
        if (held == 0 && bytes >= GLM52_SHA256_BLOCK) {
            take_block(hash->state, next);
            next += GLM52_SHA256_BLOCK;
            bytes -= GLM52_SHA256_BLOCK;
            continue;
        }
        const size_t room = GLM52_SHA256_BLOCK - held;
        const size_t taken = bytes < room ? bytes : room;
        memcpy(hash->block + held, next, taken);
        next += taken;
        bytes -= taken;
        held = (held + taken) % GLM52_SHA256_BLOCK;
        if (held == 0) take_block(hash->state, hash->block);
    }
}

void glm52_sha256_end(struct glm52_sha256 *hash, uint8_t *digest_out) {
    static const uint8_t padding[GLM52_SHA256_BLOCK] = {0x80};
    const uint64_t bits = hash->bytes * 8;
    const size_t held = (size_t)(hash->bytes % GLM52_SHA256_BLOCK);
    /* A one bit and zeros up to the last 8 bytes of a block, which hold the length. */
    const size_t end = held < GLM52_SHA256_BLOCK - LENGTH_BYTES ? GLM52_SHA256_BLOCK : 2 * GLM52_SHA256_BLOCK;
    glm52_sha256_add(hash, padding, end - LENGTH_BYTES - held);
    uint8_t length[LENGTH_BYTES];
    for (int i = 0; i < LENGTH_BYTES; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    glm52_sha256_add(hash, length, sizeof(length));
    for (int i = 0; i < GLM52_SHA256_BYTES; i++) {
        digest_out[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
    }
}
