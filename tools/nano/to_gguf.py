"""Writes the trained model as GGUF (architecture glm-dsa).

    python tools/nano/to_gguf.py MODEL_FOLDER FILE [--type BF16|F32|Q8_0]

Norms, the router and the indexer's projection stay F32; every value of the BF16 checkpoint is kept exactly
but under Q8_0. kv_b_proj is split per head into attn_k_b (its rows transposed) and attn_v_b. The chat
template is that of the Python package.
"""

import argparse
import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from safetensors.torch import load_file

from vocabulary import ADDED, ID, SPECIAL, VOCABULARY

NAME, VERSION = "glm52-nano", "v1"
TEMPLATE = Path(__file__).resolve().parents[2] / "python/glm52_rt/chat_template.jinja"
ATTENTION = {
    "q_a_proj": "attn_q_a",
    "q_a_layernorm": "attn_q_a_norm",
    "q_b_proj": "attn_q_b",
    "kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "kv_a_layernorm": "attn_kv_a_norm",
    "o_proj": "attn_output",
}
INDEXER = {
    "wq_b.weight": "attn_q_b.weight",
    "wk.weight": "attn_k.weight",
    "k_norm.weight": "k_norm.weight",
    "k_norm.bias": "k_norm.bias",
    "weights_proj.weight": "proj.weight",
}
FEED_FORWARD = {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
MTP = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "shared_head.norm": "shared_head_norm"}
ALWAYS_F32 = ("ffn_gate_inp.weight", "exp_probs_b.bias", "indexer.proj.weight")


def block_tensors(weights: dict[str, np.ndarray], c: dict, i: int) -> dict[str, np.ndarray]:
    """The tensors of block i under their GGUF names, as float32 in numpy's order (last axis contiguous)."""
    source, block = f"model.layers.{i}.", f"blk.{i}."
    result = {
        block + "attn_norm.weight": weights[source + "input_layernorm.weight"],
        block + "ffn_norm.weight": weights[source + "post_attention_layernorm.weight"],
    }
    for old, new in ATTENTION.items():
        result[f"{block}{new}.weight"] = weights[f"{source}self_attn.{old}.weight"]
    heads, nope, value = c["num_attention_heads"], c["qk_nope_head_dim"], c["v_head_dim"]
    kv_b = weights[source + "self_attn.kv_b_proj.weight"].reshape(heads, nope + value, c["kv_lora_rank"])
    result[block + "attn_k_b.weight"] = np.ascontiguousarray(kv_b[:, :nope].transpose(0, 2, 1))
    result[block + "attn_v_b.weight"] = np.ascontiguousarray(kv_b[:, nope:])
    for old, new in INDEXER.items():
        if f"{source}self_attn.indexer.{old}" in weights:
            result[f"{block}indexer.{new}"] = weights[f"{source}self_attn.indexer.{old}"]
    mlp = source + "mlp."
    for old, new in FEED_FORWARD.items():
        if mlp + old + ".weight" in weights:
            result[f"{block}{new}.weight"] = weights[f"{mlp}{old}.weight"]
            continue
        experts = [weights[f"{mlp}experts.{e}.{old}.weight"] for e in range(c["n_routed_experts"])]
        result[f"{block}{new}_exps.weight"] = np.stack(experts)
        result[f"{block}{new}_shexp.weight"] = weights[f"{mlp}shared_experts.{old}.weight"]
    if mlp + "gate.weight" in weights:
        result[block + "ffn_gate_inp.weight"] = weights[mlp + "gate.weight"]
        result[block + "exp_probs_b.bias"] = weights[mlp + "gate.e_score_correction_bias"]
    for old, new in MTP.items():
        if f"{source}{old}.weight" in weights:
            result[f"{block}nextn.{new}.weight"] = weights[f"{source}{old}.weight"]
    return result


def all_tensors(weights: dict[str, np.ndarray], c: dict) -> dict[str, np.ndarray]:
    result = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
        "output.weight": weights["lm_head.weight"],
    }
    for i in range(c["num_hidden_layers"] + c["num_nextn_predict_layers"]):
        result |= block_tensors(weights, c, i)
    taken, given = sum(x.size for x in result.values()), sum(x.size for x in weights.values())
    if taken != given:
        raise ValueError(f"the checkpoint has {given} values, {taken} of them have a place in the file")
    return result


