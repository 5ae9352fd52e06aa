"""Files made of files: shards and back, experts put together and apart, what differs; the writer under them all."""

import contextlib
import errno
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glm52_rt as rt
from glm52_rt import file_diff, gguf_files, gguf_writer, quantize
from glm52_rt.cli import main
from glm52_rt.gguf_writer import Entry, Reader, Writer, array, pair, pairs_of
from glm52_rt.machine import expert_slices
from glm52_rt.native import StreamTest

HYPOTHESIS: Any = {"deadline": None, "derandomize": True,
                   "suppress_health_check": [HealthCheck.function_scoped_fixture]}  # fmt: skip
PYTHONPATH = str(Path(rt.__file__).parents[1])


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def plain(make: Callable[..., Path]) -> Path:
    """A megabyte, one file."""
    return make("micro")


@pytest.fixture(scope="module")
def together(plain: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, colocated."""
    with rt.Model.open(plain) as model:
        return gguf_files.colocate(model, tmp_path_factory.mktemp("together") / "runs.gguf")


# ---- shards ----


@settings(max_examples=12, **HYPOTHESIS)
@given(by_tensors=st.booleans(), limit=st.integers(1, 100), empty_first=st.booleans())
def test_a_split_model_is_the_model_and_merges_to_its_file(
    plain: Path, tmp_path: Path, by_tensors: bool, limit: int, empty_first: bool
) -> None:
    how = {"tensors_max": limit + 9} if by_tensors else {"bytes_max": limit * 10000 + 5000}
    with rt.Model.open(plain) as model:
        paths = gguf_files.split(model, tmp_path / "some.gguf", empty_first=empty_first, overwrite=True, **how)
        identity, tensors = model.identity, model.tensors
    count = len(paths)
    assert [path.name for path in paths] == [f"some-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for number, path in enumerate(paths):
        reader = gguf.GGUFReader(path)
        kinds = {"split.no": "UINT16", "split.count": "UINT16", "split.tensors.count": "INT32"}
        keys = {key: reader.fields[key] for key in kinds}
        assert [keys[key].contents() for key in kinds] == [number, count, len(tensors)]
        assert [keys[key].types[0].name for key in kinds] == list(kinds.values())
        assert ("general.architecture" in reader.fields) == (number == 0)
        assert (not reader.tensors) == (empty_first and number == 0)
        sizes = [gguf_writer.align(int(t.n_bytes)) for t in reader.tensors]
        assert len(sizes) <= how.get("tensors_max", len(sizes))
        assert len(sizes) == 1 or sum(sizes) <= how.get("bytes_max", sum(sizes))
    with rt.Model.open(paths[-1]) as parts:
        assert [t[:4] for t in parts.tensors] == [t[:4] for t in tensors]
        with rt.Model.open(plain) as model:
            assert file_diff.diff(model, parts).same
        merged = gguf_files.merge(parts, tmp_path / "one.gguf", overwrite=True)
    assert sha(merged) == sha(plain)
    with rt.Model.open(merged) as model:
        assert model.identity == identity
    for path in paths:
        path.unlink()


def test_split_and_merge_refuse(plain: Path, together: Path, tmp_path: Path) -> None:
    with rt.Model.open(plain) as model, rt.Model.open(together) as runs:
        for how in ({}, {"bytes_max": 5, "tensors_max": 5}):
            with pytest.raises(rt.ArgumentError, match="by bytes or by tensors"):
                gguf_files.split(model, tmp_path / "x.gguf", **how)
        with pytest.raises(rt.ArgumentError, match="colocated file is one file"):
            gguf_files.split(runs, tmp_path / "x.gguf", tensors_max=9)
        with pytest.raises(rt.ArgumentError, match="one file already"):
            gguf_files.merge(runs, tmp_path / "x.gguf")
        with pytest.raises(rt.ArgumentError, match="the name of a shard"):
            gguf_files.merge(model, tmp_path / "x-00001-of-00002.gguf")
        (tmp_path / "x-00002-of-00002.gguf").write_bytes(b"mine")
        with pytest.raises(rt.ArgumentError, match="x-00002-of-00002.gguf exists"):
            gguf_files.split(model, tmp_path / "x.gguf", tensors_max=100)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


# ---- experts together ----


def test_colocated_is_the_same_model_and_comes_apart_again(plain: Path, together: Path, tmp_path: Path) -> None:
    with rt.Model.open(plain) as model, rt.Model.open(together) as runs:
        assert runs.identity == model.identity and runs.shape == model.shape
        assert [t[:4] for t in runs.tensors] == [t[:4] for t in model.tensors]
        strided = {t.name for t in runs.tensors if t.stride}
        assert strided == {t.name for t in model.tensors if "_exps." in t.name}
        assert file_diff.diff(model, runs).same
        parts = gguf_files.split(model, tmp_path / "s.gguf", tensors_max=70)
        apart = gguf_files.separate(runs, tmp_path / "apart.gguf")
        with pytest.raises(rt.ArgumentError, match="colocated already"):
            gguf_files.colocate(runs, tmp_path / "x.gguf")
        with pytest.raises(rt.ArgumentError, match="not a colocated file"):
            gguf_files.separate(model, tmp_path / "x.gguf")
    assert sha(apart) == sha(plain)
    with rt.Model.open(parts[0]) as model:
        assert sha(gguf_files.colocate(model, tmp_path / "t.gguf")) == sha(together), "shards make no difference"


def test_a_run_is_what_the_format_says(plain: Path, together: Path) -> None:
    """Read by the gguf package, which knows nothing of runs: slices at multiples of 64 in runs of whole blocks."""
    reader = gguf.GGUFReader(together)
    assert reader.fields["general.architecture"].contents() == "glm-dsa-colocated"
    own = ("version", "tensors", "padding", "directory")
    assert list(reader.fields)[-4:] == [f"glm52.colocated.{key}" for key in own]
    stacks = {t.name: t for t in gguf.GGUFReader(plain).tensors}
    blocks = 0
    for tensor in reader.tensors:
        if not tensor.name.endswith(".ffn_exps.runs"):
            assert np.array_equal(tensor.data, stacks[tensor.name].data)
            continue
        blocks += 1
        assert tensor.data_offset % 4096 == 0 and tensor.shape[0] % 4096 == 0
        for expert, run in enumerate(tensor.data.reshape(tensor.shape[1], -1).view(np.uint8)):
            at = 0
            for kind in ("gate", "up", "down"):
                stack = stacks[tensor.name.replace("exps.runs", f"{kind}_exps.weight")].data
                piece = stack[expert].reshape(-1).view(np.uint8)
                assert np.array_equal(run[at : at + piece.size], piece)
                at += -(-piece.size // 64) * 64
            assert not run[at:].any()
    assert blocks == 7


def logits(path: Path, streaming: rt.Streaming | None, **options: Any) -> tuple[np.ndarray, Any]:
    """Of a prompt and some tokens, and the engine's stats."""
    with rt.Model.open(path) as model, rt.Engine(model, context=48, streaming=streaming, **options) as engine:
        engine.prefill(list(range(3, 22)))
        found = [engine.logits.copy()]
        for token in range(30, 40):
            engine.eval(token)
            found.append(engine.logits.copy())
        return np.stack(found), engine.stats()


WAYS: dict[str, dict[str, Any] | None] = {
    "resident": None,
    "small cache": {"cache_experts": 12},
    "one reader": {"cache_experts": 12, "workers": 1},
    "direct": {"cache_experts": 12, "direct_io": True},
    "advice": {"cache_experts": 12, "advise": ["willneed", "dontneed"]},
    "full layers": {"cache_experts": 12, "full_layers": 2},
    "guarded": {"cache_experts": 12, "test": StreamTest(guard=True, poison=True)},
}


@pytest.mark.parametrize("preset", ["micro", "tiny"])
@pytest.mark.parametrize("way", WAYS)
def test_logits_are_the_same_bits(
    preset: str, way: str, make: Callable[..., Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In quality and default mode, whatever reads the experts; one read for each that is streamed, not three."""
    path = make("micro") if preset == "micro" else make("tiny", changes={"index_top_k": 8}, mix="q4_k+q3_k")
    with rt.Model.open(path) as model:
        runs = gguf_files.colocate(model, tmp_path / "runs.gguf")
    options = WAYS[way]
    for quality in (False, True):
        try:
            wanted, before = logits(path, rt.Streaming(**options) if options else None, quality=quality)
            found, after = logits(runs, rt.Streaming(**options) if options else None, quality=quality)
        except rt.UnsupportedError as error:
            assert way == "direct" and "direct I/O" in str(error)
            pytest.skip("no direct I/O on this file system")
        assert np.array_equal(found, wanted)
        if options is None:
            continue
        old, new = before.stream, after.stream
        assert new.misses == old.misses > 0 and new.loads == new.misses
        if way == "full layers":
            continue  # those are read beside
        assert (new.read_ops, old.read_ops) == (new.misses, 3 * old.misses)


def test_what_is_read_at_once_is_a_run(plain: Path, together: Path) -> None:
    """The disk is measured with reads as streaming makes them."""
    with rt.Model.open(plain) as model, rt.Model.open(together) as runs:
        slices, whole = expert_slices(model), expert_slices(runs)
        assert len(slices) == 3 * len(whole)
        sizes = [tensor.stride for tensor in runs.tensors if tensor.name.endswith("gate_exps.weight")]
        assert [size for _, _, size in whole[:: model.shape.experts]] == sizes
        assert all(offset % 4096 == 0 and offset + size <= runs.file_bytes for _, offset, size in whole)


def test_a_colocated_file_is_quantised_as_the_plain_one(plain: Path, together: Path, tmp_path: Path) -> None:
    for source, name in ((plain, "a.gguf"), (together, "b.gguf")):
        with rt.Model.open(source) as model:
            quantize.run(quantize.plan(model, "ffn_.*_exps=q4_0, *=q8_0", None, "", True), tmp_path / name)
    assert sha(tmp_path / "a.gguf") == sha(tmp_path / "b.gguf")


def test_mtp_and_checkpoints_go_from_one_layout_to_the_other(plain: Path, together: Path, tmp_path: Path) -> None:
    streaming = rt.Streaming(cache_experts=16)
    with rt.Model.open(plain) as model, rt.Engine(model, context=64, mtp=True, drafts=2) as engine:
        engine.prefill(list(range(3, 22)))
        engine.save(tmp_path / "checkpoint")
        engine.eval(9)
        wanted = engine.logits.copy()
    with (
        rt.Model.open(together) as model,
        rt.Engine(model, context=64, mtp=True, drafts=2, streaming=streaming) as engine,
    ):
        engine.load(tmp_path / "checkpoint")
        engine.eval(9)
        assert np.array_equal(engine.logits, wanted)


def test_a_mirror_must_have_the_same_layout(plain: Path, together: Path) -> None:
    for primary, mirror in ((plain, together), (together, plain)):
        with rt.Model.open(primary) as model, pytest.raises(rt.ModelError, match="one of them is colocated"):
            rt.Engine(model, context=16, streaming=rt.Streaming(cache_experts=16, mirror_path=str(mirror)))
    with rt.Model.open(together) as model:
        both = rt.Streaming(cache_experts=16, mirror_path=str(together))
        with rt.Engine(model, context=16, streaming=both) as engine:
            engine.prefill([1, 2, 3])


def test_a_run_that_can_not_be_read_is_named(together: Path) -> None:
    def fails(file: int, size: int, offset: int) -> int | None:
        return -errno.EIO

    streaming = rt.Streaming(cache_experts=16, test=StreamTest(read=fails))
    with rt.Model.open(together) as model, rt.Engine(model, context=16, streaming=streaming) as engine:
        with pytest.raises(rt.IoError, match=r"runs\.gguf: .*expert \d+ of layer \d+: read 0 of \d+ bytes at \d+"):
            engine.prefill([1, 2, 3])


@settings(max_examples=60, **HYPOTHESIS)
@given(st.data())
def test_damaged_colocated_files_are_refused_or_read(together: Path, tmp_path: Path, data: st.DataObject) -> None:
    """Bytes of the layout's keys and of the directory behind them, changed: an Error, or a model that can be read."""
    with rt.Model.open(together) as model:
        end = min(t.offset for t in model.tensors)
    bytes_ = bytearray(together.read_bytes())
    begin = bytes_.index(b"glm52.colocated.version")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(begin, end - 1))
        bytes_[at] = data.draw(st.sampled_from([0, 1, 255, bytes_[at] ^ 1, bytes_[at] ^ 128]))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(bytes(bytes_))
    try:
        with rt.Model.open(path) as model, Reader(model) as reader:
            for tensor in model.tensors:
                assert sum(len(piece) for piece in reader.pieces(tensor)) == tensor.bytes
            assert len(model.identity) == 64
    except rt.Error as error:
        assert "damaged.gguf" in str(error)


# ---- what differs ----


def rewritten(plain: Path, path: Path, change: Callable[[list[Any], list[Any]], None]) -> Path:
    """A copy of a model: change may edit its pairs and its [entry, bytes] of tensors."""
    with rt.Model.open(plain) as model, Reader(model) as reader:
        pairs = pairs_of(model)
        tensors = [[gguf_writer.entry_of(t), b"".join(reader.pieces(t))] for t in model.tensors]
    change(pairs, tensors)
    with Writer(path, pairs, [one for one, _ in tensors], overwrite=True) as writer:
        for _, data in tensors:
            writer.write([data])
    return path


def compared(a: Path, b: Path, values: bool = False) -> file_diff.Diff:
    with rt.Model.open(a) as x, rt.Model.open(b) as y:
        return file_diff.diff(x, y, values=values)


def test_diff_finds_each_kind_of_difference(plain: Path, tmp_path: Path) -> None:
    def change(pairs: list[Any], tensors: list[Any]) -> None:
        index = {one.name: i for i, (one, _) in enumerate(tensors)}
        names = [one.key for one in pairs]
        pairs[names.index("general.name")] = pair("general.name", "string", "another")
        pairs[names.index("glm-dsa.context_length")] = pair("glm-dsa.context_length", "u64", 1048576)
        tokens = names.index("tokenizer.ggml.tokens")
        texts = rt.Model.open(plain).metadata["tokenizer.ggml.tokens"]
        pairs[tokens] = array("tokenizer.ggml.tokens", "string", [*texts[:7], "changed", *texts[8:]])
        pairs.append(pair("extra.key", "f32", 0.5))
        del pairs[names.index("general.description")]
        norm = index["output_norm.weight"]
        tensors[norm][1] = (np.frombuffer(tensors[norm][1], "<f4") * np.float32(1.25)).tobytes()
        embed = index["token_embd.weight"]
        floats = gguf.quants.dequantize(np.frombuffer(tensors[embed][1], np.uint8), gguf.GGMLQuantizationType.Q8_0)
        tensors[embed] = [Entry("token_embd.weight", "F32", tensors[embed][0].shape), floats.tobytes()]
        tensors.append([Entry("extra.weight", "F32", (4,)), bytes(16)])

    other = rewritten(plain, tmp_path / "other.gguf", change)
    found = compared(plain, other, values=True)
    keys = {one.key: (one.a, one.b) for one in found.keys}
    assert keys["general.name"][1] == "'another'" and keys["extra.key"] == (None, "0.5")
    assert keys["glm-dsa.context_length"] == ("1048576 (type 4)", "1048576 (type 10)")
    assert keys["tokenizer.ggml.tokens"][1] == "512 elements, [7] 'changed'"
    assert keys["general.description"][1] is None and len(keys) == 5
    tensors = {one.name: one for one in found.tensors}
    assert set(tensors) == {"output_norm.weight", "token_embd.weight", "extra.weight"}
    assert tensors["output_norm.weight"].what == "content"
    assert tensors["output_norm.weight"].rms == pytest.approx(0.25, rel=1e-6)
    assert tensors["token_embd.weight"].what == "type" and tensors["token_embd.weight"].rms == 0
    assert (tensors["token_embd.weight"].a, tensors["token_embd.weight"].b) == ("Q8_0 64 x 512", "F32 64 x 512")
    assert (tensors["extra.weight"].what, tensors["extra.weight"].a) == ("missing", None)
    back = compared(other, plain)
    assert {one.name: (one.what, one.rms) for one in back.tensors}["extra.weight"] == ("missing", None)
    assert not back.same and back.tensor_count == found.tensor_count


@settings(max_examples=20, **HYPOTHESIS)
@given(st.data())
def test_diff_sees_any_one_bit(plain: Path, tmp_path: Path, data: st.DataObject) -> None:
    bytes_ = bytearray(plain.read_bytes())
    with rt.Model.open(plain) as model:
        tensor = data.draw(st.sampled_from(model.tensors))
    at = data.draw(st.integers(0, tensor.bytes - 1))
    bytes_[tensor.offset + at] ^= 1 << data.draw(st.integers(0, 7))
    (tmp_path / "other.gguf").write_bytes(bytes(bytes_))
    found = compared(plain, tmp_path / "other.gguf")
    assert [(one.name, one.what) for one in found.tensors] == [(tensor.name, "content")] and not found.keys


def test_diff_of_shapes(plain: Path, tmp_path: Path) -> None:
    def change(pairs: list[Any], tensors: list[Any]) -> None:
        tensors.append([Entry("extra.weight", "F32", (4, 2)), bytes(32)])

    def other(pairs: list[Any], tensors: list[Any]) -> None:
        tensors.append([Entry("extra.weight", "F32", (2, 4)), bytes(32)])

    found = compared(rewritten(plain, tmp_path / "a.gguf", change), rewritten(plain, tmp_path / "b.gguf", other))
    assert [(one.name, one.what, one.a, one.b) for one in found.tensors] == [
        ("extra.weight", "shape", "F32 4 x 2", "F32 2 x 4")
    ]


# ---- commands ----


def test_the_commands(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: Any) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        said = capsys.readouterr()
        return code, said.out, said.err

    with rt.Model.open(plain) as model:
        identity, count = model.identity, len(model.tensors)
    code, out, _ = run("split", plain, "--max-tensors", 90, "-o", tmp_path / "s", "--json")
    made = json.loads(out)
    assert code == 0 and made["tensors"] == count and len(made["files"]) == -(-count // 90)
    code, out, _ = run("merge", made["files"][1], "-o", tmp_path / "m.gguf")
    assert code == 0 and identity in out and sha(tmp_path / "m.gguf") == sha(plain)
    assert run("merge", made["files"][1], "-o", tmp_path / "m.gguf")[0] == 1
    code, out, _ = run("colocate", plain, "-o", tmp_path / "c.gguf", "--json")
    assert code == 0 and json.loads(out)["identity"] == identity
    assert run("colocate", "--undo", tmp_path / "c.gguf", "-o", tmp_path / "m.gguf", "--force")[0] == 0
    assert sha(tmp_path / "m.gguf") == sha(plain)
    assert run("inspect", "--diff", plain, tmp_path / "c.gguf")[:2] == (0, "the same content\n")
    code, out, _ = run("inspect", tmp_path / "c.gguf", "--json")
    assert json.loads(out)["architecture"] == "glm-dsa-colocated"
    bytes_ = bytearray(plain.read_bytes())
    bytes_[-1000] ^= 1
    (tmp_path / "m.gguf").write_bytes(bytes(bytes_))
    code, out, _ = run("inspect", "--diff", plain, tmp_path / "m.gguf", "--values")
    assert code == 1 and ": content: " in out and "relative rms" in out and "1 of" in out.splitlines()[-1]
    code, out, _ = run("inspect", "--diff", plain, tmp_path / "m.gguf", "--json")
    assert code == 1 and json.loads(out)["same"] is False and len(json.loads(out)["tensors"]) == 1
    for words in (["inspect"], ["inspect", plain, "--values"], ["inspect", plain, "--diff", plain, plain]):
        code, _, err = run(*words)
        assert code == 1 and "--diff A B" in err
    assert run("split", plain, "-o", tmp_path / "x")[0] == 2


# ---- the writer ----

KINDS = {"u8": (0, 255), "i8": (-128, 127), "u16": (0, 65535), "i16": (-32768, 32767), "u32": (0, 2**32 - 1),
         "i32": (-(2**31), 2**31 - 1), "u64": (0, 2**64 - 1), "i64": (-(2**63), 2**63 - 1)}  # fmt: skip


@st.composite
def values(draw: st.DrawFn) -> tuple[str, Any]:
    kind = draw(st.sampled_from([*KINDS, "f32", "f64", "bool", "string"]))
    if kind in KINDS:
        return kind, draw(st.integers(*KINDS[kind]))
    if kind in ("f32", "f64"):
        return kind, draw(st.floats(width=32 if kind == "f32" else 64, allow_nan=False))
    return kind, draw(st.booleans() if kind == "bool" else st.text(max_size=9))


@settings(max_examples=60, **HYPOTHESIS)
@given(
    pairs=st.dictionaries(st.text("abc.", min_size=1, max_size=6), st.tuples(values(), st.integers(-1, 3)), max_size=5),
    sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 4)), max_size=5),
    alignment=st.sampled_from([8, 32, 4096]),
    piece=st.integers(1, 50),
)
def test_what_is_written_the_gguf_package_reads(
    tmp_path: Path, pairs: dict[str, Any], sizes: list[tuple[int, int]], alignment: int, piece: int
) -> None:
    keys, wanted = [pair("general.alignment", "u32", alignment)], {}
    for key, ((kind, value), count) in pairs.items():
        key = "k" + key
        keys.append(pair(key, kind, value) if count < 0 else array(key, kind, [value] * count))
        wanted[key] = value if count < 0 else [value] * count
    entries = [Entry(f"t{i}", "F32", shape) for i, shape in enumerate(sizes)]
    data = [os.urandom(entry.bytes) for entry in entries]
    with Writer(tmp_path / "x.gguf", keys, entries, alignment=alignment, overwrite=True) as writer:
        for part in data:
            writer.write(part[at : at + piece] for at in range(0, len(part), piece))
    if any(wanted[key] == [] for key in wanted):
        return  # which that package does not read
    reader = gguf.GGUFReader(tmp_path / "x.gguf")
    assert {key: field.contents() for key, field in reader.fields.items() if key in wanted} == wanted
    assert [t.data.tobytes() for t in reader.tensors] == data
    assert [t.shape.tolist() for t in reader.tensors] == [list(shape) for shape in sizes]
    assert (tmp_path / "x.gguf").stat().st_size % alignment == 0


