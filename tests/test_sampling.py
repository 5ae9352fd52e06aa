"""The sampler against its definition written out slowly, and against chance; the loop around an engine.

The loop runs on a stand-in whose logits are a plain function of its tokens, and on a real engine.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import prompt
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import glm52_rt as rt
from glm52_rt.sampling import SEED_MAX, Sampler, generate

LOGIT = st.floats(-30, 30, width=32) | st.sampled_from([-math.inf, 0.0, 1.0, 1.0, 2.5])
LOGITS = st.lists(LOGIT, min_size=1, max_size=40).filter(lambda row: max(row) > -math.inf)
SHARE = st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0]) | st.floats(0, 1)


def slow_candidates(logits: list[float], temperature: float, top_p: float, min_p: float) -> tuple[list[int], float]:
    """Ids that a draw chooses from, and how near the nearest decision was; exact but for the exponential."""
    peak = max(logits)
    weights = [Fraction(math.exp((value - peak) / temperature)) for value in logits]
    kept = [at for at, weight in enumerate(weights) if weight >= Fraction(min_p)]
    margins = [abs(weight - Fraction(min_p)) for weight in weights if min_p > 0]
    if top_p < 1:
        wanted = Fraction(top_p) * sum(weights[at] for at in kept)
        chosen, total = [], Fraction(0)
        for at in sorted(kept, key=lambda at: (-weights[at], at)):
            chosen.append(at)
            total += weights[at]
            margins.append(abs(total - wanted))
            if total >= wanted:
                break
        kept = sorted(chosen)
    return kept, float(min(margins, default=1))


@settings(max_examples=600, deadline=None, derandomize=True)
@given(LOGITS, st.sampled_from([0.1, 0.7, 1.0, 3.0]), SHARE, SHARE)
def test_candidates_are_those_of_the_definition(
    logits: list[float], temperature: float, top_p: float, min_p: float
) -> None:
    wanted, margin = slow_candidates(logits, temperature, top_p, min_p)
    assume(margin > 1e-12 or top_p in (0, 1) and min_p in (0, 1))
    ids, weights = Sampler(temperature, top_p, min_p).candidates(np.array(logits, np.float32))
    assert ids.tolist() == wanted
    assert weights.tolist() == [math.exp((logits[at] - max(logits)) / temperature) for at in wanted] or np.allclose(
        weights, [math.exp((logits[at] - max(logits)) / temperature) for at in wanted], rtol=1e-14, atol=0
    )


@pytest.mark.parametrize("top_p", [0.0, 0.3, 0.9, 0.999, 1 - 1e-15])
def test_a_large_vocabulary_is_cut_as_a_small_one(top_p: float) -> None:
    """Only the greatest are sorted, in growing portions: the flat row needs all of them, and all its weights tie."""
    rng = np.random.Generator(np.random.PCG64(5))
    peaked, flat = rng.normal(0, 4, 20_000), np.zeros(20_000)
    for row in (peaked, rng.normal(0, 0.01, 20_000), np.round(peaked), flat):
        logits = row.astype(np.float32)
        ids, _ = Sampler(1.0, top_p).candidates(logits)
        weights = np.exp(logits.astype(np.float64) - logits.max())
        order = np.argsort(-weights, kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), top_p * weights.sum())) + 1
        assert ids.tolist() == sorted(order[:count].tolist())


@pytest.mark.parametrize(
    ("temperature", "top_p", "min_p"),
    [(1.0, 1.0, 0.0), (0.6, 1.0, 0.0), (2.0, 0.8, 0.0), (1.0, 1.0, 0.2), (1.5, 0.9, 0.1)],
)
def test_draws_have_the_distribution(temperature: float, top_p: float, min_p: float) -> None:
    logits = np.array([0.1, 2.0, -1.0, 1.5, 1.5, -math.inf, 0.0, 3.0], np.float32)
    kept, _ = slow_candidates(logits.tolist(), temperature, top_p, min_p)
    weights = np.array([math.exp(logits[at] / temperature) if at in kept else 0.0 for at in range(len(logits))])
    draws, sampler = 20_000, Sampler(temperature, top_p, min_p, seed=1)
    counts = np.bincount([sampler.pick(logits) for _ in range(draws)], minlength=len(logits))
    wanted = draws * weights / weights.sum()
    assert not counts[wanted == 0].any()
    square = ((counts - wanted)[wanted > 0] ** 2 / wanted[wanted > 0]).sum()
    freedom = len(kept) - 1
    assert square < freedom + 4 * math.sqrt(2 * freedom) + 4, f"chi square {square} with {freedom} degrees of freedom"


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    """The uniform number of each step is the top 53 bits of PCG64, whatever numpy's Generator does with them."""
    logits = np.log(np.array([1, 2, 3, 4], np.float64)).astype(np.float32)
    for seed in (0, 1, SEED_MAX):
        sampler, bits = Sampler(1.0, 1.0, seed=seed), np.random.PCG64(seed)
        for _ in range(200):
            place = (int(bits.random_raw()) >> 11) / 2**53 * 10
            picked = sampler.pick(logits)
            assert sum((1, 2, 3, 4)[:picked]) - 1e-5 <= place <= sum((1, 2, 3, 4)[: picked + 1]) + 1e-5


