"""HumanEval: complete a Python function from its signature and docstring."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import clean_code
from unmask.tasks.programs import Limits, Tests, execute, longest_program, snippets
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return row["prompt"]


def find_program(text: str, row: Row) -> tuple[str | None, str]:
    """The prompt's imports and helpers with the function the response defines, else the prompt with the response as body."""
    prompt, name = row["prompt"], row["entry_point"]
    for code in snippets(clean_code(text)):
        whole = longest_program(textwrap.dedent(code))
        if whole and defines(whole, name):
            return preamble(row) + "\n" + whole, "function"
        # the longest body that parses, over the indentations it may have come with
        tries = [program for body in bodies(code) if (program := longest_program(prompt.rstrip() + "\n" + body))]
        tries = [program for program in tries if len(program) > len(prompt.rstrip()) + 1 and has_body(program, name)]
        if tries:
            return max(tries, key=lambda program: len("".join(program.split()))), "body"
    return None, "no code"


def has_body(program: str, name: str) -> bool:
    """Is there more under the signature than a docstring?"""
    for node in ast.parse(program).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return any(not isinstance(n, ast.Expr) or not isinstance(n.value, ast.Constant) for n in node.body)
    return False


def defines(code: str, name: str) -> bool:
    return any(
        (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and node.name == name)
        or (isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets))
        for node in ast.parse(code).body
    )  # fmt: skip


def bodies(code: str) -> Iterator[str]:
    """A function's body in the indentations it may have come with: as it is, its first indent lost, none at all."""
    first, newline, rest = code.strip("\n").partition("\n")
    yield code
    yield "    " + first.strip() + newline + rest
    yield textwrap.indent(textwrap.dedent("    " + first.strip() + newline + rest), "    ")
    yield textwrap.indent(textwrap.dedent(code.strip("\n")), "    ")
    yield textwrap.indent(code.strip("\n"), "    ")


def preamble(row: Row) -> str:
    """The imports and helpers that the prompt has before the function; all of it if the function is not there."""
    match = re.search(rf"^def\s+{re.escape(row['entry_point'])}\b", row["prompt"], re.M)
    return row["prompt"][: match.start()] if match else row["prompt"]


def tests_of(row: Row) -> Tests:
    """The row's check function and a call of it, or its plain asserts. Some use the prompt's helpers: those are the given
    ones, even if the response redefines them."""
    call = f"\n\ncheck({row['entry_point']})\n" if re.search(r"^def check\(", row["test"], re.M) else "\n"
    given = preamble(row)
    return Tests(row["test"] + call, given if given != row["prompt"] else "", (row["entry_point"],))


def grade(text: str, row: Row, limits: Limits = Limits()) -> Grade:  # noqa: B008 (frozen)
    program, rule = find_program(text, row)
    return execute(program, rule, tests_of(row), limits)


HUMANEVAL = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
TASK = Task(
    name="humaneval",
    rows=Source(
        "openai/openai_humaneval",
        HUMANEVAL,
        (("openai_humaneval/test-*.parquet",), ("HumanEval.jsonl.gz",), ("HumanEval.jsonl",), ("test-*.parquet",)),
        ("task_id", "prompt", "entry_point", "test"),
        "https://github.com/openai/human-eval/tree/master/data",
    ),
    prompt=prompt,
    grade=grade,
    anchor="return",
    gold="test",
    key="task_id",
    executes=True,
)
