"""MATH-500: competition problems whose answer is a formula."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from unmask.errors import UserError
from unmask.tasks.data import Row, Source
from unmask.tasks.extract import as_fraction, boxes, clean, numbers, peel, tails
from unmask.tasks.task import Grade, Task


def prompt(row: Row, shots: Sequence[Row] = ()) -> str:
    return (
        f"Q: {row['problem']}\nA: Let's think step by step. End your solution with a final line in the exact format "
        '"The answer is <final answer>" and do not write anything after that final answer line.'
    )


def grade(text: str, row: Row) -> Grade:
    found, rule = find_formula(clean(text))
    if found is None:
        return Grade(False, None, "none")
    how = equal(found, str(row["answer"]))
    return Grade(bool(how), found, f"{rule}, {how or 'different'}")


NO_ANSWER = re.compile(r"\W*(?:correct|incorrect|right|wrong|not|as follows|given by|found|obtained|therefore)\b", re.I)
MATH = re.compile(r"(?<!\\)\$\$?((?:\\.|[^$\\])+?)(?<!\\)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.S)


def find_formula(text: str) -> tuple[str | None, str]:
    """Strong anchor -> last box -> weak anchor -> last $...$ -> last number."""
    found = list(tails(text))
    for rule, tail in found:
        if rule == "anchor" and (formula := stated_formula(tail)):
            return formula, rule
    if boxed := [box.strip() for box in boxes(text) if box.strip()]:
        return boxed[-1], "box"
    for rule, tail in found:
        if rule == "weak-anchor" and (formula := stated_formula(tail)):
            return formula, rule
    if spans := [span for match in MATH.finditer(text) if (span := inside(match))]:
        return spans[-1], "last-math"
    last = numbers(text)
    return (last[-1][2], "last-number") if last else (None, "none")


def inside(match: re.Match[str]) -> str:
    return next(group for group in match.groups() if group is not None).strip().rstrip(".,")


def stated_formula(tail: str) -> str | None:
    """What a sentence "... answer is X" states: a box, the $...$ it opens with, or its words up to the sentence's end."""
    tail = tail.lstrip(" \t\n:*_`\"'")
    paragraph = tail.split("\n\n")[0]
    if NO_ANSWER.match(tail):
        return None
    if boxed := boxes(paragraph):
        return boxed[-1].strip() or None
    if match := MATH.match(paragraph):
        spans = [inside(match)]
        while more := re.match(r"\s*(?:,|;|and|or|,\s*and|,\s*or)\s*(?=\$|\\\(|\\\[)", paragraph[match.end() :]):
            following = MATH.match(paragraph, match.end() + more.end())
            if not following:
                break
            spans.append(inside(following))
            match = following
        return ", ".join(span for span in spans if span) or None
    line = paragraph.split("\n")[0]
    sentence = re.split(
        r"(?<!\bi)(?<!\be)\.\s+(?=[A-Z\\$])|\.\s*$|,?\s+(?:because|since|which|so that|when|where)\b", line
    )[0]
    return peel(sentence).strip().rstrip("$").lstrip("$").strip() or None


def equal(found: str, gold: str) -> str:
    """Which rule says that two formulas are the same: "string", "number", "list", "math-verify"; "" if none does."""
    a, b = plain(found), plain(gold)
    if not a or not b:
        return ""
    if a == b or a.replace(" ", "") == b.replace(" ", ""):
        return "string"
    if not balanced(found):
        return ""
    if without_units(a) == b or a == without_units(b):
        return "string"
    x, y = exact(without_units(a)), exact(without_units(b))
    if x is not None and y is not None:
        return "number" if x == y else ""
    if same_list(a, b):
        return "list"
    return "math-verify" if verified(a, b) else ""


DROPPED = re.compile(
    r"\\left(?![a-z])|\\right(?![a-z])|(?<!\\)\\[!,;: ]|~|\\quad|\\qquad|\\displaystyle|\\\$|\$|\\%|%|\^\s*\\circ|"
    r"\^\s*\{\s*\\circ\s*\}|\\degree|°|\\limits|\\(?:big|Big|bigg|Bigg)[lr]?(?![a-z])"
)
UNITS = re.compile(r"(?<=[\w})])\s*(?:text\{[^{}]*\}|(?<=[\d}])\s*[a-zA-Z]{2,}(?:\s+[a-zA-Z]+)*)(?:\^\{?\d\}?)?$")


