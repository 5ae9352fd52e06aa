"""Streaming changes no bit: whatever the cache's size, policy, threads and disk do, logits are those of the resident
run; and a call that fails says why and leaves the engine able to go on."""

import errno
import os
import re
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt

import glm52_rt as rt
from glm52_rt.native import POLICIES, StreamTest, layer_spans, resident_spans, stream_plan

# Three sizes of expert in five sparse layers: all Q8_0, all Q4_K, and gate and up Q8_0 with down Q2_K.
MIXED = r"q8_0,blk\.[57]\.ffn_.*_exps=q4_k,blk\.6\.ffn_down_exps=q2_k"
CONTEXT, CHUNK, PROMPT, DECODED = 48, 8, 21, 4
USED, CLASSES, EVERY = 4, 3, 5 * 16
MINIMUM = USED * CLASSES


@pytest.fixture(scope="module")
def mixed_path(make: Callable[..., Path]) -> Path:
    return make("tiny", mix=MIXED, changes={"index_top_k": 8})


@pytest.fixture(scope="module")
def mixed(mixed_path: Path) -> rt.Model:
    return rt.Model.open(mixed_path)


def run(engine: rt.Engine, ids: list[int]) -> list[bytes]:
    """Logits behind the prompt and behind each token decoded after it."""
    engine.prefill(ids[:PROMPT])
    logits = [engine.logits.tobytes()]
    for token in ids[PROMPT:]:
        engine.eval(token)
        logits.append(engine.logits.tobytes())
    return logits


IDS = prompt(PROMPT + DECODED, 2048)


@pytest.fixture(scope="module")
def resident(mixed: rt.Model) -> list[bytes]:
    with rt.Engine(mixed, context=CONTEXT, chunk_rows=CHUNK, threads=2) as engine:
        return run(engine, IDS)


def streamed(model: rt.Model, **options) -> rt.Engine:
    """An engine whose slots are filled with NaN before each read, and which dies if it looks at a routed expert in
    the mapping."""
    options.setdefault("test", StreamTest(poison=True, guard=True))
    return rt.Engine(model, context=CONTEXT, chunk_rows=CHUNK, threads=2, streaming=rt.Streaming(**options))


# ---- no bit changes ----

