"""Decode what a plan is missing, one checkpoint at a time, and time what the paper times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.evaluate import Pool, Report, decoding_for, evaluate, run_planned
from unmask.evaluation.recipe import Options
from unmask.evaluation.report import records
from unmask.evaluation.store import locked
from unmask.evaluation.workers import Workers
from unmask.files import write_whole
from unmask.generation import Decoding, Prompt, generations
from unmask.models.model import Model
from unmask.paper.experiments import Experiment, figure_runs
from unmask.paper.plan import Absent, Book, Job, Setting, Shelf, clock, place, small_length, speed_file
from unmask.progress import Bar
from unmask.tasks import Rows, Task, find


def reproduce(
    experiments: Sequence[Experiment], book: Book, setting: Setting, shelf: Shelf, bar: Bar | None = None
) -> Book:
    """Decode what is missing, one checkpoint at a time; what cannot be decoded says why and the rest goes on."""
    begun = time.perf_counter()
    length = small_length(setting.given)
    bar, tally = bar or Bar(), Tally(book.missing)
    with locked(setting.out):
        for name in dict.fromkeys(job.checkpoint for job in book.missing):
            jobs = [job for job in book.missing if job.checkpoint == name]
            try:
                with crew(name, setting, shelf) as (model, pool):
                    for job in jobs:
                        started = time.perf_counter()
                        try:
                            _decode(model, job, pool, tally, bar)
                        except UserError as error:
                            book.absent[job.run] = str(error)
                        record = book.record(job.run)
                        figure = (
                            f"{100 * record['summary']['accuracy']:.1f} %" if record else book.absent.get(job.run, "")
                        )
                        if not bar.bars:
                            took = clock(time.perf_counter() - started)
                            bar.tell(f"{job.run.task} {job.run.method}: {figure} ({job.count} rows, {took})")
            except Absent as why:  # weights that were there when it was planned
                book.absent |= {job.run: str(why) for job in jobs}
        for e in experiments:
            jobs = (
                [book.jobs[c.run] for c in e.cells(length, setting.limit) if c.run in book.jobs]
                if e.kind == "efficiency"
                else []
            )
            if jobs:
                try:
                    if setting.ray_address:
                        raise Absent(
                            f"seconds a sample are measured where the command runs: `unmask reproduce {e.name}` without --workers"
                        )
                    book.speeds[e.name] = speeds(shelf(jobs[0].checkpoint), jobs)
                except (UserError, Absent) as why:
                    book.untimed[e.name] = str(why)
    book.wall = time.perf_counter() - begun
    return book


class Tally:
    """How many of the plan's forwards are made: what the bar of a reproduction counts."""

    def __init__(self, jobs: Sequence[Job]):
        self.total, self.before = sum(job.forwards for job in jobs), 0
        self.current: Job | None = None

    def done(self, job: Job, rows: int) -> int:
        if self.current is not None and self.current is not job:
            self.before += self.current.forwards
        self.current = job
        return self.before + job.forwards * rows // job.count


@contextmanager
def crew(name: str, setting: Setting, shelf: Shelf) -> Iterator[tuple[Model, Pool | None]]:
    """The model, and what completes its batches: workers, which need the memory it takes here, or this process."""
    if not setting.workers:
        yield shelf(name), None
        return
    shelf.clear()
    with Workers({"name": name, **setting.worker_loading}, setting.workers, setting.ray_address) as workers:
        yield workers.model, workers


def _decode(model: Model, job: Job, pool: Pool | None, tally: Tally, bar: Bar) -> None:
    run = job.run

    def report(name: str, done: int, total: int, right: int) -> None:
        bar.show("all", tally.done(job, done), tally.total, label=f"{run.task} {run.method}")

    run_planned(model, [job.planned], report, pool, summary=f"{job.file.stem}.summary.json")


def speeds(model: Model, jobs: Sequence[Job]) -> dict[str, Any]:
    """Seconds of every sample decoded alone, as the paper's latency is; the methods take turns, so that whatever else the
    machine does affects them all alike. Kept in the folder: measured once on a machine."""
    first, file = jobs[0], speed_file(jobs, str(model.device))
    task = find(first.run.task)
    if file.exists():
        return json.loads(file.read_text())
    asked = [task.ask(row, first.rows.few_shot) for row in first.rows.rows]
    seconds: dict[str, list[float]] = {job.run.method: [] for job in jobs}

    def decode(job: Job, prompt: Prompt, steps: int | None) -> float:
        begun = time.perf_counter()
        list(
            generations(
                model,
                [prompt],
                job.run.strategy,
                decoding_for(model, task, Decoding(length=job.run.length, steps=steps)),
            )
        )
        return time.perf_counter() - begun

    for job in jobs:
        decode(job, asked[0], 2)  # libraries warm up on first use
    for turn, prompt in enumerate(asked):
        for job in jobs if turn % 2 == 0 else jobs[::-1]:
            seconds[job.run.method].append(decode(job, prompt, job.run.steps))
    found = {"machine": place(str(model.device)), "length": first.run.length, "seconds": seconds}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, found)
    return found


def figure_records(
    kind: str, model: Model, task: Task, rows: Rows, options: Options, out: str | Path, report: Report = lambda *_: None
) -> list[dict[str, Any]]:
    """The records of the runs that a figure is drawn from, decoded into a folder where they resume."""
    files: dict[str, None] = {}
    for run in figure_runs(kind, task.name, options.length or task.length):
        asked = replace(options, length=run.length, steps=run.steps or options.steps)
        summary = evaluate(model, task, {run.method: run.strategy}, rows, asked, out, report)
        files |= dict.fromkeys(
            summary["methods"][run.method].get("files", [summary["methods"][run.method]["file"]])
        )  # one per seed
    return records(list(files))
