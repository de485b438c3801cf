"""Select: which eligible slots are decoded now; and ReMDM's remasking. A rule takes a Step and c~ (B, L), returns (B, L) bool.

`bound(n, steps)` is the most forwards a window of n slots can take under the rule.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.step import Step


def rank(step: Step, score: Tensor) -> Tensor:
    """(B, L) slots, best first: eligible before deferred before the rest, then by score; ties go to the leftmost."""
    order = score.sort(dim=1, descending=True, stable=True).indices
    group = (~step.eligible).long() * 2
    if (deferred := step.deferred) is not None:
        group = group + (deferred & step.eligible)
    return order.gather(1, group.gather(1, order).sort(dim=1, stable=True).indices)


def best(step: Step, score: Tensor, k: Tensor) -> Tensor:
    """The k (B,) best eligible slots of every row."""
    chosen = torch.zeros_like(step.eligible)
    first = torch.arange(score.shape[1], device=score.device) < k[:, None]
    return chosen.scatter(1, rank(step, score), first) & step.eligible


def prefer(step: Step) -> Tensor:
    """(B, L) bool: eligible and not deferred; where a row has only deferred ones, those."""
    eligible = step.eligible
    if (deferred := step.deferred) is None:
        return eligible
    free = eligible & ~deferred
    return torch.where(free.any(1, keepdim=True), free, eligible)


def tied(step: Step, score: Tensor, chosen: Tensor) -> Tensor:
    """(B,) how many of the chosen slots have the very score of one that was passed over: decided by place alone."""
    left = step.eligible & ~chosen
    if (deferred := step.deferred) is not None:
        left = left & (deferred == (deferred & chosen).any(1, keepdim=True))
    passed = score.masked_fill(~left, -torch.inf).amax(1, keepdim=True)
    rivals = chosen if deferred is None else chosen & (deferred == (deferred & chosen).any(1, keepdim=True))
    return (rivals & (score == passed)).sum(1)


# How many slots to decode now, (B,). `step.opened` counts the window's masks when it began.


@dataclass(frozen=True)
class Even:
    """ceil(masks left / steps left): LLaDA's step table, and it absorbs anchors, odd blocks and remasking."""

    def __call__(self, step: Step) -> Tensor:
        return -(-step.eligible.sum(1) // max(1, step.steps - step.index))

    def bound(self, n: int, steps: int) -> int:
        return min(n, steps)


@dataclass(frozen=True)
class Fixed:
    """`tokens` a step, whatever the budget."""

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

    def __call__(self, step: Step) -> Tensor:
        left = step.eligible.sum(1)
        return left - step.opened // step.steps * max(0, step.steps - 1 - step.index)

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Timesteps:
    """Dream's: int(masks (1 - t_{i+1} / t_i)) on t = linspace(1, eps) in float32, all that is left at the last step.
    The first steps may decode nothing; their forwards are made all the same, as published."""

    eps: float = 1e-3

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
    Here a straight line."""

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
    """s t / (1 + (s - 1) t): few tokens a step at first for s > 1 (LaViDa's default), many for s < 1."""

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


@dataclass(frozen=True)
class Quota:
    """As many of the best as the schedule says."""

    schedule: Any = Even()

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
    """Fast-dLLM: every slot with c~ >= tau, and always the best one. With a schedule, only among as many as it says."""

    tau: float = 0.9
    schedule: Any = None

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
        c = score.gather(1, rank(step, score))
        j = torch.arange(score.shape[1], device=score.device)
        need = torch.where(j == 0, -1.0, 1 - self.factor / (j + 2))
        fails = (c < need) & (j < n[:, None])
        t = torch.where(fails.any(1), fails.long().argmax(1), n - 1)
        return best(step, score, torch.where((t == 0) | (t == n - 1), t + 1, t))

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class EntropyBound:
    """EB-sampler: in the order of c~, as many as keep sum(H) - max(H) <= gamma, and always the best one."""

    gamma: float = 0.01
    needs: ClassVar = frozenset({"entropy"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        h = step.seen.entropy.gather(1, rank(step, score))
        within = (h.cumsum(1) - h.cummax(1).values <= self.gamma).long().cumprod(1).sum(1)
        return best(step, score, torch.minimum(within.clamp(min=1), prefer(step).sum(1)))

    def bound(self, n: int, steps: int) -> int:
        return n


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

    then: Any = Threshold()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        if step.index:
            return self.then(step, score)
        slots = torch.arange(step.canvas.length, device=score.device)
        first = torch.where(step.eligible, slots, step.canvas.length).amin(1, keepdim=True)
        return slots == first

    def bound(self, n: int, steps: int) -> int:
        return 1 + self.then.bound(n, steps)


@dataclass(frozen=True)
class Remask:
    """ReMDM: once `after` of a window is decoded, `rounds` times reopen the k least sure settled slots and decode k.

    fresh: sureness is read anew by a forward of its own (the port in PC-Sampler); otherwise it is the score they were
    committed with (the official code, whose rounds are as many as the window's steps: rounds=None).
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
        begun = (step.opened * self.after).long() // step.strategy.select.schedule(step).clamp(min=1)
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
