"""Inside lm-evaluation-harness: likelihoods worked out by hand, both ways of evaluating alike, caches, ranks, bad input."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support import checkpoints
from support.scripted import VOCAB, Hashed, Scripted
from tokenizers import processors

import unmask
from unmask import cli, harness
from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask
from unmask.errors import UserError
from unmask.evaluation import evaluate
from unmask.evaluation.recipe import Options, for_task
from unmask.harness import rows
from unmask.harness.likelihood import Pair, log_likelihoods, masks
from unmask.tasks import find, tasks
from unmask.tasks.sandbox import isolation

pytest.importorskip("lm_eval", reason='pip install "unmask[lm-eval]"')
from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from unmask.harness import model as plug
from unmask.harness.model import Unmask


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> str:
    return str(checkpoints.llada(tmp_path_factory.mktemp("llada")))


@pytest.fixture(scope="module")
def lm(small) -> Unmask:
    return Unmask(small, batch=4, length=24, method="top-probability", device="cpu")


@pytest.fixture(autouse=True)
def no_survey(monkeypatch):
    """lm-eval asks pip and git about this machine after every run, which takes longer than the run."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


def scripted(denoiser) -> SimpleNamespace:
    """A model of which only the denoiser is known."""
    return SimpleNamespace(
        vocab=VOCAB, device="cpu", denoiser=lambda cfg=0.0: SimpleNamespace(begin=lambda canvas: denoiser)
    )


def scores(model, pairs, **options) -> list[float]:
    found = dict(log_likelihoods(model, pairs, **options))
    return [found[i] for i in range(len(pairs))]


def requests(*pairs, kind="loglikelihood"):
    return [Instance(kind, {}, args, i, metadata=("t", i, 1)) for i, args in enumerate(pairs)]


# ---------------------------------------------------------------- likelihood


def test_one_token_is_the_log_softmax(lm):
    text = lm.model.tokens("Tom has 3 apples")
    ids = torch.tensor([[*text[:-1], lm.model.vocab.mask_id]])
    expected = lm.model.module(input_ids=ids).logits[0, -1].float().log_softmax(-1)[text[-1]].item()
    assert scores(lm.model, [Pair(text[:-1], text[-1:])], samples=1) == pytest.approx([expected], abs=1e-5)
    assert scores(lm.model, [Pair(text[:-1], text[-1:])], samples=128) == pytest.approx([expected], abs=1e-5)


def test_weights_of_every_slot_add_up_to_one():
    for length in range(1, 7):
        found = list(masks(length, 2**length - 1, 0))
        assert len(found) == 2**length - 1 and all(any(inside) for inside, _ in found)
        for slot in range(length):
            assert sum(weight for inside, weight in found if inside[slot]) == pytest.approx(1)
    drawn = list(masks(10, 20, 5))  # twice each size, L / (l * 20)
    assert sorted(sum(inside) for inside, _ in drawn) == sorted([*range(1, 11)] * 2)
    assert all(weight == pytest.approx(10 / (sum(inside) * 20)) for inside, weight in drawn)


def test_two_tokens_by_hand():
    """p(a) = 1/2 and p(b) = 1/4 wherever they stand: each set counts what it masks, and the weights make it log 1/8."""
    model = scripted(Scripted({4: 0.5}, {5: 0.25}))
    assert scores(model, [Pair([7], [4, 5])], samples=3) == pytest.approx([math.log(1 / 8)])


def test_all_sets_are_the_mean_chain_rule_over_all_orders():
    denoiser, context, target = Hashed(), [5, 6], [3, 8, 4]
    chains = []
    for order in permutations(range(3)):
        shown, total = [VOCAB.mask_id] * 3, 0.0
        for slot in order:
            canvas = Canvas.blank([context], 3, VOCAB).with_response(torch.tensor([shown]))
            ask = Ask(canvas, slice(0, 3), canvas.masked, None, 0)
            logits = denoiser.logits(ask, torch.tensor([0]), torch.tensor([slot]))(slice(0, 1))[0]
            total += logits.log_softmax(-1)[target[slot]].item()
            shown[slot] = target[slot]
        chains.append(total)
    assert scores(scripted(denoiser), [Pair(context, target)], samples=7) == pytest.approx([sum(chains) / 6], abs=1e-5)


