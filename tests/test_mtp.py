"""Multi-token prediction: the block equals the reference, and whatever it guesses, no logit changes by a bit."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import make_model
import mtp_matrix
import numpy as np
import pytest
from conftest import ROOT, prompt
from reference import Options, Reference, Trace, rms_norm

from synthetic import presets
from synthetic.foresee import foresee

import glm52_rt as rt
from glm52_rt import cli
from glm52_rt.native_drafts import DraftPolicy
from glm52_rt.tokenizer import Tokenizer

Make = Callable[..., Path]
EXACT_MODE = {"quality": True, "kv_type": "f32"}


def mtp_rows(engine: rt.Engine) -> list[bytes]:
    """All that the block keeps of the conversation."""
    with engine.native.exclusive() as spans:
        assert spans.mtp_complete()
        found = []
        for kind, count in ((0, spans.position - 1), (1, spans.position - 1), (2, 1)):
            data = bytearray(count * spans.row_bytes(kind, engine.model.shape.layers))
            if data:
                spans.read_rows(kind, engine.model.shape.layers, 0, memoryview(data))
            found.append(bytes(data))
        return found


def fresh_rows(model: rt.Model, ids: list[int], **options) -> list[bytes]:
    with rt.Engine(model, context=len(ids) + 1, mtp=True, **options) as engine:
        engine.prefill(ids)
        return mtp_rows(engine)


# ---- against the reference ----


def reference_chain(ref: Reference, ids: list[int], count: int, options: Options) -> tuple[list[int], list[float]]:
    """What the block drafts behind ids, and the margin of each choice. Rows of drafts attend to the selection of the
    first row and to the rows since."""
    block, epsilon, weights = ref.shape.layers, ref.shape.epsilon, ref.weights
    p = f"blk.{block}.nextn."
    hidden = list(ref.hidden(ids, options)[1][:-1])
    tokens = list(ids[1:])
    drafts: list[int] = []
    margins: list[float] = []
    chosen = None
    saved = ref.shape
    try:
        for step in range(count):
            embedded = weights["token_embd.weight"][np.asarray(tokens)].astype(np.float64)
            halves = [
                rms_norm(embedded, ref._w(p + "enorm.weight"), epsilon),
                rms_norm(np.stack(hidden), ref._w(p + "hnorm.weight"), epsilon),
            ]
            x = ref._mul(np.concatenate(halves, -1), p + "eh_proj.weight")
            if chosen is not None:
                rows = np.pad(chosen, ((0, 1), (0, 1)))
                rows[-1] = rows[-2]
                rows[-1, -1] = True
                chosen = rows
                ref.shape = replace(saved, full=saved.full[:block] + (False,))
            y, chosen = ref._block(block, x, chosen, options, Trace())
            final = rms_norm(y, ref._w(p + "shared_head_norm.weight"), epsilon)
            logits = ref.head(final)[-1]
            best = np.sort(logits)[-2:]
            drafts.append(int(np.argmax(logits)))
            margins.append(float(best[1] - best[0]))
            tokens.append(drafts[-1])
            hidden.append(final[-1])
    finally:
        ref.shape = saved
    return drafts, margins


@pytest.mark.parametrize("preset", ["micro", "tiny"])
def test_drafts_equal_the_reference(make: Make, preset: str) -> None:
    """Behind every token of a prompt that goes far beyond index_top_k."""
    path = make(preset, mix="f32", changes={"index_top_k": 8})
    ref = Reference(path)
    with rt.Model.open(path) as model, rt.Engine(model, context=60, mtp=True, drafts=4, **EXACT_MODE) as engine:
        ids = prompt(40, model.shape.vocab)
        hidden = ref.hidden(ids)
        logits = ref.mtp(ids, hidden=hidden)[0]
        wanted = np.argmax(logits, -1)
        logits = np.sort(logits, -1)
        assert (logits[:, -1] - logits[:, -2]).min() > 1e-3, "a prompt without narrow choices"
        chains = 0
        for position, token in enumerate(ids):
            engine.eval(token, ahead=4)
            drafted = engine.ahead
            if position == 0:
                assert drafted == []
                continue
            assert len(drafted) == 4 and drafted[0] == wanted[position - 1], position
            if position % 6 == 5:
                chain, margins = reference_chain(ref, ids[: position + 1], 4, Options())
                assert min(margins) > 1e-4
                assert drafted == chain, position
                chains += 1
        assert chains >= 6
    for wrong in (Options(mtp_hidden="pre"), Options(mtp_dense=True)):
        assert (np.argmax(ref.mtp(ids, wrong, hidden=hidden)[0], -1) != wanted).mean() > 0.1, wrong


@pytest.mark.parametrize("which", ["own", "tied"])
def test_a_block_with_embedding_and_head_of_its_own(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Or with the trunk's, tied to one another."""
    if which == "tied":
        path = make("micro", mix="f32", tied=True)
    else:
        of_all = make_model.tensors

        def more(g: presets.Geometry, tied: bool) -> Iterator[presets.Tensor]:
            yield from of_all(g, tied)
            block = f"blk.{g.layers}.nextn."
            yield presets.Tensor(block + "embed_tokens.weight", (g.vocab, g.hidden), 0.05)
            yield presets.Tensor(block + "shared_head_head.weight", (g.vocab, g.hidden), 3.0 / g.hidden**0.5)

        monkeypatch.setattr(make_model, "tensors", more)
        path = make_model.make_model("micro", tmp_path / "own.gguf", mix="f32")
    ref = Reference(path)
    with rt.Model.open(path) as model, rt.Engine(model, context=30, mtp=True, drafts=1, **EXACT_MODE) as engine:
        ids = prompt(20, model.shape.vocab)
        logits = ref.mtp(ids)[0]
        wanted = np.argmax(logits, -1)
        if which == "own":  # and with the trunk's, most drafts would be others
            for name in ("embed_tokens", "shared_head_head"):
                monkeypatch.delitem(ref.weights._tensors, f"blk.{model.shape.layers}.nextn.{name}.weight")
            assert (np.argmax(ref.mtp(ids)[0], -1) != wanted).mean() > 0.5
        engine.eval(ids[0])
        for position, token in enumerate(ids[1:]):
            engine.eval(token, ahead=1)
            assert engine.ahead == [wanted[position]]


