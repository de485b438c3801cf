"""text -> canvas -> decode -> text: prompts in, Generations out, a batch at a time."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, overload

import torch

from unmask.decoding.algorithm import Strategy, decode
from unmask.decoding.canvas import Canvas
from unmask.decoding.methods import method as named
from unmask.decoding.reading import run
from unmask.decoding.rules.tokens import Argmax, Gumbel
from unmask.decoding.settings import longest
from unmask.errors import UserError
from unmask.models import Messages, Model
from unmask.models.images import opened

SPAN = re.compile(r"\[MASK(?:\*(\d+))?\]")  # [MASK] or [MASK*12] in infilled text


@dataclass(frozen=True)
class Generation:
    text: str
    tokens: list[int]  # the L response tokens, end-of-text included
    order: list[int]  # the forward that committed each of them; -1 for what was written before decoding
    forwards: int  # NFE
    tie_rate: float  # share of selections decided by a tie
    eot_ratio: float  # share of the L tokens that are the paper's ∅
    eot_ratio_all: float  # ... or any other end-of-text token
    steps: int  # T, the budget
    seed: int
    seconds: float  # of the batch it was decoded in, divided by its rows


@overload
def generate(model: Model, prompts: str, method: str | Strategy = ..., **options: Any) -> Generation: ...
@overload
def generate(
    model: Model, prompts: Sequence[str | Messages | Sequence[int]], method: str | Strategy = ..., **options: Any
) -> list[Generation]: ...
def generate(model: Model, prompts: Any, method: str | Strategy = "sacm", **options: Any) -> Any:
    """Decode prompts with a method: one prompt (a string, or the messages of one conversation) gives one Generation, a
    list of them a list. The options are those of `generations`."""
    if isinstance(prompts, str) or (prompts and all(isinstance(prompt, dict) for prompt in prompts)):
        if options.get("images") is not None:
            options["images"] = [options["images"]]
        return generate(model, [prompts], method, **options)[0]
    return list(generations(model, prompts, method, **options))


def generations(
    model: Model,
    prompts: Sequence[str | Messages | Sequence[int]],
    method: str | Strategy = "sacm",
    *,
    length: int | None = None,
    steps: int | None = None,
    system: str | None = None,
    raw: bool = False,
    infill: str | None = None,
    temperature: float | None = None,
    seed: int | Sequence[int] = 0,
    samples: int = 1,
    ban: Sequence[int] = (),
    stop: Sequence[str] = (),
    cfg: float = 0.0,
    cache: str | None = None,
    images: Sequence[Any] | None = None,
    batch: int = 8,
    watch: Sequence[Callable[..., None]] = (),
) -> Iterator[Generation]:
    """One Generation per prompt (`samples` of them each, one after the other), as the batches are done. A prompt is text,
    the messages of a conversation, or token ids as they are.

    length: L, response tokens. steps: T, by default the method's pace (L / 2 in the paper). system: a system prompt.
    raw: no chat template. infill: the response as text with spans to fill, "Dear [MASK*8], thank you": L is its length.
    temperature: 0 takes the likeliest token; None leaves it to the method. seed: sample number i is drawn with seed + i
    (or seed[i]). ban: token ids never written. stop: text is cut before the first of these strings. cfg: guidance scale.
    cache: "prefix" or "dual". images: for every prompt its picture or list of pictures (a path, bytes or a Pillow
    image) or None; the prompt says `<image>` where they go.
    """
    if samples < 1 or batch < 1:
        raise UserError(f"samples and batch are at least 1, not {samples} and {batch}")
    if infill is not None and length is not None:
        raise UserError("infilled text has a length of its own: give infill or length, not both")
    size = getattr(getattr(model.module, "config", None), "vocab_size", None) or len(model.tokenizer)
    if wrong := [i for i in ban if not 0 <= i < size]:
        raise UserError(f"there is no token {wrong[0]} to ban: the ids go from 0 to {size - 1}")
    strategy = named(method)
    strategy = replace(strategy, read=reading(strategy.read, temperature, ban))
    pictures = _pictures(images, len(_checked(prompts)))
    encoded = [
        ids
        for prompt, some in zip(prompts, pictures, strict=True)
        for ids in [_encoded(model, prompt, system, raw, some)] * samples
    ]
    pictures = [some for some in pictures for _ in range(samples)]
    pieces = _spans(model, infill) if infill is not None else None
    length = len(pieces) if pieces is not None else model.length if length is None else length
    seeds = [seed + i for i in range(len(encoded))] if isinstance(seed, int) else list(seed)
    if len(seeds) != len(encoded):
        raise UserError(f"{len(seeds)} seeds were given for {len(encoded)} samples")
    limit = longest(strategy, length)
    if model.context and (most := max(map(len, encoded)) + limit) > model.context:
        grows = "up to " if limit > length else ""
        raise UserError(f"prompt and response take {grows}{most} tokens; {model.name} was made for {model.context}")
    if steps is not None and steps > length:
        warnings.warn(f"{steps} steps for {length} tokens: at most {length} of them have something to do", stacklevel=3)
    for first in range(0, len(encoded), batch):
        some = slice(first, first + batch)
        begun = time.perf_counter()
        denoiser = model.denoiser(cfg, cache, [opened(picture) for row in pictures[some] for picture in row])
        canvas = Canvas.blank(encoded[some], length, model.vocab, model.device)
        if pieces is not None:
            canvas = _pinned(canvas, pieces)
        canvas = strategy.prepare(canvas, model.tokens)
        done = _run(model, denoiser, canvas, strategy, steps, seeds[some], watch)
        seconds = (time.perf_counter() - begun) / canvas.rows
        ids, when, real = done.canvas.response, done.canvas.when, done.canvas.real  # rows may have come to different lengths
        first_end = ((ids == (model.vocab.eot_ids or (-1,))[0]) & real).sum(1) / real.sum(1)
        any_end = (torch.isin(ids, torch.tensor(model.vocab.eot_ids, device=ids.device)) & real).sum(1) / real.sum(1)
        for row in range(canvas.rows):
            yield Generation(
                text=cut(model.text(ids[row][real[row]]), stop),
                tokens=ids[row][real[row]].tolist(), order=when[row][real[row]].tolist(),
                forwards=int(done.forwards[row]), tie_rate=int(done.ties[row]) / max(1, int(done.chosen[row])),
                eot_ratio=float(first_end[row]), eot_ratio_all=float(any_end[row]),
                steps=steps or max(1, round(strategy.pace * length)), seed=seeds[first + row], seconds=seconds,
            )  # fmt: skip


@torch.inference_mode()
def _run(model: Model, denoiser: Any, canvas: Canvas, strategy: Strategy, steps: int | None, seeds: list[int], watch: Any) -> Any:
    session = denoiser.begin(canvas)
    try:
        return run(decode(canvas, strategy, steps, seeds, watch), session)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise UserError(f"not enough memory for {canvas.rows} rows of {canvas.length} tokens; use a smaller batch or length") from error
    except RuntimeError as error:  # how a CPU says the same
        if "can't allocate memory" in str(error):
            raise UserError(f"not enough memory for {canvas.rows} rows of {canvas.length} tokens; use a smaller batch or length") from error
        raise


def reading(read: Any, temperature: float | None, ban: Sequence[int]) -> Any:
    """The method's token choice at another temperature and without the banned ids."""
    if temperature is not None and temperature < 0:
        raise UserError(f"the temperature must not be negative, and is {temperature}")
    if hasattr(read, "then"):
        return replace(read, then=reading(read.then, temperature, ban))
    if temperature is not None:
        read = Gumbel(read.forbid, temperature) if temperature else Argmax(read.forbid)
    return replace(read, forbid=(*read.forbid, *ban)) if ban else read


