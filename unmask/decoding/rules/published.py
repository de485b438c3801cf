"""What published code does but a method here would not: rules that exist only for parity with recordings.

Most draw one tensor of random numbers for the whole batch, so that a row's tokens depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.decoding.rules import Reviser, SelectionRule
from unmask.decoding.rules.focus import Frontier, Sliding, first, slots
from unmask.decoding.rules.lengths import Expand
from unmask.decoding.rules.readiness import Levels
from unmask.decoding.rules.revising import EarlyAnswer, FillEOT, PadEOT, Replace, lowest, settled
from unmask.decoding.rules.schedules import Timesteps
from unmask.decoding.rules.selection import Threshold
from unmask.decoding.rules.tokens import Gumbel

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas
    from unmask.decoding.reading import Ask, Draws
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class PublishedGumbel(Gumbel):
    """As the published loop draws: noise for all of (B, P + L, V) from one generator. For parity only: it costs that
    memory, and a row's tokens depend on the batch."""

    def noise(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> Tensor:
        u = draws.whole(ask.forward, *ask.canvas.ids.shape, logits.shape[-1], dtype=torch.float64)
        return u[rows, ask.canvas.start + slots]


@dataclass(frozen=True)
class PublishedUniform:
    """LLaDA's `remasking="random"` as published: numbers for all of (B, P + L) from one generator. For parity only."""

    def __call__(self, step: Step) -> Tensor:
        return step.draws.whole(step.forward, *step.canvas.ids.shape)[:, step.canvas.start :]


@dataclass(frozen=True)
class PublishedChance:
    """Dream's `alg="origin"` draws: one number per masked slot, in order, for all rows from one generator.
    c_i = -u_i; goes with the selection rule Chance."""

    def __call__(self, step: Step) -> Tensor:
        score = torch.zeros_like(step.seen.p)
        masked = step.eligible
        score[masked] = -step.draws.whole(step.forward, int(masked.sum()))
        return score


@dataclass(frozen=True)
class Chance:
    """Dream's `alg="origin"`: each masked slot is decoded with probability 1 - t_{i+1} / t_i. Goes with PublishedChance."""

    schedule: Timesteps = Timesteps()
    idles: ClassVar = True

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return step.eligible & (-score < self.schedule.leave(step))

    def bound(self, n: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class LeadingSlot:
    """Fast-dLLM on Dream: the first forward of a block (the full one) decodes the block's first slot alone, then `then`."""

    then: SelectionRule = Threshold()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        if step.index:
            return self.then(step, score)
        slots = torch.arange(step.canvas.length, device=score.device)
        first = torch.where(step.eligible, slots, step.canvas.length).amin(1, keepdim=True)
        return slots == first

    def bound(self, n: int, steps: int) -> int:
        return 1 + self.then.bound(n, steps)


# ---------------------------------------------------------------- the zoo: masks left, hollow forwards, rows that wait


@dataclass(frozen=True)
class Table:
    """LLaDA's step table to the letter: m // S, one more in the first m % S steps, whatever was decoded meanwhile."""

    idles: ClassVar = True

    def __call__(self, step: Step) -> Tensor:
        return step.opened // step.steps + (step.index < step.opened % step.steps)

    def bound(self, n: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class Hurried:
    """A block ends with its budget; masks still in it stay for good (KLASS with T < L, DUS's samplers)."""

    def __call__(self, step: Step) -> Tensor:
        at = slots(step.canvas)
        here = (at >= step.window.start) & (at < step.window.stop) & (step.index < step.steps)
        return here.expand(step.canvas.rows, -1)


@dataclass(frozen=True)
class LostLevels(Levels):
    """DUS as published: what a level sends back is in no later level and stays masked. `certain` sends back the slots with an
    entropy below it, that is, the sure ones ("high_entropy")."""

    certain: float | None = None
    needs: ClassVar = frozenset({"entropy"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        of, last = self.level(step)
        keep = score >= self.tau if self.certain is None else step.seen.entropy >= self.certain
        return step.eligible & (of == step.index) & (keep | (step.index == last))


@dataclass(frozen=True)
class Unhurried(EarlyAnswer):
    """Prophet as published: a block makes all its forwards, even those that can decode nothing, and may end in one of them."""

    def forwards(self, step: Step) -> list[Step]:
        return [step, *(replace(step, seen=look, turn=step.turn + i + 1) for i, look in enumerate(step.looks))]

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        full = not bool(canvas.masked[:, step.window].any())
        left = step.steps - 1 - step.index - len(step.looks)
        return (
            (canvas, canvas.real)
            if full and left > 0 and not bool(self.clear(self.forwards(step)[-1], canvas))
            else None
        )

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        last = self.forwards(step)[-1]
        now = canvas.masked & self.clear(last, canvas)
        return canvas.fill(now, last.seen.token, last.seen.p, last.turn)

    def extra(self, n: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class FillEOTTogether(FillEOT):
    """dInfer's early stop in a batch: a row that is done waits for the block's other rows before the rest is filled."""

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        if bool((canvas.masked & step.inside).any()):
            return canvas
        written = ((canvas.response == canvas.vocab.pad_id) & step.inside).any(1, keepdim=True)
        where = canvas.masked & written
        return canvas.fill(where, torch.full_like(canvas.response, canvas.vocab.pad_id), step.seen.p, step.turn)


@dataclass(frozen=True)
class Together(Frontier):
    """dInfer's blocks: a row that has filled one waits for the others. `stop` (early_stop off): once every row has written
    end-of-text in an earlier block, it stops all the same and leaves masks in the others."""

    stop: bool = False

    def __call__(self, step: Step) -> Tensor:
        canvas, block = step.canvas, self.block(step.canvas)
        now = (first(canvas.masked) + self.before(canvas)).min() // self.size
        ended = ((canvas.response == canvas.vocab.pad_id) & (block < now)).any(1).all() & self.stop
        return (block == now) & ~ended


@dataclass(frozen=True)
class Unrolled(Reviser):
    """dInfer checks whether a block is full only after max(1, min(masks // tokens, most)) forwards; some find nothing to do."""

    most: int = 4
    tokens: int = 8

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {
            "unrolled": torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)
        }  # forwards left of a round

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        left = step.canvas.memory["unrolled"]
        fresh = (step.eligible.sum() // self.tokens).clamp(1, self.most)
        return {"unrolled": torch.where(left > 0, left, fresh) - 1}

    def full(self, step: Step, canvas: Canvas) -> bool:
        return not bool((canvas.masked & step.inside).any())

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        again = self.full(step, canvas) and int(canvas.memory["unrolled"][0]) > len(step.looks)
        return (canvas, canvas.real & step.inside) if again else None

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        return canvas.remember(self.memory(canvas)) if self.full(step, canvas) else canvas

    def extra(self, n: int, steps: int) -> int:
        return self.most


@dataclass(frozen=True)
class Hollow(Reviser):
    """A block makes all its forwards, even those that can decode nothing (RCR)."""

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        full = not bool((canvas.masked & step.inside).any())
        return (canvas, canvas.real) if full and step.index + len(step.looks) < step.steps - 1 else None

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        return canvas

    def extra(self, n: int, steps: int) -> int:
        return steps


@dataclass(frozen=True)
class HollowReplace(Replace):
    """CORE as published: a block makes all its forwards, and verifies even in those that can decode nothing."""

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        if (look := super().asks(step, canvas)) is not None or bool((canvas.masked & step.inside).any()):
            return look
        index, seen, looks = step.index, step.seen, list(step.looks)
        if looks and self.due(step):
            looks.pop(0)
        while index < step.steps - 1:  # walk past what was already looked at, to what comes next
            index += 1
            if not looks:
                return canvas, canvas.real
            seen = looks.pop(0)
            past = replace(step, canvas=canvas, index=index, seen=seen)
            if self.due(past) and bool((where := self.doubted(past)).any()):
                if not looks:
                    return canvas.clear(where), where
                looks.pop(0)
        return None

    def doubted(self, step: Step) -> Tensor:
        where = settled(step, step.canvas) & (slots(step.canvas) < step.window.stop - self.spare)
        return lowest(where, step.seen.margin, torch.full_like(step.opened, self.m))

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        return super().__call__(replace(step, looks=step.looks[:1] if self.due(step) else ()), canvas)


@dataclass(frozen=True)
class SharedSliding(Sliding):
    """DCD's rows share one window: its end moves by what the fullest row has decoded, to where the last row ends."""

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        return {"right": torch.full_like(canvas.when[:, 0], self.open)}

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        return {"right": self.right(step.canvas).expand(canvas.rows)}

    def right(self, canvas: Canvas) -> Tensor:
        at, old = slots(canvas), canvas.memory["right"].max()
        most = (canvas.masked & (at < old)).sum(1).max()
        left = first(canvas.masked).min()
        ends = first((canvas.response == canvas.vocab.pad_id) & ~canvas.fixed).max()
        reach = torch.minimum(old + self.open - most, ends)
        return reach if self.span is None else torch.minimum(reach, left + self.span)

    def __call__(self, step: Step) -> Tensor:
        return (slots(step.canvas) < self.right(step.canvas)).expand(step.canvas.rows, -1)


@dataclass(frozen=True)
class PadBlocks(PadEOT):
    """DCD's static window: when a block is full in all rows, a row that has written end-of-text is padded from there on, that
    token included."""

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        if bool((canvas.masked & step.inside).any()):
            return canvas
        end = first((canvas.response == canvas.vocab.pad_id) & ~canvas.fixed)
        pad = torch.full_like(canvas.response, canvas.vocab.pad_id if self.pad is None else self.pad)
        return canvas.fill((slots(canvas) >= end) & ~canvas.fixed, pad, step.seen.p, step.turn)


@dataclass(frozen=True)
class ExpandTogether(Expand):
    """DAEDAL's rows begin to decode together, once all have found their length."""

    def ready(self, sizing: list[bool], grows: list[bool]) -> list[bool]:
        return [a and not any(grows) for a in sizing]
