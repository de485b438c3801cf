"""Bad input gets one line that names the fix, exit code 2, and loses nothing: a table of every kind, over all commands.

What the tests of a command's own package cover (wrong rows of a benchmark, a settings file of another model) is there.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import checkpoints
from support.command import refused

import unmask
from unmask.errors import UserError

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(checkpoints.llada(tmp_path_factory.mktemp("bad") / "small"))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where every command runs, with the files that they are given."""
    monkeypatch.chdir(tmp_path)
    Path("deep.jsonl").write_text(DEEP + "\n")
    Path("latin.jsonl").write_bytes(b'{"prompt": "caf\xe9"}\n')
    Path("number.jsonl").write_text('{"prompt": 5}\n')
    Path("true.jsonl").write_text('{"prompt": true}\n')
    Path("list.jsonl").write_text('{"prompt": [1.5, "x"]}\n')
    Path("ids.jsonl").write_text('{"prompt": [5, 99999]}\n')
    Path("half.jsonl").write_text('{"prompt": "half \\ud800 a character"}\n')
    Path("role.jsonl").write_text('{"messages": [{"role": "wizard", "content": "hi"}]}\n')
    Path("image.jsonl").write_text('{"prompt": "hi", "image": 5}\n')
    Path("folder").mkdir()
    return tmp_path


PROMPTS = {
    "deep.jsonl": "nested too deeply",
    "latin.jsonl": "is not UTF-8 text (byte 15); convert it first",
    "number.jsonl": "the prompt is text, messages or token ids, not 5",
    "true.jsonl": "the prompt is text, messages or token ids, not True",
    "list.jsonl": "a message is",
    "ids.jsonl": "a prompt holds token 99999, which",
    "half.jsonl": "half a character",
    "role.jsonl": "a role is system, user, assistant, not 'wizard'",
    "image.jsonl": "a picture is a path, bytes or a Pillow image, not 5",
    "folder": "folder cannot be read: Is a directory",
}


@pytest.mark.parametrize("file", PROMPTS)
def test_prompts(file, model, capsys):
    assert PROMPTS[file] in refused(
        capsys, "generate", "--prompts", file, "--model", model, "--length", 24, "--method", "top-probability"
    )


GENERATE = {
    ("--seed", 10**30): "seed is a whole number of at most 64 bits",
    ("--length", 0): "length is a whole number, at least 1, not 0",
    ("--steps", -1): "steps is a whole number, at least 1, not -1",
    ("--batch", 0): "batch is a whole number, at least 1, not 0",
    ("--samples", 0): "samples is a whole number, at least 1, not 0",
    ("--temperature", "nan"): "temperature is a number that is not negative, not nan",
    ("--temperature", "inf"): "temperature is a number that is not negative, not inf",
    ("--cfg", "nan"): "cfg is a number",
    ("--infill", "[MASK*999999999999]"): "asks for more tokens than any model takes",
    ("--infill", f"[MASK*{'9' * 5000}]"): "asks for more tokens than any model takes",
    ("--set", "kappa=0"): "kappa",
    ("--set", "kappa=nan"): "kappa",
    ("--set", "beta=-5"): "beta",
    ("--set", "gamma=-3"): "gamma",
    ("--set", "pace=-1"): "pace",
    ("--set", "pace=nan"): "pace",
    ("--set", "pace=1e300"): "pace",
    ("--set", "block=0"): "block",
    ("--set", "at=9.5"): "at is a whole number, not 9.5",
    ("--set", "defer=3"): "defer",
    ("--set", "remask=x"): "remask",
    ("--set", "select=1"): "select",
    ("--set", "nonsense=1"): "this method has no setting 'nonsense'",
    ("--set", "kappa"): "a setting is NAME=VALUE",
    ("--device", "nope"): "there is no device 'nope'",
    ("--device", "meta"): "there is no device 'meta'",
    ("--device", "xla"): "there is no device 'xla'",
    ("--device", "mps"): "mps",
    ("--device", "cuda"): "CUDA",
    ("--dtype", "float99"): "there is no dtype 'float99'",
    ("--method", "sacn"): "did you mean 'sacm'",
    ("--cache", "triple"): "the cache is none, prefix, dual, prefix-lm or near, not 'triple'",
    ("--cache", "dual:best=4"): "the cache is none, prefix, dual, prefix-lm or near, not 'dual:best=4'",
    ("--cache", "near:best=-1"): "best is a whole number, at least 0, not -1",
    ("--cache", "near:near=1.5"): "near is a whole number, at least 0, not 1.5",
    ("--cache", "near:again=x"): "again is a whole number, at least 0, not 'x'",
    ("--cache", "near:refresh=-16"): "refresh is a whole number, at least 0, not -16",
    ("--cache", "near:best=0,near=0"): "best and near are both 0",
    ("--cache", "near:far=4"): "the near cache has no setting 'far'; it has best, near, again, refresh",
    ("--cache", "near:"): "a setting is NAME=VALUE",
    ("--cache", "near", "--method", "wino"): "which the near cache cannot do",
    ("--set", "finish=0"): "finish is a whole number, at least 1, not 0",
    ("--set", "finish=1.5"): "finish is a whole number, at least 1, not 1.5",
    ("--set", "finish=2", "--method", "top-probability"): "an answer is waited for behind an anchor, and there is none",
    ("--set", "finish=2", "--method", "remdm"): "an answer is waited for behind an anchor, and there is none",
    ("--image", "none.png"): "there is no picture none.png",
    ("--ban", 99999): "there is no token 99999 to ban",
    ("--frequencies", "none.json"): "there is no frequency table none.json",
    ("--adapter", "folder"): "it is not a PEFT adapter directory",
}  # fmt: skip


