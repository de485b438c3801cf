"""Accuracy against forwards: the table of a Front, and the points of its picture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from unmask.evaluation.significance import over_tasks
from unmask.paper.claims import Gap
from unmask.paper.experiments import Cell, by_configuration
from unmask.paper.fronts import Front
from unmask.paper.plan import Book
from unmask.views.figures import Reached

COLUMNS: dict[str, tuple[Callable[[Mapping[str, Any]], float], int]] = {  # what of a summary, and how many digits
    "work": (lambda s: s["work"], 3),
    "seconds": (lambda s: s["seconds"] / s["rows"], 2),
    "EOT": (lambda s: s["eot_ratio_all"], 2),
}


def points(cells: Sequence[Cell], book: Book) -> list[tuple[Reached, list[Cell]]]:
    """What was run on every task."""
    found = []
    for same in by_configuration(cells):
        summaries = [record["summary"] for cell in same if (record := book.record(cell.run))]
        if len(summaries) == len(same):
            shares = [100 * share for share in over_tasks(summaries)]
            forwards = sum(s["nfe"] for s in summaries) / len(same)
            found.append((Reached(same[0].label, same[0].run.method, forwards, *shares), same))
    return found


def leading(points: Sequence[Reached]) -> list[Reached]:
    """The Pareto front: nothing else is as good with fewer forwards, or better with as many."""
    return [p for p in points if not any(
        q.mean >= p.mean and q.forwards <= p.forwards and (q.mean, q.forwards) != (p.mean, p.forwards) for q in points
    )]  # fmt: skip


def rows(e: Front, cells: Sequence[Cell], book: Book) -> list[dict[str, Any]]:
    """One line per method and budget, fewest forwards first: every task, the mean, and the paired difference."""

    def right(same: Sequence[Cell]) -> list[list[float]]:
        return [[float(example["correct"]) for example in book.examples(cell.run)] for cell in same]

    found = points(cells, book)
    front = leading([point for point, _ in found])
    plain = {(same[0].run.method, same[0].run.length): same for _, same in found
             if not same[0].run.steps and not same[0].source.changes}  # fmt: skip
    lines = []
    for point, same in sorted(found, key=lambda pair: (pair[0].forwards, -pair[0].mean)):
        tasks = {cell.run.task: 100 * sum(task) / len(task) for cell, task in zip(same, right(same), strict=True)}
        line = {"method": point.label, "forwards": f"{point.forwards:.0f}", **tasks, "mean": point.mean,
                "95 %": f"{point.low:.1f} to {point.high:.1f}", "front": "yes" if point in front else ""}  # fmt: skip
        for column in e.columns:
            figure, digits = COLUMNS[column]
            figures = [figure(record["summary"]) for cell in same if (record := book.record(cell.run))]
            line[column] = f"{sum(figures) / len(figures):.{digits}f}"
        other = e.beside.get(point.method, e.against)
        base = plain.get((other, same[0].run.length))
        if base and same is not base:
            ours, theirs = right(same), right(base)
            if [len(task) for task in ours] == [len(task) for task in theirs]:
                gap = Gap.between(ours, theirs)
                column = f"to {e.against}" if other == e.against else "to it without SACM"
                line[column] = f"{100 * gap.difference:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        lines.append(line)
    return lines
