"""A K/V cache for decoding anywhere: of a row, only what changed, what is near that, and what comes next is run again.

B rows, P prompt slots, L response slots, N = P + L, d hidden width, n slots read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.reading import Ask, Denoiser, Prediction
from unmask.errors import UserError, whole
from unmask.models.denoisers import Logits, Plain, Tally, head, together
from unmask.models.layers import KV, Backbone

NEVER = -(2**40)
# For support, which decodes where text stands: the frontier is all that has to be run again.
FRONTIER = "near:best=2,near=4,again=2,refresh=0"


@dataclass(frozen=True)
class Near:
    """Around a module of ours: a row's first forward is full and keeps every K and V. Later ones run only

    - slots whose token changed within the last `again` forwards,
    - masked slots within `near` of those that changed in the last one,
    - the `best` masked slots by the last c~,
    - slots that are asked about and have no prediction yet,

    and everything in every `refresh`-th forward (0: never again). They attend to all slots. A slot that is not run keeps its
    K, its V and its prediction. A forward is one in which the row is asked about; its neighbours in the batch do not count.
    """

    module: Backbone = field(repr=False)
    best: int = 8
    near: int = 8
    again: int = 2
    refresh: int = 4

    def __post_init__(self) -> None:
        for name in ("best", "near", "again", "refresh"):
            object.__setattr__(self, name, whole(name, getattr(self, name), 0))
        if not self.best and not self.near:
            raise UserError("best and near are both 0: nothing would be predicted anew; give one of them at least 1")
        if not getattr(self.module, "rowwise", True):
            raise UserError("the near cache is for text: a model that sees pictures takes prefix-lm, prefix or dual")

    def begin(self, canvas: Canvas) -> Denoiser:
        if self.refresh == 1:  # every forward is full: there is nothing to keep
            return Plain(self.module).begin(canvas)
        return _Nearing(self, canvas)


class Plan(NamedTuple):
    """What one forward runs: made from an ask before anything is run, so that two sessions asked alike choose alike."""

    ask: Ask
    asking: Tensor  # (B,) bool
    full: Tensor  # (B,) bool: rows that are run as a whole
    changed: Tensor  # (B, L) bool: tokens that are not what this row's last forward saw
    run: Tensor  # (B, L) bool
    read: Tensor  # (B, L) bool


class _Nearing:
    def __init__(self, settings: Near, canvas: Canvas):
        self.settings, self.module, self.tally = settings, settings.module, Tally(canvas)
        self.open(canvas)

    def open(self, canvas: Canvas) -> None:
        """Nothing is known about any row."""
        self.valid, self.kv = canvas.valid, KV(canvas.ids.shape[1], canvas.rows)
        self.kept = torch.arange(canvas.rows, device=canvas.ids.device)  # the rows whose K and V are here
        self.turn = torch.zeros_like(self.kept)  # (B,) forwards of the row; at 0 it is run as a whole
        self.response = canvas.response  # (B, L) as each row's last forward saw it
        self.since = torch.full_like(canvas.when, NEVER)  # (B, L) the row's forward before which the token changed
        self.known = torch.zeros_like(canvas.fixed)  # (B, L) bool: there is a prediction
        self.prediction: Prediction | None = None
        self.plan: Plan | None = None

    def reads(self, ask: Ask) -> Tensor:
        return self.planned(ask).read

    def planned(self, ask: Ask) -> Plan:
        if self.plan is not None and self.plan.ask is ask:
            return self.plan
        together(ask, "the near cache")
        canvas, asking, settings = ask.canvas, ask.where.any(1), self.settings
        self.fit(canvas, asking)
        full = asking & ((self.turn % settings.refresh if settings.refresh else self.turn) == 0)
        changed = (canvas.response != self.response) & canvas.real & (asking & (self.turn > 0))[:, None]
        run = full[:, None].expand_as(changed)
        if not torch.equal(full, asking):
            waiting = canvas.masked & ~canvas.fixed  # in guidance's other canvas, too, which masks the fixed ones
            reach = min(settings.near, canvas.length)
            around = F.max_pool1d(changed.float(), 2 * reach + 1, stride=1, padding=reach).bool() & waiting
            recent = self.turn[:, None] - torch.where(changed, self.turn[:, None], self.since) < settings.again
            some = recent | around | (ask.where & (changed | ~self.known))
            if ask.score is not None:
                waiting = waiting & ask.where
                order = ask.score.masked_fill(~waiting, -torch.inf).sort(dim=1, descending=True, stable=True).indices
                some = some | (torch.zeros_like(some).scatter(1, order[:, : settings.best], True) & waiting)
            run = run | (some & canvas.real & asking[:, None])
        self.plan = Plan(ask, asking, full, changed, run, run & ask.where)
        return self.plan

    def fit(self, canvas: Canvas, asking: Tensor) -> None:
        """Rows of another length than before start afresh; the others keep what they know."""
        if bool((asking & ~torch.zeros_like(asking).index_fill(0, self.kept, True)).any()):
            self.open(canvas)  # a row that was done has been opened again
        if canvas.valid is self.valid:
            return
        other = canvas.real.sum(1, keepdim=True) != self.valid[:, canvas.start :].sum(1, keepdim=True)
        self.valid, self.turn = canvas.valid, self.turn.masked_fill(other.squeeze(1), 0)
        self.kv.resize(canvas.ids.shape[1])
        fitted = [_fitted(values, canvas.length) for values in (self.response, self.since, self.known)]
        self.response, self.since, self.known = fitted[0], fitted[1].masked_fill(other, NEVER), fitted[2] & ~other
        if self.prediction is not None:
            self.prediction = _each(self.prediction, lambda values: _fitted(values, canvas.length))

    def logits(self, ask: Ask, rows: Tensor, slots: Tensor) -> Logits:
        plan, canvas, shift = self.planned(ask), ask.canvas, int(self.module.shifted)
        alive = (plan.asking | (canvas.masked & ~canvas.fixed).any(1))[self.kept]
        if not bool(alive.all()):  # rows that are done leave
            self.kv.cut(alive.nonzero().squeeze(1))
            self.kept = self.kept[alive]
        at = torch.cat((plan.full[:, None].expand(-1, canvas.start), plan.run), 1)  # (B, N) bool
        if shift:  # a slot is predicted by its left neighbour
            at = at | F.pad(plan.read, (canvas.start, 1))[:, 1:]
        parts, mine = [], []
        for group in (plan.full, ~plan.full & at.any(1)):
            if len(live := group.nonzero().squeeze(1)):
                mine.append(group[rows].nonzero().squeeze(1))
                row, slot = torch.searchsorted(live, rows[mine[-1]]), canvas.start + slots[mine[-1]] - shift
                parts.append(self.run(canvas, live, at[live], row, slot.clamp(min=0)))
        self.tally.read(rows)
        self.since = torch.where(plan.changed, self.turn[:, None], self.since)
        self.known = (self.known & ~plan.changed) | plan.read
        self.response = torch.where(plan.asking[:, None], canvas.response, self.response)
        self.turn = self.turn + plan.asking
        both = len(parts) == 2
        return head(self.module, torch.cat(parts)[torch.cat(mine).argsort()] if both else parts[0] if parts else at)

    def run(self, canvas: Canvas, rows: Tensor, at: Tensor, row: Tensor, slot: Tensor) -> Tensor:
        """Run the slots `at` (n, N) of these rows (n,). Hidden states (m, d) at the m places (row, slot) among them."""
        ids, valid = (values if len(rows) == len(values) else values[rows] for values in (canvas.ids, canvas.valid))
        self.kv.running = None if len(rows) == len(self.kept) else torch.searchsorted(self.kept, rows)
        self.tally.ran(rows, (at & valid).sum(1), valid.sum(1))
        if bool(at.all()):
            return self.module.hidden(ids, valid, kv=self.kv)[row, slot]
        count = at.sum(1, keepdim=True)
        order = at.long().sort(dim=1, descending=True, stable=True).indices[:, : int(count.max())]
        positions = torch.where(torch.arange(order.shape[1], device=at.device) < count, order, order[:, :1])
        hidden = self.module.hidden(ids.gather(1, positions), valid, positions=positions, kv=self.kv)
        return hidden[row, at.cumsum(1)[row, slot] - 1]

    def complete(self, prediction: Prediction) -> Prediction:
        """What was read now, and what is known about the other slots asked."""
        assert self.plan is not None
        where, read = self.plan.ask.where, self.plan.read
        if self.prediction is None:
            self.prediction = prediction
        elif bool(read.any()):
            self.prediction = self.prediction.where(read, prediction)
        asked = _each(self.prediction, lambda values: _only(values, where))
        return replace(asked, read=read)


def _each(prediction: Prediction, change: Callable[[Tensor], Tensor]) -> Prediction:
    known = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    return Prediction(**{name: change(values) for name, values in known.items() if values is not None})


def _only(values: Tensor, where: Tensor) -> Tensor:
    return values.masked_fill(~where.view(*where.shape, *[1] * (values.dim() - 2)), 0)


def _fitted(values: Tensor, length: int) -> Tensor:
    """(B, L, ...) with L slots, cut or filled with 0 at the end."""
    return F.pad(values, (*[0, 0] * (values.dim() - 2), 0, length - values.shape[1]))
