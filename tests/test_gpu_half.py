"""What the C between the executor and the kernels must do: adopt, publish, write, clear, wait, report. The simulator
does nothing before somebody waits for it, so each of these shows when it is missing (msl/mutants.py takes them
away)."""

from pathlib import Path
from typing import Any

import gpulib
import numpy as np
import pytest
from conftest import prompt
from oplib import OpError, Ops, check, ffi, formats, lib, random_weights
from test_gpu_engine import CPU, SIM, assert_near, greedy, logits_of

import glm52_rt as rt

pytestmark = pytest.mark.skipif("sim" not in gpulib.backends(), reason="no simulator: make sim")


@pytest.mark.parametrize(("rows", "experts"), [(1, 2), (4, 2), (14, 3), (14, 20)])
def test_streaming_from_the_smallest_cache_is_the_resident_run(micro: rt.Model, rows: int, experts: int) -> None:
    ids = prompt(14, micro.shape.vocab)
    want = logits_of(micro, ids, 3, chunk_rows=rows, **SIM)
    assert_near("resident", want, logits_of(micro, ids, 3, **CPU))
    got = logits_of(micro, ids, 3, chunk_rows=rows, streaming=rt.Streaming(cache_experts=experts), **SIM)
    assert [g.tobytes() for g in got] == [w.tobytes() for w in want]


def test_a_preloaded_expert_is_published(micro: rt.Model, tmp_path: Path) -> None:
    ids = prompt(6, micro.shape.vocab)
    want = greedy(micro, ids, 4, **SIM)
    ledger = tmp_path / "usage"
    for _ in range(2):   # the second one begins with what the first one used most
        streaming = rt.Streaming(cache_experts=24, usage_path=str(ledger), preload=12)
        assert greedy(micro, ids, 4, streaming=streaming, **SIM) == want


def test_drafts_and_their_rows(micro: rt.Model) -> None:
    ids = prompt(6, micro.shape.vocab)
    plain = greedy(micro, ids, 8, **SIM)
    with rt.Engine(micro, context=32, mtp=True, drafts=2, **SIM) as engine:
        engine.prefill(ids)
        got: list[int] = []
        while len(got) < 8:
            got += engine.speculate(int(np.argmax(engine.logits)), 3)
    assert got[:8] == plain


def test_a_checkpoint_that_is_refused_leaves_the_engine_at_work(micro: rt.Model, tmp_path: Path) -> None:
    """Rows are on their way to a conversation when it is given up."""
    path = tmp_path / "state"
    with rt.Engine(micro, context=16, **SIM) as engine:
        engine.prefill(prompt(8, micro.shape.vocab))
        want = engine.logits.tobytes()
        engine.save(path)
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(rt.Error):
            engine.load(path)
        engine.reset()
        engine.prefill(prompt(8, micro.shape.vocab))
        assert engine.logits.tobytes() == want


def test_the_sizes_of_the_model_are_the_kernels(make: Any) -> None:
    with rt.Model.open(make("realgeom", changes={"index_top_k": 8})) as model:
        ids = prompt(3, model.shape.vocab)
        assert_near("realgeom", logits_of(model, ids, 1, **SIM), logits_of(model, ids, 1, **CPU))


def test_memory_that_the_device_does_not_know_is_a_fault_that_is_told_once() -> None:
    with Ops(1, "sim") as ops:
        x = np.ones(4, np.float32)
        for _ in range(2):
            with pytest.raises(OpError, match="input/output error: kernel add2") as refused:
                ops.add(x, x, None)
            assert "out is no memory of this device" in str(refused.value)
        address = ffi.new("void **")
        check(lib.glm52_backend_allocate(ops._backend, 16, address))
        check(lib.glm52_backend_write(ops._backend, address[0], ffi.cast("void *", x.ctypes.data), 16))
        lib.glm52_backend_release(ops._backend, address[0])


@pytest.mark.skipif("simcheck" not in gpulib.backends(), reason="no simcheck")
def test_scratch_grows_with_what_operations_need() -> None:
    kind, rng = formats()["F32"], np.random.default_rng(0)
    with gpulib.GpuOps("simcheck") as ops:
        for rows in (1, 9, 3):
            experts = [tuple(random_weights(rng, kind, (32, 32)) for _ in range(3))]
            x = rng.standard_normal((rows, 32)).astype(np.float32)
            ops.moe(x, np.zeros((rows, 1), np.int32), np.ones((rows, 1), np.float32), experts, (kind,) * 3, 32, True)
