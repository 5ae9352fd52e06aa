"""Checkpoints: a conversation in a file, to be taken up where it was left, bit for bit.

docs/FORMAT.md lays the file out byte by byte. A checkpoint is written to a temporary of its own beside the target,
flushed to the disk and renamed, so that the target is at any moment the old file or the new one. Loading fills a
conversation beside the engine's and exchanges the two at the very end: a file that is refused changes nothing.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from .errors import ArgumentError, Cancelled, CheckpointError, ContextError, IoError
from .sampling import STATE_BYTES, Sampler

if TYPE_CHECKING:
    from .engine import Engine
    from .native import NativeSession, Spans

MAGIC = b"GLM52CKP"
VERSION = 1
HEADER_BYTES = 256
DIGEST_BYTES = 32
PIECE_BYTES = 1 << 20  # of a section, with a checksum of its own
TAG_BYTES_MAX = 1 << 20
LAYERS_MAX = 512
# How the indexer's keys are made: from the normed input, pairs interleaved, LayerNorm with 1e-6; or in another way, by
# an executor whose conversation was taken over. The latter mean nothing where more than index_top_k can be visible.
INDEXER, FOREIGN_INDEXER = 1, 2
STALE_SECONDS = 60  # a temporary that nobody holds is left over if it is that old
HAS_LOGITS, HAS_MTP = 1, 2

TAG, SAMPLER, TOKENS, LOGITS, KV, INDEX, HIDDEN = range(1, 8)
ROWS = {KV: 0, INDEX: 1, HIDDEN: 2}  # the native number of each kind of rows

_HEADER = struct.Struct("<8sIIQ32sIIfIIIIIIIIIIIII")
_SECTION = struct.Struct("<IIQQ")

Progress = Callable[[int], Any]


@dataclass(frozen=True)
class Header:
    """What a checkpoint says of itself before its sections. Refused as a whole if one bit of it is wrong."""

    magic: bytes
    version: int
    sections: int
    file_bytes: int
    identity: bytes  # of the model, 32 bytes
    kv_type: int
    quality: int
    latent_epsilon: float
    indexer: int
    position: int  # tokens
    context: int  # of the engine that wrote it; for information
    layers: int
    kv_lora: int
    rope: int
    index_key: int
    vocab: int
    hidden: int
    flags: int
    tag_bytes: int
    sampler_bytes: int
    reserved: int = 0

    def pack(self) -> bytes:
        fields = _HEADER.pack(*astuple(self)).ljust(HEADER_BYTES - DIGEST_BYTES, b"\0")
        return fields + hashlib.sha256(fields).digest()


@dataclass(frozen=True)
class Section:
    """One part of the file: what it is of, its bytes, and those of a piece."""

    kind: int
    layer: int
    bytes: int
    piece_bytes: int
    row_bytes: int = 1

    def pack(self) -> bytes:
        return _SECTION.pack(self.kind, self.layer, self.bytes, self.piece_bytes)

    @property
    def pieces(self) -> Iterator[tuple[int, int]]:
        """(begin, length) of each piece."""
        return ((at, min(self.piece_bytes, self.bytes - at)) for at in range(0, self.bytes, self.piece_bytes))


@dataclass(frozen=True)
class Info:
    """What inspect tells of a checkpoint."""

    identity: str
    tokens: list[int]
    context: int
    kv_type: str
    quality: bool
    tag: bytes
    has_sampler: bool
    file_bytes: int


def _layout(header: Header, index_full: Sequence[bool]) -> list[Section]:
    """Every section of a file with this header, in its order; without index_full only those before the rows."""
    sections = [
        Section(TAG, 0, header.tag_bytes, PIECE_BYTES),
        Section(SAMPLER, 0, header.sampler_bytes, PIECE_BYTES),
        Section(TOKENS, 0, 4 * header.position, PIECE_BYTES),
        Section(LOGITS, 0, 4 * header.vocab if header.flags & HAS_LOGITS else 0, PIECE_BYTES),
    ]
    element = 4 if header.kv_type else 2
    sizes = {KV: element * (header.kv_lora + header.rope), INDEX: element * header.index_key, HIDDEN: 4 * header.hidden}

    def add(kind: int, layer: int, rows: int) -> None:
        size = sizes[kind]
        sections.append(Section(kind, layer, size * rows, max(1, PIECE_BYTES // size) * size, size))

    for layer, full in enumerate(index_full):
        add(KV, layer, header.position)
        if full:
            add(INDEX, layer, header.position)
    if header.flags & HAS_MTP:
        add(KV, header.layers, header.position - 1)
        add(INDEX, header.layers, header.position - 1)
        add(HIDDEN, header.layers, 1)
    return sections


def _file_bytes(sections: list[Section]) -> int:
    each = sum(_SECTION.size + section.bytes + DIGEST_BYTES for section in sections)
    return HEADER_BYTES + each + DIGEST_BYTES


class _Sum:
    """The digest of a section, piece by piece. CRC-32 keeps up with any disk and is sure to see a burst of up to 32
    bits; a mishap, not an enemy, is what is feared."""

    def __init__(self, section: Section) -> None:
        self._whole = hashlib.sha256(section.pack())

    def add(self, piece: bytes | memoryview) -> None:
        self._whole.update(zlib.crc32(piece).to_bytes(4, "little"))

    def digest(self) -> bytes:
        return self._whole.digest()


class _FromProgress(Exception):
    """Carries an exception of the caller's past those that are the file's."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _report(progress: Progress | None, done: int) -> None:
    try:
        answer = progress(done) if progress is not None else None
    except OSError as error:
        raise _FromProgress(error) from None
    if answer is not None and not answer:
        raise Cancelled(f"cancelled at byte {done}")


