"""Calls of single operations with numpy arrays: what the tests of operations share.

Arrays go in as they lie: a row stride of an argument is the stride of its array, so a view of a wider array
tests a stride larger than its row. The last axis must be contiguous. Nothing here computes what an operation
computes.
"""

from collections.abc import Sequence
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from glm52_rt import _native

ffi, lib = _native.ffi, _native.lib

F16, F32 = 0, 1  # kv_type
KV_DTYPE = {F16: np.float16, F32: np.float32}
UNIT = 2.0**-24  # half a unit in the last place of float32, relative: the error of one rounding
TINY = 2.0**-149  # the smallest float32: what rounding of a tiny result may lose

Expert = tuple[np.ndarray, np.ndarray, np.ndarray]


class OpError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{ffi.string(lib.glm52_status_name(status)).decode()}: {message}")
        self.status = status


def check(status: int) -> None:
    if status != lib.GLM52_OK:
        raise OpError(status, ffi.string(lib.glm52_error_message()).decode())


def stride(array: np.ndarray, axis: int) -> int:
    return array.strides[axis] // array.itemsize


def pad(array: np.ndarray, extra: int, fill: float = np.nan) -> np.ndarray:
    """The same values in rows that are extra elements longer; the rest holds fill."""
    wide = np.full((*array.shape[:-1], array.shape[-1] + extra), fill, array.dtype)
    wide[..., : array.shape[-1]] = array
    return wide[..., : array.shape[-1]]


