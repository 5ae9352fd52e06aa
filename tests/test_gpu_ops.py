"""Every kernel against its formula in float64, executed by the simulator, and by the one that looks at every access.

The formulas are those of test_ops.py. Bounds are of float32 arithmetic in the kernels' order: a sum is off by at
most its depth (roundings that a term passes) times UNIT times the sum of magnitudes. Shapes are the smallest that
reach every branch: tails, several groups, several passes of a loop, strides beyond a row."""

from collections.abc import Iterator

import gpulib
import numpy as np
import pytest
from gpulib import GpuOps
from hypothesis import given, settings
from hypothesis import strategies as st
from oplib import F16, F32, KV_DTYPE, TINY, UNIT, Ops, exact_values, formats, pad, random_weights, rope_table
from oplib import row_multiple
from test_ops import assert_within, f64, half_bound, rotated, rows, top_k_reference

FORMATS = formats()
SEEDS = st.integers(0, 2**32 - 1)
given_settings = settings(deadline=None, max_examples=12, derandomize=True)
# In order; and in two other orders of threads, stopping behind one access in a thousand.
SCHEDULES = {
    "sim": [(0, 0), (3, 0)], "simcheck": [(0, 0), (5, 1000), (11, 1000)], "cuda": [(0, 0)], "metal": [(0, 0)]
}
AT_HAND = [name for name in SCHEDULES if name in gpulib.backends()]
pytestmark = pytest.mark.skipif(not AT_HAND, reason="no simulator: make sim")
FTZ = 2.0**-126  # a device may take numbers below this for 0


@pytest.fixture(
    scope="module", params=[(name, *way) for name in AT_HAND for way in SCHEDULES[name]], ids=lambda p: f"{p[0]}-{p[1]}"
)
def gpu(request: pytest.FixtureRequest) -> Iterator[GpuOps]:
    name, seed, yield_ppm = request.param
    with GpuOps(name, seed, yield_ppm) as opened:
        yield opened


@pytest.fixture(scope="module")
def cpu() -> Iterator[Ops]:
    with Ops(1) as opened:
        yield opened


