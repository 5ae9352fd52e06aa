"""The key-value pairs of a synthetic model: hyperparameters in the converter's order, tokenizer, template."""

from pathlib import Path

from gguf import GGUFValueType

from .presets import Geometry
from .tokenizer import Vocabulary
from .writer import Pair

V = GGUFValueType
_TEMPLATE = Path(__file__).resolve().parents[2] / "python/glm52_rt/chat_template.jinja"
SIGMOID = 2
TYPES_AS = ("bool", "int", "string", "none")


def general(name: str, description: str) -> list[Pair]:
    return [
        Pair("general.architecture", V.STRING, "glm-dsa"),
        Pair("general.type", V.STRING, "model"),
        Pair("general.name", V.STRING, name),
        Pair("general.description", V.STRING, description),
        Pair("general.quantization_version", V.UINT32, 2),
    ]


def hyperparameters(g: Geometry, gating_key: bool, types_as: str) -> list[Pair]:
    numbers = {
        "block_count": g.blocks,
        "context_length": g.context,
        "embedding_length": g.hidden,
        "feed_forward_length": g.dense_ff,
        "attention.head_count": g.heads,
        "attention.head_count_kv": 1,
        "rope.freq_base": g.rope_theta,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "expert_count": g.experts,
        "expert_used_count": g.experts_used,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        **({"expert_gating_func": SIGMOID} if gating_key else {}),
        "attention.key_length": g.kv_lora + g.rope,
        "attention.value_length": g.kv_lora,
        "leading_dense_block_count": g.dense_layers,
        "vocab_size": g.vocab,
        "attention.q_lora_rank": g.q_lora,
        "attention.kv_lora_rank": g.kv_lora,
        "attention.key_length_mla": g.nope + g.rope,
        "attention.value_length_mla": g.value,
        "expert_feed_forward_length": g.expert_ff,
        "expert_shared_count": 1,
        "expert_weights_scale": 2.5,
        "expert_weights_norm": True,
        "rope.dimension_count": g.rope,
        **({"nextn_predict_layers": g.nextn} if g.nextn else {}),
        "attention.indexer.head_count": g.index_heads,
        "attention.indexer.key_length": g.index_key,
        "attention.indexer.top_k": g.index_top_k,
    }
    kinds = {bool: V.BOOL, int: V.UINT32, float: V.FLOAT32}
    pairs = [Pair(f"glm-dsa.{key}", kinds[type(value)], value) for key, value in numbers.items()]
    key = "glm-dsa.attention.indexer.types"
    full = [g.is_full(layer) for layer in range(g.layers)]
    if types_as == "bool":
        pairs.append(Pair(key, V.ARRAY, full, V.BOOL))
    elif types_as == "int":
        pairs.append(Pair(key, V.ARRAY, [int(is_full) for is_full in full], V.UINT32))
    elif types_as == "string":
        pairs.append(Pair(key, V.ARRAY, ["full" if is_full else "shared" for is_full in full], V.STRING))
    return pairs


def tokenizer(vocabulary: Vocabulary, template: bool) -> list[Pair]:
    ids = {
        "eos": "<|endoftext|>",
        "padding": "<|endoftext|>",
        "unknown": "<|endoftext|>",
        "bos": "[gMASK]",
        "eot": "<|user|>",
        "eom": "<|observation|>",
        "fim_pre": "<|code_prefix|>",
        "fim_mid": "<|code_middle|>",
        "fim_suf": "<|code_suffix|>",
    }
    pairs = [
        Pair("tokenizer.ggml.model", V.STRING, "gpt2"),
        Pair("tokenizer.ggml.pre", V.STRING, "glm4"),
        Pair("tokenizer.ggml.tokens", V.ARRAY, vocabulary.tokens, V.STRING),
        Pair("tokenizer.ggml.token_type", V.ARRAY, vocabulary.types, V.INT32),
        Pair("tokenizer.ggml.merges", V.ARRAY, vocabulary.merges, V.STRING),
        *(
            Pair(f"tokenizer.ggml.{key}_token_id", V.UINT32, vocabulary.id_of(token))
            for key, token in ids.items()
        ),
    ]
    if template:
        pairs.append(Pair("tokenizer.chat_template", V.STRING, _TEMPLATE.read_text(encoding="utf-8")))
    return pairs


def split(number: int, count: int, tensor_count: int) -> list[Pair]:
    return [
        Pair("split.no", V.UINT16, number),
        Pair("split.count", V.UINT16, count),
        Pair("split.tensors.count", V.INT32, tensor_count),
    ]
