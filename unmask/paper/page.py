"""Results as one page, markdown and HTML: our number, its interval, the paper's beside it, and what held.

A page is a list of blocks: ("h1" or "h2", text), ("p", text), ("table", rows). Nothing on it comes from anywhere but the
runs' own files and the paper's tables; a run that is not there has a reason in place of a number."""

from __future__ import annotations

import html
import math
import re
import shutil
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from unmask.evaluation.significance import over_tasks, paired
from unmask.evaluation.tune import GRID, Point, points, search
from unmask.files import write_text
from unmask.paper import front_page
from unmask.paper import numbers as paper
from unmask.paper.claims import ENOUGH, SURE, sentence
from unmask.paper.experiments import LONGEST, PLACES, Cell, Experiment, eot_ratio
from unmask.paper.fronts import Front
from unmask.paper.plan import Book, Job, Setting, clock, same_model, small_length
from unmask.tables import markdown, shown
from unmask.tasks import find
from unmask.views import figures
from unmask.views.figures import BINS, early

Block = tuple[str, Any]  # ("h1", "h2" or "p", text), ("table", its rows), or ("figure", its file and what it shows)
ALT = "accuracy against forwards, every method at several budgets"
COST = 0.95  # of the plain throughput: what "negligible overhead" is taken to mean


# ---------------------------------------------------------------- tables


def accuracy_rows(cells: Sequence[Cell], book: Book) -> list[dict[str, Any]]:
    """Model by model, task by task, so that what is compared is together; then the averages over the tasks."""
    rows = []
    for model in dict.fromkeys(cell.source.model for cell in cells):
        mine = [cell for cell in cells if cell.source.model == model]
        tasks = list(dict.fromkeys(cell.run.task for cell in mine))
        rows += [
            {"model": model, **accuracy_row(cell, book)} for task in tasks for cell in mine if cell.run.task == task
        ]
        for key in dict.fromkeys(cell.configuration for cell in mine) if len(tasks) > 1 else ():
            same = [cell for cell in mine if cell.configuration == key]
            if len(same) == len(tasks):
                rows.append({"model": model, **average_row(same, book)})
    return (
        rows
        if len({row["model"] for row in rows}) > 1
        else [{k: v for k, v in row.items() if k != "model"} for row in rows]
    )


