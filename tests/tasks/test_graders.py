"""Graders on answers written by hand: what each rule takes, what it leaves, and that silence is never right."""

import importlib.metadata
import re
import sys

import pytest

from unmask.errors import UserError
from unmask.tasks import find, tasks
from unmask.tasks.extract import boxes, clean, numbers, peel, stated_number
from unmask.tasks.math500 import equal

EOT = "<|endoftext|>"
ROWS = {
    "gsm8k": {"question": "How many?", "answer": "3 boxes of 4 are 3*4=<<3*4=12>>12\n#### 12"},
    "math500": {"problem": "Solve.", "answer": r"\frac{3}{4}"},
    "strategyqa": {"question": "Can a cat bark?", "answer": False},
    "mmlu_pro": {"question": "Which?", "options": ["red", "green", "blue"], "answer": "B", "category": "art"},
    "mathvista": {"question": "Which?", "question_type": "multi_choice", "answer_type": "text", "choices": ["a cat", "a dog"],
                  "answer": "a dog", "precision": None},
    "chartqa": {"query": "How much?", "label": "40"},
    "humaneval": {"prompt": "def twice(x):\n", "entry_point": "twice", "test": "def check(f):\n    assert f(2) == 4\n"},
    "mbpp": {"text": "Double.", "code": "def twice(x): return 2 * x", "test_list": ["assert twice(2) == 4"]},
    "stories": {"question": "What does it show?", "answer": "3"},
    "compass": {"question": "Does it face north?", "answer": "yes"},
}  # fmt: skip


def grade(task, text, mode="", **changes):
    return find(task).grader(mode)(text, {**ROWS[task], **changes})


@pytest.mark.parametrize("task", ROWS)
@pytest.mark.parametrize("silence", ["", "   \n", EOT * 40, "<|mdm_mask|>" * 5 + EOT, "The answer is" + EOT * 9])
def test_silence_is_wrong_in_every_default_mode(task, silence):
    found = grade(task, silence)
    assert not found.correct and not found.extracted and found.rule == "none"


@pytest.mark.parametrize(
    ("text", "extracted", "rule"),
    [
        ("So 3 * 4. The answer is 12.", "12", "anchor"),
        ("The answer is 12 eggs in 4 days", "12", "anchor"),
        ("The answer is 3 * 4 = 12.", "12", "anchor"),
        ("The answer is 16 - 4 = 12 eggs", "12", "anchor"),
        ("The answer is $12.00.", "12.00", "anchor"),
        (r"The answer is $\boxed{12}$.", "12", "anchor"),
        ("The answer is 7. No: the answer is 12", "12", "anchor"),
        ("The answer is 12." + EOT * 5 + "The answer is" + EOT, "12", "anchor"),
        ("Answer: 12", "12", "anchor"),
        ("#### 12", "12", "anchor"),
        (EOT * 6 + "The answer is 12" + EOT * 6, "12", "anchor"),
        ("They had 3, then 12", "12", "last-number"),
        (r"It is \boxed{12} of the 40", "12", "box"),
        ("our answer: 12, of 40", "12", "weak-anchor"),
    ],
)
def test_gsm8k_takes(text, extracted, rule):
    assert grade("gsm8k", text) == (True, extracted, rule)


@pytest.mark.parametrize(
    "text", ["The answer is 13", "The answer is -12", "The answer is 1.2", "The answer is twelve", "120"]
)
def test_gsm8k_leaves(text):
    assert not grade("gsm8k", text).correct


def test_gsm8k_parity_modes_are_as_lm_eval_has_them():
    assert grade("gsm8k", "The answer is 12.", "flexible-extract").correct
    assert grade("gsm8k", "The answer is $12.00.", "flexible-extract") == (False, "12.00", "flexible-extract")
    assert grade("gsm8k", "The answer is 12", "strict-match").extracted == "1"  # it eats the last character
    with pytest.raises(
        UserError, match="gsm8k has no grading mode 'x'; it has: default, flexible-extract, strict-match"
    ):
        grade("gsm8k", "", "x")


@pytest.mark.parametrize(
    ("a", "b", "how"),
    [
        (r"\dfrac34", r"\frac{3}{4}", "string"), ("0.75", r"\frac{3}{4}", "number"), ("3/4", r"\frac{3}{4}", "number"),
        (r"1\frac{1}{2}", "1.5", "number"), ("1 1/2", r"\frac32", "number"), ("x = 5", "5", "string"), (r"5\%", "5", "string"),
        ("1, -2", "-2,1", "list"), ("x=5 or x=7", "5,7", "list"), (r"\{1,2\}", r"\{2,1\}", "list"), ("(1,2)", "(2,1)", ""), (r"90^\circ", "90", "string"),
        (r"\$32,348", r"\$32,\!348", "string"), (r"5\text{ cm}", "5", "string"), ("5 cm", r"5\text{ cm}", "number"),
        (r"\text{Evelyn}", "evelyn", "string"), ("52", "52_8", ""), (r"\frac{3}{4", r"\frac{3}{4}", ""), ("0.333", r"\frac{1}{3}", ""),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}", "string"), ("5", "6", ""), ("", "6", ""),
    ],
)  # fmt: skip
def test_formulas_are_equal(a, b, how):
    assert equal(a, b) == how


