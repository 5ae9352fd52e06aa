"""Writes GGUF files: key-value pairs and tensor directory first, then tensors as a stream of pieces."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

V = GGUFValueType
ALIGNMENT = 32

_SCALARS = {V.UINT16: "<H", V.INT32: "<i", V.UINT32: "<I", V.FLOAT32: "<f", V.BOOL: "<?", V.UINT64: "<Q"}


@dataclass(frozen=True)
class Pair:
    """A key with its value; element is the type of an array's elements."""

    key: str
    type: GGUFValueType
    value: object
    element: GGUFValueType | None = None


@dataclass(frozen=True)
class Entry:
    """A tensor of the directory; shape is numpy's, slowest dimension first."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    bytes: int


def _string(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _array(element: GGUFValueType, values: Sequence) -> bytes:  # type: ignore[type-arg]
    head = struct.pack("<IQ", element, len(values))
    if element == V.STRING:
        return head + b"".join(_string(value) for value in values)
    return head + b"".join(struct.pack(_SCALARS[element], value) for value in values)


def _pair(pair: Pair) -> bytes:
    head = _string(pair.key) + struct.pack("<I", pair.type)
    if pair.type == V.STRING:
        return head + _string(str(pair.value))
    if pair.type == V.ARRAY:
        assert pair.element is not None and isinstance(pair.value, Sequence)
        return head + _array(pair.element, pair.value)
    return head + struct.pack(_SCALARS[pair.type], pair.value)


def align(count: int) -> int:
    return -(-count // ALIGNMENT) * ALIGNMENT


def header(pairs: Sequence[Pair], entries: Sequence[Entry]) -> bytes:
    """Everything before the tensor data, padded to the alignment."""
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(entries), len(pairs))]
    parts += [_pair(pair) for pair in pairs]
    offset = 0
    for entry in entries:
        dimensions = entry.shape[::-1]  # the file has the contiguous one first
        parts.append(_string(entry.name))
        parts.append(struct.pack(f"<I{len(dimensions)}QIQ", len(dimensions), *dimensions, entry.type, offset))
        offset += align(entry.bytes)
    data = b"".join(parts)
    return data + bytes(align(len(data)) - len(data))


def data_bytes(entries: Sequence[Entry]) -> int:
    return sum(align(entry.bytes) for entry in entries)


def write(
    path: Path,
    pairs: Sequence[Pair],
    entries: Sequence[Entry],
    tensors: Iterator[Iterator[np.ndarray]] | None,
) -> None:
    """Writes a file. tensors gives each entry's pieces in order; None leaves the data a hole.

    The file appears under its name only when it is complete.
    """
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            head = header(pairs, entries)
            file.write(head)
            if tensors is None:
                file.truncate(len(head) + data_bytes(entries))
            else:
                for entry, pieces in zip(entries, tensors, strict=True):
                    written = 0
                    for piece in pieces:
                        file.write(np.ascontiguousarray(piece).data)
                        written += piece.nbytes
                    assert written == entry.bytes, f"{entry.name}: {written} of {entry.bytes} bytes"
                    file.write(bytes(align(written) - written))
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
