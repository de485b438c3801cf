"""Choose best, near, again and refresh of the near cache for a model, a task and a method, on the task's tuning rows.

Every point of the grid decodes the same rows as plain decoding does, so the two are compared row by row. What is chosen is the
least work whose loss is small: the 95 % interval of its difference from plain decoding stays above -`loss`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from unmask.decoding.algorithm import Strategy
from unmask.errors import UserError
from unmask.evaluation.evaluate import Pool, Report, evaluate
from unmask.evaluation.recipe import Options
from unmask.evaluation.report import examples
from unmask.evaluation.significance import mean, paired, wilson
from unmask.models.model import Model
from unmask.tables import markdown
from unmask.tasks import Rows, Task

GRID: dict[str, tuple[int, ...]] = {"best": (2, 8), "near": (4, 8), "again": (1, 2), "refresh": (0, 4)}
LOSS = 0.04
FORMAT = "unmask cache settings"


class Point(NamedTuple):
    best: int
    near: int
    again: int
    refresh: int

    @property
    def cache(self) -> str:
        return "near:" + ",".join(f"{name}={value}" for name, value in self._asdict().items())


def values(name: str, text: str | None) -> tuple[int, ...]:
    """The values a flag lists, "4,8"; those of GRID if it was not given."""
    if text is None:
        return GRID[name]
    if not all(value.strip().isdecimal() for value in text.split(",")):
        raise UserError(f"--{name} takes whole numbers, as in --{name} {','.join(map(str, GRID[name]))}; not {text!r}")
    return tuple(int(value) for value in text.split(","))


def points(grid: Mapping[str, Sequence[int]]) -> list[Point]:
    found = [Point(*p) for p in product(*(grid[name] for name in Point._fields))]
    if not (usable := [p for p in found if p.best or p.near]):
        raise UserError("best and near are both 0 at every point: give one of them at least 1")
    return list(dict.fromkeys(usable))


def choose(rows: Sequence[Mapping[str, Any]], loss: float = LOSS) -> Mapping[str, Any]:
    """The least work among the points that lose little for certain; where none does, the one that loses least."""
    safe = [row for row in rows if row["less_plain_interval"][0] > -loss]
    return min(safe, key=lambda row: row["work"]) if safe else max(rows, key=lambda row: row["less_plain_interval"][0])


def tune(
    model: Model, task: Task, name: str, strategy: Strategy, rows: Rows, options: Options, folder: Path, *,
    grid: Mapping[str, Sequence[int]] = GRID, loss: float = LOSS, report: Report = lambda *_: None, pool: Pool | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The record of the sweep: what was chosen, and every point beside plain decoding."""

    def decoded(label: str, cache: str | None) -> list[dict[str, Any]]:
        how = replace(options, cache=cache)
        summary = evaluate(model, task, {label: strategy}, rows, how, folder, report, pool, f"summary-{label}.json")
        return sorted(examples(summary["methods"][label]["file"]), key=lambda e: e["index"])

    def row(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        right = [e["correct"] for e in found]
        test = paired(right, [e["correct"] for e in plain])
        return {
            "rows": len(right), "correct": sum(right), "accuracy": sum(right) / len(right),
            "interval": list(wilson(sum(right), len(right))), "nfe": mean([e["nfe"] for e in found]),
            "work": mean([e["work"] for e in found]), "less_plain": test.difference,
            "less_plain_interval": list(test.interval),
        }  # fmt: skip

    plain = decoded(name, None)
    table = []
    for point in points(grid):
        label = f"{name}-near-{'-'.join(map(str, point))}"
        table.append({**point._asdict(), "cache": point.cache, **row(decoded(label, point.cache))})
    chosen = choose(table, loss)
    return {
        "format": FORMAT, "version": 1, "task": task.name, "model": model.name, "weights_sha256": model.weights_hash,
        "method": name, "strategy": repr(strategy), "length": options.length or task.length, "split": "tuning",
        "rows": len(plain), "data_sha256": rows.data.sha256, "seed": options.seed, "loss": loss, "plain": row(plain),
        "grid": {n: list(v) for n, v in grid.items()}, "chosen": dict(chosen), "table": table,
    }  # fmt: skip


def table(record: Mapping[str, Any]) -> str:
    """Every point, least work first, below plain decoding."""

    def line(row: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
        low, high = row["less_plain_interval"]
        return {
            **{name: point.get(name, "") for name in Point._fields}, "forwards": row["nfe"], "work": f"{row['work']:.3f}",
            "accuracy": "{:.1f} ({:.1f} to {:.1f})".format(100 * row["accuracy"], *(100 * x for x in row["interval"])),
            "- plain": f"{100 * row['less_plain']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})" if point else "",
            "": "chosen" if row == record["chosen"] else "" if point else "plain",
        }  # fmt: skip

    rows = [line(record["plain"], {})]
    rows += [line(row, row) for row in sorted(record["table"], key=lambda row: row["work"])]
    return markdown(rows, list(rows[0]))


def told(record: Mapping[str, Any]) -> str:
    """What was chosen, and how certain that is."""
    chosen, loss = record["chosen"], 100 * record["loss"]
    low, high = (100 * x for x in chosen["less_plain_interval"])
    out = [
        f"{record['task']}, {record['method']}: --cache {chosen['cache']} takes {chosen['work'] / record['plain']['work']:.3f} of the "
        f"multiplications it takes without a cache; {100 * chosen['less_plain']:+.1f} points ({low:+.1f} to {high:+.1f}) on "
        f"{record['rows']} tuning rows."
    ]
    if low <= -loss:
        out.append(
            f"No point is sure to lose less than {loss:g} points on so few rows; this one loses least. Try more: --count N."
        )
    out.append("Accuracy on the rows a point was chosen on flatters it; the test rows say what it is worth.")
    return "\n".join(out)
