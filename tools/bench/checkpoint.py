#!/usr/bin/env python3
"""Speed of saving and loading a conversation, beside a plain copy of the same file.

    python tools/make_model.py full --sparse -o full.gguf
    python tools/bench/checkpoint.py full.gguf [--tokens 4096] [--pairs 9] [--folder F]

No weight is read: the conversation's rows are random bytes, so a sparse file of the real geometry serves. What is
compared, in alternating order so that both sides see the same machine:

    save    against a copy of the checkpoint, read from the page cache, written to a new file, flushed and renamed
    load    against the same copy, both from a file that was dropped from the page cache (cold) or is in it (warm);
            the copy's file is not flushed

A ratio is of bytes per second, ours / copy, pair by pair; 1 is the speed of the copy. Prints a table, or one JSON
document with --json.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import glm52_rt as rt

PIECE_BYTES = 1 << 20


def fill(engine: rt.Engine, tokens: int) -> None:
    """Makes the engine's conversation one of random tokens and rows."""
    random = np.random.Generator(np.random.PCG64(1))
    shape = engine.model.shape
    with engine.native.exclusive() as spans:
        session = spans.open_session()
        for layer in range(shape.layers):
            for kind in (0, 1):
                count = tokens * spans.row_bytes(kind, layer)
                if count:
                    spans.write_rows(session, kind, layer, 0, memoryview(bytearray(random.bytes(count))))
        ids = random.integers(0, shape.vocab, tokens).astype("<i4").tobytes()
        spans.restore(session, ids, random.normal(size=shape.vocab).astype("<f4").tobytes(), False)
        spans.swap(session)
        session.close()


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy(source: Path, target: Path, flushed: bool) -> None:
    """As a shell would copy: to a file beside target that takes its place."""
    beside = target.with_suffix(".new")
    shutil.copyfile(source, beside)
    if flushed:
        flush(beside)
    os.replace(beside, target)
    if flushed:
        flush(target.parent)


def drop(path: Path) -> None:
    """Out of the page cache, where the system has a call for it."""
    if hasattr(os, "posix_fadvise"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def seconds(call: Callable[[], Any], cold: Path | None = None) -> float:
    if cold is not None:
        drop(cold)
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(args: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=args.folder) as name, rt.Model.open(args.model) as model:
        folder = Path(name)
        saved, copied = folder / "saved", folder / "copied"
        with rt.Engine(model, context=args.tokens, chunk_rows=1) as engine:
            fill(engine, args.tokens)
            engine.save(saved)
            sides: dict[str, tuple[Callable[[], Any], Callable[[], Any], Path | None]] = {
                "save": (lambda: engine.save(saved), lambda: copy(saved, copied, True), None),
                "load cold": (lambda: engine.load(saved), lambda: copy(saved, copied, False), saved),
                "load warm": (lambda: engine.load(saved), lambda: copy(saved, copied, False), None),
            }
            found: dict[str, Any] = {"file_bytes": saved.stat().st_size, "tokens": args.tokens, "loads": []}
            for what, (ours, plain, cold) in sides.items():
                pairs = []
                for number in range(-1, args.pairs):  # the first pair warms up
                    pair = {}
                    for side in (ours, plain) if number % 2 else (plain, ours):
                        pair[side is ours] = seconds(side, cold)
                        flush(folder)
                    if number >= 0:
                        pairs.append((pair[True], pair[False]))
                    found["loads"].append(os.getloadavg()[0])
                found[what] = pairs
    return found


def render(found: dict[str, Any]) -> str:
    size = found["file_bytes"]
    lines = [f"{found['tokens']} tokens, {size / 1e6:.1f} MB, load of the machine up to {max(found['loads']):.1f}"]
    for what, pairs in found.items():
        if what in ("save", "load cold", "load warm"):
            ours, plain = median(pair[0] for pair in pairs), median(pair[1] for pair in pairs)
            ratios = sorted(pair[1] / pair[0] for pair in pairs)
            lines.append(
                f"{what:10} {size / ours / 1e6:8.0f} MB/s, copy {size / plain / 1e6:8.0f} MB/s, ratio "
                f"{median(ratios):.2f} ({ratios[0]:.2f} .. {ratios[-1]:.2f})"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--folder", help="on the disk that is measured (default: where temporary files go)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.tokens < 1 or args.pairs < 1:
        parser.error("at least one token and one pair")
    found = measure(args)
    print(json.dumps(found, indent=1) if args.json else render(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
