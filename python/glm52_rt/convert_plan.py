"""Which tensors a GGUF of a GlmMoeDsa checkpoint has, what each is made from, and whether the checkpoint has all of
it and nothing else. No weights are read here.

Shapes are PyTorch's, the contiguous dimension last. Weights stay in the order they have but for kv_b_proj, which is cut
per head into attn_k_b, its rows transposed, and attn_v_b.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import ModelError, UnsupportedError
from .safetensors_file import Source, SourceTensor, read_json

BLOCKS_MAX = 512
NUMBER_MAX = 1 << 31
EXTENDED_CONTEXT = 1048576  # from here on the schedule of 5.2 holds where a config does not tell which layers are full
SCALE = "_scale_inv"
FLOATS = ("BF16", "F16", "F32", "F8_E4M3")
IGNORED = (".rotary_emb.inv_freq",)

ATTENTION = {"q_a_proj": "attn_q_a", "q_a_layernorm": "attn_q_a_norm", "q_b_proj": "attn_q_b",
             "kv_a_proj_with_mqa": "attn_kv_a_mqa", "kv_a_layernorm": "attn_kv_a_norm",
             "o_proj": "attn_output"}  # fmt: skip
INDEXER = {"wq_b.weight": "attn_q_b.weight", "wk.weight": "attn_k.weight", "weights_proj.weight": "proj.weight",
           "k_norm.weight": "k_norm.weight", "k_norm.bias": "k_norm.bias"}  # fmt: skip
FEED_FORWARD = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}


@dataclass(frozen=True)
class Config:
    """Numbers of config.json, as its makers name them. Errors: ModelError, UnsupportedError."""

    path: Path
    raw: dict[str, Any]
    layers: int
    nextn: int
    hidden: int
    vocab: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int
    dense_layers: int
    dense_ff: int
    experts: int
    experts_used: int
    expert_ff: int
    shared_experts: int
    index_heads: int
    index_key: int
    index_top_k: int
    context: int
    rope_base: float
    rms_epsilon: float
    expert_scale: float
    expert_norm: bool
    rope_dimensions: int
    tied: bool
    index_full: tuple[bool, ...]
    has_index_types: bool
    fp8_block: tuple[int, int]

    @classmethod
    def read(cls, folder: Path, mtp: bool = True) -> Config:
        path = folder / "config.json"
        raw = read_json(path, "the config")
        if not isinstance(raw, dict):
            raise ModelError(f"{path}: no JSON object")
        return _config(path, raw, mtp)


def _number(path: Path, raw: dict[str, Any], key: str, low: int, high: int, default: int | None = None) -> int:
    value = raw.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ModelError(f"{path}: {key} is {value!r}, a whole number in {low} .. {high} is wanted")
    return value


def _real(path: Path, raw: dict[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
        raise ModelError(f"{path}: {key} is {value!r}, a positive number is wanted")
    return float(value)


def _words(path: Path, raw: dict[str, Any], key: str, count: int, words: tuple[str, str]) -> tuple[str, ...] | None:
    """A list of one word of two for each layer; None if there is none."""
    value = raw.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != count or not all(word in words for word in value):
        raise ModelError(f"{path}: {key} is no list of {count} times {words[0]} or {words[1]}")
    return tuple(value)


def _check_supported(path: Path, raw: dict[str, Any]) -> None:
    names = raw.get("architectures") or []
    if names and "GlmMoeDsaForCausalLM" not in names:
        raise UnsupportedError(f"{path}: architectures is {names!r}, GlmMoeDsaForCausalLM is converted")
    for key, wanted in (("hidden_act", "silu"), ("scoring_func", "sigmoid"), ("n_group", 1), ("topk_group", 1),
                        ("attention_bias", False), ("moe_layer_freq", 1)):  # fmt: skip
        if raw.get(key, wanted) != wanted:
            raise UnsupportedError(f"{path}: {key} is {raw[key]!r}, only {wanted!r} is converted")
    quantization = raw.get("quantization_config")
    if quantization is not None and (not isinstance(quantization, dict) or quantization.get("quant_method") != "fp8"):
        raise UnsupportedError(f"{path}: quantization_config is of another method than fp8")


def _rope(path: Path, raw: dict[str, Any]) -> dict[str, Any]:
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default")) if isinstance(rope, dict) else rope
    if kind != "default":
        raise UnsupportedError(f"{path}: positions are scaled ({kind!r}); only rope_type default is converted")
    return {"rope_theta": raw.get("rope_theta"), **rope}


def _dense_layers(path: Path, raw: dict[str, Any], layers: int) -> int:
    kinds = _words(path, raw, "mlp_layer_types", layers, ("dense", "sparse"))
    if kinds is None:
        return _number(path, raw, "first_k_dense_replace", 0, layers)
    count = kinds.count("dense")
    if "dense" in kinds[count:] or raw.get("first_k_dense_replace", count) != count:
        raise UnsupportedError(f"{path}: mlp_layer_types: dense layers must come first, first_k_dense_replace of them")
    return count


def _config(path: Path, raw: dict[str, Any], mtp: bool) -> Config:
    _check_supported(path, raw)
    rope = _rope(path, raw)

    def number(key: str, low: int = 1, high: int = NUMBER_MAX, default: int | None = None) -> int:
        return _number(path, raw, key, low, high, default)

    layers, context = number("num_hidden_layers", 1, BLOCKS_MAX - 8), number("max_position_embeddings")
    kinds = _words(path, raw, "indexer_types", layers, ("full", "shared"))
    if kinds is not None:
        full = tuple(kind == "full" for kind in kinds)
    else:
        full = tuple(context < EXTENDED_CONTEXT or i < 2 or (i - 2) % 4 == 0 for i in range(layers))
    block = (raw.get("quantization_config") or {}).get("weight_block_size", [128, 128])
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and 0 < n < 65536 for n in block):
        raise ModelError(f"{path}: weight_block_size is {block!r}, two sizes are wanted")
    dimensions = int(number("qk_rope_head_dim") * _real(path, rope, "partial_rotary_factor", 1.0))
    return Config(
        path, raw, layers, number("num_nextn_predict_layers", 0, 8, 0) if mtp else 0,
        number("hidden_size"), number("vocab_size"), number("num_attention_heads"), number("q_lora_rank"),
        number("kv_lora_rank"), number("qk_nope_head_dim"), number("qk_rope_head_dim"), number("v_head_dim"),
        _dense_layers(path, raw, layers), number("intermediate_size"), number("n_routed_experts", 1, 65536),
        number("num_experts_per_tok", 1, 65536), number("moe_intermediate_size"), number("n_shared_experts", 1, 64),
        number("index_n_heads"), number("index_head_dim"), number("index_topk"), context,
        _real(path, rope, "rope_theta"), _real(path, raw, "rms_norm_eps"),
        _real(path, raw, "routed_scaling_factor", 1.0), raw.get("norm_topk_prob") is True, dimensions,
        raw.get("tie_word_embeddings") is True, full, kinds is not None, (block[0], block[1]),
    )  # fmt: skip


# ---- what a tensor is made from ----


@dataclass(frozen=True)
class Rows:
    """count rows of a tensor from row first on, all leading dimensions counted as one; transposed: as columns."""

    name: str
    first: int
    count: int
    transposed: bool = False


@dataclass(frozen=True)
class Target:
    """A tensor of the GGUF. parts in order are all of it, each some rows of the checkpoint's tensors."""

    name: str
    shape: tuple[int, ...]
    parts: tuple[Rows, ...]
    is_float: bool  # stays F32 whatever type the file has


