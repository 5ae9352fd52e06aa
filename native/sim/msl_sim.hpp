/* msl_sim.hpp - Metal for the simulator: what the macros of tools/gpu/msl.py mean, and the operations between threads.
 *
 * A simdgroup operation is one exchange: every lane lays its value down, waits for the others and looks at theirs. Sums
 * go in butterfly order, lane i with lane i ^ 16, then 8, 4, 2, 1, as CUDA's shuffles do. */
#pragma once
#include <math.h>
#include <string.h>
#include <sys/types.h>

#include "sim_kernel.hpp"

#define MSL_FN inline
typedef unsigned char uchar;
typedef unsigned long ulong;  /* glibc has it, macOS does not */
namespace metal {
typedef _Float16 half;
}
using metal::half;
#include "msl_core.hpp"

/* The place in the kernel that a wait is reported at. */
#define SIM_SITE const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace metal {
inline void threadgroup_barrier(mem_flags flags, SIM_SITE) { sim_barrier(false, int(flags), file, line); }
inline void simdgroup_barrier(mem_flags flags, SIM_SITE) { sim_barrier(true, int(flags), file, line); }

/* ---- simdgroup operations ---- */

template <class T> struct sim_lanes {
    char *slots;
    uint32_t active;
    sim_lanes(const T &value, const char *file, int line) {
        static_assert(sizeof(T) <= SIM_SLOT, "too large for a simdgroup operation");
        slots = sim_exchange(&value, sizeof(T), file, line, &active);
    }
    T operator[](unsigned lane) const {
        T value;
        memcpy((void *)&value, slots + (lane % SIM_LANES) * SIM_SLOT, sizeof(value));
        return value;
    }
    bool is_there(unsigned lane) const { return active >> lane & 1; }
};

/* f commutes, so that every lane's butterfly gives the same bits: the first lane's is kept for the others. */
template <class T, class F> inline T sim_reduce(T value, F f, const char *file, int line) {
    sim_lanes<T> lanes(value, file, line);
    T *result = (T *)(void *)(lanes.slots + SIM_LANES * SIM_SLOT);
    uint32_t *is_known = (uint32_t *)(void *)(lanes.slots + (SIM_LANES + 1) * SIM_SLOT);
    if (*is_known) return *result;
    T part[SIM_LANES];
    for (unsigned i = 0; i < SIM_LANES; i++) part[i] = lanes[i];
    for (unsigned half_width = SIM_LANES / 2; half_width > 0; half_width /= 2) {
        for (unsigned i = 0; i < half_width; i++) part[i] = f(part[i], part[i + half_width]);
    }
    *result = part[0];
    *is_known = 1;
    return part[0];
}

#define SIM_REDUCTION(name, expression)                           \
    template <class T> inline T name(T value, SIM_SITE) {         \
        return sim_reduce(value, [](T a, T b) { return T(expression); }, file, line); \
    }
SIM_REDUCTION(simd_sum, a + b)
SIM_REDUCTION(simd_product, a *b)
SIM_REDUCTION(simd_max, msl_max(a, b))
SIM_REDUCTION(simd_min, msl_min(a, b))
SIM_REDUCTION(simd_or, a | b)
SIM_REDUCTION(simd_and, a &b)
SIM_REDUCTION(simd_xor, a ^ b)

