"""The command line: one short function a command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

import argparse
import json
import logging
import shlex
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from textwrap import fill, indent
from typing import Any

from unmask import __version__
from unmask.errors import UserError

Command = Callable[[argparse.Namespace], None]
COMMANDS: dict[str, tuple[Command, Callable[[argparse.ArgumentParser], None], str, str]] = {}


def command(name: str, summary: str, examples: str, *arguments: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Register a command: its help begins with lines to type. `arguments` are functions that add options to a parser."""

    def register(run: Command) -> Command:
        def add(parser: argparse.ArgumentParser) -> None:
            for argument in arguments:
                argument(parser)

        COMMANDS[name] = (run, add, summary, examples)
        return run

    return register


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    return lambda parser: parser.add_argument(*names, **settings)


def together(*arguments: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Several options as one."""
    return lambda parser: [argument(parser) for argument in arguments]


MODEL = together(
    option("--model", default="tiny", metavar="DIR_OR_ID", help='checkpoint directory or hub id (default: the bundled "tiny")'),
    option("--device", help="cpu, cuda, cuda:1, mps (default: a GPU where there is one)"),
    option("--dtype", help="float32, bfloat16, float16 (default: the checkpoint's; float32 on a CPU)"),
    option("--adapter", metavar="DIR", help="a PEFT LoRA adapter to put on the model"),
    option("--quantize", choices=["int8", "int4"], help="weight-only quantisation by torchao"),
    option("--device-map", metavar="MAP", help='spread the model over devices, e.g. "auto"'),
    option("--revision", help="which commit or tag of a hub model"),
    option("--frequencies", metavar="FILE", help="UNCODE's token frequency table"),
)
DECODING = together(
    option("--length", type=int, metavar="L", help="response tokens (default: the model's, 256 for the published ones)"),
    option("--steps", type=int, metavar="T", help="decoding steps (default: the method's pace, L / 2 in the paper)"),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
           help="a setting of the method: kappa=12, gamma=0, text='Answer:', at=-40, block=64, tau=0.8 (repeatable)"),
    option("--temperature", type=float, help="0 takes the likeliest token (default: the method's own, 0 for nearly all)"),
    option("--seed", type=int, default=0),
    option("--cfg", type=float, default=0.0, metavar="SCALE", help="classifier-free guidance"),
    option("--cache", choices=["none", "prefix", "dual", "prefix-lm"],
           help="K/V caches: Fast-dLLM's prefix and dual, LaViDa's prefix-lm (its default); quicker, and the tokens may differ"),
    option("--image", action="append", default=[], metavar="FILE", help="a picture, for models that see (repeatable)"),
    option("--batch", type=int, default=8, help="prompts decoded together (default: 8)"),
    option("--system", help="a system prompt"),
    option("--raw", action="store_true", help="no chat template"),
)  # fmt: skip


TUNED = option("--settings", metavar="FILE", dest="settings_file", help="what `unmask tune` chose for this model and task; --set wins")
WORKERS = together(
    option("--workers", type=int, metavar="N", help="N replicas of the model, each with a GPU or CPU thread of its own, on Ray"),
    option("--ray-address", metavar="HOST:PORT", help='a running Ray cluster; "auto": on this machine (default: start one)'),
)
LIVE = option("--live", action="store_true", help="show the tokens as they are filled in (one prompt, in a terminal)")
LOADING = ("device", "dtype", "adapter", "quantize", "device_map", "revision", "frequencies")  # of MODEL, besides its name


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `unmask.load` that the MODEL flags give."""
    return {"name": args.model, **{name: getattr(args, name) for name in LOADING}}


def load(args: argparse.Namespace) -> Any:
    import unmask

    return fitting(unmask.load(**loading(args)), args)


@contextmanager
def replicas(args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """The model, and the pool that completes an evaluation's batches: --workers, the ranks of torchrun, or None: this process."""
    from unmask.evaluation.ranks import launched, ranks

    if args.workers is not None:
        from unmask.evaluation.workers import Workers

        with Workers(loading(args), args.workers, args.ray_address) as workers:
            yield fitting(workers.model, args), workers
    elif args.ray_address:
        raise UserError("--ray-address says where the workers are; say how many with --workers N")
    elif launched():
        with ranks(loading(args)) as (model, pool):
            yield fitting(model, args), pool
    else:
        yield load(args), None


def fitting(model: Any, args: argparse.Namespace) -> Any:
    """The model, if the settings file was made for it."""
    if file := getattr(args, "settings_file", None):
        from unmask.evaluation import tune

        tune.check_model(file, tune.read(file), model)
    return model


def strategy(name: str, args: argparse.Namespace) -> Any:
    from unmask import method

    return method(name).with_(**wanted_settings(args))


def wanted_settings(args: argparse.Namespace, task: str | None = None) -> dict[str, Any]:
    """Those of --settings FILE, if it was tuned for the task, then those of --set."""
    from unmask.decoding import settings

    given = settings.parse(args.settings)
    if not getattr(args, "settings_file", None):
        return given
    from unmask.evaluation import tune

    return {**tune.read(args.settings_file, task)["settings"], **given}


def flags(values: Mapping[str, Any]) -> str:
    """Options as they are typed; those that were not given, or as they are anyway, are left out."""
    usual = {"batch": 8, "bad_rows": "stop"}
    given = [(name.replace("_", "-"), value) for name, value in values.items() if value and value != usual.get(name)]
    return " ".join(f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in given)


def decoding(args: argparse.Namespace) -> dict[str, Any]:
    """The options of `generations` that the DECODING flags give."""
    names = ("length", "steps", "temperature", "seed", "cfg", "cache", "batch", "system", "raw")
    if args.batch < 1:
        raise UserError(f"a batch has at least one prompt, not {args.batch}")
    return {name: getattr(args, name) for name in names}


def rows(text: str | None, prompts: str | None) -> list[dict[str, Any]]:
    """The prompts of a command line: its text, standard input for "-", or a file: JSONL rows, or else one prompt."""
    if (text is None) == (prompts is None):
        raise UserError('give one prompt ("-" reads it from standard input) or --prompts FILE')
    if text is not None:
        return [{"prompt": sys.stdin.read() if text == "-" else text}]
    try:
        content = sys.stdin.read() if prompts == "-" else Path(str(prompts)).read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{prompts} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{prompts} is not UTF-8 text (byte {error.start})") from error
    if prompts != "-" and not str(prompts).endswith((".jsonl", ".json")):
        return [{"prompt": content}]
    found = []
    for number, line in enumerate(content.split("\n"), 1):  # not splitlines: a prompt may hold U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{prompts}, line {number}: not JSON ({error.msg})") from error
        row = {"prompt": row} if isinstance(row, str) else row
        if not isinstance(row, dict) or not (row.get("prompt") or row.get("messages")):
            raise UserError(f'{prompts}, line {number}: a row is a string or an object with "prompt" or "messages"')
        found.append(row)
    if not found:
        raise UserError(f"{prompts} holds no prompts")
    return found


def pictures(args: argparse.Namespace, asked: list[dict[str, Any]]) -> list[list[Any]]:
    """The pictures of every row: those of the command line, then its own ("image": a path or a list of them)."""
    if args.image:  # what is no picture is said before a model is loaded
        from unmask.models.images import opened

        for file in args.image:
            opened(file)
    own = [row.get("image") or [] for row in asked]
    return [[*args.image, *(some if isinstance(some, list) else [some])] for some in own]


def progress(items: Iterable[Any], total: int, what: str) -> Iterator[Any]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty() or total < 2:
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    # What is printed meanwhile goes where it was sent: rich would take standard output along to the bar's console.
    bar = Progress(console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)
    with bar:
        yield from bar.track(items, total=total, description=what)


def watched(args: argparse.Namespace, prompts: int) -> bool:
    """Is the decode to be shown as it goes?"""
    if args.live and (prompts > 1 or args.json or getattr(args, "stream", False)):
        raise UserError("--live shows one prompt being decoded, without --json, --stream or --samples")
    return args.live


@command(
    "demo", "one question by three methods, a table over a few dozen, and a replay, on the bundled model",
    """
  unmask demo""",
    option("--questions", type=int, default=12, metavar="N", help="validation questions a task (default: 12)"),
    option("-o", "--out", default="replay.html", metavar="FILE", help="the replay (default: replay.html)"),
    MODEL,
)  # fmt: skip
def demo(args: argparse.Namespace) -> None:
    from rich.console import Console

    from unmask.paper.demo import demo as show

    show(load(args), Console(), args.questions, Path(args.out))


@command(
    "generate", "decode prompts with one method",
    """
  unmask generate "Tom has 3 apples ..."
  unmask generate "What is 12 * 7?" --model GSAI-ML/LLaDA-8B-Instruct --method sacm --length 256 --steps 128
  unmask generate --prompts questions.jsonl --json > answers.jsonl      rows: {"prompt": ...} or {"messages": [...]}
  unmask generate "What is the tallest bar?" --image chart.png --model jacklishufan/lavida-llada-v1.0-instruct
  unmask generate "Write a letter" --infill "Dear [MASK*4], [MASK*40] Yours, Ada" --method top-probability
  unmask generate "..." --method sacm --set kappa=12 --set text=Answer: --set at=-30""",
    option("prompt", nargs="?", help='the prompt; "-" reads standard input'),
    option("--prompts", metavar="FILE", help="a file with one prompt, or JSONL with one a line"),
    option("--method", default="sacm", help="see `unmask methods` (default: sacm)"),
    DECODING,
    TUNED,
    option("--samples", type=int, default=1, metavar="N", help="N samples a prompt, with seeds seed, seed + 1, ..."),
    option("--infill", metavar="TEXT", help="the response, with [MASK*n] where n tokens are to be filled in"),
    option("--stop", action="append", default=[], metavar="TEXT", help="cut the text before this string (repeatable)"),
    option("--ban", type=int, action="append", default=[], metavar="ID", help="a token id never to write (repeatable)"),
    option("--stream", action="store_true", help="print the text as its beginning settles (one prompt)"),
    LIVE,
    option("--json", action="store_true", help="a record a line: text, tokens, order, forwards, tie rate, EOT ratio"),
    MODEL,
)  # fmt: skip
def generate(args: argparse.Namespace) -> None:
    from unmask.generation import generations
    from unmask.views.live import Screen
    from unmask.views.stream import Stream

    asked = rows(args.prompt, args.prompts)
    method = strategy(args.method, args)
    if args.samples < 1:
        raise UserError(f"--samples is at least 1, not {args.samples}")
    images, live = pictures(args, asked), watched(args, len(asked) * args.samples)
    model = load(args)
    stream = Stream(model, sys.stdout, args.stop) if args.stream and len(asked) == args.samples == 1 and not args.json else None
    screen = Screen([args.method], model) if live else None
    made = generations(
        model, [row.get("messages") or row["prompt"] for row in asked], method, **decoding(args), infill=args.infill,
        samples=args.samples, stop=args.stop, ban=args.ban, watch=[stream] if stream else screen.columns if screen else [],
        images=images,
    )  # fmt: skip
    if screen:
        with screen:
            made = iter(list(made))
    for i, generation in enumerate(progress(made, len(asked) * args.samples, "decoding")):
        if args.json:
            row = asked[i // args.samples]
            about = {"prompt": row.get("messages") or row["prompt"], "model": args.model, "method": repr(method)}
            record = {**about, **asdict(generation), "input": row}
            print(json.dumps(record, ensure_ascii=False), flush=True)
        elif stream:
            stream.end(generation.text)
        else:
            print(generation.text, flush=True)


@command(
    "compare", "decode one prompt with several methods, one below the other",
    """
  unmask compare "Tom has 3 apples ..."
  unmask compare "..." --methods top-probability,suffix-anchor,sacm --model GSAI-ML/LLaDA-8B-Instruct""",
    option("prompt", nargs="?", help='the prompt; "-" reads standard input'),
    option("--prompts", metavar="FILE", help="a file with the prompt"),
    option("--methods", default="top-probability,suffix-anchor,sacm", help="comma-separated (default: %(default)s)"),
    DECODING,
    TUNED,
    LIVE,
    option("--json", action="store_true", help="a record a method"),
    MODEL,
)  # fmt: skip
def compare(args: argparse.Namespace) -> None:
    from unmask.decoding import settings
    from unmask.decoding.methods import method
    from unmask.generation import generate
    from unmask.views.live import Screen

    (row, *more) = rows(args.prompt, args.prompts)
    if more:
        raise UserError("compare takes one prompt; `unmask generate --prompts` takes many")
    names = [name.strip() for name in args.methods.split(",") if name.strip()]
    wanted = wanted_settings(args)
    found = {name: settings.applied(method(name), wanted) for name in names}
    if unused := set(wanted) - {key for _, used in found.values() for key in used}:
        raise UserError(f"none of these methods has a setting {', '.join(sorted(unused))}")
    live = watched(args, 1)
    model = load(args)
    made: dict[str, Any] = {}
    with Screen(list(found), model) if live else nullcontext() as screen:
        for i, (name, (strategy, _)) in enumerate(found.items()):
            made[name] = generate(
                model, [row.get("messages") or row["prompt"]], strategy, images=pictures(args, [row]),
                watch=[screen.columns[i]] if screen else [], **decoding(args),
            )[0]  # fmt: skip
            if screen:
                screen.columns[i].finish(f"{made[name].forwards} forwards, EOT {made[name].eot_ratio:.2f}")
    for name, generation in made.items():
        if args.json:
            print(json.dumps({**row, "method": name, **asdict(generation)}, ensure_ascii=False), flush=True)
        else:
            figures = f"{generation.forwards} forwards, EOT {generation.eot_ratio:.2f}, ties {generation.tie_rate:.2f}"
            print(f"{name}  ({figures})\n{indent(generation.text.strip() or '(empty)', '  ')}\n", flush=True)


def questions(args: argparse.Namespace, model: Any) -> tuple[list[dict[str, Any]], Any]:
    """The rows of a command that takes a prompt or a task: prompt, and for a task gold and grade; and the task."""
    if not args.task:
        return rows(args.prompt, args.prompts), None
    if args.prompt or args.prompts:
        raise UserError("give a prompt or --task, not both")
    from unmask.tasks import find

    task = find(args.task)
    data = task.tuning_rows(args.data) if args.split == "tuning" else task.rows.load(task.name, args.data)
    shots = task.shots.load(task.name, args.data, beside=True).rows if task.shots else ()
    try:
        numbers = [int(n) for n in args.rows.split(",")]
        found = [data.rows[n] for n in numbers]
    except (ValueError, IndexError):
        raise UserError(f"--rows takes row numbers from 0 to {len(data.rows) - 1}, as in 0,5; not {args.rows!r}") from None
    args.raw = args.raw or not task.chat or not model.chats
    args.length = args.length or task.length
    return [{"prompt": task.render(row, shots), "row": row, "gold": str(row.get(task.gold))} for row in found], task


def traced(args: argparse.Namespace, model: Any, names: list[str], extra: dict[str, Any] | None = None) -> list[Any]:
    """Runs of the methods on the prompts a command line asks for, graded where a task says how."""
    from unmask.decoding import settings
    from unmask.decoding.methods import method
    from unmask.evaluation import evaluate
    from unmask.views.trace import record

    asked, task = questions(args, model)
    wanted = wanted_settings(args, task and task.name) | (extra or {})
    fitted = {name: evaluate.adapted(task, method(name), {})[0] if task else method(name) for name in names}
    found = {name: settings.applied(strategy, wanted) for name, strategy in fitted.items()}
    if unused := set(wanted) - {key for _, used in found.values() for key in used}:
        raise UserError(f"none of these methods has a setting {', '.join(sorted(unused))}")
    runs = []
    for name, (strategy, _) in found.items():
        made = record(
            model, [row.get("messages") or row["prompt"] for row in asked], name, strategy,
            images=pictures(args, asked), stop=task.stop if task else (), **decoding(args),
        )  # fmt: skip
        for row, run in zip(asked, made, strict=True):
            correct = bool(task.grade(run.text, row["row"]).correct) if task and not task.executes else None
            runs.append(replace(run, gold=row.get("gold"), correct=correct))
    return runs


SPLIT = option("--split", choices=["test", "tuning"], default="test", help="the test rows, or the rows to tune settings on")
ASKED = together(
    option("--prompts", metavar="FILE", help="a file with one prompt, or JSONL with one a line"),
    option("--task", help="take the prompt from a benchmark (cups, gsm8k, ...) and grade the answers"),
    option("--rows", default="0", metavar="N,N", help="which rows of the task (default: 0)"),
    SPLIT,
    option("--data", metavar="PATH", help="the benchmark's file or folder (default: the Hugging Face Hub)"),
)


@command(
    "trace", "record how methods decode a prompt: a page to replay it in a browser, or a file to keep",
    """
  unmask trace "Tom has 3 apples ..." -o replay.html
  unmask trace --task cups --rows 0,3 --methods top-probability,suffix-anchor,sacm -o replay.html
  unmask trace "..." --methods sacm -o run.json.gz     keep it (docs/traces.md), and
  unmask trace run.json.gz -o replay.html              show it later""",
    option("prompt", nargs="?", help='the prompt ("-": standard input), or a trace file made before'),
    ASKED,
    option("--methods", default="top-probability,suffix-anchor,sacm", help="comma-separated (default: %(default)s)"),
    option("-o", "--out", action="append", default=[], metavar="FILE",
           help="a page (.html) or a trace file (.json.gz, .json); repeatable (default: replay.html)"),
    DECODING,
    TUNED,
    MODEL,
)  # fmt: skip
def trace(args: argparse.Namespace) -> None:
    outs = args.out or ["replay.html"]
    for out in outs:
        if not out.endswith((".html", ".json", ".json.gz")):
            raise UserError(f"{out}: a page ends in .html, a trace file in .json.gz or .json")
        if not Path(out).absolute().parent.is_dir():  # said before anything is decoded
            raise UserError(f"{out} cannot be written: there is no folder {Path(out).parent}")
    from unmask.views import replay
    from unmask.views import trace as tracing

    if args.prompt and args.prompt.endswith((".json.gz", ".json")):
        runs = tracing.load(args.prompt)
    else:
        runs = traced(args, load(args), [name.strip() for name in args.methods.split(",") if name.strip()])
    for out in outs:
        (replay.write if out.endswith(".html") else tracing.save)(out, runs)
        print(out)


@command(
    "figure", "the paper's figures, from traces or saved runs, or made afresh on the bundled model",
    """
  unmask figure failure-modes --task cups -o failure-modes.png
  unmask figure failure-modes --task cups --confidence margin --anchor . -o margin.svg
  unmask figure failure-modes run.json.gz -o fig.pdf          from a trace file
  unmask figure progress --task cups --methods sacm -o progress.pdf
  unmask figure effects runs/gsm8k -o effects.pdf             from a folder of `unmask eval`
  unmask figure parallelism --task cups --limit 100 -o parallelism.pdf""",
    option("kind", choices=["failure-modes", "effects", "progress", "parallelism", "sensitivity", "anchors"]),
    option("runs", nargs="*", metavar="RUN", help="trace files, or folders of `unmask eval`; none: decode what is needed"),
    option("--prompt", help="the prompt of failure-modes and progress"),
    ASKED,
    option("--methods", help="of failure-modes and progress (default: top-probability,suffix-anchor,sacm; sacm)"),
    option("--confidence", choices=["probability", "margin", "certainty"], help="what the methods go by (default: their own)"),
    option("--anchor", metavar="TEXT", help="another anchor text"),
    option("--at", type=float, default=0.25, metavar="SHARE", help="failure-modes: where the intermediate step is (default: 0.25)"),
    option("--limit", type=int, default=48, metavar="N", help="rows of the task, where accuracy is measured (default: 48)"),
    option("--keep", metavar="DIR", help="where runs made afresh are kept and resumed (default: runs/figure-KIND-TASK)"),
    option("-o", "--out", required=True, metavar="FILE", help=".png, .svg or .pdf"),
    DECODING,
    MODEL,
)  # fmt: skip
def figure(args: argparse.Namespace) -> None:
    if not args.out.lower().endswith((".png", ".svg", ".pdf")):
        raise UserError(f"{args.out}: a figure ends in .png, .svg or .pdf")
    from unmask.views import figures

    if args.kind in ("failure-modes", "progress"):
        runs = drawn(args)
        made = figures.failure_modes(runs, args.at) if args.kind == "failure-modes" else figures.progress(runs)
    elif args.kind == "effects" and args.runs and all(run.endswith((".json.gz", ".json")) for run in args.runs):
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


def drawn(args: argparse.Namespace) -> list[Any]:
    """The traces of a figure: from files, or decoded now."""
    from unmask.decoding.rules import confidence
    from unmask.views import trace as tracing

    if args.runs:
        return [run for file in args.runs for run in tracing.load(file)]
    default = "sacm" if args.kind == "progress" else "top-probability,suffix-anchor,sacm"
    names = [name.strip() for name in (args.methods or default).split(",") if name.strip()]
    rules = {"probability": confidence.TopProbability, "margin": confidence.TopMargin, "certainty": confidence.Certainty}
    extra = {"confidence": rules[args.confidence]()} if args.confidence else {}
    return traced(args, load(args), names, extra | ({"text": args.anchor} if args.anchor else {}))


def measured(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The records of a figure: of saved runs, or of runs made now."""
    from unmask.evaluation import evaluate
    from unmask.evaluation.report import Progress, records
    from unmask.tasks import find
    from unmask.views import figures

    if args.runs:
        return records(args.runs)
    task = find(args.task or "cups")
    tuning = args.split == "tuning" or (args.kind == "sensitivity" and task.tuning)
    rows = task.tuning_rows(args.data) if tuning else task.rows.load(task.name, args.data)
    shots = task.shots.load(task.name, args.data, beside=True) if task.shots else None
    options = evaluate.Options(length=args.length, steps=args.steps, batch=args.batch, seed=args.seed, cfg=args.cfg, cache=args.cache)
    out = args.keep or f"runs/figure-{args.kind}-{task.name}"
    with Progress(sys.stderr) as bar:
        return figures.afresh(args.kind, load(args), task, evaluate.limited(rows, args.limit), shots, options, out, bar)


@command(
    "methods", "the decoding methods and what each is made of",
    """
  unmask methods
  unmask methods --json""",
    option("--json", action="store_true", help="a map of names to recipes"),
)  # fmt: skip
def methods(args: argparse.Namespace) -> None:
    from unmask.decoding.methods import METHODS
    from unmask.decoding.settings import recipe

    if args.json:
        print(json.dumps({name: repr(strategy) for name, strategy in METHODS.items()}, indent=1))
        return
    width = max(map(len, METHODS))
    for name, strategy in METHODS.items():
        print(f"{name:{width}}  {recipe(strategy)}")


@command(
    "frequencies", "count token frequencies of a corpus, for UNCODE",
    """
  unmask frequencies corpus.txt --model GSAI-ML/LLaDA-8B-Instruct -o llada.json
  unmask generate "..." --method uncode --frequencies llada.json""",
    option("corpus", nargs="+", metavar="CORPUS", help='text files (JSONL rows with "text" work too)'),
    option("-o", "--out", metavar="FILE", help="where to write it (default: standard output)"),
    MODEL,
)  # fmt: skip
def frequencies(args: argparse.Namespace) -> None:
    from unmask.models.frequencies import count, lines

    model = load(args)
    table = json.dumps(count(lines(args.corpus), model.tokens))
    if args.out:
        Path(args.out).write_text(table + "\n")
    else:
        print(table)


@command(
    "train", "train a masked diffusion model as LLaDA is trained; run again to resume",
    """
  unmask train --config tiny --task stories,cups,compass --steps 6500 --out my-tiny
  unmask train --model tiny --data pairs.jsonl --steps 500 --out mine         rows: {"prompt": ..., "response": ...}
  unmask train --model GSAI-ML/LLaDA-8B-Instruct --lora 32 --lr 5e-5 --data pairs.jsonl --length 256 --out adapter
  unmask train --config tiny --task cups --padding rainbow --out rainbow""",
    option("--out", required=True, metavar="DIR", help="where the checkpoint goes, and what a resumed run reads"),
    option("--model", metavar="DIR_OR_ID", help="begin with these weights"),
    option("--config", metavar="DIR", help="begin with random weights: a directory with config.json and a tokenizer, or tiny"),
    option("--data", metavar="FILE", help="JSONL of prompts and responses"),
    option("--task", metavar="NAMES", help="built-in tasks, comma-separated: stories, cups, compass"),
    option("--steps", type=int, default=1000),
    option("--batch", type=int, default=32),
    option("--length", type=int, default=96, metavar="L", help="response tokens, end-of-text padding included"),
    option("--lr", type=float, default=3e-3, help="of AdamW: embeddings, head, norms, LoRA (default: %(default)s)"),
    option("--muon", type=float, default=4e-3, help="of Muon: the hidden matrices (default: %(default)s)"),
    option("--warmup", type=int, default=40, metavar="STEPS"),
    option("--cooldown", type=float, default=0.4, metavar="SHARE", help="the last share of the steps, rates going to 0"),
    option("--padding", choices=["eot", "rainbow"], default="eot", help="rainbow: one end-of-text, then 7 padding tokens in turn"),
    option("--lora", type=int, default=0, metavar="RANK", help="train a LoRA adapter instead of the weights"),
    option("--half", action="store_true", help="save float16 weights"),
    option("--seed", type=int, default=0),
    option("--probe-every", type=int, default=250, metavar="STEPS"),
    option("--device", help="cpu, cuda, mps"),
    option("--threads", type=int, metavar="N", help="CPU threads"),
)  # fmt: skip
def train(args: argparse.Namespace) -> None:
    import torch

    from unmask.training import train as training

    if args.threads:
        torch.set_num_threads(args.threads)
    if min(args.steps, args.batch, args.length, args.probe_every) < 1:
        raise UserError("--steps, --batch, --length and --probe-every are at least 1")
    named = {field: getattr(args, field) for field in ("steps", "batch", "length", "lr", "muon", "warmup", "cooldown", "padding", "seed")}
    with training.Bar(args.steps) as report:
        line = training.start(
            training.Recipe(**named), Path(args.out), model=args.model, config=args.config, data=args.data,
            tasks=[name.strip() for name in args.task.split(",")] if args.task else None, lora=args.lora,
            device=args.device, half=args.half, probe_every=args.probe_every, report=report,
            tell=lambda text: print(f"unmask: {text}", file=sys.stderr),
        )  # fmt: skip
    print(line)


GRADING = together(
    option("--allow-code", action="store_true", help="run generated code (HumanEval, MBPP) in a sandbox"),
    option("--unisolated-code", action="store_true", help="... even where the system cannot lock it in: your own risk"),
    option("--mode", default="", metavar="NAME", help="a parity grader: flexible-extract, three-stage, official, lavida, ..."),
    option("--bad-rows", choices=["stop", "skip"], default="stop", help="what a malformed row does (default: stop)"),
)


def check_code(task: Any, args: argparse.Namespace) -> None:
    if task.executes and not args.allow_code:
        raise UserError(f"grading {task.name} runs the code the model writes; allow it with --allow-code")


@command(
    "grade", "grade outputs saved by any system",
    """
  unmask grade --task gsm8k outputs.jsonl             lines: {"output": ..., "gold": ...} or {"output": ..., "doc": row}
  unmask grade --task mmlu_pro outputs.jsonl --data mmlu_pro/ --json     "doc" may be a row's index or id
  unmask grade --task humaneval outputs.jsonl --allow-code""",
    option("file", metavar="FILE", help="JSON lines"),
    option("--task", help='default: each line\'s "benchmark"'),
    option("--data", metavar="PATH", help="the benchmark's file or folder, to look rows up in"),
    GRADING,
    option("--json", action="store_true", help="one record a line: id, correct, extracted, rule"),
)  # fmt: skip
def grade(args: argparse.Namespace) -> None:
    from unmask.evaluation import grading

    lines, skipped = grading.read(args.file, args.task, args.data, args.bad_rows == "skip")
    records = []
    for record in grading.graded(lines, args.mode, args.allow_code, args.unisolated_code):
        records.append(record)
        if args.json:
            print(json.dumps(record, ensure_ascii=False), flush=True)
    for problem in skipped:
        print(f"unmask: skipped {problem}", file=sys.stderr)
    for total in grading.totals(records):
        print(grading.percent(total), file=sys.stderr if args.json else sys.stdout)


@command(
    "eval", "run methods on a benchmark: accuracy with intervals, every example kept",
    """
  unmask eval --task cups --methods sacm,suffix-anchor,top-probability --limit 100
  unmask eval --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --methods sacm,top-probability --out runs/gsm8k
  unmask eval --task mmlu_pro --data mmlu_pro/ --methods sacm --set kappa=12 --json
  unmask eval --task cups --settings runs/tune-tiny-cups/settings.json     with what `unmask tune` chose
  unmask eval --task cups --workers 2                                two replicas of the model at once, on Ray
  the same command again resumes after a crash""",
    option("--task", required=True, help="gsm8k, math500, strategyqa, mmlu_pro, mathvista, chartqa, humaneval, mbpp, stories, ..."),
    option("--methods", default="top-probability,suffix-anchor,sacm", help="comma-separated (default: %(default)s)"),
    option("--data", metavar="PATH", help="the benchmark's file or folder (default: the Hugging Face Hub)"),
    SPLIT,
    option("--limit", type=int, metavar="N", help="the first N rows"),
    option("--length", type=int, metavar="L", help="response tokens (default: the task's)"),
    option("--steps", type=int, metavar="T", help="decoding steps (default: the method's pace, L / 2 in the paper)"),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="a setting of the methods (repeatable)"),
    TUNED,
    option("--batch", type=int, default=8, help="rows decoded together (default: 8)"),
    option("--seed", type=int, default=0),
    option("--seeds", type=int, default=1, metavar="N", help="runs of a method that draws: mean and spread"),
    option("--temperature", type=float, default=0.0),
    option("--cfg", type=float, default=0.0, metavar="SCALE"),
    option("--cache", choices=["none", "prefix", "dual", "prefix-lm"]),
    option("--raw", action="store_true", help="no chat template"),
    option("--layout", choices=["flat", "turns"], help="few-shots in the one prompt (default), or as turns of a conversation"),
    option("--stop", action="append", default=[], metavar="TEXT", help="cut the response at this string (repeatable)"),
    option("--out", metavar="DIR", help="the run's folder (default: runs/MODEL-TASK)"),
    GRADING,
    option("--json", action="store_true", help="the summary as one JSON object"),
    MODEL,
    WORKERS,
)  # fmt: skip
def evaluate(args: argparse.Namespace) -> None:
    from unmask.tasks import find

    task = find(args.task)
    from unmask.decoding.methods import method
    from unmask.evaluation import evaluate as evaluation
    from unmask.evaluation import tune
    from unmask.evaluation.report import Progress, table_of_summary

    task = replace(task, chat=task.chat and not args.raw, stop=(*task.stop, *args.stop), layout=args.layout or task.layout)
    names = [name.strip() for name in args.methods.split(",") if name.strip()]
    wanted = wanted_settings(args, task.name)
    found = {name: evaluation.adapted(task, method(name), wanted) for name in names}
    if unused := set(wanted) - {key for _, used in found.values() for key in used}:
        raise UserError(f"none of these methods has a setting {', '.join(sorted(unused))}")
    check_code(task, args)
    skip = args.bad_rows == "skip"
    data = task.tuning_rows(args.data, skip) if args.split == "tuning" else task.rows.load(task.name, args.data, skip)
    data = evaluation.illustrated(task, data, skip, args.limit)
    shots = task.shots.load(task.name, args.data, skip, beside=True) if task.shots else None
    for problem in data.skipped[:20]:
        print(f"unmask: skipped {problem}", file=sys.stderr)
    if len(data.skipped) > 20:
        print(f"unmask: skipped {len(data.skipped) - 20} rows more", file=sys.stderr)
    options = evaluation.Options(
        length=args.length, steps=args.steps, batch=args.batch, seed=args.seed, seeds=args.seeds, temperature=args.temperature,
        cfg=args.cfg, cache=args.cache, mode=args.mode, allow_code=args.allow_code, unisolated=args.unisolated_code,
        model_options={name: str(value) for name in ("quantize", "revision") if (value := getattr(args, name))},
    )
    out = args.out or f"runs/{Path(args.model).name}-{task.name}"
    length = args.length or task.length
    tuned = {name: (length, args.steps or max(1, round(strategy.pace * length)))
             for name, (strategy, used) in found.items() if set(tune.GRID) <= set(used)}  # fmt: skip
    with replicas(args) as (model, pool), Progress(sys.stderr) as bar:
        if args.settings_file and (line := tune.otherwise(args.settings_file, tune.read(args.settings_file), tuned)):
            print(f"unmask: {line}", file=sys.stderr)
        methods = {name: strategy for name, (strategy, _) in found.items()}
        summary = evaluation.evaluate(model, task, methods, data, shots, options, out, bar, pool)
    print(json.dumps(summary, ensure_ascii=False) if args.json else table_of_summary(summary))


@command(
    "tune", "choose kappa, beta and gamma for a model and a task on its tuning rows, never on test rows",
    """
  unmask tune --task cups                                       the paper's 36 points by successive halving, and
  unmask eval --task cups --settings runs/tune-tiny-cups/settings.json        what they are worth on the test rows
  unmask tune --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --out gsm8k.json
  unmask tune --task cups --full                                the paper's full sweep; reuses what halving decoded
  unmask tune --task cups --check                               both: is it the same point, and what was saved?
  unmask tune --task cups --kappa 6,8,10,12,14 --gamma 0.55,0.7,0.85,1
  the same command again resumes""",
    option("--task", required=True, help="gsm8k, math500, strategyqa, chartqa, mbpp, stories, cups, compass"),
    option("--method", default="sacm", help="a method with kappa, beta and gamma: sacm, sacm-margin (default: sacm)"),
    option("--count", "--limit", type=int, default=128, metavar="N", help="tuning rows, drawn at random (default: 128, as the paper)"),
    option("--full", action="store_true", help="every point on every row (default: successive halving)"),
    option("--check", action="store_true", help="halving, then the full sweep: did they choose the same point?"),
    option("--first", type=int, metavar="N", help="rows before the worse half is first dropped (default: an eighth)"),
    option("--kappa", metavar="A,B", help="values to try (default: 12,14)"),
    option("--beta", metavar="A,B", help="(default: 1,1.1,1.2,1.3,1.4,1.5)"),
    option("--gamma", metavar="A,B", help="(default: 0.7,0.85,1)"),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="another setting, the same for all points"),
    option("--data", metavar="PATH", help="the benchmark's file or folder (default: the Hugging Face Hub)"),
    option("--length", type=int, metavar="L", help="response tokens (default: the task's)"),
    option("--steps", type=int, metavar="T", help="decoding steps (default: the method's pace, L / 2 in the paper)"),
    option("--batch", type=int, default=8, help="rows decoded together (default: 8)"),
    option("--seed", type=int, default=0, help="which rows are drawn"),
    option("--cfg", type=float, default=0.0, metavar="SCALE", help="classifier-free guidance"),
    option("--cache", choices=["none", "prefix", "dual", "prefix-lm"]),
    option("--raw", action="store_true", help="no chat template"),
    option("--folder", metavar="DIR", help="where the runs, the table and the heat map go (default: runs/tune-MODEL-TASK)"),
    option("--out", metavar="FILE", help="the settings file (default: settings.json in the folder)"),
    GRADING,
    option("--json", action="store_true", help="everything as one JSON object"),
    WORKERS,
    MODEL,
)  # fmt: skip
def tune(args: argparse.Namespace) -> None:
    from unmask.decoding import settings
    from unmask.decoding.methods import method
    from unmask.evaluation import evaluate as evaluation
    from unmask.evaluation import tune
    from unmask.evaluation.report import Progress
    from unmask.tasks import find

    task = find(args.task)
    check_code(task, args)
    task = replace(task, chat=task.chat and not args.raw)
    fixed = settings.parse(args.settings)
    if tuned := [name for name in tune.GRID if name in fixed]:
        raise UserError(f"{tuned[0]} is what is tuned; --{tuned[0]} {fixed[tuned[0]]} tries this value alone")
    strategy = evaluation.adapted(task, method(args.method).with_(**{**fixed, **task.settings}), fixed)[0]
    grid = {name: tune.values(name, getattr(args, name)) for name in tune.GRID}
    if args.full and args.check:
        raise UserError("--check runs the full sweep too; leave --full out")
    if args.first is not None and args.first < 1:
        raise UserError(f"--first is at least 1, not {args.first}")
    if args.out and not Path(args.out).absolute().parent.is_dir():
        raise UserError(f"{args.out} cannot be written: there is no folder {Path(args.out).parent}")
    skip = args.bad_rows == "skip"
    data = tune.sampled(task, task.tuning_rows(args.data, skip), args.count, args.seed, skip)
    if len(data.rows) < args.count:
        print(f"unmask: {task.name} has {len(data.rows)} tuning rows, fewer than {args.count}", file=sys.stderr)
    shots = task.shots.load(task.name, args.data, skip, beside=True) if task.shots else None
    options = evaluation.Options(
        length=args.length, steps=args.steps, batch=args.batch, seed=args.seed, cfg=args.cfg, cache=args.cache, mode=args.mode,
        allow_code=args.allow_code, unisolated=args.unisolated_code,
        model_options={name: str(value) for name in ("quantize", "revision") if (value := getattr(args, name))},
    )  # fmt: skip
    folder = Path(args.folder or f"runs/tune-{Path(args.model).name}-{task.name}")
    mode = "check" if args.check else "full" if args.full else "halving"
    with replicas(args) as (model, pool), Progress(sys.stderr) as bar:
        record = tune.tune(model, task, args.method, strategy, data, shots, options, folder,
                           grid=grid, fixed=fixed, first=args.first, mode=mode, report=bar, pool=pool)  # fmt: skip
    out, text = Path(args.out or folder / "settings.json"), tune.table(record)
    tune.write(record, out)
    (folder / "table.md").write_text(f"{text}\n{tune.told(record)}\n")
    drawn = tune.heat_map(record, folder / "heat-map.png")
    if args.json:
        print(json.dumps(record, ensure_ascii=False))
        return
    print(f"{text}\n{tune.told(record)}\n")
    print(f"heat map: {folder / 'heat-map.png'}" if drawn else 'for a heat map: pip install "unmask[figures]"')
    names = ("length", "steps", "batch", "data", "bad_rows", "cfg", "cache", "raw", "mode", "allow_code", "unisolated_code", *LOADING)
    typed = flags({"task": task.name, "methods": f"{args.method},top-probability", "model": args.model, "settings": out,
                   **{name: getattr(args, name) for name in names}})  # fmt: skip
    print(f"settings: {out}\nnext:  unmask eval {typed}")


@command(
    "doctor", "what goes wrong with a model's decoding, and which method cures it",
    """
  unmask doctor --task cups
  unmask doctor --model GSAI-ML/LLaDA-8B-Instruct --task gsm8k --count 32
  unmask doctor --model ./my-model --prompts questions.jsonl --length 128 --anchor "In short:"
  decodes a few prompts four ways: plain, end-of-text suppressed, with an anchor, with SACM""",
    option("--task", help="a benchmark: its tuning rows, so that what you learn is not about the test rows"),
    option("--prompts", metavar="FILE", help="your own: a file with one prompt, or JSONL with one a line"),
    option("--data", metavar="PATH", help="the benchmark's file or folder (default: the Hugging Face Hub)"),
    option("--count", type=int, default=16, metavar="N", help="prompts to decode (default: 16)"),
    option("--length", type=int, metavar="L", help="response tokens (default: the task's, or the model's)"),
    option("--steps", type=int, metavar="T", help="decoding steps (default: L / 2)"),
    option("--anchor", metavar="TEXT", help="what the anchor says (default: the task's, or \"The answer is\")"),
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings", help="a setting, as at=-30 (repeatable)"),
    option("--cfg", type=float, default=0.0, metavar="SCALE", help="classifier-free guidance"),
    option("--cache", choices=["none", "prefix", "dual", "prefix-lm"]),
    option("--batch", type=int, default=8, help="prompts decoded together (default: 8)"),
    option("--raw", action="store_true", help="no chat template"),
    option("--json", action="store_true", help="every figure, the verdict and the command as one JSON object"),
    MODEL,
)  # fmt: skip
def doctor(args: argparse.Namespace) -> None:
    if bool(args.task) == bool(args.prompts):
        raise UserError("give --task NAME or --prompts FILE")
    if args.count < 1 or args.batch < 1:
        raise UserError("--count and --batch are at least 1")
    from unmask.decoding import settings
    from unmask.evaluation import doctor
    from unmask.tasks import find

    task = find(args.task) if args.task else None
    given = [*args.settings, *([f"text={args.anchor}"] if args.anchor else [])]
    case = doctor.of_task(task, args.data, args.count) if task else doctor.of_prompts(rows(None, args.prompts)[: args.count], args.prompts)
    ways = doctor.strategies(case, settings.parse(given))
    model = load(args)
    length = args.length or (task.length if task else model.length)
    found = doctor.examine(
        model, case, ways, lambda items: progress(items, len(ways), "decoding"), length=length, steps=args.steps, cfg=args.cfg,
        cache=args.cache, batch=args.batch, raw=args.raw or bool(task and not (task.chat and model.chats)), stop=task.stop if task else (),
    )  # fmt: skip
    names = ("model", "data", "length", "steps", "batch", "cache", "cfg", "raw", *LOADING)
    typed, dtype = flags({name: getattr(args, name) for name in names}), str(next(model.module.parameters()).dtype)
    words, advised, command = doctor.verdict(found, case, typed, given, float32=dtype == "torch.float32")
    if args.json:
        about = {"model": model.name, "prompts": case.about, "length": length}
        print(json.dumps({**about, **doctor.record(found, words, advised, command)}, ensure_ascii=False))
        return
    print(f"{model.name}, {case.about}, L = {length}\n\n{doctor.table(found)}\n\n{doctor.LEGEND}\n")
    print("\n".join(fill(word, 80) for word in words) + f"\n\nnext:  {command}")


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
    option("--limit", type=int, metavar="N", help="rows a task (default: all; on the bundled model 50, or 24 tuning rows)"),
    option("--out", default="runs/reproduce", metavar="DIR", help="runs, results.md and .html, or results-NAME (default: %(default)s)"),
    option("--data", metavar="DIR", help="the folder that holds the benchmarks (default: $UNMASK_DATA, else the Hub)"),
    option("--batch", type=int, metavar="N", help="rows decoded together (default: 8; on the bundled model half of the rows, at most 32)"),
    WORKERS,
    option("--plan", action="store_true", help="say what would be run and about how long it takes, and stop"),
    option("--allow-code", action="store_true", help="run generated code (HumanEval, MBPP) in a sandbox"),
    option("--unisolated-code", action="store_true", help="... even where the system cannot lock it in: your own risk"),
    option("--device"), option("--dtype"), option("--quantize", choices=["int8", "int4"]), option("--device-map", metavar="MAP"),
    option("--frequencies", metavar="FILE", help="UNCODE's token frequency table"),
)  # fmt: skip
def reproduce(args: argparse.Namespace) -> None:
    import os
    import shlex

    from unmask.evaluation.report import markdown
    from unmask.paper import experiments as tables
    from unmask.paper import page
    from unmask.paper import run as paper

    for name, least in (("limit", args.limit), ("batch", args.batch), ("workers", args.workers)):
        if least is not None and least < 1:
            raise UserError(f"--{name} is at least 1, not {least}")
    setting = paper.Setting(
        tuple(name.rstrip("/") for name in args.model), Path(args.out), args.data or os.environ.get("UNMASK_DATA"), args.limit,
        args.batch, args.allow_code, args.unisolated_code,
        {name: getattr(args, name) for name in ("device", "dtype", "quantize", "device_map", "frequencies")},
        args.workers, args.ray_address,
    )  # fmt: skip
    if args.ray_address and not args.workers:
        raise UserError("--ray-address says where the workers are; say how many with --workers N")
    paper.check(setting.given)
    if args.name == "list":
        found = paper.listing(setting)
        print(markdown(found, list(found[0])), end="")
        return
    experiments = tables.named(args.name)
    shelf = paper.Shelf(setting.loading)
    book = paper.planned(experiments, setting, shelf, download=not args.plan)
    lines = paper.plan_lines(experiments, book, setting)
    print(markdown(lines, [column for column in lines[0] if column != "seconds"]))
    seconds, forwards, todo = (sum(line[column] for line in lines) for column in ("seconds", "forwards", "to do"))
    about = f"about {paper.clock(seconds)} for " if seconds else ""  # workers are not timed
    print(f"{about}{forwards} forwards at most, in {todo} runs; results in {args.out}", flush=True)
    if args.plan:
        return
    with paper.Bar(sys.stderr, sum(job.forwards for job in book.missing)) as bar:
        paper.reproduce(experiments, book, setting, shelf, bar, bar.tell)
    given = [word for name in args.model for word in ("--model", name)]
    given += [word for name in ("limit", "batch", "workers") if (value := getattr(args, name)) for word in (f"--{name}", str(value))]
    made = page.blocks(experiments, book, setting, shlex.join(["unmask", "reproduce", args.name, *given]))
    print(page.told(made))
    for file in page.write(made, setting.out, "results" if args.name == "all" else f"results-{args.name}"):
        print(file)


@command(
    "diff", "which rows two runs grade differently, side by side",
    """
  unmask diff runs/a runs/b
  unmask diff runs/gsm8k/sacm-1f0c.jsonl runs/gsm8k/top-probability-9ab2.jsonl --limit 5
  unmask diff runs/gsm8k --methods sacm,top-probability""",
    option("runs", nargs="+", metavar="RUN", help="two runs (a folder or a .jsonl), or one folder with --methods A,B"),
    option("--methods", help="which method of a folder: A,B"),
    option("--limit", type=int, metavar="N", help="show the first N flips"),
    option("--width", type=int, metavar="COLUMNS", help="of the terminal"),
    option("--json", action="store_true", help="a record a flipped row"),
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
    option("--format", choices=["markdown", "csv", "latex", "json"], default="markdown"),
    option("-o", "--out", metavar="FILE", help="a plot (.png, .svg, .pdf), or the table (.md, .csv, .tex, .json)"),
)  # fmt: skip
def report(args: argparse.Namespace) -> None:
    from unmask.evaluation.report import write

    print(write(args.runs, args.format, args.out), end="")


def everything(parser: argparse.ArgumentParser) -> None:
    """All that follows, options too, as one list: another program's command line."""
    parser.prefix_chars = "\0"  # so that nothing looks like an option to this parser
    parser.add_argument("arguments", nargs="*", metavar="...", help="lm-eval's own: `unmask lm-eval run --help` shows them")
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


@command(
    "verify", "check a checkpoint you have against its published code, and write the figures down",
    """
  unmask verify GSAI-ML/LLaDA-8B-Instruct
  unmask verify ./LLaDA-8B-Instruct --remote-code ./LLaDA-8B-Instruct --remote-python ~/venvs/tf-4.49/bin/python""",
    option("checkpoint", metavar="MODEL", help="checkpoint directory or hub id"),
    option("--remote-code", metavar="DIR", help="the model's published modeling_*.py: compare logits with it"),
    option("--remote-python", metavar="PY", default=sys.executable, help="the interpreter that code runs on (default: this one)"),
    option("--length", type=int, default=64, metavar="L", help="response tokens of the question decoded (default: 64)"),
    option("--device"), option("--dtype"),
    option("-o", "--out", metavar="FILE", default="verify.json", help="the record (default: verify.json)"),
)  # fmt: skip
def verify(args: argparse.Namespace) -> None:
    import unmask
    from unmask.tools.verify import summary
    from unmask.tools.verify import verify as check

    model = unmask.load(args.checkpoint, device=args.device, dtype=args.dtype)
    record = check(model, Path(args.remote_code) if args.remote_code else None, args.remote_python, args.length)
    Path(args.out).write_text(json.dumps(record, indent=1) + "\n")
    print(summary(record))
    print(f"written to {args.out}")
    if not record["ok"]:
        sys.exit(1)


@command(
    "bench", "speed and memory of decoding, as ratios within one run",
    """
  unmask bench
  unmask bench --json --seconds 60                      a noisy machine wants more rounds""",
    option("--seconds", type=float, default=12, metavar="S", help="how long each of the two shapes is timed (default: 12)"),
    option("--device", default="cpu"),
    option("--json", action="store_true", help="the whole record"),
)  # fmt: skip
def bench(args: argparse.Namespace) -> None:
    from unmask.evaluation.workers import speedup
    from unmask.tools.bench import SHAPES, machine, table
    from unmask.tools.bench import bench as measured

    records = list(progress(measured(args.seconds, args.device), len(SHAPES), "timing"))
    times = speedup()
    if args.json:
        print(json.dumps({"machine": machine(), "workers_speedup": times, "shapes": records}, indent=1))
        return
    print(table(records))
    print(f"\n2 workers are {times:.2f} times as quick as 1, each with 1 thread (aim >= 1.8)" if times else
          "\nthe speed-up of 2 workers is not measured here: it takes Ray and 2 cores")  # fmt: skip


@command(
    "accept", "the gates of the bundled model and the paper's predictions, measured on its own tasks",
    """
  unmask accept --out acceptance.jsonl                  resumable: a line a method and task
  unmask accept --split validation --count 100 --runs top-probability,suffix-anchor,sacm --out quick.jsonl
  unmask accept --model my-tiny --rainbow my-rainbow --freeze     before test rows are decoded: the hashes of what is tested""",
    option("--model", default="tiny", metavar="DIR"),
    option("--rainbow", default="tiny-rainbow", metavar="DIR", help="the rainbow-padded checkpoint"),
    option("--split", choices=["validation", "test"], default="test"),
    option("--count", type=int, default=500, metavar="N", help="questions a task (default: 500)"),
    option("--runs", metavar="NAMES", help="only these, comma-separated (default: all)"),
    option("--out", metavar="FILE", help="JSONL of what was measured"),
    option("--freeze", action="store_true", help="decode nothing; keep the hashes of weights, tokenizers and tasks"),
    option("--jobs", type=int, default=1, metavar="N", help="processes of one thread each (default: one, with every core)"),
)  # fmt: skip
def accept(args: argparse.Namespace) -> None:
    import unmask
    from unmask.paper import acceptance

    if not (args.out or args.freeze):
        raise UserError("name a file for what is measured: --out acceptance.jsonl")
    model, rainbow = unmask.load(args.model), unmask.load(args.rainbow)
    directories = Path(str(model.path)), Path(str(rainbow.path))
    if args.freeze:
        acceptance.freeze(*directories)
        print(f"{acceptance.FROZEN}: commit it, then decode test rows")
        return
    if args.split == "test":
        acceptance.check_frozen(*directories)
    runs = [name.strip() for name in args.runs.split(",")] if args.runs else list(acceptance.RUNS)
    tell = lambda line: print(line, file=sys.stderr, flush=True)  # noqa: E731
    records = acceptance.accept(model, rainbow, Path(args.out), split=args.split, count=args.count, runs=runs, jobs=args.jobs, tell=tell)
    print(acceptance.Suite(records).markdown())


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30, width=110)


def parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    listing = "\n".join(f"  {name:{width}}  {summary}" for name, (_, _, summary, _) in COMMANDS.items())
    top = argparse.ArgumentParser(
        prog="unmask", formatter_class=_Help, usage="unmask COMMAND ...",
        description=f"Decoding for masked diffusion language models.\n\n  unmask generate \"your question\"\n\ncommands:\n{listing}",
        epilog="`unmask COMMAND --help` shows what a command takes, by example.",
    )  # fmt: skip
    top.add_argument("--version", action="version", version=f"unmask {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", help=argparse.SUPPRESS)
    for name, (_, add, summary, examples) in COMMANDS.items():
        text = f"{examples.strip(chr(10))}\n\n{summary}."
        add(commands.add_parser(name, description=text, formatter_class=_Help, usage=f"unmask {name} ..."))
    return top


def main(argv: list[str] | None = None) -> None:
    args = parser().parse_args(argv)
    if not args.command:
        parser().print_help()
        return
    warnings.showwarning = lambda message, *_, **__: print(f"unmask: {message}", file=sys.stderr)
    for library in ("torchao", "torch.utils._pytree"):  # they warn about each other whenever transformers is imported
        logging.getLogger(library).setLevel(logging.ERROR)
    try:
        COMMANDS[args.command][0](args)
    except UserError as error:
        print(f"unmask: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print("unmask: stopped; what was finished is kept", file=sys.stderr)
        sys.exit(130)
