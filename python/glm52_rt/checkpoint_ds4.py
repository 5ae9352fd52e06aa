"""Conversations in the layout of ds4-style executors, "DS4GLM01", read and written.

docs/FORMAT.md lays the file out and states what it can't hold. It has no checksum, so damage of rows is seen only where
it makes no number; it knows float16 caches alone, nothing of MTP and of samplers, and a tag of 32 bytes. How those
executors rotate keys and make the indexer's is not told by the file: the caller says it.
"""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from .checkpoint import Progress, _os_errors, _replacement, _report, _write_all
from .errors import ArgumentError, CheckpointError, ContextError, Error, UnsupportedError

if TYPE_CHECKING:
    from .engine import Engine
    from .native import Spans

MAGIC = b"DS4GLM01"
VERSION = 1
TAG_BYTES = 32
PIECE_BYTES = 1 << 20
KV, INDEX = 0, 1  # native numbers of kinds of rows

_HEADER = struct.Struct("<8s9IQQI32s32s")
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True)
class Header:
    """The first 128 bytes, field by field."""

    magic: bytes
    version: int
    context: int  # of the executor that wrote it, which takes the file up with no other
    position: int  # tokens
    quality: int
    layers: int
    kv_lora: int
    rope: int
    index_key: int
    vocab: int
    model_bytes: int
    mtime_seconds: int  # of the model's file
    mtime_nanoseconds: int
    identity: bytes
    tag: bytes


