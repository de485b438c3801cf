"""text -> canvas -> decode -> text: prompts in, Generations out, one batch at a time.

`generate` is the front door. Behind it are three parts that can be used alone: `open_canvas` (prompts -> canvas),
`decode_canvas` (run) and `read_canvas` (canvas -> Generations).
"""

from __future__ import annotations

import html
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeAlias, cast, overload

import torch

from unmask.decoding.algorithm import Decoded, Strategy, Watch, decode
from unmask.decoding.canvas import Canvas
from unmask.decoding.methods import method as named
from unmask.decoding.rules import TokenRule
from unmask.decoding.rules.readiness import Wide
from unmask.decoding.rules.selection import Quota
from unmask.decoding.rules.tokens import Argmax, Gumbel
from unmask.decoding.running import run
from unmask.decoding.settings import longest
from unmask.errors import TooLong, UserError, finite, whole
from unmask.models.denoisers import caching, ours
from unmask.models.images import Picture, opened
from unmask.models.layers import Cost
from unmask.models.model import Messages, Model

if TYPE_CHECKING:
    from PIL.Image import Image

Prompt = str | Messages | Sequence[int]
Images: TypeAlias = "Sequence[Picture | Sequence[Picture] | None]"  # of every prompt: one, several or none
SORTED = 16  # batches among which prompts are sorted by length
SPAN = re.compile(r"\[MASK(?:\*(\d+))?\]")  # [MASK] or [MASK*12] in infilled text


@dataclass(frozen=True)
class Decoding:
    """How to decode, whatever the method: one record for the command line, evaluation, traces and servers alike.

    What a method is made of (kappa, block, tau, ...) is in its Strategy; what the user asks of any method is here.
    """

    length: int | None = None  # L, response tokens; None: the task's, or the model's
    steps: int | None = None  # T; None: the method's pace (L / 2 in the paper)
    temperature: float | None = None  # 0 takes the likeliest token; None leaves it to the method
    seed: int | Sequence[int] = 0  # sample number i is drawn with seed + i, or with seed[i]
    cfg: float = 0.0  # guidance scale
    cache: str | None = None  # prefix, dual, prefix-lm or near, which takes settings: "near:best=4,near=6"
    batch: int = 8  # prompts decoded together
    raw: bool = False  # no chat template
    system: str | None = None  # a system prompt
    stop: Sequence[str] = ()  # the text is cut before the first of these strings
    ban: Sequence[int] = ()  # token ids that are never written
    infill: str | None = None  # the response as text with spans to fill: "Dear [MASK*8], thank you"; L is its length
    samples: int = 1  # per prompt

    def __post_init__(self) -> None:
        """Refuse what no model can do; numpy's numbers and any sequence become plain ones."""

        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        for name in ("length", "steps", "batch", "samples"):
            if getattr(self, name) is not None or name in ("batch", "samples"):
                put(name, whole(name, getattr(self, name), 1))
        for name in ("temperature", "cfg"):
            if getattr(self, name) is not None:
                put(name, finite(name, getattr(self, name)))
        one = isinstance(self.seed, (int, str)) or not hasattr(self.seed, "__iter__")
        put("seed", whole("seed", self.seed) if one else [whole("seed", seed) for seed in self.seed])  # type: ignore[union-attr]
        put("stop", (self.stop,) if isinstance(self.stop, str) else tuple(self.stop))
        put("ban", tuple(whole("ban", i) for i in self.ban))
        if self.infill is not None and self.length is not None:
            raise UserError("infilled text has a length of its own: give infill or length, not both")
        caching(self.cache)


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
    work: float | None = None  # its multiplications over those of a plain decode (see `plain_work`); None: not counted

    def _repr_html_(self) -> str:
        """In a notebook: the text, and its figures in a small table."""
        figures = {"tokens": len(self.tokens), "forwards": self.forwards, "EOT": f"{self.eot_ratio:.2f}",
                   "ties": f"{self.tie_rate:.2f}", "seconds": f"{self.seconds:.2f}",
                   **({} if self.work is None else {"work": f"{self.work:.2f}"})}  # fmt: skip
        head, body = (
            "".join(f"<{tag}>{x}</{tag}>" for x in row) for tag, row in (("th", figures), ("td", figures.values()))
        )
        text = f'<pre style="white-space: pre-wrap">{html.escape(self.text)}</pre>'
        return f"{text}<table><tr>{head}</tr><tr>{body}</tr></table>"


