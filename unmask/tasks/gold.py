"""Gold answers through every grader, in many renderings: `python -m unmask.tasks.gold DIR` prints how many score.

DIR holds one folder per benchmark, with its original files. Renderings state the answer the ways models do; a grader that
misses one of them would miss it in a real run. An empty answer and a run of EOT must score 0."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from unmask.errors import UserError
from unmask.tasks import Row, Task, gsm8k, humaneval, mbpp, programs, tasks
from unmask.tasks.extract import LETTERS

EOT = "<|endoftext|>"
Rendering = Callable[[Row], str | None]  # None: this rendering does not apply to the row


def around(reasoning: Callable[[Row], str], answer: Callable[[Row], str], *forms: str) -> dict[str, Rendering]:
    def stated(form: str) -> Rendering:
        return lambda row: reasoning(row) + "\n" + form.replace("@", answer(row))

    return {form: stated(form) for form in forms}


def bare_reasoning(row: Row) -> str:
    return re.sub(r"<<.*?>>", "", str(row["answer"]).split("####")[0]).strip()


def unboxed(row: Row) -> str:
    return re.sub(r"\\boxed\s*(?=\{)", "", row.get("solution", ""))


def gsm8k_renderings() -> dict[str, Rendering]:
    forms = ("The answer is @.", "The answer is @", "The answer is $@.", "**The answer is @**", "The answer is $@.00.",
             "The answer is @ dollars for 2 days.", r"The answer is $\boxed{@}$.", "#### @",
             EOT * 9 + "The answer is @" + EOT * 9, "The answer is: @", "Answer: @")  # fmt: skip
    return {
        **around(bare_reasoning, gsm8k.gold, *forms),
        "with commas": lambda row: f"The answer is {int(gsm8k.gold(row)):,}.",
        "solution as is": lambda row: str(row["answer"]),
    }


def math_renderings() -> dict[str, Rendering]:
    def answer(row: Row) -> str:
        return row["answer"]

    forms = ("The answer is @", "The answer is @.", "The answer is $@$.", "The answer is $@$", r"The answer is $\boxed{@}$.",
             EOT * 9 + "The answer is $@$." + EOT * 9, EOT * 9 + "The answer is @" + EOT * 9, "**The answer is $@$.**",
             "The answer is: $@$", r"The answer is \(@\).", "Answer: $@$", "#### @")  # fmt: skip
    return {
        "solution as is": lambda row: row["solution"],
        "solution, EOT tail": lambda row: row["solution"] + EOT * 20,
        "solution, empty anchor": lambda row: row["solution"] + EOT * 3 + "The answer is" + EOT * 9,
        **around(unboxed, answer, *forms),
    }


def strategyqa_renderings() -> dict[str, Rendering]:
    def word(row: Row) -> str:
        return "yes" if row["answer"] else "no"

    forms = ("So the answer is @.", "The answer is @", "The answer is **@**.", "The answer is @, because of the above.",
             EOT * 9 + "The answer is @" + EOT * 9, "Answer: @", "So, @.")  # fmt: skip
    facts = around(lambda row: str(row.get("facts", "")), word, *forms)
    return {
        **facts,
        "@, facts": lambda row: f"{word(row).capitalize()}, {row.get('facts', '')}",
        "true/false": lambda row: f"{row.get('facts', '')} The answer is {'true' if row['answer'] else 'false'}.",
        "not the other": lambda row: f"The answer is not {'no' if row['answer'] else 'yes'}.",
    }


def mmlu_pro_renderings() -> dict[str, Rendering]:
    def letter(row: Row) -> str:
        return row["answer"]

    def text(row: Row) -> str:
        return row["options"][LETTERS.index(row["answer"])]

    forms = ("the answer is (@).", "The answer is (@)", "The answer is @.", "The answer is **@**.", r"The answer is $\boxed{@}$.",
             "Answer: @", "Answer: (@)", EOT * 9 + "The answer is (@)" + EOT * 9, "The best choice is (@).")  # fmt: skip
    return {
        **around(lambda row: "I think it is about a force. A good rule applies.", letter, *forms),
        "(X) text": lambda row: f"The answer is ({letter(row)}) {text(row)}.",
        "X. text": lambda row: f"The answer is `{letter(row)}. {text(row)}`.",
        "lower case": lambda row: f"The answer is ({letter(row).lower()}).",
    }


def mathvista_renderings() -> dict[str, Rendering]:
    def letter(row: Row) -> str | None:
        return LETTERS[row["choices"].index(row["answer"])] if row["question_type"] == "multi_choice" else None

    def choice(form: str) -> Rendering:
        def render(row: Row) -> str | None:
            found = letter(row)
            return found and form.replace("@", found).replace("#", row["answer"])

        return render

    def free(form: str) -> Rendering:
        return lambda row: None if letter(row) else "We read 3 and 7 off.\n" + form.replace("@", row["answer"])

    lettered = ("The answer is @.", "The answer is (@).", "The answer is (@) #.", EOT * 9 + "The answer is @" + EOT * 9)
    stated = ("The answer is @.", "The answer is @", "The answer is **@**.", EOT * 9 + "The answer is @" + EOT * 9)
    return {
        **{f"choice: {form}": choice("Reasoning first.\n" + form) for form in lettered},
        "choice: The answer is #.": choice("Reasoning first.\nThe answer is #."),
        "choice: #": choice("#"),
        **{f"free: {form}": free(form) for form in stated},
    }


def chartqa_renderings() -> dict[str, Rendering]:
    def label(row: Row) -> str:
        return row["label"]

    def numeric(row: Row) -> bool:
        return bool(re.fullmatch(r"-?\d+(?:\.\d+)?", row["label"]))

    forms = ("The answer is @.", "The answer is @", "The answer is **@**.", 'The answer is "@".', "The answer is: @",
             "Answer: @", EOT * 9 + "The answer is @" + EOT * 9)  # fmt: skip
    return {
        **around(lambda row: "The bars are 3 and 7.", label, *forms),
        "a percent sign more": lambda row: f"The answer is {row['label']}%" if numeric(row) else None,
        "4 % off": lambda row: f"The answer is {float(row['label']) * 1.04:.6f}." if numeric(row) else None,
    }


def humaneval_renderings() -> dict[str, Rendering]:
    def body(row: Row) -> str:
        return row["canonical_solution"]

    def whole(row: Row) -> str:
        return row["prompt"] + body(row)

    def dedented(row: Row) -> str:
        return "\n".join(line[4:] if line.startswith("    ") else line for line in body(row).split("\n"))

    return {
        "body": body,
        "first indent lost": lambda row: body(row).lstrip(),
        "dedented": dedented,
        "full function": whole,
        "python fence": lambda row: f"```python\n{whole(row)}\n```",
        "prose and fence": lambda row: f"Here is the code:\n```python\n{whole(row)}\n```\nIt does what is asked.",
        "unlabelled fence": lambda row: f"```\n{whole(row)}\n```",
        "fenced body": lambda row: f"```python\n{body(row)}\n```",
        "chatty tail": lambda row: body(row) + "\n\nThis function does what is asked, I hope.",
        "truncated tail": lambda row: body(row) + "\n\ndef another(x):\n    return [x for",
        "unclosed fence": lambda row: f"```python\n{whole(row)}",
        "EOT before the end": lambda row: body(row) + EOT * 30,
        "EOT within": lambda row: body(row).replace("return", EOT * 5 + "return", 1) + EOT * 5,
    }


def mbpp_renderings() -> dict[str, Rendering]:
    def code(row: Row) -> str:
        return row["code"]

    return {
        "code": code,
        "[BEGIN] [DONE]": lambda row: f"[BEGIN]\n{code(row)}\n[DONE]",
        "[DONE] and on": lambda row: (
            f"\n{code(row)}\n[DONE]\n\nYou are an expert Python programmer, and here is your task"
        ),
        "python fence": lambda row: f"```python\n{code(row)}\n```\n[DONE]",
        "prose and fence": lambda row: f"Here it is:\n```python\n{code(row)}\n```\nDone.",
        "EOT tail": lambda row: code(row) + EOT * 30,
    }


RENDERINGS = {
    "gsm8k": gsm8k_renderings,
    "math500": math_renderings,
    "strategyqa": strategyqa_renderings,
    "mmlu_pro": mmlu_pro_renderings,
    "mathvista": mathvista_renderings,
    "chartqa": chartqa_renderings,
    "humaneval": humaneval_renderings,
    "mbpp": mbpp_renderings,
}
TESTED = {"humaneval": humaneval, "mbpp": mbpp}
SILENT = {"empty": "", "EOT only": EOT * 64}


def always(text: str) -> Rendering:
    return lambda row: text


def score(task: Task, rows: list[Row], render: Rendering) -> tuple[int, int, list[str]]:
    """(right, asked, ids of the misses) of one rendering."""
    pairs = [(index, row, text) for index, row in enumerate(rows) if (text := render(row)) is not None]
    if task.executes:
        grades = programs.grade_many(task, [(text, row) for _, row, text in pairs])
    else:
        grades = [task.grade(text, row) for _, row, text in pairs]
    missed = [task.identify(row, index) for (index, row, _), g in zip(pairs, grades, strict=True) if not g.correct]
    return len(pairs) - len(missed), len(pairs), missed


def table(folder: Path, names: list[str], all_styles: bool) -> Iterator[tuple[str, str, int, int, list[str], bool]]:
    """(task, rendering, right, asked, misses, as it should be), one per line."""
    known = tasks()
    for name in names:
        task = known[name]
        rows = task.rows.load(name, folder / name).rows
        for label, text in SILENT.items():
            right, asked, _ = score(task, rows, always(text))
            yield name, label, right, asked, [], right == 0
        renderings = RENDERINGS[name]()
        if task.executes:  # the tests that cannot be run from outside the program are named
            from_outside = [programs.from_outside(TESTED[name].tests_of(row).code) for row in rows]
            inside = [task.identify(row, i) for i, row in enumerate(rows) if not from_outside[i]]
            yield name, "(tests run from outside the program)", sum(from_outside), len(rows), inside, True
        if task.executes and not all_styles:
            renderings = dict(list(renderings.items())[:1])
        for label, render in renderings.items():
            right, asked, missed = score(task, rows, render)
            yield name, label, right, asked, missed, not missed


def tricky(file: Path) -> tuple[int, int, list[str]]:
    """The extraction cases of `tricky_extraction.json`: verdict and extracted answer both as written there."""
    cases = json.loads(file.read_text())
    known = tasks()
    wrong = []
    for case in cases:
        task = known[case["benchmark"]]
        grade = task.grade(case["output"], {**case["doc"], task.gold: case["gold"]})
        same = task.executes or grade.extracted == case["expected"] or not (grade.extracted or case["expected"])
        if grade.correct != case["correct"] or not same:
            wrong.append(f"{case['id']} ({grade.extracted!r} by {grade.rule})")
    return len(cases) - len(wrong), len(cases), wrong


def main(arguments: list[str]) -> int:
    all_styles = "--all" in arguments
    places = [a for a in arguments if not a.startswith("-")]
    if not places:
        print("usage: python -m unmask.tasks.gold DIR [TASK ...] [--all]   (--all: code in every style too)")
        return 2
    folder = Path(places[0])
    names = places[1:] or [name for name in RENDERINGS if (folder / name).is_dir()]
    good = True
    print(f"{'task':<11} {'rendering':<44} {'right':>6} / {'asked':<6}")
    for name, label, right, asked, missed, fine in table(folder, names, all_styles):
        good &= fine
        shown = label.replace(EOT * 9, "∅…").replace("\n", " ")
        note = "" if fine else "  NOT AS IT SHOULD BE"
        print(f"{name:<11} {shown:<44} {right:>6} / {asked:<6}{note} {' '.join(missed[:6])}", flush=True)
    if (folder / "tricky_extraction.json").exists() and not places[1:]:
        right, asked, wrong = tricky(folder / "tricky_extraction.json")
        good &= not wrong
        print(f"{'tricky':<11} {'tricky_extraction.json':<44} {right:>6} / {asked:<6} {'; '.join(wrong)}")
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"unmask: {error}")
