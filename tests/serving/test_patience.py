"""Streams that wait, clients that do not read, and what an operator may choose at the start."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest
from support.serving import ScriptedModel, post, served, until

pytest.importorskip("fastapi")

from unmask.decoding.methods import METHODS
from unmask.evaluation.tune import FORMAT
from unmask.generation import Decoding, generate
from unmask.models.loading import load
from unmask.serving import api as serving
from unmask.serving.engine import Engine, Limits, Request
from unmask.serving.guard import Access
from unmask.serving.metrics import Metrics
from unmask.serving.schema import Completion


def made(**defaults) -> serving.API:
    engine = Engine(ScriptedModel(), Limits())  # driven by hand: its thread is never started
    return serving.API(
        engine, serving.Defaults("top-probability", **defaults), Access(log=lambda line: None), Metrics()
    )


async def streamed(api: serving.API, **body):
    http = SimpleNamespace(scope={"about": {"id": "x"}})
    return await api.take(Completion(prompt="a b c", max_tokens=14, stream=True, **body), http)


def test_a_stream_that_waits_is_kept_alive():
    """Comments, which every client of server-sent events ignores; they stop when there is something to say."""

    async def read():
        api = made(keepalive=0.02)
        parts = (await streamed(api)).body_iterator
        early = [await anext(parts) for _ in range(3)]
        while not api.engine.idle:
            api.engine.round()
        return early, [part async for part in parts]

    early, late = asyncio.run(read())
    assert all(part.startswith(b": keep-alive") for part in early)
    said = [part for part in late if not part.startswith(b":")]
    assert said[-1] == b"data: [DONE]\n\n" and all(part.startswith(b"data:") for part in said)


def test_a_client_that_does_not_read_leaves(monkeypatch):
    monkeypatch.setattr(serving, "BACKLOG", 5)

    async def ignored():
        api = made()
        await streamed(api, unmask={"trace": True})
        for _ in range(30):
            api.engine.round()
            await asyncio.sleep(0)
        return api.engine.idle

    assert asyncio.run(ignored())


def test_leave_one_out_is_served():
    """WINO keeps a session of its own beside the others, and gets the tokens it gets alone."""
    model = load("tiny", dtype="float32")
    engine, told = Engine(model, Limits()), {}
    how = Decoding(length=24, seed=1)
    for name in ("sacm", "wino", "top-probability"):
        engine.submit(
            engine.prepare(
                Request("Where is the ball?", METHODS[name], how, name),
                lambda event, name=name: told.update({name: event}),
            )
        )
    while not engine.idle:
        engine.round()
    for name in told:
        (own,) = generate(model, ["Where is the ball?"], name, length=24, seed=1)
        assert told[name]["choices"][0]["tokens"] == own.tokens, name
    assert set(told) == {"sacm", "wino", "top-probability"}


def test_the_operator_may_log_prompts_and_serve_tuned_settings(tmp_path):
    file = tmp_path / "tuned.json"
    weights = load("tiny").weights_hash
    tuned = {
        "format": FORMAT,
        "task": "cups",
        "model": "tiny",
        "weights_sha256": weights,
        "settings": {"kappa": 9, "beta": 1, "gamma": 0.7},
    }
    file.write_text(json.dumps(tuned))
    with served("--log-prompts", "--settings", str(file), "--set", "gamma=1") as (url, process):
        body = {"messages": [{"role": "user", "content": "Where is the pea?"}], "max_tokens": 24, "seed": 0}
        status, told, _ = post(f"{url}/v1/chat/completions", body)
        recipe = told["unmask"]["recipe"]
        assert status == 200 and "kappa=9" in recipe and "gamma=1" in recipe
        body["unmask"] = {"settings": {"kappa": 5}}  # a client's own come after them
        assert "kappa=5" in post(f"{url}/v1/chat/completions", body)[1]["unmask"]["recipe"]
        until(lambda: sum("Where is the pea?" in line for line in process.log) == 2)