# ---- writing ----


def save(engine: Engine, path: str | os.PathLike[str], tag: bytes, sampler: Sampler | None, progress: Progress | None):
    """See Engine.save."""
    if len(tag) > TAG_BYTES_MAX:
        raise ArgumentError(f"a tag of {len(tag)} bytes; at most {TAG_BYTES_MAX}")
    target = os.path.realpath(path)
    identity = bytes.fromhex(engine.model.identity)
    with engine.native.exclusive() as spans, _os_errors(path):
        state = sampler.state if sampler is not None else b""
        header, sections = _describe(engine, spans, identity, tag, state)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(target):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with _replacement(target) as file:
            _write(file, spans, header, sections, {TAG: tag, SAMPLER: state}, progress)


def _describe(
    engine: Engine, spans: Spans, identity: bytes, tag: bytes, sampler: bytes
) -> tuple[Header, list[Section]]:
    shape, options = engine.model.shape, engine.options
    flags = (HAS_LOGITS if spans.logits() is not None else 0) | (HAS_MTP if spans.mtp_complete() else 0)

    def header(sections: int, file_bytes: int) -> Header:
        return Header(
            MAGIC, VERSION, sections, file_bytes, identity, options["kv_type"], options["quality"],
            options["latent_epsilon"] or shape.rms_epsilon, FOREIGN_INDEXER if engine.raw_keys else INDEXER,
            spans.position, spans.context, shape.layers, shape.kv_lora, shape.rope, shape.index_key, shape.vocab,
            shape.hidden, flags, len(tag), len(sampler),
        )  # fmt: skip

    sections = _layout(header(0, 0), shape.index_full)
    return header(len(sections), _file_bytes(sections)), sections


_PREFIX, _SUFFIX = ".glm52-", ".tmp"


