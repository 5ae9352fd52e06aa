/* test_quant.c - block formats: conversions against their definitions in double, integer sums that floats hold
 * exactly, error bounds derived from the order of summation, and the same bits from every instruction set. That
 * decode is right is for tests/test_quant.py, which has the gguf package to compare with; here it is the reference. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "quant.h"

#define UNIT 0x1p-24           /* rounding of one float32 operation, relative */
#define BLOCKS_MAX 24
#define VALUES_MAX (BLOCKS_MAX * 256)
#define BYTES_MAX (BLOCKS_MAX * 256)

/* Where the floats of a block lie, to give them sizes, and the codes that a minimum is added to. */
static const struct layout {
    uint32_t type;
    int d, m;                  /* float16s; -1: none */
    int codes, codes_end;      /* of formats with a minimum */
} layouts[] = {
    {2, 0, -1, 0, 0},     {3, 0, 2, 4, 20},      {6, 0, -1, 0, 0},       {7, 0, 2, 4, 24},    {8, 0, -1, 0, 0},
    {10, 80, 82, 16, 80}, {11, 108, -1, 0, 0},   {12, 0, 2, 16, 144},    {13, 0, 2, 16, 176}, {14, 208, -1, 0, 0},
    {16, 0, -1, 0, 0},    {17, 0, -1, 0, 0},     {18, 0, -1, 0, 0},      {19, 0, -1, 0, 0},   {20, 0, -1, 0, 0},
    {21, 0, -1, 0, 0},    {22, 0, -1, 0, 0},     {23, 0, -1, 0, 0},      {29, -1, -1, 0, 0},  {39, -1, -1, 0, 0},
};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))
#define IQ1_M 29
#define MXFP4 39

static uint64_t state;

static uint32_t draw(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* -1 to 1 */
static float draw_float(void) {
    return (float)((int32_t)draw() >> 7) * 0x1p-24f;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof(value));
    return value;
}

static bool same(float a, float b) {
    return memcmp(&a, &b, sizeof(a)) == 0 || (isnan(a) && isnan(b));
}

static size_t count_different(const float *a, const float *b, size_t count) {
    size_t different = 0;
    for (size_t i = 0; i < count; i++) different += !same(a[i], b[i]);
    return different;
}

static void put_half(uint8_t *p, uint16_t half) {
    memcpy(p, &half, sizeof(half));
}

/* Random codes and factors; d is made of half. */
static void draw_blocks(const struct glm52_quant *format, const struct layout *layout, size_t blocks, bool unit,
                        uint8_t *out) {
    for (size_t i = 0; i < blocks * format->block_bytes; i++) out[i] = (uint8_t)(draw() >> 24);
    for (size_t b = 0; b < blocks; b++, out += format->block_bytes) {
        const uint16_t d = unit ? 0x3C00 : (uint16_t)((draw() & 0x83FF) | (draw() % 16 + 4) << 10);
        const uint16_t m = unit ? 0x3C00 : (uint16_t)((draw() & 0x83FF) | (draw() % 16 + 4) << 10);
        if (layout->d >= 0) put_half(out + layout->d, d);
        if (layout->m >= 0) put_half(out + layout->m, m);
        for (int i = 0; i < 4 && layout->type == IQ1_M; i++) {
            out[49 + 2 * i] = (uint8_t)((out[49 + 2 * i] & 15) | (d >> 4 * i & 15) << 4);
        }
        if (layout->type == MXFP4) out[0] = (uint8_t)(unit ? 128 : 118 + draw() % 20);
    }
}

/* Memory of a row and the row in it. */
struct activations {
    _Alignas(64) uint8_t memory[VALUES_MAX * 4];
    struct glm52_q8 row;
};

static void draw_activations(struct activations *a, size_t count, int q_max, bool unit) {
    a->row = glm52_q8_at(a->memory, count);
    memset(a->row.sum, 0, count / 16 * sizeof(*a->row.sum));
    for (size_t i = 0; i < count; i++) {
        a->row.q[i] = (int8_t)((int)(draw() % (2 * (uint32_t)q_max + 1)) - q_max);
        a->row.sum[i / 16] = (int16_t)(a->row.sum[i / 16] + a->row.q[i]);
    }
    for (size_t b = 0; b < count / 32; b++) a->row.scale[b] = unit ? 1 : 0.001f + fabsf(draw_float());
}

static double sum_of_products(const float *values, const struct glm52_q8 *row, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)values[i] * row->scale[i / 32] * row->q[i];
    return sum;
}

/* ---- the table ---- */

