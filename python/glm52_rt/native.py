"""The native library as Python sees it: the only module that touches cffi.

It owns the native objects, turns statuses into exceptions and Python values into C's, and keeps memory alive for as
long as anything looks at it. What users see is in model.py and engine.py.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
POLICIES = tuple(ffi.string(lib.glm52_policy_name(i)).decode() for i in range(lib.GLM52_POLICY_COUNT))
PILOTS = ("off", "measure", "hint", "load")
ADVICE = {"willneed": lib.GLM52_ADVISE_WILLNEED, "dontneed": lib.GLM52_ADVISE_DONTNEED}

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
        self._process = os.getpid()

    def __del__(self) -> None:
        # In a child of fork() there are none of the threads that freeing would wait for.
        if not self.is_foreign():
            self._free(self.pointer)

    def is_foreign(self) -> bool:
        """Made by another process, of which this one is a fork."""
        return os.getpid() != self._process


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
    stride: int = 0  # 0: one run of bytes; else bytes from one expert's slice to the next one's (a colocated file)


class NativeModel:
    """An open glm52_model. Closing twice is fine; any other use of a closed one raises Error."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if b"\0" in os.fsencode(path):
            raise errors.ArgumentError(f"{path!r}: a path with a zero byte")
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
            place = (info.shard, info.offset, info.stride)
            found.append(Tensor(_text(info.name), _text(info.type_name), shape, info.bytes, *place))
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
        name = key.encode("utf-8", "replace") if isinstance(key, str) else b""
        if not name or b"\0" in name:  # C would take the part before the zero
            raise KeyError(key)
        value, found = ffi.new("glm52_value *"), ffi.new("bool *")
        _check(lib.glm52_model_find_key(self.pointer, name, found, value))
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
    route_margins: np.ndarray  # float32 [rows], how narrow the choice was (glm52.h); infinite on dense layers
    selected: list[np.ndarray]  # per row int32 [min(position + row + 1, index_top_k)], ascending
    select_margins: np.ndarray  # float32 [rows], of the selection; infinite where every position was taken
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


# ---- streaming ----


@dataclass
class StreamTest:
    """What tests may do to a stream. read(file, bytes, offset) is called on reading threads and returns None to have
    the bytes read, a smaller number to have only so many read, 0 for the end of the file, or a negative errno."""

    read: Callable[[int, int, int], int | None] | None = None
    poison: bool = False
    guard: bool = False
    fail_allocation: int = 0


@ffi.def_extern(name="glm52_py_read", error=-1, onerror=_keep_stray)
def _on_read(user: Any, file: int, buffer: Any, size: int, offset: int, error_out: Any) -> int:
    test: StreamTest = ffi.from_handle(user)
    answer = test.read(file, size, offset) if test.read is not None else None
    if answer is not None and answer < 0:
        error_out[0] = -answer
        return -1
    wanted = size if answer is None else answer
    return os.preadv(file, [ffi.buffer(buffer, wanted)], offset) if wanted > 0 else 0


def _stream_options(options: dict[str, Any]) -> tuple[Any, list[Any]]:
    """A glm52_stream_options and what has to live as long as it is used."""
    fields = dict(options)
    kept: list[Any] = []
    for name in ("pins", "preload"):
        ids = ffi.new("glm52_expert_id[]", fields.pop(name))
        fields[name], fields["pin_count" if name == "pins" else "preload_count"] = ids, len(ids)
        kept.append(ids)
    for name in ("mirror_path", "usage_path"):
        path = fields.pop(name)
        if path is not None:
            fields[name] = ffi.new("char[]", os.fsencode(path))
            kept.append(fields[name])
    test: StreamTest | None = fields.pop("test")
    if test is not None:
        handle = ffi.new_handle(test)
        read = lib.glm52_py_read if test.read is not None else ffi.NULL
        fields["test"] = ffi.new(
            "glm52_stream_test *", [read, handle, int(test.poison), int(test.guard), test.fail_allocation]
        )
        kept += [handle, fields["test"]]
    return ffi.new("glm52_stream_options *", fields), kept


def _struct(struct: Any) -> Any:
    """A C struct of numbers and structs as dicts."""
    if not isinstance(struct, ffi.CData):
        return struct
    return {name: _struct(getattr(struct, name)) for name, _ in ffi.typeof(struct).fields}


