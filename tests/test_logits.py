"""Logits of every token as it is fed (Engine.observe_logits): the bits of feeding tokens one by one."""

import numpy as np
import pytest
from conftest import prompt

import glm52_rt as rt


def one_by_one(model, ids, **options):
    with rt.Engine(model, context=len(ids), **options) as engine:
        found = []
        for token in ids:
            engine.eval(token)
            found.append(engine.logits.copy())
        return np.array(found)


@pytest.mark.parametrize("options", [{"quality": True, "kv_type": "f32"}, {}, {"mtp": True, "drafts": 2}])
@pytest.mark.parametrize("chunk", [1, 5, 64])
def test_every_row_of_a_prompt_has_the_bits_of_decoding(tiny, options, chunk):
    ids = prompt(23, tiny.shape.vocab)
    wanted = one_by_one(tiny, ids, quality=options.get("quality", False), kv_type=options.get("kv_type", "f16"))
    seen = {}
    with rt.Engine(tiny, context=32, chunk_rows=chunk, **options) as engine:
        engine.observe_logits(lambda position, logits: seen.__setitem__(position, logits), first=3)
        engine.prefill(ids[:15])
        assert engine.logits.tobytes() == wanted[14].tobytes()
        engine.prefill(ids[15:20])
        for token in ids[20:]:
            engine.eval(token)
        engine.observe_logits(None)
        engine.reset()
        engine.prefill(ids[:9])
    assert list(seen) == list(range(3, 23))
    assert b"".join(seen[p].tobytes() for p in seen) == wanted[3:].tobytes()


def test_streamed_experts_give_the_same_rows(tiny):
    ids = prompt(12, tiny.shape.vocab)
    seen = []
    streaming = rt.Streaming(cache_experts=2 * tiny.shape.experts_used)
    with rt.Engine(tiny, context=16, streaming=streaming) as engine:
        engine.observe_logits(lambda position, logits: seen.append(logits))
        engine.prefill(ids)
    assert np.array(seen).tobytes() == one_by_one(tiny, ids).tobytes()


def test_an_exception_is_raised_by_the_call_and_the_engine_goes_on(tiny):
    ids = prompt(6, tiny.shape.vocab)
    calls = []

    def fail(position, logits):
        calls.append(position)
        raise ValueError("enough")

    with rt.Engine(tiny, context=16) as engine:
        engine.observe_logits(fail)
        with pytest.raises(ValueError, match="enough"):
            engine.prefill(ids)
        assert calls == [0]
        engine.observe_logits(None)
        engine.reset()
        engine.prefill(ids)
        assert engine.logits.tobytes() == one_by_one(tiny, ids)[-1].tobytes()
