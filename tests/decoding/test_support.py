"""Support and its relatives, worked out by hand on a canvas of a few slots."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.scripted import EOT, Scripted, canvas, decoded

from unmask import (
    AnchorModulation,
    CertaintyDensity,
    EntropyBound,
    Neighbours,
    Strategy,
    SuffixAnchor,
    Support,
    UserError,
)
from unmask.decoding.canvas import Canvas
from unmask.decoding.step import Step

RHO = 1 / math.log(2)  # every slot counts half of the one before it


def written(length: int, tokens: dict[int, int], prompts=((5, 6, 7),)) -> Canvas:
    """A canvas with these tokens settled."""
    start = canvas(length, prompts)
    where = torch.zeros(start.rows, length, dtype=torch.bool)
    ids = torch.zeros(start.rows, length, dtype=torch.long)
    for slot, token in tokens.items():
        where[:, slot], ids[:, slot] = True, token
    return start.fill(where, ids, start.settled, torch.zeros(start.rows).long())


def test_the_nearer_side_counts_and_the_prompt_stands_to_the_left():
    # A prompt of three tokens gives slot 0: (1 + 1/2 + 1/4) / 2 = 7/8, and half of that to each slot further on.
    assert Support(RHO, 0).factor(canvas(4))[0].tolist() == pytest.approx([7 / 8, 7 / 16, 7 / 32, 7 / 64])
    # A settled slot 3 gives 1/2 to both neighbours, 1/4 to the next ones. On slot 2 it beats the prompt's 7/32.
    found = Support(RHO, 0).factor(written(6, {3: 9}))[0].tolist()
    assert found[:3] == pytest.approx([7 / 8, 7 / 16, 1 / 2]) and found[4:] == pytest.approx(
        [1 / 2 + 7 / 128, 1 / 4 + 7 / 256]
    )
    # eps is what a slot keeps that nothing stands near.
    assert Support(RHO, 0.5).factor(canvas(2))[0].tolist() == pytest.approx([0.5 + 7 / 16, 0.5 + 7 / 32])
    assert Support(RHO, 1).factor(written(6, {3: 9})).tolist() == [[1.0] * 6]


def test_anchors_and_end_of_text_are_no_text():
    plain = Support(RHO, 0).factor(canvas(6))
    assert torch.equal(Support(RHO, 0).factor(written(6, {4: EOT, 5: EOT})), plain)
    assert torch.equal(Support(RHO, 0).factor(canvas(6).pin([8, 9], 3, anchor=True)), plain)


def test_left_padding_is_no_text():
    both = Support(RHO, 0).factor(canvas(4, ((5, 6, 7), (5,))))
    assert torch.equal(both[1], Support(RHO, 0).factor(canvas(4, ((5,),)))[0]) and both[1, 0] == pytest.approx(1 / 2)


def test_it_decodes_from_what_stands():
    """All slots are equally sure: from the prompt on, one after the other; or from an island, if it stands surer."""
    even = Scripted(*[{5: 0.6}] * 6)
    assert decoded(even, canvas(6), Strategy(modifiers=(Support(),), pace=1)).canvas.when[0].tolist() == [
        0,
        1,
        2,
        3,
        4,
        5,
    ]
    # A prompt of one token gives slot 0 a half; the island gives slot 5 a half, and the prompt a little more.
    # Then two settled slots stand to the right of slot 3, and decoding goes on from right to left.
    island = decoded(even, written(6, {4: 9}, ((5,),)), Strategy(modifiers=(Support(RHO, 0),), pace=1)).canvas
    assert island.when[0].tolist() == [4, 3, 2, 1, 0, 0]


def test_with_sacm_each_factor_multiplies():
    start = canvas(6).pin([8], 4, anchor=True)
    damp, support = AnchorModulation(2, 1, 1), Support(RHO, 0.2)
    step = Step(start, Strategy(), slice(0, 6), 0, 6, torch.tensor([5]), 0, None)  # type: ignore[arg-type]
    c = torch.full((1, 6), 0.5)
    both = support(step, damp(step, c))
    assert torch.allclose(both, c * (damp(step, c) / c) * support.factor(start))
    method = Strategy(anchors=(SuffixAnchor("x", -2),), modifiers=(damp, support), select=EntropyBound(0.5))
    assert replace(method, block=3).bound(6, 6) == 6


def test_relatives_by_hand():
    step = Step(written(5, {3: 9}, ((5, 6),)), Strategy(), slice(0, 5), 0, 5, torch.tensor([4]), 0, None)  # type: ignore[arg-type]
    one = torch.ones(1, 5)
    # A window of three: slot 0 sees the prompt's last token, slots 2 to 4 see slot 3.
    assert Neighbours(1, 3)(step, one)[0].tolist() == pytest.approx([math.tanh(n) for n in (1, 0, 1, 1, 1)])
    g = [math.exp(-(d**2) / 2) for d in range(7)]  # sigma 1
    # Slot 0 stands third of seven: settled are the two before it and slot 3.
    assert float(CertaintyDensity(1)(step, one)[0, 0]) == pytest.approx(
        (g[1] + g[2] + g[3]) / (g[2] + g[1] + g[0] + g[1] + g[2] + g[3] + g[4])
    )


@pytest.mark.parametrize(
    ("rule", "settings", "says"),
    [
        (Support, {"rho": 0}, "rho is a number above 0, not 0"),
        (Support, {"rho": math.nan}, "rho is a number above 0, not nan"),
        (Support, {"eps": -0.1}, "eps is a number from 0 to 1, not -0.1"),
        (Support, {"eps": math.nan}, "eps is a number from 0 to 1, not nan"),
        (Neighbours, {"span": 4}, "span is an odd whole number, not 4"),
        (Neighbours, {"m": 0}, "m is a number above 0"),
        (CertaintyDensity, {"sigma": -1}, "sigma is a number above 0"),
    ],
)
def test_bad_settings_are_one_line(rule, settings, says):
    with pytest.raises(UserError, match=says):
        rule(**settings)
