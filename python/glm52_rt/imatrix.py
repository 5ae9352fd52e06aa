"""Importance matrices: how large the activations are that each column of a weight matrix is multiplied with.

The file is a GGUF as llama-imatrix writes it: for a matrix NAME the tensors NAME.in_sum2 (sums of squares of its
inputs) and NAME.counts (how many rows were summed). A routed tensor has a row of sums and a count per expert; heads of
k_b and v_b have rows of sums, one behind the other, and one count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np

from .engine import Engine
from .errors import ModelError
from .gguf_writer import Entry, Writer, array, pair

if TYPE_CHECKING:
    from .native_inputs import Inputs

SUMS, COUNTS = ".in_sum2", ".counts"


@dataclass
class Sums:
    """Sums of squares [groups, columns] and counts [experts], or [1]. float64 while they are collected."""

    squares: np.ndarray
    counts: np.ndarray

    def importance(self, groups: int, columns: int) -> np.ndarray | None:
        """Mean squares float32 [groups, columns]; a row of NaN where an expert was never asked. None: other sizes."""
        if self.squares.size != groups * columns or self.counts.size not in (1, groups):
            return None
        counts = np.broadcast_to(self.counts.reshape(-1, 1), (groups, 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(counts > 0, self.squares.reshape(groups, columns) / counts, np.nan).astype(np.float32)


def _sized(name: str, squares: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if squares.size != np.prod(shape):
        wanted = " x ".join(map(str, shape))
        raise ModelError(f"importance of {name}: {squares.size} sums, not {wanted}: another model's?")
    return squares.reshape(shape)


@dataclass
class Imatrix:
    """What was collected, by the name of the weight matrix."""

    sums: dict[str, Sums] = field(default_factory=dict)
    datasets: list[str] = field(default_factory=list)
    chunk_count: int = 0
    chunk_size: int = 0

    def add(self, name: str, x: np.ndarray, ids: np.ndarray | None = None, experts: int = 0) -> None:
        """Rows x [rows, groups, columns] of inputs. ids [rows, used] says which of the experts of a routed tensor each
        row goes to; x is then [rows, 1, columns], or [rows, used, columns] if the inputs differ."""
        x = np.asarray(x, np.float32)
        if ids is None:
            found = self.sums.get(name)
            if found is None:
                found = self.sums[name] = Sums(np.zeros(x.shape[1:]), np.zeros(1))
            found.squares = _sized(name, found.squares, x.shape[1:])
            found.squares += np.einsum("rgc,rgc->gc", x, x, dtype=np.float64)
            found.counts += len(x)
            return
        found = self.sums.get(name)
        if found is None:
            found = self.sums[name] = Sums(np.zeros((experts, x.shape[2])), np.zeros(experts))
        found.squares = _sized(name, found.squares, (experts, x.shape[2]))
        for expert in np.unique(ids):
            rows, slot = np.nonzero(ids == expert)
            chosen = x[rows, slot if x.shape[1] > 1 else 0]
            found.squares[expert] += np.einsum("rc,rc->c", chosen, chosen, dtype=np.float64)
            found.counts[expert] += len(rows)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Writes the file; whole or not at all. Errors: ArgumentError if it exists and overwrite is not set; IoError;
        ModelError for sums that are not finite."""
        names = sorted(self.sums)
        entries, data = [], []
        for name in names:
            sums = self.sums[name]
            if not np.isfinite(sums.squares).all():
                raise ModelError(f"{name}: its inputs are not finite")
            rows = sums.counts.size
            entries += [Entry(name + SUMS, "F32", (sums.squares.size // rows, rows)),
                        Entry(name + COUNTS, "F32", (1, rows))]  # fmt: skip
            data += [sums.squares.astype(np.float32), sums.counts.astype(np.float32)]
        pairs = [
            pair("general.type", "string", "imatrix"),
            array("imatrix.datasets", "string", self.datasets),
            pair("imatrix.chunk_count", "u32", self.chunk_count),
            pair("imatrix.chunk_size", "u32", self.chunk_size),
        ]
        with Writer(path, pairs, entries, overwrite=overwrite) as writer:
            for values in data:
                writer.write([values.tobytes()])


def collect(
    engine: Engine,
    chunks: Iterable[list[int]],
    into: Imatrix,
    with_output: bool = False,
    progress: Callable[[int], Any] | None = None,
) -> None:
    """Runs each chunk of tokens from an empty engine and adds what every matrix meets. Routers, which nobody
    quantises, are left out, and the output matrix unless with_output. progress(chunks done) is called behind each. The
    engine is left empty. Errors: UnsupportedError on backends other than the CPU's; ModelError for inputs that are not
    finite."""

    def add(inputs: Inputs) -> None:
        name = inputs.tensor
        is_block = name.startswith("blk.")
        if name.endswith("ffn_gate_inp.weight") or (not is_block and not with_output):
            return
        if "ffn_up_exps" in name:  # meets what ffn_gate_exps meets
            return
        if not np.isfinite(inputs.x).all():
            raise ModelError(f"{name}: its inputs are not all finite numbers")
        into.add(name, inputs.x, inputs.experts, inputs.expert_count)

    engine.observe_inputs(add)
    try:
        for number, tokens in enumerate(chunks):
            engine.reset()
            engine.prefill(tokens)
            into.chunk_count += 1
            if progress is not None:
                progress(number + 1)
    finally:
        engine.observe_inputs(None)
        engine.reset()
    for name in list(into.sums):
        if "ffn_gate_exps" in name:
            into.sums[name.replace("ffn_gate_exps", "ffn_up_exps")] = into.sums[name]


def _strings(reader: gguf.GGUFReader, key: str) -> list[str]:
    found = reader.fields.get(key)
    return [str(text) for text in found.contents()] if found is not None else []


def _number(reader: gguf.GGUFReader, key: str) -> int:
    found = reader.fields.get(key)
    return int(found.contents()) if found is not None else 0


def load(path: str | os.PathLike[str]) -> Imatrix:
    """Reads an importance matrix of llama-imatrix or glm52 imatrix. Errors: OSError; ModelError if it is none, or if a
    value is negative or not finite."""
    with open(path, "rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path}: no GGUF; an importance matrix in the older .dat format has to be collected "
                             "anew, or saved again as GGUF by llama-imatrix")  # fmt: skip
    try:
        reader = gguf.GGUFReader(path)
        found = Imatrix(
            {}, _strings(reader, "imatrix.datasets"), _number(reader, "imatrix.chunk_count"),
            _number(reader, "imatrix.chunk_size"),
        )  # fmt: skip
        tensors = {tensor.name: np.array(tensor.data, np.float32) for tensor in reader.tensors
                   if tensor.tensor_type == gguf.GGMLQuantizationType.F32}  # fmt: skip
    except Exception as error:  # of any kind: the package believes what a file says
        raise ModelError(f"{path}: {error or type(error).__name__}") from error
    for name in tensors:
        if not name.endswith(SUMS):
            continue
        base = name.removesuffix(SUMS)
        squares, counts = tensors[name], tensors.get(base + COUNTS)
        if counts is None or counts.size == 0 or squares.size % counts.size:
            raise ModelError(f"{path}: {name} has no counts that fit")
        for what, values in ((name, squares), (base + COUNTS, counts)):
            if not (np.isfinite(values).all() and (values >= 0).all()):
                raise ModelError(f"{path}: {what} has a value that is negative or not finite")
        found.sums[base] = Sums(squares.astype(np.float64), counts.reshape(-1).astype(np.float64))
    if not found.sums:
        raise ModelError(f"{path}: holds no importance matrix")
    return found

