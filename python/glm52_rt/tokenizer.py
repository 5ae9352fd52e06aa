"""Text and token ids: byte-level BPE from the vocabulary and merges that the model file carries.

Owns the reading of the tokenizer.ggml.* keys, encoding, decoding and the streaming decoder. The BPE itself is the
`tokenizers` package; special tokens are matched here and not there, so that text only becomes one when the caller
says so.

Kinds of tokens (tokenizer.ggml.token_type):
    1 normal        bytes in GPT-2's printable alphabet; the only ones that BPE can produce
    3 control       <|user|>, [gMASK], ...: matched in text with special=True only; skip_special hides them
    4 user-defined  <think>, <tool_call>, ...: matched in text with special=True only; always shown
    5 unused        padding of the embedding table: decodes to nothing, as does an id between the listed tokens
                    and the vocabulary size
    2, 6            unknown and byte tokens, which GLM does not have: never encoded, decoded as they are written
"""

from __future__ import annotations

import codecs
import operator
import re
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from tokenizers import Regex, models, pre_tokenizers
from tokenizers import Tokenizer as BpeTokenizer

from .errors import ArgumentError, ModelError, UnsupportedError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# GLM-4's split, which GGUF calls pre-tokenizer "glm4".
GLM4_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# The regex engine under the split gives up after ten million backtracking steps, and a run of n white-space
# characters takes about n: longer runs are refused before they get there.
WHITESPACE_RUN_MAX = 1_000_000

# The three tokens that end an answer: metadata key, and the token's text for files that lack the key.
END_TOKENS = (
    ("tokenizer.ggml.eos_token_id", "<|endoftext|>"),
    ("tokenizer.ggml.eot_token_id", "<|user|>"),
    ("tokenizer.ggml.eom_token_id", "<|observation|>"),
)


class ModelLike(Protocol):
    """What the tokenizer needs of a Model."""

    metadata: Mapping[str, Any]
    shape: Any  # .vocab: int
    path: Any


def byte_alphabet() -> dict[int, str]:
    """GPT-2's alphabet: a printable character for each of the 256 bytes."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    alphabet = {byte: chr(byte) for byte in plain}
    alphabet.update((byte, chr(0x100 + place)) for place, byte in enumerate(moved))
    return alphabet


BYTE_TO_CHAR = byte_alphabet()
CHAR_TO_BYTE = {char: byte for byte, char in BYTE_TO_CHAR.items()}


class StreamDecoder:
    """Turns tokens into text as they come; the pieces joined are what Tokenizer.decode gives for all of them.

    A character that is split over tokens is held back until it is complete; bytes that can no longer become one
    are U+FFFD at once.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """The text that became complete with this token, often "". Raises ArgumentError as decode does."""
        return self._utf8.decode(self._tokenizer.decode_bytes((token,), self._skip_special))

    def flush(self) -> str:
        """What was held back, as U+FFFD; the decoder is then as new."""
        rest = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return rest