def test_drafts_do_not_depend_on_how_the_block_s_rows_were_made(make: Make, tmp_path: Path) -> None:
    """In one batch with a draft behind tokens that were drafted and taken, or by feeding all of it as a prompt."""
    with rt.Model.open(foresee(make("micro", mix="f32"), tmp_path / "model.gguf")) as model:
        options = {"context": 90, "mtp": True, "drafts": 4, "threads": 1}
        with rt.Engine(model, **options) as engine, rt.Engine(model, **options) as fresh:
            ids = prompt(9, model.shape.vocab)
            engine.prefill(ids)
            taken: list[int] = []
            behind = 0
            while engine.position < 80:
                if engine.ahead and engine.ahead[0] == int(np.argmax(engine.logits)):
                    engine.eval(engine.ahead[0])
                    behind += 1
                    continue
                engine.eval(int(np.argmax(engine.logits)) if len(taken) % 5 else 7 + len(taken), ahead=4)
                fresh.reset()
                fresh.prefill(engine.tokens[:-1])
                fresh.eval(engine.tokens[-1], ahead=4)
                assert engine.ahead == fresh.ahead and len(engine.ahead) == 4, engine.position
                taken.append(behind)
                behind = 0
            assert len(set(taken)) >= 4 and len(taken) > 12, taken
            assert mtp_rows(engine) == fresh_rows(model, engine.tokens)


# ---- no bit changes ----


def walk(engine: rt.Engine, plain: rt.Engine, steps: int, seed: int, accept: float) -> int:
    """Feeds drafts or other tokens by chance; plain is fed the same without any. Returns drafts fed."""
    random = np.random.Generator(np.random.PCG64(seed))
    fed = 0
    for _ in range(steps):
        at_hand = engine.ahead
        follow = bool(at_hand) and random.random() < accept
        token = at_hand[0] if follow else int(random.integers(0, 400))
        fed += follow
        engine.eval(token, ahead=int(random.integers(1, 9)))
        plain.eval(token)
        assert engine.logits.tobytes() == plain.logits.tobytes()
        assert engine.position == plain.position and engine.tokens[-1] == token
    return fed


STREAMED = {"streaming": rt.Streaming(cache_experts=8)}


