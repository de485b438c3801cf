"""Trace: a watcher that remembers a decode, and the small file it is kept in (docs/traces.md).

B rows, L response slots, T iterations. While decoding it only keeps tensors that exist anyway, (B, L) each: no copy to
the host, no synchronisation. They become Runs, one per row, when the decode is over.
"""

from __future__ import annotations

import gzip
import html
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unmask import __version__
from unmask.decoding.algorithm import Strategy
from unmask.errors import UserError
from unmask.evaluation.evaluate import decoding_for, picture
from unmask.files import write_bytes
from unmask.generation import Decoding, Images, Prompt, generations
from unmask.models.model import Model
from unmask.tasks import Rows, Task

if TYPE_CHECKING:
    from torch import Tensor

    from unmask.decoding.canvas import Canvas
    from unmask.decoding.reading import Draws
    from unmask.decoding.step import Step

FORMAT, VERSION = "unmask-trace", 1
LONGEST = 1_000_000  # tokens of a response: a file that says more is damaged
SCALE = 10_000  # confidences are kept as integers in units of 1 / SCALE


class Trace:
    """Watch a decode: `generate(model, prompts, watch=[trace := Trace()])`, then `trace.runs(model)`.

    top: also keep the five best candidates of every committed slot. That costs a top-k over the vocabulary for every
    asked slot and forward, so it is off by default.
    """

    def __init__(self, top: bool = False):
        self.needs = frozenset({"top"} if top else ())
        self.decodes: list[_Decode] = []
        self.clock = time.perf_counter()

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        if not self.decodes or self.decodes[-1].draws is not step.draws:  # each decode has its own random draws
            self.decodes.append(_Decode(step.draws, step.strategy, step.canvas))
        decode, now = self.decodes[-1], time.perf_counter()
        decode.steps.append((step.turn, step.window, 1000 * (now - self.clock), _kept(step, score, chosen)))
        self.clock = now
        if self.needs:
            decode.top = _best(step, chosen, decode.top)

    def runs(self, model: Model, abouts: Sequence[dict[str, Any]] = ()) -> list[Run]:
        """A Run for every row decoded, in order; `abouts` says what is known about each: method, prompt, gold, ..."""
        found = [run for decode in self.decodes for run in decode.runs(model)]
        return [replace(run, **about) for run, about in zip(found, abouts or [{}] * len(found), strict=True)]


class Pieces:
    """Watch a decode and hand on every row's trace as it grows: `tell(row, piece)` is given a run's head, a piece for each step
    and, from `end`, the last one. The pieces of a row join to its Run: see `joined`."""

    def __init__(self, model: Model, tell: Callable[[int, dict[str, Any]], None], top: bool = False):
        self.model, self.tell, self.needs = model, tell, frozenset({"top"} if top else ())
        self.folds: list[_Fold] = []
        self.top: tuple[Any, Any] | None = None
        self.clock = time.perf_counter()

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        if not self.folds:
            self.folds = [_Fold(self.model, step.strategy, step.canvas, row) for row in range(step.canvas.rows)]
            for row, fold in enumerate(self.folds):
                self.tell(row, {"run": fold.head})
        now, turns = time.perf_counter(), step.turn.tolist()
        columns, ms = _columns([_kept(step, score, chosen)]), 1000 * (now - self.clock)
        self.clock, self.top = now, _best(step, chosen, self.top) if self.needs else None
        for row, fold in enumerate(self.folds):
            if folded := fold.step(turns[row], step.window, ms, [column and column[0][row] for column in columns]):
                self.tell(row, {"step": folded, "tokens": fold.tokens(folded["guess"][1::2])})

    def end(self, row: int, **about: Any) -> None:
        self.tell(row, {"end": {**self.folds[row].end(self.top), **about}} if self.folds else {"end": about})


def joined(pieces: Iterable[Mapping[str, Any]]) -> Run:
    """The Run whose pieces these are."""
    run: dict[str, Any] = {"steps": [], "tokens": {}}
    for piece in pieces:
        more = {**piece.get("run", {}), **piece.get("end", {})}
        run["tokens"] |= {**more.pop("tokens", {}), **piece.get("tokens", {})}
        run["steps"] += [piece["step"]] if "step" in piece else []
        run |= more
    return Run(**{name: value for name, value in run.items() if name in {f.name for f in fields(Run)}})


