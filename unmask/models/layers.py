"""What LLaDA and Dream share: normalisation, rotation, attention, and K/V that can be kept and overwritten in place.

B rows, T tokens run now, N slots attended to, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Backbone(Protocol):
    """A module of ours, as denoisers see it: hidden states of a canvas, and logits of as many of them as are asked for."""

    shifted: bool  # position i predicts token i + 1 (Dream), not token i (LLaDA)

    def hidden(
        self, ids: Tensor, valid: Tensor | None = None, *, start: int = 0, kv: KV | None = None,
        positions: Tensor | None = None, sees: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """(B, T, d) of ids (B, T) at slots start .. start + T, or at `positions` (B, T); `valid` (B, N) hides left padding from
        all, `sees` (B, T, N) hides keys from each query its own; `kv` keeps keys and values."""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """Logits (n, V) of hidden states (n, d)."""
        ...

    @property
    def cost(self) -> Cost: ...


class RMSNorm(nn.Module):
    """x / rms(x) in float32, cast back, then times the weight in that dtype: the published order of casts."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class KV:
    """Keys and values of every layer over `slots` positions.

    A forward over [start, start + T), or over positions of each row's own, writes its slots and attends to all that were ever
    written. So one rule gives Fast-dLLM's prefix cache (run from the block on), its dual cache (run the block alone),
    LaViDa's prefix mode, and a cache that runs slots anywhere (Near). There is room for `rows`, or for those of the first
    forward; `running` are those that a forward is over, None for all.
    """

    def __init__(self, slots: int, rows: int | None = None):
        self.slots, self.rows = slots, rows
        self.running: Tensor | None = None
        self.filled = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, at: int | Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Overwrite slots at.., or the slots `at` (B, T), with k and v (B, H, T, D); return what to attend to, (B, H, N, D)
        each."""
        if layer not in self.layers:
            shape = (self.rows or len(k), k.shape[1], self.slots, k.shape[-1])
            self.layers[layer] = (k.new_zeros(shape), v.new_zeros(shape))
        rows = slice(None) if self.running is None else self.running
        end = at + k.shape[2] if isinstance(at, int) else self.slots
        self.filled = max(self.filled, end)
        for kept, new in zip(self.layers[layer], (k, v), strict=True):
            if isinstance(at, int):
                kept[rows, :, at:end] = new
            else:
                each = torch.arange(len(kept), device=at.device)[rows]
                kept.transpose(1, 2)[each[:, None], at] = new.transpose(1, 2)
        keys, values = self.layers[layer]
        return keys[rows, :, : self.filled], values[rows, :, : self.filled]

    def cut(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.rows = len(rows)
        self.layers = {layer: (k[rows], v[rows]) for layer, (k, v) in self.layers.items()}

    def resize(self, slots: int) -> None:
        """Room for another number of slots, added or cut at the end."""
        more = (0, 0, 0, slots - self.slots)
        self.slots = self.filled = slots
        self.layers = {layer: (F.pad(k, more), F.pad(v, more)) for layer, (k, v) in self.layers.items()}


@dataclass(frozen=True)
class Cost:
    """Multiplications of a module: `token` for each token that the body runs, `key` for each slot that such a token attends
    to, `slot` for each slot whose logits the head makes."""

    token: int
    key: int
    slot: int

    @classmethod
    def of(cls, blocks: Iterable[nn.Module], width: int, vocabulary: int) -> Cost:
        """Of blocks whose attention is `width` wide, and a head over `vocabulary` tokens."""
        blocks = list(blocks)
        linear = [part for block in blocks for part in block.modules() if isinstance(part, nn.Linear)]
        token = sum(part.in_features * part.out_features for part in linear)
        return cls(token, 2 * width * len(blocks), width * vocabulary)

    def __call__(self, tokens: Tensor, pairs: Tensor, slots: Tensor) -> Tensor:
        """For so many tokens run, pairs of a token and a slot it attends to, and slots read."""
        return self.token * tokens + self.key * pairs + self.slot * slots


def rotation(positions: Tensor, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos and sin of RoPE in float32 for positions (T,) or (B, T): (1 or B, 1, T, width)."""
    frequency = theta ** (-torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width)
    angles = positions.reshape(-1 if positions.dim() == 2 else 1, 1, positions.shape[-1], 1).float() * frequency
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotation of x (B, H, T, D), computed in the dtype of cos and sin, returned in the dtype of x."""
    wide = x.to(cos.dtype)
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None) -> Tensor:
    """Bidirectional attention of q (B, H, T, D) on k, v (B, Hkv, N, D); `valid` (B, N) hides keys from all, (B, T, N) from
    each query its own. Returns (B, T, H * D)."""
    mask = None if valid is None else valid[:, None, None, :] if valid.dim() == 2 else valid[:, None]
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=k.shape[1] != q.shape[1])
    return out.transpose(1, 2).flatten(2)


def heads(x: Tensor, width: int) -> Tensor:
    """(B, T, H * width) -> (B, H, T, width)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)