@pytest.mark.parametrize("words", GENERATE, ids=lambda words: " ".join(map(str, words))[:40])
def test_generate(words, model, capsys):
    if words == ("--device", "cuda") and __import__("torch").cuda.is_available():
        pytest.skip("there is one")
    length = () if words[0] in ("--infill", "--length") else ("--length", 24)
    assert GENERATE[words] in refused(capsys, "generate", "Tom has", "--model", model, *length, *words)


def test_settings_of_remasking(model, capsys):
    many = ("--set", "rounds=1000000000")
    assert "rounds" in refused(capsys, "generate", "Tom", "--model", model, "--length", 24, "--method", "remdm", *many)
    assert "k " in refused(
        capsys, "generate", "Tom", "--model", model, "--length", 24, "--method", "remdm", "--set", "k=-1"
    )


OTHERS = {
    ("eval", "--task", "cups", "--length", "0"): "length is a whole number, at least 1, not 0",
    ("eval", "--task", "cups", "--methods", ""): "the list of names is empty",
    ("eval", "--task", "cups", "--limit", "0"): "--limit is at least 1, not 0",
    ("eval", "--task", "cups", "--seeds", "0"): "seeds is at least 1, not 0",
    ("eval",): "the following arguments are required: --task",
    ("compare", "hi", "--methods", ","): "the list of names is empty",
    ("doctor", "--task", "cups", "--count", "0"): "--count is at least 1, not 0",
    ("tune", "--task", "cups", "--out", "."): ". is a folder; say which file to write in it",
    ("tune", "--task", "cups", "--count", "0"): "--limit is at least 1, not 0",
    ("tune", "--task", "cups", "--best", "4"): "--best is a setting of the near cache: add --cache near",
    ("tune", "--task", "cups", "--cache", "near", "--kappa", "4"): "leave out --kappa",
    ("tune", "--task", "cups", "--cache", "near", "--best", "4,-1"): "--best takes whole numbers, as in --best 2,8; not '4,-1'",
    ("tune", "--task", "cups", "--cache", "near", "--best", "0", "--near", "0"): "best and near are both 0 at every point",
    ("eval", "--task", "gsm8k", "--methods", "sacm", "--set", "finish=True"): "gsm8k does not say how many tokens an answer has",
    ("figure", "failure-modes", "--task", "cups", "--at", "nan", "-o", "x.png"): "--at is a share of the steps, from 0 to 1",
    ("figure", "effects", "-o", "none/x.png"): "there is no folder none",
    ("trace", "hi", "--task", "cups"): "give a prompt or --task, not both",
    ("trace", "--task", "cups", "--rows", "9999"): "--rows takes row numbers from 0 to",
    ("report", "none"): "there is no run none",
    ("diff", "none", "none"): "there is no run none",
    ("grade", "none.jsonl", "--task", "cups"): "none.jsonl",
    ("grade", "deep.jsonl", "--task", "cups"): "nested too deeply",
    ("reproduce", "mane"): "there is no experiment 'mane'; did you mean 'main'?",
    ("accept", "--count", "0", "--split", "tuning"): "--count is at least 1, not 0",
    ("train", "--out", "o", "--config", "tiny"): "give --data FILE.jsonl or --task NAMES",
    ("train", "--out", "o", "--config", "tiny", "--task", "cups", "--cooldown", "nan"): "cooldown is a number from 0 to 1, not nan",
    ("train", "--out", "o", "--config", "tiny", "--task", "cups", "--steps", "0"): "steps is a whole number, at least 1, not 0",
    ("train", "--out", "o", "--config", "new", "--task", "cups"): "--config new makes a tokenizer from your rows",
    ("frequencies", "none.txt"): "none.txt cannot be read",
    ("verify", "folder"): "folder has no config.json",
    ("generat", "hi"): "there is no command 'generat'; did you mean 'generate'?",
}  # fmt: skip