class Ops:
    """An open backend; one method per operation. Methods return new arrays unless out is given."""

    def __init__(self, threads: int = 1, name: str = "cpu") -> None:
        handle = ffi.new("glm52_backend **")
        check(lib.glm52_backend_open(name.encode(), threads, handle))
        self._backend = handle[0]

    def close(self) -> None:
        lib.glm52_backend_close(self._backend)
        self._backend = ffi.NULL

    def __enter__(self) -> "Ops":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, name: str, numbers: dict[str, Any], *operands: Any) -> None:
        """Calls an operation; operands are arrays, cdata or None."""
        args = ffi.new(f"glm52_{name}_args *", numbers)
        pointers = [
            ffi.NULL if x is None else ffi.cast("void *", x.ctypes.data) if isinstance(x, np.ndarray) else x
            for x in operands
        ]
        check(getattr(lib, f"glm52_op_{name}")(self._backend, args, *pointers))

    def embed(self, ids: np.ndarray, table: np.ndarray, kind: int, hidden: int, vocab: int) -> np.ndarray:
        out = np.full((len(ids), hidden), np.nan, np.float32)
        self.run(
            "embed", {"row_count": len(ids), "hidden": hidden, "type": kind, "vocab": vocab}, out, table, ids
        )
        return out

    def rms_norm(
        self, x: np.ndarray, weight: np.ndarray, epsilon: float, out: np.ndarray | None = None
    ) -> np.ndarray:
        out = np.full(x.shape, np.nan, np.float32) if out is None else out
        rows, size = x.shape
        numbers = {
            "row_count": rows,
            "row_size": size,
            "x_stride": stride(x, 0),
            "out_stride": stride(out, 0),
        }
        self.run("rms_norm", {**numbers, "epsilon": epsilon}, out, x, weight)
        return out

    def rope(self, x: np.ndarray, table: np.ndarray) -> np.ndarray:
        """x [rows, heads, rope_size] is rotated in place."""
        rows, heads, size = x.shape
        numbers = {"row_count": rows, "head_count": heads, "rope_size": size}
        self.run("rope", {**numbers, "row_stride": stride(x, 0), "head_stride": stride(x, 1)}, x, table)
        return x

    def matmul(
        self, x: np.ndarray, weights: np.ndarray, kind: int, exact: bool, out: np.ndarray | None = None
    ) -> np.ndarray:
        """x [rows, groups, in], weights [groups, out, bytes of a row] -> [rows, groups, out]."""
        rows, groups, size = x.shape
        if out is None:
            out = np.full((rows, groups, weights.shape[1]), np.nan, np.float32)
        numbers = {"row_count": rows, "in_count": size, "out_count": weights.shape[1], "group_count": groups}
        strides = {
            "x_row_stride": stride(x, 0),
            "x_group_stride": stride(x, 1),
            "out_row_stride": stride(out, 0),
            "out_group_stride": stride(out, 1),
        }
        self.run("matmul", {**numbers, **strides, "type": kind, "exact": exact}, out, x, weights)
        return out

    def kv_store(
        self,
        cache: np.ndarray,
        x: np.ndarray,
        weight: np.ndarray,
        table: np.ndarray,
        position: int,
        epsilon: float,
    ) -> None:
        """cache [positions, latent + rope_size], float16 or float32, is written."""
        numbers = {
            "row_count": len(x),
            "latent": len(weight),
            "rope_size": table.shape[1],
            "position": position,
        }
        kv_type = F16 if cache.dtype == np.float16 else F32
        more = {"kv_type": kv_type, "x_stride": stride(x, 0), "epsilon": epsilon}
        self.run("kv_store", {**numbers, **more}, cache, x, weight, table)

    def index_store(
        self,
        cache: np.ndarray,
        x: np.ndarray,
        weight: np.ndarray,
        bias: np.ndarray,
        table: np.ndarray,
        position: int,
        epsilon: float,
    ) -> None:
        """cache [positions, key_size] is written."""
        numbers = {
            "row_count": len(x),
            "key_size": x.shape[1],
            "rope_size": table.shape[1],
            "position": position,
        }
        kv_type = F16 if cache.dtype == np.float16 else F32
        more = {"kv_type": kv_type, "x_stride": stride(x, 0), "epsilon": epsilon}
        self.run("index_store", {**numbers, **more}, cache, x, weight, bias, table)

    def index_score(
        self,
        q: np.ndarray,
        weights: np.ndarray,
        cache: np.ndarray,
        position: int,
        scale: float,
        score_stride: int = 0,
    ) -> np.ndarray:
        """q [rows, heads, key_size] -> scores [rows, score_stride or position + rows], NaN where none is
        due."""
        rows, heads, size = q.shape
        scores = np.full((rows, score_stride or position + rows), np.nan, np.float32)
        numbers = {
            "row_count": rows,
            "head_count": heads,
            "key_size": size,
            "position": position,
            "kv_type": F16 if cache.dtype == np.float16 else F32,
            "score_stride": scores.shape[1],
            "q_stride": stride(q, 0),
            "weight_stride": stride(weights, 0),
            "scale": scale,
        }
        self.run("index_score", numbers, scores, q, weights, cache)
        return scores

    def top_k(self, scores: np.ndarray | None, rows: int, position: int, k: int) -> np.ndarray:
        """scores [rows, at least position + rows] -> selected [rows, k], -1 where none is due."""
        selected = np.full((rows, k), -1, np.int32)
        numbers = {"row_count": rows, "position": position, "k": k, "selected_stride": k}
        score_stride = 0 if scores is None else stride(scores, 0)
        self.run("top_k", {**numbers, "score_stride": score_stride}, selected, scores)
        return selected

    def attention(
        self,
        q_latent: np.ndarray,
        q_rope: np.ndarray,
        cache: np.ndarray,
        selected: np.ndarray,
        position: int,
        k: int,
        scale: float,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """q_latent [rows, heads, latent], q_rope [rows, heads, rope_size] -> [rows, heads, latent]."""
        rows, heads, latent = q_latent.shape
        out = np.full((rows, heads, latent), np.nan, np.float32) if out is None else out
        numbers = {
            "row_count": rows,
            "head_count": heads,
            "latent": latent,
            "rope_size": q_rope.shape[2],
            "position": position,
            "k": k,
            "kv_type": F16 if cache.dtype == np.float16 else F32,
            "selected_stride": stride(selected, 0),
            "scale": scale,
            "q_latent_row_stride": stride(q_latent, 0),
            "q_latent_head_stride": stride(q_latent, 1),
            "q_rope_row_stride": stride(q_rope, 0),
            "q_rope_head_stride": stride(q_rope, 1),
            "out_row_stride": stride(out, 0),
            "out_head_stride": stride(out, 1),
        }
        self.run("attention", numbers, out, q_latent, q_rope, cache, selected)
        return out

    def router(
        self, logits: np.ndarray, bias: np.ndarray, used: int, scale: float = 1.0, normalise: bool = True
    ) -> tuple[np.ndarray, np.ndarray]:
        rows, experts = logits.shape
        ids = np.full((rows, used), -1, np.int32)
        weights = np.full((rows, used), np.nan, np.float32)
        numbers = {"row_count": rows, "expert_count": experts, "used_count": used, "normalise": normalise}
        more = {"logits_stride": stride(logits, 0), "scale": scale}
        self.run("router", {**numbers, **more}, ids, weights, logits, bias)
        return ids, weights

    def swiglu(self, gate: np.ndarray, up: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        out = np.full(gate.shape, np.nan, np.float32) if out is None else out
        strides = {"gate_stride": stride(gate, 0), "up_stride": stride(up, 0), "out_stride": stride(out, 0)}
        self.run("swiglu", {"row_count": len(gate), "row_size": gate.shape[1], **strides}, out, gate, up)
        return out

    def moe(
        self,
        x: np.ndarray,
        ids: np.ndarray,
        weights: np.ndarray,
        experts: Sequence[Expert | None],
        kinds: tuple[int, int, int],
        ff_count: int,
        exact: bool,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Adds the chosen experts' outputs to out [rows, in] (zeros if not given)."""
        out = np.zeros(x.shape, np.float32) if out is None else out
        table = ffi.new("glm52_expert[]", len(experts))
        for place, expert in zip(table, experts):
            if expert is not None:
                place.gate, place.up, place.down = (ffi.cast("void *", m.ctypes.data) for m in expert)
        numbers = {
            "row_count": len(x),
            "expert_count": len(experts),
            "used_count": ids.shape[1],
            "in_count": x.shape[1],
            "ff_count": ff_count,
            "gate_type": kinds[0],
            "up_type": kinds[1],
            "down_type": kinds[2],
            "exact": exact,
            "x_stride": stride(x, 0),
            "out_stride": stride(out, 0),
        }
        self.run("moe", numbers, out, x, ids, weights, table)
        return out

    def add(
        self, a: np.ndarray, b: np.ndarray, c: np.ndarray | None, out: np.ndarray | None = None
    ) -> np.ndarray:
        out = np.full(a.shape, np.nan, np.float32) if out is None else out
        self.run("add", {"count": a.size}, out, a, b, c)
        return out


# ---- weights ----

# Where each format keeps its float16 factors, from the start of a block: random bytes there could be
# infinite. The second is that of an offset, here so many times the first that weights have mean 0, as those
# of models do.
_FACTORS = {
    "Q4_0": (0,),
    "Q4_1": (0, 2, -7.5),
    "Q5_0": (0,),
    "Q5_1": (0, 2, -15.5),
    "Q8_0": (0,),
    "Q2_K": (80, 82, 1.5),
    "Q3_K": (108,),
    "Q4_K": (0, 2, 7.5),
    "Q5_K": (0, 2, 15.5),
    "Q6_K": (208,),
    "IQ1_S": (0,),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}


def formats() -> dict[str, int]:
    """Name and number of every type that the library reads."""
    found = {}
    for index in range(lib.glm52_quant_count()):
        info = ffi.new("glm52_quant_info *")
        check(lib.glm52_quant_describe(index, info))
        found[ffi.string(info.name).decode()] = int(info.type)
    return found


def row_multiple(kind: int) -> int:
    """What the size of a row must be a multiple of."""
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)][0]


def random_weights(rng: np.random.Generator, kind: int, shape: tuple[int, ...]) -> np.ndarray:
    """Random weights of a type as bytes [..., bytes of a row]: blocks of any bytes, but for their factors."""
    quant = gguf.GGMLQuantizationType(kind)
    if quant.name in ("F32", "F16"):
        values = rng.standard_normal(shape).astype(np.float32 if quant.name == "F32" else np.float16)
        return values.view(np.uint8)
    if quant.name == "BF16":
        return (
            (rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16)
            .astype(np.uint16)
            .view(np.uint8)
        )
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block_size, block_bytes), np.uint8)
    factor = rng.uniform(0.01, 0.1, blocks.shape[:-1])
    if quant.name in _FACTORS:
        first, *second = _FACTORS[quant.name]
        blocks[..., first : first + 2] = factor.astype(np.float16)[..., None].view(np.uint8)
        if second:
            offset = (factor * second[1]).astype(np.float16)
            blocks[..., second[0] : second[0] + 2] = offset[..., None].view(np.uint8)
    if quant.name == "IQ1_M":  # the factor is spread over the upper 4 bits of 4 words
        bits = factor.astype(np.float16).view(np.uint16)
        for word in range(4):
            byte = blocks[..., 49 + 2 * word]
            blocks[..., 49 + 2 * word] = (byte & 0x0F) | ((bits >> (4 * word) & 0xF) << 4).astype(np.uint8)
    if quant.name == "MXFP4":  # an exponent
        blocks[..., 0] = rng.integers(124, 130, blocks.shape[:-1])
    return blocks.reshape(*shape[:-1], -1)


