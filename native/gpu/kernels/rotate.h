/* rotate.h - rotary position embedding of a pair, as native/cpu/row.c does it. */
#ifndef GLM52_KERNELS_ROTATE_H
#define GLM52_KERNELS_ROTATE_H

#include "common.h"

/* pair = (a, b), turn = (cos, sin) of its angle. */
static float2 rotate(float2 pair, float2 turn) {
    return float2(pair.x * turn.x - pair.y * turn.y, pair.y * turn.x + pair.x * turn.y);
}

#endif
