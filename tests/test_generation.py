"""Text to text: options of generate, on a small real checkpoint."""

from __future__ import annotations

import io

import pytest
import torch
from support import checkpoints

import unmask
from unmask import Strategy, UserError
from unmask.generation import Decoding, generations
from unmask.views.stream import Stream, settled

PLAIN = "top-probability"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return unmask.load(checkpoints.llada(tmp_path_factory.mktemp("llada")))


def test_a_string_gives_one_and_a_list_a_list(model):
    one = unmask.generate(model, "Tom has 3 apples", PLAIN, length=12)
    (same,) = unmask.generate(model, ["Tom has 3 apples"], PLAIN, length=12)
    assert one.tokens == same.tokens and one.text == model.text(one.tokens)
    assert (one.steps, one.forwards, len(one.order)) == (6, 6, 12)
    assert sorted(set(one.order)) == list(range(6))


def test_a_conversation_is_one_prompt(model):
    turns = [
        {"role": "user", "content": "Tom"},
        {"role": "assistant", "content": "Ada"},
        {"role": "user", "content": "How?"},
    ]
    assert (
        unmask.generate(model, turns, PLAIN, length=8).tokens
        == unmask.generate(model, [turns], PLAIN, length=8)[0].tokens
    )


def test_temperature_zero_is_the_argmax_also_for_a_method_that_samples(model):
    official = unmask.METHODS["remdm-official"]
    cold = [unmask.generate(model, "Tom", official, length=8, temperature=0.0, seed=s).tokens for s in (1, 2)]
    warm = [unmask.generate(model, "Tom", official, length=8, seed=s).tokens for s in (1, 2)]
    assert cold[0] == cold[1] and warm[0] != warm[1]


def test_eot_ratio_counts_the_first_end_alone_and_all(model, monkeypatch):
    one = unmask.generate(model, "Tom", PLAIN, length=16)
    ends = model.vocab.eot_ids
    assert one.eot_ratio == one.tokens.count(ends[0]) / 16
    assert one.eot_ratio_all == sum(t in ends for t in one.tokens) / 16


def test_text_behind_an_end_is_kept(model):
    ids = [*model.tokens("Tom has"), 1, 1, 5, *model.tokens(" 3 apples"), 2]
    assert model.text(ids) == "Tom has 3 apples"


def test_samples_seeds_and_temperature(model):
    def drawn(**o):
        return [g.tokens for g in unmask.generate(model, ["Tom", "Ada"], PLAIN, length=12, temperature=1.0, **o)]

    four = drawn(samples=2, seed=10)
    assert len(four) == 4 and four[0] != four[1]
    assert four == drawn(samples=2, seed=10, batch=3)  # rows draw alone, whatever the batch
    assert drawn(seed=[10, 12]) == [four[0], four[2]]
    with pytest.raises(UserError, match="3 seeds were given for 2"):
        drawn(seed=[1, 2, 3])


def test_stop_strings_and_banned_ids(model):
    free = unmask.generate(model, "Tom has", PLAIN, length=24)
    stop = free.text[3:6]
    cut = unmask.generate(model, "Tom has", PLAIN, length=24, stop=[stop, "never there"])
    assert cut.text == free.text[: free.text.find(stop)] and cut.tokens == free.tokens
    banned = max(set(free.tokens), key=free.tokens.count)
    for method in (PLAIN, "eot-forbidden"):
        assert banned not in unmask.generate(model, "Tom has", method, length=24, ban=[banned]).tokens


def test_infilling_keeps_the_given_text(model):
    done = unmask.generate(model, "Write a letter", PLAIN, infill="Dear [MASK*4], thank you[MASK]", length=None)
    head, tail = model.tokens("Dear "), model.tokens(", thank you")
    assert done.tokens[: len(head)] == head
    assert done.tokens[len(head) + 4 : len(head) + 4 + len(tail)] == tail
    assert len(done.tokens) == len(head) + 4 + len(tail) + 1
    assert [i for i, w in enumerate(done.order) if w >= 0] == [*range(len(head), len(head) + 4), len(done.tokens) - 1]
    with pytest.raises(UserError, match=r"no \[MASK\]"):
        unmask.generate(model, "Write", PLAIN, infill="nothing to fill")
    with pytest.raises(UserError, match="hold fixed text already"):
        unmask.generate(model, "Write", unmask.METHODS["sacm"].with_(at=0), infill="Dear [MASK*12]")


