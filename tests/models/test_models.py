"""Loading and wrapping, on small checkpoints in the published layout."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import checkpoints

import unmask
from unmask import Canvas, Strategy, UserError, Vocab
from unmask.decoding.reading import Prediction
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import EntropyBound, Quota, Threshold
from unmask.decoding.running import run
from unmask.decoding.step import Step
from unmask.decoding.ties import NearTies
from unmask.models.denoisers import chain


@pytest.fixture(scope="module")
def llada(tmp_path_factory) -> Path:
    return checkpoints.llada(tmp_path_factory.mktemp("llada"))


@pytest.fixture(scope="module")
def dream(tmp_path_factory) -> Path:
    return checkpoints.dream(tmp_path_factory.mktemp("dream"))


@pytest.fixture()
def copy(llada, tmp_path) -> Path:
    return Path(shutil.copytree(llada, tmp_path / "copy"))


def logits(model: unmask.Model, ids: list[int]) -> torch.Tensor:
    return model.module(torch.tensor([ids])).logits


def test_sharded_and_single_weights_are_the_same(llada, tmp_path):
    assert len(list(llada.glob("model-*.safetensors"))) > 2
    single = checkpoints.llada(tmp_path / "one", shard="1GB")
    assert [f.name for f in single.glob("*.safetensors")] == ["model.safetensors"]
    ids = [5, 9, 2, 2]
    assert torch.equal(logits(unmask.load(llada), ids), logits(unmask.load(single), ids))


def test_published_tensor_names(llada):
    names = {name for file in llada.glob("*.safetensors") for name in load_file(file)}
    assert "model.transformer.blocks.1.ff_proj.weight" in names
    assert {"model.transformer.wte.weight", "model.transformer.ln_f.weight", "model.transformer.ff_out.weight"} <= names


def test_tied_weights_need_no_head(tmp_path):
    where = checkpoints.llada(tmp_path / "tied", weight_tying=True)
    names = {name for file in where.glob("*.safetensors") for name in load_file(file)}
    assert "model.transformer.ff_out.weight" not in names
    model = unmask.load(where)
    hidden = model.module.hidden(torch.tensor([[5, 6]]))
    assert torch.allclose(logits(model, [5, 6]), hidden @ model.module.get_input_embeddings().weight.T)


def test_llada_prompt_has_one_bos_and_the_published_template(llada):
    model = unmask.load(llada)
    ids = model.encode("  What is 12 * 7?  ")
    text = model.tokenizer.decode(ids)
    assert (
        text
        == "<|startoftext|><|start_header_id|>user<|end_header_id|>\n\nWhat is 12 * 7?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert ids.count(model.tokenizer.bos_token_id) == 1
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    long = model.tokenizer.decode(model.encode(turns, system="Be brief."))
    assert long.startswith("<|startoftext|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>")
    assert long.count("<|start_header_id|>user") == 2 and long.count("<|startoftext|>") == 1
    assert model.vocab.mask_id == 2 and model.vocab.eot_ids == (1, 5)


def test_a_base_model_takes_plain_text(tmp_path):
    model = unmask.load(checkpoints.llada(tmp_path / "base", template=False))
    assert model.tokenizer.decode(model.encode("Tom has 3")) == "Tom has 3"
    with pytest.raises(UserError, match="no chat template"):
        model.encode([{"role": "user", "content": "hi"}])


def test_dream_loads_without_its_remote_tokenizer(dream):
    model = unmask.load(dream)
    assert (
        model.tokenizer.decode(model.encode("Tom has"))
        == "<|im_start|>user\nTom has<|im_end|>\n<|im_start|>assistant\n"
    )
    assert model.vocab.eot_ids == (
        model.tokenizer.convert_tokens_to_ids("<|endoftext|>"),
        model.tokenizer.convert_tokens_to_ids("<|im_end|>"),
    )
    done = unmask.generate(model, "Tom has", "top-probability", length=8)
    assert len(done.tokens) == 8 and model.vocab.mask_id not in done.tokens


def test_an_adapter_changes_the_logits_as_peft_says(llada, tmp_path):
    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "ff_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(unmask.load(llada).module, config)
    adapted.save_pretrained(tmp_path / "lora")
    ids = [5, 9, 2, 2]
    theirs = adapted(input_ids=torch.tensor([ids])).logits
    ours = logits(unmask.load(llada, adapter=tmp_path / "lora"), ids)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, logits(unmask.load(llada), ids), atol=1e-2)
    assert unmask.load(llada, adapter=tmp_path / "lora").weights_hash != unmask.load(llada).weights_hash
    with pytest.raises(UserError, match="adapter_config"):
        unmask.load(llada, adapter=llada)


def test_int8_weights_on_the_cpu(llada):
    pytest.importorskip("torchao")
    model = unmask.load(llada, quantize="int8")
    assert "Int8" in type(model.module.body.blocks[0].q_proj.weight).__name__
    full, small = logits(unmask.load(llada), [5, 9, 2]), logits(model, [5, 9, 2])
    gap = (full - small).abs().max()
    assert 0 < gap < 0.1 * full.abs().max()
    assert len(unmask.generate(model, "Tom has", "top-probability", length=8).tokens) == 8
    with pytest.raises(UserError, match="int8"):
        unmask.load(llada, quantize="int3")


def test_device_map_and_dtype(llada):
    pytest.importorskip("accelerate")
    model = unmask.load(llada, device_map={"": "cpu"}, dtype="float16")
    assert next(model.module.parameters()).dtype == torch.float16


@pytest.mark.parametrize("cache", [None, "prefix", "dual"])
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_caches_with_one_window_step_equal_no_cache(request, name, cache):
    """The first forward of every window is full: with one step a window, a cache changes nothing."""
    model = unmask.load(request.getfixturevalue(name))
    plain = unmask.generate(model, "Tom has", Strategy(block=4), length=12, steps=3)
    assert unmask.generate(model, "Tom has", Strategy(block=4), length=12, steps=3, cache=cache).tokens == plain.tokens


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_caches_save_work_and_leave_no_mask(request, name):
    model = unmask.load(request.getfixturevalue(name))
    canvas = Canvas.blank([model.encode("Tom has"), model.encode("What is 12 * 7?")], 12, model.vocab)
    for cache, kinds in (("prefix", {"full", "suffix"}), ("dual", {"full", "block"})):
        session = chain(model.module, cache=cache).begin(canvas)
        with torch.inference_mode():
            done = run(unmask.decode(canvas, Strategy(block=4, select=Threshold(0.9))), session)
        assert not done.canvas.masked.any()
        assert set(session.kinds) == kinds and session.kinds.count("full") == 3


def test_guidance_of_scale_zero_is_no_guidance_and_composes_with_a_cache(llada):
    model = unmask.load(llada)
    plain = unmask.generate(model, "Tom has", "semi-ar", length=8)
    assert unmask.generate(model, "Tom has", "semi-ar", length=8, cfg=1e-9).tokens == plain.tokens
    assert unmask.generate(model, "Tom has", "semi-ar", length=8, cfg=1.5, cache="dual").forwards == plain.forwards


def test_wrap_takes_any_module_with_logits(llada, dream):
    ours = unmask.load(llada)

    class Stranger(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, input_ids, attention_mask):
            return self.inner(input_ids, attention_mask)

    stranger = Stranger(ours.module)
    stranger.hidden = stranger.head = torch.nn.Linear(1, 1)  # names of ours do not make it ours
    theirs = unmask.wrap(stranger, ours.tokenizer, mask_id=2, eot_ids=(1, 5))
    for method in ("sacm", "fast-dllm"):
        strategy = unmask.METHODS[method].with_(**({"at": -6} if method == "sacm" else {}))
        both = [unmask.generate(m, "Tom has", strategy, length=12).tokens for m in (ours, theirs)]
        assert both[0] == both[1]
    with pytest.raises(UserError, match="cache needs a model that unmask loads"):
        unmask.generate(theirs, "Tom has", "semi-ar", length=8, cache="dual")
    shifted = unmask.load(dream)
    stranger = unmask.wrap(
        Stranger(shifted.module),
        shifted.tokenizer,
        mask_id=shifted.vocab.mask_id,
        eot_ids=shifted.vocab.eot_ids,
        shift=True,
    )
    both = [unmask.generate(m, "Tom has", "top-margin", length=8).tokens for m in (shifted, stranger)]
    assert both[0] == both[1]


@pytest.mark.parametrize("method", ["top-probability", "fast-dllm", "eb-sampler"])
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_batch_equals_its_rows_or_a_near_tie_tells_why(request, name, method):
    model = unmask.load(request.getfixturevalue(name))
    prompts = ["Tom", "What is 12 * 7? Tom has 3 apples", "Dear Ada", "How many?"]
    together = unmask.generate(model, prompts, method, length=16, batch=4)
    for prompt, row in zip(prompts, together, strict=True):
        near = NearTies(1e-4)
        alone = unmask.generate(model, [prompt], method, length=16, watch=[near])[0]
        assert alone.tokens == row.tokens or int(near.counts) > 0


@pytest.mark.parametrize(("select", "score", "near"), [
    (Threshold(0.9), [0.95, 0.90005, 0.5], 1), (Threshold(0.9), [0.95, 0.8, 0.5], 0), (Quota(Fixed(1)), [0.7, 0.69995, 0.5], 1),
    (EntropyBound(0.1), [0.9, 0.8, 0.5], 1), (EntropyBound(0.2), [0.9, 0.8, 0.5], 0),
])  # fmt: skip
def test_near_ties_see_the_line_a_rule_draws(select, score, near):
    canvas, strategy = Canvas.blank([[1]], 3, Vocab(9)), Strategy(select=select)
    seen = Prediction(margin=torch.ones(1, 3), entropy=torch.tensor([[0.3, 0.10005, 0.9]]))
    step = Step(canvas, strategy, slice(0, 3), 0, 3, torch.tensor([3]), 0, None, seen=seen)
    counts = NearTies(1e-4)
    counts(step, torch.tensor([score]), select(step, torch.tensor([score])))
    assert bool(counts.counts) == bool(near)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_rows_that_are_done_are_not_run_again(request, name, monkeypatch):
    model, one = unmask.load(request.getfixturevalue(name)), Strategy(select=Quota(Fixed(1)))
    prompts = [model.encode("Tom has"), model.encode("What is 12 * 7?"), model.encode("Tom")]
    given = [[7] * 12, [model.vocab.mask_id] * 3 + [7] * 9, [model.vocab.mask_id] * 12]  # none, three, all slots open
    canvas = Canvas.blank(prompts, 12, model.vocab).with_response(torch.tensor(given))
    ran, hidden = [], model.module.hidden
    with torch.inference_mode():
        alone = [
            run(
                unmask.decode(Canvas.blank([p], 12, model.vocab).with_response(torch.tensor([g])), one),
                chain(model.module),
            )
            for p, g in zip(prompts, given, strict=True)
        ]
        monkeypatch.setattr(model.module, "hidden", lambda ids, valid: ran.append(len(ids)) or hidden(ids, valid))
        done = run(unmask.decode(canvas, one), chain(model.module))
    assert ran == [2] * 3 + [1] * 9 and done.forwards.tolist() == [0, 3, 12]
    assert done.canvas.response.tolist() == [single.canvas.response[0].tolist() for single in alone]


def test_forward_memory_does_not_grow_with_rows_times_slots_times_vocabulary(llada):
    """The first step asks about every slot; the logits alive at once stay within the chunk."""
    import unmask.decoding.running as running

    model, alive = unmask.load(llada), []
    head = model.module.head
    model.module.head = lambda h: (alive.append(h.shape[0]), head(h))[1]
    old, running.CHUNK = running.CHUNK, 16 * model.module.config.rows
    try:
        unmask.generate(model, ["Tom has"] * 4, "top-probability", length=32, steps=1)
    finally:
        running.CHUNK, model.module.head = old, head
    assert max(alive) == 16 and sum(alive) == 4 * 32


# --- bad input ---


def refused(where, message, **options):
    with pytest.raises(UserError, match=message) as caught:
        unmask.load(where, **options)
    assert "\n" not in str(caught.value)


def test_unknown_architecture(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "architectures": ["GPT9"]}))
    refused(copy, r"architecture unmask does not know \(GPT9\).*unmask.wrap")


def test_unsupported_switch(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "alibi": True}))
    refused(copy, "alibi=True")


def edit(where: Path, change) -> None:
    for file in where.glob("*.safetensors"):
        tensors = load_file(file)
        if "model.transformer.blocks.0.q_proj.weight" in tensors:
            change(tensors)
            save_file(tensors, file, metadata={"format": "pt"})


def test_missing_tensor(copy):
    edit(copy, lambda tensors: tensors.pop("model.transformer.blocks.0.q_proj.weight"))
    refused(copy, "1 missing .*blocks.0.q_proj")


def test_misshaped_tensor(copy):
    edit(copy, lambda tensors: tensors.update({"model.transformer.blocks.0.q_proj.weight": torch.zeros(3, 3)}))
    refused(copy, "do not fit its config.json")


def test_bad_device_and_dtype(llada):
    refused(llada, "no device 'gpu'", device="gpu")
    refused(llada, "no CUDA device", device="cuda") if not torch.cuda.is_available() else None
    refused(llada, "no dtype 'flot32'", dtype="flot32")


def test_broken_files(copy):
    (copy / "tokenizer.json").write_text("{")
    refused(copy, "tokenizer in .* cannot be read")
    (copy / "config.json").write_text("{")
    refused(copy, "config.json: not JSON")


def test_missing_files(copy, tmp_path):
    refused(tmp_path, "no config.json")
    refused("nothing-here", "there is no directory 'nothing-here'")
    (copy / "tokenizer.json").unlink()
    refused(copy, "no tokenizer")
    for file in copy.glob("*.safetensors"):
        file.unlink()
    refused(copy, "no .safetensors")


def test_unreachable_hub():
    refused("nobody/nothing-at-all", "could not be fetched from the hub .*pass its directory")


def test_frequency_tables(llada, tmp_path):
    table = {"num_token": 100, "p_baseline_dict": {"7": 25}}
    (tmp_path / "f.json").write_text(json.dumps(table))
    model = unmask.load(llada, frequencies=tmp_path / "f.json")
    assert model.vocab.frequency[7] == 0.25 and model.vocab.frequency[8] == pytest.approx(0.01)
    (tmp_path / "bad.json").write_text("{}")
    refused(llada, "not a frequency table", frequencies=tmp_path / "bad.json")
    (tmp_path / "other.json").write_text(json.dumps({"num_token": 1, "p_baseline_dict": {"999999": 1}}))
    refused(llada, "another model's table", frequencies=tmp_path / "other.json")
    refused(llada, "there is no frequency table", frequencies=tmp_path / "none.json")


def test_weights_hash_tells_models_apart(llada, tmp_path):
    other = checkpoints.llada(tmp_path / "other", seed=5)
    assert unmask.load(llada).weights_hash == unmask.load(llada).weights_hash != unmask.load(other).weights_hash


def test_weights_hash_is_of_what_an_adapter_holds_not_of_where_it_is(llada, tmp_path, monkeypatch):
    def written(name, weights=b"1", config="{}"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_bytes(weights)
        (tmp_path / name / "adapter_config.json").write_text(config)
        return replace(model, adapter=Path(name)).weights_hash

    monkeypatch.chdir(tmp_path)
    model = unmask.load(llada)
    known = written("a")
    assert (
        known
        == replace(model, adapter=Path("./a")).weights_hash
        == replace(model, adapter=tmp_path / "a").weights_hash
        == written("copy")
    )
    assert (
        len({model.weights_hash, known, written("trained", b"2"), written("scaled", config='{"lora_alpha": 9}')}) == 4
    )
    from unmask.evaluation.workers import outline

    loading = {"name": str(llada), "device": "cpu", "adapter": str(tmp_path / "a")}
    assert outline(loading).weights_hash == known  # what the driver of --workers compares theirs with
