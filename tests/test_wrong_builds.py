"""A library that was built wrong in one place is told from the right one by an oracle record, and told where it is
wrong. Each wrong one is the right one's archive with a single file compiled anew from an altered text."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import ROOT, prompt

import glm52_rt as rt
from glm52_rt import oracle

BUILD = ROOT / "build"
PARTS = ("flags", "native_shim.o", "libglm52.a")


@dataclass(frozen=True)
class Wrong:
    """file with each of changes made once; what a prompt beyond index_top_k and one within it must find first."""

    file: str
    changes: tuple[tuple[str, str], ...]
    beyond: tuple[int, int | None, str]
    within: tuple[int, int | None, str] | None


BUILDS = {
    "the indexer is fed the residual stream": Wrong(
        "native/core/forward.c",
        (("act->index_k, act->x,", "act->index_k, act->h,"), ("act->index_w, act->x,", "act->index_w, act->h,")),
        (0, 0, "selected"),
        None,  # nothing is selected, so nothing is wrong
    ),
    "pairs of the rotation are halves": Wrong(
        "native/cpu/row.c",
        (
            ("const float a = x[i], b = x[i + 1], c", "const size_t h = i / 2, g = h + count / 2;\n"
             "        const float a = x[h], b = x[g], c"),
            ("out[i] = a * c - b * s", "out[h] = a * c - b * s"),
            ("out[i + 1] = b * c + a * s", "out[g] = b * c + a * s"),
        ),
        (0, 0, "selected"),
        (0, 0, "hidden"),
    ),
    "one position less is selected": Wrong(
        "native/core/forward.c",
        ((".k = s->index_top_k, .score_stride", ".k = s->index_top_k - 1, .score_stride"),
         (".k = engine->model->shape.index_top_k}", ".k = engine->model->shape.index_top_k - 1}")),
        (0, 0, "selected"),
        None,
    ),
    "routing weights are of the biased choice": Wrong(
        "native/cpu/router.c",
        (("weights[k] = (float)(p[ids[k]] * factor)", "weights[k] = (float)(choice[ids[k]] * factor)"),),
        (0, 1, "weights"),
        (0, 1, "weights"),
    ),
    "another epsilon in the norm of the latents": Wrong(
        "native/core/forward.c",
        ((".epsilon = engine->options.latent_epsilon};", ".epsilon = 2.0f * engine->options.latent_epsilon};"),),
        (0, 0, "hidden"),
        (0, 0, "hidden"),
    ),
    "another epsilon in the last norm": Wrong(
        "native/core/forward.c",
        (("model->output_norm, hidden, batch->shape->rms_epsilon)", "model->output_norm, hidden, 1e-6f)"),),
        (0, None, "logits"),
        (0, None, "logits"),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def records(micro: rt.Model, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("records")
    lengths = {"beyond": 3 * micro.shape.index_top_k, "within": micro.shape.index_top_k - 2}
    for name, length in lengths.items():
        oracle.write(oracle.record(micro, prompt(length, 400), 1, full=True, backend="cpu"), folder / name)
    return {name: folder / name for name in lengths}


def built(wrong: Wrong, folder: Path) -> Path:
    """A folder with a package that has the wrong library."""
    text = (ROOT / wrong.file).read_text()
    for old, new in wrong.changes:
        assert text.count(old) == 1, f"{wrong.file} has changed: {old!r}"
        text = text.replace(old, new)
    (folder / "wrong.c").write_text(text)
    command = (BUILD / "flags").read_text().split()
    subprocess.run([*command, "-c", "-o", folder / "wrong.o", folder / "wrong.c"], cwd=ROOT, check=True)
    shared = ["-bundle", "-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-shared"]
    package = folder / "glm52_rt"
    package.mkdir()
    for path in (ROOT / "python/glm52_rt").iterdir():
        if path.suffix in (".py", ".jinja"):
            (package / path.name).symlink_to(path)
    linked = [*command, *shared, "-o", package / "_native.abi3.so", BUILD / "native_shim.o", folder / "wrong.o"]
    subprocess.run([*linked, BUILD / "libglm52.a", "-lm", "-ldl"], cwd=ROOT, check=True)
    return folder


def differences(package: Path, model: str, record: Path) -> list[list]:
    """What the library in package finds, as [step, layer, quantity, inside_margin]."""
    script = (
        "import json, sys, glm52_rt as rt\n"
        "from glm52_rt import oracle\n"
        "with rt.Model.open(sys.argv[1]) as model:\n"
        "    found = oracle.verify(model, oracle.read(sys.argv[2]), backend='cpu')\n"
        "print(json.dumps([[one.step, one.layer, one.quantity, one.inside_margin] for one in found]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run(
        [sys.executable, "-c", script, model, record], env=environment, cwd=package, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def as_of_another_back_end(record: Path, path: Path) -> Path:
    """The record with an arithmetic that is nobody's, so that it holds within its bounds alone."""
    lines = oracle.read(record)[:-1]
    oracle.write(oracle.sealed([{**lines[0], "arithmetic": "other"}, *lines[1:]]), path)
    return path


@pytest.mark.skipif(
    shutil.which("cc") is None or not all((BUILD / part).exists() for part in PARTS),
    reason="what `make ext` leaves in build/ is linked anew",
)
@pytest.mark.parametrize("what", BUILDS)
def test_a_wrong_build_is_located(micro: rt.Model, records: dict[str, Path], tmp_path: Path, what: str) -> None:
    wrong = BUILDS[what]
    package = built(wrong, tmp_path)
    found = differences(package, micro.path, records["beyond"])
    assert found and tuple(found[0][:3]) == wrong.beyond, found[:4]
    assert not found[0][3]
    found = differences(package, micro.path, records["within"])
    assert (tuple(found[0][:3]) if found else None) == wrong.within, found[:4]
    if "epsilon" not in what:  # which changes less than another back end may
        found = differences(package, micro.path, as_of_another_back_end(records["beyond"], tmp_path / "other"))
        quantity = "selected" if wrong.beyond[2] == "selected" else "hidden"
        assert [one for one in found if not one[3]][0][1:3] == [wrong.beyond[1], quantity], found[:4]


def test_the_changes_fit_the_sources() -> None:
    """Also where nothing can be built."""
    for wrong in BUILDS.values():
        text = (ROOT / wrong.file).read_text()
        assert all(text.count(old) == 1 for old, _ in wrong.changes), wrong.file
        assert re.search(r"^/\* \w+\.c - ", text)