void test_every_format_is_found_by_its_number(void) {
    uint32_t count = 0, last = 0;
    for (const struct glm52_quant *format; (format = glm52_quant_at(count)); count++) {
        CHECK(glm52_quant_find(format->type) == format);
        CHECK(count == 0 || format->type > last);
        CHECK(strstr(glm52_quant_names(), format->name) != NULL);
        CHECK((format->dot_q8 == NULL) == (format->block_size == 1));
        CHECK((format->pack == NULL) == (format->multiply == NULL) && (format->dot_q8 || !format->pack));
        CHECK((format->dot_q8 || !format->dot_few) && (format->dot_few || format->pack || !format->arrange));
        CHECK(format->decode != NULL);
        last = format->type;
    }
    CHECK(count == 23 && glm52_quant_count() == count);
    CHECK(glm52_quant_at(count + 1) == NULL && glm52_quant_at(UINT32_MAX) == NULL);

    const uint32_t unread[] = {4, 5, 9, 15, 24, 25, 26, 27, 28, 34, 35, 40, UINT32_MAX};
    for (size_t i = 0; i < sizeof(unread) / sizeof(unread[0]); i++) CHECK(glm52_quant_find(unread[i]) == NULL);
}

void test_quant_calls_refuse_bad_arguments(void) {
    uint8_t blocks[36] = {0};
    float out[64];
    glm52_quant_info info;
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_describe(0, NULL));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_describe(glm52_quant_count(), &info));
    CHECK(strstr(glm52_error_message(), "23") != NULL);
    CHECK_STATUS(GLM52_ERR_UNSUPPORTED, glm52_quant_decode(9, blocks, out, 32));
    CHECK(strstr(glm52_error_message(), "type 9") && strstr(glm52_error_message(), "IQ2_XXS"));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_decode(2, NULL, out, 32));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_decode(2, blocks, NULL, 32));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_decode(2, blocks, out, 0));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_decode(2, blocks, out, 33));
    CHECK(strstr(glm52_error_message(), "33") && strstr(glm52_error_message(), "Q4_0"));
    CHECK_STATUS(GLM52_ERR_ARGUMENT, glm52_quant_decode(2, blocks, out, UINT64_MAX - 31));

    CHECK_STATUS(GLM52_OK, glm52_quant_describe(0, &info));
    CHECK(strcmp(info.name, "F32") == 0 && info.type == 0 && info.block_size == 1 && info.block_bytes == 4);
    CHECK_STATUS(GLM52_OK, glm52_quant_decode(2, blocks, out, 64));
    CHECK(out[0] == 0 && out[63] == 0);
}

/* ---- conversions ---- */

/* The definition: (-1)^sign * 2^(exponent - bias) * 1.fraction. */
static double decode_float(uint32_t bits, int fraction_bits, int exponent_bits) {
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const uint32_t fraction = bits & ((1u << fraction_bits) - 1);
    const double sign = bits >> (fraction_bits + exponent_bits) ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((double)fraction + (double)(1u << fraction_bits), exponent - bias - fraction_bits);
}

void test_every_half_converts_exactly_and_back(void) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        const uint16_t half = (uint16_t)bits;
        const float value = glm52_f16_to_f32(half);
        const bool is_nan = (bits & 0x7C00) == 0x7C00 && (bits & 0x3FF);
        if (is_nan) {
            CHECK(isnan(value) && isnan(glm52_f16_to_f32(glm52_f32_to_f16(value))));
        } else {
            CHECK(same(value, (float)decode_float(bits, 10, 5)) && glm52_f32_to_f16(value) == half);
        }
        if (check_failed) break;
    }
}

void test_floats_round_to_the_nearest_half_ties_to_even(void) {
    for (uint32_t bits = 0; bits < 0x7C00 && !check_failed; bits++) {
        const uint16_t even = (uint16_t)(bits + (bits & 1));
        const double above = bits == 0x7BFF ? 65536 : decode_float(bits + 1, 10, 5);
        const float middle = (float)((decode_float(bits, 10, 5) + above) / 2);
        CHECK(glm52_f32_to_f16(middle) == even);
        CHECK(glm52_f32_to_f16(nextafterf(middle, 0)) == bits);
        CHECK(glm52_f32_to_f16(nextafterf(middle, INFINITY)) == bits + 1);
        CHECK(glm52_f32_to_f16(-middle) == (even | 0x8000));
    }
    CHECK(glm52_f32_to_f16(INFINITY) == 0x7C00 && glm52_f32_to_f16(-INFINITY) == 0xFC00);
    CHECK(glm52_f32_to_f16(0x1p-149f) == 0 && glm52_f32_to_f16(-0x1p-149f) == 0x8000);

    /* A NaN whose upper bits are all zero must not become an infinity. */
    const uint32_t nans[] = {0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF};
    for (int i = 0; i < 4; i++) CHECK(isnan(glm52_f16_to_f32(glm52_f32_to_f16(float_of(nans[i])))));
}

