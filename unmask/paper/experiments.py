"""The paper's tables and figures as records, and each of them in small for a model with short responses.

A Cell is one run, the cell of the paper it comes from, and whether the paper's number may be shown beside it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import METHODS
from unmask.decoding.rules.confidence import TopMargin
from unmask.evaluation.recipe import for_task
from unmask.evaluation.tune import COUNT, GRID
from unmask.paper import numbers
from unmask.paper.numbers import Published
from unmask.tasks import find

LONGEST = 256  # L of the paper's ablations: small versions are scaled from it
# Which bundled tasks stand in for the paper's; the first has the paper's number beside it.
PLACES: dict[str, tuple[str, ...]] = {"gsm8k": ("cups",), "math500": ("stories",), "strategyqa": ("compass",)}
Configuration = tuple[str, str, str, float, float]  # model, method, its changes, T / L, L / the task's own
ONE, ALL = {"gsm8k": ("cups",)}, {"gsm8k": ("cups", "stories", "compass")}


@dataclass(frozen=True)
class Run:
    """What is decoded. Two tables that ask for the same run share it."""

    model: str  # the paper's name
    task: str
    method: str
    strategy: Strategy
    length: int
    steps: int | None  # None: the method's own pace
    split: str
    count: int | None  # rows; None: all
    cache: str | None = None


@dataclass(frozen=True)
class Cell:
    run: Run
    changes: Mapping[str, Any]  # settings that differ from the method's row, as they are here
    source: Published
    beside: bool  # the paper's number may be shown beside it: the same task, or its stand-in

    @property
    def configuration(self) -> Configuration:
        """What cells that differ only in the task have in common; as shares, so that it is the same in small."""
        source = self.source
        whole = numbers.LENGTH.get(source.task, 128)
        return (
            source.model,
            source.method,
            repr(sorted(source.changes.items())),
            source.steps / source.length,
            source.length / whole,
        )

    @property
    def fits(self) -> bool:
        """A block takes at least one forward: more blocks than steps would mean more forwards than the other methods get."""
        strategy = self.run.strategy
        steps = self.run.steps or strategy.pace * self.run.length
        return not strategy.block or math.ceil(self.run.length / strategy.block) <= steps

    @property
    def label(self) -> str:
        run = self.run
        parts = [
            self.run.method,
            *(f"{name}={self.changes[name]!r}" for name in self.source.changes if name != "confidence"),
        ]
        parts += ["by top margin"] if "confidence" in self.changes else []
        parts += ["(trained for it)"] if run.method == "rainbow-padding" else []
        parts += [f"T={run.steps}"] if run.steps else []
        parts += (
            [f"L={run.length}"]
            if self.source.table == "tab:length_ablation" or run.length != find(run.task).length
            else []
        )
        return " ".join(parts)


@dataclass(frozen=True)
class Claim:
    """`ours` is above `theirs` (by so many points at least), the weakest of ours against the strongest of theirs; or not
    further under it than `within` points. A side is what a cell of the paper must have: its method(s), steps, length, settings
    (None: not changed)."""

    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    within: float | None = None
    by: float = 0.0
    of: str = "correct"  # or a key of claims.FIGURES: mistakes, nfe, eot_ratio, near_anchor
    times: float = 1.0  # `theirs` counted so many times: "twice as many mistakes"
    ties: bool = False  # it holds unless ours is significantly under theirs


@dataclass(frozen=True)
class Experiment:
    name: str
    asks: str
    label: str  # in the paper's source
    answers: tuple[Published, ...]  # the paper's numbers it answers to
    shares: tuple[Published, ...] = ()  # cells of other tables it is compared with: the same runs
    claims: tuple[Claim, ...] = ()
    kind: str = "accuracy"  # or efficiency, sweep, histogram
    split: str = "test"
    count: int | None = None  # rows of the paper; None: all
    small: int = 50  # rows per task on the bundled model
    places: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: PLACES)
    lengths: tuple[int, ...] = ()  # in small: further lengths that the paper has no number for
    absent: str = ""  # why it has no small version

    def cells(self, length: int | None = None, limit: int | None = None, fit: bool = True) -> Iterator[Cell]:
        """The cells as the paper has them or, given the response length of a small model, in proportion to it; `fit=False`: those
        that are left out there, as their blocks are more than the steps."""
        return (cell for cell in self._cells(length, limit) if cell.fits == fit)

    def _cells(self, length: int | None, limit: int | None) -> Iterator[Cell]:
        if limit and self.kind == "efficiency":  # seconds per sample need no more samples
            limit = min(limit, self.small)
        for source in (*self.answers, *self.shares):
            if length is None:
                yield cell(self, source, source.task, source.length, source.steps, source.changes, limit or self.count)
            elif not self.absent:
                for task in self.places.get(source.task, ()):
                    yield self.in_small(source, task, length, limit, beside=task == self.places[source.task][0])
        for further in (n for n in self.lengths if length and n < length):
            for source in (c for c in self.answers if c.length == LONGEST):
                bare = replace(source, length=further, steps=further // 2, accuracy=math.nan)
                yield cell(
                    self, bare, ONE["gsm8k"][0], further, further // 2, source.changes, limit or self.small, False
                )

    def in_small(
        self, source: Published, task: str, length: int, limit: int | None = None, beside: bool = False
    ) -> Cell:
        """A cell of the paper on another task, in proportion to that response length."""
        whole = numbers.LENGTH.get(source.task, 128)
        size = proportional(source.length, length, whole)
        changes = dict(source.changes)
        if block := METHODS[source.method].block:
            changes["block"] = proportional(changes.get("block", block), length, whole)
        if "at" in changes:
            changes["at"] = -proportional(-changes["at"], length, whole)
        steps = proportional(source.steps, size, source.length)
        return cell(self, source, task, size, steps, changes, limit or self.small, beside)


def by_configuration(cells: Iterable[Cell]) -> list[list[Cell]]:
    """Cells that differ only in the task, together."""
    found: dict[Configuration, list[Cell]] = {}
    for cell in cells:
        found.setdefault(cell.configuration, []).append(cell)
    return list(found.values())


def proportional(value: int, length: int, whole: int) -> int:
    """`value` of `whole`, of `length`; a half goes up."""
    return max(1, math.floor(value * length / whole + 0.5))


def cell(
    experiment: Experiment, source: Published, task: str, length: int, steps: int, changes: Mapping[str, Any], count: int | None,
    beside: bool = True,
) -> Cell:  # fmt: skip
    plain = METHODS[source.method]
    strategy = for_task(find(task), [source.method], changes)[source.method]
    # A threshold and remasking make their own number of forwards; T at the method's pace is left to it, so that runs are shared.
    own = plain.pace != 0.5 or steps == max(1, round(plain.pace * length))
    run = Run(source.model, task, source.method, strategy, length, None if own else steps, experiment.split, count)
    return Cell(run, changes, source, beside and not math.isnan(source.accuracy))


# ---------------------------------------------------------------- the records


def _cells(table: str, **wanted: Any) -> tuple[Published, ...]:
    return tuple(c for c in numbers.published() if c.table == table and matches(c, wanted))


def matches(cell: Published, wanted: Mapping[str, Any]) -> bool:
    def of(name: str) -> Any:
        return getattr(cell, name) if hasattr(cell, name) else cell.changes.get(name)

    return all(of(name) in value if isinstance(value, tuple) else of(name) == value for name, value in wanted.items())


def _sweep() -> Iterator[Published]:
    """The grid of every task with tuning rows. The paper prints the points chosen, not their accuracies."""
    for task, model in {
        "gsm8k": "LLaDA",
        "math500": "LLaDA",
        "strategyqa": "LLaDA",
        "mbpp": "LLaDA",
        "chartqa": "LaViDa",
    }.items():
        length = numbers.LENGTH.get(task, 128)
        for point in product(*GRID.values()):
            changes = dict(zip(GRID, point, strict=True))
            yield Published("tab:selected_hyperparameters", model, task, "sacm", math.nan, length, length // 2, changes)


def _efficiency() -> Iterator[Published]:
    for method in numbers.EFFICIENCY:
        yield Published("tab:efficiency", "LLaDA", "gsm8k", method, math.nan, 256, 128)


MAIN = "tab:main_text_results"
SACM, ALONE, PLAIN = {"method": "sacm"}, {"method": "suffix-anchor"}, {"method": "top-probability"}
TABLE = tuple(method for method in numbers.MAIN["LLaDA"] if method != "sacm-margin")
FREE = tuple(method for method in TABLE if method not in ("sacm", "rainbow-padding"))
TRAINED = {"method": "rainbow-padding"}  # it needs a training, so it is a claim of its own
ABOVE = (
    Claim(SACM, {"method": FREE}),
    Claim(SACM, TRAINED),
    Claim(SACM, ALONE),
    Claim(SACM, PLAIN),
    Claim(ALONE, PLAIN),
)
MARGIN, SACM_MARGIN = {"method": "top-margin"}, {"method": "sacm-margin"}
ALONE_MARGIN = ALONE | {"confidence": TopMargin()}


def _three(*methods: str) -> tuple[Published, ...]:
    """Of the main table, GSM8K with LLaDA."""
    return _cells(MAIN, model="LLaDA", task="gsm8k", method=methods)


EXPERIMENTS = {
    e.name: e
    for e in (
        Experiment("main", "Does SACM choose positions better than every other method?", MAIN,
                   _cells(MAIN, model="LLaDA", method=TABLE), claims=ABOVE),
        Experiment("main-1.5", "The same with LLaDA-1.5?", MAIN, _cells(MAIN, model="LLaDA-1.5", method=TABLE), claims=ABOVE),
        Experiment("vision", "The same with pictures?", "tab:main_vl_results", _cells("tab:main_vl_results"),
                   claims=(Claim(SACM, {"method": FREE}), Claim(SACM, PLAIN)), absent="the bundled model cannot see pictures"),
        Experiment("parallelism", "How does accuracy fall when more tokens are decoded a step, and do blocks help?",
                   "tab:semi_ar_comparison", _cells("tab:semi_ar_comparison"),
                   claims=tuple(Claim(SACM | {"steps": steps}, {"method": "semi-ar", "steps": steps}) for steps in numbers.STEPS)),
        Experiment("progress", "Does the modulation have to fade as decoding progresses?", "tab:progress_ablation",
                   _cells("tab:progress_ablation"), _three("sacm"), (Claim(SACM | {"gamma": None}, SACM | {"gamma": 0}),), places=ALL),
        Experiment("length", "Does it hold for shorter responses?", "tab:length_ablation", _cells("tab:length_ablation"),
                   claims=tuple(Claim(SACM | {"length": n}, PLAIN | {"length": n}) for n in (64, 128, 72, 84, 256)), lengths=(72, 84)),
        Experiment("anchors", "Does the wording of the anchor matter?", "tab:suffix_anchor_ablation", _cells("tab:suffix_anchor_ablation"),
                   _cells(MAIN, task="gsm8k", method="top-probability"),
                   (Claim(SACM, PLAIN), Claim(ALONE, PLAIN), Claim(SACM, SACM | {"text": "The answer is"}, within=10),
                    *(Claim(SACM | {"text": text}, ALONE | {"text": text}) for text in numbers.ANCHORS))),
        Experiment("efficiency", "What does SACM cost?", "tab:efficiency", tuple(_efficiency()), kind="efficiency", count=20, small=20,
                   places=ONE),
        Experiment("hyper-parameters", "Which (kappa, beta, gamma) does the sweep on tuning rows choose?", "tab:selected_hyperparameters",
                   tuple(_sweep()), kind="sweep", split="tuning", count=COUNT, small=24, places=ONE),
        Experiment("sensitivity", "Does it depend on the exact (kappa, beta, gamma)?", "tab:hyperparameter_sensitivity",
                   tuple(numbers.sensitivity()), claims=(Claim(SACM, ALONE), Claim(SACM, PLAIN)), split="tuning", count=256, small=24),
        Experiment("top-margin", "Does it work on top-margin confidence, too?", "tab:confidence_strategy_results",
                   (*_cells(MAIN, method="sacm-margin"), *_cells("tab:confidence_strategy_results")),
                   _cells(MAIN, method=("top-margin", "top-probability", "suffix-anchor", "sacm")),
                   (Claim(SACM_MARGIN, ALONE_MARGIN), Claim(SACM_MARGIN, MARGIN), Claim(ALONE_MARGIN, MARGIN))),
        Experiment("code", "Does it work on programs, with the anchor “return”?", "tab:code_generation_results",
                   _cells("tab:code_generation_results"), claims=(Claim(SACM, ALONE), Claim(SACM, PLAIN)),
                   absent="the bundled model writes no programs"),
        Experiment("positions", "Does the anchor's place matter, and what does it do to the EOT ratio?", "tab:anchor_position_ablation",
                   _cells("tab:anchor_position_ablation"), _three("top-probability"),
                   tuple(claim for text in numbers.POSITIONS for claim in (
                       Claim(SACM | {"text": text}, SACM | {"text": text, "at": -20}, within=10),
                       Claim(SACM | {"text": text}, PLAIN), Claim(ALONE | {"text": text}, PLAIN),
                       Claim(SACM | {"text": text, "at": -60}, SACM | {"text": text, "at": -20}, of="eot_ratio")))),
        Experiment("eot-ratio", "Does the anchor stop the flood of end-of-text tokens? (Fig. 2, left)", "fig:confidence_statistics", (),
                   _three("top-probability", "suffix-anchor", "sacm"),
                   (Claim(PLAIN, ALONE, of="eot_ratio"), Claim(PLAIN, SACM, of="eot_ratio"))),
        Experiment("early-histogram", "Where are the first 15 % decoded, in 32 bins? (Fig. 2, right)", "fig:confidence_statistics", (),
                   _three("top-probability", "suffix-anchor", "sacm"), (Claim(ALONE, SACM, of="near_anchor"),), kind="histogram"),
    )
}  # fmt: skip


# The runs a figure is drawn from: experiments, and which of their cells.
ANCHORED = {"method": ("suffix-anchor", "sacm")}
FIGURES: dict[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "effects": (("eot-ratio", {}),),
    "parallelism": (("parallelism", {}),),
    "sensitivity": (("sensitivity", SACM),),
    "anchors": (("anchors", ANCHORED), ("positions", ANCHORED | {"text": "The answer is"})),
}


def figure_runs(kind: str, task: str, length: int) -> list[Run]:
    """What a figure needs, as the paper varies it for LLaDA on GSM8K, on any task and in proportion to its length."""
    found = []
    for name, wanted in FIGURES[kind]:
        e = EXPERIMENTS[name]
        for source in (*e.answers, *e.shares):
            if (source.model, source.task) == ("LLaDA", "gsm8k") and matches(source, wanted):
                found.append(e.in_small(source, task, length))
    return list(dict.fromkeys(cell.run for cell in found if cell.fits))


def eot_ratio(cell: Cell) -> float | None:
    """The paper's EOT ratio for a cell: its own table's, or that of the same run in the table of anchor positions."""
    source = cell.source
    if source.eot_ratio is not None or source.table != MAIN or (source.model, source.task) != ("LLaDA", "gsm8k"):
        return source.eot_ratio
    if source.method == "top-probability":
        return numbers.TOP_PROBABILITY_EOT
    default = dict(zip(("suffix-anchor", "sacm"), numbers.POSITIONS["The answer is"][-20], strict=True))
    return default[source.method][1] if source.method in default else None
