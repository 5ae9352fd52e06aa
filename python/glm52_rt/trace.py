"""Recorded routes: which experts each layer chose for each token, and what other caches would have made of them.

A trace is text: a line of JSON about the model, then one line per layer of each batch: position of the batch's first
token, layer, and the experts of all its tokens, token after token.
"""

import heapq
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from . import native
from .errors import ArgumentError
from .model import Model
from .native import POLICIES, NativeCache, Observation

FORMAT = 1
BELADY = "belady"
_NO_CLASS = 255


@dataclass(frozen=True)
class Header:
    """What a trace says about its model."""

    glm52_trace: int
    identity: str
    layers: int
    experts: int
    used: int
    expert_bytes: tuple[int, ...]  # per layer, 0 where dense

    @classmethod
    def of_model(cls, model: Model) -> "Header":
        shape = model.shape
        sizes = [0] * shape.layers
        for tensor in model.tensors:
            parts = tensor.name.split(".")
            if parts[0] == "blk" and int(parts[1]) < shape.layers and parts[2].endswith("_exps"):
                sizes[int(parts[1])] += tensor.bytes // shape.experts
        return cls(FORMAT, model.identity, shape.layers, shape.experts, shape.experts_used, tuple(sizes))


@dataclass(frozen=True)
class Step:
    """One layer of one batch."""

    position: int
    layer: int
    ids: tuple[int, ...]  # [tokens, used]


class Recorder:
    """Writes a trace: an observer for Engine.observe."""

    def __init__(self, model: Model, file: TextIO) -> None:
        self._file = file
        file.write(json.dumps(asdict(Header.of_model(model))) + "\n")

    def __call__(self, seen: Observation) -> None:
        if seen.route_ids.shape[1]:
            ids = " ".join(map(str, seen.route_ids.ravel().tolist()))
            self._file.write(f"{seen.position} {seen.layer} {ids}\n")


def read_trace(path: str | os.PathLike[str]) -> tuple[Header, list[Step]]:
    """A trace as it was recorded. Raises ArgumentError with the line that is wrong, OSError."""
    name = os.fspath(path)
    steps = []
    with open(path, encoding="utf-8") as file:
        header = _header(name, file.readline())
        for number, line in enumerate(file, 2):
            words = line.split()
            if not all(word.isdecimal() for word in words):
                raise ArgumentError(f"{name}, line {number}: not a row of a trace")
            position, layer, *ids = map(int, words)
            if not ids or len(ids) % header.used or layer >= header.layers or max(ids) >= header.experts:
                raise ArgumentError(f"{name}, line {number}: {len(ids)} experts of layer {layer} do not fit the header")
            if not header.expert_bytes[layer]:
                raise ArgumentError(f"{name}, line {number}: layer {layer} has no routed experts")
            steps.append(Step(position, layer, tuple(ids)))
    if not steps:
        raise ArgumentError(f"{name}: the trace is empty")
    return header, steps


def _header(name: str, line: str) -> Header:
    try:
        found: Any = json.loads(line)
        header = Header(**{**found, "expert_bytes": tuple(found["expert_bytes"])})
        numbers = (header.layers, header.experts, header.used, *header.expert_bytes)
        if header.glm52_trace != FORMAT or not all(isinstance(n, int) for n in numbers):
            raise ValueError(f"format {header.glm52_trace}")
        if not 0 < header.used <= header.experts or len(header.expert_bytes) != header.layers:
            raise ValueError("numbers that contradict each other")
    except (ValueError, TypeError, KeyError) as error:
        raise ArgumentError(f"{name}: this is no trace of glm52 run --trace ({error})") from None
    return header


# ---- simulation ----


@dataclass(frozen=True)
class Point:
    """One cache and what it made of a trace."""

    policy: str
    fraction: float  # of the routed experts' bytes, as far as slots hold them
    cache_bytes: int
    slots: int
    hit_rate: float  # of the experts that selections asked for, each counted once per batch
    misses: int
    bytes_per_token: float
    evictions: int


def simulate(
    header: Header,
    steps: Iterable[Step],
    policies: Iterable[str] = POLICIES,
    fractions: Iterable[float] = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0),
) -> Iterator[Point]:
    """Replays a trace through the library's own cache; BELADY is the bound that no policy passes. Sizes are shared out
    among sizes of experts as an engine does; one too small for a token's selection becomes the smallest that is not."""
    steps = list(steps)
    sizes = sorted({size for size in header.expert_bytes if size})
    class_of = [sizes.index(size) if size else _NO_CLASS for size in header.expert_bytes]
    layers = [class_of.count(i) for i in range(len(sizes))]
    whole = header.experts * sum(header.expert_bytes)
    least = header.used * sum(sizes)
    for policy in policies:
        known: set[tuple[int, ...]] = set()
        for fraction in fractions:
            wanted = max(least, round(whole * fraction))
            slots = native.classes_fill(sizes, layers, header.experts, header.used, wanted)
            if tuple(slots) not in known:
                known.add(tuple(slots))
                replay = _bound if policy == BELADY else _replay
                yield replay(header, steps, policy, class_of, sizes, slots)


def _replay(
    header: Header, steps: list[Step], policy: str, class_of: list[int], sizes: list[int], slots: list[int]
) -> Point:
    cache = NativeCache(class_of, header.experts, slots, policy)
    read = tokens = 0
    for at, step in enumerate(steps):
        read += header.expert_bytes[step.layer] * cache.select(step.layer, list(step.ids))
        ends = at + 1 == len(steps) or steps[at + 1].layer <= step.layer
        if ends:
            rows = len(step.ids) // header.used
            tokens += rows
            if step.position == 0 and tokens > rows:
                cache.turn(False)
            cache.tick(rows)
    stats = cache.stats()
    return _point(header, policy, sizes, slots, stats["hits"], stats["misses"], read / tokens, stats["evictions"])


