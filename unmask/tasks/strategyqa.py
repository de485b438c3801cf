"""StrategyQA: questions answered by yes or no."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import clean, tails
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
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


def grade(text: str, row: Row) -> Grade:
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


STRATEGYQA = "705562638fe1d8ca6bb98c66fc8f94d45fda8c83"
TASK = Task(
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
    prompt=prompt,
    grade=grade,
    kappa=12.0,
    gamma=0.70,
    key="qid",
)
