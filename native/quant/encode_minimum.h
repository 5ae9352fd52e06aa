/* encode_minimum.h - the search for formats whose values are scale * code - minimum, codes 0 .. high.
 *
 * For given codes scale and minimum are the solution of two linear equations. The search starts from ranges that leave
 * out a little at either end, and goes back and forth between codes and solution. */
#ifndef GLM52_ENCODE_MINIMUM_H
#define GLM52_ENCODE_MINIMUM_H

#include <math.h>

#include "encode_lanes.h"

struct steps {
    float high;                /* the last code */
    float cut;                 /* at most this share of the range is left out at an end, */
    int cuts;                  /* in so many steps, the first a step outward */
    bool is_signed;            /* the minimum may be below 0: values all above it */
};

struct line {
    lanes gain, scale, minimum;
};

/* Of the whole group, whatever the codes. */
struct plain_sums {
    lanes w, wx;
};

ALWAYS_INLINE lanes code_with_minimum(const struct steps *steps, lanes x, lanes inverse_scale, lanes minimum) {
    return round_lanes(clamp((x + minimum) * inverse_scale, 0, steps->high));
}

/* Codes at a scale and a minimum, then the scale and minimum that are best for them; kept where they explain more.
 * Where codes are too much alike to tell both, the scale stays, and where the minimum would be below 0 it is 0. */
OUT_OF_LINE void try_line(const struct steps *steps, const struct lane_group *group, int n,
                            const struct plain_sums *sums, lanes scale, lanes minimum, struct line *best) {
    const lanes zero = all_lanes(0), inverse_scale = inverse(scale);
    lanes wq = zero, wqq = zero, wxq = zero;
    for (int i = 0; i < n; i++) {
        const lanes q = code_with_minimum(steps, group->x[i], inverse_scale, minimum), t = group->w[i] * q;
        wq += t;
        wqq += t * q;
        wxq += t * group->x[i];
    }
    const lanes determinant = sums->w * wqq - wq * wq;
    const lane_bits is_solvable = determinant > 1e-5f * (sums->w * wqq);
    const lanes divisor = choose(is_solvable, determinant, all_lanes(1));
    lanes s = choose(is_solvable, (sums->w * wxq - sums->wx * wq) / divisor, scale);
    lanes m = ratio(s * wq - sums->wx, sums->w);
    if (!steps->is_signed) {
        const lane_bits is_below = m < zero;
        m = choose(is_below, zero, m);
        s = choose(is_below, ratio(wxq, wqq), s);
    }
    const lanes fitted = s * (2 * (wxq + m * wq) - s * wqq) - m * (2 * sums->wx + m * sums->w);
    const lane_bits is_better = fitted > best->gain;
    best->gain = choose(is_better, fitted, best->gain);
    best->scale = choose(is_better, s, best->scale);
    best->minimum = choose(is_better, m, best->minimum);
}

OUT_OF_LINE struct line find_line(const struct steps *steps, const struct lane_group *group, int n) {
    struct plain_sums sums = {all_lanes(0), all_lanes(0)};
    lanes low = group->x[0], high = group->x[0];
    for (int i = 0; i < n; i++) {
        low = smaller(low, group->x[i]);
        high = greater(high, group->x[i]);
        sums.w += group->w[i];
        sums.wx += group->w[i] * group->x[i];
    }
    if (!steps->is_signed) low = smaller(low, all_lanes(0));
    const lanes range = greater(high - low, all_lanes(0));
    struct line best = {all_lanes(-INFINITY), all_lanes(0), all_lanes(0)};
    for (int a = 0; a < steps->cuts; a++) {
        for (int b = 0; b < steps->cuts; b++) {
            const float unit = steps->cut / (float)(steps->cuts - 2);
            const float at_low = unit * (float)(a - 1), at_high = unit * (float)(b - 1);
            const lanes scale = range * ((1 - at_low - at_high) / steps->high);
            try_line(steps, group, n, &sums, scale, -(low + range * at_low), &best);
        }
    }
    for (int pass = 0; pass < 3; pass++) try_line(steps, group, n, &sums, best.scale, best.minimum, &best);
    return best;
}

OUT_OF_LINE lanes error_of_line(const struct steps *steps, const struct lane_group *group, int n, lanes scale,
                                  lanes minimum) {
    const lanes inverse_scale = inverse(scale);
    lanes error = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes q = code_with_minimum(steps, group->x[i], inverse_scale, minimum);
        const lanes left = group->x[i] - (scale * q - minimum);
        error += group->w[i] * left * left;
    }
    return error;
}

