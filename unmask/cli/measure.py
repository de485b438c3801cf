"""Commands that measure: eval, grade, tune, doctor, diff, report, lm-eval."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from unmask.cli.options import (
    DATA,
    DECODING,
    GRADING,
    LOADING,
    METHODS,
    MODEL,
    PROMPTS,
    SETTINGS,
    SPLIT,
    WORKERS,
    command,
    data_of,
    decoding,
    evaluating,
    load,
    methods_of,
    names,
    option,
    prompts,
    replicas,
    say,
    settings,
    task_of,
    typed,
    writable,
)  # fmt: skip
from unmask.errors import UserError
from unmask.files import write_text
from unmask.progress import Bar

if TYPE_CHECKING:
    from unmask.evaluation.recipe import Options
    from unmask.tasks import Task


@command(
    "eval", "run methods on a benchmark: accuracy with intervals, every example kept",
    """
  unmask eval --task cups --methods sacm,suffix-anchor,top-probability --limit 100
  unmask eval --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --methods sacm,top-probability --out runs/gsm8k
  unmask eval --task mmlu_pro --data mmlu_pro/ --methods sacm --set kappa=12 --json
  unmask eval --task cups --settings runs/tune-tiny-cups/settings.json     with what `unmask tune` chose
  unmask eval --task exact --data mine.jsonl                         rows: {"prompt": ..., "answer": ...}
  unmask eval --task mine.py:task --methods mine.py:method,sacm      your own task and method (docs/extend.md)
  unmask eval --task cups --workers 2                                two replicas of the model at once, on Ray
  the same command again resumes after a crash""",
    option("--task", required=True, metavar="NAME", help="gsm8k, cups, ...; FILE.py:NAME; exact, number, choice, regex (of --data)"),
    METHODS,
    DATA,
    SPLIT,
    option("--limit", type=int, metavar="N", help="only the first N rows"),
    SETTINGS,
    DECODING,
    option("--seeds", type=int, default=1, metavar="N", help="runs of a method that draws; reports mean and spread (default: 1)"),
    option("--vote", choices=["temporal", "blocks"], default="", help="the answers of all steps, or of several block sizes (HEX), vote"),
    option("--layout", choices=["flat", "turns"], help="few-shot examples in the one prompt (default), or as turns of a conversation"),
    option("--out", metavar="DIR", help="the folder for the runs (default: runs/MODEL-TASK)"),
    GRADING,
    option("--json", action="store_true", help="print the summary as one JSON object"),
    MODEL,
    WORKERS,
)  # fmt: skip
def evaluate(args: argparse.Namespace) -> None:
    task = task_of(args.task)
    task = replace(task, layout=args.layout or task.layout)
    from unmask.evaluation import evaluate as evaluation
    from unmask.evaluation import tune
    from unmask.evaluation.recipe import for_task
    from unmask.evaluation.report import table_of_summary

    wanted = settings(args, task.name)
    methods, options = for_task(task, methods_of(names(args.methods)), wanted), evaluating(args)
    evaluation.check_code(task, options)
    rows = evaluation.load_rows(task, args.split, data_of(args, task), args.limit, skip_bad=args.bad_rows == "skip")
    for problem in rows.skipped[:20]:
        say(f"skipped {problem}")
    if len(rows.skipped) > 20:
        say(f"skipped {len(rows.skipped) - 20} rows more")
    with replicas(args) as (model, pool), Bar() as bar:
        length = options.length or task.length
        if args.settings_file and (line := tune.otherwise(args.settings_file, methods, wanted, length, options.steps)):
            say(line)
        out = args.out or f"runs/{Path(args.model).name}-{task.name}"
        summary = evaluation.evaluate(model, task, methods, rows, options, out, bar.accuracy, pool)
    print(json.dumps(summary, ensure_ascii=False) if args.json else table_of_summary(summary))


@command(
    "grade", "grade outputs saved by any system",
    """
  unmask grade --task gsm8k outputs.jsonl             lines: {"output": ..., "gold": ...} or {"output": ..., "doc": row}
  unmask grade --task mmlu_pro outputs.jsonl --data mmlu_pro/ --json     "doc" may be a row's index or id
  unmask grade --task humaneval outputs.jsonl --allow-code""",
    option("file", metavar="FILE", help="a JSONL file of outputs"),
    option("--task", metavar="NAME", help='the benchmark (default: what each line says in "benchmark")'),
    option("--data", metavar="PATH", help="the benchmark's file or folder, to look rows up in"),
    GRADING,
    option("--json", action="store_true", help="one JSON record per line: id, correct, extracted, rule"),
)  # fmt: skip
def grade(args: argparse.Namespace) -> None:
    from unmask.evaluation import grading

    task = task_of(args.task) if args.task else None
    lines, skipped = grading.read(args.file, task, args.data, args.bad_rows == "skip")
    records = []
    for record in grading.graded(lines, args.mode, args.allow_code, args.unisolated_code):
        records.append(record)
        if args.json:
            print(json.dumps(record, ensure_ascii=False), flush=True)
    for problem in skipped:
        say(f"skipped {problem}")
    for total in grading.totals(records):
        print(grading.percent(total), file=sys.stderr if args.json else sys.stdout)


@command(
    "tune", "choose kappa, beta and gamma, or the near cache's settings, on a task's tuning rows, never on test rows",
    """
  unmask tune --task cups                                       the paper's 36 points by successive halving, and
  unmask eval --task cups --settings runs/tune-tiny-cups/settings.json        what they are worth on the test rows
  unmask tune --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --out gsm8k.json
  unmask tune --task cups --full                                the paper's full sweep; reuses what halving decoded
  unmask tune --task cups --check                               both: is it the same point, and what was saved?
  unmask tune --task cups --kappa 6,8,10,12,14 --gamma 0.55,0.7,0.85,1
  unmask tune --task cups --cache near --count 500              the cache's best, near, again and refresh instead
  unmask tune --task cups --cache near --method sacm-support --set finish=2 --refresh 0
  the same command again resumes""",
    option("--task", required=True, metavar="NAME", help="gsm8k, math500, strategyqa, chartqa, mbpp, stories, cups, compass"),
    option("--method", default="sacm", metavar="NAME", help="a method with kappa, beta and gamma: sacm, sacm-margin (default: sacm)"),
    option("--count", "--limit", type=int, default=128, metavar="N", help="tuning rows, drawn at random (default: 128, as in the paper)"),
    option("--full", action="store_true", help="try every point on every row (default: successive halving)"),
    option("--check", action="store_true", help="halving, then the full sweep: do they choose the same point?"),
    option("--first", type=int, metavar="N", help="rows before the worse half is first dropped (default: an eighth)"),
    option("--kappa", metavar="A,B", help="values to try (default: 12,14)"),
    option("--beta", metavar="A,B", help="values to try (default: 1,1.1,1.2,1.3,1.4,1.5)"),
    option("--gamma", metavar="A,B", help="values to try (default: 0.7,0.85,1)"),
    option("--best", metavar="A,B", help="with --cache near: values to try (default: 2,8)"),
    option("--near", metavar="A,B", help="with --cache near: values to try (default: 4,8)"),
    option("--again", metavar="A,B", help="with --cache near: values to try (default: 1,2)"),
    option("--refresh", metavar="A,B", help="with --cache near: values to try; 0 never refreshes (default: 0,4)"),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="another setting, the same for all points"),
    DATA,
    DECODING,
    option("--folder", metavar="DIR", help="where the runs, the table and the heat map go (default: runs/tune-MODEL-TASK)"),
    option("--out", metavar="FILE", help="the settings file (default: settings.json in the folder)"),
    GRADING,
    option("--json", action="store_true", help="print everything as one JSON object"),
    WORKERS,
    MODEL,
)  # fmt: skip
def tune(args: argparse.Namespace) -> None:
    from unmask.decoding.settings import parse
    from unmask.evaluation import evaluate as evaluation
    from unmask.evaluation import tune
    from unmask.evaluation.recipe import for_task
    from unmask.views import figures

    task, options = task_of(args.task), evaluating(args)
    evaluation.check_code(task, options)
    fixed = parse(args.settings)
    if args.cache == "near":
        tune_near(args, task, options, fixed)
        return
    if cached := [name for name in ("best", "near", "again", "refresh") if getattr(args, name) is not None]:
        raise UserError(f"--{cached[0]} is a setting of the near cache: add --cache near")
    if tuned := [name for name in tune.GRID if name in fixed]:
        raise UserError(f"{tuned[0]} is what is tuned; --{tuned[0]} {fixed[tuned[0]]} tries this value alone")
    ((method, strategy),) = for_task(task, methods_of([args.method]), {**fixed, **task.settings}).items()
    grid = {name: tune.values(name, getattr(args, name)) for name in tune.GRID}
    if args.full and args.check:
        raise UserError("--check runs the full sweep too; leave --full out")
    if args.first is not None and args.first < 1:
        raise UserError(f"--first is at least 1, not {args.first}")
    if args.out:
        writable(args.out)
    rows = evaluation.load_rows(
        task, "tuning", data_of(args, task), args.count, skip_bad=args.bad_rows == "skip", shuffle=args.seed
    )
    if len(rows.rows) < args.count:
        say(f"{task.name} has {len(rows.rows)} tuning rows, fewer than {args.count}")
    folder = Path(args.folder or f"runs/tune-{Path(args.model).name}-{task.name}")
    mode = "check" if args.check else "full" if args.full else "halving"
    with replicas(args) as (model, pool), Bar() as bar:
        record = tune.tune(model, task, method, strategy, rows, options, folder,
                           grid=grid, fixed=fixed, first=args.first, mode=mode, report=bar.accuracy, pool=pool)  # fmt: skip
    out, text = Path(args.out or folder / "settings.json"), tune.table(record)
    tune.write(record, out)
    write_text(folder / "table.md", f"{text}\n{tune.told(record)}\n")
    drawn = figures.write_heat_map(record, folder / "heat-map.png")
    if args.json:
        print(json.dumps(record, ensure_ascii=False))
        return
    print(f"{text}\n{tune.told(record)}\n")
    print(f"heat map: {folder / 'heat-map.png'}" if drawn else 'for a heat map: pip install "unmask[figures]"')
    given = (
        "length",
        "steps",
        "batch",
        "data",
        "bad_rows",
        "cfg",
        "cache",
        "raw",
        "mode",
        "allow_code",
        "unisolated_code",
        *LOADING,
    )
    words = typed({"task": args.task, "methods": f"{args.method},top-probability", "model": args.model, "settings": out,
                   **{name: getattr(args, name) for name in given}})  # fmt: skip
    print(f"settings: {out}\nnext:  unmask eval {words}")


def tune_near(args: argparse.Namespace, task: Task, options: Options, fixed: dict[str, Any]) -> None:
    """`unmask tune --cache near`: the cache's settings, with the method's as they are."""
    from unmask.evaluation import evaluate as evaluation
    from unmask.evaluation import tune_cache as tune
    from unmask.evaluation.recipe import for_task
    from unmask.files import write_whole

    other = [
        name
        for name in ("kappa", "beta", "gamma", "first", "full", "check")
        if getattr(args, name) not in (None, False)
    ]
    if other:
        raise UserError(
            f"--cache near tunes the cache alone: leave out --{other[0]} (--set fixes a setting of the method)"
        )
    ((method, strategy),) = for_task(task, methods_of([args.method]), fixed).items()
    grid = {name: tune.values(name, getattr(args, name)) for name in tune.GRID}
    tune.points(grid)
    if args.out:
        writable(args.out)
    skip = args.bad_rows == "skip"
    rows = evaluation.load_rows(task, "tuning", data_of(args, task), args.count, skip_bad=skip, shuffle=args.seed)
    if len(rows.rows) < args.count:
        say(f"{task.name} has {len(rows.rows)} tuning rows, fewer than {args.count}")
    folder = Path(args.folder or f"runs/tune-{Path(args.model).name}-{task.name}-near")
    with replicas(args) as (model, pool), Bar() as bar:
        record = tune.tune(
            model, task, method, strategy, rows, options, folder, grid=grid, report=bar.accuracy, pool=pool
        )
    text = f"{tune.table(record)}\n{tune.told(record)}\n"
    write_whole(args.out or folder / "cache.json", record)
    write_text(folder / "table.md", text)
    print(
        json.dumps(record, ensure_ascii=False) if args.json else f"{text}\nrecord: {args.out or folder / 'cache.json'}"
    )


@command(
    "doctor", "what goes wrong with a model's decoding, and which method cures it",
    """
  unmask doctor --task cups
  unmask doctor --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --count 32
  unmask doctor --model ./my-model --prompts questions.jsonl --length 128 --anchor "In short:"
  decodes a few prompts plainly, with end-of-text suppressed, with an anchor, with SACM and, where answers are known, with support""",
    option("--task", metavar="NAME", help="a benchmark; its tuning rows are used, so that nothing is learnt about the test rows"),
    PROMPTS,
    DATA,
    option("--count", type=int, default=16, metavar="N", help="prompts to decode (default: 16)"),
    option("--anchor", metavar="TEXT", help='what the anchor says (default: the task\'s, or "The answer is")'),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="a setting, e.g. at=-30 (repeatable)"),
    DECODING,
    option("--json", action="store_true", help="print every figure, the verdict and the command as one JSON object"),
    MODEL,
)  # fmt: skip
def doctor(args: argparse.Namespace) -> None:
    if bool(args.task) == bool(args.prompts):
        raise UserError("give --task NAME or --prompts FILE")
    if args.count < 1:
        raise UserError(f"--count is at least 1, not {args.count}")
    from unmask.decoding.settings import parse
    from unmask.evaluation import doctor

    task = task_of(args.task) if args.task else None
    given = [*args.settings, *([f"text={args.anchor}"] if args.anchor else [])]
    how = decoding(args)
    case = (replace(doctor.of_task(task, data_of(args, task), args.count), source=f"--task {args.task}") if task
            else doctor.of_prompts(prompts(None, args.prompts)[: args.count], args.prompts))  # fmt: skip
    ways = doctor.ways(case, parse(given))
    model = load(args)
    how = replace(how, length=how.length or (task.length if task else model.length))
    found = doctor.examine(model, case, ways, how)
    options = ("model", "data", "length", "steps", "batch", "cache", "cfg", "raw", *LOADING)
    words = typed({name: getattr(args, name) for name in options})
    float32 = str(next(model.module.parameters()).dtype) == "torch.float32"
    verdict, advised, following = doctor.verdict(found, case, words, given, float32)
    if args.json:
        about = {"model": model.name, "prompts": case.about, "length": how.length}
        print(json.dumps({**about, **doctor.record(found, verdict, advised, following)}, ensure_ascii=False))
        return
    print(f"{model.name}, {case.about}, L = {how.length}\n\n{doctor.table(found)}\n\n{doctor.LEGEND}\n")
    print("\n".join(fill(word, 80) for word in verdict) + f"\n\nnext:  {following}")


@command(
    "diff", "which rows two runs grade differently, side by side",
    """
  unmask diff runs/a runs/b
  unmask diff runs/gsm8k/sacm-1f0c.jsonl runs/gsm8k/top-probability-9ab2.jsonl --limit 5
  unmask diff runs/gsm8k --methods sacm,top-probability""",
    option("runs", nargs="+", metavar="RUN", help="two runs (a folder or a .jsonl file), or one folder with --methods A,B"),
    option("--methods", metavar="A,B", help="which two methods of a folder"),
    option("--limit", type=int, metavar="N", help="show only the first N rows that differ"),
    option("--width", type=int, metavar="COLUMNS", help="columns to use (default: the terminal's)"),
    option("--json", action="store_true", help="one JSON record per row that differs"),
)  # fmt: skip
def diff(args: argparse.Namespace) -> None:
    from unmask.evaluation.report import differences

    for line in differences(args.runs, args.methods, args.limit, args.width, args.json):
        print(line)


@command(
    "report", "tables and a plot over any set of runs, beside the paper's numbers",
    """
  unmask report runs/*
  unmask report runs/gsm8k runs/math500 --format latex
  unmask report runs/* -o report.png""",
    option("runs", nargs="+", metavar="RUN", help="folders of `unmask eval`, or their .json files"),
    option("--format", choices=["markdown", "csv", "latex", "json"], default="markdown", help="of the table (default: markdown)"),
    option("-o", "--out", metavar="FILE", help="a plot (.png, .svg, .pdf), or the table (.md, .csv, .tex, .json)"),
)  # fmt: skip
def report(args: argparse.Namespace) -> None:
    from unmask.evaluation.report import write
    from unmask.paper.numbers import beside

    print(write(args.runs, args.format, args.out, beside), end="")


def everything(parser: argparse.ArgumentParser) -> None:
    """Everything that follows, options included, as one list: another program's command line."""
    parser.prefix_chars = "\0"  # so that nothing looks like an option to this parser
    parser.add_argument(
        "arguments", nargs="*", metavar="...", help="lm-eval's own: `unmask lm-eval run --help` shows them"
    )
    parser.set_defaults(usage=parser.format_help)


@command(
    "lm-eval", "lm-evaluation-harness with our models, methods, tasks and graders; all arguments are lm-eval's",
    """
  unmask lm-eval --model unmask --model_args pretrained=tiny,method=sacm --tasks unmask_cups --apply_chat_template --limit 8
  UNMASK_DATA=data/ unmask lm-eval --model unmask --model_args pretrained=GSAI-ML/LLaDA-8B-Instruct,kappa=12,at=-40 \\
      --tasks unmask_gsm8k,unmask_math500 --apply_chat_template --batch_size 8 --output_path results --log_samples
  unmask lm-eval --model unmask --model_args pretrained=GSAI-ML/LLaDA-8B-Base,mc_num=128 --tasks arc_challenge""",
    everything,
)  # fmt: skip
def lm_eval(args: argparse.Namespace) -> None:
    from unmask import harness

    if args.arguments in ([], ["-h"], ["--help"]):
        print(args.usage())
        sys.exit(0)
    harness.run(args.arguments)
