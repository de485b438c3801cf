"""The arithmetic of the method and of every rule, worked out by hand on canvases of a few slots."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from support.scripted import EOT, MASK, VOCAB, Hashed, Scripted, V, canvas, decoded, encode

from unmask import AnchorModulation, Canvas, Strategy, SuffixAnchor, UserError, Vocab
from unmask.decoding.methods import METHODS
from unmask.decoding.rules.anchors import Template
from unmask.decoding.rules.confidence import Certainty, NegativeEntropy, TopMargin, Uniform
from unmask.decoding.rules.modifiers import Calibrate, PositionDecay, RenormaliseEOT, SuppressEOT
from unmask.decoding.rules.remasking import Remask
from unmask.decoding.rules.revising import EarlyAnswer
from unmask.decoding.rules.schedules import Fixed
from unmask.decoding.rules.selection import EntropyBound, Factor, Quota, Threshold
from unmask.decoding.rules.tokens import Argmax, ForbidEOT, Gumbel


def order(done) -> list[int]:
    return done.canvas.when[0].tolist()


# --- SACM ---


def scores(strategy: Strategy, denoiser, start: Canvas, steps: int) -> list[list[float]]:
    """c~ of the first row at every step."""
    seen: list[list[float]] = []
    decoded(denoiser, start, strategy, steps, watch=[lambda step, score, chosen: seen.append(score[0].tolist())])
    return seen


def test_modulation_by_hand():
    """L = 6, an anchor of one token at slot 4, kappa = 2, beta = 1.2, gamma = 1; every slot says token 5 with p = 0.8."""
    start = canvas(6).pin([7], 4, anchor=True)
    strategy = Strategy(modifiers=(AnchorModulation(kappa=2, beta=1.2, gamma=1),))
    first, second, *_ = scores(strategy, Scripted(*[{5: 0.8}] * 6), start, steps=5)
    # Five of six slots are masked: p = 1 - 5/6, so (1 - p)^1 = 5/6. Distances 4 3 2 1 . 1 give
    w = [1.2 * math.exp(-d / 2) for d in (4, 3, 2, 1)]
    expected = [0.8 * (1 - min(1, x) * 5 / 6) for x in w]
    assert first[:4] == pytest.approx(expected, abs=1e-6)
    assert first[5] == pytest.approx(expected[3], abs=1e-6)
    # One more is decoded (slot 0, the farthest): (1 - p) = 4/6.
    assert second[1:4] == pytest.approx([0.8 * (1 - min(1, x) * 4 / 6) for x in w[1:]], abs=1e-6)


def test_weight_is_clipped_at_one_and_gamma_zero_never_relaxes():
    start = canvas(4).pin([7], 2, anchor=True)
    strategy = Strategy(modifiers=(AnchorModulation(kappa=10, beta=1.5, gamma=0),))
    for score in scores(strategy, Scripted(*[{5: 0.8}] * 4), start, steps=3):
        assert score[3] == 0.0  # beta exp(-1/10) > 1 is clipped, so the factor is exactly 0 at every step


def test_without_an_anchor_nothing_is_modulated():
    plain = scores(Strategy(), Hashed(), canvas(8), 4)
    assert scores(Strategy(modifiers=(AnchorModulation(),)), Hashed(), canvas(8), 4) == plain


def test_the_nearest_of_several_anchors_counts():
    start = canvas(10).pin([7], 1, anchor=True).pin([8, 9], 6, anchor=True)
    assert start.distance[0].tolist() == [1, 0, 1, 2, 2, 1, 0, 0, 1, 2]
    strategy = Strategy(anchors=(SuffixAnchor("a", at=2), SuffixAnchor("b c", at=-3)))
    ready = strategy.prepare(canvas(10), encode)
    assert ready.anchors[0].nonzero().squeeze(1).tolist() == [2, 7, 8]


def test_sacm_holds_back_what_the_anchor_makes_overconfident():
    """The slot behind the anchor is surest of all: the anchor alone decodes it first, SACM after
    the slots farther off (slot 2 is as near as it is, and less sure)."""
    denoiser = Scripted({5: 0.6}, {5: 0.61}, {5: 0.62}, {}, {9: 0.95})
    start = canvas(5).pin([7], 3, anchor=True)
    assert order(decoded(denoiser, start, Strategy(), 4)) == [3, 2, 1, -1, 0]
    sacm = Strategy(modifiers=(AnchorModulation(kappa=1, beta=2, gamma=0.5),))
    assert order(decoded(denoiser, start, sacm, 4)) == [0, 1, 3, -1, 2]


def test_progress_counts_the_whole_response_also_under_blocks():
    start = canvas(4).pin([7], 3, anchor=True)
    strategy = Strategy(modifiers=(AnchorModulation(kappa=2, beta=1, gamma=1),), block=2)
    seen = scores(strategy, Scripted(*[{5: 0.8}] * 4), start, 4)
    assert seen[0][0] == pytest.approx(0.8 * (1 - math.exp(-3 / 2) * 3 / 4))


def test_suffix_anchor_sits_k_before_the_end():
    ready = SuffixAnchor("The answer is", at=-20)(canvas(256), encode)
    assert ready.fixed[0].nonzero().squeeze(1).tolist() == [236, 237, 238]


# --- confidence ---


def test_confidences_by_hand():
    denoiser = Scripted({4: 0.6, 5: 0.3}, {4: 0.5, 5: 0.1})
    rest = [0.1 / 10, 0.4 / 10]
    assert scores(Strategy(), denoiser, canvas(2), 2)[0] == pytest.approx([0.6, 0.5], abs=1e-6)
    margin = scores(Strategy(confidence=TopMargin()), denoiser, canvas(2), 2)[0]
    assert margin == pytest.approx([0.3, 0.4], abs=1e-6)
    h = [
        -sum(p * math.log(p) for p in ([0.6, 0.3] + [rest[0]] * 10)),
        -sum(p * math.log(p) for p in ([0.5, 0.1] + [rest[1]] * 10)),
    ]
    assert scores(Strategy(confidence=NegativeEntropy()), denoiser, canvas(2), 2)[0] == pytest.approx(
        [-x for x in h], abs=1e-5
    )
    certainty = scores(Strategy(confidence=Certainty()), denoiser, canvas(2), 2)[0]
    assert certainty == pytest.approx([1 - x / math.log(V) for x in h], abs=1e-5)


def test_the_mask_is_kept_out_of_the_argmax_but_not_out_of_the_softmax():
    done = decoded(Scripted({MASK: 0.7, 5: 0.2}), canvas(1), Strategy(), 1)
    assert done.canvas.response.tolist() == [[5]]
    assert done.canvas.settled.item() == pytest.approx(0.2, abs=1e-6)


def test_uniform_draws_by_row_and_seed():
    def one(**o):
        return order(decoded(Scripted(*[{5: 0.5}] * 16), canvas(16), Strategy(confidence=Uniform()), 16, **o))

    assert one(seed=1) == one(seed=1) != one(seed=2)
    assert sorted(one(seed=3)) == list(range(16))


# --- modifiers ---


def test_suppressed_ends_are_chosen_last_in_their_own_order():
    denoiser = Scripted({EOT: 0.9}, {5: 0.3}, {EOT: 0.95}, {5: 0.4})
    assert order(decoded(denoiser, canvas(4), Strategy(defer=SuppressEOT()), 4)) == [3, 1, 2, 0]
    # a threshold never takes a suppressed slot early, however sure it is
    sure = Strategy(defer=SuppressEOT(), select=Threshold(0.5))
    assert order(decoded(denoiser, canvas(4), sure)) == [2, 1, 2, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 2.0])
def test_suppression_holds_at_every_temperature(temperature):
    read = Gumbel(temperature=temperature) if temperature else Argmax()
    done = decoded(Hashed(), canvas(16), Strategy(read, defer=SuppressEOT()), 16, watch=[late := Late()])
    assert done.canvas.masked.sum() == 0
    assert late.broken == 0


class Late:
    """Counts end-of-text commits made while a slot with another prediction was left."""

    broken = 0

    def __call__(self, step, score, chosen):
        ends = torch.isin(step.seen.token, torch.tensor(VOCAB.eot_ids))
        others = (step.eligible & ~ends).any(1)
        self.broken += int(((chosen & ends).any(1) & others).sum())


def test_with_suppression_and_modulation_nothing_is_nan():
    start = canvas(6).pin([7], 4, anchor=True)
    denoiser = Scripted(*[{EOT: 0.9}] * 6)
    strategy = Strategy(defer=SuppressEOT(), modifiers=(AnchorModulation(kappa=10, beta=1.5, gamma=0),))
    assert decoded(denoiser, start, strategy, 3).canvas.masked.sum() == 0


def test_published_suppression_renormalises():
    denoiser = Scripted({EOT: 0.5, 5: 0.4}, {5: 0.45, EOT: 0.0, 2: 0.0})
    strategy = Strategy(modifiers=(RenormaliseEOT(),), defer=SuppressEOT())
    both = scores(strategy, denoiser, canvas(2), 2)[0]
    assert both == pytest.approx([0.0, 0.45], abs=1e-6)
    other = Scripted({EOT: 0.3, 2: 0.1, 5: 0.5})
    assert scores(strategy, other, canvas(1), 1)[0] == pytest.approx([0.5 / 0.6], abs=1e-6)


def test_forbidden_ends_are_never_written():
    denoiser = Scripted({EOT: 0.9, 5: 0.05}, {2: 0.9, 5: 0.05})
    assert decoded(denoiser, canvas(2), Strategy(ForbidEOT()), 2).canvas.response.tolist() == [[5, 2]]
    assert decoded(denoiser, canvas(2), Strategy(ForbidEOT(every=True)), 2).canvas.response.tolist() == [[5, 5]]
    warm = Strategy(ForbidEOT(every=True, then=Gumbel(temperature=3.0)))
    assert not torch.isin(decoded(denoiser, canvas(2), warm, 2).canvas.response, torch.tensor([1, 2])).any()


def test_uncode_by_hand():
    """f(5) = 0.2/9: -0.5 ln f capped at alpha; then exp(-lambda i)."""
    f = 0.2 / 9 + 1e-9
    strategy = Strategy(modifiers=(Calibrate(alpha=1.5), PositionDecay(0.5)))
    got = scores(strategy, Scripted({5: 0.3}, {5: 0.5}), canvas(2), 2)[0]
    assert got == pytest.approx([-0.3 * math.log(f), 1.5 * math.exp(-0.5)], abs=1e-5)


def test_position_decay_does_not_underflow_at_the_end_of_a_long_response():
    start = canvas(2048)
    start = start.fill(torch.arange(2048)[None] < 2040, torch.full((1, 2048), 5), start.settled, torch.zeros(1).long())
    done = decoded(Scripted(*[{5: 0.5}] * 2048), start, Strategy(modifiers=(PositionDecay(0.25),)), 8)
    assert done.canvas.when[0, 2040:].tolist() == list(range(8))  # from left to right, to the very end
    assert int(done.ties) == 0


def test_uncode_without_a_table_says_what_to_do():
    with pytest.raises(UserError, match="unmask frequencies"):
        decoded(Hashed(), canvas(4, vocab=Vocab(MASK, (EOT,))), METHODS["uncode"], 2)


def test_template_pieces_stand_apart_and_do_not_modulate():
    ready = Template(at=-4)(canvas(28), encode)
    assert ready.fixed[0].nonzero().squeeze(1).tolist() == [0, 1, 8, 9, 16, 17, 24, 25, 26]
    assert not ready.anchors.any()
    with pytest.raises(UserError, match="does not fit"):
        Template(at=-4)(canvas(8), encode)


# --- selection ---


def test_quota_is_the_published_step_table():
    """ceil(masks left / steps left) against LLaDA's base + 1 for the first (masks % steps) steps."""
    for masks in range(1, 41):
        for steps in range(1, 45):
            table = [masks // steps + (i < masks % steps) for i in range(steps)]
            left, ours = masks, []
            for i in range(steps):
                if left:
                    ours.append(-(-left // (steps - i)))
                    left -= ours[-1]
            assert ours == [n for n in table if n]


def test_threshold_takes_all_above_and_always_the_best():
    denoiser = Scripted({5: 0.95}, {5: 0.5}, {5: 0.91}, {5: 0.6})
    assert order(decoded(denoiser, canvas(4), Strategy(select=Threshold(0.9)))) == [0, 2, 0, 1]


def test_threshold_compares_the_modulated_score():
    start = canvas(3).pin([7], 1, anchor=True)
    strategy = Strategy(select=Threshold(0.9), modifiers=(AnchorModulation(kappa=5, beta=1, gamma=1),))
    assert order(decoded(Scripted(*[{5: 0.99}] * 3), start, strategy)) == [0, -1, 1]


def test_factor_rule_by_hand():
    """thresholds -1, 1 - 1/3, 1 - 1/4, 1 - 1/5: .9 and .7 pass, .7 fails .75."""
    denoiser = Scripted({5: 0.7}, {5: 0.9}, {5: 0.69}, {5: 0.1})
    assert order(decoded(denoiser, canvas(4), Strategy(select=Factor(1.0)))) == [0, 0, 1, 1]


def test_entropy_bound_by_hand():
    """In the order of H, as many as keep the sum without the largest within gamma."""
    denoiser = Scripted({5: 0.999}, {5: 0.99}, {5: 0.9}, {5: 0.3})
    h = [-sum(p * math.log(p) for p in [q] + [(1 - q) / (V - 1)] * (V - 1)) for q in (0.999, 0.99, 0.9, 0.3)]
    gamma = h[0] + h[1] + 1e-4  # three slots: their sum less the largest is h0 + h1
    done = decoded(denoiser, canvas(4), Strategy(confidence=NegativeEntropy(), select=EntropyBound(gamma)))
    assert order(done) == [0, 0, 0, 1]


def test_blocks_need_not_divide_the_length():
    done = decoded(Hashed(), canvas(10), Strategy(block=4), 5)
    when = done.canvas.when[0]
    assert when[:4].max() < when[4:8].min() and when[4:8].max() < when[8:].min()
    assert int(done.forwards) == 5


def test_ties_go_to_the_left_and_are_counted():
    done = decoded(Scripted(*[{5: 0.5}] * 4), canvas(4), Strategy(), 4)
    assert order(done) == [0, 1, 2, 3]
    assert (int(done.ties), int(done.chosen)) == (3, 4)  # the last one had no rival
    clear = decoded(Scripted({5: 0.2}, {5: 0.3}, {5: 0.4}), canvas(3), Strategy(), 3)
    assert int(clear.ties) == 0


def test_remask_port_counts_and_reopens_the_least_sure():
    """L = 8, k = 2: three steps fill 6, two rounds of two forwards, one step fills the rest."""
    strategy = Strategy(select=Quota(Fixed(2)), remask=Remask(k=2, after=0.75, rounds=2))
    seen = []
    done = decoded(
        Hashed(), canvas(8), strategy, watch=[lambda step, score, chosen: seen.append(step.reopened.sum().item())]
    )
    assert seen == [0, 0, 0, 2, 2, 0]
    assert int(done.forwards) == 3 + 2 * 2 + 1
    assert done.canvas.masked.sum() == 0


def test_remask_official_reopens_by_the_confidence_at_commit():
    """Scripted, so the confidences never change: the least sure settled slot is the one with the lowest p."""
    denoiser = Scripted({5: 0.9}, {5: 0.3}, {5: 0.8}, {5: 0.2})
    strategy = Strategy(select=Quota(Fixed(1)), remask=Remask(k=1, after=0.75, rounds=1, fresh=False))
    opened = []
    done = decoded(
        denoiser, canvas(4), strategy, watch=[lambda step, score, chosen: opened.append(step.reopened[0].tolist())]
    )
    assert opened[3] == [False, True, False, False]  # of slots 0, 2, 1 decoded so far, slot 1 was the least sure
    assert int(done.forwards) == 5  # no forward is spent on looking


def test_fixed_text_is_never_reopened():
    start = canvas(8).pin([7, 8], 2)
    done = decoded(Hashed(), start, Strategy(select=Quota(Fixed(1)), remask=Remask(k=3, after=0.5, rounds=9)))
    assert done.canvas.response[0, 2:4].tolist() == [7, 8]


# --- reading ---


def test_gumbel_at_a_low_temperature_is_the_argmax_and_at_a_high_one_is_not():
    cold = decoded(Hashed(), canvas(24), Strategy(Gumbel(temperature=1e-6)), 24)
    assert torch.equal(cold.canvas.response, decoded(Hashed(), canvas(24), Strategy(), 24).canvas.response)
    hot = decoded(Hashed(), canvas(24), Strategy(Gumbel(temperature=5.0)), 24)
    assert not torch.equal(hot.canvas.response, cold.canvas.response)


def test_gumbel_samples_the_softmax():
    """At temperature 1 a token is drawn with its probability."""
    rows = [(5, i) for i in range(3, 11)] * 250
    done = decoded(Scripted({5: 0.5, 6: 0.3}), canvas(1, rows), Strategy(Gumbel(temperature=1.0)), 1)
    share = (done.canvas.response == 5).float().mean().item()
    assert share == pytest.approx(0.5, abs=0.04)


def test_logits_are_asked_only_where_a_position_can_be_chosen_and_read_in_chunks(monkeypatch):
    import unmask.decoding.running

    monkeypatch.setattr(unmask.decoding.running, "CHUNK", 3 * V)
    sizes = []

    class Watching(Hashed):
        def logits(self, ask, rows, slots):
            part = super().logits(ask, rows, slots)
            return lambda s: (sizes.append(len(rows[s])), part(s))[1]

    done = decoded(denoiser := Watching(), canvas(10), Strategy(block=5), 10)
    assert max(sizes) == 3
    assert [int(ask.where.sum()) for ask in denoiser.asks] == [5, 4, 3, 2, 1] * 2
    assert torch.equal(done.canvas.ids, decoded(Hashed(), canvas(10), Strategy(block=5), 10).canvas.ids)


def test_nan_logits_are_one_clear_line():
    class Broken(Hashed):
        def logits(self, ask, rows, slots):
            return lambda part: torch.full((len(rows[part]), V), torch.nan)

    for strategy in METHODS.values():
        if any(isinstance(rule, EarlyAnswer) for rule in strategy.revise):
            strategy = strategy.with_(start=0)
        with pytest.raises(UserError, match="NaN"):
            decoded(Broken(), canvas(4), replace(strategy, anchors=()), 2)


# --- bad input ---


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SuffixAnchor("a b c d e", at=-3)(canvas(8), encode), "an anchor of 5 tokens does not fit the 3 slots"),
        (lambda: SuffixAnchor("a", at=-9)(canvas(8), encode), "position -9 is outside"),
        (lambda: SuffixAnchor("a", at=8)(canvas(8), encode), "position 8 is outside"),
        (lambda: SuffixAnchor("", at=-3)(canvas(8), encode), "nothing to pin"),
        (lambda: canvas(8).pin([5], 2).pin([6], 2), "hold fixed text already"),
        (lambda: canvas(0), "length must be at least 1"),
        (lambda: canvas(4, ((5, MASK),)), "holds the mask token"),
        (lambda: canvas(4, ()), "no prompt"),
        (lambda: decoded(Hashed(), canvas(4), Strategy(), 0), "steps must be at least 1"),
        (lambda: decoded(Hashed(), canvas(4), Strategy(block=0), 2), "block is a number from 1"),
        (lambda: decoded(Hashed(), canvas(4), Strategy(select=Threshold(), remask=Remask()), 2), "remasking .* goes with"),
        (lambda: decoded(Hashed(), canvas(4), Strategy(remask=Remask()), 2), "remasking .* goes with"),
        (lambda: decoded(Hashed(), canvas(4), replace(METHODS["sacm"], confidence=NegativeEntropy(), anchors=()), 2), "Certainty"),
        (lambda: canvas(8).pin([5, MASK], 2), "no mask among them"),
        (lambda: METHODS["remdm"].with_(tokens=0), "at least 1 token"),
        (lambda: METHODS["sacm"].with_(kappa="abc"), "kappa is a number"),
        (lambda: METHODS["sacm"].with_(at=1.5), "at is a whole number"),
        (lambda: METHODS["sacm"].with_(block="x"), "block is a whole number"),
        (lambda: METHODS["sacm"].with_(confidence="margin"), "build this Strategy in Python"),
        (lambda: Strategy().with_(kappa=3), "no setting 'kappa'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_settings_reach_the_rule_that_owns_the_name():
    sacm = METHODS["sacm"].with_(kappa=12, at=-30, text="Answer:", block=64)
    assert sacm.modifiers[0] == AnchorModulation(12, 1.3, 0.85)
    assert sacm.anchors[0] == SuffixAnchor("Answer:", -30)
    assert (sacm.block, METHODS["remdm"].with_(tokens=2).select) == (64, Quota(Fixed(2)))
    assert METHODS["uncode"].with_(**{"lambda": 0.5}).modifiers[1] == PositionDecay(0.5)
    assert METHODS["sacm"].with_(text=1.0).anchors[0].text == "1.0"
    both = replace(METHODS["sacm"], select=EntropyBound())
    with pytest.raises(UserError, match="AnchorModulation and of EntropyBound"):
        both.with_(gamma=1)


def test_a_rule_that_reads_what_it_did_not_ask_for_is_told_how():
    class Forgetful:
        def __call__(self, step):
            return -step.seen.entropy

    with pytest.raises(UserError, match="name it in the rule's `needs`"):
        decoded(Hashed(), canvas(4), Strategy(confidence=Forgetful()), 2)


def test_a_rule_that_chooses_nothing_ends_in_an_error():
    """After the first such step; a rule that says it `idles`, as some published schedules do, has until its bound."""

    calls = []

    @dataclass(frozen=True)
    class Idle:
        def __call__(self, step, score):
            calls.append(type(self))
            return step.eligible & False

        def bound(self, n, steps):
            return n

    @dataclass(frozen=True)
    class Patient(Idle):
        idles: ClassVar = True

    for rule in (Idle(), Patient()):
        with pytest.raises(UserError, match="every step must decode a slot"):
            decoded(Hashed(), canvas(4), Strategy(select=rule), 2)
    assert calls == [Idle, *5 * [Patient]]


def test_nan_is_blamed_on_whoever_gave_it():
    class Wild:
        def __call__(self, step, score):
            return score * float("nan")

    with pytest.raises(UserError, match="the method's score is NaN or infinite"):
        decoded(Hashed(), canvas(4), Strategy(modifiers=(Wild(),)), 2)