def test_math_verify_decides_the_rest_and_the_log_says_so():
    pytest.importorskip("math_verify")
    assert equal("2x+1", "1+2x") == "math-verify"
    assert grade("math500", r"The answer is $\frac{6}{8}$.").rule == "anchor, number"
    assert grade("math500", "The answer is $2x + 1$", answer="1 + 2x").rule == "anchor, math-verify"


def test_math_without_math_verify_says_so(monkeypatch):
    """A score without it would be silently lower."""
    version = importlib.metadata.version

    def absent(name):
        if name == "math-verify":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    assert (
        re.fullmatch(r"math-verify [\d.]+, sympy [\d.]+", find("math500").grader_version)
        and find("gsm8k").grader_version == ""
    )
    monkeypatch.setattr("importlib.metadata.version", absent)
    with pytest.raises(UserError, match=r'^grading math500 needs math-verify: pip install "unmask\[eval\]"$'):
        find("math500").grader()
    with pytest.raises(UserError, match="needs math-verify"):
        _ = find("math500").grader_version
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UserError, match="grading math500 needs math-verify"):
        find("math500").grade("The answer is $2x + 1$", {"answer": "1 + 2x"})
    assert (
        find("math500").grade("The answer is $0.5$", {"answer": r"\frac12"}).correct
    )  # what needs no help needs no package
    assert find("gsm8k").grader() is not None


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        (r"So \boxed{\frac{3}{4}}.", r"\frac{3}{4}"),
        ("The answer is $3/4$ of it.", "3/4"),
        (r"The answer is \frac{3}{4}", r"\frac{3}{4}"),
        (r"We check our answer: $1+1$, so the answer is correct. \boxed{0.75}", "0.75"),
        (r"\boxed{0.75} " + EOT * 3 + "The answer is" + EOT, "0.75"),
        ("**The answer is 0.75.**", "0.75"),
        (r"The answer is: \(0.75\).", "0.75"),
        ("we have $x = 0.75$", "x = 0.75"),
    ],
)
def test_math_takes(text, extracted):
    found = grade("math500", text)
    assert found.correct and found.extracted == extracted


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        ("The answer is no.", False), ("The answer is not true", False), ("The answer is not false.", True),
        ("The answer is no, since no one said yes", False), ("So, no.", False), ("No, cats meow.", False), ("Yes! Of course", True),
        ("There is no evidence. The answer is Norway.", None), ("No cat barks and yes is a word here in a long line", None),
        ("The answer is that there is no doubt: yes", True), ("Answer: **No**", False), ("It is true that it may", None),
    ],
)  # fmt: skip
def test_strategyqa(text, extracted):
    assert grade("strategyqa", text).extracted is extracted


@pytest.mark.parametrize(
    ("text", "extracted", "rule"),
    [
        ("The answer is (B).", "B", "anchor"), ("The answer is B", "B", "anchor"), ("The answer is (b)", "B", "anchor"),
        ("the answer is **B. green**", "B", "anchor"), (r"The answer is $\boxed{B}$", "B", "anchor"),
        ("The answer is (A). The answer is (B).", "B", "anchor"), ("The answer is (A, B).", None, "none"),
        ("A good idea. I think (B) fits", "B", "last-letter"), ("The answer is (J)", None, "none"), ("I am a cat", None, "none"),
        ("The answer is I think (B)", "B", "last-letter"), ("The answer is option B", "B", "anchor"),
    ],
)  # fmt: skip
def test_mmlu_pro(text, extracted, rule):
    found = grade("mmlu_pro", text)
    assert (found.extracted, found.rule) == (extracted, rule)


def test_mmlu_pro_parity():
    assert grade("mmlu_pro", "The answer is (A). The answer is (B).", "three-stage").extracted == "A"  # the first
    assert grade("mmlu_pro", "Answer: B", "lm-eval") == (False, None, "none")
    assert grade("mmlu_pro", "Answer: B", "three-stage") == (True, "B", "answer-colon")
    assert grade("mmlu_pro", "I pick B", "three-stage").rule == "last-letter"


def test_three_stages_stay_linear():
    import time

    begun = time.perf_counter()
    grade("mmlu_pro", "answer: " * 8000, "three-stage")
    assert time.perf_counter() - begun < 2


@pytest.mark.parametrize(
    ("text", "extracted", "correct"),
    [
        ("The answer is B.", "B", True), ("The answer is (B) a dog.", "B", True), ("The answer is a dog.", "a dog", True),
        ("It shows a dog.", "a dog", True), ("The answer is a cat", "a cat", False), ("I cannot see it.", "", False),
        ("a dog", "a dog", True), ("It is a cat or a dog.", "", False),
    ],
)  # fmt: skip
def test_mathvista_choices(text, extracted, correct):
    found = grade("mathvista", text)
    assert (found.extracted, found.correct) == (extracted, correct)


