"""Loss, accuracy, draft acceptance and expert loads of a model over fixed windows."""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from data import NO_LOSS
from model import GLM


@dataclass
class Measured:
    loss: float  # nats per token that bears loss
    top1: float  # share of these whose argmax is right
    accepted: float  # share of drafts (length 1) that equal the model's own argmax one row later
    counts: list[Tensor] = field(
        default_factory=list
    )  # tokens per expert, per sparse layer, the MTP layer last

    def loads(self) -> list[float]:
        """max / mean of the tokens per expert, per layer."""
        return [float(c.max() / c.float().mean()) for c in self.counts]

    def top_quarter(self) -> list[float]:
        """Share of all selections that falls on the most used quarter of the experts, per layer."""
        return [float(c.sort(descending=True).values[: len(c) // 4].sum() / c.sum()) for c in self.counts]

    def bits_per_byte(self, bytes_per_token: float) -> float:
        return self.loss / math.log(2) / bytes_per_token


def unpack(model: GLM, raw: Tensor, time: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(ids, visible, next token counts, token after next counts) of windows [batch, time + 2]."""
    silent, ids = raw >= NO_LOSS, (raw & (NO_LOSS - 1)).long()
    visible, document = model.visible(ids)
    first = (document[:, 1 : time + 1] == document[:, :time]) & ~silent[:, 1 : time + 1]
    second = (document[:, 2:] == document[:, :time]) & ~silent[:, 2:]
    return ids, visible[:, :time, :time].contiguous(), first, second


@torch.no_grad()
def measure(model: GLM, windows: Tensor, sparse: bool, batch: int = 16) -> Measured:
    """windows [count, time + 2]. Runs eagerly, in bfloat16 on a GPU and float32 elsewhere."""
    time, device = windows.shape[1] - 2, windows.device.type
    total, counts = torch.zeros(5, dtype=torch.float64), None
    for at in range(0, len(windows), batch):
        ids, visible, first, second = unpack(model, windows[at : at + batch], time)
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            f, m, _, used = model(ids[:, :time], ids[:, 1 : time + 1], visible, sparse=sparse, eager=True)
            logits, drafts = model.lm_head(f).float(), model.lm_head(m).float()
        target = ids[:, 1 : time + 1]
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view_as(first)
        best = logits.argmax(-1)
        judged = second[:, :-1]
        hit = (drafts.argmax(-1)[:, :-1] == best[:, 1:]) & judged
        right = (best == target) & first
        total += (
            torch.stack([(loss * first).sum(), first.sum(), right.sum(), hit.sum(), judged.sum()])
            .double()
            .cpu()
        )
        counts = used if counts is None else [a + b for a, b in zip(counts, used, strict=True)]
    loss_sum, tokens, right_sum, hits, drafted = total.tolist()
    return Measured(
        loss_sum / tokens, right_sum / tokens, hits / max(drafted, 1), [c.cpu() for c in counts or []]
    )