BUDGETS = {"minimum": MINIMUM, "minimum+1": MINIMUM + 1, "2x": 2 * MINIMUM, "half": EVERY // 2, "all": EVERY}


@pytest.mark.parametrize("direct_io", [False, True], ids=["buffered", "direct"])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_any_size_and_policy(
    mixed: rt.Model, resident: list[bytes], budget: str, policy: str, direct_io: bool
) -> None:
    workers = 1 if budget == "minimum" else 2 if budget == "half" else 8
    with streamed(
        mixed, cache_experts=BUDGETS[budget], policy=policy, workers=workers, direct_io=direct_io
    ) as engine:
        assert run(engine, IDS) == resident
        stats = engine.stats().stream
        assert stats.slots == BUDGETS[budget]
        assert stats.loads == stats.misses and stats.read_bytes >= 1
        assert (stats.evictions == 0) == (budget == "all")
        assert stats.routes == (PROMPT + DECODED) * USED * 5
        if budget == "all":
            assert stats.misses <= EVERY
            layers = engine.stats().stream_layers
            assert sum(layer.misses for layer in layers) == stats.misses
            assert sum(layer.hits for layer in layers) == stats.hits
            assert sum(layer.read_bytes for layer in layers) == stats.read_bytes or direct_io


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("direct_io", [False, True], ids=["buffered", "direct"])
def test_counters_do_not_depend_on_time(mixed: rt.Model, resident: list[bytes], workers: int, direct_io: bool) -> None:
    """The same hits, victims and segments whatever the disk does."""

    def slow(file: int, size: int, offset: int) -> None:
        if offset % 7 == 0:
            threading.Event().wait(0.002)

    seen = []
    for read in (None, slow):
        test = StreamTest(poison=True, guard=True, read=read)
        with streamed(
            mixed, cache_experts=20, workers=workers, policy="hotness", direct_io=direct_io, test=test
        ) as engine:
            assert run(engine, IDS) == resident
            seen.append(engine.stats().stream)
    names = ("hits", "misses", "evictions", "routes", "segments", "stolen", "loads", "resident")
    assert [getattr(seen[0], n) for n in names] == [getattr(seen[1], n) for n in names]


@pytest.mark.parametrize("policy", POLICIES)
def test_one_slot_beside_the_pins(mixed: rt.Model, resident: list[bytes], policy: str) -> None:
    """Pins take all slots but one of each size: selections go through that one, expert by expert."""
    pins = [(layer, expert) for layer in (3, 5, 6) for expert in range(0, 10, 3)][:12]
    per_class = [[p for p in pins if p[0] == layer][: USED - 1] for layer in (3, 5, 6)]
    with streamed(mixed, cache_experts=MINIMUM, policy=policy, pins=sum(per_class, [])) as engine:
        assert run(engine, IDS) == resident
        stats = engine.stats().stream
        assert stats.pinned == 3 * (USED - 1)
        assert stats.segments > 5 * (DECODED + 3)


def test_quality_mode_and_f32_cache(mixed: rt.Model) -> None:
    options = {"context": CONTEXT, "quality": True, "kv_type": "f32", "threads": 2}
    with rt.Engine(mixed, chunk_rows=CHUNK, **options) as engine:
        wanted = run(engine, IDS)
    for chunk in (1, 5, CONTEXT):
        with rt.Engine(
            mixed, chunk_rows=chunk, streaming=rt.Streaming(cache_experts=17, test=StreamTest(poison=True, guard=True)),
            **options,
        ) as engine:
            assert run(engine, IDS) == wanted


def test_two_conversations_take_turns(mixed: rt.Model) -> None:
    """Two engines on one model, and two conversations in one engine by going back."""
    other = prompt(PROMPT + DECODED, 2048, seed=8)
    with rt.Engine(mixed, context=CONTEXT, chunk_rows=CHUNK) as engine:
        wanted = run(engine, IDS)
        engine.reset()
        wanted_other = run(engine, other)
    with streamed(mixed, cache_experts=14) as a, streamed(mixed, cache_experts=30, policy="lfru") as b:
        a.prefill(IDS[:PROMPT])
        b.prefill(other[:PROMPT])
        got, got_other = [a.logits.tobytes()], [b.logits.tobytes()]
        for one, two in zip(IDS[PROMPT:], other[PROMPT:], strict=True):
            a.eval(one)
            b.eval(two)
            got.append(a.logits.tobytes())
            got_other.append(b.logits.tobytes())
        assert (got, got_other) == (wanted, wanted_other)
        a.reset()
        assert run(a, other) == wanted_other


def test_token_by_token_prefill_gives_the_same(mixed: rt.Model, resident: list[bytes]) -> None:
    seen = []
    with streamed(mixed, cache_experts=20, token_prefill_max=64) as engine:
        engine.prefill(IDS[:PROMPT], lambda position: seen.append(position))
        assert seen.count(5) >= 1 and len(set(seen)) == PROMPT + 1
        assert engine.logits.tobytes() == resident[0]


@pytest.mark.parametrize("full_layers", [1, 3, 4])
def test_full_layers_are_read_once(mixed: rt.Model, resident: list[bytes], full_layers: int) -> None:
    plan = rt.plan_memory(mixed, CONTEXT, streaming=rt.Streaming(cache_experts=MINIMUM))
    with streamed(mixed, cache_experts=MINIMUM, full_layers=full_layers) as engine:
        assert run(engine, IDS) == resident
        layers = engine.stats().stream_layers
        assert all(layers[i].misses <= 16 for i in range(3, 3 + full_layers))
        assert engine.plan.expert_cache > plan.expert_cache
    with pytest.raises(rt.ArgumentError, match="full_layers 5"):
        streamed(mixed, cache_experts=MINIMUM, full_layers=5)


def test_split_file_and_mirror(
    make: Callable[..., Path], mixed_path: Path, resident: list[bytes], tmp_path: Path
) -> None:
    with rt.Model.open(make("tiny", mix=MIXED, changes={"index_top_k": 8}, split=3)) as model:
        with streamed(model, cache_experts=20) as engine:
            assert run(engine, IDS) == resident
    copy = tmp_path / "copy.gguf"
    shutil.copy(mixed_path, copy)
    with rt.Model.open(mixed_path) as model:
        with streamed(model, cache_experts=20, mirror_path=copy) as engine:
            assert run(engine, IDS) == resident
            first = engine.stats().stream
            assert 0.3 < first.mirror_ops / first.read_ops < 0.7
        with streamed(model, cache_experts=20, mirror_path=copy) as engine:
            run(engine, IDS)
            assert engine.stats().stream.mirror_ops == first.mirror_ops  # the same half each time
        with open(copy, "r+b") as file:  # another model in the mirror is refused
            file.seek(os.path.getsize(copy) - 1)
            last = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([last[0] ^ 1]))
        with pytest.raises(rt.ModelError, match="mirror"):
            streamed(model, cache_experts=20, mirror_path=copy)


