"""Decisions that rounding could turn: on a real model a batch differs from its rows alone only there."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from unmask.decoding.step import Step


class NearTies:
    """Counts decisions that rounding could turn: a score within `tolerance` of one passed over or of where the selection
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
        ):  # all surer, or all less sure: does a threshold then choose others?
            entropy = None if step.seen.entropy is None else step.seen.entropy - shift
            moved = replace(step, seen=replace(step.seen, entropy=entropy))
            near = near + (step.strategy.select(moved, score + shift) != chosen).any(1)
        self.counts = near if self.counts is None else self.counts + near