def resident_spans(model: "NativeModel", shard: int, full_layers: int) -> tuple[list[tuple[int, int]], int]:
    """(offset, bytes) of what stays mapped of a shard, and the bytes of its largest tensor."""
    count, largest = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    _check(lib.glm52_resident_spans(model.pointer, shard, full_layers, ffi.NULL, 0, count, largest))
    spans = ffi.new("glm52_span[]", count[0])
    _check(lib.glm52_resident_spans(model.pointer, shard, full_layers, spans, count[0], count, largest))
    return [(span.offset, span.bytes) for span in spans], largest[0]


def layer_spans(model: "NativeModel", shard: int, layer: int) -> list[tuple[int, int]]:
    """(offset, bytes) of what a shard holds of a block."""
    count = ffi.new("uint64_t *")
    spans = ffi.new("glm52_span[]", 64)
    _check(lib.glm52_layer_spans(model.pointer, shard, layer, spans, 64, count))
    return [(spans[i].offset, spans[i].bytes) for i in range(count[0])]


def stream_plan(model: "NativeModel", options: dict[str, Any], chunk_rows: int, left_bytes: int) -> dict[str, Any]:
    """glm52_stream_plan as a dict; classes is the list of size classes that are there."""
    native_options, kept = _stream_options(options)
    plan = ffi.new("glm52_stream_plan *")
    _check(lib.glm52_stream_plan_make(model.pointer, native_options, chunk_rows, left_bytes, plan))
    del kept
    fields = {name: getattr(plan, name) for name, _ in ffi.typeof("glm52_stream_plan").fields if name != "classes"}
    return {**fields, "classes": [_fields(plan.classes[i], "glm52_size_class") for i in range(plan.class_count)]}


def budget(layer_bytes: list[int], **numbers: int) -> dict[str, int]:
    """glm52_budget_make: the expert cache by the published rules."""
    layers = ffi.new("uint64_t[]", layer_bytes)
    args = ffi.new("glm52_budget_args *", {**numbers, "sparse_count": len(layer_bytes), "layer_bytes": layers})
    made = ffi.new("glm52_budget *")
    _check(lib.glm52_budget_make(args, made))
    return _fields(made, "glm52_budget")


def classes_fill(sizes: list[int], layers: list[int], experts: int, used: int, cache_bytes: int) -> list[int]:
    """Slots of each size of expert in a cache of so many bytes (glm52_classes_fill)."""
    classes = ffi.new("glm52_size_class[]", [(size, size, count, 0) for size, count in zip(sizes, layers, strict=True)])
    _check(lib.glm52_classes_fill(classes, len(sizes), experts, used, cache_bytes, 0))
    return [c.slots for c in classes]


def memory_usable(memory_bytes: int, working_set: int, wired_limit: int) -> int:
    usable = ffi.new("uint64_t *")
    _check(lib.glm52_memory_usable(memory_bytes, working_set, wired_limit, usable))
    return usable[0]


def admission(**parts: int) -> int:
    """The sum of the parts of glm52_admission."""
    made = ffi.new("glm52_admission *", parts)
    _check(lib.glm52_admission_total(made))
    return made.total


