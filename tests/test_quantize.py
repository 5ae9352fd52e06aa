"""Quantising: blocks against the gguf package and against what information theory allows, rules, files, importance."""

import contextlib
import json
import os
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import quants

import glm52_rt as rt
from glm52_rt import cli, gguf_writer, imatrix, quantize
from glm52_rt.errors import ArgumentError, Cancelled, ModelError, UnsupportedError
from glm52_rt.native_encode import decode, encode, written_types

from conftest import prompt

# Bits per value, everything stored counted.
BITS = {
    "Q4_0": 4.5, "Q4_1": 5, "Q5_0": 5.5, "Q5_1": 6, "Q8_0": 8.5, "Q2_K": 2.625, "Q3_K": 3.4375, "Q4_K": 4.5,
    "Q5_K": 5.5, "Q6_K": 6.5625, "IQ2_XXS": 2.0625, "IQ2_XS": 2.3125, "IQ3_XXS": 3.0625, "IQ4_NL": 4.5,
    "IQ4_XS": 4.25, "MXFP4": 4.25,
}  # fmt: skip
# Of them in codes and signs.
CODE_BITS = {
    "Q4_0": 4, "Q4_1": 4, "Q5_0": 5, "Q5_1": 5, "Q8_0": 8, "Q2_K": 2, "Q3_K": 3, "Q4_K": 4, "Q5_K": 5, "Q6_K": 6,
    "IQ2_XXS": 15 / 8, "IQ2_XS": 2, "IQ3_XXS": 23 / 8, "IQ4_NL": 4, "IQ4_XS": 4,
}  # fmt: skip
# The smallest geometry whose rows hold blocks of 256, and one, k_b's, that does not.
SIZES = {"hidden": 256, "expert_ff": 256, "q_lora": 256, "dense_ff": 256, "experts": 4, "layers": 3, "vocab": 512,
         "kv_lora": 256, "index_heads": 16, "index_key": 32, "heads": 2, "value": 128}  # fmt: skip


def kind(name: str) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[name]


def drawn(seed: int, rows: int = 32, columns: int = 1024) -> np.ndarray:
    return (np.random.Generator(np.random.PCG64(seed)).standard_normal((rows, columns)) * 0.02).astype(np.float32)


def relative(x: np.ndarray, y: np.ndarray, w: np.ndarray | float = 1.0) -> float:
    x, y = x.astype(np.float64), y.astype(np.float64)
    return float(np.sqrt((w * (x - y) ** 2).sum() / (w * x**2).sum()))


# ---- blocks ----


def test_every_written_type_is_known_here():
    assert set(written_types()) == set(BITS) | {"F32", "F16", "BF16"}


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q8_0"])
def test_what_leaves_no_choice_is_what_the_gguf_package_writes_bit_for_bit(name):
    """Normal rows, rows with a few large values, rows of every size of float16's range, exact halves."""
    rng = np.random.Generator(np.random.PCG64(5))
    rows = [drawn(1), rng.standard_t(2, (32, 1024)).astype(np.float32)]
    rows.append((drawn(2) * np.exp2(rng.integers(-20, 14, (32, 1))).astype(np.float32)).astype(np.float32))
    rows.append((rng.integers(-254, 255, (32, 1024)) / 2).astype(np.float32))
    for x in rows:
        wanted = quants.quantize(x, kind(name)).view(np.uint8)
        assert np.array_equal(encode(name, x), wanted)


