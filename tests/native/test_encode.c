/* test_encode.c - quantising: what is refused, what is exact, that bits depend on a block alone, and that the searches
 * find what slower ones find: a scan of scales for formats of codes, all entries and signs for formats of grids. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "encode.h"
#include "glm52_encode.h"
#include "quant_tables.h"

#define VALUES (8 * 256)
#define BYTES (VALUES * 4)

static uint64_t state;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* About normal with this deviation: a sum of 12 uniform numbers less its mean. */
static float draw_normal(float deviation) {
    float sum = -6;
    for (int i = 0; i < 12; i++) sum += (float)(draw() >> 8) * 0x1p-24f;
    return sum * deviation;
}

static void draw_values(float *x, size_t count) {
    for (size_t i = 0; i < count; i++) x[i] = draw_normal(i / 256 % 2 ? 0.02f : 3.0f);
}

static void draw_importance(float *w, size_t count) {
    for (size_t i = 0; i < count; i++) w[i] = expf(draw_normal(1.5f));
}

static size_t bytes_of(uint32_t type, size_t count) {
    const struct glm52_quant *format = glm52_quant_find(type);
    return count / format->block_size * format->block_bytes;
}

static double error_of(const float *x, const float *y, const float *w, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (w ? w[i] : 1) * ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
    return sum;
}

static double sum_of_products(const float *x, const float *y, const float *w, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)(w ? w[i] : 1) * x[i] * y[i];
    return sum;
}

/* y as it was before its scale grew to keep the length of x: the scale then was the best for its codes. */
static float shorten(const float *x, float *y, const float *w, size_t count) {
    const double factor = sum_of_products(x, y, w, count) / sum_of_products(y, y, w, count);
    for (size_t i = 0; i < count; i++) y[i] = (float)(y[i] * factor);
    return (float)factor;
}

static bool is_float(uint32_t type) {
    return glm52_quant_find(type)->block_size == 1;
}

/* ---- the list and its borders ---- */

void test_every_encoder_writes_a_format_that_is_read(void) {
    uint32_t last = 0, type = 0;
    for (uint32_t i = 0; i < glm52_encode_count(); i++) {
        CHECK_STATUS(GLM52_OK, glm52_encode_type(i, &type));
        CHECK(i == 0 || type > last);
        CHECK(glm52_quant_find(type) != NULL && glm52_encoder_find(type)->type == type);
        last = type;
    }
    CHECK(glm52_encode_count() == 19);
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_encode_type(19, &type));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_encode_type(0, NULL));
    CHECK(glm52_encoder_at(UINT32_MAX) == NULL && glm52_encoder_find(19) == NULL);
}

void test_encode_refuses_bad_arguments(void) {
    static float x[256], w[256];
    static uint8_t out[1024];
    CHECK_STATUS(GLM52_ERR_UNSUPPORTED, glm52_quant_encode(19, x, NULL, 1, 256, out));
    CHECK(strstr(glm52_error_message(), "IQ1_S") != NULL);
    CHECK_STATUS(GLM52_ERR_UNSUPPORTED, glm52_quant_encode(4, x, NULL, 1, 256, out));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, NULL, NULL, 1, 256, out));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, NULL, 1, 256, NULL));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, NULL, 0, 256, out));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, NULL, 1, 0, out));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, NULL, 1, 128, out));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, NULL, UINT64_MAX / 512, 256, out));
    const float bad[] = {-1, NAN, INFINITY, -FLT_MIN};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        w[200] = bad[i];
        CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_encode(12, x, w, 1, 256, out));
        CHECK(strstr(glm52_error_message(), "column 200") != NULL);
    }
    w[200] = 0;
    CHECK_STATUS(GLM52_OK, glm52_quant_encode(12, x, w, 1, 256, out));
}