def test_a_chunk_reads_each_expert_once(mixed: rt.Model, resident: list[bytes]) -> None:
    """Also where its experts do not fit the cache by far, and one batch wants nearly all of them."""
    unions: dict[int, set[int]] = {}
    options = rt.Streaming(cache_experts=MINIMUM, test=StreamTest(poison=True, guard=True))
    with rt.Engine(mixed, context=CONTEXT, chunk_rows=PROMPT, threads=2, streaming=options) as engine:
        engine.observe(lambda o: unions.setdefault(o.layer, set()).update(o.route_ids.ravel().tolist()))
        engine.prefill(IDS[:PROMPT])
        assert engine.logits.tobytes() == resident[0]
        layers = engine.stats().stream_layers
        assert max(map(len, unions.values())) > MINIMUM
        assert [layer.hits + layer.misses for layer in layers] == [len(unions[i]) for i in range(8)]
        assert engine.stats().stream.hits == 0


def test_memory_is_given_back_under_pressure(mixed: rt.Model, resident: list[bytes]) -> None:
    with streamed(mixed, cache_experts=60, pins=[(3, 1), (6, 2)]) as engine:
        first = engine.stats().stream
        assert run(engine, IDS) == resident
        now = engine.shrink_cache(first.slot_bytes // 2)
        assert now <= first.slot_bytes // 2
        stats = engine.stats().stream
        assert stats.slot_bytes == now and stats.resident <= stats.slots < 60 and stats.pinned == 2
        engine.reset()
        assert run(engine, IDS) == resident
        with pytest.raises(rt.MemoryBudgetError, match="pins and one slot") as refused:
            engine.shrink_cache(1000)
        assert engine.stats().stream.slots == stats.slots
        least = int(str(refused.value).split()[-1])
        assert engine.shrink_cache(least) == least
        assert engine.stats().stream.slots == 3 + 2
        engine.reset()
        assert run(engine, IDS) == resident
        assert engine.shrink_cache(10**9) == least  # it does not grow again


def test_a_ledger_that_cannot_be_written_is_told_at_close(mixed: rt.Model, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    engine = streamed(mixed, cache_experts=MINIMUM, usage_path=folder / "usage")
    engine.eval(1)
    folder.rmdir()
    with pytest.raises(rt.IoError, match="usage ledger"):
        engine.close()
    engine.close()


def test_spans_of_what_stays_mapped(mixed: rt.Model, make: Callable[..., Path]) -> None:
    routed = {t.name for t in mixed.tensors if t.name.endswith("_exps.weight")}
    stays = [t for t in mixed.tensors if t.name not in routed and not t.name.startswith("blk.8.")]
    spans, largest = resident_spans(mixed.native, 0, 0)
    assert largest == max(t.bytes for t in stays)
    assert all(a[0] + a[1] < b[0] for a, b in zip(spans, spans[1:], strict=False))
    inside = [any(o <= t.offset and t.offset + t.bytes <= o + n for o, n in spans) for t in mixed.tensors]
    assert inside == [t in stays for t in mixed.tensors]
    assert sum(t.bytes for t in stays) <= sum(n for _, n in spans) <= sum(t.bytes + 32 for t in stays)
    whole, _ = resident_spans(mixed.native, 0, 2)
    more = sum(t.bytes for t in mixed.tensors if t.name in routed and t.name[:6] in ("blk.3.", "blk.4."))
    assert sum(n for _, n in whole) - sum(n for _, n in spans) >= more
    with rt.Model.open(make("tiny", changes={"layers": 12, "index_top_k": 8})) as model:
        ones = layer_spans(model.native, 0, 1)
        tens = layer_spans(model.native, 0, 10)
        assert not {o for o, _ in ones} & {o for o, _ in tens}
        assert sum(n for _, n in ones) < sum(t.bytes + 32 for t in model.tensors if t.name.startswith("blk.1."))
        with pytest.raises(rt.ModelError, match="block 13 has no tensors"):
            layer_spans(model.native, 0, 13)


def test_the_mtp_block_streams_too(make: Callable[..., Path]) -> None:
    """With experts of a size of its own, through slots of its own; drafts and tokens are those of a resident run."""
    path = make("tiny", mix=r"q8_0,blk\.8\.ffn_.*_exps=q4_k", changes={"index_top_k": 8})
    with rt.Model.open(path) as model:
        with rt.Engine(model, context=CONTEXT, chunk_rows=CHUNK, mtp=True) as engine:
            wanted = run(engine, IDS)
            wanted_mtp = mtp_counters(engine)
        for options in ({"cache_experts": 2 * USED}, {"cache_experts": 40, "policy": "hotness", "direct_io": True}):
            streaming = rt.Streaming(test=StreamTest(poison=True, guard=True), **options)
            with rt.Engine(model, context=CONTEXT, chunk_rows=CHUNK, mtp=True, streaming=streaming) as engine:
                assert run(engine, IDS) == wanted
                assert mtp_counters(engine) == wanted_mtp
                assert engine.stats().stream.classes == 2
                mapped = engine.plan.weights_mapped
        without = rt.plan_memory(model, CONTEXT, streaming=rt.Streaming(cache_experts=2 * USED))
        assert model.file_bytes > mapped > without.weights_mapped
        routed = sum(t.bytes for t in model.tensors if t.name.endswith("_exps.weight"))
        assert mapped == model.file_bytes - routed
        with pytest.raises(rt.MemoryBudgetError, match="at least 8"):
            rt.Engine(model, context=CONTEXT, mtp=True, streaming=rt.Streaming(cache_experts=2 * USED - 1))


def mtp_counters(engine: rt.Engine) -> tuple[int, int]:
    stats = vars(engine.stats())
    return stats["mtp_cycles"], stats["mtp_drafted"]


def test_a_read_that_fails_in_the_mtp_block(micro: rt.Model, micro_wanted: list[bytes]) -> None:
    """The last layer to be read: every call that fails says why, counts nothing, and is right when made again."""
    block = next(t.offset for t in micro.tensors if t.name.startswith("blk.7."))
    struck = 0
    for n in range(1, 13):
        reads = [0]

        def fail(file: int, size: int, offset: int, reads: list[int] = reads, n: int = n) -> int | None:
            reads[0] += offset >= block
            return -errno.EIO if offset >= block and reads[0] == n else None

        streaming = rt.Streaming(cache_experts=5, workers=1, test=StreamTest(read=fail, poison=True))
        with rt.Engine(micro, context=16, chunk_rows=4, mtp=True, streaming=streaming) as engine:
            messages = drive(engine, micro_wanted)
            assert all("blk.7." in message for message in messages)
            struck += len(messages)
    assert struck >= 6


# ---- refusals ----


def test_less_than_one_selection_is_refused_with_the_minimum(mixed: rt.Model) -> None:
    with pytest.raises(rt.MemoryBudgetError, match="at least 12"):
        streamed(mixed, cache_experts=MINIMUM - 1)
    least = stream_plan(mixed.native, rt.Streaming(cache_experts=MINIMUM).native_options(), 1, 0)["minimum_bytes"]
    with pytest.raises(rt.MemoryBudgetError, match=f"at least {least}"):
        streamed(mixed, cache_bytes=least - 1)
    with streamed(mixed, cache_bytes=least) as engine:
        assert engine.plan.expert_cache == least


def test_more_than_the_memory_is_refused_with_the_numbers(mixed: rt.Model) -> None:
    need = rt.plan_memory(mixed, CONTEXT, streaming=rt.Streaming(cache_experts=40)).total
    with pytest.raises(rt.MemoryBudgetError, match=f"{need} bytes needed, {need - 1} there"):
        rt.plan_memory(mixed, CONTEXT, streaming=rt.Streaming(cache_experts=40, memory_bytes=need - 1))
    assert rt.plan_memory(mixed, CONTEXT, streaming=rt.Streaming(cache_experts=40, memory_bytes=need)).total == need


def test_a_plan_adds_up(mixed: rt.Model) -> None:
    for options in (None, {"cache_experts": 20}, {}, {"cache_bytes": 10**7, "full_layers": 2}):
        streaming = None if options is None else rt.Streaming(**options)
        plan = rt.plan_memory(mixed, CONTEXT, streaming=streaming)
        parts = [value for name, value in vars(plan).items() if name != "total"]
        assert sum(parts) == plan.total
        assert (plan.expert_cache > 0) == (streaming is not None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "fifo"}, "policy 'fifo'"),
        ({"workers": 0}, "workers 0"),
        ({"workers": 257}, "257 reading threads"),
        ({"cache_bytes": 10**7, "cache_experts": 20}, "give one"),
        ({"auto_pin": True}, "usage_path"),
        ({"live_repin": True}, "usage_path"),
        ({"preload": 5}, "usage_path"),
        ({"pilot": "guess"}, "pilot 'guess'"),
        ({"pilot": "hint", "direct_io": True}, "direct I/O"),
        ({"pilot": "measure", "pilot_k": 5}, "pilot_k 5"),
        ({"advise": ["please"]}, "advise 'please'"),
        ({"pins": [(3, 1), (3, 1)]}, "twice"),
        ({"pins": [(0, 1)]}, "there is none"),
        ({"cache_bytes": -1}, "cache_bytes -1"),
    ],
)
def test_bad_options_are_refused_by_name(mixed: rt.Model, options: dict, words: str) -> None:
    with pytest.raises(rt.ArgumentError, match=words):
        streamed(mixed, **{"cache_experts": 0 if "cache_bytes" in options else 20, **options})


