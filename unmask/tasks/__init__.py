"""The benchmarks by name; each is a `Task` in a file of its own."""

from __future__ import annotations

import difflib

from unmask.errors import UserError
from unmask.tasks import bundled, chartqa, gsm8k, humaneval, math500, mathvista, mbpp, mmlu_pro, pairs, strategyqa
from unmask.tasks.data import Loaded, Made, Row, Source
from unmask.tasks.task import Grade, Grader, Rows, Task

__all__ = ["Grade", "Grader", "Loaded", "Made", "Row", "Rows", "Source", "Task", "find", "known", "tasks"]

PAPER = (gsm8k, math500, strategyqa, mmlu_pro, mathvista, chartqa, humaneval, mbpp)  # in the paper's order


def tasks() -> dict[str, Task]:
    """Every task by name: the paper's, then those of the bundled model."""
    return {task.name: task for task in (*(module.TASK for module in PAPER), *bundled.TASKS)}


def known() -> dict[str, Task]:
    """Those, and the graders of prompt/answer pairs, which have no rows of their own."""
    return {**tasks(), **{task.name: task for task in pairs.TASKS}}


def find(name: str) -> Task:
    """The task of this name (`-` and `_` are the same, case does not matter)."""
    every = known()
    wanted = {"".join(c for c in key.lower() if c.isalnum()): key for key in every}
    plain = "".join(c for c in name.lower() if c.isalnum())
    if plain in wanted:
        return every[wanted[plain]]
    near = difflib.get_close_matches(plain, wanted, n=1, cutoff=0.4)
    hint = f"did you mean {wanted[near[0]]!r}?" if near else f"known: {', '.join(every)}"
    raise UserError(f"no task {name!r}; {hint}")
