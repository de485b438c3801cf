"""Which settled slots are opened again (ReMDM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from unmask.decoding.rules.selection import Quota

if TYPE_CHECKING:
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class Remask:
    """ReMDM: once `after` of a window is decoded, `rounds` times reopen the k least sure settled slots and decode k.

    fresh: confidence is read anew by a forward of its own (the port in PC-Sampler); otherwise it is the score they were
    committed with (the official code, which has as many rounds as the window has steps: rounds=None).
    """

    k: int = 1
    after: float = 0.875
    rounds: int | None = 32
    fresh: bool = True

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"current"} if self.fresh else ())

    def open_rows(self, step: Step) -> Tensor:
        """(B,) bool: the row is in its rounds."""
        quota = cast(Quota, step.strategy.select)  # settings.check allows no other
        begun = (step.opened * self.after).long() // quota.schedule(step).clamp(min=1)
        rounds = step.steps if self.rounds is None else self.rounds
        return (step.index >= begun) & (step.index < begun + rounds) & (step.opened > 0)

    def candidates(self, step: Step) -> Tensor:
        settled = ~step.canvas.masked & ~step.canvas.fixed & step.inside
        return settled & self.open_rows(step)[:, None]

    def asks(self, step: Step) -> Tensor | None:
        """Where a forward of its own must look, if anywhere."""
        where = self.candidates(step)
        return where if self.fresh and bool(where.any()) else None

    def __call__(self, step: Step) -> Tensor:
        where = self.candidates(step)
        sure = step.seen.current if self.fresh and step.seen.current is not None else step.canvas.settled
        order = sure.masked_fill(~where, torch.inf).sort(dim=1, stable=True).indices
        low = torch.arange(sure.shape[1], device=sure.device).expand_as(sure) < self.k
        return torch.zeros_like(where).scatter(1, order, low) & where

    def extra(self, steps: int) -> int:
        """Forwards beyond those of the selection rule: in every round one that decodes, and one that looks."""
        return (steps if self.rounds is None else self.rounds) * (1 + self.fresh)
