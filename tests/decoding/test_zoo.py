"""The zoo's rules, worked out by hand on canvases of a few slots; and what is known of its rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.scripted import EOT, Hashed, Scripted, V, canvas, decoded

import unmask
from unmask import Strategy, UserError
from unmask.decoding.methods import METHODS
from unmask.decoding.reading import Ask, Draws, Reader
from unmask.decoding.rules.confidence import NegativeEntropy
from unmask.decoding.rules.focus import AdaBlock, Behind, Frontier, Onward, Sliding
from unmask.decoding.rules.lengths import Density, Expand, arranged
from unmask.decoding.rules.modifiers import DampEOT, Jitter
from unmask.decoding.rules.readiness import AboveMean, Hierarchy, Leap, Levels, Spaced, Stable, Wide, levels
from unmask.decoding.rules.revising import Backtrack, EarlyAnswer, FillEOT, PadEOT, Refine, Replace, Verify
from unmask.decoding.rules.selection import DynamicThreshold, EntropyThreshold, Everything, Threshold
from unmask.decoding.rules.tokens import Argmax, Credit, EndPenalty
from unmask.decoding.running import answer
from unmask.decoding.zoo import ABOUT, ZOO


def order(strategy: Strategy, *p: float, steps: int | None = None, start=None) -> list[int]:
    """The forward that decoded each slot, where slot i always says token 5 with probability p[i]."""
    start = canvas(len(p)) if start is None else start
    return decoded(Scripted(*[{5: q} for q in p]), start, strategy, steps).canvas.when[0].tolist()


# --- ready when stable ---


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (
            Stable(0.4, 0.01, history=1),
            [0, 1, 1, 2],
        ),  # the first forward has nothing to compare with; then two are at rest
        (Stable(0.4, 0.01, history=2), [0, 2, 1, 3]),  # forward 1 falls back to the quota, forward 2 finds one ready
        (Stable(0.4, 0.01, history=1, pick="max_conf"), [0, 2, 1, 3]),
        (Stable(0.99, 0.01, history=1), [0, 2, 1, 3]),  # nothing is ever sure enough
    ],
)
def test_klass(rule, expected):
    assert order(Strategy(select=rule), 0.95, 0.5, 0.92, 0.3, steps=4) == expected


def test_a_slot_that_was_not_read_does_not_come_to_rest():
    """A session may answer fewer slots than were asked: slot 1 is not read at the second forward."""

    class Lazy(Scripted):
        def reads(self, ask):
            return ask.where & ((torch.arange(3) != 1) | (ask.forward != 1))

        def complete(self, seen):
            kept = getattr(self, "kept", None)
            if kept is not None:
                names = {
                    "token": torch.where(seen.read, seen.token, kept.token),
                    "p": torch.where(seen.read, seen.p, kept.p),
                }
                seen = replace(seen, **names)
            self.kept = seen
            return seen

    rule = Stable(0.4, 0.01, history=1)
    done = decoded(Lazy({5: 0.95}, {5: 0.5}, {5: 0.45}), canvas(3), Strategy(select=rule), 3)
    assert done.canvas.when[0].tolist() == [0, 2, 1]
    assert order(Strategy(select=rule), 0.95, 0.5, 0.45, steps=3) == [0, 1, 1]


def test_local_leap():
    """Slot 1 is within one slot of a sure one and passes the lower line; slot 2 is not."""
    assert order(Strategy(select=Leap(0.9, 0.75, 1)), 0.95, 0.8, 0.8, 0.3) == [0, 0, 1, 2]


def test_hierarchy():
    """One run, then the two that its best token cuts it into."""
    assert order(Strategy(select=Hierarchy(0.9, 0.4)), 0.5, 0.6, 0.7, 0.45) == [2, 1, 0, 1]
    assert order(Strategy(select=Hierarchy(0.9, 0.5)), 0.5, 0.6, 0.7, 0.45) == [2, 1, 0, 3]
    assert order(Strategy(select=Hierarchy(0.55, None)), 0.5, 0.6, 0.7, 0.45) == [1, 0, 0, 1]


def test_levels():
    assert levels(8, "dilated", 2, 1) == ((0, 4), (2, 6), (1, 3, 5, 7))
    assert levels(8, "dilated", 2, 2) == ((0, 2, 4, 6), (1, 3, 5, 7))
    assert levels(5, "dilated", 1, 1) == ((0, 1, 2, 3, 4),)
    assert levels(7, "binary", 2, 1) == ((3,), (1, 5), (0, 2, 4, 6))
    assert levels(8, "binary", 2, 1) == (
        (3,),
        (1, 5),
        (0, 2, 4, 6, 7),
    )  # a last level smaller than the one before joins it
    assert order(Strategy(select=Levels()), *[0.5] * 8) == [0, 2, 1, 2, 0, 2, 1, 2]
    assert order(Strategy(select=Levels(tau=0.4)), 0.3, *[0.5] * 7) == [2, 2, 1, 2, 0, 2, 1, 2]  # unsure: with the last


def test_spacing():
    """gap = max(2, 4 x 2 / 4): 0 and 2 go together, their neighbours wait."""
    assert order(Strategy(select=Spaced(Threshold(0.5), 2)), 0.9, 0.8, 0.85, 0.7) == [0, 1, 0, 1]
    assert order(Strategy(select=Spaced(Threshold(0.5), 0)), 0.9, 0.8, 0.85, 0.7) == [0, 0, 0, 0]


def test_dynamic_threshold():
    assert order(Strategy(select=DynamicThreshold(0.9)), 0.95, 0.92, 0.5, 0.4, steps=4) == [0, 0, 1, 2]
    assert order(Strategy(select=DynamicThreshold(0.9)), 0.95, 0.92, 0.5, 0.4, steps=1) == [
        0,
        0,
        0,
        0,
    ]  # two are not enough


def test_entropy_threshold():
    """H is 0.08, 0.15 and 2.36 nats."""
    strategy = Strategy(confidence=NegativeEntropy(), select=EntropyThreshold(0.5))
    assert order(strategy, 0.99, 0.3, 0.98) == [0, 1, 0]
    assert order(replace(strategy, select=EntropyThreshold(0.1)), 0.99, 0.3, 0.98) == [0, 2, 1]


def test_eoser():
    """At first end-of-text counts 0.4 of its 0.9, with half the response decoded 0.7."""
    seen = []
    watch = [lambda step, score, chosen: seen.append(score[0].tolist())]
    decoded(Scripted({EOT: 0.9}, {5: 0.5}), canvas(2), Strategy(modifiers=(DampEOT(),)), 2, watch=watch)
    assert seen[0] == pytest.approx([0.36, 0.5], abs=1e-6)
    assert seen[1][0] == pytest.approx(0.63, abs=1e-6)


def test_alg_temp_draws_by_softmax():
    """softmax(0.6 / 0.2, 0.4 / 0.2) = 0.731, 0.269."""
    rows = [(5, 3 + i % 8) for i in range(2000)]
    done = decoded(Scripted({5: 0.6}, {5: 0.4}), canvas(2, rows), Strategy(modifiers=(Jitter(0.2),)), 2)
    assert (done.canvas.when[:, 0] == 0).float().mean().item() == pytest.approx(0.731, abs=0.03)


def test_credit():
    """alpha = gamma = beta = 1: at the first forward credit is p, so 0.5 becomes 0.75 / 1.25; slot 1 has 0.8 at the second."""
    seen = []
    watch = [lambda step, score, chosen: seen.append(score[0].tolist())]
    credit = Credit(alpha=1, gamma=1, beta=1)
    decoded(Scripted({5: 0.5, 6: 0.4}, {5: 0.4, 6: 0.3}), canvas(2), Strategy(credit), 2, watch=watch)
    assert seen[0] == pytest.approx([0.75 / 1.25, 0.56 / 1.16], abs=1e-5)
    assert seen[1][1] == pytest.approx(0.72 / 1.32, abs=1e-5)


def test_prophet():
    """The answer's slot has a gap of ln(0.9 / (0.1 / 11)) = 4.6."""
    start = canvas(5).pin([7], 1, anchor=True)
    p = (0.5, 0.5, 0.9, 0.4, 0.3)
    early = Strategy(revise=(EarlyAnswer(4.0, 9.0, 9.0, n=1),))
    assert order(early, *p, steps=4, start=start) == [0, -1, 0, 0, 0]
    later = Strategy(revise=(EarlyAnswer(9.0, 4.0, 9.0, n=1),))  # step 2 of 4 is in the middle third
    assert order(later, *p, steps=4, start=start) == [1, -1, 0, 1, 1]
    never = Strategy(revise=(EarlyAnswer(9.0, 9.0, 9.0, n=1),))
    assert order(never, *p, steps=4, start=start) == [1, -1, 0, 2, 3]


