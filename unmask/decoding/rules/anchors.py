"""Text written before decoding, besides the suffix anchor, which is in algorithm.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unmask.decoding.canvas import Canvas
from unmask.errors import UserError


@dataclass(frozen=True)
class EndMark:
    """A second anchor, near the end, for a method whose first one is at the front: it keeps end-of-text from flooding the
    response, as a suffix anchor does."""

    mark: str = "."
    near: int = -16

    def __call__(self, canvas: Canvas, encode: Callable[[str], list[int]]) -> Canvas:
        return canvas.pin(encode(self.mark), self.near, anchor=True)


@dataclass(frozen=True)
class Template:
    """Template infilling: fixed pieces with masked slots after each, no modulation.

    The paper gives the text but not the slot lengths: the last piece starts at slot `at` from the end, as the suffix
    anchor does, and the pieces before it are evenly spaced from the first slot on.
    """

    pieces: tuple[str, ...] = ("Step 1:", "Step 2:", "Step 3:", "The answer is:")
    at: int = -20

    def __call__(self, canvas: Canvas, encode: Callable[[str], list[int]]) -> Canvas:
        last = canvas.length + self.at if self.at < 0 else self.at
        starts = [last * i // max(1, len(self.pieces) - 1) for i in range(len(self.pieces) - 1)] + [last]
        for piece, start, room in zip(self.pieces, starts, [*starts[1:], canvas.length], strict=True):
            tokens = encode(piece)
            if start < 0 or start + len(tokens) > room:
                raise UserError(
                    f"the template does not fit a response of {canvas.length} tokens; give --length more room or --set at=N"
                )
            canvas = canvas.pin(tokens, start)
        return canvas
