"""How likely a target is under a masked diffusion model, by LLaDA's estimate.

    log p(x | c) >= E_l E_S [ L / l * sum_{i in S} log p(x_i | c, x outside S) ],   l ~ U{1..L},  S of l of the L slots

B rows, each a target with the slots of one S masked; L target tokens. Averaged over all S this is the mean, over all orders
of the tokens, of the chain rule. Where there are no more than `samples` sets (2^L - 1), all are used: exact, no draws.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby, islice, product
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Prediction
from unmask.decoding.running import answer

if TYPE_CHECKING:
    from unmask.models.model import Model


class Pair(NamedTuple):
    context: list[int]
    target: list[int]


def masks(length: int, samples: int, seed: int) -> Iterator[tuple[list[bool], float]]:
    """Sets S (L,) with their weights; the weights of any one slot's sets add up to 1 (on average, where they are drawn)."""
    if 2**length - 1 <= samples:
        for chosen in product((False, True), repeat=length):
            if size := sum(chosen):
                yield list(chosen), 1 / (size * comb(length, size))
        return
    generator = torch.Generator().manual_seed(seed)
    first = int(torch.randint(length, (), generator=generator))
    for sample in range(samples):
        size = 1 + (first + sample * length // samples) % length  # each uniform, and together spread evenly over 1..L
        inside = torch.randperm(length, generator=generator) < size
        yield inside.tolist(), length / (size * samples)


def log_likelihoods(
    model: Model, pairs: Sequence[Pair], *, samples: int = 128, seed: int = 0, batch: int = 8, cfg: float = 0.0
) -> Iterator[tuple[int, float]]:
    """(index, log p(target | context)) of every pair, as they are done, pairs of like length together. What is drawn for
    a pair depends only on the seed and the pair."""
    order = sorted(range(len(pairs)), key=lambda i: (len(pairs[i].target), len(pairs[i].context), i))
    totals, left = dict.fromkeys(order, 0.0), dict.fromkeys(order, 0)  # left: rows not yet scored
    for length, group in groupby(order, key=lambda i: len(pairs[i].target)):
        if not length:
            yield from ((i, 0.0) for i in group)
            continue
        rows = _rows(pairs, group, samples, seed, left)
        while some := list(islice(rows, batch)):
            scores = _score(model, [(pairs[i], inside) for i, inside, _ in some], cfg)
            for (i, _, weight), score in zip(some, scores, strict=True):
                totals[i] += weight * score
                left[i] -= 1
                if not left[i]:
                    yield i, totals[i]


def _rows(
    pairs: Sequence[Pair], group: Iterator[int], samples: int, seed: int, left: dict[int, int]
) -> Iterator[tuple[int, list[bool], float]]:
    for i in group:
        own = int.from_bytes(hashlib.sha256(repr((seed, *pairs[i])).encode()).digest()[:7], "big")
        found = list(masks(len(pairs[i].target), samples, own))
        left[i] = len(found)
        yield from ((i, *row) for row in found)


@torch.inference_mode()
def _score(model: Model, rows: Sequence[tuple[Pair, list[bool]]], cfg: float) -> list[float]:
    """sum_{i in S} log p(x_i | c, x outside S) of each row, by one forward."""
    targets = torch.tensor([pair.target for pair, _ in rows], device=model.device)  # (B, L)
    where = torch.tensor([inside for _, inside in rows], device=model.device)  # (B, L)
    canvas = Canvas.blank([pair.context for pair, _ in rows], targets.shape[1], model.vocab, model.device)
    canvas = canvas.with_response(targets.masked_fill(where, model.vocab.mask_id))

    def read(logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> dict[str, Tensor]:
        logits = logits.float()
        return {
            "p": logits.gather(-1, targets[rows, slots][:, None]).squeeze(-1) - logits.logsumexp(-1)
        }  # the log of it

    ask = Ask(canvas, slice(0, canvas.length), where, read, 0)  # type: ignore[arg-type]
    found: Prediction = answer(model.denoiser(cfg).begin(canvas), ask)
    return found.p.double().sum(1).tolist()
