"""Operations on a GPU backend with numpy arrays: what the tests of kernels share.

Each operand of a call lies in device memory of its own, exactly as long as the array, so that the simulator that
looks at every access (simcheck) sees one beyond its end. Arrays that share memory on the host share it there."""

import ctypes
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from oplib import Expert, OpError, Ops, check, ffi, lib, stride

import glm52_rt._native

# Where the extension is, which looks for its drivers beside it.
FOLDER = Path(glm52_rt._native.__file__).parent


def backends() -> list[str]:
    """Names of the backends that are there."""
    names, index = [], 0
    while (name := lib.glm52_backend_name(index)) != ffi.NULL:
        names.append(ffi.string(name).decode())
        index += 1
    return names


def simulator(name: str) -> ctypes.CDLL:
    """The library of "sim" or "simcheck"."""
    library = ctypes.CDLL(str(FOLDER / f"libglm52_{name}.so"))
    library.glm52_sim_schedule.argtypes = [ctypes.c_uint64, ctypes.c_uint32]
    library.glm52_sim_dispatches.restype = ctypes.c_uint64
    return library


def named(name: str, message: str) -> str:
    """A message of simcheck's with its places in the library as files and lines."""

    def line(match: re.Match[str]) -> str:
        command = ["addr2line", "-Cpe", str(FOLDER / f"libglm52_{name}.so"), match[0][1:]]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() or match[0]
        except (OSError, subprocess.CalledProcessError):
            return match[0]

    return re.sub(r"\+0x[0-9a-f]+", line, message)


def extent(array: np.ndarray) -> tuple[int, int]:
    """First byte of an array and the one behind its last."""
    begin = end = array.ctypes.data
    for size, step in zip(array.shape, array.strides):
        end += (size - 1) * step
    return begin, end + array.itemsize


class GpuOps(Ops):
    """As Ops; name is that of a GPU backend. schedule: a seed for the simulator's order of threads, 0 in order."""

    def __init__(self, name: str, schedule: int = 0, yield_ppm: int = 0) -> None:
        super().__init__(1, name)
        self.name = name
        self._schedule = (schedule, yield_ppm)
        self._regions: list[tuple[int, int, Any]] = []

    def _place(self, arrays: Sequence[np.ndarray]) -> None:
        """Gives arrays device memory; those that overlap share a piece."""
        merged: list[list[int]] = []
        for begin, end in sorted(extent(array) for array in arrays if array.size):
            if merged and begin < merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([begin, end])
        for begin, end in merged:
            address = ffi.new("void **")
            check(lib.glm52_backend_allocate(self._backend, end - begin, address))
            host = ffi.cast("void *", begin)
            self._regions.append((begin, end, address[0]))
            check(lib.glm52_backend_write(self._backend, address[0], host, end - begin))

    def _address(self, array: np.ndarray) -> Any:
        begin = array.ctypes.data
        for first, end, device in self._regions:
            if first <= begin < end:
                return ffi.cast("void *", int(ffi.cast("uintptr_t", device)) + begin - first)
        raise AssertionError("an array that was not placed")

    def run(self, name: str, numbers: dict[str, Any], *operands: Any, beside: Sequence[np.ndarray] = ()) -> None:
        """beside: arrays that a table among the operands points into; table(self._address) makes it."""
        arrays = [x for x in operands if isinstance(x, np.ndarray)]
        if self.name.startswith("sim"):
            simulator(self.name).glm52_sim_schedule(*self._schedule)
        try:
            self._place([*arrays, *beside])
            placed = [
                self._address(x) if isinstance(x, np.ndarray) else x(self._address) if callable(x) else x
                for x in operands
            ]
            args = ffi.new(f"glm52_{name}_args *", numbers)
            pointers = [ffi.NULL if x is None else x for x in placed]
            check(getattr(lib, f"glm52_op_{name}")(self._backend, args, *pointers))
            for begin, end, device in self._regions:
                check(lib.glm52_backend_read(self._backend, ffi.cast("void *", begin), device, end - begin))
        except OpError as error:
            raise OpError(error.status, named(self.name, str(error))) from None
        finally:
            for _, _, device in self._regions:
                lib.glm52_backend_release(self._backend, device)
            self._regions = []

    def moe(
        self, x: np.ndarray, ids: np.ndarray, weights: np.ndarray, experts: Sequence[Expert | None],
        kinds: tuple[int, int, int], ff_count: int, exact: bool, out: np.ndarray | None = None,
    ) -> np.ndarray:
        out = np.zeros(x.shape, np.float32) if out is None else out
        table = ffi.new("glm52_expert[]", len(experts))

        def filled(address: Any) -> Any:
            for place, expert in zip(table, experts):
                if expert is not None:
                    place.gate, place.up, place.down = (address(m) for m in expert)
            return table

        numbers = {
            "row_count": len(x), "expert_count": len(experts), "used_count": ids.shape[1], "in_count": x.shape[1],
            "ff_count": ff_count, "gate_type": kinds[0], "up_type": kinds[1], "down_type": kinds[2], "exact": exact,
            "x_stride": stride(x, 0), "out_stride": stride(out, 0),
        }
        matrices = [m for expert in experts if expert is not None for m in expert]
        self.run("moe", numbers, out, x, ids, weights, filled, beside=matrices)
        return out
