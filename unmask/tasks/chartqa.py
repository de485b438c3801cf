"""ChartQA: questions about a chart."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks.data import Row, Source
from unmask.tasks.extract import boxes, clean, is_short, numbers, peel, same_words, simple, tails
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return (
        f"<image>\n{row['query']}\nLet's think step by step. Then conclude on the last line with: "
        "The answer is <final answer>."
    )


ABBREVIATED = re.compile(
    r"\b(?:[A-Za-z]|St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Inc|Ltd|Co|Corp|Gov|Sen|Rep|Gen|Mt|Ft|Rev|etc|approx)$"
)


def find_answer(text: str) -> tuple[str | None, str]:
    """The words after the last anchor; without one a short answer as a whole, else the last number."""
    for rule, tail in tails(text):
        if found := stated_words(tail):
            return found, rule
    if boxed := [box for box in boxes(text) if box.strip()]:
        return peel(boxed[-1]), "box"
    if is_short(text) and (short := stated_words(text)):
        return short, "whole"
    last = numbers(text)
    return (last[-1][2], "last-number") if last else (None, "none")


def stated_words(tail: str) -> str | None:
    if boxed := boxes(tail.split("\n\n")[0]):
        return peel(boxed[-1]) or None
    line = tail.strip(" \t\n:*").split("\n")[0]
    for end in re.finditer(r"\.\s+(?=[A-Z])", line):
        if not ABBREVIATED.search(line[: end.start()]):
            line = line[: end.start()]
            break
    found = peel(line)
    return peel(found[1:-1]) if re.fullmatch(r"\$[^$]+\$", found) else found or None


def grade(text: str, row: Row) -> Grade:
    """Relaxed accuracy: 5 % on numbers (an extra % sign, currency or unit does no harm), else the words; lists as sets."""
    found, rule = find_answer(clean(text))
    if found is None:
        return Grade(False, None, "none")
    how = relaxed(found, row["label"])
    return Grade(bool(how), found, f"{rule}, {how or 'different'}")


def relaxed(found: str, gold: str) -> str:
    """Which comparison holds: "exact", "list", "within 5 %"; "" if none does."""
    if same_words(found, gold) or same_words(re.sub(r"^[Tt]he ", "", found), gold):
        return "exact"
    if gold.startswith("[") and gold.endswith("]"):
        return "list" if items(found) == items(gold) else ""
    target = as_number(gold, units=False)
    value = as_number(found, units=True)
    if target is None or value is None:
        return ""
    tries = [value]
    if ("%" in found) != ("%" in gold):
        tries += [value / 100, value * 100]
    near = any(abs(v - target) <= 0.05 * abs(target) if target else v == 0 for v in tries)
    return "within 5 %" if near else ""


def items(text: str) -> set[str]:
    return {simple(part.strip("'\" ")) for part in text.strip("[] ").split(",")}


def as_number(text: str, units: bool) -> float | None:
    text = (
        re.sub(r"^(?:approximately|about|around|roughly|nearly|almost) ", "", text.strip(), flags=re.I)
        if units
        else text
    )
    tail = r"\s*(?:[A-Za-z°€£][\w%°€£ .'/-]*)?" if units else ""
    match = re.fullmatch(
        rf"\W*?(-?)\$?\s*((?:\d{{1,3}}(?:,\d{{3}})+|\d+)?(?:\.\d+)?)\s*%?{tail}", text.strip().strip("$€£~≈ ")
    )
    return float(match[1] + match[2].replace(",", "")) if match and match[2] else None


def lavida(text: str, row: Row) -> Grade:
    """LaViDa's relaxed_correctness on the extracted words: "14%" is 0.14, a unit or a comma makes it words."""
    found, rule = find_answer(clean(text))
    if found is None:
        return Grade(False, None, "none")

    def to_float(s: str) -> float | None:
        try:
            return float(s.rstrip("%")) / 100.0 if s.endswith("%") else float(s)
        except ValueError:
            return None

    value, target = to_float(found), to_float(row["label"])
    if value is not None and target:
        return Grade(abs(value - target) / abs(target) <= 0.05, found, f"{rule}, number")
    return Grade(found.lower() == row["label"].lower(), found, f"{rule}, words")


def adapt(raw: Row, name: str) -> Row:
    """The Hub has lists of one label and 0/1 for human/machine; the original files say it in their names."""
    label = raw["label"][0] if isinstance(raw["label"], list) else raw["label"]
    part = raw.get("human_or_machine")
    human = part == 0 if part is not None else "human" in name
    picture = raw.get("image") or ("png/" + raw["imgname"] if "imgname" in raw else None)
    return {**raw, "label": str(label), "image": picture, "part": "human" if human else "augmented"}


CHARTQA = "b605b6e08b57faf4359aeb2fe6a3ca595f99b6c5"
CHARTQA_URL = "https://github.com/vis-nlp/ChartQA"
TASK = Task(
    name="chartqa",
    rows=Source(
        "HuggingFaceM4/ChartQA",
        CHARTQA,
        (("data/test-*.parquet",), ("test_human.json", "test_augmented.json"), ("test-*.parquet",)),
        ("query", "label"),
        CHARTQA_URL,
        adapt=adapt,
    ),
    tuning=Source(
        "HuggingFaceM4/ChartQA",
        CHARTQA,
        (("data/val-*.parquet",), ("val_human.json", "val_augmented.json"), ("val-*.parquet",)),
        ("query", "label"),
        CHARTQA_URL,
        adapt=adapt,
    ),
    prompt=prompt,
    grade=grade,
    modes={"lavida": lavida},
    gold="label",
    group="part",
    image="image",
    kappa=12.0,
    beta=1.0,
    gamma=1.0,
)
