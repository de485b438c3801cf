"""Methods and tasks from files and entry points: what is found, what is refused and in which words, and what tells code apart."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from unmask import plugins
from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.tasks import Grade, find

FILE = """
from __future__ import annotations
from dataclasses import dataclass
from unmask import Strategy
from unmask.tasks import Grade, Made, Task

@dataclass(frozen=True)
class Right:
    '''Later slots first.'''
    slope: float = 1.0
    def __call__(self, step):
        return step.seen.p * 0 + self.slope * step.canvas.slots / step.canvas.length

mine = Strategy(confidence=Right())
def made(): return Strategy(block=4)
def broken(): return 1 / 0
def needy(argument): return Strategy()
def liar(): return "a strategy"
sacm = Strategy(block=2)
number = 7
task = Task("mine", Made(lambda: [{"question": "2 + 2?", "answer": "4"}]), lambda row, shots: row["question"],
            lambda text, row: Grade(row["answer"] in text, text, "in"))
gsm8k = Task("gsm8k", task.rows, task.prompt, task.grade)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(FILE)
    return str(path)


def test_methods_from_a_file(file):
    found = plugins.methods(["sacm", f"{file}:mine", f"{file}:made"])
    assert list(found) == ["sacm", "mine", "made"]
    assert found["sacm"] is METHODS["sacm"] and found["made"].block == 4
    assert repr(found["mine"].confidence) == "Right(slope=1.0)" and found["mine"].with_(slope=2).confidence.slope == 2


def test_tasks_from_a_file(file):
    assert plugins.task(f"{file}:task").name == "mine" and plugins.task("GSM-8K") is find("gsm8k")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{dir}/none.py:mine", "none.py cannot be read: No such file or directory"),
        ("{dir}:mine", "there is no method"),
        ("{file}", "which Strategy of {file}? name it, as in {file}:mine"),
        ("{file}:nothing", "own.py has no 'nothing'; it has mine, sacm"),
        ("{file}:number", "own.py:number is 7; it must be a Strategy, or a function that returns one"),
        ("{file}:task", "own.py:task is Task(name='mine'"),
        ("{file}:Right", "own.py:Right is <class 'unmask_file_"),
        ("{file}:broken", "own.py:broken() fails: ZeroDivisionError"),
        ("{file}:needy", "own.py:needy() fails: TypeError"),
        ("{file}:liar", "own.py:liar() returns 'a strategy'; it must return a Strategy"),
        ("{file}:sacm", "there is another method called 'sacm'; give the one in"),
        ("{dir}/syntax.py:mine", "syntax.py, line 2: "),
        ("{dir}/raises.py:mine", "raises.py cannot be loaded: NameError: name 'x' is not defined"),
        ("{dir}/exits.py:mine", "exits.py cannot be loaded: SystemExit: 3"),
        ("sacn", "there is no method 'sacn'; did you mean 'sacm'?"),
    ],
)
def test_refused(name, said, file, tmp_path):
    for other, text in {"syntax": "x = 1\ny = = 2\n", "raises": "x + 1\n", "exits": "raise SystemExit(3)\n"}.items():
        (tmp_path / f"{other}.py").write_text(text)
    with pytest.raises(UserError) as caught:
        plugins.methods([name.format(dir=tmp_path, file=file)])
    assert said.format(file=file) in str(caught.value) and "\n" not in str(caught.value)


def test_tasks_refused(file):
    with pytest.raises(UserError, match="must be a Task, or a function that returns one"):
        plugins.task(f"{file}:mine")
    with pytest.raises(UserError, match="called 'gsm8k', as a built-in task is"):
        plugins.task(f"{file}:gsm8k")
    with pytest.raises(UserError, match="no task 'gsm9k'; did you mean 'gsm8k'"):
        plugins.task("gsm9k")


def test_built_in_names_load_no_code(file):
    """What a server offers: METHODS and find never run a file."""
    from unmask.decoding.methods import method

    with pytest.raises(UserError, match="there is no method"):
        method(f"{file}:mine")
    with pytest.raises(UserError, match="no task"):
        find(f"{file}:task")


