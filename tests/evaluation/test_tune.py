"""Tuning: the search by hand on a written table of rights and wrongs, then with a model: resumed, reused, refused, applied."""

import json
import zlib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from support import checkpoints
from support.command import refused, run

import unmask
from unmask import cli
from unmask.errors import UserError
from unmask.evaluation import tune
from unmask.evaluation.evaluate import load_rows
from unmask.evaluation.recipe import Options, for_task
from unmask.evaluation.tune import GRID, Point, points, search, stages, survivors
from unmask.tasks import Grade, find, tasks
from unmask.views import figures

A, B, C, D = (Point(14.0, beta, 0.85) for beta in (1.3, 1.2, 1.1, 1.0))  # A is the default


def scripted(rights: dict[Point, str], forwards: int = 3):
    """A decoder that looks its outcomes up, and remembers what it was asked."""
    asked = []

    def decode(wanted, begin, end):
        asked.append((tuple(wanted), begin, end))
        return {
            point: [(mark == "1", forwards) for mark in rights[point].replace(" ", "")[begin:end]] for point in wanted
        }

    return decode, asked


RIGHTS = {A: "00 11 1111", B: "11 10 1110", C: "00 11 1111", D: "01 11 0000"}


def test_halving_by_hand():
    decode, asked = scripted(RIGHTS)
    sweep = search(list(RIGHTS), A, stages(8, 2), decode, True)
    # 2 rows: A 0, B 2, C 0, D 1. The better half is B and D; C goes; A stays because it is the default.
    # 4 rows: A 2, B 3, D 3: two of three are the better half, and again A stays.
    # 8 rows: A 6, B 6, D 3: of A and B the one nearest the default, which is A.
    assert asked == [((A, B, C, D), 0, 2), ((A, B, D), 2, 4), ((A, B, D), 4, 8)]
    assert sweep.stages == [(4, 2), (3, 4), (3, 8)] and sweep.chosen == A
    # rows decoded: 8 + 8 + 2 + 8 = 26 of 32, 3 forwards each
    assert (sweep.forwards, sweep.full_forwards) == (78, 96)


def test_the_full_sweep_on_the_same_table():
    decode, asked = scripted({**RIGHTS, C: "01 11 1111"})
    sweep = search(list(RIGHTS), A, stages(8, 2), decode, False)
    assert [len(wanted) for wanted, _, _ in asked] == [4, 4, 4] and sweep.chosen == C  # 7 right
    assert sweep.forwards == sweep.full_forwards == 96


def test_ties_with_the_last_one_kept_stay():
    assert survivors({A: [True], B: [True], C: [True], D: [False]}, A) == [A, B, C]
    assert survivors({A: [False], B: [False], C: [False], D: [False]}, A) == [A, B, C, D]
    assert survivors({A: [False], B: [True], C: [False], D: [True]}, A) == [A, B, D]
    assert survivors({A: [True], B: [False], C: [False]}, A) == [
        A,
        B,
        C,
    ]  # half of three is two, and two tie for the second place


def test_of_equals_the_nearest_to_the_default_then_the_smaller():
    """Distances in widths of the range: kappa 12 is a whole one from 14, beta 1.0 is 0.3 / 0.5 from 1.3."""
    default = Point(14.0, 1.3, 0.85)
    everywhere = points(GRID, default)
    right = lambda winners: {p: "1" if p in winners else "0" for p in everywhere}  # noqa: E731
    far, near, other = Point(12.0, 1.3, 0.85), Point(14.0, 1.0, 0.85), Point(14.0, 1.3, 0.7)  # 1, 0.6, 0.5
    for winners, chosen in (((far, near), near), ((near, other), other), ((far, near, other, default), default)):
        assert search(everywhere, default, [1], scripted(right(winners))[0], False).chosen == chosen
    both = Point(14.0, 1.3, 0.7), Point(14.0, 1.3, 1.0)  # 0.5 each
    assert search(everywhere, default, [1], scripted(right(both))[0], True).chosen == both[0]


