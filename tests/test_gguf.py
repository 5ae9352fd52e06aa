"""The GGUF reader against the gguf package: what that writes we read alike, and what is broken we refuse."""

import hashlib
import math
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFValueType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glm52_rt as rt
from glm52_rt._native import ffi, lib

SETTINGS = settings(deadline=None, print_blob=True, suppress_health_check=[HealthCheck.function_scoped_fixture])

V = GGUFValueType
# Signed or not, and bits.
INTEGERS = {
    V.UINT8: (0, 8), V.INT8: (1, 8), V.UINT16: (0, 16), V.INT16: (1, 16), V.UINT32: (0, 32), V.INT32: (1, 32),
    V.UINT64: (0, 64), V.INT64: (1, 64),
}  # fmt: skip
# Types the runtime reads, with values and bytes of a block.
TYPES = {
    getattr(GGMLQuantizationType, name): gguf.GGML_QUANT_SIZES[getattr(GGMLQuantizationType, name)]
    for name in (
        "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS "
        "IQ3_S IQ4_NL IQ4_XS MXFP4"
    ).split()
}

# ---- a model for keys and tensors to be added to ----

HIDDEN, VOCAB = 4, 6
MODEL_KEYS: dict[str, int | float] = {
    "block_count": 1, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": 2,
    "attention.head_count": 1, "rope.freq_base": 8e6, "attention.layer_norm_rms_epsilon": 1e-5, "expert_count": 1,
    "expert_used_count": 1, "leading_dense_block_count": 1, "vocab_size": VOCAB, "attention.q_lora_rank": 2,
    "attention.kv_lora_rank": 2, "attention.key_length_mla": 3, "attention.value_length_mla": 2,
    "expert_feed_forward_length": 2, "expert_shared_count": 1, "rope.dimension_count": 2,
    "attention.indexer.head_count": 1, "attention.indexer.key_length": 2, "attention.indexer.top_k": 2,
}  # fmt: skip
MODEL_TENSORS: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,), "blk.0.attn_norm.weight": (HIDDEN,),
    "blk.0.attn_q_a.weight": (2, HIDDEN), "blk.0.attn_q_a_norm.weight": (2,), "blk.0.attn_q_b.weight": (3, 2),
    "blk.0.attn_kv_a_mqa.weight": (4, HIDDEN), "blk.0.attn_kv_a_norm.weight": (2,), "blk.0.attn_k_b.weight": (1, 2, 1),
    "blk.0.attn_v_b.weight": (1, 2, 2), "blk.0.attn_output.weight": (HIDDEN, 2), "blk.0.ffn_norm.weight": (HIDDEN,),
    "blk.0.indexer.attn_q_b.weight": (2, 2), "blk.0.indexer.attn_k.weight": (2, HIDDEN),
    "blk.0.indexer.proj.weight": (1, HIDDEN), "blk.0.indexer.k_norm.weight": (2,), "blk.0.indexer.k_norm.bias": (2,),
    "blk.0.ffn_gate.weight": (2, HIDDEN), "blk.0.ffn_up.weight": (2, HIDDEN), "blk.0.ffn_down.weight": (HIDDEN, 2),
}  # fmt: skip


