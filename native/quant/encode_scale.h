/* encode_scale.h - the search for scales of formats whose values are scale * code.
 *
 * Codes are the integers low .. high or the values of IQ4_NL's table. For given codes q the best scale is
 * sum(w x q) / sum(w q^2), and what it leaves is sum(w x^2) - sum(w x q)^2 / sum(w q^2): the search takes the largest
 * second term. It starts from scales that bring the value of largest magnitude near the first or the last code, and
 * then goes back and forth between codes and scale. */
#ifndef GLM52_ENCODE_SCALE_H
#define GLM52_ENCODE_SCALE_H

#include <math.h>

#include "encode_lanes.h"
#include "quant_tables.h"

struct codes {
    float low, high;           /* the first and the last */
    bool is_table;             /* of IQ4_NL's values, else all integers between */
    float start, end;          /* the largest value is tried at start .. end times a last code */
    int steps;
};

/* The code value nearest to each of y. */
ALWAYS_INLINE lanes nearest_code(const struct codes *codes, lanes y) {
    if (!codes->is_table) return round_lanes(clamp(y, codes->low, codes->high));
    lanes value = all_lanes((float)glm52_pairs_iq4[0][0]);
    for (int i = 1; i < 16; i++) {
        const float below = glm52_pairs_iq4[i - 1][0], above = glm52_pairs_iq4[i][0];
        const lane_bits is_past = y > all_lanes(0.5f * (below + above));
        value += (lanes)(is_past & (lane_bits)all_lanes(above - below));
    }
    return value;
}

/* What codes at 1 / scale explain of a group, and the scale that is best for them; kept where it is the most. */
struct best_scale {
    lanes gain, scale;
};

OUT_OF_LINE void try_scale(const struct codes *codes, const struct lane_group *group, int n, lanes inverse_scale,
                             struct best_scale *best) {
    lanes xq = all_lanes(0), qq = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes q = nearest_code(codes, group->x[i] * inverse_scale), wq = group->w[i] * q;
        xq += wq * group->x[i];
        qq += wq * q;
    }
    const lanes scale = ratio(xq, qq), gain = scale * xq;
    const lane_bits is_better = gain > best->gain;
    best->gain = choose(is_better, gain, best->gain);
    best->scale = choose(is_better, scale, best->scale);
}

/* Each lane's best scale; 0 where all values are 0. */
OUT_OF_LINE lanes find_scale(const struct codes *codes, const struct lane_group *group, int n) {
    lanes top = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lane_bits is_larger = magnitude_of(group->x[i]) > magnitude_of(top);
        top = choose(is_larger, group->x[i], top);
    }
    const lanes unit = inverse(top);
    struct best_scale best = {all_lanes(0), all_lanes(0)};
    for (int step = 0; step < codes->steps; step++) {
        const float share = codes->start + (codes->end - codes->start) * (float)step / (float)(codes->steps - 1);
        try_scale(codes, group, n, unit * (codes->low * share), &best);
        try_scale(codes, group, n, unit * (codes->high * share), &best);
    }
    for (int pass = 0; pass < 3; pass++) try_scale(codes, group, n, inverse(best.scale), &best);
    return best.scale;
}

/* Weighted squares that codes at scale leave. */
OUT_OF_LINE lanes error_at(const struct codes *codes, const struct lane_group *group, int n, lanes scale) {
    const lanes inverse_scale = inverse(scale);
    lanes error = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes left = group->x[i] - scale * nearest_code(codes, group->x[i] * inverse_scale);
        error += group->w[i] * left * left;
    }
    return error;
}

/* ---- blocks with a float16 scale of their own ---- */

/* The float16 scales of a group's lanes, and q [n] = the codes' values at them. Beside the rounded scale its two
 * neighbours are tried: near the small end float16 is coarse. */
OUT_OF_LINE void fit_blocks(const struct codes *codes, const struct lane_group *group, int n, uint16_t *halves,
                              lanes *q) {
    const lanes scale = find_scale(codes, group, n);
    lanes best_error = all_lanes(0), best = all_lanes(0);
    for (int step = -1; step <= 1; step++) {
        uint16_t half[LANE_COUNT];
        const lanes rounded = round_scales(scale * (1 + 0x1p-11f * (float)step), group->unit, half);
        const lanes error = error_at(codes, group, n, rounded);
        const lane_bits is_better = step == -1 ? (lane_bits)all_lanes(0) == 0 : error < best_error;
        best_error = choose(is_better, error, best_error);
        best = choose(is_better, rounded, best);
        for (int lane = 0; lane < LANE_COUNT; lane++) {
            if (is_better[lane]) halves[lane] = half[lane];
        }
    }
    const lanes inverse_scale = inverse(best);
    lanes xx = all_lanes(0), xy = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes wx = group->w[i] * group->x[i];
        q[i] = nearest_code(codes, group->x[i] * inverse_scale);
        xx += wx * group->x[i];
        xy += wx * (best * q[i]);
    }
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        halves[lane] = half_of(best[lane] * gain_of(xx[lane], xy[lane]), group->unit[lane]);
    }
}

/* ---- super-blocks: the scale of a part is d times a small integer factor ---- */

struct factors {
    int low, high;             /* of the factor */
    int parts;                 /* lanes of a super-block: 16, or 8 and two super-blocks in a group */
};