@pytest.mark.parametrize(
    "count, first, rows",
    [(128, 16, [16, 32, 64, 128]), (100, 12, [13, 25, 50, 100]), (8, 8, [8]), (1, 4, [1]), (3, 1, [1, 2, 3])],
)
def test_stages(count, first, rows):
    assert stages(count, first) == rows


def test_the_papers_grid_and_the_settings_it_selected():
    """As the paper's appendix on hyper-parameters states them."""
    selected = {
        "gsm8k": (14, 1.3, 0.85), "math500": (12, 1.5, 0.85), "strategyqa": (12, 1.3, 0.70), "mmlu_pro": (14, 1.3, 0.85),
        "mathvista": (14, 1.3, 0.85), "chartqa": (12, 1.0, 1.00), "humaneval": (14, 1.3, 0.85), "mbpp": (14, 1.5, 0.70),
    }  # fmt: skip
    known = tasks()
    for name, values in selected.items():
        assert tuple(known[name].settings.values()) == values
    assert GRID == {"kappa": (12, 14), "beta": (1.0, 1.1, 1.2, 1.3, 1.4, 1.5), "gamma": (0.7, 0.85, 1.0)}
    for task in known.values():
        assert len(points(GRID, Point(**task.settings))) == 36  # each default is on the grid
    assert len(points({**GRID, "kappa": (6, 8)}, Point(14.0, 1.3, 0.85))) == 37  # else it is tried as well


# ---------------------------------------------------------------- with a model


def chance(text, row):
    """A grader under which an untrained model is sometimes right."""
    return Grade(zlib.crc32((text + row["id"]).encode()) % 3 == 0, text, "chance")


def tuned(model, out, mode, count=8, grid=None):
    task = replace(find("cups"), grade=chance)
    data = load_rows(task, "tuning", limit=count, shuffle=0)
    strategy = for_task(task, ["sacm"], {})["sacm"]
    return tune.tune(model, task, "sacm", strategy, data, Options(length=32, steps=16, batch=2), out,
                     grid=grid or {"kappa": (1, 14), "beta": (0.3, 1.3), "gamma": (0.1, 0.85)}, first=2, mode=mode)  # fmt: skip


@pytest.fixture
def decoded(monkeypatch):
    """How many prompts were decoded."""
    from unmask.evaluation import evaluate

    real, seen = evaluate.generations, []
    monkeypatch.setattr(
        evaluate,
        "generations",
        lambda model, prompts, *a, **k: (seen.extend(prompts), real(model, prompts, *a, **k))[1],
    )
    return seen


def test_halving_then_the_full_sweep_decodes_nothing_twice(model, tmp_path, decoded):
    halved = tuned(model, tmp_path, "halving")
    spent = sum(row["rows"] for row in halved["table"])
    assert len(decoded) == spent < 64 and halved["forwards"] == 16 * spent and halved["full_forwards"] == 16 * 64
    assert tuned(model, tmp_path, "halving") == halved and len(decoded) == spent  # again: all on the disk
    full = tuned(model, tmp_path, "full")
    assert len(decoded) == 64 and full["forwards"] == 16 * 64
    both = tuned(model, tmp_path, "check")
    assert len(decoded) == 64  # both were there
    assert both["settings"] == full["settings"] and both["forwards"] == halved["forwards"]
    assert both["check"]["same"] == (halved["settings"] == full["settings"])
    assert both["check"]["halving"] == {name: halved["settings"][name] for name in GRID}


def test_a_broken_off_sweep_goes_on(model, tmp_path, decoded):
    whole = tuned(model, tmp_path / "whole", "full", 4)
    one = tuned(model, tmp_path / "cut", "full", 4)
    assert one == whole
    files = sorted((tmp_path / "cut").rglob("*.jsonl"))
    files[0].unlink()
    files[-1].write_text(files[-1].read_text().splitlines()[0] + "\n")  # half a batch: that batch is done again
    del decoded[:]
    assert tuned(model, tmp_path / "cut", "full", 4) == whole and len(decoded) == 4


