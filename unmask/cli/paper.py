"""Commands that remake the paper: reproduce, accept."""

from __future__ import annotations

import argparse
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.cli.options import WORKERS, command, names, option
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
  unmask reproduce parallelism --data benchmarks/     on the paper's own weights, from the Hub
  unmask reproduce main --model ./LLaDA-8B-Instruct --limit 100 --plan
  the same command again goes on after a crash, and decodes nothing twice""",
    option("name", metavar="NAME", help="an experiment, all, or list"),
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
    from unmask.paper import experiments, page, plan
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
    wanted = experiments.named(args.name)
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
    "accept", "the gates of the bundled model and the paper's claims, measured on its own tasks",
    """
  unmask accept --workers 2                            about an hour on two cores; the same command resumes
  unmask accept --split tuning --count 100 --experiments main --out runs/quick
  unmask accept --split tuning --count 256 --experiments near          the near cache alone, a row for each task
  unmask accept --model build/tiny --freeze frozen.json     before test rows are decoded: the hashes of what is tested""",
    option("--model", default="tiny", metavar="DIR", help="the checkpoint; its rainbow-padded one is called DIR-rainbow (default: tiny)"),
    option("--split", choices=["tuning", "test"], default="test", help="which rows (default: test, if the model is frozen)"),
    option("--count", type=int, default=500, metavar="N", help="questions per task; settings are varied on 40 %% of them (default: 500)"),
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
        if unknown := [name for name in names(args.experiments) if name not in (*known, "near")]:
            raise UserError(f"there is no experiment {unknown[0]!r} here; there are {', '.join(known)}, near")
        wanted = [known[name] for name in names(args.experiments) if name in known]
    setting = plan.Setting((args.model,), Path(args.out), workers=args.workers, ray_address=args.ray_address)
    book = run(wanted, setting) if wanted else plan.planned([], setting, plan.Shelf(setting.loading))
    near = []
    if not args.experiments or "near" in names(args.experiments):
        with Bar() as bar:
            near = acceptance.cached(model, setting.out, args.split, args.count, bar.accuracy)
    words = ["unmask", "accept", "--model", args.model, "--split", args.split, "--count", str(args.count)]
    made = acceptance.page(model, wanted, book, setting, args.split, args.count, shlex.join(words), near)
    print(page.as_markdown(made))
    for file in page.write(made, setting.out):
        print(file)
