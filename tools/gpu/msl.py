"""The lexical pass over kernels: what a file of Metal Shading Language declares, and the same file as C++.

Nothing here parses an expression. From the tokens of a file come its kernels with their bindings, its function
constants and its includes; and the edits that turn it into C++ whose meaning is left to macros:

    [[...]]                                         blanks
    static T f(                                     MSL_STATIC T f(
    constant T x [[function_constant(n)]];          MSL_FUNCTION_CONSTANT(T, x, n);
    constant T x = ..., constant T x[n] = ...       MSL_CONSTANT T x = ...
    threadgroup T x[n];  at the top of a kernel     MSL_TG_VAR(T, x, [n]);
    device, thread, threadgroup                     blanks
    constant, elsewhere                             const
    #include                                        blanks; files come in the order of their includes

Lines keep their numbers. `kernel` stays: a target defines it. Files of this subset mean the same to Metal and to every
target; what is outside it raises Error with file and line.
"""

import bisect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

# Attributes that a parameter may have: bindings first, then what a thread knows of itself.
BINDINGS = ("buffer", "threadgroup")
POSITIONS = (
    "thread_position_in_grid",
    "thread_position_in_threadgroup",
    "threadgroup_position_in_grid",
    "threads_per_grid",
    "threads_per_threadgroup",
    "threadgroups_per_grid",
    "thread_index_in_threadgroup",
    "thread_index_in_simdgroup",
    "simdgroup_index_in_threadgroup",
    "simdgroups_per_threadgroup",
    "threads_per_simdgroup",
)
ATTRIBUTES = (*BINDINGS, *POSITIONS, "function_constant", "host_name", "max_total_threads_per_threadgroup")
SPACES = {"device": "", "thread": "", "threadgroup": "", "constant": "const"}
# Words that Metal lacks, or whose meaning differs between targets.
BANNED = frozenset(
    "goto double new delete try throw catch virtual typeid dynamic_cast thread_local noexcept std printf erf erfc "
    "tgamma lgamma cbrt expm1 log1p thread_elements".split()
)
LAMBDA_BEFORE = frozenset("( , = return { ; ? : && ||".split())

TOKEN = re.compile(
    r"""
  (?P<space>\s+) | (?P<comment>//[^\n]*|/\*.*?\*/) | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
 |(?P<directive>\#(?:\\\r?\n|[^\n])*) | (?P<word>[A-Za-z_]\w*) | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
 |(?P<sign>::|->|<<|>>|\[\[|\]\]|[-+*/%&|^!=<>]=|&&|\|\||\+\+|--|.)""",
    re.VERBOSE | re.DOTALL,
)


class Error(Exception):
    """A file that is not in the subset; the message begins with file:line."""


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    begin: int
    end: int


@dataclass(frozen=True)
class Parameter:
    attribute: str  # one of BINDINGS or POSITIONS
    index: int  # of a binding, else 0
    name: str
    type: str  # as written, address space included


@dataclass(frozen=True)
class Kernel:
    name: str  # what a host asks for
    call: str  # what C++ calls: the name, or template<arguments>
    line: int
    parameters: tuple[Parameter, ...]
    is_template: bool = False  # not callable itself; its instances follow


@dataclass(frozen=True)
class Constant:
    """A function constant."""

    name: str
    type: str
    index: int


@dataclass
class Source:
    """One file."""

    name: str  # as messages and #line show it
    text: str
    kernels: list[Kernel] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    includes: list[str] = field(default_factory=list)  # of files of ours
    edits: list[tuple[int, int, str]] = field(default_factory=list)  # begin, end, text with as many newlines

    def callable_kernels(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels if not kernel.is_template]

    def cplusplus(self) -> str:
        """The file after its edits."""
        parts, at = [], 0
        for begin, end, text in sorted(self.edits):
            if begin < at:
                raise Error(f"{self.name}: edits overlap at {self.text[begin:end]!r}")
            parts += [self.text[at:begin], text]
            at = end
        return "".join(parts) + self.text[at:]


def tokens_of(text: str) -> list[Token]:
    found, at, is_line_start = [], 0, True
    while at < len(text):
        match = TOKEN.match(text, at)
        assert match is not None and match.lastgroup is not None
        kind, piece = match.lastgroup, match.group()
        if kind == "directive" and not is_line_start:
            kind, piece = "sign", "#"
        found.append(Token(kind, piece, at, at + len(piece)))
        at += len(piece)
        if kind == "space":
            is_line_start = is_line_start or "\n" in piece
        elif kind != "comment":
            is_line_start = False
    return found


