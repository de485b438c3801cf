"""What the toy suite says about the bundled model: gates on the model alone, then the paper's claims on rows nobody has looked at.

The runs are those of `unmask reproduce`, on all tasks and on more rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from unmask.decoding.algorithm import SuffixAnchor
from unmask.errors import UserError
from unmask.evaluation.significance import wilson
from unmask.files import make_folder, write_whole
from unmask.models.loading import BUNDLED, Ours
from unmask.models.model import Model
from unmask.paper.experiments import ALL, EXPERIMENTS, SACM, Experiment, matches
from unmask.paper.fronts import FRONTS
from unmask.paper.numbers import Published
from unmask.paper.page import Block, blocks
from unmask.paper.plan import Book, Setting
from unmask.tasks import toy
from unmask.training.probe import probe

FROZEN = BUNDLED / "frozen.json"
SWEEP = 0.2  # the share of the rows that settings are varied on
OWN = {"support": 1.0, "answer-first": 1.0, "pareto": SWEEP, "near": 1.0}
OPENING = SuffixAnchor(
    "Let us see.", 0
)  # left to right from a reasoned opening: without one, one answer in eight is direct
LEFT_TO_RIGHT = Published("", "LLaDA", "gsm8k", "left-to-right", float("nan"), 256, 256, {"anchors": (OPENING,)})
GATES = Experiment(
    "left-to-right", "Can the model reason, one word after the other?", "no table", (LEFT_TO_RIGHT,), places=ALL
)
# Which cells of the paper's experiments are run, and on what share of the rows; then our own.
CHOSEN: dict[str, tuple[Mapping[str, Any], float]] = {
    "main": ({}, 1.0),
    "progress": ({}, SWEEP),
    "parallelism": ({"method": ("sacm", "semi-ar"), "steps": 32}, 1.0),
    "anchors": (SACM | {"model": "LLaDA"}, SWEEP),
    "positions": (SACM | {"text": "The answer is"}, SWEEP),
}


def suite(split: str = "test", count: int = 500) -> list[Experiment]:
    """The experiments, each on all the tasks it is about."""
    found = [replace(GATES, split=split, small=count)]
    for name, (wanted, share) in CHOSEN.items():
        e = EXPERIMENTS[name]
        found.append(replace(
            e, answers=tuple(c for c in e.answers if matches(c, wanted)), places=e.places if name == "main" else ALL, split=split,
            small=max(1, round(share * count)), shares=tuple(c for c in e.shares if c.method == "sacm"),
        ))  # fmt: skip
    return [
        *found,
        *(replace(FRONTS[name], split=split, small=max(1, round(share * count))) for name, share in OWN.items()),
    ]


# ---------------------------------------------------------------- the gates


@dataclass(frozen=True)
class Gate:
    """Something that must hold of the model before its decoding says anything."""

    says: str
    figure: str  # a probe, or what a run measures
    passes: Callable[[float, float], bool]  # (share, chance)
    worlds: tuple[str, ...] = toy.PLAIN


CHECKS = (
    Gate("answer after the true chain >= 98", "chain", lambda x, chance: x >= 0.98),
    Gate("the same, 20 slots before the end", "anchored", lambda x, chance: x >= 0.98),
    Gate("left to right, reasoning, >= 90", "left-to-right", lambda x, chance: x >= 0.9),
    Gate("direct answer at most 20 above chance", "direct", lambda x, chance: x <= chance + 0.2),
    Gate("glance at most 20 above chance", "glance", lambda x, chance: x <= chance + 0.2),
    Gate("top-probability's EOT ratio >= 60", "EOT", lambda x, chance: x >= 0.6),
    Gate(
        "answer first: the last result after the true text before it >= 98",
        "later",
        lambda x, chance: x >= 0.98,
        toy.FIRST,
    ),
    Gate("answer first: the answer in front of the true chain >= 98", "chain", lambda x, chance: x >= 0.98, toy.FIRST),
    Gate(
        'answer first: the same, with a "." 8 slots before the end', "anchored", lambda x, chance: x >= 0.98, toy.FIRST
    ),
    Gate(
        "answer first: direct answer at most 20 above chance", "direct", lambda x, chance: x <= chance + 0.2, toy.FIRST
    ),
    Gate("answer first: glance at most 20 above chance", "glance", lambda x, chance: x <= chance + 0.2, toy.FIRST),
)


def probes(model: Model, out: Path, split: str, count: int) -> dict[str, dict[str, float]]:
    """World -> probe -> share right, kept in the folder."""
    file = out / f"probes-{split}-{count}-{model.weights_hash[:12]}.json"
    if not file.is_file():
        rows = {"tuning": "validation"}.get(split, split)
        make_folder(out)
        module = cast("Ours", model.module)
        write_whole(file, probe(module, model.tokenizer, list(toy.WORLDS), rows, count, model.length))
    return json.loads(file.read_text())


def gates(
    found: Mapping[str, Mapping[str, float]], experiments: Sequence[Experiment], book: Book, length: int, count: int
) -> list[dict[str, Any]]:
    """One row for each gate: the figures of every world, and whether all pass. None: not run."""
    shares: dict[str, dict[str, float]] = {world: dict(values) for world, values in found.items()}
    for e in experiments:
        for cell in e.cells(length):
            if (record := book.record(cell.run)) and cell.run.method in ("left-to-right", "top-probability"):
                summary, plain = record["summary"], cell.run.method == "top-probability"
                shares[cell.run.task]["EOT" if plain else "left-to-right"] = summary[
                    "eot_ratio_all" if plain else "accuracy"
                ]
    rows = []
    for gate in CHECKS:
        values = {world: shares[world].get(gate.figure) for world in gate.worlds}
        known = {world: x for world, x in values.items() if x is not None}
        text = ", ".join(
            f"{world} {_share(x, count) if gate.figure != 'EOT' else f'{100 * x:.1f}'}" for world, x in known.items()
        )
        passed = (
            all(gate.passes(x, toy.WORLDS[world].chance) for world, x in known.items())
            if len(known) == len(values)
            else None
        )
        rows.append(
            {
                "gate": gate.says,
                "figures": text or "not run",
                "passed": {True: "yes", False: "NO", None: "not run"}[passed],
            }
        )
    return rows


def _share(x: float, count: int) -> str:
    low, high = wilson(round(x * count), count)
    return f"{100 * x:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def page(
    model: Model, experiments: Sequence[Experiment], book: Book, setting: Setting, split: str, count: int, command: str
) -> list[Block]:
    """The gates, then the page that `unmask reproduce` makes of the experiments."""
    head, *rest = blocks(experiments, book, setting, command)
    rows = gates(probes(model, setting.out, split, count), experiments, book, model.length, count)
    return [head, ("h2", "gates"), ("table", rows), *rest]


# ---------------------------------------------------------------- frozen before test rows are decoded


def hashes(*directories: Path) -> dict[str, str]:
    """sha256 of what was fixed before any method was decoded on test rows: weights, tokenizers and the tasks themselves."""
    files = [Path(toy.__file__)]
    for directory in directories:
        files += [directory / "model.safetensors", directory / "tokenizer.json"]
    return {
        f"{file.parent.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.is_file()
    }


def freeze(out: Path, *directories: Path) -> None:
    write_whole(out, hashes(*directories))


def check_frozen(frozen: Path, *directories: Path) -> None:
    """Test rows are decoded only with what was frozen."""
    kept = json.loads(frozen.read_text()) if frozen.is_file() else {}
    changed = [name for name, value in hashes(*directories).items() if kept.get(name) != value]
    if changed:
        raise UserError(
            f"{', '.join(changed)} changed since they were frozen; use --split tuning, or freeze them first (--freeze FILE)"
        )
