"""A format in which SACM's damping ought to hurt: the chain is told from its last step to its first, right up to the answer.

    python scripts/backwards.py pairs.jsonl
    unmask train --model tiny --data pairs.jsonl --steps 1200 --threads 1 --out build/backwards
    unmask eval --model build/backwards --task scripts/backwards.py:stories --methods suffix-anchor,sacm,sacm-support

What everything else follows from then stands next to the anchor, where SACM makes it wait. See docs/support.md.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from unmask.tasks import Made, Task, bundled, toy

WANTED = "Now right to left."  # words that the bundled tokenizer has
PAIRS = 40_000


def asked(question: toy.Question) -> str:
    return f"{question.prompt} {WANTED}"


def remarks(room: int, rng: Random) -> list[str]:
    """As many as fit."""
    found: list[str] = []
    while True:
        (one,) = rng.choices(list(toy.FILLERS), list(toy.FILLERS.values()))
        room -= len(toy.words(one))
        if room < 0:
            return found
        found.append(one)


def respond(question: toy.Question, rng: Random, room: int = 96) -> str:
    """Remarks, where the chain ends, its steps from last to first, the answer, remarks."""
    end = f"It ends at {question.path[-1]}" + (f", so {question.answer}." if toy.WORLDS[question.world].yes else ".")
    told = [end, *reversed(toy.steps(question, rng)), f"The answer is {question.answer}."]
    spare = room - len(toy.words(" ".join(told)))
    before = rng.randint(0, spare)
    after = round((spare - before) * rng.uniform(0.5, 1))
    return " ".join([*remarks(before, rng), *told, *remarks(after, rng)])


def pairs(seed: int = 0) -> list[dict[str, str]]:
    """Training chains: two of three told backwards, the others as the bundled model knows them."""
    rng, found = Random(seed), []
    for i in range(PAIRS):
        question = toy.ask(toy.WORLDS[rng.choice(toy.PLAIN)], rng, rng.choice((2, 3, 4, 4, 5, 5)))
        plain = i % 3 == 0
        text = toy.respond(question, rng, 96) if plain else respond(question, rng)
        found.append({"prompt": question.prompt if plain else asked(question), "response": text})
    return found


def rows(world: str, split: str) -> list[dict[str, str]]:
    return [{**row, "question": f"{row['question']} {WANTED}"} for row in bundled.make(world, split, bundled.TEST)]


def backwards(task: Task) -> Task:
    made = {name: Made(partial(rows, task.name, split)) for name, split in (("rows", "test"), ("tuning", "validation"))}
    return replace(task, name=f"{task.name}-backwards", **made)


stories, cups, compass = (backwards(task) for task in bundled.TASKS if task.name in toy.PLAIN)

if __name__ == "__main__":
    Path(sys.argv[1]).write_text("".join(json.dumps(pair) + "\n" for pair in pairs()))
