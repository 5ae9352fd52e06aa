"""Whole models on the simulator against the CPU's quality run, and against themselves cut, streamed and drafted.

Figures of a run: python -m pytest tests/test_gpu_engine.py -s -k figures
On another GPU backend: GLM52_TEST_BACKEND=cuda python -m pytest tests/test_gpu_engine.py
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gpulib
import numpy as np
import pytest
from conftest import prompt
from reference import relative_rms
from synthetic.mix import MIXES

import glm52_rt as rt
from glm52_rt.tokenizer import tokenizer_of

Make = Callable[..., Path]
BACKEND = os.environ.get("GLM52_TEST_BACKEND", "sim")
pytestmark = pytest.mark.skipif(BACKEND not in gpulib.backends(), reason=f"no {BACKEND}: make {BACKEND}")
SIM: dict[str, Any] = {"backend": BACKEND, "quality": True, "kv_type": "f32"}
CPU: dict[str, Any] = {"backend": "cpu", "quality": True, "kv_type": "f32"}
# Both runs multiply the same exact weights in float32, in different orders. Each may be 1e-5 off the exact logits
# (test_forward.py: EXACT says why), so twice that from one another; the largest of some thousand independent errors is
# within six times their rms. CUDA's matrix units cut sums off instead of rounding them, about 2^-23 of a sum at each of
# up to a hundred steps of the 3 products that stand for one of floats.
RMS = 2e-5 if BACKEND != "cuda" else 1e-4
MAX = 6 * RMS


def off(got: np.ndarray, want: np.ndarray) -> tuple[float, float]:
    """Relative rms of the error, and its largest value over the rms of what is wanted."""
    error = got.astype(np.float64) - want
    return relative_rms(got, want), float(np.abs(error).max() / np.sqrt((want.astype(np.float64) ** 2).mean()))


def logits_of(model: rt.Model, ids: list[int], steps: int, **options: Any) -> list[np.ndarray]:
    """Behind a prompt, and behind each of its last steps tokens fed one by one."""
    seen = []
    with rt.Engine(model, context=len(ids) + 1, **options) as engine:
        engine.prefill(ids[: len(ids) - steps])
        seen.append(engine.logits.copy())
        for token in ids[len(ids) - steps :]:
            engine.eval(token)
            seen.append(engine.logits.copy())
    return seen


def assert_near(name: str, got: list[np.ndarray], want: list[np.ndarray]) -> None:
    figures = [off(g, w) for g, w in zip(got, want, strict=True)]
    rms, most = max(f[0] for f in figures), max(f[1] for f in figures)
    print(f"figures: {name}: logits off by {rms:.1e} relative rms, {most:.1e} at most")
    assert rms <= RMS and most <= MAX


@pytest.mark.parametrize("mix", ["f32", *MIXES])
def test_logits_are_those_of_the_cpu_in_every_mix_figures(make: Make, mix: str) -> None:
    """index_top_k 8: the first tokens attend to all positions, the others to a selection."""
    with rt.Model.open(make("tiny", mix=mix, changes={"index_top_k": 8})) as model:
        ids = prompt(11, model.shape.vocab)
        got, want = (logits_of(model, ids, 2, **where) for where in (SIM, CPU))
        assert_near(f"tiny {mix}", got, want)


@pytest.mark.parametrize("top_k", [8, 2048])
def test_logits_of_the_real_head_sizes_figures(make: Make, top_k: int) -> None:
    """Kernels that are specialised for GLM-5.2's sizes; sparse and dense."""
    with rt.Model.open(make("realgeom", changes={"index_top_k": top_k})) as model:
        ids = prompt(11, model.shape.vocab)
        got, want = (logits_of(model, ids, 1, **where) for where in (SIM, CPU))
        assert_near(f"realgeom top {top_k}", got, want)


def test_logits_with_caches_of_float16(tiny: rt.Model) -> None:
    """A value at a rounding boundary may fall to another side: test_forward.py's HALF_CACHE. Up to index_top_k
positions, where no such noise can decide a selection."""
    ids = prompt(8, tiny.shape.vocab)
    got, want = (logits_of(tiny, ids, 1, **{**where, "kv_type": "f16"}) for where in (SIM, CPU))
    assert max(relative_rms(g, w) for g, w in zip(got, want, strict=True)) <= 2e-3


@pytest.fixture(scope="module")
def wanted(micro: rt.Model) -> Iterator[tuple[list[int], list[bytes]]]:
    """A prompt far beyond index_top_k, and the simulator's logits token by token."""
    ids = prompt(22, micro.shape.vocab)
    yield ids, [logits.tobytes() for logits in logits_of(micro, ids, len(ids) - 1, **SIM)]


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 5, 7, 8])
def test_small_chunks_give_the_bits_of_decoding(
    micro: rt.Model, wanted: tuple[list[int], list[bytes]], chunk_rows: int
) -> None:
    ids, steps = wanted
    got = logits_of(micro, ids, 2, chunk_rows=chunk_rows, **SIM)
    assert [logits.tobytes() for logits in got] == steps[-3:]


@pytest.mark.parametrize("chunk_rows", [9, 12, 16, 22])
def test_chunks_of_more_than_eight_rows_figures(
    micro: rt.Model, wanted: tuple[list[int], list[bytes]], chunk_rows: int
) -> None:
    """Matrices of 8 x 8 add in another order."""
    ids, steps = wanted
    got = logits_of(micro, ids, 2, chunk_rows=chunk_rows, **SIM)
    assert_near(f"chunks of {chunk_rows}", got, [np.frombuffer(step, np.float32) for step in steps[-3:]])