def add_model(writer: gguf.GGUFWriter) -> None:
    for key, number in MODEL_KEYS.items():
        if isinstance(number, float):
            writer.add_float32(f"glm-dsa.{key}", number)
        else:
            writer.add_uint32(f"glm-dsa.{key}", number)
    for name, shape in MODEL_TENSORS.items():
        writer.add_tensor(name, np.arange(math.prod(shape), dtype=np.float32).reshape(shape))


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few kilobytes."""
    path = tmp_path_factory.mktemp("small") / "small.gguf"
    writer = gguf.GGUFWriter(path, "glm-dsa")
    add_model(writer)
    finish(writer)
    return path


# ---- what gguf writes, read alike ----

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def scalar_of(kind: GGUFValueType) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        signed, bits = INTEGERS[kind]
        return st.integers(-signed << (bits - 1), (1 << (bits - signed)) - 1)
    if kind == V.BOOL:
        return st.booleans()
    if kind == V.STRING:
        return texts
    return st.floats(width=32 if kind == V.FLOAT32 else 64)


scalar_kinds = st.sampled_from([*INTEGERS, V.BOOL, V.STRING, V.FLOAT32, V.FLOAT64])
scalars = scalar_kinds.flatmap(lambda kind: st.tuples(st.just(kind), st.none(), scalar_of(kind)))
arrays = scalar_kinds.flatmap(
    lambda kind: st.tuples(st.just(V.ARRAY), st.just(kind), st.lists(scalar_of(kind), min_size=1, max_size=6))
)
key_names = st.text(st.characters(exclude_categories=["C"]), min_size=1, max_size=20)
key_sets = st.dictionaries(key_names.map("test.{}".format), scalars | arrays, max_size=8)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[GGMLQuantizationType, tuple[int, ...], int]:
    kind = draw(st.sampled_from(list(TYPES)))
    outer = draw(st.lists(st.integers(1, 3), max_size=3))
    return kind, (*outer, TYPES[kind][0] * draw(st.integers(1, 2))), draw(st.integers(0, 2**32 - 1))


tensor_sets = st.dictionaries(key_names.map("extra.{}".format), tensors(), max_size=5)


def tensor_bytes(kind: GGMLQuantizationType, shape: tuple[int, ...], seed: int) -> np.ndarray:
    block, size = TYPES[kind]
    rows = (*shape[:-1], shape[-1] // block * size)
    return np.random.default_rng(seed).integers(0, 256, rows, np.uint8)


def native_values(model: rt.Model) -> dict[str, tuple[int, int, Any]]:
    """Per key its type, its element type and its value."""
    value, found = ffi.new("glm52_value *"), {}
    for index in range(lib.glm52_model_key_count(model.native.pointer)):
        assert lib.glm52_model_key(model.native.pointer, index, value) == 0
        key = ffi.string(value.key).decode()
        found[key] = (value.type, value.element_type, model.metadata[key])
    return found


def same(ours: Any, written: Any) -> bool:
    """Equal, with NaN equal to itself."""
    if isinstance(written, list):
        return len(ours) == len(written) and all(map(same, ours, written))
    return ours == written or (isinstance(written, float) and math.isnan(written) and math.isnan(ours))


@SETTINGS
@given(keys=key_sets, extra=tensor_sets, alignment=st.sampled_from([None, 8, 32, 256]))
def test_any_keys_and_tensors_are_read_as_gguf_reads_them(
    tmp_path: Path, keys: dict[str, Any], extra: dict[str, Any], alignment: int | None
) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "glm-dsa")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    add_model(writer)
    for key, (kind, element, written) in keys.items():
        writer.add_key_value(key, written, kind, element)
    for name, (kind, shape, seed) in extra.items():
        writer.add_tensor(name, tensor_bytes(kind, shape, seed), raw_dtype=kind)
    finish(writer)

    reader = gguf.GGUFReader(path)
    with rt.Model.open(path) as model:
        values = native_values(model)
        assert list(values) == [key for key in reader.fields if not key.startswith("GGUF.")]
        for key, (kind, element, written) in keys.items():
            assert values[key][:2] == (kind, element if element is not None else kind), key
            assert same(values[key][2], written), key
        for key, field in reader.fields.items():
            if not key.startswith("GGUF."):
                assert same(values[key][2], field.contents()), key
                assert [values[key][0], values[key][1]] == [field.types[0], field.types[-1]], key
        read = [(t.name, t.type, t.shape, t.bytes, t.offset) for t in model.tensors]
    assert read == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()), t.n_bytes, t.data_offset) for t in reader.tensors
    ]


def write_split(path: Path, per_shard: int) -> list[Path]:
    writer = gguf.GGUFWriter(path, "glm-dsa", split_max_tensors=per_shard)
    add_model(writer)
    finish(writer)
    return sorted(path.parent.glob("*.gguf"))


@pytest.mark.parametrize("per_shard", [1, 7, 19])
def test_a_split_file_is_the_same_model_by_any_shard(tmp_path: Path, small: Path, per_shard: int) -> None:
    shards = write_split(tmp_path / "split.gguf", per_shard)
    assert len(shards) == -(-len(MODEL_TENSORS) // per_shard)
    with rt.Model.open(small) as model:
        whole = [(t.name, t.type, t.shape, t.bytes) for t in model.tensors]
    identities = set()
    for path in [*shards, tmp_path]:
        with rt.Model.open(path) as model:
            assert [(t.name, t.type, t.shape, t.bytes) for t in model.tensors] == whole
            assert model.paths == [str(shard) for shard in shards]
            assert model.file_bytes == sum(shard.stat().st_size for shard in shards)
            identities.add(model.identity)
            by_shard = {t.name: (t.shard, t.offset) for t in model.tensors}
    assert len(identities) == 1
    for number, shard in enumerate(shards):
        for tensor in gguf.GGUFReader(shard).tensors:
            assert by_shard[tensor.name] == (number, tensor.data_offset)
    if len(shards) > 1:
        shards[1].unlink()
        with pytest.raises(rt.ModelError, match=f"shards are missing, 1 of {len(shards)}: .*-00002-of-"):
            rt.Model.open(shards[0])


def test_shards_are_found_beside_the_link_that_was_named(tmp_path: Path) -> None:
    """A download cache: the names are links into a folder of blobs without names."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    for number, shard in enumerate(write_split(blobs / "split.gguf", 7)):
        shard.rename(blobs / str(number))
        (snapshot / shard.name).symlink_to(blobs / str(number))
    for path in (snapshot, next(snapshot.iterdir())):
        with rt.Model.open(path) as model:
            assert len(model.paths) == 3


