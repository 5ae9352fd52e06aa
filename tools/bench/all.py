#!/usr/bin/env python3
"""Every comparison with llama.cpp on a processor, in one command:

    python tools/bench/all.py --peer PATH_TO_llama-bench --models FOLDER --out FOLDER [--pairs 5] [--limit 1200]

Models of the `bench` geometry are made in --models where they are missing (tools/make_model.py). Per mix of types:
prompts of 512 and of 16 tokens (the latter is the time to the first token) and 32 tokens decoded, with the peak of
resident memory; on a model of fewer layers decoding behind 4,096 and 16,384 positions. Runs alternate, each in a
process of its own; of the peer every configuration (flash attention and repacking on and off) is tried once per model
and the best one per measure taken. Ratios are taken pair by pair: ours / theirs in tokens per second, theirs / ours in
bytes, so above 1 is better.

Writes results.json after every pair and chart.png at the end, and prints a table. A section stops early when its share
of --limit (seconds, without making models) is used up; what was measured is kept, with the number of its pairs.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / room) for room in ("python", "tools")]

# name, preset, mix, changed numbers; what is asked of it: measure to ratio
SECTIONS: list[tuple[str, str, str | None, dict[str, int], dict[str, float]]] = [
    ("IQ2 mix", "bench", None, {}, {"decode": 2.0, "prefill 512": 1.5, "first token": 1.3, "memory": 1.0}),
    ("all IQ2_XXS", "bench", "published", {}, {"decode": 2.0, "prefill 512": 2.0, "memory": 1.0}),
    ("Q4_K mix", "bench-q4_k", None, {}, {"decode": 1.3, "prefill 512": 1.3, "memory": 1.0}),
    ("all Q8_0", "bench", "q8_0", {"experts": 20}, {"decode": 1.1, "memory": 1.0}),
]
CONTEXT = ("context", "bench", None, {"layers": 6}, {"decode at 4096": 2.0, "decode at 16384": 2.0})
DEPTHS = (4096, 16384)
SHARES = {"IQ2 mix": 0.2, "all IQ2_XXS": 0.19, "Q4_K mix": 0.19, "all Q8_0": 0.19, "context": 0.23}
CONFIGS = [{"flash-attn": a, "repack": r} for a, r in itertools.product(("on", "off"), ("1", "0"))]
PROMPT, FIRST, TOKENS = 512, 16, 32

Run = dict[str, float]


def model_of(folder: Path, section: tuple[Any, ...]) -> Path:
    _, preset, mix, changes, _ = section
    name = "-".join([preset, *([mix] if mix else []), *(f"{k}{v}" for k, v in changes.items())])
    path = folder / f"{name}.gguf"
    if not path.exists():
        command = [sys.executable, str(HERE.parent / "make_model.py"), preset, "-o", str(path)]
        command += ["--mix", mix] if mix else []
        for key, value in changes.items():
            command += ["--set", f"{key}={value}"]
        print(f"making {path.name}", file=sys.stderr)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return path


def call(command: list[str]) -> tuple[str, float]:
    """What a program prints, and its peak of resident memory in bytes."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        text = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {child.returncode}: {' '.join(command)}")
    return text, usage.ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


# ---- ours, in a process of its own: all.py --ours MODEL THREADS DEPTH ----


def ours(path: str, threads: int, depth: int) -> Run:
    """Behind depth tokens decoding alone; at depth 0 prompts, and decoding from the beginning as llama-bench does."""
    import numpy as np

    import glm52_rt as rt

    found: Run = {}
    with rt.Model.open(path) as model:
        ids = np.random.default_rng(1).integers(0, model.shape.vocab, max(depth, PROMPT) + TOKENS).tolist()
        with rt.Engine(model, context=len(ids), threads=threads) as engine:
            prompts = {} if depth else {f"prefill {PROMPT}": PROMPT, "first token": FIRST}
            engine.prefill(ids[:PROMPT])
            for name, count in prompts.items():
                engine.reset()
                start = time.perf_counter()
                engine.prefill(ids[:count])
                found[name] = count / (time.perf_counter() - start)
            engine.reset()
            if depth:
                engine.prefill(ids[:depth])
            engine.eval(ids[depth])
            start = time.perf_counter()
            for token in ids[depth + 1 : depth + TOKENS]:
                engine.eval(token)
            found[f"decode at {depth}" if depth else "decode"] = (TOKENS - 1) / (time.perf_counter() - start)
    return found


