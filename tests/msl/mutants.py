"""Breaks the kernels, and the C that feeds them, one place at a time; the tests must notice.

    mutants.py BUILD EXTENSION [--sample N] [--only TEXT] [--part kernels|half]

BUILD is the build's folder (objects of both simulators and of the library), EXTENSION the extension. A kernel's
mutant is compiled for the simulator that looks at every access, linked with the other kernels, and meets the
tests of the operations that it is part of; a mutant of the C half is linked into an extension of its own and
meets the tests of whole models as well. Killed: it does not compile, a test fails, or it takes too long. What no
test can notice is in EQUIVALENT with the reason. Prints the survivors and killed/made; exits 1 if there are
survivors."""

import argparse
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = ROOT / "native/gpu/kernels"
sys.path.insert(0, str(ROOT / "tools/gpu"))
import emit_host
import msl

SECONDS_MAX = 900
CXX = ["g++", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno",
       "-fno-strict-aliasing", "-fsigned-char", "-w", "-O1", "-g1", "-fno-omit-frame-pointer", "-fsanitize=thread"]
INCLUDES = ["-Inative/include", "-Inative/gpu", "-Inative/gpu/shim", "-Inative/sim"]
CC = ["gcc", "-std=c11", "-D_GNU_SOURCE", "-D_FILE_OFFSET_BITS=64", "-w", "-fPIC", "-pthread", "-ffp-contract=off",
      "-fvisibility=hidden", "-DGLM52_BUILD", "-O1", "-Inative/include", "-Inative/core", "-Inative/quant",
      "-Inative/cpu", "-Inative/stream", "-Inative/gpu"]
# Instances of kernels that there are of many types: these are enough, and those that tests of experts name.
TYPES = ("f32", "f16", "q8_0", "q2_k", "q4_k", "q6_k", "iq2_xxs")
OTHER_TYPES = ("IQ", "Q2", "Q3", "Q5", "Q6", "Q4_0", "Q4_1", "F16", "MXFP4", "extreme")

# (file, what is done, part of the line): why no test can notice.
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("stream.c", "published again and again", ""): "a copy too many changes nothing",
    ("backend.c", "sizes of another model", ""): "the simulator has kernels of any sizes, with the same bits",
    ("expert_tables.c", "no wait before a table goes", ""): "takes more tables than any model has layers",
    ("expert_tables.c", "a stale table", ""): "in the simulator the same address is the same memory",
    ("top_k.metal", "one too many", "first += EACH * THREADS"): "a round behind the last one looks at no score",
    ("rms_norm.metal", "one too many", "first += AT_ONCE * threads"): "a round behind the last one has no value",
}


@dataclass(frozen=True)
class Mutant:
    path: Path
    line: int
    what: str
    begin: int
    end: int
    text: str  # in place of what lies from begin to end

    def name(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}: {self.what}"

    def source(self) -> str:
        text = self.path.read_text(encoding="utf-8")
        return text[: self.begin] + self.text + text[self.end :]


def made(path: Path, pattern: str, what: str, text: str) -> Iterator[Mutant]:
    """A mutant for each match; text may refer to its groups. Comments are not broken."""
    source = path.read_text(encoding="utf-8")
    comments = [m.span() for m in re.finditer(r"/\*.*?\*/|//[^\n]*", source, re.DOTALL)]
    for match in re.finditer(pattern, source):
        line = source.count("\n", 0, match.start()) + 1
        shown = source.split("\n")[line - 1]
        if any(a <= match.start() < b for a, b in comments):
            continue
        if not any(key[0] == path.name and key[1] == what and key[2] in shown for key in EQUIVALENT):
            yield Mutant(path, line, f"{what}: {shown.strip()}", match.start(), match.end(), match.expand(text))


def of_kernels() -> Iterator[Mutant]:
    for path in sorted([*KERNELS.glob("*.metal"), KERNELS / "reduce.h", KERNELS / "dot_rows.h"]):
        yield from made(path, r"threadgroup_barrier\([^;]*\);", "no barrier", "")
        yield from made(path, r"threadgroup_barrier\(", "barrier of the simdgroup alone", "simdgroup_barrier(")
        yield from made(path, r"mem_flags::mem_threadgroup", "barrier of other memory", "mem_flags::mem_device")
        yield from made(path, r"(?<=\bif \()([^;{}\n]* < [^;{}\n]*)(?=\) )", "no check", "true")
        # Where the right side is no constant: what goes over a thread's own arrays is no bound of memory.
        less = r"((?:\bif \(|\bfor \([^;\n]*;)[^;{}\n?]*?) < (?=[^;&|)\n]*[a-z])"
        yield from made(path, less, "one too many", r"\1 <= ")


