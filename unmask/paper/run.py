"""The paper by one command: plan which runs its tables need, decode what is missing, and hand the results to the page.

A Run is decoded once however many tables ask for it; its files are those of `unmask eval`, named by the recipe, so that a
killed command resumes and a finished run is never repeated."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation import evaluate as evaluation
from unmask.evaluation.report import examples
from unmask.evaluation.tune import sampled
from unmask.paper import numbers as paper
from unmask.paper.experiments import Cell, Experiment, Run
from unmask.tasks import find
from unmask.tasks.data import Loaded, Made, reachable

HUB = {name: checkpoint for checkpoint, name in paper.MODELS.items() if "rainbow" not in checkpoint}
RAINBOW = {name: checkpoint for checkpoint, name in paper.MODELS.items() if "rainbow" in checkpoint}


class Absent(Exception):
    """Why something cannot be run here."""


# ---------------------------------------------------------------- which checkpoint


def directory(name: str) -> Path | None:
    """Where a checkpoint lies on this machine, if it does."""
    from unmask.models.loading import BUNDLED

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
    """A folder that is not there is a slip of the pen; a hub id may still be fetched."""
    for name in given:
        if directory(name) is None and (name.count("/") != 1 or name.startswith((".", "/", "~"))):
            raise UserError(f"there is no checkpoint {name!r}: neither a folder with a config.json nor a hub id such as {HUB['LLaDA']}")


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
        known = paper.family(name)
        if rainbow == ("rainbow" in name.lower()) and (known == model or (known is None and model == "LLaDA")):
            return name
    wanted = (RAINBOW.get(model) or f"a rainbow-padded {model}") if rainbow else HUB[model]
    raise Absent(f"weights of {wanted} are missing; add --model {wanted if '/' in wanted else 'DIR'}")


def same_model(cell: Cell, where: str, chosen: Mapping[str, Any]) -> bool:
    """May a difference to the paper's number be taken? Not of quantised weights."""
    return cell.beside and paper.family(where) == cell.source.model and not chosen.get("quantize")


# ---------------------------------------------------------------- the plan


@dataclass
class Job:
    """A Run with the weights, rows and folder it gets here."""

    run: Run
    checkpoint: str
    folder: Path
    data: Loaded
    shots: Loaded | None
    options: evaluation.Options
    forwards: int  # at most
    seconds: float  # about; 0: not timed
    stem: str  # of its files
    device: str

    @property
    def rows(self) -> int:
        return len(self.data.rows)

    def record(self) -> dict[str, Any] | None:
        """What the folder holds of it, if it is finished."""
        try:
            record = json.loads((self.folder / f"{self.stem}.json").read_text())
        except (OSError, ValueError):
            return None
        return record if "summary" in record else None


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
        return self.jobs[run].record() if run in self.jobs and run not in self.absent else None

    def examples(self, run: Run) -> list[dict[str, Any]]:
        """In the order of the rows."""
        if run not in self._examples:
            job = self.jobs[run]
            self._examples[run] = sorted(examples(job.folder / f"{job.stem}.jsonl"), key=lambda e: e["index"])
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


class Shelf:
    """One model at a time: two of 8 billion parameters do not fit where one does."""

    def __init__(self, loading: Mapping[str, Any]):
        self.loading, self.name, self.model = loading, "", None  # type: ignore[var-annotated]

    def clear(self) -> None:
        self.name, self.model = "", None

    def __call__(self, name: str) -> Any:
        import unmask

        if name != self.name:
            self.clear()
            self.model = present(name, lambda: unmask.load(name, **self.loading))  # type: ignore[assignment]
            self.name = name
        return self.model


def present(name: str, load: Callable[[], Any]) -> Any:
    """What `load` makes of a checkpoint; Absent where there are no weights. What else is wrong, a flag say, is an error."""
    if directory(name) is None:
        try:
            reachable()
        except OSError:
            raise Absent(f"weights of {name} are missing; download them and pass --model DIR, a folder of that name") from None
    try:
        return load()
    except UserError as error:
        where = directory(name)
        if where and any(where.glob("*.safetensors")):
            raise
        raise Absent(f"weights of {name} are missing: {error}") from None


