"""The package as pip makes it: the sdist builds, the wheel serves every Python, an editable install follows edits."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

USE = "import glm52_rt as rt; e = rt.Engine(rt.Model.open({model!r}), context=8); e.eval(1); print(rt.__file__)"


def run(*command: str | Path, cwd: Path) -> str:
    # Nothing here is about speed: the quickest build will do. Its objects stay apart from everybody's.
    env = {**os.environ, "CFLAGS": "-O0", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("BUILD", "MAKEFLAGS", "MAKELEVEL", "PYTHONPATH", "LDFLAGS"):
        env.pop(name, None)
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def unpacked(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, made and unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=root)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def fresh_python(folder: Path) -> Path:
    """A new environment that sees the packages we depend on, and not this project."""
    venv.create(folder, with_pip=True)
    python = folder / "bin/python"
    site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_the_sdist_builds_a_wheel_for_every_python(
    unpacked: Path, tmp_path: Path, make: Callable[..., Path]
) -> None:
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=unpacked)
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp310-abi3-" in wheel.name
    names = zipfile.ZipFile(wheel).namelist()
    assert {"glm52_rt/_native.abi3.so", "glm52_rt/chat_template.jinja", "glm52_rt/py.typed"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "native/", "tools/"))]

    python = fresh_python(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    used = run(python, "-c", USE.format(model=str(make("micro"))), cwd=tmp_path)
    assert used.startswith(str(tmp_path / "venv"))
    assert run(tmp_path / "venv/bin/glm52", "--version", cwd=tmp_path).startswith("glm52")


def test_an_editable_install_uses_the_tree(unpacked: Path, tmp_path: Path, make: Callable[..., Path]) -> None:
    python = fresh_python(tmp_path / "venv")
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ".", cwd=unpacked)
    used = run(python, "-c", USE.format(model=str(make("micro"))), cwd=tmp_path)
    assert used == str(unpacked / "python/glm52_rt/__init__.py")
    before = (unpacked / "python/glm52_rt/_native.abi3.so").stat().st_mtime_ns
    header = unpacked / "native/include/glm52.h"
    header.write_text(header.read_text().replace("GLM52_ABI_VERSION 1", "GLM52_ABI_VERSION 2"))
    run("make", "ext", f"PYTHON={python}", cwd=unpacked)
    assert (unpacked / "python/glm52_rt/_native.abi3.so").stat().st_mtime_ns > before
    version = run(python, "-c", "from glm52_rt._native import lib; print(lib.glm52_abi_version())", cwd=tmp_path)
    assert version == "2"
