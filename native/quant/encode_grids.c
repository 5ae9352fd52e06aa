/* encode_grids.c - writes IQ2_XXS, IQ2_XS and IQ3_XXS. Their bytes are drawn in iq2.c and iq3.c.
 *
 * A code is an entry of a book of magnitudes g, for 8 values or (IQ3) 4; a group of 8 values has 8 signs, an even
 * number of them negative. At a scale s an entry leaves
 *     sum(w x^2) + s (s B - 2 A)     A = sum(w |x| g), B = sum(w g^2)
 * where neither A nor B depends on s: both are computed once for every entry of a book, and any scale is then judged by
 * two products per entry. Where an odd number of values is negative, one value gets the wrong sign: the one for which
 * w |x| g is smallest, which takes twice that from A. In a group of two codes either may carry it.
 *
 * So for a given scale the search is exhaustive. It is made at some scales; the entries that win at any of them are the
 * candidates of the code, and for these every factor of a part is tried with a number of d, the super-block's scale. */
#include <math.h>

#include "encode_lanes.h"
#include "grids.h"

#define TRIALS 16            /* scales of the first search: a lane each */
#define GROUPS 32            /* of 8 values */
#define ENTRIES_MAX 512

struct book {
    int entries, length;     /* of an entry: 8 or 4 */
    float top;               /* largest magnitude */
    float column[8][ENTRIES_MAX];
};

/* Entries that won at some scale: [0] with all signs right, [1] with one wrong. */
struct candidates {
    int count[2];
    int16_t entry[2][TRIALS];
    float a[2][TRIALS], b[2][TRIALS];
};

struct grid_block {
    struct scaled_block scaled;      /* x are magnitudes */
    uint8_t signs[GROUPS];           /* bit i: value i of the group is negative */
    bool is_odd[GROUPS];
    struct candidates cells[2 * GROUPS];
};

/* What is decided: d, the factor of each part, the scale of each group. */
struct grid_fit {
    uint16_t half;
    float error;
    uint8_t factor[16];              /* s of f = 2 s + 1 */
};

static void open_book(struct book *book, const int8_t *grid, int entries, int length) {
    book->entries = entries;
    book->length = length;
    book->top = 0;
    for (int e = 0; e < entries; e++) {
        for (int i = 0; i < length; i++) {
            const float value = grid[e * length + i];
            book->column[i][e] = value;
            book->top = value > book->top ? value : book->top;
        }
    }
}

static inline void take_signs(struct grid_block *block) {
    for (int g = 0; g < GROUPS; g++) {
        uint8_t signs = 0;
        for (int i = 0; i < 8; i++) {
            float *x = &block->scaled.x[8 * g + i];
            signs = (uint8_t)(signs | (*x < 0) << i);
            *x = fabsf(*x);
        }
        block->signs[g] = signs;
        block->is_odd[g] = __builtin_parity(signs);
    }
}

/* A and B of every entry for one code's values. has_wrong: A with the cheapest sign wrong. */
OUT_OF_LINE void weigh_entries(const struct book *book, int length, const float *x, const float *w, bool has_wrong,
                                 lanes *a, lanes *b) {
    for (int v = 0; v < book->entries / LANE_COUNT; v++) {
        lanes sum_a = all_lanes(0), sum_b = all_lanes(0), cheapest = all_lanes(INFINITY);
        for (int i = 0; i < length; i++) {
            lanes g;
            memcpy(&g, book->column[i] + LANE_COUNT * v, sizeof(g));
            const lanes wg = g * w[i], term = wg * x[i];
            sum_a += term;
            sum_b += wg * g;
            if (has_wrong) cheapest = smaller(term, cheapest);
        }
        a[v] = has_wrong ? sum_a - 2 * cheapest : sum_a;
        b[v] = sum_b;
    }
}

/* Number of the entry that leaves least at a scale; of equal ones the lowest of the first lane that has it. */
OUT_OF_LINE int best_entry(const struct book *book, const lanes *a, const lanes *b, float scale) {
    lanes best = scale * (scale * b[0] - 2 * a[0]);
    lane_bits best_at = {0};
    for (int v = 1; v < book->entries / LANE_COUNT; v++) {
        const lanes left = scale * (scale * b[v] - 2 * a[v]);
        const lane_bits is_better = left < best;
        best = choose(is_better, left, best);
        best_at = (is_better & v) | (~is_better & best_at);
    }
    int lane = 0;
    for (int i = 1; i < LANE_COUNT; i++) lane = best[i] < best[lane] ? i : lane;
    return best_at[lane] * LANE_COUNT + lane;
}

