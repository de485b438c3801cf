"""Run methods on a task: one JSON line per example, in a folder that survives a crash, and a summary with intervals.

A run is one method with one recipe: `METHOD-HASH.jsonl` holds its examples, `METHOD-HASH.json` its recipe, where everything
came from, and its summary. The hash is of the recipe, so that answers of another recipe can never be taken for its own."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.errors import UserError
from unmask.evaluation.significance import mean, paired, spread, wilson
from unmask.tasks import Grade, Task
from unmask.tasks.data import Loaded, Row

EARLY = 0.15  # the paper's "first 15 % of steps"
NEAR = 14  # slots from the anchor: kappa, how far the modulation reaches
Example = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """How to decode and grade, the same for every method of an evaluation."""

    length: int | None = None  # L; the task's by default
    steps: int | None = None  # T; the method's pace by default
    batch: int = 8
    seed: int = 0
    seeds: int = 1  # runs of a method that draws
    temperature: float | None = None  # None: the method's own
    cfg: float = 0.0
    cache: str | None = None
    mode: str = ""  # of grading; the parity modes are recorded beside it anyway
    allow_code: bool = False
    unisolated: bool = False
    model_options: Mapping[str, Any] = field(default_factory=dict)  # quantize, revision: part of the recipe


# ---------------------------------------------------------------- what is run


def adapted(task: Task, strategy: Any, wanted: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """The method with the task's anchor and (kappa, beta, gamma), then the user's settings; which of those it has."""
    from unmask.decoding.settings import applied

    strategy, _ = applied(strategy, {**task.settings, "text": task.anchor})
    return applied(strategy, dict(wanted))


def draws(strategy: Any, options: Options) -> bool:
    """Does the method draw random numbers?"""
    from unmask.decoding.rules.confidence import Uniform
    from unmask.decoding.rules.published import PublishedChance, PublishedUniform
    from unmask.decoding.rules.tokens import Gumbel
    from unmask.decoding.settings import rules
    from unmask.generation import reading

    kinds = (Gumbel, Uniform, PublishedUniform, PublishedChance)
    strategy = replace(strategy, read=reading(strategy.read, options.temperature, ()))
    return any(isinstance(rule, kinds) for rule in rules(strategy))


def frequency_hash(model: Any) -> str | None:
    table = model.vocab.frequency
    return None if table is None else hashlib.sha256(table.detach().cpu().float().numpy().tobytes()).hexdigest()


def recipe(
    model: Any, task: Task, strategy: Any, data: Loaded, shots: Loaded | None, options: Options, seed: int
) -> dict[str, Any]:
    """Everything that decides which tokens come out. Two runs with one recipe give the same answers."""
    length = options.length or task.length
    asked = json.dumps([task.ask(row, shots.rows if shots else ()) for row in data.rows], ensure_ascii=False)
    prompts = hashlib.sha256(asked.encode())
    return {
        "strategy": repr(strategy),
        "denoiser": repr(model.denoiser(options.cfg, options.cache)),
        "cfg": options.cfg,
        "cache": options.cache,
        "length": length,
        "steps": options.steps or max(1, round(strategy.pace * length)),
        "steps_given": options.steps is not None,
        "temperature": options.temperature,
        "seed": seed,
        "batch": options.batch,
        "grading": options.mode or task.mode or "default",
        "frequency_sha256": frequency_hash(model),
        "model": model.name,
        "weights_sha256": model.weights_hash,
        "model_options": dict(options.model_options),
        "dtype": str(next(model.module.parameters()).dtype),
        "task": task.name,
        "anchor": task.anchor,
        "anchor_ids": model.tokens(task.anchor),
        "chat": task.chat,
        "layout": task.layout,
        "stop": list(task.stop),
        "data_sha256": data.sha256,
        "prompts_sha256": prompts.hexdigest(),
        "rows": len(data.rows),
    }


def provenance(model: Any, data: Loaded, shots: Loaded | None) -> dict[str, Any]:
    """Where it was run and on what: for the reader, not part of the recipe."""
    import importlib.metadata

    versions: dict[str, str | None] = {"unmask": __version__, "python": platform.python_version()}
    for name in ("torch", "transformers", "tokenizers", "math-verify"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "data": {
            "origin": data.origin,
            "revision": data.revision,
            "sha256": data.sha256,
            "skipped": list(data.skipped),
        },
        "shots": shots and {"origin": shots.origin, "revision": shots.revision, "sha256": shots.sha256},
        "versions": versions,
        "device": str(model.device),
        "platform": platform.platform(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


# ---------------------------------------------------------------- the folder


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process a folder. The lock goes with the process, however it ends."""
    import fcntl

    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            raise UserError(
                f"{folder} is in use by process {file.read().strip() or '?'}; wait for it, or pass another --out"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def write_whole(path: Path, value: Any) -> None:
    """Replace a JSON file at once or not at all."""
    beside = path.with_name(path.name + ".part")
    try:
        beside.write_text(json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")
        os.replace(beside, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; what was finished is kept") from None


def finished(path: Path, batches: Sequence[Sequence[int]]) -> list[Example]:
    """The examples of the batches a previous run completed. A torn last line and an unfinished batch are dropped and the
    batch is done again whole, so that a resumed run equals a straight one."""
    found: dict[int, Example] = {}
    if not path.exists():
        return []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    for line in lines:
        try:
            example = json.loads(line)
            found[example["index"]] = example
        except (ValueError, KeyError, TypeError):  # torn by a crash
            continue
    kept = [found[i] for batch in batches if all(i in found for i in batch) for i in batch]
    content = "".join(json.dumps(example, ensure_ascii=False) + "\n" for example in kept).encode()
    if content != b"\n".join(lines):
        beside = path.with_name(path.name + ".part")
        try:
            beside.write_bytes(content)
            os.replace(beside, path)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror}") from None
    return kept


def append(path: Path, examples: Sequence[Example]) -> None:
    """On the disk before the next batch begins."""
    try:
        with path.open("ab") as file:
            file.write("".join(json.dumps(example, ensure_ascii=False) + "\n" for example in examples).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; what was finished is kept, the same command resumes"
        ) from None


# ---------------------------------------------------------------- one method


def partition(sizes: Sequence[int], batch: int) -> list[list[int]]:
    """Rows of like length together, always in the same batches whatever was done before."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    return [order[first : first + batch] for first in range(0, len(order), batch)]


def grade_all(task: Task, pairs: Sequence[tuple[str, Row]], options: Options) -> list[Grade]:
    if not task.executes:
        grade = task.grader(options.mode)
        return [grade(text, row) for text, row in pairs]
    from unmask.tasks.programs import Limits, grade_many

    return grade_many(task, pairs, Limits(unisolated=options.unisolated))


def answer_time(
    tokens: Sequence[int], order: Sequence[int], forwards: int, anchors: Sequence[Sequence[int]]
) -> dict[str, Any]:
    """When the first token after the anchor was committed: in the first 15 % of steps? after which share of the slots before
    the anchor? The anchor is the last stretch written before decoding; without one, where the response itself says it."""
    none = {"early_answer": None, "answer_progress": None}
    given = [i for i, when in enumerate(order) if when < 0]
    if given:
        end = given[-1] + 1
        start = end - 1
        while start > 0 and order[start - 1] < 0:
            start -= 1
    else:
        places = [
            (i, i + len(a))
            for a in anchors
            if a
            for i in range(len(tokens) - len(a) + 1)
            if list(tokens[i : i + len(a)]) == list(a)
        ]
        if not places:
            return none
        start, end = max(places, key=lambda place: place[1])
    if end >= len(tokens):
        return none
    before = [when for when in order[:start] if when >= 0]
    return {
        "early_answer": order[end] + 1 <= EARLY * forwards,
        "answer_progress": sum(when < order[end] for when in before) / len(before) if before else None,
    }


def near_anchor(order: Sequence[int], forwards: int, early: float = EARLY) -> float | None:
    """Of the slots that the first 15 % of the steps decoded, the share within NEAR slots of what was written before decoding;
    None: nothing was. `early=1` is the share of all slots: what decoding anywhere alike would give."""
    given = [slot for slot, when in enumerate(order) if when < 0]
    hit = [slot for slot, when in enumerate(order) if 0 <= when < max(1, int(early * forwards))]
    return sum(any(abs(slot - a) <= NEAR for a in given) for slot in hit) / len(hit) if given and hit else None


def picture(task: Task, row: Row, root: Path | None) -> Any:
    """A row's picture: bytes as they are, a name looked up beside the data."""
    from unmask.models.images import found

    value = row.get(task.image)
    if value is None:
        raise UserError(f"a row of {task.name} has no picture; get the images that belong to the data")
    return found(value, root)


def illustrated(task: Task, data: Loaded, skip_bad: bool = False, limit: int | None = None) -> Loaded:
    """The first rows, each with its picture there to be opened: one that is not is an error before anything is decoded,
    or skipped. Pictures in files count as data read."""
    if not task.image:
        return limited(data, limit)
    rows: list[Row] = []
    skipped, read = list(data.skipped), hashlib.sha256(data.sha256.encode())
    for number, row in enumerate(data.rows, 1):
        if len(rows) == limit:
            break
        try:
            shown = picture(task, row, data.root)
        except UserError as error:
            if not skip_bad:
                raise UserError(f"{task.name}, row {number}: {error}, or pass --bad-rows skip") from None
            skipped.append(f"row {number}: {error}")
            continue
        rows.append(row)
        if not isinstance(shown, dict):
            read.update(shown if isinstance(shown, bytes) else Path(shown).read_bytes())
    if not rows:
        raise UserError(f"{task.name}: no row has its picture; {skipped[-1] if skipped else ''}")
    return limited(replace(data, rows=rows, skipped=tuple(skipped), sha256=read.hexdigest()), limit)


@dataclass(frozen=True)
class Batch:
    """Rows to decode together, with all that it takes besides the model: it can be sent to another process."""

    number: int  # its place in the partition
    indices: Sequence[int]  # of its rows in the data
    rows: Sequence[Row]
    prompts: Sequence[str | list[dict[str, str]]]
    images: Sequence[Any] | None
    task: Task
    strategy: Any
    options: Options
    seed: int


Pool = Callable[[Iterable[Batch]], Iterator[list[Example]]]  # completes batches, in whatever order


def completed(model: Any, batch: Batch) -> list[Example]:
    """Decode and grade the rows of a batch."""
    from unmask.generation import generate

    task, options = batch.task, batch.options
    made = generate(
        model, batch.prompts, batch.strategy, length=options.length or task.length, steps=options.steps, batch=options.batch,
        seed=[batch.seed * 1_000_000 + i for i in batch.indices], temperature=options.temperature, cfg=options.cfg,
        cache=options.cache, raw=plain(model, task), stop=task.stop, images=batch.images,
    )  # fmt: skip
    grades = grade_all(task, [(g.text, row) for g, row in zip(made, batch.rows, strict=True)], options)
    anchors = [model.tokens(task.anchor), model.tokens(" " + task.anchor)]
    examples = []
    for i, row, prompt, generation, grade in zip(batch.indices, batch.rows, batch.prompts, made, grades, strict=True):
        others = {} if task.executes else {mode: bool(g(generation.text, row).correct) for mode, g in task.modes.items()}
        examples.append({
            "id": task.identify(row, i), "index": i, "batch": batch.number, "prompt": prompt, "response": generation.text,
            "gold": row.get(task.gold), "group": row.get(task.group) if task.group else None,
            "extracted": grade.extracted, "rule": grade.rule, "correct": bool(grade.correct), "modes": others,
            "nfe": generation.forwards, "tie_rate": generation.tie_rate, "eot_ratio": generation.eot_ratio,
            "eot_ratio_all": generation.eot_ratio_all, "seconds": generation.seconds, "seed": generation.seed,
            **answer_time(generation.tokens, generation.order, generation.forwards, anchors),
            "tokens": generation.tokens, "order": generation.order,
        })  # fmt: skip
    return examples


def plain(model: Any, task: Task) -> bool:
    """Are prompts given as they are, without a chat template?"""
    return not task.chat or not model.chats


def run_method(
    model: Any,
    task: Task,
    name: str,
    strategy: Any,
    data: Loaded,
    shots: Loaded | None,
    options: Options,
    folder: Path,
    seed: int,
    report: Callable[[str, int, int, int], None],
    pool: Pool,
) -> dict[str, Any]:
    """Decode and grade every row with one method, resuming what the folder holds. Returns the record of the run."""
    identity = recipe(model, task, strategy, data, shots, options, seed)
    stem = f"{name}-{digest(identity)[:12]}"
    prompts = [task.ask(row, shots.rows if shots else ()) for row in data.rows]
    texts = [task.render(row, shots.rows if shots else ()) for row in data.rows]
    sizes = [len(model.tokens(text)) for text in texts]
    batches = partition(sizes, options.batch)
    if model.context and not task.image:  # the longest comes last: better to know before the others are decoded
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        if (need := len(model.encode(prompts[longest], raw=plain(model, task))) + identity["length"]) > model.context:
            which = task.identify(data.rows[longest], longest)
            raise UserError(f"row {which} of {task.name} takes {need} tokens with its response; {model.name} was made for {model.context}")
    lines = folder / f"{stem}.jsonl"
    done = finished(lines, batches)
    seen = {example["index"] for example in done}
    record = {
        "method": name,
        "recipe_sha256": digest(identity),
        "recipe": identity,
        "provenance": {**provenance(model, data, shots), **getattr(pool, "about", {})},  # a pool says where it ran
    }
    if done and (folder / f"{stem}.json").exists():  # the first part's provenance stands beside the last one's
        with suppress(ValueError, KeyError, OSError):
            record["resumed_from"] = json.loads((folder / f"{stem}.json").read_text())["provenance"]
    write_whole(folder / f"{stem}.json", record)
    right = sum(example["correct"] for example in done)
    report(name, len(done), len(data.rows), right)
    left = (
        Batch(
            number, batch, [data.rows[i] for i in batch], [prompts[i] for i in batch],
            [picture(task, data.rows[i], data.root) for i in batch] if task.image else None, task, strategy, options, seed,
        )
        for number, batch in enumerate(batches)
        if not seen.issuperset(batch)
    )  # fmt: skip
    for examples in pool(left):
        append(lines, examples)
        done += examples
        right += sum(example["correct"] for example in examples)
        report(name, len(done), len(data.rows), right)
    done.sort(key=lambda example: example["index"])
    record["summary"] = summarise(done, identity["length"])
    write_whole(folder / f"{stem}.json", record)
    return {**record, "examples": done, "file": str(lines)}


def summarise(examples: Sequence[Example], length: int) -> dict[str, Any]:
    """The figures of one run; shares, not percent."""

    def share(key: str) -> float | None:
        return mean([float(value) for example in examples if (value := example.get(key)) is not None])

    right, n = sum(example["correct"] for example in examples), len(examples)
    seconds, forwards = sum(example["seconds"] for example in examples), sum(example["nfe"] for example in examples)
    written = sum(length * (1 - example["eot_ratio_all"]) for example in examples)
    groups = sorted({str(example["group"]) for example in examples if example.get("group") is not None})
    found: dict[str, Any] = {
        "accuracy": right / n if n else None,
        "interval": list(wilson(right, n)),
        "correct": right,
        "rows": n,
        "eot_ratio": share("eot_ratio"),
        "eot_ratio_all": share("eot_ratio_all"),
        "answer_found": sum(example["rule"] != "none" for example in examples) / n if n else None,
        "early_answer": share("early_answer"),
        "answer_progress": share("answer_progress"),
        "nfe": share("nfe"),
        "tie_rate": share("tie_rate"),
        "tokens_per_forward": n * length / forwards if forwards else None,
        "tokens_per_second": n * length / seconds if seconds else None,
        "text_tokens_per_second": written / seconds if seconds else None,
        "seconds": seconds,
        "modes": {
            mode: mean([float(e["modes"][mode]) for e in examples])
            for mode in (examples[0]["modes"] if examples else ())
        },
    }
    if groups:
        parts = {group: [e for e in examples if str(e["group"]) == group] for group in groups}
        found["groups"] = {
            g: {"accuracy": mean([float(e["correct"]) for e in es]), "rows": len(es)} for g, es in parts.items()
        }
    return found


# ---------------------------------------------------------------- several methods


def evaluate(
    model: Any,
    task: Task,
    methods: Mapping[str, Any],
    data: Loaded,
    shots: Loaded | None = None,
    options: Options = Options(),  # noqa: B008 (frozen)
    out: str | Path = "runs/eval",
    report: Callable[[str, int, int, int], None] = lambda *_: None,
    pool: Pool | None = None,
) -> dict[str, Any]:
    """Every method on the same rows; the summary of `unmask eval --json`. The batches are done by this process one after the
    other, or by `pool`: then the model needs no weights here."""
    check(model, task, methods, options)
    pool = pool or (lambda batches: (completed(model, batch) for batch in batches))
    folder = Path(out)
    with locked(folder):
        results: dict[str, list[dict[str, Any]]] = {}
        for name, strategy in methods.items():
            count = options.seeds if draws(strategy, options) else 1
            results[name] = [
                run_method(model, task, name, strategy, data, shots, options, folder, options.seed + k, report, pool)
                for k in range(count)
            ]
        summary = {
            "task": task.name,
            "model": model.name,
            "rows": len(data.rows),
            "length": options.length or task.length,
            "mode": options.mode or task.mode or "default",
            "out": str(folder),
            "methods": {name: together(runs) for name, runs in results.items()},
            "pairs": compared(results),
        }
        write_whole(folder / "summary.json", summary)
    return summary


def check(model: Any, task: Task, methods: Mapping[str, Any], options: Options) -> None:
    """Say no before anything is decoded or written."""
    if task.executes and not options.allow_code:
        raise UserError(f"grading {task.name} runs the code the model writes; allow it with --allow-code")
    if task.executes and not options.unisolated:
        from unmask.tasks.sandbox import isolation

        if isolation() == "none":
            raise UserError(
                "this system cannot isolate generated code; use a container, or accept the risk with --unisolated-code"
            )
    task.grader(options.mode)
    if options.seeds < 1 or options.batch < 1:
        raise UserError("--seeds and --batch are at least 1")
    from unmask.decoding.canvas import Canvas

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
    """Every two methods on the same rows (their first seeds)."""
    names = list(results)
    pairs = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            x, y = ([example["correct"] for example in results[n][0]["examples"]] for n in (a, b))
            found = paired(x, y)
            pairs.append({"a": a, "b": b, **found._asdict(), "interval": list(found.interval)})
    return pairs


def limited(data: Loaded, limit: int | None) -> Loaded:
    """The first rows only."""
    if limit is None or limit >= len(data.rows):
        return data
    if limit < 1:
        raise UserError(f"--limit is at least 1, not {limit}")
    return replace(data, rows=data.rows[:limit])