@pytest.mark.parametrize("words", OTHERS, ids=lambda words: " ".join(words)[:50])
def test_other_commands(words, capsys):
    assert OTHERS[words] in refused(capsys, *words)


def damaged(folder: Path, change) -> Path:
    """A checkpoint whose config.json was changed."""
    where = checkpoints.llada(folder / "damaged")
    config = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps(change(config)))
    return where


CONFIGS = {
    "a list": (lambda config: [config], "is not a JSON object"),
    "null": (lambda config: None, "is not a JSON object"),
    "no architecture": (lambda config: {**config, "architectures": ["Other"]}, "an architecture unmask does not know"),
    "negative mask": (lambda config: {**config, "mask_token_id": -1}, "mask_token_id -1; it must be a token id from 0 to"),
    "mask beyond": (lambda config: {**config, "mask_token_id": 10**6}, "mask_token_id 1000000; it must be a token id"),
    "no mask": (lambda config: {**config, "mask_token_id": None}, "mask_token_id None; it must be a token id"),
    "fewer layers": (lambda config: {**config, "n_layers": 1}, "do not fit its config.json: 9 not expected"),
    "another width": (lambda config: {**config, "d_model": 64}, "do not fit its config.json"),
}  # fmt: skip


@pytest.mark.parametrize("kind", CONFIGS)
def test_checkpoints(kind, tmp_path, capsys):
    change, says = CONFIGS[kind]
    said = refused(capsys, "generate", "Tom", "--model", damaged(tmp_path, change))
    assert says in said and "ignore_mismatched_sizes" not in said


def test_a_broken_chat_template(tmp_path, capsys):
    where = checkpoints.llada(tmp_path / "damaged")
    for file in where.glob("*.jinja"):
        file.write_text("{{ messages[99]['role'].nothing() }}")
    assert "the chat template of" in refused(capsys, "generate", "Tom", "--model", where, "--length", 24)


def test_a_bad_device_map(model, capsys):
    assert "the device map 'nonsense' cannot be used" in refused(
        capsys, "generate", "Tom", "--model", model, "--device-map", "nonsense"
    )


TRACES = {
    "no version": {"format": "unmask-trace", "runs": []},
    "a billion tokens": {"format": "unmask-trace", "version": 1, "runs": [{"length": 10**9, "mask_id": 0, "eot_ids": [], "steps": [], "tokens": {}}]},
    "a slot out of range": {"format": "unmask-trace", "version": 1, "runs": [
        {"length": 2, "mask_id": 0, "eot_ids": [], "tokens": {}, "steps": [{"guess": [7, 1], "base": [1], "chosen": [7]}]}]},
    "not ours": {"format": "else"},
}  # fmt: skip


@pytest.mark.parametrize("kind", TRACES)
def test_traces(kind, capsys):
    Path("run.json").write_text(json.dumps(TRACES[kind]))
    said = refused(capsys, "trace", "run.json", "-o", "x.html")
    assert "run.json is damaged" in said or "is not a trace file" in said
    Path("run.json.gz").write_bytes(gzip.compress(b"{}")[:-3])
    assert "damaged" in refused(capsys, "trace", "run.json.gz", "-o", "x.html")
    assert not Path("x.html").exists()


