"""Reports over runs: tables (markdown, CSV, LaTeX, JSON) beside the paper's numbers, a plot, and the rows that flipped."""

from __future__ import annotations

import csv
import io
import json
import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from unmask.errors import UserError
from unmask.evaluation.significance import mean, paired, spread, wilson
from unmask.files import read_json, read_text, write_bytes, write_text
from unmask.tables import latex, markdown

Record = dict[str, Any]


class Theirs(Protocol):
    """The published number for a run, and the table it stands in."""

    @property
    def accuracy(self) -> float: ...

    @property
    def table(self) -> str: ...


Beside = Callable[[Record], Theirs | None]

RECIPE = ("model", "task", "length", "steps", "strategy", "data_sha256", "prompts_sha256")
SUMMARY = (
    "accuracy",
    "interval",
    "rows",
    "nfe",
    "eot_ratio",
    "answer_found",
    "tokens_per_forward",
    "tokens_per_second",
)

# ---------------------------------------------------------------- runs


def records(places: Sequence[str]) -> list[Record]:
    """The finished runs in these folders and files, one record per run, methods that draw at random joined over their seeds."""
    found: list[Record] = []
    for place in places:
        path = Path(place)
        if path.is_dir():
            files = sorted(path.rglob("*-*.json"))
        elif path.exists():
            files = [path.with_suffix(".json")]
        else:
            raise UserError(f"there is no run {place}; `unmask eval --out {place} ...` makes one")
        for file in files:
            record = read_json(file)
            if isinstance(record, dict) and "recipe" in record and "summary" in record:
                found.append({**checked(record, file), "file": str(file)})
    if not found:
        raise UserError(
            f"no finished run in {', '.join(places)}; an unfinished one resumes with its own `unmask eval` command"
        )
    return joined(found)


def checked(record: Record, file: Path) -> Record:
    """The record of a run, if it has what tables are made of."""
    recipe, summary = record["recipe"], record["summary"]
    lacks = [name for name in ("method", "recipe_sha256") if name not in record]
    lacks += [name for name in RECIPE if not isinstance(recipe, dict) or name not in recipe]
    lacks += [name for name in SUMMARY if not isinstance(summary, dict) or summary.get(name) is None]
    if lacks:
        raise UserError(
            f"{file} is not a whole record of a run: it lacks {', '.join(lacks[:3])}; its `unmask eval` command completes it"
        )
    return record


def joined(found: Sequence[Record]) -> list[Record]:
    """Runs whose recipes differ only in the seed, as one."""
    groups: dict[str, list[Record]] = {}
    for record in found:
        key = json.dumps({k: v for k, v in record["recipe"].items() if k != "seed"}, sort_keys=True, default=str)
        groups.setdefault(record["method"] + key, []).append(record)
    whole = []
    for runs in groups.values():
        runs = list({run["recipe_sha256"]: run for run in runs}.values())
        summary = dict(runs[0]["summary"])
        if len(runs) > 1:
            for key, value in summary.items():
                if isinstance(value, (int, float)) and key != "rows":
                    summary[key] = mean([found for run in runs if (found := run["summary"].get(key)) is not None])
            summary |= {"interval": list(wilson(round(summary["correct"]), summary["rows"])), "seeds": len(runs),
                        "spread": spread([run["summary"]["accuracy"] for run in runs])}  # fmt: skip
        whole.append({**runs[0], "summary": summary})
    return whole


def examples(record_or_file: str | Path) -> list[Record]:
    """The examples of a run. A last line torn by a crash is skipped."""
    path = Path(record_or_file).with_suffix(".jsonl")
    lines = read_text(path).split("\n")
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            example = json.loads(line)
        except (ValueError, RecursionError):
            if number < len(lines) - 1:
                raise UserError(
                    f"{path}, line {number}: not JSON; resume the run with its `unmask eval` command"
                ) from None
            continue
        if not isinstance(example, dict) or not {"id", "index", "correct"} <= set(example):
            raise UserError(
                f'{path}, line {number}: an example has "id", "index" and "correct"; this is not a run of `unmask eval`'
            )
        found.append(example)
    return found


# ---------------------------------------------------------------- tables

