/* msl_cuda.cuh - Metal Shading Language as CUDA (compute capability 8.0 and up): what a kernel file that
 * tools/gpu/emit_cuda.py wrote includes first. Vectors and arithmetic are native/gpu/shim's, shared with the simulator;
 * here is what a GPU does its own way: simdgroups are warps, threadgroup memory is shared memory, simdgroup_matrix is
 * mma.sync. */
#pragma once
#define CUDA_NO_HALF
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#include "launch.h"

#define MSL_FN __host__ __device__ __forceinline__
#define MSL_DEVICE static __device__ __forceinline__
typedef unsigned char uchar;
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;

namespace metal {
/* Arithmetic of halves is rounded once from float, which is exact for + - * /. */
struct half {
    __half v;
    MSL_FN half() {}
    MSL_FN half(float f) : v(__float2half_rn(f)) {}
    MSL_FN operator float() const { return __half2float(v); }
    MSL_FN half &operator+=(half b) { return *this = half(float(*this) + float(b)); }
    MSL_FN half &operator-=(half b) { return *this = half(float(*this) - float(b)); }
    MSL_FN half &operator*=(half b) { return *this = half(float(*this) * float(b)); }
};
#define MSL_HALF_OPERATOR(op)                                                          \
    MSL_FN half operator op(half a, half b) { return half(float(a) op float(b)); }     \
    MSL_FN float operator op(half a, float b) { return float(a) op b; }                \
    MSL_FN float operator op(float a, half b) { return a op float(b); }
MSL_HALF_OPERATOR(+)
MSL_HALF_OPERATOR(-)
MSL_HALF_OPERATOR(*)
MSL_HALF_OPERATOR(/)
} // namespace metal

#pragma nv_diag_suppress 20012
#include "msl_core.hpp"

