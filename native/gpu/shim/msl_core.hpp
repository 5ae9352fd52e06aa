/* msl_core.hpp - Metal's vectors and functions as C++17, for the simulator (g++, clang++) and CUDA (nvcc).
 *
 * The including file defines MSL_FN (how functions are decorated) and metal::half. Names that libc or CUDA have too are
 * spelled msl_ here; msl_macros.h, which comes last, gives kernels the plain ones. Arithmetic is that of IEEE floats in
 * the order of the source, so both targets give the same bits where neither contracts nor approximates. */
#pragma once
#include "msl_swizzles.inc"

#ifdef __CUDACC__
#define MSL_ALIAS
#else
#define MSL_ALIAS [[gnu::may_alias]]
#endif

namespace metal {
template <class T, int N> struct vec;

/* The vector as parameter makes its operators visible by argument-dependent lookup. */
template <class V, class T, int N, int... I> struct swizzle_of {
    T d[N];
    MSL_FN operator V() const {
        V r;
        int k = 0;
        ((r.d[k++] = d[I]), ...);
        return r;
    }
    MSL_FN swizzle_of &operator=(V v) {
        int k = 0;
        ((d[I] = v.d[k++]), ...);
        return *this;
    }
    MSL_FN swizzle_of &operator=(const swizzle_of &o) {
        V v = o;
        return *this = v;
    }
    MSL_FN swizzle_of &operator+=(V v) { return *this = V(*this) + v; }
    MSL_FN swizzle_of &operator-=(V v) { return *this = V(*this) - v; }
    MSL_FN swizzle_of &operator*=(V v) { return *this = V(*this) * v; }
    MSL_FN swizzle_of &operator/=(V v) { return *this = V(*this) / v; }
};
template <class T, int N, int... I> using swizzle = swizzle_of<vec<T, sizeof...(I)>, T, N, I...>;

#define MSL_BINARY(op)                                                    \
    friend MSL_FN vec operator op(vec a, vec b) {                         \
        vec r;                                                            \
        for (int i = 0; i < n; i++) r.d[i] = T(a.d[i] op b.d[i]);         \
        return r;                                                         \
    }                                                                     \
    MSL_FN vec &operator op##=(vec b) {                                   \
        for (int i = 0; i < n; i++) d[i] = T(d[i] op b.d[i]);             \
        return *this;                                                     \
    }
#define MSL_COMPARE(op)                                                   \
    friend MSL_FN vec<bool, n> operator op(vec a, vec b) {                \
        vec<bool, n> r;                                                   \
        for (int i = 0; i < n; i++) r.d[i] = a.d[i] op b.d[i];            \
        return r;                                                         \
    }
/* Copies are one aligned load and store of the whole vector. */
#define MSL_VECTOR(size, aligned)                                         \
    static constexpr int n = size;                                        \
    MSL_FN vec() {}                                                       \
    MSL_FN vec(T s) {                                                     \
        for (int i = 0; i < n; i++) d[i] = s;                             \
    }                                                                     \
    template <class U> MSL_FN explicit vec(vec<U, size> o) {              \
        for (int i = 0; i < n; i++) d[i] = T(o.d[i]);                     \
    }                                                                     \
    MSL_FN T &operator[](int i) { return d[i]; }                          \
    MSL_FN const T &operator[](int i) const { return d[i]; }              \
    MSL_BINARY(+) MSL_BINARY(-) MSL_BINARY(*) MSL_BINARY(/) MSL_BINARY(%) \
    MSL_BINARY(&) MSL_BINARY(|) MSL_BINARY(^) MSL_BINARY(<<) MSL_BINARY(>>) \
    MSL_COMPARE(<) MSL_COMPARE(>) MSL_COMPARE(<=) MSL_COMPARE(>=) MSL_COMPARE(==) MSL_COMPARE(!=) \
    friend MSL_FN vec operator-(vec a) {                                  \
        vec r;                                                            \
        for (int i = 0; i < n; i++) r.d[i] = T(-a.d[i]);                  \
        return r;                                                         \
    }                                                                     \
    friend MSL_FN vec operator~(vec a) {                                  \
        vec r;                                                            \
        for (int i = 0; i < n; i++) r.d[i] = T(~a.d[i]);                  \
        return r;                                                         \
    }                                                                     \
    struct alignas(aligned * sizeof(T)) MSL_ALIAS whole { T v[aligned]; }; \
    MSL_FN vec(const vec &o) { *(whole *)(void *)this = *(const whole *)(const void *)&o; } \
    MSL_FN vec &operator=(const vec &o) {                                 \
        *(whole *)(void *)this = *(const whole *)(const void *)&o;        \
        return *this;                                                     \
    }

