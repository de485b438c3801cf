"""Run methods on a task: one JSON line per example, in a folder that survives a crash, and a summary with intervals.

A run is one method with one recipe: `METHOD-HASH.jsonl` holds its examples, `METHOD-HASH.json` its recipe, where everything
came from, and its summary. The hash is that of the recipe, so answers of another recipe can never be taken for its own. A run
with another --limit takes the answers to the same prompts from a run of the folder that differs in nothing else (`borrowed`)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any

from unmask.decoding.algorithm import Strategy
from unmask.decoding.canvas import Canvas
from unmask.errors import UserError
from unmask.evaluation.metrics import answer_time, summarise
from unmask.evaluation.recipe import Options, digest, draws, provenance, recipe, settings, stem
from unmask.evaluation.significance import mean, paired, spread, wilson
from unmask.evaluation.store import Example, append, borrowed, finished, locked
from unmask.evaluation.votes import VOTES, extraction
from unmask.files import write_whole
from unmask.generation import Decoding, generations, partition
from unmask.models.images import Stored, found
from unmask.models.model import Model
from unmask.tasks import Grade, Row, Rows, Task
from unmask.tasks.programs import Limits, grade_many
from unmask.tasks.sandbox import isolation


def grade_all(task: Task, pairs: Sequence[tuple[str, Row]], options: Options) -> list[Grade]:
    if not task.executes:
        grade = task.grader(options.mode)
        return [grade(text, row) for text, row in pairs]
    return grade_many(task, pairs, Limits(unisolated=options.unisolated))


def picture(task: Task, row: Row, root: Path | None) -> Stored:
    """A row's picture: bytes as they are, a name looked up beside the data."""
    value = row.get(task.image)
    if value is None:
        raise UserError(f"a row of {task.name} has no picture; get the images that belong to the data")
    return found(value, root)


def load_rows(
    task: Task,
    split: str = "test",
    data: str | Path | None = None,
    limit: int | None = None,
    *,
    skip_bad: bool = False,
    shuffle: int | None = None,
) -> Rows:
    """The rows to decode and their few-shot rows: the first `limit`, or with `shuffle`, a seed, as many drawn at random (some
    files are sorted by subject). Pictures are there to be opened."""
    whole = task.load(split, data, skip_bad=skip_bad)
    rows = list(whole.rows)
    if shuffle is not None:
        Random(shuffle).shuffle(rows)
    return with_images(task, replace(whole, data=replace(whole.data, rows=rows)), limit, skip_bad)


def with_images(task: Task, rows: Rows, limit: int | None = None, skip_bad: bool = False) -> Rows:
    """The first rows, each with its picture there to be opened: a missing one is an error before anything is decoded, or the
    row is skipped. Pictures in files count as data read."""
    data = rows.data
    if not task.image:
        return replace(rows, data=data.first(limit))
    kept: list[Row] = []
    skipped, read = list(data.skipped), hashlib.sha256(data.sha256.encode())
    for number, row in enumerate(data.rows, 1):
        if len(kept) == limit:
            break
        try:
            shown = picture(task, row, data.root)
        except UserError as error:
            if not skip_bad:
                raise UserError(f"{task.name}, row {number}: {error}, or pass --bad-rows skip") from None
            skipped.append(f"row {number}: {error}")
            continue
        kept.append(row)
        if not isinstance(shown, dict):
            read.update(shown if isinstance(shown, bytes) else Path(shown).read_bytes())
    if not kept:
        raise UserError(f"{task.name}: no row has its picture; {skipped[-1] if skipped else ''}")
    whole = replace(data, rows=kept, skipped=tuple(skipped), sha256=read.hexdigest())
    return replace(rows, data=whole.first(limit))


@dataclass(frozen=True)
class Batch:
    """Rows to decode together, with everything needed besides the model, so that it can be sent to another process."""

    number: int  # its place in the partition
    indices: Sequence[int]  # of its rows in the data
    rows: Sequence[Row]
    prompts: Sequence[str | list[dict[str, str]]]
    images: Sequence[Stored] | None
    task: Task
    strategy: Strategy
    options: Options
    seed: int

    def decoding(self, model: Model) -> Decoding:
        """A row draws by its own number, whatever batch it is in."""
        return decoding_for(model, self.task, self.options, [self.seed * 1_000_000 + i for i in self.indices])


Pool = Callable[[Iterable[Batch]], Iterator[list[Example]]]  # completes batches, in whatever order
Report = Callable[[str, int, int, int], None]  # (method, rows done, rows in all, of those right)


