"""Reference files of KL divergence: the tokens of a text's windows and what a model thought behind each.

docs/JUDGING.md has the format. Files of llama-perplexity (--kl-divergence-base) are read too. Everything in a file is
checked before it is believed; rows are read one window at a time.
"""

import hashlib
import json
import os
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from .errors import ArgumentError, ModelError
from .judge import Windows, log_softmax

MAGIC, LLAMA_MAGIC = b"GLM52KLD", b"_logits_"
FORMAT = 1
HEADER_MAX = 1 << 20
RANGE = 32.0  # natural logarithms below the likeliest that 16 bits span; what is below is put at the end
LLAMA_CUT = -16.0  # llama-perplexity leaves out what its reference gives a log-probability below this
KINDS = ("u16", "f32")
_DIGEST = 32


def row_bytes(kind: str, vocab: int) -> int:
    return 4 * vocab if kind == "f32" else 8 + 2 * vocab


def pack(logits: np.ndarray, kind: str) -> bytes:
    """One row: float32 logits as they are, or log-probabilities in 16 bits: float32 greatest and step, then for each
    token the number of steps below the greatest."""
    if kind == "f32":
        return logits.astype("<f4").tobytes()
    values = log_softmax(logits)
    top, step = np.float32(values.max()), np.float32(RANGE / 65535)
    below = np.minimum(np.rint((np.float64(top) - values) / np.float64(step)), 65535)
    return struct.pack("<ff", top, step) + np.maximum(below, 0).astype("<u2").tobytes()


def unpack(row: bytes, kind: str) -> np.ndarray:
    """float64 log-probabilities of a packed row, made to add up to 1."""
    if kind == "f32":
        return log_softmax(np.frombuffer(row, "<f4"))
    top, step = struct.unpack("<ff", row[:8])
    return log_softmax(np.float64(top) - np.frombuffer(row, "<u2", offset=8).astype(np.float64) * np.float64(step))


class Writer:
    """Writes a reference beside path and puts it in its place when all of it is there."""

    def __init__(self, path: str | os.PathLike[str], windows: Windows, vocab: int, kind: str, about: dict[str, Any]):
        if kind not in KINDS:
            raise ArgumentError(f"kind {kind!r}; it must be one of {', '.join(KINDS)}")
        self._path, self._kind, self._vocab = os.fspath(path), kind, vocab
        self._left = windows.count * windows.scored
        header = {
            **about, "kind": kind, "vocab": vocab, "windows": windows.count, "context": windows.context,
            "first": windows.first,
        }  # fmt: skip
        text = json.dumps(header).encode("utf-8")
        self._digest = hashlib.sha256()
        self._temporary = f"{self._path}.part"
        self._file: BinaryIO | None = open(self._temporary, "wb")  # noqa: SIM115
        self._put(MAGIC + struct.pack("<II", FORMAT, len(text)) + text)
        self._put(windows.tokens.astype("<i4").tobytes())

    def _put(self, data: bytes) -> None:
        assert self._file is not None
        self._digest.update(data)
        self._file.write(data)

    def add(self, logits: np.ndarray) -> None:
        """The next target's logits, float32 [vocab]."""
        if len(logits) != self._vocab or not self._left:
            raise ArgumentError(f"{self._path}: {len(logits)} logits for {self._vocab}, {self._left} rows left")
        self._left -= 1
        self._put(pack(logits, self._kind))

    def close(self, keep: bool = True) -> None:
        """Ends the file; without keep, or if rows are missing, nothing is left of it."""
        if self._file is None:
            return
        if keep and not self._left:
            self._file.write(self._digest.digest())
        self._file.close()
        self._file = None
        if keep and not self._left:
            os.replace(self._temporary, self._path)
        else:
            os.unlink(self._temporary)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(kind is None)