void test_encode_refuses_values_that_no_block_holds(void) {
    static float x[512];
    static uint8_t out[BYTES], before[BYTES];
    memset(before, 0xA5, sizeof(before));
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const struct glm52_encoder *encoder = glm52_encoder_at(i);
        const float past = nextafterf(encoder->magnitude_max, INFINITY);
        const float bad[] = {NAN, INFINITY, -INFINITY, past, -past};
        for (size_t k = 0; k < sizeof(bad) / sizeof(bad[0]); k++) {
            memcpy(out, before, sizeof(out));
            x[256 + 7] = bad[k];
            const glm52_status wanted = is_float(encoder->type) ? GLM52_OK : GLM52_ERR_ARGUMENT;
            CHECK_STATUS(wanted, glm52_quant_encode(encoder->type, x, NULL, 2, 256, out));
            if (wanted == GLM52_OK) continue;
            CHECK(memcmp(out, before, sizeof(out)) == 0);
            CHECK(strstr(glm52_error_message(), "row 1, column 7") != NULL);
        }
        x[256 + 7] = is_float(encoder->type) ? 0 : encoder->magnitude_max;
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(encoder->type, x, NULL, 2, 256, out));
        x[256 + 7] = 0;
    }
}

/* ---- bits ---- */

void test_encode_gives_the_same_bits_in_every_instruction_set(void) {
    static float x[VALUES], w[VALUES];
    static uint8_t wanted[BYTES], found[BYTES];
    state = 11;
    draw_values(x, VALUES);
    draw_importance(w, VALUES);
    const struct glm52_quant_set *portable = glm52_quant_set_at(0);
    for (uint32_t s = 1; glm52_quant_set_at(s); s++) {
        for (uint32_t i = 0; portable->encoders[i]; i++) {
            for (int weighted = 0; weighted < 2; weighted++) {
                const uint32_t type = portable->encoders[i]->type;
                memset(wanted, 0, sizeof(wanted));
                memset(found, 0, sizeof(found));
                portable->encoders[i]->encode(x, weighted ? w : NULL, VALUES, VALUES, wanted);
                glm52_quant_set_at(s)->encoders[i]->encode(x, weighted ? w : NULL, VALUES, VALUES, found);
                const bool same = memcmp(wanted, found, sizeof(wanted)) == 0;
                if (!same) printf("%s, type %u, weighted %d\n", glm52_quant_set_at(s)->name, type, weighted);
                CHECK(same);
            }
        }
    }
}

void test_encode_gives_a_block_the_same_bits_wherever_it_stands(void) {
    static float x[VALUES], w[512];
    static uint8_t together[BYTES], alone[BYTES];
    state = 12;
    draw_values(x, VALUES);
    draw_importance(w, 512);
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const uint32_t type = glm52_encoder_at(i)->type;
        const size_t row_bytes = bytes_of(type, 512);
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, w, VALUES / 512, 512, together));
        for (size_t row = 0; row < VALUES / 512; row++) {
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x + 512 * row, w, 1, 512, alone + row * row_bytes));
        }
        CHECK(memcmp(together, alone, bytes_of(type, VALUES)) == 0);
        for (size_t b = 0; b < VALUES / 256; b++) {
            const float *own = w + b % 2 * 256;
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x + 256 * b, own, 1, 256, alone + b * row_bytes / 2));
        }
        CHECK(memcmp(together, alone, bytes_of(type, VALUES)) == 0);
    }
}

/* ---- edges ---- */

void test_encode_gives_zeros_for_zeros_and_for_values_below_every_scale(void) {
    static float x[512], y[512], w[512];
    static uint8_t out[BYTES];
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const uint32_t type = glm52_encoder_at(i)->type;
        for (int kind = 0; kind < 3; kind++) {
            for (int k = 0; k < 512; k++) x[k] = kind == 0 ? 0 : kind == 1 ? 1e-30f : 0x1p-149f * (k % 3 - 1.0f);
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, w, 1, 512, out));
            CHECK_STATUS(GLM52_OK, glm52_quant_decode(type, out, y, 512));
            for (int k = 0; k < 512; k++) CHECK(fabsf(y[k]) <= 2 * fabsf(x[k]));
        }
    }
}

