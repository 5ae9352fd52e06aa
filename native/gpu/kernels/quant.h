/* quant.h - values of quantised weights, for kernels: what the files quant_*.h share.
 *
 * A type of weights is an empty struct, its tag. For each there is
 *
 *     decode16(tag, row, at, left, w)   w [4] = values 16 at .. 16 at + 15 of the row of blocks at row, at 16 at a time
 *
 * with the bits of glm52_quant_decode: products in the order of docs/QUANTIZATION.md, each rounded, none fused. left is
 * how many values the row still has from there on; only F32, F16 and BF16 have rows that end inside 16 values, and
 * give 0 behind the end. Blocks lie on even addresses, those of Q2_K, Q4_K, Q5_K, IQ1_M and IQ4_XS on multiples of 4;
 * MXFP4 lies anywhere. */
#ifndef GLM52_KERNELS_QUANT_H
#define GLM52_KERNELS_QUANT_H

#include "common.h"

#define VALUES 16

/* ---- loads ---- */

static uint load_u16(device const uchar *p) {
    return uint(*(device const ushort *)p);
}

/* From an even address. */
static uint load_u32(device const uchar *p) {
    device const ushort *h = (device const ushort *)p;
    return uint(h[0]) | uint(h[1]) << 16;
}

static float half_of_bits(uint bits) {
    return float(as_type<half>(ushort(bits)));
}

static float load_f16(device const uchar *p) {
    return half_of_bits(load_u16(p));
}

/* ---- bytes of a word as numbers, the lowest first ---- */

static float4 bytes_of(uint word) {
    return float4(as_type<uchar4>(word));
}

static float4 signed_bytes_of(uint word) {
    return float4(as_type<char4>(word));
}

/* Magnitudes in the bytes of a word, negated where one of the lowest 4 bits of signs is set. */
static float4 signed_by(uint word, uint signs) {
    const float4 magnitude = bytes_of(word);
    return float4((signs & 1) != 0 ? -magnitude.x : magnitude.x, (signs & 2) != 0 ? -magnitude.y : magnitude.y,
                  (signs & 4) != 0 ? -magnitude.z : magnitude.z, (signs & 8) != 0 ? -magnitude.w : magnitude.w);
}

/* Values of the 4 codes in the low or, with shift 4, the high nibbles of a word's bytes. */
static float4 look_up_nibbles(constant char *values, uint word, uint shift) {
    const uint codes = word >> shift;
    return float4(float(values[codes & 15]), float(values[codes >> 8 & 15]), float(values[codes >> 16 & 15]),
                  float(values[codes >> 24 & 15]));
}

#endif
