#!/usr/bin/env python3
"""Measures streaming on one model: what the disk gives for reads of an expert's size, what decoding makes of it, and
how much memory was used against what was planned.

    bench_stream.py MODEL --cache 600MB [--direct-io] [--tokens 32] [--prompt 64] [--skew 1.2] ...
    bench_stream.py MODEL --against COLOCATED --rounds 5 ...       the two in turns, each in a process of its own

Prints one JSON document. Meant to be run inside a control group that caps memory; nothing here sets one up.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

import glm52_rt as rt
from glm52_rt.cli_options import byte_count
from glm52_rt.machine import disk_rate


def peak_memory() -> dict[str, int]:
    """Highest resident memory of this process, and of its control group if that tells, in bytes."""
    found = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.split(":")[0] in ("VmHWM", "RssAnon", "RssFile"):
            found[line.split(":")[0]] = int(line.split()[1]) * 1024
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, kinds, name = line.split(":", 2)
        top = Path("/sys/fs/cgroup/memory") / name.lstrip("/") / "memory.max_usage_in_bytes"
        if "memory" in kinds.split(",") and top.exists():
            found["cgroup_peak"] = int(top.read_text())
            found["cgroup_limit"] = int(top.with_name("memory.limit_in_bytes").read_text())
    return found


def tokens_of(vocab: int, count: int, skew: float, seed: int) -> list[int]:
    """Token ids: evenly random, or with skew s the k-th likeliest of 1000 with weight 1 / k^s."""
    random = np.random.default_rng(seed)
    if not skew:
        return random.integers(0, vocab - 64, count).tolist()
    weights = 1.0 / np.arange(1, 1001) ** skew
    ids = random.permutation(vocab - 64)[:1000]
    return ids[random.choice(1000, count, p=weights / weights.sum())].tolist()


def measure(args: argparse.Namespace) -> dict:
    with rt.Model.open(args.model) as model:
        before = disk_rate(model, args.workers, args.direct_io, args.disk_seconds, 1)[0]
        streaming = rt.Streaming(
            cache_bytes=args.cache, policy=args.policy, workers=args.workers, direct_io=args.direct_io,
            advise=["dontneed"] if args.dontneed else [], pilot=args.pilot, pilot_k=args.pilot_k,
            memory_bytes=args.memory,
        )  # fmt: skip
        ids = tokens_of(model.shape.vocab, args.prompt + args.warm + args.tokens, args.skew, 3)
        with rt.Engine(model, context=args.prompt + args.warm + args.tokens, threads=args.threads,
                       streaming=None if args.resident else streaming, chunk_rows=args.chunk) as engine:  # fmt: skip
            started = time.monotonic()
            if args.prompt:
                engine.prefill(ids[: args.prompt])
            prefill = time.monotonic() - started
            for token in ids[args.prompt : args.prompt + args.warm]:
                engine.eval(token)
            a, started = engine.stats(), time.monotonic()
            for token in ids[args.prompt + args.warm :]:
                engine.eval(token)
            seconds = time.monotonic() - started
            b = engine.stats()
            found = {
                "plan": vars(engine.plan),
                "prefill_tokens_per_second": args.prompt / prefill if args.prompt else None,
                "decode_tokens_per_second": args.tokens / seconds,
            }
            if b.stream is not None and a.stream is not None:
                hits, misses = b.stream.hits - a.stream.hits, b.stream.misses - a.stream.misses
                ahead, used = b.stream.ahead - a.stream.ahead, b.stream.ahead_used - a.stream.ahead_used
                demand, early = b.stream.read_bytes - a.stream.read_bytes, b.stream.policy_bytes - a.stream.policy_bytes
                found |= {
                    "hit_rate": (hits - used) / (hits + misses),  # there before anybody thought of them
                    "loaded_ahead": ahead,
                    "loaded_ahead_and_used": used,
                    "bytes_per_token": (demand + early) / args.tokens,
                    # what a token wanted and was not there: the bound is made of these
                    "needed_bytes_per_token": (demand + early * used / max(1, ahead)) / args.tokens,
                    "wait_share": (b.stream.wait.total_ns - a.stream.wait.total_ns) / 1e9 / seconds,
                    "service_p50_ms": b.stream.service.p50_ns / 1e6,
                    "service_p99_ms": b.stream.service.p99_ns / 1e6,
                    "stats": {k: v for k, v in vars(b.stream).items() if isinstance(v, int)},
                }
        after = disk_rate(model, args.workers, args.direct_io, args.disk_seconds, 2)[0]
    found |= {"disk_bytes_per_second": [before, after], "peak": peak_memory()}
    if "bytes_per_token" in found:
        rate = (before + after) / 2
        needed = found["needed_bytes_per_token"]
        found["bound_tokens_per_second"] = rate / needed if needed else None
        if found["bound_tokens_per_second"]:
            found["share_of_bound"] = found["decode_tokens_per_second"] / found["bound_tokens_per_second"]
    return found


def compare(args: argparse.Namespace) -> dict:
    """Two files in turns, so that what else the machine does meets both; reads, bytes and rates of each, and the ratio
    of the medians."""
    paths = {"model": args.model, "against": args.against}
    words = [word for word in sys.argv[1:] if word != args.model]
    for option in ("--against", "--rounds"):
        at = next((i for i, word in enumerate(words) if word == option), None)
        if at is not None:
            del words[at : at + 2]
    runs: dict[str, list[dict]] = {name: [] for name in paths}
    for _ in range(args.rounds):
        for name, path in paths.items():
            command = [sys.executable, __file__, path, *words]
            runs[name].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    found: dict[str, Any] = {"files": paths, "rounds": args.rounds}
    for name, results in runs.items():
        rates = [one["decode_tokens_per_second"] for one in results]
        found[name] = {"decode_tokens_per_second": rates, "median": statistics.median(rates)}
        if "stats" in results[0]:
            found[name] |= {key: results[0]["stats"][key] for key in ("read_ops", "read_bytes", "hits", "misses")}
            for key in ("wait_share", "service_p50_ms", "share_of_bound", "disk_bytes_per_second"):
                found[name][key] = [one.get(key) for one in results]
    found["against_over_model"] = found["against"]["median"] / found["model"]["median"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model")
    add("--cache", type=byte_count, default=0, help="size of the expert cache (default: automatic)")
    add("--memory", type=byte_count, default=0, help="memory that may be used (default: the machine's)")
    add("--policy", default="lru")
    add("--workers", type=int, default=8)
    add("--threads", type=int, default=0)
    add("--direct-io", action="store_true")
    add("--dontneed", action="store_true")
    add("--pilot", default="off")
    add("--pilot-k", type=int, default=0)
    add("--resident", action="store_true", help="do not stream: experts through the mapping")
    add("--chunk", type=int, default=0)
    add("--prompt", type=int, default=0)
    add("--warm", type=int, default=8, help="tokens decoded before the clock starts")
    add("--tokens", type=int, default=32)
    add("--skew", type=float, default=0.0)
    add("--disk-seconds", type=float, default=5.0)
    add("--against", metavar="FILE", help="another file of the same model, such as glm52 colocate writes")
    add("--rounds", type=int, default=3, help="with --against: runs of each file")
    args = parser.parse_args()
    print(json.dumps(compare(args) if args.against else measure(args)))


if __name__ == "__main__":
    main()