@overload
def generate(model: Model, prompts: str, method: str | Strategy = ..., **options: Any) -> Generation: ...
@overload
def generate(
    model: Model, prompts: Sequence[Prompt], method: str | Strategy = ..., **options: Any
) -> list[Generation]: ...
def generate(  # type: ignore[misc]  # the overloads say what comes back; the options are listed here
    model: Model,
    prompts: Prompt | Sequence[Prompt],
    method: str | Strategy = "sacm",
    *,
    length: int | None = None,
    steps: int | None = None,
    temperature: float | None = None,
    seed: int | Sequence[int] = 0,
    cfg: float = 0.0,
    cache: str | None = None,
    batch: int = 8,
    raw: bool = False,
    system: str | None = None,
    stop: str | Sequence[str] = (),
    ban: Sequence[int] = (),
    infill: str | None = None,
    samples: int = 1,
    images: Picture | Sequence[Picture] | Images | None = None,
    watch: Sequence[Watch] = (),
) -> Generation | list[Generation]:
    """Decode prompts with a method: one prompt (a string, or the messages of one conversation) gives one Generation, a
    list of them a list. A prompt is text, the messages of a conversation, or token ids.

    length: L, response tokens. steps: T, by default the method's pace (L / 2 in the paper). temperature: 0 takes the
    likeliest token; None leaves it to the method. seed: sample number i is drawn with seed + i (or seed[i]). cfg: guidance
    scale. cache: "prefix", "dual", "prefix-lm" or "near", which takes settings: "near:best=4,near=6". batch: prompts decoded
    together. raw: no chat template. system: a system prompt. stop: the text is cut before the first of these strings. ban:
    token ids that are never written. infill: the response as text with spans to fill, "Dear [MASK*8], thank you"; L is its
    length. samples: how many per prompt, one after the other. images: for every prompt its picture or list of pictures (a
    path, bytes or a Pillow image) or None; the prompt says `<image>` where they go. watch: callables given (step, score,
    chosen) after every forward that decodes.
    """
    decoding = Decoding(
        length, steps, temperature, seed, cfg, cache, batch, raw, system, stop, ban, infill, samples
    )  # in the order of its fields
    one = isinstance(prompts, str) or (
        isinstance(prompts, Sequence) and bool(prompts) and all(isinstance(prompt, dict) for prompt in prompts)
    )
    asked = cast(Sequence[Prompt], [prompts] if one else prompts)
    shown = cast("Images | None", [images] if one and images is not None else images)
    made = list(generations(model, asked, method, decoding, images=shown, watch=watch))
    return made[0] if one and samples == 1 else made


def generations(
    model: Model,
    prompts: Sequence[Prompt],
    method: str | Strategy = "sacm",
    decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    *,
    images: Images | None = None,
    watch: Sequence[Watch] = (),
) -> Iterator[Generation]:
    """One Generation per prompt and sample, in their order, as the batches are done.

    Prompts that come as a list are put into batches by their length, among 16 batches at a time, so that less is padded;
    with a watcher they stay in their order, as they do in a generator's.
    """
    strategy = strategy_for(model, method, decoding)
    sort = isinstance(prompts, (list, tuple)) and not watch
    prompts = list(prompts)  # generators, too
    pictures = _pictures(images, len(prompts))
    encoded = encode_prompts(model, prompts, decoding, pictures, strategy)
    pictures = [some for some in pictures for _ in range(decoding.samples)]
    seeds = _seeds(decoding.seed, len(encoded))
    made: dict[int, Generation] = {}
    told = 0
    for some in batches([len(ids) for ids in encoded], decoding.batch, sort):
        begun = time.perf_counter()
        shown = [opened(picture) for i in some for picture in pictures[i]]
        canvas = open_canvas(model, [encoded[i] for i in some], strategy, decoding)
        seed = [seeds[i] for i in some]
        done = decode_canvas(model, canvas, strategy, decoding, seed, shown, watch)
        seconds = (time.perf_counter() - begun) / canvas.rows
        made.update(zip(some, read_canvas(model, done, strategy, decoding, seed, seconds), strict=True))
        while told in made:
            yield made.pop(told)
            told += 1


def partition(sizes: Sequence[int], batch: int) -> list[list[int]]:
    """Rows of similar length together, always in the same batches, whatever was done before."""
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i], i))
    return [order[first : first + batch] for first in range(0, len(order), batch)]


def batches(sizes: Sequence[int], batch: int, sort: bool) -> Iterator[list[int]]:
    """The rows of every batch: in their order, or sorted by length among the rows of SORTED batches."""
    for first in range(0, len(sizes), SORTED * batch):
        some = sizes[first : first + SORTED * batch]
        found = partition(some if sort and len(some) > batch else [0] * len(some), batch)
        yield from ([first + i for i in rows] for rows in found)


# ---------------------------------------------------------------- prompts -> canvas


