"""Random blocks of each quantised type, drawn directly: no float weights are made or rounded.

A block is random bits in every field that may hold any bits (levels, codebook indices, signs, sub-scales);
only what decides the spread is written over them: the float16 scale, and for types with minima the minima,
so that the mean is zero. The scale varies from block to block by a factor of 0.75 to 1.25 and, where the type
has no minimum, in sign. Levels are uniform, except Q8_0's, which are normal.
"""

from collections.abc import Callable
from functools import cache
from statistics import NormalDist

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

from .raw import Raw

Q = GGMLQuantizationType

# Byte offset of the float16 scale in a block.
_SCALE_AT = {
    Q.Q4_0: 0, Q.Q4_1: 0, Q.Q5_0: 0, Q.Q5_1: 0, Q.Q8_0: 0, Q.Q2_K: 80, Q.Q3_K: 108, Q.Q4_K: 0, Q.Q5_K: 0,
    Q.Q6_K: 208, Q.IQ1_S: 0, Q.IQ2_XXS: 0, Q.IQ2_XS: 0, Q.IQ2_S: 0, Q.IQ3_XXS: 0, Q.IQ3_S: 0, Q.IQ4_NL: 0,
    Q.IQ4_XS: 0,
}  # fmt: skip

# Types whose values are scale * level - minimum: where the float16 minimum lies and the middle level.
_MINIMUM = {
    Q.Q4_1: (2, -7.5), Q.Q5_1: (2, -15.5), Q.Q2_K: (82, 1.5), Q.Q4_K: (2, 7.5), Q.Q5_K: (2, 15.5),
}  # fmt: skip

TYPES = tuple([*_SCALE_AT, Q.IQ1_M, Q.MXFP4])

# Factors that one random byte chooses from: the block's scale, and the minimum's deviation from the middle.
_JITTER = 0.75 + 0.5 * (np.arange(256) >> 1) / 127
_SIGN = 1.0 - 2.0 * (np.arange(256) & 1)
_MINIMUM_JITTER = (1.0 + (np.arange(256) - 127.5) / 127.5 * 0.03).astype(np.float32)


def _put16(blocks: np.ndarray, at: int, values: np.ndarray) -> None:
    blocks[:, at : at + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _set_scale(type_: Q, blocks: np.ndarray, scale: float) -> None:
    at, minimum = _SCALE_AT[type_], _MINIMUM.get(type_)
    table = _JITTER if minimum else _JITTER * _SIGN
    values = (table * scale).astype("<f2")[blocks[:, at]]
    if minimum:
        place, middle = minimum
        middles = values.astype(np.float32) * np.float32(middle) * _MINIMUM_JITTER[blocks[:, place]]
        _put16(blocks, place, middles)
    _put16(blocks, at, values)


@cache
def _normal_bytes() -> np.ndarray:
    """Maps a uniform byte to a normal level of int8, the largest 127."""
    levels = [NormalDist().inv_cdf((i + 0.5) / 256) for i in range(256)]
    return np.array([round(127 * level / levels[-1]) for level in levels], np.int8).view(np.uint8)


def _fill_q8_0(blocks: np.ndarray) -> None:
    blocks[:, 2:] = _normal_bytes()[blocks[:, 2:]]


@cache
def _q2_k_scales() -> np.ndarray:
    """Maps a random byte to a sub-scale (low half) and a sub-minimum that differs from it by at most one."""
    code = np.arange(256)
    scale = code & 15
    minimum = np.clip(scale + np.array([-1, 0, 0, 1])[code >> 4 & 3], 0, 15)
    return (scale | minimum << 4).astype(np.uint8)


def _fill_q2_k(blocks: np.ndarray) -> None:
    blocks[:, :16] = _q2_k_scales()[blocks[:, :16]]


def _fill_q4_k(blocks: np.ndarray) -> None:
    """Eight 6-bit scales and eight minima that differ from them by 1 or 3, in the 12 bytes' packing."""
    code = blocks[:, 4:12].astype(np.int16)
    scale = code & 63
    minimum = np.clip(scale + np.array([-3, -1, 1, 3], np.int16)[code >> 6], 0, 63)
    low, high = slice(0, 4), slice(4, 8)
    blocks[:, 4:8] = scale[:, low] | (scale[:, high] >> 4) << 6
    blocks[:, 8:12] = minimum[:, low] | (minimum[:, high] >> 4) << 6
    blocks[:, 12:16] = (scale[:, high] & 15) | (minimum[:, high] & 15) << 4


_FILL: dict[Q, Callable[[np.ndarray], None]] = {
    Q.Q8_0: _fill_q8_0,
    Q.Q2_K: _fill_q2_k,
    Q.Q4_K: _fill_q4_k,
    Q.Q5_K: _fill_q4_k,
}


def _set_scale_iq1_m(blocks: np.ndarray, scale: float) -> None:
    """The float16 lies in the top four bits of the four 16-bit words at the end."""
    words = blocks[:, 48:56].view("<u2")
    values = (_JITTER * _SIGN * scale).astype("<f2")[words[:, 0] >> 12 | (words[:, 1] >> 12) << 4]
    bits = values.view("<u2")
    for word in range(4):
        words[:, word] = (words[:, word] & 0x0FFF) | (bits >> 4 * word & 15) << 12


def _set_scale_mxfp4(blocks: np.ndarray, scale: float) -> None:
    """Scales are powers of two: the two next to scale, mixed so that the mean square is right."""
    exponent = int(np.floor(np.log2(scale)))
    upper_share = ((scale / 2.0**exponent) ** 2 - 1) / 3
    blocks[:, 0] = 128 + exponent + (blocks[:, 0] < round(256 * upper_share))


@cache
def _unit_spread(type_: Q) -> float:
    """Root mean square of the values when the scale is 1.

    Six digits of it, so that the order in which a numpy sums does not show.
    """
    blocks = _random_blocks(type_, Raw(0, f"spread of {type_.name}"), 8192)
    _write_scale(type_, blocks, 1.0)
    values = quants.dequantize(blocks, type_).astype(np.float64)
    return float(f"{np.sqrt(np.mean(values * values)):.6g}")


def _random_blocks(type_: Q, raw: Raw, count: int) -> np.ndarray:
    blocks = raw.bytes(count * GGML_QUANT_SIZES[type_][1]).reshape(count, -1)
    if type_ in _FILL:
        _FILL[type_](blocks)
    return blocks


def _write_scale(type_: Q, blocks: np.ndarray, scale: float) -> None:
    if type_ == Q.IQ1_M:
        _set_scale_iq1_m(blocks, scale)
    elif type_ == Q.MXFP4:
        _set_scale_mxfp4(blocks, scale)
    else:
        _set_scale(type_, blocks, scale)


def draw(type_: Q, raw: Raw, count: int, spread: float) -> np.ndarray:
    """count blocks [count, block bytes] whose values have mean 0 and standard deviation spread.

    A count that is a multiple of 8 leaves raw where drawing block by block would have left it.
    """
    blocks = _random_blocks(type_, raw, count)
    _write_scale(type_, blocks, spread / _unit_spread(type_))
    return blocks
