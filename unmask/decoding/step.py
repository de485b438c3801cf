"""What the loop hands to the rules: one iteration, read-only. B rows, L response slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Draws, Prediction

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy


@dataclass(frozen=True)
class Step:
    """One iteration, read-only: the canvas before it, where it stands in its window, and what the model predicts.

    `Any` beside a type: None until the loop has set it, which whoever reads it need not check."""

    canvas: Canvas
    strategy: Strategy
    window: slice  # the block being decoded; all of the response when fully non-AR
    index: int  # iterations this window has had
    steps: int  # iterations this window was given
    opened: Tensor  # (B,) masks in the window when it began
    forward: int  # forwards so far, over all windows
    draws: Draws
    budget: int = 1  # T, the steps of the whole decode
    turn: Tensor | Any = None  # (B,) forwards so far in which the row had something to ask
    seen: Prediction = Prediction()
    reopened: Tensor | None = None  # (B, L) bool: what remasking opened again in this iteration
    base: Tensor | Any = None  # (B, L) the confidence before any modifier; set for the watchers
    scores: Sequence[Tensor] = ()  # (B, L) each: c, what each modifier made of it, c~ at the end; set for the watchers
    after: Canvas | Any = None  # the canvas this iteration leaves; set for the watchers
    looks: tuple[Prediction, ...] = ()  # what the revising rules asked for beyond `seen`

    @cached_property
    def inside(self) -> Tensor:  # (1 or B, L) bool: the slots in view
        if self.strategy.focus:
            return self.strategy.focus(self)
        slots = torch.arange(self.canvas.length, device=self.canvas.ids.device)[None]
        return (slots >= self.window.start) & (slots < self.window.stop)

    @cached_property
    def eligible(self) -> Tensor:  # (B, L) bool: masked slots in view
        return self.canvas.masked & self.inside

    def asked(self, needs: frozenset[str]) -> Tensor:
        """(B, L) bool: where the model is asked; "everywhere" includes settled slots, "beyond" those out of view."""
        kind = self.canvas.real if "everywhere" in needs else self.canvas.masked
        return (kind if "beyond" in needs else kind & self.inside) & self.eligible.any(1, keepdim=True)

    @property
    def progress(self) -> Tensor:  # (B, 1): p = 1 - |M| / L, over the whole response, even with blocks
        length = self.canvas.real.sum(1, keepdim=True) if self.canvas.ragged else self.canvas.length
        return 1 - self.canvas.masked.sum(1, keepdim=True) / length

    @cached_property
    def deferred(self) -> Tensor | None:  # (B, L) bool
        return self.strategy.defer(self) if self.strategy.defer else None