class NativeCache:
    """The books of an expert cache without memory for experts: for simulation and tests."""

    def __init__(
        self,
        class_of: list[int],
        experts: int,
        slots: list[int],
        policy: str = "lru",
        pins: list[tuple[int, int]] | None = None,
    ) -> None:
        classes = ffi.new("uint8_t[]", class_of)
        counts = ffi.new("uint32_t[]", slots)
        pinned = ffi.new("glm52_expert_id[]", pins or [])
        args = ffi.new(
            "glm52_cache_args *",
            [len(class_of), experts, classes, len(slots), counts, POLICIES.index(policy), pinned, len(pinned)],
        )
        cache = ffi.new("glm52_cache **")
        _check(lib.glm52_cache_open(args, cache))
        self._owner = _Owner(cache[0], lib.glm52_cache_close)
        self._loads = ffi.new("glm52_load[]", max(1, sum(slots)))
        self._count = ffi.new("uint32_t *")

    def _given(self) -> list[tuple[int, int, int, int]]:
        loads = (self._loads[i] for i in range(self._count[0]))
        return [(load.layer, load.expert, load.slot, load.generation) for load in loads]

    def begin(self, layer: int, ids: list[int]) -> list[tuple[int, int, int, int]]:
        """Loads to be done: (layer, expert, slot, generation)."""
        selected = ffi.new("int32_t[]", ids)
        _check(lib.glm52_cache_begin(self._owner.pointer, layer, selected, len(ids), self._loads, self._count))
        return self._given()

    def segment(self) -> list[tuple[int, int]]:
        """(expert, slot) of the segment in use; empty if no selection is under way."""
        experts, slots = ffi.new("uint32_t **"), ffi.new("uint32_t **")
        _check(lib.glm52_cache_segment(self._owner.pointer, experts, slots, self._count))
        return [(experts[0][i], slots[0][i]) for i in range(self._count[0])]

    def loaded(self, slot: int, generation: int) -> None:
        _check(lib.glm52_cache_loaded(self._owner.pointer, slot, generation))

    def advance(self) -> list[tuple[int, int, int, int]]:
        _check(lib.glm52_cache_advance(self._owner.pointer, self._loads, self._count))
        return self._given()

    def abort(self) -> None:
        lib.glm52_cache_abort(self._owner.pointer)

    def tick(self, rows: int) -> None:
        lib.glm52_cache_tick(self._owner.pointer, rows)

    def turn(self, repin: bool) -> None:
        lib.glm52_cache_turn(self._owner.pointer, repin)

    def preload(self, layer: int, expert: int, heat: int) -> tuple[int, int, int, int] | None:
        given = ffi.new("bool *")
        _check(lib.glm52_cache_preload(self._owner.pointer, (layer, expert), heat, given, self._loads))
        self._count[0] = int(given[0])
        return self._given()[0] if given[0] else None

    def ahead(self, layer: int, expert: int) -> tuple[int, int, int, int] | None:
        given = ffi.new("bool *")
        _check(lib.glm52_cache_ahead(self._owner.pointer, (layer, expert), given, self._loads))
        self._count[0] = int(given[0])
        return self._given()[0] if given[0] else None

    def dropped(self, slot: int, generation: int) -> None:
        _check(lib.glm52_cache_dropped(self._owner.pointer, slot, generation))

    def find(self, layer: int, expert: int) -> int:
        return lib.glm52_cache_find(self._owner.pointer, layer, expert)

    def stats(self) -> dict[str, int]:
        stats = ffi.new("glm52_cache_stats *")
        lib.glm52_cache_stats_get(self._owner.pointer, stats)
        return _fields(stats, "glm52_cache_stats")

    def select(self, layer: int, ids: list[int]) -> int:
        """A whole selection, every load done as soon as it is asked for; returns how many there were."""
        loads = self.begin(layer, ids)
        count = 0
        while True:
            count += len(loads)
            for _, _, slot, generation in loads:
                self.loaded(slot, generation)
            if not self.segment():
                return count
            loads = self.advance()


