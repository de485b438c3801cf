"""Trace: what it remembers, by hand and for every method; the file, also one that the first version wrote."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.scripted import Scripted, canvas, decoded
from support.tracing import EOT, MASK, small_model

from unmask.decoding.algorithm import AnchorModulation, Strategy, SuffixAnchor
from unmask.decoding.methods import ABOUT, METHODS
from unmask.decoding.rules.modifiers import Jitter
from unmask.decoding.rules.support import Support
from unmask.errors import UserError
from unmask.generation import Decoding, generate
from unmask.views import trace
from unmask.views.trace import Trace, record

PLAIN = {"top-probability": METHODS["top-probability"]}

OLD = Path(__file__).parent.parent / "data" / "trace-v1.json.gz"


@pytest.fixture(scope="module")
def model():
    model = small_model()
    vocab = replace(model.vocab, frequency=torch.full((512,), 1 / 512))
    return replace(model, vocab=vocab)


class Numbers:
    """A model as far as a trace asks: its name and the text of tokens, which is their number."""

    name = "numbers"

    def __init__(self):
        self.tokenizer = self

    def decode(self, ids: list[int]) -> str:
        return f"<{ids[0]}>"

    def text(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))


def test_by_hand():
    """Four slots, the last one an anchor: kappa = 1, beta = 1, gamma = 1 damp slot 2 by e^-1, 1 by e^-2, 0 by e^-3."""
    denoiser = Scripted({4: 0.6, 3: 0.4}, {5: 0.7, 3: 0.3}, {6: 0.9, 3: 0.1}, {})
    strategy = Strategy(anchors=(SuffixAnchor("x", -1),), modifiers=(AnchorModulation(1, 1, 1),))
    watcher = Trace(top=True)
    done = decoded(denoiser, strategy.prepare(canvas(4), lambda text: [7]), strategy, 3, watch=[watcher])
    (found,) = watcher.runs(Numbers(), [{"method": "by hand", "gold": "7", "correct": False}])
    assert found.given == [[3, 7]] and found.anchors == [3]
    assert found.weight == [0.0498, 0.1353, 0.3679, 1.0]
    first, second, third = found.moments()
    assert first.ids == [0, 0, 0, 7] and first.slots == [0, 1, 2] and first.guess == [4, 5, 6]
    assert first.base == [0.6, 0.7, 0.9]
    # p = 1 - 3/4, so c~ = c (1 - 3/4 w): 0.6 * 0.9627, 0.7 * 0.8985, 0.9 * 0.7241
    assert first.score == pytest.approx([0.5776, 0.6289, 0.6517], abs=1e-4)
    assert [first.chosen, second.chosen, third.chosen] == [[2], [1], [0]]
    assert third.ids == [0, 5, 6, 7] and third.when == [-1, 1, 0, -1]
    assert found.final().ids == done.canvas.response[0].tolist() == [4, 5, 6, 7]
    assert found.candidates["2"][:2] == [[6, 0.9], [3, 0.1]] and list(found.candidates) == ["0", "1", "2"]
    assert found.tokens["6"] == "<6>" and found.method == "by hand" and found.correct is False


def test_what_each_modifier_did_by_hand():
    """Two modifiers: the step keeps the score between them. rho = 1 / ln 2: the prompt's three tokens support slot i by 7/8 2^-i."""
    denoiser = Scripted({4: 0.6, 3: 0.4}, {5: 0.7, 3: 0.3}, {6: 0.9, 3: 0.1}, {})
    strategy = Strategy(
        anchors=(SuffixAnchor("x", -1),), modifiers=(AnchorModulation(1, 1, 1), Support(1 / math.log(2), 0))
    )
    watcher = Trace()
    decoded(denoiser, strategy.prepare(canvas(4), lambda text: [7]), strategy, 3, watch=[watcher])
    (found,) = watcher.runs(Numbers())
    assert found.modifiers == ["AnchorModulation", "Support"]
    first, *_ = found.moments()
    assert first.base == [0.6, 0.7, 0.9]
    assert first.between == [pytest.approx([0.5776, 0.6289, 0.6517], abs=1e-4)]  # as above, by the anchor
    assert first.score == pytest.approx([0.5776 * 7 / 8, 0.6289 * 7 / 16, 0.6517 * 7 / 32], abs=1e-4)
    assert first.chosen == [0]