void test_every_bfloat16_converts_exactly(void) {
    for (uint32_t bits = 0; bits < 65536; bits++) {
        CHECK(same(glm52_bf16_to_f32((uint16_t)bits), (float)decode_float(bits, 7, 8)));
        if (check_failed) break;
    }
}

/* ---- dot_f32 ---- */

/* quant.h's sentence once more, one number at a time. */
static float dot_in_order(const float *a, const float *b, size_t count) {
    float s[16] = {0};
    for (size_t j = 0; j < 16; j++) {
        for (size_t i = j; i < count; i += 16) {
            const float product = a[i] * b[i];
            s[j] = s[j] + product;
        }
    }
    for (int width = 8; width; width /= 2) {
        for (int j = 0; j < width; j++) s[j] = s[j] + s[j + width];
    }
    return s[0];
}

void test_dot_f32_keeps_its_order_and_its_error_bound(void) {
    static float a[6200], b[6200];
    state = 1;
    for (size_t round = 0; round < 300; round++) {
        const size_t count = round < 100 ? round : 1 + draw() % 6144, shift = draw() % 16;
        double exact = 0, magnitude = 0;
        for (size_t i = shift; i < shift + count; i++) {
            a[i] = ldexpf(draw_float(), (int)(draw() % 8));
            b[i] = draw_float();
            exact += (double)a[i] * b[i];
            magnitude += fabs((double)a[i] * b[i]);
        }
        const float wanted = dot_in_order(a + shift, b + shift, count);
        for (uint32_t s = 0; glm52_quant_set_at(s); s++) {
            CHECK(same(glm52_quant_set_at(s)->dot_f32(a + shift, b + shift, count), wanted));
        }
        CHECK(same(glm52_dot_f32(a + shift, b + shift, count), wanted));
        /* a product's rounding, count / 16 additions in a partial sum, 4 of the pairwise end */
        const double roundings = 1 + ceil((double)count / 16) + 4;
        CHECK_NEAR(exact, wanted, 1.001 * roundings * UNIT * magnitude);
        if (check_failed) break;
    }
}

/* ---- 8-bit rows ---- */

void test_q8_rows_lie_apart_and_aligned(void) {
    for (size_t count = 32; count <= 6144; count += 32) {
        _Alignas(64) static uint8_t memory[24576];
        const struct glm52_q8 row = glm52_q8_at(memory, count);
        const uint8_t *scale = (uint8_t *)row.scale, *sum = (uint8_t *)row.sum;
        CHECK((uint8_t *)row.q == memory);
        CHECK((scale - memory) % 64 == 0 && scale >= memory + count);
        CHECK((sum - memory) % 64 == 0 && sum >= scale + count / 32 * sizeof(float));
        const uint8_t *arranged = (uint8_t *)row.arranged;
        CHECK((arranged - memory) % 64 == 0 && arranged >= sum + count / 16 * sizeof(int16_t));
        CHECK((row.dealt - memory) % 64 == 0 && row.dealt >= arranged + (count + 255) / 256 * 256);
        CHECK(memory + glm52_q8_bytes(count) >= row.dealt + (count + 255) / 256 * 256);
        CHECK(glm52_q8_bytes(count) % 64 == 0 && glm52_q8_bytes(count) <= sizeof(memory));
    }
}

/* The formula in double. A quotient of two floats in double, rounded to float, is the quotient in float: double
 * has more than twice the bits. */
static void check_encoded(const float *x, size_t count, const struct glm52_q8 *row) {
    for (size_t b = 0; b < count / 32; b++) {
        double top = 0;
        bool finite = true;
        for (size_t i = 32 * b; i < 32 * b + 32; i++) {
            finite = finite && isfinite(x[i]);
            top = fmax(top, fabs((double)x[i]));
        }
        const float scale = (float)(top / 127);
        const bool is_zero = !finite || scale < 0x1p-126f;
        CHECK(finite ? row->scale[b] == (is_zero ? 0 : scale) : isnan(row->scale[b]));
        int sums[2] = {0, 0};
        for (size_t i = 32 * b; i < 32 * b + 32; i++) {
            const double q = is_zero ? 0 : rint((float)((double)x[i] / scale));
            CHECK(row->q[i] == (int)q && abs(row->q[i]) <= 127);
            if (!is_zero) CHECK_NEAR(x[i], (double)scale * row->q[i], scale * (0.5 + 128 * UNIT));
            sums[i / 16 % 2] += row->q[i];
        }
        CHECK(row->sum[2 * b] == sums[0] && row->sum[2 * b + 1] == sums[1]);
    }
}

static void encode_and_check(const float *x, size_t count) {
    static struct activations a;
    for (uint32_t s = 0; glm52_quant_set_at(s); s++) {
        memset(a.memory, 0xAA, sizeof(a.memory));
        a.row = glm52_q8_at(a.memory, count);
        glm52_quant_set_at(s)->q8_encode(x, count, a.row);
        check_encoded(x, count, &a.row);
    }
}

