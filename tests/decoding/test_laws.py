"""What holds for every method, on drawn lengths, budgets, prompts and compositions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted import Hashed, canvas, decoded, encode, fitted

import unmask
from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.decoding.methods import METHODS
from unmask.decoding.rules import (
    anchors,
    confidence,
    focus,
    lengths,
    modifiers,
    published,
    readiness,
    remasking,
    revising,
    schedules,
    selection,
    tokens,
)
from unmask.decoding.settings import longest

# Any composition works: these stand for all the ways rules can meet.
COMPOSED = {
    "sacm + margin": METHODS["sacm-margin"],
    "sacm + certainty": replace(METHODS["sacm"], confidence=confidence.Certainty()),
    "sacm + threshold": replace(METHODS["sacm"], select=selection.Threshold(0.9), pace=1),
    "sacm + factor": replace(METHODS["sacm"], select=selection.Factor(1.0)),
    "sacm + blocks": METHODS["sacm"].with_(block=5),
    "sacm + suppression": replace(METHODS["sacm"], defer=modifiers.SuppressEOT()),
    "sacm + entropy bound + suppression": replace(
        METHODS["sacm"], select=selection.EntropyBound(0.5), defer=modifiers.SuppressEOT()
    ),
    "sacm + remasking": replace(
        METHODS["sacm"], remask=remasking.Remask(k=2), select=selection.Quota(schedules.Fixed(2))
    ),
    "suppression + remasking in blocks": Strategy(
        select=selection.Quota(schedules.Fixed(1)),
        defer=modifiers.SuppressEOT(),
        block=5,
        remask=remasking.Remask(k=1, rounds=4, fresh=False),
    ),
    "factor + suppression": Strategy(select=selection.Factor(1.0), defer=modifiers.SuppressEOT()),
    "threshold + suppression": Strategy(select=selection.Threshold(0.6), defer=modifiers.SuppressEOT()),
    "sacm without progress": METHODS["sacm"].with_(gamma=0),
    "two anchors": Strategy(anchors=(SuffixAnchor("a b"), SuffixAnchor("c", at=1)), modifiers=(AnchorModulation(),)),
    "uncode + blocks + temperature": replace(METHODS["uncode"], block=3, read=tokens.Gumbel(temperature=0.7)),
    "linear position": Strategy(modifiers=(modifiers.LinearPosition(),), block=4),
    "threshold within a pace": Strategy(select=selection.Threshold(0.5, schedules.Due())),
    "leading slot": Strategy(block=4, select=published.LeadingSlot()),
    "dream's timesteps": Strategy(select=selection.Quota(schedules.Timesteps())),
    "uniform + temperature": Strategy(tokens.Gumbel(temperature=1.0), confidence.Uniform()),
    "forbidden + temperature": Strategy(tokens.ForbidEOT(then=tokens.Gumbel(temperature=1.0))),
    "sacm + klass": replace(METHODS["sacm"], select=readiness.Stable(0.5, 0.5), pace=1),
    "sacm + klass in blocks": replace(METHODS["sacm"], select=readiness.Stable(0.3, 3.0, 1), block=5),
    "sacm + credit + suppression": replace(METHODS["sacm"], read=tokens.Credit(), defer=modifiers.SuppressEOT()),
    "sacm + hierarchy": replace(METHODS["sacm"], select=readiness.Hierarchy(0.6, 0.3)),
    "sacm + local leap": replace(METHODS["sacm"], select=readiness.Leap(0.6, 0.3, 2)),
    "sacm + levels": replace(METHODS["sacm"], select=readiness.Levels("binary", tau=0.5)),
    "sacm + spacing": replace(METHODS["sacm"], select=readiness.Spaced(selection.Factor(), 4)),
    "sacm + prophet": replace(METHODS["sacm"], revise=(revising.EarlyAnswer(2.0, 1.0, 0.5),), block=5),
    "credit + klass": Strategy(tokens.Credit(), select=readiness.Stable(0.4, 1.0), block=6),
    "end of text in blocks": Strategy(select=selection.Threshold(0.4), revise=(revising.FillEOT(),), block=3),
    "end of text at a frontier": Strategy(
        select=selection.Threshold(0.4), revise=(revising.FillEOT(),), focus=focus.Frontier(4, aligned=True)
    ),
    "quota at a frontier": Strategy(focus=focus.Frontier(3)),
    "an early answer without an anchor": Strategy(revise=(revising.EarlyAnswer(2.0, 1.0, 0.5, start=2),)),
    "sacm + wino": replace(METHODS["sacm"], select=readiness.Wide(0.3), revise=(revising.Verify(0.8),), block=7),
    "quota + wino": Strategy(revise=(revising.Verify(0.8),)),
    "sacm + rcr": replace(
        METHODS["rcr"], anchors=METHODS["sacm"].anchors, modifiers=METHODS["sacm"].modifiers, block=4
    ),
    "rcr along other curves": Strategy(
        select=selection.Everything(), revise=(revising.Refine("cosine"),), focus=focus.Behind(), block=6
    ),
    "sacm + saber": replace(
        METHODS["saber"], anchors=METHODS["sacm"].anchors, modifiers=METHODS["sacm"].modifiers, block=4
    ),
    "saber, n = 3": Strategy(
        select=readiness.AboveMean(3), revise=(revising.Backtrack(3),), focus=focus.Behind(), block=7
    ),
    "quota + saber": Strategy(revise=(revising.Backtrack(),)),
    "sacm + core": replace(METHODS["sacm"], revise=(revising.Replace(2, 1, 4, spare=1),)),
    "core, joint, in blocks": Strategy(revise=(revising.Replace(1, 1, 3, joint=True, spare=1),), block=6, pace=1),
    "klass + wino": Strategy(select=readiness.Stable(0.3, 3.0, 1), revise=(revising.Verify(0.8),)),
    "credit + saber": Strategy(
        tokens.Credit(), select=readiness.AboveMean(), revise=(revising.Backtrack(by="current"),)
    ),
    "sacm + adablock": replace(METHODS["sacm"], focus=focus.AdaBlock(3, 0.2), select=selection.Threshold(0.5)),
    "adablock + quota": Strategy(focus=focus.AdaBlock(4, 0.1)),
    "sacm + dsb": replace(METHODS["sacm"], focus=focus.Sliding(4, 6), select=selection.Quota(schedules.Across())),
    "dcd with padding": Strategy(select=selection.Threshold(0.4), focus=focus.Sliding(5), revise=(revising.PadEOT(3),)),
    "sacm + daedal": replace(
        METHODS["sacm"], revise=(lengths.Expand(30, 3, 0.5, 0.9, 0.4, 4),), focus=focus.Frontier(6)
    ),
    "sacm + growing length": replace(METHODS["sacm"], revise=(lengths.Density(40, 2, 0.3, 0.5, 4),)),
    "daedal, small": Strategy(
        select=selection.Threshold(0.6), focus=focus.Frontier(4), revise=(lengths.Expand(26, 3, 0.4, 0.9, 0.4, 4),)
    ),
    "rho-eos, small": Strategy(
        select=selection.Threshold(0.6),
        focus=focus.Onward(4),
        revise=(lengths.Density(30, 2, 0.2, 0.4, 4, "linear", 9),),
    ),
    "klass + growing length": Strategy(
        select=readiness.Stable(0.3, 3.0, 1), revise=(lengths.Density(30, 2, 0.2, 0.4, 4),)
    ),
    "credit + growing length": Strategy(tokens.Credit(), revise=(lengths.Density(30, 2, 0.2, 0.4, 4),)),
    "wino + growing length": Strategy(revise=(revising.Verify(0.8), lengths.Density(30, 2, 0.2, 0.4, 4, until=12))),
    "sliding + saber": Strategy(select=readiness.AboveMean(), focus=focus.Sliding(5), revise=(revising.Backtrack(),)),
    "sacm + finish": METHODS["sacm"].with_(finish=2),
    "support + finish in blocks": METHODS["sacm-support"].with_(finish=1, block=5),
    "prophet + finish": replace(METHODS["sacm"], revise=(revising.Finish(9), revising.EarlyAnswer(9.0, 9.0, 9.0))),
    "drawn + sacm": replace(METHODS["sacm"], modifiers=(*METHODS["sacm"].modifiers, modifiers.Jitter(0.2))),
}
ALL = {**METHODS, **COMPOSED}
PROMPTS = st.lists(st.lists(st.integers(3, 11), min_size=1, max_size=6), min_size=1, max_size=3)


def start(strategy: Strategy, prompts, length: int):
    """A blank canvas with the strategy's anchors, placed where a short response has room."""
    strategy = strategy if len(strategy.anchors) > 1 else fitted(strategy, -4)
    ends = tuple(replace(a, near=-1) if isinstance(a, anchors.EndMark) else a for a in strategy.anchors)
    placed = tuple(replace(a, at=-4) if getattr(a, "at", 0) == -20 else a for a in ends)
    strategy = replace(strategy, anchors=placed)
    if any(isinstance(a, anchors.Template) for a in strategy.anchors):
        strategy = replace(strategy, anchors=(anchors.Template(("a", "b"), at=-4),))
    return strategy, strategy.prepare(canvas(length, prompts), encode)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None)
