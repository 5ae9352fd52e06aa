"""GLM-5.2 in plain numpy and float64: slow, short, the definition that everything else is held against.

Reads a GGUF through the gguf package and computes on the dequantised weights. Every point on which the
known implementations differ, and some mistakes that are easy to make, is a field of Options, so that a test
can show that it would see the difference.

    model = Reference("model.gguf")
    logits = model.logits([1, 2, 3])            # float64 [tokens, vocab]
    trace = Trace(); model.logits(ids, trace=trace); trace.selected[6]
"""

import hashlib
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, quants

Array = np.ndarray


@dataclass(frozen=True)
class Options:
    """Defaults are the truth; anything else is a variant or a mistake."""

    # Epsilon of the norms of q_a and kv_a. None: the model's; transformers uses 1e-6.
    latent_epsilon: float | None = None
    # "none": float64 caches. "post": latent, rotated key and indexer key are rounded to float16, as a runtime
    # with float16 caches does. "pre": the key is rounded before it is rotated.
    kv_f16: str = "none"
    # "share": full layers select, shared layers reuse. "own": every layer that has an indexer runs it.
    # "dense": no selection.
    select: str = "share"
    # What the indexer's key and weights read: the "normed" input of the layer or the "raw" residual stream.
    indexer_input: str = "normed"
    # "interleaved" pairs (2j, 2j + 1), or "half": pairs (j, j + rope / 2) as in DeepSeek-V3.2.
    indexer_rope: str = "interleaved"
    indexer_epsilon: float = 1e-6  # of the indexer's LayerNorm
    relu: bool = True  # negative dot products of the indexer count as 0
    router_bias: bool = True  # the correction bias takes part in the choice of experts
    biased_weights: bool = False  # ... and, wrongly, in their weights
    shared_expert: bool = True
    # Hidden state that the MTP block reads: "post" or "pre" the final norm.
    mtp_hidden: str = "post"
    mtp_dense: bool = False  # the MTP block attends to every row


@dataclass
class Trace:
    """What a forward pass decided. Filled by Reference.hidden, logits and mtp."""

    selected: dict[int, Array] = field(default_factory=dict)  # layer -> bool [tokens, tokens]
    index_scores: dict[int, Array] = field(default_factory=dict)  # full layer -> [tokens, tokens]
    index_gaps: dict[int, Array] = field(default_factory=dict)  # -> [tokens] k-th less next, inf if dense
    route_ids: dict[int, Array] = field(default_factory=dict)  # sparse layer -> [tokens, used], best first
    route_weights: dict[int, Array] = field(default_factory=dict)
    route_gaps: dict[int, Array] = field(default_factory=dict)  # -> [tokens] last chosen less next
    hidden: dict[int, Array] = field(default_factory=dict)  # layer -> [tokens, hidden] behind the layer
    final: Array | None = None  # [tokens, hidden] behind the final norm

    def index_gap(self) -> float:
        """The closest decision of an indexer; a runtime that errs by less must select the same."""
        return min((float(gaps.min()) for gaps in self.index_gaps.values()), default=np.inf)

    def route_gap(self) -> float:
        """The closest decision of a router."""
        return min((float(gaps.min()) for gaps in self.route_gaps.values()), default=np.inf)


# ---- the file ----