COLUMNS = ("model", "task", "method", "L", "T", "NFE", "work", "rows", "accuracy", "low", "high", "paper", "distance", "EOT", "found",
           "early", "progress", "tokens/forward", "tokens/s")  # fmt: skip


def line(record: Record, beside: Beside = lambda record: None) -> dict[str, Any]:
    """A run as a row of the table; shares in percent, as the paper has them."""
    summary, recipe = record["summary"], record["recipe"]
    cell = beside(record)

    def percent(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 2)

    accuracy = percent(summary["accuracy"])
    return {
        "model": recipe["model"], "task": recipe["task"], "method": record["method"], "L": recipe["length"], "T": recipe["steps"],
        "NFE": round(summary["nfe"], 1), "work": None if summary.get("work") is None else round(summary["work"], 3),
        "rows": summary["rows"], "accuracy": accuracy, "low": percent(summary["interval"][0]),
        "high": percent(summary["interval"][1]), "paper": cell and cell.accuracy,
        "distance": round(accuracy - cell.accuracy, 2) if cell and accuracy is not None else None, "EOT": round(summary["eot_ratio"], 3),
        "found": percent(summary["answer_found"]), "early": percent(summary["early_answer"]),
        "progress": percent(summary["answer_progress"]),
        "tokens/forward": round(summary["tokens_per_forward"], 2), "tokens/s": round(summary["tokens_per_second"], 1),
        "spread": percent(summary.get("spread")), "seeds": summary.get("seeds", 1), "strategy": recipe["strategy"],
        "file": record["file"], "table": cell and cell.table,
    }  # fmt: skip


def by_compute(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Accuracy against forwards beside accuracy against steps: at each number of forwards, the best run that takes no more."""
    found = []
    for model, task in dict.fromkeys((row["model"], row["task"]) for row in lines):
        best = -1.0
        for row in sorted(
            (r for r in lines if (r["model"], r["task"]) == (model, task)), key=lambda r: (r["NFE"], -r["accuracy"])
        ):
            best = max(best, row["accuracy"])
            found.append({"model": model, "task": task, "NFE": row["NFE"], "T": row["T"], "L": row["L"], "method": row["method"],
                          "accuracy": row["accuracy"], "best so far": row["accuracy"] == best})  # fmt: skip
    return found


def comparisons(found: Sequence[Record]) -> list[dict[str, Any]]:
    """Every pair of runs on the same rows of the same data: paired difference, interval, McNemar's p."""
    pairs = []
    alike = ("model", "task", "data_sha256", "prompts_sha256")
    for i, a in enumerate(found):
        for b in found[i + 1 :]:
            if all(a["recipe"][k] == b["recipe"][k] for k in alike):
                x, y = ({e["index"]: e["correct"] for e in examples(r["file"])} for r in (a, b))
                rows = sorted(x.keys() & y.keys())
                test = paired([x[i] for i in rows], [y[i] for i in rows])
                pairs.append({"task": a["recipe"]["task"], "a": label(a), "b": label(b), "rows": test.rows,
                              "difference": round(100 * test.difference, 2), "low": round(100 * test.interval[0], 2),
                              "high": round(100 * test.interval[1], 2), "p": float(f"{test.p:.2g}")})  # fmt: skip
    return pairs


def label(record: Record) -> str:
    return f"{record['method']} (L={record['recipe']['length']}, T={record['recipe']['steps']})"


def table(found: Sequence[Record], style: str, beside: Beside = lambda record: None) -> str:
    lines = [line(record, beside) for record in found]
    lines.sort(key=lambda row: (row["task"], row["model"], row["L"], row["T"]))
    if style == "json":
        whole = {"runs": lines, "compute": by_compute(lines), "pairs": comparisons(found)}
        return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
    columns = [c for c in COLUMNS if any(row[c] is not None for row in lines)]
    if any(row["seeds"] > 1 for row in lines):
        columns += ["seeds", "spread"]
    if style == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, [*columns, "strategy", "file"], extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return out.getvalue()
    if style == "latex":
        return latex(lines, columns)
    parts = [markdown(lines, columns)]
    if len(lines) > 1:
        parts.append(
            "Accuracy against compute (forwards), beside steps:\n\n"
            + markdown(by_compute(lines), ["task", "NFE", "T", "L", "method", "accuracy", "best so far"])
        )
    if pairs := comparisons(found):
        parts.append(
            "Paired, on the same rows (a - b; 95 % bootstrap interval, McNemar's p):\n\n"
            + markdown(pairs, list(pairs[0]))
        )
    return "\n".join(parts)


STYLES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}