class Parser:
    """Walks over the tokens of one file once; result is what it found."""

    def __init__(self, name: str, text: str) -> None:
        self.result = Source(name, text)
        self.text = text
        self.every = tokens_of(text)
        self.tokens = [t for t in self.every if t.kind not in ("space", "comment", "directive")]
        self.depth = 0
        self.in_template = False
        self.in_function = False  # behind static, kernel: a body may follow
        self.in_kernel = False
        self.in_kernel = False

    def fail(self, at: int, message: str) -> Error:
        return Error(f"{self.result.name}:{self.text.count(chr(10), 0, at) + 1}: {message}")

    def edit(self, begin: int, end: int, text: str) -> None:
        self.result.edits.append((begin, end, text + "\n" * (self.text.count("\n", begin, end) - text.count("\n"))))

    def blank(self, begin: int, end: int) -> None:
        self.edit(begin, end, re.sub(r"[^\n]", " ", self.text[begin:end]))

    def closing(self, at: int, opening: str, closing: str) -> int:
        depth = 0
        for j in range(at, len(self.tokens)):
            text = self.tokens[j].text
            depth += (text == opening) - (text == closing)
            if opening == "<" and text == ">>":
                depth -= 2
            if depth <= 0:
                return j
        raise self.fail(self.tokens[at].begin, f"unbalanced {opening}")

    def until(self, at: int, stops: str) -> int:
        """Index of the first token that is one of stops, attributes skipped."""
        while at < len(self.tokens) and self.tokens[at].text not in stops.split():
            at = self.closing(at, "[[", "]]") if self.tokens[at].text == "[[" else at
            at += 1
        if at == len(self.tokens):
            raise self.fail(len(self.text) - 1, f"expected one of {stops}")
        return at

    def attributes(self, begin: int, end: int) -> Iterator[tuple[str, str, int, int]]:
        """Name, argument, first and last token of each attribute between two tokens."""
        at = begin
        while at < end:
            if self.tokens[at].text == "[[":
                close = self.closing(at, "[[", "]]")
                inner = self.tokens[at + 1 : close]
                if not inner or (len(inner) > 1 and inner[1].text != "("):
                    raise self.fail(self.tokens[at].begin, "one attribute in each [[ ]]")
                yield inner[0].text, "".join(t.text for t in inner[2:-1]), at, close
                at = close
            at += 1

    def run(self) -> Source:
        self.directives()
        at = 0
        while at < len(self.tokens):
            at = self.step(at)
        self.address_spaces()
        return self.result

    def directives(self) -> None:
        for token in self.every:
            include = re.match(r'#\s*include\s+(?:"([^"]+)"|<([^>]+)>)', token.text)
            if token.kind != "directive" or include is None:
                continue
            if include[1]:
                self.result.includes.append(include[1])
            elif not include[2].startswith("metal_") and include[2] != "stdint.h":
                raise self.fail(token.begin, f"<{include[2]}> is not Metal's")
            self.blank(token.begin, token.end)

    def step(self, at: int) -> int:
        """Handles what begins at a token and returns where the next begins."""
        token = self.tokens[at]
        text = token.text
        self.check_word(at)
        if text == "{":
            before = self.tokens[at - 1].text if at else ""
            if self.depth == 0 and before in (")", "const") and not self.in_function:
                raise self.fail(token.begin, "declare every helper static")
            self.depth += 1
            self.in_template = False
        elif text == "}":
            self.depth -= 1
            self.in_function = self.in_function and self.depth > 0
            self.in_kernel = self.in_kernel and self.depth > 0
            self.in_kernel = self.in_kernel and self.depth > 0
        elif text == ";" and self.depth == 0:
            self.in_template = self.in_function = False
        elif text == "[[":
            return self.attribute(at)
        elif text == "template":
            return self.template(at)
        elif token.kind == "word" and text == "kernel":
            return self.kernel(at)
        elif text == "static":
            self.static(at)
        elif text == "constant" and self.depth == 0 and not self.in_function:
            return self.constant(at)
        elif text == "threadgroup" and self.depth > 0 and self.tokens[at - 1].text in "{};":
            return self.threadgroup_variable(at)
        return at + 1

    def check_word(self, at: int) -> None:
        token, before = self.tokens[at], self.tokens[at - 1].text if at else ""
        if token.kind == "word" and token.text in BANNED and before not in (".", "->"):
            raise self.fail(token.begin, f"{token.text} is not in the subset")
        if token.text == "[" and before in LAMBDA_BEFORE:
            raise self.fail(token.begin, "no lambdas")
        if token.text == "constant" and before == "const":
            raise self.fail(token.begin, "constant is const already")
        if token.kind == "number" and re.fullmatch(r"(\d+\.\d*|\.\d+|\d+\.?\d*[eE][+-]?\d+)", token.text):
            raise self.fail(token.begin, f"{token.text} is a double: write {token.text}f")

    def attribute(self, at: int) -> int:
        close = self.closing(at, "[[", "]]")
        for name, _, _, _ in self.attributes(at, close + 1):
            if name not in ATTRIBUTES:
                raise self.fail(self.tokens[at].begin, f"attribute {name} is not in the subset")
        self.blank(self.tokens[at].begin, self.tokens[close].end)
        return close + 1

    def static(self, at: int) -> None:
        if self.depth > 0:
            raise self.fail(self.tokens[at].begin, "no static locals")
        self.in_function = True
        if self.tokens[self.until(at, "; ( = {")].text == "(":
            self.edit(self.tokens[at].begin, self.tokens[at].end, "MSL_STATIC")

    def constant(self, at: int) -> int:
        end = self.until(at, "; ( = {")
        self.in_template = False
        if self.tokens[end].text in ("=", "{"):
            self.edit(self.tokens[at].begin, self.tokens[at].end, "MSL_CONSTANT")
            return end
        if self.tokens[end].text != ";":
            return at + 1
        found = [a for a in self.attributes(at, end) if a[0] == "function_constant"]
        if not found:
            raise self.fail(self.tokens[at].begin, "a constant without a value")
        names = self.tokens[at + 1 : found[0][2]]
        declared = Constant(names[-1].text, self.text[names[0].begin : names[-2].end], int(found[0][1]))
        self.result.constants.append(declared)
        self.edit(
            self.tokens[at].begin,
            self.tokens[end].end,
            f"MSL_FUNCTION_CONSTANT({declared.type}, {declared.name}, {declared.index});",
        )
        return end + 1

    def threadgroup_variable(self, at: int) -> int:
        end = self.until(at, ";")
        body = self.tokens[at + 1 : end]
        size = next((i for i, t in enumerate(body) if t.text == "["), len(body))
        if any(t.text in ("*", "&") for t in body[:size]):
            return at + 1
        if self.depth != 1 or not self.in_kernel:
            raise self.fail(body[0].begin, "threadgroup memory is declared at the top of a kernel")
        if any(t.text == "=" for t in body):
            raise self.fail(body[0].begin, "threadgroup memory has no initial value")
        kind = self.text[body[0].begin : body[size - 2].end]
        dimensions = self.text[body[size].begin : self.tokens[end].begin] if size < len(body) else ""
        self.edit(
            self.tokens[at].begin, self.tokens[end].end, f"MSL_TG_VAR({kind}, {body[size - 1].text}, {dimensions});"
        )
        return end + 1

    def template(self, at: int) -> int:
        if self.tokens[at + 1].text == "<":
            self.in_template = True
            return self.closing(at + 1, "<", ">") + 1
        end = self.until(at, ";")
        named = [a for a in self.attributes(at, end) if a[0] == "host_name"]
        if not named or self.tokens[named[0][3] + 1].text != "kernel":
            raise self.fail(self.tokens[at].begin, 'expected template [[host_name("x")]] kernel void f<T>(...);')
        opening = next(j for j in range(named[0][3], end) if self.tokens[j].text == "<")
        name, close = self.tokens[opening - 1].text, self.closing(opening, "<", ">")
        base = next((k for k in self.result.kernels if k.name == name and k.is_template), None)
        if base is None:
            raise self.fail(self.tokens[at].begin, f"no template kernel {name} before its instance")
        line = self.text.count("\n", 0, self.tokens[at].begin) + 1
        call = self.text[self.tokens[opening - 1].begin : self.tokens[close].end]
        self.result.kernels.append(Kernel(named[0][1].strip('"'), call, line, base.parameters))
        self.blank(self.tokens[at].begin, self.tokens[end].end)
        return end + 1

    def kernel(self, at: int) -> int:
        name, opening = self.tokens[at + 2].text, at + 3
        if self.tokens[at + 1].text != "void" or self.tokens[opening].text != "(":
            raise self.fail(self.tokens[at].begin, "expected kernel void f(")
        end = self.closing(opening, "(", ")")
        parameters, first, depth = [], opening + 1, 0
        for j in range(opening + 1, end + 1):
            text = self.tokens[j].text
            depth += (text in ("(", "[", "[[", "<")) - (text in (")", "]", "]]", ">") and j != end)
            if (text == "," and depth == 0) or (j == end and j > first):
                parameters.append(self.parameter(name, first, j))
                first = j + 1
        bound = [(p.attribute, p.index) for p in parameters if p.attribute in BINDINGS]
        if len(set(bound)) != len(bound):
            raise self.fail(self.tokens[at].begin, f"kernel {name}: an index is bound twice")
        line = self.text.count("\n", 0, self.tokens[at].begin) + 1
        self.result.kernels.append(Kernel(name, name, line, tuple(parameters), self.in_template))
        self.in_template, self.in_function, self.in_kernel = False, True, True
        self.check_body(end + 1)
        return end

    def check_body(self, at: int) -> None:
        """A thread that has left is missing where the others wait."""
        body = self.tokens[at : self.closing(at, "{", "}")]
        waits = any(t.text.startswith(("simd_", "simdgroup_")) or t.text == "threadgroup_barrier" for t in body)
        for token in body:
            if token.text == "return" and waits:
                raise self.fail(token.begin, "no early return from a kernel whose threads wait for each other")
            if token.text == "mem_none":
                raise self.fail(token.begin, "a barrier names the memory that it orders")

    def parameter(self, kernel: str, begin: int, end: int) -> Parameter:
        found = list(self.attributes(begin, end))
        if len(found) != 1 or found[0][0] not in (*BINDINGS, *POSITIONS):
            raise self.fail(self.tokens[begin].begin, f"kernel {kernel}: one known attribute for each parameter")
        attribute, argument, first, last = found[0]
        if attribute in BINDINGS and not argument.isdigit():
            raise self.fail(self.tokens[begin].begin, f"kernel {kernel}: {attribute} has no index")
        self.blank(self.tokens[first].begin, self.tokens[last].end)
        kind = self.text[self.tokens[begin].begin : self.tokens[first - 1].begin].strip()
        return Parameter(attribute, int(argument or 0), self.tokens[first - 1].text, kind)

    def address_spaces(self) -> None:
        """Outside the edits so far, which have no address space in them that C++ would see."""
        busy = sorted((begin, end) for begin, end, _ in self.result.edits)
        begins = [begin for begin, _ in busy]
        for token in self.every:
            if token.kind == "directive":
                text = re.sub(r"\b(device|threadgroup|thread|constant)\b", lambda m: SPACES[m[0]], token.text)
                text = re.sub(r"\bstatic\b", "MSL_STATIC", text)  # a macro that writes functions
            elif token.kind == "word" and token.text in SPACES:
                text = SPACES[token.text]
            else:
                continue
            j = bisect.bisect_right(begins, token.begin) - 1
            if text != token.text and not (j >= 0 and busy[j][0] <= token.begin < busy[j][1]):
                self.edit(token.begin, token.end, text)


