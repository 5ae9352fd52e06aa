"""What commands share about streaming: its options, and what it measured, for people."""

from __future__ import annotations

import argparse
from typing import Any

from .engine import Stats
from .native import PILOTS, POLICIES
from .streaming import Streaming

_NAMES = ("direct_io", "wired", "auto_pin", "live_repin", "pilot_two_step")


def add_streaming_options(parser: argparse.ArgumentParser, byte_count: Any, whole_number: Any) -> None:
    """--cache and --experts turn streaming on; the others are for it."""

    def cache_size(text: str) -> int:
        return 0 if text == "auto" else byte_count(text)

    group = parser.add_argument_group("streaming (experts are read from the file as they are chosen)")
    add = group.add_mutually_exclusive_group().add_argument
    add("--cache", type=cache_size, metavar="SIZE", help="stream through a cache of this size, such as 12GiB; or auto")
    add("--experts", type=whole_number(1, 2**32 - 1), metavar="N", help="stream through a cache of N experts")
    add = group.add_argument
    add("--policy", choices=POLICIES, default="lru", help="which expert goes for another (default lru)")
    add("--io-workers", type=whole_number(1, 256), default=8, metavar="N", help="threads that read (default 8)")
    add("--direct-io", action="store_true", help="read past the page cache")
    add("--wired", action="store_true", help="lock the cache in memory")
    add("--full-layers", type=whole_number(0, 512), default=0, metavar="N", help="sparse layers kept whole (default 0)")
    add("--mirror", metavar="PATH", help="a copy of the model on another disk, read from too")
    add("--usage", metavar="FILE", help="ledger of which experts are chosen, kept from run to run")
    add("--preload", metavar="N|FILE", help="read the ledger's N hottest experts, or those a file lists, at start")
    add("--auto-pin", action="store_true", help="pin what the ledger says is hot")
    add("--live-repin", action="store_true", help="let pins change places with hotter experts between prompts")
    add("--pilot", choices=PILOTS, default="off",
        help="predict the next layer's experts: measure, hint at them, or load them (default off)")  # fmt: skip
    add("--pilot-k", type=whole_number(0, 512), default=0, metavar="K",
        help="experts per token that are hinted at (0: all), or per layer that are loaded ahead (0: 2)")  # fmt: skip
    add("--pilot-two-step", action="store_true", help="predict with the shared expert's output added")


def streaming_of(args: argparse.Namespace, memory_bytes: int) -> Streaming | None:
    """What args ask for; None if nothing is streamed."""
    if args.cache is None and args.experts is None:
        return None
    preload = int(args.preload) if args.preload and args.preload.isdecimal() else args.preload
    return Streaming(
        cache_bytes=args.cache or 0,
        cache_experts=args.experts or 0,
        memory_bytes=memory_bytes,
        policy=args.policy,
        workers=args.io_workers,
        full_layers=args.full_layers,
        mirror_path=args.mirror,
        usage_path=args.usage,
        preload=preload,
        pilot=args.pilot,
        pilot_k=args.pilot_k,
        **{name: getattr(args, name) for name in _NAMES},
    )


def streamed(before: Stats, after: Stats) -> dict[str, Any] | None:
    """What streaming did between two stats, for the last line and for --json; None if nothing was streamed."""
    a, b = before.stream, after.stream
    if a is None or b is None:
        return None
    tokens = after.prefill_tokens + after.eval_tokens - before.prefill_tokens - before.eval_tokens
    hits, misses, read = b.hits - a.hits, b.misses - a.misses, b.read_bytes - a.read_bytes
    service = b.service.total_ns - a.service.total_ns
    return {
        "hits": hits,
        "misses": misses,
        "hit_rate": hits / max(1, hits + misses),
        "read_bytes": read,
        "read_bytes_per_token": read / max(1, tokens),
        "wait_seconds": (b.wait.total_ns - a.wait.total_ns) / 1e9,
        "disk_service_seconds": service / 1e9,
    }


def streamed_line(measured: dict[str, Any] | None) -> str:
    """streamed() for people; "" for None."""
    if measured is None:
        return ""
    return (f", experts {measured['hit_rate']:.0%} at hand, {measured['read_bytes_per_token'] / 1e6:.1f} MB read per "
            f"token, waited {measured['wait_seconds']:.2f} s for them")  # fmt: skip