class Reference:
    """An open reference: windows, vocab, kind ("u16", "f32" or "llama.cpp"), about, what its writer said, and cut, the
    log-probability up to which tokens are left out of the divergence."""

    cut = -np.inf

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name = os.fspath(path)
        self._size = os.stat(path).st_size
        self._digest = hashlib.sha256()
        self._file = open(path, "rb")  # noqa: SIM115
        try:
            magic = self._read(8)
            if magic == MAGIC:
                self._open_own()
            elif magic == LLAMA_MAGIC:
                self._open_llama()
            else:
                raise ModelError(f"{self._name}: this is no reference of glm52 kld --record")
        except BaseException:
            self._file.close()
            raise

    def _read(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise ModelError(f"{self._name}: ends at byte {self._size}, in the middle of something")
        self._digest.update(data)
        return data

    def _open_own(self) -> None:
        version, length = struct.unpack("<II", self._read(8))
        if version != FORMAT:
            raise ModelError(f"{self._name}: format {version}; this reads format {FORMAT}")
        if length > HEADER_MAX:
            raise ModelError(f"{self._name}: a header of {length} bytes; at most {HEADER_MAX}")
        try:
            self.about: dict[str, Any] = json.loads(self._read(length))
            self.kind, self.vocab = self.about["kind"], self.about["vocab"]
            count, context, first = (self.about[name] for name in ("windows", "context", "first"))
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{self._name}: a header that can't be read ({error})") from None
        if self.kind not in KINDS:
            raise ModelError(f"{self._name}: rows of kind {self.kind!r}; it must be one of {', '.join(KINDS)}")
        self._take(count, context, first, row_bytes(self.kind, self._checked(self.vocab)), _DIGEST)

    def _open_llama(self) -> None:
        """n_ctx, n_vocab, n_chunk; tokens; rows of float32 step and least value, then 16-bit numbers of steps. The
        vocabulary is rounded up to an even number."""
        context, self.vocab, count = struct.unpack("<iii", self._read(12))
        self.kind, self.about, self.cut = "llama.cpp", {}, LLAMA_CUT
        padded = self._checked(self.vocab) + self.vocab % 2
        self._take(count, context, context // 2 + 1 if isinstance(context, int) else 0, 8 + 2 * padded, 0)

    def _checked(self, number: Any) -> int:
        if type(number) is not int or not 0 < number < 2**31:
            raise ModelError(f"{self._name}: {number!r} is no count")
        return number

    def _take(self, count: Any, context: Any, first: Any, size: int, tail: int) -> None:
        for number in (count, context, first):
            self._checked(number)
        if not first < context:
            raise ModelError(f"{self._name}: targets from {first} on in windows of {context}")
        self._row_bytes, self._tail = size, tail
        wanted = self._file.tell() + count * (4 * context + (context - first) * size) + tail
        if wanted != self._size:
            raise ModelError(f"{self._name}: {self._size} bytes; what its header says takes {wanted}")
        tokens = np.frombuffer(self._read(4 * count * context), "<i4").reshape(count, context)
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise ModelError(f"{self._name}: token ids outside the vocabulary of {self.vocab}")
        self.windows = Windows(tokens, first)

    def rows(self) -> Iterator[list[np.ndarray]]:
        """Per window the float64 log-probabilities [vocab] before each of its targets. To be read once, from the
        beginning; raises ModelError behind the last window if the file's digest is not that of its content."""
        for _ in range(self.windows.count):
            found = [self._read(self._row_bytes) for _ in range(self.windows.scored)]
            yield [self._unpack(row) for row in found]
        if self._tail and self._file.read(self._tail) != self._digest.digest():
            raise ModelError(f"{self._name}: is damaged: its digest is not that of its content")

    def _unpack(self, row: bytes) -> np.ndarray:
        if self.kind != "llama.cpp":
            return unpack(row, self.kind)
        step, least = struct.unpack("<ff", row[:8])
        codes = np.frombuffer(row, "<u2", count=self.vocab, offset=8)
        return np.float64(least) + codes.astype(np.float64) * np.float64(step)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> "Reference":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
