"""Oracle runs: a run written down so that it can be repeated and compared anywhere.

A record is JSON, one object a line: what was run (content of model and tokenizer, prompt, options, back end), then
the prefill and each step with what every layer decided, then a digest of all of it. Tokens of a replay are the
record's own, so that one difference is not followed by others that are its consequence.

Where the arithmetic is the record's, a replay must have its bits. Elsewhere decisions must be the same and numbers
within the bounds that the record states: hidden states are compared by projections on fixed vectors of signs, whose
differences are in the mean square those of the hidden states themselves. A decision that went another way although its
margin is wider than the bound is a difference; one inside the margin is named so, and what follows from it is not
compared.

Records of other programs (oracle_import.py) hold their logits alone. docs/FORMAT.md has every field.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .engine import Engine
from .errors import ArgumentError
from .gguf_writer import Reader
from .model import Model
from .native import Observation
from .native_build import build, kernels
from .oracle_file import FORMAT, digest_of, read, write
from .streaming import Streaming

__all__ = ["FORMAT", "Difference", "Record", "describe", "diff", "read", "record", "tensor_digests", "verify", "write"]

TOP = 20  # logits that are kept of each step
PROJECTIONS = 8
# For other arithmetic than the record's. Of hidden states and logits: relative to their root mean square. Of margins:
# how narrow a choice may be and still go the other way, of routes in sigmoid(logit) + bias, of selections relative to
# the root mean square of the scores.
BOUNDS = {"hidden": 5e-3, "logits": 5e-3, "routes": 5e-3, "selected": 5e-3}
ENGINE_OPTIONS = ("context", "quality", "kv_type", "latent_epsilon", "chunk_rows")

Record = list[dict[str, Any]]


@dataclass(frozen=True)
class Difference:
    """Where two runs part: step 0 is the prefill. inside_margin: a choice between candidates that were closer to each
    other than the bounds allow them to be off, so it says nothing."""

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
    into batches leaves no trace but in batches, which nothing is compared by."""

    def __init__(self, full: bool) -> None:
        self._full = full
        self._parts: dict[int, dict[str, list[Any]]] = {}
        self.batches: list[list[int]] = []  # position and rows of each

    def note(self, seen: Observation) -> None:
        if seen.layer == 0:
            self.batches.append([seen.position, len(seen.hidden)])
        names = ("selected", "routes", "weights", "hidden", "select_margins", "route_margins")
        parts = self._parts.setdefault(seen.layer, {name: [] for name in names})
        parts["selected"] += [row.tolist() for row in seen.selected]
        parts["routes"] += seen.route_ids.tolist()
        parts["select_margins"] += seen.select_margins.tolist()
        parts["route_margins"] += seen.route_margins.tolist()
        parts["weights"].append(seen.route_weights)
        parts["hidden"].append(seen.hidden)

    def lines(self) -> list[dict[str, Any]]:
        found = []
        for layer, parts in sorted(self._parts.items()):
            last = parts["hidden"][-1][-1].astype(np.float64)
            line: dict[str, Any] = {
                "selected": _digest(json.dumps(parts["selected"]).encode()),
                "select_margin": _bits(min(parts["select_margins"])),
                "routes": parts["routes"] if self._full or len(parts["routes"]) == 1 else None,
                "routes_digest": _digest(json.dumps([sorted(row) for row in parts["routes"]]).encode()),
                "route_margin": _bits(min(parts["route_margins"])),
                "weights": _digest(np.concatenate(parts["weights"]).tobytes()),
                "hidden": _digest(np.concatenate(parts["hidden"]).tobytes()),
                "rms": _bits(np.sqrt(np.mean(last * last))),
                "projections": [_bits(value) for value in _signs(layer, len(last)) @ last / len(last) ** 0.5],
            }
            if self._full:
                line["selected_positions"] = parts["selected"]
                line["select_margins"] = [_bits(margin) for margin in parts["select_margins"]]
                line["route_margins"] = [_bits(margin) for margin in parts["route_margins"]]
            found.append(line)
        return found


def log_sum(logits: np.ndarray) -> float:
    """Logarithm of the sum of exponentials: a logit less this is a log-probability."""
    values = logits.astype(np.float64)
    greatest = values.max()
    return float(greatest + np.log(np.exp(values - greatest).sum()))


