/* msl_check.h - Metal's words as C++ for OpenCL, to be checked and never run (tools/gpu/check_msl.py). */
#ifndef GLM52_MSL_CHECK_H
#define GLM52_MSL_CHECK_H

#pragma OPENCL EXTENSION cl_khr_fp16 : enable

typedef uchar uint8_t;
typedef ushort uint16_t;
typedef uint uint32_t;
typedef int int32_t;
typedef ulong uint64_t;

#define device __global
#define constant __constant
#define threadgroup __local
#define thread __private
#define kernel __kernel
#define MSL_STATIC static
#define MSL_CONSTANT static __constant
#define MSL_FUNCTION_CONSTANT(T, name, n) static __constant T name = T()
/* By reference, since templates of kernels are plain functions here, which have no memory of this kind. */
#define MSL_TG_VAR(T, name, dims) typedef T msl_##name dims; __local msl_##name &name = *(__local msl_##name *)0

namespace metal {

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);

#define REDUCTION(name) template <class T> T name(T)
REDUCTION(simd_sum);
REDUCTION(simd_max);
REDUCTION(simd_min);
REDUCTION(simd_or);
REDUCTION(simd_and);
REDUCTION(simd_xor);
REDUCTION(simd_prefix_exclusive_sum);
REDUCTION(simd_prefix_inclusive_sum);
REDUCTION(simd_broadcast_first);
#define SHUFFLE(name) template <class T> T name(T, ushort)
SHUFFLE(simd_shuffle);
SHUFFLE(simd_broadcast);
SHUFFLE(simd_shuffle_xor);
SHUFFLE(simd_shuffle_down);
SHUFFLE(simd_shuffle_up);
bool simd_any(bool);
bool simd_all(bool);

template <class T, int R, int C> struct simdgroup_matrix {
    T e[2];
    simdgroup_matrix() = default;
    explicit simdgroup_matrix(T);
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
#define MATRIX_MEMORY(space)                                                                          \
    template <class T>                                                                                \
    void simdgroup_load(thread simdgroup_matrix<T, 8, 8> &, space const T *, ulong = 8,               \
                        ulong2 = ulong2(0), bool = false);                                            \
    template <class T>                                                                                \
    void simdgroup_store(simdgroup_matrix<T, 8, 8>, space T *, ulong = 8, ulong2 = ulong2(0), bool = false);
MATRIX_MEMORY(device)
MATRIX_MEMORY(threadgroup)
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(thread simdgroup_matrix<D, 8, 8> &, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);

template <class T> T msl_select(T, T, bool);
template <class To, class From> To as_type(From from) {
    return __builtin_bit_cast(To, from);
}
namespace precise {
using ::exp;
using ::log;
using ::rsqrt;
using ::sqrt;
} // namespace precise

template <class T, int N> struct vec_of;
#define VEC(T, N)                      \
    template <> struct vec_of<T, N> {  \
        typedef T##N type;             \
    };
VEC(float, 2)
VEC(float, 4)
VEC(half, 2)
VEC(half, 4)
VEC(uint, 2)
VEC(uint, 4)
template <class T, int N> using vec = typename vec_of<T, N>::type;

/* Vectors are made by calls in Metal, by casts in OpenCL. */
#define VECTOR(T)                                               \
    static inline T##2 msl_##T##2(T a) { return (T##2)(a); }    \
    static inline T##2 msl_##T##2(T a, T b) { return (T##2)(a, b); } \
    static inline T##2 msl_##T##2(T##2 a) { return a; }         \
    static inline T##3 msl_##T##3(T a, T b, T c) { return (T##3)(a, b, c); } \
    static inline T##4 msl_##T##4(T a) { return (T##4)(a); }    \
    static inline T##4 msl_##T##4(T a, T b, T c, T d) { return (T##4)(a, b, c, d); } \
    static inline T##4 msl_##T##4(T##2 a, T##2 b) { return (T##4)(a, b); } \
    static inline T##4 msl_##T##4(T##4 a) { return a; }
#define CONVERT(T, U)                                                       \
    static inline T##4 msl_##T##4(U##4 a) { return convert_##T##4(a); }     \
    static inline T##2 msl_##T##2(U##2 a) { return convert_##T##2(a); }
VECTOR(float)
VECTOR(half)
VECTOR(uint)
VECTOR(int)
VECTOR(ushort)
VECTOR(uchar)
VECTOR(ulong)
CONVERT(float, half)
CONVERT(float, uint)
CONVERT(float, int)
CONVERT(float, char)
CONVERT(float, uchar)
CONVERT(half, float)
CONVERT(uint, float)
CONVERT(uint, uchar)
CONVERT(int, float)
CONVERT(int, char)

} // namespace metal

#define select msl_select
#define float2(...) msl_float2(__VA_ARGS__)
#define float3(...) msl_float3(__VA_ARGS__)
#define float4(...) msl_float4(__VA_ARGS__)
#define half2(...) msl_half2(__VA_ARGS__)
#define half4(...) msl_half4(__VA_ARGS__)
#define uint2(...) msl_uint2(__VA_ARGS__)
#define uint4(...) msl_uint4(__VA_ARGS__)
#define int4(...) msl_int4(__VA_ARGS__)
#define uchar4(...) msl_uchar4(__VA_ARGS__)
#define ulong2(...) msl_ulong2(__VA_ARGS__)

#endif
