"""Choose (kappa, beta, gamma) for a task and a model on its tuning rows: the paper's sweep, or successive halving.

A Point is one triple of the grid. Every point is tried on the same rows in the same order, so two points are compared row by row.
Rows come in stages (16, 32, 64, 128 of them for 128); each stage's new rows are one folder of `unmask eval` runs, which
both ways share: nothing is decoded twice."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from unmask.decoding.algorithm import Strategy
from unmask.decoding.settings import applied
from unmask.errors import UserError
from unmask.evaluation.evaluate import Pool, Report, evaluate
from unmask.evaluation.recipe import Options
from unmask.evaluation.report import examples
from unmask.evaluation.significance import paired, wilson
from unmask.files import read_text, write_whole
from unmask.models.model import Model
from unmask.tables import markdown
from unmask.tasks import Rows, Task

GRID: dict[str, tuple[float, ...]] = {  # the paper's, 36 points
    "kappa": (12.0, 14.0),
    "beta": (1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
    "gamma": (0.7, 0.85, 1.0),
}
COUNT = 128  # tuning rows, as in the paper
FORMAT = "unmask settings"


class Point(NamedTuple):
    kappa: float
    beta: float
    gamma: float

    def __str__(self) -> str:
        return f"kappa {self.kappa:g}, beta {self.beta:g}, gamma {self.gamma:g}"


Outcome = tuple[bool, int]  # one row: was it right, after how many forwards
Decode = Callable[[Sequence[Point], int, int], Mapping[Point, Sequence[Outcome]]]  # points on the rows [first, last)


# ---------------------------------------------------------------- the search, which knows no model


@dataclass(frozen=True)
class Sweep:
    """What a search saw and chose."""

    default: Point
    count: int
    seen: dict[Point, list[Outcome]]  # of every point, the first rows
    stages: list[tuple[int, int]]  # (points, rows so far) of every stage
    chosen: Point

    def right(self, point: Point) -> list[bool]:
        return [right for right, _ in self.seen[point]]

    @property
    def forwards(self) -> int:
        return sum(forwards for outcomes in self.seen.values() for _, forwards in outcomes)

    @property
    def full_forwards(self) -> int:
        """Forwards of the full sweep; a dropped point is counted on at the mean of its rows."""
        return round(sum(sum(f for _, f in seen) / len(seen) * self.count for seen in self.seen.values()))


def points(grid: Mapping[str, Sequence[float]], default: Point) -> list[Point]:
    """The grid, and the task's default if it is not on it: what is chosen must be measured against it."""
    return list(
        dict.fromkeys([*(Point(*map(float, p)) for p in product(*(grid[name] for name in Point._fields))), default])
    )


