"""Checks kernels against the address spaces and the subset of the language that Metal has, by clang.

    check_msl.py [--compiler CLANG] FOLDER KERNELS...

Metal's compiler is clang, and its address spaces are those of C++ for OpenCL, which any clang checks: a pointer or
reference that names none is an error there or becomes __generic, which Metal does not have; one space does not convert
to another. Each file is written with attributes left out and Metal's words defined as OpenCL's (shim/msl_check.h);
FOLDER has the generated headers. Prints what is wrong by the kernels' files and lines; exits 1 if something is.
"""

import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msl

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = (
    "-x clcpp -cl-std=clc++2021 -Xclang -finclude-default-header -Wall -Wextra -Wdouble-promotion -Werror "
    "-Wno-unused-function -Wno-unused-parameter -Wno-unused-const-variable -Wno-unused-variable -Wno-unknown-pragmas "
    "-Wno-null-dereference"
).split()


class Parser(msl.Parser):
    """Address spaces stay. Templates of kernels are functions: OpenCL has no others."""

    def address_spaces(self) -> None:
        pass

    def kernel(self, at: int) -> int:
        if self.in_template:
            self.edit(self.tokens[at].begin, self.tokens[at].end, "static")
        return super().kernel(at)


def unspaced(dump: str, names: set[str]) -> list[str]:
    """From clang's dump of its syntax tree: declarations and casts of ours whose type is __generic. What the compiler
    declares by itself, copying for one, is not ours."""
    file, line, found, own_depth = "", 0, [], sys.maxsize
    for text in dump.splitlines():
        depth = len(re.match(r"[\s|`-]*", text)[0])  # type: ignore[index]
        if depth <= own_depth:
            own_depth = depth if re.search(r"> (?:\S+ )?implicit ", text) else sys.maxsize
        place = re.search(r"<([^>]*)>", text)
        for part in place[1].split(",") if place else ():
            named = re.match(r"\s*(.*?):(\d+)(?::\d+)?$", part)
            if named and named[1] != "col":
                file, line = (file if named[1] == "line" else named[1]), int(named[2])
        is_declared = re.search(r"\b(VarDecl|ParmVarDecl|FieldDecl|CStyleCastExpr|FunctionDecl)\b", text)
        if is_declared and "__generic" in text and file in names and own_depth == sys.maxsize:
            found.append(f"{file}:{line}: a pointer or reference without an address space")
    return list(dict.fromkeys(found))


def check(compiler: str, kernel: Path, folders: list[Path]) -> str:
    """What is wrong with a file, "" if nothing."""
    try:
        sources = msl.load([kernel], folders, ROOT, Parser)
    except msl.Error as error:
        return f"{error}\n"
    text = "".join(f'#line 1 "{source.name}"\n{source.cplusplus()}\n' for source in sources)
    with tempfile.NamedTemporaryFile("w", suffix=".clcpp") as made:
        made.write('#include "msl_check.h"\n' + text)
        made.flush()
        command = [compiler, *FLAGS, f"-I{ROOT / 'native/gpu/shim'}", "-fsyntax-only", made.name]
        compiled = subprocess.run(command, capture_output=True, text=True, check=False)
        if compiled.returncode != 0:
            return compiled.stderr
        dump = [*command, "-Xclang", "-ast-dump", "-fno-color-diagnostics"]
        tree = subprocess.run(dump, capture_output=True, text=True, check=True).stdout
    return "".join(f"{line}\n" for line in unspaced(tree, {source.name for source in sources}))


def main(arguments: list[str]) -> int:
    compiler = "clang-22"
    if arguments[0] == "--compiler":
        compiler, arguments = arguments[1], arguments[2:]
    kernels = [Path(argument) for argument in arguments[1:]]
    with ThreadPoolExecutor(2) as pool:
        wrong = list(pool.map(lambda kernel: check(compiler, kernel, [Path(arguments[0])]), kernels))
    print("".join(wrong), end="")
    print(f"{len(kernels)} kernel files: {sum(map(bool, wrong))} break Metal's address spaces or its subset")
    return any(wrong) or not kernels


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
