"""Models whose MTP block guesses well, as that of random weights never does.

What follows a token is made to depend on the token mostly, and the block looks at the same token through the same norm
and head as the trunk, so that its guesses are often the trunk's greatest logit, and often not.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, ReaderTensor, quants

SHARE = 0.005  # of what layers add to the residual stream


def _scale(tensor: ReaderTensor, share: float) -> None:
    """Multiplies a tensor of float32 or Q8_0, whose blocks are a float16 factor and 32 integers."""
    if tensor.tensor_type == GGMLQuantizationType.F32:
        tensor.data[:] *= np.float32(share)
    else:
        blocks = tensor.data.reshape(-1, 34)
        factors = blocks[:, :2].copy().view(np.float16) * np.float32(share)
        blocks[:, :2] = factors.astype(np.float16).view(np.uint8)


def _set_identity(tensor: ReaderTensor) -> None:
    """Makes a matrix [n, 2 n] the identity beside zeros."""
    columns, rows = (int(size) for size in tensor.shape)
    if tensor.tensor_type == GGMLQuantizationType.F32:
        tensor.data[:] = np.eye(rows, columns)
    else:
        quantised = quants.quantize(np.eye(rows, columns, dtype=np.float32), GGMLQuantizationType.Q8_0)
        tensor.data[:] = quantised.reshape(tensor.data.shape)


def foresee(path: str | Path, copy: str | Path, share: float = SHARE) -> Path:
    """A copy of a model of float32 or Q8_0 matrices (make_model with mix f32 or q8_0) with such a block. Layers add
    share of what they did; the smaller, the better the guesses."""
    Path(copy).write_bytes(Path(path).read_bytes())
    reader = GGUFReader(copy, "r+")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        if tensor.tensor_type not in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0):
            raise ValueError(f"{path}: {name} is neither float32 nor Q8_0")
        if "attn_output" in name or "_down" in name:
            _scale(tensor, share)
    block = next(name for name in tensors if name.endswith("nextn.eh_proj.weight")).removesuffix("eh_proj.weight")
    _set_identity(tensors[block + "eh_proj.weight"])
    tensors[block + "enorm.weight"].data[:] = 1
    tensors[block + "shared_head_norm.weight"].data[:] = tensors["output_norm.weight"].data
    reader.data.flush()
    return Path(copy)