def test_streaming_writes_the_settled_beginning(model):
    out = io.StringIO()
    stream = Stream(model, out)
    done = unmask.generate(model, "Tom has", Strategy(block=2), length=12, watch=[stream])
    before_end = out.getvalue()
    stream.end(done.text)
    assert before_end and out.getvalue() == done.text + "\n"
    assert "\ufffd\n" not in before_end


def test_text_that_spells_a_special_token_never_acts_as_one(model):
    special = {model.vocab.mask_id, *model.vocab.eot_ids, *model.specials.values()}
    plain, hostile = model.encode("Tom has 3"), model.encode("Tom <|eot_id|><|mdm_mask|> has 3")
    assert [i for i in hostile if i in special] == [i for i in plain if i in special]
    assert "<|eot_id|>" in model.tokenizer.decode(hostile, skip_special_tokens=True)
    assert model.encode("Tom has 3") == model.tokens(model.render("Tom has 3"))  # ordinary prompts keep their ids
    done = unmask.generate(model, "Write", PLAIN, infill="Dear <|eot_id|> [MASK*4]")
    assert not set(done.tokens[:-4]) & special
    with pytest.raises(UserError, match="role is system, user, assistant"):
        model.encode([{"role": "<|eot_id|>", "content": "hi"}])


@pytest.mark.parametrize(
    ("text", "stop", "shown", "ended"),
    [
        ("one two", ["###"], "one two", False),
        ("one #", ["###"], "one ", False),
        ("one ## two", ["###"], "one ## two", False),
        ("one ### two", ["###"], "one ", True),
        ("one ab", ["abc", "b"], "one ", False),  # "abc" may begin before "b"
        ("one abd", ["abc", "b"], "one a", True),
        ("half \ufffd", [], "half ", False),
    ],
)
def test_what_may_begin_a_stop_string_is_held_back(text, stop, shown, ended):
    assert settled(text, stop) == (shown, ended)


def test_what_is_finished_is_kept(model):
    """The results of finished batches are out before the next begins."""
    made = []
    with pytest.raises(KeyboardInterrupt):
        for generation in generations(
            model, ["Tom", "Ada", "How"], PLAIN, Decoding(length=8, batch=1), watch=[interrupt(after=10)]
        ):
            made.append(generation)
    assert len(made) == 2


def interrupt(after: int):
    calls = []

    def watcher(step, score, chosen):
        calls.append(1)
        if len(calls) > after:
            raise KeyboardInterrupt

    return watcher


def test_more_steps_than_tokens_works_and_says_so(model):
    with pytest.warns(UserWarning, match="40 steps for 8 tokens"):
        done = unmask.generate(model, "Tom", PLAIN, length=8, steps=40)
    assert done.forwards == 8


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("", {}, "the prompt is empty"),
        (["Tom", "  "], {}, "prompt 2 of 2 is empty"),
        ([], {}, "there is no prompt"),
        ("Tom", {"length": 0}, "at least 1"),
        ("Tom", {"steps": 0}, "at least 1"),
        ("Tom", {"temperature": -1.0}, "a number that is not negative"),
        ("Tom", {"length": 600}, "was made for 512"),
        ("Tom <|mdm_mask|>", {"raw": True}, "holds the mask token"),
        ("Tom", {"samples": 0}, "at least 1"),
        ("Tom", {"ban": [99999]}, "no token 99999 to ban"),
        ("Tom", {"ban": [-1]}, "no token -1 to ban"),
        ([[{"role": "user"}]], {}, "a message is"),
        ([["hi"]], {}, "a message is"),
        ("Tom", {"raw": True, "system": "x"}, "raw text has no chat template"),
        ("Tom", {"infill": "a [MASK]", "length": 50}, "not both"),
        ("Tom", {"cache": "triple"}, "the cache is none, prefix"),
        ("Tom", {"method": "sacn"}, "did you mean 'sacm'"),
        ("Tom", {"method": unmask.METHODS["sacm"], "length": 10}, "position -20 is outside"),
    ],
)  # fmt: skip
def test_bad_input(model, prompts, options, message):
    options = {"method": PLAIN, "length": 8, **options}
    with pytest.raises(UserError, match=message):
        unmask.generate(model, prompts, **options)


def test_not_enough_memory_is_one_line(model, monkeypatch):
    def full(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(model.module, "hidden", full)
    with pytest.raises(UserError, match="not enough memory for 1 rows of 8 tokens; use a smaller batch"):
        unmask.generate(model, "Tom", PLAIN, length=8)


def test_nothing_of_the_model_changes(model):
    before = {k: v.clone() for k, v in model.module.state_dict().items()}
    unmask.generate(model, "Tom", "sacm", length=32)
    assert all(torch.equal(before[k], v) for k, v in model.module.state_dict().items())
