"""C: how ready each asked slot is. A rule takes a Step and returns (B, L); `needs` names what it reads from a Prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unmask.decoding.step import Step


@dataclass(frozen=True)
class TopProbability:
    """c_i = max_v p_i(v), also known as low-confidence remasking (MaskGIT, LLaDA)."""

    def __call__(self, step: Step) -> Tensor:
        return step.seen.p


@dataclass(frozen=True)
class TopMargin:
    """c_i = p1 - p2, the gap between the two likeliest tokens."""

    needs: ClassVar = frozenset({"margin"})

    def __call__(self, step: Step) -> Tensor:
        return step.seen.margin


@dataclass(frozen=True)
class NegativeEntropy:
    """c_i = -H_i. To modify it, use Certainty: what a modifier multiplies must not be negative."""

    needs: ClassVar = frozenset({"entropy"})
    negative: ClassVar = True

    def __call__(self, step: Step) -> Tensor:
        return -step.seen.entropy


@dataclass(frozen=True)
class Certainty:
    """c_i = 1 - H_i / log V, in [0, 1]. Ties at 1 in float32 where H is small, so NegativeEntropy ranks better alone."""

    needs: ClassVar = frozenset({"certainty"})

    def __call__(self, step: Step) -> Tensor:
        return step.seen.certainty


@dataclass(frozen=True)
class Uniform:
    """A random order: each row draws L numbers from its own generator whenever it has something to decode."""

    def __call__(self, step: Step) -> Tensor:
        active = step.eligible.any(1).nonzero().squeeze(1)
        score = torch.zeros_like(step.seen.p)
        score[active] = step.draws.uniform(active, step.canvas.length).float()
        return score
