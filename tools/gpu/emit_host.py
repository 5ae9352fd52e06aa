"""Writes a kernel file and what it includes as one C++ file for the simulator (native/sim).

    emit_host.py OUTPUT.cpp KERNELS.metal FOLDER...

Includes are looked for beside the file and in the folders. The C++ file includes msl_sim.hpp, which says what the
macros of msl.py mean, and ends with a table of its kernels.
"""

import sys
from pathlib import Path

import msl

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = {"buffer": "SIM_BUFFER", "threadgroup": "SIM_THREADGROUP"}


def kind_of(parameter: msl.Parameter) -> str:
    return KINDS.get(parameter.attribute, "SIM_" + parameter.attribute.upper())


def entry(number: int, kernel: msl.Kernel) -> str:
    """The call of a kernel with arguments taken from what its thread knows, and its bindings as a table."""
    arguments, described = [], []
    for at, parameter in enumerate(kernel.parameters):
        kind = f"sim::parameter<decltype({kernel.call}), {at}>"
        arguments.append(f"sim::argument<{kind}, {kind_of(parameter)}, {parameter.index}>(self)")
        described.append(
            f'{{{kind_of(parameter)}, {parameter.index}, "{parameter.name}", sim::pointed_size<{kind}>(), '
            f"sim::is_reference<{kind}>(), sim::is_const<{kind}>()}}"
        )
    call = f"{kernel.call}({', '.join(arguments)})"
    return f'SIM_KERNEL({number}, "{kernel.name}", ({call}), ({", ".join(described)}))\n'


def render(sources: list[msl.Source], unit: str) -> str:
    text = ['#include "msl_sim.hpp"\n']
    for source in sources:
        text.append(f'#line 1 "{source.name}"\n{source.cplusplus()}\n')
    kernels = [kernel for source in sources for kernel in source.callable_kernels()]
    constants = [constant for source in sources for constant in source.constants]
    text.append('#line 1 "emit_host.py"\n')
    text += [entry(number, kernel) for number, kernel in enumerate(kernels)]
    text.append(f"SIM_UNIT({unit}, ({', '.join(f'SIM_ENTRY({n})' for n in range(len(kernels)))}), (")
    text.append(", ".join(f"SIM_CONSTANT({constant.name}, {constant.index})" for constant in constants) + "))\n")
    return "".join(text)


def main(arguments: list[str]) -> int:
    return msl.emit(arguments, ROOT, "emit_host.py", render)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
