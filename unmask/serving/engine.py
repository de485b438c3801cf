"""The engine: one thread owns the model and every decode. Each round admits, makes one forward, takes a step of everyone.

B rows, P prompt tokens, L response tokens. A Request is plain data, and so is what `tell` is given about it, so that an engine
can also run in another process. `round` is all there is to it; `run` calls it as long as there is something to do.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from unmask.decoding import settings
from unmask.decoding.algorithm import Decoded, Strategy, decode
from unmask.decoding.canvas import Canvas
from unmask.decoding.rules.selection import Quota, tied
from unmask.decoding.rules.tokens import Argmax
from unmask.decoding.running import forward
from unmask.decoding.step import Step
from unmask.errors import TooLong
from unmask.generation import Decoding, Generation, Prompt, encode_prompts, open_canvas, read_canvas, response_length
from unmask.models.model import Model
from unmask.views.stream import Stream
from unmask.views.trace import Pieces

Tell = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Limits:
    """What the engine takes on."""

    batch: int = 16  # rows of a forward
    tokens: int = 16_384  # rows x widest of a forward
    queue: int = 64  # requests that may wait
    timeout: float = 600.0  # seconds a request may take, waiting included
    prompt: int = 8_192  # P
    length: int = 4_096  # L
    forwards: int = 8_192  # that a decode may take, by `strategy.bound`


class Refused(Exception):
    """No, with the status that says why."""

    def __init__(
        self, status: int, message: str, kind: str = "invalid_request_error", param: str | None = None, code: str | None = None
    ):  # fmt: skip
        super().__init__(status, message, kind, param, code)  # so that it can be sent to another process
        self.status, self.message, self.kind, self.param, self.code = status, message, kind, param, code

    def __str__(self) -> str:
        return self.message


STOPPED = Refused(503, "the server was stopped", "server_error", code="shutting_down")


@dataclass(frozen=True)
class Request:
    """What one client asks for: `decoding.samples` rows, drawn with seed, seed + 1, ..."""

    prompt: Prompt
    strategy: Strategy
    decoding: Decoding
    method: str = ""
    pictures: tuple[Any, ...] = ()  # Pillow's
    stream: bool = False
    top: int | None = None  # candidates told with every token; None: no logprobs
    trace: bool = False
    slots: int | None = None  # only so many slots of the response are the answer; the rest is given text (suffix)
    own: bool = False  # the client gave settings of its own
    id: str = ""


@dataclass(eq=False)
class Job:
    """A request on its way through the engine."""

    request: Request
    ids: list[int]  # of the prompt
    width: int  # P + L, as long as L may become
    tell: Tell = lambda event: None
    arrived: float = field(default_factory=time.monotonic)
    begun: float = 0.0
    gone: bool = False  # nobody waits for it any more
    streams: list[Stream] = field(default_factory=list)  # one for each row, where text is watched as it settles

    @property
    def rows(self) -> int:
        return self.request.decoding.samples

    @property
    def cost(self) -> int:  # rows of a forward: guidance is one more each
        return self.rows * (2 if self.request.decoding.cfg else 1)

    @property
    def like(self) -> Any:
        """Equal for jobs that go in step when they start together, so that they can be rows of one canvas; None: alone."""
        asked, how = self.request, self.request.decoding
        s = asked.strategy
        steady = s.block is None and type(s.select) is Quota and type(s.read) is Argmax
        if (
            not steady
            or s.remask
            or s.revise
            or s.focus
            or how.cache not in (None, "none")
            or how.infill
            or asked.pictures
            or asked.trace
        ):
            return None
        return repr(s), how.length, how.steps, how.cfg, asked.top


class Engine:
    def __init__(
        self, model: Model, limits: Limits | None = None, observe: Callable[[str, float], None] = lambda *_: None
    ):  # fmt: skip
        self.model, self.limits, self.observe = model, limits or Limits(), observe
        self.waiting: deque[Job] = deque()
        self.flights: list[Flight] = []
        self.wake = threading.Condition()
        self.closed = self.stopped = False
        self.thread = threading.Thread(target=self.run, name="engine", daemon=True)

    # ---------------------------------------------------------------- called by clients

    def prepare(self, request: Request, tell: Tell = lambda event: None) -> Job:
        """A job, if the request can be decoded at all: whatever is wrong with it is said here, before it waits for its turn."""
        how, strategy, limits = request.decoding, request.strategy, self.limits
        length = response_length(self.model, how)
        if length > limits.length:
            raise Refused(
                400,
                f"a response of {length} tokens is longer than the {limits.length} this server takes",
                param="max_tokens",
            )
        most, steps = settings.longest(strategy, length), strategy.steps(length, how.steps)
        if not 1 <= steps <= limits.forwards or (bound := strategy.bound(most, steps)) > limits.forwards:
            found = steps if steps > limits.forwards else bound
            raise Refused(
                400,
                f"this could take {found} forwards; this server makes {limits.forwards} at most: shorten it",
                param="unmask",
            )
        if how.samples > limits.batch or how.samples * (2 if how.cfg else 1) > limits.batch:
            raise Refused(400, f"n is {how.samples}, and this server decodes {limits.batch} rows at once", param="n")
        grows = any(hasattr(rule, "longest") for rule in strategy.revise)
        if grows and (request.trace or request.top is not None):
            what = "trace" if request.trace else "logprobs"
            raise Refused(400, f"this method changes its length while it decodes: leave out {what}", param=what)
        once = replace(how, samples=1)
        (ids,) = encode_prompts(self.model, [request.prompt], once, [list(request.pictures)], strategy)
        if len(ids) > limits.prompt:
            raise Refused(
                400,
                f"a prompt of {len(ids)} tokens is longer than the {limits.prompt} this server takes",
                param="messages",
                code=TooLong.code,
            )
        job = Job(request, ids, len(ids) + most, tell)
        if job.cost * job.width > limits.tokens:
            need = f"{job.cost} x {job.width}"
            raise Refused(
                400,
                f"this takes {need} tokens of a forward; this server runs {limits.tokens}: shorten it",
                param="max_tokens",
                code=TooLong.code,
            )
        settings.check(strategy, steps, open_canvas(self.model, [ids], strategy, how))
        return job

    def submit(self, job: Job) -> None:
        with self.wake:
            if self.closed:
                raise Refused(503, "the server is shutting down", "server_error", code="shutting_down")
            if len(self.waiting) >= self.limits.queue:
                raise Refused(
                    429,
                    f"{len(self.waiting)} requests are waiting; try again later",
                    "rate_limit_error",
                    code="queue_full",
                )
            self.waiting.append(job)
            self.wake.notify()

    def leave(self, job: Job) -> None:
        """Its client is gone: it takes no further step."""
        job.gone = True
        with self.wake:
            self.wake.notify()

    @property
    def overdue(self) -> Refused:
        said = f"the request took longer than {self.limits.timeout:g} s"
        return Refused(504, said, "timeout_error", code="timeout")

    @property
    def idle(self) -> bool:
        return not self.waiting and not self.flights

    def close(self) -> None:
        """Nothing new; what is here goes on."""
        self.closed = True

    def stop(self) -> None:
        """End at once: whoever still waits is told."""
        with self.wake:
            self.closed = self.stopped = True
            self.wake.notify()

    # ---------------------------------------------------------------- the engine's thread

    def run(self) -> None:
        with torch.inference_mode():
            while True:
                with self.wake:
                    while self.idle and not self.stopped:
                        self.wake.wait()
                if self.stopped:
                    break
                self.round()
        left = [*self.waiting, *(job for flight in self.flights for job in flight.jobs)]
        self._end(left, STOPPED)
        self.waiting.clear()
        self.flights.clear()

    def round(self) -> None:
        """Admit, one forward, one step for everyone."""
        self._drop()
        self._admit()
        self.observe("waiting", len(self.waiting))
        if not self.flights:
            return
        begun = time.monotonic()
        reads = forward([(flight.session, flight.ask) for flight in self.flights], self._ran)
        for flight, read in zip(list(self.flights), reads, strict=True):
            self._step(flight, read)
        self.observe("round", time.monotonic() - begun)

    def _ran(self, rows: int, cells: int, filled: int) -> None:
        self.observe("forward", rows)
        self.observe("padding", 1 - filled / cells)

    def _drop(self) -> None:
        """Clients that are gone, and requests whose time is up."""
        late = time.monotonic() - self.limits.timeout
        over = self.overdue
        with self.wake:
            for job in [job for job in self.waiting if job.gone or job.arrived < late]:
                self.waiting.remove(job)
                self._end([job], over)
        for flight in list(self.flights):
            for job in [job for job in flight.jobs if job.gone or job.arrived < late]:
                flight.drop(job)
                self._end([job], over)
            if not flight.jobs:
                flight.work.close()
                self.flights.remove(flight)

    def _end(self, jobs: Sequence[Job], error: Exception) -> None:
        for job in jobs:
            self.observe("cancelled", 1) if job.gone else job.tell({"error": error})

    def _admit(self) -> None:
        """In order of arrival, as long as the next one fits."""
        new: list[Job] = []
        live = [job for flight in self.flights for job in flight.jobs]
        rows, widest = sum(flight.cost for flight in self.flights), max((job.width for job in live), default=0)
        with self.wake:
            while self.waiting:
                job = self.waiting[0]
                rows, widest = rows + job.cost, max(widest, job.width)
                if rows > self.limits.batch or rows * widest > self.limits.tokens:
                    break
                new.append(self.waiting.popleft())
        for job in new:
            self._begin(job)
        groups: dict[Any, list[Job]] = {}
        for job in new:
            groups.setdefault(job.like or job, []).append(job)
        for jobs in groups.values():
            self._open(jobs)

    def _begin(self, job: Job) -> None:
        job.begun = time.monotonic()
        self.observe("waited", job.begun - job.arrived)

    def _open(self, jobs: list[Job]) -> None:
        try:
            flight = Flight(self.model, jobs)
            done = flight.start()
        except Exception as error:
            self._failed(jobs, error)
        else:
            self.flights += [] if done else [flight]

    def _step(self, flight: Flight, read: Callable[[], Any]) -> None:
        try:
            done = flight.step(read)
        except Exception as error:
            self.flights.remove(flight)
            self._failed(flight.jobs, error)
            return
        for job in done:
            flight.drop(job)
            self.observe("decoded", time.monotonic() - job.begun)
        if not flight.jobs:
            flight.work.close()
            self.flights.remove(flight)

    def _failed(self, jobs: list[Job], error: Exception) -> None:
        """An error ends the decode it belongs to. Rows of one canvas are decoded again, each alone, to see whose it is: a seed
        decides a decode, so what was sent stays true."""
        if len(jobs) > 1:
            for job in jobs:
                self._open([job])
        else:
            self._end(jobs, error)


class Flight:
    """A decode under way: the jobs whose rows share its canvas, its session, and what it asks now."""

    def __init__(self, model: Model, jobs: list[Job]):
        self.model, self.jobs, self.all = model, list(jobs), list(jobs)
        first, how = jobs[0].request, jobs[0].request.decoding
        self.strategy, self.how = first.strategy, how
        self.first = {job: sum(other.rows for other in jobs[:i]) for i, job in enumerate(jobs)}  # its first row
        self.seeds = [job.request.decoding.seed + i for job in jobs for i in range(job.rows)]  # type: ignore[operator]
        prompts = [job.ids for job in jobs for _ in range(job.rows)]
        canvas = open_canvas(model, prompts, first.strategy, how)
        self.dead = torch.zeros(canvas.rows, 1, dtype=torch.bool, device=canvas.ids.device)
        self.cost = sum(job.cost for job in jobs)
        pictures = [picture for job in jobs for _ in range(job.rows) for picture in job.request.pictures]
        self.session = model.denoiser(how.cfg, how.cache, pictures).begin(canvas)
        self.commits = Commits(canvas, first.top is not None, any(job.request.decoding.stop for job in jobs))
        self.pieces = (
            Pieces(model, lambda row, piece: jobs[0].tell({"piece": piece, "choice": row}), top=True)
            if first.trace
            else None
        )
        for job in jobs:
            if not job.streams and (job.request.stream or job.request.decoding.stop):
                job.streams = [
                    Stream(model, _Out(job, i), job.request.decoding.stop, self.first[job] + i, job.request.slots)
                    for i in range(job.rows)
                ]
            for i, stream in enumerate(job.streams):
                stream.row = self.first[job] + i
        streams = [stream for job in jobs for stream in job.streams]
        watch: list[Any] = [self.commits, *streams, *([self.pieces] if self.pieces else [])]
        self.work = decode(canvas, first.strategy, how.steps, self.seeds, watch)
        self.forwards = torch.zeros(canvas.rows, dtype=torch.long)

    def start(self) -> bool:
        """Has it come to its end at once? It has, where there is nothing to fill in."""
        try:
            self.ask = next(self.work)
        except StopIteration as end:
            return bool(self._told(self.jobs, end.value))
        return False

    def step(self, read: Callable[[], Any]) -> list[Job]:
        """The jobs that are done with this step; whoever waits for them is told."""
        self.forwards += self.ask.where.any(1).cpu()
        seen = read()
        if bool(self.dead.any()):  # rows nobody waits for were not run: they get something to end with
            where, end = self.dead & self.ask.where, self.ask.canvas.vocab.pad_id
            seen = replace(seen, token=seen.token.masked_fill(where, end), p=seen.p.masked_fill(where, 1.0))
        try:
            self.ask = self.work.send(seen)
        except StopIteration as end:
            return self._told(self.jobs, end.value)
        over = [job for job in self.jobs if job.streams and all(stream.ended for stream in job.streams)]
        if over:
            now = Decoded(self.commits.canvas, self.forwards, self.commits.ties, self.commits.chosen)
            self._told(over, now)
        if bool(self.dead.any()):
            self.ask = replace(self.ask, where=self.ask.where & ~self.dead)
        return over

    def drop(self, job: Job) -> None:
        self.jobs.remove(job)
        self.cost -= job.cost
        self.dead[self.first[job] : self.first[job] + job.rows] = True
        self.ask = replace(self.ask, where=self.ask.where & ~self.dead)

    def _told(self, jobs: Sequence[Job], done: Decoded) -> list[Job]:
        stop = replace(self.how, stop=())  # each job has its own
        made = read_canvas(self.model, done, self.strategy, stop, self.seeds, 0.0)
        for job in jobs:
            first = self.first[job]
            choices = [self._choice(job, i, made[first + i], first + i) for i in range(job.rows)]
            for stream, choice in zip(job.streams, choices, strict=bool(job.streams)):
                stream.end(choice["text"], "")
            for choice in choices if self.pieces else ():
                self.pieces.end(choice["index"], text=choice["text"], method=job.request.method)  # type: ignore[union-attr]
            now = time.monotonic()
            job.tell({
                "choices": choices, "prompt_tokens": len(job.ids), "waited": job.begun - job.arrived, "decoded": now - job.begun,
                "length": response_length(self.model, self.how), "steps": made[first].steps,
            })  # fmt: skip
        return list(jobs)

    def _choice(self, job: Job, index: int, made: Generation, row: int) -> dict[str, Any]:
        """One answer as plain data. What a stop string cut away does not count, nor does end-of-text."""
        model, asked = self.model, job.request
        mask = model.vocab.mask_id
        tokens = made.tokens[: asked.slots]
        tokens = tokens[: tokens.index(mask)] if mask in tokens else tokens  # ended early: what had settled
        whole = model.text(tokens)
        ends = [at for s in asked.decoding.stop if s and (at := whole.find(s)) >= 0]
        text = whole[: min(ends)] if ends else whole
        said = [i for i, token in enumerate(tokens) if token not in model.vocab.eot_ids]
        if ends:  # the fewest tokens that spell the text
            said = said[
                : bisect_left(range(len(said)), len(text), key=lambda k: len(model.text([tokens[i] for i in said[:k]])))
            ]
        closed = bool(tokens) and tokens[-1] in model.vocab.eot_ids
        return {
            "index": index, "text": text, "tokens": tokens, "count": len(said), "finish": "stop" if ends or closed else "length",
            "logprobs": self.commits.told(model, row, tokens, said, asked.top) if asked.top is not None else None,
            "seed": made.seed, "forwards": made.forwards, "eot_ratio": made.eot_ratio, "tie_rate": made.tie_rate,
        }  # fmt: skip


@dataclass(frozen=True)
class _Out:
    """Where a row's settled text goes."""

    job: Job
    row: int

    def write(self, text: str) -> None:
        if text and self.job.request.stream:
            self.job.tell({"delta": text, "choice": self.row})

    def flush(self) -> None: ...


