/* floats.c - F32, F16 and BF16: one value per block. Multiplied as floats in both modes, so without dot_q8. */
#include "blocks.h"
#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#elif defined(FEW_BY_NEON)
#include <arm_neon.h>
#endif

static void decode_f32(const void *blocks, float *out, size_t count) {
    memcpy(out, blocks, count * sizeof(float));
}

static void decode_f16(const void *blocks, float *out, size_t count) {
    const uint8_t *in = blocks;
    size_t i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= count; i += 16) {
        const __m256i halves = _mm256_loadu_si256((const __m256i *)(const void *)(in + 2 * i));
        _mm512_storeu_ps(out + i, _mm512_cvtph_ps(halves));
    }
#elif defined(__F16C__)
    for (; i + 8 <= count; i += 8) {
        const __m128i halves = _mm_loadu_si128((const __m128i *)(const void *)(in + 2 * i));
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(halves));
    }
#elif defined(FEW_BY_NEON)
    for (; i + 4 <= count; i += 4) vst1q_f32(out + i, vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(in + 2 * i))));
#endif
    for (; i < count; i++) out[i] = load_f16(in + 2 * i);
}

static void decode_bf16(const void *blocks, float *out, size_t count) {
    const uint8_t *in = blocks;
    for (size_t i = 0; i < count; i++) out[i] = float_of_bits((uint32_t)load_u16(in + 2 * i) << 16);
}

GLM52_DEFINE_FORMAT(F32, 0, 1, 4, decode_f32, NULL, NULL, NULL, NULL, NULL);
GLM52_DEFINE_FORMAT(F16, 1, 1, 2, decode_f16, NULL, NULL, NULL, NULL, NULL);
GLM52_DEFINE_FORMAT(BF16, 30, 1, 2, decode_bf16, NULL, NULL, NULL, NULL, NULL);
