"""glm52 bench: how fast a model opens, reads prompts, decodes and streams on this machine, beside llama.cpp."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import bench, bench_peer, machine
from .cli_options import add_engine_options, open_engine, whole_number
from .errors import ArgumentError, Error
from .model import Model
from .tokenizer import Tokenizer

LENGTHS = "128,512"


def lengths(text: str) -> list[int]:
    wrong = bench.bad_number(text)
    if wrong:
        raise argparse.ArgumentTypeError(wrong)
    return sorted(set(map(int, text.split(","))))


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "bench", help="how fast a model opens, reads a prompt, decodes and streams",
        description="Every run is a process of its own; runs of llama.cpp, if it is there, alternate with ours. Cold: "
        "the page cache was asked to forget the file, and mincore says that it did. Warm: behind a prompt that is not "
        "counted.",
    )  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    add("--lengths", type=lengths, default=lengths(LENGTHS), metavar="N,N,...",
        help=f"tokens of the prompts (default {LENGTHS})")  # fmt: skip
    add("-n", "--tokens", type=whole_number(1, 2**20), default=32, metavar="N",
        help="tokens decoded behind each prompt (default 32)")  # fmt: skip
    add("--runs", type=whole_number(1, 1000), default=3, metavar="N", help="runs, or pairs of runs (default 3)")
    add("--text", metavar="FILE", help="take tokens from a text (default: random ones)")
    add("--peer", metavar="PATH", help="llama.cpp's llama-bench (default: llama-cpp-python if it is installed)")
    add("--no-peer", action="store_true", help="measure this runtime alone")
    add("--no-cold", action="store_true", help="leave the page cache alone")
    add("--json", action="store_true", help="one JSON document on standard output")
    add("--one-run", action="store_true", help=argparse.SUPPRESS)
    add_engine_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    if args.one_run:
        print(json.dumps(one_run(json.load(sys.stdin))))
        return 0
    if args.tokens < bench.TOKENS_MIN:
        raise ArgumentError(f"{args.tokens} decoded tokens say nothing: at least {bench.TOKENS_MIN}")
    if args.peer is not None and not os.access(args.peer, os.X_OK):
        raise ArgumentError(f"--peer {args.peer}: no program that can be run")
    found = measure(args)
    print(json.dumps(found) if args.json else "\n".join(bench.render(found)))
    return 0


def one_run(order: dict[str, Any]) -> bench.Run:
    """In a process of its own: what in_process asked for."""
    args = argparse.Namespace(**order["args"])

    def opened(model: Model, context: int) -> Any:
        args.context = context
        return open_engine(model, args)

    return bench.run(args.model, opened, bench.Job(**order["job"]), order["ids"])


def in_process(args: argparse.Namespace, job: bench.Job, ids: list[int] | None) -> bench.Run:
    """A run in a process of its own. Raises Error with what it had to say if it fails."""
    options = {name: value for name, value in vars(args).items() if name != "command"}
    order = json.dumps({"args": options, "job": vars(job), "ids": ids})
    child = subprocess.run([*bench.interpreter(), "bench", args.model, "--one-run"], input=order, capture_output=True,
                           text=True, check=False, env=environment())  # fmt: skip
    if child.returncode != 0:
        said = child.stderr.strip().splitlines()
        why = said[-1].removeprefix("glm52: error: ") if said else f"exit {child.returncode}"
        raise Error(f"a run failed: {why}")
    return json.loads(child.stdout)


def environment() -> dict[str, str]:
    """Ours, with this package where other processes find it."""
    own = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH", ""))))}


def told(number: int, load: float) -> None:
    print(f"pair {number}, load {load:.1f}", file=sys.stderr, flush=True)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    threads = args.threads or machine.usable_processors()
    with Model.open(args.model) as model:
        paths, longest = list(model.paths), max(args.lengths) + args.tokens
        if longest > model.shape.context_max:
            raise ArgumentError(f"{longest} tokens: the model was made for {model.shape.context_max}")
        about = {"name": Path(model.path).name, "path": model.path, "bytes": model.file_bytes,
                 "types": bench.file_kind(model)}  # fmt: skip
        ids = text_ids(model, args.text, longest) if args.text else None
    peer = None if args.no_peer else bench_peer.find(args.peer, environment())
    cold: dict[str, Any] = {"cold": False, "how": "--no-cold", "cached": None}
    if not args.no_cold:
        cold = bench.make_cold(paths)
        if cold["cold"]:
            cold["run"] = in_process(args, bench.Job(min(args.lengths), args.tokens, False), ids)
    table, warm, loads = [], [], []
    for length in args.lengths:
        pairs = bench.alternate(
            lambda length=length: in_process(args, bench.Job(length, args.tokens, True), ids),
            peer and (lambda length=length: peer.run(paths[0], threads, length, args.tokens)), args.runs, told,
        )  # fmt: skip
        table.append(bench.row_of(length, pairs))
        warm += [pair["ours"] for pair in pairs]
        loads += [pair["load"] for pair in pairs]
    return {
        "glm52_bench": bench.FORMAT, "model": about, "machine": machine.processor() | machine.memory(),
        "threads": threads, "tokens": args.tokens, "pairs": args.runs, "text": args.text, "direct_io": args.direct_io,
        "cold": cold, "table": table,
        "warm": warm, "loads": loads, "quiet": bench.is_quiet(loads, threads),
        "peak_bytes": max(run_["peak_bytes"] for run_ in warm), "peer": peer and peer.about,
        "peer_missing": "the peer was left out" if args.no_peer else bench_peer.HOW_TO_GET,
    }  # fmt: skip


def text_ids(model: Model, path: str, count: int) -> list[int]:
    ids = Tokenizer.from_model(model).encode(Path(path).read_bytes().decode("utf-8", "surrogateescape"))
    if len(ids) < count:
        raise ArgumentError(f"{path}: {len(ids)} tokens, {count} are needed")
    return ids[:count]
