"""What a machine can do with a model: which weights stay, how large an expert cache should be, what a token reads.

The bytes are the library's own (the same functions that allocate them); what is estimated here is how often an expert
is at hand, and says so.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from . import native
from .engine import Plan, plan_memory
from .errors import MemoryBudgetError
from .model import Model
from .streaming import Streaming

# Share of the experts' bytes that a cache holds -> share of a token's experts that it has, for a cache that keeps the
# recently used. Fitted (largest error 0.015) to the hit rates at thirteen sizes that boyle 0.2.1 published for GLM-5.2
# at 4 bits in decoding; another model, text or batch has another curve, and `glm52 trace simulate` measures it.
_FIT_TOP, _FIT_SCALE, _FIT_POWER = 0.995, 3.05, 0.7
# Of what experts may take, the cache gets three eighths at most and the page cache the rest: beyond that every
# published series of sizes becomes slower (mlx-lm issue 1438, ds4 issue 810, oMLX's document), which no rate below
# explains.
CACHE_SHARE_MAX = 3 / 8
_SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, CACHE_SHARE_MAX, 1 / 2, 3 / 4, 1.0)
# Assumed if not told: bytes per second of a disk, and of a read that the page cache answers.
DISK_RATE, PAGE_CACHE_RATE = 3e9, 6e9
NO_LIMIT = 1 << 62


def published_hits(fraction: float) -> float:
    """Hit rate of a cache that holds this fraction of the experts, routed as GLM-5.2 routes text."""
    if fraction >= 1:
        return 1.0
    return _FIT_TOP * (1 - math.exp(-_FIT_SCALE * max(0.0, fraction) ** _FIT_POWER))


def uniform_hits(fraction: float) -> float:
    """The same if every expert were as likely as any other: the worst case for a cache."""
    return min(1.0, max(0.0, fraction))


@dataclass(frozen=True)
class Machine:
    """What a plan is for, in bytes; 0 is unknown or not set."""

    memory: int
    working_set: int = 0  # that the device recommends
    wired_limit: int = 0  # iogpu.wired_limit_mb on macOS
    disk_rate: float = DISK_RATE  # bytes per second of expert reads
    page_cache_rate: float = PAGE_CACHE_RATE  # of those that the page cache answers


@dataclass(frozen=True)
class Size:
    """One size of the cache and what it does to a token."""

    cache_bytes: int
    slots: int
    fraction: float  # of the routed experts
    hits: float  # of a token's experts in the cache
    read_bytes: int  # that a token asks the system for
    disk_bytes: int  # of them, what the page cache does not have either
    seconds: float  # of a token, for reading alone


@dataclass(frozen=True)
class MachinePlan:
    """A plan. resident to transient add up to fixed; fixed and an expert cache to what an engine takes."""

    machine: Machine
    context: int
    sessions: int
    usable: int  # bytes that may be used
    resident: int  # weights that stay mapped
    kv: int  # caches of all sessions
    mtp: int  # the MTP block's weights, cache and experts; 0 without it
    scratch: int  # activations of a batch, scratch, tables
    transient: int  # read buffers, and a second state while conversations are swapped
    fixed: int
    left: int  # for experts, in slots or in the page cache
    routed_bytes: int
    token_bytes: int  # expert bytes that one token chooses
    minimum_bytes: int
    classes: tuple[dict[str, int], ...]  # sizes of experts with the slots of the recommended cache
    sizes: tuple[Size, ...]
    recommended: Size | None  # None: does not fit
    refusal: str  # why not
    # The public ds4 executor's rules for the same numbers; sized_slots is what size classes make of the same bytes.
    published: dict[str, int] | None
    published_refusal: str

    @property
    def total(self) -> int:
        """What the recommended engine takes."""
        return self.fixed + (self.recommended.cache_bytes if self.recommended else 0)


def routed_layer_bytes(model: Model) -> list[int]:
    """Bytes of the routed experts of each sparse layer in order, MTP blocks last."""
    layers: dict[int, int] = {}
    for tensor in model.tensors:
        found = re.fullmatch(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight", tensor.name)
        if found:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + tensor.bytes
    return [layers[i] for i in sorted(layers)]


def _mtp_bytes(model: Model, stream: dict[str, Any], sessions: int, context: int, kv_type: str, used: int) -> int:
    """An MTP block's own part: its weights without the routed experts, one selection of these, and its caches."""
    shape = model.shape
    layers = routed_layer_bytes(model)
    trunk = shape.layers - shape.dense_layers
    routed = sum(layers[trunk:])
    element = {"f16": 2, "f32": 4}[kv_type]
    rows = element * (shape.kv_lora + shape.rope + shape.index_key) + 4  # cache, indexer keys, selection
    slots = 2 * used * (routed // max(1, shape.experts * (len(layers) - trunk)))
    return stream["nextn_bytes"] - routed + slots + sessions * context * rows * shape.nextn_layers


def plan_machine(
    model: Model,
    machine: Machine,
    context: int = 4096,
    *,
    sessions: int = 1,
    mtp: bool = False,
    swap: bool = False,
    kv_type: str = "f16",
    quality: bool = False,
    cache_bytes: int = 0,
    direct_io: bool = False,
    hits: Callable[[float], float] = published_hits,
) -> MachinePlan:
    """Plans an engine that streams. cache_bytes fixes the size of the cache instead of having one recommended; swap
    counts a second state; with direct_io the page cache has no part.
    Raises MemoryBudgetError if the sums do not fit in 64 bits or nothing may be used."""
    usable = native.memory_usable(machine.memory, machine.working_set, machine.wired_limit)
    least = Streaming(cache_experts=_minimum_experts(model), memory_bytes=NO_LIMIT)
    stream = native.stream_plan(model.native, least.native_options(), 256, 0)
    plan = plan_memory(model, context, streaming=least, kv_type=kv_type, quality=quality)
    parts = {
        "resident": plan.weights_mapped,
        "kv": (plan.kv_cache + plan.index_cache) * sessions,
        "mtp": _mtp_bytes(model, stream, sessions, context, kv_type, model.shape.experts_used) if mtp else 0,
        "scratch": plan.activations + plan.backend_scratch + plan.host,
        "transient": plan.stream_buffers + (plan.kv_cache + plan.index_cache if swap else 0),
    }
    fixed = native.admission(**parts, experts=0)
    left = max(0, usable - fixed)
    published, published_refusal = _published(model, machine, plan.weights_mapped, cache_bytes)
    planned = MachinePlan(
        machine, context, sessions, usable, *parts.values(), fixed, left, stream["routed_bytes"],
        stream["token_bytes"], stream["minimum_bytes"], (), (), None, "", published, published_refusal,
    )  # fmt: skip
    return _with_sizes(model, planned, cache_bytes, direct_io, hits)


def _minimum_experts(model: Model) -> int:
    """Slots that a cache of this model can start with."""
    probe = Streaming(cache_experts=model.shape.experts_used * 32)
    return native.stream_plan(model.native, probe.native_options(), 1, 0)["minimum_experts"]


def _with_sizes(
    model: Model, plan: MachinePlan, cache_bytes: int, direct_io: bool, hits: Callable[[float], float]
) -> MachinePlan:
    """The plan with its table of sizes, and the size recommended or asked for."""

    def size_of(wanted: int) -> tuple[Size, list[dict[str, int]]]:
        options = Streaming(cache_bytes=wanted, memory_bytes=NO_LIMIT).native_options()
        made = native.stream_plan(model.native, options, 1, 0)
        held = sum(c["slots"] * c["expert_bytes"] for c in made["classes"])
        fraction = held / plan.routed_bytes
        # Both caches keep what was read last: the page cache adds only what it reaches further back than the slots.
        spare = 0 if direct_io else max(0, plan.left - made["cache_bytes"])
        reach = max(fraction, min(1.0, spare / plan.routed_bytes))
        disk = round(plan.token_bytes * (1 - hits(reach)))
        read = round(plan.token_bytes * (1 - hits(fraction)))
        seconds = disk / plan.machine.disk_rate + (read - disk) / plan.machine.page_cache_rate
        return Size(made["cache_bytes"], made["slots"], fraction, hits(fraction), read, disk, seconds), made["classes"]

    everything, _ = size_of(NO_LIMIT)
    if (cache_bytes or plan.minimum_bytes) > plan.left or 0 < cache_bytes < plan.minimum_bytes:
        why = (
            f"{plan.usable} bytes may be used; all but the experts need {plan.fixed}, one token's experts "
            f"{plan.minimum_bytes}" + (f", and {cache_bytes} were asked for" if cache_bytes else "")
        )
        return replace(plan, refusal=why)
    amounts = {min(everything.cache_bytes, max(plan.minimum_bytes, int(plan.left * share))) for share in _SHARES}
    sizes = tuple(size_of(amount)[0] for amount in sorted(amounts))
    if cache_bytes:
        wanted = cache_bytes
    elif everything.cache_bytes <= plan.left:
        wanted = everything.cache_bytes  # all of them fit: nothing is ever read twice
    else:
        most = plan.left if direct_io else max(plan.minimum_bytes, int(plan.left * CACHE_SHARE_MAX))
        allowed = [size for size in sizes if size.cache_bytes <= most]
        wanted = min(allowed, key=lambda size: (size.seconds, size.cache_bytes)).cache_bytes
    recommended, classes = size_of(wanted)
    return replace(plan, sizes=sizes, recommended=recommended, classes=tuple(classes))


def _published(
    model: Model, machine: Machine, other_bytes: int, cache_bytes: int
) -> tuple[dict[str, int] | None, str]:
    """The cache by the public ds4 executor's rules, or why there is none."""
    shape = model.shape
    try:
        made = native.budget(
            routed_layer_bytes(model), working_set=machine.working_set or machine.memory, other_bytes=other_bytes,
            cache_bytes=cache_bytes, cache_experts=0, percent=80, experts=shape.experts,
            trunk_count=shape.layers - shape.dense_layers, blocks=shape.layers + shape.nextn_layers,
            full_layers=2**32 - 1,
        )  # fmt: skip
        options = Streaming(cache_bytes=made["total"], memory_bytes=NO_LIMIT).native_options()
        return {**made, "sized_slots": native.stream_plan(model.native, options, 1, 0)["slots"]}, ""
    except MemoryBudgetError as error:
        return None, str(error)


def curve_from_points(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    """A hit rate between measured (fraction, hit rate) points, which are sorted first; linear, from (0, 0)."""
    known = sorted({0.0: 0.0, **dict(points)}.items())

    def hits(fraction: float) -> float:
        for (low, low_hits), (high, high_hits) in zip(known, known[1:], strict=False):
            if fraction <= high:
                return low_hits + (high_hits - low_hits) * (max(fraction, low) - low) / (high - low)
        return known[-1][1]

    return hits


__all__ = [
    "Machine", "MachinePlan", "Plan", "Size", "curve_from_points", "plan_machine", "published_hits",
    "routed_layer_bytes", "uniform_hits",
]  # fmt: skip
