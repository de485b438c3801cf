"""Real Ray workers and real ranks: the lines of one process, whoever dies on the way; and what a user is told."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from support import checkpoints

import unmask
from unmask.cli import main
from unmask.decoding.methods import method
from unmask.errors import UserError
from unmask.evaluation.evaluate import Batch, evaluate
from unmask.evaluation.recipe import Options, for_task, recipe
from unmask.evaluation.workers import Worker, Workers, _portable, fingerprint, outline
from unmask.generation import partition
from unmask.tasks import find

pytest.importorskip("ray")
TASK = find("cups")
DATA = TASK.load(limit=10)
OPTIONS = Options(length=32, steps=8, batch=2)
COMMAND = [
    "eval",
    "--task",
    "cups",
    "--methods",
    "sacm,uniform",
    "--limit",
    "10",
    "--batch",
    "2",
    "--length",
    "32",
    "--steps",
    "8",
]
ALONE = {**os.environ, "PYTHONWARNINGS": "ignore"}


def methods(*names):
    return {name: for_task(TASK, [name], {})[name] for name in names}


def lines(folder):
    """Every line without its time, sorted, by method: a grader of one's own is part of the recipe, and so of the file's name."""
    found = {}
    for file in Path(folder).glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.name.rpartition("-")[0]] = sorted(
            json.dumps({k: v for k, v in row.items() if k != "seconds"}) for row in rows
        )
    return found


def graded(before):
    """The task, with something done before a response is graded. A closure, so that it travels to the workers by value."""
    grade = TASK.grade

    def act(text, row):
        before(row)
        return grade(text, row)

    return replace(TASK, grade=act)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """What one process makes of it."""
    out = tmp_path_factory.mktemp("straight")
    evaluate(unmask.load("tiny"), TASK, methods("sacm", "uniform"), DATA, OPTIONS, out)
    return lines(out)


@pytest.fixture(scope="module")
def workers():
    with Workers({"name": "tiny"}, 2) as workers:
        yield workers


def run(workers, task, out, *names):
    return evaluate(workers.model, task, methods(*names), DATA, OPTIONS, out, pool=workers)


def test_two_workers_write_the_lines_of_one_process(workers, straight, tmp_path):
    seen = tmp_path / "seen"
    seen.mkdir()
    task = graded(lambda row: (seen / str(os.getpid())).touch())
    summary = run(workers, task, tmp_path / "two", "sacm", "uniform")
    assert lines(tmp_path / "two") == straight and {len(rows) for rows in straight.values()} == {10}
    assert (
        len(list(seen.iterdir())) == 2 and not (seen / str(os.getpid())).exists()
    )  # both took part; the driver only wrote
    assert summary["methods"]["sacm"]["rows"] == 10
    about = json.loads(next((tmp_path / "two").glob("sacm-*.json")).read_text())["provenance"]
    assert (about["workers"], about["device"], about["threads"]) == (2, "cpu", 1)


def test_a_worker_killed_half_way(workers, straight, tmp_path, capfd):
    killed, victim = tmp_path / "killed", DATA.rows[4]

    def kill(row):
        if row == victim and not killed.exists():
            killed.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)

    with pytest.warns(UserWarning, match="^a worker died; another takes its place and its batch$"):
        run(workers, graded(kill), tmp_path / "out", "sacm", "uniform")
    assert killed.exists() and lines(tmp_path / "out") == straight
    assert capfd.readouterr().out == ""  # which belongs to --json


def test_a_batch_that_kills_every_worker_stops_the_run_and_loses_nothing(workers, straight, tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.evaluation.workers.LOST", 2)
    index = partition([len(workers.model.tokens(TASK.render(row))) for row in DATA.rows], 2)[-1][
        0
    ]  # the last to be dealt out
    victim = DATA.rows[index]

    deadly = tmp_path / "deadly"
    deadly.touch()

    def die(row):
        if row == victim and deadly.exists():
            os._exit(1)

    task, out = graded(die), tmp_path / "out"
    name = re.escape(TASK.identify(victim, index))
    told = rf"2 workers died over rows .*{name}\b.* \(not enough memory\?\); what was finished is kept, the same command resumes"
    with pytest.raises(UserError, match=told), pytest.warns(UserWarning, match="a worker died"):
        run(workers, task, out, "sacm")
    (name, kept), = lines(out).items()  # fmt: skip
    assert kept and set(kept) < set(straight[name])
    deadly.unlink()
    run(workers, task, out, "sacm")  # the same workers, the same folder
    assert lines(out)[name] == straight[name]


def test_what_a_worker_says_no_to_is_one_line_and_the_pool_goes_on(workers, straight, tmp_path):
    def refuse(row):
        raise UserError("this row is not for me")

    with pytest.raises(UserError, match=r"^this row is not for me$"):
        run(workers, graded(refuse), tmp_path, "sacm")
    run(workers, TASK, tmp_path, "sacm")
    assert all(rows == straight[name] for name, rows in lines(tmp_path).items())


def test_kill_9_of_the_driver_and_resume(workers, straight, tmp_path):
    command = [sys.executable, "-m", "unmask", *COMMAND, "--workers", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=ALONE)
    deadline = time.monotonic() + 900
    while time.monotonic() < deadline and process.poll() is None and not sum(map(len, lines_so_far(tmp_path))):
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    said = process.communicate()[1].decode()
    assert process.returncode == -signal.SIGKILL and said == "", said  # nor does Ray talk
    kept = sum(map(len, lines_so_far(tmp_path)))
    assert 0 < kept < 20
    run(workers, TASK, tmp_path, "sacm", "uniform")
    assert lines(tmp_path) == straight


def lines_so_far(folder):
    return [file.read_bytes().split(b"\n")[:-1] for file in Path(folder).glob("*.jsonl")]


def test_the_ranks_of_torchrun_write_the_same_lines(straight, tmp_path):
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        str(free_port()),
        "-m",
        "unmask",
    ]
    command = [*launch, *COMMAND, "--out", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**ALONE, "OMP_NUM_THREADS": "1"}, timeout=900)
    assert done.returncode == 0, done.stderr[-800:]
    assert json.loads(done.stdout)["methods"]["sacm"]["rows"] == 10  # rank 0 alone speaks
    assert lines(tmp_path) == straight


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_a_cluster_that_is_not_there(tmp_path, capsys):
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(SystemExit) as stopped:
        main([*COMMAND, "--workers", "2", "--ray-address", address, "--out", str(tmp_path)])
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"unmask: there is no Ray cluster at {address}; `ray start --head` starts one\n"


def test_ray_missing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit) as stopped:
        main([*COMMAND, "--workers", "2", "--out", str(tmp_path)])
    assert (
        stopped.value.code == 2
        and capsys.readouterr().err == 'unmask: --workers needs Ray: pip install "unmask[ray]"\n'
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workers", "0"], "--workers is at least 1, not 0"),
        (["--ray-address", "auto"], "--ray-address says where the workers are; say how many with --workers N"),
        (["--workers", "2", "--device", "cuda:1"], "each worker has a device of its own: --device cuda with --workers, not cuda:1"),
        (["--workers", "2", "--device-map", "auto"], "--device-map spreads one model over devices and --workers puts one on each: give one of them"),
    ],
)  # fmt: skip
def test_refusals(tmp_path, capsys, flags, message):
    with pytest.raises(SystemExit):
        main([*COMMAND, *flags, "--out", str(tmp_path)])
    assert capsys.readouterr().err == f"unmask: {message}\n"


def test_more_than_the_cluster_has(workers):
    with pytest.raises(UserError, match="the cluster has 2 CPUs: enough for --workers 2, not 5"):
        Workers({"name": "tiny"}, 5).__enter__()
    with pytest.raises(UserError, match="the cluster has 0 GPUs"):
        Workers({"name": "tiny", "device": "cuda"}, 1).__enter__()


@pytest.mark.parametrize("kind", ["tiny", "llada", "dream"])
def test_an_outline_names_the_run_as_the_model_does(tmp_path, kind):
    name = kind if kind == "tiny" else str(getattr(checkpoints, kind)(tmp_path / kind) or tmp_path / kind)
    made = [
        recipe(model, TASK, method("sacm"), DATA, OPTIONS, 0)
        for model in (unmask.load(name), outline({"name": name, "device": "cpu"}))
    ]
    assert made[0] == made[1]


def test_a_path_is_the_same_for_every_process_and_the_run_keeps_the_name_that_was_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "mine").mkdir()
    assert Workers({"name": "tiny"}, 1).loading["name"] == "tiny"  # the bundled one, as without workers
    here = Workers({"name": "./mine"}, 1)
    assert here.loading["name"] == str(tmp_path / "mine") and here.name == "./mine"


def test_other_weights_on_a_worker_are_refused():
    known = {**fingerprint(outline({"name": "tiny", "device": "cpu"})), "weights hash": "0" * 64}
    with pytest.raises(UserError, match=r"the weights hash of tiny on .* is \w{12}, and 000000000000 here"):
        Worker().load({"name": "tiny", "device": "cpu"}, 1, known)


def test_pictures_travel_as_bytes(tmp_path):
    (tmp_path / "a.png").write_bytes(b"a picture")
    batch = Batch(0, [0, 1], [{}, {}], ["", ""], [tmp_path / "a.png", b"another"], TASK, None, OPTIONS, 0)
    assert (
        _portable(batch).images == [b"a picture", b"another"] and _portable(replace(batch, images=None)).images is None
    )
