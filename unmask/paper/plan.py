"""Which runs the paper's tables need, which of them are done, and about how long the others take.

A Run is decoded once however many tables ask for it; its files are those of `unmask eval`, named by the recipe, so that a
killed command resumes and a finished run is never repeated."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unmask.decoding.methods import METHODS
from unmask.decoding.rules.modifiers import Calibrate
from unmask.errors import UserError
from unmask.evaluation import evaluate as evaluation
from unmask.evaluation.evaluate import Planned, decoding_for, load_rows, picture, plan_method
from unmask.evaluation.recipe import Options, digest
from unmask.evaluation.report import examples
from unmask.evaluation.workers import Workers, default_device, outline
from unmask.generation import Decoding, generations
from unmask.models.loading import BUNDLED, load
from unmask.models.model import Model
from unmask.paper import numbers
from unmask.paper.experiments import Cell, Experiment, Run
from unmask.paper.fronts import named
from unmask.tasks import Made, Rows, find
from unmask.tasks.data import reachable

HUB = {name: checkpoint for checkpoint, name in numbers.MODELS.items() if "rainbow" not in checkpoint}
RAINBOW = {name: checkpoint for checkpoint, name in numbers.MODELS.items() if "rainbow" in checkpoint}


class Absent(Exception):
    """Why something cannot be run here."""


def directory(name: str) -> Path | None:
    """Where a checkpoint is on this machine, if it is there."""
    for path in (BUNDLED / name, Path(name).expanduser()):
        if (path / "config.json").is_file():
            return path
    if name.count("/") == 1:
        from huggingface_hub import try_to_load_from_cache

        try:
            found = try_to_load_from_cache(name, "config.json")
        except ValueError:  # it cannot be a hub id
            return None
        return Path(found).parent if isinstance(found, str) else None
    return None


def check(given: Sequence[str]) -> None:
    """A folder that is not there is a typing mistake; a hub id may still be fetched."""
    for name in given:
        if directory(name) is None and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
            raise UserError(
                f"there is no checkpoint {name!r}: neither a folder with a config.json nor a hub id such as {HUB['LLaDA']}"
            )


def response_length(name: str) -> int | None:
    """L of a small model, which says so in its config; None of the published ones, which are run as in the paper."""
    where = directory(name)
    try:
        return json.loads((where / "config.json").read_text()).get("response_length") if where else None
    except (OSError, ValueError):
        return None


def small_length(given: Sequence[str]) -> int | None:
    lengths = [response_length(name) for name in given]
    if len(given) > 1 and any(lengths):
        raise UserError("the bundled model is reproduced on its own: give one --model, or the paper's checkpoints")
    return lengths[0] if lengths else None


def checkpoint(model: str, method: str, given: Sequence[str]) -> str:
    """The weights for a model of the paper: those given on the command line, else the published ones."""
    rainbow = method == "rainbow-padding"
    if not given:
        if rainbow and model not in RAINBOW:
            raise Absent(f"no rainbow-padded {model} is published")
        return RAINBOW[model] if rainbow else HUB[model]
    if response_length(given[0]):
        if model != "LLaDA":
            raise Absent(f"{given[0]} stands in for LLaDA alone; {model} is {HUB[model]}")
        if rainbow and directory(f"{given[0]}-rainbow") is None:
            raise Absent(f"there is no {given[0]}-rainbow, trained with `unmask train --padding rainbow`")
        return f"{given[0]}-rainbow" if rainbow else given[0]
    for name in given:
        known = numbers.family(name)
        if rainbow == ("rainbow" in name.lower()) and (known == model or (known is None and model == "LLaDA")):
            return name
    wanted = (RAINBOW.get(model) or f"a rainbow-padded {model}") if rainbow else HUB[model]
    raise Absent(f"weights of {wanted} are missing; add --model {wanted if '/' in wanted else 'DIR'}")


def same_model(cell: Cell, where: str, chosen: Mapping[str, Any]) -> bool:
    """May a difference to the paper's number be taken? Not of quantised weights."""
    return cell.beside and numbers.family(where) == cell.source.model and not chosen.get("quantize")


