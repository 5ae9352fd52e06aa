"""Several conversations over one engine: parked, exchanged, copied, counted."""

import gc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import prompt

import glm52_rt as rt

CONTEXT = 40


def fresh_logits(model: rt.Model, ids: list[int], **options) -> bytes:
    with rt.Engine(model, context=CONTEXT, **options) as engine:
        engine.prefill(ids)
        return engine.logits.tobytes()


def test_three_conversations_in_turns_equal_three_engines(micro: rt.Model) -> None:
    prompts = [prompt(12, micro.shape.vocab, seed) for seed in range(3)]
    with rt.Engine(micro, context=CONTEXT, chunk_rows=4, sessions=2) as engine:
        states = [engine.park(), engine.park()]
        place: list[rt.State | None] = [None, *states]  # where each conversation is; None: in the engine
        current = 0
        for step in range(12):
            for number in (2, 0, 1):
                if number != current:
                    state = place[number]
                    assert state is not None
                    engine.swap(state)
                    place[current], place[number], current = state, None, number
                engine.eval(prompts[number][step])
        for number in range(3):
            if number != current:
                state = place[number]
                assert state is not None
                engine.swap(state)
                place[current], place[number], current = state, None, number
            assert engine.tokens == prompts[number]
            assert engine.logits.tobytes() == fresh_logits(micro, prompts[number])


def test_two_continuations_of_one_prefill(micro: rt.Model) -> None:
    ids = prompt(20, micro.shape.vocab)
    with rt.Engine(micro, context=CONTEXT) as engine:
        engine.prefill(ids)
        engine.tag = b"one"
        before = engine.logits.copy()
        fork = engine.fork()
        engine.prefill([1, 2, 3])
        assert engine.logits.tobytes() == fresh_logits(micro, [*ids, 1, 2, 3])
        engine.tag = b"two"
        engine.swap(fork)
        assert engine.tokens == ids and engine.tag == b"one" and fork.tag == b"two"
        assert engine.logits.tobytes() == before.tobytes()
        engine.prefill([4, 5])
        assert engine.logits.tobytes() == fresh_logits(micro, [*ids, 4, 5])
        assert fork.tokens == [*ids, 1, 2, 3] and fork.position == 23


def test_a_parked_conversation_of_another_engine_is_refused(micro: rt.Model, make: Callable[..., Path]) -> None:
    with rt.Model.open(make("micro")) as same, rt.Engine(micro, context=8) as one, rt.Engine(same, context=8) as two:
        one.prefill([1, 2])
        two.prefill([3, 4, 5])
        state = two.park()
        two.eval(6)
        with pytest.raises(rt.ArgumentError, match="another engine"):
            one.swap(state)
        assert one.tokens == [1, 2] and state.tokens == [3, 4, 5] and two.tokens == [6]
        state.close()
        with pytest.raises(rt.Error, match="the conversation is closed"):
            two.swap(state)


def test_the_plan_counts_conversations(micro: rt.Model) -> None:
    with rt.Engine(micro, context=1000) as bare, rt.Engine(micro, context=1000, sessions=2) as engine:
        each = engine.plan.sessions // 2
        assert bare.plan.sessions == 0 and engine.plan.total == bare.plan.total + 2 * each
        assert rt.plan_memory(micro, context=1000, sessions=2) == engine.plan
        caches = engine.plan.kv_cache + engine.plan.index_cache
        assert caches + 4 * 1000 + 4 * micro.shape.vocab <= each < caches + 4 * 1000 + 4 * micro.shape.vocab + 1024
        states = [engine.park(), engine.park()]
        assert engine.plan.sessions == 2 * each
        states.append(engine.fork())
        assert engine.plan.sessions == 3 * each and engine.plan.total == bare.plan.total + 3 * each
        del states
        gc.collect()
        engine.eval(1)
        assert engine.plan.sessions == 2 * each


def test_the_automatic_cache_leaves_room_for_conversations(micro: rt.Model) -> None:
    streaming = rt.Streaming(memory_bytes=2_600_000)
    small = rt.plan_memory(micro, context=300, chunk_rows=4, streaming=streaming)
    large = rt.plan_memory(micro, context=300, chunk_rows=4, streaming=streaming, sessions=2)
    assert large.sessions > 0 and large.expert_cache < small.expert_cache and large.total <= 2_600_000
    with rt.Engine(micro, context=300, chunk_rows=4, streaming=streaming, sessions=1) as engine:
        engine.prefill([1, 2, 3])
        states = [engine.fork()]
        with pytest.raises(rt.MemoryBudgetError, match="bytes needed with the engine's, 2600000 there"):
            while True:
                states.append(engine.fork())
        assert engine.plan.total <= 2_600_000 < engine.plan.total + engine.plan.sessions // len(states)
        engine.eval(4)
        assert engine.logits.tobytes() == fresh_logits(micro, [1, 2, 3, 4])


def test_more_conversations_than_memory_are_refused(micro: rt.Model) -> None:
    """Pages of caches that nobody touched cost nothing, but are promised all the same."""
    with rt.Engine(micro, context=micro.shape.context_max) as engine:
        engine.prefill([1, 2, 3])
        states = []
        with pytest.raises(rt.MemoryBudgetError, match="a session more"):
            for _ in range(10000):
                states.append(engine.park())
        assert len(states) > 1 and states[0].tokens == [1, 2, 3]
        engine.swap(states[0])
        engine.eval(4)
        assert engine.logits.tobytes() == fresh_logits(micro, [1, 2, 3, 4])


@pytest.mark.parametrize("options", [{"sessions": -1}, {"sessions": 5000}], ids=str)
def test_bad_numbers_of_conversations_are_refused(micro: rt.Model, options: dict) -> None:
    with pytest.raises(rt.ArgumentError, match="sessions"):
        rt.Engine(micro, context=8, **options)


def test_conversations_and_views_outlive_a_closed_engine(micro: rt.Model) -> None:
    engine = rt.Engine(micro, context=CONTEXT)
    engine.prefill([1, 2, 3])
    view = engine.logits
    kept = view.copy()
    state = engine.fork()
    engine.park()  # forgotten at once
    other = engine.park()
    assert not (view == kept).all()  # a view is of the engine's logits, whatever conversation they belong to
    engine.swap(state)
    assert (view == kept).all()
    engine.swap(state)
    engine.close()
    del engine
    gc.collect()
    assert state.tokens == [1, 2, 3] and other.tokens == []
    assert np.isfinite(view).all()
    del state, other, view


def test_a_call_from_a_callback_is_refused(micro: rt.Model) -> None:
    with rt.Engine(micro, context=CONTEXT) as engine:
        state = engine.park()
        for call in (engine.park, engine.fork, lambda: engine.swap(state)):
            with pytest.raises(rt.Error, match="inside its own callback"):
                engine.prefill([1, 2], lambda position: call())
        assert engine.prefill([1, 2]) == 2