void test_q8_encode_is_its_formula(void) {
    static float x[6144];
    state = 2;
    for (int round = 0; round < 12; round++) {
        const int spread = round * 10;
        for (size_t i = 0; i < 6144; i++) x[i] = ldexpf(draw_float(), (int)(draw() % 5) - spread);
        /* half of the blocks: multiples of scale / 2, where any other way to divide rounds to the other side */
        for (size_t b = 0; b < 192; b += 2) {
            const float scale = ldexpf(1 + fabsf(draw_float()), -spread);
            for (size_t i = 0; i < 32; i++) x[32 * b + i] = ((float)(draw() % 253) / 2 - 63) * scale;
            x[32 * b + draw() % 32] = 127 * scale;
        }
        encode_and_check(x, 6144);
        if (check_failed) break;
    }
}

void test_q8_encode_at_its_edges(void) {
    enum { EDGES = 10 };
    static float x[32 * EDGES];
    for (size_t i = 0; i < 32 * EDGES; i++) x[i] = (float)(i % 32) - 15.5f;
    float *block = x;
    memset(block, 0, 32 * sizeof(float)), block[3] = -0.0f, block += 32;
    block[0] = 127, block += 32;                                   /* scale 1: every other value is a tie */
    for (int i = 0; i < 32; i++) block[i] *= 0x1p-140f;            /* subnormal: a scale would be too coarse */
    block += 32;
    for (int i = 0; i < 32; i++) block[i] *= 0x1p-126f;            /* the smallest scale that is kept */
    block[9] = -127 * 0x1p-126f, block += 32;
    for (int i = 0; i < 32; i++) block[i] *= 0x1p-126f;            /* and one below */
    block[9] = nextafterf(126.9999f * 0x1p-126f, 0), block += 32;
    block[31] = float_of(0x7F7FFFFF), block += 32;                 /* the largest float */
    block[17] = INFINITY, block += 32;
    block[0] = -INFINITY, block += 32;
    block[31] = float_of(0xFFC00001), block += 32;                 /* a NaN, alone among finite blocks */
    CHECK(block == x + 32 * (EDGES - 1));
    encode_and_check(x, 32 * EDGES);
}

/* ---- dot_q8 ---- */

static const struct glm52_quant *in_set(const struct glm52_quant_set *set, uint32_t type) {
    const struct glm52_quant *const *format = set->formats;
    while ((*format)->type != type) format++;
    return *format;
}

static void say(const struct glm52_quant_set *set, const struct glm52_quant *format, size_t count) {
    printf("  set %s, format %s, %zu values:\n", set->name, format->name, count);
}

struct work {
    uint8_t blocks[BYTES_MAX];
    float values[VALUES_MAX], minimums[VALUES_MAX];
    struct activations a;
};
static struct work w;

/* With scales of 1 and small activations every sum of one super-block is below 2^24: dot_q8 must be the integer. */
void test_dot_q8_is_exact_where_floats_are(void) {
    state = 3;
    for (size_t l = 0; l < LAYOUTS; l++) {
        for (int round = 0; round < 40; round++) {
            const struct glm52_quant *format = glm52_quant_find(layouts[l].type);
            draw_blocks(format, &layouts[l], 256 / format->block_size, true, w.blocks);
            draw_activations(&w.a, 256, 15, true);
            format->decode(w.blocks, w.values, 256);
            const double exact = sum_of_products(w.values, &w.a.row, 256);
            for (uint32_t s = 0; glm52_quant_set_at(s); s++) {
                const float dot = in_set(glm52_quant_set_at(s), format->type)->dot_q8(w.blocks, &w.a.row, 256);
                if (dot != exact) say(glm52_quant_set_at(s), format, 256);
                CHECK_NEAR(exact, dot, 0);
            }
            if (check_failed) return;
        }
    }
}

/* One block of 32 with q = +-127, signs as the values', so that all products add up; the codes and factors all
 * ones, all zeros, or the ones of the low nibbles. Any integer that left its type would show. */
