"""The canvas: the prompts of one batch, each followed by a response that is being filled in.

B rows, P prompt slots (left-padded to one width), L response slots. Frozen: every change returns a new canvas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from unmask.errors import UserError


@dataclass(frozen=True)
class Vocab:
    """What decoding must know about a model's tokens."""

    mask_id: int
    eot_ids: tuple[int, ...] = ()  # the first one is the paper's ∅
    frequency: Tensor | None = field(default=None, repr=False, compare=False)  # (V,) background frequency, for UNCODE
    newline_ids: tuple[int, ...] = ()  # where a line ends, for AdaBlock

    @property
    def pad_id(self) -> int:  # fills the places nobody looks at
        return self.eot_ids[0] if self.eot_ids else int(self.mask_id == 0)


@dataclass(frozen=True)
class Canvas:
    ids: Tensor  # (B, P + L)
    valid: Tensor  # (B, P + L) bool, False on left padding
    start: int  # P, where the response begins
    fixed: Tensor  # (B, L) bool: written before decoding (anchors, template, infilled text), never changed
    distance: Tensor  # (B, L) float: slots to the nearest anchor, inf where there is none
    settled: Tensor  # (B, L) float: score at commit (ReMDM reads it)
    when: Tensor  # (B, L) long: the forward of its row, counted from 0, that committed it; -1 for none
    vocab: Vocab
    memory: dict[str, Tensor] = field(default_factory=dict, repr=False)  # (B, ...): what rules keep between steps
    ragged: bool = False  # rows differ in length: shorter ones are padded on the right, fixed and not valid

    @classmethod
    def blank(cls, prompts: Sequence[Sequence[int]], length: int, vocab: Vocab, device: torch.device | str = "cpu") -> Canvas:  # fmt: skip
        """The prompts, each followed by L masks."""
        if length < 1:
            raise UserError(f"the response length must be at least 1, not {length}")
        if not prompts:
            raise UserError("there is no prompt to answer")
        if any(vocab.mask_id in prompt for prompt in prompts):
            raise UserError("a prompt holds the mask token; spans to fill belong in the response (see infill)")
        start, rows = max(map(len, prompts)), len(prompts)
        ids = torch.full((rows, start + length), vocab.mask_id)
        valid = torch.ones(rows, start + length, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            gap = start - len(prompt)
            ids[row, :start] = torch.tensor([vocab.pad_id] * gap + list(prompt), dtype=torch.long)
            valid[row, :gap] = False
        zero = torch.zeros(rows, length, device=device)
        return cls(ids.to(device), valid.to(device), start, zero.bool(), zero + torch.inf, zero, zero.long() - 1, vocab)

    @property
    def length(self) -> int:
        return self.ids.shape[1] - self.start

    @property
    def rows(self) -> int:
        return self.ids.shape[0]

    @property
    def response(self) -> Tensor:  # (B, L)
        return self.ids[:, self.start :]

    @property
    def masked(self) -> Tensor:  # (B, L) bool: the paper's M
        return self.response == self.vocab.mask_id

    @property
    def anchors(self) -> Tensor:  # (B, L) bool: the paper's A
        return self.distance == 0

    @property
    def real(self) -> Tensor:  # (B, L) bool: within the row's own length
        return self.valid[:, self.start :]

    def remember(self, memory: dict[str, Tensor]) -> Canvas:
        return replace(self, memory={**self.memory, **memory})

    def with_response(self, response: Tensor) -> Canvas:
        return replace(self, ids=torch.cat((self.ids[:, : self.start], response), dim=1))

    def fill(self, chosen: Tensor, tokens: Tensor, score: Tensor, when: Tensor) -> Canvas:
        """x_i <- x^0_i where chosen (B, L), in the forwards `when` (B,)."""
        filled = self.with_response(torch.where(chosen, tokens, self.response))
        settled = torch.where(chosen, score, self.settled)
        return replace(filled, settled=settled, when=torch.where(chosen, when[:, None], self.when))

    def clear(self, reopened: Tensor) -> Canvas:
        """Mask again the slots that are reopened (B, L)."""
        response = self.response.masked_fill(reopened, self.vocab.mask_id)
        return replace(self.with_response(response), when=self.when.masked_fill(reopened, -1))

    def pin(self, tokens: Sequence[int], at: int, *, anchor: bool = False) -> Canvas:
        """Write fixed tokens from slot `at` on (from the end if negative); an anchor also modulates."""
        first = at + self.length if at < 0 else at
        here = slice(first, first + len(tokens))
        if not tokens or self.vocab.mask_id in tokens:
            raise UserError("there is nothing to pin: an anchor has at least one token, and no mask among them")
        if not 0 <= first < self.length:
            raise UserError(f"position {at} is outside a response of {self.length} tokens")
        if here.stop > self.length:
            room = self.length - first
            raise UserError(f"an anchor of {len(tokens)} tokens does not fit the {room} slots from position {at} on")
        if bool(self.fixed[:, here].any()):
            raise UserError(f"slots {first} to {here.stop - 1} hold fixed text already; choose another position")
        response, fixed, distance = self.response.clone(), self.fixed.clone(), self.distance
        response[:, here] = torch.tensor(list(tokens), device=response.device)
        fixed[:, here] = True
        if anchor:
            slots = torch.arange(self.length, device=distance.device, dtype=distance.dtype)
            distance = torch.minimum(distance, torch.maximum(first - slots, slots - (here.stop - 1)).clamp(min=0))
        return replace(self.with_response(response), fixed=fixed, distance=distance)