@dataclass
class _Decode:
    draws: Draws
    strategy: Strategy
    canvas: Canvas  # before the first iteration
    steps: list[tuple[Tensor, slice, float, tuple[Tensor | Any, ...]]] = field(default_factory=list)
    top: tuple[Tensor, Tensor] | None = None  # (B, L, 5) ids and probabilities, as each slot was committed

    def runs(self, model: Model) -> Iterator[Run]:
        columns = _columns([kept for *_, kept in self.steps])
        turns = [turn.tolist() for turn, *_ in self.steps]  # the forwards of each row, (T, B)
        for row in range(self.canvas.rows):
            fold = _Fold(model, self.strategy, self.canvas, row)
            pieces: list[dict[str, Any]] = [{"run": fold.head}]
            for t, (_, window, ms, _) in enumerate(self.steps):
                if folded := fold.step(turns[t][row], window, ms, [column and column[t][row] for column in columns]):
                    pieces.append({"step": folded, "tokens": fold.tokens(folded["guess"][1::2])})
            run = joined([*pieces, {"end": fold.end(self.top)}])
            yield replace(run, tokens={str(n): run.tokens[str(n)] for n in sorted(map(int, run.tokens))})


def _kept(step: Step, score: Tensor, chosen: Tensor) -> tuple[Any, ...]:
    """What a step leaves for the trace, (B, L) each or None: base, score, tokens, chosen, reopened, after, asked, and the scores
    between one modifier and the next."""
    if step.after.ragged:
        raise UserError("a trace shows a response of one length; this method changes it while it decodes")
    seen, revised = step.seen, step.strategy.revise or step.strategy.focus
    asked = (step.after.response, seen.token.masked_fill(seen.p == 0, -1)) if revised else (None, None)
    return step.base, score, seen.token, chosen, step.reopened, *asked, *step.scores[1:-1]