void test_dot_q8_is_exact_at_the_largest_integers(void) {
    const uint8_t patterns[] = {0xFF, 0x00, 0x0F, 0xF0, 0x80, 0x7F};
    double largest = 0;
    for (size_t l = 0; l < LAYOUTS; l++) {
        const struct glm52_quant *format = glm52_quant_find(layouts[l].type);
        for (size_t c = 0; c < 8 * sizeof(patterns); c++) {
            draw_blocks(format, &layouts[l], 256 / format->block_size, true, w.blocks);
            for (size_t i = 0; i < 256 / format->block_size * format->block_bytes; i++) {
                const int at = (int)(i % format->block_bytes);
                const bool is_float = (at | 1) == (layouts[l].d | 1) || (at | 1) == (layouts[l].m | 1);
                const bool is_power = (layouts[l].type == MXFP4 && at == 0) || (layouts[l].type == IQ1_M && at > 47);
                if (!is_float && !is_power) w.blocks[i] = patterns[c / 8];
            }
            draw_activations(&w.a, 256, 0, true);
            format->decode(w.blocks, w.values, 256);
            for (size_t i = c % 8 * 32; i < c % 8 * 32 + 32; i++) {
                w.a.row.q[i] = w.values[i] < 0 ? -127 : 127;
                w.a.row.sum[i / 16] = (int16_t)(w.a.row.sum[i / 16] + w.a.row.q[i]);
            }
            const double exact = sum_of_products(w.values, &w.a.row, 256);
            largest = fmax(largest, exact);
            for (uint32_t s = 0; glm52_quant_set_at(s); s++) {
                const float dot = in_set(glm52_quant_set_at(s), format->type)->dot_q8(w.blocks, &w.a.row, 256);
                if (dot != exact) say(glm52_quant_set_at(s), format, 256);
                CHECK_NEAR(exact, dot, 0);
            }
            if (check_failed) return;
        }
    }
    CHECK(largest == 128.0 * 32 * 127 * 32); /* Q6_K with codes -32 and factors -128 */
}

/* w.minimums [count] = what is added to the products: the values with all codes zero. */
static void decode_minimums(const struct glm52_quant *format, const struct layout *layout, size_t count) {
    static uint8_t zeroed[BYTES_MAX];
    memset(w.minimums, 0, count * sizeof(float));
    if (layout->m < 0) return;
    memcpy(zeroed, w.blocks, count / format->block_size * format->block_bytes);
    for (size_t b = 0; b < count / format->block_size; b++) {
        memset(zeroed + b * format->block_bytes + layout->codes, 0, (size_t)(layout->codes_end - layout->codes));
    }
    format->decode(zeroed, w.minimums, count);
}

/* Bound on |dot_q8 - sum of decoded values * scale * q|. A value is v = t - u, t = d code and u a minimum; what
 * rounds: in decode t and v; in the dot d * scale, the product with n, the sum of the two terms; the additions of
 * ceil(blocks / 8) terms to a lane and 3 of the pairwise end. All relative to sums of |scale q| (|t| + |u|), and
 * |t| <= |v| + |u|. */
static double error_bound(const struct glm52_quant *format, const struct layout *layout, size_t count) {
    decode_minimums(format, layout, count);
    double magnitude = 0;
    for (size_t i = 0; i < count; i++) {
        magnitude += fabs((double)w.a.row.scale[i / 32] * w.a.row.q[i])
                     * (fabs((double)w.values[i]) + 2 * fabs((double)w.minimums[i]));
    }
    const double roundings = 2 + 3 + ceil((double)count / 256) + 3;
    return 1.001 * roundings * UNIT * magnitude;
}

void test_dot_q8_keeps_its_error_bound(void) {
    state = 4;
    for (size_t l = 0; l < LAYOUTS; l++) {
        const struct glm52_quant *format = glm52_quant_find(layouts[l].type);
        for (size_t blocks = 1; blocks <= BLOCKS_MAX; blocks++) {
            const size_t count = blocks * format->block_size;
            draw_blocks(format, &layouts[l], blocks, false, w.blocks);
            draw_activations(&w.a, count, 127, false);
            format->decode(w.blocks, w.values, count);
            const double exact = sum_of_products(w.values, &w.a.row, count);
            const float dot = format->dot_q8(w.blocks, &w.a.row, count);
            const double bound = error_bound(format, &layouts[l], count);
            if (!(fabs(exact - dot) <= bound)) say(glm52_quant_set_at(0), format, count);
            CHECK_NEAR(exact, dot, bound);
            if (check_failed) return;
        }
    }
}

/* Reads a block's floats and makes them 1: values are then the integers that the floats multiply. */
static void take_floats(const struct layout *layout, uint8_t *block, float *d_out, float *m_out) {
    uint16_t d = 0, m = 0;
    if (layout->d >= 0) memcpy(&d, block + layout->d, sizeof(d)), put_half(block + layout->d, 0x3C00);
    if (layout->m >= 0) memcpy(&m, block + layout->m, sizeof(m)), put_half(block + layout->m, 0x3C00);
    for (int i = 0; i < 4 && layout->type == IQ1_M; i++) {
        d = (uint16_t)(d | block[49 + 2 * i] >> 4 << 4 * i);
        block[49 + 2 * i] = (uint8_t)((block[49 + 2 * i] & 15) | (0x3C00 >> 4 * i & 15) << 4);
    }
    *d_out = glm52_f16_to_f32(d);
    *m_out = glm52_f16_to_f32(m);
    if (layout->type == MXFP4) *d_out = ldexpf(1, block[0] - 128), block[0] = 128;
}

