#!/usr/bin/env python3
"""Records the logits of other programs, to be verified with `glm52 oracle import` and `glm52 oracle verify`.

    record_logits.py llama.cpp MODEL.gguf --ids 1,2,3 [--rows 0,2] [--kv f16] -o FILE.npz     needs llama-cpp-python
    record_logits.py transformers FOLDER --ids 1,2,3 [--rows 0,2] -o FILE.npz                 needs torch, transformers

The file (docs/FORMAT.md, "Logits of other programs") holds the token ids, the numbers of the rows, their logits and
what made them. --ids @NAME reads the ids from a file, --rows names the positions whose logits are kept (all of them
without it). Both programs run in float32 on one thread; llama.cpp keeps its caches in float32 unless --kv says f16.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def llama_cpp(path: str, ids: list[int], kv: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Logits [tokens, vocab] of one batch, and the settings."""
    import llama_cpp

    kind = {"f32": llama_cpp.GGML_TYPE_F32, "f16": llama_cpp.GGML_TYPE_F16}[kv]
    count = len(ids)
    model = llama_cpp.Llama(
        path, n_ctx=count, n_batch=count, n_ubatch=count, n_threads=1, n_threads_batch=1, logits_all=True,
        flash_attn=False, type_k=kind, type_v=kind, verbose=False,
    )  # fmt: skip
    model.eval(ids)
    settings = {"program": "llama.cpp", "llama-cpp-python": version("llama-cpp-python"), "kv": kv, "flash_attn": False}
    return np.array(model.scores[:count], np.float32), settings


def transformers(path: str, ids: list[int], _: str) -> tuple[np.ndarray, dict[str, Any]]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    settings = {"program": "transformers", "transformers": version("transformers"), "torch": version("torch")}
    return logits.numpy(), {**settings, "kv": "f32", "latent_epsilon": 1e-6}


PROGRAMS = {"llama.cpp": llama_cpp, "transformers": transformers}


def number_list(text: str) -> list[int]:
    text = Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text
    return [int(part) for part in text.replace(",", " ").split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", choices=PROGRAMS)
    parser.add_argument("model")
    parser.add_argument("--ids", type=number_list, required=True)
    parser.add_argument("--rows", type=number_list)
    parser.add_argument("--kv", choices=("f32", "f16"), default="f32", help="of llama.cpp's caches")
    parser.add_argument("-o", "--output", required=True)
    args = parser.parse_args()
    rows = sorted(set(args.rows if args.rows is not None else range(len(args.ids))))
    if not args.ids or not rows or rows[0] < 0 or rows[-1] >= len(args.ids):
        parser.error("at least one id, and rows among them")
    logits, settings = PROGRAMS[args.program](args.model, args.ids, args.kv)
    np.savez_compressed(
        args.output, ids=np.array(args.ids, np.int32), rows=np.array(rows, np.int32), logits=logits[rows],
        source=np.array(json.dumps(settings)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
