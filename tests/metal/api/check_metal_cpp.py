"""Checks the selectors and constants that check_pyobjc.py found in use against metal-cpp, Apple's own C++ binding.

    check_metal_cpp.py USES.json METAL_CPP_FOLDER

metal-cpp is a second description of the same API, by other hands than PyObjC's; what both have is no slip of one.
"""

import json
import re
import sys
from pathlib import Path

# Of Foundation and of the runtime: metal-cpp binds little of either.
OUTSIDE = re.compile(r"^(?!MTL)")


def read(folder: Path) -> tuple[set[str], dict[str, int]]:
    """Selectors, and constants by their Objective-C names."""
    selectors: set[str] = set()
    constants: dict[str, int] = {}
    for path in sorted(folder.glob("Metal/*.hpp")) + sorted(folder.glob("Foundation/*.hpp")):
        text = path.read_text(encoding="utf-8", errors="replace")
        selectors |= set(re.findall(r'_(?:MTL|NS)_PRIVATE_DEF_SEL\s*\(\s*\w+\s*,\s*"([^"]+)"', text))
        for body in re.findall(r"_MTL_(?:ENUM|OPTIONS)\([^)]*\)\s*\{(.*?)\}", text, re.DOTALL):
            for name, value in re.findall(r"(\w+)\s*=\s*(0x[0-9A-Fa-f]+|-?\d+)[uUlL]*\s*(?:,|$)", body):
                constants["MTL" + name] = int(value, 0)
            for name, base, shift in re.findall(r"(\w+)\s*=\s*(\d+)\s*<<\s*(\d+)", body):
                constants["MTL" + name] = int(base) << int(shift)
    return selectors, constants


def main(uses_path: str, folder: str) -> int:
    selectors, constants = read(Path(folder))
    found = json.loads(Path(uses_path).read_text(encoding="utf-8"))
    wrong, seen_selectors, seen_constants = [], 0, 0
    for kind, name in found["uses"]:
        if kind == "constant":
            seen_constants += constants.get(name) == found["values"][name]
            if constants.get(name) != found["values"][name]:
                wrong.append(f"constant {name} = {found['values'][name]}: metal-cpp has {constants.get(name)}")
        elif kind != "function" and not OUTSIDE.match(kind) and name not in ("alloc", "init", "retain", "release"):
            seen_selectors += name in selectors
            if name not in selectors:
                wrong.append(f"-[{kind} {name}] is not in metal-cpp")
    print(f"{seen_selectors} selectors and {seen_constants} constants are in metal-cpp ({len(selectors)} and "
          f"{len(constants)} in all): {len(wrong)} are not")  # fmt: skip
    print("".join(f"  {text}\n" for text in wrong), end="")
    return bool(wrong) or seen_selectors < 30


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
