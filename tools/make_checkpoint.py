#!/usr/bin/env python3
"""Makes a small Hugging Face checkpoint of a GlmMoeDsa model with random weights: config, tokenizer, safetensors.

    make_checkpoint.py FOLDER [--form bf16|f16|f32|fp8|mixed] [--fused] [--shards N] [--seed N] [--no-mtp]

It is what converters are tested with. Nothing but numpy is needed, and the same arguments give the same bytes. bf16:
every weight; fp8: the matrices as F8_E4M3 with factors per block of 16 x 32, the rest bf16; mixed: f32 norms, and
matrices of all types by turns. fused: two tensors for all experts of a block, not three for each.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from synthetic.tokenizer import ADDED, CONTROL, vocabulary

from glm52_rt.tokenizer import GLM4_SPLIT

FORMS = ("bf16", "f16", "f32", "fp8", "mixed")
BLOCK = (16, 32)
LAYERS, DENSE, EXPERTS = 4, 1, 4
FULL = ("full", "full", "full", "shared")
HIDDEN, FF, EXPERT_FF, HEADS = 64, 96, 32, 2
Q_LORA, KV_LORA, NOPE, ROPE, VALUE = 32, 64, 24, 8, 32
INDEX_HEADS, INDEX_KEY, VOCAB = 4, 32, 384

Shapes = dict[str, tuple[int, ...]]


def config(mtp: bool, fp8: bool) -> dict[str, Any]:
    """config.json, with the keys that the published one has and that say something about weights."""
    found: dict[str, Any] = {
        "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "dtype": "bfloat16",
        "attention_bias": False, "hidden_act": "silu", "hidden_size": HIDDEN, "intermediate_size": FF,
        "moe_intermediate_size": EXPERT_FF, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "n_routed_experts": EXPERTS, "n_shared_experts": 1, "num_experts_per_tok": 2,
        "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc", "first_k_dense_replace": DENSE,
        "q_lora_rank": Q_LORA, "kv_lora_rank": KV_LORA, "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE,
        "qk_head_dim": NOPE + ROPE, "head_dim": ROPE, "v_head_dim": VALUE, "index_n_heads": INDEX_HEADS,
        "index_head_dim": INDEX_KEY, "index_topk": 8, "indexer_types": list(FULL), "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "max_position_embeddings": 1048576,
        "tie_word_embeddings": False, "vocab_size": VOCAB,
    }  # fmt: skip
    if mtp:
        found["num_nextn_predict_layers"] = 1
    if fp8:
        found["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(BLOCK)}
    return found


def _attention(at: str, full: bool) -> Shapes:
    head = NOPE + ROPE
    found: Shapes = {
        "q_a_proj": (Q_LORA, HIDDEN), "q_a_layernorm": (Q_LORA,), "q_b_proj": (HEADS * head, Q_LORA),
        "kv_a_proj_with_mqa": (KV_LORA + ROPE, HIDDEN), "kv_a_layernorm": (KV_LORA,),
        "kv_b_proj": (HEADS * (NOPE + VALUE), KV_LORA), "o_proj": (HIDDEN, HEADS * VALUE),
    }  # fmt: skip
    if full:
        found |= {"indexer.wq_b": (INDEX_HEADS * INDEX_KEY, Q_LORA), "indexer.wk": (INDEX_KEY, HIDDEN),
                  "indexer.weights_proj": (INDEX_HEADS, HIDDEN), "indexer.k_norm": (INDEX_KEY,)}  # fmt: skip
    shapes: Shapes = {f"{at}self_attn.{name}.weight": shape for name, shape in found.items()}
    if full:
        shapes[f"{at}self_attn.indexer.k_norm.bias"] = (INDEX_KEY,)
    return shapes


def _network(at: str, width: int) -> Shapes:
    return {f"{at}gate_proj.weight": (width, HIDDEN), f"{at}up_proj.weight": (width, HIDDEN),
            f"{at}down_proj.weight": (HIDDEN, width)}  # fmt: skip


def shapes(mtp: bool, fused: bool) -> Shapes:
    """Every tensor, in the order of the model."""
    found: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
                     "lm_head.weight": (VOCAB, HIDDEN)}  # fmt: skip
    for i in range(LAYERS + mtp):
        at = f"model.layers.{i}."
        found |= {f"{at}input_layernorm.weight": (HIDDEN,), f"{at}post_attention_layernorm.weight": (HIDDEN,)}
        found |= _attention(at, i >= LAYERS or FULL[i] == "full")
        if i < DENSE:
            found |= _network(f"{at}mlp.", FF)
            continue
        found |= {f"{at}mlp.gate.weight": (EXPERTS, HIDDEN), f"{at}mlp.gate.e_score_correction_bias": (EXPERTS,)}
        if fused:
            found |= {f"{at}mlp.experts.gate_up_proj": (EXPERTS, 2 * EXPERT_FF, HIDDEN),
                      f"{at}mlp.experts.down_proj": (EXPERTS, HIDDEN, EXPERT_FF)}  # fmt: skip
        for e in range(0 if fused else EXPERTS):
            found |= _network(f"{at}mlp.experts.{e}.", EXPERT_FF)
        found |= _network(f"{at}mlp.shared_experts.", EXPERT_FF)
        if i >= LAYERS:
            found |= {f"{at}eh_proj.weight": (HIDDEN, 2 * HIDDEN), f"{at}enorm.weight": (HIDDEN,),
                      f"{at}hnorm.weight": (HIDDEN,), f"{at}shared_head.norm.weight": (HIDDEN,)}  # fmt: skip
    return found


def _is_quantized(name: str, shape: tuple[int, ...]) -> bool:
    """What FP8 checkpoints have as FP8: the matrices of layers but routers and what the indexer weights heads with."""
    return len(shape) > 1 and ".layers." in name and not name.endswith(("mlp.gate.weight", "weights_proj.weight"))


def _dtype(name: str, shape: tuple[int, ...], form: str, number: int) -> str:
    if name.endswith("e_score_correction_bias"):
        return "F32"
    if form == "fp8":
        return "F8_E4M3" if _is_quantized(name, shape) else "BF16"
    if form == "mixed":
        return ("BF16", "F16", "F32")[number % 3] if len(shape) > 1 else "F32"
    return form.upper()


def _bits(seed: int, count: int) -> np.ndarray:
    """Raw bits of a generator whose stream is fixed by its definition."""
    return np.random.PCG64(seed).random_raw(count)


def values(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Random numbers of a type, most between 1/64 and 1 in size, of either sign."""
    bits = _bits(seed, int(np.prod(shape)))
    sign, exponent, low = bits & 1, bits >> 1 & 7, bits >> 8
    if dtype == "BF16":
        found = (sign << 15 | (120 + exponent) << 7 | low & 0x7F).astype("<u2")
    elif dtype == "F16":
        found = (sign << 15 | (8 + exponent) << 10 | low & 0x3FF).astype("<u2")
    elif dtype == "F32":
        found = (sign << 31 | (120 + exponent) << 23 | low & 0x7FFFFF).astype("<u4")
    else:
        found = (low & 0xFF).astype("u1")
        found[found & 0x7F == 0x7F] = 0  # NaN
    return found.reshape(shape)


