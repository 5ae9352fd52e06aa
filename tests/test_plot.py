"""Pictures and what they are drawn from: Belady's bound against every possible cache, habits counted by hand, files
that are no such files; that each kind is drawn, as PNG and SVG, with axes that say what they are."""

import csv
import itertools
import json
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import glm52_rt as rt
from glm52_rt import cli, cli_plot, trace
from glm52_rt.cli_trace import pieces_of

ROOT = Path(__file__).resolve().parent.parent
NANO = ROOT / "models/glm52-nano-v1-Q4_K_M.gguf"


def header(layers: int, experts: int, used: int) -> trace.Header:
    return trace.Header(1, "x", layers, experts, used, (100,) * layers)


@st.composite
def routes(draw):
    """A small trace: tokens one after the other, now and then two in one batch."""
    layers, experts, used = draw(st.integers(1, 2)), draw(st.integers(2, 4)), draw(st.integers(1, 2))
    steps, position = [], 0
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(1, 2))
        for layer in range(layers):
            ids = [e for _ in range(rows) for e in draw(st.permutations(range(experts)))[:used]]
            steps.append(trace.Step(position, layer, tuple(ids)))
        position += rows
    return header(layers, experts, used), steps


def fewest_misses(steps: list[trace.Step], slots: int) -> int:
    """Over every choice of what to keep behind each step."""
    states = {frozenset(): 0}
    for step in steps:
        wanted = {(step.layer, expert) for expert in step.ids}
        after: dict[frozenset, int] = {}
        for content, misses in states.items():
            misses += len(wanted - content)
            for kept in itertools.combinations(sorted(content | wanted), min(slots, len(content | wanted))):
                key = frozenset(kept)
                after[key] = min(misses, after.get(key, misses))
        states = after
    return min(states.values())


