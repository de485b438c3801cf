"""What a training step sees: prompts and responses, from a file or from the built-in tasks, masked at random.

B rows, P prompt slots (left-padded), L response slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from unmask.errors import UserError
from unmask.files import read_rows
from unmask.tasks import toy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from unmask.training.train import Recipe

UNKNOWN = 0.05  # the share of unknown tokens above which training is refused
Pairs = list[tuple[str, str]]  # (prompt, response)
Source = Callable[[int, float], tuple[Pairs, int]]  # (step, share of training done) -> rows and their response length


@dataclass(frozen=True)
class Batch:
    ids: Tensor  # (B, P + L) with masks
    valid: Tensor  # (B, P + L) bool, False on left padding
    target: Tensor  # (B, P + L)
    masked: Tensor  # (B, P + L) bool
    weight: Tensor  # (B, 1): 1 / t
    length: int  # L

    def to(self, device: torch.device | str) -> Batch:
        moved: dict[str, Any] = {name: x.to(device) for name, x in vars(self).items() if isinstance(x, Tensor)}
        return replace(self, **moved)


def encode(
    tokenizer: PreTrainedTokenizerBase, rows: Pairs, length: int, padding: list[int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Prompt ids, and response ids padded to L."""
    if getattr(tokenizer, "chat_template", None):
        asked = [
            tokenizer.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
            for p, _ in rows
        ]
    else:
        asked = [p for p, _ in rows]
    prompts = tokenizer(asked, add_special_tokens=False)["input_ids"]
    responses = tokenizer([r for _, r in rows], add_special_tokens=False)["input_ids"]
    cycle = padding[1:] or padding
    return prompts, [(r + padding[:1] + cycle * length)[:length] for r in responses]


def masked_batch(
    prompts: list[list[int]],
    responses: list[list[int]],
    mask_id: int,
    pad_id: int,
    least: float,
    generator: torch.Generator,
) -> Batch:
    width, rows = max(map(len, prompts)), len(prompts)
    target = torch.tensor([[pad_id] * (width - len(p)) + p + r for p, r in zip(prompts, responses, strict=True)])
    valid = torch.ones_like(target, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        valid[row, : width - len(prompt)] = False
    # t is stratified: one draw from each of B equal parts of (least, 1], which steadies the loss
    t = least + (1 - least) * ((torch.arange(rows) + torch.rand((), generator=generator)) / rows)[:, None]
    masked = torch.rand(target.shape, generator=generator) < t
    masked[:, :width] = False
    return Batch(target.masked_fill(masked, mask_id), valid, target, masked, 1 / t, target.shape[1] - width)


def read(file: str | Path) -> list[tuple[str, str, str]]:
    """(where, prompt, response) of every row of a JSONL file."""
    found = []
    for where, row in read_rows(file):
        for name in ("prompt", "response"):
            if not isinstance(row, dict) or not isinstance(row.get(name), str) or not row[name].strip():
                raise UserError(f'{where}: a row needs a "{name}", a text')
        found.append((where, row["prompt"], row["response"]))
    if not found:
        raise UserError(f"{file} holds no rows")
    return found


def jsonl(
    file: str | Path,
    tokenizer: PreTrainedTokenizerBase,
    recipe: Recipe,
    mask_id: int = -1,
    context: int | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Source:
    """Pairs {"prompt": ..., "response": ...}, in a new order each epoch; responses longer than L are reported and left out."""
    rows, long, unknown, tokens = [], [], 0, 0
    for where, prompt, response in read(file):
        ids = tokenizer(response, add_special_tokens=False)["input_ids"]
        if mask_id in ids:
            raise UserError(f"{where}: the response holds the mask token, which is what training puts there itself")
        asked = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if context and len(asked) + recipe.length > context:
            raise UserError(
                f"{where}: prompt and response take more than the {context} tokens the model was made for; shorten it"
            )
        if len(ids) > recipe.length:
            long.append(where.rpartition(" ")[2])
            continue
        rows.append((prompt, response))
        unknown += sum(i == tokenizer.unk_token_id for i in (*asked, *ids))
        tokens += len(asked) + len(ids)
    if long:
        first = ", ".join(long[:10]) + (", ..." if len(long) > 10 else "")
        tell(
            f"{file}: {len(long)} of {len(long) + len(rows)} responses are longer than {recipe.length} tokens and left out (lines {first})"
        )
    if not rows:
        raise UserError(f"{file}: every response is longer than {recipe.length} tokens; give a greater --length")
    if tokenizer.unk_token_id is not None and unknown:
        share = f"{100 * unknown / tokens:.1f} % of the tokens in {file} are unknown to this tokenizer"
        if unknown > UNKNOWN * tokens:
            raise UserError(f"{share}; `unmask train --config new --vocab 4000` makes a tokenizer from your data")
        tell(f"{share}: the model cannot learn what they say")
    orders: dict[int, list[int]] = {}

    def source(step: int, done: float) -> tuple[Pairs, int]:
        picked = []
        for place in range(step * recipe.batch, (step + 1) * recipe.batch):
            epoch, at = divmod(place, len(rows))
            if epoch not in orders:
                orders[epoch] = Random(f"{recipe.seed}/{epoch}").sample(range(len(rows)), len(rows))
                orders.pop(epoch - 2, None)
            picked.append(rows[orders[epoch][at]])
        return picked, recipe.length

    return source


def toys(worlds: list[str], recipe: Recipe) -> Source:
    """The built-in tasks."""
    for world in worlds:
        if world not in toy.WORLDS:
            raise UserError(f"there is no built-in task {world!r}; there are {', '.join(toy.WORLDS)}")
    if recipe.length < toy.SHORTEST:
        raise UserError(
            f"the built-in tasks need --length {toy.SHORTEST} or more: their reasoning does not fit {recipe.length} tokens"
        )
    return lambda step, done: toy.examples(worlds, recipe.seed, step, done, recipe.batch, recipe.length)


def paddings(tokenizer: PreTrainedTokenizerBase, kind: str) -> list[int]:
    """The end-of-text id, and for rainbow padding the cycle that follows it."""
    if kind == "eot":
        return [tokenizer.eos_token_id]
    known = tokenizer.get_vocab()
    cycle = [known[f"<|pad_{k}|>"] for k in range(7) if f"<|pad_{k}|>" in known]
    if len(cycle) < 7:
        raise UserError("rainbow padding needs the tokens <|pad_0|> .. <|pad_6|> in the tokenizer")
    return [tokenizer.eos_token_id, *cycle]