def run_ours(path: Path, threads: int, depths: tuple[int, ...]) -> Run:
    found: Run = {}
    for depth in depths:
        text, peak = call([sys.executable, str(Path(__file__)), "--ours", str(path), str(threads), str(depth)])
        found |= json.loads(text)
        found["memory"] = max(found.get("memory", 0.0), peak)
    return found


# ---- theirs ----


def llama(binary: str, path: Path, threads: int, config: dict[str, str], tests: list[str]) -> Run:
    command = [binary, "-m", str(path), "-t", str(threads), "-r", "1", "-o", "json", *tests]
    for name, value in config.items():
        command += [f"--{name}", value]
    text, peak = call(command)
    found: Run = {"memory": peak}
    for test in json.loads(text):
        depth = int(test.get("n_depth", 0))
        if test["n_gen"] > 0:
            found[f"decode at {depth}" if depth else "decode"] = float(test["avg_ts"])
        else:
            name = "first token" if test["n_prompt"] == FIRST else f"prefill {test['n_prompt']}"
            found[name] = float(test["avg_ts"])
    return found


def best_configs(binary: str, path: Path, threads: int) -> tuple[dict[str, str], dict[str, str], list[Any]]:
    """The best configuration of prompts and of decoding, and what each gave."""
    tried = []
    for config in CONFIGS:
        found = llama(binary, path, threads, config, ["-p", "64", "-n", "16"])
        tried.append({"config": config, "prefill": found["prefill 64"], "decode": found["decode"]})
    by = {name: max(tried, key=lambda t: t[name])["config"] for name in ("prefill", "decode")}
    return by["prefill"], by["decode"], tried


def run_peer(binary: str, path: Path, threads: int, configs: tuple[dict[str, str], dict[str, str]]) -> Run:
    prompts, decode = ["-p", f"{FIRST},{PROMPT}"], ["-n", str(TOKENS)]
    if configs[0] == configs[1]:
        return llama(binary, path, threads, configs[0], prompts + decode)
    first = llama(binary, path, threads, configs[0], [*prompts, "-n", "0"])
    second = llama(binary, path, threads, configs[1], ["-p", "0", *decode])
    return {**first, **second, "memory": min(first["memory"], second["memory"])}


# ---- sections ----


