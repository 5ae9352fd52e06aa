"""tools/bench: its arithmetic and what it refuses. Speed itself is not tested."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "tools/bench"
sys.path.insert(0, str(BENCH))

import cpu  # noqa: E402

import glm52_rt as rt  # noqa: E402
from glm52_rt import bench_peer as peer  # noqa: E402
from glm52_rt import roofline  # noqa: E402


def test_a_ratio_is_taken_pair_by_pair() -> None:
    pairs = [({"prefill": 20.0, "decode": 4.0}, {"prefill": 10.0, "decode": 2.0}),
             ({"prefill": 30.0, "decode": 9.0}, {"prefill": 10.0, "decode": 3.0}),
             ({"prefill": 5.0, "decode": 1.0}, {"prefill": 10.0, "decode": 4.0})]  # fmt: skip
    found = cpu.compare(pairs)
    assert found["prefill"]["ratio"] == {"median": 2.0, "min": 0.5, "max": 3.0}
    assert found["decode"]["ours"] == {"median": 4.0, "min": 1.0, "max": 9.0}
    assert found["decode"]["peer"]["median"] == 3.0


def test_the_peer_is_given_its_best() -> None:
    tried = [{"config": {"a": "1"}, "prefill": 5.0, "decode": 1.0},
             {"config": {"a": "2"}, "prefill": 4.0, "decode": 2.0}]  # fmt: skip
    assert peer.best_of(tried) == {"prefill": {"a": "1"}, "decode": {"a": "2"}}
    assert {(c["flash-attn"], c["repack"]) for c in peer.CONFIGS} == {(a, r) for a in ("on", "off") for r in "10"}


def test_llama_bench_is_read() -> None:
    tests = [{"n_prompt": 128, "n_gen": 0, "avg_ts": 13.5}, {"n_prompt": 0, "n_gen": 16, "avg_ts": 4.25}]
    assert peer.parse(json.dumps(tests)) == {"prefill": 13.5, "decode": 4.25}
    with pytest.raises(ValueError, match="prefill"):
        peer.parse(json.dumps(tests[1:]))


def test_bytes_of_a_token(make: Callable[..., Path]) -> None:
    """Every byte of the file's tensors is counted once: with all experts used and all rows of the embedding."""
    with rt.Model.open(make("tiny")) as model:
        shape, tensors = model.shape, model.tensors
        some = roofline.bytes_per_token(tensors, shape.experts, shape.experts_used, shape.layers)
        every = roofline.bytes_per_token(tensors, shape.experts, shape.experts, 10**6)
        embedding = next(t for t in tensors if t.name.startswith("token_embd"))
        rest = sum(t.bytes for t in tensors) - embedding.bytes
    assert sum(every.values()) == pytest.approx(rest + embedding.bytes / shape.vocab)
    ratio = shape.experts_used / shape.experts
    assert some["routed experts"] == pytest.approx(ratio * every["routed experts"], rel=0.2)
    assert {"routed experts", "attention", "indexer", "router", "output"} <= set(some)


def test_few_tokens_are_refused() -> None:
    command = [sys.executable, str(BENCH / "cpu.py"), "no-model.gguf", "--tokens", "15"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and "at least 16 tokens" in run.stderr


def test_a_loaded_machine_is_called_so() -> None:
    spread = {"median": 1.0, "min": 1.0, "max": 1.0}
    found = {"model": "m", "threads": 2, "prompt_tokens": 16, "decode_tokens": 16, "pairs": [{}], "quiet": False,
             "ours_prefill": spread, "ours_decode": spread, "ours_peak_bytes": spread,
             "roofline": {"read_bytes_per_second": 1e10, "parts": {"attention": 1e9}, "bytes_per_token": 1e9,
                          "bound_tokens_per_second": 10.0, "share_of_bound": 0.1}}  # fmt: skip
    assert "NOT QUIET" in cpu.render(found) and "10% of it" in cpu.render(found)
    assert "NOT QUIET" not in cpu.render({**found, "quiet": True})