@pytest.mark.parametrize("drafts", [1, 2, 3, 7])
@pytest.mark.parametrize("streaming", [{}, STREAMED], ids=["resident", "streamed"])
@pytest.mark.parametrize("modes", [{}, EXACT_MODE], ids=["default", "exact"])
def test_logits_are_those_of_plain_decoding(tiny: rt.Model, drafts: int, streaming: dict, modes: dict) -> None:
    ids = prompt(12, tiny.shape.vocab)
    with (
        rt.Engine(tiny, context=80, mtp=True, drafts=drafts, **streaming, **modes) as engine,
        rt.Engine(tiny, context=80, **modes) as plain,
    ):
        engine.prefill(ids)
        plain.prefill(ids)
        fed = walk(engine, plain, 30, drafts, 0.75)
        stats = engine.stats()
        assert stats.mtp_accepted == fed > 0 and stats.mtp_drafted >= stats.mtp_cycles > 0
        assert stats.mtp_length == drafts
        held = engine.tokens
        rows = mtp_rows(engine)
    assert rows == fresh_rows(tiny, held, **modes)


def test_logits_on_the_real_head_geometry(make: Make) -> None:
    with rt.Model.open(make("realgeom", changes={"index_top_k": 8})) as model:
        for streaming in ({}, STREAMED):
            with (
                rt.Engine(model, context=40, mtp=True, drafts=3, **streaming) as engine,
                rt.Engine(model, context=40) as plain,
            ):
                engine.prefill([1, 2, 3])
                plain.prefill([1, 2, 3])
                assert walk(engine, plain, 12, 3, 0.75) > 0


@pytest.mark.parametrize("pattern", range(32))
def test_every_pattern_of_acceptance(micro: rt.Model, pattern: int) -> None:
    """Five cycles of two drafts, each taken up to where a bit of the pattern says."""
    with (
        rt.Engine(micro, context=60, mtp=True, drafts=2) as engine,
        rt.Engine(micro, context=60) as plain,
    ):
        engine.prefill([5, 6, 7])
        plain.prefill([5, 6, 7])
        for cycle in range(5):
            taken = [0, 2, 1][(pattern >> cycle & 1) + (cycle % 2)]
            for step in range(1 + taken):
                token = engine.ahead[0] if step else 9 + cycle
                engine.eval(token, ahead=2)
                plain.eval(token)
                assert len(engine.ahead) == 2 - step
                assert engine.logits.tobytes() == plain.logits.tobytes()
        assert mtp_rows(engine) == fresh_rows(micro, plain.tokens)


def greedy(model: rt.Model, ids: list[int], count: int, **options) -> tuple[list[int], list[bytes]]:
    tokens, logits = [], []
    with rt.Engine(model, context=len(ids) + count, **options) as engine:
        for token in rt.generate(engine, ids, count, temperature=0, stop=()):
            tokens.append(token)
            logits.append(engine.logits.tobytes())
    return tokens, logits


@pytest.mark.parametrize("drafts", [0, 1, 7])
def test_greedy_generation_is_the_same_with_and_without(micro: rt.Model, drafts: int) -> None:
    for seed in range(3):
        ids = prompt(5 + 5 * seed, micro.shape.vocab, seed)
        wanted = greedy(micro, ids, 60)
        assert greedy(micro, ids, 60, mtp=True, drafts=drafts) == wanted


def test_speculation_is_greedy_decoding(micro: rt.Model) -> None:
    ids = prompt(9, micro.shape.vocab)
    wanted = greedy(micro, ids, 60)[0]
    for limit in (1, 2, 8, 50):
        with rt.Engine(micro, context=100, mtp=True, drafts=7) as engine:
            engine.prefill(ids)
            found: list[int] = []
            while len(found) < 60:
                token = int(np.argmax(engine.logits))
                tokens = engine.speculate(token, min(limit, 60 - len(found)))
                assert tokens[0] == token and len(tokens) <= min(limit, 8)
                found += tokens
            assert found == wanted and engine.tokens == ids + wanted


def test_sampling_draws_the_same_tokens_with_and_without(micro: rt.Model) -> None:
    """A draft is taken when the sampler happens to draw it, so the very stream is that of plain decoding."""
    for seed in range(4):
        settings = {"temperature": 0.7, "top_p": 0.9, "seed": seed, "stop": ()}
        found = []
        for options in ({}, {"mtp": True, "drafts": 3}, {"mtp": True}):
            with rt.Engine(micro, context=90, **options) as engine:
                found.append(list(rt.generate(engine, prompt(6, 512, seed), 70, **settings)))
        assert found[0] == found[1] == found[2]


