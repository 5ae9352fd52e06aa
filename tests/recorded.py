"""Reads the runs of transformers that tools/record_vectors.py recorded in tests/vectors."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VECTORS = Path(__file__).resolve().parent / "vectors"
COUNTS = (16, 32, 33, 256)  # prompt lengths: below, at, right above and far above index_top_k = 32
LATENT_EPSILON = 1e-6  # which transformers uses in the norms of q_a and kv_a


@dataclass(frozen=True)
class Case:
    """One prompt. logits[i] belong to token rows[i], mtp_logits[i] to row mtp_rows[i] of the MTP block."""

    ids: list[int]
    rows: list[int]
    logits: np.ndarray  # float32 [rows, vocab]
    argmax: np.ndarray  # [tokens]
    mtp_rows: list[int]
    mtp_logits: np.ndarray
    selected: dict[int, np.ndarray]  # full layer -> bool [tokens, tokens]
    route_ids: dict[int, np.ndarray]  # sparse layer -> [tokens, used] in no particular order
    route_weights: dict[int, np.ndarray]


class Recorded:
    """All prompts of one preset. make_model(preset, path, mix=MIX) has the weights that were run."""

    MIX = "bf16"

    def __init__(self, preset: str) -> None:
        facts = json.loads((VECTORS / f"transformers-{preset}.json").read_text(encoding="utf-8"))
        self.weights_sha256: str = facts["weights_sha256"]
        self._arrays = dict(np.load(VECTORS / f"transformers-{preset}.npz"))

    def _layers(self, start: str) -> dict[int, np.ndarray]:
        found = {
            int(name[len(start) :]): array for name, array in self._arrays.items() if name.startswith(start)
        }
        return dict(sorted(found.items()))

    def case(self, count: int) -> Case:
        selected = self._layers(f"{count}/selected_")
        return Case(
            ids=self._arrays[f"{count}/ids"].tolist(),
            rows=self._arrays[f"{count}/rows"].tolist(),
            logits=self._arrays[f"{count}/logits"],
            argmax=self._arrays[f"{count}/argmax"],
            mtp_rows=[count // 2, count - 2],
            mtp_logits=self._arrays[f"{count}/mtp_logits"],
            selected={i: np.unpackbits(bits, -1, count=count).astype(bool) for i, bits in selected.items()},
            route_ids=self._layers(f"{count}/route_ids_"),
            route_weights=self._layers(f"{count}/route_weights_"),
        )
