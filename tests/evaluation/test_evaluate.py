"""Evaluation end to end: records, resuming after a real kill, locks, recipes, bad input."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

import unmask
from unmask.cli import main
from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.evaluation.evaluate import check, evaluate
from unmask.evaluation.metrics import answer_time
from unmask.evaluation.recipe import Options, for_task
from unmask.evaluation.store import finished, locked
from unmask.generation import partition
from unmask.tasks import Rows, find
from unmask.tasks.data import Loaded

CLI = [sys.executable, "-c", "from unmask.cli import main; main()"]
TIMED = {"seconds", "tokens_per_second", "text_tokens_per_second"}


def methods(task, *names):
    return {name: for_task(task, [name], {})[name] for name in names}


def examples(folder):
    found = {}
    for file in sorted(Path(folder).glob("*.jsonl")):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.name] = [{k: v for k, v in row.items() if k not in TIMED} for row in rows]
    return found


def timeless(summary):
    inner = {
        name: {k: v for k, v in s.items() if k not in TIMED | {"file", "files"}}
        for name, s in summary["methods"].items()
    }
    return {**summary, "methods": inner, "out": ""}


@pytest.fixture(scope="module")
def run(model, tmp_path_factory):
    task = find("cups")
    out = tmp_path_factory.mktemp("runs") / "cups"
    data = task.load(limit=6)
    options = Options(length=32, steps=8, batch=4, seeds=2)
    return evaluate(model, task, methods(task, "sacm", "top-probability", "uniform"), data, options, out), out


def test_the_summary_has_every_figure(run):
    summary, out = run
    assert json.loads((out / "summary.json").read_text()) == summary
    for s in summary["methods"].values():
        named = {
            "accuracy",
            "interval",
            "eot_ratio",
            "answer_found",
            "early_answer",
            "answer_progress",
            "nfe",
            "tokens_per_forward",
        }
        assert named <= set(s)
        assert s["rows"] == 6 and s["nfe"] == 8 and s["tokens_per_forward"] == 4
        assert s["interval"][0] <= s["accuracy"] <= s["interval"][1]
    sacm = summary["methods"]["sacm"]
    assert sacm["early_answer"] is not None and 0 <= sacm["answer_progress"] <= 1
    assert summary["methods"]["uniform"]["seeds"] == 2 and len(summary["methods"]["uniform"]["per_seed"]) == 2
    assert "seeds" not in sacm  # it draws nothing
    assert [(p["a"], p["b"]) for p in summary["pairs"]] == [
        ("sacm", "top-probability"),
        ("sacm", "uniform"),
        ("top-probability", "uniform"),
    ]


def test_every_example_is_a_line(run):
    _, out = run
    for rows in examples(out).values():
        assert sorted(row["index"] for row in rows) == list(range(6))
        for row in rows:
            assert {
                "id",
                "prompt",
                "response",
                "tokens",
                "order",
                "extracted",
                "rule",
                "correct",
                "nfe",
                "tie_rate",
                "eot_ratio",
            } <= set(row)
            assert len(row["tokens"]) == len(row["order"]) == 32
    first = json.loads(next(out.glob("sacm-*.jsonl")).read_text().splitlines()[0])
    assert first["seconds"] > 0 and first["order"].count(-1) == 3  # the anchor


def test_the_recipe_and_where_it_came_from(run, model):
    record = json.loads(next(run[1].glob("sacm-*.json")).read_text())
    recipe = record["recipe"]
    assert recipe["strategy"] == repr(for_task(find("cups"), ["sacm"], {})["sacm"])
    assert recipe["weights_sha256"] == model.weights_hash and (recipe["length"], recipe["steps"], recipe["seed"]) == (
        32,
        8,
        0,
    )
    assert {"denoiser", "frequency_sha256", "data_sha256", "anchor_ids"} <= set(recipe)
    about = record["provenance"]
    assert (
        about["versions"]["torch"]
        and about["device"] == "cpu"
        and about["data"]["revision"]
        and about["data"]["sha256"]
    )


def test_another_recipe_never_reuses_answers(run, model):
    _, out = run
    task, before = find("cups"), set(out.glob("sacm-*.jsonl"))
    changed = for_task(task, ["sacm"], {"kappa": 3})["sacm"]
    base = Options(length=32, steps=8, batch=4)
    seen = set(before)
    for strategy, options in ((changed, base), (methods(task, "sacm")["sacm"], replace(base, seed=1))):
        evaluate(model, task, {"sacm": strategy}, task.load(limit=2), options, out)
        now = set(out.glob("sacm-*.jsonl"))
        assert len(now - seen) == 1
        seen = now
    for path in seen - before:  # leave the folder as it was for the others
        path.unlink()
        path.with_suffix(".json").unlink()


def test_the_same_command_again_decodes_nothing(run, model, monkeypatch):
    summary, out = run
    task = find("cups")
    before = examples(out)
    monkeypatch.setattr("unmask.evaluation.evaluate.generations", lambda *a, **k: pytest.fail("decoded again"))
    options = Options(length=32, steps=8, batch=4, seeds=2)
    data = task.load(limit=6)
    again = evaluate(model, task, methods(task, "sacm", "top-probability", "uniform"), data, options, out)
    assert again == summary and examples(out) == before


@pytest.mark.parametrize("damage", ["torn", "half a batch", "garbage"])
def test_a_damaged_run_resumes_to_the_same_end(run, model, tmp_path, damage):
    _, out = run
    source = next(out.glob("sacm-*.jsonl"))
    good = source.read_bytes().splitlines(keepends=True)
    broken = {"torn": [*good[:5], good[5][:50]], "half a batch": good[:2], "garbage": [*good[:4], b"\x00\xff{]\n"]}[
        damage
    ]
    (tmp_path / source.name).write_bytes(b"".join(broken))
    task = find("cups")
    evaluate(model, task, methods(task, "sacm"), task.load(limit=6), Options(length=32, steps=8, batch=4), tmp_path)
    assert examples(tmp_path)[source.name] == examples(out)[source.name]


def test_kill_9_loses_nothing_and_resumes_to_the_same_summary(folder, tmp_path):
    """A real process, really killed."""
    command = ["eval", "--model", str(folder), "--task", "stories", "--methods", "sacm,uniform", "--limit", "16", "--batch", "2",
               "--length", "32", "--steps", "8", "--json"]  # fmt: skip
    process = subprocess.Popen(
        [*CLI, *command, "--out", str(tmp_path / "a")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        written = sum(file.read_bytes().count(b"\n") for file in (tmp_path / "a").glob("*.jsonl"))
        if written >= 4:
            break
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, process.stderr.read().decode()[-500:]
    kept = examples(tmp_path / "a")
    resumed, straight = (eval_in_process([*command, "--out", str(tmp_path / name)], tmp_path) for name in ("a", "b"))
    assert timeless(resumed) == timeless(straight)
    assert examples(tmp_path / "a") == examples(tmp_path / "b")
    for name, rows in kept.items():
        assert (
            len(rows) >= 2 and rows == examples(tmp_path / "a")[name][: len(rows)]
        )  # nothing finished was lost or changed


def eval_in_process(command, tmp_path):
    import contextlib
    import io

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(command)
    return json.loads(out.getvalue())


def test_two_processes_on_one_folder(run, model):
    _, out = run
    task = find("cups")
    holder = subprocess.Popen(
        [sys.executable, "-c", f"from unmask.evaluation.evaluate import locked; from pathlib import Path\n"
         f"with locked(Path({str(out)!r})): print('held', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UserError, match=f"is in use by process {holder.pid}; wait for it, or pass another --out"):
        evaluate(model, task, methods(task, "sacm"), task.load(limit=2), Options(length=32), out)
    holder.kill()  # the lock goes with the process
    holder.wait()
    with locked(out):
        pass


def test_batches_are_a_fixed_partition_by_length():
    assert partition([5, 1, 3, 1], 2) == [[1, 3], [2, 0]]
    assert partition([5, 1, 3], 2) == [[1, 2], [0]]


def test_what_a_crash_left(tmp_path):
    lines = [json.dumps({"index": i}) for i in (0, 1, 2)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + '\n{"index": 3, "ha')
    assert [e["index"] for e in finished(tmp_path / "x.jsonl", [[1, 0], [2, 3]])] == [1, 0]
    assert (tmp_path / "x.jsonl").read_text() == lines[1] + "\n" + lines[0] + "\n"
    assert finished(tmp_path / "none.jsonl", [[0]]) == []


def test_when_the_answer_was_committed():
    #        slots: 0  1  2  A  A  5  6      A: the anchor, slots 3 and 4; 5 is the answer
    early = answer_time([7] * 7, [4, 2, 3, -1, -1, 0, 5], 10, [])
    assert early == {"early_answer": True, "answer_progress": 0.0}
    late = answer_time([7] * 7, [0, 1, 9, -1, -1, 5, 6], 10, [])
    assert late == {"early_answer": False, "answer_progress": pytest.approx(2 / 3)}
    assert answer_time([1, 8, 9, 5, 8, 9, 4], [0, 1, 2, 3, 4, 5, 0], 10, [[8, 9]]) == {
        "early_answer": True,
        "answer_progress": 0.0,
    }
    nowhere = {"early_answer": None, "answer_progress": None}
    assert answer_time([1, 2], [0, 1], 2, [[8, 9]]) == nowhere == answer_time([1, 8, 9], [0, -1, -1], 1, [])


def test_bad_input_is_one_line_before_anything_is_written(model, tmp_path, capsys):
    task = find("cups")
    data = task.load(limit=2)
    with pytest.raises(UserError, match="sacm on cups at length 10: position -20 is outside a response of 10 tokens"):
        evaluate(model, task, methods(task, "sacm"), data, Options(length=10), tmp_path / "x")
    with pytest.raises(UserError, match="grading humaneval runs the code the model writes; allow it with --allow-code"):
        evaluate(model, find("humaneval"), {}, data, Options(), tmp_path / "x")
    with pytest.raises(UserError, match="no grading mode"):
        evaluate(model, task, {}, data, Options(mode="strange"), tmp_path / "x")
    assert not (tmp_path / "x").exists()
    long = Rows(Loaded([{"question": "word " * 600, "answer": "red"}], "mine", "local", "0"))
    with pytest.raises(UserError, match=r"row 0 of cups takes \d+ tokens with its response; .* was made for 512"):
        evaluate(model, task, methods(task, "sacm"), long, Options(), tmp_path / "y")
    assert not list((tmp_path / "y").glob("*.json*"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write in"):
        evaluate(model, task, methods(task, "sacm"), data, Options(length=32), tmp_path / "file" / "x")
    for command, message in (
        (["eval", "--task", "cupz"], "unmask: no task 'cupz'; did you mean 'cups'?\n"),
        (["eval", "--task", "cups", "--set", "nonsense=1"], "unmask: none of these methods has a setting nonsense\n"),
        (
            ["eval", "--task", "mbpp"],
            "unmask: grading mbpp runs the code the model writes; allow it with --allow-code\n",
        ),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(command)
        assert stopped.value.code == 2 and capsys.readouterr().err == message


def test_a_full_disk_is_one_line_and_loses_nothing(run, model, tmp_path, monkeypatch):
    import errno
    import os

    _, out = run
    task, sync, calls = find("cups"), os.fsync, []

    def full(file):
        calls.append(file)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(file)

    monkeypatch.setattr("os.fsync", full)
    asked = (model, task, methods(task, "sacm"), task.load(limit=6), Options(length=32, steps=8, batch=4), tmp_path)
    with pytest.raises(
        UserError,
        match=r"cannot write .*: No space left on device; what was finished is kept, the same command resumes",
    ):
        evaluate(*asked)
    evaluate(*asked)
    name = next(tmp_path.glob("sacm-*.jsonl")).name
    assert examples(tmp_path)[name] == examples(out)[name]


def test_shots_and_own_rows_and_parity_modes(model, tmp_path):
    rows = [{"question": f"Q{i}?", "answer": f"#### {i}"} for i in range(3)]
    data = Rows(Loaded(rows, "mine", "local", "0" * 64))
    task = replace(find("gsm8k"), length=32)
    summary = evaluate(model, task, methods(task, "suffix-anchor"), data, Options(batch=2), tmp_path)
    assert set(summary["methods"]["suffix-anchor"]["modes"]) == {"flexible-extract", "strict-match"}
    assert summary["length"] == 32


def test_grade_command(tmp_path, capsys):
    cases = [
        {"id": "a", "output": "The answer is 12.", "gold": "12"},
        {"id": "b", "output": "The answer is 13.", "doc": {"question": "Q?", "answer": "#### 12"}},
        {"output": "<|endoftext|>", "gold": "1"},
    ]
    file = tmp_path / "outputs.jsonl"
    file.write_text("".join(json.dumps(case) + "\n" for case in cases))
    main(["grade", "--task", "gsm8k", str(file), "--json"])
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["id"], r["correct"], r["extracted"], r["rule"]) for r in out] == [
        ("a", True, "12", "anchor"), ("b", False, "13", "anchor"), ("3", False, None, "none"),
    ]  # fmt: skip
    main(["grade", "--task", "gsm8k", str(file)])
    assert capsys.readouterr().out == "gsm8k: 33.33 %  [6.15, 79.23]  1 of 3, an answer found in 66.7 %\n"


def test_grade_finds_rows_by_index_and_id_and_tasks_by_line(tmp_path, capsys):
    rows = [{"task_id": i, "text": "t", "code": "", "test_list": ["assert f() == 1"]} for i in (11, 12)]
    (tmp_path / "mbpp.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "o.jsonl").write_text(json.dumps({"output": "def f(): return 1", "doc": "12"}) + "\n")
    with pytest.raises(SystemExit):
        main(["grade", "--task", "mbpp", str(tmp_path / "o.jsonl"), "--data", str(tmp_path)])
    assert "allow it with --allow-code" in capsys.readouterr().err
    (tmp_path / "mixed.json").write_text(json.dumps([
        {"id": "x", "benchmark": "mmlu_pro", "output": "The answer is (B)", "gold": "B", "doc": {"n_options": 4}},
        {"id": "y", "benchmark": "strategyqa", "output": "So, no.", "gold": False, "doc": {}},
    ]))  # fmt: skip
    main(["grade", str(tmp_path / "mixed.json"), "--json"])
    assert [json.loads(line)["correct"] for line in capsys.readouterr().out.splitlines()] == [True, True]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"), ('{"gold": "1"}', '"output"'), ('{"output": "x"}', 'neither "gold" nor'),
        ('{"output": "x", "doc": 3}', "pass --data"), ('{"output": "x", "doc": {"a": 1}}', "'answer'"),
    ],
)  # fmt: skip
def test_grade_names_the_line_at_fault(tmp_path, capsys, line, message):
    (tmp_path / "o.jsonl").write_text('{"output": "1", "gold": "1"}\n' + line + "\n")
    with pytest.raises(SystemExit):
        main(["grade", "--task", "gsm8k", str(tmp_path / "o.jsonl")])
    error = capsys.readouterr().err
    assert "o.jsonl:2: " in error and message in error and error.count("\n") == 1
    main(["grade", "--task", "gsm8k", str(tmp_path / "o.jsonl"), "--bad-rows", "skip"])
    assert "1 of 1" in capsys.readouterr().out


def test_the_bundled_model_end_to_end(tmp_path, capsys):
    main(
        [
            "eval",
            "--task",
            "cups",
            "--methods",
            "sacm,top-probability",
            "--limit",
            "8",
            "--steps",
            "16",
            "--out",
            str(tmp_path),
            "--json",
        ]
    )
    found = json.loads(capsys.readouterr().out)["methods"]
    assert found["sacm"]["answer_found"] == 1 and found["sacm"]["eot_ratio"] < found["top-probability"]["eot_ratio"]


@pytest.mark.parametrize(("vote", "forwards"), [("temporal", 4), ("blocks", 8)])
def test_votes(vote, forwards, tmp_path):
    """Through the grader's own extraction; how often each answer was given is kept, and the vote is part of the recipe."""
    model = unmask.load("tiny")
    task, rows = find("cups"), find("cups").load("tuning", limit=3)
    options = Options(steps=4, length=16, batch=2, vote=vote)
    summary = evaluate(model, task, {"semi-ar": METHODS["semi-ar"]}, rows, options, tmp_path)
    (file,) = tmp_path.glob("semi-ar-*.jsonl")
    for example in map(json.loads, file.read_text().splitlines()):
        assert example["nfe"] == forwards and len(example["votes"]) == (4 if vote == "temporal" else 2)
        stated = [answer for answer in example["votes"] if answer is not None]
        assert example["extracted"] in (stated or [None])
    assert summary["rows"] == 3 and json.loads(file.with_suffix(".json").read_text())["recipe"]["vote"] == vote


def test_a_vote_needs_an_answer_to_vote_on():
    with pytest.raises(UserError, match="temporal or blocks, not 'often'"):
        Options(vote="often")
    with pytest.raises(UserError, match="programs, which have no answer to vote on"):
        check(unmask.load("tiny"), find("humaneval"), {}, Options(vote="blocks", allow_code=True))
