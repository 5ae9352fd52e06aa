"""What matrices are multiplied with: the binding of glm52_observe_inputs."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .native import NativeEngine, _check, _keep_stray, _stray, ffi, lib


class Inputs(NamedTuple):
    """Rows that a matrix is about to be multiplied with; copies, the caller's own."""

    tensor: str  # name of the matrix
    x: np.ndarray  # float32 [rows, groups, columns]
    experts: np.ndarray | None  # int32 [rows, used]: the experts that each row goes to; None: no routed tensor
    expert_count: int


InputsCallback = Callable[[Inputs], Any]


def _copy_strided(inputs: Any) -> np.ndarray:
    rows, groups, columns = inputs.row_count, inputs.group_count, inputs.column_count
    count = (rows - 1) * inputs.row_stride + (groups - 1) * inputs.group_stride + columns
    flat = np.frombuffer(ffi.buffer(inputs.x, count * 4), "<f4")
    strides = (4 * inputs.row_stride, 4 * inputs.group_stride, 4)
    return np.lib.stride_tricks.as_strided(flat, (rows, groups, columns), strides, writeable=False).copy()


@ffi.def_extern(name="glm52_py_inputs", onerror=_keep_stray)
def _on_inputs(user: Any, inputs: Any) -> None:
    if getattr(_stray, "error", None) is not None:
        return  # an earlier call's exception waits to be raised
    try:
        callback: InputsCallback = ffi.from_handle(user)
        experts = None
        if inputs.experts != ffi.NULL:
            count = inputs.row_count * inputs.used_count
            experts = np.frombuffer(ffi.buffer(inputs.experts, count * 4), "<i4").reshape(inputs.row_count, -1).copy()
        name = ffi.string(inputs.tensor).decode("utf-8", "surrogateescape")
        callback(Inputs(name, _copy_strided(inputs), experts, inputs.expert_count))
    except BaseException as error:
        _stray.error = error


def observe_inputs(engine: NativeEngine, callback: InputsCallback | None) -> None:
    """As Engine.observe_inputs."""
    with engine._running() as pointer:
        if callback is None:
            _check(lib.glm52_observe_inputs(pointer, ffi.NULL, ffi.NULL))
            engine.inputs_watch = None
            return
        handle = ffi.new_handle(callback)
        _check(lib.glm52_observe_inputs(pointer, lib.glm52_py_inputs, handle))
        engine.inputs_watch = handle
