"""Experiments beyond the paper: methods at several budgets, by hand; and `unmask pareto` on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command import refused, run
from support.scripted import canvas, encode

from unmask.decoding.methods import METHODS
from unmask.decoding.settings import check
from unmask.decoding.zoo import ZOO
from unmask.errors import UserError
from unmask.paper import claims, fronts
from unmask.paper.experiments import SACM, Claim
from unmask.paper.front_page import leading, points, rows
from unmask.paper.fronts import FRONTS, Entry, Front, budgets, entries, named, varied
from unmask.paper.plan import Book
from unmask.views.figures import Reached


def test_budgets_are_shares_of_the_response():
    assert budgets("1/8, 0.5,1") == (0.125, 0.5, 1.0) and budgets(None) == fronts.BUDGETS
    for wrong in ("0", "x", "1/0", "9", "", "-1/2"):
        with pytest.raises(UserError, match="T as a share of L"):
            budgets(wrong)


def test_methods_with_a_budget_get_it_and_the_others_their_own_knob():
    made = entries({name: METHODS[name] for name in ("sacm", "fast-dllm", "left-to-right")}, (0.5, 1.0))
    assert [(e.name, dict(e.changes), e.budgets) for e in made] == [
        ("sacm", {}, (0.5, 1.0)), ("fast-dllm", {"tau": 0.5}, (None,)), ("fast-dllm", {"tau": 0.7}, (None,)),
        ("fast-dllm", {"tau": 0.9}, (None,)), ("left-to-right", {}, (None,)),
    ]  # fmt: skip
    assert varied(["rho=3,6", "EntropyBound.gamma=1"]) == {"rho": (3, 6), "EntropyBound.gamma": (1,)}
    both = entries({n: METHODS[n] for n in ("sacm", "sacm-support")}, (0.5,), {"rho": (3, 6), "eps": (0.1, 0.3)})
    assert [dict(e.changes) for e in both] == [{}, *({"rho": r, "eps": e} for r in (3, 6) for e in (0.1, 0.3))]
    with pytest.raises(UserError, match="none of these methods has a setting tau"):
        entries({"sacm": METHODS["sacm"]}, (0.5,), {"tau": (1,)})


def test_cells_are_in_proportion_and_shared_with_the_papers_tables():
    cells = {(c.run.task, c.run.method): c.run for c in FRONTS["support"].cells(96)}
    assert cells["cups", "semi-ar"].strategy.block == 12 and cells["compass", "semi-ar"].strategy.block == 24
    main = {c.run for c in named("main")[0].cells(96)}
    assert {run for (_, name), run in cells.items() if name == "sacm"} <= main
    steps = [c.run.steps for c in FRONTS["pareto"].cells(96) if (c.run.task, c.run.method) == ("cups", "sacm")]
    assert steps == [12, 24, None, 96]  # T = L / 2 is the method's own pace
    full = {c.run.task: c.run for c in FRONTS["support"].cells(None) if c.run.method == "semi-ar"}
    assert set(full) == {"gsm8k", "math500", "strategyqa"} and full["gsm8k"].strategy.block == 32


def test_the_front():
    made = [
        Reached(n, n, f, m, m, m)
        for n, f, m in (("a", 48, 90), ("b", 24, 80), ("c", 48, 85), ("d", 96, 90), ("e", 24, 80))
    ]
    assert [p.label for p in leading(made)] == ["a", "b", "e"]  # d needs more forwards than a; b and e are the same


class Came(Book):
    """A book whose runs came out as the test says: right or wrong per row, by method."""

    def __init__(self, right, nfe):
        super().__init__()
        self.right, self.nfe = right, nfe

    def record(self, run):
        found = self.right[run.method]
        return {"summary": {"accuracy": sum(found) / len(found), "interval": (0, 1), "nfe": self.nfe[run.method],
                            "seconds": len(found) / 2, "rows": len(found), "eot_ratio_all": 0.25}}  # fmt: skip

    def examples(self, run):
        return [{"correct": bool(right), "nfe": self.nfe[run.method]} for right in self.right[run.method]]


def test_claims_and_rows_by_hand():
    """SACM: 20 of 40 wrong. Support: 4 wrong, so SACM makes at least twice its mistakes. Half the forwards: no less right."""
    right = {"sacm": [1] * 20 + [0] * 20, "sacm-support": [1] * 36 + [0] * 4, "sacm-support-eb": [1] * 22 + [0] * 18}
    book = Came(right, {"sacm": 48.0, "sacm-support": 48.0, "sacm-support-eb": 20.0})
    front = Front("x", "?", "", (), entries=tuple(Entry(name, METHODS[name]) for name in right), bundled=("cups",))
    cells = list(front.cells(96))
    half = Claim(SACM, fronts.SUPPORT, of="mistakes", times=2)
    verdict, words = claims.told(half, cells, book)
    assert (
        verdict == "held" and words.startswith("sacm mistakes 0.50 is 0.30 ") and "above 2 x sacm-support 0.20" in words
    )
    assert claims.told(Claim(SACM, fronts.BOUND, of="nfe", times=2), cells, book)[0] == "held"
    assert claims.told(Claim(SACM, fronts.BOUND, of="nfe", times=3), cells, book)[0] == "failed"
    assert claims.told(Claim(fronts.BOUND, SACM, ties=True), cells, book)[0] == "held"
    assert claims.told(Claim(SACM, fronts.SUPPORT, ties=True), cells, book)[0] == "failed"
    lines = rows(front, cells, book)
    assert [line["method"] for line in lines] == ["sacm-support-eb", "sacm-support", "sacm"]
    assert lines[1]["to sacm"].startswith("+40.0 [") and lines[2]["front"] == "" and "to sacm" not in lines[2]
    assert [point.forwards for point, _ in points(cells, book)] == [48.0, 48.0, 20.0]


def test_a_composition_is_held_to_its_method_alone():
    """KLASS 4 of 8 right, with SACM 6: +25; and KLASS to SACM's 8 of 8, -50."""
    right = {"sacm": [1] * 8, "klass": [1] * 4 + [0] * 4, "sacm+klass": [1] * 6 + [0] * 2}
    book = Came(right, dict.fromkeys(right, 40.0))
    zoo = FRONTS["zoo"]
    assert zoo.beside["sacm+klass"] == "klass"
    lines = {
        line["method"]: line
        for line in rows(zoo, [c for c in zoo.cells(96) if c.run.method in right and not c.source.changes], book)
    }
    assert lines["sacm+klass"]["to it without SACM"].startswith("+25.0 [") and "to sacm" not in lines["sacm+klass"]
    assert (
        lines["klass"]["to sacm"].startswith("-50.0 [")
        and lines["klass"]["EOT"] == "0.25"
        and lines["klass"]["seconds"] == "0.50"
    )


