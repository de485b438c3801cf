"""Decisions that rounding could flip: on a real model a batch differs from its rows alone only there."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unmask.decoding.reading import Prediction
from unmask.decoding.step import Step


class NearTies:
    """Counts decisions that rounding could flip: a score within `tolerance` of one passed over or of where the selection
    rule draws its line, and tokens whose two best candidates are that close. On a real model a batch differs from its
    rows alone only there."""

    needs = frozenset({"margin"})

    def __init__(self, tolerance: float = 1e-4):
        self.tolerance = tolerance
        self.counts: Tensor | None = None  # (B,)

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        passed = score.masked_fill(~(step.eligible & ~chosen), -torch.inf).amax(1)
        lowest = score.masked_fill(~chosen, torch.inf).amin(1)
        near = (lowest - passed <= self.tolerance).long() + (chosen & (step.seen.margin <= self.tolerance)).sum(1)
        for shift in (
            self.tolerance,
            -self.tolerance,
        ):  # all surer, or all less sure: would a threshold then choose differently?
            moved = replace(step, seen=_shifted(step.seen, shift))
            other = step.strategy.select(moved, score + shift)
            near = near + ((other != chosen) | (_revised(moved, score, chosen) != _revised(step, score, chosen))).any(1)
        self.counts = near if self.counts is None else self.counts + near


def _shifted(seen: Prediction, by: float) -> Prediction:
    """Every number a rule may draw a line through, moved: up where more means surer, down where it means less sure."""
    up = {name: getattr(seen, name) + by for name in ("p", "current", "gap") if getattr(seen, name) is not None}
    down = {name: getattr(seen, name) - by for name in ("entropy", "divergence") if getattr(seen, name) is not None}
    return replace(seen, **up, **down)


def _revised(step: Step, score: Tensor, chosen: Tensor) -> Tensor:
    """(B, L) the tokens after the step's revising rules, except those that ask for forwards of their own or resize."""
    if not step.strategy.revise:
        return step.canvas.response
    canvas = step.canvas.fill(chosen, step.seen.token, score, step.turn).remember(step.after.memory)
    for revise in step.strategy.revise:
        if not step.looks and not hasattr(revise, "longest"):
            canvas = revise(step, canvas)
    return canvas.response