def greedy(model: rt.Model, ids: list[int], count: int, **options: Any) -> list[int]:
    with rt.Engine(model, context=len(ids) + count, **options) as engine:
        engine.prefill(ids)
        tokens = [int(np.argmax(engine.logits))]
        while len(tokens) < count:
            engine.eval(tokens[-1])
            tokens.append(int(np.argmax(engine.logits)))
        return tokens


def test_greedy_tokens_are_the_cpus(micro: rt.Model, tiny: rt.Model) -> None:
    for model, count in ((micro, 40), (tiny, 12)):
        ids = prompt(9, model.shape.vocab)
        assert greedy(model, ids, count, **SIM) == greedy(model, ids, count, **CPU)


@pytest.mark.parametrize("experts", [2, 3, 20])
@pytest.mark.parametrize("chunk_rows", [1, 4, 22])
def test_streaming_changes_no_bit(
    micro: rt.Model, wanted: tuple[list[int], list[bytes]], experts: int, chunk_rows: int
) -> None:
    """From the smallest cache there can be: the experts of one token."""
    ids, steps = wanted
    streaming = rt.Streaming(cache_experts=experts)
    if experts == 2:
        with pytest.raises(rt.Error) as refused:
            rt.Engine(micro, context=8, streaming=rt.Streaming(cache_experts=1), **SIM)
        assert "1" in str(refused.value)
    got = logits_of(micro, ids, 2, chunk_rows=chunk_rows, streaming=streaming, **SIM)
    want = steps[-3:]
    if chunk_rows > 8:
        want = [logits.tobytes() for logits in logits_of(micro, ids, 2, chunk_rows=chunk_rows, **SIM)]
    assert [logits.tobytes() for logits in got] == want


def test_drafts_change_no_bit(micro: rt.Model, wanted: tuple[list[int], list[bytes]]) -> None:
    ids = wanted[0][:9]
    plain = greedy(micro, ids, 16, **SIM)
    for streaming in (None, rt.Streaming(cache_experts=16)):
        with rt.Engine(micro, context=64, mtp=True, drafts=3, streaming=streaming, **SIM) as engine:
            engine.prefill(ids)
            token, got = int(np.argmax(engine.logits)), []
            while len(got) < 16:
                got += engine.speculate(token, 4)
                token = int(np.argmax(engine.logits))
            stats = engine.stats()
        assert got[:16] == plain
        assert stats.mtp_cycles > 0 and stats.mtp_drafted > 0


@pytest.mark.skipif("simcheck" not in gpulib.backends(), reason="no simcheck")
def test_no_access_of_a_whole_run_is_out_of_order_or_bounds(
    micro: rt.Model, wanted: tuple[list[int], list[bytes]]
) -> None:
    """Threads in another order, each access looked at; the bits are those of the order."""
    ids, steps = wanted
    gpulib.simulator("simcheck").glm52_sim_schedule(7, 100)
    got = logits_of(micro, ids[:11], 2, chunk_rows=4, streaming=rt.Streaming(cache_experts=12),
                    **{**SIM, "backend": "simcheck"})
    assert [logits.tobytes() for logits in got] == steps[8:11]


def test_a_checkpoint_of_the_cpu_goes_on_here(micro: rt.Model, tmp_path: Path) -> None:
    ids = prompt(14, micro.shape.vocab)
    with rt.Engine(micro, context=20, **CPU) as engine:
        engine.prefill(ids[:12])
        engine.save(tmp_path / "state")
        for token in ids[12:]:
            engine.eval(token)
        want = engine.logits.copy()
    with rt.Engine(micro, context=20, **SIM) as engine:
        assert engine.load(tmp_path / "state")
        assert engine.position == 12
        for token in ids[12:]:
            engine.eval(token)
        assert_near("from a checkpoint", [engine.logits.copy()], [want])


def test_conversations_parked_and_exchanged_go_on_with_the_same_bits(micro: rt.Model) -> None:
    ids = prompt(12, micro.shape.vocab)
    with rt.Engine(micro, context=20, sessions=1, **SIM) as engine:
        engine.prefill(ids)
        engine.eval(3)
        want = engine.logits.tobytes()
        engine.reset()
        engine.prefill(ids)
        parked = engine.park()
        engine.prefill(ids[::-1])
        engine.swap(parked)
        engine.eval(3)
        assert engine.logits.tobytes() == want


def test_a_cancelled_call_leaves_the_engine_as_it_was(micro: rt.Model) -> None:
    ids = prompt(10, micro.shape.vocab)
    with rt.Engine(micro, context=16, **SIM) as engine:
        want = engine.prefill(ids) and engine.logits.tobytes()
        engine.reset()
        calls = []
        assert engine.prefill(ids, progress=lambda position: calls.append(position) or len(calls) < 4) == 0
        assert len(calls) == 4 and engine.position == 0
        engine.prefill(ids)
        assert engine.logits.tobytes() == want
        assert engine.backend == BACKEND


@pytest.mark.skipif(BACKEND == "sim", reason="hours on the simulator")
def test_two_hundred_tokens_of_nano_are_the_cpus(root: Path) -> None:
    (path,) = (root / "models").glob("glm52-nano-*.gguf")
    with rt.Model.open(path) as model:
        ids = tokenizer_of(model).encode("def main() -> int:\n    parser = argparse.ArgumentParser(")
        assert greedy(model, ids, 200, **SIM) == greedy(model, ids, 200, **CPU)
