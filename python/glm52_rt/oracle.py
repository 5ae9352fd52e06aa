"""Oracle runs: a run written down so that it can be repeated and compared anywhere.

A record is JSON, one object a line: what was run (content of model and tokenizer, prompt, options, back end), then
the prefill and each step with what every layer decided, then a digest of all of it. Tokens of a replay are the
record's own, so that one difference is not followed by others that are its consequence.

Where the arithmetic is the record's, a replay must have its bits. Elsewhere decisions must be the same and numbers
within the bounds that the record states: hidden states are compared by projections on fixed vectors of signs, whose
differences are in the mean square those of the hidden states themselves.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from .engine import Engine
from .errors import ArgumentError, IoError, ModelError
from .model import Model
from .native import Observation
from .streaming import Streaming

FORMAT = 1
TOP = 20  # logits that are kept of each step
PROJECTIONS = 8
BOUNDS = {"hidden": 5e-3, "logits": 5e-3}  # relative to the root mean square; for other arithmetic than the record's
ENGINE_OPTIONS = ("context", "quality", "kv_type", "latent_epsilon", "chunk_rows")

Record = list[dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """Where two runs part: step 0 is the prefill. inside_margin: a choice between logits that were closer to each other
    than the bounds allow them to be off, so it says nothing."""

    step: int
    layer: int | None
    quantity: str  # "selected", "routes", "weights", "hidden", "logits" or "token"; "model", ... for what is not a step
    detail: str
    inside_margin: bool = False

    def __str__(self) -> str:
        where = f"step {self.step}" + ("" if self.layer is None else f", layer {self.layer}")
        return f"{where}: {self.quantity}: {self.detail}" + (" (inside the margin)" if self.inside_margin else "")


def _bits(value: float | np.floating) -> str:
    return struct.pack(">f", float(value)).hex()


def _float(bits: str) -> float:
    return struct.unpack(">f", bytes.fromhex(bits))[0]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _signs(layer: int, size: int) -> np.ndarray:
    random = np.random.Generator(np.random.PCG64(layer))
    return random.integers(0, 2, (PROJECTIONS, size)) * 2.0 - 1.0


class _Layers:
    """What the layers of one prefill or step decided. Rows are put together in their order, so that the cut of a prompt
    into batches leaves no trace."""

    def __init__(self, full: bool) -> None:
        self._full = full
        self._parts: dict[int, dict[str, list[Any]]] = {}

    def note(self, seen: Observation) -> None:
        parts = self._parts.setdefault(seen.layer, {"selected": [], "routes": [], "weights": [], "hidden": []})
        parts["selected"] += [row.tolist() for row in seen.selected]
        parts["routes"] += seen.route_ids.tolist()
        parts["weights"].append(seen.route_weights)
        parts["hidden"].append(seen.hidden)

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for layer, parts in sorted(self._parts.items()):
            last = parts["hidden"][-1][-1].astype(np.float64)
            line: dict[str, Any] = {
                "selected": _digest(json.dumps(parts["selected"]).encode()),
                "routes": parts["routes"] if self._full or len(parts["routes"]) == 1 else None,
                "routes_digest": _digest(json.dumps(parts["routes"]).encode()),
                "weights": _digest(np.concatenate(parts["weights"]).tobytes()),
                "hidden": _digest(np.concatenate(parts["hidden"]).tobytes()),
                "rms": _bits(np.sqrt(np.mean(last * last))),
                "projections": [_bits(value) for value in _signs(layer, len(last)) @ last / len(last) ** 0.5],
            }
            if self._full:
                line["selected_positions"] = parts["selected"]
            found.append(line)
        return found


def _logits_line(logits: np.ndarray, top: int, wanted: Sequence[int]) -> dict[str, Any]:
    order = np.lexsort((np.arange(len(logits)), -logits))[:top]
    values = logits.astype(np.float64)
    return {
        "argmax": int(np.argmax(logits)),
        "top": [[int(token), _bits(logits[token])] for token in order],
        "at": [[int(token), _bits(logits[token])] for token in wanted],
        "logits": _digest(logits.tobytes()),
        "logits_rms": _bits(np.sqrt(np.mean(values * values))),
    }


# ---- running ----


def record(
    model: Model,
    ids: Sequence[int],
    steps: int,
    *,
    text: str | None = None,
    messages: Any = None,
    backend: str = "auto",
    threads: int = 0,
    streaming: Streaming | None = None,
    top: int = TOP,
    full: bool = False,
    tensors: bool = False,
    bounds: dict[str, float] | None = None,
    **options: Any,
) -> Record:
    """Runs ids and steps greedy tokens behind them and returns what happened, line by line.

    options  of Engine: quality, kv_type, latent_epsilon, chunk_rows, context (None: just enough)
    full     every selected position and route, not digests
    tensors  a digest of each tensor's bytes: reads the whole model

    Raises what Engine and prefill raise; ArgumentError without ids."""
    if not ids:
        raise ArgumentError("an oracle run needs at least one token")
    options = {name: options.get(name) for name in ENGINE_OPTIONS}
    options["context"] = options["context"] or len(ids) + steps
    head = {
        "glm52_oracle": FORMAT,
        "model": _model_line(model, tensors),
        "tokenizer": _tokenizer_digest(model),
        "prompt": {"text": text, "messages": messages, "ids": list(ids)},
        "engine": {**options, "quality": bool(options["quality"]), "kv_type": options["kv_type"] or "f16"},
        "steps": steps,
        "bounds": bounds or BOUNDS,
    }
    return _run(model, head, None, backend, threads, streaming, top, full)


def _model_line(model: Model, tensors: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"identity": model.identity, "file_bytes": model.file_bytes}
    if tensors:
        line["tensors"] = {tensor.name: digest for tensor, digest in tensor_digests(model)}
    return line


def tensor_digests(model: Model) -> Iterator[tuple[Any, str]]:
    """(tensor, SHA-256 of its bytes) of every tensor. Reads the whole model."""
    for tensor in model.tensors:
        digest = hashlib.sha256()
        with open(model.paths[tensor.shard], "rb") as file:
            file.seek(tensor.offset)
            left = tensor.bytes
            while left:
                part = file.read(min(left, 1 << 20))
                if not part:
                    raise IoError(f"{file.name}: ends inside {tensor.name}")
                digest.update(part)
                left -= len(part)
        yield tensor, digest.hexdigest()


def _tokenizer_digest(model: Model) -> str:
    keys = sorted(key for key in model.metadata if key.startswith("tokenizer."))
    return _digest(json.dumps([[key, model.metadata[key]] for key in keys]).encode("utf-8", "surrogatepass"))


def _run(
    model: Model,
    head: dict[str, Any],
    of: Record | None,
    backend: str,
    threads: int,
    streaming: Streaming | None,
    top: int,
    full: bool,
) -> Record:
    """A run as head says; of: the tokens and the logits looked at are this record's."""
    options = {name: value for name, value in head["engine"].items() if name in ENGINE_OPTIONS and value is not None}
    steps = []
    with Engine(model, backend=backend, threads=threads, streaming=streaming, **options) as engine:
        arithmetic = f"{engine.backend} {'quality' if options['quality'] else 'default'} {options['kv_type']}"
        feed = list(head["prompt"]["ids"])
        for step in range(head["steps"] + 1):
            layers = _Layers(full)
            engine.observe(layers.note)
            before = engine.stats().stream
            engine.prefill(feed)
            wanted = [] if of is None else [token for token, _ in of[1 + step]["top"]]
            line = {"step": step, "position": engine.position, "token": feed[-1], "layers": layers.lines()}
            line |= _logits_line(engine.logits, top, wanted)
            after = engine.stats().stream
            if before is not None and after is not None:
                names = ("hits", "misses", "evictions", "read_bytes")
                line["cache"] = {name: getattr(after, name) - getattr(before, name) for name in names}
            steps.append(line)
            feed = [line["argmax"] if of is None or step == head["steps"] else of[2 + step]["token"]]
    run = [{**head, "arithmetic": arithmetic, "streaming": streaming is not None}, *steps]
    return [*run, {"end": len(run), "sha256": _sum(run)}]


