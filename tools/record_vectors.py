#!/usr/bin/env python3
"""Records what other implementations say about synthetic models, so that tests need neither them nor torch.

    record_vectors.py transformers [--trials N]   tests/vectors/transformers-{tiny,realgeom}.{npz,json}
    record_vectors.py harness [--trials N]        tests/vectors/tiny.txt, for build/glm52-check

The first needs torch and transformers (recorded with 2.13.0 and 5.24.0); it feeds them the very weights of
the GGUF, in float32. The second uses tests/reference.py alone. Prompts are random ids. Top-k choices make a
model discontinuous: where two candidates lie closer than an implementation's rounding error, either choice is
right. So of N prompts the one with the widest margins is taken, and the margins are recorded.
"""

import argparse
import json
import platform
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools")]

from make_model import DEFAULT_SEED, make_model  # noqa: E402
from reference import Options, Reference, Trace  # noqa: E402
from synthetic.raw import Raw  # noqa: E402
from synthetic.tokenizer import ADDED, UNUSED_TAIL  # noqa: E402

VECTORS = ROOT / "tests/vectors"
TRANSFORMERS_EPSILON = 1e-6  # of the latent norms, which transformers makes without the model's epsilon
MODEL_EPSILON = None
# Prompt lengths below, at, right above and far above index_top_k = 32, and the rows whose logits are kept.
ROWS = {16: [0, 7, 15], 32: [30, 31], 33: [31, 32], 256: [31, 32, 33, 63, 127, 254, 255]}


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    seed: int
    margins: dict[str, float]  # the closest decision of any indexer and of any router


def prompt_ids(seed: int, count: int, vocab: int) -> list[int]:
    """Random ids of ordinary tokens."""
    ordinary = vocab - len(ADDED) - UNUSED_TAIL
    return [int(id_) for id_ in Raw(seed, f"prompt of {count}").below(ordinary, count)]


def choose_prompt(model: Reference, count: int, trials: int, variants: list[Options]) -> Prompt:
    """Of the first trials seeds the prompt whose closest decision under all variants is the least close."""
    best = None
    vocab = len(model.weights["token_embd.weight"])
    for seed in range(trials):
        ids = prompt_ids(seed, count, vocab)
        index_gap = route_gap = np.inf
        for options in variants:
            trace = Trace()
            model.hidden(ids, options, trace)
            index_gap, route_gap = min(index_gap, trace.index_gap()), min(route_gap, trace.route_gap())
        found = Prompt(ids, seed, {"index": float(index_gap), "route": float(route_gap)})
        if best is None or min(found.margins.values()) > min(best.margins.values()):
            best = found
    assert best is not None
    return best


def provenance(command: str, trials: int) -> dict[str, str]:
    packages = ("numpy", "gguf", "torch", "transformers") if command == "transformers" else ("numpy", "gguf")
    found = {package: version(package) for package in packages}
    run = f"tools/record_vectors.py {command} --trials {trials}"
    return {"command": run, "python": platform.python_version(), **found}


# ---- transformers ----


def hf_config(model: Reference) -> dict[str, object]:
    s, key = model.shape, model.weights.key
    types = ["full" if is_full else "shared" for is_full in s.full[: s.layers]]
    return dict(
        vocab_size=key("vocab_size"),
        hidden_size=key("embedding_length"),
        intermediate_size=key("feed_forward_length"),
        moe_intermediate_size=key("expert_feed_forward_length"),
        num_hidden_layers=s.layers,
        num_attention_heads=s.heads,
        num_key_value_heads=s.heads,
        n_routed_experts=key("expert_count"),
        num_experts_per_tok=s.experts_used,
        n_shared_experts=1,
        q_lora_rank=key("attention.q_lora_rank"),
        kv_lora_rank=s.kv_lora,
        qk_nope_head_dim=s.nope,
        qk_rope_head_dim=s.rope,
        qk_head_dim=s.nope + s.rope,
        v_head_dim=key("attention.value_length_mla"),
        index_n_heads=s.index_heads,
        index_head_dim=s.index_key,
        index_topk=s.index_top_k,
        indexer_types=types,
        mlp_layer_types=["dense"] * s.dense_layers + ["sparse"] * (s.layers - s.dense_layers),
        first_k_dense_replace=s.dense_layers,
        n_group=1,
        topk_group=1,
        norm_topk_prob=s.expert_norm,
        routed_scaling_factor=s.expert_scale,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_theta": s.theta, "rope_type": "default"},
        max_position_embeddings=key("context_length"),
        attention_bias=False,
        tie_word_embeddings=False,
    )