def add_hyperparameters(w: gguf.GGUFWriter, c: dict) -> None:
    latent, rope = c["kv_lora_rank"], c["qk_rope_head_dim"]
    w.add_block_count(c["num_hidden_layers"] + c["num_nextn_predict_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(1)
    w.add_rope_freq_base(c["rope_parameters"]["rope_theta"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_expert_count(c["n_routed_experts"])
    w.add_expert_used_count(c["num_experts_per_tok"])
    w.add_expert_group_count(c["n_group"])
    w.add_expert_group_used_count(c["topk_group"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_key_length(latent + rope)
    w.add_value_length(latent)
    w.add_leading_dense_block_count(c["first_k_dense_replace"])
    w.add_vocab_size(c["vocab_size"])
    w.add_q_lora_rank(c["q_lora_rank"])
    w.add_kv_lora_rank(latent)
    w.add_key_length_mla(c["qk_nope_head_dim"] + rope)
    w.add_value_length_mla(c["v_head_dim"])
    w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    w.add_expert_shared_count(c["n_shared_experts"])
    w.add_expert_weights_scale(c["routed_scaling_factor"])
    w.add_expert_weights_norm(True)
    w.add_rope_dimension_count(rope)
    w.add_nextn_predict_layers(c["num_nextn_predict_layers"])
    w.add_uint32("glm-dsa.attention.indexer.head_count", c["index_n_heads"])
    w.add_uint32("glm-dsa.attention.indexer.key_length", c["index_head_dim"])
    w.add_uint32("glm-dsa.attention.indexer.top_k", c["index_topk"])
    w.add_array("glm-dsa.attention.indexer.types", [kind == "full" for kind in c["indexer_types"]])


def add_tokenizer(w: gguf.GGUFWriter, folder: Path) -> None:
    model = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    pieces = {number: token for token, number in model["model"]["vocab"].items()}
    pieces |= {number: token for token, number in ID.items()}
    kinds = {ID[token]: gguf.TokenType.CONTROL for token in SPECIAL}
    kinds |= {ID[token]: gguf.TokenType.USER_DEFINED for token in ADDED}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("glm4")
    w.add_token_list([pieces[number] for number in range(VOCABULARY)])
    w.add_token_types([kinds.get(number, gguf.TokenType.NORMAL) for number in range(VOCABULARY)])
    w.add_token_merges(merges)
    w.add_eos_token_id(ID["<|endoftext|>"])
    w.add_pad_token_id(ID["<|endoftext|>"])
    w.add_unk_token_id(ID["<|endoftext|>"])
    w.add_bos_token_id(ID["[gMASK]"])
    w.add_eot_token_id(ID["<|user|>"])
    w.add_eom_token_id(ID["<|observation|>"])
    w.add_chat_template(TEMPLATE.read_text(encoding="utf-8"))


def write(folder: Path, path: Path, kind: Type) -> None:
    """Raises ValueError when the checkpoint has values without a place in the file."""
    c = json.loads((folder / "config.json").read_text())
    weights = {
        name: x.to(torch.float32).numpy() for name, x in load_file(folder / "model.safetensors").items()
    }
    w = gguf.GGUFWriter(path, "glm-dsa")
    w.add_type(gguf.GGUFType.MODEL)
    w.add_name(f"{NAME} {VERSION}")
    w.add_version(VERSION)
    w.add_description(
        "A small trained model of the GLM-5.2 architecture, made to try and to test glm52-rt. It knows "
        "little and errs often; nothing it says is a source."
    )
    w.add_license("mit")
    w.add_size_label("68M")
    w.add_sampling_temp(1.0)
    w.add_sampling_top_p(0.95)
    add_hyperparameters(w, c)
    w.add_file_type(
        {
            Type.F32: gguf.LlamaFileType.ALL_F32,
            Type.BF16: gguf.LlamaFileType.MOSTLY_BF16,
            Type.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
        }[kind]
    )
    w.add_quantization_version(gguf.GGML_QUANT_VERSION)
    add_tokenizer(w, folder)
    for name, x in all_tensors(weights, c).items():
        own = Type.F32 if x.ndim == 1 or name.endswith(ALWAYS_F32) else kind
        w.add_tensor(name, gguf.quants.quantize(x, own), raw_dtype=own)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("path", type=Path)
    parser.add_argument("--type", default="BF16", choices=["BF16", "F32", "Q8_0"])
    given = parser.parse_args()
    write(given.folder, given.path, Type[given.type])
