"""What there is to know about the machine, a file's disk and the page cache: for bench and doctor. Linux tells most of
it, macOS some; what is not known is None."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import resource
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .model import Model

_PAGE = mmap.PAGESIZE
_WINDOW = 1 << 30  # of a file that is asked about at once
_FLAGS = ("avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512_vnni", "avx512_vbmi", "avx512_bitalg", "avx_vnni",
          "asimd", "asimddp", "i8mm", "sve")  # fmt: skip
_CGROUPS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def processor() -> dict[str, Any]:
    """Name, processors of the machine and of this process, and the instruction sets that matter here."""
    name, flags = platform.processor() or platform.machine(), []
    for line in (_text("/proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            name = value.strip()
        if key.strip() in ("flags", "Features"):
            flags = value.split()
            break
    return {
        "name": name, "machine": platform.machine(), "processors": os.cpu_count() or 1, "usable": usable_processors(),
        "sets": [flag for flag in _FLAGS if flag in flags],
    }  # fmt: skip


def usable_processors() -> int:
    """Processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> dict[str, int | None]:
    """Bytes: of the machine, that are available now, that the control group allows, and that may be locked (-1: any
    number)."""
    found: dict[str, int | None] = {"physical": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")}
    found["available"] = found["cgroup_limit"] = None
    for line in (_text("/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            found["available"] = int(line.split()[1]) * 1024
    for path in _CGROUPS:
        text = _text(path)
        if text is not None and text.isdecimal() and int(text) < found["physical"]:
            found["cgroup_limit"] = int(text)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found["memlock"] = -1 if soft == resource.RLIM_INFINITY else soft
    return found


def huge_pages() -> str | None:
    """How the system makes transparent huge pages: always, madvise or never."""
    text = _text("/sys/kernel/mm/transparent_hugepage/enabled")
    return None if text is None or "[" not in text else text.split("[")[1].split("]")[0]


def peak_bytes() -> int:
    """Highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


# ---- the page cache ----


def drop_cached(paths: Sequence[str]) -> str | None:
    """Asks the system to forget what it holds of files. Returns how, or None if it can't be asked."""
    if not hasattr(os, "posix_fadvise"):
        return None
    for path in paths:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fdatasync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
    return "posix_fadvise DONTNEED"


def cached_share(paths: Sequence[str]) -> float | None:
    """Share of the bytes of files that the page cache holds, by mincore; None if the system does not tell."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (OSError, AttributeError):
        return None
    mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    held = total = 0
    for path in paths:
        size = os.stat(path).st_size
        with open(path, "rb") as file:
            for offset in range(0, size, _WINDOW):
                length = min(_WINDOW, size - offset)
                pages = -(-length // _PAGE)
                seen = np.zeros(pages, np.uint8)
                with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=offset) as mapped:
                    view = np.frombuffer(mapped, np.uint8)
                    failed = mincore(view.ctypes.data, length, seen.ctypes.data)
                    del view  # or the mapping can't be closed
                if failed:
                    return None
                held += int((seen & 1).sum())
                total += pages
    return held / max(1, total)


# ---- the disk ----


def expert_slices(model: Model) -> list[tuple[int, int, int]]:
    """(shard, offset, bytes) of every routed expert's part of every matrix, or of all three in a colocated file: what
    streaming reads at once."""
    experts = model.shape.experts
    found = []
    for t in model.tensors:
        if not t.name.endswith("_exps.weight") or (t.stride and not t.name.endswith("gate_exps.weight")):
            continue
        size = t.stride or t.bytes // experts
        found += [(t.shard, t.offset + e * size, size) for e in range(experts)]
    return found


def disk_rate(
    model: Model, workers: int = 8, direct: bool = False, seconds: float = 5.0, seed: int = 1, bytes_max: int = 2**63
) -> tuple[float, int]:
    """(bytes per second, bytes read) that threads get which read random slices of routed experts, each whole, as
    streaming does, for so many seconds or until so many bytes have been read. direct: past the page cache
    (O_DIRECT)."""
    slices = expert_slices(model)
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if direct else 0)
    files = [os.open(path, flags) for path in model.paths]
    done = [0] * workers
    errors: list[BaseException] = []
    end = time.monotonic() + seconds

    def work(number: int) -> None:
        random = np.random.default_rng((seed, number))
        room = mmap.mmap(-1, max(size for _, _, size in slices) + 3 * 4096)
        try:
            while time.monotonic() < end and done[number] * workers < bytes_max:
                shard, offset, size = slices[int(random.integers(len(slices)))]
                first = offset // 4096 * 4096
                last = -(-(offset + size) // 4096) * 4096
                os.preadv(files[shard], [memoryview(room)[: last - first]], first)
                done[number] += size
        except BaseException as error:
            errors.append(error)

    started = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(workers)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = time.monotonic() - started
    finally:
        for file in files:
            os.close(file)
    if errors:
        raise errors[0]
    return sum(done) / max(spent, 1e-9), sum(done)
