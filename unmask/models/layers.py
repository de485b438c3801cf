"""What LLaDA and Dream share: normalisation, rotation, attention, and K/V that can be kept and overwritten in place.

B rows, T tokens run now, N slots attended to, H heads, D head width.
"""

from __future__ import annotations

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

    A forward over [start, start + T) writes its own slots and attends to all that were ever written, so one rule gives
    Fast-dLLM's prefix cache (run from the block on), its dual cache (run the block alone) and LaViDa's prefix mode.
    """

    def __init__(self, slots: int):
        self.slots = slots
        self.filled = 0
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, start: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Overwrite slots start.. with k and v (B, H, T, D); return what to attend to, (B, H, N, D) each."""
        if layer not in self.layers:
            shape = (*k.shape[:2], self.slots, k.shape[-1])
            self.layers[layer] = (k.new_empty(shape), v.new_empty(shape))
        end = start + k.shape[2]
        self.filled = max(self.filled, end)
        for kept, new in zip(self.layers[layer], (k, v), strict=True):
            kept[:, :, start:end] = new
        keys, values = self.layers[layer]
        return keys[:, :, : self.filled], values[:, :, : self.filled]


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
