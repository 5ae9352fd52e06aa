"""Models whose MTP block guesses well, as that of random weights never does.

What follows a token is made to depend on the token mostly, and the block looks at the same token through the same norm
and head as the trunk, so that its guesses are often the trunk's greatest logit, and often not.
"""

from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader

SHARE = 0.005  # of what layers add to the residual stream


def foresee(path: str | Path, copy: str | Path, share: float = SHARE) -> Path:
    """A copy of a float32 model (make_model with mix f32) with such a block. Layers add share of what they did; the
    smaller, the better the guesses."""
    Path(copy).write_bytes(Path(path).read_bytes())
    reader = GGUFReader(copy, "r+")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if any(tensor.tensor_type != GGMLQuantizationType.F32 for tensor in tensors.values()):
        raise ValueError(f"{path}: not every tensor is float32")
    for name, tensor in tensors.items():
        if "attn_output" in name or "_down" in name:
            tensor.data[:] *= np.float32(share)
    block = next(name for name in tensors if name.endswith("nextn.eh_proj.weight")).removesuffix("eh_proj.weight")
    projection = tensors[block + "eh_proj.weight"].data
    projection[:] = np.eye(*projection.shape)
    tensors[block + "enorm.weight"].data[:] = 1
    tensors[block + "shared_head_norm.weight"].data[:] = tensors["output_norm.weight"].data
    reader.data.flush()
    return Path(copy)
