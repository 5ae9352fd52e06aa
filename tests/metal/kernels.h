/* kernels.h - kernels of the driver's tests, as functions of C: the driver is what is tested here. */
#ifndef GLM52_METAL_TESTS_KERNELS_H
#define GLM52_METAL_TESTS_KERNELS_H

#include <stdint.h>

#include "fake_metal.h"

struct sum_args {
    float factor;
    uint32_t count;
};

/* Kernels:
 *   sum        out = a + factor b over count floats; args, a, b, out
 *   late       the same, after 30 ms
 *   follow     out[i] = the float that the address table[i] points to; args, table, out
 *   constants  the five function constants; out
 *   breaks     fails with "kernel breaks" */
extern const struct fm_executor test_kernels;

#endif
