"""glm52 oracle: runs that are written down, repeated and compared; runs of other programs, too."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from . import oracle, oracle_import
from .chat import render_chat
from .cli_options import add_engine_options, machine_memory, whole_number
from .cli_stream import streaming_of
from .errors import ArgumentError
from .model import Model
from .tokenizer import Tokenizer

SHOWN_MAX = 20
_IMPORT = (
    "SOURCE: .npz of tools/record_logits.py (transformers, llama.cpp); .vec of ds4's tests; .json, a chat completion "
    "with logprobs as OpenRouter gives it. The prompt of the latter two is one user message without reasoning."
)


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
    prompt = verify.add_mutually_exclusive_group()
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="for a record that has no prompt")
    prompt.add_argument("--ids", metavar="N,N,...", help="the same as token ids")
    add_engine_options(verify)
    verify.set_defaults(command=verify_run)
    bring = kinds.add_parser("import", help="make a record of another program's run", epilog=_IMPORT)
    bring.add_argument("model", metavar="MODEL", help="whose vocabulary and content the record gets")
    bring.add_argument("source", metavar="SOURCE", help="a .npz, .vec or .json file")
    bring.add_argument("file", metavar="FILE", help="the record")
    bring.add_argument("--case", metavar="ID", help="of a .vec file that holds several")
    bring.add_argument("-p", "--prompt", metavar="TEXT", help="the user's message, where SOURCE does not have it")
    bring.add_argument("--prompt-file", metavar="FILE")
    bring.add_argument("--any-model", action="store_true", help="bind the record to no model's content")
    bring.set_defaults(command=import_run)
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
    head, by_bytes = lines[0], any(line.get("argmax_bytes") for line in lines[1:-1])
    with Model.open(args.model) as model:
        prompt, token_bytes = ids_of(args.ids) if args.ids else None, None
        if by_bytes or (head["prompt"]["ids"] is None and prompt is None):
            tokenizer = Tokenizer.from_model(model)
            token_bytes = lambda token: tokenizer.decode_bytes([token])  # noqa: E731
            text = args.prompt or head["prompt"]["text"]
            prompt = tokenizer.encode(text) if prompt is None and text else prompt
        return report(oracle.verify(
            model, lines, backend=args.backend, threads=args.threads, streaming=streaming_of(args, machine_memory()),
            check_identity=not args.any_model, prompt=prompt, token_bytes=token_bytes,
        ))  # fmt: skip


def import_run(args: argparse.Namespace) -> int:
    source = Path(args.source)
    with Model.open(args.model) as model:
        bound = None if args.any_model else model
        if source.suffix == ".npz":
            oracle.write(oracle_import.from_logits(*oracle_import.read_npz(source), model=bound), args.file)
            return 0
        given = Path(args.prompt_file).read_text(encoding="utf-8") if args.prompt_file else args.prompt
        if source.suffix == ".vec":
            text, steps = vec_case(source, args.case, given)
        elif source.suffix == ".json":
            text, steps = oracle_import.read_openrouter(source)
        else:
            raise ArgumentError(f"{source}: SOURCE must end in .npz, .vec or .json")
        text = given if given is not None else text
        if text is None:
            raise ArgumentError(f"{source}: has no prompt; give it with --prompt or --prompt-file")
        tokenizer = Tokenizer.from_model(model)
        ids = render_chat(tokenizer, [{"role": "user", "content": text}], thinking=False)
        vocabulary = oracle_import.Vocabulary(tokenizer, model.shape.vocab)
        lines = oracle_import.from_logprobs(ids, steps, {"file": source.name}, vocabulary, model=bound, text=text)
    oracle.write(lines, args.file)
    unknown = sum(line["unknown"] for line in lines[1:-1])
    if unknown:
        print(f"{unknown} candidates are no tokens of this vocabulary and were left out", file=sys.stderr)
    return 0


def vec_case(path: Path, wanted: str | None, given: str | None) -> tuple[str | None, Any]:
    """A .vec file's case and the text of its prompt: of the file it names, from here or from beside the .vec."""
    cases = list(oracle_import.read_vec(path))
    chosen = [case for case in cases if wanted in (None, case[0])]
    if len(chosen) != 1:
        names = ", ".join(case[0] for case in cases) or "none"
        raise ArgumentError(f"{path}: name one of its cases with --case: {names}")
    _, prompt_file, steps = chosen[0]
    if given is not None:
        return given, steps
    name = Path(prompt_file)
    for place in (name, path.parent / name, path.parent / "prompts" / name.name):
        if place.is_file():
            return place.read_text(encoding="utf-8"), steps
    return None, steps


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