class Tokenizer:
    """Byte-level BPE of one model. Immutable, and safe to use from several threads.

    vocab           number of ids of the model; every id is below it
    eos_ids         the ids that end an answer (end of text, <|user|>, <|observation|>), ascending
    special_tokens  text -> id of every control and user-defined token
    chat_template   the file's Jinja template, or None
    source          path of the model, for messages
    """

    def __init__(
        self,
        tokens: Sequence[str],
        types: Sequence[int],
        merges: Sequence[str],
        *,
        vocab: int | None = None,
        eos_ids: Iterable[int] = (),
        chat_template: str | None = None,
        named_ids: Mapping[str, int] | None = None,
        source: str = "tokenizer",
    ) -> None:
        """tokens and types [listed ids], merges "left right" in order of rank. Raises ModelError if they do not fit
        each other."""
        self.source = source
        self.vocab = len(tokens) if vocab is None else vocab
        self._tokens, self._types = tokens, types
        self._check_lengths()
        self.eos_ids = tuple(sorted(set(eos_ids)))
        self.chat_template = chat_template
        self.named_tokens = {name: tokens[at] for name, at in (named_ids or {}).items()}
        self.special_tokens = self._find_special_tokens()
        normal = self._find_normal_tokens()
        self._missing_bytes = frozenset(byte for char, byte in CHAR_TO_BYTE.items() if char not in normal)
        self._bpe = self._build_bpe(normal, merges)
        texts = sorted(self.special_tokens, key=len, reverse=True)
        self._special_pattern = re.compile("|".join(map(re.escape, texts))) if texts else None
        self._bytes_of: dict[int, bytes] = {}

    @classmethod
    def from_model(cls, model: ModelLike) -> Tokenizer:
        """Reads the tokenizer.ggml.* keys of an open model (about a second for the 154,880 tokens of GLM-5.2).

        Raises UnsupportedError for a tokenizer that is not gpt2/glm4, ModelError for keys that are missing or
        contradict each other."""
        source, keys = str(model.path), model.metadata
        for key, wanted in (("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "glm4")):
            found = _require(keys, key, str, source)
            if found != wanted:
                raise UnsupportedError(f"{source}: {key} is {found!r}, and only {wanted!r} is supported")
        tokens = _require(keys, "tokenizer.ggml.tokens", list, source)
        template = keys.get("tokenizer.chat_template")
        if template is not None and not isinstance(template, str):
            raise ModelError(f"{source}: tokenizer.chat_template is not a string")
        named = {}
        for name in ("bos", "eos", "unknown", "padding"):
            key = f"tokenizer.ggml.{name}_token_id"
            if keys.get(key) is not None:
                named[name] = _checked_id(keys[key], key, len(tokens), source)
        return cls(
            tokens,
            _require(keys, "tokenizer.ggml.token_type", list, source),
            _require(keys, "tokenizer.ggml.merges", list, source),
            vocab=int(model.shape.vocab),
            eos_ids=end_token_ids(model),
            chat_template=template,
            named_ids=named,
            source=source,
        )

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of text. No token is added in front or behind.

        With special=False every character is plain text: whatever it spells, no control or user-defined token comes
        out. With special=True the texts of such tokens become them, leftmost first and then longest first.

        Raises ArgumentError for lone surrogates, which no byte string stands for, and for more than
        WHITESPACE_RUN_MAX white-space characters in a row."""
        self._check_text(text)
        if not special:
            return self._encode_plain(text)
        ids: list[int] = []
        for piece in self.split_special(text):
            if isinstance(piece, str):
                ids += self._encode_plain(piece)
            else:
                ids.append(piece)
        return ids

    def split_special(self, text: str) -> Iterator[str | int]:
        """The pieces of text between control and user-defined tokens, and the ids of those, in order."""
        done = 0
        for match in self._special_pattern.finditer(text) if self._special_pattern else ():
            if done < match.start():
                yield text[done : match.start()]
            yield self.special_tokens[match[0]]
            done = match.end()
        if done < len(text):
            yield text[done:]

    def decode_bytes(self, ids: Iterable[int], skip_special: bool = False) -> bytes:
        """The exact bytes that ids stand for; skip_special leaves control tokens out, and only those. Raises
        ArgumentError for an id outside the vocabulary."""
        known = self._bytes_of
        pieces = []
        for token in ids:
            piece = known.get(token)
            if piece is None:
                piece = known[token] = self._find_bytes(token)
            if not (skip_special and self.is_control(token)):
                pieces.append(piece)
        return b"".join(pieces)

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """The text that ids stand for; bytes that are not UTF-8 become U+FFFD. Errors as decode_bytes."""
        return self.decode_bytes(ids, skip_special).decode("utf-8", "replace")

    def stream(self, skip_special: bool = False) -> StreamDecoder:
        """A decoder for tokens that come one by one."""
        return StreamDecoder(self, skip_special)

    def is_control(self, token: int) -> bool:
        """Whether an id is a control token."""
        return token < len(self._types) and self._types[token] == CONTROL

    # ---- inside ----

    def _check_lengths(self) -> None:
        tokens, types = self._tokens, self._types
        if len(types) != len(tokens):
            raise ModelError(
                f"{self.source}: tokenizer.ggml.token_type has {len(types)} entries for {len(tokens)} tokens"
            )
        if len(tokens) > self.vocab:
            raise ModelError(
                f"{self.source}: tokenizer.ggml.tokens has {len(tokens)} entries for a vocabulary of {self.vocab}"
            )
        for at, kind in enumerate(types):
            if not NORMAL <= kind <= BYTE:
                raise ModelError(f"{self.source}: tokenizer.ggml.token_type[{at}] is {kind}, not in 1..6")

    def _find_special_tokens(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for at, kind in enumerate(self._types):
            if kind in (CONTROL, USER_DEFINED) and self._tokens[at]:
                found.setdefault(self._tokens[at], at)
        return found

    def _find_normal_tokens(self) -> dict[str, int]:
        """Text -> id of what BPE may produce. Special tokens are left out, so that it cannot produce them."""
        normal: dict[str, int] = {}
        for at, kind in enumerate(self._types):
            if kind == NORMAL and normal.setdefault(self._tokens[at], at) != at:
                text = self._tokens[at]
                raise ModelError(
                    f"{self.source}: tokenizer.ggml.tokens[{normal[text]}] and [{at}] are both {text!r}"
                )
        return normal

    def _build_bpe(self, normal: dict[str, int], merges: Sequence[str]) -> BpeTokenizer:
        pairs = [tuple(merge.split(" ")) for merge in merges]
        for at, pair in enumerate(pairs):
            if len(pair) != 2 or not pair[0] or not pair[1]:
                raise ModelError(
                    f"{self.source}: tokenizer.ggml.merges[{at}] is {merges[at]!r}, not two tokens and a space"
                )
        try:
            model = models.BPE(vocab=normal, merges=pairs, ignore_merges=True)
        except Exception as error:  # the package raises bare Exception, and TypeError for text that is not UTF-8
            raise ModelError(f"{self.source}: tokenizer.ggml.tokens and merges make no BPE: {error}") from error
        bpe = BpeTokenizer(model)
        bpe.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(GLM4_SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        return bpe

    def _check_text(self, text: str) -> None:
        try:
            encoded = text.encode("utf-8")
        except UnicodeEncodeError as error:
            at = error.start
            raise ArgumentError(
                f"character {at} of the text is the lone surrogate U+{ord(text[at]):04X}, which UTF-8 cannot hold"
            ) from error
        missing = self._missing_bytes.intersection(encoded) if self._missing_bytes else ()
        if missing:
            raise ArgumentError(f"{self.source}: the vocabulary has no token for byte 0x{min(missing):02X}")
        if len(text) > WHITESPACE_RUN_MAX and re.search(rf"\s{{{WHITESPACE_RUN_MAX + 1}}}", text):
            raise ArgumentError(f"the text has more than {WHITESPACE_RUN_MAX} white-space characters in a row")

    def _encode_plain(self, text: str) -> list[int]:
        return self._bpe.encode(text, add_special_tokens=False).ids if text else []

    def _find_bytes(self, token: int) -> bytes:
        at = operator.index(token)
        if not 0 <= at < self.vocab:
            raise ArgumentError(f"token {at} is outside the vocabulary of {self.vocab}")
        if at >= len(self._tokens) or self._types[at] == UNUSED:
            return b""
        text = self._tokens[at]
        if self._types[at] == NORMAL and all(char in CHAR_TO_BYTE for char in text):
            return bytes(CHAR_TO_BYTE[char] for char in text)
        return text.encode("utf-8", "surrogateescape")


def end_token_ids(model: ModelLike) -> tuple[int, ...]:
    """The ids that end an answer, ascending: those the file names, and for a key that it lacks the token with GLM's
    text for it. Does not build a tokenizer. Raises ModelError for an id that is not in the vocabulary."""
    source, keys = str(model.path), model.metadata
    vocab = int(model.shape.vocab)
    found = set()
    lacking = set()
    for key, text in END_TOKENS:
        if keys.get(key) is None:
            lacking.add(text)
        else:
            found.add(_checked_id(keys[key], key, vocab, source))
    if lacking:
        types = keys.get("tokenizer.ggml.token_type") or ()
        for at, text in enumerate(keys.get("tokenizer.ggml.tokens") or ()):
            if text in lacking and at < len(types) and types[at] in (CONTROL, USER_DEFINED):
                found.add(at)
    return tuple(sorted(found))


_tokenizers: weakref.WeakKeyDictionary[Any, Tokenizer] = weakref.WeakKeyDictionary()


def tokenizer_of(model_or_tokenizer: ModelLike | Tokenizer) -> Tokenizer:
    """A tokenizer as it is; a model's, built once and kept as long as the model object lives."""
    if isinstance(model_or_tokenizer, Tokenizer):
        return model_or_tokenizer
    try:
        known = _tokenizers.get(model_or_tokenizer)
    except TypeError:  # an object that takes no weak references: build it each time
        return Tokenizer.from_model(model_or_tokenizer)
    if known is None:
        known = _tokenizers[model_or_tokenizer] = Tokenizer.from_model(model_or_tokenizer)
    return known


def _require(keys: Mapping[str, Any], key: str, kind: type, source: str) -> Any:
    value = keys.get(key)
    if value is None:
        raise ModelError(f"{source}: {key} is missing")
    if kind is list and not isinstance(value, str) and isinstance(value, Sequence):
        return value
    if not isinstance(value, kind):
        raise ModelError(f"{source}: {key} is a {type(value).__name__}, not a {kind.__name__}")
    return value


def _checked_id(value: Any, key: str, limit: int, source: str) -> int:
    try:
        token = operator.index(value)
    except TypeError:
        raise ModelError(f"{source}: {key} is {value!r}, not a token id") from None
    if not 0 <= token < limit:
        raise ModelError(f"{source}: {key} is {token}, outside the vocabulary of {limit}")
    return token