def logits_line(logits: np.ndarray, top: int, wanted: Sequence[int] = ()) -> dict[str, Any]:
    """What a step's line says of its logits [vocab]; wanted: tokens whose logits are kept beside the greatest."""
    order = np.lexsort((np.arange(len(logits)), -logits))[:top]
    values = logits.astype(np.float64)
    return {
        "argmax": int(np.argmax(logits)),
        "top": [[int(token), _bits(logits[token])] for token in order],
        "at": [[int(token), _bits(logits[token])] for token in wanted],
        "logits": _digest(logits.tobytes()),
        "logits_rms": _bits(np.sqrt(np.mean(values * values))),
        "log_sum": _bits(log_sum(logits)),
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
        "source": None,
        "model": _model_line(model, tensors),
        "tokenizer": _tokenizer_digest(model),
        "prompt": {"text": text, "messages": messages, "ids": list(ids)},
        "engine": {**options, "quality": bool(options["quality"]), "kv_type": options["kv_type"] or "f16"},
        "steps": steps,
        "bounds": {**BOUNDS, **(bounds or {})},
    }
    return _run(model, head, None, backend, threads, streaming, top, full)


def _model_line(model: Model, tensors: bool) -> dict[str, Any]:
    line: dict[str, Any] = {"identity": model.identity, "file_bytes": model.file_bytes}
    if tensors:
        line["tensors"] = {tensor.name: digest for tensor, digest in tensor_digests(model)}
    return line


def tensor_digests(model: Model) -> Iterator[tuple[Any, str]]:
    """(tensor, SHA-256 of its bytes) of every tensor. Reads the whole model."""
    with Reader(model) as reader:
        for tensor in model.tensors:
            digest = hashlib.sha256()
            for piece in reader.pieces(tensor):
                digest.update(piece)
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
        made = {
            "arithmetic": f"{engine.backend} {'quality' if options['quality'] else 'default'} {options['kv_type']}",
            "backend": engine.backend, "kernels": kernels(engine.native), "build": build(),
            "streaming": streaming is not None,
        }  # fmt: skip
        feed = list(head["prompt"]["ids"])
        for step in range(head["steps"] + 1):
            layers = _Layers(full)
            engine.observe(layers.note)
            before = engine.stats().stream
            engine.prefill(feed)
            wanted = [] if of is None else [token for token, _ in of[1 + step]["top"]]
            line = {"step": step, "position": engine.position, "token": feed[-1], "fed": feed if step else None}
            line |= {"batches": layers.batches, "layers": layers.lines(), "values": "logits"}
            line |= logits_line(engine.logits, top, wanted)
            after = engine.stats().stream
            if before is not None and after is not None:
                names = ("hits", "misses", "evictions", "read_bytes")
                line["cache"] = {name: getattr(after, name) - getattr(before, name) for name in names}
            steps.append(line)
            feed = [line["argmax"]] if of is None or step == head["steps"] else of[2 + step]["fed"]
    return sealed([{**head, **made}, *steps])


def sealed(lines: Record) -> Record:
    """A record's lines with the one that ends it."""
    return [*lines, {"end": len(lines), "sha256": digest_of(lines)}]


# ---- comparing ----


def verify(
    model: Model,
    wanted: Record,
    *,
    backend: str = "auto",
    threads: int = 0,
    streaming: Streaming | None = None,
    check_identity: bool = True,
    prompt: Sequence[int] | None = None,
    token_bytes: Any = None,
) -> list[Difference]:
    """Repeats a record's run on model and returns the differences, the first one first; none: it is the same.

    check_identity: a model of other content is one difference, and nothing is run
    prompt          ids, for a record that has none
    token_bytes(id) the bytes of a token, for a record that names tokens by them

    Raises ArgumentError if one of the two is needed and missing; what Engine and prefill raise."""
    head = wanted[0]
    if check_identity and (found := _model_difference(model, head)) is not None:
        return [found]
    if head["prompt"]["ids"] is None:
        if prompt is None:
            raise ArgumentError("the record holds no token ids of its prompt: they have to be given")
        count = head["prompt"].get("count")
        if count is not None and count != len(prompt):
            return [Difference(0, None, "prompt", f"{len(prompt)} tokens, recorded {count}")]
        head = {**head, "prompt": {**head["prompt"], "ids": list(prompt)}}
        wanted = [head, *wanted[1:]]
    context = head["engine"]["context"]
    if context is None:
        fed = sum(len(line["fed"] or ()) for line in wanted[1:-1])
        head = {**head, "engine": {**head["engine"], "context": len(head["prompt"]["ids"]) + fed}}
    full = any("selected_positions" in layer for layer in wanted[1]["layers"])
    got = _run(model, head, wanted, backend, threads, streaming, max(2, len(wanted[1]["top"])), full)
    return diff(wanted, got, token_bytes)