def outlined(name: str, setting: Setting) -> Any:
    """The model without weights, as the workers will have it: they alone need the memory."""
    from unmask.evaluation.workers import Workers, outline

    loading = {"name": name, **setting.loading, "device": setting.loading.get("device") or default_device()}
    Workers(loading, setting.workers or 1, setting.ray_address)  # refuses flags that do not go with workers
    return present(name, lambda: outline(loading))


def default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"


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
        pace: dict[tuple[str, int], tuple[float, float]] = {}
        for run in wanted:
            try:
                book.jobs[run] = _job(model, run, name, setting, load, pace, length)
            except (UserError, Absent) as why:
                book.absent[run] = str(why)
    timed = {c.run for e in experiments if e.kind != "efficiency" for c in e.cells(length, setting.limit)}
    book.missing = [job for run, job in book.jobs.items() if run in timed and job.record() is None]
    return book


def _remembered(setting: Setting) -> Callable[[Run], tuple[Loaded, Loaded | None]]:
    """Rows and few-shot rows of a run, each read once; what is not there is said each time."""
    kept: dict[Any, Any] = {}

    def load(run: Run) -> tuple[Loaded, Loaded | None]:
        key = (run.task, run.split, run.count)
        if key not in kept:
            try:
                kept[key] = read(run)
            except UserError as error:
                kept[key] = Absent(f"data of {run.task} missing: {error}")
        if isinstance(kept[key], Absent):
            raise kept[key]
        return kept[key]

    def read(run: Run) -> tuple[Loaded, Loaded | None]:
        task = find(run.task)
        place = None if isinstance(task.rows, Made) else setting.data
        if run.split == "tuning":
            rows = sampled(task, task.tuning_rows(place), run.count or 10**9, seed=0)
        else:
            rows = evaluation.illustrated(task, task.rows.load(task.name, place), limit=run.count)
        return rows, task.shots.load(task.name, place, beside=True) if task.shots else None

    return load


def _job(model: Any, run: Run, name: str, setting: Setting, load: Any, pace: dict[Any, tuple[float, float]], small: int | None) -> Job:
    from unmask.decoding.rules.modifiers import Calibrate

    task = find(run.task)
    data, shots = load(run)
    batch = setting.batch or default_batch(len(data.rows), small)
    chosen = {key: str(value) for key in ("quantize", "revision") if (value := setting.loading.get(key))}
    options = evaluation.Options(length=run.length, steps=run.steps, batch=batch, allow_code=setting.allow_code,
                                 unisolated=setting.unisolated, model_options=chosen)  # fmt: skip
    evaluation.check(model, task, {run.method: run.strategy}, options)
    if any(isinstance(rule, Calibrate) for rule in run.strategy.modifiers) and model.vocab.frequency is None:
        raise Absent("UNCODE needs a token frequency table: `unmask frequencies CORPUS --model M -o FILE`, then --frequencies FILE")
    if (run.task, run.split) not in pace:
        pace[run.task, run.split] = (0.0, 0.0) if setting.workers else timed(model, task, data, shots, run.length, batch)
    per, prompt = pace[run.task, run.split]
    most = bound(run)
    identity = evaluation.recipe(model, task, run.strategy, data, shots, options, options.seed)
    folder = setting.out / "runs" / f"{Path(name).name}-{run.task}"
    stem = f"{run.method}-{evaluation.digest(identity)[:12]}"  # as `evaluate` names its files
    seconds = most * len(data.rows) * (prompt + run.length) * per
    device = setting.loading.get("device") or default_device() if setting.workers else str(model.device)
    return Job(run, name, folder, data, shots, options, most * math.ceil(len(data.rows) / batch), seconds, stem, device)


def default_batch(rows: int, small: int | None) -> int:
    """In small a run is two batches, so that two workers share it: a batch is part of the recipe, how many workers there are is not."""
    return min(math.ceil(rows / 2), 32) if small else 8


