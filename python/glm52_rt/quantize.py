"""Quantising a GGUF: which type each tensor gets, and the file with these types.

Rules are PATTERN=TYPE, PATTERN a regular expression that is searched for in the tensor's name, a bare * for all; the
first that fits decides. TYPE is a type that is written, or `keep`. A name of PRESETS stands for its rules, a type alone
for *=TYPE.

Left as they are, whatever the rules say: vectors, norms, biases, the router and everything whose name does not end in
.weight, as llama-quantize leaves them; and the indexer's projection, which is float in every published file, unless a
pattern names it. Where the blocks of a type do not divide a row another takes its place, the same that llama-quantize
takes.
"""

from __future__ import annotations

import collections
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from . import gguf_writer
from .errors import ArgumentError, Cancelled, ModelError
from .imatrix import Imatrix
from .model import Model
from .native import Tensor
from .native_encode import decode, encode, written_types

UNIT_VALUES = 1 << 20  # that a thread works on at once: 4 MiB as float32
UNITS_AHEAD = 2  # per thread, of which the results wait to be written
KEEP = "keep"
FLOATS = ("F32", "F16", "BF16")
QUANTIZATION_VERSION = 2  # of ggml's block formats, as every file says

# {mtp} is the number of the first MTP block. The first three are the mixes of the published GLM-5.2 files, to the byte.
PRESETS = {
    "published-iq2_xxs": r"blk\.{mtp}\.ffn_.*_exps=q2_k, ffn_.*_exps=iq2_xxs, *=q8_0",
    "published-q2_k": "ffn_.*_exps=q2_k, *=q8_0",
    "published-q4_k": "ffn_.*_exps=q4_k, *=q8_0",
    "q2_k+iq2_xxs": "ffn_down_exps=q2_k, ffn_.*_exps=iq2_xxs, *=q8_0",
    "iq3+iq4": "ffn_down_exps=iq4_xs, ffn_.*_exps=iq3_xxs, *=q8_0",
    "mxfp4": "ffn_.*_exps=mxfp4, *=q8_0",
    "ud-q2": (
        "token_embd=q4_k, ^output=q4_k, attn_output=q5_k, attn_q_a=q6_k, ffn_down_exps=iq3_xxs, ffn_.*_exps=iq2_xxs, "
        "_shexp=q6_k, ffn_down=q6_k, ffn_=q5_k, *=q8_0"
    ),
}

# What takes the place of a type whose blocks do not divide a row (attn_k_b: 192).
FALLBACK = {
    "Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ2_XXS": "IQ4_NL",
    "IQ2_XS": "IQ4_NL", "IQ3_XXS": "IQ4_NL", "IQ4_XS": "IQ4_NL",
}  # fmt: skip

# general.file_type by the type that holds most of the weights.
_FILE_TYPES = {
    "F32": LlamaFileType.ALL_F32, "F16": LlamaFileType.MOSTLY_F16, "BF16": LlamaFileType.MOSTLY_BF16,
    "Q4_0": LlamaFileType.MOSTLY_Q4_0, "Q4_1": LlamaFileType.MOSTLY_Q4_1, "Q5_0": LlamaFileType.MOSTLY_Q5_0,
    "Q5_1": LlamaFileType.MOSTLY_Q5_1, "Q8_0": LlamaFileType.MOSTLY_Q8_0, "Q2_K": LlamaFileType.MOSTLY_Q2_K,
    "Q3_K": LlamaFileType.MOSTLY_Q3_K_S, "Q4_K": LlamaFileType.MOSTLY_Q4_K_S, "Q5_K": LlamaFileType.MOSTLY_Q5_K_S,
    "Q6_K": LlamaFileType.MOSTLY_Q6_K, "IQ2_XXS": LlamaFileType.MOSTLY_IQ2_XXS, "IQ2_XS": LlamaFileType.MOSTLY_IQ2_XS,
    "IQ3_XXS": LlamaFileType.MOSTLY_IQ3_XXS, "IQ4_NL": LlamaFileType.MOSTLY_IQ4_NL,
    "IQ4_XS": LlamaFileType.MOSTLY_IQ4_XS,
}  # fmt: skip

Progress = Callable[[int, int, str], bool | None]


@dataclass(frozen=True)
class Rule:
    text: str
    pattern: re.Pattern[str]
    type: str  # upper case, or KEEP


