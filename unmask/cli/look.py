"""Commands that show how decoding goes: trace, figure."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from unmask.cli.options import (
    DATA,
    DECODING,
    IMAGE,
    METHODS,
    MODEL,
    PROMPTS,
    SETTINGS,
    SPLIT,
    THREE,
    asked,
    command,
    data_of,
    decoding,
    images,
    load,
    methods_of,
    names,
    option,
    prompts,
    settings,
    task_of,
    together,
    writable,
)  # fmt: skip
from unmask.errors import UserError
from unmask.progress import Bar

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.tasks import Rows, Task
    from unmask.views.trace import Run

ASKED = together(
    PROMPTS,
    option(
        "--task",
        metavar="NAME",
        help="take the prompts from a benchmark (cups, gsm8k, FILE.py:NAME, ...) and grade the answers",
    ),
    option("--rows", default="0", metavar="N,N", help="which rows of the task (default: 0)"),
    SPLIT,
    DATA,
)


@command(
    "trace", "record how methods decode a prompt: a page to replay in a browser, or a file to keep",
    """
  unmask trace "Tom has 3 apples ..." -o replay.html
  unmask trace --task cups --rows 0,3 --methods top-probability,suffix-anchor,sacm -o replay.html
  unmask trace "..." --methods sacm -o run.json.gz     keep it (docs/traces.md), and
  unmask trace run.json.gz -o replay.html              show it later""",
    option("prompt", nargs="?", metavar="PROMPT", help='the prompt ("-" reads standard input), or a trace file made earlier'),
    ASKED,
    METHODS,
    option("-o", "--out", action="append", default=[], metavar="FILE",
           help="a page (.html) or a trace file (.json.gz, .json); repeatable (default: replay.html)"),
    SETTINGS,
    DECODING,
    IMAGE,
    MODEL,
)  # fmt: skip
def trace(args: argparse.Namespace) -> None:
    outs = args.out or ["replay.html"]
    for out in outs:
        if not out.endswith((".html", ".json", ".json.gz")):
            raise UserError(f"{out}: a page ends in .html, a trace file in .json.gz or .json")
        writable(out)
    from unmask.views import replay
    from unmask.views import trace as tracing

    runs = tracing.load(args.prompt) if _is_trace(args.prompt) else traced(args, methods_of(names(args.methods)))
    for out in outs:
        (replay.write if out.endswith(".html") else tracing.save)(out, runs)
        print(out)


def _is_trace(word: str | None) -> bool:
    return bool(word) and str(word).endswith((".json.gz", ".json"))


def traced(args: argparse.Namespace, methods: dict[str, Strategy], extra: dict[str, Any] | None = None) -> list[Run]:
    """Runs of the methods on the prompts or the task's rows that a command line asks for."""
    from unmask.decoding.methods import strategies
    from unmask.evaluation.recipe import for_task
    from unmask.views.trace import record, record_rows

    if not args.task:
        rows = prompts(args.prompt, args.prompts)
        found = strategies(methods, settings(args) | (extra or {}))
        return record(load(args), [asked(row) for row in rows], found, decoding(args), images=images(args, rows))
    if args.prompt or args.prompts:
        raise UserError("give a prompt or --task, not both")
    task = task_of(args.task)
    found = for_task(task, methods, settings(args, task.name) | (extra or {}))
    return record_rows(load(args), task, picked(task, args), found, decoding(args))


def picked(task: Task, args: argparse.Namespace) -> Rows:
    """The rows of a task that --rows names."""
    rows = task.load(args.split, data_of(args, task))
    try:
        some = [rows.rows[int(n)] for n in names(args.rows)]
    except (ValueError, IndexError):
        raise UserError(
            f"--rows takes row numbers from 0 to {len(rows.rows) - 1}, as in 0,5; not {args.rows!r}"
        ) from None
    return replace(rows, data=replace(rows.data, rows=some))