/* From the smallest to the largest magnitudes nothing becomes infinite, and what is well inside keeps its error. */
void test_encode_survives_the_ends_of_the_range(void) {
    static float x[512], y[512];
    static uint8_t out[BYTES];
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const struct glm52_encoder *encoder = glm52_encoder_at(i);
        for (int power = -149; power < 128; power++) {
            state = (uint64_t)power + 1000;
            const float top = ldexpf(1, power);
            for (int k = 0; k < 512; k++) x[k] = (float)((int32_t)draw() >> 7) * 0x1p-24f * top;
            x[3] = top;
            if (is_float(encoder->type) || top > encoder->magnitude_max) continue;
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(encoder->type, x, NULL, 1, 512, out));
            CHECK_STATUS(GLM52_OK, glm52_quant_decode(encoder->type, out, y, 512));
            double left = error_of(x, y, NULL, 512), all = 0;
            for (int k = 0; k < 512; k++) all += (double)x[k] * x[k];
            CHECK(isfinite(left));
            if (power >= -2) CHECK(left < 0.2 * all); /* evenly spread values: 2 bits leave about a tenth */
        }
    }
}

/* Blocks that a format can hold come back as they were: encoding what it decodes to changes nothing. Of the formats
 * with searches over several scales this is asked of blocks that use their codes to the ends. */
void test_encode_keeps_what_its_blocks_can_hold(void) {
    static float x[VALUES], y[VALUES], z[VALUES];
    static uint8_t out[BYTES];
    const uint32_t exact[] = {0, 1, 8, 20, 30, 39};
    state = 13;
    draw_values(x, VALUES);
    for (size_t i = 0; i < sizeof(exact) / sizeof(exact[0]); i++) {
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(exact[i], x, NULL, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(exact[i], out, y, VALUES));
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(exact[i], y, NULL, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(exact[i], out, z, VALUES));
        CHECK(memcmp(y, z, sizeof(y)) == 0);
    }
    /* scale * code: every code of a block of 32 in turn, the scale a float16 */
    const struct { uint32_t type; int low, high; } whole[] = {{2, -8, 7}, {3, 0, 15}, {6, -16, 15}, {7, 0, 31},
                                                              {11, -4, 3}, {14, -32, 31}, {12, 0, 15}, {13, 0, 31},
                                                              {10, 0, 3}};
    for (size_t i = 0; i < sizeof(whole) / sizeof(whole[0]); i++) {
        const int codes = whole[i].high - whole[i].low + 1;
        for (int k = 0; k < VALUES; k++) {
            const int code = codes <= 32 ? whole[i].low + k % codes : whole[i].low + k * 33 % codes;
            x[k] = 0.0625f * (float)(k / 256 + 1) * (float)code;
        }
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(whole[i].type, x, NULL, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(whole[i].type, out, y, VALUES));
        const double left = sqrt(error_of(x, y, NULL, VALUES));
        double all = 0;
        for (int k = 0; k < VALUES; k++) all += (double)x[k] * x[k];
        /* a scale is off by half a place of float16, at most */
        if (!(left <= 0x1p-11 * sqrt(all))) printf("type %u: %g\n", whole[i].type, left / sqrt(all));
        CHECK(left <= 0x1p-11 * sqrt(all));
    }
}

/* Columns that matter come out closer than they do when all are alike; and it is the weighted error that shrinks. */
void test_encode_follows_importance(void) {
    static float x[VALUES], y[VALUES], z[VALUES], w[VALUES];
    static uint8_t out[BYTES];
    state = 14;
    draw_values(x, VALUES);
    draw_importance(w, VALUES);
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const uint32_t type = glm52_encoder_at(i)->type;
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, NULL, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(type, out, y, VALUES));
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, w, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(type, out, z, VALUES));
        const double plain = error_of(x, y, w, VALUES), weighted = error_of(x, z, w, VALUES);
        if (is_float(type) || type == 8) CHECK(weighted == plain);
        else CHECK(weighted < 0.97 * plain);
        /* any scale of importance is the same, and none at all is as if all were alike */
        static uint8_t other[BYTES];
        static float scaled[VALUES], none[VALUES];
        for (int k = 0; k < VALUES; k++) scaled[k] = 0x1p-40f * w[k];
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, scaled, 1, VALUES, other));
        CHECK(memcmp(out, other, bytes_of(type, VALUES)) == 0);
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, NULL, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, none, 1, VALUES, other));
        CHECK(memcmp(out, other, bytes_of(type, VALUES)) == 0);
    }
}

