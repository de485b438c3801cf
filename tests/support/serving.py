"""What the tests of the server share: a scripted model for an engine driven by hand, and a server process used over HTTP."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import torch

from support.scripted import VOCAB, Placed, V, encode
from unmask.models.denoisers import Guided
from unmask.models.model import Model


class Words:
    """A tokenizer of the scripted vocabulary: token 7 is " w7"."""

    def __call__(self, text: str, **_):
        return {"input_ids": encode(text)}

    def decode(self, ids, **_):
        return "".join(f" w{i}" for i in ids)


class ScriptedModel(Model):
    """A model whose logits are a function of the tokens: what a decode gives alone, it must give in any company."""

    def __init__(self, denoiser=None, context: int = 10_000):
        super().__init__("scripted", torch.nn.Linear(1, 1), Words(), VOCAB)
        object.__setattr__(self, "placed", denoiser or Placed())
        object.__setattr__(self, "context_", context)

    context = property(lambda self: self.context_)
    vocabulary = property(lambda self: V)
    length = property(lambda self: 16)

    def denoiser(self, cfg=0.0, cache=None, images=()):
        return Guided(self.placed, cfg) if cfg else self.placed


@contextmanager
def served(*options: str, env: dict[str, str] | None = None):
    """A server started by the command; gives its address and its process."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **(env or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "unmask", "serve", "--port", "0", *options],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
    )  # fmt: skip
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), process.communicate(timeout=30)
        process.log = []
        import threading

        threading.Thread(target=lambda: process.log.extend(process.stderr), daemon=True).start()
        yield url, process
    finally:
        process.kill()
        process.wait()


def post(url: str, body, headers=None, raw: bytes | None = None):
    """(status, JSON, headers) of a request."""
    data = json.dumps(body).encode() if raw is None else raw
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    return opened(request)


def fetched(url: str, headers=None):
    return opened(urllib.request.Request(url, headers=headers or {}))


def opened(request):
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, _value(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, _value(error.read()), dict(error.headers)


def _value(content: bytes):
    try:
        return json.loads(content)
    except ValueError:
        return content.decode()


def until(true, seconds: float = 20.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
