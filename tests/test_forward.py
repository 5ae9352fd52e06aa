"""The whole model against the float64 reference, in the dense and in the sparse regime, and against itself cut in
every way. Figures of a run: python -m pytest tests/test_forward.py -s -k figures"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from conftest import Expected, prompt
from recorded import COUNTS, LATENT_EPSILON, Recorded
from reference import Options, relative_rms

import glm52_rt as rt

# Exact weights, float32 arithmetic, against float64. Each of some hundred dot products in a row rounds by at most
# a few 2^-24 relative to its terms' magnitude, 6e-8; errors of 8 layers add up as independent ones do to about
# 1e-6, and near-cancelling logits leave a factor of ten.
EXACT = 1e-5
# The same on quantised files, where the reference works on the dequantised weights.
QUANTISED = 1e-4
# Cache rows rounded to float16 on both sides. In the first layer the values differ by some 3e-7 before they are
# rounded, so that about one in two thousand falls on two sides of a rounding boundary and is then off by one step,
# 7e-4 of itself: sqrt(1 / 2000) * 7e-4 = 1.6e-5; three times that is allowed. A few layers on the roundings of both
# sides are independent, and what is left is their noise: 2^-11 / sqrt(3) per value and side, 4e-4 together; five
# times that is allowed.
HALF_FIRST_LAYER = 5e-5
HALF_CACHE = 2e-3
# Such noise can decide a choice only if it is that close: scores differ by some 1e-3 of their size, choices of the
# router by some 1e-3 of the sigmoids. Behind the first choice that falls differently nothing can be compared.
HALF_CLOSE = 1e-3

Make = Callable[..., Path]


@dataclass
class Seen:
    """What an engine did, position by position."""

    logits: list[np.ndarray] = field(default_factory=list)
    selected: dict[tuple[int, int], set[int]] = field(default_factory=dict)  # (layer, position) ->
    routes: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    hidden: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def note(self, seen: rt.Observation) -> None:
        for row, selected in enumerate(seen.selected):
            at = (seen.layer, seen.position + row)
            self.selected[at] = set(selected.tolist())
            self.routes[at] = set(seen.route_ids[row].tolist())
            self.hidden[at] = seen.hidden[row]


def run_token_by_token(model: rt.Model, ids: list[int], **options) -> Seen:
    seen = Seen()
    with rt.Engine(model, context=len(ids), **options) as engine:
        engine.observe(seen.note)
        for token in ids:
            engine.eval(token)
            seen.logits.append(engine.logits.copy())
    return seen


def run_pieces(model: rt.Model, ids: list[int], pieces: list[int], **options) -> np.ndarray:
    """Logits behind the last token when ids are fed in pieces of these lengths."""
    with rt.Engine(model, context=len(ids), **options) as engine:
        at = 0
        for piece in pieces:
            assert engine.prefill(ids[at : at + piece]) == piece
            at += piece
        assert at == len(ids)
        return engine.logits.copy()


def assert_decisions_equal(seen: Seen, wanted: Expected) -> None:
    for layer, selected in wanted.trace.selected.items():
        for position in range(len(wanted.ids)):
            assert seen.selected[layer, position] == set(np.nonzero(selected[position])[0].tolist()), (layer, position)
    for layer, routes in wanted.trace.route_ids.items():
        for position in range(len(wanted.ids)):
            assert seen.routes[layer, position] == set(routes[position].tolist()), (layer, position)


def worst_position(seen: Seen, wanted: Expected) -> float:
    return max(relative_rms(got, want) for got, want in zip(seen.logits, wanted.logits, strict=True))


PRESETS = ["tiny", "realgeom"]
TOP_K = [2, 8, 32]


def prompt_length(top_k: int) -> int:
    """Far above top_k, and through every boundary on the way."""
    return 5 * top_k if top_k > 8 else 48


@pytest.fixture(scope="module", params=[(preset, k) for preset in PRESETS for k in TOP_K], ids=str)
def exact_case(request: pytest.FixtureRequest, make: Make) -> Iterator[tuple[Path, rt.Model, list[int]]]:
    preset, top_k = request.param
    path = make(preset, mix="f32", changes={"index_top_k": top_k})
    with rt.Model.open(path) as model:
        yield path, model, prompt(prompt_length(top_k), model.shape.vocab)


EXACT_MODE = {"quality": True, "kv_type": "f32"}


def test_logits_selections_and_routes_equal_the_reference(exact_case, expected) -> None:
    path, model, ids = exact_case
    wanted = expected(path, ids)
    seen = run_token_by_token(model, ids, **EXACT_MODE)
    figure = worst_position(seen, wanted)
    print(f"figures: {path.parent.name} {len(ids)} tokens: logits off by {figure:.1e} relative rms at worst")
    assert_decisions_equal(seen, wanted)
    assert figure <= EXACT
    for (layer, position), hidden in seen.hidden.items():
        assert relative_rms(hidden, wanted.trace.hidden[layer][position]) <= EXACT, (layer, position)


def test_one_shot_equals_token_by_token_bit_for_bit(exact_case) -> None:
    _, model, ids = exact_case
    seen = Seen()
    with rt.Engine(model, context=len(ids), **EXACT_MODE) as engine:
        engine.observe(seen.note)
        engine.prefill(ids)
        one_shot = engine.logits.copy()
    steps = run_token_by_token(model, ids, **EXACT_MODE)
    assert one_shot.tobytes() == steps.logits[-1].tobytes()
    assert seen.selected == steps.selected and seen.routes == steps.routes
    assert all(seen.hidden[at].tobytes() == steps.hidden[at].tobytes() for at in steps.hidden)


@pytest.mark.parametrize("top_k", TOP_K)
def test_every_split_in_two_equals_one_shot_bit_for_bit(make: Make, top_k: int) -> None:
    with rt.Model.open(make("tiny", mix="f32", changes={"index_top_k": top_k})) as model:
        ids = prompt(min(prompt_length(top_k), 48), model.shape.vocab)
        wanted = run_pieces(model, ids, [len(ids)], **EXACT_MODE)
        for first in range(1, len(ids)):
            got = run_pieces(model, ids, [first, len(ids) - first], **EXACT_MODE)
            assert got.tobytes() == wanted.tobytes(), first


@pytest.mark.parametrize(("top_k", "length"), [(2, 12), (8, 18), (32, 36)])
def test_every_split_in_two_of_the_real_head_geometry(make: Make, top_k: int, length: int) -> None:
    with rt.Model.open(make("realgeom", mix="f32", changes={"index_top_k": top_k})) as model:
        ids = prompt(length, model.shape.vocab)
        wanted = run_pieces(model, ids, [length], **EXACT_MODE)
        for first in range(1, length):
            got = run_pieces(model, ids, [first, length - first], **EXACT_MODE)
            assert got.tobytes() == wanted.tobytes(), first


@pytest.mark.parametrize("quality", [True, False], ids=["quality", "default"])
@pytest.mark.parametrize("kv_type", ["f32", "f16"])
def test_batch_size_and_thread_count_change_no_bit(tiny: rt.Model, quality: bool, kv_type: str) -> None:
    ids = prompt(40, tiny.shape.vocab)
    modes = {"quality": quality, "kv_type": kv_type}
    wanted = run_pieces(tiny, ids, [40], **modes)
    for chunk_rows in (1, 2, 7, 8, 9, 39):
        assert run_pieces(tiny, ids, [40], chunk_rows=chunk_rows, **modes).tobytes() == wanted.tobytes()
    for threads in (1, 3, 4):
        assert run_pieces(tiny, ids, [40], threads=threads, **modes).tobytes() == wanted.tobytes()


def test_slices_of_the_score_buffer_change_no_bit(micro: rt.Model) -> None:
    """At the longest context the scores of a batch do not fit the buffer at once: 64 rows of 4 MiB do."""
    ids = prompt(150, micro.shape.vocab)
    wanted = run_pieces(micro, ids, [150], **EXACT_MODE)
    with rt.Engine(micro, context=micro.shape.context_max, **EXACT_MODE) as engine:
        assert engine.plan.activations < (256 << 20) + (16 << 20)
        engine.prefill(ids)
        assert engine.logits.tobytes() == wanted.tobytes()


def first_difference(seen: Seen, wanted: Expected) -> tuple[int, float]:
    """Position of the first choice that falls differently, and by how much the reference made it: the gap between
    the last chosen and the first not, over the size of what was compared. (number of tokens, 0) if there is none."""
    trace = wanted.trace
    for position in range(len(wanted.ids)):
        for layer in range(len(trace.hidden)):
            if layer in trace.index_gaps:
                chosen = set(np.nonzero(trace.selected[layer][position])[0].tolist())
                if chosen != seen.selected[layer, position]:
                    scores = trace.index_scores[layer][position, : position + 1]
                    return position, trace.index_gaps[layer][position] / np.sqrt(np.mean(scores**2))
            if layer in trace.route_ids and set(trace.route_ids[layer][position]) != seen.routes[layer, position]:
                return position, trace.route_gaps[layer][position]
    return len(wanted.ids), 0.0


def test_half_precision_cache_equals_the_reference_with_rounded_caches(exact_case, expected) -> None:
    path, model, ids = exact_case
    seen = run_token_by_token(model, ids, quality=True, kv_type="f16")
    wanted = expected(path, ids, Options(kv_f16="post"))
    same, gap = first_difference(seen, wanted)
    worst = max(relative_rms(seen.logits[t], wanted.logits[t]) for t in range(same))
    first = np.stack([seen.hidden[0, position] for position in range(len(ids))])
    print(f"figures: {path.parent.name}, f16 cache: choices equal up to {same} of {len(ids)} (gap {gap:.1e}),", end=" ")
    print(f"logits until then {worst:.1e}, first layer {relative_rms(first, wanted.trace.hidden[0]):.1e}")
    assert same >= len(ids) // 5 and gap <= HALF_CLOSE
    assert worst <= HALF_CACHE
    off = relative_rms(first, wanted.trace.hidden[0])
    assert off <= HALF_FIRST_LAYER
    for other in ("none", "pre"):  # no rounding, or rounding before the key is rotated: several times as far off
        assert relative_rms(first, expected(path, ids, Options(kv_f16=other)).trace.hidden[0]) > 4 * off


MIXES = ["q8_0", "q4_k+q3_k", "q2_k+iq2_xxs", "q5_k+q6_k", "iq3+iq4", "mxfp4", "iq1+iq2", "legacy", "ud-q2", "zoo"]


@pytest.mark.parametrize("mix", MIXES)
def test_quantised_files_equal_the_reference_on_dequantised_weights(make: Make, expected, mix: str) -> None:
    path = make("tiny", mix=mix, changes={"index_top_k": 8})
    with rt.Model.open(path) as model:
        ids = prompt(24, model.shape.vocab)
        wanted = expected(path, ids)
        seen = run_token_by_token(model, ids, **EXACT_MODE)
    figure = worst_position(seen, wanted)
    print(f"figures: mix {mix}: {figure:.1e}")
    assert_decisions_equal(seen, wanted)
    assert figure <= QUANTISED


@pytest.mark.parametrize("preset", ["ties", "allfull", "micro"])
def test_other_geometries_equal_the_reference(make: Make, expected, preset: str) -> None:
    """Four index heads make scores tie at zero; GLM-5 and 5.1 have an indexer in every layer."""
    path = make(preset, mix="f32", changes={"index_top_k": 8})
    with rt.Model.open(path) as model:
        ids = prompt(40, model.shape.vocab)
        wanted = expected(path, ids)
        seen = run_token_by_token(model, ids, **EXACT_MODE)
        assert preset != "allfull" or model.full_indexer_layers == tuple(range(model.shape.layers))
    assert_decisions_equal(seen, wanted)
    assert worst_position(seen, wanted) <= EXACT


OPTIONAL = {
    "indexers copied to shared layers": {"indexer_everywhere": True},
    "indexer.types as integers": {"types_as": "int"},
    "indexer.types as strings": {"types_as": "string"},
    "no indexer.types": {"types_as": "none"},
    "no MTP block": {"mtp": False},
    "no gating key": {"gating_key": False},
    "split in four": {"split": 4},
    "split with an empty first file": {"split": 3, "split_empty_first": True},
}


@pytest.mark.parametrize("what", OPTIONAL)
def test_what_is_optional_in_a_file_changes_no_bit(make: Make, what: str) -> None:
    ids = prompt(20, 400)
    results = []
    for options in ({}, OPTIONAL[what]):
        with rt.Model.open(make("micro", **options)) as model:
            results.append(run_pieces(model, ids, [20], **EXACT_MODE))
    assert results[0].tobytes() == results[1].tobytes()


def test_a_tied_output_is_the_embedding(make: Make, expected) -> None:
    path = make("micro", mix="f32", tied=True)
    with rt.Model.open(path) as model:
        ids = prompt(20, model.shape.vocab)
        assert "output.weight" not in {tensor.name for tensor in model.tensors}
        assert relative_rms(run_pieces(model, ids, [20], **EXACT_MODE), expected(path, ids).logits[-1]) <= EXACT


# Each of these was a mistake of some runtime. A test that could not tell them apart would prove nothing.
MISTAKES = {
    "indexer reads the raw residual": Options(indexer_input="raw"),
    "indexer rotates halves, not pairs": Options(indexer_rope="half"),
    "no selection at all": Options(select="dense"),
    "no ReLU in the indexer": Options(relu=False),
    "router ignores its bias": Options(router_bias=False),
    "bias in the routing weights": Options(biased_weights=True),
    "no shared expert": Options(shared_expert=False),
    "another eps in the latent norms": Options(latent_epsilon=1e-3),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_model_is_far_outside_the_tolerance(make: Make, expected, mistake: str) -> None:
    path = make("tiny", mix="f32", changes={"index_top_k": 8})
    with rt.Model.open(path) as model:
        ids = prompt(48, model.shape.vocab)
        seen = run_token_by_token(model, ids, **EXACT_MODE)
    assert worst_position(seen, expected(path, ids, MISTAKES[mistake])) > 100 * EXACT


# Recorded from float32 runs of transformers, which differ from float64 by up to 5.8e-6 themselves.
TRANSFORMERS = 2e-5


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("count", COUNTS)
def test_logits_selections_and_routes_equal_those_of_transformers(make: Make, preset: str, count: int) -> None:
    case = Recorded(preset).case(count)
    with rt.Model.open(make(preset, mix=Recorded.MIX)) as model:
        seen = Seen()
        with rt.Engine(model, context=count, latent_epsilon=LATENT_EPSILON, **EXACT_MODE) as engine:
            engine.observe(seen.note)
            for row in range(count):
                engine.eval(case.ids[row])
                seen.logits.append(engine.logits.copy())
    figure = max(relative_rms(seen.logits[row], want) for row, want in zip(case.rows, case.logits, strict=True))
    print(f"figures: transformers, {preset}, {count} tokens: {figure:.1e}")
    assert [int(logits.argmax()) for logits in seen.logits] == case.argmax.tolist()
    for position in range(count):
        for layer, selected in case.selected.items():
            assert seen.selected[layer, position] == set(np.nonzero(selected[position])[0].tolist())
        for layer, routes in case.route_ids.items():
            assert seen.routes[layer, position] == set(routes[position].tolist())
    assert figure <= TRANSFORMERS


def test_latent_epsilon_is_an_option(make: Make, expected) -> None:
    path = make("tiny", mix="f32", changes={"index_top_k": 8})
    with rt.Model.open(path) as model:
        ids = prompt(48, model.shape.vocab)
        seen = run_token_by_token(model, ids, latent_epsilon=1e-6, **EXACT_MODE)
    wanted = expected(path, ids, Options(latent_epsilon=1e-6))
    assert_decisions_equal(seen, wanted)
    assert worst_position(seen, wanted) <= EXACT
