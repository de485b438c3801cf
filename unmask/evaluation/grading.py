"""Grade outputs saved by any system: JSON lines with `output` and either `gold` or `doc`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.evaluation.significance import wilson
from unmask.tasks import Grade, Task, find
from unmask.tasks.data import Row, parse

if TYPE_CHECKING:
    from unmask.tasks.programs import Limits


class Line:
    """One output with the row it answers."""

    def __init__(self, place: str, raw: object, task: Task | None, rows: dict[str, dict[str, Row]]):
        if isinstance(raw, Exception):
            raise UserError(f"{place}: not JSON ({raw})")
        if not isinstance(raw, dict) or not isinstance(raw.get("output"), str):
            raise UserError(f'{place}: a line is an object with the text in "output", and "gold" or "doc"')
        if not (task or raw.get("benchmark")):
            raise UserError(f'{place}: which task? pass --task, or name it in the line\'s "benchmark"')
        self.task = task or find(raw["benchmark"])
        self.output, doc, gold = raw["output"], raw.get("doc"), raw.get("gold")
        if isinstance(doc, (int, str)):
            known = rows.get(self.task.name)
            if known is None:
                raise UserError(
                    f"{place}: doc is {doc!r}, a row's index or id; pass --data so that it can be looked up"
                )
            if str(doc) not in known:
                raise UserError(f"{place}: {self.task.name} has no row {doc!r}")
            doc = known[str(doc)]
        self.row: Row = dict(doc or {})
        if gold is not None:
            self.row[self.task.gold] = gold
        if self.row.get(self.task.gold) is None:
            raise UserError(f'{place}: neither "gold" nor a "doc" with {self.task.gold!r}')
        self.id = str(
            raw.get(
                "id",
                self.row.get(self.task.key, place.rpartition(":")[2]) if self.task.key else place.rpartition(":")[2],
            )
        )

    def grade(self, mode: str, limits: Limits | None) -> Grade:
        try:
            if self.task.executes:
                return self.task.grade(self.output, self.row, limits)  # type: ignore[call-arg]
            return self.task.grader(mode)(self.output, self.row)
        except (KeyError, TypeError) as error:
            raise UserError(f'{self.task.name} row {self.id}: its "doc" lacks {error}') from None


def read(file: str, task: Task | None, data: str | None, skip_bad: bool) -> tuple[list[Line], list[str]]:
    """The lines of a file (JSON lines, or one JSON list), and what was wrong with those skipped."""
    path = Path(file)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None
    rows: dict[str, dict[str, Row]] = {}
    if data and task:
        loaded = task.rows.load(task.name, data, skip_bad).rows
        by_id = {task.identify(row, i): row for i, row in enumerate(loaded)}
        rows[task.name] = {**{str(i): row for i, row in enumerate(loaded)}, **by_id}
    lines, skipped = [], []
    for number, raw in parse(path, content):
        try:
            lines.append(Line(f"{file}:{number}", raw, task, rows))
        except UserError as error:
            if not skip_bad:
                raise UserError(f"{error} (--bad-rows skip passes over such lines)") from None
            skipped.append(str(error))
    if not lines:
        raise UserError(f"{file} has no line to grade")
    return lines, skipped


def graded(
    lines: Sequence[Line], mode: str = "", allow_code: bool = False, unisolated: bool = False
) -> Iterator[dict[str, Any]]:
    """One JSON record per line: id, correct, extracted, rule."""
    coded = sorted({line.task.name for line in lines if line.task.executes})
    limits = None
    if coded:
        if not allow_code:
            raise UserError(f"grading {' and '.join(coded)} runs the outputs as code; allow it with --allow-code")
        from unmask.tasks.programs import Limits

        limits = Limits(unisolated=unisolated)
    import os
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:  # sandboxes side by side; the rest in turn, in this thread
        jobs = [pool.submit(line.grade, mode, limits) if line.task.executes else None for line in lines]
        for line, job in zip(lines, jobs, strict=True):
            found = job.result() if job else line.grade(mode, limits)
            yield {
                "id": line.id,
                "task": line.task.name,
                "correct": bool(found.correct),
                "extracted": found.extracted,
                "rule": found.rule,
            }


def totals(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy with its interval, per task."""
    found = []
    for task in dict.fromkeys(record["task"] for record in records):
        these = [record for record in records if record["task"] == task]
        right = sum(record["correct"] for record in these)
        missing = sum(record["rule"] == "none" for record in these)
        found.append({
            "task": task, "accuracy": right / len(these), "interval": list(wilson(right, len(these))), "correct": right,
            "rows": len(these), "answer_found": 1 - missing / len(these),
        })  # fmt: skip
    return found


def percent(total: dict[str, Any]) -> str:
    low, high = total["interval"]
    return (
        f"{total['task']}: {100 * total['accuracy']:.2f} %  [{100 * low:.2f}, {100 * high:.2f}]  "
        f"{total['correct']} of {total['rows']}, an answer found in {100 * total['answer_found']:.1f} %"
    )
