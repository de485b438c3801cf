"""Prompt/answer pairs: what the four stock graders call right, and which rows are refused."""

from __future__ import annotations

import json

import pytest
from support.command import refused

from unmask.errors import UserError
from unmask.tasks import find

CASES = [
    ("exact", {"answer": "blue"}, "The sky. The answer is Blue.", True),
    ("exact", {"answer": "blue"}, "The answer is blue. I am sure of it.", True),
    ("exact", {"answer": "U.S. dollars"}, "The answer is U.S. dollars", True),
    ("exact", {"answer": "blue"}, '"Blue"', True),
    ("exact", {"answer": "blue"}, "It must be the sky\nblue<|endoftext|><|endoftext|>", True),
    ("exact", {"answer": "blue"}, "The answer is light blue", False),
    ("exact", {"answer": "blue"}, "It is blue or so", False),
    ("exact", {"answer": "blue"}, "<|endoftext|>", False),
    ("exact", {"answer": 4}, "4", True),
    ("number", {"answer": 1000}, "so 3 * 5. The answer is 1,000.", True),
    ("number", {"answer": "0.5"}, "it is 1/2", True),
    ("number", {"answer": "5"}, "The answer is 6, not 5", False),
    ("choice", {"answer": "B", "choices": ["red", "blue"]}, "The answer is (B).", True),
    ("choice", {"answer": "blue", "choices": ["red", "blue"]}, "The answer is B", True),
    ("choice", {"answer": "blue", "choices": ["red", "blue"]}, "The answer is blue.", True),
    ("choice", {"answer": "B", "choices": ["red", "blue"]}, "The answer is red.", False),
    ("choice", {"answer": "A"}, "The answer is A", True),
    ("choice", {"answer": 3, "choices": [1, 2, 3]}, "The answer is C", True),
    ("regex", {"answer": "7", "pattern": r"x = (\d+)"}, "x = 3, then x = 7", True),
    ("regex", {"answer": "7", "pattern": r"x = (\d+)"}, "y = 7", False),
    ("regex", {"answer": r"colou?r"}, "any color", True),
    ("regex", {"answer": r"^colou?r$"}, "any color", False),
]


def written(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(("name", "row", "text", "right"), CASES)
def test_graders(name, row, text, right, tmp_path):
    task = find(name)
    (loaded,) = task.load(data=written(tmp_path / "mine.jsonl", {"prompt": "Which?", **row})).rows
    assert task.grade(text, loaded).correct is right


def test_prompts(tmp_path):
    rows = {"question": "Which?", "answer": "a"}, {"prompt": "Which?", "answer": "b", "choices": ["a", "b"]}
    one, two = find("choice").load(data=written(tmp_path / "mine.jsonl", *rows)).rows
    assert find("choice").render(one) == "Which?" and find("choice").render(two) == "Which?\nA. a\nB. b"


@pytest.mark.parametrize(
    ("name", "row", "said"),
    [
        ("exact", {"answer": "a"}, '"prompt" (or "question") must be text'),
        ("exact", {"prompt": 7, "answer": "a"}, '"prompt" (or "question") must be text'),
        ("exact", {"prompt": "p"}, '"answer" must be text or a number'),
        ("exact", {"prompt": "p", "answer": True}, '"answer" must be text or a number'),
        ("exact", {"prompt": "p", "answer": " "}, '"answer" must be text or a number'),
        ("number", {"prompt": "p", "answer": "many"}, "\"answer\" must be a number, not 'many'"),
        (
            "choice",
            {"prompt": "p", "answer": "C", "choices": ["x", "y"]},
            "must be one of the choices, or its letter, not 'C'",
        ),
        ("choice", {"prompt": "p", "answer": "A", "choices": "xy"}, '"choices" must be a list of 2 to 16'),
        ("regex", {"prompt": "p", "answer": "a", "pattern": "("}, "is not a regular expression (missing )"),
    ],
)
def test_bad_rows(name, row, said, tmp_path):
    file = written(tmp_path / "mine.jsonl", {"prompt": "p", "answer": "1" if name == "number" else "A"}, row)
    with pytest.raises(UserError) as caught:
        find(name).load(data=file)
    assert said in str(caught.value) and "mine.jsonl:2: " in str(caught.value)
    assert len(find(name).load(data=file, skip_bad=True).rows) == 1


def test_they_need_a_file(capsys, monkeypatch, tmp_path):
    said = "exact grades rows of your own: pass --data FILE.jsonl"
    assert said in refused(capsys, "eval", "--task", "exact")
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))  # the folder of the benchmarks holds none of yours
    assert said in refused(capsys, "eval", "--task", "exact")
    file = written(tmp_path / "mine.jsonl", {"prompt": "p", "answer": "a"})
    assert "exact has no train or validation split" in refused(capsys, "tune", "--task", "exact", "--data", file)
