"""glm52 perplexity and glm52 kld: how well a model predicts a text, and how far it is from a reference."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from . import judge, kld_file
from .cli_options import add_engine_options, open_engine, whole_number
from .cli_terminal import StatusLine, complain
from .engine import Engine
from .errors import ArgumentError
from .model import Model
from .tokenizer import Tokenizer

CONTEXT = 512


def add_parsers(commands: Any) -> None:
    ppl = commands.add_parser(
        "perplexity", help="how well a model predicts a text",
        description="How well a model predicts a text: mean loss, perplexity with its error, bits per byte.",
    )  # fmt: skip
    ppl.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    ppl.add_argument("--text", required=True, metavar="FILE", help="UTF-8 text; - reads standard input")
    ppl.add_argument("--stride", type=whole_number(1, 2**31), default=0, metavar="S",
                     help="chunks begin S tokens apart, the last S of each are scored (default: side by side, the "
                     "second half scored, as llama-perplexity)")  # fmt: skip
    _add_common(ppl)
    ppl.set_defaults(command=run_perplexity)
    kld = commands.add_parser(
        "kld", help="how far a model is from a reference, token by token",
        description="With --record: runs a text and writes down what the model thought behind each token. With REF: "
        "runs the same text and says how far the model is from it: top-1 agreement and Kullback-Leibler divergence.",
    )  # fmt: skip
    kld.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    kld.add_argument("reference", metavar="REF", nargs="?", help="what --record wrote, or llama-perplexity's file")
    kld.add_argument("--record", metavar="REF", help="write the reference of this model; needs --text")
    kld.add_argument("--text", metavar="FILE", help="UTF-8 text to record; - reads standard input")
    kld.add_argument("--full", action="store_true", help="record float32 logits, not 16 bits each")
    _add_common(kld)
    kld.set_defaults(command=run_kld)


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--chunks", type=whole_number(0, 2**31), default=0, metavar="N", help="at most so many")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    add_engine_options(parser)
    parser.set_defaults(context=CONTEXT)
    for action in parser._actions:
        if action.dest == "context":
            action.help = f"tokens of a chunk (default {CONTEXT})"


class Progress(StatusLine):
    """Chunks done, figures so far, time left."""

    def __init__(self, total: int) -> None:
        super().__init__()
        self._total = total

    def __call__(self, done: int, text: str) -> None:
        elapsed = self.due(done >= self._total)
        if elapsed is not None:
            left = elapsed / done * (self._total - done)
            self.show(f"chunk {done}/{self._total}, {text}, {left:.0f} s left")


def windows_of(model: Model, tokenizer: Tokenizer, args: argparse.Namespace, stride: int = 0) -> judge.Windows:
    """Chunks of the text that args name. As llama-perplexity does, one newline at its end is left out, and a model
    that wants a token at the beginning gets it in place of each chunk's first."""
    if args.text == "-":
        data = sys.stdin.buffer.read()
    else:
        data = Path(args.text).read_bytes()
    text = data.decode("utf-8", "surrogateescape").removesuffix("\n")
    begin = None
    if model.metadata.get("tokenizer.ggml.add_bos_token", False):
        begin = int(model.metadata["tokenizer.ggml.bos_token_id"])
    return judge.cut(tokenizer.encode(text), args.context, stride, args.chunks, begin)


def _engine(model: Model, args: argparse.Namespace) -> Engine:
    engine = open_engine(model, args)
    for warning in engine.warnings:
        complain(warning, "warning")
    return engine


def _document(model: Model, engine: Engine, args: argparse.Namespace) -> dict[str, Any]:
    return {
        "model": {"path": model.path, "identity": model.identity, "bytes": model.file_bytes},
        "options": {"backend": engine.backend, "quality": args.quality, "kv_type": args.kv_type},
    }  # fmt: skip


def run_perplexity(args: argparse.Namespace) -> int:
    with Model.open(args.model) as model:
        tokenizer = Tokenizer.from_model(model)
        windows = windows_of(model, tokenizer, args, args.stride)
        progress = Progress(windows.count)
        with _engine(model, args) as engine:
            try:
                found = judge.perplexity(
                    engine, windows, lambda token: len(tokenizer.decode_bytes([token])),
                    lambda done, so_far: progress(done, f"perplexity {so_far:.4f}"),
                )  # fmt: skip
            finally:
                progress.clear()
            if args.json:
                print(json.dumps({**_document(model, engine, args), "stride": args.stride, **asdict(found)}))
                return 0
    print(f"{found.scored} tokens scored in {found.windows} chunks of {found.context}")
    print(f"loss          {found.loss:.4f} +/- {found.loss_error:.4f} nats per token")
    print(f"perplexity    {found.perplexity:.4f} +/- {found.perplexity_error:.4f}")
    if found.bits_per_byte is not None:
        print(f"bits per byte {found.bits_per_byte:.4f}")
    return 0