@dataclass
class Plan:
    """Everything that is made, and the shape that each tensor of the checkpoint must have."""

    config: Config
    targets: list[Target] = field(default_factory=list)
    wanted: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def take(self, name: str, source: str, shape: Sequence[int], is_float: bool = False) -> None:
        """A tensor that is one of the checkpoint's as it is."""
        self.wanted[source] = tuple(shape)
        rows = 1
        for size in shape[:-1]:
            rows *= size
        is_float = is_float or len(shape) == 1
        self.targets.append(Target(name, tuple(shape), (Rows(source, 0, rows),), is_float))


def _attention(plan: Plan, source: str, block: str) -> None:
    c = plan.config
    shapes = {
        "q_a_proj": (c.q_lora, c.hidden), "q_a_layernorm": (c.q_lora,),
        "q_b_proj": (c.heads * (c.nope + c.rope), c.q_lora), "kv_a_proj_with_mqa": (c.kv_lora + c.rope, c.hidden),
        "kv_a_layernorm": (c.kv_lora,), "o_proj": (c.hidden, c.heads * c.value),
    }  # fmt: skip
    for old, new in ATTENTION.items():
        plan.take(f"{block}{new}.weight", f"{source}self_attn.{old}.weight", shapes[old])
    kv_b, head = f"{source}self_attn.kv_b_proj.weight", c.nope + c.value
    plan.wanted[kv_b] = (c.heads * head, c.kv_lora)
    keys = tuple(Rows(kv_b, h * head, c.nope, True) for h in range(c.heads))
    values = tuple(Rows(kv_b, h * head + c.nope, c.value) for h in range(c.heads))
    plan.targets.append(Target(f"{block}attn_k_b.weight", (c.heads, c.kv_lora, c.nope), keys, False))
    plan.targets.append(Target(f"{block}attn_v_b.weight", (c.heads, c.value, c.kv_lora), values, False))