def test_run_files(capsys):
    Path("runs").mkdir()
    Path("runs/sacm-1.json").write_text(json.dumps({"recipe": {}, "summary": {}}))
    assert "is not a whole record of a run: it lacks method" in refused(capsys, "report", "runs")
    Path("runs/sacm-1.json").write_text(DEEP)
    assert "nested too deeply" in refused(capsys, "report", "runs")


def test_a_damaged_training_state(tmp_path, capsys):
    Path("out").mkdir()
    Path("out/training.pt").write_bytes(b"PK not a zip")
    words = ("train", "--config", "tiny", "--task", "cups", "--steps", 1, "--out", "out")
    assert "out/training.pt is damaged" in refused(capsys, *words)
    assert Path("out/training.pt").read_bytes() == b"PK not a zip"  # nothing is lost


WRITING = {
    ("frequencies", "text.txt", "-o", "folder"): "cannot write folder",
    ("trace", "hi", "--length", "24", "--methods", "top-probability", "--raw", "-o", "folder.html"): "folder.html is a folder",
    ("train", "--config", "tiny", "--task", "cups", "--steps", "1", "--out", "file"): "file",
    ("accept", "--freeze", "none/frozen.json"): "cannot write none/frozen.json",
}  # fmt: skip


@pytest.mark.parametrize("words", WRITING, ids=lambda words: words[0])
def test_writing(words, capsys):
    Path("text.txt").write_text("some text\n")
    Path("file").write_text("")
    Path("folder.html").mkdir()
    assert WRITING[words] in refused(capsys, *words)


def command(*words: str, **options) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "unmask", *words], capture_output=True, env=environment, **options)


def test_streams():
    """Standard input and output as a shell may hand them over; in processes of their own."""
    said = command("generate", b"\xff\xfe")
    assert said.returncode == 2 and b"is not UTF-8 text" in said.stderr and said.stderr.count(b"\n") == 1
    said = command("generate", "-", stdin=subprocess.DEVNULL)
    assert said.returncode == 2 and said.stderr == b"unmask: the prompt is empty\n"
    said = command("generate", "-", preexec_fn=lambda: os.close(0))
    assert said.returncode == 2 and said.stderr == b"unmask: standard input cannot be read: it is closed\n"
    said = command("generate", "-", input=b"caf\xe9")
    assert (
        said.returncode == 2 and said.stderr == b"unmask: standard input is not UTF-8 text (byte 3); convert it first\n"
    )
    plain = command("reproduce", "list", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert plain.returncode == 0 and b"\\u201c" in plain.stdout and plain.stderr == b""
    with open("/dev/full", "w") as full:
        said = subprocess.run([sys.executable, "-m", "unmask", "methods"], stdout=full, stderr=subprocess.PIPE)
    assert said.returncode == 2 and said.stderr == b"unmask: cannot write the output: No space left on device\n"


def test_what_nobody_foresaw_is_one_line_and_a_file(monkeypatch, capsys):
    from unmask import cli

    def broken(argv):
        raise ZeroDivisionError("deep inside")

    monkeypatch.setattr(cli, "run", broken)
    monkeypatch.delenv("UNMASK_DEBUG", raising=False)
    with pytest.raises(SystemExit) as stop:
        cli.main(["methods"])
    said = capsys.readouterr().err
    assert stop.value.code == 1 and said.count("\n") == 1 and "ZeroDivisionError: deep inside" in said
    file = Path(said.split("report it with ")[1].split(" (")[0])
    assert "Traceback" in file.read_text()
    file.unlink()
    monkeypatch.setenv("UNMASK_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli.main(["methods"])


def test_in_python_too(model):
    small = unmask.load(model)
    for options, says in (
        ({"seed": 2**70}, "seed"),
        ({"temperature": math.nan}, "temperature"),
        ({"length": 2.5}, "length"),
    ):
        with pytest.raises(UserError, match=says):
            unmask.generate(small, "Tom", "top-probability", **{"length": 8, **options})
    done = unmask.generate(small, (text for text in ("Tom", "Ada")), "top-probability", length=8, stop="answer")
    assert len(done) == 2  # a generator, and one stop string
