"""Revise: the canvas after a step. A rule takes the Step and the canvas with the chosen slots filled and returns a canvas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.decoding.rules import Reviser
from unmask.decoding.rules.focus import first, slots
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class EarlyAnswer(Reviser):
    """Prophet: once the answer is clear, everything is decoded at once.

    g = mean over the answer's slots of (largest - second largest logit) >= early, mid or late

    in the first, second and last third of the steps. The answer is the `n` slots behind the anchor, or from slot `start` on,
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

    def check(self, strategy: object, canvas: Canvas) -> None:
        if self.start is None and not bool(canvas.anchors.any(1).all()):
            raise UserError("an early answer is looked for behind an anchor: add anchors=(SuffixAnchor(),), or say at which slot it begins")

    def begins(self, canvas: Canvas) -> Tensor:  # (B, 1)
        if self.start is not None:
            return torch.full((canvas.rows, 1), self.start + canvas.length * (self.start < 0), device=canvas.ids.device)
        return (canvas.anchors * (slots(canvas) + 1)).amax(1, keepdim=True)

    def clear(self, step: Step, canvas: Canvas) -> Tensor:  # (B, 1) bool
        at, begins = slots(canvas), self.begins(canvas)
        answer = (at >= begins) & (at < begins + self.n) & canvas.real  # (B, L)
        gap = (step.seen.gap * answer).sum(1, keepdim=True) / answer.sum(1, keepdim=True)  # NaN, so never, without a slot
        done = (step.forward + 1) / step.budget
        return gap >= (self.early if done < 0.33 else self.mid if done < 0.67 else self.late)

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        now = self.clear(step, step.canvas) & step.eligible.any(1, keepdim=True) & canvas.masked
        return canvas.fill(now, step.seen.token, step.seen.p, step.forward)


@dataclass(frozen=True)
class FillEOT(Reviser):
    """dInfer's early stop: once a block is full and holds end-of-text, every slot behind it becomes end-of-text too."""

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        end = canvas.vocab.pad_id
        here = step.inside & canvas.real
        written = (canvas.response == end) & here & ~canvas.fixed
        ended = written.any(1, keepdim=True) & ~(canvas.masked & here).any(1, keepdim=True)
        behind = slots(canvas) >= canvas.length - first(here.flip(1))  # after the last slot in view
        where = canvas.masked & behind & ended & step.eligible.any(1, keepdim=True)
        return canvas.fill(where, torch.full_like(canvas.response, end), step.seen.p, step.forward)
