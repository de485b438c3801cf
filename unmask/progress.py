"""How far along long work is: bars on standard error if it is a terminal, lines of text where it is not."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, TextIO, TypeVar

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

Item = TypeVar("Item")


class Bar:
    """`with Bar() as bar: bar.show("sacm", 20, 100, "accuracy 84.0 %")`: one bar for each name, drawn on a terminal only."""

    def __init__(self, stream: TextIO | None = None):
        self.stream = stream or sys.stderr
        self.bars: Progress | None = None  # on a terminal
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bar:
        if self.stream.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"),
                       TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
            # What is printed meanwhile goes where it was sent: rich would take standard output along to the bar's console.
            console = Console(file=self.stream)
            self.bars = Progress(
                *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bars:
            self.bars.stop()

    def show(self, name: str, done: float, total: float, note: str = "", label: str | None = None) -> None:
        """How far along `name` is; `label` is what it is called now."""
        if self.bars:
            if name not in self.tasks:
                self.tasks[name] = self.bars.add_task(name, total=total, note="")
            self.bars.update(self.tasks[name], completed=done, total=total, note=note, description=label or name)

    def accuracy(self, name: str, done: int, total: int, right: int) -> None:
        """A report of `evaluate`: rows done, and how many of them are right."""
        self.show(name, done, total, f"accuracy {100 * right / done:.1f} %" if done else "")

    def tell(self, line: str) -> None:
        """A line to keep, above the bars or on its own."""
        if self.bars:
            self.bars.console.print(line, highlight=False, markup=False, soft_wrap=True)
        else:
            print(line, file=self.stream, flush=True)


def track(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, with a bar if there is more than one."""
    if total < 2:
        yield from items
        return
    with Bar() as bar:
        bar.show(what, 0, total)
        for done, item in enumerate(items, 1):
            yield item
            bar.show(what, done, total)
