"""From logits to a few numbers per slot: which token, how sure. Logits exist only chunk by chunk, (n, V) at a time.

B rows, L response slots, V tokens, n slots asked about in one chunk.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
from torch import Tensor

from unmask.decoding.canvas import Canvas
from unmask.decoding.rules import TokenRule
from unmask.decoding.rules.tokens import Argmax

Logits = Callable[[slice], Tensor]  # a slice of the n slots asked about -> (n, V)
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
