"""The engine, driven by hand on scripted denoisers: any company leaves every decode's tokens as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.scripted import Placed, fitted
from support.serving import ScriptedModel

from unmask.decoding.methods import METHODS
from unmask.errors import UserError
from unmask.generation import Decoding, generate, strategy_for
from unmask.serving.engine import Engine, Limits, Refused, Request

# Those that leave one out need a model of ours; every other method is served.
NAMES = sorted(
    n for n, s in METHODS.items() if not any("apart" in getattr(r, "needs", ()) for r in (*s.revise, s.select))
)
MODEL = ScriptedModel()


def request(name="top-probability", prompt="a b c", **options) -> Request:
    extra = {key: options.pop(key) for key in ("stream", "top", "trace", "slots") if key in options}
    how = Decoding(**{"length": 14, "raw": True, **options})
    return Request(prompt, strategy_for(MODEL, fitted(METHODS[name]), how), how, name, **extra)


def alone(asked: Request, model=MODEL):
    how = {name: value for name, value in vars(asked.decoding).items() if name not in ("batch", "temperature")}
    made = generate(model, [asked.prompt], asked.strategy, **how)
    return [one.tokens for one in made], [one.text for one in made]


def tokens(event):
    return [choice["tokens"] for choice in event["choices"]]


@st.composite
def arrivals(draw):
    name = draw(st.sampled_from(NAMES))
    asked = request(
        name, " ".join("abcdefgh"[: draw(st.integers(1, 8))]), length=draw(st.sampled_from((12, 14, 19))), seed=draw(st.integers(0, 99)),
        samples=draw(st.sampled_from((1, 1, 2))), cfg=draw(st.sampled_from((0, 0, 0, 1.5))),
        temperature=draw(st.sampled_from((None, None, 0.7))) if "credit" not in name else None,
    )  # fmt: skip
    return (
        draw(st.integers(0, 12)),
        asked,
        draw(st.sampled_from((None, None, None, 1, 5))),
    )  # when, what, cancelled after


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(arrivals(), min_size=2, max_size=7), st.integers(4, 9), st.sampled_from((150, 400)))
@torch.inference_mode()
def test_any_interleaving_leaves_every_decode_as_it_is(plan, batch, most):
    engine, told, jobs = Engine(MODEL, Limits(batch=batch, tokens=most)), {}, {}
    for round_ in range(400):
        for i, (when, asked, _) in enumerate(plan):
            if when == round_:
                try:
                    jobs[i] = engine.prepare(asked, lambda event, i=i: told.setdefault(i, []).append(event))
                except Refused as no:
                    assert no.status == 400 and "this server runs" in no.message
                    continue
                engine.submit(jobs[i])
        for i, (when, _, after) in enumerate(plan):
            if after is not None and round_ == when + after and i in jobs:
                engine.leave(jobs[i])
        engine.round()
        live = [job for flight in engine.flights for job in flight.jobs]
        rows = sum(flight.cost for flight in engine.flights)
        assert rows <= batch and rows * max((job.width for job in live), default=0) <= most
        if engine.idle and round_ > 12:
            break
    assert engine.idle
    for i, (_, asked, after) in enumerate(plan):
        if i in jobs and not (jobs[i].gone and i not in told):
            (event,) = told[i]
            assert tokens(event) == alone(asked)[0], asked.method
        assert after is not None or i not in jobs or i in told


def drive(engine, *asked):
    told = [[] for _ in asked]
    for one, events in zip(asked, told, strict=True):
        engine.submit(engine.prepare(one, events.append))
    with torch.inference_mode():
        while not engine.idle:
            engine.round()
    return told


def test_like_requests_that_start_together_are_rows_of_one_canvas_until_one_leaves():
    engine = Engine(MODEL, Limits(batch=8))
    asked = [request("sacm", prompt, length=24, seed=i) for i, prompt in enumerate(("a b c d", "e f", "g h i"))]
    told = [[] for _ in asked]
    jobs = [engine.prepare(one, events.append) for one, events in zip(asked, told, strict=True)]
    for job in jobs:
        engine.submit(job)
    with torch.inference_mode():
        engine.round()
        assert len(engine.flights) == 1 and len(engine.flights[0].jobs) == 3
        engine.leave(jobs[1])
        while not engine.idle:
            engine.round()
    assert told[1] == []
    for i in (0, 2):
        assert tokens(told[i][-1]) == alone(asked[i])[0]


class Broken(Placed):
    """Cannot stand prompts that begin with one token."""

    def __init__(self, token):
        super().__init__()
        self.token = token

    def logits(self, ask, rows, slots):
        made = super().logits(ask, rows, slots)
        first = ask.canvas.ids.gather(1, ask.canvas.valid.long().argmax(1, keepdim=True)).squeeze(1)

        def logits(part):
            out = made(part)
            out[first[rows[part]] == self.token] = torch.nan
            return out

        return logits


def test_one_decodes_error_ends_that_one_only_even_among_rows_of_one_canvas():
    good, bad = request(prompt=[5, 6]), request(prompt=[7, 8])
    model = ScriptedModel(Broken(7))
    (a,), (b,), (c,) = drive(Engine(model), good, bad, replace(good, decoding=replace(good.decoding, seed=4)))
    assert tokens(a) == alone(good)[0] == tokens(c) and isinstance(b["error"], UserError) and "NaN" in str(b["error"])


def test_a_stop_string_ends_the_decode_and_deltas_join_to_the_text():
    plain = request("semi-ar", length=20, stream=True)
    plain = replace(plain, strategy=plain.strategy.with_(block=2))
    (whole,) = alone(plain)[1]
    stop = whole.split(" w")[6]
    asked = replace(plain, decoding=replace(plain.decoding, stop=(f"w{stop} ", f"w{stop}")))
    events, free = drive(Engine(MODEL), asked, replace(asked, decoding=replace(asked.decoding, stop=())))
    deltas = "".join(event.get("delta", "") for event in events)
    (choice,) = events[-1]["choices"]
    (full,) = alone(replace(asked, decoding=replace(asked.decoding, stop=())))[1]
    assert deltas == choice["text"] == full[: full.find(f"w{stop}")] and choice["finish"] == "stop"
    assert choice["forwards"] < free[-1]["choices"][0]["forwards"]
    assert len(choice["tokens"]) < 20 and choice["count"] == len(
        [t for t in choice["tokens"] if t not in (1, 2)][: choice["count"]]
    )
    assert MODEL.text([t for t in choice["tokens"] if t not in (1, 2)][: choice["count"]]).startswith(choice["text"])
    assert "".join(event.get("delta", "") for event in free) == full


@pytest.mark.parametrize(
    ("limits", "asked", "says"),
    [
        (Limits(batch=2), {"samples": 3}, "n is 3"),
        (Limits(batch=2), {"samples": 2, "cfg": 1.0}, "n is 2"),
        (Limits(tokens=16), {}, "tokens of a forward"),
        (Limits(length=10), {}, "14 tokens is longer"),
        (Limits(prompt=2), {}, "a prompt of 3 tokens"),
        (Limits(forwards=4), {"steps": 9}, "could take"),
        (Limits(), {"name": "sacm", "length": 3}, "outside a response|does not fit"),
        (Limits(), {"steps": 0}, "at least 1"),
    ],
)
def test_what_can_never_be_decoded_is_refused_at_once(limits, asked, says):
    with pytest.raises((Refused, UserError), match=says):
        Engine(MODEL, limits).prepare(request(**asked))


def test_the_queue_is_bounded_and_a_closed_engine_takes_nothing():
    engine = Engine(MODEL, Limits(queue=1))
    engine.submit(engine.prepare(request()))
    with pytest.raises(Refused, match="1 requests are waiting") as no:
        engine.submit(engine.prepare(request()))
    assert no.value.status == 429
    engine.close()
    with pytest.raises(Refused, match="shutting down"):
        engine.submit(engine.prepare(request()))


def test_waiting_counts_and_whoever_is_too_late_is_told():
    engine, told = Engine(MODEL, Limits(timeout=5.0)), []
    job = engine.prepare(request(), told.append)
    job.arrived -= 10
    engine.submit(job)
    engine.round()
    assert engine.idle and told[0]["error"].status == 504


def test_logprobs_are_those_of_the_step_that_committed_the_token():
    asked = request("sacm", length=24, top=3)
    ((event,),) = drive(Engine(MODEL), asked)
    (choice,) = event["choices"]
    assert tokens(event) == alone(asked)[0]
    assert len(choice["logprobs"]) == choice["count"] == len([t for t in choice["tokens"] if t not in (1, 2)])
    given = [one for one in choice["logprobs"] if one["top"] == []]
    assert len(given) == 3 and all(one["logprob"] == 0 for one in given)  # the anchor's words
    for one in choice["logprobs"]:
        assert one["logprob"] <= 0 and all(one["logprob"] >= q - 1e-4 for name, q in one["top"] if name != " w0")