def strategy_for(model: Model, method: str | Strategy, decoding: Decoding) -> Strategy:
    """The method at the temperature asked for, without the banned tokens."""
    size = model.vocabulary
    if wrong := [i for i in decoding.ban if not 0 <= i < size]:
        raise UserError(f"there is no token {wrong[0]} to ban: the ids go from 0 to {size - 1}")
    strategy = named(method)
    return replace(strategy, read=reading(strategy.read, decoding.temperature, decoding.ban))


def reading(read: Any, temperature: float | None, ban: Sequence[int]) -> TokenRule:
    """A token rule at another temperature and without the banned ids."""
    if hasattr(read, "then"):
        return replace(read, then=reading(read.then, temperature, ban))
    if temperature is not None:
        read = Gumbel(read.forbid, temperature) if temperature else Argmax(read.forbid)
    return replace(read, forbid=(*read.forbid, *ban)) if ban else read


def encode_prompts(
    model: Model,
    prompts: Sequence[Prompt],
    decoding: Decoding,
    pictures: Sequence[Sequence[Picture]] | None = None,
    strategy: Strategy | None = None,
) -> list[list[int]]:
    """The token ids of every prompt, `samples` times each; what does not fit the model's context is refused here."""
    if not prompts:
        raise UserError("there is no prompt")
    length = response_length(model, decoding)
    most = longest(strategy, length) if strategy else length  # some methods let a response grow
    found = []
    for i, prompt in enumerate(prompts):
        which = "the prompt" if len(prompts) == 1 else f"prompt {i + 1} of {len(prompts)}"
        if hasattr(prompt, "tolist"):  # numpy's and torch's
            prompt = prompt.tolist()
        if not isinstance(prompt, (str, list, tuple)):
            raise UserError(f"{which} is text, messages or token ids, not {prompt!r:.60}")
        if not len(prompt) or (isinstance(prompt, str) and not prompt.strip()):
            raise UserError(f"{which} is empty")
        ids = _encoded(model, prompt, decoding, pictures[i] if pictures else ())
        if model.context and (need := len(ids) + most) > model.context:
            size = f"{'up to ' * (most > length)}{need} tokens with its response"
            raise TooLong(f"{which} takes {size}; {model.name} was made for {model.context}")
        found += [ids] * decoding.samples
    return found


def response_length(model: Model, decoding: Decoding) -> int:
    """L: that of the infilled text, else what was asked for, else the model's."""
    if decoding.infill is not None:
        return len(_spans(model, decoding.infill))
    return model.length if decoding.length is None else decoding.length


def open_canvas(model: Model, prompts: Sequence[Sequence[int]], strategy: Strategy, decoding: Decoding) -> Canvas:
    """The prompts' ids, each with L masks, plus what is infilled and what the method pins."""
    length = response_length(model, decoding)
    if decoding.steps is not None and decoding.steps > length:
        warnings.warn(
            f"{decoding.steps} steps for {length} tokens: at most {length} of them have something to do", stacklevel=4
        )
    if (decoding.cache or "").startswith("near") and not isinstance(strategy.select, (Quota, Wide)):  # Wide is refused
        rule = type(strategy.select).__name__
        warnings.warn(
            f"the near cache is made for methods that decode a set number of slots per step; with {rule} it may cost right answers",
            stacklevel=4,
        )
    canvas = Canvas.blank(prompts, length, model.vocab, model.device)
    if decoding.infill is not None:
        canvas = _pinned(canvas, _spans(model, decoding.infill))
    return strategy.prepare(canvas, model.literal)


def _encoded(model: Model, prompt: Prompt, decoding: Decoding, pictures: Sequence[Picture]) -> list[int]:
    if isinstance(prompt, (list, tuple)) and all(
        isinstance(token, int) and not isinstance(token, bool) for token in prompt
    ):
        size = model.vocabulary
        if wrong := [token for token in prompt if not -(2**31) <= token < size or (token < 0 and not pictures)]:
            raise UserError(
                f"a prompt holds token {wrong[0]}, which {model.name} does not have: its ids go from 0 to {size - 1}"
            )
        return list(prompt)
    return model.encode(
        cast("str | Messages", prompt), decoding.system, decoding.raw, [opened(picture) for picture in pictures]
    )


def _pictures(images: Images | None, prompts: int) -> list[list[Picture]]:
    """Every prompt's pictures as a list; they are opened one batch at a time."""
    if images is None:
        return [[] for _ in range(prompts)]
    if len(images) != prompts:
        raise UserError(f"images has an entry for every prompt: {prompts}, not {len(images)}")
    return [
        [] if some is None else list(some) if isinstance(some, (list, tuple)) else [cast("Picture", some)]
        for some in images
    ]