def _best(step: Step, chosen: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """The best candidates (B, L, 5) of the iteration that committed each slot: ids and probabilities."""
    seen, here = step.seen, chosen[..., None]
    ids, p = before or (seen.top_ids, seen.top_p)
    return seen.top_ids.where(here, ids), seen.top_p.where(here, p)


def _columns(kept: Sequence[tuple[Any, ...]]) -> list[Any]:
    """(T, B, L) of each thing that was kept, confidences as integers; None where it was never there (nothing reopened)."""
    import torch

    def column(i: int) -> Any:
        if kept[-1][i] is None:
            return None
        whole = torch.stack([step[i] for step in kept])
        return ((whole * SCALE).round().nan_to_num().long() if whole.is_floating_point() else whole).tolist()

    return [column(i) for i in range(len(kept[-1]) if kept else 0)]


class _Fold:
    """One row's decode, folded step by step into what a trace file holds."""

    def __init__(self, model: Model, strategy: Strategy, canvas: Canvas, row: int):
        self.model, self.strategy, self.row, self.length, self.vocab = model, strategy, row, canvas.length, canvas.vocab
        self.start: list[int] = canvas.response[row].tolist()
        self.state, self.guess, self.begun, self.told = list(self.start), [-1] * self.length, False, set[int]()
        self.late: list[int] = []  # reopened after the last iteration: the next one shows it
        given = [[i, n] for i, n in enumerate(self.start) if n != self.vocab.mask_id]
        rule: Any = next((rule for rule in strategy.modifiers if callable(getattr(rule, "weight", None))), None)
        self.head = {
            "length": self.length, "mask_id": self.vocab.mask_id, "eot_ids": list(self.vocab.eot_ids), "scale": SCALE,
            "model": model.name, "recipe": repr(strategy), "given": given,
            "anchors": [i for i, yes in enumerate(canvas.anchors[row].tolist()) if yes],
            "modifiers": [type(rule).__name__ for rule in strategy.modifiers],
            "weight": [round(w, 4) for w in rule.weight(canvas)[row].tolist()] if rule else [],
            "tokens": self.tokens(n for _, n in given),
        }  # fmt: skip

    def tokens(self, ids: Iterable[int]) -> dict[str, str]:
        """The text of those among the ids that were not told yet."""
        new = sorted(set(ids) - self.told)
        self.told.update(new)
        return {str(n): str(self.model.tokenizer.decode([n])) for n in new}

    def step(self, turn: int, window: slice, ms: float, kept: Sequence[Any]) -> dict[str, Any] | None:
        """A STEP of docs/traces.md; None where the row had nothing to decode, as the other rows were still at work."""
        base, score, tokens, chosen, reopened, after, asked, *between = kept
        mask, state = self.vocab.mask_id, self.state
        # What is reopened before the first iteration was never closed for whoever reads the trace.
        again = [i for i, yes in enumerate(reopened) if yes] if reopened and self.begun else []
        self.begun = True
        if after:  # rules that revise may have written, replaced and reopened anything: what stands there then counts
            window = slice(0, self.length)
            replaced = {i for i, n in enumerate(after) if mask not in (n, state[i]) and n != state[i]}
            again = sorted({*again, *self.late, *replaced})
            tokens = [old if n == mask and old >= 0 else n for n, old in zip(after, asked, strict=True)]
            chosen = [n != mask for n in after]
            self.late = [i for i, n in enumerate(after) if n == mask and state[i] != n and i not in again]
        for i in again:
            state[i] = mask
        slots = [i for i in range(window.start, window.stop) if state[i] == mask]
        if not slots:
            return None
        changed = [i for i in slots if tokens[i] != self.guess[i]]
        for i in changed:
            self.guess[i] = tokens[i]
        now = [i for i in slots if chosen[i]]
        for i in now:
            state[i] = self.guess[i]
        return {
            "forward": turn, "ms": round(ms, 3), "chosen": now,
            "guess": [n for i in changed for n in (i, self.guess[i])],
            "base": [base[i] for i in slots],
            **({"score": [score[i] for i in slots]} if self.strategy.modifiers else {}),
            **({"between": [[part[i] for i in slots] for part in between]} if between else {}),
            **({"window": [window.start, window.stop]} if window != slice(0, self.length) else {}),
            **({"reopened": again} if again else {}),
        }  # fmt: skip

    def end(self, top: tuple[Tensor, Tensor] | None) -> dict[str, Any]:
        """What is known at the end only: the text, and the candidates of every slot that was filled."""
        mask, candidates = self.vocab.mask_id, {}
        if top:
            ids, p = (part[self.row].tolist() for part in top)
            for i in (i for i, n in enumerate(self.start) if n == mask and self.state[i] != mask):
                candidates[str(i)] = [[n, round(q, 4)] for n, q in zip(ids[i], p[i], strict=True)]
        used = self.tokens(n for best in candidates.values() for n, _ in best)
        return {"text": self.model.text(self.state), "candidates": candidates, "tokens": used}


@dataclass(frozen=True)
class Run:
    """One row's decode as plain data: the object of the file's "runs" list."""

    length: int  # L
    mask_id: int
    eot_ids: list[int]  # the first one is the paper's ∅
    steps: list[dict[str, Any]]  # see docs/traces.md; `moments` unfolds them
    tokens: dict[str, str]  # the text of every token id used
    given: list[list[int]] = field(default_factory=list)  # [slot, id] written before decoding
    anchors: list[int] = field(default_factory=list)  # slots
    weight: list[float] = field(default_factory=list)  # w_i of the modulation, (L,); empty where there is none
    modifiers: list[str] = field(default_factory=list)  # the names of the rules that make c~ of c, in order
    candidates: dict[str, list[list[float]]] = field(default_factory=dict)  # slot -> [id, p] best first, at its commit
    text: str = ""
    method: str = ""
    recipe: str = ""
    model: str = ""
    prompt: str = ""
    gold: str | None = None
    correct: bool | None = None
    work: float | None = None  # multiplications, over those of a plain decode
    scale: int = SCALE

    def _repr_html_(self) -> str:
        """In a notebook: the page that replays it, in a frame from which nothing gets out."""
        from unmask.views.replay import page

        frame = 'sandbox="allow-scripts" style="width: 100%; height: 36em; border: 0"'
        return f'<iframe srcdoc="{html.escape(page([self]))}" {frame}></iframe>'

    def moments(self) -> Iterator[Moment]:
        """The iterations in order, each with the canvas before it."""
        ids = [self.mask_id] * self.length
        for slot, token in self.given:
            ids[slot] = token
        guess: dict[int, int] = {}
        when = [-1] * self.length
        for index, step in enumerate(self.steps):
            for slot in step.get("reopened", ()):
                ids[slot], when[slot] = self.mask_id, -1
            a, b = step.get("window", (0, self.length))
            slots = [i for i in range(a, b) if ids[i] == self.mask_id]
            guess.update(zip(step["guess"][::2], step["guess"][1::2], strict=True))
            base = [value / self.scale for value in step["base"]]
            score = [value / self.scale for value in step.get("score", step["base"])]
            between = [[value / self.scale for value in part] for part in step.get("between", ())]
            tokens = [guess[i] for i in slots]
            yield Moment(index, list(ids), list(when), slots, tokens, base, score, step["chosen"], between)
            for slot in step["chosen"]:
                ids[slot], when[slot] = guess[slot], index

    def final(self) -> Moment:
        """The finished canvas, as a moment that has nothing left to do."""
        (last,) = deque(self.moments(), maxlen=1)
        ids, when = list(last.ids), list(last.when)
        guess = dict(zip(last.slots, last.guess, strict=True))
        for slot in last.chosen:
            ids[slot], when[slot] = guess[slot], last.index
        return Moment(last.index + 1, ids, when, [], [], [], [], [])

    def eot_ratio(self) -> float:
        """EOT tokens / L, where L includes the anchor's slots; ∅ alone, as in the paper."""
        return sum(token in self.eot_ids[:1] for token in self.final().ids) / self.length


@dataclass(frozen=True)
class Moment:
    """One iteration: the canvas before it, and what was predicted for every eligible slot."""

    index: int
    ids: list[int]  # (L,)
    when: list[int]  # (L,) the iteration that committed the slot, -1 for none
    slots: list[int]  # eligible ones; the next three lists belong to them
    guess: list[int]  # x^0
    base: list[float]  # c
    score: list[float]  # c~
    chosen: list[int]  # slots committed now
    between: list[list[float]] = field(default_factory=list)  # the scores after each modifier but the last


def record(
    model: Model,
    prompts: Sequence[Prompt],
    methods: Mapping[str, Strategy],
    decoding: Decoding = Decoding(),  # noqa: B008 (frozen)
    *,
    images: Images | None = None,
    top: bool = True,
) -> list[Run]:
    """Decode prompts with each method and keep how it went."""
    runs = []
    for name, strategy in methods.items():
        trace = Trace(top)
        made = generations(model, prompts, strategy, decoding, images=images, watch=[trace])
        asked = [prompt for prompt in prompts for _ in range(decoding.samples)]
        runs += trace.runs(
            model,
            [{"method": name, "prompt": p, "text": g.text, "work": g.work} for p, g in zip(asked, made, strict=True)],
        )
    return runs


def record_rows(
    model: Model,
    task: Task,
    rows: Rows,
    methods: Mapping[str, Strategy],
    decoding: Decoding = Decoding(),  # noqa: B008
) -> list[Run]:
    """The same for rows of a task, with their gold and, unless grading runs code, the grade."""
    prompts = [task.render(row, rows.few_shot) for row in rows.rows]
    images = [picture(task, row, rows.data.root) for row in rows.rows] if task.image else None
    runs = record(model, prompts, methods, decoding_for(model, task, decoding), images=images)
    graded = []
    for run, row in zip(runs, [row for _ in methods for row in rows.rows], strict=True):
        correct = None if task.executes else bool(task.grade(run.text, row).correct)
        graded.append(replace(run, gold=str(row.get(task.gold)), correct=correct))
    return graded


def packed(runs: Sequence[Run]) -> dict[str, Any]:
    """The object of a trace file; what says nothing (empty, None) is left out."""
    small = [{name: value for name, value in vars(run).items() if value not in (None, "", [], {})} for run in runs]
    return {"format": FORMAT, "version": VERSION, "made_by": f"unmask {__version__}", "runs": small}


def save(path: str | Path, runs: Sequence[Run]) -> None:
    """Write a trace file: JSON, gzipped when the name ends in .gz. An older file is replaced as a whole or not at all."""
    data = json.dumps(packed(runs), ensure_ascii=False, separators=(",", ":")).encode()
    write_bytes(path, gzip.compress(data, mtime=0) if str(path).endswith(".gz") else data)


def load(path: str | Path) -> list[Run]:
    """The runs of a trace file of this version or an older one. Fields that were added later are ignored."""
    try:
        data = Path(path).read_bytes()
        whole = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or 'the file is damaged'}") from error
    except (EOFError, ValueError, RecursionError, gzip.zlib.error) as error:  # type: ignore[attr-defined]
        raise UserError(f"{path} is not a trace file, or it is damaged") from error
    return parsed(whole, path)


def parsed(whole: Any, path: str | Path) -> list[Run]:
    """The runs of a trace file's object, if they hold together; `path` says whose they are."""
    if not isinstance(whole, dict) or whole.get("format") != FORMAT:
        raise UserError(f"{path} is not a trace file; `unmask trace ... -o run.json.gz` makes one")
    version = whole.get("version")
    if type(version) is not int:
        raise UserError(f"{path} is damaged: it names no version")
    if version > VERSION:
        raise UserError(f"{path} is of format version {version}, this unmask reads {VERSION}: upgrade unmask")
    known = {f.name for f in fields(Run)}
    try:
        runs = [Run(**{name: value for name, value in run.items() if name in known}) for run in whole["runs"]]
        for run in runs:
            if type(run.length) is not int or not 0 < run.length <= LONGEST:
                raise UserError(f"{path} is damaged: a response of {run.length!r:.20} tokens")
            run.final()  # every slot is in range and every list as long as it should be, or this fails
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, ZeroDivisionError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is damaged: its runs do not hold together ({type(error).__name__}: {error})"
        ) from error
    return runs