def test_draws_are_unbiased_and_exact_where_all_tokens_are_alike():
    alike = scripted(Scripted(*[{4: 0.3}] * 10))
    assert scores(alike, [Pair([7], [4] * 10)], samples=3) == pytest.approx([10 * math.log(0.3)], abs=1e-4)
    chances = [0.05 + 0.09 * i for i in range(10)]  # independent: log p is the sum, whatever else is masked
    model, pair = scripted(Scripted(*[{4: p} for p in chances])), Pair([7], [4] * 10)
    expected = sum(map(math.log, chances))
    drawn = torch.tensor([scores(model, [pair], samples=4, seed=seed)[0] for seed in range(300)], dtype=torch.float64)
    assert drawn.std() > 0.1
    assert abs(drawn.mean() - expected) < 4 * drawn.std() / math.sqrt(300)


def test_likelihoods_depend_on_seed_and_pair_alone(lm):
    text = lm.model.tokens("Tom has 3 apples and buys 4 more. How many apples does he have? The answer is 7.")
    pairs = [Pair(text[:9], text[9:19]), Pair(text[:4], text[4:14]), Pair(text[:6], text[6:9])]
    first = scores(lm.model, pairs, samples=16, seed=3, batch=1)
    assert scores(lm.model, pairs, samples=16, seed=3, batch=1) == first
    assert scores(lm.model, pairs[::-1], samples=16, seed=3, batch=5) == pytest.approx(first[::-1], abs=1e-3)
    assert scores(lm.model, pairs, samples=16, seed=4, batch=1)[:2] != first[:2]
    assert scores(lm.model, pairs[2:], samples=16, seed=4, batch=1) == first[2:]  # 7 sets: nothing is drawn


def test_loglikelihood_and_greedy(lm):
    context = "Tom has 3"
    ids = lm.model.tokens(context)
    best = unmask.generate(lm.model, [ids], "top-probability", length=1)[0].tokens
    token = lm.tokenizer.decode(best)
    assert lm.model.tokens(context + token) == [*ids, *best]
    (value, greedy), (_, other) = lm.loglikelihood(requests((context, token), (context, " apples")), disable_tqdm=True)
    assert greedy and not other
    assert value == pytest.approx(scores(lm.model, [Pair(ids, best)])[0], abs=1e-5)
    lazy = Unmask(str(lm.identity["pretrained"]), greedy=False)
    assert lazy.loglikelihood(requests((context, token)), disable_tqdm=True)[0] == (
        pytest.approx(value, abs=1e-5),
        False,
    )


def test_rolling_adds_up_windows(small, lm):
    (one,) = lm.loglikelihood_rolling(requests(("Tom",), kind="loglikelihood_rolling"), disable_tqdm=True)
    bos, target = lm.tokenizer.bos_token_id, lm.model.tokens("Tom")
    assert one == pytest.approx(scores(lm.model, [Pair([bos], target)], seed=0)[0], abs=1e-5)
    tight = Unmask(small, mc_num=15)
    tight.model.module.config.max_sequence_length = 5  # windows of 4 targets after one token
    ids = tight.model.tokens("zxq wvk jg")
    assert 8 < len(ids) <= 12
    pairs = [
        Pair([bos], ids[:4]),
        Pair(ids[3:4], ids[4:8]),
        Pair(ids[5:8], ids[8:]),
    ]  # the last one has all the context that fits
    (whole,) = tight.loglikelihood_rolling(requests(("zxq wvk jg",), kind="loglikelihood_rolling"), disable_tqdm=True)
    assert whole == pytest.approx(sum(scores(tight.model, pairs, samples=15)), abs=1e-4)


def test_multiple_choice_of_a_task_file(small, tmp_path):
    (tmp_path / "own.py").write_text(
        "def load(**_):\n    from datasets import Dataset\n"
        "    return {'test': Dataset.from_list([{'q': 'Tom has 3', 'gold': 0}, {'q': 'How many apples', 'gold': 1}])}\n"
    )
    (tmp_path / "own.yaml").write_text(
        "task: own_choice\ncustom_dataset: !function own.load\noutput_type: multiple_choice\ntest_split: test\n"
        "doc_to_text: q\ndoc_to_target: gold\ndoc_to_choice: [apples, 'does he have']\nmetric_list: [{metric: acc}]\n"
    )
    found = simple_evaluate(
        model="unmask", model_args={"pretrained": small, "mc_num": 7}, tasks=["own_choice"], batch_size=8, bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
    )  # fmt: skip
    plain = Unmask(small)
    right = []
    for sample, (question, gold) in zip(
        found["samples"]["own_choice"], [("Tom has 3", 0), ("How many apples", 1)], strict=True
    ):
        pairs = [Pair(*plain._encode_pair(question, f" {choice}")) for choice in ("apples", "does he have")]
        expected = scores(plain.model, pairs, samples=7)
        assert [answer[0] for answer in sample["filtered_resps"]] == pytest.approx(expected, abs=1e-4)
        right.append(float(max(range(2), key=expected.__getitem__) == gold))
    assert found["results"]["own_choice"]["acc,none"] == sum(right) / 2


