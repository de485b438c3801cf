"""What stands before the API: hosts, keys, content types, sizes, JSON that is no JSON; and behind it: headers and a log line.

It is plain ASGI, so that a stream passes through it untouched. A request's body is read here, before anything else is done.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from unmask.errors import UserError
from unmask.files import parse_json
from unmask.serving.engine import Refused

HEADERS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff", "x-frame-options": "DENY", "referrer-policy": "no-referrer", "cache-control": "no-store",
}  # fmt: skip
OPEN = (
    "/health",
    "/ready",
    "/",
    "/playground.js",
    "/playground.css",
    "/viewer.js",
    "/viewer.css",
)  # without a key: they tell nothing
LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Access:
    """Who may ask, and how much."""

    key: str | None = None
    hosts: tuple[str, ...] = LOCAL
    cors: tuple[str, ...] = ()
    body: int = 8 * 2**20  # bytes
    patience: float = 30.0  # seconds a body may take to arrive
    log_prompts: bool = False
    log: Callable[[str], Any] = field(default=lambda line: print(line, file=sys.stderr, flush=True))


def error(refused: Refused) -> dict[str, Any]:
    """OpenAI's form of it."""
    return {"error": {"message": refused.message, "type": refused.kind, "param": refused.param, "code": refused.code}}


def headers_of(refused: Refused) -> dict[str, str]:
    extra = {429: {"retry-after": "1"}, 401: {"www-authenticate": "Bearer"}}.get(refused.status, {})
    if refused.status == 503:
        extra = {"retry-after": "5"}
    if refused.status in (500, 504) or refused.code == "replicas_lost":
        extra = {"x-should-retry": "false"}  # OpenAI's client would ask for the same work again
    return extra


class Guard:
    """ASGI middleware around the API."""

    def __init__(self, app: Any, access: Access):
        self.app, self.access = app, access

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = time.time()
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get("x-request-id", "")
        about: dict[str, Any] = {"id": given if re.fullmatch(r"[\w.:-]{1,64}", given) else f"req-{uuid.uuid4().hex}"}
        scope["about"] = about
        status = 0

        async def sent(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                extra = {**HEADERS, "x-request-id": about["id"]}
                there = {name.lower() for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in extra.items() if k.encode() not in there]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        try:
            try:
                receive = await self.checked(scope, headers, receive)
            except Refused as refused:
                await refusal(refused)(scope, receive, sent)
            else:
                await self.app(scope, receive, sent)
        finally:
            took = round(1000 * (time.time() - begun), 1)
            line = {
                "time": round(begun, 3),
                **about,
                "verb": scope["method"],
                "path": scope["path"],
                "status": status,
                "ms": took,
            }
            self.access.log(json.dumps(line, ensure_ascii=False))

    async def checked(self, scope: Any, headers: dict[str, str], receive: Any) -> Any:
        access = self.access
        host = re.sub(r":\d+$", "", headers.get("host", "")).strip("[]").lower()
        if host not in access.hosts:
            raise Refused(
                403,
                f"this server does not answer to the name {host[:100]!r}; start it with --allow-host",
                code="host_not_allowed",
            )
        if access.key and scope["path"] not in OPEN:
            kind, _, key = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), access.key.encode()):
                raise Refused(401, "the API key is missing or wrong", "authentication_error", code="invalid_api_key")
        if scope["method"] != "POST":
            return receive
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused(415, "the content type must be application/json", code="unsupported_media_type")
        try:
            body = await asyncio.wait_for(read(receive, access.body), access.patience)
        except asyncio.TimeoutError:
            raise Refused(408, "the request's body did not arrive in time", "timeout_error", code="timeout") from None
        await asyncio.to_thread(sound, body) if len(body) > 2**16 else sound(body)
        left = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Any:
            return left.pop() if left else await receive()

        return replay


async def read(receive: Any, most: int) -> bytes:
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refused(400, "the request's body ended early")
        body += message.get("body", b"")
        if len(body) > most:
            raise Refused(413, f"the request is larger than {most} bytes", code="request_too_large")
        if not message.get("more_body"):
            return body


def sound(body: bytes) -> None:
    """Refuse what is no JSON: nested without end, NaN, numbers that no machine holds, half characters."""

    def never(text: str) -> Any:
        raise UserError(f"{text} is no JSON number")

    try:
        if deepest(body) > 64:
            raise UserError("the JSON is nested too deeply")
        parse_json(body, "the request")
        json.loads(
            body,
            parse_constant=never,
            parse_int=lambda text: int(text) if len(text) < 40 else never("so long a number"),
        )
    except (UserError, ValueError, RecursionError) as wrong:
        raise Refused(400, str(wrong), code="invalid_json") from None


def deepest(body: bytes) -> int:
    """How deeply brackets nest outside of strings."""
    brackets = re.sub(rb'"(?:[^"\\]|\\.)*"|[^][{}"]+', b"", body)
    return max(accumulate(1 if byte in b"[{" else -1 for byte in brackets), default=0)


def refusal(refused: Refused) -> Any:
    from fastapi.responses import JSONResponse

    return JSONResponse(error(refused), refused.status, headers_of(refused))
