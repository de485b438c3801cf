"""Length: a response that grows or is cut while it is decoded. Revising rules, and what they stand on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from unmask.decoding.canvas import Canvas


def arranged(canvas: Canvas, rows: Sequence[Sequence[int]]) -> Canvas:
    """Responses of new lengths: rows[r][j] is the slot that comes to stand at j, or -1 for a new mask.

    Everything known of a slot moves with it. Shorter rows are padded on the right, where nothing is valid.
    """
    length, device = max(map(len, rows)), canvas.ids.device
    source = torch.tensor([[*row, *[-2] * (length - len(row))] for row in rows], device=device)  # (B, L'); -2: behind the end

    def moved(values: Tensor, new: Any, behind: Any) -> Tensor:  # (B, L, ...) -> (B, L', ...)
        at = source.view(*source.shape, *[1] * (values.dim() - 2))
        found = values.gather(1, at.clamp(min=0).expand(-1, -1, *values.shape[2:]))
        return found.masked_fill(at == -1, new).masked_fill(at == -2, behind)

    response = moved(canvas.response, canvas.vocab.mask_id, canvas.vocab.pad_id)
    slots = torch.arange(length, device=device)
    apart = (slots - slots[:, None]).abs().to(canvas.distance.dtype)  # (L', L')
    return replace(
        canvas,
        ids=torch.cat((canvas.ids[:, : canvas.start], response), 1),
        valid=torch.cat((canvas.valid[:, : canvas.start], source != -2), 1),
        fixed=moved(canvas.fixed, False, True),
        distance=apart.masked_fill(~moved(canvas.anchors, False, False)[:, None], torch.inf).amin(-1),
        settled=moved(canvas.settled, 0, 0),
        when=moved(canvas.when, -1, -1),
        memory={name: moved(kept, 0, 0) if kept.dim() > 1 else kept for name, kept in canvas.memory.items()},
        ragged=True,
    )