/* A union, so that .x, .xy and [0] name the same storage. */
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
    union {
        T d[2];
        struct { T x, y; };
        MSL_SWIZZLES_2(T)
    };
    MSL_VECTOR(2, 2)
    MSL_FN vec(T a, T b) { d[0] = a; d[1] = b; }
};
/* As large as four. */
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
    union {
        T d[4];
        struct { T x, y, z; };
        MSL_SWIZZLES_3(T)
    };
    MSL_VECTOR(3, 4)
    MSL_FN vec(T a, T b, T c) { d[0] = a; d[1] = b; d[2] = c; }
    MSL_FN vec(vec<T, 2> a, T c) { d[0] = a.d[0]; d[1] = a.d[1]; d[2] = c; }
    MSL_FN vec(T a, vec<T, 2> c) { d[0] = a; d[1] = c.d[0]; d[2] = c.d[1]; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
    union {
        T d[4];
        struct { T x, y, z, w; };
        MSL_SWIZZLES_4(T)
    };
    MSL_VECTOR(4, 4)
    MSL_FN vec(T a, T b, T c, T e) { d[0] = a; d[1] = b; d[2] = c; d[3] = e; }
    MSL_FN vec(vec<T, 2> a, vec<T, 2> b) { d[0] = a.d[0]; d[1] = a.d[1]; d[2] = b.d[0]; d[3] = b.d[1]; }
    MSL_FN vec(vec<T, 2> a, T c, T e) { d[0] = a.d[0]; d[1] = a.d[1]; d[2] = c; d[3] = e; }
    MSL_FN vec(T a, T b, vec<T, 2> c) { d[0] = a; d[1] = b; d[2] = c.d[0]; d[3] = c.d[1]; }
    MSL_FN vec(vec<T, 3> a, T e) { d[0] = a.d[0]; d[1] = a.d[1]; d[2] = a.d[2]; d[3] = e; }
    MSL_FN vec(T a, vec<T, 3> b) { d[0] = a; d[1] = b.d[0]; d[2] = b.d[1]; d[3] = b.d[2]; }
};

#define MSL_VECTORS(T, name)              \
    typedef vec<T, 2> msl_##name##2;      \
    typedef vec<T, 3> msl_##name##3;      \
    typedef vec<T, 4> msl_##name##4;
MSL_VECTORS(float, float)
MSL_VECTORS(half, half)
MSL_VECTORS(int, int)
MSL_VECTORS(unsigned, uint)
MSL_VECTORS(short, short)
MSL_VECTORS(unsigned short, ushort)
MSL_VECTORS(signed char, char)
MSL_VECTORS(unsigned char, uchar)
MSL_VECTORS(long, long)
MSL_VECTORS(unsigned long, ulong)
MSL_VECTORS(bool, bool)

/* Aligned to a component: four floats from any float on. */
template <class T, int N> struct packed_vec {
    T d[N];
    MSL_FN operator vec<T, N>() const {
        vec<T, N> r;
        for (int i = 0; i < N; i++) r.d[i] = d[i];
        return r;
    }
    MSL_FN packed_vec &operator=(vec<T, N> v) {
        for (int i = 0; i < N; i++) d[i] = v.d[i];
        return *this;
    }
    MSL_FN T &operator[](int i) { return d[i]; }
    MSL_FN const T &operator[](int i) const { return d[i]; }
};
typedef packed_vec<float, 2> packed_float2;
typedef packed_vec<float, 4> packed_float4;
typedef packed_vec<half, 4> packed_half4;

template <class To, class From> MSL_FN To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "as_type: sizes differ");
    To to;
    __builtin_memcpy((void *)&to, (const void *)&from, sizeof(to));
    return to;
}

/* ---- functions ---- */

#define MSL_UNARY(name, expression)                                       \
    MSL_FN float msl_##name(float x) { return expression; }               \
    MSL_FN half msl_##name(half x) { return half(msl_##name(float(x))); } \
    template <class T, int N> MSL_FN vec<T, N> msl_##name(vec<T, N> x) {  \
        vec<T, N> r;                                                      \
        for (int i = 0; i < N; i++) r.d[i] = msl_##name(x.d[i]);          \
        return r;                                                         \
    }
