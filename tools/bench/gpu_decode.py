"""Decoding on a GPU at GLM-5.2's own sizes, as many layers as fit, against the bandwidth bound.

    gpu_decode.py MODEL BACKEND [--tokens 32] [--context 4096] [--bandwidth BYTES_PER_S] [--fill]

MODEL: make_model.py full --sparse --no-mtp --set layers=16 -o MODEL. --fill writes bytes into its holes that make
small finite numbers of any type, so that the device reads real data. Bytes per token are those of every weight that a
token needs, routed experts by the share that it uses. The bound is those bytes over the bandwidth (by default a
device copy measured through PyTorch).
"""

import argparse
import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2] / "python"), str(Path(__file__).resolve().parent)]

import gpu

import glm52_rt as rt

PIECE = 64 << 20


def fill(path: str) -> None:
    """Bytes below 0x38 over all tensors: halves below 0.5, floats below 1.1e-5, any codes."""
    with rt.Model.open(path) as model:
        begin = min(tensor.offset for tensor in model.tensors)
        end = max(tensor.offset + tensor.bytes for tensor in model.tensors)
    piece = np.random.default_rng(1).integers(0, 0x38, PIECE, np.uint8).tobytes()
    file = os.open(path, os.O_WRONLY)
    for at in range(begin, end, PIECE):
        os.pwrite(file, piece[: min(PIECE, end - at)], at)
    os.close(file)


def bytes_per_token(model: rt.Model) -> int:
    shape = model.shape
    total = 0.0
    for tensor in model.tensors:
        if tensor.name == "token_embd.weight":
            total += tensor.bytes / shape.vocab
        elif "_exps" in tensor.name:
            total += tensor.bytes * shape.experts_used / shape.experts
        else:
            total += tensor.bytes
    return int(total)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("backend")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--bandwidth", type=float)
    parser.add_argument("--fill", action="store_true")
    args = parser.parse_args()
    if args.fill:
        fill(args.model)
    bandwidth = args.bandwidth or gpu.limits().get("copy_bytes_per_s", 0.0)
    with rt.Model.open(args.model) as model:
        needed = bytes_per_token(model)
        start = time.perf_counter()
        with rt.Engine(model, context=args.context, backend=args.backend) as engine:
            opened = time.perf_counter() - start
            print(f"open {opened:.1f} s, {model.shape.layers} layers, {needed / 1e9:.3f} GB per token")
            rng = np.random.default_rng(2)
            prompt = rng.integers(0, model.shape.vocab, args.context - args.tokens - 8).tolist()
            start = time.perf_counter()
            engine.prefill(prompt)
            print(f"prefill {len(prompt)} tokens: {len(prompt) / (time.perf_counter() - start):.0f} tokens/s")
            for token in range(8):
                engine.eval(token)
            times = []
            for token in rng.integers(0, model.shape.vocab, args.tokens).tolist():
                start = time.perf_counter()
                engine.eval(token)
                times.append(time.perf_counter() - start)
    step = statistics.median(times)
    print(f"decode: median {1e6 * step:.0f} us per token, {needed / step / 1e12:.3f} TB/s", end="")
    print(f", {100 * needed / step / bandwidth:.1f} % of {bandwidth / 1e12:.2f} TB/s" if bandwidth else "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