@dataclass(frozen=True)
class Job:
    """A Run with the weights, rows and folder it gets here."""

    run: Run
    checkpoint: str
    planned: Planned
    forwards: int  # at most
    seconds: float  # about; 0: not timed
    device: str

    @property
    def file(self) -> Path:
        """Where its record is, or will be."""
        return self.planned.about

    @property
    def rows(self) -> Rows:
        return self.planned.rows

    @property
    def count(self) -> int:
        return len(self.rows.rows)


@dataclass
class Book:
    """What came of every run."""

    jobs: dict[Run, Job] = field(default_factory=dict)
    absent: dict[Run, str] = field(default_factory=dict)  # why it was not run here
    speeds: dict[str, dict[str, Any]] = field(default_factory=dict)  # efficiency, by experiment
    untimed: dict[str, str] = field(default_factory=dict)  # why there is none
    weights: dict[str, str] = field(default_factory=dict)  # checkpoint: hash
    missing: list[Job] = field(default_factory=list)
    wall: float = 0.0
    _examples: dict[Run, list[dict[str, Any]]] = field(default_factory=dict)

    def record(self, run: Run) -> dict[str, Any] | None:
        """What the folder holds of a run, if it is finished."""
        if run not in self.jobs or run in self.absent:
            return None
        try:
            record = json.loads(self.jobs[run].file.read_text())
        except (OSError, ValueError):
            return None
        return record if "summary" in record else None

    def examples(self, run: Run) -> list[dict[str, Any]]:
        """In the order of the rows."""
        if run not in self._examples:
            self._examples[run] = sorted(examples(self.jobs[run].file), key=lambda e: e["index"])
        return self._examples[run]


@dataclass(frozen=True)
class Setting:
    """What the command line says."""

    given: tuple[str, ...] = ()
    out: Path = Path("runs/reproduce")
    data: str | None = None
    limit: int | None = None
    batch: int | None = None
    allow_code: bool = False
    unisolated: bool = False
    loading: Mapping[str, Any] = field(default_factory=dict)  # device, dtype, ...
    workers: int | None = None
    ray_address: str | None = None

    @cached_property
    def worker_loading(self) -> dict[str, Any]:
        """How every worker loads a model. The device is found out once, so that what is planned is what is run."""
        return {**self.loading, "device": self.loading.get("device") or default_device(self.ray_address)}


class Shelf:
    """One model at a time: two of 8 billion parameters do not fit where one does."""

    def __init__(self, loading: Mapping[str, Any]):
        self.loading, self.name = loading, ""
        self.model: Model | None = None

    def clear(self) -> None:
        self.name, self.model = "", None

    def __call__(self, name: str) -> Model:
        if self.model is None or name != self.name:
            self.clear()
            self.model = present(name, lambda: load(name, **self.loading))
            self.name = name
        return self.model


def present(name: str, load: Callable[[], Model]) -> Model:
    """What `load` makes of a checkpoint; Absent where there are no weights. What else is wrong, a flag say, is an error."""
    if directory(name) is None:
        try:
            reachable()
        except OSError:
            raise Absent(
                f"weights of {name} are missing; download them and pass --model DIR, a folder of that name"
            ) from None
    try:
        return load()
    except UserError as error:
        where = directory(name)
        if where and any(where.glob("*.safetensors")):
            raise
        raise Absent(f"weights of {name} are missing: {error}") from None


def outlined(name: str, setting: Setting) -> Model:
    """The model without weights, as the workers will have it: they alone need the memory."""
    loading = {"name": name, **setting.worker_loading}
    Workers(loading, setting.workers or 1, setting.ray_address)  # refuses flags that do not go with workers
    return present(name, lambda: outline(loading))


