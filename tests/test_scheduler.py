"""The scheduler: requests do not disturb each other, nobody waits longer than a round, and everything ends."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import prompt
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glm52_rt as rt
from glm52_rt.scheduler import Request, Scheduler, Turn

CONTEXT = 40


class Numbers:
    """An engine whose next token is a number that depends on everything before it, with conversations that can be
    parked. Counts what is asked of it; fails and runs out of memory as told."""

    class State:
        def __init__(self, owner: Numbers, tokens: list[int]) -> None:
            self.owner, self.tokens, self.closed = owner, tokens, False

        def close(self) -> None:
            self.owner.parked -= not self.closed
            self.closed = True

    def __init__(self, context: int = CONTEXT, room: int = 99, fail_at: frozenset[int] = frozenset()) -> None:
        self.context, self.room, self.fail_at = context, room, fail_at
        self.tokens: list[int] = []
        self.parked = self.calls = 0
        self.interrupt_at: frozenset[int] = frozenset()

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def logits(self) -> np.ndarray:
        logits = np.zeros(16, np.float32)
        mixed = 7
        for token in self.tokens:
            mixed = (mixed * 31 + token + 1) % 9973
        logits[mixed % 16] = 1.0
        return logits

    def _call(self, count: int) -> None:
        self.calls += 1
        if self.calls in self.fail_at:
            raise rt.IoError("told to")
        if self.position + count > self.context:
            raise rt.ContextError("full")

    def align(self, ids: list[int]) -> int:
        kept = 0
        while kept < min(len(self.tokens), len(ids) - 1) and self.tokens[kept] == ids[kept]:
            kept += 1
        del self.tokens[kept:]
        return kept

    def prefill(self, ids: list[int], progress=None) -> int:
        self._call(len(ids))
        done = 0
        for token in ids:
            if progress is not None and not progress(self.position):
                break
            self.tokens.append(token)
            done += 1
        self._interrupt()
        return done

    def _interrupt(self) -> None:
        if self.calls in self.interrupt_at:
            raise KeyboardInterrupt

    def eval(self, token: int, ahead: int = 0) -> None:
        self._call(1)
        self.tokens.append(token)
        self._interrupt()

    def park(self) -> Numbers.State:
        if self.parked >= self.room:
            raise rt.MemoryBudgetError("full")
        self.parked += 1
        state = Numbers.State(self, self.tokens)
        self.tokens = []
        return state

    def swap(self, state: Numbers.State) -> None:
        assert not state.closed and state.owner is self
        self.tokens, state.tokens = state.tokens, self.tokens


GREEDY = {"temperature": 0.0}


def alone(ids: list[int], max_tokens: int | None, stop: frozenset[int]) -> tuple[list[int], str | None]:
    run = rt.generate(Numbers(), ids, max_tokens, stop=stop, **GREEDY)  # type: ignore[arg-type]
    if len(ids) > CONTEXT:
        return [], "error"
    return list(run), run.stop_reason


requests = st.lists(
    st.tuples(
        st.lists(st.integers(0, 3), min_size=1, max_size=CONTEXT + 2),
        st.none() | st.integers(0, 30),
        st.frozensets(st.integers(0, 15), max_size=2),
        st.integers(0, 30),  # the turn before which it is submitted
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@given(requests, st.integers(1, 4), st.integers(1, 9), st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_requests_do_not_disturb_each_other(
    wanted: list, admitted: int, piece: int, turn_tokens: int, room: int
) -> None:
    """Any mixture of prompts, limits and arrivals, any cut into turns, and any room for conversations: each request
    gets what it gets alone, in the order of admission, and no turn is further away than a round."""
    engine = Numbers(room=room)
    scheduler = Scheduler(engine, admitted, piece, turn_tokens)
    left = sorted(enumerate(wanted), key=lambda item: item[1][3])
    submitted: dict[int, Request] = {}
    last_turn: dict[int, int] = {}
    first_turns: list[int] = []
    turns = 0
    while True:
        while left and (left[0][1][3] <= turns or not scheduler.requests):
            number, (ids, max_tokens, stop, _) = left.pop(0)
            submitted[number] = scheduler.submit(ids, max_tokens, rt.Sampler(**GREEDY), stop)
        turn = scheduler.step()
        if turn is None:
            if not left:
                break
            continue
        turns += 1
        number = next(n for n, request in submitted.items() if request is turn.request)
        assert turn.prefilled <= piece and len(turn.tokens) <= turn_tokens
        if number not in last_turn:
            first_turns.append(number)
        else:
            assert turns - last_turn[number] <= admitted
        last_turn[number] = turns
    assert first_turns == list(submitted), "first come, first served"
    for number, (ids, max_tokens, stop, _) in enumerate(wanted):
        request = submitted[number]
        assert (request.tokens, request.stop_reason) == alone(ids, max_tokens, stop)
    assert engine.parked == 0 and scheduler.requests == []


cancellations = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 7)), max_size=4)


@given(requests, cancellations, st.frozensets(st.integers(1, 60)))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_cancelled_and_failed_requests_end_alone(wanted: list, cancels: list, fail_at: frozenset[int]) -> None:
    engine = Numbers(fail_at=fail_at)
    scheduler = Scheduler(engine, 3, 4, 2)
    submitted = [scheduler.submit(ids, most, rt.Sampler(**GREEDY), stop) for ids, most, stop, _ in wanted]
    turn: Turn | None = None
    for turns in range(1000):
        for when, number in cancels:
            if when == turns and number < len(submitted):
                submitted[number].cancel()
        turn = scheduler.step()
        if turn is None:
            break
    assert turn is None
    for request, (ids, most, stop, _) in zip(submitted, wanted, strict=True):
        tokens, reason = alone(ids, most, stop)
        if request.stop_reason in ("cancelled", "error"):
            assert request.tokens == tokens[: len(request.tokens)]
            assert request.stop_reason == "cancelled" or isinstance(request.error, rt.Error)
        else:
            assert (request.tokens, request.stop_reason) == (tokens, reason)
    assert engine.parked == 0


@given(requests, st.frozensets(st.integers(1, 60)))
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
def test_interrupts_lose_and_repeat_nothing(wanted: list, interrupt_at: frozenset[int]) -> None:
    """The loop's owner is interrupted at any moment, also right behind a call that was done, and goes on."""
    engine = Numbers()
    engine.interrupt_at = interrupt_at
    scheduler = Scheduler(engine, 3, 4, 2)
    submitted = [scheduler.submit(ids, most, rt.Sampler(**GREEDY), stop) for ids, most, stop, _ in wanted]
    while scheduler.requests:
        try:
            scheduler.step()
        except KeyboardInterrupt:
            pass
    for request, (ids, most, stop, _) in zip(submitted, wanted, strict=True):
        assert (request.tokens, request.stop_reason) == alone(ids, most, stop)


