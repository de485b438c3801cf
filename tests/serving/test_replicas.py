"""Several engines behind one front: scripted replicas that die at will, then two real ones in a real server, killed under load."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command import refused
from support.scripted import fitted
from support.serving import ScriptedModel, fetched, post, served, until

pytest.importorskip("fastapi")
pytest.importorskip("ray.serve", reason="ray[serve] is not installed", exc_type=ImportError)

import psutil
from ray.exceptions import ActorDiedError

import unmask
from unmask.decoding.methods import METHODS
from unmask.decoding.ties import NearTies
from unmask.evaluation.workers import outline
from unmask.generation import Decoding, generate, strategy_for
from unmask.plugins import methods
from unmask.serving.engine import Engine, Limits, Refused, Request
from unmask.serving.replicas import Replicas, Told, sendable
from unmask.views import trace

MODEL = ScriptedModel()
RULE = Path(__file__).parents[2] / "examples" / "rule.py"
QUESTION = "The dial from 0 to 4 shows 3. First mirror. Second triple. What does it show?"
ASK = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, "seed": 3}


# ---------------------------------------------------------------- what a client was told


def delta(text, choice=0):
    return {"delta": text, "choice": choice}


def piece(*guess, ms=0.0):
    return {"piece": {"step": {"guess": list(guess), "chosen": [0], "ms": ms}}, "choice": 0}


END = {"choices": []}


def test_events_that_come_again_pass_behind_what_was_told():
    told = Told()
    for event in (delta("The answer"), delta(" is"), delta("An", 1), piece(0, 7)):
        assert told.new(event) == event
    told.rewind()
    assert told.new(delta("The")) is None and told.new(delta(" answer is 4")) == delta(" 4")  # cut elsewhere
    assert told.new(piece(0, 7, ms=9.0)) is None and told.new(piece(1, 8)) == piece(1, 8)
    assert told.new(delta("Another", 1)) == delta("other", 1) and told.new(END) == END


@pytest.mark.parametrize(
    "again", [[delta("This")], [piece(0, 6)], [delta("The"), END], [delta("The one"), piece(0, 7)]]
)
def test_events_that_differ_are_refused(again):
    told = Told()
    told.new(delta("The answer")), told.new(piece(0, 7))
    told.rewind()
    with pytest.raises(Refused, match="differs") as no:
        for event in again:
            told.new(event)
    assert (no.value.status, no.value.code) == (503, "replicas_differ")


def test_an_error_that_does_not_travel_is_sent_as_what_it_says():
    class Odd(Exception):
        def __init__(self, one, two):
            super().__init__(f"{one} and {two}")

    assert str(sendable({"error": Odd(1, 2)})["error"]) == "Odd: 1 and 2"
    assert isinstance(sendable({"error": Refused(400, "no")})["error"], Refused)


# ---------------------------------------------------------------- a front over scripted replicas


class Answers:
    """A streaming handle: every call is given the next list of events; a list that does not end is a replica that died."""

    def __init__(self, *scripts):
        self.scripts, self.calls, self.cancelled = list(scripts), [], 0

    def remote(self, *asked):
        self.calls.append(asked)
        return Answer(self, self.scripts.pop(0))


class Answer:
    def __init__(self, handle, script):
        self.handle, self.script = handle, list(script)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.script:
            raise ActorDiedError()
        if (event := self.script.pop(0)) == "wait":
            await asyncio.sleep(60)
        return [event], [("forward", 1)]

    def cancel(self):
        self.handle.cancelled += 1


def front(*scripts, **limits):
    seen = []
    engine = Replicas(MODEL, Answers(*scripts), Limits(**limits))
    engine.observe = lambda *one: seen.append(one)
    engine.thread.start()
    return engine, seen


def submitted(engine, name="top-probability"):
    how = Decoding(length=14, raw=True)
    events, over = [], threading.Event()

    def tell(event):
        events.append(event)
        if "choices" in event or "error" in event:
            over.set()

    job = engine.prepare(Request("a b c", strategy_for(MODEL, fitted(METHODS[name]), how), how, name), tell)
    engine.submit(job)
    return job, events, over


BEGUN = {"begun": True}


def test_a_dead_replicas_request_is_asked_again_and_its_stream_goes_on():
    engine, seen = front([BEGUN, delta("one ")], [], [BEGUN, delta("one"), delta(" two"), END])
    job, events, over = submitted(engine)
    assert over.wait(10) and [event.get("delta") for event in events] == ["one ", "two", None]
    assert engine.handle.calls == [(job.request, job.ids, job.width)] * 3
    assert events[-1]["waited"] >= 0 and events[-1]["decoded"] >= 0
    until(lambda: engine.idle)
    names = [name for name, _ in seen]
    assert (names.count("again"), names.count("waited"), names.count("decoded"), names.count("forward")) == (2, 1, 1, 6)
    engine.leave(job)  # as the API does at the end; nobody was cancelled
    engine.stop(), engine.thread.join(5)
    assert "cancelled" not in names and not engine.thread.is_alive()


def test_how_a_request_ends_that_no_replica_answers():
    for scripts, limits, status in (
        ([[BEGUN], [BEGUN], [BEGUN]], {}, 503),
        ([[BEGUN, delta("one")], [delta("two")]], {}, 503),
        ([["wait"]], {"timeout": 0.2}, 504),
        ([[{"error": Refused(400, "no")}]], {}, 400),
    ):
        engine, _ = front(*scripts, **limits)
        _, events, over = submitted(engine)
        assert over.wait(10) and events[-1]["error"].status == status
        until(lambda engine=engine: engine.idle)
        engine.stop()


def test_who_waits_is_counted_and_whoever_is_left_is_told():
    engine, seen = front([BEGUN, "wait"], ["wait"], ["wait"], queue=2)
    jobs = [submitted(engine)]
    until(lambda: not engine.waiting)
    jobs += [submitted(engine) for _ in range(2)]
    with pytest.raises(Refused, match="2 requests are waiting") as no:
        submitted(engine)
    assert no.value.status == 429
    until(lambda: len(engine.handle.calls) == 3)
    engine.leave(jobs[1][0])
    until(lambda: ("cancelled", 1) in seen)
    assert len(engine.waiting) == 1 and engine.handle.cancelled == 1 and not jobs[1][1]
    engine.close()
    with pytest.raises(Refused, match="shutting down"):
        submitted(engine)
    engine.stop(), engine.stop(), engine.thread.join(5)
    assert engine.idle and not engine.thread.is_alive()
    assert [events[-1]["error"].status for _, events, _ in (jobs[0], jobs[2])] == [503, 503]


def test_a_front_without_weights_prepares_what_an_engine_does():
    whole, bare = Engine(unmask.load("tiny")), Engine(outline({"name": "tiny", "device": "cpu"}))
    for name, strategy in METHODS.items():
        how = Decoding(infill="It is [MASK*20] and [MASK*8].") if name == "top-probability" else Decoding(length=64)
        jobs = [e.prepare(Request(QUESTION, strategy_for(e.model, strategy, how), how, name)) for e in (whole, bare)]
        assert (jobs[0].ids, jobs[0].width) == (jobs[1].ids, jobs[1].width)


# ---------------------------------------------------------------- two real replicas


@pytest.fixture(scope="module")
def model():
    return unmask.load("tiny", dtype="float32")


@pytest.fixture(scope="module")
def server():
    with served("--replicas", "2", "--max-n", "4", "--queue", "30", "--methods", f"{RULE}:reader") as (url, process):
        yield url, process
        family = psutil.Process(process.pid).children(recursive=True)
        assert process.poll() is None, "the server died"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        _, alive = psutil.wait_procs(family, 20)
        assert not alive, "something of Ray outlives the server"
        assert all(json.loads(line) for line in process.log)  # Ray has nothing to say there


@pytest.fixture(scope="module")
def url(server):
    return server[0]


def replicas(server):
    """The processes of its replicas."""
    family = psutil.Process(server[1].pid).children(recursive=True)
    return {one.pid for one in family if one.name().startswith("ray::ServeReplica")}


def chat(url, **more):
    return post(f"{url}/v1/chat/completions", {**ASK, **more})


def streamed(url, started=lambda: None, **more):
    """The text of a stream, its pieces, and the error it ended with."""
    text, pieces, error = "", [], None
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    body = json.dumps({**ASK, "stream": True, **more})
    line.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    for row in line.getresponse():
        if not row.startswith(b"data: {"):
            continue
        chunk = json.loads(row[6:])
        error = chunk.get("error", error)
        if new := "".join(choice["delta"].get("content", "") for choice in chunk.get("choices", ())):
            text += new
            started()
        if not chunk.get("choices") and "unmask" in chunk:
            pieces.append(chunk["unmask"])
    line.close()
    return text, pieces, error


def test_the_tokens_are_those_of_generate_whole_and_streamed(url, model):
    for name, temperature in (("sacm", None), ("remdm", None), ("semi-ar", 0.6)):
        how = {"unmask": {"method": name}, "n": 2, "temperature": temperature}
        status, got, _ = chat(url, **how)
        own = generate(model, [QUESTION], name, length=32, seed=3, samples=2, temperature=temperature)
        assert status == 200, got
        assert [choice["unmask"]["tokens"] for choice in got["choices"]] == [one.tokens for one in own]
        assert got["unmask"]["waited_ms"] >= 0 and got["unmask"]["decoded_ms"] > 0
    (own,) = generate(model, [QUESTION], methods([f"{RULE}:reader"])["reader"], length=32, seed=3)
    assert (
        chat(url, unmask={"method": "reader"})[1]["choices"][0]["unmask"]["tokens"] == own.tokens
    )  # its code went along
    text, pieces, error = streamed(url, unmask={"method": "semi-ar", "trace": True})
    (alone,) = generate(model, [QUESTION], "semi-ar", length=32, seed=3)
    run = trace.joined(pieces)
    assert error is None and text == alone.text == run.text and run.final().ids == alone.tokens


def test_errors_are_the_fronts_and_come_before_any_waiting(url):
    for body, status, says in (
        ({"unmask": {"method": "sacn"}}, 400, "did you mean 'sacm'"),
        ({"max_tokens": 5000}, 400, "longer than"),
        ({"n": 9}, 400, "n is at most 4"),
        ({"model": "other"}, 404, "no model 'other'"),
        ({"top_p": 0.5}, 400, "top_p"),
        ({"unmask": {"method": "sacm", "settings": {"at": 300}}}, 400, "position 300 is outside"),
    ):
        got, answer, _ = chat(url, **body)
        assert got == status and says in answer["error"]["message"], answer
    assert fetched(f"{url}/health")[0] == fetched(f"{url}/ready")[0] == 200


def test_the_playground_is_the_fronts(url):
    """It needs no weights: the page, the methods, and the curve as the tokenizer places the anchor."""
    assert fetched(url)[0] == 200 and len(fetched(f"{url}/v1/unmask")[1]["examples"]) == 96
    told = post(f"{url}/v1/unmask/weight", {"unmask": {"method": "sacm"}})[1]
    assert told["anchors"] == [76, 77, 78] and len(told["weight"]) == 96 and max(told["weight"]) == 1


def test_a_client_that_is_gone_frees_its_replica(server, url):
    def working():
        """Is any replica at work, for half a second?"""
        times = [[sum(psutil.Process(pid).cpu_times()[:2]) for pid in sorted(replicas(server))] for _ in pause()]
        return max(after - before for before, after in zip(*times, strict=True)) > 0.15

    def pause():
        yield
        time.sleep(0.5)
        yield

    slow = {"steps": 400, "method": "top-probability"}
    long = {**ASK, "max_tokens": 400, "n": 4, "unmask": slow}  # half a minute's work
    line = http.client.HTTPConnection(url.removeprefix("http://"), timeout=60)
    line.request("POST", "/v1/chat/completions", json.dumps(long), {"content-type": "application/json"})
    until(working)
    line.close()
    until(lambda: "unmask_cancelled_total 1.0" in fetched(f"{url}/metrics")[1], 10)
    until(lambda: not working(), 10)
    assert chat(url)[0] == 200


def test_a_replica_killed_under_load(server, url, model):
    """Twelve clients, six of them reading streams, when a replica is killed: every answer is right and none is lost."""
    before, begun = replicas(server), threading.Semaphore(0)
    assert len(before) == 2
    asks = [{"max_tokens": 64 + 8 * (i % 3), "seed": i, "temperature": 0.4 * (i % 2)} for i in range(12)]
    more = {"method": "semi-ar", "steps": 48, "settings": {"block": 8}}

    def ask(i):
        if i % 2:
            return streamed(url, begun.release, **asks[i], unmask={**more, "trace": i == 1})
        status, got, _ = chat(url, **asks[i], unmask=more)
        return (got["choices"][0]["message"]["content"], [], None) if status == 200 else (None, [], got)

    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(ask, i) for i in range(12)]
        for _ in range(8):  # streams are under way
            assert begun.acquire(timeout=30)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        answers = [answer.result() for answer in answers]
    assert "unmask_asked_again_total 0.0" not in fetched(f"{url}/metrics")[1]
    for i, (text, pieces, error) in enumerate(answers):
        ties = NearTies()
        (own,) = generate(
            model, [QUESTION], METHODS["semi-ar"].with_(block=8), length=asks[i]["max_tokens"], steps=48, seed=i,
            temperature=asks[i]["temperature"], watch=[ties],
        )  # fmt: skip
        right = text == own.text and error is None and (i != 1 or trace.joined(pieces).final().ids == own.tokens)
        assert right or ties.counts.sum(), (i, text, own.text, error)
    until(lambda: len(replicas(server) - {victim}) == 2, 60)
    (survivor,) = before - {victim}
    os.kill(survivor, signal.SIGKILL)  # whoever answers now is the new one
    status, got, _ = chat(url)
    assert (
        status == 200
        and got["choices"][0]["message"]["content"] == generate(model, QUESTION, "sacm", length=32, seed=3).text
    )


# ---------------------------------------------------------------- what a user is told


def test_what_cannot_start_says_so_in_one_line(capsys, monkeypatch):
    for options, says in (
        (("--replicas", "0"), "--replicas is a whole number, at least 1"),
        (("--ray-address", "auto"), "say how many with --replicas N"),
        (("--replicas", "2", "--ray-address", "127.0.0.1:1"), "there is no Ray cluster at 127.0.0.1:1"),
        (("--replicas", "2", "--ray-address", "here"), "--ray-address is HOST:PORT"),
        (("--replicas", "2", "--device", "cuda:1"), "each replica has a device of its own: --device cuda with --replicas"),
        (("--replicas", "2", "--device-map", "auto"), "give one of them"),
    ):  # fmt: skip
        assert says in refused(capsys, "serve", "--port", "0", *options)
    import ray

    monkeypatch.setitem(sys.modules, "ray.serve", None)
    monkeypatch.delattr(ray, "serve", raising=False)
    assert 'pip install "unmask[replicas]"' in refused(capsys, "serve", "--port", "0", "--replicas", "2")
