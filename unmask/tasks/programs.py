"""What HumanEval and MBPP share: find the program in a response, run it with the tests in a sandbox."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

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
                warnings.simplefilter("ignore")  # what the code warns of is its own affair
                compile("\n".join(lines), "reply", "exec", dont_inherit=True)
            return "\n".join(lines)
        except SyntaxError as error:  # all that follows the line of the error goes, or that line where it is the last
            lines = lines[: min(len(lines) - 1, error.lineno or len(lines))]
        except (ValueError, RecursionError, MemoryError):
            return None
    return None


def execute(program: str | None, tests: str, rule: str, limits: Limits) -> Grade:
    if program is None:
        return Grade(False, None, "none")
    outcome = sandbox.run(sandbox.Program(program, tests), limits.timeout, limits.memory, limits.unisolated)
    return Grade(outcome.passed, program, f"{rule}, {outcome.reason}")


def grade_many(task: Task, pairs: Sequence[tuple[str, Row]], limits: Limits = Limits()) -> list[Grade]:  # noqa: B008
    """Many responses at once, one sandbox a core."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda pair: task.grade(*pair, limits), pairs))  # type: ignore[call-arg]