namespace metal {
/* ---- simdgroups ---- */

static constexpr unsigned MSL_ALL_LANES = 0xffffffffu;
MSL_DEVICE unsigned msl_thread() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
MSL_DEVICE unsigned msl_lane() {
    unsigned lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}
MSL_DEVICE void threadgroup_barrier(mem_flags) { __syncthreads(); }
MSL_DEVICE void simdgroup_barrier(mem_flags) { __syncwarp(); }

/* A shuffle of 32 bits for any type of whole words, or of less than one. */
template <class T, class F> MSL_DEVICE T msl_by_words(T value, F shuffle) {
    constexpr int words = (sizeof(T) + 3) / 4;
    static_assert(sizeof(T) < 4 || sizeof(T) % 4 == 0, "a shuffle of broken words");
    uint32_t word[words] = {0};
    memcpy(word, (const void *)&value, sizeof(T));
    for (int i = 0; i < words; i++) word[i] = shuffle(word[i]);
    T result;
    memcpy((void *)&result, word, sizeof(T));
    return result;
}
template <class T> MSL_DEVICE T simd_shuffle(T v, ushort lane) {
    return msl_by_words(v, [=](uint32_t w) { return __shfl_sync(MSL_ALL_LANES, w, lane); });
}
template <class T> MSL_DEVICE T simd_broadcast(T v, ushort lane) { return simd_shuffle(v, lane); }
template <class T> MSL_DEVICE T simd_broadcast_first(T v) { return simd_shuffle(v, 0); }
template <class T> MSL_DEVICE T simd_shuffle_xor(T v, ushort mask) {
    return msl_by_words(v, [=](uint32_t w) { return __shfl_xor_sync(MSL_ALL_LANES, w, mask); });
}
template <class T> MSL_DEVICE T simd_shuffle_down(T v, ushort by) {
    return msl_by_words(v, [=](uint32_t w) { return __shfl_down_sync(MSL_ALL_LANES, w, by); });
}
template <class T> MSL_DEVICE T simd_shuffle_up(T v, ushort by) {
    return msl_by_words(v, [=](uint32_t w) { return __shfl_up_sync(MSL_ALL_LANES, w, by); });
}

/* All lanes get the same bits: each step adds pairs, which commutes. */
#define MSL_REDUCTION(name, expression)                        \
    template <class T> MSL_DEVICE T name(T a) {                \
        for (int distance = 16; distance > 0; distance /= 2) { \
            const T b = simd_shuffle_xor(a, distance);         \
            a = T(expression);                                 \
        }                                                      \
        return a;                                              \
    }
MSL_REDUCTION(simd_sum, a + b)
MSL_REDUCTION(simd_product, a *b)
MSL_REDUCTION(simd_max, msl_max(a, b))
MSL_REDUCTION(simd_min, msl_min(a, b))
MSL_REDUCTION(simd_or, a | b)
MSL_REDUCTION(simd_and, a &b)
MSL_REDUCTION(simd_xor, a ^ b)
/* Of integers in one instruction. */
#define MSL_INTEGER_REDUCTION(name, instruction)                                      \
    MSL_DEVICE unsigned name(unsigned a) { return instruction(MSL_ALL_LANES, a); }
MSL_INTEGER_REDUCTION(simd_sum, __reduce_add_sync)
MSL_INTEGER_REDUCTION(simd_max, __reduce_max_sync)
MSL_INTEGER_REDUCTION(simd_min, __reduce_min_sync)
MSL_INTEGER_REDUCTION(simd_or, __reduce_or_sync)
MSL_INTEGER_REDUCTION(simd_and, __reduce_and_sync)
MSL_INTEGER_REDUCTION(simd_xor, __reduce_xor_sync)
template <class T> MSL_DEVICE T simd_prefix_inclusive_sum(T v) {
    for (int distance = 1; distance < 32; distance *= 2) {
        const T before = simd_shuffle_up(v, distance);
        if (msl_lane() >= distance) v = T(v + before);
    }
    return v;
}
template <class T> MSL_DEVICE T simd_prefix_exclusive_sum(T v) {
    const T before = simd_shuffle_up(simd_prefix_inclusive_sum(v), 1);
    return msl_lane() > 0 ? before : T(0);
}
MSL_DEVICE bool simd_any(bool b) { return __any_sync(MSL_ALL_LANES, b); }
MSL_DEVICE bool simd_all(bool b) { return __all_sync(MSL_ALL_LANES, b); }

/* ---- simdgroup_matrix: a lane holds row lane / 4, columns 2 (lane % 4) and the next: the upper half of what
 * mma.sync.m16n8k8 gives a lane of its sum ---- */

template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "simdgroup matrices are 8 by 8");
    T e[2];
    MSL_FN simdgroup_matrix() {}
    MSL_FN explicit simdgroup_matrix(T v) { e[0] = e[1] = v; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int R, int C> MSL_DEVICE simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
    return simdgroup_matrix<T, R, C>(v);
}
template <class T>
MSL_DEVICE void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *p, ulong stride = 8,
                               vec<ulong, 2> origin = vec<ulong, 2>(0), bool is_transposed = false) {
    const unsigned row = msl_lane() / 4, column = msl_lane() % 4 * 2;
    __syncwarp();
    for (unsigned i = 0; i < 2; i++) {
        const ulong r = is_transposed ? column + i : row, c = is_transposed ? row : column + i;
        m.e[i] = p[(r + origin.d[1]) * stride + c + origin.d[0]];
    }
}
template <class T>
MSL_DEVICE void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T *p, ulong stride = 8,
                                vec<ulong, 2> origin = vec<ulong, 2>(0), bool is_transposed = false) {
    const unsigned row = msl_lane() / 4, column = msl_lane() % 4 * 2;
    for (unsigned i = 0; i < 2; i++) {
        const ulong r = is_transposed ? column + i : row, c = is_transposed ? row : column + i;
        p[(r + origin.d[1]) * stride + c + origin.d[0]] = m.e[i];
    }
    __syncwarp();
}
MSL_DEVICE unsigned msl_transpose(unsigned x) {
    unsigned y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
MSL_DEVICE unsigned msl_pack(half a, half b) {
    return __half_as_ushort(a.v) | (unsigned)__half_as_ushort(b.v) << 16;
}
MSL_DEVICE void simdgroup_multiply_accumulate(simdgroup_float8x8 &d, simdgroup_half8x8 a, simdgroup_half8x8 b,
                                              simdgroup_float8x8 c) {
    float low0, low1; /* the lower half, of a zero matrix */
    const unsigned rows = msl_pack(a.e[0], a.e[1]), columns = msl_transpose(msl_pack(b.e[0], b.e[1]));
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%9};"
                 : "=f"(d.e[0]), "=f"(d.e[1]), "=f"(low0), "=f"(low1)
                 : "r"(rows), "r"(0u), "r"(columns), "f"(c.e[0]), "f"(c.e[1]), "f"(0.0f));
}
/* Two transposes of 16 bits make one of 32. */
MSL_DEVICE void msl_transpose_floats(const float *from, float *to) {
    const unsigned x = __float_as_uint(from[0]), y = __float_as_uint(from[1]);
    const unsigned low = msl_transpose(__byte_perm(x, y, 0x5410)), high = msl_transpose(__byte_perm(x, y, 0x7632));
    to[0] = __uint_as_float(__byte_perm(low, high, 0x5410));
    to[1] = __uint_as_float(__byte_perm(low, high, 0x7632));
}
MSL_DEVICE unsigned msl_tf32(float x) {
    unsigned r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
MSL_DEVICE void msl_mma_tf32(float *sum, const unsigned *a, const unsigned *b) {
    float low0 = 0, low1 = 0;
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%5}, {%7,%8}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(low0), "+f"(low1)
                 : "r"(a[0]), "r"(0u), "r"(a[1]), "r"(b[0]), "r"(b[1]));
}
/* Floats as sums of two tf32: high * high + high * low + low * high, off by about 2^-22 of a product. The order of
 * the contraction differs from the source's, in both factors alike. */
