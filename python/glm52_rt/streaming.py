"""Experts that do not fit in memory: what an engine may be asked to do about them, and what it measured."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import ArgumentError
from .native import ADVICE, PILOTS, POLICIES

ExpertId = tuple[int, int]  # layer, expert


@dataclass(frozen=True)
class Streaming:
    """How an engine streams its routed experts. No choice here changes a bit of any result.

    cache_bytes     memory of the expert cache; 0: see cache_experts
    cache_experts   its slots instead, shared out among the sizes of experts; both 0: automatic, at most 12 GiB
    memory_bytes    memory the process may use, 0: the machine's. Sizes the automatic cache, and a plan beyond it is
                    refused with its numbers
    full_layers     leading sparse layers that get a slot for every expert beside the cache; None: none
    preload         experts to read at open: a number (the hottest of the ledger), a list of (layer, expert), or a
                    file with lines "layer expert ..."; None: none
    preload_max     experts of a list that are taken, 0: 4096
    cold            start empty whatever preload says
    policy          "lru", "hotness" or "lfru"
    pins            (layer, expert) that stay once they were read
    workers         threads that read
    direct_io       read past the page cache
    advise          any of "willneed" (before a read) and "dontneed" (after it)
    wired           lock slots in memory as far as the system lets
    mirror_path     a copy of the model on another disk, which half of the reads go to
    usage_path      ledger of routes, kept from run to run (a text file, mode 0600)
    auto_pin        pin what the ledger says is hot; auto_pin_bytes_min: fewer bytes are not worth it, 0: 0.5 GB
    live_repin      let pins change places with hotter experts when a prompt begins
    pilot           "off", "measure" (predict the next layer's experts, count) or "hint" (and have them read ahead)
                    or "load" (read the likeliest of them into the cache while this layer is computed)
    pilot_k         experts per token that are hinted at, 0: as many as a token uses; experts per layer that are
                    loaded, 0: 2
    pilot_two_step  predict with the shared expert's output added
    token_prefill_max  prompts up to this long are fed token by token early in the context, 0: never"""

    cache_bytes: int = 0
    cache_experts: int = 0
    memory_bytes: int = 0
    full_layers: int | None = None
    preload: int | str | os.PathLike[str] | Sequence[ExpertId] | None = None
    preload_max: int = 0
    cold: bool = False
    policy: str = "lru"
    pins: Sequence[ExpertId] = ()
    workers: int = 8
    direct_io: bool = False
    advise: Sequence[str] = ()
    wired: bool = False
    mirror_path: str | os.PathLike[str] | None = None
    usage_path: str | os.PathLike[str] | None = None
    auto_pin: bool = False
    auto_pin_bytes_min: int = 0
    live_repin: bool = False
    pilot: str = "off"
    pilot_k: int = 0
    pilot_two_step: bool = False
    token_prefill_max: int = 0
    test: Any = None  # native.StreamTest, for tests alone

    def native_options(self) -> dict[str, Any]:
        """Numbers, names and lists as native.py wants them. Raises ArgumentError."""
        for name, known in (("policy", POLICIES), ("pilot", PILOTS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"{name} {getattr(self, name)!r}; it must be one of {', '.join(known)}")
        unknown = sorted(set(self.advise) - set(ADVICE))
        if unknown:
            raise ArgumentError(f"advise {unknown[0]!r}; it may have {', '.join(ADVICE)}")
        if self.workers < 1:
            raise ArgumentError(f"workers {self.workers}; it must be at least 1")
        count, listed = 0, []
        if not self.cold and isinstance(self.preload, int):
            if self.preload > 0 and self.usage_path is None:
                raise ArgumentError("a number of experts is preloaded from the usage ledger; usage_path names none")
            count = self.preload
        elif not self.cold and self.preload is not None:
            listed = read_hot_list(self.preload) if isinstance(self.preload, (str, os.PathLike)) else self.preload
        numbers = {
            "cache_bytes": self.cache_bytes,
            "cache_experts": self.cache_experts,
            "memory_bytes": self.memory_bytes,
            "full_layers": self.full_layers or 0,
            "preload_max": self.preload_max or count,
            "policy": POLICIES.index(self.policy),
            "workers": self.workers,
            "direct_io": int(self.direct_io),
            "advise": sum(ADVICE[name] for name in set(self.advise)),
            "wired": int(self.wired),
            "auto_pin": int(self.auto_pin),
            "auto_pin_bytes_min": self.auto_pin_bytes_min,
            "live_repin": int(self.live_repin),
            "pilot": PILOTS.index(self.pilot),
            "pilot_k": self.pilot_k,
            "pilot_two_step": int(self.pilot_two_step),
            "token_prefill_max": self.token_prefill_max,
        }
        wide = ("cache_bytes", "memory_bytes", "auto_pin_bytes_min")
        for name, number in numbers.items():
            if not 0 <= number < 2 ** (64 if name in wide else 32):
                raise ArgumentError(f"{name} {number} is out of range")
        return {
            **numbers,
            "mirror_path": None if self.mirror_path is None else os.fspath(self.mirror_path),
            "usage_path": None if self.usage_path is None else os.fspath(self.usage_path),
            "pins": _ids(self.pins),
            "preload": _ids(listed),
            "test": self.test,
        }


def _ids(pairs: Iterable[ExpertId]) -> list[ExpertId]:
    found = [(int(layer), int(expert)) for layer, expert in pairs]
    for layer, expert in found:
        if not (0 <= layer < 2**32 and 0 <= expert < 2**32):
            raise ArgumentError(f"expert {expert} of layer {layer}: there is none")
    return found


def read_hot_list(path: str | os.PathLike[str]) -> list[ExpertId]:
    """Experts of a file with lines "layer expert ...", hottest first; # begins a comment. A usage ledger's rows are
    sorted by their count. Raises ArgumentError with the number of a malformed line, OSError."""
    rows: list[tuple[int, int, int]] = []
    is_ledger = False
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        words = line.split("#")[0].split()
        if number == 1 and words[:1] == ["glm52-usage"]:
            is_ledger = True
            continue
        if not words or (is_ledger and words[0] == "end"):
            continue
        if len(words) < 2 or not all(word.isdecimal() for word in words[:2]):
            raise ArgumentError(f"{os.fspath(path)}, line {number}: {line!r} does not begin with a layer and an expert")
        rows.append((int(words[0]), int(words[1]), int(words[2]) if is_ledger else 0))
    if is_ledger:
        rows.sort(key=lambda row: -row[2])
    return [(layer, expert) for layer, expert, _ in rows]


@dataclass(frozen=True)
class Latency:
    """Durations in nanoseconds; percentiles are at most a ninth too high."""

    count: int
    total_ns: int
    p50_ns: int
    p95_ns: int
    p99_ns: int
    max_ns: int


@dataclass(frozen=True)
class LayerStats:
    """One layer's part."""

    hits: int
    misses: int
    read_bytes: int
    wait_ns: int


@dataclass(frozen=True)
class StreamStats:
    """Measured since the engine was opened. Demand (hits to wait) is what selections needed; what preloads, pins and
    hints did is counted apart. A call that fails leaves the demand counters as they were."""

    slots: int
    slot_bytes: int
    classes: int
    resident: int  # experts in slots now
    pinned: int
    wired_bytes: int
    hits: int  # experts of a layer's selection that were there
    misses: int
    evictions: int
    routes: int  # choices of tokens, before duplicates are taken out
    segments: int  # parts in which selections were taken
    stolen: int  # experts evicted although a later part of the same selection wanted them
    loads: int  # experts read for selections
    read_ops: int
    read_bytes: int
    direct_ops: int
    short_reads: int
    interrupted: int
    errors: int
    mirror_ops: int
    mirror_fallbacks: int
    willneed_bytes: int
    dontneed_bytes: int
    service: Latency  # one third of an expert on the disk
    wait: Latency  # the computing thread in want of experts, one layer of a batch
    preloaded: int
    policy_ops: int
    policy_bytes: int
    repins: int
    ledger_selections: int
    pilot_predictions: int  # rows of layers that were predicted and then seen
    pilot_predicted: int  # experts
    pilot_correct: int
    pilot_wanted: int
    pilot_exact_rows: int
    pilot_rank_hits: int
    pilot_skipped_wide: int
    pilot_abandoned: int
    pilot_cost: Latency
    pilot_lead: Latency  # from a prediction to the routes it was of
    hint_candidates: int
    hint_resident_skipped: int
    hint_submitted: int
    hint_completed: int
    hint_dropped: int
    hint_errors: int
    hint_bytes: int
    hint_queue_max: int
    ahead: int  # experts loaded before their layer asked for them
    ahead_used: int  # and then asked for
    ahead_errors: int

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> "StreamStats":
        return cls(**{name: Latency(**value) if isinstance(value, dict) else value for name, value in fields.items()})

    @property
    def hit_rate(self) -> float:
        """Hits of all experts that selections asked for; 0 before any."""
        return self.hits / max(1, self.hits + self.misses)

    @property
    def pilot_recall(self) -> float:
        """Predicted experts among those that were chosen."""
        return self.pilot_correct / max(1, self.pilot_wanted)

    @property
    def pilot_precision(self) -> float:
        """Chosen experts among those that were predicted."""
        return self.pilot_correct / max(1, self.pilot_predicted)