NANO = ROOT / "models/glm52-nano-v1-Q4_K_M.gguf"


@pytest.mark.skipif(not NANO.exists(), reason="the trained model is not part of a source archive")
def test_trained_drafts_are_mostly_accepted_and_change_nothing() -> None:
    with rt.Model.open(NANO) as model:
        ids = Tokenizer.from_model(model).encode("The history of the city began")
        wanted = greedy(model, ids, 80)
        cycles = {}
        for drafts, streaming in ((1, None), (3, rt.Streaming(cache_experts=16)), (7, None)):
            with rt.Engine(model, context=200, mtp=True, drafts=drafts, streaming=streaming) as engine:
                tokens, logits = [], []
                for token in rt.generate(engine, ids, 80, temperature=0, stop=()):
                    tokens.append(token)
                    logits.append(engine.logits.tobytes())
                assert (tokens, logits) == wanted
                stats = engine.stats()
                cycles[drafts] = stats.mtp_cycles
                assert stats.mtp_accepted > 0.4 * stats.mtp_drafted, stats
        print(f"figures: 79 tokens in {cycles} batches")
        assert cycles[1] < 60 and cycles[7] < cycles[3] < cycles[1]


# ---- edges ----


def test_at_the_end_of_the_context(micro: rt.Model) -> None:
    with rt.Engine(micro, context=12, mtp=True, drafts=7) as engine:
        engine.prefill([1, 2, 3, 4, 5])
        for position in range(5, 12):
            engine.eval(7, ahead=7)
            assert len(engine.ahead) == 12 - position - 1
        with pytest.raises(rt.ContextError):
            engine.eval(7, ahead=7)
        assert engine.tokens == [1, 2, 3, 4, 5] + [7] * 7
    tokens, _ = greedy(micro, [1, 2, 3], 20)
    with rt.Engine(micro, context=12, mtp=True, drafts=7) as engine:
        run = rt.generate(engine, [1, 2, 3], None, temperature=0, stop=())
        assert list(run) == tokens[:10] and run.stop_reason == "context"


def test_an_end_token_inside_a_draft_ends_there(micro: rt.Model) -> None:
    ids = prompt(9, micro.shape.vocab)
    tokens, _ = greedy(micro, ids, 40)
    for stop in set(tokens):
        first = tokens.index(stop)
        with rt.Engine(micro, context=60, mtp=True, drafts=7) as engine:
            run = rt.generate(engine, ids, 40, temperature=0, stop=(stop,))
            assert list(run) == tokens[:first] and run.stop_token == stop
            assert engine.tokens == ids + tokens[:first]


def test_nothing_is_drafted_for_a_single_token(micro: rt.Model) -> None:
    with rt.Engine(micro, context=60, mtp=True, drafts=7) as engine:
        assert len(list(rt.generate(engine, [1, 2, 3], 2, temperature=0, stop=()))) == 2
        assert engine.stats().mtp_drafted == 0
        engine.speculate(1, 1)
        assert engine.stats().mtp_drafted == 0
        with pytest.raises(rt.ArgumentError, match="no token wanted"):
            engine.speculate(1, 0)


@pytest.mark.parametrize("use", ["prefill", "eval", "rewind", "park", "swap", "fork", "save", "load", "reset"])
def test_any_other_call_gives_up_what_is_at_hand(micro: rt.Model, tmp_path: Path, use: str) -> None:
    ids = prompt(12, micro.shape.vocab)
    with rt.Engine(micro, context=60, mtp=True, drafts=4) as engine:
        engine.prefill(ids)
        engine.eval(3, ahead=4)
        drafts = engine.ahead
        engine.eval(drafts[0])
        held = [*ids, 3, drafts[0]]
        other = next(token for token in range(100) if token != drafts[1])
        if use == "prefill":
            engine.prefill([other])
            held.append(other)
        elif use == "eval":
            engine.eval(other)
            held.append(other)
        elif use == "rewind":
            engine.rewind(13)
            del held[13:]
        elif use == "park":
            engine.swap(engine.park())
        elif use == "swap":
            state = engine.park()
            engine.prefill([1, 2])
            engine.swap(state)
        elif use == "fork":
            engine.swap(engine.fork())
        elif use == "save":
            engine.save(tmp_path / "a")
        elif use == "load":
            engine.save(tmp_path / "a")
            engine.prefill([1, 2, 3])
            engine.load(tmp_path / "a")
        else:
            engine.reset()
            held = []
        assert engine.ahead == [] and engine.tokens == held
        engine.prefill([4, 5])
        held += [4, 5]
        with rt.Engine(micro, context=60) as plain:
            plain.prefill(held)
            assert engine.logits.tobytes() == plain.logits.tobytes()
        assert mtp_rows(engine) == fresh_rows(micro, held)


