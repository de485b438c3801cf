"""How many slots to decode now: a schedule takes a Step and returns (B,). `step.opened` counts the window's masks when it began.

`bound(n, steps)` is the most forwards a window of n slots can take under it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class Even:
    """ceil(masks left / steps left): LLaDA's step table, which also absorbs anchors, odd blocks and remasking."""

    def __call__(self, step: Step) -> Tensor:
        return -(-step.eligible.sum(1) // max(1, step.steps - step.index))

    def bound(self, n: int, steps: int) -> int:
        return min(n, steps)


@dataclass(frozen=True)
class Across:
    """ceil(masks left / steps left) counted over the whole response, even where only part of it is in view (DSB)."""

    def __call__(self, step: Step) -> Tensor:
        return -(-step.canvas.masked.sum(1) // (step.budget - step.turn).clamp(min=1))

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Fixed:
    """`tokens` per step, whatever the budget."""

    tokens: int = 1

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise UserError(f"a step decodes at least 1 token, not {self.tokens}")

    def __call__(self, step: Step) -> Tensor:
        return torch.full_like(step.opened, self.tokens)

    def bound(self, n: int, steps: int) -> int:
        return math.ceil(n / self.tokens)


@dataclass(frozen=True)
class Due:
    """What an even pace says should be done by now and is not; in the end all that is left (Fast-dLLM on Dream)."""

    idles: ClassVar = True

    def __call__(self, step: Step) -> Tensor:
        left = step.eligible.sum(1)
        return left - step.opened // step.steps * max(0, step.steps - 1 - step.index)

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Timesteps:
    """Dream's schedule: int(masks (1 - t_{i+1} / t_i)) on t = linspace(1, eps) in float32, all that is left at the last step.
    The first steps may decode nothing; their forwards are made all the same, as published."""

    eps: float = 1e-3
    idles: ClassVar = True

    def leave(self, step: Step) -> float:
        """1 - t_{i+1} / t_i; 1 from the last step on."""
        if step.index >= step.steps - 1:
            return 1.0
        t = torch.linspace(1, self.eps, step.steps + 1)
        return float(1 - t[step.index + 1] / t[step.index])

    def __call__(self, step: Step) -> Tensor:
        return (step.eligible.sum(1).float() * self.leave(step)).long()

    def bound(self, n: int, steps: int) -> int:
        return steps


@lru_cache(maxsize=4096)
def _curved(curve: Curve, masks: int, steps: int) -> tuple[int, ...]:
    """LaViDa's step table: the steps of trunc(sigma(t) masks), at least 1 each, the surplus taken off by turns; reversed."""
    steps = min(steps, masks)
    done = (curve.sigma(torch.linspace(0, 1, steps + 1)) * masks).long()
    table = done.diff().clamp(min=1).tolist()
    while sum(table) > masks:
        for j in range(steps):
            if sum(table) > masks and table[j] > 1:
                table[j] -= 1
    return tuple(reversed(table))


@dataclass(frozen=True)
class Curve:
    """LaViDa's schedules: how far decoding is along a curve sigma over t in [0, 1], all that is left at the last step.
    Here it is a straight line."""

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def __call__(self, step: Step) -> Tensor:
        left = step.eligible.sum(1)
        counts = []
        for masks, now in zip(step.opened.tolist(), left.tolist(), strict=True):
            table = _curved(self, masks, step.steps) if masks else ()
            counts.append(table[step.index] if step.index < len(table) - 1 else now)
        return torch.tensor(counts, device=left.device)

    def bound(self, n: int, steps: int) -> int:
        return min(n, steps)


@dataclass(frozen=True)
class Shift(Curve):
    """s t / (1 + (s - 1) t): few tokens per step at first for s > 1 (LaViDa's default), many for s < 1."""

    shift: float = 3.0

    def sigma(self, t: Tensor) -> Tensor:
        return self.shift * t / (1 + (self.shift - 1) * t)


@dataclass(frozen=True)
class Cosine(Curve):
    """1 - (1 + cos(pi t)) / 2: few at both ends."""

    def sigma(self, t: Tensor) -> Tensor:
        return 1 - 0.5 * (1 + torch.cos(math.pi * t))


@dataclass(frozen=True)
class LogitNormal(Curve):
    """(1 + erf(ln(t / (1 - t)) / sqrt 2)) / 2: few at both ends."""

    def sigma(self, t: Tensor) -> Tensor:
        return 0.5 * (1 + torch.erf(torch.log(t / (1 - t)) / math.sqrt(2)))
