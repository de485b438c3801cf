"""Votes above one decode: over the steps of a decode (temporal self-consistency), over decodes with several block sizes (HEX).

An answer is whatever `extract` makes of a text, None where it finds none: mostly a grader's own extraction (`extraction`).
B rows, L response slots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.decoding.algorithm import Strategy
from unmask.decoding.methods import method as named
from unmask.decoding.step import Step
from unmask.errors import UserError
from unmask.generation import Generation, generate
from unmask.models.model import Model
from unmask.tasks import Row, Task

Extract = Callable[[str], Hashable | None]
SIZES = (8, 16, 32, 64, 128)  # HEX's block sizes, those that fit the response


@dataclass(frozen=True)
class Vote:
    """What was voted on and what won; `text` is the first text that gave the winning answer, for a grader to read."""

    winner: Any
    text: str
    answers: list[Any]  # None where none was found
    forwards: int


def weight(kind: str, s: int, steps: int, alpha: float) -> float:
    """w_s of step s, counted from 0, of T = steps: 1 (fixed), (s + 1) / T (linear), exp(alpha s / T) (exp)."""
    if kind not in ("fixed", "linear", "exp"):
        raise UserError(f"a step's weight is fixed, linear or exp, not {kind!r}")
    return {"fixed": 1.0, "linear": (s + 1) / steps, "exp": math.exp(s / steps * alpha)}[kind]


def temporal(answers: Sequence[Any], steps: int, kind: str = "exp", alpha: float = 5.0) -> Any:
    """The answer with the largest sum of weights over the steps that gave it; of equals the one seen first; None does not vote."""
    total: dict[Any, float] = {}
    for s, answer in enumerate(answers):
        if answer is not None:
            total[answer] = total.get(answer, 0.0) + weight(kind, s, steps, alpha)
    return max(total, key=lambda answer: total[answer], default=None)  # the first of equals, as dicts keep their order


def blocks(pairs: Sequence[tuple[Any, float]], rule: str = "frequency") -> tuple[list[tuple[Any, float]], bool]:
    """HEX's vote over (answer, log-likelihood) in the order of block sizes: what is left, best first, each with its smallest
    negative log-likelihood, and whether several were given equally often.

    frequency: the most frequent answers, the first seen leading; frequency_tie_lowest_nll: of these the likeliest;
    lowest_nll: the likeliest of all.
    """
    nll: dict[Any, float] = {}
    times: dict[Any, int] = {}
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

    def extract(text: str) -> Hashable | None:
        found = grade(text, row)
        answer = None if found.rule == "none" else found.extracted
        return answer if isinstance(answer, Hashable) else repr(answer)

    return extract


def by_steps(
    model: Model, prompt: Any, extract: Extract, method: str | Strategy = "sacm", *, kind: str = "exp", alpha: float = 5.0, **options: Any
) -> Vote:  # fmt: skip
    """Temporal self-consistency: decode once and let the answers of all steps vote, at no further forward."""
    drafts = Drafts()
    done: Generation = generate(model, [prompt], method, watch=[drafts], **options)[0]
    texts = [model.text(ids) for ids in drafts.rows()[0]] if drafts.steps else []
    answers = [extract(text) for text in texts]
    winner = temporal(answers, done.steps, kind, alpha)
    return Vote(winner, _first(winner, answers, texts) or done.text, answers, done.forwards)


def by_blocks(
    model: Model, prompt: Any, extract: Extract, method: str | Strategy = "semi-ar", *,
    sizes: Sequence[int] = SIZES, rule: str = "frequency", **options: Any,
) -> Vote:  # fmt: skip
    """HEX: decode once for every block size and let the answers vote."""
    length = options.get("length") or model.length
    sizes = [size for size in sorted(sizes) if size <= length] or [length]
    texts, pairs, forwards = [], [], 0
    for size in sizes:
        watch = Likelihood()
        done = generate(model, [prompt], replace(named(method), block=size), watch=[watch], **options)[0]
        texts.append(done.text)
        pairs.append((extract(done.text), float(torch.as_tensor(watch.total).sum())))
        forwards += done.forwards
    winner = blocks(pairs, rule)[0][0][0]
    answers = [answer for answer, _ in pairs]
    return Vote(winner, _first(winner, answers, texts) or texts[0], answers, forwards)


def _first(winner: Any, answers: Sequence[Any], texts: Sequence[str]) -> str:
    return next(
        (text for answer, text in zip(answers, texts, strict=True) if winner is not None and answer == winner), ""
    )