def test_only_tuning_rows_are_asked(model, tmp_path):
    tuned(model, tmp_path, "full", 4, {"kappa": (14,), "beta": (1.3,), "gamma": (0.85,)})
    asked = {json.loads(line)["id"] for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()}
    assert len(asked) == 4 and all(name.startswith("cups-validation-") for name in asked)
    tested = {row["question"] for row in find("cups").rows.load("cups").rows}
    assert not tested & {
        json.loads(line)["prompt"] for file in tmp_path.rglob("*.jsonl") for line in file.read_text().splitlines()
    }


def test_rows_are_drawn_and_a_larger_draw_begins_with_the_smaller():
    task = find("cups")
    few, many = (load_rows(task, "tuning", limit=n, shuffle=0).rows for n in (8, 16))
    assert (
        many[:8] == few != task.load("tuning", limit=8).rows
        and load_rows(task, "tuning", limit=8, shuffle=1).rows != few
    )


def test_the_table_and_the_words(tmp_path, monkeypatch, model):
    """A scripted outcome through the whole record: halving drops the point that the full sweep chooses."""
    late = {0.8: "00111111", 1.3: "01100000", 1.0: "11000000", 1.1: "10110000"}

    def written(model, task, methods, rows, options, out, report, pool):
        out.mkdir(parents=True, exist_ok=True)
        begin, end = map(int, out.name.split("-")[1:])
        found = {}
        for label, strategy in methods.items():
            marks = late[strategy.modifiers[0].beta][begin:end]
            lines = [{"id": i, "index": i, "correct": mark == "1", "nfe": 5} for i, mark in enumerate(marks)]
            (out / f"{label}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
            found[label] = {"file": str(out / f"{label}.jsonl")}
        return {"methods": found}

    monkeypatch.setattr(tune, "evaluate", written)
    record = tuned(model, tmp_path, "check", 8, {"kappa": (14,), "beta": (0.8, 1.0, 1.1, 1.3), "gamma": (0.85,)})
    # 2 rows: 1.0 has 2, 1.3 and 1.1 have 1 and tie, 0.8 has none and goes. 4 rows: 1.1 has 3, 1.0 and 1.3 have 2 and tie.
    assert record["check"]["stages"] == [(4, 2), (3, 4), (3, 8)]
    assert record["check"] | {"same": False, "only_full": 4, "only_halving": 1} == record["check"]
    assert (
        record["settings"]["beta"] == 0.8
        and record["check"]["halving"]["beta"] == 1.1
        and record["chosen_by"] == "full sweep"
    )
    assert (record["forwards"], record["full_forwards"]) == (5 * 26, 5 * 32)
    first, second, *_ = record["table"]
    assert first["chosen"] and first["accuracy"] == 0.75 and first["less_best"] == 0 and first["less_default"] == 0.5
    assert second["beta"] == 1.1 and second["correct"] == 3 and second["less_best"] == -0.375
    words = tune.told(record)
    assert "beta 0.8, gamma 0.85 (6 of 8 tuning rows right)" in words
    assert "130 forwards, 81 % of the full sweep's 160; saved 30" in words
    assert (
        "Halving chose another point, kappa 14, beta 1.1, gamma 0.85: 1 rows right" in words
        and "do not tell the two apart" in words
    )
    assert tune.table(record).splitlines()[2].split("|")[5].strip().startswith("75.0 (")
    figure = figures.heat_map(record["table"], "cups")
    figures.write(figure, tmp_path / "map.png")
    assert (tmp_path / "map.png").read_bytes()[:4] == b"\x89PNG"
    assert [text.get_text() for text in figure.axes[0].texts].count("75") == 1


# ---------------------------------------------------------------- the command line

QUICK = ("--length", "32", "--steps", "4", "--batch", "4")


@pytest.fixture(scope="module")
def settings(folder, tmp_path_factory):
    """A settings file made by the command."""
    where = tmp_path_factory.mktemp("tuned")
    cli.main(["tune", "--task", "cups", "--model", str(folder), "--count", "4", "--kappa", "3", "--beta", "1,1.5", "--gamma", "0.5",
              "--set", "at=-12", "--folder", str(where), *QUICK, "--out", str(where / "cups.json")])  # fmt: skip
    record = json.loads((where / "cups.json").read_text())
    # An untrained model gets nothing right, so the default would win: write another choice, as another run might have.
    assert record["rows"] == 4 and record["settings"]["at"] == -12 and record["points"] == 3
    (where / "cups.json").write_text(
        json.dumps({**record, "settings": {**record["settings"], "kappa": 3.0, "beta": 1.5, "gamma": 0.5}})
    )
    return where / "cups.json"


def test_the_folder_holds_table_and_map(settings):
    assert (settings.parent / "table.md").read_text().startswith("| kappa | beta")
    assert (settings.parent / "heat-map.png").stat().st_size > 1000


def test_eval_applies_the_file(settings, folder, tmp_path, capsys):
    command = [
        "eval",
        "--task",
        "cups",
        "--model",
        folder,
        "--limit",
        2,
        *QUICK,
        "--out",
        tmp_path,
        "--json",
        "--settings",
        settings,
    ]
    summary = json.loads(run(capsys, *command, "--methods", "sacm,top-probability"))
    used = summary["methods"]["sacm"]["strategy"]
    assert "kappa=3.0, beta=1.5, gamma=0.5" in used and "at=-12" in used
    over = json.loads(run(capsys, *command, "--methods", "sacm", "--set", "kappa=5"))["methods"]["sacm"]["strategy"]
    assert "kappa=5, beta=1.5" in over
    record = json.loads(
        run(
            capsys,
            "generate",
            "Tom has",
            "--model",
            folder,
            "--length",
            32,
            "--steps",
            4,
            "--json",
            "--settings",
            settings,
        )
    )
    assert "kappa=3.0, beta=1.5, gamma=0.5" in record["method"] and "at=-12" in record["method"]


def test_a_file_of_another_task_or_model_is_refused_by_name(settings, folder, tmp_path, capsys):
    by_hand = "tune again, or pass its values yourself: --set kappa=3 --set beta=1.5 --set gamma=0.5"
    said = refused(capsys, "eval", "--task", "stories", "--model", folder, "--settings", settings)
    assert f"{settings} was tuned for cups, not for stories; {by_hand}" in said
    other = checkpoints.llada(tmp_path / "other", seed=1)
    for command in (("eval", "--task", "cups"), ("generate", "Tom has")):
        said = refused(capsys, *command, "--model", other, "--settings", settings)
        assert f"was tuned on {folder} (weights " in said and f"this is {other} (weights " in said and by_hand in said
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text('{"settings": {"kappa": 3}}')
    for file in ("bad.json", "list.json"):
        assert "is not a settings file; `unmask tune --out" in refused(
            capsys, "eval", "--task", "cups", "--settings", tmp_path / file
        )
    assert "cannot be read: No such file" in refused(
        capsys, "eval", "--task", "cups", "--settings", tmp_path / "none.json"
    )
    assert "this method has no setting" in refused(
        capsys, "eval", "--task", "cups", "--settings", settings, "--methods", "top-probability"
    )
    model = unmask.load(folder)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"this is .*, adapter .*mine\)"):
        tune.check_model("x.json", tune.read(settings), replace(model, adapter=tmp_path / "mine"))