/* blocks.h's sentence once more, from values with floats of 1 and minimums alone. */
static float dot_q8_in_order(const float *values, const float *minimums, const float *d, const float *m,
                             const struct glm52_q8 *row, size_t block_size, size_t count) {
    float lane[8] = {0};
    for (size_t b = 0; b < count / 32; b++) {
        double n = 0, k = 0;
        for (size_t i = 32 * b; i < 32 * b + 32; i++) {
            n += (double)(values[i] - minimums[i]) * row->q[i];
            k += (double)minimums[i] * row->q[i];
        }
        const float d_scale = d[32 * b / block_size] * row->scale[b];
        const float m_scale = m[32 * b / block_size] * row->scale[b];
        const float first = d_scale * (float)n, second = m_scale * (float)k;
        const float term = first + second;
        lane[b % 8] = lane[b % 8] + term;
    }
    for (int width = 4; width; width /= 2) {
        for (int j = 0; j < width; j++) lane[j] = lane[j] + lane[j + width];
    }
    return lane[0];
}

/* The order is part of the contract, not only the size of the error. */
void test_dot_q8_keeps_its_order(void) {
    state = 5;
    for (size_t l = 0; l < LAYOUTS; l++) {
        const struct glm52_quant *format = glm52_quant_find(layouts[l].type);
        for (size_t blocks = 1; blocks <= BLOCKS_MAX; blocks++) {
            const size_t count = blocks * format->block_size;
            float d[BLOCKS_MAX], m[BLOCKS_MAX];
            draw_blocks(format, &layouts[l], blocks, false, w.blocks);
            draw_activations(&w.a, count, 127, false);
            const float dot = format->dot_q8(w.blocks, &w.a.row, count);
            for (size_t b = 0; b < blocks; b++) {
                take_floats(&layouts[l], w.blocks + b * format->block_bytes, &d[b], &m[b]);
            }
            format->decode(w.blocks, w.values, count);
            decode_minimums(format, &layouts[l], count);
            const float wanted = dot_q8_in_order(w.values, w.minimums, d, m, &w.a.row, format->block_size, count);
            if (!same(dot, wanted)) say(glm52_quant_set_at(0), format, count);
            CHECK_NEAR(wanted, dot, 0);
            if (check_failed) return;
        }
    }
}

void test_not_a_number_spreads_through_dot_q8(void) {
    static float x[VALUES_MAX];
    state = 6;
    for (size_t l = 0; l < LAYOUTS; l++) {
        const struct glm52_quant *format = glm52_quant_find(layouts[l].type);
        const size_t blocks = 3, count = blocks * format->block_size;
        draw_blocks(format, &layouts[l], blocks, false, w.blocks);
        for (size_t i = 0; i < count; i++) x[i] = draw_float();
        w.a.row = glm52_q8_at(w.a.memory, count);
        glm52_q8_encode(x, count, w.a.row);
        CHECK(isfinite(format->dot_q8(w.blocks, &w.a.row, count)));
        x[draw() % count] = l % 2 ? INFINITY : NAN;
        glm52_q8_encode(x, count, w.a.row);
        CHECK(isnan(format->dot_q8(w.blocks, &w.a.row, count)));
    }
}

/* ---- instruction sets ---- */

static void compare_formats(const struct glm52_quant_set *set, size_t blocks) {
    static float other[VALUES_MAX];
    const struct glm52_quant_set *portable = glm52_quant_set_at(0);
    for (size_t f = 0; portable->formats[f]; f++) {
        const struct glm52_quant *a = portable->formats[f], *b = set->formats[f];
        const size_t count = blocks * (a->block_size == 1 ? 32 : a->block_size);
        CHECK(strcmp(a->name, b->name) == 0 && a->type == b->type && a->block_bytes == b->block_bytes);
        for (size_t i = 0; i < count / a->block_size * a->block_bytes; i++) w.blocks[i] = (uint8_t)(draw() >> 24);
        a->decode(w.blocks, w.values, count);
        b->decode(w.blocks, other, count);
        bool agree = count_different(w.values, other, count) == 0;
        if (a->dot_q8) {
            draw_activations(&w.a, count, 127, false);
            w.a.row.scale[draw() % (count / 32)] = float_of(draw());
            agree = agree && same(a->dot_q8(w.blocks, &w.a.row, count), b->dot_q8(w.blocks, &w.a.row, count));
        }
        if (!agree) say(set, b, count);
        CHECK(agree);
    }
}

