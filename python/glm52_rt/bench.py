"""How fast a model opens, reads a prompt, decodes and streams: one run, and what many runs say together.

A run is made in a process of its own. Cold: of a file that the page cache has just been asked to forget, and nothing
before it; warm: behind a prompt of the same length that is not counted. Rates are tokens per second by the wall clock.
"""

import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from . import machine
from .bench_llama import token_ids
from .engine import Engine, Stats
from .model import Model
from .native_build import build, kernels

FORMAT = 1
TOKENS_MIN = 16  # of a measure: fewer say nothing
MEASURES = ("prefill", "decode")

Run = dict[str, Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, smallest and largest."""
    return {"median": median(values), "min": min(values), "max": max(values)}


@dataclass(frozen=True)
class Job:
    """One run: prompt tokens, then so many behind them."""

    prompt: int
    tokens: int
    warm: bool


def file_kind(model: Model) -> dict[str, float]:
    """Share of the tensors' bytes per type, the largest first."""
    sizes: dict[str, int] = {}
    for tensor in model.tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.bytes
    total = sum(sizes.values())
    return {name: size / total for name, size in sorted(sizes.items(), key=lambda item: -item[1])}


def run(path: str, open_engine: Callable[[Model, int], Engine], job: Job, ids: Sequence[int] | None = None) -> Run:
    """One run in this process. open_engine(model, context) opens the engine; ids: the tokens, default random ones."""
    started = time.perf_counter()
    with Model.open(path) as model:
        opened = time.perf_counter()
        count = job.prompt + job.tokens
        ids = token_ids(model.shape.vocab, count) if ids is None else ids
        with open_engine(model, count) as engine:
            ready = time.perf_counter()
            if job.warm:
                engine.prefill(ids[: job.prompt])
                engine.reset()
            before = engine.stats()
            begun = time.perf_counter()
            engine.prefill(ids[: job.prompt])
            middle = time.perf_counter()
            timeline = _decode(engine, ids[job.prompt : count])
            ended = time.perf_counter()
            after = engine.stats()
            found: Run = {
                "context": job.prompt, "tokens": job.tokens, "warm": job.warm,
                "open_model_seconds": opened - started, "open_engine_seconds": ready - opened,
                "first_token_seconds": middle - started if not job.warm else None,
                "prefill": job.prompt / (middle - begun), "decode": job.tokens / (ended - middle),
                "backend": engine.backend, "kernels": kernels(engine.native), "build": build(),
            }  # fmt: skip
            if before.stream is not None and after.stream is not None:
                found |= {"streaming": _streamed(before, after), "timeline": timeline}
    return found | {"peak_bytes": machine.peak_bytes()}


def _decode(engine: Engine, ids: Sequence[int]) -> list[dict[str, float]]:
    """Feeds tokens; on a streaming engine also what each of them took and read."""
    if engine.stats().stream is None:
        for token in ids:
            engine.eval(token)
        return []
    found = []
    last, before = time.perf_counter(), engine.stats().stream
    for token in ids:
        engine.eval(token)
        now, after = time.perf_counter(), engine.stats().stream
        assert before is not None and after is not None
        found.append({
            "seconds": now - last, "read_bytes": float(after.read_bytes - before.read_bytes),
            "wait_seconds": (after.wait.total_ns - before.wait.total_ns) / 1e9,
            "hits": float(after.hits - before.hits), "misses": float(after.misses - before.misses),
        })  # fmt: skip
        last, before = now, after
    return found


def _streamed(before: Stats, after: Stats) -> dict[str, float]:
    """Of prompt and decoding together; the timeline tells decoding apart."""
    a, b = before.stream, after.stream
    assert a is not None and b is not None
    hits, misses = b.hits - a.hits, b.misses - a.misses
    return {
        "slots": float(b.slots), "hit_rate": hits / max(1, hits + misses),
        "read_bytes": float(b.read_bytes - a.read_bytes),
        "wait_seconds": (b.wait.total_ns - a.wait.total_ns) / 1e9, "service_p50_seconds": b.service.p50_ns / 1e9,
        "service_p99_seconds": b.service.p99_ns / 1e9,
    }  # fmt: skip


def make_cold(paths: Sequence[str]) -> dict[str, Any]:
    """Empties the page cache of files as far as the system lets. how: in words; cached: share that is left, None if
    that is not known; cold: whether a run now may be called so."""
    how = machine.drop_cached(paths)
    cached = machine.cached_share(paths)
    if how is None:
        return {"cold": False, "how": "this system has no posix_fadvise", "cached": cached}
    cold = cached is not None and cached < 0.01
    return {"cold": cold, "how": how, "cached": cached}


# ---- many runs ----


def alternate(
    ours: Callable[[], Run], peer: Callable[[], Run] | None, pairs: int, told: Callable[[int, float], Any]
) -> list[dict[str, Any]]:
    """Pairs of runs, ours first in every other one, the machine's load before each; told(number, load) behind each."""
    found = []
    for number in range(pairs):
        pair: dict[str, Any] = {"load": os.getloadavg()[0]}
        for side in ("ours", "peer") if number % 2 == 0 else ("peer", "ours"):
            if side == "ours":
                pair["ours"] = ours()
            elif peer is not None:
                pair["peer"] = peer()
        found.append(pair)
        told(number + 1, pair["load"])
    return found


def row_of(context: int, pairs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Per measure the spreads of both sides, and of the ratio ours / peer, taken pair by pair."""
    found: dict[str, Any] = {"context": context}
    for measure in MEASURES:
        found[measure] = {"ours": spread([pair["ours"][measure] for pair in pairs])}
        if all("peer" in pair for pair in pairs):
            found[measure]["peer"] = spread([pair["peer"][measure] for pair in pairs])
            found[measure]["ratio"] = spread([pair["ours"][measure] / pair["peer"][measure] for pair in pairs])
    return found


def is_quiet(loads: Sequence[float], threads: int) -> bool:
    """Whether little more than our own threads ran."""
    return all(load < threads + 0.5 for load in loads)


def _spread_text(found: dict[str, float]) -> str:
    return f"{found['median']:9.2f} ({found['min']:.2f} .. {found['max']:.2f})"


def render(found: dict[str, Any]) -> list[str]:
    """A document for people."""
    model, cpu, peer = found["model"], found["machine"], found["peer"]
    kinds = ", ".join(f"{name} {share:.0%}" for name, share in list(model["types"].items())[:4])
    warm = found["warm"][0]
    lines = [
        f"{model['name']}, {model['bytes'] / 1e9:.3f} GB: {kinds}",
        f"{cpu['name']}, {cpu['usable']} of {cpu['processors']} processors, {found['threads']} threads, backend "
        f"{warm['backend']}, kernels {warm['kernels']}",
        "machine " + ("quiet" if found["quiet"] else "NOT QUIET, other work ran: rates are too low, ratios rough")
        + f" (load {max(found['loads']):.1f})",
    ]  # fmt: skip
    lines += _opening_lines(found)
    lines.append("")
    lines.append(f"warm, {found['tokens']} tokens decoded behind each prompt, {found['pairs']} runs: "
                 "tokens per second, median (slowest .. fastest)")  # fmt: skip
    for row in found["table"]:
        for measure in MEASURES:
            text = f"  {measure:7} context {row['context']:6d}  {_spread_text(row[measure]['ours'])}"
            if "ratio" in row[measure]:
                text += f"   peer {_spread_text(row[measure]['peer'])}"
                text += f"   ours / peer {_spread_text(row[measure]['ratio'])}"
            lines.append(text)
    for run_ in found["warm"][-1:]:
        if "streaming" in run_:
            s, timeline = run_["streaming"], run_["timeline"]
            read = sum(t["read_bytes"] for t in timeline) / len(timeline)
            wait = sum(t["wait_seconds"] for t in timeline) / sum(t["seconds"] for t in timeline)
            lines.append(f"streaming through {s['slots']:.0f} slots: {s['hit_rate']:.1%} at hand, "
                         f"{read / 1e6:.2f} MB read per decoded token, {wait:.0%} of its time waiting; "
                         + ("reads go past the page cache" if found["direct_io"] else "the page cache may answer reads "
                            "(--direct-io goes past it)"))  # fmt: skip
    lines.append(f"peak memory {found['peak_bytes'] / 1e9:.3f} GB")
    lines.append(f"peer: {peer['name']}" if peer else found["peer_missing"])
    return lines


def _opening_lines(found: dict[str, Any]) -> list[str]:
    opens = [run_["open_model_seconds"] + run_["open_engine_seconds"] for run_ in found["warm"]]
    lines = [f"open warm {median(opens):.4f} s"]
    cold = found["cold"]
    if not cold["cold"]:
        left = "" if cold["cached"] is None else f", {cold['cached']:.0%} of the file stayed in the page cache"
        return [*lines, f"nothing was measured cold: {cold['how']}{left}"]
    run_ = cold["run"]
    lines.append(
        f"open cold {run_['open_model_seconds'] + run_['open_engine_seconds']:.4f} s, "
        f"{run_['context']} tokens of prompt read {run_['first_token_seconds']:.3f} s after the start, "
        f"then {run_['decode']:.2f} tokens/s "
        f"({cold['how']}: {cold['cached']:.1%} of the file was cached)"
    )
    return lines


def bad_number(text: str) -> str | None:
    """Why a list of context lengths is none; None if it is one."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        return f"{text!r} is not a list such as 128,512"
    small = [number for number in map(int, text.split(",")) if number < TOKENS_MIN]
    return f"a prompt of {small[0]} tokens says nothing: at least {TOKENS_MIN}" if small else None


def interpreter() -> list[str]:
    """The command that runs this package in another process."""
    return [sys.executable, "-m", "glm52_rt"]
