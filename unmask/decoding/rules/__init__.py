"""The rules a method is made of, each a frozen dataclass, and what a rule of each kind must offer.

B rows, L response slots, V tokens, n slots read together. A rule may have `needs`, the names of what it reads from a
Prediction beyond `token` and `p`; everything it remembers is in its fields, so that `repr` is its recipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

    from unmask.decoding.canvas import Canvas, Vocab
    from unmask.decoding.reading import Ask, Draws
    from unmask.decoding.step import Step


class TokenRule(Protocol):
    """Which token goes into a slot."""

    def forbidden(self, vocab: Vocab) -> tuple[int, ...]:
        """Ids that are never written, as if their logits were -inf."""
        ...

    def adjust(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> Tensor:
        """Other logits (n, V) than the model's, before anything is read from them. `ask.read.kept` holds what it keeps."""
        ...

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask, draws: Draws) -> tuple[Tensor, Tensor]:
        """Logits (n, V) of the slots at (rows, slots) -> the chosen token's logit and its id, (n,) each."""
        ...


class ConfidenceRule(Protocol):
    """C: how ready each slot is, (B, L)."""

    def __call__(self, step: Step) -> Tensor: ...


class Modifier(Protocol):
    """c -> c~, (B, L) both."""

    def __call__(self, step: Step, score: Tensor) -> Tensor: ...


class SelectionRule(Protocol):
    """Select: which eligible slots are decoded now, at least one; a rule or schedule that may choose none says `idles = True`."""

    def __call__(self, step: Step, score: Tensor) -> Tensor:
        """c~ (B, L) -> chosen (B, L) bool."""
        ...

    def bound(self, n: int, steps: int) -> int:
        """The most forwards that a window of n slots can take."""
        ...


class Schedule(Protocol):
    """How many slots to decode now, (B,)."""

    def __call__(self, step: Step) -> Tensor: ...

    def bound(self, n: int, steps: int) -> int: ...


class Remasker(Protocol):
    """Which settled slots are opened again."""

    def asks(self, step: Step) -> Tensor | None:
        """(B, L) bool: where it must look first, by a forward of its own; None: nowhere."""
        ...

    def __call__(self, step: Step) -> Tensor:
        """(B, L) bool: what to reopen."""
        ...

    def extra(self, steps: int) -> int:
        """Forwards beyond those of the selection rule."""
        ...


class Focus(Protocol):
    """The slots in view: a window of each row's own."""

    def __call__(self, step: Step) -> Tensor:
        """(B, L) bool. It is called before the forward, and again once the prediction is available (`step.seen.p`)."""
        ...


class Reviser(Protocol):
    """The canvas after a step: slots opened again, tokens replaced, everything committed, slots added or cut."""

    reopens: ClassVar[bool] = False  # may change or move what is settled

    def asks(self, step: Step, canvas: Canvas) -> tuple[Canvas, Tensor] | None:
        """A canvas to look at first and where (B, L), by a forward of its own; `step.looks` holds what the
        earlier ones returned. Called until it returns None."""
        return None

    def __call__(self, step: Step, canvas: Canvas) -> Canvas:
        """`canvas` is the one with the chosen slots filled, `step.canvas` the one before."""
        ...

    def extra(self, n: int, steps: int) -> int:
        """Forwards beyond those of the selection rule, for a window of n slots."""
        return 0


class Remembers(Protocol):
    """A rule of any kind that keeps something from one step to the next, in `canvas.memory`."""

    def memory(self, canvas: Canvas) -> dict[str, Tensor]:
        """What it keeps before the first forward: (B,) or (B, L, ...) each."""
        ...

    def remember(self, step: Step, canvas: Canvas) -> dict[str, Tensor]:
        """The same after a step, which still shows what was kept before it; `canvas` has the chosen slots filled."""
        ...


class Anchor(Protocol):
    """Writes fixed text before decoding; `encode` turns text into token ids."""

    def __call__(self, canvas: Canvas, encode: Callable[[str], list[int]]) -> Canvas: ...
