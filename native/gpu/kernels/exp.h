/* exp.h - the exponential of native/cpu/row.c: the same steps, so the same bits wherever floats are IEEE's and nothing
 * is fused. A device that takes numbers below the smallest normal one for 0 gives 0 for those. */
#ifndef GLM52_KERNELS_EXP_H
#define GLM52_KERNELS_EXP_H

#include "common.h"

/* exp(-|x|) within 1.03 units in the last place. */
static float exp_minus(float x) {
    const float log2_upper = 355.0f / 512.0f;       /* few digits, so that n * log2_upper is exact */
    const float log2_lower = -2.12194440054690583e-4f;
    const float to_integer = 12582912.0f;           /* 1.5 * 2^23: adding it leaves an integer in the low bits */
    const uint last = as_type<uint>(104.0f);        /* exp(-104) is 0 */
    uint magnitude = as_type<uint>(x) & 0x7FFFFFFF;
    if (magnitude > last && magnitude <= 0x7F800000) magnitude = last;
    x = -as_type<float>(magnitude);
    const float shifted = x * 1.44269504088896340736f + to_integer;
    const float n = shifted - to_integer;
    const float r = (x - n * log2_upper) - n * log2_lower;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = (p * (r * r) + r) + 1.0f;                   /* small terms first: r itself carries no rounding */
    const uint shifted_n = as_type<uint>(shifted) - as_type<uint>(to_integer) + 256;   /* n + 256, positive */
    const uint half_n = shifted_n / 2;              /* two factors, for results below the smallest normal number */
    return p * as_type<float>((half_n - 1) << 23) * as_type<float>((shifted_n - half_n - 1) << 23);
}

/* 1 / (1 + exp(-x)), from an exponential that can't overflow. */
static float sigmoid(float x) {
    const float e = exp_minus(x);
    return ((as_type<uint>(x) >> 31) != 0 ? e : 1.0f) / (1.0f + e);
}

#endif
