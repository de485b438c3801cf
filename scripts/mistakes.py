"""Why responses of the bundled model are wrong, from when each word was decoded: python scripts/mistakes.py [METHOD [TASK ...]]

For every wrong answer on 100 validation questions: the first word of the chain that is wrong, and whether what it follows
from (an operation from its ordinal, a state from that and the result before it, a result from its state and operation)
had been decoded when it was. And for all answers, how much of the chain was written from right to left.
"""

from __future__ import annotations

import sys
from collections import Counter
from statistics import mean
from typing import Any

import unmask
from unmask.generation import Decoding, generations
from unmask.tasks import toy


def first_mistake(question: toy.Question, words: list[str], when: list[int]) -> str:
    """A step is seven words: "Second triple , 1 gives 3 ." """
    state = question.start
    results = toy.WORLDS[question.world].follow(state, question.operations)
    for number, (operation, result) in enumerate(zip(question.operations, results, strict=True)):
        if toy.ORDINALS[number] not in words:
            return "a step is missing"
        at = words.index(toy.ORDINALS[number])
        for name, slot, truth, grounds in (
            ("an operation", at + 1, operation, (at,)),
            ("a state", at + 3, state, (at, at - 2) if number else (at,)),
            ("a result", at + 5, result, (at + 1, at + 3)),
        ):
            if words[slot : slot + 1] != [truth]:
                early = any(when[ground] >= when[slot] for ground in grounds)
                turned = when[slot + 1] < when[slot] < when[slot - 1]
                return (
                    name
                    + (
                        ", decoded before what it follows from"
                        if early
                        else ", although what it follows from was there"
                    )
                    + (", from right to left" if turned else "")
                )
        state = result
    further = any(ordinal in words for ordinal in toy.ORDINALS[len(question.operations) :])
    return "a made-up further step" if further else "none: the answer is not where the chain ends"


def from_the_right(words: list[str], when: list[int]) -> list[bool]:
    """Of every word in the chain: was it decoded after the word on its right and before the one on its left?"""
    starts = [words.index(ordinal) for ordinal in toy.ORDINALS if ordinal in words]
    if not starts:
        return []
    slots = range(max(1, min(starts)), min(len(words) - 1, max(starts) + 7))
    return [when[i + 1] < when[i] < when[i - 1] for i in slots]


def main(method: str = "sacm", *tasks: str) -> None:
    model: Any = unmask.load("tiny")
    for task in tasks or toy.WORLDS:
        asked = toy.questions(task, "validation", 100)
        prompts = [question.prompt for question in asked]
        made = list(generations(model, prompts, unmask.METHODS[method], Decoding(length=model.length, batch=50)))
        read = [([model.tokenizer.decode([token]).strip() for token in g.tokens], g.order) for g in made]
        found = Counter(
            first_mistake(question, *words)
            for question, g, words in zip(asked, made, read, strict=True) if not toy.right(question, g.text)
        )  # fmt: skip
        backwards = mean(turned for words in read for turned in from_the_right(*words))
        print(f"{method} on {task}: {backwards:.0%} of the chain's words written from right to left;")
        print(f"{found.total()} of {len(asked)} wrong; the first mistake in the chain:")
        for what, count in found.most_common():
            print(f"  {count:3}  {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