OUT_OF_LINE void codes_of_line(const struct steps *steps, const struct lane_group *group, int n, lanes scale,
                                 lanes minimum, lanes *q) {
    const lanes inverse_scale = inverse(scale);
    for (int i = 0; i < n; i++) q[i] = code_with_minimum(steps, group->x[i], inverse_scale, minimum);
}

/* sum(w x x) and sum(w x y) of each lane, y what codes q stand for. */
OUT_OF_LINE void sums_along(const struct lane_group *group, int n, lanes scale, lanes minimum, const lanes *q,
                            lanes *xx, lanes *xy) {
    *xx = *xy = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes wx = group->w[i] * group->x[i];
        *xx += wx * group->x[i];
        *xy += wx * (scale * q[i] - minimum);
    }
}

/* ---- blocks with float16s of their own; m is what is added: -minimum ---- */

OUT_OF_LINE void fit_blocks_with_minimum(const struct steps *steps, const struct lane_group *group, int n,
                                           uint16_t *d, uint16_t *m, lanes *q) {
    const struct line line = find_line(steps, group, n);
    const lanes scale = round_scales(line.scale, group->unit, d);
    const lanes added = round_scales(-line.minimum, group->unit, m);
    codes_of_line(steps, group, n, scale, -added, q);
    lanes xx, xy;
    sums_along(group, n, scale, -added, q, &xx, &xy);
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const float gain = gain_of(xx[lane], xy[lane]);
        d[lane] = half_of(scale[lane] * gain, group->unit[lane]);
        m[lane] = half_of(added[lane] * gain, group->unit[lane]);
    }
}

/* ---- super-blocks: scale and minimum of a part are d and m times small integers f and g ---- */

struct pair_factors {
    int high;                  /* of f and of g, from 0 */
    int parts;                 /* lanes of a super-block: 16, or 8 and two super-blocks in a group */
    int tries;                 /* of d, and of m */
};

struct super_line {
    uint16_t d[2], m[2];
    lanes f, g;
    float error[2];
};

/* f and g about scale / d and minimum / m, the best of nine; kept for super-blocks where they leave less. */
OUT_OF_LINE void try_pair(const struct steps *steps, const struct pair_factors *factors,
                            const struct lane_group *group, int n, const float *d, const float *m, lanes scale,
                            lanes minimum, struct super_line *best) {
    uint16_t d16[2] = {0, 0}, m16[2] = {0, 0};
    const int parts = factors->parts, supers = LANE_COUNT / parts;
    for (int s = 0; s < supers; s++) {
        d16[s] = half_of(d[s], group->unit[s * parts]);
        m16[s] = half_of(m[s], group->unit[s * parts]);
    }
    const lanes spread_d = spread_halves(d16, group->unit, parts), spread_m = spread_halves(m16, group->unit, parts);
    const float high = (float)factors->high;
    const lanes f0 = round_lanes(clamp(scale * inverse(spread_d), 0, high));
    const lanes g0 = round_lanes(clamp(minimum * inverse(spread_m), 0, high));
    lanes f = f0, g = g0, error = all_lanes(INFINITY);
    for (int i = 0; i < 9; i++) {
        const lanes f1 = clamp(f0 + (float)(i % 3 - 1), 0, high), g1 = clamp(g0 + (float)(i / 3 - 1), 0, high);
        const lanes left = error_of_line(steps, group, n, spread_d * f1, spread_m * g1);
        const lane_bits is_better = left < error;
        error = choose(is_better, left, error);
        f = choose(is_better, f1, f);
        g = choose(is_better, g1, g);
    }
    for (int s = 0; s < supers; s++) {
        float sum = 0;
        for (int lane = s * parts; lane < (s + 1) * parts; lane++) sum += error[lane];
        if (!(sum < best->error[s])) continue;
        best->error[s] = sum;
        best->d[s] = d16[s];
        best->m[s] = m16[s];
        for (int lane = s * parts; lane < (s + 1) * parts; lane++) {
            best->f[lane] = f[lane];
            best->g[lane] = g[lane];
        }
    }
}

/* d and m [2] that are best for the factors and codes of fit, over each whole super-block: with F = f q
 *     sum(w F F) d - sum(w F g) m = sum(w x F)     sum(w F g) d - sum(w g g) m = sum(w x g) */
