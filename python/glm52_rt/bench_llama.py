"""One run of llama.cpp through llama-cpp-python, in a process of its own: bench_llama MODEL THREADS PROMPT TOKENS.
Prints a JSON object with prefill and decode in tokens per second, as glm52 bench measures them: the same random tokens,
a warm-up of the same prompt, then the prompt and the tokens behind it."""

import json
import sys
import time

import numpy as np


def run(path: str, threads: int, prompt: int, tokens: int) -> dict[str, float]:
    import llama_cpp

    llama = llama_cpp.Llama(
        model_path=path, n_ctx=prompt + tokens, n_batch=max(prompt, 1), n_threads=threads, n_threads_batch=threads,
        verbose=False,
    )  # fmt: skip
    ids = token_ids(llama.n_vocab(), prompt + tokens)
    llama.eval(ids[:prompt])
    llama.reset()
    start = time.perf_counter()
    llama.eval(ids[:prompt])
    middle = time.perf_counter()
    for token in ids[prompt:]:
        llama.eval([token])
    end = time.perf_counter()
    return {"prefill": prompt / (middle - start), "decode": tokens / (end - middle)}


def token_ids(vocab: int, count: int) -> list[int]:
    """Random tokens, the same in every run: what they are changes which experts are read, not how many."""
    return np.random.default_rng(1).integers(0, vocab, count).tolist()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(sys.argv[1], *map(int, sys.argv[2:5]))) + "\n")