struct super_fit {
    uint16_t half[2];          /* d of each super-block */
    lanes factor;
    float error[2];
};

/* sums [2] of the lanes of each super-block */
OUT_OF_LINE void sum_parts(lanes values, int parts, float *sums) {
    sums[0] = sums[1] = 0;
    for (int lane = 0; lane < LANE_COUNT; lane++) sums[lane / parts] += values[lane];
}

/* Integer factors for d near scale / d, each the best of three. */
OUT_OF_LINE lanes find_factors(const struct codes *codes, const struct factors *factors,
                                 const struct lane_group *group, int n, lanes d, lanes scale, lanes *error_out) {
    const float low = (float)factors->low, high = (float)factors->high;
    const lanes start = clamp(round_lanes(clamp(scale * inverse(d), low, high)), low, high);
    lanes best = start, best_error = error_at(codes, group, n, d * start);
    for (int step = -1; step <= 1; step += 2) {
        const lanes factor = clamp(start + (float)step, low, high);
        const lanes error = error_at(codes, group, n, d * factor);
        const lane_bits is_better = error < best_error;
        best = choose(is_better, factor, best);
        best_error = choose(is_better, error, best_error);
    }
    *error_out = best_error;
    return best;
}

/* Factors for d, kept for each super-block where they leave less than best has. */
OUT_OF_LINE void try_super(const struct codes *codes, const struct factors *factors, const struct lane_group *group,
                             int n, const float *d, lanes scale, struct super_fit *best) {
    uint16_t half[2] = {0, 0};
    for (int s = 0; s < LANE_COUNT / factors->parts; s++) half[s] = half_of(d[s], group->unit[s * factors->parts]);
    const lanes spread = spread_halves(half, group->unit, factors->parts);
    lanes errors;
    const lanes factor = find_factors(codes, factors, group, n, spread, scale, &errors);
    float error[2];
    sum_parts(errors, factors->parts, error);
    for (int s = 0; s < LANE_COUNT / factors->parts; s++) {
        if (!(error[s] < best->error[s])) continue;
        best->error[s] = error[s];
        best->half[s] = half[s];
        for (int lane = s * factors->parts; lane < (s + 1) * factors->parts; lane++) best->factor[lane] = factor[lane];
    }
}

/* d [2] = the best for the factors and codes of fit: sum(w x f q) / sum(w (f q)^2). Scales that go with them too. */
OUT_OF_LINE lanes refit_super(const struct codes *codes, const struct factors *factors,
                                const struct lane_group *group, int n, const struct super_fit *fit, float *d) {
    const lanes spread = spread_halves(fit->half, group->unit, factors->parts);
    const lanes inverse_scale = inverse(spread * fit->factor);
    lanes xq = all_lanes(0), qq = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes q = nearest_code(codes, group->x[i] * inverse_scale), wq = group->w[i] * q;
        xq += wq * group->x[i];
        qq += wq * q;
    }
    float top[2], bottom[2];
    sum_parts(xq * fit->factor, factors->parts, top);
    sum_parts(qq * fit->factor * fit->factor, factors->parts, bottom);
    for (int s = 0; s < 2; s++) d[s] = bottom[s] > 0 ? top[s] / bottom[s] : 0;
    return ratio(xq, qq);
}

/* d and factors of the group's super-blocks, and q [n] = the codes' values. */
OUT_OF_LINE void fit_supers(const struct codes *codes, const struct factors *factors,
                              const struct lane_group *group, int n, struct super_fit *fit, lanes *q) {
    const lanes scale = find_scale(codes, group, n);
    float top[2] = {0, 0}, d[2] = {0, 0};
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        float *t = &top[lane / factors->parts];
        if (fabsf(scale[lane]) > fabsf(*t)) *t = scale[lane];
    }
    *fit = (struct super_fit){.factor = all_lanes(0), .error = {INFINITY, INFINITY}};
    /* The largest scale at the factor of largest magnitude, and at a few below it. */
    for (int step = 0; step < 4; step++) {
        for (int s = 0; s < 2; s++) d[s] = top[s] / ((float)factors->low * (1 - 0.03f * (float)step));
        try_super(codes, factors, group, n, d, scale, fit);
    }
    for (int pass = 0; pass < 2; pass++) {
        const lanes own = refit_super(codes, factors, group, n, fit, d);
        try_super(codes, factors, group, n, d, own, fit);
    }
    const lanes spread = spread_halves(fit->half, group->unit, factors->parts), own = spread * fit->factor;
    const lanes inverse_scale = inverse(own);
    lanes xx = all_lanes(0), xy = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes wx = group->w[i] * group->x[i];
        q[i] = nearest_code(codes, group->x[i] * inverse_scale);
        xx += wx * group->x[i];
        xy += wx * (own * q[i]);
    }
    float all_xx[2], all_xy[2];
    sum_parts(xx, factors->parts, all_xx);
    sum_parts(xy, factors->parts, all_xy);
    for (int s = 0; s < LANE_COUNT / factors->parts; s++) {
        const int lane = s * factors->parts;
        fit->half[s] = half_of(spread[lane] * gain_of(all_xx[s], all_xy[s]), group->unit[lane]);
    }
}

#endif