def test_every_kind_of_float_becomes_the_nearest_half_or_bfloat16():
    """Random patterns, ties of both types, infinities and NaNs. A NaN stays one; bfloat16's keeps its upper bits."""
    bits = np.random.Generator(np.random.PCG64(9)).integers(0, 2**32, 1 << 16, dtype=np.uint32)
    ties = np.concatenate([bits[:4096] & 0xFFFF0000 | 0x8000, bits[4096:8192] & 0xFFFFE000 | 0x1000])
    ends = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFC12345, 0x7F7FFFFF, 1, 0x80000000, 0x477FEFFF, 0x477FF000,
                     0x33000000, 0x33000001, 0x7FFFFFFF, 0x7F80FFFF], np.uint32)  # fmt: skip
    x = np.concatenate([bits, ties, ends]).view(np.float32).reshape(1, -1)
    with np.errstate(all="ignore"):
        halves = x.astype(np.float16).view(np.uint16)
        bfloats = quants.quantize(x, kind("BF16")).view(np.uint16)
    found = encode("F16", x).view(np.uint16)
    assert np.array_equal(found[~np.isnan(x)], halves[~np.isnan(x)])
    assert np.isnan(found.view(np.float16)[np.isnan(x)]).all()
    assert np.array_equal(encode("BF16", x).view(np.uint16), bfloats)


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"])
def test_searches_leave_less_than_the_gguf_package_does(name):
    for x in (drawn(3), np.random.Generator(np.random.PCG64(6)).standard_t(4, (32, 1024)).astype(np.float32)):
        theirs = quants.dequantize(quants.quantize(x, kind(name)), kind(name))
        assert relative(x, decode(name, encode(name, x)).reshape(x.shape)) <= relative(x, theirs)


@pytest.mark.parametrize("name", BITS)
def test_errors_lie_between_shannons_bound_and_that_of_one_scale_for_all(name):
    """No code of b bits per value, scales included, leaves less than 2^-b of normal values' deviation (Shannon). The
    best scalar code of c bits per value for normal values with one scale leaves sqrt(sqrt(3) pi / 2) 2^-c (Panter and
    Dite, 1951): blocks have scales of their own and do better. MXFP4's scales are powers of two, and its codes
    floats."""
    x = drawn(4)
    for importance in (None, np.exp(np.random.Generator(np.random.PCG64(7)).standard_normal(1024)).astype(np.float32)):
        blocks = encode(name, x, importance)
        y = decode(name, blocks).reshape(x.shape)
        assert np.array_equal(y.ravel().view(np.uint32), quants.dequantize(blocks, kind(name)).ravel().view(np.uint32))
        error = relative(x, y)
        assert error > 2.0 ** -BITS[name]
        if importance is None and name != "MXFP4":
            assert error < np.sqrt(np.sqrt(3) * np.pi / 2) * 2.0 ** -CODE_BITS[name]


def test_encode_refuses_what_it_is_not_made_for():
    x = drawn(1, 2, 256)
    with pytest.raises(UnsupportedError, match="IQ1_S"):
        encode("IQ1_S", x)
    with pytest.raises(ArgumentError, match="no type"):
        encode("Q9_9", x)
    with pytest.raises(ArgumentError, match="no multiple"):
        encode("Q4_K", x[:, :128])
    with pytest.raises(ArgumentError, match="dimensions"):
        encode("Q4_K", x[0])
    with pytest.raises(ArgumentError, match="importance of shape"):
        encode("Q4_K", x, np.ones(255, np.float32))
    with pytest.raises(ArgumentError, match="whole blocks"):
        decode("Q4_K", bytes(143))
    x[1, 7] = np.nan
    with pytest.raises(ArgumentError, match="row 1, column 7 is nan"):
        encode("Q8_0", x)


# ---- rules ----


def tensor(name: str, *shape: int, kind: str = "F32") -> rt.native.Tensor:
    return rt.native.Tensor(name, kind, shape, int(np.prod(shape)) * 4)


def test_the_first_rule_that_fits_decides():
    rules = quantize.parse_rules(r"blk\.1\..*_exps=q2_k, ffn_.*_exps = IQ2_XXS, attn_q=keep,q8_0", 3)
    types = {
        "blk.1.ffn_up_exps.weight": "Q2_K", "blk.2.ffn_up_exps.weight": "IQ2_XXS", "blk.1.attn_q_a.weight": "F32",
        "blk.1.ffn_up.weight": "Q8_0", "blk.1.ffn_gate_inp.weight": "F32", "blk.1.attn_norm.weight": "F32",
        "blk.1.exp_probs_b.bias": "F32", "blk.0.indexer.proj.weight": "F32",
    }  # fmt: skip
    for name, wanted in types.items():
        assert quantize.choose(tensor(name, 256, 4), rules).type == wanted, name
    assert quantize.choose(tensor("blk.1.ffn_up.weight", 256), rules).type == "F32"
    assert quantize.choose(tensor("blk.0.indexer.proj.weight", 256, 4),
                           quantize.parse_rules(r"indexer\.proj=q8_0,*=f16", 3)).type == "Q8_0"  # fmt: skip