def test_eval_says_where_the_file_was_tuned_otherwise(settings, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("unmask.cli.measure.replicas", lambda args: nullcontext((None, None)))
    monkeypatch.setattr("unmask.evaluation.evaluate.evaluate", lambda *a: (_ for _ in ()).throw(UserError("stop here")))

    def said(*argv):
        with pytest.raises(SystemExit):
            cli.main(
                list(
                    map(str, ("eval", "--task", "cups", "--model", folder, "--limit", 1, "--settings", settings, *argv))
                )
            )
        return capsys.readouterr().err.splitlines()[:-1]

    made = f"unmask: {settings} was tuned for sacm with L = 32, T = 4; this is "
    assert said(*QUICK) == said(*QUICK, "--methods", "top-probability,suffix-anchor,sacm") == []
    assert said(*QUICK, "--methods", "sacm-margin") == [made + "sacm-margin with L = 32, T = 4"]
    assert said("--length", 32, "--methods", "sacm,sacm-margin") == [
        made + "sacm with L = 32, T = 16 and sacm-margin with L = 32, T = 16"
    ]
    assert said("--length", 48, "--steps", 4) == [made + "sacm with L = 48, T = 4"]


@pytest.mark.parametrize(
    "argv, said",
    [
        (("--task", "mmlu_pro"), "mmlu_pro has no train or validation split; the paper uses GSM8K's settings"),
        (("--task", "mbpp"), "grading mbpp runs the code the model writes; allow it with --allow-code"),
        (("--task", "cups", "--method", "top-probability"), "this method has no setting 'kappa'"),
        (("--task", "cups", "--kappa", "many"), "--kappa takes positive numbers, as in --kappa 12,14; not 'many'"),
        (("--task", "cups", "--kappa", "0,12"), "--kappa takes positive numbers"),
        (("--task", "cups", "--set", "beta=1.2"), "beta is what is tuned; --beta 1.2 tries this value alone"),
        (("--task", "cups", "--count", "0"), "--limit is at least 1, not 0"),
        (("--task", "cups", "--first", "0"), "--first is at least 1, not 0"),
        (("--task", "cups", "--full", "--check"), "--check runs the full sweep too"),
        (("--task", "cups", "--out", "/nowhere/at/all.json"), "there is no folder /nowhere/at"),
    ],
)
def test_bad_input_is_one_line_before_a_model_is_loaded(argv, said, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unmask.models.loading.load", lambda *a, **k: pytest.fail("loaded"))
    assert said in refused(capsys, "tune", *argv)
    assert not list(Path().iterdir())


def test_the_next_command_repeats_what_was_given(tmp_path, capsys, monkeypatch):
    """The method and how it was graded and batched, so that the test rows meet what was tuned."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("unmask.cli.measure.replicas", lambda args: nullcontext((None, None)))
    record = {"table": [], "settings": {}}
    for name, value in {"tune": record, "table": "", "told": "", "write": None}.items():
        monkeypatch.setattr(tune, name, lambda *a, _value=value, **k: _value)
    monkeypatch.setattr("unmask.views.figures.write_heat_map", lambda *a: True)
    (tmp_path / "runs" / "tune-tiny-cups").mkdir(parents=True)
    monkeypatch.setattr("unmask.plugins.task", lambda name: replace(find("cups"), executes=True))
    given = "--batch 3 --bad-rows skip --mode official --allow-code --unisolated-code --adapter lora"
    said = run(capsys, "tune", "--task", "cups", "--method", "sacm-margin", "--count", 1, *given.split())
    file = "runs/tune-tiny-cups/settings.json"
    assert said.endswith(
        f"next:  unmask eval --task cups --methods sacm-margin,top-probability --model tiny --settings {file} {given}\n"
    )
    cli.parser().parse_args(said.split("next:  unmask ")[1].split())


def test_on_the_bundled_model(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = run(
        capsys,
        "tune",
        "--task",
        "stories",
        "--count",
        2,
        "--first",
        1,
        "--steps",
        6,
        "--beta",
        "1.3,1.5",
        "--kappa",
        "14",
        "--gamma",
        "0.85",
        "--check",
    )
    assert "Halving: 2 points on 1 rows, " in said and ("the same point" in said or "another point" in said)
    assert said.endswith(
        "\nnext:  unmask eval --task stories --methods sacm,top-probability --model tiny --settings runs/tune-tiny-stories/settings.json --steps 6\n"
    )
    record = tune.read("runs/tune-tiny-stories/settings.json", "stories")
    assert record["split"] == "tuning" and record["model"] == "tiny" and record["steps"] == 6
    assert "| sacm " in run(capsys, *said.split("next:  unmask ")[1].split(), "--limit", 2)