def timed(model: Any, task: Any, data: Loaded, shots: Loaded | None, length: int, batch: int) -> tuple[float, float]:
    """(seconds a token of a forward, tokens of a prompt), by a batch of real rows: one forward to warm up, then two."""
    from unmask.decoding.methods import METHODS
    from unmask.generation import generate

    rows = data.rows[:batch]
    prompts = [task.ask(row, shots.rows if shots else ()) for row in rows]
    raw = evaluation.plain(model, task)
    asked = {"images": [evaluation.picture(task, row, data.root) for row in rows]} if task.image else {}
    size = sum(len(model.tokens(task.render(row, shots.rows if shots else ()))) for row in rows) / len(rows)
    for steps in (1, 2):
        begun = time.perf_counter()
        generate(model, prompts, METHODS["top-probability"], length=length, steps=steps, batch=batch, raw=raw, **asked)
        seconds = time.perf_counter() - begun
    return seconds / 2 / len(rows) / (size + length), size


def plan_lines(experiments: Sequence[Experiment], book: Book, setting: Setting) -> list[dict[str, Any]]:
    """An experiment a line. A run that several ask for counts where it is asked for first."""
    length, counted, lines = small_length(setting.given), set(), []
    missing = {job.run for job in book.missing}
    for e in experiments:
        runs = list(dict.fromkeys(c.run for c in e.cells(length, setting.limit)))
        jobs = [book.jobs[run] for run in runs if run in book.jobs and (run not in counted or e.kind == "efficiency")]
        absent = [book.absent[run] for run in runs if run in book.absent]
        if e.kind == "efficiency":  # every row is decoded alone
            left = [job for job in jobs if not speed_file(jobs, job.device).exists()]
            forwards = sum(bound(job.run) * job.rows for job in left)
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
    return run.strategy.bound(run.length, run.steps or max(1, round(run.strategy.pace * run.length)))


def listing(setting: Setting) -> list[dict[str, Any]]:
    """Every experiment, without a model or data: the rows are counted as the paper's table of data sets has them."""
    from unmask.paper.experiments import EXPERIMENTS

    length, lines = small_length(setting.given), []
    for e in EXPERIMENTS.values():
        cells = list(e.cells(length, setting.limit))
        runs = list(dict.fromkeys(c.run for c in cells if not length or c.run.model == "LLaDA"))
        forwards = 0
        for run in runs:
            rows = min(run.count or 10**9, 10**9 if run.split == "tuning" else paper.ROWS.get(run.task, 10**9))
            batch = 1 if e.kind == "efficiency" else setting.batch or default_batch(rows, length)
            forwards += bound(run) * math.ceil(rows / batch)
        models = ", ".join(dict.fromkeys(run.model for run in runs))
        shown = (setting.given[0] if length else models) if runs else "not run here"
        tasks = ", ".join(dict.fromkeys(run.task for run in runs))
        lines.append({"name": e.name, "asks": e.asks, "model": shown, "tasks": tasks, "runs": len(runs), "forwards": forwards})
    return lines


