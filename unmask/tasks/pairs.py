"""Prompt/answer pairs of your own: `--data mine.jsonl --task exact`, or number, choice, regex, which say how to grade them.

A row is {"prompt": ..., "answer": ...} ("question" will do for "prompt"), with an "id" if you like. Every row is a test row.

exact   the stated answer, or all of the response, is the same words; case, quotes and a closing period do not matter
number  the stated number, else the last one, is equal: 1,000 is 1000 and 1/2 is 0.5
choice  the stated letter, or the stated text of one of the row's "choices"; "answer" is a letter or one of the choices
regex   "pattern" finds the answer (the last match, its first group if it has one), to be the same words as "answer";
        in a row without "pattern", "answer" is a pattern that the response must match somewhere
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unmask.errors import UserError
from unmask.tasks import gsm8k
from unmask.tasks.data import Loaded, Row, Source
from unmask.tasks.extract import LETTERS, as_fraction, clean, peel, same_words, tails
from unmask.tasks.mmlu_pro import find_letter
from unmask.tasks.task import Grade, Task


@dataclass(frozen=True)
class Pairs(Source):
    """The rows of the one file that --data names."""

    def load(self, task: str, data: str | Path | None = None, skip_bad: bool = False, beside: bool = False) -> Loaded:
        if data is None or Path(data).expanduser().is_dir():
            raise UserError(
                f'{task} grades rows of your own: pass --data FILE.jsonl, rows {{"prompt": ..., "answer": ...}}'
            )
        return super().load(task, data, skip_bad, beside)


def adapt(check: Callable[[Row], object], raw: Row, name: str) -> Row:
    """The row with its question as text under "question" and its answer as text; UserError says what is wrong with it."""
    question, answer = raw.get("prompt", raw.get("question")), raw.get("answer")
    if not isinstance(question, str) or not question.strip():
        raise UserError('"prompt" (or "question") must be text')
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or not str(answer).strip():
        raise UserError('"answer" must be text or a number')
    row = {**raw, "question": question, "answer": str(answer)}
    check(row)
    return row


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    """As it stands; the choices of a row are listed below it."""
    listed = [f"{letter}. {choice}" for letter, choice in zip(LETTERS, row.get("choices") or (), strict=False)]
    return "\n".join([row["question"], *listed])


# ---------------------------------------------------------------- exact


def check_text(row: Row) -> None:
    """Any text will do."""


def exact(text: str, row: Row) -> Grade:
    text = clean(text).strip()
    found: list[tuple[str, str]] = []  # what may be the answer, and the rule that found it
    for rule, tail in tails(text):
        line = tail.strip().splitlines()[0]
        found = [(line, rule), (re.split(r"(?<=[.!?;])\s", line)[0], rule)]  # the line, or its first sentence
        break
    found = found or [(text, "whole"), *[(line, "last-line") for line in text.splitlines()[-1:]]]
    for answer, rule in found:
        if same_words(answer, str(row["answer"])):
            return Grade(True, peel(answer), rule)
    answer, rule = found[-1]
    return Grade(False, peel(answer) or None, rule if peel(answer) else "none")


# ---------------------------------------------------------------- number


def check_number(row: Row) -> None:
    if as_fraction(gsm8k.gold(row)) is None:
        raise UserError(f'"answer" must be a number, not {row["answer"]!r:.40}')


# ---------------------------------------------------------------- choice


def check_choice(row: Row) -> None:
    choices = row.get("choices")
    if choices is not None and not (isinstance(choices, list) and 2 <= len(choices) <= len(LETTERS)):
        raise UserError(f'"choices" must be a list of 2 to {len(LETTERS)}')
    right_letter(row)


def right_letter(row: Row) -> str:
    """The letter of the right choice: "answer" is the choice itself, or its letter."""
    choices, answer = row.get("choices") or [], str(row["answer"]).strip()
    same = [letter for letter, choice in zip(LETTERS, choices, strict=False) if str(choice).strip() == answer]
    if len(same) == 1:
        return same[0]
    if len(answer) == 1 and answer.upper() in LETTERS[: len(choices) or None]:
        return answer.upper()
    raise UserError(f'"answer" must be one of the choices, or its letter, not {answer!r:.40}')


def choice(text: str, row: Row) -> Grade:
    text, choices = clean(text), row.get("choices") or []
    for rule, tail in tails(text):  # "The answer is blue."
        line = tail.strip().splitlines()[0]
        for letter, option in zip(LETTERS, choices, strict=False):
            if same_words(line, str(option)):
                return Grade(letter == right_letter(row), letter, f"{rule}, text")
        break
    found, rule = find_letter(text, len(choices) or len(LETTERS))
    return Grade(found is not None and found == right_letter(row), found, rule)


# ---------------------------------------------------------------- regex


def check_regex(row: Row) -> None:
    pattern: Any = row.get("pattern", row["answer"])
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise UserError(f"{pattern!r:.40} is not a regular expression ({error})") from None


def regex(text: str, row: Row) -> Grade:
    matches = list(re.finditer(row.get("pattern", str(row["answer"])), clean(text)))
    if not matches:
        return Grade(False, None, "none")
    match = matches[-1]
    found = match[1] if match.re.groups else match[0]
    return Grade("pattern" not in row or same_words(found or "", str(row["answer"])), found, "pattern")


def _task(name: str, grade: Callable[[str, Row], Grade], check: Callable[[Row], object]) -> Task:
    rows = Pairs("", "", (("*.jsonl",),), ("question", "answer"), adapt=partial(adapt, check))
    return Task(name=name, rows=rows, prompt=prompt, grade=grade, key="id")


TASKS = (
    _task("exact", exact, check_text),
    _task("number", gsm8k.grade, check_number),
    _task("choice", choice, check_choice),
    _task("regex", regex, check_regex),
)