_ATTENTION = {
    "attn_q_a.weight": "q_a_proj.weight",
    "attn_q_a_norm.weight": "q_a_layernorm.weight",
    "attn_q_b.weight": "q_b_proj.weight",
    "attn_kv_a_mqa.weight": "kv_a_proj_with_mqa.weight",
    "attn_kv_a_norm.weight": "kv_a_layernorm.weight",
    "attn_output.weight": "o_proj.weight",
    "indexer.attn_q_b.weight": "indexer.wq_b.weight",
    "indexer.attn_k.weight": "indexer.wk.weight",
    "indexer.k_norm.weight": "indexer.k_norm.weight",
    "indexer.k_norm.bias": "indexer.k_norm.bias",
    "indexer.proj.weight": "indexer.weights_proj.weight",
}
_FEED_FORWARD = {
    "ffn_gate.weight": "gate_proj.weight",
    "ffn_up.weight": "up_proj.weight",
    "ffn_down.weight": "down_proj.weight",
    "ffn_gate_inp.weight": "gate.weight",
    "exp_probs_b.bias": "gate.e_score_correction_bias",
    "ffn_down_exps.weight": "experts.down_proj",
    "ffn_gate_shexp.weight": "shared_experts.gate_proj.weight",
    "ffn_up_shexp.weight": "shared_experts.up_proj.weight",
    "ffn_down_shexp.weight": "shared_experts.down_proj.weight",
}


def hf_block(model: Reference, block: int) -> dict[str, np.ndarray]:
    """The weights of one decoder layer under the names of transformers' modules."""
    w, p = model.weights, f"blk.{block}."
    out = {
        "input_layernorm.weight": w[p + "attn_norm.weight"],
        "post_attention_layernorm.weight": w[p + "ffn_norm.weight"],
    }
    names = [(ours, f"self_attn.{theirs}") for ours, theirs in _ATTENTION.items()]
    names += [(ours, f"mlp.{theirs}") for ours, theirs in _FEED_FORWARD.items()]
    out.update({theirs: w[p + ours] for ours, theirs in names if p + ours in w})
    # Per head, rows of k_b (stored transposed) and then of v_b.
    k_b, v_b = w[p + "attn_k_b.weight"].transpose(0, 2, 1), w[p + "attn_v_b.weight"]
    out["self_attn.kv_b_proj.weight"] = np.concatenate([k_b, v_b], 1).reshape(-1, k_b.shape[2])
    if p + "ffn_gate_exps.weight" in w:
        both = [w[p + "ffn_gate_exps.weight"], w[p + "ffn_up_exps.weight"]]
        out["mlp.experts.gate_up_proj"] = np.concatenate(both, 1)
    return out


