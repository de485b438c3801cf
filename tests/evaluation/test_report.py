"""Reports: tables in every format, the paper's numbers beside a run's, rows that flipped."""

import csv
import io
import json

import pytest

from unmask.cli import main
from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.evaluation.metrics import summarise
from unmask.evaluation.recipe import for_task
from unmask.evaluation.report import records, table
from unmask.paper import numbers as paper
from unmask.progress import Bar
from unmask.tasks import find

LLADA = "GSAI-ML/LLaDA-8B-Instruct"


def write_run(folder, name, right, steps=128, model=LLADA, seed=0, nfe=None, task="gsm8k", changes=(), rows=10):
    """A finished run as `evaluate` leaves it: `right` of its ten rows correct."""
    strategy = repr(for_task(find(task), [name], dict(changes))[name])
    recipe = {"strategy": strategy, "length": 256, "steps": steps, "seed": seed, "model": model, "task": task, "data_sha256": "d",
              "prompts_sha256": "p"}  # fmt: skip
    found = [
        {"id": str(i), "index": i, "prompt": f"Question {i}?", "response": f"{name} says {i}\nThe answer is {i}.", "gold": str(i),
         "extracted": str(i), "rule": "anchor", "correct": i < right, "modes": {}, "nfe": nfe or steps, "tie_rate": 0.0,
         "eot_ratio": 0.1, "eot_ratio_all": 0.1, "seconds": 1.0, "early_answer": False, "answer_progress": 0.5, "group": None}
        for i in range(rows)
    ]  # fmt: skip
    record = {
        "method": name,
        "recipe_sha256": f"{name}{steps}{seed}{model}",
        "recipe": recipe,
        "summary": summarise(found, 256),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}-{steps}{seed}.json").write_text(json.dumps(record))
    (folder / f"{name}-{steps}{seed}.jsonl").write_text("".join(json.dumps(e) + "\n" for e in found))
    return folder / f"{name}-{steps}{seed}.jsonl"


def test_the_papers_tables_are_whole():
    cells = list(paper.published())
    main_rows = [c for c in cells if c.table == "tab:main_text_results"]
    assert len(main_rows) == 2 * 13 * 4
    averages = {"sacm": 53.88, "uncode": 48.80, "fast-dllm": 47.77, "top-probability": 21.11, "rainbow-padding": 49.12}
    for name, average in averages.items():  # the printed averages check the four numbers
        found = [c.accuracy for c in main_rows if c.model == "LLaDA" and c.method == name]
        assert sum(found) / 4 == pytest.approx(average, abs=0.006)
    assert sum(
        c.accuracy for c in cells if c.table == "tab:main_vl_results" and c.method == "sacm"
    ) / 2 == pytest.approx(45.67)
    assert all(c.method in METHODS for c in cells)
    assert {c.length for c in cells if c.task == "mbpp"} == {128} and {c.steps for c in cells if c.task == "mbpp"} == {
        64
    }
    sizes = {
        "gsm8k": 1319,
        "math500": 500,
        "strategyqa": 687,
        "humaneval": 164,
        "mbpp": 500,
        "chartqa": 2500,
        "mathvista": 1000,
    }
    for c in cells:  # every percentage is a count of rows: a slip of the pen would not be
        if c.task in sizes:
            count = c.accuracy * sizes[c.task] / 100
            assert abs(count - round(count)) < 0.005 * sizes[c.task] / 100 + 1e-9, c


def test_a_run_finds_its_number_in_the_paper():
    def cell(name, **changes):
        options = {"steps": 128, "length": 256, "model": LLADA, "task": "gsm8k"} | {k: changes.pop(k) for k in list(changes) if k in
                   ("steps", "length", "model", "task")}  # fmt: skip
        strategy = repr(for_task(find(options["task"]), [name], changes)[name])
        found = paper.beside({"method": name, "recipe": {**options, "strategy": strategy}})
        return found and found.accuracy

    assert cell("sacm") == 76.88 and cell("sacm", steps=32) == 57.70 and cell("sacm", length=64, steps=32) == 62.55
    assert cell("sacm", gamma=0) == 72.25 and cell("sacm", text=".", at=-60) == 73.31
    assert cell("semi-ar", block=8, steps=64) == 56.71
    assert cell("suffix-anchor") == 56.18  # the main table's, not the ablation's 49.89
    assert cell("fast-dllm", steps=256) == 72.78  # a threshold makes its own number of steps
    assert cell("sacm", model="/data/LLaDA-1.5") == 75.59
    assert cell("sacm", kappa=3) is None and cell("sacm", model="tiny") is None and cell("sacm", steps=77) is None
    assert cell("top-probability", model="quasar529/rainbow-padding-llada") == 69.37


