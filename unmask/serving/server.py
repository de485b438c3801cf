"""The server's process: a socket, an engine, uvicorn, and what the signals mean."""

from __future__ import annotations

import asyncio
import signal
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from unmask.errors import UserError
from unmask.serving.api import API, Defaults, application
from unmask.serving.engine import Engine
from unmask.serving.guard import LOCAL, Access
from unmask.serving.metrics import Metrics


def listening(host: str, port: int) -> socket.socket:
    """A bound socket; a port that is taken is said in one line, before a model is loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        return bound
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}:{port}: {why}; choose another --port (0: any free one)") from None


def address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class Server(uvicorn.Server):
    """uvicorn with signals of our own: the first one lets requests finish while /ready says 503, the second ends at once."""

    def __init__(self, config: uvicorn.Config, engine: Engine, drain: float, started: Callable[[], None]):
        super().__init__(config)
        self.engine, self.drain, self.begun, self.tasks = engine, drain, started, set[Any]()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGTERM, signal.SIGINT):
            try:
                loop.add_signal_handler(sign, self.asked_to_end)
            except (NotImplementedError, RuntimeError, ValueError):  # Windows, or not the main thread
                signal.signal(sign, lambda *_: self.asked_to_end())
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.begun()

    def asked_to_end(self) -> None:
        if self.engine.closed:
            self.engine.stop()
            self.should_exit = self.force_exit = True
        else:
            self.engine.close()
            self.tasks.add(asyncio.ensure_future(self.drained()))

    async def drained(self) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self.drain
        while not self.engine.idle and loop.time() < end:
            await asyncio.sleep(0.05)
        self.engine.stop()  # whoever is still here is told
        self.should_exit = True


def serve(
    engine: Engine, bound: socket.socket, *, defaults: Defaults, access: Access,
    drain: float = 30.0, say: Callable[[str], Any] = print,
) -> None:  # fmt: skip
    """Serve the engine's model on a bound socket until a signal ends it. Its address is the first thing it says."""
    warnings.simplefilter("ignore")  # what a request's settings make a method say is no news to the operator
    engine.observe = metrics = Metrics()
    config = uvicorn.Config(
        application(API(engine, defaults, access, metrics)), log_config=None, access_log=False, server_header=False, date_header=False,
        http="h11",  # always the same parser: uvicorn would take another where one is installed, as Ray Serve's extra does
        lifespan="off", timeout_keep_alive=30, timeout_graceful_shutdown=5, backlog=1024, ws="none",
    )  # fmt: skip
    engine.thread.start()
    server = Server(config, engine, drain, lambda: say(address(bound)))
    try:
        asyncio.run(server.serve([bound]))
    finally:
        engine.stop()
        engine.thread.join(10)


def allowed(host: str, more: list[str]) -> tuple[str, ...]:
    """The names a server answers to: local ones, the address it was given, and what the operator allows."""
    given = () if host in ("0.0.0.0", "::", "") else (host.lower(),)
    return tuple(dict.fromkeys([*LOCAL, *given, *(name.lower().strip("[]") for name in more)]))