@command(
    "figure", "the paper's figures, from traces or saved runs, or decoded afresh",
    """
  unmask figure failure-modes --task cups -o failure-modes.png
  unmask figure failure-modes --task cups --confidence margin --anchor . -o margin.svg
  unmask figure failure-modes run.json.gz -o fig.pdf          from a trace file
  unmask figure progress --task cups --methods sacm -o progress.pdf
  unmask figure effects runs/gsm8k -o effects.pdf             from a folder of `unmask eval`
  unmask figure parallelism --task cups --limit 100 -o parallelism.pdf""",
    option("kind", metavar="KIND", choices=["failure-modes", "effects", "progress", "parallelism", "sensitivity", "anchors"],
           help="failure-modes, effects, progress, parallelism, sensitivity or anchors"),
    option("runs", nargs="*", metavar="RUN", help="trace files, or folders of `unmask eval`; without them, what is needed is decoded"),
    option("--prompt", help="the prompt for failure-modes and progress"),
    ASKED,
    option("--methods", metavar="A,B", help=f"for failure-modes and progress (default: {THREE}; sacm)"),
    option("--confidence", choices=["probability", "margin", "certainty"], help="the confidence to decode by (default: the method's)"),
    option("--anchor", metavar="TEXT", help="another anchor text"),
    option("--at", type=float, default=0.25, metavar="SHARE", help="failure-modes: which intermediate step to show (default: 0.25)"),
    option("--limit", type=int, default=48, metavar="N", help="rows of the task, where accuracy is measured (default: 48)"),
    option("--keep", metavar="DIR", help="where fresh runs are kept, to resume from (default: runs/figure-KIND-TASK)"),
    option("-o", "--out", required=True, metavar="FILE", help="the picture: .png, .svg or .pdf"),
    SETTINGS,
    DECODING,
    IMAGE,
    MODEL,
)  # fmt: skip
def figure(args: argparse.Namespace) -> None:
    if not args.out.lower().endswith((".png", ".svg", ".pdf")):
        raise UserError(f"{args.out}: a figure ends in .png, .svg or .pdf")
    if not 0 <= args.at <= 1:
        raise UserError(f"--at is a share of the steps, from 0 to 1, not {args.at}")
    writable(args.out)
    from unmask.views import figures

    if args.kind in ("failure-modes", "progress"):
        runs = drawn(args)
        made = figures.failure_modes(runs, args.at) if args.kind == "failure-modes" else figures.progress(runs)
    elif args.kind == "effects" and args.runs and all(map(_is_trace, args.runs)):
        made = figures.effects(figures.samples(drawn(args)))
    else:
        records = measured(args)
        made = {
            "effects": lambda: figures.effects(figures.samples_of_records(records)),
            "parallelism": lambda: figures.parallelism(records),
            "sensitivity": lambda: figures.sensitivity(records),
            "anchors": lambda: figures.anchors(records),
        }[args.kind]()
    figures.write(made, args.out)
    print(args.out)


def drawn(args: argparse.Namespace) -> list[Run]:
    """The traces of a figure: from files, or decoded now."""
    from unmask.decoding.rules.confidence import Certainty, TopMargin, TopProbability
    from unmask.views.trace import load as load_trace

    if args.runs:
        return [run for file in args.runs for run in load_trace(file)]
    rules = {"probability": TopProbability(), "margin": TopMargin(), "certainty": Certainty()}
    extra = {"confidence": rules[args.confidence]} if args.confidence else {}
    methods = methods_of(names(args.methods or ("sacm" if args.kind == "progress" else THREE)))
    return traced(args, methods, extra | ({"text": args.anchor} if args.anchor else {}))


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of a figure: from saved runs, or from runs made now."""
    from unmask.evaluation.evaluate import load_rows
    from unmask.evaluation.recipe import Options
    from unmask.evaluation.report import records
    from unmask.paper.run import figure_records

    if args.runs:
        return records(args.runs)
    task = task_of(args.task or "cups")
    tuning = args.split == "tuning" or (args.kind == "sensitivity" and task.tuning)
    rows = load_rows(task, "tuning" if tuning else "test", data_of(args, task), args.limit)
    out = args.keep or f"runs/figure-{args.kind}-{task.name}"
    with Bar() as bar:
        return figure_records(args.kind, load(args), task, rows, Options(**vars(decoding(args))), out, bar.accuracy)
