"""Checkpoints: what is saved goes on bit for bit, what is damaged or foreign is refused, and no moment of a crash loses
both the old file and the new one."""

import contextlib
import fcntl
import hashlib
import os
import random
import resource
import shutil
import signal
import stat
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt

import glm52_rt as rt
from glm52_rt import checkpoint
from glm52_rt.sampling import Sampler

CONTEXT = 40
IDS = prompt(12, 512)
MORE = prompt(10, 512, seed=8)


@pytest.fixture
def engine(micro: rt.Model) -> Iterator[rt.Engine]:
    with rt.Engine(micro, context=CONTEXT, chunk_rows=4) as opened:
        yield opened


def continued(engine: rt.Engine) -> bytes:
    engine.prefill(MORE)
    return engine.logits.tobytes()


# ---- going on ----


@pytest.mark.parametrize("quality", [False, True])
@pytest.mark.parametrize("kv_type", ["f16", "f32"])
def test_a_loaded_conversation_goes_on_bit_for_bit(
    micro: rt.Model, tmp_path: Path, quality: bool, kv_type: str
) -> None:
    modes = {"quality": quality, "kv_type": kv_type}
    path = tmp_path / "new folder" / "a"
    with rt.Engine(micro, context=CONTEXT, **modes) as engine:
        engine.prefill(IDS)
        engine.save(path, b"a tag")
        assert engine.tag == b"a tag"
        logits, wanted = engine.logits.tobytes(), continued(engine)
    others: list[dict] = [
        {"context": 22}, {"context": 300, "threads": 1}, {"context": 40, "chunk_rows": 3},
        {"context": 40, "streaming": rt.Streaming(cache_experts=2)},
    ]  # fmt: skip
    for other in others:
        with rt.Engine(micro, **other, **modes) as engine:
            engine.prefill([9, 9, 9])
            assert engine.load(path)
            assert engine.tokens == IDS and engine.tag == b"a tag" and engine.logits.tobytes() == logits
            assert continued(engine) == wanted
            engine.rewind(9)
            engine.prefill([1])
            seen = engine.logits.tobytes()
            engine.reset()
            engine.prefill([*IDS[:9], 1])
            assert engine.logits.tobytes() == seen


def test_states_without_logits_and_without_tokens(engine: rt.Engine, tmp_path: Path) -> None:
    engine.save(tmp_path / "empty")
    engine.prefill(IDS)
    engine.rewind(5)
    engine.save(tmp_path / "rewound")
    for name, held in (("empty", []), ("rewound", IDS[:5])):
        assert engine.load(tmp_path / name)
        assert engine.tokens == held
        with pytest.raises(rt.Error, match="no logits"):
            _ = engine.logits


def test_no_file_is_no_error(engine: rt.Engine, tmp_path: Path) -> None:
    engine.prefill(IDS)
    assert engine.load(tmp_path / "nothing") is False
    assert engine.tokens == IDS


def test_a_sampler_goes_on_where_it_was(engine: rt.Engine, tmp_path: Path) -> None:
    def picks(sampler: Sampler, count: int) -> list[int]:
        found = []
        for _ in range(count):
            found.append(sampler.pick(engine.logits))
            engine.eval(found[-1])
        return found

    sampler = Sampler(temperature=0.8, top_p=0.9, min_p=0.01, seed=2**63 + 5)
    engine.prefill(IDS)
    picks(sampler, 5)
    engine.save(tmp_path / "a", sampler=sampler)
    wanted = picks(sampler, 8)
    other = Sampler(seed=1)
    assert engine.load(tmp_path / "a", sampler=other)
    assert (other.temperature, other.top_p, other.min_p, other.seed) == (0.8, 0.9, 0.01, 2**63 + 5)
    assert picks(other, 8) == wanted
    engine.save(tmp_path / "without")
    before = other.state
    assert engine.load(tmp_path / "without", sampler=other)
    assert other.state == before


def test_inspect_tells_what_a_file_is_of(engine: rt.Engine, micro: rt.Model, tmp_path: Path) -> None:
    engine.prefill(IDS)
    engine.save(tmp_path / "a", b"t", sampler=Sampler())
    size = (tmp_path / "a").stat().st_size
    wanted = checkpoint.Info(micro.identity, IDS, CONTEXT, "f16", False, b"t", True, size)
    assert checkpoint.inspect(tmp_path / "a") == wanted
    with pytest.raises(rt.IoError, match="nothing"):
        checkpoint.inspect(tmp_path / "nothing")


# ---- files ----


