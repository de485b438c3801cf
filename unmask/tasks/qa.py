"""StrategyQA (yes or no) and MMLU-Pro (ten options, five shots)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks import Grade, Task
from unmask.tasks.data import Row, Source
from unmask.tasks.extract import boxes, clean, tails

# ---------------------------------------------------------------- StrategyQA


def strategyqa_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return f"Q: {row['question']}\nA: Let's think step by step."


VERDICT = re.compile(r"\b(?P<not>not\s+|n't\s+)?(?P<word>yes|no|true|false)\b", re.IGNORECASE)
NOT_A_VERDICT = re.compile(r"\s+(?:one|longer|more|less|doubt|such|other|way|clear|definitive|single|matter)\b", re.I)
STILL_A_VERDICT = re.compile(r"\s+(?:because|since|as|it|its|they|he|she|the|this|that|there|and|but|so|given|for|"
                             r"if|in|not|you|we|a|an)\b", re.I)  # fmt: skip
LEADING = re.compile(r"\W*(yes|no|true|false)\s*(?:[,.:;!*\n—-]|$)", re.IGNORECASE)
CONCLUDING = re.compile(
    r"(?:^|[.!?\n]|\b(?:so|thus|hence|therefore|overall|conclusion|conclude|short|is|be))\s*[,:]?\s*"
    r"(yes|no|true|false)\W*$",
    re.IGNORECASE,
)


def grade_strategyqa(text: str, row: Row) -> Grade:
    """The first yes/no after the last anchor, else a concluding or leading one, else nothing, which is wrong:
    a coin flip for the misses would score half of them."""
    found, rule = find_verdict(clean(text))
    gold = row["answer"]
    truth = gold if isinstance(gold, bool) else str(gold).strip().lower() in ("true", "yes", "1")
    return Grade(found is not None and found == truth, found, rule)


def find_verdict(text: str) -> tuple[bool | None, str]:
    for rule, tail in tails(text):
        if (found := first_verdict(tail)) is not None:
            return found, rule
    text = text.strip()
    if match := CONCLUDING.search(text):
        return match[1].lower() in ("yes", "true"), "conclusion"
    if match := LEADING.match(text):
        return match[1].lower() in ("yes", "true"), "leading"
    return None, "none"


def first_verdict(tail: str) -> bool | None:
    for match in VERDICT.finditer(tail):
        after = tail[match.end() :]
        if match["word"].lower() == "no":
            opening = not any(c.isalnum() for c in tail[: match.start()])
            determiner = re.match(r"\s+\w", after) and not (opening or STILL_A_VERDICT.match(after))
            if determiner or NOT_A_VERDICT.match(after):  # "there is no evidence", "no longer"
                continue
        return (match["word"].lower() in ("yes", "true")) != bool(match["not"])
    return None


# ---------------------------------------------------------------- MMLU-Pro

LETTERS = "ABCDEFGHIJKLMNOP"


def mmlu_pro_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    """Each shot is followed by an empty line, as in lm-eval; "N/A" options, which only pad a row, are dropped."""
    examples = "".join(f"{mmlu_pro_question(shot)} {reasoning(shot)}\n\n" for shot in shots)
    return f"{mmlu_pro_header(row)}\n{examples}{mmlu_pro_question(row)} Let's think step by step."


def mmlu_pro_header(row: Row) -> str:
    return (
        f"The following are multiple choice questions (with answers) about {row['category']}.\n"
        'Think step by step and then finish your answer with "the answer is (X)," where X is the correct letter choice.'
    )


def mmlu_pro_turn(row: Row) -> tuple[str, str]:
    """Question and worked answer, for few-shots as turns."""
    return f"{mmlu_pro_question(row)} Let's think step by step.", reasoning(row) if row.get("cot_content") else ""


def mmlu_pro_question(row: Row) -> str:
    options = [option for option in row["options"] if option != "N/A"]
    choices = "\n".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
    return f"Question:\n{row['question']}\nOptions:\n{choices}\nAnswer:"


def reasoning(shot: Row) -> str:
    return re.sub(r"^A:\s*", "", shot["cot_content"].strip())


def same_category(row: Row, shots: Sequence[Row]) -> Sequence[Row]:
    return [shot for shot in shots if shot["category"] == row["category"] and shot is not row][:5]


OPENING = re.compile(
    r"""[\s*_`"'“”‘’$:\[{]*(?:\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{\s*)*(?:(?:the|option|choice|letter|answer)\s+)*
    (?:\(\s*(?P<paren>[A-Pa-p])\s*[).:]|(?P<bare>[A-P])(?![A-Za-z0-9'’_=]))""",
    re.VERBOSE,
)
LISTED = re.compile(r"\(\s*[A-P](?:\s*(?:,|and|or|&|/)\s*(?:and\s+|or\s+)?[A-P])+\s*\)")
PRONOUN = re.compile(r"\s+(?:think|believe|am|would|will|was|do|don|have|had|guess|can|could|say|know|need|cannot)\b")
LONE = re.compile(r"\(\s*([A-P])\s*\)|(?<![\w'’])([B-HJ-P])(?![\w'’])|(?<![\w'’])([AI])(?=\s*(?:[).:,*`}\]]|$))")


def grade_mmlu_pro(text: str, row: Row) -> Grade:
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


def stated_letter(tail: str) -> str | None:
    match = OPENING.match(tail)
    if not match or LISTED.match(tail.lstrip(" \n\t*_`\"'$:")):
        return None
    if match["bare"] == "I" and PRONOUN.match(tail[match.end() :]):
        return None
    return (match["paren"] or match["bare"]).upper()


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
STRATEGYQA = "705562638fe1d8ca6bb98c66fc8f94d45fda8c83"
TASKS = (
    Task(
        name="strategyqa",
        rows=Source(
            "ChilleD/StrategyQA",
            STRATEGYQA,
            (("test.json",), ("test.jsonl",), ("**/test-*.parquet",)),
            ("question", "answer"),
        ),
        tuning=Source(
            "ChilleD/StrategyQA",
            STRATEGYQA,
            (("train.json",), ("train.jsonl",), ("**/train-*.parquet",)),
            ("question", "answer"),
        ),
        prompt=strategyqa_prompt,
        grade=grade_strategyqa,
        kappa=12.0,
        gamma=0.70,
        key="qid",
    ),
    Task(
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
        prompt=mmlu_pro_prompt,
        turn=mmlu_pro_turn,
        header=mmlu_pro_header,
        grade=grade_mmlu_pro,
        modes={"three-stage": three_stage, "lm-eval": lm_eval_first},
        key="question_id",
        group="category",
    ),
)
