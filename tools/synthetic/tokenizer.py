"""A byte-level BPE tokenizer with GLM's special tokens, trained on a word list that is shipped here.

Training is a few lines of Python on word counts, so that the result is the same whatever is installed. Every
word is one pre-token of the glm4 split. A vocabulary larger than the words can fill is filled up with made-up
words of two to four syllables, each with the merges that build it.
"""

import heapq
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import product

from .words import CODE, COMMON, OTHER_SCRIPTS

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# GLM's 36 added tokens in their order. Those that a text may show are user-defined, the rest control tokens.
_CONTROL = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>",
    "<|assistant|>", "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>",
    "<|end_of_video|>", "<|begin_of_audio|>", "<|end_of_audio|>", "<|begin_of_transcription|>",
    "<|end_of_transcription|>",
)  # fmt: skip
_USER_DEFINED = (
    "<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>", "<think>", "</think>", "<tool_call>",
    "</tool_call>", "<tool_response>", "</tool_response>", "<arg_key>", "</arg_key>", "<arg_value>",
    "</arg_value>", "/nothink", "<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>",
)  # fmt: skip
ADDED = _CONTROL + _USER_DEFINED
UNUSED_TAIL = 24  # ids behind the last added token, as in the real vocabulary of 154880
_BYTES = 256


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in the byte-level alphabet, their GGUF types, and merges "a b" in order of rank."""

    tokens: list[str]
    types: list[int]
    merges: list[str]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)


@cache
def byte_alphabet() -> list[str]:
    """The character that stands for each byte: itself if it is printable, else one from 256 up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printable else next(others)) for byte in range(_BYTES)]


def _to_alphabet(text: str) -> str:
    return "".join(byte_alphabet()[byte] for byte in text.encode("utf-8"))


def _word_counts() -> Counter[str]:
    """Pre-tokens with counts that fall as in real text: the r-th word comes 1/r as often as the first."""
    counts: Counter[str] = Counter()
    for rank, word in enumerate(COMMON.split()):
        often = 60000 // (rank + 4)
        for form, share in ((" " + word, 8), (word, 2), (word.capitalize(), 1), (" " + word.capitalize(), 1)):
            counts[_to_alphabet(form)] += often * share // 8 + 1
    for words, first in ((CODE, 9000), (OTHER_SCRIPTS, 3000)):
        for rank, word in enumerate(words):
            counts[_to_alphabet(word)] += first // (rank + 3) + 1
    return counts


def _train(counts: Counter[str], merges_max: int) -> list[tuple[str, str]]:
    """The merges of byte-pair encoding, most frequent pair first; of equal counts the smaller pair."""
    words = [list(word) for word in counts]
    often = list(counts.values())
    pairs: Counter[tuple[str, str]] = Counter()
    holders: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
    for number, word in enumerate(words):
        for pair in zip(word, word[1:], strict=False):
            pairs[pair] += often[number]
            holders[pair].add(number)
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapq.heapify(heap)
    merges: list[tuple[str, str]] = []
    known = set(byte_alphabet())
    while heap and len(merges) < merges_max:
        count, best = heapq.heappop(heap)
        if pairs[best] != -count or count == 0:
            continue  # the count has changed since; the newer entry is on the heap, too
        joined = best[0] + best[1]
        if joined not in known:
            known.add(joined)
            merges.append(best)
        touched: set[tuple[str, str]] = set()
        for number in sorted(holders.pop(best)):
            word = words[number]
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] -= often[number]
                touched.add(pair)
            words[number] = word = _join(word, best)
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += often[number]
                holders[pair].add(number)
                touched.add(pair)
        for pair in touched:
            heapq.heappush(heap, (-pairs[pair], pair))
    return merges


def _join(word: list[str], pair: tuple[str, str]) -> list[str]:
    out: list[str] = []
    at = 0
    while at < len(word):
        if at + 1 < len(word) and word[at] == pair[0] and word[at + 1] == pair[1]:
            out.append(pair[0] + pair[1])
            at += 2
        else:
            out.append(word[at])
            at += 1
    return out


class _Builder:
    """Tokens and merges, each only once."""

    def __init__(self) -> None:
        self.tokens = dict.fromkeys(sorted(byte_alphabet()))
        self.merges: dict[tuple[str, str], None] = {}

    def add(self, *splits: tuple[str, str]) -> None:
        """Adds the token that each of splits joins to."""
        self.tokens[splits[0][0] + splits[0][1]] = None
        self.merges.update(dict.fromkeys(splits))


_SYLLABLES = 51  # three of 51 give more words than the real vocabulary has


def _fill(build: _Builder, token_count: int, merge_count: int | None) -> None:
    """Adds made-up words until there are token_count tokens and, if asked, exactly merge_count merges."""
    syllables = []
    for onset, vowel in product("bdfgklmnprstvz", "aeiou"):
        if len(build.tokens) < token_count:
            build.add((onset, vowel))
        for coda in "nrslt":
            syllables.append(onset + vowel + coda)
            if len(build.tokens) < token_count:
                build.add((onset + vowel, coda))
    # Taken from all over the list, so that they look different.
    chosen = [syllables[i * len(syllables) // _SYLLABLES] for i in range(_SYLLABLES)]
    for a, b in product(chosen, repeat=2):
        if len(build.tokens) < token_count:
            build.add((a, b))
    # Words of three syllables have two merges, of four three: so many of the latter that the sum comes out.
    left = token_count - len(build.tokens)
    longer = 0 if merge_count is None else merge_count - len(build.merges) - 2 * left
    threes: set[tuple[str, ...]] = set()
    for a, b, c in product(chosen, repeat=3):
        if len(threes) == left - longer:
            break
        if a + b + c not in build.tokens:
            build.add((a + b, c), (a, b + c))
            threes.add((a, b, c))
    for a, b, c, d in product(chosen, repeat=4):
        if longer <= 0:
            break
        if (a, b, c) in threes and (b, c, d) in threes:
            build.add((a + b, c + d), (a, b + c + d), (a + b + c, d))
            longer -= 1


@cache
def vocabulary(size: int, merge_count: int | None = None) -> Vocabulary:
    """Exactly size tokens: bytes, trained tokens, made-up words, GLM's added tokens, 24 unused ones.

    merge_count fixes the number of merges (the real vocabulary of 154880 has 321649). Errors: ValueError if
    size is too small for the bytes and the added tokens, or the numbers cannot be reached.
    """
    normal = size - len(ADDED) - UNUSED_TAIL
    if normal < _BYTES:
        raise ValueError(
            f"vocabulary of {size}: at least {_BYTES + len(ADDED) + UNUSED_TAIL} tokens are needed"
        )
    build = _Builder()
    for pair in _train(_word_counts(), normal - _BYTES):
        build.add(pair)
    _fill(build, normal, merge_count)
    if len(build.tokens) != normal or (merge_count is not None and len(build.merges) != merge_count):
        raise ValueError(f"vocabulary of {size}: reached {len(build.tokens)} of {normal} tokens and "
                         f"{len(build.merges)} of {merge_count} merges")  # fmt: skip
    unused = [f"[PAD{id_}]" for id_ in range(size - UNUSED_TAIL, size)]
    return Vocabulary(
        tokens=[*build.tokens, *ADDED, *unused],
        types=[NORMAL] * normal + [CONTROL] * len(_CONTROL) + [USER_DEFINED] * len(_USER_DEFINED)
        + [UNUSED] * UNUSED_TAIL,
        merges=[f"{a} {b}" for a, b in build.merges],
    )  # fmt: skip
