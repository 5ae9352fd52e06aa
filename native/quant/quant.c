/* quant.c - choice of the instruction set, the table's look-ups, conversions of single numbers. */
#include "quant.h"

#include <stdatomic.h>
#if defined(__linux__) && defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "blocks.h"
#include "encode.h"

/* ---- which set runs: GLM52_HAVE_<name> says that it was built, the processor says whether it may run ---- */

extern const struct glm52_quant_set glm52_quant_set_portable;
#ifdef GLM52_HAVE_neon
extern const struct glm52_quant_set glm52_quant_set_neon;
#endif
#ifdef GLM52_HAVE_dotprod
extern const struct glm52_quant_set glm52_quant_set_dotprod;
#endif
#ifdef GLM52_HAVE_avx2
extern const struct glm52_quant_set glm52_quant_set_avx2;
#endif
#ifdef GLM52_HAVE_avx512
extern const struct glm52_quant_set glm52_quant_set_avx512;
#endif
#ifdef GLM52_HAVE_avx512vnni
extern const struct glm52_quant_set glm52_quant_set_avx512vnni;
#endif

#ifdef GLM52_HAVE_dotprod
static bool has_dot_product(void) {
#if defined(__APPLE__)
    return true;    /* every 64-bit processor that macOS runs on */
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#else
    return false;
#endif
}
#endif

const struct glm52_quant_set *glm52_quant_set_at(uint32_t index) {
    const struct glm52_quant_set *usable[5] = {&glm52_quant_set_portable};
    uint32_t count = 1;
#ifdef GLM52_HAVE_neon
    usable[count++] = &glm52_quant_set_neon;
#endif
#ifdef GLM52_HAVE_dotprod
    if (has_dot_product()) usable[count++] = &glm52_quant_set_dotprod;
#endif
#ifdef GLM52_HAVE_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) usable[count++] = &glm52_quant_set_avx2;
#endif
#ifdef GLM52_HAVE_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("f16c")) {
        usable[count++] = &glm52_quant_set_avx512;
#ifdef GLM52_HAVE_avx512vnni
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi")
            && __builtin_cpu_supports("avx512bitalg")) usable[count++] = &glm52_quant_set_avx512vnni;
#endif
    }
#endif
    return index < count ? usable[index] : NULL;
}

/* Threads may choose at the same time: they choose the same. */
static const struct glm52_quant_set *set_in_use(void) {
    static _Atomic(const struct glm52_quant_set *) chosen;
    const struct glm52_quant_set *set = atomic_load_explicit(&chosen, memory_order_acquire);
    if (set) return set;
    for (uint32_t i = 0; glm52_quant_set_at(i); i++) set = glm52_quant_set_at(i);
    atomic_store_explicit(&chosen, set, memory_order_release);
    return set;
}

float glm52_dot_f32(const float *a, const float *b, size_t count) {
    return set_in_use()->dot_f32(a, b, count);
}

void glm52_dot_f32_tile(const float *const *a, size_t a_count, const float *const *b, size_t b_count, size_t count,
                        float *y, size_t y_stride) {
    set_in_use()->dot_f32_tile(a, a_count, b, b_count, count, y, y_stride);
}

void glm52_add_rows(float *out, size_t out_stride, const float *p, size_t p_stride, size_t out_count,
                    const float *const *rows, size_t count, size_t size) {
    set_in_use()->add_rows(out, out_stride, p, p_stride, out_count, rows, count, size);
}

void glm52_q8_encode(const float *x, size_t count, struct glm52_q8 row) {
    set_in_use()->q8_encode(x, count, row);
}

/* ---- the table ---- */

const struct glm52_quant *glm52_quant_find(uint32_t type) {
    const struct glm52_quant *const *format = set_in_use()->formats;
    while (*format && (*format)->type != type) format++;
    return *format;
}

const struct glm52_quant *glm52_quant_at(uint32_t index) {
    const struct glm52_quant *const *formats = set_in_use()->formats;
    for (uint32_t i = 0; i < index; i++) {
        if (!formats[i]) return NULL;
    }
    return formats[index];
}

const struct glm52_encoder *glm52_encoder_find(uint32_t type) {
    const struct glm52_encoder *const *encoder = set_in_use()->encoders;
    while (*encoder && (*encoder)->type != type) encoder++;
    return *encoder;
}

const struct glm52_encoder *glm52_encoder_at(uint32_t index) {
    const struct glm52_encoder *const *encoders = set_in_use()->encoders;
    for (uint32_t i = 0; i < index; i++) {
        if (!encoders[i]) return NULL;
    }
    return encoders[index];
}

const char *glm52_quant_names(void) {
    static const char names[] =
#define GLM52_FORMAT(name) ", " #name
#include "formats.def"
#undef GLM52_FORMAT
        ;
    return names + 2;
}

/* ---- rows of 8-bit activations: q, scale, sum, arranged, dealt, each from a cache line's start ---- */

static size_t whole_lines(size_t bytes) {
    return (bytes + 63) / 64 * 64;
}

size_t glm52_q8_bytes(size_t count) {
    return whole_lines(count) + whole_lines(count / 32 * sizeof(float)) + whole_lines(count / 16 * sizeof(int16_t))
           + 2 * ((count + SUPER - 1) / SUPER * SUPER);
}

struct glm52_q8 glm52_q8_at(void *memory, size_t count) {
    uint8_t *q = memory;
    uint8_t *scale = q + whole_lines(count);
    uint8_t *sum = scale + whole_lines(count / 32 * sizeof(float));
    uint8_t *arranged = sum + whole_lines(count / 16 * sizeof(int16_t));
    uint8_t *dealt = arranged + (count + SUPER - 1) / SUPER * SUPER;
    return (struct glm52_q8){(int8_t *)q, (float *)(void *)scale, (int16_t *)(void *)sum, (int8_t *)arranged, dealt};
}

/* ---- single numbers ---- */

uint16_t glm52_f32_to_f16(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
    uint32_t half;
    if (magnitude > 0x7F800000) {
        half = 0x7E00 | (magnitude >> 13 & 0x3FF);
    } else if (magnitude >= 0x477FF000) {
        half = 0x7C00; /* 65520 and above: nearest is past the largest half */
    } else if (magnitude >= 0x38800000) {
        const uint32_t even = magnitude >> 13 & 1;
        half = (magnitude - 0x38000000 + 0xFFF + even) >> 13;
    } else {
        /* Subnormal halves count 2^-24, which is the last place of 0.5: adding rounds to it. */
        half = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3F000000;
    }
    return (uint16_t)(sign | half);
}

float glm52_f16_to_f32(uint16_t bits) {
    return f16_to_f32(bits);
}

float glm52_bf16_to_f32(uint16_t bits) {
    return float_of_bits((uint32_t)bits << 16);
}
