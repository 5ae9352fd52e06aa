"""The C harness: it passes on what is recorded, and fails on anything else."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest


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
