"""Trace: a watcher that remembers a decode, and the small file it is kept in (docs/traces.md).

B rows, L response slots, T iterations. While decoding it only keeps tensors that exist anyway, (B, L) each: no copy to
the host, no synchronisation. They become Runs, one per row, when the decode is over.
"""

from __future__ import annotations

import gzip
import html
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from unmask import __version__
from unmask.decoding.algorithm import Strategy
from unmask.errors import UserError
from unmask.evaluation.evaluate import decoding_for, picture
from unmask.files import write_bytes
from unmask.generation import Decoding, Prompt, generations
from unmask.models.model import Model
from unmask.tasks import Rows, Task

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

    def __call__(self, step: Any, score: Any, chosen: Any) -> None:
        if not self.decodes or self.decodes[-1].draws is not step.draws:  # each decode has its own random draws
            self.decodes.append(_Decode(step.draws, step.strategy, step.canvas))
        decode, now, seen = self.decodes[-1], time.perf_counter(), step.seen
        if step.after.ragged:
            raise UserError("a trace shows a response of one length; this method changes it while it decodes")
        revised = step.strategy.revise or step.strategy.focus
        asked = (step.after.response, seen.token.masked_fill(seen.p == 0, -1)) if revised else (None, None)
        kept = (step.base, score, seen.token, chosen, step.reopened, *asked, *step.scores[1:-1])
        decode.steps.append((step.turn, step.window, 1000 * (now - self.clock), kept))
        self.clock = now
        if self.needs:
            here = chosen[..., None]
            ids, p = decode.top or (seen.top_ids, seen.top_p)
            decode.top = seen.top_ids.where(here, ids), seen.top_p.where(here, p)

    def runs(self, model: Any, abouts: Sequence[dict[str, Any]] = ()) -> list[Run]:
        """A Run for every row decoded, in order; `abouts` says what is known about each: method, prompt, gold, ..."""
        found = [run for decode in self.decodes for run in decode.runs(model)]
        return [replace(run, **about) for run, about in zip(found, abouts or [{}] * len(found), strict=True)]


@dataclass
class _Decode:
    draws: Any
    strategy: Any
    canvas: Any  # before the first iteration
    steps: list[tuple[Any, slice, float, tuple[Any, ...]]] = field(default_factory=list)
    top: tuple[Any, Any] | None = None  # (B, L, 5) ids and probabilities, of the iteration that committed each slot

    def runs(self, model: Any) -> Iterator[Run]:
        modifiers = [type(rule).__name__ for rule in self.strategy.modifiers]
        columns = [self._column(i) for i in range(7 + len(modifiers[1:]))]
        base, score, tokens, chosen, reopened, after, asked, *between = columns
        turns = [turn.tolist() for turn, *_ in self.steps]  # the forwards of each row, (T, B)
        start, anchors, vocab = self.canvas.response.tolist(), self.canvas.anchors.tolist(), self.canvas.vocab
        rule = next((rule for rule in self.strategy.modifiers if hasattr(rule, "weight")), None)
        weight = rule.weight(self.canvas).tolist() if rule else None
        top: Any = [part.tolist() for part in self.top] if self.top else None
        for row in range(self.canvas.rows):
            state, guess = list(start[row]), [-1] * self.canvas.length
            steps: list[dict[str, Any]] = []
            late: list[int] = []  # reopened after the last iteration: the next one shows it
            for t, (_, window, ms, _) in enumerate(self.steps):
                # What is reopened before the first iteration was never closed for whoever reads the trace.
                again = [i for i, yes in enumerate(reopened[t][row]) if yes] if reopened and t else []
                if (
                    after
                ):  # rules that revise may have written, replaced and reopened anything: what stands there then counts
                    window, left = slice(0, self.canvas.length), after[t][row]
                    replaced = {i for i, n in enumerate(left) if vocab.mask_id not in (n, state[i]) and n != state[i]}
                    again = sorted({*again, *late, *replaced})
                    seen = zip(left, asked[t][row], strict=True)
                    tokens[t][row] = [old if n == vocab.mask_id and old >= 0 else n for n, old in seen]
                    chosen[t][row] = [n != vocab.mask_id for n in left]
                    late = [i for i, n in enumerate(left) if n == vocab.mask_id and state[i] != n and i not in again]
                for i in again:
                    state[i] = vocab.mask_id
                slots = [i for i in range(window.start, window.stop) if state[i] == vocab.mask_id]
                if not slots:
                    continue  # the other rows were still at work
                changed = [i for i in slots if tokens[t][row][i] != guess[i]]
                for i in changed:
                    guess[i] = tokens[t][row][i]
                now = [i for i in slots if chosen[t][row][i]]
                for i in now:
                    state[i] = guess[i]
                steps.append({
                    "forward": turns[t][row], "ms": round(ms, 3), "chosen": now,
                    "guess": [n for i in changed for n in (i, guess[i])],
                    "base": [base[t][row][i] for i in slots],
                    **({"score": [score[t][row][i] for i in slots]} if modifiers else {}),
                    **({"between": [[part[t][row][i] for i in slots] for part in between]} if between else {}),
                    **({"window": [window.start, window.stop]} if window != slice(0, self.canvas.length) else {}),
                    **({"reopened": again} if again else {}),
                })  # fmt: skip
            given = [[i, n] for i, n in enumerate(start[row]) if n != vocab.mask_id]
            filled = [i for i, n in enumerate(start[row]) if n == vocab.mask_id and state[i] != n] if top else []
            candidates = {
                str(i): [[n, round(p, 4)] for n, p in zip(top[0][row][i], top[1][row][i], strict=True)] for i in filled
            }
            used = {n for _, n in given} | {n for step in steps for n in step["guess"][1::2]}
            used |= {n for best in candidates.values() for n, _ in best}
            yield Run(
                length=self.canvas.length, mask_id=vocab.mask_id, eot_ids=list(vocab.eot_ids), model=model.name,
                recipe=repr(self.strategy), given=given, anchors=[i for i, yes in enumerate(anchors[row]) if yes],
                weight=[round(w, 4) for w in weight[row]] if weight else [], steps=steps, candidates=candidates,
                modifiers=modifiers,
                tokens={str(n): model.tokenizer.decode([n]) for n in sorted(used)}, text=model.text(state),
            )  # fmt: skip

    def _column(self, i: int) -> list[list[list[Any]]] | Any:
        """(T, B, L) of what was kept, confidences as integers; None where it was never there (nothing reopened)."""
        import torch

        if self.steps[-1][-1][i] is None:
            return None
        whole = torch.stack([kept[i] for *_, kept in self.steps])
        return ((whole * SCALE).round().nan_to_num().long() if whole.is_floating_point() else whole).tolist()


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
        *_, last = self.moments()
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
    images: Sequence[Any] | None = None,
    top: bool = True,
) -> list[Run]:
    """Decode prompts with each method and keep how it went."""
    runs = []
    for name, strategy in methods.items():
        trace = Trace(top)
        made = generations(model, prompts, strategy, decoding, images=images, watch=[trace])
        asked = [prompt for prompt in prompts for _ in range(decoding.samples)]
        runs += trace.runs(
            model, [{"method": name, "prompt": p, "text": g.text} for p, g in zip(asked, made, strict=True)]
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
    except (KeyError, TypeError, AttributeError, IndexError, ValueError, RecursionError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"{path} is damaged: its runs do not hold together ({type(error).__name__}: {error})"
        ) from error
    return runs