def parse_rules(text: str, mtp_block: int) -> list[Rule]:
    """Rules, presets and types joined by commas. Errors: ArgumentError with the part that is none of them."""
    rules: list[Rule] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        pattern, equals, name = (piece.strip() for piece in part.rpartition("="))
        known = name.upper() in written_types() or (equals and name.lower() == KEEP)
        if not equals and part.lower() in PRESETS:
            rules += parse_rules(PRESETS[part.lower()].replace("{mtp}", str(mtp_block)), mtp_block)
        elif known:
            shown = pattern if equals else "*"
            try:
                compiled = re.compile("" if shown == "*" else shown)
            except re.error as error:
                raise ArgumentError(f"rule {part!r}: {error}") from error
            rules.append(Rule(part, compiled, KEEP if name.lower() == KEEP else name.upper()))
        else:
            raise ArgumentError(
                f"{part!r} is no PATTERN=TYPE, preset ({', '.join(PRESETS)}) or type "
                f"({', '.join(written_types()).lower()})"
            )
    if not rules:
        raise ArgumentError("no rules")
    return rules


def stays(tensor: Tensor) -> bool:
    """Whether a tensor is left as it is, whatever the rules say."""
    matrix = len(tensor.shape) >= 2 and tensor.shape[1] > 1
    weight = tensor.name.endswith(".weight") and not tensor.name.endswith("_norm.weight")
    return not matrix or not weight or tensor.name.endswith("ffn_gate_inp.weight")


@dataclass(frozen=True)
class Choice:
    """A tensor's new type, and why: the rule, or what stood in its way."""

    tensor: Tensor
    type: str
    why: str

    @property
    def copied(self) -> bool:
        return self.type == self.tensor.type

    @property
    def entry(self) -> gguf_writer.Entry:
        return gguf_writer.Entry(self.tensor.name, self.type, self.tensor.shape)


def _fitting(type_name: str, columns: int) -> str:
    """type_name, or what takes its place for rows of so many columns."""
    for name in (type_name, FALLBACK.get(type_name, "F16")):
        if columns % GGML_QUANT_SIZES[GGMLQuantizationType[name]][0] == 0:
            return name
    return "F16"


def choose(tensor: Tensor, rules: Sequence[Rule]) -> Choice:
    if stays(tensor):
        return Choice(tensor, tensor.type, "left as it is")
    rule = next((rule for rule in rules if rule.pattern.search(tensor.name)), None)
    if rule is None:
        raise ArgumentError(f"no rule fits {tensor.name}; end with *=TYPE, or *=keep")
    named = "indexer.proj" in rule.pattern.pattern.replace("\\", "")
    if rule.type == KEEP or ("indexer.proj" in tensor.name and not named):
        return Choice(tensor, tensor.type, "left as it is")
    found = _fitting(rule.type, tensor.shape[0])
    why = rule.text if found == rule.type else f"{rule.text}; blocks of {rule.type} do not divide {tensor.shape[0]}"
    return Choice(tensor, found, why)


@dataclass
class Plan:
    """What becomes of every tensor of a model, and the file that this makes."""

    model: Model
    choices: list[Choice]
    pairs: list[gguf_writer.Pair]
    imatrix: Imatrix | None = None

    @property
    def layout(self) -> gguf_writer.Layout:
        return gguf_writer.layout(self.pairs, [choice.entry for choice in self.choices])

    def by_type(self) -> dict[str, tuple[int, int]]:
        """Tensors and bytes of each type of the new file."""
        found: dict[str, tuple[int, int]] = {}
        for choice in self.choices:
            tensors, size = found.get(choice.type, (0, 0))
            found[choice.type] = (tensors + 1, size + choice.entry.bytes)
        return found

    def unweighted(self) -> list[str]:
        """Matrices that are quantised without an importance, of those that could have one."""
        wanted = [c.tensor for c in self.choices if not c.copied and c.type not in (*FLOATS, "Q8_0")]
        have = self.imatrix.sums if self.imatrix is not None else {}
        return [tensor.name for tensor in wanted if tensor.name not in have]


