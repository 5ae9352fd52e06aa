"""glm52 convert, split, merge, colocate: model files made of other files; and what glm52 inspect --diff prints."""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from . import gguf_files
from .cli_options import byte_count, whole_number
from .cli_terminal import StatusLine, visible
from .convert import convert
from .convert_values import TYPES
from .errors import ArgumentError
from .file_diff import diff
from .model import Model

DIFFERENT = 1


class BytesLine(StatusLine):
    """progress for what copies bytes."""

    def __call__(self, done: int, total: int) -> None:
        elapsed = self.due(done >= total)
        if elapsed is None:
            return
        rate = done / max(elapsed, 1e-9)
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        share = 100 * done / max(1, total)
        self.show(f"{share:5.1f} % of {total / 1e9:.2f} GB, {rate / 1e6:.0f} MB/s{left}")


def add_parsers(commands: Any) -> None:
    _add_convert(commands)
    _add_split(commands)
    parser = commands.add_parser("merge", help="write a model that is in shards as one file")
    parser.add_argument("model", metavar="MODEL", help="any shard, or the folder that holds them")
    _add_output(parser, "FILE", "the new file")
    parser.set_defaults(command=run_merge)
    parser = commands.add_parser(
        "colocate", help="write a model so that an expert is read at once",
        description="Writes a model so that the three matrices of an expert lie together, which streaming reads at "
        "once. Tensors, identity and every computed bit stay as they are; other programs refuse the file.",
    )  # fmt: skip
    parser.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    parser.add_argument("--undo", action="store_true", help="write a colocated model as other programs read it")
    _add_output(parser, "FILE", "the new file")
    parser.set_defaults(command=run_colocate)


def _add_output(parser: argparse.ArgumentParser, metavar: str, text: str) -> None:
    parser.add_argument("-o", "--output", required=True, metavar=metavar, help=f"{text}, whole or not at all")
    parser.add_argument("--force", action="store_true", help=f"write over {metavar} if it is there")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert", help="write a GGUF from a Hugging Face checkpoint",
        description="Writes a GGUF from a Hugging Face checkpoint of a GlmMoeDsa model (safetensors: BF16, F16, F32, "
        "or FP8 with block scales). A run that was interrupted is continued by the same command: what is there is "
        "checked first.",
    )  # fmt: skip
    parser.add_argument("folder", metavar="FOLDER", help="config.json, tokenizer.json and *.safetensors")
    parser.add_argument("--type", default="bf16", choices=[name.lower() for name in TYPES],
                        help="of the matrices; norms and routers stay f32 (default bf16)")  # fmt: skip
    parser.add_argument("--name", help="of the model (default: the folder's)")
    parser.add_argument("--no-mtp", dest="mtp", action="store_false", help="leave out the blocks behind the trunk")
    _add_output(parser, "FILE", "the new file")
    parser.set_defaults(command=run_convert)


def _add_split(commands: Any) -> None:
    parser = commands.add_parser("split", help="write a model in shards, NAME-00001-of-00003.gguf")
    parser.add_argument("model", metavar="MODEL", help="a GGUF, a shard of one, or a folder that holds one")
    limit = parser.add_mutually_exclusive_group(required=True)
    limit.add_argument("--max-size", type=byte_count, default=0, metavar="SIZE", help="of a shard's tensors: 50GB")
    limit.add_argument("--max-tensors", type=whole_number(1, 65536), default=0, metavar="N", help="of a shard")
    parser.add_argument("--empty-first", action="store_true", help="the first shard has the metadata alone")
    _add_output(parser, "NAME", "name of the shards, without number")
    parser.set_defaults(command=run_split)


def _report(args: argparse.Namespace, document: dict[str, Any], text: str) -> int:
    print(json.dumps(document) if args.json else visible(text), flush=True)
    return 0


def run_convert(args: argparse.Namespace) -> int:
    line = BytesLine()
    try:
        made = convert(args.folder, args.output, type=args.type.upper(), name=args.name, mtp=args.mtp,
                       overwrite=args.force, progress=line)  # fmt: skip
    finally:
        line.clear()
    resumed = f", {made.resumed} of them from an earlier run" if made.resumed else ""
    text = f"{made.path}: {made.tensors} tensors{resumed}, {made.file_bytes:,} bytes, identity {made.identity}"
    return _report(args, dataclasses.asdict(made), text)


def _described(paths: list[Path]) -> dict[str, Any]:
    with Model.open(paths[0]) as model:
        return {"files": [str(path) for path in paths], "identity": model.identity, "file_bytes": model.file_bytes,
                "tensors": len(model.tensors)}  # fmt: skip


def _made(args: argparse.Namespace, paths: list[Path]) -> int:
    found = _described(paths)
    many = f" ... {paths[-1]}" if len(paths) > 1 else ""
    size = f"{found['file_bytes']:,} bytes in {len(paths)} file{'s' * (len(paths) > 1)}"
    return _report(args, found, f"{paths[0]}{many}: {found['tensors']} tensors, {size}, identity {found['identity']}")


def run_split(args: argparse.Namespace) -> int:
    line = BytesLine()
    try:
        with Model.open(args.model) as model:
            paths = gguf_files.split(model, args.output, bytes_max=args.max_size, tensors_max=args.max_tensors,
                                     empty_first=args.empty_first, overwrite=args.force, progress=line)  # fmt: skip
    finally:
        line.clear()
    return _made(args, paths)


def run_merge(args: argparse.Namespace) -> int:
    return _rewrite(args, gguf_files.merge)


def run_colocate(args: argparse.Namespace) -> int:
    return _rewrite(args, gguf_files.separate if args.undo else gguf_files.colocate)


def _rewrite(args: argparse.Namespace, make: Any) -> int:
    line = BytesLine()
    try:
        with Model.open(args.model) as model:
            path = make(model, args.output, overwrite=args.force, progress=line)
    finally:
        line.clear()
    return _made(args, [path])


# ---- inspect --diff ----


def run_diff(args: argparse.Namespace) -> int:
    """Prints what differs between two models. Returns 1 if anything does."""
    if args.model is not None or args.tensors:
        raise ArgumentError("inspect --diff A B takes two models and nothing but --values and --json")
    line = BytesLine()
    try:
        with Model.open(args.diff[0]) as a, Model.open(args.diff[1]) as b:
            found = diff(a, b, values=args.values, progress=line)
    finally:
        line.clear()
    if args.json:
        print(json.dumps({"same": found.same, **dataclasses.asdict(found)}), flush=True)
        return 0 if found.same else DIFFERENT
    for key in found.keys:
        print(visible(f"key    {key.key}: {_side(key.a)} | {_side(key.b)}"))
    for tensor in found.tensors:
        rms = f", relative rms {tensor.rms:.6g}" if tensor.rms is not None else ""
        print(visible(f"tensor {tensor.name}: {tensor.what}: {_side(tensor.a)} | {_side(tensor.b)}{rms}"))
    counts = f"{len(found.keys)} of {found.key_count} keys, {len(found.tensors)} of {found.tensor_count} tensors"
    print("the same content" if found.same else f"{counts} differ", flush=True)
    return 0 if found.same else DIFFERENT


def _side(text: str | None) -> str:
    return "(not there)" if text is None else text
