/* rope.metal - rotary position embedding, in place. A pair is two neighbours of a head, not one of each half; a thread
 * turns one. */
#include "rotate.h"

kernel void rope(constant glm52_rope_args &args [[buffer(0)]],
                 device float *x [[buffer(1)]],
                 device const float *table [[buffer(2)]],
                 uint3 place [[thread_position_in_grid]]) {
    const uint pairs = args.rope_size / 2;
    const uint head = place.x / pairs, pair = place.x % pairs, row = place.y;
    if (head < args.head_count) {
        device float *at = x + ulong(row) * args.row_stride + ulong(head) * args.head_stride + 2 * pair;
        device const float *turn = table + ulong(row) * args.rope_size + 2 * pair;
        const float2 turned = rotate(float2(at[0], at[1]), float2(turn[0], turn[1]));
        at[0] = turned.x;
        at[1] = turned.y;
    }
}
