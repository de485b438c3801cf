"""The command line as a person uses it: real processes, on a small real checkpoint."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from support import checkpoints
from support.command import refused, run

from unmask import cli
from unmask.decoding.methods import METHODS


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return str(checkpoints.llada(tmp_path_factory.mktemp("llada")))


def test_help_is_quick_and_needs_no_torch():
    code = "import sys; sys.argv = ['unmask', '--help']\ntry:\n import unmask.cli; unmask.cli.main()\nexcept SystemExit: pass\nprint(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name, (_, _, summary, _) in cli.COMMANDS.items():
        assert name in done.stdout and summary in done.stdout


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_help_begins_with_a_line_to_type(name, capsys):
    with pytest.raises(SystemExit):
        cli.main([name, "--help"])
    assert f"\n  unmask {name}" in capsys.readouterr().out


def test_generate_prints_text_and_json_the_record(model, capsys):
    text = run(capsys, "generate", "Tom has", "--model", model, "--length", "32", "--method", "sacm")
    record = json.loads(run(capsys, "generate", "Tom has", "--model", model, "--length", "32", "--json"))
    assert text == record["text"] + "\n"
    assert {
        "prompt",
        "model",
        "method",
        "tokens",
        "order",
        "forwards",
        "tie_rate",
        "eot_ratio",
        "steps",
        "seed",
    } <= set(record)
    assert record["forwards"] <= 16 and len(record["tokens"]) == 32


def test_prompts_from_files_and_standard_input(model, tmp_path, capsys, monkeypatch):
    rows = [{"prompt": "Tom has", "id": 7}, {"messages": [{"role": "user", "content": "Ada"}]}, "How many?"]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    common = ("--model", model, "--length", "24", "--method", "top-margin", "--json")
    many = [
        json.loads(line)
        for line in run(capsys, "generate", "--prompts", str(tmp_path / "p.jsonl"), *common).splitlines()
    ]
    assert [r["input"].get("id") for r in many] == [7, None, None]
    (tmp_path / "p.txt").write_text("Tom has")
    one = json.loads(run(capsys, "generate", "--prompts", str(tmp_path / "p.txt"), *common))
    monkeypatch.setattr("sys.stdin", io.StringIO("Tom has"))
    piped = json.loads(run(capsys, "generate", "-", *common))
    assert one["tokens"] == many[0]["tokens"] == piped["tokens"]


def test_answers_go_to_the_file_while_the_bar_is_on_the_terminal(model, tmp_path):
    """Standard error is a terminal, standard output a file: the help's own example."""
    import pty

    rows = make(tmp_path / "p.jsonl", '"Tom has"\n"Ada \u2028 has"\n')
    command = [
        sys.executable,
        "-m",
        "unmask",
        "generate",
        "--prompts",
        str(rows),
        "--model",
        model,
        "--length",
        "24",
        "--batch",
        "1",
        "--json",
    ]
    master, slave = pty.openpty()
    with (tmp_path / "out.jsonl").open("w") as f:
        process = subprocess.Popen(
            command, stdout=f, stderr=slave, env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm"}
        )
        os.close(slave)
        seen = b""
        with contextlib.suppress(OSError):  # how a closed terminal ends
            while part := os.read(master, 4096):
                seen += part
    assert process.wait(timeout=60) == 0 and b"decoding" in seen
    assert len([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().split("\n") if line]) == 2


def test_settings_samples_stream_and_stop(model, capsys):
    common = ("generate", "Tom has", "--model", model, "--length", "24")
    record = json.loads(run(capsys, *common, "--set", "at=-6", "--set", "text=Tom", "--json"))
    assert record["order"][18] == -1  # the anchor stands where it was told to
    lines = run(capsys, *common, "--method", "uniform", "--samples", "3", "--json").splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [0, 1, 2]
    plain = run(capsys, *common, "--method", "semi-ar")
    assert run(capsys, *common, "--method", "semi-ar", "--stream") == plain


def test_compare_shows_each_method(model, capsys):
    out = run(capsys, "compare", "Tom has", "--model", model, "--length", "24", "--set", "at=-6", "--set", "kappa=3")
    assert [line.split()[0] for line in out.splitlines() if " forwards, EOT " in line] == [
        "top-probability", "suffix-anchor", "sacm",
    ]  # fmt: skip
    lines = run(capsys, "compare", "Tom", "--model", model, "--length", "24", "--methods", "uniform,semi-ar", "--json")
    assert [json.loads(line)["method"] for line in lines.splitlines()] == ["uniform", "semi-ar"]