@given(prompts=PROMPTS, length=st.integers(6, 21), steps=st.integers(1, 24), seed=st.integers(0, 99))
def test_laws(name: str, prompts, length: int, steps: int, seed: int) -> None:
    strategy, before = start(ALL[name], prompts, length)
    done = decoded(denoiser := Hashed(), before, strategy, steps, seed=seed)
    after = done.canvas
    assert not after.masked.any(), "no mask is left"
    assert torch.equal(after.ids[:, : after.start], before.ids[:, : before.start]), "the prompt is untouched"
    given = [after.response[row][after.fixed[row] & after.real[row]].tolist() for row in range(after.rows)]
    assert given == [before.response[row][before.fixed[row]].tolist() for row in range(before.rows)], (
        "fixed tokens are untouched"
    )
    if not after.ragged:
        assert torch.equal(after.fixed, before.fixed), "and stay where they are"
    assert len(denoiser.asks) <= strategy.bound(length, steps), "forwards are within the bound"
    assert after.length <= longest(strategy, length), "and so is the length"
    assert int(done.forwards.max()) <= len(denoiser.asks)
    assert all(ask.where.any() for ask in denoiser.asks), "no forward is made that cannot decode anything"
    assert ((after.when >= 0) == ~after.fixed).all(), "every slot knows when it was decoded"

    again = decoded(Hashed(), before, strategy, steps, seed=seed)
    assert torch.equal(again.canvas.ids, after.ids), "same seed, same tokens"

    for row, prompt in enumerate(prompts):
        alone = strategy.prepare(canvas(length, [prompt]), encode)
        single = decoded(Hashed(), alone, strategy, steps, seed=seed + row)
        own = after.response[row][after.real[row]]
        assert torch.equal(single.canvas.response[0], own), "a batch equals its rows alone"
        assert torch.equal(single.canvas.distance[0], after.distance[row][after.real[row]])
        assert int(single.forwards) == int(done.forwards[row])
        assert (int(single.ties), int(single.chosen)) == (int(done.ties[row]), int(done.chosen[row]))