def values(name: str, text: str | None) -> tuple[float, ...]:
    """The values a flag lists, "6,8,10"; the paper's if it was not given."""
    if text is None:
        return GRID[name]
    try:
        found = tuple(float(value) for value in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 0 or not all(map(math.isfinite, found)) or (name == "kappa" and min(found) == 0):
        raise UserError(
            f"--{name} takes positive numbers, as in --{name} {','.join(f'{v:g}' for v in GRID[name])}; not {text!r}"
        )
    return found


def stages(count: int, first: int) -> list[int]:
    """Rows seen after each stage: the count, its half, its quarter ... down to `first`, in rising order."""
    found = [count]
    while (half := math.ceil(found[0] / 2)) >= first and half < found[0]:
        found.insert(0, half)
    return found


def survivors(right: Mapping[Point, Sequence[bool]], default: Point) -> list[Point]:
    """The better half by rows right, everything that ties with its last one, and the default: it is the yardstick.
    All have seen the same rows, so the difference of two counts is the paired one, (a alone right) - (b alone right)."""
    counts = sorted((sum(rows) for rows in right.values()), reverse=True)
    least = counts[math.ceil(len(counts) / 2) - 1]
    return [point for point, rows in right.items() if sum(rows) >= least or point == default]


def nearest(point: Point, default: Point, everywhere: Sequence[Point]) -> float:
    """Distance to the default, each setting measured relative to the width of its range."""
    widths = [(max(values) - min(values)) or 1.0 for values in zip(*everywhere, strict=True)]
    return round(sum(abs(a - b) / w for a, b, w in zip(point, default, widths, strict=True)), 9)


def search(everywhere: Sequence[Point], default: Point, rows: Sequence[int], decode: Decode, halving: bool) -> Sweep:
    """Every stage's new rows by all points, or, with halving, by those still in. The most rows right wins; ties go to the
    one nearest the default, then the smaller kappa, beta, gamma."""
    seen: dict[Point, list[Outcome]] = {point: [] for point in everywhere}
    alive, done, taken = list(everywhere), 0, []
    for until in rows:
        if halving and done:
            alive = survivors({point: [right for right, _ in seen[point]] for point in alive}, default)
        for point, outcomes in decode(alive, done, until).items():
            seen[point] += outcomes
        taken.append((len(alive), until))
        done = until
    chosen = min(alive, key=lambda p: (-sum(right for right, _ in seen[p]), nearest(p, default, everywhere), p))
    return Sweep(default, rows[-1], seen, taken, chosen)


# ---------------------------------------------------------------- with a model


def tune(
    model: Model,
    task: Task,
    name: str,
    strategy: Strategy,
    rows: Rows,
    options: Options,
    folder: Path,
    *,
    grid: Mapping[str, Sequence[float]] = GRID,
    fixed: Mapping[str, Any] | None = None,
    first: int | None = None,
    mode: str = "halving",
    report: Report = lambda *_: None,
    pool: Pool | None = None,
) -> dict[str, Any]:
    """The record of a search: what was chosen, how, and every point. `strategy` is the method `name` with the task's anchor
    and the `fixed` settings; `mode` is halving, full, or check (both)."""
    default = Point(**task.settings)
    count = len(rows.rows)
    everywhere, seen = points(grid, default), stages(count, first or max(4, count // 8))

    def decode(wanted: Sequence[Point], begin: int, end: int) -> dict[Point, list[Outcome]]:
        methods = {f"{name}-{p.kappa:g}-{p.beta:g}-{p.gamma:g}": p for p in wanted}
        strategies = {label: strategy.with_(**p._asdict()) for label, p in methods.items()}
        some = replace(rows, data=replace(rows.data, rows=rows.rows[begin:end]))
        summary = evaluate(model, task, strategies, some, options, folder / f"rows-{begin}-{end}", report, pool)
        files = {point: summary["methods"][label]["file"] for label, point in methods.items()}
        found = {point: sorted(examples(file), key=lambda e: e["index"]) for point, file in files.items()}
        return {point: [(e["correct"], e["nfe"]) for e in lines] for point, lines in found.items()}

    halved = search(everywhere, default, seen, decode, True) if mode != "full" else None
    full = search(everywhere, default, seen, decode, False) if mode != "halving" else None
    sweep = full or halved
    assert sweep is not None
    chosen, right = sweep.chosen, sweep.right(sweep.chosen)
    against = paired(right, sweep.right(default))
    record: dict[str, Any] = {
        "format": FORMAT, "version": 1,
        "task": task.name, "model": model.name, "weights_sha256": model.weights_hash, "adapter": model.adapter and str(model.adapter),
        "method": name, "settings": {"text": task.anchor, **(fixed or {}), **chosen._asdict()},
        "length": options.length or task.length, "steps": strategy.steps(options.length or task.length, options.steps),
        "split": "tuning", "rows": len(right), "data_sha256": rows.data.sha256, "seed": options.seed,
        "correct": sum(right), "accuracy": sum(right) / len(right), "interval": list(wilson(sum(right), len(right))),
        "chosen_by": "full sweep" if full else "successive halving",
        "stages": sweep.stages, "points": len(everywhere), "grid": {n: list(v) for n, v in grid.items()},
        "default": {"settings": default._asdict(), "correct": sum(sweep.right(default)), "difference": against.difference,
                    "interval": list(against.interval), "p": against.p},
        "forwards": (halved or sweep).forwards, "full_forwards": sweep.full_forwards,
    }  # fmt: skip
    if halved and full:
        other = paired(full.right(full.chosen), full.right(halved.chosen))
        record["check"] = {"same": halved.chosen == full.chosen, "halving": halved.chosen._asdict(), "full": full.chosen._asdict(),
                           "difference": other.difference, "only_full": other.only_a, "only_halving": other.only_b,
                           "stages": halved.stages}  # fmt: skip
    return {**record, "table": lines(sweep)}


def lines(sweep: Sweep) -> list[dict[str, Any]]:
    """Every point, best first: those that saw more rows come first, as they were better when the others were dropped."""

    def rank(p: Point) -> tuple[bool, int, int, float, Point]:
        return (
            p != sweep.chosen,
            -len(sweep.seen[p]),
            -sum(sweep.right(p)),
            nearest(p, sweep.default, list(sweep.seen)),
            p,
        )

    found = []
    for point in sorted(sweep.seen, key=rank):
        right = sweep.right(point)
        row = {**point._asdict(), "rows": len(right), "correct": sum(right), "accuracy": sum(right) / len(right),
               "interval": list(wilson(sum(right), len(right))), "chosen": point == sweep.chosen,
               "default": point == sweep.default}  # fmt: skip
        for name, other in (("best", sweep.chosen), ("default", sweep.default)):
            rows = min(len(right), len(sweep.seen[other]))  # a dropped point is compared on the rows it saw
            test = paired(right[:rows], sweep.right(other)[:rows])
            row[f"less_{name}"], row[f"less_{name}_interval"] = test.difference, list(test.interval)
        found.append(row)
    return found


# ---------------------------------------------------------------- what is printed


def table(record: Mapping[str, Any]) -> str:
    def difference(row: Mapping[str, Any], name: str) -> str:
        low, high = row[f"less_{name}_interval"]
        return f"{100 * row[f'less_{name}']:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"

    rows = [
        {"kappa": f"{row['kappa']:g}", "beta": f"{row['beta']:g}", "gamma": f"{row['gamma']:g}", "rows": row["rows"],
         "accuracy": "{:.1f} ({:.1f} to {:.1f})".format(100 * row["accuracy"], *(100 * x for x in row["interval"])),
         "- best": difference(row, "best"), "- default": difference(row, "default"),
         "": " ".join(word for word in ("chosen", "default") if row[word])}
        for row in record["table"]
    ]  # fmt: skip
    return markdown(rows, list(rows[0]))


def told(record: Mapping[str, Any]) -> str:
    """What was chosen, how certain that is, and what it cost."""
    against, chosen = record["default"], Point(**{name: record["settings"][name] for name in Point._fields})
    usual, n = Point(**against["settings"]), record["rows"]
    out = [
        f"{record['task']}: {chosen} ({record['correct']} of {n} tuning rows right), chosen by {record['chosen_by']}."
    ]
    if chosen == usual:
        out.append("It is the task's default.")
    else:
        sure = "" if against["p"] < 0.05 else ": these rows do not tell the two apart"
        low, high = against["interval"]
        out.append(f"The task's default, {usual}: {against['correct']} right; difference {100 * against['difference']:+.1f} points "
                   f"({100 * low:+.1f} to {100 * high:+.1f}), McNemar p = {against['p']:.2g}{sure}.")  # fmt: skip
    check = record.get("check")
    if record["chosen_by"] == "successive halving" or check:
        course = ", ".join(f"{p} points on {rows} rows" for p, rows in (check or record)["stages"])
        spent, whole = record["forwards"], record["full_forwards"]
        share = f"{100 * spent / whole:.0f} % of the full sweep's {whole:,}"
        out.append(f"Halving: {course}: {spent:,} forwards, {share}; saved {whole - spent:,}.")
    else:
        out.append(f"Full sweep: {record['points']} points on {n} rows, {record['full_forwards']:,} forwards.")
    if check and check["same"]:
        out.append("Halving chose the same point as the full sweep.")
    elif check:
        out.append(f"Halving chose another point, {Point(**check['halving'])}: {check['only_halving']} rows right where the full sweep's "
                   f"is wrong, {check['only_full']} the other way round. The full sweep's is taken.")  # fmt: skip
    out.append("Accuracy on the rows a point was chosen on flatters it; the test rows say what it is worth.")
    return "\n".join(out)


# ---------------------------------------------------------------- the settings file


def write(record: Mapping[str, Any], path: Path) -> None:
    write_whole(path, {name: value for name, value in record.items() if name != "table"})


def read(path: str | Path, task: str | None = None) -> dict[str, Any]:
    """The record in a settings file; one of another task is refused."""
    text = read_text(path)
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        record = None
    settings = record.get("settings") if isinstance(record, dict) and record.get("format") == FORMAT else None
    numbers = isinstance(settings, dict) and all(isinstance(settings.get(name), (int, float)) for name in Point._fields)
    if not numbers or not all(isinstance(record.get(name), str) for name in ("task", "model", "weights_sha256")):
        raise UserError(f"{path} is not a settings file; `unmask tune --out {path} ...` makes one")
    if task is not None and record["task"] != task:
        raise UserError(f"{path} was tuned for {record['task']}, not for {task}; {_by_hand(record)}")
    return record


def check_model(path: str | Path, record: Mapping[str, Any], model: Model) -> None:
    """Refuse settings that were tuned on other weights, an adapter's among them."""
    if record["weights_sha256"] == model.weights_hash:
        return

    def named(name: str, weights: str, adapter: str | Path | None) -> str:
        return f"{name} (weights {weights[:12]}{f', adapter {adapter}' if adapter else ''})"

    made = named(record["model"], record["weights_sha256"], record.get("adapter"))
    here = named(model.name, model.weights_hash, model.adapter)
    raise UserError(f"{path} was tuned on {made}, this is {here}; {_by_hand(record)}")


def otherwise(
    path: str | Path, methods: Mapping[str, Strategy], wanted: Mapping[str, Any], length: int, steps: int | None
) -> str | None:
    """A line that says so if the settings were tuned with another method, L or T than they are used with."""
    record = read(path)
    made = tuple(record.get(name) for name in ("method", "length", "steps"))
    runs = [
        (name, length, s.steps(length, steps))
        for name, s in methods.items()
        if set(GRID) <= set(applied(s, dict(wanted))[1])
    ]
    here = [
        f"{name} with L = {length}, T = {budget}" for name, length, budget in runs if (name, length, budget) != made
    ]
    return (
        f"{path} was tuned for {made[0]} with L = {made[1]}, T = {made[2]}; this is {' and '.join(here)}"
        if here
        else None
    )


def _by_hand(record: Mapping[str, Any]) -> str:
    values = " ".join(f"--set {name}={record['settings'][name]:g}" for name in Point._fields)
    return f"tune again, or pass its values yourself: {values}"
