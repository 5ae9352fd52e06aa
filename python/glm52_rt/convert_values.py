"""Values of a checkpoint's tensors, rows at a time, and their bytes in a GGUF.

Rows come as float32, or as they are where nothing is lost by that: float16, and bfloat16 as the uint16 of its bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from .convert_plan import SCALE, Plan, Rows, Target
from .errors import ArgumentError, ModelError
from .gguf_writer import row_bytes
from .native_encode import encode
from .safetensors_file import Source, SourceTensor

PIECE_VALUES = 4 << 20  # read, converted and written at once
Q8_BLOCK = 32
TYPES = ("BF16", "F16", "F32", "Q8_0")
_NUMPY = {"BF16": "<u2", "F16": "<f2", "F32": "<f4", "F8_E4M3": "u1"}


@cache
def e4m3_values() -> np.ndarray:
    """float32 [256]: the value of each code of F8_E4M3 (sign, 4 bits of exponent with bias 7, 3 of mantissa). There
    are no infinities, and NaN is all bits of exponent and mantissa."""
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    value = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    value = np.where(exponent * 8 + mantissa == 127, np.nan, value)
    return np.where(code >> 7 == 1, -value, value).astype(np.float32)


def widened(bits: np.ndarray) -> np.ndarray:
    """float32 of bfloat16 bits."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_bits(values: np.ndarray) -> np.ndarray:
    """bfloat16 bits of finite float32 values: to nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + (0x7FFF + (bits >> 16 & 1))) >> 16).astype(np.uint16)


class Weights:
    """Rows of a checkpoint's tensors, all dimensions but the last counted as one."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self._source = source
        self._block = plan.config.fp8_block

    def rows(self, name: str, first: int, count: int) -> np.ndarray:
        """[count, columns], of one dtype per tensor. Errors: ModelError for values that are not finite; IoError."""
        tensor = self._source.tensors[name]
        columns = tensor.shape[-1]
        size = columns * np.dtype(_NUMPY[tensor.dtype]).itemsize
        data = self._source.read(tensor, first * size, count * size)
        found = np.frombuffer(data, _NUMPY[tensor.dtype]).reshape(count, columns)
        if tensor.dtype == "F8_E4M3":
            found = e4m3_values()[found] * self._scales(tensor, first, count)
        finite = (found & 0x7F80 != 0x7F80) if found.dtype == np.uint16 else np.isfinite(found)
        if not finite.all():
            row, column = np.argwhere(~finite)[0]
            path = self._source.path_of(tensor)
            raise ModelError(f"{path}: tensor {name}: the value in row {first + row}, column {column} is not finite")
        return found

    def _scales(self, tensor: SourceTensor, first: int, count: int) -> np.ndarray:
        """float32 [count, columns]: the factor of each value."""
        scale = self._source.tensors[tensor.name + SCALE]
        high, wide = self._block
        matrix = tensor.shape[-2]
        per_matrix, columns = scale.shape[-2], scale.shape[-1]
        row = np.arange(first, first + count)
        blocks = row // matrix * per_matrix + row % matrix // high
        low, kind = int(blocks[0]), np.dtype(_NUMPY[scale.dtype])
        size = columns * kind.itemsize
        data = self._source.read(scale, low * size, (int(blocks[-1]) - low + 1) * size)
        found = np.frombuffer(data, kind).reshape(-1, columns)
        found = widened(found) if scale.dtype == "BF16" else found
        return np.repeat(found, wide, axis=1)[:, : tensor.shape[-1]][blocks - low]

    def pieces(self, part: Rows) -> Iterator[np.ndarray]:
        """The rows of a part, a part that is transposed at once."""
        columns = self._source.tensors[part.name].shape[-1]
        if part.transposed:
            yield np.ascontiguousarray(self.rows(part.name, part.first, part.count).T)
            return
        step = max(1, PIECE_VALUES // columns)
        for done in range(0, part.count, step):
            yield self.rows(part.name, part.first + done, min(step, part.count - done))


def type_of(target: Target, kind: str) -> str:
    """The type that a tensor gets in a file of a type: norms, biases, the router and the indexer's projection stay
    F32; rows that are no whole blocks of Q8_0 become F16."""
    if target.is_float:
        return "F32"
    return "F16" if kind == "Q8_0" and target.shape[-1] % Q8_BLOCK else kind


def encoded(values: np.ndarray, kind: str, name: str) -> np.ndarray:
    """The bytes of rows in a type of TYPES; name is for the message. Errors: ModelError for values beyond the type."""
    if kind == "BF16" and values.dtype == np.uint16:
        return values
    if kind == "F16" and values.dtype == np.float16:
        return values
    single = widened(values) if values.dtype == np.uint16 else np.ascontiguousarray(values, np.float32)
    if kind == "F32":
        return single
    if kind == "BF16":
        return bf16_bits(single)
    if kind == "F16":
        with np.errstate(over="ignore"):
            half = single.astype("<f2")
        if not np.isfinite(half).all():
            raise ModelError(f"tensor {name}: {np.abs(single).max():g} is more than F16 holds (65504)")
        return half
    try:
        return encode(kind, single)
    except ArgumentError as error:  # its rows are those of a piece
        raise ModelError(f"tensor {name}: {error}") from None


def target_pieces(weights: Weights, target: Target, kind: str) -> Iterator[np.ndarray]:
    """All bytes of a tensor, in order."""
    own = type_of(target, kind)
    row_bytes(own, target.shape[-1])
    for part in target.parts:
        for piece in weights.pieces(part):
            yield encoded(piece, own, target.name)
