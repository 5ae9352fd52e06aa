"""GLM-5.2 (glm_moe_dsa) in PyTorch, small enough to train in minutes: expanded MLA, DSA indexer, IndexShare,
MoE with the noaux_tc router, one MTP layer.

Attention is an explicit masked softmax: two heads make the score matrices small, and the indexer's target
(the attention weights themselves) costs nothing. Names of modules and parameters are those of the Hugging
Face checkpoint, but for the experts, which are stacked here: gate_up [experts, 2 * width, hidden], down
[experts, hidden, width].
"""

import json
import shutil
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vocabulary import END_OF_TEXT, GMASK, STOP, VOCABULARY

LAYERS = 8
ROPE = 64
CONFIG: dict = dict(
    architectures=["GlmMoeDsaForCausalLM"],
    model_type="glm_moe_dsa",
    attention_bias=False,
    attention_dropout=0.0,
    dtype="bfloat16",
    eos_token_id=list(STOP),
    pad_token_id=END_OF_TEXT,
    ep_size=1,
    head_dim=192,
    hidden_act="silu",
    index_share_for_mtp_iteration=True,
    index_skip_topk_offset=3,
    index_topk_freq=4,
    index_topk_pattern=None,
    indexer_rope_interleave=True,
    initializer_range=0.02,
    max_position_embeddings=1048576,
    moe_layer_freq=1,
    indexer_types=["full" if max(i - 2, 0) % 4 == 0 else "shared" for i in range(LAYERS)],
    mlp_layer_types=["dense"] * 3 + ["sparse"] * 5,
    moe_router_dtype="float32",
    n_group=1,
    topk_group=1,
    norm_topk_prob=True,
    num_key_value_heads=2,
    num_nextn_predict_layers=1,
    pretraining_tp=1,
    qk_head_dim=256,
    rms_norm_eps=1e-5,
    rope_interleave=True,
    rope_parameters={"rope_theta": 8000000, "rope_type": "default"},
    routed_scaling_factor=2.5,
    scoring_func="sigmoid",
    tie_word_embeddings=False,
    topk_method="noaux_tc",
    transformers_version="5.12.0",
    use_cache=True,
    hidden_size=512,
    intermediate_size=1024,
    moe_intermediate_size=256,
    num_hidden_layers=LAYERS,
    num_attention_heads=2,
    n_routed_experts=16,
    num_experts_per_tok=4,
    n_shared_experts=1,
    q_lora_rank=256,
    kv_lora_rank=512,
    qk_nope_head_dim=192,
    qk_rope_head_dim=ROPE,
    v_head_dim=256,
    index_n_heads=16,
    index_head_dim=128,
    index_topk=64,
    first_k_dense_replace=3,
    vocab_size=VOCABULARY,
)


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, self.eps)


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on interleaved pairs. x [batch, time, (heads,) 64], cos and sin [time, 32] float32."""
    if x.dim() == 4:
        cos, sin = cos[:, None], sin[:, None]
    x = x.float()
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, b * cos + a * sin), -1).flatten(-2)


def rope_table(time: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [time, 32], computed in float64."""
    position = torch.arange(time, device=device, dtype=torch.float64)
    frequency = theta ** (-torch.arange(0, ROPE, 2, device=device, dtype=torch.float64) / ROPE)
    angle = position[:, None] * frequency
    return angle.cos().float(), angle.sin().float()