@pytest.mark.parametrize(("raw", "picked"), [(0, 1), (2**64 - 1, 3), (2**63, 2)])
def test_the_ends_of_the_unit_interval_pick_tokens_that_have_weight(raw: int, picked: int) -> None:
    sampler = Sampler(1.0, 1.0)
    sampler._bits = SimpleNamespace(random_raw=lambda: raw)
    assert sampler.pick(np.array([-math.inf, 0, 0.1, 0, -math.inf], np.float32)) == picked


def test_the_seed_decides_and_none_is_zero() -> None:
    logits = np.zeros(1000, np.float32)

    def draws(seed: int | None) -> list[int]:
        sampler = Sampler(1.0, 1.0, seed=seed)
        return [sampler.pick(logits) for _ in range(20)]

    assert draws(7) == draws(7) != draws(8)
    assert draws(None) == draws(0)
    # Recorded: these bits must never change, or recorded runs could not be repeated.
    assert draws(0)[:8] == [636, 269, 40, 16, 813, 912, 606, 729]


def test_temperature_zero_is_greedy_and_takes_the_lower_of_equal_ids() -> None:
    assert Sampler(0).pick(np.array([1, 3, 3, 2], np.float32)) == 1
    assert Sampler(1e-300).pick(np.array([1, 2, 3, 2.999], np.float32)) == 2
    assert Sampler(5.0, top_p=0.0).pick(np.array([1, 3, 3, 2], np.float32)) == 1
    with pytest.raises(rt.ArgumentError, match="temperature 0"):
        Sampler(0).candidates(np.zeros(3, np.float32))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_refused(temperature: float) -> None:
    sampler = Sampler(temperature)
    with pytest.raises(rt.ArgumentError, match="logit of token 2 is nan"):
        sampler.pick(np.array([0, 1, math.nan, math.inf], np.float32))
    with pytest.raises(rt.ArgumentError, match="logit of token 1 is inf"):
        sampler.pick(np.array([0, math.inf, 1], np.float32))
    with pytest.raises(rt.ArgumentError, match="every logit"):
        sampler.pick(np.full(4, -math.inf, np.float32))
    with pytest.raises(rt.ArgumentError, match="one row"):
        sampler.pick(np.zeros((2, 2), np.float32))
    assert sampler.pick(np.array([-math.inf, 0], np.float32)) == 1


@pytest.mark.parametrize(
    "options",
    [{"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_p": 1.01}, {"top_p": math.nan},
     {"min_p": -1e-9}, {"seed": -1}, {"seed": SEED_MAX + 1}],
)  # fmt: skip
def test_settings_out_of_range_are_named(options: dict) -> None:
    with pytest.raises(rt.ArgumentError, match=next(iter(options))):
        Sampler(**options)


# ---- the loop ----


class CountingEngine:
    """Always predicts the last token + 1, in a vocabulary of 100; counts what it is fed."""

    def __init__(self, context: int = 1000) -> None:
        self.context, self.fed = context, []
        self.tokens: list[int] = []
        keys = {f"tokenizer.ggml.{name}_token_id": at for name, at in (("eos", 50), ("eot", 60), ("eom", 70))}
        self.model = SimpleNamespace(metadata=keys, shape=SimpleNamespace(vocab=100), path="counting")

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def logits(self) -> np.ndarray:
        row = np.zeros(100, np.float32)
        row[(self.tokens[-1] + 1) % 100] = 20
        return row

    def align(self, ids: Sequence[int]) -> int:
        kept = 0
        while kept < min(len(ids) - 1, len(self.tokens)) and ids[kept] == self.tokens[kept]:
            kept += 1
        self.tokens = self.tokens[:kept]
        return kept

    def prefill(self, ids: Sequence[int], progress=None) -> int:
        done = 0
        for token in ids:
            if progress is not None and progress(self.position) is False:
                break
            self.eval(token)
            done += 1
        return done

    def eval(self, token: int) -> None:
        if self.position == self.context:
            raise rt.ContextError(f"no room behind {self.context}")
        self.tokens.append(token)
        self.fed.append(token)


