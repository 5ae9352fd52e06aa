"""Blocks of quantised types, to and from float32: the binding of glm52_quant_encode and glm52_quant_decode.

Both let other threads run meanwhile, and any number of threads may call them at once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from . import errors
from .native import _check, ffi, lib


@cache
def written_types() -> tuple[str, ...]:
    """Names of the types that encode writes, in order of ggml's numbers."""
    number = ffi.new("uint32_t *")
    found = []
    for index in range(lib.glm52_encode_count()):
        _check(lib.glm52_encode_type(index, number))
        found.append(GGMLQuantizationType(number[0]).name)
    return tuple(found)


def _kind(type_name: str) -> tuple[int, int, int]:
    """Number, values per block and bytes per block of a type."""
    try:
        kind = GGMLQuantizationType[type_name]
    except KeyError:
        raise errors.ArgumentError(f"{type_name!r} is no type of tensors") from None
    return int(kind), *GGML_QUANT_SIZES[kind]


def encode(type_name: str, x: np.ndarray, importance: np.ndarray | None = None) -> np.ndarray:
    """x float32 [rows, columns] as uint8 [rows, bytes of a row] blocks of a type. importance [columns]: the mean square
    of what each column is multiplied with, None: all alike. Errors: ArgumentError for a value that the type can't hold
    (row and column are named), columns that are no whole blocks, an importance below 0; UnsupportedError."""
    number, block, size = _kind(type_name)
    x = np.ascontiguousarray(x, np.float32)
    if x.ndim != 2:
        raise errors.ArgumentError(f"encode takes rows and columns, not {x.ndim} dimensions")
    weights: Any = ffi.NULL
    if importance is not None:
        importance = np.ascontiguousarray(importance, np.float32)
        if importance.shape != x.shape[1:]:
            raise errors.ArgumentError(f"importance of shape {importance.shape} for {x.shape[1]} columns")
        weights = ffi.from_buffer("float[]", importance)
    out = np.empty((x.shape[0], x.shape[1] // block * size), np.uint8)
    _check(lib.glm52_quant_encode(number, ffi.from_buffer("float[]", x), weights, *x.shape,
                                  ffi.from_buffer("char[]", out, require_writable=True)))  # fmt: skip
    return out


def decode(type_name: str, blocks: bytes | np.ndarray) -> np.ndarray:
    """Whole blocks as float32 [values], exactly. Errors: ArgumentError for bytes that are no whole blocks;
    UnsupportedError."""
    number, block, size = _kind(type_name)
    if isinstance(blocks, np.ndarray):
        blocks = np.ascontiguousarray(blocks)
    data = np.frombuffer(blocks, np.uint8) if not isinstance(blocks, np.ndarray) else blocks.reshape(-1).view(np.uint8)
    if data.size % size:
        raise errors.ArgumentError(f"{data.size} bytes are no whole blocks of {size} as {type_name} has them")
    out = np.empty(data.size // size * block, np.float32)
    if out.size:
        _check(lib.glm52_quant_decode(number, ffi.from_buffer("char[]", data),
                                      ffi.from_buffer("float[]", out, require_writable=True), out.size))  # fmt: skip
    return out
