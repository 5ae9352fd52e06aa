"""Reads safetensors: one file, or the shards of a folder with their index. Nothing that a file says is believed before
it is checked, and tensors are read by pread, so many bytes at a time as are asked for.

A file is a u64 with the length of its header, the header (JSON: name -> dtype, shape, data_offsets), then the bytes
of all tensors, one behind the other without a hole.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from .errors import IoError, ModelError

HEADER_BYTES_MAX = 100_000_000  # the format's own limit
TENSORS_MAX = 1 << 20  # of a folder: GLM-5.2 with a tensor per expert and scales has about 120,000
FILES_MAX = 4096
DIMENSIONS_MAX = 8
JSON_BYTES_MAX = 64 << 20  # of index and other files

# Bytes of an element of each type of the format.
DTYPES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4,
    "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip

INDEX = "model.safetensors.index.json"
_FILE_NAME = re.compile(r"[\w.-]+\.safetensors")


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a file. shape is as in PyTorch: the contiguous dimension last."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int  # index into Source.paths
    offset: int  # in the file
    bytes: int


def read_json(path: Path, what: str) -> Any:
    """A JSON file, each name in it once. Errors: ModelError, IoError."""
    try:
        if path.stat().st_size > JSON_BYTES_MAX:
            raise ModelError(f"{path}: {path.stat().st_size} bytes, {what} of at most {JSON_BYTES_MAX} are read")
        return parse_json(path.read_bytes())
    except OSError as error:
        raise IoError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: {what} is not proper JSON: {error}") from None


def parse_json(data: bytes) -> Any:
    """Raises ValueError for what is no JSON, and for a name that an object has twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            raise ValueError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
        return found

    return json.loads(data.decode("utf-8"), object_pairs_hook=once)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 60


