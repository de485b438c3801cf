"""Votes above one decode: over the steps of a decode (temporal self-consistency), over decodes with several block sizes (HEX).

An answer is whatever `extract` makes of a text, None where it finds none: mostly a grader's own extraction (`extraction`).
B rows, L response slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import method as named
from unmask.decoding.step import Step
from unmask.errors import UserError
from unmask.generation import Decoding, Generation, Images, Prompt, generations
from unmask.models.model import Model
from unmask.tasks import Row, Task

Answer = Hashable | None  # None: none was found
Extract = Callable[[str], Answer]
SIZES = (8, 16, 32, 64, 128)  # HEX's block sizes, those that fit the response


@dataclass(frozen=True)
class Vote:
    """What was voted on and what won; the text of `chosen` is the first that gave the winning answer, for a grader to read."""

    winner: Answer
    chosen: Generation
    answers: list[Answer]
    forwards: int  # of all the decodes that voted


def weight(kind: str, s: int, steps: int, alpha: float) -> float:
    """w_s of step s, counted from 0, of T = steps: 1 (fixed), (s + 1) / T (linear), exp(alpha s / T) (exp)."""
    if kind not in ("fixed", "linear", "exp"):
        raise UserError(f"a step's weight is fixed, linear or exp, not {kind!r}")
    return {"fixed": 1.0, "linear": (s + 1) / steps, "exp": math.exp(s / steps * alpha)}[kind]


def temporal(answers: Sequence[Answer], steps: int, kind: str = "exp", alpha: float = 5.0) -> Answer:
    """The answer with the largest sum of weights over the steps that gave it; of equals the one seen first; None does not vote."""
    total: dict[Answer, float] = {}
    for s, answer in enumerate(answers):
        if answer is not None:
            total[answer] = total.get(answer, 0.0) + weight(kind, s, steps, alpha)
    return max(total, key=lambda answer: total[answer], default=None)  # the first of equals, as dicts keep their order


def blocks(pairs: Sequence[tuple[Answer, float]], rule: str = "frequency") -> tuple[list[tuple[Answer, float]], bool]:
    """HEX's vote over (answer, log-likelihood) in the order of block sizes: what is left, best first, each with its smallest
    negative log-likelihood, and whether several were given equally often.

    frequency: the most frequent answers, the first seen leading; frequency_tie_lowest_nll: of these the likeliest;
    lowest_nll: the likeliest of all.
    """
    nll: dict[Answer, float] = {}
    times: dict[Answer, int] = {}
    for answer, ll in pairs:
        if answer is not None:
            nll[answer], times[answer] = min(-ll, nll.get(answer, math.inf)), times.get(answer, 0) + 1
    if not nll:
        return [(None, 0)], False
    most = [answer for answer in nll if times[answer] == max(times.values())]
    left = most if rule.startswith("frequency") else list(nll)
    if rule != "frequency":
        left = [answer for answer in left if nll[answer] == min(nll[other] for other in left)]
    return [(answer, nll[answer]) for answer in left], len(most) > 1


class Drafts:
    """A watcher that keeps what the response would be at every step if it ended there: x^0 where it is masked, before the
    step's own commits. Later blocks are read too."""

    needs = frozenset({"beyond"})

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor]] = []  # (B, L) ids, and (B,) bool: rows that were at work

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        if step.after.ragged:
            raise UserError("a vote over steps needs a response of one length; this method changes it while it decodes")
        canvas = step.canvas
        ids = torch.where(canvas.masked, step.seen.token, canvas.response)
        self.steps.append((ids, step.eligible.any(1)))

    def rows(self) -> list[list[Tensor]]:
        """Every row's drafts, (L,) each."""
        found: list[list[Tensor]] = [[] for _ in self.steps[0][1]]
        for ids, active in self.steps:
            for r in active.nonzero().squeeze(1).tolist():
                found[r].append(ids[r])
        return found


