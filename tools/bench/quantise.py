"""Errors and speed of the quantiser beside ggml's, per type, with and without importance.

    quantise.py PEER [--rows N] [--model FILE --imatrix FILE [--tensors NAME,...]] [--types NAME,...] [--markdown]

PEER is llama.cpp's libggml-base.so (or .dylib). Both get the same rows on one thread, and both results are decoded by
this library. Values are normal numbers of deviation 0.02, importances log-normal (e^(1.5 n)); with --model, the first
2-D slice of each tensor and its importance. Errors are relative root mean squares; with importance both weighted by it
and plain. IQ2 types have no way without importance in ggml, so there it gets one that is even.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import glm52_rt as rt
from glm52_rt import gguf_writer, imatrix
from glm52_rt.native_encode import decode, encode, written_types

FLOATS = ("F32", "F16", "BF16")
COLUMNS = 2048
SECONDS = 0.5  # of work at least, for a rate


class Peer:
    """ggml's ggml_quantize_chunk."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._library.ggml_quantize_chunk.restype = ctypes.c_size_t
        self._library.ggml_quantize_chunk.argtypes = [ctypes.c_int, pointer, pointer, number, number, number, pointer]

    def prepare(self, name: str) -> None:
        self._library.ggml_quantize_init(int(GGMLQuantizationType[name]))

    def encode(self, name: str, x: np.ndarray, importance: np.ndarray | None) -> np.ndarray:
        kind = GGMLQuantizationType[name]
        block, size = GGML_QUANT_SIZES[kind]
        if importance is None and name.startswith("IQ2"):
            importance = np.ones(x.shape[1], np.float32)
        out = np.zeros(x.size // block * size, np.uint8)
        weights = None if importance is None else importance.ctypes.data
        self._library.ggml_quantize_chunk(int(kind), x.ctypes.data, out.ctypes.data, 0, *x.shape, weights)
        return out


def relative(x: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> float:
    left, x = (x - y).astype(np.float64), x.astype(np.float64)
    weights = 1.0 if w is None else w.astype(np.float64)
    return float(np.sqrt((weights * left**2).sum() / (weights * x**2).sum()))


def measured(work, x: np.ndarray, name: str, w: np.ndarray | None) -> tuple[np.ndarray, float]:
    """Decoded result, and MB/s of float32 by the processor's clock."""
    times, started = [], time.process_time()
    while not times or time.process_time() - started < SECONDS:
        begin = time.process_time()
        blocks = work(name, x, w)
        times.append(time.process_time() - begin)
    return decode(name, blocks).reshape(x.shape), x.nbytes / max(min(times), 1e-9) / 1e6


def rows(args: argparse.Namespace) -> Iterator[tuple[str, np.ndarray, np.ndarray | None]]:
    """Name, values and importance of what is measured."""
    if not args.model:
        rng = np.random.Generator(np.random.PCG64(1))
        x = (rng.standard_normal((args.rows, COLUMNS)) * 0.02).astype(np.float32)
        yield "normal", x, np.exp(1.5 * rng.standard_normal(COLUMNS)).astype(np.float32)
        return
    found = imatrix.load(args.imatrix) if args.imatrix else None
    with rt.Model.open(args.model) as model, gguf_writer.Reader(model) as reader:
        for tensor in model.tensors:
            if tensor.name not in args.tensors.split(","):
                continue
            columns, count = tensor.shape[0], min(tensor.shape[1], args.rows)
            data = reader.read(tensor, 0, gguf_writer.row_bytes(tensor.type, columns) * count)
            groups, importance = int(np.prod(tensor.shape[2:], dtype=np.int64)), None
            if found is not None and tensor.name in found.sums:
                importance = found.sums[tensor.name].importance(groups, columns)
            own = None if importance is None or not np.isfinite(importance[0]).all() else importance[0].copy()
            yield tensor.name, decode(tensor.type, data).reshape(count, columns), own


def line(name: str, x: np.ndarray, w: np.ndarray | None, peer: Peer, markdown: bool) -> str:
    theirs, their_rate = measured(peer.encode, x, name, w)
    ours, our_rate = measured(encode, x, name, w)
    errors = [relative(x, y, w) for y in (theirs, ours)]
    plain = [relative(x, y, None) for y in (theirs, ours)]
    cells = [
        name, "yes" if w is not None else "no", f"{100 * errors[0]:.3f}", f"{100 * errors[1]:.3f}",
        f"{errors[1] / errors[0]:.3f}", f"{plain[1] / plain[0]:.3f}", f"{their_rate:.0f}", f"{our_rate:.0f}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |" if markdown else "  ".join(f"{cell:>9}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", help="libggml-base.so")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--model")
    parser.add_argument("--imatrix")
    parser.add_argument("--tensors", default="blk.4.ffn_gate_exps.weight,blk.4.ffn_down_exps.weight")
    parser.add_argument("--types", default=",".join(name for name in written_types() if name not in FLOATS))
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    peer = Peer(args.peer)
    heads = ["type", "imatrix", "theirs %", "ours %", "ratio", "plain", "MB/s", "ours MB/s"]
    for what, x, importance in rows(args):
        print(f"{what}, {x.shape[0]} x {x.shape[1]}")
        print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|" if args.markdown
              else "  ".join(f"{head:>9}" for head in heads))  # fmt: skip
        for name in args.types.split(","):
            if x.shape[1] % GGML_QUANT_SIZES[GGMLQuantizationType[name]][0]:
                continue
            peer.prepare(name)
            for w in (None,) if importance is None else (None, importance):
                print(line(name, x, w, peer, args.markdown), flush=True)


if __name__ == "__main__":
    main()