MSL_DEVICE void simdgroup_multiply_accumulate(simdgroup_float8x8 &d, simdgroup_float8x8 a, simdgroup_float8x8 b,
                                              simdgroup_float8x8 c) {
    float turned[2], sum[2] = {c.e[0], c.e[1]};
    msl_transpose_floats(b.e, turned);
    unsigned a_high[2], a_low[2], b_high[2], b_low[2];
    for (int i = 0; i < 2; i++) {
        a_high[i] = msl_tf32(a.e[i]);
        a_low[i] = msl_tf32(a.e[i] - __uint_as_float(a_high[i]));
        b_high[i] = msl_tf32(turned[i]);
        b_low[i] = msl_tf32(turned[i] - __uint_as_float(b_high[i]));
    }
    msl_mma_tf32(sum, a_low, b_high);
    msl_mma_tf32(sum, a_high, b_low);
    msl_mma_tf32(sum, a_high, b_high);
    d.e[0] = sum[0];
    d.e[1] = sum[1];
}
template <class T> MSL_DEVICE void simdgroup_multiply(simdgroup_float8x8 &d, T a, T b) {
    simdgroup_multiply_accumulate(d, a, b, simdgroup_float8x8(0.0f));
}

/* ---- atomics ---- */

template <class T> MSL_DEVICE T atomic_load_explicit(const atomic<T> *p, memory_order) {
    return *(const volatile T *)&p->value;
}
template <class T> MSL_DEVICE void atomic_store_explicit(atomic<T> *p, T v, memory_order) {
    *(volatile T *)&p->value = v;
}
#define MSL_ATOMIC(name, operation)                                                            \
    template <class T> MSL_DEVICE T atomic_##name##_explicit(atomic<T> *p, T v, memory_order) { \
        return operation(&p->value, v);                                                        \
    }
MSL_ATOMIC(exchange, atomicExch)
MSL_ATOMIC(fetch_add, atomicAdd)
MSL_ATOMIC(fetch_sub, atomicSub)
MSL_ATOMIC(fetch_max, atomicMax)
MSL_ATOMIC(fetch_min, atomicMin)
MSL_ATOMIC(fetch_or, atomicOr)
} // namespace metal

/* ---- a kernel's parameters ---- */