def test_where_blocks_do_not_divide_a_row_another_type_takes_their_place():
    for name, wanted in (("q2_k", "Q4_0"), ("q4_k", "Q5_0"), ("q5_k", "Q5_1"), ("q6_k", "Q8_0"), ("iq2_xxs", "IQ4_NL")):
        choice = quantize.choose(tensor("blk.0.attn_k_b.weight", 192, 512, 64), quantize.parse_rules(name, 3))
        assert choice.type == wanted and "192" in choice.why
    assert quantize.choose(tensor("blk.0.x.weight", 100, 4), quantize.parse_rules("q4_k", 3)).type == "F16"


@pytest.mark.parametrize("text", ["", "q9", "x=q9", "keep", "(=q8_0", "ffn=", "q2_k=ffn"])
def test_rules_that_are_none_are_named(text):
    with pytest.raises(ArgumentError):
        quantize.parse_rules(text, 3)


def test_a_tensor_that_no_rule_fits_is_named():
    with pytest.raises(ArgumentError, match=r"no rule fits blk\.0\.ffn_up\.weight"):
        quantize.choose(tensor("blk.0.ffn_up.weight", 256, 4), quantize.parse_rules("attn=q8_0", 3))


@pytest.mark.parametrize(
    ("preset", "file_bytes"),
    [("published-iq2_xxs", 211_075_856_448), ("published-q2_k", 262_036_650_048), ("published-q4_k", 434_170_886_208)],
)
def test_presets_give_the_published_files_to_the_byte(make, preset, file_bytes):
    """All three have headers of 9,540,672 bytes."""
    with rt.Model.open(make("full", sparse=True)) as model:
        types = quantize.plan(model, preset, requantize=True).by_type()
    assert sum(size for _, size in types.values()) == file_bytes - 9_540_672
    assert sum(tensors for tensors, _ in types.values()) == 1809


# ---- files ----


@pytest.fixture(scope="module")
def source(make) -> Path:
    return make("micro", mix="f32", changes=SIZES)


RULES = "ffn_down_exps=q2_k, ffn_.*_exps=iq2_xxs, attn_q_b=iq3_xxs, ffn_=q4_k, attn_output=bf16, token_embd=keep, q8_0"


def quantised(source: Path, out: Path, rules: str = RULES, **options) -> quantize.Result:
    found = options.pop("importance", None)
    with rt.Model.open(source) as model:
        return quantize.run(quantize.plan(model, rules, found), out, **options)


def test_a_file_holds_each_tensor_as_its_rule_says_and_everything_else_as_it_was(source, tmp_path):
    result = quantised(source, tmp_path / "new.gguf", measure=True)
    with rt.Model.open(source) as old, rt.Model.open(tmp_path / "new.gguf") as new:
        assert [t.name for t in new.tensors] == [t.name for t in old.tensors]
        with gguf_writer.Reader(old) as reader, gguf_writer.Reader(new) as written:
            rules = quantize.parse_rules(RULES, old.shape.layers)
            for before, after in zip(old.tensors, new.tensors, strict=True):
                data = reader.read(before, 0, before.bytes)
                choice = quantize.choose(before, rules)
                assert (after.type, after.shape) == (choice.type, before.shape)
                if not choice.copied:
                    data = encode(after.type, np.frombuffer(data, np.float32).reshape(-1, before.shape[0])).tobytes()
                assert written.read(after, 0, after.bytes) == data, before.name
        added = {"general.file_type", "general.quantization_version"}
        pairs = [{one.key: one for one in gguf_writer.pairs_of(model) if one.key not in added} for model in (old, new)]
        assert pairs[0] == pairs[1]
        assert new.metadata["general.quantization_version"] == 2
        assert {t.type for t in new.tensors} >= {"Q2_K", "IQ2_XXS", "IQ3_XXS", "Q4_K", "BF16", "Q8_0", "F32"}
    assert result.written_bytes == os.path.getsize(tmp_path / "new.gguf")
    assert 0.2 < result.losses["IQ2_XXS"].relative < 0.4 and result.losses["Q8_0"].relative < 0.01


