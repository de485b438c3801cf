"""Text as it settles, for a terminal: a watcher, called with (step, score, chosen) after every forward that decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

import torch
from torch import Tensor

from unmask.decoding.step import Step
from unmask.generation import cut
from unmask.models.model import Model


class Stream:
    """Writes the first row's text as it settles: the longest beginning without a mask. If settled text may still change,
    only at the end."""

    def __init__(self, model: Model, out: TextIO, stop: Sequence[str] = ()):
        self.model, self.out, self.stop, self.written = model, out, stop, ""

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        if step.strategy.remask or step.strategy.revise:
            return
        response = torch.where(chosen, step.seen.token, step.canvas.response)[0]
        masks = (response == step.canvas.vocab.mask_id).nonzero()
        text = self.model.text(response[: int(masks[0]) if len(masks) else None])
        text = cut(text, self.stop).rstrip("\ufffd")  # half a character waits for its other half
        if text.startswith(self.written):
            self._write(text)

    def end(self, text: str) -> None:
        """What is left of the final text, and a line break."""
        if text.startswith(self.written):
            self._write(text)
        elif not self.written.startswith(text):
            self.out.write("\n" + text)
        self.out.write("\n")

    def _write(self, text: str) -> None:
        self.out.write(text[len(self.written) :])
        self.out.flush()
        self.written = text