WAITS = {
    "native/core/forward.c": [
        (r"GLM52_TRY\(b->ops->finish\(b->backend\)\);   /\* the experts[^\n]*",
         "no wait before slots are overwritten", ""),
    ],
    "native/gpu/backend.c": [
        (r"const glm52_status status = gpu->driver->finish\(gpu->state\);\n    if \(status != GLM52_OK\) keep_fault",
         "no wait before memory goes", "const glm52_status status = GLM52_OK;\n    if (status != GLM52_OK) keep_fault"),
        (r"gpu->driver->publish\(gpu->state, host, bytes\);", "no publish", ""),
        (r"return gpu->driver->adopt\([^;]*\);", "no adopt", "return GLM52_OK;"),
        (r"gpu->driver->write\([^;]*\);", "no write", ""),
        (r"gpu->driver->clear\([^;]*\);", "no clear", ""),
        (r"const glm52_status status = gpu->driver->finish\(gpu->state\);\n"
         r"    if \(gpu->fault == GLM52_OK\) return status;",
         "finish does not wait", "if (gpu->fault == GLM52_OK) return GLM52_OK;"),
        (r"if \(gpu->fault == GLM52_OK\) return status;", "a driver's fault is lost", "return GLM52_OK;"),
        (r"memcmp\(&sizes, &own_sizes, sizeof\(sizes\)\) == 0", "sizes of another model",
         "memcmp(&sizes, &own_sizes, sizeof(sizes)) != 0"),
        (r"memcmp\(&sizes, &own_sizes, sizeof\(sizes\)\) == 0 \? sizes", "GLM-5.2's sizes whatever the model",
         "true ? own_sizes"),
        (r"gpu->scratch_bytes = bytes;", "scratch of unknown size", "gpu->scratch_bytes = SIZE_MAX;"),
    ],
    "native/gpu/expert_tables.c": [
        (r"gpu->driver->write\([^;]*\);", "no table", ""),
        (r"\(void\)gpu->driver->finish\(gpu->state\);\n", "no wait before a table goes", "\n"),
        (r"table->is_stale \|\| ", "a stale table", ""),
        (r" \|\| memcmp\(table->copy, experts, count \* sizeof\(\*experts\)\) != 0", "an old table", ""),
    ],
    "native/stream/stream.c": [
        (r"stream->backend->ops->publish\([^;]*\);", "no publish", ""),
        (r",\s*\.unpublished = true", "nothing is unpublished", ""),
        (r"stream->states\[slot\]\.unpublished = false;", "published again and again", ""),
    ],
    "native/stream/stream_open.c": [
        (r"GLM52_TRY\(stream->backend->ops->adopt\([^;]*\);", "slots are not adopted", ""),
        (r"\(size_t\)slab->bytes, true\)", "slots are taken for a file", "(size_t)slab->bytes, false)"),
    ],
    "native/core/adopt.c": [
        (r"engine->options\.streaming == NULL \|\| !is_routed\(tensor\)", "nothing of a sparse layer",
         "!is_routed(tensor)"),
        (r"\(glm52_span\)\{tensor->offset, bytes", "spans one byte short", "(glm52_span){tensor->offset + 1, bytes"),
    ],
}
def of_half() -> Iterator[Mutant]:
    for name, edits in WAITS.items():
        for pattern, what, text in edits:
            found = list(made(ROOT / name, pattern, what, text))
            if not found and not any(key[:2] == (Path(name).name, what) for key in EQUIVALENT):
                raise SystemExit(f"{name}: there is nothing to break by: {what}")
            yield from found
    for path in sorted((ROOT / "native/gpu").glob("*.c")):
        # Too few threadgroups.
        grid = r"(?<=\.groups = \{)glm52_gpu_ceil\(([^,\n]*), "
        yield from made(path, grid, "a grid too small", r"glm52_gpu_ceil(\1 - 1, ")


def run(command: list[str]) -> bool:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, timeout=SECONDS_MAX, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"over {SECONDS_MAX} s: {' '.join(command[:4])} ...", flush=True)
        return False


def few_types(text: str) -> str:
    """Without the instances of other types, which only cost time."""
    kept = []
    for line in text.split("\n"):
        named = re.match(r'template \[\[host_name\("(\w+)"\)\]\]', line)
        many = named is not None and re.match(r"(embed|matvec|matmul|moe)_", named[1]) is not None
        if not many or any(re.search(rf"_{kind}(_\d+)?$", named[1]) for kind in TYPES) or line.rstrip()[-1] != ";":
            kept.append(line)
    return "\n".join(kept)


def package(folder: Path, extension: Path, replaced: str) -> Path:
    """A copy of the Python package by links, all but one file of it."""
    target = folder / "py/glm52_rt"
    target.mkdir(parents=True)
    python = ROOT / "python/glm52_rt"
    libraries = [extension, *extension.parent.glob("libglm52_simcheck.so")]
    for file in [*python.glob("*.py"), *python.glob("*.jinja"), *libraries]:
        if file.name != replaced:
            (target / file.name).symlink_to(file.resolve())
    return target


def tests(folder: Path, what: list[str]) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-o",
               f"pythonpath={folder / 'py'} tools tools/packaging tests", *what]
    return run(command)


