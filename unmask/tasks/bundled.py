"""The bundled model's own tasks, from the worlds of toy.py: stories, cups and compass, and each of them answered first.

In `stories-first`, `cups-first` and `compass-first` the answer stands at the front and the reasoning behind it, so an
anchor for them is a prefix: SuffixAnchor("The answer is", 0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from unmask.tasks import Grade, Task, toy
from unmask.tasks.data import Made, Row
from unmask.tasks.extract import clean, peel, tails

TEST, TUNING = 500, 256  # rows


def make(world: str, split: str, count: int) -> list[Row]:
    found = toy.questions(world, split, count)
    return [{"id": f"{world}-{split}-{i}", "question": q.prompt, "answer": q.answer} for i, q in enumerate(found)]


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return row["question"]


def grade(first: bool, text: str, row: Row) -> Grade:
    """The word after the last anchor, or after the first one where the answer comes first; nothing else states an answer."""
    found = [(rule, match[0]) for rule, tail in tails(clean(text)) if (match := re.search(r"\w+", peel(tail)))]
    if not found:
        return Grade(False, None, "none")
    rule, said = [each for each in found if each[0] == found[0][0]][-1] if first else found[0]
    return Grade(said.lower() == str(row["answer"]).lower(), said, rule)


def agrees(world: str, text: str, row: Row) -> bool | None:
    """Whether the answer follows from the last state the response reached itself, right or wrong."""
    return toy.agrees(toy.Question(world, row["question"], row["answer"], "", ()), text)


TASKS = tuple(
    Task(
        name=world,
        rows=Made(partial(make, world, "test", TEST)),
        tuning=Made(partial(make, world, "validation", TUNING)),
        prompt=prompt,
        grade=partial(grade, toy.WORLDS[world].first),
        length=96,
        key="id",
        agrees=partial(agrees, world),
    )
    for world in toy.WORLDS
)
