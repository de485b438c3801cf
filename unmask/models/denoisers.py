"""Whatever makes logits: a module opened on a canvas, and wrappers around that (guidance, K/V caches).

B rows, P prompt slots, L response slots, d hidden width, V tokens, n slots asked about. `begin(canvas)` opens a session,
one per decode, so that nothing is shared by accident; its `logits(ask, rows, slots)` makes one forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, ClassVar, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unmask.decoding import settings
from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Denoiser, Logits, Prediction
from unmask.errors import UserError
from unmask.models.layers import KV, Backbone

if TYPE_CHECKING:
    from typing_extensions import TypeIs


class Opens(Protocol):
    def begin(self, canvas: Canvas) -> Denoiser: ...


class Tally:
    """What a session has run, row by row, (B,) each: tokens, pairs of a token and a slot it attends to, and slots read.
    Padding is not counted."""

    def __init__(self, canvas: Canvas):
        self.tokens, self.pairs, self.slots = torch.zeros(3, canvas.rows, dtype=torch.long, device=canvas.ids.device)

    def ran(self, rows: Tensor, tokens: Tensor, keys: Tensor) -> None:
        """So many tokens in each of these rows, and the slots they attended to, (n,) each."""
        self.tokens[rows] += tokens
        self.pairs[rows] += tokens * keys

    def read(self, rows: Tensor) -> None:
        """A slot in each of these rows, which may repeat."""
        self.slots += torch.bincount(rows, minlength=len(self.slots))

    def __add__(self, other: Tally) -> Tally:
        both = copy(self)
        both.tokens, both.pairs, both.slots = (
            self.tokens + other.tokens, self.pairs + other.pairs, self.slots + other.slots
        )  # fmt: skip
        return both


@dataclass(frozen=True)
class Plain:
    """A module of ours (`hidden`, `head`, `shifted`): one full bidirectional forward per ask, over the rows that ask."""

    module: Backbone = field(repr=False)
    tally: Tally | None = field(default=None, repr=False, compare=False)  # a session's
    stateless: ClassVar[bool] = True

    def begin(self, canvas: Canvas) -> Denoiser:
        return replace(self, tally=Tally(canvas))

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        if ask.apart:
            return LeaveOneOut(self.module, self.tally).logits(ask, rows, slots)
        ids, valid, at = ask.canvas.ids, ask.canvas.valid, ask.canvas.start + slots - int(self.module.shifted)
        live, row = rows.unique(return_inverse=True)
        self.count(ask, rows)
        if len(live) < len(ids) and getattr(self.module, "rowwise", True):  # rows that are done are not run again
            ids, valid, rows = ids[live], valid[live], row
        return head(self.module, self.module.hidden(ids, valid)[rows, at.clamp(min=0)])

    def count(self, ask: Ask, rows: Tensor) -> None:
        """What a forward for these rows runs, whether it was made for this decode alone or for many."""
        if self.tally:
            live = rows.unique()
            size = ask.canvas.valid[live].sum(1)
            self.tally.ran(live, size, size)
            self.tally.read(rows)

    @property
    def shared(self) -> Plain:
        """For the forward of many decodes, each of which counts its own part."""
        return replace(self, tally=None)


@dataclass(frozen=True)
class LeaveOneOut:
    """Settled slots of the window predicted as if each were masked, in the same forward (WINO).

    Behind the canvas stand shadows of the window's W slots: masks at the same positions. A canvas slot sees the canvas, a
    shadow every slot but its own and the other shadows; it answers for its slot where that is settled.
    """

    module: Backbone = field(repr=False)
    tally: Tally | None = field(default=None, repr=False, compare=False)

    def begin(self, canvas: Canvas) -> Denoiser:
        return replace(self, tally=Tally(canvas))

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        if self.module.shifted:
            raise UserError("verifying by leaving one out needs logits that are not shifted: LLaDA's, not Dream's")
        live, row = rows.unique(return_inverse=True)
        ids, valid, window = ask.canvas.ids[live], ask.canvas.valid[live], ask.window
        width, size = ids.shape[1], window.stop - window.start  # T, W
        own = torch.arange(window.start, window.stop, device=ids.device) + ask.canvas.start  # (W,)
        sees = torch.ones(width + size, width + size, dtype=torch.bool, device=ids.device)
        sees[:width, width:] = False
        sees[torch.arange(width, width + size, device=ids.device), own] = False
        both = F.pad(ids, (0, size), value=ask.canvas.vocab.mask_id)
        positions = torch.cat((torch.arange(width, device=ids.device), own)).expand(len(ids), -1)
        everyone = sees.expand(len(ids), -1, -1)
        hidden = self.module.hidden(both, F.pad(valid, (0, size), value=True), positions=positions, sees=everyone)
        if self.tally:
            run = valid.sum(1) + size
            self.tally.ran(live, run, run)
            self.tally.read(rows)
        masked = ask.canvas.masked[rows, slots]
        at = torch.where(masked, ask.canvas.start + slots, width + slots - window.start)
        return head(self.module, hidden[row, at])


@dataclass(frozen=True)
class Foreign:
    """Any module whose forward takes ids and returns logits (see `unmask.wrap`). Without an attention_mask it cannot be told
    what is padding, so rows of unequal length are run one by one."""

    module: nn.Module = field(repr=False)
    shift: bool = False
    stateless: ClassVar[bool] = True

    def begin(self, canvas: Canvas) -> Denoiser:
        return self

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        together(ask, "a wrapped module")
        ids, valid = ask.canvas.ids, ask.canvas.valid
        takes = signature(self.module.forward).parameters
        anything = any(p.kind is p.VAR_KEYWORD for p in takes.values())
        if anything or "attention_mask" in takes:
            whole = self._run(ids, anything or "input_ids" in takes, attention_mask=valid.long())
        elif bool(valid.all()):
            whole = self._run(ids, "input_ids" in takes)
        else:  # nobody asks about padding
            each = [self._run(ids[i : i + 1, v], "input_ids" in takes) for i, v in enumerate(valid)]
            whole = each[0].new_zeros(*ids.shape, each[0].shape[-1])
            for row, v, one in zip(whole, valid, each, strict=True):
                row[v] = one[0]
        at = (ask.canvas.start + slots - int(self.shift)).clamp(min=0)
        return lambda part: whole[rows[part], at[part]]

    def _run(self, ids: Tensor, named: bool, **mask: Tensor) -> Tensor:  # (B, P + L, V)
        made = self.module(input_ids=ids, **mask) if named else self.module(ids, **mask)
        logits = made[0] if isinstance(made, (tuple, list)) else getattr(made, "logits", made)
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
            found = f"a tensor {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            name = type(self.module).__name__
            raise UserError(f"{name} returns {found}; a wrapped module returns logits {(*ids.shape, 'vocabulary')}")
        return logits


@dataclass(frozen=True)
class Guided:
    """Classifier-free guidance: logits = un + (scale + 1) (cond - un), the unconditional canvas masking all that was given."""

    denoiser: Opens
    scale: float

    def begin(self, canvas: Canvas) -> Denoiser:
        return _Guiding(self.denoiser.begin(canvas), self.denoiser.begin(canvas), self.scale)


@dataclass(frozen=True)
class _Guiding:
    conditional: Denoiser
    unconditional: Denoiser
    scale: float

    @property
    def tally(self) -> Tally | None:
        """What both have run."""
        one, other = (getattr(session, "tally", None) for session in (self.conditional, self.unconditional))
        return one + other if one and other else None

    @property
    def reads(self) -> Callable[[Ask], Tensor] | None:
        return getattr(self.conditional, "reads", None)

    def complete(self, prediction: Prediction) -> Prediction:
        return self.conditional.complete(prediction)  # type: ignore[attr-defined]

    def given(self, canvas: Canvas) -> Tensor:  # (B, L) bool: what the unconditional canvas hides of the response
        return canvas.fixed

    def parts(self, ask: Ask) -> list[tuple[Denoiser, Ask]]:
        """The two forwards, which are one where the sessions keep nothing: see `running.forward`."""
        canvas, mask = ask.canvas, ask.canvas.vocab.mask_id
        blind = canvas.with_response(canvas.response.masked_fill(self.given(canvas), mask))
        blind.ids[:, : canvas.start] = mask
        return [(self.conditional, ask), (self.unconditional, replace(ask, canvas=blind))]

    def combined(self, logits: Sequence[Tensor]) -> Tensor:
        given, un = logits
        return un + (self.scale + 1) * (given - un)

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        given, free = (session.logits(one, rows, slots) for session, one in self.parts(ask))
        return lambda part: self.combined((given(part), free(part)))


@dataclass(frozen=True)
class PublishedGuided(Guided):
    """rho-EOS's guidance, for parity with its recordings only: whenever a row changes its length, all that is settled by then
    counts as given, decoded tokens too."""

    def begin(self, canvas: Canvas) -> Denoiser:
        return _Regiving(self.denoiser.begin(canvas), self.denoiser.begin(canvas), self.scale, [])


@dataclass(frozen=True)
class _Regiving(_Guiding):
    kept: list[tuple[Tensor, Tensor]]  # the last `valid` and what was given then

    def given(self, canvas: Canvas) -> Tensor:
        if not self.kept or self.kept[0][0] is not canvas.valid:
            self.kept[:] = [(canvas.valid, ~canvas.masked)]
        return self.kept[0][1]


@dataclass(frozen=True)
class Cached:
    """Fast-dLLM's caches around a module of ours: the first forward of a window is full and keeps every K and V; later
    ones run from the window on (prefix) or the window alone (dual) and reuse all other keys and values unchanged."""

    module: Backbone = field(repr=False)
    dual: bool = False

    def begin(self, canvas: Canvas) -> Denoiser:
        return _Caching(self.module, self.dual, canvas)


class _Caching:
    def __init__(self, module: Backbone, dual: bool, canvas: Canvas):
        self.module, self.dual, self.tally = module, dual, Tally(canvas)
        self.window: slice | None = None
        self.valid: Tensor | None = None
        self.kept = torch.zeros_like(canvas.fixed[:, 0])  # (B,) bool: the rows whose K and V are here
        self.left = torch.empty(0)  # (B, 1, d): what predicts the window's first slot where logits are shifted
        self.kinds: list[str] = []  # of the forwards made: full, suffix, block

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        canvas = ask.canvas
        together(ask, "a K/V cache")
        if len(slots) and not ask.window.start <= int(slots.min()) <= int(slots.max()) < ask.window.stop:
            raise UserError(
                "this method looks beyond the block, which a prefix or dual cache does not run: use cache=None"
            )
        asking = torch.zeros_like(self.kept).index_fill(0, rows, True)
        alive = asking | canvas.masked.any(1) | (not getattr(self.module, "rowwise", True))
        anew = ask.window != self.window or canvas.valid is not self.valid  # a new block, or rows of another length
        if anew or bool((asking & ~self.kept).any()):
            self.window, self.valid, self.kv, self.kept = ask.window, canvas.valid, KV(canvas.ids.shape[1]), alive
            start, end = 0, canvas.ids.shape[1]
            self.kinds.append("full")
        else:
            if bool((self.kept & ~alive).any()):  # rows that are done leave
                left = alive[self.kept].nonzero().squeeze(1)
                self.kv.cut(left)
                self.left, self.kept = self.left[left], self.kept & alive
            start = canvas.start + ask.window.start
            end = canvas.start + ask.window.stop if self.dual else canvas.ids.shape[1]
            self.kinds.append("block" if self.dual else "suffix")
        live = self.kept.nonzero().squeeze(1)
        ids, valid = (canvas.ids, canvas.valid) if len(live) == canvas.rows else (canvas.ids[live], canvas.valid[live])
        self.tally.ran(live, valid[:, start:end].sum(1), valid.sum(1))
        self.tally.read(rows)
        hidden = self.module.hidden(ids[:, start:end], valid, start=start, kv=self.kv)
        if start == 0:  # later forwards do not run it
            self.left = hidden[:, [max(0, canvas.start + ask.window.start - 1)]]
        if self.module.shifted:
            hidden = torch.cat((hidden[:, :1] if start == 0 else self.left, hidden[:, :-1]), dim=1)
        return head(self.module, hidden[self.kept.cumsum(0)[rows] - 1, canvas.start + slots - start])


@dataclass(frozen=True)
class PrefixLM:
    """LaViDa's prefix mode around a module of ours: the prompt is run once, alone, and its K and V are kept; every
    forward after that runs the response on top of them. The prompt never sees the response."""

    module: Backbone = field(repr=False)

    def begin(self, canvas: Canvas) -> Denoiser:
        return _Prefixed(self.module, canvas)


class _Prefixed:
    def __init__(self, module: Backbone, canvas: Canvas):
        self.module, self.tally = module, Tally(canvas)
        self.kv: KV | None = None

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        canvas, start = ask.canvas, ask.canvas.start
        together(ask, "the prefix-lm cache")
        if canvas.ragged:
            raise UserError("a response that changes its length cannot be run on the prefix-lm cache: use cache=None")
        everyone = torch.arange(canvas.rows, device=rows.device)
        if self.kv is None:
            self.kv = KV(canvas.ids.shape[1])
            prompt = self.module.hidden(canvas.ids[:, :start], canvas.valid[:, :start], kv=self.kv)
            self.left = prompt[:, -1:]  # predicts the first slot where logits are shifted
            size = canvas.valid[:, :start].sum(1)
            self.tally.ran(everyone, size, size)
        self.tally.ran(everyone, canvas.real.sum(1), canvas.valid.sum(1))
        self.tally.read(rows)
        hidden = self.module.hidden(canvas.response, canvas.valid, start=start, kv=self.kv)
        if self.module.shifted:
            hidden = torch.cat((self.left, hidden[:, :-1]), dim=1)
        return head(self.module, hidden[rows, slots])


def together(ask: Ask, what: str) -> None:
    if ask.apart:
        raise UserError(
            f"this method verifies by leaving one token out, which {what} cannot do: use a model of unmask's, without a cache"
        )


def head(module: Backbone, asked: Tensor) -> Logits:
    """Lazy logits of hidden states (n, d)."""
    return lambda part: module.head(asked[part])


def ours(module: nn.Module | Backbone) -> TypeIs[Backbone]:
    return all(hasattr(module, name) for name in ("hidden", "head", "shifted"))


CACHES = ("none", "prefix", "dual", "prefix-lm", "near")


def caching(cache: str | None) -> Callable[[Backbone], Opens] | None:
    """The cache of that name, to be put around a module; None for none. `near` takes settings: "near:best=4,near=6"."""
    from unmask.models.near import Near

    name, colon, given = cache.partition(":") if isinstance(cache, str) else (cache or "none", "", "")
    if name not in CACHES or (colon and name != "near"):
        raise UserError(f"the cache is {', '.join(CACHES[:-1])} or {CACHES[-1]}, not {cache!r:.60}")
    wanted = settings.parse(given.split(",")) if colon else {}
    if unknown := [key for key in wanted if key not in ("best", "near", "again", "refresh")]:
        raise UserError(f"the near cache has no setting {unknown[0]!r:.40}; it has best, near, again, refresh")
    Near(None, **wanted)  # type: ignore[arg-type]  # wrong settings are refused before there is a model
    kinds: dict[str, Callable[[Backbone], Opens]] = {
        "prefix": Cached, "dual": partial(Cached, dual=True), "prefix-lm": PrefixLM, "near": partial(Near, **wanted),
    }  # fmt: skip
    return kinds.get(name)


def chain(module: nn.Module | Backbone, *, cfg: float = 0.0, cache: str | None = None, shift: bool = False) -> Opens:
    """The denoiser a user asked for, as a chain of wrappers; its repr is part of what identifies a run."""
    kept = caching(cache)
    if ours(module):
        denoiser = kept(module) if kept else Plain(module)
    elif kept:
        raise UserError("a K/V cache needs a model that unmask loads itself; use cache=None with a wrapped module")
    else:
        denoiser = Foreign(module, shift)
    return Guided(denoiser, cfg) if cfg else denoiser
