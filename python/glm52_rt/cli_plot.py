"""glm52 plot: pictures of traces, records and measurements, as PNG or SVG."""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path
from typing import Any

from . import oracle
from .cli_options import whole_number
from .errors import ArgumentError
from .native import POLICIES
from .trace import BELADY, Point, habits, read_trace, simulate

FRACTIONS = (0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9, 1.0)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("plot", help="draw traces, records and measurements", description=__doc__)
    kinds = parser.add_subparsers(metavar="PICTURE", required=True)

    def kind(name: str, source: str, help_text: str, command: Any, many: bool = False) -> argparse.ArgumentParser:
        made = kinds.add_parser(name, help=help_text, description=help_text)
        made.add_argument("source", metavar=source, **({"nargs": "+"} if many else {}))
        made.add_argument("-o", "--out", required=True, metavar="FILE", help="ends in .png or .svg")
        made.add_argument("--title", default="", metavar="TEXT")
        made.set_defaults(command=command)
        return made

    kind("experts", "TRACE", "how often each expert of each layer is chosen; of a trace or a usage ledger", experts)
    curves_parser = kind("curves", "TRACE", "hit rate and bytes by size of the cache; of a trace, or the CSV of trace "
                         "simulate", curves)  # fmt: skip
    curves_parser.add_argument("--policy", action="append", choices=(*POLICIES, BELADY),
                               help="may be given again (default: all)")  # fmt: skip
    pick = kind("selection", "RECORD", "which positions each query chose, by layer; of glm52 oracle record --full",
                selection)  # fmt: skip
    pick.add_argument("--last", type=whole_number(1, 2**31), default=0, metavar="N",
                      help="the last N queries only (default: all)")  # fmt: skip
    kind("timeline", "BENCH", "rate of reads and waiting, token by token; of glm52 bench --json with a cache", timeline)
    kind("bench", "BENCH", "prefill and decode by context; of one or more glm52 bench --json", bench, many=True)


def _draw(args: argparse.Namespace, size: tuple[float, float], draw: Any) -> int:
    from .plots import Canvas

    with Canvas(args.out, size) as canvas:
        draw(canvas)
    return 0


def experts(args: argparse.Namespace) -> int:
    from .plots import draw_experts

    counts = expert_counts(args.source)
    return _draw(args, (8.2, 1.6 + 0.42 * min(12, max(4, len(counts)))),
                 lambda canvas: draw_experts(canvas, counts, args.title))  # fmt: skip


def expert_counts(path: str) -> dict[int, list[int]]:
    """Per layer how often each expert was chosen: of a usage ledger (native/stream/usage.c) or a trace."""
    with open(path, encoding="utf-8", errors="replace") as file:
        head = file.readline().split()
        if head[:1] != ["glm52-usage"]:
            return {layer.layer: list(layer.counts) for layer in habits(*read_trace(path))}
        try:
            number, layers, size = (int(word) for word in head[1:])
            if number != 1 or not 0 < layers <= 512 or not 0 < size <= 1 << 16:
                raise ValueError(" ".join(head))
            counts: dict[int, list[int]] = {}
            for line in file:
                if line.startswith("end"):
                    break
                layer, expert, count = (int(word) for word in line.split())
                if not (0 <= layer < layers and 0 <= expert < size and count >= 0):
                    raise ValueError(line.strip())
                counts.setdefault(layer, [0] * size)[expert] = count
        except ValueError as error:
            raise ArgumentError(f"{path}: a ledger that can't be read ({error})") from None
    if not counts:
        raise ArgumentError(f"{path}: the ledger is empty")
    return counts


def curves(args: argparse.Namespace) -> int:
    from .plots import draw_curves

    policies = args.policy or (*POLICIES, BELADY)
    if args.source.endswith(".csv"):
        points = [point for point in read_points(args.source) if point.policy in policies]
    else:
        points = list(simulate(*read_trace(args.source), policies, FRACTIONS))
    if not points:
        raise ArgumentError(f"{args.source}: no point of {', '.join(policies)}")
    return _draw(args, (9, 4), lambda canvas: draw_curves(canvas, points, args.title))


def read_points(path: str) -> list[Point]:
    """What glm52 trace simulate --csv wrote."""
    kinds = {"policy": str, "cache_bytes": int, "slots": int, "misses": int, "evictions": int}
    try:
        with open(path, encoding="utf-8", newline="") as file:
            return [Point(**{name: kinds.get(name, float)(value) for name, value in row.items()})
                    for row in csv.DictReader(file)]  # fmt: skip
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"{path}: this is no CSV of glm52 trace simulate ({error})") from None


def selection(args: argparse.Namespace) -> int:
    from .plots import draw_selection

    lines = oracle.read(args.source)
    steps = [line for line in lines if "layers" in line and "step" in line]
    if not steps or "selected_positions" not in steps[0]["layers"][0]:
        raise ArgumentError(f"{args.source}: has no selected positions: record it with --full")
    layers: dict[int, list[list[int]]] = {}
    for step in steps:
        for number, layer in enumerate(step["layers"]):
            layers.setdefault(number, []).extend(layer["selected_positions"])
    full = [number for number in sorted(layers) if number == 0 or layers[number] != layers[number - 1]]
    count = len(layers[0])
    first = max(0, count - args.last) if args.last else 0
    layers = {number: rows[first:] for number, rows in layers.items()}
    rows = -(-len(full) // min(2, len(full)))
    return _draw(args, (8.2, 1.2 + 2.5 * rows), lambda canvas: draw_selection(canvas, layers, full, first, args.title))


def read_bench(path: str) -> dict[str, Any]:
    """A document of glm52 bench --json. Raises ArgumentError."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
        if found["glm52_bench"] != 1:
            raise ValueError(f"format {found['glm52_bench']}")
    except (ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{path}: this is no document of glm52 bench --json ({error})") from None
    return found


def timeline(args: argparse.Namespace) -> int:
    from .plots import draw_timeline

    runs = read_bench(args.source)["warm"]
    tokens = runs[-1].get("timeline")
    if not tokens:
        raise ArgumentError(f"{args.source}: nothing was streamed: run glm52 bench with --cache or --experts")
    return _draw(args, (8.2, 5), lambda canvas: draw_timeline(canvas, tokens, args.title))


def bench(args: argparse.Namespace) -> int:
    from .plots import draw_bench, legend_columns

    series: list[tuple[str, dict[str, Any]]] = []
    for path in args.source:
        found = read_bench(path)
        of = f", {found['model']['name']}" if len(args.source) > 1 else ""
        peer = found["peer"]["name"] if found["peer"] else ""
        for side, label in (("ours", "glm52-rt" + of), ("peer", peer + of)):
            measures = {
                measure: [(row["context"], row[measure][side]) for row in found["table"] if side in row[measure]]
                for measure in ("prefill", "decode")
            }
            if all(measures.values()):
                series.append((label, measures))
    if not series:
        raise ArgumentError("nothing was measured")
    lines = -(-len(series) // legend_columns([name for name, _ in series]))
    return _draw(args, (9, 3.9 + 0.25 * lines), lambda canvas: draw_bench(canvas, series, args.title))
