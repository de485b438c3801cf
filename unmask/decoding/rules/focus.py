"""The slots in view where a block is not one slice for all rows: windows that move with what was decoded. (B, L) bool each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


def slots(canvas: Canvas) -> Tensor:  # (L,)
    return torch.arange(canvas.length, device=canvas.ids.device)


def first(where: Tensor) -> Tensor:
    """(B, 1): the first slot of `where` in every row, L where there is none."""
    return torch.where(where.any(1), where.long().argmax(1), where.shape[1])[:, None]


def whole(strategy: Strategy, rule: object) -> None:
    if getattr(strategy, "block", None) is not None:
        raise UserError(f"{type(rule).__name__} makes its own windows: it goes with block=None only")


@dataclass(frozen=True)
class Frontier:
    """The block of `size` slots that holds a row's first mask: no row waits for another's block. `aligned` counts them from the
    beginning of the prompt (dInfer's start_block_align), so that the first may be shorter."""

    size: int = 32
    aligned: bool = False

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is at least 1, not {self.size}")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        whole(strategy, self)

    def before(self, canvas: Canvas) -> Tensor | int:  # (B, 1)
        """Slots of the prompt that belong to the first block."""
        return canvas.valid[:, : canvas.start].sum(1, keepdim=True) % self.size if self.aligned else 0

    def block(self, canvas: Canvas) -> Tensor:  # (B, L) or (1, L): which block a slot is in
        return (slots(canvas)[None] + self.before(canvas)) // self.size

    def __call__(self, step: Step) -> Tensor:
        now = (first(step.canvas.masked) + self.before(step.canvas)) // self.size
        return self.block(step.canvas) == now


@dataclass(frozen=True)
class Behind:
    """All slots before the end of the block: slots of earlier blocks come back into view if reopened."""

    def __call__(self, step: Step) -> Tensor:
        return (slots(step.canvas) < step.window.stop).expand(step.canvas.rows, -1)


@dataclass(frozen=True)
class Sliding:
    """DSB and DCD: a row's first `open` masks, at most `span` slots from the first. It moves with every token decoded."""

    open: int = 32
    span: int | None = None

    def __post_init__(self) -> None:
        if self.open < 1 or (self.span is not None and self.span < 1):
            raise UserError(f"open and span are at least 1, not {self.open} and {self.span}")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        whole(strategy, self)

    def __call__(self, step: Step) -> Tensor:
        masked = step.canvas.masked
        inside = masked.cumsum(1) <= self.open
        return inside if self.span is None else inside & (slots(step.canvas) < first(masked) + self.span)


@dataclass(frozen=True)
class AdaBlock:
    """AdaBlock: a block ends with a line. The forward that begins it looks over the next quarter of the response for the
    delimiter the model is surest of; if that has p >= tau the block ends there, else after `size` slots.

    `delimiters` are token ids; where there are none, those that end a line in the model's vocabulary.
    """

    size: int = 32
    tau: float = 0.3
    delimiters: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 1 or self.tau < 0:
            raise UserError(f"size is at least 1 and tau not negative, not {self.size} and {self.tau}")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        whole(strategy, self)

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"stop": torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)}  # the block's end

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {"stop": self.stop(step).squeeze(1)}

    def stop(self, step: Step) -> Tensor:  # (B, 1)
        """Where the block ends; before the forward that begins a block, how far that forward has to look."""
        canvas, at = step.canvas, slots(step.canvas)
        begin, old, length = first(canvas.masked), canvas.memory["stop"][:, None], canvas.real.sum(1, keepdim=True)
        near = torch.minimum(begin + length // 4, length)  # (B, 1)
        plain = torch.minimum(begin + self.size, length)
        if step.seen.p is None:
            return torch.where(begin < old, old, torch.maximum(near, plain))
        ids = torch.tensor(self.delimiters or canvas.vocab.newline_ids, device=at.device, dtype=torch.long)
        ends = canvas.masked & (at < near) & torch.isin(step.seen.token, ids)
        surest = step.seen.p.masked_fill(~ends, -1).max(1, keepdim=True)
        found = ends.any(1, keepdim=True) & (surest.values >= self.tau)
        return torch.where(begin < old, old, torch.where(found, surest.indices + 1, plain))

    def __call__(self, step: Step) -> Tensor:
        return slots(step.canvas) < self.stop(step)


@dataclass(frozen=True)
class Onward:
    """Blocks of `size` slots, each counted from where the one before ended, which may be the end of a response that then
    grew (rho-EOS)."""

    size: int = 32

    def __post_init__(self) -> None:
        if self.size < 1:
            raise UserError(f"size is at least 1, not {self.size}")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        whole(strategy, self)

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"begin": torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)}  # of the block

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {"begin": self.begin(canvas)}

    def begin(self, canvas: Canvas) -> Tensor:  # (B,)
        """The first block from the present one on that holds a mask, or the row's end."""
        found = []
        lengths, masked = canvas.real.sum(1).tolist(), canvas.masked.tolist()
        for at, length, open_ in zip(canvas.memory["begin"].tolist(), lengths, masked, strict=True):
            at = min(at, length)
            while at < length and not any(open_[at : at + self.size]):
                at = min(at + self.size, length)
            found.append(at)
        return torch.tensor(found, device=canvas.ids.device)

    def __call__(self, step: Step) -> Tensor:
        at, begin = slots(step.canvas), self.begin(step.canvas)[:, None]
        return (at >= begin) & (at < begin + self.size)
