"""HumanEval and MBPP: find the program in a response, run it with the tests in a sandbox."""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from unmask.tasks import Grade, Task
from unmask.tasks import sandbox as box
from unmask.tasks.data import Row, Source
from unmask.tasks.extract import clean_code

FENCE = re.compile(r"```[ \t]*(?P<language>[\w+-]*)[ \t]*\r?\n(?P<code>.*?)(?:```|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Limits:
    """How a program is run. `unisolated` runs it even where the kernel cannot lock it in."""

    timeout: float = box.TIMEOUT
    memory: int = box.MEMORY
    unisolated: bool = False


def humaneval_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return row["prompt"]


def mbpp_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    """Each shot is followed by an empty line, as in lm-eval."""
    examples = "".join(f"{mbpp_question(shot)}\n{shot['code']}\n[DONE]\n\n" for shot in shots)
    return examples + mbpp_question(row)


def mbpp_question(row: Row) -> str:
    tests = "\n".join(row["test_list"][:3])
    return (
        f"You are an expert Python programmer, and here is your task: {row['text']} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]"
    )


def mbpp_turn(row: Row) -> tuple[str, str]:
    """Question and answer, for few-shots as turns."""
    return mbpp_question(row), f"{row.get('code', '')}\n[DONE]"


# ---------------------------------------------------------------- response -> program


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


def humaneval_program(text: str, row: Row) -> tuple[str | None, str]:
    """The prompt's imports and helpers with the function the response defines, else the prompt with the response as body."""
    prompt, name = row["prompt"], row["entry_point"]
    preamble = prompt[: match.start()] if (match := re.search(rf"^def\s+{re.escape(name)}\b", prompt, re.M)) else prompt
    for code in snippets(clean_code(text)):
        whole = longest_program(textwrap.dedent(code))
        if whole and defines(whole, name):
            return preamble + "\n" + whole, "function"
        # the longest body that parses, over the indentations it may have come with
        tries = [program for body in bodies(code) if (program := longest_program(prompt.rstrip() + "\n" + body))]
        tries = [program for program in tries if len(program) > len(prompt.rstrip()) + 1 and has_body(program, name)]
        if tries:
            return max(tries, key=lambda program: len("".join(program.split()))), "body"
    return None, "no code"


def has_body(program: str, name: str) -> bool:
    """Something stands under the signature besides its docstring."""
    for node in ast.parse(program).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return any(not isinstance(n, ast.Expr) or not isinstance(n.value, ast.Constant) for n in node.body)
    return False


def mbpp_program(text: str, row: Row) -> tuple[str | None, str]:
    """What stands between [BEGIN] and [DONE], or in a fence, or at the start."""
    text = clean_code(text).replace("\r\n", "\n")
    text = text.split("[BEGIN]", 1)[-1].split("[DONE]", 1)[0]
    for code in snippets(text):
        program = longest_program(textwrap.dedent(code).strip("\n")) or longest_program(code.strip())
        if program and ast.parse(program).body:
            return program, "program"
    return None, "no code"


# ---------------------------------------------------------------- program -> grade


def humaneval_tests(row: Row) -> str:
    """The row's check function and its call; tests that are plain asserts stand as they are."""
    call = f"\n\ncheck({row['entry_point']})\n" if re.search(r"^def check\(", row["test"], re.M) else "\n"
    return row["test"] + call


def mbpp_tests(row: Row) -> str:
    """Setup code after the program: one row's setup uses what its program defines."""
    tests = row["test_list"]
    return "\n".join([row.get("test_setup_code") or "", *([tests] if isinstance(tests, str) else tests)])


def grade_humaneval(text: str, row: Row, limits: Limits = Limits()) -> Grade:  # noqa: B008 (frozen)
    program, rule = humaneval_program(text, row)
    return execute(program, humaneval_tests(row), rule, limits)


def grade_mbpp(text: str, row: Row, limits: Limits = Limits()) -> Grade:  # noqa: B008 (frozen)
    program, rule = mbpp_program(text, row)
    return execute(program, mbpp_tests(row), rule, limits)


def execute(program: str | None, tests: str, rule: str, limits: Limits) -> Grade:
    if program is None:
        return Grade(False, None, "none")
    outcome = box.run(box.Program(program, tests), limits.timeout, limits.memory, limits.unisolated)
    return Grade(outcome.passed, program, f"{rule}, {outcome.reason}")


def grade_many(task: Task, pairs: Sequence[tuple[str, Row]], limits: Limits = Limits()) -> list[Grade]:  # noqa: B008
    """Many responses at once, one sandbox a core."""
    import os

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(lambda pair: task.grade(*pair, limits), pairs))  # type: ignore[call-arg]


HUMANEVAL = "7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544"
MBPP = "4bb6404fdc6cacfda99d4ac4205087b89d32030c"
MBPP_FIELDS = ("text", "code", "test_list")
MBPP_URL = "https://github.com/google-research/google-research/tree/master/mbpp"


def within(first: int, last: int, row: Row) -> bool:
    return first <= row["task_id"] <= last


def mbpp_split(hub: str, first: int, last: int) -> Source:
    """The original file has all 974 rows; a split is a range of ids."""
    return Source(
        "google-research-datasets/mbpp", MBPP, ((f"full/{hub}-*.parquet",), ("mbpp.jsonl",), (f"{hub}-*.parquet",)),
        MBPP_FIELDS, MBPP_URL, keep=partial(within, first, last),
    )  # fmt: skip


TASKS = (
    Task(
        name="humaneval",
        rows=Source(
            "openai/openai_humaneval",
            HUMANEVAL,
            (("openai_humaneval/test-*.parquet",), ("HumanEval.jsonl.gz",), ("HumanEval.jsonl",), ("test-*.parquet",)),
            ("task_id", "prompt", "entry_point", "test"),
            "https://github.com/openai/human-eval/tree/master/data",
        ),
        prompt=humaneval_prompt,
        grade=grade_humaneval,
        anchor="return",
        gold="test",
        key="task_id",
        executes=True,
    ),
    Task(
        name="mbpp",
        rows=mbpp_split("test", 11, 510),
        tuning=mbpp_split("train", 601, 974),
        shots=mbpp_split("prompt", 2, 4),
        prompt=mbpp_prompt,
        turn=mbpp_turn,
        grade=grade_mbpp,
        anchor="return",
        gold="test_list",
        key="task_id",
        executes=True,
        beta=1.5,
        gamma=0.70,
    ),
)
