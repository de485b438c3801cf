"""c -> c~ by what is around a slot: support, which goes beyond the paper, and its nearest relatives in print.

B rows, P prompt slots, L response slots. Sums are taken in float64, so that a row scores the same in every batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.errors import UserError

if TYPE_CHECKING:
    from unmask.decoding.step import Step


@lru_cache(maxsize=32)
def _decay(rho: float, length: int, device: torch.device) -> Tensor:
    """(L, L) float64: what slot j, settled, gives slot i to its right, exp(-(i - j - 1) / rho) (1 - exp(-1 / rho)); else 0."""
    slots = torch.arange(length, device=device, dtype=torch.float64)
    gap = slots - slots[:, None] - 1
    return torch.where(gap >= 0, torch.exp(-gap.clamp(min=0) / rho), 0.0) * -math.expm1(-1 / rho)


@dataclass(frozen=True)
class Support:
    """Trust a slot as far as the text on one side of it is settled: unlike a left-to-right prior, this assumes no direction.

    left_i  = sum_{j < i} exp(-(i - j - 1) / rho) [slot j is settled text] / sum_{d >= 0} exp(-d / rho)
    right_i = the same from the right
    s_i     = max(left_i, right_i)
    c~_i    = c_i (eps + (1 - eps) s_i)

    The prompt is settled text to the left of slot 0; there is nothing after the last slot. Pinned slots and end-of-text are
    not text: an anchor is not reasoning.
    """

    rho: float = 3.0
    eps: float = 0.3

    def __post_init__(self) -> None:
        if not 0 < self.rho < math.inf:
            raise UserError(f"rho is a number above 0, not {self.rho}")
        if not 0 <= self.eps <= 1:
            raise UserError(f"eps is a number from 0 to 1, not {self.eps}")

    def factor(self, canvas: Canvas) -> Tensor:  # (B, L)
        ends = torch.tensor(canvas.vocab.eot_ids, device=canvas.ids.device)
        text = (~canvas.masked & ~canvas.fixed & ~torch.isin(canvas.response, ends)).double()
        decay = _decay(self.rho, canvas.length, canvas.ids.device)
        asked = canvas.valid[:, : canvas.start].sum(1, keepdim=True)  # left padding is not text
        slots = torch.arange(canvas.length, device=canvas.ids.device)
        left = text @ decay + torch.exp(-slots / self.rho) * -torch.expm1(-asked / self.rho)
        return (self.eps + (1 - self.eps) * torch.maximum(left, text @ decay.T)).float()

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        return score * self.factor(step.canvas)


def settled_before(canvas: Canvas, reach: int) -> Tensor:
    """(B, reach + L + reach) float: 1 where a slot is settled, with the end of the prompt before and nothing after."""
    prompt = canvas.valid[:, : canvas.start].float()
    prompt = F.pad(prompt, (max(0, reach - canvas.start), 0))[:, -reach:] if reach else prompt[:, :0]
    return F.pad(torch.cat((prompt, (~canvas.masked & canvas.real).float()), 1), (0, reach))


@dataclass(frozen=True)
class Neighbours:
    """Conv: c~_i = c_i tanh(m n_i), n_i the settled slots, the prompt's among them, in a window of `span` (odd) around i."""

    m: float = 1.0
    span: int = 9

    def __post_init__(self) -> None:
        if not 0 < self.m < math.inf:
            raise UserError(f"m is a number above 0, not {self.m}")
        if self.span < 1 or self.span % 2 == 0:
            raise UserError(f"span is an odd whole number, not {self.span}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        near = settled_before(step.canvas, self.span // 2).unfold(1, self.span, 1).sum(-1)
        return score * torch.tanh(self.m * near)


@dataclass(frozen=True)
class CertaintyDensity:
    """From d2Cache: c~_i = c_i sum_j g(i - j) [j is settled] / sum_j g(i - j), g Gaussian with `sigma`.

    j runs over the prompt, which counts as settled, and the response.
    """

    sigma: float = 10.0

    def __post_init__(self) -> None:
        if not 0 < self.sigma < math.inf:
            raise UserError(f"sigma is a number above 0, not {self.sigma}")

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        canvas = step.canvas
        here = torch.cat((canvas.valid[:, : canvas.start], canvas.real), 1).double()  # (B, P + L)
        slots = torch.arange(canvas.ids.shape[1], device=score.device)
        weight = torch.exp(-((slots - slots[canvas.start :, None]).double() ** 2) / (2 * self.sigma**2)).T  # (P + L, L)
        settled = here.clone()
        settled[:, canvas.start :] *= ~canvas.masked
        return score * ((settled @ weight) / (here @ weight).clamp(min=1e-30)).float()