/* The codes' best scales leave a share g of a block's length along its values; scales are larger than these by a factor
 * that gives back three quarters of the rest, to the places of their float16s. Of types that search for scales. */
void test_encode_gives_back_what_codes_take_from_the_length(void) {
    static float x[VALUES], y[VALUES], w[VALUES];
    static uint8_t out[BYTES];
    state = 17;
    for (int i = 0; i < VALUES; i++) x[i] = draw_normal(3); /* scales are normal float16s: within 2^-11 each */
    draw_importance(w, VALUES);
    for (uint32_t i = 0; glm52_encoder_at(i); i++) {
        const uint32_t type = glm52_encoder_at(i)->type;
        const size_t block = glm52_quant_find(type)->block_size;
        double along = 0, all = 0, wanted = 0;
        if (is_float(type) || type == 8 || type == 39) continue;
        CHECK_STATUS(GLM52_OK, glm52_quant_encode(type, x, w, 1, VALUES, out));
        CHECK_STATUS(GLM52_OK, glm52_quant_decode(type, out, y, VALUES));
        for (size_t at = 0; at < VALUES; at += block) {
            const double xy = sum_of_products(x + at, y + at, w + at, block);
            const double xx = sum_of_products(x + at, x + at, w + at, block);
            const double g = xy / xx * xy / sum_of_products(y + at, y + at, w + at, block);
            along += xy;
            all += xx;
            wanted += xx * (1 - 0.25 * (1 - g));
        }
        CHECK(along < all);
        CHECK_NEAR(1, along / wanted, 0x1p-10);
    }
}

/* ---- as good as slow searches ---- */

static double scan_error(uint32_t type, const float *x, const float *w, float scale) {
    double sum = 0;
    for (int i = 0; i < 32; i++) {
        double best = INFINITY;
        if (type == 20) {
            for (int k = 0; k < 16; k++) {
                const double left = x[i] - (double)scale * glm52_pairs_iq4[k][0];
                best = fmin(best, left * left);
            }
        } else {
            const int low = type == 2 ? -8 : -16, high = -low - 1;
            const double code = fmin(fmax(nearbyint(x[i] / (double)scale), low), high);
            best = (x[i] - scale * code) * (x[i] - scale * code);
        }
        sum += w[i] * best;
    }
    return sum;
}

/* 4000 scales of either sign: the search leaves at most 0.5 % more in squares over all blocks. */
void test_encode_finds_scales_as_good_as_a_fine_scan(void) {
    const uint32_t types[] = {2, 6, 20};
    for (size_t t = 0; t < sizeof(types) / sizeof(types[0]); t++) {
        double found = 0, scanned = 0;
        state = 15;
        for (int block = 0; block < 40; block++) {
            float x[32], w[32], y[32], top = 0;
            uint8_t out[64];
            for (int i = 0; i < 32; i++) x[i] = draw_normal(0.02f);
            draw_importance(w, 32);
            for (int i = 0; i < 32; i++) top = fmaxf(top, fabsf(x[i]));
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(types[t], x, w, 1, 32, out));
            CHECK_STATUS(GLM52_OK, glm52_quant_decode(types[t], out, y, 32));
            double best = INFINITY;
            const float last = types[t] == 2 ? 8 : types[t] == 6 ? 16 : 127;
            for (int k = 1; k <= 4000; k++) {
                for (int sign = -1; sign <= 1; sign += 2) {
                    const float scale = (float)sign * top / last * (0.4f + 1.6f * (float)k / 4000);
                    best = fmin(best, scan_error(types[t], x, w, scale));
                }
            }
            shorten(x, y, w, 32);
            found += error_of(x, y, w, 32);
            scanned += best;
        }
        if (!(found <= 1.005 * scanned)) printf("type %u: %g\n", types[t], found / scanned);
        CHECK(found <= 1.005 * scanned);
    }
}

