"""N engines behind one front: every replica is a Ray Serve deployment's, in a process of its own, here or on a cluster.

    with replicas({"name": "tiny"}, 2) as engine:
        serve(engine, ...)

The front prepares requests, counts who waits and keeps the time limits; it has the model's outline, not its weights. A seed decides
a decode. So if a replica dies, its requests are asked of another, and a client's stream goes on behind what it has been told.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from unmask.errors import UserError
from unmask.evaluation.workers import Cluster, Worker, fingerprint, ray
from unmask.models.model import Model
from unmask.serving.engine import STOPPED, Engine, Job, Limits, Refused, Request

Event = dict[str, Any]
LOST = 3  # replicas that may die over one request
FORWARDS = ("forward", "padding", "round")  # what only the engine that makes the forwards can observe


class Telling(Engine):
    """An engine that says when a request's turn has come: the front counts who waits."""

    def _begin(self, job: Job) -> None:
        super()._begin(job)
        job.tell({"begun": True})


class Replica:
    """One engine, as Ray Serve runs it. A call is a request; it yields the engine's events and what it observed, in lists."""

    def __init__(self, loading: Mapping[str, Any], threads: int, known: Mapping[str, str], limits: Limits):
        worker = Worker()
        worker.load(loading, threads, known)
        self.seen: deque[tuple[str, float]] = deque(maxlen=10_000)
        free = replace(limits, queue=sys.maxsize, timeout=math.inf)  # both are the front's
        self.engine = Telling(worker.model, free, lambda *one: self.seen.append(one) if one[0] in FORWARDS else None)
        self.engine.thread.start()

    def check_health(self) -> None:
        """Asked by Ray Serve, which replaces a replica that raises."""
        if not self.engine.thread.is_alive():
            raise RuntimeError("the engine has stopped")

    async def __call__(
        self, request: Request, ids: list[int], width: int
    ) -> AsyncIterator[tuple[list[Event], list[tuple[str, float]]]]:
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Event]()

        def tell(event: Event) -> None:
            loop.call_soon_threadsafe(told.put_nowait, event)

        job = Job(request, ids, width, tell)
        self.engine.submit(job)
        try:
            events: list[Event] = []
            while not any(map(last, events)):
                events = [await told.get()]
                events += [told.get_nowait() for _ in range(told.qsize())]
                yield [sendable(event) for event in events], [self.seen.popleft() for _ in range(len(self.seen))]
        finally:  # cancelled, where the client is gone
            self.engine.leave(job)


class Replicas(Engine):
    """An engine whose decodes are made elsewhere: `handle` is a streaming handle, whose calls Ray Serve gives to a replica."""

    def __init__(self, model: Model, handle: Any, limits: Limits | None = None):
        super().__init__(model, limits)
        self.handle, self.loop = handle, asyncio.new_event_loop()
        self.calls: dict[Job, asyncio.Task[None]] = {}

    def submit(self, job: Job) -> None:
        super().submit(job)  # refuses what is too much; it waits until its replica says that it has begun
        self.loop.call_soon_threadsafe(lambda: self.calls.update({job: self.loop.create_task(self._follow(job))}))

    def leave(self, job: Job) -> None:
        job.gone = True
        self.loop.call_soon_threadsafe(lambda: self.calls[job].cancel() if job in self.calls else None)

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.calls

    def stop(self) -> None:
        first = not self.stopped
        super().stop()
        if first:
            self.loop.call_soon_threadsafe(self.loop.stop)

    # ---------------------------------------------------------------- the thread of the calls

    def run(self) -> None:
        self.loop.run_forever()  # until `stop`
        self.loop.run_until_complete(self._cancel())
        self._end(self.waiting, STOPPED)
        self.waiting.clear()

    async def _cancel(self) -> None:
        calls = list(self.calls.values())
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)

    async def _follow(self, job: Job) -> None:
        """One request, from here to its end, whatever that is."""
        try:
            await asyncio.wait_for(self._decode(job), job.arrived + self.limits.timeout - time.monotonic())
        except asyncio.TimeoutError:
            self._end([job], self.overdue)
        except asyncio.CancelledError:
            self._end([job], STOPPED)
        except Exception as error:
            self._end([job], error)
        finally:
            self._waits_no_longer(job)
            del self.calls[job]

    async def _decode(self, job: Job) -> None:
        from ray.exceptions import RayError, RayTaskError
        from ray.serve.exceptions import RayServeException

        told, over = Told(), False
        for _ in range(LOST):
            told.rewind()
            answer = self.handle.remote(job.request, job.ids, job.width)
            try:
                async for events, seen in answer:
                    for name, value in seen:
                        self.observe(name, value)
                    for event in filter(None, map(told.new, events)):
                        over = last(event)
                        self._pass(job, event)
                    if over:
                        return
            except RayTaskError:  # the replica lives, its code failed
                raise
            except (RayError, RayServeException):  # the replica is gone
                self.observe("again", 1)
            finally:
                if not over:
                    with suppress(Exception):
                        answer.cancel()
        raise Refused(503, f"{LOST} replicas died over this request", "server_error", code="replicas_lost")

    def _pass(self, job: Job, event: Event) -> None:
        """Tell an event, with times by this process's clock."""
        if "begun" in event:
            if self._waits_no_longer(job):  # no, where it is asked again
                self._begin(job)
            return
        if "choices" in event:
            took = time.monotonic() - job.begun
            event = {**event, "waited": job.begun - job.arrived, "decoded": took}
            self.observe("decoded", took)
        job.tell(event)

    def _waits_no_longer(self, job: Job) -> bool:
        """Did it wait until now?"""
        with self.wake:
            if waited := job in self.waiting:
                self.waiting.remove(job)
        self.observe("waiting", len(self.waiting))
        return waited


