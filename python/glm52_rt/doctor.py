"""What stands in the way of running a model here: a list of findings, each with what to do about it."""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import machine, native_backends, planning
from .errors import Error
from .model import Model
from .native_build import build

OK, NOTE, BAD = "ok", "note", "bad"
SLOW_SHARE = 0.35  # of the fastest type's rate: a type below it is named
DISK_SECONDS, DISK_BYTES_MAX = 0.7, 1 << 30  # of each of the disk's tests
WORKERS = (4, 8, 16)


@dataclass(frozen=True)
class Finding:
    """state: "ok", "note" (works, could be better) or "bad" (does not work); do: commands or options, for people."""

    name: str
    state: str
    text: str
    do: str = ""
    value: Any = None  # the numbers, for programs


def gib(count: float) -> str:
    return f"{count / (1 << 30):.2f} GiB"


# ---- the machine ----


def machine_findings() -> Iterator[Finding]:
    cpu = machine.processor()
    yield Finding("build", OK, build(), value=build())
    sets = " ".join(cpu["sets"]) or "no sets known"
    text = f"{cpu['name']}, {cpu['usable']} of {cpu['processors']} processors, {sets}"
    if cpu["usable"] < cpu["processors"]:
        advice = "this process is confined (taskset, cgroup): give it more processors"
        yield Finding("processor", NOTE, text, advice, cpu)
    elif cpu["machine"] == "x86_64" and "avx2" not in cpu["sets"]:
        yield Finding("processor", NOTE, text + ": without AVX2 only portable loops run, several times slower", "", cpu)
    else:
        yield Finding("processor", OK, text, value=cpu)
    for name in native_backends.names():
        why = native_backends.try_open(name)
        if why is None:
            yield Finding(f"backend {name}", OK, f"opens; --backend {name}", value=True)
        else:
            yield Finding(f"backend {name}", BAD if name == "cpu" else NOTE, why, value=False)
    yield from _memory_findings()
    for package, purpose in (("matplotlib", "glm52 plot: pip install glm52-rt[plots]"),
                             ("llama_cpp", "glm52 bench beside llama.cpp: pip install llama-cpp-python")):  # fmt: skip
        there = importlib.util.find_spec(package) is not None
        yield Finding(f"package {package}", OK, "there" if there else f"not installed; only for {purpose}", value=there)


def _memory_findings() -> Iterator[Finding]:
    found = machine.memory()
    text = f"{gib(found['physical'] or 0)}"
    if found["available"] is not None:
        text += f", {gib(found['available'])} available now"
    if found["cgroup_limit"] is not None:
        text += f"; this control group may use {gib(found['cgroup_limit'])}"
        yield Finding("memory", NOTE, text, "glm52 plans with the group's limit; raise memory.max to use more", found)
    else:
        yield Finding("memory", OK, text, value=found)
    lock = found["memlock"]
    if lock == -1:
        yield Finding("locked memory", OK, "no limit", value=lock)
    else:
        yield Finding("locked memory", NOTE, f"{gib(lock or 0)} may be locked; only --wired needs more",
                      "ulimit -l unlimited (or LimitMEMLOCK= of the service)", lock)  # fmt: skip
    pages = machine.huge_pages()
    if pages is not None:
        yield Finding("huge pages", OK, f"transparent huge pages: {pages}", value=pages)


# ---- the file ----


def file_findings(path: str, identity: bool = False, expected: str | None = None, context: int = 4096,
                  disk: bool = True) -> Iterator[Finding]:  # fmt: skip
    """Of a model; ends behind the first finding if it does not open."""
    try:
        model = Model.open(path)
    except (Error, OSError) as error:
        yield Finding("file", BAD, str(error), "glm52 inspect says what is in a file; a split model needs all its "
                      "shards in one folder")  # fmt: skip
        return
    with model:
        shape = model.shape
        shards = f"{len(model.paths)} files, " if len(model.paths) > 1 else ""
        yield Finding("file", OK, f"{shards}{gib(model.file_bytes)}, {len(model.tensors)} tensors, {shape.layers} "
                      f"layers of {shape.experts} experts",
                      value=[os.fspath(name) for name in model.paths])  # fmt: skip
        if identity or expected:
            same = expected is None or model.identity == expected.lower()
            yield Finding("identity", OK if same else BAD, model.identity + ("" if same else f", expected {expected}"),
                          "" if same else "another file, or a damaged one: fetch it again", model.identity)  # fmt: skip
        yield _type_finding(model)
        plan = planning.plan_machine(model, planning.Machine(_memory_to_use()), context=context)
        yield _plan_finding(model, plan)
        if disk:
            yield from _disk_findings(model, plan)


def _memory_to_use() -> int:
    found = machine.memory()
    return min(found["physical"] or 0, found["cgroup_limit"] or 2**63)


