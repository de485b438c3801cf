"""Length: a response that grows or is cut while it is decoded. Revising rules, and what they build on."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.decoding.rules import Reviser
from unmask.decoding.rules.focus import whole
from unmask.decoding.rules.readiness import unit
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.step import Step


def arranged(canvas: Canvas, rows: Sequence[Sequence[int]]) -> Canvas:
    """Responses of new lengths: rows[r][j] is the slot that moves to j, or -1 for a new mask.

    Everything known about a slot moves with it. Shorter rows are padded on the right, where nothing is valid.
    """
    length, device = max(map(len, rows)), canvas.ids.device
    source = torch.tensor(
        [[*row, *[-2] * (length - len(row))] for row in rows], device=device
    )  # (B, L'); -2: past the end

    def moved(values: Tensor, new: float, behind: float) -> Tensor:  # (B, L, ...) -> (B, L', ...)
        at = source.view(*source.shape, *[1] * (values.dim() - 2))
        found = values.gather(1, at.clamp(min=0).expand(-1, -1, *values.shape[2:]))
        return found.masked_fill(at == -1, new).masked_fill(at == -2, behind)

    response = moved(canvas.response, canvas.vocab.mask_id, canvas.vocab.pad_id)
    slots = torch.arange(length, device=device)
    apart = (slots - slots[:, None]).abs().to(canvas.distance.dtype)  # (L', L')
    return replace(
        canvas,
        ids=torch.cat((canvas.ids[:, : canvas.start], response), 1),
        valid=torch.cat((canvas.valid[:, : canvas.start], source != -2), 1),
        fixed=moved(canvas.fixed, False, True),
        distance=apart.masked_fill(~moved(canvas.anchors, False, False)[:, None], torch.inf).amin(-1),
        settled=moved(canvas.settled, 0, 0),
        when=moved(canvas.when, -1, -1),
        memory={name: moved(kept, 0, 0) if kept.dim() > 1 else kept for name, kept in canvas.memory.items()},
        ragged=True,
    )


def ending(step: Step, w: int) -> Tensor:
    """(B,) E = the sum of p over the last w slots whose prediction is end-of-text, masked or not, divided by w."""
    ends = (step.seen.token == step.canvas.vocab.pad_id) & step.canvas.real
    last = ends & (ends.flip(1).cumsum(1).flip(1) <= w)
    return (step.seen.p * last).sum(1) / w


@dataclass(frozen=True)
class Resize(Reviser):
    """What the rules that change the length share. A response is at most `most` slots long; None: four times its
    initial length. It grows and is cut at its end, or before the anchor there, which keeps its distance from the end."""

    most: int | None = None
    needs: ClassVar = frozenset({"everywhere", "beyond"})  # E reads every slot
    reopens: ClassVar = True

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        whole(strategy, self)
        if bool((canvas.fixed & ~canvas.anchors).any()):
            raise UserError(
                "a response that changes its length cannot be infilled text or a template: they have a length of their own"
            )
        if self.longest(canvas.length) < canvas.length:
            raise UserError(
                f"most is the longest a response may become: {self.most} is less than the {canvas.length} it begins with"
            )

    def longest(self, length: int) -> int:
        return 4 * length if self.most is None else self.most

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"most": torch.full_like(canvas.when[:, 0], self.longest(canvas.length))}

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {}

    def resized(self, canvas: Canvas, rows: list[list[int]]) -> Canvas:
        if rows == _rows(canvas):
            return canvas
        most = int(canvas.memory["most"][0])
        if max(map(len, rows)) >= most:
            warnings.warn(f"a response has reached its limit of {most} tokens (most)", stacklevel=2)
        return arranged(canvas, rows)


def _rows(canvas: Canvas) -> list[list[int]]:
    """Every row's slots: what is edited and handed to `arranged`."""
    return [list(range(n)) for n in canvas.real.sum(1).tolist()]


def _end(canvas: Canvas, r: int, row: list[int]) -> int:
    """Where row r grows and is cut: before its last anchor, or at its end."""
    anchors = canvas.anchors[r].tolist()
    held = [j for j, slot in enumerate(row) if slot >= 0 and anchors[slot]]
    end = held[-1] if held else len(row)
    while end - 1 in held:
        end -= 1
    return end


def _cut(canvas: Canvas, r: int, row: list[int], n: int) -> list[int]:
    """The row without the last n slots before its end; fixed ones are spared, and at least one is left."""
    fixed, end = canvas.fixed[r].tolist(), _end(canvas, r, row)
    free = [j for j in range(end) if row[j] < 0 or not fixed[row[j]]]
    gone = set(free[1:][-n:] if n else ())
    return [slot for j, slot in enumerate(row) if j not in gone]


def _grown(canvas: Canvas, r: int, row: list[int], n: int) -> list[int]:
    end = _end(canvas, r, row)
    return [*row[:end], *[-1] * n, *row[end:]]