OUT_OF_LINE void search_cell(const struct book *book, int length, const float *x, const float *w, int wrong,
                               const float *scales, struct candidates *out) {
    lanes a[ENTRIES_MAX / LANE_COUNT], b[ENTRIES_MAX / LANE_COUNT];
    weigh_entries(book, length, x, w, wrong == 1, a, b);
    int count = 0;
    for (int t = 0; t < TRIALS; t++) {
        const int entry = best_entry(book, a, b, scales[t]);
        bool is_new = true;
        for (int k = 0; k < count; k++) is_new = is_new && out->entry[wrong][k] != entry;
        if (!is_new) continue;
        out->entry[wrong][count] = (int16_t)entry;
        out->a[wrong][count] = a[entry / LANE_COUNT][entry % LANE_COUNT];
        out->b[wrong][count] = b[entry / LANE_COUNT][entry % LANE_COUNT];
        count++;
    }
    out->count[wrong] = count;
}

/* What the best candidate leaves at each of 16 scales, beside sum(w x^2). */
OUT_OF_LINE lanes left_by_cell(const struct candidates *cell, int wrong, lanes scale) {
    lanes best = all_lanes(INFINITY);
    for (int k = 0; k < cell->count[wrong]; k++) {
        best = smaller(scale * (scale * cell->b[wrong][k] - 2 * cell->a[wrong][k]), best);
    }
    return best;
}

OUT_OF_LINE lanes left_by_group(const struct grid_block *block, int cells, int group, lanes scale) {
    const bool is_odd = block->is_odd[group];
    if (cells == 1) return left_by_cell(&block->cells[group], is_odd, scale);
    const struct candidates *first = &block->cells[2 * group], *second = first + 1;
    const lanes plain0 = left_by_cell(first, 0, scale), plain1 = left_by_cell(second, 0, scale);
    if (!is_odd) return plain0 + plain1;
    return smaller(left_by_cell(first, 1, scale) + plain1, plain0 + left_by_cell(second, 1, scale));
}

/* ---- one scale: the codes themselves ---- */

static inline int pick(const struct candidates *cell, int wrong, float scale, float *left_out) {
    int best = 0;
    float least = INFINITY;
    for (int k = 0; k < cell->count[wrong]; k++) {
        const float left = scale * (scale * cell->b[wrong][k] - 2 * cell->a[wrong][k]);
        if (left < least) {
            least = left;
            best = k;
        }
    }
    *left_out = least;
    return best;
}

struct picked {
    int candidate[2], wrong[2];      /* of each code of the group */
};

static inline struct picked pick_group(const struct grid_block *block, int cells, int group, float scale) {
    struct picked picked = {{0, 0}, {0, 0}};
    const int is_odd = block->is_odd[group];
    float left[2][2] = {{0}};
    if (cells == 1) {
        picked.wrong[0] = is_odd;
        picked.candidate[0] = pick(&block->cells[group], is_odd, scale, &left[0][0]);
        return picked;
    }
    int best[2][2] = {{0}};
    for (int c = 0; c < 2; c++) {
        for (int wrong = 0; wrong <= is_odd; wrong++) {
            best[c][wrong] = pick(&block->cells[2 * group + c], wrong, scale, &left[c][wrong]);
        }
    }
    if (is_odd) picked.wrong[left[0][1] + left[1][0] <= left[0][0] + left[1][1] ? 0 : 1] = 1;
    for (int c = 0; c < 2; c++) picked.candidate[c] = best[c][picked.wrong[c]];
    return picked;
}

/* sum(A) and sum(B) of a part's codes at a scale. */
static inline void sums_of_part(const struct grid_block *block, int cells, int first_group, int groups, float scale,
                                float *a, float *b) {
    *a = *b = 0;
    for (int g = first_group; g < first_group + groups; g++) {
        const struct picked picked = pick_group(block, cells, g, scale);
        for (int c = 0; c < cells; c++) {
            const struct candidates *cell = &block->cells[cells * g + c];
            *a += cell->a[picked.wrong[c]][picked.candidate[c]];
            *b += cell->b[picked.wrong[c]][picked.candidate[c]];
        }
    }
}

/* ---- a part: its candidates, and the scale that would suit it best ---- */

/* Shares of the scale that brings the part's largest value to the book's largest magnitude. The last is so large that
 * the smallest entry wins: parts far below the others of their super-block need it. */
static const float shares[TRIALS] = {0.40f, 0.48f, 0.56f, 0.62f, 0.68f, 0.74f, 0.80f, 0.85f,
                                     0.90f, 0.95f, 1.00f, 1.06f, 1.13f, 1.22f, 1.40f, 6.00f};

