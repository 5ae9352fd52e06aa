"""Writes GGUF files: metadata and directory first, then each tensor as a stream of pieces.

The file appears under its name when it is complete and flushed, never before: it is written to a temporary beside it,
which is renamed. Memory is that of the header and of one piece. A writer that is told to `resume` keeps what it has
when it is interrupted, in NAME.partial and NAME.partial.journal, and the next one with the same header and fingerprint
checks it, tensor by tensor, and goes on behind the last that is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from .errors import ArgumentError, IoError
from .model import Model
from .native import Tensor
from .native_file import raw_values

VERSION = 3
ALIGNMENT = 32
PIECE_BYTES = 8 << 20  # what is read or written at once
WRITE_BYTES_MAX = 1 << 30  # of one system call: Linux takes no more than 2 GiB
NAME_BYTES_MAX = 127
ARCHITECTURE = "glm-dsa"

# GGUF's numbers of the types of metadata, and how struct packs them.
TYPES = {
    "u8": 0, "i8": 1, "u16": 2, "i16": 3, "u32": 4, "i32": 5, "f32": 6, "bool": 7, "string": 8, "array": 9, "u64": 10,
    "i64": 11, "f64": 12,
}  # fmt: skip
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = TYPES["string"], TYPES["array"]

Piece = np.ndarray | bytes | bytearray | memoryview


def _text(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _values(kind: int, values: Sequence[Any]) -> bytes:
    if kind == _STRING:
        return b"".join(_text(value) for value in values)
    return struct.pack(f"<{len(values)}{_FORMATS[kind]}", *values)


@dataclass(frozen=True)
class Pair:
    """A metadata key and its value, the value as the file's bytes (those of `data`, without type and count)."""

    key: str
    type: int
    element: int
    count: int
    data: bytes

    def pack(self) -> bytes:
        head = _text(self.key) + struct.pack("<I", self.type)
        if self.type == _ARRAY:
            head += struct.pack("<IQ", self.element, self.count)
        return head + self.data


def pair(key: str, kind: str, value: Any) -> Pair:
    """pair("general.name", "string", "nano"), pair("split.no", "u16", 0)."""
    number = TYPES[kind]
    return Pair(key, number, number, 1, _values(number, [value]))


def array(key: str, kind: str, values: Sequence[Any]) -> Pair:
    """A list of values of one type; not of lists."""
    return Pair(key, _ARRAY, TYPES[kind], len(values), _values(TYPES[kind], values))


def pairs_of(model: Model) -> list[Pair]:
    """The metadata of an open model, to be carried over byte for byte, in the file's order."""
    return [Pair(*value) for value in raw_values(model.native)]


def content_pairs(model: Model) -> list[Pair]:
    """pairs_of without what says how the file is laid out (shards, runs of experts): for one that is laid out anew."""
    pairs = without(pairs_of(model), "split.", "glm52.colocated.")
    if any(one.key.startswith("glm52.colocated.") for one in pairs_of(model)):
        pairs = with_pairs(pairs, [pair("general.architecture", "string", ARCHITECTURE)])
    return pairs


def with_pairs(pairs: Iterable[Pair], new: Iterable[Pair]) -> list[Pair]:
    """pairs, those of which the key is in new replaced where they stand; the rest of new behind them."""
    replacing = {one.key: one for one in new}
    kept = [replacing.pop(one.key, one) for one in pairs]
    return [*kept, *replacing.values()]


def without(pairs: Iterable[Pair], *prefixes: str) -> list[Pair]:
    """pairs of which the key begins with none of the prefixes."""
    return [one for one in pairs if not one.key.startswith(prefixes)]


def row_bytes(type_name: str, elements: int) -> int:
    """Bytes of so many elements of a type ("Q8_0"). Errors: ArgumentError if they are no whole blocks, or for a type
    that there is not."""
    try:
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name]]
    except KeyError:
        raise ArgumentError(f"{type_name!r} is no type of tensors") from None
    if elements % block:
        raise ArgumentError(f"{elements} elements are no whole blocks of {block} as {type_name} has them")
    return elements // block * size


@dataclass(frozen=True)
class Entry:
    """A tensor of the directory. shape lists the contiguous dimension first, as the file and native.Tensor do."""

    name: str
    type: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        rows = 1
        for count in self.shape[1:]:
            rows *= count
        return row_bytes(self.type, self.shape[0]) * rows

    def pack(self, offset: int) -> bytes:
        sizes = struct.pack(f"<I{len(self.shape)}Q", len(self.shape), *self.shape)
        return _text(self.name) + sizes + struct.pack("<IQ", GGMLQuantizationType[self.type], offset)


def entry_of(tensor: Tensor) -> Entry:
    return Entry(tensor.name, tensor.type, tensor.shape)


