"""OpenAI's API over an engine. Errors, chunks and answers have OpenAI's form; what it has no field for is in `unmask`.

The event loop only waits and writes: requests are prepared by one thread, decoded by the engine's.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from fastapi import Request as HTTP
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from unmask import __version__
from unmask.decoding import settings
from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import method
from unmask.errors import UserError
from unmask.generation import Decoding, strategy_for
from unmask.models.images import opened
from unmask.serving import playground
from unmask.serving.engine import Engine, Job, Refused, Request
from unmask.serving.forms import ChatForm, Form, TextForm, data, milliseconds, usage_of
from unmask.serving.guard import Access, Guard, error, headers_of, refusal
from unmask.serving.metrics import Metrics
from unmask.serving.schema import Answer, Chat, Completion, Error, ModelCard, ModelList, State

PIXELS = 40_000_000  # of a picture, read from its head before it is decoded
BACKLOG = 10_000  # events a client may be behind
LARGEST = 1e9  # of a client's number: no setting of any method needs more


@dataclass(frozen=True)
class Defaults:
    """What the operator chose: the method and its settings, further methods by name, and how much a client may ask for."""

    name: str = "sacm"
    own: Mapping[str, Strategy] = field(default_factory=dict)  # methods that are not built in
    settings: Mapping[str, Any] = field(default_factory=dict)
    n: int = 8
    streams: int = 256
    max_settings: int = 32
    keepalive: float = 15.0

    def strategy(self, name: str | None, wanted: Mapping[str, Any]) -> Strategy:
        """The method a client asks for. Names are looked up, never run: no file, no entry point, nothing evaluated."""
        name = name or self.name
        strategy, _ = settings.applied(self.own[name] if name in self.own else method(name), dict(self.settings))
        return strategy.with_(**wanted)


class API:
    """The operations, and what they share."""

    def __init__(self, engine: Engine, defaults: Defaults, access: Access, metrics: Metrics):
        self.engine, self.defaults, self.access, self.metrics = engine, defaults, access, metrics
        self.preparing = ThreadPoolExecutor(1, "prepare")  # one: a tokenizer is not made for several threads
        self.created, self.streaming = int(time.time()), 0

    # ---------------------------------------------------------------- a body -> a Request

    def asked(self, body: Chat | Completion, about: dict[str, Any]) -> Request:
        """What the body asks for; refuses what goes beyond the limits before any work is done."""
        more, model = body.unmask, self.engine.model
        if body.model not in (None, model.name):
            raise unknown(str(body.model), model.name)
        n, wanted = body.n or 1, dict(more.settings) if more else {}
        if n > self.defaults.n:
            raise Refused(400, f"n is at most {self.defaults.n}, not {n}", param="n")
        if more and more.trace and not body.stream:
            raise Refused(400, "a trace comes step by step: it needs stream", param="unmask.trace")
        seed = secrets.randbelow(2**31) if body.seed is None else body.seed
        stop = [body.stop] if isinstance(body.stop, str) else body.stop or []
        common: dict[str, Any] = {
            "length": body.max_tokens, "temperature": body.temperature, "seed": seed, "samples": n, "stop": stop,
            "steps": more.steps if more else None, "cfg": more.cfg if more else 0.0, "cache": more.cache if more else None,
            "infill": more.infill if more else None,
        }  # fmt: skip
        name = (more.method if more else None) or self.defaults.name
        strategy = self.wanted(name, wanted)
        prompt, special = self.conversation(body, common) if isinstance(body, Chat) else self.text(body, common)
        how = Decoding(**common)
        strategy = strategy_for(model, strategy, how)
        return Request(
            prompt,
            strategy,
            how,
            name,
            stream=bool(body.stream),
            trace=bool(more and more.trace),
            own=bool(wanted),
            id=about["id"],
            **special,
        )

    def wanted(self, name: str | None, wanted: Mapping[str, Any]) -> Strategy:
        """The method with a client's settings, which are bounded before they are tried."""
        if len(wanted) > self.defaults.max_settings:
            raise Refused(
                400,
                f"there are {len(wanted)} settings; at most {self.defaults.max_settings} are taken",
                param="unmask.settings",
            )
        for setting, value in wanted.items():
            if isinstance(value, (int, float)) and not -LARGEST <= value <= LARGEST:
                said = f"{setting[:40]} is a number from -1e9 to 1e9"
                raise Refused(400, said, param=f"unmask.settings.{setting[:40]}")
        try:
            return self.defaults.strategy(name, wanted)
        except UserError as wrong:
            raise Refused(
                400, str(wrong), param="unmask.settings" if "no method" not in str(wrong) else "unmask.method"
            ) from None

    def conversation(self, body: Chat, common: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if body.max_completion_tokens is not None:
            if body.max_tokens not in (None, body.max_completion_tokens):
                raise Refused(400, "max_tokens and max_completion_tokens differ; give one", param="max_tokens")
            common["length"] = body.max_completion_tokens
        if body.top_logprobs and not body.logprobs:
            raise Refused(400, "top_logprobs needs logprobs", param="top_logprobs")
        messages, pictures = [], []
        for i, message in enumerate(body.messages):
            parts = message.content if isinstance(message.content, list) else None
            said = message.content if parts is None else "".join(p.text for p in parts if p.type == "text")
            for part in parts or ():
                if part.type == "image_url":
                    pictures.append(picture(part.image_url.url, f"messages.{i}.content"))
            messages.append({"role": "system" if message.role == "developer" else message.role, "content": said})
        return messages, {"pictures": tuple(pictures), "top": (body.top_logprobs or 0) if body.logprobs else None}

    def text(self, body: Completion, common: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        common["raw"] = True
        prompt: Any = body.prompt
        if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
            if len(prompt) > 1:
                raise Refused(
                    400, "one prompt a request: send the others beside it, they are decoded together", param="prompt"
                )
            (prompt,) = prompt
        model, slots = self.engine.model, None
        if isinstance(prompt, str) and model.spells(prompt):
            prompt = model.literal(prompt)
        if body.suffix:
            if common["infill"] is not None or "[MASK" in body.suffix:
                raise Refused(400, "give a suffix, or unmask.infill with its [MASK*n] spans, not both", param="suffix")
            slots = common["length"] or model.length
            if slots > self.engine.limits.length:
                raise Refused(400, f"a response of {slots} tokens is too long", param="max_tokens")
            common |= {"infill": f"[MASK*{slots}]{body.suffix}", "length": None}
        return prompt, {"top": body.logprobs, "slots": slots}

    # ---------------------------------------------------------------- a Request -> an answer

    async def take(self, body: Chat | Completion, http: HTTP) -> Any:
        about, loop = http.scope["about"], asyncio.get_running_loop()
        about |= {"stream": bool(body.stream)} | ({"prompt": _said(body)} if self.access.log_prompts else {})
        events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def put(event: dict[str, Any]) -> None:
            events.put_nowait(event)
            if events.qsize() > BACKLOG:  # it does not read what it asked for
                self.engine.leave(job)

        def tell(event: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(put, event)

        def prepared() -> Job:
            return self.engine.prepare(self.asked(body, about), tell)

        try:
            job = await loop.run_in_executor(self.preparing, prepared)
            about |= {"method": job.request.method, "prompt_tokens": len(job.ids)}
            if body.stream and self.streaming >= self.defaults.streams:
                raise Refused(
                    429,
                    f"{self.streaming} streams are open; try again later",
                    "rate_limit_error",
                    code="too_many_streams",
                )
            self.engine.submit(job)
        except Exception as wrong:
            return refusal(self.refused(wrong, about["id"], bool(body.unmask and body.unmask.settings)))
        form = (
            ChatForm(self.engine.model.name, job, body)
            if isinstance(body, Chat)
            else TextForm(self.engine.model.name, job, body)
        )
        if body.stream:
            return Stream(self, form, events, about)
        gone = asyncio.ensure_future(vanished(http))
        try:
            while True:
                got = asyncio.ensure_future(events.get())
                await asyncio.wait({got, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not got.done():
                    got.cancel()
                    about["finish"] = "gone"
                    return PlainTextResponse("", 499)
                event = got.result()
                if "error" in event:
                    return refusal(self.refused(event["error"], about["id"], job.request.own))
                if "choices" in event:
                    self.count(job, event, about)
                    return JSONResponse(form.whole(event))
        finally:
            gone.cancel()
            self.engine.leave(job)

    async def stream(
        self, form: Form, events: asyncio.Queue[dict[str, Any]], about: dict[str, Any]
    ) -> AsyncIterator[bytes]:
        job, first, usage = form.job, True, None
        try:
            for chunk in form.begin():
                yield data(chunk)
            while True:
                try:
                    event = await asyncio.wait_for(events.get(), self.defaults.keepalive)
                except asyncio.TimeoutError:
                    yield format_sse_event(comment="keep-alive")
                    continue
                if "error" in event:
                    refused = self.refused(event["error"], about["id"], job.request.own)
                    about["error"] = refused.message
                    yield data(error(refused))
                    return
                if first and "delta" in event:
                    self.metrics("first", time.monotonic() - job.arrived)
                    first = False
                if "choices" in event:
                    usage = self.count(job, event, about)
                for chunk in form.chunks(event):
                    yield data(chunk)
                if usage is not None:
                    if form.usage:
                        yield data({**form.frame(), "choices": [], "usage": usage})
                    yield format_sse_event(data_str="[DONE]")
                    return
        finally:
            if usage is None and "error" not in about:
                about["finish"] = "gone"

    def count(self, job: Job, event: dict[str, Any], about: dict[str, Any]) -> dict[str, int]:
        made = sum(choice["count"] for choice in event["choices"])
        self.metrics("tokens", made)
        self.metrics("requests", 1)
        self.metrics("latency", time.monotonic() - job.arrived)
        times = {"waited_ms": milliseconds(event["waited"]), "decoded_ms": milliseconds(event["decoded"])}
        about |= {"completion_tokens": made, **times, "forwards": sum(c["forwards"] for c in event["choices"])}
        return usage_of(event)

    def refused(self, wrong: Exception, id_: str | None = None, own: bool = False) -> Refused:
        """Any error as a client may see it. What a client's own settings bring about is the client's to mend."""
        self.metrics("refused", 1)
        if isinstance(wrong, Refused):
            return wrong
        if isinstance(wrong, UserError):
            return Refused(400, str(wrong), code=getattr(wrong, "code", None))
        said = f"{type(wrong).__name__}: {' '.join(str(wrong).split()):.200}"
        self.access.log(json.dumps({"error": said, "id": id_}))
        if own:
            return Refused(400, f"these settings cannot be decoded ({said})", param="unmask.settings")
        return Refused(
            500, "something went wrong in the server; its log has more", "server_error", code="internal_error"
        )


class Stream(EventSourceResponse):
    """A stream whose job leaves with its client, even one that is gone before the first chunk."""

    def __init__(self, api: API, form: Form, events: asyncio.Queue[dict[str, Any]], about: dict[str, Any]):
        super().__init__(api.stream(form, events, about), headers={"x-accel-buffering": "no"})
        self.api, self.job = api, form.job

    async def __call__(self, *given: Any) -> None:
        self.api.streaming += 1
        try:
            await super().__call__(*given)
        finally:
            self.api.streaming -= 1
            self.api.engine.leave(self.job)


def unknown(name: str, known: str) -> Refused:
    return Refused(
        404, f"there is no model {name[:100]!r} here; this server has {known!r}", param="model", code="model_not_found"
    )


def picture(url: str, where: str) -> Any:
    """A picture from a data: URL. A client's string is never a path or a link, and its size is read before its pixels are."""
    head, comma, content = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        raise Refused(400, "a picture is a data: URL, data:image/png;base64,...; links are not opened", param=where)
    try:
        held = base64.b64decode(content, validate=True)
        from PIL import Image

        with Image.open(io.BytesIO(held)) as image:
            if image.width * image.height > PIXELS:
                raise Refused(
                    400, f"a picture has at most {PIXELS} pixels, not {image.width} x {image.height}", param=where
                )
        return opened(held)
    except ImportError:
        raise Refused(400, "this server cannot open pictures", param=where) from None
    except Refused:
        raise
    except Exception as wrong:  # whatever a client's bytes make Pillow say
        said = (
            str(wrong) if isinstance(wrong, UserError) else f"this is no picture that can be read ({str(wrong)[:120]})"
        )
        raise Refused(400, said, param=where) from None


async def vanished(http: HTTP) -> None:
    """Returns when the client is gone."""
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _said(body: Chat | Completion) -> Any:
    return [message.model_dump() for message in body.messages] if isinstance(body, Chat) else body.prompt


# ---------------------------------------------------------------- the application


def application(api: API) -> Any:
    """The API as an ASGI application."""
    wrong: dict[int | str, Any] = {
        code: {"model": Error} for code in (400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 504)
    }
    app = FastAPI(
        title="unmask", version=__version__, docs_url=None, redoc_url=None, responses=wrong,
        description="Masked diffusion language models behind OpenAI's API.",
    )  # fmt: skip
    model = api.engine.model
    card = {"id": model.name, "object": "model", "created": api.created, "owned_by": "unmask"}
    streamed: dict[int | str, Any] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

    @app.get("/v1/models", response_model=ModelList)
    async def models() -> Any:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}", response_model=ModelCard)
    async def one_model(name: str) -> Any:
        if name != model.name:
            raise unknown(name, model.name)
        return card

    @app.post("/v1/chat/completions", response_model=Answer, responses=streamed)
    async def chat(body: Chat, request: HTTP) -> Any:
        return await api.take(body, request)

    @app.post("/v1/completions", response_model=Answer, responses=streamed)
    async def completion(body: Completion, request: HTTP) -> Any:
        return await api.take(body, request)

    playground.add(app, api)

    @app.get("/health", response_model=State)
    async def health() -> Any:
        alive = api.engine.thread.is_alive()
        return JSONResponse({"status": "ok" if alive else "the engine has stopped"}, 200 if alive else 503)

    @app.get("/ready", response_model=State)
    async def ready() -> Any:
        up = api.engine.thread.is_alive() and not api.engine.closed
        return JSONResponse({"status": "ready" if up else "shutting down"}, 200 if up else 503)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Any:
        return PlainTextResponse(api.metrics.page())

    @app.exception_handler(Refused)
    async def _(request: HTTP, refused: Refused) -> Any:
        return refusal(refused)

    @app.exception_handler(RequestValidationError)
    async def _(request: HTTP, found: RequestValidationError) -> Any:
        return refusal(invalid(found))

    @app.exception_handler(HTTPException)
    async def _(request: HTTP, found: HTTPException) -> Any:
        refused = Refused(
            found.status_code,
            str(found.detail),
            code={404: "not_found", 405: "method_not_allowed"}.get(found.status_code),
        )
        return JSONResponse(error(refused), refused.status, {**headers_of(refused), **(found.headers or {})})

    @app.exception_handler(Exception)
    async def _(request: HTTP, found: Exception) -> Any:
        return refusal(api.refused(found, request.scope.get("about", {}).get("id")))

    whole: Any = Guard(app, api.access)
    if api.access.cors:
        whole = CORSMiddleware(
            whole, allow_origins=list(api.access.cors), allow_methods=["GET", "POST"], allow_headers=["*"]
        )
    return whole


def invalid(found: RequestValidationError) -> Refused:
    """The first thing that is wrong with a body, with the field's name."""
    first = max(found.errors(), key=lambda one: len(one["loc"]))  # of a union's errors, the one that got furthest
    places = [
        str(place)
        for place in first["loc"]
        if place != "body" and not str(place).startswith(("list[", "str", "function-"))
    ]
    param = ".".join(places) or None
    said = {
        "extra_forbidden": "there is no such field here",
        "literal_error": f"only {first.get('ctx', {}).get('expected', '')} can be honoured here",
        "none_required": "this cannot be honoured here: leave it out",
        "too_long": "this is longer than can be honoured here",
        "missing": "this is missing",
    }.get(first["type"], first["msg"])
    return Refused(
        400, f"{param or 'the body'}: {said}"[:400], param=param[:200] if param else None, code=first["type"]
    )
