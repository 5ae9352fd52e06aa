"""Writes a kernel file and what it includes as one CUDA file (native/cuda).

    emit_cuda.py OUTPUT.cu KERNELS.metal FOLDER...
    emit_cuda.py --units OUTPUT.c STEM...

Includes are looked for beside the file and in the folders. A kernel becomes a __global__ entry whose one parameter
holds its numbers and pointers, and a launcher; the file ends with the table of its launchers (launch.h). The second
form lists the tables of all files.
"""

import sys
from pathlib import Path

import msl

ROOT = Path(__file__).resolve().parent.parent.parent


def entry(kernel: msl.Kernel) -> str:
    fields, sets, arguments, numbers = [], [], [], "0"
    highest = 0
    for at, parameter in enumerate(kernel.parameters):
        kind = f"msl::parameter<decltype({kernel.call}), {at}>"
        if parameter.attribute == "buffer":
            slot = f"b{parameter.index}"
            fields.append(f"    msl::slot<{kind}> {slot};\n")
            sets.append(f"    block.{slot}.set(how->operands[{parameter.index}]);\n")
            arguments.append(f"block.{slot}.get()")
            highest = max(highest, parameter.index)
            if parameter.index == 0:
                numbers = f"msl::slot<{kind}>::bytes"
        elif parameter.attribute == "threadgroup":
            arguments.append(f"({kind})msl_threadgroup_memory")
        else:
            arguments.append(f"msl::{parameter.attribute}<{kind}>()")
    block = f"block_{kernel.name}"
    return (
        f"struct {block} {{\n{''.join(fields)}    static constexpr uint32_t numbers = {numbers};\n}};\n"
        f"static __global__ void entry_{kernel.name}(const __grid_constant__ {block} block) {{\n"
        f"    {kernel.call}({', '.join(arguments)});\n}}\n"
        f"static int launch_{kernel.name}(const struct glm52_cuda_launch *how, void *stream) {{\n"
        f"    {block} block;\n{''.join(sets)}    return msl::launch(entry_{kernel.name}, block, how, stream);\n}}\n"
        f"#define ROW_{kernel.name} {{\"{kernel.name}\", {block}::numbers, {highest}, launch_{kernel.name}}}\n"
    )


def render(sources: list[msl.Source], stem: str) -> str:
    text = ['#include "msl_cuda.cuh"\n']
    for source in sources:
        text.append(f'#line 1 "{source.name}"\n{source.cplusplus()}\n')
    kernels = [kernel for source in sources for kernel in source.callable_kernels()]
    text.append('#line 1 "emit_cuda.py"\n')
    text += [entry(kernel) for kernel in kernels]
    rows = "".join(f"    ROW_{kernel.name},\n" for kernel in kernels)
    text.append(f"extern \"C\" {{\nextern const struct glm52_cuda_kernel MSL_UNIT({stem})[];\n")
    text.append(f"const struct glm52_cuda_kernel MSL_UNIT({stem})[] = {{\n{rows}")
    text.append("    {nullptr, 0, 0, nullptr}};\n}\n")
    return "".join(text)


def units(stems: list[str]) -> str:
    text = ['#include <stddef.h>\n\n#include "launch.h"\n']
    for sizes in ("generic", "glm"):
        names = [f"glm52_cuda_unit_{stem}_{sizes}" for stem in stems]
        text.append("".join(f"\nextern const struct glm52_cuda_kernel {name}[];" for name in names))
        text.append(f"\nconst struct glm52_cuda_kernel *const glm52_cuda_units_{sizes}[] = {{\n")
        text.append("".join(f"    {name},\n" for name in names) + "    NULL,\n};\n")
    return "".join(text)


def main(arguments: list[str]) -> int:
    if arguments[0] == "--units":
        Path(arguments[1]).write_text(units(arguments[2:]), encoding="utf-8")
        return 0
    return msl.emit(arguments, ROOT, "emit_cuda.py", render)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