def plan(
    model: Model, rules: str, imatrix: Imatrix | None = None, imatrix_path: str = "", requantize: bool = False
) -> Plan:
    """Decides; reads no weights. Errors: ArgumentError for rules, and for a tensor that is quantised already and would
    be quantised anew, unless that is asked for; ModelError for an importance matrix of another model."""
    parsed = parse_rules(rules, model.shape.layers)
    choices = [choose(tensor, parsed) for tensor in model.tensors]
    for choice in choices:
        tensor = choice.tensor
        if not choice.copied and tensor.type not in FLOATS and not requantize:
            raise ArgumentError(
                f"{tensor.name} is {tensor.type} already and would lose twice as {choice.type}: quantise from a float "
                "file, or ask for it (--requantize)"
            )
        if imatrix is not None and not choice.copied and tensor.name in imatrix.sums:
            columns, groups = tensor.shape[0], _groups(tensor)
            if imatrix.sums[tensor.name].importance(groups, columns) is None:
                sums = imatrix.sums[tensor.name]
                raise ModelError(
                    f"importance of {tensor.name}: {sums.squares.size} sums and {sums.counts.size} counts, not "
                    f"{groups} x {columns}: collected from another model?"
                )
    return Plan(model, choices, _pairs(model, choices, imatrix, imatrix_path), imatrix)


def _groups(tensor: Tensor) -> int:
    """Matrices of a tensor: experts, heads, or 1."""
    return int(np.prod(tensor.shape[2:], dtype=np.int64))


def _pairs(
    model: Model, choices: Sequence[Choice], imatrix: Imatrix | None, imatrix_path: str
) -> list[gguf_writer.Pair]:
    weights: collections.Counter[str] = collections.Counter()
    for choice in choices:
        if not stays(choice.tensor):
            weights[choice.type] += int(np.prod(choice.tensor.shape, dtype=np.int64))
    new = [gguf_writer.pair("general.quantization_version", "u32", QUANTIZATION_VERSION)]
    most = weights.most_common(1)
    if most and most[0][0] in _FILE_TYPES:
        new.append(gguf_writer.pair("general.file_type", "u32", int(_FILE_TYPES[most[0][0]])))
    if imatrix is not None:
        new.append(gguf_writer.pair("quantize.imatrix.file", "string", os.path.basename(imatrix_path)))
        new.append(gguf_writer.pair("quantize.imatrix.entries_count", "u32", len(imatrix.sums)))
        new.append(gguf_writer.pair("quantize.imatrix.chunks_count", "u32", imatrix.chunk_count))
        if imatrix.datasets:
            new.append(gguf_writer.pair("quantize.imatrix.dataset", "string", imatrix.datasets[0]))
    # The new file has the usual alignment.
    kept = gguf_writer.without(gguf_writer.content_pairs(model), "general.alignment")
    return gguf_writer.with_pairs(kept, new)


# ---- the work ----


@dataclass(frozen=True)
class _Unit:
    """Rows of one matrix of a tensor."""

    number: int  # of the tensor's choice
    first: int  # row of the whole tensor
    rows: int
    group: int


@dataclass
class Loss:
    """Squares of errors and of values."""

    error: float = 0.0
    total: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the error over that of the values."""
        return float(np.sqrt(self.error / self.total)) if self.total else 0.0


@dataclass
class Result:
    seconds: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0
    losses: dict[str, Loss] = field(default_factory=dict)


def _units(number: int, choice: Choice) -> Iterator[_Unit]:
    columns, per_group = choice.tensor.shape[0], choice.tensor.shape[1] if len(choice.tensor.shape) > 1 else 1
    rows_max = max(1, UNIT_VALUES // columns)
    for group in range(_groups(choice.tensor)):
        for first in range(0, per_group, rows_max):
            yield _Unit(number, group * per_group + first, min(rows_max, per_group - first), group)


class _Worker:
    """Turns a unit's bytes into those of its new type; on any thread."""

    def __init__(self, job: Plan, reader: gguf_writer.Reader, measure: bool) -> None:
        self._job, self._reader, self._measure = job, reader, measure

    def _importance(self, choice: Choice, group: int) -> np.ndarray | None:
        sums = self._job.imatrix.sums.get(choice.tensor.name) if self._job.imatrix is not None else None
        if sums is None:
            return None
        found = sums.importance(_groups(choice.tensor), choice.tensor.shape[0])
        row = found[group] if found is not None else None
        return None if row is None or not np.isfinite(row).all() else row

    def __call__(self, unit: _Unit) -> tuple[bytes | np.ndarray, Loss]:
        choice = self._job.choices[unit.number]
        tensor = choice.tensor
        row_bytes = gguf_writer.row_bytes(tensor.type, tensor.shape[0])
        data = self._reader.read(tensor, unit.first * row_bytes, unit.rows * row_bytes)
        if choice.copied:
            return data, Loss()
        x = decode(tensor.type, data).reshape(unit.rows, tensor.shape[0])
        try:
            out = encode(choice.type, x, self._importance(choice, unit.group))
        except ArgumentError as error:
            raise ModelError(f"{tensor.name}, rows from {unit.first} on: {error}") from error
        if not self._measure:
            return out, Loss()
        left = x - decode(choice.type, out).reshape(x.shape)
        squares = (float(np.einsum("rc,rc->", y, y, dtype=np.float64)) for y in (left, x))
        return out, Loss(*squares)


