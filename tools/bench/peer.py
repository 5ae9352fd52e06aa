"""Runs of llama.cpp's llama-bench, and its best configuration."""

import itertools
import json
import subprocess
from typing import Any

Config = dict[str, str]
CONFIGS: list[Config] = [
    {"flash-attn": attention, "repack": repack} for attention, repack in itertools.product(("on", "off"), ("1", "0"))
]


def parse(text: str) -> dict[str, float]:
    """Tokens per second of prefill and decode from llama-bench's JSON. Errors: ValueError if one is missing."""
    found = {}
    for test in json.loads(text):
        found["prefill" if test["n_gen"] == 0 else "decode"] = float(test["avg_ts"])
    if sorted(found) != ["decode", "prefill"]:
        raise ValueError(f"llama-bench measured {sorted(found)}, not decode and prefill")
    return found


def run(binary: str, model: str, threads: int, prompt: int, tokens: int, config: Config) -> dict[str, float]:
    command = [binary, "-m", model, "-t", str(threads), "-p", str(prompt), "-n", str(tokens), "-r", "1", "-o", "json"]
    for name, value in config.items():
        command += [f"--{name}", value]
    return parse(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def try_all(binary: str, model: str, threads: int, prompt: int, tokens: int) -> list[dict[str, Any]]:
    """One run of each configuration: its config and what it gave."""
    return [{"config": c, **run(binary, model, threads, prompt, tokens, c)} for c in CONFIGS]


def best_of(tried: list[dict[str, Any]]) -> dict[str, Config]:
    """The fastest configuration of each measure."""
    return {name: max(tried, key=lambda t: t[name])["config"] for name in ("prefill", "decode")}


def run_best(
    binary: str, model: str, threads: int, prompt: int, tokens: int, best: dict[str, Config]
) -> dict[str, float]:
    """Each measure with its own best configuration."""
    runs = {
        json.dumps(c, sort_keys=True): run(binary, model, threads, prompt, tokens, c) for c in best.values()
    }
    return {name: runs[json.dumps(config, sort_keys=True)][name] for name, config in best.items()}
