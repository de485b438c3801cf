"""c -> c~ for the baselines, and what is deferred. The paper's own modulation is in algorithm.py.

A modifier takes a Step and a score (B, L) and returns a new score; what it multiplies must not be negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.step import Step


def is_eot(step: Step) -> Tensor:
    """(B, L) bool: the predicted token is an end-of-text token."""
    ends = torch.tensor(step.canvas.vocab.eot_ids, device=step.seen.token.device)
    return torch.isin(step.seen.token, ends)


@dataclass(frozen=True)
class SuppressEOT:
    """Direct EOT suppression: a slot whose prediction is end-of-text is chosen last (`defer`), at every temperature.

    The paper's "negative-infinity confidence", as a matter of rank: such slots keep their order among themselves.
    """

    def __call__(self, step: Step) -> Tensor:
        return is_eot(step)


@dataclass(frozen=True)
class RenormaliseEOT:
    """What LLaDA's published `confidence_eos_eot_inf` does in addition: the softmax leaves the end-of-text tokens out.

    c~_i = c_i / (1 - p_i(EOT)), and 0 where the prediction is one. Goes with `defer=SuppressEOT()`.
    """

    needs: ClassVar = frozenset({"eot"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return torch.where(is_eot(step), 0.0, score / (1 - step.seen.eot).clamp(min=1e-30))


def frequencies(step: Step, tokens: Tensor) -> Tensor:
    """(B, L) background frequency of `tokens`."""
    table = step.canvas.vocab.frequency
    if table is None:
        raise UserError(
            "UNCODE needs a token frequency table: make one with `unmask frequencies CORPUS --model M` and pass --frequencies FILE"
        )
    return table.to(tokens.device)[tokens]


@dataclass(frozen=True)
class Calibrate:
    """UNCODE's calibration: c~_i = min(-c_i ln(f(x_i) + 1e-9), alpha), f the background frequency of the token."""

    alpha: float = 10.0

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return (-score * torch.log(frequencies(step, step.seen.token) + 1e-9)).clamp(max=self.alpha)


@dataclass(frozen=True)
class PositionDecay:
    """UNCODE's trajectory prior: c~_i = c_i exp(-lambda_ (i - i0)).

    Published with i0 the start of the block; here it is the row's first eligible slot, which ranks the same (one factor
    for the whole row) and does not underflow late in a long response.
    """

    lambda_: float = 0.25

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        slots = torch.arange(step.canvas.length, device=score.device)
        first = torch.where(step.eligible, slots, step.canvas.length).amin(1, keepdim=True)
        return score * torch.exp(-self.lambda_ * (slots - first).clamp(min=0))


@dataclass(frozen=True)
class LinearPosition:
    """PC-Sampler's linear variant: (1 - weight) n_i + weight (S - j) / S, j the place in a window of S slots, n the
    calibrated confidence scaled to [0, 1] over *all* its slots, settled ones (with their tokens) included."""

    weight: float = 0.25
    alpha: float = 10.0
    needs: ClassVar = frozenset({"everywhere"})

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        tokens = torch.where(step.canvas.masked, step.seen.token, step.canvas.response)
        s = (-score * torch.log(frequencies(step, tokens) + 1e-9)).clamp(max=self.alpha)
        inside = s[:, step.window]
        low, high = inside.amin(1, keepdim=True), inside.amax(1, keepdim=True)
        size = step.window.stop - step.window.start
        place = torch.arange(step.canvas.length, device=score.device) - step.window.start
        return (1 - self.weight) * (s - low) / (high - low).clamp(min=1e-9) + self.weight * (size - place) / size


@dataclass(frozen=True)
class DampEOT:
    """EOSER: makes it hard to end early. c~_i = c_i (low + (high - low) p) where the prediction is end-of-text, p the progress."""

    low: float = 0.4
    high: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high:
            raise UserError(f"low and high are factors with 0 <= low <= high, not {self.low} and {self.high}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return torch.where(is_eot(step), score * (self.low + (self.high - self.low) * step.progress), score)


@dataclass(frozen=True)
class Jitter:
    """Dream's `alg_temp`: the k best by c~ are k slots drawn without replacement with probability softmax(c / temperature).

    c~_i = exp((c_i - max c) / temperature) / E_i, E_i ~ Exp(1): sorting by these is such a draw. Every row draws its own.
    """

    temperature: float = 0.1

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise UserError(f"the temperature of a draw is above 0, not {self.temperature}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        active = step.eligible.any(1).nonzero().squeeze(1)
        noise = torch.ones_like(score)
        noise[active] = -step.draws.uniform(active, step.canvas.length).log().to(score.dtype)
        top = score.masked_fill(~step.eligible, -torch.inf).amax(1, keepdim=True)
        return (((score - top) / self.temperature).exp() / noise).masked_fill(~step.eligible, 0)