class _Layout:
    """Where things lie in a file for a model and a number of tokens."""

    def __init__(self, engine: Engine, position: int) -> None:
        shape = engine.model.shape
        self.latent, self.rope, self.index = 2 * shape.kv_lora, 2 * shape.rope, 2 * shape.index_key
        self.tokens = HEADER_BYTES
        self.logits = self.tokens + 4 * position
        self.layers: list[tuple[int, int, int | None]] = []  # where a layer's latents, rotated keys, indexer keys begin
        at = self.logits + 4 * shape.vocab
        for full in shape.index_full:
            kv, at = at, at + self.latent * position
            rope, at = at, at + self.rope * position
            self.layers.append((kv, rope, at if full else None))
            at += self.index * position if full else 0
        self.bytes = at
        self.rows = max(1, PIECE_BYTES // (self.latent + self.rope))  # of a piece


def _turned(rows: np.ndarray, first: int, base: float, back: bool) -> np.ndarray:
    """float16 [n, rope] of the positions from first on, rotated as the caches' keys are, or back."""
    pairs = rows.shape[1] // 2
    frequency = np.power(base, -2.0 * np.arange(pairs) / rows.shape[1])
    angle = np.arange(first, first + len(rows))[:, None] * frequency
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    sin = -sin if back else sin
    x = rows.astype(np.float32).reshape(len(rows), pairs, 2)
    turned = np.stack([x[..., 0] * cos - x[..., 1] * sin, x[..., 0] * sin + x[..., 1] * cos], -1)
    return turned.reshape(rows.shape).astype("<f2")


def _check_engine(engine: Engine, rope: str) -> None:
    if rope not in ("raw", "rotated"):
        raise ArgumentError(f"rope {rope!r}; it must be raw or rotated")
    if engine.options["kv_type"] != 0:
        raise UnsupportedError("DS4GLM01 holds float16 caches; this engine's are float32")


def _identity(engine: Engine, given: bytes | None) -> bytes:
    identity = bytes.fromhex(engine.model.identity) if given is None else bytes(given)
    if len(identity) != 32:
        raise ArgumentError(f"an identity of {len(identity)} bytes; it has 32")
    return identity


# ---- writing ----


def export(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    identity: bytes | None = None,
    rope: str = "raw",
    progress: Progress | None = None,
) -> None:
    """Writes the engine's conversation as a DS4GLM01 file, in place of path in one step as Engine.save does.

    identity  the 32 bytes by which the executor that is to read it knows the model; None: ours, by which read knows it
    rope      "raw": keys are stored before their rotation, which costs one rounding to float16; "rotated": as they are

    An executor also compares context, length and time of the model's file: they are this engine's and this file's.
    Raises Error without logits, UnsupportedError for float32 caches, ArgumentError for a tag of more than 32 bytes,
    IoError, Cancelled."""
    _check_engine(engine, rope)
    if len(engine.tag) > TAG_BYTES:
        raise ArgumentError(f"a tag of {len(engine.tag)} bytes; DS4GLM01 has room for {TAG_BYTES}")
    if engine.raw_keys and rope != "raw":
        raise ArgumentError("the conversation was another executor's: its indexer keys go with rope='raw' alone")
    model, shape = engine.model, engine.model.shape
    known = _identity(engine, identity)
    target = os.path.realpath(path)
    with engine.native.exclusive() as spans, _os_errors(path):
        logits = spans.logits()
        if logits is None:
            raise Error("no logits: a DS4GLM01 file holds those of the last token")
        made = os.stat(model.path)
        header = Header(
            MAGIC, VERSION, spans.context, spans.position, engine.options["quality"], shape.layers, shape.kv_lora,
            shape.rope, shape.index_key, shape.vocab, model.file_bytes, made.st_mtime_ns // 10**9,
            made.st_mtime_ns % 10**9, known, engine.tag.ljust(TAG_BYTES, b"\0"),
        )  # fmt: skip
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with _replacement(target) as file:
            _write_all(file, _HEADER.pack(*astuple(header)))
            _write_all(file, spans.tokens() + logits)
            _write_rows(file, engine, spans, rope, progress)


def _write_rows(file: BinaryIO, engine: Engine, spans: Spans, rope: str, progress: Progress | None) -> None:
    position, shape = spans.position, engine.model.shape
    layout = _Layout(engine, position)
    width = shape.kv_lora + shape.rope
    for layer, (latents, _, keys) in enumerate(layout.layers):
        done = latents
        for part in ("latent", "rope"):
            for first in range(0, position, layout.rows):
                _report(progress, done)
                rows = np.empty((min(layout.rows, position - first), width), "<f2")
                spans.read_rows(KV, layer, first, memoryview(rows).cast("B"))
                cut = rows[:, : shape.kv_lora] if part == "latent" else rows[:, shape.kv_lora :]
                if part == "rope" and rope == "raw":
                    cut = _turned(cut, first, shape.rope_base, True)
                _write_all(file, cut.tobytes())
                done += cut.nbytes
        for first in range(0, position if keys is not None else 0, layout.rows):
            _report(progress, done)
            rows = np.empty((min(layout.rows, position - first), shape.index_key), "<f2")
            spans.read_rows(INDEX, layer, first, memoryview(rows).cast("B"))
            _write_all(file, rows.tobytes())
            done += rows.nbytes
    _report(progress, layout.bytes)


# ---- reading ----


def read(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    identity: bytes | None = None,
    rope: str = "raw",
    keys: str = "raw",
    progress: Progress | None = None,
) -> bool:
    """Takes up the conversation of a DS4GLM01 file. False if there is no file.

    identity  as for export: what the file must say
    rope      as for export
    keys      "raw": the indexer's keys were made of the residual stream, as those executors do. They would choose other
              positions than the model's own, so an engine takes them up only if its context is at most index_top_k,
              where nothing is chosen, and so does whoever loads a checkpoint of the conversation. "normed": they are
              the model's, as in files that export wrote

    Everything but the rows' damage is checked before anything is allocated; rows must be finite numbers. The model's
    time in the file has no say. What follows is what the other executor would have computed up to its arithmetic; with
    MTP there are no drafts until the conversation is cut to nothing.
    Raises CheckpointError, ContextError, UnsupportedError, MemoryBudgetError, IoError, Cancelled; the engine is then as
    it was."""
    _check_engine(engine, rope)
    if keys not in ("raw", "normed"):
        raise ArgumentError(f"keys {keys!r}; it must be raw or normed")
    known = _identity(engine, identity)
    with _os_errors(path):
        try:
            file = open(path, "rb", buffering=0)
        except FileNotFoundError:
            return False
        with file, engine.native.exclusive() as spans:
            header = _read_header(file, path)
            _check_fit(engine, spans, header, known, keys, path)
            layout = _Layout(engine, header.position)
            size = os.fstat(file.fileno()).st_size
            if size != layout.bytes:
                what = "has trailing data" if size > layout.bytes else "ends early"
                raise CheckpointError(f"{path}: {what}: {size} bytes, {header.position} tokens take {layout.bytes}")
            tokens = _read_at(file, layout.tokens, 4 * header.position, path)
            logits = _read_at(file, layout.logits, 4 * header.vocab, path)
            _check_finite(np.frombuffer(logits, "<f4"), "a logit", path)
            session = spans.open_session()
            try:
                _fill(file, engine, spans, session, header.position, layout, rope, progress, path)
                try:
                    spans.restore(session, tokens, logits if header.position else None, False)
                except ArgumentError as error:
                    raise CheckpointError(f"{path}: {error}") from None
                spans.swap(session)
            finally:
                session.close()
    engine.tag, engine.raw_keys = header.tag, keys == "raw" and header.position > 0
    return True


def _read_header(file: BinaryIO, path: str | os.PathLike[str]) -> Header:
    data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES or data[: len(MAGIC)] != MAGIC:
        raise CheckpointError(f"{path}: is no DS4GLM01 file")
    header = Header(*_HEADER.unpack(data))
    if header.version != VERSION:
        raise CheckpointError(f"{path}: version {header.version}; this reads version {VERSION}")
    return header


def _check_fit(
    engine: Engine, spans: Spans, header: Header, identity: bytes, keys: str, path: str | os.PathLike[str]
) -> None:
    shape = engine.model.shape
    wanted = {name: getattr(shape, name) for name in ("layers", "kv_lora", "rope", "index_key", "vocab")}
    wanted |= {"quality": engine.options["quality"], "model_bytes": engine.model.file_bytes}
    for name, value in wanted.items():
        if getattr(header, name) != value:
            raise CheckpointError(f"{path}: written with {name} {getattr(header, name)}; this engine has {value}")
    if header.identity != identity:
        raise CheckpointError(f"{path}: written for model {header.identity.hex()[:16]}, not {identity.hex()[:16]}")
    if header.position > header.context:
        raise CheckpointError(f"{path}: {header.position} tokens in a context of {header.context}")
    if header.position > spans.context:
        raise ContextError(f"{path}: {header.position} tokens; this engine's context holds {spans.context}")
    if keys == "raw" and spans.context > shape.index_top_k:
        raise CheckpointError(
            f"{path}: indexer keys of the residual stream; a context of up to {shape.index_top_k} can take them up,"
            f" this engine's holds {spans.context}"
        )


def _read_at(file: BinaryIO, at: int, count: int, path: str | os.PathLike[str]) -> bytearray:
    data = bytearray(count)
    view = memoryview(data)
    file.seek(at)
    while view:
        got = file.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise CheckpointError(f"{path}: ends {len(view)} bytes early")
        view = view[got:]
    return data


def _check_finite(values: np.ndarray, what: str, path: str | os.PathLike[str]) -> None:
    if not np.isfinite(values).all():
        raise CheckpointError(f"{path}: {what} that is no finite number")


def _fill(
    file: BinaryIO, engine: Engine, spans: Spans, session: object, position: int, layout: _Layout, rope: str,
    progress: Progress | None, path: str | os.PathLike[str],
) -> None:
    """Puts the file's rows into session."""
    shape = engine.model.shape
    for layer, (latents, ropes, keys) in enumerate(layout.layers):
        for first in range(0, position, layout.rows):
            count = min(layout.rows, position - first)
            _report(progress, latents + first * layout.latent)

            def part(begin: int, size: int, first: int = first, count: int = count) -> np.ndarray:
                data = _read_at(file, begin + first * size, count * size, path)
                rows = np.frombuffer(data, "<f2").reshape(count, -1)
                _check_finite(rows, "a row", path)
                return rows

            turned = part(ropes, layout.rope)
            if rope == "raw":
                turned = _turned(turned, first, shape.rope_base, False)
            rows = np.concatenate([part(latents, layout.latent), turned], 1)
            spans.write_rows(session, KV, layer, first, memoryview(rows).cast("B"))
            if keys is not None:
                own = np.array(part(keys, layout.index))
                spans.write_rows(session, INDEX, layer, first, memoryview(own).cast("B"))
    _report(progress, layout.bytes)
