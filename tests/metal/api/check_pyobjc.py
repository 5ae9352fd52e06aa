"""Checks every use of Metal and Foundation in Objective-C sources against the metadata of Apple's SDK that PyObjC has.

    check_pyobjc.py TARGET METAL.fwinfo FOUNDATION.fwinfo USES.json SOURCE... -- COMPILER_FLAGS...

Each selector must exist for its receiver and take that many arguments, each constant have the value that it is compiled
to, each function and class exist; and all be there in macOS TARGET, or be used behind @available of a version that has
them. Prints what was checked, writes the uses to USES.json for check_metal_cpp.py; exits 1 if something is wrong.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clang import cindex
from metal_header import definitions

# Kinds of cursors by number: not every version of the bindings knows all their names.
CLASS_REF, DECL_REF, MEMBER_REF, MESSAGE, IF = 42, 101, 102, 104, 205
ENUM_CONSTANT, FUNCTION, PROPERTY, METHOD = 7, 8, 14, 16
# Of NSObject's root class, which the runtime declares, not Foundation.
ROOT = {"alloc", "init", "retain", "release", "autorelease", "copy", "new", "class", "respondsToSelector:"}


def version(text: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(text).split(".")) if text else (0,)


class Sdk:
    """Classes and protocols with their methods, constants and functions, of several frameworks."""

    def __init__(self, paths: list[str]) -> None:
        self.methods: dict[str, dict[str, dict[str, Any]]] = {}
        self.above: dict[str, list[str]] = {}
        self.constants: dict[str, dict[str, Any]] = {}
        self.functions: dict[str, dict[str, Any]] = {}
        for path in paths:
            found = definitions(path)
            for kind in ("classes", "formal_protocols", "informal_protocols"):
                for name, about in found.get(kind, {}).items():
                    self.add(name, about)
            self.constants.update(found["enum"])
            self.functions.update(found["functions"])

    def add(self, name: str, about: dict[str, Any]) -> None:
        own = self.methods.setdefault(name, {})
        for method in about.get("methods", []):
            own[method["selector"]] = method
        for category in about.get("categories") or []:
            if isinstance(category, dict):
                own.update({method["selector"]: method for method in category.get("methods", [])})
        protocols = about.get("implements", about.get("protocols", [])) or []
        self.above[name] = ([about["super"]] if about.get("super") else []) + list(protocols)

    def method(self, name: str, selector: str) -> dict[str, Any] | None:
        """The method of a class or protocol or of what is above it."""
        waiting, seen = [name], set()
        while waiting:
            here = waiting.pop()
            if here in seen:
                continue
            seen.add(here)
            if selector in self.methods.get(here, {}):
                return self.methods[here][selector]
            waiting += self.above.get(here, [])
        return None


class Check:
    """One source: its uses, and what is wrong with them."""

    def __init__(self, sdk: Sdk, target: str, path: str) -> None:
        self.sdk, self.target, self.path = sdk, version(target), path
        self.uses: set[tuple[str, str]] = set()
        self.values: dict[str, int] = {}
        self.wrong: list[str] = []

    def say(self, line: int, text: str) -> None:
        self.wrong.append(f"{self.path}:{line}: {text}")

    def message(self, cursor: Any, since: tuple[int, ...]) -> None:
        selector, line = cursor.spelling, cursor.location.line
        for name in receivers(cursor):
            self.uses.add((name, selector))
            if selector in ROOT:
                continue
            method = self.sdk.method(name, selector)
            if method is None:
                self.say(line, f"-[{name} {selector}] is not in the SDK")
            elif len(method["args"]) != selector.count(":"):
                self.say(line, f"-[{name} {selector}] takes {len(method['args'])} arguments")
            elif version(method.get("introduced")) > max(since, self.target):
                self.say(line, f"-[{name} {selector}] came with macOS {method['introduced']}")

    def reference(self, cursor: Any, since: tuple[int, ...]) -> None:
        referenced, name, line = cursor.referenced, cursor.spelling, cursor.location.line
        if not re.match(r"(MTL|NS)", name):
            return
        if referenced._kind_id == ENUM_CONSTANT:
            self.uses.add(("constant", name))
            self.values[name] = referenced.enum_value
            found = self.sdk.constants.get(name)
            if found is None:
                self.say(line, f"constant {name} is not in the SDK")
            elif found["value"] != referenced.enum_value:
                self.say(line, f"{name} is {found['value']}, compiled as {referenced.enum_value}")
            elif version(found.get("introduced")) > max(since, self.target):
                self.say(line, f"{name} came with macOS {found['introduced']}")
        elif referenced._kind_id == FUNCTION:
            self.uses.add(("function", name))
            if name not in self.sdk.functions:
                self.say(line, f"function {name} is not in the SDK")

    def walk(self, cursor: Any, since: tuple[int, ...]) -> None:
        kind, file = cursor._kind_id, cursor.location.file
        if file and file.name == self.path:
            referenced = cursor.referenced
            if kind == MESSAGE:
                self.message(cursor, since)
            elif kind == MEMBER_REF and referenced is not None and referenced._kind_id in (PROPERTY, METHOD):
                self.message(cursor, since)
            elif kind == DECL_REF and referenced is not None:
                self.reference(cursor, since)
        children = list(cursor.get_children())
        for i, child in enumerate(children):
            behind = available(children[0]) if kind == IF and i == 1 else None
            self.walk(child, behind or since)


def available(condition: Any) -> tuple[int, ...] | None:
    """The version in a condition that is `@available(macOS V, *)`."""
    match = re.match(r"@\s*available\s*\(\s*macOS\s+([\d.]+)", " ".join(t.spelling for t in condition.get_tokens()))
    return version(match[1]) if match else None


def receivers(cursor: Any) -> Iterator[str]:
    """Classes or protocols that a message goes to."""
    children = list(cursor.get_children())
    if children and children[0]._kind_id == CLASS_REF:
        yield children[0].spelling
        return
    kind = children[0].type.get_canonical().spelling if children else ""
    protocols = re.match(r"(?:__strong |const )*id<(.*)>", kind)
    named = re.match(r"(?:__strong |const )*(\w+)(<.*>)? \*", kind)
    if protocols:
        yield from (part.strip() for part in protocols[1].split(","))
    elif named:
        yield named[1]
    else:
        parent = cursor.referenced.semantic_parent if cursor.referenced is not None else None
        yield parent.spelling if parent is not None else kind


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    target, *rest = arguments[:split]
    sdk = Sdk(rest[:2])
    uses, values, wrong = set(), {}, []
    for path in rest[3:]:
        unit = cindex.Index.create().parse(path, args=["-x", "objective-c", *arguments[split + 1 :]])
        errors = [error for error in unit.diagnostics if error.severity >= 3]
        if errors:
            print(f"{path} does not parse: {errors[0]}")
            return 1
        check = Check(sdk, target, path)
        check.walk(unit.cursor, (0,))
        uses |= check.uses
        values |= check.values
        wrong += check.wrong
    Path(rest[2]).write_text(json.dumps({"uses": sorted(uses), "values": values}), encoding="utf-8")
    count = {kind: sum(use[0] == kind for use in uses) for kind in ("constant", "function")}
    print(f"{len(uses) - sum(count.values())} selectors, {count['constant']} constants, {count['function']} functions "
          f"against the SDK's metadata for macOS {target}: {len(wrong)} wrong")  # fmt: skip
    print("".join(f"  {text}\n" for text in dict.fromkeys(wrong)), end="")
    return bool(wrong) or len(uses) < 40


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