def test_a_full_block_with_an_end_fills_the_rest():
    done = decoded(
        Scripted({EOT: 0.9}, *[{5: 0.8}] * 5), canvas(6), Strategy(select=Threshold(0.5), revise=(FillEOT(),), block=2)
    )
    assert (done.canvas.response.tolist(), int(done.forwards)) == ([[EOT, 5, EOT, EOT, EOT, EOT]], 1)


# --- revoke ---


def test_wino():
    """Forward 1 takes back 2 and 3 (below 0.75); forward 2 would take back 4 and 5, but one less than forward 1 decoded: 5."""
    strategy = Strategy(select=Wide(0.5, 0.7, least=2), revise=(Verify(0.75),))
    assert order(strategy, 0.9, 0.8, 0.7, 0.6, 0.55, 0.52) == [0, 0, 2, 2, 1, 3]


def test_rcr():
    """floor(4 (1 - 1/2)) = 2 are opened again, the least sure."""
    strategy = Strategy(select=Everything(), revise=(Refine(),), focus=Behind())
    assert order(strategy, 0.9, 0.5, 0.7, 0.3, steps=2) == [0, 1, 0, 1]
    assert [Refine().open(10, (t + 1) / 10) for t in range(10)] == [9, 8, 7, 6, 5, 4, 3, 1, 0, 0]  # as float64 rounds


