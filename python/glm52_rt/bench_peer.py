"""The peer that benchmarks are paired with: llama.cpp, through its llama-bench or through llama-cpp-python."""

import importlib.util
import itertools
import json
import subprocess
import sys
from importlib import metadata
from typing import Any

from .errors import Error

Config = dict[str, str]
CONFIGS: list[Config] = [
    {"flash-attn": attention, "repack": repack} for attention, repack in itertools.product(("on", "off"), ("1", "0"))
]
HOW_TO_GET = ("no peer to compare with: pip install llama-cpp-python (a version that knows glm-dsa), or name "
              "llama.cpp's llama-bench with --peer PATH")  # fmt: skip


def parse(text: str) -> dict[str, float]:
    """Tokens per second of prefill and decode from llama-bench's JSON. Errors: ValueError if one is missing."""
    found = {}
    for test in json.loads(text):
        found["prefill" if test["n_gen"] == 0 else "decode"] = float(test["avg_ts"])
    if sorted(found) != ["decode", "prefill"]:
        raise ValueError(f"llama-bench measured {sorted(found)}, not decode and prefill")
    return found


def run(
    binary: str, model: str, threads: int, prompt: int, tokens: int, config: Config, behind_prompt: bool = False
) -> dict[str, float]:
    """One run of a configuration. behind_prompt: decoding begins at the prompt's end, not at the beginning."""
    command = [binary, "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    for name, value in config.items():
        command += [f"--{name}", value]
    if not behind_prompt:
        return parse(_output([*command, "-p", str(prompt), "-n", str(tokens)]))
    tests = [["-p", str(prompt), "-n", "0"], ["-p", "0", "-n", str(tokens), "-d", str(prompt)]]
    return parse(json.dumps([test for part in tests for test in json.loads(_output(command + part))]))


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    """What a program prints. Raises Error with the last thing it complained about if it fails."""
    child = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if child.returncode != 0:
        said = child.stderr.strip().splitlines() or [f"exit {child.returncode}"]
        raise Error(f"the peer failed: {' '.join(command[:3])} ...: {said[-1]}")
    return child.stdout


def try_all(
    binary: str, model: str, threads: int, prompt: int, tokens: int, behind_prompt: bool = False
) -> list[dict[str, Any]]:
    """One run of each configuration: its config and what it gave."""
    return [{"config": c, **run(binary, model, threads, prompt, tokens, c, behind_prompt)} for c in CONFIGS]


def best_of(tried: list[dict[str, Any]]) -> dict[str, Config]:
    """The fastest configuration of each measure."""
    return {name: max(tried, key=lambda t: t[name])["config"] for name in ("prefill", "decode")}


def run_best(
    binary: str,
    model: str,
    threads: int,
    prompt: int,
    tokens: int,
    best: dict[str, Config],
    behind_prompt: bool = False,
) -> dict[str, float]:
    """Each measure with its own best configuration."""
    runs = {
        json.dumps(c, sort_keys=True): run(binary, model, threads, prompt, tokens, c, behind_prompt)
        for c in best.values()
    }
    return {name: runs[json.dumps(config, sort_keys=True)][name] for name, config in best.items()}


class LlamaBench:
    """llama-bench, every configuration tried once per context and the best one per measure taken."""

    def __init__(self, binary: str) -> None:
        self._binary = binary
        self._best: dict[int, dict[str, Config]] = {}
        self.about: dict[str, Any] = {"name": "llama.cpp (llama-bench)", "best": self._best}

    def run(self, model: str, threads: int, prompt: int, tokens: int) -> dict[str, float]:
        if prompt not in self._best:
            self._best[prompt] = best_of(try_all(self._binary, model, threads, prompt, tokens, True))
        return run_best(self._binary, model, threads, prompt, tokens, self._best[prompt], True)


class LlamaPython:
    """llama-cpp-python, a process per run."""

    def __init__(self, environment: dict[str, str] | None) -> None:
        self._environment = environment
        try:
            version = metadata.version("llama-cpp-python")
        except metadata.PackageNotFoundError:
            version = "of unknown version"
        self.about: dict[str, Any] = {"name": f"llama.cpp (llama-cpp-python {version})"}

    def run(self, model: str, threads: int, prompt: int, tokens: int) -> dict[str, float]:
        numbers = map(str, (threads, prompt, tokens))
        command = [sys.executable, "-m", "glm52_rt.bench_llama", model, *numbers]
        return json.loads(_output(command, self._environment))


def find(binary: str | None, environment: dict[str, str] | None = None) -> LlamaBench | LlamaPython | None:
    """The peer at hand: llama-bench if it is named, else llama-cpp-python if it can be imported. environment: of the
    processes that import it."""
    if binary is not None:
        return LlamaBench(binary)
    return LlamaPython(environment) if importlib.util.find_spec("llama_cpp") else None
