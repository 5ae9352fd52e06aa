"""glm52 chat: a conversation at the terminal.

    /reset          forget the conversation
    /think on|off   reason before answering, or do not
    /help           these lines
    /exit           end; so does Ctrl-D

Ctrl-C stops an answer; what was written of it stays in the conversation.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from typing import Any

from .chat import render_chat, split_thinking
from .cli_options import add_chat_options, add_engine_options, add_sampling_options, open_engine, sampling_of
from .cli_terminal import PrefillBar, Writer, complain, drafts_line, drafts_of, is_terminal, timing_line, timings
from .engine import Engine
from .errors import ContextError, Error
from .model import Model
from .sampling import SEED_MAX, generate
from .tokenizer import Tokenizer

_HELP = "\n".join(line.strip() for line in (__doc__ or "").split("\n")[2:8] if line.strip())


def add_parser(commands: Any) -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = commands.add_parser("chat", help="talk with a model", description=__doc__, formatter_class=raw)
    parser.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    add_sampling_options(parser)
    add_chat_options(parser)
    add_engine_options(parser)
    parser.set_defaults(command=chat)


def chat(args: argparse.Namespace) -> int:
    """Asks and answers until the input ends. Returns the exit code."""
    at_terminal = is_terminal(sys.stdin)
    if at_terminal:
        try:
            import readline  # noqa: F401 - input() edits lines once it is there
        except ImportError:
            pass
    with Model.open(args.model) as model:
        tokenizer = Tokenizer.from_model(model)
        with open_engine(model, args) as engine:
            for warning in engine.warnings:
                complain(warning, "warning")
            conversation = Conversation(engine, tokenizer, args)
            if at_terminal:
                print("Type a message; /help shows the commands.", file=sys.stderr)
            while (line := _read_line(at_terminal)) is not None:
                if not _obey(conversation, line):
                    break
    return 0


def _read_line(at_terminal: bool) -> str | None:
    """The next line that is not empty, None at the end of input. Ctrl-C at a terminal clears the line."""
    while True:
        try:
            line = input("> " if at_terminal else "").strip()
        except EOFError:
            if at_terminal:
                print()
            return None
        except KeyboardInterrupt:
            if not at_terminal:
                raise
            print("\n(Ctrl-D or /exit ends)", file=sys.stderr)
            continue
        if line:
            return line


def _obey(conversation: Conversation, line: str) -> bool:
    """Does what a line asks for; False if that is to end."""
    words = line.split()
    if not line.startswith("/"):
        try:
            conversation.answer(line)
        except Error as error:
            complain(str(error))
        except KeyboardInterrupt:
            print(file=sys.stderr)
    elif words in (["/exit"], ["/quit"]):
        return False
    elif words == ["/reset"]:
        conversation.reset()
    elif words[0] == "/think" and words[1:] in (["on"], ["off"]):
        conversation.thinking = words[1] == "on"
    else:
        print(_HELP, file=sys.stderr)
    return True


class Conversation:
    """Messages, and the engine that holds their tokens. The prompt is rendered anew for each answer; only what the
    engine does not hold already is computed."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
        self._engine, self._tokenizer, self._args = engine, tokenizer, args
        self._sampling = sampling_of(args)
        self._turns = 0
        self._now = datetime.now()  # one time for the whole conversation: another would be another prompt
        self.thinking = args.think
        self.reset()

    def reset(self) -> None:
        """Forgets everything but the system message."""
        system = self._args.system
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []

    def answer(self, text: str) -> None:
        """Answers a user's message. If that is refused, or interrupted before the first token, the message is not
        kept. Raises what render_chat and generate raise."""
        messages = [*self.messages, {"role": "user", "content": text}]
        ids = render_chat(
            self._tokenizer,
            messages,
            thinking=self.thinking,
            reasoning_effort=self._args.effort,
            now=self._now,
        )
        if len(ids) > self._engine.context:
            raise ContextError(
                f"the conversation has {len(ids)} tokens, more than the context of {self._engine.context}; "
                "/reset forgets it, --context N makes room"
            )
        tokens = self._stream(ids)
        if not tokens:
            return
        opened = ids[-1] == self._tokenizer.special_tokens.get("<think>")
        reasoning, content = split_thinking(self._tokenizer.decode(tokens), opened)
        written = {"role": "assistant", "content": content, "reasoning_content": reasoning or ""}
        self.messages = [*messages, written]

    def _stream(self, ids: list[int]) -> list[int]:
        """Writes an answer as it comes, reasoning dimmed; Ctrl-C ends it. Returns its tokens."""
        engine, tokenizer = self._engine, self._tokenizer
        begins, ends = tokenizer.special_tokens.get("<think>"), tokenizer.special_tokens.get("</think>")
        reasons = ids[-1] == begins
        before, decoder, writer = engine.stats(), tokenizer.stream(), Writer()
        bar = PrefillBar(engine.align(ids), len(ids))
        seed = (self._sampling["seed"] + self._turns) & SEED_MAX
        self._turns += 1
        generation = generate(
            engine, ids, self._args.max_tokens, progress=bar, **{**self._sampling, "seed": seed}
        )
        try:
            for token in generation:
                bar.clear()
                reasons = reasons or token == begins
                writer.write(decoder.feed(token), dim=reasons)
                if reasons and token == ends:
                    reasons = False
                    writer.end_line()
        except KeyboardInterrupt:
            pass
        bar.clear()
        writer.write(decoder.flush(), dim=reasons)
        writer.end_line()
        if generation.stop_reason == "context":
            complain(f"the context of {engine.context} tokens is full; /reset forgets the conversation", "warning")
        if is_terminal(sys.stderr):
            after = engine.stats()
            print(f"({timing_line(timings(before, after))}{drafts_line(drafts_of(before, after))})", file=sys.stderr)
        return generation.tokens
