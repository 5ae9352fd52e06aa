"""What two model files have that differs: metadata, tensors, and by how much.

Contents are compared, not places: shards, a colocated layout and the keys that say so count for nothing, so a model
and its split or colocated copy are the same. Memory is that of two pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from .gguf_files import COLOCATED
from .gguf_writer import ARCHITECTURE, PIECE_BYTES, Reader
from .model import Model
from .native import Tensor
from .native_encode import decode
from .native_file import RawValue, raw_values

LAYOUT_KEYS = ("split.", "glm52.colocated.")
SHOWN_CHARACTERS = 60
VALUES_PIECE = 1 << 20  # values decoded at once

Progress = Callable[[int, int], object]  # bytes of the first model compared, bytes in all


@dataclass(frozen=True)
class KeyDifference:
    """A key of one file only, or with another value; a and b are short descriptions, None: there is none."""

    key: str
    a: str | None
    b: str | None


@dataclass(frozen=True)
class TensorDifference:
    """what: "missing", "type", "shape" or "content". rms: of b - a, relative to a's; None if not measured."""

    name: str
    what: str
    a: str | None
    b: str | None
    rms: float | None = None


@dataclass
class Diff:
    """keys and tensors that differ; how many of each were compared."""

    keys: list[KeyDifference] = field(default_factory=list)
    tensors: list[TensorDifference] = field(default_factory=list)
    key_count: int = 0
    tensor_count: int = 0

    @property
    def same(self) -> bool:
        return not self.keys and not self.tensors


def _content_keys(model: Model) -> dict[str, RawValue]:
    found = {value.key: value for value in raw_values(model.native) if not value.key.startswith(LAYOUT_KEYS)}
    name = found.get("general.architecture")
    if name is not None and name.data[8:] == COLOCATED.encode():
        text = ARCHITECTURE.encode()
        found[name.key] = name._replace(data=len(text).to_bytes(8, "little") + text)
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def _described(model: Model, key: str, other: Any) -> str:
    """A value in a line; of a list, the first element that the other has not."""
    value = model.metadata[key]
    if not isinstance(value, list):
        return _shortened(repr(value))
    if isinstance(other, list):
        for i, (mine, theirs) in enumerate(zip(value, other, strict=False)):
            if mine != theirs:
                return f"{len(value)} elements, [{i}] {_shortened(repr(mine))}"
    return f"{len(value)} elements"


def _diff_keys(a: Model, b: Model, found: Diff) -> None:
    ours, theirs = _content_keys(a), _content_keys(b)
    found.key_count = len(ours.keys() | theirs.keys())
    for key in [*ours, *(key for key in theirs if key not in ours)]:
        if ours.get(key) == theirs.get(key):
            continue
        x = _described(a, key, b.metadata.get(key)) if key in ours else None
        y = _described(b, key, a.metadata.get(key)) if key in theirs else None
        if x == y and key in ours and key in theirs:
            x, y = f"{x} (type {ours[key].type})", f"{y} (type {theirs[key].type})"
        found.keys.append(KeyDifference(key, x, y))


def _pairs_of_pieces(a: Reader, x: Tensor, b: Reader, y: Tensor) -> Iterator[tuple[bytes, bytes]]:
    return zip(a.pieces(x, PIECE_BYTES), b.pieces(y, PIECE_BYTES), strict=True)


def _decoded(reader: Reader, tensor: Tensor, first: int, count: int) -> np.ndarray:
    """float32 values first .. first + count of a tensor, whole blocks."""
    kind = GGMLQuantizationType[tensor.type]
    block, size = GGML_QUANT_SIZES[kind]
    data = np.frombuffer(reader.read(tensor, first // block * size, count // block * size), np.uint8)
    return decode(tensor.type, data)


def relative_rms(a: Reader, x: Tensor, b: Reader, y: Tensor) -> float:
    """Root of the mean square of y - x over that of x, in double precision; infinite if x is all zeros."""
    total = math.prod(x.shape)
    wrong = size = 0.0
    for first in range(0, total, VALUES_PIECE):
        count = min(VALUES_PIECE, total - first)
        mine = _decoded(a, x, first, count).astype(np.float64)
        theirs = _decoded(b, y, first, count).astype(np.float64)
        wrong += float(np.sum((theirs - mine) ** 2))
        size += float(np.sum(mine**2))
    return math.sqrt(wrong / size) if size else (math.inf if wrong else 0.0)


def diff(a: Model, b: Model, *, values: bool = False, progress: Progress | None = None) -> Diff:
    """Compares two open models, every byte of every tensor. values: also decode tensors of one shape that differ, and
    measure by how much. Errors: IoError."""
    found = Diff()
    _diff_keys(a, b, found)
    theirs = {tensor.name: tensor for tensor in b.tensors}
    total, done = sum(tensor.bytes for tensor in a.tensors), 0
    with Reader(a) as ours, Reader(b) as others:
        for x in a.tensors:
            y = theirs.pop(x.name, None)
            found.tensor_count += 1
            difference = _diff_tensor(ours, x, others, y, values)
            if difference is not None:
                found.tensors.append(difference)
            done += x.bytes
            if progress is not None:
                progress(done, total)
    for tensor in theirs.values():
        found.tensor_count += 1
        found.tensors.append(TensorDifference(tensor.name, "missing", None, _kind(tensor)))
    return found


def _kind(tensor: Tensor) -> str:
    return f"{tensor.type} {' x '.join(map(str, tensor.shape))}"


def _diff_tensor(a: Reader, x: Tensor, b: Reader, y: Tensor | None, values: bool) -> TensorDifference | None:
    if y is None:
        return TensorDifference(x.name, "missing", _kind(x), None)
    if x.shape != y.shape:
        return TensorDifference(x.name, "shape", _kind(x), _kind(y))
    if x.type == y.type:
        if all(mine == theirs for mine, theirs in _pairs_of_pieces(a, x, b, y)):
            return None
        what = "content"
    else:
        what = "type"
    rms = relative_rms(a, x, b, y) if values else None
    return TensorDifference(x.name, what, _kind(x), _kind(y), rms)
