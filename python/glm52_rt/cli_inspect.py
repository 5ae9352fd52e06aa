"""glm52 inspect and tokenize: what is in a model file, and what it makes of a text."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from typing import Any

from .cli_files import run_diff
from .cli_terminal import visible
from .errors import ArgumentError
from .model import Model
from .tokenizer import Tokenizer, end_token_ids


def add_parsers(commands: Any) -> None:
    parser = commands.add_parser("inspect", help="show what is in a model file")
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    parser.add_argument("--tensors", action="store_true", help="list every tensor")
    parser.add_argument("--diff", nargs=2, metavar=("A", "B"), help="compare two models; exit code 1 if they differ")
    parser.add_argument("--values", action="store_true", help="with --diff: by how much tensors differ")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(command=inspect)
    parser = commands.add_parser("tokenize", help="show the tokens of a text")
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("text", metavar="TEXT", help="- reads standard input")
    parser.add_argument("--special", action="store_true", help="control tokens written in TEXT become them")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")
    parser.set_defaults(command=tokenize)


def inspect(args: argparse.Namespace) -> int:
    """Prints a description of the model, or what differs between two. Returns the exit code."""
    if args.diff is not None:
        return run_diff(args)
    if args.model is None or args.values:
        raise ArgumentError("inspect takes a MODEL, or --diff A B [--values]")
    with Model.open(args.model) as model:
        found = describe(model, args.tensors)
    text = json.dumps(found) if args.json else "\n".join(described_lines(found))
    print(text, flush=True)
    return 0


def describe(model: Model, with_tensors: bool) -> dict[str, Any]:
    """Everything that inspect shows. Reads headers and the sampled blocks of the identity, not the weights."""
    types: dict[str, dict[str, int]] = {}
    for tensor in model.tensors:
        row = types.setdefault(tensor.type, {"tensors": 0, "elements": 0, "bytes": 0})
        row["tensors"] += 1
        row["elements"] += math.prod(tensor.shape)
        row["bytes"] += tensor.bytes
    keys = model.metadata
    shape = dataclasses.asdict(model.shape)
    del shape["index_full"]
    found = {
        "files": list(model.paths),
        "name": keys.get("general.name"),
        "architecture": keys.get("general.architecture"),
        "identity": model.identity,
        "file_bytes": model.file_bytes,
        "tensor_count": len(model.tensors),
        "tensor_bytes": sum(row["bytes"] for row in types.values()),
        "parameters": sum(row["elements"] for row in types.values()),
        "types": dict(sorted(types.items(), key=lambda item: -item[1]["bytes"])),
        "shape": shape,
        "full_indexer_layers": list(model.full_indexer_layers),
        "cache_bytes_per_token": {kind: model.shape.kv_bytes_per_token(kind) for kind in ("f16", "f32")},
        "tokenizer": {
            "model": keys.get("tokenizer.ggml.model"),
            "pre": keys.get("tokenizer.ggml.pre"),
            "end_token_ids": list(end_token_ids(model)),
            "chat_template": isinstance(keys.get("tokenizer.chat_template"), str),
        },
    }
    if with_tensors:
        found["tensors"] = [
            {"name": t.name, "type": t.type, "shape": list(t.shape), "bytes": t.bytes, "shard": t.shard}
            for t in model.tensors
        ]
    return found


def described_lines(found: dict[str, Any]) -> Iterator[str]:
    """A description for people."""
    for path in found["files"]:
        yield f"file        {visible(path)}"
    yield f"name        {visible(str(found['name']))} ({found['architecture']})"
    yield f"identity    {found['identity']}"
    yield f"bytes       {found['file_bytes']:,} in {len(found['files'])} file{'s' * (len(found['files']) > 1)}"
    weights = f"{found['parameters']:,} weights in {found['tensor_bytes']:,} bytes"
    yield f"tensors     {found['tensor_count']:,} with {weights}"
    for kind, row in found["types"].items():
        bits = 8 * row["bytes"] / max(1, row["elements"])
        yield f"  {kind:8} {row['tensors']:6,} tensors {row['bytes']:19,} bytes {bits:6.2f} bits per weight"
    yield "shape"
    for key, value in found["shape"].items():
        yield f"  {key:14} {value:,}" if isinstance(value, int) else f"  {key:14} {value:g}"
    full = found["full_indexer_layers"]
    yield f"full indexer layers ({len(full)} of {found['shape']['layers']})"
    yield f"  {' '.join(map(str, full))}"
    per_token = found["cache_bytes_per_token"]
    yield f"cache per token  {per_token['f16']:,} bytes as f16, {per_token['f32']:,} as f32"
    tokenizer = found["tokenizer"]
    template = "its own chat template" if tokenizer["chat_template"] else "no chat template (the built-in one is used)"
    ends = " ".join(map(str, tokenizer["end_token_ids"]))
    yield f"tokenizer   {tokenizer['model']}/{tokenizer['pre']}, end tokens {ends}, {template}"
    for tensor in found.get("tensors", ()):
        size = " x ".join(map(str, tensor["shape"]))
        yield f"  {visible(tensor['name']):40} {tensor['type']:8} {size:24} {tensor['bytes']:15,} bytes"


def tokenize(args: argparse.Namespace) -> int:
    """Prints the ids of a text, one token a line. Returns the exit code."""
    text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape") if args.text == "-" else args.text
    with Model.open(args.model) as model:
        tokenizer = Tokenizer.from_model(model)
    ids = tokenizer.encode(text, special=args.special)
    pieces = [tokenizer.decode_bytes([token]) for token in ids]
    if args.json:
        document = {"ids": ids, "bytes": [piece.hex() for piece in pieces], "text": tokenizer.decode(ids)}
        print(json.dumps(document), flush=True)
    else:
        for token, piece in zip(ids, pieces, strict=True):
            print(f"{token:7}  {quoted(piece)}")
        sys.stdout.flush()
    return 0


def quoted(piece: bytes) -> str:
    """Bytes as a quoted string: text as it is, \\xNN for what is not UTF-8, escapes for what does not print."""
    shown = []
    for char in piece.decode("utf-8", "surrogateescape"):
        if "\udc80" <= char <= "\udcff":
            shown.append(f"\\x{ord(char) - 0xDC00:02x}")
        else:
            shown.append(char if char.isprintable() and char not in '"\\' else json.dumps(char)[1:-1])
    return f'"{"".join(shown)}"'