def run_batch(model: Model, batch: Batch) -> list[Example]:
    """Decode and grade the rows of a batch."""
    task, options = batch.task, batch.options
    decoding, votes = batch.decoding(model), []
    if options.vote:
        extracts = [extraction(task, row, options.mode) for row in batch.rows]
        vote = VOTES[options.vote]
        votes = vote(model, batch.prompts, extracts, batch.strategy, decoding, images=batch.images)
        made = [replace(v.chosen, forwards=v.forwards) for v in votes]
    else:
        made = list(generations(model, batch.prompts, batch.strategy, decoding, images=batch.images))
    grades = grade_all(task, [(g.text, row) for g, row in zip(made, batch.rows, strict=True)], options)
    anchors = [model.tokens(task.anchor), model.tokens(" " + task.anchor)]
    examples = []
    for i, row, prompt, generation, grade in zip(batch.indices, batch.rows, batch.prompts, made, grades, strict=True):
        others = (
            {} if task.executes else {mode: bool(g(generation.text, row).correct) for mode, g in task.modes.items()}
        )
        examples.append({
            "id": task.identify(row, i), "index": i, "batch": batch.number, "prompt": prompt, "response": generation.text,
            "gold": row.get(task.gold), "group": row.get(task.group) if task.group else None,
            "extracted": grade.extracted, "rule": grade.rule, "correct": bool(grade.correct), "modes": others,
            "nfe": generation.forwards, "tie_rate": generation.tie_rate, "eot_ratio": generation.eot_ratio,
            "eot_ratio_all": generation.eot_ratio_all, "seconds": generation.seconds, "work": generation.work, "seed": generation.seed,
            **answer_time(generation.tokens, generation.order, generation.forwards, anchors),
            "tokens": generation.tokens, "order": generation.order,
        })  # fmt: skip
    for example, cast in zip(examples, votes, strict=False):
        example["votes"] = [None if answer is None else str(answer) for answer in cast.answers]
    return examples


def decoding_for(model: Model, task: Task, options: Decoding, seed: int | Sequence[int] | None = None) -> Decoding:
    """How a task's rows are decoded: its length if none is asked for, its chat template, its stop strings."""
    plain = {f.name: getattr(options, f.name) for f in fields(Decoding)}
    return Decoding(**{
        **plain, "length": options.length or task.length, "raw": options.raw or not task.chat or not model.chats,
        "stop": (*task.stop, *options.stop), "seed": options.seed if seed is None else seed,
    })  # fmt: skip


@dataclass(frozen=True)
class Planned:
    """One method on the rows of a task, before anything is decoded: its recipe, and the files that go by it."""

    name: str
    task: Task
    strategy: Strategy
    rows: Rows
    options: Options
    seed: int
    folder: Path
    recipe: dict[str, Any]

    @property
    def about(self) -> Path:
        """The record of the run: recipe, provenance, summary. Its examples stand beside it, in a .jsonl."""
        return self.folder / f"{stem(self.name, self.recipe)}.json"

    @property
    def length(self) -> int:
        return self.options.length or self.task.length


def plan_method(
    model: Model, task: Task, name: str, strategy: Strategy, rows: Rows, options: Options, folder: str | Path, seed: int = 0
) -> Planned:  # fmt: skip
    identity = recipe(model, task, strategy, rows, options, seed)
    return Planned(name, task, strategy, rows, options, seed, Path(folder), identity)


def run_method(model: Model, run: Planned, report: Report, pool: Pool) -> dict[str, Any]:
    """Decode and grade every row with one method, resuming what the folder holds. Returns the record of the run."""
    task, rows, options, identity = run.task, run.rows, run.options, run.recipe
    data, about, lines = rows.data, run.about, run.about.with_suffix(".jsonl")
    prompts = [task.ask(row, rows.few_shot) for row in data.rows]
    sizes = [len(model.tokens(task.render(row, rows.few_shot))) for row in data.rows]
    if model.context and not task.image:  # the longest comes last: better to know before decoding the others
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        raw = decoding_for(model, task, options).raw
        if (need := len(model.encode(prompts[longest], options.system, raw)) + run.length) > model.context:
            which = task.identify(data.rows[longest], longest)
            raise UserError(
                f"row {which} of {task.name} takes {need} tokens with its response; {model.name} was made for {model.context}"
            )
    given = borrowed(lines, about, identity, prompts, [row.get(task.gold) for row in data.rows])
    rest = [i for i in range(len(prompts)) if i not in given]
    batches = [[rest[k] for k in batch] for batch in partition([sizes[i] for i in rest], options.batch)]
    done = finished(lines, batches, given)
    seen = {example["index"] for example in done}
    record = {
        "method": run.name,
        "recipe_sha256": digest(identity),
        "recipe": identity,
        "settings": settings(run.strategy),
        "provenance": {**provenance(model, rows), **getattr(pool, "about", {})},  # a pool says where it ran
    }
    if given:
        record["borrowed"] = {"rows": len(given), "from": sorted({given[i]["from"] for i in given})}
    if done and about.exists():  # the first part's provenance stands beside the last one's
        with suppress(ValueError, KeyError, OSError):
            record["resumed_from"] = json.loads(about.read_text())["provenance"]
    write_whole(about, record)
    right = sum(example["correct"] for example in done)
    report(run.name, len(done), len(data.rows), right)
    left = (
        Batch(
            number, batch, [data.rows[i] for i in batch], [prompts[i] for i in batch],
            [picture(task, data.rows[i], data.root) for i in batch] if task.image else None, task, run.strategy, options,
            run.seed,
        )
        for number, batch in enumerate(batches)
        if not seen.issuperset(batch)
    )  # fmt: skip
    for examples in pool(left):
        append(lines, examples)
        done += examples
        right += sum(example["correct"] for example in examples)
        report(run.name, len(done), len(data.rows), right)
    done.sort(key=lambda example: example["index"])
    record["summary"] = summarise(done, run.length)
    write_whole(about, record)
    return {**record, "examples": done, "file": str(lines)}