def test_one_modifier_leaves_nothing_between(model):
    (run_,) = record(model, ["so we add"], {"sacm": METHODS["sacm"]}, Decoding(length=24, steps=2, raw=True), top=False)
    assert run_.modifiers == ["AnchorModulation"] and "score" in run_.steps[0] and "between" not in run_.steps[0]
    assert next(run_.moments()).between == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_in_a_batch(model, name):
    """The trace ends where the decode ended, says when each token came, and reports only eligible slots."""
    options = {"length": 48, "steps": 12, "raw": True, "batch": 2}
    prompts = ["so we add two", "apples", "four boxes each"]
    if "length" in ABOUT[name].needs:
        with pytest.raises(UserError, match="a trace shows a response of one length"):
            record(model, prompts, {name: METHODS[name]}, Decoding(**options))
        return
    made = generate(model, prompts, name, **options)
    runs = record(model, prompts, {name: METHODS[name]}, Decoding(**options))
    assert [r.prompt for r in runs] == prompts
    for run_, generation in zip(runs, made, strict=True):
        assert run_.final().ids == generation.tokens and run_.text == generation.text
        assert run_.eot_ratio() == pytest.approx(generation.eot_ratio)
        forwards = [step["forward"] for step in run_.steps]
        assert [forwards[n] if n >= 0 else -1 for n in run_.final().when] == generation.order
        for moment in run_.moments():
            assert all(moment.ids[i] == MASK for i in moment.slots) and set(moment.chosen) <= set(moment.slots)
            assert len(moment.slots) == len(moment.guess) == len(moment.base) == len(moment.score)
            assert [len(part) for part in moment.between] == [len(moment.slots)] * len(run_.modifiers[1:])
        assert all(step["ms"] > 0 for step in run_.steps)


def test_watching_changes_nothing(model):
    options = {"length": 32, "steps": 8, "raw": True}
    drawn = Strategy(modifiers=(Jitter(), Support()))  # here and in uniform, scoring twice would draw again
    for method in ("sacm", "uniform", "remdm", "sacm-support", drawn):
        watched = generate(model, "so we add", method, watch=[Trace(top=True)], **options)
        assert watched.tokens == generate(model, "so we add", method, **options).tokens


def test_no_synchronisation(model, monkeypatch):
    """What makes a trace cheap on a GPU: the watcher never asks a tensor for its value while decoding."""
    watcher, inside = Trace(top=True), []

    def watch(step, score, chosen):
        with monkeypatch.context() as patch:
            for name in ("item", "tolist", "cpu", "numpy", "__bool__", "nonzero", "to"):
                patch.setattr(torch.Tensor, name, lambda *a, name=name, **k: pytest.fail(f"the trace called {name}"))
            watcher(step, score, chosen)
            inside.append(step.forward)

    watch.needs = watcher.needs
    generate(model, "so we add", "sacm-support", length=24, steps=4, raw=True, watch=[watch])
    assert inside == [0, 1, 2, 3] and len(watcher.runs(model)) == 1


def test_candidates_only_when_asked(model):
    (plain,) = record(model, ["so we add"], PLAIN, Decoding(length=16, steps=4, raw=True), top=False)
    (full,) = record(model, ["so we add"], PLAIN, Decoding(length=16, steps=4, raw=True))
    assert plain.candidates == {} and not Trace().needs
    assert len(full.candidates) == 16 and all(len(c) == 5 for c in full.candidates.values())
    for slot, token in enumerate(full.final().ids):
        best = [n for n, _ in full.candidates[str(slot)] if n != MASK]  # [MASK] is seen, and never written
        assert best[0] == token


def test_round_trip_and_size(model, tmp_path):
    method = METHODS["sacm-support"]  # with two modifiers a trace is largest
    runs = record(model, ["so we add"], {"sacm-support": method}, Decoding(length=256, steps=128, raw=True))
    for name in ("run.json.gz", "run.json"):
        trace.save(tmp_path / name, runs)
        assert trace.load(tmp_path / name) == runs
    assert (tmp_path / "run.json.gz").stat().st_size < 200_000
    assert json.loads((tmp_path / "run.json").read_text())["version"] == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.json", "run.json.gz"]


def test_a_file_of_the_first_version_still_loads():
    (found,) = trace.load(OLD)
    assert found.method == "sacm" and found.length == 24 and found.anchors == [4, 5, 6]
    assert len(list(found.moments())) == 6 and MASK not in found.final().ids
    assert found.eot_ratio() == sum(i == EOT for i in found.final().ids) / 24
    assert found.modifiers == [] and all(moment.between == [] for moment in found.moments())  # fields added later


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not json", "not a trace file"),
        (b'{"format": "something"}', "not a trace file"),
        (b"[1]", "not a trace file"),
        (gzip.compress(b'{"format": "unmask-trace"}', mtime=0)[:-9], "damaged"),
        (b'{"format": "unmask-trace", "version": 99, "runs": []}', "upgrade unmask"),
        (b'{"format": "unmask-trace", "version": 1, "runs": [{"length": 3}]}', "damaged"),
        (b'{"format": "unmask-trace", "version": 1}', "damaged"),
    ],
)
def test_bad_files(tmp_path, content, says):
    (tmp_path / "bad.json.gz").write_bytes(content)
    with pytest.raises(UserError, match=says):
        trace.load(tmp_path / "bad.json.gz")


def test_unwritable_and_missing(tmp_path):
    with pytest.raises(UserError, match="cannot be read: No such file"):
        trace.load(tmp_path / "none.json.gz")
    with pytest.raises(UserError, match="cannot write"):
        trace.save(tmp_path / "no" / "such.json", [])
