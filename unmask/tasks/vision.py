"""MathVista (testmini) and ChartQA: questions about a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence

from unmask.tasks import Grade, Task
from unmask.tasks.data import Row, Source
from unmask.tasks.extract import STRONG, boxes, clean, numbers, peel, stated_number, tails
from unmask.tasks.qa import LETTERS, LONE, stated_letter

# ---------------------------------------------------------------- MathVista

HINTS = {  # the paper's {answer_type_hint} is not published: MathVista's own words for each answer type
    "integer": "integer value, e.g., 1, 2, 3,",
    "float 1": "floating-point number with one decimal place, e.g., 1.2, 1.3, 1.4,",
    "float 2": "floating-point number with two decimal places, e.g., 1.23, 1.34, 1.45,",
    "list": "Python list, e.g., [1, 2, 3], [1.2, 1.3, 1.4],",
    "text": "answer",
}


def mathvista_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    if row["question_type"] == "multi_choice":
        choices = "\n".join(
            ["Choices:", *(f"({letter}) {c}" for letter, c in zip(LETTERS, row["choices"], strict=False))]
        )
        hint = "First perform reasoning, then provide the correct option letter, e.g., A, B, C, or D, at the end"
        return f"<image>\n{row['question']}\n\n{choices}\n\nHint: {hint} in the format: The answer is <final answer>."
    kind = row["answer_type"]
    wanted = HINTS.get(
        f"{kind} {int(row['precision'])}" if kind == "float" and row.get("precision") else kind, HINTS["text"]
    )
    hint = f"First perform reasoning, then provide the final {wanted} at the end"
    return f"<image>\n{row['question']}\n\nHint: {hint} in the format: The answer is <final answer>."


def grade_mathvista(text: str, row: Row) -> Grade:
    """Strict: a letter or the words of a choice, a number, a list; nothing found is wrong."""
    found, rule = find_mathvista(clean(text), row)
    if not found:
        return Grade(False, "", "none")
    return Grade(mathvista_equal(found, row), found, rule)


def find_mathvista(text: str, row: Row) -> tuple[str, str]:
    if row["question_type"] == "multi_choice":
        return find_choice(text, row["choices"])
    kind = row["answer_type"]
    for rule, tail in [*tails(text), ("whole", text)]:
        if kind == "list":
            listed = re.search(r"\[[^\[\]]*\]", tail)
            found = listed[0] if listed else ""
        elif kind == "text":
            found = peel(tail.strip().split("\n")[0]) if rule != "whole" or is_short(text) else ""
        elif rule == "whole":
            found, rule = (numbers(tail)[-1][2], "last-number") if numbers(tail) else ("", rule)
        else:
            boxed = [n for box in boxes(tail)[:1] if (n := stated_number(box))]
            found = boxed[0] if boxed else stated_number(tail) or ""
        if found:
            return found, rule
    return "", "none"


def is_short(text: str) -> bool:
    """A few words that are an answer as a whole."""
    return len(text.split()) <= 6 and not STRONG.search(text)


def find_choice(text: str, choices: Sequence[str]) -> tuple[str, str]:
    for rule, tail in tails(text):
        if found := stated_choice(tail, choices):
            return found, rule
    for box in reversed(boxes(text)):
        if found := stated_choice(box, choices):
            return found, "box"
    if found := stated_choice(text, choices, whole=True):
        return found, "whole"
    for sentence in reversed(re.split(r"(?<=[.!?])\s+|\n+", text.strip())):  # the last sentence that names just one
        named = [choice for choice in choices if mentions(sentence, choice)]
        longest = [c for c in named if not any(c != other and mentions(other, c) for other in named)]
        if len(longest) == 1:
            return longest[0], "choice-in-sentence"
        lone = {m[m.lastindex or 0] for m in LONE.finditer(sentence) if m[1] and LETTERS.index(m[1]) < len(choices)}
        if len(lone) == 1:
            return lone.pop(), "letter-in-sentence"
        if named or lone:
            break
    return "", "none"


def stated_choice(tail: str, choices: Sequence[str], whole: bool = False) -> str:
    """A letter, or the words of a choice, that a tail opens with; `whole`: and nothing after it."""
    first = peel(re.split(r"\n", tail.strip())[0])
    exact = [choice for choice in choices if same_words(first, choice)]
    letter = stated_letter(tail)
    if re.fullmatch(r"\(?[A-P]\)?", first) and first not in choices:
        exact = []  # "(B)" is an option's letter even where the choices are themselves "(a)", "(b)", ...
    if exact and not (letter and LETTERS.index(letter) < len(choices) and same_words(first, letter)):
        return exact[0]
    if letter and LETTERS.index(letter) < len(choices) and (not whole or re.fullmatch(r"\W*\w\W*", tail)):
        return letter
    if exact:
        return exact[0]
    opening = [
        choice
        for choice in choices
        if not whole and mentions(" ".join(first.split()[: len(choice.split()) + 2]), choice)
    ]
    return max(opening, key=len) if opening else ""


def same_words(a: str, b: str) -> bool:
    return simple(a) == simple(b)


def simple(text: str) -> str:
    return re.sub(r"\s+", " ", peel(text)).casefold().rstrip(".")


def mentions(text: str, choice: str) -> bool:
    return (
        bool(simple(choice))
        and re.search(rf"(?<![\w.:]){re.escape(simple(choice))}(?!\w|[.:]\d)", text.casefold()) is not None
    )


def mathvista_equal(found: str, row: Row) -> bool:
    """MathVista's own comparison of a normalised answer: int(float(x)), round(x, precision), the choice's text."""
    gold = str(row["answer"])
    if row["question_type"] == "multi_choice":
        choices = row["choices"]
        picked = choices[LETTERS.index(found)] if len(found) == 1 and found in LETTERS[: len(choices)] else found
        return picked == gold
    try:
        if row["answer_type"] == "integer":
            return str(int(float(as_decimal(found)))) == gold
        if row["answer_type"] == "float":
            return str(round(float(as_decimal(found)), int(row["precision"]))) == gold
    except (ValueError, OverflowError, TypeError):
        return False
    if row["answer_type"] == "list":
        return re.sub(r"\s", "", found) == re.sub(r"\s", "", gold)
    return same_words(found, gold)


def as_decimal(number: str) -> str:
    over, _, under = number.partition("/")
    return str(float(over) / float(under)) if under and float(under) else over


def official(text: str, row: Row) -> Grade:
    """MathVista's score: what is not a letter becomes the nearest choice by edit distance, so an empty answer scores too."""
    text = clean(text).strip()
    found, rule = find_mathvista(text, row)
    if row["question_type"] != "multi_choice":
        return Grade(bool(found) and mathvista_equal(found, row), found, rule)
    found, choices = found or text, row["choices"]
    letter = re.findall(r"\(([a-zA-Z])\)", found)
    found = letter[0].upper() if letter else found
    if len(found) == 1 and found in LETTERS[: len(choices)]:
        return Grade(choices[LETTERS.index(found)] == row["answer"], found, rule)
    nearest = min(choices, key=lambda choice: edit_distance(found, choice))
    return Grade(nearest == row["answer"], nearest, rule if rule != "none" and nearest == found else "nearest-choice")