def planned(experiments: Sequence[Experiment], setting: Setting, shelf: Shelf, download: bool = True) -> Book:
    """Which runs there are, which of them are done, and about how long the others take: a forward is timed, if this process
    is the one that decodes."""
    book, length = Book(), small_length(setting.given)
    runs: dict[str, list[Run]] = {}
    for run in dict.fromkeys(c.run for e in experiments for c in e.cells(length, setting.limit)):
        try:
            runs.setdefault(checkpoint(run.model, run.method, setting.given), []).append(run)
        except Absent as why:
            book.absent[run] = str(why)
    load = _remembered(setting)
    for name, wanted in runs.items():
        try:
            if not download and directory(name) is None:
                raise Absent(f"weights of {name} are missing; --plan does not download them")
            model = outlined(name, setting) if setting.workers else shelf(name)
        except Absent as why:
            book.absent |= dict.fromkeys(wanted, str(why))
            continue
        book.weights[name] = model.weights_hash
        pace: dict[tuple[str, str], tuple[float, float]] = {}
        for run in wanted:
            try:
                book.jobs[run] = _job(model, run, name, setting, load, pace, length)
            except (UserError, Absent) as why:
                book.absent[run] = str(why)
    timed = {c.run for e in experiments if e.kind != "efficiency" for c in e.cells(length, setting.limit)}
    book.missing = [job for run, job in book.jobs.items() if run in timed and book.record(run) is None]
    return book


def _remembered(setting: Setting) -> Callable[[Run], Rows]:
    """The rows of a run, read once; what is missing is reported each time."""
    kept: dict[tuple[str, str, int | None], Rows | Absent] = {}

    def load(run: Run) -> Rows:
        key = (run.task, run.split, run.count)
        if key not in kept:
            task = find(run.task)
            place = None if isinstance(task.rows, Made) else setting.data
            drawn = 0 if run.split == "tuning" else None  # tuning rows are drawn, as in the paper
            try:
                kept[key] = load_rows(task, run.split, place, run.count, shuffle=drawn)
            except UserError as error:
                kept[key] = Absent(f"data of {run.task} missing: {error}")
        if isinstance(found := kept[key], Absent):
            raise found
        return found

    return load


def _job(
    model: Model, run: Run, name: str, setting: Setting, load: Callable[[Run], Rows], pace: dict[tuple[str, str], tuple[float, float]],
    small: int | None,
) -> Job:  # fmt: skip
    task, rows = find(run.task), load(run)
    batch = setting.batch or default_batch(len(rows.rows), small)
    chosen = {key: str(value) for key in ("quantize", "revision") if (value := setting.loading.get(key))}
    options = Options(length=run.length, steps=run.steps, cache=run.cache, batch=batch, allow_code=setting.allow_code,
                      unisolated=setting.unisolated, model_options=chosen)  # fmt: skip
    evaluation.check(model, task, {run.method: run.strategy}, options)
    if any(isinstance(rule, Calibrate) for rule in run.strategy.modifiers) and model.vocab.frequency is None:
        raise Absent(
            "UNCODE needs a token frequency table: `unmask frequencies CORPUS --model M -o FILE`, then --frequencies FILE"
        )
    if (run.task, run.split) not in pace:
        pace[run.task, run.split] = (0.0, 0.0) if setting.workers else timed(model, run, rows, batch)
    per, prompt = pace[run.task, run.split]
    folder = setting.out / "runs" / f"{Path(name).name}-{run.task}"
    planned = plan_method(model, task, run.method, run.strategy, rows, options, folder)
    seconds = bound(run) * len(rows.rows) * (prompt + run.length) * per
    device = setting.worker_loading["device"] if setting.workers else str(model.device)
    return Job(run, name, planned, bound(run) * math.ceil(len(rows.rows) / batch), seconds, device)


def default_batch(rows: int, small: int | None) -> int:
    """In small a run is two batches, so that two workers can share it: a batch is part of the recipe, how many workers there are is not."""
    return min(math.ceil(rows / 2), 32) if small else 8