/* Rows of activations as glm52_q8_encode makes them, some with scales that are no numbers. */
static void draw_rows(const struct glm52_quant_set *set, const struct glm52_quant *format, size_t count,
                      struct activations *rows, struct glm52_q8 *q8) {
    static float x[VALUES_MAX];
    for (size_t r = 0; r < GLM52_PANEL_ROWS; r++) {
        for (size_t i = 0; i < count; i++) x[i] = r == 3 ? (draw() % 2 ? 1 : -1) : draw_float();
        memset(rows[r].memory, 0xAA, sizeof(rows[r].memory));
        q8[r] = rows[r].row = glm52_q8_at(rows[r].memory, count);
        set->q8_encode(x, count, q8[r]);
        if (format->arrange) format->arrange(count, q8[r]);
        q8[r].scale[draw() % (count / 32)] = r == 2 ? float_of(draw()) : 0.5f;
    }
}

/* Panels of 1 .. 4 rows of weights, 1 .. 4 rows of activations, every length: whole groups of 256 and parts. */
static void compare_panels(const struct glm52_quant_set *set, size_t blocks, bool extreme) {
    static struct activations rows[GLM52_PANEL_ROWS];
    static uint8_t weights[GLM52_PANEL_ROWS * BYTES_MAX];
    static _Alignas(64) uint8_t panel[BLOCKS_MAX * GLM52_PANEL_GROUP_BYTES];
    struct glm52_q8 q8[GLM52_PANEL_ROWS];
    const struct glm52_quant_set *portable = glm52_quant_set_at(0);
    for (size_t f = 0; portable->formats[f]; f++) {
        const struct glm52_quant *a = portable->formats[f], *b = set->formats[f];
        if (b->pack == NULL) continue;
        const size_t count = blocks * a->block_size, row_bytes = blocks * a->block_bytes;
        const size_t weight_rows = 1 + draw() % GLM52_PANEL_ROWS, row_count = 1 + draw() % GLM52_PANEL_ROWS;
        const uint8_t fill = (uint8_t)(draw() % 2 ? 0x80 : 0xFF);
        for (size_t i = 0; i < weight_rows * row_bytes; i++) weights[i] = extreme ? fill : (uint8_t)(draw() >> 24);
        draw_rows(set, b, count, rows, q8);
        memset(panel, 0xFF, sizeof(panel));
        float y[GLM52_PANEL_ROWS * GLM52_PANEL_ROWS];
        b->pack(weights, row_bytes, weight_rows, count, panel);
        b->multiply(panel, q8, row_count, count, y);
        for (size_t k = 0; k < row_count * GLM52_PANEL_ROWS; k++) {
            const size_t i = k % GLM52_PANEL_ROWS, r = k / GLM52_PANEL_ROWS;
            if (i >= weight_rows) continue;
            const bool agree = same(y[k], a->dot_q8(weights + i * row_bytes, &q8[r], count));
            if (!agree) say(set, b, count);
            CHECK(agree);
        }
    }
}

/* 1 .. 9 rows of weights as they lie, with bytes between them, 1 .. 4 rows of activations, every length. Nothing is
 * written but what was asked for. The weights end where their memory does: AddressSanitizer sees what reads on. */
static void compare_few(const struct glm52_quant_set *set, size_t blocks, bool extreme) {
    enum { WEIGHTS = 9, STRIDE = 11 };
    static struct activations rows[GLM52_FEW_ROWS];
    struct glm52_q8 q8[GLM52_FEW_ROWS];
    const struct glm52_quant_set *portable = glm52_quant_set_at(0);
    for (size_t f = 0; portable->formats[f]; f++) {
        const struct glm52_quant *a = portable->formats[f], *b = set->formats[f];
        if (b->dot_few == NULL) continue;
        const size_t count = blocks * a->block_size, row_bytes = blocks * a->block_bytes + draw() % 3;
        const size_t weight_rows = 1 + draw() % WEIGHTS, row_count = 1 + draw() % GLM52_FEW_ROWS;
        const size_t bytes = (weight_rows - 1) * row_bytes + blocks * a->block_bytes;
        const uint8_t fill = (uint8_t)(draw() % 2 ? 0x80 : 0xFF);
        uint8_t *weights = malloc(bytes);
        for (size_t i = 0; i < bytes; i++) weights[i] = extreme ? fill : (uint8_t)(draw() >> 24);
        draw_rows(set, b, count, rows, q8);
        float y[GLM52_FEW_ROWS * STRIDE];
        for (size_t k = 0; k < GLM52_FEW_ROWS * STRIDE; k++) y[k] = 7;
        b->dot_few(weights, row_bytes, weight_rows, count, q8, row_count, y, STRIDE);
        for (size_t k = 0; k < GLM52_FEW_ROWS * STRIDE; k++) {
            const size_t i = k % STRIDE, r = k / STRIDE;
            const bool is_asked = i < weight_rows && r < row_count;
            const bool agree = same(y[k], is_asked ? a->dot_q8(weights + i * row_bytes, &q8[r], count) : 7);
            if (!agree) say(set, b, count);
            CHECK(agree);
        }
        free(weights);
    }
}