MSL_UNARY(exp, expf(x))
MSL_UNARY(exp2, exp2f(x))
MSL_UNARY(log, logf(x))
MSL_UNARY(log2, log2f(x))
MSL_UNARY(sqrt, sqrtf(x))
MSL_UNARY(rsqrt, 1.0f / sqrtf(x))
MSL_UNARY(sin, sinf(x))
MSL_UNARY(cos, cosf(x))
MSL_UNARY(tanh, tanhf(x))
MSL_UNARY(fabs, fabsf(x))
MSL_UNARY(floor, floorf(x))
MSL_UNARY(ceil, ceilf(x))
MSL_UNARY(round, roundf(x))
MSL_UNARY(rint, rintf(x))
MSL_UNARY(trunc, truncf(x))

MSL_FN float msl_pow(float a, float b) { return powf(a, b); }
MSL_FN float msl_fma(float a, float b, float c) { return fmaf(a, b, c); }
template <class T, int N> MSL_FN vec<T, N> msl_fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = msl_fma(a.d[i], b.d[i], c.d[i]);
    return r;
}
MSL_FN float msl_ldexp(float x, int exponent) { return ldexpf(x, exponent); }
template <class T> MSL_FN T msl_abs(T x) { return x < T(0) ? T(-x) : x; }
template <class T> MSL_FN T msl_min(T a, T b) { return b < a ? b : a; }
template <class T> MSL_FN T msl_max(T a, T b) { return a < b ? b : a; }
MSL_FN float msl_min(float a, float b) { return fminf(a, b); }
MSL_FN float msl_max(float a, float b) { return fmaxf(a, b); }
template <class T, int N> MSL_FN vec<T, N> msl_min(vec<T, N> a, vec<T, N> b) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = msl_min(a.d[i], b.d[i]);
    return r;
}
template <class T, int N> MSL_FN vec<T, N> msl_max(vec<T, N> a, vec<T, N> b) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = msl_max(a.d[i], b.d[i]);
    return r;
}
template <class T> MSL_FN T msl_clamp(T x, T low, T high) { return msl_min(msl_max(x, low), high); }
/* ((a0 b0 + a1 b1) + a2 b2) + a3 b3 */
template <class T, int N> MSL_FN T msl_dot(vec<T, N> a, vec<T, N> b) {
    T sum = a.d[0] * b.d[0];
    for (int i = 1; i < N; i++) sum = T(sum + a.d[i] * b.d[i]);
    return sum;
}
MSL_FN bool msl_isnan(float x) { return x != x; }
MSL_FN bool msl_isinf(float x) { return fabsf(x) == __builtin_huge_valf(); }
MSL_FN bool msl_isfinite(float x) { return fabsf(x) < __builtin_huge_valf(); }
template <class T> MSL_FN T msl_select(T no, T yes, bool which) { return which ? yes : no; }
template <class T, int N> MSL_FN vec<T, N> msl_select(vec<T, N> no, vec<T, N> yes, vec<bool, N> which) {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = which.d[i] ? yes.d[i] : no.d[i];
    return r;
}
template <int N> MSL_FN bool msl_all(vec<bool, N> v) {
    bool r = true;
    for (int i = 0; i < N; i++) r = r && v.d[i];
    return r;
}
template <int N> MSL_FN bool msl_any(vec<bool, N> v) {
    bool r = false;
    for (int i = 0; i < N; i++) r = r || v.d[i];
    return r;
}
MSL_FN unsigned msl_popcount(unsigned x) {
    unsigned count = 0;
    for (; x != 0; x &= x - 1) count++;
    return count;
}

namespace precise {
using metal::msl_cos;
using metal::msl_exp;
using metal::msl_exp2;
using metal::msl_log;
using metal::msl_pow;
using metal::msl_rsqrt;
using metal::msl_sin;
using metal::msl_sqrt;
} // namespace precise

/* ---- memory ---- */

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
MSL_FN constexpr mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
enum memory_order { memory_order_relaxed = 0 };
template <class T> struct atomic { T value; };
typedef atomic<unsigned> atomic_uint;
typedef atomic<int> atomic_int;
} // namespace metal
#define MSL_INFINITY __builtin_huge_valf()
