"""What an engine promises: refusals that change nothing, cancellation that can be resumed, going back, closing."""

import copy
import errno
import gc
import os
import pickle
import resource
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import glm52_rt as rt
from glm52_rt.native import StreamTest

CONTEXT = 40


@pytest.fixture
def engine(micro: rt.Model) -> Iterator[rt.Engine]:
    with rt.Engine(micro, context=CONTEXT, chunk_rows=4) as opened:
        yield opened


def fresh_logits(model: rt.Model, ids: list[int], **options) -> bytes:
    """What a new engine says behind ids."""
    with rt.Engine(model, context=CONTEXT, chunk_rows=4, **options) as engine:
        engine.prefill(ids)
        return engine.logits.tobytes()


# ---- opening ----


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"context": 0}, rt.ContextError, "between 1 and 1048576"),
        ({"context": 1048577}, rt.ContextError, "context of 1048577 tokens"),
        ({"context": -1}, rt.ArgumentError, "context -1"),
        ({"backend": "abacus"}, rt.UnsupportedError, "abacus"),
        ({"kv_type": "q8"}, rt.ArgumentError, "kv_type 'q8'"),
        ({"chunk_rows": 4097}, rt.ArgumentError, "chunk_rows 4097; at most 4096"),
        ({"latent_epsilon": -1e-6}, rt.ArgumentError, "latent_epsilon"),
        ({"latent_epsilon": float("nan")}, rt.ArgumentError, "latent_epsilon"),
        ({"latent_epsilon": 1e-60}, rt.ArgumentError, "latent_epsilon 1e-60"),  # nothing is left in float32
        ({"backend": "cpu\0x"}, rt.ArgumentError, "backend"),
        ({"backend": None}, rt.ArgumentError, "backend"),
        ({"streaming": True}, rt.ArgumentError, "streaming is True"),
        ({"profile": "x"}, rt.UnsupportedError, "profile"),
        ({"mtp": True, "drafts": 8}, rt.ArgumentError, "drafts at most 7"),
    ],
)
def test_bad_options_are_refused_by_name(micro: rt.Model, options: dict, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        rt.Engine(micro, **options)


def test_limits_are_reached_exactly(micro: rt.Model) -> None:
    with rt.Engine(micro, context=1) as engine:
        engine.eval(3)
        assert engine.position == engine.context == 1
    with rt.Engine(micro, context=5000, chunk_rows=4096) as engine:
        assert engine.prefill(prompt(300, micro.shape.vocab)) == 300


def test_the_plan_adds_up_and_follows_the_formula(micro: rt.Model) -> None:
    shape = micro.shape
    for kv_type, element in (("f16", 2), ("f32", 4)):
        with rt.Engine(micro, context=1000, kv_type=kv_type) as engine:
            plan = engine.plan
        parts = [getattr(plan, name) for name in plan.__dataclass_fields__ if name != "total"]
        assert plan.total == sum(parts)
        assert plan.weights_mapped == micro.file_bytes
        exact = 1000 * shape.kv_bytes_per_token(kv_type)
        assert exact <= plan.kv_cache + plan.index_cache < exact + 64 * 2 * shape.layers
        assert plan.index_cache >= 1000 * len(micro.full_indexer_layers) * shape.index_key * element


# ---- tokens that can't be fed ----


@pytest.mark.parametrize(
    ("ids", "kind", "words"),
    [
        ([], rt.ArgumentError, "no tokens"),
        ([1, 512], rt.ArgumentError, "token 512 at index 1 is outside the vocabulary of 512"),
        ([-1], rt.ArgumentError, "token -1 at index 0"),
        ([2**31], rt.ArgumentError, "token 2147483648"),
        ([1] * 38, rt.ContextError, "38 tokens at position 3: the context holds 40"),
    ],
)
def test_bad_tokens_change_nothing(engine: rt.Engine, ids: list[int], kind: type, words: str) -> None:
    engine.prefill([5, 6, 7])
    before = engine.logits.tobytes()
    with pytest.raises(kind, match=words):
        engine.prefill(ids)
    if len(ids) == 1:
        with pytest.raises(kind, match=words):
            engine.eval(ids[0])
    assert engine.tokens == [5, 6, 7] and engine.logits.tobytes() == before


def test_a_full_context_refuses_one_more_token(engine: rt.Engine) -> None:
    engine.prefill([1] * CONTEXT)
    with pytest.raises(rt.ContextError, match="1 token at position 40: the context holds 40"):
        engine.eval(1)
    engine.rewind(CONTEXT - 1)
    engine.eval(2)
    assert engine.tokens[-1] == 2


# ---- cancelling ----


def count_calls(micro: rt.Model, ids: list[int]) -> int:
    positions: list[int] = []
    with rt.Engine(micro, context=CONTEXT, chunk_rows=4) as engine:
        engine.prefill(ids, lambda position: positions.append(position))
    assert positions == sorted(positions) and positions[0] == 0 and positions[-1] == len(ids)
    return len(positions)


def test_cancelling_at_every_call_leaves_a_resumable_engine(micro: rt.Model) -> None:
    ids = prompt(11, micro.shape.vocab)
    wanted = fresh_logits(micro, ids)
    calls = count_calls(micro, ids)
    assert calls == 3 * (1 + micro.shape.layers)
    for stop_at in range(calls):
        seen = iter(range(calls))
        with rt.Engine(micro, context=CONTEXT, chunk_rows=4) as engine:
            done = engine.prefill(ids, lambda position: next(seen) != stop_at)
            assert done == engine.position == stop_at // (1 + micro.shape.layers) * 4
            assert engine.tokens == ids[:done]
            if done > 0:
                assert engine.logits.tobytes() == fresh_logits(micro, ids[:done])
            assert engine.stats().cancelled == 1
            assert engine.prefill(ids[done:]) == len(ids) - done
            assert engine.logits.tobytes() == wanted, stop_at


def test_an_exception_in_progress_cancels_and_is_raised(engine: rt.Engine, micro: rt.Model) -> None:
    class Mine(Exception):
        pass

    def progress(position: int) -> None:
        if position >= 5:
            raise Mine("five")

    ids = prompt(11, micro.shape.vocab)
    with pytest.raises(Mine, match="five"):
        engine.prefill(ids, progress)
    assert engine.position == 4
    engine.prefill(ids[4:])
    assert engine.logits.tobytes() == fresh_logits(micro, ids)


def test_ctrl_c_in_progress_cancels(engine: rt.Engine, micro: rt.Model) -> None:
    # A run in the background starts with the signal ignored.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    ids = prompt(11, micro.shape.vocab)

    def progress(position: int) -> None:
        if position == 6:
            signal.raise_signal(signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            engine.prefill(ids, progress)
    finally:
        signal.signal(signal.SIGINT, old)
    assert engine.position == 4
    engine.prefill(ids[4:])
    assert engine.logits.tobytes() == fresh_logits(micro, ids)


@pytest.mark.parametrize("delay", [0.001, 0.004, 0.02])
def test_a_signal_while_c_runs_cancels(tiny: rt.Model, delay: float) -> None:
    """Nobody watches the progress: the engine notices between layers, whatever it is doing."""

    class Alarm(Exception):
        pass

    def ring(number: int, frame: object) -> None:
        raise Alarm

    ids = prompt(120, tiny.shape.vocab)
    old = signal.signal(signal.SIGALRM, ring)
    try:
        with rt.Engine(tiny, context=200, chunk_rows=16) as engine:
            with pytest.raises(Alarm):
                signal.setitimer(signal.ITIMER_REAL, delay)
                while True:
                    engine.align(ids)
                    engine.prefill(ids[engine.position :])
            signal.setitimer(signal.ITIMER_REAL, 0)
            held = engine.tokens
            assert held == ids[: len(held)]
            engine.align(ids)
            engine.prefill(ids[engine.position :])
            resumed = engine.logits.tobytes()
            engine.reset()
            engine.prefill(ids)
            assert engine.logits.tobytes() == resumed
    finally:
        signal.signal(signal.SIGALRM, old)


def test_an_exception_in_an_observer_is_raised_behind_the_call(engine: rt.Engine, micro: rt.Model) -> None:
    def observer(seen: rt.Observation) -> None:
        raise ValueError(f"layer {seen.layer}")

    engine.observe(observer)
    with pytest.raises(ValueError, match="layer"):
        engine.eval(1)
    engine.observe(None)
    engine.eval(2)
    assert engine.tokens == [1, 2]
    assert engine.logits.tobytes() == fresh_logits(micro, [1, 2])


@pytest.mark.parametrize("answer", [None, True, 1])
def test_progress_goes_on_unless_told_to_stop(engine: rt.Engine, answer: object) -> None:
    assert engine.prefill([1, 2, 3, 4, 5], lambda position: answer) == 5


# ---- calls from elsewhere ----


def test_a_call_from_a_callback_is_refused(engine: rt.Engine) -> None:
    for call in (lambda: engine.eval(1), lambda: engine.position, engine.close):
        with pytest.raises(rt.Error, match="inside its own callback"):
            engine.prefill([1, 2], lambda position: call())
    assert engine.prefill([1, 2]) == 2


def test_threads_wait_for_each_other(micro: rt.Model) -> None:
    ids = prompt(30, micro.shape.vocab)
    with rt.Engine(micro, context=CONTEXT, chunk_rows=4) as engine:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                for _ in range(5):
                    engine.logits.sum() if engine.position else None
                    engine.align(ids)
            except rt.Error as error:
                if "no logits" not in str(error):
                    failures.append(error)

        workers = [threading.Thread(target=work) for _ in range(4)]
        for worker in workers:
            worker.start()
        for _ in range(5):
            engine.align(ids)
            engine.prefill(ids[engine.position :])
        for worker in workers:
            worker.join()
    assert not failures


def test_python_runs_while_c_works(tiny: rt.Model) -> None:
    """The interpreter's lock is given up: another thread counts during one prefill."""
    counted: list[int] = []
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted.append(1)
            stop.wait(0.001)

    with rt.Engine(tiny, context=200, threads=1) as engine:
        other = threading.Thread(target=count)
        other.start()
        engine.prefill(prompt(150, tiny.shape.vocab))
        stop.set()
        other.join()
    assert len(counted) > 5


def test_engines_share_a_model_and_keep_it_alive(make: Callable[..., Path]) -> None:
    model = rt.Model.open(make("micro"))
    first, second = rt.Engine(model, context=CONTEXT), rt.Engine(model, context=CONTEXT)
    model.close()
    first.prefill([1, 2, 3])
    second.prefill([1, 2])
    second.eval(3)
    assert first.logits.tobytes() == second.logits.tobytes()
    first.close()
    second.eval(4)
    second.close()


def test_a_forked_child_is_refused_and_can_close(micro: rt.Model) -> None:
    """Its threads stayed with the parent: waiting for them would never end."""
    engine = rt.Engine(micro, context=CONTEXT, threads=2)
    engine.prefill([1, 2, 3])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            engine.eval(4)
        except rt.Error as error:
            engine.close()
            del engine
            gc.collect()
            status = 0 if "forked" in str(error) else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    engine.eval(4)
    assert engine.tokens == [1, 2, 3, 4]
    engine.close()


# ---- closing ----


def test_closing_twice_is_fine_and_a_closed_one_refuses(micro: rt.Model, make: Callable[..., Path]) -> None:
    engine = rt.Engine(micro, context=CONTEXT)
    engine.close()
    engine.close()
    for use in (lambda: engine.eval(1), lambda: engine.prefill([1]), lambda: engine.logits, engine.reset,
                engine.__enter__):  # fmt: skip
        with pytest.raises(rt.Error, match="the engine is closed"):
            use()
    model = rt.Model.open(make("micro"))
    model.close()
    model.close()
    for use in (lambda: model.identity, lambda: model.tensors, lambda: rt.Engine(model)):
        with pytest.raises(rt.Error, match="the model is closed"):
            use()


def test_engines_are_not_copied_and_need_a_model(engine: rt.Engine) -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copied(engine)
    with pytest.raises(rt.ArgumentError, match="must be an open Model"):
        rt.Engine("path")  # type: ignore[arg-type]


def test_views_outlive_their_engine(micro: rt.Model) -> None:
    engine = rt.Engine(micro, context=CONTEXT)
    engine.prefill([1, 2, 3])
    view = engine.logits
    kept = view.copy()
    assert view.dtype == np.float32 and view.shape == (micro.shape.vocab,) and not view.flags.writeable
    with pytest.raises(ValueError):
        view[0] = 1
    engine.close()
    del engine
    gc.collect()
    others = [rt.Engine(micro, context=CONTEXT) for _ in range(3)]
    assert (view == kept).all()
    for other in others:
        other.close()


def test_logits_are_refused_where_there_are_none(engine: rt.Engine) -> None:
    with pytest.raises(rt.Error, match="no logits at position 0"):
        _ = engine.logits
    engine.prefill([1, 2, 3])
    engine.rewind(3)
    assert engine.logits is not None
    engine.rewind(2)
    with pytest.raises(rt.Error, match="no logits at position 2"):
        _ = engine.logits
    with pytest.raises(rt.ContextError, match="rewind to 3: the engine stands at 2"):
        engine.rewind(3)
    with pytest.raises(rt.ContextError):
        engine.rewind(-1)


@pytest.mark.parametrize(
    ("held", "given", "kept"),
    [
        ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4], 3),
        ([1, 2, 3], [1, 2, 3], 2),
        ([1], [1], 0),
        ([1, 2, 3], [1, 2, 9], 2),
        ([1, 2, 3], [1, 2, 3, 4, 5], 3),
        ([1, 2, 3], [9, 2, 3], 0),
        ([], [1, 2], 0),
    ],
)
def test_align_keeps_the_common_prefix(engine: rt.Engine, held: list[int], given: list[int], kept: int) -> None:
    if held:
        engine.prefill(held)
    assert engine.align(given) == kept == engine.position
    assert engine.tokens == given[:kept]
    with pytest.raises(rt.ArgumentError):
        engine.align([])


