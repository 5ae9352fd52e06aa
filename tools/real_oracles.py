#!/usr/bin/env python3
"""Writes oracles/: what is publicly known of the real model's answers, as records that need its 211 GB file.

    python tools/real_oracles.py [FOLDER]

The numbers come from the tests of another executor of that file (the GLM part of ds4, in its Rust port). What is not
public is left open: a record without a prompt is verified with `glm52 oracle verify MODEL FILE --ids ...`.
"""

import struct
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from glm52_rt import oracle  # noqa: E402

NEEDS = "the 211 GB file GLM-5.2-UD-IQ2_XXS_RoutedIQ2XXS_blk78Q2K.gguf"
FILE_BYTES = 211_075_856_448
STATEMENT = 'Complete the C statement with the next exact token only:\nreturn snprintf(buf, sizeof(buf), "%d", value'
LOGIT, TOLERANCE = 24.178133, 1e-3


def head(prompt: dict[str, Any], steps: int, bound: float, context: int | None = None) -> dict[str, Any]:
    return {
        "glm52_oracle": oracle.FORMAT,
        "source": {"program": "ds4, Rust port", "what": "an expectation of its tests"},
        "model": {"identity": None, "file_bytes": FILE_BYTES, "needs": NEEDS},
        "tokenizer": None,
        "prompt": {"text": None, "messages": None, "ids": None, **prompt},
        "engine": {"context": context, "quality": False, "kv_type": "f16", "latent_epsilon": None, "chunk_rows": None},
        "steps": steps,
        "bounds": {"logits": bound},
        "arithmetic": None, "backend": None, "kernels": None, "build": None, "streaming": False,
    }  # fmt: skip


def step(number: int, fed: list[int] | None, **known: Any) -> dict[str, Any]:
    return {
        "step": number, "position": None, "token": None, "fed": fed, "layers": [], "values": "logits", "argmax": None,
        "top": [], "at": [], "logits": None, "logits_rms": None, "log_sum": None, **known,
    }  # fmt: skip


def bits(value: float) -> str:
    return struct.pack(">f", value).hex()


def records() -> dict[str, oracle.Record]:
    statement = [head({"text": STATEMENT, "note": "as it is, without a chat around it"}, 0, 5e-3)]
    statement.append(step(0, None, argmax_bytes=b");\n".hex()))

    tokens = [9703, 0, 2585, 646]
    note = "a user's greeting, answered without reasoning; its wording is not public"
    greeting = [head({"note": note}, len(tokens) - 1, 5e-3)]
    greeting += [step(i, [tokens[i - 1]] if i else None, argmax=token) for i, token in enumerate(tokens)]

    note = "102 tokens that are not public; run with a cold cache of 16 experts (--experts 16)"
    cold = [head({"count": 102, "note": note}, 0, TOLERANCE / LOGIT, 256)]
    cold.append(step(0, None, argmax=1215, top=[[1215, bits(LOGIT)]]))
    found = {"c-statement": statement, "greeting": greeting, "cold-cache": cold}
    return {name: oracle.sealed(lines) for name, lines in found.items()}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "oracles"
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in records().items():
        oracle.write(lines, folder / f"{name}.jsonl")


if __name__ == "__main__":
    main()