def _checked(prompts: Sequence[Any]) -> Sequence[Any]:
    if not prompts:
        raise UserError("there is no prompt")
    for i, prompt in enumerate(prompts):
        if not prompt or (isinstance(prompt, str) and not prompt.strip()):
            raise UserError("the prompt is empty" if len(prompts) == 1 else f"prompt {i + 1} of {len(prompts)} is empty")
    return prompts


def _encoded(model: Model, prompt: Any, system: str | None, raw: bool, pictures: list[Any]) -> list[int]:
    if isinstance(prompt, (list, tuple)) and isinstance(prompt[0], int):
        return list(prompt)
    return model.encode(prompt, system, raw, [opened(picture) for picture in pictures])


def _pictures(images: Sequence[Any] | None, prompts: int) -> list[list[Any]]:
    """Every prompt's pictures as a list; they are opened a batch at a time."""
    if images is None:
        return [[]] * prompts
    if len(images) != prompts:
        raise UserError(f"images has an entry for every prompt: {prompts}, not {len(images)}")
    return [[] if some is None else list(some) if isinstance(some, (list, tuple)) else [some] for some in images]


def _spans(model: Model, infill: str) -> list[int | None]:
    """Text with [MASK*n] spans as ids, None for a slot to fill."""
    out: list[int | None] = []
    end = 0
    for span in SPAN.finditer(infill):
        out += [*model.tokens(infill[end : span.start()]), *([None] * int(span[1] or 1))]
        end = span.end()
    out += model.tokens(infill[end:])
    if None not in out:
        raise UserError("the text to infill has no [MASK] or [MASK*n] span")
    return out


def _pinned(canvas: Canvas, pieces: list[int | None]) -> Canvas:
    slot = 0
    for given, run_ in groupby(pieces, key=lambda token: token is not None):
        tokens = list(run_)
        if given:
            canvas = canvas.pin([token for token in tokens if token is not None], slot)
        slot += len(tokens)
    return canvas


def cut(text: str, stop: Sequence[str]) -> str:
    ends = [at for s in stop if s and (at := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
