"""glm52 quantize: a GGUF with other types of weights."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from . import imatrix, quantize
from .cli_options import THREADS_MAX, whole_number
from .cli_terminal import StatusLine, complain, visible
from .errors import ArgumentError
from .model import Model

# Without an importance matrix these lose so much that their users should hear of it.
_NEED_IMPORTANCE = ("IQ2_XXS", "IQ2_XS", "IQ3_XXS", "Q2_K")


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "quantize", help="write a GGUF with other types of weights",
        description="Writes a GGUF with other types of weights. RULES is a list, joined by commas, of PATTERN=TYPE "
        "(a regular expression searched for in tensor names, * for all; the first that fits decides), of types alone "
        "(*=TYPE) and of presets.",
        epilog="presets: " + "; ".join(f"{name}: {rules}" for name, rules in quantize.PRESETS.items()),
    )  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    add("rules", metavar="RULES", help='such as "ffn_.*_exps=iq2_xxs, *=q8_0", published-q4_k, q8_0')
    add("-o", "--output", metavar="FILE", help="the new file, whole or not at all")
    add("--imatrix", metavar="FILE", help="importance of columns, of glm52 imatrix or llama-imatrix")
    add("--threads", type=whole_number(0, THREADS_MAX), default=0, metavar="T", help="0: one per processor (default)")
    add("--dry-run", action="store_true", help="print what would become of each tensor, and the size")
    add("--errors", action="store_true", help="measure the relative rms error of each type")
    add("--requantize", action="store_true", help="take weights that are quantised already: they lose twice")
    add("--resume", action="store_true", help="go on where an interrupted call with the same arguments stopped")
    add("--force", action="store_true", help="write over FILE if it is there")
    add("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(command=run)


class ProgressLine(StatusLine):
    """Share, rate, time left, tensor."""

    def __init__(self) -> None:
        super().__init__()
        self._first: int | None = None

    def __call__(self, done: int, total: int, name: str) -> None:
        self._first = done if self._first is None else self._first
        elapsed = self.due(done >= total)
        if elapsed is None:
            return
        rate = (done - self._first) / elapsed if elapsed > 0 else 0
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        self.show(f"{100 * done / max(1, total):5.1f} %, {rate / 1e6:.0f} MB/s{left}, {visible(name)}")


def _document(job: quantize.Plan) -> dict[str, Any]:
    return {
        "model": {"path": job.model.path, "bytes": job.model.file_bytes},
        "bytes": job.layout.file_bytes,
        "types": {name: {"tensors": tensors, "bytes": size} for name, (tensors, size) in job.by_type().items()},
        "without_importance": len(job.unweighted()),
    }


def _show_types(job: quantize.Plan, losses: dict[str, quantize.Loss]) -> None:
    for name, (tensors, size) in sorted(job.by_type().items(), key=lambda item: -item[1][1]):
        loss = f"   error {100 * losses[name].relative:.3f} %" if name in losses and losses[name].total else ""
        print(f"{name:8} {tensors:5} tensors {size:18,} bytes{loss}")
    print(f"{'file':8} {len(job.choices):5} tensors {job.layout.file_bytes:18,} bytes")


def _show_choices(job: quantize.Plan) -> None:
    for choice in job.choices:
        shape = " x ".join(map(str, choice.tensor.shape))
        print(f"{visible(choice.tensor.name):36} {shape:20} {choice.tensor.type:>7} -> {choice.type:8} "
              f"{choice.entry.bytes:15,} bytes   {choice.why}")  # fmt: skip


def _warn(job: quantize.Plan) -> None:
    bare = set(job.unweighted())
    low = [c for c in job.choices if c.type in _NEED_IMPORTANCE and c.tensor.name in bare]
    if low:
        complain(f"{len(low)} tensors, {low[0].tensor.name} the first, become {low[0].type} without an importance "
                 "matrix; with one (glm52 imatrix) they would lose less", "warning")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.output is None and not args.dry_run:
        raise ArgumentError("say where to write: -o FILE, or --dry-run to see what would be written")
    with Model.open(args.model) as model:
        found = imatrix.load(args.imatrix) if args.imatrix else None
        job = quantize.plan(model, args.rules, found, args.imatrix or "", args.requantize)
        document = _document(job)
        if args.dry_run:
            if args.json:
                document["tensors"] = [
                    {"name": c.tensor.name, "from": c.tensor.type, "to": c.type, "bytes": c.entry.bytes, "why": c.why}
                    for c in job.choices
                ]
                print(json.dumps(document))
            else:
                _show_choices(job)
                _show_types(job, {})
            return 0
        _warn(job)
        line = ProgressLine()
        try:
            result = quantize.run(
                job, args.output, threads=args.threads, overwrite=args.force, resume=args.resume, measure=args.errors,
                progress=line,
            )  # fmt: skip
        finally:
            line.clear()
        if args.json:
            document |= {
                "output": os.path.abspath(args.output), "seconds": result.seconds,
                "errors": {name: loss.relative for name, loss in result.losses.items()} if args.errors else None,
            }  # fmt: skip
            print(json.dumps(document))
        else:
            _show_types(job, result.losses)
            rate = result.read_bytes / max(result.seconds, 1e-9) / 1e6
            print(f"{args.output}: written in {result.seconds:.1f} s, {rate:.0f} MB/s read")
    return 0