template <class T> inline T simd_shuffle(T value, ushort lane, SIM_SITE) {
    return sim_lanes<T>(value, file, line)[lane];
}
template <class T> inline T simd_broadcast(T value, ushort lane, SIM_SITE) {
    return sim_lanes<T>(value, file, line)[lane];
}
template <class T> inline T simd_broadcast_first(T value, SIM_SITE) {
    sim_lanes<T> lanes(value, file, line);
    return lanes[__builtin_ctz(lanes.active)];
}
template <class T> inline T simd_shuffle_xor(T value, ushort mask, SIM_SITE) {
    return sim_lanes<T>(value, file, line)[sim_self()->lane ^ mask];
}
template <class T> inline T simd_shuffle_down(T value, ushort distance, SIM_SITE) {
    sim_lanes<T> lanes(value, file, line);
    const unsigned from = sim_self()->lane + distance;
    return from < SIM_LANES ? lanes[from] : value;
}
template <class T> inline T simd_shuffle_up(T value, ushort distance, SIM_SITE) {
    sim_lanes<T> lanes(value, file, line);
    const unsigned lane = sim_self()->lane;
    return lane >= distance ? lanes[lane - distance] : value;
}
template <class T> inline T simd_prefix_inclusive_sum(T value, SIM_SITE) {
    sim_lanes<T> lanes(value, file, line);
    T sum = T(0);
    for (unsigned i = 0; i <= sim_self()->lane; i++) sum = T(sum + lanes[i]);
    return sum;
}
template <class T> inline T simd_prefix_exclusive_sum(T value, SIM_SITE) {
    sim_lanes<T> lanes(value, file, line);
    T sum = T(0);
    for (unsigned i = 0; i < sim_self()->lane; i++) sum = T(sum + lanes[i]);
    return sum;
}
inline bool simd_any(bool value, SIM_SITE) {
    sim_lanes<bool> lanes(value, file, line);
    bool result = false;
    for (unsigned i = 0; i < SIM_LANES; i++) result |= lanes.is_there(i) && lanes[i];
    return result;
}
inline bool simd_all(bool value, SIM_SITE) {
    sim_lanes<bool> lanes(value, file, line);
    bool result = true;
    for (unsigned i = 0; i < SIM_LANES; i++) result &= !lanes.is_there(i) || lanes[i];
    return result;
}
/* Bit n is lane n's. Metal's is a class of its own; kernels convert it with uint(ulong(...)). */
inline unsigned long simd_ballot(bool value, SIM_SITE) {
    sim_lanes<bool> lanes(value, file, line);
    unsigned long bits = 0;
    for (unsigned i = 0; i < SIM_LANES; i++) bits |= (unsigned long)(lanes.is_there(i) && lanes[i]) << i;
    return bits;
}

/* ---- simdgroup_matrix: a lane has row lane / 4, columns 2 (lane % 4) and the next. Metal does not say which. ---- */

template <class T, int R, int C> struct simdgroup_matrix {
    static_assert(R == 8 && C == 8, "8x8 only");
    T e[2];
    simdgroup_matrix() {}
    explicit simdgroup_matrix(T value) { e[0] = e[1] = value; }
};
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;

template <class T, int R, int C> inline simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T value) {
    return simdgroup_matrix<T, R, C>(value);
}
/* All lanes come together, as they must. */
inline void sim_meet(const char *file, int line) {
    uint32_t active;
    const char nothing = 0;
    sim_exchange(&nothing, 1, file, line, &active);
}
inline ulong sim_element(unsigned i, ulong row_elements, const vec<ulong, 2> &origin, bool transpose) {
    const ulong row = sim_self()->lane / 4, column = sim_self()->lane % 4 * 2 + i;
    return ((transpose ? column : row) + origin.d[1]) * row_elements + (transpose ? row : column) + origin.d[0];
}
template <class T>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *from, ulong row_elements = 8,
                           vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false, SIM_SITE) {
    sim_meet(file, line);
    for (unsigned i = 0; i < 2; i++) m.e[i] = from[sim_element(i, row_elements, origin, transpose)];
}
template <class T>
inline void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T *to, ulong row_elements = 8,
                            vec<ulong, 2> origin = vec<ulong, 2>(0), bool transpose = false, SIM_SITE) {
    sim_meet(file, line);
    for (unsigned i = 0; i < 2; i++) to[sim_element(i, row_elements, origin, transpose)] = m.e[i];
}
/* Each element: c, then fused products in ascending order of k. */
template <class D, class A, class B, class C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                          simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, SIM_SITE) {
    struct both {
        A a[2];
        B b[2];
    } mine = {{a.e[0], a.e[1]}, {b.e[0], b.e[1]}};
    sim_lanes<both> lanes(mine, file, line);
    const unsigned row = sim_self()->lane / 4, column = sim_self()->lane % 4 * 2;
    for (unsigned i = 0; i < 2; i++) {
        float sum = float(c.e[i]);
        for (unsigned k = 0; k < 8; k++) {
            const float left = float(lanes[row * 4 + k / 2].a[k & 1]);
            sum = fmaf(left, float(lanes[k * 4 + (column + i) / 2].b[(column + i) & 1]), sum);
        }
        d.e[i] = D(sum);
    }
}
template <class D, class A, class B>
inline void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a, simdgroup_matrix<B, 8, 8> b,
                               SIM_SITE) {
    simdgroup_multiply_accumulate(d, a, b, simdgroup_matrix<D, 8, 8>(D(0)), file, line);
}

