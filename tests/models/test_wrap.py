"""Modules of every shape, wrapped: with and without attention_mask, whatever way they return their logits."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import unmask
from unmask.errors import UserError

PROMPTS = ["What is 12 * 7?", "Tom has 3 apples and buys 4 more. How many apples does he have?"]


class Shaped(torch.nn.Module):
    """The model's own forward, to be called as a subclass says; it notes what it was given."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.calls = inner, []

    def made(self, ids, mask=None):
        self.calls.append(tuple(ids.shape))
        mask = torch.ones_like(ids) if mask is None else mask
        return self.inner.head(self.inner.hidden(ids, mask.bool()))


class Masked(Shaped):
    def forward(self, input_ids, attention_mask=None):
        return SimpleNamespace(logits=self.made(input_ids, attention_mask))


class Passed(Shaped):
    def forward(self, *args, **kwargs):
        return (self.made(kwargs["input_ids"], kwargs["attention_mask"]), "cache")


class Bare(Shaped):
    def forward(self, x):
        return self.made(x)


class Wrong(Shaped):
    def forward(self, x):
        return self.made(x)[:, -1]


def wrapped(kind, model):
    return unmask.wrap(kind(model.module), model.tokenizer, mask_id=model.vocab.mask_id, eot_ids=model.vocab.eot_ids)


@pytest.mark.parametrize("kind", [Masked, Passed, Bare])
def test_they_write_what_the_model_writes(kind, model):
    theirs = wrapped(kind, model)
    for prompts in (PROMPTS, PROMPTS[:1] * 2):  # with and without padding
        straight = unmask.generate(model, prompts, "top-probability", length=16, steps=4)
        made = unmask.generate(theirs, prompts, "top-probability", length=16, steps=4)
        assert [g.tokens for g in made] == [g.tokens for g in straight]
    if kind is Bare:  # rows of unequal length alone, of equal length together
        assert {calls[0] for calls in theirs.module.calls[:8]} == {1} and theirs.module.calls[-1][0] == 2


def test_wrong_logits(model):
    with pytest.raises(
        UserError, match=r"Wrong returns a tensor \(1, \d+\); a wrapped module returns logits \(1, \d+, 'vocabulary'\)"
    ):
        unmask.generate(wrapped(Wrong, model), PROMPTS[0], "top-probability", length=16, steps=4)


def test_every_weight_counts():
    """Also the last of many; and the code of the module's class."""

    def made(value, cls=Shaped):
        inner = torch.nn.Linear(100, 100, bias=False)
        inner.weight.data.zero_()[-1, -1] = value
        return unmask.Model("m", cls(inner), None, unmask.Vocab(0)).weights_hash

    assert made(0) == made(0) != made(1)
    assert made(0) != made(0, Bare)