@pytest.mark.parametrize("name", FRONTS)
def test_every_cell_can_be_decoded(name):
    """What decode refuses, it refuses before a front has run for an hour."""
    for cell in FRONTS[name].cells(96):
        run = cell.run
        start = run.strategy.prepare(canvas(run.length), encode)
        check(run.strategy, run.strategy.steps(run.length, run.steps), start)


def test_a_response_of_another_length_is_held_to_sacm_of_that_length():
    """At L = 64 support is right in all rows where SACM is in half: the longer SACM, right in none, has no part in that."""

    class ByLength(Came):
        def examples(self, run):
            return [{"correct": bool(right), "nfe": 48} for right in self.right[run.method, run.length]]

        def record(self, run):
            return Came({run.method: self.right[run.method, run.length]}, {run.method: 48.0}).record(run)

    right = {
        ("sacm", 96): [0] * 40,
        ("sacm", 64): [1, 0] * 20,
        ("sacm-support", 96): [1] * 40,
        ("sacm-support", 64): [1] * 40,
    }
    entries = tuple(Entry(name, METHODS[name], length=n) for name, n in right)
    front = Front("x", "?", "", (), entries=entries, bundled=("cups",))
    lines = rows(front, list(front.cells(96)), ByLength(right, {}))
    told = {line["method"]: line.get("to sacm", "").split(" ")[0] for line in lines}
    assert sorted(told.values()) == ["", "", "+100.0", "+50.0"], told