class Likelihood:
    """A watcher that sums ln p of every token when it is committed: (B,)."""

    total: Tensor | float = 0.0

    def __call__(self, step: Step, score: Tensor, chosen: Tensor) -> None:
        self.total = self.total + torch.where(chosen, step.seen.p.clamp(min=1e-30).log(), 0.0).sum(1)


def extraction(task: Task, row: Row, mode: str = "") -> Extract:
    """What the task's grader takes to be the answer of a text."""
    grade = task.grader(mode)

    def extract(text: str) -> Answer:
        found = grade(text, row)
        answer = None if found.rule == "none" else found.extracted
        return answer if isinstance(answer, Hashable) else repr(answer)

    return extract


def by_steps(
    model: Model, prompts: Sequence[Prompt], extracts: Sequence[Extract], method: str | Strategy = "sacm",
    decoding: Decoding = Decoding(), *, images: Images | None = None, kind: str = "exp", alpha: float = 5.0,  # noqa: B008
) -> list[Vote]:  # fmt: skip
    """Temporal self-consistency: decode once and let the answers of all steps vote, at no further forward."""
    found = []
    for first in range(0, len(prompts), decoding.batch):
        drafts, some = Drafts(), slice(first, first + decoding.batch)
        shown = None if images is None else images[some]
        made = list(generations(model, prompts[some], method, _part(decoding, some), images=shown, watch=[drafts]))
        kept = drafts.rows() if drafts.steps else [[] for _ in made]
        for done, ids, extract in zip(made, kept, extracts[some], strict=True):
            texts = [model.text(one) for one in ids]
            answers = [extract(text) for text in texts]
            winner = temporal(answers, done.steps, kind, alpha)
            found.append(
                Vote(winner, replace(done, text=_first(winner, answers, texts) or done.text), answers, done.forwards)
            )
    return found


def by_blocks(
    model: Model, prompts: Sequence[Prompt], extracts: Sequence[Extract], method: str | Strategy = "semi-ar",
    decoding: Decoding = Decoding(), *, images: Images | None = None, sizes: Sequence[int] = SIZES,  # noqa: B008
    rule: str = "frequency",
) -> list[Vote]:  # fmt: skip
    """HEX: decode once for every block size and let the answers vote."""
    length = decoding.length or model.length
    tries: list[list[tuple[Generation, float]]] = [[] for _ in prompts]
    for size in [size for size in sorted(sizes) if size <= length] or [length]:
        for first in range(0, len(prompts), decoding.batch):
            watch, some = Likelihood(), slice(first, first + decoding.batch)
            shown, sized = None if images is None else images[some], replace(named(method), block=size)
            made = list(generations(model, prompts[some], sized, _part(decoding, some), images=shown, watch=[watch]))
            likely = torch.as_tensor(watch.total).expand(len(made)).tolist()
            for kept, pair in zip(tries[some], zip(made, likely, strict=True), strict=True):
                kept.append(pair)
    found = []
    for kept, extract in zip(tries, extracts, strict=True):
        answers = [extract(done.text) for done, _ in kept]
        winner = blocks([(answer, ll) for answer, (_, ll) in zip(answers, kept, strict=True)], rule)[0][0][0]
        best = answers.index(winner) if winner in answers else 0
        found.append(Vote(winner, kept[best][0], answers, sum(done.forwards for done, _ in kept)))
    return found


VOTES: dict[str, Callable[..., list[Vote]]] = {"temporal": by_steps, "blocks": by_blocks}


def _part(decoding: Decoding, some: slice) -> Decoding:
    """The seeds of those rows, where every row has its own."""
    seed = decoding.seed
    return decoding if isinstance(seed, int) else replace(decoding, seed=list(seed)[some])


def _first(winner: Answer, answers: Sequence[Answer], texts: Sequence[str]) -> str:
    return next(
        (text for answer, text in zip(answers, texts, strict=True) if winner is not None and answer == winner), ""
    )