OUT_OF_LINE float search_part(const struct book *book, int length, struct grid_block *block, int first_group,
                                int groups) {
    const int cells = 8 / length;
    float top = 0, scales[TRIALS];
    for (int i = 8 * first_group; i < 8 * (first_group + groups); i++) {
        top = block->scaled.x[i] > top ? block->scaled.x[i] : top;
    }
    lanes scale, left = all_lanes(0);
    for (int t = 0; t < TRIALS; t++) scale[t] = scales[t] = shares[t] * top / book->top;
    for (int g = first_group; g < first_group + groups; g++) {
        for (int c = 0; c < cells; c++) {
            const float *x = block->scaled.x + 8 * g + length * c, *w = block->scaled.w + 8 * g + length * c;
            struct candidates *cell = &block->cells[cells * g + c];
            if (cells == 2 || !block->is_odd[g]) search_cell(book, length, x, w, 0, scales, cell);
            if (block->is_odd[g]) search_cell(book, length, x, w, 1, scales, cell);
        }
        left += left_by_group(block, cells, g, scale);
    }
    int best = 0;
    for (int t = 1; t < TRIALS; t++) best = left[t] < left[best] ? t : best;
    float a, b;
    sums_of_part(block, cells, first_group, groups, scales[best], &a, &b);
    return b > 0 && a > 0 ? a / b : 0;
}

/* ---- the super-block ---- */

/* Every factor of every part with d, kept if the whole leaves less than before. d in the block's units, times share. */
OUT_OF_LINE void try_d(const struct grid_block *block, int cells, int parts, float share, float d,
                         struct grid_fit *best) {
    struct grid_fit fit = {.half = half_of(d, block->scaled.unit), .error = 0};
    const float rounded = f16_to_f32(fit.half) * block->scaled.unit * share;
    lanes scale;
    for (int k = 0; k < 16; k++) scale[k] = rounded * (float)(2 * k + 1);
    for (int p = 0; p < parts; p++) {
        lanes left = all_lanes(0);
        for (int g = p * GROUPS / parts; g < (p + 1) * GROUPS / parts; g++) {
            left += left_by_group(block, cells, g, scale);
        }
        int least = 0;
        for (int k = 1; k < 16; k++) least = left[k] < left[least] ? k : least;
        fit.factor[p] = (uint8_t)least;
        fit.error += left[least];
    }
    if (fit.error < best->error) *best = fit;
}

/* d that is best for the codes and factors of fit: sum(f A) / sum(f^2 B), over share. */
static inline float refit_d(const struct grid_block *block, int cells, int parts, float share,
                            const struct grid_fit *fit) {
    const float rounded = f16_to_f32(fit->half) * block->scaled.unit * share;
    float top = 0, bottom = 0;
    for (int p = 0; p < parts; p++) {
        const float factor = (float)(2 * fit->factor[p] + 1);
        float a, b;
        sums_of_part(block, cells, p * GROUPS / parts, GROUPS / parts, rounded * factor, &a, &b);
        top += factor * a;
        bottom += factor * factor * b;
    }
    return bottom > 0 ? top / bottom / share : 0;
}

OUT_OF_LINE struct grid_fit fit_grids(const struct book *book, int length, int parts, float share,
                                        struct grid_block *block) {
    const int cells = 8 / length;
    float top = 0;
    for (int p = 0; p < parts; p++) {
        const float scale = search_part(book, length, block, p * GROUPS / parts, GROUPS / parts);
        top = scale > top ? scale : top;
    }
    struct grid_fit fit = {.error = INFINITY};
    /* The largest scale at factors from a little past the last, 31, down to 21. */
    for (int k = 0; k < 13; k++) try_d(block, cells, parts, share, top / share / (33 - (float)k), &fit);
    for (int pass = 0; pass < 2; pass++) {
        try_d(block, cells, parts, share, refit_d(block, cells, parts, share, &fit), &fit);
    }
    return fit;
}

/* ---- codes ---- */

struct grid_codes {
    uint16_t half;                   /* d as it is stored */
    uint16_t entry[2 * GROUPS];
    uint8_t signs[GROUPS];           /* 7 bits, the eighth goes without saying */
};

