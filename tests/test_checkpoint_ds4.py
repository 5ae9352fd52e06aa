"""The DS4GLM01 layout: byte by byte what the format says, taken up where that is right, and refused everywhere else."""

import os
import resource
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt

import glm52_rt as rt
from glm52_rt import checkpoint, checkpoint_ds4

IDS = prompt(7, 500)
MORE = [3, 1]


@pytest.fixture
def engine(micro: rt.Model) -> Iterator[rt.Engine]:
    """Of a context within index_top_k."""
    with rt.Engine(micro, context=micro.shape.index_top_k, mtp=True) as opened:
        yield opened


def continued(engine: rt.Engine) -> bytes:
    position = engine.position
    engine.prefill(MORE[: engine.context - position])
    logits = engine.logits.tobytes()
    engine.rewind(position)
    return logits


def fresh(model: rt.Model, ids: list[int]) -> bytes:
    with rt.Engine(model, context=80) as engine:
        engine.prefill(ids)
        return engine.logits.tobytes()


def rows_of(engine: rt.Engine, kind: int, layer: int) -> np.ndarray:
    with engine.native.exclusive() as spans:
        rows = np.zeros((spans.position, spans.row_bytes(kind, layer) // 2), "<f2")
        spans.read_rows(kind, layer, 0, memoryview(rows).cast("B"))
        return rows


def ds4_file(engine: rt.Engine, identity: bytes, raw: bool) -> bytes:
    """What such an executor would write, laid out here once more, from the definition."""
    shape, model = engine.model.shape, engine.model
    mtime = os.stat(model.path).st_mtime_ns
    parts = [
        b"DS4GLM01", struct.pack("<9I", 1, engine.context, engine.position, 0, shape.layers, shape.kv_lora, shape.rope,
                                 shape.index_key, shape.vocab),
        struct.pack("<QQI", model.file_bytes, mtime // 10**9, mtime % 10**9), identity, engine.tag.ljust(32, b"\0"),
        np.array(engine.tokens, "<u4").tobytes(), engine.logits.tobytes(),
    ]  # fmt: skip
    assert sum(len(part) for part in parts[:5]) == 128
    for layer in range(shape.layers):
        kv = rows_of(engine, 0, layer)
        keys = kv[:, shape.kv_lora :].astype(np.float64)
        if raw:
            for position in range(len(keys)):
                for pair in range(shape.rope // 2):
                    angle = -position * shape.rope_base ** (-2 * pair / shape.rope)
                    number = complex(*keys[position, 2 * pair : 2 * pair + 2]) * np.exp(1j * angle)
                    keys[position, 2 * pair : 2 * pair + 2] = number.real, number.imag
        parts += [kv[:, : shape.kv_lora].tobytes(), keys.astype("<f2").tobytes()]
        if shape.index_full[layer]:
            parts.append(rows_of(engine, 1, layer).tobytes())
    return b"".join(parts)


def test_the_layout_is_the_format_s(engine: rt.Engine, tmp_path: Path) -> None:
    engine.prefill(IDS)
    engine.tag = b"mine"
    identity = bytes(range(32))
    checkpoint_ds4.export(engine, tmp_path / "a", identity=identity, rope="rotated")
    data = (tmp_path / "a").read_bytes()
    assert data == ds4_file(engine, identity, False)
    shape = engine.model.shape
    row = 2 * (shape.layers * (shape.kv_lora + shape.rope) + sum(shape.index_full) * shape.index_key)
    assert len(data) == 128 + 4 * len(IDS) + 4 * shape.vocab + row * len(IDS)
    checkpoint_ds4.export(engine, tmp_path / "a", identity=identity)
    begin = 128 + 4 * len(IDS) + 4 * shape.vocab
    data, raw = (tmp_path / "a").read_bytes(), ds4_file(engine, identity, True)
    assert data[:begin] == raw[:begin]
    got, wanted = (np.frombuffer(part[begin:], "<f2").astype(float) for part in (data, raw))
    assert (got != wanted).sum() < 5, "float32 rounds another way now and then"
    assert np.allclose(got, wanted, rtol=2**-10) and len(got) == len(wanted)


def test_a_file_of_our_own_goes_on_bit_for_bit(micro: rt.Model, tmp_path: Path) -> None:
    """Beyond index_top_k, into another context: the keys are the model's."""
    ids = prompt(20, 500)
    with rt.Engine(micro, context=30) as one, rt.Engine(micro, context=50) as two:
        one.prefill(ids)
        one.tag = b"t" * 32
        seen: list[int] = []
        checkpoint_ds4.export(one, tmp_path / "a", rope="rotated", progress=seen.append)
        assert seen == sorted(seen) and seen[-1] == (tmp_path / "a").stat().st_size
        two.prefill([1, 2])
        assert checkpoint_ds4.read(two, tmp_path / "a", rope="rotated", keys="normed")
        assert two.tokens == ids and two.tag == b"t" * 32 and two.logits.tobytes() == one.logits.tobytes()
        assert continued(two) == fresh(micro, ids + MORE)
        two.save(tmp_path / "b")
        assert one.load(tmp_path / "b") and not one.raw_keys
        assert not checkpoint_ds4.read(two, tmp_path / "nothing")


def test_keys_of_the_residual_stream_stay_where_nothing_is_selected(
    micro: rt.Model, engine: rt.Engine, tmp_path: Path
) -> None:
    """Garbage for keys, even: within index_top_k they have no say; nobody takes them further, by no detour."""
    engine.prefill(IDS)
    data = bytearray(ds4_file(engine, bytes(32), False))
    (tmp_path / "a").write_bytes(data)
    with rt.Engine(micro, context=9) as larger:
        with pytest.raises(rt.CheckpointError, match="a context of up to 8 can take them up, this engine's holds 9"):
            checkpoint_ds4.read(larger, tmp_path / "a", identity=bytes(32), rope="rotated")
        assert checkpoint_ds4.read(engine, tmp_path / "a", identity=bytes(32), rope="rotated")
        assert engine.raw_keys and continued(engine) == fresh(micro, [*IDS, MORE[0]])
        engine.eval(5, ahead=3)
        assert engine.ahead == []
        engine.rewind(len(IDS))
        state = engine.park()
        assert state.raw_keys and not engine.raw_keys
        engine.swap(state)
        fork = engine.fork()
        assert fork.raw_keys and engine.raw_keys
        engine.save(tmp_path / "b")
        with pytest.raises(rt.CheckpointError, match="another executor's; a context of up to 8"):
            larger.load(tmp_path / "b")
        engine.reset()
        assert not engine.raw_keys
        assert engine.load(tmp_path / "b") and engine.raw_keys and engine.tokens == IDS
        with pytest.raises(rt.ArgumentError, match="rope='raw' alone"):
            checkpoint_ds4.export(engine, tmp_path / "c", rope="rotated")
        assert engine.align([*IDS[:3], 9]) == 3 and engine.raw_keys
        assert engine.align([400, 9]) == 0 and not engine.raw_keys
        engine.prefill(IDS)
        engine.save(tmp_path / "b")
        assert larger.load(tmp_path / "b")


def test_keys_that_were_not_rotated_are_rotated(micro: rt.Model, tmp_path: Path) -> None:
    """What such an executor stores before the rotation, within a float16 of what a fresh run has."""
    ids = prompt(30, 500)
    with rt.Engine(micro, context=40) as engine:
        engine.prefill(ids)
        wanted = [rows_of(engine, 0, layer) for layer in range(micro.shape.layers)]
        (tmp_path / "a").write_bytes(ds4_file(engine, bytes(32), True))
        engine.reset()
        assert checkpoint_ds4.read(engine, tmp_path / "a", identity=bytes(32), keys="normed")
        for layer, rows in enumerate(wanted):
            got = rows_of(engine, 0, layer)
            assert (got[:, : micro.shape.kv_lora] == rows[:, : micro.shape.kv_lora]).all()
            keys, right = (x[:, micro.shape.kv_lora :].astype(float) for x in (got, rows))
            # One rounding of each number of a pair, 2^-11 of it, and a sum of two products.
            assert (np.abs(keys - right) <= 2**-9 * np.abs(right).reshape(30, -1, 2).sum(-1).repeat(2, -1)).all()
        assert checkpoint_ds4.read(engine, tmp_path / "a", identity=bytes(32), keys="normed", rope="rotated")
        assert not np.allclose(rows_of(engine, 0, 0).astype(float), wanted[0].astype(float), rtol=0.1)


def forged(data: bytes, at: int, form: str, value: object) -> bytes:
    return data[:at] + struct.pack(form, value) + data[at + struct.calcsize(form) :]


@pytest.mark.parametrize(
    ("at", "form", "value", "kind", "words"),
    [
        (0, "8s", b"GLM52CKP", rt.CheckpointError, "is no DS4GLM01 file"),
        (8, "<I", 2, rt.CheckpointError, "version 2; this reads version 1"),
        (12, "<I", 6, rt.CheckpointError, "7 tokens in a context of 6"),
        (16, "<I", 9, rt.CheckpointError, "9 tokens in a context of 8"),
        (16, "<I", 2**32 - 1, rt.CheckpointError, "tokens in a context"),
        (16, "<I", 6, rt.CheckpointError, "has trailing data"),
        (16, "<I", 8, rt.CheckpointError, "ends early"),
        (20, "<I", 1, rt.CheckpointError, "quality 1; this engine has 0"),
        (24, "<I", 8, rt.CheckpointError, "layers 8"),
        (28, "<I", 65, rt.CheckpointError, "kv_lora 65"),
        (32, "<I", 15, rt.CheckpointError, "rope 15"),
        (36, "<I", 0, rt.CheckpointError, "index_key 0"),
        (40, "<I", 2**31, rt.CheckpointError, "vocab 2147483648"),
        (44, "<Q", 1, rt.CheckpointError, "model_bytes 1"),
        (64, "32s", bytes(32), rt.CheckpointError, "written for model 0000000000000000, not"),
        (128, "<I", 512, rt.CheckpointError, "token 512 at index 0"),
        (132, "<I", 2**32 - 1, rt.CheckpointError, "token -1 at index 1"),
        (156, "<f", float("nan"), rt.CheckpointError, "a logit that is no finite number"),
        (156 + 4 * 512 + 2, "<e", float("inf"), rt.CheckpointError, "a row that is no finite number"),
    ],
)
def test_hostile_files_are_refused(
    engine: rt.Engine, tmp_path: Path, at: int, form: str, value: object, kind: type, words: str
) -> None:
    engine.prefill(IDS)
    checkpoint_ds4.export(engine, tmp_path / "a")
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "bad").write_bytes(forged(data, at, form, value))
    engine.reset()
    engine.prefill([9, 9])
    engine.tag = b"mine"
    with pytest.raises(kind, match=words):
        checkpoint_ds4.read(engine, tmp_path / "bad")
    assert engine.tokens == [9, 9] and engine.tag == b"mine" and engine.plan.sessions == 0
    (tmp_path / "bad").write_bytes(forged(data, 52, "<Q", 7))  # the time has no say
    assert checkpoint_ds4.read(engine, tmp_path / "bad") and engine.tokens == IDS


def test_every_truncation_is_refused_and_failures_leave_the_old_file(
    engine: rt.Engine, micro: rt.Model, tmp_path: Path
) -> None:
    engine.prefill(IDS)
    path = tmp_path / "a"
    checkpoint_ds4.export(engine, path)
    data = path.read_bytes()
    bad = tmp_path / "bad"
    bad.write_bytes(data + b"\0")
    for size in [len(data) + 1, *range(len(data) - 1, 0, -37), 0]:
        os.truncate(bad, size)
        with pytest.raises(rt.CheckpointError):
            checkpoint_ds4.read(engine, bad)
    bad.unlink()
    engine.rewind(3)
    with pytest.raises(rt.Error, match="no logits"):
        checkpoint_ds4.export(engine, path)
    engine.prefill([5])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 100, 128, 1000, len(data) // 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(rt.IoError, match="too large"):
                checkpoint_ds4.export(engine, path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    calls: list[int] = []
    checkpoint_ds4.export(engine, tmp_path / "b", progress=calls.append)
    for stop_at in range(len(calls)):
        left = iter(range(stop_at))
        with pytest.raises(rt.Cancelled):
            checkpoint_ds4.export(engine, path, progress=lambda done, left=left: next(left, None) is not None)
        left = iter(range(min(stop_at, 2)))
        with pytest.raises(rt.Cancelled):
            checkpoint_ds4.read(engine, path, progress=lambda done, left=left: next(left, None) is not None)
    assert path.read_bytes() == data and sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert engine.tokens == [*IDS[:3], 5]


def test_what_the_layout_has_no_room_for_is_refused(engine: rt.Engine, micro: rt.Model, tmp_path: Path) -> None:
    engine.prefill(IDS)
    engine.tag = b"t" * 33
    with pytest.raises(rt.ArgumentError, match="a tag of 33 bytes"):
        checkpoint_ds4.export(engine, tmp_path / "a")
    engine.tag = b""
    for call in (checkpoint_ds4.export, checkpoint_ds4.read):
        with pytest.raises(rt.ArgumentError, match="rope"):
            call(engine, tmp_path / "a", rope="half")
        with pytest.raises(rt.ArgumentError, match="identity of 3 bytes"):
            call(engine, tmp_path / "a", identity=b"abc")
        with rt.Engine(micro, context=8, kv_type="f32") as wide, pytest.raises(rt.UnsupportedError, match="float16"):
            call(wide, tmp_path / "a")
    with pytest.raises(rt.ArgumentError, match="keys"):
        checkpoint_ds4.read(engine, tmp_path / "a", keys="other")
    assert checkpoint.FOREIGN_INDEXER == 2


def test_pieces_of_a_longer_file(micro: rt.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = prompt(60, 500)
    with rt.Engine(micro, context=80) as engine:
        engine.prefill(ids)
        checkpoint_ds4.export(engine, tmp_path / "a")
        monkeypatch.setattr(checkpoint_ds4, "PIECE_BYTES", 1000)
        checkpoint_ds4.export(engine, tmp_path / "b")
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
        checkpoint_ds4.export(engine, tmp_path / "c", rope="rotated")
        engine.reset()
        assert checkpoint_ds4.read(engine, tmp_path / "c", rope="rotated", keys="normed")
        assert continued(engine) == fresh(micro, ids + MORE)
