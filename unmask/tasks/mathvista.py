"""MathVista (testmini): questions about a picture, by choice or in free form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import (
    LETTERS,
    LONE,
    boxes,
    clean,
    is_short,
    number_word,
    numbers,
    peel,
    same_words,
    simple,
    stated_letter,
    stated_number,
    tails,
)
from unmask.tasks.task import Grade, Task

HINTS = {  # the paper's {answer_type_hint} is not published: MathVista's own words for each answer type
    "integer": "integer value, e.g., 1, 2, 3,",
    "float 1": "floating-point number with one decimal place, e.g., 1.2, 1.3, 1.4,",
    "float 2": "floating-point number with two decimal places, e.g., 1.23, 1.34, 1.45,",
    "list": "Python list, e.g., [1, 2, 3], [1.2, 1.3, 1.4],",
    "text": "answer",
}


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    if row["question_type"] == "multi_choice":
        choices = "\n".join(
            ["Choices:", *(f"({letter}) {c}" for letter, c in zip(LETTERS, row["choices"], strict=False))]
        )
        hint = "First perform reasoning, then provide the correct option letter, e.g., A, B, C, or D, at the end"
        return f"<image>\n{row['question']}\n\n{choices}\n\nHint: {hint} in the format: The answer is <final answer>."
    kind = row["answer_type"]
    wanted = HINTS.get(
        f"{kind} {int(row['precision'])}" if kind == "float" and row.get("precision") else kind, HINTS["text"]
    )
    hint = f"First perform reasoning, then provide the final {wanted} at the end"
    return f"<image>\n{row['question']}\n\nHint: {hint} in the format: The answer is <final answer>."


def grade(text: str, row: Row) -> Grade:
    """Strict: a letter or the words of a choice, a number ("two" is 2 for an integer), a list; nothing found is wrong."""
    found, rule = find_answer(clean(text), row, words=True)
    if not found:
        return Grade(False, "", "none")
    return Grade(equal(found, row), found, rule)


def find_answer(text: str, row: Row, words: bool = False) -> tuple[str, str]:
    """The answer and the rule that found it; `words`: "two" is an integer too."""
    if row["question_type"] == "multi_choice":
        return find_choice(text, row["choices"])
    kind = row["answer_type"]
    for rule, tail in [*tails(text), ("whole", text)]:
        if kind == "list":
            listed = re.search(r"\[[^\[\]]*\]", tail)
            found = listed[0] if listed else ""
        elif kind == "text":
            found = peel(tail.strip().split("\n")[0]) if rule != "whole" or is_short(text) else ""
        elif rule == "whole" and numbers(tail):
            found, rule = numbers(tail)[-1][2], "last-number"
        else:
            spelt = words and kind == "integer" and (rule != "whole" or len(tail.split()) <= 2)
            parts = [*boxes(tail)[:1], tail]
            found = next((n for part in parts if (n := (spelt and number_word(part)) or stated_number(part))), "")
        if found:
            return found, rule
    return "", "none"


def find_choice(text: str, choices: Sequence[str]) -> tuple[str, str]:
    for rule, tail in tails(text):
        if found := stated_choice(tail, choices):
            return found, rule
    for box in reversed(boxes(text)):
        if found := stated_choice(box, choices):
            return found, "box"
    if found := stated_choice(text, choices, whole=True):
        return found, "whole"
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n+", text.strip())):  # the last sentence that names just one
        named = [choice for choice in choices if mentions(sentence, choice)]
        longest = [c for c in named if not any(c != other and mentions(other, c) for other in named)]
        if len(longest) == 1:
            return longest[0], "choice-in-sentence"
        lone = {m[m.lastindex or 0] for m in LONE.finditer(sentence) if m[1] and LETTERS.index(m[1]) < len(choices)}
        if len(lone) == 1:
            return lone.pop(), "letter-in-sentence"
        if named or lone:
            break
    return "", "none"


def stated_choice(tail: str, choices: Sequence[str], whole: bool = False) -> str:
    """A letter, or the words of a choice, that a tail opens with; `whole`: and nothing after it."""
    first = peel(re.split(r"\n", tail.strip())[0])
    exact = [choice for choice in choices if same_words(first, choice)]
    letter = stated_letter(tail)
    if re.fullmatch(r"\(?[A-P]\)?", first) and first not in choices:
        exact = []  # "(B)" is an option's letter even where the choices are themselves "(a)", "(b)", ...
    if exact and not (letter and LETTERS.index(letter) < len(choices) and same_words(first, letter)):
        return exact[0]
    if letter and LETTERS.index(letter) < len(choices) and (not whole or re.fullmatch(r"\W*\w\W*", tail)):
        return letter
    if exact:
        return exact[0]
    opening = [
        choice
        for choice in choices
        if not whole and mentions(" ".join(first.split()[: len(choice.split()) + 2]), choice)
    ]
    return max(opening, key=len) if opening else ""


def mentions(text: str, choice: str) -> bool:
    return (
        bool(simple(choice))
        and re.search(rf"(?<![\w.:]){re.escape(simple(choice))}(?!\w|[.:]\d)", text.casefold()) is not None
    )


def equal(found: str, row: Row) -> bool:
    """MathVista's own comparison of a normalised answer: int(float(x)), round(x, precision), the choice's text."""
    gold = str(row["answer"])
    if row["question_type"] == "multi_choice":
        choices = row["choices"]
        picked = choices[LETTERS.index(found)] if len(found) == 1 and found in LETTERS[: len(choices)] else found
        return picked == gold
    try:
        if row["answer_type"] == "integer":
            return str(int(float(as_decimal(found)))) == gold
        if row["answer_type"] == "float":
            return str(round(float(as_decimal(found)), int(row["precision"]))) == gold
    except (ValueError, OverflowError, TypeError):
        return False
    if row["answer_type"] == "list":
        return re.sub(r"\s", "", found) == re.sub(r"\s", "", gold)
    return same_words(found, gold)


def as_decimal(number: str) -> str:
    over, _, under = number.partition("/")
    return str(float(over) / float(under)) if under and float(under) else over


def official(text: str, row: Row) -> Grade:
    """MathVista's score: what is not a letter becomes the nearest choice by edit distance, so an empty answer scores too."""
    text = clean(text).strip()
    found, rule = find_answer(text, row)
    if row["question_type"] != "multi_choice":
        return Grade(bool(found) and equal(found, row), found, rule)
    found, choices = found or text, row["choices"]
    letter = re.findall(r"\(([a-zA-Z])\)", found)
    found = letter[0].upper() if letter else found
    if len(found) == 1 and found in LETTERS[: len(choices)]:
        return Grade(choices[LETTERS.index(found)] == row["answer"], found, rule)
    nearest = min(choices, key=lambda choice: edit_distance(found, choice))
    return Grade(nearest == row["answer"], nearest, rule if rule != "none" and nearest == found else "nearest-choice")


def edit_distance(a: str, b: str) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def adapt(raw: Row, name: str) -> Row:
    picture = raw.get("decoded_image") or raw.get("image")
    return {**{k: v for k, v in raw.items() if k != "decoded_image"}, "image": picture, "answer": str(raw["answer"])}


MATHVISTA = "2b6ad69445fbb5695c9b165475e8decdbeb97747"
TASK = Task(
    name="mathvista",
    rows=Source(
        "AI4Math/MathVista",
        MATHVISTA,
        (("data/testmini-*.parquet",), ("testmini.json",), ("testmini-*.parquet",)),
        ("question", "question_type", "answer_type", "answer"),
        "https://github.com/lupantech/MathVista",
        adapt=adapt,
    ),
    prompt=prompt,
    grade=grade,
    modes={"strict": grade, "official": official},
    mode="strict",
    key="pid",
    group="question_type",
    image="image",
)
