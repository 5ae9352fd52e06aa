"""glm52 convert: bit-equal to llama.cpp's converter, every name and shape checked, resumable, whole or not at all."""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import make_checkpoint as mc
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from record_convert import SEED, describe

import glm52_rt as rt
from glm52_rt import convert_values
from glm52_rt.cli import main
from glm52_rt.convert import convert
from glm52_rt.convert_plan import Config, Plan
from glm52_rt.convert_values import Weights, bf16_bits, e4m3_values
from glm52_rt.safetensors_file import Source

VECTORS = json.loads((Path(__file__).parent / "vectors/convert.json").read_text())
HYPOTHESIS: Any = {"deadline": None, "derandomize": True,
                   "suppress_health_check": [HealthCheck.function_scoped_fixture]}  # fmt: skip
PYTHONPATH = os.pathsep.join([str(Path(rt.__file__).parents[1]), str(Path(mc.__file__).parent)])


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """checkpoints(form, **options) -> a folder that nobody changes."""
    made: dict[str, Path] = {}

    def get(form: str, **options: Any) -> Path:
        key = repr((form, sorted(options.items())))
        if key not in made:
            made[key] = mc.make_checkpoint(tmp_path_factory.mktemp("checkpoint") / form, form, seed=SEED, **options)
        return made[key]

    return get


def converted(folder: Path, path: Path, **options: Any) -> bytes:
    convert(folder, path, name="model", overwrite=True, **options)
    assert sorted(path.parent.glob(path.name + "*")) == [path], "nothing is left beside the file"
    return path.read_bytes()


# ---- the values ----


@pytest.mark.parametrize("name", VECTORS["files"])
def test_tensors_and_keys_are_those_of_llama_cpps_converter(
    name: str, checkpoints: Callable[..., Path], tmp_path: Path
) -> None:
    form, kind = name.split("-")
    convert(checkpoints(form, shards=2), tmp_path / "model.gguf", type=kind.upper())
    keys, tensors = describe(tmp_path / "model.gguf")
    assert tensors == dict(zip(VECTORS["names"], VECTORS["files"][name].split(), strict=True))
    wanted = dict(VECTORS["keys"][form])
    if name in VECTORS["file_types"]:
        wanted["general.file_type"] = VECTORS["file_types"][name]
    # That converter makes a title of the folder's name.
    assert keys.pop("general.name") == ["STRING", form] and wanted.pop("general.name")
    assert keys == wanted


def test_e4m3_is_torchs_for_every_code() -> None:
    assert [float(value).hex() for value in e4m3_values()] == VECTORS["e4m3"]


def test_bf16_is_rounded_to_nearest_even() -> None:
    high = np.arange(0, 0x7F80, 7, dtype=np.uint32) << 16
    bits = (high[:, None] | np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)).reshape(-1)
    for sign in (0, 0x80000000):
        values = (bits | np.uint32(sign)).view(np.float32)
        values = values[np.isfinite(values)]
        wanted = quants.quantize(values, GGMLQuantizationType.BF16).view(np.uint16)
        assert np.array_equal(bf16_bits(values), wanted)


