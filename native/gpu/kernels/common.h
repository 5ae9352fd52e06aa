/* common.h - what every kernel includes: Metal's library, the structs of numbers, the sizes that a pipeline may be
 * specialised for.
 *
 * The subset of Metal that kernels keep to, so that they mean the same on Metal, in C++ and in CUDA
 * (tools/gpu/msl.py and tools/tidy.py look):
 *
 * - `kernel void f(...)`: numbers by `constant T &args [[buffer(0)]]`, operands from [[buffer(1)]] on, threadgroup
 *   memory
 * as one `threadgroup T *x [[threadgroup(0)]]` or as arrays at the top of a kernel, never assumed to be zero.
 * - Helpers are `static`. Every pointer and reference names its address space, locals and casts too.
 * - Simdgroup operations, simdgroup_matrix and simdgroup_barrier in simdgroup-uniform flow alone,
 *   threadgroup_barrier in
 * threadgroup-uniform flow: no early return before either. A barrier names the memory that it orders; simdgroup
 * operations order none.
 * - Threadgroups are whole: tails are guarded by a comparison with a count. A simdgroup has 32 threads.
 * - `f` behind float literals; half is converted explicitly; arguments of min, max, clamp are of one type; swizzles
 *   are
 * .xyzw's; simdgroup_matrix is 8x8 and its elements are not looked at.
 * - Blocks are read through 16 or 32-bit types: a pointer to char becomes a load for each byte. */
#ifndef GLM52_KERNELS_COMMON_H
#define GLM52_KERNELS_COMMON_H

#include <metal_stdlib>

#include "args.h"
#include "ops_args.h"

using namespace metal;

#define SIMD_WIDTH 32

/* Types of a cache (GLM52_KV_F16, GLM52_KV_F32). */
#define KV_F16 0
#define KV_F32 1

/* struct glm52_gpu_constants: 0 where a kernel takes the number from its arguments. */
constant uint constant_latent [[function_constant(0)]];
constant uint constant_rope [[function_constant(1)]];
constant uint constant_nope [[function_constant(2)]];
constant uint constant_value [[function_constant(3)]];
constant uint constant_index_key [[function_constant(4)]];

/* A size: the pipeline's if it has one, else the argument's. */
static uint size_of_either(uint constant_size, uint argument) {
    return constant_size != 0 ? constant_size : argument;
}

#endif
