"""glm52 run: one prompt, one answer."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Any

from .chat import render_chat
from .cli_options import add_chat_options, add_engine_options, add_sampling_options, open_engine, sampling_of
from .cli_stream import streamed, streamed_line
from .cli_terminal import PrefillBar, Writer, complain, drafts_line, drafts_of, timing_line, timings
from .engine import Engine
from .errors import ArgumentError
from .model import Model
from .sampling import Generation, generate
from .tokenizer import Tokenizer
from .trace import Recorder

INTERRUPTED = 130


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("run", help="continue a text, or answer a question", description=__doc__)
    parser.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="text to continue; - reads standard input")
    prompt.add_argument("--chat", metavar="TEXT", help="a user's message to answer; - reads standard input")
    parser.add_argument("--special", action="store_true", help="control tokens written in -p TEXT become them")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output, at the end")
    parser.add_argument("--trace", metavar="FILE", help="record which experts each layer chooses (see glm52 trace)")
    add_sampling_options(parser)
    add_chat_options(parser)
    add_engine_options(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Writes the answer as it comes. Returns the exit code."""
    started = time.monotonic()
    with Model.open(args.model) as model:
        tokenizer = Tokenizer.from_model(model)
        ids = prompt_ids(tokenizer, args)
        with open_engine(model, args) as engine:
            opened = time.monotonic()
            for warning in engine.warnings:
                complain(warning, "warning")
            answer = Answer(engine, tokenizer, ids, args)
            with recording(model, engine, args.trace):
                interrupted = answer.stream(None if args.json else Writer())
            if args.json:
                document = answer.document(model, interrupted, opened - started)
                print(json.dumps(document), flush=True)
            else:
                print(answer.summary(), file=sys.stderr)
    return INTERRUPTED if interrupted else 0


@contextlib.contextmanager
def recording(model: Model, engine: Engine, path: str | None) -> Iterator[None]:
    """Has routes written to path, if there is one."""
    if path is None:
        yield
        return
    with open(path, "w", encoding="utf-8") as file:
        engine.observe(Recorder(model, file))
        try:
            yield
        finally:
            engine.observe(None)


def prompt_ids(tokenizer: Tokenizer, args: argparse.Namespace) -> list[int]:
    """The ids that args ask to continue."""
    text = args.prompt if args.chat is None else args.chat
    if text == "-":
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if args.chat is None:
        ids = tokenizer.encode(text, special=args.special)
        if not ids:
            raise ArgumentError("the prompt is empty")
        return ids
    messages = [{"role": "system", "content": args.system}] if args.system else []
    messages.append({"role": "user", "content": text})
    return render_chat(
        tokenizer, messages, thinking=args.think, reasoning_effort=args.effort, now=datetime.now()
    )


class Answer:
    """One prompt being answered."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, ids: list[int], args: argparse.Namespace) -> None:
        self._engine, self._tokenizer, self._ids, self._args = engine, tokenizer, ids, args
        self._before = engine.stats()
        self._bar = PrefillBar(0, len(ids))
        sampling = sampling_of(args)
        self.generation: Generation = generate(engine, ids, args.max_tokens, progress=self._bar, **sampling)

    def stream(self, writer: Writer | None) -> bool:
        """Writes text as it comes; True if Ctrl-C ended it."""
        decoder = self._tokenizer.stream()
        interrupted = False
        try:
            for token in self.generation:
                self._bar.clear()
                if writer:
                    writer.write(decoder.feed(token))
        except KeyboardInterrupt:
            interrupted = True
        self._bar.clear()
        self.generation.close()
        if writer:
            writer.write(decoder.flush())
            writer.end_line()
        return interrupted

    def summary(self) -> str:
        """The line at the end: speed, and the seed for the same again."""
        after = self._engine.stats()
        line = timing_line(timings(self._before, after)) + drafts_line(drafts_of(self._before, after))
        line += streamed_line(streamed(self._before, after))
        return line if self._args.temp == 0 else f"{line}, seed {self._args.seed}"

    def document(self, model: Model, interrupted: bool, open_seconds: float) -> dict[str, Any]:
        """What --json prints."""
        args, generation, after = self._args, self.generation, self._engine.stats()
        return {
            "model": {"path": model.path, "identity": model.identity, "bytes": model.file_bytes},
            "prompt": {"ids": self._ids, "text": self._tokenizer.decode(self._ids)},
            "output": {"ids": generation.tokens, "text": self._tokenizer.decode(generation.tokens)},
            "stop_reason": "interrupted" if interrupted else generation.stop_reason,
            "stop_token": generation.stop_token,
            "seed": None if args.temp == 0 else args.seed,
            "options": {
                "max_tokens": args.max_tokens,
                "temperature": args.temp,
                "top_p": args.top_p,
                "min_p": args.min_p,
                "context": args.context,
                "backend": self._engine.backend,
                "threads": args.threads,
                "quality": args.quality,
                "kv_type": args.kv_type,
                "cache_bytes": args.cache,
                "cache_experts": args.experts,
            },
            "drafts": drafts_of(self._before, after),
            "timings": {"open_seconds": open_seconds, **timings(self._before, after)},
            "streaming": None if after.stream is None else {
                **(streamed(self._before, after) or {}),
                "stats": asdict(after.stream),
                "layers": [asdict(layer) for layer in after.stream_layers],
            },
            "plan": asdict(self._engine.plan),
            "warnings": list(self._engine.warnings),
        }
