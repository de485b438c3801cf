"""From logits to a few numbers per slot: which token, how sure. Logits exist only chunk by chunk, (n, V) at a time.

B rows, L response slots, V tokens, n slots asked about in one chunk.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.rules import TokenRule
from unmask.decoding.rules.tokens import Argmax

Result = TypeVar("Result")
Ran = Callable[[int, int, int], None]
Logits = Callable[[slice], Tensor]  # a slice of the n slots asked about -> (n, V)
CHUNK = 2**24  # logits held at once, by all rows together: 64 MB in float32
TOP = 5  # candidates kept where a watcher asks for them


@dataclass(frozen=True)
class Ask:
    """What a decode asks of the model: the prediction at the True slots of `where` (B, L), which lie within `window`
    unless a rule needs to look "beyond" it."""

    canvas: Canvas
    window: slice
    where: Tensor
    read: Reader
    forward: int  # which forward of the decode this is
    score: Tensor | None = (
        None  # (B, L) the last c~, where there was one; of no use to a row whose length has changed since
    )
    current: Tensor | None = None  # (B, L) the tokens that `Prediction.current` is about; None: those on the canvas

    @property
    def apart(self) -> bool:
        """Settled slots are to be predicted as if each were masked (WINO): see denoisers.LeaveOneOut."""
        return "apart" in getattr(self.read, "needs", ())


@dataclass(frozen=True)
class Prediction:
    """(B, L) each, 0 where nothing was asked; only what the rules and watchers need is filled in.

    `Tensor | Any`: None until somebody's `needs` name it, and a rule that named it need not check (`settings.told` does)."""

    token: Tensor | Any = None  # x^0
    p: Tensor | Any = None  # softmax probability of that token, [MASK] counted in the softmax
    margin: Tensor | Any = None  # p1 - p2 of the two likeliest tokens that can be written
    entropy: Tensor | Any = None  # in nats
    certainty: Tensor | Any = None  # 1 - entropy / log V
    eot: Tensor | Any = None  # total probability of the end-of-text tokens
    current: Tensor | Any = None  # probability of the token now in the slot
    raw: Tensor | Any = None  # p before the token rule adjusted the logits
    gap: Tensor | Any = None  # difference of the two largest logits among tokens that can be written
    divergence: Tensor | Any = None  # KL(p || the p read there before), in nats
    read: Tensor | Any = None  # (B, L) bool: slots this forward read, where a session answers fewer than were asked
    top_ids: Tensor | Any = None  # (B, L, TOP) best candidates
    top_p: Tensor | Any = None  # (B, L, TOP)

    def where(self, rows: Tensor, other: Prediction) -> Prediction:
        """The other prediction in `rows` (B, 1) bool, this one in the rest."""
        both = {f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        at = {2: rows, 3: rows[..., None]}
        return Prediction(
            **{k: torch.where(at[a.dim()], b, a) for k, (a, b) in both.items() if a is not None and b is not None}
        )


class Denoiser(Protocol):
    """M_theta opened on one canvas by `begin(canvas)`. `logits` makes one forward and returns them lazily:
    the callable it gives turns a slice of the asked slots (rows and slots, (n,) each, row by row) into (n, V).

    A session may answer fewer slots than were asked: it then has `reads(ask)`, the (B, L) slots that it will run, and
    `complete(prediction)`, which adds what it knows about the others. `Prediction.read` says which were read.

    A session that keeps nothing between forwards says `stateless`: it and its equals share a forward, see `forward`. One that
    is made of several has `parts(ask)`, the (session, ask) of each, and `combined(logits)`, one tensor from those of its parts."""

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits: ...


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


class Draws:
    """Every random number of a decode. Row r has its own generator, seeded with seed + r (or seed[r]), so that a batch
    draws what its rows alone would draw."""

    def __init__(self, seed: int | Sequence[int], canvas: Canvas):
        seeds = [seed + row for row in range(canvas.rows)] if isinstance(seed, int) else list(seed)
        device = "cpu" if canvas.ids.device.type == "mps" else canvas.ids.device  # mps has no float64
        self.rows = [torch.Generator(device).manual_seed(int(s)) for s in seeds]
        self.shared = torch.Generator(device).manual_seed(int(seeds[0]))
        self.kept: tuple[tuple[int, ...], Tensor] | None = None

    def uniform(self, rows: Tensor, width: int) -> Tensor:
        """(n, width) float64 in (0, 1) for the ascending row numbers `rows` (n,)."""
        found, counts = rows.unique_consecutive(return_counts=True)
        device, pieces = self.shared.device, []
        for r, n in zip(found.tolist(), counts.tolist(), strict=True):
            # On a CPU, drawing many at once gives the same numbers as one by one; elsewhere, draw slot by slot.
            each = [n] if device.type == "cpu" else [1] * n
            pieces += [torch.rand(k, width, dtype=torch.float64, generator=self.rows[r], device=device) for k in each]
        drawn = torch.cat(pieces) if pieces else torch.rand(0, width, dtype=torch.float64, device=device)
        return drawn if device == rows.device else drawn.float().to(rows.device)

    def whole(self, forward: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """One tensor for all rows from one generator, drawn once per forward, as the published code does."""
        if self.kept is None or self.kept[0] != (forward, *shape):
            noise = torch.rand(*shape, generator=self.shared, dtype=dtype, device=self.shared.device)
            self.kept = ((forward, *shape), noise)
        return self.kept[1]


class Kept:
    """A vector (V,) for every slot that can still be chosen: what reading keeps from one forward to the next.

    Only slots that are read are updated. A row whose length changes starts afresh: its slots are not where they were.
    """

    def __init__(self) -> None:
        self.vectors: dict[tuple[int, int], Tensor] = {}
        self.sizes: list[int] = []
        self.forward = -1

    def at(self, rows: Tensor, slots: Tensor, ask: Ask, like: Tensor) -> Tensor:
        """What is kept at these slots, (n, V) as `like`; 0 where nothing is."""
        if ask.forward != self.forward:
            masked, sizes = ask.canvas.masked.tolist(), ask.canvas.real.sum(1).tolist()
            same = [a == b for a, b in zip(sizes, self.sizes or sizes, strict=True)]
            self.vectors = {(r, i): kept for (r, i), kept in self.vectors.items() if same[r] and masked[r][i]}
            self.sizes, self.forward = sizes, ask.forward
        none = torch.zeros_like(like[:1]).squeeze(0)
        return torch.stack([self.vectors.get(key, none) for key in zip(rows.tolist(), slots.tolist(), strict=True)])

    def put(self, rows: Tensor, slots: Tensor, values: Tensor) -> None:
        self.vectors.update(zip(zip(rows.tolist(), slots.tolist(), strict=True), values, strict=True))


class Reader:
    """Reads one chunk of logits (n, V), which it may overwrite: the strategy's token choice and the numbers needed from it."""

    def __init__(self, choose: TokenRule, needs: frozenset[str], draws: Draws, steps: int = 1):
        self.choose, self.needs, self.draws, self.steps = choose, needs, draws, steps
        self.kept: dict[str, Kept] = defaultdict(Kept)

    @property
    def alike(self) -> Any:
        """What all of this reading depends on, if it draws nothing, keeps nothing and looks at no canvas; else None."""
        return (
            (self.choose, self.needs)
            if type(self.choose) is Argmax and not self.needs & {"divergence", "current"}
            else None
        )

    def __call__(self, logits: Tensor, rows: Tensor, slots: Tensor, ask: Ask) -> dict[str, Tensor]:
        vocab = ask.canvas.vocab
        logits = logits.float()
        if forbidden := self.choose.forbidden(vocab):
            logits[:, list(forbidden)] = -torch.inf
        before = logits.clone() if "raw" in self.needs else None
        logits = self.choose.adjust(logits, rows, slots, ask)
        log_z = logits.logsumexp(-1, keepdim=True)
        out: dict[str, Tensor] = {}
        if "divergence" in self.needs:
            p = (logits - log_z).exp()
            q = self.kept["p"].at(rows, slots, ask, p)
            self.kept["p"].put(rows, slots, p)
            out["divergence"] = (p * ((p + 1e-12).log() - (q + 1e-12).log())).sum(-1)
        if self.needs & {"entropy", "certainty"}:
            out["entropy"] = torch.special.entr((logits - log_z).exp_()).sum(-1)
            out["certainty"] = 1 - out["entropy"] / math.log(logits.shape[-1])
        if "eot" in self.needs:
            out["eot"] = (logits[:, list(vocab.eot_ids)] - log_z).exp().sum(-1)
        if "current" in self.needs:
            tokens = ask.canvas.response if ask.current is None else ask.current
            now = tokens[rows, slots][:, None]
            out["current"] = (logits.gather(-1, now) - log_z).exp().squeeze(-1)
        if "top" in self.needs:
            best, out["top_ids"] = logits.topk(min(TOP, logits.shape[-1]), dim=-1)
            out["top_p"] = (best - log_z).exp()
        logits[:, vocab.mask_id] = -torch.inf  # never written, but counted in the softmax
        if self.needs & {"margin", "gap"}:
            two = logits.topk(2, dim=-1).values
            best = (two - log_z).exp()
            out["margin"], out["gap"] = best[:, 0] - best[:, 1], two[:, 0] - two[:, 1]
        value, out["token"] = self.choose(logits, rows, slots, ask, self.draws)
        out["p"] = (value - log_z.squeeze(-1)).exp()
        if before is not None:
            out["raw"] = (
                (before.gather(-1, out["token"][:, None]) - before.logsumexp(-1, keepdim=True)).exp().squeeze(-1)
            )
        return out