def _indexer(plan: Plan, source: str, block: str) -> None:
    c = plan.config
    shapes = {"wq_b.weight": (c.index_heads * c.index_key, c.q_lora), "wk.weight": (c.index_key, c.hidden),
              "weights_proj.weight": (c.index_heads, c.hidden), "k_norm.weight": (c.index_key,),
              "k_norm.bias": (c.index_key,)}  # fmt: skip
    for old, new in INDEXER.items():
        is_float = old == "weights_proj.weight"
        plan.take(f"{block}indexer.{new}", f"{source}self_attn.indexer.{old}", shapes[old], is_float)


def _experts(plan: Plan, source: str, block: str, there: Callable[[str], bool]) -> None:
    """The stacks of routed experts, from one tensor per expert and matrix or from two of all experts."""
    c = plan.config
    ff, hidden = c.expert_ff, c.hidden
    shapes = {"gate_proj": (ff, hidden), "up_proj": (ff, hidden), "down_proj": (hidden, ff)}
    fused = f"{source}mlp.experts.gate_up_proj"
    suffix = ".weight" if there(fused + ".weight") else ""
    if there(fused + suffix):
        gate_up, down = fused + suffix, f"{source}mlp.experts.down_proj{suffix}"
        plan.wanted[gate_up], plan.wanted[down] = (c.experts, 2 * ff, hidden), (c.experts, hidden, ff)
    for old, (rows, columns) in shapes.items():
        if there(fused + suffix):
            name, step = (down, rows) if old == "down_proj" else (gate_up, 2 * rows)
            first = rows if old == "up_proj" else 0
            parts = tuple(Rows(name, e * step + first, rows) for e in range(c.experts))
        else:
            names = [f"{source}mlp.experts.{e}.{old}.weight" for e in range(c.experts)]
            plan.wanted.update(dict.fromkeys(names, (rows, columns)))
            parts = tuple(Rows(name, 0, rows) for name in names)
        stack = f"{block}ffn_{FEED_FORWARD[old]}_exps.weight"
        plan.targets.append(Target(stack, (c.experts, rows, columns), parts, False))


def _feed_forward(plan: Plan, source: str, block: str, dense: bool, there: Callable[[str], bool]) -> None:
    c = plan.config
    if not dense:
        plan.take(f"{block}ffn_gate_inp.weight", f"{source}mlp.gate.weight", (c.experts, c.hidden), True)
        plan.take(f"{block}exp_probs_b.bias", f"{source}mlp.gate.e_score_correction_bias", (c.experts,), True)
        _experts(plan, source, block, there)
    width = c.dense_ff if dense else c.shared_experts * c.expert_ff
    place, end = ("mlp", "") if dense else ("mlp.shared_experts", "_shexp")
    for old, new in FEED_FORWARD.items():
        shape = (c.hidden, width) if old == "down_proj" else (width, c.hidden)
        plan.take(f"{block}ffn_{new}{end}.weight", f"{source}{place}.{old}.weight", shape)


def _nextn(plan: Plan, source: str, block: str, there: Callable[[str], bool]) -> None:
    c = plan.config
    plan.take(f"{block}nextn.eh_proj.weight", f"{source}eh_proj.weight", (c.hidden, 2 * c.hidden))
    for old, new in (("enorm", "enorm"), ("hnorm", "hnorm"), ("shared_head.norm", "shared_head_norm")):
        plan.take(f"{block}nextn.{new}.weight", f"{source}{old}.weight", (c.hidden,))
    for old, new in (("embed_tokens", "embed_tokens"), ("shared_head.head", "shared_head_head")):
        if there(f"{source}{old}.weight"):
            plan.take(f"{block}nextn.{new}.weight", f"{source}{old}.weight", (c.vocab, c.hidden))


