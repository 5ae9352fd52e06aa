"""What a GPU backend gives and takes, beside the CPU backend: the part of mac_check.sh that Python does.

    mac_check.py logits BACKEND MODEL...     logits and greedy tokens of each model against the CPU's quality run
    mac_check.py speed BACKEND MODEL         prompt and decoding, both backends in turns, and the memory of the process
    mac_check.py stream BACKEND MODEL        the same with experts streamed from the smallest cache: the same bits

Prints a line per figure; exits 1 if something is not as it must be. MODEL may be a real file: prompts are token ids.
"""

import resource
import sys
import time
from typing import Any

import numpy as np

import glm52_rt as rt

# Relative rms of logits: both runs are off by less than 1e-5 from the exact ones in float32 (docs/NUMERICS.md); a row
# of an f16 cache differs by half a unit of 2^-11 where the two are on different sides of a rounding.
RMS_MAX = {"f32": 2e-5, "f16": 1e-3}
STEPS = 16
GIB = float(1 << 30)


def prompt(model: rt.Model, count: int) -> list[int]:
    """Ids spread over the vocabulary, always the same."""
    return [int(id) for id in np.random.default_rng(52).integers(3, model.shape.vocab, count)]


def run(model: rt.Model, backend: str, ids: list[int], **options: Any) -> tuple[np.ndarray, list[int], rt.Engine]:
    """Logits behind the prompt and behind tokens chosen greedily; those tokens; the engine, to be closed."""
    engine = rt.Engine(model, context=len(ids) + STEPS, backend=backend, **options)
    if engine.backend != backend:
        raise SystemExit(f"asked for {backend}, got {engine.backend}")
    engine.prefill(ids)
    logits, chosen = [engine.logits.copy()], []
    for _ in range(STEPS):
        chosen.append(int(np.argmax(logits[-1])))
        engine.eval(chosen[-1])
        logits.append(engine.logits.copy())
    return np.array(logits), chosen, engine


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values.astype(np.float64) ** 2)))


def near_tie(logits: np.ndarray, error: float) -> bool:
    """Whether the two largest logits are closer than the error that is allowed."""
    second, first = np.sort(logits)[-2:]
    return bool(first - second <= error)


def check_logits(backend: str, paths: list[str]) -> bool:
    is_good = True
    for path in paths:
        with rt.Model.open(path) as model:
            count = min(model.shape.index_top_k + 8, 300)
            ids = prompt(model, count)
            for kv_type, rows in (("f32", 0), ("f16", 0), ("f32", 5)):
                got, chosen, engine = run(model, backend, ids, quality=True, kv_type=kv_type, chunk_rows=rows)
                engine.close()
                want, expected, engine = run(model, "cpu", ids, quality=True, kv_type=kv_type)
                engine.close()
                first = next((i for i in range(STEPS) if chosen[i] != expected[i]), STEPS)
                scale = root_mean_square(want)
                rms = root_mean_square(got[: first + 1].astype(np.float64) - want[: first + 1]) / scale
                same = first == STEPS or near_tie(want[first], 12 * RMS_MAX[kv_type] * scale)
                good = same and rms <= RMS_MAX[kv_type]
                is_good = is_good and good
                batches = f"{kv_type}, batches of {rows or 'default'}"
                print(f"{'ok  ' if good else 'FAIL'} {path}: {count} tokens, {batches}: rms {rms:.1e} "
                      f"(at most {RMS_MAX[kv_type]:.0e}), {first} of {STEPS} tokens the CPU's")  # fmt: skip
    return is_good


def check_stream(backend: str, path: str) -> bool:
    with rt.Model.open(path) as model:
        ids = prompt(model, 24)
        want, _, engine = run(model, backend, ids)
        engine.close()
        slots = rt.Streaming(cache_experts=4 * model.shape.experts_used)
        begun = time.monotonic()
        got, _, engine = run(model, backend, ids, streaming=slots)
        seconds = time.monotonic() - begun
        stats = engine.stats().stream
        engine.close()
    good = np.array_equal(got.view(np.uint32), want.view(np.uint32))
    print(f"{'ok  ' if good else 'FAIL'} {path}: streamed through {stats.slots} slots, the bits of the mapped run: "
          f"{stats.hits} hits, {stats.misses} misses, {stats.read_bytes / GIB:.3f} GiB read, half of the waits below "
          f"{stats.wait.p50_ns / 1e3:.0f} us, {seconds:.2f} s")  # fmt: skip
    return good


def check_speed(backend: str, path: str) -> bool:
    with rt.Model.open(path) as model:
        ids = prompt(model, 512)
        best: dict[str, list[float]] = {name: [0.0, 0.0] for name in (backend, "cpu")}
        for _ in range(3):
            for name in best:
                with rt.Engine(model, context=1024, backend=name) as engine:
                    for part, tokens in ((0, ids), (1, ids[:64])):
                        begun = time.monotonic()
                        if part == 0:
                            engine.prefill(tokens)
                        else:
                            for token in tokens:
                                engine.eval(token)
                        best[name][part] = max(best[name][part], len(tokens) / (time.monotonic() - begun))
                    plan = engine.plan
        for name, (prefill, decode) in best.items():
            print(f"     {path}: {name:6s} prompt of 512: {prefill:9.1f} tokens/s, decoding: {decode:7.1f} tokens/s")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        print(f"     planned {plan.total / GIB:.2f} GiB (weights {plan.weights_mapped / GIB:.2f}), "
              f"most that the process had: {peak / GIB:.2f} GiB")  # fmt: skip
    return True


def main(arguments: list[str]) -> int:
    what, backend, *paths = arguments
    if what == "logits":
        good = check_logits(backend, paths)
    else:
        good = {"stream": check_stream, "speed": check_speed}[what](backend, paths[0])
    return not good


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
