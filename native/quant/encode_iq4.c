/* encode_iq4.c - writes IQ4_NL, IQ4_XS and MXFP4. Their bytes are drawn in iq4.c and mxfp4.c. */
#include "encode_scale.h"

static const struct codes iq4_codes = {
    .low = -127, .high = 113, .is_table = true, .start = 0.5f, .end = 1.4f, .steps = 36
};

/* Numbers of the table's values: 16 for each of count. */
static inline void number_values(const lanes *q, int n, uint8_t *codes) {
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        for (int i = 0; i < n; i++) {
            uint8_t number = 0;
            for (int k = 1; k < 16; k++) number = (uint8_t)(number + (q[i][lane] >= (float)glm52_pairs_iq4[k][0]));
            codes[lane * n + i] = number;
        }
    }
}

static inline void pack_halves(const uint8_t *code, uint8_t *out) {
    for (int i = 0; i < 16; i++) out[i] = (uint8_t)(code[i] | code[16 + i] << 4);
}

static void encode_iq4_nl(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    uint8_t *out = blocks;
    for (size_t first = 0; first < count / 32; first += LANE_COUNT) {
        struct lane_group group;
        uint16_t half[LANE_COUNT];
        lanes q[32];
        uint8_t code[LANE_COUNT * 32];
        load_lanes(x, importance, row_size, first, count / 32, 1, 32, &group);
        fit_blocks(&iq4_codes, &group, 32, half, q);
        number_values(q, 32, code);
        for (size_t b = 0; b < LANE_COUNT && first + b < count / 32; b++, out += 18) {
            store_u16(out, half[b]);
            pack_halves(code + 32 * b, out + 2);
        }
    }
}

static void encode_iq4_xs(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    static const struct factors factors = {.low = -32, .high = 31, .parts = 8};
    uint8_t *out = blocks;
    for (size_t first = 0; first < count / SUPER; first += 2) {
        struct lane_group group;
        struct super_fit fit;
        lanes q[32];
        uint8_t code[2 * SUPER];
        load_lanes(x, importance, row_size, first, count / SUPER, 8, 32, &group);
        fit_supers(&iq4_codes, &factors, &group, 32, &fit, q);
        number_values(q, 32, code);
        for (size_t s = 0; s < 2 && first + s < count / SUPER; s++, out += 136) {
            uint16_t high = 0;
            memset(out + 4, 0, 4);
            for (size_t b = 0; b < 8; b++) {
                const int factor = (int)fit.factor[8 * s + b] + 32;
                high = (uint16_t)(high | (factor >> 4) << 2 * b);
                out[4 + b / 2] = (uint8_t)(out[4 + b / 2] | (factor & 15) << 4 * (b % 2));
                pack_halves(code + SUPER * s + 32 * b, out + 8 + 16 * b);
            }
            store_u16(out, fit.half[s]);
            store_u16(out + 2, high);
        }
    }
}

/* ---- MXFP4: the factor is a power of two, and a code is a sign and one of 0, 1, 2, 3, 4, 6, 8, 12 halves ---- */

/* Number, and value in halves, of the magnitude nearest to y; of two equally near the smaller. */
ALWAYS_INLINE lanes nearest_magnitude(lanes y, lane_bits *number_out) {
    lanes value = all_lanes(0);
    lane_bits number = {0};
    for (int k = 1; k < 8; k++) {
        const float below = glm52_pairs_mxfp4[k - 1][0], above = glm52_pairs_mxfp4[k][0];
        const lane_bits is_past = y > all_lanes(0.5f * (below + above));
        value += (lanes)(is_past & (lane_bits)all_lanes(above - below));
        number -= is_past;
    }
    *number_out = number;
    return value;
}

/* Half of the power of two that a block's largest value is first tried with, in the block's units: it comes out as
 * 4 .. 8 halves of a code's 12, and the neighbours try 8 .. 16 and 2 .. 4. */
#define FIRST_HALF_POWER 0.25f

/* Powers are kept to what the byte can hold: half of it is 2^(e - 128), e in 0 .. 254. */
static inline int exponent_of(float half_power, float unit) {
    int power, unit_power;
    frexpf(half_power, &power);
    frexpf(unit, &unit_power);
    const int e = power - unit_power + 128;
    return e < 0 ? 0 : e > 254 ? 254 : e;
}

static inline void fit_mxfp4(const struct lane_group *group, int *exponent, uint8_t *codes) {
    lanes best_error = all_lanes(INFINITY), best = all_lanes(0);
    for (int step = -1; step <= 1; step++) {
        lanes half_power = all_lanes(0);
        int e[LANE_COUNT];
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            e[lane] = exponent_of(ldexpf(FIRST_HALF_POWER, -step), group->unit[lane]);
            half_power[lane] = ldexpf(group->unit[lane], e[lane] - 128);
        }
        lanes error = all_lanes(0);
        for (int i = 0; i < 32; i++) {
            lane_bits number;
            const lanes size = magnitude_of(group->x[i]);
            const lanes left = size - half_power * nearest_magnitude(size / half_power, &number);
            error += group->w[i] * left * left;
        }
        const lane_bits is_better = error < best_error;
        best_error = choose(is_better, error, best_error);
        best = choose(is_better, half_power, best);
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            if (is_better[lane]) exponent[lane] = e[lane];
        }
    }
    for (int i = 0; i < 32; i++) {
        lane_bits number;
        nearest_magnitude(magnitude_of(group->x[i]) / best, &number);
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            const int sign = number[lane] > 0 && group->x[i][lane] < 0 ? 8 : 0;
            codes[32 * lane + i] = (uint8_t)(number[lane] + sign);
        }
    }
}

static void encode_mxfp4(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) {
    uint8_t *out = blocks;
    for (size_t first = 0; first < count / 32; first += LANE_COUNT) {
        struct lane_group group;
        int exponent[LANE_COUNT] = {0};
        uint8_t code[LANE_COUNT * 32];
        load_lanes(x, importance, row_size, first, count / 32, 1, 32, &group);
        fit_mxfp4(&group, exponent, code);
        for (size_t b = 0; b < LANE_COUNT && first + b < count / 32; b++, out += 17) {
            out[0] = (uint8_t)exponent[b];
            pack_halves(code + 32 * b, out + 1);
        }
    }
}

GLM52_DEFINE_ENCODER(IQ4_NL, 20, 113 * HALF_MAX, encode_iq4_nl);
GLM52_DEFINE_ENCODER(IQ4_XS, 23, 113 * HALF_MAX, encode_iq4_xs);
/* From 1.75 * 2^127 on a code would be 2^128, which is no float. */
GLM52_DEFINE_ENCODER(MXFP4, 39, 0x1.8p127f, encode_mxfp4);
