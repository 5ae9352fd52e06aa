"""The same bits whatever the thread count and however a batch is cut, for every operation and mode.

A case makes its operands from a seed and says how to run some of its rows. Sizes are large enough that every
case is handed out to all threads (pieces are worth at least some ten thousand products).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from oplib import F16, F32, KV_DTYPE, Ops, formats, pad, random_weights, rope_table

FORMATS = formats()
THREADS = (1, 2, 3, 5)
Run = Callable[[Ops, slice], np.ndarray]


@dataclass
class Case:
    rows: int
    run: Run  # of the rows of a slice: what the operation wrote for them, row after row


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def embed(rng: np.random.Generator) -> Case:
    kind, hidden, vocab = FORMATS["Q8_0"], 2048, 300
    table = random_weights(rng, kind, (vocab, hidden))
    ids = rng.integers(0, vocab, 100).astype(np.int32)
    return Case(100, lambda ops, cut: ops.embed(ids[cut], table, kind, hidden, vocab))


def rms_norm(rng: np.random.Generator) -> Case:
    x, weight = pad(normal(rng, 50, 4096), 3), normal(rng, 4096)
    return Case(50, lambda ops, cut: ops.rms_norm(x[cut], weight, 1e-5))


def rope(rng: np.random.Generator) -> Case:
    x, table = normal(rng, 40, 32, 192), rope_table(np.arange(40) + 1000, 64)

    def run(ops: Ops, cut: slice) -> np.ndarray:
        turned = x[cut].copy()
        ops.rope(turned[..., 128:], table[cut])
        return turned

    return Case(40, run)


def matmul(name: str, exact: bool) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        x, weights = normal(rng, 19, 3, 512), random_weights(rng, FORMATS[name], (3, 61, 512))
        return Case(19, lambda ops, cut: ops.matmul(x[cut], weights, FORMATS[name], exact))

    return make


def kv_store(kv_type: int) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        x, weight, table = normal(rng, 300, 576), normal(rng, 512), rope_table(np.arange(300) + 7, 64)

        def run(ops: Ops, cut: slice) -> np.ndarray:
            cache = np.zeros((307, 576), KV_DTYPE[kv_type])
            ops.kv_store(cache, x[cut], weight, table[cut], 7 + cut.start, 1e-5)
            return cache[7 + cut.start : 7 + cut.stop]

        return Case(300, run)

    return make


def index_store(kv_type: int) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        x, weight, bias = normal(rng, 900, 128), normal(rng, 128), normal(rng, 128)
        table = rope_table(np.arange(900) + 7, 64)

        def run(ops: Ops, cut: slice) -> np.ndarray:
            cache = np.zeros((907, 128), KV_DTYPE[kv_type])
            ops.index_store(cache, x[cut], weight, bias, table[cut], 7 + cut.start, 1e-6)
            return cache[7 + cut.start : 7 + cut.stop]

        return Case(900, run)

    return make


def visible(scores: np.ndarray, position: int) -> np.ndarray:
    """Each row's scores of the positions it sees."""
    return np.concatenate([row[: position + r + 1] for r, row in enumerate(scores)])


def index_score(kv_type: int) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        q, weights, cache = (
            normal(rng, 21, 8, 128),
            normal(rng, 21, 8),
            normal(rng, 221, 128).astype(KV_DTYPE[kv_type]),
        )

        def run(ops: Ops, cut: slice) -> np.ndarray:
            position = 200 + cut.start
            return visible(ops.index_score(q[cut], weights[cut], cache, position, 0.03), position)

        return Case(21, run)

    return make


def top_k(rng: np.random.Generator) -> Case:
    scores = np.round(4 * normal(rng, 40, 5040)) / 4  # many ties

    def run(ops: Ops, cut: slice) -> np.ndarray:
        return ops.top_k(scores[cut], cut.stop - cut.start, 5000 + cut.start, 512)

    return Case(40, run)


def attention(kv_type: int, row_count: int) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        position, k, heads = 90, 96, 10  # the batch crosses from dense to sparse
        q, cache = (
            normal(rng, row_count, heads, 144),
            normal(rng, position + row_count, 144).astype(KV_DTYPE[kv_type]),
        )
        with Ops() as ops:
            scores = normal(rng, row_count, position + row_count)
            selected = ops.top_k(scores, row_count, position, k)

        def run(ops: Ops, cut: slice) -> np.ndarray:
            q_latent, q_rope = q[cut, :, :128], q[cut, :, 128:]
            return ops.attention(q_latent, q_rope, cache, selected[cut], position + cut.start, k, 0.1)

        return Case(row_count, run)

    return make