def kernel_survives(mutant: Mutant, build: Path, extension: Path, folder: Path) -> bool:
    kernels = folder / "kernels"
    shutil.copytree(KERNELS, kernels)
    (kernels / mutant.path.name).write_text(mutant.source(), encoding="utf-8")
    operations, objects = [], {path.stem: path for path in (build / "sim/check").glob("*.o")}
    for path in sorted(kernels.glob("*.metal")):
        path.write_text(few_types(path.read_text(encoding="utf-8")), encoding="utf-8")
        try:
            sources = msl.load([path], [build / "generated"], kernels.parent)
        except msl.Error:
            return False
        if not any(source.name == f"kernels/{mutant.path.name}" for source in sources):
            continue
        (folder / f"{path.stem}.cpp").write_text(emit_host.render(sources, path.stem), encoding="utf-8")
        objects[path.stem] = folder / f"{path.stem}.o"
        operations.append(path.stem)
        source = [str(folder / f"{path.stem}.cpp"), "-o", str(objects[path.stem])]
        if not run([*CXX, *INCLUDES, f"-I{build / 'generated'}", "-c", *source]):
            return False
    target = package(folder, extension, "libglm52_simcheck.so")
    runtime = [str(path) for path in (build / "sim/runtime/check").glob("*.o")]
    kernels_made = [str(path) for path in objects.values()]
    if not run(["g++", "-shared", "-o", str(target / "libglm52_simcheck.so"), *runtime, *kernels_made, "-ldl"]):
        return False
    ways = " or ".join(f"test_{operation}_" for operation in operations)
    if not set(operations).isdisjoint({"embed", "matmul", "moe"}):
        ways = f"({ways}){''.join(f' and not {kind}' for kind in OTHER_TYPES)}"
    for schedule in ("simcheck-0", "simcheck-5"):
        if not tests(folder, ["tests/test_gpu_ops.py", "-k", f"({ways}) and {schedule}"]):
            return False
    return True


def half_survives(mutant: Mutant, build: Path, extension: Path, folder: Path) -> bool:
    source, object_file = folder / mutant.path.name, folder / "mutant.o"
    source.write_text(mutant.source(), encoding="utf-8")
    here = [f"-I{build / 'generated'}", f"-I{mutant.path.parent}", "-c", str(source), "-o", str(object_file)]
    if not run([*CC, *here]):
        return False
    target = package(folder, extension, extension.name)
    (target / "libglm52_sim.so").symlink_to((extension.parent / "libglm52_sim.so").resolve())
    command = ["gcc", "-shared", "-o", str(target / extension.name), str(build / "native_shim.o"), str(object_file),
               "-Wl,--allow-multiple-definition", "-Wl,--whole-archive", str(build / "libglm52.a"),
               "-Wl,--no-whole-archive", "-lm", "-pthread", "-ldl"]
    if not run(command):
        return False
    if "native/gpu" in str(mutant.path) and mutant.path.name not in ("backend.c", "expert_tables.c"):
        return tests(folder, ["tests/test_gpu_ops.py", "-k", f"test_{mutant.path.stem}_ and sim-0"])
    return tests(folder, ["tests/test_gpu_half.py"])


def survives(mutant: Mutant, build: Path, extension: Path) -> bool:
    with tempfile.TemporaryDirectory() as name:
        check = kernel_survives if mutant.path.parent == KERNELS else half_survives
        return check(mutant, build, extension, Path(name))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=Path)
    parser.add_argument("extension", type=Path)
    parser.add_argument("--sample", type=int, default=0, help="so many, the same ones each time; 0: all")
    parser.add_argument("--only", default="", help="those with this text in their names")
    parser.add_argument("--part", choices=["kernels", "half"])
    args = parser.parse_args()
    mutants = [*(of_kernels() if args.part != "half" else []), *(of_half() if args.part != "kernels" else [])]
    mutants = [mutant for mutant in mutants if args.only in mutant.name()]
    if args.sample:
        mutants = random.Random(1).sample(mutants, min(args.sample, len(mutants)))
    build, extension = args.build.resolve(), args.extension.absolute()
    kernels = {mutant.path for mutant in mutants if mutant.path.parent == KERNELS}
    whole = sorted(kernels | {ROOT / "native/gpu/backend.c"})
    with ThreadPoolExecutor(2) as pool:
        nothing = [Mutant(path, 1, "nothing", 0, 0, "") for path in whole]
        for mutant, left in zip(nothing, pool.map(lambda m: survives(m, build, extension), nothing)):
            if not left:
                raise SystemExit(f"{mutant.path.relative_to(ROOT)}: its tests fail with nothing broken")
        alive = []
        for mutant, left in zip(mutants, pool.map(lambda m: survives(m, build, extension), mutants)):
            if left:
                alive.append(mutant)
            print("survived" if left else "killed  ", mutant.name(), flush=True)
    print(f"mutants of kernels and their host: {len(mutants) - len(alive)} of {len(mutants)} killed")
    return bool(alive)


if __name__ == "__main__":
    sys.exit(main())
