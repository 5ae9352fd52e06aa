"""Files made of files: a model in shards or in one, and a model whose experts lie together.

Tensors are copied byte for byte and metadata carried over as it is; memory is that of a piece. docs/FORMAT.md has the
layouts. Each file appears under its name when it is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from .errors import ArgumentError, ModelError
from .gguf_writer import (
    ALIGNMENT,
    Entry,
    Pair,
    Reader,
    Writer,
    align,
    array,
    content_pairs,
    entry_of,
    layout,
    pair,
    pairs_of,
    with_pairs,
    without,
)
from .model import Model
from .native import Tensor

SHARDS_MAX = 512
_SHARD_NAME = re.compile(r"-\d{5}-of-\d{5}\.gguf$")

COLOCATED = "glm-dsa-colocated"
RUN_ALIGNMENT, SLICE_ALIGNMENT = 4096, 64
COLOCATED_VERSION = 1
_ROUTED = re.compile(r"(blk\.\d+\.)ffn_(gate|up|down)_exps\.weight$")
_SLICES = ("gate", "up", "down")

Progress = Callable[[int, int], object]  # bytes done, bytes in all


def _nobody(done: int, total: int) -> None:
    pass


class _Copy:
    """Copies tensors of a model and tells how far it is."""

    def __init__(self, model: Model, reader: Reader, progress: Progress | None) -> None:
        self._reader = reader
        self._progress = progress or _nobody
        self._done, self._total = 0, sum(t.bytes for t in model.tensors)

    def pieces(self, tensor: Tensor) -> Iterator[bytes]:
        for piece in self._reader.pieces(tensor):
            yield self.counted(piece)

    def counted(self, piece: bytes) -> bytes:
        self._done += len(piece)
        self._progress(self._done, self._total)
        return piece

    def slice(self, tensor: Tensor, expert: int) -> bytes:
        size = tensor.bytes // tensor.shape[-1]
        return self.counted(self._reader.read(tensor, expert * size, size))


def alignment_of(model: Model) -> int:
    return int(model.metadata.get("general.alignment", ALIGNMENT))


def is_colocated(model: Model) -> bool:
    return "glm52.colocated.version" in model.metadata


# ---- shards ----


def shard_paths(path: str | os.PathLike[str], count: int) -> list[Path]:
    """NAME-00001-of-00003.gguf ... of NAME or NAME.gguf."""
    whole = Path(path)
    stem = whole.name.removesuffix(".gguf")
    return [whole.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]


def plan_split(
    tensors: Sequence[Tensor], *, bytes_max: int = 0, tensors_max: int = 0, empty_first: bool = False
) -> list[list[Tensor]]:
    """Which tensors each shard gets, in order: as many as bytes_max (of tensors, padded, without headers) or
    tensors_max allow, at least one. empty_first: the first has none. Errors: ArgumentError."""
    if (bytes_max > 0) == (tensors_max > 0):
        raise ArgumentError("a split is by bytes or by tensors: give one of the two limits")
    shards: list[list[Tensor]] = [[]]
    size = 0
    for tensor in tensors:
        padded = align(tensor.bytes)
        full = size + padded > bytes_max if bytes_max else len(shards[-1]) == tensors_max
        if shards[-1] and full:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += padded
    shards = [[], *shards] if empty_first else shards
    if len(shards) > SHARDS_MAX:
        raise ArgumentError(f"{len(shards)} shards; at most {SHARDS_MAX} are read")
    return shards


def split(
    model: Model,
    path: str | os.PathLike[str],
    *,
    bytes_max: int = 0,
    tensors_max: int = 0,
    empty_first: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> list[Path]:
    """Writes the model in shards (plan_split); path is the name without number. The first has the metadata.

    A failure leaves the shards that are complete, and no reader takes them for a model. Errors: ArgumentError, also for
    a colocated model; IoError.
    """
    if is_colocated(model):
        raise ArgumentError(f"{model.path}: a colocated file is one file; colocate --undo it first")
    shards = plan_split(model.tensors, bytes_max=bytes_max, tensors_max=tensors_max, empty_first=empty_first)
    pairs = without(pairs_of(model), "split.")
    paths = shard_paths(path, len(shards))
    for one in paths:
        if one.exists() and not overwrite:
            raise ArgumentError(f"{one} exists; it is not written over unless that is asked for")
    with Reader(model) as reader:
        copy = _Copy(model, reader, progress)
        for number, (shard, shard_path) in enumerate(zip(shards, paths, strict=True)):
            own = [
                pair("split.no", "u16", number),
                pair("split.tensors.count", "i32", len(model.tensors)),
                pair("split.count", "u16", len(shards)),
            ]
            alignment = alignment_of(model) if number == 0 else ALIGNMENT
            keys = [*pairs, *own] if number == 0 else own
            entries = [entry_of(tensor) for tensor in shard]
            with Writer(shard_path, keys, entries, alignment=alignment, overwrite=overwrite) as writer:
                for tensor in shard:
                    writer.write(copy.pieces(tensor))
    return paths


def merge(
    model: Model, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
) -> Path:
    """Writes the model, which may be in shards, as one file without split.* keys. A model that was split by `split`
    becomes the file that it was, byte for byte. Errors: ArgumentError, IoError."""
    if is_colocated(model):
        raise ArgumentError(f"{model.path}: a colocated file is one file already")
    if _SHARD_NAME.search(str(path)):
        raise ArgumentError(f"{path}: the name of a shard; the model is to be one file")
    pairs = without(pairs_of(model), "split.")
    _write_plain(model, path, pairs, alignment_of(model), overwrite, progress)
    return Path(path)


def _write_plain(
    model: Model,
    path: str | os.PathLike[str],
    pairs: Sequence[Pair],
    alignment: int,
    overwrite: bool,
    progress: Progress | None,
) -> None:
    entries = [entry_of(tensor) for tensor in model.tensors]
    with Reader(model) as reader, Writer(path, pairs, entries, alignment=alignment, overwrite=overwrite) as writer:
        copy = _Copy(model, reader, progress)
        for tensor in model.tensors:
            writer.write(copy.pieces(tensor))


# ---- experts together ----


def _stacks(model: Model) -> dict[str, dict[str, Tensor]]:
    """The three stacks of routed experts of each block that has them, by "blk.N."."""
    found: dict[str, dict[str, Tensor]] = {}
    for tensor in model.tensors:
        name = _ROUTED.match(tensor.name)
        if name:
            found.setdefault(name[1], {})[name[2]] = tensor
    for block, stacks in found.items():
        if set(stacks) != set(_SLICES) or len({t.shape[-1] for t in stacks.values()}) != 1:
            raise ModelError(f"{model.path}: {block}ffn_*_exps.weight are not three stacks of as many experts")
    return found


def run_bytes(slice_bytes: Sequence[int]) -> int:
    """Bytes of an expert's run: its slices, each padded, padded."""
    return align(sum(align(size, SLICE_ALIGNMENT) for size in slice_bytes), RUN_ALIGNMENT)