namespace msl {
template <class F> struct signature;
template <class... A> struct signature<void(A...)> {
    template <int I, class First, class... Rest> struct at : at<I - 1, Rest...> {};
    template <class First, class... Rest> struct at<0, First, Rest...> { typedef First type; };
    template <int I> using parameter = typename at<I, A...>::type;
};
template <class F, int I> using parameter = typename signature<F>::template parameter<I>;

/* A binding in the block of parameters that a launch copies: a pointer, or the numbers themselves. */
template <class P> struct slot;
template <class E> struct slot<E *> {
    E *pointer;
    static constexpr uint32_t bytes = 0;
    __device__ __forceinline__ E *get() const {
        E *p = pointer;
        __builtin_assume(__isGlobal(p));
        return p;
    }
    void set(const void *operand) { pointer = (E *)operand; }
};
template <class E> struct slot<const E &> {
    E numbers;
    static constexpr uint32_t bytes = sizeof(E);
    __device__ __forceinline__ const E &get() const { return numbers; }
    void set(const void *operand) { memcpy((void *)&numbers, operand, sizeof(E)); }
};

template <class P> struct position {
    MSL_FN static P of(uint3 v) { return P(v.x); }
};
template <class T> struct position<metal::vec<T, 2>> {
    MSL_FN static metal::vec<T, 2> of(uint3 v) { return metal::vec<T, 2>(T(v.x), T(v.y)); }
};
template <class T> struct position<metal::vec<T, 3>> {
    MSL_FN static metal::vec<T, 3> of(uint3 v) { return metal::vec<T, 3>(T(v.x), T(v.y), T(v.z)); }
};
MSL_DEVICE uint3 scaled(uint3 a, dim3 b) { return make_uint3(a.x * b.x, a.y * b.y, a.z * b.z); }
MSL_DEVICE uint3 sum(uint3 a, uint3 b) { return make_uint3(a.x + b.x, a.y + b.y, a.z + b.z); }
MSL_DEVICE uint3 plain(dim3 a) { return make_uint3(a.x, a.y, a.z); }

#define MSL_ATTRIBUTE(attribute, expression)                          \
    template <class P> static __device__ __forceinline__ P attribute() { return expression; }
MSL_ATTRIBUTE(thread_position_in_grid, position<P>::of(sum(scaled(blockIdx, blockDim), threadIdx)))
MSL_ATTRIBUTE(thread_position_in_threadgroup, position<P>::of(threadIdx))
MSL_ATTRIBUTE(threadgroup_position_in_grid, position<P>::of(blockIdx))
MSL_ATTRIBUTE(threads_per_grid, position<P>::of(scaled(plain(gridDim), blockDim)))
MSL_ATTRIBUTE(threads_per_threadgroup, position<P>::of(plain(blockDim)))
MSL_ATTRIBUTE(threadgroups_per_grid, position<P>::of(plain(gridDim)))
MSL_ATTRIBUTE(thread_index_in_threadgroup, P(metal::msl_thread()))
MSL_ATTRIBUTE(thread_index_in_simdgroup, P(metal::msl_thread() & 31))
MSL_ATTRIBUTE(simdgroup_index_in_threadgroup, P(metal::msl_thread() >> 5))
MSL_ATTRIBUTE(simdgroups_per_threadgroup, P((blockDim.x * blockDim.y * blockDim.z + 31) >> 5))
MSL_ATTRIBUTE(threads_per_simdgroup, P(32))

/* Shared memory beyond 48 KiB is asked for. */
template <class K> static cudaError_t allow(K *entry, uint32_t threadgroup_bytes) {
    if (threadgroup_bytes <= 48u * 1024) return cudaSuccess;
    return cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)threadgroup_bytes);
}
template <class K, class B>
static int launch(K *entry, const B &block, const struct glm52_cuda_launch *how, void *stream) {
    const cudaError_t error = allow(entry, how->threadgroup_bytes);
    if (error != cudaSuccess) return (int)error;
    entry<<<dim3(how->groups[0], how->groups[1], how->groups[2]),
            dim3(how->threads[0], how->threads[1], how->threads[2]), how->threadgroup_bytes, (cudaStream_t)stream>>>(
        block);
    return (int)cudaGetLastError();
}
} // namespace msl

extern __shared__ __align__(16) char msl_threadgroup_memory[];
#define kernel static __device__ __forceinline__
#define MSL_STATIC static __device__ __forceinline__
#define MSL_CONSTANT static __device__ const
#define MSL_JOIN_(a, b) a##b
#define MSL_JOIN(a, b) MSL_JOIN_(a, b)
/* -DMSL_SET=generic or -DMSL_SET=glm; the sizes are those of struct glm52_gpu_constants, in its order. */
#define MSL_generic_0 0
#define MSL_generic_1 0
#define MSL_generic_2 0
#define MSL_generic_3 0
#define MSL_generic_4 0
#define MSL_glm_0 512
#define MSL_glm_1 64
#define MSL_glm_2 192
#define MSL_glm_3 256
#define MSL_glm_4 128
#define MSL_FUNCTION_CONSTANT(T, name, n) static constexpr T name = MSL_JOIN(MSL_JOIN(MSL_JOIN(MSL_, MSL_SET), _), n)
#define MSL_TG_VAR(T, name, dims) __shared__ T name dims
#define MSL_UNIT(stem) MSL_JOIN(MSL_JOIN(glm52_cuda_unit_##stem, _), MSL_SET)
#include "msl_macros.h"