def make_plan(config: Config, there: Callable[[str], bool]) -> Plan:
    """there says whether the checkpoint has a tensor of that name: some come in two forms, some may be missing."""
    c, plan = config, Plan(config)
    plan.take("token_embd.weight", "model.embed_tokens.weight", (c.vocab, c.hidden))
    plan.take("output_norm.weight", "model.norm.weight", (c.hidden,))
    if not c.tied:
        plan.take("output.weight", "lm_head.weight", (c.vocab, c.hidden))
    for i in range(c.layers + c.nextn):
        source, block = f"model.layers.{i}.", f"blk.{i}."
        plan.take(f"{block}attn_norm.weight", f"{source}input_layernorm.weight", (c.hidden,))
        _attention(plan, source, block)
        is_full = i >= c.layers or c.index_full[i]
        if is_full or any(there(f"{source}self_attn.indexer.{name}") for name in INDEXER):
            _indexer(plan, source, block)
        plan.take(f"{block}ffn_norm.weight", f"{source}post_attention_layernorm.weight", (c.hidden,))
        _feed_forward(plan, source, block, i < c.dense_layers, there)
        if i >= c.layers:
            _nextn(plan, source, block, there)
    return plan


# ---- the checkpoint against the plan ----


def scale_shape(shape: Sequence[int], block: tuple[int, int]) -> tuple[int, ...]:
    """Of the factors of FP8 weights of a shape."""
    return (*shape[:-2], -(-shape[-2] // block[0]), -(-shape[-1] // block[1]))


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _is_ignored(plan: Plan, name: str) -> bool:
    """The block that the caller does not want, a second copy of tied weights, and what is no weight."""
    c = plan.config
    parts = name.split(".")
    if name.startswith("model.layers.") and len(parts) > 3 and parts[2].isdecimal():
        number = int(parts[2])
        if c.layers + c.nextn <= number < c.layers + c.raw.get("num_nextn_predict_layers", 0):
            return True
    return name.endswith(IGNORED) or (c.tied and name == "lm_head.weight")


def check(plan: Plan, source: Source) -> None:
    """Every tensor that is wanted is there with its shape and a type that is read, and no other is. Errors: ModelError
    with tensor, file, wanted and got."""
    c, where = plan.config, plan.config.path.parent
    missing = [name for name in plan.wanted if name not in source.tensors]
    if missing:
        blocks = tuple(f"model.layers.{c.layers + i}." for i in range(c.nextn))
        mtp = [name for name in plan.wanted if name.startswith(blocks)]
        hint = "; all tensors of the MTP block are missing: leave it out (--no-mtp)" if missing == mtp else ""
        raise ModelError(f"{where}: {len(missing)} tensors are missing: {_some(missing)}{hint}")
    known = set(plan.wanted)
    for name, shape in plan.wanted.items():
        tensor = source.tensors[name]
        path = source.path_of(tensor)
        if tensor.shape != shape:
            raise ModelError(f"{path}: tensor {name} is {list(tensor.shape)}, {list(shape)} is wanted")
        if tensor.dtype not in FLOATS:
            raise ModelError(f"{path}: tensor {name} is {tensor.dtype}, one of {', '.join(FLOATS)} is wanted")
        if tensor.dtype == "F8_E4M3":
            _check_scale(plan, source, tensor)
            known.add(name + SCALE)
    surplus = [name for name in source if name not in known and not _is_ignored(plan, name)]
    if surplus:
        path = source.path_of(source.tensors[surplus[0]])
        raise ModelError(f"{path}: {len(surplus)} tensors have no place in the model: {_some(surplus)}")


def _check_scale(plan: Plan, source: Source, tensor: SourceTensor) -> None:
    scale = source.tensors.get(tensor.name + SCALE)
    path = source.path_of(tensor)
    if scale is None or len(tensor.shape) < 2:
        raise ModelError(f"{path}: tensor {tensor.name} is F8_E4M3, but there is no {tensor.name}{SCALE}")
    wanted = scale_shape(tensor.shape, plan.config.fp8_block)
    if scale.shape != wanted or scale.dtype not in ("F32", "BF16"):
        raise ModelError(f"{source.path_of(scale)}: tensor {scale.name} is {scale.dtype} {list(scale.shape)}, "
                         f"F32 or BF16 {list(wanted)} is wanted")  # fmt: skip
