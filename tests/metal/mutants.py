"""Breaks the Metal driver one place at a time; its tests must notice.

    mutants.py BUILD [--sample N] [--only TEXT] -- COMPILER FLAGS... -- LINK_FLAGS...

BUILD is the folder of a variant of the driver's tests (objects, source/). Each mutant is a file with one edit,
compiled, linked with the other objects and run: killed if it does not compile, a test fails, a sanitizer speaks, or it
takes too long. What can't be killed is in EQUIVALENT with the reason. Prints the survivors and killed/made; exits 1 if
there are survivors.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

# Of a run; a whole one takes 3 seconds on a machine that does nothing else.
SECONDS_MAX = 90
FILES = ("metal", "memory", "commands")

# (file, what is done, part of the line that it is done to): why no test can notice.
STAGE_WAITS = "a write finds no room beside the work under way and waits for it: later, the same"
EQUIVALENT = {
    ("metal", "function == nil is always so", "if (function == nil) {"): "a reason is written that nobody is told",
    ("memory", "state->span_count == state->span_room is always so", "if"): "the list has more room than it needs",
    ("commands", "state->is_lost is false", "the words of the first"): "of two losses at once the other is told",
    ("commands", "!begin_commands(state) is false", "return state->value"): "who waits for it is told that it failed",
    ("commands", "state->is_lost is false", "commands == nil"): "the wait for room finds it as well",
    ("commands", "all is always so", "if (all)"): "waits for more than it must",
    ("commands", "seconds > 0.0 is always so", "if"): "a device's clock that goes back is not to be had",
    ("metal", "without options.fastMathEnabled = NO;", "NO"): "of older systems: the tests built for those see it",
    ("memory", "state->stage_used[state->stage_half] + bytes > STAGE_HALF is always so", "if"): STAGE_WAITS,
    ("memory", "without state->stage_half ^= 1;", "^="): STAGE_WAITS,
    ("memory", "^= 1 becomes ^= 0", "^="): STAGE_WAITS,
    ("commands", "!begin_commands(state) is false", "return state->holds"): "a hold of nothing, released like others",
}

# Statements whose loss must be noticed, wherever they stand.
LOSSES = (
    r"\[[\w\->\[\].]+ release\];",
    r"\[\w[\w\->\[\].]* (?:commit|endEncoding|waitUntilCompleted|requestResidency)\];",
    r"\[\w[\w\->\[\].]* (?:addAllocation|removeAllocation|addResidencySet|useResource|setComputePipelineState)[^;]*\];",
    r"\[state->commands encode\w+:[^;]*\];",
    r"\[state->compute set\w+:[^;]*\];",
    r"\(void\)glm52_metal_settle\(state\);",
    r"glm52_metal_(?:flush_commands|end_encoding|remove_span|release_hold)\([^;{]*\);",
    r"(?:land|set_resident|store_archive|free_buffers|make_residency|keep_commands_error|lose)\([^;{]*\);",
    r"free\([^;]*\);",
    r"state->(?:is_lost|archive_grew|compute|blit|commands|stage_\S*|ns\w*|released|fault) \S?= [^;]*;",
    r"memmove\([^;]*\);",
    r"memset\([^;]*\);",
    r"options\.\w+ = [^;]*;",
    r"descriptor\.\w+ = [^;]*;",
    r"limits->\w+ = [^;]*;",
    r"\(void\)(?:rename|unlink)\([^;]*\);",
)
# Replacements: a pattern and what it becomes.
CHANGES = (
    (r" retain\]", "]"),
    (r"@autoreleasepool ", ""),
    (r"\[\[state->(queue|commands) (\w+)\] retain\]", r"[state->\1 \2]"),
    (r"(?<== )\+\+state->", "state->"),
    (r":\+\+state->", ":state->"),
    (r" i \+ 1\]", " i]"),
    (r"\* 1e9", "* 1e6"),
    (r"<< 20;", "<< 10;"),
    (r"MTLResourceStorageModeShared", "MTLResourceStorageModePrivate"),
    (r"\+ ALIGNMENT - 1\) / ALIGNMENT \* ALIGNMENT", ")"),
    (r"\+ page - 1\) / page \* page", ")"),
    (r"buffer\.gpuAddress \+ offset", "(uint64_t)(uintptr_t)address"),
    (r"distance - at \* span->step", "distance"),
    (r"at >= span->count", "at > span->count"),
    (r"most - overlap", "most"),
    (r"\+ most - span->step < length", "< length"),
    (r"\+ bytes > STAGE_HALF", "> STAGE_HALF"),
    (r"\^= 1", "^= 0"),
    (r"SLICE_MS\]", "1000 * SLICE_MS]"),
)


@dataclass(frozen=True)
class Mutant:
    """A file with one edit; what was done, and to which line."""

    file: str
    line: int
    done: str
    where: str
    text: str


def split_condition(condition: str) -> list[str]:
    """The operands of a condition that is joined by || or by &&, else the condition alone."""
    for sign in ("||", "&&"):
        parts, depth, at = [], 0, 0
        for i, letter in enumerate(condition):
            depth += letter in "([{"
            depth -= letter in ")]}"
            if depth == 0 and condition[i : i + 2] == sign:
                parts.append(condition[at:i].strip())
                at = i + 2
        if parts:
            return [*parts, condition[at:].strip()]
    return [condition]


def closing(text: str, at: int) -> int:
    """Behind the parenthesis that the one at `at` opens."""
    depth = 0
    for i in range(at, len(text)):
        depth += text[i] == "("
        depth -= text[i] == ")"
        if depth == 0:
            return i + 1
    raise ValueError("unbalanced")


def edits(text: str) -> Iterator[tuple[int, int, str, str]]:
    """(begin, end, replacement, what is done)"""
    for match in re.finditer(r"\b(?:if|while) \(", text):
        begin, end = match.end(), closing(text, match.end() - 1) - 1
        condition = text[begin:end]
        if "@available" in condition:
            continue
        for part in split_condition(condition):
            at = begin + condition.index(part)
            neutral = "true" if "&&" in condition and "||" not in condition else "false"
            yield at, at + len(part), neutral, f"{part} is {neutral}"
        yield begin, end, "true" if match[0][0] == "i" else "false", f"{condition} is always so"
    for pattern in LOSSES:
        for match in re.finditer(pattern, text):
            yield match.start(), match.end(), ";", f"without {match[0]}"
    for pattern, replacement in CHANGES:
        for match in re.finditer(pattern, text):
            yield match.start(), match.end(), match.expand(replacement), f"{match[0].strip()} becomes {replacement}"
    for match in re.finditer(r"(?<=[(!)])glm52_metal_wait_value\((?!struct)[^;{]*?\)(?=\)|;)", text):
        yield match.start(), match.end(), "true", f"without {match[0]}"


def mutants(folder: Path) -> Iterator[Mutant]:
    seen = set()
    for name in FILES:
        text = (folder / f"{name}.m").read_text(encoding="utf-8")
        for begin, end, replacement, done in edits(text):
            changed = text[:begin] + replacement + text[end:]
            line_begin = text.rfind("\n", 0, begin) + 1
            where = text[line_begin : text.index("\n", begin)].strip()
            if text[line_begin:begin].lstrip().startswith(("*", "/*", "static")) or changed in seen or changed == text:
                continue
            seen.add(changed)
            yield Mutant(name, text.count("\n", 0, begin) + 1, re.sub(r"\s+", " ", done), where, changed)


def is_equivalent(mutant: Mutant) -> bool:
    return any(
        file == mutant.file and done == mutant.done and where in mutant.where for file, done, where in EQUIVALENT
    )


def run(mutant: Mutant, number: int, build: Path, compiler: list[str], link: list[str]) -> str | None:
    """How it was killed; None: it survived."""
    folder = build / "mutants"
    folder.mkdir(exist_ok=True)
    stem = folder / str(number)
    source, made, program = (stem.with_suffix(suffix) for suffix in (".m", ".o", ".out"))
    source.write_text(mutant.text, encoding="utf-8")
    try:
        compiled = subprocess.run([*compiler, "-c", "-o", made, source], capture_output=True, text=True, check=False)
        if compiled.returncode != 0:
            return "does not compile"
        others = [path for path in build.glob("*.o") if path.name != f"{mutant.file}.o"]
        subprocess.run([compiler[0], "-o", program, made, *others, *link], check=True, capture_output=True)
        ran = subprocess.run(
            [program, "--first"], capture_output=True, text=True, errors="replace", timeout=SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        return "takes too long"
    finally:
        for path in (source, made, program):
            path.unlink(missing_ok=True)
    if ran.returncode == 0:
        return None
    failed = re.findall(r"^FAIL (\w+)", ran.stdout, re.MULTILINE)
    return failed[0] if failed else "stops"


def main(arguments: list[str]) -> int:
    first = arguments.index("--")
    second = arguments.index("--", first + 1)
    options, compiler, link = arguments[:first], arguments[first + 1 : second], arguments[second + 1 :]
    build = Path(options[0])
    chosen = list(mutants(build / "source"))
    equivalent = [mutant for mutant in chosen if is_equivalent(mutant)]
    chosen = [mutant for mutant in chosen if not is_equivalent(mutant)]
    if "--only" in options:
        chosen = [mutant for mutant in chosen if options[options.index("--only") + 1] in mutant.where + mutant.done]
    if "--sample" in options:
        count = int(options[options.index("--sample") + 1])
        chosen = chosen[:: max(1, len(chosen) // count)][:count]
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda item: run(item[1], item[0], build, compiler, link), enumerate(chosen)))
    survivors = [mutant for mutant, end in zip(chosen, ends, strict=True) if end is None]
    if "--verbose" in options:
        for mutant, end in zip(chosen, ends, strict=True):
            print(f"{mutant.file}.m:{mutant.line}: {mutant.done}: {end}")
    for mutant in survivors:
        print(f"SURVIVED {mutant.file}.m:{mutant.line}: {mutant.done}\n    {mutant.where}")
    print(f"driver mutants: killed {len(chosen) - len(survivors)} of {len(chosen)} made; "
          f"{len(equivalent)} more change nothing that can be seen, each with its reason")  # fmt: skip
    return bool(survivors) or not chosen


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
