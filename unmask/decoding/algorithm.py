"""Algorithm 1 of the paper: what a method is, the loop, and the two rules that make SACM.

B rows, L response slots. A rule takes a Step and returns a new tensor of shape (B, L).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor

from unmask.decoding import settings
from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Draws, Prediction, Reader
from unmask.decoding.rules import Anchor, ConfidenceRule, Modifier, Remasker, SelectionRule, TokenRule
from unmask.decoding.rules.confidence import TopProbability
from unmask.decoding.rules.selection import Quota, tied
from unmask.decoding.rules.tokens import Argmax
from unmask.decoding.step import Step
from unmask.errors import UserError

Encode = Callable[[str], list[int]]
Watch = Callable[[Step, Tensor, Tensor], None]


@dataclass(frozen=True)
class Strategy:
    """A decoding method: the REQUIRE lines of Algorithm 1."""

    read: TokenRule = Argmax()  # logits -> token
    confidence: ConfidenceRule = TopProbability()  # C
    modifiers: tuple[Modifier, ...] = ()  # c -> c~, in order
    select: SelectionRule = Quota()  # Select: c~ -> chosen
    anchors: tuple[Anchor, ...] = ()  # write fixed tokens before decoding
    defer: ConfidenceRule | None = None  # chosen last: a matter of rank, never a number that gets multiplied
    remask: Remasker | None = None  # settled slots to reopen (ReMDM)
    block: int | None = None  # None: fully non-autoregressive
    pace: float = 0.5  # steps per response token: T = L / 2

    def with_(self, **changes: Any) -> Strategy:
        """The same method with other settings: with_(block=64), with_(kappa=12)."""
        return settings.changed(self, changes)

    def prepare(self, canvas: Canvas, encode: Encode) -> Canvas:
        for anchor in self.anchors:
            canvas = anchor(canvas, encode)
        return canvas

    def windows(self, length: int, steps: int) -> list[tuple[slice, int]]:
        """Blocks from left to right, each with its share of the steps, at least one; the last may be shorter."""
        edges = [*range(0, length, self.block or length), length]
        return [
            (slice(a, b), max(1, round(steps * b / length) - round(steps * a / length))) for a, b in pairwise(edges)
        ]

    def steps(self, length: int, given: int | None = None) -> int:
        """T: what was given, else the method's pace."""
        return max(1, round(self.pace * length)) if given is None else given

    def bound(self, length: int, steps: int) -> int:
        """The most forwards a decode can take."""
        extra = self.remask.extra if self.remask else lambda steps: 0
        return sum(self.select.bound(w.stop - w.start, s) + extra(s) for w, s in self.windows(length, steps))


@dataclass(frozen=True)
class Decoded:
    canvas: Canvas
    forwards: Tensor  # (B,) NFE: forwards in which the row had something to ask
    ties: Tensor  # (B,) selections decided by a tie
    chosen: Tensor  # (B,) selections in all


def decode(
    canvas: Canvas, strategy: Strategy, steps: int | None = None, seed: int | Sequence[int] = 0, watch: Sequence[Watch] = ()
) -> Generator[Ask, Prediction, Decoded]:  # fmt: skip
    """Algorithm 1 as a generator: it yields what it asks of the model and is sent the prediction (see `run`)."""
    steps = strategy.steps(canvas.length, steps)
    settings.check(strategy, steps)
    draws, needs = Draws(seed, canvas), settings.needs(strategy, watch)
    read = Reader(strategy.read, needs, draws)
    forwards = ties = total = torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)
    forward = 0
    for window, budget in strategy.windows(canvas.length, steps):
        opened = canvas.masked[:, window].sum(1)
        for index in count():  # for t = T, ..., 1
            step = Step(canvas, strategy, window, index, budget, opened, forward, draws)
            if strategy.remask:
                if (look := strategy.remask.asks(step)) is not None:
                    step = replace(step, seen=(yield Ask(canvas, window, look, read, forward)), forward=forward + 1)
                    forward, forwards = forward + 1, forwards + look.any(1)
                reopened = strategy.remask(step)
                step = replace(step, canvas=canvas.clear(reopened), reopened=reopened)
            eligible = step.eligible  # M
            if not bool(eligible.any()):
                break
            where = step.inside & eligible.any(1, keepdim=True) if "everywhere" in needs else eligible
            step = replace(step, seen=(yield Ask(step.canvas, window, where, read, forward)))  # z = M_theta(x), x^0
            score = strategy.confidence(step)  # c_i = C(z, i)
            step = replace(step, base=score)
            for modify in strategy.modifiers:
                score = modify(step, score)  # c~_i
            if not bool(torch.isfinite(torch.where(eligible, score + step.seen.p, 0)).all()):
                raise UserError("the model gave NaN or infinite logits; check its weights, or load it in float32")
            chosen = strategy.select(step, score)  # U = Select(c~)
            canvas = step.canvas.fill(chosen, step.seen.token, score, forward)  # x_i <- x^0_i, i in U
            for watcher in watch:
                watcher(step, score, chosen)
            forward, forwards = forward + 1, forwards + eligible.any(1)
            ties, total = ties + tied(step, score, chosen), total + chosen.sum(1)
    return Decoded(canvas, forwards, ties, total)


@dataclass(frozen=True)
class SuffixAnchor:
    """InsertAnchor: `text`, encoded alone as it stands, its first token at slot `at` (from the end if negative)."""

    text: str = "The answer is"
    at: int = -20

    def __call__(self, canvas: Canvas, encode: Encode) -> Canvas:
        return canvas.pin(encode(self.text), self.at, anchor=True)


@dataclass(frozen=True)
class AnchorModulation:
    """Damp the confidence near an anchor, strongly at first, less as decoding progresses.

    w_i  = min{1, beta * max_{a in A} exp(-|i - a| / kappa)}
    p    = 1 - |M| / L
    c~_i = c_i * (1 - w_i * (1 - p)^gamma)        gamma = 0: without progress dependence
    """

    kappa: float = 14
    beta: float = 1.3
    gamma: float = 0.85

    def weight(self, canvas: Canvas) -> Tensor:  # (B, L)
        return (self.beta * torch.exp(-canvas.distance / self.kappa)).clamp(max=1)

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return score * (1 - self.weight(step.canvas) * (1 - step.progress) ** self.gamma)