def shards(path: Path) -> list[Path]:
    """All files of the model that path belongs to."""
    match = re.fullmatch(r"(.*)-\d{5}-of-(\d{5})\.gguf", path.name)
    if not match:
        return [path]
    count = int(match[2])
    return [path.with_name(f"{match[1]}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]


class Weights:
    """Tensors by name, dequantised to float32 when first asked for; float32 holds every value exactly."""

    def __init__(self, path: str | Path) -> None:
        readers = [GGUFReader(shard) for shard in shards(Path(path))]
        self._tensors = {tensor.name: tensor for reader in readers for tensor in reader.tensors}
        self._cache: dict[str, Array] = {}
        self._keys = readers[0].fields

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def __getitem__(self, name: str) -> Array:
        if name not in self._cache:
            tensor = self._tensors[name]
            shape = [int(size) for size in reversed(tensor.shape)]
            values = quants.dequantize(tensor.data, tensor.tensor_type)
            self._cache[name] = np.asarray(values, np.float32).reshape(shape)
        return self._cache[name]

    def names(self) -> list[str]:
        return list(self._tensors)

    def digest(self) -> str:
        """SHA-256 over names, types and bytes of all tensors; what else a file says does not count."""
        digest = hashlib.sha256()
        for name, tensor in self._tensors.items():
            digest.update(f"{name} {tensor.tensor_type.name}\n".encode())
            digest.update(np.ascontiguousarray(tensor.data).view(np.uint8).data)
        return digest.hexdigest()

    def key(self, name: str, default: Any = None) -> Any:
        """A hyperparameter, without its prefix."""
        found = self._keys.get(f"glm-dsa.{name}")
        if found is None and default is None:
            raise KeyError(name)
        return default if found is None else found.contents()


@dataclass(frozen=True)
class Shape:
    layers: int
    nextn: int
    heads: int
    nope: int
    rope: int
    kv_lora: int
    index_heads: int
    index_key: int
    index_top_k: int
    dense_layers: int
    experts_used: int
    epsilon: float
    theta: float
    expert_scale: float
    expert_norm: bool
    full: tuple[bool, ...]


def read_shape(weights: Weights) -> Shape:
    key = weights.key
    nextn = key("nextn_predict_layers", 0)
    layers = key("block_count") - nextn
    types = key("attention.indexer.types", [])
    if types:
        full = [value in (True, 1, "full") for value in types]
    elif key("context_length") < 1048576:
        full = [True] * layers
    else:
        full = [layer < 2 or (layer - 2) % 4 == 0 for layer in range(layers)]
    return Shape(
        layers=layers,
        nextn=nextn,
        heads=key("attention.head_count"),
        nope=key("attention.key_length_mla") - key("rope.dimension_count"),
        rope=key("rope.dimension_count"),
        kv_lora=key("attention.kv_lora_rank"),
        index_heads=key("attention.indexer.head_count"),
        index_key=key("attention.indexer.key_length"),
        index_top_k=key("attention.indexer.top_k"),
        dense_layers=key("leading_dense_block_count"),
        experts_used=key("expert_used_count"),
        epsilon=float(np.float32(key("attention.layer_norm_rms_epsilon"))),
        theta=float(key("rope.freq_base")),
        expert_scale=float(key("expert_weights_scale")),
        expert_norm=bool(key("expert_weights_norm", False)),
        full=tuple(full) + (True,) * nextn,
    )


# ---- formulas ----


def rms_norm(x: Array, weight: Array, epsilon: float) -> Array:
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def layer_norm(x: Array, weight: Array, bias: Array, epsilon: float) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon) * weight + bias


def rotate(x: Array, positions: Array, theta: float, interleaved: bool = True) -> Array:
    """x [..., tokens, size] with each pair of the last axis turned by its position's angle."""
    size = x.shape[-1]
    angle = positions[:, None] * theta ** (-np.arange(0, size, 2, dtype=np.float64) / size)
    cos, sin = np.cos(angle), np.sin(angle)
    first = np.s_[..., 0::2] if interleaved else np.s_[..., : size // 2]
    second = np.s_[..., 1::2] if interleaved else np.s_[..., size // 2 :]
    out = np.empty_like(x)
    out[first] = x[first] * cos - x[second] * sin
    out[second] = x[second] * cos + x[first] * sin
    return out


def sigmoid(x: Array) -> Array:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def to_f16(x: Array) -> Array:
    return x.astype(np.float16).astype(np.float64)


def select_top(scores: Array, top_k: int) -> tuple[Array, Array]:
    """Per row t the top_k best of columns 0..t, of equal ones the lower. (bool [tokens, tokens], gaps)."""
    count = scores.shape[0]
    visible = np.tri(count, dtype=bool)
    if count <= top_k:
        return visible, np.full(count, np.inf)
    masked = np.where(visible, scores, -np.inf)
    order = np.argsort(-masked, axis=-1, kind="stable")
    chosen = np.zeros_like(visible)
    np.put_along_axis(chosen, order[:, :top_k], True, -1)
    ranked = np.take_along_axis(masked, order, -1)
    gaps = np.full(count, np.inf)
    gaps[top_k:] = ranked[top_k:, top_k - 1] - ranked[top_k:, top_k]
    return chosen & visible, gaps


# ---- the model ----


class Reference:
    """A model. Token counts of a few hundred are what it is for: attention holds [heads, tokens, tokens]."""

    def __init__(self, path: str | Path) -> None:
        self.weights = Weights(path)
        self.shape = read_shape(self.weights)

    def _w(self, name: str) -> Array:
        return self.weights[name].astype(np.float64)

    def _mul(self, x: Array, name: str) -> Array:
        return x @ self._w(name).T

    def _swiglu(self, x: Array, gate: Array, up: Array, down: Array) -> Array:
        wide = x @ gate.T.astype(np.float64)
        return (wide * sigmoid(wide) * (x @ up.T.astype(np.float64))) @ down.T.astype(np.float64)

    def _route(self, x: Array, block: int, options: Options, trace: Trace) -> tuple[Array, Array]:
        s = self.shape
        probability = sigmoid(self._mul(x, f"blk.{block}.ffn_gate_inp.weight"))
        biased = probability + self._w(f"blk.{block}.exp_probs_b.bias")
        choice = biased if options.router_bias else probability
        order = np.argsort(-choice, axis=-1, kind="stable")
        ranked = np.take_along_axis(choice, order, -1)
        ids = order[:, : s.experts_used]
        weights = np.take_along_axis(biased if options.biased_weights else probability, ids, -1)
        if s.expert_norm:
            weights = weights / (weights.sum(-1, keepdims=True) + 1e-20)
        weights = weights * s.expert_scale
        trace.route_ids[block], trace.route_weights[block] = ids, weights
        if ranked.shape[1] > s.experts_used:
            trace.route_gaps[block] = ranked[:, s.experts_used - 1] - ranked[:, s.experts_used]
        return ids, weights

    def _feed_forward(self, x: Array, block: int, options: Options, trace: Trace) -> Array:
        p, w = f"blk.{block}.ffn_", self.weights
        if block < self.shape.dense_layers:
            return self._swiglu(x, w[p + "gate.weight"], w[p + "up.weight"], w[p + "down.weight"])
        ids, route_weights = self._route(x, block, options, trace)
        gate, up, down = (w[f"{p}{part}_exps.weight"] for part in ("gate", "up", "down"))
        out = np.zeros_like(x)
        if options.shared_expert:
            out = self._swiglu(x, *(w[f"{p}{part}_shexp.weight"] for part in ("gate", "up", "down")))
        for expert in np.unique(ids):
            rows, places = np.nonzero(ids == expert)
            result = self._swiglu(x[rows], gate[expert], up[expert], down[expert])
            out[rows] += route_weights[rows, places][:, None] * result
        return out

    def index_scores(self, block: int, x: Array, raw: Array, q_latent: Array, options: Options) -> Array:
        """[tokens, tokens]; only columns up to the row's own mean anything."""
        s, p = self.shape, f"blk.{block}.indexer."
        positions = np.arange(len(x))
        interleaved = options.indexer_rope == "interleaved"

        def turned(y: Array) -> Array:
            rotated = rotate(y[..., : s.rope], positions, s.theta, interleaved)
            return np.concatenate([rotated, y[..., s.rope :]], -1)

        source = x if options.indexer_input == "normed" else raw
        query = self._mul(q_latent, p + "attn_q_b.weight").reshape(len(x), s.index_heads, s.index_key)
        query = turned(query.transpose(1, 0, 2))
        key = self._mul(source, p + "attn_k.weight")
        norm_weight, norm_bias = self._w(p + "k_norm.weight"), self._w(p + "k_norm.bias")
        key = turned(layer_norm(key, norm_weight, norm_bias, options.indexer_epsilon))
        if options.kv_f16 != "none":
            key = to_f16(key)
        head_weights = self._mul(source, p + "proj.weight") * s.index_heads**-0.5
        scores = np.zeros((len(x), len(x)))
        for head in range(s.index_heads):
            dots = query[head] @ key.T * s.index_key**-0.5
            scores += head_weights[:, head, None] * (np.maximum(dots, 0.0) if options.relu else dots)
        return scores

    def _selection(
        self,
        block: int,
        x: Array,
        raw: Array,
        q_latent: Array,
        before: Array | None,
        options: Options,
        trace: Trace,
    ) -> Array:
        own = self.shape.full[block] or options.select == "own"
        if options.select == "dense":
            chosen = np.tri(len(x), dtype=bool)
        elif own and f"blk.{block}.indexer.attn_k.weight" in self.weights:
            scores = self.index_scores(block, x, raw, q_latent, options)
            chosen, gaps = select_top(scores, self.shape.index_top_k)
            trace.index_scores[block], trace.index_gaps[block] = scores, gaps
        else:
            assert before is not None, f"block {block} shares a selection, but no block before it is full"
            chosen = before
        trace.selected[block] = chosen
        return chosen

    def _attention(
        self, block: int, x: Array, raw: Array, before: Array | None, options: Options, trace: Trace
    ) -> tuple[Array, Array]:
        s, p, count = self.shape, f"blk.{block}.attn_", len(x)
        positions = np.arange(count)
        epsilon = s.epsilon if options.latent_epsilon is None else options.latent_epsilon
        q_latent = rms_norm(self._mul(x, p + "q_a.weight"), self._w(p + "q_a_norm.weight"), epsilon)
        query = self._mul(q_latent, p + "q_b.weight").reshape(count, s.heads, -1).transpose(1, 0, 2)
        kv = self._mul(x, p + "kv_a_mqa.weight")
        latent = rms_norm(kv[:, : s.kv_lora], self._w(p + "kv_a_norm.weight"), epsilon)
        key = kv[:, s.kv_lora :]
        if options.kv_f16 == "pre":
            key = to_f16(key)
        key = rotate(key, positions, s.theta)
        if options.kv_f16 == "post":
            key = to_f16(key)
        if options.kv_f16 != "none":
            latent = to_f16(latent)
        chosen = self._selection(block, x, raw, q_latent, before, options, trace)

        k_b = self._w(p + "k_b.weight")  # [heads, latent, nope]
        v_b = self._w(p + "v_b.weight")  # [heads, value, latent]
        heads = []
        for head in range(s.heads):
            absorbed = query[head, :, : s.nope] @ k_b[head].T
            turned = rotate(query[head, :, s.nope :], positions, s.theta)
            scores = (absorbed @ latent.T + turned @ key.T) * (s.nope + s.rope) ** -0.5
            heads.append(softmax(np.where(chosen, scores, -np.inf)) @ latent @ v_b[head].T)
        return self._mul(np.concatenate(heads, -1), p + "output.weight"), chosen

    def _block(
        self, block: int, hidden: Array, before: Array | None, options: Options, trace: Trace
    ) -> tuple[Array, Array]:
        epsilon = self.shape.epsilon
        x = rms_norm(hidden, self._w(f"blk.{block}.attn_norm.weight"), epsilon)
        attended, chosen = self._attention(block, x, hidden, before, options, trace)
        hidden = hidden + attended
        x = rms_norm(hidden, self._w(f"blk.{block}.ffn_norm.weight"), epsilon)
        hidden = hidden + self._feed_forward(x, block, options, trace)
        trace.hidden[block] = hidden
        return hidden, chosen

    def hidden(
        self, ids: list[int] | Array, options: Options = Options(), trace: Trace | None = None
    ) -> tuple[Array, Array]:
        """Residual stream before and behind the final norm, both [tokens, hidden]."""
        trace = Trace() if trace is None else trace
        hidden = self.weights["token_embd.weight"][np.asarray(ids)].astype(np.float64)
        chosen = None
        for block in range(self.shape.layers):
            hidden, chosen = self._block(block, hidden, chosen, options, trace)
        trace.final = rms_norm(hidden, self._w("output_norm.weight"), self.shape.epsilon)
        return hidden, trace.final

    def head(self, x: Array) -> Array:
        """Logits [rows, vocab] of hidden states behind the final norm."""
        tied = "output.weight" not in self.weights
        return self._mul(x, "token_embd.weight" if tied else "output.weight")

    def logits(
        self,
        ids: list[int] | Array,
        options: Options = Options(),
        trace: Trace | None = None,
        rows: list[int] | slice = slice(None),
    ) -> Array:
        """Logits of the chosen rows [rows, vocab]."""
        return self.head(self.hidden(ids, options, trace)[1][rows])

    def mtp(
        self,
        ids: list[int] | Array,
        options: Options = Options(),
        trace: Trace | None = None,
        hidden: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array]:
        """The MTP block over a known sequence: row i sees the hidden state of token i and the embedding of
        token i + 1, and predicts token i + 2. Returns logits [tokens - 1, vocab] and the hidden state behind
        the head norm, which a chain of drafts feeds back. trace gets the block's decisions alone. hidden is
        what Reference.hidden gave for ids, if that is at hand."""
        trace = Trace() if trace is None else trace
        block, epsilon, w = self.shape.layers, self.shape.epsilon, self.weights
        p = f"blk.{block}.nextn."
        pre, post = self.hidden(ids, options) if hidden is None else hidden
        source = (post if options.mtp_hidden == "post" else pre)[:-1]
        embed = p + "embed_tokens.weight" if p + "embed_tokens.weight" in w else "token_embd.weight"
        embedded = w[embed][np.asarray(ids)[1:]].astype(np.float64)
        halves = [
            rms_norm(embedded, self._w(p + "enorm.weight"), epsilon),
            rms_norm(source, self._w(p + "hnorm.weight"), epsilon),
        ]
        x = self._mul(np.concatenate(halves, -1), p + "eh_proj.weight")
        inner = replace(options, select="dense") if options.mtp_dense else options
        out, _ = self._block(block, x, None, inner, trace)
        final = rms_norm(out, self._w(p + "shared_head_norm.weight"), epsilon)
        head = p + "shared_head_head.weight"
        return (self._mul(final, head) if head in w else self.head(final)), final


def relative_rms(got: Array, wanted: Array) -> float:
    """Root mean square of the difference over that of wanted."""
    return float(np.sqrt(np.mean((got - wanted) ** 2) / np.mean(wanted**2)))