def test_the_file_is_private_and_nothing_is_left_beside_it(engine: rt.Engine, tmp_path: Path) -> None:
    target, link = tmp_path / "a", tmp_path / "link"
    target.write_bytes(b"old")
    target.chmod(0o644)
    link.symlink_to(target)
    engine.prefill(IDS)
    engine.save(link)
    assert link.is_symlink() and stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "link"]
    with pytest.raises(rt.IoError, match="directory"):
        engine.save(tmp_path)
    with pytest.raises(rt.IoError, match="directory"):
        engine.load(tmp_path)
    with pytest.raises(rt.IoError, match="a/b"):
        engine.save(target / "b")
    assert engine.load(target)


def test_files_of_the_past_are_still_read(engine: rt.Engine, tmp_path: Path) -> None:
    """The header byte by byte as docs/FORMAT.md has it."""
    engine.prefill(IDS)
    engine.save(tmp_path / "a", b"xyz")
    data = (tmp_path / "a").read_bytes()
    shape = engine.model.shape
    assert data[:8] == b"GLM52CKP" and data[24:56].hex() == engine.model.identity
    sections = 4 + shape.layers + sum(shape.index_full)
    assert struct.unpack_from("<IIQ", data, 8) == (1, sections, len(data))
    assert struct.unpack_from("<IIfIIIIIIIIIIIII", data, 56) == (
        0, 0, struct.unpack("<f", struct.pack("<f", shape.rms_epsilon))[0], 1, 12, CONTEXT, shape.layers,
        shape.kv_lora, shape.rope, shape.index_key, shape.vocab, shape.hidden, 1, 3, 0, 0,
    )  # fmt: skip
    assert data[224:256] == hashlib.sha256(data[:224]).digest() and not any(data[116:224])
    at, digests = 256, [data[:256]]
    kinds = []
    while at < len(data) - 32:
        kind, layer, size, piece = struct.unpack_from("<IIQQ", data, at)
        payload = data[at + 24 : at + 24 + size]
        pieces = b"".join(zlib.crc32(payload[i : i + piece]).to_bytes(4, "little") for i in range(0, size, piece))
        digests.append(data[at + 24 + size : at + 56 + size])
        assert digests[-1] == hashlib.sha256(data[at : at + 24] + pieces).digest()
        kinds.append((kind, layer))
        if kind == 3:
            assert payload == np.array(IDS, "<i4").tobytes()
        if kind == 4:
            assert payload == engine.logits.tobytes()
        at += 56 + size
    assert at == len(data) - 32 and data[at:] == hashlib.sha256(b"".join(digests)).digest()
    rows = [(kind, layer) for layer in range(shape.layers) for kind in (5, 6) if kind == 5 or shape.index_full[layer]]
    assert kinds == [(1, 0), (2, 0), (3, 0), (4, 0), *rows]