def _model_difference(model: Model, head: dict[str, Any]) -> Difference | None:
    needs = head["model"].get("needs")
    for name, got in (("file_bytes", model.file_bytes), ("identity", model.identity)):
        if head["model"][name] not in (None, got):
            detail = f"{name} {got}, recorded {head['model'][name]}"
            detail = f"the record needs {needs}; this is another: {detail}" if needs else detail
            return Difference(0, None, "model", detail)
    if head["tokenizer"] not in (None, _tokenizer_digest(model)):
        return Difference(0, None, "tokenizer", "another vocabulary, or other merges or tokens")
    return None


def diff(wanted: Record, got: Record, token_bytes: Any = None) -> list[Difference]:
    """Where got differs from wanted. Bit for bit if their arithmetic is the same, else within wanted's bounds, and up
    to the first decision that went another way inside its margin. token_bytes: as for verify."""
    if wanted[0]["prompt"]["ids"] != got[0]["prompt"]["ids"]:
        return [Difference(0, None, "prompt", "another prompt")]
    exact = wanted[0]["arithmetic"] == got[0]["arithmetic"]
    bounds = {**BOUNDS, **wanted[0]["bounds"]}
    found: list[Difference] = []
    for one, two in zip(wanted[1:-1], got[1:-1], strict=False):
        if one["fed"] != two["fed"]:
            found.append(Difference(one["step"], None, "token", f"{two['fed']}, recorded {one['fed']}"))
            return found
        for layer, (a, b) in enumerate(zip(one["layers"], two["layers"], strict=False)):
            for quantity in ("selected", "routes"):
                decided = _decision(one["step"], layer, quantity, a, b, exact, bounds[quantity])
                if decided is not None:
                    found.append(decided)
                    if decided.inside_margin:
                        return found
            found += _layer_differences(one["step"], layer, a, b, exact, bounds)
        found += _logit_differences(one, two, exact, bounds, token_bytes)
    if len(wanted) != len(got) and not found:
        found.append(Difference(len(got) - 3, None, "steps", f"{got[0]['steps']}, recorded {wanted[0]['steps']}"))
    return found


# Of each kind of decision: its digest, the whole of it, its margin.
_NAMES = {
    "selected": ("selected", "selected_positions", "select_margin"),
    "routes": ("routes_digest", "routes", "route_margin"),
}


def _decision(
    step: int, layer: int, quantity: str, one: dict[str, Any], two: dict[str, Any], exact: bool, bound: float
) -> Difference | None:
    """Whether a layer selected other positions or chose other experts, with the margin of the narrowest row that it did
    so for; where a record does not tell rows apart, of the narrowest at all."""
    digest, lists, margin_name = _NAMES[quantity]
    if one[digest] == two[digest]:
        return None
    margin, detail = _float(one[margin_name]), "other positions" if quantity == "selected" else "other experts"
    a, b = one.get(lists), two.get(lists)
    if a and b and len(a) == len(b):
        rows = [r for r in range(len(a)) if sorted(a[r]) != sorted(b[r])]
        margins = one.get(margin_name + "s")
        margin = max(_float(margins[r]) for r in rows) if margins else margin
        gone, come = sorted(set(a[rows[0]]) - set(b[rows[0]])), sorted(set(b[rows[0]]) - set(a[rows[0]]))
        detail = f"row {rows[0]} has {come} for {gone}" + (f", {len(rows)} rows in all" if len(rows) > 1 else "")
    inside = not exact and margin <= bound
    behind = "; what follows from it is not compared" if inside else ""
    return Difference(step, layer, quantity, f"margin {margin:.1e}, bound {bound:.1e}: {detail}{behind}", inside)