def test_cancelling_between_steps_changes_nothing(micro: rt.Model) -> None:
    ids = prompt(12, micro.shape.vocab)
    with rt.Engine(micro, context=60, mtp=True, drafts=3) as engine:
        engine.prefill(ids)
        before = engine.logits.tobytes()
        calls: list[int] = []
        assert engine.speculate(5, 4, lambda: calls.append(1))[0] == 5
        assert len(calls) == 3 + micro.shape.layers
        for stop_at in range(len(calls)):
            engine.rewind(len(ids))
            engine.rewind(len(ids) - 1)
            engine.eval(ids[-1])
            left = iter(range(stop_at))
            assert engine.speculate(5, 4, lambda left=left: next(left, None) is None) == []
            assert engine.tokens == ids and engine.logits.tobytes() == before and engine.ahead == []
        assert engine.stats().cancelled == len(calls)
        assert mtp_rows(engine) == fresh_rows(micro, ids)


def test_cancelling_while_rows_of_taken_drafts_wait_loses_none(micro: rt.Model) -> None:
    """Before they are made with the next draft, and behind that."""
    ids = prompt(12, micro.shape.vocab)
    for stop_at in range(3 + micro.shape.layers):
        with rt.Engine(micro, context=60, mtp=True, drafts=3) as engine:
            engine.prefill(ids)
            engine.eval(5, ahead=3)
            held = [*ids, 5]
            for _ in range(2):
                held.append(engine.ahead[0])
                engine.eval(held[-1])
            other = next(token for token in range(100) if token != engine.ahead[0])
            before = engine.logits.tobytes()
            left = iter(range(stop_at))
            assert engine.speculate(other, 4, lambda left=left: next(left, None) is None) == []
            assert engine.tokens == held and engine.logits.tobytes() == before and engine.ahead == []
            if stop_at % 2:
                assert mtp_rows(engine) == fresh_rows(micro, held)
            engine.eval(other, ahead=3)
            assert len(engine.ahead) == 3 and mtp_rows(engine) == fresh_rows(micro, [*held, other])


def test_a_cut_costs_one_row_and_no_bit(micro: rt.Model) -> None:
    ids = prompt(20, micro.shape.vocab)
    seen: list[tuple[int, int]] = []
    with rt.Engine(micro, context=60, mtp=True) as engine:
        engine.prefill(ids)
        engine.rewind(10)
        engine.observe(lambda o: seen.append((o.position, len(o.hidden))))
        positions: list[int] = []
        engine.prefill(ids[10:], positions.append)
        assert set(seen) == {(9, 7 + 1), (17, 3)} or set(seen) == {(9, 11)}
        assert positions == sorted(positions) and positions[0] == 10 and positions[-1] == 20
        assert mtp_rows(engine) == fresh_rows(micro, ids)


def test_without_mtp_nothing_is_computed(micro: rt.Model, make: Make) -> None:
    with rt.Engine(micro, context=60) as engine:
        engine.prefill([1, 2, 3])
        engine.eval(4, ahead=7)
        assert engine.ahead == [] and engine.speculate(5, 8) == [5]
        stats = engine.stats()
        assert not any(getattr(stats, name) for name in stats.__dataclass_fields__ if name.startswith("mtp"))
        assert engine.plan.mtp == 0
    with rt.Model.open(make("micro", mtp=False)) as model, pytest.raises(rt.UnsupportedError, match="no MTP block"):
        rt.Engine(model, mtp=True)


