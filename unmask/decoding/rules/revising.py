"""Revise: the canvas after a step. A rule takes the Step and the canvas with the chosen slots filled and returns a canvas."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.decoding.rules import Reviser
from unmask.decoding.rules.focus import first, slots
from unmask.decoding.rules.readiness import unit
from unmask.errors import UserError, whole

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


def lowest(where: Tensor, value: Tensor, k: Tensor) -> Tensor:
    """(B, L) bool: the k (B,) slots of `where` with the smallest value in every row, the leftmost of equals."""
    order = value.sort(dim=1, stable=True).indices
    order = order.gather(1, (~where).gather(1, order).long().sort(dim=1, stable=True).indices)  # `where` first
    low = torch.arange(value.shape[1], device=value.device) < k[:, None]
    return torch.zeros_like(where).scatter(1, order, low) & where


def settled(step: Step, canvas: Canvas) -> Tensor:
    """(B, L) bool: slots in view that decoding has filled."""
    return ~canvas.masked & ~canvas.fixed & step.inside


def behind(canvas: Canvas) -> Tensor:
    """(B, 1): the first slot behind the last anchor, 0 where there is none."""
    return (canvas.anchors * (slots(canvas) + 1)).amax(1, keepdim=True)


@dataclass(frozen=True)
class EarlyAnswer(Reviser):
    """Prophet: once the answer is clear, everything is decoded at once.

    g = mean over the answer's slots of (largest - second largest logit) >= early, mid or late

    in the first, second and last third of the steps. The answer is the `n` slots after the anchor, or from slot `start` on,
    decoded or not.
    """

    early: float = 7.5
    mid: float = 5.0
    late: float = 2.5
    n: int = 5
    start: int | None = None
    needs: ClassVar = frozenset({"gap", "everywhere", "beyond"})

    def __post_init__(self) -> None:
        if self.n < 1:
            raise UserError(f"n, the answer's length, is at least 1, not {self.n}")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        if self.start is None and not bool(canvas.anchors.any(1).all()):
            raise UserError(
                "an early answer is looked for behind an anchor: add anchors=(SuffixAnchor(),), or say at which slot it begins"
            )

    def begins(self, canvas: Canvas) -> Tensor:  # (B, 1)
        if self.start is not None:
            return torch.full((canvas.rows, 1), self.start + canvas.length * (self.start < 0), device=canvas.ids.device)
        return behind(canvas)

    def clear(self, step: Step, canvas: Canvas) -> Tensor:  # (B, 1) bool
        at, begins = slots(canvas), self.begins(canvas)
        answer = (at >= begins) & (at < begins + self.n) & canvas.real  # (B, L)
        gap = (step.seen.gap * answer).sum(1, keepdim=True) / answer.sum(
            1, keepdim=True
        )  # NaN, so never, without a slot
        done = (step.turn[:, None] + 1) / step.budget
        return gap >= torch.where(done < 0.33, self.early, torch.where(done < 0.67, self.mid, self.late))

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        now = self.clear(step, step.canvas) & step.eligible.any(1, keepdim=True) & canvas.masked
        return canvas.fill(now, step.seen.token, step.seen.p, step.turn)


@dataclass(frozen=True)
class Finish(Reviser):
    """Once the answer is settled, everything is decoded at once: the answer can no longer change, only the rest of the text is
    worse. It is the `n` slots behind the anchor, the longest answer in tokens; near the end, as many as there are."""

    n: int = 2
    needs: ClassVar = frozenset({"beyond"})  # a block's forward, too, reads every masked slot

    def __post_init__(self) -> None:
        whole("n, the answer's length,", self.n, 1)

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        if not bool(canvas.anchors.any(1).all()):
            raise UserError(
                "an answer is waited for behind an anchor, and there is none: use a method that has one, such as sacm"
            )
        if found := reopening(strategy):
            raise UserError(
                f"an answer that is settled must stay: Finish does not go with {found}, which reopens slots"
            )

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        at, begins = slots(canvas), behind(canvas)
        answer = (at >= begins) & (at < begins + self.n) & canvas.real  # (B, L)
        settled = answer.any(1, keepdim=True) & ~(answer & canvas.masked).any(1, keepdim=True)
        now = settled & step.eligible.any(1, keepdim=True) & canvas.masked
        return canvas.fill(now, step.seen.token, step.seen.p, step.turn)


def reopening(strategy: Strategy) -> str | None:
    """The name of a rule that may change what is settled."""
    rules = (strategy.remask, *(rule for rule in strategy.revise if getattr(rule, "reopens", False)))
    return next((type(rule).__name__ for rule in rules if rule is not None), None)


@dataclass(frozen=True)
class FillEOT(Reviser):
    """dInfer's early stop: once a block is full and holds end-of-text, every slot after it becomes end-of-text too."""

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        end = canvas.vocab.pad_id
        here = step.inside & canvas.real
        written = (canvas.response == end) & here & ~canvas.fixed
        ended = written.any(1, keepdim=True) & ~(canvas.masked & here).any(1, keepdim=True)
        behind = slots(canvas) >= canvas.length - first(here.flip(1))  # after the last slot in view
        where = canvas.masked & behind & ended & step.eligible.any(1, keepdim=True)
        return canvas.fill(where, torch.full_like(canvas.response, end), step.seen.p, step.turn)