def test_an_engine_that_does_not_stream_has_no_such_counters(micro: rt.Model) -> None:
    with rt.Engine(micro, context=8) as engine:
        assert engine.stats().stream is None and engine.stats().stream_layers == ()


# ---- faults below pread ----

MICRO_IDS = prompt(12, 512)
MICRO_PROMPT = 8


class Faults:
    """Lets the n-th read of a stream go wrong, from n on as many times as told."""

    def __init__(self, n: int, answer: Callable[[int, int], int | None], times: int = 1) -> None:
        self.n, self.times, self.answer = n, times, answer
        self.reads, self.struck = 0, 0
        self.lock = threading.Lock()

    def __call__(self, file: int, size: int, offset: int) -> int | None:
        with self.lock:
            self.reads += 1
            if self.reads < self.n or self.struck >= self.times:
                return None
            self.struck += 1
        return self.answer(size, offset)


def micro_resident(model: rt.Model) -> list[bytes]:
    with rt.Engine(model, context=16, chunk_rows=4) as engine:
        return list(micro_steps(engine))


def micro_steps(engine: rt.Engine):
    engine.prefill(MICRO_IDS[:MICRO_PROMPT])
    yield engine.logits.tobytes()
    for token in MICRO_IDS[MICRO_PROMPT:]:
        engine.eval(token)
        yield engine.logits.tobytes()


