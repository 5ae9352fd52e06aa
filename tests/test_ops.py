"""Every operation against its formula in float64.

Tolerances come from a model of rounding, stated at each test: UNIT is the relative error of one float32
rounding, and a sum of n terms in an order of depth d is off by at most about d * UNIT times the sum of
magnitudes. TINY covers results that round below the smallest normal float. docs/NUMERICS.md lists the orders.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oplib import F16, F32, KV_DTYPE, TINY, UNIT, OpError, Ops
from oplib import encode_q8, exact_values, formats, pad, random_weights, rope_table, row_multiple

FORMATS = formats()
SEEDS = st.integers(0, 2**32 - 1)
# Rows of every kind that a float32 allows: ordinary, of very different sizes, near both ends, and zero.
PROFILES = st.sampled_from(["normal", "wide", "huge", "tiny", "zero"])
EXTRA = st.integers(0, 3)  # how much a stride is larger than its row
given_settings = settings(deadline=None, max_examples=60)


@pytest.fixture(scope="module")
def ops() -> Iterator[Ops]:
    with Ops(threads=2) as opened:
        yield opened


def rows(rng: np.random.Generator, shape: tuple[int, ...], profile: str) -> np.ndarray:
    x = rng.standard_normal(shape)
    if profile == "wide":
        x *= 10.0 ** rng.uniform(-12, 12, shape)
    if profile == "zero":
        x *= rng.integers(0, 2, (*shape[:-1], 1))
    return (x * {"huge": 1e15, "tiny": 1e-40}.get(profile, 1.0)).astype(np.float32)


def f64(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


def assert_within(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    """|got - want| <= bound everywhere; on failure the worst place with its numbers."""
    error = np.abs(f64(got) - want)
    over = ~(error <= bound)
    if over.any():
        at = np.unravel_index(np.argmax(np.where(over, error / np.maximum(bound, 1e-300), 0)), over.shape)
        pytest.fail(
            f"{over.sum()} of {over.size} over; at {at}: {got[at]!r}, not {want[at]!r} +- {bound[at]!r}"
        )


def depth(count: int) -> int:
    """Roundings that a term of glm52_dot_f32 may pass: its product, its partial sum of 16, four halvings."""
    return count // 16 + 6


# ---- embed ----


@pytest.mark.parametrize("name", FORMATS)
def test_embed_gathers_exact_rows(ops: Ops, name: str) -> None:
    kind, rng = FORMATS[name], np.random.default_rng(FORMATS[name])
    hidden, vocab = 3 * row_multiple(kind), 11
    table = random_weights(rng, kind, (vocab, hidden))
    ids = np.array([0, 10, 3, 3, 7, 1, 0], np.int32)
    got = ops.embed(ids, table, kind, hidden, vocab)
    assert np.array_equal(got, exact_values(kind, table)[ids].astype(np.float32))


# ---- rms_norm ----


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 70),
    PROFILES,
    EXTRA,
    st.floats(2.0**-40, 1.0, width=32),
)
def test_rms_norm_is_its_formula(
    ops: Ops, seed: int, count: int, size: int, profile: str, extra: int, epsilon: float
) -> None:
    rng = np.random.default_rng(seed)
    x = pad(rows(rng, (count, size), profile), extra)
    weight = rows(rng, (size,), "normal")
    out = pad(np.zeros((count, size), np.float32), extra)
    got = ops.rms_norm(x, weight, epsilon, out)
    want = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + np.float32(epsilon)) * f64(weight)
    # Double to the end: one rounding, and a double's for the sum.
    assert_within(got, want, 1.001 * UNIT * np.abs(want) + TINY)
    assert np.isnan(out.base[:, size:]).all()

    in_place = ops.rms_norm(x, weight, epsilon, x)
    assert np.array_equal(in_place, got)


# ---- rope ----


@given_settings
@given(SEEDS, st.integers(1, 7), st.integers(1, 5), st.integers(1, 33), PROFILES, EXTRA)
def test_rope_is_its_formula(
    ops: Ops, seed: int, count: int, heads: int, pairs: int, profile: str, extra: int
) -> None:
    rng = np.random.default_rng(seed)
    x = pad(rows(rng, (count, heads, 2 * pairs), profile), extra)
    table = rope_table(rng.integers(0, 1 << 20, count), 2 * pairs)
    before = f64(x)
    a, b = before[..., 0::2], before[..., 1::2]
    c, s = f64(table[:, None, 0::2]), f64(table[:, None, 1::2])
    got = ops.rope(x, table)
    # Two products, one sum: at most two roundings on the way of each.
    bound = 2.001 * UNIT * (np.abs(a * c) + np.abs(b * s)) + 3 * TINY
    assert_within(got[..., 0::2], a * c - b * s, bound)
    bound = 2.001 * UNIT * (np.abs(b * c) + np.abs(a * s)) + 3 * TINY
    assert_within(got[..., 1::2], b * c + a * s, bound)
    assert np.isnan(x.base[..., 2 * pairs :]).all()


def test_rope_keeps_dot_products_of_equal_distance(ops: Ops) -> None:
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 1, 1, 64)).astype(np.float32)

    def product(q_position: int, k_position: int) -> float:
        turned = [
            ops.rope(x.copy(), rope_table(np.array([position]), 64))
            for x, position in ((q, q_position), (k, k_position))
        ]
        return float(np.sum(f64(turned[0]) * f64(turned[1])))

    # An angle below 200000 rounds to a float32 cosine: 64 values of about 1, each off by a few roundings.
    assert abs(product(100, 93) - product(100000, 99993)) < 64 * 8 * UNIT * 10


# ---- matmul ----


def matmul_bound(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Of glm52_dot_f32: each term passes depth(n) roundings; a product may fall below the smallest float."""
    n = x.shape[-1]
    return 1.01 * depth(n) * UNIT * np.einsum("rgi,goi->rgo", np.abs(x), np.abs(w)) + n * TINY


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 70),
    PROFILES,
    EXTRA,
    st.booleans(),
)
def test_matmul_of_floats_is_its_formula(
    ops: Ops, seed: int, count: int, groups: int, outs: int, size: int, profile: str, extra: int, exact: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = pad(rows(rng, (count, groups, size), profile), extra)
    out = pad(np.zeros((count, groups, outs), np.float32), extra)
    for name in ("F32", "F16", "BF16"):
        weights = random_weights(rng, FORMATS[name], (groups, outs, size))
        w = exact_values(FORMATS[name], weights)
        got = ops.matmul(x, weights, FORMATS[name], exact, out)
        assert_within(got, np.einsum("rgi,goi->rgo", f64(x), w), matmul_bound(f64(x), w))
        assert np.isnan(out.base[..., outs:]).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 33])
