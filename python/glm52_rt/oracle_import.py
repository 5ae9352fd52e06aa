"""Oracle records of other programs' runs: logits of transformers and llama.cpp, and the log-probabilities of services.

A record made here holds what the other program told, no more: tokens, some logits or log-probabilities. Nothing that is
read is believed before it is checked, and what can't be told in ids of the model's vocabulary is left out.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .errors import ModelError
from .model import Model
from .oracle import TOP, Record, _bits, _tokenizer_digest, logits_line, sealed
from .oracle_file import FORMAT

# Of float32 runs in another order of summation, relative to the root mean square of the logits.
LOGITS_BOUND = 1e-4
# Of hosted services, which run other roundings of the weights: nats, for tokens that are not in the tail.
LOGPROBS_BOUND, LOGPROBS_FLOOR = 1.0, -5.0
VALUES_MAX = 1 << 28  # logits of one file
STEPS_MAX, TOP_MAX = 4096, 1024

Prompt = Callable[[str], list[int]]  # ids of a user's message


def _head(
    model: Model | None, source: Mapping[str, Any], ids: Sequence[int], steps: int, engine: dict[str, Any],
    bounds: dict[str, float], text: str | None,
) -> dict[str, Any]:
    known = {"identity": model.identity, "file_bytes": model.file_bytes} if model else {}
    return {
        "glm52_oracle": FORMAT,
        "source": dict(source),
        "model": {"identity": None, "file_bytes": None, **known},
        "tokenizer": _tokenizer_digest(model) if model else None,
        "prompt": {"text": text, "messages": None, "ids": list(ids)},
        "engine": {"context": None, "quality": False, "kv_type": "f16", "latent_epsilon": None, "chunk_rows": None,
                   **engine},
        "steps": steps,
        "bounds": bounds,
        "arithmetic": None, "backend": None, "kernels": None, "build": None, "streaming": False,
    }  # fmt: skip


# ---- logits ----


def from_logits(
    ids: Sequence[int],
    rows: Sequence[int],
    logits: np.ndarray,
    source: Mapping[str, Any],
    *,
    model: Model | None = None,
    top: int = TOP,
    bound: float = LOGITS_BOUND,
    text: str | None = None,
) -> Record:
    """A record of logits [rows, vocab] that another program gave behind ids[: row + 1].

    source  what made them; of its entries "kv" (f32 or f16) and "latent_epsilon" say how to repeat the run, which is in
            quality mode
    model   binds the record to this model's content; None: to none
    top     logits kept of each row"""
    engine = {"quality": True, "kv_type": source.get("kv", "f32"), "latent_epsilon": source.get("latent_epsilon")}
    head = _head(model, source, ids[: rows[0] + 1], len(rows) - 1, engine, {"logits": bound}, text)
    lines = []
    for step, row in enumerate(rows):
        fed = list(ids[rows[step - 1] + 1 : row + 1]) if step else None
        line = {"step": step, "position": row + 1, "token": ids[row], "fed": fed, "layers": [], "values": "logits"}
        lines.append(line | logits_line(logits[step], top) | {"logits": None})
    return sealed([head, *lines])


def read_npz(path: str | os.PathLike[str]) -> tuple[list[int], list[int], np.ndarray, dict[str, Any]]:
    """(ids, rows, logits, source) of a file of tools/record_logits.py. Raises ModelError."""
    name = os.fspath(path)
    try:
        with zipfile.ZipFile(name) as archive:
            if sum(item.file_size for item in archive.infolist()) > 4 * VALUES_MAX + (1 << 20):
                raise ModelError(f"{name}: over {VALUES_MAX} logits")
        with np.load(name, allow_pickle=False) as arrays:
            ids, rows, logits, source = (arrays[key] for key in ("ids", "rows", "logits", "source"))
            told = json.loads(str(source[()]))
    except ModelError:
        raise
    except Exception as error:  # zip, numpy and JSON each have their own
        raise ModelError(f"{name}: holds no recorded logits: {error}") from None
    integers = all(array.ndim == 1 and array.dtype.kind in "iu" and len(array) > 0 for array in (ids, rows))
    if not integers or not isinstance(told, dict) or logits.dtype != np.float32:
        raise ModelError(f"{name}: ids, rows, logits or source are of another kind than they must be")
    if logits.ndim != 2 or len(logits) != len(rows) or logits.shape[1] == 0 or not np.isfinite(logits).all():
        raise ModelError(f"{name}: logits of shape {logits.shape} for {len(rows)} rows, or not finite ones")
    if (np.diff(rows) <= 0).any() or rows[0] < 0 or rows[-1] >= len(ids) or (ids < 0).any() or (ids >= 1 << 31).any():
        raise ModelError(f"{name}: rows that do not ascend among the {len(ids)} tokens, or a bad token")
    kv, epsilon = told.get("kv", "f32"), told.get("latent_epsilon")
    if kv not in ("f32", "f16") or not (epsilon is None or (isinstance(epsilon, float) and 0 < epsilon <= 1)):
        raise ModelError(f"{name}: kv {kv!r}, latent_epsilon {epsilon!r}")
    return ids.tolist(), rows.tolist(), logits, told


# ---- log-probabilities ----


class Vocabulary:
    """Ids of tokens by their bytes; of tokens with the same bytes the lowest."""

    def __init__(self, tokenizer: Any, count: int) -> None:
        self._ids: dict[bytes, int] = {}
        for token in range(count):
            self._ids.setdefault(tokenizer.decode_bytes([token]), token)

    def find(self, data: bytes) -> int | None:
        return self._ids.get(data) if data else None


def from_logprobs(
    ids: Sequence[int],
    steps: Sequence[tuple[bytes, Sequence[tuple[bytes, float]]]],
    source: Mapping[str, Any],
    vocabulary: Vocabulary,
    *,
    model: Model | None = None,
    text: str | None = None,
    bound: float = LOGPROBS_BOUND,
    floor: float = LOGPROBS_FLOOR,
) -> Record:
    """A record of what a service said behind the prompt ids: per step the token it chose and its most probable ones
    with their log-probabilities, tokens as bytes. It ends before a chosen token that the vocabulary does not have."""
    lines: list[dict[str, Any]] = []
    fed, position = None, len(ids)
    for step, (chosen, candidates) in enumerate(steps):
        token = vocabulary.find(chosen)
        known = [(vocabulary.find(data), value) for data, value in candidates]
        top = sorted(((found, value) for found, value in known if found is not None), key=lambda pair: -pair[1])
        lines.append({
            "step": step, "position": position, "token": ids[-1] if fed is None else fed[-1], "fed": fed, "layers": [],
            "values": "logprobs", "argmax": token, "top": [[found, _bits(value)] for found, value in top], "at": [],
            "logits": None, "logits_rms": None, "log_sum": None, "unknown": len(known) - len(top),
        })  # fmt: skip
        if token is None:
            lines[-1] |= {"argmax": None, "argmax_bytes": chosen.hex()}
            break
        fed, position = [token], position + 1
    bounds = {"logprobs": bound, "logprobs_floor": floor}
    return sealed([_head(model, source, ids, len(lines) - 1, {}, bounds, text), *lines])


def _logprob(value: Any) -> float:
    number = float(value)
    if not (math.isfinite(number) and number <= 1e-3):
        raise ValueError(f"a log-probability of {value}")
    return number


def _hex(text: str) -> bytes:
    return b"" if text == "-" else bytes.fromhex(text)


def read_vec(path: str | os.PathLike[str]) -> Iterator[tuple[str, str, list[tuple[bytes, list[tuple[bytes, float]]]]]]:
    """(case, name of the prompt's file, steps) of a .vec file as ds4's tests read them:

        case ID CONTEXT STEPS PROMPT-FILE
        step INDEX CHOSEN-TOKEN COUNT          tokens are bytes in hexadecimal
        top TOKEN LOG-PROBABILITY              COUNT times
        end

    Raises ModelError with the line."""
    name = os.fspath(path)
    case: tuple[str, str, list[Any]] | None = None
    wanted = 0
    for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.split()
        try:
            if not words or words[0].startswith("#"):
                continue
            if wanted and (words[0] != "top" or len(words) != 3):
                raise ValueError(f"{wanted} more candidates must come")
            if words[0] == "case" and len(words) == 5 and case is None and 0 < int(words[3]) <= STEPS_MAX:
                case, left = (words[1], words[4], []), int(words[3])
            elif words[0] == "step" and len(words) == 4 and case is not None and int(words[1]) == len(case[2]) < left:
                wanted = int(words[3])
                if not 0 <= wanted <= TOP_MAX:
                    raise ValueError(f"{wanted} candidates; at most {TOP_MAX}")
                case[2].append((_hex(words[2]), []))
            elif words[0] == "top" and wanted and case is not None:
                wanted -= 1
                case[2][-1][1].append((_hex(words[1]), _logprob(words[2])))
            elif words == ["end"] and case is not None and len(case[2]) == left:
                yield case
                case = None
            else:
                raise ValueError(f"{words[0]!r} does not belong here")
        except ValueError as error:
            raise ModelError(f"{name}:{number}: {error}") from None
    if case is not None:
        raise ModelError(f"{name}: case {case[0]} has no end")


def read_openrouter(path: str | os.PathLike[str]) -> tuple[str | None, list[tuple[bytes, list[tuple[bytes, float]]]]]:
    """(the user's message if the file has it, steps) of a chat completion with logprobs, as services like OpenAI's
    answer: choices[0].logprobs.content, or under "response" with the request beside it. Raises ModelError."""
    name = os.fspath(path)

    def token_bytes(entry: dict[str, Any]) -> bytes:
        data = entry.get("bytes")
        return bytes(data) if isinstance(data, list) else str(entry["token"]).encode("utf-8", "surrogatepass")

    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        response = document.get("response", document)
        content = response["choices"][0]["logprobs"]["content"]
        if not isinstance(content, list) or not 0 < len(content) <= STEPS_MAX:
            raise ValueError("no log-probabilities")
        steps = []
        for entry in content:
            candidates = [(token_bytes(one), _logprob(one["logprob"])) for one in entry["top_logprobs"][:TOP_MAX]]
            steps.append((token_bytes(entry), candidates))
        messages = (document.get("request") or {}).get("messages") or []
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ModelError(f"{name}: is no chat completion with log-probabilities: {error!r}") from None
    asked = [one.get("content") for one in messages if isinstance(one, dict) and one.get("role") == "user"]
    only = len(messages) == 1 and len(asked) == 1 and isinstance(asked[0], str)
    prompt = asked[0] if only else document.get("prompt")
    return (prompt if isinstance(prompt, str) else None), steps
