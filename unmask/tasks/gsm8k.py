"""GSM8K: grade-school word problems whose answer is a number."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import as_fraction, boxes, clean, numbers, stated_number, tails
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return f"Q: {row['question']}\nA: Let's think step by step."


def gold(row: Row) -> str:
    return str(row["answer"]).split("####")[-1].strip().replace(",", "")


def grade(text: str, row: Row) -> Grade:
    """The number after the last anchor (a box first, the right-hand side of "a = b"), else the last number; exact."""
    found, rule = find_number(clean(text))
    value, right = as_fraction(found or ""), as_fraction(gold(row))
    return Grade(value is not None and value == right, found, rule)


def find_number(text: str) -> tuple[str | None, str]:
    for rule, tail in tails(text):
        boxed = [n for box in boxes(tail)[:1] if (n := stated_number(box))]
        if found := (boxed[0] if boxed else stated_number(tail)):
            return found, rule
    for box in reversed(boxes(text)):
        if found := stated_number(box):
            return found, "box"
    found_all = numbers(text)
    return (found_all[-1][2], "last-number") if found_all else (None, "none")


def flexible_extract(text: str, row: Row) -> Grade:
    """lm-eval's gsm8k `flexible-extract`, as it is: the last run of digits, dots, commas and dollars."""
    matches = re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", text)
    found = next((group for group in matches[-1] if group), "").strip() if matches else None
    return lm_eval_match(found, row, "flexible-extract")


def strict_match(text: str, row: Row) -> Grade:
    """lm-eval's gsm8k_cot_zeroshot `strict-match`, as it is: it eats the last character of "The answer is 18"."""
    match = re.search(r"The answer is (\-?[0-9\.\,]+).", text)
    return lm_eval_match(match[1].strip() if match else None, row, "strict-match")


def lm_eval_match(found: str | None, row: Row, rule: str) -> Grade:
    if found is None:
        return Grade(False, None, "none")
    gold = str(row["answer"])
    for ignored in (",", r"\$", "(?s).*#### ", r"\.$"):
        found, gold = re.sub(ignored, "", found), re.sub(ignored, "", gold)
    return Grade(found.lower() == gold.lower(), found, rule)


GSM8K = "cc7b047b6e5bb11b4f1af84efc572db110a51b3c"
GSM8K_URL = "https://github.com/openai/grade-school-math/tree/master/grade_school_math/data"
TASK = Task(
    name="gsm8k",
    rows=Source(
        "openai/gsm8k",
        GSM8K,
        (("main/test-*.parquet",), ("test.jsonl",), ("test-*.parquet",)),
        ("question", "answer"),
        GSM8K_URL,
    ),
    tuning=Source(
        "openai/gsm8k",
        GSM8K,
        (("main/train-*.parquet",), ("train.jsonl",), ("train-*.parquet",)),
        ("question", "answer"),
        GSM8K_URL,
    ),
    prompt=prompt,
    grade=grade,
    modes={"flexible-extract": flexible_extract, "strict-match": strict_match},
    length=256,
)