def write(places: Sequence[str], style: str, out: str | None, beside: Beside = lambda record: None) -> str:
    """The table to print; `out` also gets a plot or a table, by its ending."""
    found = records(places)
    if out:
        path = Path(out)
        if path.suffix.lower() in STYLES:
            write_text(path, table(found, STYLES[path.suffix.lower()], beside))
        elif path.suffix.lower() in (".png", ".svg", ".pdf"):
            plot(found, path, beside)
        else:
            raise UserError(f"{out}: a plot ends in .png, .svg or .pdf, a table in {', '.join(STYLES)}")
    return table(found, style, beside)


def plot(found: Sequence[Record], path: Path, beside: Beside = lambda record: None) -> None:
    """Accuracy against steps and, on the same scale beside it, against forwards; one pair of panels per model and task."""
    try:
        import matplotlib
    except ImportError:
        raise UserError('plots need matplotlib: pip install "unmask[figures]"') from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    lines = [line(record, beside) for record in found]
    groups = list(dict.fromkeys((row["model"], row["task"]) for row in lines))
    methods = list(dict.fromkeys(row["method"] for row in lines))
    figure, axes = pyplot.subplots(len(groups), 2, figsize=(10, 3.6 * len(groups)), sharey="row", squeeze=False)
    for (model, task), pair in zip(groups, axes, strict=True):
        for axis, key, name in zip(pair, ("T", "NFE"), ("steps T", "forwards (NFE): matched compute"), strict=True):
            for index, method in enumerate(methods):
                rows = sorted(
                    (r for r in lines if (r["model"], r["task"], r["method"]) == (model, task, method)),
                    key=lambda r: r[key],
                )
                if rows:
                    y = [r["accuracy"] for r in rows]
                    error = [
                        [a - r["low"] for a, r in zip(y, rows, strict=True)],
                        [r["high"] - a for a, r in zip(y, rows, strict=True)],
                    ]
                    axis.errorbar(
                        [r[key] for r in rows], y, error, marker="o", capsize=3, label=method, color=f"C{index % 10}"
                    )
                    stated = [(r[key], r["paper"]) for r in rows if r["paper"] is not None]
                    if stated:
                        axis.scatter(*zip(*stated, strict=True), marker="x", color=f"C{index % 10}", s=60)
            axis.set_xlabel(name)
            axis.set_xscale("log", base=2)
            axis.xaxis.set_major_formatter("{x:g}")
            axis.set_title(f"{Path(model).name}, {task}", fontsize=10)
            axis.grid(alpha=0.3)
        pair[0].set_ylabel("accuracy, % (bars: 95 %, x: paper)")
        pair[1].legend(fontsize=8)
    figure.tight_layout()
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix.lower()[1:], dpi=150)
    pyplot.close(figure)
    write_bytes(path, drawn.getvalue())


# ---------------------------------------------------------------- one evaluation on a terminal


def table_of_summary(summary: Mapping[str, Any]) -> str:
    """What `unmask eval` prints."""
    rows = [
        {
            "method": name, "accuracy": 100 * s["accuracy"], "95 %": "{:.1f} to {:.1f}".format(*(100 * x for x in s["interval"])),
            "EOT": s["eot_ratio"], "found": 100 * s["answer_found"],
            "early": None if s["early_answer"] is None else 100 * s["early_answer"], "progress": s["answer_progress"], "NFE": s["nfe"],
            **({} if s.get("work") is None else {"work": s["work"]}),
            "tokens/forward": s["tokens_per_forward"], "tokens/s": s["tokens_per_second"],
            **({"spread": 100 * s["spread"], "seeds": s["seeds"]} if "spread" in s else {}),
        }
        for name, s in summary["methods"].items()
    ]  # fmt: skip
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = f"{summary['task']}, {summary['rows']} rows, L = {summary['length']}, {summary['model']}\n\n" + markdown(
        rows, columns
    )
    pairs = [
        {"a - b": f"{p['a']} - {p['b']}", "difference": 100 * p["difference"],
         "95 %": "{:+.1f} to {:+.1f}".format(*(100 * x for x in p["interval"])), "a alone": p["only_a"], "b alone": p["only_b"],
         "McNemar p": f"{p['p']:.2g}"}
        for p in summary["pairs"]
    ]  # fmt: skip
    if pairs:
        text += "\n" + markdown(pairs, list(pairs[0]))
    for name, s in summary["methods"].items():
        if s["modes"]:
            text += f"\n{name}, other graders: " + ", ".join(
                f"{mode} {100 * value:.2f}" for mode, value in s["modes"].items()
            )
    return text.rstrip("\n") + f"\n\nexamples and recipes: {summary['out']}"