@given(routes(), st.floats(0, 1))
@settings(deadline=None, max_examples=150)
def test_the_bound_is_the_best_of_all_caches(found, fraction):
    head, steps = found
    points = list(trace.simulate(head, steps, (*rt.native.POLICIES, trace.BELADY), [fraction]))
    bound = points[-1]
    assert bound.policy == trace.BELADY
    assert bound.misses == fewest_misses(steps, bound.slots)
    assert all(bound.misses <= point.misses for point in points)
    tokens = sum(len(step.ids) // head.used for step in steps if step.layer == 0)
    assert bound.bytes_per_token == bound.misses * 100 / tokens
    wanted = sum(len(set(step.ids)) for step in steps)
    assert bound.hit_rate == pytest.approx(1 - bound.misses / wanted)


@given(routes())
@settings(deadline=None, max_examples=50)
def test_habits_are_counted(found):
    head, steps = found
    for own in trace.habits(head, steps):
        rows = [step.ids[at : at + head.used] for step in steps if step.layer == own.layer
                for at in range(0, len(step.ids), head.used)]  # fmt: skip
        counts = Counter(itertools.chain(*rows))
        ranked = sorted((counts[e] for e in range(head.experts)), reverse=True)
        assert own.tokens == len(rows) and own.counts == tuple(counts[e] for e in range(head.experts))
        assert own.load == pytest.approx(ranked[0] / (sum(ranked) / head.experts))
        assert own.top_quarter == pytest.approx(sum(ranked[: max(1, head.experts // 4)]) / sum(ranked))
        pairs = [len(set(a) & set(b)) / head.used for a, b in itertools.pairwise(rows)]
        assert own.repeated == pytest.approx(np.mean(pairs) if pairs else 0)


@given(st.integers(1, 90), st.integers(1, 20), st.integers(1, 100), st.booleans())
@settings(deadline=None, max_examples=200)
def test_pieces_of_a_text(count, size, most, spread):
    ids = list(range(count))
    pieces = pieces_of(ids, size, most, spread)
    assert 0 < sum(map(len, pieces)) <= most and all(0 < len(piece) <= size for piece in pieces)
    assert all(piece == list(range(piece[0], piece[0] + len(piece))) for piece in pieces)
    if not spread or count <= most:
        assert [token for piece in pieces for token in piece] == ids[:most]
    elif len(pieces) > 1:
        assert pieces[0][0] == 0 and pieces[-1][-1] == ids[-1]


# ---- commands ----


def run(capsys, *argv: object) -> tuple[int, str, str]:
    code = cli.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> Path:
    """A folder with what pictures of nano are drawn from."""
    folder = tmp_path_factory.mktemp("recorded")
    text = folder / "text"
    text.write_bytes((ROOT / "tools/nano/heldout.txt").read_bytes()[:1500])
    assert cli.main(["trace", "record", str(NANO), str(folder / "t.trace"), "--text", str(text), "-n", "120",
                     "--experts", "40", "--usage", str(folder / "ledger")]) == 0  # fmt: skip
    assert cli.main(["oracle", "record", str(NANO), str(folder / "record.gz"), "--prompt-file", str(text), "--full",
                     "-n", "2"]) == 0  # fmt: skip
    return folder


def test_a_recorded_text_is_what_the_engine_counted(capsys, recorded, tmp_path):
    code, out, _ = run(capsys, "trace", "record", NANO, tmp_path / "t", "--text", recorded / "text", "-n", 120,
                       "--experts", 40, "--pilot", "measure", "--json")  # fmt: skip
    found = json.loads(out)
    assert code == 0 and found["tokens"] == 120
    assert (tmp_path / "t").read_bytes() == (recorded / "t.trace").read_bytes()
    points = trace.simulate(*trace.read_trace(tmp_path / "t"), ["lru"], [0.5])
    assert next(iter(points)).misses == found["misses"]  # 40 of 80 experts
    # five sparse layers, of which the first is predicted too; of each token but none of the last layer's successor
    assert found["pilot_rows"] == 5 * 120 and 0.5 < found["pilot_recall"] < 1
    assert run(capsys, "trace", "show", tmp_path / "t")[0] == 0
    shown = json.loads(run(capsys, "trace", "show", tmp_path / "t", "--json")[1])
    assert [layer["layer"] for layer in shown] == [3, 4, 5, 6, 7]


def test_a_ledger_and_a_trace_count_alike(recorded):
    assert cli_plot.expert_counts(str(recorded / "ledger")) == cli_plot.expert_counts(str(recorded / "t.trace"))


BENCH = {
    "glm52_bench": 1, "model": {"name": "m"}, "peer": {"name": "llama.cpp"},
    "table": [
        {"context": c, **{m: {s: {"median": 10.0 * k, "min": 9.0 * k, "max": 12.0 * k} for k, s in ((1, "ours"), (2,
         "peer"))} for m in ("prefill", "decode")}} for c in (128, 512)
    ],
    "warm": [{"timeline": [{"seconds": 0.1, "read_bytes": 5e6 * (i % 3), "wait_seconds": 0.04} for i in range(20)]}],
}  # fmt: skip


@pytest.mark.parametrize("kind", ["experts", "ledger", "curves", "csv", "selection", "timeline", "bench"])
def test_every_picture_is_drawn_and_says_what_it_shows(capsys, recorded, tmp_path, kind):
    pytest.importorskip("matplotlib")
    source, picture, says = {
        "experts": (recorded / "t.trace", "experts", ["layer", "most chosen first", "mean of the layer"]),
        "ledger": (recorded / "ledger", "experts", ["layer", "times chosen"]),
        "curves": (recorded / "t.trace", "curves",
                   ["% of all experts", "at hand, %", "per token, MB", "lfru", "Belady"]),
        "csv": (tmp_path / "points.csv", "curves", ["% of all experts", "hotness"]),
        "selection": (recorded / "record.gz", "selection",
                      ["query at position", "attended to", "used again by 3 to 5"]),
        "timeline": (tmp_path / "bench.json", "timeline", ["MB/s", "first token, s", "token, ms", "waiting"]),
        "bench": (tmp_path / "bench.json", "bench", ["tokens per second", "context, tokens", "prefill", "llama.cpp"]),
    }[kind]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(BENCH))
    if kind == "csv":
        assert run(capsys, "trace", "simulate", recorded / "t.trace", "--csv", source)[0] == 0
        with open(source, encoding="utf-8") as file:
            assert {row["policy"] for row in csv.DictReader(file)} == {"lru", "hotness", "lfru", "belady"}
    svg = tmp_path / "out.svg"
    assert run(capsys, "plot", picture, source, "-o", svg, "--title", "A title") == (0, "", "")
    text = svg.read_text()
    for words in [*says, "A title"]:
        assert words in text, words
    if kind == "bench":  # of two files: each line says whose it is
        other = tmp_path / "other.json"
        other.write_text(json.dumps(BENCH | {"model": {"name": "n"}}))
        assert run(capsys, "plot", picture, source, other, "-o", tmp_path / "two.svg")[0] == 0
        two = (tmp_path / "two.svg").read_text()
        assert all(two.count(f">{side}, {name}<") == 1 for side in ("glm52-rt", "llama.cpp") for name in "mn")
    if kind in ("experts", "bench"):
        assert run(capsys, "plot", picture, source, "-o", tmp_path / "out.png")[0] == 0
        data = (tmp_path / "out.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n" and len(data) < 150_000
        assert 800 <= int.from_bytes(data[16:20], "big") <= 1000  # pixels: legible at a README's width
    if kind == "curves":
        assert run(capsys, "plot", picture, source, "-o", tmp_path / "again.svg", "--title", "A title")[0] == 0
        assert re.sub(r'id="[^"]*"|#[a-z0-9]{8,}', "", text) == re.sub(
            r'id="[^"]*"|#[a-z0-9]{8,}', "", (tmp_path / "again.svg").read_text()
        )


def test_selections_of_a_record_are_those_of_the_engine(recorded):
    """What the picture shows of nano: 64 positions, all before while there are no more."""
    from glm52_rt import oracle

    step = next(line for line in oracle.read(recorded / "record.gz") if "layers" in line and "step" in line)
    rows = step["layers"][6]["selected_positions"]
    assert [len(row) for row in rows] == [min(at + 1, 64) for at in range(len(rows))]
    assert all(row == sorted(set(row)) and row[-1] <= at for at, row in enumerate(rows))


def test_what_is_no_source_is_refused(capsys, recorded, tmp_path):
    junk = tmp_path / "junk.csv"
    junk.write_text("glm52_bench\n{}\n")
    for kind in ("experts", "curves", "selection", "timeline", "bench"):
        code, _, err = run(capsys, "plot", kind, junk, "-o", tmp_path / "x.png")
        assert code == 1 and "junk.csv" in err and not (tmp_path / "x.png").exists(), kind
    ledger = tmp_path / "ledger"
    for text in ("glm52-usage 1 8 16\n9 0 4\n", "glm52-usage 1 8 16\n1 16 4\n", "glm52-usage 1 99999 16\n",
                 "glm52-usage 2 8 16\n", "glm52-usage 1 8 16\nend 0 0\n"):  # fmt: skip
        ledger.write_text(text)
        assert run(capsys, "plot", "experts", ledger, "-o", tmp_path / "x.png")[0] == 1, text
    code, _, err = run(capsys, "plot", "experts", recorded / "t.trace", "-o", tmp_path / "x.gif")
    assert code == 1 and "ends in .png or .svg" in err
    plain = tmp_path / "record"
    assert cli.main(["oracle", "record", str(NANO), str(plain), "-p", "Hello", "-n", "0"]) == 0
    assert "record it with --full" in run(capsys, "plot", "selection", plain, "-o", tmp_path / "x.png")[2]


def test_without_matplotlib_it_says_how_to_get_it(capsys, recorded, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, "plot", "experts", recorded / "t.trace", "-o", tmp_path / "x.png")
    assert code == 1 and "pip install glm52-rt[plots]" in err
    assert run(capsys, "trace", "simulate", recorded / "t.trace", "--png", tmp_path / "x.png")[0] == 1
