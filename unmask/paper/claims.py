"""What held and what did not: every claim of an experiment as a clause, from paired differences on the same rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from unmask.evaluation.metrics import NEAR, near_anchor
from unmask.evaluation.significance import Z, mcnemar, mean, spread
from unmask.paper.experiments import Cell, Claim, by_configuration, matches
from unmask.paper.plan import Book

HEADS = {"held": "Held", "open": "Not decided", "failed": "Did not hold", "absent": "Not told"}
ENOUGH, SURE = 20, 0.05  # fewer rows, or a larger p, decide nothing

FIGURES = {
    "correct": ("", lambda e: float(e["correct"])),
    "mistakes": ("mistakes ", lambda e: 1 - float(e["correct"])),
    "nfe": ("forwards ", lambda e: float(e["nfe"])),
    "eot_ratio": ("EOT ratio ", lambda e: e["eot_ratio"]),
    "near_anchor": (f"share within {NEAR} slots of the anchor ", lambda e: near_anchor(e["order"], e["nfe"]) or 0.0),
}


class Gap(NamedTuple):
    """a - b on the same rows, with its 95 % interval."""

    a: float
    b: float
    difference: float
    low: float
    high: float

    @classmethod
    def between(cls, x: Sequence[Sequence[float]], y: Sequence[Sequence[float]]) -> Gap:
        """The mean over tasks of each task's mean: a task with many rows counts no more than one with few."""
        a, b = level(x), level(y)
        gaps = [[v - w for v, w in zip(one, other, strict=True)] for one, other in zip(x, y, strict=True)]
        reach = Z * math.sqrt(sum(spread(task) ** 2 / len(task) for task in gaps)) / len(gaps)
        return cls(a, b, a - b, a - b - reach, a - b + reach)

    def told(self, ours: str, theirs: str, what: str) -> str:
        """ "sacm 71.3 is 12.0 [8.1, 15.9] points above suffix-anchor 59.3": for "under", the interval is turned round, too."""
        scale, digits, unit = (1, 2, "") if what else (100, 1, " points")
        low, high, side = (self.low, self.high, "above") if self.difference >= 0 else (-self.high, -self.low, "under")
        a, b, gap, least, most = (
            f"{round(scale * v, digits) + 0.0:.{digits}f}" for v in (self.a, self.b, abs(self.difference), low, high)
        )
        return f"{ours} {what}{a} is {gap} [{least}, {most}]{unit} {side} {theirs} {b}"


def level(values: Sequence[Sequence[float]]) -> float:
    return mean([mean(task) or 0.0 for task in values]) or 0.0


def chance(x: Sequence[Sequence[float]], y: Sequence[Sequence[float]], draws: int = 100_000) -> float:
    """Two-sided p of so large a mean difference if a coin decided each row on which the two sides differ: McNemar's exact test
    or, over several tasks, as many tosses of a seeded generator."""
    pairs = [list(zip(one, other, strict=True)) for one, other in zip(x, y, strict=True)]
    above, under = [sum(v > w for v, w in task) for task in pairs], [sum(v < w for v, w in task) for task in pairs]
    if len(pairs) == 1:
        return mcnemar(above[0], under[0])
    import torch

    differ = torch.tensor([a + b for a, b in zip(above, under, strict=True)], dtype=torch.float64)
    rows = torch.tensor([len(task) for task in pairs], dtype=torch.float64)
    seen = abs(sum((a - b) / len(task) for a, b, task in zip(above, under, pairs, strict=True)))
    heads = torch.binomial(differ.expand(draws, -1), torch.full((draws, len(pairs)), 0.5, dtype=torch.float64),
                           generator=torch.Generator().manual_seed(0))  # fmt: skip
    return float((((2 * heads - differ) / rows).sum(1).abs() >= seen - 1e-9).double().mean())


def told(claim: Claim, cells: Sequence[Cell], book: Book) -> tuple[str, str] | None:
    """(a key of HEADS, a clause); None where the experiment has no such cells here."""
    configurations = by_configuration(cells)
    theirs = [found for found in configurations if matches(found[0].source, claim.theirs)]
    ours = [found for found in configurations if matches(found[0].source, claim.ours) and found not in theirs]
    if not ours or not theirs:
        return None
    done = {id(found): {cell.run.task for cell in found if book.record(cell.run)} for found in (*ours, *theirs)}
    for side in (ours, theirs):
        first = side[0][0].label
        side[:] = [found for found in side if done[id(found)]]  # the weakest, the strongest: of those that were run
        if not side:
            return "absent", f"{first} was not run"
    tasks = sorted(set.intersection(*(done[id(found)] for found in (*ours, *theirs))))
    if not tasks:
        return "absent", f"{ours[0][0].label} and {theirs[0][0].label} were not run on the same task"

    def values(found: Sequence[Cell], of: str) -> list[list[float]]:
        figure = FIGURES[of][1]
        return [
            [figure(e) for cell in found if cell.run.task == task for e in book.examples(cell.run)] for task in tasks
        ]

    weakest = min(ours, key=lambda found: level(values(found, "correct")))
    strongest = max(theirs, key=lambda found: level(values(found, "correct")))
    x, y = values(weakest, claim.of), [[claim.times * v for v in task] for task in values(strongest, claim.of)]
    if [len(task) for task in x] != [len(task) for task in y]:
        return "absent", f"{weakest[0].label} and {strongest[0].label} were not run on the same rows"
    gap, n = Gap.between(x, y), sum(len(task) for task in x)
    times = f"{claim.times:g} x " if claim.times != 1 else ""
    clause = gap.told(weakest[0].label, times + strongest[0].label, FIGURES[claim.of][0])
    clause += f", the strongest of {len(theirs)}" if len(theirs) > 1 else ""
    clause += f", the weakest of {len(ours)}" if len(ours) > 1 else ""
    clause += f", mean over {len(tasks)} tasks" if len(tasks) > 1 else ""
    clause += f", n = {n}"
    floor, decided = claim.by / 100, n >= ENOUGH
    clause += f" (claimed: at least {claim.by:g} points)" if claim.by else ""
    if claim.within is not None:
        floor = -claim.within / 100
        clause += f" (robust here: at most {claim.within:g} points under)"
    elif claim.ties:
        clause += " (claimed: not significantly under)"
    elif claim.of == "correct":
        p = chance(x, y)
        decided = decided and p < SURE
        clause += f", p = {p:.3f}" if p >= 0.001 else ", p < 0.001"
    held = gap.low > floor or (claim.ties and gap.high >= 0)
    return ("open" if not decided else "held" if held else "failed" if gap.high < floor else "open"), clause


def sentence(claims: Sequence[Claim], cells: Sequence[Cell], book: Book) -> str:
    """What held and what did not, with every model that was run."""
    found: dict[str, list[str]] = {key: [] for key in HEADS}
    models = list(dict.fromkeys(cell.source.model for cell in cells if book.record(cell.run)))
    for model in models:
        mine = [cell for cell in cells if cell.source.model == model]
        for claim in claims:
            if (verdict := told(claim, mine, book)) is not None:
                found[verdict[0]].append(verdict[1] + (f" ({model})" if len(models) > 1 else ""))
    return ". ".join(f"**{HEADS[key]}:** {'; '.join(clauses)}" for key, clauses in found.items() if clauses) + "."