# ---------------------------------------------------------------- diff


def single(place: str, method: str | None) -> Record:
    """The one run that a word on the command line refers to."""
    found = [record for record in records([place]) if method in (None, record["method"])]
    if not found:
        raise UserError(f"{place} has no finished run of {method}")
    if len(found) > 1:
        names = ", ".join(sorted({record["method"] for record in found}))
        raise UserError(f"{place} holds {len(found)} runs ({names}): name one .jsonl file, or --methods A,B")
    return found[0]


def differences(
    places: Sequence[str], methods: str | None, limit: int | None, width: int | None, as_json: bool
) -> Iterator[str]:
    """The rows two runs grade differently, the responses side by side."""
    names: list[str | None] = [*(methods.split(",") if methods else [None, None])]
    if len(names) == 1:
        names *= 2
    if len(places) == 1 and methods and len(names) == 2:
        places = [*places, *places]
    if len(places) != 2 or len(names) != 2:
        raise UserError("diff takes two runs, or one folder with --methods A,B")
    a, b = (single(place, name) for place, name in zip(places, names, strict=True))
    if a["recipe"]["task"] != b["recipe"]["task"]:
        raise UserError(f"these runs are of different tasks: {a['recipe']['task']} and {b['recipe']['task']}")
    left, right = ({e["id"]: e for e in examples(r["file"])} for r in (a, b))
    common = [i for i in left if i in right]
    if not common:
        raise UserError("these runs have no row in common")
    flips = [i for i in common if left[i]["correct"] != right[i]["correct"]]
    if as_json:
        for i in flips[:limit]:
            both = {
                side: {k: e[i][k] for k in ("correct", "extracted", "rule", "response")}
                for side, e in (("a", left), ("b", right))
            }
            yield json.dumps(
                {"id": i, "gold": left[i]["gold"], "prompt": left[i]["prompt"], **both}, ensure_ascii=False
            )
        return
    test = paired([left[i]["correct"] for i in common], [right[i]["correct"] for i in common])
    yield f"a: {label(a)}  {a['file']}\nb: {label(b)}  {b['file']}"
    yield (f"{len(common)} rows in common, {len(flips)} flipped: {test.only_a} right in a alone, {test.only_b} in b alone; "
           f"a - b = {100 * test.difference:+.2f} points, McNemar p = {test.p:.2g}")  # fmt: skip
    columns = max(40, (width or shutil.get_terminal_size((120, 40)).columns))
    for i in flips[:limit]:
        yield f"\n=== {i}  gold: {left[i]['gold']}"
        asked = left[i]["prompt"]  # text, or the messages of a conversation
        asked = asked if isinstance(asked, str) else asked[-1]["content"]
        yield textwrap.fill(asked, columns, max_lines=6, placeholder=" ...")
        yield side_by_side(left[i], right[i], columns)


def side_by_side(a: Record, b: Record, columns: int) -> str:
    room = (columns - 3) // 2

    def block(e: Record) -> list[str]:
        head = f"{'RIGHT' if e['correct'] else 'WRONG'}  {e['extracted']!r:.{room}} by {e['rule']}"
        body = [part for text in e["response"].strip().split("\n") for part in textwrap.wrap(text, room) or [""]]
        return [*textwrap.wrap(head, room), "-" * room, *body]

    x, y = block(a), block(b)
    height = max(len(x), len(y))
    pairs = zip(x + [""] * (height - len(x)), y + [""] * (height - len(y)), strict=True)
    return "\n".join(f"{p:<{room}} | {q}".rstrip() for p, q in pairs)
