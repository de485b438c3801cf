"""What HumanEval and MBPP share: find the program in a response, run it with the tests in a sandbox."""

from __future__ import annotations

import ast
import builtins
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from unmask.tasks import sandbox
from unmask.tasks.data import Row
from unmask.tasks.task import Grade, Task

FENCE = re.compile(r"```[ \t]*(?P<language>[\w+-]*)[ \t]*\r?\n(?P<code>.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Limits:
    """How a program is run. `unisolated` runs it even where the kernel cannot lock it in."""

    timeout: float = sandbox.TIMEOUT
    memory: int = sandbox.MEMORY
    unisolated: bool = False


def snippets(text: str) -> Iterator[str]:
    """Where a program may stand in a response: its python or unlabelled fences, then the whole text."""
    for match in FENCE.finditer(text):
        if match["language"].lower() in ("", "python", "py", "python3"):
            yield match["code"]
    yield re.sub(r"```.*", "", text, flags=re.DOTALL) if "```" in text else text


def longest_program(code: str) -> str | None:
    """The code without the lines at its end that keep it from compiling: chat, or a second function cut off.
    Compiling, not parsing alone, so that a `return` outside a function is seen."""
    lines = code.split("\n")
    while any(line.strip() for line in lines):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about the generated code are of no interest
                compile("\n".join(lines), "reply", "exec", dont_inherit=True)
            return "\n".join(lines)
        except SyntaxError as error:  # drop everything after the line of the error, or that line if it is the last
            lines = lines[: min(len(lines) - 1, error.lineno or len(lines))]
        except (ValueError, RecursionError, MemoryError):
            return None
    return None


class Tests(NamedTuple):
    code: str
    setup: str = ""  # helpers the tests use that are given with the task, not written by the model
    names: tuple[str, ...] = ()  # what is tested, even where Python has a function of that name


def execute(program: str | None, rule: str, tests: Tests, limits: Limits) -> Grade:
    if program is None:
        return Grade(False, None, "none")
    inside = not from_outside(tests.code)
    outcome = sandbox.run(sandbox.Program(program, *tests, inside), limits.timeout, limits.memory, limits.unisolated)
    return Grade(outcome.passed, program, f"{rule}, {outcome.reason}" + (" in one process" if inside else ""))


def from_outside(tests: str) -> bool:
    """Can these tests run outside the program's process? Not if they define a class or hand the program a function, since
    only plain values cross. The tests alone decide: no program can choose to be tested in its own process."""
    try:
        nodes = list(ast.walk(ast.parse(tests)))
    except SyntaxError:
        return True  # the judge will say so
    variables = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)} | set(dir(builtins)) - variables
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    called = {id(call.func) for call in calls}
    for call in calls:
        if isinstance(call.func, ast.Name) and call.func.id not in functions:  # a call of the program
            for node in (inner for argument in (*call.args, *call.keywords) for inner in ast.walk(argument)):
                named = isinstance(node, ast.Name) and node.id in functions and id(node) not in called
                if isinstance(node, ast.Lambda) or named:
                    return False
    return not any(isinstance(node, ast.ClassDef) for node in nodes)


def grade_many(task: Task, pairs: Sequence[tuple[str, Row]], limits: Limits = Limits()) -> list[Grade]:  # noqa: B008
    """Grade many responses, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda pair: task.grade(*pair, limits), pairs))  # type: ignore[call-arg]
