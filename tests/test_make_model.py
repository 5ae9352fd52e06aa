"""tools/make_model.py: the same bytes each time, files that readers accept, values of the spread wanted."""

import hashlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import make_model as tool
import numpy as np
import pytest
from conftest import remove_stale
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import blocks, presets, raw, tokenizer, writer
from synthetic.mix import MIXES, TYPES, Mix
from synthetic.words import CODE, OTHER_SCRIPTS

PUBLISHED_BYTES = 211_075_856_448
PUBLISHED_HEADER_BYTES = 9_540_672
# A change of these is a change of every model ever made: it must be meant.
BLOCKS_SHA256 = "adb19b4bd2e7199604f24cfb5c4d39d3deb688abd5da251a52a33ecc00c9a9da"
VOCABULARY_SHA256 = "9cc417d2a4b48ca33f3be78d1dcdc8c09719bad9fe14c2d04b5ddff13564b45e"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_and_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    return {t.name: tuple(int(n) for n in reversed(t.shape)) for t in GGUFReader(path).tensors}


def value(reader: GGUFReader, key: str) -> Any:
    found = reader.fields.get(key)
    return None if found is None else found.contents()


# ---- determinism ----


def test_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = tmp_path / "a.gguf", tmp_path / "b.gguf", tmp_path / "c.gguf"
    tool.make_model("micro", first, seed=5)
    tool.make_model("micro", second, seed=5)
    tool.make_model("micro", other, seed=6)
    assert sha256(first) == sha256(second) != sha256(other)


def test_drawn_blocks_are_these_for_ever() -> None:
    digest = hashlib.sha256()
    for type_ in blocks.TYPES:
        digest.update(blocks.draw(type_, raw.Raw(1, type_.name), 64, 0.05).tobytes())
    digest.update(raw.normal(raw.Raw(1, "normal"), 4096, 0.05).tobytes())
    digest.update(raw.log_normal(raw.Raw(1, "log-normal"), 4096, 0.35).tobytes())
    assert digest.hexdigest() == BLOCKS_SHA256


def test_vocabulary_is_this_for_ever() -> None:
    made = tokenizer.vocabulary(2048)
    text = "\n".join([*made.tokens, *made.merges])
    assert hashlib.sha256(text.encode()).hexdigest() == VOCABULARY_SHA256


def test_options_leave_the_shared_tensors_alone(make: Callable[..., Path], tmp_path: Path) -> None:
    plain = {t.name: t for t in GGUFReader(make("micro")).tensors}
    for options in ({"mtp": False}, {"indexer_everywhere": True}, {"types_as": "none", "template": False}):
        for tensor in GGUFReader(tool.make_model("micro", tmp_path / "o.gguf", **options)).tensors:
            if tensor.name in plain:
                assert np.array_equal(tensor.data, plain[tensor.name].data), tensor.name


def test_a_piece_boundary_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = tool.make_model("micro", tmp_path / "a.gguf", mix="iq4_nl,output=f32")
    monkeypatch.setattr(tool.weights, "PIECE_BYTES", 4096)
    assert sha256(whole) == sha256(tool.make_model("micro", tmp_path / "b.gguf", mix="iq4_nl,output=f32"))


