"""Which token goes into a slot: logits (n, V) -> its logit and its id, (n,) each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.decoding.canvas import Canvas, Vocab
    from unmask.decoding.reading import Ask, Draws


@dataclass(frozen=True)
class Argmax:
    """The likeliest token (temperature 0). `forbid` holds ids that are never written, as if their logits were -inf."""

    forbid: tuple[int, ...] = ()

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return self.forbid

    def adjust(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> Tensor:
        return logits

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        best = logits.max(-1)
        return best.values, best.indices


@dataclass(frozen=True)
class Gumbel(Argmax):
    """A sample at `temperature`, by Gumbel-max in float64 as LLaDA does it: argmax(l - T ln(-ln u)).
    The confidence stays that of the un-noised softmax. Every row draws from its own generator."""

    temperature: float = 1.0

    def noise(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> Tensor:
        return draws.uniform(rows, logits.shape[-1])

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        u = self.noise(logits, rows, slots, ask, draws)
        token = (logits.to(u.dtype) - self.temperature * (-u.log_()).log_()).argmax(-1)
        return logits.gather(-1, token[:, None]).squeeze(-1), token


@dataclass(frozen=True)
class ForbidEOT(Argmax):
    """`logits_eos_inf`: the end-of-text logit is -inf before the choice, so it is never written. LLaDA's published
    option takes only the first end-of-text id; `every` takes them all. `then` is the choice that follows."""

    every: bool = False
    then: Argmax = Argmax()

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return (*self.forbid, *self.then.forbidden(vocab), *(vocab.eot_ids if self.every else vocab.eot_ids[:1]))

    def adjust(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> Tensor:
        return self.then.adjust(logits, rows, slots, ask)

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        return self.then(logits, rows, slots, ask, draws)


@dataclass(frozen=True)
class Credit(Argmax):
    """CreditDecoding: a token that keeps coming up at a slot is believed sooner. At every forward, with x the likeliest token:

    credit_i(v) <- beta credit_i(v) + [v = x_i] c_i^gamma,   l'_i(v) = l_i(v) + alpha ln(1 + credit_i(v))

    Token and confidence are those of l', so what is written need not be the argmax of l. Credit begins with a slot's first forward.
    """

    alpha: float = 0.7
    gamma: float = 0.2
    beta: float = 0.8
    then: Argmax = Argmax()

    def __post_init__(self) -> None:
        if self.alpha < 0 or self.gamma < 0 or not 0 <= self.beta <= 1:
            raise UserError("credit needs alpha >= 0, gamma >= 0 and beta from 0 to 1")

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return (*self.forbid, *self.then.forbidden(vocab))

    def adjust(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> Tensor:
        kept = ask.read.kept["credit"]
        credit = self.beta * kept.at(rows, slots, ask, logits)  # (n, V)
        best = logits.max(-1, keepdim=True)
        c = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
        credit = credit.scatter_add(-1, best.indices, c**self.gamma)
        kept.put(rows, slots, credit)
        return self.then.adjust(logits + self.alpha * (1 + credit).log(), rows, slots, ask)

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        return self.then(logits, rows, slots, ask, draws)


@dataclass(frozen=True)
class EndPenalty(Argmax):
    """Saber on Dream: l_i(pad) + weight ln(1 - t_j + eps) at masked slots, t = linspace(1, eps, T + 1), j the forward: this
    makes it hard to end at first. The padding token is the first end-of-text token."""

    weight: float = 1.0
    eps: float = 1e-3
    then: Argmax = Argmax()

    def __post_init__(self) -> None:
        if self.weight < 0 or not 0 < self.eps < 1:
            raise UserError("the end penalty needs weight >= 0 and eps between 0 and 1")

    def check(self, strategy: Strategy, canvas: Canvas) -> None:
        if strategy.block is not None:  # rows wait for each other at a block's end, and the penalty counts forwards
            raise UserError("the end penalty goes with block=None only")

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return (*self.forbid, *self.then.forbidden(vocab))

    def adjust(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> Tensor:
        t = 1 - (1 - self.eps) * min(1.0, ask.forward / ask.read.steps)
        masked = ask.canvas.masked[rows, slots]
        logits = logits.clone()
        logits[:, ask.canvas.vocab.pad_id] += self.weight * math.log(1 - t + self.eps) * masked
        return self.then.adjust(logits, rows, slots, ask)

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        return self.then(logits, rows, slots, ask, draws)