/* y[i * stride + j] of glm52_dot_f32_tile is dot_f32 of the two rows, and nothing else is written. */
static void compare_tiles(const struct glm52_quant_set *set) {
    enum { STRIDE = 11 };
    static float x[16][700];
    const float *a[7], *b[9];
    const size_t a_count = 1 + draw() % 7, b_count = 1 + draw() % 9, count = 1 + draw() % 690;
    for (size_t i = 0; i < 16; i++) {
        for (size_t j = 0; j < 700; j++) x[i][j] = i == 3 ? float_of(draw()) : draw_float();
    }
    for (size_t i = 0; i < 7; i++) a[i] = x[i] + draw() % 10;
    for (size_t j = 0; j < 9; j++) b[j] = x[7 + j] + draw() % 10;
    float y[7 * STRIDE];
    for (size_t i = 0; i < 7 * STRIDE; i++) y[i] = 7;
    set->dot_f32_tile(a, a_count, b, b_count, count, y, STRIDE);
    for (size_t i = 0; i < 7; i++) {
        for (size_t j = 0; j < STRIDE; j++) {
            const bool is_asked = i < a_count && j < b_count;
            CHECK(same(y[i * STRIDE + j], is_asked ? glm52_quant_set_at(0)->dot_f32(a[i], b[j], count) : 7));
        }
    }
}

/* add_rows of every set is its sentence, one number at a time. */
static void compare_sums(const struct glm52_quant_set *set) {
    enum { OUTS = 7, STRIDE = 600, P_STRIDE = 19 };
    static float x[16][STRIDE], wanted[OUTS * STRIDE], got[OUTS * STRIDE];
    const float *rows[15];
    const size_t out_count = 1 + draw() % OUTS, count = draw() % 16, size = 1 + draw() % 590;
    float p[OUTS * P_STRIDE];
    for (size_t r = 0; r < 16; r++) {
        for (size_t i = 0; i < STRIDE; i++) x[r][i] = r == 3 ? float_of(draw()) : draw_float();
    }
    for (size_t r = 0; r < 15; r++) rows[r] = x[r] + draw() % 10;
    for (size_t k = 0; k < OUTS * P_STRIDE; k++) p[k] = draw_float();
    for (size_t k = 0; k < OUTS * STRIDE; k++) wanted[k] = got[k] = draw_float();
    for (size_t k = 0; k < out_count * size; k++) {
        const size_t o = k / size, i = k % size;
        for (size_t r = 0; r < count; r++) {
            const float product = p[o * P_STRIDE + r] * rows[r][i];
            wanted[o * STRIDE + i] = wanted[o * STRIDE + i] + product;
        }
    }
    set->add_rows(got, STRIDE, p, P_STRIDE, out_count, rows, count, size);
    CHECK(count_different(got, wanted, OUTS * STRIDE) == 0);
}

void test_many_rows_at_once_give_the_bits_of_single_ones(void) {
    for (uint32_t s = 0; glm52_quant_set_at(s); s++) {
        state = 8;
        for (size_t round = 0; round < 72 && !check_failed; round++) {
            compare_panels(glm52_quant_set_at(s), 1 + round % BLOCKS_MAX, round % 8 == 7);
            compare_few(glm52_quant_set_at(s), 1 + round % BLOCKS_MAX, round % 8 == 7);
            compare_tiles(glm52_quant_set_at(s));
            compare_sums(glm52_quant_set_at(s));
        }
    }
}

static void compare_encoders(const struct glm52_quant_set *set) {
    static struct activations a, b;
    static float x[1024];
    for (size_t i = 0; i < 1024; i++) x[i] = i < 512 ? draw_float() : float_of(draw());
    a.row = glm52_q8_at(a.memory, 1024);
    b.row = glm52_q8_at(b.memory, 1024);
    glm52_quant_set_at(0)->q8_encode(x, 1024, a.row);
    set->q8_encode(x, 1024, b.row);
    CHECK(memcmp(a.memory, b.memory, glm52_q8_bytes(1024)) == 0);
    CHECK(same(glm52_quant_set_at(0)->dot_f32(x, x + 512, 500), set->dot_f32(x, x + 512, 500)));
}

/* Blocks of any bits: scales that are subnormal, infinite or no number among them. A NaN may be any NaN. */
void test_every_instruction_set_gives_the_same_bits(void) {
    uint32_t last = 0;
    for (uint32_t s = 1; glm52_quant_set_at(s); s++) {
        state = 7;
        for (size_t round = 0; round < 60 && !check_failed; round++) {
            compare_formats(glm52_quant_set_at(s), 1 + round % BLOCKS_MAX);
            compare_encoders(glm52_quant_set_at(s));
        }
        last = s;
    }
    CHECK(glm52_quant_at(0) == glm52_quant_set_at(last)->formats[0]);
}
