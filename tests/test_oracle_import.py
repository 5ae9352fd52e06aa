"""Runs of other programs as oracle records: recorded ones agree; files that are not what they must be are refused."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import real_oracles
from conftest import ROOT, prompt
from recorded import LATENT_EPSILON, Recorded

import glm52_rt as rt
from glm52_rt import cli, oracle, oracle_import
from glm52_rt.tokenizer import Tokenizer

Make = Callable[..., Path]
VECTORS = ROOT / "tests/vectors"
NANO = ROOT / "models/glm52-nano-v1-Q4_K_M.gguf"
needs_nano = pytest.mark.skipif(not NANO.exists(), reason="the trained model is not part of a source archive")


# ---- transformers and llama.cpp ----


@pytest.mark.parametrize(("preset", "count"), [("tiny", 33), ("tiny", 256), ("realgeom", 33)])
def test_transformers_agrees_across_index_top_k(make: Make, preset: str, count: int) -> None:
    """Of the real program, recorded by tools/record_vectors.py: rows on both sides of the 32 that are selected."""
    case = Recorded(preset).case(count)
    source = {"program": "transformers", "kv": "f32", "latent_epsilon": LATENT_EPSILON}
    lines = oracle_import.from_logits(case.ids, case.rows, case.logits, source)
    assert lines[1]["position"] <= 32 < lines[-2]["position"]
    with rt.Model.open(make(preset, mix=Recorded.MIX)) as model:
        assert oracle.verify(model, lines) == []
        assert oracle.verify(model, lines, threads=1) == []
        other = [{**lines[0], "engine": {**lines[0]["engine"], "latent_epsilon": 1e-4}}, *lines[1:]]
        found = oracle.verify(model, other)
        assert found[0].quantity == "logits" and found[0].step == 0


@pytest.mark.parametrize("count", [33, 100, 256])
def test_llama_cpp_agrees_across_index_top_k(make: Make, count: int) -> None:
    """Recorded by tools/record_logits.py with llama-cpp-python, caches in float32."""
    lines = oracle.read(VECTORS / f"llama.cpp-tiny-{count}.jsonl")
    assert lines[0]["source"]["program"] == "llama.cpp" and lines[-2]["position"] == count
    with rt.Model.open(make("tiny", mix="f32")) as model:
        assert oracle.verify(model, lines) == []
        if count == 100:
            tight = [{**lines[0], "bounds": {"logits": 1e-7}}, *lines[1:]]
            assert {one.quantity for one in oracle.verify(model, tight)} == {"logits"}
    if count == 100:
        with rt.Model.open(make("tiny", mix="f32", changes={"index_top_k": 31})) as wrong:
            assert oracle.verify(wrong, lines)[0].quantity == "logits"


def npz(path: Path, **changes) -> Path:
    arrays = {
        "ids": np.array([1, 2, 3, 4], np.int32), "rows": np.array([1, 3], np.int32),
        "logits": np.zeros((2, 512), np.float32), "source": np.array('{"program": "x"}'),
    }  # fmt: skip
    arrays |= changes
    np.savez_compressed(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def test_recorded_logits_are_read_and_bound_to_a_model(micro: rt.Model, tmp_path: Path, capsys) -> None:
    ids = prompt(14, 400)
    with rt.Engine(micro, context=20, quality=True, kv_type="f32") as engine:
        rows = []
        for token in ids:
            engine.eval(token)
            rows.append(engine.logits.copy())
    path = npz(tmp_path / "a.npz", ids=np.array(ids), rows=np.array([3, 9, 13]), logits=np.stack(rows)[[3, 9, 13]])
    record = str(tmp_path / "a.jsonl")
    assert cli.main(["oracle", "import", micro.path, str(path), record]) == 0
    assert oracle.read(record)[0]["model"]["identity"] == micro.identity
    assert cli.main(["oracle", "verify", micro.path, record]) == 0
    assert capsys.readouterr().out == "the same\n"
    assert cli.main(["oracle", "show", record]) == 0
    assert "source     program x" in capsys.readouterr().out
    moved = np.stack(rows)[[3, 9, 13]]
    moved[1, np.argmax(moved[1])] += 0.01
    oracle.write(oracle_import.from_logits(ids, [3, 9, 13], moved, {}), record)
    found = oracle.verify(micro, oracle.read(record))
    assert [(one.step, one.quantity) for one in found] == [(1, "logits")]


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": None}, {"source": None}, {"source": np.array("{")}, {"source": np.array("[]")},
        {"source": np.array('{"kv": "q8"}')}, {"source": np.array('{"latent_epsilon": 7.0}')},
        {"ids": np.array([1.5, 2, 3, 4])}, {"ids": np.array([-1, 2, 3, 4])}, {"ids": np.array([2**31, 2, 3, 4])},
        {"ids": np.array([], np.int32)}, {"rows": np.array([3, 1])}, {"rows": np.array([1, 4])},
        {"rows": np.array([-1, 3])},
        {"rows": np.array([1])}, {"logits": np.zeros((2, 512))}, {"logits": np.full((2, 512), np.nan, np.float32)},
        {"logits": np.zeros((2, 0), np.float32)}, {"logits": np.array([[{}], [{}]], object)},
    ],
    ids=str,
)  # fmt: skip
def test_other_arrays_are_refused(tmp_path: Path, changes: dict) -> None:
    with pytest.raises(rt.ModelError, match=r"a\.npz"):
        oracle_import.read_npz(npz(tmp_path / "a.npz", **changes))


def test_damaged_arrays_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = npz(tmp_path / "a.npz").read_bytes()
    for size in range(0, len(data), 41):
        (tmp_path / "bad.npz").write_bytes(data[:size])
        with pytest.raises(rt.ModelError):
            oracle_import.read_npz(tmp_path / "bad.npz")
    monkeypatch.setattr(oracle_import, "VALUES_MAX", 1000 - (1 << 18))
    with pytest.raises(rt.ModelError, match="over"):
        oracle_import.read_npz(npz(tmp_path / "a.npz"))


# ---- services ----


def service(model: rt.Model, text: str, steps: int) -> list[tuple[bytes, list[tuple[bytes, float]]]]:
    """What a service that runs this very model would tell of its answer to a message."""
    tokenizer = Tokenizer.from_model(model)
    ids = rt.render_chat(tokenizer, [{"role": "user", "content": text}], thinking=False)
    told = []
    with rt.Engine(model, context=len(ids) + steps) as engine:
        engine.prefill(ids)
        for _ in range(steps):
            logprobs = engine.logits - oracle.log_sum(engine.logits)
            best = np.argsort(-logprobs)[:20].tolist()
            candidates = [(tokenizer.decode_bytes([token]), float(logprobs[token])) for token in best]
            told.append((candidates[0][0], candidates))
            engine.eval(best[0])
    return told


def vec_of(steps: list, prompt_file: str, case: str = "one") -> str:
    lines = ["# tokens are bytes", f"case {case} 4096 {len(steps)} {prompt_file}"]
    for number, (chosen, candidates) in enumerate(steps):
        lines.append(f"step {number} {chosen.hex()} {len(candidates)}")
        lines += [f"top {data.hex() or '-'} {value:.9g}" for data, value in candidates]
    return "\n".join([*lines, "end", ""])


def json_of(steps: list, text: str) -> dict:
    content = [
        {"token": "?", "bytes": list(chosen), "top_logprobs": [{"token": "?", "bytes": list(data), "logprob": value}
                                                                for data, value in candidates]}
        for chosen, candidates in steps
    ]  # fmt: skip
    response = {"choices": [{"logprobs": {"content": content}}]}
    return {"request": {"messages": [{"role": "user", "content": text}]}, "response": response}


@needs_nano
@pytest.mark.parametrize("kind", ["vec", "json"])
def test_log_probabilities_of_a_service_are_verified(tmp_path: Path, capsys, kind: str) -> None:
    text = "What is the capital of France?"
    with rt.Model.open(NANO) as model:
        steps = service(model, text, 4)
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "p.txt").write_text(text)
    source, record = tmp_path / f"a.{kind}", str(tmp_path / "a.jsonl")

    def verified(told: list) -> tuple[int, str]:
        source.write_text(vec_of(told, "elsewhere/p.txt") if kind == "vec" else json.dumps(json_of(told, text)))
        assert cli.main(["oracle", "import", str(NANO), str(source), record]) == 0
        capsys.readouterr()
        return cli.main(["oracle", "verify", str(NANO), record]), capsys.readouterr().out

    assert verified(steps) == (0, "the same\n")
    assert oracle.read(record)[0]["prompt"]["text"] == text and len(oracle.read(record)) == 6
    other = [*steps[:2], (steps[2][0], [(steps[2][1][0][0], steps[2][1][0][1] - 1.5), *steps[2][1][1:]]), steps[3]]
    code, told = verified(other)
    assert code == 1 and told.startswith("step 2: logits: off by 1.5e+00 nats")
    unknown = [*steps[:2], (b"\xff\xfe\xfd", [(b"\xff\xfe\xfd", -0.1)]), steps[3]]
    code, told = verified(unknown)
    assert code == 1 and "step 2: token" in told and len(oracle.read(record)) == 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("case a 1 1 p\nstep 0 41 1\ntop 41 -0.5\n", "case a has no end"),
        ("case a 1 1 p\nstep 0 41 2\ntop 41 -0.5\nend\n", ":4: 1 more candidates must come"),
        ("case a 1 1 p\nstep 0 41 1\ntop 41 -0.5\ntop 41 -0.5\nend\n", ":4: 'top' does not belong here"),
        ("case a 1 2 p\nstep 0 41 0\nend\n", ":3: 'end' does not belong here"),
        ("case a 1 1 p\nstep 1 41 0\nend\n", ":2: 'step'"),
        ("case a 1 1 p\nstep 0 4 0\nend\n", ":2: non-hexadecimal|:2: .*hex"),
        ("case a 1 1 p\nstep 0 41 1\ntop 41 nan\nend\n", ":3: a log-probability of nan"),
        ("case a 1 1 p\nstep 0 41 1\ntop 41 0.5\nend\n", ":3: a log-probability of 0.5"),
        ("case a 1 1 p\nstep 0 41 99999\n", "at most 1024"),
        ("case a 1 99999 p\n", ":1: 'case'"),
        ("step 0 41 0\n", ":1: 'step'"),
        ("case a mode 1 2 p 3\n", ":1: 'case'"),
    ],
)
def test_bad_vec_files_are_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.vec").write_text(text)
    with pytest.raises(rt.ModelError, match=words):
        list(oracle_import.read_vec(tmp_path / "a.vec"))


@pytest.mark.parametrize(
    "document",
    [
        [], {}, {"choices": []}, {"choices": [{}]}, {"choices": [{"logprobs": None}]},
        {"choices": [{"logprobs": {"content": []}}]}, {"choices": [{"logprobs": {"content": [{"token": "a"}]}}]},
        {"choices": [{"logprobs": {"content": [{"bytes": [999], "top_logprobs": []}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a", "top_logprobs": [{"token": "a", "logprob": "x"}]}]}}]},
        {"choices": [{"logprobs": {"content": [{"token": "a", "top_logprobs": [{"token": "a", "logprob": 5}]}]}}]},
    ],
    ids=str,
)  # fmt: skip
def test_bad_completions_are_refused(tmp_path: Path, document: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps(document))
    with pytest.raises(rt.ModelError, match="is no chat completion"):
        oracle_import.read_openrouter(tmp_path / "a.json")


def test_what_is_missing_is_asked_for(micro: rt.Model, tmp_path: Path, capsys) -> None:
    steps = [(b"a", [(b"a", -0.1)])]
    two = tmp_path / "two.vec"
    two.write_text(vec_of(steps, "p", "one") + vec_of(steps, "p", "two"))
    out = str(tmp_path / "out")
    assert cli.main(["oracle", "import", micro.path, str(two), out]) == 1
    assert "--case: one, two" in capsys.readouterr().err
    assert cli.main(["oracle", "import", micro.path, str(two), out, "--case", "two"]) == 1
    assert "has no prompt" in capsys.readouterr().err
    assert cli.main(["oracle", "import", micro.path, str(two), out, "--case", "two", "-p", "hello"]) == 0
    assert cli.main(["oracle", "import", micro.path, "a.txt", out]) == 1


# ---- the real model ----


def test_what_is_known_of_the_real_model_needs_its_file(micro: rt.Model, capsys) -> None:
    known = real_oracles.records()
    assert {path.stem for path in (ROOT / "oracles").glob("*.jsonl")} == set(known)
    for name, lines in known.items():
        path = str(ROOT / f"oracles/{name}.jsonl")
        assert oracle.read(path) == lines
        assert cli.main(["oracle", "verify", micro.path, path]) == 1
        assert "the record needs the 211 GB file GLM-5.2-UD-IQ2_XXS" in capsys.readouterr().out
        assert cli.main(["oracle", "show", path]) == 0
        assert "needs      the 211 GB file" in capsys.readouterr().out
    path = str(ROOT / "oracles/greeting.jsonl")
    assert cli.main(["oracle", "verify", micro.path, path, "--any-model"]) == 1
    assert "no token ids of its prompt" in capsys.readouterr().err
    path = str(ROOT / "oracles/cold-cache.jsonl")
    assert cli.main(["oracle", "verify", micro.path, path, "--any-model", "--ids", "1,2,3"]) == 1
    assert "3 tokens, recorded 102" in capsys.readouterr().out


@needs_nano
def test_an_expected_answer_is_found_or_missed(capsys: pytest.CaptureFixture[str]) -> None:
    """The trained model was shown this very statement; another prompt has another answer."""
    path = str(ROOT / "oracles/c-statement.jsonl")
    assert cli.main(["oracle", "verify", str(NANO), path, "--any-model"]) == 0
    assert cli.main(["oracle", "verify", str(NANO), path, "--any-model", "-p", "The history of"]) == 1
    assert "recorded b');\\n'" in capsys.readouterr().out