def test_it_ends_before_each_of_the_three_end_tokens() -> None:
    for first, end in ((40, 50), (55, 60), (65, 70)):
        run = generate(CountingEngine(), [3, first], None, temperature=0)
        assert list(run) == list(range(first + 1, end)) == run.tokens
        assert (run.stop_reason, run.stop_token) == ("stop", end)
        assert next(run, None) is None
    assert list(generate(CountingEngine(), [48], 5, temperature=0, stop=())) == [49, 50, 51, 52, 53]
    assert list(generate(CountingEngine(), [48], 5, temperature=0, stop={51})) == [49, 50]


def test_it_ends_at_the_token_limit_without_feeding_the_last_token() -> None:
    engine = CountingEngine()
    run = generate(engine, [1, 2, 3], 2, temperature=0)
    assert list(run) == [4, 5]
    assert (run.stop_reason, engine.tokens) == ("length", [1, 2, 3, 4])
    none = generate(engine, [1], 0)
    assert (list(none), none.stop_reason, engine.tokens) == ([], "length", [1, 2, 3, 4])


def test_it_ends_where_the_context_does() -> None:
    run = generate(CountingEngine(context=5), [1, 2, 3], None, temperature=0)
    assert list(run) == [4, 5, 6]
    assert run.stop_reason == "context"
    with pytest.raises(rt.ContextError):
        next(generate(CountingEngine(context=2), [1, 2, 3], 1))


def test_only_what_the_engine_does_not_hold_is_prefilled() -> None:
    engine = CountingEngine()
    first = list(generate(engine, [1, 2, 3], 3, temperature=0))
    engine.fed.clear()
    run = generate(engine, [1, 2, 3, *first, 20], 1, temperature=0)
    assert (list(run), run.kept, engine.fed) == ([21], 5, [first[-1], 20])


def test_leaving_early_leaves_the_engine_in_order() -> None:
    engine = CountingEngine()
    with generate(engine, [1], None, temperature=0) as run:
        for token in run:
            if token == 4:
                break
    assert (run.stop_reason, engine.tokens, list(run)) == ("closed", [1, 2, 3], [])
    assert list(generate(engine, [1, 2, 3, 4], 2, temperature=0)) == [5, 6]


def test_a_cancelled_prefill_ends_it() -> None:
    engine = CountingEngine()
    run = generate(engine, [1, 2, 3, 4], 5, progress=lambda position: position < 2)
    assert (list(run), run.stop_reason, engine.tokens) == ([], "cancelled", [1, 2])


@pytest.mark.parametrize("after", [False, True])
def test_an_interrupted_step_can_be_tried_again(after: bool) -> None:
    """Ctrl-C before the token is fed, or behind it but before the next is picked."""

    class Interrupted(CountingEngine):
        armed = False

        def eval(self, token: int) -> None:
            strike, self.armed = self.armed, False
            if after or not strike:
                super().eval(token)
            if strike:
                raise KeyboardInterrupt

    engine = Interrupted()
    run = generate(engine, [1], 4, temperature=0)
    assert next(run) == 2
    engine.armed = True
    with pytest.raises(KeyboardInterrupt):
        next(run)
    assert list(run) == [3, 4, 5]


def test_an_engine_moved_by_others_is_noticed() -> None:
    engine = CountingEngine()
    run = generate(engine, [1], None, temperature=0)
    next(run)
    engine.eval(9)
    with pytest.raises(rt.Error, match="moved to position 2 while a generation stands at 1"):
        next(run)


def test_arguments_are_checked_before_anything_runs() -> None:
    engine = CountingEngine()
    for ids, limit, options in (([], 1, {}), ([1], -1, {}), ([1], 1, {"top_p": 2}), ([1], 1, {"seed": -1})):
        with pytest.raises(rt.ArgumentError):
            generate(engine, ids, limit, **options)
    assert engine.fed == []


@pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 3}, {"seed": 3, "top_p": 0.5, "min_p": 0.01}])
def test_a_real_engine_continues_as_evaluating_by_hand_does(micro: rt.Model, options: dict) -> None:
    ids = prompt(12, micro.shape.vocab)
    with rt.Engine(micro, context=40) as engine:
        run = list(generate(engine, ids, 20, stop=(), **options))
        again = list(generate(engine, ids, 20, stop=(), **options))
    with rt.Engine(micro, context=40) as engine:
        sampler, by_hand = Sampler(**options), []
        engine.prefill(ids)
        for _ in range(20):
            by_hand.append(sampler.pick(engine.logits))
            engine.eval(by_hand[-1])
    assert run == by_hand == again


def test_a_real_engine_reaches_the_end_of_its_context(micro: rt.Model) -> None:
    ids = prompt(12, micro.shape.vocab)
    with rt.Engine(micro, context=20) as engine:
        run = generate(engine, ids, None, temperature=0, stop=())
        assert len(list(run)) == 20 - 12 + 1
        assert (run.stop_reason, engine.position) == ("context", 20)
