"""Back ends that this library has, whether they open here, and how fast the CPU's multiplies each block format."""

import time

import numpy as np

from .errors import Error
from .native import _check, _text, ffi, lib


def names() -> list[str]:
    """Of every back end in this build: "cpu" first."""
    found: list[str] = []
    while (name := lib.glm52_backend_name(len(found))) != ffi.NULL:
        found.append(_text(name))
    return found


def try_open(name: str) -> str | None:
    """None if the back end opens on this machine, else why not."""
    handle = ffi.new("glm52_backend **")
    try:
        _check(lib.glm52_backend_open(name.encode(), 1, handle))
    except Error as error:
        return str(error)
    lib.glm52_backend_close(handle[0])
    return None


def type_numbers() -> dict[str, int]:
    """ggml's number of each block format that is read, by name."""
    info, found = ffi.new("glm52_quant_info *"), {}
    for index in range(lib.glm52_quant_count()):
        _check(lib.glm52_quant_describe(index, info))
        found[_text(info.name)] = info.type
    return found


def weights_per_second(type_number: int, rows: np.ndarray, columns: int, seconds: float = 0.03) -> float:
    """Weights that one thread multiplies with one row of activations per second of processor time, decoding's case: the
    best of several tries. rows: uint8 [count, bytes of a row], of columns values each."""
    count = rows.shape[0]
    handle = ffi.new("glm52_backend **")
    _check(lib.glm52_backend_open(b"cpu", 1, handle))
    try:
        args = ffi.new("glm52_matmul_args *", {
            "row_count": 1, "in_count": columns, "out_count": count, "group_count": 1, "type": type_number, "exact": 0,
            "x_row_stride": columns, "x_group_stride": columns, "out_row_stride": count, "out_group_stride": count,
        })  # fmt: skip
        x = np.random.default_rng(1).normal(size=columns).astype(np.float32)
        out = np.empty(count, np.float32)
        pointers = [ffi.cast("void *", array.ctypes.data) for array in (out, x, rows)]
        best, end = float("inf"), time.monotonic() + seconds
        while best == float("inf") or time.monotonic() < end:
            start = time.process_time_ns()
            _check(lib.glm52_op_matmul(handle[0], args, *pointers))
            best = min(best, max(time.process_time_ns() - start, 1))
    finally:
        lib.glm52_backend_close(handle[0])
    return count * columns / best * 1e9