def test_nothing_is_left_of_a_file_that_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise OSError("no space")

    monkeypatch.setattr(tool.weights, "pieces", broken)
    with pytest.raises(OSError, match="no space"):
        tool.make_model("micro", tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


# ---- values ----


@pytest.mark.parametrize("type_", blocks.TYPES, ids=lambda t: t.name)
@pytest.mark.parametrize("spread", [0.004, 0.05, 1.0])
def test_drawn_values_have_the_spread_asked_for(type_: GGMLQuantizationType, spread: float) -> None:
    drawn = blocks.draw(type_, raw.Raw(2, "spread"), 4096, spread)
    assert drawn.shape == (4096, GGML_QUANT_SIZES[type_][1])
    values = quants.dequantize(drawn, type_).astype(np.float64)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(spread, rel=0.05)
    # The means of blocks vary with the sign or the minimum; that of many blocks is near zero.
    assert abs(values.mean()) < 0.02 * spread


@pytest.mark.parametrize("mix", ["zoo", "iq3+iq4", "f16"])
def test_every_tensor_has_the_spread_asked_for(make: Callable[..., Path], mix: str) -> None:
    wanted = {t.name: t for t in presets.tensors(presets.PRESETS["tiny"])}
    for tensor in GGUFReader(make("tiny", mix=mix)).tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
        assert np.isfinite(values).all(), tensor.name
        spec = wanted[tensor.name]
        if spec.kind == "matrix" and values.size >= 8192:
            rows = values.reshape(-1, spec.shape[-1])
            head = rows[: len(rows) - spec.tail_rows]
            assert head.std() == pytest.approx(spec.spread, rel=0.05), tensor.name
            assert abs(head.mean()) < 0.05 * spec.spread, tensor.name
            if spec.tail_rows:
                assert rows[-spec.tail_rows :].std() == pytest.approx(4 * spec.spread, rel=0.05)


def test_float_types_hold_the_same_numbers(make: Callable[..., Path]) -> None:
    exact = {t.name: t.data for t in GGUFReader(make("micro", mix="f32")).tensors}
    for tensor in GGUFReader(make("micro", mix="bf16")).tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(values.reshape(exact[tensor.name].shape), exact[tensor.name]), tensor.name


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@settings(deadline=None)
def test_bfloat16_is_rounded_as_the_gguf_package_does(values: list[float]) -> None:
    array = np.array(values, np.float32)
    wanted = quants.quantize(array, GGMLQuantizationType.BF16).view(np.uint16)
    assert np.array_equal(raw.to_bfloat16(array), wanted)


# ---- files ----


@pytest.mark.parametrize("preset", ["micro", "tiny", "ties", "allfull"])
def test_file_is_what_its_geometry_says(make: Callable[..., Path], preset: str) -> None:
    g = presets.PRESETS[preset]
    reader = GGUFReader(make(preset))
    assert names_and_shapes(make(preset)) == {t.name: t.shape for t in presets.tensors(g)}
    assert value(reader, "general.architecture") == "glm-dsa"
    assert value(reader, "glm-dsa.block_count") == g.layers + 1
    assert value(reader, "glm-dsa.attention.key_length_mla") == g.nope + g.rope
    types = value(reader, "glm-dsa.attention.indexer.types")
    assert types == (None if preset == "allfull" else [i < 2 or i % 4 == 2 for i in range(g.layers)])
    full = g.layers if preset == "allfull" else sum(types)
    assert sum("indexer.proj" in t.name for t in reader.tensors) == full + 1
    assert len(value(reader, "tokenizer.ggml.tokens")) == g.vocab
    for tensor in reader.tensors:
        assert tensor.data_offset % writer.ALIGNMENT == 0
    norms = [t for t in reader.tensors if len(t.shape) == 1 or "ffn_gate_inp" in t.name or "proj.w" in t.name]
    assert {t.tensor_type.name for t in norms if "eh_proj" not in t.name} == {"F32"}


def test_options_do_what_they_say(tmp_path: Path, make: Callable[..., Path]) -> None:
    plain = names_and_shapes(make("micro"))

    def made(**options: Any) -> GGUFReader:
        return GGUFReader(tool.make_model("micro", tmp_path / "m.gguf", **options))

    without = made(mtp=False)
    assert {t.name for t in without.tensors} == {name for name in plain if not name.startswith("blk.7.")}
    assert value(without, "glm-dsa.nextn_predict_layers") is None
    assert value(without, "glm-dsa.block_count") == 7

    assert "output.weight" not in {t.name for t in made(tied=True).tensors}
    assert value(made(template=False), "tokenizer.chat_template") is None
    assert value(made(gating_key=False), "glm-dsa.expert_gating_func") is None
    assert value(made(), "glm-dsa.expert_gating_func") == 2

    key = "glm-dsa.attention.indexer.types"
    assert value(made(types_as="none"), key) is None
    assert value(made(types_as="int"), key) == [1, 1, 1, 0, 0, 0, 1]
    assert value(made(types_as="string"), key) == ["full"] * 3 + ["shared"] * 3 + ["full"]

    everywhere = {t.name: t.data for t in made(indexer_everywhere=True).tensors}
    assert len(everywhere) == len(plain) + 5 * 3
    assert np.array_equal(everywhere["blk.4.indexer.proj.weight"], everywhere["blk.2.indexer.proj.weight"])

    changed = made(changes={"index_top_k": 2, "experts": 12})
    assert value(changed, "glm-dsa.attention.indexer.top_k") == 2
    assert value(changed, "glm-dsa.expert_count") == 12


@pytest.mark.parametrize(("count", "empty_first"), [(2, False), (3, True), (7, False)])
def test_shards_are_the_whole_in_pieces(
    make: Callable[..., Path], tmp_path: Path, count: int, empty_first: bool
) -> None:
    whole = {t.name: t.data for t in GGUFReader(make("micro")).tensors}
    first = tool.make_model("micro", tmp_path / "m.gguf", split=count, split_empty_first=empty_first)
    paths = sorted(tmp_path.iterdir())
    assert [p.name for p in paths] == [f"m-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    assert paths[0] == first
    found: dict[str, np.ndarray] = {}
    for number, path in enumerate(paths):
        reader = GGUFReader(path)
        assert value(reader, "split.no") == number
        assert value(reader, "split.count") == count
        assert value(reader, "split.tensors.count") == len(whole)
        assert (value(reader, "general.architecture") is None) == (number > 0)
        assert (len(reader.tensors) == 0) == (empty_first and number == 0)
        found.update({t.name: t.data for t in reader.tensors})
    assert list(found) == list(whole)
    assert all(np.array_equal(found[name], whole[name]) for name in whole)


def test_tensors_of_odd_length_stay_aligned_and_whole(tmp_path: Path) -> None:
    """Nine experts: their bias has 36 bytes, so what follows it must be padded."""
    changes = {"experts": 9}
    g = tool.geometry("micro", changes)
    reader = GGUFReader(tool.make_model("micro", tmp_path / "m.gguf", mix="f32", changes=changes))
    found = {t.name: t for t in reader.tensors}
    assert found["blk.1.exp_probs_b.bias"].n_bytes % writer.ALIGNMENT
    for tensor in presets.tensors(g):
        assert found[tensor.name].data_offset % writer.ALIGNMENT == 0
        drawn = tool.weights.pieces(tensor, GGMLQuantizationType.F32, tool.DEFAULT_SEED, True)
        assert np.array_equal(found[tensor.name].data.ravel(), np.concatenate([p.ravel() for p in drawn]))


def test_sparse_file_is_the_header_and_a_hole(make: Callable[..., Path], tmp_path: Path) -> None:
    sparse = tool.make_model("micro", tmp_path / "s.gguf", sparse=True)
    assert sparse.stat().st_size == make("micro").stat().st_size
    start = GGUFReader(sparse).data_offset
    assert sparse.read_bytes()[:start] == make("micro").read_bytes()[:start]
    assert not any(sparse.read_bytes()[start:])


def _skip_value(file: BinaryIO, type_: int) -> None:
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if type_ == 8:
        file.seek(struct.unpack("<Q", file.read(8))[0], os.SEEK_CUR)
    elif type_ == 9:
        element, count = struct.unpack("<IQ", file.read(12))
        if element == 8:
            for _ in range(count):
                _skip_value(file, 8)
        else:
            file.seek(sizes[element] * count, os.SEEK_CUR)
    else:
        file.seek(sizes[type_], os.SEEK_CUR)


def test_full_is_the_published_file_to_the_byte(make: Callable[..., Path]) -> None:
    """Reads the header by itself: the gguf package takes a quarter of a minute for half a million strings."""
    path = make("full", sparse=True)
    assert path.stat().st_size == PUBLISHED_BYTES
    assert path.stat().st_blocks * 512 < 2 * PUBLISHED_HEADER_BYTES
    with path.open("rb") as file:
        magic, version, tensor_count, key_count = struct.unpack("<4sIQQ", file.read(24))
        assert (magic, version, tensor_count) == (b"GGUF", 3, 1809)
        for _ in range(key_count):
            key = file.read(struct.unpack("<Q", file.read(8))[0]).decode()
            assert key != "glm-dsa.attention.indexer.types"
            _skip_value(file, struct.unpack("<I", file.read(4))[0])
        end, types = 0, dict.fromkeys(("F32", "Q8_0", "IQ2_XXS", "Q2_K"), 0)
        for _ in range(tensor_count):
            file.seek(struct.unpack("<Q", file.read(8))[0], os.SEEK_CUR)
            dimensions = struct.unpack("<I", file.read(4))[0]
            shape = struct.unpack(f"<{dimensions}Q", file.read(8 * dimensions))
            type_, offset = struct.unpack("<IQ", file.read(12))
            assert offset == end
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(type_)]
            end += writer.align(int(np.prod(shape)) // block * size)
            types[GGMLQuantizationType(type_).name] += 1
        assert writer.align(file.tell()) == PUBLISHED_HEADER_BYTES
    assert end == PUBLISHED_BYTES - PUBLISHED_HEADER_BYTES
    # The counts of F32 tensors and of expert stacks are those of the published files' loader logs.
    assert types == {"F32": 709, "Q8_0": 872, "IQ2_XXS": 225, "Q2_K": 3}


def test_bench_models_weigh_the_same() -> None:
    for preset, gigabytes in (("bench", 5.73), ("bench-q4_k", 5.72)):
        g = presets.PRESETS[preset]
        size = writer.data_bytes([entry for _, entry in tool._plan(g, g.default_mix, False)])
        assert size / 1e9 == pytest.approx(gigabytes, abs=0.005)


# ---- mixes ----


def test_longest_pattern_decides() -> None:
    mix = Mix(r"ffn_.*_exps=iq2_xxs,blk.78.ffn_.*_exps=q2_k,*=q8_0", 78)
    assert mix.type_of("blk.5.ffn_up_exps.weight", 256).name == "IQ2_XXS"
    assert mix.type_of("blk.78.ffn_up_exps.weight", 256).name == "Q2_K"
    assert mix.type_of("token_embd.weight", 256).name == "Q8_0"
    assert mix.type_of("blk.5.ffn_gate_inp.weight", 256).name == "F32"


def test_rows_that_blocks_do_not_divide_fall_back() -> None:
    wanted = {
        "q6_k": "Q8_0",
        "q5_k": "Q5_1",
        "q4_k": "Q5_0",
        "q3_k": "Q4_0",
        "iq1_s": "IQ4_NL",
        "q8_0": "Q8_0",
    }
    for type_, fallback in wanted.items():
        assert Mix(type_, 8).type_of("blk.0.attn_k_b.weight", 192).name == fallback


def test_indexer_projection_is_float_unless_named() -> None:
    name = "blk.0.indexer.proj.weight"
    assert Mix("q4_k,indexer=q5_k", 8).type_of(name, 256).name == "F32"
    assert Mix("q4_k,indexer.proj=q8_0", 8).type_of(name, 256).name == "Q8_0"


@pytest.mark.parametrize(
    ("spec", "message"),
    [("q9_z", "q9_z"), ("*=q9_z", "q9_z"), ("output=q8_0", "add \\*=TYPE"), ("(=q8_0,*=q8_0", "pattern")],
)
def test_malformed_mix_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mix(spec, 8)


def test_row_that_nothing_divides_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 32"):
        Mix("q8_0", 8).type_of("x", 100)
    with pytest.raises(ValueError, match="no such number"):
        tool.make_model("micro", tmp_path / "m.gguf", changes={"hedgehogs": 3})
    with pytest.raises(ValueError, match="unknown preset"):
        tool.make_model("hedgehog", tmp_path / "m.gguf")


def test_zoo_holds_every_type(make: Callable[..., Path]) -> None:
    found = {t.tensor_type for t in GGUFReader(make("tiny", mix="zoo")).tensors}
    assert found == set(TYPES.values())


@pytest.mark.parametrize("mix", MIXES)
def test_every_mix_fits_every_wide_preset(mix: str) -> None:
    for preset, g in presets.PRESETS.items():
        if preset != "micro":
            tool._plan(g, mix, False)


# ---- tokenizer ----


def test_words_are_single_pre_tokens_of_the_glm4_split() -> None:
    from tokenizers import Regex, pre_tokenizers

    split = pre_tokenizers.Split(
        Regex(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
            r"|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        "isolated",
    )
    for word in (*CODE, *OTHER_SCRIPTS):
        assert [piece for piece, _ in split.pre_tokenize_str(word)] == [word]


@pytest.mark.parametrize(("size", "merges"), [(512, None), (2048, None), (65536, None), (154880, 321649)])
def test_vocabulary_is_closed_under_its_merges(size: int, merges: int | None) -> None:
    made = tokenizer.vocabulary(size, merges)
    known = set(made.tokens)
    assert len(made.tokens) == len(known) == len(made.types) == size
    assert merges in (None, len(made.merges))
    assert len(set(made.merges)) == len(made.merges)
    for left, right in (merge.split(" ") for merge in made.merges):
        assert left in known and right in known and left + right in known
    assert set(made.tokens[:256]) == set(tokenizer.byte_alphabet())


def test_added_tokens_have_the_real_ids_and_types() -> None:
    made = tokenizer.vocabulary(154880, 321649)
    ids = {
        "<|endoftext|>": 154820,
        "[gMASK]": 154822,
        "<sop>": 154824,
        "<|user|>": 154827,
        "<|observation|>": 154829,
        "<|code_prefix|>": 154838,
        "<think>": 154841,
        "</think>": 154842,
    }
    for token, id_ in ids.items():
        assert made.id_of(token) == id_
    assert made.types[154820:154838] == [tokenizer.CONTROL] * 18
    assert made.types[154838:154856] == [tokenizer.USER_DEFINED] * 18
    assert made.types[154856:] == [tokenizer.UNUSED] * 24


def test_models_of_recipes_that_are_gone_are_removed(tmp_path: Path) -> None:
    """By the fixture that makes them; what it did not make, or somebody used within a day, stays."""
    for name in ("recipe-old", "recipe-used", "recipe-kept", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.gguf").write_bytes(b"x")
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "micro-0123").mkdir()
    (tmp_path / "micro-0123/done").write_text("model.gguf")
    os.utime(tmp_path / "micro-0123", (1, 1))
    (tmp_path / "tiny.gguf").write_bytes(b"x")
    os.utime(tmp_path / "recipe-used")
    remove_stale(tmp_path, "recipe-kept", time.time())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "recipe-kept", "recipe-used", "tiny.gguf"]
    remove_stale(tmp_path / "nothing", "recipe-kept", time.time())
