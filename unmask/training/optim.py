"""The optimizers: Muon for the hidden matrices, AdamW for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from unmask.training.train import Recipe


class Muon(torch.optim.Optimizer):
    """Momentum whose update is replaced by the nearest orthogonal matrix (Newton-Schulz, 5 iterations, in float32)."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for same in shapes.values():  # matrices of one shape go through Newton-Schulz together
                updates = []
                for p in same:
                    velocity = self.state[p].setdefault("velocity", torch.zeros_like(p))
                    velocity.mul_(group["momentum"]).add_(p.grad)
                    updates.append(p.grad + group["momentum"] * velocity)
                for p, update in zip(same, orthogonal(torch.stack(updates)), strict=True):
                    p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g: Tensor, iterations: int = 5) -> Tensor:
    """The orthogonal factor, approximately, of each matrix in g (n, rows, columns)."""
    tall = g.shape[-2] > g.shape[-1]
    x = (g.mT if tall else g).float()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return (x.mT if tall else x).to(g.dtype)


def optimizers(module: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the blocks, AdamW for the rest (and for adapters)."""
    hidden: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in module.named_parameters():
        if p.requires_grad:
            inside = p.ndim == 2 and (".blocks." in name or ".layers." in name) and "lora_" not in name
            (hidden if inside else rest).append(p)
    made: list[torch.optim.Optimizer] = [Muon(hidden, recipe.muon)] if hidden else []
    return made + ([torch.optim.AdamW(rest, recipe.lr, betas=(0.9, 0.98), weight_decay=0.0)] if rest else [])