static inline void write_codes(const struct book *book, int length, int parts, float share,
                               const struct grid_block *block, const struct grid_fit *fit, struct grid_codes *out) {
    const int cells = 8 / length;
    const float rounded = f16_to_f32(fit->half) * block->scaled.unit * share;
    float xx = 0, xy = 0;
    for (int i = 0; i < SUPER; i++) xx += block->scaled.w[i] * block->scaled.x[i] * block->scaled.x[i];
    for (int g = 0; g < GROUPS; g++) {
        const float scale = rounded * (float)(2 * fit->factor[g * parts / GROUPS] + 1);
        const struct picked picked = pick_group(block, cells, g, scale);
        uint8_t signs = block->signs[g];
        for (int c = 0; c < cells; c++) {
            const int wrong = picked.wrong[c];
            const int entry = block->cells[cells * g + c].entry[wrong][picked.candidate[c]];
            out->entry[cells * g + c] = (uint16_t)entry;
            xy += scale * block->cells[cells * g + c].a[wrong][picked.candidate[c]];
            if (!wrong) continue;
            int at = 0;
            float cheapest = INFINITY;
            for (int i = 0; i < length; i++) {
                const int k = 8 * g + length * c + i;
                const float term = book->column[i][entry] * block->scaled.w[k] * block->scaled.x[k];
                if (term < cheapest) {
                    cheapest = term;
                    at = length * c + i;
                }
            }
            signs = (uint8_t)(signs ^ 1 << at);
        }
        out->signs[g] = signs & 127;
    }
    const float gain = gain_of(xx, xy);
    out->half = half_of(rounded / share * gain, block->scaled.unit);
}

typedef void pack_super(const struct grid_codes *codes, const struct grid_fit *fit, uint8_t *out);

ALWAYS_INLINE void encode_grids(const int8_t *grid, int entries, int length, int parts, float share, size_t bytes,
                                pack_super *pack, const float *x, const float *importance, size_t row_size,
                                size_t count, uint8_t *out) {
    struct book book;
    open_book(&book, grid, entries, length);
    for (size_t at = 0; at < count; at += SUPER, out += bytes) {
        struct grid_block block;
        struct grid_codes codes;
        scale_block(x + at, importance ? importance + at % row_size : NULL, SUPER, &block.scaled);
        take_signs(&block);
        const struct grid_fit fit = fit_grids(&book, length, parts, share, &block);
        write_codes(&book, length, parts, share, &block, &fit, &codes);
        store_u16(out, codes.half);
        pack(&codes, &fit, out);
    }
}

static inline void pack_iq2_xxs(const struct grid_codes *codes, const struct grid_fit *fit, uint8_t *out) {
    for (int b = 0; b < 8; b++) {
        uint32_t signs = (uint32_t)fit->factor[b] << 28;
        for (int g = 0; g < 4; g++) {
            out[2 + 8 * b + g] = (uint8_t)codes->entry[4 * b + g];
            signs |= (uint32_t)codes->signs[4 * b + g] << 7 * g;
        }
        store_u32(out + 6 + 8 * b, signs);
    }
}

static inline void pack_iq2_xs(const struct grid_codes *codes, const struct grid_fit *fit, uint8_t *out) {
    for (int g = 0; g < GROUPS; g++) {
        store_u16(out + 2 + 2 * g, (uint16_t)(codes->entry[g] | codes->signs[g] << 9));
    }
    for (int i = 0; i < 8; i++) out[66 + i] = (uint8_t)(fit->factor[2 * i] | fit->factor[2 * i + 1] << 4);
}

static inline void pack_iq3_xxs(const struct grid_codes *codes, const struct grid_fit *fit, uint8_t *out) {
    for (int g = 0; g < 2 * GROUPS; g++) out[2 + g] = (uint8_t)codes->entry[g];
    for (int b = 0; b < 8; b++) {
        uint32_t signs = (uint32_t)fit->factor[b] << 28;
        for (int g = 0; g < 4; g++) signs |= (uint32_t)codes->signs[4 * b + g] << 7 * g;
        store_u32(out + 66 + 4 * b, signs);
    }
}

#define DEFINE(name, type, grid, entries, length, parts, share, bytes, pack)                                          \
    static void encode_##name(const float *x, const float *importance, size_t row_size, size_t count, void *blocks) { \
        encode_grids(&grid[0][0], entries, length, parts, share, bytes, pack, x, importance, row_size, count, blocks); \
    }                                                                                                                 \
    GLM52_DEFINE_ENCODER(name, type, HALF_MAX, encode_##name)

DEFINE(IQ2_XXS, 16, glm52_grid_iq2_xxs, 256, 8, 8, 0.125f, 66, pack_iq2_xxs);
DEFINE(IQ2_XS, 17, glm52_grid_iq2_xs, 512, 8, 16, 0.125f, 74, pack_iq2_xs);
DEFINE(IQ3_XXS, 18, glm52_grid_iq3_xxs, 256, 4, 8, 0.25f, 98, pack_iq3_xxs);