def test_saber():
    """Forward 0 decodes the two best and opens 1 again; at forward 1 nothing has changed since, so the leftmost goes."""
    strategy = Strategy(select=AboveMean(2), revise=(Backtrack(2),))
    assert order(strategy, 0.9, 0.8, 0.6, 0.5) == [2, 1, 1, 2]


def test_core():
    """Once slot 1 is written, slot 0 would be token 6: verified at the third step, and replaced."""

    class Changing(Scripted):
        def logits(self, ask, rows, slots):
            self.asks.append(ask)
            table = self.log.clone()
            if not bool(ask.canvas.masked[0, 1]):
                table[0] = torch.full((V,), 0.2 / (V - 1)).log()
                table[0, 6] = torch.tensor(0.8).log()
            return lambda part: table[slots[part]].clone()

    denoiser = Changing({5: 0.95}, {5: 0.9}, {5: 0.8}, {5: 0.7})
    done = decoded(denoiser, canvas(4), Strategy(revise=(Replace(1, every=1, m=1, spare=0),)), 4)
    assert done.canvas.response.tolist() == [[6, 5, 5, 5]]
    assert int(done.forwards) == len(denoiser.asks) == 6  # the two in the middle verify


def test_end_penalty_fades():
    """l(EOT) + ln(1 - t + eps): at forward 0 by ln eps, at the last one by next to nothing."""
    read = EndPenalty(weight=1.0, eps=0.5)
    denoiser = Scripted({EOT: 0.6, 5: 0.35}, {EOT: 0.6, 5: 0.35})
    done = decoded(denoiser, canvas(2), Strategy(read), 2)
    assert done.canvas.response.tolist() == [[5, EOT]]  # 0.6 x 0.5 < 0.35, then 0.6 x 0.75 > 0.35


# --- windows and length ---


def test_adablock():
    """A quarter of 8 is searched: slot 1 ends a line, so the first block has 2 slots; the others have none, and 4."""
    say = [{5: 0.9}, {9: 0.5}, *[{5: 0.9}] * 6]
    strategy = Strategy(select=Threshold(0), focus=AdaBlock(4, 0.3, (9,)))
    assert decoded(Scripted(*say), canvas(8), strategy).canvas.when.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2]]
    strict = replace(strategy, focus=AdaBlock(4, 0.6, (9,)))
    assert decoded(Scripted(*say), canvas(8), strict).canvas.when.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1]]


def test_sliding():
    assert order(Strategy(select=Threshold(0.5), focus=Sliding(2)), 0.9, 0.2, 0.9, 0.9, 0.9) == [0, 4, 1, 2, 3]
    assert order(Strategy(select=Threshold(0.5), focus=Sliding(2, 2)), 0.9, 0.2, 0.9, 0.9, 0.9) == [0, 2, 1, 3, 3]


