"""Oracle records: what is repeated is the same bit for bit, and what is not is found where it begins."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt
from reference import Options, Reference, Trace

import glm52_rt as rt
from glm52_rt import cli, oracle

IDS = prompt(24, 400)
Make = Callable[..., Path]


@pytest.fixture(scope="module")
def recorded(micro: rt.Model) -> oracle.Record:
    return oracle.record(micro, IDS, 6, text="a text")


def test_a_record_is_repeated_bit_for_bit(micro: rt.Model, recorded: oracle.Record) -> None:
    """Whatever has no part in the arithmetic: threads, batches, streaming."""
    assert oracle.verify(micro, recorded) == []
    for options in ({"threads": 1}, {"streaming": rt.Streaming(cache_experts=2)}):
        assert oracle.verify(micro, recorded, **options) == []
    for options in ({"chunk_rows": 3}, {"context": 64}):
        assert oracle.diff(recorded, oracle.record(micro, IDS, 6, **options)) == []
    assert oracle.record(micro, IDS, 6, text="a text") == recorded
    assert oracle.record(micro, IDS, 1, chunk_rows=10)[1]["batches"] == [[0, 10], [10, 10], [20, 4]]


def test_a_record_holds_what_happened(micro: rt.Model, recorded: oracle.Record) -> None:
    with rt.Engine(micro, context=40) as engine:
        tokens = list(rt.generate(engine, IDS, 7, temperature=0, stop=()))
    assert [line["argmax"] for line in recorded[1:-1]] == tokens
    head = recorded[0]
    assert head["model"]["identity"] == micro.identity and head["arithmetic"] == "cpu default f16"
    assert head["backend"] == "cpu" and (head["kernels"] == "portable" or head["kernels"] in head["build"])
    assert "0.1.0; " in head["build"] and "-O" in head["build"]
    assert recorded[1]["batches"] == [[0, 24]] and recorded[2]["batches"] == [[24, 1]]
    line = recorded[3]
    assert (line["step"], line["position"], line["token"]) == (2, 26, tokens[1])
    assert len(line["layers"]) == micro.shape.layers and len(line["top"]) == oracle.TOP
    values = [oracle._float(bits) for _, bits in line["top"]]
    assert values == sorted(values, reverse=True)
    used = [len(layer["routes"][0]) for layer in line["layers"]]
    assert used == [0] + [micro.shape.experts_used] * (micro.shape.layers - 1)
    full = oracle.record(micro, IDS, 1, full=True, tensors=True)
    assert len(full[1]["layers"][0]["selected_positions"]) == len(IDS)
    assert set(full[0]["model"]["tensors"]) == {tensor.name for tensor in micro.tensors}
    streamed = oracle.record(micro, IDS, 1, streaming=rt.Streaming(cache_experts=2))
    assert streamed[2]["cache"]["hits"] + streamed[2]["cache"]["misses"] > 0


# A model that is wrong in one constant, and where that must be found first.
WRONG = {
    "selects one position less": ({"index_top_k": 7}, {}, {}, (0, 0, "selected")),
    "one expert less": ({"experts_used": 1}, {}, {}, (0, 1, "routes")),
    "another epsilon in the latent norms": ({}, {}, {"latent_epsilon": 1e-4}, (0, 0, "hidden")),
    "another frequency of rotation": ({}, {"rope.freq_base": 1e4}, {}, (0, 0, "selected")),
    "another scale of the experts": ({}, {"expert_weights_scale": 2.4}, {}, (0, 1, "weights")),
}


def patched(path: Path, values: dict[str, float], folder: Path) -> Path:
    """A copy of the file with other float32 values of some keys."""
    data = bytearray(path.read_bytes())
    for key, value in values.items():
        name = f"glm-dsa.{key}".encode()
        at = data.index(len(name).to_bytes(8, "little") + name) + 8 + len(name)
        assert data[at : at + 4] == (6).to_bytes(4, "little"), "a float32"
        data[at + 4 : at + 8] = np.float32(value).tobytes()
    (folder / "patched.gguf").write_bytes(data)
    return folder / "patched.gguf"


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_constant_is_located(make: Make, tmp_path: Path, what: str) -> None:
    changes, values, options, place = WRONG[what]
    right = make("micro", mix="f32")
    with rt.Model.open(right) as model:
        wanted = oracle.record(model, IDS, 2)
        assert oracle.verify(model, wanted) == []
    wrong = make("micro", mix="f32", changes=changes) if changes else patched(right, values, tmp_path)
    with rt.Model.open(wrong) as model:
        found = oracle.diff(wanted, oracle.record(model, IDS, 2, **options))
        if changes or values:
            assert oracle.verify(model, wanted)[0].quantity == "model"
            assert oracle.verify(model, wanted, check_identity=False)[0] == found[0]
    assert (found[0].step, found[0].layer, found[0].quantity) == place, [str(one) for one in found[:5]]


# ---- margins ----


def test_margins_are_those_of_the_reference(make: Make) -> None:
    """Of every row and layer, in prefill batches and in decoding."""
    path = make("micro", mix="f32")
    trace = Trace()
    Reference(path).hidden(IDS, Options(), trace)
    seen: dict[tuple[int, int], tuple[float, float]] = {}

    def observer(o: rt.Observation) -> None:
        for r in range(len(o.hidden)):
            seen[o.layer, o.position + r] = (float(o.route_margins[r]), float(o.select_margins[r]))

    modes = {"quality": True, "kv_type": "f32", "chunk_rows": 5}
    with rt.Model.open(path) as model, rt.Engine(model, context=40, **modes) as engine:
        engine.observe(observer)
        engine.prefill(IDS[:-2])
        engine.eval(IDS[-2])
        engine.eval(IDS[-1])
        full, top_k, narrow = 0, model.shape.index_top_k, 0
        for layer in range(model.shape.layers):
            full = layer if model.shape.index_full[layer] else full
            for position in range(len(IDS)):
                route, select = seen[layer, position]
                if layer in trace.route_gaps:
                    assert route == pytest.approx(trace.route_gaps[layer][position], abs=1e-5)
                else:
                    assert route == np.inf
                if position < top_k:
                    assert select == np.inf
                    continue
                scores = trace.index_scores[full][position, : position + 1]
                wanted = trace.index_gaps[full][position] / np.sqrt(np.mean(scores**2))
                assert select == pytest.approx(wanted, abs=1e-4), (layer, position)
                narrow += select < 0.1
        assert narrow > 10


def flipped(lines: oracle.Record, step: int, layer: int, quantity: str, margin: float) -> oracle.Record:
    """The record with one decision that was that narrow."""
    other = json.loads(json.dumps(lines))
    names = {"routes": "route_margin", "selected": "select_margin"}
    other[1 + step]["layers"][layer][names[quantity]] = oracle._bits(margin)
    return other


@pytest.mark.parametrize("quantity", ["routes", "selected"])
def test_a_narrow_decision_that_went_another_way_is_named_so(recorded: oracle.Record, quantity: str) -> None:
    """And what follows from it is not compared; a wide one is a difference like any other."""
    digest = {"routes": "routes_digest", "selected": "selected"}[quantity]
    for margin, inside in ((oracle.BOUNDS[quantity] / 2, True), (oracle.BOUNDS[quantity] * 2, False)):
        wanted = flipped(recorded, 2, 3, quantity, margin)
        got = as_other_arithmetic(json.loads(json.dumps(wanted)))
        got[3]["layers"][3][digest] = "0" * 32
        got[3]["layers"][3]["routes"] = [[7, 6]]
        for layer in got[3]["layers"][3:]:
            layer["projections"] = [oracle._bits(1e3)] * oracle.PROJECTIONS
        found = oracle.diff(wanted, got)
        assert (found[0].step, found[0].layer, found[0].quantity) == (2, 3, quantity)
        assert found[0].inside_margin == inside and (len(found) == 1) == inside
        assert f"margin {margin:.1e}, bound {oracle.BOUNDS[quantity]:.1e}: " in str(found[0])
        assert ("not compared" in str(found[0])) == inside
        same = [{**got[0], "arithmetic": wanted[0]["arithmetic"]}, *got[1:]]
        assert not any(one.inside_margin for one in oracle.diff(wanted, same))


def as_other_arithmetic(lines: oracle.Record) -> oracle.Record:
    return [{**lines[0], "arithmetic": "other"}, *lines[1:]]


def test_other_arithmetic_is_held_to_the_bounds(micro: rt.Model, make: Make) -> None:
    with rt.Model.open(make("micro", mix="f32")) as model:
        exact = oracle.record(model, IDS, 3, quality=True, kv_type="f32", bounds={"hidden": 1e-5, "logits": 1e-5})
        rounded = oracle.record(model, IDS, 3, quality=True, kv_type="f16")
        assert oracle.diff(exact, as_other_arithmetic(oracle.record(model, IDS, 3, quality=True, kv_type="f32"))) == []
        found = oracle.diff(exact, rounded)
        assert (found[0].step, found[0].layer, found[0].quantity) == (0, 0, "hidden")
        assert "over 1.0e-05" in found[0].detail
        loose = [{**exact[0], "bounds": {"hidden": 0.02, "logits": 0.02}}, *exact[1:]]
        assert [one for one in oracle.diff(loose, rounded) if one.quantity in ("hidden", "logits")] == []


def test_a_flip_between_near_logits_is_named_so(recorded: oracle.Record) -> None:
    other = json.loads(json.dumps(as_other_arithmetic(recorded)))
    line = other[2]
    (first, a), (second, _) = line["top"][:2]
    near = np.nextafter(np.float32(oracle._float(a)), np.float32(-np.inf))
    recorded = json.loads(json.dumps(recorded))
    recorded[2]["top"][1][1] = oracle._bits(near)
    line["top"][:2] = [[second, a], [first, oracle._bits(near)]]
    line["argmax"] = second
    found = oracle.diff(recorded, other)
    assert [(one.step, one.quantity, one.inside_margin) for one in found] == [(1, "token", True)]
    same = [{**other[0], "arithmetic": recorded[0]["arithmetic"]}, *other[1:]]
    assert not oracle.diff(recorded, same)[-1].inside_margin


def test_projections_measure_the_distance() -> None:
    """Of random rows and of rows that differ in one place alone."""
    random = np.random.Generator(np.random.PCG64(3))
    estimates = []
    for layer in range(200):
        row = random.normal(size=256)
        off = np.zeros(256)
        off[:: 1 if layer % 2 else 256] = random.normal()
        wanted = np.sqrt(np.mean(off**2)) / np.sqrt(np.mean(row**2))
        lines = []
        for values in (row, row + off):
            note = oracle._Layers(False)
            empty = np.zeros((1, 0), np.int32)
            none = np.full(1, np.inf, np.float32)
            seen = (layer, 0, empty, empty.astype("f4"), none, [empty[0]], none, values[None].astype("f4"))
            note.note(rt.Observation(*seen))
            lines.append(note.lines()[0])
        estimates.append(oracle.hidden_distance(*lines) / wanted)
    assert 0.5 < np.median(estimates) < 1.5


def test_damaged_records_are_refused(recorded: oracle.Record, tmp_path: Path) -> None:
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst"):
        oracle.write(recorded, tmp_path / name)
        assert oracle.read(tmp_path / name) == recorded
    data = (tmp_path / "a.jsonl").read_bytes()
    for at in range(0, len(data), 997):
        (tmp_path / "bad").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(rt.ModelError):
            oracle.read(tmp_path / "bad")
        (tmp_path / "bad").write_bytes(data[:at])
        with pytest.raises(rt.ModelError):
            oracle.read(tmp_path / "bad")


def test_records_that_lack_a_field_are_refused(recorded: oracle.Record, tmp_path: Path) -> None:
    """Sealed anew, so that nothing but the field is wrong: whoever reads a record may rely on all of them."""

    def refused(lines: oracle.Record) -> bool:
        oracle.write(oracle.sealed(lines), tmp_path / "a")
        try:
            oracle.read(tmp_path / "a")
        except rt.ModelError as error:
            return "lacks a field" in str(error)
        return False

    lines = recorded[:-1]
    assert not refused(lines)
    needed = 0
    for number in (0, 2):
        for name in lines[number]:
            wanting = json.loads(json.dumps(lines))
            del wanting[number][name]
            if name != "glm52_oracle":
                needed += refused(wanting)
            wrong = json.loads(json.dumps(lines))
            wrong[number][name] = {"a": 1} if not isinstance(wrong[number][name], dict) else 7
            if name in ("layers", "top", "at", "fed", "argmax", "values", "logits_rms", "log_sum", "prompt", "bounds"):
                assert refused(wrong), name
    assert needed >= 20
    for name in ("rms", "projections", "select_margin", "hidden"):
        wanting = json.loads(json.dumps(lines))
        del wanting[2]["layers"][1][name]
        assert refused(wanting)


def test_records_without_zstd_say_what_is_missing(
    recorded: oracle.Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    monkeypatch.setitem(sys.modules, "compression", None)
    with pytest.raises(rt.UnsupportedError, match="zstandard"):
        oracle.write(recorded, tmp_path / "a.zst")


def test_the_record_agrees_with_the_reference(make: Make) -> None:
    path = make("micro", mix="f32")
    with rt.Model.open(path) as model:
        lines = oracle.record(model, IDS, 0, quality=True, kv_type="f32")
    logits = Reference(path).logits(IDS, Options(), rows=[-1])[0]
    for token, bits in lines[1]["top"]:
        assert abs(oracle._float(bits) - logits[token]) < 1e-4


def test_the_command_line_records_verifies_and_compares(
    micro: rt.Model, make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = str(tmp_path / "one.jsonl"), str(tmp_path / "two.jsonl.gz")
    assert cli.main(["oracle", "record", micro.path, one, "--ids", "1,2,3,4,5,6,7,8,9,10", "-n", "3"]) == 0
    assert cli.main(["oracle", "record", micro.path, two, "-p", "return the value", "-n", "1", "--full"]) == 0
    assert cli.main(["oracle", "verify", micro.path, one]) == 0
    assert capsys.readouterr().out == "the same\n"
    assert cli.main(["oracle", "diff", one, two]) == 1
    assert capsys.readouterr().out == "step 0: prompt: another prompt\n"
    other = str(make("micro", seed=99))
    assert cli.main(["oracle", "verify", other, one]) == 1
    assert "model: identity" in capsys.readouterr().out
    assert cli.main(["oracle", "verify", other, one, "--any-model"]) == 1
    assert "layer 0" in capsys.readouterr().out.splitlines()[0]
    assert cli.main(["oracle", "show", two]) == 0
    assert "'return the value'" in capsys.readouterr().out
    assert cli.main(["oracle", "record", micro.path, one, "--ids", "1,x"]) == 1
