"""No answer is taken for another's: own rules and graders, other weights; and what is borrowed where --limit is all that differs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from support.command import refused, run

import unmask
from unmask import Strategy
from unmask.errors import UserError
from unmask.evaluation.evaluate import evaluate
from unmask.evaluation.recipe import Options, recipe
from unmask.tasks import Grade, find
from unmask.tasks.gsm8k import strict_match

TASK = find("cups")
OPTIONS = Options(length=16, steps=4, batch=4)
SHORT = ("--length", "16", "--steps", "4", "--batch", "4")

RULE = """
from dataclasses import dataclass
from unmask import Strategy

@dataclass(frozen=True)
class Mine:
    def __call__(self, step):
        return SIGN step.seen.p + 1

method = Strategy(confidence=Mine())
"""
OWN_TASK = """
from unmask.tasks import Grade, Made, Task

def rows():
    return [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(6)]

def prompt(row, shots):
    return row["question"]

def grade(text, row):
    return Grade(RIGHT, text, "mine")

task = Task("sums", Made(rows), prompt, grade)
"""


def decoded(folder):
    return sorted(path.name for path in Path(folder).glob("*.jsonl"))


def examples(file):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


# ---------------------------------------------------------------- own code


def test_an_edited_rule_and_an_edited_grader_are_other_runs(capsys, tmp_path, folder):
    rule, task, out = tmp_path / "rule.py", tmp_path / "task.py", tmp_path / "runs"
    rule.write_text(RULE.replace("SIGN", ""))
    task.write_text(OWN_TASK.replace("RIGHT", "True"))
    words = (
        "eval",
        "--task",
        f"{task}:task",
        "--methods",
        f"{rule}:method",
        "--model",
        folder,
        "--out",
        out,
        *SHORT,
        "--json",
    )
    first = json.loads(run(capsys, *words))
    assert first["task"] == "sums" and first["methods"]["method"]["accuracy"] == 1
    run(capsys, *words)
    assert len(decoded(out)) == 1  # the same code resumes
    rule.write_text(RULE.replace("SIGN", "-"))
    run(capsys, *words)
    assert len(decoded(out)) == 2
    task.write_text(OWN_TASK.replace("RIGHT", "False"))
    assert json.loads(run(capsys, *words))["methods"]["method"]["accuracy"] == 0
    assert len(decoded(out)) == 3


@dataclass(frozen=True)
class Right:
    slope: float = 1.0

    def __call__(self, step):
        return self.slope * step.seen.p


class Bare:
    def __call__(self, step):
        return step.seen.p


def test_in_python_too(model):
    data = TASK.load(limit=2)

    def of(task=TASK, strategy=Strategy()):  # noqa: B008
        return recipe(model, task, strategy, data, OPTIONS, 0)

    assert "code_sha256" not in of() and "grader" not in of() and "grader_version" not in of()
    own = [replace(TASK, grade=lambda text, row, k=k: Grade(len(text) > k, text, "own")) for k in (1, 2)]
    assert len({of(task)["code_sha256"] for task in own}) == 2
    assert of(strategy=Strategy(confidence=Right()))["code_sha256"]
    swapped = of(replace(TASK, grade=strict_match))  # ours, but not this task's
    assert swapped["grader"] == "unmask.tasks.gsm8k.strict_match" and "code_sha256" not in swapped
    with pytest.raises(UserError, match="make it a frozen dataclass"):
        of(strategy=Strategy(confidence=Bare()))


def test_the_graders_version_is_part_of_the_recipe(model, monkeypatch):
    monkeypatch.setattr(type(TASK), "grader_version", property(lambda self: "math-verify 0.8, sympy 1.13"))
    assert recipe(model, TASK, Strategy(), TASK.load(limit=1), OPTIONS, 0)["grader_version"].startswith("math-verify")


def test_a_wrapped_module_with_other_weights_is_another_run(model, tmp_path):
    class Theirs(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, ids):
            return self.inner.head(self.inner.hidden(ids, torch.ones_like(ids).bool()))

    def wrapped():
        return unmask.wrap(
            Theirs(model.module), model.tokenizer, mask_id=model.vocab.mask_id, eot_ids=model.vocab.eot_ids
        )

    before = wrapped().weights_hash
    last = list(model.module.state_dict().values())[-1]
    kept = float(last.view(-1)[-1])
    last.view(-1)[-1] += 1
    assert wrapped().weights_hash != before
    last.view(-1)[-1] = kept
    assert wrapped().weights_hash == before


# ---------------------------------------------------------------- --limit


def test_raising_the_limit_decodes_only_what_is_new(model, tmp_path):
    methods = {"uniform": unmask.method("uniform")}  # one that draws

    def run_(limit, out, options=OPTIONS):
        asked = []
        evaluate(model, TASK, methods, TASK.load(limit=limit), options, out, lambda name, done, *_: asked.append(done))
        (file,) = (f for f in Path(out).glob("*.jsonl") if len(examples(f)) == limit)
        return (
            asked,
            sorted(examples(file), key=lambda e: e["index"]),
            json.loads(file.with_suffix(".json").read_text()),
        )

    _, straight, _ = run_(10, tmp_path / "straight")
    run_(6, tmp_path / "grown")
    asked, grown, record = run_(10, tmp_path / "grown")
    assert asked == [6, 10] and [e["tokens"] for e in grown] == [e["tokens"] for e in straight]
    assert sum("from" in e for e in grown) == record["borrowed"]["rows"] == 6 and len(record["borrowed"]["from"]) == 1
    asked, *_ = run_(10, tmp_path / "grown")
    assert asked == [10]  # and again, all is there
    asked, fewer, _ = run_(3, tmp_path / "grown")
    assert asked == [3] and [e["tokens"] for e in fewer] == [e["tokens"] for e in straight[:3]]
    asked, *_ = run_(8, tmp_path / "grown", replace(OPTIONS, steps=5))
    assert asked[0] == 0  # another setting borrows nothing


def test_only_the_same_prompts_are_borrowed(model, tmp_path):
    rows = TASK.load(limit=4)
    other = replace(rows, data=replace(rows.data, rows=[rows.rows[1], *rows.rows[1:4], rows.rows[0]]))
    asked = []
    for some in (rows, other):
        evaluate(model, TASK, {"a": Strategy()}, some, OPTIONS, tmp_path, lambda _, done, *__: asked.append(done))
    assert asked == [0, 4, 3, 5]  # row 0 is another one now, and row 4 is new


def test_a_run_that_borrowed_resumes(model, tmp_path):
    for limit in (3, 9):
        evaluate(model, TASK, {"a": Strategy()}, TASK.load(limit=limit), OPTIONS, tmp_path)
    (file,) = (f for f in tmp_path.glob("*.jsonl") if len(examples(f)) == 9)
    whole = {e["index"]: e["tokens"] for e in examples(file)}
    file.write_text("".join(line + "\n" for line in file.read_text().splitlines()[:5]) + '{"torn')
    asked = []
    evaluate(
        model, TASK, {"a": Strategy()}, TASK.load(limit=9), OPTIONS, tmp_path, lambda _, done, *__: asked.append(done)
    )
    assert asked == [3, 7, 9] and {e["index"]: e["tokens"] for e in examples(file)} == whole


# ---------------------------------------------------------------- generate --out


@pytest.fixture
def asked(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"What is {i} + {i}?"}) + "\n" for i in range(10)))
    return file


def timeless(file):
    return [{k: v for k, v in e.items() if k != "seconds"} for e in examples(file)]


def test_generate_writes_and_resumes(capsys, asked, folder, tmp_path):
    out = tmp_path / "answers.jsonl"
    words = (
        "generate",
        "--prompts",
        asked,
        "--model",
        folder,
        "--method",
        "uniform",
        "--samples",
        "2",
        *SHORT,
        "--out",
        out,
    )
    assert run(capsys, *words) == f"{out}\n"
    whole = timeless(out)
    assert len(whole) == 20 and whole[3]["input"] == {"prompt": "What is 1 + 1?"} and whole[3]["seed"] == 3
    lines = out.read_bytes().splitlines(keepends=True)
    out.write_bytes(b"".join(lines[:6]) + lines[6][:20])  # torn in the middle of the second batch
    run(capsys, *words)
    assert timeless(out) == whole and out.read_bytes().startswith(b"".join(lines[:4]))
    before = out.read_bytes()
    run(capsys, *words)
    assert out.read_bytes() == before  # nothing was decoded again
    asked.write_text(asked.read_text() + '{"prompt": "One more?"}\n')
    run(capsys, *words)
    assert len(timeless(out)) == 22 and timeless(out)[:20] == whole


@pytest.mark.parametrize("change", [("--seed", "5"), ("--set", "pace=1"), ("--length", "12")])
def test_generate_mixes_no_answers(change, capsys, asked, folder, tmp_path):
    out = tmp_path / "answers.jsonl"
    words = ("generate", "--prompts", asked, "--model", folder, "--method", "uniform", *SHORT, "--out", out)
    run(capsys, *words)
    before = out.read_bytes()
    said = refused(capsys, *words, *change)
    assert "holds other prompts' answers, or was made with other settings; pass another --out" in said
    assert out.read_bytes() == before


def test_generate_leaves_other_files_alone(capsys, asked, folder, tmp_path):
    out = tmp_path / "letter.txt"
    out.write_text("Dear Ada,\n")
    assert "pass another --out" in refused(
        capsys, "generate", "--prompts", asked, "--model", folder, *SHORT, "--out", out
    )
    assert out.read_text() == "Dear Ada,\n"
    assert "there is no folder" in refused(capsys, "generate", "--prompts", asked, "--out", tmp_path / "no" / "a.jsonl")
    assert "leave out --stream and --live" in refused(capsys, "generate", "hello", "--stream", "--out", out)


def test_generate_survives_a_kill(capsys, asked, folder, tmp_path):
    out = tmp_path / "answers.jsonl"
    words = [
        "generate",
        "--prompts",
        asked,
        "--model",
        folder,
        "--method",
        "uniform",
        "--length",
        "64",
        "--batch",
        "1",
        "--out",
        out,
    ]
    started = subprocess.Popen(
        [sys.executable, "-m", "unmask", *map(str, words)], env=os.environ, stdout=subprocess.DEVNULL
    )
    for _ in range(1200):
        if (out.exists() and len(out.read_bytes().splitlines()) >= 2) or started.poll() is not None:
            break
        time.sleep(0.05)
    started.send_signal(signal.SIGKILL)
    started.wait()
    held = [line for line in out.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")]
    assert len(held) >= 2
    run(capsys, *words)
    assert len(examples(out)) == 10 and out.read_bytes().startswith(b"".join(held))


# ---------------------------------------------------------------- other processes


def own_files(tmp_path):
    (tmp_path / "rule.py").write_text(RULE.replace("SIGN", ""))
    (tmp_path / "task.py").write_text(OWN_TASK.replace("RIGHT", "True"))
    return ["eval", "--task", f"{tmp_path}/task.py:task", "--methods", f"{tmp_path}/rule.py:method", *SHORT, "--out"]


def test_workers_load_it_too(capsys, folder, tmp_path):
    """Real Ray workers, that get the code and not the file: they would not find it where they run."""
    pytest.importorskip("ray")
    words = own_files(tmp_path)
    run(capsys, *words, tmp_path / "alone", "--model", folder)
    run(capsys, *words, tmp_path / "two", "--model", folder, "--workers", "2")
    assert decoded(tmp_path / "alone") == decoded(tmp_path / "two")
    alone, two = (
        sorted(timeless(tmp_path / out / decoded(tmp_path / out)[0]), key=lambda e: e["index"])
        for out in ("alone", "two")
    )
    assert alone == two and len(two) == 6


def test_ranks_load_it_too(folder, tmp_path):
    words = [*own_files(tmp_path), str(tmp_path / "ranks"), "--model", str(folder)]
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "unmask",
        *words,
    ]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "ranks").glob("*.jsonl")
    assert len(examples(file)) == 6


def test_a_lambda_does_not_travel_between_ranks(monkeypatch):
    from torch import distributed

    from unmask.evaluation import ranks
    from unmask.evaluation.evaluate import Batch

    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    batch = Batch(0, [0], [{}], ["?"], None, replace(TASK, grade=lambda text, row: None), Strategy(), OPTIONS, 0)
    with pytest.raises(UserError, match="made of functions with names, not of lambdas"):
        list(ranks.dealt(None, [batch]))