ENTRIES = [Entry("a", "F32", (4,)), Entry("b", "Q8_0", (32, 2))]


def test_the_writer_holds_its_caller_to_its_word(tmp_path: Path) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"mine")

    def attempt(*tensors: bytes) -> None:
        with Writer(target, [], ENTRIES, overwrite=True) as writer:
            for data in tensors:
                writer.write([data])

    for tensors, message in (
        ([bytes(15)], "15 of its 16 bytes"),
        ([bytes(17)], "more than its 16 bytes"),
        ([bytes(16)], "tensor b was not written"),
        ([bytes(16), bytes(68), bytes(1)], "all 2 tensors are written"),
    ):
        with pytest.raises(rt.ArgumentError, match=message):
            attempt(*tensors)
    with pytest.raises(rt.ArgumentError, match="exists"):
        Writer(target, [], ENTRIES)
    with pytest.raises(rt.ArgumentError, match="tensor a is there twice"):
        Writer(tmp_path / "y.gguf", [], [ENTRIES[0], ENTRIES[0]])
    with pytest.raises(rt.ArgumentError, match="33 elements are no whole blocks of 32"):
        Writer(tmp_path / "y.gguf", [], [Entry("a", "Q8_0", (33,))])
    with pytest.raises(rt.IoError, match="cannot be written: No such file"):
        Writer(tmp_path / "no/y.gguf", [], ENTRIES)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"], "as it was, and nothing beside it"
    attempt(bytes(16), bytes(68))
    assert oct(target.stat().st_mode & 0o777) == oct(0o666 & ~gguf_writer._umask())