def _slice_bytes(stacks: dict[str, Tensor]) -> list[int]:
    return [stacks[k].bytes // stacks[k].shape[-1] for k in _SLICES]


def _runs_entry(block: str, stacks: dict[str, Tensor]) -> Entry:
    return Entry(f"{block}ffn_exps.runs", "I8", (run_bytes(_slice_bytes(stacks)), stacks["gate"].shape[-1]))


def _runs(copy: _Copy, stacks: dict[str, Tensor]) -> Iterator[bytes]:
    whole = run_bytes(_slice_bytes(stacks))
    for expert in range(stacks["gate"].shape[-1]):
        parts = [copy.slice(stacks[k], expert) for k in _SLICES]
        yield b"".join(part.ljust(align(len(part), SLICE_ALIGNMENT), b"\0") for part in parts).ljust(whole, b"\0")


def _directory(model: Model, pairs: Sequence[Pair], alignment: int) -> bytes:
    """The tensor infos that the model has, or would have if it were one file."""
    entries = [entry_of(tensor) for tensor in model.tensors]
    plain = layout(pairs, entries, alignment)
    places = plain.places if len(model.paths) > 1 else [tensor.offset for tensor in model.tensors]
    return b"".join(e.pack(at - len(plain.header)) for e, at in zip(entries, places, strict=True))


def colocate(
    model: Model, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
) -> Path:
    """Writes the model so that the three slices of an expert are one run of bytes, read at once. Identity, tensors and
    every computed bit are those of the model. Errors: ArgumentError if it is colocated already or has no routed
    experts; IoError."""
    if is_colocated(model):
        raise ArgumentError(f"{model.path}: colocated already")
    stacks = _stacks(model)
    if not stacks:
        raise ArgumentError(f"{model.path}: there are no routed experts to put together")
    pairs, alignment = without(pairs_of(model), "split."), alignment_of(model)
    directory = _directory(model, pairs, alignment)
    others = [tensor for tensor in model.tensors if not _ROUTED.match(tensor.name)]
    entries = [_runs_entry(block, stack) for block, stack in stacks.items()] + [entry_of(t) for t in others]

    def keys(padding: int) -> list[Pair]:
        return with_pairs(pairs, [
            pair("general.architecture", "string", COLOCATED),
            pair("glm52.colocated.version", "u32", COLOCATED_VERSION),
            pair("glm52.colocated.tensors", "u32", len(model.tensors)),
            array("glm52.colocated.padding", "u8", bytes(padding)),
            array("glm52.colocated.directory", "u8", directory),
        ])  # fmt: skip

    # The data begin at a whole block and with the runs, which are whole blocks: so there are no holes between them.
    padded = keys(-len(layout(keys(0), entries, alignment).header) % RUN_ALIGNMENT)
    with Reader(model) as reader, Writer(path, padded, entries, alignment=alignment, overwrite=overwrite) as writer:
        copy = _Copy(model, reader, progress)
        for stack in stacks.values():
            writer.write(_runs(copy, stack))
        for tensor in others:
            writer.write(copy.pieces(tensor))
    return Path(path)


def separate(
    model: Model, path: str | os.PathLike[str], *, overwrite: bool = False, progress: Progress | None = None
) -> Path:
    """Undoes colocate: writes a colocated model as an ordinary file, for other programs. Errors: ArgumentError if it
    is none; IoError."""
    if not is_colocated(model):
        raise ArgumentError(f"{model.path}: not a colocated file")
    _write_plain(model, path, content_pairs(model), alignment_of(model), overwrite, progress)
    return Path(path)