def test_observations_are_copies_of_the_right_shape(engine: rt.Engine, micro: rt.Model) -> None:
    shape = micro.shape
    seen: list[rt.Observation] = []
    engine.observe(seen.append)
    engine.prefill(prompt(10, shape.vocab))
    assert [(o.layer, o.position) for o in seen] == [(i, p) for p in (0, 4, 8) for i in range(shape.layers)]
    for o in seen:
        rows = min(4, 10 - o.position)
        used = 0 if o.layer < shape.dense_layers else shape.experts_used
        assert o.route_ids.shape == o.route_weights.shape == (rows, used)
        assert o.hidden.shape == (rows, shape.hidden)
        if used:
            assert np.allclose(o.route_weights.sum(1), shape.expert_scale, rtol=1e-5)
            assert (np.diff(np.sort(o.route_ids, 1), axis=1) > 0).all()
        for row, selected in enumerate(o.selected):
            assert len(selected) == min(o.position + row + 1, shape.index_top_k)
            assert (np.diff(selected) > 0).all() and selected[-1] <= o.position + row
    count = len(seen)
    engine.observe(None)
    engine.eval(1)
    assert len(seen) == count


# ---- any order of calls equals a fresh run ----


class Conversation(RuleBasedStateMachine):
    """An engine under any order of calls, beside the lists of tokens that it and its parked conversations should hold:
    what it says of them must be bit for bit what a new engine says that was fed them at once."""

    model: rt.Model
    scratch: Path
    reads_left = -1
    known: dict[tuple[int, ...], bytes] = {}

    @initialize(
        quality=st.booleans(), kv_type=st.sampled_from(["f16", "f32"]), drafts=st.sampled_from([None, 0, 1, 3, 7]),
        streams=st.booleans(),
    )  # fmt: skip
    def open(self, quality: bool, kv_type: str, drafts: int | None, streams: bool) -> None:
        self.options = {"quality": quality, "kv_type": kv_type}
        more: dict = {} if drafts is None else {"mtp": True, "drafts": drafts}
        if streams:
            more["streaming"] = rt.Streaming(test=StreamTest(read=self.reads), cache_experts=2)
        self.engine = rt.Engine(self.model, context=CONTEXT, chunk_rows=4, **self.options, **more)
        self.held: list[int] = []
        self.has_logits = False
        self.parked: list[tuple[rt.State, list[int], bool]] = []
        self.folder = Path(tempfile.mkdtemp(dir=self.scratch))
        self.saved: dict[int, tuple[list[int], bool]] = {}

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()

    tokens = st.lists(st.integers(0, 3), min_size=1, max_size=12)

    @rule(ids=tokens)
    def prefill(self, ids: list[int]) -> None:
        if len(self.held) + len(ids) > CONTEXT:
            with pytest.raises(rt.ContextError):
                self.engine.prefill(ids)
            return
        assert self.engine.prefill(ids) == len(ids)
        self.held += ids
        self.has_logits = True

    @rule(ids=tokens, calls=st.integers(0, 20))
    def cancelled_prefill(self, ids: list[int], calls: int) -> None:
        if len(self.held) + len(ids) > CONTEXT:
            return
        left = iter(range(calls))
        done = self.engine.prefill(ids, lambda position: next(left, None) is not None)
        self.held += ids[:done]
        self.has_logits = self.has_logits or done > 0

    @precondition(lambda self: len(self.held) < CONTEXT)
    @rule(token=st.integers(0, 3))
    def eval(self, token: int) -> None:
        self.engine.eval(token)
        self.held.append(token)
        self.has_logits = True

    @precondition(lambda self: len(self.held) < CONTEXT)
    @rule(token=st.integers(0, 3), ahead=st.integers(0, 8), follow=st.booleans())
    def eval_ahead(self, token: int, ahead: int, follow: bool) -> None:
        token = (self.engine.ahead or [token])[0] if follow else token
        self.engine.eval(token, ahead)
        self.held.append(token)
        self.has_logits = True

    @precondition(lambda self: len(self.held) < CONTEXT)
    @rule(token=st.integers(0, 3), count=st.integers(1, 9), cancel_at=st.integers(0, 30))
    def speculate(self, token: int, count: int, cancel_at: int) -> None:
        left = iter(range(cancel_at))
        tokens = self.engine.speculate(token, count, lambda: next(left, None) is None)
        assert not tokens or tokens[0] == token
        for index, chosen in enumerate(tokens):
            if index:
                assert chosen == int(np.frombuffer(self.fresh(), np.float32).argmax())
            self.held.append(chosen)
            self.has_logits = True

    def reads(self, file: int, size: int, offset: int) -> int | None:
        """Called for each read of an expert, on reading threads: the one that is told to fails."""
        self.reads_left -= 1
        return -errno.EIO if self.reads_left == 0 else None

    @rule(ids=tokens, ahead=st.integers(0, 8), reads=st.integers(1, 60), prefills=st.booleans())
    def failing_call(self, ids: list[int], ahead: int, reads: int, prefills: bool) -> None:
        if len(self.held) + len(ids) > CONTEXT:
            return
        self.reads_left = reads
        try:
            self.engine.prefill(ids) if prefills else self.engine.eval(ids[0], ahead)
        except rt.IoError:
            assert prefills or self.engine.position == len(self.held)
        self.reads_left = -1
        done = self.engine.position - len(self.held)
        self.held += ids[:done]
        self.has_logits = self.has_logits or done > 0

    @rule(token=st.sampled_from([-1, 512, 10**6]))
    def refused(self, token: int) -> None:
        with pytest.raises(rt.Error):
            self.engine.eval(token)

    @rule(share=st.floats(0, 1))
    def rewind(self, share: float) -> None:
        position = int(share * len(self.held))
        self.has_logits = self.has_logits and position == len(self.held)
        self.engine.rewind(position)
        del self.held[position:]

    @rule()
    def reset(self) -> None:
        self.engine.reset()
        self.has_logits = self.has_logits and not self.held
        self.held = []

    @rule(ids=tokens)
    def align(self, ids: list[int]) -> None:
        kept = 0
        while kept < min(len(self.held), len(ids) - 1) and self.held[kept] == ids[kept]:
            kept += 1
        assert self.engine.align(ids) == kept
        self.has_logits = self.has_logits and kept == len(self.held)
        self.held = ids[:kept]

    @precondition(lambda self: len(self.parked) < 3)
    @rule()
    def park(self) -> None:
        self.parked.append((self.engine.park(), self.held, self.has_logits))
        self.held, self.has_logits = [], False

    @precondition(lambda self: len(self.parked) < 3)
    @rule()
    def fork(self) -> None:
        self.parked.append((self.engine.fork(), list(self.held), self.has_logits))

    @precondition(lambda self: self.parked)
    @rule(index=st.integers(0, 2), forget=st.booleans())
    def swap(self, index: int, forget: bool) -> None:
        index %= len(self.parked)
        state, held, has_logits = self.parked[index]
        self.engine.swap(state)
        assert state.tokens == self.held
        self.parked[index] = (state, self.held, self.has_logits)
        self.held, self.has_logits = held, has_logits
        if forget:
            self.parked.pop(index)[0].close()

    @rule(name=st.integers(0, 1))
    def save(self, name: int) -> None:
        self.engine.save(self.folder / str(name))
        self.saved[name] = (list(self.held), self.has_logits)

    @rule(name=st.integers(0, 1))
    def load(self, name: int) -> None:
        assert self.engine.load(self.folder / str(name)) == (name in self.saved)
        if name in self.saved:
            held, self.has_logits = self.saved[name]
            self.held = list(held)

    @rule(name=st.integers(0, 1), pieces=st.integers(0, 5), loads=st.booleans())
    def cancelled_file(self, name: int, pieces: int, loads: bool) -> None:
        if loads and name not in self.saved:
            return
        held = self.saved[name][0] if loads else self.held
        left = iter(range(pieces if held else 0))  # an empty conversation is a file of one piece
        call = self.engine.load if loads else self.engine.save
        with pytest.raises(rt.Cancelled):
            call(self.folder / str(name), progress=lambda done: next(left, None) is not None)

    @precondition(lambda self: self.held)
    @rule(name=st.integers(0, 1), room=st.integers(0, 2000))
    def failing_save(self, name: int, room: int) -> None:
        """As on a full disk: the system refuses to write more."""
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
        try:
            with pytest.raises(rt.IoError):
                self.engine.save(self.folder / str(name))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert sorted(os.listdir(self.folder)) == sorted(map(str, self.saved))

    @invariant()
    def equals_a_fresh_run(self) -> None:
        if not hasattr(self, "engine"):
            return
        assert self.engine.tokens == self.held
        assert all(state.tokens == held for state, held, _ in self.parked)
        if not self.has_logits:
            with pytest.raises(rt.Error, match="no logits"):
                _ = self.engine.logits
            return
        assert self.engine.logits.tobytes() == self.fresh()

    def fresh(self) -> bytes:
        key = (*self.held, *self.options.values())
        if key not in self.known:
            self.known[key] = fresh_logits(self.model, self.held, **self.options)
        return self.known[key]


def test_any_order_of_calls_equals_a_fresh_run(micro: rt.Model, tmp_path: Path) -> None:
    Conversation.model, Conversation.scratch = micro, tmp_path
    case = Conversation.TestCase
    case.settings = settings(
        max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck),
        print_blob=True,
    )  # fmt: skip
    case().runTest()


def test_what_only_looks_like_an_argument_is_refused(micro: rt.Model) -> None:
    """Not cut to a token, nor to the part of a name before a zero."""
    with rt.Engine(micro, context=8) as engine:
        for ids in ("12", [1.7], [None]):
            with pytest.raises(TypeError):
                engine.prefill(ids)
        with pytest.raises(TypeError):
            engine.eval(1.5)
        assert engine.position == 0
        assert engine.prefill(np.arange(3)) == 3
    with pytest.raises(rt.ArgumentError, match="zero byte"):
        rt.Model.open(micro.path + "\0x")
    for key in ("general.architecture\0x", "\ud800", 3):
        assert key not in micro.metadata and micro.metadata.get(key) is None
