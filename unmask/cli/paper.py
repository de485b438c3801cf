"""Commands that remake the paper, and go beyond it: reproduce, pareto, accept."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.cli.options import WORKERS, command, methods_of, names, option
from unmask.errors import UserError
from unmask.progress import Bar

if TYPE_CHECKING:
    from unmask.paper.experiments import Experiment
    from unmask.paper.plan import Book, Setting


@command(
    "reproduce", "the paper's tables and figures by name: plan, run what is missing, and write one page of results",
    """
  unmask reproduce list
  unmask reproduce all --model tiny --workers 2       in small, on the bundled model: under half an hour on 2 cores
  unmask reproduce beyond --model tiny --workers 2    support, answer first, the Pareto front and the zoo: hours
  unmask reproduce parallelism --data benchmarks/     on the paper's own weights, from the Hub
  unmask reproduce main --model ./LLaDA-8B-Instruct --limit 100 --plan
  the same command again goes on after a crash, and decodes nothing twice""",
    option("name", metavar="NAME", help="an experiment, all (of the paper's), beyond (our own), or list"),
    option("--model", action="append", default=[], metavar="DIR_OR_ID",
           help="tiny: everything in small; or your copies of the paper's checkpoints (repeatable; default: from the Hub)"),
    option("--limit", type=int, metavar="N", help="rows per task (default: all; on the bundled model 50, or 24 tuning rows)"),
    option("--out", default="runs/reproduce", metavar="DIR", help="runs, results.md and .html, or results-NAME (default: %(default)s)"),
    option("--data", metavar="DIR", help="the folder that holds the benchmarks (default: $UNMASK_DATA, else the Hub)"),
    option("--batch", type=int, metavar="N", help="rows decoded together (default: 8; on the bundled model half of the rows, at most 32)"),
    WORKERS,
    option("--plan", action="store_true", help="say what would be run and about how long it takes, then stop"),
    option("--allow-code", action="store_true", help="run generated code (HumanEval, MBPP) in a sandbox"),
    option("--unisolated-code", action="store_true", help="run it even without sandboxing, at your own risk"),
    option("--device", help="cpu, cuda, cuda:1 or mps (default: a GPU if there is one)"),
    option("--dtype", help="float32, bfloat16 or float16 (default: the checkpoint's own; float32 on a CPU)"),
    option("--quantize", choices=["int8", "int4"], help="weight-only quantization with torchao"),
    option("--device-map", metavar="MAP", help='spread the model over several devices, e.g. "auto"'),
    option("--frequencies", metavar="FILE", help="token frequency table for UNCODE (see `unmask frequencies`)"),
)  # fmt: skip
def reproduce(args: argparse.Namespace) -> None:
    from unmask.paper import fronts, page, plan
    from unmask.tables import markdown

    for name, least in (("limit", args.limit), ("batch", args.batch), ("workers", args.workers)):
        if least is not None and least < 1:
            raise UserError(f"--{name} is at least 1, not {least}")
    if args.ray_address and not args.workers:
        raise UserError("--ray-address says where the workers are; say how many with --workers N")
    setting = plan.Setting(
        tuple(name.rstrip("/") for name in args.model), Path(args.out), args.data or os.environ.get("UNMASK_DATA"), args.limit,
        args.batch, args.allow_code, args.unisolated_code,
        {name: getattr(args, name) for name in ("device", "dtype", "quantize", "device_map", "frequencies")},
        args.workers, args.ray_address,
    )  # fmt: skip
    plan.check(setting.given)
    if args.name == "list":
        found = plan.listing(setting)
        print(markdown(found, list(found[0])), end="")
        return
    wanted = fronts.named(args.name)
    book = run(wanted, setting, args.plan)
    if args.plan:
        return
    given = [word for name in args.model for word in ("--model", name)]
    given += [
        word
        for name in ("limit", "batch", "workers")
        if (value := getattr(args, name))
        for word in (f"--{name}", str(value))
    ]
    made = page.blocks(wanted, book, setting, shlex.join(["unmask", "reproduce", args.name, *given]))
    print(page.told(made))
    for file in page.write(made, setting.out, "results" if args.name == "all" else f"results-{args.name}"):
        print(file)


def run(wanted: list[Experiment], setting: Setting, only_plan: bool = False) -> Book:
    """Print the plan, then decode what is missing."""
    from unmask.paper import plan
    from unmask.paper.run import reproduce
    from unmask.tables import markdown

    shelf = plan.Shelf(setting.loading)
    book = plan.planned(wanted, setting, shelf, download=not only_plan)
    lines = plan.plan_lines(wanted, book, setting)
    print(markdown(lines, [column for column in lines[0] if column != "seconds"]))
    seconds, forwards, todo = (sum(line[column] for line in lines) for column in ("seconds", "forwards", "to do"))
    about = f"about {plan.clock(seconds)} for " if seconds else ""  # workers are not timed
    print(f"{about}{forwards} forwards at most, in {todo} runs; results in {setting.out}", flush=True)
    if not only_plan:
        with Bar() as bar:
            reproduce(wanted, book, setting, shelf, bar)
    return book


@command(
    "pareto", "accuracy against forwards: methods at several budgets, as a table and a picture",
    """
  unmask pareto --task stories,cups,compass --workers 2
  unmask pareto --task cups --methods sacm,sacm-support,semi-ar --budgets 1/8,1/2 --count 100
  unmask pareto --task stories,cups --methods sacm-support --budgets 1/2 --vary rho=3,6,12 --vary eps=0.1,0.3 --split tuning
  unmask pareto --task gsm8k --model GSAI-ML/LLaDA-8B-Instruct --methods sacm,sacm-support-eb --count 200
  the same command again goes on after a crash, and decodes nothing twice""",
    option("--task", required=True, metavar="A,B", help="tasks, comma-separated; a method's accuracy is the mean over them"),
    option("--methods", metavar="A,B", help="see `unmask methods`, or FILE.py:NAME (default: SACM, its variants and the usual baselines)"),
    option("--budgets", metavar="A,B", help="T as shares of L, for methods that take a budget (default: 1/8,1/4,1/2,1)"),
    option("--vary", action="append", default=[], metavar="NAME=A,B", help="values of a setting to try; several are combined (repeatable)"),
    option("--split", choices=["test", "tuning"], default="test", help="test rows, or the rows for choosing settings (default: test)"),
    option("--count", "--limit", type=int, default=100, metavar="N", help="rows per task (default: 100)"),
    option("--model", default="tiny", metavar="DIR_OR_ID", help='checkpoint folder or Hub id (default: the bundled "tiny")'),
    option("--out", default="runs/pareto", metavar="DIR", help="runs, pareto.md, .html and .png (default: %(default)s)"),
    option("--data", metavar="DIR", help="the folder that holds the benchmarks (default: $UNMASK_DATA, else the Hub)"),
    option("--batch", type=int, metavar="N", help="rows decoded together (default: 8; on the bundled model half of the rows, at most 32)"),
    option("--device", help="cpu, cuda, cuda:1 or mps (default: a GPU if there is one)"),
    option("--dtype", help="float32, bfloat16 or float16 (default: the checkpoint's own; float32 on a CPU)"),
    option("--plan", action="store_true", help="say what would be run and about how long it takes, then stop"),
    WORKERS,
)  # fmt: skip
def pareto(args: argparse.Namespace) -> None:
    from unmask.paper import fronts, numbers, page, plan
    from unmask.tasks import find

    for name in ("count", "batch", "workers"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UserError(f"--{name} is at least 1, not {value}")
    tasks = [find(name) for name in names(args.task)]
    if args.split == "tuning" and (bare := [task.name for task in tasks if task.tuning is None]):
        raise UserError(f"{bare[0]} has no rows for choosing settings: leave it out, or use --split test")
    methods = methods_of(names(args.methods) if args.methods else list(fronts.ROWS))
    shares = fronts.budgets(args.budgets)
    if args.budgets and not any(map(fronts.budgeted, methods.values())):
        raise UserError(f"{', '.join(methods)}: none of them takes a budget; leave out --budgets, or --vary a setting")
    plan.check([args.model])
    front = fronts.Front(
        "pareto", "What does each method reach with how many forwards?", args.task, (), split=args.split,
        count=args.count, small=args.count, entries=fronts.entries(methods, shares, fronts.varied(args.vary)),
        bundled=tuple(task.name for task in tasks), published=tuple(task.name for task in tasks),
        model=numbers.family(args.model) or "LLaDA", against="sacm" if "sacm" in methods else next(iter(methods)),
    )  # fmt: skip
    length = plan.response_length(args.model)
    if not list(front.cells(length)):
        left = ", ".join(dict.fromkeys(cell.label for cell in front.cells(length, fit=False)))
        raise UserError(
            f"--budgets {args.budgets} has fewer steps than there are blocks: {left}; give more, or larger blocks"
        )
    loading = {name: getattr(args, name) for name in ("device", "dtype")}
    setting = plan.Setting((args.model,), Path(args.out), args.data or os.environ.get("UNMASK_DATA"), batch=args.batch,
                           loading=loading, workers=args.workers, ray_address=args.ray_address)  # fmt: skip
    book = run([front], setting, args.plan)
    if args.plan:
        return
    words = [word for name in ("task", "methods", "budgets", "split", "count", "model") if (value := getattr(args, name))
             for word in (f"--{name}", str(value))]  # fmt: skip
    words += [word for pair in args.vary for word in ("--vary", pair)]
    made = page.blocks([front], book, setting, shlex.join(["unmask", "pareto", *words]))
    print(page.as_markdown([block for block in made if block[0] == "table"]))
    for file in page.write(made, setting.out, "pareto"):
        print(file)


@command(
    "accept", "the gates of the bundled model and the paper's claims, measured on its own tasks",
    """
  unmask accept --workers 2                            about two hours on two cores; the same command resumes
  unmask accept --split tuning --count 100 --experiments main --out runs/quick
  unmask accept --split tuning --count 256 --experiments near          the near cache alone, a row for each task
  unmask accept --model build/tiny --freeze frozen.json     before test rows are decoded: the hashes of what is tested""",
    option("--model", default="tiny", metavar="DIR", help="the checkpoint; its rainbow-padded one is called DIR-rainbow (default: tiny)"),
    option("--split", choices=["tuning", "test"], default="test", help="which rows (default: test, if the model is frozen)"),
    option("--count", type=int, default=500, metavar="N", help="questions per task; a fifth of them where settings vary (default: 500)"),
    option("--experiments", metavar="A,B", help="only these (default: all that `unmask accept` has)"),
    option("--out", default="runs/accept", metavar="DIR", help="runs, results.md and results.html (default: %(default)s)"),
    option("--freeze", metavar="FILE", help="decode nothing; write the hashes of weights, tokenizers and tasks"),
    option("--frozen", metavar="FILE", help="the hashes that test rows need (default: those of the bundled model)"),
    WORKERS,
)  # fmt: skip
def accept(args: argparse.Namespace) -> None:
    from unmask.models.loading import load
    from unmask.paper import acceptance, page, plan

    model, rainbow = load(args.model), plan.directory(f"{args.model}-rainbow")
    directories = [path for path in (model.path, rainbow) if path is not None]
    if args.freeze:
        acceptance.freeze(Path(args.freeze), *directories)
        print(f"{args.freeze}: commit it, then decode test rows")
        return
    if args.count < 1:
        raise UserError(f"--count is at least 1, not {args.count}")
    if args.split == "test":
        acceptance.check_frozen(Path(args.frozen) if args.frozen else acceptance.FROZEN, *directories)
    wanted = acceptance.suite(args.split, args.count)
    if args.experiments:
        known = {e.name: e for e in wanted}
        if unknown := [name for name in names(args.experiments) if name not in known]:
            raise UserError(f"there is no experiment {unknown[0]!r} here; there are {', '.join(known)}")
        wanted = [known[name] for name in names(args.experiments)]
    setting = plan.Setting((args.model,), Path(args.out), workers=args.workers, ray_address=args.ray_address)
    book = run(wanted, setting)
    words = ["unmask", "accept", "--model", args.model, "--split", args.split, "--count", str(args.count)]
    words += ["--experiments", args.experiments] if args.experiments else []
    made = acceptance.page(model, wanted, book, setting, args.split, args.count, shlex.join(words))
    print(page.as_markdown(made))
    for file in page.write(made, setting.out):
        print(file)