def test_every_option_has_help():
    commands = next(action for action in cli.parser()._actions if hasattr(action, "choices") and action.choices)
    for name, parser in commands.choices.items():
        assert [action.dest for action in parser._actions if not action.help] == [], name


def test_frequencies_feed_uncode(model, tmp_path, capsys):
    (tmp_path / "corpus.txt").write_text("Tom has 3 apples\nTom has 4 apples\n")
    (tmp_path / "rows.jsonl").write_text('{"text": "Dear Ada"}\n')
    out = tmp_path / "f.json"
    run(
        capsys,
        "frequencies",
        str(tmp_path / "corpus.txt"),
        str(tmp_path / "rows.jsonl"),
        "--model",
        model,
        "-o",
        str(out),
    )
    table = json.loads(out.read_text())
    assert table["num_token"] == sum(table["p_baseline_dict"].values())
    common = ("generate", "Tom", "--model", model, "--length", "24", "--method", "uncode")
    assert run(capsys, *common, "--frequencies", str(out))
    assert "unmask frequencies" in refused(capsys, *common)
    assert "line 1" in refused(capsys, "frequencies", str(make(tmp_path / "bad.jsonl", "{}\n")), "--model", model)


def make(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_bad_input_is_one_line(model, tmp_path, capsys):
    common = ("--model", model, "--length", "24")
    assert "did you mean 'sacm'" in refused(capsys, "generate", "Tom", "--method", "sacmm", *common)
    assert "is empty" in refused(capsys, "generate", " ", *common)
    assert "one prompt" in refused(capsys, "generate", *common)
    assert "NAME=VALUE" in refused(capsys, "generate", "Tom", "--set", "kappa", *common)
    assert "no setting 'kapa'" in refused(capsys, "generate", "Tom", "--set", "kapa=3", *common)
    assert "none of these methods" in refused(capsys, "compare", "Tom", "--set", "kapa=3", *common)
    assert "cannot be read" in refused(capsys, "generate", "--prompts", str(tmp_path / "no.jsonl"), *common)
    assert "line 2: not JSON" in refused(
        capsys, "generate", "--prompts", str(make(tmp_path / "a.jsonl", '"x"\n{\n')), *common
    )
    assert "row 1: a row is" in refused(
        capsys, "generate", "--prompts", str(make(tmp_path / "b.jsonl", "[1]\n")), *common
    )
    assert "no directory" in refused(capsys, "generate", "Tom", "--model", str(tmp_path / "none"))
    (tmp_path / "latin.jsonl").write_bytes(b'"caf\xe9"\n')
    assert "not UTF-8" in refused(capsys, "generate", "--prompts", str(tmp_path / "latin.jsonl"), *common)
    assert "batch is a whole number, at least 1, not 0" in refused(capsys, "generate", "Tom", "--batch", "0", *common)


def test_interrupting_a_batch_keeps_what_is_finished(model, tmp_path):
    rows = make(tmp_path / "p.jsonl", '"Tom has"\n' * 400)
    out = tmp_path / "out.jsonl"
    command = [
        sys.executable,
        "-m",
        "unmask",
        "generate",
        "--prompts",
        str(rows),
        "--model",
        model,
        "--length",
        "64",
        "--batch",
        "2",
        "--json",
    ]
    with out.open("w") as f:
        process = subprocess.Popen(
            command,
            stdout=f,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        deadline = time.time() + 120
        while out.stat().st_size == 0 and time.time() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    lines = out.read_text().splitlines()
    assert process.returncode == 130 and err.strip().splitlines()[-1] == "unmask: stopped; what was finished is kept"
    assert 0 < len(lines) < 400 and all(json.loads(line)["text"] is not None for line in lines)


def test_verify_compares_with_the_published_code(tmp_path, capsys):
    """The stand-in for published code is an implementation of its own, loaded as remote code in another process."""
    model = checkpoints.llada(tmp_path / "m")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "configuration_small.SmallConfig", "AutoModel": "modeling_small.SmallModel"}
    (model / "config.json").write_text(json.dumps(config))
    code = tmp_path / "code"
    code.mkdir()
    make(code / "configuration_small.py", REMOTE_CONFIG)
    make(code / "modeling_small.py", REMOTE_MODEL)
    out = tmp_path / "v.json"
    text = run(capsys, "verify", str(model), "--remote-code", str(code), "--length", "24", "-o", str(out))
    record = json.loads(out.read_text())
    assert record["ok"] and record["remote"]["largest_difference"] < 1e-3 and record["remote"]["argmax_agreement"] == 1
    assert set(record["answers"]) == {"top-probability", "semi-ar", "suffix-anchor", "sacm"}
    assert text.startswith("ok ") and "published code" in text
    make(code / "modeling_small.py", REMOTE_MODEL.replace("/ d ** 0.5", "/ d ** 0.4"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["verify", str(model), "--remote-code", str(code), "--length", "24", "-o", str(out)])
    assert stop.value.code == 1 and "BAD" in capsys.readouterr().out
    make(code / "modeling_small.py", "raise RuntimeError('too old')")
    assert "too old" in refused(capsys, "verify", str(model), "--remote-code", str(code), "-o", str(out))
    assert "no modeling_" in refused(capsys, "verify", str(model), "--remote-code", str(tmp_path), "-o", str(out))


def test_bench_ratios_and_equal_tokens():
    """The measuring itself, on a shape small enough for a test; speed is claimed nowhere here."""
    from unmask.tools import bench

    shape = bench.Shape("test", d=16, layers=1, heads=2, rows=2, prompt=4, length=12, steps=4)
    record = bench.measure(shape, seconds=0)
    assert record["tokens_equal_reference"]
    assert all(record[key] > 0 for key in bench.AIMS if key in record)
    assert torch.equal(
        bench.finished(bench.ours(bench.build(shape), bench.blank(shape), METHODS["top-probability"], 4)),
        bench.finished(bench.reference(bench.build(shape), bench.blank(shape), 4)),
    )
    assert "sacm" in bench.table([{**record, "memory_over_reference": None}]).lower()


REMOTE_CONFIG = """
from transformers import PretrainedConfig

class SmallConfig(PretrainedConfig):
    model_type = "llada"
"""
REMOTE_MODEL = """
import torch
from types import SimpleNamespace
from torch import nn
from transformers import PreTrainedModel
from .configuration_small import SmallConfig

def norm(x, w): return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w

class Norm(nn.Module):
    def __init__(self, d): super().__init__(); self.weight = nn.Parameter(torch.ones(d))

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, kv, m = c.d_model, c.d_model // c.n_heads * c.n_kv_heads, c.mlp_hidden_size
        for name, a, b in [("q_proj", d, d), ("k_proj", d, kv), ("v_proj", d, kv), ("attn_out", d, d), ("ff_proj", d, m), ("up_proj", d, m), ("ff_out", m, d)]:
            setattr(self, name, nn.Linear(a, b, bias=False))
        self.attn_norm, self.ff_norm, self.c = Norm(d), Norm(d), c

    def forward(self, x):
        h, d, n = norm(x, self.attn_norm.weight), self.c.d_model // self.c.n_heads, x.shape[1]
        split = lambda y: y.view(1, n, -1, d).transpose(1, 2)
        angle = torch.arange(n)[:, None] * 500000.0 ** (-torch.arange(0, d, 2) / d)
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)
        turn = lambda y: y * cos + torch.cat((-y[..., d // 2:], y[..., :d // 2]), -1) * sin
        q, k, v = turn(split(self.q_proj(h))), turn(split(self.k_proj(h))), split(self.v_proj(h))
        k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
        a = (q @ k.transpose(-1, -2) / d ** 0.5).softmax(-1) @ v
        x = x + self.attn_out(a.transpose(1, 2).reshape(1, n, -1))
        h = norm(x, self.ff_norm.weight)
        return x + self.ff_out(nn.functional.silu(self.ff_proj(h)) * self.up_proj(h))

class Inner(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.wte = nn.Embedding(c.embedding_size, c.d_model)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.n_layers))
        self.ln_f, self.ff_out = Norm(c.d_model), nn.Linear(c.d_model, c.embedding_size, bias=False)

class SmallModel(PreTrainedModel):
    config_class = SmallConfig
    def __init__(self, config):
        super().__init__(config)
        self.model = nn.Module()
        self.model.transformer = Inner(config)
        self.post_init()
    def forward(self, ids):
        t = self.model.transformer
        x = t.wte(ids)
        for block in t.blocks: x = block(x)
        return SimpleNamespace(logits=t.ff_out(norm(x, t.ln_f.weight)))
"""
