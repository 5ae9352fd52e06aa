"""What decoding can't be faster than: the bytes of weights that a token reads, at the rate memory gives them.

Caches and activations are left out (a cache row of the real geometry is 1,152 bytes, against hundreds of megabytes of
weights), so the bound is a little too high and a share a little too low.
"""

import re
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np

from .model import Model

# Parts of a forward pass, by the tensors they read; the first pattern that is found decides.
PARTS = (
    ("routed experts", r"ffn_.*_exps"),
    ("shared expert, dense networks", r"ffn_(gate|up|down)(_shexp)?\."),
    ("router", r"ffn_gate_inp|exp_probs"),
    ("indexer", r"indexer"),
    ("attention", r"attn_"),
    ("output", r"^output"),
)


def part_of(name: str) -> str:
    return next((part for part, pattern in PARTS if re.search(pattern, name)), "other")


def bytes_per_token(tensors: Iterable[Any], experts: int, used: int, layers: int) -> dict[str, float]:
    """Bytes that one token reads, per part: all of a tensor, used of its experts, one row of the embedding; nothing of
    the blocks behind the trunk's layers."""
    found: dict[str, float] = {}
    for tensor in tensors:
        block = re.match(r"blk\.(\d+)\.", tensor.name)
        if block and int(block[1]) >= layers:
            continue
        read = float(tensor.bytes)
        if "_exps" in tensor.name:
            read *= used / experts
        if tensor.name.startswith("token_embd"):
            read /= tensor.shape[-1]
        part = part_of(tensor.name)
        found[part] = found.get(part, 0.0) + read
    return found


def read_rate(threads: int, megabytes: int = 512, rounds: int = 4) -> float:
    """Bytes per second that threads get which each read memory of their own from beginning to end: best of rounds."""
    blocks = [np.ones(megabytes * (1 << 20) // 8 // threads, np.int64) for _ in range(threads)]
    best = 0.0
    for _ in range(rounds):
        workers = [threading.Thread(target=block.max) for block in blocks]
        start = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        best = max(best, sum(block.nbytes for block in blocks) / (time.perf_counter() - start))
    return best


def table(path: str, rate: float, decode: float) -> dict[str, Any]:
    """Bytes per token and part, the bound in tokens per second at rate, and the share of it that decode is."""
    with Model.open(path) as model:
        shape = model.shape
        parts = bytes_per_token(model.tensors, shape.experts, shape.experts_used, shape.layers)
    total = sum(parts.values())
    return {
        "bytes_per_token": total, "parts": parts, "read_bytes_per_second": rate,
        "bound_tokens_per_second": rate / total, "share_of_bound": decode * total / rate,
    }  # fmt: skip


def render(found: dict[str, Any]) -> list[str]:
    rate = found["read_bytes_per_second"]
    lines = [f"memory reads {rate / 1e9:.1f} GB/s", "part                              MB/token  ms at that rate"]
    for part, size in sorted(found["parts"].items(), key=lambda item: -item[1]):
        lines.append(f"{part:32} {size / 1e6:9.1f} {size / rate * 1e3:16.2f}")
    lines.append(
        f"{'all':32} {found['bytes_per_token'] / 1e6:9.1f} {1e3 / found['bound_tokens_per_second']:16.2f}"
        f"  bound {found['bound_tokens_per_second']:.1f} tokens/s; decoding reaches {found['share_of_bound']:.0%} of it"
    )
    return lines