/* ---- atomics ---- */

template <class T> inline T atomic_load_explicit(const atomic<T> *p, memory_order) {
    T value;
    __atomic_load(&p->value, &value, __ATOMIC_RELAXED);
    return value;
}
template <class T> inline void atomic_store_explicit(atomic<T> *p, T value, memory_order) {
    __atomic_store(&p->value, &value, __ATOMIC_RELAXED);
}
#define SIM_ATOMIC(name, expression)                                                                        \
    template <class T> inline T name(atomic<T> *p, T value, memory_order) {                                 \
        T old, changed;                                                                                     \
        __atomic_load(&p->value, &old, __ATOMIC_RELAXED);                                                   \
        do {                                                                                                \
            changed = expression;                                                                           \
        } while (!__atomic_compare_exchange(&p->value, &old, &changed, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)); \
        return old;                                                                                         \
    }
SIM_ATOMIC(atomic_exchange_explicit, value)
SIM_ATOMIC(atomic_fetch_add_explicit, T(old + value))
SIM_ATOMIC(atomic_fetch_sub_explicit, T(old - value))
SIM_ATOMIC(atomic_fetch_max_explicit, msl_max(old, value))
SIM_ATOMIC(atomic_fetch_min_explicit, msl_min(old, value))
SIM_ATOMIC(atomic_fetch_or_explicit, T(old | value))
SIM_ATOMIC(atomic_fetch_and_explicit, T(old & value))
} // namespace metal

/* ---- how a kernel is called ---- */

