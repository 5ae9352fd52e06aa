/* swiglu.metal - the gate of a feed-forward network: silu(gate) * up, with the bits of native/cpu/row.c. out may be
 * gate or up. */
#include "exp.h"

kernel void swiglu(constant glm52_swiglu_args &args [[buffer(0)]],
                   device float *out [[buffer(1)]],
                   device const float *gate [[buffer(2)]],
                   device const float *up [[buffer(3)]],
                   uint3 place [[thread_position_in_grid]]) {
    const uint i = place.x;
    const ulong row = place.y;
    if (i < args.row_size) {
        const float g = gate[row * args.gate_stride + i];
        out[row * args.out_stride + i] = g * sigmoid(g) * up[row * args.up_stride + i];
    }
}