def align(count: int, to: int = ALIGNMENT) -> int:
    return -(-count // to) * to


@dataclass(frozen=True)
class Layout:
    """Where everything of a file goes: its first bytes, and each tensor's place in the file."""

    header: bytes  # padded
    places: tuple[int, ...]
    file_bytes: int


def layout(pairs: Sequence[Pair], entries: Sequence[Entry], alignment: int = ALIGNMENT) -> Layout:
    """Lays a file out, the tensors in order, padded to the alignment. Errors: ArgumentError for names that are there
    twice, or too long."""
    for what, names in (("key", [one.key for one in pairs]), ("tensor", [one.name for one in entries])):
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise ArgumentError(f"{what} {twice[0]} is there twice")
    long = [one.name for one in entries if len(one.name.encode()) > NAME_BYTES_MAX]
    if long:
        raise ArgumentError(f"tensor {long[0]}: a name of more than {NAME_BYTES_MAX} bytes")
    head = struct.pack("<4sIQQ", b"GGUF", VERSION, len(entries), len(pairs)) + b"".join(one.pack() for one in pairs)
    start = align(len(head) + sum(len(entry.pack(0)) for entry in entries), alignment)
    places, at = [], start
    for entry in entries:
        places.append(at)
        at = align(at + entry.bytes, alignment)
    directory = b"".join(entry.pack(place - start) for entry, place in zip(entries, places, strict=True))
    return Layout((head + directory).ljust(start, b"\0"), tuple(places), at)


class Writer:
    """Writes one GGUF file; use it in a with statement, write every entry in order, and the file is put in its place at
    the end of the statement. An exception inside leaves the target as it was.

    resume: None writes to a temporary that is removed on any failure. A text, the fingerprint of what the tensors are
    made from, keeps what is there: `done` says how many tensors need not be written again.
    Errors: ArgumentError if path exists and overwrite is not set; IoError with the path and the system's reason.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        pairs: Sequence[Pair],
        entries: Sequence[Entry],
        *,
        alignment: int = ALIGNMENT,
        overwrite: bool = False,
        resume: str | None = None,
    ) -> None:
        self.path = os.fspath(path)
        self.entries = list(entries)
        self.layout = layout(pairs, entries, alignment)
        self.done = 0
        self._journal: Any = None
        self._keeps = resume is not None
        self._temporary = ""
        self._file = -1
        if os.path.isdir(self.path):
            raise ArgumentError(f"{self.path}: a folder, not a file to write")
        if os.path.exists(self.path) and not overwrite:
            raise ArgumentError(f"{self.path} exists; it is not written over unless that is asked for")
        with self._system("cannot be written"):
            if resume is None:
                self._file, self._temporary = tempfile.mkstemp(
                    prefix=os.path.basename(self.path) + ".", suffix=".tmp", dir=os.path.dirname(self.path) or "."
                )
                self._start()
            else:
                self._temporary = self.path + ".partial"
                self._resume(resume)

    # ---- the temporary ----

    @contextlib.contextmanager
    def _system(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno == errno.ENOSPC:
                reason += f" ({self.layout.file_bytes:,} bytes are needed in all)"
            self._give_up()
            raise IoError(f"{self.path}: {what}: {reason}") from error

    def _start(self) -> None:
        """Begins an empty file, after a look at whether it can fit."""
        needed = self.layout.file_bytes
        disk = os.fstatvfs(self._file)
        free = disk.f_bavail * disk.f_frsize
        if needed > free:
            self._give_up(keep=False)
            raise IoError(f"{self.path}: {needed:,} bytes are needed, {free:,} are free on its disk")
        os.ftruncate(self._file, 0)
        self._at = 0
        self._put(self.layout.header)

    def _resume(self, fingerprint: str) -> None:
        """Takes up what an earlier writer has left, if it is the same file, or begins anew."""
        self._file = os.open(self._temporary, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            self._file = -1
            raise IoError(f"{self._temporary}: another process is writing it") from None
        digest = hashlib.sha256(self.layout.header).hexdigest()
        head = {"glm52 partial": 1, "header": digest, "from": fingerprint, "bytes": self.layout.file_bytes}
        sums = _read_journal(self._temporary + ".journal", head)
        self.done = self._checked(sums) if sums is not None else 0
        self._journal = open(self._temporary + ".journal.new", "w", encoding="ascii")
        self._note(head)
        for index, checksum in enumerate((sums or [])[: self.done]):
            self._note({"tensor": index, "crc32": checksum})
        os.replace(self._temporary + ".journal.new", self._temporary + ".journal")
        if self.done == 0:
            self._start()
            return
        self._at = self.layout.places[self.done - 1] + self.entries[self.done - 1].bytes
        os.ftruncate(self._file, self._at)
        os.lseek(self._file, self._at, os.SEEK_SET)

    def _checked(self, sums: list[int]) -> int:
        """How many tensors of the partial file are what the journal says."""
        header = self.layout.header
        if os.pread(self._file, len(header), 0) != header:
            return 0
        for index, checksum in enumerate(sums[: len(self.entries)]):
            found, at = 0, self.layout.places[index]
            end = at + self.entries[index].bytes
            while at < end:
                piece = os.pread(self._file, min(PIECE_BYTES, end - at), at)
                if not piece:
                    return index
                found = zlib.crc32(piece, found)
                at += len(piece)
            if found != checksum:
                return index
        return min(len(sums), len(self.entries))

    def _note(self, line: dict[str, Any]) -> None:
        self._journal.write(json.dumps(line) + "\n")
        self._journal.flush()

    def _put(self, data: Any) -> None:
        """Writes all of a buffer at the end of the file."""
        view = memoryview(data).cast("B")
        while len(view):
            count = os.write(self._file, view[:WRITE_BYTES_MAX])
            view = view[count:]
            self._at += count

    def _give_up(self, keep: bool = True) -> None:
        """Ends without a file; what a resumable writer has stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        if self._journal is not None:
            with contextlib.suppress(OSError):
                self._journal.close()
        if self._keeps and keep:
            return
        for path in (self._temporary, self._temporary + ".journal") if self._temporary else ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    # ---- tensors ----

    def write(self, pieces: Iterable[Piece]) -> None:
        """The next tensor, its bytes in order. Errors: ArgumentError if there are too many, too few, or no tensor is
        left; IoError."""
        if self.done == len(self.entries):
            raise ArgumentError(f"{self.path}: all {self.done} tensors are written")
        entry, begin = self.entries[self.done], self.layout.places[self.done]
        left, checksum = entry.bytes, 0
        with self._system(f"tensor {entry.name}"):
            self._put(bytes(begin - self._at))
        for piece in pieces:
            data = np.ascontiguousarray(piece).view(np.uint8) if isinstance(piece, np.ndarray) else memoryview(piece)
            left -= data.nbytes
            if left < 0:
                raise ArgumentError(f"tensor {entry.name}: more than its {entry.bytes} bytes")
            if data.nbytes == 0:
                continue
            flat = data.reshape(-1) if isinstance(data, np.ndarray) else data
            if self._journal is not None:
                checksum = zlib.crc32(flat, checksum)
            with self._system(f"tensor {entry.name}"):
                self._put(flat)
        if left:
            raise ArgumentError(f"tensor {entry.name}: {entry.bytes - left} of its {entry.bytes} bytes")
        self.done += 1
        if self._journal is not None:
            with self._system("journal"):
                self._note({"tensor": self.done - 1, "crc32": checksum})

    def close(self) -> None:
        """Puts the file in its place. Errors: ArgumentError if tensors are missing; IoError."""
        if self.done < len(self.entries):
            missing = self.entries[self.done].name
            self._give_up()
            raise ArgumentError(f"{self.path}: tensor {missing} was not written")
        with self._system("cannot be finished"):
            self._put(bytes(self.layout.file_bytes - self._at))
            os.fchmod(self._file, 0o666 & ~_umask())
            os.fsync(self._file)
            os.replace(self._temporary, self.path)
        os.close(self._file)
        self._file = -1
        with contextlib.suppress(OSError):
            _sync_folder(os.path.dirname(self.path) or ".")
        if self._journal is not None:
            self._journal.close()
            os.unlink(self._temporary + ".journal")

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        elif self._file >= 0:
            self._give_up()


def _read_journal(path: str, head: dict[str, Any]) -> list[int] | None:
    """Checksums of the tensors that a journal says are written; None if it is of another file or can't be read."""
    try:
        with open(path, encoding="ascii") as file:
            lines = file.read().split("\n")[:-1]  # a line without its end was cut
        if not lines or json.loads(lines[0]) != head:
            return None
        found = [json.loads(line) for line in lines[1:]]
        numbers = [(line["tensor"], line["crc32"]) for line in found]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [checksum for _, checksum in numbers] if [n for n, _ in numbers] == list(range(len(numbers))) else None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync_folder(path: str) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# ---- tensors of an open model ----


class Reader:
    """The bytes of a model's tensors, by pread: a file that shrinks meanwhile is an error, not a fault."""

    def __init__(self, model: Model) -> None:
        self._files = [open(path, "rb", buffering=0) for path in model.paths]

    def read(self, tensor: Tensor, begin: int, count: int) -> bytes:
        """count bytes of the tensor from byte begin, as if it were one run. Errors: IoError."""
        if not tensor.stride:
            return self._run(tensor, tensor.offset + begin, count)
        parts, block = [], tensor.bytes // tensor.shape[-1]
        while count:
            number, at = divmod(begin, block)
            part = min(count, block - at)
            parts.append(self._run(tensor, tensor.offset + number * tensor.stride + at, part))
            begin, count = begin + part, count - part
        return b"".join(parts)

    def _run(self, tensor: Tensor, at: int, count: int) -> bytes:
        file = self._files[tensor.shard]
        parts, end = [], at + count
        while at < end:
            try:
                part = os.pread(file.fileno(), min(WRITE_BYTES_MAX, end - at), at)
            except OSError as error:
                raise IoError(f"{file.name}: tensor {tensor.name}: {error.strerror}") from error
            if not part:
                raise IoError(f"{file.name}: tensor {tensor.name}: the file ends at byte {at}")
            parts.append(part)
            at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pieces(self, tensor: Tensor, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
        """All of the tensor, piece by piece."""
        for at in range(0, tensor.bytes, piece_bytes):
            yield self.read(tensor, at, min(piece_bytes, tensor.bytes - at))

    def close(self) -> None:
        for file in self._files:
            file.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