def run(
    job: Plan,
    path: str | os.PathLike[str],
    *,
    threads: int = 0,
    overwrite: bool = False,
    resume: bool = False,
    measure: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Writes the planned file; it appears when it is complete. Memory: a few MiB per thread, whatever the tensors.
    The same bytes whatever the number of threads (0: one per processor).

    progress(bytes read, bytes in all, tensor name) is called behind each piece; returning False cancels. resume: goes
    on where an earlier call of the same model and rules was interrupted. measure: sums errors by type into the result.
    Errors: ArgumentError if path exists and overwrite is not set; ModelError for a weight that is no number; IoError;
    Cancelled."""
    if any(os.path.exists(path) and os.path.samefile(path, source) for source in job.model.paths):
        raise ArgumentError(f"{os.fspath(path)}: the model itself; a file can't be quantised onto itself")
    result, started = Result(), time.monotonic()
    total = sum(choice.tensor.bytes for choice in job.choices)
    fingerprint = f"quantize {job.model.identity} {_digest(job)}" if resume else None
    entries = [choice.entry for choice in job.choices]
    pool = ThreadPoolExecutor(threads or os.cpu_count() or 1)
    ahead = UNITS_AHEAD * pool._max_workers
    try:
        with gguf_writer.Reader(job.model) as reader, gguf_writer.Writer(
            path, job.pairs, entries, overwrite=overwrite, resume=fingerprint
        ) as writer:
            result.read_bytes = sum(choice.tensor.bytes for choice in job.choices[: writer.done])
            units = (unit for n in range(writer.done, len(entries)) for unit in _units(n, job.choices[n]))
            waiting = _ahead(pool, _Worker(job, reader, measure), units, ahead)
            for number in range(writer.done, len(entries)):
                writer.write(_pieces(job, number, waiting, result, total, progress))
            result.written_bytes = writer.layout.file_bytes
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    result.seconds = time.monotonic() - started
    return result


def _ahead(
    pool: ThreadPoolExecutor, work: _Worker, units: Iterable[_Unit], count: int
) -> Iterator[tuple[bytes | np.ndarray, Loss]]:
    """Results of units in order, at most count of them on their way."""
    running: collections.deque[Future[tuple[bytes | np.ndarray, Loss]]] = collections.deque()
    for unit in units:
        running.append(pool.submit(work, unit))
        if len(running) >= count:
            yield running.popleft().result()
    while running:
        yield running.popleft().result()


def _pieces(
    job: Plan, number: int, waiting: Iterator[tuple[bytes | np.ndarray, Loss]], result: Result, total: int,
    progress: Progress | None,
) -> Iterator[bytes | np.ndarray]:  # fmt: skip
    choice = job.choices[number]
    row_bytes = gguf_writer.row_bytes(choice.tensor.type, choice.tensor.shape[0])
    for unit in _units(number, choice):
        data, loss = next(waiting)
        yield data
        result.read_bytes += unit.rows * row_bytes
        if not choice.copied:
            sums = result.losses.setdefault(choice.type, Loss())
            sums.error += loss.error
            sums.total += loss.total
        if progress is not None and progress(result.read_bytes, total, choice.tensor.name) is False:
            raise Cancelled(f"cancelled inside {choice.tensor.name}, {result.read_bytes} of {total} bytes were read")


def _digest(job: Plan) -> str:
    """Of what decides the tensors' bytes beside the model."""
    digest = hashlib.sha256()
    for choice in job.choices:
        digest.update(f"{choice.tensor.name}={choice.type}\n".encode("utf-8", "surrogateescape"))
    for name, sums in sorted(job.imatrix.sums.items()) if job.imatrix is not None else []:
        digest.update(name.encode("utf-8", "surrogateescape") + sums.squares.tobytes() + sums.counts.tobytes())
    return digest.hexdigest()

