"""What commands share: how one is registered, the options that several take, and the objects those options mean."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask.errors import UserError
from unmask.files import read_rows, read_text

if TYPE_CHECKING:
    from unmask.decoding.algorithm import Strategy
    from unmask.evaluation.evaluate import Pool
    from unmask.evaluation.recipe import Options
    from unmask.generation import Decoding, Prompt
    from unmask.models.images import Picture
    from unmask.models.model import Model
    from unmask.tasks import Task

Command = Callable[[argparse.Namespace], None]
Adds = Callable[[argparse.ArgumentParser], object]  # one or more options to a parser
COMMANDS: dict[str, tuple[Command, Callable[[argparse.ArgumentParser], None], str, str]] = {}


def command(name: str, summary: str, examples: str, *arguments: Adds) -> Callable[[Command], Command]:
    """Register a command: its help begins with lines to type. `arguments` are functions that add options to a parser."""

    def register(run: Command) -> Command:
        def add(parser: argparse.ArgumentParser) -> None:
            for argument in arguments:
                argument(parser)

        COMMANDS[name] = (run, add, summary, examples)
        return run

    return register


def option(*names: str, **settings: Any) -> Adds:
    return lambda parser: parser.add_argument(*names, **settings)


def together(*arguments: Adds) -> Adds:
    """Several options as one."""
    return lambda parser: [argument(parser) for argument in arguments]


# ---------------------------------------------------------------- options that several commands take

THREE = "top-probability,suffix-anchor,sacm"
MODEL = together(
    option(
        "--model", default="tiny", metavar="DIR_OR_ID", help='checkpoint folder or Hub id (default: the bundled "tiny")'
    ),
    option("--device", help="cpu, cuda, cuda:1 or mps (default: a GPU if there is one)"),
    option("--dtype", help="float32, bfloat16 or float16 (default: the checkpoint's own; float32 on a CPU)"),
    option("--adapter", metavar="DIR", help="a PEFT LoRA adapter to apply to the model"),
    option("--quantize", choices=["int8", "int4"], help="weight-only quantization with torchao"),
    option("--device-map", metavar="MAP", help='spread the model over several devices, e.g. "auto"'),
    option("--revision", help="which commit or tag of a Hub model"),
    option("--frequencies", metavar="FILE", help="token frequency table for UNCODE (see `unmask frequencies`)"),
)
LOADING = (
    "device",
    "dtype",
    "adapter",
    "quantize",
    "device_map",
    "revision",
    "frequencies",
)  # what MODEL takes besides its name
METHODS = option(
    "--methods",
    default=THREE,
    metavar="A,B",
    help="methods, comma-separated: see `unmask methods`, or FILE.py:NAME (default: %(default)s)",
)
SETTINGS = together(
    option("--set", action="append", default=[], metavar="NAME=VALUE", dest="settings",
           help="a setting of the method, e.g. kappa=12, gamma=0, text='Answer:', at=-40, block=64, tau=0.8, finish=2 (repeatable)"),
    option("--settings", metavar="FILE", dest="settings_file", help="settings chosen by `unmask tune`; --set takes precedence"),
)  # fmt: skip
# One option for every field of unmask.Decoding that all decoding commands have; ANSWER holds those of a single answer.
ANSWER = together(
    option("--length", type=int, metavar="L", help="response length in tokens (default: the task's or the model's, 256 for LLaDA)"),
    option("--steps", type=int, metavar="T", help="decoding steps (default: the method's own pace, L / 2 in the paper)"),
    option("--temperature", type=float, help="0 takes the likeliest token (default: the method's own, 0 for nearly all)"),
    option("--seed", type=int, default=0, help="seed of the random numbers (default: 0)"),
    option("--cfg", type=float, default=0.0, metavar="SCALE", help="classifier-free guidance scale (default: 0, off)"),
    option("--cache", metavar="NAME", help="K/V cache: Fast-dLLM's prefix or dual, LaViDa's prefix-lm (its default), or near, which runs "
           "slots anywhere and takes settings, near:best=8,near=8,again=2,refresh=4; faster, but tokens may differ"),
    option("--system", metavar="TEXT", help="a system prompt"),
    option("--stop", action="append", default=[], metavar="TEXT", help="cut the response at this string (repeatable)"),
)  # fmt: skip
DECODING = together(
    ANSWER,
    option("--batch", type=int, default=8, metavar="N", help="prompts decoded together (default: 8)"),
    option("--raw", action="store_true", help="give the prompt to the model as it is, without a chat template"),
    option("--ban", type=int, action="append", default=[], metavar="ID", help="a token id that is never written (repeatable)"),
)  # fmt: skip
IMAGE = option("--image", action="append", default=[], metavar="FILE", help="an image, for vision models (repeatable)")
PROMPTS = option("--prompts", metavar="FILE", help="a text file with one prompt, or JSONL with one prompt per line")
DATA = option(
    "--data", metavar="PATH", help="the benchmark's file or folder (default: $UNMASK_DATA, else the Hugging Face Hub)"
)
SPLIT = option(
    "--split",
    choices=["test", "tuning"],
    default="test",
    help="test rows, or the rows for tuning settings (default: test)",
)
GRADING = together(
    option("--allow-code", action="store_true", help="run generated code (HumanEval, MBPP) in a sandbox"),
    option("--unisolated-code", action="store_true", help="run it even without sandboxing, at your own risk"),
    option(
        "--mode",
        default="",
        metavar="NAME",
        help="another grader: flexible-extract, three-stage, official, lavida, ...",
    ),
    option(
        "--bad-rows", choices=["stop", "skip"], default="stop", help="what to do about a malformed row (default: stop)"
    ),
)
WORKERS = together(
    option(
        "--workers",
        type=int,
        metavar="N",
        help="run N replicas of the model on Ray, each with its own GPU or CPU thread",
    ),
    option(
        "--ray-address",
        metavar="HOST:PORT",
        help='a running Ray cluster, "auto" for the local one (default: start one)',
    ),
)
LIVE = option("--live", action="store_true", help="show the tokens as they are filled in (one prompt, in a terminal)")


# ---------------------------------------------------------------- what they mean


def decoding(args: argparse.Namespace) -> Decoding:
    """How to decode, as the options say: every field of Decoding that the command has an option for."""
    from unmask.generation import Decoding

    return Decoding(**_given(args, Decoding))


def evaluating(args: argparse.Namespace) -> Options:
    """How to decode and grade."""
    from unmask.evaluation.recipe import Options

    model_options = {name: str(value) for name in ("quantize", "revision") if (value := getattr(args, name))}
    return Options(**_given(args, Options), unisolated=args.unisolated_code, model_options=model_options)


def _given(args: argparse.Namespace, record: type[Decoding]) -> dict[str, Any]:
    return {f.name: getattr(args, f.name) for f in fields(record) if hasattr(args, f.name)}


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `unmask.load`."""
    return {"name": args.model, **{name: getattr(args, name) for name in LOADING}}