def sum_depth(count: int, threads: int) -> int:
    """Of a sum that threads take in turn: a thread's own, the simdgroup's, the simdgroups'."""
    return -(-count // threads) + 5 + 5


def row_threads(count: int) -> int:
    return 512 if count >= 2048 else 256 if count > 128 else 128 if count > 32 else 32


# ---- embed ----


@pytest.mark.parametrize("name", FORMATS)
def test_embed_gives_the_exact_values(gpu: GpuOps, name: str) -> None:
    kind, rng = FORMATS[name], np.random.default_rng(FORMATS[name])
    for hidden in (row_multiple(kind), 5 * row_multiple(kind) if row_multiple(kind) > 1 else 1031):
        table = random_weights(rng, kind, (5, hidden))
        ids = np.array([4, 0, 3, 3], np.int32)
        got = gpu.embed(ids, table, kind, hidden, 5)
        assert np.array_equal(got, exact_values(kind, table)[ids].astype(np.float32))


# ---- rms_norm ----


@pytest.mark.parametrize("size", [1, 31, 33, 129, 257, 2051])
@pytest.mark.parametrize("profile", ["normal", "huge", "tiny", "zero"])
def test_rms_norm_is_its_formula(gpu: GpuOps, size: int, profile: str) -> None:
    rng, epsilon = np.random.default_rng([size, len(profile)]), np.float32(1e-5)
    x = pad(rows(rng, (3, size), profile), size % 3)
    weight = rows(rng, (size,), "normal")
    out = pad(np.zeros((3, size), np.float32), 2)
    got = gpu.rms_norm(x, weight, float(epsilon), out)
    want = f64(x) / np.sqrt((f64(x) ** 2).mean(-1, keepdims=True) + epsilon) * f64(weight)
    # Half of the sum's relative error, its square's and division's, root, quotient, two products.
    bound = 1.01 * (sum_depth(size, row_threads(size)) / 2 + 5) * UNIT * np.abs(want) + 2 * FTZ
    assert_within(got, want, bound)
    assert np.isnan(out.base[:, size:]).all()
    assert np.array_equal(gpu.rms_norm(x, weight, float(epsilon), x), got)  # in place


# ---- rope ----


@pytest.mark.parametrize(("count", "heads", "pairs", "extra"), [(1, 1, 1, 0), (3, 5, 33, 2), (2, 9, 32, 0)])
def test_rope_has_the_bits_of_the_processor(
    gpu: GpuOps, cpu: Ops, count: int, heads: int, pairs: int, extra: int
) -> None:
    rng = np.random.default_rng(pairs)
    for profile in ("normal", "wide", "huge"):
        x = pad(rows(rng, (count, heads, 2 * pairs), profile), extra)
        table = rope_table(rng.integers(0, 1 << 20, count), 2 * pairs)
        want = cpu.rope(pad(x.copy(), extra), table)
        got = gpu.rope(x, table)
        assert np.array_equal(got, want)
        assert np.isnan(x.base[..., 2 * pairs :]).all()


# ---- matmul ----


def matmul_depth(size: int, count: int = 1) -> int:
    """Roundings on the way of a term. Up to 8 rows: within its set of at most 16, then 8 of each 512 that a lane adds,
    lanes, parts. More: every value of the row in turn, and three more for a product of CUDA's matrices, which is made
    of three."""
    return 16 + 8 * -(-size // 512) + 5 + 8 + 3 if count <= 8 else size + 6


def matmul_step(w: np.ndarray) -> np.ndarray:
    """What a weight is made of, at most so many times the largest of the row: a step times a code less a minimum, 3;
    where codes are written into fractions, 128 or 192 comes in and is taken out again: 10 (IQ2_XXS: 192 + 43 and 192
    for 43)."""
    return 10 * np.abs(w).max(-1, keepdims=True) + np.zeros_like(w)


@pytest.mark.parametrize("name", FORMATS)
def test_matmul_is_its_formula(gpu: GpuOps, name: str) -> None:
    kind = FORMATS[name]
    rng = np.random.default_rng([kind, 3])
    multiple = row_multiple(kind)
    for count, groups, outs, size, extra in ((1, 2, 5, multiple, 1), (2, 1, 33, 2 * multiple, 0), (3, 1, 3, 1056, 0),
                                             (9, 1, 33, 512, 4)):
        size = -(-size // multiple) * multiple
        weights = random_weights(rng, kind, (groups, outs, size))
        w = exact_values(kind, weights)
        x = pad(rows(rng, (count, groups, size), "normal"), extra)
        out = pad(np.zeros((count, groups, outs), np.float32), extra)
        got = gpu.matmul(x, weights, kind, True, out)
        magnitude = np.einsum("rgi,goi->rgo", np.abs(f64(x)), matmul_step(w))
        bound = 1.01 * matmul_depth(size, count) * UNIT * magnitude + size * FTZ
        assert_within(got, np.einsum("rgi,goi->rgo", f64(x), w), bound)
        assert np.isnan(out.base[..., outs:]).all() or extra == 0


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K"])
def test_matmul_of_rows_longer_than_what_is_staged(gpu: GpuOps, name: str) -> None:
    """4096 values of one row, 2048 of two wait in threadgroup memory; then it is written again."""
    kind, rng = FORMATS[name], np.random.default_rng(12)
    weights = random_weights(rng, kind, (1, 3, 4352))
    w = exact_values(kind, weights)
    for count in (1, 2):
        x = rows(rng, (count, 1, 4352), "normal")
        magnitude = np.einsum("rgi,goi->rgo", np.abs(f64(x)), matmul_step(w))
        bound = 1.01 * matmul_depth(4352, count) * UNIT * magnitude
        assert_within(gpu.matmul(x, weights, kind, True), np.einsum("rgi,goi->rgo", f64(x), w), bound)


@pytest.mark.parametrize("profile", ["wide", "huge", "tiny", "zero"])
def test_matmul_of_extreme_rows(gpu: GpuOps, profile: str) -> None:
    rng = np.random.default_rng(len(profile))
    for name in ("F32", "Q8_0", "Q4_K", "IQ2_XXS"):
        kind = FORMATS[name]
        weights = random_weights(rng, kind, (1, 9, 512))
        w = exact_values(kind, weights)
        x = rows(rng, (2, 1, 512), profile)
        magnitude = np.einsum("rgi,goi->rgo", np.abs(f64(x)), matmul_step(w))
        bound = 1.01 * matmul_depth(512) * UNIT * magnitude + 512 * FTZ
        assert_within(gpu.matmul(x, weights, kind, True), np.einsum("rgi,goi->rgo", f64(x), w), bound)


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_K", "Q6_K", "IQ2_XXS"])
def test_matmul_gives_a_row_the_same_bits_in_any_company(gpu: GpuOps, name: str) -> None:
    """What makes a verified draft equal to decoding."""
    kind, rng = FORMATS[name], np.random.default_rng(9)
    weights = random_weights(rng, kind, (1, 11, 1024))
    x = rng.standard_normal((9, 1, 1024)).astype(np.float32)
    alone = np.concatenate([gpu.matmul(x[r : r + 1], weights, kind, True) for r in range(9)])
    for count in (2, 3, 5, 8):
        assert np.array_equal(gpu.matmul(x[:count], weights, kind, True), alone[:count]), count


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q2_K"])
def test_matmul_gives_a_row_of_a_batch_the_same_bits_in_any_batch(gpu: GpuOps, name: str) -> None:
    kind, rng = FORMATS[name], np.random.default_rng(10)
    weights = random_weights(rng, kind, (1, 70, 256))
    x = rng.standard_normal((67, 1, 256)).astype(np.float32)
    whole = gpu.matmul(x, weights, kind, True)
    assert np.array_equal(gpu.matmul(x[58:], weights, kind, True), whole[58:])
    assert np.array_equal(gpu.matmul(x[:64], weights[:, :9], kind, True), whole[:64, :, :9])


# ---- kv_store, index_store ----


@pytest.mark.parametrize(("latent", "pairs"), [(1, 1), (40, 3), (64, 70), (512, 32)])
@pytest.mark.parametrize("kv_type", [F16, F32])
def test_kv_store_writes_norm_and_rotation(gpu: GpuOps, latent: int, pairs: int, kv_type: int) -> None:
    rng, epsilon, count, position = np.random.default_rng(latent), 1e-5, 3, 2
    x = pad(rows(rng, (count, latent + 2 * pairs), "normal"), 3)
    weight = rows(rng, (latent,), "normal")
    table = rope_table(position + np.arange(count), 2 * pairs)
    cache = np.full((position + count + 2, latent + 2 * pairs), 7, KV_DTYPE[kv_type])
    gpu.kv_store(cache, x, weight, table, position, epsilon)
    c = f64(x[:, :latent])
    want = c / np.sqrt((c**2).mean(-1, keepdims=True) + np.float32(epsilon)) * f64(weight)
    before = 1.01 * (sum_depth(latent, row_threads(latent)) / 2 + 5) * UNIT * np.abs(want) + FTZ
    written = cache[position : position + count]
    assert_within(written[:, :latent], want, half_bound(want, kv_type, before))
    want, size = rotated(f64(x[:, latent:]), table)
    assert_within(written[:, latent:], want, half_bound(want, kv_type, 2.001 * UNIT * size + FTZ))
    assert (cache[:position] == 7).all() and (cache[position + count :] == 7).all()


@pytest.mark.parametrize(("pairs", "rest"), [(1, 0), (9, 3), (32, 64), (40, 200)])
@pytest.mark.parametrize("kv_type", [F16, F32])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_index_store_writes_layer_norm_and_rotation(
    gpu: GpuOps, pairs: int, rest: int, kv_type: int, mean: float
) -> None:
    rng, count, position, epsilon = np.random.default_rng(pairs), 3, 2, 1e-6
    size = 2 * pairs + rest
    x = pad((rng.standard_normal((count, size)) + mean).astype(np.float32), 3)
    weight, bias = rows(rng, (size,), "normal"), rows(rng, (size,), "normal")
    table = rope_table(position + np.arange(count), 2 * pairs)
    cache = np.full((position + count + 2, size), 7, KV_DTYPE[kv_type])
    gpu.index_store(cache, x, weight, bias, table, position, epsilon)
    centred = f64(x) - f64(x).mean(-1, keepdims=True)
    factor = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + np.float32(epsilon))
    want = centred * factor * f64(weight) + f64(bias)
    # The mean is off by its depth of the mean magnitude; every centred value with it, and the variance by twice that.
    depth = sum_depth(size, row_threads(size))
    off = depth * UNIT * np.abs(f64(x)).mean(-1, keepdims=True) + UNIT * np.abs(f64(x)).max(-1, keepdims=True)
    spread = (off * factor) * (1 + np.abs(centred) * factor) * np.abs(f64(weight))
    before = 1.05 * spread + (depth / 2 + 6) * UNIT * (np.abs(centred * factor * f64(weight)) + np.abs(f64(bias))) + FTZ
    turned, magnitude = rotated(want[:, : 2 * pairs], table)
    _, carried = rotated(before[:, : 2 * pairs], np.ones_like(table))
    want[:, : 2 * pairs] = turned
    before[:, : 2 * pairs] = carried + 2.001 * UNIT * magnitude + FTZ
    written = cache[position : position + count]
    assert_within(written, want, half_bound(want, kv_type, before))
    assert (cache[:position] == 7).all() and (cache[position + count :] == 7).all()


# ---- index_score ----


@pytest.mark.parametrize(("heads", "size", "position"), [(1, 1, 0), (3, 40, 30), (4, 128, 40), (2, 200, 70)])
@pytest.mark.parametrize("kv_type", [F16, F32])
def test_index_score_is_its_formula(gpu: GpuOps, heads: int, size: int, position: int, kv_type: int) -> None:
    rng, count, scale = np.random.default_rng(size), 3, np.float32(0.1)
    q = pad(rows(rng, (count, heads * size), "normal"), 3)
    q = np.lib.stride_tricks.as_strided(q, (count, heads, size), (q.strides[0], 4 * size, 4))
    weights = pad(rows(rng, (count, heads), "normal"), 1)
    cache = rng.standard_normal((position + count, size)).astype(KV_DTYPE[kv_type])
    got = gpu.index_score(q, weights, cache, position, float(scale), position + count + 2)
    dot = np.einsum("rhi,si->rhs", f64(q), f64(cache))
    magnitude = np.einsum("rhi,si->rhs", np.abs(f64(q)), np.abs(f64(cache)))
    want = np.einsum("rh,rhs->rs", f64(weights), np.maximum(dot * scale, 0))
    total = np.einsum("rh,rhs->rs", np.abs(f64(weights)), magnitude * scale)
    bound = 1.01 * (4 * -(-size // 128) + 5 + 2 + heads) * UNIT * total + heads * FTZ
    for r in range(count):
        seen = position + r + 1
        assert_within(got[r, :seen], want[r, :seen], bound[r, :seen])
        assert np.isnan(got[r, seen:]).all()


# ---- top_k ----

SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-38, -1e-38, 3.4e38, -3.4e38])
CHOICES = {"ties": np.array([-1.5, 0.25, 0.25, 3.0]), "zeros": np.array([0.0, -0.0]), "special": SPECIAL,
           "neighbours": np.float32(1) + 2.0**-23 * np.arange(5)}


@pytest.mark.parametrize("profile", ["normal", "wide", *CHOICES])
@pytest.mark.parametrize(("k", "position"), [(1, 0), (8, 3), (8, 600), (40, 37), (500, 1100), (30, 9000)])
def test_top_k_is_a_sort_by_score_then_position(gpu: GpuOps, k: int, position: int, profile: str) -> None:
    rng, count = np.random.default_rng([k, position]), 2
    shape = (count, position + count)
    scores = rng.choice(CHOICES[profile], shape).astype(np.float32) if profile in CHOICES else rows(rng, shape, profile)
    got = gpu.top_k(pad(scores, 1), count, position, k)
    for r in range(count):
        want = top_k_reference(scores[r, : position + r + 1], k)
        assert got[r, : len(want)].tolist() == want
        assert (got[r, len(want) :] == -1).all()
    if position + count <= k:
        assert np.array_equal(gpu.top_k(None, count, position, k), got)


# ---- attention ----


def attention_reference(
    q_latent: np.ndarray, q_rope: np.ndarray, cache: np.ndarray, chosen: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray]:
    """One row [heads, latent], and its bound: as in test_ops.py, with the depth of the kernel's sums, and exp within 2
    units."""
    latent = q_latent.shape[1]
    c, kr = cache[chosen, :latent], cache[chosen, latent:]
    score = scale * (q_latent @ c.T + q_rope @ kr.T)
    size = np.abs(scale) * (np.abs(q_latent) @ np.abs(c).T + np.abs(q_rope) @ np.abs(kr).T)
    span = score.max(-1, keepdims=True) - score
    p = np.exp(-span)
    p /= p.sum(-1, keepdims=True)
    delta = (-(-(latent + kr.shape[1]) // 32) + 8) * UNIT * size
    epsilon = (delta + delta.max(-1, keepdims=True) + 2 * UNIT * span + 12 * UNIT) * 1.01
    bound = (p * epsilon) @ np.abs(c) + (p * epsilon).sum(-1, keepdims=True) * (p @ np.abs(c))
    bound += (len(chosen) + 12) * UNIT * (p @ np.abs(c))
    return p @ c, 1.05 * bound + len(chosen) * FTZ


@pytest.mark.parametrize(
    ("count", "heads", "latent", "pairs", "position", "k"),
    [(1, 1, 1, 1, 0, 1), (2, 3, 40, 3, 30, 16), (1, 9, 64, 8, 300, 260), (3, 8, 512, 32, 5, 40), (2, 2, 600, 1, 3, 9)],
)
@pytest.mark.parametrize("kv_type", [F16, F32])
@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_attention_is_its_formula(
    gpu: GpuOps, cpu: Ops, count: int, heads: int, latent: int, pairs: int, position: int, k: int, kv_type: int,
    spread: float,
) -> None:
    if gpu.name == "simcheck" and spread != 1.0:
        pytest.skip("the same accesses")
    rng = np.random.default_rng([latent, k])
    q = pad((spread * rng.standard_normal((count, heads, latent + 2 * pairs))).astype(np.float32), 2)
    cache = rng.standard_normal((position + count, latent + 2 * pairs)).astype(KV_DTYPE[kv_type])
    scores = rng.standard_normal((count, position + count)).astype(np.float32)
    selected = cpu.top_k(scores, count, position, k)
    out = pad(np.zeros((count, heads, latent), np.float32), 2)
    scale = float(np.float32((latent + 2 * pairs) ** -0.5))
    got = gpu.attention(q[..., :latent], q[..., latent:], cache, selected, position, k, scale, out)
    assert np.isnan(out.base[..., latent:]).all()
    for r in range(count):
        chosen = selected[r, : min(k, position + r + 1)]
        want, bound = attention_reference(f64(q[r, :, :latent]), f64(q[r, :, latent:]), f64(cache), chosen, scale)
        assert_within(got[r], want, bound)


# ---- router ----


def router_reference(logits: np.ndarray, bias: np.ndarray, used: int) -> list[int]:
    p = 1 / (1 + np.exp(-f64(logits)))
    choice = p + f64(bias)
    return sorted(range(len(choice)), key=lambda e: (bool(np.isnan(choice[e])), -choice[e], e))[:used]


@pytest.mark.parametrize(("experts", "used"), [(1, 1), (8, 2), (33, 33), (256, 8), (600, 8)])
@pytest.mark.parametrize("normalise", [False, True])
def test_router_chooses_as_the_exact_values(gpu: GpuOps, experts: int, used: int, normalise: bool) -> None:
    rng = np.random.default_rng(experts)
    logits, bias = rows(rng, (3, experts), "normal"), rows(rng, (experts,), "normal") * np.float32(0.1)
    ids, weights = gpu.router(pad(logits, 2), bias, used, 2.5, normalise)
    for r in range(3):
        assert ids[r].tolist() == router_reference(logits[r], bias, used)
        p = 1 / (1 + np.exp(-f64(logits[r, ids[r]])))
        want = p * 2.5 / (p.sum() + 1e-20 if normalise else 1)
        assert_within(weights[r], want, (used + 10) * UNIT * want)


def test_router_tells_saturated_logits_apart_and_ties_by_id(gpu: GpuOps) -> None:
    logits = np.array([[17.0, 17.5, 30.0, 30.0, 17.25, -40.0, -41.0, np.nan, -np.inf, np.inf]], np.float32)
    bias = np.zeros(10, np.float32)
    ids, weights = gpu.router(logits, bias, 10, normalise=False)
    assert ids[0].tolist() == [9, 2, 3, 1, 4, 0, 5, 6, 8, 7]
    assert np.isnan(weights[0, 9]) and weights[0, 0] == 1 and weights[0, 8] == 0
    ids, _ = gpu.router(np.zeros((1, 40), np.float32), np.repeat(np.float32([0.0, -0.0]), 20), 6)
    assert ids[0].tolist() == [0, 1, 2, 3, 4, 5]


# ---- swiglu, add ----


@pytest.mark.parametrize("size", [1, 255, 300])
def test_swiglu_has_the_bits_of_the_processor(gpu: GpuOps, cpu: Ops, size: int) -> None:
    rng = np.random.default_rng(size)
    for scale in (1.0, 30.0, 1e6):
        gate, up = pad(rows(rng, (3, size), "normal") * np.float32(scale), 1), pad(rows(rng, (3, size), "normal"), 2)
        out = pad(np.zeros((3, size), np.float32), 3)
        want = cpu.swiglu(gate, up)
        assert np.array_equal(gpu.swiglu(gate, up, out), want)
        assert np.isnan(out.base[:, size:]).all()
        assert np.array_equal(gpu.swiglu(gate, up, gate), want)  # in place


@given_settings
@given(SEEDS, st.integers(1, 600), st.booleans(), st.integers(0, 3))
def test_add_has_the_bits_of_the_processor(
    gpu: GpuOps, cpu: Ops, seed: int, count: int, has_third: bool, where: int
) -> None:
    rng = np.random.default_rng(seed)
    arrays = [rows(rng, (count,), "wide") for _ in range(3)]
    third = arrays[2] if has_third else None
    want = cpu.add(arrays[0], arrays[1], third)
    out = arrays[where] if where < 3 and (where < 2 or has_third) else None
    assert np.array_equal(gpu.add(arrays[0], arrays[1], third, out), want)


# ---- moe ----


def moe_reference(x, ids, weights, experts, kinds, shapes):
    """[rows, in] in float64 and the magnitudes behind its bound."""
    out, size = np.zeros(x.shape), np.zeros(x.shape)
    ff, width = shapes
    for r in range(len(x)):
        for k in np.argsort(ids[r], kind="stable"):
            matrices = experts[ids[r, k]]
            if matrices is None:
                continue
            gate, up, down = (exact_values(kind, m) for kind, m in zip(kinds, matrices))
            g, u = gate @ f64(x[r]), up @ f64(x[r])
            g_size, u_size = matmul_step(gate) @ np.abs(f64(x[r])), matmul_step(up) @ np.abs(f64(x[r]))
            depth = matmul_depth(width, len(x))
            h = g / (1 + np.exp(-g)) * u
            # silu' is at most 1.1.
            off = 1.1 * depth * UNIT * g_size * np.abs(u) + (np.abs(g) + 1e-3) * depth * UNIT * u_size
            off += 8 * UNIT * np.abs(h)
            y = down @ h
            y_off = np.abs(down) @ off + matmul_depth(ff, len(x)) * UNIT * (matmul_step(down) @ np.abs(h))
            out[r] += f64(weights[r, k]) * y
            size[r] += np.abs(f64(weights[r, k])) * (y_off + (ids.shape[1] + 2) * UNIT * np.abs(y))
    return out, 1.05 * size + 1e-30


@pytest.mark.parametrize("kinds", [("F32", "F32", "F32"), ("Q4_K", "Q8_0", "Q6_K")])
def test_moe_of_a_batch_is_its_formula(gpu: GpuOps, kinds: tuple[str, str, str]) -> None:
    """Experts with no row, with few, with more than fit a tile; one that is not at hand; one that is named twice."""
    numbers = tuple(FORMATS[name] for name in kinds)
    rng, ff, width, count, used = np.random.default_rng(6), 256, 256, 71, 2
    experts = [
        None if e == 1 else tuple(random_weights(rng, kind, shape) for kind, shape in
                                  zip(numbers, ((ff, width), (ff, width), (width, ff))))
        for e in range(5)
    ]
    x = rows(rng, (count, width), "normal") * np.float32(0.1)
    ids = np.stack([np.full(count, 3), rng.choice([0, 1, 3, 4], count)], -1).astype(np.int32)
    weights = rng.uniform(0.1, 1, (count, used)).astype(np.float32)
    got = gpu.moe(x, ids, weights, experts, numbers, ff, True)
    want, bound = moe_reference(x, ids, weights, experts, numbers, (ff, width))
    assert_within(got, want, bound)
    again = gpu.moe(x[30:50], ids[30:50], weights[30:50], experts, numbers, ff, True)
    assert np.array_equal(again, got[30:50])


@pytest.mark.parametrize("count", [2, 20])
def test_moe_of_sizes_that_end_in_a_tail(gpu: GpuOps, count: int) -> None:
    """One more than whole threadgroups have, each way."""
    kinds, ff, width = (FORMATS["F32"],) * 3, 33, 257
    rng = np.random.default_rng(8)
    experts = [tuple(random_weights(rng, kinds[0], shape) for shape in ((ff, width), (ff, width), (width, ff)))
               for _ in range(2)]
    x = rows(rng, (count, width), "normal") * np.float32(0.1)
    ids = rng.integers(0, 2, (count, 1)).astype(np.int32)
    weights = rng.uniform(0.1, 1, (count, 1)).astype(np.float32)
    got = gpu.moe(x, ids, weights, experts, kinds, ff, True)
    want, bound = moe_reference(x, ids, weights, experts, kinds, (ff, width))
    assert_within(got, want, bound)


@pytest.mark.parametrize("kinds", [("F32", "F32", "F32"), ("Q4_K", "Q4_K", "Q6_K"), ("IQ2_XXS", "Q8_0", "Q2_K")])
def test_moe_is_its_formula(gpu: GpuOps, kinds: tuple[str, str, str]) -> None:
    numbers = tuple(FORMATS[name] for name in kinds)
    rng, ff, width, count, used = np.random.default_rng(5), 256, 512, 3, 2
    experts = [
        None if e == 1 else tuple(random_weights(rng, kind, shape) for kind, shape in
                                  zip(numbers, ((ff, width), (ff, width), (width, ff))))
        for e in range(5)
    ]
    x = pad(rows(rng, (count, width), "normal") * np.float32(0.1), 4)
    ids = np.array([[3, 0], [1, 4], [4, 3]], np.int32)
    weights = rng.uniform(0.1, 1, (count, used)).astype(np.float32)
    out = pad(np.zeros((count, width), np.float32), 1)
    got = gpu.moe(x, ids, weights, experts, numbers, ff, True, out)
    want, bound = moe_reference(x, ids, weights, experts, numbers, (ff, width))
    assert_within(got, want, bound)
    assert np.isnan(out.base[:, width:]).all()
    again = gpu.moe(x[1:2], ids[1:2], weights[1:2], experts, numbers, ff, True)
    assert np.array_equal(again[0], got[1])  # the same bits in any company


# ---- what a kernel's mistake looks like ----


@pytest.mark.skipif("simcheck" not in AT_HAND, reason="no simcheck")
def test_an_operand_that_is_too_short_is_reported() -> None:
    with GpuOps("simcheck") as gpu:
        x = np.ones((2, 64), np.float32)
        numbers = {"row_count": 2, "row_size": 64, "x_stride": 64, "out_stride": 64, "epsilon": 1e-5}
        with pytest.raises(gpulib.OpError, match=r"kernel rms_norm: OUT OF BOUNDS: 4-byte read .*reduce|rms_norm"):
            gpu.run("rms_norm", numbers, x, x.copy(), np.ones(63, np.float32))
