"""Muon for the matrices of the layers (momentum, orthogonalised), after Jordan et al. 2024."""

import torch
from torch import Tensor


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration that brings the singular values of [count, rows, columns] near 1."""
    x = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if tall else x


class Muon:
    """Matrices of one shape are orthogonalised together. gate_up counts as two matrices per expert."""

    def __init__(self, named: list[tuple[str, Tensor]], lr: float, weight_decay: float) -> None:
        self.lr, self.weight_decay = lr, weight_decay
        self.parameters = [p for _, p in named]
        self.momentum = [torch.zeros_like(p) for p in self.parameters]
        self.groups: dict[tuple[int, int], list[tuple[int, tuple[int, int, int]]]] = {}
        for number, (name, p) in enumerate(named):
            shape = (1, *p.shape) if p.dim() == 2 else tuple(p.shape)
            if name.endswith("gate_up"):
                shape = (shape[0] * 2, shape[1] // 2, shape[2])
            self.groups.setdefault(shape[1:], []).append((number, shape))

    @torch.no_grad()
    def step(self, lr: float, beta: float) -> None:
        gradients = [p.grad for p in self.parameters]
        torch._foreach_lerp_(self.momentum, gradients, 1 - beta)
        updates = list(torch._foreach_lerp(gradients, self.momentum, beta))
        for shape, members in self.groups.items():
            done, at = orthogonalised(torch.cat([updates[i].reshape(s) for i, s in members])), 0
            for i, s in members:
                updates[i] = (
                    done[at : at + s[0]].reshape(self.parameters[i].shape).to(self.parameters[i].dtype)
                )
                at += s[0]
            group = [self.parameters[i] for i, _ in members]
            torch._foreach_mul_(group, 1 - lr * self.weight_decay)
            torch._foreach_add_(
                group, [updates[i] for i, _ in members], alpha=-lr * max(1, shape[0] / shape[1]) ** 0.5
            )