def test_padding_behind_an_end():
    done = decoded(
        Scripted({5: 0.9}, {EOT: 0.9}, {5: 0.9}, {5: 0.9}),
        canvas(4),
        Strategy(select=Threshold(0.5), revise=(PadEOT(3),)),
    )
    assert done.canvas.response.tolist() == [[5, EOT, 3, 3]]


def test_frontier_counts_from_the_prompt_where_it_is_aligned():
    """A prompt of 3 in blocks of 4: the first holds one slot of the response."""
    assert order(Strategy(select=Threshold(0), focus=Frontier(4, aligned=True)), *[0.9] * 6) == [0, 1, 1, 1, 1, 2]
    assert order(Strategy(select=Threshold(0), focus=Frontier(4)), *[0.9] * 6) == [0, 0, 0, 0, 1, 1]


def test_daedal_finds_its_length():
    strategy = Strategy(select=Threshold(0.5), focus=Frontier(8), revise=(Expand(8, by=2, w=2),))
    with pytest.warns(UserWarning, match="limit of 8 tokens"):
        done = decoded(Scripted(*[{5: 0.9}] * 8), canvas(4), strategy)
    assert (done.canvas.length, int(done.forwards)) == (8, 4)  # 4, 6, 8, and one that decodes
    ends = decoded(Scripted({5: 0.9}, {5: 0.9}, *[{EOT: 0.9}] * 3), canvas(4), strategy)
    assert ends.canvas.response.tolist() == [[5, 5, EOT, EOT, EOT]]  # E = 0.9 is enough; w / 2 ends behind it


def test_daedal_opens_up_where_it_is_unsure():
    """Slot 1 is the least sure, below `low`: it becomes three masks."""
    rule = Expand(6, by=3, enough=0.0, more=0.9, low=0.2, w=2)
    strategy = Strategy(select=Threshold(0.5), focus=Frontier(8), revise=(rule,))
    done = decoded(Scripted({5: 0.9}, {5: 0.15}, *[{5: 0.9}] * 6), canvas(4).pin([7], 3, anchor=True), strategy)
    assert done.canvas.length == 6
    assert done.canvas.response[0, -1] == 7  # the anchor keeps its distance from the end


def test_rho_eos_grows_and_is_cut():
    grow = Strategy(select=Threshold(0.5), focus=Onward(2), revise=(Density(6, by=1, w=2, curve="const"),))
    with pytest.warns(UserWarning, match="limit of 6 tokens"):
        done = decoded(Scripted(*[{5: 0.9}] * 6), canvas(4), grow)
    assert done.canvas.length == 6
    cut = decoded(Scripted(*[{5: 0.9}] * 2, *[{EOT: 0.9}] * 4), canvas(6), grow.with_(most=12, low=0.1, high=0.2))
    assert cut.canvas.length < 6
    assert (
        Density(by=2).slots(torch.tensor(0.25)) == 2 * 4
        and Density(by=2, curve="linear").slots(torch.tensor(0.25)) == 2 * 3
    )


def test_everything_known_of_a_slot_moves_with_it():
    start = canvas(4, [(5,), (6, 7)]).pin([8], 2, anchor=True)
    start = start.remember({"kept": torch.arange(8).view(2, 4), "row": torch.tensor([3, 4])})
    moved = arranged(start, [[0, -1, 1, 2, 3], [0, 2]])
    assert moved.response.tolist() == [[0, 0, 0, 8, 0], [0, 8, EOT, EOT, EOT]]
    assert moved.real.sum(1).tolist() == [5, 2]
    assert moved.fixed.tolist() == [[False, False, False, True, False], [False, True, True, True, True]]
    assert moved.distance[0].tolist() == [3, 2, 1, 0, 1]
    assert moved.memory["kept"].tolist() == [[0, 0, 1, 2, 3], [4, 6, 0, 0, 0]]
    assert moved.memory["row"].tolist() == [3, 4]


# --- reading ---