def installed(monkeypatch, *points):
    def entry_points(group):
        return [point for point in points if point.group == group]

    monkeypatch.setattr(plugins.metadata, "entry_points", entry_points)


def point(name, value, group="unmask.methods", owner="theirs"):
    made = EntryPoint(name, value, group)
    vars(made)["dist"] = SimpleNamespace(name=owner)
    return made


def test_entry_points(monkeypatch):
    installed(
        monkeypatch,
        point("theirs", "unmask.decoding.algorithm:Strategy"),
        point("fine", "unmask.tasks.gsm8k:TASK"),
        point("gone", "no_such_package:method"),
        point("twice", "a:b", owner="one"),
        point("twice", "c:d", owner="two"),
        point("sacm", "no_such_package:method"),
    )
    for name, said in {
        "theirs": "theirs is <class 'unmask.decoding.algorithm",
        "fine": "fine is Task(name='gsm8k'",
        "gone": "the entry point gone (no_such_package:method) cannot be loaded: ModuleNotFoundError",
        "twice": "'twice' is an entry point of one and two; uninstall one of them",
    }.items():
        with pytest.raises(UserError) as caught:
            plugins.methods([name])
        assert said in str(caught.value)
    assert plugins.methods(["sacm"]) == {"sacm": METHODS["sacm"]}  # no package changes what a built-in name means


def test_a_real_entry_point(tmp_path, monkeypatch):
    """As `pip install` leaves it."""
    (tmp_path / "their_package.py").write_text("from unmask import Strategy\nslow = Strategy(block=2)\n")
    about = tmp_path / "their_package-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[unmask.methods]\nslow = their_package:slow\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.methods(["slow"])["slow"].block == 2
    assert plugins.code_hash(plugins.methods(["slow"])) == ""  # made of our rules alone: its repr says it all


# ---------------------------------------------------------------- what tells code apart


def test_ours_has_no_code_of_its_own():
    assert not plugins.code_hash(*METHODS.values()) and not plugins.code_hash(
        find("gsm8k"), find("cups"), find("exact")
    )


def test_an_edited_file_is_other_code(file, tmp_path):
    before = plugins.code_hash(plugins.methods([f"{file}:mine"])), plugins.code_hash(plugins.task(f"{file}:task"))
    assert all(before) and before[0] == plugins.code_hash(plugins.methods([f"{file}:mine"]))
    (tmp_path / "own.py").write_text(FILE.replace("* step.canvas.slots", "* -step.canvas.slots"))
    after = plugins.code_hash(plugins.methods([f"{file}:mine"])), plugins.code_hash(plugins.task(f"{file}:task"))
    assert before[0] != after[0] and before[1] != after[1]


def grade(text, row, least=3):
    return Grade(len(text) > least, text, "length")


def test_what_a_function_was_given_counts():
    def longer(least):
        return lambda text, row: grade(text, row, least)

    hashes = [
        plugins.code_hash(x) for x in (grade, longer(3), longer(4), partial(grade, least=3), partial(grade, least=4))
    ]
    assert all(hashes) and len(set(hashes)) == 5
    assert plugins.code_hash(longer(3)) == plugins.code_hash(longer(3))


def test_code_typed_at_a_prompt():
    def typed(body):
        space = {"__name__": "typed_at_a_prompt"}
        exec(f"class Rule:\n def __call__(self, step): return {body}\ndef f(x): return {body}", space)
        return plugins.code_hash(space["Rule"]), plugins.code_hash(space["f"])

    one, again, other = typed("x + 1"), typed("x + 1"), typed("x + 2")
    assert one == again and all(one) and one[0] != other[0] and one[1] != other[1]


def test_a_function_that_holds_itself():
    def outer():
        def inner(n):
            return inner(n - 1)

        return inner

    assert plugins.code_hash(outer())


def test_strategies_of_our_rules_need_no_code():
    assert plugins.code_hash(Strategy(block=3)) == "" and plugins.code_hash(replace(METHODS["sacm"], pace=1)) == ""
