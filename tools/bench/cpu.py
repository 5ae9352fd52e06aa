#!/usr/bin/env python3
"""Speed of one model on this machine's processor, beside llama.cpp's on the same file if its llama-bench is named.

    python tools/bench/cpu.py MODEL [--peer PATH_TO_llama-bench] [--pairs 5] [--threads N] [--prompt 128] [--tokens 32]

Runs alternate: ours, theirs, theirs, ours, ... each in a process of its own, so that both see the same machine. Of the
peer every configuration (flash attention on and off, repacking on and off) is tried once and its best one per measure
taken. A ratio is of tokens per second, ours / theirs, pair by pair; above 1 is faster. Then: bytes that a token must
read, the rate at which this machine's memory gives them, and the share of that bound that decoding reaches.

Prints a table, or one JSON document with --json. Nothing else should run meanwhile; the load that was found is
printed with every pair, and a machine that was not quiet is called so.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[up] / room) for up, room in ((0, ""), (2, "python"))]

from glm52_rt import bench_peer as peer
from glm52_rt import roofline
from glm52_rt.bench import TOKENS_MIN, spread

MEASURES = ("prefill", "decode")
OURS = Path(__file__).resolve().parent / "ours.py"


def run_ours(model: str, threads: int, prompt: int, tokens: int) -> dict[str, float]:
    """Tokens per second of prefill and decode, and bytes of peak memory, of a fresh process."""
    command = [sys.executable, str(OURS), model, str(threads), str(prompt), str(tokens)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def compare(pairs: list[tuple[dict[str, float], dict[str, float]]]) -> dict[str, Any]:
    """Medians of both sides and of the ratios of pairs, per measure."""
    return {
        measure: {
            "ours": spread([ours[measure] for ours, _ in pairs]),
            "peer": spread([theirs[measure] for _, theirs in pairs]),
            "ratio": spread([ours[measure] / theirs[measure] for ours, theirs in pairs]),
        }
        for measure in MEASURES
    }


def measure(args: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model": Path(args.model).name, "threads": args.threads, "prompt_tokens": args.prompt,
        "decode_tokens": args.tokens, "pairs": [], "loads": [],
    }  # fmt: skip
    best = None
    if args.peer:
        found["peer_tried"] = peer.try_all(args.peer, args.model, args.threads, args.prompt, args.tokens)
        best = peer.best_of(found["peer_tried"])
        found["peer_best"] = best
    run_ours(args.model, args.threads, TOKENS_MIN, 1)  # brings the file into the page cache
    pairs = []
    for number in range(args.pairs):
        load = os.getloadavg()[0]
        sides: dict[str, dict[str, float]] = {}
        for side in ("ours", "peer") if number % 2 == 0 else ("peer", "ours"):
            if side == "ours":
                sides[side] = run_ours(args.model, args.threads, args.prompt, args.tokens)
            elif best:
                sides[side] = peer.run_best(args.peer, args.model, args.threads, args.prompt, args.tokens, best)
        found["pairs"].append({"load": load, **sides})
        pairs.append((sides["ours"], sides.get("peer", {})))
        print(f"pair {number + 1} of {args.pairs}, load {load:.1f}", file=sys.stderr)
    found["quiet"] = all(pair["load"] < args.threads + 0.5 for pair in found["pairs"])
    if best:
        found["compared"] = compare(pairs)
    for name in (*MEASURES, "peak_bytes"):
        found[f"ours_{name}"] = spread([ours[name] for ours, _ in pairs])
    rate = roofline.read_rate(args.threads)
    found["roofline"] = roofline.table(args.model, rate, found["ours_decode"]["median"])
    return found


def render(found: dict[str, Any]) -> str:
    lines = [
        f"{found['model']}, {found['threads']} threads, prompt {found['prompt_tokens']} tokens, "
        f"{found['decode_tokens']} decoded, {len(found['pairs'])} runs",
        "machine: " + ("quiet" if found["quiet"] else "NOT QUIET, other work ran: ratios are rough, rates too low"),
    ]
    for name in MEASURES:
        ours = found[f"ours_{name}"]
        text = f"{name:8} ours {ours['median']:8.2f} tokens/s ({ours['min']:.2f} .. {ours['max']:.2f})"
        if "compared" in found:
            theirs, ratio = found["compared"][name]["peer"], found["compared"][name]["ratio"]
            text += f", peer {theirs['median']:8.2f} ({theirs['min']:.2f} .. {theirs['max']:.2f})"
            text += f", ours / peer {ratio['median']:.2f} ({ratio['min']:.2f} .. {ratio['max']:.2f})"
        lines.append(text)
    lines.append(f"peak memory of ours {found['ours_peak_bytes']['median'] / 1e9:.2f} GB")
    lines += roofline.render(found["roofline"])
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", metavar="LLAMA_BENCH")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if min(args.prompt, args.tokens) < TOKENS_MIN or args.pairs < 1 or args.threads < 1:
        parser.error(f"at least {TOKENS_MIN} tokens of prompt and of decoding, one pair, one thread")
    found = measure(args)
    print(json.dumps(found, indent=1) if args.json else render(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
