"""Training from nothing, killed and resumed, on a very small model; and what it says to bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import unmask
from unmask.errors import UserError
from unmask.models.llada import LLaDAConfig
from unmask.tasks import toy
from unmask.training import train as training
from unmask.training.data import encode, masked_batch, paddings
from unmask.training.optim import orthogonal
from unmask.training.train import Recipe, start

RECIPE = Recipe(steps=40, batch=8, length=32, warmup=5)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a config of 2 layers and the suite's tokenizer."""
    where, tokenizer = tmp_path_factory.mktemp("config"), toy.tokenizer()
    made = LLaDAConfig(
        d_model=32, n_heads=2, n_layers=2, mlp_hidden_size=64, vocab_size=len(tokenizer), embedding_size=len(tokenizer), rope_theta=1e4,
        mask_token_id=tokenizer.convert_tokens_to_ids("<|mdm_mask|>"), pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
        architectures=["LLaDAModelLM"],
    )  # fmt: skip
    made.save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("pairs") / "pairs.jsonl"
    rows = [{"prompt": q.prompt, "response": f"The answer is {q.answer}."} for q in toy.questions("cups", "train", 30)]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return file


def weights(where: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(where / "model.safetensors")


def test_loss_falls_and_the_result_loads(config: Path, tmp_path: Path) -> None:
    recipe, losses = replace(RECIPE, steps=240, length=84), []
    line = start(recipe, tmp_path, config=str(config), tasks=["cups"], probe_every=120, report=losses.append)
    each = [record["loss"] for record in losses if "done" in record]
    assert len(each) == 240 and sum(each[-30:]) / 30 < 0.6 * each[0]
    assert [record["step"] for record in losses if "done" not in record] == [120, 240]
    assert line.startswith("loss ")
    model = unmask.load(tmp_path)
    assert model.length == 84 and model.vocab.frequency is not None
    made = json.loads((tmp_path / "config.json").read_text())
    assert made["model_type"] == "llada" and made["architectures"] == ["LLaDAModelLM"]
    assert "model.transformer.blocks.0.attn_out.weight" in weights(tmp_path)
    text = unmask.generate(
        model, ["The cups are A B C D. The ball is under B. First right. Where is the ball?"], "top-probability"
    )[0].text
    assert isinstance(text, str)


def test_a_killed_run_resumed_is_the_straight_one(config: Path, pairs: Path, tmp_path: Path) -> None:
    """kill -9 while it trains; the second start goes on, and ends with the same bits."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    program = (
        "import sys; from pathlib import Path; import torch; torch.set_num_threads(1)\n"
        "from unmask.training import train; from unmask.training.train import Recipe\n"
        "plain = train.train\n"
        "train.train = lambda *a, **k: plain(*a, **{**k, 'save_every': 0.0})\n"
        "train.start(Recipe(steps=60, batch=8, length=32, warmup=5), Path(sys.argv[1]), config=sys.argv[2], data=sys.argv[3], probe_every=20)\n"
    )

    def run(out: Path) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-c", program, str(out), str(config), str(pairs)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    assert run(straight).wait() == 0
    process = run(broken)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline and process.poll() is None:
        if (broken / "training.pt").is_file() and torch.load(broken / "training.pt", weights_only=True)["step"] >= 5:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, "the run ended before it could be killed"
    assert 5 <= torch.load(broken / "training.pt", weights_only=True)["step"] < 60
    assert not (broken / "model.safetensors").exists()
    assert run(broken).wait() == 0
    a, b = weights(straight), weights(broken)
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_another_run_is_not_resumed(config: Path, pairs: Path, tmp_path: Path) -> None:
    start(replace(RECIPE, steps=2), tmp_path, config=str(config), data=str(pairs))
    with pytest.raises(UserError, match="another run"):
        start(replace(RECIPE, steps=3), tmp_path, config=str(config), data=str(pairs))


def test_lora_trains_an_adapter_that_loads(config: Path, pairs: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    start(replace(RECIPE, steps=2), tmp_path / "base", config=str(config), data=str(pairs))
    before = weights(tmp_path / "base")
    start(replace(RECIPE, steps=5, lr=1e-2), tmp_path / "lora", model=str(tmp_path / "base"), data=str(pairs), lora=4)
    assert (tmp_path / "lora" / "adapter_config.json").is_file() and not (
        tmp_path / "lora" / "model.safetensors"
    ).exists()
    plain, adapted = unmask.load(tmp_path / "base"), unmask.load(tmp_path / "base", adapter=tmp_path / "lora")
    assert all(torch.equal(value, plain.module.state_dict()[name]) for name, value in before.items())
    ids = torch.tensor([plain.encode("Where is the ball?")])
    assert not torch.equal(plain.module(ids).logits, adapted.module(ids).logits)


def test_rainbow_padding_is_one_end_and_a_cycle() -> None:
    tokenizer = toy.tokenizer()
    padding = paddings(tokenizer, "rainbow")
    _, (response,) = encode(tokenizer, [("Where is the ball?", "The answer is B.")], 16, padding)
    names = tokenizer.convert_ids_to_tokens(response)
    assert names[:6] == ["The", "answer", "is", "B", ".", "<|endoftext|>"]
    assert names[6:] == [f"<|pad_{k % 7}|>" for k in range(10)]
    _, (plain,) = encode(tokenizer, [("Where is the ball?", "The answer is B.")], 16, paddings(tokenizer, "eot"))
    assert plain[5:] == [tokenizer.eos_token_id] * 11


def test_rainbow_tokens_end_the_text_when_decoding(config: Path, tmp_path: Path) -> None:
    start(replace(RECIPE, steps=2, length=84, padding="rainbow"), tmp_path, config=str(config), tasks=["cups"])
    model = unmask.load(tmp_path)
    pads = [model.tokenizer.convert_tokens_to_ids(f"<|pad_{k}|>") for k in range(7)]
    assert set(pads) < set(model.vocab.eot_ids)
    assert model.text([*model.tokens("The answer is B."), *pads]) == "The answer is B."


def test_masking() -> None:
    """Prompts are never masked, and t runs over the batch from low to high."""
    prompts, responses = [[7] * (3 + row % 2) for row in range(50)], [[8] * 40] * 50
    batch = masked_batch(
        prompts, responses, mask_id=5, pad_id=1, least=0.02, generator=torch.Generator().manual_seed(0)
    )
    assert batch.ids.shape == (50, 44) and not batch.masked[:, :4].any()
    assert torch.equal(batch.ids == 5, batch.masked)
    assert batch.valid[:, 0].tolist() == [row % 2 == 1 for row in range(50)]
    t = 1 / batch.weight[:, 0]
    assert bool((t.diff() > 0).all()) and float(t[0]) >= 0.02 and float(t[-1]) <= 1
    share = batch.masked[:, 4:].float().mean(1)
    assert float((share - t).abs().mean()) < 0.08


def test_orthogonal() -> None:
    x = orthogonal(torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0)), iterations=9)
    values = torch.linalg.svdvals(x)
    assert float(values.min()) > 0.6 and float(values.max()) < 1.3


def test_nan_stops_and_keeps_the_last_state(
    config: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = training.loss_of, []

    def broken(module: object, batch: object) -> torch.Tensor:
        calls.append(1)
        return plain(module, batch) * (torch.nan if len(calls) > 5 else 1.0)

    monkeypatch.setattr(training, "loss_of", broken)
    with pytest.raises(UserError, match="the loss is nan at step 5"):
        start(RECIPE, tmp_path, config=str(config), data=str(pairs), probe_every=4)
    state = torch.load(tmp_path / "training.pt", weights_only=True)
    assert state["step"] == 4 and all(bool(w.isfinite().all()) for w in state["weights"])


def test_a_full_disk_loses_nothing(config: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start(replace(RECIPE, steps=2), tmp_path, config=str(config), data=str(pairs))
    before = (tmp_path / "training.pt").read_bytes()

    def full(state: object, file: Path) -> None:
        file.write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"No space left.*untouched"):
        training.save({}, tmp_path / "training.pt")
    assert (tmp_path / "training.pt").read_bytes() == before and not (tmp_path / "training.tmp").exists()


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"prompt": "a", "response": "b"}', '{"prompt": "a"}'], 'line 2: a row needs a "response"'),
        (['{"response": "b"}'], 'line 1: a row needs a "prompt"'),
        (["{"], "line 1: not JSON"),
        ([], "holds no rows"),
        ([json.dumps({"prompt": "a", "response": "red " * 33})], "every response is longer than 32 tokens"),
    ],
)
def test_bad_rows_are_named(lines: list[str], says: str, config: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text("\n".join(lines))
    with pytest.raises(UserError, match=says):
        start(RECIPE, tmp_path / "out", config=str(config), data=str(tmp_path / "bad.jsonl"))


def test_long_responses_are_told_and_skipped(config: Path, tmp_path: Path) -> None:
    rows, told = ["north", "north " * 40, "south"], []
    (tmp_path / "long.jsonl").write_text(
        "\n".join(json.dumps({"prompt": "Where is the ball?", "response": r}) for r in rows)
    )
    start(
        replace(RECIPE, steps=2),
        tmp_path / "out",
        config=str(config),
        data=str(tmp_path / "long.jsonl"),
        tell=told.append,
    )
    assert len(told) == 1 and "1 of 3 responses are longer than 32 tokens and left out (lines 2)" in told[0]


@pytest.mark.parametrize(
    ("prompt", "response", "says"),
    [
        ("Where is the ball?", "north <|mdm_mask|>", "line 1: the response holds the mask token"),
        ("north " * 500, "north", "line 1: prompt and response take more than the 512 tokens"),
        ("zebra giraffe", "okapi lion", r"100.0 % of the tokens in .* are unknown to this tokenizer; `unmask train --config new"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_learnt_are_refused(prompt, response, says, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": prompt, "response": response}))
    with pytest.raises(UserError, match=says):
        start(replace(RECIPE, steps=1), tmp_path / "out", config="tiny", data=str(tmp_path / "rows.jsonl"))


def test_a_tokenizer_and_a_model_from_your_own_rows(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i} plus one?", "response": f"The sum is {i + 1}, naïvely."} for i in range(30)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    start(replace(RECIPE, steps=2), tmp_path / "out", config="new", vocab=400, data=str(tmp_path / "rows.jsonl"))
    model = unmask.load(tmp_path / "out")
    assert (
        model.text(model.tokens("The sum is 7, naïvely.")) == "The sum is 7, naïvely." and len(model.tokenizer) <= 400
    )
    assert len(unmask.generate(model, "What is 4 plus one?", "top-probability").tokens) == RECIPE.length