def router(rng: np.random.Generator) -> Case:
    logits, bias = normal(rng, 60, 256), normal(rng, 256)

    def run(ops: Ops, cut: slice) -> np.ndarray:
        ids, weights = ops.router(logits[cut], bias, 8, 2.5)
        return np.concatenate([ids, weights.view(np.int32)], axis=1)

    return Case(60, run)


def swiglu(rng: np.random.Generator) -> Case:
    gate, up = pad(normal(rng, 9, 5000), 3), normal(rng, 9, 5000)
    return Case(9, lambda ops, cut: ops.swiglu(gate[cut], up[cut]))


def moe(names: tuple[str, str, str], exact: bool) -> Callable[[np.random.Generator], Case]:
    def make(rng: np.random.Generator) -> Case:
        kinds, size, ff, experts, used, count = tuple(FORMATS[name] for name in names), 512, 256, 8, 3, 17
        shapes = ((ff, size), (ff, size), (size, ff))
        matrices = [
            tuple(random_weights(rng, kind, shape) for kind, shape in zip(kinds, shapes))
            for _ in range(experts)
        ]
        x, start = normal(rng, count, size), normal(rng, count, size)
        ids = np.stack([rng.permutation(experts)[:used] for _ in range(count)]).astype(np.int32)
        weights = normal(rng, count, used)

        def run(ops: Ops, cut: slice) -> np.ndarray:
            out = start[cut].copy()
            return ops.moe(x[cut], ids[cut], weights[cut], matrices, kinds, ff, exact, out)

        return Case(count, run)

    return make


def add(rng: np.random.Generator) -> Case:
    a, b, c = normal(rng, 3, 30, 5000)

    def run(ops: Ops, cut: slice) -> np.ndarray:
        return np.concatenate([ops.add(a[cut], b[cut], c[cut]), ops.add(a[cut], b[cut], None)], axis=1)

    return Case(30, run)


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "embed": embed,
    "rms_norm": rms_norm,
    "rope": rope,
    **{
        f"matmul {name} {mode}": matmul(name, mode == "exact")
        for name in FORMATS
        for mode in ("exact", "default")
    },
    "kv_store f16": kv_store(F16),
    "kv_store f32": kv_store(F32),
    "index_store f16": index_store(F16),
    "index_store f32": index_store(F32),
    "index_score f16": index_score(F16),
    "index_score f32": index_score(F32),
    "top_k": top_k,
    "attention f16": attention(F16, 13),
    "attention f32": attention(F32, 13),
    "attention f16, one row": attention(F16, 1),
    "router": router,
    "swiglu": swiglu,
    "moe exact": moe(("Q4_K", "Q8_0", "Q4_0"), True),
    "moe default": moe(("Q2_K", "Q4_K", "Q8_0"), False),
    "moe mixed": moe(("F32", "Q8_0", "BF16"), False),
    "moe of two orders": moe(("IQ2_XXS", "Q2_K", "Q8_0"), False),
    "add": add,
}


@pytest.fixture(scope="module")
def backends() -> Iterator[list[Ops]]:
    opened = [Ops(threads=threads) for threads in THREADS]
    yield opened
    for ops in opened:
        ops.close()


@pytest.mark.parametrize("name", CASES)
def test_bits_do_not_depend_on_threads_or_cuts(backends: list[Ops], name: str) -> None:
    case = CASES[name](np.random.default_rng(11))
    whole = case.run(backends[0], slice(0, case.rows)).tobytes()
    for threads, ops in zip(THREADS, backends):
        for _ in range(2):
            assert case.run(ops, slice(0, case.rows)).tobytes() == whole, f"{threads} threads"

    third = case.rows // 3
    pieces = [slice(0, third), slice(third, case.rows)] if third > 0 else []
    singles = [slice(r, r + 1) for r in range(case.rows)]
    for cuts in (pieces, singles):
        parts = b"".join(case.run(backends[2], cut).tobytes() for cut in cuts)
        assert not cuts or parts == whole, f"{len(cuts)} cuts"
