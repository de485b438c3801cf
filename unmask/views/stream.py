"""Text as it settles: a watcher, called with (step, score, chosen) after every forward that decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from unmask.decoding.step import Step
from unmask.models.model import Model


class Out(Protocol):
    def write(self, text: str, /) -> object: ...
    def flush(self) -> None: ...


class Stream:
    """Writes a row's text as it settles: the longest beginning without a mask, as far as it cannot change any more. If settled
    text may still change, nothing before the end. What is written always joins to the final text."""

    def __init__(self, model: Model, out: Out, stop: Sequence[str] = (), row: int = 0, slots: int | None = None):
        self.model, self.out, self.stop, self.row, self.slots = model, out, [s for s in stop if s], row, slots
        self.written = ""
        self.known = 0  # slots of the settled beginning
        self.ended = False  # a stop string has settled: nothing more will be written

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        cleaned = getattr(
            self.model.tokenizer, "clean_up_tokenization_spaces", False
        )  # what follows may change a space
        if step.strategy.remask or step.strategy.revise or cleaned or self.ended:
            return
        response = step.after.response[self.row, : self.slots].tolist()
        mask = step.canvas.vocab.mask_id
        known = response.index(mask) if mask in response else len(response)
        if known > self.known:
            self.known = known
            text, self.ended = settled(self.model.text(response[:known]), self.stop)
            self._write(text)

    def end(self, text: str, last: str = "\n") -> None:
        """What is left of the final text, and a line break."""
        self._write(text)
        self.out.write(last)

    def _write(self, text: str) -> None:
        if text.startswith(self.written) and text != self.written:
            self.out.write(text[len(self.written) :])
            self.out.flush()
            self.written = text


def settled(text: str, stop: Sequence[str]) -> tuple[str, bool]:
    """How much of the beginning of a text can be shown before the rest is known, and whether a stop string ends it there.

    Half a character waits for its other half, and what may be the beginning of a stop string for what follows."""
    text = text.rstrip("\ufffd")
    found = [at for s in stop if (at := text.find(s)) >= 0]
    begun = [i for s in stop for i in range(max(0, len(text) - len(s) + 1), len(text)) if s.startswith(text[i:])]
    end = min([*found, *begun, len(text)])
    return text[:end], end in found
