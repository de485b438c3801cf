"""A disk that fills up while a command writes: the kernel refuses the bytes (RLIMIT_FSIZE), and no half file is left.

A file where a folder must be made stands for every place that cannot be written: to root even a read-only folder is writable.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import checkpoints
from support.command import refused

from unmask import cli

CLI = [sys.executable, "-c", "from unmask.cli import main; main()"]
SMALL = ("--length", "32", "--steps", "2")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(checkpoints.llada(tmp_path_factory.mktemp("full") / "small"))


def run(words, folder: Path, bytes_: int | None = None, **options) -> subprocess.CompletedProcess:
    """A command in a folder where no file may grow beyond so many bytes."""

    def limit() -> None:
        if bytes_ is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, bytes_))

    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLCONFIGDIR": str(folder / "mpl")}
    return subprocess.run(
        [*CLI, *words], cwd=folder, env=environment, preexec_fn=limit, capture_output=True, text=True, **options
    )


def one_line(done: subprocess.CompletedProcess, *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("unmask: ") and "Traceback" not in done.stderr, done.stderr
    assert all(part in last for part in parts), last


@pytest.mark.parametrize(
    ("words", "bytes_"),
    [
        (("trace", "hi", "--methods", "sacm", *SMALL, "--raw", "-o", "out.html"), 4096),
        (("trace", "hi", "--methods", "sacm", *SMALL, "--raw", "-o", "out.json"), 64),
        (("figure", "failure-modes", "--prompt", "hi", *SMALL, "--raw", "-o", "out.png"), 4096),
        (("figure", "failure-modes", "--prompt", "hi", *SMALL, "--raw", "-o", "out.svg"), 4096),
    ],
    ids=lambda value: Path(value[-1]).suffix if isinstance(value, tuple) else "",
)
def test_no_half_picture_or_page(words, bytes_, model, tmp_path):
    (tmp_path / words[-1]).write_text("what was there before")
    one_line(run([*words, "--model", model], tmp_path, bytes_), f"cannot write {words[-1]}: File too large")
    assert (tmp_path / words[-1]).read_text() == "what was there before" and not list(tmp_path.glob("*.part"))


def test_verify(model, tmp_path, capsys, monkeypatch):
    one_line(
        run(["verify", model, "--length", "8", "-o", "figures.json"], tmp_path, 16), "cannot write figures.json: File"
    )
    assert not list(tmp_path.glob("figures.json*"))
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(SystemExit):
        cli.main(["verify", model, "--length", "8", "-o", "file/figures.json"])
    assert "cannot write file/figures.json: Not a directory" in capsys.readouterr().err


def test_reproduce_keeps_what_was_finished(tmp_path, capsys, monkeypatch):
    """What reached the disk is whole, and the same command goes on from there."""
    words = ["reproduce", "eot-ratio", "--model", "tiny", "--limit", "2", "--out", "out"]
    full = run(words, tmp_path, 2048)  # enough for a record, not for the examples of a run
    assert full.returncode == 2 and "Traceback" not in full.stderr, full.stderr
    for file in (tmp_path / "out").rglob("*.json"):
        json.loads(file.read_text())
    monkeypatch.chdir(tmp_path)
    cli.main(words)
    assert Path("out/results-eot-ratio.md").exists()
    Path("file").write_text("")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main([*words[:-1], "file"])
    assert "cannot write in file: " in capsys.readouterr().err


TRAIN = ["train", "--config", "new", "--vocab", "300", "--data", "rows.jsonl", "--length", "8", "--batch", "2"]


def test_training_says_what_is_kept(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text('{"prompt": "Say A.", "response": "A"}\n' * 4)
    one_line(run([*TRAIN, "--steps", "3", "--out", "a"], tmp_path, 4096), "cannot write a/training.pt", "make room")
    Path("b").write_text("")
    assert "cannot write in b" in refused(capsys, *TRAIN, "--steps", "3", "--out", "b")


@pytest.mark.parametrize("saved", [False, True])
def test_ctrl_c_while_training(saved, tmp_path):
    """Before the first save nothing is kept, and it does not say so; after it, the same command goes on."""
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Say A.", "response": "A"}\n' * 4)
    words = [*TRAIN, "--steps", "1000000", "--probe-every", "1" if saved else "1000000", "--out", "out"]
    going = subprocess.Popen(
        [*CLI, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        begun = time.monotonic()
        sign = tmp_path / "out" / ("training.pt" if saved else ".")
        while not sign.exists() and going.poll() is None and time.monotonic() - begun < 120:
            time.sleep(0.1)
        time.sleep(2)
        going.send_signal(signal.SIGINT)
        _, said = going.communicate(timeout=60)
    finally:
        going.kill()
    assert going.returncode == 130 and "Traceback" not in said, said
    kept = "the same command goes on from the last saved step" if saved else "nothing was saved yet"
    assert said.strip().splitlines()[-1] == f"unmask: stopped; {kept}"