class Told:
    """What a client has been told: text and pieces of a trace, by choice. Another replica's events pass only behind that."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Any] = {}
        self.rewind()

    def rewind(self) -> None:
        self.at: Counter[tuple[str, int]] = Counter()

    def new(self, event: Event) -> Event | None:
        """What is new in an event, None if nothing is."""
        kind = "delta" if "delta" in event else "piece" if "piece" in event else ""
        if not kind:
            if "choices" in event and any(self.at[key] < len(known) for key, known in self.known.items()):
                raise differs()
            return event
        said = event["delta"] if kind == "delta" else [written(event["piece"])]
        key = kind, event["choice"]
        known = self.known.setdefault(key, said[:0])
        again = known[self.at[key] : self.at[key] + len(said)]
        if said[: len(again)] != again:
            raise differs()
        self.at[key] += len(said)
        self.known[key] += said[len(again) :]
        if len(said) == len(again):
            return None
        return {**event, "delta": said[len(again) :]} if kind == "delta" else event


def differs() -> Refused:
    said = "the replica that began this answer died, and another's differs from it by rounding: ask again"
    return Refused(503, said, "server_error", code="replicas_differ")


def written(piece: Mapping[str, Any]) -> Any:
    """What a piece of a trace writes. Its times and confidences are another replica's own."""
    step = piece.get("step")
    return step and [step.get(name) for name in ("guess", "chosen", "reopened")]


def last(event: Event) -> bool:
    return "choices" in event or "error" in event


def sendable(event: Event) -> Event:
    """An event for another process: not every exception gets there."""
    if error := event.get("error"):
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return {"error": RuntimeError(f"{type(error).__name__}: {error}")}
    return event


@contextmanager
def replicas(
    loading: Mapping[str, Any], count: int, address: str | None = None, limits: Limits | None = None, name: str = "0"
) -> Iterator[Replicas]:
    """An engine over `count` replicas of the model that `loading` loads; `address` and the rest as for Cluster. `name` tells servers
    of one machine apart: what a server that was killed has left on a cluster is replaced by the next of that name."""
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's default is 15: other work would come first
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # or a call that comes after the end would start another Ray
    try:
        ray()
        from ray import serve
    except (ImportError, UserError):
        raise UserError('--replicas needs Ray Serve: pip install "unmask[replicas]"') from None
    logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
    limits, name = limits or Limits(), f"unmask-{socket.gethostname()}-{name}"
    with Cluster(loading, count, address, flag="--replicas") as cluster:
        cluster.carry()
        quiet = {"log_level": "ERROR", "enable_access_log": False}
        serve.start(proxy_location="Disabled", logging_config=quiet)
        deployment: Any = serve.deployment(
            Replica, name="replica", num_replicas=count, ray_actor_options=cluster.needs,
            max_ongoing_requests=2 * limits.batch,  # half of them wait there, so that a replica never waits for Ray Serve
            health_check_period_s=2, graceful_shutdown_timeout_s=2, max_constructor_retry_count=1, logging_config=quiet,
        )  # fmt: skip
        replica = deployment.bind(cluster.loading, cluster.threads, fingerprint(cluster.model), limits)
        try:
            yield Replicas(cluster.model, started(serve, replica, name).options(stream=True), limits)
        finally:
            if address:  # a Ray of our own ends with us
                with suppress(Exception):
                    serve.delete(name)


def started(serve: Any, replica: Any, name: str) -> Any:
    """A handle, as soon as every replica has loaded the model."""
    try:
        return serve.run(replica, name=name, route_prefix=None)
    except RuntimeError as error:
        (deployment,) = serve.status().applications[name].deployments.values()
        why = (deployment.message or str(error)).strip().splitlines()[-1]
        raise UserError(why.partition("UserError: ")[2] or f"no replica could start: {why:.200}") from None
