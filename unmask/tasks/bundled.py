"""The bundled model's own tasks, from the worlds of toy.py: stories, cups and compass, and each of them answered first.

In `stories-first`, `cups-first` and `compass-first` the answer stands at the front and the reasoning behind it, so an
anchor for them is a prefix: SuffixAnchor("The answer is", 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from unmask.tasks import toy
from unmask.tasks.data import Made, Row
from unmask.tasks.extract import clean
from unmask.tasks.task import Grade, Task

TEST, TUNING = 500, 500  # rows


def make(world: str, split: str, count: int) -> list[Row]:
    found = toy.questions(world, split, count)
    return [{"id": f"{world}-{split}-{i}", "question": q.prompt, "answer": q.answer} for i, q in enumerate(found)]


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return row["question"]


def grade(world: str, text: str, row: Row) -> Grade:
    """The last answer that is stated, or the first one where the answer comes first."""
    found = toy.answer_of(clean(text), toy.WORLDS[world].first)
    return Grade(found == row["answer"], found, "anchor" if found else "none")


def agrees(world: str, text: str, row: Row) -> bool | None:
    """Whether the answer follows from the last state the response reached itself, right or wrong."""
    return toy.agrees(toy.Question(world, row["question"], row["answer"], "", ()), text)


TASKS = tuple(
    Task(
        name=world,
        rows=Made(partial(make, world, "test", TEST)),
        tuning=Made(partial(make, world, "validation", TUNING)),
        prompt=prompt,
        grade=partial(grade, world),
        length=96,
        answer_tokens=2,  # a word and the full stop
        key="id",
        agrees=partial(agrees, world),
    )
    for world in toy.WORLDS
)
