"""The demo: when an answer was decoded, by hand; what it decodes; and the question in both formats on the bundled model."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

import unmask
from unmask.generation import Generation, generations
from unmask.paper import demo
from unmask.tasks import find


@pytest.fixture(scope="module")
def tiny():
    return unmask.load("tiny")


def console() -> Console:
    return Console(file=StringIO(), width=200)


def test_when_by_hand(tiny):
    tokens = tiny.tokens("The answer is B. It ends at A.")
    made = Generation("", tokens, [-1, -1, -1, 8, 1, 2, 3, 4, 25, 5], 48, 0, 0, 0, 48, 0, 0.1)
    assert (
        demo._when(tiny, made, "The answer is")
        == "the answer, B, at step 9 and the end of its reasoning, A, at step 26"
    )
    assert demo._when(tiny, replace(made, tokens=tokens[:5]), "The answer is") == "the answer, B, at step 9"
    assert demo._when(tiny, replace(made, tokens=tokens[:3]), "The answer is") == ""


def test_nothing_is_decoded_twice_and_no_test_row_at_all(tiny, tmp_path, monkeypatch):
    asked = []

    def quick(model, prompts, strategy, decoding, **options):
        asked.extend((prompt, repr(strategy)) for prompt in prompts)
        return generations(model, prompts, strategy, replace(decoding, steps=1), **options)

    monkeypatch.setattr(demo, "generations", quick)
    demo.demo(
        tiny, out := console(), questions=14, out=tmp_path / "replay.html"
    )  # the shown one is the 14th of its task
    assert len(asked) == len(set(asked)) == 3 * 3 * 14 + 5
    known = {
        row["question"]
        for name in ("stories", "cups", "compass", "cups-first")
        for row in find(name).tuning_rows().rows
    }
    assert {prompt for prompt, _ in asked} <= known
    said = out.file.getvalue()
    assert "42 other validation questions" in said and "/14" in said and "Answer first." in said
    assert "Answer first." in (tmp_path / "replay.html").read_text()


def test_the_question_in_both_formats(tiny):
    """What the docs say about it: the anchor alone answers before its reasoning, SACM after it, sacm-first too."""
    plain = demo.shown(tiny, out := console(), find("cups"), demo.METHODS)
    first = demo.shown(tiny, out, find("cups-first"), demo.FIRST)
    assert [run.correct for run in (*plain, *first)] == [False, False, True, False, True]
    pattern = r"(\S+) decoded the answer, \w, at step (\d+) and the end of its reasoning, \w, at step (\d+)"
    waits = {name: int(answer) > int(end) for name, answer, end in re.findall(pattern, out.file.getvalue())}
    assert waits == {"suffix-anchor": False, "sacm": True, "left-to-right": False, "sacm-first": True}
