"""tools/bench/all.py end to end, on a tiny model and with a peer that says what it is told to; cpu_ops.py."""

import importlib.util
import json
import stat
import sys
from pathlib import Path

import pytest

ALL = Path(__file__).resolve().parents[1] / "tools" / "bench" / "all.py"

PEER = """#!{python}
import json, sys
a = sys.argv[1:]
value = lambda name, default="": a[a.index(name) + 1] if name in a else default
rate = 1.0 if value("--flash-attn") == "on" else 2.0
tests = [{{"n_prompt": int(p), "n_gen": 0, "n_depth": 0, "avg_ts": rate}} for p in value("-p").split(",") if p != "0"]
if value("-n", "0") != "0":
    tests.append({{"n_prompt": 0, "n_gen": int(value("-n")), "n_depth": 0, "avg_ts": 4 * rate}})
print(json.dumps(tests))
"""


def load(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bench():
    return load(ALL)


def test_operations_have_a_bound_and_a_share_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ops = load(ALL.with_name("cpu_ops.py"))
    monkeypatch.setattr(ops, "MEGABYTES", 1)
    monkeypatch.setattr(ops, "best_of", lambda run: [run(), 0.25][1])
    monkeypatch.setattr(ops.roofline, "read_rate", lambda threads: 1e9)
    found = ops.table(1, 4.0)
    one = next(r for r in found["operations"] if r["operation"] == "Q8_0 x 1")
    assert one["bound_by"] == "memory" and one["bound_seconds"] == one["bytes"] / 1e9
    assert one["share"] == one["bound_seconds"] / 0.25
    assert len(ops.render(found).splitlines()) == 2 + len(found["operations"])


def test_ratios_are_pair_by_pair_and_memory_is_the_other_way_round(bench) -> None:
    pairs = [
        {"ours": {"decode": 4.0, "memory": 2.0}, "peer": {"decode": 2.0, "memory": 3.0}},
        {"ours": {"decode": 9.0, "memory": 2.0}, "peer": {"decode": 3.0, "memory": 1.0}},
        {"ours": {"decode": 1.0, "memory": 2.0}, "peer": {"decode": 1.0, "memory": 2.0}},
    ]
    found = bench.summary(pairs)
    assert found["decode"]["ratio"] == 2.0 and found["decode"]["ratio_min"] == 1.0
    assert found["decode"]["ratio_max"] == 3.0 and found["decode"]["pairs"] == 3
    assert found["memory"]["ratio"] == 1.0 and found["memory"]["ratio_max"] == 1.5


def test_a_whole_run(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    peer = tmp_path / "llama-bench"
    peer.write_text(PEER.format(python=sys.executable))
    peer.chmod(peer.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(bench, "SECTIONS", [("IQ2 mix", "tiny", None, {}, {"decode": 2.0, "memory": 1e-9})])
    arguments = ["--peer", str(peer), "--models", str(tmp_path), "--out", str(tmp_path / "out"), "--pairs", "2"]
    monkeypatch.setattr(sys, "argv", ["all.py", *arguments, "--threads", "1", "--only", "IQ2 mix"])
    assert bench.main() == 0
    found = json.loads((tmp_path / "out" / "results.json").read_text())["IQ2 mix"]
    assert len(found["peer_tried"]) == 4 and len(found["pairs"]) == 2
    summary = found["summary"]
    assert set(summary) == {"decode", "prefill 512", "first token", "memory"}
    assert summary["decode"]["peer"] == 8.0  # the better of its configurations
    assert summary["prefill 512"]["peer"] == 2.0 and summary["prefill 512"]["ours"] > 0
    assert found["roofline"]["share_of_bound"] > 0
    assert "a token reads" in capsys.readouterr().out
    assert (tmp_path / "out" / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_a_peer_that_fails_is_said_and_the_rest_goes_on(
    bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(bench, "SECTIONS", [("IQ2 mix", "micro", None, {}, {}), ("Q4_K mix", "micro", None, {}, {})])
    arguments = ["--peer", "/bin/false", "--models", str(tmp_path), "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["all.py", *arguments, "--only", "IQ2 mix", "--only", "Q4_K mix"])
    assert bench.main() == 1
    found = json.loads((tmp_path / "results.json").read_text())
    assert "ended with 1" in found["IQ2 mix"]["error"] and "error" in found["Q4_K mix"]
