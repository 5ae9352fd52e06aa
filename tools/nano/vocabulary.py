"""The tokenizer of glm52-nano: byte-level BPE with GLM-4's split, and GLM-5.2's special tokens at the end."""

import hashlib
import re
from collections.abc import Iterable

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8192
SPECIAL = [
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
]
# Matched in text and printed, so not "special" in the tokenizer's sense.
ADDED = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
]
LEARNED = VOCABULARY - len(SPECIAL) - len(ADDED)
ID = {token: LEARNED + number for number, token in enumerate(SPECIAL + ADDED)}
END_OF_TEXT, GMASK, SOP = ID["<|endoftext|>"], ID["[gMASK]"], ID["<sop>"]
STOP = (END_OF_TEXT, ID["<|user|>"], ID["<|observation|>"])  # eos, eot, eom
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 1048576,
    "eos_token": "<|endoftext|>",
    "pad_token": "<|endoftext|>",
}


def train(sample: Iterable[str]) -> Tokenizer:
    """Learns the merges on sample. The ids of the special tokens are those of ID."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=LEARNED,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=24,
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False) for token in ADDED])
    check(tokenizer)
    return tokenizer


def check(tokenizer: Tokenizer) -> None:
    """Raises ValueError unless the special tokens have the ids that the model was given."""
    for token, number in ID.items():
        if tokenizer.token_to_id(token) != number:
            raise ValueError(f"{token} has id {tokenizer.token_to_id(token)}, not {number}")


def without_specials(page: str) -> str:
    """Text that happens to contain a special token must not become one."""
    return re.sub(
        r"<\|(\w+)\|>|\[(g|s)?MASK\]|</?(think|sop|eop|tool_call|tool_response|arg_key|arg_value)>", " ", page
    )


def encode_documents(tokenizer_path: str, documents: list[str]) -> np.ndarray:
    """uint16 ids of all documents in a row. Half of them (by a hash) start with [gMASK]<sop>, all end with
    <|endoftext|>."""
    tokenizer = Tokenizer.from_file(tokenizer_path)
    check(tokenizer)
    parts = []
    for page, encoding in zip(documents, tokenizer.encode_batch(documents), strict=True):
        even = hashlib.blake2b(page[:200].encode(), digest_size=1).digest()[0] % 2
        parts.append(np.array([*([GMASK, SOP] if even else []), *encoding.ids, END_OF_TEXT], dtype=np.uint16))
    return np.concatenate(parts)
