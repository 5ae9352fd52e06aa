"""glm52 bench: what it says, refuses and labels. Speed itself is not tested."""

import json
import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm52_rt import bench, bench_llama, bench_peer, cli, cli_bench, machine

# llama-cpp-python's part that is used, with a clock of its own in its answers: 1 ms per token read, and a log of calls.
FAKE_LLAMA = """
import json, os, time
class Llama:
    def __init__(self, model_path, n_ctx, n_batch, n_threads, n_threads_batch, verbose):
        assert os.path.exists(model_path) and n_threads == n_threads_batch
        self.n_ctx, self.held = n_ctx, 0
        self.log("open")
    def log(self, word):
        with open(os.environ["FAKE_LOG"], "a") as file:
            file.write(f"peer {word}\\n")
    def n_vocab(self): return 64
    def reset(self): self.held = 0
    def eval(self, tokens):
        self.held += len(tokens)
        assert self.held <= self.n_ctx and all(0 <= t < 64 for t in tokens)
        time.sleep(0.001 * len(tokens))
"""


def run(capsys, *argv: object) -> tuple[int, str, str]:
    code = cli.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture()
def llama(tmp_path, monkeypatch) -> Path:
    """A llama_cpp that can be imported, here and in processes that are started."""
    folder = tmp_path / "fake"
    folder.mkdir()
    (folder / "llama_cpp.py").write_text(FAKE_LLAMA)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


# ---- arithmetic ----


@given(st.integers(1, 7), st.booleans())
@settings(deadline=None, max_examples=30)
def test_runs_alternate_and_ratios_are_taken_pair_by_pair(pairs, with_peer):
    order: list[str] = []
    numbers = iter(np.random.default_rng(pairs).uniform(1, 9, 99).tolist())

    def one(side: str) -> dict[str, float]:
        order.append(side)
        return {"prefill": next(numbers), "decode": next(numbers)}

    told: list[int] = []
    found = bench.alternate(lambda: one("o"), (lambda: one("p")) if with_peer else None, pairs,
                            lambda number, load: told.append(number))  # fmt: skip
    assert "".join(order) == (("oppo" * pairs)[: 2 * pairs] if with_peer else "o" * pairs)
    assert told == list(range(1, pairs + 1)) and all(pair["load"] >= 0 for pair in found)
    row = bench.row_of(77, found)
    assert row["context"] == 77
    for measure in bench.MEASURES:
        assert row[measure]["ours"]["median"] == np.median([pair["ours"][measure] for pair in found])
        assert ("ratio" in row[measure]) == with_peer
        if with_peer:
            ratios = [pair["ours"][measure] / pair["peer"][measure] for pair in found]
            assert row[measure]["ratio"] == {"median": np.median(ratios), "min": min(ratios), "max": max(ratios)}


def test_lists_of_lengths():
    assert cli_bench.lengths("512,128,128") == [128, 512]
    for text in ("", "a", "16,", "15", "128,3", "-16", "1e3"):
        assert bench.bad_number(text), text


def test_a_machine_with_other_work_is_not_quiet():
    assert bench.is_quiet([1.0, 2.4], 2) and not bench.is_quiet([0.1, 2.6], 2)


def test_kinds_of_a_file_add_up(tiny):
    kinds = bench.file_kind(tiny)
    assert sum(kinds.values()) == pytest.approx(1) and list(kinds)[0] == "Q8_0"
    assert list(kinds.values()) == sorted(kinds.values(), reverse=True)


# ---- the page cache ----


