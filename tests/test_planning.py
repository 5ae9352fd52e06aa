"""Plans of machines, and the commands plan and trace: known answers of the published file, sums, curves."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import prompt

import glm52_rt as rt
from glm52_rt import cli, trace
from glm52_rt.cli_plan import TABLE_SIZES
from glm52_rt.native import POLICIES
from glm52_rt.planning import (
    Machine,
    curve_from_points,
    plan_machine,
    published_hits,
    routed_layer_bytes,
    uniform_hits,
)

GIB = 1 << 30
EXPERT, MTP_EXPERT = 9_732_096, 12_386_304  # 3 * 3,244,032 in IQ2_XXS, the MTP block's in Q2_K


@pytest.fixture(scope="module")
def full_path(make: Callable[..., Path]) -> Path:
    """The geometry of the published file of 211,075,856,448 bytes, its data a hole."""
    return make("full", sparse=True)


@pytest.fixture(scope="module")
def full(full_path: Path) -> rt.Model:
    return rt.Model.open(full_path)


# ---- the published file ----


def test_the_published_file_is_what_the_known_answers_are_of(full: rt.Model) -> None:
    layers = routed_layer_bytes(full)
    assert layers == [256 * EXPERT] * 75 + [256 * MTP_EXPERT]
    assert full.file_bytes == 211_075_856_448


@pytest.mark.parametrize("gib", [64, 96, 128, 192, 256, 512])
def test_the_automatic_plan_has_671_slots(full: rt.Model, gib: int) -> None:
    made = plan_machine(full, Machine(gib * GIB))
    assert made.published is not None
    assert made.published["slots"] == 671
    assert made.published["expert_bytes"] == EXPERT
    assert made.published["headroom"] == 2 * 256 * MTP_EXPERT
    assert made.published["sized_slots"] == 1323  # of the same bytes, none of them kept free


def test_an_engine_counts_what_a_machine_plan_counts(full: rt.Model) -> None:
    """Without a cap on memory; the automatic cache is 12 GiB in whole experts."""
    plan = rt.plan_memory(full, 4096, streaming=rt.Streaming(memory_bytes=512 * GIB))
    assert plan.expert_cache == 12 * GIB // EXPERT * EXPERT
    assert plan.kv_cache + plan.index_cache == 95_232 * 4096
    assert plan.weights_mapped + 75 * 256 * EXPERT < full.file_bytes
    made = plan_machine(full, Machine(128 * GIB))
    assert (made.resident, made.kv) == (plan.weights_mapped, plan.kv_cache + plan.index_cache)
    whole = rt.plan_memory(full, 4096)
    assert whole.weights_mapped == full.file_bytes


@pytest.mark.parametrize("gib", TABLE_SIZES)
@pytest.mark.parametrize("options", [{}, {"context": 131072, "sessions": 3, "mtp": True, "swap": True}])
def test_a_machine_plan_adds_up_and_stays_inside(full: rt.Model, gib: int, options: dict) -> None:
    made = plan_machine(full, Machine(gib * GIB, disk_rate=3e9), **{"context": 4096, **options})
    assert made.fixed == made.resident + made.kv + made.mtp + made.scratch + made.transient
    assert made.usable < made.machine.memory
    if made.recommended is None:
        assert str(made.fixed) in made.refusal and made.usable < made.fixed + made.minimum_bytes
        return
    assert made.total == made.fixed + made.recommended.cache_bytes <= made.usable
    assert sum(c["slots"] for c in made.classes) == made.recommended.slots
    assert made.recommended.cache_bytes == 75 * 256 * EXPERT or made.recommended.cache_bytes <= made.left * 3 / 8 + 1
    reads = [size.read_bytes for size in made.sizes]
    assert reads == sorted(reads, reverse=True)


def test_what_is_counted_grows_with_what_is_asked(full: rt.Model) -> None:
    one = plan_machine(full, Machine(128 * GIB))
    three = plan_machine(full, Machine(128 * GIB), sessions=3)
    assert three.kv == 3 * one.kv
    assert plan_machine(full, Machine(128 * GIB), swap=True).transient == one.transient + one.kv
    assert plan_machine(full, Machine(128 * GIB), mtp=True).mtp > 16 * MTP_EXPERT
    limited = plan_machine(full, Machine(128 * GIB, working_set=96 * GIB, wired_limit=80 * GIB))
    assert limited.usable == 78 * GIB
    asked = plan_machine(full, Machine(128 * GIB), cache_bytes=40 * GIB)
    assert asked.recommended is not None and asked.recommended.cache_bytes == 40 * GIB // EXPERT * EXPERT
    refused = plan_machine(full, Machine(64 * GIB), cache_bytes=60 * GIB)
    assert refused.recommended is None and str(60 * GIB) in refused.refusal


def test_direct_reads_leave_nothing_to_the_page_cache(full: rt.Model) -> None:
    made = plan_machine(full, Machine(64 * GIB), direct_io=True)
    assert made.recommended is not None
    assert made.recommended.cache_bytes > made.left - EXPERT
    assert all(size.disk_bytes == size.read_bytes for size in made.sizes)


def test_curves() -> None:
    # the published points that the curve is fitted to: fraction, hit rate
    published = {0.05: 0.303, 0.12: 0.501, 0.25: 0.667, 0.45: 0.822, 0.64: 0.902, 0.9: 0.924}
    assert all(abs(published_hits(f) - h) < 0.016 for f, h in published.items())
    assert (published_hits(0), published_hits(1), uniform_hits(0.3), uniform_hits(2)) == (0, 1, 0.3, 1)
    curve = curve_from_points([(0.5, 0.8), (0.1, 0.4)])
    assert [curve(f) for f in (0.05, 0.1, 0.3, 0.5, 1)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8])


# ---- commands ----


def test_plan_prints_parts_that_add_up(full_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(full_path), "--ram", "128GiB", "--context", "16384", "--mtp"]) == 0
    text = capsys.readouterr().out
    lines = {line[:18].strip(): float(line[18:].split()[0]) for line in text.split("\n\n")[0].splitlines()}
    total = lines.pop("total")
    del lines["machine"]
    assert abs(sum(lines.values()) - total) < 0.005 * len(lines) + 0.005
    assert "671 slots of 9,732,096 bytes" in text and "size classes: 1323" in text and "<- recommended" in text
    assert cli.main(["plan", str(full_path), "--ram", "128GiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["total"] == found["fixed"] + found["recommended"]["cache_bytes"]


def test_plan_table_and_refusal(full_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", str(full_path), "--table"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert len(rows) == 2 + len(TABLE_SIZES) and {row.count("|") for row in rows} == {12}
    assert cli.main(["plan", str(full_path), "--ram", "16GiB"]) == 1
    assert "does not fit" in capsys.readouterr().out


@pytest.fixture(scope="module")
def tiny_path(make: Callable[..., Path]) -> Path:
    return make("tiny", changes={"index_top_k": 8})


def record(path: Path, model: Path, *options: str) -> None:
    args = ["run", str(model), "-p", "a b c d e f g", "-n", "6", "--temp", "0", "--trace", str(path)]
    assert cli.main([*args, *options]) == 0


def test_a_trace_is_what_the_observer_saw(tiny_path: Path, tmp_path: Path) -> None:
    seen = []
    ids = prompt(9, 2048)
    with rt.Model.open(tiny_path) as model, rt.Engine(model, context=16, chunk_rows=4) as engine:
        with open(tmp_path / "t", "w") as file:
            recorder = trace.Recorder(model, file)
            engine.observe(lambda o: (recorder(o), seen.append(o)))
            engine.prefill(ids)
        header, steps = trace.read_trace(tmp_path / "t")
        assert header.identity == model.identity and header.used == 4
        assert header.expert_bytes == (0, 0, 0) + (3 * 69632,) * 5
    sparse = [o for o in seen if o.layer >= 3]
    assert [(s.position, s.layer, list(s.ids)) for s in steps] == [
        (o.position, o.layer, o.route_ids.ravel().tolist()) for o in sparse
    ]


def test_simulation_gives_what_the_engine_counted(tiny_path: Path, tmp_path: Path) -> None:
    """The same cache, run and simulated: equal to the last hit."""
    with rt.Model.open(tiny_path) as model:
        for policy in POLICIES:
            streaming = rt.Streaming(cache_experts=24, policy=policy)
            with rt.Engine(model, context=40, chunk_rows=8, streaming=streaming) as engine:
                with open(tmp_path / "t", "w") as file:
                    engine.observe(trace.Recorder(model, file))
                    engine.prefill(prompt(20, 2048))
                    for token in range(8):
                        engine.eval(token)
                stats = engine.stats().stream
            (point,) = trace.simulate(*trace.read_trace(tmp_path / "t"), [policy], [24 / 80])
            assert point.slots == 24
            assert (point.misses, point.evictions) == (stats.misses, stats.evictions)
            assert point.hit_rate == stats.hits / (stats.hits + stats.misses)
            assert point.bytes_per_token == stats.read_bytes / 28


def test_trace_commands(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b, c = (tmp_path / name for name in "abc")
    record(a, tiny_path)
    record(b, tiny_path, "--experts", "20")
    record(c, tiny_path, "--quality")
    capsys.readouterr()
    assert cli.main(["trace", "compare", str(a), str(b)]) == 0
    assert "100.00%" in capsys.readouterr().out
    header = a.read_text().splitlines()
    changed = header[5].split()
    changed[2] = str((int(changed[2]) + 1) % 16) if (int(changed[2]) + 1) % 16 not in map(int, changed[2:6]) else "15"
    c.write_text("\n".join([*header[:5], " ".join(changed), *header[6:]]) + "\n")
    assert cli.main(["trace", "compare", str(a), str(c), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["first"] == [0, 7] and found["equal"] == found["routes"] - 1

    pytest.importorskip("matplotlib")
    png, points = tmp_path / "curve.png", tmp_path / "curve.csv"
    assert cli.main(["trace", "simulate", str(a), "--png", str(png), "--csv", str(points)]) == 0
    assert png.read_bytes().startswith(b"\x89PNG")
    with open(points, newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["policy"] for row in rows} == {*POLICIES, "belady"}
    assert all(0 <= float(row["hit_rate"]) <= 1 for row in rows)
    capsys.readouterr()
    assert cli.main(["plan", str(tiny_path), "--curve", str(points)]) == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no trace"),
        ("{}\n", "no trace"),
        ('{"glm52_trace": 2, "identity": "", "layers": 1, "experts": 4, "used": 1, "expert_bytes": [1]}\n', "format 2"),
        ('{"glm52_trace": 1, "identity": "", "layers": 1, "experts": 4, "used": 5, "expert_bytes": [1]}\n', "contra"),
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t").write_text(text)
    with pytest.raises(rt.ArgumentError, match=words):
        trace.read_trace(tmp_path / "t")


@pytest.mark.parametrize("row", ["0 0", "0 0 9 1", "0 9 1 2", "0 1 1 2", "x", "0 0 1", "-1 0 1 2"])
def test_a_damaged_row_is_named(tmp_path: Path, row: str) -> None:
    head = '{"glm52_trace": 1, "identity": "", "layers": 2, "experts": 4, "used": 2, "expert_bytes": [1, 0]}'
    (tmp_path / "t").write_text(f"{head}\n0 0 1 2\n{row}\n")
    with pytest.raises(rt.ArgumentError, match="line 3"):
        trace.read_trace(tmp_path / "t")


def test_run_tells_what_streaming_did(tiny_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["run", str(tiny_path), "-p", "a b c d", "-n", "5", "--temp", "0"]
    assert cli.main([*args, "--experts", "20", "--policy", "hotness", "--usage", str(tmp_path / "u")]) == 0
    streamed = capsys.readouterr()
    assert "at hand" in streamed.err and "read per token" in streamed.err
    assert cli.main(args) == 0
    assert capsys.readouterr().out == streamed.out
    assert cli.main([*args, "--cache", "auto", "--preload", "10", "--usage", str(tmp_path / "u"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    stats = found["streaming"]["stats"]
    assert stats["preloaded"] == 10 and stats["hits"] + stats["misses"] > 0
    assert sum(value for name, value in found["plan"].items() if name != "total") == found["plan"]["total"]
    assert cli.main([*args, "--experts", "3"]) == 1
    assert "at least 4" in capsys.readouterr().err


def test_the_documented_table_is_what_plan_prints(
    root: Path, full_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """To a hundredth: scratch depends on the number of processors."""

    def cells(text: str) -> list[list[str]]:
        return [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ") and " GiB |" in row]

    assert cli.main(["plan", str(full_path), "--table"]) == 0
    printed = cells(capsys.readouterr().out)
    documented = cells((root / "docs/STREAMING.md").read_text(encoding="utf-8"))
    assert len(printed) == len(documented) == len(TABLE_SIZES)
    for row, wanted in zip(documented, printed, strict=True):
        assert len(row) == len(wanted)
        for cell, other in zip(row, wanted, strict=True):
            numbers = [float(text.split()[0].strip("%")) for text in (cell, other) if text[:1].isdigit()]
            assert cell == other or numbers[0] == pytest.approx(numbers[1], rel=0.01, abs=0.02), (row, wanted)
