"""Files of oracle records: one JSON object a line, closed by a digest; compressed if the name says so."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from .errors import ModelError, UnsupportedError

FORMAT = 2
BYTES_MAX = 1 << 30  # of a record, unpacked: a compressed file can be small and stand for any size


def digest_of(lines: list[dict[str, Any]]) -> str:
    """SHA-256 of lines as write writes them."""
    return hashlib.sha256("".join(json.dumps(line) + "\n" for line in lines).encode()).hexdigest()


def _zstd() -> Any:
    """The module that has open(name, mode): Python's own from 3.14 on, else the package zstandard."""
    try:
        from compression import zstd  # type: ignore[import-not-found]

        return zstd
    except ImportError:
        pass
    try:
        import zstandard

        return zstandard
    except ImportError:
        raise UnsupportedError("records that end in .zst need the Python package zstandard") from None


@contextmanager
def _open(path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
    name = os.fspath(path)
    if name.endswith(".gz"):
        with gzip.open(name, mode) as file:
            yield file  # type: ignore[misc]
    elif name.endswith(".zst"):
        with _zstd().open(name, mode) as file:
            yield file
    else:
        with open(name, mode) as file:
            yield file  # type: ignore[misc]


def write(lines: list[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Writes a record; a name that ends in .gz or .zst is compressed. Raises UnsupportedError for .zst where there is
    no zstd; OSError."""
    with _open(path, "wb") as file:
        for line in lines:
            file.write((json.dumps(line) + "\n").encode())


def _lines(path: str | os.PathLike[str]) -> list[Any]:
    with _open(path, "rb") as file:
        data = bytearray()
        while part := file.read(1 << 20):
            data += part
            if len(data) > BYTES_MAX:
                raise ModelError(f"{os.fspath(path)}: a record of over {BYTES_MAX} bytes")
    return [json.loads(line) for line in io.StringIO(data.decode("utf-8"))]


_BITS = re.compile(r"[0-9a-f]{8}")


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(token, int) and 0 <= token < 1 << 31 for token in value)


def _is_bits(*values: Any) -> bool:
    """float32s as eight hexadecimal digits."""
    return all(isinstance(value, str) and _BITS.fullmatch(value) is not None for value in values)


def _is_pairs(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _is_ids(pair[:1]) and _is_bits(pair[1]) for pair in value
    )


def _is_head(head: dict[str, Any], steps: int) -> bool:
    """Whether a record's first line has what is used of it."""
    names = ("source", "model", "tokenizer", "prompt", "engine", "bounds", "arithmetic", "kernels", "build")
    if any(name not in head for name in names) or head.get("steps") != steps:
        return False
    model, prompt, engine, bounds = (head[name] for name in ("model", "prompt", "engine", "bounds"))
    if not all(isinstance(part, dict) for part in (model, prompt, engine, bounds)):
        return False
    return (
        {"identity", "file_bytes"} <= model.keys()
        and {"text", "ids"} <= prompt.keys()
        and (prompt["ids"] is None or (_is_ids(prompt["ids"]) and len(prompt["ids"]) > 0))
        and isinstance(head["source"], dict | None)
        and {"context", "quality", "kv_type"} <= engine.keys()
        and all(isinstance(bound, int | float) for bound in bounds.values())
    )


def _is_step(line: dict[str, Any]) -> bool:
    """The same of a step's line."""
    names = ("step", "position", "fed", "layers", "values", "argmax", "top", "at", "logits", "logits_rms", "log_sum")
    if any(name not in line for name in names) or not isinstance(line["step"], int):
        return False
    layers, rms, total = line["layers"], line["logits_rms"], line["log_sum"]
    if not isinstance(layers, list) or line["values"] not in ("logits", "logprobs"):
        return False
    for layer in layers:
        named = {"selected", "routes", "routes_digest", "weights", "hidden"}
        if not isinstance(layer, dict) or not named <= layer.keys():
            return False
        numbers = [layer.get(name) for name in ("select_margin", "route_margin", "rms")]
        if not isinstance(layer.get("projections"), list) or not _is_bits(*numbers, *layer["projections"]):
            return False
    return (
        (line["fed"] is None if line["step"] == 0 else _is_ids(line["fed"]) and len(line["fed"]) > 0)
        and _is_pairs(line["top"]) and _is_pairs(line["at"])
        and _is_bits(*(value for value in (rms, total) if value is not None))
        and (line["argmax"] is None or _is_ids([line["argmax"]]))
    )  # fmt: skip


def read(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads a record. Raises ModelError if it is none, is damaged or cut; UnsupportedError; OSError."""
    try:
        lines = _lines(path)
    except (ModelError, UnsupportedError, FileNotFoundError, PermissionError, IsADirectoryError):
        raise
    except Exception as error:  # each compression has an exception of its own for what is not its format
        raise ModelError(f"{os.fspath(path)}: is no oracle record: {error}") from None
    if len(lines) < 3 or not all(isinstance(line, dict) for line in lines) or "glm52_oracle" not in lines[0]:
        raise ModelError(f"{os.fspath(path)}: is no oracle record")
    if lines[0]["glm52_oracle"] != FORMAT:
        raise ModelError(f"{os.fspath(path)}: format {lines[0]['glm52_oracle']}; this reads format {FORMAT}")
    if not all(_is_step(line) for line in lines[1:-1]) or not _is_head(lines[0], len(lines) - 3):
        raise ModelError(f"{os.fspath(path)}: a line of the record lacks a field, or has one of another kind")
    if lines[-1].get("end") != len(lines) - 1 or lines[-1].get("sha256") != digest_of(lines[:-1]):
        raise ModelError(f"{os.fspath(path)}: the record is damaged or cut")
    return lines