def plain(formula: str) -> str:
    """One spelling for what LaTeX can spell in many ways."""
    s = formula.strip().replace("−", "-").replace("\n", " ")
    s = DROPPED.sub("", s)
    s = re.sub(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|operatorname|textit)\s*\{\s*([^{}]*?)\s*\}", r"text{\1}", s)
    s = re.sub(r"^text\{([^{}]*)\}$", r"\1", s)  # the whole answer is words
    s = re.sub(r"\\[dtc]frac", r"\\frac", s)
    s = re.sub(r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}", s)
    s = re.sub(r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{", s)
    s = re.sub(r"\\frac\s*\{([^{}]*)\}\s*(\w)", r"\\frac{\1}{\2}", s)
    s = re.sub(r"\\sqrt\s*(\w)", r"\\sqrt{\1}", s)
    s = re.sub(r"(?<![\d,])(\d{1,3}(?:,\d{3})+)(?![\d,])", lambda m: m[1].replace(",", ""), s)
    s = re.sub(r"\s+(?:and|or)\s+", ",", s)
    s = re.sub(r"^[a-zA-Z](?:_\d)?(?:\([a-z]\))?\s*(?:=|\\in(?![a-z]))\s*", "", s)  # x = 5 states 5
    s = re.sub(r"(?<![\d.])\.(?=\d)", "0.", s)
    s = re.sub(r"\\(le|ge)(?![a-z])", r"\\\1q", s)
    s = re.sub(r"[\s.]+$", "", s).strip()
    s = re.sub(r"\s*([-+*/=,()\[\]{}<>^_|])\s*", r"\1", s)
    s = re.sub(r"\^\{(\w)\}", r"^\1", s)
    s = re.sub(r"_\{(\w)\}", r"_\1", s)
    s = s.lower() if re.fullmatch(r"[A-Za-z ]{2,}", s) else s
    return re.sub(r"\s+", " ", s).replace(" \\", "\\")


def without_units(s: str) -> str:
    return UNITS.sub("", s).strip() or s


def balanced(s: str) -> bool:
    bare = re.sub(r"\\[{}]", "", s)
    return bare.count("{") == bare.count("}")


def exact(s: str) -> Fraction | None:
    r"""-3, 2.50, 1/2, \frac{1}{2}, 1\frac{1}{2} as a Fraction."""
    s = s.strip("()") if re.fullmatch(r"\([-\d./]+\)", s) else s
    if match := re.fullmatch(r"(-?)(\d+)?\\frac\{(-?\d+)\}\{(-?\d+)\}", s):
        sign, whole, over, under = match.groups()
        if not int(under):
            return None
        return (-1 if sign else 1) * (int(whole or 0) + Fraction(int(over), int(under)))
    if match := re.fullmatch(r"(-?)(\d+) (\d+)/(\d+)", s):  # 1 1/2
        sign, whole, over, under = match.groups()
        return (-1 if sign else 1) * (int(whole) + Fraction(int(over), int(under))) if int(under) else None
    return as_fraction(s) if re.fullmatch(r"-?\d*\.?\d+(?:/\d+)?", s) else None


def same_list(a: str, b: str) -> bool:
    """Solutions in any order: "1, -2" and "-2, 1" and {-2, 1}; but (1, 2) is a point and keeps its order."""

    def items(s: str) -> list[str] | None:
        braces = re.fullmatch(r"\\\{(.*)\\\}", s)
        parts, depth, part = [], 0, ""
        for c in braces[1] if braces else s:
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                parts.append(part)
                part = ""
            else:
                part += c
        stated = [re.sub(r"^[a-z]=", "", p.strip()) for p in [*parts, part]]  # x=5, x=7
        return sorted(p if (value := exact(p)) is None else str(value) for p in stated) if parts or braces else None

    x, y = items(a), items(b)
    return x is not None and x == y


def verified(a: str, b: str) -> bool:
    """What math-verify says of the two extracted formulas."""
    subscripts = [sorted(re.findall(r"_\{?\w+\}?", s)) for s in (a, b)]
    if subscripts[0] != subscripts[1] or max(len(a), len(b)) > 200:  # it takes 52_8 for 52
        return False
    try:
        import math_verify
    except ImportError:
        raise UserError('grading math500 needs math-verify: pip install "unmask[eval]"') from None
    import logging
    import threading

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    # its time-out is an alarm signal, which only the main thread may set
    limit = 5 if threading.current_thread() is threading.main_thread() else None
    try:
        x, y = (math_verify.parse(f"${s}$", parsing_timeout=limit, raise_on_error=False) for s in (b, a))
        return bool(x and y and math_verify.verify(x, y, timeout_seconds=limit, raise_on_error=False))
    except Exception:  # whatever sympy makes of a wild formula is no equality
        return False


def adapt(raw: Row, name: str) -> Row:
    """MATH's other files have no `answer`: it is the box of the solution."""
    if "answer" in raw:
        return raw
    return {**raw, "answer": boxes(raw["solution"])[-1], "subject": raw.get("type", raw.get("subject"))}


TASK = Task(
    name="math500",
    rows=Source(
        "HuggingFaceH4/MATH-500",
        "6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        (("test.jsonl",),),
        ("problem", "answer"),
        adapt=adapt,
    ),
    tuning=Source(
        "",
        "",
        (("train.jsonl",), ("MATH_test_5000.jsonl",), ("MATH_*.jsonl",)),
        ("problem", "answer"),
        "the MATH data set",
        adapt=adapt,
    ),
    prompt=prompt,
    grade=grade,
    length=256,
    kappa=12.0,
    beta=1.5,
    key="unique_id",
    group="level",
    packages=("math-verify", "sympy"),
)
