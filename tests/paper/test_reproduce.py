"""The paper's experiments as data, their small versions, and `unmask reproduce` end to end on a small model of random weights."""

import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from support import checkpoints

import unmask
from unmask.cli import main
from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.evaluation.evaluate import Planned
from unmask.evaluation.recipe import Options, recipe
from unmask.paper import claims, fronts, page, plan
from unmask.paper import experiments as tables
from unmask.paper import numbers as paper
from unmask.paper.experiments import EXPERIMENTS, Claim, Experiment, proportional
from unmask.paper.run import Tally, reproduce
from unmask.tasks import Loaded, Rows, find

CLI = [sys.executable, "-c", "from unmask.cli import main; main()"]
LABELS = {
    "fig:confidence_statistics",
    "tab:efficiency",
    "tab:selected_hyperparameters",
    "tab:hyperparameter_sensitivity",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that says its responses are short, so that it is run in small; its rainbow sibling lies beside it."""
    where = tmp_path_factory.mktemp("model")
    checkpoints.llada(where / "small-rainbow", response_length=32, seed=1)
    return checkpoints.llada(where / "small", response_length=32)


@pytest.fixture
def few(monkeypatch):
    """Two small experiments that share a run, and one of every other kind; anchors 20 from the end fit 32 slots."""
    three = tables._three("top-probability", "suffix-anchor", "sacm")
    found = (
        replace(EXPERIMENTS["progress"], places=tables.ONE),
        Experiment("pair", "A pair?", "tab:main_text_results", three[:1], three[1:], (Claim(tables.SACM, tables.PLAIN),)),
        replace(EXPERIMENTS["early-histogram"]), EXPERIMENTS["efficiency"], EXPERIMENTS["vision"], EXPERIMENTS["main-1.5"],
    )  # fmt: skip
    monkeypatch.setattr(fronts, "EXPERIMENTS", {e.name: e for e in found})
    return found


def planned(run, count):
    """A run of so many rows that nobody will decode."""
    rows = Rows(Loaded([{}] * count, "", "", ""))
    return Planned(run.method, find(run.task), run.strategy, rows, Options(), 0, Path(), {})


def runs(out):
    return sorted(p.name for p in Path(out).rglob("*.jsonl"))


# ---------------------------------------------------------------- records


def test_every_published_number_is_answered_by_one_experiment():
    answered = Counter(str(cell) for e in EXPERIMENTS.values() for cell in e.answers)
    assert all(answered[str(cell)] == 1 for cell in paper.published())
    assert all(answered[str(cell)] == 1 for cell in paper.sensitivity()) and len(list(paper.sensitivity())) == 16 + 2
    others = [cell for e in EXPERIMENTS.values() for cell in e.answers if math.isnan(cell.accuracy)]
    assert len(others) == 2 + 36 * 5  # throughput has numbers of its own; the points of the sweep have none
    assert set(paper.EFFICIENCY) == {cell.method for cell in EXPERIMENTS["efficiency"].answers}


def test_records_name_what_exists():
    labels = {cell.table for cell in paper.published()} | LABELS
    assert len(EXPERIMENTS) == 15
    for e in EXPERIMENTS.values():
        assert (
            e.label in labels
            and e.asks.endswith(("?", ")"))
            and e.kind in ("accuracy", "efficiency", "sweep", "histogram")
        )
        cells = [*e.cells(), *e.cells(96)]
        for cell in cells:
            assert (
                cell.run.method in METHODS and find(cell.run.task).name == cell.run.task and cell.run.model in plan.HUB
            )
        for claim in e.claims:  # every claim has somebody to be about
            for side in (claim.ours, claim.theirs):
                assert any(tables.matches(cell.source, side) for cell in cells), (e.name, side)
    for name in ("sensitivity", "hyper-parameters"):  # settings are never chosen or varied on test rows
        assert {c.run.split for c in [*EXPERIMENTS[name].cells(), *EXPERIMENTS[name].cells(96)]} == {"tuning"}
    assert {c.run.count for c in EXPERIMENTS["sensitivity"].cells()} == {256}
    assert {c.run.count for c in EXPERIMENTS["hyper-parameters"].cells()} == {128}


def test_in_full_the_budgets_are_the_papers():
    sacm = {(c.run.length, c.run.steps) for c in EXPERIMENTS["parallelism"].cells() if c.run.method == "sacm"}
    assert sacm == {(256, 32), (256, 64), (256, None), (256, 256)}  # 128 is the method's own pace
    assert {c.run.length for c in EXPERIMENTS["main"].cells() if c.run.task == "strategyqa"} == {128}
    (remdm,) = [c.run for c in EXPERIMENTS["main"].cells() if (c.run.method, c.run.task) == ("remdm", "gsm8k")]
    assert remdm.steps is None  # it makes its own number of forwards


def test_in_small_everything_is_in_proportion():
    """Worked by hand: 96 of 256 is 3 of 8."""
    assert [proportional(n, 96, 256) for n in (8, 16, 32, 64, 128, 256)] == [3, 6, 12, 24, 48, 96]
    assert [proportional(n, 96, 256) for n in (20, 30, 40, 50, 60)] == [8, 11, 15, 19, 23]  # 7.5 11.25 15 18.75 22.5
    cells = list(EXPERIMENTS["parallelism"].cells(96))
    assert {c.run.steps or 48 for c in cells} == {12, 24, 48, 96} and {c.run.length for c in cells} == {96}
    # a block takes a forward: 96 slots are 32, 16, 8, 4 blocks, and no more than T of them are run
    blocks = {(c.run.steps or 48, c.run.strategy.block) for c in cells if c.run.method == "semi-ar"}
    assert blocks == {(t, b) for t in (12, 24, 48, 96) for b in (3, 6, 12, 24)} - {(12, 3), (12, 6), (24, 3)}
    assert all(c.run.strategy.bound(96, c.run.steps) == c.run.steps for c in cells if c.run.steps)
    assert {c.label for c in EXPERIMENTS["parallelism"].cells(96, fit=False)} == {
        f"semi-ar block={b} T={t}" for t, b in ((12, 3), (12, 6), (24, 3))
    }
    assert not [c for e in EXPERIMENTS.values() for c in e.cells(fit=False)]
    semi = {c.run.task: c.run.strategy.block for c in EXPERIMENTS["main"].cells(96) if c.run.method == "semi-ar"}
    assert semi == {"cups": 12, "stories": 12, "compass": 24}  # 32 of StrategyQA's 128 is a quarter
    assert {(c.run.length, c.run.steps) for c in EXPERIMENTS["length"].cells(96)} == {
        (n, None) for n in (24, 48, 72, 84, 96)
    }
    places = {c.changes["at"] for c in EXPERIMENTS["positions"].cells(96) if "at" in c.changes}
    assert places == {-8, -11, -15, -19, -23}
    assert {c.changes.get("text") for c in EXPERIMENTS["anchors"].cells(96)} == {*paper.ANCHORS, None} and len(
        paper.ANCHORS
    ) == 6
    assert {c.run.task for c in EXPERIMENTS["main"].cells(96)} == {"stories", "cups", "compass"}
    (sacm,) = [c.run for c in EXPERIMENTS["main"].cells(96) if (c.run.method, c.run.task) == ("sacm", "cups")]
    assert sacm.strategy.anchors[0].at == -20 and sacm.count == 50  # the default place and (kappa, beta, gamma) stay
    assert not list(EXPERIMENTS["vision"].cells(96)) and not list(EXPERIMENTS["code"].cells(96))
    assert {c.run.count for c in EXPERIMENTS["main"].cells(96, 7)} == {7}


def test_the_papers_number_stands_beside_its_task_alone():
    for cell in EXPERIMENTS["progress"].cells(96):
        assert cell.beside == (cell.run.task == "cups")
    for cell in EXPERIMENTS["length"].cells(96):
        assert cell.beside == (cell.run.length in (24, 48, 96))
    by = {c.run.method: tables.eot_ratio(c) for c in EXPERIMENTS["eot-ratio"].cells()}
    assert by == {"top-probability": 0.66, "suffix-anchor": 0.05, "sacm": 0.05}


def test_tables_share_their_runs():
    def of(name):
        return {c.run for c in EXPERIMENTS[name].cells(96) if c.run.model == "LLaDA"}

    assert of("eot-ratio") == of("early-histogram") and of("eot-ratio") < of("main")
    assert (
        len(of("parallelism") & of("main")) == 5
    )  # at T = L/2: uniform, both confidences, SACM, and semi-AR with its block of 12
    assert len(of("sensitivity") & of("hyper-parameters")) == 9
    assert len(of("anchors") & of("main")) == 3  # "The answer is", and no anchor
    assert len(of("top-margin") & of("main")) == 4 * 3  # top margin, and the three rows by top probability
    assert {c.source.model for c in EXPERIMENTS["anchors"].cells() if c.run.method == "top-probability"} == {
        "LLaDA",
        "LLaDA-1.5",
    }


# ---------------------------------------------------------------- which weights


def test_checkpoints():
    assert plan.checkpoint("LLaDA", "sacm", ()) == "GSAI-ML/LLaDA-8B-Instruct"
    assert plan.checkpoint("LLaDA", "rainbow-padding", ()) == "quasar529/rainbow-padding-llada"
    assert plan.checkpoint("LLaDA", "rainbow-padding", ("tiny",)) == "tiny-rainbow"
    assert plan.checkpoint("LLaDA-1.5", "sacm", ("/data/LLaDA-8B-Instruct", "/data/LLaDA-1.5")) == "/data/LLaDA-1.5"
    assert plan.checkpoint("LLaDA", "sacm", ("me/mine",)) == "me/mine"  # another model at the paper's budgets
    for model, method, given, why in [
        ("LLaDA-1.5", "rainbow-padding", (), "no rainbow-padded LLaDA-1.5 is published"),
        ("LLaDA-1.5", "sacm", ("tiny",), "tiny stands in for LLaDA alone"),
        ("LaViDa", "sacm", ("/data/LLaDA-1.5",), "weights of jacklishufan/lavida-llada-v1.0-instruct are missing"),
    ]:
        with pytest.raises(plan.Absent, match=why):
            plan.checkpoint(model, method, given)
    assert plan.small_length(("tiny",)) == 96 and plan.small_length(()) is None
    with pytest.raises(UserError, match="reproduced on its own"):
        plan.small_length(("tiny", "/data/LLaDA-1.5"))
    cell = next(EXPERIMENTS["main"].cells())
    assert plan.same_model(cell, "/data/LLaDA-8B-Instruct", {}) and not plan.same_model(cell, "me/mine", {})
    assert not plan.same_model(cell, "/data/LLaDA-8B-Instruct", {"quantize": "int8"})


# ---------------------------------------------------------------- end to end


def test_list(capsys):
    main(["reproduce", "list", "--model", "tiny"])
    lines = {line.split("|")[1].strip(): line for line in capsys.readouterr().out.splitlines()}
    assert set(EXPERIMENTS) <= set(lines)
    assert re.search(rf"tiny +\| cups, stories, compass +\| 36 +\| {2 * 2208}", lines["main"])
    assert "not run here" in lines["vision"] and "not run here" in lines["code"]
    main(["reproduce", "list"])
    text = capsys.readouterr().out
    # 1,319 rows in batches of 8 are 165; the two ways of the table take 128 steps
    assert re.search(rf"progress .* LLaDA .* gsm8k .*\| 2 +\| {2 * 128 * 165}", text)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["parallelizm"], "there is no experiment 'parallelizm'; did you mean 'parallelism'?"),
        (["xyzzy"], "there is no experiment 'xyzzy'; `unmask reproduce list` lists them"),
        (["main", "--limit", "0"], "--limit is at least 1, not 0"),
        (["main", "--model", "./nothing"], "there is no checkpoint './nothing'"),
        (["list", "--model", "~/nothing"], "there is no checkpoint '~/nothing'"),
        (["progress", "--model", "tiny", "--dtype", "foo"], "there is no dtype 'foo'"),
        (["progress", "--model", "tiny", "--device", "cuda:9"], "this torch finds no CUDA device"),
        (["progress", "--model", "tiny", "--frequencies", "nothing.pt"], "nothing.pt"),
        (
            ["progress", "--model", "tiny", "--workers", "2", "--device", "cuda:1"],
            "each worker has a device of its own",
        ),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as stopped:
        main(["reproduce", *words, "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert stopped.value.code == 2 and message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_a_plan_decodes_nothing(few, folder, tmp_path, capsys):
    main(["reproduce", "all", "--model", str(folder), "--limit", "2", "--out", str(tmp_path / "out"), "--plan"])
    text = capsys.readouterr().out
    assert re.search(r"progress +\| 2 +\| 2 +\| 64 ", text)  # gamma 0 and 0.85, two batches of 16 forwards each
    assert re.search(r"pair +\| 3 +\| 2 +\| 64 ", text)  # SACM was counted above
    assert re.search(r"vision +\| 0 +\| 0 +\| 0 .*cannot see pictures", text) and "stands in for LLaDA alone" in text
    assert re.search(r"efficiency +\| 2 +\| 2 +\| 64 ", text)  # two samples, one at a time, by two methods
    assert "for 192 forwards at most, in 6 runs" in text and not (tmp_path / "out").exists()


def test_runs_once_resumes_and_writes_the_page(few, folder, tmp_path, capsys, monkeypatch):
    command = ["reproduce", "all", "--model", f"{folder}/", "--limit", "3", "--out", str(tmp_path)]
    main(command)
    out = capsys.readouterr()
    assert len(runs(tmp_path)) == 4 and out.err.count(" rows, ") == 4
    text = (tmp_path / "results.md").read_text()
    assert f"`unmask reproduce all --model {folder}/ --limit 3`" in text
    assert "4 runs, 12 responses" in text and "torch" in text and "sha256" in text
    assert "L = 32 stands for 256" in text and "difference to it is taken" in text and "| difference" not in text
    before = {p: p.read_bytes() for p in tmp_path.rglob("*-*.json*")}
    monkeypatch.setattr("unmask.evaluation.evaluate.generations", lambda *_, **__: pytest.fail("decoded again"))
    monkeypatch.setattr(plan, "timed", lambda *_: (1e-6, 10.0))
    main(command)
    assert "in 0 runs" in capsys.readouterr().out
    assert before == {p: p.read_bytes() for p in tmp_path.rglob("*-*.json*")}

    summaries = {(r["recipe"]["strategy"], r["recipe"]["task"]): r["summary"] for p in tmp_path.rglob("*-*.json")
                 if "recipe" in (r := json.loads(p.read_text()))}  # fmt: skip
    for e in few[:2]:  # every number of the page is one of a run's own record
        part = text.split(f"## {e.name}\n")[1].split("\n## ")[0]
        for cell in e.cells(32, 3):
            summary = summaries[repr(cell.run.strategy), cell.run.task]
            wanted = (
                rf"{cell.run.method} +\|.* {100 * summary['accuracy']:.2f} +\| {100 * summary['interval'][0]:.1f} to"
            )
            assert re.search(wanted, part), (cell.label, part)
    assert "76.88" in text and "72.25" in text  # the paper's beside ours
    bins = [
        line for line in text.split("## early-histogram")[1].split("## ")[0].splitlines() if re.match(r"\| \d", line)
    ]
    assert len(bins) == 32
    for column in (3, 4, 5):  # each method's shares are a whole
        assert sum(float(line.split("|")[column]) for line in bins) == pytest.approx(100, abs=2)
    assert "SACM's throughput is" in text and "taking turns, on cpu (" in text and "(paper: 99.6 %" in text
    page_ = (tmp_path / "results.html").read_text()
    assert page_.startswith("<!doctype html>") and page_.count("<table>") == len(re.findall(r"^\|-", text, re.M))
    assert '<h2 id="progress">' in page_ and "76.88" in page_


def test_after_a_kill_the_same_command_goes_on(folder, tmp_path):
    command = [
        *CLI,
        "reproduce",
        "progress",
        "--model",
        str(folder),
        "--limit",
        "4",
        "--batch",
        "2",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 600  # of a busy machine
    while len(runs(tmp_path)) < 2 and time.time() < deadline and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = {
        p: p.stat().st_mtime_ns
        for p in tmp_path.rglob("*.json")
        if "recipe" in (r := json.loads(p.read_text())) and "summary" in r
    }
    assert kept and not (tmp_path / "results-progress.md").exists()
    subprocess.run(command, check=True, capture_output=True)
    assert len(runs(tmp_path)) == 6 and all(len(p.read_text().splitlines()) == 4 for p in tmp_path.rglob("*.jsonl"))
    assert all(p.stat().st_mtime_ns == when for p, when in kept.items())  # what was finished was left alone
    assert "6 runs, 24 responses" in (tmp_path / "results-progress.md").read_text()
    assert not (tmp_path / "results.md").exists()  # that page is of all experiments


def numbers(row):
    return [cell.strip() for cell in row.split("|")[1:-1] if re.fullmatch(r"[+-]?\d+\.\d+( to .*)?", cell.strip())]


def test_what_is_absent_is_said_and_the_rest_goes_on(folder, tmp_path, capsys):
    """A checkpoint without a frequency table: UNCODE says so. LLaDA's weights and data are not here: the page has no number of ours."""
    main(["reproduce", "main", "--model", str(folder), "--limit", "1", "--out", str(tmp_path / "a")])
    text = (tmp_path / "a" / "results-main.md").read_text()
    assert "UNCODE needs a token frequency table" in text and len(runs(tmp_path / "a")) < 36
    for row in (line for line in text.splitlines() if line.startswith("|") and "not run here" in line):
        assert len(numbers(row)) == 1  # the paper's alone
    assert any(
        "rainbow-padding" in line and "not run here" not in line for line in text.splitlines() if line.startswith("|")
    )
    assert "mmlu_pro: no bundled task stands in its place" in text
    capsys.readouterr()

    main(["reproduce", "all", "--out", str(tmp_path / "b")])
    out = capsys.readouterr().out
    text = (tmp_path / "b" / "results.md").read_text()
    assert (
        "weights of GSAI-ML/LLaDA-8B-Instruct are missing" in out
        and "0 runs, 0 responses" in text
        and not runs(tmp_path / "b")
    )
    assert "Held" not in text and "difference |" not in text and "95 %  " not in text
    cells = [cell for e in EXPERIMENTS.values() for cell in e.cells() if e.kind == "accuracy"]
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("|") and "not run here" in line and "average of" not in line
    ]
    assert len(rows) == len(cells) + 2 + 5  # and two of efficiency, five tasks of the sweep
    published = {f"{c.source.accuracy:.2f}" for c in cells} | {
        f"{x:.2f}" for pair in paper.EFFICIENCY.values() for x in pair
    }
    ratios = {f"{r:.2f}" for c in cells if (r := tables.eot_ratio(c)) is not None}
    assert all(set(numbers(row)) <= published | ratios for row in rows)
    # the paper's averages of SACM: main text, vision, code, as it prints them
    averages = [
        numbers(line) for line in text.splitlines() if re.match(r"\| (LLaDA +\| )?average of \d +\| sacm ", line)
    ]
    assert [f"{sum(f) / len(f):.2f}" for f in ((76.88, 29.0, 70.45, 39.19), (75.59, 33.4, 70.31, 39.76), (45.3, 46.04))] == [
        average for (average,) in averages[:3]]  # fmt: skip