def test_mathvista_numbers_and_lists():
    free = {"question_type": "free_form", "choices": None}
    assert grade("mathvista", "The answer is 1.25 cm", **free, answer_type="float", precision=1, answer="1.2").correct
    assert grade("mathvista", "1.5", **free, answer_type="integer", answer="1").correct  # the official rule truncates
    assert grade("mathvista", "The answer is [1, 2].", **free, answer_type="list", answer="[1, 2]").correct
    assert not grade("mathvista", "The answer is 12", **free, answer_type="integer", answer="13").correct


@pytest.mark.parametrize(
    ("text", "extracted"),
    [
        ("The answer is two.", "2"), ("The answer is: **Twenty** bars", "20"), ("Two", "2"), ("The answer is minus three.", "-3"),
        (r"The answer is \boxed{two}.", "2"), ("The answer is two, of the 7 shown.", "2"), ("The answer is 7, not two.", "7"),
        ("The answer is two. No: the answer is 3.", "3"), ("The answer is twenty-one.", ""), ("The answer is twenty one.", ""),
        ("The answer is two hundred.", ""), ("The answer is one of the 3.", "3"), ("The answer is often.", ""), ("The answer is two or three.", ""),
        ("Two people stand there", ""), ("We count one, two and 4", "4"),
    ],
)  # fmt: skip
def test_mathvista_integers_in_words(text, extracted):
    free = {"question_type": "free_form", "choices": None, "answer": "2"}
    found = grade("mathvista", text, **free, answer_type="integer")
    assert (found.extracted, found.correct) == (extracted, extracted == "2")
    assert grade("mathvista", text, "official", **free, answer_type="integer").extracted in (
        "",
        "7",
        "3",
        "4",
    )  # as published
    assert not grade("mathvista", "The answer is two.", **free, answer_type="float", precision=1).correct


def test_mathvista_official_turns_silence_into_hits_and_strict_does_not():
    assert grade(
        "mathvista", "", "official", answer="a cat"
    ).correct  # the nearest choice to nothing: the first of the shortest
    assert not grade("mathvista", "", "strict", answer="a cat").correct


@pytest.mark.parametrize(
    ("text", "gold", "correct"),
    [
        ("The answer is 40.", "40", True), ("The answer is 42", "40", True), ("The answer is 42.1", "40", False),
        ("The answer is 40%", "40", True), ("The answer is 0.4", "40%", True), ("The answer is 1,400 people", "1400", True),
        ("The answer is $40 million.", "40", True), ("The answer is 0.01", "0", False), ("The answer is 0", "0", True),
        ("The answer is U.S.", "U.S.", True), ("The answer is **Inspired.**", "Inspired", True), ("The answer is St. Lucia.", "St. Lucia", True),
        ("The answer is [b, a]", "[a, b]", True), ("The answer is Yes. The bar is tall.", "Yes", True), ("No", "no", True),
        ("The answer is Spain", "France", False), ("The answer is about 41.", "40", True), ("The answer is the Moon.", "Moon", True),
    ],
)  # fmt: skip
def test_chartqa(text, gold, correct):
    assert grade("chartqa", text, label=gold).correct is correct


def test_chartqa_lavida_divides_a_percent_sign_by_a_hundred():
    assert not grade("chartqa", "The answer is 40%", "lavida").correct
    assert grade("chartqa", "The answer is 41", "lavida").correct


def test_toy_answers():
    assert grade("stories", "First 2, adds 1: 3. The answer is 3.") == (True, "3", "anchor")
    assert not grade("stories", "It ends at 3.").correct
    assert grade("compass", EOT * 4 + "The answer is: yes." + EOT).correct


def test_shared_pieces():
    assert clean(f"a{EOT}{EOT}b</s>") == "a  b "
    assert boxes(r"\boxed{\frac{1}{2}} and \boxed{a\}b} and \fbox{c} and \boxed{cut") == [
        r"\frac{1}{2}",
        r"a\}b",
        "c",
        "cut",
    ]
    assert [n for *_, n in numbers("1,234.5 and -3, 10-5, $-4, -$6 and 3/4, .5")] == [
        "1234.5",
        "-3",
        "10",
        "5",
        "-4",
        "-6",
        "3/4",
        ".5",
    ]
    assert [n for *_, n in numbers(r"\frac{1}{2}")] == ["1/2"]
    assert stated_number("none here") is None
    assert peel('"**Yes.**"') == "Yes" and peel("U.S.") == "U.S."


def test_every_task_of_the_paper_has_its_settings():
    expected = {
        "gsm8k": (256, 14, 1.3, 0.85), "math500": (256, 12, 1.5, 0.85), "strategyqa": (128, 12, 1.3, 0.70),
        "mmlu_pro": (128, 14, 1.3, 0.85), "mathvista": (128, 14, 1.3, 0.85), "chartqa": (128, 12, 1.0, 1.0),
        "humaneval": (128, 14, 1.3, 0.85), "mbpp": (128, 14, 1.5, 0.70),
    }  # fmt: skip
    for name, (length, *settings) in expected.items():
        task = tasks()[name]
        assert (task.length, list(task.settings.values())) == (length, settings)
        assert task.anchor == ("return" if task.executes else "The answer is")
