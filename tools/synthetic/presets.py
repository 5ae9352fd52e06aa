"""Geometries of the synthetic models and the list of tensors that each has.

Owns names, shapes and wanted spreads of every tensor. Leaves types to mix.py and values to weights.py.

Shapes are numpy shapes, slowest dimension first: [out, in] for a matrix, [experts, out, in] for a stack.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

ALL_FULL_CONTEXT = 202752  # GLM-5 and 5.1; a file of theirs has no indexer.types and every layer is full
SHARED_CONTEXT = 1048576  # GLM-5.2


@dataclass(frozen=True)
class Geometry:
    """Hyperparameters of one model. layers counts the trunk alone; an MTP block comes behind it."""

    hidden: int
    layers: int
    dense_layers: int
    dense_ff: int
    expert_ff: int
    experts: int
    experts_used: int
    heads: int
    q_lora: int
    kv_lora: int
    nope: int
    rope: int
    value: int
    index_heads: int
    index_key: int
    index_top_k: int
    vocab: int
    nextn: int = 1
    context: int = SHARED_CONTEXT
    rope_theta: float = 8e6
    float_weights: bool = True  # drawn as bf16 numbers, then converted; else blocks are drawn directly
    default_mix: str = "q8_0"
    indexer_everywhere: bool = False  # shared layers carry a copy of their owner's indexer
    types_key: bool = True
    file_bytes: int | None = None  # the header is filled up so that the file has exactly this many

    @property
    def blocks(self) -> int:
        return self.layers + self.nextn

    def is_full(self, layer: int) -> bool:
        """Whether this layer runs its own indexer; MTP blocks always do."""
        if self.context < SHARED_CONTEXT or layer >= self.layers:
            return True
        return layer < 2 or (layer - 2) % 4 == 0

    def index_owner(self, layer: int) -> int:
        """The layer whose indexer serves this one."""
        while not self.is_full(layer):
            layer -= 1
        return layer


TINY = Geometry(
    hidden=256, layers=8, dense_layers=3, dense_ff=512, expert_ff=256, experts=16, experts_used=4, heads=4,
    q_lora=256, kv_lora=256, nope=192, rope=64, value=64, index_heads=32, index_key=128, index_top_k=32,
    vocab=2048,
)  # fmt: skip

BENCH = Geometry(
    hidden=2048, layers=24, dense_layers=3, dense_ff=12288, expert_ff=1792, experts=64, experts_used=8,
    heads=16, q_lora=1024, kv_lora=512, nope=192, rope=64, value=256, index_heads=32, index_key=128,
    index_top_k=2048, vocab=65536, float_weights=False, default_mix="q2_k+iq2_xxs",
)  # fmt: skip

PRESETS: dict[str, Geometry] = {
    # a megabyte or two, for tests that open many files; rows of 32 or 64, so only types of 32-blocks fit
    "micro": Geometry(
        hidden=64, layers=7, dense_layers=1, dense_ff=96, expert_ff=32, experts=8, experts_used=2, heads=2,
        q_lora=32, kv_lora=64, nope=32, rope=16, value=32, index_heads=16, index_key=32, index_top_k=8,
        vocab=512,
    ),
    # every row but attn_k_b's is a multiple of 256, so every type fits
    "tiny": TINY,
    # the head dimensions of the real model
    "realgeom": Geometry(
        hidden=512, layers=8, dense_layers=3, dense_ff=1024, expert_ff=256, experts=32, experts_used=8,
        heads=8, q_lora=512, kv_lora=512, nope=192, rope=64, value=256, index_heads=32, index_key=128,
        index_top_k=32, vocab=2048,
    ),
    # with four index heads all of them are often negative at once: many scores are exactly 0 and tie
    "ties": replace(TINY, index_heads=4),
    # GLM-5 and GLM-5.1: every layer has its own indexer and the file does not say so
    "allfull": replace(TINY, layers=6, context=ALL_FULL_CONTEXT, rope_theta=1e6, types_key=False),
    # for speed; the second has half the experts and weighs the same within 0.01 GB
    "bench": BENCH,
    "bench-q4_k": replace(BENCH, experts=32, default_mix="published-q4_k"),
    # GLM-5.2 as published in the file of 211,075,856,448 bytes
    "full": Geometry(
        hidden=6144, layers=78, dense_layers=3, dense_ff=12288, expert_ff=2048, experts=256, experts_used=8,
        heads=64, q_lora=2048, kv_lora=512, nope=192, rope=64, value=256, index_heads=32, index_key=128,
        index_top_k=2048, vocab=154880, float_weights=False, default_mix="published",
        indexer_everywhere=True, types_key=False, file_bytes=211_075_856_448,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """What to draw: a normal of this spread, a log-normal norm weight, or a bias around a centre."""

    name: str
    shape: tuple[int, ...]
    spread: float
    kind: str = "matrix"  # "matrix", "norm" (always F32) or "bias" (always F32)
    centre: float = 0.0
    tail_rows: int = 0  # this many last rows are tail_gain times larger
    tail_gain: float = 1.0
    source: str = field(default="")  # name that seeds the draw and picks the type, if not its own

    @property
    def seed_name(self) -> str:
        return self.source or self.name


# Spread of the logarithm of norm weights. Real norms vary from channel to channel, and only then does it show
# whether an indexer reads the normed input or the residual stream.
NORM_SPREAD = 0.35


def _norm(name: str, count: int) -> Tensor:
    return Tensor(name, (count,), NORM_SPREAD, "norm", 1.0)


def _linear(name: str, *shape: int, gain: float = 1.0) -> Tensor:
    return Tensor(name, shape, gain / shape[-1] ** 0.5)


def attention_tensors(g: Geometry, block: int) -> Iterator[Tensor]:
    p = f"blk.{block}"
    # A gain of 0.25 gives latents of rms 0.27: there an epsilon of 1e-5 differs from 1e-6 by 6e-5.
    yield _linear(f"{p}.attn_q_a.weight", g.q_lora, g.hidden, gain=0.25)
    yield _norm(f"{p}.attn_q_a_norm.weight", g.q_lora)
    yield _linear(f"{p}.attn_q_b.weight", g.heads * (g.nope + g.rope), g.q_lora, gain=1.15)
    # The rope part of the key has no norm behind it, so its rows are larger.
    kv_a = _linear(f"{p}.attn_kv_a_mqa.weight", g.kv_lora + g.rope, g.hidden, gain=0.25)
    yield replace(kv_a, tail_rows=g.rope, tail_gain=4.0)
    yield _norm(f"{p}.attn_kv_a_norm.weight", g.kv_lora)
    spread = 1.15 / g.kv_lora**0.5
    yield Tensor(f"{p}.attn_k_b.weight", (g.heads, g.kv_lora, g.nope), spread)
    yield Tensor(f"{p}.attn_v_b.weight", (g.heads, g.value, g.kv_lora), spread)
    yield _linear(f"{p}.attn_output.weight", g.hidden, g.heads * g.value, gain=0.45)


def indexer_tensors(g: Geometry, block: int) -> Iterator[Tensor]:
    p, owner = f"blk.{block}.indexer", f"blk.{g.index_owner(block)}.indexer"
    own = (
        _linear("attn_q_b.weight", g.index_heads * g.index_key, g.q_lora),
        _linear("attn_k.weight", g.index_key, g.hidden, gain=0.8),
        _norm("k_norm.weight", g.index_key),
        Tensor("k_norm.bias", (g.index_key,), 0.15, "bias"),
        _linear("proj.weight", g.index_heads, g.hidden),
    )
    for tensor in own:
        yield replace(tensor, name=f"{p}.{tensor.name}", source=f"{owner}.{tensor.name}")


def feed_forward_tensors(g: Geometry, block: int) -> Iterator[Tensor]:
    p = f"blk.{block}"
    yield _norm(f"{p}.ffn_norm.weight", g.hidden)
    if block < g.dense_layers:
        yield _linear(f"{p}.ffn_gate.weight", g.dense_ff, g.hidden, gain=1.2)
        yield _linear(f"{p}.ffn_up.weight", g.dense_ff, g.hidden, gain=1.2)
        yield _linear(f"{p}.ffn_down.weight", g.hidden, g.dense_ff, gain=0.45)
        return
    yield _linear(f"{p}.ffn_gate_inp.weight", g.experts, g.hidden, gain=1.6)
    yield Tensor(f"{p}.exp_probs_b.bias", (g.experts,), 0.1, "bias", 4.0)
    yield _linear(f"{p}.ffn_gate_exps.weight", g.experts, g.expert_ff, g.hidden, gain=1.2)
    yield _linear(f"{p}.ffn_up_exps.weight", g.experts, g.expert_ff, g.hidden, gain=1.2)
    yield _linear(f"{p}.ffn_down_exps.weight", g.experts, g.hidden, g.expert_ff, gain=0.45)
    yield _linear(f"{p}.ffn_gate_shexp.weight", g.expert_ff, g.hidden, gain=1.2)
    yield _linear(f"{p}.ffn_up_shexp.weight", g.expert_ff, g.hidden, gain=1.2)
    yield _linear(f"{p}.ffn_down_shexp.weight", g.hidden, g.expert_ff, gain=0.45)


def tensors(g: Geometry, tied: bool = False) -> Iterator[Tensor]:
    """Every tensor in the order of the file. A tied model has no output.weight."""
    # A tied embedding is also the head, which wants logits of a few units.
    yield Tensor("token_embd.weight", (g.vocab, g.hidden), 3.0 / g.hidden**0.5 if tied else 0.05)
    yield _norm("output_norm.weight", g.hidden)
    if not tied:
        yield _linear("output.weight", g.vocab, g.hidden, gain=3.0)
    for block in range(g.blocks):
        p = f"blk.{block}"
        yield _norm(f"{p}.attn_norm.weight", g.hidden)
        yield from attention_tensors(g, block)
        if g.indexer_everywhere or g.is_full(block):
            yield from indexer_tensors(g, block)
        yield from feed_forward_tensors(g, block)
        if block >= g.layers:
            yield _linear(f"{p}.nextn.eh_proj.weight", g.hidden, 2 * g.hidden, gain=0.5)
            yield _norm(f"{p}.nextn.enorm.weight", g.hidden)
            yield _norm(f"{p}.nextn.hnorm.weight", g.hidden)
            yield _norm(f"{p}.nextn.shared_head_norm.weight", g.hidden)
