"""Asks answered: one forward for the asks of many decodes, each read by its own Reader; `run` drives one decode with one model.

B rows, L response slots, V tokens, n slots asked about in one chunk.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Denoiser, Logits, Prediction

Result = TypeVar("Result")
Ran = Callable[[int, int, int], None]
CHUNK = 2**24  # logits held at once, by all rows together: 64 MB in float32


def answer(denoiser: Denoiser, ask: Ask) -> Prediction:
    """One forward, read chunk by chunk: the peak does not grow with B x L x V."""
    (read,) = forward([(denoiser, ask)])
    return read()


def run(decoding: Generator[Ask, Prediction, Result], denoiser: Denoiser) -> Result:
    """Drive one decode to its end with one model."""
    try:
        ask = next(decoding)
        while True:
            ask = decoding.send(answer(denoiser, ask))
    except StopIteration as done:
        return done.value


# ---------------------------------------------------------------- one forward for the asks of many decodes


@dataclass
class Part:
    """What one forward is to answer: the logits of a session at n slots of an ask."""

    denoiser: Any
    ask: Ask
    rows: Tensor  # (n,)
    slots: Tensor  # (n,)
    logits: Logits | Any = None  # once the forward is made

    @property
    def shares(self) -> Any:
        """Equal for parts that one forward can answer; None for a session that keeps something, or must be alone."""
        return self.denoiser if getattr(self.denoiser, "stateless", False) and not self.ask.apart else None


def forward(asked: Sequence[tuple[Any, Ask]], ran: Ran | None = None) -> list[Callable[[], Prediction]]:
    """The forwards that many decodes ask for, as few as their sessions allow; each answer is read when it is called for.

    A session that keeps nothing shares a forward with its equals. What is wrong with one ask is raised where its answer is read.
    `ran` is told of every forward: its rows, their tokens with padding, and without.
    """
    readings = [_Reading(denoiser, ask) for denoiser, ask in asked]
    groups: dict[Any, list[Part]] = defaultdict(list)
    for reading in readings:
        for part in reading.parts:
            groups[id(part) if part.shares is None else part.shares].append(part)
    for group in groups.values():
        for parts in packed(group):
            _make(parts, ran)
    alike: dict[Any, list[_Reading]] = defaultdict(list)
    for reading in readings:
        alike[reading.alike].append(reading)
    for key, some in alike.items():
        if key is not None and len(some) > 1:
            shared = _Together(some)
            for reading in some:
                reading.together = shared
    return [reading.__call__ for reading in readings]


def packed(parts: Sequence[Part]) -> list[list[Part]]:
    """Parts that run together: where padding would be more than half, two forwards."""
    order = sorted(parts, key=lambda part: part.ask.canvas.ids.shape[1])
    sizes = [part.ask.canvas.ids.shape for part in order]
    filled, whole = sum(rows * width for rows, width in sizes), sum(rows for rows, _ in sizes) * sizes[-1][1]
    if 2 * filled >= whole:
        return [list(parts)]
    rows = [sum(n for n, _ in sizes[:i]) for i in range(len(sizes))]
    cut = max(range(1, len(sizes)), key=lambda i: rows[i] * (sizes[-1][1] - sizes[i - 1][1]))  # saves most
    return [*packed(order[:cut]), *packed(order[cut:])]


def _make(parts: list[Part], ran: Ran | None) -> None:
    """One forward for all. If it fails, it is run again in halves: asks are values, memory may do for half of them, and what is
    wrong with one is its own error."""
    try:
        if len(parts) == 1:
            (one,) = parts
            one.logits = one.denoiser.logits(one.ask, one.rows, one.slots)
        else:
            session, first = parts[0].denoiser, 0
            whole = getattr(session, "shared", session).logits(*joined(parts))
            for part in parts:
                if hasattr(part.denoiser, "count"):
                    part.denoiser.count(part.ask, part.rows)
                part.logits = _section(whole, first, len(part.rows))
                first += len(part.rows)
        if ran:
            sizes = [part.ask.canvas.ids.shape for part in parts]
            rows = sum(rows for rows, _ in sizes)
            ran(rows, rows * max(width for _, width in sizes), sum(rows * width for rows, width in sizes))
        return
    except Exception as error:
        if len(parts) == 1:
            parts[0].logits = _raising(error)
            return
    _make(parts[: len(parts) // 2], ran)
    _make(parts[len(parts) // 2 :], ran)


def joined(parts: Sequence[Part]) -> tuple[Ask, Tensor, Tensor]:
    """The parts as one ask, with its rows and slots. Canvases are padded on the right, where nothing is valid, so each row keeps
    the positions it has alone; prompts end where they will, so the whole row counts as response: slots are positions."""
    width, above = max(part.ask.canvas.ids.shape[1] for part in parts), 0
    rows: list[Tensor] = []
    slots: list[Tensor] = []
    for part in parts:
        rows.append(part.rows + above)
        slots.append(part.slots + part.ask.canvas.start)
        above += part.ask.canvas.rows
    canvas, first = parts[0].ask.canvas, parts[0].ask
    ids = torch.cat([_padded(part.ask.canvas.ids, width, canvas.vocab.pad_id) for part in parts])
    valid = torch.cat([_padded(part.ask.canvas.valid, width, False) for part in parts])
    none = torch.zeros_like(valid)
    whole = Canvas(ids, valid, 0, none, none.float(), none.float(), none.long(), canvas.vocab, ragged=True)
    return Ask(whole, slice(0, width), none, first.read, first.forward), torch.cat(rows), torch.cat(slots)


def _padded(values: Tensor, width: int, fill: Any) -> Tensor:
    return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=fill)


def _section(whole: Logits, first: int, size: int) -> Logits:
    return lambda part: whole(slice(first + part.start, first + min(part.stop, size)))


def _raising(error: Exception) -> Logits:
    def logits(part: slice) -> Tensor:
        raise error

    return logits


class _Reading:
    """One ask on its way: the parts of the forward it needs (guidance has two), and how its Prediction is read from them."""

    together: _Together | None = None
    rows: Tensor  # (n,)
    slots: Tensor  # (n,)

    def __init__(self, denoiser: Any, ask: Ask):
        self.denoiser, self.ask = denoiser, ask
        self.wrong: Exception | None = None
        try:
            self.reads = getattr(denoiser, "reads", None)
            self.where = self.reads(ask) if self.reads else ask.where
            self.rows, self.slots = self.where.nonzero(as_tuple=True)
            sessions = denoiser.parts(ask) if hasattr(denoiser, "parts") else [(denoiser, ask)]
            self.parts = [Part(session, one, self.rows, self.slots) for session, one in sessions]
        except Exception as error:
            self.wrong, self.parts = error, []

    def logits(self, part: slice) -> Tensor:
        each = [one.logits(part) for one in self.parts]
        return each[0] if len(each) == 1 else self.denoiser.combined(each)

    @property
    def alike(self) -> Any:
        """Equal for asks that one reading can serve: chosen alike, nothing drawn, nothing kept."""
        key = getattr(self.ask.read, "alike", None)
        return None if key is None or self.wrong else (key, self.ask.canvas.vocab)

    def __call__(self) -> Prediction:
        if self.wrong:
            raise self.wrong
        found = self.together.of(self) if self.together else chunks(self.logits, self.rows, self.slots, self.ask)
        whole: dict[str, Tensor] = {}
        for name, values in found.items():
            whole[name] = values.new_zeros((*self.where.shape, *values.shape[1:]))
            whole[name][self.rows, self.slots] = values
        seen = Prediction(**whole)
        return self.denoiser.complete(replace(seen, read=self.where)) if self.reads else seen


def chunks(logits: Logits, rows: Tensor, slots: Tensor, ask: Ask) -> dict[str, Tensor]:
    """What the ask's Reader says of n slots, (n, ...) each."""
    parts: list[dict[str, Tensor]] = []
    done, size = 0, max(1, CHUNK // 2**17)  # V is known from the first chunk on; until then, assume 131,072
    while done < len(rows):
        part = logits(slice(done, done + size))
        parts.append(ask.read(part, rows[done : done + size], slots[done : done + size], ask))
        done, size = done + size, max(1, CHUNK // part.shape[-1])
    return {name: torch.cat([part[name] for part in parts]) for name in (parts[0] if parts else ())}


class _Together:
    """Asks that read alike, read as one."""

    def __init__(self, readings: list[_Reading]):
        self.readings = readings
        self.found: dict[_Reading, dict[str, Tensor]] | None = None

    def of(self, reading: _Reading) -> dict[str, Tensor]:
        if self.found is None:
            self.found = {}
            with suppress(Exception):  # whose fault it is shows when each is read alone
                self._read()
        if reading in self.found:
            return self.found[reading]
        return chunks(reading.logits, reading.rows, reading.slots, reading.ask)

    def _read(self) -> None:
        sizes = [len(reading.rows) for reading in self.readings]
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]

        def logits(part: slice) -> Tensor:
            each = []
            for reading, size, end in zip(self.readings, sizes, ends, strict=True):
                first, last = max(0, part.start - end + size), min(size, part.stop - end + size)
                each += [reading.logits(slice(first, last))] if first < last else []
            return torch.cat(each)

        rows = torch.cat([reading.rows for reading in self.readings])
        slots = torch.cat([reading.slots for reading in self.readings])
        whole = chunks(logits, rows, slots, self.readings[0].ask)
        each = {name: values.split(sizes) for name, values in whole.items()}
        self.found = {r: {name: values[i] for name, values in each.items()} for i, r in enumerate(self.readings)}