# ---------------------------------------------------------------- both paths


def harnessed(task, **model_args):
    limit, batch = model_args.pop("limit", 6), model_args.pop("batch_size", 4)
    options = {
        name: model_args.pop(name) for name in ("use_cache", "gen_kwargs", "apply_chat_template") if name in model_args
    }
    return simple_evaluate(
        model="unmask", model_args=model_args, tasks=[f"unmask_{task}"], limit=limit, batch_size=batch, bootstrap_iters=0,
        task_manager=TaskManager(include_path=str(harness.FOLDER), include_defaults=False, metadata=model_args),
        **{"apply_chat_template": True, **options},
    )  # fmt: skip


def responses(found) -> list[str]:
    (samples,) = found["samples"].values()
    return [sample["filtered_resps"][0] for sample in samples]


@pytest.mark.parametrize(("name", "checkpoint", "settings"), [("sacm", "tiny", {"kappa": 9}), ("uniform", "small", {})])
def test_eval_and_lm_eval_agree(name, checkpoint, settings, small, tmp_path):
    """The same rows, the same batches, the same seeds: the same responses and the same scores, line by line."""
    task, path = find("compass"), small if checkpoint == "small" else checkpoint
    strategy = for_task(task, [name], settings)[name]
    options = Options(length=48, steps=12, batch=4, seed=2)
    data = task.load(limit=9)
    ours = evaluate.evaluate(unmask.load(path), task, {name: strategy}, data, options, tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    lines = sorted(map(json.loads, file.read_text().splitlines()), key=lambda line: line["index"])
    found = harnessed("compass", pretrained=path, method=name, length=48, steps=12, seed=2, limit=9, **settings)
    assert responses(found) == [line["response"] for line in lines]
    assert len(set(responses(found))) > 1
    samples = found["samples"]["unmask_compass"]
    assert [sample["acc"] for sample in samples] == [float(line["correct"]) for line in lines]
    assert found["results"]["unmask_compass"]["acc,none"] == ours["methods"][name]["accuracy"]
    assert found["results"]["unmask_compass"]["answer_found,none"] == ours["methods"][name]["answer_found"]
    assert found["config"]["unmask"]["settings"]["seed"] == 2


def test_samples_keep_their_seeds_and_repeats_get_their_own(lm):
    docs = [{"index": i} for i in (0, 3)]
    plan = lm.plan({"task": "cups"})
    twice = [
        request
        for i, doc in enumerate(docs)
        for request in [Instance("generate_until", doc, ("x", {}), 0, metadata=("t", i, 2))] * 2
    ]
    assert lm._seeds(twice, [plan] * 4) == [0, 1_000_000, 3, 1_000_003]
    assert lm._seeds(twice, [lm.plan({})] * 4) == [0, 1_000_000, 1, 1_000_001]


def test_every_text_task_has_its_file():
    found = {file.stem.removeprefix("unmask_"): load_yaml(file) for file in harness.FOLDER.glob("*.yaml")}
    assert set(found) == {name for name, task in tasks().items() if not task.image}
    for name, config in found.items():
        assert config["task"] == f"unmask_{name}"
        assert config["dataset_kwargs"]["task"] == config["generation_kwargs"]["task"] == name
        assert [metric["metric"] for metric in config["metric_list"]] == ["acc", "answer_found", *find(name).modes]
        assert config.get("unsafe_code", False) is find(name).executes


ROWS = {  # made up; (file, row, a right response, a wrong one)
    "gsm8k": ("test.jsonl", {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}, "The answer is $4.00.", "The answer is 5"),
    "math500": ("test.jsonl", {"problem": "Half of 3?", "answer": "\\frac{3}{2}", "unique_id": "a/1"}, "The answer is 3/2.", "3"),
    "strategyqa": ("test.jsonl", {"qid": "q", "question": "Is ice cold?", "answer": True}, "The answer is yes.", "The answer is no."),
    "mmlu_pro": ("test.jsonl", {"question_id": 1, "question": "Which?", "options": ["a", "b"], "answer": "B", "category": "x"},
                 "the answer is (B)", "the answer is (A)"),
    "humaneval": ("HumanEval.jsonl", {"task_id": "H/0", "prompt": "def one():\n", "entry_point": "one", "test": "def check(f):\n    assert f() == 1\n"},
                  "    return 1", "    return 2"),
    "mbpp": ("mbpp.jsonl", {"task_id": 11, "text": "Write one().", "code": "def one(): return 1", "test_list": ["assert one() == 1"]},
             "[BEGIN]\ndef one():\n    return 1\n[DONE]", "def one(): return 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_from_files_and_our_grades(name, tmp_path, monkeypatch):
    file, row, right, wrong = ROWS[name]
    folder = tmp_path / name
    folder.mkdir()
    (folder / file).write_text(
        "".join(
            json.dumps({**row, "task_id": i} if name == "mbpp" else row) + "\n"
            for i in ((2, 3, 4, 11) if name == "mbpp" else [0])
        )
    )
    if name == "mmlu_pro":
        (folder / "validation.jsonl").write_text(
            json.dumps({**row, "question": "Shot?", "cot_content": "A: Because."}) + "\n"
        )
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    (document,) = rows.load(name, version=1.0, method="sacm")["test"]
    task = find(name)
    shots = task.shots.load(name, str(tmp_path), beside=True).rows if task.shots else ()
    assert document["prompt"] == task.render(task.rows.load(name, str(tmp_path)).rows[0], shots)
    assert name != "mmlu_pro" or "Shot?" in document["prompt"]
    if task.executes and isolation() == "none":
        pytest.skip("this system cannot isolate code")
    good, bad = rows.grade(document, [right]), rows.grade(document, [wrong])
    assert (good["acc"], bad["acc"], good["answer_found"]) == (1.0, 0.0, 1.0)
    assert set(good) == {"acc", "answer_found", *task.modes}


# ---------------------------------------------------------------- settings, templates


def test_settings_task_then_model_args_then_request(small):
    lm = Unmask(small, method="sacm", kappa=9, at=-8.0)  # lm-eval reads at=-8 as a float
    own, stock = (
        lm.plan({"until": [], "task": "mbpp"}),
        lm.plan({"until": "Q:", "max_gen_toks": 77, "do_sample": False, "temperature": 0.0}),
    )
    assert "text='return'" in repr(own.strategy) and "at=-8)" in repr(own.strategy) and "kappa=9" in repr(own.strategy)
    assert (own.decoding.length, own.decoding.stop) == (find("mbpp").length, ())
    assert (stock.decoding.length, stock.decoding.stop, stock.decoding.temperature) == (77, ("Q:",), None)
    asked = lm.plan({"task": "mbpp", "kappa": 5, "length": 64, "method": "sacm-margin", "seed": 7, "text": "So"})
    assert (
        "kappa=5" in repr(asked.strategy)
        and "text='So'" in repr(asked.strategy)
        and "TopMargin" in repr(asked.strategy)
    )
    assert asked.decoding.length == 64 and asked.decoding.seed == 7
    assert lm.plan({"do_sample": True}).decoding.temperature == 1.0
    assert (
        Unmask(small, temperature=0.5, length=30).plan({"temperature": 0.0, "max_gen_toks": 9}).decoding.temperature
        == 0.5
    )


@pytest.mark.parametrize(("settings", "said"), [
    ({"kapa": 3}, "no setting 'kapa'; it has"), ({"method": "scam"}, "did you mean 'sacm'"), ({"batch_size": "auto"}, "fixed size"),
    ({"length": 0}, "length is a whole number"), ({"steps": "many"}, "steps is a whole number"), ({"mc_num": 0}, "mc_num is"),
    ({"cache": "big"}, "the cache is none"), ({"temperature": -1.0}, "temperature is a number"), ({"at": 0.5}, "at is a whole number"),
    ({"method": "uniform", "kappa": 3}, "no setting 'kappa'"), ({"greedy": "no"}, "greedy is True or False"),
])  # fmt: skip
def test_settings_refused_before_a_model_is_loaded(settings, said, monkeypatch):
    monkeypatch.setattr(plug, "load", lambda *_, **__: pytest.fail("loaded"))
    with pytest.raises(UserError, match=said) as error:
        Unmask("tiny", **settings)
    assert "\n" not in str(error.value)


def test_requests_refused(lm):
    for kwargs, said in (
        ({"top_p": 0.9}, "no setting 'top_p'"),
        ({"num_beams": 4}, "beams"),
        ({"task": "gsm9k"}, "did you mean"),
    ):
        with pytest.raises(UserError, match=said):
            lm.plan(kwargs)
    with pytest.raises(UserError, match=r"request 0 of t takes \d+ tokens with its response"):
        lm.generate_until(requests(("x " * 600, {}), kind="generate_until"))
    with pytest.raises(UserError, match="to score takes"):
        lm.loglikelihood(requests(("x " * 600, "y")))


@pytest.mark.parametrize("adds_bos", [False, True])
def test_bos_comes_once(adds_bos, tmp_path):
    where = checkpoints.llada(tmp_path / "m")
    lm = Unmask(str(where))
    bos = lm.tokenizer.bos_token_id
    if adds_bos:  # a tokenizer that writes bos of its own accord
        lm.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|startoftext|> $A", special_tokens=[("<|startoftext|>", bos)]
        )
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 * 7?"}]
    text = lm.apply_chat_template(talk)
    assert lm.tok_encode(text) == lm.model.encode(talk) and lm.tok_encode(text).count(bos) == 1
    assert lm.tok_encode("What is").count(bos) == int(adds_bos)
    context, target = lm._encode_pair(text, "84")
    assert context == lm.model.encode(talk) and target == lm.model.tokens("84")
    begun = lm.apply_chat_template([*talk, {"role": "assistant", "content": "It is"}], add_generation_prompt=False)
    assert begun.endswith("It is") and lm.tok_encode(begun).count(bos) == 1
    lm.tokenizer.chat_template = None
    with pytest.raises(UserError, match="leave out --apply_chat_template"):
        lm.apply_chat_template(talk)


def test_prompts_of_tokens(lm):
    ids = lm.model.encode("Tom has 3 apples")
    text, tokens = (unmask.generate(lm.model, [prompt], "sacm", length=32) for prompt in ("Tom has 3 apples", ids))
    assert text[0].tokens == tokens[0].tokens


# ---------------------------------------------------------------- caches


@pytest.fixture
def counted(monkeypatch) -> list[int]:
    """How many prompts each call decoded."""
    calls: list[int] = []

    def generations(model, prompts, *rest):
        calls.append(len(prompts))
        return unmask.generations(model, prompts, *rest)

    monkeypatch.setattr(plug, "generations", generations)
    return calls


def test_one_cache_file_keeps_settings_apart(small, tmp_path, counted):
    base = {"pretrained": small, "length": 24, "method": "top-probability", "use_cache": str(tmp_path / "answers")}
    first = responses(harnessed("cups", **base))
    assert sum(counted) == 6 and list(tmp_path.glob("*.db")) == [tmp_path / "answers_rank0.db"]
    assert responses(harnessed("cups", **base)) == first and sum(counted) == 6
    others = [
        {"steps": 3},
        {"method": "suffix-anchor", "at": -9},
        {"cfg": 1.5},
        {"seed": 1},
        {"batch_size": 2},
        {"length": 20},
        {"gen_kwargs": {"seed": 5}},
    ]
    for number, other in enumerate(others, 2):
        found = responses(harnessed("cups", **{**base, **other}))
        assert sum(counted) == 6 * number, other
        assert found != first or "seed" in str(other) or "batch" in str(other)
    assert responses(harnessed("cups", **base)) == first and sum(counted) == 6 * (1 + len(others))


def test_another_checkpoint_in_the_same_place_is_another_model(tmp_path, counted):
    base = {
        "pretrained": str(tmp_path / "m"),
        "length": 24,
        "use_cache": str(tmp_path / "answers"),
        "limit": 2,
        "method": "semi-ar",
    }
    checkpoints.llada(tmp_path / "m")
    first = responses(harnessed("cups", **base))
    checkpoints.llada(tmp_path / "m", seed=1)
    assert responses(harnessed("cups", **base)) != first and sum(counted) == 4


def test_what_a_killed_run_had_finished_is_kept(small, tmp_path, counted, monkeypatch):
    base = {"pretrained": small, "length": 24, "method": "top-probability"}
    straight = responses(harnessed("cups", limit=10, **base))
    counted.clear()
    inner = plug.generations
    monkeypatch.setattr(
        plug,
        "generations",
        lambda *a, **o: inner(*a, **o) if len(counted) < 1 else (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        harnessed("cups", limit=10, use_cache=str(tmp_path / "c"), **base)
    monkeypatch.setattr(plug, "generations", inner)
    assert responses(harnessed("cups", limit=10, use_cache=str(tmp_path / "c"), **base)) == straight
    assert counted == [4, 4, 2]


def test_likelihoods_are_cached_by_their_settings(small, tmp_path):
    from lm_eval.api.model import CachingLM

    asked = requests(("Tom has 3", " apples and buys 4 more. How many"))

    def value(**settings):
        kept = CachingLM(Unmask(small, **settings), str(tmp_path / "l.db"))
        return kept.loglikelihood(asked)[0][0], kept

    (first, _), (other, _), (more, _) = value(mc_num=4), value(mc_num=4, seed=1), value(mc_num=8)
    again, kept = value(mc_num=4)
    assert first == again and len({first, other, more}) == 3 and len(kept.dbdict) == 1


# ---------------------------------------------------------------- the command


def refused(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(["lm-eval", *argv])
    assert stop.value.code == 2
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("unmask: ")][-1]


def test_bad_input_is_one_line(small, tmp_path, capsys, monkeypatch):
    model = ["--model", "unmask", "--model_args", f"pretrained={small},length=24"]
    assert "Tasks not found: unmask_gsm9k" in refused(capsys, *model, "--tasks", "unmask_gsm9k")
    assert "no setting 'kapa'" in refused(capsys, *model[:3], f"{model[3]},kapa=3", "--tasks", "unmask_cups")
    monkeypatch.setenv("UNMASK_DATA", str(tmp_path))
    assert "or set UNMASK_DATA" in refused(capsys, *model, "--tasks", "unmask_gsm8k")
    (tmp_path / "HumanEval.jsonl").write_text(json.dumps(ROWS["humaneval"][1]) + "\n")
    assert "marked as unsafe" in refused(capsys, *model, "--tasks", "unmask_humaneval")
    assert "leave out --cache_requests" in refused(capsys, *model, "--tasks", "unmask_cups", "--cache_requests", "true")
    stale = ["--tasks", "hellaswag", "--cache_requests", "true", "--gen_kwargs", "kappa=3"]
    assert "put the settings in --model_args" in refused(capsys, *model, *stale)


def test_without_lm_eval_the_extra_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert 'pip install "unmask[lm-eval]"' in refused(capsys, "--tasks", "unmask_cups")


def test_two_ranks_give_what_one_gives(small, tmp_path):
    """Real processes through the command line: each rank has its rows, the first gathers them all."""
    argv = [sys.executable, "-m", "unmask", "lm-eval", "--model", "unmask", "--model_args", f"pretrained={small},method=uniform,length=24",
            "--tasks", "unmask_cups", "--limit", "5", "--batch_size", "1", "--log_samples", "--output_path"]  # fmt: skip
    port = str(20000 + os.getpid() % 20000)
    several = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "HF_HOME": str(tmp_path / "hf"),
    }
    runs = [
        subprocess.Popen([*argv, str(tmp_path / "two")], env={**several, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in "01"
    ]  # fmt: skip
    try:
        printed = [run.communicate(timeout=900) for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], printed
    assert "unmask_cups" in printed[0][0] and "unmask_cups" not in printed[1][0]
    one = harnessed(
        "cups", pretrained=small, method="uniform", length=24, limit=5, batch_size=1, apply_chat_template=False
    )
    (file,) = Path(tmp_path / "two").rglob("samples_*.jsonl")
    lines = {line["doc_id"]: line["filtered_resps"][0] for line in map(json.loads, file.read_text().splitlines())}
    assert [lines[i] for i in range(5)] == responses(one)
    (file,) = Path(tmp_path / "two").rglob("results_*.json")
    found = json.loads(file.read_text())
    assert found["results"]["unmask_cups"]["acc,none"] == one["results"]["unmask_cups"]["acc,none"]
    assert found["n-samples"]["unmask_cups"]["effective"] == 5
    assert found["config"]["unmask"]["settings"] == {"method": "uniform", "seed": 0, "length": 24}


def test_the_python_of_the_docs():
    page = (Path(__file__).parents[2] / "docs" / "lm-eval.md").read_text()
    code = (
        page.split("```python\n")[1]
        .split("```")[0]
        .replace("limit=8", "limit=1")
        .replace("simple_evaluate(\n", "found = simple_evaluate(\n")
    )
    scope: dict = {}
    exec(code, scope)
    assert scope["found"]["n-samples"]["unmask_cups"] == {"original": 500, "effective": 1}
    for name in tasks():
        assert (f"unmask_{name}" in page) is not bool(find(name).image)
