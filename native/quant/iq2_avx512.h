/* iq2_avx512.h - IQ2_XXS by hand (super_avx512.h). The code book has three magnitudes, so an entry is 8 numbers of 2
 * bits and the book of 256 entries fits into 8 vectors: 32 codes are looked up with 4 permutations and no load at all.
 * Signs are applied to the activations, as masks. */
#ifndef GLM52_IQ2_AVX512_H
#define GLM52_IQ2_AVX512_H

#include "grids.h"
#include "super_avx512.h"

/* 32 codes to 32 entries of 16 bits. A permutation takes 6 bits of an index; the two above choose among four. */
static inline __m512i look_up_entries(__m256i codes) {
    const __m512i index = _mm512_cvtepu8_epi16(codes);
    const uint8_t *book = (const uint8_t *)glm52_ranks_iq2_xxs;
    __m512i part[4];
    for (int i = 0; i < 4; i++) {
        part[i] = _mm512_permutex2var_epi16(_mm512_load_si512(book + 128 * i), index,
                                            _mm512_load_si512(book + 128 * i + 64));
    }
    const __mmask32 sixth = _mm512_test_epi16_mask(index, _mm512_set1_epi16(64));
    const __mmask32 seventh = _mm512_test_epi16_mask(index, _mm512_set1_epi16(128));
    return _mm512_mask_blend_epi16(seventh, _mm512_mask_blend_epi16(sixth, part[0], part[1]),
                                   _mm512_mask_blend_epi16(sixth, part[2], part[3]));
}

/* Magnitudes of a super-block, and masks of its signs: sign[i] belongs to z[i]. factor: 2 s + 1 of 32 values. */
static inline void unpack_iq2_xxs_avx512(const uint8_t *block, struct codes *c, __mmask64 *sign, __m128i *factor) {
    /* eight times 32 bits of codes, 32 of signs */
    const __m512i words = _mm512_loadu_si512(block + 2);
    const __m512i entries = look_up_entries(_mm512_cvtepi64_epi32(words));
    const __m512i pairs_of_bits = _mm512_set1_epi64(0x0E0C0A0806040200);
    const __m512i book = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *)(const void *)glm52_magnitudes_iq2));
    const __m128i part[4] = {_mm512_castsi512_si128(entries), _mm512_extracti32x4_epi32(entries, 1),
                             _mm512_extracti32x4_epi32(entries, 2), _mm512_extracti32x4_epi32(entries, 3)};
    for (int i = 0; i < 4; i++) {
        const __m512i ranks = _mm512_multishift_epi64_epi8(pairs_of_bits, _mm512_cvtepu16_epi64(part[i]));
        c->z[i] = _mm512_shuffle_epi8(book, _mm512_and_si512(ranks, _mm512_set1_epi8(3)));
    }
    /* 7 bits of signs from bits 32, 39, 46 and 53 on; the eighth is their parity */
    const __m512i seven = _mm512_and_si512(
        _mm512_multishift_epi64_epi8(_mm512_set1_epi64(0x352E2720), words), _mm512_set1_epi8(127));
    const __m512i parity = _mm512_and_si512(_mm512_slli_epi16(_mm512_popcnt_epi8(seven), 7), _mm512_set1_epi8(-128));
    const __m256i signs = _mm512_cvtepi64_epi32(_mm512_or_si512(seven, parity));
    sign[0] = (__mmask64)_mm256_extract_epi64(signs, 0);
    sign[1] = (__mmask64)_mm256_extract_epi64(signs, 1);
    sign[2] = (__mmask64)_mm256_extract_epi64(signs, 2);
    sign[3] = (__mmask64)_mm256_extract_epi64(signs, 3);
    const __m512i s = _mm512_srli_epi64(words, 60);
    *factor = _mm512_cvtepi64_epi8(_mm512_add_epi64(_mm512_add_epi64(s, s), _mm512_set1_epi64(1)));
}

static inline float dot_iq2_xxs_avx512(const uint8_t *block, const struct glm52_q8 *row, size_t count) {
    __m256 lane = _mm256_setzero_ps();
    for (size_t at = 0; at < count; at += SUPER, block += 66) {
        struct codes c;
        __mmask64 sign[4];
        __m128i f;
        __m512i s[4];
        unpack_iq2_xxs_avx512(block, &c, sign, &f);
        for (int i = 0; i < 4; i++) {
            const __m512i q = _mm512_loadu_si512(row->q + at + 64 * (size_t)i);
            const __m512i signed_q = _mm512_mask_sub_epi8(q, sign[i], _mm512_setzero_si512(), q);
            s[i] = _mm512_dpbusd_epi32(_mm512_setzero_si512(), c.z[i], signed_q);
        }
        const __m256 n = _mm256_mul_ps(_mm256_cvtepi32_ps(sum_halves(sum_lanes_of_4(s))), floats_of_8(f));
        lane = _mm256_add_ps(lane, terms(_mm256_set1_ps(load_f16(block) * 0.125f), row->scale + at / 32, n));
    }
    return sum_of_lanes(lane);
}

static inline void narrow_iq2_xxs(const uint8_t *block, int blocks, struct unpacked *out) {
    (void)blocks;
    struct codes c;
    __mmask64 sign[4];
    __m128i f;
    unpack_iq2_xxs_avx512(block, &c, sign, &f);
    for (int i = 0; i < 4; i++) c.z[i] = _mm512_mask_sub_epi8(c.z[i], sign[i], _mm512_setzero_si512(), c.z[i]);
    store_codes(&c, out);
    _mm_storel_epi64((__m128i *)(void *)out->f, f);
    _mm256_storeu_ps(out->d, _mm256_set1_ps(load_f16(block) * 0.125f));
}

#endif