/* What the best of all codes leaves of 8 values at a scale: every entry, or pair of entries, with every even set of
 * signs. The cheapest wrong sign is found by trying all. */
static double best_of_all_codes(const int8_t *grid, int entries, int length, const float *x, const float *w,
                                double scale) {
    double half[2][2] = {{0, 0}, {0, 0}}; /* [half][a wrong sign in it] */
    for (int h = 0; h < 8 / length; h++) {
        half[h][0] = half[h][1] = INFINITY;
        for (int e = 0; e < entries; e++) {
            double right = 0, one_wrong = INFINITY;
            for (int i = 0; i < length; i++) {
                const double left = fabs((double)x[length * h + i]) - scale * grid[e * length + i];
                right += w[length * h + i] * left * left;
            }
            for (int i = 0; i < length; i++) {
                const double size = fabs((double)x[length * h + i]), g = scale * grid[e * length + i];
                const double left = w[length * h + i] * ((size + g) * (size + g) - (size - g) * (size - g));
                one_wrong = fmin(one_wrong, right + left);
            }
            half[h][0] = fmin(half[h][0], right);
            half[h][1] = fmin(half[h][1], one_wrong);
        }
    }
    int negative = 0;
    for (int i = 0; i < 8; i++) negative += x[i] < 0;
    if (negative % 2 == 0) return half[0][0] + half[1][0];
    return length == 8 ? half[0][1] : fmin(half[0][1] + half[1][0], half[0][0] + half[1][1]);
}

/* At the scales that the search chose, its codes leave at most 0.5 % more than the best of all codes. */
void test_encode_finds_the_codes_that_an_exhaustive_search_finds(void) {
    const struct { uint32_t type; const int8_t *grid; int entries, length; } books[] = {
        {16, &glm52_grid_iq2_xxs[0][0], 256, 8}, {17, &glm52_grid_iq2_xs[0][0], 512, 8},
        {18, &glm52_grid_iq3_xxs[0][0], 256, 4}};
    for (size_t t = 0; t < 3; t++) {
        double found = 0, exhaustive = 0;
        state = 16;
        for (int block = 0; block < 6; block++) {
            float x[256], w[256], y[256];
            uint8_t out[128];
            for (int i = 0; i < 256; i++) x[i] = draw_normal(0.02f);
            draw_importance(w, 256);
            CHECK_STATUS(GLM52_OK, glm52_quant_encode(books[t].type, x, w, 1, 256, out));
            CHECK_STATUS(GLM52_OK, glm52_quant_decode(books[t].type, out, y, 256));
            uint16_t half;
            memcpy(&half, out, sizeof(half));
            const double d = (double)glm52_f16_to_f32(half) * shorten(x, y, w, 256);
            for (int g = 0; g < 32; g++) {
                int factor = 0;
                if (books[t].type == 16) factor = out[2 + 8 * (g / 4) + 7] >> 4;
                if (books[t].type == 17) factor = out[66 + g / 4] >> (g / 2 % 2 * 4) & 15;
                if (books[t].type == 18) factor = out[66 + 4 * (g / 4) + 3] >> 4;
                const double scale = d * (2 * factor + 1) * (books[t].type == 18 ? 0.25 : 0.125);
                exhaustive += best_of_all_codes(books[t].grid, books[t].entries, books[t].length, x + 8 * g,
                                                w + 8 * g, scale);
            }
            found += error_of(x, y, w, 256);
        }
        if (!(found <= 1.005 * exhaustive)) printf("type %u: %g\n", books[t].type, found / exhaustive);
        CHECK(found <= 1.005 * exhaustive && found >= exhaustive * (1 - 1e-5));
    }
}
