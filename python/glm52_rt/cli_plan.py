"""glm52 plan: what a machine can do with a model, before anything is allocated."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from .cli_options import byte_count, machine_memory, whole_number
from .errors import ArgumentError
from .model import Model
from .planning import (
    DISK_RATE,
    PAGE_CACHE_RATE,
    Machine,
    MachinePlan,
    curve_from_points,
    plan_machine,
    published_hits,
    uniform_hits,
)

GIB = 1 << 30
TABLE_SIZES = (16, 24, 32, 64, 96, 128, 192, 256, 512)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("plan", help="show what fits in memory, and what a token then reads",
                                 description=__doc__)  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    add("--ram", type=byte_count, metavar="SIZE", help="memory of the machine (default: of this one)")
    add("--working-set", type=byte_count, default=0, metavar="SIZE", help="what the device recommends to use")
    add("--wired-limit", type=byte_count, default=0, metavar="SIZE", help="limit of wired memory, if one is set")
    add("--context", type=whole_number(1, 2**32 - 1), default=4096, metavar="N", help="positions (default 4096)")
    add("--sessions", type=whole_number(1, 4096), default=1, metavar="N", help="conversations held at once (default 1)")
    add("--cache", type=byte_count, default=0, metavar="SIZE", help="size of the expert cache (default: recommended)")
    add("--kv-type", choices=("f16", "f32"), default="f16", help="how cache rows are kept (default f16)")
    add("--mtp", action="store_true", help="count the MTP block")
    add("--swap", action="store_true", help="count a second state, as when conversations are swapped")
    add("--disk", type=byte_count, default=int(DISK_RATE), metavar="RATE",
        help="bytes per second of the disk (default 3GB)")  # fmt: skip
    add("--page-cache", type=byte_count, default=int(PAGE_CACHE_RATE), metavar="RATE",
        help="bytes per second of reads that the page cache answers (default 6GB)")  # fmt: skip
    add("--direct", action="store_true", help="reads go past the page cache")
    curve = parser.add_mutually_exclusive_group()
    curve.add_argument("--curve", metavar="FILE", help="hit rates of `glm52 trace simulate`, not published ones")
    curve.add_argument("--uniform", action="store_true", help="every expert as likely as any other: the worst case")
    add("--table", action="store_true", help="one line for machines of 16 to 512 GB")
    add("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(command=plan)


def read_curve(path: str, policy: str = "lru") -> list[tuple[float, float]]:
    """(fraction, hit rate) of a policy from the CSV of trace simulate."""
    try:
        with open(path, encoding="utf-8", newline="") as file:
            points = [
                (float(row["fraction"]), float(row["hit_rate"]))
                for row in csv.DictReader(file)
                if row["policy"] == policy
            ]
    except (KeyError, ValueError) as error:
        raise ArgumentError(f"{path}: this is no curve of glm52 trace simulate ({error})") from None
    if not points:
        raise ArgumentError(f"{path}: it has no row for policy {policy}")
    return points


def plan(args: argparse.Namespace) -> int:
    """Prints the plan. Returns the exit code: 1 if the model does not fit."""
    hits = uniform_hits if args.uniform else published_hits
    if args.curve:
        hits = curve_from_points(read_curve(args.curve))
    options = {"context": args.context, "sessions": args.sessions, "mtp": args.mtp, "swap": args.swap,
               "kv_type": args.kv_type, "cache_bytes": args.cache, "direct_io": args.direct, "hits": hits}  # fmt: skip
    memories = [size * GIB for size in TABLE_SIZES] if args.table else [args.ram or machine_memory()]
    with Model.open(args.model) as model:
        machines = [
            Machine(memory, args.working_set, args.wired_limit, args.disk, args.page_cache) for memory in memories
        ]
        plans = [plan_machine(model, machine, **options) for machine in machines]
    if args.json:
        documents = [{**dataclasses.asdict(made), "total": made.total} for made in plans]
        print(json.dumps(documents if args.table else documents[0]))
    else:
        print("\n".join(table_lines(plans) if args.table else plan_lines(plans[0])))
    return 0 if any(made.recommended for made in plans) else 1


def _gib(count: float) -> str:
    return f"{count / GIB:9.2f} GiB"


def plan_lines(made: MachinePlan) -> Iterator[str]:
    """A plan for people; the numbers of the first part add up to its total."""
    chosen = made.recommended
    yield f"machine           {_gib(made.machine.memory)}, of which may be used {_gib(made.usable).strip()}"
    yield f"weights, mapped   {_gib(made.resident)}"
    sessions = f", {made.sessions} sessions" if made.sessions > 1 else ""
    yield f"context           {_gib(made.kv)}   {made.context} positions{sessions}"
    if made.mtp:
        yield f"MTP block         {_gib(made.mtp)}"
    yield f"one batch         {_gib(made.scratch)}"
    yield f"buffers           {_gib(made.transient)}"
    if chosen is None:
        yield f"does not fit: {made.refusal}"
        return
    yield f"expert cache      {_gib(chosen.cache_bytes)}   {chosen.slots} experts, {chosen.fraction:.1%} of all"
    yield f"total             {_gib(made.total)}   leaves {_gib(made.usable - made.total).strip()} to the page cache"
    yield ""
    yield f"streamed from the file: {_gib(made.routed_bytes).strip()} of experts, of which a token chooses " \
          f"{made.token_bytes / 1e9:.2f} GB"  # fmt: skip
    for c in made.classes:
        yield f"  {c['layers']:3d} layers of experts of {c['expert_bytes']:,} bytes: {c['slots']} slots"
    yield ""
    rates = [f"{rate / 1e9:g} GB/s" for rate in (made.machine.disk_rate, made.machine.page_cache_rate)]
    yield f"reading at {rates[0]} from the disk, {rates[1]} from the page cache:"
    yield "   cache      slots  of all   hits   read/token   from the disk   time"
    for size in made.sizes:
        mark = " <- recommended" if size.cache_bytes == chosen.cache_bytes else ""
        held = f"{_gib(size.cache_bytes)} {size.slots:7d}  {size.fraction:6.1%} {size.hits:6.1%}"
        read = f"{size.read_bytes / 1e9:7.2f} GB      {size.disk_bytes / 1e9:7.2f} GB  {size.seconds:5.2f} s"
        yield f"{held}   {read}{mark}"
    if made.published:
        rules = made.published
        yield f"the public ds4 executor's rules: {rules['slots']} slots of {rules['expert_bytes']:,} bytes from " \
              f"{_gib(rules['total']).strip()}; the same bytes in size classes: {rules['sized_slots']}"  # fmt: skip
    else:
        yield f"the public ds4 executor's rules: {made.published_refusal}"


def table_lines(plans: list[MachinePlan]) -> Iterator[str]:
    """One line per machine, as a Markdown table."""
    yield ("| memory | all but experts | left | cache | experts | of all | hits | read per token | from the disk | "
           "reading time | total |")  # fmt: skip
    yield "| ---: " * 11 + "|"
    for made in plans:
        head = f"| {made.machine.memory // GIB} GiB | {made.fixed / GIB:.2f} GiB | {made.left / GIB:.2f} GiB "
        size = made.recommended
        if size is None:
            yield head + "| does not fit | | | | | | | |"
            continue
        cells = (
            f"{size.cache_bytes / GIB:.2f} GiB", size.slots, f"{size.fraction:.1%}", f"{size.hits:.1%}",
            f"{size.read_bytes / 1e9:.2f} GB", f"{size.disk_bytes / 1e9:.2f} GB", f"{size.seconds:.2f} s",
            f"{made.total / GIB:.2f} GiB",
        )  # fmt: skip
        yield head + "".join(f"| {cell} " for cell in cells) + "|"