# ---- identity ----

SAMPLE = 4096


def identity_of(paths: list[Path]) -> str:
    """The identity as docs/FORMAT.md defines it, from the gguf package's view of the files."""
    digest = hashlib.sha256()

    def add_text(text: bytes) -> None:
        digest.update(struct.pack("<Q", len(text)) + text)

    readers = [gguf.GGUFReader(path) for path in paths]
    contents = [path.read_bytes() for path in paths]
    add_text(b"glm52 identity 1")
    digest.update(struct.pack("<Q", len(paths)))
    for reader, content in zip(readers, contents, strict=True):
        last = reader.tensors[-1].field if reader.tensors else list(reader.fields.values())[-1]
        add_text(content[: last.offset + sum(part.nbytes for part in last.parts)])
    digest.update(struct.pack("<Q", sum(len(reader.tensors) for reader in readers)))
    for reader, content in zip(readers, contents, strict=True):
        for tensor in reader.tensors:
            sizes = [*tensor.shape.tolist(), 1, 1, 1][:4]
            add_text(tensor.name.encode())
            digest.update(struct.pack("<Q4Q", tensor.tensor_type, *sizes))
            start, count = int(tensor.data_offset), int(tensor.n_bytes)
            if count <= 3 * SAMPLE:
                digest.update(content[start : start + count])
                continue
            for place in (start, start + (count - SAMPLE) // 2, start + count - SAMPLE):
                digest.update(content[place : place + SAMPLE])
    return digest.hexdigest()


def test_identity_is_what_the_format_says(tmp_path: Path, small: Path, make: Callable[..., Path]) -> None:
    for path in (small, make("micro"), make("tiny", changes={"index_top_k": 8})):
        with rt.Model.open(path) as model:
            assert model.identity == identity_of([path])
    shards = write_split(tmp_path / "split.gguf", 7)
    with rt.Model.open(shards[1]) as model:
        assert model.identity == identity_of(shards)


def test_identity_survives_touch_copy_and_move(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = tmp_path / "model.gguf"
    shutil.copyfile(make("micro"), path)
    with rt.Model.open(path) as model:
        before = model.identity
        largest = max(model.tensors, key=lambda tensor: tensor.bytes)
    os.utime(path, (1, 1))
    moved = tmp_path / "elsewhere" / "other name.gguf"
    moved.parent.mkdir()
    shutil.copy(path, moved)
    path.unlink()
    with rt.Model.open(moved) as model:
        assert model.identity == before
    with open(moved, "r+b") as file:
        for place in (0, largest.bytes // 2, largest.bytes - 1):
            file.seek(largest.offset + place)
            old = file.read(1)
            file.seek(largest.offset + place)
            file.write(bytes([old[0] ^ 1]))
            file.flush()
            with rt.Model.open(moved) as model:
                assert model.identity != before
            file.seek(largest.offset + place)
            file.write(old)
            file.flush()


# ---- refusals ----


def refuse(path: Path, kind: type[rt.Error], pattern: str) -> None:
    with pytest.raises(kind, match=pattern) as caught:
        rt.Model.open(path)
    assert type(caught.value) is kind
    assert path.name in str(caught.value)


@SETTINGS
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, small: Path, data: st.DataObject) -> None:
    whole = small.read_bytes()
    cut = tmp_path / "cut.gguf"
    kept = data.draw(st.integers(0, len(whole) - 1))
    cut.write_bytes(whole[:kept])
    refuse(cut, rt.ModelError, "empty" if kept == 0 else "not a GGUF" if kept < 4 else "truncated")


def test_a_cut_expert_is_named(tmp_path: Path, make: Callable[..., Path]) -> None:
    whole = make("micro").read_bytes()
    cut = tmp_path / "cut.gguf"
    with rt.Model.open(make("micro")) as model:
        tensor = next(t for t in model.tensors if t.name.endswith("ffn_up_exps.weight"))
        experts = model.shape.experts
    for lost in (1, 4096):
        cut.write_bytes(whole[:-lost])
        pattern = rf"truncated: tensor .* takes bytes .* need a file of {len(whole)} bytes, {lost} are missing"
        refuse(cut, rt.ModelError, pattern)
    for expert in (0, 1, experts - 1):
        end = tensor.offset + tensor.bytes * (2 * expert + 1) // (2 * experts)
        cut.write_bytes(whole[:end])
        pattern = rf"tensor {tensor.name} takes .*ends at byte {end} \(in expert {expert} of {experts}\)"
        refuse(cut, rt.ModelError, pattern)


def test_what_is_no_model_is_said(tmp_path: Path, small: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_text("<!DOCTYPE html><html><body>Sign in</body></html>")
    refuse(path, rt.ModelError, "an HTML page, probably a download")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 211075856448\n")
    refuse(path, rt.ModelError, "Git LFS pointer")
    path.write_bytes(b"")
    refuse(path, rt.ModelError, "the file is empty")
    path.unlink()
    refuse(path, rt.IoError, "No such file")
    path.mkdir()
    refuse(path, rt.ModelError, "this folder is empty")
    (path / "notes.txt").write_text("nothing")
    refuse(path, rt.ModelError, "holds no .*gguf file .*notes.txt")
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(small, path / name)
    refuse(path, rt.ModelError, "holds 2 models; name the one to open: a.gguf, b.gguf")
    (path / "b.gguf").unlink()
    with rt.Model.open(path) as model:
        assert model.path == str(path / "a.gguf")


def test_other_models_and_types_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    patterns = {"llama": "the architecture is llama, only glm-dsa", "glm_moe_dsa": "another program"}
    for architecture, pattern in patterns.items():
        writer = gguf.GGUFWriter(path, architecture)
        add_model(writer)
        finish(writer)
        refuse(path, rt.UnsupportedError, pattern)
    for kind in GGMLQuantizationType:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        writer = gguf.GGUFWriter(path, "glm-dsa")
        add_model(writer)
        writer.add_tensor("extra", np.zeros((1, size), np.uint8), raw_shape=(1, size), raw_dtype=kind)
        finish(writer)
        if kind in TYPES:
            with rt.Model.open(path) as model:
                assert (model.tensors[-1].type, model.tensors[-1].bytes) == (kind.name, size)
        else:
            listed = ".*".join(t.name for t in sorted(TYPES))
            refuse(path, rt.UnsupportedError, rf"extra has type {kind.value} \({kind.name}\); types .*{listed}")


def test_a_message_survives_names_that_are_no_text(tmp_path: Path, small: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\n.gguf"
    shutil.copy(os.fsencode(small), path)
    with rt.Model.open(os.fsdecode(path)) as model:
        assert os.fsencode(model.path) == path
    with open(path, "r+b") as file:
        file.truncate(100)
    with pytest.raises(rt.ModelError, match="truncated"):
        rt.Model.open(os.fsdecode(path))


def test_a_long_path_leaves_room_for_the_reason(tmp_path: Path, small: Path) -> None:
    folder = tmp_path
    for letter in "abcdefg":
        folder /= 200 * letter
        folder.mkdir()
    path = folder / "model.gguf"
    refuse(path, rt.IoError, "g/model.gguf: No such file")
    shutil.copy(small, path)
    os.truncate(path, small.stat().st_size - 1)
    refuse(path, rt.ModelError, "g/model.gguf: truncated: .* 1 are missing")
    path.unlink()
    for shard in write_split(folder / "split.gguf", 7)[1:]:
        shard.unlink()
    with pytest.raises(rt.ModelError, match="shards are missing, 2 of 3: .*/split-00002-of-00003.gguf"):
        rt.Model.open(folder / "split-00001-of-00003.gguf")


# ---- the real sizes ----

OPEN_FULL = """
import pathlib, re, sys, time
import glm52_rt as rt

def peak():  # bytes of memory at most so far, mapped pages of files included (Linux; elsewhere 0)
    status = pathlib.Path("/proc/self/status")
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) if status.exists() else 0

before, start = peak(), time.perf_counter()
model = rt.Model.open(sys.argv[1])
opened, after, start = time.perf_counter() - start, peak(), time.perf_counter()
model.identity
print(opened, time.perf_counter() - start, after - before)
assert (len(model.tensors), len(model.full_indexer_layers), model.file_bytes) == (1809, 21, 211075856448)
assert model.shape.layers == 78 and model.shape.nextn_layers == 1 and model.shape.experts == 256
"""


def test_the_full_file_opens_in_a_second_and_100_megabytes(make: Callable[..., Path]) -> None:
    path = make("full", sparse=True)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OPEN_FULL, str(path)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    opened, identity, grown = map(float, run.stdout.split())
    print(f"opened in {opened:.3f} s, identity in {identity:.3f} s, {grown / 1e6:.1f} MB more memory")
    assert opened < 1.0
    assert identity < 2.0
    assert grown < 100e6


@pytest.mark.parametrize("types_as", ["bool", "int", "string", "none"])
def test_index_types_of_every_form_mean_the_same(make: Callable[..., Path], types_as: str) -> None:
    path = make("micro", types_as=types_as)
    with rt.Model.open(path) as model:
        context = model.shape.context_max
        table = tuple(i for i in range(model.shape.layers) if i < 2 or i % 4 == 2)
        every = tuple(range(model.shape.layers))
        assert model.full_indexer_layers == (table if types_as != "none" or context >= 1048576 else every)


def test_a_model_of_before_shared_indexers_loads(make: Callable[..., Path]) -> None:
    """GLM-5 and 5.1: no indexer.types, a context below 1,048,576, every layer full."""
    with rt.Model.open(make("allfull")) as model:
        assert "glm-dsa.attention.indexer.types" not in model.metadata
        assert model.shape.context_max < 1048576
        assert model.full_indexer_layers == tuple(range(model.shape.layers))
