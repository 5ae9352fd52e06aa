"""glm52 imatrix: how large the activations are that each column of each matrix meets."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from . import imatrix, judge
from .cli_judge import Progress
from .cli_options import add_engine_options, open_engine, whole_number
from .cli_terminal import complain
from .errors import ArgumentError
from .model import Model
from .tokenizer import Tokenizer

CHUNK = 512


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "imatrix", help="collect an importance matrix from a text",
        description="Runs a text and writes how large the activations are that each column of each matrix is "
        "multiplied with, per expert: glm52 quantize and llama-quantize take it with --imatrix.",
    )  # fmt: skip
    add = parser.add_argument
    add("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    add("--text", required=True, metavar="FILE", help="UTF-8 text like what the model will read; - standard input")
    add("-o", "--output", required=True, metavar="FILE", help="the importance matrix, whole or not at all")
    add("--chunk", type=whole_number(1, 2**31), default=CHUNK, metavar="N", help=f"tokens at a time (default {CHUNK})")
    add("--chunks", type=whole_number(0, 2**31), default=0, metavar="N", help="at most so many (default: all)")
    add("--special", action="store_true", help="control tokens written in the text are control tokens, not text")
    add("--with-output", action="store_true", help="the output matrix too")
    add("--add", metavar="FILE", help="go on from an importance matrix that is there")
    add("--force", action="store_true", help="write over FILE if it is there")
    add("--json", action="store_true", help="one JSON document on standard output")
    add_engine_options(parser)
    parser.set_defaults(command=run)


def _chunks(model: Model, args: argparse.Namespace) -> list[list[int]]:
    data = sys.stdin.buffer.read() if args.text == "-" else Path(args.text).read_bytes()
    text = data.decode("utf-8", "surrogateescape").removesuffix("\n")
    begin = None
    if model.metadata.get("tokenizer.ggml.add_bos_token", False):
        begin = int(model.metadata["tokenizer.ggml.bos_token_id"])
    tokens = Tokenizer.from_model(model).encode(text, special=args.special)
    return judge.cut(tokens, args.chunk, 0, args.chunks, begin).tokens.tolist()


def run(args: argparse.Namespace) -> int:
    if os.path.exists(args.output) and not args.force:
        raise ArgumentError(f"{args.output} exists; it is not written over unless that is asked for (--force)")
    args.context = args.chunk
    started = time.monotonic()
    with Model.open(args.model) as model:
        chunks = _chunks(model, args)
        found = imatrix.load(args.add) if args.add else imatrix.Imatrix()
        found.chunk_size = args.chunk
        found.datasets.append(os.path.basename(args.text))
        progress = Progress(len(chunks))
        with open_engine(model, args) as engine:
            for warning in engine.warnings:
                complain(warning, "warning")
            try:
                imatrix.collect(
                    engine, chunks, found, args.with_output,
                    lambda done: progress(done, f"{len(found.sums)} matrices"),
                )  # fmt: skip
            finally:
                progress.clear()
        found.save(args.output, args.force)
    seconds = time.monotonic() - started
    idle = {name: int((sums.counts == 0).sum()) for name, sums in found.sums.items() if (sums.counts == 0).any()}
    if args.json:
        print(json.dumps({"output": os.path.abspath(args.output), "matrices": len(found.sums), "chunks": len(chunks),
                          "chunk": args.chunk, "seconds": seconds, "without_rows": idle}))  # fmt: skip
        return 0
    print(f"{args.output}: {len(found.sums)} matrices, {len(chunks)} chunks of {args.chunk} tokens, {seconds:.1f} s")
    if idle:
        complain(f"{sum(idle.values())} experts of {len(idle)} tensors met no token; they are quantised as if all "
                 "their columns were alike", "warning")  # fmt: skip
    return 0
