"""What 8-bit activations cost: every matrix of a file, default mode against exact, mix by mix.

    python -m pytest tests/test_default_mode.py -s -k costs     prints the table of docs/QUANTIZATION.md
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader
from oplib import Ops
from test_forward import MIXES
from test_ops import realistic_rows

# One in 254 of the largest of 32 values is the worst rounding. Of Gaussian values its root mean square is 0.6 %, and
# channels of unequal scale, which the rows here have, make it up to 0.9 %.
COST = 0.01
ROWS = 32
MATRICES = (
    "attn_q_a", "attn_q_b", "attn_kv_a_mqa", "attn_k_b", "attn_v_b", "attn_output", "indexer.attn_q_b",
    "indexer.attn_k", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp",
)  # fmt: skip


def cost(ops: Ops, tensor, rng: np.random.Generator) -> float:
    """Relative rms of the difference that 8-bit activations make to a product with realistic rows."""
    size = int(tensor.shape[0])
    out = int(tensor.shape[1])
    groups = int(tensor.shape[2]) if len(tensor.shape) > 2 else 1
    weights = np.ascontiguousarray(tensor.data).view(np.uint8).reshape(groups, out, -1)[:4]
    x = np.concatenate([realistic_rows(rng, ROWS, size) for _ in weights], axis=1)
    exact = ops.matmul(x, weights, int(tensor.tensor_type), True).astype(np.float64)
    quick = ops.matmul(x, weights, int(tensor.tensor_type), False)
    return float(np.sqrt(np.mean((quick - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("mix", MIXES)
def test_what_8_bit_activations_cost_per_matrix(make: Callable[..., Path], mix: str) -> None:
    rng = np.random.Generator(np.random.PCG64(11))
    reader = GGUFReader(make("tiny", mix=mix, changes={"index_top_k": 8}))
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    costs: dict[str, float] = {}
    with Ops() as ops:
        for name in ("output", *(f"blk.{layer}.{matrix}" for layer in (1, 4) for matrix in MATRICES)):
            if f"{name}.weight" in tensors:
                costs[name] = cost(ops, tensors[f"{name}.weight"], rng)
    worst = max(costs, key=costs.__getitem__)
    by_type = sorted(costs.items(), key=lambda item: -item[1])
    print(f"\n{mix}: worst {worst} {costs[worst]:.2%}; " + ", ".join(f"{n} {c:.2%}" for n, c in by_type))
    assert len(costs) > 20
    assert all(c <= COST for c in costs.values()), by_type[:3]
    # Where a matrix is of floats, the activations are not rounded at all.
    for name, c in costs.items():
        is_float = tensors[f"{name}.weight"].tensor_type.name in ("F32", "F16", "BF16")
        assert (c == 0) == is_float, name
