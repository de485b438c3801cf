"""Accuracy against forwards: the table of a Front, and the points of its picture."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from unmask.paper.claims import Gap
from unmask.paper.experiments import Cell, Configuration, Experiment
from unmask.paper.plan import Book
from unmask.views.figures import Reached


def _by_configuration(cells: Iterable[Cell]) -> list[list[Cell]]:
    found: dict[Configuration, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.configuration, []).append(cell)
    return list(found.values())


def points(cells: Sequence[Cell], book: Book) -> list[tuple[Reached, list[Cell]]]:
    """What was run on every task."""
    found = []
    for same in _by_configuration(cells):
        records = [record for cell in same if (record := book.record(cell.run))]
        if len(records) == len(same):
            summaries = [record["summary"] for record in records]
            mean = sum(s["accuracy"] for s in summaries) / len(same)
            low, high = (
                math.hypot(*(s["accuracy"] - s["interval"][side] for s in summaries)) / len(same) for side in (0, 1)
            )
            forwards = sum(s["nfe"] for s in summaries) / len(same)
            found.append(
                (
                    Reached(
                        same[0].label, same[0].run.method, forwards, 100 * mean, 100 * (mean - low), 100 * (mean + high)
                    ),
                    same,
                )
            )
    return found  # fmt: skip


def leading(points: Sequence[Reached]) -> list[Reached]:
    """The Pareto front: nothing else is as good with fewer forwards, or better with as many."""
    return [p for p in points if not any(
        q.mean >= p.mean and q.forwards <= p.forwards and (q.mean, q.forwards) != (p.mean, p.forwards) for q in points
    )]  # fmt: skip


def rows(e: Experiment, cells: Sequence[Cell], book: Book) -> list[dict[str, Any]]:
    """One line per method and budget, fewest forwards first: every task, the mean, and the paired difference."""
    found = points(cells, book)
    front, against = leading([point for point, _ in found]), getattr(e, "against", "sacm")
    base = next(
        (
            same
            for _, same in found
            if (same[0].run.method, same[0].run.steps, same[0].source.changes) == (against, None, {})
        ),
        None,
    )
    lines = []
    for point, same in sorted(found, key=lambda pair: (pair[0].forwards, -pair[0].mean)):
        tasks = {cell.run.task: 100 * book.record(cell.run)["summary"]["accuracy"] for cell in same}  # type: ignore[index]
        line = {"method": point.label, "forwards": f"{point.forwards:.0f}", **tasks, "mean": point.mean,
                "95 %": f"{point.low:.1f} to {point.high:.1f}", "front": "yes" if point in front else ""}  # fmt: skip
        if base and same is not base:
            ours, theirs = (
                [[float(e["correct"]) for e in book.examples(cell.run)] for cell in some] for some in (same, base)
            )
            if [len(task) for task in ours] == [len(task) for task in theirs]:
                gap = Gap.between(ours, theirs)
                line[f"to {against}"] = f"{100 * gap.difference:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
        lines.append(line)
    return lines  # fmt: skip