def test_cold_is_checked(tmp_path):
    """Either the system forgets a file, and says so, or nothing is called cold."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1 << 20))
    path.read_bytes()
    before = machine.cached_share([str(path)])
    made = bench.make_cold([str(path)])
    assert made["cold"] == (made["cached"] is not None and made["cached"] < 0.01)
    if made["cold"] and before is not None:
        assert before > 0.99
        with open(path, "rb") as file:
            file.read(1 << 19)
        assert 0.4 < machine.cached_share([str(path)]) <= 1  # with what was read ahead


def test_a_system_that_can_not_forget_is_not_cold(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(bytes(9999))
    monkeypatch.delattr(os, "posix_fadvise")
    assert not bench.make_cold([str(path)])["cold"]


# ---- the command ----


def test_one_document_says_all(capsys, micro, llama):
    command = ["bench", micro.path, "--lengths", "16,32", "-n", 16, "--runs", 2, "--threads", 1, "--json"]
    code, out, err = run(capsys, *command)
    found = json.loads(out)
    assert code == 0 and found["glm52_bench"] == 1 and "load" in err
    assert found["threads"] == 1 and found["tokens"] == 16 and found["machine"]["usable"] >= 1
    assert [row["context"] for row in found["table"]] == [16, 32]
    for row in found["table"]:
        for measure in bench.MEASURES:
            ours, peer, ratio = (row[measure][side] for side in ("ours", "peer", "ratio"))
            assert 0 < ours["min"] <= ours["median"] <= ours["max"] and ratio["min"] <= ratio["median"] <= ratio["max"]
            assert 0 < peer["median"] <= 1000  # it sleeps a millisecond per token
    assert len(found["warm"]) == 4 and all(one["warm"] and one["first_token_seconds"] is None for one in found["warm"])
    assert found["warm"][0]["kernels"] and found["warm"][0]["backend"] == "cpu" and "streaming" not in found["warm"][0]
    assert found["peer"]["name"].startswith("llama.cpp (llama-cpp-python")
    assert llama.read_text().count("peer open") == 4  # a process per run
    if found["cold"]["cold"]:
        assert not found["cold"]["run"]["warm"] and found["cold"]["run"]["first_token_seconds"] > 0
    text = "\n".join(bench.render(found))
    for words in ("1 threads", "kernels", "ours / peer", "context     16", "Q8_0", "peak memory", "warm"):
        assert words in text, words
    assert ("open cold" in text) == found["cold"]["cold"]


def test_a_streamed_run_has_its_timeline(capsys, micro, tmp_path):
    text = tmp_path / "text"
    code, out, _ = run(capsys, "bench", micro.path, "--lengths", 16, "-n", 20, "--runs", 1, "--threads", 1, "--no-peer",
                       "--no-cold", "--experts", 2 * micro.shape.experts_used, "--json")  # fmt: skip
    found = json.loads(out)
    assert code == 0 and found["peer"] is None and not found["cold"]["cold"]
    (one,) = found["warm"]
    assert len(one["timeline"]) == 20 and one["streaming"]["slots"] == 2 * micro.shape.experts_used
    sparse = micro.shape.layers - micro.shape.dense_layers
    for token in one["timeline"]:
        assert token["hits"] + token["misses"] == sparse * micro.shape.experts_used
        assert 0 <= token["wait_seconds"] <= token["seconds"] and (token["read_bytes"] > 0) == (token["misses"] > 0)
    shown = "\n".join(bench.render(found))
    assert "the page cache may answer reads" in shown and "nothing was measured cold: --no-cold" in shown
    text.write_text("too short")
    assert "are needed" in run(capsys, "bench", micro.path, "--text", text)[2]


def test_what_would_say_nothing_is_refused(capsys, micro, tmp_path):
    assert "at least 16" in run(capsys, "bench", micro.path, "-n", 15)[2]
    code, _, err = run(capsys, "bench", micro.path, "--lengths", 15)
    assert code == 2 and "at least 16" in err
    code, _, err = run(capsys, "bench", micro.path, "--lengths", micro.shape.context_max)
    assert code == 1 and "was made for" in err
    assert "no program" in run(capsys, "bench", micro.path, "--peer", tmp_path / "none")[2]
    assert run(capsys, "bench", tmp_path / "none.gguf")[0] == 1


def test_a_run_that_fails_says_why(capsys, micro, monkeypatch, tmp_path):
    monkeypatch.setattr(cli_bench, "environment", lambda: {**os.environ, "PYTHONPATH": str(tmp_path)})
    (tmp_path / "glm52_rt.py").write_text("raise SystemExit('broken on purpose')")
    code, out, err = run(capsys, "bench", micro.path, "--lengths", 16, "-n", 16, "--no-peer", "--no-cold")
    assert (code, out) == (1, "") and "broken on purpose" in err


def test_without_a_peer_it_says_how_to_get_one(monkeypatch):
    monkeypatch.setattr(bench_peer.importlib.util, "find_spec", lambda name: None)
    assert bench_peer.find(None) is None and "pip install llama-cpp-python" in bench_peer.HOW_TO_GET


def test_llama_bench_is_asked_for_the_same(tmp_path):
    """A program in its place: each configuration is tried once, then the best one of each measure; decoding behind the
    prompt."""
    log = tmp_path / "log"
    fake = tmp_path / "llama-bench"
    fake.write_text(f"""#!{sys.executable}
import json, sys
argv = sys.argv[1:]
options = dict(zip(argv[::2], argv[1::2]))
print(" ".join(argv), file=open({str(log)!r}, "a"))
speed = 2.0 if options["--flash-attn"] == "on" else 1.0
if options["-n"] == "0":
    print(json.dumps([{{"n_prompt": int(options["-p"]), "n_gen": 0, "avg_ts": 10 / speed}}]))
else:
    assert options["-p"] == "0" and options["-d"] == "48"
    print(json.dumps([{{"n_prompt": 0, "n_gen": int(options["-n"]), "avg_ts": speed}}]))
""")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    peer = bench_peer.find(str(fake))
    assert peer.run("m.gguf", 3, 48, 16) == {"prefill": 10.0, "decode": 2.0}
    assert peer.run("m.gguf", 3, 48, 16)["decode"] == 2.0
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * len(bench_peer.CONFIGS) + 2 * 2 * 2 and all("-t 3" in line for line in lines)
    assert peer.about["best"][48]["prefill"]["flash-attn"] == "off"
    assert peer.about["best"][48]["decode"]["flash-attn"] == "on"
    fake.write_text("#!/bin/sh\necho no such model >&2\nexit 3\n")
    with pytest.raises(bench_peer.Error, match="no such model"):
        bench_peer.find(str(fake)).run("m.gguf", 1, 16, 16)


def test_both_sides_read_the_same_tokens():
    assert bench_llama.token_ids(64, 40) == bench_llama.token_ids(64, 40)
    assert bench.token_ids is bench_llama.token_ids
