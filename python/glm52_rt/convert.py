"""Converts a Hugging Face checkpoint of a GlmMoeDsa model (safetensors: BF16, F16, F32, or FP8 with block scales) to
one GGUF file of the architecture glm-dsa.

Tensor by tensor and piece by piece: memory is that of a few pieces, whatever the size of the model. A run that ends
early leaves NAME.partial, which the next one checks and goes on with.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import convert_keys
from .convert_plan import Config, check, make_plan
from .convert_values import TYPES, Weights, target_pieces, type_of
from .errors import ArgumentError, ModelError
from .gguf_writer import Entry, Writer
from .model import Model
from .safetensors_file import Source

Progress = Callable[[int, int], object]  # bytes of the GGUF that are written, bytes in all


@dataclass(frozen=True)
class Converted:
    """What was done: tensors and bytes written, and how many tensors an earlier run had left."""

    path: str
    tensors: int
    resumed: int
    file_bytes: int
    identity: str


def convert(
    folder: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    type: str = "BF16",
    name: str | None = None,
    mtp: bool = True,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Converted:
    """Writes the checkpoint in folder to path. type is that of the matrices, of TYPES; name that of the model, the
    folder's if None; mtp False leaves the blocks behind the trunk out.

    Errors: ArgumentError; ModelError and UnsupportedError before a byte is written, with file, tensor, wanted and got,
    and for values that are not finite; IoError.
    """
    if type not in TYPES:
        raise ArgumentError(f"type {type!r}: one of {', '.join(TYPES)} is wanted")
    place = Path(folder)
    if not place.is_dir():
        raise ArgumentError(f"{place}: not a folder with a checkpoint")
    config = Config.read(place, mtp)
    with Source(place) as source:
        plan = make_plan(config, source.tensors.__contains__)
        check(plan, source)
        pairs = [
            *convert_keys.general(plan, place, name or place.resolve().name, type),
            *convert_keys.hyperparameters(config),
            *convert_keys.tokenizer(place, config),
        ]
        entries = [Entry(target.name, type_of(target, type), target.shape[::-1]) for target in plan.targets]
        fingerprint = hashlib.sha256(f"{source.fingerprint} {_times(source)}".encode()).hexdigest()
        weights = Weights(source, plan)
        with Writer(path, pairs, entries, overwrite=overwrite, resume=fingerprint) as writer:
            resumed, total = writer.done, sum(entry.bytes for entry in entries)
            done = sum(entry.bytes for entry in entries[:resumed])
            for target, entry in zip(plan.targets[resumed:], entries[resumed:], strict=True):
                writer.write(target_pieces(weights, target, type))
                done += entry.bytes
                if progress is not None:
                    progress(done, total)
    return _opened(os.fspath(path), len(entries), resumed)


def _times(source: Source) -> list[int]:
    """When the files were changed: a resumed run must go on with the same weights."""
    return [os.stat(path).st_mtime_ns for path in source.paths]


def _opened(path: str, tensors: int, resumed: int) -> Converted:
    """The file is a model that the runtime takes, or the converter is wrong."""
    try:
        with Model.open(path) as model:
            return Converted(path, tensors, resumed, model.file_bytes, model.identity)
    except ModelError as error:
        raise ModelError(f"the file was written, but can't be opened: {error}") from error
