"""Small models through the Metal driver, on the fake framework with its kernels run by the simulator.

    logits.py MICRO TINY   with a package on the path whose folder has libglm52_metal.so and libglm52_sim.so

Logits of the Metal backend must have the simulator's bits, since the same kernels run, and be near the CPU's; tokens
chosen greedily must be the CPU's. What Metal itself has to say is in the framework's books: no wrong use, no object
alive at the end.
"""

import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import glm52_rt as rt

# Of the logits' own rms. Float32 sums of up to 2048 products in another order: each layer adds about 1e-6 relative, and
# what attention and experts make of it stays below this; f16 caches add a rounding of 2^-11 where values straddle one.
RMS_MAX = {"f32": 2e-5, "f16": 1e-3}
PROMPT = [1, 17, 33, 250, 7, 91, 64, 5, 130, 77, 18, 201, 9, 44, 3, 160, 99, 12, 240, 66, 31, 8, 150, 2]
FOLDER = Path(rt.__file__).resolve().parent


class Device(ctypes.Structure):
    """struct fm_device of tests/metal/fake/fake_metal.h."""

    _fields_ = [
        ("unified", ctypes.c_bool), ("apple", ctypes.c_bool), ("buffer_max", ctypes.c_size_t),
        ("working_set", ctypes.c_uint64), ("wired_limit_mb", ctypes.c_uint64), ("simd_width", ctypes.c_ulong),
        ("pipeline_threads", ctypes.c_ulong), ("static_threadgroup_bytes", ctypes.c_ulong),
        ("misalign", ctypes.c_size_t), ("address_tag", ctypes.c_uint64), ("delay_us", ctypes.c_uint),
    ]  # fmt: skip


class Framework:
    """The fake framework's books."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(FOLDER / "libglm52_metal.so"))
        self.library.fm_misuses.restype = ctypes.c_char_p
        for name in ("fm_calls", "fm_inject"):
            getattr(self.library, name).argtypes = [ctypes.c_char_p, *([ctypes.c_int] if name == "fm_inject" else [])]
        self.device = Device.in_dll(self.library, "fm_device")

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Nothing was alive before, and nothing is behind; nothing was misused."""
        self.library.fm_reset()
        self.device.address_tag = 0
        yield
        assert self.library.fm_misuses() == b"", self.library.fm_misuses().decode()
        assert self.library.fm_live() == 0, f"{self.library.fm_live()} objects are alive"

    def calls(self, name: str) -> int:
        return int(self.library.fm_calls(name.encode()))


def decode(
    model: rt.Model, backend: str, steps: int = 6, count: int = 24, **options: Any
) -> tuple[np.ndarray, list[int]]:
    """Logits behind count tokens of the prompt and behind each of steps tokens chosen greedily; those tokens."""
    with rt.Engine(model, context=64, backend=backend, threads=2, **options) as engine:
        assert engine.backend == backend
        engine.prefill(PROMPT[:count])
        logits, chosen = [engine.logits.copy()], []
        for _ in range(steps):
            chosen.append(int(np.argmax(logits[-1])))
            engine.eval(chosen[-1])
            logits.append(engine.logits.copy())
    return np.array(logits), chosen


def compare(name: str, model: rt.Model, metal: np.ndarray, chosen: list[int], **options: Any) -> None:
    """Against the simulator bit for bit, against the CPU within RMS_MAX."""
    simulated, _ = decode(model, "sim", **options)
    exact, expected = decode(model, "cpu", **(options | {"quality": True}))
    assert np.array_equal(metal.view(np.uint32), simulated.view(np.uint32)), f"{name}: not the simulator's bits"
    rms = float(np.sqrt(np.mean((metal - exact) ** 2)) / np.sqrt(np.mean(exact**2)))
    bound = RMS_MAX[options.get("kv_type", "f16")]
    print(f"{name:44s} rms {rms:.1e} of the CPU's (at most {bound:.0e}), max {np.abs(metal - exact).max():.1e}")
    assert rms <= bound and chosen == expected, f"{name}: rms {rms}, tokens {chosen} and {expected}"


def plain(model: rt.Model, framework: Framework) -> None:
    """All positions selected, and, behind index_top_k of them, some."""
    assert model.shape.index_top_k < len(PROMPT)
    for chunk, kv_type in ((32, "f32"), (5, "f16"), (1, "f32")):
        with framework.watched():
            metal, chosen = decode(model, "metal", kv_type=kv_type, chunk_rows=chunk)
            dispatches, buffers = framework.calls("dispatch"), framework.calls("command-buffer")
        assert dispatches > 100 and buffers < dispatches
        name = f"batches of {chunk}, {kv_type}: {dispatches} dispatches"
        compare(name, model, metal, chosen, kv_type=kv_type, chunk_rows=chunk)


def older_system(model: rt.Model, framework: Framework) -> None:
    with framework.watched():
        framework.library.fm_inject(b"residency", 0)
        metal, chosen = decode(model, "metal", kv_type="f32")
        used = framework.calls("use-resource")
    assert used > 0
    compare(f"without residency sets: {used} uses", model, metal, chosen, kv_type="f32")


def split_buffers(model: rt.Model, framework: Framework, file: Path) -> None:
    """Buffers too short for the file."""
    with framework.watched():
        framework.device.buffer_max = file.stat().st_size * 3 // 4
        framework.device.delay_us = 200
        metal, chosen = decode(model, "metal", kv_type="f16", steps=1, count=6)
    compare("the file in several buffers", model, metal, chosen, kv_type="f16", steps=1, count=6)


def streaming(model: rt.Model, framework: Framework) -> None:
    """Experts read into slots while commands run; the smallest cache there can be."""
    options: dict[str, Any] = {"kv_type": "f32", "steps": 4, "chunk_rows": 4}
    with framework.watched():
        metal, chosen = decode(model, "metal", streaming=rt.Streaming(cache_experts=2), **options)
    compare("experts streamed", model, metal, chosen, **options)


def failures(model: rt.Model, framework: Framework) -> None:
    """A command buffer that fails, or never ends, is an error of the call that waits, with Metal's words."""
    for name, words in (("command", "injected"), ("hang", "no answer")):
        with framework.watched():
            framework.library.fm_inject(name.encode(), 1)
            try:
                decode(model, "metal", kv_type="f32")
                raise AssertionError(f"{name}: nothing was said")
            except rt.Error as error:
                assert words in str(error), str(error)
                print(f"{name}: {type(error).__name__}: {error}")
            framework.library.fm_reset()


def main(micro_path: str, tiny_path: str) -> None:
    framework = Framework()
    with rt.Model.open(micro_path) as micro, rt.Model.open(tiny_path) as tiny:
        parts: list[Callable[[], None]] = [
            lambda: plain(micro, framework),
            lambda: older_system(micro, framework),
            lambda: split_buffers(tiny, framework, Path(tiny_path)),
            lambda: streaming(micro, framework),
            lambda: failures(micro, framework),
        ]
        for part in parts:
            begun = time.monotonic()
            part()
            print(f"    {time.monotonic() - begun:.1f} s")
    print(f"{len(parts)} passed, 0 failed")


if __name__ == "__main__":
    main(*sys.argv[1:])