def test_scales_of_stacked_matrices_begin_anew_with_each(tmp_path: Path, checkpoints: Callable[..., Path]) -> None:
    """Blocks of 4 x 32 over matrices of 10 x 70: the last of each are cut, and none reaches into the next matrix."""
    shape, factors, name = (3, 10, 70), (3, 3, 3), "stack"
    codes, scales = mc.values("F8_E4M3", shape, 5), mc.values("F32", factors, 6)
    mc.write_safetensors(tmp_path / "m.safetensors", [(name, "F8_E4M3", codes), (f"{name}_scale_inv", "F32", scales)])
    plan = Plan(replace(Config.read(checkpoints("fp8")), fp8_block=(4, 32)))
    wanted = np.empty(shape, np.float32)
    for e, r, c in np.ndindex(shape):
        code = np.float32(float.fromhex(VECTORS["e4m3"][codes[e, r, c]]))
        wanted[e, r, c] = code * scales.view(np.float32)[e, r // 4, c // 32]
    with Source(tmp_path) as source:
        weights = Weights(source, plan)
        for first, count in ((0, 30), (7, 9), (9, 1), (10, 20), (29, 1)):
            assert np.array_equal(weights.rows(name, first, count), wanted.reshape(30, 70)[first : first + count])


def fuse(folder: Path) -> None:
    """Rewrites a checkpoint with the experts of a block in two tensors, as the model's own parameters are."""
    path = folder / "model.safetensors"
    with Source(folder) as source:
        found = {t.name: (t.dtype, np.frombuffer(source.read(t, 0, t.bytes), np.uint8).reshape(
            *t.shape[:-1], -1)) for t in source.tensors.values()}  # fmt: skip
        shapes = {t.name: t.shape for t in source.tensors.values()}
    out: list[tuple[str, str, np.ndarray]] = []
    for i in range(mc.DENSE, mc.LAYERS + 1):
        at = f"model.layers.{i}.mlp.experts."
        for end in (".weight", ".weight_scale_inv"):
            if f"{at}0.up_proj{end}" not in found:
                continue

            def take(kind: str, e: int, at: str = at, end: str = end) -> np.ndarray:
                shapes.pop(f"{at}{e}.{kind}{end}")
                return found.pop(f"{at}{e}.{kind}{end}")[1]

            dtype = found[f"{at}0.up_proj{end}"][0]
            both = [np.concatenate([take("gate_proj", e), take("up_proj", e)]) for e in range(mc.EXPERTS)]
            down = [take("down_proj", e) for e in range(mc.EXPERTS)]
            for name, stack in (("gate_up_proj", both), ("down_proj", down)):
                out.append((f"{at}{name}{end.removeprefix('.weight')}", dtype, np.stack(stack)))
    out += [(name, dtype, data) for name, (dtype, data) in found.items()]
    sizes = {"BF16": 2, "F32": 4, "F16": 2, "F8_E4M3": 1}
    header, at_byte = {}, 0
    for name, dtype, data in out:
        shape = shapes.get(name, (*data.shape[:-1], data.shape[-1] // sizes[dtype]))
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at_byte, at_byte + data.nbytes]}
        at_byte += data.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data.tobytes() for _, _, data in out))


