/* quant_lanes.h - how the 32 lanes of a simdgroup share 512 values of a row of weights, 16 each, in 4 groups of 4:
 *
 *     lane_group(tag, lane, j)                where group j of a lane starts, from the first of the 512 on
 *     decode_lane(tag, row, chunk, lane, left, w)
 *                                             w [4] = its groups; 0 behind the end of a row that has left values from
 *                                             there on
 *
 * Lanes beside each other read beside each other; that differs between types, and so does the order of a row's sum
 * with it. */
#ifndef GLM52_KERNELS_QUANT_LANES_H
#define GLM52_KERNELS_QUANT_LANES_H

#include "quant_types.h"

#define CHUNK 512

/* Lane i has values 16 i .. 16 i + 15. */
#define LANES_OF_16(tag)                                                                                            \
    static uint lane_group(tag type, uint lane, uint j) {                                                           \
        return VALUES * lane + 4 * j;                                                                               \
    }                                                                                                               \
    static void decode_lane(tag type, device const uchar *row, uint chunk, uint lane, uint left, thread float4 *w) { \
        if (VALUES * lane < left) {                                                                                 \
            decode16(type, row, CHUNK / VALUES * chunk + lane, left - VALUES * lane, w);                            \
        } else {                                                                                                    \
            for (uint j = 0; j < 4; j++) w[j] = float4(0.0f);                                                       \
        }                                                                                                           \
    }

QUANT_TYPES(LANES_OF_16)

#endif