def test_the_new_file_runs_and_says_much_the_same(source, tmp_path):
    quantised(source, tmp_path / "new.gguf", "q8_0")
    logits = []
    for path in (source, tmp_path / "new.gguf"):
        with rt.Model.open(path) as model, rt.Engine(model, context=32, threads=1) as engine:
            engine.prefill(prompt(8, model.shape.vocab))
            logits.append(engine.logits.copy())
    assert np.isfinite(logits[1]).all() and np.corrcoef(*logits)[0, 1] > 0.9


def test_neither_threads_nor_the_cut_change_a_byte(source, tmp_path, monkeypatch):
    quantised(source, tmp_path / "a.gguf", threads=1)
    monkeypatch.setattr(quantize, "UNIT_VALUES", 256 * 7)
    quantised(source, tmp_path / "b.gguf", threads=3)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_memory_is_that_of_units_and_not_of_tensors(source, tmp_path, monkeypatch):
    """Three threads with units of 8,192 values: nine of them at most, of 32 KiB as float32, some of them twice."""
    monkeypatch.setattr(quantize, "UNIT_VALUES", 8192)
    with rt.Model.open(source) as model:
        job = quantize.plan(model, RULES)
        largest = max(t.bytes for t in model.tensors)
        tracemalloc.start()
        try:
            quantize.run(job, tmp_path / "new.gguf", threads=3)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert largest >= 1 << 20
    assert peak < (1 << 20) + len(job.layout.header) * 4


def test_a_cancelled_call_leaves_nothing_and_one_that_resumes_goes_on(source, tmp_path):
    def until(name: str):
        return lambda done, total, tensor: tensor != name

    out = tmp_path / "new.gguf"
    with pytest.raises(Cancelled, match="bytes were read"):
        quantised(source, out, progress=until("blk.1.ffn_up_exps.weight"))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Cancelled):
        quantised(source, out, progress=until("blk.1.ffn_up_exps.weight"), resume=True)
    assert not out.exists()
    seen = []
    quantised(source, out, resume=True, progress=lambda done, total, tensor: seen.append((done, total, tensor)))
    assert seen[0][2] == "blk.1.ffn_up_exps.weight" and seen[-1][0] == seen[-1][1]
    quantised(source, tmp_path / "whole.gguf")
    assert out.read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_file_that_is_there_is_not_written_over(source, tmp_path):
    out = tmp_path / "new.gguf"
    out.write_bytes(b"mine")
    with pytest.raises(ArgumentError, match="exists"):
        quantised(source, out)
    assert out.read_bytes() == b"mine"
    quantised(source, out, overwrite=True)
    with pytest.raises(ArgumentError, match="onto itself"):
        quantised(out, out, "*=keep", overwrite=True)


def test_weights_that_are_quantised_already_are_taken_only_when_asked(source, tmp_path):
    quantised(source, tmp_path / "q8.gguf", "q8_0")
    with rt.Model.open(tmp_path / "q8.gguf") as model:
        with pytest.raises(ArgumentError, match=r"is Q8_0 already .* \(--requantize\)"):
            quantize.plan(model, "q4_k")
        quantize.run(quantize.plan(model, "q4_k", requantize=True), tmp_path / "q4.gguf")
        quantize.run(quantize.plan(model, "*=keep"), tmp_path / "same.gguf")
    assert (tmp_path / "same.gguf").read_bytes() == (tmp_path / "q8.gguf").read_bytes()
    with rt.Model.open(tmp_path / "q4.gguf") as model:
        assert {t.type for t in model.tensors} == {"F32", "Q4_K", "Q5_0"}