def _remove_stale(folder: str, now: float) -> None:
    """Removes temporaries of writers that were killed. A writer holds a lock on its own as long as it lives, wherever
    it runs; the age is for one that has not come to locking yet. now: by the folder's file system."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            if not (entry.name.startswith(_PREFIX) and entry.name.endswith(_SUFFIX)):
                continue
            with suppress(OSError), open(entry.path, "rb", buffering=0) as file:
                is_old = now - os.fstat(file.fileno()).st_mtime > STALE_SECONDS
                if is_old and entry.is_file(follow_symlinks=False):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    os.unlink(entry.path)


@contextmanager
def _replacement(target: str) -> Iterator[BinaryIO]:
    """A file that takes target's place when the block ends without an error, and vanishes otherwise. Only its owner
    may read it: a conversation is private."""
    folder = os.path.dirname(target)
    descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
    try:
        with open(descriptor, "wb", buffering=0) as file:
            with suppress(OSError):  # a file system without locks: the temporary is as good as old when it is
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_stale(folder, os.fstat(file.fileno()).st_mtime)
            yield file
            _flush(file.fileno())
        os.replace(name, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
    folder_descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(folder_descriptor)
    finally:
        os.close(folder_descriptor)


def _flush(descriptor: int) -> None:
    """To the medium; macOS's fsync stops at the disk's own cache."""
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is None:
        os.fsync(descriptor)
    else:
        fcntl.fcntl(descriptor, full)


def _write(
    file: BinaryIO,
    spans: Spans,
    header: Header,
    sections: list[Section],
    small: dict[int, bytes],
    progress: Progress | None,
) -> None:
    small = {**small, TOKENS: spans.tokens(), LOGITS: spans.logits() or b""}
    head = header.pack()
    _write_all(file, head)
    done, whole = len(head), hashlib.sha256(head)
    buffer = bytearray(max((section.piece_bytes for section in sections if section.kind in ROWS), default=0))
    for section in sections:
        _write_all(file, section.pack())
        total = _Sum(section)
        for begin, length in section.pieces:
            _report(progress, done + begin)
            if section.kind in ROWS:
                piece = memoryview(buffer)[:length]
                spans.read_rows(ROWS[section.kind], section.layer, begin // section.row_bytes, piece)
            else:
                piece = memoryview(small[section.kind])[begin : begin + length]
            total.add(piece)
            _write_all(file, piece)
        digest = total.digest()
        _write_all(file, digest)
        whole.update(digest)
        done += _SECTION.size + section.bytes + DIGEST_BYTES
    _write_all(file, whole.digest())
    _report(progress, header.file_bytes)


def _write_all(file: BinaryIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


# ---- reading ----


def load(engine: Engine, path: str | os.PathLike[str], sampler: Sampler | None, progress: Progress | None) -> bool:
    """See Engine.load."""
    identity = engine.model.identity
    with _os_errors(path):
        try:
            file = open(path, "rb", buffering=0)
        except FileNotFoundError:
            return False
        with file, engine.native.exclusive() as spans:
            reader = _Reader(file, path)
            header = reader.header()
            _check_fit(engine, spans, header, identity, path)
            sections = reader.layout(header, engine.model.shape.index_full)
            session = spans.open_session()
            try:
                mtp = engine.mtp and bool(header.flags & HAS_MTP)
                small = reader.fill(header, sections, spans, session, progress, mtp)
                reader.restore(spans, session, small, mtp)
                spans.swap(session)
            finally:
                session.close()
    engine.tag, engine.raw_keys = small[TAG], header.indexer == FOREIGN_INDEXER
    if sampler is not None and small[SAMPLER]:
        sampler.state = small[SAMPLER]
    return True


def inspect(path: str | os.PathLike[str]) -> Info:
    """What a checkpoint is of; reads and checks its header, tag and tokens, not the rows.

    Raises CheckpointError, IoError (also if there is no file)."""
    with _os_errors(path), open(path, "rb", buffering=0) as file:
        reader = _Reader(file, path)
        header = reader.header()
        before_rows = _layout(replace(header, flags=header.flags & HAS_LOGITS), ())
        small = {section.kind: reader.section(section) for section in before_rows}
    tokens = struct.unpack(f"<{header.position}i", small[TOKENS])
    return Info(
        header.identity.hex(), list(tokens), header.context, "f32" if header.kv_type else "f16", bool(header.quality),
        bytes(small[TAG]), header.sampler_bytes > 0, header.file_bytes,
    )  # fmt: skip


def _check_fit(engine: Engine, spans: Spans, header: Header, identity: str, path: str | os.PathLike[str]) -> None:
    """Whether the engine's continuation would be the file's."""
    if header.identity.hex() != identity:
        raise CheckpointError(f"{path}: written for model {header.identity.hex()[:16]}, this is {identity[:16]}")
    shape, options = engine.model.shape, engine.options
    epsilon = struct.unpack("<f", struct.pack("<f", options["latent_epsilon"] or shape.rms_epsilon))[0]
    wanted = {
        "kv_type": options["kv_type"],
        "quality": options["quality"],
        "latent_epsilon": epsilon,
        "indexer": FOREIGN_INDEXER if header.indexer == FOREIGN_INDEXER else INDEXER,
        **{name: getattr(shape, name) for name in ("layers", "kv_lora", "rope", "index_key", "vocab", "hidden")},
    }
    for name, value in wanted.items():
        if getattr(header, name) != value:
            raise CheckpointError(f"{path}: written with {name} {getattr(header, name)}; this engine has {value}")
    if header.indexer == FOREIGN_INDEXER and spans.context > shape.index_top_k:
        raise CheckpointError(
            f"{path}: its indexer keys are another executor's; a context of up to {shape.index_top_k} can take it up,"
            f" this engine's holds {spans.context}"
        )
    if header.position > spans.context:
        held = f"{header.position} token{'s' * (header.position != 1)}"
        raise ContextError(f"{path}: {held}; this engine's context holds {spans.context}")


class _Reader:
    """A checkpoint being read; believes nothing that it did not check."""

    def __init__(self, file: BinaryIO, path: str | os.PathLike[str]) -> None:
        self._file, self._path = file, path
        self._whole = hashlib.sha256()

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path}: {what}")

    def _fill(self, out: bytearray | memoryview) -> None:
        view = memoryview(out)
        while view:
            got = self._file.readinto(view)  # type: ignore[attr-defined]
            if not got:
                raise self._damaged(f"ends {len(view)} bytes early")
            view = view[got:]

    def _take(self, count: int) -> bytes:
        data = bytearray(count)
        self._fill(data)
        return bytes(data)

    def header(self) -> Header:
        size = os.fstat(self._file.fileno()).st_size
        if size < HEADER_BYTES:
            raise self._damaged(f"{size} bytes are too few for a checkpoint")
        data = self._take(HEADER_BYTES)
        header = Header(*_HEADER.unpack_from(data))
        if header.magic != MAGIC:
            raise self._damaged("is no checkpoint")
        if header.version != VERSION:
            raise self._damaged(f"version {header.version}; this reads version {VERSION}")
        if header.pack() != data or header.reserved:
            raise self._damaged("the header is damaged")
        if header.file_bytes != size:
            raise self._damaged(f"{size} bytes; the header says {header.file_bytes}")
        if header.layers > LAYERS_MAX:
            raise self._damaged(f"{header.layers} layers; at most {LAYERS_MAX}")
        if header.sampler_bytes not in (0, STATE_BYTES) or header.tag_bytes > TAG_BYTES_MAX:
            raise self._damaged(f"a tag of {header.tag_bytes} and a sampler of {header.sampler_bytes} bytes")
        if header.flags & ~(HAS_LOGITS | HAS_MTP) or (header.flags and header.position == 0):
            raise self._damaged(f"flags {header.flags} at position {header.position}")
        # What inspect allocates is within the file; load goes on to check every length.
        if 4 * (header.position + header.vocab) + header.tag_bytes > size and header.flags & HAS_LOGITS:
            raise self._damaged(f"{size} bytes can't hold {header.position} tokens and {header.vocab} logits")
        if 4 * header.position + header.tag_bytes > size:
            raise self._damaged(f"{size} bytes can't hold {header.position} tokens")
        self._whole.update(data)
        return header

    def layout(self, header: Header, index_full: Sequence[bool]) -> list[Section]:
        sections = _layout(header, index_full)
        if len(sections) != header.sections or _file_bytes(sections) != header.file_bytes:
            raise self._damaged(
                f"{header.sections} sections in {header.file_bytes} bytes; {header.position} tokens of this model take"
                f" {len(sections)} in {_file_bytes(sections)}"
            )
        return sections

    def section(self, section: Section, use: Callable[[int, memoryview], None] | None = None) -> bytes:
        """Reads one section and checks it; its bytes, or nothing if use(begin, piece) takes them as they come."""
        if self._take(_SECTION.size) != section.pack():
            raise self._damaged(f"section {section.kind} of layer {section.layer} has another head than it must have")
        total = _Sum(section)
        kept = bytearray(section.bytes if use is None else min(section.bytes, section.piece_bytes))
        for begin, length in section.pieces:
            piece = memoryview(kept)[begin : begin + length] if use is None else memoryview(kept)[:length]
            self._fill(piece)
            total.add(piece)
            if use is not None:
                use(begin, piece)
        digest = self._take(DIGEST_BYTES)
        if total.digest() != digest:
            raise self._damaged(f"section {section.kind} of layer {section.layer} is damaged")
        self._whole.update(digest)
        return bytes(kept) if use is None else b""

    def fill(
        self,
        header: Header,
        sections: list[Section],
        spans: Spans,
        session: NativeSession,
        progress: Progress | None,
        mtp: bool,
    ) -> dict[int, bytes]:
        """Puts the rows into session, those of the MTP block if mtp, and returns the other sections."""
        small = {}
        done = HEADER_BYTES
        for section in sections:
            if section.kind in ROWS:

                def use(begin: int, piece: memoryview, section: Section = section, start: int = done) -> None:
                    _report(progress, start + begin)
                    if section.layer < header.layers or mtp:
                        first = begin // section.row_bytes
                        spans.write_rows(session, ROWS[section.kind], section.layer, first, piece)

                self.section(section, use)
            else:
                small[section.kind] = self.section(section)
            done += _SECTION.size + section.bytes + DIGEST_BYTES
        if self._take(DIGEST_BYTES) != self._whole.digest():
            raise self._damaged("the sections are not those that were written together")
        _report(progress, header.file_bytes)
        return small

    def restore(self, spans: Spans, session: NativeSession, small: dict[int, bytes], mtp: bool) -> None:
        try:
            if small[SAMPLER]:
                Sampler().state = small[SAMPLER]
            spans.restore(session, small[TOKENS], small[LOGITS] or None, mtp)
        except ArgumentError as error:
            raise self._damaged(str(error)) from None


@contextmanager
def _os_errors(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except _FromProgress as error:
        raise error.error from None
    except OSError as error:
        raise IoError(f"{os.fspath(path)}: {error.strerror or error}") from error