def _type_finding(model: Model) -> Finding:
    """One thread's rate on each type of matrix in the file, measured on its own rows."""
    numbers = native_backends.type_numbers()
    bytes_of: dict[str, int] = {}
    sample: dict[str, Any] = {}
    for tensor in model.tensors:
        if len(tensor.shape) > 1 and tensor.type in numbers:
            bytes_of[tensor.type] = bytes_of.get(tensor.type, 0) + tensor.bytes
            if tensor.type not in sample or tensor.bytes > sample[tensor.type].bytes:
                sample[tensor.type] = tensor
    rates = {}
    for name, tensor in sample.items():
        columns = tensor.shape[0]
        rows = math.prod(tensor.shape[1:])
        size = tensor.bytes // rows
        count = max(1, min(rows, (1 << 20) // columns))
        with open(model.paths[tensor.shard], "rb") as file:
            file.seek(tensor.offset)
            data = np.frombuffer(file.read(count * size), np.uint8).reshape(count, size)
        rates[name] = native_backends.weights_per_second(numbers[name], data, columns)
    best = max(rates.values())
    total = sum(bytes_of.values())
    shown = ", ".join(f"{name} {rates[name] / 1e9:.1f}" for name in sorted(rates, key=lambda name: -bytes_of[name]))
    slow = [name for name in rates if rates[name] < SLOW_SHARE * best and bytes_of[name] > total / 20]
    text = f"billion weights per second of one thread: {shown}"
    if slow:
        return Finding("types", NOTE, text, f"{', '.join(sorted(slow))} run slower loops here; a file of faster types "
                       "decodes faster if memory keeps up", rates)  # fmt: skip
    return Finding("types", OK, text, value=rates)


def _plan_finding(model: Model, plan: planning.MachinePlan) -> Finding:
    value = {"usable": plan.usable, "fixed": plan.fixed, "routed": plan.routed_bytes, "token": plan.token_bytes}
    if plan.recommended is None:
        return Finding("plan", BAD, f"does not fit at {plan.context} positions: {plan.refusal}",
                       f"a smaller --context, a smaller file, or more memory; glm52 plan {model.path} --table",
                       value)  # fmt: skip
    whole = plan.fixed + plan.routed_bytes
    if whole <= plan.usable:
        return Finding("plan", OK, f"all of it fits: {gib(whole)} of {gib(plan.usable)} that may be used",
                       f"glm52 chat {model.path}", value)  # fmt: skip
    cache = plan.recommended
    return Finding("plan", NOTE, f"experts must be streamed: {gib(whole)} needed, {gib(plan.usable)} may be used; a "
                   f"cache of {gib(cache.cache_bytes)} holds {cache.fraction:.0%} of them",
                   f"glm52 chat {model.path} --cache {cache.cache_bytes // (1 << 20)}MiB", value)  # fmt: skip


def _disk_findings(model: Model, plan: planning.MachinePlan) -> Iterator[Finding]:
    """Bounded: three tests of 0.7 s at the size of the reads that streaming makes."""
    slices = machine.expert_slices(model)
    if not slices:
        return
    size = sorted(length for _, _, length in slices)[len(slices) // 2]
    how, direct = "past the page cache (O_DIRECT)", True
    try:
        machine.disk_rate(model, 1, True, 0.0, bytes_max=1)
        machine.disk_rate(model, 1, True, 0.05, bytes_max=1)
    except OSError:
        direct = False
        dropped = machine.drop_cached(model.paths)
        how = f"after {dropped}" if dropped else "NOT cold: this system keeps its page cache"
    rates = {workers: machine.disk_rate(model, workers, direct, DISK_SECONDS, workers, DISK_BYTES_MAX)[0]
             for workers in WORKERS}  # fmt: skip
    best = max(rates.values())
    enough = min(workers for workers in WORKERS if rates[workers] >= 0.9 * best)
    text = f"{best / 1e9:.2f} GB/s for reads of {size / 1e6:.2f} MB, {how}: " + ", ".join(
        f"{rate / 1e9:.2f} with {workers} threads" for workers, rate in rates.items()
    )
    value = {"rates": rates, "read_bytes": size, "direct": direct}
    if plan.token_bytes:
        text += f"; a token's experts are {plan.token_bytes / 1e6:.1f} MB, "
        text += f"{plan.token_bytes / best * 1e3:.1f} ms if none is cached"
    do = f"--io-workers {enough}" if enough != 8 else ""
    if direct and model.file_bytes > plan.usable:
        do += (" " if do else "") + "--direct-io"
    state = NOTE if best < 1e9 and plan.fixed + plan.routed_bytes > plan.usable else OK
    yield Finding("disk", state, text, do, value)