def exact_values(kind: int, weights: np.ndarray) -> np.ndarray:
    """What weights mean, by the gguf package, in float64."""
    quant = gguf.GGMLQuantizationType(kind)
    if quant.name in ("F32", "F16"):
        return weights.view(np.float32 if quant.name == "F32" else np.float16).astype(np.float64)
    return dequantize(weights, quant).astype(np.float64)


def encode_q8(x: np.ndarray) -> np.ndarray:
    """Rows as the default mode sees them: 8 bits per value and a float32 scale per 32, in float64."""
    blocks = x.reshape(*x.shape[:-1], -1, 32).astype(np.float32)
    scale = np.abs(blocks).max(-1, keepdims=True) / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.where(scale >= 2.0**-126, np.rint(blocks / scale), np.float32(0))
    scale = np.where(scale >= 2.0**-126, scale, np.float32(0))
    return (codes.astype(np.float64) * scale).reshape(x.shape)


def rope_table(positions: np.ndarray, size: int, theta: float = 8e6) -> np.ndarray:
    """[rows, size]: cos, sin, cos, sin, ... of each pair's angle."""
    angle = positions[:, None] * theta ** (-np.arange(0, size, 2) / size)
    return np.stack([np.cos(angle), np.sin(angle)], -1).reshape(len(positions), size).astype(np.float32)
