"""The source of randomness: PCG64's raw words, which numpy keeps the same for ever.

numpy may change how it makes normal numbers out of them, so that is done here.
"""

import hashlib
import math
from functools import cache
from statistics import NormalDist

import numpy as np


class Raw:
    """Random bits that depend on a seed and a name alone, so that every tensor has its own stream."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self._generator = np.random.PCG64(int.from_bytes(digest, "little"))

    def bytes(self, count: int) -> np.ndarray:
        """count random bytes [count] uint8, writable. What is left of the last 64-bit word is dropped."""
        return self._generator.random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]

    def halves(self, count: int) -> np.ndarray:
        """count random 16-bit numbers [count] uint16."""
        return self.bytes(2 * count).view("<u2")

    def below(self, limit: int, count: int) -> np.ndarray:
        """count numbers of 0..limit - 1 [count] int64. The remainder's bias is below limit / 2**64."""
        return (self.bytes(8 * count).view("<u8") % np.uint64(limit)).astype(np.int64)


@cache
def _quantiles() -> np.ndarray:
    """65536 equally likely values of a normal distribution; the outermost are at 4.3 deviations."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse((i + 0.5) / 65536) for i in range(65536)], np.float32)


@cache
def _log_normal(spread: float) -> np.ndarray:
    return np.array([math.exp(spread * value) for value in _quantiles()], np.float32)


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values rounded to the nearest bfloat16, ties to even, as uint16 bits."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + (bits >> 16 & 1))) >> 16).astype(np.uint16)


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 values that bfloat16 represents exactly."""
    return (to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)


def normal(raw: Raw, count: int, spread: float) -> np.ndarray:
    """count normal numbers [count] float32, each a bfloat16 number."""
    return round_bfloat16(_quantiles()[raw.halves(count)] * np.float32(spread))


def log_normal(raw: Raw, count: int, spread: float) -> np.ndarray:
    """count numbers whose logarithm is normal, around 1 [count] float32, each a bfloat16 number."""
    return round_bfloat16(_log_normal(spread)[raw.halves(count)])


def bias(raw: Raw, count: int, spread: float, centre: float) -> np.ndarray:
    """count normal numbers around centre [count] float32."""
    return _quantiles()[raw.halves(count)] * np.float32(spread) + np.float32(centre)
