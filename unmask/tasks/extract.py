"""Text to answer, the part every grader shares: drop EOT, find anchors, numbers and boxes. Pure functions of text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

# Tokens that are not text: <|endoftext|>, <|eot_id|>, <|mdm_mask|>, <|im_end|>, </s>, [MASK] ...
SPECIAL = re.compile(r"<\|[\w-]{1,40}\|>|</?s>|<(?:eos|bos|pad|mask|unk)>|\[(?:MASK|EOS|EOT|PAD)\]")
STRONG = re.compile(r"\b(?i:answer\s+(?:is|was))\b(?:\s*:)?|####|\b(?:Answer|ANSWER)\s*:")
WEAK = re.compile(r"\banswer\s*:")  # mid-sentence, "we check our answer: ..."
JOINS = re.compile(  # between the numbers of "3 * 6 = 18"
    r"[\s+\-−*/x×÷().$\\%^]*=[\s$\\(]*|\s*[+\-−*/x×÷^]\s*[$\\(]*\s*"
)
FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}")


def clean(text: str) -> str:
    """The text without EOT and mask tokens. What follows them is kept: a suffix anchor sits after the run of EOT."""
    return SPECIAL.sub(" ", text)


def clean_code(text: str) -> str:
    """The same for code, where an extra space would change the indentation."""
    return re.sub(r"<\|[\w-]{1,40}\|>|</s>", "", text)


def tails(text: str) -> Iterator[tuple[str, str]]:
    """(rule, what follows the anchor), the last anchor first; those with nothing after them are skipped.
    A small `answer:` is weak: it is tried only after every `answer is`, `Answer:` and `####`."""
    for rule, pattern in (("anchor", STRONG), ("weak-anchor", WEAK)):
        matches = list(pattern.finditer(text))
        ends = [match.start() for match in matches[1:]] + [len(text)]
        for match, end in zip(reversed(matches), reversed(ends), strict=False):
            tail = text[match.end() : end]
            if any(c.isalnum() for c in tail):
                yield rule, tail


def boxes(text: str) -> list[str]:
    r"""The contents of every \boxed{...} and \fbox{...}, braces matched; a box cut off by the end keeps what it has."""
    found = []
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{|\\boxed\s+(?=[^\s{])", text):
        if not match.group().endswith("{"):  # \boxed 5
            found.append(re.split(r"[\s$]", text[match.end() :], maxsplit=1)[0])
            continue
        depth, at = 1, match.end()
        while at < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[at], 0) * (text[at - 1] != "\\")
            at += 1
        found.append(text[match.end() : at - (depth == 0)])
    return found


def numbers(text: str) -> list[tuple[int, int, str]]:
    """(start, end, digits) of every number: 1,234.50 and $-5 and .5 and 3/4, without commas, currency and spaces."""
    text = FRACTION.sub(lambda m: f"{m[1]}/{m[2]}".ljust(len(m[0])), text)
    found = []
    for match in re.finditer(
        r"(?P<sign>[-−]?)\s?(?:\\?\$)?(?P<inner>[-−]?)(?P<body>(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
        r"(?P<under>/\d+(?![\d.]))?",
        text,
    ):
        before = text[: match.start()].rstrip()[-1:]
        minus = (match["sign"] or match["inner"]) and not (match["sign"] and (before.isalnum() or before in (")", "}")))
        body = match["body"].replace(",", "") + (match["under"] or "")
        found.append((match.start() if minus else match.start("body"), match.end(), ("-" if minus else "") + body))
    return found


def stated_number(tail: str) -> str | None:
    """The first number of a tail, or the right-hand side of an equation such as "3 * 6 = 18"."""
    found = numbers(tail)
    if not found:
        return None
    at = 0
    while at + 1 < len(found) and JOINS.fullmatch(tail[found[at][1] : found[at + 1][0]]):
        at += 1
    # an expression that ends without "=" ("3 * 6") states no result: its first number stands
    return found[at][2] if at and "=" in tail[found[0][1] : found[at][0]] else found[0][2]


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
           "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")  # fmt: skip
NUMBER_WORD = re.compile(
    rf"\W*(?P<minus>(?:minus|negative)\s+)?(?!one\s+of\b)(?P<word>{'|'.join(NUMBERS)})"
    rf"(?![\w-]|\s+(?:or|{'|'.join(NUMBERS)}|hundred|thousand|million|billion|point)\b)",
    re.IGNORECASE,
)


def number_word(tail: str) -> str | None:
    """The number from zero to twenty that a tail opens with in words; "twenty-one" and "one of" are none."""
    match = NUMBER_WORD.match(tail)
    return ("-" if match["minus"] else "") + str(NUMBERS.index(match["word"].lower())) if match else None


def as_fraction(text: str) -> Fraction | None:
    try:
        return Fraction(text.replace(",", "").replace("−", "-"))
    except (ValueError, ZeroDivisionError):
        return None


def peel(text: str) -> str:
    """An answer without the quotes, markdown and closing period around it; "U.S." keeps its period."""
    before = None
    text = text.strip()
    while text != before:
        before = text
        text = text.strip().strip("*_`\"'“”‘’").strip()
        if text.endswith(("!", ";", ",", ":")) or (
            text.endswith(".") and not re.search(r"(?:\b[A-Za-z]\.){2,}$", text)
        ):
            text = text[:-1]
    return text


LETTERS = "ABCDEFGHIJKLMNOP"
OPENING = re.compile(
    r"""[\s*_`"'“”‘’$:\[{]*(?:\\(?:boxed|fbox|text|textbf|mathbf|mathrm)\s*\{\s*)*(?:(?:the|option|choice|letter|answer)\s+)*
    (?:\(\s*(?P<paren>[A-Pa-p])\s*[).:]|(?P<bare>[A-P])(?![A-Za-z0-9'’_=]))""",
    re.VERBOSE,
)
LISTED = re.compile(r"\(\s*[A-P](?:\s*(?:,|and|or|&|/)\s*(?:and\s+|or\s+)?[A-P])+\s*\)")
PRONOUN = re.compile(r"\s+(?:think|believe|am|would|will|was|do|don|have|had|guess|can|could|say|know|need|cannot)\b")
LONE = re.compile(r"\(\s*([A-P])\s*\)|(?<![\w'’])([B-HJ-P])(?![\w'’])|(?<![\w'’])([AI])(?=\s*(?:[).:,*`}\]]|$))")


def stated_letter(tail: str) -> str | None:
    match = OPENING.match(tail)
    if not match or LISTED.match(tail.lstrip(" \n\t*_`\"'$:")):
        return None
    if match["bare"] == "I" and PRONOUN.match(tail[match.end() :]):
        return None
    return (match["paren"] or match["bare"]).upper()


def is_short(text: str) -> bool:
    """Is this just a few words, an answer by itself?"""
    return len(text.split()) <= 6 and not STRONG.search(text)


def same_words(a: str, b: str) -> bool:
    return simple(a) == simple(b)


def simple(text: str) -> str:
    return re.sub(r"\s+", " ", peel(text)).casefold().rstrip(".")
