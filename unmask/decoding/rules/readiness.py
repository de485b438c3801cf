"""Select, ready when stable: slots whose prediction has settled down, or whose neighbours allow it. See also selection.py."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.rules import Schedule, SelectionRule
from unmask.decoding.rules.schedules import Even
from unmask.decoding.rules.selection import Threshold, best, prefer, rank
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


def peak(where: Tensor, score: Tensor) -> Tensor:
    """(B, L) bool: the best slot of `where` in every row, the leftmost of equals."""
    first = score.masked_fill(~where, -torch.inf).sort(dim=1, descending=True, stable=True).indices[:, :1]
    return torch.zeros_like(where).scatter(1, first, True) & where


def unit(**values: float | None) -> None:
    """Settings that are probabilities, checked by name."""
    for name, value in values.items():
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{name} is a probability, from 0 to 1, not {value}")


@dataclass(frozen=True)
class Stable:
    """KLASS: a slot is ready once it is sure and has come to rest.

    ready_i = c~_i > tau and KL(p_i^t || p_i^{t-1}) < kl at each of the last `history` forwards

    All that are ready are decoded, or only the surest of them ("max_conf") or the calmest ("min_kl"); where none is, as many of
    the best as the schedule says. In a block nothing is ready before forward number `history`.
    """

    tau: float = 0.9
    kl: float = 0.01
    history: int = 2
    pick: str = "all"
    schedule: Schedule = Even()
    needs: ClassVar = frozenset({"divergence", "beyond"})  # KL is watched at every masked slot, not only in the block

    def __post_init__(self) -> None:
        unit(tau=self.tau)
        if self.kl <= 0 or self.history < 1:
            raise UserError(f"kl is above 0 and history at least 1, not {self.kl} and {self.history}")
        if self.pick not in ("all", "max_conf", "min_kl"):
            raise UserError(f"pick is all, max_conf or min_kl, not {self.pick!r}")

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"calm": torch.zeros_like(canvas.when)}  # forwards in a row with a divergence below kl

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {"calm": self.calm(step)}

    def calm(self, step: Step) -> Tensor:  # (B, L)
        before = step.canvas.memory["calm"]
        now = torch.where(step.seen.divergence < self.kl, before + 1, 0)
        return now if step.seen.read is None else torch.where(step.seen.read, now, before)

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        ready = prefer(step) & (score > self.tau) & (self.calm(step) >= self.history)
        ready = ready & (step.index >= self.history - 1)
        some = ready.any(1, keepdim=True)
        if self.pick != "all":
            ready = peak(ready, score if self.pick == "max_conf" else -step.seen.divergence)
        return torch.where(some, ready, best(step, score, self.schedule(step)))

    def bound(self, n: int, steps: int) -> int:
        return max(n, self.schedule.bound(n, steps))


@dataclass(frozen=True)
class Leap:
    """LocalLeap: c~ >= tau as in Threshold, and c~ >= relaxed within `radius` slots of one that passes; always the best one."""

    tau: float = 0.9
    relaxed: float = 0.75
    radius: int = 4

    def __post_init__(self) -> None:
        unit(tau=self.tau, relaxed=self.relaxed)
        if self.radius < 0:
            raise UserError(f"radius must not be negative, and is {self.radius}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        pool = prefer(step)
        sure = pool & (score >= self.tau)
        near = F.max_pool1d(sure.float(), 2 * self.radius + 1, stride=1, padding=self.radius).bool()
        return sure | (pool & near & (score >= self.relaxed)) | best(step, score, torch.ones_like(step.opened))

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Hierarchy:
    """dInfer's hierarchical rule: the best one in every run of adjacent masks if c~ > low, all slots with c~ > tau, and
    always the best of all. Written tokens cut the runs in two, so that neighbours are seldom decoded together.
    None switches a threshold off: low=None takes every run's best, tau=None nothing else."""

    tau: float | None = 0.9
    low: float | None = 0.4

    def __post_init__(self) -> None:
        unit(tau=self.tau, low=self.low)

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        pool = prefer(step)
        run = (~pool).long().cumsum(1)  # (B, L): the same number within a run
        top = score.new_full((len(score), score.shape[1] + 1), -torch.inf)
        top = top.scatter_reduce(1, run, score.masked_fill(~pool, -torch.inf), "amax")
        chosen = pool & (score == top.gather(1, run)) & (score > (-torch.inf if self.low is None else self.low))
        if self.tau is not None:
            chosen = chosen | (pool & (score > self.tau))
        return chosen | best(step, score, torch.ones_like(step.opened))

    def bound(self, n: int, steps: int) -> int:
        return n