def edit_distance(a: str, b: str) -> int:
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def mathvista_row(raw: Row, name: str) -> Row:
    picture = raw.get("decoded_image") or raw.get("image")
    return {**{k: v for k, v in raw.items() if k != "decoded_image"}, "image": picture, "answer": str(raw["answer"])}


# ---------------------------------------------------------------- ChartQA


def chartqa_prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return (
        f"<image>\n{row['query']}\nLet's think step by step. Then conclude on the last line with: "
        "The answer is <final answer>."
    )


ABBREVIATED = re.compile(
    r"\b(?:[A-Za-z]|St|Dr|Mr|Mrs|Ms|Jr|Sr|vs|No|Inc|Ltd|Co|Corp|Gov|Sen|Rep|Gen|Mt|Ft|Rev|etc|approx)$"
)


def find_chartqa(text: str) -> tuple[str | None, str]:
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


def grade_chartqa(text: str, row: Row) -> Grade:
    """Relaxed accuracy: 5 % on numbers (a % sign, a currency, a unit more do no harm), else the words; lists as sets."""
    found, rule = find_chartqa(clean(text))
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
    text = re.sub(r"^(?:approximately|about|around|roughly|nearly|almost) ", "", text.strip(), flags=re.I) if units else text
    tail = r"\s*(?:[A-Za-z°€£][\w%°€£ .'/-]*)?" if units else ""
    match = re.fullmatch(
        rf"\W*?(-?)\$?\s*((?:\d{{1,3}}(?:,\d{{3}})+|\d+)?(?:\.\d+)?)\s*%?{tail}", text.strip().strip("$€£~≈ ")
    )
    return float(match[1] + match[2].replace(",", "")) if match and match[2] else None


def lavida(text: str, row: Row) -> Grade:
    """LaViDa's relaxed_correctness on the extracted words: "14%" is 0.14, a unit or a comma makes it words."""
    found, rule = find_chartqa(clean(text))
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


def chartqa_row(raw: Row, name: str) -> Row:
    """The Hub has lists of one label and 0/1 for human/machine; the original files say it in their names."""
    label = raw["label"][0] if isinstance(raw["label"], list) else raw["label"]
    part = raw.get("human_or_machine")
    human = part == 0 if part is not None else "human" in name
    picture = raw.get("image") or ("png/" + raw["imgname"] if "imgname" in raw else None)
    return {**raw, "label": str(label), "image": picture, "part": "human" if human else "augmented"}


MATHVISTA = "2b6ad69445fbb5695c9b165475e8decdbeb97747"
CHARTQA = "b605b6e08b57faf4359aeb2fe6a3ca595f99b6c5"
CHARTQA_URL = "https://github.com/vis-nlp/ChartQA"
TASKS = (
    Task(
        name="mathvista",
        rows=Source(
            "AI4Math/MathVista",
            MATHVISTA,
            (("data/testmini-*.parquet",), ("testmini.json",), ("testmini-*.parquet",)),
            ("question", "question_type", "answer_type", "answer"),
            "https://github.com/lupantech/MathVista",
            adapt=mathvista_row,
        ),
        prompt=mathvista_prompt,
        grade=grade_mathvista,
        modes={"strict": grade_mathvista, "official": official},
        mode="strict",
        key="pid",
        group="question_type",
        image="image",
    ),
    Task(
        name="chartqa",
        rows=Source(
            "HuggingFaceM4/ChartQA",
            CHARTQA,
            (("data/test-*.parquet",), ("test_human.json", "test_augmented.json"), ("test-*.parquet",)),
            ("query", "label"),
            CHARTQA_URL,
            adapt=chartqa_row,
        ),
        tuning=Source(
            "HuggingFaceM4/ChartQA",
            CHARTQA,
            (("data/val-*.parquet",), ("val_human.json", "val_augmented.json"), ("val-*.parquet",)),
            ("query", "label"),
            CHARTQA_URL,
            adapt=chartqa_row,
        ),
        prompt=chartqa_prompt,
        grade=grade_chartqa,
        modes={"lavida": lavida},
        gold="label",
        group="part",
        image="image",
        kappa=12.0,
        beta=1.0,
        gamma=1.0,
    ),
)