DEMAND = ("slots", "hits", "misses", "evictions", "routes", "segments", "stolen", "loads", "read_ops", "read_bytes")


def drive(engine: rt.Engine, wanted: list[bytes]) -> list[str]:
    """The micro prompt and its tokens, each call made again when it fails; returns the messages."""
    messages = []
    at = 0
    while engine.position < len(MICRO_IDS):
        before, position = engine.stats().stream, engine.position
        try:
            if position < MICRO_PROMPT:
                engine.prefill(MICRO_IDS[position:MICRO_PROMPT])
            else:
                engine.eval(MICRO_IDS[position])
        except rt.IoError as error:
            messages.append(str(error))
            after = engine.stats().stream
            assert after.errors > before.errors
            if engine.position == position:  # no batch of the call was finished
                assert [getattr(after, n) for n in DEMAND] == [getattr(before, n) for n in DEMAND]
            continue
        assert engine.logits.tobytes() == wanted[at]
        at += 1
    return messages


@pytest.fixture(scope="module")
def micro_wanted(micro: rt.Model) -> list[bytes]:
    return micro_resident(micro)


def micro_streamed(model: rt.Model, test: StreamTest, **options) -> rt.Engine:
    options = {"cache_experts": 5, "workers": 4, **options}
    return rt.Engine(model, context=16, chunk_rows=4, streaming=rt.Streaming(test=test, **options))


FACTS = re.compile(
    r"(.+): blk\.(\d)\.ffn_(gate|up|down)_exps\.weight: expert (\d) of layer \2: "
    r"read (\d+) of (\d+) bytes at (\d+): (.+)"
)


@pytest.mark.parametrize("kind", ["eio", "end", "storm"])
def test_the_nth_read_fails(micro: rt.Model, micro_wanted: list[bytes], kind: str) -> None:
    answers = {"eio": (-errno.EIO, 1, "Input/output error"), "end": (0, 1, "the file ended"),
               "storm": (-errno.EINTR, 5000, "Interrupted system call")}  # fmt: skip
    answer, times, why = answers[kind]
    for n in range(1, 61):
        faults = Faults(n, lambda size, offset: answer, times)
        with micro_streamed(micro, StreamTest(read=faults, poison=True)) as engine:
            messages = drive(engine, micro_wanted)
        assert faults.struck >= 1, n
        assert messages, n
        for message in messages:
            facts = FACTS.fullmatch(message)
            assert facts, message
            assert facts[1] == micro.path and facts[8] == why
            tensor = next(t for t in micro.tensors if t.name == f"blk.{facts[2]}.ffn_{facts[3]}_exps.weight")
            size = tensor.bytes // 8
            assert int(facts[5]) < int(facts[6]) == size
            assert int(facts[7]) == tensor.offset + int(facts[4]) * size


