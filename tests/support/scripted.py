"""Denoisers whose logits a test writes down, so that outcomes can be worked out by hand."""

from __future__ import annotations

import zlib
from dataclasses import replace

import torch
from torch import Tensor

from unmask.decoding.algorithm import Decoded, Strategy, decode
from unmask.decoding.canvas import Canvas, Vocab
from unmask.decoding.rules.anchors import EndMark
from unmask.decoding.running import run

MASK, EOT, TURN = 0, 1, 2  # ids of the scripted vocabulary
V = 12
VOCAB = Vocab(MASK, (EOT, TURN), torch.tensor([0.5, 0.2, 0.1] + [0.2 / 9] * 9), newline_ids=(4, 9))


class Scripted:
    """The same probabilities at every step: rows[slot] = {token: probability}; what is left over is spread evenly."""

    def __init__(self, *rows: dict[int, float]):
        table = torch.zeros(len(rows), V)
        for slot, given in enumerate(rows):
            table[slot] = (1 - sum(given.values())) / (V - len(given))
            for token, p in given.items():
                table[slot, token] = p
        self.log = table.clamp(min=1e-30).log()
        self.asks: list = []

    def logits(self, ask, rows: Tensor, slots: Tensor):
        self.asks.append(ask)
        return lambda part: self.log[slots[part]].clone()


class Hashed:
    """Logits that depend on all of a row's real tokens and the slot, and on nothing else: a row alone sees the same."""

    def __init__(self, sharpness: float = 3.0):
        self.sharpness, self.asks = sharpness, []

    def logits(self, ask, rows: Tensor, slots: Tensor):
        self.asks.append(ask)
        canvas, tables = ask.canvas, {}
        for row in rows.unique().tolist():
            real = canvas.ids[row][canvas.valid[row]].tolist()
            g = torch.Generator().manual_seed(zlib.crc32(repr(real).encode()))
            slots_ = (
                canvas.real[row].sum() if canvas.ragged else canvas.length
            )  # a row of a ragged batch knows its own length
            tables[row] = torch.randn(int(slots_), V, generator=g) * self.sharpness
        picked = torch.stack([tables[r][s] for r, s in zip(rows.tolist(), slots.tolist(), strict=True)])
        return lambda part: picked[part].clone()


class Placed(Hashed):
    """Logits that depend on a row's real tokens and on the position among them: a row keeps them wherever it stands, so decodes
    can share a forward. `forwards` holds the (rows, width) of each."""

    stateless = True

    def __init__(self, sharpness: float = 3.0):
        super().__init__(sharpness)
        self.forwards: list[tuple[int, int]] = []

    def begin(self, canvas: Canvas):
        return self

    def logits(self, ask, rows: Tensor, slots: Tensor):
        canvas, tables = ask.canvas, {}
        self.forwards.append(tuple(canvas.ids.shape))
        for row in rows.unique().tolist():
            real = canvas.ids[row][canvas.valid[row]].tolist()
            g = torch.Generator().manual_seed(zlib.crc32(repr(real).encode()))
            tables[row] = torch.randn(len(real), V, generator=g) * self.sharpness
        places = (canvas.valid.cumsum(1) - 1)[rows, canvas.start + slots]
        picked = torch.stack([tables[r][i] for r, i in zip(rows.tolist(), places.tolist(), strict=True)])
        return lambda part: picked[part].clone()


def canvas(length: int, prompts=((5, 6, 7),), vocab: Vocab = VOCAB) -> Canvas:
    return Canvas.blank(prompts, length, vocab)


def encode(text: str) -> list[int]:
    """One token a word, never a special one."""
    return [3 + zlib.crc32(word.encode()) % (V - 3) for word in text.split()]


def decoded(denoiser, start: Canvas, strategy: Strategy, steps: int | None = None, **options) -> Decoded:
    return run(decode(start, strategy, steps, **options), denoiser)


def fitted(strategy: Strategy, at: int = -4) -> Strategy:
    """The strategy with its anchor or template where a short response has room for it."""
    places = [{"near": -1} if isinstance(anchor, EndMark) else {"at": at} for anchor in strategy.anchors]
    return replace(
        strategy, anchors=tuple(replace(a, **place) for a, place in zip(strategy.anchors, places, strict=True))
    )