def test_matmul_exact_is_its_formula(ops: Ops, name: str, count: int) -> None:
    kind = FORMATS[name]
    rng = np.random.default_rng([kind, count])
    size = 2 * row_multiple(kind) + (32 if row_multiple(kind) == 32 else 0)
    weights = random_weights(rng, kind, (2, 13, size))
    w = exact_values(kind, weights)
    for profile in ("normal", "wide", "huge", "tiny", "zero"):
        x = rows(rng, (count, 2, size), profile)
        got = ops.matmul(x, weights, kind, True)
        assert_within(got, np.einsum("rgi,goi->rgo", f64(x), w), matmul_bound(f64(x), w))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("count", [1, 2, 3, 7, 33])
def test_matmul_default_multiplies_encoded_rows(ops: Ops, name: str, count: int) -> None:
    """The default mode is the exact product with rows of 8-bit activations."""
    kind = FORMATS[name]
    rng = np.random.default_rng([kind, count, 1])
    size = 2 * row_multiple(kind) + (32 if row_multiple(kind) == 32 else 0)
    size += -size % 32
    weights = random_weights(rng, kind, (2, 13, size))
    w = exact_values(kind, weights)
    for profile in ("normal", "wide", "zero"):
        x = rows(rng, (count, 2, size), profile)
        seen = f64(x) if name in ("F32", "F16", "BF16") else encode_q8(x)
        got = ops.matmul(x, weights, kind, False)
        # A weight is a step times a code, less a minimum, each at most twice the largest weight of the row; a
        # block's term passes 4 roundings, its partial sum of 8 the rest.
        step = 3 * np.abs(w).max(-1, keepdims=True) + np.zeros_like(w)
        bound = 1.01 * (size // 256 + 10) * UNIT * np.einsum("rgi,goi->rgo", np.abs(seen), step)
        if name in ("F32", "F16", "BF16"):  # multiplied as they are, in both modes
            bound = matmul_bound(f64(x), w)
        assert_within(got, np.einsum("rgi,goi->rgo", seen, w), bound)


def realistic_rows(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Hidden states as models have them: Gaussian, channels of log-normal scale, some channels 10 times as
    large."""
    channel = np.exp(0.5 * rng.standard_normal(size))
    channel[rng.choice(size, size // 512, replace=False)] *= 10
    return (rng.standard_normal((count, 1, size)) * channel).astype(np.float32)


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("F32", "F16", "BF16")])
def test_matmul_default_is_within_a_hundredth_of_exact(
    ops: Ops, name: str, record_property: Callable[[str, object], None]
) -> None:
    """Rounding to a step gives an error of variance step^2 / 12. Weights of mean 0 that know nothing of the
    rows carry values and errors alike to the result, so its relative error is that of the row. Both the bound
    that is promised and the model behind it must hold: an error of another kind would not be of the predicted
    size."""
    kind, rng = FORMATS[name], np.random.default_rng([FORMATS[name], 7])
    x = realistic_rows(rng, 128, 2048)
    weights = random_weights(rng, kind, (1, 128, 2048))
    exact = f64(ops.matmul(x, weights, kind, True))
    error = f64(ops.matmul(x, weights, kind, False)) - exact
    relative = float(np.sqrt((error**2).mean() / (exact**2).mean()))
    step = np.abs(f64(x)).reshape(-1, 32).max(-1) / 127
    predicted = float(np.sqrt(32 * (step**2).sum() / 12 / (f64(x) ** 2).sum()))
    record_property("relative_rms", relative)
    assert relative <= 0.01
    # 128 x 128 results, a tenth of the rows' energy in few channels: the ratio itself scatters by some
    # percent.
    assert 0.85 * predicted <= relative <= 1.15 * predicted


def test_matmul_keeps_nan_and_infinity_in_sight(ops: Ops) -> None:
    """A row with a value that is none must not come out as if it were fine, in either mode."""
    rng = np.random.default_rng(3)
    weights = random_weights(rng, FORMATS["Q8_0"], (1, 4, 64))
    for bad in (np.nan, np.inf, -np.inf):
        x = np.ones((2, 1, 64), np.float32)
        x[0, 0, 40] = bad
        for exact in (False, True):
            got = ops.matmul(x, weights, FORMATS["Q8_0"], exact)
            assert not np.isfinite(got[0]).any()
            assert np.isfinite(got[1]).all()


# ---- kv_store ----


def half_bound(want: np.ndarray, kv_type: int, before: np.ndarray) -> np.ndarray:
    """Rounding to the cache's type, behind an error of before."""
    if kv_type == F32:
        return before
    return before + 2.0**-11 * (np.abs(want) + before) + 2.0**-25


def rotated(x: np.ndarray, table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x turned by table, and the magnitudes that its rounding is relative to."""
    a, b, c, s = x[:, 0::2], x[:, 1::2], f64(table[:, 0::2]), f64(table[:, 1::2])
    want, size = np.empty_like(x), np.empty_like(x)
    want[:, 0::2], want[:, 1::2] = a * c - b * s, b * c + a * s
    size[:, 0::2], size[:, 1::2] = np.abs(a * c) + np.abs(b * s), np.abs(b * c) + np.abs(a * s)
    return want, size


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 5),
    st.sampled_from([F16, F32]),
    st.sampled_from(["normal", "tiny", "zero"]),
    EXTRA,
)
def test_kv_store_writes_norm_and_rotation(
    ops: Ops,
    seed: int,
    count: int,
    latent: int,
    pairs: int,
    position: int,
    kv_type: int,
    profile: str,
    extra: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = pad(rows(rng, (count, latent + 2 * pairs), profile), extra)
    weight, epsilon = rows(rng, (latent,), "normal"), 1e-5
    table = rope_table(position + np.arange(count), 2 * pairs)
    cache = np.full((position + count + 2, latent + 2 * pairs), 7, KV_DTYPE[kv_type])
    ops.kv_store(cache, x, weight, table, position, epsilon)

    c = f64(x[:, :latent])
    want = c / np.sqrt((c**2).mean(-1, keepdims=True) + np.float32(epsilon)) * f64(weight)
    written = cache[position : position + count]
    assert_within(written[:, :latent], want, half_bound(want, kv_type, 1.001 * UNIT * np.abs(want) + TINY))
    want, size = rotated(f64(x[:, latent:]), table)
    assert_within(written[:, latent:], want, half_bound(want, kv_type, 2.001 * UNIT * size + 3 * TINY))
    assert (cache[:position] == 7).all() and (cache[position + count :] == 7).all()


# ---- index_store ----


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 20),
    st.integers(0, 20),
    st.integers(0, 5),
    st.sampled_from([F16, F32]),
    st.sampled_from([0.0, 1.0, 1e4]),
    EXTRA,
)
def test_index_store_writes_layer_norm_and_rotation(
    ops: Ops,
    seed: int,
    count: int,
    pairs: int,
    rest: int,
    position: int,
    kv_type: int,
    mean: float,
    extra: int,
) -> None:
    rng = np.random.default_rng(seed)
    size, epsilon = 2 * pairs + rest, 1e-6
    x = pad((rng.standard_normal((count, size)) + mean).astype(np.float32), extra)
    weight, bias = rows(rng, (size,), "normal"), rows(rng, (size,), "normal")
    table = rope_table(position + np.arange(count), 2 * pairs)
    cache = np.full((position + count + 2, size), 7, KV_DTYPE[kv_type])
    ops.index_store(cache, x, weight, bias, table, position, epsilon)

    centred = f64(x) - f64(x).mean(-1, keepdims=True)
    factor = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(epsilon))
    want = centred * factor * f64(weight) + f64(bias)
    # One rounding of the result; the mean is off by a double's rounding of the largest value.
    before = (
        UNIT * np.abs(want) + 8 * 2.0**-53 * (np.abs(x).max(-1, keepdims=True) * factor + 1) * size + TINY
    )
    turned, magnitude = rotated(want[:, : 2 * pairs], table)
    _, carried = rotated(before[:, : 2 * pairs], np.ones_like(table))
    want[:, : 2 * pairs] = turned
    before[:, : 2 * pairs] = carried + 2.001 * UNIT * magnitude + 3 * TINY
    written = cache[position : position + count]
    assert_within(written, want, half_bound(want, kv_type, 1.01 * before))
    assert (cache[:position] == 7).all() and (cache[position + count :] == 7).all()


# ---- index_score ----


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(0, 70),
    st.sampled_from([F16, F32]),
    PROFILES,
    EXTRA,
)
def test_index_score_is_its_formula(
    ops: Ops,
    seed: int,
    count: int,
    heads: int,
    size: int,
    position: int,
    kv_type: int,
    profile: str,
    extra: int,
) -> None:
    rng = np.random.default_rng(seed)
    q = pad(rows(rng, (count, heads * size), profile), extra)
    q = np.lib.stride_tricks.as_strided(q, (count, heads, size), (q.strides[0], 4 * size, 4))
    weights = pad(rows(rng, (count, heads), "normal"), extra)
    cache = rng.standard_normal((position + count, size)).astype(KV_DTYPE[kv_type])
    scale = np.float32(0.1)
    got = ops.index_score(q, weights, cache, position, float(scale), position + count + extra)

    dot = np.einsum("rhi,si->rhs", f64(q), f64(cache))
    magnitude = np.einsum("rhi,si->rhs", np.abs(f64(q)), np.abs(f64(cache)))
    want = np.einsum("rh,rhs->rs", f64(weights), np.maximum(dot * scale, 0))
    # A dot product, the scale, the weight, and a sum over heads.
    total = np.einsum("rh,rhs->rs", np.abs(f64(weights)), magnitude * scale)
    bound = 1.01 * (depth(size) + 2 + heads) * UNIT * total + heads * (size + 4) * TINY * (
        1 + np.abs(weights).max()
    )
    for r in range(count):
        seen = position + r + 1
        assert_within(got[r, :seen], want[r, :seen], bound[r, :seen])
        assert np.isnan(got[r, seen:]).all()


# ---- top_k ----


def top_k_reference(scores: np.ndarray, k: int) -> list[int]:
    def rank(s: int) -> tuple[bool, float, int]:
        return (bool(np.isnan(scores[s])), 0.0 if np.isnan(scores[s]) else -float(scores[s]), s)

    return sorted(sorted(range(len(scores)), key=rank)[:k])


@given_settings
@given(
    SEEDS,
    st.integers(1, 40),
    st.integers(0, 120),
    st.integers(1, 9),
    EXTRA,
    st.sampled_from(["normal", "wide", "tiny", "ties", "zeros", "special", "nan", "neighbours"]),
)
def test_top_k_is_a_sort_by_score_then_position(
    ops: Ops, seed: int, k: int, position: int, count: int, extra: int, profile: str
) -> None:
    rng = np.random.default_rng(seed)
    shape = (count, position + count)
    if profile in ("normal", "wide", "tiny"):
        scores = rows(rng, shape, profile)
    else:
        numbers = {
            "ties": np.array([-1.5, 0.25, 0.25, 3.0]),
            "zeros": np.array([0.0, -0.0]),
            "special": np.array(
                [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38]
            ),
            "nan": np.array([np.nan]),
            "neighbours": np.float32(1) + 2.0**-23 * np.arange(5),
        }[profile]
        scores = rng.choice(numbers, shape).astype(np.float32)
    got = ops.top_k(pad(scores, extra), count, position, k)
    for r in range(count):
        seen = position + r + 1
        want = top_k_reference(scores[r, :seen], k)
        assert got[r, : len(want)].tolist() == want
        assert (got[r, len(want) :] == -1).all()


@pytest.mark.parametrize("k", [1, 2, 8, 32, 2048])
def test_top_k_at_the_boundary_of_dense_and_sparse(ops: Ops, k: int) -> None:
    rng = np.random.default_rng(k)
    for visible in (k - 1, k, k + 1, 8 * k):
        if visible == 0:
            continue
        scores = rng.standard_normal((1, visible)).astype(np.float32)
        got = ops.top_k(scores, 1, visible - 1, k)[0]
        order = np.lexsort((np.arange(visible), -scores[0]))[:k]
        assert got[: min(k, visible)].tolist() == sorted(order.tolist())
        if visible <= k:  # nothing to choose: no scores are needed
            assert np.array_equal(ops.top_k(None, 1, visible - 1, k)[0], got)


# ---- attention ----


def attention_reference(
    q_latent: np.ndarray, q_rope: np.ndarray, cache: np.ndarray, chosen: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """One row [heads, latent] over the cache rows chosen, and its bound.

    A score is off by delta = scale * (roundings of a dot product) * (sum of magnitudes); its exponential,
    with the rounding of score - max and 1 ulp of exp itself, by a factor 1 + epsilon; a mean with weights off
    by epsilon is off by 2 * epsilon of its magnitudes, and its sum over s by a rounding per row."""
    latent = q_latent.shape[1]
    c, kr = cache[chosen, :latent], cache[chosen, latent:]
    score = scale * (q_latent @ c.T + q_rope @ kr.T)
    size = np.abs(scale) * (np.abs(q_latent) @ np.abs(c).T + np.abs(q_rope) @ np.abs(kr).T)
    span = score.max(-1, keepdims=True) - score
    p = np.exp(-span)
    p /= p.sum(-1, keepdims=True)
    delta = (depth(latent) + 3) * UNIT * size
    epsilon = (delta + delta.max(-1, keepdims=True) + UNIT * span + 4 * UNIT) * 1.01
    magnitude = np.abs(c)
    bound = (p * epsilon) @ magnitude + (p * epsilon).sum(-1, keepdims=True) * (p @ magnitude)
    bound += (len(chosen) + 4) * UNIT * (p @ magnitude)
    return p @ c, 1.05 * bound + len(chosen) * TINY


def check_attention(
    ops: Ops,
    rng: np.random.Generator,
    count: int,
    heads: int,
    latent: int,
    pairs: int,
    position: int,
    k: int,
    kv_type: int,
    extra: int = 0,
    spread: float = 1.0,
) -> None:
    q = pad((spread * rng.standard_normal((count, heads, latent + 2 * pairs))).astype(np.float32), extra)
    cache = rng.standard_normal((position + count, latent + 2 * pairs)).astype(KV_DTYPE[kv_type])
    scores = rng.standard_normal((count, position + count)).astype(np.float32)
    selected = ops.top_k(scores, count, position, k)
    out = pad(np.zeros((count, heads, latent), np.float32), extra)
    scale = float(np.float32((latent + 2 * pairs) ** -0.5))
    got = ops.attention(q[..., :latent], q[..., latent:], cache, selected, position, k, scale, out)
    assert np.isnan(out.base[..., latent:]).all()
    for r in range(count):
        chosen = selected[r, : min(k, position + r + 1)]
        want, bound = attention_reference(
            f64(q[r, :, :latent]), f64(q[r, :, latent:]), f64(cache), chosen, scale
        )
        assert_within(got[r], want, bound)


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 5),
    st.integers(1, 40),
    st.integers(1, 9),
    st.integers(0, 60),
    st.integers(1, 40),
    st.sampled_from([F16, F32]),
    EXTRA,
    st.sampled_from([0.0, 1.0, 50.0]),
)
def test_attention_is_its_formula(
    ops: Ops,
    seed: int,
    count: int,
    heads: int,
    latent: int,
    pairs: int,
    position: int,
    k: int,
    kv_type: int,
    extra: int,
    spread: float,
) -> None:
    rng = np.random.default_rng(seed)
    check_attention(ops, rng, count, heads, latent, pairs, position, k, kv_type, extra, spread)


@pytest.mark.parametrize("k", [1, 8, 128])
def test_attention_at_the_boundary_of_dense_and_sparse(ops: Ops, k: int) -> None:
    rng = np.random.default_rng(k)
    for visible in (k - 1, k, k + 1, 8 * k):
        if visible > 0:
            check_attention(ops, rng, 1, 4, 64, 8, visible - 1, k, F16)
    check_attention(ops, rng, 5, 4, 64, 8, max(0, k - 3), k, F32)  # a batch across the boundary


def test_attention_with_one_far_larger_score_takes_that_row(ops: Ops) -> None:
    cache = np.zeros((4, 34), np.float32)
    cache[:, :32] = np.arange(4)[:, None] + 1
    cache[2, 32] = 1000
    q_rope = np.array([[[1, 0]]], np.float32)
    selected = np.arange(4, dtype=np.int32)[None]
    got = ops.attention(np.zeros((1, 1, 32), np.float32), q_rope, cache, selected, 3, 4, 1.0)
    assert (got == 3).all()


# ---- router ----


def router_reference(
    logits: np.ndarray, bias: np.ndarray, used: int, scale: float, normalise: bool
) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(over="ignore"):
        p = 1 / (1 + np.exp(-f64(logits)))
    choice = p + f64(bias)
    ids = np.lexsort((np.broadcast_to(np.arange(choice.shape[1]), choice.shape), -choice), axis=-1)[:, :used]
    weights = np.take_along_axis(p, ids, -1)
    if normalise:
        weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
    return ids, weights * np.float32(scale)


@given_settings
@given(
    SEEDS,
    st.sampled_from([1, 2, 3, 7, 33]),
    st.integers(1, 70),
    st.integers(1, 9),
    st.booleans(),
    EXTRA,
    st.sampled_from(["normal", "ties", "saturated"]),
)
def test_router_is_its_formula(
    ops: Ops, seed: int, count: int, experts: int, used: int, normalise: bool, extra: int, profile: str
) -> None:
    rng = np.random.default_rng(seed)
    used = min(used, experts)
    logits = rng.standard_normal((count, experts))
    bias = rng.uniform(-0.3, 0.3, experts).astype(np.float32)
    if profile == "ties":
        logits, bias = np.round(logits), rng.choice([0.0, 0.5], experts).astype(np.float32)
    if profile == "saturated":
        logits, bias = logits * 1000, np.zeros(experts, np.float32)
    logits = pad(logits.astype(np.float32), extra)
    ids, weights = ops.router(logits, bias, used, 2.5, normalise)
    want_ids, want_weights = router_reference(logits, bias, used, 2.5, normalise)
    assert np.array_equal(ids, want_ids)
    # Double to the end: one rounding.
    assert_within(weights, want_weights, 1.001 * UNIT * np.abs(want_weights) + TINY)


def test_router_puts_nan_behind_every_number(ops: Ops) -> None:
    logits = np.array([[np.nan, 0, np.nan, -np.inf, 1, np.nan]], np.float32)
    bias = np.zeros(6, np.float32)
    ids, weights = ops.router(logits, bias, 6, 1.0, False)
    assert ids.tolist() == [[4, 1, 3, 0, 2, 5]]
    assert weights[0, 2] == 0 and np.isnan(weights[0, 3:]).all()


# ---- swiglu ----


@given_settings
@given(SEEDS, st.sampled_from([1, 2, 3, 7, 33]), st.integers(1, 70), PROFILES, EXTRA)
def test_swiglu_is_its_formula(ops: Ops, seed: int, count: int, size: int, profile: str, extra: int) -> None:
    rng = np.random.default_rng(seed)
    gate, up = pad(rows(rng, (count, size), profile), extra), pad(rows(rng, (count, size), "normal"), extra)
    check_swiglu(ops, gate, up)


def check_swiglu(ops: Ops, gate: np.ndarray, up: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        silu = f64(gate) / (1 + np.exp(-f64(gate)))
    want = silu * f64(up)
    # exp is within 1 ulp (2 UNIT); adding 1, dividing, two products: one rounding each.
    bound = 6.1 * UNIT * np.abs(want) + TINY * (2 + np.abs(gate) + np.abs(up) + np.abs(f64(gate) * up))
    got = ops.swiglu(gate, up)
    assert_within(got, want, bound)
    for out in (gate.copy(), up.copy()):
        operands = (out, up) if np.array_equal(out, gate) else (gate, out)
        assert np.array_equal(ops.swiglu(*operands, out), got)


def test_swiglu_over_the_whole_range_of_exp(ops: Ops) -> None:
    """Through exp's underflow, subnormal results, every remainder of the reduction, and its ends."""
    gate = np.concatenate(
        [
            np.linspace(-110, 110, 400001),
            np.array([0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, -103.97, -87.34, 88.73]),
        ]
    ).astype(np.float32)
    check_swiglu(ops, gate[None], np.ones((1, len(gate)), np.float32))


# ---- moe ----


def random_experts(
    rng: np.random.Generator, count: int, kinds: tuple[int, int, int], size: int, ff: int
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    shapes = ((ff, size), (ff, size), (size, ff))
    return [
        tuple(random_weights(rng, kind, shape) for kind, shape in zip(kinds, shapes)) for _ in range(count)
    ]


def distinct_ids(rng: np.random.Generator, count: int, experts: int, used: int) -> np.ndarray:
    return np.stack([rng.permutation(experts)[:used] for _ in range(count)]).astype(np.int32)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 33])
@pytest.mark.parametrize("names", [("F32", "F32", "F32"), ("Q8_0", "Q4_0", "F16"), ("Q4_K", "Q8_0", "Q5_1")])
def test_moe_exact_is_its_formula(ops: Ops, names: tuple[str, str, str], count: int) -> None:
    rng = np.random.default_rng(count)
    kinds = tuple(FORMATS[name] for name in names)
    size, ff, used = 256, 96, 3
    experts = random_experts(rng, 7, kinds, size, ff)
    x = (0.1 * rng.standard_normal((count, size))).astype(np.float32)
    ids = distinct_ids(rng, count, 7, used)
    weights = rng.uniform(0, 1, (count, used)).astype(np.float32)
    start = rng.standard_normal((count, size)).astype(np.float32)
    got = ops.moe(x, ids, weights, experts, kinds, ff, True, start.copy())

    want, bound = f64(start), np.zeros((count, size))
    magnitude = np.abs(f64(start))
    for r in range(count):
        for j, e in enumerate(ids[r]):
            gate, up, down = (exact_values(kind, matrix) for kind, matrix in zip(kinds, experts[e]))
            g, u = gate @ f64(x[r]), up @ f64(x[r])
            g_error = depth(size) * UNIT * (np.abs(gate) @ np.abs(f64(x[r])))
            u_error = depth(size) * UNIT * (np.abs(up) @ np.abs(f64(x[r])))
            silu = g / (1 + np.exp(-g))
            # silu is no steeper than 1.1; see test_swiglu for its own roundings.
            h = silu * u
            h_error = 1.1 * g_error * (np.abs(u) + u_error) + np.abs(silu) * u_error + 6.1 * UNIT * np.abs(h)
            y_size = np.abs(down) @ np.abs(h)
            want[r] += weights[r, j] * (down @ h)
            bound[r] += weights[r, j] * (np.abs(down) @ h_error + (depth(ff) + 1) * UNIT * y_size)
            magnitude[r] += weights[r, j] * y_size
    assert_within(got, want, 1.01 * bound + used * UNIT * magnitude)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("count", [1, 3, 33])
@pytest.mark.parametrize("names", [("Q4_K", "Q8_0", "Q8_0"), ("IQ2_XXS", "Q2_K", "Q8_0")])
def test_moe_is_its_parts_to_the_bit(ops: Ops, names: tuple[str, str, str], exact: bool, count: int) -> None:
    """Each expert by matmul and swiglu, added up in the order of expert ids; duplicates in the order of the
    list. Gate and up of types that take activations in the same order, and of such that do not."""
    rng = np.random.default_rng(count)
    kinds, size, ff, used = tuple(FORMATS[name] for name in names), 256, 96, 4
    experts = random_experts(rng, 9, kinds, size, ff)
    x = pad(rng.standard_normal((count, size)).astype(np.float32), 5)
    ids = rng.integers(0, 9, (count, used)).astype(np.int32)  # also twice the same
    weights = rng.standard_normal((count, used)).astype(np.float32)
    got = ops.moe(x, ids, weights, experts, kinds, ff, exact)

    want = np.zeros((count, size), np.float32)
    for r in range(count):
        for j in np.argsort(ids[r], kind="stable"):
            gate, up, down = experts[ids[r, j]]
            g = ops.matmul(x[r][None, None], gate[None], kinds[0], exact)[:, 0]
            u = ops.matmul(x[r][None, None], up[None], kinds[1], exact)[:, 0]
            y = ops.matmul(ops.swiglu(g, u)[:, None], down[None], kinds[2], exact)[0, 0]
            want[r] += weights[r, j] * y
    assert np.array_equal(got, want)


def test_moe_skips_experts_that_are_not_at_hand(ops: Ops) -> None:
    """With some NULL, then the others: the sum is that of all. With all NULL nothing is touched."""
    rng = np.random.default_rng(8)
    kinds, size, ff = (FORMATS["F32"],) * 3, 32, 16
    experts = random_experts(rng, 6, kinds, size, ff)
    x = rng.standard_normal((5, size)).astype(np.float32)
    ids, weights = distinct_ids(rng, 5, 6, 3), rng.uniform(0, 1, (5, 3)).astype(np.float32)
    want = ops.moe(x, ids, weights, experts, kinds, ff, True)
    first = [expert if e < 3 else None for e, expert in enumerate(experts)]
    last = [expert if e >= 3 else None for e, expert in enumerate(experts)]
    got = ops.moe(x, ids, weights, first, kinds, ff, True)
    assert not np.array_equal(got, want)
    assert np.array_equal(ops.moe(x, ids, weights, last, kinds, ff, True, got), want)
    assert np.array_equal(ops.moe(x, ids, weights, [None] * 6, kinds, ff, True, want.copy()), want)


# ---- add ----


@given_settings
@given(SEEDS, st.integers(1, 70), PROFILES, st.booleans())
def test_add_is_its_formula(ops: Ops, seed: int, size: int, profile: str, three: bool) -> None:
    rng = np.random.default_rng(seed)
    a, b, c = rows(rng, (3, size), profile)
    want = a + b + c if three else a + b  # numpy adds float32 in the same order
    third = c if three else None
    assert np.array_equal(ops.add(a, b, third), want)
    assert np.array_equal(ops.add(a, b, third, a), want)


# ---- refusals, as Python sees them (tests/native has them one by one) ----


def test_refusals_name_what_is_wrong(ops: Ops) -> None:
    x = np.ones((1, 1, 33), np.float32)
    with pytest.raises(OpError, match="unsupported: matmul: type 255 is not read; these are: F32, F16"):
        ops.matmul(x, np.zeros((1, 1, 33), np.uint8), 255, True)
    with pytest.raises(OpError, match="33 values are no multiple of the 32 in a block of Q8_0"):
        ops.matmul(x, np.zeros((1, 1, 34), np.uint8), FORMATS["Q8_0"], True)
    with pytest.raises(OpError, match="embed: ids.1. is 5; it must be from 0 to 4"):
        ops.embed(np.array([4, 5], np.int32), np.zeros((5, 4), np.float32), FORMATS["F32"], 4, 5)
    with pytest.raises(OpError, match='no backend "abacus"; it has cpu'):
        Ops(name="abacus")
    with pytest.raises(OpError, match="513 threads; at most 512"):
        Ops(threads=513)
