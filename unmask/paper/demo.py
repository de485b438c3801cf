"""What the paper says, seen on the bundled model: one question decoded by three methods, a table over a few dozen others, the
same question answered first, and a replay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

from unmask.evaluation.evaluate import decoding_for
from unmask.evaluation.metrics import answer_time
from unmask.evaluation.recipe import for_task
from unmask.generation import Decoding, Generation, generations
from unmask.models.model import Model
from unmask.tasks import Task, find
from unmask.tasks.data import Row
from unmask.tasks.toy import SUFFIX
from unmask.views import replay
from unmask.views.live import Column, View
from unmask.views.trace import Run, Trace

METHODS, FIRST = ("top-probability", "suffix-anchor", "sacm"), ("left-to-right", "sacm-first")
TASKS = ("stories", "cups", "compass")
SHOWN = "cups", 13  # a question chosen because it shows both failures; the table says how often they happen


def demo(model: Model, console: Console, questions: int = 12, out: Path = Path("replay.html")) -> None:
    """Prints as it goes: `questions` for each task."""
    tasks = [find(name) for name in TASKS]
    one = find(SHOWN[0]).load("tuning").rows[SHOWN[1]]  # validation rows: the test rows are for measuring
    some = [task.load("tuning", limit=questions + 1).rows for task in tasks]
    others = [(task, [row for row in rows if row != one][:questions]) for task, rows in zip(tasks, some, strict=True)]
    console.print("\nLighter boxes were decoded earlier; ∅ is end of text; [bracketed] text was pinned.", markup=False)
    runs = shown(model, console, find(SHOWN[0]), METHODS)
    table = Table(title=f"{questions * len(tasks)} other validation questions", title_justify="left")
    for head in ("method", *(task.name for task in tasks), "all", "EOT", "before the answer"):
        table.add_column(head, justify="left" if head == "method" else "right", no_wrap=head == "method")
    for name in METHODS:
        table.add_row(*_row(model, name, others))
    console.print(table)
    console.print(
        "EOT: share of the response that is end-of-text. Before the answer: share of the slots before the anchor that "
        "were decoded when the answer was; near 0, it was blurted out.\n\n"
        "The same question, with the answer to stand before the reasoning it depends on:"
    )
    runs += shown(model, console, find(SHOWN[0] + SUFFIX), FIRST)
    replay.write(out, runs)
    console.print(f"Watch it happen: open [bold]{out}[/bold] in a browser.")


def shown(model: Model, console: Console, task: Task, methods: Sequence[str]) -> list[Run]:
    """The one question, by each of these methods; returns how they decoded it."""
    one = task.load("tuning").rows[SHOWN[1]]
    console.print(f"\n[bold]{one['question']}[/bold]  (right: {one['answer']})\n")
    columns, runs, told = [], [], []
    for name, strategy in for_task(task, methods).items():
        columns.append(column := Column(name, model))
        trace = Trace(top=True)
        decoding = decoding_for(model, task, Decoding())
        (made,) = generations(model, [one["question"]], strategy, decoding, watch=[column, trace])
        right = task.grade(made.text, one).correct
        column.finish(f"{'right' if right else 'wrong'}, EOT {made.eot_ratio:.2f}, {made.forwards} forwards")
        about = {"method": name, "prompt": one["question"], "text": made.text, "gold": one["answer"], "correct": right}
        runs += trace.runs(model, [about])
        if when := _when(model, made, task.anchor):
            told.append(f"{name} decoded {when} of {made.forwards}.\n")
    console.print(View(columns, whole=True))
    console.print("".join(told))
    return runs


def _when(model: Model, made: Generation, anchor: str) -> str:
    """When the answer and the end of the reasoning were decoded, as far as the response has them."""
    found = []
    for what, phrase in (("the answer", anchor), ("the end of its reasoning", "It ends at")):
        ids = model.tokens(phrase)
        behind = [i + len(ids) for i in range(len(made.tokens) - len(ids)) if made.tokens[i : i + len(ids)] == ids]
        for slot in behind[:1]:
            found.append(f"{what}, {model.text([made.tokens[slot]])}, at step {made.order[slot] + 1}")
    return " and ".join(found)


def _row(model: Model, name: str, asked: Sequence[tuple[Task, Sequence[Row]]]) -> list[str]:
    right, ends, before = [], [], []
    for task, rows in asked:
        decoding = decoding_for(model, task, Decoding(batch=len(rows)))
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
