"""scripts/backwards.py: the format in which SACM's damping should hurt (docs/support.md)."""

from __future__ import annotations

import runpy
from pathlib import Path
from random import Random

import pytest

from unmask.tasks import toy

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "backwards.py"))


@pytest.mark.parametrize("world", toy.PLAIN)
def test_the_chain_is_told_from_its_end_up_to_the_answer(world):
    rng, tokenizer = Random(1), toy.tokenizer()
    for count in (2, 3, 4, 5) * 10:
        question = toy.ask(toy.WORLDS[world], rng, count)
        assert toy.split_of(question.world, question.start, question.operations) == "train"
        text = SCRIPT["respond"](question, rng)
        told = [text.index(f"{ordinal} ") for ordinal in toy.ORDINALS[:count]]
        assert text.index(f"It ends at {question.path[-1]}") < told[-1] and told == sorted(told, reverse=True)
        assert told[0] < text.index(f"The answer is {question.answer}.") and toy.right(question, text)
        ids = tokenizer(f"{SCRIPT['asked'](question)} {text}")["input_ids"]
        assert tokenizer.unk_token_id not in ids and len(tokenizer(text)["input_ids"]) <= 96


def test_its_rows_are_the_bundled_tasks_asked_otherwise():
    plain, turned = toy.questions("cups", "test", 3), SCRIPT["rows"]("cups", "test")[:3]
    assert [row["question"] for row in turned] == [f"{question.prompt} {SCRIPT['WANTED']}" for question in plain]