def summary(pairs: list[dict[str, Run]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in pairs[0]["ours"]:
        both = [(p["ours"][name], p["peer"][name]) for p in pairs if name in p["ours"] and name in p["peer"]]
        if not both:
            continue
        ratios = [b / a if name == "memory" else a / b for a, b in both]
        found[name] = {
            "ours": median(a for a, _ in both), "peer": median(b for _, b in both), "pairs": len(both),
            "ratio": median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
        }  # fmt: skip
    return found


def measure(args: argparse.Namespace, section: tuple[Any, ...], found: dict[str, Any]) -> None:
    """Pairs of a section until there are enough or its time is up; found: where they are kept."""
    from glm52_rt import roofline

    name, targets = section[0], section[4]
    path = model_of(Path(args.models), section)
    start, budget = time.monotonic(), args.limit * SHARES[name]
    for _ in range(2):  # into the page cache, whatever of it the last model left
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass
    *configs, tried = best_configs(args.peer, path, args.threads)
    entry: dict[str, Any] = {"model": path.name, "targets": targets, "peer_tried": tried, "pairs": []}
    found[name] = entry
    longest = 0.0
    for number in range(args.pairs):
        begun = time.monotonic()
        if number > 0 and begun - start + longest > budget:
            break
        pair: dict[str, Any] = {"load": os.getloadavg()[0]}
        for side in ("ours", "peer") if number % 2 == 0 else ("peer", "ours"):
            if name != CONTEXT[0]:
                pair[side] = (
                    run_ours(path, args.threads, (0,)) if side == "ours"
                    else run_peer(args.peer, path, args.threads, (configs[0], configs[1]))
                )  # fmt: skip
            elif side == "ours":
                pair[side] = run_ours(path, args.threads, DEPTHS)
            else:
                tests = ["-p", "0", "-n", str(TOKENS), "-d", ",".join(map(str, DEPTHS))]
                pair[side] = llama(args.peer, path, args.threads, configs[1], tests)
        entry["pairs"].append(pair)
        entry["summary"] = summary(entry["pairs"])
        if "decode" in entry["summary"]:
            rate = roofline.read_rate(args.threads)
            entry["roofline"] = roofline.table(str(path), rate, entry["summary"]["decode"]["ours"])
        longest = max(longest, time.monotonic() - begun)
        print(f"{name}: pair {number + 1}, {time.monotonic() - start:.0f} s, load {pair['load']:.1f}", file=sys.stderr)
        (Path(args.out) / "results.json").write_text(json.dumps(found, indent=1))


def render(found: dict[str, Any]) -> str:
    lines = ["model          measure            ours       peer   ratio  (range)         asked  pairs"]
    for name, entry in found.items():
        for measure_name, s in entry.get("summary", {}).items():
            asked = entry["targets"].get(measure_name)
            unit = 1e9 if measure_name == "memory" else 1.0
            lines.append(
                f"{name:14} {measure_name:16} {s['ours'] / unit:8.2f}   {s['peer'] / unit:8.2f}  {s['ratio']:6.2f}  "
                f"({s['ratio_min']:.2f} .. {s['ratio_max']:.2f})  {'' if asked is None else asked:>6}  {s['pairs']:>5}"
            )
        if "roofline" in entry:
            r = entry["roofline"]
            lines.append(
                f"{name:14} a token reads {r['bytes_per_token'] / 1e6:.0f} MB; memory gives "
                f"{r['read_bytes_per_second'] / 1e9:.1f} GB/s: decoding reaches {r['share_of_bound']:.0%} of that bound"
            )
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """Ratios with their ranges, and what is asked, per model and measure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    bars = [
        (f"{name}\n{m}", s, entry["targets"].get(m))
        for name, entry in found.items()
        for m, s in entry.get("summary", {}).items()
    ]
    figure, axes = plt.subplots(figsize=(8.5, 0.42 * len(bars) + 1.3), layout="constrained")
    places = list(range(len(bars)))[::-1]
    ratios = [s["ratio"] for _, s, _ in bars]
    reached = ["#33691e" if t is not None and r >= t else "#b0492f" if t is not None else "#607d8b"
               for r, (_, _, t) in zip(ratios, bars)]  # fmt: skip
    spread = [[s["ratio"] - s["ratio_min"] for _, s, _ in bars], [s["ratio_max"] - s["ratio"] for _, s, _ in bars]]
    axes.barh(places, ratios, 0.62, color=reached, xerr=spread, ecolor="#444444", capsize=2)
    for place, (_, s, target) in zip(places, bars):
        if target is not None:
            axes.plot([target, target], [place - 0.42, place + 0.42], color="black", linewidth=2)
        axes.text(max(s["ratio_max"], target or 0) + 0.04, place, f"{s['ratio']:.2f}", va="center", fontsize=8)
    axes.axvline(1.0, color="#888888", linewidth=0.8, linestyle=":")
    axes.set_yticks(places, [label.replace("\n", ": ") for label, _, _ in bars], fontsize=8)
    axes.set_xlim(0, max([s["ratio_max"] for _, s, _ in bars] + [t or 0 for _, _, t in bars]) * 1.12)
    axes.set_xlabel("times llama.cpp (rates: ours / theirs; memory: theirs / ours); thin lines: range of the pairs")
    meanings = {"asked for, reached": "#33691e", "asked for (black), missed": "#b0492f", "nothing asked": "#607d8b"}
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in meanings.values()]
    figure.legend(handles, list(meanings), loc="outside upper center", ncols=3, frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def main() -> int:
    if sys.argv[1:2] == ["--ours"]:
        print(json.dumps(ours(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", metavar="LLAMA_BENCH", required=True)
    parser.add_argument("--models", required=True, help="folder of the models, 6 GB each")
    parser.add_argument("--out", required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--limit", type=float, default=1200.0, help="seconds")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", action="append", help="a section; may be repeated", choices=list(SHARES))
    args = parser.parse_args()
    if args.pairs < 1 or args.limit <= 0 or args.threads < 1:
        parser.error("at least one pair, one thread and some time")
    Path(args.out).mkdir(parents=True, exist_ok=True)
    sections = [s for s in (*SECTIONS, CONTEXT) if not args.only or s[0] in args.only]
    for section in sections:
        model_of(Path(args.models), section)
    found: dict[str, Any] = {}
    for section in sections:
        try:
            measure(args, section, found)
        except (RuntimeError, OSError, ValueError) as error:  # the others can still be measured
            found.setdefault(section[0], {"targets": section[4]})["error"] = str(error)
            print(f"{section[0]}: {error}", file=sys.stderr)
    (Path(args.out) / "results.json").write_text(json.dumps(found, indent=1))
    print(render(found))
    if any("summary" in entry for entry in found.values()):
        draw(found, Path(args.out) / "chart.png")
    return 1 if any("error" in entry for entry in found.values()) else 0


if __name__ == "__main__":
    raise SystemExit(main())
