"""The tokenizer against two others: Hugging Face's, put together from the same lists, and BPE in plain Python.

The strings are random Unicode, mixed with what tokenizers stumble over and with texts that look like special tokens.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from synthetic.tokenizer import ADDED, Vocabulary, vocabulary
from tokenizers import Tokenizer as HfTokenizer

import glm52_rt as rt
from glm52_rt.tokenizer import CONTROL, NORMAL, UNUSED, USER_DEFINED, Tokenizer, end_token_ids, tokenizer_of

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)

AWKWARD = [
    "", " ", "  ", "   \t  ", "\n", "\r\n", "a\r\nb", "\r\r\n\n", " \n \n x", "a  \n", "tab\tand\x0bfeed\x0c",
    "\0", "a\0b", "\x7f", "\u2028", "a\u2028b\u2029c", "\u00a0x", "\u3000x\u3000", "\u200b\u200d\ufeffx", "\x85x",
    "1234567890", "12 345 6789", "1,234.5e-6", "\uff11\uff12\uff13\uff14\uff15", "\u0661\u0662\u0663\u0664",
    "\u00b2\u00b3\u00b9\u00bd", "\u2168\u2169", "x86_64", "0xDEADBEEF",
    "e\u0301te\u0301", "\u0301\u0301", "a\u0300\u0301\u0302\u0303b", "\u1100\u1161\u11a8", "\u0928\u092e\u0938\u094d",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\U0001f1e9\U0001f1ea",
    "\u2764\ufe0f", "1\ufe0f\u20e3", "\U0001f3f4\U000e0067\U000e0062\U000e007f", "\U0010ffff\ufffe\ufdd0",
    "I'm you'LL we'Ve it'S 'tis 'd", "don\u2019t", "'\u017f", "'\u212a", "\u0130'S",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd 123 abc \u3053\u3093\u306b\u3061\u306f",
    "def f(x):\n    return x  # comment\n\n\n", "#include <stdio.h>\r\n", "a" * 300, " " * 300, "\n" * 300,
    " " * 300 + "x", "!?" * 150, "1" * 301, "<|user|", "|user|>", "<|user |>", "<| user|>", "<|USER|>", "<|user|><",
    "<<|user|>>", "[gMASK]<sop>", "[gMASK][gMASK]x", "<think></think>", "< think >", "</think", "/nothink/nothink",
    "[PAD2047]", "<|endoftext|><|endoftext|>", "a<|user|>b<|assistant|>c", "<|us\u200ber|>", "\uff1c|user|\uff1e",
]  # fmt: skip


def hf_tokenizer(listed: Vocabulary, with_added: bool) -> HfTokenizer:
    """What a Hugging Face tokenizer.json of the same vocabulary would give."""
    kinds = list(zip(listed.tokens, listed.types, strict=True))
    flags = {"single_word": False, "lstrip": False, "rstrip": False}
    added = [
        {"id": at, "content": text, **flags, "special": kind == CONTROL, "normalized": kind != CONTROL}
        for at, (text, kind) in enumerate(kinds)
        if kind in (CONTROL, USER_DEFINED)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
        "vocab": {text: at for at, (text, kind) in enumerate(kinds) if kind == NORMAL},
        "merges": listed.merges,
    }  # fmt: skip
    document = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added if with_added else [],
        "normalizer": None, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None, "decoder": byte_level, "model": model,
    }  # fmt: skip
    return HfTokenizer.from_str(json.dumps(document))


LISTED = vocabulary(2048)
OURS = Tokenizer(LISTED.tokens, LISTED.types, LISTED.merges)
HF_PLAIN, HF_ADDED = hf_tokenizer(LISTED, False), hf_tokenizer(LISTED, True)
SPECIAL_IDS = {at for at, kind in enumerate(LISTED.types) if kind != NORMAL}


def pieces_of(words: list[str]) -> list[str]:
    return sorted({word[a:b] for word in words for a in range(len(word)) for b in range(a + 1, len(word) + 1)})


ANY_CHARACTER = st.characters(exclude_categories=["Cs"])
LOOKALIKE = st.sampled_from([*ADDED, "<|user|>", "<think>"]) | st.sampled_from(
    pieces_of(["<|user|>", "</think>", "[gMASK]"])
)
FRAGMENT = st.text(ANY_CHARACTER, max_size=12) | st.sampled_from(AWKWARD) | LOOKALIKE
TEXT = st.lists(FRAGMENT, max_size=5).map("".join)
LOOKALIKES = st.lists(LOOKALIKE | st.text(ANY_CHARACTER, max_size=2), max_size=6).map("".join)


# ---- encoding ----


@pytest.mark.parametrize("text", AWKWARD)
def test_awkward_strings_encode_as_hugging_face_does(text: str) -> None:
    assert OURS.encode(text) == HF_PLAIN.encode(text).ids
    assert OURS.encode(text, special=True) == HF_ADDED.encode(text).ids


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.lists(TEXT, min_size=20, max_size=20))
def test_ten_thousand_random_strings_encode_as_hugging_face_does(texts: list[str]) -> None:
    for text in texts:
        ids = OURS.encode(text)
        assert ids == HF_PLAIN.encode(text).ids
        assert SPECIAL_IDS.isdisjoint(ids)
        assert OURS.decode_bytes(ids) == text.encode("utf-8")
        marked = OURS.encode(text, special=True)
        assert marked == HF_ADDED.encode(text).ids
        assert OURS.decode(marked) == text


def slow_bpe(listed: Vocabulary, text: str) -> list[int]:
    """Byte-pair encoding as it is defined: the pre-token itself if it is a token, else merge the pair of lowest
    rank, leftmost first, until no pair is left."""
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(listed.merges)}
    ids = {text: at for at, text in enumerate(listed.tokens) if listed.types[at] == NORMAL}
    found: list[int] = []
    for word, _ in HF_PLAIN.pre_tokenizer.pre_tokenize_str(text):
        parts = [word] if word in ids else list(word)
        while True:
            pairs = enumerate(zip(parts, parts[1:], strict=False))
            rank, at = min(((ranks.get(pair, 1 << 30), at) for at, pair in pairs), default=(1 << 30, 0))
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ids[part] for part in parts]
    return found


@settings(max_examples=60, deadline=None, derandomize=True)
@given(TEXT)
@example("return the value of the function, please: 12345 <|user|>")
def test_encoding_is_byte_pair_encoding(text: str) -> None:
    assert OURS.encode(text) == slow_bpe(LISTED, text)


def test_a_word_that_is_a_token_is_taken_whole_though_no_merges_lead_to_it() -> None:
    gapped = Vocabulary(LISTED.tokens, LISTED.types, LISTED.merges[::2])
    tokenizer, hf = Tokenizer(*vars(gapped).values()), hf_tokenizer(gapped, False)
    words = [OURS.decode([at]) for at in range(256, 900)]
    ids = [tokenizer.encode(word) for word in words]
    assert ids == [hf.encode(word).ids for word in words] == [slow_bpe(gapped, word) for word in words]


@settings(max_examples=500, deadline=None, derandomize=True)
@given(LOOKALIKES)
@example("".join(ADDED))
@example("<|user|>" * 3)
@example("[PAD2030]")
def test_no_text_becomes_a_special_token(text: str) -> None:
    assert SPECIAL_IDS.isdisjoint(OURS.encode(text))


def test_text_that_is_a_control_token_is_plain_even_as_a_whole_word() -> None:
    """BPE emits a word that is a token as it is: a control token that looks like a word must not be among them."""
    listed = vocabulary(512)
    tokens, types = [*listed.tokens, "hello"], [*listed.types, CONTROL]
    tokenizer = Tokenizer(tokens, types, listed.merges)
    assert len(tokens) - 1 not in tokenizer.encode("hello")
    assert tokenizer.encode("hello", special=True) == [len(tokens) - 1]


def test_special_tokens_are_found_leftmost_then_longest() -> None:
    tokens = [*LISTED.tokens, "<a>", "<a><b>", "<b><c>"]
    tokenizer = Tokenizer(tokens, [*LISTED.types, CONTROL, CONTROL, USER_DEFINED], LISTED.merges)
    first = len(LISTED.tokens)
    assert tokenizer.encode("<a><b><c>", special=True) == [first + 1, *tokenizer.encode("<c>")]
    assert tokenizer.encode("<a>x<b><c>", special=True) == [first, *tokenizer.encode("x"), first + 2]


def test_text_that_no_bytes_stand_for_is_refused() -> None:
    with pytest.raises(rt.ArgumentError, match=r"character 2 of the text is the lone surrogate U\+D800"):
        OURS.encode("ab\ud800c")
    with pytest.raises(rt.ArgumentError, match="1000000 white-space"):
        OURS.encode(" " * 1_000_001)
    assert OURS.decode(OURS.encode(" " * 1_000_000)) == " " * 1_000_000


def test_a_vocabulary_without_some_byte_refuses_text_that_needs_it() -> None:
    listed = vocabulary(512)
    kinds = [UNUSED if text == "~" else kind for text, kind in zip(listed.tokens, listed.types, strict=True)]
    tokenizer = Tokenizer(listed.tokens, kinds, listed.merges)
    assert tokenizer.decode(tokenizer.encode("fine")) == "fine"
    with pytest.raises(rt.ArgumentError, match="no token for byte 0x7E"):
        tokenizer.encode("not~fine")


# ---- decoding ----


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2047) | st.integers(0, 255), max_size=30), st.booleans())
def test_streaming_gives_what_decoding_all_gives(ids: list[int], skip: bool) -> None:
    """Ids below 256 are single bytes here, so that characters are cut everywhere and often broken."""
    stream = OURS.stream(skip_special=skip)
    pieces = [stream.feed(token) for token in ids]
    done = "".join(pieces)
    assert done + stream.flush() == OURS.decode(ids, skip_special=skip)
    assert OURS.decode(ids, skip) == OURS.decode_bytes(ids, skip).decode("utf-8", "replace")
    assert stream.flush() == ""


def test_a_split_character_is_held_back_until_it_is_whole() -> None:
    by_byte = {OURS.decode_bytes([at]): at for at in range(256)}
    ids = [by_byte[bytes([byte])] for byte in "a\u20acb".encode()]
    stream = OURS.stream()
    assert [stream.feed(token) for token in ids] == ["a", "", "", "\u20ac", "b"]
    assert [stream.feed(token) for token in ids[:3]] == ["a", "", ""]
    assert stream.flush() == "\ufffd"


def test_every_token_decodes() -> None:
    for at, (text, kind) in enumerate(zip(LISTED.tokens, LISTED.types, strict=True)):
        if kind == UNUSED:
            assert OURS.decode_bytes([at]) == b""
        elif kind == NORMAL:
            assert OURS.encode(OURS.decode([at])) == [at] or "\ufffd" in OURS.decode([at])
        else:
            assert OURS.decode([at]) == text
    user, think = OURS.special_tokens["<|user|>"], OURS.special_tokens["<think>"]
    assert OURS.decode([user, think, user]) == "<|user|><think><|user|>"
    assert OURS.decode([user, think, user], skip_special=True) == "<think>"


def test_ids_outside_the_vocabulary_are_named() -> None:
    padded = Tokenizer(LISTED.tokens, LISTED.types, LISTED.merges, vocab=2050)
    assert padded.decode_bytes([2048, 2049]) == b""
    for wrong in (-1, 2050, 1 << 40):
        with pytest.raises(rt.ArgumentError, match=f"token {wrong} is outside the vocabulary of 2050"):
            padded.decode([wrong])


# ---- models ----


def fake_model(**changes: Any) -> SimpleNamespace:
    """A model's metadata alone; a change of None takes the key away. Dots in keys are written __."""
    ids = {name: at for at, name in enumerate(LISTED.tokens)}
    keys = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "glm4",
        "tokenizer.ggml.tokens": LISTED.tokens,
        "tokenizer.ggml.token_type": LISTED.types,
        "tokenizer.ggml.merges": LISTED.merges,
        "tokenizer.ggml.eos_token_id": ids["<|endoftext|>"],
        "tokenizer.ggml.eot_token_id": ids["<|user|>"],
        "tokenizer.ggml.eom_token_id": ids["<|observation|>"],
    }
    for key, value in changes.items():
        keys[f"tokenizer.ggml.{key}"] = value
    metadata = {key: value for key, value in keys.items() if value is not None}
    return SimpleNamespace(metadata=metadata, shape=SimpleNamespace(vocab=2048), path="some.gguf")