def _seeds(seed: int | Sequence[int], samples: int) -> list[int]:
    seeds = [seed + i for i in range(samples)] if isinstance(seed, int) else list(seed)
    if len(seeds) != samples:
        raise UserError(f"{len(seeds)} seeds were given for {samples} samples")
    return seeds


def _spans(model: Model, infill: str) -> list[int | None]:
    """Text with [MASK*n] spans as ids, None for a slot to fill."""
    out: list[int | None] = []
    end = 0
    for span in SPAN.finditer(infill):
        if len(span[1] or "") > 6:
            raise UserError(f"{span[0]:.30} asks for more tokens than any model takes")
        out += [*model.literal(infill[end : span.start()]), *([None] * int(span[1] or 1))]
        end = span.end()
    out += model.literal(infill[end:])
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


# ---------------------------------------------------------------- run


@torch.inference_mode()
def decode_canvas(
    model: Model,
    canvas: Canvas,
    strategy: Strategy,
    decoding: Decoding,
    seeds: Sequence[int],
    images: Sequence[Image] = (),
    watch: Sequence[Watch] = (),
) -> Decoded:
    """Decode one canvas to its end; `images` are the pictures of its rows, one row after the other."""
    session = model.denoiser(decoding.cfg, decoding.cache, images).begin(canvas)
    try:
        done = run(decode(canvas, strategy, decoding.steps, seeds, watch), session)
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        if type(error) is RuntimeError and "can't allocate memory" not in str(error):  # how a CPU says it is full
            raise
        rows = f"{canvas.rows} rows of {canvas.length} tokens"
        raise UserError(f"not enough memory for {rows}; use a smaller batch or length") from error
    tally, cost = getattr(session, "tally", None), getattr(model.module, "cost", None)
    return replace(done, work=cost(tally.tokens, tally.pairs, tally.slots)) if tally and cost else done


def plain_work(cost: Cost, prompt: int, length: int, masks: int, steps: int) -> int:
    """Multiplications of a plain decode: at most `steps` forwards over the whole of a row, P + L tokens that attend to one
    another, each of which reads the slots that are masked still and decodes an even share of them."""
    work, row = 0, prompt + length
    for left in range(steps, 0, -1):
        if masks:
            work += row * (cost.token + cost.key * row) + cost.slot * masks
            masks -= -(-masks // left)
    return work


# ---------------------------------------------------------------- canvas -> Generations


def read_canvas(
    model: Model, done: Decoded, strategy: Strategy, decoding: Decoding, seeds: Sequence[int], seconds: float
) -> list[Generation]:
    """What was decoded, one Generation per row; `seconds` are those of one row."""
    ids, when, real = (
        done.canvas.response,
        done.canvas.when,
        done.canvas.real,
    )  # rows may have ended up with different lengths
    first_end = ((ids == (model.vocab.eot_ids or (-1,))[0]) & real).sum(1) / real.sum(1)
    any_end = (torch.isin(ids, torch.tensor(model.vocab.eot_ids, device=ids.device)) & real).sum(1) / real.sum(1)
    length = response_length(model, decoding)
    work = _share_of_plain(model, done, length, decoding)
    return [
        Generation(
            text=cut(model.text(ids[row][real[row]]), decoding.stop), tokens=ids[row][real[row]].tolist(),
            order=when[row][real[row]].tolist(), forwards=int(done.forwards[row]),
            tie_rate=int(done.ties[row]) / max(1, int(done.chosen[row])),
            eot_ratio=float(first_end[row]), eot_ratio_all=float(any_end[row]),
            steps=strategy.steps(length, decoding.steps), seed=seeds[row], seconds=seconds, work=work[row],
        )
        for row in range(done.canvas.rows)
    ]  # fmt: skip


def _share_of_plain(model: Model, done: Decoded, length: int, decoding: Decoding) -> list[float | None]:
    """Every row's multiplications over those of plain decoding in as many steps as were asked for, or L / 2."""
    if done.work is None or not ours(model.module):
        return [None] * done.canvas.rows
    prompts = done.canvas.valid[:, : done.canvas.start].sum(1).tolist()
    masks = [length - n for n in (done.canvas.fixed & done.canvas.real).sum(1).tolist()]
    steps, times = Strategy().steps(length, decoding.steps), 2 if decoding.cfg else 1  # guidance runs two canvases
    plain = [plain_work(model.module.cost, p, length, m, steps) for p, m in zip(prompts, masks, strict=True)]
    return [work / (times * all_) if all_ else None for work, all_ in zip(done.work.tolist(), plain, strict=True)]


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the first of the stop strings."""
    ends = [at for s in stop if s and (at := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