def test_every_method_of_the_zoo_is_tuned_by_one_setting_on_tuning_rows():
    assert set(fronts.TRIED) == set(ZOO) and all(len(knobs) == 1 for knobs in fronts.TRIED.values())
    tuning = FRONTS["zoo-tuning"]
    assert {c.run.split for c in tuning.cells(96)} == {"tuning"}
    for name, changes in fronts.TUNED.items():
        for setting, value in changes.items():
            assert value in fronts.TRIED[name][setting]


def test_the_command_resumes_and_draws(tmp_path: Path, capsys):
    pytest.importorskip("matplotlib")
    words = ("pareto", "--task", "cups,stories-first", "--methods", "sacm,sacm-support", "--budgets", "1/48,1/24", "--count", "2",
             "--split", "tuning", "--out", str(tmp_path))  # fmt: skip
    out = run(capsys, *words)
    assert "sacm-support T=4" in out and (tmp_path / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert "![accuracy against forwards" in (tmp_path / "pareto.md").read_text()
    assert '<img src="pareto.png"' in (tmp_path / "pareto.html").read_text()
    assert "in 0 runs" in run(capsys, *words)
    for file in (tmp_path / "runs").rglob("*.summary.json"):
        assert json.loads(file.read_text())["rows"] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--task", "mmlu_pro", "--split", "tuning"), "mmlu_pro has no rows for choosing settings"),
        (("--task", "cups", "--methods", "fast-dllm", "--budgets", "1/2"), "none of them takes a budget"),
        (("--task", "cups", "--methods", "semi-ar", "--budgets", "1/96"), "fewer steps than there are blocks: semi-ar"),
        (("--task", "cups", "--budgets", "x"), "a budget is T as a share of L"),
        (("--task", "cups", "--vary", "rho"), "a setting is NAME=VALUE"),
        (("--task", "cups", "--methods", "sacm", "--vary", "rho=3"), "none of these methods has a setting rho"),
        (("--task", "cups", "--methods", "sacm-support", "--vary", "rho=0"), "rho is a number above 0, not 0"),
        (("--task", "cups", "--methods", "sacm-support", "--vary", "eps=2"), "eps is a number from 0 to 1, not 2"),
        (("--task", "cups", "--methods", "sacm-support", "--vary", "rho=nan"), "rho is"),
        (("--task", "cups", "--count", "0"), "--count is at least 1"),
        (("--task", "nope"), "no task 'nope'"),
    ],
)
def test_bad_input(words, says, capsys):
    assert says in refused(capsys, "pareto", *words)


def test_a_cache_is_held_to_plain_sacm_task_by_task(tmp_path: Path, capsys):
    cells = [c for c in FRONTS["near"].cells(96) if c.run.task == "cups"]
    assert [c.label for c in cells] == [
        "sacm", "sacm-support", "sacm cache='near'", "sacm finish=True cache='near'",
        "sacm-support finish=True cache='near:best=2,near=4,again=2,refresh=0'",
    ]  # fmt: skip
    assert [c.run.cache is None for c in cells] == [True, True, False, False, False]
    assert len({c.configuration for c in cells}) == 5 and cells[3].run.strategy.revise[0].n == 2  # the task's answer
    words = ("accept", "--split", "tuning", "--count", "1", "--experiments", "near", "--out", str(tmp_path))
    out = run(capsys, *words)
    tables = [line for line in out.splitlines() if line.startswith("| method")]
    assert len(tables) == 3 and all(
        task in line for task, line in zip(("stories", "cups", "compass"), tables, strict=True)
    )
    row = next(line for line in out.splitlines() if line.startswith("| sacm cache='near'"))
    work = float([cell.strip() for cell in row.split("|")][-3 if "to sacm" in tables[0] else -2])
    assert 0.05 < work < 0.5 and "robust here: at most 4 points under" in out