def accuracy_row(cell: Cell, book: Book) -> dict[str, Any]:
    run, record = cell.run, book.record(cell.run)
    published = cell.source.accuracy if cell.beside else None
    row: dict[str, Any] = {"task": run.task, "method": run.method, "settings": settings(cell), "L": run.length,
                           "T": run.steps or (run.length // 2 if run.strategy.pace == 0.5 else "its own")}  # fmt: skip
    if record:
        summary = record["summary"]
        ours = 100 * summary["accuracy"]
        row |= {
            "n": summary["rows"],
            "ours": ours,
            "95 %": "{:.1f} to {:.1f}".format(*(100 * x for x in summary["interval"])),
        }
        row |= {"paper": published, "EOT": summary["eot_ratio"], "NFE": f"{summary['nfe']:.0f}"}
        if published is not None and same_model(
            cell, book.jobs[run].checkpoint, book.jobs[run].planned.options.model_options
        ):
            row["difference"] = f"{ours - published:+.2f}"
    else:
        row |= {"ours": "not run here", "paper": published}
    if (ratio := eot_ratio(cell) if cell.beside else None) is not None:
        row["paper's EOT"] = ratio
    return row


def average_row(cells: Sequence[Cell], book: Book) -> dict[str, Any]:
    """A method over its tasks, each counting equally, ours and the paper's; the interval is combined from the tasks'."""
    rows, records = [accuracy_row(cell, book) for cell in cells], [book.record(cell.run) for cell in cells]
    found = {"task": f"average of {len(cells)}", "method": rows[0]["method"], "ours": "not run here"}
    found["settings"] = rows[0]["settings"] if len({row["settings"] for row in rows}) == 1 else "as above"
    if all(cell.beside for cell in cells):
        found["paper"] = sum(row["paper"] for row in rows) / len(rows)
    if all(records):
        summaries = [record["summary"] for record in records if record]
        ours, low, high = over_tasks(summaries)
        found |= {"n": sum(s["rows"] for s in summaries), "ours": 100 * ours}
        found["95 %"] = f"{100 * low:.1f} to {100 * high:.1f}"
        if all("difference" in row for row in rows):
            found["difference"] = f"{100 * ours - found['paper']:+.2f}"
    return found


COLUMNS = (
    "model",
    "task",
    "method",
    "settings",
    "L",
    "T",
    "NFE",
    "n",
    "ours",
    "95 %",
    "paper",
    "difference",
    "EOT",
    "paper's EOT",
)


def settings(cell: Cell) -> str:
    return ", ".join(
        "top margin" if name == "confidence" else f"{name} {value!r}" for name, value in cell.changes.items()
    )


def histogram_rows(cells: Sequence[Cell], book: Book) -> list[dict[str, Any]]:
    """One line per bin, one column per method: the share, in percent, of what the first 15 % of the steps decoded."""
    bins: dict[str, list[float]] = {}
    anchor: set[int] = set()
    length = cells[0].run.length
    for cell in cells:
        if book.record(cell.run):
            found = book.examples(cell.run)
            columns = zip(*(early(e["order"], e["nfe"]) for e in found), strict=True)
            bins[cell.run.method] = [100 * sum(column) / len(found) for column in columns]
            anchor |= {slot * BINS // length for slot, when in enumerate(found[0]["order"]) if when < 0}
    return [
        {"bin": i + 1, "slots": f"{math.ceil(i * length / BINS)} to {math.ceil((i + 1) * length / BINS) - 1}",
         **{method: f"{values[i]:.1f}" for method, values in bins.items()}, "anchor": "here" if i in anchor else ""}
        for i in range(BINS) if bins
    ]  # fmt: skip


def resampled(
    values: Sequence[Sequence[float]], figure: Callable[..., float], count: int = 2000
) -> tuple[float, float]:
    """95 % bootstrap interval of a figure of paired columns."""
    rng, n = Random(0), len(values[0])
    drawn = [[rng.randrange(n) for _ in range(n)] for _ in range(count)]
    found = sorted(figure(*([column[i] for i in picks] for column in values)) for picks in drawn)
    return found[int(0.025 * count)], found[int(0.975 * count) - 1]


def efficiency_blocks(e: Experiment, cells: Sequence[Cell], book: Book) -> list[Block]:
    speed = book.speeds.get(e.name)
    rows = []
    for cell in cells:
        method = cell.run.method
        tokens, latency = paper.EFFICIENCY[method]
        row: dict[str, Any] = {
            "method": method,
            "tokens/s": "not run here",
            "paper's tokens/s": tokens,
            "paper's s/sample": latency,
        }
        if speed:
            seconds = speed["seconds"][method]
            low, high = resampled([seconds], median)
            row |= {"n": len(seconds), "tokens/s": speed["length"] / median(seconds), "s/sample": f"{median(seconds):.3f}",
                    "95 %": f"{low:.3f} to {high:.3f}"}  # fmt: skip
        rows.append(row)
    columns = ("method", "n", "tokens/s", "s/sample", "95 %", "paper's tokens/s", "paper's s/sample")
    blocks: list[Block] = [("table", ordered(rows, columns))]
    if speed:
        plain, ours = (speed["seconds"][name] for name in paper.EFFICIENCY)

        def ratio(x: Sequence[float], y: Sequence[float]) -> float:
            return median(x) / median(y)

        low, high = resampled([plain, ours], ratio)
        verdict = "Held" if low > COST else "Did not hold" if high < COST else "Not decided"
        published = paper.EFFICIENCY["sacm"][0] / paper.EFFICIENCY["top-probability"][0]
        where = "{device} ({machine}, {threads} threads, torch {torch})".format(**speed["machine"])
        blocks.append(("p", f"Medians of samples decoded one at a time, the methods taking turns, on {where}; the paper's are of an "
                            "NVIDIA A6000, so only the ratio compares."))  # fmt: skip
        blocks.append(("p", f"**{verdict}:** SACM's throughput is {100 * ratio(plain, ours):.1f} % [{100 * low:.1f}, {100 * high:.1f}] of "
                            f"top-probability's (paper: {100 * published:.1f} %; held means above {100 * COST:g} %), "
                            f"n = {len(plain)}."))  # fmt: skip
    return blocks


def sweep_blocks(cells: Sequence[Cell], book: Book) -> list[Block]:
    """One line per task: the point that the sweep chooses, and the paper's."""
    rows, clauses = [], []
    for task in dict.fromkeys(cell.run.task for cell in cells):
        found = [cell for cell in cells if cell.run.task == task]
        theirs = Point(**{name: float(value) for name, value in find(found[0].source.task).settings.items()})
        row: dict[str, Any] = {"task": task, "points": len(found), "paper": str(theirs), "ours": "not run here"}
        outcomes = {Point(**cell.changes): [(e["correct"], e["nfe"]) for e in book.examples(cell.run)]
                    for cell in found if book.record(cell.run)}  # fmt: skip
        if len(outcomes) == len(found):
            everywhere = points(GRID, theirs)
            sweep = search(
                everywhere, theirs, [len(next(iter(outcomes.values())))], lambda some, *_, seen=outcomes: seen, False
            )
            best, other = sweep.right(sweep.chosen), sweep.right(theirs)
            test = paired(best, other)
            equal = sum(paired(sweep.right(p), best).interval[1] >= 0 for p in outcomes if p != sweep.chosen)
            row |= {"n": len(best), "ours": str(sweep.chosen), "accuracy": 100 * sum(best) / len(best),
                    "accuracy of the paper's": 100 * sum(other) / len(other),
                    "difference": f"{100 * test.difference:.1f} [{100 * test.interval[0]:.1f}, {100 * test.interval[1]:.1f}]"}  # fmt: skip
            same = (
                "the paper's own point"
                if sweep.chosen == theirs
                else f"{sweep.chosen}, {row['difference']} points above the paper's"
            )
            clauses.append(f"on {task} the sweep chooses {same}; {equal} of the other {len(outcomes) - 1} points are not told apart "
                           f"from it by {len(best)} rows")  # fmt: skip
        rows.append(row)
    columns = ("task", "points", "n", "ours", "accuracy", "paper", "accuracy of the paper's", "difference")
    blocks: list[Block] = [("table", ordered(rows, columns))]
    if clauses:
        blocks.append(("p", f"**Found:** {'; '.join(clauses)}. Of equals the one nearest the paper's is chosen. The difference is on the "
                            "rows it was chosen on, which flatters it."))  # fmt: skip
    return blocks


def front_blocks(e: Front, cells: Sequence[Cell], book: Book) -> list[Block]:
    if e.apart and len(tasks := dict.fromkeys(cell.run.task for cell in cells)) > 1:
        return [block for task in tasks for block in front_blocks(e, [c for c in cells if c.run.task == task], book)]
    found = front_page.rows(e, cells, book)
    if not found:
        return [("p", "not run here")]
    columns = list(dict.fromkeys(key for row in found for key in row))
    blocks: list[Block] = [("table", ordered(found, columns))]
    if not e.apart:
        blocks.append(("figure", (f"{e.name}.png", [point for point, _ in front_page.points(cells, book)], e.beside)))
    return [*blocks, *verdicts(e, cells, book)]


def verdicts(e: Experiment, cells: Sequence[Cell], book: Book) -> list[Block]:
    """What held of its claims; nothing where it has none, or none could be decided on."""
    words = sentence(e.claims, cells, book).strip(". ")
    return [("p", f"{words}.")] if words else []


def ordered(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The rows with those of the columns that any of them has."""
    used = [c for c in columns if any(row.get(c) not in (None, "") for row in rows)]
    return [{c: row.get(c) for c in used} for row in rows]


# ---------------------------------------------------------------- the page


def blocks(experiments: Sequence[Experiment], book: Book, setting: Setting, command: str) -> list[Block]:
    length = small_length(setting.given)
    done = [job for run, job in book.jobs.items() if book.record(run)]
    decoded = sum(record["summary"]["seconds"] for job in done if (record := book.record(job.run)))
    model = ", ".join(book.weights) or "no model"
    page: list[Block] = [
        ("h1", f"The paper's tables, run on {model}"),
        ("p", f"Made by `{command}` on {time.strftime('%Y-%m-%d')}."),
    ]
    weights = "; ".join(f"`{name}` sha256 `{value[:16]}`" for name, value in book.weights.items()) or "none"
    page.append(("p", f"{len(done)} runs, {sum(job.count for job in done)} responses; decoding them took {clock(decoded)} (this command: "
                      f"{clock(book.wall)}). {versions(done, book)}Weights: {weights}."))  # fmt: skip
    page.append(("p", reading(length, setting)))
    for e in experiments:
        cells = list(e.cells(length, setting.limit))
        page += [
            ("h2", e.name),
            ("p", f"{e.asks} ({where(e)})"),
        ]
        if not cells:
            page.append(("p", f"not run here: {e.absent}."))
            continue
        page += section(e, cells, book)
        if crowded := [cell.label for cell in e.cells(length, setting.limit, fit=False)]:
            page.append(("p", f"not run here: {', '.join(dict.fromkeys(crowded))}: there are more blocks than steps, and a block takes "
                              "a forward at least."))  # fmt: skip
        if e.name in book.untimed:
            page.append(("p", f"not run here: {book.untimed[e.name]}"))
        reasons: dict[str, list[str]] = {}
        for cell in cells:
            if cell.run in book.absent:
                reasons.setdefault(book.absent[cell.run], []).append(f"{cell.run.task} {cell.label}")
            elif book.record(cell.run) is None and e.kind != "efficiency":
                reasons.setdefault("it is not finished; the same command goes on", []).append(
                    f"{cell.run.task} {cell.label}"
                )
        for why, which in reasons.items():
            some = ", ".join(which[:4]) + (f" and {len(which) - 4} more" if len(which) > 4 else "")
            page.append(("p", f"not run here: {'all of it' if len(which) == len(cells) else some}: {why}"))
        left = {c.task for c in e.answers} - set(e.places) if length else set()
        if none := sorted(left - set(PLACES)):
            page.append(("p", f"not run here: {', '.join(none)}: no bundled task stands in its place."))
        if long := sorted(left & set(PLACES)):
            page.append(("p", f"not run here: {', '.join(long)}: left out in small, where it would take too long."))
    return page


def where(e: Experiment) -> str:
    """Which table of the paper, and which rows."""
    table = e.label if isinstance(e, Front) else f"`{e.label}` in the paper"
    return f"{table}, tuning rows" if e.split == "tuning" else table


def section(e: Experiment, cells: Sequence[Cell], book: Book) -> list[Block]:
    if e.kind == "efficiency":
        return efficiency_blocks(e, cells, book)
    if e.kind == "sweep":
        return sweep_blocks(cells, book)
    if isinstance(e, Front):
        return front_blocks(e, cells, book)
    found: list[Block] = [("table", ordered(accuracy_rows(cells, book), COLUMNS))]
    if e.kind == "histogram":
        rows = histogram_rows(cells, book)
        found = [
            (
                "p",
                "Percent of what the first 15 % of the steps decoded; the paper has it as a picture, without numbers.",
            )
        ]
        found.append(("table", rows) if rows else ("p", "not run here"))
    if any(book.record(cell.run) for cell in cells):
        found += verdicts(e, cells, book)
    return found


def reading(length: int | None, setting: Setting) -> str:
    text = ("`ours` is accuracy in percent with Wilson's 95 % interval over n rows; differences between methods are paired on the same "
            "rows, with a 95 % interval; over several tasks they are means in which every task counts alike. A claim about accuracy is "
            f"decided if the interval is on one side and p < {SURE:g} (exact paired test), any claim by {ENOUGH} rows at least. EOT is "
            "the share of end-of-text tokens, NFE the forwards a row took. ")  # fmt: skip
    if length:
        places = ", ".join(f"{task} in the place of {theirs}" for theirs, (task, *_) in PLACES.items())
        return text + (
            f"**In small:** L = {length} stands for {LONGEST}, and steps, blocks, lengths and the varied places of the anchor are in "
            "proportion; (kappa, beta, gamma) and the default place of the anchor (-20) are the method's own. The tasks are the "
            f"bundled ones: {places}. `paper` is its number for LLaDA on that benchmark: another model and another task, so no "
            "difference to it is taken. What can be compared is which method is above which."
        )  # fmt: skip
    text += "`difference` is ours minus the paper's, where the model is the paper's."
    return text + (
        f" Only {setting.limit} rows a task were run; the paper's numbers are of all." if setting.limit else ""
    )


def versions(jobs: Sequence[Job], book: Book) -> str:
    """What made the runs, and where, as they say themselves."""
    found: Counter[str] = Counter()
    for job in jobs:
        about = (book.record(job.run) or {})["provenance"]
        names = ", ".join(f"{name} {value}" for name, value in about["versions"].items() if value)
        crew = f", {about['workers']} workers with {about['threads']} threads each" if "workers" in about else ""
        found[f"{names}; {about['device']}{crew}"] += 1
    return "".join(f"{about}{f' ({count} runs)' if len(found) > 1 else ''}. " for about, count in found.items())


def as_markdown(page: Sequence[Block]) -> str:
    parts = []
    for kind, content in page:
        if kind == "table":
            parts.append(markdown(content, list(content[0])).rstrip("\n") if content else "")
        elif kind == "figure":
            parts.append(f"![{ALT}]({content[0]})")
        else:
            parts.append({"h1": "# ", "h2": "## ", "p": ""}[kind] + content)
    return "\n\n".join(parts) + "\n"


STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;background:#fff}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13px;font-variant-numeric:tabular-nums}
td,th{padding:.2rem .6rem;border-bottom:1px solid #d8dde3;text-align:left;white-space:nowrap}th{border-bottom:2px solid #8a929b}
img{max-width:100%}code{background:#eef1f4;padding:.1em .3em;border-radius:3px}h2{margin-top:2.5rem}
@media(prefers-color-scheme:dark){body{color:#e6e9ec;background:#15181c}td,th{border-color:#3a4048}code{background:#262b31}}"""


def as_html(page: Sequence[Block]) -> str:
    def inline(text: str) -> str:
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
        return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", text)

    parts = []
    for kind, content in page:
        if kind == "figure":
            parts.append(f'<img src="{html.escape(content[0])}" alt="{ALT}">')
        elif kind != "table":
            place = f' id="{html.escape(content)}"' if kind == "h2" else ""
            parts.append(f"<{kind}{place}>{inline(content)}</{kind}>")
        elif content:
            head = "".join(f"<th>{html.escape(c)}</th>" for c in content[0])
            body = "".join(
                "<tr>" + "".join(f"<td>{html.escape(shown(v))}</td>" for v in row.values()) + "</tr>\n"
                for row in content
            )
            parts.append(
                f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>'
            )
    title = html.escape(page[0][1])
    return ('<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width,initial-scale=1">'
            f"<title>{title}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")  # fmt: skip


def write(page: Sequence[Block], out: Path, stem: str = "results") -> list[Path]:
    """Markdown and HTML, with the pictures beside them."""
    files = {out / f"{stem}.md": as_markdown(page), out / f"{stem}.html": as_html(page)}
    for file, text in files.items():
        write_text(file, text)
    for name, reached, beside in (content for kind, content in page if kind == "figure" and find_spec("matplotlib")):
        figures.write(figures.front(reached, front_page.leading(reached), beside), out / name)
    return list(files)


def told(page: Sequence[Block], width: int | None = None) -> str:
    """The sentences alone, for the terminal."""
    columns, lines, name = width or shutil.get_terminal_size((100, 40)).columns, [], ""
    for kind, content in page:
        name = content if kind == "h2" else name
        if kind == "p" and name and content.startswith(("**", "not run here")):
            lines.append(textwrap.fill(f"{name}: {content.replace('**', '')}", columns, subsequent_indent="  "))
    return "\n".join(lines)
