"""Every file in examples/ does what it says."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from support.command import run

import unmask
from unmask import plugins

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ("--length", "24", "--steps", "6")


def example(name):
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="example")


def test_a_rule(capsys):
    methods = f"top-probability,{EXAMPLES}/rule.py:reader,{EXAMPLES}/rule.py:reader_in_blocks"
    said = run(capsys, "compare", "Where is the key?", "--methods", methods, "--set", "pull=20", *SHORT, "--json")
    records = {record["method"]: record for record in map(json.loads, said.splitlines())}
    assert list(records) == ["top-probability", "reader", "reader_in_blocks"]
    order = records["reader"]["order"]
    assert order == sorted(order) != records["top-probability"]["order"]  # pulled hard, it reads from left to right


def test_a_task(capsys, tmp_path):
    words = ("eval", "--task", f"{EXAMPLES}/task.py:capitals", "--methods", "sacm", *SHORT, "--out", tmp_path, "--json")
    said = json.loads(run(capsys, *words))
    assert said["task"] == "capitals" and said["rows"] == 4
    task = plugins.task(f"{EXAMPLES}/task.py:capitals")
    france = task.load().rows[0]
    assert task.grade("The capital is Paris", france).correct and not task.grade("Paris? No, Lima", france).correct


def test_a_wrapped_model():
    model = example("wrapped_model")["model"]()
    one, two = unmask.generate(model, ["Where?", "Where is the red key now?"], "sacm", length=24, steps=6)
    assert len(one.tokens) == len(two.tokens) == 24


def test_a_watcher():
    means = example("watcher")["watched"](length=32)
    assert len(means) == 16 and all(0 < mean <= 1 for mean in means)


@pytest.mark.parametrize("name", ["wrapped_model", "watcher"])
def test_they_run_as_scripts(name, capsys):
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()


def test_every_example_is_here():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"rule", "task", "wrapped_model", "watcher"}


def test_the_page_about_it(tmp_path, monkeypatch, capsys):
    """Every Python block of docs/extend.md runs, one after the other."""
    monkeypatch.chdir(tmp_path)
    page = (EXAMPLES.parent / "docs" / "extend.md").read_text()
    space = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", page, re.S):
        exec(compile(block, "extend.md", "exec"), space)
        assert capsys.readouterr().out.strip()
    rows = re.findall(r"^    (\{.*\})$", page, re.M)
    (tmp_path / "mine.jsonl").write_text("\n".join(rows))
    words = ("eval", "--task", "exact", "--data", "mine.jsonl", "--methods", "sacm,top-probability", *SHORT, "--json")
    assert json.loads(run(capsys, *words))["rows"] == len(rows) == 2
