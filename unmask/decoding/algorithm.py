"""Algorithm 1 of the paper: what a method is, the loop, and the two rules that make SACM.

B rows, L response slots. A rule takes a Step and returns a new tensor of shape (B, L).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise
from typing import Any

import torch
from torch import Tensor

from unmask.decoding import settings
from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Draws, Prediction, Reader
from unmask.decoding.rules import Anchor, ConfidenceRule, Focus, Modifier, Remasker, Reviser, SelectionRule, TokenRule
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
    # Fields added later are part of the recipe only where they are used: the hash of an older one stays as it was.
    focus: Focus | None = field(default=None, repr=False)  # the slots in view; None: those of the window
    revise: tuple[Reviser, ...] = field(default=(), repr=False)  # after each step: reopen, rewrite, end, resize

    def __repr__(self) -> str:
        return settings.text(self)

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
        ends = [round(steps * edge / length) for edge in edges]
        return [(slice(*edge), max(1, b - a)) for edge, (a, b) in zip(pairwise(edges), pairwise(ends), strict=True)]

    def steps(self, length: int, given: int | None = None) -> int:
        """T: what was given, else the method's pace."""
        return max(1, round(self.pace * length)) if given is None else given

    def score(self, step: Step) -> tuple[Tensor, Tensor]:
        """c and c~, (B, L) each."""
        base = score = self.confidence(step)  # c_i = C(z, i)
        for modify in self.modifiers:
            score = modify(replace(step, base=base), score)  # c~_i
        return base, score

    def bound(self, length: int, steps: int) -> int:
        """The most forwards a decode can take."""
        total = 0
        for n, s in ((w.stop - w.start, s) for w, s in self.windows(length, steps)):
            total += self.select.bound(n, s) + (self.remask.extra(s) if self.remask else 0) + (n if self.focus else 0)
            total += sum(rule.extra(n, s) for rule in self.revise)
        return total


@dataclass(frozen=True)
class Decoded:
    canvas: Canvas
    forwards: Tensor  # (B,) NFE: forwards in which the row had something to ask
    ties: Tensor  # (B,) selections decided by a tie
    chosen: Tensor  # (B,) selections in all
    work: Tensor | None = None  # (B,) multiplications, where whoever ran it has counted them


def decode(
    canvas: Canvas, strategy: Strategy, steps: int | None = None, seed: int | Sequence[int] = 0, watch: Sequence[Watch] = ()
) -> Generator[Ask, Prediction, Decoded]:  # fmt: skip
    """Algorithm 1 as a generator: it yields what it asks of the model and is sent the prediction (see `run`)."""
    steps = strategy.steps(canvas.length, steps)
    settings.check(strategy, steps, canvas)
    draws, needs, remembering = Draws(seed, canvas), settings.needs(strategy, watch), settings.remembering(strategy)
    read = Reader(strategy.read, needs, draws, steps)
    canvas = canvas.remember({name: value for rule in remembering for name, value in rule.memory(canvas).items()})
    forwards = ties = total = torch.zeros(canvas.rows, dtype=torch.long, device=canvas.ids.device)
    forward, score, most = 0, None, strategy.bound(settings.longest(strategy, canvas.length), steps)
    for window, budget in strategy.windows(canvas.length, steps):
        opened = canvas.masked[:, window].sum(1)
        for index in count():  # for t = T, ..., 1
            step = Step(canvas, strategy, window, index, budget, opened, forward, draws, steps, forwards)
            if strategy.remask:
                if (look := strategy.remask.asks(step)) is not None:
                    seen = yield Ask(canvas, window, look, read, forward, score)
                    forward, forwards = forward + 1, forwards + look.any(1)
                    step = replace(step, seen=seen, forward=forward, turn=forwards)
                reopened = strategy.remask(step)
                step = replace(step, canvas=canvas.clear(reopened), reopened=reopened)
            eligible = step.eligible  # M
            if not bool(eligible.any()):
                break
            where = step.asked(needs) if needs & {"everywhere", "beyond"} else eligible
            seen = yield Ask(step.canvas, window, where, read, forward, score)  # x^0 of z = M_theta(x)
            step = replace(step, seen=seen)
            base, score = settings.told(strategy.score, step)  # c_i = C(z, i), c~_i
            step = replace(step, base=base)
            if not bool(torch.isfinite(torch.where(eligible, score + step.seen.p, 0)).all()):
                raise settings.unsound(step)
            chosen = settings.told(strategy.select, step, score)  # U = Select(c~)
            canvas = step.canvas.fill(chosen, step.seen.token, score, forwards)  # x_i <- x^0_i, i in U
            forward, forwards = forward + 1, forwards + eligible.any(1)
            if forward > most:
                raise UserError("the selection rule chooses too little: no end is in sight; it must choose one in time")
            if remembering:
                canvas = canvas.remember({k: v for rule in remembering for k, v in rule.remember(step, canvas).items()})
            for revise in strategy.revise:
                while (further := revise.asks(step, canvas)) is not None:  # some must look before they judge
                    seen = yield Ask(further[0], window, further[1], read, forward, score, step.canvas.response)
                    step = replace(step, looks=(*step.looks, seen))
                    forward, forwards = forward + 1, forwards + further[1].any(1)
                canvas = revise(step, canvas)
            for watcher in watch:
                watcher(replace(step, after=canvas), score, chosen)
            ties, total = ties + tied(step, score, chosen), total + chosen.sum(1)
            if canvas.length != step.canvas.length:  # a method that resizes has one window, all of the response
                window, score = slice(0, canvas.length), settings.padded(score, canvas.length)
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