@lru_cache(maxsize=256)
def levels(n: int, kind: str, base: int, skip: int) -> tuple[tuple[int, ...], ...]:
    """The offsets 0..n-1 of a block by the step that decodes them."""
    found: list[list[int]] = []
    if kind == "dilated":
        stride, left = (n // base**skip if base > 1 else 1), set(range(n))
        while stride >= 1:
            found.append(sorted(i for i in left if i % stride == 0))
            left -= set(found[-1])
            stride = stride // base if base > 1 else 0
        found.append(sorted(left))
    else:
        spans = [(0, n - 1)]
        while spans:
            found.append(sorted((a + b) // 2 for a, b in spans))
            halves = [half for a, b in spans for half in ((a, (a + b) // 2 - 1), ((a + b) // 2 + 1, b))]
            spans = [(a, b) for a, b in halves if a <= b]
    found = [level for level in found if level]
    if len(found) > 1 and len(found[-1]) < len(found[-2]):
        found[-2:] = [sorted(found[-2] + found[-1])]
    return tuple(map(tuple, found))


@dataclass(frozen=True)
class Levels:
    """DUS: a block in a fixed order of strides n / base, n / base^2, ..., 1 ("dilated"; the first `skip` powers are left
    out) or of midpoints ("binary"), one level per forward. Slots with c~ < tau wait for the last level, which takes all."""

    kind: str = "dilated"
    base: int = 2
    skip: int = 1
    tau: float = 0.0
    idles: ClassVar = True

    def __post_init__(self) -> None:
        unit(tau=self.tau)
        if self.kind not in ("dilated", "binary"):
            raise UserError(f"kind is dilated or binary, not {self.kind!r}")
        if self.base < 1 or self.skip < 0:
            raise UserError(f"base is at least 1 and skip at least 0, not {self.base} and {self.skip}")

    def level(self, step: Step) -> tuple[Tensor, int]:
        """(L,) the level of every slot of the window (-1 outside), and the last one."""
        found = levels(step.window.stop - step.window.start, self.kind, self.base, self.skip)
        of = torch.full((step.canvas.length,), -1)
        for number, offsets in enumerate(found):
            of[[step.window.start + i for i in offsets]] = number
        return of.to(step.canvas.ids.device), len(found) - 1

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        of, last = self.level(step)
        if step.index >= last:
            return step.eligible
        return step.eligible & (of == step.index) & (score >= self.tau)

    def bound(self, n: int, steps: int) -> int:
        return len(levels(n, self.kind, self.base, self.skip))


@dataclass(frozen=True)
class Spaced:
    """DUS's spacing filter: of what `then` chooses, best first, only slots at least max(2, m stride / n) from those kept,
    m the masks in a block of n slots. Close neighbours wait, especially while the block is mostly empty."""

    then: SelectionRule = Threshold()
    stride: int = 8

    def __post_init__(self) -> None:
        if self.stride < 0:
            raise UserError(f"stride must not be negative, and is {self.stride}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        chosen = self.then(step, score)
        if not self.stride:
            return chosen
        masks, size = step.eligible.sum(1).tolist(), step.window.stop - step.window.start
        out = torch.zeros_like(chosen)
        for row, order in enumerate(rank(step, score).tolist()):
            gap, wanted = max(2, masks[row] * self.stride // size), chosen[row].tolist()
            kept: list[int] = []
            for slot in order:
                if wanted[slot] and all(abs(slot - other) >= gap for other in kept):
                    kept.append(slot)
            out[row, kept] = True
        return out

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Wide:
    """WINO's draft: all with c~ > tau, but at most `share` of the masks in view (no less than `least`, no more than `most`);
    where none passes, the best. Bold, since what it gets wrong is taken back: goes with Verify."""

    tau: float = 0.6
    share: float = 0.7
    least: int = 5
    most: int = 20

    def __post_init__(self) -> None:
        unit(tau=self.tau, share=self.share)
        if not 1 <= self.least <= self.most:
            raise UserError(
                f"least and most are whole numbers with 1 <= least <= most, not {self.least} and {self.most}"
            )

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        pool = prefer(step)
        sure = pool & (score > self.tau)
        cap = (self.share * step.eligible.sum(1).double()).long().clamp(self.least, self.most)
        return best(step, score, torch.minimum(sure.sum(1), cap).clamp(min=1), pool)

    def bound(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class AboveMean:
    """Saber: all slots surer than what has been decoded so far: c~ > the mean score at commit over all slots ever decoded (1 where
    there is none); at least the n best. `first`: a slot's first commit counts, not its last (Dream's variant)."""

    n: int = 2
    first: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n is at least 1, not {self.n}")

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"commits": torch.zeros_like(canvas.settled)}  # 0 where there was none

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        before = step.canvas.memory["commits"]
        new = canvas.when == step.turn[:, None]
        return {"commits": torch.where(new & (before == 0) if self.first else new, canvas.settled, before)}

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        commits = step.canvas.memory["commits"] * step.inside
        ever = (commits != 0).sum(1)
        tau = torch.where(ever > 0, commits.sum(1) / ever.clamp(min=1), 1.0)
        sure = prefer(step) & (score > tau[:, None])
        return torch.where(
            sure.sum(1, keepdim=True) < self.n, best(step, score, torch.full_like(step.opened, self.n)), sure
        )

    def bound(self, n: int, steps: int) -> int:
        return n
