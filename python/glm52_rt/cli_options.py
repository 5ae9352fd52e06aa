"""What commands share: the options of engines and samplers, and opening what they name."""

from __future__ import annotations

import argparse
import math
import os
import re
import secrets
from typing import Any

from .cli_stream import add_streaming_options, streaming_of
from .engine import Engine
from .model import Model
from .sampling import SEED_MAX

_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30,
          "ti": 1 << 40}  # fmt: skip
THREADS_MAX = 512  # which the processor backend takes
_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def byte_count(text: str) -> int:
    """"12GiB", "500MB" or "1000" as a number of bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?", text.strip().lower())
    if not match or match[2] not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 12GiB")
    return int(float(match[1]) * _UNITS[match[2]])


def machine_memory() -> int:
    """Bytes of memory of this machine, or of the control group that it is in, if that is less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in _CGROUP_LIMITS:
        try:
            with open(path, encoding="ascii") as file:
                text = file.read().strip()
        except OSError:
            continue
        if text.isdecimal():
            limits.append(int(text))
    return min(limits)


def whole_number(low: int, high: int) -> Any:
    """A type for argparse: an integer in low .. high."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{value} is not in {low} .. {high}")
        return value

    return parse


def number(low: float, high: float) -> Any:
    """A type for argparse: a finite number in low .. high."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (math.isfinite(value) and low <= value <= high):
            raise argparse.ArgumentTypeError(f"{text} is not in {low:g} .. {high:g}")
        return value

    return parse


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engine")
    add = group.add_argument
    add("--backend", default="auto", metavar="B", help="auto, cpu, metal, cuda or sim (default auto)")
    add("--threads", type=whole_number(0, THREADS_MAX), default=0, metavar="T", help="0: one per processor (default)")
    add("--context", type=whole_number(1, 2**32 - 1), default=4096, metavar="N", help="positions (default 4096)")
    add("--quality", action="store_true", help="float32 activations and exact weights")
    add("--kv-type", choices=("f16", "f32"), default="f16", help="how cache rows are kept (default f16)")
    add("--mtp", action="store_true", help="predict tokens and run them ahead; changes no token")
    add("--drafts", type=whole_number(0, 7), default=0, metavar="N", help="tokens to run ahead, 0: as many as pay")
    add_streaming_options(parser, byte_count, whole_number)


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sampling")
    add = group.add_argument
    add("-n", "--max-tokens", type=whole_number(0, 2**31 - 1), metavar="N",
        help="tokens to write at most (default: until the model ends or the context is full)")  # fmt: skip
    add("--temp", type=number(0, 1000), default=1.0, metavar="T", help="temperature, 0: the likeliest (default 1)")
    add("--top-p", type=number(0, 1), default=0.95, metavar="P", help="share of the likeliest tokens (default 0.95)")
    add("--min-p", type=number(0, 1), default=0.0, metavar="P", help="least share of the likeliest token (default 0)")
    add("--seed", type=whole_number(0, SEED_MAX), metavar="S", help="for the same tokens again (default: a new one)")


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("conversation")
    add = group.add_argument
    add("--system", metavar="TEXT", help="a system message")
    add("--no-think", dest="think", action="store_false", help="answer without reasoning")
    add("--effort", choices=("high", "max"), help="how much reasoning")


def open_engine(model: Model, args: argparse.Namespace) -> Engine:
    """The engine that args ask for."""
    return Engine(
        model,
        context=args.context,
        backend=args.backend,
        threads=args.threads,
        quality=args.quality,
        kv_type=args.kv_type,
        streaming=streaming_of(args, machine_memory()),
        mtp=args.mtp,
        drafts=args.drafts,
    )


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """Keyword arguments of generate. A seed that was not given is drawn here, so that it can be shown and repeated."""
    if args.seed is None:
        args.seed = secrets.randbits(32)
    return {"temperature": args.temp, "top_p": args.top_p, "min_p": args.min_p, "seed": args.seed}
