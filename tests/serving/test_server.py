"""A server process, started by the command and used for real: OpenAI's client, raw sockets, hostile bodies, signals."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import signal
import socket
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.command import refused
from support.serving import fetched, post, served, until

openai = pytest.importorskip("openai")
pytest.importorskip("fastapi")

import unmask.serving.server  # noqa: E402
from unmask.decoding.methods import METHODS  # noqa: E402
from unmask.decoding.ties import NearTies  # noqa: E402
from unmask.generation import generate  # noqa: E402
from unmask.views import trace  # noqa: E402

QUESTION = "The dial from 0 to 4 shows 3. First mirror. Second triple. What does it show?"
ASK = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 32, "seed": 3}


@pytest.fixture(scope="module")
def model():
    return unmask.load("tiny", dtype="float32")


@pytest.fixture(scope="module")
def server():
    with served("--batch", "16", "--max-n", "4", "--max-forwards", "600", "--max-body", "2000000") as (url, process):
        yield url, process
        assert process.poll() is None, "the server died"


@pytest.fixture(scope="module")
def url(server):
    return server[0]


@pytest.fixture
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def asked(client, **more):
    extra = {"unmask": more.pop("unmask")} if "unmask" in more else None
    return client.chat.completions.create(**{"model": "tiny", **ASK, **more}, extra_body=extra)


# ---------------------------------------------------------------- OpenAI's client


def test_the_tokens_are_those_of_generate(client, model):
    for name in ("sacm", "top-probability", "remdm"):
        got = asked(client, unmask={"method": name}, n=2, temperature=0.6 if name == "sacm" else None)
        own = generate(
            model, [QUESTION], name, length=32, seed=3, samples=2, temperature=0.6 if name == "sacm" else None
        )
        assert [choice.unmask["tokens"] for choice in got.choices] == [one.tokens for one in own]
        assert [choice.message.content for choice in got.choices] == [one.text for one in own]
        assert got.usage.completion_tokens == sum(t not in model.vocab.eot_ids for one in own for t in one.tokens)
        assert got.usage.prompt_tokens == len(model.encode(QUESTION))
        assert (got.unmask["length"], got.unmask["seed"], got.unmask["steps"]) == (32, 3, own[0].steps)
        assert got.unmask["forwards"] == sum(one.forwards for one in own)
        for choice, one in zip(got.choices, own, strict=True):
            assert choice.finish_reason == ("stop" if one.tokens[-1] in model.vocab.eot_ids else "length")


def test_a_stream_joins_to_the_answer(client):
    for more in ({}, {"stop": [". It"]}, {"n": 2, "temperature": 0.8}, {"unmask": {"method": "remdm"}}):
        more = {"unmask": {"method": "semi-ar", "settings": {"block": 4}}, **more}
        whole = asked(client, **more)
        parts, usage, ends = {}, None, {}
        for chunk in asked(client, stream=True, stream_options={"include_usage": True}, **more):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                parts.setdefault(choice.index, []).append(choice.delta.content or "")
                ends[choice.index] = choice.finish_reason or ends.get(choice.index)
        assert {c.index: c.message.content for c in whole.choices} == {i: "".join(p) for i, p in parts.items()}
        assert ends == {c.index: c.finish_reason for c in whole.choices} and usage == whole.usage
        if more["unmask"]["method"] == "semi-ar":
            assert len(parts[0]) > 2


def test_stop_cuts_the_text_and_the_count(client, model):
    free = asked(client, unmask={"method": "semi-ar", "settings": {"block": 4}})
    text = free.choices[0].message.content
    cut = asked(client, unmask={"method": "semi-ar", "settings": {"block": 4}}, stop=[text[20:24], "never there"])
    assert cut.choices[0].message.content == text[: text.find(text[20:24])] and cut.choices[0].finish_reason == "stop"
    assert (
        cut.usage.completion_tokens < free.usage.completion_tokens and cut.unmask["forwards"] < free.unmask["forwards"]
    )


def test_logprobs(client, model):
    got = asked(client, logprobs=True, top_logprobs=3).choices[0]
    assert "".join(one.token for one in got.logprobs.content).replace(" ", "") == got.message.content.replace(" ", "")
    anchor = [one for one in got.logprobs.content if one.logprob == 0 and not one.top_logprobs]
    assert [one.token.strip() for one in anchor] == [
        model.tokenizer.decode([t]).strip() for t in model.tokens("The answer is")
    ]
    assert all(len(one.top_logprobs) == 3 for one in got.logprobs.content if one not in anchor)
    assert asked(client).choices[0].logprobs is None


def test_completions_text_ids_and_suffix(client, model):
    prompt = model.render(QUESTION)
    ids = model.tokens(prompt)
    by_ids = client.completions.create(model="tiny", prompt=ids, max_tokens=24, seed=1, logprobs=2)
    own = generate(model, [ids], "sacm", length=24, seed=1, raw=True)[0]
    assert by_ids.choices[0].text == own.text and by_ids.object == "text_completion"
    assert len(by_ids.choices[0].logprobs.tokens) == by_ids.usage.completion_tokens
    filled = client.completions.create(
        model="tiny",
        prompt=ids,
        max_tokens=8,
        suffix=" The answer is 4.",
        seed=1,
        extra_body={"unmask": {"method": "top-probability"}},
    )
    whole = generate(model, [ids], "top-probability", infill="[MASK*8] The answer is 4.", seed=1, raw=True)[0]
    assert filled.choices[0].text == model.text(whole.tokens[:8])
    plain = client.completions.create(model="tiny", prompt="so we", max_tokens=24)
    assert plain.unmask["length"] == 24


def test_infill_roles_and_parts(client, model):
    infill = "First [MASK*6] . The answer is [MASK*2]"
    got = asked(client, max_tokens=openai.NOT_GIVEN, unmask={"infill": infill, "method": "top-probability"})
    assert got.choices[0].unmask["tokens"] == generate(model, QUESTION, "top-probability", infill=infill, seed=3).tokens
    turns = [
        {"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "The dial "}, {"type": "text", "text": "shows 3."}]},
        {"role": "assistant", "content": "Yes."}, {"role": "user", "content": QUESTION},
    ]  # fmt: skip
    same = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "The dial shows 3."}, *turns[2:]]
    assert (
        asked(client, messages=turns).choices[0].unmask["tokens"]
        == generate(model, same, "sacm", length=32, seed=3).tokens
    )


def test_a_trace_comes_in_pieces_that_join_to_a_file(client, model, tmp_path):
    pieces, text = {}, ""
    for chunk in asked(client, stream=True, n=2, unmask={"trace": True}):
        if not chunk.choices and hasattr(chunk, "unmask"):
            piece = dict(chunk.unmask)
            pieces.setdefault(piece.pop("choice"), []).append(piece)
        text += "".join(c.delta.content or "" for c in chunk.choices if c.index == 0)
    runs = [trace.joined(some) for some in pieces.values()]
    (own, _) = trace.record(model, [QUESTION], {"sacm": METHODS["sacm"]}, unmask.Decoding(length=32, seed=3, samples=2))
    assert runs[0].final().ids == own.final().ids and runs[0].text == text
    unclocked = [[{**step, "ms": 0} for step in run.steps] for run in (runs[0], own)]
    assert unclocked[0] == unclocked[1] and runs[0].candidates == own.candidates and runs[0].tokens == own.tokens
    trace.save(tmp_path / "run.json.gz", runs)
    assert trace.load(tmp_path / "run.json.gz") == runs


def test_async_client(url, model):
    async def many():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
            asks = [
                client.chat.completions.create(model="tiny", **{**ASK, "seed": i, "temperature": 0.7}) for i in range(6)
            ]
            return [answer.choices[0].unmask["tokens"] for answer in await asyncio.gather(*asks)]

    own = generate(model, [QUESTION] * 6, "sacm", length=32, temperature=0.7, seed=list(range(6)))
    assert asyncio.run(many()) == [one.tokens for one in own]


def test_each_error_class(client, url):
    for error, param, more in (
        (openai.BadRequestError, "top_p", {"top_p": 0.9}),
        (openai.BadRequestError, "tools", {"tools": [{"type": "function", "function": {"name": "f"}}]}),
        (openai.BadRequestError, "response_format.type", {"response_format": {"type": "json_object"}}),
        (openai.BadRequestError, "frequency_penalty", {"frequency_penalty": 0.5}),
        (openai.BadRequestError, "n", {"n": 5}),
        (openai.BadRequestError, "unmask.method", {"unmask": {"method": "sacn"}}),
        (openai.BadRequestError, "unmask.settings", {"unmask": {"settings": {"nothing": 1}}}),
        (openai.BadRequestError, "unmask.nothing", {"unmask": {"nothing": 1}}),
        (openai.NotFoundError, "model", {"model": "gpt-4o"}),
    ):
        with pytest.raises(error) as no:
            asked(client, **more)
        assert no.value.param == param and no.value.type == "invalid_request_error", no.value
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
    assert client.models.list().data[0].id == client.models.retrieve("tiny").id == "tiny"
    assert asked(client, user="me", top_p=1, presence_penalty=0, logit_bias={}, store=False, metadata={"a": "b"}).id


# ---------------------------------------------------------------- hostile bodies


def part(url_: str):
    return [
        {
            "role": "user",
            "content": [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url_}}],
        }
    ]


def png(size=(8, 8)) -> str:
    Image = pytest.importorskip("PIL.Image")
    held = io.BytesIO()
    Image.new("1", size).save(held, "PNG")
    return "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()


SETTINGS = [
    {"pace": 1e300}, {"defer": 3}, {"remask": "x"}, {"kappa": -1}, {"kappa": "x"}, {"kappa": 1e-300}, {"select": None}, {"read": "x"},
    {"gamma": 10**30}, {"block": 0}, {"block": 1.5}, {"at": 10**12}, {"text": ""}, {"text": "<|mdm_mask|>" * 9}, {"at": -10**8},
]  # fmt: skip


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_bad_settings_are_400(url, settings):
    status, body, _ = post(f"{url}/v1/chat/completions", {**ASK, "unmask": {"settings": settings}})
    assert status == 400 and body["error"]["message"] and body["error"]["type"] == "invalid_request_error", body


def test_settings_that_would_never_end_are_400(url):
    for name, settings in (
        ("remdm", {"rounds": 1_000_000_000}),
        ("remdm", {"rounds": 100_000}),
        ("sacm", {"pace": 1000}),
    ):
        status, body, _ = post(f"{url}/v1/chat/completions", {**ASK, "unmask": {"method": name, "settings": settings}})
        assert status == 400, body


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"[" * 100_000, 400),
        (b'{"messages":' + b'{"a":' * 100_000, 400),
        (b'{"messages": [], "max_tokens": NaN}', 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400),
        (b'{"seed": ' + b"9" * 5000 + b"}", 400),
        (b"", 400), (b"null", 400), (b"3", 400), (b"{}", 400), (b"{", 400),
        (b"x" * 3_000_000, 413),
        (json.dumps({**ASK, "seed": 2**70}).encode(), 400),
        (json.dumps({**ASK, "max_tokens": 10**9}).encode(), 400),
        (json.dumps({**ASK, "max_tokens": 0}).encode(), 400),
        (json.dumps({**ASK, "max_tokens": 5}).encode(), 400),  # too short for the anchor
        (json.dumps({**ASK, "messages": [{"role": "<|eot_id|>", "content": "x"}]}).encode(), 400),
        (json.dumps({**ASK, "messages": [{"role": "user", "content": " "}]}).encode(), 400),
        (json.dumps({**ASK, "stop": ["a"] * 5}).encode(), 400),
        (json.dumps({**ASK, "unmask": {"infill": "[MASK*999999999]"}, "max_tokens": None}).encode(), 400),
        (json.dumps({**ASK, "unmask": {"infill": f"[MASK*{'9' * 5000}]"}, "max_tokens": None}).encode(), 400),
        (json.dumps({**ASK, "unmask": {"infill": "[MASK*999999]"}, "max_tokens": None}).encode(), 400),
        (json.dumps({**ASK, "messages": part("file:///etc/passwd")}).encode(), 400),
        (json.dumps({**ASK, "messages": part("/etc/passwd")}).encode(), 400),
        (json.dumps({**ASK, "messages": part("http://127.0.0.1:1/x.png")}).encode(), 400),
        (json.dumps({**ASK, "messages": part("data:image/png;base64,AAAA")}).encode(), 400),
    ],
    ids=lambda value: str(value)[:40],
)  # fmt: skip
def test_bad_bodies_are_refused(url, raw, status):
    found, body, _ = post(f"{url}/v1/chat/completions", None, raw=raw)
    assert found == status and set(body["error"]) == {"message", "type", "param", "code"}, (found, body)
    assert len(json.dumps(body)) < 2000


def test_pictures_bombs_and_a_model_that_cannot_see(url):
    for held, says in ((png((20_000, 20_000)), "pixels"), (png(), "cannot see")):
        status, body, _ = post(f"{url}/v1/chat/completions", {**ASK, "messages": part(held)})
        assert status == 400 and says in body["error"]["message"], body


def test_text_that_spells_a_special_token_is_text(url, model):
    ask = {**ASK, "messages": [{"role": "user", "content": f"{QUESTION} <|eot_id|><|mdm_mask|>"}]}
    status, body, _ = post(f"{url}/v1/chat/completions", ask)
    assert status == 200 and body["usage"]["prompt_tokens"] > len(model.encode(QUESTION)) + 2
    assert post(f"{url}/v1/completions", {"prompt": "so we <|mdm_mask|>", "max_tokens": 24})[0] == 200


@pytest.mark.parametrize(
    "name", ["evil.py:mine", "/tmp/evil.py:mine", "__import__('os').system('true')", "mine", "sacm "]
)
def test_no_file_entry_point_or_code_is_reached_from_a_request(url, tmp_path, name):
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    name = name.replace("evil.py", str(tmp_path / "evil.py")) if name.startswith("evil") else name
    status, body, _ = post(f"{url}/v1/chat/completions", {**ASK, "unmask": {"method": name}})
    assert status == 400 and body["error"]["param"] == "unmask.method" and not (tmp_path / "ran").exists()
    status, body, _ = post(
        f"{url}/v1/chat/completions", {**ASK, "unmask": {"settings": {"text": "__import__('os')", "at": -20}}}
    )
    assert status in (200, 400)


# ---------------------------------------------------------------- safe by default, watched


def test_headers_hosts_and_content_types(url):
    status, _, headers = fetched(f"{url}/health")
    assert status == 200 and headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY"
    assert "default-src 'none'" in headers["content-security-policy"] and "access-control-allow-origin" not in headers
    assert fetched(f"{url}/health", {"x-request-id": "mine-1"})[2]["x-request-id"] == "mine-1"
    assert fetched(f"{url}/health", {"x-request-id": "a b\tc"})[2]["x-request-id"].startswith("req-")
    assert fetched(f"{url}/v1/models", {"host": "evil.example"})[0] == 403
    assert post(f"{url}/v1/chat/completions", ASK, {"content-type": "text/plain"})[0] == 415
    assert fetched(f"{url}/docs")[0] == 404 and fetched(f"{url}/openapi.json")[0] == 200
    status, body, _ = fetched(f"{url}/v1/chat/completions")
    assert status == 405 and set(body["error"]) == {"message", "type", "param", "code"}


def test_metrics_and_one_log_line_a_request_without_the_prompt(server):
    url, process = server
    post(f"{url}/v1/chat/completions", ASK, {"x-request-id": "look-for-me"})
    until(lambda: any("look-for-me" in line for line in process.log))
    (line,) = [json.loads(line) for line in process.log if "look-for-me" in line]
    assert line["status"] == 200 and line["method"] == "sacm" and line["forwards"] and line["ms"] > 0
    assert not any("The dial" in line for line in process.log)
    page = fetched(f"{url}/metrics")[1]
    for name in ("queue_depth", "forward_rows", "forward_padding", "forwards_total", "tokens_total", "cancelled_total",
                 "waiting_seconds", "first_text_seconds", "latency_seconds"):  # fmt: skip
        assert f"unmask_{name}" in page


def raw(url: str, content: bytes) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    line = socket.create_connection((host, int(port)), timeout=20)
    line.sendall(content)
    return line


def message(body: dict, length: int | None = None) -> bytes:
    held = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {length or len(held)}\r\n\r\n"
    return head.encode() + held


def metric(url: str, name: str) -> float:
    page = fetched(f"{url}/metrics")[1]
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"unmask_{name} ")))


def test_clients_that_vanish_leave_and_slow_ones_are_served(url):
    gone = metric(url, "cancelled_total")
    long = {**ASK, "max_tokens": 400, "unmask": {"steps": 400, "method": "top-probability"}}
    for stream in (True, False):
        line = raw(url, message({**long, "stream": stream}))
        time.sleep(0.4)
        line.close()
    until(lambda: metric(url, "cancelled_total") >= gone + 2)
    half = message(ASK)
    slow = raw(url, half[:100])
    for piece in (half[100:150], half[150:]):
        time.sleep(0.2)
        slow.sendall(piece)
    assert slow.recv(100).startswith(b"HTTP/1.1 200")
    short = raw(url, message(ASK, length=10))  # more than it says: what is left over is no request
    answer = short.recv(4000)
    assert answer.startswith(b"HTTP/1.1 400")
    raw(url, message(ASK, length=100_000)).close()  # less than it says
    assert fetched(f"{url}/health")[0] == 200


# ---------------------------------------------------------------- 64 clients


def test_64_clients_at_once_each_get_their_own_answer(url, model):
    draw = random.Random(0)
    names = ("sacm", "top-probability", "uniform", "semi-ar", "fast-dllm", "eot-suppression", "top-margin", "remdm")
    asks = []
    for i in range(64):
        more = {"method": names[i % 8], "steps": draw.choice((4, 6, 8)), "cfg": 0.5 if i % 13 == 0 else 0}
        words = QUESTION.split()[: draw.randint(6, 17)]
        asks.append({
            "messages": [{"role": "user", "content": " ".join(words)}], "max_tokens": draw.choice((24, 32, 40)), "seed": i,
            "temperature": 0.7 if i % 6 == 0 else None, "stream": i % 3 == 0, "unmask": more,
        })  # fmt: skip

    def ask(i):
        if i % 9 == 4:  # gone at once
            line = raw(url, message(asks[i]))
            time.sleep(0.05)
            line.close()
            return None
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=8, timeout=110)
        extra = {"unmask": asks[i]["unmask"]}
        got = client.chat.completions.create(
            **{"model": "tiny", **{k: v for k, v in asks[i].items() if k != "unmask"}}, extra_body=extra
        )
        return (
            "".join(c.choices[0].delta.content or "" for c in got if c.choices)
            if asks[i]["stream"]
            else got.choices[0].message.content
        )

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(ask, range(64)))
    differ, near = [], 0
    for i, (answer, asked_) in enumerate(zip(answers, asks, strict=True)):
        if answer is None:
            continue
        ties, more = NearTies(), asked_["unmask"]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            own = generate(
                model, [asked_["messages"]], more["method"], length=asked_["max_tokens"], steps=more["steps"], cfg=more["cfg"],
                seed=asked_["seed"], temperature=asked_["temperature"], watch=[ties],
            )[0]  # fmt: skip
        near += bool(ties.counts.sum())
        if answer != own.text:
            differ.append(i)
            assert ties.counts.sum(), f"client {i} got another answer than alone, and there is no near-tie"
    print(f"{len(differ)} of 64 answers differ, each at a near-tie; {near} decodes had one")
    assert len(differ) <= 3


# ---------------------------------------------------------------- starting and ending


def test_what_cannot_start_says_so_in_one_line(capsys, monkeypatch):
    monkeypatch.delenv("UNMASK_API_KEY", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for options, says in (
            (("--port", port), "choose another --port"),
            (("--port", "99999"), "from 0 to 65535"),
            (("--host", "0.0.0.0"), "set UNMASK_API_KEY, or say --no-auth"),
            (("--model", "/nothing/here"), "/nothing/here"),
            (("--method", "sacn"), "did you mean 'sacm'"),
            (("--set", "nothing=1"), "no setting"),
            (("--batch", "0"), "--batch"),
            (("--timeout", "nan"), "--timeout"),
            (("--api-key-file", "/nothing/key"), "cannot be read"),
        ):
            assert says in refused(capsys, "serve", "--port", "0", *options)
    monkeypatch.setitem(sys.modules, "unmask.serving.server", None)  # as if the extra were not installed
    monkeypatch.delattr(unmask.serving, "server")
    assert 'pip install "unmask[serve]"' in refused(capsys, "serve")


def test_keys_hosts_cors_and_a_method_of_the_operators(tmp_path):
    (tmp_path / "mine.py").write_text("from unmask import METHODS\nslow = METHODS['sacm'].with_(kappa=9)\n")
    options = (
        "--allow-host",
        "llm.example",
        "--cors",
        "https://app.example",
        "--methods",
        f"{tmp_path}/mine.py:slow",
        "--drain",
        "20",
    )
    with served(*options, env={"UNMASK_API_KEY": "sesame"}) as (url, process):
        key = {"authorization": "Bearer sesame"}
        assert fetched(f"{url}/ready")[0] == 200 and fetched(f"{url}/v1/models")[0] == 401
        assert (
            fetched(f"{url}/metrics")[0] == 401
            and fetched(f"{url}/v1/models", {"authorization": "Bearer sesam"})[0] == 401
        )
        status, _, headers = fetched(
            f"{url}/v1/models", {**key, "host": "llm.example", "origin": "https://app.example"}
        )
        assert status == 200 and headers["access-control-allow-origin"] == "https://app.example"
        assert (
            "access-control-allow-origin"
            not in fetched(f"{url}/v1/models", {**key, "origin": "https://evil.example"})[2]
        )
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{url}/v1", api_key="wrong").models.list()
        status, body, _ = post(f"{url}/v1/chat/completions", {**ASK, "unmask": {"method": "slow"}}, key)
        assert status == 200 and "kappa=9" in body["unmask"]["recipe"]
        # SIGTERM: nothing new, what is live finishes
        long = {**ASK, "max_tokens": 256, "unmask": {"steps": 200, "method": "top-probability"}}
        with ThreadPoolExecutor(1) as pool:
            live = pool.submit(post, f"{url}/v1/chat/completions", long, key)
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            until(lambda: fetched(f"{url}/ready")[0] == 503)
            status, body, headers = post(f"{url}/v1/chat/completions", ASK, key)
            assert status == 503 and body["error"]["code"] == "shutting_down" and headers["retry-after"]
            assert live.result()[0] == 200
        assert process.wait(20) == 0


def test_a_second_signal_ends_at_once_and_the_queue_is_bounded():
    with served("--batch", "1", "--queue", "1", "--timeout", "100") as (url, process):
        long = {**ASK, "max_tokens": 400, "unmask": {"steps": 400, "method": "top-probability"}}
        with ThreadPoolExecutor(2) as pool:
            for _ in range(2):
                pool.submit(post, f"{url}/v1/chat/completions", long)
                time.sleep(0.3)
            status, body, headers = post(f"{url}/v1/chat/completions", ASK)
            assert status == 429 and headers["retry-after"] and body["error"]["type"] == "rate_limit_error"
            with pytest.raises(openai.RateLimitError):
                asked(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            process.wait(10)
            assert time.monotonic() - begun < 8


def test_a_request_that_takes_too_long_is_told_late_or_early():
    with served("--timeout", "0.3") as (url, _):
        long = {**ASK, "max_tokens": 400, "unmask": {"steps": 400, "method": "top-probability"}}
        status, body, headers = post(f"{url}/v1/chat/completions", long)
        assert status == 504 and body["error"]["code"] == "timeout" and headers["x-should-retry"] == "false"
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.APIError, match="took longer than"):
            list(asked(client, stream=True, max_tokens=400, unmask={"steps": 400, "method": "top-probability"}))