class NativeEngine:
    """An open glm52_engine.

    Calls from several threads wait for each other; a call from inside a callback of the same engine raises Error.
    close() ends all use at once, its memory goes when the last view of it does."""

    def __init__(
        self, model: NativeModel, options: dict[str, Any], streaming: dict[str, Any] | None = None
    ) -> None:
        native_options, self._kept = _engine_options(options, streaming)
        engine_out = ffi.new("glm52_engine **")
        _check(lib.glm52_engine_open(model.pointer, native_options, engine_out))
        self._layers = lib.glm52_model_shape(model.pointer).layers
        self._dropped: list[Any] = []  # sessions that nobody holds any more; freed by the next call or with the engine
        self._owner: _Owner | None = _Owner(engine_out[0], partial(_close_engine, self._dropped))
        self._lock = threading.Lock()
        self._inside: int | None = None  # the thread that runs a call
        self._observer: Callable[[Observation], Any] | None = None
        self.logits_watch: Any = None  # native_logits.py
        self.inputs_watch: Any = None  # native_inputs.py
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
            if self._owner.is_foreign():
                raise errors.Error("the engine belongs to the process that this one was forked from: open a new one")
            self._inside = threading.get_ident()
            _close_sessions(self._dropped)
            try:
                yield self._owner.pointer
            finally:
                self._inside = None

    def close(self) -> None:
        if self._owner is None or self._owner.is_foreign():
            self._owner = None
            return
        with self._running() as engine:
            status = lib.glm52_engine_flush_usage(engine)
            self._owner = None
        _check(status)

    def prefill(self, ids: list[int], progress: Progress | None) -> int:
        """Tokens completed: fewer than given if progress said stop."""
        tokens = _ids(ids)
        completed = ffi.new("uint32_t *")
        call = _Call(progress)
        with self._running() as engine, self._watched(call) as user:
            status = lib.glm52_prefill(engine, tokens, len(ids), lib.glm52_py_progress, user, completed)
            self._raise_from(call, status)
        return completed[0]

    def eval(self, token: int, ahead: int) -> None:
        tokens = _ids([token])
        call = _Call(None)
        with self._running() as engine, self._watched(call) as user:
            status = lib.glm52_eval_ahead(engine, tokens[0], ahead, lib.glm52_py_progress, user)
            self._raise_from(call, status, True)

    def speculate(self, token: int, count_max: int, progress: Progress | None) -> list[int]:
        """The tokens fed: none if progress said stop."""
        tokens = _ids([token])
        found, count = ffi.new("int32_t[]", max(1, count_max)), ffi.new("uint32_t *")
        call = _Call(progress)
        with self._running() as engine, self._watched(call) as user:
            status = lib.glm52_speculate(engine, tokens[0], count_max, lib.glm52_py_progress, user, found, count)
            self._raise_from(call, status)
        return ffi.unpack(found, count[0]) if count[0] else []

    def ahead(self) -> list[int]:
        count = ffi.new("uint32_t *")
        with self._running() as engine:
            tokens = lib.glm52_ahead_tokens(engine, count)
            return ffi.unpack(tokens, count[0]) if count[0] else []

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
                    f"no logits at position {lib.glm52_position(engine)}: none before a first token or behind a rewind"
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

    def open_session(self) -> "NativeSession":
        with self._running() as engine:
            session = ffi.new("glm52_session **")
            _check(lib.glm52_session_open(engine, session))
            return NativeSession(session[0], self._owner, self._dropped)

    def swap(self, session: "NativeSession") -> None:
        with self._running() as engine:
            _check(lib.glm52_session_swap(engine, session.pointer))

    def copy_to(self, session: "NativeSession") -> None:
        with self._running() as engine:
            _check(lib.glm52_session_copy(engine, session.pointer))

    @contextmanager
    def exclusive(self) -> Iterator["Spans"]:
        """The conversation's bytes, with nobody else at the engine; calls of the engine itself are refused inside."""
        with self._running() as engine:
            yield Spans(engine, self._owner, self._dropped, self._vocab)

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
                _copy(seen.route_margins, rows, "<f4"),
                [selected[r, : min(seen.position + r + 1, stride)] for r in range(rows)],
                _copy(seen.select_margins, rows, "<f4"),
                _copy(seen.hidden, rows * self._hidden, "<f4").reshape(rows, -1),
            )
        )

    def backend(self) -> str:
        with self._running() as engine:
            return _text(lib.glm52_engine_backend(engine))

    def plan(self) -> dict[str, int]:
        with self._running() as engine:
            return _fields(lib.glm52_engine_plan_used(engine), "glm52_plan")

    def stream_stats(self) -> tuple[dict[str, Any], list[dict[str, int]]] | None:
        """Counters of streaming, and of each layer; None if the engine does not stream."""
        with self._running() as engine:
            stats, layer = ffi.new("glm52_stream_stats *"), ffi.new("glm52_stream_layer_stats *")
            if lib.glm52_engine_stream_stats(engine, stats) == lib.GLM52_ERR_UNSUPPORTED:
                return None
            layers = []
            for i in range(self._layers):
                _check(lib.glm52_engine_stream_layer(engine, i, layer))
                layers.append(_struct(layer[0]))
            return _struct(stats[0]), layers

    def shrink_cache(self, cache_bytes: int) -> int:
        now = ffi.new("uint64_t *")
        with self._running() as engine:
            _check(lib.glm52_engine_shrink_cache(engine, cache_bytes, now))
        return now[0]

    def stream_warnings(self) -> list[str]:
        with self._running() as engine:
            return _text(lib.glm52_engine_stream_warnings(engine)).splitlines()

    def stats(self) -> dict[str, int]:
        with self._running() as engine:
            stats = ffi.new("glm52_stats *")
            lib.glm52_engine_stats(engine, stats)
            return _fields(stats, "glm52_stats")


def _close_sessions(dropped: list[Any]) -> None:
    while dropped:
        lib.glm52_session_close(dropped.pop())


def _close_engine(dropped: list[Any], engine: Any) -> None:
    _close_sessions(dropped)
    lib.glm52_engine_close(engine)


class NativeSession:
    """An open glm52_session. It keeps its engine's memory; its own goes with the engine's next call: the engine may
    be at work on another thread when the last reference goes."""

    def __init__(self, pointer: Any, engine_owner: "_Owner | None", dropped: list[Any]) -> None:
        self._pointer, self._engine_owner, self._dropped = pointer, engine_owner, dropped

    @property
    def pointer(self) -> Any:
        if self._pointer is None:
            raise errors.Error("the conversation is closed")
        return self._pointer

    def tokens(self) -> list[int]:
        return ffi.unpack(lib.glm52_session_tokens(self.pointer), lib.glm52_session_position(self.pointer))

    def close(self) -> None:
        if self._pointer is not None:
            self._dropped.append(self._pointer)
            self._pointer = None

    def __del__(self) -> None:
        self.close()