def timed(model: Model, run: Run, rows: Rows, batch: int) -> tuple[float, float]:
    """(seconds per token of a forward, tokens per prompt), from a batch of real rows: one forward to warm up, then two."""
    task, some = find(run.task), rows.rows[:batch]
    prompts = [task.ask(row, rows.few_shot) for row in some]
    images = [picture(task, row, rows.data.root) for row in some] if task.image else None
    size = sum(len(model.tokens(task.render(row, rows.few_shot))) for row in some) / len(some)
    for steps in (1, 2):
        begun = time.perf_counter()
        decoding = decoding_for(model, task, Decoding(length=run.length, steps=steps, batch=batch))
        list(generations(model, prompts, METHODS["top-probability"], decoding, images=images))
        seconds = time.perf_counter() - begun
    return seconds / 2 / len(some) / (size + run.length), size


def plan_lines(experiments: Sequence[Experiment], book: Book, setting: Setting) -> list[dict[str, Any]]:
    """One line per experiment. A run that several ask for counts where it is asked for first."""
    length, counted, lines = small_length(setting.given), set(), []
    missing = {job.run for job in book.missing}
    for e in experiments:
        runs = list(dict.fromkeys(c.run for c in e.cells(length, setting.limit)))
        jobs = [book.jobs[run] for run in runs if run in book.jobs and (run not in counted or e.kind == "efficiency")]
        absent = [book.absent[run] for run in runs if run in book.absent]
        if e.kind == "efficiency":  # every row is decoded alone
            left = [job for job in jobs if not speed_file(jobs, job.device).exists()]
            forwards = sum(bound(job.run) * job.count for job in left)
        else:
            counted |= {job.run for job in jobs}
            left = [job for job in jobs if job.run in missing]
            forwards = sum(job.forwards for job in left)
        todo, seconds = len(left), sum(job.seconds for job in left)
        why = e.absent if length else ""
        if absent:
            why = absent[0] if len(absent) == len(runs) else f"{len(absent)} runs: {absent[0]}"
        lines.append({"experiment": e.name, "runs": len(runs), "to do": todo, "forwards": forwards,
                      "about": clock(seconds) if seconds else "", "seconds": seconds, "not run here": why})  # fmt: skip
    return lines


def bound(run: Run) -> int:
    """The most forwards a batch takes."""
    return run.strategy.bound(run.length, run.strategy.steps(run.length, run.steps))


def listing(setting: Setting) -> list[dict[str, Any]]:
    """Every experiment, without a model or data: the rows are counted as the paper's table of data sets has them."""
    length, lines = small_length(setting.given), []
    for e in (*named("all"), *named("beyond")):
        cells = list(e.cells(length, setting.limit))
        runs = list(dict.fromkeys(c.run for c in cells if not length or c.run.model == "LLaDA"))
        forwards = 0
        for run in runs:
            rows = min(run.count or 10**9, 10**9 if run.split == "tuning" else numbers.ROWS.get(run.task, 10**9))
            batch = 1 if e.kind == "efficiency" else setting.batch or default_batch(rows, length)
            forwards += bound(run) * math.ceil(rows / batch)
        models = ", ".join(dict.fromkeys(run.model for run in runs))
        shown = (setting.given[0] if length else models) if runs else "not run here"
        tasks = ", ".join(dict.fromkeys(run.task for run in runs))
        lines.append(
            {"name": e.name, "asks": e.asks, "model": shown, "tasks": tasks, "runs": len(runs), "forwards": forwards}
        )
    return lines


def clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def place(device: str) -> dict[str, Any]:
    """The machine, with the device that was used on it."""
    from unmask.evaluation.recipe import machine

    about = machine()
    return {**about, "device": f"{about['device']} ({device})" if device.startswith("cuda") else device}


def speed_file(jobs: Sequence[Job], device: str) -> Path:
    key = {"machine": place(device), "stems": [job.file.stem for job in jobs]}  # a stem's hash is of the weights, too
    return jobs[0].file.parent / f"speeds-{digest(key)[:12]}.json"