@contextlib.contextmanager
def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A disk that has room for so many bytes more; the last write is cut short, as systems do it."""
    left, write = [count], os.write

    def limited(file: int, data: Any) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(file, memoryview(data)[: left[0]])
        left[0] -= done
        return done

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", limited)
        yield


@pytest.mark.parametrize("room", [0, 10, 130, 200, 255])
def test_a_full_disk_leaves_the_target_as_it_was(room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.gguf"
    target.write_bytes(b"mine")
    size = gguf_writer.layout([], ENTRIES).file_bytes
    assert room < size == 256
    with full_after(room, monkeypatch):
        with pytest.raises(rt.IoError, match=r"x\.gguf: .*No space left on device \(256 bytes are needed in all\)"):
            with Writer(target, [], ENTRIES, overwrite=True) as writer:
                writer.write([bytes(16)])
                writer.write([bytes(68)])
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"mine"]


def test_a_resumable_writer_goes_on_when_there_is_room_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, data = tmp_path / "x.gguf", [os.urandom(16), os.urandom(68)]
    with full_after(190, monkeypatch), pytest.raises(rt.IoError, match="tensor b: No space left"):
        with Writer(target, [], ENTRIES, resume="mark") as writer:
            for part in data:
                writer.write([part])
    with Writer(target, [], ENTRIES, resume="mark") as writer:
        assert writer.done == 1
        with pytest.raises(rt.IoError, match="another process is writing it"):
            Writer(target, [], ENTRIES, resume="mark")
        writer.write([data[1]])
    assert [t.data.tobytes() for t in gguf.GGUFReader(target).tensors] == data
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_a_disk_that_is_too_small_is_seen_before_anything_is_written(tmp_path: Path) -> None:
    big = [Entry("a", "F32", (1 << 50,))]
    with pytest.raises(rt.IoError, match=r"bytes are needed, [\d,]+ are free on its disk"):
        Writer(tmp_path / "x.gguf", [], big)
    with pytest.raises(rt.IoError, match=r"bytes are needed, [\d,]+ are free on its disk"):
        Writer(tmp_path / "x.gguf", [], big, resume="mark")
    assert not list(tmp_path.iterdir())


def test_a_limit_of_the_system_is_an_error_not_an_end(tmp_path: Path) -> None:
    """A file may grow no further (RLIMIT_FSIZE): one line, exit code 1, nothing left."""
    script = (
        "import resource, sys\nfrom glm52_rt.gguf_writer import *\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
        "with Writer(sys.argv[1], [], [Entry('a', 'F32', (1 << 16,))]) as w: w.write([bytes(1 << 18)])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "x.gguf"],
        env=os.environ | {"PYTHONPATH": PYTHONPATH}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1 and "IoError" in ended.stderr and "File too large" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_metadata_is_carried_over_byte_for_byte(plain: Path, tmp_path: Path) -> None:
    """Values that no Python type tells apart: integer widths, bytes that are no UTF-8, negative zero, a NaN's bits."""
    odd = [
        pair("k.text", "string", "\udcff\udc80"),
        gguf_writer.Pair("k.nan", 6, 6, 1, b"\x01\x00\xa0\x7f"),
        pair("k.zero", "f64", -0.0),
        array("k.small", "i8", [-1, 2]),
        array("k.none", "u64", []),
        array("k.empty", "string", ["", "a"]),
    ]
    first = rewritten(plain, tmp_path / "a.gguf", lambda pairs, tensors: pairs.extend(odd))
    with rt.Model.open(first) as model:
        assert pairs_of(model)[-len(odd) :] == odd
    assert sha(rewritten(first, tmp_path / "b.gguf", lambda pairs, tensors: None)) == sha(first)
