"""One run of glm52-rt in a process of its own: ours.py MODEL THREADS PROMPT TOKENS prints a JSON object with prefill
and decode in tokens per second, wall clock, and peak_bytes, the highest resident memory. Tokens are random and the
same in every run; what they are changes which experts are read, not how many."""

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import glm52_rt as rt


def run(path: str, threads: int, prompt: int, tokens: int) -> dict[str, float]:
    with rt.Model.open(path) as model:
        ids = np.random.default_rng(1).integers(0, model.shape.vocab, prompt + tokens).tolist()
        with rt.Engine(model, context=prompt + tokens, threads=threads) as engine:
            engine.prefill(ids[:prompt])  # threads started, pages of the file mapped: as llama-bench warms up
            engine.reset()
            start = time.perf_counter()
            engine.prefill(ids[:prompt])
            middle = time.perf_counter()
            for token in ids[prompt:]:
                engine.eval(token)
            end = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"prefill": prompt / (middle - start), "decode": tokens / (end - middle), "peak_bytes": float(peak)}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], *map(int, sys.argv[2:5]))))
