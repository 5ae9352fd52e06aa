"""The C harness: it passes on what is recorded, and fails on anything else."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import glm52_rt as rt
from glm52_rt import oracle


@pytest.fixture(scope="module")
def harness(root: Path, make: Callable[..., Path]) -> Callable[[str], subprocess.CompletedProcess[str]]:
    program = root / "build/glm52-check"
    if not program.exists():
        pytest.skip("build/glm52-check is made by `make`")

    def run(vectors: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, make("tiny"), vectors], capture_output=True, text=True)

    return run


RECORD = Path(__file__).resolve().parent / "vectors/tiny.txt"


def first_case() -> list[str]:
    lines = [line for line in RECORD.read_text().splitlines() if line and not line.startswith("#")]
    return lines[: lines.index("end") + 1]


def test_recorded_vectors_pass(harness, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("\n".join(first_case()) + "\n")
    done = harness(vectors)
    assert done.returncode == 0 and done.stdout.endswith("1 passed, 0 failed\n"), done.stdout


def edited(change: Callable[[list[str]], list[str]]) -> str:
    """The first case with the words of its first `top` line changed."""
    lines = first_case()
    at = next(i for i, line in enumerate(lines) if line.startswith("top "))
    lines[at] = " ".join(change(lines[at].split()))
    return "\n".join(lines) + "\n"


WRONG = {
    "a logit off by two tolerances": lambda w: [*w[:3], str(float(w[3]) * 1.0003), *w[4:]],
    "another token": lambda w: [*w[:2], str((int(w[2]) + 1) % 2048), *w[3:]],
    "the best token is missing": lambda w: [*w[:2], *w[4:]],
    "a token outside the vocabulary": lambda w: [*w[:2], "2048", *w[3:]],
    "a position behind the prompt": lambda w: [w[0], "16", *w[2:]],
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_record_fails(harness, tmp_path: Path, what: str) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(edited(WRONG[what]))
    done = harness(vectors)
    assert done.returncode == 1 and done.stdout.endswith("0 passed, 1 failed\n"), done.stdout


UNREADABLE = {
    "a word for a number": lambda w: [*w[:2], "x", *w[3:]],
    "a negative position": lambda w: [w[0], "-1", *w[2:]],
    "half a token": lambda w: [*w[:2], "1.5", *w[3:]],
    "no logit": lambda w: w[:3],
    "not a number": lambda w: [w[0], "nan", *w[2:]],
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_an_unreadable_record_is_named(harness, tmp_path: Path, what: str) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text(edited(UNREADABLE[what]))
    done = harness(vectors)
    assert done.returncode == 2 and f"{vectors}:" in done.stderr, done.stdout


# ---- oracle records ----


@pytest.fixture(scope="module")
def check(root: Path, make: Callable[..., Path]) -> Callable[..., subprocess.CompletedProcess[str]]:
    program = root / "build/glm52-check"
    if not program.exists():
        pytest.skip("build/glm52-check is made by `make`")

    def run(*records: Path, preset: str = "micro") -> subprocess.CompletedProcess[str]:
        return subprocess.run([program, make(preset), *records], capture_output=True, text=True)

    return run


@pytest.fixture(scope="module")
def recorded(micro: rt.Model) -> oracle.Record:
    return oracle.record(micro, list(range(3, 25)), 3, chunk_rows=5)


def written(lines: oracle.Record, path: Path) -> Path:
    """A record with these lines, closed anew."""
    oracle.write(oracle.sealed(lines[:-1]), path)
    return path


def test_a_record_is_repeated_without_python(check, recorded: oracle.Record, micro: rt.Model, tmp_path: Path) -> None:
    one = written(recorded, tmp_path / "one")
    two = written(oracle.record(micro, [5, 6, 7], 2, full=True, quality=True, kv_type="f32"), tmp_path / "two")
    done = check(one, two)
    assert done.returncode == 0 and done.stdout.endswith("2 passed, 0 failed\n"), done.stdout + done.stderr
    assert done.stdout.count("bit for bit") == 2
    done = check(one, preset="tiny")
    assert done.returncode == 1 and "needs a model of" in done.stdout


def change(lines: oracle.Record, *place: str | int, to: object) -> oracle.Record:
    """The record with another value at a place of its lines."""
    other = json.loads(json.dumps(lines))
    inner = other
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = to
    return other


@pytest.mark.parametrize(
    ("place", "to", "words"),
    [
        ((2, "layers", 3, "hidden"), "0" * 32, "step 1, layer 3: hidden: other bits"),
        ((3, "layers", 2, "weights"), "0" * 32, "step 2, layer 2: weights: other bits"),
        ((1, "logits"), "0" * 32, "step 0: logits: other bits"),
        ((2, "argmax"), 3, "step 1: token: "),
        ((2, "fed"), [3], "step 1, layer 0: hidden"),
        ((0, "engine", "latent_epsilon"), 1e-3, "step 0, layer 0: hidden"),
        ((0, "model", "identity"), "0" * 64, "a model of other content"),
    ],
)
def test_a_record_of_another_run_fails(
    check, recorded: oracle.Record, tmp_path: Path, place: tuple, to: object, words: str
) -> None:
    done = check(written(change(recorded, *place, to=to), tmp_path / "a"))
    assert done.returncode == 1 and words in done.stdout, done.stdout + done.stderr


def test_other_arithmetic_is_held_to_the_bounds_here_too(check, recorded: oracle.Record, tmp_path: Path) -> None:
    other = change(recorded, 0, "arithmetic", to=None)
    done = check(written(change(other, 1, "logits", to=None), tmp_path / "a"))
    assert done.returncode == 0 and "within bounds" in done.stdout
    pairs = json.loads(json.dumps(other[1]["top"]))
    pairs[4][1] = oracle._bits(oracle._float(pairs[4][1]) + 1.0)
    done = check(written(change(other, 1, "top", to=pairs), tmp_path / "a"))
    assert done.returncode == 1 and "step 0: logits: off by" in done.stdout
    pairs = json.loads(json.dumps(other[1]["top"]))
    pairs[0], pairs[1] = [pairs[1][0], pairs[0][1]], [pairs[0][0], pairs[0][1]]
    near = change(change(other, 1, "top", to=pairs), 1, "argmax", to=pairs[0][0])
    near[0]["bounds"]["logits"] = 1.0
    done = check(written(near, tmp_path / "a"))
    assert done.returncode == 0 and "(inside the margin)" in done.stdout


def test_records_that_are_none_are_refused(check, recorded: oracle.Record, tmp_path: Path) -> None:
    """Cut, damaged, or closed anew around something else: never a crash, and never a pass."""
    data = written(recorded, tmp_path / "a").read_bytes()
    bad = [data[: len(data) // 2], data[:-1], data + data, b"{", b"{}\n{}\n{}\n", b'{"a": ' + b"[" * 10**6 + b"\n"]
    bad += [data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for at in range(5, len(data), len(data) // 9)]
    paths = []
    for number, text in enumerate(bad):
        paths.append(tmp_path / f"bad{number}")
        paths[-1].write_bytes(text)
    for path in paths:
        done = check(path)
        assert done.returncode == 2 and "is no oracle record, or is damaged or cut" in done.stderr, path
    places: list[tuple] = [(0, name) for name in recorded[0]] + [(1, name) for name in recorded[1]]
    places += [(0, "prompt", "ids"), (0, "engine", "quality"), (0, "engine", "context"), (1, "top", 0)]
    for place in places:
        for to in (None, [], "x", 1e300, [["a", 1]]):
            if place[-1] in ("source", "build", "tokenizer", "kernels", "backend", "streaming", "batches", "step"):
                continue
            done = check(written(change(recorded, *place, to=to), tmp_path / "a"))
            assert done.returncode in (0, 1, 2), (place, to, done.returncode)
