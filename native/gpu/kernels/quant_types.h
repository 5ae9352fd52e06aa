/* quant_types.h - all types of weights, by tag: QUANT_TYPES(X) is X(tag) for each. */
#ifndef GLM52_KERNELS_QUANT_TYPES_H
#define GLM52_KERNELS_QUANT_TYPES_H

#include "quant_floats.h"
#include "quant_iq.h"
#include "quant_k.h"
#include "quant_legacy.h"

#define QUANT_TYPES(X)                                                                                  \
    X(f32) X(f16) X(bf16) X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q8_0) X(q2_k) X(q3_k) X(q4_k) X(q5_k)       \
    X(q6_k) X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s) X(iq4_nl) X(iq4_xs)     \
    X(mxfp4)

#endif
