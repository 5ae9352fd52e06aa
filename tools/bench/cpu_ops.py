#!/usr/bin/env python3
"""Operations of a forward pass on this machine's processor, one by one, against what bounds them.

    python tools/bench/cpu_ops.py [--threads N] [--ghz F] [--json]

Bytes: weights or cache rows that an operation reads; from memory with one row of activations, where each matrix is far
larger than a cache. Products: multiplications. The bound is the longer of bytes at the rate at which this machine's
memory gives them to as many threads (measured) and products at the rate of its widest multiply-add: two a cycle of 64
bytes with VNNI, of 32 bytes in three instructions with AVX2, of 16 or 8 floats for attention. --ghz is the clock, by
default /proc/cpuinfo's, which may be lower than what the processor reaches. share: bound / time; the best of several
runs counts.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / room) for room in ("python", "tests")]

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from oplib import Ops

from glm52_rt import roofline

IN, MEGABYTES = 2048, 160
FORMATS = ("Q8_0", "Q6_K", "Q4_K", "Q2_K", "IQ2_XXS")


def best_of(run: Callable[[], Any], seconds: float = 1.0) -> float:
    """Seconds of the fastest run within some time, three at least."""
    best, end, count = float("inf"), time.perf_counter() + seconds, 0
    while count < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        best, count = min(best, time.perf_counter() - start), count + 1
    return best


def cpu_flags() -> tuple[set[str], float]:
    """Flags and clock in GHz by /proc/cpuinfo; nothing and 3 where there is none."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set(), 3.0
    flags = next((line.split(":")[1].split() for line in lines if line.startswith(("flags", "Features"))), [])
    clock = next((float(line.split(":")[1]) / 1e3 for line in lines if line.startswith("cpu MHz")), 3.0)
    return set(flags), clock


def matmuls(ops: Ops, rng: np.random.Generator, rows: int) -> list[tuple[str, float, float, float]]:
    """Name, bytes, products and seconds of a matrix of each format times some rows."""
    found = []
    x = rng.standard_normal((rows, 1, IN)).astype(np.float32)
    for name in FORMATS:
        kind = GGMLQuantizationType[name]
        size, width = GGML_QUANT_SIZES[kind]
        row_bytes = IN // size * width
        count = (MEGABYTES << 20) // row_bytes // (1 if rows == 1 else 16)
        weights = rng.integers(0, 64, (1, count, row_bytes), np.uint8)
        out = np.empty((rows, 1, count), np.float32)
        seconds = best_of(lambda w=weights, k=kind, o=out: ops.matmul(x, w, int(k), False, o))
        found.append((f"{name} x {rows}", float(weights.nbytes), float(rows * count * IN), seconds))
    return found


def attention(ops: Ops, rng: np.random.Generator, heads: int, rows: int) -> tuple[str, float, float, float]:
    cache = rng.standard_normal((4096, 576)).astype(np.float16)
    selected = np.sort(rng.choice(4096, rows, replace=False)).astype(np.int32)[None]
    latent = rng.standard_normal((1, heads, 512)).astype(np.float32)
    rope = rng.standard_normal((1, heads, 64)).astype(np.float32)
    seconds = best_of(lambda: ops.attention(latent, rope, cache, selected, 4095, rows, 0.06))
    return f"attention, {heads} heads, {rows} rows", 2.0 * rows * 576, float(heads * rows * (576 + 512)), seconds


def table(threads: int, ghz: float | None) -> dict[str, Any]:
    flags, clock = cpu_flags()
    ghz = ghz or clock
    bytes_wide, floats = (128.0, 32.0) if "avx512_vnni" in flags else (32.0 * 2 / 3 * 2, 16.0)
    rate = roofline.read_rate(threads)
    rng = np.random.default_rng(1)
    rows = []
    with Ops(threads) as ops:
        measured = [*matmuls(ops, rng, 1), *matmuls(ops, rng, 4), *matmuls(ops, rng, 64)]
        measured += [attention(ops, rng, 16, 2048), attention(ops, rng, 64, 2048)]
    for name, size, products, seconds in measured:
        peak = threads * ghz * 1e9 * (floats if name.startswith("attention") else bytes_wide)
        by_memory, by_arithmetic = size / rate, products / peak
        rows.append({
            "operation": name, "bytes": size, "products": products, "seconds": seconds,
            "bound_seconds": max(by_memory, by_arithmetic),
            "bound_by": "memory" if by_memory >= by_arithmetic else "arithmetic",
            "share": max(by_memory, by_arithmetic) / seconds,
        })  # fmt: skip
    return {"threads": threads, "ghz": ghz, "read_bytes_per_second": rate, "operations": rows}


def render(found: dict[str, Any]) -> str:
    lines = [
        f"{found['threads']} threads, {found['ghz']:.1f} GHz, memory {found['read_bytes_per_second'] / 1e9:.1f} GB/s",
        f"{'operation':32} {'MB':>7} {'GB/s':>6} {'G products/s':>12} {'ms':>8} {'bound ms':>9}  by          share",
    ]
    for r in found["operations"]:
        lines.append(
            f"{r['operation']:32} {r['bytes'] / 1e6:7.1f} {r['bytes'] / r['seconds'] / 1e9:6.1f} "
            f"{r['products'] / r['seconds'] / 1e9:12.1f} {r['seconds'] * 1e3:8.2f} {r['bound_seconds'] * 1e3:9.2f}  "
            f"{r['bound_by']:10} {r['share']:6.0%}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ghz", type=float)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.threads < 1:
        parser.error("at least one thread")
    found = table(args.threads, args.ghz)
    print(json.dumps(found, indent=1) if args.json else render(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
