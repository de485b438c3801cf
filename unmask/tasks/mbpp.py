"""MBPP: write a Python function from one sentence and three asserts."""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Sequence
from functools import partial

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import clean_code
from unmask.tasks.programs import Limits, Tests, execute, longest_program, snippets
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    """Each shot is followed by an empty line, as in lm-eval."""
    examples = "".join(f"{question(shot)}\n{shot['code']}\n[DONE]\n\n" for shot in shots)
    return examples + question(row)


def question(row: Row) -> str:
    tests = "\n".join(row["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]"
    )


def turn(row: Row) -> tuple[str, str]:
    """Question and answer, for few-shots as turns."""
    return question(row), f"{row.get('code', '')}\n[DONE]"


def find_program(text: str, row: Row) -> tuple[str | None, str]:
    """The code between [BEGIN] and [DONE], or in a fence, or at the start."""
    text = clean_code(text).replace("\r\n", "\n")
    text = text.split("[BEGIN]", 1)[-1].split("[DONE]", 1)[0]
    for code in snippets(text):
        program = longest_program(textwrap.dedent(code).strip("\n")) or longest_program(code.strip())
        if program and ast.parse(program).body:
            return program, "program"
    return None, "no code"


def tests_of(row: Row) -> Tests:
    """The row's asserts, after its setup code, which uses what the program defines."""
    tests = row["test_list"]
    code = "\n".join([row.get("test_setup_code") or "", *([tests] if isinstance(tests, str) else tests)])
    called = set(re.findall(r"(?<![.\w])(\w+)\(", code))
    written = set(re.findall(r"^def\s+(\w+)", row.get("code") or "", re.M))  # one reference defines a `sum` of its own
    return Tests(code, names=tuple(sorted(name for name in called if name in written or not hasattr(builtins, name))))


def grade(text: str, row: Row, limits: Limits = Limits()) -> Grade:  # noqa: B008 (frozen)
    program, rule = find_program(text, row)
    return execute(program, rule, tests_of(row), limits)


MBPP = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
MBPP_FIELDS = ("text", "code", "test_list")
MBPP_URL = "https://github.com/google-research/google-research/tree/master/mbpp"


def within(first: int, last: int, row: Row) -> bool:
    return first <= row["task_id"] <= last


def split(hub: str, first: int, last: int) -> Source:
    """The original file has all 974 rows; a split is a range of ids."""
    return Source(
        "google-research-datasets/mbpp", MBPP, ((f"full/{hub}-*.parquet",), ("mbpp.jsonl",), (f"{hub}-*.parquet",)),
        MBPP_FIELDS, MBPP_URL, keep=partial(within, first, last),
    )  # fmt: skip


TASK = Task(
    name="mbpp",
    rows=split("test", 11, 510),
    tuning=split("train", 601, 974),
    shots=split("prompt", 2, 4),
    prompt=prompt,
    turn=turn,
    grade=grade,
    anchor="return",
    gold="test_list",
    key="task_id",
    executes=True,
    beta=1.5,
    gamma=0.70,
)
