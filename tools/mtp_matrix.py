#!/usr/bin/env python3
"""Greedy decoding with multi-token prediction against plain decoding, token by token and logit by logit.

    python tools/mtp_matrix.py [--tokens 500] [--prompts 20] [--drafts 1,2,3,7] [--presets tiny,realgeom]
                               [--memory resident,streamed] [--backend cpu] [--threads N] [--folder F]

Makes each preset's model (with an MTP block that guesses well: tools/synthetic/foresee.py), decodes every prompt
plainly, and then with each number of drafts, resident and streamed through the smallest expert cache that opens.
Prints a line per combination with what was accepted, and exits 1 at the first token or logit that differs. Prompts are
random and of many lengths; index_top_k of these models is 32, so that most of each conversation selects.
"""

import argparse
import hashlib
import itertools
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tools")]

import make_model  # noqa: E402

from synthetic.foresee import foresee  # noqa: E402

import glm52_rt as rt  # noqa: E402

Run = list[tuple[int, bytes]]  # tokens, each with a digest of the logits that it was chosen by


def prompts(count: int, vocab: int) -> list[list[int]]:
    random = np.random.Generator(np.random.PCG64(5))
    lengths = [1 + 7 * number % 61 for number in range(count)]
    return [random.integers(0, vocab - 64, length).tolist() for length in lengths]


def greedy(engine: rt.Engine, ids: Sequence[int], tokens: int) -> Run:
    engine.reset()
    found = []
    for token in rt.generate(engine, ids, tokens, temperature=0, stop=()):
        found.append((token, hashlib.blake2b(engine.logits.tobytes(), digest_size=16).digest()))
    return found


def first_difference(wanted: Run, got: Run) -> str | None:
    for number, (one, two) in enumerate(itertools.zip_longest(wanted, got)):
        if one != two:
            what = "logits" if one and two and one[0] == two[0] else "token"
            return f"{what} of step {number}: {two and two[0]}, plainly {one and one[0]}"
    return None


def least_streaming(model: rt.Model, **options: Any) -> rt.Streaming:
    """The smallest expert cache that an engine opens with."""
    for experts in range(1, 257):
        streaming = rt.Streaming(cache_experts=experts)
        try:
            rt.Engine(model, streaming=streaming, **options).close()
        except rt.MemoryBudgetError:
            continue
        return streaming
    raise SystemExit("no cache of up to 256 experts opens")


def check(model: rt.Model, name: str, args: argparse.Namespace) -> bool:
    """All combinations on one model. False at the first difference."""
    asked = prompts(args.prompts, model.shape.vocab)
    options: dict[str, Any] = {
        "context": max(map(len, asked)) + args.tokens, "backend": args.backend, "threads": args.threads
    }  # fmt: skip
    with rt.Engine(model, **options) as engine:
        plain = [greedy(engine, ids, args.tokens) for ids in asked]
    for memory, drafts in itertools.product(args.memory, args.drafts):
        streaming = None if memory == "resident" else least_streaming(model, mtp=True, **options)
        with rt.Engine(model, mtp=True, drafts=drafts, streaming=streaming, **options) as engine:
            for number, ids in enumerate(asked):
                different = first_difference(plain[number], greedy(engine, ids, args.tokens))
                if different:
                    print(f"{name}, {memory}, {drafts} drafts, prompt {number}: {different}", flush=True)
                    return False
            stats = engine.stats()
        cache = f" (cache of {streaming.cache_experts} experts)" if streaming else ""
        print(
            f"{name}, {memory}{cache}, {drafts} drafts: {args.prompts} prompts of {args.tokens} tokens the same; "
            f"{stats.mtp_accepted} of {stats.mtp_drafted} drafts accepted in {stats.mtp_cycles} cycles", flush=True
        )  # fmt: skip
    return True


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--drafts", type=numbers, default=[1, 2, 3, 7])
    parser.add_argument("--presets", type=lambda text: text.split(","), default=["tiny", "realgeom"])
    parser.add_argument("--memory", type=lambda text: text.split(","), default=["resident", "streamed"])
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", help="where models are made (default: a temporary one)")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for preset in args.presets:
            path = make_model.make_model(preset, Path(folder) / f"{preset}.gguf")
            path = foresee(path, Path(folder) / f"{preset}-foreseeing.gguf")
            with rt.Model.open(path) as model:
                if not check(model, preset, args):
                    return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