def _described(path: Path, name: str, entry: Any, file: int, start: int, data_bytes: int) -> SourceTensor:
    """One entry of a header, checked by itself."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ModelError(f"{path}: tensor {name}: not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ModelError(f"{path}: tensor {name}: dtype {dtype!r} is none of {', '.join(DTYPES)}")
    if not isinstance(shape, list) or len(shape) > DIMENSIONS_MAX or not all(map(_is_count, shape)):
        raise ModelError(f"{path}: tensor {name}: shape {shape!r} is no list of up to {DIMENSIONS_MAX} sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise ModelError(f"{path}: tensor {name}: data_offsets {offsets!r} are not two places")
    count = DTYPES[dtype]
    for size in shape:
        count *= size
    begin, end = offsets
    if not begin <= end <= data_bytes:
        raise ModelError(f"{path}: tensor {name}: bytes {begin} to {end} of {data_bytes}: the file is cut or damaged")
    if end - begin != count:
        raise ModelError(f"{path}: tensor {name}: {end - begin} bytes, {dtype} {shape} takes {count}")
    return SourceTensor(name, dtype, tuple(shape), file, start + begin, count)


def _read_header(path: Path, handle: BinaryIO, file: int) -> tuple[list[SourceTensor], bytes]:
    """The tensors of a file, and its header."""
    size = os.fstat(handle.fileno()).st_size
    head = handle.read(8)
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(HEADER_BYTES_MAX, size - 8):
        limit = f"the file has {size} bytes, a header at most {HEADER_BYTES_MAX}"
        raise ModelError(f"{path}: not a safetensors file: a header of {length} bytes; {limit}")
    data = handle.read(length)
    if len(data) < length:
        raise IoError(f"{path}: the file ends in its header")
    try:
        header = parse_json(data)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: not a safetensors file: its header is not proper JSON: {error}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: not a safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    start = 8 + length
    found = [_described(path, name, entry, file, start, size - start) for name, entry in header.items()]
    at = start
    for tensor in sorted(found, key=lambda one: (one.offset, one.bytes)):
        if tensor.offset != at:
            word = "lies over another" if tensor.offset < at else "leaves a hole before it"
            raise ModelError(f"{path}: tensor {tensor.name}: {word} (byte {tensor.offset}, {at} was expected)")
        at += tensor.bytes
    if at != size:
        raise ModelError(f"{path}: {size - at} bytes behind the last tensor that are of none")
    return found, data


def _files_of(folder: Path) -> tuple[list[Path], dict[str, str] | None]:
    """The safetensors files of a folder in order, and which tensor the index says is where."""
    index = folder / INDEX
    if index.exists():
        weights = read_json(index, "the index")
        weights = weights.get("weight_map") if isinstance(weights, dict) else None
        if not isinstance(weights, dict) or not all(isinstance(v, str) for v in weights.values()):
            raise ModelError(f"{index}: no weight_map of names to files")
        names = sorted(set(weights.values()))
        strange = next((name for name in names if not _FILE_NAME.fullmatch(name)), None)
        if strange is not None:
            raise ModelError(f"{index}: {strange!r} is no name of a safetensors file beside it")
        missing = [name for name in names if not (folder / name).exists()]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(f"{folder / missing[0]}{more}: in the index, but not there")
        return [folder / name for name in names], weights
    paths = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("."))
    if not paths:
        raise ModelError(f"{folder}: no *.safetensors file")
    return paths, None


class Source:
    """The tensors of a folder, or of one file, by name. Close it, or use it in a with statement.

    Errors: ModelError, with file and tensor, for anything malformed; IoError."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        place = Path(path)
        self.paths, weights = _files_of(place) if place.is_dir() else ([place], None)
        if len(self.paths) > FILES_MAX:
            raise ModelError(f"{place}: {len(self.paths)} files; at most {FILES_MAX} are read")
        self.tensors: dict[str, SourceTensor] = {}
        self._files: list[BinaryIO] = []
        self._digest = hashlib.sha256()
        try:
            for number in range(len(self.paths)):
                self._add(number)
            if weights is not None:
                self._check_index(place / INDEX, weights)
        except BaseException:
            self.close()
            raise

    def _add(self, number: int) -> None:
        path = self.paths[number]
        try:
            handle = open(path, "rb")
            self._files.append(handle)
            found, header = _read_header(path, handle, number)
            size = os.fstat(handle.fileno()).st_size
        except OSError as error:
            raise IoError(f"{path}: {error.strerror}") from error
        self._digest.update(f"{path.name} {size} {len(header)} ".encode("utf-8", "surrogateescape") + header)
        for tensor in found:
            other = self.tensors.setdefault(tensor.name, tensor)
            if other is not tensor:
                raise ModelError(f"{path}: tensor {tensor.name}: also in {self.paths[other.file]}")
        if len(self.tensors) > TENSORS_MAX:
            raise ModelError(f"{path}: more than {TENSORS_MAX} tensors")

    def _check_index(self, index: Path, weights: dict[str, str]) -> None:
        for name, file in weights.items():
            tensor = self.tensors.get(name)
            if tensor is None or self.paths[tensor.file].name != file:
                where = "in none of them" if tensor is None else f"in {self.paths[tensor.file].name}"
                raise ModelError(f"{index}: tensor {name}: said to be in {file}, found {where}")

    @property
    def fingerprint(self) -> str:
        """Digest of the headers, names and sizes of all files."""
        return self._digest.hexdigest()

    def path_of(self, tensor: SourceTensor) -> Path:
        return self.paths[tensor.file]

    def read(self, tensor: SourceTensor, begin: int, count: int) -> bytes:
        """count bytes of the tensor from byte begin. Errors: IoError."""
        parts, at, end = [], tensor.offset + begin, tensor.offset + begin + count
        while at < end:
            try:
                part = os.pread(self._files[tensor.file].fileno(), min(1 << 30, end - at), at)
            except OSError as error:
                raise IoError(f"{self.path_of(tensor)}: tensor {tensor.name}: {error.strerror}") from error
            if not part:
                raise IoError(f"{self.path_of(tensor)}: tensor {tensor.name}: the file ends at byte {at}")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