# ---- files ----


def _sum(lines: Record) -> str:
    return hashlib.sha256("".join(json.dumps(line) + "\n" for line in lines).encode()).hexdigest()


def _open(path: str | os.PathLike[str], mode: str) -> IO[str]:
    if os.fspath(path).endswith(".gz"):
        return gzip.open(path, mode + "t", encoding="utf-8")  # type: ignore[return-value]
    return open(path, mode, encoding="utf-8")


def write(lines: Record, path: str | os.PathLike[str]) -> None:
    """Writes a record; a name that ends in .gz is compressed."""
    with _open(path, "w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def read(path: str | os.PathLike[str]) -> Record:
    """Reads a record. Raises ModelError if it is none, is damaged or cut; OSError."""
    try:
        with _open(path, "r") as file:
            lines = [json.loads(line) for line in file]
    except (ValueError, EOFError, gzip.BadGzipFile) as error:
        raise ModelError(f"{os.fspath(path)}: is no oracle record: {error}") from None
    if len(lines) < 3 or not all(isinstance(line, dict) for line in lines) or "glm52_oracle" not in lines[0]:
        raise ModelError(f"{os.fspath(path)}: is no oracle record")
    if lines[0]["glm52_oracle"] != FORMAT:
        raise ModelError(f"{os.fspath(path)}: format {lines[0]['glm52_oracle']}; this reads format {FORMAT}")
    if lines[-1].get("end") != len(lines) - 1 or lines[-1].get("sha256") != _sum(lines[:-1]):
        raise ModelError(f"{os.fspath(path)}: the record is damaged or cut")
    return lines


# ---- comparing ----


def verify(
    model: Model,
    wanted: Record,
    *,
    backend: str = "auto",
    threads: int = 0,
    streaming: Streaming | None = None,
    check_identity: bool = True,
) -> list[Difference]:
    """Repeats a record's run on model and returns the differences, the first one first; none: it is the same.

    check_identity: a model of other content is one difference, and nothing is run."""
    head = wanted[0]
    if check_identity:
        for name, got in (("identity", model.identity), ("file_bytes", model.file_bytes)):
            if head["model"][name] != got:
                return [Difference(0, None, "model", f"{name} {got}, recorded {head['model'][name]}")]
        if head["tokenizer"] != _tokenizer_digest(model):
            return [Difference(0, None, "tokenizer", "another vocabulary, or other merges or tokens")]
    top = len(wanted[1]["top"])
    return diff(wanted, _run(model, head, wanted, backend, threads, streaming, top, False))


def diff(wanted: Record, got: Record) -> list[Difference]:
    """Where got differs from wanted. Bit for bit if their arithmetic is the same, else within wanted's bounds."""
    if wanted[0]["prompt"]["ids"] != got[0]["prompt"]["ids"]:
        return [Difference(0, None, "prompt", "another prompt")]
    exact = wanted[0]["arithmetic"] == got[0]["arithmetic"]
    bounds = wanted[0]["bounds"]
    found: list[Difference] = []
    for one, two in zip(wanted[1:-1], got[1:-1], strict=False):
        if one["token"] != two["token"]:
            found.append(Difference(one["step"], None, "token", f"{two['token']}, recorded {one['token']}"))
            break
        for layer, (a, b) in enumerate(zip(one["layers"], two["layers"], strict=False)):
            found += _layer_differences(one["step"], layer, a, b, exact, bounds)
        found += _logit_differences(one, two, exact, bounds)
    if len(wanted) != len(got) and not found:
        found.append(Difference(len(got) - 3, None, "steps", f"{got[0]['steps']}, recorded {wanted[0]['steps']}"))
    return found


def _layer_differences(
    step: int, layer: int, one: dict[str, Any], two: dict[str, Any], exact: bool, bounds: dict[str, float]
) -> Iterator[Difference]:
    if one["selected"] != two["selected"]:
        yield Difference(step, layer, "selected", "other positions")
    if one["routes_digest"] != two["routes_digest"]:
        detail = "other experts"
        if one["routes"] and two["routes"]:
            detail = f"{two['routes'][-1]}, recorded {one['routes'][-1]}"
        yield Difference(step, layer, "routes", detail)
    off = hidden_distance(one, two)
    if exact:
        if one["weights"] != two["weights"]:
            yield Difference(step, layer, "weights", "other routing weights")
        if one["hidden"] != two["hidden"]:
            yield Difference(step, layer, "hidden", f"other bits; the last row is off by about {off:.1e} of its size")
    elif not off <= bounds["hidden"]:
        yield Difference(step, layer, "hidden", f"off by about {off:.1e} of its size, over {bounds['hidden']:.1e}")


def hidden_distance(one: dict[str, Any], two: dict[str, Any]) -> float:
    """How far apart the last rows are, relative to the first's root mean square: an estimate from the projections."""
    difference = [_float(a) - _float(b) for a, b in zip(one["projections"], two["projections"], strict=True)]
    return float(np.sqrt(np.mean(np.square(difference))) / max(_float(one["rms"]), 1e-30))


def _logit_differences(
    one: dict[str, Any], two: dict[str, Any], exact: bool, bounds: dict[str, float]
) -> Iterator[Difference]:
    values = dict((token, _float(bits)) for token, bits in [*two["at"], *two["top"]])
    pairs = [(_float(bits), values[token]) for token, bits in one["top"] if token in values]
    size = max(_float(one["logits_rms"]), 1e-30)
    off = max((abs(a - b) for a, b in pairs), default=float("inf")) / size
    if exact and one["logits"] != two["logits"]:
        yield Difference(one["step"], None, "logits", f"other bits; {len(pairs)} of the greatest are off by {off:.1e}")
    elif not exact and not off <= bounds["logits"]:
        yield Difference(one["step"], None, "logits", f"off by {off:.1e} of their size, over {bounds['logits']:.1e}")
    if one["argmax"] != two["argmax"]:
        margin = (_float(one["top"][0][1]) - _float(one["top"][1][1])) / size if len(one["top"]) > 1 else 0.0
        inside = not exact and margin <= 2 * bounds["logits"]
        detail = f"{two['argmax']}, recorded {one['argmax']} with a margin of {margin:.1e}"
        yield Difference(one["step"], None, "token", detail, inside)


def describe(lines: Record) -> list[str]:
    """A record in some lines for people."""
    head = lines[0]
    text = head["prompt"]["text"]
    found = [
        f"model      {head['model']['identity'][:16]}..., {head['model']['file_bytes']} bytes",
        f"arithmetic {head['arithmetic']}, {json.dumps(head['engine'])}",
        f"prompt     {len(head['prompt']['ids'])} tokens" + ("" if text is None else f": {text!r}"),
        f"tokens     {[line['argmax'] for line in lines[1:-1]]}",
    ]
    for line in lines[1:-1]:
        best = ", ".join(f"{token} {_float(bits):.4f}" for token, bits in line["top"][:5])
        found.append(f"step {line['step']:5d} at {line['position']:6d}: {best}")
    return found
