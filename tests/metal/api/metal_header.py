"""Writes Metal.h for Linux from the metadata of PyObjC's Metal bindings, which was read off Apple's SDK.

    metal_header.py ARM64.fwinfo OUTPUT.h

Protocols, classes, selectors, argument types, values of constants, availability. What compiles against it is thereby
checked against the SDK, not against anybody's memory of it. PyObjC is by Ronald Oussoren and others, MIT licence; the
header is made where it is used and is no part of this project.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

FOUNDATION = set("NSString NSError NSArray NSDictionary NSURL NSData NSNumber NSBundle NSSet NSDate".split())
WORDS = set(
    """void BOOL bool char int unsigned float double size_t uint8_t uint16_t uint32_t uint64_t int32_t int64_t
    NSUInteger NSInteger NSTimeInterval CFTimeInterval NSRange id Class instancetype SEL const long short in out inout
    oneway CGFloat volatile NSErrorDomain NSNotificationName nullable nonnull _Nullable _Nonnull _Null_unspecified
    kindof __kindof __autoreleasing __unsafe_unretained dispatch_block_t MTLTimestamp MTLGPUAddress
    MTLAutoreleasedComputePipelineReflection""".split()
)
# Types by their letters in Objective-C's type encoding, and those of enumerations and struct members.
LETTERS = {
    "v": "void", "@": "id", "Q": "NSUInteger", "q": "NSInteger", "I": "uint32_t", "i": "int32_t", "S": "uint16_t",
    "C": "uint8_t", "B": "bool", "Z": "BOOL", "c": "BOOL", "f": "float", "d": "double", "^v": "void *", ":": "SEL",
    "#": "Class",
}  # fmt: skip


def definitions(path: str) -> dict[str, Any]:
    """The definitions of a .fwinfo file: JSON behind a comment."""
    text = Path(path).read_text(encoding="utf-8")
    return json.loads(text[text.index("{") :])["definitions"]


class Header:
    """One header being written. A declaration that names a type which is not known here is left out."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.found = found
        self.classes = {name: c for name, c in found["classes"].items() if name.startswith("MTL")}
        self.protocols = found["formal_protocols"]
        self.known = WORDS | FOUNDATION | set(self.classes) | set(self.protocols) | set(found["enum_type"])
        self.lines: list[str] = []
        self.done: set[str] = set()
        self.methods = self.skipped = 0

    def type_of(self, value: dict[str, Any]) -> str | None:
        name = value.get("type_name")
        if name is None:
            name = LETTERS.get(value["typestr"])
            match = re.match(r"\{_?(\w+)=", value["typestr"])
            if name is None and match:
                name = match[1]
        if name is None or any(word not in self.known for word in re.findall(r"[A-Za-z_]\w*", name)):
            return None
        return name

    def method(self, method: dict[str, Any]) -> str | None:
        result = self.type_of(method["retval"])
        types = [self.type_of(a) for a in method["args"]]
        if result is None or None in types:
            self.skipped += 1
            return None
        self.methods += 1
        parts = method["selector"].split(":")
        text = ("+ " if method["class_method"] else "- ") + f"({result})"
        if types:
            text += " ".join(f"{part}:({kind})a{i}" for i, (part, kind) in enumerate(zip(parts, types, strict=False)))
        else:
            text += parts[0]
        version = method.get("introduced")
        if version and re.match(r"^\d+\.\d+$", str(version)):
            text += f" METAL_SINCE({version})"
        return text + ";"

    def enumerations(self) -> None:
        values = defaultdict(list)
        for name, value in self.found["enum"].items():
            values[value.get("enum", "")].append((name, value["value"]))
        for name in sorted(values):
            text = ", ".join(f"{n} = {v}" for n, v in sorted(values[name], key=lambda item: item[1]))
            if not name or name.startswith("<"):
                self.lines.append(f"enum {{ {text} }};")
                continue
            kind = LETTERS[self.found["enum_type"].get(name, {}).get("type", "q")]
            self.lines.append(f"typedef enum {name} : {kind} {{ {text} }} {name};")

    def structs(self) -> None:
        for name, struct in self.found["structs"].items():
            match = re.match(r"\{\w+=([QqIiSCfd]+)\}$", struct["typestr"])
            if match and len(match[1]) == len(struct["fieldnames"]):
                members = zip(match[1], struct["fieldnames"], strict=True)
                body = " ".join(f"{LETTERS[letter]} {field};" for letter, field in members)
                self.lines.append(f"typedef struct {{ {body} }} {name};")
                self.known.add(name)

    def typedefs(self) -> None:
        self.lines += [f"@class {name};" for name in sorted(self.classes)]
        self.lines += [f"@protocol {name};" for name in sorted(self.protocols)]
        for name, text in self.found["typedefs"].items():
            if re.match(r"^NSString \*$", text):
                self.lines.append(f"typedef {text}{name};")
                self.known.add(name)
            block = re.match(r"^(.*?)\(\^\)(.*)$", text)
            if block and "MTLAutoreleased" not in text:
                self.lines.append(f"typedef {block[1]}(^{name}){block[2]};")
                self.known.add(name)

    def protocol(self, name: str) -> None:
        if name in self.done or name not in self.protocols:
            return
        self.done.add(name)
        above = self.protocols[name].get("implements") or []
        for other in above:
            self.protocol(other)
        self.lines.append(f"@protocol {name} <{', '.join(above or ['NSObject'])}>")
        for method in self.protocols[name]["methods"]:
            text = self.method(method)
            if text:
                self.lines.append(("@required " if method.get("required") else "@optional ") + text)
        self.lines.append("@end")

    def class_(self, name: str) -> None:
        if name in self.done or name not in self.classes:
            return
        self.done.add(name)
        about = self.classes[name]
        above = about.get("super") or "NSObject"
        self.class_(above)
        adopted = [p for p in about.get("protocols", []) if p in self.protocols or p == "NSCopying"]
        self.lines.append(f"@interface {name} : {above}" + (f" <{', '.join(adopted)}>" if adopted else ""))
        methods = [self.method(m) for m in about["methods"] if not m["selector"].startswith(".")]
        self.lines += [text for text in methods if text] + ["@end"]

    def functions(self) -> None:
        for name, function in self.found["functions"].items():
            result = self.type_of(function["retval"])
            arguments = function.get("args", [])
            types = [self.type_of(a) for a in arguments]
            if result is None or None in types:
                self.skipped += 1
            elif function.get("inline"):
                if result in self.found["structs"]:
                    names = [a["name"] for a in arguments]
                    heads = ", ".join(f"{kind} {n}" for kind, n in zip(types, names, strict=True))
                    body = f"{{ {result} made = {{ {', '.join(names)} }}; return made; }}"
                    self.lines.append(f"static inline {result} {name}({heads}) {body}")
            else:
                self.lines.append(f"extern {result} {name}({', '.join(types) or 'void'});")
        self.lines += [f"extern NSString *const {name};" for name in self.found["externs"]]

    def text(self) -> str:
        self.lines = ["/* Metal.h - generated by tests/metal/api/metal_header.py. */", "#pragma once",
                      "#pragma GCC system_header", '#include "metal_compat.h"']  # fmt: skip
        self.enumerations()
        self.structs()
        self.typedefs()
        for name in sorted(self.protocols):
            self.protocol(name)
        for name in sorted(self.classes):
            self.class_(name)
        self.functions()
        text = "\n".join(self.lines) + "\n"
        text = re.sub(r"\s*\b(_Nullable|_Nonnull|_Null_unspecified)\b", "", text)
        return re.sub(r"\b(\d{19,})\b", r"\1ull", text)


def main(source: str, output: str) -> None:
    header = Header(definitions(source))
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    Path(output).write_text(header.text(), encoding="utf-8")
    print(f"{len(header.done)} protocols and classes, {header.methods} methods, {len(header.found['enum'])} constants "
          f"from {Path(source).name}; {header.skipped} declarations left out")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
