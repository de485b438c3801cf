"""What published code does and a method here would not: rules for parity with recordings only.

Most draw one tensor of random numbers for the whole batch, so that a row's tokens depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.decoding.rules import SelectionRule
from unmask.decoding.rules.schedules import Timesteps
from unmask.decoding.rules.selection import Threshold
from unmask.decoding.rules.tokens import Gumbel

if TYPE_CHECKING:
    from unmask.decoding.reading import Ask, Draws
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class PublishedGumbel(Gumbel):
    """As the published loop draws: noise for all of (B, P + L, V) from one generator. For parity only: it costs that
    memory, and a row's tokens depend on the batch."""

    def noise(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> Tensor:
        u = draws.whole(ask.forward, *ask.canvas.ids.shape, logits.shape[-1], dtype=torch.float64)
        return u[rows, ask.canvas.start + slots]


@dataclass(frozen=True)
class PublishedUniform:
    """LLaDA's `remasking="random"` as published: numbers for all of (B, P + L) from one generator. For parity only."""

    def __call__(self, step: Step) -> Tensor:
        return step.draws.whole(step.forward, *step.canvas.ids.shape)[:, step.canvas.start :]


@dataclass(frozen=True)
class PublishedChance:
    """Dream's `alg="origin"` draws: one number a masked slot, in order, for all rows from one generator.
    c_i = -u_i; goes with the selection rule Chance."""

    def __call__(self, step: Step) -> Tensor:
        score = torch.zeros_like(step.seen.p)
        masked = step.eligible
        score[masked] = -step.draws.whole(step.forward, int(masked.sum()))
        return score


@dataclass(frozen=True)
class Chance:
    """Dream's `alg="origin"`: each masked slot with probability 1 - t_{i+1} / t_i. Goes with PublishedChance."""

    schedule: Timesteps = Timesteps()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return step.eligible & (-score < self.schedule.leave(step))

    def bound(self, n: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class LeadingSlot:
    """Fast-dLLM on Dream: the first forward of a block (the full one) decodes the block's first slot alone, then `then`."""

    then: SelectionRule = Threshold()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        if step.index:
            return self.then(step, score)
        slots = torch.arange(step.canvas.length, device=score.device)
        first = torch.where(step.eligible, slots, step.canvas.length).amin(1, keepdim=True)
        return slots == first

    def bound(self, n: int, steps: int) -> int:
        return 1 + self.then.bound(n, steps)
