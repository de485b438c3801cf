"""A Model is what the rest of the package sees: text to ids and back, the special ids, and a denoiser opened on a canvas."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unmask.decoding.canvas import Canvas, Vocab
from unmask.decoding.reading import Denoiser
from unmask.errors import UserError
from unmask.models.denoisers import Opens, chain
from unmask.plugins import code_hash

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import PreTrainedTokenizerBase

Messages = Sequence[dict[str, str]]
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Model:
    name: str
    module: nn.Module = field(repr=False)  # a Backbone, or any that was wrapped
    tokenizer: PreTrainedTokenizerBase = field(repr=False)
    vocab: Vocab
    shift: bool = False  # of a wrapped module; ours know their own
    path: Path | None = field(default=None, repr=False)  # the checkpoint's directory, if it has one
    adapter: Path | None = field(default=None, repr=False)  # the directory of the LoRA on it

    @property
    def device(self) -> torch.device:
        device = next(self.module.parameters()).device
        return (
            torch.device("cpu") if device.type == "meta" else device
        )  # an outline has no weights, but its canvases are real

    @property
    def context(self) -> int | None:
        """The longest prompt plus response it was made for."""
        config = getattr(self.module, "config", None)
        return getattr(config, "max_position_embeddings", None)

    @property
    def vocabulary(self) -> int:
        """How many token ids there are."""
        return getattr(getattr(self.module, "config", None), "vocab_size", None) or len(self.tokenizer)

    @property
    def length(self) -> int:
        """The response length to use when none is given."""
        return getattr(getattr(self.module, "config", None), "response_length", 256)

    def encode(
        self, prompt: str | Messages, system: str | None = None, raw: bool = False, images: Sequence[Image] = ()
    ) -> list[int]:
        """A prompt, or the messages of a conversation, as ids that end where the response begins; bos comes once."""
        if images:
            raise UserError(
                f"{self.name} cannot see pictures; LaViDa can: --model jacklishufan/lavida-llada-v1.0-instruct"
            )
        text = self.render(prompt, system, raw)
        if raw or not self.chats:
            return list(self.tokenizer(text)["input_ids"])
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system:
            messages = [{"role": "system", "content": system}, *messages]
        if any(self.spells(message["content"]) for message in messages):
            return self._split(text, messages)
        return self.tokens(text)

    def _split(self, text: str, messages: Messages) -> list[int]:
        """The ids of a conversation whose messages spell special tokens: only the template's own act as such."""
        marks = [
            f"\ue000{i}\ue001" for i in range(len(messages))
        ]  # they stand for the contents, so that the template shows
        shown = self.render([{**message, "content": mark} for message, mark in zip(messages, marks, strict=True)])
        for contents in ([m["content"] for m in messages], [m["content"].strip() for m in messages]):
            pieces = re.split("(\ue000[0-9]+\ue001)", shown)
            held = [contents[marks.index(piece)] if piece in marks else None for piece in pieces]
            if "".join(piece if own is None else own for piece, own in zip(pieces, held, strict=True)) == text:
                ids = [
                    self.tokens(p) if own is None else self.literal(own) for p, own in zip(pieces, held, strict=True)
                ]
                return [token for piece in ids for token in piece]
        raise UserError(
            f"the prompt spells a special token, and the chat template of {self.name} cannot be told from it: leave it out"
        )

    @cached_property
    def specials(self) -> dict[str, int]:
        """The special tokens by their text."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        found = {token.content: i for i, token in added.items() if token.special}
        named = {self.tokenizer.decode([i]): i for i in (self.vocab.mask_id, *self.vocab.eot_ids)}
        return {text: i for text, i in {**named, **found}.items() if text}

    def spells(self, text: str) -> bool:
        """Does the text spell a special token?"""
        return any(special in text for special in self.specials)

    def literal(self, text: str) -> list[int]:
        """The ids of a piece of text alone, in which nothing acts as a special token, though it may spell one."""
        if not self.spells(whole_text(text)):
            return self.tokens(text)
        ids = list(self._plain_tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"])
        if {self.vocab.mask_id, *self.vocab.eot_ids, *self.specials.values()} & set(ids) - {self._unknown}:
            raise UserError(
                f"the text spells a special token, which {self.name} cannot read as plain text: leave it out"
            )
        return ids

    @cached_property
    def _plain_tokenizer(self) -> PreTrainedTokenizerBase:
        return copy.deepcopy(self.tokenizer)  # of its own: the option is a state of the tokenizer, which threads share

    @property
    def _unknown(self) -> int | None:  # what stands for letters that the tokenizer does not have
        return getattr(self.tokenizer, "unk_token_id", None)

    @property
    def chats(self) -> bool:
        return bool(getattr(self.tokenizer, "chat_template", None))

    def render(self, prompt: str | Messages, system: str | None = None, raw: bool = False) -> str:
        """The text the model is given: the conversation in its chat template, or the prompt itself."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        for message in messages:
            if not isinstance(message, dict) or not all(
                isinstance(message.get(key), str) for key in ("role", "content")
            ):
                raise UserError(f'a message is {{"role": "user", "content": "text"}}; this is {message!r:.80}')
            if message["role"] not in ROLES:
                raise UserError(f"a role is {', '.join(ROLES)}, not {message['role']!r:.40}")
            whole_text(message["content"])
        if not messages or not messages[-1]["content"].strip():
            raise UserError("the prompt is empty")
        if raw or not self.chats:
            if not isinstance(prompt, str) or system:
                why = "raw text has" if raw else f"{self.name} has"
                raise UserError(f"{why} no chat template: give plain text, without messages or a system prompt")
            return prompt
        if system:
            messages = [{"role": "system", "content": whole_text(system)}, *messages]
        try:
            return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template is a program: whatever it does, the model's files are at fault
            why = f"{type(error).__name__}: {error}"
            raise UserError(f"the chat template of {self.name} fails ({why:.120}); mend it, or pass --raw") from error

    def tokens(self, text: str) -> list[int]:
        """The ids of a piece of text alone: nothing is added before or after it."""
        return list(self.tokenizer(whole_text(text), add_special_tokens=False)["input_ids"])

    def text(self, ids: Sequence[int] | Tensor) -> str:
        """Text without end-of-text and mask tokens; what follows an end-of-text token is kept."""
        drop = {self.vocab.mask_id, *self.vocab.eot_ids}
        kept = [i for i in (ids.tolist() if isinstance(ids, Tensor) else ids) if i not in drop]
        return str(self.tokenizer.decode(kept, skip_special_tokens=True))

    def denoiser(self, cfg: float = 0.0, cache: str | None = None, images: Sequence[Image] = ()) -> Opens:
        """What predicts. `images`: the pictures of every row that has any, one row after the other, as Pillow images."""
        return chain(self.module, cfg=cfg, cache=cache, shift=self.shift)

    def begin(self, canvas: Canvas, images: Sequence[Image] = ()) -> Denoiser:
        return self.denoiser(images=images).begin(canvas)

    @cached_property
    def weights_hash(self) -> str:
        """sha256 of the weight files, an adapter's and its scale among them, wherever they are; of a sample of every file beyond
        256 MB, which is quick and still tells files apart. Of a wrapped module, which has no files: all of its weights, and the
        code of its classes."""
        digest = hashlib.sha256()
        files = sorted(self.path.glob("*.safetensors")) if self.path else []
        files += sorted(self.adapter.glob("adapter_*")) if self.adapter else []  # weights and adapter_config.json
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name}:{size};".encode())
            with file.open("rb") as f:
                for start in [0] if size <= 2**28 else range(0, size, size // 64):
                    f.seek(start)
                    digest.update(f.read(size if size <= 2**28 else 2**20))
        if not files:
            digest.update(code_hash([type(module) for module in self.module.modules()]).encode())
            for name, value in self.module.state_dict().items():
                digest.update(f"{name}:{getattr(value, 'dtype', '')}:{list(getattr(value, 'shape', []))};".encode())
                digest.update(_bytes(value))
        return digest.hexdigest()


def _bytes(value: object) -> bytes | memoryview:
    """All of a tensor's numbers as they are; a module may keep other state, too."""
    if not isinstance(value, Tensor):
        return repr(value).encode()
    return value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data


def whole_text(text: object) -> str:
    """Text that can be encoded: a string without half a character in it."""
    if not isinstance(text, str):
        raise UserError(f"text is a string, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the text holds half a character (a lone surrogate at position {error.start}); it cannot be encoded"
        ) from None
    return text


def newlines(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The token that ends a line, if the tokenizer has one."""
    ids = tokenizer("\n", add_special_tokens=False)["input_ids"] if callable(tokenizer) else []
    return tuple(ids) if len(ids) == 1 and ids[0] != getattr(tokenizer, "unk_token_id", None) else ()


def wrap(
    module: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    mask_id: int,
    eot_ids: Sequence[int] = (),
    shift: bool = False,
    frequency: Tensor | None = None,
) -> Model:
    """Any module whose forward takes token ids (B, P + L), and an attention_mask if it has such a parameter, and returns logits
    (B, P + L, V): as a tensor, as the first of a tuple, or as `.logits`. `shift` when they are next-token aligned. `frequency`
    (V,) is what UNCODE needs."""
    return Model(
        type(module).__name__,
        module.eval(),
        tokenizer,
        Vocab(mask_id, tuple(eot_ids), frequency, newlines(tokenizer)),
        shift,
    )