def test_a_short_request_overtakes_a_long_prompt() -> None:
    engine = Numbers(context=2000)
    scheduler = Scheduler(engine, 2, piece_tokens=10, turn_tokens=4)
    long = scheduler.submit([1] * 1000, 1, rt.Sampler(**GREEDY))
    short = scheduler.submit([2, 3], 8, rt.Sampler(**GREEDY))
    while not short.done:
        assert scheduler.step() is not None
    assert long.fed <= 40 and not long.done
    scheduler.run()
    assert long.stop_reason == "length"


def test_requests_without_room_wait_in_their_order() -> None:
    scheduler = Scheduler(Numbers(room=1), 4, 4, 2)
    requests = [scheduler.submit([n] * 10, 5, rt.Sampler(**GREEDY)) for n in range(5)]
    order: list[int] = []
    while (turn := scheduler.step()) is not None:
        order.append(requests.index(turn.request))
    assert scheduler.admitted == 2
    assert [n for at, n in enumerate(order) if n not in order[:at]] == [0, 1, 2, 3, 4]
    assert all(request.stop_reason == "length" for request in requests)


def test_a_common_beginning_is_kept_from_a_request_that_is_done() -> None:
    engine = Numbers()
    scheduler = Scheduler(engine)
    scheduler.submit([1, 2, 3, 4], 2, rt.Sampler(**GREEDY))
    scheduler.run()
    scheduler.submit([1, 2, 3, 5], 1, rt.Sampler(**GREEDY))
    turn = scheduler.step()
    assert turn is not None and turn.prefilled == 1


@pytest.mark.parametrize("numbers", [{"admitted": 0}, {"piece_tokens": 0}, {"turn_tokens": 0}])
def test_numbers_below_one_are_refused(numbers: dict) -> None:
    with pytest.raises(rt.ArgumentError, match="at least 1"):
        Scheduler(Numbers(), **numbers)


def test_bad_requests_are_refused() -> None:
    scheduler = Scheduler(Numbers())
    for ids, most in (([], 1), ([1], -1)):
        with pytest.raises(rt.ArgumentError):
            scheduler.submit(ids, most)
    assert scheduler.step() is None


@pytest.mark.parametrize("mtp", [False, True])
def test_on_an_engine_each_request_gets_what_it_gets_alone(micro: rt.Model, mtp: bool) -> None:
    prompts = [prompt(5 + 7 * n, 512, n) for n in range(4)]

    def sampler(n: int) -> rt.Sampler:
        return rt.Sampler(temperature=0.8 * (n % 2), seed=n)

    wanted = []
    for n, ids in enumerate(prompts):
        with rt.Engine(micro, context=60) as engine:
            wanted.append(list(rt.generate(engine, ids, 12, temperature=0.8 * (n % 2), seed=n, stop=())))
    with rt.Engine(micro, context=60, mtp=mtp, drafts=2 if mtp else 0) as engine:
        scheduler = Scheduler(engine, admitted=3, piece_tokens=6, turn_tokens=3)
        requests = [scheduler.submit(ids, 12, sampler(n)) for n, ids in enumerate(prompts)]
        scheduler.run()
        assert [request.tokens for request in requests] == wanted
        engine.eval(1)
        assert engine.plan.sessions == 0