@pytest.mark.parametrize("name", ALL)
def test_a_strategy_is_its_recipe(name: str) -> None:
    names = {k: getattr(unmask, k) for k in unmask.__all__} | vars(published)
    assert eval(repr(ALL[name]), names) == ALL[name]


@pytest.mark.parametrize("name", ALL)
def test_infilled_text_stays(name: str) -> None:
    strategy = replace(ALL[name], anchors=())
    before = canvas(12).pin([5, 6, 7], 0).pin([8], 9)
    refuses = next(
        (rule for rule in strategy.revise if isinstance(rule, (lengths.Resize, revising.EarlyAnswer, revising.Finish))),
        None,
    )
    if refuses and getattr(refuses, "start", None) is None:
        with pytest.raises(unmask.UserError, match=r"length of their own|behind an anchor"):
            decoded(Hashed(), before, strategy, 5)
        return
    after = decoded(Hashed(), before, strategy, 5).canvas
    assert after.response[0, [0, 1, 2, 9]].tolist() == [5, 6, 7, 8]
    assert not after.masked.any()


def test_nothing_to_fill_makes_no_forward() -> None:
    done = decoded(denoiser := Hashed(), canvas(3).pin([5, 6, 7], 0), Strategy(), 3)
    assert (len(denoiser.asks), done.forwards.tolist()) == (0, [0])
