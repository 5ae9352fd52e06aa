"""The bytes of one tensor, piece by piece."""

from collections.abc import Iterator

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from . import blocks
from .presets import Tensor
from .raw import Raw, bias, log_normal, normal, to_bfloat16

Q = GGMLQuantizationType
PIECE_BYTES = 16 << 20  # of a directly drawn tensor; a piece of floats has a quarter as many values

# Types that the gguf package rounds floats to. The other types are drawn directly.
_ROUNDED = frozenset({Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.MXFP4})


def tensor_bytes(tensor: Tensor, type_: Q) -> int:
    block, size = GGML_QUANT_SIZES[type_]
    count = 1
    for dimension in tensor.shape:
        count *= dimension
    assert tensor.shape[-1] % block == 0, f"{tensor.name}: rows of {tensor.shape[-1]} in blocks of {block}"
    return count // block * size


def _convert(values: np.ndarray, type_: Q) -> np.ndarray:
    if type_ == Q.F32:
        return values.astype("<f4", copy=False)
    if type_ == Q.BF16:
        return to_bfloat16(values).astype("<u2", copy=False)
    if type_ == Q.F16:
        return values.astype("<f2")
    with np.errstate(all="ignore"):  # the package divides by the zero scales that it then masks
        return quants.quantize(values, type_)


def _row_parts(tensor: Tensor) -> Iterator[tuple[int, float]]:
    """Runs of rows and their spread."""
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64))
    yield rows - tensor.tail_rows, tensor.spread
    if tensor.tail_rows:
        yield tensor.tail_rows, tensor.spread * tensor.tail_gain


def _float_pieces(tensor: Tensor, type_: Q, raw: Raw) -> Iterator[np.ndarray]:
    row = tensor.shape[-1]
    rows_max = max(1, PIECE_BYTES // 4 // row)
    for rows, spread in _row_parts(tensor):
        for start in range(0, rows, rows_max):
            count = min(rows_max, rows - start)
            yield _convert(normal(raw, count * row, spread).reshape(count, row), type_)


def _block_pieces(tensor: Tensor, type_: Q, raw: Raw) -> Iterator[np.ndarray]:
    block, size = GGML_QUANT_SIZES[type_]
    blocks_max = PIECE_BYTES // size // 8 * 8
    for rows, spread in _row_parts(tensor):
        total = rows * tensor.shape[-1] // block
        for start in range(0, total, blocks_max):
            yield blocks.draw(type_, raw, min(blocks_max, total - start), spread)


def pieces(tensor: Tensor, type_: Q, seed: int, from_floats: bool) -> Iterator[np.ndarray]:
    """The tensor's bytes as arrays, in order. They depend on seed, tensor and type alone.

    from_floats: draw bfloat16 numbers and round them, where the type allows; the same numbers for every type.
    """
    raw = Raw(seed, tensor.seed_name)
    if tensor.kind == "norm":
        yield log_normal(raw, tensor.shape[0], tensor.spread).astype("<f4", copy=False)
    elif tensor.kind == "bias":
        yield bias(raw, tensor.shape[0], tensor.spread, tensor.centre).astype("<f4", copy=False)
    elif type_ in (Q.F32, Q.F16, Q.BF16) or (from_floats and type_ in _ROUNDED):
        yield from _float_pieces(tensor, type_, raw)
    else:
        yield from _block_pieces(tensor, type_, raw)