class Indexer(nn.Module):
    def __init__(self, c: dict) -> None:
        super().__init__()
        self.heads, self.width = c["index_n_heads"], c["index_head_dim"]
        self.wq_b = linear(c["q_lora_rank"], self.heads * self.width)
        self.wk = linear(c["hidden_size"], self.width)
        self.k_norm = nn.LayerNorm(self.width, eps=1e-6)
        self.weights_proj = linear(c["hidden_size"], self.heads)

    def forward(self, x: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Scores [batch, time, time] float32, without causality."""
        batch, time, _ = x.shape
        q = self.wq_b(q_latent).view(batch, time, self.heads, self.width)
        q = torch.cat((rotate(q[..., :ROPE], cos, sin).to(q.dtype), q[..., ROPE:]), -1)
        k = self.k_norm(self.wk(x).float())
        k = torch.cat((rotate(k[..., :ROPE], cos, sin), k[..., ROPE:]), -1).to(q.dtype)
        # relu(a s) = a relu(s) for a > 0: both scales go into the weights
        weights = self.weights_proj(x).float() * (self.heads**-0.5 * self.width**-0.5)
        s = torch.matmul(q.reshape(batch, time * self.heads, self.width), k.transpose(1, 2))
        return (F.relu(s.view(batch, time, self.heads, time)) * weights[..., None]).sum(2)


class Attention(nn.Module):
    def __init__(self, c: dict, full: bool) -> None:
        super().__init__()
        hidden, self.heads = c["hidden_size"], c["num_attention_heads"]
        self.latent, self.nope = c["kv_lora_rank"], c["qk_nope_head_dim"]
        self.value, self.top_k = c["v_head_dim"], c["index_topk"]
        eps = c["rms_norm_eps"]
        self.q_a_proj = linear(hidden, c["q_lora_rank"])
        self.q_a_layernorm = RMSNorm(c["q_lora_rank"], eps)
        self.q_b_proj = linear(c["q_lora_rank"], self.heads * (self.nope + ROPE))
        self.kv_a_proj_with_mqa = linear(hidden, self.latent + ROPE)
        self.kv_a_layernorm = RMSNorm(self.latent, eps)
        self.kv_b_proj = linear(self.latent, self.heads * (self.nope + self.value))
        self.o_proj = linear(self.heads * self.value, hidden)
        if full:
            self.indexer = Indexer(c)
        self.full = full

    def select(self, scores: Tensor, visible: Tensor) -> Tensor:
        """bool [batch, time, time]: the top_k visible positions of each row."""
        k = min(self.top_k, scores.shape[-1])
        chosen = scores.masked_fill(~visible, float("-inf")).topk(k, -1, sorted=False).indices
        return torch.zeros_like(visible).scatter_(-1, chosen, True) & visible

    def qkv(self, x: Tensor, q_latent: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys [batch, heads, time, 256] and values [batch, heads, time, 256]."""
        batch, time, _ = x.shape
        q = self.q_b_proj(q_latent).view(batch, time, self.heads, self.nope + ROPE)
        kv = self.kv_a_proj_with_mqa(x)
        kv_b = self.kv_b_proj(self.kv_a_layernorm(kv[..., : self.latent]))
        kv_b = kv_b.view(batch, time, self.heads, self.nope + self.value)
        dtype = q.dtype
        q = torch.cat((q[..., : self.nope], rotate(q[..., self.nope :], cos, sin).to(dtype)), -1).transpose(
            1, 2
        )
        k_rope = rotate(kv[..., self.latent :], cos, sin).to(dtype)
        k = torch.cat((kv_b[..., : self.nope], k_rope[:, :, None].expand(-1, -1, self.heads, -1)), -1)
        return q, k.transpose(1, 2), kv_b[..., self.nope :].transpose(1, 2)

    def forward(
        self,
        x: Tensor,
        visible: Tensor,
        selected: Tensor,
        cos: Tensor,
        sin: Tensor,
        sparse: bool,
        index_rows: int,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """visible: bool [batch, time, time], causal within a document. index_rows > 0: the indexer's KL to
        the attention over the first index_rows sequences. Returns output, selection, KL."""
        batch, time, _ = x.shape
        q_latent = self.q_a_layernorm(self.q_a_proj(x))
        q, k, v = self.qkv(x, q_latent, cos, sin)
        scores = None
        if self.full and (sparse or index_rows):
            x_in, q_in = x.detach(), q_latent.detach()
            if sparse:
                with torch.no_grad():
                    selected = self.select(self.indexer(x_in, q_in, cos, sin), visible)
            if index_rows:
                scores = self.indexer(x_in[:index_rows], q_in[:index_rows], cos, sin)
        allowed = selected if sparse else visible
        s = torch.matmul(q, k.transpose(-1, -2)).float() * (self.nope + ROPE) ** -0.5
        p = torch.softmax(s.masked_fill(~allowed[:, None], -1e30), -1)
        out = torch.matmul(p.to(q.dtype), v).transpose(1, 2).reshape(batch, time, -1)
        kl = x.new_zeros((), dtype=torch.float32)
        if scores is not None:
            target, allowed = p[:index_rows].detach().mean(1), allowed[:index_rows]
            log_q = torch.log_softmax(scores.masked_fill(~allowed, -1e30), -1)
            kl = (target * ((target + 1e-9).log() - log_q).masked_fill(~allowed, 0)).sum() / (
                index_rows * time
            )
        return self.o_proj(out), selected, kl


class MLP(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(hidden, width), linear(hidden, width)
        self.down_proj = linear(width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class _Dispatch(torch.autograd.Function):
    """Rows of x in the order of the experts; backward adds without atomics."""

    @staticmethod
    def forward(ctx, x: Tensor, source: Tensor, place: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(place)
        ctx.k = k
        return x[source]

    @staticmethod
    def backward(ctx, g: Tensor):
        (place,) = ctx.saved_tensors
        return g[place].view(-1, ctx.k, g.shape[-1]).sum(1), None, None, None


class _Combine(torch.autograd.Function):
    """The k expert outputs of each token, added; the twin of _Dispatch."""

    @staticmethod
    def forward(ctx, y: Tensor, source: Tensor, place: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(source)
        return y[place].view(-1, k, y.shape[-1]).sum(1)

    @staticmethod
    def backward(ctx, g: Tensor):
        (source,) = ctx.saved_tensors
        return g[source], None, None, None


grouped_mm = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


class Gate(nn.Module):
    def __init__(self, hidden: int, experts: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, hidden))
        self.register_buffer("e_score_correction_bias", torch.zeros(experts))


class MoE(nn.Module):
    """grouped: one grouped product over the tokens sorted by expert (fast on a GPU). Otherwise every expert
    sees every token and the weights are zero where the router did not choose it (simple, for checks)."""

    grouped = True

    def __init__(self, c: dict) -> None:
        super().__init__()
        hidden, self.experts, self.k = c["hidden_size"], c["n_routed_experts"], c["num_experts_per_tok"]
        self.scale, self.width = c["routed_scaling_factor"], c["moe_intermediate_size"]
        self.gate = Gate(hidden, self.experts)
        self.gate_up = nn.Parameter(torch.empty(self.experts, 2 * self.width, hidden))
        self.down = nn.Parameter(torch.empty(self.experts, hidden, self.width))
        self.shared_experts = MLP(hidden, self.width * c["n_shared_experts"])

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids [tokens, k] and their weights, in float32 whatever the autocast."""
        with torch.autocast(x.device.type, enabled=False):
            p = torch.sigmoid(x.float() @ self.gate.weight.float().t())
            ids = (p.detach() + self.gate.e_score_correction_bias).topk(self.k, -1, sorted=False).indices
            w = p.gather(1, ids)
            return ids, w / (w.sum(-1, keepdim=True) + 1e-20) * self.scale

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [batch, time, hidden]; returns the output and how many tokens each expert got."""
        shape = x.shape
        x = x.reshape(-1, shape[-1])
        ids, w = self.route(x)
        count = (ids.reshape(-1, 1) == torch.arange(self.experts, device=x.device)).sum(0)
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        run = self.run_grouped if self.grouped else self.run_all
        y = run(x.to(dtype), ids, w, count, self.gate_up.to(dtype), self.down.to(dtype))
        return (y.to(torch.float32) + self.shared_experts(x)).view(shape), count

    def run_grouped(
        self, x: Tensor, ids: Tensor, w: Tensor, count: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        """Groups are padded to 8 rows, as the product asks; the last group takes what is left of the
        buffer."""
        rows, size, device = x.shape[0], x.shape[0] * self.k + 8 * self.experts, x.device
        flat = ids.reshape(-1)
        padded = (count + 7) // 8 * 8
        end = padded.cumsum(0)
        order = flat.argsort(stable=True)
        shift = (end - padded) - (count.cumsum(0) - count)
        target = torch.arange(rows * self.k, device=device) + shift[flat[order]]
        place = torch.empty_like(order).scatter_(0, order, target)
        source = torch.zeros(size, dtype=order.dtype, device=device).scatter_(0, target, order // self.k)
        last = torch.arange(self.experts, device=device) == self.experts - 1
        offsets = torch.where(last, torch.full_like(end, size), end).to(torch.int32)
        weight = torch.zeros(size, device=device, dtype=torch.float32).scatter(
            0, place, w.reshape(-1).float()
        )
        h = grouped_mm(_Dispatch.apply(x, source, place, self.k), gate_up.transpose(1, 2), offs=offsets)
        h = F.silu(h[:, : self.width].float()) * h[:, self.width :].float() * weight[:, None]
        y = grouped_mm(h.to(x.dtype), down.transpose(1, 2), offs=offsets)
        return _Combine.apply(y, source, place, self.k)

    def run_all(
        self, x: Tensor, ids: Tensor, w: Tensor, _count: Tensor, gate_up: Tensor, down: Tensor
    ) -> Tensor:
        rows = x.shape[0]
        every = torch.zeros(rows, self.experts, device=x.device, dtype=w.dtype).scatter(1, ids, w)
        h = (x @ gate_up.reshape(self.experts * 2 * self.width, -1).t()).view(
            rows, self.experts, 2, self.width
        )
        h = F.silu(h[:, :, 0]) * h[:, :, 1] * every[..., None].to(x.dtype)
        return h.reshape(rows, -1) @ down.permute(0, 2, 1).reshape(self.experts * self.width, -1)


class Layer(nn.Module):
    def __init__(self, c: dict, full: bool, sparse_mlp: bool, mtp: bool = False) -> None:
        super().__init__()
        hidden, eps = c["hidden_size"], c["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden, eps), RMSNorm(hidden, eps)
        self.self_attn = Attention(c, full)
        self.mlp = MoE(c) if sparse_mlp else MLP(hidden, c["intermediate_size"])
        self.moe = sparse_mlp
        if mtp:
            self.enorm, self.hnorm, self.eh_proj = (
                RMSNorm(hidden, eps),
                RMSNorm(hidden, eps),
                linear(2 * hidden, hidden),
            )
            self.shared_head = nn.Module()
            self.shared_head.norm = RMSNorm(hidden, eps)

    def forward(
        self,
        h: Tensor,
        visible: Tensor,
        selected: Tensor,
        cos: Tensor,
        sin: Tensor,
        sparse: bool,
        index_rows: int,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        a, selected, kl = self.self_attn(
            self.input_layernorm(h), visible, selected, cos, sin, sparse, index_rows
        )
        h = h + a
        y, count = self.mlp(self.post_attention_layernorm(h)), None
        if self.moe:
            y, count = y
        return h + y, selected, kl, count


class GLM(nn.Module):
    def __init__(self, c: dict = CONFIG, seed: int = 0) -> None:
        super().__init__()
        self.config = c
        body = self.model = nn.Module()
        body.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        trunk = [
            Layer(c, index == "full", mlp == "sparse")
            for index, mlp in zip(c["indexer_types"], c["mlp_layer_types"], strict=True)
        ]
        body.layers = nn.ModuleList([*trunk, Layer(c, True, True, mtp=True)])
        body.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.lm_head = linear(c["hidden_size"], c["vocab_size"])
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if name.endswith("embed_tokens.weight"):
                p.data.normal_(0, 0.1, generator=generator)
            elif name == "lm_head.weight":
                p.data.normal_(0, 0.004, generator=generator)
            elif p.dim() >= 2:
                std = 0.7 * p.shape[-1] ** -0.5
                if "o_proj" in name or "down" in name:
                    std *= (2 * len(trunk)) ** -0.5
                p.data.normal_(0, std, generator=generator)
        self.run = [layer.forward for layer in body.layers]  # train.py may replace these by compiled ones
        self.table: tuple[Tensor, Tensor] | None = None

    def visible(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Causal within one document (bool [batch, time, time]), and the number of each token's document. A
        document ends after <|endoftext|>; a conversation starts at [gMASK]."""
        time = ids.shape[1]
        start = (ids == GMASK).int()
        start[:, 1:] |= (ids[:, :-1] == END_OF_TEXT).int()
        document = start.cumsum(1)
        causal = torch.ones(time, time, dtype=torch.bool, device=ids.device).tril()
        return (document[:, :, None] == document[:, None, :]) & causal, document

    def forward(
        self,
        ids: Tensor,
        after: Tensor | None = None,
        visible: Tensor | None = None,
        sparse: bool = False,
        index_rows: int = 0,
        eager: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor, list[Tensor]]:
        """ids [batch, time]; after [batch, time], the ids shifted by one, for the MTP rows (None: no MTP).
        Returns the hidden states after model.norm, those after shared_head.norm (or None), the KL of each
        full layer, and the expert counts of each sparse layer. lm_head makes logits of both."""
        batch, time = ids.shape
        body, c = self.model, self.config
        if visible is None:
            visible = (
                torch.ones(time, time, dtype=torch.bool, device=ids.device).tril().expand(batch, time, time)
            )
        if self.table is None or self.table[0].shape[0] != time or self.table[0].device != ids.device:
            self.table = rope_table(time, c["rope_parameters"]["rope_theta"], ids.device)
        cos, sin = self.table
        run = [layer.forward for layer in body.layers] if eager else self.run
        h, selected, kls, counts = body.embed_tokens(ids), visible, [], []
        for layer, step in zip(body.layers[:-1], run[:-1], strict=True):
            h, selected, kl, count = step(h, visible, selected, cos, sin, sparse, index_rows)
            if layer.self_attn.full:
                kls.append(kl)
            if count is not None:
                counts.append(count)
        f, m = body.norm(h), None
        if after is not None:
            last = body.layers[-1]
            x = last.eh_proj(torch.cat((last.enorm(body.embed_tokens(after)), last.hnorm(f)), -1))
            y, _, kl, count = run[-1](x.float(), visible, visible, cos, sin, sparse, index_rows)
            kls.append(kl)
            counts.append(count)
            m = last.shared_head.norm(y)
        return f, m, torch.stack(kls), counts


# ---- the Hugging Face layout ----


def to_hf(model: GLM, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    result, width = {}, model.config["moe_intermediate_size"]
    for name, tensor in model.state_dict().items():
        tensor = tensor.detach().float().cpu()
        if name.endswith("mlp.gate_up"):
            for e in range(tensor.shape[0]):
                expert = f"{name.removesuffix('gate_up')}experts.{e}."
                result[expert + "gate_proj.weight"] = tensor[e, :width].to(dtype).clone()
                result[expert + "up_proj.weight"] = tensor[e, width:].to(dtype).clone()
        elif name.endswith("mlp.down"):
            for e in range(tensor.shape[0]):
                result[f"{name.removesuffix('down')}experts.{e}.down_proj.weight"] = (
                    tensor[e].to(dtype).clone()
                )
        else:
            keep = name.endswith("e_score_correction_bias")  # float32, as published
            result[name] = tensor.contiguous() if keep else tensor.to(dtype).contiguous()
    return result


def load_hf(model: GLM, folder: str | Path) -> GLM:
    from safetensors.torch import load_file

    weights, state = load_file(Path(folder) / "model.safetensors"), {}
    for name, tensor in model.state_dict().items():
        if name.endswith("mlp.gate_up"):
            expert = name.removesuffix("gate_up") + "experts."
            state[name] = torch.stack(
                [
                    torch.cat(
                        (weights[f"{expert}{e}.gate_proj.weight"], weights[f"{expert}{e}.up_proj.weight"])
                    )
                    for e in range(tensor.shape[0])
                ]
            )
        elif name.endswith("mlp.down"):
            expert = name.removesuffix("down") + "experts."
            state[name] = torch.stack(
                [weights[f"{expert}{e}.down_proj.weight"] for e in range(tensor.shape[0])]
            )
        else:
            state[name] = weights[name]
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    return model


def save_hf(model: GLM, folder: str | Path, tokenizer_folder: str | Path | None = None) -> None:
    """model.safetensors (BF16, one tensor per expert), config.json, generation_config.json, the tokenizer's
    files."""
    from safetensors.torch import save_file

    folder, c = Path(folder), model.config
    folder.mkdir(parents=True, exist_ok=True)
    save_file(to_hf(model), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(c, indent=1))
    (folder / "generation_config.json").write_text(
        json.dumps(
            {
                "eos_token_id": c["eos_token_id"],
                "pad_token_id": c["pad_token_id"],
                "temperature": 1.0,
                "top_p": 0.95,
            },
            indent=1,
        )
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if tokenizer_folder and (Path(tokenizer_folder) / name).exists():
            shutil.copy(Path(tokenizer_folder) / name, folder)