def run_kld(args: argparse.Namespace) -> int:
    if (args.record is None) == (args.reference is None) or (args.record is None) != (args.text is None):
        raise ArgumentError("kld takes either --record REF and --text FILE, or a REF to compare with")
    return record(args) if args.record else compare(args)


def record(args: argparse.Namespace) -> int:
    kind = "f32" if args.full else "u16"
    losses: list[float] = []
    with Model.open(args.model) as model:
        windows = windows_of(model, Tokenizer.from_model(model), args)
        progress = Progress(windows.count)
        about = {"identity": model.identity, "quality": args.quality, "kv_type": args.kv_type}
        with (
            _engine(model, args) as engine,
            kld_file.Writer(args.record, windows, model.shape.vocab, kind, about) as writer,
        ):
            try:
                for done, found in enumerate(judge.rows(engine, windows), 1):
                    for target, logits in found:
                        writer.add(logits)
                        losses.append(float(-judge.log_softmax(logits)[target]))
                    progress(done, f"perplexity {np.exp(np.mean(losses)):.4f}")
            finally:
                progress.clear()
    perplexity = judge.perplexity_of(np.array(losses), windows)
    size = Path(args.record).stat().st_size
    if args.json:
        print(json.dumps({"record": args.record, "bytes": size, "kind": kind, **about, **asdict(perplexity)}))
    else:
        print(f"{perplexity.scored} tokens in {windows.count} chunks of {windows.context}: {size / 1e6:.1f} MB, "
              f"perplexity {perplexity.perplexity:.4f} +/- {perplexity.perplexity_error:.4f}")  # fmt: skip
    return 0


def compare(args: argparse.Namespace) -> int:
    with Model.open(args.model) as model, kld_file.Reference(args.reference) as reference:
        if reference.vocab != model.shape.vocab:
            raise ArgumentError(
                f"{args.reference}: of a model with {reference.vocab} tokens, {model.path} has {model.shape.vocab}"
            )
        windows = reference.windows
        if args.chunks and args.chunks < windows.count:
            raise ArgumentError(f"--chunks is for --record: a reference is compared whole ({windows.count} chunks)")
        args.context = windows.context
        progress, comparison = Progress(windows.count), judge.Comparison(windows, reference.cut)
        with _engine(model, args) as engine:
            try:
                pairs = zip(judge.rows(engine, windows), reference.rows(), strict=True)
                for done, (found, wanted) in enumerate(pairs, 1):
                    for (target, logits), row in zip(found, wanted, strict=True):
                        comparison.add(target, row, logits)
                    mean, same = comparison.so_far
                    progress(done, f"KL {mean:.5f}, same first choice {same:.2%}")
            finally:
                progress.clear()
            result = comparison.result()
            if args.json:
                print(json.dumps({**_document(model, engine, args), "reference_file": args.reference, "kind":
                                  reference.kind, "reference_about": reference.about, **asdict(result)}))  # fmt: skip
                return 0
    print("\n".join(lines(result)))
    return 0


def lines(found: judge.Divergence) -> list[str]:
    """A comparison for people."""
    one, two = found.model, found.reference
    return [
        f"{one.scored} tokens in {one.windows} chunks of {one.context}",
        f"perplexity     {one.perplexity:.4f} +/- {one.perplexity_error:.4f}, reference {two.perplexity:.4f} +/- "
        f"{two.perplexity_error:.4f}",
        f"ratio          {found.ratio:.5f} +/- {found.ratio_error:.5f}",
        f"same top token {found.top1:.2%} +/- {found.top1_error:.2%}",
        f"KL divergence  mean {found.kl_mean:.6f} +/- {found.kl_error:.6f} nats per token",
        f"               median {found.kl_median:.6f}, 99 % {found.kl_99:.6f}, 99.9 % {found.kl_999:.6f}, "
        f"max {found.kl_max:.6f}",
        f"true token's probability changes by {found.change_rms:.3%} (root mean square)",
    ]
