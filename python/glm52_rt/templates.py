"""Chat templates of model files: untrusted Jinja, rendered so that what users wrote stays text.

Owns the sandbox and the Guard. A template sees no file, no network, no clock, no randomness and no Python object
beyond the messages; each string, list, number and loop that it makes, and what it returns, is bounded. What it can
still do is waste time, and with many such values memory.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

from .errors import ArgumentError, ModelError

TEXT_MAX = 64 << 20  # characters of any string that a template builds
NUMBER_MAX = 100_000  # of widths, repetitions, items of a list and range(), as arguments of methods and filters
BITS_MAX = 4096  # of a whole number
DEPTH_MAX = 64  # levels of nesting of messages and tools

# Filters that are not reproducible, or build long strings from short ones, and that no chat template needs.
_REFUSED_FILTERS = ("random", "center", "format", "wordwrap", "urlize", "filesizeformat", "pprint", "slice", "batch",
                    "striptags")  # fmt: skip
# Methods of strings that make other characters of users' text, past the Guard, or bytes, which nothing bounds.
_REFUSED_METHODS = ("translate", "maketrans", "striptags", "unescape", "encode")
# Widths in a format string that are large ("%100000d") or come from a value ("%*d", "{:{}}").
_WIDE_FORMAT = re.compile(r"\d{4}|\*|:[^}]*\{")


# ---- users' text ----


class Guard:
    """Keeps users' text from becoming special tokens of a rendered prompt.

    A template joins its own markup with users' text, and only then are special tokens looked for. So each character of
    users' text that begins a special token is replaced, before rendering, by a stand-in: a character that occurs in
    no message and not in the template. A special token of the rendered text then begins in the template's markup.
    Where the template composes tokens from pieces ("<|" + role + "|>"), users' text that could complete one has its
    first character replaced as well. Behind the search for special tokens, show() puts the characters back.

    For the template, text that looks like a special token is therefore a text that does not; nothing else changes:
    no length, no white space, no comparison of text without such characters."""

    def __init__(self, specials: Iterable[str], literals: Iterable[str], texts: Iterable[str]) -> None:
        """specials: texts of special tokens; literals: strings of the template; texts: every string it is given."""
        tokens = [token for token in specials if token]
        self._tokens = tokens
        self._tails = tuple({token[at:] for token in tokens for at in range(1, len(token))})
        heads = {token[:at] for token in tokens for at in range(1, len(token))}
        longest = max(map(len, heads), default=0)
        literals = list(literals)
        self._composes = any(
            literal[-at:] in heads for literal in literals for at in range(1, min(longest, len(literal)) + 1)
        )
        used = set().union(*tokens, *literals, *texts)
        letters = sorted(set("".join(tokens)))
        free = [char for char in islice(_stand_ins(), len(used) + len(letters)) if char not in used]
        if len(free) < len(letters):
            raise ArgumentError("the messages use so many different characters that none are left to guard them with")
        self._stand_in_of = dict(zip(letters, free, strict=False))
        self._hidden = str.maketrans({token[0]: self._stand_in_of[token[0]] for token in tokens})
        self._shown = str.maketrans({stand_in: letter for letter, stand_in in self._stand_in_of.items()})

    def hide(self, text: str, completes: bool = True) -> str:
        """Users' text as the template may see it. completes=False is for words that templates compare, such as
        "function": they cannot complete a token that the template composes."""
        if completes and self._composes:
            for start in {0, len(text) - len(text.lstrip())}:
                rest = text[start:]
                word = rest.rstrip()
                if word and (rest.startswith(self._tails) or any(word in token for token in self._tokens)):
                    text = text[:start] + self._stand_in_of.get(rest[0], rest[0]) + rest[1:]
        return text.translate(self._hidden)

    def show(self, text: str) -> str:
        """The characters that stand-ins stand for."""
        return text.translate(self._shown)

    def hide_all(self, value: Any, key: str | None = None) -> Any:
        """hide() for every string in a JSON-like value, keys included."""
        if isinstance(value, str):
            return self.hide(value, completes=key not in ("role", "type"))
        if isinstance(value, Mapping):
            completes = key == "arguments"
            return {self.hide(name, completes): self.hide_all(item, name) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.hide_all(item) for item in value]
        return value

    def show_all(self, value: Any) -> Any:
        """Undoes hide_all."""
        if isinstance(value, str):
            return self.show(value)
        if isinstance(value, Mapping):
            return {self.show(name): self.show_all(item) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.show_all(item) for item in value]
        return value


def _stand_ins() -> Iterator[str]:
    """Characters to choose from: rare symbols, which Python's repr() leaves as they are, then private ones, then any
    that are not white space."""
    for first, last in ((0x2800, 0x28FF), (0x4DC0, 0x4DFF), (0x1D300, 0x1D356), (0x1F700, 0x1F773), (0xF0000, 0xFFFFD),
                        (0x100000, 0x10FFFD)):  # fmt: skip
        yield from map(chr, range(first, last + 1))
    for code in (*range(0x21, 0xD800), *range(0xE000, 0xF0000)):
        if not chr(code).isspace():
            yield chr(code)


def strings_in(value: Any, where: str, depth: int = 0) -> Iterator[str]:
    """Every string of a JSON-like value, keys included. Raises ArgumentError for what is not JSON-like."""
    if depth > DEPTH_MAX:
        raise ArgumentError(f"{where} is nested more than {DEPTH_MAX} levels deep")
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ArgumentError(f"{where} has the key {key!r}, which is not a string")
            yield key
            yield from strings_in(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from strings_in(item, f"{where}[{at}]", depth + 1)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise ArgumentError(f"{where} is a {type(value).__name__}, which is not a JSON value")


# ---- the sandbox ----


_guard_in_use: ContextVar[Guard] = ContextVar("the guard of the rendering under way")


class _TooLong(SecurityError):
    def __init__(self) -> None:
        super().__init__(f"a string of more than {TEXT_MAX} characters")


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON of what the user gave, hidden again as the one text it is."""
    if isinstance(indent, int) and indent > DEPTH_MAX:
        raise SecurityError(f"an indent of {indent}")
    guard = _guard_in_use.get()
    text = json.dumps(
        guard.show_all(value), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    return guard.hide(text)


def _bounded_join(pieces: Iterable[str]) -> str:
    done, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > TEXT_MAX:
            raise _TooLong
        done.append(piece)
    return "".join(done)


def _bounded_replace(text: Any, old: str, new: str, count: int = -1) -> str:
    text, old, new = str(text), str(old), str(new)
    count = -1 if count is None else count
    if len(text) + (text.count(old) if count < 0 else count) * len(new) > TEXT_MAX:
        raise _TooLong
    return text.replace(old, new, count)


def _bounded_indent(text: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    unit = width if isinstance(width, str) else " " * min(operator.index(width), NUMBER_MAX)
    if len(text) + (text.count("\n") + 1) * len(unit) > TEXT_MAX:
        raise _TooLong
    return jinja2.filters.do_indent(text, unit, first, blank)


def _check_format(text: Any, values: Iterable[Any]) -> None:
    """Refuses to format values if that may give a long string. Widths have three digits at most."""
    if not isinstance(text, str):
        return
    if _WIDE_FORMAT.search(text):
        raise SecurityError("a format string with a width of more than three digits, or one from a value")
    widest = max((len(str(value)) for value in values), default=0)
    if len(text) + (text.count("%") + text.count("{")) * (widest + 999) > TEXT_MAX:
        raise _TooLong


def _check_product(left: Any, right: Any) -> None:
    for items, count in ((left, right), (right, left)):
        if hasattr(items, "__len__") and len(items) * operator.index(count) > NUMBER_MAX:
            raise SecurityError(f"a repetition to more than {NUMBER_MAX} items")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > BITS_MAX:
        raise SecurityError(f"a number of more than {BITS_MAX} bits")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str) and isinstance(right, str):
        if len(left) + len(right) > TEXT_MAX:
            raise _TooLong
    elif hasattr(left, "__len__") and hasattr(right, "__len__") and len(left) + len(right) > NUMBER_MAX:
        raise SecurityError(f"a list of more than {NUMBER_MAX} items")


@jinja2.pass_environment
def _bounded_join_filter(
    environment: jinja2.Environment, value: Iterable[Any], d: str = "", attribute: str | int | None = None
) -> str:
    if attribute is not None:
        value = map(jinja2.filters.make_attrgetter(environment, attribute), value)
    return _bounded_str_join(str(d), list(value))


def _bounded_str_join(between: str, items: Iterable[Any]) -> str:
    texts = [str(item) for item in items]
    if sum(map(len, texts)) + len(between) * len(texts) > TEXT_MAX:
        raise _TooLong
    return between.join(texts)


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}, which marks the model's words for training: here just its body."""

    tags = {"generation"}

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Environment(ImmutableSandboxedEnvironment):
    """Hugging Face's settings and names, with every way to build a long string bounded."""

    intercepted_binops = frozenset(["+", "*", "%", "**"])
    concat = staticmethod(_bounded_join)

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
        )
        for name in _REFUSED_FILTERS:
            del self.filters[name]
        del self.globals["lipsum"]
        self.filters["replace"] = _bounded_replace
        self.filters["indent"] = _bounded_indent
        self.filters["join"] = _bounded_join_filter
        self.filters["tojson"] = _tojson
        self.filters["bounded_concat"] = lambda pieces: _bounded_join(map(str, pieces))

    def call_binop(self, context: Any, name: str, left: Any, right: Any) -> Any:
        """The operators of intercepted_binops."""
        if name == "%":
            values = right if isinstance(right, tuple) else (right.values() if isinstance(right, Mapping) else (right,))
            _check_format(left, values)
        elif name == "**" and not (abs(left) <= NUMBER_MAX and abs(right) <= 16):
            raise SecurityError("a power of numbers that large")
        elif name == "*":
            _check_product(left, right)
        elif name == "+":
            _check_sum(left, right)
        return super().call_binop(context, name, left, right)

    def call(self, context: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Every call that a template makes."""
        owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
        own = {key: value for key, value in kwargs.items() if key not in ("_loop_vars", "_block_vars")}
        values = (*args, *own.values())
        if isinstance(owner, (str, int, float)) and any(isinstance(n, int) and n > NUMBER_MAX for n in values):
            raise SecurityError(f"{name}() with a number of more than {NUMBER_MAX}")
        if isinstance(owner, str):
            if name == "replace":
                return _bounded_replace(owner, *args, **own)
            if name == "join":
                return _bounded_str_join(owner, *args)
            if name == "expandtabs" and len(owner) + owner.count("\t") * max(values, default=8) > TEXT_MAX:
                raise _TooLong
            if name in ("format", "format_map"):
                _check_format(owner, values)
        if isinstance(owner, str) or owner is str:
            if name in _REFUSED_METHODS:
                raise SecurityError(f"the method {name}()")
        return super().call(context, function, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """"...".format, which newer versions of Jinja wrap before they call it."""
        wrapped = super().wrap_str_format(value)
        if wrapped is None:
            return None

        def bounded(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return wrapped(*args, **kwargs)

        return bounded


class _BoundConcat(NodeTransformer):
    """Turns a ~ b ~ c into a filter, for its own operator cannot be bounded."""

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        pieces = nodes.List(node.nodes, lineno=node.lineno)
        return nodes.Filter(pieces, "bounded_concat", [], [], None, None, lineno=node.lineno)


class _Refusal(jinja2.TemplateError):
    """What raise_exception() of a template raises."""


class Template:
    """A compiled chat template. label says where it comes from, for messages."""

    def __init__(self, source: str, label: str) -> None:
        """Raises ModelError with the line of what is wrong."""
        self.label = label
        self._environment = _Environment()
        try:
            tree = self._environment.parse(source)
            self.literals = frozenset(
                [node.data for node in tree.find_all(nodes.TemplateData)]
                + [node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)]
            )
            code = self._environment.compile(_BoundConcat().visit(tree), "chat", label)
            self._template = self._environment.template_class.from_code(
                self._environment, code, self._environment.make_globals(None)
            )
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"{label}: line {error.lineno}: {error.message}") from error
        except (RecursionError, SyntaxError, MemoryError, ValueError) as error:
            raise ModelError(f"{label}: {type(error).__name__}: {error}") from error

    def render(self, guard: Guard, variables: Mapping[str, Any], now: Any = None) -> str:
        """The prompt for variables that went through guard, stand-ins still in it. now, a datetime, is what
        strftime_now() formats.

        Raises ArgumentError if the template refuses the messages (raise_exception) or asks for a time that was not
        given, ModelError if it fails; both name the line."""

        def refuse(message: str) -> None:
            raise _Refusal(guard.show(str(message)))

        def format_now(pattern: str) -> str:
            if now is None:
                raise _Refusal("it asks for the time, and no `now` was given")
            return now.strftime(pattern)

        functions: dict[str, Callable[..., Any]] = {"raise_exception": refuse, "strftime_now": format_now}
        in_use = _guard_in_use.set(guard)
        try:
            return _bounded_join(self._template.generate({**functions, **variables}))
        except _Refusal as error:
            raise ArgumentError(f"{self.label}: {self._place_of(error)}{error.message}") from error
        except Exception as error:  # a template can raise anything that its expressions can
            reason = str(error) if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: {error}"
            raise ModelError(f"{self.label}: {self._place_of(error)}{guard.show(reason)}") from error
        finally:
            _guard_in_use.reset(in_use)

    def _place_of(self, error: BaseException) -> str:
        line, trace = 0, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self.label:
                line = trace.tb_lineno
            trace = trace.tb_next
        return f"line {line}: " if line else ""


@lru_cache(maxsize=16)
def compiled(source: str, label: str) -> Template:
    """Template(source, label), kept for the next call."""
    return Template(source, label)
