#!/usr/bin/env python3
"""Makes a synthetic GLM-5.2 model file: random weights of realistic spread, a tokenizer, a chat template.

    make_model.py PRESET [--mix M] [--seed N] [--sparse] [--split N] ... -o FILE

The same arguments give the same bytes. Weights depend on the seed, the tensor's name, shape and type, and on
nothing else, so two files that differ in an option agree in every tensor they share.
"""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType
from synthetic import metadata, weights, writer
from synthetic.mix import MIXES, TYPES, Mix
from synthetic.presets import PRESETS, Geometry, Tensor, tensors
from synthetic.tokenizer import vocabulary

DEFAULT_SEED = 101
REAL_VOCAB, REAL_MERGES = 154880, 321649
FILLER_KEY = "synthetic.filler"

Plan = list[tuple[Tensor, writer.Entry]]


def geometry(preset: str, changes: dict[str, int] | None = None) -> Geometry:
    """The preset with some numbers changed. Errors: ValueError for an unknown preset or name."""
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    known = {field.name for field in fields(Geometry) if field.type in (int, "int")}
    unknown = sorted(set(changes or {}) - known)
    if unknown:
        raise ValueError(f"no such number: {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    numbers: dict[str, Any] = dict(changes or {})
    g = replace(PRESETS[preset], **numbers)
    return replace(g, file_bytes=None) if numbers else g


def _plan(g: Geometry, mix: str, tied: bool) -> Plan:
    types = Mix(mix, g.layers)
    plan: Plan = []
    for tensor in tensors(g, tied):
        type_ = GGMLQuantizationType.F32
        if tensor.kind == "matrix":
            # A copy of an owner's indexer has the owner's type, else it would not be a copy.
            type_ = types.type_of(tensor.seed_name, tensor.shape[-1])
        entry = writer.Entry(tensor.name, tensor.shape, type_, weights.tensor_bytes(tensor, type_))
        plan.append((tensor, entry))
    return plan


def _filled(pairs: list[writer.Pair], entries: list[writer.Entry], file_bytes: int) -> list[writer.Pair]:
    """Adds a filler key such that header and data have exactly file_bytes."""
    wanted = file_bytes - writer.data_bytes(entries)
    filler = writer.Pair(FILLER_KEY, GGUFValueType.STRING, "")
    spare = wanted - len(writer.header([*pairs, filler], entries))
    if spare < 0:
        raise ValueError(f"the header is {-spare} bytes too long for a file of {file_bytes}")
    note = "This string only makes the file as long as the published one. "
    text = (note * (spare // len(note) + 1))[:spare]
    return [*pairs, replace(filler, value=text)]


def _cut(plan: Plan, count: int, empty_first: bool) -> list[Plan]:
    """Runs of whole tensors of about equal bytes; every shard but an empty first one gets at least one."""
    parts = count - empty_first
    if not 1 <= parts <= len(plan):
        raise ValueError(f"{len(plan)} tensors cannot be split into {count} files")
    total = sum(entry.bytes for _, entry in plan)
    shards: list[Plan] = [[]]
    done = 0
    for number, item in enumerate(plan):
        is_due = done >= total * len(shards) / parts or len(plan) - number <= parts - len(shards)
        if shards[-1] and len(shards) < parts and is_due:
            shards.append([])
        shards[-1].append(item)
        done += item[1].bytes
    return [[], *shards] if empty_first else shards


def shard_paths(path: Path, count: int) -> list[Path]:
    """Names of the shards of a split model whose unsplit name is path."""
    stem = path.name.removesuffix(".gguf")
    return [path.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf") for number in range(count)]


class _Progress:
    """A line on standard error, only on a terminal."""

    def __init__(self, name: str, total: int) -> None:
        self._shown = sys.stderr.isatty() and total > 64 << 20
        self._name, self._total, self._done, self._next = name, total, 0, 0.0

    def add(self, count: int) -> None:
        self._done += count
        now = time.monotonic()
        if self._shown and (now >= self._next or self._done == self._total):
            self._next = now + 0.2
            share = 100 * self._done / self._total
            end = "\n" if self._done == self._total else ""
            line = f"{self._name}: {self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, {share:.0f} %"
            sys.stderr.write(f"\r{line}{end}")
            sys.stderr.flush()


def make_model(
    preset: str,
    path: str | Path,
    *,
    mix: str | None = None,
    seed: int = DEFAULT_SEED,
    sparse: bool = False,
    changes: dict[str, int] | None = None,
    split: int = 1,
    split_empty_first: bool = False,
    indexer_everywhere: bool = False,
    types_as: str | None = None,
    mtp: bool = True,
    tied: bool = False,
    template: bool = True,
    gating_key: bool = True,
) -> Path:
    """Writes the model and returns the path of the file, of a split one that of its first shard.

    mix: see synthetic/mix.py; None is the preset's. changes: numbers of Geometry to set. types_as: how
    indexer.types is written, "bool", "int", "string" or "none"; None is the preset's. sparse: the tensor data
    is a hole in the file. Errors: ValueError for arguments that contradict each other; OSError.
    """
    path = Path(path)
    g = geometry(preset, changes)
    g = replace(g, indexer_everywhere=g.indexer_everywhere or indexer_everywhere, nextn=g.nextn if mtp else 0)
    if types_as is None:
        types_as = "bool" if g.types_key else "none"
    if types_as not in metadata.TYPES_AS:
        raise ValueError(f"types_as is {types_as!r}, not one of {', '.join(metadata.TYPES_AS)}")
    mix = mix or g.default_mix
    plan = _plan(g, mix, tied)
    merges = REAL_MERGES if g.vocab == REAL_VOCAB else None
    pairs = [
        *metadata.general(f"glm52-synthetic-{preset}", f"random weights, mix {mix}, seed {seed}"),
        *metadata.hyperparameters(g, gating_key, types_as),
        *metadata.tokenizer(vocabulary(g.vocab, merges), template),
    ]
    if g.file_bytes and (mix, mtp, tied, split, template) == (g.default_mix, True, False, 1, True):
        pairs = _filled(pairs, [entry for _, entry in plan], g.file_bytes)
    shards = [plan] if split == 1 else _cut(plan, split, split_empty_first)
    paths = [path] if split == 1 else shard_paths(path, split)
    progress = _Progress(path.name, sum(entry.bytes for _, entry in plan))
    for number, (shard, shard_path) in enumerate(zip(shards, paths, strict=True)):
        own = [] if split == 1 else metadata.split(number, split, len(plan))
        shard_pairs = [*pairs, *own] if number == 0 else own
        data = None if sparse else _data(shard, seed, g.float_weights, progress)
        writer.write(shard_path, shard_pairs, [entry for _, entry in shard], data)
    return paths[0]


def _data(shard: Plan, seed: int, from_floats: bool, progress: _Progress) -> Iterator[Iterator[np.ndarray]]:
    def counted(pieces: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for piece in pieces:
            yield piece
            progress.add(piece.nbytes)

    for tensor, entry in shard:
        yield counted(weights.pieces(tensor, entry.type, seed, from_floats))


def _describe_presets() -> str:
    lines = ["presets:"]
    for name, g in PRESETS.items():
        size = writer.data_bytes([entry for _, entry in _plan(g, g.default_mix, False)]) / 1e9
        lines.append(
            f"  {name:11s} {size:8.3f} GB as {g.default_mix}: hidden {g.hidden}, "
            f"{g.layers} layers + {g.nextn} MTP, {g.dense_layers} dense of {g.dense_ff}, "
            f"{g.experts} experts of {g.expert_ff} top {g.experts_used}, "
            f"{g.heads} heads {g.nope}+{g.rope}|{g.value}, latents {g.q_lora}/{g.kv_lora}, "
            f"indexer {g.index_heads}x{g.index_key} top {g.index_top_k}, vocabulary {g.vocab}"
        )
    lines += ["mixes:", *(f"  {name:15s} {rules}" for name, rules in MIXES.items())]
    lines += ["types: " + " ".join(TYPES), "rules: PATTERN=TYPE,... ; the longest fitting pattern decides"]
    return "\n".join(lines)


def _change(text: str) -> tuple[str, int]:
    name, equals, number = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=NUMBER")
    return name, int(number)


def _parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw, epilog=_describe_presets())
    add = parser.add_argument
    add("preset", metavar="PRESET", choices=PRESETS, help=", ".join(PRESETS))
    add("-o", "--output", required=True, type=Path, metavar="FILE")
    add("--mix", help="a named mix, a type, or rules joined by commas (see below)")
    add("--seed", type=int, default=DEFAULT_SEED)
    add("--sparse", action="store_true", help="header only; the tensor data is a hole of the right length")
    add("--set", dest="changes", type=_change, action="append", default=[], metavar="NAME=NUMBER",
        help="change a number of the geometry, for example index_top_k=8")  # fmt: skip
    add("--split", type=int, default=1, metavar="N", help="write N shards FILE-00001-of-0000N.gguf")
    add("--split-empty-first", action="store_true", help="the first shard has no tensors")
    add("--indexer-everywhere", action="store_true", help="copy the owner's indexer to shared layers")
    add("--types-as", choices=metadata.TYPES_AS, help="how indexer.types is written")
    add("--no-types-key", dest="types_as", action="store_const", const="none", help="same as --types-as none")
    add("--no-mtp", dest="mtp", action="store_false", help="leave out the MTP block")
    add("--tied", action="store_true", help="no output.weight: the embedding is the head")
    add("--no-template", dest="template", action="store_false", help="leave out the chat template")
    add("--no-gating-key", dest="gating_key", action="store_false", help="leave out expert_gating_func")
    return parser


def main() -> int:
    options = vars(_parser().parse_args())
    output = options.pop("output")
    options["changes"] = dict(options["changes"])
    try:
        made = make_model(options.pop("preset"), output, **options)
    except (ValueError, OSError) as error:
        print(f"make_model: error: {error}", file=sys.stderr)
        return 1
    print(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
