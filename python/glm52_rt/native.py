"""The native library as Python sees it: the only module that touches cffi.

It owns the native objects, turns statuses into exceptions and Python values into C's, and keeps memory alive for as
long as anything looks at it. What users see is in model.py and engine.py.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from . import errors
from ._native import ffi, lib

if lib.glm52_abi_version() != lib.GLM52_ABI_VERSION:
    raise ImportError("glm52_rt._native was linked with a library of another version; run `make ext`")

_EXCEPTIONS: dict[int, type[errors.Error]] = {
    lib.GLM52_ERR_ARGUMENT: errors.ArgumentError,
    lib.GLM52_ERR_MEMORY: errors.MemoryBudgetError,
    lib.GLM52_ERR_UNSUPPORTED: errors.UnsupportedError,
    lib.GLM52_ERR_IO: errors.IoError,
    lib.GLM52_ERR_MODEL: errors.ModelError,
    lib.GLM52_ERR_SHAPE: errors.ShapeError,
    lib.GLM52_ERR_BUDGET: errors.MemoryBudgetError,
    lib.GLM52_ERR_CONTEXT: errors.ContextError,
    lib.GLM52_ERR_CHECKPOINT: errors.CheckpointError,
    lib.GLM52_ERR_CANCELLED: errors.Cancelled,
}
KV_TYPES = {"f16": lib.GLM52_KV_F16, "f32": lib.GLM52_KV_F32}

# GGUF's number of each type of metadata value; strings and arrays apart.
_NUMBERS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY = 8, 9

Progress = Callable[[int], Any]


def _text(pointer: Any) -> str:
    return ffi.string(pointer).decode("utf-8", "replace")


def _check(status: int) -> None:
    if status == lib.GLM52_OK:
        return
    kind = _EXCEPTIONS.get(status, errors.Error)
    raise kind(_text(lib.glm52_error_message()) or _text(lib.glm52_status_name(status)))


class _Owner:
    """Frees a native object when the last reference to it goes: the wrapper's, or that of a view of its memory."""

    def __init__(self, pointer: Any, free: Callable[[Any], None]) -> None:
        self.pointer = pointer
        self._free = free

    def __del__(self) -> None:
        self._free(self.pointer)


class _Memory:
    """What numpy holds on to while an array of an owner's memory lives."""

    def __init__(self, owner: _Owner, pointer: Any, count: int, dtype: str) -> None:
        self._owner = owner
        address = int(ffi.cast("uintptr_t", pointer))
        self.__array_interface__ = {"version": 3, "shape": (count,), "typestr": dtype, "data": (address, True)}


def _copy(pointer: Any, count: int, dtype: str) -> np.ndarray:
    return np.frombuffer(ffi.buffer(pointer, count * np.dtype(dtype).itemsize), dtype).copy() if count else (
        np.zeros(0, dtype)
    )


# ---- models ----


class Tensor(NamedTuple):
    """A tensor of the file; shape lists the contiguous dimension first, as the file does."""

    name: str
    type: str
    shape: tuple[int, ...]
    bytes: int
    shard: int = 0
    offset: int = 0