def load(args: argparse.Namespace) -> Model:
    from unmask.models import loading as models

    return tuned_for(models.load(**loading(args)), args)


@contextmanager
def replicas(args: argparse.Namespace) -> Iterator[tuple[Model, Pool | None]]:
    """The model, and the pool that completes an evaluation's batches: --workers, the ranks of torchrun, or None for this process."""
    from unmask.evaluation.ranks import launched, ranks

    if args.workers is not None:
        from unmask.evaluation.workers import Workers

        with Workers(loading(args), args.workers, args.ray_address) as workers:
            yield tuned_for(workers.model, args), workers
    elif args.ray_address:
        raise UserError("--ray-address says where the workers are; say how many with --workers N")
    elif launched():
        with ranks(loading(args)) as (model, pool):
            yield tuned_for(model, args), pool
    else:
        yield load(args), None


def tuned_for(model: Model, args: argparse.Namespace) -> Model:
    """The model, if the settings file was made for it."""
    if file := getattr(args, "settings_file", None):
        from unmask.evaluation import tune

        tune.check_model(file, tune.read(file), model)
    return model


def settings(args: argparse.Namespace, task: str | None = None) -> dict[str, Any]:
    """Those of --settings FILE, if it was tuned for the task, then those of --set."""
    from unmask.decoding.settings import parse

    given = parse(args.settings)
    if not getattr(args, "settings_file", None):
        return given
    from unmask.evaluation import tune

    return {**tune.read(args.settings_file, task)["settings"], **given}


