"""The record of a benchmark: where its rows come from, its prompt, its length, its anchor, its grade."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from unmask.errors import UserError
from unmask.tasks.data import Loaded, Made, Row, Source


class Grade(NamedTuple):
    """What a grader says of one response; `rule` names the line that decided, "none" when nothing was found."""

    correct: bool
    extracted: object
    rule: str


Grader = Callable[[str, Row], Grade]


@dataclass(frozen=True)
class Rows:
    """One split of a benchmark, ready to be asked: its rows, and the few-shot rows that go into their prompts."""

    data: Loaded
    shots: Loaded | None = None

    @property
    def rows(self) -> list[Row]:
        return self.data.rows

    @property
    def few_shot(self) -> Sequence[Row]:
        return self.shots.rows if self.shots else ()

    @property
    def skipped(self) -> tuple[str, ...]:
        """The malformed rows that were passed over, as "file:line: why"."""
        both = (*self.data.skipped, *(self.shots.skipped if self.shots else ()))
        return tuple(dict.fromkeys(both))  # one file may hold both


@dataclass(frozen=True)
class Task:
    """One benchmark. The fields from `chat` on are what the paper leaves open, with our choice as the default."""

    name: str
    rows: Source | Made  # the test rows
    prompt: Callable[[Row, Sequence[Row]], str]  # (row, few-shot rows) -> the whole prompt, one user turn
    grade: Grader
    length: int = 128  # L
    anchor: str = "The answer is"  # what SuffixAnchor writes
    kappa: float = 14.0
    beta: float = 1.3
    gamma: float = 0.85
    tuning: Source | Made | None = None  # rows to sweep (kappa, beta, gamma) on; they never overlap `rows`
    shots: Source | None = None  # few-shot rows
    pick_shots: Callable[[Row, Sequence[Row]], Sequence[Row]] | None = None  # which of them one row sees
    modes: Mapping[str, Grader] = field(default_factory=dict)  # parity graders, by the field's own names
    gold: str = "answer"  # the field of a row that holds the reference
    key: str = ""  # the field that identifies a row; its index where empty
    group: str = ""  # the field to break accuracy down by
    image: str = ""  # the field that holds the row's picture (a path, or bytes)
    packages: tuple[str, ...] = ()  # what grading needs to be installed
    executes: bool = False  # grading runs generated code: needs --allow-code
    chat: bool = True  # wrap the prompt as one user turn of the model's chat template
    layout: str = "flat"  # few-shot rows in the one prompt, or as "turns" of a conversation
    turn: Callable[[Row], tuple[str, str]] | None = None  # a shot as (question, answer), for "turns"
    header: Callable[[Row], str] | None = None  # what stands before the shots, for "turns": the system message
    mode: str = ""  # which of `modes` grades where none is asked for; `grade` if empty
    stop: tuple[str, ...] = ()  # cut the response at the first of these; none: graders find the answer in the whole
    answer_tokens: int | None = None  # of its longest answer, in the model's tokens: what Finish waits for
    # does the answer follow from its own reasoning? None: the response does not reason
    agrees: Callable[[str, Row], bool | None] | None = None

    def identify(self, row: Row, index: int) -> str:
        return str(row[self.key]) if self.key and self.key in row else str(index)

    def render(self, row: Row, shots: Sequence[Row] = ()) -> str:
        """The prompt of one row."""
        return self.prompt(row, self.picked(row, shots))

    def picked(self, row: Row, shots: Sequence[Row]) -> Sequence[Row]:
        return self.pick_shots(row, shots) if self.pick_shots else shots

    def ask(self, row: Row, shots: Sequence[Row] = ()) -> str | list[dict[str, str]]:
        """What the model is given: the prompt, or with `layout="turns"` the shots as a conversation before the question."""
        if self.layout not in ("flat", "turns"):
            raise UserError(f"the few-shot layout is flat or turns, not {self.layout!r}")
        if self.layout == "flat" or self.turn is None:
            return self.render(row, shots)
        messages = [{"role": "system", "content": self.header(row)}] if self.header else []
        for shot in self.picked(row, shots):
            question, answer = self.turn(shot)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        return [*messages, {"role": "user", "content": self.turn(row)[0]}]

    @property
    def grader_version(self) -> str:
        """The versions of the packages that decide what is right, for the recipe of a run; "" where there are none."""
        try:
            return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in self.packages)
        except importlib.metadata.PackageNotFoundError as error:
            raise UserError(f'grading {self.name} needs {error.name}: pip install "unmask[eval]"') from None

    def grader(self, mode: str = "") -> Grader:
        """The default grader, or a parity mode by name."""
        _ = self.grader_version  # a missing package is an error now, not after hours of decoding
        mode = mode or self.mode
        if mode in ("", "default"):
            return self.grade
        if mode not in self.modes:
            known = ", ".join(["default", *self.modes])
            raise UserError(f"{self.name} has no grading mode {mode!r}; it has: {known}")
        return self.modes[mode]

    def load(
        self, split: str = "test", data: str | Path | None = None, limit: int | None = None, skip_bad: bool = False
    ) -> Rows:
        """The first `limit` rows of a split ("test" or "tuning") and the few-shot rows, from `data` or from the Hub."""
        if split not in ("test", "tuning"):
            raise UserError(f"the split is test or tuning, not {split!r}")
        rows = self.tuning_rows(data, skip_bad) if split == "tuning" else self.rows.load(self.name, data, skip_bad)
        shots = self.shots.load(self.name, data, skip_bad, beside=True) if self.shots else None
        return Rows(rows.first(limit), shots)

    def tuning_rows(self, data: str | Path | None = None, skip_bad: bool = False) -> Loaded:
        """Rows for choosing settings. A question that is also among the test rows is left out, whatever the files say."""
        if self.tuning is None:
            raise UserError(
                f"{self.name} has no train or validation split; the paper uses GSM8K's settings: tune on another task"
            )
        loaded = self.tuning.load(self.name, data, skip_bad, beside=True)
        tested = {" ".join(self.render(row).split()) for row in self.rows.load(self.name, data, skip_bad).rows}
        return replace(loaded, rows=[row for row in loaded.rows if " ".join(self.render(row).split()) not in tested])

    @property
    def settings(self) -> dict[str, float]:
        return {"kappa": self.kappa, "beta": self.beta, "gamma": self.gamma}