@pytest.mark.parametrize("kind", ["short", "interrupted", "stall"])
def test_the_nth_read_is_odd_but_fine(micro: rt.Model, micro_wanted: list[bytes], kind: str) -> None:
    def answer(size: int, offset: int) -> int | None:
        if kind == "stall":
            threading.Event().wait(0.02)
            return None
        return -errno.EINTR if kind == "interrupted" else max(1, size // 3)

    for n in range(1, 61):
        with micro_streamed(micro, StreamTest(read=Faults(n, answer, 3), poison=True)) as engine:
            assert drive(engine, micro_wanted) == []
            stats = engine.stats().stream
            assert (stats.short_reads > 0, stats.interrupted > 0) == (kind == "short", kind == "interrupted")


def test_a_mirror_stands_in_for_nothing_but_itself(micro: rt.Model, micro_wanted: list[bytes], tmp_path: Path) -> None:
    """Reads that fail on the copy are made again on the original."""
    copy = shutil.copy(micro.path, tmp_path / "copy.gguf")

    def broken_copy(file: int, size: int, offset: int) -> int | None:
        return -errno.EIO if os.path.samefile(f"/dev/fd/{file}", copy) else None

    with micro_streamed(micro, StreamTest(read=broken_copy, poison=True), mirror_path=copy) as engine:
        assert drive(engine, micro_wanted) == []
        stats = engine.stats().stream
        assert stats.mirror_fallbacks > 0 and stats.mirror_ops == 0 and stats.errors == 0


def test_a_file_cut_while_open_is_told(micro: rt.Model, micro_wanted: list[bytes], tmp_path: Path) -> None:
    """The end of the file, which the trunk does not use, goes; the read that then fails tells the two sizes."""
    path = shutil.copy(micro.path, tmp_path / "cut.gguf")
    whole = os.path.getsize(path)

    def cut(size: int, offset: int) -> int:
        os.truncate(path, whole - 4096)
        return 0

    with rt.Model.open(path) as model, micro_streamed(model, StreamTest(read=Faults(9, cut))) as engine:
        messages = drive(engine, micro_wanted)
        assert len(messages) == 1
        assert f"the file has {whole - 4096} bytes; it had {whole} when it was opened" in messages[0]


def test_every_allocation_fails_once(micro: rt.Model, micro_wanted: list[bytes], tmp_path: Path) -> None:
    options = {"usage_path": tmp_path / "usage", "preload": [(1, 1)], "direct_io": True}
    n = 1
    while True:
        try:
            engine = micro_streamed(micro, StreamTest(fail_allocation=n), **options)
        except rt.MemoryBudgetError as error:
            assert "no memory" in str(error)
            n += 1
            continue
        with engine:
            assert drive(engine, micro_wanted) == []
        break
    assert n > 15


# ---- cancelling ----


def test_cancelling_inside_a_layer_leaves_an_engine_that_goes_on(mixed: rt.Model, resident: list[bytes]) -> None:
    def opened() -> rt.Engine:
        options = rt.Streaming(cache_experts=MINIMUM, test=StreamTest(poison=True, guard=True))
        return rt.Engine(mixed, context=CONTEXT, chunk_rows=11, threads=2, streaming=options)

    calls: list[int] = []
    with opened() as engine:
        engine.prefill(IDS[:PROMPT], calls.append)
        assert engine.logits.tobytes() == resident[0]
    assert len(calls) > 2 * (8 + 1) + 2 * 5 * 3  # once per layer and batch, and several times inside sparse layers
    for stop_at in range(0, len(calls), 3):
        left = [stop_at]

        def stop(position: int, left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] >= 0

        with opened() as engine:
            done = engine.prefill(IDS[:PROMPT], stop)
            assert done in (0, 11) and engine.position == done
            assert engine.prefill(IDS[done:PROMPT]) == PROMPT - done
            assert engine.logits.tobytes() == resident[0]
            assert engine.stats().cancelled == 1


# ---- learning ----


def test_what_was_learned_is_taken_up_again(mixed: rt.Model, resident: list[bytes], tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    with streamed(mixed, cache_experts=40, usage_path=usage) as engine:
        assert run(engine, IDS) == resident
        cold = engine.stats().stream
        assert cold.preloaded == 0 and cold.policy_ops == 0
    assert usage.stat().st_mode & 0o777 == 0o600
    rows = [line.split() for line in usage.read_text().splitlines()]
    assert rows[0] == ["glm52-usage", "1", "9", "16"]
    assert sum(int(row[2]) for row in rows[1:-1]) == int(rows[-1][2]) == (PROMPT + DECODED) * USED * 5
    with streamed(mixed, cache_experts=40, usage_path=usage, preload=40) as engine:
        assert engine.stats().stream.preloaded > 30 and engine.stats().stream.policy_ops > 90
        assert engine.stats().stream.loads == 0 and engine.stats().stream.hits == 0
        assert run(engine, IDS) == resident
        warm = engine.stats().stream
        assert warm.misses < cold.misses
        assert warm.ledger_selections == 2 * (PROMPT + DECODED) * USED * 5
    hottest = rt.streaming.read_hot_list(usage)
    lines = [list(map(int, line.split())) for line in usage.read_text().splitlines()[1:-1]]
    counts = {(layer, expert): count for layer, expert, count in lines}
    assert [counts[i] for i in hottest] == sorted(counts.values(), reverse=True)
    listed = tmp_path / "hot.txt"
    listed.write_text("# hot\n" + "".join(f"{layer} {expert} 1 0.5\n" for layer, expert in hottest) + "9 0\n0 1\n")
    with streamed(mixed, cache_experts=40, preload=listed) as engine:
        assert engine.stats().stream.preloaded > 30
        assert run(engine, IDS) == resident
    with streamed(mixed, cache_experts=40, preload=listed, cold=True) as engine:
        assert engine.stats().stream.preloaded == 0
    listed.write_text("3 1\n3 x\n")
    with pytest.raises(rt.ArgumentError, match="line 2"):
        streamed(mixed, cache_experts=40, preload=listed)


def test_a_damaged_ledger_is_a_warning(mixed: rt.Model, resident: list[bytes], tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    usage.write_text("glm52-usage 1 9 16\n3 1 5\n")
    with streamed(mixed, cache_experts=40, usage_path=usage, auto_pin=True) as engine:
        assert len(engine.warnings) == 1 and "usage ledger is not used" in engine.warnings[0]
        assert run(engine, IDS) == resident
    with streamed(mixed, cache_experts=40, usage_path=usage) as engine:
        assert engine.warnings == []


def test_pins_are_chosen_and_changed(mixed: rt.Model, resident: list[bytes], tmp_path: Path) -> None:
    usage = tmp_path / "usage"
    rows = [(layer, expert, 3000 if expert < 4 else 1) for layer in range(3, 8) for expert in range(16)]
    total = sum(row[2] for row in rows)
    usage.write_text(
        "glm52-usage 1 9 16\n" + "".join(f"{a} {b} {c}\n" for a, b, c in rows) + f"end {len(rows)} {total}\n"
    )
    options = {"usage_path": usage, "auto_pin": True, "auto_pin_bytes_min": 1, "live_repin": True, "cache_experts": 60}
    with streamed(mixed, **options) as engine:
        pinned = engine.stats().stream.pinned
        assert 1 <= pinned <= 30
        assert run(engine, IDS) == resident
        for _ in range(20):
            engine.reset()
            engine.prefill(IDS[:PROMPT])
        assert engine.stats().stream.repins > 0
        assert engine.stats().stream.pinned == pinned
        assert engine.logits.tobytes() == resident[0]
    with streamed(mixed, **{**options, "auto_pin_bytes_min": 0}) as engine:
        assert engine.stats().stream.pinned == 0  # less than half a gigabyte


@pytest.mark.parametrize("two_step", [False, True])
def test_predictions_are_measured_and_change_nothing(mixed: rt.Model, resident: list[bytes], two_step: bool) -> None:
    seen: dict[str, rt.StreamStats] = {}
    for pilot in ("off", "measure", "hint"):
        options = {"pilot": pilot, "pilot_k": 0 if two_step else 2, "pilot_two_step": two_step}
        with streamed(mixed, cache_experts=30, **options) as engine:
            assert run(engine, IDS) == resident
            seen[pilot] = engine.stats().stream
    off, measured, hinted = seen["off"], seen["measure"], seen["hint"]
    assert off.pilot_predictions == 0 and off.hint_candidates == 0 and off.pilot_cost.count == 0
    # every row of every sparse layer; chunks of 8 rows are narrow enough
    assert measured.pilot_predictions == (PROMPT + DECODED) * 5
    assert measured.pilot_wanted == measured.pilot_predicted == measured.pilot_predictions * USED
    assert 0.2 < measured.pilot_recall <= 1  # chance is a quarter
    assert measured.pilot_cost.count == measured.pilot_lead.count > 0
    assert measured.hint_candidates == 0
    assert hinted.hint_candidates == measured.pilot_predictions * (USED if two_step else 2)
    assert hinted.hint_candidates == hinted.hint_resident_skipped + hinted.hint_submitted + hinted.hint_dropped
    assert (hinted.hits, hinted.misses, hinted.evictions) == (off.hits, off.misses, off.evictions)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget", BUDGETS)
def test_loading_ahead_changes_no_bit(mixed: rt.Model, resident: list[bytes], budget: str, policy: str) -> None:
    """And what is loaded, hit and evicted does not depend on when reads are done."""

    def slow(file: int, size: int, offset: int) -> None:
        if offset % 7 == 0:
            threading.Event().wait(0.001)

    seen = []
    for read, k in ((None, 0), (slow, 0), (None, USED)):
        options = {"cache_experts": BUDGETS[budget], "policy": policy, "pilot": "load", "pilot_k": k}
        test = StreamTest(poison=True, guard=True, read=read)
        options |= {"pilot_two_step": policy == "lru", "direct_io": policy == "lfru"}
        with streamed(mixed, test=test, **options) as engine:
            assert run(engine, IDS) == resident
            seen.append(engine.stats().stream)
    names = ("hits", "misses", "evictions", "segments", "stolen", "loads", "resident", "ahead", "ahead_used")
    assert [getattr(seen[0], n) for n in names] == [getattr(seen[1], n) for n in names]
    for stats in seen:
        assert stats.loads == stats.misses + stats.ahead and stats.ahead_used <= stats.ahead
        assert stats.ahead > 0 and stats.ahead_errors == 0
        assert stats.ahead_used > stats.ahead / 4 or budget == "all"  # by chance it would be a quarter
    assert seen[2].ahead > seen[0].ahead or budget == "all"


def test_loading_ahead_beside_mtp(micro: rt.Model, micro_wanted: list[bytes]) -> None:
    with rt.Engine(micro, context=16, chunk_rows=4, mtp=True,
                   streaming=rt.Streaming(cache_experts=8, pilot="load", test=StreamTest(poison=True))) as engine:
        assert list(micro_steps(engine)) == micro_wanted
        assert engine.stats().stream.ahead > 0


def test_a_read_ahead_that_fails_is_nobodys_fault(micro: rt.Model, micro_wanted: list[bytes]) -> None:
    """The n-th read fails: if a selection wants it the call says so and the next is right, else it is counted."""
    swallowed = told = 0
    for n in range(1, 61):
        reads = [0]

        def read(file: int, size: int, offset: int) -> int | None:
            reads[0] += 1
            return -errno.EIO if reads[0] == n else None

        with micro_streamed(micro, StreamTest(poison=True, guard=True, read=read), workers=1, pilot="load") as engine:
            messages = drive(engine, micro_wanted)
            stats = engine.stats().stream
            assert len(messages) + stats.ahead_errors == (n <= reads[0]), f"read {n}"
            told += len(messages)
            swallowed += stats.ahead_errors
    assert told > 0 and swallowed > 0


def test_wide_batches_are_not_predicted(mixed: rt.Model) -> None:
    with rt.Engine(mixed, context=CONTEXT, streaming=rt.Streaming(cache_experts=30, pilot="measure")) as engine:
        engine.prefill(IDS)
        stats = engine.stats().stream
        assert stats.pilot_predictions == 0 and stats.pilot_skipped_wide > 0


def test_advice_and_wiring_are_counted(mixed: rt.Model, resident: list[bytes]) -> None:
    with streamed(mixed, cache_experts=30, advise=["willneed", "dontneed"], wired=True) as engine:
        assert run(engine, IDS) == resident
        stats = engine.stats().stream
        assert stats.willneed_bytes == stats.dontneed_bytes == stats.read_bytes
        assert stats.wired_bytes == stats.slot_bytes or engine.warnings
    with streamed(mixed, cache_experts=30) as engine:
        run(engine, IDS)
        assert engine.stats().stream.willneed_bytes == engine.stats().stream.dontneed_bytes == 0


def test_waiting_is_measured_apart_from_the_disk(mixed: rt.Model) -> None:
    def slow(file: int, size: int, offset: int) -> None:
        threading.Event().wait(0.005)

    with streamed(mixed, cache_experts=MINIMUM, workers=1, test=StreamTest(read=slow)) as engine:
        engine.eval(5)
        stats = engine.stats().stream
        assert stats.service.count == 3 * stats.loads == 60
        assert stats.service.p50_ns >= 5_000_000
        assert stats.wait.count == 5
        assert stats.wait.total_ns >= 0.5 * stats.service.total_ns  # one thread: nearly all of it is waited for
        assert stats.wait.max_ns >= stats.wait.p99_ns >= stats.wait.p50_ns > 0


def test_options_are_values() -> None:
    options = rt.Streaming(cache_experts=3)
    assert replace(options, cache_experts=4).cache_experts == 4
    assert np.isclose(rt.Streaming().workers, 8)
