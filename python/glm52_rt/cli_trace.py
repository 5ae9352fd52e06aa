"""glm52 trace: what recorded routes say about caches that were not there, and about each other."""

from __future__ import annotations

import argparse
import csv
import json
from dataclasses import asdict, fields
from typing import Any

from .cli_options import number
from .errors import UnsupportedError
from .native import POLICIES
from .trace import Point, compare, read_trace, simulate


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("trace", help="replay or compare routes that `run --trace` recorded",
                                 description=__doc__)  # fmt: skip
    kinds = parser.add_subparsers(metavar="COMMAND", required=True)
    replay = kinds.add_parser("simulate", help="hit rate and bytes per token for cache sizes and policies")
    replay.add_argument("trace", metavar="FILE")
    replay.add_argument("--policy", action="append", choices=POLICIES, help="may be given again (default: all)")
    replay.add_argument("--fraction", action="append", type=number(0, 1), metavar="F",
                        help="size, a share of all experts; may be given again (default: eight)")  # fmt: skip
    replay.add_argument("--csv", metavar="FILE", help="write the points")
    replay.add_argument("--png", metavar="FILE", help="draw them (needs matplotlib)")
    replay.add_argument("--json", action="store_true", help="one JSON document on standard output")
    replay.set_defaults(command=simulate_trace)
    pair = kinds.add_parser("compare", help="where two traces of one text differ; exit code 1 if they do")
    pair.add_argument("first", metavar="FILE")
    pair.add_argument("second", metavar="FILE")
    pair.add_argument("--json", action="store_true", help="one JSON document on standard output")
    pair.set_defaults(command=compare_traces)


def simulate_trace(args: argparse.Namespace) -> int:
    """Prints, writes and draws the curve of a trace."""
    header, steps = read_trace(args.trace)
    options = {"fractions": sorted(set(args.fraction))} if args.fraction else {}
    points = list(simulate(header, steps, args.policy or POLICIES, **options))
    if args.csv:
        write_csv(args.csv, points)
    if args.png:
        draw(args.png, points)
    if args.json:
        print(json.dumps([asdict(point) for point in points]))
        return 0
    print("policy      of all       cache    slots    hits    bytes/token  evictions")
    for p in points:
        print(f"{p.policy:8s} {p.fraction:9.2%} {p.cache_bytes / 1e9:8.3f} GB {p.slots:8d} {p.hit_rate:7.2%} "
              f"{p.bytes_per_token / 1e6:11.2f} MB {p.evictions:10d}")  # fmt: skip
    return 0


def write_csv(path: str, points: list[Point]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Point)]
        writer.writerow(names)
        writer.writerows([getattr(point, name) for name in names] for point in points)


def draw(path: str, points: list[Point]) -> None:
    """Two panels over the size of the cache: hit rate, and bytes read per token."""
    try:
        import matplotlib
    except ImportError:
        raise UnsupportedError("--png needs matplotlib: pip install glm52-rt[plots]") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (rates, reads) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for policy in dict.fromkeys(point.policy for point in points):
        own = [point for point in points if point.policy == policy]
        sizes = [point.cache_bytes / 1e9 for point in own]
        rates.plot(sizes, [point.hit_rate * 100 for point in own], marker="o", label=policy)
        reads.plot(sizes, [point.bytes_per_token / 1e6 for point in own], marker="o", label=policy)
    rates.set(xlabel="expert cache, GB", ylabel="experts at hand, %", ylim=(0, 100))
    reads.set(xlabel="expert cache, GB", ylabel="read per token, MB")
    reads.set_ylim(bottom=0)
    for axes in (rates, reads):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path, format="png", dpi=120)
    pyplot.close(figure)


def compare_traces(args: argparse.Namespace) -> int:
    """Prints how two traces differ. Returns 1 if they do."""
    found = compare(read_trace(args.first), read_trace(args.second))
    if args.json:
        print(json.dumps(asdict(found)))
        return int(found.first is not None)
    print(f"{found.tokens} tokens in both, {found.routes} routes: {found.equal} equal "
          f"({found.equal / found.routes:.2%}), {found.shared_experts:.2%} of their experts shared")  # fmt: skip
    if found.first is not None:
        print(f"first difference at position {found.first[0]} in layer {found.first[1]}")
        worst = sorted(found.per_layer.items(), key=lambda item: item[1])[:8]
        print("layers that differ most: " + ", ".join(f"{layer} ({share:.1%} equal)" for layer, share in worst))
    return int(found.first is not None)
