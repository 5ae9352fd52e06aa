"""glm52 trace: what recorded routes say about experts, about caches that were not there, and about each other."""

from __future__ import annotations

import argparse
import csv
import json
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .cli_options import add_engine_options, number, open_engine, whole_number
from .cli_terminal import PrefillBar, complain
from .errors import ArgumentError
from .model import Model
from .native import POLICIES
from .tokenizer import Tokenizer
from .trace import BELADY, Point, Recorder, compare, habits, read_trace, simulate


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("trace", help="record, replay or compare the experts that a model chooses",
                                 description=__doc__)  # fmt: skip
    kinds = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_record(kinds)
    show = kinds.add_parser("show", help="how evenly experts are chosen, layer by layer")
    show.add_argument("trace", metavar="FILE")
    show.add_argument("--json", action="store_true", help="one JSON document on standard output")
    show.set_defaults(command=show_trace)
    replay = kinds.add_parser("simulate", help="hit rate and bytes per token for cache sizes and policies")
    replay.add_argument("trace", metavar="FILE")
    replay.add_argument("--policy", action="append", choices=(*POLICIES, BELADY),
                        help="may be given again (default: all, and belady, the bound)")  # fmt: skip
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


def _add_record(kinds: Any) -> None:
    record = kinds.add_parser("record", help="feed a text token by token, as if the model wrote it",
                              description="Feeds a text token by token, as if the model wrote it, and records the "
                              "experts that each layer chooses. With --pilot measure and a cache, also says how well "
                              "the next layer's experts were predicted.")  # fmt: skip
    record.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    record.add_argument("trace", metavar="FILE")
    record.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text; - reads standard input")
    record.add_argument("--special", action="store_true", help="control tokens written in the text become them")
    record.add_argument(
        "-n", "--tokens", type=whole_number(1, 2**31), default=2**31, metavar="N",
        help="tokens to feed at most (default: all); the context begins anew when it is full",
    )  # fmt: skip
    record.add_argument("--spread", action="store_true",
                        help="take the N tokens from all of the text, in pieces of the context's size")  # fmt: skip
    record.add_argument("--json", action="store_true", help="one JSON document on standard output")
    add_engine_options(record)
    record.set_defaults(command=record_trace, context=1024)


def pieces_of(ids: list[int], size: int, most: int, spread: bool) -> list[list[int]]:
    """At most most tokens in pieces of at most size: the first ones, or pieces that begin evenly far apart."""
    if not spread or len(ids) <= most:
        return [ids[at : min(at + size, most)] for at in range(0, min(len(ids), most), size)]
    count = max(1, most // size)
    size = min(size, most)
    return [ids[start : start + size] for start in (number * (len(ids) - size) // max(1, count - 1)
                                                    for number in range(count))]  # fmt: skip


def record_trace(args: argparse.Namespace) -> int:
    """Writes a trace; prints what it is of."""
    data = sys.stdin.buffer.read() if args.text == "-" else Path(args.text).read_bytes()
    with Model.open(args.model) as model:
        ids = Tokenizer.from_model(model).encode(data.decode("utf-8", "surrogateescape"), special=args.special)
        pieces = pieces_of(ids, args.context, args.tokens, args.spread)
        if not pieces:
            raise ArgumentError(f"{args.text}: no tokens")
        total = sum(map(len, pieces))
        with open_engine(model, args) as engine, open(args.trace, "w", encoding="utf-8") as file:
            for warning in engine.warnings:
                complain(warning, "warning")
            engine.observe(Recorder(model, file))
            bar, done = PrefillBar(0, total), 0
            for piece in pieces:
                engine.reset()
                for token in piece:
                    engine.eval(token)
                    done += 1
                    bar(done)
            bar.clear()
            stats = engine.stats().stream
    found: dict[str, Any] = {"tokens": total, "trace": args.trace}
    if stats is not None:
        found |= {"hit_rate": stats.hit_rate, "hits": stats.hits, "misses": stats.misses}
        if stats.pilot_predictions:
            found |= {
                "pilot_recall": stats.pilot_recall, "pilot_precision": stats.pilot_precision,
                "pilot_rows": stats.pilot_predictions, "pilot_exact_rows": stats.pilot_exact_rows,
            }  # fmt: skip
    if args.json:
        print(json.dumps(found))
        return 0
    line = f"{total} tokens"
    if stats is not None:
        line += f", experts at hand {stats.hit_rate:.2%}"
    if "pilot_recall" in found:
        line += (f", predicted {found['pilot_recall']:.2%} of the next layer's experts, all of them in "
                 f"{stats.pilot_exact_rows / stats.pilot_predictions:.2%} of "
                 f"{stats.pilot_predictions} rows")  # fmt: skip
    print(line)
    return 0


def show_trace(args: argparse.Namespace) -> int:
    """Prints how experts are chosen."""
    found = habits(*read_trace(args.trace))
    if args.json:
        print(json.dumps([asdict(layer) for layer in found]))
        return 0
    print("layer   tokens  max/mean  top quarter  as the token before")
    for h in found:
        print(f"{h.layer:5d} {h.tokens:8d} {h.load:9.2f} {h.top_quarter:12.1%} {h.repeated:20.1%}")
    return 0


def simulate_trace(args: argparse.Namespace) -> int:
    """Prints, writes and draws the curve of a trace."""
    header, steps = read_trace(args.trace)
    options = {"fractions": sorted(set(args.fraction))} if args.fraction else {}
    points = list(simulate(header, steps, args.policy or (*POLICIES, BELADY), **options))
    if args.csv:
        write_csv(args.csv, points)
    if args.png:
        from .plots import Canvas, draw_curves

        with Canvas(args.png, (10, 4)) as canvas:
            draw_curves(canvas, points)
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