class Commits:
    """Watches what was committed: the canvas, ties, and where asked for the probability of every token when it was written."""

    def __init__(self, canvas: Canvas, top: bool, counted: bool):
        self.canvas, self.needs, self.counted = canvas, frozenset({"top"} if top else ()), counted
        self.top: tuple[Tensor, ...] | Any = None
        self.ties = self.chosen = torch.zeros(canvas.rows, device=canvas.ids.device)

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        self.canvas = step.after
        if self.counted:  # a decode that is ended by a stop string returns nothing
            self.ties, self.chosen = self.ties + tied(step, score, chosen), self.chosen + chosen.sum(1)
        if self.needs:
            seen = step.seen
            here = chosen | ((step.after.response != step.canvas.response) & ~step.after.masked)  # revised ones, too
            p, ids, best = self.top or (seen.p.new_ones(seen.p.shape), seen.top_ids, seen.top_p)
            self.top = (
                seen.p.where(here, p),
                seen.top_ids.where(here[..., None], ids),
                seen.top_p.where(here[..., None], best),
            )

    def told(self, model: Model, row: int, tokens: list[int], said: list[int], top: int) -> list[dict[str, Any]]:
        """The tokens that were said, each with its log probability and that of its rivals; given ones are certain."""
        if self.top is None:  # nothing was decoded: all of it was given
            self.top = (torch.ones(self.canvas.response.shape), *[torch.zeros(*self.canvas.response.shape, 0)] * 2)
        p, ids, best = (
            part[row].clamp(min=1e-45).log().tolist() if part.is_floating_point() else part[row].tolist()
            for part in self.top
        )
        fixed = self.canvas.fixed[row].tolist()
        return [
            {
                "token": model.tokenizer.decode([tokens[i]]), "logprob": 0.0 if fixed[i] else p[i],
                "top": [] if fixed[i] else [(model.tokenizer.decode([n]), q) for n, q in zip(ids[i][:top], best[i][:top], strict=True)],
            }
            for i in said
        ]  # fmt: skip