def _point(
    header: Header, policy: str, sizes: list[int], slots: list[int], hits: int, misses: int, read: float, evictions: int
) -> Point:
    held = sum(count * size for count, size in zip(slots, sizes, strict=True))
    return Point(
        policy, held / (header.experts * sum(header.expert_bytes)), held, sum(slots), hits / (hits + misses), misses,
        read, evictions,
    )  # fmt: skip


def _bound(
    header: Header, steps: list[Step], policy: str, class_of: list[int], sizes: list[int], slots: list[int]
) -> Point:
    """What a cache that knows the future would do: behind each step it keeps, of what it has and what was chosen, the
    experts that are needed next (Belady 1966). It may even drop one that was just read, so no policy misses less."""
    last: dict[tuple[int, int], int] = {}
    next_use: list[dict[int, int]] = [{} for _ in steps]  # per step: expert -> the step that wants it next
    for at in range(len(steps) - 1, -1, -1):
        for expert in set(steps[at].ids):
            key = (steps[at].layer, expert)
            next_use[at][expert] = last.get(key, len(steps))
            last[key] = at
    kept: list[dict[tuple[int, int], int]] = [{} for _ in sizes]  # per size of expert, until when
    latest: list[list[tuple[int, tuple[int, int]]]] = [[] for _ in sizes]  # heaps; entries that do not hold are passed
    hits = misses = read = evictions = tokens = 0
    for at, step in enumerate(steps):
        kind = class_of[step.layer]
        mine, heap = kept[kind], latest[kind]
        for expert, then in next_use[at].items():
            key = (step.layer, expert)
            hits += key in mine
            misses += key not in mine
            read += header.expert_bytes[step.layer] * (key not in mine)
            mine[key] = then
            heapq.heappush(heap, (-then, key))
        while len(mine) > slots[kind]:
            then, key = heapq.heappop(heap)
            if mine.get(key) == -then:
                del mine[key]
                evictions += 1
        if at + 1 == len(steps) or steps[at + 1].layer <= step.layer:
            tokens += len(step.ids) // header.used
    return _point(header, policy, sizes, slots, hits, misses, read / tokens, evictions)


# ---- habits ----


@dataclass(frozen=True)
class Habits:
    """Of one layer: how evenly experts are chosen, and how much a token tells about the next."""

    layer: int
    tokens: int
    counts: tuple[int, ...]  # [experts] how often each was chosen
    load: float  # of the most chosen expert, over the mean
    top_quarter: float  # share of choices that fall on the most chosen quarter of the experts
    repeated: float  # share of a token's experts that the token before chose too


def habits(header: Header, steps: Iterable[Step]) -> list[Habits]:
    """Of every sparse layer of a trace, in the order in which tokens were fed."""
    counts = {layer: [0] * header.experts for layer, size in enumerate(header.expert_bytes) if size}
    before: dict[int, frozenset[int]] = {}
    repeated = dict.fromkeys(counts, 0)
    tokens, pairs = dict.fromkeys(counts, 0), dict.fromkeys(counts, 0)
    for step in steps:
        for at in range(0, len(step.ids), header.used):
            chosen = step.ids[at : at + header.used]
            for expert in chosen:
                counts[step.layer][expert] += 1
            if step.layer in before and (step.position or at):
                repeated[step.layer] += len(before[step.layer] & set(chosen))
                pairs[step.layer] += 1
            before[step.layer] = frozenset(chosen)
            tokens[step.layer] += 1
    quarter = max(1, header.experts // 4)
    return [
        Habits(
            layer, tokens[layer], tuple(own), max(own) * header.experts / max(1, sum(own)),
            sum(sorted(own)[-quarter:]) / max(1, sum(own)), repeated[layer] / max(1, pairs[layer] * header.used),
        )
        for layer, own in counts.items()
    ]  # fmt: skip


# ---- comparison ----


@dataclass(frozen=True)
class Difference:
    """How two traces of one text differ."""

    tokens: int  # that both have
    equal: int  # routes of a token in a layer, as sets
    routes: int
    shared_experts: float  # share of chosen experts that both chose
    first: tuple[int, int] | None  # position and layer of the first route that differs
    per_layer: dict[int, float]  # share of equal routes


def compare(a: tuple[Header, list[Step]], b: tuple[Header, list[Step]]) -> Difference:
    """Compares routes token by token; how tokens were cut into batches does not matter. A token that was fed again is
    taken as it was last. Raises ArgumentError if the traces are of models of different shape."""
    if (a[0].layers, a[0].experts, a[0].used) != (b[0].layers, b[0].experts, b[0].used):
        raise ArgumentError("the traces are of models of different shape")
    left, right = _by_token(*a), _by_token(*b)
    both = sorted(set(left) & set(right))
    if not both:
        raise ArgumentError("the traces have no token in common")
    layers: dict[int, list[bool]] = {}
    shared, first = 0, None
    for key in both:
        position, layer = key
        same = left[key] == right[key]
        shared += len(left[key] & right[key])
        layers.setdefault(layer, []).append(same)
        if not same and first is None:
            first = (position, layer)
    equal = sum(sum(found) for found in layers.values())
    return Difference(
        len({position for position, _ in both}), equal, len(both), shared / (len(both) * a[0].used), first,
        {layer: sum(found) / len(found) for layer, found in sorted(layers.items())},
    )  # fmt: skip


def _by_token(header: Header, steps: list[Step]) -> dict[tuple[int, int], frozenset[int]]:
    found = {}
    for step in steps:
        for row in range(len(step.ids) // header.used):
            ids = step.ids[row * header.used : (row + 1) * header.used]
            found[step.position + row, step.layer] = frozenset(ids)
    return found