def test_a_models_tokenizer_is_the_one_of_its_lists(tiny: rt.Model) -> None:
    tokenizer = Tokenizer.from_model(tiny)
    assert tokenizer.vocab == tiny.shape.vocab == 2048
    assert tokenizer.encode("Hello <|user|>", special=True) == HF_ADDED.encode("Hello <|user|>").ids
    assert [LISTED.tokens[at] for at in tokenizer.eos_ids] == ["<|endoftext|>", "<|user|>", "<|observation|>"]
    assert tokenizer.chat_template is not None and "gMASK" in tokenizer.chat_template
    assert tokenizer_of(tiny) is tokenizer_of(tiny) is tokenizer_of(tokenizer_of(tiny))


def test_end_tokens_come_from_keys_then_from_texts() -> None:
    at = LISTED.tokens.index
    all_three = tuple(sorted(map(at, ("<|endoftext|>", "<|user|>", "<|observation|>"))))
    assert end_token_ids(fake_model()) == all_three
    without = fake_model(eos_token_id=None, eot_token_id=None, eom_token_id=None)
    assert end_token_ids(without) == Tokenizer.from_model(without).eos_ids == all_three
    assert end_token_ids(fake_model(eos_token_id=7)) == tuple(sorted((7, *all_three[1:])))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model": "llama"}, rt.UnsupportedError, "some.gguf: tokenizer.ggml.model is 'llama', and only 'gpt2'"),
        ({"pre": "qwen2"}, rt.UnsupportedError, "tokenizer.ggml.pre is 'qwen2'"),
        ({"pre": None}, rt.ModelError, "tokenizer.ggml.pre is missing"),
        ({"pre": 4}, rt.ModelError, "tokenizer.ggml.pre is a int, not a str"),
        ({"tokens": None}, rt.ModelError, "tokenizer.ggml.tokens is missing"),
        ({"token_type": None}, rt.ModelError, "tokenizer.ggml.token_type is missing"),
        ({"merges": "a b"}, rt.ModelError, "tokenizer.ggml.merges is a str"),
        ({"tokens": LISTED.tokens[:-1]}, rt.ModelError, "2048 entries for 2047 tokens"),
        ({"tokens": [*LISTED.tokens, "x"], "token_type": [*LISTED.types, 1]}, rt.ModelError, "vocabulary of 2048"),
        ({"token_type": [7, *LISTED.types[1:]]}, rt.ModelError, r"token_type\[0\] is 7"),
        ({"tokens": [LISTED.tokens[1], *LISTED.tokens[1:]]}, rt.ModelError, r"tokens\[0\] and \[1\] are both"),
        ({"tokens": ["\udcff", *LISTED.tokens[1:]]}, rt.ModelError, "make no BPE"),
        ({"merges": ["a b c"]}, rt.ModelError, r"merges\[0\] is 'a b c'"),
        ({"merges": [*LISTED.merges, "a "]}, rt.ModelError, r"merges\[\d+\] is 'a '"),
        ({"merges": ["<|user|> a"]}, rt.ModelError, "out of vocabulary"),
        ({"eos_token_id": 2048}, rt.ModelError, "eos_token_id is 2048, outside the vocabulary of 2048"),
        ({"eot_token_id": -1}, rt.ModelError, "eot_token_id is -1"),
        ({"bos_token_id": "x"}, rt.ModelError, "bos_token_id is 'x', not a token id"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(changes: dict, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        Tokenizer.from_model(fake_model(**changes))


def test_the_real_vocabulary_is_built_in_seconds() -> None:
    """154,880 tokens and 321,649 merges as in GLM-5.2; a second on a desktop, and the bound is for a slow machine."""
    listed = vocabulary(154880, 321649)
    start = time.monotonic()
    tokenizer = Tokenizer(listed.tokens, listed.types, listed.merges)
    assert time.monotonic() - start < 15
    assert tokenizer.special_tokens["<|endoftext|>"] == 154820
    assert tokenizer.special_tokens["<think>"] == 154841


def test_one_tokenizer_serves_a_made_file_of_any_preset(make: Callable[..., Path]) -> None:
    with rt.Model.open(make("micro", template=False)) as model:
        tokenizer = Tokenizer.from_model(model)
        assert tokenizer.chat_template is None
        assert tokenizer.decode(tokenizer.encode("plain text \u20ac")) == "plain text \u20ac"
