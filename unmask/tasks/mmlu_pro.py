"""MMLU-Pro: multiple choice with up to ten options, after five worked examples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import LETTERS, LISTED, LONE, boxes, clean, stated_letter, tails
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    """Each shot is followed by an empty line, as in lm-eval; "N/A" options, which only pad a row, are dropped."""
    examples = "".join(f"{question(shot)} {reasoning(shot)}\n\n" for shot in shots)
    return f"{header(row)}\n{examples}{question(row)} Let's think step by step."


def header(row: Row) -> str:
    return (
        f"The following are multiple choice questions (with answers) about {row['category']}.\n"
        'Think step by step and then finish your answer with "the answer is (X)," where X is the correct letter choice.'
    )


def turn(row: Row) -> tuple[str, str]:
    """Question and worked answer, for few-shots as turns."""
    return f"{question(row)} Let's think step by step.", reasoning(row) if row.get("cot_content") else ""


def question(row: Row) -> str:
    options = [option for option in row["options"] if option != "N/A"]
    choices = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"Question:\n{row['question']}\nOptions:\n{choices}\nAnswer:"


def reasoning(shot: Row) -> str:
    return re.sub(r"^A:\s*", "", shot["cot_content"].strip())


def same_category(row: Row, shots: Sequence[Row]) -> Sequence[Row]:
    return [shot for shot in shots if shot["category"] == row["category"] and shot is not row][:5]


def grade(text: str, row: Row) -> Grade:
    """The letter after the last anchor, among the row's own options; else the last letter standing alone; no guess."""
    count = len(row["options"]) if "options" in row else int(row.get("n_options", 10))
    found, rule = find_letter(clean(text), count)
    return Grade(found is not None and found == str(row["answer"]).strip().upper(), found, rule)


def find_letter(text: str, count: int) -> tuple[str | None, str]:
    for rule, tail in tails(text):
        if (found := stated_letter(tail)) and LETTERS.index(found) < count:
            return found, rule
    for box in reversed(boxes(text)):
        if (found := stated_letter(box)) and LETTERS.index(found) < count:
            return found, "box"
    text = LISTED.sub(" ", text)  # "(A, B)" names no one option
    lone = [letter for match in LONE.finditer(text) if LETTERS.index(letter := match[match.lastindex or 0]) < count]
    return (lone[-1], "last-letter") if lone else (None, "none")


def three_stage(text: str, row: Row) -> Grade:
    """MMLU-Pro's own extraction, first match, without its random guess at the end."""
    for rule, match in (
        ("answer-is", re.search(r"answer is \(?([A-J])\)?", text)),
        ("answer-colon", last_match(r"[aA]nswer:\s*([A-J])", text)),  # theirs is `.*[aA]nswer:`, quadratic in the line
        ("last-letter", last_match(r"\b[A-J]\b", text)),
    ):
        if match:
            found = match[match.lastindex or 0]
            return Grade(found == row["answer"], found, rule)
    return Grade(False, None, "none")


def last_match(pattern: str, text: str) -> re.Match[str] | None:
    found = list(re.finditer(pattern, text))
    if pattern.startswith("[aA]"):  # `.` does not cross lines: the first line that has one, its last occurrence
        found = [match for match in found if "\n" not in text[found[0].start() : match.start()]]
    return found[-1] if found else None


def lm_eval_first(text: str, row: Row) -> Grade:
    """lm-eval's mmlu_pro: the first `answer is (X)` and nothing else."""
    match = re.search(r"answer is \(?([ABCDEFGHIJ])\)?", text)
    return Grade(match[1] == row["answer"], match[1], "answer-is") if match else Grade(False, None, "none")


MMLU_PRO = "527feea0afed1de15a8c115abf7be4c912123315"
TASK = Task(
    name="mmlu_pro",
    rows=Source(
        "TIGER-Lab/MMLU-Pro",
        MMLU_PRO,
        (("data/test-*.parquet",), ("test.jsonl",), ("test-*.parquet",)),
        ("question", "options", "answer", "category"),
    ),
    shots=Source(
        "TIGER-Lab/MMLU-Pro",
        MMLU_PRO,
        (("data/validation-*.parquet",), ("validation.jsonl",), ("validation-*.parquet",)),
        ("question", "options", "answer", "category", "cot_content"),
    ),
    pick_shots=same_category,
    prompt=prompt,
    turn=turn,
    header=header,
    grade=grade,
    modes={"three-stage": three_stage, "lm-eval": lm_eval_first},
    key="question_id",
    group="category",
)