class Spans:
    """What a conversation is made of, as bytes. Lives inside NativeEngine.exclusive alone."""

    def __init__(self, engine: Any, owner: "_Owner | None", dropped: list[Any], vocab: int) -> None:
        self._engine, self._owner, self._dropped, self._vocab = engine, owner, dropped, vocab

    @property
    def context(self) -> int:
        return lib.glm52_context(self._engine)

    @property
    def position(self) -> int:
        return lib.glm52_position(self._engine)

    def tokens(self) -> bytes:
        """int32 [position]."""
        return bytes(ffi.buffer(lib.glm52_tokens(self._engine), 4 * self.position)) if self.position else b""

    def logits(self) -> bytes | None:
        """float32 [vocab], if there are any."""
        pointer = lib.glm52_logits(self._engine)
        return None if pointer == ffi.NULL else bytes(ffi.buffer(pointer, 4 * self._vocab))

    def row_bytes(self, rows: int, layer: int) -> int:
        size = ffi.new("uint64_t *")
        _check(lib.glm52_rows_bytes(self._engine, rows, layer, size))
        return size[0]

    def read_rows(self, rows: int, layer: int, first: int, out: memoryview) -> None:
        """Fills out, a whole number of rows."""
        count = len(out) // self.row_bytes(rows, layer)
        _check(lib.glm52_rows_read(self._engine, rows, layer, first, count, ffi.from_buffer(out)))

    def open_session(self) -> NativeSession:
        session = ffi.new("glm52_session **")
        _check(lib.glm52_session_open(self._engine, session))
        return NativeSession(session[0], self._owner, self._dropped)

    def write_rows(self, session: NativeSession, rows: int, layer: int, first: int, data: memoryview) -> None:
        count = len(data) // self.row_bytes(rows, layer)
        _check(lib.glm52_session_rows_write(session.pointer, rows, layer, first, count, ffi.from_buffer(data)))

    def mtp_complete(self) -> bool:
        return lib.glm52_mtp_complete(self._engine)

    def restore(self, session: NativeSession, tokens: bytes, logits: bytes | None, has_mtp: bool) -> None:
        ids = ffi.new("int32_t[]", max(1, len(tokens) // 4))
        ffi.memmove(ids, tokens, len(tokens))
        values = ffi.NULL
        if logits is not None:
            values = ffi.new("float[]", len(logits) // 4)
            ffi.memmove(values, logits, len(logits))
        _check(lib.glm52_session_restore(session.pointer, ids, len(tokens) // 4, values, has_mtp))

    def swap(self, session: NativeSession) -> None:
        _check(lib.glm52_session_swap(self._engine, session.pointer))


def _engine_options(options: dict[str, Any], streaming: dict[str, Any] | None) -> tuple[Any, list[Any]]:
    """A glm52_engine_options and what has to live as long as it, or the engine's reading hook, is used."""
    fields = dict(options)
    fields["backend"] = ffi.new("char[]", fields["backend"].encode("utf-8"))
    kept = [fields["backend"]]
    if streaming is not None:
        fields["streaming"], more = _stream_options(streaming)
        kept += [fields["streaming"], *more]
    return ffi.new("glm52_engine_options *", fields), kept


def engine_plan(
    model: NativeModel, options: dict[str, Any], streaming: dict[str, Any] | None = None
) -> dict[str, int]:
    """What an engine with these options would allocate."""
    native_options, kept = _engine_options(options, streaming)
    plan = ffi.new("glm52_plan *")
    _check(lib.glm52_engine_plan(model.pointer, native_options, plan))
    del kept
    return _fields(plan, "glm52_plan")


def _fields(struct: Any, type_name: str) -> dict[str, int]:
    return {name: getattr(struct, name) for name, _ in ffi.typeof(type_name).fields}


def _ids(ids: list[int]) -> Any:
    """Token ids as C's int32, refusing what does not fit; the vocabulary is checked behind the border."""
    for index, token in enumerate(ids):
        if not -(2**31) <= token < 2**31:
            raise errors.ArgumentError(f"token {token} at index {index} is outside the vocabulary")
    return ffi.new("int32_t[]", ids)
