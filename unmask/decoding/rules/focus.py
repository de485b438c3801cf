"""The slots in view where a block is not one slice for all rows: windows that move with what was decoded. (B, L) bool each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


def slots(canvas: Canvas) -> Tensor:  # (L,)
    return torch.arange(canvas.length, device=canvas.ids.device)


def first(where: Tensor) -> Tensor:
    """(B, 1): the first slot of `where` in every row, L where there is none."""
    return torch.where(where.any(1), where.long().argmax(1), where.shape[1])[:, None]


def whole(strategy: object, rule: object) -> None:
    if getattr(strategy, "block", None) is not None:
        raise UserError(f"{type(rule).__name__} makes its own windows: it goes with block=None only")


@dataclass(frozen=True)
class Frontier:
    """The block of `size` slots that holds a row's first mask: blocks that no row waits for. `aligned` counts them from the
    beginning of the prompt (dInfer's start_block_align), so that the first may be shorter."""

    size: int = 32
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is at least 1, not {self.size}")

    def check(self, strategy: object, canvas: Canvas) -> None:
        whole(strategy, self)

    def __call__(self, step: Step) -> Tensor:
        canvas, at = step.canvas, slots(step.canvas)
        before = canvas.valid[:, : canvas.start].sum(1, keepdim=True) % self.size if self.aligned else 0
        return (at + before) // self.size == (first(canvas.masked) + before) // self.size


@dataclass(frozen=True)
class Behind:
    """All slots before the end of the block: those of earlier blocks that were opened again come into view."""

    def __call__(self, step: Step) -> Tensor:
        return (slots(step.canvas) < step.window.stop).expand(step.canvas.rows, -1)