class NativeModel:
    """An open glm52_model. Closing twice is fine; any other use of a closed one raises Error."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        model_out = ffi.new("glm52_model **")
        _check(lib.glm52_model_open(os.fsencode(path), model_out))
        self._owner: _Owner | None = _Owner(model_out[0], lib.glm52_model_close)

    @property
    def pointer(self) -> Any:
        if self._owner is None:
            raise errors.Error("the model is closed")
        return self._owner.pointer

    def close(self) -> None:
        self._owner = None

    def shape(self) -> dict[str, Any]:
        """Fields of glm52_shape; index_full as a tuple of bool, one per trunk layer."""
        shape = lib.glm52_model_shape(self.pointer)
        fields = {name: getattr(shape, name) for name, _ in ffi.typeof("glm52_shape").fields}
        fields["index_full"] = tuple(bool(shape.index_full[i]) for i in range(shape.layers))
        return fields

    def paths(self) -> list[str]:
        count = lib.glm52_model_shard_count(self.pointer)
        return [os.fsdecode(ffi.string(lib.glm52_model_path(self.pointer, i))) for i in range(count)]

    def file_bytes(self) -> int:
        return lib.glm52_model_file_bytes(self.pointer)

    def identity(self) -> str:
        digits = ffi.new("char[]", lib.GLM52_IDENTITY_DIGITS + 1)
        _check(lib.glm52_model_identity(self.pointer, digits))
        return _text(digits)

    def tensors(self) -> list[Tensor]:
        info = ffi.new("glm52_tensor_info *")
        found = []
        for i in range(lib.glm52_model_tensor_count(self.pointer)):
            _check(lib.glm52_model_tensor(self.pointer, i, info))
            shape = tuple(info.size[d] for d in range(info.dimensions))
            found.append(Tensor(_text(info.name), _text(info.type_name), shape, info.bytes, info.shard, info.offset))
        return found

    def keys(self) -> list[str]:
        value = ffi.new("glm52_value *")
        found = []
        for i in range(lib.glm52_model_key_count(self.pointer)):
            _check(lib.glm52_model_key(self.pointer, i, value))
            found.append(_text(value.key))
        return found

    def value(self, key: str) -> Any:
        """The value of a metadata key as Python sees it: int, float, bool, str or a list of one of them.
        Raises KeyError if the file has none."""
        value, found = ffi.new("glm52_value *"), ffi.new("bool *")
        _check(lib.glm52_model_find_key(self.pointer, key.encode("utf-8"), found, value))
        if not found[0]:
            raise KeyError(key)
        data = bytes(ffi.buffer(value.data, value.data_bytes)) if value.data_bytes else b""
        items = _decode_values(value.element_type, value.count, data)
        return items if value.type == _ARRAY else items[0]


def _decode_values(element_type: int, count: int, data: bytes) -> list[Any]:
    if element_type != _STRING:
        return np.frombuffer(data, _NUMBERS[element_type], count).tolist()
    items, at = [], 0
    for _ in range(count):
        end = at + 8 + int.from_bytes(data[at : at + 8], "little")
        items.append(data[at + 8 : end].decode("utf-8", "surrogateescape"))
        at = end
    return items


# ---- engines ----


class Observation(NamedTuple):
    """What one layer decided for the rows of one batch (arrays are copies, the caller's to keep)."""

    layer: int
    position: int  # of row 0
    route_ids: np.ndarray  # int32 [rows, experts_used], best first; [rows, 0] on dense layers
    route_weights: np.ndarray  # float32 [rows, experts_used]
    selected: list[np.ndarray]  # per row int32 [min(position + row + 1, index_top_k)], ascending
    hidden: np.ndarray  # float32 [rows, hidden], the residual stream behind the layer


class _Call:
    """One native call under way: the caller's progress function and what went wrong in it."""

    def __init__(self, progress: Progress | None) -> None:
        self.progress = progress
        self.error: BaseException | None = None


# A signal can strike between the entry of a callback and its try: cffi hands that exception here.
_stray = threading.local()


def _keep_stray(kind: Any, error: BaseException, trace: Any) -> None:
    _stray.error = error


@ffi.def_extern(name="glm52_py_progress", error=False, onerror=_keep_stray)
def _on_progress(user: Any, position: int) -> bool:
    call: _Call = ffi.from_handle(user)
    try:
        answer = call.progress(position) if call.progress is not None else None
        return answer is None or bool(answer)
    except BaseException as error:  # kept, and raised again behind the native call
        call.error = error
        return False


@ffi.def_extern(name="glm52_py_observer", onerror=_keep_stray)
def _on_observation(user: Any, seen: Any) -> None:
    engine: NativeEngine = ffi.from_handle(user)
    try:
        engine.show(seen)
    except BaseException as error:
        _stray.error = error


class NativeEngine:
    """An open glm52_engine.

    Calls from several threads wait for each other; a call from inside a callback of the same engine raises Error.
    close() ends all use at once, its memory goes when the last view of it does."""

    def __init__(self, model: NativeModel, options: dict[str, Any]) -> None:
        backend = ffi.new("char[]", options.pop("backend").encode("utf-8"))
        native_options = ffi.new("glm52_engine_options *", {**options, "backend": backend})
        engine_out = ffi.new("glm52_engine **")
        _check(lib.glm52_engine_open(model.pointer, native_options, engine_out))
        self._owner: _Owner | None = _Owner(engine_out[0], lib.glm52_engine_close)
        self._lock = threading.Lock()
        self._inside: int | None = None  # the thread that runs a call
        self._observer: Callable[[Observation], Any] | None = None
        self._self = ffi.new_handle(self)
        self._vocab = lib.glm52_model_shape(model.pointer).vocab
        self._hidden = lib.glm52_model_shape(model.pointer).hidden

    @property
    def closed(self) -> bool:
        return self._owner is None

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """The pointer, for one call at a time."""
        if self._inside == threading.get_ident():
            raise errors.Error("an engine was called from inside its own callback")
        with self._lock:
            if self._owner is None:
                raise errors.Error("the engine is closed")
            self._inside = threading.get_ident()
            try:
                yield self._owner.pointer
            finally:
                self._inside = None

    def close(self) -> None:
        if self._owner is None:
            return
        with self._running():
            self._owner = None

    def prefill(self, ids: list[int], progress: Progress | None) -> int:
        """Tokens completed: fewer than given if progress said stop."""
        tokens = _ids(ids)
        completed = ffi.new("uint32_t *")
        call = _Call(progress)
        with self._running() as engine, self._watched(call) as user:
            status = lib.glm52_prefill(engine, tokens, len(ids), lib.glm52_py_progress, user, completed)
            self._raise_from(call, status)
        return completed[0]

    def eval(self, token: int) -> None:
        tokens = _ids([token])
        call = _Call(None)
        with self._running() as engine, self._watched(call) as user:
            self._raise_from(call, lib.glm52_eval(engine, tokens[0], lib.glm52_py_progress, user), True)

    @contextmanager
    def _watched(self, call: _Call) -> Iterator[Any]:
        _stray.error = None
        yield ffi.new_handle(call)

    def _raise_from(self, call: _Call, status: int, cancelled_is_error: bool = False) -> None:
        error = call.error or _stray.error
        _stray.error = call.error = None
        if error is not None:
            raise error
        if status != lib.GLM52_ERR_CANCELLED or cancelled_is_error:
            _check(status)

    def logits(self) -> np.ndarray:
        """float32 [vocab], read-only, the engine's own memory: the next call changes it."""
        with self._running() as engine:
            pointer = lib.glm52_logits(engine)
            if pointer == ffi.NULL:
                raise errors.Error(
                    f"no logits at position {lib.glm52_position(engine)}: none before the first token or behind a rewind"
                )
            return np.asarray(_Memory(self._owner, pointer, self._vocab, "<f4"))

    def position(self) -> int:
        with self._running() as engine:
            return lib.glm52_position(engine)

    def context(self) -> int:
        with self._running() as engine:
            return lib.glm52_context(engine)

    def tokens(self) -> list[int]:
        with self._running() as engine:
            return ffi.unpack(lib.glm52_tokens(engine), lib.glm52_position(engine))

    def rewind(self, position: int) -> None:
        if not 0 <= position < 2**32:
            raise errors.ContextError(f"rewind to {position}: not a position")
        with self._running() as engine:
            _check(lib.glm52_rewind(engine, position))

    def align(self, ids: list[int]) -> int:
        tokens, kept = _ids(ids), ffi.new("uint32_t *")
        with self._running() as engine:
            _check(lib.glm52_align(engine, tokens, len(ids), kept))
        return kept[0]

    def observe(self, callback: Callable[[Observation], Any] | None) -> None:
        with self._running() as engine:
            function = ffi.NULL if callback is None else lib.glm52_py_observer
            _check(lib.glm52_observe(engine, function, self._self))
            self._observer = callback

    def show(self, seen: Any) -> None:
        """Hands what a layer decided to the observer."""
        rows, used, stride = seen.row_count, seen.experts_used, seen.selected_stride
        selected = _copy(seen.selected, rows * stride, "<i4").reshape(rows, stride)
        assert self._observer is not None
        self._observer(
            Observation(
                seen.layer,
                seen.position,
                _copy(seen.route_ids, rows * used, "<i4").reshape(rows, used),
                _copy(seen.route_weights, rows * used, "<f4").reshape(rows, used),
                [selected[r, : min(seen.position + r + 1, stride)] for r in range(rows)],
                _copy(seen.hidden, rows * self._hidden, "<f4").reshape(rows, -1),
            )
        )

    def backend(self) -> str:
        with self._running() as engine:
            return _text(lib.glm52_engine_backend(engine))

    def plan(self) -> dict[str, int]:
        with self._running() as engine:
            return _fields(lib.glm52_engine_plan_used(engine), "glm52_plan")

    def stats(self) -> dict[str, int]:
        with self._running() as engine:
            stats = ffi.new("glm52_stats *")
            lib.glm52_engine_stats(engine, stats)
            return _fields(stats, "glm52_stats")


def _fields(struct: Any, type_name: str) -> dict[str, int]:
    return {name: getattr(struct, name) for name, _ in ffi.typeof(type_name).fields}


def _ids(ids: list[int]) -> Any:
    """Token ids as C's int32, refusing what does not fit; the vocabulary is checked behind the border."""
    for index, token in enumerate(ids):
        if not -(2**31) <= token < 2**31:
            raise errors.ArgumentError(f"token {token} at index {index} is outside the vocabulary")
    return ffi.new("int32_t[]", ids)