OUT_OF_LINE void refit_pair(const struct steps *steps, const struct pair_factors *factors,
                              const struct lane_group *group, int n, const struct super_line *fit, float *d,
                              float *m) {
    const int parts = factors->parts;
    const lanes scale = spread_halves(fit->d, group->unit, parts) * fit->f, inverse_scale = inverse(scale);
    const lanes minimum = spread_halves(fit->m, group->unit, parts) * fit->g;
    lanes sum_ff = all_lanes(0), sum_f = all_lanes(0), sum_xf = all_lanes(0), sum_w = all_lanes(0),
          sum_x = all_lanes(0);
    for (int i = 0; i < n; i++) {
        const lanes w = group->w[i], x = group->x[i];
        const lanes big = fit->f * code_with_minimum(steps, x, inverse_scale, minimum), t = w * big;
        sum_ff += t * big;
        sum_f += t;
        sum_xf += t * x;
        sum_w += w;
        sum_x += w * x;
    }
    for (int s = 0; s < LANE_COUNT / parts; s++) {
        float a = 0, b = 0, c = 0, e = 0, h = 0;
        for (int lane = s * parts; lane < (s + 1) * parts; lane++) {
            const float g = fit->g[lane];
            a += sum_ff[lane];
            b += sum_f[lane] * g;
            c += sum_w[lane] * g * g;
            e += sum_xf[lane];
            h += sum_x[lane] * g;
        }
        const float determinant = a * c - b * b;
        if (determinant > 1e-5f * (a * c)) {
            d[s] = (e * c - b * h) / determinant;
            m[s] = (b * e - a * h) / determinant;
        } else if (a > 0) {
            d[s] = (e + b * m[s]) / a;
        }
    }
}

OUT_OF_LINE void fit_supers_with_minimum(const struct steps *steps, const struct pair_factors *factors,
                                           const struct lane_group *group, int n, struct super_line *fit, lanes *q) {
    const struct line line = find_line(steps, group, n);
    const int parts = factors->parts;
    float top[2] = {0, 0}, deep[2] = {0, 0}, d[2], m[2];
    for (int lane = 0; lane < LANE_COUNT; lane++) {
        const int s = lane / parts;
        top[s] = line.scale[lane] > top[s] ? line.scale[lane] : top[s];
        deep[s] = line.minimum[lane] > deep[s] ? line.minimum[lane] : deep[s];
    }
    *fit = (struct super_line){.f = all_lanes(0), .g = all_lanes(0), .error = {INFINITY, INFINITY}};
    /* The largest scale and minimum at the largest factor, or a little past it. */
    for (int i = 0; i < factors->tries * factors->tries; i++) {
        for (int s = 0; s < 2; s++) {
            d[s] = top[s] / ((float)factors->high + (float)(i % factors->tries));
            m[s] = deep[s] / ((float)factors->high + (float)(i / factors->tries));
        }
        try_pair(steps, factors, group, n, d, m, line.scale, line.minimum, fit);
    }
    for (int pass = 0; pass < 3; pass++) {
        const lanes scale = spread_halves(fit->d, group->unit, parts) * fit->f;
        const lanes minimum = spread_halves(fit->m, group->unit, parts) * fit->g;
        refit_pair(steps, factors, group, n, fit, d, m);
        try_pair(steps, factors, group, n, d, m, scale, minimum, fit);
    }
    const lanes spread_d = spread_halves(fit->d, group->unit, parts);
    const lanes spread_m = spread_halves(fit->m, group->unit, parts);
    lanes xx, xy;
    codes_of_line(steps, group, n, spread_d * fit->f, spread_m * fit->g, q);
    sums_along(group, n, spread_d * fit->f, spread_m * fit->g, q, &xx, &xy);
    for (int s = 0; s < LANE_COUNT / parts; s++) {
        float all_xx = 0, all_xy = 0;
        for (int lane = s * parts; lane < (s + 1) * parts; lane++) {
            all_xx += xx[lane];
            all_xy += xy[lane];
        }
        const float gain = gain_of(all_xx, all_xy);
        fit->d[s] = half_of(spread_d[s * parts] * gain, group->unit[s * parts]);
        fit->m[s] = half_of(spread_m[s * parts] * gain, group->unit[s * parts]);
    }
}

#endif
