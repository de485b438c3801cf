"""How an answer is written, whole and in chunks: OpenAI's forms, and what they have no field for in `unmask`."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from fastapi.sse import format_sse_event

from unmask import __version__
from unmask.serving.engine import Job
from unmask.serving.schema import Common


class Form:
    """How an answer is written, whole and in chunks."""

    object = chunk = prefix = ""

    def __init__(self, model: str, job: Job, body: Common):
        self.model, self.job, self.id = model, job, f"{self.prefix}-{secrets.token_hex(12)}"
        self.created = int(time.time())
        self.usage = bool(body.stream_options and body.stream_options.include_usage)

    def frame(self, kind: str | None = None) -> dict[str, Any]:
        frame = {
            "id": self.id, "object": kind or self.chunk, "created": self.created, "model": self.model,
            "system_fingerprint": f"unmask-{__version__}",
        }  # fmt: skip
        return {**frame, "usage": None} if self.usage and not kind else frame

    def whole(self, event: dict[str, Any]) -> dict[str, Any]:
        choices = [self.choice(choice) for choice in event["choices"]]
        return {**self.frame(self.object), "choices": choices, "usage": usage_of(event), "unmask": self.figures(event)}

    def figures(self, event: dict[str, Any]) -> dict[str, Any]:
        """What OpenAI's answer has no field for."""
        choices, asked = event["choices"], self.job.request
        return {
            "method": asked.method, "recipe": repr(asked.strategy), "length": event["length"], "steps": event["steps"],
            "seed": asked.decoding.seed, "forwards": sum(c["forwards"] for c in choices),
            "eot_ratio": sum(c["eot_ratio"] for c in choices) / len(choices),
            "tie_rate": sum(c["tie_rate"] for c in choices) / len(choices),
            "waited_ms": milliseconds(event["waited"]), "decoded_ms": milliseconds(event["decoded"]),
        }  # fmt: skip

    def begin(self) -> list[dict[str, Any]]:
        return []

    def chunks(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What a stream says about an event of the engine."""
        frame = self.frame()
        if "delta" in event:
            return [{**frame, "choices": [self.part(event["choice"], event["delta"])]}]
        if "piece" in event:
            return [{**frame, "choices": [], "unmask": {"choice": event["choice"], **event["piece"]}}]
        ends = [{**frame, "choices": [self.last(choice)]} for choice in event["choices"]]
        ends[-1]["unmask"] = self.figures(event)
        return ends

    def choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def part(self, index: int, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def last(self, choice: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    def logprobs(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        raise NotImplementedError

    def common(self, choice: dict[str, Any]) -> dict[str, Any]:
        """What a choice has besides its text."""
        own = {name: choice[name] for name in ("seed", "forwards", "eot_ratio", "tie_rate", "tokens")}
        return {
            "index": choice["index"],
            "logprobs": self.logprobs(choice),
            "finish_reason": choice["finish"],
            "unmask": own,
        }


class ChatForm(Form):
    object, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl"

    def begin(self) -> list[dict[str, Any]]:
        start = [
            {"index": i, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
            for i in range(self.job.rows)
        ]
        return [{**self.frame(), "choices": [one]} for one in start]

    def choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice["text"], "refusal": None}
        return {"message": message, **self.common(choice)}

    def part(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "delta": {"content": text}, "finish_reason": None}

    def last(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {"delta": {}, **self.common(choice)}

    def logprobs(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        if choice["logprobs"] is None:
            return None

        def said(token: str, logprob: float) -> dict[str, Any]:
            return {"token": token, "logprob": logprob, "bytes": list(token.encode())}

        content = [
            {**said(one["token"], one["logprob"]), "top_logprobs": [said(*rival) for rival in one["top"]]}
            for one in choice["logprobs"]
        ]
        return {"content": content, "refusal": None}


class TextForm(Form):
    object, chunk, prefix = "text_completion", "text_completion", "cmpl"

    def choice(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {"text": choice["text"], **self.common(choice)}

    def part(self, index: int, text: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None}

    def last(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self.choice(choice), "text": ""}

    def logprobs(self, choice: dict[str, Any]) -> dict[str, Any] | None:
        told = choice["logprobs"]
        if told is None:
            return None
        ends = [0]
        for one in told:
            ends.append(ends[-1] + len(one["token"]))
        return {
            "tokens": [one["token"] for one in told], "token_logprobs": [one["logprob"] for one in told],
            "top_logprobs": [dict(one["top"]) for one in told], "text_offset": ends[:-1],
        }  # fmt: skip


def usage_of(event: dict[str, Any]) -> dict[str, int]:
    made = sum(choice["count"] for choice in event["choices"])
    given = event["prompt_tokens"]
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


def data(value: Any) -> bytes:
    return format_sse_event(data_str=json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def milliseconds(seconds: float) -> float:
    return round(1000 * seconds, 1)