namespace sim {
template <int I, class... A> struct nth;
template <class H, class... B> struct nth<0, H, B...> { typedef H type; };
template <int I, class H, class... B> struct nth<I, H, B...> : nth<I - 1, B...> {};
template <class F, int I> struct parameter_of;
template <int I, class... A> struct parameter_of<void(A...), I> : nth<I, A...> {};
template <class F, int I> using parameter = typename parameter_of<F, I>::type;

template <class P> struct pointed {
    static constexpr size_t size = 0;
    static constexpr bool reference = false, constant = false;
};
template <class E> struct pointed<E *> {
    static constexpr size_t size = sizeof(E);
    static constexpr bool reference = false, constant = false;
};
template <class E> struct pointed<const E *> : pointed<E *> { static constexpr bool constant = true; };
template <class E> struct pointed<E &> : pointed<E *> { static constexpr bool reference = true; };
template <class E> struct pointed<const E &> : pointed<E *> {
    static constexpr bool reference = true, constant = true;
};
template <class P> constexpr size_t pointed_size() { return pointed<P>::size; }
template <class P> constexpr bool is_reference() { return pointed<P>::reference; }
template <class P> constexpr bool is_const() { return pointed<P>::constant; }

template <class P> struct bound { static P get(void *p) { return (P)p; } };
template <class E> struct bound<E &> { static E &get(void *p) { return *(E *)p; } };
template <class P> struct place { static P get(const uint32_t *v) { return P(v[0]); } };
template <class T, int N> struct place<metal::vec<T, N>> {
    static metal::vec<T, N> get(const uint32_t *v) {
        metal::vec<T, N> r;
        for (int i = 0; i < N; i++) r.d[i] = T(v[i]);
        return r;
    }
};

template <class P, sim_kind K, int I> inline P argument(const sim_thread *self) {
    if constexpr (K == SIM_BUFFER) return bound<P>::get(self->buffers[I]);
    else if constexpr (K == SIM_THREADGROUP) return bound<P>::get(self->threadgroups[I]);
    else if constexpr (K == SIM_THREAD_POSITION_IN_GRID) return place<P>::get(self->position_in_grid);
    else if constexpr (K == SIM_THREAD_POSITION_IN_THREADGROUP) return place<P>::get(self->position_in_group);
    else if constexpr (K == SIM_THREADGROUP_POSITION_IN_GRID) return place<P>::get(self->group_position);
    else if constexpr (K == SIM_THREADS_PER_GRID) return place<P>::get(self->grid_threads);
    else if constexpr (K == SIM_THREADS_PER_THREADGROUP) return place<P>::get(self->group_threads);
    else if constexpr (K == SIM_THREADGROUPS_PER_GRID) return place<P>::get(self->grid_groups);
    else if constexpr (K == SIM_THREAD_INDEX_IN_THREADGROUP) return P(self->index);
    else if constexpr (K == SIM_THREAD_INDEX_IN_SIMDGROUP) return P(self->lane);
    else if constexpr (K == SIM_SIMDGROUP_INDEX_IN_THREADGROUP) return P(self->simdgroup);
    else if constexpr (K == SIM_SIMDGROUPS_PER_THREADGROUP) return P(self->simdgroup_count);
    else {
        static_assert(K == SIM_THREADS_PER_SIMDGROUP, "");
        return P(SIM_LANES);
    }
}
} // namespace sim

#define kernel static
#define MSL_STATIC static inline
#define MSL_CONSTANT static const
#define MSL_FUNCTION_CONSTANT(T, name, index) static T name
#define MSL_TG_VAR(T, name, dimensions)                   \
    typedef T name##_type dimensions;                     \
    static const char name##_key = 0;                     \
    name##_type &name = *(name##_type *)sim_threadgroup_array(&name##_key, sizeof(name##_type), alignof(name##_type))

#define SIM_OPEN(...) __VA_ARGS__
#define SIM_KERNEL(number, name, called, described)                                                              \
    static void sim_call_##number(const sim_thread *self) { (void)self; SIM_OPEN called; }                        \
    static const sim_parameter sim_parameters_##number[] = {SIM_OPEN described};                                  \
    static const char sim_name_##number[] = name;
#define SIM_ENTRY(number)                                                          \
    {sim_name_##number, sim_call_##number, sim_parameters_##number,                \
     sizeof(sim_parameters_##number) / sizeof(sim_parameter)}
#define SIM_CONSTANT(name, index) {index, &name, sizeof(name)}
#define SIM_UNIT(unit, entries, constants)                                                                        \
    static const sim_kernel sim_kernel_table[] = {SIM_OPEN entries};                                              \
    static const sim_constant sim_constant_table[] = {SIM_OPEN constants};                                        \
    static sim_unit sim_this = {#unit, sim_kernel_table, sizeof(sim_kernel_table) / sizeof(sim_kernel),           \
                                sim_constant_table, sizeof(sim_constant_table) / sizeof(sim_constant), nullptr};  \
    __attribute__((constructor, no_sanitize("thread"))) static void sim_link() {                                  \
        sim_this.next = sim_units;                                                                                \
        sim_units = &sim_this;                                                                                    \
    }

#include "msl_macros.h"
