"""Holds the trained model against two others: transformers' GlmMoeDsa and the float64 reference of the tests.

    python tools/nano/check.py MODEL_FOLDER DATA_FOLDER

Needs torch and transformers. Compares logits, below and above index_top_k, and the MTP layer's. The reference
reads the GGUF that to_gguf.py writes, so the conversion is checked with it. Exits 1 when a relative rms
passes 1e-4 in rows whose selections and routes are no near ties (a flipped near tie is no error, and is
counted).
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType

import to_gguf
from model import CONFIG, GLM, MoE, load_hf

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests"))
import reference  # noqa: E402

TOLERANCE = 1e-4  # float32 against float64 over 8 layers: some 1e-6; a mistake makes 1e-2 and more


def row_errors(got: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Relative rms of each row."""
    return np.sqrt(((got - wanted) ** 2).mean(-1) / (wanted**2).mean(-1))


def transformers_model(folder: Path) -> torch.nn.Module:
    """In float32, with the model's own epsilon in the latent norms (transformers has 1e-6 there)."""
    transformers.logging.set_verbosity_error()
    model, info = transformers.GlmMoeDsaForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        experts_implementation="eager",
        output_loading_info=True,
    )
    left = {".".join(name.split(".")[:3]) for name in info["unexpected_keys"]}
    if info["missing_keys"] or left - {"model.layers.8"}:
        raise ValueError(f"missing {info['missing_keys']}, unexpected {left}")
    for layer in model.model.layers:
        for norm in (layer.self_attn.q_a_layernorm, layer.self_attn.kv_a_layernorm):
            norm.variance_epsilon = CONFIG["rms_norm_eps"]
    return model.eval()


@torch.no_grad()
def check(folder: Path, data: Path) -> bool:
    ours, theirs = load_hf(GLM(), folder).eval(), transformers_model(folder)
    MoE.grouped = False
    ids = np.fromfile(data / "valid.bin", dtype=np.uint16).astype(np.int64)
    good = True
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "nano.gguf"
        to_gguf.write(folder, path, GGMLQuantizationType.BF16)
        truth = reference.Reference(path)
        for time, start in ((40, 1000), (64, 20000), (160, 30000), (300, 50000)):
            window = ids[start : start + time + 1]
            x = torch.tensor(window)[None]
            f, m, _, _ = ours(x[:, :-1], x[:, 1:], sparse=time > CONFIG["index_topk"])
            got, drafts = ours.lm_head(f)[0].double().numpy(), ours.lm_head(m)[0].double().numpy()
            other = theirs(input_ids=x[:, :-1], use_cache=False).logits[0].double().numpy()
            wanted = truth.logits(window[:-1].tolist())
            wanted_drafts = truth.mtp(window.tolist())
            wanted_drafts = wanted_drafts[0] if isinstance(wanted_drafts, tuple) else wanted_drafts
            for what, errors in (
                ("transformers", row_errors(got, other)),
                ("reference", row_errors(got, wanted)),
                ("MTP, reference", row_errors(drafts, wanted_drafts)),
            ):
                off = int((errors > TOLERANCE).sum())
                good &= off <= len(errors) // 20
                print(
                    f"{time} tokens, ours against {what}: median {np.median(errors):.1e}, "
                    f"largest {errors.max():.1e}, {off} of {len(errors)} rows off",
                    flush=True,
                )
    print("passed" if good else "FAILED")
    return good


if __name__ == "__main__":
    sys.exit(not check(Path(sys.argv[1]), Path(sys.argv[2])))
