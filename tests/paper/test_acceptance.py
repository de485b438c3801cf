"""What is measured of the bundled model: the probes' slots, which runs there are, how gates read them, and what is frozen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import refused, run

from unmask.decoding.methods import PAPER
from unmask.errors import UserError
from unmask.models.loading import BUNDLED
from unmask.paper import acceptance
from unmask.paper.experiments import FREE
from unmask.paper.plan import Book
from unmask.tasks import toy
from unmask.training.probe import _partial


def test_probes_hide_what_is_to_the_right() -> None:
    question = toy.questions("stories", "validation", 1)[0]
    words = toy.words(toy.reasoning(question, "Let us see."))
    given, slot, truth = _partial(question, "first", 96)
    assert truth == question.path[0] and slot == max(given) + 1 and [given[i] for i in range(slot)] == words[:slot]
    given, slot, truth = _partial(question, "later", 96)
    assert truth == question.path[-1] == words[slot] and max(given) == slot - 1
    given, slot, truth = _partial(question, "chain", 96)
    assert truth == question.answer and [given[i] for i in range(slot)] == [*words, "The", "answer", "is"]
    given, slot, truth = _partial(question, "anchored", 96)
    assert slot == 79 and [given[i] for i in (76, 77, 78)] == ["The", "answer", "is"] and len(given) == len(words) + 3
    assert _partial(question, "direct", 96)[:2] == ({0: "The", 1: "answer", 2: "is"}, 3)
    assert _partial(question, "glance", 96)[:2] == ({76: "The", 77: "answer", 78: "is"}, 79)


def test_the_suite_is_the_papers_experiments_on_all_tasks_and_our_own() -> None:
    suite = {e.name: list(e.cells(96)) for e in acceptance.suite("tuning", 500)}
    assert {cell.run.task for cell in suite["main"]} == {cell.run.task for cell in suite["anchors"]} == set(toy.PLAIN)
    assert {cell.run.task for cell in suite["answer-first"]} == set(toy.FIRST)
    assert {cell.run.task for cell in suite["support"]} == {cell.run.task for cell in suite["pareto"]} == set(toy.PLAIN)
    main = {cell.run for cell in suite["main"] if cell.run.method in FREE}
    assert main <= {cell.run for cell in suite["support"]}  # decoded once for both
    assert {cell.run.method for cell in suite["main"]} == set(PAPER)
    assert {cell.run.split for cells in suite.values() for cell in cells} == {"tuning"}
    assert {cell.run.count for cell in suite["main"]} == {500} and {cell.run.count for cell in suite["positions"]} == {
        100
    }
    assert {cell.run.steps for cell in suite["parallelism"]} == {12}  # L / 8
    first = suite["left-to-right"][0].run
    assert (
        first.strategy.block == 1
        and first.strategy.anchors[0].text == "Let us see."
        and first.strategy.bound(96, 96) == 96
    )


class Recorded(Book):
    """A book whose runs came out as the test says: accuracy by method and task."""

    def __init__(self, right: dict[tuple[str, str], float]):
        super().__init__()
        self.right = right

    def record(self, run):
        share = self.right.get((run.method, run.task), self.right.get((run.method, "")))
        return share if share is None else {"summary": {"accuracy": share, "eot_ratio_all": share}}


PROBES = {world: {"chain": 1.0, "anchored": 0.99, "later": 0.99, "direct": 0.3, "glance": 0.25} for world in toy.WORLDS}


def passed(book: Book) -> dict[str, str]:
    return {
        row["gate"]: row["passed"] for row in acceptance.gates(PROBES, acceptance.suite("test", 100), book, 96, 100)
    }


def test_gates_read_probes_and_runs() -> None:
    good = {("left-to-right", ""): 0.96, ("top-probability", ""): 0.95}
    assert set(passed(Recorded(good)).values()) == {"yes"}
    bad = passed(Recorded(good | {("left-to-right", "cups"): 0.89}))  # one world is enough
    assert bad.pop("left to right, reasoning, >= 90") == "NO" and set(bad.values()) == {"yes"}
    assert passed(Recorded({}))["top-probability's EOT ratio >= 60"] == "not run"
    rows = acceptance.gates(PROBES, acceptance.suite("test", 100), Recorded(good), 96, 100)
    assert rows[0]["figures"].startswith("stories 100.0 [96.3, 100.0], cups")


def test_the_command_decodes_resumes_and_writes_a_page(tmp_path: Path, capsys) -> None:
    command = (
        "accept",
        "--split",
        "tuning",
        "--count",
        2,
        "--experiments",
        "left-to-right,progress",
        "--out",
        tmp_path,
    )
    first = run(capsys, *command)
    assert "| left to right, reasoning, >= 90" in first and "(this command" in (tmp_path / "results.md").read_text()
    assert "in 0 runs" in run(capsys, *command)
    assert "there is no experiment 'mane' here" in refused(
        capsys, *command[:-4], "--experiments", "mane", "--out", tmp_path
    )


def test_test_rows_need_what_was_frozen(tmp_path: Path, capsys) -> None:
    directory, frozen = BUNDLED / "tiny", tmp_path / "frozen.json"
    with pytest.raises(UserError, match=r"toy\.py"):
        acceptance.check_frozen(frozen, directory)
    run(capsys, "accept", "--freeze", frozen)  # writes where it is told, never into the package
    acceptance.check_frozen(frozen, directory)
    assert set(json.loads(frozen.read_text())) == set(json.loads(acceptance.FROZEN.read_text()))
    other = tmp_path / "tiny"  # somebody's own, of the same name
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"else")
    with pytest.raises(UserError, match=r"tiny/model\.safetensors changed.*--freeze"):
        acceptance.check_frozen(frozen, other)
