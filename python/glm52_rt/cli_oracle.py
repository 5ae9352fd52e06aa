"""glm52 oracle: runs that are written down, repeated and compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import oracle
from .cli_options import add_engine_options, machine_memory, whole_number
from .cli_stream import streaming_of
from .errors import ArgumentError
from .model import Model
from .tokenizer import Tokenizer

SHOWN_MAX = 20


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("oracle", help="record a run, repeat it, compare", description=__doc__)
    kinds = parser.add_subparsers(metavar="COMMAND", required=True)
    record = kinds.add_parser("record", help="run a prompt and write down what happened")
    record.add_argument("model", metavar="MODEL")
    record.add_argument("file", metavar="FILE", help="the record; compressed if the name ends in .gz")
    prompt = record.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT")
    prompt.add_argument("--prompt-file", metavar="FILE")
    prompt.add_argument("--ids", metavar="N,N,...", help="token ids")
    record.add_argument("-n", "--steps", type=whole_number(0, 2**20), default=8, metavar="N",
                        help="tokens behind the prompt (default 8)")  # fmt: skip
    record.add_argument("--full", action="store_true", help="every selected position and route, not digests")
    record.add_argument("--tensors", action="store_true", help="a digest of each tensor; reads the whole model")
    add_engine_options(record)
    record.set_defaults(command=record_run, context=None)
    verify = kinds.add_parser("verify", help="repeat a record on a model; exit code 1 if anything differs")
    verify.add_argument("model", metavar="MODEL")
    verify.add_argument("file", metavar="FILE")
    verify.add_argument("--any-model", action="store_true", help="also on a model of other content")
    add_engine_options(verify)
    verify.set_defaults(command=verify_run)
    pair = kinds.add_parser("diff", help="compare two records; exit code 1 if they differ")
    pair.add_argument("first", metavar="FILE")
    pair.add_argument("second", metavar="FILE")
    pair.set_defaults(command=lambda args: report(oracle.diff(oracle.read(args.first), oracle.read(args.second))))
    show = kinds.add_parser("show", help="what a record is of")
    show.add_argument("file", metavar="FILE")
    show.set_defaults(command=show_record)


def record_run(args: argparse.Namespace) -> int:
    with Model.open(args.model) as model:
        text = args.prompt
        if args.prompt_file:
            text = Path(args.prompt_file).read_text(encoding="utf-8")
        ids = ids_of(args.ids) if text is None else Tokenizer.from_model(model).encode(text)
        lines = oracle.record(
            model, ids, args.steps, text=text, backend=args.backend, threads=args.threads,
            streaming=streaming_of(args, machine_memory()), full=args.full, tensors=args.tensors, quality=args.quality,
            kv_type=args.kv_type, context=args.context,
        )  # fmt: skip
    oracle.write(lines, args.file)
    return 0


def ids_of(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ArgumentError(f"{text!r} is not a list of token ids such as 1,2,3") from None


def verify_run(args: argparse.Namespace) -> int:
    lines = oracle.read(args.file)
    with Model.open(args.model) as model:
        return report(oracle.verify(
            model, lines, backend=args.backend, threads=args.threads, streaming=streaming_of(args, machine_memory()),
            check_identity=not args.any_model,
        ))  # fmt: skip


def report(found: list[oracle.Difference]) -> int:
    """Prints the first differences. Returns 1 if one of them counts."""
    for difference in found[:SHOWN_MAX]:
        print(difference)
    if len(found) > SHOWN_MAX:
        print(f"... and {len(found) - SHOWN_MAX} more")
    counts = any(not difference.inside_margin for difference in found)
    if not counts:
        print("the same")
    sys.stdout.flush()
    return int(counts)


def show_record(args: argparse.Namespace) -> int:
    print("\n".join(oracle.describe(oracle.read(args.file))))
    return 0