class Transformers:
    """The same model built from transformers' modules, float32, eager attention and experts."""

    def __init__(self, model: Reference) -> None:
        import torch
        from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

        torch.set_num_threads(1)
        self.torch = torch
        self.reference = model
        self.config = GlmMoeDsaConfig(**hf_config(model))
        self.model = GlmMoeDsaForCausalLM._from_config(
            self.config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
        ).eval()
        w = model.weights
        state = {
            "model.embed_tokens.weight": w["token_embd.weight"],
            "model.norm.weight": w["output_norm.weight"],
            "lm_head.weight": w["output.weight"],
        }
        for block in range(model.shape.layers):
            own = hf_block(model, block).items()
            state.update({f"model.layers.{block}.{name}": value for name, value in own})
        self.model.load_state_dict(self._tensors(state), strict=True)

    def _tensors(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        return {name: self.torch.from_numpy(np.array(value)) for name, value in arrays.items()}

    def run(self, ids: list[int]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Logits [tokens, vocab]; selected_L bool [tokens, tokens], route_ids_L, route_weights_L."""
        decisions: dict[str, np.ndarray] = {}
        count = len(ids)

        def on_index(layer: int, chosen: Any) -> None:
            mask = np.zeros((count, count), bool)
            np.put_along_axis(mask, chosen[0].numpy().astype(np.int64), True, -1)
            # In a batch transformers also lists positions ahead of the row; its mask then drops them.
            decisions[f"selected_{layer}"] = mask & np.tri(count, dtype=bool)

        def on_route(layer: int, out: Any) -> None:
            decisions[f"route_ids_{layer}"] = out[2].numpy().astype(np.uint8)
            decisions[f"route_weights_{layer}"] = out[1].numpy()

        hooks = []
        for number, layer in enumerate(self.model.model.layers):
            if layer.self_attn.indexer is not None:
                hook = lambda module, args, out, number=number: on_index(number, out)  # noqa: E731
                hooks.append(layer.self_attn.indexer.register_forward_hook(hook))
            if hasattr(layer.mlp, "gate"):
                hook = lambda module, args, out, number=number: on_route(number, out)  # noqa: E731
                hooks.append(layer.mlp.gate.register_forward_hook(hook))
        with self.torch.no_grad():
            logits = self.model(input_ids=self.torch.tensor([ids]), use_cache=False).logits[0].numpy()
        for hook in hooks:
            hook.remove()
        return logits, decisions

    def mtp(self, ids: list[int]) -> np.ndarray:
        """Logits [tokens - 1, vocab] of the MTP block, made of transformers' decoder layer and norms.

        transformers itself drops that block. Row i reads the final hidden state of token i and token i + 1.
        """
        import copy

        from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa as modules

        torch, block = self.torch, self.reference.shape.layers
        config = copy.deepcopy(self.config)
        config.num_hidden_layers = block + 1
        config.indexer_types = [*config.indexer_types, "full"]
        config.mlp_layer_types = [*config.mlp_layer_types, "sparse"]
        config.layer_types = [*config.layer_types, "indexed_attention"]
        config._attn_implementation = config._experts_implementation = "eager"
        layer = modules.GlmMoeDsaDecoderLayer(config, block).float().eval()
        layer.load_state_dict(self._tensors(hf_block(self.reference, block)), strict=True)
        extra = self._tensors({
            name: self.reference.weights[f"blk.{block}.nextn.{name}.weight"]
            for name in ("enorm", "hnorm", "shared_head_norm", "eh_proj")
        })  # fmt: skip

        def norm(name: str, x: Any) -> Any:
            module = modules.GlmMoeDsaRMSNorm(config.hidden_size, config.rms_norm_eps)
            module.weight.data = extra[name]
            return module(x)

        with torch.no_grad():
            tokens = torch.tensor([ids])
            hidden = self.model.model(input_ids=tokens, use_cache=False).last_hidden_state[:, :-1]
            embedded = self.model.model.embed_tokens(tokens)[:, 1:]
            x = torch.cat([norm("enorm", embedded), norm("hnorm", hidden)], -1) @ extra["eh_proj"].T
            positions = torch.arange(x.shape[1])[None]
            angles = self.model.model.rotary_emb(x, position_ids=positions)
            mask = torch.full((x.shape[1],) * 2, torch.finfo(torch.float32).min).triu(1)[None, None]
            y, _ = layer(x, attention_mask=mask, position_ids=positions, position_embeddings=angles)
            return self.model.lm_head(norm("shared_head_norm", y))[0].numpy()


def record_transformers(preset: str, folder: Path, trials: int) -> None:
    path = make_model(preset, folder / f"{preset}.gguf", mix="bf16")
    model = Reference(path)
    theirs = Transformers(model)
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {
        **provenance("transformers", trials),
        "model": f"tools/make_model.py {preset} --mix bf16 --seed {DEFAULT_SEED}",
        "weights_sha256": model.weights.digest(),
        "latent_epsilon": TRANSFORMERS_EPSILON,
        "cases": {},
    }
    for count, rows in ROWS.items():
        variants = [Options(latent_epsilon=TRANSFORMERS_EPSILON), Options(latent_epsilon=MODEL_EPSILON)]
        prompt = choose_prompt(model, count, trials, variants)
        logits, decisions = theirs.run(prompt.ids)
        mtp = theirs.mtp(prompt.ids)
        recorded = {
            "ids": np.array(prompt.ids, np.int32),
            "rows": np.array(rows, np.int32),
            "logits": logits[rows],
            "argmax": logits.argmax(-1).astype(np.int32),
            "mtp_logits": mtp[[count // 2, count - 2]],
            **{
                name: np.packbits(value, -1) if value.dtype == bool else value
                for name, value in decisions.items()
            },
        }
        arrays.update({f"{count}/{name}": value for name, value in recorded.items()})
        ranked = np.sort(logits, -1)
        facts["cases"][str(count)] = {
            "prompt_seed": prompt.seed,
            "prompts_tried": trials,
            # no indexer decides anything while every position is selected
            "closest_decisions": {
                name: gap if np.isfinite(gap) else None for name, gap in prompt.margins.items()
            },
            "closest_argmax": float((ranked[:, -1] - ranked[:, -2]).min()),
        }
        print(f"{preset} {count}: prompt {prompt.seed}, {prompt.margins}", flush=True)
    np.savez_compressed(VECTORS / f"transformers-{preset}.npz", **arrays)  # type: ignore[arg-type]
    text = json.dumps(facts, indent=1) + "\n"
    (VECTORS / f"transformers-{preset}.json").write_text(text, encoding="utf-8")
    path.unlink()


# ---- the C harness ----

# name, tokens, rows, engine settings. Chunks straddle index_top_k = 32 and leave a remainder.
HARNESS_CASES: list[tuple[str, int, list[int], dict[str, Any]]] = [
    ("below index_top_k", 16, [0, 15], {}),
    ("at index_top_k", 32, [31], {"chunk": 5}),
    ("one above index_top_k", 33, [31, 32], {"chunk": 33}),
    ("far above index_top_k", 256, [31, 32, 63, 255], {}),
    ("far above, chunks of 7", 256, [127, 255], {"chunk": 7}),
    ("far above, latent epsilon of transformers", 256, [255], {"latent_epsilon": TRANSFORMERS_EPSILON}),
    ("float16 caches", 40, [15, 39], {"kv_type": "f16"}),
]
# float32 arithmetic against float64: the bound that the project sets itself for quantised weights. float16
# caches: an error of 1e-6, as float32 arithmetic brings, flips the rounding of one cached value in some
# hundred; scaling the latents by that much in float64 moved these logits by up to 2.2e-4 of their rms. Twice
# that and a little is allowed; an engine with float32 caches is off by 9e-4 and fails.
TOLERANCE = {"f32": 1e-4, "f16": 5e-4}
TOP = 10


def record_harness(folder: Path, trials: int) -> None:
    path = make_model("tiny", folder / "tiny.gguf")
    model = Reference(path)
    facts = provenance("harness", trials)
    lines = [
        "# What tests/reference.py (float64) says about `tools/make_model.py tiny`, default mix and seed.",
        f"# Recorded by `{facts.pop('command')}`, "
        + ", ".join(f"{name} {number}" for name, number in facts.items()) + ".",
        f"# SHA-256 of the weights: {model.weights.digest()}",
    ]  # fmt: skip
    prompts: dict[tuple[int, str], Prompt] = {}
    for name, count, rows, settings in HARNESS_CASES:
        kv = settings.get("kv_type", "f32")
        kv_f16 = "post" if kv == "f16" else "none"
        if (count, kv) not in prompts:
            epsilons = (MODEL_EPSILON, TRANSFORMERS_EPSILON) if kv == "f32" else (MODEL_EPSILON,)
            variants = [Options(latent_epsilon=epsilon, kv_f16=kv_f16) for epsilon in epsilons]
            prompts[count, kv] = choose_prompt(model, count, trials, variants)
        prompt = prompts[count, kv]
        options = Options(latent_epsilon=settings.get("latent_epsilon"), kv_f16=kv_f16)
        logits = model.logits(prompt.ids, options, rows=rows)
        lines += [
            "",
            f"# prompt {prompt.seed}; closest choice of an indexer {prompt.margins['index']:.2g}, "
            f"of a router {prompt.margins['route']:.2g}",
            f"case {name}",
            *(f"{key} {value}" for key, value in settings.items()),
            f"tolerance {TOLERANCE[kv]:g}",
            "tokens " + " ".join(map(str, prompt.ids)),
        ]
        for row, values in zip(rows, logits, strict=True):
            best = np.argsort(-values, kind="stable")[:TOP]
            lines.append(f"top {row} " + " ".join(f"{id_} {values[id_]:.9g}" for id_ in best))
        lines.append("end")
        print(f"{name}: prompt {prompt.seed}, {prompt.margins}", flush=True)
    (VECTORS / "tiny.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("transformers", "harness"))
    parser.add_argument("--trials", type=int, default=12, metavar="N", help="prompts to choose from")
    options = parser.parse_args()
    VECTORS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        if options.what == "harness":
            record_harness(Path(folder), options.trials)
        else:
            for preset in ("tiny", "realgeom"):
                record_transformers(preset, Path(folder), options.trials)
    return 0


if __name__ == "__main__":
    sys.exit(main())
