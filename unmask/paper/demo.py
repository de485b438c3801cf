"""What the paper says, seen on the bundled model: one question decoded by three methods, a table over a few dozen, a replay."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from unmask.evaluation.evaluate import decoding_for
from unmask.evaluation.metrics import answer_time
from unmask.evaluation.recipe import for_task
from unmask.generation import Decoding, generations
from unmask.models.model import Model
from unmask.tasks import Task, find
from unmask.views import replay
from unmask.views.live import Column, View
from unmask.views.trace import Run, Trace

METHODS = ("top-probability", "suffix-anchor", "sacm")
TASKS = ("stories", "cups", "compass")
SHOWN = "stories", 2  # a question chosen because it shows both failures; the table says how often they happen


def demo(model: Model, console: Console, questions: int = 12, out: Path = Path("replay.html")) -> None:
    """Prints as it goes: `questions` for each task."""
    tasks = [find(name) for name in TASKS]
    runs = shown(model, console)
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
    replay.write(out, runs)
    console.print(f"Watch it happen: open [bold]{out}[/bold] in a browser.")


def shown(model: Model, console: Console) -> list[Run]:
    """The one question, by every method; returns how each decoded it."""
    task = find(SHOWN[0])
    one = task.load("tuning").rows[SHOWN[1]]  # validation rows: the test rows are for measuring
    console.print(f"\n[bold]{one['question']}[/bold]  (right: {one['answer']})")
    console.print("Lighter boxes were decoded earlier; ∅ is end of text; [bracketed] text was pinned.\n", markup=False)
    columns, runs = [], []
    for name, strategy in for_task(task, METHODS).items():
        columns.append(column := Column(name, model))
        trace = Trace(top=True)
        decoding = decoding_for(model, task, Decoding())
        (made,) = generations(model, [one["question"]], strategy, decoding, watch=[column, trace])
        right = task.grade(made.text, one).correct
        column.finish(f"{'right' if right else 'wrong'}, EOT {made.eot_ratio:.2f}, {made.forwards} forwards")
        about = {"method": name, "prompt": one["question"], "text": made.text, "gold": one["answer"], "correct": right}
        runs += trace.runs(model, [about])
    console.print(View(columns, whole=True))
    return runs


def _row(model: Model, name: str, tasks: list[Task], questions: int) -> list[str]:
    right, ends, before = [], [], []
    for task in tasks:
        rows = task.load("tuning", limit=questions).rows
        decoding = decoding_for(model, task, Decoding(batch=questions))
        made = list(generations(model, [row["question"] for row in rows], for_task(task, [name])[name], decoding))
        right.append([bool(task.grade(g.text, row).correct) for g, row in zip(made, rows, strict=True)])
        ends += [g.eot_ratio for g in made]
        times = [
            answer_time(g.tokens, g.order, g.forwards, [model.tokens(task.anchor)])["answer_progress"] for g in made
        ]
        before += [t for t in times if t is not None]
    shares = [f"{sum(r)}/{len(r)}" for r in right]
    whole = f"{sum(map(sum, right)) / sum(map(len, right)):.0%}"
    return [name, *shares, whole, f"{mean(ends):.2f}", f"{mean(before):.0%}" if before else "-"]