def tensors(form: str, fused: bool, mtp: bool, seed: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """(name, dtype, bits) of all."""
    for number, (name, shape) in enumerate(shapes(mtp, fused).items()):
        dtype = _dtype(name, shape, form, number)
        yield name, dtype, values(dtype, shape, seed * 100003 + number)
        if dtype == "F8_E4M3":
            factors = (*shape[:-2], -(-shape[-2] // BLOCK[0]), -(-shape[-1] // BLOCK[1]))
            yield f"{name}_scale_inv", "F32", values("F32", factors, seed * 100003 + 50000 + number)


def write_safetensors(path: Path, found: list[tuple[str, str, np.ndarray]]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, dtype, data in found:
        header[name] = {"dtype": dtype, "shape": list(data.shape), "data_offsets": [at, at + data.nbytes]}
        at += data.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(data.tobytes() for _, _, data in found))


def tokenizer() -> dict[str, Any]:
    """tokenizer.json, GLM's way."""
    v = vocabulary(VOCAB)
    first = VOCAB - len(ADDED) - 24
    added = [{"id": first + i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": v.types[first + i] == CONTROL}
             for i, text in enumerate(ADDED)]  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": GLM4_SPLIT}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
                  "vocab": {token: i for i, token in enumerate(v.tokens[:first])},
                  "merges": [merge.split(" ") for merge in v.merges]},
    }  # fmt: skip


def make_checkpoint(
    folder: Path, form: str = "bf16", *, fused: bool = False, shards: int = 1, seed: int = 1, mtp: bool = True
) -> Path:
    """Writes the checkpoint into folder, which is made, and returns it. Errors: ValueError, OSError."""
    if form not in FORMS:
        raise ValueError(f"form {form!r}: one of {', '.join(FORMS)} is wanted")
    folder.mkdir(parents=True, exist_ok=True)
    found = list(tensors(form, fused, mtp, seed))
    names = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
    if shards == 1:
        write_safetensors(folder / "model.safetensors", found)
    else:
        where = {name: names[i * shards // len(found)] for i, (name, _, _) in enumerate(found)}
        for file in names:
            write_safetensors(folder / file, [one for one in found if where[one[0]] == file])
        size = sum(data.nbytes for _, _, data in found)
        index = {"metadata": {"total_size": size}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    documents = {
        "config.json": config(mtp, form == "fp8"),
        "tokenizer.json": tokenizer(),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>",
                                  "pad_token": "<|endoftext|>"},
        "generation_config.json": {"temperature": 1.0, "top_p": 0.95, "do_sample": True},
    }  # fmt: skip
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document), encoding="utf-8")
    (folder / "chat_template.jinja").write_text("[gMASK]<sop>{% for m in messages %}{{ m.content }}{% endfor %}")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--form", choices=FORMS, default="bf16")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-mtp", dest="mtp", action="store_false")
    options = vars(parser.parse_args())
    print(make_checkpoint(options.pop("folder"), options.pop("form"), **options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
