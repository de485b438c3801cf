"""What the paper says, seen on the bundled model: one question by three methods, a table over a few dozen, a replay."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import unmask
from unmask.evaluation.evaluate import adapted, answer_time
from unmask.generation import generations
from unmask.tasks import find
from unmask.views import replay
from unmask.views.live import Column, View
from unmask.views.trace import record

METHODS = ("top-probability", "suffix-anchor", "sacm")
TASKS = ("stories", "cups", "compass")
SHOWN = "stories", 2  # a question chosen because it shows both failures; how often they happen, the table says


def demo(model: Any, console: Console, questions: int = 12, out: Path = Path("replay.html")) -> None:
    """Prints as it goes; `questions` a task."""
    tasks = [find(name) for name in TASKS]
    task = find(SHOWN[0])
    one = task.tuning_rows().rows[SHOWN[1]]  # validation rows: the test rows are for measuring
    console.print(f"\n[bold]{one['question']}[/bold]  (right: {one['answer']})")
    console.print("Lighter boxes were decoded earlier; ∅ is end of text; what stands in [brackets] was pinned.\n", markup=False)
    columns = []
    for name in METHODS:
        columns.append(column := Column(name, model))
        made = unmask.generate(model, one["question"], adapted(task, unmask.METHODS[name], {})[0], watch=[column])
        verdict = "right" if task.grade(made.text, one).correct else "wrong"
        column.finish(f"{verdict}, EOT {made.eot_ratio:.2f}, {made.forwards} forwards")
    console.print(View(columns, whole=True))

    table = Table(title=f"{questions * len(tasks)} validation questions", title_justify="left")
    for head in ("method", *(task.name for task in tasks), "all", "EOT", "before the answer"):
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=head == "method")
    for name in METHODS:
        table.add_row(*_row(model, name, tasks, questions))
    console.print(table)
    console.print(
        "EOT: share of the response that is end-of-text. Before the answer: share of the slots before the anchor that "
        "were decoded when the answer was; near 0, it was blurted out.\n"
    )
    runs = [r for name in METHODS for r in record(model, [one["question"]], name, adapted(task, unmask.METHODS[name], {})[0])]
    replay.write(out, runs)
    console.print(f"Watch it happen: open [bold]{out}[/bold] in a browser.")


def _row(model: Any, name: str, tasks: list[Any], questions: int) -> list[str]:
    right, ends, before = [], [], []
    for task in tasks:
        rows = task.tuning_rows().rows[:questions]
        strategy = adapted(task, unmask.METHODS[name], {})[0]
        made = list(generations(model, [row["question"] for row in rows], strategy, length=task.length, batch=questions))
        right.append([bool(task.grade(g.text, row).correct) for g, row in zip(made, rows, strict=True)])
        ends += [g.eot_ratio for g in made]
        times = [answer_time(g.tokens, g.order, g.forwards, [model.tokens(task.anchor)])["answer_progress"] for g in made]
        before += [t for t in times if t is not None]
    shares = [f"{sum(r)}/{len(r)}" for r in right]
    whole = f"{sum(map(sum, right)) / sum(map(len, right)):.0%}"
    return [name, *shares, whole, f"{statistics.mean(ends):.2f}", f"{statistics.mean(before):.0%}" if before else "-"]