def test_pieces_of_a_longer_file(micro: rt.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The format's piece is a MiB; a reader takes what the head says only if it is what it must be."""
    monkeypatch.setattr(checkpoint, "PIECE_BYTES", 1000)
    ids = prompt(100, 512)
    with rt.Engine(micro, context=200) as engine:
        engine.prefill(ids)
        seen: list[int] = []
        engine.save(tmp_path / "a", b"t" * 2500, progress=seen.append)
        size = (tmp_path / "a").stat().st_size
        assert seen == sorted(seen) and seen[-1] == size and len(seen) > size / 1100
        wanted = continued(engine)
        assert engine.load(tmp_path / "a") and engine.tag == b"t" * 2500
        assert continued(engine) == wanted
        monkeypatch.undo()
        with pytest.raises(rt.CheckpointError, match="another head"):
            engine.load(tmp_path / "a")


# ---- what is refused ----


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def small_file(micro: rt.Model, tmp_path: Path) -> bytes:
    with rt.Engine(micro, context=3) as engine:
        engine.prefill([3, 1, 2])
        engine.save(tmp_path / "small", b"tag", sampler=Sampler())
    return (tmp_path / "small").read_bytes()


def test_every_flipped_byte_is_refused(micro: rt.Model, tmp_path: Path) -> None:
    data = small_file(micro, tmp_path)
    with rt.Engine(micro, context=CONTEXT, threads=1) as engine, open(tmp_path / "bad", "wb+", buffering=0) as bad:
        engine.prefill(IDS)
        engine.tag = b"mine"
        before = engine.logits.tobytes()
        bad.write(data)
        for at in range(len(data)):
            os.pwrite(bad.fileno(), bytes([data[at] ^ (1 << at % 8)]), at)
            with pytest.raises(rt.CheckpointError):
                engine.load(tmp_path / "bad")
            os.pwrite(bad.fileno(), data[at : at + 1], at)
        assert engine.tokens == IDS and engine.logits.tobytes() == before and engine.tag == b"mine"
        wanted = continued(engine)
        engine.reset()
        engine.prefill(IDS)
        assert continued(engine) == wanted
        assert engine.load(tmp_path / "bad") and engine.tokens == [3, 1, 2]


def test_every_truncation_and_a_trailing_byte_are_refused(engine: rt.Engine, micro: rt.Model, tmp_path: Path) -> None:
    data = small_file(micro, tmp_path)
    engine.prefill(IDS)
    path = write(tmp_path / "bad", data + b"\0")
    with pytest.raises(rt.CheckpointError, match="the header says"):
        engine.load(path)
    for size in range(len(data) - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(rt.CheckpointError):
            engine.load(path)
    assert engine.tokens == IDS and engine.plan.sessions == 0


def forged(data: bytes, **changes) -> bytes:
    """The file with another header, its digest made right."""
    header = checkpoint.Header(*checkpoint._HEADER.unpack_from(data))
    return replace(header, **changes).pack() + data[256:]


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"magic": b"DS4GLM01"}, rt.CheckpointError, "is no checkpoint"),
        ({"version": 2}, rt.CheckpointError, "version 2; this reads version 1"),
        ({"identity": bytes(32)}, rt.CheckpointError, "written for model 0000"),
        ({"kv_type": 1}, rt.CheckpointError, "kv_type 1; this engine has 0"),
        ({"quality": 1}, rt.CheckpointError, "quality"),
        ({"latent_epsilon": 1e-6}, rt.CheckpointError, "latent_epsilon"),
        ({"indexer": 3}, rt.CheckpointError, "indexer 3"),
        ({"indexer": 2}, rt.CheckpointError, "another executor.s; a context of up to 8"),
        ({"layers": 8}, rt.CheckpointError, "layers 8"),
        ({"layers": 2**32 - 1}, rt.CheckpointError, "at most 512"),
        ({"kv_lora": 65}, rt.CheckpointError, "kv_lora"),
        ({"vocab": 2**31}, rt.CheckpointError, "can't hold"),
        ({"position": 41}, rt.ContextError, "41 tokens; this engine's context holds 40"),
        ({"position": 2**32 - 1}, rt.CheckpointError, "can't hold"),
        ({"position": 4}, rt.CheckpointError, "sections in"),
        ({"position": 2}, rt.CheckpointError, "sections in"),
        ({"sections": 3}, rt.CheckpointError, "3 sections"),
        ({"file_bytes": 2**62}, rt.CheckpointError, "the header says"),
        ({"flags": 4}, rt.CheckpointError, "flags 4"),
        ({"flags": 3}, rt.CheckpointError, "sections in"),
        ({"hidden": 65}, rt.CheckpointError, "hidden 65"),
        ({"flags": 0}, rt.CheckpointError, "sections in"),
        ({"flags": 1, "position": 0}, rt.CheckpointError, "flags 1 at position 0"),
        ({"tag_bytes": 2**20 + 1}, rt.CheckpointError, "a tag of 1048577"),
        ({"tag_bytes": 2**20}, rt.CheckpointError, "can't hold"),
        ({"sampler_bytes": 63}, rt.CheckpointError, "a sampler of 63"),
        ({"reserved": 1}, rt.CheckpointError, "the header is damaged"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else None,
)  # fmt: skip
def test_a_forged_header_is_refused_before_anything_is_allocated(
    engine: rt.Engine, micro: rt.Model, tmp_path: Path, changes: dict, kind: type, words: str
) -> None:
    path = write(tmp_path / "bad", forged(small_file(micro, tmp_path), **changes))
    engine.prefill(IDS)
    tracemalloc.start()
    try:
        with pytest.raises(kind, match=words):
            engine.load(path)
        with contextlib.suppress(rt.CheckpointError):
            checkpoint.inspect(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert engine.tokens == IDS


def resealed(data: bytes, kind: int, change: Callable[[bytearray], None]) -> bytes:
    """The file with another payload in one section, all digests made right."""
    at, digests, parts = 256, [data[:256]], [data[:256]]
    while at < len(data) - 32:
        number, _, size, piece = struct.unpack_from("<IIQQ", data, at)
        payload = bytearray(data[at + 24 : at + 24 + size])
        if number == kind:
            change(payload)
        pieces = b"".join(zlib.crc32(payload[i : i + piece]).to_bytes(4, "little") for i in range(0, size, piece))
        digests.append(hashlib.sha256(data[at : at + 24] + pieces).digest())
        parts += [data[at : at + 24], bytes(payload), digests[-1]]
        at += 56 + size
    return b"".join([*parts, hashlib.sha256(b"".join(digests)).digest()])


def test_forged_contents_are_refused(engine: rt.Engine, micro: rt.Model, tmp_path: Path) -> None:
    data = small_file(micro, tmp_path)
    engine.prefill(IDS)
    assert resealed(data, 0, bytearray.clear) == data

    def token(payload: bytearray) -> None:
        payload[4:8] = struct.pack("<i", 512)

    def temperature(payload: bytearray) -> None:
        payload[:8] = struct.pack("<d", float("nan"))

    def increment(payload: bytearray) -> None:
        payload[48] &= 0xFE

    for kind, change, words in (
        (checkpoint.TOKENS, token, "token 512 at index 1 is outside the vocabulary"),
        (checkpoint.SAMPLER, temperature, "temperature nan"),
        (checkpoint.SAMPLER, increment, "even increment"),
    ):
        with pytest.raises(rt.CheckpointError, match=words):
            engine.load(write(tmp_path / "bad", resealed(data, kind, change)), sampler=Sampler())
    assert engine.tokens == IDS
    swapped = write(tmp_path / "bad", data[:-32] + hashlib.sha256(data[:-32]).digest())
    with pytest.raises(rt.CheckpointError, match="not those that were written together"):
        engine.load(swapped)


def test_the_model_may_be_touched_copied_and_moved(
    engine: rt.Engine, micro: rt.Model, make: Callable[..., Path], tmp_path: Path
) -> None:
    engine.prefill(IDS)
    engine.save(tmp_path / "a")
    wanted = continued(engine)
    copy = tmp_path / "elsewhere" / "other.gguf"
    copy.parent.mkdir()
    shutil.copy(micro.path, copy)
    os.utime(copy, (1, 1))
    with rt.Model.open(copy) as model, rt.Engine(model, context=CONTEXT) as other:
        assert other.load(tmp_path / "a")
        assert continued(other) == wanted
    moved = copy.rename(tmp_path / "moved.gguf")
    with rt.Model.open(moved) as model, rt.Engine(model, context=CONTEXT) as other:
        assert other.load(tmp_path / "a") and continued(other) == wanted
    with rt.Model.open(make("micro", seed=99)) as model, rt.Engine(model, context=CONTEXT) as other:
        assert model.shape == micro.shape
        with pytest.raises(rt.CheckpointError, match="written for model"):
            other.load(tmp_path / "a")


# ---- cancelling and failing ----


def test_cancelling_at_every_call_changes_nothing(engine: rt.Engine, tmp_path: Path) -> None:
    class Mine(OSError):
        pass

    path = tmp_path / "a"
    engine.prefill([3, 1, 2])
    engine.save(path, b"old")
    old = path.read_bytes()
    engine.prefill(IDS)
    calls: list[int] = []
    engine.save(tmp_path / "b", progress=calls.append)
    loads: list[int] = []
    engine.load(tmp_path / "b", progress=loads.append)
    held, tag = engine.tokens, engine.tag
    for call, count in ((engine.save, len(calls)), (engine.load, len(loads))):
        for stop_at in range(count):
            for error in (None, Mine("mine"), KeyboardInterrupt()):
                left = iter(range(stop_at))

                def progress(done: int, left: Iterator[int] = left, error: BaseException | None = error) -> bool:
                    if next(left, None) is not None:
                        return True
                    if error is not None:
                        raise error
                    return False

                with pytest.raises(rt.Cancelled if error is None else type(error)):
                    call(path, progress=progress)
                assert path.read_bytes() == old
                assert engine.tokens == held and engine.tag == tag
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b"]


def test_a_call_of_the_engine_from_inside_is_refused(engine: rt.Engine, tmp_path: Path) -> None:
    engine.prefill(IDS)
    with pytest.raises(rt.Error, match="inside its own callback"):
        engine.save(tmp_path / "a", progress=lambda done: engine.eval(1))
    engine.save(tmp_path / "a")
    with pytest.raises(rt.Error, match="inside its own callback"):
        engine.load(tmp_path / "a", progress=lambda done: engine.eval(1))
    assert engine.tokens == IDS


def test_a_full_disk_leaves_the_old_file(engine: rt.Engine, tmp_path: Path) -> None:
    """Files may not grow past a limit for a while: the system refuses to write as it does on a full disk."""
    path = tmp_path / "a"
    engine.prefill([3, 1, 2])
    engine.save(path)
    old = path.read_bytes()
    engine.prefill(IDS)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (0, 1, 255, 256, 300, 5000, len(old)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        try:
            with pytest.raises(rt.IoError, match="too large"):
                engine.save(path)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == old and [file.name for file in tmp_path.iterdir()] == ["a"]
    assert engine.tokens == [3, 1, 2, *IDS]


def test_no_memory_for_a_second_conversation_is_an_error(micro: rt.Model, tmp_path: Path) -> None:
    streaming = rt.Streaming(memory_bytes=2_500_000, cache_experts=2)
    with rt.Engine(micro, context=1000, chunk_rows=4) as engine:
        engine.prefill(IDS)
        engine.save(tmp_path / "a")
    with rt.Engine(micro, context=800, chunk_rows=4, streaming=streaming) as engine:
        engine.prefill([1, 2])
        with pytest.raises(rt.MemoryBudgetError, match="a session more"):
            engine.load(tmp_path / "a")
        assert engine.tokens == [1, 2]


def save_in_turns(model_path: str, sources: list[Path], path: Path, ready: int) -> None:
    """What the child does: engines of its own, and two conversations under one name until it is killed."""
    with rt.Model.open(model_path) as model:
        engines = [rt.Engine(model, context=90, threads=1) for _ in sources]
        for engine, source in zip(engines, sources, strict=True):
            engine.load(source)
        os.write(ready, b"1")
        while True:
            for engine in engines:
                engine.save(path)


def test_what_a_killed_writer_left_is_removed(engine: rt.Engine, tmp_path: Path) -> None:
    """By the next save, if it is old and nobody holds it; what a living writer has under way stays."""
    names = {"dead": ".glm52-dead.tmp", "young": ".glm52-young.tmp", "held": ".glm52-held.tmp", "other": ".glm52-x.ckp"}
    for name in names.values():
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (1, 1))
    os.utime(tmp_path / names["young"])
    (tmp_path / ".glm52-link.tmp").symlink_to(tmp_path / names["other"])
    (tmp_path / ".glm52-folder.tmp").mkdir()
    os.utime(tmp_path / ".glm52-folder.tmp", (1, 1))
    with open(tmp_path / names["held"], "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        engine.save(tmp_path / "a")
    left = sorted(path.name for path in tmp_path.iterdir())
    kept = [name for what, name in names.items() if what != "dead"]
    assert left == sorted([*kept, "a", ".glm52-link.tmp", ".glm52-folder.tmp"])


def test_a_save_under_way_is_not_taken_for_a_left_over_one(micro: rt.Model, tmp_path: Path) -> None:
    """However old its file looks: another saves into the same folder in between."""
    with rt.Engine(micro, context=CONTEXT) as one, rt.Engine(micro, context=CONTEXT) as two:
        one.prefill(IDS)
        two.prefill(MORE)

        def progress(done: int) -> None:
            for path in tmp_path.glob(".glm52-*.tmp"):
                os.utime(path, (1, 1))
            two.save(tmp_path / "two")

        one.save(tmp_path / "one", progress=progress)
        assert two.load(tmp_path / "one") and two.tokens == IDS
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_killed_at_200_random_moments(micro: rt.Model, tmp_path: Path) -> None:
    """A child saves two conversations in turns under one name and is killed: what is there is one of them, whole."""
    path = tmp_path / "folder" / "a"
    sources = [tmp_path / "one", tmp_path / "two"]
    known = {}
    random.seed(5)
    torn = 0
    with rt.Engine(micro, context=90) as engine:
        for number, source in enumerate(sources):
            engine.reset()
            engine.prefill(prompt(90 - 30 * number, 512, number))
            engine.save(source)
            known[tuple(engine.tokens)] = engine.logits.tobytes()
        engine.save(path)
        for _ in range(200):
            reading, ready = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    save_in_turns(micro.path, sources, path, ready)
                finally:
                    os._exit(1)
            assert os.read(reading, 1) == b"1"
            time.sleep(random.uniform(0.0, 0.01))
            os.kill(child, signal.SIGKILL)
            assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
            os.close(reading)
            os.close(ready)
            assert engine.load(path)
            assert engine.logits.tobytes() == known[tuple(engine.tokens)]
            for left in path.parent.glob(".glm52-*.tmp"):
                torn += left.stat().st_size > 0
                left.unlink()
        print(f"figures: {torn} of 200 kills left a file that was begun")
    assert torn > 20
