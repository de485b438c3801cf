"""Select: which eligible slots are decoded now. A rule takes a Step and c~ (B, L), and returns (B, L) bool.

`bound(n, steps)` is the most forwards a window of n slots can take under the rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.decoding.rules import Schedule
from unmask.decoding.rules.schedules import Even

if TYPE_CHECKING:
    from unmask.decoding.step import Step


def rank(step: Step, score: Tensor, pool: Tensor | None = None) -> Tensor:
    """(B, L) slots, best first: eligible before deferred before the rest, then by score; ties go to the leftmost. With a
    `pool` (B, L) of eligible slots: those before the other eligible ones."""
    order = score.sort(dim=1, descending=True, stable=True).indices
    later = step.deferred if pool is None else ~pool
    group = (~step.eligible).long() * 2
    if later is not None:
        group = group + (later & step.eligible)
    return order.gather(1, group.gather(1, order).sort(dim=1, stable=True).indices)


def best(step: Step, score: Tensor, k: Tensor, pool: Tensor | None = None) -> Tensor:
    """The k (B,) best eligible slots of every row, those of the `pool` first."""
    chosen = torch.zeros_like(step.eligible)
    first = torch.arange(score.shape[1], device=score.device) < k[:, None]
    return chosen.scatter(1, rank(step, score, pool), first) & step.eligible


def prefer(step: Step) -> Tensor:
    """(B, L) bool: eligible and not deferred; where a row has only deferred ones, those."""
    pool = step.eligible
    if (deferred := step.deferred) is not None:
        free = pool & ~deferred
        pool = torch.where(free.any(1, keepdim=True), free, pool)
    return pool


def tied(step: Step, score: Tensor, chosen: Tensor) -> Tensor:
    """(B,) how many of the chosen slots have exactly the score of one that was passed over: decided by position alone."""
    left = step.eligible & ~chosen
    if (deferred := step.deferred) is not None:
        left = left & (deferred == (deferred & chosen).any(1, keepdim=True))
    passed = score.masked_fill(~left, -torch.inf).amax(1, keepdim=True)
    rivals = chosen if deferred is None else chosen & (deferred == (deferred & chosen).any(1, keepdim=True))
    return (rivals & (score == passed)).sum(1)


@dataclass(frozen=True)
class Everything:
    """All slots in view at once; goes with a rule that opens most of them again."""

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return step.eligible

    def bound(self, n: int, steps: int) -> int:
        return 1


@dataclass(frozen=True)
class Quota:
    """As many of the best as the schedule says."""

    schedule: Schedule = Even()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        k = self.schedule(step)
        if step.reopened is not None:  # ReMDM: a round decodes as many as it reopened
            again = step.reopened.sum(1)
            k = torch.where(again > 0, again, k)
        return best(step, score, k)

    def bound(self, n: int, steps: int) -> int:
        return self.schedule.bound(n, steps)


@dataclass(frozen=True)
class Threshold:
    """Fast-dLLM: every slot with c~ >= tau, and always the best one. With a schedule, only among the best that it allows."""

    tau: float = 0.9
    schedule: Schedule | None = None

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        sure = prefer(step) & (score >= self.tau)
        if self.schedule is not None:
            sure = sure & best(step, score, self.schedule(step))
        return sure | best(step, score, torch.ones_like(step.opened))

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Factor:
    """Fast-dLLM's factor rule: the j-th best (from 0) needs c~ >= 1 - factor / (j + 2), the best needs nothing; all before
    the first that fails are decoded, and that one too where it is the last."""

    factor: float = 1.0

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        pool = prefer(step)
        n = pool.sum(1)
        c = score.gather(1, rank(step, score, pool))
        j = torch.arange(score.shape[1], device=score.device)
        need = torch.where(j == 0, -1.0, 1 - self.factor / (j + 2))
        fails = (c < need) & (j < n[:, None])
        t = torch.where(fails.any(1), fails.long().argmax(1), n)
        return best(step, score, (t + (t == n - 1)).clamp(min=1), pool)

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class EntropyBound:
    """EB-sampler: in the order of c~, as many as keep sum(H) - max(H) <= gamma, and always the best one."""

    gamma: float = 0.01
    needs: ClassVar = frozenset({"entropy"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        pool = prefer(step)
        h = step.seen.entropy.gather(1, rank(step, score, pool))
        within = (h.cumsum(1) - h.cummax(1).values <= self.gamma).long().cumprod(1).sum(1)
        return best(step, score, torch.minimum(within, pool.sum(1)).clamp(min=1), pool)

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class DynamicThreshold:
    """SDAR and TraDo: every slot with c~ > tau if there are at least as many as the schedule says, else that many of the best."""

    tau: float = 0.9
    schedule: Schedule = Even()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        sure, k = prefer(step) & (score > self.tau), self.schedule(step)
        return torch.where(sure.sum(1, keepdim=True) >= k[:, None], sure, best(step, score, k))

    def bound(self, n: int, steps: int) -> int:
        return self.schedule.bound(n, steps)


@dataclass(frozen=True)
class EntropyThreshold:
    """dParallel: every slot with H <= tau (nats), and always the best one by c~, which is the lowest H with NegativeEntropy."""

    tau: float = 0.5
    needs: ClassVar = frozenset({"entropy"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return (prefer(step) & (step.seen.entropy <= self.tau)) | best(step, score, torch.ones_like(step.opened))

    def bound(self, n: int, steps: int) -> int:
        return n
