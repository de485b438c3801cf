"""What is measured of the bundled model: the probes' slots, the resumable records, and how gates and predictions read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import unmask
from unmask import acceptance
from unmask.acceptance import RUNS, TABLE, Suite, accept, check_frozen, freeze, measure
from unmask.errors import UserError
from unmask.tasks import toy


def test_probes_hide_what_is_to_the_right() -> None:
    question = toy.questions("stories", "validation", 1)[0]
    words = toy.words(toy.reasoning(question, "Let us see."))
    given, slot, truth = acceptance._partial(question, "first", 96)
    assert truth == question.path[0] and slot == max(given) + 1 and [given[i] for i in range(slot)] == words[:slot]
    given, slot, truth = acceptance._partial(question, "later", 96)
    assert truth == question.path[-1] == words[slot] and max(given) == slot - 1
    given, slot, truth = acceptance._partial(question, "chain", 96)
    assert truth == question.answer and [given[i] for i in range(slot)] == [*words, "The", "answer", "is"]
    given, slot, truth = acceptance._partial(question, "anchored", 96)
    assert slot == 79 and [given[i] for i in (76, 77, 78)] == ["The", "answer", "is"] and len(given) == len(words) + 3
    assert acceptance._partial(question, "direct", 96)[:2] == ({0: "The", 1: "answer", 2: "is"}, 3)
    assert acceptance._partial(question, "glance", 96)[:2] == ({76: "The", 77: "answer", 78: "is"}, 79)


def test_probes_of_answer_first_hide_the_answer_at_the_front() -> None:
    question = toy.questions("compass-first", "validation", 1)[0]
    front = {0: "The", 1: "answer", 2: "is", 4: "."}
    told = front | dict(enumerate(toy.words(toy.reasoning(question, "Let us see.")), 5))
    assert acceptance._partial(question, "direct", 96) == ({0: "The", 1: "answer", 2: "is"}, 3, question.answer)
    assert acceptance._partial(question, "glance", 96) == (front | {88: "."}, 3, question.answer)
    assert acceptance._partial(question, "chain", 96) == (told, 3, question.answer)
    assert acceptance._partial(question, "anchored", 96) == (told | {88: "."}, 3, question.answer)
    for kind, truth in (("first", question.path[0]), ("later", question.path[-1]), ("copied", question.operations[-1])):
        given, slot, word = acceptance._partial(question, kind, 96)
        assert word == truth == told[slot] and given == {at: told[at] for at in told if at < slot} and 3 not in given


def test_every_row_of_the_main_table_is_run() -> None:
    assert set(TABLE) <= set(RUNS) and len(TABLE) == 12
    assert [name for name, run in RUNS.items() if run.rainbow] == ["rainbow-padding"]


def records(**accuracy: float) -> list[dict[str, Any]]:
    """100 questions a world, everything as the paper says unless told otherwise."""
    eot = {"top-probability": 0.95}
    made = [
        {"run": run.replace("_", "-"), "world": world, "count": 100, "right": round(100 * share), "asked": 100, "forwards": 48.0,
         "rights": "1" * round(100 * share) + "0" * (100 - round(100 * share)), "reasoned": 50, "agree": 40, "before_spread": 0.1,
         "eot": eot.get(run.replace("_", "-"), 0.2), "before": 0.9 if run == "sacm" else 0.1 if run == "suffix_anchor" else None}
        for run, share in accuracy.items() for world in toy.PLAIN
    ]  # fmt: skip
    probes = {"later": 0.98, "chain": 1.0, "anchored": 0.99, "direct": 0.3, "glance": 0.25}
    return made + [{"run": "probes", "world": world, "count": 100, **probes} for world in toy.WORLDS]


def test_gates_and_predictions_read_the_records() -> None:
    suite = Suite(records(sacm=0.95, suffix_anchor=0.4, top_probability=0.3, top_margin=0.66, left_to_right=0.96))
    assert [ok for _, _, ok in suite.gates()] == [True] * 11
    held = {what: ok for what, _, ok in suite.predictions()}
    assert held["top-probability and top-margin at least 30 points under SACM"] is False  # 66 > 95 - 30
    assert held["the anchor alone at least 10 points under SACM"] is True
    assert held["the anchor alone commits the answer before the reasoning (share of the text before it already decoded)"] is True
    assert held["progress dependence helps"] is None  # not run
    said = {what: text for what, text, _ in suite.predictions()}
    assert "suffix-anchor -55.0 [" in said["the anchor alone at least 10 points under SACM"]
    assert "suffix-anchor 10.0 ± 1.1 %, sacm 90.0 ± 1.1 %" in said.values()  # 1.96 * sqrt(3 * .01 / 100) / 3
    text = suite.markdown()
    assert "| sacm | 95.0 [88.8, 97.8] | 95.0 [88.8, 97.8] | 95.0 [88.8, 97.8] | 95.0 | 80 % | 0.20 | 48 | 90 % |" in text
    assert "NOT held" in text and "not run" in text


def test_a_sweep_is_compared_on_the_rows_it_was_asked() -> None:
    made = records(sacm=0.5, **{"sacm gamma=0": 0.5})
    for r in made:
        if r["run"] == "sacm gamma=0":
            r.update(asked=40, right=20, rights="10" * 20)
    found = Suite(made).against("sacm gamma=0", "sacm")
    assert found and found.rows == 120 and found.difference == -0.5  # sacm has the first 40 of each world right


def test_a_gate_fails_when_one_world_fails() -> None:
    made = records(sacm=0.95, top_probability=0.3, left_to_right=0.96)
    next(r for r in made if r["run"] == "left-to-right" and r["world"] == "cups")["right"] = 89
    gates = {what: ok for what, _, ok in Suite(made).gates()}
    assert gates["left to right, reasoning, >= 90"] is False and gates["direct answer at most 20 above chance"] is True
    next(r for r in made if r["run"] == "probes" and r["world"] == "cups-first")["direct"] = 0.5
    gates = {what: ok for what, _, ok in Suite(made).gates()}
    assert gates["answer first: direct answer at most 20 above chance"] is False
    assert gates["direct answer at most 20 above chance"] is True  # a gate of the plain format
    assert gates["answer first: the answer in front of the true chain >= 98"] is True


def test_measuring_is_resumed(tmp_path: Path) -> None:
    model, out, told = unmask.load("tiny"), tmp_path / "a.jsonl", []
    run = ["sacm L/8"]
    first = accept(model, model, out, split="validation", count=2, runs=run, worlds=["cups"], tell=told.append)
    assert [(r["run"], r["world"]) for r in first] == [("probes", "cups"), ("probes", "cups-first"), ("sacm L/8", "cups")]
    assert len(told) == 3
    figures = next(r for r in first if r["run"] == "sacm L/8")
    assert figures["forwards"] <= 12 and 0 <= figures["before"] <= 1 and figures["asked"] == 2
    assert {k: figures[k] for k in ("right", "before")} == {
        k: v for k, v in measure(model, RUNS["sacm L/8"], "cups", "validation", 2).items() if k in ("right", "before")
    }
    again = accept(model, model, out, split="validation", count=2, runs=run, worlds=["cups"], tell=told.append)
    assert again == first and len(told) == 3 and len(out.read_text().splitlines()) == 3
    there = accept(model, model, tmp_path / "b.jsonl", split="validation", count=2, runs=run, worlds=["cups"], jobs=2)
    assert there == first  # processes of their own
    with pytest.raises(UserError, match="no run 'sacn'"):
        accept(model, model, out, runs=["sacn"])


def test_test_rows_need_what_was_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = Path(acceptance.__file__).parent / "checkpoints" / "tiny"
    monkeypatch.setattr(acceptance, "FROZEN", tmp_path / "frozen.json")
    with pytest.raises(UserError, match=r"toy\.py"):
        check_frozen(directory)
    freeze(directory)
    check_frozen(directory)
    other = tmp_path / "tiny"  # somebody's own, of the same name
    other.mkdir()
    (other / "model.safetensors").write_bytes(b"else")
    with pytest.raises(UserError, match=r"tiny/model\.safetensors changed.*--freeze"):
        check_frozen(other)