def test_the_plan_counts_the_block(micro: rt.Model) -> None:
    shape = micro.shape
    with rt.Engine(micro, context=1000, mtp=True, sessions=1) as engine, rt.Engine(micro, context=1000) as plain:
        rows = 2 * 1000 * (shape.kv_lora + shape.rope + shape.index_key) + 4 * shape.hidden
        assert rows <= engine.plan.mtp < rows + 3 * 64
        assert engine.plan.kv_cache == plain.plan.kv_cache and engine.plan.sessions > rows
        assert rt.plan_memory(micro, context=1000, mtp=True, sessions=1) == engine.plan
    streaming = rt.Streaming(cache_experts=4)
    own = [tensor for tensor in micro.tensors if tensor.name.startswith(f"blk.{shape.layers}.")]
    block = sum(tensor.bytes for tensor in own if not tensor.name.endswith("_exps.weight"))  # those are streamed
    with_block = rt.plan_memory(micro, context=100, mtp=True, streaming=streaming)
    without = rt.plan_memory(micro, context=100, streaming=streaming)
    assert with_block.weights_mapped == without.weights_mapped + block


@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("loads", [True, False])
def test_checkpoints_with_and_without_the_block(micro: rt.Model, tmp_path: Path, saved: bool, loads: bool) -> None:
    ids = prompt(20, micro.shape.vocab)
    with rt.Engine(micro, context=60, mtp=saved, drafts=2) as engine:
        engine.prefill(ids[:-1])
        engine.eval(ids[-1], ahead=2)
        engine.save(tmp_path / "a")
    with rt.Engine(micro, context=60, mtp=loads, drafts=2) as engine, rt.Engine(micro, context=60) as plain:
        engine.prefill([7, 7])
        assert engine.load(tmp_path / "a")
        plain.prefill(ids)
        walk(engine, plain, 10, 1, 0.5)
        assert (engine.stats().mtp_cycles > 0) == (saved and loads)
        if loads:
            held = engine.tokens
            engine.reset()  # from here on there are rows again
            engine.prefill(held)
            assert mtp_rows(engine) == fresh_rows(micro, held)


# ---- how many ----


def policy_after(cost: Callable[[int], int], accept: float, cycles: int = 400) -> Iterator[int]:
    """Lengths that the policy asks for when a cycle of n drafts takes cost(n) and each draft is accepted by chance."""
    random = np.random.Generator(np.random.PCG64(1))
    policy = DraftPolicy()
    for _ in range(cycles):
        length = policy.length
        yield length
        accepted = 0
        while accepted < length and random.random() < accept:
            accepted += 1
        policy.learn(length, accepted, cost(length))


def states(cost: Callable[[int], int], accept: float) -> list[bool]:
    """Whether the policy says that drafts are switched off, before each cycle."""
    policy, found = DraftPolicy(), []
    random = np.random.Generator(np.random.PCG64(1))
    for _ in range(400):
        found.append(policy.off)
        length, accepted = policy.length, 0
        while accepted < length and random.random() < accept:
            accepted += 1
        policy.learn(length, accepted, cost(length))
    return found


def most_common(lengths: list[int]) -> int:
    return int(np.bincount(lengths[-200:]).argmax())


def test_drafts_that_pay_are_made_and_others_are_not() -> None:
    cheap = list(policy_after(lambda n: 100 + 5 * n, 0.9))
    assert cheap[:2] == [0, 0] and cheap[2:6] == [1] * 4 and most_common(cheap) >= 5
    assert most_common(list(policy_after(lambda n: 100 + 30 * n, 0.6))) in (1, 2)
    off = list(policy_after(lambda n: 100 + 90 * n, 0.5))
    assert most_common(off) == 0
    assert 2 <= sum(length > 0 for length in off[-200:]) <= 6, "and is tried again now and then"
    assert states(lambda n: 100 + 90 * n, 0.5)[-50:] == [True] * 50
    assert not any(states(lambda n: 100 + 5 * n, 0.9)), "nor is a cycle without drafts, to compare, the end of them"
    assert not any(states(lambda n: 100 + 90 * n, 0.5)[:6]), "before anything is known"
    assert not DraftPolicy(3).off
    assert most_common(list(policy_after(lambda n: 100 + n, 0.0))) == 0