def test_a_weight_that_is_no_number_is_named_and_nothing_is_written(source, tmp_path):
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(source.read_bytes())
    with rt.Model.open(bad) as model:
        where = next(t for t in model.tensors if t.name == "blk.1.ffn_gate_exps.weight")
    with open(bad, "r+b") as file:
        file.seek(where.offset + 4 * (256 * 3 + 5))
        file.write(np.float32(np.nan).tobytes())
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_gate_exps\.weight, rows from 0 on: row 3, column 5 is nan"):
        quantised(bad, tmp_path / "new.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


# ---- importance ----


class Collected:
    """What an engine showed of some tokens: every call, and the routes that its observer saw."""

    def __init__(self, path: Path, ids: list[int], **options) -> None:
        self.inputs, self.routes = [], {}
        with rt.Model.open(path) as model, rt.Engine(model, context=64, threads=2, **options) as engine:
            engine.prefill(ids)
            self.plain = engine.logits.copy()
            engine.reset()
            engine.observe(lambda seen: self.routes.setdefault(seen.layer, []).append(seen))
            engine.observe_inputs(self.inputs.append)
            engine.prefill(ids)
            self.logits = engine.logits.copy()
            engine.observe_inputs(None)
            count = len(self.inputs)
            engine.reset()
            engine.prefill(ids)
            assert len(self.inputs) == count
            self.after = engine.logits.copy()


@pytest.fixture(scope="module")
def collected(source) -> Collected:
    return Collected(source, prompt(40, 512), quality=True, kv_type="f32")


def weights(path: Path, name: str) -> np.ndarray:
    with rt.Model.open(path) as model, gguf_writer.Reader(model) as reader:
        found = next(t for t in model.tensors if t.name == name)
        return decode(found.type, reader.read(found, 0, found.bytes)).reshape(found.shape[::-1])


def test_observing_inputs_changes_no_bit(collected):
    assert np.array_equal(collected.plain, collected.logits) and np.array_equal(collected.plain, collected.after)


def test_the_first_input_is_the_normed_embedding(collected, source):
    first = collected.inputs[0]
    assert first.tensor == "blk.0.attn_q_a.weight" and first.experts is None
    h = weights(source, "token_embd.weight")[prompt(40, 512)].astype(np.float64)
    h /= np.sqrt((h**2).mean(1, keepdims=True) + 1e-5)
    assert relative(h * weights(source, "blk.0.attn_norm.weight"), first.x[:, 0]) < 1e-6


def test_down_matrices_of_experts_meet_what_gate_and_up_make(collected, source):
    """Float32 dot products of 256 values: 1e-5 is a hundred roundings."""
    name = "blk.1.ffn_{}_exps.weight"
    shown = {part: [one for one in collected.inputs if one.tensor == name.format(part)] for part in ("gate", "down")}
    x, ids = shown["gate"][0].x[:, 0].astype(np.float64), shown["gate"][0].experts
    gate, up = (weights(source, name.format(part)).astype(np.float64) for part in ("gate", "up"))
    rows = 0
    for one in shown["down"]:
        expert = int(one.experts[0, 0])
        assert (one.experts == expert).all()
        chosen = x[(ids == expert).any(1)]
        a, b = chosen @ gate[expert].T, chosen @ up[expert].T
        assert relative(a / (1 + np.exp(-a)) * b, one.x[:, 0]) < 1e-5
        rows += len(one.x)
    assert rows == ids.size


def test_heads_meet_groups_and_every_matrix_is_shown(collected, source):
    with rt.Model.open(source) as model:
        shape = model.shape
        wanted = {t.name for t in model.tensors if t.name.endswith(".weight") and len(t.shape) > 1}
        mtp = {t.name for t in model.tensors if t.name.startswith(f"blk.{shape.layers}.")}
    assert {one.tensor for one in collected.inputs} == wanted - mtp - {"token_embd.weight"}
    k_b = next(one for one in collected.inputs if one.tensor == "blk.0.attn_k_b.weight")
    assert k_b.x.shape == (40, shape.heads, shape.key_mla - shape.rope)


def test_sums_are_of_squares_and_counts_of_rows(collected, source, tmp_path):
    with rt.Model.open(source) as model, rt.Engine(model, context=64, threads=1, quality=True, kv_type="f32") as engine:
        found = imatrix.Imatrix(chunk_size=40)
        imatrix.collect(engine, [prompt(40, 512)], found)
        assert engine.position == 0
    for one in collected.inputs:
        if one.experts is None and one.tensor in found.sums:
            squares = (one.x.astype(np.float64) ** 2).sum(0)
            assert np.allclose(found.sums[one.tensor].squares, squares, rtol=1e-6)
            assert found.sums[one.tensor].counts.tolist() == [40]
    gate = next(one for one in collected.inputs if one.tensor == "blk.2.ffn_gate_exps.weight")
    sums = found.sums["blk.2.ffn_up_exps.weight"]
    for expert in range(gate.expert_count):
        rows = gate.x[(gate.experts == expert).any(1), 0].astype(np.float64)
        assert sums.counts[expert] == len(rows)
        assert np.allclose(sums.squares[expert], (rows**2).sum(0), rtol=1e-6)
    assert "output.weight" not in found.sums and not [name for name in found.sums if "gate_inp" in name]

    found.save(tmp_path / "i.gguf")
    again = imatrix.load(tmp_path / "i.gguf")
    assert again.sums.keys() == found.sums.keys() and (again.chunk_count, again.chunk_size) == (1, 40)
    for name, sums in found.sums.items():
        assert np.array_equal(again.sums[name].squares.ravel(), sums.squares.astype(np.float32).ravel())
    reader = gguf.GGUFReader(tmp_path / "i.gguf")
    assert reader.fields["general.type"].contents() == "imatrix"
    shapes = {t.name: t.shape.tolist() for t in reader.tensors}
    assert shapes["blk.2.ffn_up_exps.weight.in_sum2"] == [256, 4]
    assert shapes["blk.2.ffn_up_exps.weight.counts"] == [1, 4]
    assert shapes["blk.0.attn_k_b.weight.in_sum2"] == [64, 1]


def test_an_importance_matrix_makes_the_weighted_error_smaller(source, tmp_path):
    found = imatrix.Imatrix(chunk_count=3, datasets=["text"])
    rng = np.random.Generator(np.random.PCG64(8))
    name = "blk.1.ffn_up_exps.weight"
    squares = np.exp(rng.standard_normal((4, 256)) * 1.5)
    found.sums[name] = imatrix.Sums(squares * 10, np.array([10.0, 10, 0, 10]))
    quantised(source, tmp_path / "plain.gguf")
    quantised(source, tmp_path / "weighted.gguf", importance=found)
    w, plain, weighted = (weights(path, name) for path in (source, tmp_path / "plain.gguf", tmp_path / "weighted.gguf"))
    for expert in range(4):
        errors = [relative(w[expert], y[expert], squares[expert]) for y in (plain, weighted)]
        if expert == 2:  # met no row: as if all columns were alike
            assert np.array_equal(plain[expert], weighted[expert])
        else:
            assert errors[1] < 0.9 * errors[0]
    with rt.Model.open(tmp_path / "weighted.gguf") as model:
        assert model.metadata["quantize.imatrix.chunks_count"] == 3
        assert model.metadata["quantize.imatrix.dataset"] == "text"


def test_importance_of_another_model_is_refused(source):
    found = imatrix.Imatrix({"blk.1.ffn_up_exps.weight": imatrix.Sums(np.ones((4, 128)), np.ones(4))})
    with rt.Model.open(source) as model, pytest.raises(ModelError, match=r"512 sums and 4 counts, not 4 x 256"):
        quantize.plan(model, RULES, found)


def test_files_that_are_no_importance_matrix_are_refused(source, tmp_path):
    path = tmp_path / "i.gguf"
    path.write_bytes(b"\x01\x00\x00\x00 old format")
    with pytest.raises(ModelError, match="older .dat"):
        imatrix.load(path)
    with pytest.raises(ModelError, match="holds no importance"):
        imatrix.load(source)
    for squares, counts, why in (
        ([1.0, -1], [1.0], "negative"), ([1.0, np.nan], [1.0], "not finite"), ([1.0, 2, 3], [1.0, 1], "that fit"),
    ):  # fmt: skip
        names = ("a.in_sum2", "a.counts")
        entries = [gguf_writer.Entry(n, "F32", (len(v),)) for n, v in zip(names, (squares, counts), strict=True)]
        with gguf_writer.Writer(path, [], entries, overwrite=True) as writer:
            writer.write([np.array(squares, np.float32).tobytes()])
            writer.write([np.array(counts, np.float32).tobytes()])
        with pytest.raises(ModelError, match=why):
            imatrix.load(path)
    imatrix.Imatrix({"a": imatrix.Sums(np.ones((1, 64)), np.ones(1))}).save(path, overwrite=True)
    data = path.read_bytes()
    for cut in range(4, len(data) - 300, 7):  # the last tensor's bytes may end in padding
        path.write_bytes(data[:cut])
        with contextlib.suppress(ModelError):
            assert imatrix.load(path).sums["a"].squares.size == 64
    with pytest.raises(ModelError, match="not finite"):
        imatrix.Imatrix({"a": imatrix.Sums(np.full((1, 2), np.inf), np.ones(1))}).save(tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


# ---- commands ----


def call(capsys, *argv: object) -> tuple[int, str, str]:
    code = cli.main([str(arg) for arg in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_the_commands_work_together(capsys, source, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("the quick brown fox jumps over the lazy dog " * 20)
    code, out, err = call(capsys, "imatrix", source, "--text", text, "-o", tmp_path / "i.gguf", "--chunk", 16,
                          "--chunks", 3, "--threads", 1, "--json")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["chunks"] == 3
    code, out, err = call(capsys, "imatrix", source, "--text", text, "-o", tmp_path / "j.gguf", "--chunk", 16,
                          "--chunks", 2, "--add", tmp_path / "i.gguf", "--with-output")  # fmt: skip
    assert code == 0 and "chunks of 16 tokens" in out, err
    both = imatrix.load(tmp_path / "j.gguf")
    assert both.chunk_count == 5 and both.sums["blk.0.attn_q_a.weight"].counts.tolist() == [80]
    assert both.sums["output.weight"].counts.tolist() == [2]
    arguments = ("quantize", source, "ffn_.*_exps=iq2_xxs, q8_0", "--imatrix", tmp_path / "j.gguf")
    code, out, _ = call(capsys, *arguments, "--dry-run", "--json")
    planned = json.loads(out)
    assert code == 0 and not (tmp_path / "new.gguf").exists()
    code, out, err = call(capsys, *arguments, "-o", tmp_path / "new.gguf", "--errors", "--json")
    done = json.loads(out)
    assert code == 0, err
    assert planned["bytes"] == done["bytes"] == os.path.getsize(tmp_path / "new.gguf")
    assert done["types"] == planned["types"] and 0 < done["errors"]["Q8_0"] < 0.01
    code, out, err = call(capsys, *arguments, "-o", tmp_path / "new.gguf")
    assert (code, out) == (1, "") and "exists" in err
    code, out, err = call(capsys, *arguments, "-o", tmp_path / "new.gguf", "--force")
    assert code == 0 and "MB/s" in out


def test_the_commands_say_what_is_wrong(capsys, source, tmp_path):
    code, _, err = call(capsys, "quantize", source, "q8_0")
    assert code == 1 and "-o FILE" in err
    code, _, err = call(capsys, "quantize", source, "q7", "-o", tmp_path / "x")
    assert code == 1 and "published-q4_k" in err and "iq3_xxs" in err
    code, _, err = call(capsys, "quantize", source, "q8_0", "-o", tmp_path / "x", "--imatrix", tmp_path / "none")
    assert code == 1 and "none" in err
    code, out, err = call(capsys, "quantize", source, "iq2_xxs", "-o", tmp_path / "x")
    assert code == 0 and "without an importance matrix" in err
    text = tmp_path / "text.txt"
    text.write_text("a")
    code, _, err = call(capsys, "imatrix", source, "--text", text, "-o", tmp_path / "i.gguf")
    assert code == 1 and not (tmp_path / "i.gguf").exists()