def test_absent_data(folder, tmp_path, capsys):
    """A model of the paper's kind, here under its name, and no GSM8K: said, with how to get it."""
    model = checkpoints.llada(tmp_path / "LLaDA-8B-Instruct")
    (tmp_path / "data").mkdir()
    main(
        [
            "reproduce",
            "progress",
            "--model",
            str(model),
            "--data",
            str(tmp_path / "data"),
            "--out",
            str(tmp_path / "out"),
        ]
    )
    text = (tmp_path / "out" / "results-progress.md").read_text()
    assert "data of gsm8k missing" in text and "pass --data" in text and not runs(tmp_path)
    rows = [{"question": f"What is {i} + 1?", "answer": f"#### {i + 1}"} for i in range(3)]
    (tmp_path / "data" / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(
        [
            "reproduce",
            "progress",
            "--model",
            str(model),
            "--data",
            str(tmp_path / "data"),
            "--limit",
            "2",
            "--out",
            str(tmp_path / "out"),
        ]
    )
    text = (tmp_path / "out" / "results-progress.md").read_text()
    row = next(line for line in text.splitlines() if "gamma 0" in line)
    ours, published, gap = (float(row.split("|")[i]) for i in (8, 10, 11))
    assert published == 72.25 and gap == pytest.approx(
        ours - published
    )  # the paper's model by name, at its budget: L 256, T 128
    assert re.search(r"\| 256 +\| 128 ", row) and "Only 2 rows a task were run" in text
    capsys.readouterr()


def test_workers_need_no_weights_here(few, folder, tmp_path, capsys, monkeypatch):
    """The plan loads none, and the files are those of one process."""
    pytest.importorskip("ray")
    monkeypatch.setattr(plan.Shelf, "__call__", lambda *_: pytest.fail("loaded here"))
    monkeypatch.chdir(folder.parent)
    command = ["reproduce", "pair", "--model", "./small", "--limit", "2", "--out", str(tmp_path), "--workers", "1"]
    main(command)
    out = capsys.readouterr()
    assert "\n96 forwards at most, in 3 runs" in out.out  # and no time: none was measured
    assert len(runs(tmp_path)) == 3 and out.err.count(" % (2 rows") == 3
    assert "1 workers with 1 threads each" in (tmp_path / "results-pair.md").read_text()
    monkeypatch.setattr(plan.Shelf, "__call__", lambda _, name: unmask.load(name))
    main([*command[:-2], "--plan"])
    assert "in 0 runs" in capsys.readouterr().out  # the same recipes


def test_a_recipe_is_made_once(few, folder, tmp_path, monkeypatch):
    """The plan's recipe is the run's: it names the files, and nothing is decoded under another."""
    from unmask.evaluation import evaluate

    made = []
    monkeypatch.setattr(evaluate, "recipe", lambda *given: made.append(recipe(*given)) or made[-1])
    setting, shelf = plan.Setting((str(folder),), tmp_path, limit=1), plan.Shelf({})
    book = plan.planned(few[1:2], setting, shelf)
    reproduce(few[1:2], book, setting, shelf)
    assert len(made) == len(book.jobs) == 3
    for run, job in book.jobs.items():
        assert book.record(run)["recipe"] == json.loads(json.dumps(job.planned.recipe))


def test_workers_plan_with_the_device_they_get(few, folder, tmp_path, monkeypatch):
    """A cluster may have GPUs where the driver has none: its device decides the dtype, which is part of the recipe."""
    asked = []
    monkeypatch.setattr(plan, "default_device", lambda address: asked.append(address) or "cuda")
    setting = plan.Setting((str(folder),), tmp_path, limit=1, workers=1, ray_address="10.0.0.1:6379")
    book = plan.planned(few[1:2], setting, plan.Shelf({}))
    assert {job.device for job in book.jobs.values()} == {"cuda"} and asked == ["10.0.0.1:6379"]
    assert {job.planned.recipe["dtype"] for job in book.jobs.values()} == {"torch.float32"}  # "auto": the file's own


def test_weights_may_be_gone_when_their_turn_comes(few, folder, tmp_path):
    setting = plan.Setting((str(folder),), tmp_path, limit=2)
    book = plan.planned(few[1:4], setting, plan.Shelf({}))

    def gone(name):
        raise plan.Absent("gone")

    reproduce(few[1:4], book, setting, gone)
    assert {book.absent[job.run] for job in book.missing} == {"gone"} and book.untimed == {"efficiency": "gone"}
    assert "not run here: gone" in page.as_markdown(page.blocks(few[1:4], book, setting, "x"))


# ---------------------------------------------------------------- what held


def test_a_clause_by_hand():
    gap = claims.Gap(0.713, 0.593, 0.12, 0.081, 0.159)
    assert gap.told("sacm", "suffix-anchor", "") == "sacm 71.3 is 12.0 [8.1, 15.9] points above suffix-anchor 59.3"
    under = claims.Gap(0.5, 0.6, -0.1, -0.2, 0.05)
    assert under.told("a", "b", "") == "a 50.0 is 10.0 [-5.0, 20.0] points under b 60.0"
    assert (
        claims.Gap(0.87, 0.16, 0.71, 0.7, 0.72).told("a", "b", "EOT ratio ")
        == "a EOT ratio 0.87 is 0.71 [0.70, 0.72] above b 0.16"
    )
    assert (
        claims.Gap(0.0, 0.5, -0.5, -1.0, 0.0).told("a", "b", "").endswith("50.0 [0.0, 100.0] points under b 50.0")
    )  # no -0.0
    mean = claims.Gap.between([[1.0, 0.0, 2.0]], [[0.0, 0.0, 0.0]])
    assert mean.difference == 1 and mean.low == pytest.approx(1 - 1.96 / math.sqrt(3), abs=1e-3)  # the spread is 1
    # two tasks count alike, however many rows they have: (1 + 0) / 2; half the reach of the first, the second has none
    two = claims.Gap.between([[1.0, 0.0, 2.0], [1.0] * 50], [[0.0, 0.0, 0.0], [1.0] * 50])
    assert two.difference == 0.5 and two.low == pytest.approx(0.5 - 1.96 / math.sqrt(3) / 2, abs=1e-3)


def test_chance_by_hand():
    assert claims.chance([[1] * 4 + [0] * 56], [[0] * 60]) == pytest.approx(0.125)  # McNemar: 2 / 2^4
    assert claims.chance([[1, 0], [1, 0]], [[1, 0], [1, 0]]) == 1
    # three and two rows, all of them right by one side alone: 2 / 2^5 if the tasks weigh the same a row
    assert claims.chance([[1] * 3 + [0] * 7, [1] * 2 + [0] * 8], [[0] * 10, [0] * 10]) == pytest.approx(
        1 / 16, abs=0.003
    )
    # a large task without a difference does not drown a small one
    large = ([1, 0] * 500, [0, 1] * 500)
    assert (
        claims.chance([[1] * 20, large[0]], [[0] * 20, large[1]]) < 0.001 and claims.chance([large[0]], [large[1]]) == 1
    )


class Made:
    """A book whose runs are written down: right answers by label."""

    def __init__(self, right):
        self.right = right

    def record(self, run):
        return {"summary": {}} if (run.method, run.strategy.block) in self.right else None

    def examples(self, run):
        return [{"correct": bool(x)} for x in self.right[run.method, run.strategy.block]]


def test_verdicts():
    cells = [
        c for c in EXPERIMENTS["parallelism"].cells(96) if c.source.steps == 32 and c.run.method in ("sacm", "semi-ar")
    ]
    claim = Claim({"method": "sacm", "steps": 32}, {"method": "semi-ar", "steps": 32})
    blocks = {("semi-ar", 12): [0] * 20}
    verdict, clause = claims.told(
        claim, cells, Made({("sacm", None): [1] * 20, **blocks, ("semi-ar", 24): [1] * 5 + [0] * 15})
    )
    assert verdict == "held" and clause.startswith("sacm T=12 100.0 is 75.0 [")
    assert "above semi-ar block=24 T=12 25.0, the strongest of 2, n = 20, p < 0.001" in clause
    worse = Made({("sacm", None): [0] * 20, ("semi-ar", 24): [1] * 20})
    assert claims.told(claim, cells, worse)[0] == "failed"
    assert claims.told(claim, cells, Made({("sacm", None): [1, 0] * 10, ("semi-ar", 24): [0, 1] * 10}))[0] == "open"
    assert claims.told(claim, cells, Made({("sacm", None): [1]})) == ("absent", "semi-ar block=12 T=12 was not run")
    # an interval above 0 is not enough: 4 rows of 60 against none are p = 0.125; nor are 19 rows, however clear
    verdict, clause = claims.told(claim, cells, Made({("sacm", None): [1] * 4 + [0] * 56, ("semi-ar", 24): [0] * 60}))
    assert verdict == "open" and "[0.3, 13.0] points above" in clause and clause.endswith("n = 60, p = 0.125")
    assert claims.told(claim, cells, Made({("sacm", None): [1] * 19, ("semi-ar", 24): [0] * 19}))[0] == "open"
    assert (
        claims.told(replace(claim, within=10), cells, Made({("sacm", None): [1] * 19, ("semi-ar", 24): [1] * 19}))[0]
        == "open"
    )
    near = replace(claim, within=10)
    assert claims.told(near, cells, Made({("sacm", None): [1] * 39 + [0], ("semi-ar", 24): [1] * 40}))[0] == "held"
    assert claims.told(replace(claim, ours={"method": "uncode"}), cells, worse) is None
    text = claims.sentence((claim, near), cells, worse)
    assert text.startswith("**Did not hold:** sacm T=12 0.0 is 100.0 [100.0, 100.0] points under semi-ar block=24")


class Tasks(Made):
    """Right answers by method and task."""

    def record(self, run):
        if (run.method, run.task) not in self.right:
            return None
        right = self.right[run.method, run.task]
        return {
            "summary": {
                "accuracy": sum(right) / len(right),
                "rows": len(right),
                "interval": [0.0, 1.0],
                "eot_ratio": 0.1,
                "nfe": 48,
            }
        }

    def examples(self, run):
        return [{"correct": bool(x)} for x in self.right[run.method, run.task]]


def test_every_task_counts_alike():
    """SACM is above on two tasks of 30 rows and under on one of 300: pooled it would be under."""
    cells = [c for c in EXPERIMENTS["main"].cells(96) if c.run.method in ("sacm", "top-probability")]
    few, many = {"cups", "compass"}, [1] * 30 + [0] * 270
    book = Tasks({("sacm", t): [1] * 30 for t in few} | {("top-probability", t): [0] * 30 for t in few}
                 | {("sacm", "stories"): [0] * 300, ("top-probability", "stories"): many})  # fmt: skip
    verdict, clause = claims.told(Claim(tables.SACM, tables.PLAIN), cells, book)
    # (1 + 1 - 0.1) / 3 = 0.633; the reach is that of stories alone, 1.96 * 0.3005 / sqrt(300) / 3 = 0.011
    assert (
        verdict == "held"
        and clause
        == "sacm 66.7 is 63.3 [62.2, 64.5] points above top-probability 3.3, mean over 3 tasks, n = 360, p < 0.001"
    )
    book.jobs = {c.run: plan.Job(c.run, "tiny", planned(c.run, 0), 1, 0.0, "cpu") for c in cells}
    _, sacm = (row for row in page.accuracy_rows(cells, book) if row["task"] == "average of 3")
    assert sacm["method"] == "sacm" and sacm["ours"] == pytest.approx(200 / 3) and sacm["n"] == 360
    assert sacm["paper"] == pytest.approx((76.88 + 29.00 + 70.45) / 3) and "difference" not in sacm
    # the tasks' own distances to their limits: below 1, 1 and 0, above 0, 0 and 1
    assert sacm["95 %"] == f"{100 * (2 - math.sqrt(2)) / 3:.1f} to 100.0"
    del book.right["sacm", "compass"]
    assert [row["ours"] for row in page.accuracy_rows(cells, book)][-1] == "not run here"


def test_near_the_anchor_by_hand():
    near = claims.FIGURES["near_anchor"][1]
    order = [5, 5, *[9] * 26, -1, 0, 0, 3]  # 32 slots, the anchor at 28; 20 steps, so the first 3 count
    assert near({"order": order, "nfe": 20}) == 1.0
    order[0] = 1  # far away
    assert near({"order": order, "nfe": 20}) == pytest.approx(2 / 3)


def test_the_sweep_chooses_by_rows_right_then_by_nearness():
    cells = list(EXPERIMENTS["hyper-parameters"].cells(96))

    class Swept:
        def record(self, run):
            return {"summary": {}}

        def examples(self, run):
            rule = run.strategy.modifiers[0]
            best = (rule.kappa, rule.beta) == (
                12,
                1.5,
            )  # three points, one a gamma, tie; the paper's gamma is nearest itself
            return [{"correct": best or i < 2, "nfe": 48} for i in range(4)]

    (_, (row,)), (_, text) = page.sweep_blocks(cells, Swept())
    assert row["ours"] == "kappa 12, beta 1.5, gamma 0.85" and row["paper"] == "kappa 14, beta 1.3, gamma 0.85"
    assert row["accuracy"] == 100 and row["accuracy of the paper's"] == 50 and row["n"] == 4 and row["points"] == 36
    assert (
        "on cups the sweep chooses kappa 12, beta 1.5, gamma 0.85, 50.0 [" in text and "rows it was chosen on" in text
    )
    assert re.search(r" \d+ of the other 35 points", text)


def test_what_speed_costs():
    book = plan.Book(speeds={"efficiency": {"machine": {"device": "cpu", "machine": "m", "threads": 1, "torch": "2"}, "length": 96,
                                                 "seconds": {"top-probability": [1.0] * 9, "sacm": [1.25] * 9}}})  # fmt: skip
    (_, rows), _, (_, text) = page.efficiency_blocks(
        EXPERIMENTS["efficiency"], list(EXPERIMENTS["efficiency"].cells(96)), book
    )
    assert (
        rows[0]["tokens/s"] == 96
        and rows[1]["tokens/s"] == pytest.approx(76.8)
        and rows[1]["paper's tokens/s"] == 24.93
    )
    assert text.startswith(
        "**Did not hold:** SACM's throughput is 80.0 % [80.0, 80.0] of top-probability's (paper: 99.6 %"
    )


def test_the_tally_counts_forwards():
    run = next(EXPERIMENTS["eot-ratio"].cells(96)).run
    jobs = [plan.Job(run, "tiny", planned(run, 4), 10, 1.0, "cpu") for _ in range(2)]
    tally = Tally(jobs)
    assert tally.total == 20 and tally.done(jobs[0], 4) == 10 and tally.done(jobs[1], 2) == 15


def test_every_job_keeps_its_own_summary(few, folder, tmp_path):
    main(["reproduce", "pair", "--model", str(folder), "--limit", "1", "--out", str(tmp_path)])
    assert len(list(tmp_path.rglob("*.summary.json"))) == 3