def _layer_differences(
    step: int, layer: int, one: dict[str, Any], two: dict[str, Any], exact: bool, bounds: dict[str, float]
) -> Iterator[Difference]:
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
    one: dict[str, Any], two: dict[str, Any], exact: bool, bounds: dict[str, float], token_bytes: Any
) -> Iterator[Difference]:
    if one["values"] == "logprobs":
        bound, size, what = bounds["logprobs"], 1.0, "nats"
    else:
        recorded = [_float(bits) for _, bits in one["top"]]
        own = float(np.sqrt(np.mean(np.square(recorded)))) if recorded else 1.0
        size = max(own if one["logits_rms"] is None else _float(one["logits_rms"]), 1e-30)
        bound, what = bounds["logits"], "of their size"
    less = _float(two["log_sum"]) if one["values"] == "logprobs" else 0.0
    values = {token: _float(bits) - less for token, bits in [*two["at"], *two["top"]]}
    floor = bounds.get("logprobs_floor", -np.inf) if one["values"] == "logprobs" else -np.inf
    pairs = [(_float(bits), values[token]) for token, bits in one["top"] if token in values and _float(bits) >= floor]
    off = max((abs(a - b) for a, b in pairs), default=0.0 if not one["top"] else float("inf")) / size
    if exact and one["logits"] != two["logits"]:
        yield Difference(one["step"], None, "logits", f"other bits; {len(pairs)} of the greatest are off by {off:.1e}")
    elif not exact and not off <= bound:
        yield Difference(one["step"], None, "logits", f"off by {off:.1e} {what}, over {bound:.1e}")
    yield from _token_differences(one, two, exact, size, bound, token_bytes)


def _token_differences(
    one: dict[str, Any], two: dict[str, Any], exact: bool, size: float, bound: float, token_bytes: Any
) -> Iterator[Difference]:
    if one.get("argmax_bytes") is not None:
        if token_bytes is None:
            raise ArgumentError("the record names tokens by their bytes: a tokenizer is needed")
        got = token_bytes(two["argmax"])
        if got.hex() != one["argmax_bytes"]:
            yield Difference(one["step"], None, "token", f"{got!r}, recorded {bytes.fromhex(one['argmax_bytes'])!r}")
    elif one["argmax"] is not None and one["argmax"] != two["argmax"]:
        margin = (_float(one["top"][0][1]) - _float(one["top"][1][1])) / size if len(one["top"]) > 1 else 0.0
        inside = not exact and len(one["top"]) > 1 and margin <= 2 * bound
        detail = f"{two['argmax']}, recorded {one['argmax']} with a margin of {margin:.1e}"
        yield Difference(one["step"], None, "token", detail, inside)


def describe(lines: Record) -> list[str]:
    """A record in some lines for people."""
    head = lines[0]
    text, ids, model = head["prompt"]["text"], head["prompt"]["ids"], head["model"]
    identity, size = model["identity"] or "of any identity", model["file_bytes"] or "any number of"
    found = [f"model      {identity[:16]}, {size} bytes"]
    if model.get("needs"):
        found.append(f"needs      {model['needs']}")
    if head["source"]:
        found.append("source     " + ", ".join(f"{name} {value}" for name, value in head["source"].items()))
    if head["arithmetic"]:
        found.append(f"arithmetic {head['arithmetic']}, {json.dumps(head['engine'])}")
        found.append(f"build      {head['kernels']} of {head['build']}")
    count = head["prompt"].get("count") if ids is None else len(ids)
    said = [] if count is None else [f"{count} tokens"]
    said += [repr(text)] if text is not None else []
    found.append(f"prompt     {': '.join(said) or 'not in the record'}")
    if head["prompt"].get("note"):
        found.append(f"           {head['prompt']['note']}")
    found.append(f"tokens     {[line['argmax'] for line in lines[1:-1]]}")
    for line in lines[1:-1]:
        best = ", ".join(f"{token} {_float(bits):.4f}" for token, bits in line["top"][:5])
        if line.get("argmax_bytes"):
            best = repr(bytes.fromhex(line["argmax_bytes"]))
        elif not best:
            best = f"token {line['argmax']}"
        found.append(f"step {line['step']:5d} at {line['position'] or 0:6d}: {best}")
        margins = [(_float(layer[name]), f"{what} of layer {number}") for number, layer in enumerate(line["layers"])
                   for name, what in (("select_margin", "selection"), ("route_margin", "routes"))]  # fmt: skip
        if margins:
            found[-1] += f"; narrowest decision {min(margins)[0]:.1e}, {min(margins)[1]}"
    return found