def test_tables_in_every_format(tmp_path, capsys):
    write_run(tmp_path / "a", "sacm", 8)
    write_run(tmp_path / "a", "top-probability", 2)
    write_run(tmp_path / "b", "remdm", 5, steps=256, nfe=300)
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    main(["report", *places])
    text = capsys.readouterr().out
    assert "| sacm " in text and "76.88" in text and "3.12" in text  # 80.00 - 76.88
    assert "49.02" in text and "94.33" in text  # Wilson of 8 in 10
    assert "Accuracy against compute" in text and "Paired, on the same rows" in text
    main(["report", *places, "--format", "csv"])
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(r["method"], r["T"], r["NFE"], r["accuracy"]) for r in rows] == [
        ("sacm", "128", "128.0", "80.0"), ("top-probability", "128", "128.0", "20.0"), ("remdm", "256", "300.0", "50.0"),
    ]  # fmt: skip
    main(["report", *places, "--format", "json"])
    whole = json.loads(capsys.readouterr().out)
    assert whole["runs"][0]["distance"] == 3.12 and whole["pairs"][0]["difference"] == 60.0
    assert [r["best so far"] for r in whole["compute"]] == [True, False, False]
    main(["report", *places, "--format", "latex"])
    text = capsys.readouterr().out
    assert text.startswith(r"\begin{tabular}") and r"\\" in text and text.count("&") > 30


def test_seeds_become_one_line(tmp_path):
    write_run(tmp_path, "uniform", 4, seed=0)
    write_run(tmp_path, "uniform", 6, seed=1)
    (record,) = records([str(tmp_path)])
    assert record["summary"]["accuracy"] == 0.5 and record["summary"]["seeds"] == 2
    assert record["summary"]["spread"] == pytest.approx(0.1414, abs=1e-4)
    assert "14.14" in table([record], "markdown")


def test_runs_from_before_work_was_counted(tmp_path):
    old = write_run(tmp_path, "uniform", 5, seed=0).with_suffix(".json")
    record = json.loads(old.read_text())
    del record["summary"]["work"]
    old.write_text(json.dumps(record))
    assert "work" not in table(records([str(tmp_path)]), "markdown")
    new = write_run(tmp_path, "uniform", 7, seed=1).with_suffix(".json")
    record = json.loads(new.read_text())
    record["summary"]["work"] = 0.25
    new.write_text(json.dumps(record))
    for first in (old, new):  # in whatever order they are found
        (found,) = records([str(first), str(old), str(new)])
        assert found["summary"]["accuracy"] == 0.6
    assert "0.25" in table(records([str(new)]), "markdown")


def test_a_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    write_run(tmp_path, "sacm", 8)
    write_run(tmp_path, "sacm", 6, steps=32)
    main(["report", str(tmp_path), "-o", str(tmp_path / "report.png")])
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    main(["report", str(tmp_path), "-o", str(tmp_path / "report.tex")])
    assert (tmp_path / "report.tex").read_text().startswith(r"\begin{tabular}")
    capsys.readouterr()


def test_diff_shows_what_flipped(tmp_path, capsys):
    a, b = write_run(tmp_path, "sacm", 4), write_run(tmp_path, "top-probability", 2)
    main(["diff", str(a), str(b), "--width", "80"])
    text = capsys.readouterr().out
    assert "10 rows in common, 2 flipped: 2 right in a alone, 0 in b alone; a - b = +20.00 points" in text
    assert "=== 2  gold: 2" in text and "=== 3" in text and "=== 4" not in text
    assert (
        "RIGHT  '2' by anchor" in text
        and "WRONG  '2' by anchor" in text
        and "sacm says 2" in text
        and "top-probability says 2" in text
    )
    assert max(map(len, text.splitlines())) <= 80 or str(tmp_path) in max(text.splitlines(), key=len)
    main(["diff", str(tmp_path), "--methods", "sacm,top-probability", "--json"])
    flips = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f["id"] for f in flips] == ["2", "3"] and flips[0]["a"]["correct"] and not flips[0]["b"]["correct"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["report", "nowhere"], "there is no run nowhere; `unmask eval --out nowhere ...` makes one"),
        (["report", "{run}", "-o", "x.doc"], "a plot ends in .png, .svg or .pdf"),
        (["diff", "{run}"], "diff takes two runs"),
        (["diff", "{run}", "{run}"], "holds 2 runs (sacm, uniform): name one .jsonl file, or --methods A,B"),
        (["diff", "{run}", "{run}", "--methods", "sacm,remdm"], "has no finished run of remdm"),
    ],
)
def test_bad_input_is_one_line(tmp_path, capsys, command, message):
    write_run(tmp_path, "sacm", 4)
    write_run(tmp_path, "uniform", 4)
    with pytest.raises(SystemExit) as stopped:
        main([word.replace("{run}", str(tmp_path)) for word in command])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1


def test_unfinished_and_broken_records(tmp_path):
    (tmp_path / "sacm-1.json").write_text(json.dumps({"recipe": {}}))
    with pytest.raises(UserError, match="no finished run"):
        records([str(tmp_path)])
    (tmp_path / "sacm-1.json").write_text("{")
    with pytest.raises(UserError, match=r"sacm-1\.json: not JSON"):
        records([str(tmp_path)])


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_bar_is_for_terminals():
    for stream, drawn in ((io.StringIO(), False), (Terminal(), True)):
        with Bar(stream) as bar:
            bar.accuracy("sacm", 0, 4, 0)
            bar.accuracy("sacm", 2, 4, 1)
        assert ("accuracy 50.0 %" in stream.getvalue()) is drawn