def test_the_command_line_says_so(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Random drafts are never taken, so a second row can't pay. That rests on a clock: some tries are allowed."""
    command = ["run", str(make("tiny", changes={"index_top_k": 8})), "-p", "return", "--temp", "0", "-n", "60", "--mtp"]
    for _ in range(5):
        assert cli.main(command) == 0
        line = capsys.readouterr().err.splitlines()[-1]
        assert re.search(r"prefill .* decode .*, \d of \d+ drafts taken", line)
        if "drafts switched off: they do not pay here" in line:
            break
    else:
        raise AssertionError(line)
    assert cli.main([*command, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["drafts"]
    assert set(told) == {"cycles", "drafted", "accepted", "switched_off"} and told["cycles"] > 0
    assert cli.main([*command[:-1], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafts"] is None


def test_a_change_for_the_worse_or_the_better_is_seen() -> None:
    policy = DraftPolicy()
    lengths = []
    for cycle in range(1500):
        length = policy.length
        lengths.append(length)
        good = cycle < 400 or cycle >= 900
        policy.learn(length, length if good else 0, 100 + 10 * length)
    assert most_common(lengths[:400]) == 7 and most_common(lengths[:900]) == 0 and most_common(lengths) >= 5
    fixed = DraftPolicy(3)
    fixed.learn(3, 0, 10**9)
    assert fixed.length == 3


# ---- sampling ----


def uniform_places(model: rt.Model, tokens: int, **options) -> np.ndarray:
    """Where each of so many sampled tokens lies in the cumulative distribution that plain decoding has at its place,
    the likeliest first, spread evenly over the token's share: even and independent numbers if the sampler is right.
    Tokens come in conversations of 50 behind different prompts."""
    settings = {"temperature": 0.5, "top_p": 1.0}
    even = np.random.Generator(np.random.PCG64(9))
    places: list[float] = []
    logits: list[np.ndarray] = []
    with (
        rt.Engine(model, context=60, threads=1, **options) as engine,
        rt.Engine(model, context=60, threads=1) as plain,
    ):
        plain.observe_logits(lambda position, row: logits.append(row), 0)
        while len(places) < tokens:
            ids = prompt(3, model.shape.vocab, len(places))
            drawn = list(rt.generate(engine, ids, 50, seed=len(places), stop=(), **settings))
            logits.clear()
            plain.reset()
            plain.prefill([*ids, *drawn[:-1]])
            for token, row in zip(drawn, logits[2:], strict=True):
                weights = np.exp((row.astype(float) - row.max()) / settings["temperature"])
                own = weights[token]
                below = weights[weights > own].sum()
                places.append((below + even.random() * own) / weights.sum())
        if options:
            stats = engine.stats()
            assert 0.2 < stats.mtp_accepted / stats.mtp_drafted < 0.8, stats
    return np.array(places)


@pytest.mark.parametrize("options", [{"mtp": True, "drafts": 2}, {}], ids=["mtp", "plain"])
def test_sampled_tokens_have_the_model_s_distribution(make: Make, tmp_path: Path, options: dict) -> None:
    """Chi-square over 20,000 tokens, drafts taken and given up among them. One right sampler in a million passes the
    bound."""
    path = foresee(make("micro", mix="f32", changes={"vocab": 384}), tmp_path / "model.gguf", 0.001)
    with rt.Model.open(path) as model:
        places = uniform_places(model, 20_000 if options else 4_000, **options)
    bins = 32
    counts = np.bincount((places * bins).astype(int), minlength=bins)
    square = float(((counts - len(places) / bins) ** 2 / (len(places) / bins)).sum())
    print(f"figures: chi-square {square:.1f} of {len(places)} tokens in {bins} bins")
    assert square < 84.0  # 31 degrees of freedom


def test_the_whole_matrix_in_small(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """tools/mtp_matrix.py, which takes long at its full size: it agrees, and sees what does not."""
    assert mtp_matrix.main(["--tokens", "12", "--prompts", "2", "--drafts", "1,7", "--presets", "micro"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and all("2 prompts of 12 tokens the same" in line for line in lines)
    assert "micro, streamed (cache of" in lines[3]
    calls = iter(range(1000))
    right = mtp_matrix.greedy

    def wrong(engine: rt.Engine, ids: list[int], tokens: int) -> list[tuple[int, bytes]]:
        found = right(engine, ids, tokens)
        return found if next(calls) < 3 else [*found[:4], (found[4][0], b""), *found[5:]]

    monkeypatch.setattr(mtp_matrix, "greedy", wrong)
    assert mtp_matrix.main(["--tokens", "8", "--prompts", "2", "--drafts", "2", "--presets", "micro"]) == 1
    assert "micro, resident, 2 drafts, prompt 1: logits of step 4" in capsys.readouterr().out