@dataclass(frozen=True)
class Expand(Resize):
    """DAEDAL: the length is found before decoding and adjusted during it. E: see `ending`.

    First, `by` masks are added as long as E < enough; then w / 2 end-of-text tokens after them, if there is no anchor.
    While decoding, at every step with E < more, the least sure mask in view becomes `by` masks if its p < low.
    """

    by: int = 8
    enough: float = 0.5
    more: float = 0.9
    low: float = 0.1
    w: int = 32

    def __post_init__(self) -> None:
        unit(enough=self.enough, more=self.more, low=self.low)
        if self.by < 1 or self.w < 1:
            raise UserError(f"by and w are at least 1, not {self.by} and {self.w}")

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {**super().memory(canvas), "sizing": torch.ones_like(canvas.fixed[:, 0])}

    def ready(self, sizing: list[bool], grows: list[bool]) -> list[bool]:
        """Rows that have found their length."""
        return [a and not b for a, b in zip(sizing, grows, strict=True)]

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        live, e = step.eligible.any(1), ending(step, self.w).tolist()
        sizing = (canvas.memory["sizing"] & live).tolist()
        canvas = canvas.clear((canvas.when == step.turn[:, None]) & canvas.memory["sizing"][:, None])  # not yet
        rows, most = _rows(canvas), int(canvas.memory["most"][0])
        grows = [sizing[r] and e[r] < self.enough and len(row) < most for r, row in enumerate(rows)]
        ready = self.ready(sizing, grows)
        left = (canvas.masked & step.inside).tolist()
        p, alive, ends = step.seen.p.tolist(), live.tolist(), [0] * len(rows)
        for r, row in enumerate(rows):
            if grows[r]:
                rows[r] = _grown(canvas, r, row, min(self.by, most - len(row)))
            elif ready[r] and not bool(canvas.anchors[r].any()):
                ends[r] = min(self.w // 2, most - len(row))
                rows[r] = row + [-1] * ends[r]
            elif alive[r] and not sizing[r] and e[r] < self.more and len(row) < most:
                open_ = [i for i in row if left[r][i]]
                if open_ and p[r][at := min(open_, key=lambda i: p[r][i])] < self.low:
                    longer = [*row[: at + 1], *[-1] * (self.by - 1), *row[at + 1 :]]
                    rows[r] = _cut(canvas, r, longer, max(0, len(longer) - most))
        still = canvas.memory["sizing"] & ~torch.tensor(ready, device=canvas.ids.device)
        canvas = self.resized(canvas, rows).remember({"sizing": still})
        behind = torch.zeros_like(canvas.masked)
        for r, row in enumerate(rows):
            behind[r, len(row) - ends[r] : len(row)] = True
        end = torch.full_like(canvas.response, canvas.vocab.pad_id)
        return canvas.fill(behind, end, torch.ones_like(canvas.settled), step.turn)

    def extra(self, n: int, steps: int) -> int:
        return 2 * self.longest(n) + self.by


@dataclass(frozen=True)
class Density(Resize):
    """rho-EOS: after each of the first `until` steps the response grows by K masks if E < low and is cut by K slots, whatever
    they hold, if E > high. E: see `ending`.

    K = by x 1 ("const"), s ("linear") or 2^(s - 1) ("exp"), at most 8, s = ceil(|E - line| / 0.1). A row that has reached
    its limit, or is done, is left alone.
    """

    by: int = 8
    low: float = 0.4
    high: float = 0.6
    w: int = 32
    curve: str = "exp"
    until: int = 64

    def __post_init__(self) -> None:
        unit(low=self.low, high=self.high)
        if self.low > self.high:
            raise UserError(f"low is at most high, not {self.low} and {self.high}")
        if self.by < 1 or self.w < 1 or self.until < 0:
            raise UserError("by and w are at least 1, and until at least 0")
        if self.curve not in ("const", "linear", "exp"):
            raise UserError(f"curve is const, linear or exp, not {self.curve!r}")

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {**super().memory(canvas), "frozen": torch.zeros_like(canvas.fixed[:, 0])}

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        at_limit = canvas.real.sum(1) >= canvas.memory["most"]
        return {"frozen": canvas.memory["frozen"] | (at_limit & step.eligible.any(1))}

    def slots(self, gap: Tensor) -> int:
        s = int(((gap + 1e-12) / 0.1).ceil())
        return self.by * min(8, {"const": 1, "linear": s, "exp": 2 ** (s - 1) if s else 0}[self.curve])

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        if step.index >= self.until:
            return canvas
        rows, most, e = _rows(canvas), int(canvas.memory["most"][0]), ending(step, self.w)
        free = (step.eligible.any(1) & ~canvas.memory["frozen"]).tolist()
        for r, row in enumerate(rows):
            if free[r] and e[r] < self.low:
                rows[r] = _grown(canvas, r, row, min(self.slots(self.low - e[r]), most - len(row)))
            elif free[r] and e[r] > self.high:
                rows[r] = _cut(canvas, r, row, self.slots(e[r] - self.high))
        return self.resized(canvas, rows)

    def extra(self, n: int, steps: int) -> int:
        return self.until + self.longest(n)
