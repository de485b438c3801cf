"""Which token stands at a slot: logits (n, V) -> its logit and its id, (n,) each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from unmask.decoding.canvas import Vocab
    from unmask.decoding.reading import Ask, Draws


@dataclass(frozen=True)
class Argmax:
    """The likeliest token (temperature 0). `forbid` holds ids that are never written, as if their logits were -inf."""

    forbid: tuple[int, ...] = ()

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return self.forbid

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
    option takes the first end-of-text id alone; `every` takes them all. Another choice can follow by `then`."""

    every: bool = False
    then: Argmax = Argmax()

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        return (*self.forbid, *self.then.forbidden(vocab), *(vocab.eot_ids if self.every else vocab.eot_ids[:1]))

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        return self.then(logits, rows, slots, ask, draws)
