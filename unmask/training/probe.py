"""What a model knows, slot by slot: how often one word is right when nothing to the right of it is seen. B rows, L response slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import torch

from unmask.tasks import toy

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

    from unmask.models.layers import Backbone
    from unmask.models.loading import Ours

PROBES = ("copied", "first", "later", "chain", "anchored", "direct", "glance")


def probe(
    module: Ours,
    tokenizer: PreTrainedTokenizerBase,
    worlds: Sequence[str],
    split: str,
    count: int,
    length: int,
    kinds: Iterable[str] = PROBES,
) -> dict[str, dict[str, float]]:
    """How often one slot is right when the model sees nothing to the right of the slot it is asked about.

    copied: the last operation of the chain, with the true text before it. first, later: the first and the last result,
    likewise. chain: the answer after the true chain. anchored: the same, with the answer 20 slots before the end and
    masks in between. direct: the answer alone at the start of the response. glance: as anchored, but with no chain at all.
    For an answer, the likeliest of the possible ones counts: a colon before it ("The answer is: C") is wording.

    In a world asked for the answer first, "The answer is" opens every response and the answer behind it is hidden. There
    copied, first and later see nothing but that and the text before them; chain is the front answer with the true chain
    behind it; anchored the same, with masks behind the chain up to a "." 8 slots before the end; direct the front answer
    with nothing behind it; glance the same, with that ".".
    """
    mask, found = module.config.mask_token_id, {}
    for world in worlds:
        asked = toy.questions(world, split, count)
        chats = [tokenizer.apply_chat_template([{"role": "user", "content": q.prompt}], tokenize=True) for q in asked]
        prompts = [cast("BatchEncoding", chat)["input_ids"] for chat in chats]
        answers = [tokenizer.get_vocab()[answer] for answer in toy.WORLDS[world].answers]
        found[world] = {
            kind: _right(module, tokenizer, prompts, [_partial(q, kind, length) for q in asked], length, mask,
                         None if kind in ("copied", "first", "later") else answers)
            for kind in kinds
        }  # fmt: skip
    return found


def _partial(question: toy.Question, kind: str, length: int) -> tuple[dict[int, str], int, str]:
    """Words by slot, the slot asked about, and the word that belongs there."""
    answer, words = ["The", "answer", "is"], toy.words(toy.reasoning(question, "Let us see."))
    if toy.WORLDS[question.world].first:
        front, behind, last = dict(enumerate(answer)) | {4: "."}, dict(enumerate(words, 5)), {length - 8: "."}
        if kind in ("chain", "anchored", "direct", "glance"):
            shown = {
                "chain": front | behind,
                "anchored": front | behind | last,
                "direct": dict(enumerate(answer)),
                "glance": front | last,
            }
            return shown[kind], 3, question.answer
        given, slot, truth = _partial(replace(question, world=question.world.removesuffix(toy.SUFFIX)), kind, length)
        return front | {at + 5: word for at, word in given.items()}, slot + 5, truth
    end = length - 20
    if kind == "direct":
        return dict(enumerate(answer)), 3, question.answer
    if kind == "glance":
        return dict(enumerate(answer, end)), end + 3, question.answer
    if kind == "chain":
        return dict(enumerate(words + answer)), len(words) + 3, question.answer
    if kind == "anchored":
        return dict(enumerate(words)) | dict(enumerate(answer, end)), end + 3, question.answer
    if kind == "copied":
        slot = words.index(toy.ORDINALS[len(question.operations) - 1]) + 1
    else:
        results = [i + 1 for i, word in enumerate(words) if word == "makes"]
        slot = results[0 if kind == "first" else -1]
    return dict(enumerate(words[:slot])), slot, words[slot]


@torch.no_grad()
def _right(
    module: Backbone,
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    partial: list[tuple[dict[int, str], int, str]],
    length: int,
    mask: int,
    among: list[int] | None,
) -> float:
    known, width = tokenizer.get_vocab(), max(map(len, prompts))
    ids = torch.full((len(prompts), width + length), mask)
    valid = torch.ones_like(ids, dtype=torch.bool)
    for row, (prompt, (given, _, _)) in enumerate(zip(prompts, partial, strict=True)):
        ids[row, : width - len(prompt)], valid[row, : width - len(prompt)] = tokenizer.pad_token_id, False
        ids[row, width - len(prompt) : width] = torch.tensor(prompt)
        for slot, word in given.items():
            ids[row, width + slot] = known[word]
    slots = torch.tensor([slot for _, slot, _ in partial])
    truth = torch.tensor([known[word] for _, _, word in partial])
    hits = 0
    for rows in torch.arange(len(prompts)).split(100):
        hidden = module.hidden(ids[rows], valid[rows])
        logits = module.head(hidden[torch.arange(len(rows)), width + slots[rows]])
        best = torch.tensor(among)[logits[:, among].argmax(-1)] if among else logits.argmax(-1)
        hits += int((best == truth[rows]).sum())
    return hits / len(prompts)
