"""What the loop hands to the rules: one iteration, read-only. B rows, L response slots."""

from __future__ import annotations

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
    """One iteration, read-only: the canvas before it, where it stands in its window, and what the model predicts."""

    canvas: Canvas
    strategy: Strategy
    window: slice  # the block being decoded; all of the response when fully non-AR
    index: int  # iterations this window has had
    steps: int  # iterations this window was given
    opened: Tensor  # (B,) masks in the window when it began
    forward: int  # forwards so far, over all windows
    draws: Draws
    seen: Prediction = Prediction()
    reopened: Tensor | None = None  # (B, L) bool: what remasking opened again in this iteration
    base: Tensor | Any = None  # (B, L) the confidence before any modifier; set for the watchers

    @cached_property
    def inside(self) -> Tensor:  # (1, L) bool
        slots = torch.arange(self.canvas.length, device=self.canvas.ids.device)[None]
        return (slots >= self.window.start) & (slots < self.window.stop)

    @cached_property
    def eligible(self) -> Tensor:  # (B, L) bool: masked slots of the window
        return self.canvas.masked & self.inside

    @property
    def progress(self) -> Tensor:  # (B, 1): p = 1 - |M| / L, over the whole response also under blocks
        return 1 - self.canvas.masked.sum(1, keepdim=True) / self.canvas.length

    @cached_property
    def deferred(self) -> Tensor | None:  # (B, L) bool
        return self.strategy.defer(self) if self.strategy.defer else None