def clock(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


# ---------------------------------------------------------------- running


def reproduce(
    experiments: Sequence[Experiment], book: Book, setting: Setting, shelf: Shelf, report: Callable[[Job, int], None] = lambda *_: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Book:  # fmt: skip
    """Decode what is missing, a checkpoint at a time; what cannot be decoded says why and the rest goes on."""
    begun = time.perf_counter()
    length = small_length(setting.given)
    with evaluation.locked(setting.out):
        for name in book.weights:
            jobs = [job for job in book.missing if job.checkpoint == name]
            try:
                with crew(name, setting, shelf) if jobs else nullcontext((None, None)) as (model, pool):
                    for job in jobs:
                        started = time.perf_counter()
                        try:
                            _decode(model, job, pool, report)
                        except UserError as error:
                            book.absent[job.run] = str(error)
                        record = job.record()
                        figure = f"{100 * record['summary']['accuracy']:.1f} %" if record else book.absent.get(job.run, "")
                        tell(f"{job.run.task} {job.run.method}: {figure} ({job.rows} rows, {clock(time.perf_counter() - started)})")
            except Absent as why:  # weights that were there when it was planned
                book.absent |= {job.run: str(why) for job in jobs}
        for e in experiments:
            jobs = [book.jobs[c.run] for c in e.cells(length, setting.limit) if c.run in book.jobs] if e.kind == "efficiency" else []
            if jobs:
                try:
                    if setting.ray_address:
                        raise Absent(f"seconds a sample are measured where the command runs: `unmask reproduce {e.name}` without --workers")
                    book.speeds[e.name] = speeds(shelf(jobs[0].checkpoint), jobs)
                except (UserError, Absent) as why:
                    book.untimed[e.name] = str(why)
    book.wall = time.perf_counter() - begun
    return book


@contextmanager
def crew(name: str, setting: Setting, shelf: Shelf) -> Iterator[tuple[Any, Any]]:
    """The model, and what completes its batches: workers, which need the memory it takes here, or this process."""
    if not setting.workers:
        yield shelf(name), None
        return
    from unmask.evaluation.workers import Workers

    shelf.clear()
    with Workers({"name": name, **setting.loading}, setting.workers, setting.ray_address) as workers:
        yield workers.model, workers


def _decode(model: Any, job: Job, pool: Any, report: Callable[[Job, int], None]) -> None:
    run = job.run
    summary = evaluation.evaluate(
        model, find(run.task), {run.method: run.strategy}, job.data, job.shots, job.options, job.folder,
        lambda name, done, total, right: report(job, done), pool,
    )  # fmt: skip
    job.stem = Path(summary["methods"][run.method]["file"]).stem  # workers may have another device, and dtype, than was planned


def speeds(model: Any, jobs: Sequence[Job]) -> dict[str, Any]:
    """Seconds of every sample decoded alone, as the paper's latency is; the methods take turns, so that what else the
    machine does falls on all of them. Kept in the folder: measured once on a machine."""
    from unmask.generation import generate

    first, file = jobs[0], speed_file(jobs, str(model.device))
    task = find(first.run.task)
    if file.exists():
        return json.loads(file.read_text())
    asked = [task.ask(row, first.shots.rows if first.shots else ()) for row in first.data.rows]
    seconds: dict[str, list[float]] = {job.run.method: [] for job in jobs}

    def decode(job: Job, prompt: Any, steps: int | None) -> float:
        begun = time.perf_counter()
        generate(model, [prompt], job.run.strategy, length=job.run.length, steps=steps, raw=not task.chat or not model.chats)
        return time.perf_counter() - begun

    for job in jobs:
        decode(job, asked[0], 2)  # libraries warm up on first use
    for turn, prompt in enumerate(asked):
        for job in jobs if turn % 2 == 0 else jobs[::-1]:
            seconds[job.run.method].append(decode(job, prompt, job.run.steps))
    found = {"machine": place(str(model.device)), "length": first.run.length, "seconds": seconds}
    first.folder.mkdir(parents=True, exist_ok=True)
    evaluation.write_whole(file, found)
    return found


def place(device: str) -> dict[str, Any]:
    """The machine, with the device that was used on it."""
    from unmask.tools.bench import machine

    about = machine()
    return {**about, "device": f"{about['device']} ({device})" if device.startswith("cuda") else device}


def speed_file(jobs: Sequence[Job], device: str) -> Path:
    key = {"machine": place(device), "stems": [job.stem for job in jobs]}  # a stem's hash is of the weights, too
    return jobs[0].folder / f"speeds-{evaluation.digest(key)[:12]}.json"


class Bar:
    """How far the forwards of the plan are, if the stream is a terminal."""

    def __init__(self, stream: Any, total: int):
        self.stream, self.total, self.done, self.bar = stream, total, 0, None  # type: ignore[var-annotated]
        self.current: tuple[Job, int] | None = None

    def __enter__(self) -> Bar:
        if self.stream.isatty() and self.total:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeElapsedColumn(),
                       TextColumn("left"), TimeRemainingColumn())  # fmt: skip
            self.bar = Progress(*columns, console=Console(file=self.stream), transient=True)  # type: ignore[assignment]
            self.task = self.bar.add_task("", total=self.total)  # type: ignore[attr-defined]
            self.bar.start()  # type: ignore[attr-defined]
        return self

    def __exit__(self, *_: Any) -> None:
        if self.bar:
            self.bar.stop()

    def tell(self, line: str) -> None:
        """A run is done: said where there is no bar."""
        if not self.bar:
            print(line, file=self.stream, flush=True)

    def __call__(self, job: Job, rows: int) -> None:
        if self.bar:
            if self.current and self.current[0] is not job:
                self.done += self.current[0].forwards
            self.current = (job, rows)
            done = self.done + job.forwards * rows // job.rows
            self.bar.update(self.task, completed=done, description=f"{job.run.task} {job.run.method}")