def names(text: str) -> list[str]:
    """ "a, b" -> ["a", "b"]"""
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found:
        raise UserError("the list of names is empty")
    return found


def methods_of(names: list[str]) -> dict[str, Strategy]:
    """The methods of --method or --methods: built-in names, FILE.py:NAME, entry points."""
    from unmask.plugins import methods

    return methods(names)


def task_of(name: str) -> Task:
    """The task of --task: a built-in name, FILE.py:NAME, an entry point."""
    from unmask.plugins import task

    return task(name)


def data_of(args: argparse.Namespace, task: Task) -> str | None:
    """Where a task's rows are: --data, or UNMASK_DATA for a task that reads files."""
    from unmask.tasks import Made

    return args.data or (None if isinstance(task.rows, Made) else os.environ.get("UNMASK_DATA"))


def prompts(text: str | None, file: str | None) -> list[dict[str, Any]]:
    """The prompts of a command line: its text, standard input for "-", or a file: JSONL rows, or else one prompt."""
    if (text is None) == (file is None):
        raise UserError('give one prompt ("-" reads it from standard input) or --prompts FILE')
    if text is not None:
        return [{"prompt": read_text("-") if text == "-" else text}]
    if file != "-" and not str(file).endswith((".jsonl", ".json")):
        return [{"prompt": read_text(str(file))}]
    found = []
    for where, row in read_rows(str(file)):
        row = {"prompt": row} if isinstance(row, str) else row
        if not isinstance(row, dict) or not (row.get("prompt") or row.get("messages")):
            raise UserError(f'{where}: a row is a string or an object with "prompt" or "messages"')
        found.append(row)
    if not found:
        raise UserError(f"{file} holds no prompts")
    return found


def asked(row: Mapping[str, Any]) -> Prompt:
    """The prompt of a row: its messages, or its text."""
    return row.get("messages") or row["prompt"]


def images(args: argparse.Namespace, rows: list[dict[str, Any]]) -> list[list[Picture]]:
    """The images of every row: those of the command line, then its own ("image": a path or a list of them)."""
    if args.image:  # what is not an image is refused before a model is loaded
        from unmask.models.images import opened

        for file in args.image:
            opened(file)
    own = [row.get("image") or [] for row in rows]
    return [[*args.image, *(some if isinstance(some, list) else [some])] for some in own]


def typed(values: Mapping[str, Any]) -> str:
    """Options as they are typed; those that were not given, or have their usual value, are left out."""
    usual = {"batch": 8, "bad_rows": "stop"}
    given = [(name.replace("_", "-"), value) for name, value in values.items() if value and value != usual.get(name)]
    return " ".join(f"--{name}" if value is True else f"--{name} {shlex.quote(str(value))}" for name, value in given)


def writable(file: str) -> Path:
    """A file to write, refused before anything is decoded if it is a folder or its folder does not exist."""
    path = Path(file)
    if path.is_dir():
        raise UserError(f"{file} is a folder; say which file to write in it")
    if not path.absolute().parent.is_dir():
        raise UserError(f"{file} cannot be written: there is no folder {path.parent}")
    return path


def say(line: str) -> None:
    """Something the user should know, beside the output."""
    print(f"unmask: {line}", file=sys.stderr)