@pytest.mark.parametrize("form", ["bf16", "fp8"])
def test_fused_experts_give_the_same_file(form: str, checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    plain = checkpoints(form)
    fused = tmp_path / "fused"
    shutil.copytree(plain, fused)
    fuse(fused)
    with Source(fused) as source:
        assert "model.layers.1.mlp.experts.gate_up_proj" in source.tensors
    assert converted(fused, tmp_path / "b.gguf") == converted(plain, tmp_path / "a.gguf")


@pytest.mark.parametrize("form", ["bf16", "fp8", "mixed"])
def test_the_size_of_pieces_changes_nothing(
    form: str, checkpoints: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = converted(checkpoints(form), tmp_path / "a.gguf", type="Q8_0")
    monkeypatch.setattr(convert_values, "PIECE_VALUES", 5 * mc.HIDDEN)
    assert converted(checkpoints(form), tmp_path / "b.gguf", type="Q8_0") == whole


def test_memory_is_that_of_pieces(
    checkpoints: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The float32 file is 1.3 MB; with pieces of 2 kB nothing near that is ever held, the header apart."""
    monkeypatch.setattr(convert_values, "PIECE_VALUES", 8 * mc.HIDDEN)
    convert(checkpoints("bf16"), tmp_path / "a.gguf", type="F32")
    tracemalloc.start()
    try:
        made = convert(checkpoints("bf16"), tmp_path / "b.gguf", type="F32")
        assert tracemalloc.get_traced_memory()[1] < made.file_bytes * 2 // 3
    finally:
        tracemalloc.stop()


def test_without_mtp_the_file_ends_with_the_trunk(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    bare = converted(checkpoints("bf16", mtp=False), tmp_path / "a.gguf")
    left_out = converted(checkpoints("bf16"), tmp_path / "b.gguf", mtp=False)
    with rt.Model.open(tmp_path / "a.gguf") as a, rt.Model.open(tmp_path / "b.gguf") as b:
        assert a.shape == b.shape and a.shape.nextn_layers == 0 and a.metadata["glm-dsa.block_count"] == mc.LAYERS
        assert [t.name for t in a.tensors] == [t.name for t in b.tensors]
    assert len(bare) == len(left_out)


def test_the_file_runs(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    convert(checkpoints("fp8"), tmp_path / "model.gguf")
    with rt.Model.open(tmp_path / "model.gguf") as model:
        tokenizer = rt.Tokenizer.from_model(model)
        ids = tokenizer.encode("the model")
        assert tokenizer.decode(ids) == "the model"
        with rt.Engine(model, context=32) as engine:
            engine.prefill(ids)
            assert np.isfinite(engine.logits).all()


# ---- what is refused ----


class Editor:
    """A copy of a checkpoint in which single things are changed."""

    def __init__(self, source: Path, folder: Path) -> None:
        shutil.copytree(source, folder)
        self.folder, self.path = folder, folder / "model.safetensors"
        data = self.path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        self.header: dict[str, Any] = json.loads(data[8 : 8 + length])
        self.data = bytearray(data[8 + length :])

    def config(self, **changes: Any) -> None:
        path = self.folder / "config.json"
        found = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: value for key, value in found.items() if value is not ...}))

    def take(self, name: str) -> None:
        """Removes a tensor; its bytes go to the one before it or behind it."""
        begin, end = self.header.pop(name)["data_offsets"]
        del self.data[begin:end]
        for entry in self.header.values():
            if "data_offsets" in entry and entry["data_offsets"][0] >= end:
                entry["data_offsets"] = [at - (end - begin) for at in entry["data_offsets"]]

    def add(self, name: str, dtype: str, shape: list[int], data: bytes) -> None:
        places = [len(self.data), len(self.data) + len(data)]
        self.header[name] = {"dtype": dtype, "shape": shape, "data_offsets": places}
        self.data += data

    def put(self, name: str, at: int, data: bytes) -> None:
        begin = self.header[name]["data_offsets"][0]
        self.data[begin + at : begin + at + len(data)] = data

    def save(self) -> Path:
        text = json.dumps(self.header).encode()
        self.path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(self.data))
        return self.folder


Edit = Callable[[Editor], Any]
AT1 = "model.layers.1."
REFUSED: dict[str, tuple[str, Edit, list[str]]] = {
    "missing": ("bf16", lambda e: e.take(AT1 + "self_attn.kv_b_proj.weight"),
                ["1 tensors are missing: model.layers.1.self_attn.kv_b_proj.weight"]),
    "expert missing": ("bf16", lambda e: e.take(AT1 + "mlp.experts.3.up_proj.weight"),
                       ["missing: model.layers.1.mlp.experts.3.up_proj.weight"]),
    "indexer in part": ("bf16", lambda e: e.add("model.layers.3.self_attn.indexer.k_norm.bias", "F32", [1], bytes(4)),
                        ["4 tensors are missing: model.layers.3.self_attn.indexer"]),
    "mtp missing": ("bf16", lambda e: [e.take(n) for n in list(e.header) if n.startswith("model.layers.4.")],
                    ["are missing", "leave it out (--no-mtp)"]),
    "surplus": ("bf16", lambda e: e.add("model.layers.1.mlp.extra.weight", "BF16", [2], bytes(4)),
                ["model.safetensors: 1 tensors have no place in the model: model.layers.1.mlp.extra.weight"]),
    "shape": ("bf16", lambda e: e.header["model.norm.weight"].update(shape=[2, 32]),
              ["model.safetensors: tensor model.norm.weight is [2, 32], [64] is wanted"]),
    "transposed": ("bf16", lambda e: e.header[AT1 + "mlp.experts.0.down_proj.weight"].update(shape=[32, 64]),
                   ["mlp.experts.0.down_proj.weight is [32, 64], [64, 32] is wanted"]),
    "dtype": ("bf16", lambda e: e.header["model.norm.weight"].update(dtype="I16"),
              ["tensor model.norm.weight is I16, one of BF16, F16, F32, F8_E4M3 is wanted"]),
    "fp8 alone": ("fp8", lambda e: e.take(AT1 + "self_attn.o_proj.weight_scale_inv"),
                  ["tensor model.layers.1.self_attn.o_proj.weight is F8_E4M3, but there is no", "_scale_inv"]),
    "scale alone": ("bf16", lambda e: e.add(AT1 + "self_attn.o_proj.weight_scale_inv", "F32", [4, 2], bytes(32)),
                    ["no place in the model: model.layers.1.self_attn.o_proj.weight_scale_inv"]),
    "scale shape": ("fp8", lambda e: e.header[AT1 + "self_attn.o_proj.weight_scale_inv"].update(shape=[2, 4]),
                    ["o_proj.weight_scale_inv is F32 [2, 4], F32 or BF16 [4, 2] is wanted"]),
    "nan": ("bf16", lambda e: e.put(AT1 + "self_attn.o_proj.weight", 2 * (64 * 5 + 7), b"\xc0\x7f"),
            ["tensor model.layers.1.self_attn.o_proj.weight: the value in row 5, column 7 is not finite"]),
    "fp8 nan": ("fp8", lambda e: e.put(AT1 + "self_attn.o_proj.weight", 64 * 6 + 3, b"\xff"),
                ["o_proj.weight: the value in row 6, column 3 is not finite"]),
    "architecture": ("bf16", lambda e: e.config(architectures=["LlamaForCausalLM"]), ["LlamaForCausalLM"]),
    "groups": ("bf16", lambda e: e.config(n_group=2), ["n_group is 2, only 1 is converted"]),
    "rope": ("bf16", lambda e: e.config(rope_parameters={"rope_theta": 1e6, "rope_type": "yarn"}), ["yarn"]),
    "number": ("bf16", lambda e: e.config(hidden_size="64"), ["hidden_size is '64', a whole number"]),
    "no number": ("bf16", lambda e: e.config(kv_lora_rank=...), ["kv_lora_rank is None"]),
    "layers": ("bf16", lambda e: e.config(num_hidden_layers=100000), ["num_hidden_layers is 100000"]),
    "types": ("bf16", lambda e: e.config(indexer_types=["full"]), ["is no list of 4 times full or shared"]),
    "dense": ("bf16", lambda e: e.config(mlp_layer_types=["sparse", "dense", "sparse", "sparse"]), ["must come first"]),
    "quantised": ("bf16", lambda e: e.config(quantization_config={"quant_method": "gptq"}), ["method than fp8"]),
    "block": ("fp8", lambda e: e.config(quantization_config={"quant_method": "fp8", "weight_block_size": [0, 1]}),
              ["weight_block_size is [0, 1]"]),
    "tokenizer": ("bf16", lambda e: (e.folder / "tokenizer.json").write_text('{"model": {"type": "Unigram"}}'),
                  ["tokenizer.json: not a byte-level BPE tokenizer with GLM-4's split"]),
    "no tokenizer": ("bf16", lambda e: (e.folder / "tokenizer.json").unlink(), ["tokenizer.json: No such file"]),
    "config": ("bf16", lambda e: (e.folder / "config.json").write_text("{"), ["config.json: the config is not proper"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_and_says_what_was_wanted(case: str, checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    form, edit, parts = REFUSED[case]
    editor = Editor(checkpoints(form), tmp_path / "checkpoint")
    edit(editor)
    with pytest.raises(rt.Error) as caught:
        convert(editor.save(), tmp_path / "model.gguf")
    for part in parts:
        assert part in str(caught.value), str(caught.value)
    assert not (tmp_path / "model.gguf").exists()


def test_refuses_what_a_type_can_not_hold(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    editor = Editor(checkpoints("bf16"), tmp_path / "checkpoint")
    editor.put("lm_head.weight", 0, b"\x80\x47")  # 65536
    with pytest.raises(rt.ModelError, match=r"tensor output.weight: 65536 is more than F16 holds"):
        convert(editor.save(), tmp_path / "model.gguf", type="F16")
    convert(editor.folder, tmp_path / "model.gguf", type="BF16")
    editor.put("lm_head.weight", 0, b"\x80\x7e")  # 8.5e37
    with pytest.raises(rt.ModelError, match=r"tensor output.weight: row 0, column 0 is 8.5\d*e\+37: Q8_0 holds"):
        convert(editor.save(), tmp_path / "other.gguf", type="Q8_0")


def test_refuses_arguments(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(b"mine")
    with pytest.raises(rt.ArgumentError, match="exists"):
        convert(checkpoints("bf16"), target)
    assert target.read_bytes() == b"mine"
    with pytest.raises(rt.ArgumentError, match="not a folder"):
        convert(target, tmp_path / "other.gguf")
    with pytest.raises(rt.ArgumentError, match="one of BF16"):
        convert(checkpoints("bf16"), target, type="Q4_K", overwrite=True)
    with pytest.raises(rt.ArgumentError, match="a folder, not a file"):
        convert(checkpoints("bf16"), tmp_path)


# ---- safetensors ----


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    shape, offsets = (list(x) if isinstance(x, tuple) else x for x in (shape, offsets))
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


MALFORMED = {
    "empty": (b"", "a header of 0 bytes"),
    "header beyond the file": (safetensors({}, length=1 << 40), "a header of 1099511627776 bytes"),
    "not JSON": (safetensors(b"{nope"), "not proper JSON"),
    "not UTF-8": (safetensors(b'{"\xff": 1}'), "not proper JSON"),
    "deep": (safetensors(b"[" * 100000), "not proper JSON"),
    "a list": (safetensors([]), "no JSON object"),
    "twice": (safetensors(b'{"a": 1, "a": 1}'), "'a' is there twice"),
    "no entry": (safetensors({"a": 1}), "tensor a: not described"),
    "dtype": (safetensors({"a": entry("F4")}, bytes(8)), "dtype 'F4' is none of"),
    "dtype no text": (safetensors({"a": entry([])}, bytes(8)), "dtype [] is none of"),
    "shape": (safetensors({"a": entry(shape=(-2,))}, bytes(8)), "shape [-2]"),
    "shape of bools": (safetensors({"a": entry(shape=(True, 2))}, bytes(8)), "shape [True, 2]"),
    "huge": (safetensors({"a": entry(shape=(1 << 59, 1 << 59))}, bytes(8)), "takes"),
    "offsets": (safetensors({"a": entry(offsets=(0,))}, bytes(8)), "are not two places"),
    "backwards": (safetensors({"a": entry(offsets=(8, 0))}, bytes(8)), "bytes 8 to 0 of 8"),
    "cut": (safetensors({"a": entry()}, bytes(7)), "bytes 0 to 8 of 7: the file is cut"),
    "size": (safetensors({"a": entry(offsets=(0, 4))}, bytes(4)), "4 bytes, F32 [2] takes 8"),
    "over": (safetensors({"a": entry(), "b": entry(shape=(1,), offsets=(4, 8))}, bytes(8)), "lies over another"),
    "hole": (safetensors({"a": entry(offsets=(4, 12))}, bytes(12)), "leaves a hole"),
    "behind": (safetensors({"a": entry()}, bytes(9)), "1 bytes behind the last tensor"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_safetensors_are_refused(case: str, tmp_path: Path) -> None:
    data, message = MALFORMED[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(rt.ModelError) as caught:
        Source(path)
    assert message in str(caught.value) and "model.safetensors" in str(caught.value), str(caught.value)


def test_an_index_that_lies_is_refused(tmp_path: Path) -> None:
    def index(weights: Any) -> None:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))

    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(safetensors({name: entry()}, bytes(8)))
    for weights, message in (
        ({"a": "../a.safetensors"}, "is no name of a safetensors file"),
        ({"a": "c.safetensors"}, "in the index, but not there"),
        ({"a": "b.safetensors"}, "tensor a: said to be in b.safetensors, found in none"),
        ({"a": "a.safetensors", "b": "a.safetensors"}, "said to be in a.safetensors, found in none"),
        ({"a": 1}, "no weight_map"),
        ([], "no weight_map"),
    ):
        index(weights)
        with pytest.raises(rt.ModelError, match=message):
            Source(tmp_path)
    index({"a": "a.safetensors", "b": "b.safetensors"})
    with Source(tmp_path) as source:
        assert sorted(source) == ["a", "b"] and source.read(source.tensors["b"], 2, 6) == bytes(6)
    (tmp_path / "b.safetensors").write_bytes(safetensors({"a": entry()}, bytes(8)))
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(rt.ModelError, match="tensor a: also in"):
        Source(tmp_path)


@settings(max_examples=200, **HYPOTHESIS)
@given(st.data())
def test_changed_safetensors_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes of a header are changed, cut or added: a Source, or an Error that names the file."""
    header = {"__metadata__": {"format": "pt"}, "a": entry(), "b.c": entry("BF16", (2, 3), (8, 20))}
    start = safetensors(header, bytes(12))
    bytes_ = bytearray(start + bytes(8))
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(bytes_) - 1))
        kind = data.draw(st.sampled_from(["set", "cut", "insert"]))
        piece = data.draw(st.sampled_from([b"0", b"9", b"-", b'"', b"[", b"}", b",", b"\\", b"\xff", b"\0", b"1e9"]))
        if kind == "set":
            bytes_[at : at + 1] = piece
        elif kind == "cut":
            del bytes_[at : at + data.draw(st.integers(1, 4))]
        else:
            bytes_[at:at] = piece
        bytes_ = bytes_ or bytearray(b"x")
    path = tmp_path / "m.safetensors"
    path.write_bytes(bytes(bytes_))
    try:
        with Source(path) as source:
            for tensor in source.tensors.values():
                assert len(source.read(tensor, 0, tensor.bytes)) == tensor.bytes
    except rt.Error as error:
        assert "m.safetensors" in str(error)


# ---- interrupted runs ----


class Stop(Exception):
    pass


def stopping_at(count: int) -> Callable[[int, int], None]:
    calls = [0]

    def progress(done: int, total: int) -> None:
        calls[0] += 1
        if calls[0] == count:
            raise Stop

    return progress


def test_a_killed_run_is_continued(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    folder, target = checkpoints("bf16"), tmp_path / "model.gguf"
    whole = converted(folder, tmp_path / "whole.gguf")
    script = (
        "import os, sys\nfrom glm52_rt.convert import convert\nleft = [31]\ndef progress(done, total):\n"
        "    left[0] -= 1\n    if not left[0]: os.kill(os.getpid(), 9)\n"
        "convert(sys.argv[1], sys.argv[2], name='model', progress=progress)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script, folder, target], env=os.environ | {"PYTHONPATH": PYTHONPATH}, check=False
    )
    assert ended.returncode == -signal.SIGKILL and not target.exists()
    assert (tmp_path / "model.gguf.partial").exists()
    assert convert(folder, target, name="model").resumed == 31
    assert target.read_bytes() == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "whole.gguf"]


@pytest.mark.parametrize("index", [0, 1, 17, 39])
def test_a_damaged_tensor_is_written_again(index: int, checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    folder, target = checkpoints("bf16"), tmp_path / "model.gguf"
    whole = converted(folder, tmp_path / "whole.gguf")
    with rt.Model.open(tmp_path / "whole.gguf") as model:
        place = model.tensors[index].offset + model.tensors[index].bytes - 1
    with pytest.raises(Stop):
        convert(folder, target, name="model", progress=stopping_at(40))
    with open(tmp_path / "model.gguf.partial", "r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    assert convert(folder, target, name="model").resumed == index
    assert target.read_bytes() == whole


@settings(max_examples=25, **HYPOTHESIS)
@given(st.data())
def test_whatever_is_left_the_file_is_whole(
    checkpoints: Callable[..., Path], tmp_path: Path, data: st.DataObject
) -> None:
    """Runs stopped anywhere, what they left damaged anywhere: the next run takes only what is right."""
    folder, target = checkpoints("bf16"), tmp_path / "model.gguf"
    partial, journal = tmp_path / "model.gguf.partial", tmp_path / "model.gguf.partial.journal"
    stop = data.draw(st.integers(1, 110))
    with contextlib.suppress(Stop):
        convert(folder, target, name="model", overwrite=True, progress=stopping_at(stop))
    damage = data.draw(st.sampled_from(["none", "flip", "cut", "journal cut", "journal gone", "partial gone", "noise"]))
    bytes_ = bytearray(partial.read_bytes())
    at = data.draw(st.integers(0, len(bytes_) - 1))
    if damage == "flip":
        bytes_[at] ^= 1 << data.draw(st.integers(0, 7))
        partial.write_bytes(bytes(bytes_))
    elif damage == "cut":
        partial.write_bytes(bytes(bytes_[:at]))
    elif damage == "journal cut":
        text = journal.read_bytes()
        journal.write_bytes(text[: data.draw(st.integers(0, len(text)))])
    elif damage == "noise":
        journal.write_bytes(b'{"glm52 partial": 1}\n\xff\xfe[]\n')
    elif damage.endswith("gone"):
        (partial if damage.startswith("partial") else journal).unlink()
    made = convert(folder, target, name="model", overwrite=True)
    assert made.resumed <= stop and (damage not in ("none",) or made.resumed == stop)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    assert digest == hashlib.sha256(converted(folder, tmp_path / "whole.gguf")).hexdigest()


def test_a_partial_file_of_other_weights_is_begun_anew(checkpoints: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    shutil.copytree(checkpoints("bf16"), folder)
    target = tmp_path / "model.gguf"
    with pytest.raises(Stop):
        convert(folder, target, name="model", progress=stopping_at(40))
    times = os.stat(folder / "model.safetensors")
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    assert convert(folder, target, name="model").resumed == 0
    target.unlink()
    with pytest.raises(Stop):
        convert(folder, target, name="model", progress=stopping_at(40))
    assert convert(folder, target, name="model", type="F16").resumed == 0


# ---- the command ----


def test_the_command(
    checkpoints: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = checkpoints("bf16"), tmp_path / "model.gguf"
    assert main(["convert", str(folder), "-o", str(target), "--type", "q8_0", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    with rt.Model.open(target) as model:
        assert said == {"path": str(target), "tensors": 112, "resumed": 0, "file_bytes": model.file_bytes,
                        "identity": model.identity}  # fmt: skip
    assert main(["convert", str(folder), "-o", str(target)]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["convert", str(folder), "-o", str(target), "--force", "--no-mtp", "--name", "a name"]) == 0
    assert "85 tensors" in capsys.readouterr().out
    with rt.Model.open(target) as model:
        assert model.metadata["general.name"] == "a name" and model.shape.nextn_layers == 0
