/* add.metal - sums of two or three arrays, (a + b) + c. out may be any of them. */
#include "common.h"

kernel void add2(constant glm52_add_args &args [[buffer(0)]],
                 device float *out [[buffer(1)]],
                 device const float *a [[buffer(2)]],
                 device const float *b [[buffer(3)]],
                 uint i [[thread_position_in_grid]]) {
    if (i < args.count) {
        out[i] = a[i] + b[i];
    }
}

kernel void add3(constant glm52_add_args &args [[buffer(0)]],
                 device float *out [[buffer(1)]],
                 device const float *a [[buffer(2)]],
                 device const float *b [[buffer(3)]],
                 device const float *c [[buffer(4)]],
                 uint i [[thread_position_in_grid]]) {
    if (i < args.count) {
        out[i] = (a[i] + b[i]) + c[i];
    }
}
