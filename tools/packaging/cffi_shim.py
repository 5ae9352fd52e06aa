"""Writes the C file of the extension module glm52_rt._native.

    cffi_shim.py OUTPUT.c HEADER...

The declarations come from the marked parts of the public headers and the C compiler checks them against those
same headers, so Python can't disagree with C about a struct or a signature.
"""

import re
import sys
from pathlib import Path

BEGIN = "/* cdef: begin"
END = "/* cdef: end */"

# What C calls back: the Python side of glm52_progress, glm52_observer and, in tests, glm52_read_hook (native.py
# defines them).
CALLBACKS = """
extern "Python" bool glm52_py_progress(void *user, uint32_t position);
extern "Python" void glm52_py_observer(void *user, const glm52_observation *observation);
extern "Python" void glm52_py_inputs(void *user, const glm52_inputs *inputs);
extern "Python" void glm52_py_logits(void *user, uint32_t position, const float *logits);
extern "Python" int64_t glm52_py_read(void *user, int32_t file, void *buffer, uint64_t bytes, uint64_t offset,
                                      int32_t *error_out);
"""


def read_declarations(header: Path) -> str:
    text = header.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{header}: expected one '{BEGIN}' and one '{END}'")
    marked = BEGIN + text.split(BEGIN)[1].split(END)[0]
    return re.sub(r"\bGLM52_API\s+", "", marked)


def write_shim(output: Path, headers: list[Path]) -> None:
    from cffi import FFI

    builder = FFI()
    for header in headers:
        builder.cdef(read_declarations(header))
    builder.cdef(CALLBACKS)
    includes = "".join(f'#include "{header.name}"\n' for header in headers)
    builder.set_source("glm52_rt._native", includes)
    builder.emit_c_code(str(output))


if __name__ == "__main__":
    write_shim(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
