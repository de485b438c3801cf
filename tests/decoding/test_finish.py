"""Finish, and selection rules on predictions that a cache has kept: cases worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted import Hashed, Scripted, canvas, decoded, encode

from unmask.decoding.algorithm import Strategy, SuffixAnchor
from unmask.decoding.methods import METHODS, strategies
from unmask.decoding.reading import Draws, Prediction
from unmask.decoding.rules import SelectionRule
from unmask.decoding.rules.remasking import Remask
from unmask.decoding.rules.revising import Backtrack, Finish, PadEOT, Verify
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import Quota, Threshold
from unmask.decoding.rules.tokens import Gumbel
from unmask.decoding.step import Step
from unmask.errors import UserError
from unmask.evaluation.recipe import for_task
from unmask.tasks import find

ANCHORED = Strategy(anchors=(SuffixAnchor("x", 3),), select=Quota(Fixed(1)))  # slots 0-2, the anchor, 4-6


def finished(strategy: Strategy, *p: float) -> list[int]:
    """When each of the seven slots is decoded, by these probabilities of what is predicted there."""
    before = strategy.prepare(canvas(7), encode)
    return decoded(Scripted(*({5: x} for x in p)), before, strategy, 7).canvas.when[0].tolist()


def test_the_rest_is_decoded_with_the_answer() -> None:
    order = (0.5, 0.9, 0.4, 1.0, 0.8, 0.6, 0.3)
    assert finished(ANCHORED, *order) == [3, 0, 4, -1, 1, 2, 5]
    assert finished(ANCHORED.with_(finish=1), *order) == [1, 0, 1, -1, 1, 1, 1]
    assert finished(ANCHORED.with_(finish=2), *order) == [2, 0, 2, -1, 1, 2, 2]
    assert finished(ANCHORED.with_(finish=3), *order) == [3, 0, 4, -1, 1, 2, 5]
    assert finished(ANCHORED.with_(finish=99), *order) == [3, 0, 4, -1, 1, 2, 5], "beyond the last slot: what is there"


def test_in_blocks_the_rest_is_read_too() -> None:
    strategy = replace(ANCHORED, block=6).with_(finish=1)
    assert finished(strategy, 0.5, 0.9, 0.4, 1.0, 0.8, 0.6, 0.3) == [1, 0, 1, -1, 1, 1, 1]


def test_an_anchor_at_the_end_has_no_answer_behind_it() -> None:
    strategy = Strategy(anchors=(SuffixAnchor("x", -1),), select=Quota(Fixed(1))).with_(finish=2)
    assert finished(strategy, 0.5, 0.9, 0.4, 0.3, 0.8, 0.6, 1.0) == [3, 0, 4, 5, 1, 2, -1]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(6, 20), st.integers(1, 20), st.integers(0, 99), st.sampled_from([0.0, 0.8]))
def test_the_answer_is_the_one_without_it(n: int, length: int, steps: int, seed: int, temperature: float) -> None:
    plain = replace(METHODS["sacm"].with_(at=-5), read=Gumbel(temperature=temperature))
    before = plain.prepare(canvas(length, [(5, 6, 7), (3,)]), encode)
    first = int(before.anchors[0].nonzero().max()) + 1
    both = [decoded(Hashed(), before, s, steps, seed=seed) for s in (plain, plain.with_(finish=n))]
    answers = [done.canvas.response[:, first : first + n] for done in both]
    assert torch.equal(*answers) and not both[1].canvas.masked.any()
    assert (both[1].forwards <= both[0].forwards).all()


REFUSED = [
    (Strategy(), "behind an anchor, and there is none"),
    (METHODS["template-infilling"].with_(at=-3), "behind an anchor, and there is none"),
    (replace(ANCHORED, remask=Remask()), "does not go with Remask, which reopens slots"),
    *(
        (replace(ANCHORED, revise=(rule,)), f"does not go with {type(rule).__name__}")
        for rule in (Verify(), Backtrack(), PadEOT())
    ),
]


@pytest.mark.parametrize(("strategy", "says"), REFUSED)
def test_what_it_does_not_go_with(strategy: Strategy, says: str) -> None:
    before = replace(strategy, anchors=strategy.anchors[:1]).prepare(canvas(24), encode)
    with pytest.raises(UserError, match=says):
        decoded(Hashed(), before, strategy.with_(finish=2), 4)


def test_it_is_a_setting() -> None:
    assert METHODS["sacm"].with_(finish=3).revise == (Finish(3),)
    assert METHODS["sacm"].with_(finish=3).with_(finish=None) == METHODS["sacm"]
    assert repr(METHODS["sacm"].with_(finish=3)).endswith("revise=(Finish(n=3),))")
    several = strategies(["top-probability", "remdm", "template-infilling", "sacm"], {"finish": 2})
    assert [bool(s.revise) for s in several.values()] == [False, False, False, True], "where it can be used"
    assert for_task(find("cups"), ["sacm"], {"finish": True})["sacm"].revise == (Finish(2),)
    with pytest.raises(UserError, match="gsm8k does not say how many tokens an answer has"):
        for_task(find("gsm8k"), ["sacm"], {"finish": True})
    with pytest.raises(UserError, match="finish is a whole number, at least 1, not 'x'"):
        METHODS["sacm"].with_(finish="x")
    with pytest.raises(UserError, match="n, the answer's length, is a whole number, at least 1, not 0"):
        Finish(0)


# ---------------------------------------------------------------- predictions that were not read now


def chosen(select: SelectionRule, p: list[float], read: list[int]) -> list[int]:
    page = canvas(len(p))
    fresh = torch.tensor([[i in read for i in range(len(p))]])
    seen = Prediction(token=page.response + 5, p=torch.tensor([p]), entropy=torch.tensor([p]), read=fresh)
    every = torch.full((1,), len(p))
    step = Step(page, Strategy(select=select), slice(0, len(p)), 0, 9, every, 0, Draws(0, page), seen=seen)
    return select(step, seen.p)[0].nonzero().squeeze(1).tolist()


def test_rules_take_kept_predictions_as_they_are() -> None:
    assert chosen(Quota(Fixed(2)), [0.9, 0.8, 0.7, 0.6], [2, 3]) == [0, 1]
    assert chosen(Threshold(0.9), [0.95, 0.99, 0.92, 0.5], [2, 3]) == [0, 1, 2]