def evaluate(
    model: Model,
    task: Task,
    methods: Mapping[str, Strategy],
    rows: Rows,
    options: Options = Options(),  # noqa: B008 (frozen)
    out: str | Path = "runs/eval",
    report: Report = lambda *_: None,
    pool: Pool | None = None,
    summary: str = "summary.json",
) -> dict[str, Any]:
    """Every method on the same rows; what `unmask eval --json` prints, also written to the file `summary` of the folder. The
    batches are done by this process one after the other, or by `pool`: then the model needs no weights here."""
    check(model, task, methods, options)
    first = options.seed if isinstance(options.seed, int) else options.seed[0]
    runs = [
        plan_method(model, task, name, strategy, rows, options, out, first + k)
        for name, strategy in methods.items()
        for k in range(options.seeds if draws(strategy, options) else 1)
    ]
    return run_planned(model, runs, report, pool, summary)


def run_planned(
    model: Model,
    runs: Sequence[Planned],
    report: Report = lambda *_: None,
    pool: Pool | None = None,
    summary: str = "summary.json",
) -> dict[str, Any]:
    """Run what was planned, methods with their seeds, all on the same rows; the summary goes to that file of their folder."""
    first = runs[0]
    pool = pool or (lambda batches: (run_batch(model, batch) for batch in batches))
    with locked(first.folder):
        results: dict[str, list[dict[str, Any]]] = {}
        for run in runs:
            results.setdefault(run.name, []).append(run_method(model, run, report, pool))
        whole = {
            "task": first.task.name,
            "model": model.name,
            "rows": len(first.rows.rows),
            "length": first.length,
            "mode": first.options.mode or first.task.mode or "default",
            "out": str(first.folder),
            "methods": {name: together(records) for name, records in results.items()},
            "pairs": compared(results),
        }
        write_whole(first.folder / summary, whole)
    return whole


def check_code(task: Task, options: Options) -> None:
    """Generated code is run only if the user allows it."""
    if task.executes and not options.allow_code:
        raise UserError(f"grading {task.name} runs the code the model writes; allow it with --allow-code")


def check(model: Model, task: Task, methods: Mapping[str, Strategy], options: Options) -> None:
    """Say no before anything is decoded or written."""
    check_code(task, options)
    if task.executes and not options.unisolated and isolation() == "none":
        raise UserError(
            "this system cannot isolate generated code; use a container, or accept the risk with --unisolated-code"
        )
    if task.executes and options.vote:
        raise UserError(f"{task.name} is graded by running programs, which have no answer to vote on: leave out --vote")
    task.grader(options.mode)
    length = options.length or task.length
    for name, strategy in methods.items():
        try:
            strategy.prepare(Canvas.blank([[*model.tokens("x"), 0]], length, model.vocab), model.tokens)
        except UserError as error:
            raise UserError(f"{name} on {task.name} at length {length}: {error}") from None


def together(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary of a method: of its one run, or the means over its seeds with their spread."""
    first = runs[0]
    about = {"steps": first["recipe"]["steps"], "strategy": first["recipe"]["strategy"], "recipe_sha256": first["recipe_sha256"],
             "file": first["file"]}  # fmt: skip
    if len(runs) == 1:
        return {**first["summary"], **about}
    keys = [key for key, value in first["summary"].items() if isinstance(value, (int, float)) and key != "rows"]
    means = {key: mean([run["summary"][key] for run in runs if run["summary"][key] is not None]) for key in keys}
    accuracies = [run["summary"]["accuracy"] for run in runs]
    right, asked = (sum(run["summary"][key] for run in runs) for key in ("correct", "rows"))
    return {
        **first["summary"], **means, **about, "interval": list(wilson(round(right / len(runs)), asked // len(runs))),
        "seeds": len(runs), "spread": spread(accuracies), "per_seed": accuracies, "files": [run["file"] for run in runs],
    }  # fmt: skip


def compared(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Every pair of methods on the same rows (their first seeds)."""
    names = list(results)
    pairs = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            x, y = ([example["correct"] for example in results[n][0]["examples"]] for n in (a, b))
            found = paired(x, y)
            pairs.append({"a": a, "b": b, **found._asdict(), "interval": list(found.interval)})
    return pairs