@dataclass(frozen=True)
class PadEOT(Reviser):
    """DCD: once an end-of-text token is written, every slot after it becomes padding, even settled ones. `pad` is a token id;
    None: end-of-text itself."""

    pad: int | None = None
    reopens: ClassVar = True

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        end, at = canvas.vocab.pad_id, slots(canvas)
        now = first((canvas.when == step.turn[:, None]) & (canvas.response == end))
        before = first((step.canvas.response == end) & ~canvas.fixed)  # an end written earlier stays
        where = (at > now) & (at < before) & ~canvas.fixed
        pad = canvas.vocab.pad_id if self.pad is None else self.pad
        return canvas.fill(where, torch.full_like(canvas.response, pad), step.seen.p, step.turn)


@dataclass(frozen=True)
class Verify(Reviser):
    """WINO: a token is taken back where the rest of the text, without it, would not have said it.

    b_i = p(x_i | all but slot i) < back, for the slots decoded by earlier steps of the window

    At most one fewer than the step before decoded, and none in a step that decodes a single slot, so every step gains.
    """

    back: float = 0.9
    needs: ClassVar = frozenset({"current", "everywhere", "apart"})
    reopens: ClassVar = True

    def __post_init__(self) -> None:
        unit(back=self.back)

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"decoded": torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)}  # by the last step

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {"decoded": (canvas.when == step.turn[:, None]).sum(1)}

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        now, last = canvas.memory["decoded"], step.canvas.memory["decoded"]
        doubtful = settled(step, step.canvas) & (step.seen.current < self.back) & (now > 1)[:, None]
        return canvas.clear(lowest(doubtful, step.seen.current, last - 1))

    def extra(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Refine(Reviser):
    """RCR: every step decodes all that is masked, then opens the least sure again, whenever they were decoded.

    floor(m g((i + 1) / S)) of m slots are open after step i of S. g: "linear" 1 - r, "cosine" cos(pi r / 2), "pow2" 1 - r^2
    (any power), "log" -log r / log m, "exp" 1 - m^(r - 1). How sure: the score a slot was last decoded with.
    """

    curve: str = "linear"
    reopens: ClassVar = True

    def __post_init__(self) -> None:
        self.open(4, 0.5)

    def open(self, m: int, r: float) -> int:
        if self.curve.startswith("pow"):
            try:
                g = 1 - r ** float(self.curve[3:])
            except ValueError:
                raise UserError(f"a power curve is pow2, pow0.5 and the like, not {self.curve!r}") from None
        elif self.curve in CURVES:
            g = CURVES[self.curve](r, math.log2(max(m, 2)))
        else:
            raise UserError(f"curve is linear, cosine, log, exp or pow2, not {self.curve!r}")
        return math.floor(m * min(1.0, max(1e-6, g)))

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        if step.index >= step.steps - 1:
            return canvas
        r = (step.index + 1) / step.steps
        k = torch.tensor([self.open(m, r) for m in step.opened.tolist()], device=canvas.ids.device)
        k = k * step.eligible.any(1)
        return canvas.clear(lowest(settled(step, canvas), canvas.settled, k))

    def extra(self, n: int, steps: int) -> int:
        return steps


CURVES = {
    "linear": lambda r, log_m: 1 - r,
    "cosine": lambda r, log_m: math.cos(r * math.pi / 2),
    "log": lambda r, log_m: -math.log2(r) / log_m,
    "exp": lambda r, log_m: 1 - 2 ** (-log_m * (1 - r)),
}


@dataclass(frozen=True)
class Backtrack(Reviser):
    """Saber: after a step that decoded a slots, the min(max(n / 2, a / 8), a - 1) settled ones that lost most are reopened,
    possibly including those just decoded, unless nothing is masked any more.

    By "change": c_i - its value one forward before, c the largest probability there. By "current": the probability of the
    slot's own token, without any adjustment (Dream's variant).
    """

    n: int = 2
    by: str = "change"
    reopens: ClassVar = True

    def __post_init__(self) -> None:
        if self.n < 1 or self.by not in ("change", "current"):
            raise UserError(f"n is at least 1 and by is change or current, not {self.n} and {self.by!r}")

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"everywhere", *(("current", "raw") if self.by == "current" else ())})

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {
            "last": torch.full_like(canvas.settled, -torch.inf)
        }  # c one forward before; slots new in view have gained most

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        seen = step.inside & step.eligible.any(1, keepdim=True)
        return {"last": torch.where(seen, step.seen.p, step.canvas.memory["last"])}

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        fresh, left = canvas.when == step.turn[:, None], (canvas.masked & step.inside).any(1)
        a = fresh.sum(1)
        k = torch.minimum(torch.maximum(-(-a // 8), torch.full_like(a, self.n // 2)), a - 1) * left
        if self.by == "change":
            worth = step.seen.p - torch.where(step.turn[:, None] > 0, step.canvas.memory["last"], 0.0)
        else:
            worth = torch.where(fresh, step.seen.raw, step.seen.current)
        return canvas.clear(lowest(settled(step, canvas), worth, k))

    def extra(self, n: int, steps: int) -> int:
        return n


@dataclass(frozen=True)
class Replace(Reviser):
    """CORE: in the middle half of a window's steps, every `every`-th of them, doubt the m settled slots with the smallest
    p1 - p2, all but the window's last `spare`: a forward with them masked says y. Where y is another token and p(y) >= sure,
    the k slots (and no more than the step decodes) with the smallest probability of their old token get y.

    What the step decodes was chosen on the old text; `joint` asks once more, on the new one.
    """

    k: int = 1
    every: int = 8
    m: int = 32
    joint: bool = False
    sure: float = 0.3
    spare: int = 16
    needs: ClassVar = frozenset({"margin", "current", "everywhere"})
    reopens: ClassVar = True

    def __post_init__(self) -> None:
        unit(sure=self.sure)
        if self.k < 1 or self.every < 1 or self.m < 1 or self.spare < 0:
            raise UserError("k, every and m are at least 1, and spare at least 0")

    def due(self, step: Step) -> bool:
        return step.index % self.every == 0 and step.steps // 4 <= step.index < 3 * step.steps // 4

    def doubted(self, step: Step) -> Tensor:  # (B, L) bool
        where = settled(step, step.canvas) & (slots(step.canvas) < step.window.stop - self.spare)
        where = where & step.eligible.any(1, keepdim=True)
        return lowest(where, step.seen.margin, torch.full_like(step.opened, self.m))

    def replaced(self, step: Step, canvas: Canvas) -> Tensor:  # (B, L) bool
        verified = step.looks[0]
        wrong = self.doubted(step) & (verified.token != step.canvas.response) & (verified.p >= self.sure)
        decodes = (canvas.when == step.turn[:, None]).sum(1)
        return lowest(wrong, verified.current, decodes.clamp(max=self.k))

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        if not step.looks and self.due(step) and bool((where := self.doubted(step)).any()):
            return step.canvas.clear(where), where
        if len(step.looks) == 1 and self.joint and bool((where := self.replaced(step, canvas)).any()):
            changed = step.canvas.fill(where, step.looks[0].token, step.looks[0].p, step.turn)
            return changed, step.eligible & where.any(1, keepdim=True)
        return None

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        if not step.looks:
            return canvas
        where, verified = self.replaced(step, canvas), step.looks[0]
        if len(step.looks) == 1:
            return canvas.fill(where, verified.token, verified.p, step.turn)
        changed = step.canvas.fill(where, verified.token, verified.p, step.turn)
        again = replace(step, canvas=changed, seen=step.seen.where(where.any(1, keepdim=True), step.looks[1]))
        scores = step.strategy.scores(again)
        chosen = step.strategy.select(replace(again, base=scores[0]), scores[-1])
        return changed.fill(chosen, again.seen.token, scores[-1], step.turn).remember(canvas.memory)

    def extra(self, n: int, steps: int) -> int:
        return steps * (1 + self.joint)
