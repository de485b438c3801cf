"""A decode in the terminal: token boxes that fill in and darken by step, the anchor in brackets, ∅ for end of text.

Every box sets both of its colours, so light and dark terminals read the same; without colours the brackets, ∅ and the
underlining of what is new remain. It draws on the alternate screen, so that a resize leaves nothing behind.
"""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.decoding.step import Step
    from unmask.models.model import Model

RAMP = ("#deebf7", "#c6dbef", "#9ecae1", "#6baed6", "#4292c6", "#2171b5", "#08519c", "#08306b")
SHADES = [Style(color="#000000" if i < 5 else "#ffffff", bgcolor=back) for i, back in enumerate(RAMP)]
ANCHOR = Style(color="#000000", bgcolor="#f0b429", bold=True)
GIVEN = Style(italic=True)
NEW = Style(bold=True, underline=True)
MASK = "·"
NARROW = 34  # narrower terminals show methods one below the other
FRAME = 1 / 30  # seconds: the least time a step is shown

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def boxed(text: str) -> str:
    """A token as it is shown: none of its control characters reach the terminal."""
    return CONTROL.sub("�", text.replace("\n", "↵")).strip() or "␣"


class Column:
    """Watches one decode (its first row) and draws it."""

    def __init__(self, name: str, model: Model):
        self.name, self.model, self.note = name, model, "waiting"
        self.ids: list[int] = []
        self.when: list[int] = []  # the iteration that committed each slot, -1 for none
        self.anchors: list[bool] = []
        self.step, self.total, self.shown = 0, 1, lambda: None

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        canvas = step.canvas
        self.step += 1
        self.ids = step.seen.token.where(chosen, canvas.response)[0].tolist()
        self.when = canvas.when.masked_fill(chosen, step.forward)[0].tolist()
        self.fixed, self.anchors, self.now = canvas.fixed[0].tolist(), canvas.anchors[0].tolist(), step.forward
        self.total = max(step.strategy.bound(canvas.length, _budget(step)), step.forward + 1)
        masked = sum(i == canvas.vocab.mask_id for i in self.ids)
        self.note = f"step {self.step}, {1 - masked / canvas.length:.0%}"
        self.shown()

    def finish(self, note: str) -> None:
        self.note, self.now, self.total = note, -1, max([1, *(when + 1 for when in self.when)])

    def text(self) -> Text:
        """All boxes; neighbours are separated by a space, masks and ∅ are not."""
        out, vocab, close = Text(), self.model.vocab, False
        for slot, token in enumerate(self.ids):
            anchor = self.anchors[slot]
            if token == vocab.mask_id:
                out.append(MASK, Style(dim=True))
                close = False
                continue
            tight = token in vocab.eot_ids[:1]
            piece = "∅" if tight else boxed(str(self.model.tokenizer.decode([token])))
            if anchor:
                first = slot == 0 or not self.anchors[slot - 1]
                last = slot + 1 == len(self.ids) or not self.anchors[slot + 1]
                out.append(" " if close and first else "")
                out.append(("[" if first else " ") + piece + ("]" if last else ""), ANCHOR)
            else:
                if close and not (tight and slot and self.ids[slot - 1] == token):
                    out.append(" ")
                shade = SHADES[min(len(SHADES) - 1, len(SHADES) * self.when[slot] // self.total)]
                new = self.when[slot] == self.now
                out.append(piece, GIVEN if self.fixed[slot] else shade + NEW if new else shade)
            close = True
        return out

    def lines(self, console: Console, width: int, height: int | None) -> list[Text]:
        head = Text(f"{self.name}  ", Style(bold=True))
        head.append(self.note, Style(bold=False, dim=True))
        body = list(self.text().wrap(console, width, overflow="fold")) if self.ids else []
        if height is not None and len(body) > height - 1:
            room = max(0, height - 2)
            body = [*body[:room], Text(f"… {len(body) - room} more lines", Style(dim=True))]
        head.truncate(width, overflow="ellipsis")
        return [head, *body]


class View:
    """Columns side by side if there is room, otherwise one below the other."""

    def __init__(self, columns: list[Column], whole: bool = False):
        self.columns, self.whole = columns, whole  # whole: as long as it gets, for the last print

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        n, width = len(self.columns), options.max_width
        beside = n > 1 and width // n >= NARROW
        each = (width - 2 * (n - 1)) // n if beside else width
        height = None if self.whole else (options.size.height if beside else (options.size.height - n) // n)
        drawn = [column.lines(console, each, height) for column in self.columns]
        if not beside:
            for lines in drawn:
                for line in lines:
                    yield line
                yield Text()
            return
        for i in range(max(map(len, drawn))):
            row = Text(no_wrap=True, end="\n")
            for k, lines in enumerate(drawn):
                line = lines[i] if i < len(lines) else Text()
                row.append_text(line)
                if k + 1 < n:
                    row.append(" " * (each + 2 - line.cell_len))
            yield from console.render(row, options.update(width=width, no_wrap=True, overflow="crop"))
        yield Segment("")


class Screen:
    """`with Screen(["sacm"], model) as screen: generate(..., watch=screen.columns)`. Draws only on a terminal."""

    def __init__(self, names: list[str], model: Model, console: Console | None = None):
        self.console = console or Console(file=sys.stdout)
        self.columns = [Column(name, model) for name in names]
        self.active = self.console.is_terminal and not self.console.is_dumb_terminal
        self.live = Live(View(self.columns), console=self.console, screen=True, auto_refresh=False)
        self.drawn = 0.0

    def __enter__(self) -> Screen:
        if self.active:
            for column in self.columns:
                column.shown = self.draw
            self.live.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.active:
            self.live.stop()
            if error is None or isinstance(error, KeyboardInterrupt):  # then as far as it got
                self.console.print(View(self.columns, whole=True))

    def draw(self) -> None:
        time.sleep(max(0.0, self.drawn + FRAME - time.monotonic()))  # a small model is faster than the eye
        self.live.refresh()
        self.drawn = time.monotonic()


def _budget(step: Step) -> int:
    """T, from what this window was given of it."""
    return round(step.steps * step.canvas.length / (step.window.stop - step.window.start))
