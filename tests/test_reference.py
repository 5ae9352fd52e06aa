"""The float64 reference against recorded runs of transformers, and against mistakes that it must notice.

The vectors were recorded by tools/record_vectors.py; how is written in the JSON file beside each.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from make_model import make_model
from recorded import COUNTS, LATENT_EPSILON, Recorded
from reference import Options, Reference, Trace, relative_rms, select_top

# Recorded in float32, whose sums of a few hundred terms err by 1e-6 relative; over nine blocks that adds up
# to a few 1e-6. A wrong formula is off by 1e-2 or more (test_mistake_moves_logits).
FLOAT32_TOLERANCE = 1e-5
OPTIONS = Options(latent_epsilon=LATENT_EPSILON)


class Run:
    """A model with what transformers said about it; the trunk is run once per prompt."""

    def __init__(self, preset: str, path: Path) -> None:
        self.model, self.recorded = Reference(path), Recorded(preset)
        self._known: dict[int, tuple[tuple[np.ndarray, np.ndarray], Trace]] = {}

    def hidden(self, count: int) -> tuple[tuple[np.ndarray, np.ndarray], Trace]:
        if count not in self._known:
            trace = Trace()
            ids = self.recorded.case(count).ids
            self._known[count] = self.model.hidden(ids, OPTIONS, trace), trace
        return self._known[count]


@pytest.fixture(scope="module", params=["tiny", "realgeom"])
def run(request: pytest.FixtureRequest, make: Callable[..., Path]) -> Run:
    return Run(request.param, make(request.param, mix=Recorded.MIX))


def sorted_routes(ids: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    order = ids.argsort(-1)
    return np.take_along_axis(ids, order, -1), np.take_along_axis(weights, order, -1)


def test_weights_are_those_that_transformers_ran(run: Run) -> None:
    assert run.model.weights.digest() == run.recorded.weights_sha256


@pytest.mark.parametrize("count", COUNTS)
def test_reference_is_transformers(run: Run, count: int) -> None:
    model, case = run.model, run.recorded.case(count)
    (_, final), trace = run.hidden(count)
    logits = model.head(final)

    for row, theirs in zip(case.rows, case.logits, strict=True):
        assert relative_rms(theirs, logits[row]) <= FLOAT32_TOLERANCE, f"row {row}"
    assert np.array_equal(case.argmax, logits.argmax(-1))

    assert list(case.selected) == [i for i in range(model.shape.layers) if model.shape.full[i]]
    for layer, selected in case.selected.items():
        assert np.array_equal(selected, trace.selected[layer]), f"layer {layer}"

    assert list(case.route_ids) == list(range(model.shape.dense_layers, model.shape.layers))
    for layer, route_ids in case.route_ids.items():
        ids, weights = sorted_routes(route_ids, case.route_weights[layer])
        own_ids, own_weights = sorted_routes(trace.route_ids[layer], trace.route_weights[layer])
        assert np.array_equal(ids, own_ids), f"layer {layer}"
        assert relative_rms(weights, own_weights) <= FLOAT32_TOLERANCE, f"layer {layer}"


@pytest.mark.parametrize("count", COUNTS)
def test_mtp_is_transformers_layer(run: Run, count: int) -> None:
    case = run.recorded.case(count)
    logits, _ = run.model.mtp(case.ids, OPTIONS, hidden=run.hidden(count)[0])
    for row, theirs in zip(case.mtp_rows, case.mtp_logits, strict=True):
        assert relative_rms(theirs, logits[row]) <= FLOAT32_TOLERANCE, f"row {row}"


# ---- what the reference must notice, on a model of a megabyte whose indexers pick 8 of 40 ----


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(make_model("micro", tmp_path_factory.mktemp("micro") / "micro.gguf", mix="f32"))


IDS = [(17 * i * i + 5 * i + 3) % 450 for i in range(40)]


@pytest.mark.parametrize(
    "mistake",
    [
        Options(indexer_input="raw"),
        Options(indexer_rope="half"),
        Options(select="dense"),
        Options(relu=False),
        Options(router_bias=False),
        Options(biased_weights=True),
        Options(shared_expert=False),
    ],
    ids=lambda mistake: next(f"{name}={getattr(mistake, name)}" for name in vars(mistake)
                             if getattr(mistake, name) != getattr(Options(), name)),
)  # fmt: skip
def test_mistake_moves_logits(small: Reference, mistake: Options) -> None:
    assert relative_rms(small.logits(IDS, mistake), small.logits(IDS)) > 1e-2


@pytest.mark.parametrize("mistake", [Options(mtp_hidden="pre"), Options(mtp_dense=True)])
def test_mistake_moves_drafts(small: Reference, mistake: Options) -> None:
    assert relative_rms(small.mtp(IDS, mistake)[0], small.mtp(IDS)[0]) > 1e-2


def test_indexer_mistakes_are_invisible_below_top_k(small: Reference) -> None:
    """Why vectors must go past index_top_k: below it, a broken indexer changes nothing."""
    few = IDS[: small.shape.index_top_k]
    for mistake in (Options(indexer_input="raw"), Options(indexer_rope="half"), Options(select="dense")):
        assert np.array_equal(small.logits(few, mistake), small.logits(few))


def test_float16_caches_round_and_no_more(small: Reference) -> None:
    """Below index_top_k no decision can flip, so the logits move as much as the rounding: some 1e-4."""
    few = IDS[: small.shape.index_top_k]
    for when in ("post", "pre"):
        assert 1e-6 < relative_rms(small.logits(few, Options(kv_f16=when)), small.logits(few)) < 1e-2


def test_later_tokens_change_nothing(small: Reference) -> None:
    alone = small.logits(IDS[:20])
    assert relative_rms(small.logits(IDS)[:20], alone) < 1e-12


def test_shared_layers_reuse_the_selection_before_them(small: Reference) -> None:
    trace = Trace()
    small.hidden(IDS, trace=trace)
    assert list(trace.index_scores) == [0, 1, 2, 6]
    for layer in (3, 4, 5):
        assert trace.selected[layer] is trace.selected[2]


def test_equal_scores_prefer_the_lower_position() -> None:
    scores = np.array([[0.0, 9, 9, 9], [1, 1, 9, 9], [2, 2, 2, 9], [0, 1, 1, 1]])
    chosen, gaps = select_top(scores, 2)
    assert chosen.tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, True, False, False],
        [False, True, True, False],
    ]
    assert gaps.tolist() == [np.inf, np.inf, 0.0, 0.0]


def test_split_and_tied_models_are_read(small: Reference, tmp_path: Path) -> None:
    split = make_model("micro", tmp_path / "s.gguf", mix="f32", split=3, split_empty_first=True)
    assert np.array_equal(Reference(split).logits(IDS[:9]), small.logits(IDS[:9]))
    tied = Reference(make_model("micro", tmp_path / "t.gguf", mix="f32", tied=True))
    hidden = tied.hidden(IDS[:9])[1]
    assert np.allclose(tied.logits(IDS[:9]), hidden @ tied.weights["token_embd.weight"].T)


@pytest.mark.parametrize("types_as", ["bool", "int", "string", "none"])
def test_indexer_types_are_read_however_written(tmp_path: Path, types_as: str) -> None:
    shape = Reference(make_model("micro", tmp_path / "m.gguf", types_as=types_as)).shape
    assert shape.full == (True, True, True, False, False, False, True, True)


def test_copied_indexers_on_shared_layers_change_nothing(small: Reference, tmp_path: Path) -> None:
    everywhere = Reference(make_model("micro", tmp_path / "m.gguf", mix="f32", indexer_everywhere=True))
    assert "blk.4.indexer.proj.weight" in everywhere.weights
    assert np.array_equal(everywhere.logits(IDS), small.logits(IDS))
    assert relative_rms(everywhere.logits(IDS, Options(select="own")), small.logits(IDS)) > 1e-2