def test_what_reading_keeps_is_forgotten_with_the_slot():
    """Vectors are kept for masked slots only, and a row of another length starts afresh."""
    start = canvas(3)
    read = Reader(Argmax(), frozenset({"divergence"}), Draws(0, start))
    denoiser = Scripted({5: 0.9}, {5: 0.8}, {5: 0.7}, {5: 0.6})

    def seen(now, forward):
        return answer(denoiser, Ask(now, slice(0, now.length), now.masked, read, forward)).divergence[0]

    assert bool((seen(start, 0) > 20).all())
    assert seen(start, 1).tolist() == pytest.approx([0, 0, 0], abs=1e-5)
    filled = start.fill(torch.tensor([[True, False, False]]), torch.full((1, 3), 5), start.settled, torch.tensor([2]))
    seen(filled, 2)
    assert set(read.kept["p"].vectors) == {(0, 1), (0, 2)}
    assert bool((seen(arranged(filled, [[0, 1, 2, -1]]), 3)[1:] > 20).all())


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: decoded(Hashed(), canvas(8).pin([5], 2), ZOO["daedal"]), "cannot be infilled text"),
        (lambda: decoded(Hashed(), canvas(8).pin([5], 2), ZOO["rho-eos"]), "cannot be infilled text"),
        (lambda: decoded(Hashed(), canvas(8), replace(ZOO["prophet"], anchors=())), "behind an anchor"),
        (lambda: decoded(Hashed(), canvas(8), ZOO["daedal"].with_(most=4)), "less than the 8 it begins with"),
        (lambda: decoded(Hashed(), canvas(8), ZOO["daedal"].with_(block=4)), "goes with block=None only"),
        (lambda: decoded(Hashed(), canvas(8), ZOO["dsb"].with_(block=4)), "goes with block=None only"),
        (lambda: decoded(Hashed(), canvas(8), ZOO["saber-dream"].with_(block=4)), "block=None only"),
        (lambda: ZOO["klass"].with_(tau=1.5), "tau is a probability"),
        (lambda: ZOO["klass"].with_(kl=0), "kl is above 0"),
        (lambda: ZOO["klass"].with_(history=1.5), "history is a whole number"),
        (lambda: ZOO["klass"].with_(pick="best"), "pick is all, max_conf or min_kl"),
        (lambda: ZOO["wino"].with_(back=-1), "back is a probability"),
        (lambda: ZOO["rcr"].with_(curve="steep"), "curve is linear"),
        (lambda: ZOO["rcr"].with_(curve="powx"), "power curve"),
        (lambda: ZOO["saber"].with_(by="mood"), "by is change or current"),
        (lambda: ZOO["core"].with_(every=0), "every and m are at least 1"),
        (lambda: ZOO["rho-eos"].with_(low=0.9), "low is at most high"),
        (lambda: ZOO["rho-eos"].with_(curve="square"), "curve is const"),
        (lambda: ZOO["dus"].with_(kind="spiral"), "kind is dilated or binary"),
        (lambda: ZOO["local-leap"].with_(radius=-1), "radius must not be negative"),
        (lambda: ZOO["credit"].with_(beta=2), "beta from 0 to 1"),
        (lambda: ZOO["alg-temp"].with_(temperature=0), "above 0"),
        (lambda: ZOO["dsb"].with_(open=0), "open and span are at least 1"),
        (lambda: ZOO["dsb"].with_(span="wide"), "span is a whole number or None"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_caches_refuse_what_they_cannot_answer(model):
    with pytest.raises(UserError, match="leaving one token out"):
        unmask.generate(model, "Hello", "wino", length=8, cache="dual")
    with pytest.raises(UserError, match="looks beyond the block"):
        unmask.generate(model, "Hello", ZOO["klass"].with_(block=4), length=8, cache="prefix")


# --- what is known of the rows ---


def test_every_row_says_where_it_comes_from():
    assert list(ABOUT) == list(ZOO)
    assert not set(ZOO) - set(METHODS)
    records = json.loads((Path(__file__).parent.parent / "golden" / "trajectories_zoo.json").read_text())
    pinned = {about.pinned for about in ABOUT.values()} - {""}
    assert pinned == {record["decoder"] for record in records}


def test_fields_added_later_stay_out_of_the_recipe_until_they_are_used():
    assert repr(Strategy()).endswith("pace=0.5)")
    assert repr(ZOO["dsb"]).endswith("focus=Sliding(open=32, span=None))")