def parse(name: str, text: str, parser: type[Parser] = Parser) -> Source:
    """name is what messages show. Errors: Error."""
    return parser(name, text).run()


def load(
    paths: Sequence[Path], folders: Sequence[Path], root: Path, parser: type[Parser] = Parser
) -> list[Source]:
    """The files and all that they include, each once, included ones first. Names are relative to root where they can
    be. Errors: Error, also for an include that is in none of folders."""
    sources: list[Source] = []
    seen: set[Path] = set()

    def add(path: Path) -> None:
        path = path.resolve()
        if path in seen:
            return
        seen.add(path)
        name = path.relative_to(root.resolve()).as_posix() if path.is_relative_to(root.resolve()) else path.name
        source = parse(name, path.read_text(encoding="utf-8"), parser)
        for include in source.includes:
            found = next((folder / include for folder in (path.parent, *folders) if (folder / include).is_file()), None)
            if found is None:
                raise Error(f"{name}: includes {include}, which is nowhere")
            add(found)
        sources.append(source)

    for path in paths:
        add(path)
    check_names(sources)
    return sources


def check_names(sources: Sequence[Source]) -> None:
    """All files become one library: a kernel's name stands once, a constant's index for one thing."""
    kernels: dict[str, str] = {}
    constants: dict[int, Constant] = {}
    for source in sources:
        for kernel in source.callable_kernels():
            if kernel.name in kernels:
                raise Error(f"{source.name}:{kernel.line}: kernel {kernel.name} is in {kernels[kernel.name]} too")
            kernels[kernel.name] = source.name
        for constant in source.constants:
            if constants.setdefault(constant.index, constant) != constant:
                other = constants[constant.index].name
                raise Error(f"{source.name}: function constant {constant.index} is {other} too")


def emit(arguments: list[str], root: Path, program: str, render: Callable[[list[Source], str], str]) -> int:
    """What a writer of C++ does with OUTPUT KERNELS.metal FOLDER...: render gets the sources and the file's stem.
    Returns the exit status."""
    output, kernels, folders = Path(arguments[0]), Path(arguments[1]), [Path(a) for a in arguments[2:]]
    try:
        text = render(load([kernels], folders, root), kernels.stem)
    except Error as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 1
    output.write_text(text, encoding="utf-8")
    return 0
