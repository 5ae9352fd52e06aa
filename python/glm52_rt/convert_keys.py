"""Metadata of a GGUF from what lies beside the weights of a checkpoint: hyperparameters, tokenizer, chat template."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_VERSION, LlamaFileType, size_label

from .convert_plan import Config, Plan
from .errors import IoError, ModelError, UnsupportedError
from .gguf_writer import Pair, array, pair
from .safetensors_file import read_json
from .tokenizer import GLM4_SPLIT

SIGMOID = 2
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
FILE_TYPES = {"F32": LlamaFileType.ALL_F32, "F16": LlamaFileType.MOSTLY_F16, "BF16": LlamaFileType.MOSTLY_BF16,
              "Q8_0": LlamaFileType.MOSTLY_Q8_0}  # fmt: skip
SAMPLING = {"temperature": ("temp", "f32"), "top_p": ("top_p", "f32"), "min_p": ("min_p", "f32"),
            "top_k": ("top_k", "i32")}  # fmt: skip
# What GLM's conversations end and begin with, by the names of GGUF's keys.
NAMED = {"bos": "[gMASK]", "eot": "<|user|>", "unknown": "<|endoftext|>", "eom": "<|observation|>"}
TOKENIZER_BYTES_MAX = 64 << 20


def optional_json(path: Path, what: str) -> dict[str, Any]:
    found = read_json(path, what) if path.exists() else {}
    if not isinstance(found, dict):
        raise ModelError(f"{path}: {what} is no JSON object")
    return found


def _size_label(plan: Plan) -> str:
    """"256x4.6B": experts, and the weights outside of stacks together with those of one expert of each."""
    shared = one = total = 0
    for target in plan.targets:
        size = math.prod(target.shape)
        total += size
        if "_exps." in target.name:
            one += size // target.shape[0]
        else:
            shared += size
    return size_label(total, shared, one, plan.config.experts if one else 0)


def general(plan: Plan, folder: Path, name: str, kind: str) -> list[Pair]:
    found = [pair("general.architecture", "string", "glm-dsa"), pair("general.type", "string", "model")]
    generation = optional_json(folder / "generation_config.json", "the generation config")
    for key, (new, number) in SAMPLING.items():
        value = generation.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 31:
            value = int(value) if number == "i32" else float(value)
            found.append(pair(f"general.sampling.{new}", number, value))
    return [
        *found,
        pair("general.name", "string", name),
        pair("general.size_label", "string", _size_label(plan)),
        pair("general.file_type", "u32", int(FILE_TYPES[kind])),
        pair("general.quantization_version", "u32", GGML_QUANT_VERSION),
    ]


def hyperparameters(c: Config) -> list[Pair]:
    numbers: dict[str, int | float | bool] = {
        "block_count": c.layers + c.nextn,
        "context_length": c.context,
        "embedding_length": c.hidden,
        "feed_forward_length": c.dense_ff,
        "attention.head_count": c.heads,
        "attention.head_count_kv": 1,
        "rope.freq_base": c.rope_base,
        "attention.layer_norm_rms_epsilon": c.rms_epsilon,
        "expert_count": c.experts,
        "expert_used_count": c.experts_used,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_gating_func": SIGMOID,
        "attention.key_length": c.kv_lora + c.rope,
        "attention.value_length": c.kv_lora,
        "leading_dense_block_count": c.dense_layers,
        "vocab_size": c.vocab,
        "attention.q_lora_rank": c.q_lora,
        "attention.kv_lora_rank": c.kv_lora,
        "attention.key_length_mla": c.nope + c.rope,
        "attention.value_length_mla": c.value,
        "expert_feed_forward_length": c.expert_ff,
        "expert_shared_count": c.shared_experts,
        "expert_weights_scale": c.expert_scale,
        **({"expert_weights_norm": True} if c.expert_norm else {}),
        "rope.dimension_count": c.rope_dimensions,
        **({"nextn_predict_layers": c.nextn} if c.nextn else {}),
        "attention.indexer.head_count": c.index_heads,
        "attention.indexer.key_length": c.index_key,
        "attention.indexer.top_k": c.index_top_k,
    }
    kinds = {bool: "bool", int: "u32", float: "f32"}
    pairs = [pair(f"glm-dsa.{key}", kinds[type(value)], value) for key, value in numbers.items()]
    if c.has_index_types:
        pairs.append(array("glm-dsa.attention.indexer.types", "bool", c.index_full))
    return pairs


# ---- tokenizer ----


def _splits_as_glm4(pre: Any) -> bool:
    parts = pre.get("pretokenizers", [pre]) if isinstance(pre, dict) else []
    patterns = [p["pattern"].get("Regex") for p in parts if isinstance(p, dict) and isinstance(p.get("pattern"), dict)]
    return patterns == [GLM4_SPLIT]


def _added(path: Path, document: dict[str, Any], vocab: int) -> dict[int, tuple[str, int]]:
    """Text and type of the tokens that are matched before anything is split."""
    found: dict[int, tuple[str, int]] = {}
    for entry in document.get("added_tokens") or []:
        number, text = (entry.get("id"), entry.get("content")) if isinstance(entry, dict) else (None, None)
        if not isinstance(number, int) or not 0 <= number < vocab or not isinstance(text, str) or not text:
            raise ModelError(f"{path}: added token {entry!r} has no text and id below {vocab}")
        # Texts of this form are control tokens, also where a checkpoint does not say so.
        is_control = entry.get("special") is True or (text.startswith("<|") and text.endswith("|>"))
        found[number] = (text, CONTROL if is_control else USER_DEFINED)
    return found


def _tokens(path: Path, document: dict[str, Any], vocab: int) -> tuple[list[str], list[int]]:
    model = document.get("model")
    pieces = model.get("vocab") if isinstance(model, dict) and model.get("type") == "BPE" else None
    if not isinstance(pieces, dict) or not _splits_as_glm4(document.get("pre_tokenizer")):
        raise UnsupportedError(f"{path}: not a byte-level BPE tokenizer with GLM-4's split")
    tokens: list[str | None] = [None] * vocab
    for text, number in pieces.items():
        if not isinstance(number, int) or not 0 <= number < vocab or tokens[number] is not None:
            raise ModelError(f"{path}: token {text!r} has the id {number!r}: below {vocab} and each once is wanted")
        tokens[number] = text
    types = [NORMAL if token is not None else UNUSED for token in tokens]
    for number, (text, kind) in _added(path, document, vocab).items():
        tokens[number], types[number] = text, kind
    return [f"[PAD{i}]" if token is None else token for i, token in enumerate(tokens)], types


def _merges(path: Path, document: dict[str, Any]) -> list[str]:
    found = []
    for merge in document["model"].get("merges") or []:
        two = merge if isinstance(merge, list) else str(merge).split(" ")
        if len(two) != 2 or not all(isinstance(part, str) and part for part in two):
            raise ModelError(f"{path}: merge {merge!r} is not two texts")
        # A space in a text would be taken for the one between them; byte-level BPE writes it as this letter.
        found.append(" ".join(part.replace(" ", "\u0120") for part in two))
    return found


def _token_ids(folder: Path, config: dict[str, Any], ids: dict[str, int]) -> list[Pair]:
    """What ends a text and pads it as the checkpoint names it, the rest as GLM does."""
    settings = optional_json(folder / "tokenizer_config.json", "the tokenizer's config")
    found: dict[str, int] = {}
    for key, old in (("eos", "eos_token"), ("padding", "pad_token")):
        text = settings.get(old)
        text = text.get("content") if isinstance(text, dict) else text
        number = ids.get(text) if isinstance(text, str) else None
        listed = config.get(f"{old}_id")
        number = listed if number is None and isinstance(listed, int) else number
        if number is None and isinstance(listed, list) and listed:
            number = listed[0]
        if isinstance(number, int) and number in ids.values():
            found[key] = number
    found |= {key: ids[text] for key, text in NAMED.items() if text in ids}
    pairs = [pair(f"tokenizer.ggml.{key}_token_id", "u32", number) for key, number in found.items()]
    for key in ("bos", "eos"):
        value = settings.get(f"add_{key}_token")
        if isinstance(value, bool):
            pairs.append(pair(f"tokenizer.ggml.add_{key}_token", "bool", value))
    return pairs


def _template(folder: Path) -> list[Pair]:
    path = folder / "chat_template.jinja"
    text = optional_json(folder / "tokenizer_config.json", "the tokenizer's config").get("chat_template")
    if not isinstance(text, str):
        try:
            text = path.read_text(encoding="utf-8") if path.exists() else None
        except OSError as error:
            raise IoError(f"{path}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise ModelError(f"{path}: not UTF-8") from None
    return [] if text is None else [pair("tokenizer.chat_template", "string", text)]


def tokenizer(folder: Path, c: Config) -> list[Pair]:
    """Errors: UnsupportedError for another tokenizer than GLM's, ModelError for a malformed one, IoError."""
    path = folder / "tokenizer.json"
    document = read_json(path, "the tokenizer")
    if not isinstance(document, dict):
        raise ModelError(f"{path}: the tokenizer is no JSON object")
    tokens, types = _tokens(path, document, c.vocab)
    ids = {token: number for number, token in enumerate(tokens)}
    return [
        pair("tokenizer.ggml.model", "string", "gpt2"),
        pair("tokenizer.ggml.pre", "string", "glm4"),
        array("tokenizer.ggml.tokens", "string", tokens),
        array("tokenizer.ggml.token_type", "i32", types),
        array("tokenizer.ggml.merges", "string", _merges(path, document)),
        *_token_ids(folder, c.raw, ids),
        *_template(folder),
    ]
